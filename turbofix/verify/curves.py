"""Compare how two recipes learn, by time to equal loss over several seeds: losses in, a judgement out.

A change of the recipe takes other steps on purpose, so no step of it is held against one of the original's. What is
asked is when it comes as far as the original does: to the highest loss that the original ends with under any seed, give
or take its spread. Losses are means over a stretch of the training that is the same for both programs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from turbofix.records import dataclass
from turbofix.verify.probe.tolerances import ENDINGS
from turbofix.verify.result import DROPPED, KEPT, UNVERIFIED

# fewer steps say nothing of how a program learns
LEAST_STEPS = 20
# of a program that takes fewer and larger steps
LEAST_POINTS = 5
# the share of the training that a loss is the mean of, and the fewest steps
STRETCH = 0.1
LEAST_STRETCH = 3
# The program without the change has come as far in less than this share of its steps: it is clearly faster.
CLEARLY = 0.8
# first losses further apart than this are not counted alike, since both programs start from weights of one kind
ALIKE = 1.5
# the spread of the losses at the end may be so much of what the original learns
HALF = 0.5
# learning rates that change against each other by more than this follow different schedules
STEADY = 1.05

SAMPLES, PASSES = "samples", "backward passes"


@dataclass(frozen=True)
class Curve:
    """One run: the loss of every step that tells one, and how much the program had seen by then (``unit``).

    ``rates`` are the learning rates of these steps, ``steps`` and ``whole`` all steps and all that was seen, ``passes``
    the backward passes that a step usually takes, ``ended`` whether the script came to its own end unasked.
    """

    seen: tuple[float, ...]
    losses: tuple[float, ...]
    rates: tuple[float | None, ...]
    steps: int
    whole: float
    unit: str = SAMPLES
    passes: int = 1
    ended: bool = True

    @property
    def finite(self) -> bool:
        """Whether every loss is a number."""
        return all(map(math.isfinite, self.losses))


@dataclass(frozen=True)
class Learning:
    """What a comparison came to, and in words: ``told`` stands behind "over 3 seeds"."""

    verdict: str
    told: str

    @property
    def kept(self) -> bool:
        return self.verdict == KEPT


class NoCurve(Exception):  # noqa: N818 (an outcome)
    """The steps of a run tell nothing of what was learned; the message is a sentence."""


def unit_of(log: Mapping[str, Any]) -> str:
    """What the run's progress is measured in."""
    return SAMPLES if _are_counted(log["rows"]) else PASSES


