"""Whole scripts that `ddp` carries to several processes: what they learn there, what they leave, and how they end."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ranks

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.engine.verifying import plan_comparison
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.training.model import Target
from turbofix.verify import Options, runner, verify

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("warm_interpreters"),
    pytest.mark.skipif(not runner.FORKS, reason="several processes are run on Linux alone"),
]

FOLDER = Path(__file__).parent / "several"
SCRIPTS = (
    "flat",
    "functions",
    "trainer",
    "accumulation",
    "gan",
    "metrics",
    "resume",
    "stream",
    "weighted",
    "phases",
    "batches",
    "copies",
    "padded",
    "beside",
    "accelerated",
    "methods",
)
STEPS, BOUND = 51, 1e-5
SIXTEEN_BITS = {"accumulation": 1e-3}
"""Of products in 16 bits, which round otherwise for half of a batch."""
NEEDS = {"accelerated": "accelerate"}


@pytest.fixture(scope="module")
def launcher() -> Iterator[ranks.Server]:
    with ranks.server() as server:
        yield server


def applied(path: Path) -> pipeline.Rewriting:
    chosen = [each for each in registry.load() if each.name == "ddp"]
    trust = pipeline.Trust(likely=True)
    return pipeline.apply(path, Workspace(), chosen, Target(gpus=2), Risk.EQUIVALENT, trust=trust)


def rewritten(path: Path) -> str:
    """The script as `ddp` writes it."""
    found = applied(path)
    assert not found.report.notes, found.report.notes
    return found.texts[path]


def refused(path: Path) -> str | None:
    """Why `ddp` leaves the script alone."""
    (finding,) = applied(path).report.findings
    return finding.why_not


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_processes_learn_what_one_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    script, candidate = tmp_path / f"{name}.py", tmp_path / "theirs.py"
    shutil.copy(FOLDER / f"{name}.py", script)
    candidate.write_text(rewritten(script))
    found = verify(plan_comparison(script, candidate, (), Risk.EQUIVALENT, Options(steps=STEPS, timeout=120.0)))
    assert found.verdict == "pass", found.reason
    assert (found.processes, found.steps >= 50) == (2, True)
    told = re.search(r"of one process \(largest relative difference (\S+) over (\d+) steps", " ".join(found.notes))
    assert told is not None, found.notes
    assert int(told[2]) >= 50
    assert float(told[1]) <= SIXTEEN_BITS.get(name, BOUND)


def shape(printed: str) -> list[str]:
    """What is printed, but for the numbers."""
    return [re.sub(r"[\d.]+", "#", line) for line in printed.splitlines()]


@pytest.mark.parametrize("name", ["copies", "gan", "methods"])
def test_it_prints_once_and_keeps_what_the_script_keeps(name: str, tmp_path: Path, launcher: ranks.Server) -> None:
    one, alone, two = (tmp_path / folder / f"{name}.py" for folder in ("one", "alone", "two"))
    for path in (one, alone, two):
        path.parent.mkdir()
        shutil.copy(FOLDER / f"{name}.py", path)
    text = rewritten(two)
    for path in (alone, two):
        path.write_text(text)
    ours = launcher.run(one, 1).out[0]
    assert launcher.run(alone, 1).out[0] == ours  # without torchrun it does what it did
    theirs = launcher.run(two)
    assert not theirs.error, theirs.error
    assert (shape(theirs.out[0]), theirs.out[1]) == (shape(ours), "")
    saved = {each.name for each in one.parent.iterdir()} - {one.name}
    assert {each.name for each in two.parent.iterdir()} - {one.name} == saved != set()
    for each in saved:
        assert keys(one.parent / each) == keys(two.parent / each)


def keys(path: Path) -> object:
    """What a checkpoint holds, but for the numbers."""

    def of(kept: object) -> object:
        if isinstance(kept, dict):
            return {key: of(value) for key, value in kept.items()}
        return tuple(kept.shape) if isinstance(kept, torch.Tensor) else type(kept).__name__

    return of(torch.load(path, weights_only=False))


def test_what_epochs_show_is_that_of_all(tmp_path: Path, launcher: ranks.Server) -> None:
    """In each of the ways in which scripts count: `tests/several/figures.py`."""
    script = tmp_path / "figures.py"
    shutil.copy(FOLDER / "figures.py", script)
    ours = launcher.run(script, 1).out[0].split()
    text = rewritten(script)
    # what lies on the device is added up there, and gathered from the host: each process has a device of its own
    assert "with_graph = with_graph.detach().clone()\n            torch.distributed.all_reduce(with_graph)" in text
    assert "all_gather_object(shares, [each.detach().cpu() for each in scores])" in text
    script.write_text(text)
    theirs = launcher.run(script)
    assert not theirs.error, theirs.error
    shown = list(zip(ours, theirs.out[0].split(), strict=True))
    assert len(shown) > 40
    for one, all_together in shown:
        if one != all_together:
            assert float(all_together) == pytest.approx(float(one), rel=1e-6), shown


def test_a_checkpoint_of_two_processes_goes_on_in_the_script_as_it_was(tmp_path: Path, launcher: ranks.Server) -> None:
    script = tmp_path / "resume.py"
    shutil.copy(FOLDER / "resume.py", script)
    script.write_text(rewritten(script))
    assert not launcher.run(script).error
    shutil.copy(FOLDER / "resume.py", script)
    assert launcher.run(script, 1).out[0].startswith("goes on at epoch 4\n")


SMALL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn({count}, 4)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size={size}, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a).squeeze(1), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return tmp_path / "small.py"


def test_what_is_written_where_and_summed_how(small: Path) -> None:
    """Small shapes of real scripts, each by the line that matters."""

    def becomes(*changes: tuple[str, str]) -> str:
        text = SMALL.format(count=16, size=4)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        small.write_text(text)
        return rewritten(small)

    shown = '    print("epoch", epoch)\n'
    assert "if rank == 0:\n        torch.save(" in becomes((shown, '    torch.save(model.state_dict(), "a.pt")\n'))
    assert '"log.txt" if rank == 0 else os.devnull' in becomes(("model =", 'log = open("log.txt", "w")\nmodel ='))
    summed = ("nn.functional.mse_loss(model(a).squeeze(1), b)", "((model(a).squeeze(1) - b) ** 2).sum()")
    assert "loss = loss * world_size  # gradients are averaged" in becomes(summed)
    assert "loss * world_size" not in becomes()
    counting = (("    for a,", "    total = 0.0\n    for a,"), ("step()\n", "step()\n        total += loss.item()\n"))
    assert "all_gather_object" not in becomes(*counting)  # nobody reads it
    read = (shown, "    print(total)\n")
    assert "total = sum(shares)\n        total /= world_size" in becomes(*counting, read)
    assert "total /= world_size" in becomes(summed, *counting, read)  # the loss of a share is scaled there
    scored = (("import torch\n", "import scoring\nimport torch\n"), ("total += loss.item()", "total += scoring.of(a)"))
    assert "(shares, float(total))" in becomes(*counting, read, *scored)  # it may be a tensor on a device
    assert "        total = like(total, sum(shares))\n" in becomes(*counting, read, *scored)  # and stays one
    stopping = "epoch)\n    if loss.item() < 0.1:\n        break\n"
    assert "if agreed(loss.item() < 0.1):" in becomes(("epoch)\n", stopping))
    normed = ("nn.Linear(4, 1)", "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))")
    assert "SyncBatchNorm" in becomes(normed)
    assert "SyncBatchNorm" not in becomes(normed, ("loss.backward()", "loss.backward(create_graph=True)"))


COUNTED = "        total += loss.item()\n"
AGAIN = """\
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a).squeeze(1), b).backward()
        optimizer.step()
