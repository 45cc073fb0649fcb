"""A candidate that trains in several processes where torchrun starts it: run so, and held against the original."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turbofix.engine.verifying import plan_comparison
from turbofix.findings import Risk
from turbofix.verify import Options, Verification, runner, verify

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("warm_interpreters"),
    pytest.mark.skipif(not runner.FORKS, reason="several processes are run on Linux alone"),
]

HEAD = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset, random_split

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
"""

ORIGINAL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(64, 8)
data, held_out = random_split(TensorDataset(x, (x.sum(1) > 0).long()), [48, 16], torch.Generator().manual_seed(1))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} done")
torch.save(model.state_dict(), "model.pt")
"""

GOOD = f"""\
{HEAD}
torch.manual_seed(0)
x = torch.randn(64, 8)
data, held_out = random_split(TensorDataset(x, (x.sum(1) > 0).long()), [48, 16], torch.Generator().manual_seed(1))
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, batch_size=16 // world, shuffle=sampler is None, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
trained = DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for step, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(trained(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {{epoch}} done")
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
if world > 1:
    dist.destroy_process_group()
"""

OTHER_SAMPLES = "the processes train on other samples than the original"

BROKEN = {
    "no_set_epoch": (
        "        sampler.set_epoch(epoch)",
        "        pass",
        f"at step 4 {OTHER_SAMPLES}: every pass over the data has the same order (`set_epoch` sets another)",
    ),
    "whole_batches": ("16 // world", "16", "at step 1 the optimizer steps after 32 samples instead of 16"),
    "not_wrapped": (
        "DistributedDataParallel(model) if world > 1 else model",
        "model",
        "at step 1 the gradients of the processes are not the same: they are not reduced",
    ),
    "summed_loss": (
        "loss.backward()",
        "(loss * world).backward()",
        r"at step 1 the loss is .*, 2 times the original's",
    ),
    "summed_gradients": (
        "        optimizer.step()\n",
        "        [each.grad.mul_(world) for each in model.parameters()]\n        optimizer.step()\n",
        "at step 1 the gradient is 2 times the original's",
    ),
    "all_print": (
        "    if rank == 0:\n        print",
        "    if True:\n        print",
        'rank 0 and rank 1 print "epoch 0 done", each for itself',
    ),
    "none_prints": (
        "    if rank == 0:\n        print",
        "    if world == 1:\n        print",
        'none of the processes prints "epoch 0 done"',
    ),
    "all_save": (
        "if rank == 0:\n    torch.save",
        "if True:\n    torch.save",
        "2 processes save model.pt: one overwrites what the other writes",
    ),
    "saves_the_wrapper": ("torch.save(model.", "torch.save(trained.", "what it saves in model.pt has other keys"),
    "one_dies": (
        "        optimizer.step()\n",
        '        optimizer.step()\n        if rank == 1 and epoch == 1:\n            raise ValueError("no more")\n',
        'rank 1 stopped with "ValueError: no more" at train.py, line 30 after 4 steps',
    ),
    "one_is_killed": (
        "        optimizer.step()\n",
        "        optimizer.step()\n        if rank == 1 and epoch == 1:\n            os.kill(os.getpid(), 9)\n",
        "rank 1 was killed by SIGKILL",
    ),
    "one_stops_early": (
        "        optimizer.step()\n",
        "        optimizer.step()\n        if rank == 1 and step == 1:\n            raise SystemExit\n",
        r"rank 1 ends after 2 steps, and rank 0 at train.py, line \d+ after 2 steps waits for it",
    ),
    "other_rate": ("lr=1e-2", "lr=1e-2 / (rank + 1)", "rank 1: at step 1 the learning rate is 0.005 instead of 0.01"),
    "other_splits": (
        "manual_seed(1)",
        "manual_seed(1 + rank)",
        f"at step 1 {OTHER_SAMPLES}",
    ),
    "other_orders": (
        "DistributedSampler(data)",
        "DistributedSampler(data, seed=rank)",
        "the samplers shuffle by other numbers in each process",
    ),
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ORIGINAL)
    return tmp_path / "train.py"


def verified(script: Path, candidate: str, **options: object) -> Verification:
    theirs = script.with_name("theirs.py")
    theirs.write_text(candidate)
    given = Options(**{"timeout": 60.0, **options})  # type: ignore[arg-type]
    return verify(plan_comparison(script, theirs, (), Risk.EQUIVALENT, given))


def figure(found: Verification) -> float:
    """The largest relative difference that the note tells."""
    assert found.verdict == "pass", found.reason
    told = [re.search(r"of one process \(largest relative difference (\S+) over", note) for note in found.notes]
    return next(float(match[1]) for match in told if match)


def test_what_trains_in_two_processes_as_in_one_passes(script: Path) -> None:
    found = verified(script, GOOD)
    assert 0 < figure(found) < 1e-6
    assert any(
        note.startswith("run as 2 processes over gloo: the gradients and updates of both") for note in found.notes
    )
    assert found.steps == 9


def test_three_processes(script: Path) -> None:
    script.write_text(ORIGINAL.replace("batch_size=16", "batch_size=12"))
    found = verified(script, GOOD.replace("16 // world", "12 // world"), processes=3)
    assert 0 < figure(found) < 1e-6
    assert any("run as 3 processes over gloo: the gradients and updates of all 3" in note for note in found.notes)


@pytest.mark.parametrize("name", BROKEN)
def test_what_goes_wrong_in_several_processes_is_said(script: Path, name: str) -> None:
    old, new, says = BROKEN[name]
    assert GOOD.count(old) == 1
    found = verified(script, GOOD.replace(old, new))
    assert found.verdict == "fail", found
    assert found.reason.startswith("run as 2 processes, ")
    assert says in found.reason or re.search(says, found.reason)


@pytest.mark.parametrize("processes", [0, 1])
def test_without_them_their_lines_are_not_seen_to_run(script: Path, processes: int) -> None:
    found = verified(script, GOOD, processes=processes)
    assert found.verdict == "inconclusive"
    assert found.reason == "what it changed at train.py, line 11, did not run"
