"""Whole scripts that `ddp` carries to several processes: what they learn there, what they leave, and how they end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turbofix.verify import runner

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not runner.FORKS, reason="several processes are run on Linux alone")

FOLDER = Path(__file__).parent / "several"
STEPS = 51
BOUND = 1e-5
SIXTEEN_BITS = {"accumulation.py": 1e-3}
"""Of products in 16 bits, which round otherwise for half of a batch."""
NEEDS = {"accelerated.py": "accelerate"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def scripts() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.py"))


def turbofix(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turbofix", *words, "--select", "ddp", "--gpus", "2"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def rewritten(name: str, folder: Path) -> Path:
    """The script, as `ddp` writes it, in a folder of its own."""
    folder.mkdir()
    path = Path(shutil.copy(FOLDER / name, folder))
    done = turbofix("apply", "--write", "--likely", name, folder=folder)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() != (FOLDER / name).read_bytes()
    return path


def launched(path: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """The script as torchrun runs it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, path.name],
        cwd=path.parent,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def alone(path: Path) -> str:
    """What a script prints as one process."""
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=path.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", scripts())
def test_two_processes_learn_what_one_learns(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    shutil.copy(FOLDER / name, tmp_path)
    done = turbofix("verify", name, "--steps", str(STEPS), "--output-format", "json", folder=tmp_path)
    found = json.loads(done.stdout)
    assert (found["verdict"], found["processes"]) == ("pass", 2), found["reason"]
    assert found["codemods"][0]["verdict"] == "kept"
    assert found["steps"] >= 50
    told = re.search(r"largest relative difference (\S+) over (\d+) steps", " ".join(found["notes"]))
    assert told is not None
    assert int(told[2]) >= 50
    assert float(told[1]) <= SIXTEEN_BITS.get(name, BOUND)


@pytest.mark.parametrize("name", ["resume.py", "copies.py", "gan.py"])
def test_torchrun_prints_once_and_leaves_checkpoints_that_the_script_loads(name: str, tmp_path: Path) -> None:
    original = tmp_path / "one" / name
    original.parent.mkdir()
    shutil.copy(FOLDER / name, original)
    ours = alone(original)
    path = rewritten(name, tmp_path / "two")
    assert alone(path) == ours
    saved = {each.name for each in path.parent.iterdir()}
    for each in saved - {name}:
        (path.parent / each).unlink()
    theirs = launched(path).stdout
    assert [re.sub(r"[\d.]+", "#", line) for line in theirs.splitlines()] == [
        re.sub(r"[\d.]+", "#", line) for line in ours.splitlines()
    ]
    for each in saved - {name}:
        one, two = (torch.load(folder / each, weights_only=False) for folder in (original.parent, path.parent))
        assert _keys(one) == _keys(two)


def _keys(saved: object) -> object:
    if isinstance(saved, dict):
        return {key: _keys(value) for key, value in saved.items()}
    return tuple(saved.shape) if isinstance(saved, torch.Tensor) else type(saved).__name__


def test_a_checkpoint_of_two_processes_goes_on_in_the_script_as_it_was(tmp_path: Path) -> None:
    path = rewritten("resume.py", tmp_path / "two")
    launched(path)
    shutil.copy(FOLDER / "resume.py", path)
    assert alone(path).startswith("goes on at epoch 4\n")


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


@pytest.mark.parametrize(("count", "size", "processes"), [(13, 4, 2), (1, 4, 2), (2, 6, 3)])
def test_uneven_batches_and_fewer_samples_than_processes_come_to_an_end(
    count: int, size: int, processes: int, tmp_path: Path
) -> None:
    path = tmp_path / "small.py"
    path.write_text(SMALL.format(count=count, size=size))
    assert turbofix("apply", "--write", "--likely", path.name, folder=tmp_path).returncode == 0
    assert launched(path, processes).stdout.splitlines() == ["epoch 0", "epoch 1", "epoch 2"]


def test_a_batch_that_cannot_be_shared_out_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(SMALL.format(count=12, size=3))
    assert turbofix("apply", "--write", "--likely", path.name, folder=tmp_path).returncode == 0
    done = launched(path)
    assert done.returncode != 0
    assert "the batch size is no multiple of the number of processes" in done.stderr


def test_a_process_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    killing = SMALL.replace(
        "    print(", '    import os; os.environ.get("RANK") == "1" and os.kill(os.getpid(), 9)\n    print('
    )
    path.write_text(killing.format(count=16, size=4))
    assert turbofix("apply", "--write", "--likely", path.name, folder=tmp_path).returncode == 0
    done = launched(path)
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr
