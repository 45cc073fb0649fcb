"""Compare the logs of two runs: numbers in, sentences out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turbofix.records import dataclass
from turbofix.verify.probe.tolerances import BESIDE_WEIGHTS, CLOSE, ROUNDED, Tolerance, distance, severity

Row = Mapping[str, Any]
Log = Mapping[str, Any]

# steps that a gradient scaler may leave out until its scale fits
SETTLING_STEPS = 16

# the share of the steps in which rounding may carry one measure past its tolerance, and never in one step alone
STRAY_SHARE = 0.25

# how far off a single number's gradient is that is zero: too far, but where rounding may stray
ZEROED = 2.0

# steps to either side whose disturbance stands for a step's own: one number alone goes by chance
NEAR = 3

# the |ln(norm ratio)| that is more than rounding in any case: half the length, or twice, is ln 2 = 0.69
WIDEST = 0.6
# and of a loss: a tenth more or less in every step is another loss
WIDEST_LOSS = 0.05

HYPER_NAMES = {"lr": "learning rate", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class Difference:
    """What a candidate does differently. ``place`` counts the steps before it, where one step shows it."""

    sentence: str
    place: int | None = None


@dataclass(frozen=True)
class Deviation:
    """What is off in a step: ``severity`` is in units of the measure's tolerance, infinite where it has none."""

    measure: str
    severity: float
    sentence: str


def tolerance_for(original: Log, candidate: Log, *, cuda: bool) -> Tolerance:
    """Programs that compute in 32 bits or more, as they are told to, differ by the order of additions alone.

    In 16 bits, or in TF32's 19, another order, or another kernel, rounds as another precision does.
    """
    halved = any(
        log["events"]["autocast"] or log["events"]["halved"] or log["rounded"] for log in (original, candidate)
    )
    same_compiler = original["events"]["compiled"] == candidate["events"]["compiled"]
    return CLOSE if not halved and same_compiler and not cuda else ROUNDED


def first_inequality(original: Log, again: Log) -> str | None:
    """Where two runs of the same program part, in a sentence; None when they are equal bit for bit."""
    for old, new in zip(original["rows"], again["rows"], strict=False):
        where = _where(old, original["rows"])
        if _bits(old["losses"]) != _bits(new["losses"]):
            return f"{where} the loss is {_sum(new):.9g} and not {_sum(old):.9g}"
        unequal = (new.get("compare") or {}).get("unequal") or {}
        for what, name in unequal.items():
            if name:
                return f"{where} the {what} of `{name}` differs"
        difference = next(_structure(old, new), None)
        if difference:
            return f"{where} {difference}"
    if len(original["rows"]) != len(again["rows"]):
        return f"it took {len(again['rows'])} steps and not {len(original['rows'])}"
    return None


@dataclass(frozen=True)
class Floor:
    """What rounding alone does to the gradients of one optimizer: bounds no narrower than that.

    ``parameters`` holds, by name, the bounds of 1 - cosine and of |ln(norm ratio)|; ``farthest`` is the 1 - cosine that
    the whole gradient may reach in a few steps.
    """

    tolerance: Tolerance
    parameters: Mapping[str, tuple[float, float]]
    farthest: float


def floors(original: Log, control: Log, tolerance: Tolerance) -> dict[tuple[int, int], Floor]:
    """Tolerances for steps in which rounding changes more than usual, by the numbers of optimizer and step.

    ``control`` is a run of the original with its weights disturbed by as much as bfloat16 rounds them. At the start of
    a deep residual network with BatchNorm its gradients point elsewhere, and so do those of 16 bits; both learn.
    """
    scale = _typical([abs(_sum(row)) for row in original["rows"]])
    disturbed: dict[int, list[tuple[int, _Disturbed]]] = {}
    for old, new in zip(original["rows"], control["rows"], strict=False):
        compare = new.get("compare")
        # before the first step nothing is disturbed, and where a scaler leaves one out the gradients are no numbers
        if old["step"] and compare and not compare["mismatch"] and not (old["skipped"] or new["skipped"]):
            loss = abs(_sum(new) - _sum(old)) / max(abs(_sum(old)), scale / 10, 1e-30)
            disturbed.setdefault(old["optimizer"], []).append((old["step"], _Disturbed(compare, loss)))
    found: dict[tuple[int, int], Floor] = {}
    for row in original["rows"]:
        # at either end of the run, as many steps to the one side as there are too few to the other
        nearest = sorted(disturbed.get(row["optimizer"], ()), key=lambda each: abs(each[0] - row["step"]))
        if nearest:
            near = [each for _, each in nearest[: 2 * NEAR + 1]]
            found[row["optimizer"], row["step"]] = _floor(near, tolerance)
    return found


