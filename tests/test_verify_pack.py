"""Through the command line, with a pack of codemods of its own: one that is broken, or brings nothing, is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

from turbofix.verify import speed
from turbofix.verify.runner import Child

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

TRAINING = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
data = torch.randn(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(25):
    batch = data[step : step + 16]
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CODEMOD = '''\
"""Give the optimizer {name}={value}."""
from turbofix.codemod import Codemod
from turbofix.findings import Gain, Risk

codemod = Codemod(__name__, group="optimizer", risk=Risk.{risk}, gain={gain})


@codemod.find
def find(program):
    for optimizer in program.optimizers:
        if optimizer.argument("{name}").state == "absent":
            yield codemod.finding(optimizer.site, "it has no {name}")


@codemod.rewrite
def rewrite(finding, edit):
    edit.argument(finding.site, "{name}", "{value}")
'''

# by name, in the order in which the pipeline runs them; the second is broken, and claims not to be
PACK = {
    "one_kernel_each": ("foreach", "False", "EQUIVALENT", (1.0, 1.1)),
    "some_decay": ("weight_decay", "0.3", "EQUIVALENT", (1.0, 1.5)),
    "told_direction": ("maximize", "False", "EXACT", None),
}
SELECTED = ("--select", ",".join(name.replace("_", "-") for name in PACK))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """A project with the training, and the pack installed as a package would be."""
    site = tmp_path / "site"
    pack = site / "pack_of_three"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text("")
    for module, (name, value, risk, gain) in PACK.items():
        claim = None if gain is None else f"Gain({gain[0]}, {gain[1]}, 'somewhere')"
        (pack / f"{module}.py").write_text(CODEMOD.format(name=name, value=value, risk=risk, gain=claim))
    record = site / "pack_of_three-1.dist-info"
    record.mkdir()
    (record / "entry_points.txt").write_text("[turbofix.codemods]\npack_of_three = pack_of_three\n")
    monkeypatch.syspath_prepend(str(site))
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAINING)
    return runner(project, monkeypatch, capfdbinary)


def test_the_broken_one_of_three_is_dropped_by_name(run: Run, tmp_path: Path) -> None:
    ran = run("verify", *SELECTED, "--output-format", "json", "train.py")
    answer: dict[str, Any] = json.loads(ran.out)
    assert (ran.code, answer["verdict"]) == (0, "pass"), answer["reason"]
    assert {one["codemod"]: one["verdict"] for one in answer["codemods"]} == {
        "one-kernel-each": "kept",
        "some-decay": "dropped",
        "told-direction": "kept",
    }
    assert "the weight decay is 0.3 instead of 0" in answer["codemods"][1]["reason"]
    assert answer["reason"].endswith("; some-decay was left out")
    assert (tmp_path / "project" / "train.py").read_text() == TRAINING


def test_what_is_written_is_what_the_runs_bear_out(run: Run, tmp_path: Path) -> None:
    ran = run("apply", *SELECTED, "--write", "--verify", "train.py")
    assert ran.code == 0, ran.err
    optimizer = "SGD(model.parameters(), lr=0.1, foreach=False, maximize=False)"
    assert (tmp_path / "project" / "train.py").read_text() == TRAINING.replace(
        "SGD(model.parameters(), lr=0.1)", optimizer
    )
    assert "- dropped    some-decay" in ran.out and "+ kept       told-direction" in ran.out


# The clock of this training is its own, so that its speed is the same on every machine: a step takes as long as some
# arguments of the optimizer make it take.
TIMED = (
    "import time\n\nnow = 0.0\ntime.perf_counter = lambda: now\n"
    + TRAINING.replace("    optimizer.step()\n", "    optimizer.step()\n    now += PAUSE\n").replace(
        "range(25)", "range(200)"
    )
    + "    if step % 47 == 0:\n        data = data.roll(48, 0)\n"
)


@pytest.fixture
def on_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU were the device that the rewrite is for; forked, since it need not be cold."""
    started = Child.start
    monkeypatch.setattr(speed, "is_measured", lambda *, cuda: True)
    monkeypatch.setattr(speed.Timed, "on_gpu", True)
    monkeypatch.setattr(Child, "start", lambda self: None if self.torch else started(self))


@pytest.mark.usefixtures("on_target")
def test_what_brings_nothing_on_the_target_is_dropped_and_not_written(run: Run, tmp_path: Path) -> None:
    pause = "(0.01 if optimizer.defaults['foreach'] is None else 0.005)"
    script = tmp_path / "project" / "train.py"
    script.write_text(TIMED.replace("PAUSE", pause))
    ran = run("verify", *SELECTED, "--output-format", "json", "train.py")
    answer: dict[str, Any] = json.loads(ran.out)
    assert (ran.code, answer["verdict"]) == (0, "pass"), answer["reason"]
    assert answer["speedup"]["median"] == pytest.approx(2.0)
    kernels, decay, direction = answer["codemods"]
    assert kernels["verdict"] == "kept" and kernels["speedup"] == pytest.approx(2.0)
    assert decay["verdict"] == "dropped" and decay["speedup"] is None
    # it claims no gain, and so need not bring any
    assert direction["verdict"] == "kept" and direction["speedup"] is None

    script.write_text(TIMED.replace("PAUSE", "0.01"))
    ran = run("apply", *SELECTED, "--write", "--verify", "train.py")
    assert ran.code == 0, ran.err
    assert "- dropped    one-kernel-each" in ran.out and "it brings nothing beyond the noise: 1×" in " ".join(
        ran.out.split()
    )
    assert "SGD(model.parameters(), lr=0.1, maximize=False)" in script.read_text()


def test_a_run_on_a_cpu_drops_nothing_for_its_speed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "project" / "train.py").write_text(TIMED.replace("PAUSE", "0.01"))
    ran = run("verify", *SELECTED, "--device", "cpu", "--output-format", "json", "train.py")
    answer = json.loads(ran.out)
    assert (answer["verdict"], answer["speedup"]) == ("pass", None)
    assert answer["codemods"][0]["verdict"] == "kept" and answer["codemods"][0]["speedup"] is None


EVALUATING = """\
import time

now = 0.0
time.perf_counter = lambda: now

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.randn(48, 4)
loader = DataLoader(TensorDataset(data), batch_size=16, shuffle=True)
held = DataLoader(TensorDataset(data), batch_size=48)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    return sum(model(x).sum().item() for (x,) in held)


for epoch in range(40):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now += 0.01
    evaluate()
"""


@pytest.mark.usefixtures("on_target")
def test_the_samples_of_an_evaluation_are_none_of_the_training_s(run: Run, tmp_path: Path) -> None:
    """Else a program whose evaluation builds graphs would seem to train faster than one whose does not."""
    folder = tmp_path / "project"
    (folder / "train.py").write_text(EVALUATING)
    (folder / "candidate.py").write_text(EVALUATING.replace("def evaluate", "@torch.no_grad()\ndef evaluate"))
    answer = json.loads(run("verify", "--repeats", "1", "--output-format", "json", "train.py", "candidate.py").out)
    assert answer["verdict"] == "pass", answer["reason"]
    speeds = [answer[program]["samples_per_second"] for program in ("baseline", "candidate")]
    assert speeds == [pytest.approx(1600), pytest.approx(1600)]
