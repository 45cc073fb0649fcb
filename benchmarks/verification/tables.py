"""Verdicts in, Markdown out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.verification import broken
from benchmarks.verification.measure import Verified


def page(date: str, where: str, broken_rows: Sequence[Verified], good_rows: Sequence[Verified]) -> str:
    """The whole page: when, where, and both suites by kind."""
    asked = [row for row in broken_rows if row.kind in broken.KINDS]
    disguised = [row for row in broken_rows if row.kind not in broken.KINDS]
    return "\n".join(
        [
            f"# How often a verification errs, {date}",
            "",
            f"`python -m benchmarks.verification broken` and `good`, {where}.",
            "",
            f"- Broken rewrites that were failed: {rate(asked + disguised, 'fail')}.",
            f"- Good rewrites that were failed: {rate(good_rows, 'fail')}; passed: {rate(good_rows, 'pass')}.",
            "",
            "## Broken rewrites",
            "",
            *table(asked, "fail"),
            "",
            "The same mistakes where no name, setting or count shows them, and two that a rule could make:",
            "",
            *table(disguised, "fail"),
            "",
            "## Good rewrites",
            "",
            *table(good_rows, "pass"),
            *otherwise(broken_rows, "fail"),
            *otherwise(good_rows, "pass"),
            "",
        ]
    )


def rate(rows: Sequence[Verified], verdict: str) -> str:
    """For example ``138 of 138``."""
    return f"{sum(row.verdict == verdict for row in rows):,} of {len(rows):,}"


def table(rows: Iterable[Verified], wanted: str) -> list[str]:
    """By kind: the scripts, the seeds of each, and the verdicts."""
    by_kind: dict[str, list[Verified]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    lines = ["| kind | scripts | seeds | " + wanted + " | other verdicts |", "| --- | --- | --- | --- | --- |"]
    for kind, found in by_kind.items():
        others = Counter(row.verdict for row in found if row.verdict != wanted)
        said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(others.items())) or "0"
        scripts, seeds = len({row.subject for row in found}), len({row.seed for row in found})
        lines.append(f"| {kind} | {scripts} | {seeds} | {rate(found, wanted)} | {said} |")
    return lines


def otherwise(rows: Iterable[Verified], wanted: str) -> list[str]:
    """A line for each kind and subject whose verdict was another, with the first reason."""
    first: dict[tuple[str, str], Verified] = {}
    for row in rows:
        if row.verdict != wanted:
            first.setdefault((row.kind, row.subject), row)
    found = [f"- {row.kind} of {row.subject}, seed {row.seed}: {row.verdict}: {row.reason}" for row in first.values()]
    return ["", f"Not {wanted}:", "", *found] if found else []
