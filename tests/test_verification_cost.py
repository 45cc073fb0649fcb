"""The benchmark of a verification's cost can fail: above a limit, and where what it measures does not succeed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import verification_cost as cost


def test_a_value_above_its_limit_is_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.held("verify", 4.9, 5.0, "×")
    assert not cost.held("verify", 5.1, 5.0, "×")
    assert capsys.readouterr().out.endswith("verify: 5.10 × (limit 5 ×)  ABOVE\n")


def test_a_probe_that_slows_the_step_is_above(capsys: pytest.CaptureFixture[str]) -> None:
    def fork(kind: str, batch: int) -> float:
        return 3.0 if kind == "plain" else 3.5

    assert not cost.probe(fork, 3)
    assert "5.00 % (limit 3 %)  ABOVE" in capsys.readouterr().out


def test_a_command_that_fails_is_no_measure(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        cost.cost_of([sys.executable, "-c", "raise SystemExit(1)"], tmp_path)
    measured = cost.cost_of([sys.executable, "-c", "sum(range(3_000_000))"], tmp_path)
    assert measured.cpu > 0.01 and measured.wall > 0


def test_the_batch_is_chosen_by_the_time_of_a_step() -> None:
    assert cost.batch_for(10.0, lambda batch: 2.0 + 0.25 * batch) == 32
    assert cost.SCRIPT.count(cost.REWRITE[0]) == 1
