"""What a verification found, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from turbofix.estimate.several import Several
from turbofix.estimate.step import Estimate
from turbofix.estimate.step import Interval as Interval  # noqa: PLC0414  (handed on to all rooms of runs)
from turbofix.records import dataclass
from turbofix.verify.agreement import Agreed
from turbofix.verify.settle import Settled

PASS = "pass"
FAIL = "fail"
INCONCLUSIVE = "inconclusive"

KEPT = "kept"
DROPPED = "dropped"
UNVERIFIED = "unverified"

STEP_PARTS = ("data", "transfer", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Measured:
    """One program: its losses, and on CUDA its speed and memory (None where nothing was measured)."""

    losses: tuple[float, ...] = ()
    samples_per_second: float | None = None
    step_ms: Mapping[str, float | None] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    warm_up_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "samples_per_second": self.samples_per_second,
            "step_ms": {part: self.step_ms.get(part) for part in STEP_PARTS},
            "peak_memory_bytes": self.peak_memory_bytes,
            # JSON has no infinities and no NaN
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],
        }


@dataclass(frozen=True)
class Judgement:
    """What became of one codemod: kept, dropped or unverified, and why; its own speed-up on CUDA.

    ``assumes`` is what became of the assumptions that its findings rest on, ``estimate`` what it brings on a card that
    is not here, on top of those before it.
    """

    codemod: str
    verdict: str
    reason: str
    speedup: float | None = None
    assumes: tuple[Settled, ...] = ()
    estimate: Estimate | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "codemod": self.codemod,
            "verdict": self.verdict,
            "reason": self.reason,
            "speedup": self.speedup,
            "assumes": [one.to_json() for one in self.assumes],
            "estimate": self.estimate.to_json() if self.estimate else None,
        }


@dataclass(frozen=True)
class Verification:
    """The verdict, and everything that it stands on.

    ``kept`` holds the files that survived (absolute path -> content), ``isolation`` the level that held the user's
    files, ``notes`` what a reader must know beside the verdict, ``scratch`` the folder when it was kept. ``estimate``
    is what was kept brings on a card that is not here, where the script as it is takes ``estimate_before``.
    ``agreement`` has the steps of both, where they were compared one by one. What was kept was run as so many
    ``processes``; ``cards`` is a step of it on several cards, where more than one is asked for.
    """

    verdict: str
    reason: str
    device: str
    steps: int = 0
    speedup: Interval | None = None
    baseline: Measured = field(default_factory=Measured)
    candidate: Measured = field(default_factory=Measured)
    codemods: tuple[Judgement, ...] = ()
    isolation: str | None = None
    notes: tuple[str, ...] = ()
    scratch: Path | None = None
    kept: Mapping[Path, bytes] = field(default_factory=dict)
    estimate: Estimate | None = None
    estimate_before: Estimate | None = None
    agreement: tuple[Agreed, ...] = ()
    script: str = ""
    processes: int = 1
    cards: Several | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "verdict": self.verdict,
            "reason": self.reason,
            "device": self.device,
            "steps": self.steps,
            "speedup": self.speedup.to_json() if self.speedup else None,
            "estimate": self.estimate.to_json() if self.estimate else None,
            "baseline": self.baseline.to_json(),
            "candidate": self.candidate.to_json(),
            "codemods": [judgement.to_json() for judgement in self.codemods],
            "isolation": self.isolation,
            "notes": list(self.notes),
            "script": self.script,
            "processes": self.processes,
            "cards": self.cards.to_json() if self.cards else None,
        }


class Inconclusive(Exception):  # noqa: N818 (a verdict, not a failure of ours)
    """There can be no verdict; the message is one sentence for the user."""


class Stopped(Inconclusive):
    """The script as it is stops with an error."""


def all_of(names: Sequence[str]) -> str:
    """Several codemods as a sentence calls them."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
