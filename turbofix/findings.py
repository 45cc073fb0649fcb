"""What codemods say about a program: findings, refusals and what is right already.

All of it is frozen data: the engine sorts, filters, prepares and reports it without asking the codemod again.
"""

from __future__ import annotations

import enum
from dataclasses import field
from functools import total_ordering
from pathlib import Path

from turbofix.records import dataclass


@total_ordering
class Risk(enum.Enum):
    """The promise that a rewrite makes about the training (see the contract in the README).

    ``EXACT``: the same program, faster; every loss the same bit for bit. ``EQUIVALENT``: the same training
    recipe up to rounding, kernel order or the order of random draws. ``RECIPE``: hyper-parameters or the
    algorithm change.
    """

    EXACT = "exact"
    EQUIVALENT = "equivalent"
    RECIPE = "recipe"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Risk):
            return NotImplemented
        order = list(Risk)
        return order.index(self) < order.index(other)


@dataclass(frozen=True)
class Gain:
    """A range of speed-up factors for the whole training (1.0 = no gain), and the measurement it comes from."""

    low: float
    high: float
    source: str


@dataclass(frozen=True, order=True)
class Site:
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


@dataclass(frozen=True)
class Finding:
    """Something that slows the program down and that the codemod offers to rewrite.

    ``plan`` is the codemod's own frozen data for its ``rewrite``; the engine never looks into it. ``chain`` is
    what was resolved on the way, one sentence each ("batch_size is 4, from --batch-size's default on line 12").
    """

    codemod: str
    group: str
    site: Site
    message: str
    risk: Risk
    gain: Gain | None = None
    plan: object = None
    chain: tuple[str, ...] = ()


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
    chain: tuple[str, ...] = ()


@dataclass(frozen=True)
class InPlace:
    """Something that the program does right already."""

    codemod: str
    site: Site
    message: str


@dataclass(frozen=True)
class Examined:
    """A finding or refusal after the engine has tried the edit: what reports and JSON show."""

    codemod: str
    group: str
    site: Site
    message: str
    risk: Risk
    fixable: bool
    why_not: str | None
    gain: Gain | None
    chain: tuple[str, ...] = field(default=())
