"""An option that chooses the GPU switches 16 bits, too: what is written is found there, not offered again."""

from __future__ import annotations

from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

SCRIPT = """\
import argparse

import torch
from torch import nn

from corpus import batches

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", action="store_true")
args = parser.parse_args()
model = nn.Sequential(nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.Flatten(), nn.Linear(65536, 10))
if args.gpu:
    model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    if args.gpu:
        x, y = x.cuda(), y.cuda()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def test_the_option_for_the_gpu_switches_16_bits() -> None:
    chosen = [each for each in registry.load() if each.name == "autocast"]
    first = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: SCRIPT}), chosen, Target(), Risk.EQUIVALENT)
    assert not first.report.notes
    assert "enabled=args.gpu)" in first.texts[ENTRY]
    report = pipeline.analyze(ENTRY, MemoryWorkspace(dict(first.texts)), chosen, Target())
    assert not [each for each in report.findings if each.fixable]
    assert [each.message for each in report.in_place] == ["the forward pass runs under autocast"]
