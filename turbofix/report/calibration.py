"""What ``turbofix calibrate`` measured, beside what the data sheet promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turbofix.estimate.cards import Card

_FIGURES = {
    "half": ("products in 16 bits", "TFLOP/s"),
    "tf32": ("products in TF32", "TFLOP/s"),
    "float32": ("products in float32", "TFLOP/s"),
    "bandwidth": ("memory", "GB/s"),
    "link": ("copies from pinned memory", "GB/s"),
    "start": ("the host starts a kernel in", "µs"),
    "read": ("a read adds", "µs"),
}


def render(found: Mapping[str, Any], sheet: Card | None) -> str:
    """A line for each figure."""
    lines = [f"{found['name']}, torch {found['torch']}"]
    for name, (words, unit) in _FIGURES.items():
        promised = getattr(sheet, name, None)
        share = f"  {found[name] / promised:.0%} of the data sheet" if promised else ""
        lines.append(f"  {words:<28}{found[name]:10.4g} {unit}{share}")
    return "\n".join(lines) + "\n"
