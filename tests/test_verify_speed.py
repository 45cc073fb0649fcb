"""What the statistics of timed runs claim: nothing of two equal programs, and a gain where there is one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turbofix.verify import Options, Progress, speed
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
        if math.isnan(self._seconds[program]):
            return Ended("crashed", complaint="ValueError: no")
        on_step(order["warm_up"] + order["steps"])
        log = {
            "seconds": self._seconds[program] * math.exp(self._noise(self._draw)), "samples": 640, "steps": 60,
            "peak_memory_bytes": 1, "warm_up_seconds": 1.0, "parts_ms": {},
        }  # fmt: skip
        return Ended("stopped", log)


def test_programs_are_timed_in_turn_and_their_progress_is_told() -> None:
    programs = [{}, {Path("train.py"): b"1"}, {Path("train.py"): b"2"}]
    child = FakeChild({b"original": 2.0, b"1": 1.0, b"2": 1.0}, steady)
    told: list[Progress] = []
    found = speed.measure(child, programs, Options(), told.append)  # type: ignore[arg-type]
    assert child.order[:4] == [b"original", b"1", b"2", b"original"]
    assert [len(one.speeds) for one in found] == [5, 5, 5]
    faster = speed.change(found[0].speeds, found[1].speeds)
    assert faster is not None and faster.median == pytest.approx(2.0, rel=0.05)
    assert speed.change(found[1].speeds, found[2].speeds) is None
    assert told[0] == Progress("timing, run 1 of 15", 0, 80)
    assert told[-1] == Progress("timing, run 15 of 15", 80, 80, "60 steps in 0.0 s")


def test_a_program_that_does_not_run_is_named_by_its_place() -> None:
    programs = [{}, {Path("train.py"): b"1"}]
    child = FakeChild({b"original": 2.0, b"1": math.nan}, steady)
    with pytest.raises(speed.NotTimed, match="stops with") as failed:
        speed.measure(child, programs, Options(), lambda progress: None)  # type: ignore[arg-type]
    assert failed.value.place == 1 and failed.value.failed


def test_too_few_timed_runs_are_told() -> None:
    programs = [{}, {Path("train.py"): b"1"}]
    child = FakeChild({b"original": 2.0, b"1": 1.0}, steady)
    found = speed.measure(child, programs, Options(repeats=1), lambda progress: None)  # type: ignore[arg-type]
    assert speed.change(found[0].speeds, found[1].speeds) is None
    words = "no change in speed is told from fewer than 5 timed runs of each program (--repeats)"
    assert speed.nothing_told(*found) == words
