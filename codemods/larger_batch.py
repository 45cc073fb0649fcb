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
    a batch has few tokens. The learning rate grows where it is written. Batches of up to 8 of an evaluation become at
    least 32, and of up to 4 under the ``Trainer`` eight times as large.

When refused
    Refused for torchvision's detectors, where the loss is not divided by the number of accumulated batches, where the
    gradients are cleared or clipped or the rate is scheduled with every small batch, where ``drop_last`` would leave
    out all samples, where a comment gives a reason for a value or a list of sizes is tried in turn, where the training
    ends after a number of small batches (``while``), an evaluation takes one sample for the whole batch, one picture
    at a time is read beside InstanceNorm, two loaders are read side by side, the loop catches an out-of-memory error,
    or several processes share the batches. Of the
    ``Trainer`` where its settings tell that memory limits the batch, beside DeepSpeed, where its loss or its loaders
    are the script's own or a setting is changed elsewhere.

Risk
    equivalent where the update is the mean over the same samples. recipe with BatchNorm, where the number of samples is
    known not to be divisible, under the ``Trainer``, and without accumulation: the learning rate has to grow, too.

Measured
    12 % for GPT-2 124M, which a small batch already fills (Raschka, LLMs-from-scratch ch05/10).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import LEARNS_IN_LARGER, ON_GPU, ONE_SIZE, OPTION_DEFAULT, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import dotted, targets
from turbofix.source.nodes import walk
from turbofix.source.site import STUB
from turbofix.training.data.sizes import is_bound_by_launches
from turbofix.training.evidence import of_loader, of_value
from turbofix.training.model import (
    Accumulation,
    Argument,
    Dataset,
    Framework,
    Loader,
    Model,
    Step,
    Training,
    TrainingProgram,
)

from ._loaders import (
    SMALL_IMAGES,
    at,
    called,
    is_in_the_way,
    is_inside,
    is_read_again,
    is_telling,
    mend_help,
    node_of,
    reason_beside,
    said_beside,
)
from ._pages import pages_of
from ._precision import ENVIRONMENTS, is_detector, on_a_gpu
from ._trainers import LOADING, STEPPING, by_deepspeed, is_off, limit, on_gpu, rests_on_gpu, stays_on_cpu
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.12, source="GPT-2 124M: 12 % (Raschka, LLMs-from-scratch ch05/10)"),
    known_as=("batch size", "less gradient accumulation"),
    assumes=(LEARNS_IN_LARGER, ONE_SIZE, ON_GPU, OPTION_DEFAULT),
    otherwise="no small batch was recognised here that could grow",
)

FEWEST, TINY, SMALL, NARROW, ENOUGH = 4, 8, 16, 32, 64
"""A batch of at most so many samples is too few for an update, tiny, or small; or small where kernels hardly start; and
what is enough."""

SMALL_ROWS, ENOUGH_ROWS, ENOUGH_TEXTS, FEW_POSITIONS, ENOUGH_POSITIONS, ENOUGH_TOLD = 64, 256, 32, 4096, 16384, 1024
"""The same for rows of a table and for pictures of 32 by 32: a step over a few is nothing but the start of kernels;
what is enough for the ``Trainer``, whose own default is a batch of 8; for the tokens of windows; for nothing to say."""

LARGE = regex(r"[Rr]esize\w*\(\D{0,9}([6-9]\d|\d{3})|\b(224|227|299|384)\b")
"""What tells that pictures are made larger: the number that they are resized to, or one that networks are made for."""

ENLARGING = regex(
    r"\.(ConvTranspose|PixelShuffle|Upsample)|For\w*(Detection|Segmentation)\b"
    r"|^(diffusers|torchvision\.models\.segmentation)\."
)
"""Layers and networks that give a picture, a number for each of its points, or the objects on a large one."""

BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
EVALUATION = "per_device_eval_batch_size"
"""Settings of transformers' trainer."""

