"""The benchmark of the verification itself: it covers what it must, runs the verifier's own path, and can fail.

A sample of its rewrites is verified here; ``python -m benchmarks.verification`` verifies all of them.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.verification import broken, good, tables
from benchmarks.verification.__main__ import app, chosen
from benchmarks.verification.measure import Verified, verify_all
from benchmarks.verification.rewrites import SCRIPTS, Rewrite, edited
from turbofix.engine.verifying import plan_comparison
from turbofix.findings import Risk
from turbofix.verify import Options, verify

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

ASKED = {
    "missing zero_grad", "no division", "wrong divisor", "missing unscale_", "learning rate × 2",
    "learning rate × 1.1", "stale batch", "zero before step", "zero each micro-batch", "evaluation mode",
    "removed clip", "frozen parameters", "double step", "shifted labels", "lost shuffling", "dropped last batch",
    "Adam to AdamW with decay", "BatchNorm momentum",
}  # fmt: skip


def named(rewrites: Sequence[Rewrite], kind: str, subject: str) -> Rewrite:
    return next(each for each in rewrites if (each.kind, each.subject.name) == (kind, subject))


def test_every_broken_kind_stands_on_five_scripts() -> None:
    assert set(broken.KINDS) == ASKED
    for kind, by_subject in broken.KINDS.items():
        assert len({subject.script for subject in by_subject}) >= 5, kind
    assert {each.subject.script for each in broken.REWRITES} == {path.name for path in SCRIPTS.glob("*.py")}


def test_the_good_kinds_stand_on_five_scripts() -> None:
    """But for those that few scripts have a place for."""
    for kind, by_subject in good.KINDS.items():
        few = {"SDPA", "larger batch", "channels last", "modern mixed precision"}
        assert len({subject.script for subject in by_subject}) >= (2 if kind in few else 5), kind


@pytest.mark.parametrize("suite", ["broken", "good"])
def test_every_rewrite_is_another_program_that_compiles(suite: str) -> None:
    for rewrite in {"broken": broken, "good": good}[suite].REWRITES:
        assert ast.dump(ast.parse(rewrite.text)) != ast.dump(ast.parse(rewrite.subject.text)), rewrite


def test_an_edit_that_does_not_fit_is_loud() -> None:
    assert edited("a b", (("a", "c"),), "") == "c b"
    for edit in (("x", "y"), ("b", "c"), ("a", "a")):
        with pytest.raises(ValueError, match="places for"):
            edited("a b b", (edit,), "")


ROUNDED = named(good.REWRITES, "bf16 autocast", "cnn")
SAMPLE = {
    "fail": [
        named(broken.REWRITES, "missing zero_grad", "accumulation in float32"),
        named(broken.REWRITES, "missing unscale_", "tabular"),
        named(broken.REWRITES, "wrong divisor", "tabular"),
        named(broken.REWRITES, "dropped last batch", "tabular"),
        named(broken.REWRITES, "double step", "gan"),
        named(broken.REWRITES, "one gradient halved", "gan"),
        named(broken.REWRITES, "evaluation mode", "unet"),
        named(broken.REWRITES, "learning rate × 1.1, after the step", "transformer"),
        # the benchmark of good rewrites can fail: bfloat16 is no exact rewrite, and a script that crashes no good one
        Rewrite("exact", ROUNDED.subject, ROUNDED.edits, Risk.EXACT),
        Rewrite("crash", ROUNDED.subject, (("loss.backward()", "loss.backwards()"),)),
    ],
    "pass": [
        named(good.REWRITES, "fp16 with scaler", "lstm in float32"),
        named(good.REWRITES, "bf16 autocast", "accumulation in float32"),
        named(good.REWRITES, "SDPA", "vit"),
        named(good.REWRITES, "workers", "cnn"),
        named(good.REWRITES, "deferred reads", "cnn"),
        named(good.REWRITES, "fused optimizer", "gan"),
        named(good.REWRITES, "larger batch", "transformer, even"),
    ],
}
FEW_STEPS = {"accumulation in float32": 8, "lstm in float32": 8, "transformer": 8, "transformer, even": 8, "vit": 8}
"""Of subjects whose rewrites need no end of an epoch: the command takes as many as ``verify`` does."""
SUBJECTS = sorted({each.subject.name for rewrites in SAMPLE.values() for each in rewrites})


@functools.cache
def verified(subject: str) -> dict[str, Verified]:
    """What became of the sample's rewrites of a subject, by their kind."""
    tasks = [(each, 1) for rewrites in SAMPLE.values() for each in rewrites if each.subject.name == subject]
    return {found.kind: found for found in verify_all(tasks, FEW_STEPS.get(subject))}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_broken_rewrites_are_failed_and_good_ones_passed(subject: str) -> None:
    found = verified(subject)
    asked = {
        each.kind: verdict for verdict, rewrites in SAMPLE.items() for each in rewrites if each.subject.name == subject
    }
    assert {kind: each.verdict for kind, each in found.items()} == asked, found
    assert {(kind, subject, 1) for kind in asked} == {(each.kind, each.subject, each.seed) for each in found.values()}


