"""Where defer-item leaves a number that is kept in rows, in meters, or by the callers of a function, and reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import case
from memory import ENTRY, ROOT, MemoryWorkspace
from test_defer_item_exact import output

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.engine.pipeline import Trust
from turbofix.engine.reports import Rewriting
from turbofix.findings import Risk
from turbofix.training.model import Target

LOOP = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for step in range(20):
    loss = model(torch.randn(32, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append({row})
{look}
"""

METERS = """\
import torch
from torch import nn


class Meter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0
        self.average = 0.0

    def update(self, value, count):
        self.sum += value * count
        self.count += count
        self.average = self.sum / self.count


def losses(prediction):
    loss = prediction.square().mean()
    far = prediction.abs().max()
    return loss, {"far": far.item()}


def trained(model, optimizer, batch):
    loss, others = losses(model(batch))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()} | others


def evaluated(model, batch):
    loss, others = losses(model(batch))
    return {"loss": loss.item()} | others


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    for epoch in range(3):
        meters = {"loss": Meter(), "far": Meter()}
        for step in range(10):
            for name, value in trained(model, optimizer, torch.randn(32, 8, device=device)).items():
                meters[name].update(value, 32)
        print(f"{epoch} {meters['loss'].average:.6f} {meters['far'].average:.6f}")
        meters = {"loss": Meter(), "far": Meter()}
        with torch.no_grad():
            for step in range(4):
                for name, value in evaluated(model, torch.randn(32, 8, device=device)).items():
                    meters[name].update(value, 32)
        print(f"{epoch} {meters['loss'].average:.6f} {meters['far'].average:.6f}")


main()
"""

LOGGER = """\
from collections import deque


class Smoothed:
    def __init__(self):
        self.window = deque(maxlen=20)
        self.total = 0.0

    def update(self, value):
        self.window.append(value)
        self.total += value


class Logger:
    def __init__(self):
        self.total = 0.0

    def update(self, value):
        assert isinstance(value, (float, int))
        self.total += value
"""

AGENT = """\
import torch
from torch import nn


class Agent:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = nn.Linear(8, 1).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)

    def update(self):
        loss = self.network(torch.randn(32, 8, device=self.device)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
"""
TRAINING = """\
import torch
from agent import Agent

torch.manual_seed(0)
agent = Agent()
total = 0.0
for step in range(100):
    total += agent.update()
print(total / 100)
"""
OTHER = "from agent import Agent\n\nagent = Agent()\n"


def applied(text: str, **others: str) -> Rewriting:
    """What defer-item makes of a program, with all that is likely."""
    chosen = [each for each in registry.load() if each.name == "defer-item"]
    workspace = MemoryWorkspace.of(text, **others)
    return pipeline.apply(ENTRY, workspace, chosen, Target(), Risk.EQUIVALENT, trust=Trust(likely=True))