COUNTED = ", and as many updates read {:.3g} times as many samples"
TOO_FEW = "which fill a GPU only where a sample or the model is large"

NAMED = regex(
    r"""(?i)\b(?:per_device_|micro_?|mini_?|train_)*batch_?size["']?(?::\s*int)?\s*[=:,](?:[^)\n]*default=)?\s*(\d+)\b"""
)
"""What gives the size of a batch by its name: an assignment, an argument, a field, a key, an option's default."""

SETS_RATE = regex(
    r"""\b(OneCycleLR|CyclicLR)\(|param_groups\S*?(:\s*\w+)?\[["']lr["']\]\s*[*/]?=[^=]"""
    r"""|["']params["'][^{}]*,\s*["']lr["']\s*:"""
)
"""What gives an optimizer another learning rate than its argument: a schedule's own, a line, a group's."""

ADAPTIVE = ("Adam", "AdamW")
"""Optimizers whose updates are as large where all gradients are a number of times smaller."""

FAR = 16
BY_RULE = f"in proportion for SGD up to {FAR} times, else with the square root"
OTHER_RATE = f"the learning rate has to grow with them ({BY_RULE})"
UNMEASURED = f"a run tells whether they fill the GPU: if twice as many take hardly longer, take them; {OTHER_RATE}"


Bounds = tuple[int, int, int]
"""The smallest batch, up to where batches are small, and what they become."""


@dataclass(frozen=True)
class Plan:
    """The values and what becomes of them; ``loops`` run for each small batch, ``call`` is given a batch size."""

    values: tuple[tuple[Site, int | str], ...]
    loops: tuple[Site, ...] = ()
    call: Site | None = None
    added: int | str = 0


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Training steps on small batches."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
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
        by, many = accumulation or sums, 1 if sums is None else one_number(sums)
        small, enough = bounds(program, loader, steps, size)
        if by is not None or size <= small:
            told.add(place(loader))  # who evaluates with the same number has been spoken of
        if accumulation is None and many is not None and size * many <= small + (small == FEWEST - 1 and many > 1):
            if assumes is not None:
                yield grown(program, loader, steps, (size, small, enough), assumes, told, sums)
        elif by is not None and (len(steps) == 1 or (by is sums and not program.steps)):
            yield from accumulated(program, loader, steps, by, (size, small, enough))
    told_to = (one_number(each.argument(BATCH)) for each in program.trainings)
    known = map(smallest, (*program.loaders, *by_hand(program)))
    if program.trained_at is not None and not any((*known, *told_to)):
        yield from named(program, program.trained_at)
    elif assumes is not None and not told and program.framework not in (Framework.TRANSFORMERS, Framework.DEEPSPEED):
        yield from not_small(program)


def not_small(program: TrainingProgram) -> Iterator[Refusal]:
    """The batches of a training that are not known to be small: only a run tells whether they fill a GPU."""
    for each in (*program.loaders, *by_hand(program)):
        size, steps = smallest(each), [step for step in program.steps if each.site in (*step.loaders, step.loop.site)]
        if size is not None and size <= ENOUGH_TOLD and each.role in ("training", "both"):
            if bounds(program, each, steps, size)[0] >= SMALL and not any(step.draws for step in steps):
                yield codemod.refuse(place(each), f"{who(program, each)} takes batches of {size} samples", UNMEASURED)
            return


def named(program: TrainingProgram, site: Site) -> Iterator[Refusal]:
    """What is called the size of a batch, where batches are made by what was not followed."""
    files = [module for module in program.modules.by_path.values() if module.path.suffix != STUB]
    said = [(int(found[1]), each, found.start(1)) for each in files for found in NAMED.finditer(each.text)]
    size, file, start = min((each for each in said if each[0] > 1), key=lambda each: each[0], default=(0, None, 0))
    if file is not None and size <= NARROW:
        line = file.text.count("\n", 0, start) + 1
        message = f"line {line} of {file.path.name} speaks of batches of {size} samples, {TOO_FEW}"
        yield codemod.refuse(site, message, f"who makes them was not followed; where larger ones fit, {OTHER_RATE}")


