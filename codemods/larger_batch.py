"""Take one larger batch instead of many small ones whose gradients are summed.

Why slow
    A batch of a few samples does not fill a GPU: the time goes into starting kernels, not into computing. Where the
    gradients of several such batches are accumulated before the optimizer steps, one batch of all of them gives the
    same update with one forward and one backward pass.

Example
    ::

        parser.add_argument("--batch-size", type=int, default=4)
        parser.add_argument("--accumulation-steps", type=int, default=8)

Use instead
    ::

        parser.add_argument("--batch-size", type=int, default=32)
        parser.add_argument("--accumulation-steps", type=int, default=1)

    Two values change and no code: ``loss / 1``, ``% 1 == 0`` and a loop over ``range(1)`` stay. The batch grows to 64,
    small samples to 256, and the rest stays accumulated. Lightning, Accelerate and the ``Trainer`` have both numbers.

    Without accumulation, or where few samples add up, batches of up to 16 become 64 (under the ``Trainer`` 32), of up
    to 64 for a narrow network at least 128, of up to 3 for one that gives whole pictures 16, and up to 64 rows of a
    table or pictures of 32 by 32 at least 128; windows that are drawn of a text become 64, or four times as many, where
    a batch has few tokens. Others below 64 become four times as large: only a run tells whether they fill the GPU. The
    learning rate grows where it is written. Batches of up to 8 of an evaluation become at least 32, and of up to 4
    under the ``Trainer`` eight times as large.

When refused
    Refused for torchvision's detectors, where a comment gives a reason for a value, an evaluation takes one sample for
    the whole batch, one picture at a time is read beside InstanceNorm, the loop catches an out-of-memory error, or
    several processes share the batches. Of the ``Trainer`` where its settings tell that memory limits the batch, beside
    DeepSpeed, where its loss or its loaders are the script's own or a setting is changed elsewhere.

Risk
    equivalent where the update is the mean over the same samples. recipe with BatchNorm, under the ``Trainer``, and
    without accumulation: the learning rate has to grow, too.

Measured
    12 % for GPT-2 124M, which a small batch already fills (Raschka, LLMs-from-scratch ch05/10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import LEARNS_IN_LARGER, ON_GPU, ONE_SIZE, OPTION_DEFAULT, Assumption
from turbofix.codemod import Codemod
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.training.evidence import of_loader, of_value
from turbofix.training.model import (
    Argument,
    Framework,
    Loader,
    Step,
    TrainingProgram,
)

from ._batches import (
    BATCH,
    ENOUGH,
    ENOUGH_TOLD,
    FEWEST,
    PERHAPS_FEW,
    SMALL,
    SMALL_ROWS,
    TOO_FEW,
    UNMEASURED,
    Bounds,
    Plan,
    bounds,
    by_hand,
    growing,
    looks_at_one,
    models_of,
    norm_of,
    one_number,
    place,
    rates_of,
    read_elsewhere,
    samples,
    smallest,
    summed,
    why_not_written,
    written,
)
from ._joined import accumulated, named
from ._larger_under import under_trainer
from ._loaders import called, said_beside
from ._options import on_defaults
from ._precision import is_detector, on_a_gpu
from ._trainers import on_gpu

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.12, source="GPT-2 124M: 12 % (Raschka, LLMs-from-scratch ch05/10)"),
    known_as=("batch size", "less gradient accumulation"),
    assumes=(LEARNS_IN_LARGER, ONE_SIZE, ON_GPU, OPTION_DEFAULT),
    otherwise="no small batch was recognised here that could grow",
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Training steps on small batches."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(codemod, program)
    assumes = on_the_gpu(program)
    told: set[Site] = set()
    for loader in sorted((*program.loaders, *by_hand(program)), key=lambda each: each.role == "evaluation"):
        steps = [step for step in program.steps if loader.site in (*step.loaders, step.loop.site)]
        size = smallest(loader)
        if size is None or place(loader) in told or program.framework in (Framework.TRANSFORMERS, Framework.DEEPSPEED):
            continue  # their settings name the batch
        adding = (each.accumulation for each in steps if each.accumulation is not None)
        drawn = any(step.draws for step in steps)
        accumulation = next((each for each in adding if not drawn or one_number(each.steps) != 1), None)
        sums = None if loader.role == "evaluation" else next(iter(summed(program)), None)
        small, enough = bounds(program, loader, steps, size)
        if accumulation is not None and drawn and size * (one_number(accumulation.steps) or size) <= small:
            sums, accumulation = accumulation.steps, None  # all of them together are few as well
        by, many = accumulation or sums, 1 if sums is None else one_number(sums)
        if by is not None or size <= small:
            told.add(place(loader))  # who evaluates with the same number has been spoken of
        if accumulation is None and many is not None and size * many <= small + (small == FEWEST - 1 and many > 1):
            if assumes is not None:
                yield grown(program, loader, steps, (size, small, enough), assumes, told, sums)
        elif by is not None and (len(steps) == 1 or (by is sums and not program.steps)):
            yield from accumulated(codemod, program, loader, steps, by, (size, small, enough))
    told_to = (one_number(each.argument(BATCH)) for each in program.trainings)
    known = map(smallest, (*program.loaders, *by_hand(program)))
    if program.trained_at is not None and not any((*known, *told_to)):
        yield from named(codemod, program, program.trained_at)
    elif assumes is not None and not told and program.framework not in (Framework.TRANSFORMERS, Framework.DEEPSPEED):
        yield from not_small(program, assumes, told)


def not_small(
    program: TrainingProgram, assumes: tuple[Assumption, ...], changed: set[Site]
) -> Iterator[Finding | Refusal]:
    """The batches of a training that are not known to be small: a run tells whether they fill a GPU."""
    for each in (*program.loaders, *by_hand(program)):
        size, steps = smallest(each), [step for step in program.steps if each.site in (*step.loaders, step.loop.site)]
        if size is not None and size <= ENOUGH_TOLD and each.role in ("training", "both"):
            small, _ = bounds(program, each, steps, size)
            if not small or any(step.draws for step in steps):
                return
            if size < ENOUGH and small >= SMALL:
                yield grown(program, each, steps, (size, size, size * 4), assumes, changed, None)
            else:
                yield codemod.refuse(place(each), f"{who(program, each)} takes batches of {size} samples", UNMEASURED)
            return


def who(program: TrainingProgram, loader: Loader) -> str:
    """What makes the batches, in words."""
    return called(loader) if loader in program.loaders else "this loop"


def on_the_gpu(program: TrainingProgram) -> tuple[Assumption, ...] | None:
    """What is assumed of the device; None where the training is known to leave the GPU alone."""
    if program.framework is Framework.PYTORCH:
        return on_a_gpu(program)
    return None if any(on_gpu(training) is False for training in program.trainings) else ()


def grown(  # noqa: PLR0913
    program: TrainingProgram,
    loader: Loader,
    steps: list[Step],
    sizes: Bounds,
    assumes: tuple[Assumption, ...],
    changed: set[Site],
    sums: Argument | None,
) -> Finding | Refusal:
    """A small batch for each update: a larger one is another training, with another learning rate.

    ``changed``: by findings, this one's are added. ``sums``: how many batches a framework adds up, which are few, too.
    """
    size, small, enough = sizes
    times = enough / size / (one_number(sums) or 1 if sums is not None else 1)
    batch, evaluates = loader.argument("batch_size"), loader.role == "evaluation"
    is_made = loader in program.loaders
    few = TOO_FEW if size <= bounds(program, loader, steps, size)[0] else PERHAPS_FEW
    message = f"{who(program, loader)} {'gives' if is_made else 'takes'} {samples(size)}, {few}; "
    few_at = [(each, site) for each, site in written(batch) if type(each) is int and each <= small]
    rates: list[Rate] = []
    if evaluates:
        message += f"batches of {enough} change a figure that is averaged or summed over batches"
    else:
        rates = rates_of(program, steps, times) if len({each for each, _ in written(batch)}) == 1 else []
        rates = [each for each in rates if each[0] not in changed]
        message += f"batches of {enough} change the recipe: {growing(rates)}"
        message += f", and as many samples make {times:.3g} times fewer updates"
        norm = norm_of(program, steps)
        message += f", and {norm} sees other statistics" if norm else ""
    message += said_beside(batch) + read_elsewhere(program, loader)
    seen = of_loader(program, loader, "batch_size") if is_made else (of_value("the batch size", batch, loader.site),)
    given = (replace(batch, edit_at=few_at[0][1] if few_at else None), *((sums,) if sums is not None else ()))
    reason = why_not_written(*given)
    if any(map(is_detector, models_of(program, steps))):
        reason = "a detector takes large pictures, of which few fit into memory: try a batch twice as large"
    elif reason is None and program.distributed:
        reason = "several processes share the batches, and how they do is yours to say"
    elif reason is None and size == 1 and not evaluates and norm_of(program, steps, ("InstanceNorm",)):
        reason = "networks with InstanceNorm (CycleGAN) may read one picture at a time on purpose: compare results"
    elif reason is None and size == 1 and evaluates:
        reason = looks_at_one(program, loader)
    stacked = (ONE_SIZE,) if size == 1 and loader.collate == "default" else ()
    added = [step.accumulation.steps for step in steps if step.accumulation is not None]
    values: list[tuple[Site, int | str]] = [
        *((site, enough) for _, site in few_at),
        *((site, new) for site, _, new in rates),
    ]
    values += [(sums.edit_at, 1)] if sums is not None and sums.edit_at is not None else []
    changed.update(site for site, _ in values if reason is None)
    return codemod.offer(
        place(loader),
        message,
        reason,
        plan=Plan(tuple(values)),
        risk=Risk.EQUIVALENT if evaluates else Risk.RECIPE,
        evidence=seen,
        assumes=(LEARNS_IN_LARGER, *stacked, *assumes, *on_defaults(batch, *added)),
        worth=Worth.SOME if evaluates or size <= SMALL or small == SMALL_ROWS else Worth.SMALL,
    )


Rate = tuple[Site, float, str]
"""Where a learning rate is written (or the call that takes torch's own), what it is, and what it becomes."""
