"""Batches that are neither small nor large grow by a recipe: a run tells whether they fill the GPU."""

from __future__ import annotations

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

PICTURES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

shape = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
photos = datasets.ImageFolder("photos", shape)
loader = DataLoader(photos, batch_size={size}, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.Flatten(), nn.LazyLinear(10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("size", "becomes"), [(32, "batch_size=128"), (63, "batch_size=252"), (64, None), (512, None)])
def test_a_batch_that_may_fill_the_gpu(size: int, becomes: str | None) -> None:
    texts = {ENTRY: PICTURES.format(size=size)}
    chosen = [each for each in registry.load() if each.name == "larger-batch"]
    trust = pipeline.Trust(likely=True)
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace(texts), chosen, Target(), Risk.RECIPE, trust=trust)
    assert not rewriting.report.notes
    # nothing is claimed to be too few
    assert all("only where a sample" not in each.message for each in rewriting.report.findings)
    written = rewriting.texts.get(ENTRY, "")
    assert (becomes in written and "lr=0.4" in written) if becomes else not written
    # applied twice it changes nothing more
    again = pipeline.apply(
        ENTRY, MemoryWorkspace({**texts, **rewriting.texts}), chosen, Target(), Risk.RECIPE, trust=trust
    )
    assert not again.texts


def test_a_learning_rate_of_two_optimizers_grows_once() -> None:
    """As the square root, which serves both: SGD alone would take it in proportion."""
    text = PICTURES.format(size=32).replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", CHOSEN)
    chosen = [each for each in registry.load() if each.name == "larger-batch"]
    report = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), chosen, Target())
    (found,) = report.findings
    assert found.fixable
    assert found.why_not is None
    trust = pipeline.Trust(likely=True)
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: text}), chosen, Target(), Risk.RECIPE, trust=trust)
    assert "batch_size=128" in rewriting.texts[ENTRY]
    assert "rate = 0.2\n" in rewriting.texts[ENTRY]


CHOSEN = """\
import sys
rate = 0.1
if "--adam" in sys.argv:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)"""


def said(text: str) -> list[tuple[str, str | None]]:
    chosen = [each for each in registry.load() if each.name == "larger-batch"]
    found = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), chosen, Target()).findings
    return [(each.message, each.why_not) for each in found]


def test_of_what_gives_whole_pictures_a_run_tells_as_well() -> None:
    whole = PICTURES.format(size=16).replace("nn.Flatten(), nn.LazyLinear(10)", "nn.ConvTranspose2d(256, 3, 5)")
    ((message, why_not),) = said(whole.replace("cross_entropy(model(x.cuda()), y", "mse_loss(model(x.cuda()), x"))
    assert message == "`loader` takes batches of 16 samples"
    assert str(why_not).startswith("a run tells whether they fill the GPU")


@pytest.mark.parametrize(("size", "few"), [(32, "only where a sample"), (256, "which may not fill a GPU")])
def test_a_size_that_has_a_name_is_told_where_nobody_sees_what_it_is_for(size: int, few: str) -> None:
    unseen = f"from loading import feed\n\nbatch_size = {size}\nloader = feed(batch_size)"
    made = "loader = DataLoader(photos, batch_size=16, shuffle=True)"
    ((message, why_not),) = said(PICTURES.format(size=16).replace(made, unseen))
    assert message.startswith(f"line 10 of train.py speaks of batches of {size} samples, ")
    assert few in message
    assert str(why_not).startswith("who makes them was not followed")
