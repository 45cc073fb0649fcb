"""Where a message is shown less often, the items of its dict are numbers again, those that are there."""

from __future__ import annotations

from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.engine.pipeline import Trust
from turbofix.findings import Risk
from turbofix.training.model import Target

PROGRAM = """\
import sys

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

strength = float(sys.argv[1])
writer = SummaryWriter()
model = nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
for step in range(10000):
    loss = model(torch.randn(256, 64, device="cuda")).square().mean()
    if strength > 0:
        penalty = strength * model.weight.square().sum()
        loss = loss + penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logs = {"loss": loss.detach().item()}
    if strength > 0:
        logs["penalty"] = penalty.detach().item()
    writer.add_scalars("train", logs, step)
"""


def test_an_item_that_is_set_under_a_test_alone_may_be_missing() -> None:
    chosen = [each for each in registry.load() if each.name in ("throttle-logging", "defer-item")]
    done = pipeline.apply(
        ENTRY, MemoryWorkspace.of(PROGRAM), chosen, Target(), Risk.EQUIVALENT, trust=Trust(likely=True)
    )
    lines = [line.strip() for line in done.texts[ENTRY].splitlines()]
    assert 'logs["loss"] = float(logs["loss"])' in lines
    assert 'logs["penalty"] = float(logs["penalty"])' not in lines
    assert "logs.update({key: float(each) for key, each in logs.items()})" in lines  # those that are there
