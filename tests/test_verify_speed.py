"""What the statistics of timed runs claim: nothing of two equal programs, and a gain where there is one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turbofix.findings import Risk
from turbofix.verify import Options, Progress, Stage, speed
from turbofix.verify.runner import Ended

Noise = Callable[[random.Random], float]


def steady(draw: random.Random) -> float:
    return draw.gauss(0.0, 0.02)


def disturbed(draw: random.Random) -> float:
    """A quiet machine on which now and then something else runs."""
    return draw.gauss(0.0, 0.005) - (abs(draw.gauss(0.0, 0.1)) if draw.random() < 0.2 else 0.0)


def speeds(draw: random.Random, noise: Noise, gain: float, runs: int) -> tuple[list[float], list[float]]:
    """Interleaved runs of two programs on a machine that drifts."""
    drift, old, new = 0.0, [], []
    for _ in range(runs):
        drift += 0.3 * noise(draw)
        old.append(100 * math.exp(drift + noise(draw)))
        new.append(100 * gain * math.exp(drift + noise(draw)))
    return old, new


@pytest.mark.parametrize("noise", [steady, disturbed])
@pytest.mark.parametrize("runs", [5, 8])
def test_two_equal_programs_differ_in_fewer_than_one_of_a_hundred_trials(
    monkeypatch: pytest.MonkeyPatch, noise: Noise, runs: int
) -> None:
    monkeypatch.setattr(speed, "_RESAMPLINGS", 200)
    draw = random.Random(1)
    claims = sum(speed.change(*speeds(draw, noise, 1.0, runs)) is not None for _ in range(1000))
    assert claims < 10


@pytest.mark.parametrize("noise", [steady, disturbed])
@pytest.mark.parametrize("gain", [1.5, 0.6])
def test_a_change_well_beyond_the_noise_is_told_with_its_direction(
    monkeypatch: pytest.MonkeyPatch, noise: Noise, gain: float
) -> None:
    monkeypatch.setattr(speed, "_RESAMPLINGS", 200)
    draw = random.Random(1)
    found = [speed.change(*speeds(draw, noise, gain, 5)) for _ in range(200)]
    told = [one for one in found if one is not None]
    assert len(told) >= 190
    assert all((one.median > 1) == (gain > 1) for one in told)


def test_a_few_runs_claim_nothing() -> None:
    for runs in range(1, speed.LEAST_RUNS):
        assert speed.change([100.0] * runs, [200.0] * runs) is None
    assert speed.change([100.0] * speed.LEAST_RUNS, [200.0] * speed.LEAST_RUNS) is not None


class FakeChild:
    """A machine that takes a given time for each program, and tells its steps."""

    def __init__(self, seconds: dict[bytes, float], noise: Noise) -> None:
        self._seconds, self._noise, self._draw = seconds, noise, random.Random(3)
        self.order: list[bytes] = []

    def start(self) -> None:
        pass

    def run(self, files: dict[Path, bytes], order: dict[str, Any], on_step: Callable[[int], None]) -> Ended:
        program = files.get(Path("train.py"), b"original")
        self.order.append(program)
        on_step(order["warm_up"] + order["steps"])
        log = {
            "seconds": self._seconds[program] * math.exp(self._noise(self._draw)), "samples": 640, "steps": 60,
            "peak_memory_bytes": 1, "warm_up_seconds": 1.0, "parts_ms": {},
        }  # fmt: skip
        return Ended("stopped", log)


def test_each_codemod_is_told_what_it_brought_and_one_that_brought_nothing_is_not() -> None:
    stages = [
        Stage(name, Risk.EQUIVALENT, {Path("train.py"): text})
        for name, text in (("fast", b"1"), ("idle", b"2"), ("slow", b"3"))
    ]
    child = FakeChild({b"original": 2.0, b"1": 1.0, b"2": 1.0, b"3": 1.3}, steady)
    told: list[Progress] = []
    found = speed.measure(child, stages, Options(), told.append)  # type: ignore[arg-type]
    assert child.order[:5] == [b"original", b"1", b"2", b"3", b"original"]
    assert found.speedup is not None and found.speedup.median == pytest.approx(2 / 1.3, rel=0.05)
    fast, idle, slow = (found.by_codemod[stage.codemod or ""] for stage in stages)
    assert fast is not None and fast.median == pytest.approx(2.0, rel=0.05)
    assert idle is None
    assert slow is not None and slow.median == pytest.approx(1 / 1.3, rel=0.05)
    assert told[0] == Progress("timing, run 1 of 20", 0, 80)
    assert told[-1] == Progress("timing, run 20 of 20", 80, 80)


def test_a_rewrite_that_changes_nothing_is_never_a_gain() -> None:
    stages = [Stage("no-op", Risk.EXACT, {Path("train.py"): b"same"})]
    for _ in range(10):
        child = FakeChild({b"original": 1.0, b"same": 1.0}, disturbed)
        found = speed.measure(child, stages, Options(), lambda progress: None)  # type: ignore[arg-type]
        assert found.speedup is None and found.by_codemod == {"no-op": None}
        assert found.note is not None and "beyond the noise" in found.note


def test_too_few_timed_runs_are_told() -> None:
    stages = [Stage("fast", Risk.EXACT, {Path("train.py"): b"1"})]
    child = FakeChild({b"original": 2.0, b"1": 1.0}, steady)
    found = speed.measure(child, stages, Options(repeats=1), lambda progress: None)  # type: ignore[arg-type]
    assert found.speedup is None
    assert found.note == "no change in speed is told from fewer than 5 timed runs of each program (--repeats)"
