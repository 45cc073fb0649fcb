"""The ledger of judgements: its tables, and the figures that are computed from them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.precision import analysis, corpus, intact, ledger, pool, score, sweep, tables
from benchmarks.precision.__main__ import app, findings
from benchmarks.precision.analysis import Found, Reached
from benchmarks.precision.corpus import Program
from benchmarks.precision.draw import draw
from benchmarks.precision.ledger import Expectation, Judgement
from benchmarks.precision.sweep import Said, Swept
from turbofix import registry
from turbofix.assumptions import ON_GPU, Assumption
from turbofix.codemod import Codemod
from turbofix.findings import Examined, Risk
from turbofix.source.site import Site

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HEADER = "repository\tcommit\tpath\tcodemod\tline\tverdict\treason\n"
ROW = f"a/b\t{COMMIT}\ttrain.py\tpin-memory\t12\tright\tThe batches go to the GPU.\n"


def found(
    line: int,
    codemod: str = "pin-memory",
    fixable: bool = True,
    risk: str = "exact",
    styles: tuple[str, ...] = ("flat",),
) -> Found:
    return Found("a/b", COMMIT, "train.py", codemod, str(line), fixable, risk, "slow", "", styles)


def judged(line: int, verdict: str, codemod: str = "pin-memory") -> Judgement:
    return Judgement("a/b", COMMIT, "train.py", codemod, str(line), verdict, "because")


def expected(line: int, what: str, codemod: str = "pin-memory") -> Expectation:
    return Expectation("a/b", COMMIT, "train.py", codemod, str(line), what, "because")


# --- tables ---------------------------------------------------------------------------------------------------------


def test_the_tables_of_this_checkout_can_be_read() -> None:
    scripts = corpus.scripts()
    commits = corpus.commits(scripts)
    assert len(scripts) == len({(row.repository, row.path) for row in scripts}) == 415
    assert len(commits) == len({(row.repository, row.commit) for row in scripts}) == 70
    codemods = {codemod.name for codemod in registry.load()}
    for row in (*ledger.judgements(), *ledger.expectations()):
        assert commits[row.repository] == row.commit
        assert row.codemod in codemods, row
        assert not Path(row.path).is_absolute()
    rows = {(row.repository, row.path) for row in (*ledger.judgements(), *ledger.expectations())}
    listed = {(row.repository, row.path) for row in scripts}
    for entry in corpus.entries():
        assert commits[entry.repository] == entry.commit
        assert (entry.repository, entry.path) in rows
        assert (entry.repository, entry.entry) not in listed


def test_a_row_that_is_written_reads_back() -> None:
    (row,) = tables.parse(HEADER + ROW, Judgement, "ledger.tsv")
    assert row == Judgement("a/b", COMMIT, "train.py", "pin-memory", "12", "right", "The batches go to the GPU.")
    assert tables.lines([row]) == ROW


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("repository\tcommit\n", "ledger.tsv:1: the columns must be repository, commit, path"),
        ("", "ledger.tsv:1: the columns must be"),
        (HEADER + "a/b\t12\n", "ledger.tsv:2: 2 cells, but 7 columns"),
        (HEADER + ROW + ROW.replace("right", "good"), "ledger.tsv:3: the verdict 'good' is none of right, wrong"),
        (HEADER + ROW.replace(COMMIT, "main"), "ledger.tsv:2: 'main' is no commit"),
        (HEADER + ROW.replace("\t12\t", "\tl. 12\t"), "ledger.tsv:2: the line 'l. 12' is no number"),
        (HEADER + ROW.replace("The batches go to the GPU.", ""), "ledger.tsv:2: a verdict needs its reason"),
        (HEADER + ROW + ROW, "ledger.tsv:3: the same finding as line 2"),
    ],
)
def test_a_wrong_table_is_told_by_its_line(text: str, sentence: str) -> None:
    with pytest.raises(tables.TableError) as error:
        ledger.unique(tables.parse(text, Judgement, "ledger.tsv"), "ledger.tsv")
    assert str(error.value).startswith(sentence)


def test_a_place_in_a_notebook_and_a_row_without_a_verdict_are_rows() -> None:
    text = HEADER + ROW.replace("\t12\tright\tThe batches go to the GPU.", "\t3:12\t\t")
    (row,) = tables.parse(text, Judgement, "ledger.tsv")
    assert (row.line, row.verdict) == ("3:12", "")


def test_only_rows_of_what_is_laid_out_at_its_commit_count() -> None:
    row = judged(1, "right")
    assert ledger.at_commits([row], {"a/b": COMMIT}) == [row]
    assert ledger.at_commits([row], {"a/b": "f" * 40}) == ledger.at_commits([row], {"c/d": COMMIT}) == []


def test_an_expectation_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="none of fix, refuse, silent"):
        expected(1, "maybe")


# --- figures --------------------------------------------------------------------------------------------------------


def test_arguable_is_not_right_and_the_unjudged_do_not_count() -> None:
    verdicts = score.verdicts([judged(1, "right"), judged(2, "arguable"), judged(3, "wrong"), judged(4, "")])
    figures = score.precision([found(1), found(2), found(3), found(4), found(5)], verdicts)
    assert (figures.right, figures.wrong, figures.arguable, figures.unjudged) == (1, 1, 1, 2)
    assert figures.share == pytest.approx(1 / 3)
    assert score.precision([found(5)], verdicts).share is None


def test_only_what_apply_would_rewrite_is_measured() -> None:
    everything = [found(1), found(2, fixable=False), found(3, risk="recipe")]
    assert score.unjudged(everything, {}) == [found(1)]
    assert score.precision(everything, {}).unjudged == 1


def test_a_verdict_holds_for_its_codemod_and_line_alone() -> None:
    verdicts = score.verdicts([judged(1, "right", "non-blocking"), judged(2, "right")])
    assert score.unjudged([found(1), found(2)], verdicts) == [found(1)]


def test_figures_by_style_count_a_shared_finding_in_each() -> None:
    groups = score.grouped([found(1, styles=("flat", "gan"))], {found(1).key: "right"}, lambda each: each.styles)
    assert {name: each.right for name, each in groups.items()} == {"flat": 1, "gan": 1}


def test_judged_findings_that_are_gone_are_listed() -> None:
    rows = [judged(1, "right"), judged(2, "wrong"), judged(3, "right"), judged(4, "")]
    assert score.gone([found(1), found(2, fixable=False)], rows) == rows[1:3]


def test_recall_asks_for_what_was_expected() -> None:
    said = [found(1), found(2, fixable=False), found(3)]
    rows = [expected(1, "fix"), expected(2, "fix"), expected(9, "fix"), expected(2, "refuse"), expected(1, "refuse")]
    rows += [expected(3, "silent"), expected(4, "silent")]
    shares = {name: (each.met, each.all) for name, each in score.recall(rows, said).items()}
    assert shares == {"fix": (1, 3), "fix: pin-memory": (1, 3), "refuse": (1, 2), "silent": (1, 2)}
    assert score.missed(rows, said) == [rows[1], rows[2], rows[4], rows[5]]


def test_a_read_that_waits_for_throttle_logging_is_found_where_that_comes_too() -> None:
    waiting = replace(found(2, "defer-item", fixable=False), why_not=f"line 3 shows it in every step: {score.UNLOCKED}")
    row = expected(2, "fix", "defer-item")
    assert score.missed([row], [waiting, found(3, "throttle-logging")]) == []
    assert score.missed([row], [waiting, found(3, "throttle-logging", fixable=False)]) == [row]
    assert score.missed([row], [replace(waiting, why_not="it decides"), found(3, "throttle-logging")]) == [row]


def test_what_a_codemod_says_of_the_whole_program_is_expected_of_the_file_and_judged_by_its_line() -> None:
    assert "tf32" in ledger.of_programs()
    assert "pin-memory" not in ledger.of_programs()
    said = [found(9, "tf32"), found(12, "tf32", fixable=False)]
    rows = [expected(2, "fix", "tf32"), expected(2, "silent", "tf32"), expected(2, "refuse", "tf32")]
    assert score.missed(rows, said) == rows[1:]
    assert score.missed(rows, said[1:]) == [rows[0]]
    assert score.missed([replace(rows[0], path="other.py")], said) != []
    assert score.gone(said, [judged(2, "right", "tf32")]) != []
    with pytest.raises(tables.TableError, match="line 2"):
        ledger.unique([rows[0], expected(3, "fix", "tf32")], "reading.tsv", ledger.place)


def test_a_draw_is_repeatable_and_every_stratum_is_in_it() -> None:
    common = [found(line) for line in range(200)]
    rare = [found(line, "tf32", styles=("rl",)) for line in range(5)] + [found(7, "autocast", styles=("gan",))]
    drawn = draw([*common, *rare, found(300, "compile", fixable=False)], seed=1, count=50)
    assert drawn == draw([*rare, *common], seed=1, count=50)
    assert drawn != draw([*common, *rare], seed=2, count=50)
    assert len(set(drawn)) == 50
    counts = Counter(each.codemod for each in drawn)
    assert counts["autocast"] == 1
    assert counts["tf32"] >= 3
    assert counts["compile"] == 0


def test_a_draw_of_more_than_there_is_takes_everything() -> None:
    assert draw([found(2), found(1)], seed=0, count=150) == [found(1), found(2)]


DATA = """\
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def training():
    return DataLoader(ImageFolder("train"), batch_size=64, num_workers=8)


