"""What the probe records of a training is what the training itself would have logged, bit for bit, in every style.

Each script writes its losses down by hand. It is run as it is, with no probe and no turbofix, and again watched: the
losses that were recorded, those that were logged beside the recording and those of the plain run must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import walls
import warm

from turbofix.findings import Risk
from turbofix.verify import Inconclusive, Options, Request, Stage, verdict
from turbofix.verify.original import Original
from turbofix.verify.runner import Child

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

# The seeds are the script's own and nothing is drawn in the loop, so that neutralising chance changes nothing.
START = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)
x = torch.randn(36, 6)
y = x[:, :2].argmax(1)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
loader = DataLoader(TensorDataset(x, y), batch_size=8)
log = lambda *losses: print("logged", *[loss.item().hex() for loss in losses])
"""

STYLES: dict[str, str] = {
    "flat": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        log(loss)
""",
    "functions": """
def train_step(model, batch, criterion, optimizer):
    a, b = batch
    loss = criterion(model(a), b)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()

def train(epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        for batch in loader:
            log(train_step(model, batch, criterion, optimizer))

if __name__ == "__main__":
    train(epochs=5)
""",
    "class": """
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self, a, b):
        self.loss = nn.functional.cross_entropy(self.model(a), b)
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def fit(self):
        for self.epoch in range(5):
            for a, b in self.loader:
                self.step(a, b)
                log(self.loss)
            self.schedule.step()

Trainer(model, loader).fit()
""",
    # four micro-batches and then the one that is left over
    "accumulation with scaler": """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(12):
    parts = []
    for i, (a, b) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(a), b)
        loss = loss / 4
        scaler.scale(loss).backward()
        parts.append(loss)
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            log(*parts)
            parts = []
""",
    "two networks": """
maker, judge = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
of_maker, of_judge = torch.optim.Adam(maker.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
for epoch in range(5):
    for a, _ in loader:
        judge.zero_grad()
        real = bce(judge(a), torch.ones(len(a), 1))
        real.backward()
        made = maker(a[:, :3])
        fake = bce(judge(made.detach()), torch.zeros(len(a), 1))
        fake.backward()
        of_judge.step()
        log(real, fake)
        maker.zero_grad()
        fooled = bce(judge(made), torch.ones(len(a), 1))
        fooled.backward()
        of_maker.step()
        log(fooled)
""",
    # the loss of a step is that of its first evaluation
    "closure": """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
for step in range(20):
    found = []
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        found.append(loss)
        return loss
    optimizer.step(closure)
    log(found[0])
""",
    "output objects and a hidden backward": """
from collections import OrderedDict

class Output(OrderedDict):
    __getattr__ = OrderedDict.__getitem__

class ForClassification(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, inputs=None, labels=None):
        logits = self.body(inputs)
        return Output(loss=nn.functional.cross_entropy(logits, labels), logits=logits)

class Accelerator:
    def prepare(self, *things):
        return things

    def backward(self, loss, **keywords):
        (loss / 2).backward(**keywords)

accelerator = Accelerator()
collate = lambda rows: {"inputs": torch.stack([a for a, _ in rows]), "labels": torch.stack([b for _, b in rows])}
model = ForClassification(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 30))
loader = DataLoader(TensorDataset(x, y), batch_size=8, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(5):
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        log(outputs.loss / 2)
""",
    "try and finally": """
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
try:
    for epoch in range(5):
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            log(loss)
finally:
    torch.save(model.state_dict(), "last.pt")
    print("saved")
""",
    # what would end the run by an exception, this script would swallow
    "bare except": """
optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
for epoch in range(5):
    for a, b in loader:
        try:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            log(loss)
        except:
            print("skipped a batch")
""",
}


@contextmanager
def child_of(script: Path, seed: int = 0) -> Iterator[Original]:
    """The script, ready to be watched."""
    with walls.scratch_for(script) as scratch:
        options = Options(timeout=120, seed=seed)
        # held to every bit, so that dropout stays on
        request = Request(script, (), (Stage(None, Risk.EXACT, {}),), options)
        child = Child(scratch, script, (), script.parent, options)
        try:
            child.start()
            yield Original(child, scratch, request, remap=False, tell=lambda progress: None)
        finally:
            child.close()


def logged(lines: list[str]) -> list[list[str]]:
    return [line.split()[1:] for line in lines if line.startswith("logged ")]


@pytest.mark.parametrize("style", STYLES)
def test_the_recorded_losses_are_those_of_the_script_itself(
    tmp_path: Path, style: str, kept_interpreters: warm.Kept
) -> None:
    script = tmp_path / "train.py"
    script.write_text(START + STYLES[style])
    with child_of(script) as original:
        original.watch()
        log: Any = original.log
    assert len(log["rows"]) >= 20
    recorded = [[loss.hex() for loss in row["losses"]] for row in log["rows"]]
    beside = logged([text for _, text in log["lines"]])
    # the run is stopped inside its last step, before that step is logged
    assert recorded[: len(beside)] == beside
    assert len(beside) >= len(recorded) - 1
    plain = kept_interpreters.run(["train.py"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert logged(plain.stdout.splitlines())[: len(recorded)] == recorded
    assert "skipped a batch" not in plain.stdout


AUGMENTED = """
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __len__(self):
        return 44

    def __getitem__(self, index):
        drawn = torch.rand(4) + random.random() + torch.from_numpy(np.random.rand(4)).float()
        return torch.full((4,), index / 44) + drawn, index % 2


loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a + torch.randn_like(a)), b).backward()
        optimizer.step()
"""


def test_augmentation_in_persistent_workers_is_equal_to_itself(tmp_path: Path) -> None:
    """Two runs are the same bit for bit, losses, gradients and weights; another seed gives others: chance is there."""
    script = tmp_path / "train.py"
    script.write_text(AUGMENTED)
    losses = {}
    for seed in (0, 1):
        with child_of(script, seed) as original:
            original.watch()
            original.demand_repeatable()
            assert original.log["events"]["workers"] == 2
            assert original.log["epochs_ended"] >= 2
            again = original.compare({}, exact=True, phase="again")
            assert (again.difference, again.unverifiable) == (None, None)
            assert verdict.first_inequality(original.log, again.log) is None
            assert len(again.log["rows"]) == len(original.log["rows"]) >= 20
            losses[seed] = [row["losses"] for row in original.log["rows"]]
    assert not any(a == b for a, b in zip(*losses.values(), strict=True))
    # the same sample is augmented otherwise in every epoch
    assert losses[0][:6] != losses[0][6:12]


def test_chance_that_no_seed_holds_is_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\n" + AUGMENTED.replace("random.random()", "os.urandom(1)[0] / 255"))
    with child_of(script) as original, pytest.raises(Inconclusive, match="two runs of the script as it is"):
        original.watch()
        original.demand_repeatable()
