"""Source texts in, findings and rewritten texts out: the codemods one after another, each on what the last one left.

Nothing here touches the disk: texts come from a workspace (an overlay over the disk, see ``source``), new texts are
returned. The engine knows no codemod by name.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from turbofix.assumptions import OPTION_DEFAULT, READ_WHOLE, SCRIPT_MENDED, Assumption
from turbofix.codemod import Codemod
from turbofix.config import Suppressions, suppressions
from turbofix.engine.importers import followed
from turbofix.engine.sentences import examined_retold, in_place_retold, with_lines
from turbofix.findings import Examined, Finding, InPlace, Refusal, Risk
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.nodes import newer_reads, unreadable
from turbofix.source.site import STUB, Site, Spot, spot

if TYPE_CHECKING:
    from types import FunctionType

    from typing_extensions import Self

    from turbofix.editing.edit import Change, Edit
    from turbofix.source.notebook import Cells
    from turbofix.training.model import Target, TrainingProgram

PASSES = 4
"""How often the whole sequence is run at most until it changes nothing any more."""

COLLIDES = "its edit collides with another one"
LOST = "its edit could not be made any more on the rewritten text"
FAILED_CHECK = "its edit did not pass turbofix's own check, a bug of turbofix: please report it"

TRAINING_WORDS = regex(
    r"\b(torch|lightning|pytorch_lightning|lightning_fabric|transformers|sentence_transformers|setfit|trl|accelerate"
    r"|deepspeed|ignite|timm|hydra|hydra_zen|import_module|__import__|locate)\b"
)

MOST_IMPORTS = 50
"""So many modules are looked through for these words."""


class Workspace(Protocol):
    """Texts of files, over the disk."""

    def read(self, path: Path, /) -> str | None:
        """The text of a file, or None where there is none."""

    def file(self, place: str, /) -> Path | None:
        """The path of a file, where there is one that can be read."""

    def with_texts(self, texts: Mapping[Path, str], /) -> Self:
        """The same workspace with other texts for some files."""

    def root(self, entry: Path, /) -> Path:
        """The folder of the project that the script belongs to."""

    def beside(self, entry: Path, /, *suffixes: str) -> Iterable[Path]:
        """The Python files of the project that the script belongs to, as far as they are searched; or others."""


Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
Said: TypeAlias = Finding | Refusal | InPlace

Keep = Callable[[Path, Codemod], bool]
"""Whether what a codemod says of a file is wanted (per-file-ignores). Suppression comments are read here."""


def keep_everything(path: Path, codemod: Codemod) -> bool:
    """The default ``Keep``."""
    return True


@dataclass(frozen=True)
class Trust:
    """What the user believes, and a run has shown, of the assumptions that findings rest on, by name.

    ``likely``: all that is open is believed when the program is rewritten. ``declared``: these hold, the user says.
    ``refuted``: these do not hold, as a run has shown; ``without`` are findings that are left out, by ``name_of``.
    """

    likely: bool = False
    declared: frozenset[str] = frozenset()
    refuted: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    def told(self, finding: Finding, declared_here: frozenset[str]) -> Finding | Refusal:
        """A finding with what is declared left out of what it assumes; a refusal where a run has refuted that."""
        open_ones = tuple(each for each in finding.assumes if each.name not in self.declared | declared_here)
        refuted = next((each for each in open_ones if each.name in self.refuted), None)
        if refuted is not None:
            why = f"it rests on `{refuted.name}`, which a run has refuted"
            said = (finding.codemod, finding.group, finding.site, finding.message, why, finding.risk, finding.gain)
            return Refusal(*said, finding.evidence)
        return finding if open_ones == finding.assumes else replace(finding, assumes=open_ones)

    def accepts(self, finding: Finding) -> bool:
        """Whether a finding is rewritten as far as its assumptions go."""
        return self.likely or not finding.assumes


@dataclass(frozen=True)
class FileReport:
    """What was found from one entry script: sorted by path, line, column, codemod.

    ``error`` is a sentence where the file could not be read as Python; ``notes`` are sentences for the user about what
    went wrong inside turbofix (each one a bug of ours), with the traceback behind the sentence's line. ``cells`` are
    those of a notebook. ``mended``: what stops the script today is rewritten, so that what rests on that alone is
    accepted. ``defines``: it holds a training loop and starts no training by itself; ``started_by`` are scripts that
    import it. ``risk`` is the highest that the user accepts for it, ``likely`` whether what rests on assumptions is
    accepted, too. ``warnings`` are sentences about what the user wrote amiss. ``acts_on`` are the lines of other files
    that a training does something on, ``unfollowed`` sentences about what may train where nothing was seen to.
    """

    path: Path
    framework: str
    trains: bool
    findings: tuple[Examined, ...] = ()
    in_place: tuple[InPlace, ...] = ()
    error: str | None = None
    notes: tuple[str, ...] = ()
    cells: Cells | None = None
    mended: bool = False
    defines: bool = False
    started_by: tuple[Path, ...] = ()
    risk: Risk = Risk.EQUIVALENT
    likely: bool = False
    warnings: tuple[str, ...] = ()
    acts_on: frozenset[tuple[Path, int]] = frozenset()
    unfollowed: tuple[str, ...] = ()

    def spot(self, site: Site) -> Spot:
        """Where a site is, as results tell it."""
        return spot(site, self.cells if site.path == self.path else None)

    def accepts(self, each: Examined) -> bool:
        """Whether ``apply`` would make a rewrite: its edit is safe, and its risk and certainty are accepted."""
        return each.fixable and each.risk <= self.risk and (self.likely or self.is_settled(each))

    def is_settled(self, each: Examined) -> bool:
        """Whether a finding rests on nothing, or only on that the script is mended, which ``apply`` does first."""
        return not each.assumes or (self.mended and each.assumes == (SCRIPT_MENDED,))


@dataclass(frozen=True)
class Applied:
    """One codemod's turn: the texts of all files changed so far, after it.

    Of each finding, ``lines`` has those that were changed for it, in the text before, and ``names`` what it is left out
    by; a finding that is not in the text as it was has none.
    """

    codemod: str
    risk: Risk
    texts: Mapping[Path, str]
    findings: tuple[Finding, ...]
    unlocked: frozenset[str] = frozenset()  # the codemods that have found more since
    lines: tuple[frozenset[tuple[Path, int]], ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rewriting:
    """The outcome of ``apply``: the final text of every changed file, and how it came about, turn by turn.

    ``void`` are findings that were fixable in the text as it was and that an earlier rewrite has made void.
    """

    entry: Path
    texts: Mapping[Path, str]
    stages: tuple[Applied, ...]
    report: FileReport
    void: tuple[Examined, ...] = ()


def on_one_piece(function: Function) -> Function:
    """Let the frames of all calls that a function makes lie on one piece of memory.

    CPython from 3.11 on keeps frames in pieces of 16 KB, or as much more as the frame that needs a new one asks for. A
    piece is given back to the system as soon as it is empty: a call that begins a piece, in a loop, gets and loses its
    memory each time, and calls nest so deep in an abstract execution that this was a sixth of its time. A frame that
    asks for a megabyte makes a piece of two; memory that is not used costs nothing.
    """
    plain = cast("FunctionType", function)
    plain.__code__ = plain.__code__.replace(co_stacksize=2**17)
    return function


@on_one_piece
def analyze(  # noqa: PLR0913
    entry: Path,
    workspace: Workspace,
    codemods: Sequence[Codemod],
    target: Target,
    keep: Keep = keep_everything,
    trust: Trust = Trust(),  # noqa: B008  (frozen)
    others: Sequence[Codemod] = (),
) -> FileReport:
    """Everything that the codemods have to say about the program that starts at ``entry``, and what they would say
    if one of ``others``, which were not chosen, had rewritten it.

    A finding is ``fixable`` only when its edit was prepared on this text and passed its self-check.
    """
    screened = screen(entry, workspace)
    if screened is not None:
        return screened
    with paused_gc():
        return Analysis(entry, workspace, codemods, target, keep, trust).report([*codemods, *others])


def screen(entry: Path, workspace: Workspace) -> FileReport | None:
    """The report on a file that cannot be analysed or has nothing to do with training; None for all others."""
    text = workspace.read(entry)
    if text is None:
        return FileReport(entry, "none", trains=False, error=f"{entry} cannot be read")
    error = syntax_error(entry, text)
    if error is not None or not worth_analysing(entry, text, workspace):
        return FileReport(entry, "none", trains=False, error=error)
    return None


@on_one_piece
def apply(  # noqa: PLR0913
    entry: Path,
    workspace: Workspace,
    codemods: Sequence[Codemod],
    target: Target,
    risk: Risk,
    keep: Keep = keep_everything,
    *,
    trust: Trust = Trust(),  # noqa: B008  (frozen)
    report: FileReport | None = None,
) -> Rewriting:
    """Rewrite the program that starts at ``entry`` with every codemod up to ``risk``, until nothing changes any more.

    Findings that rest on assumptions are left out, unless ``trust`` has them believed.

    ``report`` saves trying every edit first, where the caller has had that done on the same texts already.
    """
    screened = screen(entry, workspace)
    if screened is not None:
        return Rewriting(entry, {}, (), screened)
    with paused_gc():
        analysis = Analysis(entry, workspace, codemods, target, keep, trust)
        report = report or analysis.report()
        accepting = replace(report, risk=risk, likely=trust.likely)
        pending = [each for each in report.findings if accepting.accepts(each) and name_of(each) not in trust.without]
        named = {name_of(each): each for each in report.findings if each.fixable}  # each where it stands now
        if not pending:
            return Rewriting(entry, {}, (), report)
        stages: list[Applied] = []
        notes = list(report.notes)
        texts: dict[Path, str] = {}
        for _ in range(PASSES):
            before = len(stages)
            for codemod in codemods:
                names = {(each.codemod, *place(each)): name for name, each in named.items()}
                turn = analysis.turn(codemod, risk, names)
                notes += analysis.notes
                pending = [replace(p, why_not=turn.said_of(p) or p.why_not) for p in pending]
                if turn.edit is None or turn.after is None:
                    continue
                analysis = turn.after
                pending = without(pending, turn.findings)
                pending = [moved for p in pending if (moved := move(p, turn.edit)) is not None]
                pending = analysis.looked_up(pending, codemod.name)
                named = {name: moved for name, p in named.items() if (moved := move(p, turn.edit)) is not None}
                texts |= turn.texts
                worst = max(finding.risk for finding in turn.findings)
                done = tuple(names.get((each.codemod, *place(each)), "") for each in turn.findings)
                stages.append(Applied(codemod.name, worst, dict(texts), turn.findings, turn.unlocked, turn.lines, done))
            if len(stages) == before:
                break
    changed = {path: text for path, text in texts.items() if text != workspace.read(path)}
    void = tuple(replace(p, fixable=False, why_not=p.why_not or LOST) for p in pending)
    return Rewriting(entry, changed, tuple(stages), replace(report, notes=tuple(dict.fromkeys(notes))), void)


def without(pending: Sequence[Examined], done: Sequence[Finding]) -> list[Examined]:
    """What is left when these findings are dealt with: each takes the one of its codemod at its place away, or, where
    an earlier rewrite has given it another place, the first of its codemod in its file that no other one takes."""
    left = list(pending)
    moved: list[Finding] = []
    for finding in done:
        here = (finding.codemod, finding.site.path, finding.site.line, finding.site.column)
        same = [each for each in left if (each.codemod, *place(each)) == here]
        left = [each for each in left if each not in same]
        moved += [] if same else [finding]
    for finding in moved:
        other = next((p for p in left if (p.codemod, p.site.path) == (finding.codemod, finding.site.path)), None)
        left = [each for each in left if each is not other]
    return left


# --- one text, all codemods ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """What one codemod did to one state of the texts; ``edit`` is None when it did nothing."""

    edit: Edit | None
    texts: Mapping[Path, str]
    findings: tuple[Finding, ...]
    refused: Mapping[int, str]  # index in the candidates -> why not
    after: Analysis | None = None  # of the new texts
    candidates: tuple[Finding, ...] = ()
    unlocked: frozenset[str] = frozenset()  # the codemods that find more in the new texts
    lines: tuple[frozenset[tuple[Path, int]], ...] = ()  # of each finding, those that are changed for it

    def said_of(self, examined: Examined) -> str | None:
        """Why the edit of a finding could not be made."""
        return next(
            (
                reason
                for number, reason in self.refused.items()
                if (self.candidates[number].codemod, self.candidates[number].site) == (examined.codemod, examined.site)
            ),
            None,
        )


class Analysis:
    """One state of the texts, its program, and what the codemods say of it."""

    def __init__(  # noqa: PLR0913
        self,
        entry: Path,
        workspace: Workspace,
        codemods: Sequence[Codemod],
        target: Target,
        keep: Keep,
        trust: Trust,
    ) -> None:
        self.entry = entry
        self.workspace = workspace
        self.codemods = codemods
        self.target = target
        self.keep = keep
        self.trust = trust
        self.notes: list[str] = []
        self._said: dict[str, Sequence[Said]] = {}
        self._known: dict[str, Codemod] = {}
        self._suppressions: dict[Path, Suppressions] = {}
        self.program = self._program(workspace)

    def report(self, ahead: Sequence[Codemod] = ()) -> FileReport:
        """Findings of all codemods, each tried on this text; and those that a codemod among ``ahead`` opens the way
        for: on a GPU more is slow.
        """
        if self.program is None:
            return FileReport(self.entry, "none", trains=False, notes=tuple(self.notes))
        said = [each for codemod in self.codemods for each in self.examine(codemod)]
        in_place = [each for each in said if isinstance(each, InPlace)]
        examined = [refused(each) for each in said if isinstance(each, Refusal)]
        findings = [each for each in said if isinstance(each, Finding)]
        told = len(self.notes)
        # Nearly always all edits of all codemods pass together, which saves an edit for each codemod. What the program
        # is after them is looked at when they are applied: a second analysis costs as much as the first.
        turn = self._together(dict(enumerate(findings)), look_again=False)
        alone = {finding.codemod for finding in findings}
        if turn is not None:
            reasons = turn.refused if COLLIDES in turn.refused.values() else {}
            alone = {findings[number].codemod for number in reasons}  # the others' edits were made beside them
            examined += [
                judged(finding, turn.refused.get(number))
                for number, finding in enumerate(findings)
                if finding.codemod not in alone
            ]
        if alone:
            del self.notes[told:]
            for codemod in self.codemods:
                own = [finding for finding in findings if finding.codemod == codemod.name and codemod.name in alone]
                turn = self.attempt(own, look_again=False)
                examined += [judged(finding, turn.refused.get(number)) for number, finding in enumerate(own)]
        for codemod in ahead:
            examined, in_place = self._ahead(codemod, examined, in_place)
        return FileReport(
            self.entry,
            self.program.framework.value,
            self.program.trains,
            tuple(sorted(dict.fromkeys(examined), key=lambda each: (*place(each), each.codemod))),
            tuple(sorted(dict.fromkeys(in_place), key=lambda each: (each.site, each.codemod))),
            notes=tuple(dict.fromkeys(self.notes)),
            mended=self._is_mended(examined),
            defines=bool(self.program.steps) and not self.program.script.starts,
            acts_on=self.program.acts_on if self.program.trains else frozenset(),
            unfollowed=self.program.unfollowed,
        )

    def _ahead(
        self, codemod: Codemod, examined: list[Examined], in_place: list[InPlace]
    ) -> tuple[list[Examined], list[InPlace]]:
        """What is said, with what the codemods say where one that brings something to others has rewritten the text;
        they speak of the places that there are today, and of what is slow only then."""
        own = [each for each in self.examine(codemod) if isinstance(each, Finding)] if codemod.brings else []
        turn = self.attempt(own)
        if turn.edit is None or turn.after is None:
            return examined, in_place
        way = WayBack(turn.edit, turn.texts, codemod.name)
        later = turn.after.report()
        rests = dict.fromkeys(assumption for each in turn.findings for assumption in each.assumes)
        told = {(each.codemod, *place(each)) for each in examined if each.fixable}
        once = {each.name for each in self.codemods if each.once} & {name for name, *_ in told}
        waits = None if codemod in self.codemods else f"it waits for `{codemod.name}`, which was not chosen"
        more = [
            replace(
                each,
                message=f"after `{codemod.name}`: {each.message}",
                assumes=tuple(dict.fromkeys((*each.assumes, *rests))) if each.fixable else (),
                fixable=each.fixable and waits is None,
                why_not=each.why_not or waits,
            )
            for found in later.findings
            if (each := way.examined(found)) is not None
            and each.codemod != codemod.name
            and each.codemod not in once
            and (each.codemod, *place(each)) not in told
        ]
        right = [way.in_place(each) for each in later.in_place if each.codemod != codemod.name]
        here = [each for each in right if each is not None]
        spoken = {each.codemod for each in more} | {each.codemod for each in here}
        examined = [each for each in examined if each.fixable or each.codemod not in spoken] + more
        in_place = [each for each in in_place if each.codemod not in spoken] + here
        return examined, in_place

    def turn(self, codemod: Codemod, risk: Risk, names: Mapping[tuple[str, Path, int, int], str]) -> Turn:
        """Let one codemod rewrite what it can up to ``risk``; ``names`` are those of the findings, by their places."""
        candidates = [
            each
            for each in self.examine(codemod)
            if isinstance(each, Finding) and each.risk <= risk and self.trust.accepts(each)
            if names.get((each.codemod, *place(each))) not in self.trust.without
        ]
        return replace(self.attempt(candidates), candidates=tuple(candidates))

    def examine(self, codemod: Codemod) -> Sequence[Said]:
        """What one codemod says of this text, less what the user does not want to hear."""
        program = self.program
        if program is None or not (program.trains or codemod.everywhere):  # what only infers is not ours to speed up
            return ()
        if codemod.name not in self._said:
            self._known[codemod.name] = codemod
            what = f"{codemod.name} failed on {self.entry.name}"
            said = self._try(what, lambda: list(codemod.examine(program)))
            rests: tuple[Assumption, ...] = ()
            if not codemod.everywhere:
                unread = READ_WHOLE in codemod.assumes and not program.complete
                rests = (READ_WHOLE,) * unread + (SCRIPT_MENDED,) * self._is_broken
            self._said[codemod.name] = [self._told(each, rests) for each in said or [] if self._wanted(codemod, each)]
        return self._said[codemod.name]

    def _wanted(self, codemod: Codemod, said: Said) -> bool:
        """Whether the user wants to hear it: it is of the project, and no comment or setting says otherwise."""
        if said.site.path.suffix == STUB:
            return False
        if self._comments(said.site.path).cover(said.site.line, codemod.name, codemod.group):
            return False
        return self.keep(said.site.path, codemod)

    @property
    def _is_broken(self) -> bool:
        """Whether something stops the script today."""
        mending = [codemod for codemod in self.codemods if codemod.mends]
        return any(not isinstance(each, InPlace) for codemod in mending for each in self.examine(codemod))

    def _is_mended(self, examined: Iterable[Examined]) -> bool:
        """Whether all that stops the script is rewritten."""
        mending = {codemod.name for codemod in self.codemods if codemod.mends}
        return all(each.fixable for each in examined if each.codemod in mending)

    def _told(self, said: Said, rests: tuple[Assumption, ...]) -> Said:
        """What a codemod says, with what the user and the runs know of its assumptions, ``rests`` among them."""
        if isinstance(said, Finding) and self.program is not None:
            places = (said.site, *self.program.told_by.get(said.site, ()))
            guessed = any(each.path in self.program.guessed for each in places)
            rests = (*rests, *((OPTION_DEFAULT,) if guessed and OPTION_DEFAULT not in said.assumes else ()))
        if isinstance(said, Finding) and rests:
            said = replace(said, assumes=(*said.assumes, *rests))
        if not isinstance(said, Finding) or not said.assumes:
            return said
        return self.trust.told(said, self._comments(said.site.path).assumed(said.site.line))

    def _comments(self, path: Path) -> Suppressions:
        if path not in self._suppressions:
            self._suppressions[path] = suppressions(self.workspace.read(path) or "")
        return self._suppressions[path]

    def attempt(self, candidates: Sequence[Finding], *, look_again: bool = True) -> Turn:
        """Prepare and self-check the edits of all candidates: together, and one by one where that fails."""
        told = len(self.notes)
        turn = self._together(dict(enumerate(candidates)), look_again=look_again)
        if turn is not None:
            return turn
        del self.notes[told:]  # what is wrong is told of the findings that fail alone
        refused: dict[int, str] = {}
        good: dict[int, Finding] = {}
        for number, candidate in enumerate(candidates):
            alone = self._together({number: candidate}, look_again=look_again)
            if alone is None or alone.edit is None:
                reason = alone.refused.get(number) if alone is not None else None
                refused[number] = reason or FAILED_CHECK
            elif self._together({**good, number: candidate}, look_again=look_again) is None:
                refused[number] = COLLIDES
            else:
                good[number] = candidate
        final = self._together(good, look_again=look_again)
        if final is None:  # cannot be: it passed as the last one was added
            return Turn(None, {}, (), dict.fromkeys(range(len(candidates)), FAILED_CHECK))
        return replace(final, refused={**refused, **final.refused})

    def _together(self, candidates: Mapping[int, Finding], *, look_again: bool = True) -> Turn | None:
        """One edit for all candidates; None when it does not pass its self-check, of which what the codemods say of
        the new texts is a part if ``look_again``."""
        if not candidates:
            return Turn(None, {}, (), {})
        from turbofix.editing.edit import Conflict, Edit
        from turbofix.editing.selfcheck import check, unbound

        names = " ".join(sorted({finding.codemod for finding in candidates.values()}))
        edit = Edit(self.workspace.read, names, told=self.program.told_by if self.program is not None else None)
        refused: dict[int, str] = {}
        done: list[Finding] = []
        marks: dict[str, int] = {}  # where the edits of each codemod begin
        begun: dict[int, int] = {}  # and of each finding
        for number, finding in candidates.items():
            mark = edit.mark()
            marks.setdefault(finding.codemod, mark)
            reason = self._prepare(finding, edit)
            if reason is None:
                done.append(finding)
                begun[number] = mark
            else:
                edit.rollback(mark)
                refused[number] = reason
        if not done:
            return Turn(None, {}, (), refused)
        try:
            texts = edit.apply()
        except Conflict:
            if len(marks) == 1:
                return None
            dropped = edit.keep_apart([*marks.values()])
            lost = {name for number, name in enumerate(marks) if number in dropped}
            refused |= {number: COLLIDES for number, finding in candidates.items() if finding.codemod in lost}
            done = [finding for finding in done if finding.codemod not in lost]
            texts = edit.apply()
        problem, after = check(edit) or unbound(edit), None
        more: dict[str, int] = {}
        if problem is None and look_again:
            after = Analysis(
                self.entry, self.workspace.with_texts(texts), self.codemods, self.target, self.keep, self.trust
            )
            more = {each.name: after.count(each) - self.count(each) for each in self.codemods}
            problem = _still_there(done, after, more)
        if problem is None:
            unlocked = frozenset(name for name, number in more.items() if number > 0)
            ends = (*begun.values(), edit.mark())[1:]
            lines = tuple(edit.lines(*both) for both in zip(begun.values(), ends, strict=True)) if look_again else ()
            return Turn(edit, texts, tuple(done), refused, after, unlocked=unlocked, lines=lines)
        self.notes.append(f"{edit.codemod} in {self.entry.name}: {problem}")
        return None

    def _prepare(self, finding: Finding, edit: Edit) -> str | None:
        """Let the codemod prepare its edit; a sentence when it cannot."""
        from turbofix.editing.edit import Conflict, Refuse

        codemod = self._known[finding.codemod]

        def prepare() -> str:
            try:
                codemod.prepare(finding, edit)
            except Refuse as refuse:
                return str(refuse)
            except Conflict:
                return COLLIDES
            return ""

        reason = self._try(f"{codemod.name} could not prepare its edit in {finding.site.path.name}", prepare)
        return FAILED_CHECK if reason is None else reason or None

    def looked_up(self, pending: Sequence[Examined], last: str) -> list[Examined]:
        """The findings still to be fixed, each with why it cannot be where this text, the work of the codemod
        ``last``, does not have it any more; one that comes back loses the reason again."""
        found: list[Examined] = []
        for codemod in self.codemods:
            own = [each for each in pending if each.codemod == codemod.name]
            gone = without(own, [each for each in self.examine(codemod) if isinstance(each, Finding)]) if own else []
            for each in own:
                why = each.why_not or f"the rewrite by {last} has made it void"
                found.append(replace(each, why_not=why if each in gone else None))
        return found

    def count(self, codemod: Codemod) -> int:
        """How many findings the codemod has on this text."""
        return sum(isinstance(each, Finding) for each in self.examine(codemod))

    def _program(self, workspace: Workspace) -> TrainingProgram | None:
        from turbofix.training.program import analyse

        return self._try(
            f"the analysis of {self.entry.name} failed",
            lambda: analyse(
                self.entry,
                workspace.root(self.entry),
                workspace.read,
                self.target,
                lambda *suffixes: workspace.beside(self.entry, *suffixes),
            ),
        )

    def _try(self, what: str, function: Callable[[], Result]) -> Result | None:
        """Call; an exception (a bug of ours) becomes a note with its traceback. The engine's one broad ``except``."""
        try:
            return function()
        except Exception as error:
            import traceback

            trace = "".join(traceback.format_exception(error))
            self.notes.append(f"{what}: {type(error).__name__}: {error}\n{trace}")
            return None