def who(program: TrainingProgram, loader: Loader) -> str:
    """What makes the batches, in words."""
    return called(loader) if loader in program.loaders else "this loop"


def by_hand(program: TrainingProgram) -> list[Loader]:
    """The loops that cut their batches themselves: what loads them is the loop."""
    cutting = [each for each in program.steps if each.cut.state != "absent"]
    return [Loader(each.loop.site, {"batch_size": each.cut}, Dataset("tensors"), "training") for each in cutting]


def smallest(loader: Loader) -> int | None:
    """The number of samples in a batch, the smallest where the script gives several; None where it is not known."""
    batch = loader.argument("batch_size")
    return min((each for each in batch.values if type(each) is int and batch.known), default=None)


def on_the_gpu(program: TrainingProgram) -> tuple[Assumption, ...] | None:
    """What is assumed of the device; None where the training is known to leave the GPU alone."""
    if program.framework is Framework.PYTORCH:
        return on_a_gpu(program)
    return None if any(on_gpu(training) is False for training in program.trainings) else ()


def summed(program: TrainingProgram) -> list[Argument]:
    """How many batches a framework sums the gradients of, where it is told to."""
    given = [owner.argument(STEPS) for owner in program.owners]
    given += [training.argument("accumulate_grad_batches") for training in program.trainings]
    return [each for each in given if each.state != "absent" and one_number(each) != 1]


