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
    clipped, the learning rate is set or weights are averaged with every small batch, where the first update comes after
    one batch alone, where the batch size, the number of accumulated batches or the length of the loader is used for
    something else (shapes, hidden states, schedules), where the training ends after a number of batches or the loop
    catches exceptions (an out-of-memory error would skip batches), and for batches of one sample, whose samples may
    differ in shape. Whatever else is done for each small batch is refused, too: what counts and comes back into the
    loss, what the loop or the model keeps for the next one, what is saved or decided by a number or by what a batch
    holds, samples that are taken by their number, hooks, two loaders side by side, a loop that does not take all of
    them, and a loss of which a part is not divided. Nothing is said of batches that come from elsewhere than a
    ``DataLoader``.

    Without accumulation, batches of up to 16 samples become batches of 64: a recipe, as the learning rate would have to
    grow with them, which is yours to decide. It is refused where the batch size is used for something else too.

    Of the settings of the ``Trainer`` it is refused where they tell that memory limits the batch (gradient
    checkpointing, a model in 16 bits or quantized), beside DeepSpeed, where the script's own trainer computes the loss
    or builds the loaders, and where a setting is read or changed elsewhere or a comment may say why it is so.

Risk
    equivalent where the update is provably the mean over the same samples: the number of samples is known and
    divisible by the product, every layer and call between a batch and its loss is known to compute each sample by
    itself, and the loss is a mean over samples. recipe everywhere else: under the ``Trainer``, with BatchNorm or a mean
    along the batch, losses over unpadded tokens or pairs of samples, or a number of samples that is unknown or that an
    option may change (the last update of an epoch then weighs its samples differently).

Measured
    12 % for GPT-2 124M, which a small batch already fills (Raschka, LLMs-from-scratch ch05/10); far more where the GPU
    waits for the next kernel to be started.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.assumptions import ON_GPU, Assumption
from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site
from turbofix.nodes import parse, walk
from turbofix.program.evidence import of_loader, of_value
from turbofix.program.microbatches import is_per_sample
from turbofix.program.model import (
    Accumulation,
    Argument,
    Called,
    Evaluation,
    Framework,
    Loader,
    Region,
    Step,
    Training,
    TrainingProgram,
)
from turbofix.records import dataclass

from ._batching import is_aligned, is_paced, leads_with, line_of_length
from ._loaders import at, called, is_inside, is_telling, mend_help, node_of, whole
from ._precision import on_a_gpu
from ._trainers import LOADING, STEPPING, by_deepspeed, is_off, stays_on_cpu
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.12, source="GPT-2 124M: 12 % (Raschka, LLMs-from-scratch ch05/10)"),
    known_as=("batch size", "less gradient accumulation"),
    assumes=(ON_GPU,),
)

SMALL = 16
"""A batch of at most so many samples is small."""

ENOUGH = 64
"""Accumulated batches are joined up to so many samples."""

WHOLE_BATCH = ("BatchNorm", "SyncBatchNorm")
"""Layers that look at the batch as a whole."""

MEAN_LOSSES = {
    "torch.nn": (
        "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HuberLoss", "L1Loss", "MSELoss",
        "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss",
        "SmoothL1Loss", "SoftMarginLoss",
    ),
    "torch.nn.functional": (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "gaussian_nll_loss", "huber_loss",
        "l1_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
        "nll_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss",
    ),
}  # fmt: skip
"""Losses that are a mean over samples: the mean over several small batches is the mean over the large one."""

IGNORING = {
    *("torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss"),
    *("torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss"),
}
"""Losses that leave out targets of -100."""

PAIRS = {"torch.arange", "torch.eye", "torch.cdist", "torch.pdist", "torch.nn.functional.cosine_similarity"}
"""Called beside the loss, they tell that samples of one batch are compared with one another."""


SHAPED = {"view", "reshape", "expand", "repeat", "zeros", "ones", "full", "empty", "rand", "randn"}
"""Calls that are given a shape, in which the batch size may stand as a number."""


@dataclass(frozen=True)
class Plan:
    """The two values and what becomes of them; the rest is what has to be looked at in the text first.

    ``epochs`` is the loop over epochs, ``functions`` hold a backward outside of the ``loop``.
    """

    batch: tuple[Site, int]
    steps: tuple[Site, int]
    loop: Site
    guard: Site
    counter: str | None
    counter_start: int
    shapes: tuple[Site, ...]
    epochs: Site | None
    functions: tuple[Site, ...]
    loader: Site
    name: str | None


BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
"""The two settings of transformers' trainer."""


@dataclass(frozen=True)
class Values:
    """The values of a trainer's settings, and what becomes of them."""

    values: tuple[tuple[Site, int], ...]


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
        if not steps or size is None or size > SMALL or loader.subclass is not None:
            continue
        accumulation = steps[0].accumulation
        if accumulation is None and size > 1 and (assumes := on_a_gpu(program)) is not None:
            yield grown(program, loader, steps, size, assumes)
        elif accumulation is not None and len(steps) == 1 and program.complete and not loader.open_mapping:
            yield from accumulated(program, loader, steps[0], accumulation, size)


def grown(
    program: TrainingProgram, loader: Loader, steps: list[Step], size: int, assumes: tuple[Assumption, ...]
) -> Finding | Refusal:
    """A step for each small batch: a larger one is another training, with another learning rate."""
    batch = loader.argument("batch_size")
    norms = {
        layer.rpartition(".")[2]
        for step in steps
        for site in step.models
        if (model := program.model(site)) is not None
        for layer in model.layers
        if layer.rpartition(".")[2].startswith(WHOLE_BATCH)
    }
    beside = f", and {min(norms)} sees other statistics" if norms else ""
    message = (
        f"{called(loader)} gives batches of {size} samples, which rarely fill a GPU; batches of {ENOUGH} change the "
        "recipe: the learning rate has to grow with them (in proportion for SGD, with the square root for Adam)"
        f"{beside}"
    )
    seen = of_loader(program, loader, "batch_size")
    reason = None
    if batch.edit_at is None:
        reason = "where the batch size is written could not be seen"
    elif any(read not in passed_on(program) for read in batch.reads):
        line = next(read for read in batch.reads if read not in passed_on(program)).line_from(loader.site.path)
        reason = f"the batch size is used for something else too ({line}): look there before you change it"
    elif batch.comment and is_telling(batch.comment):
        reason = f"a comment beside the value may say why it is so: {batch.comment.strip()}"
    elif program.distributed:
        reason = "several processes share the batches, and how they do is yours to say"
    elif (fixed := next((site for number, site in program.fixed_sizes if number == size), None)) is not None:
        reason = f"a size may be the batch size, as a number ({fixed.line_from(loader.site.path)})"
    if reason is not None or batch.edit_at is None:
        return codemod.refuse(place(loader), message, reason or "", risk=Risk.RECIPE, evidence=seen)
    plan = Values(((batch.edit_at, ENOUGH),))
    return codemod.finding(place(loader), message, plan=plan, risk=Risk.RECIPE, evidence=seen, assumes=assumes)


