"""Leave sums on the GPU, and read them when somebody looks.

Why slow
    ``loss.item()`` makes the host wait until the GPU has finished everything it was given. Only then can the host
    launch the next step. A loss that is only added to a total is not needed until the total is.

Example
    ::

        for images, labels in train_loader:
            total_loss += loss.item() * images.size(0)

Use instead
    ::

        for images, labels in train_loader:
            total_loss += loss.detach().double() * images.size(0)
        total_loss = float(total_loss)

    The sum is in float64, as Python's, so the total is the same bit for bit. A list takes the tensors, and becomes a
    list of numbers after the loop. A number that goes further is read where somebody looks at it now and then.
    Predictions that an evaluation copies to the host are copied at its end, and take room on the GPU until then.
    Lightning's ``self.log`` takes the loss as it is. A loop that reads a tensor number by number (``x[i].item()``)
    reads a copy of it on the host: one wait.
    ``total_loss += loss`` keeps the graph of every step alive, and gets ``.detach()``.

When refused
    - Where the number decides what the program does next, or is shown in every step (``throttle-logging`` comes first).
    - Where a step does more with it than keep, sum or return it, or other scripts may call what returns it.
    - Where the sum itself is stored in each step, or may be a number already.
    - In an evaluation that runs once, beside a training of many passes.

Risk
    exact: sums, and what is printed of them, are the same bit for bit. equivalent: where a step divides what it adds,
    the last of sixteen digits can differ; and what is likely.

Measured
    Taking one wait out of a step: 5–7 % (torchtune 522); waits of 40–50 ms were seen (fvdb 144).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.assumptions import DISPLAY_ONLY, ON_GPU
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.training.evidence import of_guard, of_loop, of_sum
from turbofix.training.model import Accumulator, Step, Sync, TrainingProgram

from ._deferring import Deferral
from ._frameworks import LEFT
from ._listed import made_at_once
from ._loaders import ONCE, is_once
from ._pages import page_of
from ._remaining_waits import Told, Waiting, is_shown_now_and_then, outlook, within
from ._syncs import GAIN, BatchLoop, batch_loops, interval, loop_words, on_gpu, one_line, read_text, replacing, waits
from ._trainers import evidence
from ._trainers import on_gpu as trains_on_gpu

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EXACT,
    gain=GAIN,
    after=("throttle-logging",),
    known_as=(".item() in the loop", "loss read-out"),
    assumes=(DISPLAY_ONLY, ON_GPU),
)

LET_BY = "how often that is was not followed; leave the test to the GPU (`torch.where`), or read every so often"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Reads of every step that are summed or stored, and sums that keep the graph."""
    told: set[Site] = set()
    shared = Told()
    by_row = [each for each in program.listed if each.codemod == codemod.name]
    whole = {site[:2] for each in by_row for site in (each.site, *dict(each.more))}  # read at once
    unknown = None if program.complete else program.incomplete_because or "the program could not be followed"
    for loop in batch_loops(program):
        waiting = Waiting(loop, waits(loop, program), interval(loop, program))
        for sync in waiting.syncs:
            if sync.site in told or sync.site[:2] in whole:
                continue
            told.add(sync.site)
            message = f"the host waits for {read_text(sync)} {loop_words(loop)}{purpose(sync)}"
            seen = (of_loop(loop), *of_sum(sync.accumulator), *of_guard(sync.guard))
            silent = sync.use == "shown" and not is_shown_now_and_then(waiting, sync)  # for throttle-logging
            if unknown is not None:
                if not silent:
                    shared.add(unknown, sync.site, message, seen)
                continue
            view = outlook(program, within(waiting, sync))
            found = view.put_off(sync)
            put_off = isinstance(found, Deferral) and found.too_early is None
            if silent and not put_off:
                continue
            if isinstance(found, Deferral) and found.too_early is not None:
                found = f"line {found.too_early} shows it {loop_words(loop)}: throttle-logging comes first"
            elif isinstance(found, Deferral) and is_once(program, loop):
                found = ONCE
            if isinstance(found, str):
                yield codemod.refuse(sync.site, message, found, evidence=seen)
                continue
            beside = view.beside((sync.site,), sync.guard)
            yield codemod.finding(
                sync.site,
                f"{message}{beside}",
                plan=(*found.actions,),
                risk=Risk.EQUIVALENT if found.likely or found.rounded else Risk.EXACT,
                evidence=seen,
                assumes=((DISPLAY_ONLY,) if found.likely else ()) + (on_gpu(sync, loop, program) or ()),
                for_speed=isinstance(loop, Step),  # timed steps do not show what an evaluation takes
                worth=None if isinstance(loop, Step) and not beside else Worth.SMALL,
            )
        for sync in loop.syncs:  # the steps that a test lets by
            let_by = sync.guard.kind == "condition" and sync.use != "shown" and sync.site[:2] not in whole
            let_by = let_by and not any(sync.of_text == each.of_text for each in waiting.syncs)
            if let_by and sync.site not in told and on_gpu(sync, loop, program) is not None:
                told.add(sync.site)
                test = sync.guard.tests[-1].line_from(sync.site.path)
                message = f"the host waits for {read_text(sync)} wherever the test on {test} lets a step by"
                yield codemod.refuse(sync.site, message, LET_BY, evidence=(of_loop(loop), *of_guard(sync.guard)))
    for training in program.trainings:
        logged = training.module.logged if training.module is not None and trains_on_gpu(training) is not False else ()
        for site, text in logged:
            message = f"the host waits for `{one_line(text)}` whenever it is logged as a number"
            seen = evidence(training, "accelerator")
            plan = (replacing(site, text),)
            yield codemod.finding(site, message, plan=plan, risk=Risk.EQUIVALENT, evidence=seen, assumes=(ON_GPU,))
    yield from made_at_once(codemod, program, ON_GPU)
    yield from shared.refusals(codemod)
    if program.framework in LEFT and program.complete:
        yield from leaks(program)


def purpose(sync: Sync) -> str:
    """What a message says of the use of the value."""
    if sync.how == "bool":
        return ""
    if sync.use == "summed" and sync.accumulator is not None:
        return f", only to add it to `{sync.accumulator.text}`"
    said = {"shown": "show it now and then", "stored": "store it"}
    return f", only to {said[sync.use]}" if sync.use in said else ""


def leaks(program: TrainingProgram) -> Iterator[Finding]:
    """Sums of tensors that keep the graph of every step in memory."""
    loops: tuple[BatchLoop, ...] = (*program.steps, *program.evaluations)
    sums = {total.update: total for loop in loops for total in loop.leaks}
    for total in sums.values():
        around = next(loop for loop in loops if total in loop.leaks)
        message = f"`{total.text}` keeps the graph of every step in memory until it is set anew"
        yield codemod.finding(total.update, message, plan=total, evidence=(of_loop(around),), for_speed=False)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Keep the value on the device, and read it where somebody looks."""
    plan = finding.plan
    if isinstance(plan, Accumulator):
        added = getattr(page_of(edit, plan.update).node(plan.update), "value", None)
        assert isinstance(added, ast.expr)
        edit.insert_after(page_of(edit, plan.update).site(added), ".detach()")
        return
    assert isinstance(plan, tuple)
    for action in plan:
        action(edit)