# --- small questions ----------------------------------------------------------------------------------------------


def judged(finding: Finding, why_not: str | None) -> Examined:
    """A finding with the outcome of its attempt."""
    return Examined(
        finding.codemod,
        finding.group,
        finding.site,
        finding.message,
        finding.risk,
        why_not is None,
        why_not,
        finding.gain,
        tuple(each.shown for each in finding.evidence),
        finding.assumes,
        finding.worth,
    )


def refused(refusal: Refusal) -> Examined:
    """A refusal as reports show it."""
    return Examined(
        refusal.codemod,
        refusal.group,
        refusal.site,
        refusal.message,
        refusal.risk,
        False,
        refusal.why_not,
        refusal.gain,
        tuple(each.shown for each in refusal.evidence),
    )


def _still_there(done: Sequence[Finding], after: Analysis, more: Mapping[str, int]) -> str | None:
    """On the rewritten text these findings must be gone; what another codemod finds there waits for its turn."""
    if after.program is None:
        return "the rewritten program is no training program any more"
    left = (name for name, gone in Counter(each.codemod for each in done).items() if more.get(name, -gone) + gone > 0)
    return next((f"the rewritten text has a finding of {name} again" for name in left), None)


def place(examined: Examined | Finding) -> tuple[Path, int, int]:
    """Where a finding stands, for sorting and comparing."""
    return examined.site.path, examined.site.line, examined.site.column


