"""What no run by one process shows: that several with some layers each learn what one with all of them does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.training.model import Target

ROOT = Path(__file__).parent.parent
SCRIPT, BESIDE = ROOT / "fixtures" / "scripts" / "deep_points.py", ROOT / "codemods" / "_written_ranks.py"


@pytest.fixture(scope="module")
def launcher() -> Iterator[ranks.Server]:
    pytest.importorskip("torch")
    with ranks.server() as server:
        yield server


def trained(text: str, folder: Path, processes: int, launcher: ranks.Server) -> tuple[dict[str, Any], str]:
    """The weights that a script saves where so many processes run it, and what they print."""
    import torch

    folder.mkdir()
    (folder / SCRIPT.name).write_text(text, "utf-8")
    shutil.copy(BESIDE, folder / "ranks.py")
    ran = launcher.run(folder / SCRIPT.name, processes)
    assert (folder / "deep_points.pt").exists(), ran.err
    return torch.load(folder / "deep_points.pt"), "".join(ran.out)


@pytest.fixture(scope="module")
def texts() -> tuple[str, str]:
    """The script, in numbers of 64 bits so that rounding stays small, and its rewrite."""
    chosen = [each for each in registry.load() if each.name == "pipeline-parallel"]
    target, trust = Target(torch=(2, 6), pipeline=2), pipeline.Trust(likely=True)
    found = pipeline.apply(SCRIPT, Workspace(), chosen, target, Risk.EQUIVALENT, trust=trust)
    before, after = SCRIPT.read_text("utf-8"), found.texts[SCRIPT]
    assert found.texts[SCRIPT.with_name("ranks.py")].endswith(BESIDE.read_text("utf-8"))
    seed = "torch.manual_seed(1)\n"
    wide = f"{seed}    torch.set_default_dtype(torch.float64)\n"
    return before.replace(seed, wide), after.replace(seed, wide)


def test_two_processes_learn_what_one_does(texts: tuple[str, str], tmp_path: Path, launcher: ranks.Server) -> None:
    import torch

    before, after = texts
    gathers = "        pipeline.gather()"
    after = after.replace(gathers, f"        torch.save(model.state_dict(), f'apart{{ranks.rank}}.pt')\n{gathers}")
    one, told = trained(before, tmp_path / "before", 1, launcher)
    two, said = trained(after, tmp_path / "after", 2, launcher)
    # after 63 updates, of batches of 50 samples, all layers are saved under their old names; one process prints
    assert list(two) == list(one)
    assert said == told
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-9)
    for rank in (0, 1):  # each has learnt its own part alone until then
        apart = torch.load(tmp_path / "after" / f"apart{rank}.pt")
        learnt = [name for name in one if torch.allclose(apart[name], one[name], rtol=1e-5, atol=1e-9)]
        assert 0 < len(learnt) < len(one)
        assert ("layers.0.weight" in learnt) == (rank == 0)


def test_too_few_layers_are_told(texts: tuple[str, str], tmp_path: Path, launcher: ranks.Server) -> None:
    pytest.importorskip("torch")
    shallow = texts[1].replace("default=6", "default=0")
    with pytest.raises(AssertionError, match="the layers cannot be shared out among so many processes: start fewer"):
        trained(shallow, tmp_path / "shallow", 3, launcher)
