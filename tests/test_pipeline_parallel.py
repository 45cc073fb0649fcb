"""What no run by one process shows: that several with some layers each learn what one with all of them does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.training.model import Target

SCRIPT = Path(__file__).parent.parent / "fixtures" / "scripts" / "deep_points.py"


def trained(text: str, folder: Path, processes: int) -> tuple[dict[str, Any], str]:
    """The weights that a script saves where so many processes run it, and what they print."""
    import torch

    folder.mkdir()
    (folder / SCRIPT.name).write_text(text, "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    if processes > 1:
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    command = [sys.executable, SCRIPT.name]
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {} for rank in range(processes)]
    started = [
        subprocess.Popen(command, cwd=folder, env=given | rank, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in ranks
    ]
    try:
        said = [each.communicate(timeout=120) for each in started]
    finally:
        for each in started:
            each.kill()
    # a process may be aborted when all is done: what they wrote counts
    assert (folder / "deep_points.pt").exists(), [error.decode() for _, error in said]
    return torch.load(folder / "deep_points.pt"), "".join(printed.decode() for printed, _ in said)


@pytest.fixture(scope="module")
def texts() -> tuple[str, str]:
    """The script, in numbers of 64 bits so that rounding stays small, and its rewrite."""
    chosen = [each for each in registry.load() if each.name == "pipeline-parallel"]
    target, trust = Target(torch=(2, 6), pipeline=2), pipeline.Trust(likely=True)
    found = pipeline.apply(SCRIPT, Workspace(), chosen, target, Risk.EQUIVALENT, trust=trust)
    before, after = SCRIPT.read_text("utf-8"), found.texts[SCRIPT]
    seed = "torch.manual_seed(1)\n"
    wide = f"{seed}    torch.set_default_dtype(torch.float64)\n"
    return before.replace(seed, wide), after.replace(seed, wide)


def test_two_processes_learn_what_one_does(texts: tuple[str, str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    before, after = texts
    gathers = "        pipeline.gather()"
    after = after.replace(gathers, f"        torch.save(model.state_dict(), f'apart{{rank}}.pt')\n{gathers}")
    one, told = trained(before, tmp_path / "before", 1)
    two, said = trained(after, tmp_path / "after", 2)
    # after 63 updates, of batches of 50 samples, all layers are saved under their old names; one process prints
    assert list(two) == list(one)
    assert said == told
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-9)
    for rank in (0, 1):  # each has learnt its own part alone until then
        apart = torch.load(tmp_path / "after" / f"apart{rank}.pt")
        learnt = [name for name in one if torch.allclose(apart[name], one[name], rtol=1e-5, atol=1e-9)]
        assert 0 < len(learnt) < len(one)
        assert ("layers.0.weight" in learnt) == (rank == 0)


def test_too_few_layers_are_told(texts: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shallow = texts[1].replace("default=6", "default=0")
    with pytest.raises(AssertionError, match="the layers cannot be shared out among so many processes: start fewer"):
        trained(shallow, tmp_path / "shallow", 3)
