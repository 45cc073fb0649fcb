"""What came of one script: what was found, and how it was rewritten, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.assumptions import SCRIPT_MENDED
from turbofix.engine.observed import Observed, estimated
from turbofix.findings import Examined, Finding, InPlace, Refusal, Risk
from turbofix.records import dataclass
from turbofix.source.site import Site, Spot, spot

if TYPE_CHECKING:
    from turbofix.source.notebook import Cells


@dataclass(frozen=True)
class Trust:
    """What the user believes, and a run has shown, of the assumptions that findings rest on, by name.

    ``likely``: all that is open is believed when the program is rewritten. ``declared``: these hold, the user says.
    ``refuted``: these do not hold, as a run has shown; ``without`` are findings that are left out, by ``name_of``.
    ``observed`` is what ``--observed`` tells of this script.
    """

    likely: bool = False
    declared: frozenset[str] = frozenset()
    refuted: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    observed: Observed | None = None

    def told(self, finding: Finding, declared_here: frozenset[str]) -> Finding | Refusal:
        """A finding with what is declared left out of what it assumes; a refusal where a run has refuted that."""
        seen, gone = self.observed, self.refuted
        if seen is not None:
            gone |= seen.refuted
            settled = tuple(each for each in finding.assumes if each.name in seen.held)
            rests = tuple(each for each in finding.assumes if each not in settled)
            finding = replace(estimated(finding, seen), assumes=rests, settled=settled)
        open_ones = tuple(each for each in finding.assumes if each.name not in self.declared | declared_here)
        refuted = next((each for each in open_ones if each.name in gone), None)
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
        finding.settled,
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


def place(examined: Examined | Finding) -> tuple[Path, int, int]:
    """Where a finding stands, for sorting and comparing."""
    return examined.site.path, examined.site.line, examined.site.column


def name_of(examined: Examined) -> str:
    """What a finding of the text as it is is called, to be left out."""
    return ":".join(map(str, (examined.codemod, *place(examined))))
