"""Stop emptying the cache, collecting garbage and waiting for the GPU in every step.

Why slow
    ``torch.cuda.empty_cache()`` waits for the GPU and gives the memory back that torch keeps for the next step, which
    then asks the driver for it once more. ``gc.collect()`` goes through all objects of the process, and
    ``torch.cuda.synchronize()`` lets the GPU run dry. None of them makes more memory available: before torch gives up
    on an allocation it empties its cache by itself and tries again.

Example
    ::

        for images, labels in loader:
            optimizer.step()
            torch.cuda.empty_cache()

Use instead
    ::

        for images, labels in loader:
            optimizer.step()

    Where it is there against memory that is cut up bit by bit, every 100th step is often enough:
    ``if step % 100 == 0: torch.cuda.empty_cache()``.

When refused
    Nothing is said of what happens once an epoch, under a test of the step or the loss, or where an error is handled;
    of programs that never reach a GPU; and under frameworks that own the loop. It is refused where the program speaks
    of what it may be needed for: a wait where a clock is read (take the time of every 100th step, or with
    ``torch.cuda.Event``), and beside streams, graphs, profilers, kernels or copies that do not block; the others where
    memory is measured, where processes share a GPU, under DeepSpeed, and ``gc.collect()`` where the program runs the
    collector by hand or makes ``create_graph`` (which leaves cycles). So it is where a comment stands beside the call,
    and where that is more than a statement of its own.

Risk
    exact: no number changes. Memory that is not given back stays with the process, as ``nvidia-smi`` shows.

Measured
    No figure: it depends on how much memory is given back and taken again.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.training.evidence import of_guard, of_loop
from turbofix.training.model import Chore, TrainingProgram

from ._syncs import BatchLoop, batch_loops, loop_words, runs_each_time, waits

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EXACT,
    after=("defer-item", "throttle-logging"),
    known_as=("torch.cuda.empty_cache", "gc.collect", "torch.cuda.synchronize"),
    assumes=(READ_WHOLE,),
)


MESSAGES = {
    "empty_cache": "torch gives its cache back and asks the driver for it again {often}",
    "collect": "the garbage collector goes through all objects of the process {often}",
    "synchronize": "the host waits here for all the work of the GPU {often}",
}

NEEDED = {
    "clock": "the time is taken on {line}, which needs the wait and pays for it each time: take that of every "
    "100th step, or use torch.cuda.Event",
    "stream": "{line} may run work on the GPU of which torch's own order does not know, or copy without blocking",
    "memory": "memory is measured on {line}",
    "collector": "{line} runs the collector by hand, or makes gradients whose graphs it has to collect",
}


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Chores in every step of a training, or for every batch of an evaluation."""
    found: dict[Site, tuple[BatchLoop, Chore, str | None]] = {}
    for loop in batch_loops(program):
        for chore in loop.chores:
            if chore.site in found or not concerns(chore, loop, program):
                continue
            found[chore.site] = loop, chore, why_not(chore, loop, program)
    for loop, chore, reason in found.values():
        message = MESSAGES[chore.kind].format(often=loop_words(loop))
        seen = (of_loop(loop), *of_guard(chore.guard))
        if reason is not None:
            yield codemod.refuse(chore.site, message, reason, evidence=seen)
        else:
            reading = waits(loop, program) if chore.kind == "synchronize" else ()
            if reading:
                message += f"; so does {reading[0].site.line_from(chore.site.path)}"
            yield codemod.finding(
                chore.site, message, plan=chore, evidence=seen, worth=Worth.SMALL if reading else None
            )


def concerns(chore: Chore, loop: BatchLoop, program: TrainingProgram) -> bool:
    """Whether a chore is one of every step, and costs something where the program runs."""
    if not runs_each_time(chore.guard):
        return False
    if chore.kind != "collect":
        place = loop.device if loop.device.where != "unknown" else program.device
        if not place.reaches_cuda:
            return False
    return True


def why_not(chore: Chore, loop: BatchLoop, program: TrainingProgram) -> str | None:
    """What a chore may be needed for, or what is in the way of taking it out."""
    if chore.purpose is not None:
        line = chore.purpose.site.line_from(chore.site.path)
        return NEEDED[chore.purpose.kind].format(line=line)
    if chore.comments:
        return "the comment beside it may say what it is there for: every 100th step is often enough for memory's sake"
    if chore.kind == "synchronize":
        if program.processes and not program.distributed:
            return "processes that share memory may count on it"
    elif program.processes and not program.distributed:
        return "processes that the script starts may share the GPU, and what one keeps the others lack"
    elif program.hands_over:
        return "the ranks of an engine should flush their caches together"
    if not chore.alone:
        return "the statement does more than that, or nothing else stands in its branch"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Take the statement out."""
    chore = finding.plan
    assert isinstance(chore, Chore)
    edit.delete(chore.statement)
