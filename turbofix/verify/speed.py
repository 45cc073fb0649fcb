"""How much faster, on a GPU: interleaved timed runs and the statistics that turn them into a claim, or into none."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turbofix.records import dataclass
from turbofix.verify.request import Options, Progress
from turbofix.verify.result import STEP_PARTS, Interval, Measured
from turbofix.verify.runner import Child

WARM_UP = 20
MEASURED_STEPS = 60
# timed runs of each program: with fewer, two equal programs too often seem to differ
LEAST_RUNS = 5
_RESAMPLINGS = 2000


def ratio_interval(baseline: Sequence[float], candidate: Sequence[float]) -> Interval:
    """The speed-up of ``candidate`` over ``baseline``, with a 95 % interval, from the speeds of interleaved runs.

    Runs are compared in pairs, neighbours in time, so that a slow drift of the machine cancels. The interval is the
    bootstrap's over the pairs; few pairs give a wide one. Speeds are samples (or steps) per second, all above zero.

    Raises ``ValueError`` unless there are as many candidate as baseline runs, and at least one.
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError("speeds come in pairs")
    ratios = [math.log(new / old) for old, new in zip(baseline, candidate, strict=False)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLINGS))
    low, high = medians[int(0.025 * _RESAMPLINGS)], medians[int(0.975 * _RESAMPLINGS) - 1]
    return Interval(math.exp(statistics.median(ratios)), math.exp(low), math.exp(high))


def is_measured(*, cuda: bool) -> bool:
    """Whether runs on this device say anything about the device that the rewrite is for, which is CUDA.

    Those on a CPU do not, whether it was chosen with ``--device`` or is all there is, and with CUDA remapped least.
    """
    return cuda


def noise_floor(*programs: Sequence[float]) -> float:
    """The factor by which runs of one program differ, the widest of all programs': no smaller change is one."""
    return max((max(speeds) / min(speeds) for speeds in programs), default=1.0)


def claim(interval: Interval, floor: float) -> Interval | None:
    """The interval, or None when it holds no change beyond the noise."""
    if interval.low <= 1.0 <= interval.high or 1 / floor <= interval.median <= floor:
        return None
    return interval


def change(baseline: Sequence[float], candidate: Sequence[float]) -> Interval | None:
    """The speed-up of ``candidate``, below 1 where it is slower; None when there is none that can be told from noise.

    Of two equal programs, fewer than 1 pair in 100 comes out as a change (``tests/test_verify_speed.py``).
    """
    if len(baseline) < LEAST_RUNS:
        return None
    return claim(ratio_interval(baseline, candidate), noise_floor(baseline, candidate))


@dataclass(frozen=True)
class Timed:
    """The speeds of one program's runs, per second, and the median of everything else."""

    speeds: tuple[float, ...]
    measured: Measured

    @property
    def on_gpu(self) -> bool:
        """Whether the program used the GPU: a run that did not says nothing about speed on one."""
        return bool(self.peak)

    @property
    def peak(self) -> int | None:
        """The peak of the GPU's memory in bytes."""
        return self.measured.peak_memory_bytes


class NotTimed(Exception):  # noqa: N818 (an outcome)
    """The program at ``place`` could not be timed; the message is a sentence. ``failed``: it is the program's fault."""

    def __init__(self, place: int, why: str, *, failed: bool) -> None:
        super().__init__(why)
        self.place, self.failed = place, failed


def measure(
    child: Child, programs: Sequence[Mapping[Path, bytes]], options: Options, tell: Callable[[Progress], None]
) -> tuple[Timed, ...]:
    """Time the programs (the files that each has in place of the originals) in turn, again and again.

    Each run has a fresh interpreter. Raises ``NotTimed`` with the first that does not run to the end of the timing.
    """
    logs: list[list[Mapping[str, Any]]] = [[] for _ in programs]
    steps = options.steps or MEASURED_STEPS
    repeats = max(options.repeats, 1)
    for turn in range(repeats):
        for place, (files, found) in enumerate(zip(programs, logs, strict=True)):
            phase = f"timing, run {turn * len(programs) + place + 1} of {repeats * len(programs)}"
            teller = _teller(tell, phase, WARM_UP + steps)
            teller(0)
            child.start()  # a fresh process: CUDA cannot be forked, and caches must be cold alike
            ended = child.run(files, {"speed": True, "warm_up": WARM_UP, "steps": steps}, teller)
            done = WARM_UP + ended.log.get("steps", 0)
            tell(Progress(phase, done, WARM_UP + steps, ended.in_words, ended.output if ended.failed else ()))
            if ended.complaint:
                words = f'stops with "{ended.complaint}"' if ended.how == "crashed" else ended.complaint
                raise NotTimed(place, words, failed=not ended.stopped)
            if not ended.log.get("seconds"):
                raise NotTimed(place, f"takes fewer than {WARM_UP + 1} steps", failed=False)
            found.append(ended.log)
    # samples, unless they could not be counted in one of the programs: all speeds are of one kind
    counted = all(log["samples"] for found in logs for log in found)
    return tuple(summarise(found, counted=counted) for found in logs)


def nothing_told(baseline: Timed, last: Timed) -> str:
    """Why no change in speed is told, where none is."""
    if len(baseline.speeds) < LEAST_RUNS:
        return f"no change in speed is told from fewer than {LEAST_RUNS} timed runs of each program (--repeats)"
    floor = (noise_floor(baseline.speeds, last.speeds) - 1) * 100
    return f"no change in speed beyond the noise: runs of one program differ by {floor:.1f} %"


def _teller(tell: Callable[[Progress], None], phase: str, total: int) -> Callable[[int], None]:
    return lambda step: tell(Progress(phase, step, total))


def summarise(logs: Sequence[Mapping[str, Any]], *, counted: bool) -> Timed:
    """The speeds of all runs (in samples where those are ``counted``, else in steps), and the medians of the rest."""
    speeds = tuple((log["samples"] if counted else log["steps"]) / log["seconds"] for log in logs)
    parts = {
        part: statistics.median([log["parts_ms"].get(part, 0.0) for log in logs])
        for part in STEP_PARTS
        if any(part in log["parts_ms"] for log in logs)
    }
    peaks = [log["peak_memory_bytes"] for log in logs if log["peak_memory_bytes"] is not None]
    warm = [log["warm_up_seconds"] for log in logs if log["warm_up_seconds"] is not None]
    measured = Measured(
        samples_per_second=statistics.median(speeds) if counted else None,
        step_ms=parts,
        peak_memory_bytes=max(peaks) if peaks else None,
        warm_up_seconds=statistics.median(warm) if warm else None,
    )
    return Timed(speeds, measured)
