"""What a codemod declares: its name, its promise, how it finds and how it rewrites.

A codemod is one module with one ``Codemod`` object. Its docstring is its documentation::

    codemod = Codemod(__name__, group="data", risk=Risk.EXACT, gain=Gain(1.0, 1.2, source="..."))

    @codemod.find
    def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]: ...

    @codemod.rewrite
    def rewrite(finding: Finding, edit: Edit) -> None: ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbofix.assumptions import RECENT_TORCH, Assumption
from turbofix.findings import UNSEEN, Evidence, Finding, Gain, InPlace, Refusal, Risk, Worth
from turbofix.source.site import Site

if TYPE_CHECKING:
    from turbofix.editing.edit import Edit
    from turbofix.training.model import TrainingProgram

Find = Callable[["TrainingProgram"], "Iterator[Finding | Refusal | InPlace]"]
Rewrite = Callable[[Finding, "Edit"], None]

GROUPS = ("data", "precision", "optimizer", "sync", "compute", "memory", "distributed", "schedule", "safety")

FOR_SPEED = ("data", "precision", "optimizer", "sync", "compute")
"""The groups whose codemods are there to make the training faster; the others save memory, or time after a crash."""


class SharedPlan:
    """A plan that several codemods have, and that is written in one way for all of them."""

    def write(self, site: Site, edit: Edit) -> None:
        """Prepare the edit of a finding at a site, or raise ``edits.Refuse``."""
        raise NotImplementedError


class Codemod:
    """One rewrite, found by its module; the module's name is the codemod's name (with ``-`` for ``_``).

    ``after`` names codemods that must have run before this one.
    ``together`` names codemods that gain with this one what neither gains alone: they are timed, and kept or dropped,
    as one. ``once`` says that it speaks of the program as a whole: one change, for which one line of the file is as
    good as several others.
    ``known_as`` are the words that people look for it by (``"FlashAttention"``): ``explain`` finds it by them, the
    README shows them. ``everywhere``: it speaks of the text, in files that train nothing, too. ``mends``: what it
    speaks of ends the script, so that it comes first and all else rests on it. ``tells`` names what is near to it and
    has no codemod: that it is right already is told beside this one. ``assumes`` are all assumptions that its findings
    may rest on, ``brings`` those of others that hold where it has rewritten the program: it goes before them.
    ``worth`` ranks its findings. ``otherwise`` is told, as a refusal, of a training
    of which it says nothing else: it never is silent. ``processes``: its rewrite trains in several processes, too,
    where torchrun starts it, ``shares``: each with a share of the batch.
    """

    def __init__(  # noqa: PLR0913
        self,
        module: str,
        *,
        group: str,
        risk: Risk,
        gain: Gain | None = None,
        after: tuple[str, ...] = (),
        together: tuple[str, ...] = (),
        once: bool = False,
        everywhere: bool = False,
        mends: bool = False,
        tells: tuple[str, ...] = (),
        known_as: tuple[str, ...] = (),
        assumes: tuple[Assumption, ...] = (),
        worth: Worth = Worth.SOME,
        brings: tuple[Assumption, ...] = (),
        otherwise: str | None = None,
        processes: bool = False,
        shares: bool = False,
    ) -> None:
        if group not in GROUPS:
            raise ValueError(f"{module}: {group!r} is no group; the groups are {', '.join(GROUPS)}")
        self.module = module
        self.name = module.rpartition(".")[2].replace("_", "-")
        self.group = group
        self.risk = risk
        self.gain = gain
        self.after = after
        self.together = together
        self.once = once
        self.everywhere = everywhere
        self.mends = mends
        self.tells = tells
        self.known_as = known_as
        self.assumes = assumes
        self.brings = brings
        self.worth = worth
        self.otherwise = otherwise
        self.processes = processes
        self.shares = shares
        self._find: Find | None = None
        self._rewrite: Rewrite | None = None

    def __repr__(self) -> str:
        return f"<codemod {self.name}>"

    @property
    def page(self) -> str:
        """The codemod's documentation: its module's docstring."""
        return (sys.modules[self.module].__doc__ or "").strip()

    @property
    def title(self) -> str:
        """The first line of the page."""
        return self.page.partition("\n")[0]

    def find(self, function: Find) -> Find:
        """Register the function that yields findings, refusals and what is in place (decorator)."""
        self._find = function
        return function

    def rewrite(self, function: Rewrite) -> Rewrite:
        """Register the function that prepares the edit of one finding (decorator)."""
        self._rewrite = function
        return function

    def examine(self, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
        """What the codemod says of a program, and of the same one under a recent torch where that may be the case."""
        found = list(self._examine(program))
        if program.target.recent is not None and RECENT_TORCH in self.assumes:
            there = {said.site for said in found if not isinstance(said, Refusal)}
            recent = replace(program, target=replace(program.target, torch=program.target.recent, recent=None))
            more = [said for said in self._examine(recent) if not isinstance(said, InPlace) and said.site not in there]
            sites = {said.site for said in more}
            found = [said for said in found if said.site not in sites]
            found += [
                replace(said, assumes=tuple(dict.fromkeys((*said.assumes, RECENT_TORCH))))
                if isinstance(said, Finding)
                else said
                for said in more
            ]
        yield from found

    def _examine(self, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
        """Run the codemod's ``find`` on a program; then what the program does right where nothing else was said."""
        if self._find is None:
            raise TypeError(f"{self.module} declares no find function")
        told: set[tuple[Path, int]] = set()
        slow, silent = False, True
        for said in self._find(program):
            last = said.site.end_line if said.site.kind == "Call" else said.site.line
            told.update((said.site.path, line) for line in range(said.site.line, last + 1))
            slow = slow or not isinstance(said, InPlace)
            yield said
        for habit in () if slow and self.once else program.habits:
            if habit.codemod in self.tells or (habit.codemod == self.name and habit.site[:2] not in told):
                silent = False
                yield habit
        for each in program.overlooked:
            lines = range(each.around.line, each.around.end_line + 1)
            if each.codemod == self.name and not any(path == each.site.path and line in lines for path, line in told):
                silent = False
                yield self.refuse(each.site, each.message, each.why_not)
        if self.otherwise is not None and silent and not told and program.trained_at is not None:
            yield self.refuse(program.trained_at, self.otherwise, UNSEEN.format(self.name))

    def prepare(self, finding: Finding, edit: Edit) -> None:
        """Run the codemod's ``rewrite``, which appends changes to ``edit`` or raises ``edits.Refuse``."""
        if isinstance(finding.plan, SharedPlan):
            finding.plan.write(finding.site, edit)
        elif self._rewrite is None:
            raise TypeError(f"{self.module} declares no rewrite function")
        else:
            self._rewrite(finding, edit)

    def finding(  # noqa: PLR0913
        self,
        site: Site,
        message: str,
        *,
        plan: object = None,
        risk: Risk | None = None,
        gain: Gain | None = None,
        evidence: tuple[Evidence, ...] = (),
        for_speed: bool = True,
        assumes: Iterable[Assumption] = (),
        worth: Worth | None = None,
    ) -> Finding:
        """A finding of this codemod; risk, gain and worth are the codemod's own unless given. What is hardly noticed,
        or is not done for speed alone, has no gain that somebody measured.

        ``assumes`` is what it rests on and analysis has not settled; the codemod must have declared it.

        ``for_speed`` is False where the rewrite mends something else, too, or where timed steps of the training do not
        show what it gains: then it is kept though nothing was seen of it.
        """
        purpose = for_speed and self.group in FOR_SPEED
        noticed = for_speed and (worth or self.worth) is not Worth.SMALL
        found = risk or self.risk, gain or (self.gain if noticed else None)
        open_ones = tuple(dict.fromkeys(assumes))
        undeclared = {each.name for each in open_ones} - {each.name for each in self.assumes}
        if undeclared:
            raise ValueError(f"{self.module} does not declare that it assumes {', '.join(undeclared)}")
        return Finding(
            self.name,
            self.group,
            site,
            message,
            *found,
            plan,
            evidence,
            for_speed=purpose,
            assumes=open_ones,
            worth=worth or self.worth,
        )

    def refuse(
        self, site: Site, message: str, why_not: str, *, risk: Risk | None = None, evidence: tuple[Evidence, ...] = ()
    ) -> Refusal:
        """A refusal of this codemod: worth saying, not rewritten, with the reason."""
        return Refusal(self.name, self.group, site, message, why_not, risk or self.risk, self.gain, evidence)

    def offer(self, site: Site, message: str, why_not: str | None, **told: Any) -> Finding | Refusal:
        """A refusal where there is a reason against it, else a finding, which has all that is ``told``."""
        if why_not is None:
            return self.finding(site, message, **told)
        return self.refuse(site, message, why_not, risk=told.get("risk"), evidence=told.get("evidence", ()))

    def in_place(self, site: Site, message: str) -> InPlace:
        """Something that the program does right already."""
        return InPlace(self.name, site, message)

    def nothing(self, program: TrainingProgram, why: str) -> Iterator[InPlace]:
        """Why a training would gain nothing, told where it stands."""
        yield from (self.in_place(site, why) for site in (program.trained_at,) if site is not None)
