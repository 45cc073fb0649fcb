"""Through the command line, with a pack of codemods of its own: the broken one of three is found and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

pytest.importorskip("torch")

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
from turbofix.findings import Risk

codemod = Codemod(__name__, group="optimizer", risk=Risk.{risk})


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
    "one_kernel_each": ("foreach", "False", "EQUIVALENT"),
    "some_decay": ("weight_decay", "0.3", "EQUIVALENT"),
    "told_direction": ("maximize", "False", "EXACT"),
}
SELECTED = ("--select", ",".join(name.replace("_", "-") for name in PACK))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """A project with the training, and the pack installed as a package would be."""
    site = tmp_path / "site"
    pack = site / "pack_of_three"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text("")
    for module, (name, value, risk) in PACK.items():
        (pack / f"{module}.py").write_text(CODEMOD.format(name=name, value=value, risk=risk))
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
