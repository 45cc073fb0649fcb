"""Where rounding turns gradients by itself, 16 bits are no mistake, and a mistake beside 16 bits still is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Run, runner

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

# a residual network with BatchNorm as it is initialised, and arguments that make it small
NAIVE = Path(__file__).parents[1] / "benchmarks" / "training" / "naive" / "resnet50.py"
SMALL = (
    *("--train-images", "192", "--val-images", "32", "--batch-size", "16", "--epochs", "3", "--lr", "0.01"),
    *("--image-size", "32", "--classes", "5", "--width", "8", "--blocks", "1", "1", "1", "1"),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    for name in ("train.py", "candidate.py"):
        (tmp_path / name).write_text(NAIVE.read_text("utf-8"), "utf-8")
    run = runner(tmp_path, monkeypatch, capfdbinary)
    assert run("apply", "--select", "autocast", "--write", "candidate.py").code == 0
    return run


def verified(run: Run) -> dict[str, object]:
    ran = run("verify", "train.py", "candidate.py", "--output-format", "json", "-q", "--", *SMALL)
    answer: dict[str, object] = json.loads(ran.out)
    return answer


def test_sixteen_bits_pass_where_rounding_alone_turns_the_gradient(run: Run) -> None:
    answer = verified(run)
    assert answer["verdict"] == "pass", answer["reason"]
    assert "rounding its weights to bfloat16 alone turns the gradients" in json.dumps(answer)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("(loss * 0.9).backward()", "the loss is"),
        (
            "loss.backward(); model.layer1[0].conv2.weight.grad.mul_(0.5)",
            "gradient of `layer1.0.conv2.weight` is 0.",
        ),
    ],
)
def test_a_mistake_beside_sixteen_bits_fails_there(run: Run, tmp_path: Path, wrong: str, reason: str) -> None:
    candidate = tmp_path / "candidate.py"
    text = candidate.read_text("utf-8")
    assert text.count("        loss.backward()") == 1
    candidate.write_text(text.replace("        loss.backward()", f"        {wrong}"), "utf-8")
    answer = verified(run)
    assert answer["verdict"] == "fail"
    assert reason in str(answer["reason"])
