"""The options of ``verify``: each does what its help says, and a bad value is a sentence and exit status 2."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

pytestmark = pytest.mark.usefixtures("warm_interpreters")

TRAINING = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    (tmp_path / "train.py").write_text(TRAINING)
    return runner(tmp_path, monkeypatch, capfdbinary)


BAD: dict[tuple[str, str], str] = {
    ("--steps", "0"): "Invalid value for '--steps'",
    ("--steps", "2"): "Invalid value for '--steps'",
    ("--steps", "many"): "Invalid value for '--steps'",
    ("--repeats", "0"): "Invalid value for '--repeats'",
    ("--timeout", "0"): "a number of seconds from 1 on",
    ("--timeout", "nan"): "a number of seconds from 1 on",
    ("--timeout", "inf"): "a number of seconds from 1 on",
    ("--timeout", "soon"): "Invalid value for '--timeout'",
    ("--device", "tpu"): "there is no device 'tpu'; there are cpu and cuda",
    ("--device", "cuda:1"): "CUDA_VISIBLE_DEVICES chooses the card",
    ("--seed", "1.5"): "Invalid value for '--seed'",
    ("--python", "/no/such/python"): "the interpreter /no/such/python could not be started",
    ("--isolation", "glass"): "there is no isolation level 'glass'",
}


@pytest.mark.parametrize(("option", "value"), BAD)
def test_a_bad_value_is_a_sentence(run: Run, option: str, value: str) -> None:
    ran = run("verify", option, value, "train.py", "train.py")
    assert ran.code == 2
    said = re.sub(r"[\s│]+", " ", ran.out + ran.err)
    assert BAD[option, value] in said
    assert "Traceback" not in said


def verified(run: Run, *options: str) -> tuple[dict[str, Any], str]:
    ran = run("verify", "--output-format", "json", *options, "train.py", "train.py")
    answer: dict[str, Any] = json.loads(ran.out)
    return answer, ran.err


def test_what_a_run_that_failed_wrote_is_shown_on_request(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "theirs.py").write_text("print('so far')\nraise SystemExit('no data')\n")
    ended = [
        "verify: the script as it is … 20 steps in",
        "verify: the rewritten script … 0 steps in",
    ]
    for options in ((), ("--verbose",)):
        lines = run("verify", "--steps", "20", *options, "train.py", "theirs.py").err.splitlines()
        assert [line[: len(start)] for line, start in zip(lines, ended, strict=False)] == ended
        assert lines[1].endswith('then it stopped with "SystemExit: no data"')
        assert lines[2:-1] == (["  | so far"] if options else [])
        assert lines[-1].startswith("verify: the script against itself … 20 steps in")


def test_every_option_does_what_its_help_says(run: Run) -> None:
    pytest.importorskip("torch")
    options = ("--steps", "5", "--repeats", "2", "--timeout", "300", "--python", sys.executable, "--device", "cpu")
    answer, said = verified(run, *options, "--isolation", "guard", "--keep-scratch", "--seed", "1")
    assert (answer["verdict"], answer["steps"], answer["device"], answer["isolation"]) == ("pass", 5, "cpu", "guard")
    *runs, last = said.splitlines()
    assert [line.partition(" … ")[0] for line in runs] == [
        "verify: the script as it is",
        "verify: the rewritten script",
        "verify: the script against itself",
    ]
    kept = re.fullmatch(r"the folder that the runs worked in was kept: (\S+)", last)
    assert kept is not None, said
    assert list(Path(kept[1]).rglob("train.py"))
    shutil.rmtree(kept[1])
    again, said = verified(run, "--steps", "5", "--seed", "1", "--quiet")
    assert not said
    other, _ = verified(run, "--steps", "5", "--seed", "2")
    assert again["baseline"]["losses"] == answer["baseline"]["losses"]
    assert other["baseline"]["losses"] != answer["baseline"]["losses"]


def test_the_interpreter_and_the_time_limit_are_those_given(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntouch "{tmp_path}/used"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n" + TRAINING)
    answer, _ = verified(run, "--timeout", "1", "--python", str(python))
    assert (tmp_path / "used").exists()
    assert answer["verdict"] == "inconclusive"
    assert "time limit of 1 second" in answer["reason"]
