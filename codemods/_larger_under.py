"""Small batches under the trainer of transformers, whose settings say how many samples there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import LEARNS_IN_LARGER, ONE_SIZE, Assumption
from turbofix.codemod import Codemod
from turbofix.findings import Finding, Refusal, Risk, Site
from turbofix.training.evidence import of_value
from turbofix.training.model import Argument, Training, TrainingProgram

from ._batches import (
    BATCH,
    ENOUGH_TEXTS,
    EVALUATION,
    FEWEST,
    OTHER_RATE,
    SMALL,
    STEPS,
    TOO_FEW,
    Plan,
    factor_of,
    growing,
    joined,
    one_number,
    raised,
    samples,
    why_not_written,
)
from ._loaders import said_beside
from ._options import on_defaults
from ._trainers import LOADING, STEPPING, by_deepspeed, is_off, rests_on_gpu, stays_on_cpu
from ._trainers import why_not as why_not_setting


def under_trainer(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Trainings of transformers on small batches, whose gradients may be summed."""
    for training in program.trainings:
        batch, steps = training.argument(BATCH), training.argument(STEPS)
        default = batch.state == "absent" and not training.open_mapping and not training.parsed
        size, many = 8 if default else one_number(batch), 1 if steps.state == "absent" else one_number(steps)
        if stays_on_cpu(training) or not is_off(training.argument("auto_find_batch_size")):
            continue  # (that searches for the largest that fits)
        yield from evaluated(codemod, program, training)
        if size is None or many is None:
            yield from unread(codemod, training)
            continue
        factor, rates = factor_of(size, many), []
        if size * many <= (SMALL if steps.state == "absent" else FEWEST):
            times = ENOUGH_TEXTS / (size * many)
            rates = raised(training.argument("learning_rate"), times**0.5)
            message = f"the trainer takes {samples(size)}, {TOO_FEW}; batches of {ENOUGH_TEXTS} change the recipe: "
            message += growing(rates)
            enough, left = ENOUGH_TEXTS, 1
        elif factor > 1 and size <= SMALL:
            message = joined(size, many, factor)
            message += "; that changes the recipe a little: the number of samples may not be divisible by both"
            enough, left = size * factor, many // factor
        else:
            continue
        given = (BATCH, STEPS) if steps.state != "absent" else (BATCH,)
        values: list[tuple[Site | None, int | str]] = [
            (batch.edit_at, enough),
            *((site, new) for site, _, new in rates),
        ]
        values += [(steps.edit_at, left)] if many > 1 else []
        written_at = tuple((site, value) for site, value in values if site is not None)
        yield codemod.offer(
            batch.edit_at or training.site,
            message + said_beside(*map(training.argument, given)),
            why_not_under_trainer(program, training, given),
            plan=Plan(written_at, call=training.site if default else None, added=enough),
            risk=Risk.RECIPE,
            evidence=tuple(of_value(name, training.argument(name), training.site) for name in given),
            assumes=rests(training, size, batch, steps),
        )


def rests(training: Training, size: int, *given: Argument) -> tuple[Assumption, ...]:
    """What a larger batch under a trainer rests on: one sample needs no padding, and several may not stack."""
    alike = (ONE_SIZE,) if size == 1 and training.stacks else ()
    return (LEARNS_IN_LARGER, *alike, *rests_on_gpu(training), *on_defaults(*given))


def unread(codemod: Codemod, training: Training) -> Iterator[Refusal]:
    """What is said of a trainer whose batches are as large as the command line, or something not followed, says."""
    summed = training.argument(STEPS).state != "absent"
    message = f"the trainer takes batches of 8 samples where the command line gives no other number, {TOO_FEW}"
    reason = f"where memory allows, pass {training.parsed}{BATCH} {ENOUGH_TEXTS}; {OTHER_RATE}"
    if summed:
        message = "every update may take several forward and backward passes over small batches"
        reason = f"their numbers were not followed: where memory allows, raise {BATCH} and lower {STEPS} as much"
    if summed or (training.parsed and training.argument(BATCH).state == "absent"):
        yield codemod.refuse(training.site, message, reason, risk=Risk.RECIPE)


def evaluated(codemod: Codemod, program: TrainingProgram, training: Training) -> Iterator[Finding | Refusal]:
    """Small batches of an evaluation, which keeps no activations."""
    batch = training.argument(EVALUATION)
    size, where = one_number(batch), batch.edit_at
    if size is None or size > FEWEST or where in (None, training.argument(BATCH).edit_at) or training.evaluated is None:
        return
    enough = min(ENOUGH_TEXTS, size * 8)
    message = f"the trainer evaluates {samples(size)}, {TOO_FEW}, and keeps no activations for them; batches of "
    message += f"{enough} change a figure that is averaged or summed over batches{said_beside(batch)}"
    seen = (of_value(EVALUATION, batch, training.site),)
    reason, plan = why_not_under_trainer(program, training, (EVALUATION,)), Plan(((where or training.site, enough),))
    assumes = rests(training, size, batch)
    yield codemod.offer(where or training.site, message, reason, plan=plan, evidence=seen, assumes=assumes)


def why_not_under_trainer(program: TrainingProgram, training: Training, names: tuple[str, ...]) -> str | None:
    """What keeps the settings of a trainer from being changed, or tells that the batch is as large as memory allows."""
    if BATCH in names and not is_off(training.argument("gradient_checkpointing"), unless_passed=True):
        return "it does without its activations (gradient_checkpointing): memory is what limits the batch"
    if by_deepspeed(training):
        return "DeepSpeed's configuration may name the batch, and must say the same"
    if training.qualname.startswith("sentence_transformers"):
        return "a loss for sentences may compare the samples of a batch with each other: a larger one is another task"
    own = sorted(training.overrides & (STEPPING | LOADING))
    if own:
        return f"the script's own trainer has a `{own[0]}`, which may count batches or compare their samples"
    reasons = (why_not_setting(program, replace(training, reads=()), name, "N") for name in names)
    given = (training.argument(name) for name in names)
    return next(filter(None, reasons), None) or why_not_written(*(each for each in given if each.state != "absent"))
