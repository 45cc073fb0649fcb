"""What throttle-logging and defer-item ask of the reads that make the host wait in a loop over batches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from turbofix.assumptions import Assumption
from turbofix.editing.edit import Edit
from turbofix.findings import Gain, Site
from turbofix.training.model import Evaluation, Guard, Loader, Look, Show, Step, Sync, TrainingProgram

from ._frameworks import LEFT, NAMES
from ._loaders import is_inside
from ._precision import on_a_gpu

BatchLoop: TypeAlias = Step | Evaluation
Action: TypeAlias = Callable[[Edit], None]

GAIN = Gain(1.0, 1.07, "torchtune 522: removing one wait per step gave 5–7 %")

INTERVAL = 50
"""Shown every so many steps: rare enough to cost nothing, often enough to watch."""

SHORT_INTERVAL = 10
"""The same for loops that are known to be over soon."""

ROWS = ("writer", "tracker", "logger")
"""Messages that are kept, as rows of a log: that nobody needs them all is assumed."""

FEW = 3
"""Loops that are known to be over after so many short intervals: their lines are worth more than the waits."""


def batch_loops(program: TrainingProgram) -> Iterator[BatchLoop]:
    """The loops over batches that the user writes: in plain PyTorch, and under Accelerate and Fabric.

    There, whoever starts the program may choose a device that lacks float64.
    """
    if (
        program.framework not in LEFT
    ):  # DeepSpeed's engine takes the time of each step, synchronized, unless told not to
        return
    loops: tuple[BatchLoop, ...] = (*program.steps, *program.evaluations)
    for loop in loops:
        chosen = program.framework in NAMES and loop.device.where != "cuda"
        yield replace(loop, device=replace(loop.device, mps=True)) if chosen else loop


def runs_each_time(guard: Guard) -> bool:
    """Whether something happens in every iteration: what a flag decides does, and so does `step % 1`."""
    return guard.kind in ("always", "config", "rank", "step") or (guard.kind == "every_n" and guard.every == 1)


def waits(loop: BatchLoop, program: TrainingProgram) -> tuple[Sync, ...]:
    """The reads that make the host wait for a GPU in every iteration, in the order of the source."""
    found = (s for s in loop.syncs if runs_each_time(s.guard) and on_gpu(s, loop, program) is not None)
    return tuple(replace(sync, looks=tuple(looks_at(sync, program))) if sync.looks else sync for sync in found)


def looks_at(sync: Sync, program: TrainingProgram) -> Iterator[Look]:
    """What becomes of a number in all loops that it is read in: what looks at it in one may be a step of another."""
    loops: tuple[BatchLoop, ...] = (*program.steps, *program.evaluations)
    reading = {each.loop.site: one.looks for each in loops for one in each.syncs if one.site == sync.site}
    told: set[tuple[str, Site]] = set()
    for place, looks in reading.items():
        for look in looks:
            elsewhere = any(is_inside(look.site, other) for other in reading if not is_inside(place, other))
            if (look.kind, look.site) not in told and not (look.kind == "seen" and elsewhere):
                told.add((look.kind, look.site))
                yield look


def on_gpu(sync: Sync, loop: BatchLoop, program: TrainingProgram) -> tuple[Assumption, ...] | None:
    """What is assumed for what is read to lie on a GPU; None where it does not.

    Where the tensor does not tell where it is, its loop does, or the program.
    """
    places = (sync.on_device, loop.device)
    return on_a_gpu(program, next((each for each in places if each.where != "unknown"), None))


def lacks_float64(sync: Sync, loop: BatchLoop) -> bool:
    """Whether the tensor may lie on a device without float64, as Apple's are."""
    return sync.on_device.mps or loop.device.mps


def read_text(sync: Sync) -> str:
    """How a message calls the read."""
    if sync.how in ("item", "tolist", "numpy", "cpu"):
        text = one_line(sync.of_text)
        return f"`{text}.{sync.how}()`" if is_closed(sync.of_text) else f"`({text}).{sync.how}()`"
    if sync.how in ("float", "int", "bool"):
        return f"`{sync.how}({one_line(sync.of_text)})`"
    return f"`{one_line(sync.of_text)}`"