"""
LEFT_ALONE = {
    "counted over all epochs": (
        ("    total = 0.0\n", ""),
        ("for epoch", "total = 0\nfor epoch"),
        (COUNTED, "        total += len(a)\n"),
    ),
    "a time": (("total = 0.0", "total = time.time() * 0"), (COUNTED, "        total += time.time()\n")),
    "no list": (("total = 0.0", "total = collections.deque()"), (COUNTED, "        total.append(loss.item())\n")),
    "the rate": (("total = 0.0", "total = []"), (COUNTED, "        total.append(optimizer.param_groups[0]['lr'])\n")),
    "goes backward later": (
        ("total = 0.0", "total = []"),
        (COUNTED, "        total.append(loss)\n"),
        ("    print(total)\n", AGAIN + "    print(total)\n"),
    ),
    "set again before it is read": ((COUNTED, ""), ("    print(total)\n", "    loss = total\n    print(loss)\n")),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_share_of_a_figure_is_left_alone(name: str, small: Path) -> None:
    counting = (("    for a,", "    total = 0.0\n    for a,"), ("step()\n", "step()\n" + COUNTED))
    text = "import collections\nimport time\n" + SMALL.format(count=16, size=4)
    for old, new in (*counting, ('    print("epoch", epoch)\n', "    print(total)\n")):
        text = text.replace(old, new)
    small.write_text(text)
    assert "shares = " in rewritten(small)
    for old, new in LEFT_ALONE[name]:
        assert old in text
        text = text.replace(old, new)
    small.write_text(text)
    after = rewritten(small)
    assert "shares" not in after
    assert "all_reduce" not in after


def test_what_the_script_gathers_itself_is_not_added_up_again(small: Path) -> None:
    text = (FOLDER / "accelerated.py").read_text()
    small.write_text(text)
    assert "total = sum(shares)" in rewritten(small)
    small.write_text(text.replace("loss.item()", "accelerator.gather(loss.detach()).mean().item()"))
    assert "total = sum(shares)" not in rewritten(small)


def test_the_last_loss_is_that_of_the_whole_batch(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.format(count=4, size=4).replace('print("epoch", epoch)', "print(loss.item())")
    small.write_text(text)
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    small.write_text(rewritten(small))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize(("returned", "scaled"), [
    ("squares.sum()", True),
    ("squares.sum() + 0.1 * torch.sum(scores**2)", True),
    ("squares.sum() / len(b)", False),
    ("squares.mean()", False),
    ('nn.functional.mse_loss(scores, b, reduction="sum")', True),
    ('nn.functional.mse_loss(scores, b, reduction="sum") / b.size(0)', False),
])  # fmt: skip
@pytest.mark.parametrize("call", ["model.loss(a, b)", "loss_of(model(a).squeeze(1), b)"])
def test_a_loss_is_a_sum_where_the_function_or_method_that_computes_it_sums(
    call: str, returned: str, scaled: bool, small: Path
) -> None:
    body = f"squares = (scores - b) ** 2\n    total = {returned}\n    return total\n"
    function = f"def loss_of(scores, b):\n    {body}\n\n"
    method = "class Net(nn.Linear):\n    def loss(self, a, b):\n        return loss_of(self(a).squeeze(1), b)\n\n\n"
    text = SMALL.format(count=16, size=4).replace("nn.functional.mse_loss(model(a).squeeze(1), b)", call)
    small.write_text(text.replace("torch.manual", f"{function}{method}torch.manual").replace("nn.Linear(4", "Net(4"))
    assert ("loss = loss * world_size" in rewritten(small)) == scaled


FETCHED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST


def named(name, download):
    return MNIST(name, download=download)


def fetch():
    return named("data", download=True)


def train(data):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=4)
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a).squeeze(1), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


"""


