"""Sum gradients over processes once for each update, not after each of its micro-batches.

Why slow
    ``DistributedDataParallel`` sends all gradients from process to process with every backward pass. Where those of
    several micro-batches add up before an update, all sums but the last are sent for nothing.

Example
    ::

        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x), y) / accumulate
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()

Use instead
    ::

        for i, (x, y) in enumerate(loader):
            sync = contextlib.nullcontext() if (i + 1) % accumulate == 0 else model.no_sync()
            with sync:
                loss = criterion(model(x), y) / accumulate
                loss.backward()
            if (i + 1) % accumulate == 0:
                ...

    The forward pass stands in it too, since that decides whether gradients are sent. The test is that of the update, or
    that for the last round of a loop over micro-batches. An update behind the loop gets the last batch's as well. With
    Accelerate it is ``accelerator.no_sync(model)``, which leaves the number of batches to the script.

When refused
    Nothing is said where ``no_sync``, ``accelerator.accumulate`` or ``require_backward_grad_sync`` does it, and where
    an engine (DeepSpeed, Lightning, the Trainer) does. It is refused

    - where the test cannot stand in front of the forward pass: it calls something, or reads what the pass computes;
    - where gradients are clipped or read with each micro-batch, for they would be those of one process;
    - where an update may happen without the backward pass that would send the gradients;
    - where a loop over micro-batches has no counter or may end early, or a step has several backward passes;
    - with ``static_graph=True``, which fails beside ``no_sync``;
    - where ``no_sync`` is there, and the forward pass outside of it: then nothing is held back.

Risk
    equivalent: the same sums, added in another order. Statistics of BatchNorm are sent once for each update, too.

Measured
    No figure of its own: with n micro-batches it saves n - 1 of n reductions, which are 4 bytes for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.training.evidence import of_loop, of_value
from turbofix.training.model import Reduction, Step, TrainingProgram

codemod = Codemod(
    __name__,
    group="distributed",
    risk=Risk.EQUIVALENT,
    after=("larger-batch", "autocast", "modern-amp", "ddp-flags"),
    known_as=("require_backward_grad_sync", "gradient accumulation under DDP"),
)

LONGEST = 120
RIGHT = "gradients are summed over processes only where a step follows"
OUTSIDE = "`no_sync` holds nothing back: the forward pass decides whether gradients are sent, and stands outside of it"
ENGINES = "an engine that the script may be started with (DeepSpeed, FSDP) has a way of its own to hold gradients back"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Steps that add gradients up, and send them from process to process with each micro-batch."""
    if program.target.zero > 1:  # `fully_shard` takes the place of what `no_sync` is a method of
        return
    for step in program.steps:
        found, groups = step.reduction, step.accumulation
        if found is None:
            continue
        if found.late:
            yield codemod.refuse(found.backward, OUTSIDE, "put the forward pass under the same `with`")
        elif found.held is not None:
            yield codemod.in_place(found.held, RIGHT)
        elif groups is None or groups.steps.values != (1,):
            many = () if groups is None else (of_value("the number of micro-batches", groups.steps, groups.guard),)
            seen = (of_loop(step), *many)
            message = "every micro-batch sends its gradients to all processes, and one sum for each update is enough"
            reason = found.why_not or why_not(program, step)
            yield codemod.offer(found.backward, message, reason, plan=found, evidence=seen)


def why_not(program: TrainingProgram, step: Step) -> str | None:
    """What of the program at large does not go with it."""
    if not program.complete:  # a run by one process would not show that replicas drift apart
        return program.incomplete_because or "the program could not be read to its end"
    if program.hands_over:
        return ENGINES
    for each in program.wrappings:
        given = each.argument("static_graph")
        if (not each.models or set(each.models) & set(step.models)) and given.state != "absent" and not given.off:
            return f"with `static_graph` ({each.site.line_from(step.loop.site.path)}) it fails: leave that out first"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Choose what to enter in front of the forward pass, and put it and the backward pass under that."""
    plan = finding.plan
    assert isinstance(plan, Reduction)
    first, last = plan.first, plan.last
    assert first is not None
    assert last is not None
    holding = f"{plan.owner}.no_sync({plan.model})" if plan.owner else f"{plan.model}.no_sync()"
    test, name, nothing = (
        plan.stepping,
        edit.free_name("sync", first),
        f"{edit.name('contextlib.nullcontext', first)}()",
    )
    if not plan.sure and not plan.owner:  # Accelerate asks that itself
        test += f" or not hasattr({plan.model}, {edit.quoted('no_sync', first)})"
    line = f"{name} = {nothing} if {test} else {holding}"
    broken = (f"{name} = (", f"    {nothing}", f"    if {test}", f"    else {holding}", ")")
    edit.before(first, *((line,) if first.column + len(line) <= LONGEST else broken))
    edit.wrap(first, last, f"with {name}:")
