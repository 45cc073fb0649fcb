"""Does it learn the same? First the original against itself, then against its rewrites, and whose fault if not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from turbofix.findings import Risk
from turbofix.records import dataclass
from turbofix.source.datafile import is_data
from turbofix.verify import changes, printed, verdict
from turbofix.verify.late import late
from turbofix.verify.leading import leading_imports
from turbofix.verify.probe.levels import DENIALS, OVERLAY
from turbofix.verify.probe.thresholds import CLOSE, ENDINGS, FEWEST_STEPS, ROUNDED, Tolerance
from turbofix.verify.request import Progress, Request, Stage, names_of
from turbofix.verify.result import DROPPED, KEPT, UNVERIFIED, Inconclusive, Judgement, Stopped, all_of
from turbofix.verify.runner import IDLE, Child, Ended
from turbofix.verify.scratch import Scratch

LEAST_STEPS = 20
# and as many as are counted where something was edited, up to this
MOST_COUNTED = 128
# seconds after which the original has been watched for long enough, once it has taken the least steps
WATCHED_SECONDS = 60.0
# seconds that the script may take at least from there to its end, with epochs of one batch; a rewrite has some more
FINISH_SECONDS = 2.0

# where the original takes longer than so many seconds, so many steps show that it, and what is exact, repeats it
SLOW_SECONDS, FEWER_STEPS = 3.0, 10
SHORTER = "a smaller model, smaller batches or `--steps` make it shorter, and a free processor does"

# runs of the original whose printed lines are looked at, before a rewrite is blamed for a number in one
MOST_LOOKS = 4

# what the stand-in for a GPU says where a GPU refuses and a CPU does not
REFUSALS = (
    "Expected all tensors to be on the same device",
    "indices should be either on cpu or on the same device",
    "can't convert cuda:0 device type tensor to numpy",
    "unsafe to autocast",
    "Cannot re-initialize CUDA in forked subprocess",
)

Tell = Callable[[Progress], None]
Program = tuple[tuple[tuple[Path, bytes], ...], bool, int | None]


@dataclass(frozen=True)
class Outcome:
    """One run of a rewrite against the original: what differs, or why nothing can be said, or neither.

    ``place`` counts the steps before the difference, where it is known to show in one step.
    """

    difference: str | None
    unverifiable: str | None
    log: Mapping[str, Any] = field(default_factory=dict)
    place: int | None = None

    @property
    def clean(self) -> bool:
        return self.difference is None and self.unverifiable is None


class Elsewhere(Exception):  # noqa: N818 (an outcome)
    """The script works in a ``folder`` beside those that it was given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


@dataclass(frozen=True)
class Goal:
    """How long a run goes on that shows what is learned.

    For so many ``steps`` (or until time is up), or, once that is known of the original, until as much was ``seen``: in
    ``samples``, or else in backward passes. With ``shortened`` data as those of the comparison step by step.
    """

    steps: int
    shortened: bool = False
    seen: float | None = None
    samples: bool = True


@dataclass(frozen=True)
class Learned:
    """What the comparison came to: the surviving stages, a judgement for each codemod, and the last clean run.

    ``recipes`` are those of the survivors that change the recipe, ``told`` what was seen of them (of a candidate that
    does, this alone), in runs of so many ``steps``, which ``notes`` tell of. ``unseen`` is, of
    a candidate, what no run is asked to reach, in words.
    """

    stages: tuple[Stage, ...]
    judgements: tuple[Judgement, ...]
    outcome: Outcome | None
    recipes: tuple[str, ...] = ()
    told: str | None = None
    steps: int = 0
    notes: tuple[str, ...] = ()
    unseen: str = ""


