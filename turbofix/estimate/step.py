"""A recorded step on a card: its parts, what bounds it, and how sure that is; and two of them, divided.

The host starts kernels while the GPU computes, so the longer of the two counts. Data come before, or beside it where
worker processes make them. Always a range, never a figure where the host is what takes the time: how fast it starts
kernels is not known from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from turbofix.estimate import clock, updates
from turbofix.estimate.cards import Card, constants
from turbofix.estimate.compiled import compiled
from turbofix.estimate.recording import DEPTHWISE, GROUPED, Recording
from turbofix.records import dataclass

PARTS = ("data", "transfer", "forward", "backward", "optimizer", "syncs", "other")
DATA, HOST, COMPUTE, MEMORY, UNKNOWN = "data", "host", "compute", "memory", "unknown"

FITTED = "rtx3090"
"""The card that most of the measurements that the constants were fitted to are of, in mixed precision."""

MANY_KERNELS = "the time to start its many small kernels bounds it, and that depends on the machine's processor"
"""Why a step that the host bounds has no figure."""

# A copy that waits goes through a buffer of pinned memory, at about half the speed.
PAGEABLE = 0.5
# a share of the step from which convolutions in groups, of which the measurements say little, make it unknown
MOST_GROUPED = 0.1
# operations that the host starts again before the GPU has enough to do, after it has waited for it
AHEAD = 4
# ratios nearer to 1 than this cannot be seen
NO_DIFFERENCE = 1.1


@dataclass(frozen=True)
class Interval:
    """A median, and the interval around it: of what is estimated it holds four cases of five, of what is timed 95 %."""

    median: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}

    @property
    def in_words(self) -> str:
        """Both ends, with two figures."""
        low, high = (f"{each:.0f}" if each >= 10 else f"{each:.2g}" for each in (self.low, self.high))
        return low if low == high else f"{low}–{high}"

    @property
    def as_factor(self) -> str:
        """A ratio as people read it."""
        if 1 / NO_DIFFERENCE < self.median < NO_DIFFERENCE:
            return "no measurable difference"
        return f"{self.in_words}×"


@dataclass(frozen=True)
class Estimate:
    """What a step takes on a card. ``step_ms`` is None where it is ``refused``, with the reason.

    ``parts`` are milliseconds by the names of ``PARTS``, as far as they are known where the whole is not; ``kernels``
    are those that the host starts. ``speedup`` is that over another program, ``None`` where there is none to tell.
    """

    gpu: str
    step_ms: Interval | None
    bound: str
    refused: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    flops: float = 0.0
    peak: float = 0.0
    kernels: int = 0
    speedup: Interval | None = None

    @property
    def utilisation(self) -> float | None:
        """The share of the card's peak that the step's arithmetic reaches (MFU).

        The arithmetic is that of products, convolutions and attention, the peak that of the fastest numbers among them.
        """
        return self.flops / (self.step_ms.median * 1e-3 * self.peak) if self.step_ms and self.peak else None

    def to_json(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "step_ms": self.step_ms.to_json() if self.step_ms else None,
            "speedup": self.speedup.to_json() if self.speedup else None,
            "bound": self.bound,
            "refused": self.refused,
        }

    @property
    def step_ms_in_words(self) -> str:
        """How long a step takes."""
        return f"{self.step_ms.in_words} ms a step" if self.step_ms else f"no figure: {self.refused}"


def estimate(recording: Recording, card: Card, processors: int = 8) -> Estimate:
    """What a step takes on ``card``, in a machine with so many ``processors`` for its data."""
    fitted = constants()
    if recording.compiled:
        recording = compiled(recording)
    on_gpu, starts, arithmetic, grouped = _phases(recording, card, fitted)
    link = card.link * 1e9
    transfer = sum(each.size / (link * (1.0 if each.pinned else PAGEABLE)) for each in recording.copies)
    computing = sum(on_gpu.values())
    start = card.start or fitted["start"]
    start_low, start_high = (card.start or fitted[name] for name in ("start_low", "start_high"))
    host_low, host, host_high = (starts * each * 1e-6 for each in (start_low, start, start_high))
    workers = min(recording.workers, processors)
    loading = recording.loading or 0.0
    busy = max(computing + transfer, host)
    data = max(loading / workers - busy, 0.0) if workers else loading
    read = fitted["read"] if card.read is None else card.read
    syncs = len(recording.reads) * (read + AHEAD * start) * 1e-6
    other = max(host - computing - transfer - syncs, 0.0)
    parts = {**on_gpu, "data": data, "transfer": transfer, "syncs": syncs, "other": other}
    parts = {name: parts.get(name, 0.0) * 1e3 for name in PARTS}
    total = sum(parts.values())
    fixed = data * 1e3
    trains = any(each.phase == "backward" for each in recording.operations)
    spread = fitted["spread_other" if card.name != FITTED else "spread_train" if trains else "spread_infer"]
    wide = sum(each.flops for each in recording.operations if each.bits > 16)
    flops = sum(each.flops for each in recording.operations)
    widen = math.exp(max(spread, fitted["spread_full"]) if wide > flops / 2 else spread)
    bound = _bound(parts, starts * fitted["kernel"] * 1e-3, arithmetic / computing if computing else 0.0)
    refused = recording.refused
    if refused is None and grouped > MOST_GROUPED * computing:
        refused = "its convolutions in groups take a large part of it, and measurements say too little of those"
    if (
        refused is None
        and card.start is None
        and host_low > computing - starts * fitted["kernel"] * 1e-6
        and data < host
    ):
        refused = MANY_KERNELS
    step = None
    if refused is None:
        rest = total - fixed
        step = Interval(total, fixed + rest / widen, fixed + max(rest * widen, host_high * 1e3))
    peak = max((clock.peak(each, card, recording) for each in recording.operations if each.flops), default=0.0)
    return Estimate(card.name, step, bound, refused, parts, recording.samples, flops, peak, starts)


def compared(before: Estimate, after: Estimate) -> Estimate:
    """The second, with how many times as fast it is as the first, by samples where both count them."""
    if before.step_ms is None or after.step_ms is None:
        return after
    ratio = before.step_ms.median / after.step_ms.median
    if before.samples and after.samples:
        ratio *= after.samples / before.samples
    # what changes is many parts, each off by itself: their squares add up
    widen = math.exp(constants()["spread_ratio"] * math.sqrt(abs(math.log2(ratio))))
    found = Interval(ratio, ratio / widen, ratio * widen)
    values = vars(after) | {"speedup": found}
    return Estimate(**values)


def _phases(
    recording: Recording, card: Card, fitted: Mapping[str, float]
) -> tuple[dict[str, float], int, float, float]:
    """Seconds of the GPU by phase, kernels started, and the seconds bound by arithmetic and of what is in groups."""
    on_gpu = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    starts = len(recording.operations)
    arithmetic = grouped = 0.0
    for each in recording.operations:
        took = clock.seconds(each, card, recording, fitted)
        on_gpu[each.phase] = on_gpu.get(each.phase, 0.0) + took
        work, memory, _ = clock.parts(each, card, recording, fitted)
        arithmetic += took if work > memory else 0.0
        grouped += took if each.kind == GROUPED or (each.kind == DEPTHWISE and work > memory) else 0.0
    for update in recording.updates:
        took, kernels = updates.seconds(update, card, fitted)
        on_gpu["optimizer"] += took
        starts += kernels
    return on_gpu, starts, arithmetic, grouped


def _bound(parts: Mapping[str, float], starting: float, arithmetic: float) -> str:
    total = sum(parts.values())
    if not total:
        return UNKNOWN
    if parts["data"] + parts["transfer"] > total / 2:
        return DATA
    if parts["other"] + parts["syncs"] + starting > total / 2:
        return HOST
    return COMPUTE if arithmetic > 0.5 else MEMORY
