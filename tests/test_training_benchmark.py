"""The benchmark of whole trainings: its jobs fit their scripts, its runner counts what it must, its table adds nothing.

Few of its programs are run here, at the tiny setting; ``python -m benchmarks.training --tiny`` runs all.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from benchmarks.training import measure, table
from benchmarks.training.__main__ import Bench
from benchmarks.training.job import COLUMNS, HERE, WRITTEN, Job, Load, edited
from benchmarks.training.jobs import all_jobs
from benchmarks.training.measure import Machine, Rewrite, Run, Task
from turbofix.registry import load

JOBS = all_jobs()
GPU = Machine("NVIDIA H200", "2.9.0", True)
CPU = Machine("CPU (x86_64)", "2.9.0", False)


def modules_of(statement: ast.Import | ast.ImportFrom) -> list[str]:
    return [str(statement.module)] if isinstance(statement, ast.ImportFrom) else [each.name for each in statement.names]


def test_every_script_belongs_to_a_job() -> None:
    for column in WRITTEN:
        assert {path.stem for path in (HERE / column).glob("*.py")} == set(JOBS), column


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_a_job_fits_its_scripts(job: Job) -> None:
    """Every column's program compiles, knows the arguments that it is given, and imports nothing of its neighbours."""
    naive = ast.dump(ast.parse(job.text("naive")))
    for column in COLUMNS:
        if column == "turbofix":
            continue
        tree = ast.parse(job.text(column))
        assert column == "naive" or ast.dump(tree) != naive
        options = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        for setting in (job.full, job.tiny):
            given = setting.of(column).arguments
            assert [each for each in given if each.startswith("--") and each not in options] == []
        named = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
        allowed = {"torch", "numpy", *(["accelerate"] if column == "library" else []), *sys.stdlib_module_names}
        assert {name.partition(".")[0] for each in named for name in modules_of(each)} <= allowed
    assert job.name == Path(job.path("naive")).stem
    assert set(job.silent) <= set(job.expects) <= {codemod.name for codemod in load()}
    assert re.compile(job.loss).groups == 1
    for setting in (job.full, job.tiny):
        assert set(setting.own) <= set(COLUMNS)
        totals = {setting.of(column).steps * setting.of(column).samples for column in COLUMNS}
        assert len(totals) == 1 or job.remarks  # another amount of work is told


def test_an_edit_that_does_not_fit_is_loud() -> None:
    assert edited("a b", (("a", "c"),), "") == "c b"
    for edit in (("x", "y"), ("b", "c")):
        with pytest.raises(ValueError, match="places for"):
            edited("a b b", (edit,), "")


# --- the runner

TWO_OPTIMIZERS = """\
import sys, torch
first, second = (torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(2))
for step in range(int(sys.argv[1])):
    for optimizer in (first, second):
        optimizer.step()
print("val loss 2.0 val loss 1.0")
assert __name__ == "__main__" and __file__ == "gpt2.py"
"""


def test_the_runner_counts_the_first_optimizer(ran_programs: dict[tuple[str, str], Run]) -> None:
    found = ran_programs["gpt2", "two optimizers"]
    assert (found.error, found.steps, found.losses) == (None, 9, (2.0, 1.0))
    assert found.samples_per_second is not None
    assert found.samples_per_second > 0


def test_a_program_that_fails_is_told(ran_programs: dict[tuple[str, str], Run]) -> None:
    error = ran_programs["gpt2", "failing"].error
    assert error is not None
    assert error.splitlines()[-1] == "ValueError: no"
    assert ran_programs["gpt2", "silent"].error == "0 optimizer steps, not 9"


def test_covered_time_is_counted_once() -> None:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("runner", measure.RUNNER)
    assert spec is not None
    assert spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    assert runner.covered([]) == 0
    assert runner.covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.0)]) == 4


# --- whole programs

PROGRAMS = [(name, "naive") for name in JOBS] + [("gpt2", "switches"), ("gpt2", "expert"), ("mlp", "expert")]

OTHERS = {
    "two optimizers": TWO_OPTIMIZERS,
    "failing": "raise ValueError('no')",
    "silent": "print('val loss 1.0')",
}


