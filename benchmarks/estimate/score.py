"""The table: how far the estimate is off, beside what is guessed without it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.estimate import networks, trainings
from benchmarks.estimate.fit import Columns, Measured, measured, other, told
from benchmarks.estimate.measured import COMPILED, EAGER, SETTINGS, held_out, published, steps
from benchmarks.estimate.networks import Trace
from benchmarks.estimate.others import ONLY_SCORED
from turbofix.estimate import step
from turbofix.estimate.cards import cards, constants
from turbofix.estimate.recording import Recording, Update, operation_of


class Score(NamedTuple):
    """Median errors of the estimate and of the guesses; ``covered`` is the share within the range."""

    what: str
    steps: int
    refused: int
    error: float
    guesses: tuple[float, ...]
    covered: float | None = None

    @property
    def row(self) -> str:
        guesses = " | ".join("–" if math.isnan(each) else f"{each:.3f}" for each in (*self.guesses, *_NONE)[:3])
        covered = f"{self.covered:.2f}" if self.covered is not None else "–"
        return f"| {self.what} | {self.steps} | {self.refused} | {self.error:.3f} | {guesses} | {covered} |"


_NONE = (math.nan,) * 3
HEAD = (
    "| what | steps | refused | error, median | a constant | FLOPs + bytes | data sheet | covered |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def absolute(folder: Path, traces: Sequence[Trace]) -> list[Score]:
    """Steps of families that were not fitted on, file by file: the error is the median of |estimate / measured - 1|."""
    found = []
    fitted = [each for setting in SETTINGS[:1] for each in measured(folder, traces, setting)]
    fitted = [each for each in fitted if not held_out(each.trace.family)]
    guess = _guesses(fitted)
    for setting in SETTINGS:
        unseen = [each for each in measured(folder, traces, setting) if held_out(each.trace.family)]
        if not unseen:
            continue
        kept = told(unseen, constants())
        columns = Columns(kept)
        errors = columns.errors(constants())
        inside = [_covers(each) for each in kept]
        where = f"{setting.mode}, {setting.card}, torch {setting.torch}, {'channels-last' if setting.last else 'plain'}"
        found.append(
            Score(
                where,
                len(kept),
                len(unseen) - len(kept),
                _median(errors),
                tuple(_median(np.log([make(each) for each in kept]) - np.log(columns.measured)) for make in guess),
                sum(inside) / len(inside),
            )
        )
    return found


def more() -> list[Score]:
    """Other published trainings that were not fitted on: on other cards, and of other networks."""
    rows = other(fitted=False)
    groups = {
        "BERT and WaveGlow, h100 and rtx4090": [each for each in rows if each.card.name in ONLY_SCORED],
        "VGG and ResNet, volta, turing, a100": [each for each in rows if each.card.name not in ONLY_SCORED],
    }
    found = []
    for what, some in groups.items():
        kept = [each for each in some if step.estimate(each.trace.recording, each.card).step_ms]
        inside = [_covers(each) for each in kept]
        error = _median(Columns(kept).errors(constants()))
        found.append(Score(f"train, {what}", len(kept), len(some) - len(kept), error, (), sum(inside) / len(inside)))
    return found


def _median(logarithms: object) -> float:
    return float(np.median(np.abs(np.expm1(logarithms))))  # type: ignore[call-overload]


def _guesses(fitted: Sequence[Measured]) -> tuple[Callable[[Measured], float], ...]:
    """A constant per sample, FLOPs and bytes with a rate each, and the data sheet with nothing fitted."""
    constant = statistics.median(each.seconds / each.trace.batch for each in fitted)
    work = np.array([_work(each) for each in fitted])
    seconds = np.array([each.seconds for each in fitted])
    rates, *_ = np.linalg.lstsq(work / seconds[:, None], np.ones(len(fitted)), rcond=None)

    def by_rates(one: Measured) -> float:
        return float(max(np.dot(_work(one), rates), 1e-9))

    def by_sheet(one: Measured) -> float:
        recording = one.trace.recording
        return sum(
            max(each.flops / (one.card.half * 1e12), (each.read + each.written) / (one.card.bandwidth * 1e9))
            for each in recording.operations
        )

    return (lambda one: constant * one.trace.batch), by_rates, by_sheet


def _work(one: Measured) -> tuple[float, float]:
    operations = one.trace.recording.operations
    flops, moved = sum(each.flops for each in operations), sum(each.read + each.written for each in operations)
    return flops / one.card.half, moved / one.card.bandwidth


def _covers(one: Measured) -> bool:
    recording = one.trace.recording
    if one.last:
        recording = _turned(recording)
    found = step.estimate(recording, one.card)
    return found.step_ms is not None and found.step_ms.low <= one.seconds * 1e3 <= found.step_ms.high


def _turned(recording: Recording) -> Recording:
    operations = tuple(each._replace(turned=0.0) for each in recording.operations)
    return Recording(operations, recording.updates, samples=recording.samples, tf32=recording.tf32)


def compile_ratio(folder: Path, traces: Sequence[Trace]) -> list[Score]:
    """What compiling brings an inference: the error is the median of |estimated ratio - measured|."""
    eager, fast = steps(folder, EAGER.file, "infer"), steps(folder, COMPILED, "infer")
    rows = []
    for each in traces:
        key = each.name, each.size
        if each.mode != "infer" or key not in eager or key not in fast:
            continue
        before = step.estimate(each.recording, cards()[EAGER.card])
        if before.refused:
            continue
        after = step.estimate(replace(each.recording, compiled=True), cards()[EAGER.card])
        ratio = sum(before.parts.values()) / sum(after.parts.values())
        rows.append((ratio, eager[key].per_sample / fast[key].per_sample, held_out(each.family), before, after))
    usual = statistics.median(row[1] for row in rows if not row[2])
    unseen = [row for row in rows if row[2]]
    inside = 0
    for _, measured_ratio, _, before, after in unseen:
        both = step.compared(before, after).speedup
        inside += both is not None and both.low <= measured_ratio <= both.high
    return [
        Score(
            "compile, ratio, infer, rtx4090, torch 2.4",
            len(unseen),
            0,
            statistics.median(abs(row[0] - row[1]) for row in unseen),
            (statistics.median(abs(usual - row[1]) for row in unseen),),
            inside / len(unseen),
        )
    ]


def mixed_ratio(folder: Path) -> tuple[list[str], list[Score]]:
    """NVIDIA's trainings in mixed and in full precision: lines for each, and the median errors of step and of ratio."""
    lines, ratios, wholes, covered = [], [], [], []
    for row in published(folder):
        card = cards()[row.card]
        rates, inside = [], []
        for mixed, rate in ((False, row.full), (True, row.mixed)):
            one = trainings.training(row.model, row.batch)
            rows, numbers = networks.trace(one.model, one.inputs, one.loss, mixed=mixed)
            recording = Recording(
                tuple(map(operation_of, rows)),
                (Update("AdamW", -(-len(numbers) // one.batches), sum(numbers) // one.batches, 4, False, True),),
                tf32=row.tf32,
                tf32_convolutions=row.tf32,
            )
            found = step.estimate(_turned(recording) if one.last else recording, card)
            seconds = sum(found.parts.values()) * 1e-3
            rates.append(row.batch * one.per_step / seconds)
            wholes.append(abs(seconds / (row.batch * one.per_step / rate) - 1))
            measured_ms = row.batch * one.per_step / rate * 1e3
            inside.append(found.step_ms is not None and found.step_ms.low <= measured_ms <= found.step_ms.high)
        estimated, measured_ratio = rates[1] / rates[0], row.mixed / row.full
        ratios.append(abs(estimated / measured_ratio - 1))
        covered += inside
        lines.append(
            f"| {row.model}, {row.batch}, {row.card} | {row.full:,.0f} | {rates[0]:,.0f} | {row.mixed:,.0f} | "
            f"{rates[1]:,.0f} | {measured_ratio:.2f} | {estimated:.2f} |"
        )
    usual = 2.0
    constant = statistics.median(abs(usual / (row.mixed / row.full) - 1) for row in published(folder))
    full = {row: cards()[row.card].tf32 if row.tf32 else cards()[row.card].float32 for row in published(folder)}
    sheet = statistics.median(
        abs(cards()[row.card].half / rate / (row.mixed / row.full) - 1) for row, rate in full.items()
    )
    share = sum(covered) / len(covered)
    whole = Score("train, a100 and v100, full and mixed", len(wholes), 0, statistics.median(wholes), (), share)
    ratio = Score(
        "mixed by full precision, ratio", len(ratios), 0, statistics.median(ratios), (constant, math.nan, sheet), None
    )
    return lines, [whole, ratio]