def validation():
    return DataLoader(ImageFolder("val"), batch_size=64, num_workers=8)
"""
USE = """\
import torch
from torch import nn
from data import LOADER

model = nn.Linear(784, 10).cuda()
optimizer = torch.optim.Adam(model.parameters())
if __name__ == "__main__":
    for images, labels in LOADER():
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# --- analysis -------------------------------------------------------------------------------------------------------


def examined(path: Path, line: int, column: int, fixable: bool, *assumes: Assumption) -> tuple[str, Examined]:
    site = Site(path, line, column, line, column + 5, "Call")
    why_not = None if fixable else "no"
    told = Examined("pin-memory", "data", site, "slow", Risk.EXACT, fixable, why_not, None, assumes=assumes)
    return str(line), told


def test_a_shared_module_s_finding_counts_once_and_is_refused_where_one_script_refuses(tmp_path: Path) -> None:
    engine = tmp_path / "engine.py"
    first, second = (Program("a/b", COMMIT, tmp_path, name) for name in ("one.py", "two.py"))
    reached = [
        Reached(first, (examined(engine, 3, 0, True), examined(engine, 9, 0, True))),
        Reached(second, (examined(engine, 3, 0, False), examined(engine, 9, 0, True))),
    ]
    rows = analysis.merge(reached, {("a/b", "one.py"): "flat", ("a/b", "two.py"): "gan"})
    assert [(row.path, row.line, row.fixable, row.styles) for row in rows] == [
        ("engine.py", "3", False, ("flat", "gan")),
        ("engine.py", "9", True, ("flat", "gan")),
    ]


