"""Changes of the recipe: do they learn? Not step by step, but over several seeds, by time to equal loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turbofix.findings import Risk
from turbofix.records import dataclass
from turbofix.verify import curves
from turbofix.verify.blame import Blame
from turbofix.verify.curves import Curve, Learning, NoCurve
from turbofix.verify.original import Goal, Learned, Original
from turbofix.verify.probe.tolerances import ENDINGS
from turbofix.verify.request import Request, Stage, names_of
from turbofix.verify.result import DROPPED, UNVERIFIED, Judgement, all_of

SEEDS = 3
# steps of a training that does not come to its end before
MOST_STEPS = 400

Files = Mapping[Path, bytes]


@dataclass(frozen=True)
class Program:
    """A program that was run under every seed: its curves, and the log of the first run."""

    curves: tuple[Curve, ...]
    log: Mapping[str, Any]


class Unfit(Exception):  # noqa: N818 (an outcome)
    """A program that was not seen to learn; the message is a sentence, ``failed`` says that it is its own fault."""

    def __init__(self, why: str, *, failed: bool = False) -> None:
        super().__init__(why)
        self.failed = failed


class Recipes:
    """Judges the changes of the recipe, one on top of another, on top of what is kept of the others."""

    def __init__(self, original: Original, request: Request, blame: Blame) -> None:
        self._original, self._request, self._blame = original, request, blame
        self._goal = Goal(request.options.steps or MOST_STEPS)

    def judge(self, learned: Learned) -> Learned:
        """With the judgements of the changes of the recipe, and what is kept of them."""
        if self._request.rebuild is None:
            return learned
        changing = (stage.codemod for stage in self._request.stages if stage.codemod and stage.risk is Risk.RECIPE)
        names = list(dict.fromkeys(changing))
        if not names:
            return learned
        try:
            without = self._baseline(learned.stages)
        except (NoCurve, Unfit) as blind:
            words = _as_a_change(str(blind))
            return _judged(learned, {name: Judgement(name, UNVERIFIED, words) for name in names})
        stages, last, told, kept = learned.stages, without, None, list[str]()
        found: dict[str, Judgement] = {}
        for name in names:
            more = self._request.only(names_of(stages) | {name})
            if names_of(more) != names_of(stages) | {name}:
                found[name] = Judgement(name, UNVERIFIED, _as_a_change("it needs changes that were left out"))
                continue
            if self._request.processes(more):
                words = "in several processes it can only be compared step by step"
                found[name] = Judgement(name, UNVERIFIED, _as_a_change(words))
                continue
            learning, program = self._compare(more, name, last, without)
            others = f", on top of {all_of(kept)}" if kept else ""
            found[name] = Judgement(name, learning.verdict, f"a change of the recipe{others}: {learning.told}")
            if program is not None and learning.kept:
                kept.append(name)
                stages, last = more, program
                # of the first, what was seen is seen without it alone
                told = learning if len(kept) == 1 else _judge(without, program)
        learned = dataclasses.replace(
            _judged(learned, found),
            steps=without.curves[0].steps,
            notes=(*learned.notes, *self._notes(without)),
        )
        if told is None:
            return learned
        words = told.told.replace("without it", "without them") if len(kept) > 1 else told.told
        return dataclasses.replace(
            learned,
            stages=stages,
            recipes=tuple(kept),
            told=words,
        )

    def judge_candidate(self, learned: Learned) -> Learned:
        """A candidate that is said to change the recipe may still learn the same; if not, it has to learn."""
        stage = next(iter(self._request.stages), None)
        if learned.outcome is not None and learned.outcome.processes:
            return learned  # in one process it is the same
        if stage is None or self._request.rebuild is not None or stage.risk is not Risk.RECIPE or learned.stages:
            return learned
        try:
            without = self._baseline(())
            learning, _ = self._compare((stage,), "", without, without)
        except (NoCurve, Unfit) as why:
            return dataclasses.replace(learned, judgements=(Judgement("", UNVERIFIED, str(why)),))
        told = learning.told.replace("without it", "in the original")
        notes = [*learned.notes, *self._notes(without), *(f"step by step: {one.reason}" for one in learned.judgements)]
        steps = without.curves[0].steps
        if learning.kept:
            return Learned((stage,), (), learned.outcome, (), told, steps, tuple(notes))
        judgement = Judgement("", learning.verdict, f"the rewritten script is another recipe: {told}")
        return Learned((), (judgement,), learned.outcome, steps=steps, notes=tuple(notes))

    def _compare(
        self, stages: tuple[Stage, ...], name: str, before: Program, without: Program
    ) -> tuple[Learning, Program | None]:
        """What the last of the stages makes of the training, beside the one before it and the one without any."""
        try:
            program = self._run(f"with {name}" if name else "the rewritten script", stages[-1].files)
        except Unfit as why:
            return Learning(DROPPED if why.failed else UNVERIFIED, str(why)), None
        except NoCurve as why:
            return Learning(UNVERIFIED, str(why)), None
        places = [place for place, stage in enumerate(stages) if name and stage.codemod == name]
        idle = next(filter(None, (self._blame.not_exercised(stages, place, program.log) for place in places)), None)
        if idle:
            return Learning(UNVERIFIED, idle), None
        learning = _judge(before, program)
        if learning.kept and before is not without:
            whole = _judge(without, program)
            if not whole.kept:
                told = whole.told.replace("without it", "without any of them")
                return Learning(whole.verdict, f"with all of them together, {told}"), None
        return learning, program

    def _baseline(self, stages: tuple[Stage, ...]) -> Program:
        """The training without any change of the recipe: whole where that is short, else with the data shortened."""
        files: Files = stages[-1].files if stages else {}
        phase = "learning without the change"
        first = self._ended(phase, files, 0)
        if first["how"] not in ENDINGS and self._original.shortened:
            self._goal = dataclasses.replace(self._goal, shortened=True)
            first = self._ended(phase, files, 0)
        unit = curves.unit_of(first)
        curve = curves.curve_of(first, unit)
        self._goal = dataclasses.replace(
            self._goal,
            steps=len(first["rows"]),
            # where the training comes to its end, so must others: one that does not goes on by one step
            seen=curve.whole + 1 if curve.ended else curve.whole,
            samples=unit == curves.SAMPLES,
        )
        program = self._run(phase, files, (first,))
        why = curves.why_blind(program.curves)
        if why:
            raise Unfit(why)
        return program

    def _run(self, phase: str, files: Files, logs: Sequence[Mapping[str, Any]] = ()) -> Program:
        logs = list(logs)
        unit = curves.SAMPLES if self._goal.samples else curves.PASSES
        while len(logs) < SEEDS:
            logs.append(self._ended(f"{phase}, seed {len(logs) + 1} of {SEEDS}", files, len(logs)))
        return Program(tuple(curves.curve_of(log, unit) for log in logs), logs[0])

    def _ended(self, phase: str, files: Files, run: int) -> Mapping[str, Any]:
        """The log of a run; ``Unfit`` where there is none."""
        ended = self._original.learn(phase, files, run, self._goal)
        if ended.complaint:
            seed = f" with seed {self._request.options.seed + run}" if run else ""
            raise Unfit(f"the run{seed} {self._original.ending(ended)}", failed=not ended.stopped)
        if not ended.rows:
            raise Unfit("no optimizer step is taken", failed=True)
        return ended.log

    def _notes(self, without: Program) -> list[str]:
        steps = without.curves[0].steps
        end = "to the end of the training" if without.curves[0].ended else "and not to the end of the training"
        short = ", on shortened data" if self._goal.shortened else ""
        goal = f"the loss that the original ends with ({curves.where_it_ends(without.curves)}), give or take its spread"
        told = f"the recipe was compared over {steps} steps with each of {SEEDS} seeds, {end}{short}"
        return [f"{told}: when it comes to {goal}"]


def _judged(learned: Learned, found: Mapping[str, Judgement]) -> Learned:
    """The judgements with these in the place of those that waited for them."""
    return dataclasses.replace(
        learned, judgements=tuple(found.get(judgement.codemod, judgement) for judgement in learned.judgements)
    )


def _as_a_change(why: str) -> str:
    return f"it changes the training recipe, and that cannot be judged here: {why}"


def _judge(without: Program, changed: Program) -> Learning:
    """What the runs of a program show beside those of another; a comparison is told with the number of seeds."""
    learning = curves.judge(without.curves, changed.curves)
    if learning.verdict == UNVERIFIED:
        return learning
    return Learning(learning.verdict, f"over {SEEDS} seeds {learning.told}")
