"""What codemods say about a program: findings, refusals and what is right already.

All of it is frozen data: the engine sorts, filters, prepares and reports it without asking the codemod again.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from functools import total_ordering
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.assumptions import Assumption
    from turbofix.source.notebook import Cells


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
    """

    low: float
    high: float
    source: str
    instead_of: tuple[str, ...] = ()


STUB = ".stub"
"""How the files end that stand for a library's own loops: places in them are shown to nobody."""


class Site(NamedTuple):  # made and compared by the thousand: a tuple's own methods are no Python code
    """A place in a source text, named by the span and the type of its ``ast`` node.

    Lines count from 1, columns from 0 and in characters (not in UTF-8 bytes, as ``ast`` counts them).
    ``kind`` is the name of the ``ast`` class, e.g. ``"Call"``.
    """

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    kind: str

    def __hash__(self) -> int:
        # by the numbers alone, which tell nearly all sites apart: the hash of a path takes longer than all the rest
        return hash(self[1:5])

    def line_from(self, path: Path) -> str:
        """The place in a sentence that is said of a file: ``line 12``, or ``line 12 of model.py`` from another one."""
        if self.path.suffix == STUB:
            return f"in {self.path.stem}"
        name = _ALIKE.get().get(self.path, self.path.name)
        return f"line {self.line}" if self.path == path else f"line {self.line} of {name}"


_ALIKE: ContextVar[Mapping[Path, str]] = ContextVar("_ALIKE", default={})  # noqa: B039  (never written into)


def tell_apart(entry: Path, files: Collection[Path]) -> None:
    """Let sentences name those files of a program that share their name by their folder, too."""
    known = Counter(each.name for each in files)
    _ALIKE.set({each: os.path.relpath(each, entry.parent) for each in files if known[each.name] > 1 and each != entry})


@dataclass(frozen=True)
class Spot:
    """A place as results tell it: lines and columns from 1, the lines of a notebook within their cell (from 1).

    ``file_line`` and ``file_end_line`` count in the file as it is on disk: for a notebook, in its JSON.
    """

    cell: int | None
    line: int
    column: int
    end_line: int
    end_column: int
    file_line: int
    file_end_line: int

    @property
    def start(self) -> str:
        """``5``, in a notebook ``cell 3:5``."""
        return f"{self.line}" if self.cell is None else f"cell {self.cell}:{self.line}"

    def __str__(self) -> str:
        """``5:10``, in a notebook ``cell 3:5:10``."""
        return f"{self.start}:{self.column}"


def spot(site: Site, cells: Cells | None = None) -> Spot:
    """The place that a site means, given the cells of its file where that is a notebook."""
    first, last = site.line, site.end_line
    columns = site.column + 1, site.end_column + 1
    if cells is None:
        return Spot(None, first, columns[0], last, columns[1], first, last)
    (cell, line), (_, end_line) = cells.place(first), cells.place(last)
    return Spot(cell, line, columns[0], end_line, columns[1], cells.file_line(first), cells.file_line(last))


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
    finding is *likely*, without it is *proven*. ``worth`` ranks it.
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

    ``assumes``, ``worth``: as the finding has them.
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

    @property
    def certainty(self) -> str:
        """``"proven"``, or ``"likely"`` where it rests on assumptions."""
        return "likely" if self.assumes else "proven"

    @property
    def is_unseen(self) -> bool:
        """Whether nothing was seen that its codemod speaks of, which is shown to who asks for more."""
        return self.why_not == UNSEEN.format(self.codemod)