def test_likely_is_no_fix_until_it_is_asked_for(tmp_path: Path) -> None:
    engine = tmp_path / "engine.py"
    first, second = (Program("a/b", COMMIT, tmp_path, name) for name in ("one.py", "two.py"))
    reached = [
        Reached(first, (examined(engine, 3, 0, True), examined(engine, 9, 0, True))),
        Reached(second, (examined(engine, 3, 0, True, ON_GPU), examined(engine, 9, 0, True))),
    ]
    rows = analysis.merge(reached, {})
    assert [(row.line, row.fixable, row.likely) for row in rows] == [("3", True, True), ("9", True, False)]
    assert [row.line for row in analysis.fixable(rows)] == ["9"]


def test_a_module_that_a_listed_training_program_reads_is_no_entry(tmp_path: Path) -> None:
    engine, script = (Program("a/b", COMMIT, tmp_path, name) for name in ("engine.py", "train.py"))
    said = (examined(engine.file, 3, 0, True),)
    alone = Reached(engine, (examined(engine.file, 3, 0, False),), frozenset({engine.file}), trains=True)
    whole = Reached(script, said, frozenset({engine.file, script.file}), trains=True)
    assert [row.fixable for row in analysis.merge([alone, whole], {})] == [True]
    assert [row.fixable for row in analysis.merge([replace(alone, guarded=True), whole], {})] == [False]
    assert [row.fixable for row in analysis.merge([alone, replace(whole, trains=False)], {})] == [False]


