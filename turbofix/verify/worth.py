"""Which changes are worth it: the order in which they are timed, and which go because they brought nothing.

Numbers and declarations in, units and sentences out. Every change is timed on top of those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from turbofix.records import dataclass
from turbofix.verify.request import Stage
from turbofix.verify.result import Interval
from turbofix.verify.speed import LEAST_RUNS, change, noise_floor, ratio_interval

# the share of the peak of memory that counts as a saving
SAVING = 0.02


@dataclass(frozen=True)
class Unit:
    """Codemods that are timed as one, and go as one.

    ``claim`` is the largest gain that is claimed for one of them (1.0: none is). ``for_speed``: they have no other
    purpose.
    """

    codemods: tuple[str, ...]
    claim: float = 1.0
    for_speed: bool = True

    @property
    def name(self) -> str:
        """As a sentence calls it."""
        return " and ".join(self.codemods)


@dataclass(frozen=True)
class Brought:
    """What a unit brought on top of those before it.

    ``change`` is None where it cannot be told from noise; ``why_not`` says why the unit is to go, None where it stays.
    ``saved`` is the share of the peak of memory that it took off, where that was seen.
    """

    unit: Unit
    change: Interval | None
    why_not: str | None
    saved: float | None = None


def ranked(stages: Sequence[Stage]) -> tuple[Unit, ...]:
    """The units in the order of their expected gain; one that has to come after another does so."""
    order = list(dict.fromkeys(stage.codemod for stage in stages if stage.codemod))
    group = _grouped(order, stages)
    expected = {name: max(_expected(stages, member) for member in group[name]) for name in order}
    after = {name: [one for member in group[name] for one in _after(stages, member)] for name in order}
    placed: list[str] = []
    visited: set[str] = set()

    def place(name: str) -> None:
        if name in visited:
            return
        visited.update(group[name])
        for earlier in sorted(set(after[name]) & set(order), key=order.index):
            place(earlier)
        placed.append(name)

    for name in sorted(order, key=lambda name: (-expected[name], order.index(name))):
        place(name)
    return tuple(_unit(group[name], stages) for name in placed)


def joined(units: Iterable[Unit]) -> Unit:
    """Several units as one."""
    units = tuple(units)
    return Unit(
        tuple(name for unit in units for name in unit.codemods),
        max(unit.claim for unit in units),
        all(unit.for_speed for unit in units),
    )


def _unit(names: Iterable[str], stages: Sequence[Stage]) -> Unit:
    own = {name: [stage for stage in stages if stage.codemod == name] for name in names}
    return joined(
        Unit(
            (name,),
            max((stage.gain.high for stage in found if stage.gain), default=1.0),
            all(stage.for_speed for stage in found),
        )
        for name, found in own.items()
    )


def _grouped(order: Sequence[str], stages: Sequence[Stage]) -> Mapping[str, tuple[str, ...]]:
    """For each codemod those that gain together with it, itself among them, in the order given."""
    groups = {name: {name} for name in order}
    for stage in stages:
        for other in stage.together:
            if stage.codemod in groups and other in groups:
                both = groups[stage.codemod] | groups[other]
                groups.update(dict.fromkeys(both, both))
    return {name: tuple(sorted(members, key=order.index)) for name, members in groups.items()}


def _expected(stages: Iterable[Stage], name: str) -> float:
    gains = [stage.gain for stage in stages if stage.codemod == name and stage.gain]
    return max((math.sqrt(gain.low * gain.high) for gain in gains), default=1.0)


def _after(stages: Iterable[Stage], name: str) -> list[str]:
    return [earlier for stage in stages if stage.codemod == name for earlier in stage.after]


def brought(unit: Unit, before: Sequence[float], after: Sequence[float], saved: float | None = None) -> Brought:
    """What a unit brought, from the speeds of interleaved runs without it and with it.

    It goes where it slows the training down, or where the runs could have shown as much as it claims and show nothing:
    their interval holds 1 and reaches no further than runs of one program differ. One with another purpose than speed
    stays, and so does one that saves memory; one that claims no gain goes for a loss alone.
    """
    seen = change(before, after)
    why_not = None
    if unit.for_speed and seen is not None and seen.median < 1:
        why_not = f"it makes the training slower here: {in_words(seen)}"
    elif unit.for_speed and seen is None and saved is None and len(before) >= LEAST_RUNS:
        interval, floor = ratio_interval(before, after), noise_floor(before, after)
        if interval.low <= 1.0 <= interval.high <= floor < unit.claim:
            differ = (floor - 1) * 100
            why_not = (
                f"it brings nothing beyond the noise: {in_words(interval)}, where runs of one program differ by up to "
                f"{differ:.1f} %"
            )
    return Brought(unit, seen, why_not, saved)


def memory_saved(before: int | None, after: int | None) -> float | None:
    """The share of the peak that was taken off; None where it is not worth the name, or unknown."""
    if not before or after is None:
        return None
    saved = 1 - after / before
    return saved if saved >= SAVING else None


def in_words(interval: Interval) -> str:
    """An interval as a sentence tells it."""
    return f"{interval.median:.3g}× (95 % interval {interval.low:.3g}–{interval.high:.3g}×)"


def what_it_brought(one: Brought) -> str:
    """What is to be said of a unit that stays, beside its factor."""
    together = f" ({one.unit.name} together)" if len(one.unit.codemods) > 1 else ""
    if one.change is None:
        less = f", but the peak of memory is {one.saved * 100:.0f} % lower" if one.saved else ""
        return f"no change in speed of its own was seen{less}{together}"
    if one.change.median < 1 and not one.unit.for_speed:
        return f"it costs speed, which is not what it is for{together}"
    return f"what it brought is that of {one.unit.name}" if together else ""
