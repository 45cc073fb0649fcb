"""Results in, text out: one module per output format, each with ``render``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofix.engine.project import Outcome


def renderer(name: str) -> Callable[[Outcome], str]:
    """The function that renders findings in the format of that name (``rich`` has a function of its own)."""
    render: Callable[[Outcome], str] = importlib.import_module(f"turbofix.report.{name}").render
    return render