def name_of(examined: Examined) -> str:
    """What a finding of the text as it is is called, to be left out."""
    return ":".join(map(str, (examined.codemod, *place(examined))))


def move(examined: Examined, edit: Edit) -> Examined | None:
    """The finding at the place where an edit has left it; the finding as it was where the edit replaced that place."""
    changes = edit.changes().get(examined.site.path, ())
    text = edit.before_text(examined.site.path)
    if not changes or text is None:
        return examined
    line, column = shift(text, changes, examined.site.line, examined.site.column)
    return replace(examined, site=examined.site._replace(line=line, column=column))


def shift(text: str, changes: Iterable[Change], line: int, column: int) -> tuple[int, int]:
    """Where a line (from 1) and column (from 0) of ``text`` stand after the changes, which are in order, were made."""
    from turbofix.editing.edit import changed

    offset = line_starts(text)[line - 1] + column
    head = changed(text[:offset], [change for change in changes if change.end <= offset])
    starts = line_starts(head)
    return len(starts), len(head) - starts[-1]


class WayBack:
    """From the text after an edit to the text before."""

    def __init__(self, edit: Edit, texts: Mapping[Path, str], by: str) -> None:
        self.by = by
        self.changes = {path: changes for path, changes in edit.changes().items() if path in texts}
        self.old = {path: edit.before_text(path) or "" for path in self.changes}
        self.new = {path: texts[path] for path in self.changes}
        self.named = {path.name: path for path in self.changes}

    def examined(self, each: Examined) -> Examined | None:
        """A finding where it stood before; None where the edit has written what it speaks of."""
        site = self.site(each.site)
        if site is None or self.quotes_new(each.message, each.site.path):
            return None
        evidence = tuple(replace(seen, site=seen.site and self.site(seen.site)) for seen in each.evidence)
        return replace(examined_retold(replace(each, evidence=evidence), self.sentence), site=site)

    def in_place(self, each: InPlace) -> InPlace | None:
        """What is right already, where it stood before."""
        site = self.site(each.site)
        return None if site is None else replace(in_place_retold(each, self.sentence), site=site)

    def site(self, site: Site) -> Site | None:
        """A place in the text before; None in what the edit has written."""
        line, column, is_new = self.before(site.path, site.line, site.column)
        end_line, end_column, _ = self.before(site.path, site.end_line, site.end_column)
        return None if is_new else site._replace(line=line, column=column, end_line=end_line, end_column=end_column)

    def quotes_new(self, sentence: str, path: Path) -> bool:
        """Whether a sentence quotes what only the edit has written."""
        quoted = re.findall(r"`([^`]+)`", sentence) if path in self.changes else ()
        return any(each in self.new[path] and each not in self.old[path] for each in quoted)

    def sentence(self, sentence: str, site: Site) -> str:
        """A sentence with the lines before."""

        def named(lines: Sequence[int], file: str | None) -> str | None:
            path = self.named.get(file) if file else site.path
            texts = self.new.get(path, "").splitlines() if path else []
            if path is None or max(lines) > len(texts):
                return None
            numbers = [self.before(path, line, len(texts[line - 1]) - len(texts[line - 1].lstrip())) for line in lines]
            if any(is_new for *_, is_new in numbers):
                return f"a line that {self.by} writes"
            return f"line{'s' * (len(numbers) > 1)} " + " and ".join(str(line) for line, *_ in numbers)

        return with_lines(sentence, named)

    def before(self, path: Path, line: int, column: int) -> tuple[int, int, bool]:
        """A line and column before; and whether what stands there now is new."""
        if path not in self.changes:
            return line, column, False
        left, at, is_new = line_starts(self.new[path])[line - 1] + column, 0, False
        for change in self.changes[path]:
            kept = change.start - at
            if left < kept:
                break
            left, at, is_new = left - kept - len(change.text), change.end, left - kept < len(change.text)
            if is_new:
                left, at = 0, change.start
                break
        head = self.old[path][: at + left]
        starts = line_starts(head)
        return len(starts), len(head) - starts[-1], is_new


