"""An index of the host is copied to the GPU wherever it indexes what lies there: once is enough."""

from __future__ import annotations

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

TRAINING = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, SubsetRandomSampler

torch.manual_seed(0)
np.random.seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
states = torch.randn(64, 8, device=device)
returns = torch.randn(64, 4).to(device)
weights = np.arange(64.0)
losses = []


def update(chosen):
    pass


for epoch in range(3):
    order, drawn = np.random.permutation(64), torch.randperm(64)
    {loop}
        loss = nn.functional.mse_loss(model(states[chosen]), {second})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
SLICED = "for start in range(0, 64, 16):\n        chosen = {}[start : start + 16]"
SAMPLED = "for chosen in BatchSampler(SubsetRandomSampler(range(64)), 16, False):"
COPIED = "\n        chosen = torch.as_tensor({}, device=states.device)"


def rewritten(text: str) -> str:
    (codemod,) = (each for each in registry.load() if each.name == "device-tensors")
    made = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: text}), [codemod], Target(), Risk.EXACT)
    assert not made.report.notes
    return made.texts.get(ENTRY, text)


@pytest.mark.parametrize(
    ("loop", "becomes"),
    [
        (SLICED.format("order"), COPIED.format("order[start : start + 16]")),
        (SLICED.format("drawn"), COPIED.format("drawn[start : start + 16]")),
        (SAMPLED, COPIED.format("chosen")),
        (
            "for _ in range(4):\n        chosen = np.random.choice(64, 16)",
            COPIED.format("np.random.choice(64, 16)"),
        ),
    ],
    ids=["numpy", "host", "sampler", "choice"],
)
@pytest.mark.parametrize("second", ["returns[chosen, :]", "returns[chosen] * len(chosen)"])
def test_an_index_is_copied_once(loop: str, becomes: str, second: str) -> None:
    text = TRAINING.format(loop=loop, second=second)
    after = rewritten(text)
    assert becomes in after
    assert len(after.splitlines()) - len(text.splitlines()) == (loop == SAMPLED)
    before: dict[str, list[float]] = {}
    exec(compile(text, "train.py", "exec"), before)
    then: dict[str, list[float]] = {}
    exec(compile(after, "train.py", "exec"), then)
    assert before["losses"] == then["losses"]


@pytest.mark.parametrize(
    ("loop", "second"),
    [
        (SLICED.format("order"), "returns[:16]"),  # copied once as it is
        (SLICED.format("order"), "returns[chosen] * weights[chosen].mean()"),  # numpy takes no index on the GPU
        (SLICED.format("order"), "returns[chosen] * int(chosen.max())"),
        (SAMPLED, "returns[chosen] * len(set(chosen))"),
        (SAMPLED, "returns[chosen] if update(chosen) is None else 0"),
        ("for _ in range(4):\n        chosen = np.random.randint(64)", "returns[chosen]"),  # one number
        ("for chosen in SubsetRandomSampler(range(64)):", "returns[chosen]"),
        (SLICED.format("drawn.to(device)"), "returns[chosen]"),
    ],
)
def test_what_is_no_index_alone_is_left(loop: str, second: str) -> None:
    text = TRAINING.format(loop=loop, second=second)
    assert rewritten(text) == text


WHOLE = "for chosen in torch.arange(64, device=device).split(16):\n        n = len(chosen)"


@pytest.mark.parametrize(
    ("made", "becomes"),
    [
        ("torch.arange(n)", "torch.arange(n, device=returns.device)"),
        ("torch.arange(n)[:, None]", "torch.arange(n, device=returns.device)[:, None]"),
        ("torch.arange(0, n).unsqueeze(1).long()", "torch.arange(0, n, device=returns.device).unsqueeze(1).long()"),
        ("torch.ones(64, dtype=torch.bool)", "torch.ones(64, dtype=torch.bool, device=returns.device)"),
        ("torch.arange(n, device=device)", None),
        ("torch.arange(n).tolist()", None),
        ("torch.arange(n).min()", None),
    ],
)
def test_an_index_that_is_made_in_its_place_is_made_on_the_device(made: str, becomes: str | None) -> None:
    text = TRAINING.format(loop=WHOLE, second=f"returns[chosen] * returns[{made}, 0].mean()")
    after = rewritten(text)
    assert after.split() == text.replace(made, becomes or made).split()  # (a long line is broken)
    before: dict[str, list[float]] = {}
    exec(compile(text, "train.py", "exec"), before)
    then: dict[str, list[float]] = {}
    exec(compile(after, "train.py", "exec"), then)
    assert before["losses"] == then["losses"]


def test_what_an_index_draws_there_is_another_draw() -> None:
    text = TRAINING.format(loop=WHOLE, second="returns[torch.randint(0, 4, (n,))]")
    (codemod,) = (each for each in registry.load() if each.name == "device-tensors")
    (found,) = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), [codemod], Target()).findings
    assert (found.fixable, found.risk) == (True, Risk.EQUIVALENT)
    assert rewritten(text) == text
