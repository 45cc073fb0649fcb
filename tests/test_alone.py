"""Every codemod by itself on a whole training: a sample of what ``python -m benchmarks.alone`` verifies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import alone
from benchmarks.alone import CASES, Outcome, case, missing, outcome, page, planned, read
from turbofix import registry
from turbofix.engine.project import Chosen, analyze
from turbofix.findings import Risk
from turbofix.source.files import Workspace

PAGE = Path(alone.__file__).parent / "results" / "codemods.md"

NAMES = [each.name for each in registry.load() if each.module.startswith("turbofix_codemods.") and not each.mends]


def test_every_codemod_has_a_training_of_its_own() -> None:
    assert NAMES
    assert {each.codemod for each in CASES} == set(NAMES)
    assert [each.name for each in CASES if not each.path.is_file()] == []


def test_every_codemod_acts_on_its_training() -> None:
    alone_there = [each for each in CASES if not each.beside and each.codemod not in alone.ASKED]
    found = analyze(
        sorted({each.path for each in alone_there}),
        Chosen(select=tuple({each.codemod for each in alone_there}), risk=Risk.RECIPE, likely=True),
        Workspace(),
    )
    acts = {(each.codemod, each.site.path) for each in found.findings if found.applies(each)}
    assert [each.name for each in alone_there if (each.codemod, each.path) not in acts] == []


ASKED = [each for each in CASES if each.beside or each.codemod in alone.ASKED]


@pytest.mark.parametrize("each", ASKED, ids=lambda each: each.name)
def test_every_codemod_that_needs_another_or_is_asked_for_acts(each: alone.Case) -> None:
    assert planned(each) is not None


def test_every_codemod_has_its_row_on_the_page() -> None:
    rows = re.findall(r"(?m)^\| `([\w-]+)`[^|]*\| `([\w./]+)", PAGE.read_text("utf-8"))
    assert sorted(rows) == sorted((each.codemod, each.script) for each in CASES)


def test_a_codemod_is_verified_by_itself() -> None:
    pytest.importorskip("torch")
    (only,) = (each for each in CASES if each.codemod == "no-grad-eval")
    assert outcome(only).verdict == "kept"


def test_a_codemod_that_does_not_act_is_no_test() -> None:
    found = outcome(case("dynamic-padding", "lbfgs_sine.py"))
    assert (found.verdict, found.holds) == ("silent", False)


def test_a_training_whose_packages_are_missing_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "verify", lambda request: pytest.fail("it was run"))
    one = case("fused-optimizer", "spirals.py", needs=("no_such_package", "json"))
    assert missing(one) == ("no_such_package",)
    found = outcome(one)
    assert (found.verdict, found.reason) == ("not run", "no_such_package not installed")


def test_rows_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "CASES", (case("tf32", "a.py", "--epochs", "2", beside=("sdpa",)),))
    told = Outcome("tf32", "a.py", ("--epochs", "2"), ("sdpa",), "kept", "a | b")
    verified: list[alone.Case] = []

    def pretended(case: alone.Case, python: str | None) -> Outcome:
        verified.append(case)
        return told

    monkeypatch.setattr(alone, "outcome", pretended)
    rows = tmp_path / "rows.jsonl"
    for _ in range(2):  # the second run has nothing left to do
        with pytest.raises(alone.typer.Exit) as ended:
            alone.main(None, None, rows, None)
        assert ended.value.exit_code == 0
        assert read(rows) == [told]
    assert len(verified) == 1
    assert "| `tf32`, after `sdpa` | `a.py --epochs 2` | pass | a \\| b |" in page([told], "here")


@pytest.mark.parametrize(
    ("verdict", "holds"),
    [("kept", True), ("unverified", True), ("not run", True), ("dropped", False), ("silent", False)],
)
def test_what_holds(verdict: str, holds: bool) -> None:
    assert Outcome("tf32", "a.py", (), (), verdict, "").holds is holds
