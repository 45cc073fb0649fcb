"""Show progress every so many steps, not in each one.

Why slow
    To print a loss, or to show it in a progress bar, the host must wait until the GPU has finished everything it was
    given. In that time it launches no further kernel. Nobody reads a line per step.

Example
    ::

        for step, (images, labels) in enumerate(train_loader):
            ...
            progress.set_postfix(loss=f"{loss.item():.4f}")

Use instead
    ::

        for step, (images, labels) in enumerate(train_loader):
            ...
            if step % 50 == 0 or step == len(train_loader) - 1:
                progress.set_postfix(loss=f"{loss.item():.4f}")

    The interval is 50 steps, or 10 in a loop that is known to be over after 100. A loop that does not count its steps
    gets ``enumerate``. Lightning's trainer gets a bar that is drawn every 50 steps.

When refused
    Nothing is said of what is shown every ten steps or more seldom, and of messages that read no tensor. It is refused

    - for lines that ``print(..., file=...)`` writes, which are kept complete;
    - in a ``while`` that counts no steps, or in another function than the loop (unless that only shows);
    - where its number serves other purposes;
    - where all that it shows is read in each step anyway: nothing is gained;
    - in an evaluation that runs once, beside a training of many passes, or whose rows in a log are its result;
    - where a guard of yours has the interval 1: raise it.

Risk
    equivalent: the training is the same bit for bit, but lines of output are missing.

Measured
    Taking one wait out of a step: 5–7 % (torchtune 522); waits of 40–50 ms were seen (fvdb 144).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import DISPLAY_ONLY, ON_GPU
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_guard, of_loop
from turbofix.training.model import Show, Step, Sync, TrainingProgram

from ._bars import BAR, Slower, bar_of, slow_down
from ._counting import paced
from ._deferring import Deferral
from ._loaders import ONCE, is_once
from ._pages import Page, page_of, pages_of
from ._remaining_waits import Outlook, Told, Waiting, outlook, sentence
from ._syncs import (
    GAIN,
    ROWS,
    batch_loops,
    interval,
    loop_words,
    on_gpu,
    read_text,
    shows_in,
    waits,
    why_shown,
)
from ._throttling import Throttling, guarding
from ._trainers import on_gpu as trains_on_gpu

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EQUIVALENT,
    gain=GAIN,
    known_as=("progress bar", "print in every step"),
    assumes=(DISPLAY_ONLY, ON_GPU),
)


@dataclass(frozen=True)
class Plan:
    """The message, or the read for it, in its loop, with how messages are shown there."""

    place: Site
    shown: Throttling


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Messages of every step for which the host waits."""
    told: set[Site] = set()
    shared = Told()
    unknown = None if program.complete else program.incomplete_because or "the program could not be followed"
    for loop in batch_loops(program):
        waiting = Waiting(loop, waits(loop, program), interval(loop, program))
        timed = isinstance(loop, Step)  # timed steps do not show what an evaluation takes
        view = outlook(program, waiting)
        for show in shows_in(loop, waiting.syncs):
            seen = (of_loop(loop), *of_guard(show.guard))
            reason = unknown or view.shown.refused.get(show.statement) or reads_stay(view, show)
            if not timed and show.kind in ("writer", "tracker"):
                reason = reason or "the rows that an evaluation writes are its result: average them, and write one"
            reason = reason or (ONCE if is_once(program, loop) else None)
            how_often = loop_words(loop)
            if unknown is not None and show.guard.every is not None:
                line = show.guard.tests[-1].line_from(show.statement.path)
                how_often += f" (if the interval on {line} stays {show.guard.every})"
            for place, message in places(view, show, how_often, refused=reason is not None):
                if place in told or (waiting.every is None and why_shown(show, show.guard) is None):
                    continue
                told.add(place)
                # a read that cannot move into its message may be put off once that is shown less often
                own = reason or (None if view.is_put_off(place) else view.shown.refused.get(place))
                if unknown is not None:
                    shared.add(unknown, place, message, seen)
                elif own is not None:
                    yield codemod.refuse(place, message, own, evidence=seen)
                else:
                    beside = view.beside(show.syncs, show.guard)
                    plan = Plan(place if place in view.shown.hoisted else show.statement, view.shown)
                    later = any(isinstance(each, Deferral) and each.likely for _, each in reads_of(view, show))
                    where = {on_gpu(sync, loop, program) for sync, _ in reads_of(view, show)}
                    rows = leaves_out(view, pages_of(program)(plan.place), plan.place)
                    # only where a read is put off then does it help that less is shown
                    assumes = (DISPLAY_ONLY,) * (later or rows or view.shown.lossy)
                    assumes += (ON_GPU,) * (where == {(ON_GPU,)})
                    small = None if timed and not beside else Worth.SMALL
                    text = f"{message}{f'; one row in {waiting.every} of the log stays' if rows else ''}{beside}"
                    yield codemod.finding(
                        place, text, plan=plan, evidence=seen, for_speed=timed, worth=small, assumes=assumes
                    )
    yield from shared.refusals(codemod)
    for training in program.trainings:
        if training.in_bar and trains_on_gpu(training) is not False and training.argument(BAR).values != (False,):
            yield bar_of(codemod, program, training, unknown)


