"""What the tests of isolation share: a project of the user's, its hash, and the levels that this machine has."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from turbofix.findings import Risk
from turbofix.verify import Inconclusive, Options, Request, Stage, isolation
from turbofix.verify.isolation import Held
from turbofix.verify.lease import scratch_folder
from turbofix.verify.probe import processes
from turbofix.verify.scratch import Scratch, trees_for

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ORDER = {
    "speed": False,
    "seed": 0,
    "replay": False,
    "stop_after": None,
    "steps": 3,
    "minimum": 3,
    "seconds": 60.0,
    "may_shorten": False,
    "shorten": {},
    "finish_seconds": 0.0,
    "patience": 0.0,
    "dropout": True,
    "remap": False,
    "watch": {},
}
"""A run of three steps, for a child."""

LEVELS = ("overlay", "overlay-for-users", "landlock", "guard")
"""All levels; the overlay comes in two manners, with the rights of root and without."""


def tree_hash(folder: Path) -> str:
    """A hash over the names, kinds, modes, times and contents of everything below ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_mtime_ns} {status.st_size} {status.st_nlink}".encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def make_project(folder: Path) -> Path:
    """A folder with data of several kinds."""
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "inner.txt").write_text("inner")
    (folder / "data.txt").write_text("data")
    (folder / "kept.txt").write_text("kept" * 2000)
    (folder / "link.txt").symlink_to("kept.txt")
    os.link(folder / "data.txt", folder / "twin.txt")
    with open(folder / "big.bin", "wb") as handle:
        handle.truncate(17 << 20)  # big enough to be linked, not copied
    return folder


def reach(level: str, root: Path, trees: tuple[Path, ...]) -> Held:
    """The level, or the test is skipped where this machine does not have it."""
    if level == "overlay" and os.geteuid() != 0:
        pytest.skip("only root has the overlay without a user namespace")
    try:
        held = isolation.reach(level.partition("-")[0], root, trees)
    except Inconclusive as why:
        pytest.skip(str(why))
    return dataclasses.replace(held, own_user=level != "overlay")


@contextlib.contextmanager
def scratch_for(script: Path) -> Iterator[Scratch]:
    """What ``script`` sees when it is verified from its own folder, at the strongest level."""
    trees = trees_for(script, script.parent)
    with scratch_folder(keep=False, outside=trees) as lease:
        yield Scratch(lease.root, trees, isolation.reach(None, lease.root, trees), lease.lock)


@functools.cache
def demand(level: str) -> None:
    """Skip the test where this machine does not have the level."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as tree:
        reach(level, Path(root), (Path(tree),))


def request(script: Path, **options: object) -> Request:
    """The comparison of a script with itself."""
    stage = Stage(None, Risk.EQUIVALENT, {script: script.read_bytes()})
    return Request(script, stages=(stage,), options=Options(**{"timeout": 120.0, **options}))  # type: ignore[arg-type]


def lives(word: str) -> list[int]:
    """The processes whose command line or environment holds ``word``, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = path.joinpath("cmdline").read_bytes() + path.joinpath("environ").read_bytes()
            if word.encode() in words and int(path.name) != os.getpid():
                found.append(int(path.name))
    return found


def left(root: Path) -> list[int]:
    """The processes of the verification in the scratch folder ``root``."""
    return processes.marked(str(root))


def wait_for(condition: Callable[[], object], seconds: float = 60) -> bool:
    """Whether the condition comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def scratches_in(folder: Path) -> Iterator[Path]:
    """The scratch folders in ``folder``."""
    return folder.glob("turbofix-*")
