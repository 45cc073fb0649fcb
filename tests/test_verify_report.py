"""The report of a verification, as a stranger reads it: what was kept and dropped, why, and how it was run."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turbofix.report.verification import render
from turbofix.running import run_verification
from turbofix.verify import Interval, Judgement, Measured, Progress, Request, Verification

CLOSE = "gradients agree to 0.002 and updates to 0.01 over 23 steps (1 - cosine or the relative change of the norm)"
TIMED = Measured((), 100.0, {"data": 1.0, "backward": 2.0}, 2**30, 3.0)


def test_a_pass_on_a_gpu_tells_what_each_change_brought() -> None:
    found = Verification(
        "pass", "it learns the same over 23 steps and 2 epoch ends; tf32 was left out", "NVIDIA H200", steps=23,
        speedup=Interval(2.31, 2.2, 2.4), baseline=TIMED,
        candidate=Measured((), 231.0, {"data": 0.5, "backward": 1.0}, 2**29, 12.5),
        codemods=(
            Judgement("autocast", "kept", CLOSE, 1.8),
            Judgement("fused-optimizer", "kept", CLOSE),
            Judgement("tf32", "dropped", "at step 3 the loss is 2 instead of 1"),
            Judgement("defer-item", "unverified", "what it changed at train.py, line 12, did not run"),
        ),
        isolation="guard", notes=("epoch end not seen",),
    )  # fmt: skip
    lines = [line.strip() for line in render(found).splitlines()]
    assert lines[0] == "PASS  it learns the same over 23 steps and 2 epoch ends; tf32 was left out"
    assert "learning   23 optimizer steps compared on NVIDIA H200" in lines
    assert "speed      2.31× (95 % interval 2.2–2.4×)" in lines
    assert "memory     peak 1,024 MiB before, 512 MiB after" in lines
    assert any(line.startswith("start      3 s before, 12.5 s after") for line in lines)
    assert "+ kept       autocast  1.8×" in lines
    # said once, and not of every codemod again
    assert lines[lines.index("+ kept       fused-optimizer") + 1] == "as with autocast"
    assert lines[lines.index("- dropped    tf32") + 1] == "at step 3 the loss is 2 instead of 1"
    assert lines[lines.index("? unverified defer-item") + 1] == "what it changed at train.py, line 12, did not run"
    assert any(line.startswith("isolation  guard: ") for line in lines)
    assert lines[-1] == "note       epoch end not seen"


@pytest.mark.parametrize(
    ("device", "speedup", "baseline", "words"),
    [
        ("cpu", None, Measured(), "not measured: a run without a GPU says nothing about speed on one"),
        ("NVIDIA H200", None, Measured(), "not measured"),
        ("NVIDIA H200", None, TIMED, "measured, and no change that can be told from noise"),
        ("NVIDIA H200", Interval(0.8, 0.7, 0.9), TIMED, "0.8×, slower (95 % interval 0.7–0.9×)"),
    ],
)
def test_the_speed_is_told_as_it_was_measured(
    device: str, speedup: Interval | None, baseline: Measured, words: str
) -> None:
    found = Verification("pass", "it learns the same", device, speedup=speedup, baseline=baseline)
    assert f"  speed      {words}" in render(found).splitlines()


def test_a_failed_candidate_is_the_subject_of_its_sentence() -> None:
    difference = "at step 1 the learning rate is 0.2 instead of 0.1"
    assert render(Verification("fail", difference, "cpu")).startswith(
        f"FAIL  the candidate does not learn the same: {difference}"
    )
    stopped = 'the rewritten script stopped with "ValueError" at train.py, line 3'
    assert render(Verification("fail", stopped, "cpu")).startswith(f"FAIL  {stopped}")
    lost = Verification("fail", "no rewrite survived: a: b", "cpu", codemods=(Judgement("a", "dropped", "b"),))
    assert render(lost).startswith("FAIL  no rewrite survived")


class Terminal(io.StringIO):
    def __init__(self, *, there: bool) -> None:
        super().__init__()
        self._there = there

    def isatty(self) -> bool:
        return self._there


@pytest.mark.parametrize(("there", "quiet"), [(True, False), (True, True), (False, False)])
def test_every_phase_shows_on_a_terminal_and_a_line_for_each_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, there: bool, quiet: bool
) -> None:
    phases = ("importing torch", "the script as it is", "timing, run 1 of 10")

    def pretend(request: Request, on_progress: Callable[[Progress], None] | None = None) -> Verification:
        for phase in phases:
            if on_progress is not None:
                on_progress(Progress(phase, 5, 20))
                time.sleep(0.3 if there and not quiet else 0.0)  # the bar is drawn ten times a second
                on_progress(Progress(phase, 20, 20, "20 steps in 0.3 s", ("its last words",)))
        return Verification("pass", "it learns the same", "cpu")

    stream = Terminal(there=there)
    monkeypatch.setattr("turbofix.verify.verify", pretend)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert run_verification(Request(Path("train.py")), quiet).verdict == "pass"
    shown = stream.getvalue()
    if quiet:
        assert shown == ""
    elif there:
        assert all(phase in shown for phase in phases)
    else:
        assert shown == "".join(f"verify: {phase} … 20 steps in 0.3 s\n" for phase in phases)
        assert run_verification(Request(Path("train.py")), quiet, verbose=True).verdict == "pass"
        assert stream.getvalue().endswith(f"verify: {phases[-1]} … 20 steps in 0.3 s\n  | its last words\n")