def may_be_rounding(original: Log, candidate: Log) -> bool:
    """Whether nothing but gradients, losses and buffers differ: a run of the control may tell whether that is much."""
    names = ("gradient_angle", "gradient_ratio", "loss", "parameter_angle", "parameter_ratio", "buffer")
    unbounded = replace(ROUNDED, **dict.fromkeys(names, math.inf))
    return first_difference(original, candidate, unbounded, exact=False) is None


def turned(control: Log) -> float:
    """1 - the cosine by which disturbing the weights turns the gradient, in the typical step."""
    compared = [row["compare"] for row in control["rows"] if row["step"] and row.get("compare")]
    return _typical([each["gradient"]["angle"] for each in compared if not each["mismatch"]])


@dataclass(frozen=True)
class _Disturbed:
    """A step of the control: how its gradients compare with the original's, and its loss, relatively."""

    compare: Mapping[str, Any]
    loss: float


def _floor(steps: Sequence[_Disturbed], tolerance: Tolerance) -> Floor:
    lengths, angles = BESIDE_WEIGHTS, BESIDE_WEIGHTS**2
    compared = [each.compare for each in steps]
    by_name: dict[str, list[tuple[float, float]]] = {}
    for compare in compared:
        for name, angle, ratio, _, _ in compare["parameters"]:
            by_name.setdefault(name, []).append((angle, distance(ratio)))
    parameters = {
        name: (
            max(tolerance.parameter_angle, min(1.0, angles * max(angle for angle, _ in found))),
            max(tolerance.parameter_ratio, min(WIDEST, lengths * max(off for _, off in found))),
        )
        for name, found in by_name.items()
    }
    gradient_angle = min(1.0, angles * _typical([compare["gradient"]["angle"] for compare in compared]))
    gradient_ratio = min(WIDEST, lengths * max(distance(compare["gradient"]["ratio"]) for compare in compared))
    buffer = lengths * _typical([max((off for _, off in compare["buffers"]), default=0.0) for compare in compared])
    return Floor(
        replace(
            tolerance,
            gradient_angle=max(tolerance.gradient_angle, gradient_angle),
            gradient_ratio=max(tolerance.gradient_ratio, gradient_ratio),
            loss=max(tolerance.loss, min(WIDEST_LOSS, lengths * max(each.loss for each in steps))),
            buffer=max(tolerance.buffer, min(WIDEST, buffer)),
        ),
        parameters,
        max(tolerance.stray * tolerance.gradient_angle, min(1.0, 2 * gradient_angle)),
    )