def test_one_process_fetches_data_where_what_returns_them_is_called(small: Path) -> None:
    small.write_text(FETCHED + "data = fetch()\ntrain(data)\n")
    text = rewritten(small)
    behind = "if world_size > 1 and local_rank == 0:\n    torch.distributed.barrier()\n"
    assert f"    torch.distributed.barrier()\ndata = fetch()\n{behind}train(data)\n" in text
    assert text.count("torch.distributed.barrier()") == 2  # the calls inside are parts of this one
    small.write_text(FETCHED + "train(fetch())\n")
    chosen = [each for each in registry.load() if each.name == "ddp"]
    found = pipeline.apply(
        small, Workspace(), chosen, Target(gpus=2), Risk.EQUIVALENT, trust=pipeline.Trust(likely=True)
    )
    assert [each.why_not for each in found.report.findings] == [
        "it fetches data in a statement that trains: set a name to them in front of it (line 26)"
    ]


EPOCHS = """\
import os
import random
import time

import mlflow
import numpy as np
import torch
from loguru import logger
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.full((4,), float(index)) + np.random.rand()
        return x, x.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(x).squeeze(1)


class Stopping:
    def __init__(self):
        self.best, self.left, self.stop = 1e9, 3, False

    def __call__(self, loss):
        self.left = 3 if loss < self.best else self.left - 1
        self.best = min(self.best, loss)
        self.stop = self.left == 0


def next_folder():
    number = 0
    while os.path.exists(f"runs/{number}"):
        number += 1
    os.makedirs(f"runs/{number}", exist_ok=True)
    return f"runs/{number}"


def epoch_of(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    folder = next_folder()
    loader = DataLoader(Points(), batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    stopping = Stopping()
    for epoch in range(3):
        loss = epoch_of(model, loader, optimizer)
        print("epoch", epoch)
        stopping(loss)
        if stopping.stop:
            break
    torch.save(model.state_dict(), folder + "/model.pt")


if __name__ == "__main__":
    main()
"""


