"""Replace a function by one that wraps it, and keep its name, its documentation and its other attributes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

REPLACED: list[tuple[Any, Any, str]] = []
"""What was replaced, and where."""


def wrap(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Any:
    """Set ``owner.name`` to ``make(original)`` and return the original; do nothing where torch has no such name."""
    original = getattr(owner, name, None)
    if original is not None:
        REPLACED.append((original, owner, name))
        setattr(owner, name, functools.wraps(original)(make(original)))
    return original
