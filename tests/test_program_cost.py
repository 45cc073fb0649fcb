"""What an analysis costs grows with the program, not with its square: counted in calls, so that no clock decides."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent
from types import FrameType

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
    entry = Path("/project/train.py")
    text = dedent(HEAD) + "".join(dedent(TRAINING).format(n=number) for number in range(trainings))
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
    assert len(program.steps) == trainings
    return count


def test_it_is_linear_in_the_number_of_trainings() -> None:
    few, many = calls(4), calls(16)
    assert many < 5 * few  # the square would be 16