def test_what_no_process_decides_or_makes_for_itself(small: Path) -> None:
    """Shapes of real scripts, each by the line that matters, and one line that must not be there."""

    def becomes(*changes: tuple[str, str]) -> str:
        text = EPOCHS
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        small.write_text(text)
        return rewritten(small)

    plain = becomes()
    assert "        if world_size > 1:\n            loader.sampler.set_epoch(epoch)\n        loss = epoch_of(" in plain
    assert "if agreed(stopping.stop):" in plain
    assert "folder = agreed(next_folder())" in plain
    assert '    if rank == 0:\n        os.makedirs(f"runs/{number}", exist_ok=True)' in plain
    assert "            np.random.seed(torch.initial_seed() % 2**32)\n" in plain  # what its items draw
    assert "random.seed(torch.initial_seed())\n" not in plain.replace("np.random", "")
    assert "        logger.remove()" in plain and "logging" not in plain
    assert "is_initialized" not in plain and "find_unused" not in plain and "anywhere" not in plain
    # the same, with something else in it
    idle = (
        "        nn.init.zeros_",
        "        self.old = nn.Linear(4, 2)\n        nn.init.ones_(self.old.weight)\n        nn.init.zeros_",
    )
    assert "DistributedDataParallel(model, find_unused_parameters=True)" in becomes(idle)
    counted = ("        if stopping.stop:", "        if epoch + 1 == 2:")
    assert "agreed(epoch" not in becomes(counted)
    lazy = (
        ("    for epoch in", "    waited = 0\n    for epoch in"),
        ("        if stopping.stop:", "        if loss > 1:\n            waited += 1\n        if waited > 1:"),
    )
    assert "if agreed(waited > 1):" in becomes(*lazy)
    nan = (
        "        optimizer.zero_grad()",
        "        if torch.isnan(loss):\n            continue\n        optimizer.zero_grad()",
    )
    assert "        if anywhere(torch.isnan(loss)):" in becomes(nan)
    few = (
        "        optimizer.zero_grad()",
        "        if len(x) < 2:\n            continue\n        optimizer.zero_grad()",
    )
    assert "anywhere(" not in becomes(few)
    only = (
        "        loss.backward()\n        optimizer.step()",
        "        if loss > 0:\n            loss.backward()\n            optimizer.step()",
    )
    assert "        if everywhere(loss > 0):" in becomes(only)
    dated = ("folder = next_folder()", 'folder = os.path.join("runs", time.strftime("%H%M%S"))')
    assert 'folder = agreed(os.path.join("runs", time.strftime("%H%M%S")))' in becomes(dated)
    keeping = "class Keeping:\n    def __init__(self, folder):\n        self.folder = folder\n\n\nclass Stopping"
    kept_by = ("folder = next_folder()", 'folder = Keeping(time.strftime("runs/%H%M%S")).folder')
    assert "agreed(Keeping" not in becomes(("class Stopping", keeping), kept_by)
    again = ("    main()\n", "    main()\n    main()\n")
    assert "if world_size > 1 and not torch.distributed.is_initialized():" in becomes(again)
    tracked = (
        "    stopping = Stopping()",
        '    mlflow.start_run()\n    mlflow.log_param("lr", 1e-4)\n    stopping = Stopping()',
    )
    assert '    if rank == 0:\n        mlflow.start_run()\n        mlflow.log_param("lr", 1e-4)' in becomes(tracked)
    best = (
        '    torch.save(model.state_dict(), folder + "/model.pt")',
        """\
    torch.save(model.state_dict(), "best.pt")
    if os.path.exists("best.pt"):
        model.load_state_dict(torch.load("best.pt"))""",
    )
    assert '        torch.distributed.barrier()\n    if os.path.exists("best.pt"):' in becomes(best)
    assert 'torch.load("best.pt", map_location="cpu")' in becomes(best)
    kept = (
        "    stopping = Stopping()",
        """\
    if not os.path.exists("mean.npy"):
        np.save("mean.npy", np.zeros(4))
    mean = np.load("mean.npy")
    stopping = Stopping()""",
    )
    found = becomes(kept)
    assert 'if agreed(not os.path.exists("mean.npy")):\n        if rank == 0:\n            np.save(' in found
    assert '    if world_size > 1:\n        torch.distributed.barrier()\n    mean = np.load("mean.npy")' in found