def test_of_an_entry_that_is_not_listed_only_the_file_with_rows_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus.folder_of(tmp_path, "a/b")
    folder.mkdir()
    (folder / "data.py").write_text(DATA)
    for name, called in (("train.py", "validation"), ("other.py", "training")):
        (folder / name).write_text(USE.replace("LOADER", called))
    scripts, entries = tmp_path / "scripts.tsv", tmp_path / "entries.tsv"
    scripts.write_text(f"repository\tcommit\tpath\tstyle\na/b\t{COMMIT}\ttrain.py\tflat\n")
    entries.write_text("repository\tcommit\tpath\tentry\n")
    monkeypatch.setattr(corpus, "SCRIPTS", scripts)
    monkeypatch.setattr(corpus, "ENTRIES", entries)
    monkeypatch.setattr(pool, "run", lambda work, items, *_: [work(each) for each in items])
    row = Expectation("a/b", COMMIT, "data.py", "pin-memory", "6", "fix", "because")

    def told() -> set[tuple[str, str, str]]:
        said = findings({"a/b": folder}, 1, [row])
        return {(each.path, each.codemod, each.line) for each in said if each.codemod != "tf32"}

    before = told()
    assert ("data.py", "pin-memory", "10") in before
    assert row.key[1:] not in before
    entries.write_text(entries.read_text() + f"a/b\t{COMMIT}\tdata.py\tother.py\n")
    assert told() - before >= {row.key[1:]}
    assert {path for path, _, _ in told() - before} == {"data.py"}
    assert score.missed([row], findings({"a/b": folder}, 1, [row])) == []


def test_two_findings_on_a_line_are_judged_as_one(tmp_path: Path) -> None:
    program = Program("a/b", COMMIT, tmp_path, "train.py")
    file = program.file
    reached = [Reached(program, (examined(file, 3, 0, False), examined(file, 3, 20, True)))]
    (row,) = analysis.merge(reached, {})
    assert (row.line, row.fixable, row.styles) == ("3", True, ("other",))


def test_a_place_in_a_notebook_is_its_cell_and_line(tmp_path: Path) -> None:
    imports, rest = TRAINING.split("\n\n", 1)
    cells = [{"cell_type": "code", "source": each, "outputs": [], "metadata": {}} for each in (imports, rest)]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    program = Program("a/b", COMMIT, tmp_path, "train.ipynb")
    lines = {(each.codemod, each.line) for each in analysis.merge([analysis.analyze(program)], {})}
    assert lines >= {("fused-optimizer", "2:2"), ("pin-memory", "2:3")}
    assert sweep.sweep(program).rewritten == 1


# --- the sweep ------------------------------------------------------------------------------------------------------

TRAINING = """\
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST

model = torch.nn.Sequential(torch.nn.Linear(784, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(MNIST("."), batch_size=64)
for images, labels in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
"""


def program(folder: Path, text: str) -> Program:
    (folder / "train.py").write_text(text)
    return Program("a/b", COMMIT, folder, "train.py")


