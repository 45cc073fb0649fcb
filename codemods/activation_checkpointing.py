"""Compute activations a second time instead of keeping them, where memory is what limits the training.

Why slow
    The backward pass needs what the forward pass has computed. Deep networks and long sequences fill the memory with
    it, and batches must then be tiny. Keeping only the input of each block makes room: the block is computed again in
    the backward pass. This makes every step slower, and pays only where memory is short.

Example
    ::

        for block in self.blocks:
            x = block(x)

Use instead
    ::

        from torch.utils.checkpoint import checkpoint

        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)

    A model of transformers gets ``model.gradient_checkpointing_enable()``, the ``Trainer``'s settings get
    ``gradient_checkpointing=True``. Dropout draws the same numbers both times.

When refused
    Nothing is said unless the program shows that memory is short: it ends where it runs out of it, or adds up gradients
    over batches of one or two samples. It is refused

    - where a second pass would change something: BatchNorm, blocks that print, work in place, or draw random numbers
      from elsewhere than torch;
    - for models with frozen parts, under FSDP, and where several processes train in a loop of the script's.

Risk
    equivalent: the same numbers are computed, some of them twice.

Measured
    42 % less memory, 21 % slower (torchtune).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.training.model import Framework, Repeated, TrainingProgram

from ._trainers import Switch, is_off, is_on, judged, stays_on_cpu, why_not

codemod = Codemod(
    __name__,
    group="memory",
    risk=Risk.EQUIVALENT,
    after=("compile-model",),
    known_as=("gradient checkpointing", "torch.utils.checkpoint"),
    assumes=(READ_WHOLE,),
)


SWITCH = "gradient_checkpointing"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Blocks and models whose activations fill the memory."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework is not Framework.PYTORCH:
        return
    for each in program.repeated:
        kept = f"all activations of `{each.name}`" if each.library else f"the activations of every `{each.name}`"
        message = f"{kept} are kept for the backward pass, in a program that lacks memory"
        reason = each.why_not
        if program.distributed or program.processes:
            reason = "several processes train, and how their gradients are exchanged decides whether it works"
        if reason is not None:
            yield codemod.refuse(each.call, message, reason, evidence=each.evidence)
        else:
            yield codemod.finding(each.call, message, plan=each, evidence=each.evidence, assumes=(READ_WHOLE,))


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings have a switch for it."""
    lacking = {each.call: each for each in program.repeated if each.setting}
    for training in program.trainings:
        given = training.argument(SWITCH)
        if is_on(given):
            yield codemod.in_place(given.edit_at or training.site, "activations are computed a second time")
        each = lacking.get(training.site)
        if is_on(given) or each is None or stays_on_cpu(training):
            continue
        message = f"all activations of `{each.name}` are kept for the backward pass, in a program that lacks memory"
        there = judged(codemod, training, SWITCH, message, "activations are computed a second time")
        if there is not None:
            yield there
            continue
        reason = each.why_not or why_not(program, training, SWITCH)
        if reason is None and not is_off(training.argument("fsdp")):
            reason = "FSDP has a switch of its own for it (`fsdp_config`)"
        plan = Switch(SWITCH, "True")
        yield codemod.offer(training.site, message, reason, plan=plan, evidence=each.evidence, assumes=(READ_WHOLE,))


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Call the block through ``checkpoint`` while training, or turn the model's own switch."""
    plan = finding.plan
    assert isinstance(plan, Repeated)
    if plan.library:
        edit.after(plan.call, f"{plan.name}.gradient_checkpointing_enable()")
        return
    again = edit.name("torch.utils.checkpoint.checkpoint", plan.call, module="torch.utils.checkpoint")
    call = edit.text(plan.call)
    given = call.partition("(")[2].rstrip()[:-1].strip().rstrip(",")
    passed = f"{plan.name}, {given}" if given else plan.name
    edit.replace(plan.call, f"{again}({passed}, use_reentrant=False) if {plan.owner}.training else {call}")
