"""Of the changes that learn the same, keep those that are worth it on this machine's GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify import speed, worth
from turbofix.verify.blame import Blame
from turbofix.verify.original import Learned
from turbofix.verify.request import Progress, Request, Stage, names_of
from turbofix.verify.result import DROPPED, Interval, Judgement, Measured
from turbofix.verify.runner import Child
from turbofix.verify.speed import NotTimed, Timed
from turbofix.verify.worth import Brought, Unit

Files = Mapping[Path, bytes]


@dataclass(frozen=True)
class Selected:
    """What was kept, how fast it is (None where that cannot be told from noise), and both programs' figures."""

    learned: Learned
    speedup: Interval | None = None
    baseline: Measured = field(default_factory=Measured)
    candidate: Measured = field(default_factory=Measured)
    note: str | None = None


@dataclass(frozen=True)
class Ladder:
    """The original, and on top of it the units one after another: ``stages`` has for each unit those up to it."""

    units: tuple[Unit, ...]
    stages: tuple[tuple[Stage, ...], ...]

    @property
    def programs(self) -> tuple[Files, ...]:
        """The files of each rung."""
        return ({}, *(_files(stages) for stages in self.stages))


class Selection:
    """Times the changes one on top of another, and drops those that bring nothing."""

    def __init__(self, child: Child, request: Request, blame: Blame, tell: Callable[[Progress], None]) -> None:
        self._child, self._request, self._blame, self._tell = child, request, blame, tell

    def sort_out(self, learned: Learned) -> Selected:
        """Keep of ``learned`` what is worth it. Nothing is dropped where nothing can be told."""
        while learned.stages:
            ladder = self._ladder(learned.stages)
            try:
                timed = self._measure(ladder.programs)
            except NotTimed as why:
                if not why.failed or not why.place:
                    return Selected(learned, note=f"speed was not measured: a timed run {why}")
                # it learns the same with nothing left to chance, and fails as it will be run
                learned = self._without(learned, ladder, why)
            else:
                return self._select(learned, ladder, timed)
        return Selected(learned)

    def _measure(self, programs: Sequence[Files]) -> tuple[Timed, ...]:
        return speed.measure(self._child, programs, self._request.options, self._tell)

    def _select(self, learned: Learned, ladder: Ladder, timed: tuple[Timed, ...]) -> Selected:
        base, last = timed[0], timed[-1]
        if not (base.on_gpu or last.on_gpu):
            return Selected(learned, note="speed was not measured: the script used no GPU in its timed runs")
        found = [
            worth.brought(unit, before.speeds, after.speeds, worth.memory_saved(before.peak, after.peak))
            for unit, before, after in zip(ladder.units, timed, timed[1:], strict=False)
        ]
        learned = dataclasses.replace(learned, judgements=_told(learned.judgements, found))
        going = self._going(ladder, found)
        held = [one for one in found if one.why_not and one not in going]
        learned = _explained(learned, held, "another change rests on it")
        if not going:
            return _selected(learned, base, last)
        reasons = {name: one.why_not or "" for one in going for name in one.unit.codemods}
        rest = self._request.only(names_of(learned.stages) - reasons.keys())
        checked, why = learned.outcome, ""
        if rest:
            checked = self._blame.recheck(rest)
            why = "without it the rest could not be verified"
        if checked is not None:
            try:
                base, left, last = self._beside_the_whole(ladder, timed, rest)
            except NotTimed as reason:
                why = f"without it the rest could not be timed ({reason})"
            else:
                more = speed.change(left.speeds, last.speeds)
                if more is None or more.median < 1:
                    judgements = _dropped(learned.judgements, reasons)
                    learned = dataclasses.replace(learned, stages=rest, judgements=judgements, outcome=checked)
                    return _selected(learned, base, left if rest else last)
                why = f"all that seemed to bring nothing bring {worth.in_words(more)} together"
        return _selected(_explained(learned, going, why), base, last)

    def _beside_the_whole(
        self, ladder: Ladder, timed: tuple[Timed, ...], rest: tuple[Stage, ...]
    ) -> tuple[Timed, Timed, Timed]:
        """The original, what is left, and the whole set, timed in turn."""
        files = _files(rest)
        for program, one in zip(ladder.programs, timed, strict=True):
            if program == files:  # a rung of the ladder
                return timed[0], one, timed[-1]
        base, left, last = self._measure(({}, files, ladder.programs[-1]))
        return base, left, last

    def _going(self, ladder: Ladder, found: Sequence[Brought]) -> list[Brought]:
        """Those that are to go and on which none that stays rests, the least expected first."""
        staying = frozenset(name for unit in ladder.units for name in unit.codemods)
        going = []
        for one in reversed(found):
            without = staying.difference(one.unit.codemods)
            if one.why_not and names_of(self._request.only(without)) == without:
                staying = without
                going.append(one)
        return going

    # --- programs with some of the codemods

    def _ladder(self, stages: tuple[Stage, ...]) -> Ladder:
        """A unit without which a later one would change nothing, or the other way round, is timed with it."""
        everything = names_of(stages)
        if self._request.rebuild is None or len(everything) < 2:
            return Ladder(worth.ranked(stages), (stages,))
        units: list[Unit] = []
        rungs: list[tuple[Stage, ...]] = []
        below: frozenset[str] = frozenset()
        pending: list[Unit] = []
        for unit in worth.ranked(stages):
            pending.append(unit)
            names = below.union(*(one.codemods for one in pending))
            rung = stages if names == everything else self._request.only(names)
            if names == everything or names_of(rung) == names:
                units.append(worth.joined(pending))
                rungs.append(rung)
                below, pending = names, []
        return Ladder(tuple(units), tuple(rungs))

    def _without(self, learned: Learned, ladder: Ladder, why: NotTimed) -> Learned:
        """The rest, without the unit that failed in a timed run."""
        if not ladder.units:
            failed = Judgement("", DROPPED, f"the rewritten script {why} in a timed run")
            return Learned((), (failed,), learned.outcome)
        failing = ladder.units[why.place - 1].codemods
        judgements = _dropped(learned.judgements, dict.fromkeys(failing, f"it {why} in a timed run"))
        stages = self._request.only(names_of(learned.stages) - set(failing))
        gone = names_of(learned.stages) - set(failing) - names_of(stages)
        judgements = _dropped(judgements, dict.fromkeys(gone, "it rests on a change that failed in a timed run"))
        outcome = self._blame.recheck(stages) if stages else learned.outcome
        if outcome is None:
            why_not = "without a change that failed in a timed run it could not be verified"
            return Learned((), _dropped(judgements, dict.fromkeys(names_of(stages), why_not)), learned.outcome)
        return Learned(stages, judgements, outcome)


