"""A mistake of torch's compiler that no loss shows is caught, where the installed torch makes it.

torch 2.13 on a CPU: in 16 bits, the gradient behind a nearest upsampling of few channels comes out as zero. Where a
torch does not do that, the compiled program must pass.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import warm

from turbofix.findings import Risk
from turbofix.verify import Options, Request, verify
from turbofix.verify.request import Stage
from turbofix.verify.runner import Child

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

# what this processor can do is known: the compiler need not try it out with programs, which takes a quarter of the time
NETWORK = """
import copy
import torch
import torch._inductor.config
from torch import nn

torch.manual_seed(0)
torch._inductor.config.cpp.vec_isa_ok = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(8, 8, 4, 2, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x):
        return self.up(self.down(x))


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


def test_gradients_that_the_compiler_loses_are_missed(
    tmp_path: Path, kept_interpreters: warm.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what is compiled by hand is what the verification compiles, and compiling is slow
    compiled_by_hand = tmp_path / "compiled"
    told = kept_interpreters.told(BY_HAND, tmp_path, 300, TORCHINDUCTOR_CACHE_DIR=str(compiled_by_hand))
    lost = told == "lost\n"
    start = Child.start

    def start_with_it(child: Child) -> None:
        shutil.copytree(compiled_by_hand, Path(child._environment()["TORCHINDUCTOR_CACHE_DIR"]))
        start(child)

    monkeypatch.setattr(Child, "start", start_with_it)
    project = tmp_path / "project"
    project.mkdir()
    script = project / "train.py"
    script.write_text(TRAINING)
    compiled = TRAINING.replace("model = Net()", "model = Net()\nmodel.compile()").encode()
    stage = Stage(None, Risk.EQUIVALENT, {script: compiled})
    found = verify(Request(script, stages=(stage,), options=Options(timeout=300.0)))
    assert found.verdict == ("fail" if lost else "pass"), found.reason
    if lost:
        assert "`down.weight` and 1 more has a gradient of zero" in found.reason