BRANCHES = """\
import logging
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Log:
    def __init__(self, path, mode):
        self.file = open(path, mode)


class Net(nn.Module):
    def __init__(self, plain):
        super().__init__()
        self.plain, self.norm, self.head = plain, nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        if not self.plain:
            x = self.norm(x)
        return self.head(x)


def step(net, x, y, optimizer, criterion):
    loss = criterion(net(x), y)
    if not torch.isfinite(loss):
        return 0.0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(mode):
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    net = Net(plain=True)
    if mode == "copies" and torch.cuda.device_count() > 1:
        net = nn.DataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    log = Log("log.txt", "a" if mode == "again" else "w")
    total, limit = 0.0, 3
    if mode == "probe":
        for epoch in range(limit):
            for a, b in loader:
                total += step(net, a, b, optimizer, criterion)
    else:
        for epoch in range(limit):
            for number, (a, b) in enumerate(loader):
                if number == limit:
                    break
                total += step(net, a, b, optimizer, criterion)
            if epoch % 2 == 0:
                torch.save(net.state_dict(), "net.pt")
    print("mean", total / len(loader))


if __name__ == "__main__":
    main(os.environ.get("MODE", "both"))
"""


def test_a_phase_that_trains_what_was_frozen_is_wrapped_anew(small: Path) -> None:
    text = SMALL.format(count=16, size=4)
    loop = text[text.index("for epoch in") :]
    small.write_text(text + "for each in model.parameters():\n    each.requires_grad = True\n" + loop)
    assert rewritten(small).count("DistributedDataParallel(model)") == 2
    small.write_text(text + loop)
    assert rewritten(small).count("DistributedDataParallel(model)") == 1


def test_a_model_that_computes_its_own_loss_asks_no_other_process(small: Path) -> None:
    weighed = EPOCHS.replace("nn.functional.mse_loss(model(x), y)", "model(x, y)")
    inside = "        return nn.functional.cross_entropy(self.head(x), y.long(), ignore_index=3)\n"
    small.write_text(
        weighed.replace("        return self.head(x).squeeze(1)\n", inside).replace("(self, x)", "(self, x, y)")
    )
    assert "weight(" not in rewritten(small)
    outside = "nn.functional.cross_entropy(model(x), y.long(), ignore_index=3)"
    small.write_text(EPOCHS.replace("nn.functional.mse_loss(model(x), y)", outside))
    assert "ignore_index=3) * weight(y.long() != 3)" in rewritten(small)


def test_each_branch_has_what_it_runs(small: Path, launcher: ranks.Server) -> None:
    """Shapes of real scripts that came out wrong once, each by its line."""
    small.write_text(BRANCHES)
    text = rewritten(small)
    assert text.count("ddp_net = net\n") == 2  # one for each way through the script
    assert "(net, broadcast_buffers=False, find_unused_parameters=True)" in text  # a layer that is behind a flag
    assert 'if world_size == 1 and mode == "copies" and torch.cuda.device_count() > 1:' in text
    assert "self.file = open(path if rank == 0 else os.devnull, mode)" in text
    assert "loss = criterion(net(x), y) * weight(criterion.weight[y])" in text
    assert "    if anywhere(not torch.isfinite(loss)):\n        return 0.0" in text
    assert "if number == limit:" in text and "agreed(" not in text  # nothing of it is a share's
    assert 'if epoch % 2 == 0 and rank == 0:\n                torch.save(net.state_dict(), "net.pt")' in text
    small.write_text(text)
    ran = launcher.run(small)
    assert (shape(ran.out[0]), ran.error) == (["mean #"], "")


