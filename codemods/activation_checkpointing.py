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
    Dropout draws the same numbers in both passes, and autocast holds for both.

When refused
    Nothing is said unless the program itself tells that memory is short: an ``except`` for running out of memory,
    batches of one or two samples of which several make up an update, or a line that is commented out
    (``# x = checkpoint(block, x)``, ``# model.gradient_checkpointing_enable()``). Nothing either where it is used
    already, and under frameworks. Known are loops over an ``nn.ModuleList`` in the forward pass of the program's own
    model, and models that ``from_pretrained`` of transformers gives.

    Refused where a second pass would not be the same or not go unnoticed: layers with running statistics (BatchNorm),
    blocks that change their input or their attributes, print, draw random numbers from elsewhere than torch or call
    what may do more than compute, inputs that the loop changes in place behind the block, layers that are not known;
    models of transformers with frozen parts (PEFT), that are made under a test, or of a kind that is not known to have
    the switch; and where several processes train.

Risk
    equivalent: the same numbers are computed, some of them twice.

Measured
    42 % less memory, 21 % slower (torchtune).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.program.model import Framework, Repeated, TrainingProgram

codemod = Codemod(
    __name__,
    group="memory",
    risk=Risk.EQUIVALENT,
    after=("compile-model",),
    known_as=("gradient checkpointing", "torch.utils.checkpoint"),
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Blocks and models whose activations fill the memory."""
    if program.framework is not Framework.PYTORCH or not program.complete:
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
