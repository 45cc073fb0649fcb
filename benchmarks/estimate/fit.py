"""Fit the constants: the roofline of ``turbofix.estimate.clock`` over all operations of all networks at once."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.estimate.measured import COMPILED, EAGER, SETTINGS, Setting, held_out, steps
from benchmarks.estimate.networks import Trace, written_out
from benchmarks.estimate.others import HOST, Whole, others, whole
from turbofix.estimate import clock, updates
from turbofix.estimate.cards import Card, cards, constants
from turbofix.estimate.compiled import joined
from turbofix.estimate.recording import ATTENTION, CONVOLUTION, DEPTHWISE, GROUPED
from turbofix.estimate.step import FITTED, MOST_GROUPED

Constants = Mapping[str, float]

# what is expected of each, and how sure that is: the logarithm may be off by so much
PRIORS = {
    "product": (0.85, 0.2),
    "product_back": (0.8, 0.2),
    "convolution": (0.75, 0.2),
    "convolution_back": (0.7, 0.2),
    "attention": (0.5, 0.3),
    "depthwise": (0.3, 0.7),
    "odd": (0.3, 0.7),
    "group": (32.0, 0.7),
    "grouped_last": (0.5, 0.5),
    "feeding": (0.1, 0.7),
    "float32": (0.85, 0.3),
    "float32_convolution": (0.85, 0.1),
    "winograd": (1.5, 0.1),
    "narrow": (64.0, 0.3),
    "over_time": (0.7, 0.5),
    "wave": (0.5, 0.5),
    "memory": (0.85, 0.08),
    "product_memory": (0.7, 0.2),
    "product_memory_back": (0.6, 0.3),
    "convolution_memory": (0.6, 0.25),
    "convolution_memory_back": (0.5, 0.3),
    "depthwise_memory": (0.4, 0.4),
    "depthwise_memory_back": (0.35, 0.4),
    "reduction_memory": (0.8, 0.2),
    "reduction_memory_back": (0.8, 0.2),
    "other_memory": (0.7, 0.3),
    "turning": (0.7, 0.5),
    "kernel": (3.0, 0.3),
}
FOLDS = 4
WEIGHT, NOISE = 0.05, 0.08  # of the priors beside the measurements; of a measurement's logarithm


class Measured(NamedTuple):
    """A trace, the card and layout that it was measured with, and the seconds of its step."""

    trace: Trace | Whole
    card: Card
    last: bool
    seconds: float

    @property
    def precise(self) -> bool:
        """Whether most of its arithmetic is in more than 16 bits."""
        operations = self.trace.recording.operations
        wide = sum(each.flops for each in operations if each.bits > 16)
        return wide > sum(each.flops for each in operations) / 2


def measured(folder: Path, traces: Sequence[Trace], setting: Setting) -> list[Measured]:
    """What a file says of the traces."""
    found = steps(folder, setting.file, setting.mode)
    return [
        Measured(
            written_out(each) if setting.written else each,
            cards()[setting.card],
            setting.last,
            found[each.name, each.size].per_sample * each.batch,
        )
        for each in traces
        if each.mode == setting.mode and (each.name, each.size) in found
    ]


def other(*, fitted: bool) -> list[Measured]:
    """The other published trainings, those that are fitted on or those that are not."""
    rows = [Measured(whole(row), row.card, False, row.seconds) for row in others() if row.fitted == fitted]
    start = constants()["start_high"] * 1e-6
    return [row for row in rows if start * len(row.trace.recording.operations) < HOST * row.seconds]


class Columns:
    """The operations of many steps, one behind the other, in columns."""

    def __init__(self, steps: Sequence[Measured]) -> None:
        self.steps = steps
        self.operations = [step.trace.recording.operations for step in steps]
        counts = [len(each) for each in self.operations]
        self.starts = np.cumsum([0, *counts[:-1]])
        flat = [each for some in self.operations for each in some]
        kinds = list(clock.MEMORY)
        self.kind = np.array([kinds.index(each.kind) for each in flat])
        self.back = np.array([each.phase == "backward" for each in flat])
        self.names = kinds
        self.moved = np.array([each.read + each.written for each in flat])
        self.flops = np.array([each.flops for each in flat])
        last = np.repeat([step.last for step in steps], counts)
        card = [at for at, count in enumerate(counts) for _ in range(count)]
        recordings = [step.trace.recording for step in steps]
        where = [(each, steps[at].card, recordings[at]) for each, at in zip(flat, card, strict=True)]
        self.turned = np.array([each[0].turned * clock.turns(*each) for each in where]) * ~last
        self.bandwidth = np.array([step.card.bandwidth * 1e9 for step in steps])[card]
        self.float32 = np.array([step.card.float32 * 1e12 for step in steps])[card]
        self.peak = np.array([clock.peak(*each) for each in where])
        self.fed = np.array([clock.fed_of(*each) for each in where])
        self.tensor = np.array([clock.on_tensor_cores(*each) for each in where])
        self.waves = np.array([clock.waves_of(each, on, {"wave": 1.0}) - 1.0 for each, on, _ in where])
        self.square = np.array([clock.is_square(each) for each in flat])
        self.over_time = np.array([clock.is_over_time(each) for each in flat])
        shapes = [each.shape[:5] or (0, 0, 0, 0, 0) for each in flat]
        self.columns, self.channels = (np.array([shape[at] for shape in shapes]) for at in (2, 3))
        known = np.array([bool(each.shape) for each in flat])
        self.odd = known & (self.kind != kinds.index(ATTENTION)) & self.tensor
        self.odd &= (self.columns % clock.ALIGNED != 0) | (self.channels % clock.ALIGNED != 0)
        self.last = last
        self.convolves = np.isin(self.kind, [kinds.index(CONVOLUTION), kinds.index(GROUPED)])
        self.counts = np.array(counts)
        self.measured = np.array([step.seconds for step in steps])
        self.optimizing = [[(each, step.card) for each in step.trace.recording.updates] for step in steps]

    def parts(self, constants: Constants) -> tuple[Any, Any, Any]:
        """Seconds of arithmetic, of memory, and of turning layouts round, of each operation."""
        kind, names = self.kind, self.names

        def of_phase(table: Mapping[str, str], missing: float) -> Any:
            ahead = {name: constants[table[name]] if name in table else missing for name in names}
            behind = {name: constants.get(f"{table.get(name)}_back", ahead[name]) for name in names}
            return np.where(self.back, np.array(list(behind.values()))[kind], np.array(list(ahead.values()))[kind])

        plain = np.where(self.convolves, constants["float32_convolution"], constants["float32"])
        plain = plain * np.where(self.square, constants["winograd"], 1.0)
        plain = plain * np.where(self.convolves, np.minimum(1.0, self.columns / constants["narrow"]), 1.0)
        tensor = self.tensor | (kind == names.index(ATTENTION))
        reached = np.where(tensor, of_phase(clock.ARITHMETIC, 1.0), plain)
        reached = reached * np.where(self.over_time & self.convolves, constants["over_time"], 1.0)
        grouped = kind == names.index(GROUPED)
        share = np.minimum(1.0, np.minimum(self.columns, self.channels) / constants["group"])
        share = share * np.where(self.last, constants["grouped_last"], 1.0)
        reached = reached * np.where(grouped, share, 1.0) * np.where(self.odd, constants["odd"], 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            arithmetic = self.flops / self.peak * (1.0 / reached + self.fed * constants["feeding"])
        arithmetic = arithmetic * (1.0 + self.waves * constants["wave"])
        arithmetic = np.where(self.flops > 0, arithmetic, 0.0)
        depthwise = kind == names.index(DEPTHWISE)
        arithmetic = np.where(depthwise, self.flops / (self.float32 * constants["depthwise"]), arithmetic)
        memory = self.moved / (self.bandwidth * of_phase(clock.MEMORY, 1.0))
        turning = self.turned * constants["turning"] / (self.bandwidth * constants["memory"])
        return arithmetic, memory, turning

    def seconds(self, constants: Constants) -> Any:
        """What each step takes."""
        arithmetic, memory, turning = self.parts(constants)
        total = np.add.reduceat(np.maximum(arithmetic, memory) + turning, self.starts)
        total = total + self.counts * constants["kernel"] * 1e-6
        return total + [sum(updates.seconds(*each, constants)[0] for each in some) for some in self.optimizing]

    def grouped(self, constants: Constants) -> Any:
        """The share of each step that is not told of: convolutions in groups, and large depthwise ones."""
        arithmetic, memory, turning = self.parts(constants)
        times = np.maximum(arithmetic, memory) + turning
        doubtful = (self.kind == self.names.index(GROUPED)) | (
            (self.kind == self.names.index(DEPTHWISE)) & (arithmetic > memory)
        )
        return np.add.reduceat(np.where(doubtful, times, 0.0), self.starts) / np.add.reduceat(times, self.starts)

    def errors(self, constants: Constants) -> Any:
        """Logarithms of what is estimated by what was measured."""
        return np.log(self.seconds(constants) / self.measured)


def told(steps: Sequence[Measured], constants: Constants) -> list[Measured]:
    """The steps that the estimate does not refuse."""
    if not steps:
        return []
    shares = Columns(steps).grouped(constants)
    return [each for each, share in zip(steps, shares, strict=True) if share <= MOST_GROUPED]


def fit(folder: Path, traces: Sequence[Trace]) -> dict[str, float]:
    """The constants that suit the measured families best, each near what is expected of it, and how far they are off.

    How far is seen of families that a fit of the others has not seen.
    """
    chosen = {
        setting: [each for each in measured(folder, traces, setting) if not held_out(each.trace.family)]
        for setting in SETTINGS
    }
    start = {name: value for name, (value, _) in PRIORS.items()}
    whole = {setting: told(some, start) for setting, some in chosen.items()}
    more = other(fitted=True)
    fitted = _fitted([*(some for setting, some in whole.items() if setting.fitted), more], start)
    known = {**constants(), **fitted}
    return {**fitted, **fit_compiled(folder, traces, known), **_spreads(whole, more, fitted)}


def _fitted(settings: Iterable[Sequence[Measured]], start: Constants) -> dict[str, float]:
    """The constants by the steps of some settings, each of which counts alike."""
    from scipy.optimize import least_squares

    names = list(PRIORS)
    settings = [some for some in settings if some]
    columns = Columns([each for some in settings for each in some])
    total = len(columns.steps)
    share = np.concatenate([np.full(len(some), math.sqrt(total / (len(settings) * len(some)))) for some in settings])
    expected = np.log([PRIORS[name][0] for name in names])
    doubt = np.array([PRIORS[name][1] for name in names])
    weight = math.sqrt(total * WEIGHT / len(names))

    def off(logarithms: Any) -> Any:
        known = dict(zip(names, np.exp(logarithms), strict=True))
        return np.concatenate([share * columns.errors(known) / NOISE, weight * (logarithms - expected) / doubt])

    found = least_squares(off, np.log([start[name] for name in names]), loss="soft_l1", max_nfev=40)
    return {name: float(value) for name, value in zip(names, np.exp(found.x), strict=True)}


def fit_compiled(folder: Path, traces: Sequence[Trace], known: Constants) -> dict[str, float]:
    """The constants of a compiled program, on the one card that there is, and how far a ratio of two is off."""
    before, after = (steps(folder, file, "infer") for file in (EAGER.file, COMPILED))
    card = cards()[EAGER.card]
    plain = {**known, "compiled_turning": 1.0, "compiled_memory": 1.0, "compiled_again": 0.0}
    rows, families = [], []
    for each in traces:
        if each.mode != "infer" or held_out(each.family):
            continue
        key = each.name, each.size
        if key not in before or key not in after or not told([Measured(each, card, False, 1.0)], known):
            continue
        recording = each.recording
        once, twice = (
            [
                (one, clock.parts(one, card, recording, known))
                for one in joined(recording.operations, {**plain, "compiled_again": again})
            ]
            for again in (0.0, 1.0)
        )
        start = known["kernel"] * 1e-6
        turning = sum(parts[2] for _, parts in once)
        memory, more = (sum(max(parts[:2]) for one, parts in some if one.name == "compiled") for some in (once, twice))
        rest = sum(max(parts[:2]) for one, parts in once if one.name != "compiled") + start * len(once)
        eager = sum(clock.seconds(one, card, recording, known) for one in recording.operations)
        rows.append((eager, rest, turning, memory, more - memory, before[key].per_sample / after[key].per_sample))
        families.append(each.family)
    table = np.array(rows)
    folds = np.array([_fold_of(family) for family in families])
    off = np.empty(len(table))
    for fold in range(FOLDS):
        left = table[folds == fold]
        estimated = np.log(_compiled(left, _best(table[folds != fold])))
        off[folds == fold] = np.abs(estimated - np.log(left[:, -1])) / np.sqrt(np.abs(estimated) / math.log(2))
    named = zip(("compiled_turning", "compiled_memory", "compiled_again"), _best(table), strict=True)
    return {**dict(named), "spread_ratio": _in_four_of_five(families, off)}


def _compiled(table: Any, fitted: tuple[float, float, float]) -> Any:
    """The ratios of rows of what is eager, the rest, turning, memory, what is read again, and the measured ratio."""
    turns, reached, again = fitted
    eager, rest, turning, memory, more, _ = table.T
    return eager / (rest + turns * turning + (memory + again * more) / reached)


def _best(table: Any) -> tuple[float, float, float]:
    """The constants by which the median of |estimated - measured| is least."""
    grid = itertools.product(np.arange(0, 1.01, 0.05), np.arange(0.7, 1.61, 0.05), np.arange(0, 10.01, 0.5))
    turns, reached, again = min(grid, key=lambda each: float(np.median(np.abs(_compiled(table, each) - table[:, -1]))))
    return float(turns), float(reached), float(again)


def _spreads(
    whole: Mapping[Setting, Sequence[Measured]], more: Sequence[Measured], start: Constants
) -> dict[str, float]:
    """How far steps of a family are off in four of five cases, where the constants are fitted on others."""
    kinds: dict[str, list[tuple[str, float]]] = {"train": [], "infer": [], "other": [], "full": []}
    for fold in range(FOLDS):
        kept = [[each for each in some if _fold(each) != fold] for setting, some in whole.items() if setting.fitted]
        known = _fitted([*kept, [each for each in more if _fold(each) != fold]], start)
        groups = [(setting.mode if setting.card == FITTED else "other", some) for setting, some in whole.items()]
        groups += [("full" if each.precise else "other", [each]) for each in more]
        for kind, some in groups:
            left = [each for each in some if _fold(each) == fold]
            if left:
                errors = np.abs(Columns(left).errors(known))
                kinds[kind] += [(each.trace.family, error) for each, error in zip(left, errors, strict=True)]
    return {f"spread_{kind}": _in_four_of_five(*map(list, zip(*some, strict=True))) for kind, some in kinds.items()}


def _fold(one: Measured) -> int:
    """Which fold a family is in: of the few of ``others`` each is in one of its own."""
    return _fold_of(one.trace.family)


def _fold_of(family: str) -> int:
    few = ("bert", "waveglow", "densenet")
    return few.index(family) if family in few else int(hashlib.sha1(family.encode()).hexdigest(), 16) // 2 % FOLDS


def _in_four_of_five(families: Sequence[str], off: Any) -> float:
    """What is not exceeded in four of five cases, every family counted alike: it is of another that one will ask."""
    counts = Counter(families)
    order = np.argsort(off)
    weights = np.array([1 / counts[family] for family in families])[order]
    return float(np.asarray(off)[order][np.searchsorted(np.cumsum(weights) / weights.sum(), 0.8)])
