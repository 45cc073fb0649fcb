"""What the benchmark knows of a job, and how a column's program comes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

WRITTEN = ("naive", "library", "expert")
"""Columns whose programs lie in a folder of that name."""
COLUMNS = ("naive", "compile", "switches", "library", "turbofix", "expert")
"""In the order of the table: `compile` and `switches` are edits of naive, `turbofix` is what it makes of naive."""

Edit = tuple[str, str]
"""A text that stands exactly once in a program, and what takes its place."""


@dataclass(frozen=True)
class Load:
    """One run of a program: its arguments, and what comes of them.

    ``steps`` are all optimizer steps of the run (of the first optimizer where there are several), ``samples`` are those
    of one step. Where compiling begins anew later than in the first fifth of the steps, as for an epoch's short last
    batch, ``warm_up`` says how many steps are no steady state yet.
    """

    arguments: tuple[str, ...]
    steps: int
    samples: float
    warm_up: int | None = None


@dataclass(frozen=True)
class Setting:
    """How large a job is. ``flops`` are those of one sample's forward and backward pass.

    ``own`` holds the columns whose load is another one than that of naive.
    """

    load: Load
    flops: float
    own: Mapping[str, Load] = field(default_factory=dict)

    def of(self, column: str) -> Load:
        """The load of one column."""
        return self.own.get(column, self.load)


@dataclass(frozen=True, eq=False)  # one object each, and a key of dicts
class Job:
    """One of the ten.

    ``loss`` finds a loss in what every column's program prints (its group 1): the first and the last one are shown.
    ``expects`` names the codemods whose changes the expert's program has, so that the table can say what turbofix did
    about each, and ``silent`` why it has reason to say nothing of some. ``remarks`` says where the expert's job is
    another one than naive's, and why.
    """

    name: str
    title: str
    sample: str  # what is counted: token, image, row
    source: str  # where the formula for the FLOPs is from
    full: Setting
    tiny: Setting
    loss: str
    compile: tuple[Edit, ...]
    switches: tuple[Edit, ...]
    expects: tuple[str, ...]
    anchor: str | None = None  # what an expert must reach on one H200
    remarks: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)

    def path(self, column: str) -> Path:
        """Where a written column's program lies."""
        return HERE / column / f"{self.name}.py"

    def text(self, column: str) -> str:
        """The program of a column, but for turbofix's, which has to be made first."""
        if column in WRITTEN:
            return self.path(column).read_text(encoding="utf-8")
        edits = {"compile": self.compile, "switches": self.switches}[column]
        return edited(self.path("naive").read_text(encoding="utf-8"), edits, f"{self.name}, {column}")


def edited(text: str, edits: tuple[Edit, ...], where: str) -> str:
    """The text with every edit made; each must find exactly one place."""
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{where}: {text.count(old)} places for {old!r}")
        text = text.replace(old, new)
    return text
