"""Compute activations a second time instead of keeping them, where memory is what limits the training.

Why slow
    The backward pass needs what the forward pass has computed, and for deep networks and long sequences that fills
    the memory. Where it forces batches of one or two samples, or skips batches that do not fit, keeping only what
    enters each block makes room: the block is computed once more when its gradient is.

    It makes every step slower. It is worth that only where memory is short.

Example
    ::

        for block in self.blocks:
            x = block(x)

Use instead
    ::

        from torch.utils.checkpoint import checkpoint

        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)

    A model of transformers has a switch of its own, behind its construction: ``model.gradient_checkpointing_enable()``.
    Dropout draws the same numbers in both passes, and autocast holds for both. So have the settings of a ``Trainer``::

        args = TrainingArguments(
            "out", per_device_train_batch_size=1, gradient_accumulation_steps=16, gradient_checkpointing=True
        )

When refused
    Nothing is said unless the program itself tells that memory is short: an ``except`` for running out of memory,
    batches of one or two samples of which several make up an update, or a line that is commented out
    (``# x = checkpoint(block, x)``, ``# model.gradient_checkpointing_enable()``). Nothing either where it is used
    already, and under frameworks other than the ``Trainer`` of transformers, whose settings tell of it by their batches
    or by a line that is commented out in their call. Known are loops over an ``nn.ModuleList`` in the forward pass of
    the program's own model, and models that ``from_pretrained`` of transformers gives.

    Refused where a second pass would not be the same or not go unnoticed: layers with running statistics (BatchNorm),
    blocks that change their input or their attributes, print, draw random numbers from elsewhere than torch or call
    what may do more than compute, inputs that are changed in place behind the block, under another name too, layers
    that are not known; models of transformers with frozen parts (PEFT), that are made under a test, or of a kind that
    is not known to have the switch; settings that switch it off, are changed afterwards or read for something else, and
    FSDP's, which have a switch of their own; and where several processes train by a loop of the script's.

Risk
    equivalent: the same numbers are computed, some of them twice.

Measured
    42 % less memory, 21 % slower (torchtune).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.program.model import Framework, Repeated, TrainingProgram

from ._trainers import Switch, is_off, is_on, judged, set_switch, stays_on_cpu, why_not

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
            yield codemod.finding(each.call, message, plan=each, evidence=each.evidence)


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
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=each.evidence)
        else:
            yield codemod.finding(training.site, message, plan=Switch(SWITCH, "True"), evidence=each.evidence)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Call the block through ``checkpoint`` while training, or turn the model's own switch."""
    plan = finding.plan
    if isinstance(plan, Switch):
        set_switch(plan, finding.site, edit)
        return
    assert isinstance(plan, Repeated)
    if plan.library:
        edit.after(plan.call, f"{plan.name}.gradient_checkpointing_enable()")
        return
    again = edit.name("torch.utils.checkpoint.checkpoint", plan.call, module="torch.utils.checkpoint")
    call = edit.text(plan.call)
    given = call.partition("(")[2].rstrip()[:-1].strip().rstrip(",")
    passed = f"{plan.name}, {given}" if given else plan.name
    edit.replace(plan.call, f"{again}({passed}, use_reentrant=False) if {plan.owner}.training else {call}")
