"""Compute activations a second time instead of keeping them, where memory is what limits the training.

Why slow
    The backward pass needs what the forward pass has computed. Deep networks and long sequences fill the memory with
    it, and batches must then be tiny. Keeping only the input of each block makes room: the block is computed again in
    the backward pass. This makes every step slower, and pays only where memory is short.

Example
    ::

        settings = TrainingArguments("out", per_device_train_batch_size=1, gradient_accumulation_steps=16)

Use instead
    ::

        settings = TrainingArguments(
            "out", per_device_train_batch_size=1, gradient_accumulation_steps=16, gradient_checkpointing=True
        )

    Dropout draws the same numbers both times.

When refused
    Nothing is said but of the ``Trainer`` of transformers, and unless it shows that memory is short: it adds up
    gradients over batches of one or two samples. It is refused for models with frozen parts, and under FSDP.

Risk
    equivalent: the same numbers are computed, some of them twice.

Measured
    42 % less memory, 21 % slower (torchtune).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.training.model import Framework, TrainingProgram

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
    """Models whose activations fill the memory."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings have a switch for it."""
    lacking = {each.call: each for each in program.repeated}
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