class Original:
    """The script as it is: the log that rewrites are held against, once it is known that another run is the same."""

    def __init__(self, child: Child, scratch: Scratch, request: Request, *, remap: bool, tell: Tell) -> None:
        self._child, self._scratch, self._request, self._tell = child, scratch, request, tell
        self.remap = remap
        self._plan: Mapping[str, int] = {}
        self._dropout = all(stage.risk is Risk.EXACT for stage in request.stages)
        self.log: Mapping[str, Any] = {}
        self.repeats = False  # as far as is known
        self._ahead = True  # libraries are imported ahead of the runs
        self._printed: list[list[printed.Line]] = []
        self._disturbed: dict[int | None, Mapping[str, Any]] = {}  # by the steps that were taken
        self._widened = False  # by what those runs say
        self._rewritten = request.stages[-1].files if request.stages else {}
        self._late = late({path: request.content(path) for path in self._rewritten if path.exists()}, self._rewritten)

    @property
    def script(self) -> Path:
        """The script that is watched."""
        return self._request.script

    def watch(self) -> None:
        """Run the original; ``Inconclusive`` with the reason where there is nothing to compare with."""
        self._child.imports = begins = leading_imports(self.script, self._request.content) if self._ahead else ()
        first = self._run("the script as it is", {})
        self._ahead = self._ahead and self._child.imports == begins  # they spoilt what runs are forked from
        self._child.imports = tuple(dict.fromkeys((*begins, *first.log.get("imports", ())))) if self._ahead else ()
        if first.how == "shorten":
            self._plan = first.log["shorten"]
            first = self._run("the script as it is", {})
        for log in (first.log, first.log.get("end", {})):
            folder = self._scratch.beyond(log)
            if folder is not None:
                raise Elsewhere(folder)
        self._demand_steps(first)
        self.log = first.log
        self._printed = [printed.read_lines(first.log["lines"])]
        if self.fewer:
            told = f"each rewrite takes as long again: {SHORTER}"
            self._tell(Progress("the script as it is", len(first.rows), len(first.rows), told))

    @property
    def fewer(self) -> int | None:
        """The steps after which what is to be the same bit for bit has been seen to be, where not all are taken."""
        slow = self.log["seconds"] > SLOW_SECONDS and len(self.log["rows"]) > FEWER_STEPS
        return FEWER_STEPS if slow else None

    def demand_repeatable(self, until: int | None = None) -> bool:
        """Run the original against itself; ``Inconclusive`` where it is not the same bit for bit.

        False: it is, but not with what is imported ahead of the runs. That is left to them from now on.
        """
        again = self._run("the script against itself", {}, replay=True, until=until)
        inequality = None if again.complaint else verdict.first_inequality(self._cut(until), again.log)
        if self._child.imports and (again.complaint or inequality):
            self._child.close()
            self._ahead = False
            self.watch()
            self.demand_repeatable(until)
            return False
        if again.complaint:
            raise Inconclusive(f"the script ran once and then {self.ending(again)}")
        if until is None:
            self._printed.append(printed.read_lines(again.log["lines"]))
        if inequality:
            why = "something in it goes by chance or by the clock, and no seed holds it"
            raise Inconclusive(f"two runs of the script as it is are not the same: {inequality}; {why}")
        self.repeats = True
        return True

    def learn(self, phase: str, files: Mapping[Path, bytes], run: int, goal: Goal) -> Ended:
        """Run the script, or a rewrite of it, for what it learns: as it is meant, with dropout, under another seed.

        ``run`` counts the seeds from 0.
        """
        total = goal.steps
        self._tell(Progress(phase, 0, total))
        order = {
            **self._order(files),
            "seed": self._request.options.seed + run,
            "shift": run,
            "replay": False,
            "may_shorten": False,
            "shorten": dict(self._plan) if goal.shortened else {},
            "finish_seconds": 0.0,
            "dropout": True,
            "learn": {
                "steps": goal.steps,
                "minimum": LEAST_STEPS,
                "seconds": WATCHED_SECONDS,
                "seen": goal.seen,
                "samples": goal.samples,
            },
        }
        return self._observed(phase, files, order, total)

    def _observed(self, phase: str, files: Mapping[Path, bytes], order: Mapping[str, Any], total: int | None) -> Ended:
        """A run, with the lines that its log names in words."""
        ended = self._child.run(files, order, lambda step: self._tell(Progress(phase, step, total)))
        told = self._scratch.told(ended.in_words)
        self._tell(Progress(phase, len(ended.rows), total, told, ended.output if ended.failed else ()))

        def placed(log: Mapping[str, Any]) -> dict[str, Any]:
            if not log.get("line"):
                return dict(log)
            name, line = log["line"]
            path = self.script.parent / name
            content = files.get(path) or self._request.texts.get(path, b"")
            return {**log, "line": f"{name.removesuffix(path.name)}{self._request.place(path, content, line)}"}

        log = placed(ended.log)
        return replace(ended, log={**log, "end": placed(log["end"])} if "end" in log else log)

    @property
    def shortened(self) -> dict[int, int]:
        """How many samples were kept of how many, where the data were too long to be seen whole."""
        return {int(whole): kept for whole, kept in self._plan.items()}

    def is_repeated_by(self, outcome: Outcome, until: int | None) -> bool:
        """Whether a rewrite's run was the original's bit for bit: then nothing in it goes by chance."""
        return outcome.clean and verdict.first_inequality(self._cut(until), outcome.log) is None

    def _cut(self, until: int | None) -> Mapping[str, Any]:
        """The log of the first steps."""
        return {**self.log, "rows": self.log["rows"][:until]}

    def _demand_steps(self, ended: Ended) -> None:
        steps = len(ended.rows)
        if ended.complaint:
            when = f"after {steps} optimizer steps" if steps else "before its first optimizer step"
            kind = Stopped if ended.how == "crashed" else Inconclusive
            raise kind(f"the script {self.ending(ended)} {when}{_pretended(ended)}")
        if ended.how == "waiting" and steps < FEWEST_STEPS:
            raise Inconclusive(f"the script asks for input{_at(ended.log)}, and a verification has none to give")
        if not steps:
            raise Inconclusive(_no_step(ended.log))
        if ended.how == "finished" and steps < FEWEST_STEPS:
            raise Inconclusive(f"the script takes {steps} optimizer steps, too few to compare")

    def ending(self, ended: Ended) -> str:
        """How a run ended that did not end well, behind the name of the program."""
        if ended.how != "crashed":
            said = f' (it said "{ended.last_words}")' if ended.last_words and not ended.stopped else ""
            return f"{ended.complaint}{said}"
        complaint = ended.complaint or ""
        if complaint.startswith("SystemExit") and ended.last_words:
            return f'ended with "{ended.last_words}"{_at(ended.log)}'
        if "Invalid cross-device link" in complaint and self._scratch.held.level == OVERLAY:
            why = "a layer above your folders cannot rename those that are there already; --isolation landlock can"
            return f'stopped{_at(ended.log)} with "{complaint}": {why}'
        if any(sign in complaint for sign in DENIALS):
            denied = (
                "it writes outside its own folder, which a verification denies; let an argument or TMPDIR name a "
                "place inside"
            )
            return f'stopped{_at(ended.log)} with "{complaint}": {denied}'
        return f'stopped with "{complaint}"{_at(ended.log)}'

    def compare(self, files: Mapping[Path, bytes], *, exact: bool, phase: str, until: int | None = None) -> Outcome:
        """Run a rewrite and hold it against the original, or ``until`` so many steps, to know where a difference is."""
        original = self._cut(until)
        ended = self._run(phase, files, replay=True, until=until)
        if ended.stopped:
            took = f"the original took {self.log['seconds']:.3g} seconds for its {len(self.log['rows'])} steps"
            return Outcome(None, f"the rewritten script {ended.complaint} ({took})")
        if ended.complaint:
            return Outcome(f"the rewritten script {self.ending(ended)}", None, place=len(ended.rows))
        log = ended.log
        steps, ours = len(ended.rows), len(original["rows"])
        if original["how"] == "waiting" and steps != ours:
            return Outcome(
                None, f"the rewritten script takes {steps} steps, and the original waits{_at(self.log)} after {ours}"
            )
        if verdict.drew_differently(original, log):
            return Outcome(
                None, "the training step draws random numbers, and with other batches the same samples meet others", log
            )
        tolerance = verdict.tolerance_for(original, log, cuda=self._child.cuda and not self.remap)
        found = verdict.first_difference(original, log, tolerance, exact=exact)
        rounded = found and tolerance == ROUNDED and not exact and verdict.may_be_rounding(original, log)
        for far in dict.fromkeys((self.fewer, None)) if rounded else ():
            if found:
                found = verdict.first_difference(original, log, tolerance, exact=exact, control=self._control(far))
                self._widened = self._widened or found is None
        if until is not None:
            return Outcome(found.sentence if found and found.place is not None else None, None, log)
        difference, place = (found.sentence, found.place) if found else (self._end_difference(log), None)
        if difference is None:
            difference = self._printed_difference(log, tolerance, exact=exact)
        unverifiable = None if difference else verdict.too_few_compared(self.log, log, FEWEST_STEPS)
        return Outcome(difference, unverifiable, log, place)

    def _control(self, until: int | None) -> Mapping[str, Any]:
        """The log of the script as it is with its weights disturbed by as much as 16 bits round them."""
        if until not in self._disturbed:
            phase = "the script with rounded weights"
            self._disturbed[until] = self._run(phase, {}, replay=True, disturb=True, until=until).log
        return self._disturbed[until]

    def _end_difference(self, log: Mapping[str, Any]) -> str | None:
        ours, theirs = self.log["end"], log["end"]
        if ours["how"] != "finished" or self.log["how"] == "finished":
            return None
        if theirs["how"] == "crashed":
            return f'at the end of the training it stops with "{theirs["error"]}"{_at(theirs)}'
        if theirs["how"] == "finished":
            return verdict.saved_difference(ours["saved"], theirs["saved"])
        return None

    def _printed_difference(self, log: Mapping[str, Any], tolerance: Tolerance, *, exact: bool) -> str | None:
        lines = printed.read_lines(log["lines"])
        bound = 0.0 if exact else tolerance.printed

        def compare() -> str | None:
            close = exact or tolerance == CLOSE
            return printed.compare_printed(self._printed, lines, bound, all_lines=exact, decisions=close)

        difference = compare()
        # A number that is a time may have been the same so far by chance: look again before blaming.
        while difference and len(self._printed) < MOST_LOOKS:
            again = self._run("the script against itself", {}, replay=True)
            if again.complaint:
                break
            self._printed.append(printed.read_lines(again.log["lines"]))
            self.repeats = self.repeats or verdict.first_inequality(self.log, again.log) is None
            difference = compare()
        return difference

    def _run(self, phase: str, files: Mapping[Path, bytes], until: int | None = None, **asked: bool) -> Ended:
        replay = asked.get("replay", False)
        total = until or (len(self.log["rows"]) if self.log else self._request.options.steps)
        self._tell(Progress(phase, 0, total))
        order = {
            **self._order(files),
            "seed": self._request.options.seed,
            "replay": replay,
            "disturb": asked.get("disturb", False),
            "monitor": not replay,
            # one more than the original's, to see a candidate that goes on
            "stop_after": until or (self._stop_after() if replay else None),
            "may_shorten": not replay and not self._plan and self._request.options.steps is None,
            "shorten": dict(self._plan),
            "finish_seconds": 0.0 if until else self._finish_seconds(replay=replay, rewritten=bool(files)),
            "patience": self._patience(replay=replay),
            "dropout": self._dropout,
        }
        return self._observed(phase, files, order, total)

    def _order(self, files: Mapping[Path, bytes]) -> dict[str, Any]:
        """What is asked of every run."""
        return {
            "speed": False,
            "steps": self._request.options.steps,
            "minimum": self._least_steps,
            "seconds": WATCHED_SECONDS,
            "remap": self.remap,
            "watch": {str(self._scratch.mirror(path)): self._watched(path, files) for path in files or self._rewritten},
        }

    def _watched(self, path: Path, files: Mapping[Path, bytes]) -> tuple[int, Collection[int]]:
        """How many lines are run from a file, and those whose functions are looked at: in the original, all."""
        old = self._request.content(path)
        content = files.get(path, old)
        length = content.count(b"\n") + content.count(b"\r") + 1
        return length, changes.new_lines(old, content) if files else [*range(1, length + 1)]

    @property
    def _least_steps(self) -> int:
        # what comes of the one after the last is seen when the next step begins
        return max([LEAST_STEPS, *(each.count + 2 for each in self._late if each.count < MOST_COUNTED)])

    def _finish_seconds(self, *, replay: bool, rewritten: bool) -> float:
        if not replay:
            return FINISH_SECONDS
        # where the original did not come to its end, a rewrite cannot be asked to
        hurried = self.log["end"].get("seconds", 0.0)
        return 2 * (FINISH_SECONDS + hurried) if rewritten and self._reaches_end() else 0.0

    def _patience(self, *, replay: bool) -> float:
        if not replay:
            return IDLE
        # what hangs where the original does not is a run past its time
        return IDLE / 2 if self.log["how"] == "waiting" else 0.0

    def _reaches_end(self) -> bool:
        return bool(self.log["end"]["how"] == "finished")

    def _stop_after(self) -> int:
        return len(self.log["rows"]) + (1 if self.log["how"] in ENDINGS else 0)

    def notes(self, *, compared: bool = True) -> list[str]:
        """What must be known of the comparison step by step, where there was one, and of the runs."""
        found = self._notes() if compared else []
        if self.log["remapped"]:
            found.append("CUDA remapped onto the CPU: the verdict speaks of learning alone")
        return found

    def _notes(self) -> list[str]:
        rows = self.log["rows"]
        found = []
        if self._plan:
            counts = ", ".join(f"{whole} to {kept}" for whole, kept in self._plan.items())
            found.append(f"long data was shortened alike in both programs, keeping its tail ({counts} samples)")
        if self.log["how"] in ENDINGS and self._request.options.steps is None and len(rows) < LEAST_STEPS:
            found.append(f"the script takes {len(rows)} optimizer steps in all, and every one was compared")
        for each in self._late:
            if each.count >= len(rows):
                what = f"what {each.path.name}, line {each.line}, does when it has counted {each.count}"
                found.append(f"not seen, for {len(rows)} steps were compared: {what}")
        if self.log["epochs_ended"] == 0 and self.log["how"] not in ENDINGS:
            found.append("epoch end not seen")
        if self.fewer:
            found.append(f"a run takes long, {self.log['seconds']:.0f} seconds for {len(rows)} steps: {SHORTER}")
        end = self.log["end"]
        if end["how"] == "waiting":
            found.append(f"the script waits{_at(end)}: what comes after that was not seen")
        elif not self._reaches_end():
            found.append("the end of the training was not seen")
        if self._widened:
            *_, control = self._disturbed.values()
            found.append(
                "rounding its weights to bfloat16 alone turns the gradients of the script as it is (1 - cosine "
                f"{verdict.turned(control):.1g} in the typical step): the bounds were widened to what that does"
            )
        recorded = sum(row["recorded"] for row in rows)
        if recorded < len(rows):
            found.append(
                f"gradients were compared in {recorded} of {len(rows)} steps: the rest did not fit on the disk"
            )
        return found


