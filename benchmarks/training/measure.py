"""Runs of the columns' programs, and what came of each, as rows that can be written down.

Every run is a process of its own in an empty folder. A row stands for one program (its text), one load and one machine:
where all of them are what they were, it is not made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.training.job import HERE, Job, Load

ROOT = HERE.parents[1]
RUNNER = HERE / "runner.py"
WARM_UP = 0.2  # the share of a run's steps that is left out
PROFILED = 10  # steps
OUTPUT, RESULT = "output.txt", "result.json"
TIMEOUT = 3600.0  # seconds of one run


@dataclass(frozen=True)
class Machine:
    """Where the rows are made."""

    card: str
    torch: str
    cuda: bool


@dataclass(frozen=True)
class Rewrite:
    """What turbofix made of a naive program: the whole text, and the report of its verification.

    ``codemods`` are names, what became of each, and why; ``left`` are findings that it would not fix: name, line and
    reason.
    """

    key: str
    job: str
    verdict: str
    reason: str
    codemods: tuple[tuple[str, str, str], ...]
    left: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]
    seconds: float
    text: str


@dataclass(frozen=True)
class Run:
    """One run of one column. ``error`` is the end of what a program said that did not end well."""

    key: str
    job: str
    column: str
    run: int
    commit: str
    steps: int
    samples_per_second: float | None
    seconds: float
    peak_memory: int | None
    busy: float | None
    losses: tuple[float, float] | None
    error: str | None = None


@functools.cache
def machine() -> Machine:
    """The card and the torch of this interpreter."""
    card = "torch.cuda.get_device_name(0) if torch.cuda.is_available() else ''"
    asked = f"import torch; print(torch.__version__); print({card})"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.splitlines()
    return Machine(said[1] or f"CPU ({platform.machine()})", said[0], bool(said[1]))


@functools.cache
def commit() -> str:
    """The checkout's commit, with a mark where files differ from it."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def digest(*parts: object) -> str:
    """A short name for what a row depends on."""
    return hashlib.sha256(repr((parts, machine())).encode()).hexdigest()[:16]


# --- what turbofix makes


@functools.cache
def tool() -> str:
    """The texts of turbofix itself."""
    found = sorted([*ROOT.joinpath("turbofix").rglob("*.py"), *ROOT.joinpath("codemods").rglob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in found)).hexdigest()


def rewrite_key(job: Job, load: Load, options: Sequence[str]) -> str:
    """What a rewrite depends on."""
    return digest("rewrite", job.text("naive"), load.arguments, tuple(options), tool())


