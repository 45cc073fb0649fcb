"""The two tables that people write: verdicts on findings (``ledger.tsv``), and what scripts need (``reading.tsv``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.precision import tables

LEDGER = Path(__file__).with_name("ledger.tsv")
READING = Path(__file__).with_name("reading.tsv")

VERDICTS = ("right", "wrong", "arguable", "")
EXPECTED = ("fix", "refuse", "silent")

Key = tuple[str, str, str, str]
"""Repository, path, codemod, line: what a finding, a judgement and an expectation are matched by."""


@dataclass(frozen=True)
class _Row:
    """What both tables say of a place; ``line`` is ``12``, in a notebook ``3:12`` (cell and line, both from 1)."""

    repository: str
    commit: str
    path: str
    codemod: str
    line: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise ValueError(f"{self.commit!r} is no commit in 40 hexadecimal digits")
        if not re.fullmatch(r"\d+(:\d+)?", self.line):
            raise ValueError(f"the line {self.line!r} is no number, and no cell:line")

    @property
    def key(self) -> Key:
        """What the row is matched by."""
        return self.repository, self.path, self.codemod, self.line


@dataclass(frozen=True)
class Judgement(_Row):
    """What a reviewer says of a fixable finding; an empty verdict is none yet."""

    verdict: str
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.verdict not in VERDICTS:
            raise ValueError(f"the verdict {self.verdict!r} is none of right, wrong, arguable")
        if self.verdict and not self.reason:
            raise ValueError("a verdict needs its reason")


@dataclass(frozen=True)
class Expectation(_Row):
    """What an expert who read the whole script expects at a place: a fix, a refusal, or that nothing is said."""

    expected: str
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected not in EXPECTED:
            raise ValueError(f"{self.expected!r} is none of fix, refuse, silent")
        if not self.reason:
            raise ValueError("an expectation needs its reason")


RowOfKey = TypeVar("RowOfKey", bound=_Row)


def judgements() -> list[Judgement]:
    """The ledger. Raises TableError."""
    return unique(tables.read(LEDGER, Judgement), LEDGER.name)


def expectations() -> list[Expectation]:
    """The recall table. Raises TableError."""
    return unique(tables.read(READING, Expectation), READING.name)


def at_commits(rows: Sequence[RowOfKey], commits: Mapping[str, str]) -> list[RowOfKey]:
    """The rows on these repositories, at these commits."""
    return [row for row in rows if commits.get(row.repository) == row.commit]


def unique(rows: Sequence[RowOfKey], name: str) -> list[RowOfKey]:
    """The rows, where none speaks of the same finding as another. Raises TableError."""
    seen: dict[Key, int] = {}
    for number, row in enumerate(rows, start=2):
        if row.key in seen:
            raise tables.TableError(f"{name}:{number}: the same finding as line {seen[row.key]}")
        seen[row.key] = number
    return list(rows)
