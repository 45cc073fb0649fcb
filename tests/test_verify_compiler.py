"""A mistake of torch's compiler that no loss shows is caught, where the installed torch makes it.

torch 2.13 on a CPU: in 16 bits, the gradient behind a nearest upsampling of few channels comes out as zero. Where a
torch does not do that, the compiled program must pass.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from turbofix.findings import Risk
from turbofix.verify import Options, Request, verify
from turbofix.verify.request import Stage

pytest.importorskip("torch")

NETWORK = """
import copy
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(8, 8, 4, 2, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.out(self.up(self.down(x)))


model = Net()
"""

TRAINING = (
    NETWORK
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(96, 8, 16, 16))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)

BY_HAND = (
    NETWORK
    + """
x = torch.randn(4, 8, 16, 16)
gradients = []
for net in (model, copy.deepcopy(model)):
    if gradients:
        net.compile()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(x).float().square().mean()
    loss.backward()
    gradients.append(net.down.weight.grad)
right, compiled = gradients
print("lost" if right.abs().max() > 0 and compiled.abs().max() == 0 else "there")
"""
)


def test_gradients_that_the_compiler_loses_are_missed(tmp_path: Path) -> None:
    by_hand = subprocess.run([sys.executable, "-c", BY_HAND], capture_output=True, text=True, check=True, timeout=300)
    lost = by_hand.stdout.strip() == "lost"
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    compiled = TRAINING.replace("model = Net()", "model = Net()\nmodel.compile()").encode()
    stage = Stage(None, Risk.EQUIVALENT, {script: compiled})
    found = verify(Request(script, stages=(stage,), options=Options(timeout=300.0)))
    assert found.verdict == ("fail" if lost else "pass"), found.reason
    if lost:
        assert "`down.weight` and 1 more has a gradient of zero" in found.reason