def leaves_out(view: Outlook, page: Page, place: Site) -> bool:
    """Whether rows of a log are left out together with a message."""
    here = page.node(place)
    found = {each.statement for each in view.waiting.loop.shows if each.kind in ROWS}
    groups = [group for group in view.shown.groups if any(page.holds(each, here) for each in group)]
    groups = groups or list(view.shown.groups)  # a read above its message moves into it
    return any(page.site(each) in found for group in groups for each in group)


def reads_stay(view: Outlook, show: Show) -> str | None:
    """Why a message that is shown less often saves no wait: all that it shows is read in each step all the same."""
    outcomes = reads_of(view, show)
    staying = [(sync, outcome) for sync, outcome in outcomes if isinstance(outcome, str)]
    if not staying or len(staying) < len(outcomes):
        return None
    return f"nothing is gained: {sentence(view.waiting.loop, *staying[0])}"


def reads_of(view: Outlook, show: Show) -> list[tuple[Sync, Deferral | str]]:
    """The reads that a message shows, each with what becomes of it."""
    found = ((sync, view.put_off(sync)) for sync in view.waiting.syncs)
    return [(sync, outcome) for sync, outcome in found if is_shown_by(sync, show) or is_first(view, show, outcome)]


def is_shown_by(sync: Sync, show: Show) -> bool:
    """Whether a message shows what is read, or a sum of it."""
    sums = sync.accumulator.reads if sync.accumulator is not None else ()
    return sync.site in show.syncs or any((each.show or each.statement) == show.statement for each in sums)


def is_first(view: Outlook, show: Show, outcome: Deferral | str) -> bool:
    """Whether a read can be put off once a message is shown less often."""
    return isinstance(outcome, Deferral) and outcome.too_early in view.shown.lines_with(show.statement)


def places(view: Outlook, show: Show, how_often: str, *, refused: bool) -> Iterator[tuple[Site, str]]:
    """The expressions that a person would change: the message, and the reads for it on other lines.

    Only the reads are told of a message that stays as it is.
    """
    waiting = view.waiting
    reads = [sync for sync in waiting.syncs if sync.use == "shown" and sync.show == show]
    apart = [sync for sync in reads if sync.statement != show.statement]
    told = reads or [sync for sync in waiting.syncs if sync.site in show.syncs]
    words = ", ".join(dict.fromkeys(read_text(sync) for sync in told)) or "a sum that could stay on the GPU"
    if not (refused and reads and len(apart) == len(reads)):
        what = f"sums of {words}" if told and not reads and all(each.use == "summed" for each in told) else words
        yield show.statement, f"the host waits for the GPU {how_often} to show {what}"
    for sync in apart:
        where = f"only to show it on {show.statement.line_from(sync.site.path)}"
        yield sync.site, f"the host waits for {read_text(sync)} {how_often}, {where}"
    for sync, outcome in reads_of(view, show) if not refused else ():
        if sync.use != "shown" and is_first(view, show, outcome):
            also = f"which {show.statement.line_from(sync.site.path)} looks at"
            yield sync.site, f"the host waits for {read_text(sync)} {how_often}, {also}"


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put the message under a condition, and read its values inside it."""
    plan = finding.plan
    if isinstance(plan, Slower):
        slow_down(edit, plan)
        return
    assert isinstance(plan, Plan)
    shown = plan.shown
    for action in shown.common:
        action(edit)
    page = page_of(edit, plan.place)
    here = page.node(plan.place)
    for group in shown.groups:
        if any(page.holds(statement, here) for statement in group) or plan.place in shown.hoisted:
            guarding(edit, page, group, paced(page, group, shown.header))
    for actions in shown.hoisted.values():
        for action in actions:
            action(edit)
