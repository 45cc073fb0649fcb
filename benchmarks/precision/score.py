"""Findings against the tables: precision of what was judged, recall of what was expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.precision.analysis import Found, fixable
from benchmarks.precision.ledger import Expectation, Judgement, Key, place

UNLOCKED = "throttle-logging comes first"
"""How a finding ends that the rewrite of another codemod makes fixable within the same ``apply``."""


@dataclass(frozen=True)
class Precision:
    """Verdicts on fixable findings."""

    right: int = 0
    wrong: int = 0
    arguable: int = 0
    unjudged: int = 0

    @property
    def judged(self) -> int:
        """How many have a verdict."""
        return self.right + self.wrong + self.arguable

    @property
    def share(self) -> float | None:
        """The share that is right of what was judged: arguable is not right."""
        return self.right / self.judged if self.judged else None


@dataclass(frozen=True)
class Recall:
    """How many expectations of one kind there are, and how many of them the tool meets."""

    met: int = 0
    all: int = 0

    @property
    def share(self) -> float | None:
        """The share that is met."""
        return self.met / self.all if self.all else None


def verdicts(judged: Iterable[Judgement]) -> dict[Key, str]:
    """The verdict on each judged finding."""
    return {row.key: row.verdict for row in judged if row.verdict}


def precision(found: Iterable[Found], verdict: Mapping[Key, str]) -> Precision:
    """The precision over the fixable among these findings."""
    counts = Counter(verdict.get(each.key, "unjudged") for each in fixable(list(found)))
    return Precision(counts["right"], counts["wrong"], counts["arguable"], counts["unjudged"])


def grouped(
    found: Sequence[Found], verdict: Mapping[Key, str], groups: Callable[[Found], Iterable[str]]
) -> dict[str, Precision]:
    """The precision by group; a finding may be in several (styles)."""
    members: dict[str, list[Found]] = {}
    for each in fixable(found):
        for group in groups(each):
            members.setdefault(group, []).append(each)
    return {group: precision(members[group], verdict) for group in sorted(members)}


def unjudged(found: Sequence[Found], verdict: Mapping[Key, str]) -> list[Found]:
    """The fixable findings that nobody has judged."""
    return [each for each in fixable(found) if each.key not in verdict]


def gone(found: Sequence[Found], judged: Iterable[Judgement]) -> list[Judgement]:
    """The judged findings that are not told as fixable any more: mended where they were wrong, lost where right."""
    there = {each.key for each in fixable(found)}
    return [row for row in judged if row.verdict and row.key not in there]


def by_place(found: Iterable[Found]) -> dict[Key, Found]:
    """The findings by what expectations are matched by; where several go by the same, one that is fixable."""
    return {place(each.key): each for each in sorted(found, key=lambda each: each.fixable)}


def is_met(expectation: Expectation, found: Mapping[Key, Found]) -> bool:
    """Whether the tool says what a reader of the script expects. What waits for another codemod only is fixed, too:
    ``apply`` does one after the other. ``found`` is by place."""
    said = found.get(place(expectation.key))
    if expectation.expected == "silent":
        return said is None or not said.fixable
    return said is not None and (said.fixable or is_unlocked(said, found)) == (expectation.expected == "fix")


def is_unlocked(said: Found, found: Mapping[Key, Found]) -> bool:
    """Whether a finding only waits for throttle-logging, which the same ``apply`` brings in the same file."""
    return said.why_not.endswith(UNLOCKED) and any(
        each.fixable and (each.repository, each.path, each.codemod) == (said.repository, said.path, "throttle-logging")
        for each in found.values()
    )


def recall(expectations: Iterable[Expectation], found: Sequence[Found]) -> dict[str, Recall]:
    """The recall by what is expected, and by codemod for the fixes."""
    said = by_place(found)
    counts: dict[str, list[bool]] = {}
    for row in expectations:
        met = is_met(row, said)
        counts.setdefault(row.expected, []).append(met)
        if row.expected == "fix":
            counts.setdefault(f"fix: {row.codemod}", []).append(met)
    return {name: Recall(sum(met), len(met)) for name, met in sorted(counts.items())}


def missed(expectations: Iterable[Expectation], found: Sequence[Found]) -> list[Expectation]:
    """The expectations that the tool does not meet."""
    said = by_place(found)
    return [row for row in expectations if not is_met(row, said)]
