"""Cards that were measured: ``turbofix calibrate`` writes their figures down, and an estimate reads them.

A measured card has the figures with which the clock takes as long for what was measured as the card took. How fast the
host starts kernels is known of it, too, so that a step which that bounds has a figure.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turbofix.estimate import cards, clock
from turbofix.estimate.cards import Card, constants
from turbofix.estimate.recording import POINTWISE, PRODUCT, Operation, Recording

FIGURES = ("half", "tf32", "float32", "bandwidth", "link", "multiprocessors", "memory", "start", "read")
SIDE, NUMBERS = 8192, 1 << 27  # of the matrices and vectors that ``probe/calibration.py`` times


def folder() -> Path:
    """Where the figures lie: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "turbofix" / "cards"


def card_for(gpu: str) -> Card | None:
    """The card of a name that ``--gpu`` takes, as it was measured here if it was; None of no other."""
    known = cards.card_for(gpu)
    file = folder() / f"{known.name if known is not None else cards.slug(gpu)}.json"
    try:
        return card_of(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return known


def save(found: Mapping[str, Any]) -> Path:
    """Keep what was measured, and say where.

    Raises:
        OSError: it cannot be written.
    """
    file = folder() / f"{card_of(found).name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict(found), indent=2) + "\n", encoding="utf-8")
    return file


def card_of(found: Mapping[str, Any]) -> Card:
    """The card that takes for matrices and vectors what was measured; ``found`` is as the probe printed it.

    Raises:
        KeyError, TypeError, ValueError: it is not.
    """
    name = str(found["name"])
    sheet = _sheet(name)
    figures = {each: float(found[each]) for each in FIGURES}
    card = Card(
        sheet.name if sheet is not None else cards.slug(name),
        "ampere" if int(found["capability"][0]) >= 8 else "turing",  # or what came next, which rounds alike
        source=f"measured on {name} with torch {found['torch']}",
        bus=sheet.bus if sheet is not None else None,
        bus_source=sheet.bus_source if sheet is not None else "",
        **figures,
    )
    for figure, bits in (("half", 16), ("tf32", 32), ("float32", 32)):
        if figure == "tf32" and not card.rounds:
            continue
        recording = Recording((), tf32=figure == "tf32")
        size = float(2 * SIDE * SIDE * bits / 8)
        product = Operation(
            "mm", PRODUCT, "forward", 2.0 * SIDE**3, size, size / 2, bits, (1, SIDE, SIDE, SIDE, 1), 0.0
        )
        card = _that_takes(product.flops / (figures[figure] * 1e12), card, figure, product, recording)
    added = Operation("add", POINTWISE, "forward", 0.0, 8.0 * NUMBERS, 4.0 * NUMBERS, 32, (), 0.0)
    took = (added.read + added.written) / (figures["bandwidth"] * 1e9)
    return _that_takes(took, card, "bandwidth", added, Recording(()))


def _sheet(name: str) -> Card | None:
    """The card of the table whose name is in the device's: "NVIDIA A100-SXM4-40GB" is an a100-40gb."""
    exact = cards.card_for(cards.slug(name))
    if exact is not None:
        return exact
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    fitting = [each for each in cards.cards() if words.issuperset(each.split("-"))]
    return cards.cards()[max(fitting, key=len)] if fitting else None


def _that_takes(took: float, card: Card, figure: str, operation: Operation, recording: Recording) -> Card:
    """The card with that ``figure`` with which the clock says so many seconds for an operation, as near as it comes."""
    changed: Any = card._replace
    low, high = 1e-6, 1e6
    for _ in range(80):
        middle = math.sqrt(low * high)
        now = clock.seconds(operation, changed(**{figure: middle}), recording, constants())
        low, high = (middle, high) if now > took else (low, middle)
    made: Card = changed(**{figure: math.sqrt(low * high)})
    return made
