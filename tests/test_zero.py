"""That a training whose state is shared out learns, keeps and goes on as before, with a share of it in each process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ranks

from turbofix import config, registry
from turbofix.engine import pipeline
from turbofix.engine.project import Chosen
from turbofix.engine.verifying import plan_verification
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.training.model import Target
from turbofix.verify import Options, verify
from turbofix.verify.result import KEPT

SEVERAL = Path(__file__).parent / "several"
BESIDE = Path(__file__).parent.parent / "codemods" / "_written_ranks.py"
SCRIPT = SEVERAL / "shared_out.py"
STAGES = (1, 2, 3)

MEASURING = """
import json, os
for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "1", "RANK": "0"}.items():
    os.environ.setdefault(name, value)  # the script starts a group of one process, too
from torch.optim.optimizer import register_optimizer_step_post_hook

def size(tensor):
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size()

def measure(optimizer, *given):
    own = getattr(optimizer, "optim", optimizer)
    if not any(own.state.values()):
        return
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    kept = [each for state in own.state.values() for name, each in state.items() if name != "step"]
    parts = {"state": kept, "grads": [each.grad for each in parameters], "weights": parameters}
    with open(f"bytes.{os.environ['RANK']}", "w") as file:
        json.dump({name: sum(map(size, tensors)) for name, tensors in parts.items()}, file)

register_optimizer_step_post_hook(measure)
"""


class Runs:
    """Runs of scripts by several processes each, one run after another."""

    def __init__(self, server: ranks.Server) -> None:
        self.server = server

    def __call__(self, folder: Path, text: str, processes: int, *args: str) -> list[dict[str, int]]:
        """Run a script: how many bytes each of its processes had of what can be shared out."""
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(text, "utf-8")
        shutil.copy(BESIDE, folder / "ranks.py")
        ran = self.server.run(folder / "train.py", processes, *args, before=MEASURING)
        assert not ran.error, ran.error
        return [json.loads((folder / f"bytes.{rank}").read_text("utf-8")) for rank in range(processes)]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    pytest.importorskip("torch")
    with ranks.server() as server:
        yield Runs(server)


@cache
def rewritten(script: Path, stage: int, *names: str) -> str:
    chosen = [each for each in registry.load() if each.name in ("zero", *names)]
    target = Target(torch=(2, 6), gpus=2, zero=stage)
    found = pipeline.apply(script, Workspace(), chosen, target, Risk.EQUIVALENT, trust=pipeline.Trust(likely=True))
    assert not found.report.notes, found.report.notes
    return found.texts[script]


def numbers(kept: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is in a checkpoint, by where it is."""
    if isinstance(kept, (dict, list, tuple)):
        for key, each in kept.items() if isinstance(kept, dict) else enumerate(kept):
            yield from numbers(each, f"{name}.{key}")
    else:
        yield name, kept


def check_same(folder: Path, other: Path, tolerance: float) -> None:
    """Hold two checkpoints against each other: the same names, the same settings, and numbers that agree."""
    import torch

    one, two = (dict(numbers(torch.load(each, map_location="cpu", weights_only=False))) for each in (folder, other))
    assert one.keys() == two.keys()
    for name, value in one.items():
        if torch.is_tensor(value):
            apart = (value.double() - two[name].double()).abs().max()
            assert apart <= tolerance * value.abs().max().clamp(min=1e-3), name
        else:
            assert value == two[name], name


@pytest.fixture(scope="module")
def alone(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """What one process learns in 50 steps, then in 50 more; and what it holds."""
    folder, text = tmp_path_factory.mktemp("alone"), SCRIPT.read_text("utf-8")
    (held,) = runs(folder, text, 1)
    runs(folder / "more", text, 1, "--resume", "../last.pt")
    return folder, held


@pytest.mark.parametrize("stage", STAGES)
def test_two_processes_learn_the_same_with_a_share_each(
    stage: int, runs: Runs, alone: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    before, whole = alone
    text = rewritten(SCRIPT, stage)
    held = runs(tmp_path / "after", text, 2)
    check_same(before / "last.pt", tmp_path / "after" / "last.pt", 1e-5)
    check_same(before / "best.pt", tmp_path / "after" / "best.pt", 1e-5)
    shared = ("state",) if stage == 1 else ("state", "grads", "weights")
    for what in whole:
        parts = [each[what] for each in held]
        if what in shared:
            assert sum(parts) == whole[what]
            assert max(parts) < 0.55 * whole[what]
        else:
            assert parts == [whole[what]] * 2
    if stage == 2:  # what it saves and loads is that of stage 3
        return
    resume = ("--resume", str(before / "last.pt"), "--out", "later.pt")  # it goes on with what one process has saved
    runs(tmp_path / "after", text, 2, *resume)
    check_same(before / "more" / "last.pt", tmp_path / "after" / "later.pt", 1e-4)
    resume = (
        "--resume",
        str(tmp_path / "after" / "last.pt"),
        "--out",
        "later.pt",
    )  # and the script as it was with that
    runs(tmp_path / "one", SCRIPT.read_text("utf-8"), 1, *resume)
    check_same(before / "more" / "last.pt", tmp_path / "one" / "later.pt", 1e-4)


def test_a_script_of_one_process_comes_all_the_way(runs: Runs, tmp_path: Path) -> None:
    import torch

    script = tmp_path / "in_order.py"
    script.write_text((SEVERAL / "resume.py").read_text("utf-8").replace("shuffle=True", "shuffle=False"), "utf-8")
    text = rewritten(script, 3, "ddp")
    assert "fully_shard(" in text
    assert "DistributedDataParallel" not in text
    runs(tmp_path / "one", script.read_text("utf-8"), 1)
    runs(tmp_path / "one_as_before", text, 1)
    runs(tmp_path / "two", text, 2)
    check_same(tmp_path / "one" / "checkpoint.pt", tmp_path / "one_as_before" / "checkpoint.pt", 0.0)
    check_same(tmp_path / "one" / "checkpoint.pt", tmp_path / "two" / "checkpoint.pt", 1e-5)
    assert torch.load(tmp_path / "two" / "checkpoint.pt")["epoch"] == 3


def test_verify_compares_shares_with_what_the_script_learns() -> None:
    pytest.importorskip("torch")
    script = SEVERAL.parent.parent / "fixtures" / "scripts" / "ddp_points.py"
    chosen = Chosen(select=("zero",), zero=3)
    (found,) = verify(plan_verification(script, (), chosen, Options(processes=1), Workspace())).codemods
    assert (found.codemod, found.verdict) == ("zero", KEPT), found.reason
    assert found.reason.startswith("gradients agree to 0 and updates to 0 over 21 steps")


def test_stages_are_one_to_three() -> None:
    assert config.read_table({"zero": 3}, Path("pyproject.toml")).zero == 3
    for wrong in (0, 4, True, "1"):
        with pytest.raises(config.ConfigError, match=r"zero in \[tool.turbofix\]: .* no stage of ZeRO: write 1"):
            config.read_table({"zero": wrong}, Path("pyproject.toml"))


def test_who_asks_for_shares_of_a_model_has_the_torch_for_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for zero, version in ((1, Target().torch), (2, (2, 6)), (3, (2, 6))):
        assert config.target(config.Settings(zero=zero), script, tmp_path).torch == version
    assert config.target(config.Settings(zero=2, torch_version=(2, 5)), script, tmp_path).torch == (2, 5)
