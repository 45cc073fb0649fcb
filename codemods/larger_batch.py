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

    Two values change and no code: ``loss / 1``, ``% 1 == 0`` and a loop over ``range(1)`` stay. The batch grows up to
    64 samples, and what is left stays accumulated. It needs the memory of the larger batch; whether a still larger one
    fits is measured with your data, not guessed.

    The same two numbers are settings of transformers' ``Trainer``::

        args = TrainingArguments("out", per_device_train_batch_size=32, gradient_accumulation_steps=1)

When refused
    Refused where the loss is not divided by the number of accumulated batches, where the gradients are cleared or
    clipped or the rate is scheduled with every small batch, where all samples are less than a larger batch that
    ``drop_last`` would leave out, where a comment may say why a value is as it is, where the training ends after a
    number of small batches (``while``), two loaders are read side by side, and where the loop catches an out-of-memory
    error, which would skip batches. Nothing is said of batches that come from elsewhere than a ``DataLoader``.

    Without accumulation, batches of up to 8 samples become batches of 64 (32 for the ``Trainer``), and batches of up to
    32 samples that lie in memory as tensors, batches of 256: a recipe, as the learning rate would have to grow with
    them, which is yours to decide. It is refused for batches of one sample, whose samples may differ in shape, and
    where several processes share the batches.

    Of the settings of the ``Trainer`` it is refused where they tell that memory limits the batch (gradient
    checkpointing, a model in 16 bits or quantized), beside DeepSpeed, where the script's own trainer computes the loss
    or builds the loaders, and where a setting is read or changed elsewhere or a comment may say why it is so.

Risk
    equivalent where the update is the mean over the same samples, as a comparison has to show: losses over unpadded
    tokens, pairs of samples and last, shorter batches may weigh samples otherwise. recipe with BatchNorm, whose
    statistics are those of the batch, where the number of samples is known not to be divisible, under the ``Trainer``,
    and without accumulation.

Measured
    12 % for GPT-2 124M, which a small batch already fills (Raschka, LLMs-from-scratch ch05/10); far more where the GPU
    waits for the next kernel to be started.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.assumptions import LEARNS_IN_LARGER, ON_GPU, Assumption
from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site
from turbofix.nodes import walk
from turbofix.program.evidence import of_loader, of_value
from turbofix.program.model import Accumulation, Argument, Framework, Loader, Step, Training, TrainingProgram
from turbofix.records import dataclass

from ._loaders import at, called, is_inside, is_telling, mend_help, node_of
from ._precision import on_a_gpu
from ._trainers import LOADING, STEPPING, by_deepspeed, is_off, stays_on_cpu
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.12, source="GPT-2 124M: 12 % (Raschka, LLMs-from-scratch ch05/10)"),
    known_as=("batch size", "less gradient accumulation"),
    assumes=(LEARNS_IN_LARGER, ON_GPU),
)

SMALL, ENOUGH = 8, 64
"""A batch of at most so many samples is small, and what it becomes."""

JOINED = 16
"""Accumulated batches of at most so many samples are joined, up to what is enough."""

SMALL_ROWS, ENOUGH_ROWS = 32, 256
"""The same for samples that lie in memory as tensors: a step over a few rows is nothing but the start of kernels."""

ENOUGH_TEXTS = 32
"""What a small batch of the ``Trainer`` becomes."""

WHOLE_BATCH = ("BatchNorm", "SyncBatchNorm")
"""Layers that look at the batch as a whole."""

BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
"""The two settings of transformers' trainer."""

OTHER_RATE = "the learning rate has to grow with them (in proportion for SGD, with the square root for Adam)"


@dataclass(frozen=True)
class Plan:
    """The values and what becomes of them; ``loops`` run for each small batch."""

    values: tuple[tuple[Site, int], ...]
    loops: tuple[Site, ...] = ()


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Training steps on small batches."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework is not Framework.PYTORCH:
        return
    for loader in program.loaders:
        steps = [step for step in program.steps if loader.site in step.loaders]
        size = one_number(loader.argument("batch_size"))
        if not steps or size is None or loader.subclass is not None:
            continue
        accumulation = steps[0].accumulation
        rows = (loader.dataset.kind == "tensors" or loader.dataset.table) and not any(
            (model := program.model(site)) is None or any("Conv" in layer for layer in model.layers)
            for step in steps
            for site in step.models
        )
        enough = ENOUGH_ROWS if rows else ENOUGH
        assumes = on_a_gpu(program)
        if accumulation is None and size <= (SMALL_ROWS if rows else SMALL) and assumes is not None:
            yield grown(program, loader, norm_of(program, steps), size, enough, assumes)
        elif accumulation is not None and len(steps) == 1:
            yield from accumulated(program, loader, steps[0], accumulation, size)


