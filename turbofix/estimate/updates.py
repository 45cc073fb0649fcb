"""What an optimizer's step takes: passes over its tensors, and kernels to start, by how it is carried out.

The passes are counted from torch's own code: each operation of it reads and writes whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from turbofix.estimate.cards import Card
from turbofix.estimate.recording import Update


class Passes(NamedTuple):
    """Operations of a step and passes over memory (a tensor read or written), and the passes of the fused kernel."""

    operations: int
    passes: int
    fused: int


# Adam: lerp (3), mul_ (2), addcmul_ (4), sqrt (2), div_ (2), add_ (2), addcdiv_ (4)
_PASSES = {
    "Adam": Passes(7, 19, 7),
    "AdamW": Passes(8, 21, 7),
    "NAdam": Passes(9, 25, 25),
    "RAdam": Passes(10, 27, 27),
    "Adamax": Passes(7, 19, 19),
    "RMSprop": Passes(5, 14, 14),
    "Adagrad": Passes(4, 11, 5),
    "Adadelta": Passes(9, 25, 25),
    "SGD": Passes(3, 9, 5),
}
_UNKNOWN = _PASSES["Adam"]
CHUNK = 48
"""Tensors that one kernel of the for-each functions takes (110 at most, fewer where each is cut into many parts)."""


def seconds(update: Update, card: Card, constants: Mapping[str, float]) -> tuple[float, int]:
    """What the card takes for an update, and how many kernels are started for it."""
    known = _PASSES.get(update.kind, _UNKNOWN)
    if update.fused:
        passes, kernels = known.fused, -(-update.tensors // CHUNK)
    elif update.foreach:
        passes, kernels = known.passes, known.operations * -(-update.tensors // CHUNK)
    else:
        passes, kernels = known.passes, known.operations * update.tensors
    moved = passes * update.numbers * update.bytes_each / (card.bandwidth * 1e9 * constants["memory"])
    return moved + kernels * constants["kernel"] * 1e-6, kernels
