"""How long an operation takes on a card: a roofline, with what measurements say of how much of it is reached.

An operation takes as long as its arithmetic or its memory, whichever is longer, and a start of its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from turbofix.estimate.cards import Card
from turbofix.estimate.recording import (
    ATTENTION,
    CONVOLUTION,
    DEPTHWISE,
    GROUPED,
    OTHER,
    POINTWISE,
    PRODUCT,
    REDUCTION,
    Operation,
    Recording,
)

TILE = 128  # rows and columns of a product that one multiprocessor computes at a time
ALIGNED = 8  # numbers: tensor cores take columns and channels in groups of so many
MEMORY = {
    PRODUCT: "product_memory",
    CONVOLUTION: "convolution_memory",
    GROUPED: "product_memory",
    ATTENTION: "product_memory",
    DEPTHWISE: "depthwise_memory",
    POINTWISE: "memory",
    REDUCTION: "reduction_memory",
    OTHER: "other_memory",
}
ARITHMETIC = {PRODUCT: "product", CONVOLUTION: "convolution", GROUPED: "convolution", ATTENTION: "attention"}


def peak(operation: Operation, card: Card, recording: Recording) -> float:
    """FLOP/s that the data sheet promises for the numbers that an operation computes with."""
    if operation.bits <= 16:
        return card.half * 1e12
    if operation.bits > 32 or operation.kind == DEPTHWISE:
        return card.float32 * 1e12
    convolves = operation.kind in (CONVOLUTION, GROUPED)
    rounded = recording.tf32_convolutions if convolves else recording.tf32
    return (card.tf32 if rounded and card.rounds else card.float32) * 1e12


def seconds(operation: Operation, card: Card, recording: Recording, constants: Mapping[str, float]) -> float:
    """What the card takes for an operation, the start of its kernel included."""
    arithmetic, memory, turning = parts(operation, card, recording, constants)
    return max(arithmetic, memory) + turning + constants["kernel"] * 1e-6


def parts(
    operation: Operation, card: Card, recording: Recording, constants: Mapping[str, float]
) -> tuple[float, float, float]:
    """The seconds of an operation's arithmetic, of its memory, and of turning its layout round."""
    bandwidth = card.bandwidth * 1e9
    reached = _of_phase(MEMORY[operation.kind], operation, constants)
    memory = (operation.read + operation.written) / (bandwidth * reached)
    arithmetic = turning = 0.0
    if operation.kind in ARITHMETIC and operation.flops:
        reached = _of_phase(ARITHMETIC[operation.kind], operation, constants) * _filled(operation, constants)
        arithmetic = operation.flops / (peak(operation, card, recording) * reached)
        arithmetic *= waves_of(operation, card, constants)
    elif operation.kind == DEPTHWISE:
        arithmetic = operation.flops / (card.float32 * 1e12 * constants["depthwise"])
    if operation.turned and operation.kind in (CONVOLUTION, GROUPED):
        rounded = recording.tf32_convolutions and card.rounds and card.tf32 > card.float32
        if operation.bits <= 16 or rounded:
            turning = operation.turned * constants["turning"] / (bandwidth * constants["memory"])
    return arithmetic, memory, turning


def _of_phase(name: str, operation: Operation, constants: Mapping[str, float]) -> float:
    """A constant, or the one of the backward pass where that has its own."""
    back = f"{name}_back" if operation.phase == "backward" else name
    return constants.get(back, constants[name])


def _filled(operation: Operation, constants: Mapping[str, float]) -> float:
    """How much of a tensor core an operation's sides fill."""
    share = 1.0
    if not operation.shape:
        return share
    _, _, columns, channels, _ = operation.shape
    if operation.kind == GROUPED:
        share *= min(1.0, min(columns, channels) / constants["group"])
        if not operation.turned:
            share *= constants["grouped_last"]
    if operation.kind != ATTENTION and (columns % ALIGNED or channels % ALIGNED):
        share *= constants["odd"]
    return share


def waves_of(operation: Operation, card: Card, constants: Mapping[str, float]) -> float:
    """The factor by which the last round of tiles, which does not fill the card, makes a product longer."""
    if operation.kind not in (PRODUCT, CONVOLUTION) or not operation.shape:
        return 1.0
    count, rows, columns, _, _ = operation.shape
    waves = count * math.ceil(rows / TILE) * math.ceil(columns / TILE) / card.multiprocessors
    return 1.0 + (math.ceil(waves) / waves - 1.0) * constants["wave"] if waves else 1.0