def test_a_training_script_is_swept_through_the_whole_pipeline(tmp_path: Path) -> None:
    swept = sweep.sweep(program(tmp_path, TRAINING))
    assert swept.trains
    assert swept.rewritten == 1
    states = {each.codemod: each.state for each in swept.said}
    assert {each.path for each in swept.said} == {"train.py"}
    assert {states[name] for name in ("pin-memory", "loader-workers", "autocast")} == {"fixed"}
    assert {name: state for name, state in states.items() if state != "fixed"} == {
        "tf32": "void",  # by autocast
        "larger-batch": "riskier",  # pictures of 28 by 28: it changes the recipe
        "compile-model": "refused",  # one epoch of MNIST is too short
        "crash-checkpoint": "refused",  # and nothing counts its rounds
        "cache-preprocessing": "refused",  # the data are read once, and nothing that is kept is used again
        "preload-dataset": "refused",
    }
    assert [ask(swept) for _, ask in sweep.MUST_BE_EMPTY] == [()] * len(sweep.MUST_BE_EMPTY)
    assert swept.lines == TRAINING.count("\n") + 1
    assert swept.seconds > 0
    looked = sweep.look(program(tmp_path, TRAINING))
    assert looked.trains
    assert looked.rewritten == 0
    assert {each.state for each in looked.said} == {"fixed", "refused", "riskier"}


def test_what_python_cannot_read_is_told_and_is_no_crash(tmp_path: Path) -> None:
    swept = sweep.sweep(program(tmp_path, 'import torch\nprint "loss"\n'))
    assert swept.unreadable.startswith("a/b/train.py:2:1: this is Python 2")
    assert not swept.crashes


def test_a_codemod_that_raises_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Codemod("broken", group="data", risk=Risk.EXACT)

    @broken.find
    def find(program: object) -> list[object]:
        raise RuntimeError("as if by mistake")

    monkeypatch.setattr(registry, "load", lambda: (broken,))
    (sentence,) = sweep.sweep(program(tmp_path, TRAINING)).crashes
    assert "as if by mistake" in sentence


def test_a_finding_is_counted_once_with_its_worst_end() -> None:
    fixed, refused = (Said("a/b", "engine.py", 3, 0, "pin-memory", state) for state in ("fixed", "refused"))
    other = Said("a/b", "engine.py", 4, 0, "pin-memory", "fixed")
    counts = sweep.states([Swept("one", said=(fixed, other)), Swept("two", said=(refused, other))])
    assert counts == {"pin-memory": Counter(fixed=1, refused=1)}


def test_the_exponent_of_a_linear_cost_is_one() -> None:
    linear = [Swept(str(n), lines=100 * n, seconds=0.01 * n, trains=True) for n in range(1, 41)]
    square = [Swept(str(n), lines=100 * n, seconds=0.01 * n * n, trains=True) for n in range(1, 41)]
    figures, others = sweep.cost(linear), sweep.cost(square)
    assert figures is not None
    assert others is not None
    assert figures.slope == pytest.approx(1)
    assert [round(rate) for _, rate in figures.quartiles] == [10_000] * 4
    assert (figures.median, figures.p90, figures.longest) == pytest.approx((0.205, 0.36, 0.4))
    assert others.slope == pytest.approx(2)
    assert sweep.cost([Swept("idle", lines=10, seconds=1.0)]) is None
    assert [each.name for each in sweep.too_slow(linear, 0.385)] == ["40", "39"]


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"\xef\xbb\xbfa = 1\n", b"a = 2\n", "byte-order mark"),
        (b"a = 1\r\nb = 1\r\n", b"a = 2\nb = 1\r\n", "newlines that the file did not have"),
        (b"a = 1", b"a = 2\n", "the newline at the end"),
        (b"a = 1\nb = 1  \nc = 1\n", b"a = 2\nb = 1\nc = 1\n", "2: changed in nothing but"),
        (b"a = 1\r\nb = 1\n", b"a = 2\r\nb = 1\r\n", "2: changed in nothing but"),
        (b"# coding: latin-1\na = '\xe9'\n", b"# coding: utf-8\na = '\xc3\xa9'\n", "its encoding was iso-8859-1"),
        (b"a = '\xc3\xa9'\n", b"a = '\xe9'\n", "its encoding was utf-8 and is unreadable"),
    ],
)
def test_what_changed_beside_the_edits_is_seen(old: bytes, new: bytes, what: str) -> None:
    assert any(what in sentence for sentence in intact.damages("train.py", old, new))


