"""Rows in, one table out: for the terminal, and as a page in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.training.job import COLUMNS, Job, Setting
from benchmarks.training.measure import Machine, Rewrite, Run

if TYPE_CHECKING:
    from rich.table import Table

PEAKS = {
    "H200": 989.5e12, "H100 NVL": 835.5e12, "H100 PCIe": 756e12, "H100": 989.5e12, "A100": 312e12, "A10G": 70e12,
    "L40S": 362e12, "L4": 121e12, "RTX 4090": 165.2e12,
}  # fmt: skip
"""Dense bfloat16 operations per second, from the cards' data sheets, by a part of the name (the first that fits)."""


@dataclass(frozen=True)
class Line:
    """One column of one job, over all its runs. What was not measured is None."""

    job: Job
    column: str
    setting: Setting
    runs: tuple[Run, ...]
    busy: float | None
    rewrite: Rewrite | None  # in turbofix's line
    expert: float | None  # samples per second of the expert, in turbofix's line

    @property
    def speeds(self) -> list[float]:
        return [run.samples_per_second for run in self.runs if run.samples_per_second is not None]

    @property
    def speed(self) -> float | None:
        return statistics.median(self.speeds) if self.speeds else None

    @property
    def seconds(self) -> float | None:
        good = [run.seconds for run in self.runs if run.error is None]
        return statistics.median(good) if good else None

    @property
    def memory(self) -> float | None:
        good = [run.peak_memory for run in self.runs if run.peak_memory is not None and run.error is None]
        return statistics.median(good) if good else None

    @property
    def ratio(self) -> float | None:
        return None if self.speed is None or not self.expert else self.speed / self.expert

    @property
    def losses(self) -> tuple[float, float] | None:
        found = [run.losses for run in self.runs if run.losses is not None]
        return found[-1] if found else None

    @property
    def error(self) -> str | None:
        return next((run.error for run in self.runs if run.error is not None), None)

    def mfu(self, card: str) -> float | None:
        """The share of the card's dense bfloat16 peak that the model's own operations took."""
        peak = next((flops for name, flops in PEAKS.items() if name in card), None)
        return None if peak is None or self.speed is None else self.speed * self.setting.flops / peak


def lines_of(
    jobs: Mapping[Job, Setting], runs: Sequence[Run], profiles: Sequence[Run], rewrites: Mapping[str, Rewrite]
) -> list[Line]:
    """A line for each job and column that has run."""
    found = []
    for job, setting in jobs.items():
        by_column = {
            column: tuple(each for each in runs if (each.job, each.column) == (job.name, column)) for column in COLUMNS
        }
        speeds = [each.samples_per_second for each in by_column["expert"] if each.samples_per_second is not None]
        for column in COLUMNS:
            if not by_column[column]:
                continue
            busy = [each.busy for each in profiles if (each.job, each.column) == (job.name, column)]
            ours = column == "turbofix"
            found.append(
                Line(
                    job,
                    column,
                    setting,
                    by_column[column],
                    next((each for each in busy if each is not None), None),
                    rewrites.get(job.name) if ours else None,
                    statistics.median(speeds) if ours and speeds else None,
                )
            )
    return found


# --- cells


def number(value: float) -> str:
    """Three figures that count, thousands set apart."""
    if value >= 1000:
        return f"{round(value, 2 - int(f'{value:e}'.rpartition('e')[2])):,.0f}"
    return f"{value:.3g}"


def interval(speeds: Sequence[float]) -> str:
    """The lowest and the highest; of five runs they hold the true median with 94 %."""
    return f"{number(min(speeds))}–{number(max(speeds))}" if len(speeds) > 1 else ""