NEXT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(64, 4)
train_loader = DataLoader(TensorDataset(x[:48]), batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(x[48:]), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluated():
    batches, total = iter(val_loader), 0.0
    for _ in range(2):
        (batch,) = next(batches)
        total += model(batch).pow(2).mean().item()
    return total / 2


batches = iter(train_loader)
for step in range(12):
    try:
        (batch,) = next(batches)
    except StopIteration:
        batches = iter(train_loader)
        (batch,) = next(batches)
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        print("step", step, evaluated())
"""


def test_an_evaluation_between_steps_stays_whole(small: Path, launcher: ranks.Server) -> None:
    small.write_text(NEXT)
    text = rewritten(small)
    assert text.count("DistributedSampler(") == 1
    assert "val_loader = DataLoader(TensorDataset(x[48:]), batch_size=8)\n" in text
    small.write_text(text)
    ran = launcher.run(small)
    assert (shape(ran.out[0]), ran.error) == (["step # #"] * 3, "")


def test_steps_that_repeat_on_one_batch_have_their_share_of_it(small: Path) -> None:
    """Critics and generators: the loop inside draws nothing of its own."""
    text = SMALL.format(count=16, size=4)
    step = text[text.index("        loss =") : text.index('    print("epoch"')]
    inner = "".join(f"    {line}\n" for line in step.splitlines())
    small.write_text(text.replace(step, step + "        for _ in range(2):\n" + inner))
    found = rewritten(small)
    assert "DistributedSampler(" in found and "share(" not in found
    assert found.count("ddp_model(a)") == 2


CUT = """\
import numpy as np
import torch
from torch import nn

x = np.random.rand(30, 4).astype("float32")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    order = np.random.permutation(30)
    for start in range(0, 30, 8):
        batch = x[order[start : start + 8]]
        loss = model(torch.from_numpy(batch)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
"""


def test_batches_that_are_cut_by_hand_are_shared_out_evenly(small: Path, launcher: ranks.Server) -> None:
    small.write_text(CUT)
    text = rewritten(small)
    assert "        batch = share(batch)\n" in text
    small.write_text(
        text + 'open(f"share{rank}", "w").write(f"{len(batch)} {batch.sum():.6f} {model.weight.sum():.6f}")\n'
    )
    ran = launcher.run(small, 4)
    assert (ran.out[0].splitlines(), ran.error) == (["epoch 0", "epoch 1", "epoch 2"], "")
    shares = [(small.parent / f"share{rank}").read_text().split() for rank in range(4)]
    assert [each[0] for each in shares] == ["2"] * 4  # of the 6 samples of the last batch: some are in two shares
    assert len({each[1] for each in shares}) == 3  # what the last process gets, the one before it has, too
    assert len({each[2] for each in shares}) == 1


LOADER = "loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size={size}, shuffle=True)\n"
FACTORY = """
def load(split, size={size}):
    return DataLoader(TensorDataset(x, x.sum(1)), batch_size=size, shuffle={shuffle}, drop_last=True)


loader, other = load("train"), load("test", 1)
"""
TESTED = """    with torch.no_grad():
        print(sum(nn.functional.mse_loss(model(a).squeeze(1), b) for a, b in other))
"""


@pytest.mark.parametrize("shuffle", ["True", 'split == "train"'])
def test_loaders_of_evaluations_that_the_same_call_makes_stay_whole(
    shuffle: str, small: Path, launcher: ranks.Server
) -> None:
    text = SMALL.replace(LOADER, FACTORY).replace('    print("epoch", epoch)\n', TESTED)
    small.write_text(text.format(count=16, size=4, shuffle=shuffle))
    new = rewritten(small)
    assert 'if world_size > 1 and split == "train":' in new
    assert "batch_size=per_process" in new
    small.write_text(new)
    ran = launcher.run(small)  # a batch of one sample can be shared out by nobody
    assert (len(ran.out[0].splitlines()), ran.error) == (3, "")


ONE_PASS = """def run(loader, train):
    total = 0
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a).squeeze(1), b)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += len(a)
    return total


for epoch in range(3):
    print(run(loader, True), run(other, False))
"""


def test_one_function_for_both_passes_adds_up_what_is_shared_out(small: Path, launcher: ranks.Server) -> None:
    other = LOADER + "other = DataLoader(TensorDataset(x, x.sum(1)), batch_size=3)\n"
    text = SMALL[: SMALL.index("for epoch")].replace(LOADER, other) + ONE_PASS
    small.write_text(text.format(count=16, size=4))
    new = rewritten(small)
    assert new.count("DistributedSampler(") == 1
    assert new.count('if world_size > 1 and hasattr(loader.sampler, "set_epoch"):') == 1
    assert new.count("set_epoch(") == 1
    small.write_text(new)
    assert launcher.run(small).out[0].splitlines() == ["16 16"] * 3


EITHER = """
def load(even):
    if even:
        return DataLoader(
            TensorDataset(x, x.sum(1)), batch_sampler=torch.utils.data.BatchSampler(range({count}), {size}, False)
        )
    return DataLoader(TensorDataset(x, x.sum(1)), batch_size={size}, shuffle=True)


loader = load(x.sum() > {least})
"""


@pytest.mark.parametrize("least", [-1000, 1000])
def test_epochs_are_told_to_samplers_that_have_some(least: int, small: Path, launcher: ranks.Server) -> None:
    text = "from tqdm import tqdm\n" + SMALL.replace(LOADER, EITHER)
    text = text.replace("    for a,", "    shown = tqdm(loader, disable=True) if epoch else loader\n    for a,")
    text = text.replace("b in loader:", "b in shown:")
    small.write_text(text.format(count=16, size=4, least=least))
    bar = "def tqdm(loader, disable):\n    return (each for each in loader)\n"  # has no sampler either
    small.write_text(rewritten(small).replace("from tqdm import tqdm\n", bar))
    ran = launcher.run(small)
    assert (ran.out[0].splitlines(), ran.error) == (["epoch 0", "epoch 1", "epoch 2"], "")


PHASES = """loaders = {{"train": loader, "val": DataLoader(TensorDataset(x, x.sum(1)), batch_size=3)}}
for epoch in range(3):
    for {phases}:
        seen = 0
        for a, b in {batches}:
            with torch.set_grad_enabled(phase != "val"):
                loss = nn.functional.mse_loss(model(a).squeeze(1), b)
                if phase {test}:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            seen += len(a)
        print(phase, seen)