def first_difference(
    original: Log, candidate: Log, tolerance: Tolerance, *, exact: bool, control: Log | None = None
) -> Difference | None:
    """What the candidate does differently; None when it learns the same.

    With ``exact`` every loss, gradient and weight must be the same bit for bit, else within ``tolerance``. Where that
    allows for strays, a measure may be past its bound by so much in a few steps: rounding does that where sums cancel,
    and a wrong rule does it in every step of its kind. With a ``control`` the bounds are no narrower
    than its ``floors``.
    """
    usual = Floor(tolerance, {}, tolerance.stray * tolerance.gradient_angle)
    floor_of = floors(original, control, tolerance) if control is not None else {}
    loss_scale = _typical([abs(_sum(row)) for row in original["rows"]])
    old_rows, new_rows = original["rows"], candidate["rows"]
    strays: dict[tuple[int, str], list[str]] = {}
    for place, (old, new) in enumerate(zip(old_rows, new_rows, strict=False)):
        floor = floor_of.get((old["optimizer"], old["step"]), usual)
        for deviation in _deviations(old, new, floor, loss_scale):
            sentence = f"{_where(old, old_rows)} {deviation.sentence}"
            if not deviation.severity <= floor.tolerance.stray:
                return Difference(sentence, place)
            strays.setdefault((old["optimizer"], deviation.measure), []).append(sentence)
        inexact = _inexact(old, new) if exact else None
        if inexact:
            return Difference(f"{_where(old, old_rows)} {inexact}", place)
    ours, theirs = len(old_rows), len(new_rows)
    many = f"{theirs}" if theirs < ours else f"at least {theirs}"
    counts = f"the optimizer steps {many} times where the original's steps {ours} times" if theirs != ours else None
    found = _systematic(strays, old_rows) or counts or next(_whole_differences(original, candidate), None)
    return Difference(found) if found else None


def drew_differently(original: Log, candidate: Log) -> bool:
    """Whether the programs draw random numbers in the training step and cut the same samples into other batches.

    Then the same samples meet other random numbers, and no step can be compared with another. Steps over other samples
    are a difference, whatever is drawn.
    """
    pairs = list(zip(original["rows"], candidate["rows"], strict=False))
    cut = any(old["batches"] != new["batches"] and old["samples"] == new["samples"] for old, new in pairs)
    return cut and any(old["drew"] for old, _ in pairs)


def too_few_compared(original: Log, candidate: Log, fewest: int) -> str | None:
    """Why nothing can be said of a candidate without a difference, or None: its steps were left out by a scaler."""
    pairs = list(zip(original["rows"], candidate["rows"], strict=False))
    compared = sum(bool(new.get("compare")) and not (old["skipped"] or new["skipped"]) for old, new in pairs)
    if compared >= fewest:
        return None
    return f"the gradient scaler left out all but {compared} of {len(pairs)} steps, too few to compare"


def closeness(candidate: Log) -> str:
    """How close the worst step came, in words, for a codemod that was kept."""
    compared = [
        row["compare"]
        for row in candidate["rows"]
        if row.get("compare") and not row["compare"]["mismatch"] and not row.get("skipped")
    ]
    if not compared:
        return "no step could be compared"
    gradient = max(max(c["gradient"]["angle"], distance(c["gradient"]["ratio"])) for c in compared)
    update = max(max(c["update"]["angle"], distance(c["update"]["ratio"])) for c in compared)
    return (
        f"gradients agree to {gradient:.1g} and updates to {update:.1g} over {len(compared)} steps "
        "(1 - cosine or the relative change of the norm, whichever is larger, in the worst step)"
    )


def _where(row: Row, rows: Sequence[Row]) -> str:
    several = any(other["optimizer"] for other in rows)
    return f"at step {row['step'] + 1}" + (f" of optimizer {row['optimizer'] + 1}" if several else "")


def _systematic(strays: Mapping[tuple[int, str], Sequence[str]], rows: Sequence[Row]) -> str | None:
    """The first measure that strays too often, in a sentence."""
    for (optimizer, _), sentences in strays.items():
        steps = sum(row["optimizer"] == optimizer for row in rows)
        if len(sentences) > max(1, STRAY_SHARE * steps):
            return f"{sentences[0]}, and so in {len(sentences)} of {steps} steps"
    return None


