"""Codemods beside each other on whole trainings: a sample of what ``python -m benchmarks.composition`` verifies."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import composition
from benchmarks.composition import SCRIPTS, Outcome, acting, combinations, outcomes, read, request_for
from turbofix.findings import Risk
from turbofix.verify import Request, Stage

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

SAMPLE = SCRIPTS / "tabular_mlp.py"


def test_every_two_and_all_are_combined() -> None:
    assert combinations(("a", "b", "c")) == [("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")]
    assert combinations(("a", "b")) == [("a", "b")]
    assert combinations(("a",)) == [("a",)]
    assert combinations(()) == []


def test_a_training_on_which_nothing_acts_is_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "acting", lambda script, risk: ())
    with pytest.raises(composition.typer.Exit) as ended:
        composition.main([SAMPLE], Risk.EQUIVALENT, None, None)
    assert ended.value.exit_code == 1


def test_a_sample_of_the_combinations_holds() -> None:
    codemods = acting(SAMPLE, Risk.EQUIVALENT)
    assert len(codemods) >= 4
    found = outcomes(SAMPLE, [codemods[:2], codemods], Risk.EQUIVALENT)
    assert {each.codemods: (each.verdict, each.dropped) for each in found} == {
        codemods[:2]: ("pass", ()),
        codemods: ("pass", ()),
    }


def test_what_comes_to_one_text_is_verified_once_and_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (Stage("a", Risk.EXACT, {SAMPLE: b"pass"}),)
    monkeypatch.setattr(composition, "request_for", lambda script, codemods, risk: Request(SAMPLE, stages=stages))
    verified: list[tuple[str, ...]] = []

    class Bench:
        def outcome(self, name: str, codemods: tuple[str, ...], request: Request) -> Outcome:
            verified.append(codemods)
            return Outcome(name, codemods, "inconclusive", "it did not run", unverified=("a",))

    monkeypatch.setattr(composition, "_bench", lambda script: nullcontext(Bench()))
    first, second = outcomes(SAMPLE, [("a", "b"), ("a", "c")], Risk.EXACT)
    assert verified == [("a", "b")]
    assert second == replace(first, codemods=("a", "c"), same_as=("a", "b"))


def test_a_combination_that_learns_otherwise_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(script: Path, codemods: tuple[str, ...], risk: Risk) -> object:
        request = request_for(script, codemods, risk)
        assert request is not None
        stages = tuple(
            replace(stage, files={path: text.replace(b"lr=", b"lr=2*") for path, text in stage.files.items()})
            for stage in request.stages
        )
        return replace(request, stages=stages, rebuild=lambda without: ())

    monkeypatch.setattr(composition, "request_for", broken)
    (found,) = outcomes(SAMPLE, [("defer-item", "fused-optimizer")], Risk.EQUIVALENT)
    assert not found.holds
    assert found.verdict == "fail"


@pytest.mark.parametrize(
    ("verdict", "dropped", "unverified", "holds"),
    [("pass", (), (), True), ("pass", ("a",), (), False), ("fail", (), (), False), ("inconclusive", (), ("a",), True)],
)
def test_what_holds(verdict: str, dropped: tuple[str, ...], unverified: tuple[str, ...], holds: bool) -> None:
    assert Outcome("train.py", ("a", "b"), verdict, "", dropped, unverified).holds is holds


def test_rows_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('no training')\n", encoding="utf-8")
    outcome = Outcome(str(script), ("a", "b"), "pass", "it learns the same", (), ("b",))
    monkeypatch.setattr(composition, "acting", lambda script, risk: ("a", "b"))
    monkeypatch.setattr(composition, "outcomes", lambda script, asked, risk: [outcome] if asked else [])
    rows = tmp_path / "rows.jsonl"
    for _ in range(2):  # the second run has nothing left to do
        with pytest.raises(composition.typer.Exit) as ended:
            composition.main([script], Risk.EQUIVALENT, None, rows)
        assert ended.value.exit_code == 0
        assert read(rows) == [outcome]
