"""How much faster arithmetic may bring to a training: one judgement for all codemods that make it faster."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from turbofix.findings import Site, Worth
from turbofix.regex import regex
from turbofix.training.data.sizes import SMALL_BATCH, are_small, has_noticeable, is_bound_by_launches
from turbofix.training.model import Model, TrainingProgram

from ._precision import ENVIRONMENTS, RECURRENT

CHANNELS = 64
"""The width of a convolution that does noticeable work over pictures of any size."""

THIN_WORK = 1 << 30
"""Multiplications of the largest convolution up to which a network is thin: convolutions use tensor cores anyway."""

NARROW = 64
"""A side of a matrix, as long as it is wide, whose product is over in the time that its launch takes."""

TABLES = frozenset(("Embedding", "EmbeddingBag"))
PLAIN = regex(
    r"(Linear|Dropout|BatchNorm1d|Module(List|Dict)|Sequential|\w*ReLU|Tanh|Sigmoid|Softmax|(BCE|MSE|Cross)\w+)$"
)
"""Layers of a recommender beside its tables: nothing of a transformer's is among them but what it multiplies with."""

SEVERAL = 256
"""The samples of a batch of convolutions where nothing tells how many there are: rarely more."""


def worth_of_work(
    program: TrainingProgram, models: Collection[Model], batch: int | None, read: Iterable[Site]
) -> Worth:
    """What faster arithmetic is worth for some models, by whatever codemod: little for known thin layers, much for
    known wide ones and for layers over tokens; of others, and where loaders ``read`` files in the training process,
    nothing is known."""
    if models and all(is_thin(one, batch) or is_narrow(program, one) or looks_up(one, batch) for one in models):
        return Worth.SMALL
    if any(is_wide(model, batch) for model in models):
        return Worth.HIGH
    loaders = [each for site in read if (each := program.loader(site)) is not None and each.role == "training"]
    starved = any(
        {"read", "decode", "tokenize"} & {*each.dataset.work} and each.argument("num_workers").values in ((), (0,))
        for each in loaders
    )
    return Worth.HIGH if any(map(is_over_tokens, models)) and not starved else Worth.SOME


def is_over_tokens(model: Model) -> bool:
    """Whether a model multiplies at each position of a sequence, all of them at once."""
    return model.products.by_position and not model.layers & RECURRENT


def is_wide(model: Model, batch: int | None) -> bool:
    """Whether a model is known to do noticeable work: a library's network, a wide convolution or a large product."""
    sides = [min(each.inputs or 0, each.outputs or 0) for each in model.convolutions if not each.cuts]
    whole = any(each.whole for each in model.convolutions)
    return whole or max(sides, default=0) >= CHANNELS or has_noticeable(model.products, batch)


def is_thin(model: Model, batch: int | None) -> bool:
    """Whether all layers of a model are known, and too small to keep a GPU busy.

    How large pictures are is not known; where a classifier takes the last maps whole, their number tells: a layer
    before it has a quarter of the channels' products over four times as many positions, and kernels of nine.
    """
    products = model.products
    if not products.beside_convolutions:
        return bool(products.layers) and model.layers.isdisjoint(RECURRENT) and is_bound_by_launches(products, batch)
    if not products.complete or products.channels is None or products.by_position:
        return False
    small = are_small(products, products.layers, SMALL_BATCH)
    taken = max((layer.inputs or 0 for layer in products.layers), default=0)
    return products.channels < taken and small and _convolved(model, batch) <= THIN_WORK


def looks_up(model: Model, batch: int | None) -> bool:
    """Whether a model looks rows up in tables for a few plain layers, of which none is known to be large."""
    names = {layer.rpartition(".")[2] for layer in model.layers}
    plain = model.layers_complete and names & TABLES and all(map(PLAIN.match, names - TABLES))
    return bool(plain) and not has_noticeable(model.products, batch)


def is_over_at_once(program: TrainingProgram, model: Model, batch: int | None) -> bool:
    """Whether each layer of a thin model is known to be over before the next one is launched."""
    few = batch is not None and (batch <= SMALL_BATCH or not model.products.beside_convolutions)
    return is_narrow(program, model) or (few and is_thin(model, batch) and _convolved(model, batch) <= THIN_WORK // 2)


def is_narrow(program: TrainingProgram, model: Model, acting: int = NARROW) -> bool:
    """Whether all that a model multiplies are matrices a few numbers wide, whatever the number of their rows.

    What acts in an environment takes states and gives actions, a few numbers each; its layers may be ``acting`` wide.
    """
    products, acts = model.products, bool(program.libraries & ENVIRONMENTS)
    if any(not each.cuts or (each.outputs or acting) > NARROW for each in model.convolutions):
        return False
    if model.layers & RECURRENT or products.of_graphs or not products.complete:
        return False
    side = acting if acts else NARROW
    areas = [each.elements or max(each.sides, default=0 if acts else side + 1) * side for each in products.layers]
    return bool(areas) and max(areas) <= side * side


def _convolved(model: Model, batch: int | None) -> int:
    """Multiplications of the largest convolution before a classifier that takes the last maps whole."""
    taken = max((layer.inputs or 0 for layer in model.products.layers), default=0)
    return taken * (model.products.channels or 0) * 2 * 9 * (batch or SEVERAL)