def _selected(learned: Learned, base: Timed, last: Timed) -> Selected:
    told = speed.change(base.speeds, last.speeds) if learned.stages else None
    note = speed.nothing_told(base, last) if told is None and learned.stages else None
    return Selected(learned, told, base.measured, last.measured, note)


def _files(stages: Sequence[Stage]) -> Files:
    return stages[-1].files if stages else {}


def _told(judgements: Sequence[Judgement], found: Sequence[Brought]) -> tuple[Judgement, ...]:
    """The judgements with what each unit brought; the factor stands with the first of it, so that it counts once."""
    units = {name: one for one in found for name in one.unit.codemods}

    def told(judgement: Judgement) -> Judgement:
        one = units.get(judgement.codemod)
        if one is None:
            return judgement
        words = worth.what_it_brought(one)
        first = judgement.codemod == one.unit.codemods[0]
        return dataclasses.replace(
            judgement,
            reason=f"{judgement.reason}; {words}" if words else judgement.reason,
            speedup=one.change.median if one.change is not None and first else None,
        )

    return tuple(map(told, judgements))


def _dropped(judgements: Sequence[Judgement], reasons: Mapping[str, str]) -> tuple[Judgement, ...]:
    return tuple(
        dataclasses.replace(one, verdict=DROPPED, reason=reasons[one.codemod]) if one.codemod in reasons else one
        for one in judgements
    )


def _explained(learned: Learned, kept: Sequence[Brought], why: str) -> Learned:
    """With the reason why these, which brought nothing, were kept."""
    names = {name for one in kept for name in one.unit.codemods}
    judgements = tuple(
        dataclasses.replace(one, reason=f"{one.reason}, and {why}") if one.codemod in names else one
        for one in learned.judgements
    )
    return dataclasses.replace(learned, judgements=judgements)