def is_closed(text: str) -> bool:
    """Whether a method can be written straight behind an expression."""
    try:
        node = ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        return True
    return isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) or text.startswith("(")


def one_line(text: str) -> str:
    """A source text, short enough for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 50 else f"{flat[:47]}..."


def loop_words(loop: BatchLoop) -> str:
    """How a message says how often it happens."""
    return "in every step" if isinstance(loop, Step) else "for every batch of the evaluation"


def why_it_stays(sync: Sync) -> str | None:
    """Why a read cannot be put off, as far as the model tells; None where the text decides."""
    if sync.use == "control":
        return "its value decides what the program does next"
    if sync.use == "returned":
        return "the number is returned to the caller in every step"
    if sync.how == "metric":
        return "the metric that takes it keeps it on the host"
    if sync.use == "other" or sync.how in ("bool", "data", "other"):
        return "the number is used for more than a sum or a message"
    if sync.plain and sync.use != "shown":
        return f"`{one_line(sync.of_text)}` may be a plain number, which has no tensor's methods"
    if sync.use == "summed" and sync.how in ("cpu", "numpy") and not sync.scalar:
        return "the tensor is copied to the host whole"
    if sync.use == "summed" and (sync.accumulator is None or not sync.accumulator.simple):
        reason = sync.accumulator.why_not_simple if sync.accumulator is not None else "where it is summed is not known"
        name = sync.accumulator.text if sync.accumulator is not None else "the sum"
        return f"`{name}` cannot become a tensor: {reason}"
    if sync.use == "shown":
        return why_shown(sync.show, sync.guard) if sync.show is not None else "where it is shown is not known"
    return None


def why_shown(show: Show, guard: Guard) -> str | None:
    """Why a message cannot be shown less often."""
    if guard.kind == "every_n":
        where = f" on line {guard.tests[-1].line}" if guard.tests else ""
        return f"the interval of its guard{where} is {guard.every}, so that every step passes: raise it"
    return None if show.alone else "the call that shows it may do more than that"


def shows_in(loop: BatchLoop, waiting: tuple[Sync, ...]) -> tuple[Show, ...]:
    """The messages of every iteration that read a tensor, or a sum that could otherwise stay on the device."""
    reading = {sync.show.statement for sync in waiting if sync.use == "shown" and sync.show is not None}
    summed = {
        read.show or read.statement
        for sync in waiting
        if sync.accumulator is not None
        for read in sync.accumulator.reads
        if read.when == "every_step"
    }
    sites = {sync.site for sync in waiting}
    return tuple(
        show
        for show in loop.shows
        if runs_each_time(show.guard)
        and (show.statement in reading or show.statement in summed or sites & set(show.syncs))
    )


def interval(loop: BatchLoop, program: TrainingProgram) -> int | None:
    """How often to show; None where the loop is over so soon that nothing is won."""
    steps = [count for site in loop.loaders if (count := batches(program.loader(site))) is not None]
    if not steps or len(steps) < len(loop.loaders) or max(steps) > 2 * INTERVAL:
        return INTERVAL
    return SHORT_INTERVAL if max(steps) > FEW * SHORT_INTERVAL else None


def batches(loader: Loader | None) -> int | None:
    """How many batches a loader gives, where that is known."""
    if loader is None or loader.dataset.length is None:
        return None
    size = loader.argument("batch_size")
    if size.state == "absent" and not loader.open_mapping:
        return loader.dataset.length
    value = size.values[0] if size.known and len(size.values) == 1 else None
    return -(-loader.dataset.length // value) if isinstance(value, int) and value > 0 else None


# --- small edits ----------------------------------------------------------------------------------------------------


def replacing(site: Site, text: str) -> Action:
    """Put ``text`` in the place of an expression."""
    return lambda edit: edit.replace(site, text)


def adding_before(site: Site, *lines: str) -> Action:
    """Put lines before a statement."""
    return lambda edit: edit.before(site, *lines)


def adding_after(site: Site, *lines: str) -> Action:
    """Put lines after a statement."""
    return lambda edit: edit.after(site, *lines)