def bounds(program: TrainingProgram, loader: Loader, steps: list[Step], size: int) -> tuple[int, int]:
    """Up to which size the batches of a loader are small, and what they become."""
    models = models_of(program, steps)
    layers, work = [layer for model in models for layer in model.layers], loader.dataset.work
    as_they_are = size == 1 and "decode" in work and "transform" not in work
    if as_they_are or any(layer.endswith("3d") for layer in layers) or program.libraries & ENVIRONMENTS:
        return 0, 0  # a few volumes, or a whole photograph, fill the memory; an agent's batch is a part of its method
    window = next((step.draws for step in steps if step.draws), None) if loader not in program.loaders else None
    if window is not None:
        return min(SMALL_ROWS - 1, FEW_POSITIONS // window), min(max(ENOUGH, size * 4), ENOUGH_POSITIONS // window)
    detects, evaluates = any(map(is_detector, models)), loader.role == "evaluation"
    if not (is_read_again(program, loader) and not detects if evaluates else loader.role in ("training", "both")):
        return 0, 0
    if detects or evaluates:
        return TINY, max(NARROW, size * 8)
    data = loader.dataset
    bare = data.kind == "map" and not data.work and "." not in (data.qualname or ".")
    large = any(layer.endswith(("Conv2d", "from_pretrained")) for layer in layers)
    little = data.qualname in SMALL_IMAGES and not says(program, LARGE)
    if little or ((data.kind == "tensors" or data.table or bare) and not large):
        return SMALL_ROWS, min(ENOUGH_ROWS, max(SMALL_ROWS * 2, size * 8))
    if any(map(ENLARGING.search, layers)):
        return FEWEST - 1, SMALL  # what it gives is as large as a picture, and so is what it computes on the way
    if models and all(each.products.layers and is_bound_by_launches(each.products, size) for each in models):
        convolved = [each for model in models for each in model.convolutions]
        if all(each.dims == 1 and not each.whole for each in convolved):
            small = NARROW if convolved or "decode" in work else SMALL_ROWS
            return small, max(small * 2, size * 4)
    return SMALL, max(ENOUGH, size * 4)


def says(program: TrainingProgram, pattern: re.Pattern[str]) -> bool:
    """Whether a file of the program has such a text."""
    return any(pattern.search(module.text) for module in program.modules.by_path.values())


def models_of(program: TrainingProgram, steps: list[Step]) -> list[Model]:
    """The models of some steps; all where a framework steps them."""
    sites = {site for step in steps for site in step.models}
    return [model for model in program.models if model.site in sites or not steps]


NORMS = ("BatchNorm", "SyncBatchNorm", "batch_norm")


def norm_of(program: TrainingProgram, steps: list[Step], names: tuple[str, ...] = NORMS) -> str | None:
    """A layer of the steps' models that looks at the batch as a whole."""
    layers = {layer.rpartition(".")[2] for model in models_of(program, steps) for layer in model.layers}
    layers |= {call.qualname.rpartition(".")[2] for step in steps for call in step.calls}
    return min((each for each in layers if each.startswith(names)), default=None)


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
    few = "" if one_number(batch) is not None else "as few as "
    many = f"batches of {few}{size} samples" if size > 1 else f"batches of {few}one sample"
    is_made = loader in program.loaders
    message = f"{who(program, loader)} {'gives' if is_made else 'takes'} {many}, {TOO_FEW}; "
    few_at = [(each, site) for each, site in written(batch) if type(each) is int and each <= small]
    values = tuple((site, enough) for _, site in few_at)
    values += ((sums.edit_at, 1),) if sums is not None and sums.edit_at is not None else ()
    rates: list[Rate] = []
    if evaluates:
        message += f"batches of {enough} change a figure that is averaged or summed over batches"
    else:
        rates = rates_of(program, steps, times) if len({each for each, _ in written(batch)}) == 1 else []
        rates = [each for each in rates if each[0] not in changed]
        alone = "" if sums is None else ", each with an update of its own,"
        message += f"batches of {enough}{alone} change the recipe: {growing(rates)}"
        if is_counted(program, loader, steps):
            message += COUNTED.format(times)
        elif few_at:
            message += f", an epoch has {times:.3g} times fewer updates"
        norm = norm_of(program, steps)
        message += f", and {norm} sees other statistics" if norm else ""
    same = (each for each in program.loaders if place(each) == place(loader) and each.role == "evaluation")
    leaving = next((each for each in same if is_in_the_way(each.argument("drop_last"))), None)
    message += f"; `drop_last` of {called(leaving)} leaves more samples out" if leaving is not None else ""
    alike = [site for _, site in few_at if one_number(batch) is not None and site != place(loader) != loader.site]
    message += "".join(f"; the same number on {site.line_from(place(loader).path)} grows, too" for site in alike)
    message += read_elsewhere(program, loader) + said_beside(batch)
    seen = of_loader(program, loader, "batch_size") if is_made else (of_value("the batch size", batch, loader.site),)
    given = (replace(batch, edit_at=values[0][0] if few_at else None), *((sums,) if sums is not None else ()))
    reason = why_not_written(*given) or tried_in_turn(program, values)
    if any(map(is_detector, models_of(program, steps))):
        reason = "a detector takes large pictures, of which few fit into memory: try a batch twice as large"
    elif any(map(skips_updates, steps)):
        reason = "the optimizer does not step after every batch: let the gradients of fewer batches add up as well"
    elif reason is None and program.distributed:
        reason = "several processes share the batches, and how they do is yours to say"
    elif reason is None and size == 1 and not evaluates and norm_of(program, steps, ("InstanceNorm",)):
        reason = "networks with InstanceNorm (CycleGAN) may read one picture at a time on purpose: compare results"
    elif reason is None and size == 1 and evaluates:
        reason = looks_at_one(program, loader)
        if batch.comment is not None and is_telling(batch.comment):
            reason = "that comment may say why it is one"
    reason = reason or made_for(program, loader)
    risk = Risk.EQUIVALENT if evaluates else Risk.RECIPE
    stacked = (ONE_SIZE,) if size == 1 and loader.collate == "default" else ()
    added = [step.accumulation.steps for step in steps if step.accumulation is not None]
    changes = tuple((site, new) for site, _, new in rates)
    plan, rests = Plan((*values, *changes)), (LEARNS_IN_LARGER, *stacked, *assumes, *by_default(batch, *added))
    changed.update(site for site, _ in plan.values if reason is None)
    worth = Worth.SOME if evaluates or size <= SMALL or small == SMALL_ROWS else Worth.SMALL
    told = {"plan": plan, "risk": risk, "evidence": seen, "assumes": rests, "worth": worth}
    return codemod.offer(place(loader), message, reason, **told)


def is_counted(program: TrainingProgram, loader: Loader, steps: list[Step]) -> bool:
    """Whether a training may end after a number of updates, however many samples they read."""
    if loader not in program.loaders or any(step.epoch_loop is not None for step in steps):
        return loader not in program.loaders and any(step.draws for step in steps)
    loops = [pages_of(program)(step.loop.site).node(step.loop.site) for step in steps]
    leaves = any(isinstance(each, ast.Break) for loop in loops if loop is not None for each in walk(loop))
    return leaves or loader.cycled or any(limit(each, "max_steps") for each in program.trainings)


def tried_in_turn(program: TrainingProgram, values: tuple[tuple[Site, int | str], ...]) -> str | None:
    """Whether a batch size is one of a list that the script goes through."""
    for site in (each for each, _ in values if each.path in program.modules.by_path):
        page = pages_of(program)(site)
        held, statement = page.parent(page.node(site)), page.statement(page.node(site))
        unpacked = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)
        if isinstance(held, (ast.List, ast.Tuple, ast.Set)) and not unpacked:
            return "the script tries a list of batch sizes one after another: give that list larger ones"
    return None