def passed_on(program: TrainingProgram) -> list[Site | None]:
    """Where loaders are given their batch size."""
    given = [each.argument("batch_size").site for each in program.loaders]
    return [*given, *(each.mapping_entries.get("batch_size") for each in program.loaders)]


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Trainings of transformers that sum the gradients of several small batches."""
    for training in program.trainings:
        batch, steps = training.argument(BATCH), training.argument(STEPS)
        size, many = one_number(batch), one_number(steps)
        if size is None or many is None or not 1 < size <= SMALL or many < 2 or stays_on_cpu(training):
            continue
        if not is_off(training.argument("auto_find_batch_size")):
            continue  # it looks for the largest that fits by itself
        factor = factor_of(size, many)
        if factor == 1:
            continue
        message = joined(size, many, factor)
        place = batch.edit_at or training.site
        seen = (of_value(BATCH, batch, training.site), of_value(STEPS, steps, training.site))
        reason = why_not_under_trainer(program, training)
        if reason is not None:
            yield codemod.refuse(place, message, reason, risk=Risk.RECIPE, evidence=seen)
            continue
        assert batch.edit_at is not None and steps.edit_at is not None
        message += "; that changes the recipe a little: the number of samples may not be divisible by both"
        plan = Values(((batch.edit_at, size * factor), (steps.edit_at, many // factor)))
        yield codemod.finding(place, message, plan=plan, risk=Risk.RECIPE, evidence=seen)


def why_not_under_trainer(program: TrainingProgram, training: Training) -> str | None:
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
    for name in (BATCH, STEPS):
        given = training.argument(name)
        reason = why_not_setting(program, training, name, "N")
        if reason is None and given.edit_at is None:
            reason = "where the batch size or the number of accumulated batches is written could not be seen"
        if reason is None and given.reads:
            reason = f"{name} is used for something else too ({given.reads[0].line_from(program.entry)})"
        if reason is None and given.comment and is_telling(given.comment):
            reason = f"a comment beside the value may say why it is so: {given.comment.strip()}"
        if reason is not None:
            return reason
    if program.counting is not None:
        return f"{program.counting.why} ({program.counting.site.line_from(training.site.path)})"
    for number, site in program.fixed_sizes:
        if number == one_number(training.argument(BATCH)):
            return f"a size may be the batch size, as a number ({site.line_from(training.site.path)})"
    return None


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


def is_on(argument: Argument) -> bool:
    """Whether a flag may be set."""
    return argument.state != "absent" and (not argument.known or any(argument.values))


def place(loader: Loader) -> Site:
    """Where a person would change the batch size."""
    batch = loader.argument("batch_size")
    return loader.site if batch.edit_at is None or batch.edit_at == batch.site else batch.edit_at


def accumulated(
    program: TrainingProgram, loader: Loader, step: Step, accumulation: Accumulation, size: int
) -> Iterator[Finding | Refusal]:
    """A step that sums the gradients of several small batches."""
    many = one_number(accumulation.steps)
    batch = loader.argument("batch_size")
    if many is None or many < 2 or size < 1:
        return
    factor = factor_of(size, many)
    left = many // factor
    message = joined(size, many, factor)
    told = (
        *of_loader(program, loader, "batch_size"),
        of_value("the number of accumulated batches", accumulation.steps, accumulation.guard),
    )
    reason = why_not(program, loader, step, accumulation, size)
    if reason is not None or factor == 1:
        if factor > 1 and reason is not None:
            yield codemod.refuse(place(loader), message, reason, evidence=told)
        return
    different = why_recipe(program, loader, step, size * many) or why_validated(program, loader, size, size * factor)
    if different is not None:
        message += f"; that changes the recipe a little: {different}"
    assert batch.edit_at is not None and accumulation.steps.edit_at is not None
    plan = Plan(
        (batch.edit_at, size * factor),
        (accumulation.steps.edit_at, left),
        step.loop.site,
        accumulation.guard,
        step.loop.counter,
        step.loop.counter_start,
        tuple(call.site for call in step.calls if is_shaped(call, size)),
        step.epoch_loop.site if step.epoch_loop is not None else None,
        tuple(sorted({act.function for act in step.backwards if act.function is not None} - {step.function})),
        loader.site,
        loader.name,
    )
    risk = Risk.EQUIVALENT if different is None else Risk.RECIPE
    yield codemod.finding(place(loader), message, plan=plan, risk=risk, evidence=told)


# --- what makes it wrong ------------------------------------------------------------------------------------------


def why_not(program: TrainingProgram, loader: Loader, step: Step, accumulation: Accumulation, size: int) -> str | None:
    """What would make the larger batch another update, or break the script."""
    batch, many = loader.argument("batch_size"), accumulation.steps
    if size == 1:
        return "with batches of one sample nothing shows that the samples have one shape, as a larger batch needs"
    if batch.edit_at is None or many.edit_at is None:
        return "where the batch size or the number of accumulated batches is written could not be seen"
    if not accumulation.divided:
        return "the loss is not divided by the number of accumulated batches, so the gradient would shrink"
    whole = is_inner_loop(accumulation)  # then what stands beside it in the step happens with every update
    loops = (step.loop.site.kind, step.epoch_loop.site.kind if step.epoch_loop is not None else "")
    if not whole and "While" in loops:
        return "the training may end after a number of small batches: its loop is a `while`"
    comment = next((each for each in (batch.comment, many.comment) if each and is_telling(each)), None)
    if comment is not None:
        return f"a comment beside the value may say why it is so: {comment.strip()}"
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
    if not whole and any(is_inside(each.loop.site, step.loop.site) for each in program.evaluations):
        return "the loop evaluates every so many small batches, and would do so less often"
    length, drops = loader.dataset.length, loader.argument("drop_last")
    if length is not None and length < size * factor_of(size, one_number(many) or 1) and is_on(drops):
        return f"{length} samples are less than one larger batch, and `drop_last` would leave out all of them"
    if loader.together or len(step.loaders) != 1:
        return "the batches of several loaders are read side by side"
    reason = why_read(program, step, accumulation, loader)
    if reason is None and accumulation.apart is not None:
        return f"{accumulation.apart.why} ({accumulation.apart.site.line_from(loader.site.path)})"
    for number, site in (*accumulation.numbers, *program.fixed_sizes) if reason is None else ():
        if number == size:
            return f"a size may be the batch size, as a number ({site.line_from(loader.site.path)})"
    return reason


def is_inner_loop(accumulation: Accumulation) -> bool:
    """Whether the small batches of an update are a loop of their own inside the step, not a test on its count."""
    return accumulation.guard.kind in ("For", "AsyncFor")


def why_read(program: TrainingProgram, step: Step, accumulation: Accumulation, loader: Loader) -> str | None:
    """Where the two values are used for something that a larger batch would change."""
    allowed = passed_on(program)
    for read in loader.argument("batch_size").reads:
        if read not in allowed:
            return f"the batch size is used for something else too ({at(read.line)})"
    shown = [sync.statement for sync in step.syncs] + [show.statement for show in step.shows]
    for read in accumulation.steps.reads:
        known = read.path == accumulation.guard.path and read.line == accumulation.guard.line
        known = known or any(is_inside(read, division) for division in accumulation.divisions)
        if not known and not any(is_inside(read, statement) for statement in shown):
            return f"the number of accumulated batches is used for something else too ({at(read.line)})"
    return None


def is_shaped(call: Called, size: int) -> bool:
    """Whether a call is given a shape with a number of that size in it."""
    return call.qualname.rpartition(".")[2] in SHAPED and size in call.constants


# --- what makes it another recipe ---------------------------------------------------------------------------------


def why_recipe(program: TrainingProgram, loader: Loader, step: Step, together: int) -> str | None:
    """What keeps the update from being provably the same; None where it is."""
    for model in (program.model(site) for site in step.models):
        if model is None:
            return "its model is not known here"
        for layer in sorted(model.layers):
            if layer.rpartition(".")[2].startswith(WHOLE_BATCH):
                return f"the model has {layer.rpartition('.')[2]}, whose statistics are those of the batch"
        if not model.layers_complete:
            return "not every layer of its model is known here"
        if not all(map(is_per_sample, model.layers)):
            return "not every layer of its model is known to compute each sample by itself"
    if not step.models:
        return "its model is not known here"
    loss = step.loss
    known = [name for name in loss.qualnames if name.rpartition(".")[2] in MEAN_LOSSES.get(name.rpartition(".")[0], ())]
    if loss.certainty != "seen" or len(known) != len(loss.qualnames) or set(loss.reductions) != {"mean"}:
        return "its loss is not known to be a mean over samples"
    if not loss.plain or (step.accumulation is not None and step.accumulation.ignored and set(known) & IGNORING):
        return "its loss may leave out or weigh some targets, and how many of them a batch has differs"
    for call in step.calls:
        if call.qualname.endswith(".batch_norm"):
            return f"the statistics of batch_norm are those of the batch ({at(call.site.line)})"
        if call.qualname in PAIRS and step.forward is not None and is_between(call.site, step.forward):
            return f"samples of one batch seem to be compared with one another ({at(call.site.line)})"
    mixed = step.accumulation.mixed if step.accumulation is not None else None
    if mixed is not None:
        return f"{mixed.why} ({mixed.site.line_from(loader.site.path)})"
    if loader.collate != "default":
        return "its collate_fn may pad samples to the longest of their batch"
    if step.scheduler_steps:
        return "the learning rate is scheduled by updates, and how many there are may be counted in small batches"
    for name in ("sampler", "batch_sampler"):
        if loader.argument(name).state != "absent" and set(loader.argument(name).values) != {None}:
            return "a sampler decides how many samples an epoch has"
    if program.distributed:
        return "several ranks share the samples"
    length = loader.dataset.length
    if length is None:
        return "how many samples there are is not known (the last update of an epoch may weigh them differently)"
    if length % together:
        return f"{length} samples are no multiple of {together}: the last update of an epoch weighs them differently"
    if loader.dataset.counted_by:
        said = " and ".join(f"`{each}`" for each in loader.dataset.counted_by)
        return f"{said} may be given another number of samples (the last update of an epoch may weigh them differently)"
    return None


def is_between(site: Site, region: Region) -> bool:
    """Whether a place lies in the statements of a region."""
    return site.path == region.first.path and region.first.line <= site.line <= region.last.end_line


def why_validated(program: TrainingProgram, loader: Loader, size: int, larger: int) -> str | None:
    """Whether an evaluation with the same batch size would average over batches of other sizes."""
    batch = loader.argument("batch_size")
    for other in program.loaders:
        same = other.argument("batch_size").edit_at
        if other.site == loader.site or same != batch.edit_at or not evaluations_of(program, other):
            continue
        length = other.dataset.length
        equal = length is not None and length % size == 0 and (length % larger == 0 or length <= larger)
        if not equal:
            return f"{called(other)} gets the larger batch too, and its mean over batches may weigh samples differently"
    return None


def evaluations_of(program: TrainingProgram, loader: Loader) -> list[Evaluation]:
    """The evaluations that read a loader."""
    return [each for each in program.evaluations if loader.site in each.loaders]


# --- the rewrite --------------------------------------------------------------------------------------------------


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Change the two values."""
    plan = finding.plan
    if isinstance(plan, Values):
        for site, value in plan.values:
            mend_help(edit, site, edit.text(site), str(value))
            edit.replace(site, str(value))
        return
    assert isinstance(plan, Plan)
    refuse_surprises(edit, plan)
    for shape in plan.shapes:
        if leads_with(edit.text(shape), old := edit.text(plan.batch[0])):
            raise Refuse(f"the forward pass has a shape with the number {old} in it ({at(shape.line)})")
    for site, value in (plan.batch, plan.steps):
        mend_help(edit, site, edit.text(site), str(value))
        edit.replace(site, str(value))


