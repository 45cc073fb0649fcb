"""What codemods say about a program: findings, refusals and what is right already.

All of it is frozen data: the engine sorts, filters, prepares and reports it without asking the codemod again.
"""

from __future__ import annotations

import enum
from functools import total_ordering
from typing import TYPE_CHECKING

from turbofix.records import dataclass
from turbofix.source.site import STUB, Site

if TYPE_CHECKING:
    from turbofix.assumptions import Assumption

__all__ = ["Evidence", "Examined", "Finding", "Gain", "InPlace", "Refusal", "Risk", "Site", "Worth"]


@total_ordering
class _Ordered(enum.Enum):
    """One of several, in the order in which they are listed."""

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        order = list(type(self))
        return order.index(self) < order.index(other)


class Risk(_Ordered):
    """The promise that a rewrite makes about the training (see the contract in the README).

    ``EXACT``: the same program, faster; every loss the same bit for bit. ``EQUIVALENT``: the same training
    recipe up to rounding, kernel order or the order of random draws. ``RECIPE``: hyper-parameters or the
    algorithm change.
    """

    EXACT = "exact"
    EQUIVALENT = "equivalent"
    RECIPE = "recipe"


class Worth(_Ordered):
    """How much of a training's time a rewrite may save, as far as is known before it was measured: it ranks findings.

    ``HIGH``: a tenth of the step or more on the GPUs of a data center, where the training is limited by what it
    changes. ``SMALL``: harmless, and hardly noticed.
    """

    HIGH = "high"
    SOME = "some"
    SMALL = "small"


@dataclass(frozen=True)
class Gain:
    """A range of speed-up factors for the whole training (1.0 = no gain), and the measurement it comes from.

    ``instead_of`` names codemods that bring nothing more beside this one, so that an estimate leaves theirs out.
    ``estimated``: it is this program's own, on top of the changes before it; low and high hold four cases of five.
    """

    low: float
    high: float
    source: str
    instead_of: tuple[str, ...] = ()
    estimated: bool = False


@dataclass(frozen=True)
class Evidence:
    """Something that was seen on the way to a finding, and where, so that a person can check it.

    ``text`` reads on with the place: "`batch_size` is 4, from --batch-size's default", "on line 12". ``steps`` is how a
    value came to where it is used, one place after another.
    """

    text: str
    site: Site | None = None
    steps: tuple[Evidence, ...] = ()

    @property
    def shown(self) -> Evidence:
        """What was seen, less the places in libraries."""
        steps = tuple(each.shown for each in self.steps)
        if self.site is None or self.site.path.suffix != STUB:
            return Evidence(self.text, self.site, steps)
        return Evidence(f"{self.text} {self.site.line_from(self.site.path)}", None, steps)


@dataclass(frozen=True)
class Finding:
    """Something that slows the program down and that the codemod offers to rewrite.

    ``plan`` is the codemod's own frozen data for its ``rewrite``; the engine never looks into it.
    ``evidence`` is what it rests on: the loop, the loader, the values that were resolved. ``for_speed``: it has
    no other purpose, and timed steps show what it gains. ``assumes`` is what analysis could not settle: with any, the
    finding is *likely*, without it is *proven*; ``settled`` is what a run has shown to hold. ``worth`` ranks it.
    """

    codemod: str
    group: str
    site: Site
    message: str
    risk: Risk
    gain: Gain | None = None
    plan: object = None
    evidence: tuple[Evidence, ...] = ()
    for_speed: bool = True
    assumes: tuple[Assumption, ...] = ()
    worth: Worth = Worth.SOME
    settled: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Something worth saying that is not rewritten; ``why_not`` is one sentence: what was seen that makes it unsafe."""

    codemod: str
    group: str
    site: Site
    message: str
    why_not: str
    risk: Risk
    gain: Gain | None = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class InPlace:
    """Something that the program does right already."""

    codemod: str
    site: Site
    message: str


UNSEEN = "`turbofix explain {}` says what is looked for"
"""Why a codemod offers nothing where it saw nothing that it knows, whatever there is."""


@dataclass(frozen=True)
class Examined:
    """A finding or refusal after the engine has tried the edit: what reports and JSON show.

    ``assumes``, ``settled``, ``worth``: as the finding has them.
    """

    codemod: str
    group: str
    site: Site
    message: str
    risk: Risk
    fixable: bool
    why_not: str | None
    gain: Gain | None
    evidence: tuple[Evidence, ...] = ()
    assumes: tuple[Assumption, ...] = ()
    worth: Worth = Worth.SOME
    settled: tuple[Assumption, ...] = ()

    @property
    def certainty(self) -> str:
        """``"proven"``, or ``"likely"`` where it rests on assumptions."""
        return "likely" if self.assumes else "proven"

    @property
    def is_unseen(self) -> bool:
        """Whether nothing was seen that its codemod speaks of, which is shown to who asks for more."""
        return self.why_not == UNSEEN.format(self.codemod)