def _no_step(log: Mapping[str, Any]) -> str:
    """Why there is nothing to compare in a run without optimizer steps, as far as the run shows."""
    nothing = "the script ended without a single optimizer step"
    if log.get("backwards"):
        return (
            f"{nothing}, after {log['backwards']} backward passes: a verification compares the steps of torch's "
            "optimizers, and this script updates its parameters by hand, if at all"
        )
    if log.get("processes"):
        return (
            f"{nothing} of its own: it trains in processes that it starts ({log['processes'][0]}), "
            "and a verification follows the main process alone"
        )
    return f"{nothing}, and without a backward pass: there is nothing to compare"


def _pretended(ended: Ended) -> str:
    """That there was no GPU, of a script that used the one it was shown and stopped."""
    if not ended.log.get("remapped"):
        return ""
    if any(sign in (ended.complaint or "") for sign in REFUSALS):
        whose = "a real one stops it there, too"
    else:
        whose = "whether a real one stops it, too, a run on one would tell"
    return f". This machine has no GPU, and the verification pretended one: on the CPU alone it may run, and {whose}"


def _at(log: Mapping[str, Any]) -> str:
    line = log.get("line")
    return f" at {line}" if line else ""


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
                reason = [same if stage.risk is Risk.EXACT else verdict.closeness(outcome.log)]
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
            if one.waived and not one.ran:
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
        self._compared[program] = self._original.compare(stages[-1].files, exact=program[1], phase=phase, until=until)
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
            if not one.ran and not one.waived:
                place = self._request.place(one.path, stages[index].files[one.path], one.lines[0])
                return f"what it changed at {place}, did not run"
        return None

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
