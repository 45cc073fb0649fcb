"""Where a step's time goes, on the machine that is there, and what it would be on a card that is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from turbofix.estimate import step
from turbofix.estimate.cards import Card
from turbofix.estimate.causes import Cause, causes
from turbofix.estimate.recording import Recording
from turbofix.estimate.several import Several, enough_of, several
from turbofix.estimate.step import PARTS, Estimate
from turbofix.records import dataclass
from turbofix.verify import settle, speed
from turbofix.verify.recorded import Recorder, recorder
from turbofix.verify.request import OnProgress, Progress, Request, Stage
from turbofix.verify.result import Inconclusive
from turbofix.verify.settle import Settled

SAME_DATA = 2.0
"""Times for data that differ by less are taken for the same: two measurements on a machine with other things to do."""


@dataclass(frozen=True)
class Advice:
    """What a codemod would bring by the estimate, on top of those before it; ``why_not`` says why that is not known.

    ``kernels`` are those that the host starts before the change. ``enough`` says why one card is enough, of a change
    that shares batches out among several.
    """

    codemod: str
    estimate: Estimate | None
    why_not: str | None = None
    kernels: int = 0
    enough: str | None = None

    @property
    def gain(self) -> float:
        """The estimated factor; 1 where there is none."""
        return self.estimate.speedup.median if self.estimate is not None and self.estimate.speedup is not None else 1.0

    def to_json(self) -> dict[str, Any]:
        estimate = self.estimate.to_json() if self.estimate else None
        return {"codemod": self.codemod, "estimate": estimate, "enough": self.enough}


@dataclass(frozen=True)
class Profile:
    """Where a step's time goes.

    ``measured`` are the parts in milliseconds that were timed on the GPU that is here. Without one it is empty, and the
    parts are those of ``estimate``. ``causes`` come the dearest first. ``settled`` is what the steps show of
    assumptions. ``cards`` is the step on several cards, where more than one is asked for.
    """

    device: str
    recording: Recording
    estimate: Estimate
    causes: tuple[Cause, ...]
    measured: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    peak_memory: int | None = None
    advice: tuple[Advice, ...] = ()
    whole: Estimate | None = None
    script: str = ""
    settled: tuple[Settled, ...] = ()
    cards: Several | None = None

    @property
    def step_ms(self) -> dict[str, float]:
        """The parts that the total is the sum of."""
        parts = dict(self.measured or self.estimate.parts)
        return {name: parts.get(name, 0.0) for name in PARTS} | {"total": sum(parts.values())}

    @property
    def busy(self) -> float:
        """The share of the step in which the GPU computes."""
        parts = self.step_ms
        return (parts["forward"] + parts["backward"] + parts["optimizer"]) / parts["total"] if parts["total"] else 0.0

    @property
    def throughput(self) -> float | None:
        """Samples a second: measured, or else as estimated; None where neither is known."""
        if self.samples_per_second is not None or self.measured:
            return self.samples_per_second
        step, samples = self.estimate.step_ms, self.estimate.samples
        return samples / (step.median * 1e-3) if step is not None and samples else None

    @property
    def memory(self) -> int | None:
        """The most bytes that tensors on the GPU take at once: measured, or else those that were counted."""
        return self.peak_memory if self.peak_memory is not None else self.recording.memory

    @property
    def read_ms(self) -> float:
        """What one read of the GPU takes, beside the wait."""
        return self.step_ms["syncs"] / max(len(self.recording.reads), 1)

    def to_json(self) -> dict[str, Any]:
        reads = Counter((each.path, each.line) for each in self.recording.reads)
        return {
            "version": 1,
            "device": self.device,
            "step_ms": self.step_ms,
            "bound": self.estimate.bound,
            "syncs": [
                {"path": path, "line": line, "per_step": count, "ms": count * self.read_ms}
                for (path, line), count in reads.items()
            ],
            "memory_bytes": {"peak": self.memory, "reserved": None},
            "samples_per_second": self.throughput,
            "gpu_busy": self.busy,
            "mfu": self.estimate.utilisation,
            "causes": [
                {"name": each.name, "ms": each.ms, "sentence": each.sentence, "codemods": list(each.codemods)}
                for each in self.causes
            ],
            "estimate": self.estimate.to_json(),
            "advice": [each.to_json() for each in self.advice],
            "settled": [each.to_json() for each in self.settled],
            "script": self.script,
            "cards": self.cards.to_json() if self.cards else None,
        }


def profile(request: Request, card: Card, tell: OnProgress) -> Profile:
    """Profile the script of a request, and estimate what each of its stages brings.

    Raises:
        Inconclusive: the script does not come to the end of its second step.
    """
    with recorder(request, tell) as runs:
        recording = runs.record("the script as it is", {})
        before = step.estimate(recording, card)
        found = Profile(runs.device, recording, before, tuple(causes(recording, card, before)))
        if runs.cuda:
            found = _timed(found, runs, request, tell)
        advice, whole = estimated(runs, request, request.stages, card, recording)
        cards = on_several(runs, "the script as it is", {}, before, card, request.gpus)
    return replace(
        found,
        advice=tuple(sorted(advice, key=lambda each: -each.gain)),
        whole=whole,
        script=request.name,
        settled=settle.of_two_steps(recording.log),
        cards=cards,
    )


def estimated(
    runs: Recorder, request: Request, stages: Sequence[Stage], card: Card, original: Recording
) -> tuple[list[Advice], Estimate | None]:
    """What each stage brings on top of those before it, and all of them together on one card."""
    found: list[Advice] = []
    loading = original.loading
    last = whole = before = step.estimate(original, card)
    sharing = {stage.codemod for stage in stages if stage.shares}
    for name, files in _by_codemod(stages).items():
        try:
            recording = runs.record(f"with {name}", files)
        except Inconclusive as why:
            found.append(Advice(name, None, str(why)))
            continue
        if loading and recording.loading and 1 / SAME_DATA < recording.loading / loading < SAME_DATA:
            recording = replace(recording, loading=loading)
        loading = recording.loading
        now = step.estimate(recording, card)
        cards = on_several(runs, f"with {name}", files, now, card, request.gpus) if name in sharing else None
        if cards is not None:
            found.append(Advice(name, cards.estimate, cards.estimate.refused, cards.estimate.kernels, cards.enough))
        else:
            found.append(Advice(name, step.compared(last, now), now.refused, last.kernels))
        last, whole = now, step.compared(before, now)
    return found, whole if stages else None


def on_several(  # noqa: PLR0913
    runs: Recorder, phase: str, files: Mapping[Path, bytes], one: Estimate, card: Card, gpus: int
) -> Several | None:
    """The same program on several cards; None where one is asked for."""
    if gpus == 1:
        return None
    try:
        recording = runs.record(f"{phase}, a card's share of {gpus}", files, gpus)
    except Inconclusive as why:
        none = replace(one, step_ms=None, refused=f"with a card's share of a batch {why}")
        return Several(gpus, none, enough=enough_of(one))
    return several(one, step.estimate(recording, card), recording, card, gpus)


def _by_codemod(stages: Sequence[Stage]) -> dict[str, Mapping[Path, bytes]]:
    """The program after each codemod and all before it."""
    files: dict[Path, bytes] = {}
    programs: dict[str, Mapping[Path, bytes]] = {}
    for stage in stages:
        files = {**files, **stage.files}
        programs[stage.codemod or "the candidate"] = dict(files)
    return programs


def _timed(found: Profile, runs: Recorder, request: Request, tell: OnProgress) -> Profile:
    """The profile with what a clock says on the GPU that is here."""
    try:
        (timed,) = speed.measure(runs.child, [{}], replace(request.options, repeats=1), tell)
    except speed.NotTimed as why:
        tell(Progress(f"not timed: {why}", 0, None))
        return found
    parts = {name: float(ms) for name, ms in timed.measured.step_ms.items() if ms is not None}
    return replace(found, measured=parts, samples_per_second=timed.measured.samples_per_second, peak_memory=timed.peak)
