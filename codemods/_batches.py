"""How large the batches of a training are, which of them are small, and what grows with them."""

from __future__ import annotations

import ast
import re

from turbofix.codemod import SharedPlan
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import dotted, targets
from turbofix.source.nodes import walk
from turbofix.training.data.sizes import is_bound_by_launches
from turbofix.training.model import Argument, Dataset, Loader, Model, Step, TrainingProgram

from ._loaders import SMALL_IMAGES, at, is_read_again, mend_help, node_of, reason_beside
from ._pages import pages_of
from ._precision import ENVIRONMENTS, is_detector

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

TOO_FEW = "which fill a GPU only where a sample or the model is large"
PERHAPS_FEW = "which may not fill a GPU"

NAMED = regex(
    r"""(?i)\b(?:per_device_|micro_?|mini_?|train_)*batch_?size["']?(?::\s*int)?\s*[=:,](?:[^)\n]*default=)?\s*(\d+)\b"""
)
"""What gives the size of a batch by its name: an assignment, an argument, a field, a key, an option's default."""

SETS_RATE = regex(
    r"""\b(OneCycleLR|CyclicLR)\(|param_groups\S*?(:\s*\w+)?\[["']lr["']\]\s*[*/]?=[^=]"""
    r"""|["']params["'][^{}]*,\s*["']lr["']\s*:"""
)
"""What gives an optimizer another learning rate than its argument: a schedule's own, a line, a group's."""

FAR = 16
BY_RULE = f"in proportion for SGD alone up to {FAR} times, else with the square root"
OTHER_RATE = f"the learning rate has to grow with them ({BY_RULE})"
UNMEASURED = f"a run tells whether they fill the GPU: if twice as many take hardly longer, take them; {OTHER_RATE}"


NORMS = ("BatchNorm", "SyncBatchNorm", "batch_norm")

Rate = tuple[Site, float, str]
"""Where a learning rate is written (or the call that takes torch's own), what it is, and what it becomes."""

Bounds = tuple[int, int, int]
"""The smallest batch, up to where batches are small, and what they become."""


@dataclass(frozen=True)
class Plan(SharedPlan):
    """The values and what becomes of them; ``loops`` run for each small batch, ``call`` is given a batch size."""

    values: tuple[tuple[Site, int | str], ...]
    loops: tuple[Site, ...] = ()
    call: Site | None = None
    added: int | str = 0

    def write(self, site: Site, edit: Edit) -> None:
        """Change the values."""
        for node in (each for loop in self.loops for each in walk(node_of(edit, loop) or ast.Pass())):
            if isinstance(node, ast.Try):
                raise Refuse(
                    f"the loop catches exceptions ({at(node.lineno)}); "
                    "a larger batch that runs out of memory would be skipped in silence"
                )
        if self.call is not None:
            edit.argument(self.call, BATCH, str(self.added), spelled_out=True)
        for place, value in self.values:
            if place.kind == "Call":
                edit.argument(place, "lr", str(value))
                continue
            mend_help(edit, place, edit.text(place), str(value))
            edit.replace(place, str(value))


def by_hand(program: TrainingProgram) -> list[Loader]:
    """The loops that cut their batches themselves: what loads them is the loop."""
    cutting = [each for each in program.steps if each.cut.state != "absent"]
    return [Loader(each.loop.site, {"batch_size": each.cut}, Dataset("tensors"), "training") for each in cutting]


def smallest(loader: Loader) -> int | None:
    """The number of samples in a batch, the smallest where the script gives several; None where it is not known."""
    batch = loader.argument("batch_size")
    return min((each for each in batch.values if type(each) is int and batch.known), default=None)


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


def norm_of(program: TrainingProgram, steps: list[Step], names: tuple[str, ...] = NORMS) -> str | None:
    """A layer of the steps' models that looks at the batch as a whole."""
    layers = {layer.rpartition(".")[2] for model in models_of(program, steps) for layer in model.layers}
    layers |= {call.qualname.rpartition(".")[2] for step in steps for call in step.calls}
    return min((each for each in layers if each.startswith(names)), default=None)


def samples(size: int) -> str:
    """So many samples, in words."""
    return f"batches of {size} samples" if size > 1 else "batches of one sample"


def looks_at_one(program: TrainingProgram, loader: Loader) -> str | None:
    """What an evaluation of one sample at a time does with the first of a batch alone."""
    for loop in (each.loop.site for each in program.evaluations if loader.site in each.loaders):
        node = pages_of(program)(loop).node(loop) if loop.path in program.modules.by_path else None
        if isinstance(node, ast.For):
            names = "|".join(dotted(each) or "" for each in targets(node.target))
            taken = rf"\bassert .*== 1\b|\b({names})(\['\w+'\])?\[0\]"  # (the other one is sure to be given one)
            if re.search(taken, ast.unparse(node)):
                return f"the loop on line {loop.line} takes one sample for the whole batch"
    return None


def written(argument: Argument) -> tuple[tuple[object, Site], ...]:
    """The numbers that an argument can be, each with the place where it is written."""
    one = one_number(argument)
    return ((one, argument.edit_at),) if one is not None and argument.edit_at is not None else argument.written


def rates_of(program: TrainingProgram, steps: list[Step], factor: float) -> list[Rate]:
    """The learning rates that grow with a batch: all that the steps go by, or none. One that several optimizers are
    given grows as the most careful of them wants."""
    stepped: set[Site] = {site for step in steps for site in step.optimizers}
    found: dict[Site, tuple[float, str]] = {}
    if says(program, SETS_RATE):
        return []
    for each in (one for one in program.optimizers if one.site in stepped or not steps):
        name, rate = (each.qualname or "").rpartition(".")[2], each.argument("lr")
        if rate.state == "absent" and name in ("Adam", "AdamW") and not each.open_mapping:
            rate = Argument("value", (0.001,), edit_at=each.site)  # what torch takes
        grown = raised(rate, factor if name == "SGD" and factor <= FAR else factor**0.5)
        if not grown:
            return []
        for rate_at, old, new in grown:
            _, least = found.get(rate_at, (old, new))
            found[rate_at] = old, min(least, new, key=float)
    return sorted((site, *rate) for site, rate in found.items())


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


def why_not_written(*values: Argument) -> str | None:
    """What keeps a value from being changed where it stands."""
    if any(each.edit_at is None for each in values):
        return "where the batch size or the number of accumulated batches is written could not be seen"
    return reason_beside(*values)


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


def read_elsewhere(program: TrainingProgram, loader: Loader) -> str:
    """What a message adds where the batch size is read for something else than loaders."""
    given = {each.argument("batch_size").site for each in program.loaders}
    given |= {each.mapping_entries.get("batch_size") for each in program.loaders}
    other = next((read for read in loader.argument("batch_size").reads if read not in given), None)
    return f"; the number is read on {other.line_from(place(loader).path)}, too" if other is not None else ""