def is_numbered_part(node: ast.AST) -> bool:
    """``images[:4]``: a part of the first dimension between numbers, which is another share of a larger batch."""
    if not isinstance(node, ast.Subscript):
        return False
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    bounds = (first.lower, first.upper) if isinstance(first, ast.Slice) else ()
    return any(isinstance(each, ast.Constant) and each.value for each in bounds)


def refuse_surprises(edit: Edit, plan: Plan) -> None:
    """Raise Refuse where the loop does more with its count than to step every so many batches."""
    loop = node_of(edit, plan.loop)
    parts = [part for part in (loop, *(node_of(edit, function) for function in plan.functions)) if part is not None]
    for node in (each for part in parts for each in walk(part)):
        if isinstance(node, ast.Try):
            raise Refuse(
                f"the loop catches exceptions ({at(node.lineno)}); "
                "a larger batch that runs out of memory would be skipped in silence"
            )
    for node in walk(loop) if loop is not None else ():
        if is_numbered_part(node):
            raise Refuse(f"a part of a batch is taken by numbers ({at(getattr(node, 'lineno', 0))})")
    guard = node_of(edit, plan.guard)
    if isinstance(guard, ast.For):  # the loop around it counts updates, as before
        leaving = next((node for node in walk(guard) if isinstance(node, (ast.Break, ast.Continue, ast.Return))), None)
        if leaving is not None:
            raise Refuse(f"a small batch may be left out ({at(leaving.lineno)})")
        return
    for node in walk(loop) if loop is not None else ():
        if isinstance(node, (ast.Break, ast.Return)):
            raise Refuse(f"the loop may be left early ({at(node.lineno)}), after a number of small batches")
        if isinstance(node, (ast.Name, ast.Attribute)) and is_paced(node):
            raise Refuse(f"the loop sets the learning rate or averages weights by its own count ({at(node.lineno)})")
    tree = parse(whole(edit, plan.loader))
    epochs = node_of(edit, plan.epochs) if plan.epochs is not None else None
    within = loop if plan.loop.path == plan.loader.path else None
    line = line_of_length(tree, node_of(edit, plan.loader), epochs, plan.name or "", within)
    if line is not None:
        raise Refuse(f"the number of small batches is used for something else too ({at(line)})")
    if loop is None or not isinstance(guard, ast.If) or not is_aligned(guard.test, plan.counter, plan.counter_start):
        raise Refuse(
            f"the test on {at(plan.guard.line)} is not seen to hold after every full group of batches, "
            "so the updates would be others"
        )
