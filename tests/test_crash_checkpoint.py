"""A rewritten training that is stopped goes on where it was, and is the same where nothing stops it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest
import warm
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the script needs torch")

TRAINING = """\
import os
import time

import torch
from torch import nn

torch.manual_seed(3)
data = torch.randn(64, 8)
net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4000)
seen, begun = 0, []
for it in range(12_000_000):
    begun.append(it)
    if it == 40 and os.environ.get("STOP") == "error":
        raise RuntimeError("stopped")
    if it == 40 and os.environ.get("STOP") == "wait":
        print("waiting", flush=True)
        time.sleep(60)
    if it == 80:
        break
    loss = net(data[torch.randint(64, (16,))]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    seen += 16
print(it, seen, len(begun), net[0].weight.double().sum().item())
torch.save(net.state_dict(), "net.pt")
"""


def rewritten() -> str:
    codemods = [each for each in registry.load() if each.name == "crash-checkpoint"]
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: TRAINING}), codemods, Target(), Risk.EQUIVALENT)
    return dict(rewriting.texts)[ENTRY]


def run(kept: warm.Kept, folder: Path, text: str, **settings: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text, "utf-8")
    return kept.run(["train.py"], folder, **settings)


def test_a_training_that_was_stopped_ends_as_if_nothing_had_stopped_it(
    tmp_path: Path, kept_interpreters: warm.Kept
) -> None:
    plain = run(kept_interpreters, tmp_path, TRAINING)
    text = rewritten()
    whole = run(kept_interpreters, tmp_path, text)
    assert whole.stdout == plain.stdout
    assert plain.stdout.startswith("80 1280 81 ")

    for path in tmp_path.glob("unfinished-*"):
        path.unlink()
    stopped = run(kept_interpreters, tmp_path, text, STOP="error")
    assert stopped.returncode == 1
    assert "RuntimeError: stopped" in stopped.stderr
    assert not stopped.stdout
    (saved,) = tmp_path.glob("unfinished-*")

    again = run(kept_interpreters, tmp_path, text, RESUME=saved.name)
    assert again.stdout == plain.stdout


def test_a_training_that_is_killed_has_saved_before(tmp_path: Path, kept_interpreters: warm.Kept) -> None:
    (tmp_path / "train.py").write_text(rewritten(), "utf-8")
    with open(tmp_path / "stderr.txt", "wb") as log:
        process = kept_interpreters.script(["train.py"], tmp_path, log, STOP="wait")
        assert process.stdin is not None and process.stdout is not None
        with process.stdin, process.stdout:
            assert process.stdout.readline() == b"waiting\n"
            process.kill()
            process.wait(120)
    assert [path.suffix for path in tmp_path.glob("unfinished-*")] == [".pt"]