@pytest.mark.parametrize(
    "rewrite",
    [
        named(broken.REWRITES, "wrong divisor", "tabular"),
        named(good.REWRITES, "fused optimizer", "gan"),
        named(good.REWRITES, "deferred reads", "cnn"),
    ],
    ids=lambda each: each.kind,
)
def test_the_benchmark_says_what_verify_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrite: Rewrite) -> None:
    """The same script, candidate, seed and risk through ``verify`` itself, as the command calls it."""
    found = verified(rewrite.subject.name)[rewrite.kind]
    monkeypatch.chdir(tmp_path)
    script, candidate = tmp_path / rewrite.subject.script, tmp_path / "candidate.py"
    script.write_text(rewrite.subject.text, encoding="utf-8")
    candidate.write_text(rewrite.text, encoding="utf-8")
    whole = verify(plan_comparison(script, candidate, (), rewrite.risk, Options(seed=1, timeout=120)))
    assert (found.verdict, found.reason) == (whole.verdict, whole.reason)


ROWS = [
    Verified("no division", "vit", 0, "fail", "the gradient", 1.0),
    Verified("no division", "unet", 0, "pass", "it learns the same", 1.0),
    Verified("one gradient halved", "gan", 0, "fail", "the gradient", 1.0),
]


def test_the_page_tells_every_verdict_that_should_be_another() -> None:
    page = tables.page("2026-01-01", "torch 2", ROWS, [Verified("SDPA", "vit", 3, "fail", "the loss", 1.0)])
    assert "- Broken rewrites that were failed: 2 of 3." in page
    assert "- Good rewrites that were failed: 1 of 1; passed: 0 of 1." in page
    assert "| no division | 2 | 1 | 1 of 2 | 1 pass |" in page
    assert "- no division of unet, seed 0: pass: it learns the same" in page
    assert "- SDPA of vit, seed 3: fail: the loss" in page


def test_verdicts_that_stand_in_the_file_are_not_made_again(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row.to_json()) + "\n" for row in ROWS[:2]))
    asked = ["broken", "--only", "no division", "--only", "vit", "--rows", str(rows)]
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stdout) == (0, "")
    result = CliRunner().invoke(app, [*asked[:-2], "--only", "unet", "--rows", str(rows)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert CliRunner().invoke(app, ["good", "--only", "nothing"]).exit_code == 2


def test_only_narrows_by_kind_and_subject() -> None:
    both = chosen(broken.REWRITES, ["no division", "vit"])
    assert [(each.kind, each.subject.name) for each in both] == [("no division", "vit")]
    assert len(chosen(broken.REWRITES, ["no division"])) == 5
    assert {each.subject.name for each in chosen(broken.REWRITES, ["vit"])} == {"vit"}
