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
    RECURRENT,
    REDUCTION,
    Operation,
    Recording,
)

TILE = 128  # rows and columns of a product that one multiprocessor computes at a time
ALIGNED = 8  # numbers: tensor cores take columns and channels in groups of so many
MEMORY = {
    PRODUCT: "product_memory",
    RECURRENT: "product_memory",
    CONVOLUTION: "convolution_memory",
    GROUPED: "product_memory",
    ATTENTION: "product_memory",
    DEPTHWISE: "depthwise_memory",
    POINTWISE: "memory",
    REDUCTION: "reduction_memory",
    OTHER: "other_memory",
}
ARITHMETIC = {
    PRODUCT: "product",
    RECURRENT: "product",
    CONVOLUTION: "convolution",
    GROUPED: "convolution",
    ATTENTION: "attention",
}


def peak(operation: Operation, card: Card, recording: Recording) -> float:
    """FLOP/s that the data sheet promises for the numbers that an operation computes with."""
    if not on_tensor_cores(operation, card, recording):
        return card.float32 * 1e12
    return (card.half if operation.bits <= 16 else card.tf32) * 1e12


def on_tensor_cores(operation: Operation, card: Card, recording: Recording) -> bool:
    """Whether tensor cores compute an operation: in 16 bits, or in float32 where its numbers may be rounded."""
    if operation.bits <= 16:
        return True
    if operation.bits > 32 or operation.kind == DEPTHWISE:
        return False
    convolves = operation.kind in (CONVOLUTION, GROUPED)
    return card.rounds and (recording.tf32_convolutions if convolves else recording.tf32)


def seconds(operation: Operation, card: Card, recording: Recording, constants: Mapping[str, float]) -> float:
    """What the card takes for an operation, the start of its kernel included."""
    arithmetic, memory, turning = parts(operation, card, recording, constants)
    return max(arithmetic, memory) + turning + constants["kernel"] * 1e-6 * in_a_row(operation)


def in_a_row(operation: Operation) -> int:
    """Kernels of an operation that wait for each other: a recurrent layer has one for each step of its sequences."""
    return operation.shape[0] if operation.kind == RECURRENT else 1


def parts(
    operation: Operation, card: Card, recording: Recording, constants: Mapping[str, float]
) -> tuple[float, float, float]:
    """The seconds of an operation's arithmetic, of its memory, and of turning its layout round."""
    bandwidth = card.bandwidth * 1e9
    reached = _of_phase(MEMORY[operation.kind], operation, constants)
    memory = (operation.read + operation.written) / (bandwidth * reached)
    arithmetic = turning = 0.0
    if operation.kind in ARITHMETIC and operation.flops:
        each = 1.0 / (_share(operation, card, recording, constants) * _filled(operation, card, recording, constants))
        each += fed_of(operation, card, recording) * constants["feeding"]
        arithmetic = operation.flops / peak(operation, card, recording) * each
        arithmetic *= waves_of(operation, card, constants)
    elif operation.kind == DEPTHWISE:
        arithmetic = operation.flops / (card.float32 * 1e12 * constants["depthwise"])
    if operation.turned and turns(operation, card, recording):
        turning = operation.turned * constants["turning"] / (bandwidth * constants["memory"])
    return arithmetic, memory, turning


def turns(operation: Operation, card: Card, recording: Recording) -> bool:
    """Whether a convolution wants its numbers in channels-last."""
    if operation.kind not in (CONVOLUTION, GROUPED) or not on_tensor_cores(operation, card, recording):
        return False
    return operation.bits <= 16 or card.tf32 > card.float32


def fed_of(operation: Operation, card: Card, recording: Recording) -> float:
    """TFLOP/s of one multiprocessor, by the bytes that they take: it must be fed with those however fast it is."""
    if operation.kind not in (PRODUCT, CONVOLUTION) or not on_tensor_cores(operation, card, recording):
        return 0.0
    return peak(operation, card, recording) * 1e-12 / card.multiprocessors * (operation.bits / 16)


def _share(operation: Operation, card: Card, recording: Recording, constants: Mapping[str, float]) -> float:
    """The share of the peak that is reached at best."""
    convolves = operation.kind in (CONVOLUTION, GROUPED)
    if on_tensor_cores(operation, card, recording) or operation.kind == ATTENTION:
        share = _of_phase(ARITHMETIC[operation.kind], operation, constants)
    else:
        share = constants["float32_convolution" if convolves else "float32"]
        share *= constants["winograd"] if is_square(operation) else 1.0
        share *= min(1.0, operation.shape[2] / constants["narrow"]) if convolves else 1.0
    return share * (constants["over_time"] if convolves and is_over_time(operation) else 1.0)


def is_square(operation: Operation) -> bool:
    """Whether it is a convolution of three by three, for which there is a way with fewer products (Winograd's)."""
    return operation.kind == CONVOLUTION and operation.shape[4] == 9


def is_over_time(operation: Operation) -> bool:
    """Whether a convolution goes over one dimension."""
    return len(operation.shape) > 5 and operation.shape[5] == 1


def _of_phase(name: str, operation: Operation, constants: Mapping[str, float]) -> float:
    """A constant, or the one of the backward pass where that has its own."""
    back = f"{name}_back" if operation.phase == "backward" else name
    return constants.get(back, constants[name])


def _filled(operation: Operation, card: Card, recording: Recording, constants: Mapping[str, float]) -> float:
    """How much of a tensor core an operation's sides fill."""
    share = 1.0
    if not operation.shape:
        return share
    columns, channels = operation.shape[2:4]
    if operation.kind == GROUPED:
        share *= min(1.0, min(columns, channels) / constants["group"])
        if not operation.turned:
            share *= constants["grouped_last"]
    odd = columns % ALIGNED or channels % ALIGNED
    if odd and operation.kind != ATTENTION and on_tensor_cores(operation, card, recording):
        share *= constants["odd"]
    return share


def waves_of(operation: Operation, card: Card, constants: Mapping[str, float]) -> float:
    """The factor by which the last round of tiles, which does not fill the card, makes a product longer."""
    if operation.kind not in (PRODUCT, CONVOLUTION) or not operation.shape:
        return 1.0
    count, rows, columns = operation.shape[:3]
    waves = count * math.ceil(rows / TILE) * math.ceil(columns / TILE) / card.multiprocessors
    return 1.0 + (math.ceil(waves) / waves - 1.0) * constants["wave"] if waves else 1.0