"""
IN_PHASES = SMALL[: SMALL.index("for epoch")] + PHASES


@pytest.mark.parametrize(
    ("phases", "batches", "test"),
    [
        ('phase in ("train", "val")', "loaders[phase]", '== "train"'),
        ("phase, each in loaders.items()", "each", '!= "val"'),
    ],
)
def test_of_phases_that_of_the_training_is_shared_out(
    phases: str, batches: str, test: str, small: Path, launcher: ranks.Server
) -> None:
    small.write_text(IN_PHASES.format(count=16, size=4, phases=phases, batches=batches, test=test))
    new = rewritten(small)
    assert new.count("DistributedSampler(") == 1
    assert new.count(f"if world_size > 1 and phase {test}:") == 2
    small.write_text(new)
    assert launcher.run(small).out[0].splitlines() == ["train 16", "val 16"] * 3


def test_a_pass_over_batches_that_a_sampler_of_its_own_puts_together_is_told_by_these(
    small: Path, launcher: ranks.Server
) -> None:
    chosen = "torch.utils.data.BatchSampler(range(16), 4, False)"
    other = f"loader = DataLoader(TensorDataset(x, x.sum(1)), batch_sampler={chosen})\n"
    other += "other = DataLoader(TensorDataset(x, x.sum(1)), batch_size=3)\n"
    text = SMALL[: SMALL.index("for epoch")].replace(LOADER, other) + ONE_PASS
    small.write_text(text.format(count=16, size=4))
    new = rewritten(small)
    assert 'if world_size > 1 and hasattr(loader.batch_sampler, "num_replicas"):' in new
    small.write_text(new)
    assert launcher.run(small).out[0].splitlines() == ["16 16"] * 3


def test_phases_whose_loaders_are_not_followed_are_refused(small: Path) -> None:
    kept = 'phase in ("train", "val")', "loaders[phase if epoch else 'train']", '== "train"'
    small.write_text(IN_PHASES.format(count=16, size=4, phases=kept[0], batches=kept[1], test=kept[2]))
    assert "one loop reads the loaders of training and evaluation" in str(refused(small))


def test_loaders_of_a_file_that_is_imported_are_made_in_front_of_the_group(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.format(count=16, size=4)
    start = text.index("model =")
    small.with_name("data.py").write_text(text[:start])
    small.write_text("import torch\nfrom torch import nn\n\nfrom data import loader\n\n" + text[start:])
    for path, new in applied(small).texts.items():
        path.write_text(new)
    ran = launcher.run(small)
    assert (ran.out[0].splitlines(), ran.error) == (["epoch 0", "epoch 1", "epoch 2"], "")


WINDOWS = """import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
x = torch.randn(6, 40, 4)
lengths = torch.randint(1, 7, (40,))
model = nn.GRU(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for number, start in enumerate([0, 8, 16, 24]):
        a = {cut}
        loss = nn.functional.mse_loss(model(a)[0], a + 0 * number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("cut", "why"),
    [
        ("x[:, start : start + 8]", "cut along another dimension than the first"),
        ("x.transpose(0, 1)[start : start + 8]", None),
        ("x.transpose(0, 1)[start : start + 8, 1:]", None),
    ],
)
def test_batches_are_cut_by_hand_along_their_first_dimension_alone(cut: str, why: str | None, small: Path) -> None:
    small.write_text(WINDOWS.format(cut=cut))
    if why is None:
        assert "        a = share(a)\n" in rewritten(small)
    else:
        assert why in str(refused(small))


def test_counters_are_no_batches_and_shares_are_not_padded_to_the_longest_of_each(small: Path) -> None:
    text = WINDOWS.replace("mse_loss(model(a)[0], a", "mse_loss(model(a)[0], a * number")
    small.write_text(text.format(cut="x.transpose(0, 1)[start : start + 8]"))
    assert "share(number)" not in rewritten(small)
    packed = "pad_packed_sequence(model(pack_padded_sequence(a, n, True, False))[0]{told})[0]"
    both = "x.transpose(0, 1)[start : start + 8]\n        n = lengths[start : start + 8]"
    text = WINDOWS.replace("model(a)[0]", packed).replace("{cut}", both)
    small.write_text(text.format(told=""))
    assert "tell it `total_length`" in str(refused(small))
    small.write_text(text.format(told=", total_length=6"))
    assert "        a = share(a)\n        n = lengths[start : start + 8]\n        n = share(n)\n" in rewritten(small)
    small.write_text(text.format(told=", total_length=6").replace("(a, n,", "(a, lengths[start : start + 8],"))
    assert "`lengths` is given as a whole" in str(refused(small))


@pytest.mark.parametrize(
    "made",
    [
        "loader, other = (DataLoader(TensorDataset(x[k:], x[k:].sum(1)), batch_size={size}) for k in (0, 9))\n",
        "made = {{k: DataLoader(TensorDataset(x, x.sum(1)), batch_size={size}) for k in 'ab'}}\nloader = made['a']\n",
        "made = []\nfor k in 'ab':\n    made.append(DataLoader(TensorDataset(x, x), {size}))\nloader = made[0]\n",
    ],
)
def test_loaders_that_are_made_in_rounds_beside_others_stay_and_are_shared_by_others(made: str, small: Path) -> None:
    small.write_text(SMALL.replace(LOADER, made).format(count=16, size=4))
    text = rewritten(small)
    assert "    ddp_loader = shared(loader)\n" in text and "for a, b in ddp_loader:" in text


GRAPHS = """import torch
from torch import nn
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import {loader}
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = GCNConv(7, 32), nn.Linear(32, 2)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.conv(x, edge_index).relu(), batch))


torch.manual_seed(0)
loader = {loader}(TUDataset("data", "MUTAG"), batch_size=64, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(9):
    for data in loader:
        loss = nn.functional.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_batches_of_graphs_are_shared_out_and_samples_of_neighbours_are_not(small: Path) -> None:
    small.write_text(GRAPHS.format(loader="DataLoader"))
    assert "loader = DataLoader(train_data, batch_size=64 // world_size, shuffle=train_sampler is None" in rewritten(
        small
    )
    small.write_text(GRAPHS.format(loader="NeighborLoader"))
    assert "is a loader of which it is not known how it is shared out" in str(refused(small))


DRAWN = """drawing = torch.utils.data.WeightedRandomSampler(torch.ones(16), 16, False)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size={size}, sampler=drawing)
"""


def test_processes_take_parts_of_what_the_first_one_draws(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.replace(LOADER, DRAWN).replace(
        "    for a, b in loader:\n", "    seen = 0.0\n    for a, b in loader:\n"
    )
    text = text.replace("step()\n", "step()\n        seen += a.sum()\n").replace('"epoch", epoch', 'f"{{seen:.2f}}"')
    small.write_text(text.format(count=16, size=4))
    ours = launcher.run(small, 1)
    small.write_text(rewritten(small))
    theirs = launcher.run(small)
    assert not theirs.error
    assert theirs.out[0] == ours.out[0]  # the sum of all of them, each drawn once in a pass


def test_data_are_not_preloaded_where_processes_share_them_out(small: Path) -> None:
    small.write_text(SMALL.format(count=4096, size=16))
    both = [each for each in registry.load() if each.name in ("preload-dataset", "ddp")]
    found = pipeline.apply(small, Workspace(), both, Target(gpus=2), Risk.EQUIVALENT, trust=pipeline.Trust(likely=True))
    assert "DistributedSampler(" in found.texts[small]
    reasons = [each.why_not for each in found.report.findings if each.codemod == "preload-dataset"]
    assert reasons == ["several processes share out its samples by their numbers"]


@pytest.mark.parametrize(("count", "size", "processes"), [(13, 4, 2), (1, 4, 2), (2, 6, 3)])
def test_uneven_batches_and_fewer_samples_than_processes_come_to_an_end(
    count: int, size: int, processes: int, small: Path, launcher: ranks.Server
) -> None:
    small.write_text(SMALL.format(count=count, size=size))
    small.write_text(rewritten(small))
    ran = launcher.run(small, processes)
    assert (ran.out[0].splitlines(), ran.error) == (["epoch 0", "epoch 1", "epoch 2"], "")


def test_a_batch_that_cannot_be_shared_out_is_an_error_that_says_so(small: Path, launcher: ranks.Server) -> None:
    small.write_text(SMALL.format(count=12, size=3))
    small.write_text(rewritten(small))
    assert all("the batch size is no multiple of the number of processes" in each for each in launcher.run(small).err)


def test_torchrun_ends_all_where_one_is_killed(small: Path) -> None:
    dying = '    import os\n    if os.environ.get("RANK") == "1":\n        os.kill(os.getpid(), 9)\n    print('
    small.write_text(SMALL.replace("    print(", dying).format(count=16, size=4))
    small.write_text(rewritten(small))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", small.name]
    done = subprocess.run(command, cwd=small.parent, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr
