"""A random sample of findings in which every style and every codemod has its place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from benchmarks.precision.analysis import Found, fixable, order

LEAST = 3
"""How many findings every style and every codemod has in the sample, where there are so many."""


def draw(found: Sequence[Found], seed: int, count: int, least: int = LEAST) -> list[Found]:
    """``count`` fixable findings: shuffled by the seed, the first ``least`` of every codemod and every style, then
    whatever comes next. So the sample is as the corpus is, but for strata too small to be met by chance."""
    shuffled = sorted(fixable(found), key=order)
    random.Random(seed).shuffle(shuffled)
    drawn: dict[Found, None] = {}
    groupings: tuple[Callable[[Found], Iterable[str]], ...] = (lambda each: (each.codemod,), lambda each: each.styles)
    for groups in groupings:
        for name in sorted({name for each in shuffled for name in groups(each)}):
            members = [each for each in shuffled if name in groups(each)]
            missing = least - sum(each in drawn for each in members)
            drawn.update(dict.fromkeys([each for each in members if each not in drawn][: max(0, missing)]))
    rest = [each for each in shuffled if each not in drawn]
    chosen = [*drawn, *rest[: max(0, count - len(drawn))]][:count]
    return sorted(chosen, key=order)