def line_starts(text: str) -> list[int]:
    """Where the lines begin, as Python counts them: a form feed begins none."""
    return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]


def syntax_error(path: Path, text: str) -> str | None:
    """A sentence that says what stopped Python from reading the text; None where it reads it."""
    error = unreadable(text)
    if not isinstance(error, SyntaxError):
        return f"{path}: Python cannot read this: {error}" if error else None
    where = f"{path}:{error.lineno or 1}:{error.offset or 1}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "print" in (error.msg or "") and "parentheses" in (error.msg or ""):
        return f"{where}: this is Python 2 (print without parentheses); convert it to Python 3 first"
    if newer_reads(text, error):
        return (
            f"{where}: Python {version} cannot read this ({error.msg}), a newer one can: "
            "run turbofix with the Python that runs the script"
        )
    return f"{where}: Python {version} cannot read this: {error.msg}"


def worth_analysing(entry: Path, text: str, workspace: Workspace) -> bool:
    """Whether the text, or a module of the project that it comes to by its imports, mentions a training library."""
    files = (workspace.read(path) or "" for path in islice(followed(entry, workspace), 1, MOST_IMPORTS))
    return any(map(TRAINING_WORDS.search, chain([text], files)))


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Without the cycle collector while trees are built: with it, parsing is superlinear."""
    global _left  # noqa: PLW0603  (there is one collector in a process, too)
    was_enabled = gc.isenabled()
    gc.disable()
    collect_what_is_left()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        if was_enabled:
            # `gc.get_freeze_count` would walk over all of them, each time
            _left += max(0, gc.get_count()[0] - before)
            gc.freeze()
            gc.enable()


def collect_what_is_left() -> None:
    """Look through what earlier programs have left, when enough of it has come together.

    Never in a run over one program: with a million live objects that would be a tenth of the run.
    """
    global _left  # noqa: PLW0603  (as above)
    if _left > _MANY_OBJECTS:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _left = 0


_MANY_OBJECTS = 2_000_000
"""As many as some 40,000 lines leave; a look takes a second."""

_left = 0
"""How many objects the programs since the last look have left."""
