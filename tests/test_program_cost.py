"""What an analysis costs grows with the program, not with its square: counted in calls, so that no clock decides."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent
from types import FrameType

import pytest

from turbofix import pipeline
from turbofix.nodes import parse
from turbofix.program.model import Target
from turbofix.program.steps import analyse

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