def _deviations(old: Row, new: Row, floor: Floor, loss_scale: float) -> Iterator[Deviation]:
    """What is off in a step, the most telling first."""
    tolerance = floor.tolerance
    yield from _plainly(_structure(old, new))
    compare = new.get("compare")
    if compare and compare["mismatch"]:
        yield from _plainly([compare["mismatch"]])
        return
    skipped = old["skipped"] or new["skipped"]
    if compare and not skipped:
        yield from _plainly(_broken_off(compare))
        for name in compare["zeroed"]:
            yield Deviation(f"zero of {name}", ZEROED, _without(name, none=False))
    yield from _clipping(old, new, tolerance)
    yield from _losses(old, new, tolerance, loss_scale)
    if not compare or skipped:
        return
    yield from _gradients(compare, floor)
    for name, error in compare["buffers"]:
        # a count of batches follows the batches
        counts = name.endswith("num_batches_tracked") and old["batches"] != new["batches"]
        if not error <= tolerance.buffer and not counts:
            by = f" by {error:.2g} of its size" if math.isfinite(error) else ""
            yield Deviation(f"buffer {name}", error / tolerance.buffer, f"the buffer `{name}` differs{by}")
    update = compare["update"]
    if update["norm"]:
        of, most = ("; of `{0}` {2:.3g} times", ", most of all that of `{0}`") if compare["updates"] else ("", "")
        worst = (compare["updates"] or [()])[0]
        times = f"the update of the weights is {_times(update['ratio'])} the original's{of.format(*worst)}"
        turned = f"the update of the weights points elsewhere (1 - cosine = {update['angle']:.2g}){most.format(*worst)}"
        yield from _past("update ratio", distance(update["ratio"]), tolerance.update_ratio, times)
        yield from _past("update angle", update["angle"], tolerance.update_angle, turned)
    for name, angle, ratio in compare["updates"]:
        times = f"the update of `{name}` is {_times(ratio)} the original's"
        turned = f"the update of `{name}` points elsewhere (1 - cosine = {angle:.2g})"
        yield from _past(f"update ratio of {name}", distance(ratio), tolerance.update_ratio, times)
        yield from _past(f"update angle of {name}", angle, tolerance.update_angle, turned)


def _without(name: str, *, none: bool, more: str = "") -> str:
    lost = "has no gradient: it is no longer trained" if none else "has a gradient of zero where the original's is not"
    return f"`{name}`{more} {lost}"


def _plainly(sentences: Iterable[str]) -> Iterator[Deviation]:
    """Differences that no rounding makes."""
    return (Deviation("", math.inf, sentence) for sentence in sentences)


def _past(measure: str, value: float, bound: float, sentence: str) -> Iterator[Deviation]:
    """The deviation of a measure that is past its bound, or not a number."""
    if not value <= bound:
        yield Deviation(measure, value / bound, sentence)


def _broken_off(compare: Mapping[str, Any]) -> Iterator[str]:
    if compare["not_finite"]:
        yield f"the gradient of `{compare['not_finite'][0]}` is not finite"
    if compare["lost"]:
        name, none = compare["lost"][0]
        more = f" and {compare['lost_count'] - 1} more" if compare["lost_count"] > 1 else ""
        yield _without(name, none=none, more=more)
    if compare["drift"] > 1e-5:
        yield f"the weights differ before the step, by {compare['drift']:.2g} of their size"


def _gradients(compare: Mapping[str, Any], floor: Floor) -> Iterator[Deviation]:
    whole, tolerance = compare["gradient"], floor.tolerance
    bounds = [
        floor.parameters.get(name, (tolerance.parameter_angle, tolerance.parameter_ratio))
        for name, _, _, _, _ in compare["parameters"]
    ]
    severities = [
        severity(
            # how far one goes astray is a length, too, and 1 - cosine goes with the square of that
            math.sqrt(angle * angles) if name in floor.parameters and angle > angles else angle,
            ratio,
            share,
            replace(tolerance, parameter_angle=angles, parameter_ratio=ratios),
        )
        for (name, angle, ratio, share, _), (angles, ratios) in zip(compare["parameters"], bounds, strict=True)
    ]
    worst = [(row, off) for row, off in zip(compare["parameters"], severities, strict=True) if not off <= 1]
    if whole["norm"] or whole["ratio"]:
        name = f"; of `{worst[0][0][0]}` {_times(worst[0][0][2])}" if worst else ""
        sentence = f"the gradient is {_times(whole['ratio'])} the original's{name}"
        yield from _past("gradient ratio", distance(whole["ratio"]), tolerance.gradient_ratio, sentence)
    name = f", most of all that of `{worst[0][0][0]}`" if worst else ""
    turned = f"the gradient points elsewhere (1 - cosine = {whole['angle']:.2g}){name}"
    if whole["angle"] > floor.farthest:
        yield from _plainly([turned])
    yield from _past("gradient angle", whole["angle"], tolerance.gradient_angle, turned)
    for (name, angle, ratio, _, _), off in worst:
        _, ratios = floor.parameters.get(name, (0.0, tolerance.parameter_ratio))
        if distance(ratio) > ratios:
            yield Deviation(f"gradient of {name}", off, f"the gradient of `{name}` is {_times(ratio)} the original's")
        else:
            sentence = f"the gradient of `{name}` points elsewhere (1 - cosine = {angle:.2g})"
            yield Deviation(f"gradient of {name}", off, sentence)


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times"


