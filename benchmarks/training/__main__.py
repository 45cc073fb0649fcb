"""Run all jobs through every column, and fill one table: ``python -m benchmarks.training``; see README.md here."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from benchmarks.training import measure, table
from benchmarks.training.job import COLUMNS, Job, Setting
from benchmarks.training.jobs import all_jobs
from benchmarks.training.measure import Rewrite, Run, Task

T = TypeVar("T")


def main(  # noqa: PLR0913  (the options of the command line)
    tiny: Annotated[bool, typer.Option("--tiny", help="The setting for a CPU: a few seconds each.")] = False,
    job: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these jobs (repeatable).")] = None,
    column: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these columns (repeatable).")] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="How often each program is run.")] = 5,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append what comes out, and leave out what stands there.")
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as Markdown there.")] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Begin nothing more after so many minutes; tell what is there.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Passed on to turbofix's verification.")] = 5,
) -> None:
    """Train every job naively, in other people's ways, as turbofix rewrites it, and as an expert does."""
    jobs = chosen(all_jobs(), job, "job")
    columns = list(chosen({each: each for each in COLUMNS}, column, "column"))
    settings = {name: each.tiny if tiny else each.full for name, each in jobs.items()}
    bench = Bench(settings, tiny, rows, None if minutes is None else time.monotonic() + minutes * 60, repeats)
    with measure.Forks() if tiny and hasattr(os, "fork") else contextlib.nullcontext() as forks:
        bench.launch = forks.run if forks is not None else measure.run
        bench.fill(list(jobs.values()), columns, runs)
    loads = {each: settings[name] for name, each in jobs.items()}
    lines = table.lines_of(loads, bench.runs, bench.profiles, bench.rewrites)
    if not lines:
        raise typer.Exit(1)
    from rich.console import Console

    Console().print(table.terminal(lines, measure.machine()))
    if page is not None:
        today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
        page.write_text(table.page(today, measure.machine(), "tiny" if tiny else "full", lines), encoding="utf-8")
    wrong = [line for line in lines if line.error or (line.rewrite is not None and line.rewrite.verdict != "pass")]
    raise typer.Exit(bool(wrong))


class Bench:
    """Makes the rows that are missing, in an order in which an early stop leaves a whole table of fewer runs."""

    def __init__(
        self, settings: dict[str, Setting], tiny: bool, rows: Path | None, until: float | None, repeats: int
    ) -> None:
        self.settings, self.tiny, self.rows, self.until = settings, tiny, rows, until
        self.options = ("--repeats", str(repeats))
        self.known = list(measure.read(rows)) if rows is not None and rows.exists() else []
        self.launch: Callable[[Task], Run] = measure.run
        self.runs: list[Run] = []
        self.profiles: list[Run] = []
        self.rewrites: dict[str, Rewrite] = {}

    def fill(self, jobs: list[Job], columns: list[str], runs: int) -> None:
        """Every column of every job in turn, ``runs`` times; then what the GPU did in each."""
        for number in range(runs):
            for job in jobs:
                if "turbofix" in columns and job.name not in self.rewrites:
                    self.rewrite(job)
                for column in columns:
                    self.run(job, column, number, self.runs)
        if measure.machine().cuda:
            for job in jobs:
                for column in columns:
                    self.run(job, column, 0, self.profiles, profile=True)

    def rewrite(self, job: Job) -> None:
        load = self.settings[job.name].load
        key = measure.rewrite_key(job, load, self.options)
        found = next((each for each in self.known if isinstance(each, Rewrite) and each.key == key), None)
        if found is None:
            if self.late():
                return
            found = measure.rewrite(job, load, self.options)
            self.keep(found)
            kept = ", ".join(f"{name} {kind}" for name, kind, _ in found.codemods)
            typer.echo(f"{job.name}, rewrite: {found.verdict}: {found.reason} [{found.seconds:.0f} s] {kept}", err=True)
        self.rewrites[job.name] = found

    def run(self, job: Job, column: str, number: int, into: list[Run], *, profile: bool = False) -> None:
        made = self.rewrites.get(job.name)
        if column == "turbofix" and made is None:
            return
        text = made.text if column == "turbofix" and made is not None else job.text(column)
        load = self.settings[job.name].of(column)
        task = Task(job, column, text, load, number, eager=self.tiny, profile=profile)
        key = task.key
        found = next(
            (
                each
                for each in self.known
                if isinstance(each, Run) and (each.key, each.column, each.run) == (key, column, number)
            ),
            None,
        )
        if found is None:
            if self.late():
                return
            found = self.launch(task)
            self.keep(found)
            speed = "" if found.samples_per_second is None else f"{found.samples_per_second:,.1f} {job.sample}s/s, "
            said = found.error.strip().splitlines()[-1] if found.error else f"{speed}loss {found.losses}"
            typer.echo(f"{job.name}, {column}, run {number + 1}: {said} [{found.seconds:.0f} s]", err=True)
        into.append(found)

    def keep(self, row: Rewrite | Run) -> None:
        if self.rows is not None:
            with self.rows.open("a", encoding="utf-8") as handle:
                handle.write(measure.to_json(row) + "\n")

    def late(self) -> bool:
        return self.until is not None and time.monotonic() > self.until


def chosen(all_: dict[str, T], names: list[str] | None, what: str) -> dict[str, T]:
    """Those that are named, all where none is."""
    unknown = [name for name in names or () if name not in all_]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: no such {what}")
    return {name: each for name, each in all_.items() if not names or name in names}


if __name__ == "__main__":
    typer.run(main)
