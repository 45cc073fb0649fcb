"""What no run by one process shows: that several learn the same where gradients of micro-batches are held back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.training.model import Target

SCRIPT = Path(__file__).parent.parent / "fixtures" / "scripts" / "ddp_points.py"


def by_two_processes(text: str, folder: Path) -> object:
    """The weights that a script saves when two processes run it."""
    import torch

    folder.mkdir()
    (folder / SCRIPT.name).write_text(text, "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT.name, "--epochs", "1"]
    started = [
        subprocess.Popen(command, cwd=folder, env={**os.environ, **given, "RANK": rank}, stderr=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    try:
        errors = [each.communicate(timeout=120)[1].decode() for each in started]
    finally:
        for each in started:
            each.kill()
    # torch aborts one in sixteen as it ends (-6), when all is written: what is not written fails where it is read
    assert {each.returncode for each in started} <= {0, -6}, errors
    return torch.load(folder / "ddp_points.pt")


def test_two_processes_learn_the_same_as_before(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    chosen = [each for each in registry.load() if each.name in ("no-sync", "ddp-flags")]
    trust = pipeline.Trust(likely=True)
    found = pipeline.apply(SCRIPT, Workspace(), chosen, Target(), Risk.EQUIVALENT, trust=trust)
    rewritten = found.texts[SCRIPT]
    assert "model.no_sync()" in rewritten
    assert "gradient_as_bucket_view=True" in rewritten
    before = by_two_processes(SCRIPT.read_text("utf-8"), tmp_path / "before")
    after = by_two_processes(rewritten, tmp_path / "after")
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    unsent = rewritten.replace(" or i + 1 == len(loader)", "")  # the last, smaller group of an epoch stays at home
    assert unsent != rewritten
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(by_two_processes(unsent, tmp_path / "unsent"), before, rtol=1e-5, atol=1e-6)