def looks_at_one(program: TrainingProgram, loader: Loader) -> str | None:
    """What an evaluation of one sample at a time does with the first of a batch alone."""
    one = r"\bassert .*(size\(0\)|shape\[0\]|len\(.+\)) == 1\b"  # so that the loop is sure to be given one
    for loop in (each.loop.site for each in program.evaluations if loader.site in each.loaders):
        node = pages_of(program)(loop).node(loop) if loop.path in program.modules.by_path else None
        if isinstance(node, ast.For):
            counts = isinstance(node.target, ast.Tuple) and "enumerate(" in ast.unparse(node.iter)
            batch = node.target.elts[-1] if counts and isinstance(node.target, ast.Tuple) else node.target
            field = "" if isinstance(batch, ast.Tuple) else r"\['\w+'\]"
            names = "|".join(dotted(each) or "" for each in targets(batch))
            if re.search(rf"{one}|\b({names}){field}\[0\]", ast.unparse(node)):
                return f"the loop on line {loop.line} takes one sample for the whole batch"
    return None


def skips_updates(step: Step) -> bool:
    """Whether an update stands under a test under which no backward pass stands, and not for every single batch."""
    if step.accumulation is not None and one_number(step.accumulation.steps) == 1:
        return False
    tested = {test for act in step.backwards for test in act.guard.tests}
    seldom = (act for act in step.updates if act.guard.kind in ("every_n", "condition"))
    return not all(tested.issuperset(act.guard.tests) for act in seldom)


def written(argument: Argument) -> tuple[tuple[object, Site], ...]:
    """The numbers that an argument can be, each with the place where it is written."""
    one = one_number(argument)
    return ((one, argument.edit_at),) if one is not None and argument.edit_at is not None else argument.written


Rate = tuple[Site, float, str]
"""Where a learning rate is written (or the call that takes torch's own), what it is, and what it becomes."""


