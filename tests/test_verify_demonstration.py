"""The demonstration script through the public command: what breaks its learning fails by name, what does not passes.

The float16 rewrite is what ``turbofix apply --gpu turing`` makes; where there is no GPU its CUDA is remapped.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import Run, runner

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

SHORT = ("--accumulation-steps", "2")  # as many updates of a quarter of the samples
FEW = ("--steps", "4")  # where the first steps show it
SCRIPT = Path(__file__).parents[1] / "fixtures" / "scripts" / "seq2seq.py"
SMALLER = (  # what is verified, and how, does not change with it
    ("d_model=128, n_heads=4, d_hidden=512, n_layers=2", "d_model=32, n_heads=4, d_hidden=64, n_layers=1"),
    ("pairs[1280:]", "pairs[1280:1320]"),
)


def small(text: str | None = None) -> str:
    """The script, or a rewrite of it, with a smaller network that is validated on a quarter of the pairs."""
    text = SCRIPT.read_text("utf-8") if text is None else text
    for old, new in SMALLER:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


# what is broken: (text, what takes its place, epochs that show it, words of the reason)
BROKEN: dict[str, tuple[str, str, int, str]] = {
    "no zero_grad": (
        "            optimizer.step()\n            optimizer.zero_grad()\n",
        "            optimizer.step()\n",
        1,
        "at step 2 clip_grad_norm_ sees a gradient norm",
    ),
    "no division": ("        loss = loss / accumulation_steps\n", "", 1, "at step 1 clip_grad_norm_ sees"),
    "learning rate": ("lr=args.lr", "lr=args.lr * 1.1", 1, "the learning rate is 5.5e-05 instead of 5e-05"),
    # the validation's evaluation mode is left on in the second epoch
    "evaluation mode": ("    model.train()\n", "", 2, "at step 11 Dropout modules run in evaluation mode"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    (tmp_path / "seq2seq.py").write_text(small(), "utf-8")
    return runner(tmp_path, monkeypatch, capfdbinary)


def verified(run: Run, candidate: str, *asked: str, epochs: int = 1) -> tuple[int, dict[str, object]]:
    """The exit status and the JSON of ``turbofix verify seq2seq.py CANDIDATE``."""
    arguments = (*SHORT, "--epochs", str(epochs))
    ran = run("verify", "seq2seq.py", candidate, *asked, "--output-format", "json", "-q", "--", *arguments)
    answer: dict[str, object] = json.loads(ran.out)
    return ran.code, answer


def test_against_itself_it_passes_and_claims_no_speed(run: Run) -> None:
    code, answer = verified(run, "seq2seq.py")
    assert (code, answer["verdict"], answer["speedup"]) == (0, "pass", None)
    assert answer["reason"] == "it learns the same over 10 steps and 1 epoch end"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_candidate_fails_and_is_told_why(run: Run, tmp_path: Path, name: str) -> None:
    old, new, epochs, words = BROKEN[name]
    text = small()
    assert text.count(old) == 1
    (tmp_path / "candidate.py").write_text(text.replace(old, new))
    code, answer = verified(run, "candidate.py", *(FEW if epochs == 1 else ()), epochs=epochs)
    assert (code, answer["verdict"]) == (1, "fail")
    assert words in str(answer["reason"])


def test_the_float16_rewrite_passes_and_without_unscale_fails(run: Run, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.py"
    shutil.copy(SCRIPT, candidate)
    run("apply", "--gpu", "turing", "--write", "candidate.py")
    run("apply", "--gpu", "turing", "--likely", "--select", "crash-checkpoint", "--write", "candidate.py")
    text = small(candidate.read_text("utf-8"))
    candidate.write_text(text, "utf-8")
    assert text.count("            scaler.unscale_(optimizer)\n") == 1
    code, answer = verified(run, "candidate.py")
    assert (code, answer["verdict"]) == (0, "pass")
    # what it keeps of an interrupted training does not run where nothing interrupts it
    assert "not run, and so not verified: seq2seq.py, lines" in str(answer["reason"])
    candidate.write_text(text.replace("            scaler.unscale_(optimizer)\n", ""))
    code, answer = verified(run, "candidate.py", *FEW)
    assert (code, answer["verdict"]) == (1, "fail")
    assert "clip_grad_norm_ sees a gradient norm" in str(answer["reason"])