def _structure(old: Row, new: Row) -> Iterator[str]:
    """Differences in what is done, whatever the numbers."""
    if old["optimizer"] != new["optimizer"]:
        yield "another optimizer steps than in the original"
        return
    if old["class"] != new["class"]:
        yield f"the optimizer is {new['class']} instead of {old['class']}"
    if old["samples"] != new["samples"]:
        yield f"the optimizer steps after {_count(new['samples'])} instead of {_count(old['samples'])}"
    yield from _hyper(old["hyper"], new["hyper"])
    for family, training in _lost_modes(old["modes"], new["modes"]):
        mode = "evaluation" if training else "training"
        yield f"{family} modules run in {mode} mode during training"
    # inside compiled code dropout is not seen
    if _drops_otherwise(old["dropouts"], new["dropouts"]) and old["compiled"] == new["compiled"]:
        yield f"dropout is {_dropout(new['dropouts'])} instead of {_dropout(old['dropouts'])}"
    if old["schedules"] != new["schedules"] and old["batches"] == new["batches"]:
        yield f"the learning-rate schedule steps {new['schedules']} times instead of {old['schedules']}"


def _count(samples: int | None) -> str:
    return "an unknown number of samples" if samples is None else f"{samples} samples"


def _drops_otherwise(old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]]) -> bool:
    """Whether something else is dropped; one that is off is missing where an evaluation builds no graphs any more."""
    ours, theirs = {tuple(each) for each in old}, {tuple(each) for each in new}
    return not theirs <= ours or any(training for _, training in ours - theirs)


def _dropout(found: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"p={p:g}" + ("" if training else " (off)") for p, training in found) or "absent"


def _lost_modes(old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]]) -> Iterator[tuple[str, bool]]:
    """(family, mode) of modules that ran in this mode in the original and, in this number, do not in the candidate."""
    ours, theirs = {tuple(mode) for mode in old}, {tuple(mode) for mode in new}
    for family, training, _ in sorted(ours - theirs, key=str):
        yield str(family), bool(training)


