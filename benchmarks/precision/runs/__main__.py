"""Scripts of the labelled repositories, run: lay out, make data, time, ``apply --verify --write``, and print a row.

    python -m benchmarks.precision.runs CORPUS [NAME…] [--python EXE] [--into FOLDER]

CORPUS holds the repositories, as `<owner>+<name>` or one folder deeper (a folder for each draw). ``runs.tsv`` says what
is run and how; ``makers.py`` makes the data. A verification may cost what 30 of the script's own steps cost, and 20 s.
Exits with 1 where a verdict is not *pass*, or that bound is broken.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.precision.runs.spent import Spent
from benchmarks.precision.tables import read
from turbofix.source import magics, notebook

HERE = Path(__file__).parent
STEPS, EXTRA, TIMEOUT = 30, 20.0, 1800
TIMED = "timed "
# nothing is asked of a network, and two threads of one library do not fight for a core
QUIET = {
    "WANDB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Run:
    """One row of ``runs.tsv``. ``cwd`` is relative to the repository; ``changes`` are path: old → new, parted by ¦."""

    name: str
    repository: str
    commit: str
    script: str
    cwd: str
    args: str
    data: str
    changes: str
    packages: str
    kind: str


class Cost(NamedTuple):
    """What something cost, in seconds of a clock and of a processor."""

    wall: float
    cpu: float


class NotRun(Exception):  # noqa: N818 (an outcome)
    """The script cannot be run here."""


def lay_out(run: Run, corpus: Path, into: Path, python: str) -> Path:
    """A copy of the repository with the changes and its data."""
    folder = run.repository.replace("/", "+")
    found = [path for path in (corpus / folder, *sorted(corpus.glob(f"*/{folder}"))) if path.is_dir()]
    if not found:
        raise NotRun(f"{corpus} has no {folder}")
    root = into / run.name
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(found[0], root, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    change(root, [one for one in run.changes.split(" ¦ ") if one and not one.startswith(TIMED)])
    if run.data:
        done = started([python, str(HERE / "makers.py"), run.data], root / run.cwd)
        if done.returncode:
            raise NotRun(f"its data could not be made: {last(done)}")
    return root


def change(root: Path, changes: Iterable[str]) -> None:
    """Put each new text in the place of the old one, in a file of the copy."""
    for one in changes:
        path, _, texts = one.removeprefix(TIMED).partition(": ")
        old, _, new = texts.partition(" →")
        text = (root / path).read_text(encoding="utf-8")
        if old not in text:
            raise NotRun(f"{path} does not hold {old!r}")
        (root / path).write_text(text.replace(old, new.removeprefix(" ")), encoding="utf-8")


def steps_of(run: Run, root: Path, python: str) -> Cost:
    """What 30 of its steps cost in a copy, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        told, copy = Path(folder) / "steps.json", Path(folder) / "copy"
        shutil.copytree(root, copy, symlinks=True)
        change(copy, [one for one in run.changes.split(" ¦ ") if one.startswith(TIMED)])
        script = copy / run.script
        if script.suffix == ".ipynb":
            code = magics.MASKED.sub("pass", notebook.read(script.read_text(encoding="utf-8")).text)
            script = script.with_suffix(".timed.py")
            script.write_text(code, encoding="utf-8")
        command = [python, str(HERE / "steps.py"), str(STEPS), str(told), str(script), *shlex.split(run.args)]
        done = started(command, copy / run.cwd)
        if not told.exists():
            raise NotRun(f"the script made no two steps: {last(done)}")
        seen = json.loads(told.read_text())
    share = STEPS / (seen["steps"] - 1)
    return Cost(seen["wall"] * share, seen["cpu"] * share)


def verified(run: Run, root: Path, python: str) -> tuple[dict[str, Any], Cost]:
    """The JSON that ``apply --verify --write`` prints, and what it cost."""
    cwd = root / run.cwd
    command = [sys.executable, "-m", "turbofix", "apply", "--verify", "--write", "--likely", "--device", "cpu"]
    command += ["--python", python, "--output-format", "json", os.path.relpath(root / run.script, cwd)]
    start = time.perf_counter()
    with Spent() as spent:
        done = started([*command, "--", *shlex.split(run.args)], cwd)
    wall = time.perf_counter() - start
    if not done.stdout.startswith("{"):
        raise NotRun(f"turbofix printed no result: {last(done)}")
    return json.loads(done.stdout), Cost(wall, spent.seconds)


def started(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    env = {**os.environ, **QUIET}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def last(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a command said."""
    return (done.stderr or done.stdout).strip()[-1500:]


def judged(run: Run, corpus: Path, into: Path, python: str) -> tuple[str, bool]:
    """The row of one script, and whether all is well; its diff and what the verification said are left in ``into``."""
    root, before = lay_out(run, corpus, into, python), into / f"{run.name}.before"
    shutil.rmtree(before, ignore_errors=True)
    shutil.copytree(root, before, symlinks=True)
    steps = steps_of(run, root, python)
    found, cost = verified(run, root, python)
    (into / f"{run.name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False))
    diff = started(["diff", "-ru", "--exclude=__pycache__", before.name, root.name], into)
    (into / f"{run.name}.diff").write_text(diff.stdout)
    shutil.rmtree(before)
    kept = ", ".join(one["codemod"] for one in found["codemods"] if one["verdict"] == "kept")
    left = "; ".join(told(one) for one in found["codemods"] if one["verdict"] != "kept")
    left = left or ("" if found["verdict"] == "pass" else found["reason"])
    times = f"{cost.cpu:.0f} | {steps.cpu + EXTRA:.0f} | {cost.wall:.0f} | {steps.wall + EXTRA:.0f}"
    row = f"| {run.name} | {run.kind} | {found['verdict']} | {found['steps']} | {kept} | {left} | {times} |"
    return row, found["verdict"] == "pass" and cost.cpu <= steps.cpu + EXTRA


def told(judgement: dict[str, Any]) -> str:
    """A codemod that was not kept, and the assumptions that did not hold."""
    names = [one["name"] for one in judgement["assumes"] if one["settled"] in ("refuted", "not exercised")]
    return f"{judgement['codemod']} ({judgement['verdict']}: {', '.join(names) or judgement['reason']})"


def main(
    corpus: Path,
    names: Annotated[list[str] | None, typer.Argument()] = None,
    python: Annotated[str, typer.Option(help="An interpreter with the packages.")] = sys.executable,
    into: Annotated[Path, typer.Option(help="The folder that the scripts are laid out in.")] = Path("runs"),
) -> None:
    """Run the scripts of the table one after another, and print a row for each."""
    into.mkdir(parents=True, exist_ok=True)
    print("| script | kind | verdict | steps | kept | not kept | CPU s | bound | wall s | bound |")
    print("|" + " --- |" * 10)
    well = True
    for run in read(HERE / "runs.tsv", Run):
        if names and run.name not in names:
            continue
        try:
            row, good = judged(run, corpus, into.resolve(), python)
        except (NotRun, subprocess.TimeoutExpired) as why:
            row, good = f"| {run.name} | {run.kind} | not run: {why} |", False
        print(row.replace("\n", " "), flush=True)
        well = well and good
    if not well:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
