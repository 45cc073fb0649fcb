"""Where rounding turns gradients by itself, 16 bits are no mistake, and a mistake beside 16 bits still is one.

The script is run as it is once, and each rewrite is held against that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import walls
from commands import Run, runner

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage
from turbofix.verify.original import Original
from turbofix.verify.runner import Child

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

# a residual network with BatchNorm as it is initialised, and arguments that make it small
NAIVE = Path(__file__).parents[1] / "benchmarks" / "training" / "naive" / "resnet50.py"
SMALL = (
    *("--train-images", "192", "--val-images", "32", "--batch-size", "16", "--epochs", "3", "--lr", "0.01"),
    *("--image-size", "32", "--classes", "5", "--width", "8", "--blocks", "1", "1", "1", "1"),
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    script = tmp_path_factory.mktemp("rounding") / "train.py"
    script.write_text(NAIVE.read_text("utf-8"), "utf-8")
    with walls.scratch_for(script) as scratch:
        options = Options(timeout=120)
        request = Request(script, SMALL, (Stage(None, Risk.EQUIVALENT, {}),), options)
        child = Child(scratch, script, SMALL, script.parent, options)
        try:
            child.start()
            original = Original(child, scratch, request, remap=not child.cuda, tell=lambda progress: None)
            original.watch()
            yield original
        finally:
            child.close()


@pytest.fixture
def rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> str:
    """The script in 16 bits, as ``turbofix apply`` writes it."""
    candidate = tmp_path / "candidate.py"
    candidate.write_text(NAIVE.read_text("utf-8"), "utf-8")
    run: Run = runner(tmp_path, monkeypatch, capfdbinary)
    assert run("apply", "--select", "autocast", "--write", "candidate.py").code == 0
    return candidate.read_text("utf-8")


def test_sixteen_bits_pass_where_rounding_alone_turns_the_gradient(original: Original, rewritten: str) -> None:
    found = original.compare({original.script: rewritten.encode()}, exact=False, phase="16 bits")
    assert found.clean, (found.difference, found.unverifiable)
    assert found.log["events"]["autocast"]
    assert "rounding its weights to bfloat16 alone turns the gradients" in " ".join(original.notes())


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
def test_a_mistake_beside_sixteen_bits_fails_there(original: Original, rewritten: str, wrong: str, reason: str) -> None:
    assert rewritten.count("        loss.backward()") == 1
    text = rewritten.replace("        loss.backward()", f"        {wrong}")
    found = original.compare({original.script: text.encode()}, exact=False, phase=wrong)
    assert found.difference is not None
    assert reason in found.difference