def test_an_edit_alone_is_no_damage() -> None:
    old = b"\xef\xbb\xbfa = 1\r\n\r\nif a:\r\n    b = 1  \r\nc = 1"
    new = b"\xef\xbb\xbfa = 2\r\n\r\nif a:\r\n    with x:\r\n        b = 1  \r\nc = 1"
    assert list(intact.damages("train.py", old, new)) == []
    assert intact.diff_problem({"folder/train.py": (old, new)}) is None


def test_a_rewritten_file_must_compile_where_the_original_did() -> None:
    assert intact.compile_problem("a.py", b"a = 1\n", b"a = = 1\n") == "a.py: invalid syntax (<rewritten>, line 1)"
    assert intact.compile_problem("a.py", b"a = = 1\n", b"a = = 2\n") is None
    assert intact.compile_problem("a.py", b"a = 1\n", b"a = 2\n") is None


def notebook(source: list[str], output: str = "1") -> bytes:
    cell = {"cell_type": "code", "source": source, "outputs": [output]}
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# one"]}, cell]}).encode()


def test_a_notebook_may_change_in_its_code_alone() -> None:
    old = notebook(["a = 1\n", "b = 2"])
    assert list(intact.damages("a.ipynb", old, notebook(["a = 2\n", "b = 2"]))) == []
    (sentence,) = intact.damages("a.ipynb", old, notebook(["a = 2\n", "b = 2"], output="2"))
    assert "beside the sources of its code cells" in sentence
    assert intact.compile_problem("a.ipynb", old, notebook(["a = = 2"])) is not None
    assert intact.compile_problem("a.ipynb", notebook(["%pip install x"]), notebook(["%pip install x", "\na"])) is None


# --- the corpus -----------------------------------------------------------------------------------------------------


def test_files_are_python_files_and_notebooks_outside_of_hidden_folders(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.ipynb", "a/readme.md", ".git/hook.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert list(corpus.files(tmp_path)) == ["a/c.ipynb", "b.py"]


def test_a_repository_that_is_missing_is_named(tmp_path: Path) -> None:
    corpus.folder_of(tmp_path, "a/b").mkdir()
    assert corpus.missing(tmp_path, {"a/b": COMMIT, "c/d": COMMIT}) == {"c/d": "is not laid out"}


def test_the_project_of_a_script_is_its_repository_or_a_project_inside(tmp_path: Path) -> None:
    repository = tmp_path / "a+b"
    (repository / "inner" / "tools").mkdir(parents=True)
    (repository / "inner" / "setup.py").write_text("import setuptools")
    (tmp_path / "setup.py").write_text("import setuptools")  # what stands above the repository is another's
    checkout = corpus.Checkout(repository)
    assert checkout.root(repository / "examples" / "train.py") == repository
    assert checkout.root(repository / "inner" / "tools" / "train.py") == repository / "inner"


@pytest.mark.parametrize("command", [["sweep"], ["check"], ["draw", "--seed", "1"]])
def test_without_a_corpus_every_command_says_so_and_succeeds(command: list[str], tmp_path: Path) -> None:
    name, *options = command
    result = CliRunner().invoke(app, [name, str(tmp_path), *options])
    assert result.exit_code == 0
    assert "is not laid out; see benchmarks/precision/README.md" in result.output
