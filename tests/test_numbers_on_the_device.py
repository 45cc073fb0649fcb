"""``torch.tensor(0.5, device=device)`` copies a number to the GPU; a kernel of ``torch.full`` writes it there."""

from __future__ import annotations

import ast

import pytest
import torch
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

TRAINING = """\
import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(32, 4).to(device)
data = torch.utils.data.TensorDataset(torch.randn(5000, 32), torch.randint(0, 4, (5000,)))
loader = torch.utils.data.DataLoader(data, batch_size=256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
weights = {{"a": 2.0}}
table = np.arange(30.0)
largest = max(table) * 2
scale = torch.tensor(3.0, device=device)  # once
for epoch in range(30):
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        number = {made}
        loss = nn.functional.cross_entropy(model(x), y) * number.sum() * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "becomes"),
    [
        ("torch.tensor(1.0, device=device)", "torch.full((), 1.0, device=device)"),
        ("torch.tensor([-2], device=x.device)", "torch.full((1,), -2, device=x.device)"),
        ("torch.as_tensor(len(y), device=device)", "torch.full((), len(y), device=device)"),
        ("torch.tensor(True, device=device)", "torch.full((), True, device=device)"),
        (
            "torch.tensor(step // 3, dtype=torch.float32, device=device)",
            "torch.full((), step // 3, dtype=torch.float32, device=device)",
        ),
        (
            'torch.tensor(float(weights.get("a", 1.0)), device=device)',
            'torch.full((), float(weights.get("a", 1.0)), device=device)',
        ),
        # what may be more than a number, or a number of numpy's, which has another type
        ("torch.tensor(data.scale, device=device)", None),
        ("torch.tensor(max(table), device=device)", None),
        ("torch.tensor(largest, device=device)", None),
        ("torch.tensor(sum([1, len(y)]), device=device)", "torch.full((), sum([1, len(y)]), device=device)"),
        ("torch.tensor([1.0, 2.0], device=device)", None),
        ("torch.tensor(1.0, device=device, requires_grad=True)", None),
    ],
)
def test_a_number_is_written_on_the_device(made: str, becomes: str | None) -> None:
    text = TRAINING.format(made=made)
    (codemod,) = (each for each in registry.load() if each.name == "device-tensors")
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: text}), [codemod], Target(), Risk.EXACT)
    assert rewriting.texts.get(ENTRY, text) == text.replace(made, becomes or made)
    if becomes is not None:
        x = torch.ones(4)
        names = {"torch": torch, "device": "cpu", "x": x, "y": x, "step": 7, "weights": {"a": 2.5}}
        before, after = (eval(compile(ast.parse(each, mode="eval"), "", "eval"), names) for each in (made, becomes))
        assert (before.dtype, before.shape, before.tolist()) == (after.dtype, after.shape, after.tolist())
