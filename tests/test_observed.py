"""``--observed``: what a run has shown settles assumptions, and its estimates rank, of one script alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(3, 32, 32), index % 10


model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 900, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Items(), batch_size=64)
for epoch in range(100):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""


def interval(low: float, high: float) -> dict[str, float]:
    return {"low": low, "median": (low * high) ** 0.5, "high": high}


def observation(script: str = "train.py", **settled: str) -> dict[str, Any]:
    gains = {
        "autocast": interval(0.98, 1.02),
        "channels-last": interval(3.0, 4.0),
        "fused-optimizer": interval(1, 1.1),
    }
    return {
        "version": 1,
        "script": script,
        "settled": [
            {"name": name, "sentence": "…", "settled": how, "figure": "1 size in 20 batches"}
            for name, how in settled.items()
        ],
        "advice": [{"codemod": name, "estimate": {"gpu": "h100", "speedup": brings}} for name, brings in gains.items()],
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text(SCRIPT)
    return runner(tmp_path, monkeypatch, capfdbinary)


def found(run: Run, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    """The findings of ``analyze`` by codemod."""
    ran = run("analyze", *arguments, "--output-format", "json")
    assert ran.code in (0, 1), ran.err
    by_codemod: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(ran.out)["findings"]:
        by_codemod.setdefault(each["codemod"], []).append(each)
    return by_codemod


def write(folder: Path, document: object) -> str:
    (folder / "seen.json").write_text(json.dumps(document))
    return "seen.json"


def test_what_a_run_has_shown_is_settled(run: Run, tmp_path: Path) -> None:
    (before,) = found(run, "train.py")["channels-last"]
    assumed = [each["name"] for each in before["assumes"]]
    assert before["certainty"] == "likely"
    assert assumed
    seen = write(tmp_path, observation(**dict.fromkeys(assumed, "observed")))
    (after,) = found(run, "train.py", "--observed", seen)["channels-last"]
    assert after["certainty"] == "proven"
    assert {each["name"]: each["settled"] for each in after["assumes"]} == dict.fromkeys(assumed, "observation")
    assert "channels_last" in run("apply", "train.py", "--observed", seen).out
    assert "channels_last" not in run("apply", "train.py").out


def test_what_a_run_has_refuted_is_not_offered(run: Run, tmp_path: Path) -> None:
    (before,) = found(run, "train.py")["channels-last"]
    name = before["assumes"][0]["name"]
    seen = write(tmp_path, observation(**{name: "refuted"}))
    (after,) = found(run, "train.py", "--observed", seen)["channels-last"]
    assert not after["fixable"]
    assert after["why_not"] == f"it rests on `{name}`, which a run has refuted"


def test_estimates_rank_and_take_the_place_of_what_others_measured(run: Run, tmp_path: Path) -> None:
    before = found(run, "train.py")
    assert before["autocast"][0]["worth"] == "some"
    assert "estimated" not in (before["autocast"][0]["gain_source"] or "")
    seen = write(tmp_path, observation())
    after = found(run, "train.py", "--observed", seen)
    assert (after["autocast"][0]["worth"], after["autocast"][0]["gain"]) == ("small", [0.98, 1.02])
    assert (after["channels-last"][0]["worth"], after["channels-last"][0]["gain"]) == ("high", [3.0, 4.0])
    assert after["fused-optimizer"][0]["worth"] == "some"
    assert after["channels-last"][0]["gain_source"].startswith("estimated on h100")
    assert after["pin-memory"][0]["gain"] is None  # nothing was estimated: what others measured is not this training's
    told = run("analyze", "train.py", "--observed", seen, "--verbose").out
    assert "estimates for your own step" in told
    # 3.46 by 1.05 by 1, the errors of which do not add up
    assert "up to here 3.12–4.23×" in told


def test_an_observation_is_of_one_script(run: Run, tmp_path: Path) -> None:
    seen = write(tmp_path, observation())
    assert found(run, "other.py", "--observed", seen) == found(run, "other.py")
    for command in ("analyze", "apply"):
        warned = "warning: --observed tells of train.py, which is none of these scripts"
        assert warned in run(command, "other.py", "--observed", seen).err
        assert warned not in run(command, ".", "--observed", seen).err
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "seen.json").write_text(json.dumps(observation()))  # not there: beside the file instead
    (tmp_path / "deeper" / "train.py").write_text(SCRIPT)
    (tmp_path / "train.py").unlink()
    assert found(run, "deeper/train.py", "--observed", "deeper/seen.json")["autocast"][0]["worth"] == "small"


UPSIDE_DOWN = {
    "script": "train.py",
    "advice": [{"codemod": "autocast", "estimate": {"gpu": "h100", "speedup": {"low": 2, "high": -1}}}],
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"script": 3}',
        '{"script": "train.py", "settled": [{}]}',
        json.dumps(UPSIDE_DOWN),
    ],
)
def test_what_is_no_observation_is_told(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "seen.json").write_text(text)
    ran = run("analyze", "train.py", "--observed", "seen.json")
    assert ran.code == 2
    assert "error: seen.json is no observation: `turbofix profile SCRIPT --output-format json" in ran.err


def test_an_observation_that_is_not_there_is_told(run: Run) -> None:
    ran = run("analyze", "train.py", "--observed", "none.json")
    assert ran.code == 2
    assert "error: none.json cannot be read: No such file or directory" in ran.err