def share(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def verdict(line: Line) -> str:
    """That of the verification, and how many codemods were kept."""
    if line.rewrite is None:
        return ""
    kinds = [kind for _, kind, _ in line.rewrite.codemods]
    return f"{line.rewrite.verdict}, {kinds.count('kept')} of {len(kinds)} kept"


def cells(line: Line, machine: Machine) -> list[str]:
    """One line of the table, under ``HEADINGS``."""
    losses = f"{line.losses[0]:.4g} → {line.losses[1]:.4g}" if line.losses else "–"
    ran = ["failed" if line.error else f"{line.runs[-1].steps:,}", losses]
    if not machine.cuda:  # a CPU says nothing about the speed on a GPU
        return [line.job.name, line.column, *ran, verdict(line)]
    return [
        line.job.name,
        line.column,
        f"{number(line.speed)} {line.job.sample}s" if line.speed is not None else "–",
        interval(line.speeds),
        "–" if line.seconds is None else f"{line.seconds:.1f}",
        "–" if line.memory is None else f"{line.memory / 2**30:.2f}",
        share(line.busy),
        share(line.mfu(machine.card)),
        *ran,
        verdict(line),
        "" if line.ratio is None else f"{line.ratio:.2f}",
    ]


def headings(machine: Machine) -> list[str]:
    """Those of ``cells``."""
    if not machine.cuda:
        return ["job", "column", "steps", "loss", "verify"]
    measured = ["per second", "lowest–highest", "wall clock, s", "memory, GiB", "GPU busy", "MFU"]
    return ["job", "column", *measured, "steps", "loss", "verify", "turbofix / expert"]


def terminal(lines: Sequence[Line], machine: Machine) -> Table:
    """The table for people."""
    from rich.table import Table

    table = Table(*headings(machine))
    for line in lines:
        table.add_row(*cells(line, machine), end_section=line.column == COLUMNS[-1])
    return table


# --- the page


def page(date: str, machine: Machine, setting: str, lines: Sequence[Line]) -> str:
    """The whole page: where and when, the table, and what turbofix did about each thing that the expert does."""
    heads = headings(machine)
    command = f"`python -m benchmarks.training{' --tiny' if setting == 'tiny' else ''}`"
    counts = sorted({len(line.runs) for line in lines})
    commits = ", ".join(dict.fromkeys(run.commit.removesuffix("-dirty") for line in lines for run in line.runs))
    runs = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) + (" run" if counts[-1] == 1 else " runs")
    return "\n".join(
        [
            f"# Ten trainings, side by side with expert hands, {date}",
            "",
            f"{command} at {commits}: {machine.card}, torch {machine.torch}, {setting} setting, {runs} of each column.",
            "",
            *preface(machine),
            "",
            "| " + " | ".join(heads) + " |",
            "| " + " | ".join("---" for _ in heads) + " |",
            *("| " + " | ".join(cells(line, machine)) + " |" for line in lines),
            "",
            *summary(lines, machine),
            "## What turbofix did about what the expert's program has",
            "",
            "| job | kept | not verified | dropped | refused | nothing said |",
            "| --- | --- | --- | --- | --- | --- |",
            *(expected(line) for line in lines if line.rewrite is not None),
            "",
            "Dropped, refused and passed over, with the reasons:",
            "",
            *(reason for line in lines if line.rewrite is not None for reason in reasons(line)),
            "",
            "## The jobs",
            "",
            *(remark for line in lines if line.column == lines[0].column for remark in remarks(line.job)),
            *failures(lines),
            "",
        ]
    )


def preface(machine: Machine) -> list[str]:
    """What the figures are, and are not."""
    said = """
`compile` and `switches` are naive with `torch.compile` and with bfloat16 and TF32, `library` is the job in Accelerate,
`turbofix` what `apply --write --verify` made of naive at the risk `equivalent`. The loss is the first and the last that
the program prints."""
    if machine.cuda:
        said += """ Per second: at steady state, the median of the runs, behind the first fifth of the steps. Wall
clock: the whole process, with imports and compiling. MFU: of the dense bfloat16 peak, in every column."""
    else:
        said += """ This is a CPU and the tiny setting: it shows that every program runs and learns, and what the
verification says. It measures no speed. What was compiled was traced for real and run by torch's backend `eager`."""
    return said.strip().splitlines()


def summary(lines: Sequence[Line], machine: Machine) -> list[str]:
    """The ratios to the expert, where there are any."""
    ratios = [line.ratio for line in lines if line.ratio is not None]
    if not machine.cuda or not ratios:
        return []
    return [f"turbofix / expert: median {statistics.median(ratios):.2f}, lowest {min(ratios):.2f}.", ""]


def expected(line: Line) -> str:
    """What became of each codemod that the expert's program has."""
    assert line.rewrite is not None
    became = {name: kind for name, kind, _ in line.rewrite.codemods}
    refused = {name for name, _, _ in line.rewrite.left}
    kinds: dict[str, list[str]] = {kind: [] for kind in ("kept", "unverified", "dropped", "refused", "nothing")}
    for name in line.job.expects:
        kinds[became.get(name, "refused" if name in refused else "nothing")].append(name)
    return f"| {line.job.name} | " + " | ".join(", ".join(names) or "–" for names in kinds.values()) + " |"


def reasons(line: Line) -> Iterator[str]:
    """Why what the expert's program has was not written."""
    assert line.rewrite is not None
    for name, kind, why in line.rewrite.codemods:
        if kind == "dropped":
            yield f"- {line.job.name}: {name} dropped: {why}"
    for name, at, why in dict.fromkeys(line.rewrite.left):
        if name in line.job.expects:
            yield f"- {line.job.name}: {name}, line {at}: {why}"
    said = {name for name, *_ in (*line.rewrite.codemods, *line.rewrite.left)}
    for name, why in line.job.silent.items():
        if name not in said:
            yield f"- {line.job.name}: {name}, of which nothing is said: {why}"


def remarks(job: Job) -> Iterator[str]:
    """What the job is, and where the expert's is another."""
    anchor = f" The expert must reach {job.anchor} on one H200." if job.anchor else ""
    yield f"- {job.name}: {job.title}. FLOPs: {job.source}.{anchor}{''.join(' ' + each for each in job.remarks)}"


def failures(lines: Sequence[Line]) -> list[str]:
    """The ends of what failed programs said."""
    found = [f"- {line.job.name}, {line.column}: `{line.error.splitlines()[-1]}`" for line in lines if line.error]
    return ["", "## Failed runs", "", *found] if found else []
