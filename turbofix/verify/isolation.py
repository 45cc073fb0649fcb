"""How well the user's files are kept from the run: the levels, and what a report says of them."""

from __future__ import annotations

import os

from turbofix.verify.probe.limits import GUARD, LANDLOCK, landlock_version
from turbofix.verify.result import Inconclusive

LEVELS = {
    LANDLOCK: "a scratch copy, and the kernel (Landlock) denies every write outside it",
    GUARD: "a scratch copy, with Python's and torch's writers patched; a subprocess could still write elsewhere",
}


def demand(level: str | None) -> None:
    """Refuse a level that does not exist or that this machine does not have."""
    if not hasattr(os, "fork"):
        raise Inconclusive("a verification forks processes, which this operating system does not do")
    if level is not None and level not in LEVELS:
        raise Inconclusive(f"there is no isolation level {level!r}; there are {', '.join(LEVELS)}")
    if level == LANDLOCK and landlock_version() < 3:
        raise Inconclusive("this kernel has no Landlock that could deny writes: --isolation guard is all there is")


def warnings(level: str) -> tuple[str, ...]:
    """What a reader must know of the level that was reached."""
    return (f"weak isolation: {LEVELS[GUARD]}",) if level == GUARD else ()


def is_strong(level: str | None) -> bool:
    """Whether writes through links will be denied by the kernel."""
    return level != GUARD and landlock_version() >= 3
