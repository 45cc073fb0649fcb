"""One training step as the probe wrote it down: what it computes, what it copies, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from turbofix.records import dataclass

PRODUCT, CONVOLUTION, DEPTHWISE, GROUPED, ATTENTION = "product", "convolution", "depthwise", "grouped", "attention"
RECURRENT = "recurrent"
POINTWISE, REDUCTION, OTHER = "pointwise", "reduction", "other"


class Operation(NamedTuple):
    """One operation of torch (aten), in the order of the step.

    ``read`` and ``written`` are bytes, ``bits`` those of the numbers that it computes with, ``shape`` that of a product
    (how many, rows, columns, channels that are summed over, size of the kernel; of a recurrent layer first the steps
    that wait for each other). ``turned`` are the bytes that a convolution in channels-first has to turn round for the
    tensor cores. ``inputs`` and ``outputs`` are pairs of a
    memory's number and the bytes of it.
    """

    name: str
    kind: str
    phase: str
    flops: float
    read: float
    written: float
    bits: int
    shape: tuple[int, ...]
    turned: float
    inputs: tuple[tuple[int, int], ...] = ()
    outputs: tuple[tuple[int, int], ...] = ()


class Update(NamedTuple):
    """What one call of an optimizer's ``step`` updates: so many tensors with so many numbers in all."""

    kind: str
    tensors: int
    numbers: int
    bytes_each: int
    fused: bool
    foreach: bool


class Copy(NamedTuple):
    """A copy from the host to the GPU."""

    size: int
    pinned: bool
    waits: bool


class Read(NamedTuple):
    """Where the host waits for a result of the GPU: the operation, and the user's line where it is known."""

    name: str
    path: str | None
    line: int | None


@dataclass(frozen=True)
class Recording:
    """A step. ``loading`` are the seconds that making one step's batches takes one process, None where none was seen.

    ``tf32`` and ``tf32_convolutions`` say what float32 products may be rounded to; ``refused`` why there can be no
    estimate, ``compiled`` that torch.compile is on, ``memory`` the most bytes that tensors on the GPU take at once,
    ``log`` what else the run has shown (``facts``).
    """

    operations: tuple[Operation, ...]
    updates: tuple[Update, ...] = ()
    copies: tuple[Copy, ...] = ()
    reads: tuple[Read, ...] = ()
    loading: float | None = None
    workers: int = 0
    samples: int | None = None
    tf32: bool = False
    tf32_convolutions: bool = True
    compiled: bool = False
    memory: int | None = None
    refused: str | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=dict)


def operation_of(row: Sequence[Any]) -> Operation:
    """The operation of a row that the probe wrote."""
    shape, turned, inputs, outputs = row[7:]
    return Operation._make([*row[:7], tuple(shape), turned, tuple(map(tuple, inputs)), tuple(map(tuple, outputs))])


def recording_of(log: Mapping[str, Any]) -> Recording:
    """The recording in a run's log."""
    step = log["step"]
    return Recording(
        tuple(map(operation_of, step["rows"])),
        tuple(Update(**each) for each in step["updates"]),
        tuple(Copy(*each) for each in step["copies"]),
        tuple(Read(name, *(place or (None, None))) for name, place in step["reads"]),
        step["loading"],
        step["workers"],
        step["samples"],
        step["tf32"],
        step["tf32_convolutions"],
        step["compiled"],
        step["memory"],
        step["refused"],
        step["measured"],
        {name: log[name] for name in ("facts", "remapped") if name in log},
    )