@pytest.fixture(scope="module")
def ran_programs() -> dict[tuple[str, str], Run]:
    """What came of the programs, all in forks of one interpreter: importing torch takes longer than most of them."""
    pytest.importorskip("torch")
    programs = [(name, column, JOBS[name].text(column), JOBS[name].tiny.of(column)) for name, column in PROGRAMS]
    programs += [("gpt2", what, text, Load(("9",), 9, 1.0)) for what, text in OTHERS.items()]
    with measure.Forks() as forks:
        return {
            (name, column): forks.run(Task(JOBS[name], column, text, load, 0, eager=True))
            for name, column, text, load in programs
        }


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("program", PROGRAMS, ids="-".join)
def test_a_program_runs_and_learns(ran_programs: dict[tuple[str, str], Run], program: tuple[str, str]) -> None:
    found = ran_programs[program]
    assert found.error is None
    assert found.samples_per_second is not None
    assert found.losses is not None
    assert found.losses[1] < found.losses[0]


# --- rows and tables


def row(column: str, speed: float | None, number: int = 0, error: str | None = None, busy: float | None = None) -> Run:
    return Run("key", "gpt2", column, number, "abc", 120, speed, 30.0, 2**31, busy, (5.0, 3.0), error)


REWRITE = Rewrite(
    "key", "gpt2", "pass", "it learns the same", (("sdpa", "kept", "good"), ("autocast", "dropped", "slower")),
    (("compile-model", 180, "not known"),), ("a note",), 12.5, "print()\n",
)  # fmt: skip


def lines(speeds: dict[str, list[float]], *more: Run) -> list[table.Line]:
    runs = [row(column, speed, number) for column, found in speeds.items() for number, speed in enumerate(found)]
    profiles = [row("turbofix", None, busy=0.5)]
    return table.lines_of({JOBS["gpt2"]: JOBS["gpt2"].full}, [*runs, *more], profiles, {"gpt2": REWRITE})


def test_the_table_says_what_was_measured() -> None:
    found = lines({"naive": [9000, 11000, 10000], "turbofix": [390000, 350000, 380000], "expert": [400000]})
    naive, ours, expert = (table.cells(line, GPU) for line in found)
    assert naive[2:6] == ["10,000 tokens", "9,000–11,000", "30.0", "2.00"]
    assert ours[-2:] == ["pass, 1 of 2 kept", "0.95"]
    assert ours[6] == "50 %"
    assert expert[7] == "35 %"  # 400,000 tokens of 0.85 GFLOPs each, of 989.5 TFLOP/s
    assert expert[-2:] == ["", ""]
    page = table.page("2026-01-01", GPU, "full", found)
    assert "turbofix / expert: median 0.95, lowest 0.95." in page
    assert "- gpt2: autocast dropped: slower" in page
    assert "- gpt2: compile-model, line 180: not known" in page
    assert "- gpt2: tf32, of which nothing is said: all passes run under autocast" in page
    assert "| gpt2 | sdpa | – | autocast | compile-model | native-ops, " in page


def test_a_cpu_claims_no_speed() -> None:
    page = table.page("2026-01-01", CPU, "tiny", lines({"naive": [9000], "turbofix": [390000], "expert": [400000]}))
    assert "390" not in page.partition("## The jobs")[0]
    assert "turbofix / expert" not in page
    assert "It measures no speed." in " ".join(page.split())


def test_a_failed_run_is_told() -> None:
    found = lines({"naive": [9000]}, row("expert", None, error="Traceback\nValueError: no"))
    assert table.cells(found[-1], GPU)[8] == "failed"
    assert "- gpt2, expert: `ValueError: no`" in table.page("2026-01-01", GPU, "full", found)


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(measure.to_json(each) + "\n" for each in (REWRITE, row("naive", 1.5))))
    assert list(measure.read(rows)) == [REWRITE, row("naive", 1.5)]


def test_what_stands_in_the_rows_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the program or its load is another."""
    pytest.importorskip("torch")
    ran: list[tuple[str, int]] = []

    def run(task: Task) -> Run:
        ran.append((task.column, task.number))
        return Run(task.key, "gpt2", task.column, task.number, "abc", 24, 100.0, 1.0, 1, None, (2.0, 1.0))

    monkeypatch.setattr(measure, "machine", lambda: CPU)
    rows = tmp_path / "rows.jsonl"
    job = JOBS["gpt2"]

    def fill(runs: int) -> Bench:
        bench = Bench({"gpt2": job.tiny}, True, rows, None, 5)
        bench.launch = run
        bench.fill([job], ["naive", "expert"], runs)
        return bench

    fill(1)
    assert ran == [("naive", 0), ("expert", 0)]
    assert [each.run for each in fill(2).runs] == [0, 0, 1, 1]
    assert ran[2:] == [("naive", 1), ("expert", 1)]
    monkeypatch.setattr(measure, "machine", lambda: GPU)
    monkeypatch.setattr(Bench, "late", lambda bench: True)
    assert fill(1).runs == []
