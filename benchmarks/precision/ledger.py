"""The two tables that people write: verdicts on findings (``ledger.tsv``), and what scripts need (``reading.tsv``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from benchmarks.precision import tables
from turbofix import registry

LEDGER = Path(__file__).with_name("ledger.tsv")
READING = Path(__file__).with_name("reading.tsv")

VERDICTS = ("right", "wrong", "arguable", "")
EXPECTED = ("fix", "refuse", "silent")

Key = tuple[str, str, str, str]
"""Repository, path, codemod, line: what a finding and a judgement are matched by, and what most expectations are."""


@cache
def of_programs() -> frozenset[str]:
    """The codemods that speak of a program as a whole, once."""
    return frozenset(codemod.name for codemod in registry.load() if codemod.once)


def place(key: Key) -> Key:
    """What an expectation is matched by: without the line where the codemod speaks of the program as a whole.

    A judgement keeps its line: that a switch is set too late is wrong, and that it is missing says nothing of a line.
    """
    repository, path, codemod, line = key
    return repository, path, codemod, "" if codemod in of_programs() else line


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
    return unique(tables.read(READING, Expectation), READING.name, place)


def at_commits(rows: Sequence[RowOfKey], commits: Mapping[str, str]) -> list[RowOfKey]:
    """The rows on these repositories, at these commits."""
    return [row for row in rows if commits.get(row.repository) == row.commit]


def unique(rows: Sequence[RowOfKey], name: str, matched: Callable[[Key], Key] | None = None) -> list[RowOfKey]:
    """The rows, where none speaks of the same finding as another; ``matched`` is what a key is matched by.

    Raises TableError.
    """
    seen: dict[Key, int] = {}
    for number, row in enumerate(rows, start=2):
        key = matched(row.key) if matched is not None else row.key
        if key in seen:
            raise tables.TableError(f"{name}:{number}: the same finding as line {seen[key]}")
        seen[key] = number
    return list(rows)
