"""What an analysis costs grows with the program, not with its square: counted in calls, so that no clock decides."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import FrameType

import pytest

from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.engine import pipeline
from turbofix.findings import Finding, Risk
from turbofix.source.nodes import parse
from turbofix.training import program as steps
from turbofix.training.model import Target, TrainingProgram
from turbofix.training.program import analyse

HEAD = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-every", type=int, default=10)
args = parser.parse_args()
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
"""
TRAINING = """
class Trainer{n}:
    def __init__(self, batch_size):
        self.seen = 0
        self.best{n} = 0.0
        self.model = nn.Linear(8, 1).cuda()
        self.loader = DataLoader(data, batch_size=batch_size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x, y, verbose):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if verbose and self.seen % args.log_every == 0:
            print(self.seen, loss.item())
        self.seen += 1

    def train(self, verbose=True):
        for epoch in range(3):
            for x, y in self.loader:
                if self.best{n} < 1.0:
                    self.step(x.cuda(), y.cuda(), verbose)
            self.best{n} = max(self.best{n}, epoch)


Trainer{n}(batch_size=4).train()
"""


def calls(trainings: int) -> int:
    """How many calls an analysis of a script with so many trainings takes."""
    return calls_of(dedent(HEAD) + "".join(dedent(TRAINING).format(n=number) for number in range(trainings)))


def calls_of(text: str) -> int:
    """How many calls an analysis of a script takes."""
    entry = Path("/project/train.py")
    parse(text)
    count = 0

    def counting(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counting)
    try:
        program = analyse(entry, entry.parent, lambda path: text if path == entry else None, Target())
    finally:
        sys.setprofile(None)
    assert program is not None and program.complete
    assert len(program.steps) == text.count("loss.backward()")
    return count


def test_it_is_linear_in_the_number_of_trainings() -> None:
    few, many = calls(4), calls(16)
    assert many < 5 * few  # the square would be 16


TANGLED = """
import torch
from torch import nn

def train(model, optimizer, scale, share):
    total, weight, rest = 0, 0, 0
    for step in range(100):
        {lines}
        x = torch.randn(8, 8).cuda()
        with torch.autocast("cuda", enabled=total > share):
            loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

net = nn.Linear(8, 1).cuda()
train(net, torch.optim.SGD(net.parameters(), lr=0.1), 2.0, 0.5)
"""


def test_names_that_are_set_from_one_another_again_and_again() -> None:
    def cost(times: int) -> int:
        lines = "total = weight + rest\n{0}weight = rest + total\n{0}rest = total + weight".format(" " * 8)
        return calls_of(TANGLED.replace("{lines}", f"\n{' ' * 8}".join([lines] * times)))

    assert cost(8) < 5 * cost(2), "each way through the assignments was followed apart"


def test_old_programs_are_looked_through_when_enough_have_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what earlier programs have left is never counted one by one: that made each analysis slower than the last."""
    looks: list[int] = []
    monkeypatch.setattr(pipeline, "_left", 0)
    monkeypatch.setattr(pipeline, "_MANY_OBJECTS", 1000)
    monkeypatch.setattr(pipeline.gc, "collect", lambda: looks.append(pipeline._left))
    monkeypatch.setattr(pipeline.gc, "get_freeze_count", lambda: pytest.fail("walks over everything that is frozen"))
    for _ in range(8):
        with pipeline.paused_gc():
            made = [[number] for number in range(300)]
        del made
    assert len(looks) == 1 and 1000 < looks[0] < 1500


def test_many_objects_of_a_class_cost_little_more_than_one() -> None:
    head, training = dedent(HEAD), dedent(TRAINING).format(n=0)
    body = "\n".join(f"        table = table.assign(c{n}=table['c{n}'].values + np.abs(index))" for n in range(40))
    classes = f"""
import numpy as np
import pandas as pd


class Rows(torch.utils.data.Dataset):
    def __init__(self, flag):
        self.flag = flag
        self.rows = pd.read_csv("rows.csv").values

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        table = self.rows[index]
{body}
        return table
"""

    def made(count: int) -> str:
        flags = " else ".join(f"Rows({n}) if args.log_every == {n}" for n in range(count - 1))
        chosen = f"data = {flags} else Rows({count})\n"
        return head + classes + chosen + training

    one, many = calls_of(made(2)), calls_of(made(9))
    assert many < 2.5 * one, "the text of a class is read once, not once for each of its objects"


class Texts:
    """One script as a workspace."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, path: Path) -> str | None:
        return self.text if path == ENTRY else None

    def with_texts(self, texts: Mapping[Path, str]) -> Texts:
        return Texts(texts.get(ENTRY, self.text))

    def root(self, entry: Path) -> Path:
        return entry.parent

    def beside(self, entry: Path) -> list[Path]:
        return [entry]


ENTRY = Path("/project/train.py")


def pinning(name: str, value: str) -> Codemod:
    """A codemod that gives every loader the argument ``pin_memory``, with some value."""
    codemod = Codemod(name, group="data", risk=Risk.EXACT)

    @codemod.find
    def find(program: TrainingProgram) -> Iterator[Finding]:
        for loader in program.loaders:
            if loader.argument("pin_memory").state == "absent":
                yield codemod.finding(loader.site, "it is not pinned")

    @codemod.rewrite
    def rewrite(finding: Finding, edit: Edit) -> None:
        edit.argument(finding.site, "pin_memory", value)

    return codemod


def test_edits_that_collide_are_tried_without_another_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    analyses = 0

    def counting(*arguments: object) -> object:
        nonlocal analyses
        analyses += 1
        return analyse(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "analyse", counting)
    workspace = Texts(dedent(HEAD) + dedent(TRAINING).format(n=0))
    codemods = [pinning("one", "True"), pinning("other", "args.log_every")]
    report = pipeline.analyze(ENTRY, workspace, codemods, Target())
    assert [(each.codemod, each.fixable) for each in report.findings] == [("one", True), ("other", True)]
    assert analyses == 1, "what a rewritten program is, is looked at when it is rewritten"
    analyses = 0
    outcome = pipeline.apply(ENTRY, workspace, codemods, Target(), Risk.EQUIVALENT, report=report)
    assert [stage.codemod for stage in outcome.stages] == ["one"]
    assert analyses == 2
