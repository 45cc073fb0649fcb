"""The original, run and run again: what it learns, how much of that repeats, and whether a rewrite learns the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from turbofix.findings import Risk
from turbofix.records import dataclass
from turbofix.verify import changes, printed, processes, verdict
from turbofix.verify.agreement import Agreed, agreement
from turbofix.verify.late import late
from turbofix.verify.leading import leading_imports
from turbofix.verify.probe.levels import DENIALS, OVERLAY
from turbofix.verify.probe.tolerances import CLOSE, ENDINGS, FEWEST_STEPS, ROUNDED, Tolerance
from turbofix.verify.request import Progress, Request, Stage
from turbofix.verify.result import Inconclusive, Judgement, Stopped
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

# of the time limit, after which several processes that are still at it are asked where they are
TOGETHER_SHARE = 0.9

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

    ``place`` counts the steps before the difference, where it is known to show in one step. ``processes``: it shows
    where so many train together, of which ``notes`` tell.
    """

    difference: str | None
    unverifiable: str | None
    log: Mapping[str, Any] = field(default_factory=dict)
    place: int | None = None
    processes: int = 0
    notes: tuple[str, ...] = ()

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
        together = any(stage.processes for stage in request.stages)
        self._dropout = all(stage.risk is Risk.EXACT for stage in request.stages) and not together
        self.log: Mapping[str, Any] = {}
        self.repeats = False  # as far as is known
        self._ahead = True  # libraries are imported ahead of the runs
        self._printed: list[list[printed.Line]] = []
        self._groups: dict[int, Mapping[str, Any]] = {}  # by their number: the original's logs in several processes
        self._started = False  # as torchrun starts the only process of a training
        self._joins = request.joins
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
        if first.how == "crashed" and self._joins and not self._child.why_not_several(1):
            self._started = True  # it may not run unless torchrun starts it
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

        def all_placed(log: Mapping[str, Any]) -> dict[str, Any]:
            log = placed(log)
            return {**log, "end": placed(log["end"])} if "end" in log else log

        log = all_placed(ended.log)
        if "ranks" in log:
            log["ranks"] = [all_placed(each) for each in log["ranks"]]
            log["where"] = [placed(each) for each in log["where"]]
        return replace(ended, log=log)

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

    def compare(
        self, files: Mapping[Path, bytes], *, exact: bool, phase: str, until: int | None = None, several: int = 0
    ) -> Outcome:
        """Run a rewrite and hold it against the original, or ``until`` so many steps, to know where a difference is.

        One that is the same is run as ``several`` processes, too, where there are to be any.
        """
        original = self._cut(until)
        ended = self._run(phase, files, replay=True, until=until)
        notes: tuple[str, ...] = ()
        if ended.how == "crashed" and not ended.rows and several and not self._child.why_not_several(1):
            ended = self._run(phase, files, replay=True, until=until, several=1)
            notes = ("the rewritten script does not run by itself: it was started as torchrun starts the only process",)
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
        tolerance = self._tolerance(log)
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
        outcome = Outcome(difference, unverifiable, log, place, notes=notes)
        return self._together(outcome, files, several, phase) if several and outcome.clean else outcome

    def _together(self, alone: Outcome, files: Mapping[Path, bytes], count: int, phase: str) -> Outcome:
        """What is to be said of a rewrite that is the same in one process, when it is run as several."""
        why = self._child.why_not_several(count)
        try:
            reference = self._as_several(count) if self._joins and not why else None
        except Inconclusive as failed:
            if self._request.rebuild is None and self._request.options.processes is None:  # nobody asked for it
                return replace(alone, notes=(*alone.notes, f"it was compared in one process alone: {failed}"))
            why = str(failed)
        ended = None if why else self._run(f"{phase} as {count} processes", files, replay=True, several=count)
        if ended is not None and "ranks" not in ended.log:
            why = f"the rewritten script {self.ending(ended)}"
        if ended is None or why:
            return replace(alone, unverifiable=f"it was not run as {count} processes: {why}", processes=count)
        logs = ended.log["ranks"]
        tolerance = self._tolerance(logs[0] or alone.log)
        if reference is not None:
            found = processes.judge_beside(reference, ended.log, tolerance)
        else:
            found = processes.judge(
                self.log, ended.log, tolerance, self._printed, lambda: verdict.turned(self._control(self.fewer))
            )
        ran = {
            path: sorted(set().union(lines, *(log.get("ran", {}).get(path, ()) for log in logs)))
            for path, lines in alone.log["ran"].items()
        }
        begins = f"run as {count} processes, "
        return Outcome(
            found.difference and begins + found.difference,
            found.unverifiable and f"{begins}nothing can be said of it: {found.unverifiable}",
            {**alone.log, "ran": ran},
            processes=count,
            notes=(*found.notes, *alone.notes),
        )

    def _as_several(self, count: int) -> Mapping[str, Any]:
        """The logs of the original in so many processes, of a script that trains in several as it is."""
        if count not in self._groups:
            ended = self._run(f"the script as it is as {count} processes", {}, several=count)
            if "ranks" not in ended.log:
                raise Inconclusive(f"the script as it is {self.ending(ended)}")
            broken = processes.broken_off(ended.log)
            if broken is not None:
                raise Inconclusive(f"as it is, {broken.difference or broken.unverifiable}")
            self._groups[count] = ended.log
        return self._groups[count]

    def _tolerance(self, log: Mapping[str, Any]) -> Tolerance:
        return verdict.tolerance_for(self.log, log, cuda=self._child.cuda and not self.remap)

    def agreement(self, log: Mapping[str, Any]) -> tuple[Agreed, ...]:
        """How closely a clean run of a rewrite keeps to the script as it is."""
        tolerance = self._tolerance(log)
        return agreement(self.log, log, tolerance, self._disturbed.get(None) if self._widened else None)

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

    def _run(
        self, phase: str, files: Mapping[Path, bytes], until: int | None = None, *, several: int = 0, **asked: bool
    ) -> Ended:
        replay = asked.get("replay", False)
        total = until or (len(self.log["rows"]) if self.log else self._request.options.steps)
        self._tell(Progress(phase, 0, total))
        order = {
            **self._order(files),
            "seed": self._request.options.seed,
            "replay": replay,
            "disturb": asked.get("disturb", False),
            "monitor": not replay and not several,
            # one more than the original's, to see a candidate that goes on
            "stop_after": until or (self._stop_after() if replay or several else None),
            "may_shorten": not (replay or several or self._plan) and self._request.options.steps is None,
            "shorten": dict(self._plan),
            "finish_seconds": 0.0 if until else self._finish_seconds(replay=replay, rewritten=bool(files)),
            "patience": 0.0 if several else self._patience(replay=replay),
            "dropout": self._dropout,
            "processes": several or int(self._started),
            "apart": self._joins,
            "all_seconds": TOGETHER_SHARE * self._child.limits.seconds,
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
        if self._started:
            found.append("the script does not run by itself: it was started as torchrun starts it, as the only process")
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
