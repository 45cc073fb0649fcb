"""Counts by codemod, the most frequent first; ``[*]`` marks codemods of which ``apply`` fixes at least one."""

from __future__ import annotations

from collections import Counter

from turbofix.engine.project import Outcome


def render(outcome: Outcome) -> str:
    """``count  codemod``, one line each."""
    counts = Counter(each.codemod for each in outcome.shown)
    fixable = {each.codemod for each in outcome.shown if outcome.applies(each)}
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{count:>5}  {name}{'  [*]' if name in fixable else ''}\n" for name, count in rows)