def _hyper(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"the optimizer has {len(new)} parameter groups instead of {len(old)}"
        return
    for group, (ours, theirs) in enumerate(zip(old, new, strict=False)):
        for key in ours.keys() & theirs.keys():
            if ours[key] != theirs[key] and not (ours[key] != ours[key] and theirs[key] != theirs[key]):
                name = HYPER_NAMES.get(key, f"`{key}`")
                where = f" in group {group}" if len(old) > 1 else ""
                yield f"the {name}{where} is {_plain(theirs[key])} instead of {_plain(ours[key])}"


def _plain(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _clipping(old: Row, new: Row, tolerance: Tolerance) -> Iterator[Deviation]:
    ours, theirs = old["clips"], new["clips"]
    per_batch = len(ours) * new["batches"] == len(theirs) * old["batches"] and old["batches"] != new["batches"]
    if len(ours) != len(theirs) and not (per_batch and theirs):
        kind = (ours or theirs)[0]["kind"]
        yield from _plainly([f"{kind} is called {len(theirs)} times in the step instead of {len(ours)}"])
        return
    for before, after in zip(ours, theirs, strict=False):
        if before["kind"] != after["kind"]:
            yield from _plainly([f"{after['kind']} is called instead of {before['kind']}"])
        elif before["bound"] != after["bound"]:
            yield from _plainly([f"{after['kind']} clips at {after['bound']:g} instead of {before['bound']:g}"])
    if len(ours) != len(theirs) or old["skipped"] or new["skipped"]:
        return
    for place, (before, after) in enumerate(zip(ours, theirs, strict=False)):
        a, b = before["norm"], after["norm"]
        if a and b is not None and math.isfinite(a):
            ratio = b / a if math.isfinite(b) else math.inf
            norms = f"{b:.3g} instead of {a:.3g}"
            sentence = f"{after['kind']} sees a gradient norm {_times(ratio)} the original's ({norms})"
            yield from _past(f"clip {place}", distance(ratio), tolerance.gradient_ratio, sentence)


def _losses(old: Row, new: Row, tolerance: Tolerance, scale: float) -> Iterator[Deviation]:
    if bool(old["losses"]) != bool(new["losses"]):
        yield from _plainly([f"{len(new['losses'])} backward passes come before it instead of {len(old['losses'])}"])
        return
    a, b = _sum(old), _sum(new)
    if math.isnan(a) and math.isnan(b):
        return
    # A loss near zero is measured by the run's typical one.
    size = max(abs(a), scale / 10)
    ratio = f", {_times(b / a)} the original's" if a and distance(b / a) > 0.01 else ""
    error = abs(a - b) / size if size else (0.0 if a == b else math.inf)
    yield from _past("loss", error, tolerance.loss, f"the loss is {b:.6g} instead of {a:.6g}{ratio}")


def _inexact(old: Row, new: Row) -> str | None:
    if _bits(old["losses"]) != _bits(new["losses"]):
        return f"the loss is {_sum(new):.9g} and not bit for bit {_sum(old):.9g}"
    unequal = (new.get("compare") or {}).get("unequal") or {}
    return next((f"the {what} of `{name}` is not equal bit for bit" for what, name in unequal.items() if name), None)


def _whole_differences(original: Log, candidate: Log) -> Iterator[str]:
    """Differences of whole runs."""
    skipped = sum(row["skipped"] for row in candidate["rows"]) - sum(row["skipped"] for row in original["rows"])
    # a new scaler halves its scale until it fits: from 65536 down to 1 in 16 steps at most
    if skipped > max(SETTLING_STEPS, len(original["rows"]) // 5):
        yield f"the gradient scaler skips {skipped} of {len(original['rows'])} steps"
    if original["layers"] != candidate["layers"]:
        lost = [name for name, n in original["layers"].items() if candidate["layers"].get(name) != n]
        new = [name for name, n in candidate["layers"].items() if original["layers"].get(name) != n]
        yield f"the model has {', '.join(new) or 'no such layer'} instead of {', '.join(lost) or 'none'}"
    saved = saved_difference(original["saved"], candidate["saved"])
    if saved:
        yield saved
    ends = original["epochs_ended"], candidate["epochs_ended"]
    if ends[0] != ends[1]:
        yield f"{ends[1]} epochs ended where the original's ended {ends[0]}"


def saved_difference(original: Mapping[str, Sequence[str]], candidate: Mapping[str, Sequence[str]]) -> str | None:
    """How the files that ``torch.save`` wrote differ in their keys, in a sentence; None when they do not."""
    for name, keys in original.items():
        if name not in candidate:
            return f"it no longer saves {name}"
        if candidate[name] != keys:
            changed = sorted(set(keys) ^ set(candidate[name]))
            return f"what it saves in {name} has other keys ({', '.join(changed[:3])})"
    return None  # a file more takes nothing from those that there were


def _bits(losses: Sequence[float]) -> list[str]:
    return [repr(loss) for loss in losses]


def _sum(row: Row) -> float:
    return math.fsum(row["losses"]) if all(map(math.isfinite, row["losses"])) else math.nan


def _typical(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else 0.0
