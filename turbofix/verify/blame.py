"""Which change is to blame: the whole set is tried, and what fails is taken out until the rest learns the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from turbofix.findings import Risk
from turbofix.source.datafile import is_data
from turbofix.verify import changes, verdict
from turbofix.verify.original import Learned, Original, Outcome, Program
from turbofix.verify.request import Request, Stage, names_of
from turbofix.verify.result import DROPPED, KEPT, UNVERIFIED, Judgement, all_of
from turbofix.verify.scratch import Scratch


class Blame:
    """Try the whole set, and take out what fails until the rest passes."""

    def __init__(
        self,
        original: Original,
        scratch: Scratch,
        request: Request,
        *,
        cuda: bool,
        out: Mapping[str, Judgement] = {},
    ) -> None:
        self._original, self._scratch, self._request, self._cuda = original, scratch, request, cuda
        self._out: dict[str, Judgement] = dict(out)
        self.partly: dict[str, Judgement] = {}
        self._left: dict[str, list[str]] = {}  # of a codemod, what was left out since it did not run
        self._compared: dict[Program, Outcome] = {}

    def sort_out(self) -> Learned:
        """Judge every codemod. Without ``rebuild`` there is one stage, which passes or fails."""
        stages = self._worth_a_run(self._request.stages)
        while stages:
            outcome = self._compare(stages)
            if not outcome.clean:
                if not self._sees_the_original_repeated(stages):
                    continue
            elif idle := self._idle(stages, outcome):
                if self._request.rebuild is None:
                    return Learned((), tuple(Judgement("", UNVERIFIED, why) for why in idle.values()), outcome)
                rest = self._without_idle(stages, outcome.log, idle)
                self._carry_over(outcome, stages, rest)
                stages = rest
                continue
            culprit = self._culprit(stages, outcome)
            if culprit is None:
                if not self._sees_the_original_repeated(stages):
                    continue
                return self._learned(stages, outcome)
            if self._request.rebuild is None or culprit.codemod in self._out:
                return Learned((), (*self._out.values(), culprit), outcome)
            if not self._left_proven(stages, culprit):
                self._out[culprit.codemod] = culprit
            stages = self._request.rebuilt(self._out)
        return Learned((), self._in_order(self._out), None)

    @property
    def request(self) -> Request:
        """What is verified, without what was left out on the way."""
        return self._request

    def _left_proven(self, stages: tuple[Stage, ...], culprit: Judgement) -> bool:
        """Whether only what is proven of the culprit is left in: it also has findings that rest on assumptions."""
        pieces = [piece for stage in stages if stage.codemod == culprit.codemod for piece in stage.pieces]
        likely = [piece.name for piece in pieces if piece.likely]
        if culprit.codemod in self.partly or not all(likely) or not 0 < len(likely) < len(pieces):
            return False
        self.partly[culprit.codemod] = culprit
        self._request = self._request.leaving(likely)
        return True

    def _without_idle(
        self, stages: tuple[Stage, ...], log: Mapping[str, Any], idle: Mapping[int, str]
    ) -> tuple[Stage, ...]:
        """The stages without the findings of which something did not run, or without the codemod where that is all."""
        for name in dict.fromkeys(stages[index].codemod or "" for index in idle):
            mine = [index for index, stage in enumerate(stages) if stage.codemod == name]
            pieces = [piece for index in mine for piece in stages[index].pieces]
            missed = (self._pieces_missed(stages, index, log) or {""} for index in mine if index in idle)
            left = set[str]().union(*missed)
            staying = [piece for piece in pieces if piece.name not in left]
            reasons = [idle[index] for index in mine if index in idle]
            if all(left) and staying and not left <= self._request.without:
                if any(piece.likely for piece in pieces) and not any(piece.likely for piece in staying):
                    self.partly.setdefault(name, Judgement(name, UNVERIFIED, reasons[0]))
                else:
                    self._left.setdefault(name, []).extend(reasons)
                self._request = self._request.leaving(left)
            else:
                told = dict.fromkeys((*self._left.get(name, ()), reasons[0]))
                self._out[name] = Judgement(name, UNVERIFIED, "; ".join(told))
        rest = self._request.rebuilt(self._out)
        return () if rest == stages else rest

    def _carry_over(self, outcome: Outcome, whole: tuple[Stage, ...], rest: tuple[Stage, ...]) -> None:
        """Where nothing that was left out ran, what is left does what the whole did, and needs no run of its own."""
        if not rest or _program(whole)[1] != _program(rest)[1]:
            return
        log, moved = outcome.log, dict[str, Mapping[int, int]]()
        for path, old in whole[-1].files.items():
            place, new = str(self._scratch.mirror(path)), rest[-1].files.get(path, self._request.content(path))
            if old != new and (is_data(path) or changes.runs_otherwise(old, new, log["ran"].get(place, ()))):
                return
            moved[place] = changes.moved(old, new)
        ran = {place: [to[line] for line in log["ran"].get(place, ()) if line in to] for place, to in moved.items()}
        entered = [(where.rpartition(":"), lowered) for where, lowered in log["events"]["regions"].items()]
        regions = {
            f"{place}:{moved.get(place, {}).get(int(line), line)}": lowered for (place, _, line), lowered in entered
        }
        log = {**log, "ran": {**log["ran"], **ran}, "events": {**log["events"], "regions": regions}}
        self._compared[_program(rest)] = replace(outcome, log=log)

    def _pieces_missed(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> set[str]:
        """The names of the findings of a stage of which something did not run; an empty one where it is none's."""
        stage, found = stages[index], set[str]()
        slept = self._slept(stages, index, log)
        for one in self._reached(stages, index, log):
            idle = slept is not None and slept[0] == one.path and slept[1] in one.lines
            if idle or not (one.ran or one.waived):
                old = changes.lines_before(self._before(stages, index, one.path), stage.files[one.path], one.lines)
                here = {(one.path, line) for line in old}
                found |= {piece.name for piece in stage.pieces if not here.isdisjoint(piece.lines)} or {""}
        return found

    def recheck(self, stages: tuple[Stage, ...]) -> Outcome | None:
        """The outcome of some of the stages that passed; None where they do not pass without the others."""
        outcome = self._compare(stages)
        return outcome if outcome.clean and not self._idle(stages, outcome) else None

    def _sees_the_original_repeated(self, stages: tuple[Stage, ...]) -> bool:
        """Two runs must be the same bit for bit before anything is blamed or kept, and those of an exact rewrite are.

        It has to be run anyway, so the original is run against itself only where that was not the same. False: what
        was compared so far is void.
        """
        if self._original.repeats:
            return True
        until = self._original.fewer if self._compare(stages).clean else None
        exact, far = (stages, None) if _program(stages)[1] else (self._exact_alone(stages), until)
        if exact and self._original.is_repeated_by(self._compare(exact, far), far):
            return True
        if self._original.demand_repeatable(until):
            return True
        self._compared.clear()
        return False

    def _worth_a_run(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """Without what no run here can compare or reach.

        A change of recipe is meant to learn otherwise (``recipes`` judges that).
        """
        if self._request.rebuild is None:
            return stages
        remap = self._original.remap
        while True:
            for index, stage in enumerate(stages):
                why = "it changes the training recipe, so that its steps cannot be compared with the original's"
                if stage.risk is not Risk.RECIPE:
                    before = {path: self._before(stages, index, path) for path in stage.files}
                    added = changes.added_switches(before, stage.files)
                    why = changes.asleep(added, None, cuda=self._cuda, rounded=remap, remapped=remap) or ""
                if stage.codemod and why:
                    self._out[stage.codemod] = Judgement(stage.codemod, UNVERIFIED, why)
            rest = self._request.rebuilt(self._out) if names_of(stages) & self._out.keys() else stages
            if rest == stages:
                break
            stages = rest
        while stages and (idle := self._foreseen(stages)):
            stages = self._without_idle(stages, *idle)
        return stages

    def _foreseen(self, stages: tuple[Stage, ...]) -> tuple[Mapping[str, Any], dict[int, str]] | None:
        """The stages of which something stands where the original did not come, and so no rewrite will."""
        log, ran = {**self._original.log}, {}
        for path, text in stages[-1].files.items():
            place = str(self._scratch.mirror(path))
            ran[place] = set(range(1, text.count(b"\n") + 2))
            if place in log["ran"] and not is_data(path):  # else nobody has looked there
                ran[place] = changes.may_run(self._request.content(path), text, log["ran"][place])
        log["ran"] = ran
        idle = {index: why for index in range(len(stages)) if (why := self._missed(stages, index, log))}
        return (log, idle) if idle else None

    def _learned(self, stages: tuple[Stage, ...], outcome: Outcome) -> Learned:
        kept: dict[str, Judgement] = {}
        unseen = [self._unseen(stages, index, outcome.log) for index in range(len(stages))]
        for stage in stages:
            if stage.codemod:
                same = "losses, gradients and weights are the same bit for bit"
                if self._original.fewer and any(each.risk is not Risk.EXACT for each in stages):
                    same += f" over {self._original.fewer} steps"  # and close over all, with the others
                together = outcome.notes[:1] if stage.processes else ()
                reason = [same if stage.risk is Risk.EXACT else verdict.closeness(outcome.log)]
                reason += together
                reason += [f"left out elsewhere: {why}" for why in dict.fromkeys(self._left.get(stage.codemod, ()))]
                reason += [
                    words for words, each in zip(unseen, stages, strict=True) if each.codemod == stage.codemod and words
                ]
                kept[stage.codemod] = Judgement(stage.codemod, KEPT, "; ".join(reason))
        return Learned(stages, self._in_order({**self._out, **kept}), outcome, unseen="" if kept else unseen[0])

    def _unseen(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> str:
        """What a stage does at an exception, or with a new option, in words: no run showed it."""
        spans: dict[Path, list[str]] = {}
        for one in self._reached(stages, index, log):
            if (one.waived or self._is_run_in_several(stages, index)) and not one.ran:
                lines = f"{one.lines[0]}–{one.lines[-1]}" if len(one.lines) > 1 else f"{one.lines[0]}"
                spans.setdefault(one.path, []).append(lines)
        told = [f"{path.name}, line{'s' * ('–' in '-'.join(lines))} {all_of(lines)}" for path, lines in spans.items()]
        return f"not run, and so not verified: {'; '.join(told)}" if told else ""

    def _in_order(self, judgements: Mapping[str, Judgement]) -> tuple[Judgement, ...]:
        """As the codemods came."""
        order = {stage.codemod: place for place, stage in enumerate(self._request.stages)}
        return tuple(sorted(judgements.values(), key=lambda one: order.get(one.codemod, 0)))

    def _compare(self, stages: tuple[Stage, ...], until: int | None = None) -> Outcome:
        """The outcome of the last stage's program, which is run once, and to its end or ``until`` so many steps."""
        program = _program(stages, until)
        if program in self._compared:
            return self._compared[program]
        names = [stage.codemod for stage in stages if stage.codemod]
        phase = f"with {names[-1]}" if len(names) == 1 else "the rewritten script"
        several = self._request.processes(stages)
        self._compared[program] = self._original.compare(
            stages[-1].files, exact=program[1], phase=phase, until=until, several=several
        )
        return self._compared[program]

    def _culprit(self, stages: tuple[Stage, ...], outcome: Outcome) -> Judgement | None:
        """The codemod to take out next, and why; None when the set stands."""
        if outcome.clean:
            return self._inexact(stages)
        for stage in stages if self._request.rebuild is not None else ():
            rest = self._request.rebuilt({*self._out, stage.codemod or ""}) if stage.claims else ()
            if rest and names_of(rest) == names_of(stages) - {stage.codemod}:  # nothing else goes with it
                if self._compare(rest).clean:
                    return _judgement(stage, outcome)  # and this is the set that stands
                break
        index, found = self._first_unclean(stages, outcome)
        return _judgement(stages[index], found)

    def _inexact(self, stages: tuple[Stage, ...]) -> Judgement | None:
        """Of a mixed set, the codemods that promise bit-equality are held to it by themselves."""
        alone = self._exact_alone(stages)
        if not alone:
            return None
        outcome = self._compare(alone, self._original.fewer)
        if outcome.clean:
            return None
        index, found = self._first_unclean(alone, outcome)
        return _judgement(alone[index], found)

    def _exact_alone(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """Of a mixed set, the codemods that promise bit-equality; none where others are needed for them."""
        others = frozenset(stage.codemod for stage in stages if stage.codemod and stage.risk is not Risk.EXACT)
        if self._request.rebuild is None or not others or len(others) == len(stages):
            return ()
        alone = self._request.rebuilt(others.union(self._out))
        return alone if all(stage.risk is Risk.EXACT for stage in alone) else ()

    def _first_unclean(self, stages: tuple[Stage, ...], whole: Outcome) -> tuple[int, Outcome]:
        """The first stage with which the program is no longer clean, by bisection over the prefixes.

        They are run as far as the whole set was before it differed.
        """
        low, high, found = 0, len(stages) - 1, whole
        until = None if whole.place is None else whole.place + 1
        while low < high:
            middle = (low + high) // 2
            outcome = self._compare(stages[: middle + 1], until)
            if outcome.clean:
                low = middle + 1
            else:
                high, found = middle, outcome
        return high, found

    def _idle(self, stages: tuple[Stage, ...], outcome: Outcome) -> dict[int, str]:
        """The stages of which something did not run, with what that is, given the outcome of them all.

        Python executes no line that a compiler has made a part of its graph. Where the program is compiled, a codemod
        that seems not to have run is looked at by itself: another one may be what compiles.
        """
        idle: dict[int, str] = {}
        for index, stage in enumerate(stages):
            why = self.not_exercised(stages, index, outcome.log)
            if why and outcome.log["events"]["compiled"] and self._missed(stages, index, outcome.log):
                why = None if self._runs_by_itself(stage) else why
            if why:
                idle[index] = why
        return idle

    def _runs_by_itself(self, stage: Stage) -> bool:
        """Whether all that a codemod changes is seen to run, and to learn the same, without the others."""
        alone = self._request.only(frozenset({stage.codemod} if stage.codemod else ()))
        if not alone:
            return False
        outcome = self._compare(alone)
        return outcome.clean and not any(
            self.not_exercised(alone, index, outcome.log)
            for index, each in enumerate(alone)
            if each.codemod == stage.codemod
        )

    def not_exercised(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> str | None:
        """What one of the stages changed and a run of them all shows not to have run, in a sentence."""
        files = stages[index].files
        if missed := self._missed(stages, index, log):
            return missed
        slept = self._slept(stages, index, log)
        if slept:
            path, line = slept
            place = self._request.place(path, files[path], line)
            return f"nothing that autocast computes in 16 bits ran in what it encloses at {place}"
        added = changes.added_switches({path: self._before(stages, index, path) for path in files}, files)
        rounded, remapped = bool(log["rounded"]), bool(log["remapped"])
        return changes.asleep(added, log["events"], cuda=self._cuda, rounded=rounded, remapped=remapped)

    def _slept(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> tuple[Path, int] | None:
        """The first line of a stage that entered autocast for nothing."""
        files = stages[index].files
        before = {path: self._before(stages, index, path) for path in files}
        return changes.first_idle(before, files, stages[-1].files, self._idle_regions(files, log))

    def _idle_regions(self, files: Iterable[Path], log: Mapping[str, Any]) -> dict[Path, set[int]]:
        """The lines that entered autocast for nothing, where there are more of them than in the original."""
        idle = [line for line, lowered in log["events"]["regions"].items() if not lowered]
        if len(idle) <= sum(not lowered for lowered in self._original.log["events"]["regions"].values()):
            return {}
        paths = {str(self._scratch.mirror(path)): path for path in files}
        found: dict[Path, set[int]] = {}
        for each in idle:
            path, _, line = each.rpartition(":")
            if path in paths:
                found.setdefault(paths[path], set()).add(int(line))
        return found

    def _missed(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> str | None:
        """The first line that a stage has changed and that did not run, in a sentence."""
        for one in self._reached(stages, index, log):
            if not one.ran and not (one.waived or self._is_run_in_several(stages, index)):
                place = self._request.place(one.path, stages[index].files[one.path], one.lines[0])
                return f"what it changed at {place}, did not run"
        return None

    def _is_run_in_several(self, stages: tuple[Stage, ...], index: int) -> bool:
        """Whether several processes show what a stage is for: what else it does, in other branches, is told."""
        return stages[index].processes and self._request.processes(stages) > 1

    def _reached(self, stages: tuple[Stage, ...], index: int, log: Mapping[str, Any]) -> list[changes.Statements]:
        """What a stage has changed, and whether it ran."""
        stage, last = stages[index], stages[-1]
        before = {path: self._before(stages, index, path) for path in stage.files}
        ran = {}
        for path, content in stage.files.items():
            lines = log["ran"].get(str(self._scratch.mirror(path)), ())
            ran[path] = changes.carried_lines(content, last.files.get(path, content), lines)
        return list(changes.reached(before, stage.files, ran))

    def _before(self, stages: tuple[Stage, ...], index: int, path: Path) -> bytes:
        if index and path in stages[index - 1].files:
            return stages[index - 1].files[path]
        return self._request.content(path)


def _program(stages: tuple[Stage, ...], until: int | None = None) -> Program:
    """The files of the last stage, whether they promise bit-equality, and for how many steps they are run."""
    return tuple(sorted(stages[-1].files.items())), all(stage.risk is Risk.EXACT for stage in stages), until


def _judgement(stage: Stage, outcome: Outcome) -> Judgement:
    if outcome.difference is None:
        return Judgement(stage.codemod or "", UNVERIFIED, outcome.unverifiable or "")
    return Judgement(stage.codemod or "", DROPPED, outcome.difference)
