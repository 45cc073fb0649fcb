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
    "copies",
    "accelerated",
)
STEPS, BOUND = 51, 1e-5
SIXTEEN_BITS = {"accumulation": 1e-3}
"""Of products in 16 bits, which round otherwise for half of a batch."""
NEEDS = {"accelerated": "accelerate"}


@pytest.fixture(scope="module")
def launcher() -> Iterator[ranks.Server]:
    with ranks.server() as server:
        yield server


def rewritten(path: Path) -> str:
    """The script as `ddp` writes it."""
    chosen = [each for each in registry.load() if each.name == "ddp"]
    trust = pipeline.Trust(likely=True)
    found = pipeline.apply(path, Workspace(), chosen, Target(gpus=2), Risk.EQUIVALENT, trust=trust)
    assert not found.report.notes, found.report.notes
    return found.texts[path]


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


@pytest.mark.parametrize("name", ["copies", "gan"])
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
    script.write_text(rewritten(script))
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


def test_the_last_loss_is_that_of_the_whole_batch(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.format(count=4, size=4).replace('print("epoch", epoch)', "print(loss.item())")
    small.write_text(text)
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    small.write_text(rewritten(small))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-5)


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