def runs_alike(text: str, done: Rewriting, folder: Path, monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    before = {"train.py": text, **{f"{name}.py": body for name, body in others.items()}}
    after = before | {path.name: each for path, each in done.texts.items()}
    assert after != before
    printed = output(before, folder, monkeypatch)
    assert printed
    assert output(after, folder, monkeypatch) == printed


@pytest.mark.parametrize(
    ("row", "again"),
    [
        ('{"step": step, "loss": loss.item()}', '[{**row, "loss": float(row["loss"])} for row in history]'),
        ("(step, loss.item())", "[(row[0], float(row[1])) for row in history]"),
        ("[loss.item(), step]", "[[float(row[0]), row[1]] for row in history]"),
    ],
)
def test_rows_are_made_numbers_again_where_they_are_looked_at(
    row: str, again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = LOOP.format(row=row, look="if history:\n    print(history, len(history))")
    done = applied(text)
    lines = done.texts[ENTRY].splitlines()
    assert lines[-2:] == [f"    history[:] = {again}", "    print(history, len(history))"]
    assert lines[-3] == "if history:"  # which asks for no number
    runs_alike(text, done, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "row", ['{"loss": loss.item()} if step else {"loss": 0.0, "first": True}', "{loss.item(), step}"]
)
def test_rows_that_differ_stay(row: str) -> None:
    assert not applied(LOOP.format(row=row, look="print(history)")).texts


def test_what_two_loops_do_in_each_step_reads_no_number_for_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = applied(METERS)
    text = done.texts[ENTRY]
    assert '{"loss": loss.detach().double()} | others' in text
    assert "self.average = self.sum / self.count" in text
    runs_alike(METERS, done, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("use", "offered"),
    [
        ("agent.update()", True),
        ('print(f"loss {agent.update():.3f}")', True),
        ("loss = agent.update()\nprint(loss)", True),
        ("loss = agent.update()\nassert loss < 3", False),
        ("losses = [agent.update()]", False),
        ("step = agent.update", False),
    ],
)
def test_another_script_has_a_say_where_it_looks_at_what_the_function_returns(
    use: str, *, offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = applied(TRAINING, agent=AGENT, other=f"{OTHER}{use}\n")
    assert ((ROOT / "agent.py") in done.texts) is offered
    if offered:
        runs_alike(TRAINING, done, tmp_path, monkeypatch, agent=AGENT)


@pytest.mark.parametrize(
    ("use", "offered"),
    [
        ("agent.update()", True),
        ("unread = agent.update()", True),
        ("log(agent.update())", False),
        ("update = agent.update\n    update()", False),
    ],
)
def test_what_a_function_returns_to_nobody_stays_on_the_gpu(
    use: str, *, offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TRAINING.replace("total += agent.update()", use).replace("total / 100", "agent.network.weight.sum().item()")
    done = applied(text.replace("import torch\n", "import torch\nfrom math import log\n"), agent=AGENT)
    assert ((ROOT / "agent.py") in done.texts) is offered
    if offered:
        assert "return loss.detach()\n" in done.texts[ROOT / "agent.py"]
        runs_alike(text, done, tmp_path, monkeypatch, agent=AGENT)


@pytest.mark.parametrize("kept", ["cpu().numpy().flatten()", "detach().cpu().squeeze().numpy().ravel()"])
def test_what_an_evaluation_copies_is_shaped_behind_it(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = f"""\
    found = []
    with torch.no_grad():
        for each in range(4):
            found.append(model(torch.randn(32, 8, device=device)).{kept})
    print(np.concatenate(found).sum())
"""
    text = f"import numpy as np\n{LOOP.format(row='0', look=evaluation)}"
    done = applied(text)
    assert "found.append(model(torch.randn(32, 8, device=device)))" in done.texts[ENTRY]
    assert f"[value.{kept.removeprefix('detach().')} for value in found]" in done.texts[ENTRY]
    runs_alike(text, done, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("added", "kept", "again"),
    [
        (
            "found += OUT.flatten().tolist()",
            "found.append(OUT.flatten())",
            "[row for value in found for row in value.tolist()]",
        ),
        ("found += [OUT.cpu()]", "found += [OUT]", "[value.cpu() for value in found]"),
        (
            "out = OUT.cpu().tolist()\n            found += out",
            "out = OUT\n            found.append(out)",
            "[row for value in found for row in value.cpu().tolist()]",
        ),
    ],
)
def test_what_an_evaluation_adds_to_a_list(
    added: str, kept: str, again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output_of = "model(torch.randn(32, 8, device=device))"
    evaluation = f"""\
    found = []
    with torch.no_grad():
        for each in range(4):
            {added.replace("OUT", output_of)}
    print(len(found), [float(each.sum()) if hasattr(each, "sum") else each for each in found])
"""
    text = LOOP.format(row="0", look=evaluation)
    done = applied(text)
    assert f"            {kept.replace('OUT', output_of)}\n" in done.texts[ENTRY]
    assert f"found = {again}\n" in done.texts[ENTRY]
    runs_alike(text, done, tmp_path, monkeypatch)


def test_an_array_is_not_added_to_a_list_but_to_what_is_in_it() -> None:
    evaluation = """\
    found = []
    with torch.no_grad():
        for each in range(4):
            found += model(torch.randn(32, 8, device=device)).cpu().numpy()
    print(found)
"""
    assert not applied(LOOP.format(row="0", look=evaluation)).texts


@pytest.mark.parametrize("kind", ["Smoothed", "Logger"])
def test_what_asks_for_a_number_or_is_not_followed_gets_one(kind: str) -> None:
    text = LOOP.replace("history = []", f"from logger import {kind}\n\nlogger = {kind}()\nothers = {kind}()")
    text = text.replace("history.append({row})", "logger.update(loss.item())").replace("{look}", "print(logger.total)")
    text += "with torch.no_grad():\n    for step in range(9):\n"
    text += "        others.update(model(torch.randn(8, 8, device=device)).mean().item())\n"
    assert not applied(text, logger=LOGGER).texts
    followed = LOGGER.replace("deque(maxlen=20)", "[]").replace("(float, int)", "object")
    assert applied(text, logger=followed).texts


LIGHTNING = case("fused_optimizer/lightning_clipped").text


@pytest.mark.parametrize(
    ("logged", "now"),
    [
        ("loss.item()", "loss"),
        ("loss.detach().cpu().item()", "loss.detach()"),
        ("loss.cpu().item(), sync_dist=True", "loss, sync_dist=True"),
        ("(loss + torch.zeros(1)[0]).cpu().item(), sync_dist=True", None),
        ("torch.zeros(1).cpu().item()", None),
    ],
)
def test_lightning_is_given_the_tensor_that_it_logs(logged: str, now: str | None) -> None:
    done = applied(LIGHTNING.replace('self.log("loss", loss)', f'self.log("loss", {logged})'))
    assert (done.texts.get(ENTRY) or "").count(f'self.log("loss", {now})') == (now is not None)
    assert bool(done.texts) is (now is not None)