def rates_of(program: TrainingProgram, steps: list[Step], factor: float) -> list[Rate]:
    """The learning rates that grow with a batch: all that the steps go by, or none."""
    stepped, found = {site for step in steps for site in step.optimizers}, set()
    if says(program, SETS_RATE):
        return []
    for each in (one for one in program.optimizers if one.site in stepped or not steps):
        name, rate = (each.qualname or "").rpartition(".")[2], each.argument("lr")
        if rate.state == "absent" and name in ("Adam", "AdamW") and not each.open_mapping:
            rate = Argument("value", (0.001,), edit_at=each.site)  # what torch takes
        grown = raised(rate, factor if name == "SGD" and factor <= FAR else factor**0.5)
        if not grown:
            return []
        found.update(grown)
    return sorted(found)


def raised(rate: Argument, factor: float) -> list[Rate]:
    """A learning rate that is written once, and what it becomes; none where a comment says why it is so, or a mapping
    may give another one than a parameter's default."""
    if rate.state == "option" and not (rate.option or "").startswith("-"):
        return []
    old = rate.values[0] if rate.state in ("value", "option") and rate.values else None
    if rate.edit_at is None or type(old) is not float or reason_beside(rate) is not None:
        return []
    return [(rate.edit_at, old, f"{float(f'{old * factor:.2g}'):.10f}".rstrip("0").ljust(3, "0"))]


