"""What a verification is asked: a script, its rewritten files stage by stage, and the limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path

from turbofix.assumptions import Assumption
from turbofix.estimate.cards import Card
from turbofix.findings import Gain, Risk
from turbofix.records import dataclass


@dataclass(frozen=True)
class Options:
    """How to run.

    ``steps`` optimizer steps (default: what two epoch ends need, at least 20, or as many as the script takes where it
    ends before), ``timeout`` in seconds per run,
    ``python`` the user's interpreter (default: this one), ``device`` ``"cpu"``, ``"cuda"`` or what is there,
    ``isolation`` the level to insist on (see ``isolation.LEVELS``), ``repeats`` timed runs of each program.
    ``memory`` and ``disk`` are what one run may use, in bytes (default: most of what is free). As so many
    ``processes`` is run what trains in several (default: 2; 0 and 1: in one alone).
    """

    steps: int | None = None
    repeats: int = 5
    timeout: float = 600.0
    python: str | None = None
    device: str | None = None
    seed: int = 0
    isolation: str | None = None
    keep_scratch: bool = False
    memory: int | None = None
    disk: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Piece:
    """What a codemod changed for one finding: ``lines`` are those of the text before it.

    ``name`` is what it is left out by, empty where it cannot be; ``likely``: it rests on assumptions.
    """

    name: str
    lines: frozenset[tuple[Path, int]] = frozenset()
    likely: bool = False


@dataclass(frozen=True)
class Stage:
    """The program after one codemod and all before it: absolute path -> the whole content.

    ``codemod`` is None for a candidate that the user gave. Of one, ``gain`` is the largest that is claimed for what it
    changed, ``after`` names codemods that must come before it, ``together`` those without which it gains nothing, nor
    they without it; ``for_speed`` says that it has no other purpose. ``assumes`` is what its likely findings rest on,
    ``proven`` whether it has others, too, ``claims`` what analysis takes to hold of them. ``void`` tells of findings
    that the stages have made void. ``mends``: the script stops without it. ``processes``: it trains in several, too,
    ``shares``: each with a share of the batch.
    """

    codemod: str | None
    risk: Risk
    files: Mapping[Path, bytes]
    gain: Gain | None = None
    after: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    for_speed: bool = True
    assumes: tuple[Assumption, ...] = ()
    pieces: tuple[Piece, ...] = ()
    claims: tuple[Assumption, ...] = ()
    void: tuple[str, ...] = ()
    mends: bool = False
    processes: bool = False
    shares: bool = False


NOTEBOOK = ".ipynb"
USUAL_PROCESSES = 2
"""As so many is run what trains in several, where nobody says how many."""
FINDING, ASSUMPTION = "finding:", "assumption:"
"""Before the name of a finding that is left out, and of an assumption whose findings are."""


@dataclass(frozen=True)
class Request:
    """Verify ``script`` with ``args`` against its ``stages``.

    ``rebuild`` runs the pipeline again without the given codemods (``FINDING`` and ``ASSUMPTION`` stand before names of
    what else is left out); it is None when a candidate was given. ``without`` is left out for good. ``texts`` are run
    in place of files as they are: the Python of a notebook, and what had to be mended before it runs; ``told`` says
    where a line of a notebook is, in words behind the file's name. ``card`` is the GPU that there is an estimate for,
    where there is none to measure on, ``gpus`` how many of it. ``joins``: as it is, it trains in several processes
    where torchrun starts it.
    """

    script: Path
    args: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    options: Options = field(default_factory=Options)
    rebuild: Callable[[frozenset[str]], tuple[Stage, ...]] | None = None
    without: frozenset[str] = frozenset()
    texts: Mapping[Path, bytes] = field(default_factory=dict)
    told: Callable[[bytes, int], str] | None = None
    card: Card | None = None
    gpus: int = 1
    joins: bool = False

    def processes(self, stages: Iterable[Stage]) -> int:
        """As how many processes these are run, too; 0 where they are not."""
        count = USUAL_PROCESSES if self.options.processes is None else self.options.processes
        return count if count > 1 and any(stage.processes for stage in stages) else 0

    @property
    def name(self) -> str:
        """The script, from the current folder."""
        try:
            return Path(os.path.relpath(self.script)).as_posix()
        except ValueError:  # another drive
            return self.script.as_posix()

    def content(self, path: Path) -> bytes:
        """What the original runs from the file; nothing where there is none."""
        if path in self.texts:
            return self.texts[path]
        return path.read_bytes() if path.exists() else b""

    def place(self, path: Path, content: bytes, line: int) -> str:
        """Where a line of what is run from a file is, in words."""
        told = self.told if path.suffix == NOTEBOOK and path in self.texts else None
        return f"{path.name}, {told(content, line) if told else f'line {line}'}"

    def rebuilt(self, without: Iterable[str] = ()) -> tuple[Stage, ...]:
        """The stages without these codemods; there are none for a candidate."""
        return self.rebuild(self.without.union(without)) if self.rebuild is not None else ()

    def leaving(self, names: Iterable[str]) -> Request:
        """The same request with more left out for good."""
        fewer = replace(self, without=self.without.union(names))
        return fewer if fewer.without == self.without else replace(fewer, stages=fewer.rebuilt())

    def mended(self) -> Request | None:
        """The same request of the script as mended, without the stages that mend it; None where there are none."""
        mending = [stage for stage in self.stages if stage.mends]
        if self.rebuild is None or not mending:
            return None
        rebuild = self.rebuild

        def rest(without: frozenset[str]) -> tuple[Stage, ...]:
            return tuple(stage for stage in rebuild(without) if not stage.mends)

        texts = {**self.texts, **mending[-1].files}
        return replace(self, texts=texts, rebuild=rest, stages=rest(self.without))

    def only(self, names: frozenset[str]) -> tuple[Stage, ...]:
        """The stages of these codemods, as far as there are any without the others; none for a candidate."""
        if self.rebuild is None or not names:
            return ()
        without = names_of(self.stages) - names
        while others := names_of(stages := self.rebuilt(without)) - names:
            without |= others  # found where the others are not
        return stages


def names_of(stages: Iterable[Stage]) -> frozenset[str]:
    """The codemods of the stages."""
    return frozenset(stage.codemod for stage in stages if stage.codemod)


@dataclass(frozen=True)
class Progress:
    """What is being done, for a progress bar: ``done`` of ``total`` steps (None when the total is not known).

    Once it is done, how it ``ended``, and the last lines of ``output`` of a run that failed.
    """

    phase: str
    done: int
    total: int | None
    ended: str = ""
    output: tuple[str, ...] = ()


OnProgress = Callable[[Progress], None]