def _are_counted(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the samples of all steps are known. A loader that fetches a batch ahead, as Accelerate's does, gives an
    epoch's first step two batches and its last one none: a step without samples stands for an earlier one with more
    than usual."""
    known = [row["samples"] for row in rows if row["samples"]]
    if not known:
        return False
    usual = statistics.median_low(known)
    ahead = 0
    for row in rows:
        if not row["samples"]:
            ahead -= 1
        elif row["samples"] > usual:
            ahead += 1
        if ahead < 0:
            return False
    return True


def curve_of(log: Mapping[str, Any], unit: str) -> Curve:
    """The curve of a run; ``NoCurve`` where its losses are those of several optimizers, or there are none."""
    learning = {row["optimizer"] for row in log["rows"] if row["losses"]}
    if len(learning) > 1:
        raise NoCurve("several optimizers step, each for a loss of its own, and no loss says how far they are together")
    if not learning:
        raise NoCurve("no loss was seen, since no step comes after a backward pass")
    rows = [row for row in log["rows"] if row["optimizer"] in learning]
    passes = statistics.mode(len(row["losses"]) for row in rows)
    if unit == SAMPLES and not _are_counted(rows):
        raise NoCurve("the number of samples is not known in every step")
    seen = 0.0
    points: list[tuple[float, float, float | None]] = []
    for row in rows:
        seen += (row["samples"] or 0) if unit == SAMPLES else len(row["losses"])
        # what is left over at the end of an epoch is divided as it may be: its loss is not on the scale of the others
        if len(row["losses"]) == passes:
            finite = all(map(math.isfinite, row["losses"]))
            rate = row["hyper"][0].get("lr") if row["hyper"] else None
            loss = math.fsum(row["losses"]) if finite else math.nan
            points.append((seen, loss, rate if isinstance(rate, float) else None))
    return Curve(
        tuple(point[0] for point in points),
        tuple(point[1] for point in points),
        tuple(point[2] for point in points),
        len(rows),
        seen,
        unit,
        passes,
        log["how"] in ENDINGS,
    )


def smoothed(curve: Curve, stretch: float) -> list[tuple[float, float]]:
    """For every step from the first whole stretch on: what had been seen, and the mean loss of the stretch before."""
    ends = curve.seen
    starts = (0.0, *ends[:-1])
    found = []
    first = 0
    for place, end in enumerate(ends):
        while ends[first] <= end - stretch:
            first += 1
        if end >= min(stretch, ends[-1]):
            weights = [ends[i] - starts[i] for i in range(first, place + 1)]
            part = zip(weights, curve.losses[first : place + 1], strict=True)
            found.append((end, math.fsum(weight * loss for weight, loss in part) / sum(weights)))
    return found


def judge(without: Sequence[Curve], changed: Sequence[Curve]) -> Learning:
    """Whether a changed recipe learns, from runs without the change and with it, seed by seed."""
    why = why_blind(without)
    if why:
        return Learning(UNVERIFIED, why)
    steps, seeds = without[0].steps, len(without)
    changed = [_until(one, without[0].whole) for one in changed]
    broken = [one for one in changed if not one.finite]
    if broken:
        return Learning(DROPPED, f"the loss is no longer finite with {_of(len(broken), seeds)}")
    if any(len(one.losses) < LEAST_POINTS for one in changed):
        fewest = min(one.steps for one in changed)
        return Learning(UNVERIFIED, f"{fewest} steps are taken where there were {steps}, too few to see what they do")
    first = [statistics.median(one.losses[0] for one in runs) for runs in (without, changed)]
    if _cut(without) != _cut(changed) and not 1 / ALIKE <= (first[1] / first[0] if first[0] > 0 else 1.0) <= ALIKE:
        unlike = f"the first loss is {first[1]:.3g} and not {first[0]:.3g}"
        return Learning(UNVERIFIED, f"the losses of larger and smaller steps are not counted alike: {unlike}")
    return _weigh(without, changed)


def why_blind(without: Sequence[Curve]) -> str | None:
    """Why runs of the original cannot show whether another program learns, in words; None where they can."""
    steps = min(one.steps for one in without)
    if steps < LEAST_STEPS or any(len(one.losses) < LEAST_POINTS for one in without):
        return f"{steps} optimizer steps are too few to see how it learns"
    if not all(one.finite for one in without):
        return "the loss of the original is not finite itself"
    stretch = _stretch(without)
    starts = [smoothed(one, stretch)[0][1] for one in without]
    ends = _ends(without, stretch)
    # A program that learns nothing, or half of it, must stand out.
    if _spread(without, stretch) > HALF * (min(starts) - max(ends)):
        fall = f"from {_range(starts)} to {_range(ends)}"
        return f"the loss of the original does not fall in {steps} steps by much more than it varies ({fall})"
    return None


def where_it_ends(without: Sequence[Curve]) -> str:
    """The losses that runs of the original end with, in words."""
    return _range(_ends(without, _stretch(without)))


def _weigh(without: Sequence[Curve], changed: Sequence[Curve]) -> Learning:
    stretch, whole, steps = _stretch(without), without[0].whole, without[0].steps
    before, after = [[smoothed(one, stretch) for one in runs] for runs in (without, changed)]
    ends, last = _ends(without, stretch), [curve[-1][1] for curve in after]
    goal = max(ends) + _spread(without, stretch)
    seeds = len(without)

    def in_steps(seen: float) -> int:
        return math.ceil(steps * seen / whole - 1e-9)

    # the same amount is seen in fewer steps where those are larger
    many = "" if _cut(without) == _cut(changed) else f"the {without[0].unit} of "
    lost = [loss for loss in last if loss >= min(curve[0][1] for curve in before)]
    reached = [in_steps(seen) for seen in (_first_at(curve, goal) for curve in after) if seen is not None]
    usual = [in_steps(seen) for seen in (_first_at(curve, goal) for curve in before) if seen is not None]
    first = f"after {_steps(usual)} without it"
    short = len(changed) - len(reached)
    passed = [
        in_steps(_first_at(curve, max(loss, end)) or whole) for curve, loss, end in zip(before, last, ends, strict=True)
    ]
    if lost or (short > seeds / 2 and statistics.median(passed) < CLEARLY * steps):
        there = f"after {many}{steps} steps the loss is {_range(last)}"
        if not without[0].ended and _rates_part(without, changed):
            return Learning(
                UNVERIFIED,
                f"{there}, and {_range(ends)} without it, but its learning rate is still on its way: what it comes to "
                "was not seen",
            )
        if lost:
            whom = "any seed" if len(lost) == seeds else _of(len(lost), seeds)
            return Learning(DROPPED, f"nothing is learned with {whom}: {there}, and {_range(ends)} without it")
        way = f"which without it was passed after {_steps(passed)}, on the way to {_range(ends)}"
        return Learning(DROPPED, f"it learns clearly worse: {there}, {way}")
    if not reached:
        return Learning(
            KEPT, f"a loss of {goal:.3g}, reached {first}, is not reached in {many}{steps} steps ({_range(last)} there)"
        )
    partly = f" with {_of(len(reached), seeds)} (the end is at {_range(last)})" if short else ""
    return Learning(KEPT, f"a loss of {goal:.3g} is reached after {many}{_steps(reached)}{partly}, and {first}")


def _until(curve: Curve, whole: float) -> Curve:
    """The part of a run in which it had seen no more than the original in all."""
    count = sum(seen <= whole + 1e-9 for seen in curve.seen)
    if count == len(curve.seen):
        return curve
    return dataclasses.replace(
        curve,
        seen=curve.seen[:count],
        losses=curve.losses[:count],
        rates=curve.rates[:count],
    )


def _cut(curves: Sequence[Curve]) -> tuple[int, int]:
    """The size of the steps: how much is seen in one, and by how many backward passes."""
    return round(curves[0].whole / curves[0].steps), curves[0].passes


def _stretch(without: Sequence[Curve]) -> float:
    one = without[0]
    return max(STRETCH * one.whole, LEAST_STRETCH * one.whole / one.steps)


def _ends(curves: Sequence[Curve], stretch: float) -> list[float]:
    return [smoothed(curve, stretch)[-1][1] for curve in curves]


def _spread(without: Sequence[Curve], stretch: float) -> float:
    """How far the loss at the end is uncertain: by the seed, or by the few batches that it is the mean of."""
    ends = _ends(without, stretch)
    return max(max(ends) - min(ends), 2 * statistics.median(_error(curve, stretch) for curve in without))


def _error(curve: Curve, stretch: float) -> float:
    """The standard error of the mean over the last stretch; neighbours are compared, so that a slope counts little."""
    last = [loss for seen, loss in zip(curve.seen, curve.losses, strict=True) if seen > curve.seen[-1] - 2 * stretch]
    squares = [(right - left) ** 2 / 2 for left, right in itertools.pairwise(last)]
    return math.sqrt(statistics.fmean(squares) / max(1, len(last) / 2)) if squares else 0.0


def _first_at(curve: Sequence[tuple[float, float]], goal: float) -> float | None:
    return next((seen for seen, loss in curve if loss <= goal), None)


def _rates_part(without: Sequence[Curve], changed: Sequence[Curve]) -> bool:
    """Whether the learning rates follow different schedules, and not one that is another throughout."""
    ratios = []
    for place, rate in enumerate(changed[0].rates):
        seen = changed[0].seen[place]
        other = next((r for s, r in zip(without[0].seen, without[0].rates, strict=True) if s >= seen), None)
        if rate is not None and other:
            ratios.append(rate / other)
    return bool(ratios) and max(ratios) > STEADY * min(ratios)


def _of(count: int, seeds: int) -> str:
    return f"{count} of {seeds} seeds" if count < seeds else "every seed"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low}–{high}"


def _steps(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} steps" if low == high else f"{low}–{high} steps"