def growing(rates: list[Rate]) -> str:
    """What a message says of the learning rate."""
    grows = " and ".join(f"from {old} to {new}" for _, old, new in rates)
    return f"the learning rate grows with them, {grows} ({BY_RULE})" if rates else OTHER_RATE


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
    return reason_beside(*values)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Trainings of transformers on small batches, whose gradients may be summed."""
    for training in program.trainings:
        batch, steps = training.argument(BATCH), training.argument(STEPS)
        default = batch.state == "absent" and not training.open_mapping and not training.parsed
        size, many = 8 if default else one_number(batch), 1 if steps.state == "absent" else one_number(steps)
        searches = not is_off(training.argument("auto_find_batch_size"))  # for the largest that fits
        if stays_on_cpu(training) or searches:
            continue
        yield from evaluated(program, training)
        if size is None or many is None:
            yield from unread(training)
            continue
        factor = factor_of(size, many)
        if size * many <= (SMALL if steps.state == "absent" else FEWEST):
            message = f"the trainer takes batches of {size} samples, {TOO_FEW}; batches of {ENOUGH_TEXTS} "
            times = ENOUGH_TEXTS / (size * many)
            rates = raised(training.argument("learning_rate"), times**0.5)
            message += f"change the recipe: {growing(rates)}"
            message += COUNTED.format(times) if limit(training, "max_steps") else ""
            values: tuple[tuple[Site | None, int | str], ...] = ((batch.edit_at, ENOUGH_TEXTS),)
            values += (*(((steps.edit_at, 1),) if many > 1 else ()), *((site, new) for site, _, new in rates))
        elif factor > 1 and size <= SMALL:
            message = joined(size, many, factor)
            message += "; that changes the recipe a little: the number of samples may not be divisible by both"
            values = ((batch.edit_at, size * factor), (steps.edit_at, many // factor))
        else:
            continue
        given = (BATCH, STEPS) if steps.state != "absent" else (BATCH,)
        read = next((site for name, site in training.reads if name in given), None)
        message += f"; the number is read on {read.line_from(training.site.path)}, too" if read is not None else ""
        message += said_beside(*map(training.argument, given))
        seen = tuple(of_value(name, training.argument(name), training.site) for name in given)
        reason = why_not_under_trainer(program, training, given)
        where = batch.edit_at or training.site
        kept = tuple((site, value) for site, value in values if site is not None)
        plan = Plan(kept, call=training.site if default else None, added=values[0][1])
        # one sample needs no padding: whether several can be put together is seen only then
        alike = (ONE_SIZE,) if size == 1 and training.stacks else ()
        rests = (LEARNS_IN_LARGER, *alike, *rests_on_gpu(training), *by_default(batch, steps))
        yield codemod.offer(where, message, reason, plan=plan, risk=Risk.RECIPE, evidence=seen, assumes=rests)


def unread(training: Training) -> Iterator[Refusal]:
    """What is said of a trainer whose batches are as large as the command line, or something not followed, says."""
    summed = training.argument(STEPS).state != "absent"
    message = f"the trainer takes batches of 8 samples where the command line gives no other number, {TOO_FEW}"
    reason = f"where memory allows, pass {training.parsed}{BATCH} {ENOUGH_TEXTS}; {OTHER_RATE}"
    if summed:
        message = "every update may take several forward and backward passes over small batches"
        reason = f"their numbers were not followed: where memory allows, raise {BATCH} and lower {STEPS} as much"
    if summed or (training.parsed and training.argument(BATCH).state == "absent"):
        yield codemod.refuse(training.site, message, reason, risk=Risk.RECIPE)


def evaluated(program: TrainingProgram, training: Training) -> Iterator[Finding | Refusal]:
    """Small batches of an evaluation, which keeps no activations."""
    batch = training.argument(EVALUATION)
    size, where = one_number(batch), batch.edit_at
    if size is None or size > FEWEST or where in (None, training.argument(BATCH).edit_at) or training.evaluated is None:
        return
    assert where is not None
    many, enough = "batches of one sample" if size == 1 else f"batches of {size} samples", min(ENOUGH_TEXTS, size * 8)
    message = f"the trainer evaluates {many}, {TOO_FEW}, and keeps no activations for them; batches of {enough} "
    message += "change a figure that is averaged or summed over batches" + said_beside(batch)
    seen = (of_value(EVALUATION, batch, training.site),)
    reason, alike = why_not_under_trainer(program, training, (EVALUATION,)), size == 1 and training.stacks
    rests = (LEARNS_IN_LARGER, *((ONE_SIZE,) if alike else ()), *rests_on_gpu(training), *by_default(batch))
    yield codemod.offer(where, message, reason, plan=Plan(((where, enough),)), evidence=seen, assumes=rests)


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


def made_for(program: TrainingProgram, loader: Loader) -> str | None:
    """Whether a model is made for batches of a number, as one with a cache of what it computed is."""
    places = [each for model in program.models for each in (model.site, model.cls) if each is not None]
    reads = loader.argument("batch_size").reads
    read = next((read for read in reads if any(is_inside(read, each) for each in places)), None)
    return f"the model is made for batches of that size ({read.line_from(place(loader).path)})" if read else None


def by_default(*given: Argument) -> tuple[Assumption, ...]:
    """What is assumed where whoever starts the training may give another number."""
    return (OPTION_DEFAULT,) if any(each.option is not None for each in given) else ()


def factor_of(size: int, many: int, enough: int = ENOUGH) -> int:
    """How many accumulated batches of a size are joined to one."""
    return max((each for each in range(1, many + 1) if many % each == 0 and size * each <= enough), default=1)


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
    sizes = [(each, site) for each, site in batch.written if type(each) is int]
    where = min(sizes)[1] if sizes else batch.edit_at
    return loader.site if where is None or where == batch.site else where


def accumulated(
    program: TrainingProgram, loader: Loader, steps: list[Step], by: Accumulation | Argument, sizes: Bounds
) -> Iterator[Finding | Refusal]:
    """Steps that sum the gradients of several small batches, ``by`` their own lines or a framework's argument."""
    size, small, enough = sizes
    batch, own = loader.argument("batch_size"), isinstance(by, Accumulation)
    sums = by.steps if isinstance(by, Accumulation) else by
    many, joins = one_number(sums), 0 < size <= max(NARROW, small) and one_number(batch) == size
    factor = factor_of(size, many, max(ENOUGH, enough)) if many is not None and joins else 1
    if many is None and size <= TINY and own:
        message = f"every update takes several forward and backward passes over batches of {size}: fewer may do"
        unseen = "how many batches add up is not written down: change it, and the batch, where they are worked out"
        yield codemod.refuse(place(loader), message, unseen)
    if many is None or factor == 1:
        return
    message = joined(size, many, factor) + read_elsewhere(program, loader) + said_beside(batch, sums)
    counted = by.guard if isinstance(by, Accumulation) else sums.site or loader.site
    told = (*of_loader(program, loader, "batch_size"), of_value("the number of accumulated batches", sums, counted))
    reason = why_not_written(batch, sums) or why_not(program, loader, steps, by, size * factor)
    if batch.edit_at is not None and batch.edit_at == sums.edit_at:
        message = f"the {many} samples of a batch go forward and backward one by one"
        reason = "one number says how many are read and added up: put those of one size together, and take their mean"
    if reason is not None:
        yield codemod.refuse(place(loader), message, reason, evidence=told)
        return
    norm, length = norm_of(program, steps), loader.dataset.length
    different = None if own or length is not None else "the number of samples may not be divisible by both"
    if norm is not None:
        different = f"{norm} sees the statistics of larger batches"
    elif isinstance(by, Accumulation) and not by.divided:
        different = f"the loss is not divided: the gradient is {factor} times smaller, which Adam divides out"
    elif length is not None and length % (size * many):
        different = f"{length} samples are no multiple of {size * many}: the last update weighs them differently"
    if different is not None:
        message += f"; that changes the recipe a little: {different}"
    assert batch.edit_at is not None and sums.edit_at is not None
    follows = sums.edit_at.kind == "BinOp" and any(is_inside(read, sums.edit_at) for read in batch.reads)
    values = ((batch.edit_at, size * factor), *(() if follows else ((sums.edit_at, many // factor),)))
    loops = [site for step in steps for site in (step.loop.site, *(act.function for act in step.backwards)) if site]
    risk, worth = Risk.EQUIVALENT if different is None else Risk.RECIPE, Worth.SOME if size <= SMALL else Worth.SMALL
    plan, rests = Plan(values, tuple(loops)), (LEARNS_IN_LARGER, *by_default(batch, sums))
    yield codemod.finding(place(loader), message, plan=plan, risk=risk, evidence=told, assumes=rests, worth=worth)


def why_not(
    program: TrainingProgram, loader: Loader, steps: list[Step], by: Accumulation | Argument, size: int
) -> str | None:
    """What would make the larger batch another update, or break the script."""
    length = loader.dataset.length
    if length is not None and length < size and is_in_the_way(loader.argument("drop_last")):
        return f"{length} samples are less than one larger batch, and `drop_last` would leave out all of them"
    if loader.together or any(len(step.loaders) > 1 for step in steps):
        return "the batches of several loaders are read side by side"
    if isinstance(by, Accumulation):
        used = [each.qualname or "" for each in program.optimizers if each.site in steps[0].optimizers]
        if not by.divided and (steps[0].clips or not used or not all(each.endswith(ADAPTIVE) for each in used)):
            return "the loss is not divided by the number of accumulated batches, so the gradient would shrink"
        return undoes(steps[0], by)
    scheduled = any(step.scheduler_steps for step in steps)
    return "the learning rate may be scheduled with every small batch: change its steps as well" if scheduled else None


def undoes(step: Step, accumulation: Accumulation) -> str | None:
    """What a step does with every small batch, or to their gradients, so that a larger one is another update."""
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
    return "several losses are sent backward in one step" if len(step.backwards) != 1 else None


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
    if plan.call is not None:
        edit.argument(plan.call, BATCH, str(plan.added), spelled_out=True)
    for site, value in plan.values:
        if site.kind == "Call":
            edit.argument(site, "lr", str(value))
            continue
        mend_help(edit, site, edit.text(site), str(value))
        edit.replace(site, str(value))