def rewrite(job: Job, load: Load, options: Sequence[str]) -> Rewrite:
    """Let turbofix rewrite a copy of the naive program, and verify what it made."""
    ours = [sys.executable, "-m", "turbofix"]
    told = ["-q", "--output-format", "json", "--output-file"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder).resolve() / f"{job.name}.py"
        script.write_text(job.text("naive"), encoding="utf-8")
        found = Path(folder).resolve() / "found.json"
        subprocess.run([*ours, "analyze", *told, found.name, script.name], cwd=folder, env=environment(), check=False)
        findings = json.loads(found.read_text(encoding="utf-8"))["findings"]
        found.unlink()
        asked = [*ours, "apply", "--write", "--verify", *options, *told, found.name, script.name, "--", *load.arguments]
        began = time.monotonic()
        done = subprocess.run(asked, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        report: Mapping[str, Any] = (
            json.loads(found.read_text(encoding="utf-8"))
            if found.exists()
            else {"verdict": "none", "reason": done.stderr[-2000:], "codemods": [], "notes": []}
        )
        text = script.read_text(encoding="utf-8")
    return Rewrite(
        rewrite_key(job, load, options),
        job.name,
        report["verdict"],
        report["reason"],
        tuple((each["codemod"], each["verdict"], each["reason"]) for each in report["codemods"]),
        tuple((each["codemod"], each["line"], each["why_not"]) for each in findings if not each["fixable"]),
        tuple(report["notes"]),
        round(seconds, 1),
        text,
    )


# --- runs


@dataclass(frozen=True)
class Task:
    """A column's program, to be run for the ``number``-th time; ``profile`` traces the GPU instead of taking times.

    ``eager``: what the program compiles is not compiled for real.
    """

    job: Job
    column: str
    text: str
    load: Load
    number: int
    eager: bool
    profile: bool = False

    @property
    def key(self) -> str:
        """What the run depends on."""
        return digest(self.text, self.load, self.eager, self.profile, RUNNER.read_text(encoding="utf-8"))


def run(task: Task) -> Run:
    """Run a program once, in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        command = [sys.executable, str(RUNNER), *arguments(task, place)]
        began = time.monotonic()
        with (place / OUTPUT).open("w", encoding="utf-8") as output:
            given: dict[str, Any] = {"cwd": place, "env": environment(), "stdout": output, "stderr": subprocess.STDOUT}
            try:
                status = subprocess.run(command, timeout=TIMEOUT, check=False, **given).returncode
            except subprocess.TimeoutExpired:
                status = -1
        return outcome(task, place, status, time.monotonic() - began)


class Forks:
    """Runs programs like ``run``, in forks of one interpreter that has imported torch: for many small runs on a CPU."""

    def __init__(self) -> None:
        command = [sys.executable, str(RUNNER), "--serve"]
        self.server = subprocess.Popen(
            command,
            env={**environment(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate()

    def run(self, task: Task) -> Run:
        """Run a program once."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder).resolve()
            began = time.monotonic()
            self.server.stdin.write(json.dumps([str(place), OUTPUT, *arguments(task, place)]) + "\n")
            self.server.stdin.flush()
            return outcome(task, place, int(self.server.stdout.readline()), time.monotonic() - began)


def arguments(task: Task, place: Path) -> list[str]:
    """Lay the program into a folder; those of the runner that runs it there."""
    script, load = f"{task.job.name}.py", task.load
    (place / script).write_text(task.text, encoding="utf-8")
    warm_up = max(1, int(load.steps * WARM_UP)) if load.warm_up is None else load.warm_up
    asked = ["--out", RESULT, "--warm-up", str(warm_up), "--steps", str(load.steps)]
    asked += [*(["--profile", str(PROFILED)] if task.profile else []), *(["--eager"] if task.eager else [])]
    return [*asked, script, *load.arguments]


def outcome(task: Task, place: Path, status: int, seconds: float) -> Run:
    """What a run left in its folder."""
    said = (place / OUTPUT).read_text(encoding="utf-8", errors="replace")
    result = json.loads((place / RESULT).read_text()) if (place / RESULT).exists() else {}
    losses = [float(each) for each in re.findall(task.job.loss, said)]
    found = Run(
        key=task.key,
        job=task.job.name,
        column=task.column,
        run=task.number,
        commit=commit(),
        steps=result.get("steps", 0),
        samples_per_second=None,
        seconds=round(seconds, 2),
        peak_memory=result.get("peak_memory"),
        busy=result.get("busy"),
        losses=(losses[0], losses[-1]) if losses else None,
    )
    if status != 0:
        return replace(found, error=said[-2000:] or f"ended with {status}")
    if not losses:
        return replace(found, error=f"no loss in what it printed: {said[-500:]}")
    if found.steps != task.load.steps:
        return replace(found, error=f"{found.steps} optimizer steps, not {task.load.steps}")
    if result.get("window_steps"):
        return replace(found, samples_per_second=result["window_steps"] * task.load.samples / result["window_seconds"])
    return found


def environment() -> dict[str, str]:
    """That of the runs: turbofix is the one of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


# --- rows


def to_json(row: Rewrite | Run) -> str:
    """One line."""
    return json.dumps({"kind": type(row).__name__, **asdict(row)})


def read(rows: Path) -> Iterator[Rewrite | Run]:
    """The rows of a file."""
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind = row.pop("kind")
        if kind == "Rewrite":
            named = {name: tuple(map(tuple, row[name])) for name in ("codemods", "left")}
            yield Rewrite(**{**row, **named, "notes": tuple(row["notes"])})
        else:
            yield Run(**{**row, "losses": tuple(row["losses"]) if row["losses"] else None})