def norm_of(program: TrainingProgram, steps: list[Step]) -> str | None:
    """A layer of the steps' models that looks at the batch as a whole."""
    models = [model for step in steps for site in step.models if (model := program.model(site)) is not None]
    layers = {layer.rpartition(".")[2] for model in models for layer in model.layers}
    layers |= {call.qualname.rpartition(".")[2] for step in steps for call in step.calls}
    return min((each for each in layers if each.startswith((*WHOLE_BATCH, "batch_norm"))), default=None)


def grown(  # noqa: PLR0913
    program: TrainingProgram,
    loader: Loader,
    norm: str | None,
    size: int,
    enough: int,
    assumes: tuple[Assumption, ...],
) -> Finding | Refusal:
    """A step for each small batch: a larger one is another training, with another learning rate."""
    batch = loader.argument("batch_size")
    beside = f", and {norm} sees other statistics" if norm else ""
    many = "batches of one sample" if size == 1 else f"batches of {size} samples"
    message = f"{called(loader)} gives {many}, which rarely fill a GPU; batches of {enough} change the recipe: "
    message += OTHER_RATE + beside
    message += read_elsewhere(program, loader)
    seen = of_loader(program, loader, "batch_size")
    reason = why_not_written(batch)
    if reason is None and size == 1:
        reason = "nothing shows that the samples have one shape, as a larger batch needs"
    elif reason is None and program.distributed:
        reason = "several processes share the batches, and how they do is yours to say"
    if reason is not None or batch.edit_at is None:
        return codemod.refuse(place(loader), message, reason or "", risk=Risk.RECIPE, evidence=seen)
    plan = Plan(((batch.edit_at, enough),))
    rests = (LEARNS_IN_LARGER, *assumes)
    return codemod.finding(place(loader), message, plan=plan, risk=Risk.RECIPE, evidence=seen, assumes=rests)


def read_elsewhere(program: TrainingProgram, loader: Loader) -> str:
    """What a message adds where the batch size is read for something else than loaders."""
    given = [each.argument("batch_size").site for each in program.loaders]
    given += [each.mapping_entries.get("batch_size") for each in program.loaders]
    other = next((read for read in loader.argument("batch_size").reads if read not in given), None)
    return f"; the number is read on {other.line_from(place(loader).path)}, too" if other is not None else ""


