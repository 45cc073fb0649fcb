"""Add up the gradients of several batches before each update, where the script says so and does not do it.

Why slow
    A script that says how many batches make up one update, and then updates with every batch, trains with a smaller
    batch than it says: with more noise, and at a learning rate that was meant for the larger one.

Example
    ::

        parser.add_argument("--accumulation-steps", type=int, default=4)  # nothing reads it
        trainer = Trainer(max_epochs=10)

Use instead
    ::

        trainer = Trainer(max_epochs=10, accumulate_grad_batches=args.accumulation_steps)

    The trainers of transformers and Lightning have a switch for it. A loop of the script's own is told what to write.
    It makes nothing faster: where the whole batch fits, one larger batch is (``larger-batch``).

When refused
    Nothing is said unless an option or a constant that is called so (``accum_iter``) asks for it and nothing reads it.
    Refused in a loop of the script's own, and for settings that are changed, or decided by DeepSpeed or a strategy.

Risk
    recipe: the effective batch is larger, and there are fewer updates. BatchNorm still sees the small batches.

Measured
    Nothing: it is not about speed.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.training.evidence import of_loop, of_value
from turbofix.training.model import Argument, Framework, TrainingProgram

from ._trainers import Switch, by_deepspeed, is_sharded
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="schedule",
    risk=Risk.RECIPE,
    after=("larger-batch",),
    known_as=("gradient accumulation", "effective batch size"),
)


BY_HAND = (
    "divide the loss by that number before it goes backward, and let clipping, update, schedule and zeroing wait for "
    "each so many batches, and for the last one"
)
SWITCHES = {
    Framework.TRANSFORMERS: "gradient_accumulation_steps",
    Framework.LIGHTNING: "accumulate_grad_batches",
}


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Steps that update with every batch, although the script says over how many gradients shall add up."""
    if program.framework in SWITCHES and program.complete:
        yield from under_trainer(program, SWITCHES[program.framework])
    if program.framework is not Framework.PYTORCH or not program.complete:
        return
    for step in program.steps:
        groups = step.accumulation
        if groups is not None:
            if groups.divided and groups.steps.values != (1,):
                yield codemod.in_place(groups.guard, "gradients add up over several batches, each with its share")
            continue
        wish = step.wish
        if wish.state == "absent" or wish.text is None or not step.reached or len(step.backwards) == 0:
            continue
        place = step.backwards[0].site
        seen = (of_loop(step), of_value("the number of batches", wish, place))
        yield codemod.refuse(place, unheard(wish), BY_HAND, evidence=seen)


def unheard(wish: Argument) -> str:
    """What is said of a number of batches that nothing reads."""
    said, many = wish.option or f"`{wish.text}`", wish.values[0] if wish.values[0] != 1 else "several"
    return (
        f"every batch is an update of its own, although {said} says that the gradients of {many} add up, "
        "and nothing reads it"
    )


def under_trainer(program: TrainingProgram, switch: str) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of a framework whose trainer adds gradients up where it is told to."""
    for training in program.trainings:
        given, wish = training.argument(switch), training.wish
        if given.state != "absent" or wish.state == "absent" or wish.text is None or training.parsed:
            continue
        if training.module is not None and training.module.manual:
            continue
        message = unheard(wish)
        seen = (of_value("the number of batches", wish, training.site),)
        reason = why_not_setting(program, training, switch, wish.text)
        if reason is None and (by_deepspeed(training) or is_sharded(training)):
            reason = "another engine may take part, with a number of its own"
        yield codemod.offer(training.site, message, reason, plan=Switch(switch, wish.text), evidence=seen)
