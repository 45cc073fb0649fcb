"""A rewritten training that is stopped goes on where it was, and is the same where nothing stops it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
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


def start(folder: Path, text: str, **settings: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(text, "utf-8")
    command = [sys.executable, "train.py"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_training_that_was_stopped_ends_as_if_nothing_had_stopped_it(tmp_path: Path) -> None:
    plain, _ = start(tmp_path, TRAINING).communicate(timeout=120)
    text = rewritten()
    whole, _ = start(tmp_path, text).communicate(timeout=120)
    assert whole == plain
    assert plain.startswith("80 1280 81 ")

    for path in tmp_path.glob("unfinished-*"):
        path.unlink()
    stopped = start(tmp_path, text, STOP="error")
    out, error = stopped.communicate(timeout=120)
    assert stopped.returncode == 1
    assert "RuntimeError: stopped" in error
    assert not out
    (saved,) = tmp_path.glob("unfinished-*")

    again, _ = start(tmp_path, text, RESUME=saved.name).communicate(timeout=120)
    assert again == plain


def test_a_training_that_is_killed_has_saved_before(tmp_path: Path) -> None:
    process = start(tmp_path, rewritten(), STOP="wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.kill()
    process.communicate(timeout=120)
    assert [path.suffix for path in tmp_path.glob("unfinished-*")] == [".pt"]