def why_not_written(*values: Argument) -> str | None:
    """What keeps a value from being changed where it stands."""
    if any(each.edit_at is None for each in values):
        return "where the batch size or the number of accumulated batches is written could not be seen"
    comment = next((each.comment for each in values if each.comment and is_telling(each.comment)), None)
    return f"a comment beside the value may say why it is so: {comment.strip()}" if comment else None


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Trainings of transformers on small batches, whose gradients may be summed."""
    for training in program.trainings:
        batch, steps = training.argument(BATCH), training.argument(STEPS)
        size, many = one_number(batch), 1 if steps.state == "absent" else one_number(steps)
        if size is None or many is None or size < 2 or stays_on_cpu(training):
            continue
        if not is_off(training.argument("auto_find_batch_size")):
            continue  # it looks for the largest that fits by itself
        factor = factor_of(size, many)
        if many == 1 and size <= SMALL:
            message = (
                f"the trainer takes batches of {size} samples, which rarely fill a GPU; batches of {ENOUGH_TEXTS} "
            )
            message += f"change the recipe: {OTHER_RATE}"
            values: tuple[tuple[Site | None, int], ...] = ((batch.edit_at, ENOUGH_TEXTS),)
        elif factor > 1 and size <= JOINED:
            message = joined(size, many, factor)
            message += "; that changes the recipe a little: the number of samples may not be divisible by both"
            values = ((batch.edit_at, size * factor), (steps.edit_at, many // factor))
        else:
            continue
        given = (BATCH, STEPS)[: len(values)]
        seen = tuple(of_value(name, training.argument(name), training.site) for name in given)
        reason = why_not_under_trainer(program, training, given)
        where = batch.edit_at or training.site
        if reason is not None:
            yield codemod.refuse(where, message, reason, risk=Risk.RECIPE, evidence=seen)
            continue
        plan = Plan(tuple((site, value) for site, value in values if site is not None))
        rests = (LEARNS_IN_LARGER,)
        yield codemod.finding(where, message, plan=plan, risk=Risk.RECIPE, evidence=seen, assumes=rests)


def why_not_under_trainer(program: TrainingProgram, training: Training, names: tuple[str, ...]) -> str | None:
    """What keeps the settings of a trainer from being changed, or tells that the batch is as large as memory allows."""
    if not is_off(training.argument("gradient_checkpointing")):
        return "it does without its activations (gradient_checkpointing): memory is what limits the batch"
    if training.precision == "other":
        return "the model is in 16 bits or quantized, which tells that memory limits the batch"
    if by_deepspeed(training):
        return "DeepSpeed's configuration may name the batch, and must say the same"
    own = sorted(training.overrides & (STEPPING | LOADING))
    if own:
        return f"the script's own trainer has a `{own[0]}`, which may count batches or compare their samples"
    reasons = (why_not_setting(program, training, name, "N") for name in names)
    return next(filter(None, reasons), None) or why_not_written(*(training.argument(name) for name in names))


def factor_of(size: int, many: int) -> int:
    """How many accumulated batches of a size are joined to one."""
    return max((each for each in range(1, many + 1) if many % each == 0 and size * each <= ENOUGH), default=1)


def joined(size: int, many: int, factor: int) -> str:
    """What is said of small batches whose gradients are summed."""
    return (
        f"every update takes {many} forward and backward passes over batches of {size}; "
        f"with batches of {size * factor} it takes {many // factor} (and the memory of {size * factor} samples)"
    )


def one_number(argument: Argument) -> int | None:
    """The number that an argument is, or that its option has as default."""
    if argument.state in ("value", "option") and len(argument.values) == 1 and type(argument.values[0]) is int:
        return argument.values[0]
    return None


def place(loader: Loader) -> Site:
    """Where a person would change the batch size."""
    batch = loader.argument("batch_size")
    return loader.site if batch.edit_at is None or batch.edit_at == batch.site else batch.edit_at


def accumulated(
    program: TrainingProgram, loader: Loader, step: Step, accumulation: Accumulation, size: int
) -> Iterator[Finding | Refusal]:
    """A step that sums the gradients of several small batches."""
    many, batch = one_number(accumulation.steps), loader.argument("batch_size")
    factor = factor_of(size, many) if many is not None and 0 < size <= JOINED else 1
    if many is None or factor == 1:
        return
    message = joined(size, many, factor) + read_elsewhere(program, loader)
    told = (
        *of_loader(program, loader, "batch_size"),
        of_value("the number of accumulated batches", accumulation.steps, accumulation.guard),
    )
    reason = why_not(program, loader, step, accumulation, size * factor)
    if reason is not None:
        yield codemod.refuse(place(loader), message, reason, evidence=told)
        return
    norm, length = norm_of(program, [step]), loader.dataset.length
    different = None
    if norm is not None:
        different = f"{norm} sees the statistics of larger batches"
    elif length is not None and length % (size * many):
        different = f"{length} samples are no multiple of {size * many}: the last update weighs them differently"
    if different is not None:
        message += f"; that changes the recipe a little: {different}"
    assert batch.edit_at is not None and accumulation.steps.edit_at is not None
    values = ((batch.edit_at, size * factor), (accumulation.steps.edit_at, many // factor))
    loops = (step.loop.site, *(act.function for act in step.backwards if act.function is not None))
    yield codemod.finding(
        place(loader),
        message,
        plan=Plan(values, loops),
        risk=Risk.EQUIVALENT if different is None else Risk.RECIPE,
        evidence=told,
        assumes=(LEARNS_IN_LARGER,),
    )


def why_not(program: TrainingProgram, loader: Loader, step: Step, accumulation: Accumulation, size: int) -> str | None:
    """What would make the larger batch another update, or break the script."""
    reason = why_not_written(loader.argument("batch_size"), accumulation.steps)
    if reason is not None:
        return reason
    if not accumulation.divided:
        return "the loss is not divided by the number of accumulated batches, so the gradient would shrink"
    whole = accumulation.guard.kind in ("For", "AsyncFor")  # what stands beside that loop happens with every update
    loops = (step.loop.site.kind, step.epoch_loop.site.kind if step.epoch_loop is not None else "")
    if not whole and "While" in loops:
        return "the training may end after a number of small batches: its loop is a `while`"
    for act, what in (
        *((clip, "the gradients are clipped") for clip in step.clips),
        *((each, "the learning rate is scheduled") for each in step.scheduler_steps),
    ):
        if is_inside(act.site, accumulation.guard) == whole:
            return f"{what} with every small batch ({at(act.site.line)}), not with every update"
    for clear in step.zero_grads:
        elsewhere = clear.function != step.function and clear.guard.kind == "always" and not whole
        inside = is_inside(clear.site, accumulation.guard)
        if inside if whole else (is_inside(clear.site, step.loop.site) and not inside) or elsewhere:
            return f"the gradients are cleared with every small batch ({at(clear.site.line)}), so they never add up"
    if len(step.backwards) != 1:
        return "several losses are sent backward in one step"
    length, drops = loader.dataset.length, loader.argument("drop_last")
    if length is not None and length < size and drops.state != "absent" and (not drops.known or any(drops.values)):
        return f"{length} samples are less than one larger batch, and `drop_last` would leave out all of them"
    if loader.together or len(step.loaders) != 1:
        return "the batches of several loaders are read side by side"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Change the values."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    for node in (each for loop in plan.loops for each in walk(node_of(edit, loop) or ast.Pass())):
        if isinstance(node, ast.Try):
            raise Refuse(
                f"the loop catches exceptions ({at(node.lineno)}); "
                "a larger batch that runs out of memory would be skipped in silence"
            )
    for site, value in plan.values:
        mend_help(edit, site, edit.text(site), str(value))
        edit.replace(site, str(value))
