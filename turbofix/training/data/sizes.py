"""How much work the matrix products of a training step are: widths of the layers times the rows of a batch.

Nothing is measured here. What is known are literals and options' defaults; what is not known counts neither as large
nor as small.
"""

from __future__ import annotations

from turbofix.training.model import Product, Products, Step, TrainingProgram

THIN = 128
"""The width of a matrix below which its product reads and writes too much for what it multiplies, so that memory
bounds it, and not the arithmetic that tensor cores speed up."""

NOTICEABLE = 1 << 28
"""Multiplications of one product that take noticeable time in full float32: 0.5 GFLOP, which an A100 (19.5 TFLOPS,
its data sheet) needs 28 microseconds for at best, several times as long as launching a kernel."""

LAUNCH = 1 << 27
"""Multiplications of one product that are over in about the time in which the host launches the kernels around it:
64 samples through a matrix of two million elements, at most 14 microseconds on an A100 in float32."""

ROWS = 16
"""The samples of a batch where nothing tells how many there are: hardly ever fewer, so that only a matrix of 4096 by
4096 is known to be large without it."""

POSITIONS_AREA = 256 * 256
"""Elements of the matrices that are worth it where rows are tokens or nodes, of which there are thousands."""

NARROW_AREA = 64 * 512
"""Elements of the largest matrix of a network that is bound by launches although its rows are tokens: 64 wide."""

NETWORK_AREA = 1 << 25
"""Elements of the matrices that are worth it beside a ready-made convolutional network, which multiplies billions of
numbers for each sample (ResNet-18 1.8, ResNet-50 4.1 at 224 by 224): about a hundredth of them."""

CLASSES = 1000
"""The outputs that a classifier has at most, wherever its number of inputs is not known (ImageNet has 1000)."""

SMALL_BATCH = 64

MANY, FEW, FEATURES = 1024, 64, 1024
"""The samples of a batch where nothing tells how many there are, hardly ever more; a side of a small matrix; and the
features of a table's row, hardly ever more."""


def batch_of(program: TrainingProgram, step: Step) -> int | None:
    """The samples of a step's largest batch; None where a loader's is not known."""
    found = [each.samples for site in step.loaders if (each := program.loader(site)) is not None]
    known = all(each.state in ("value", "option") for each in found) and len(found) == len(step.loaders)
    sizes = [value if isinstance(value, int) else None for each in found for value in each.values]
    return max(filter(None, sizes), default=None) if known and None not in sizes else None


def has_noticeable(products: Products, batch: int | None) -> bool:
    """Whether a float32 product of a model is known to take noticeable time: by both its widths, and by its rows.

    What is not known is no evidence. Behind convolutions the last linear layer is the classifier, whose inputs a
    pooling has made few: it never counts.
    """
    return any(_is_noticeable(layer, products, batch) for layer in _before_the_classifier(products))


def has_none(products: Products, batch: int | None) -> bool:
    """Whether every matrix of a model is known, and so small that nothing is gained by multiplying faster."""
    return are_small(products, _before_the_classifier(products), batch or MANY)


def are_small(products: Products, layers: tuple[Product, ...], batch: int) -> bool:
    """Whether some layers of a model are all small, whatever is not known of them.

    A side that is not known is small beside one that is very small itself; at the ends of a network without
    convolutions and embeddings it is a data set's features or classes.
    """
    limit = NARROW_AREA if products.by_position else LAUNCH // batch
    other = products.beside_convolutions or products.embeds or not layers
    ends = () if other else (layers[0].inputs, layers[-1].outputs)

    def is_small(each: Product) -> bool:
        if each.elements is not None:
            return each.elements <= limit
        side = each.sides[0] if each.sides else limit + 1
        features = None in ends[:1] and each is layers[0] and side * FEATURES <= limit
        return side <= FEW or features or (None in ends[1:] and each is layers[-1] and side * CLASSES <= limit)

    decodes = products.beside_convolutions and products.embeds  # what a picture says: rows are no samples
    return products.complete and not decodes and all(map(is_small, layers))


def _before_the_classifier(products: Products) -> tuple[Product, ...]:
    """All layers but the last one behind convolutions, where that may be the classifier."""
    layers = products.layers
    if not layers or not products.beside_convolutions or products.by_position:
        return layers
    inputs, outputs = layers[-1].inputs or 0, layers[-1].outputs or 0
    return layers[:-1] if outputs <= CLASSES or outputs < inputs else layers


def _is_noticeable(product: Product, products: Products, batch: int | None) -> bool:
    if product.sure is None:
        return False
    one, other = product.sure
    if min(one, other) <= THIN:
        return False
    if products.by_position or product.by_position:
        return one * other >= POSITIONS_AREA
    if products.beside_network and one * other < NETWORK_AREA:
        return False
    return (ROWS if batch is None else batch) * one * other >= NOTICEABLE


def is_bound_by_launches(products: Products, batch: int | None) -> bool:
    """Whether every product of a model without convolutions is known to be over before the next one is launched."""
    if batch is None or products.of_graphs or (products.by_position and batch > SMALL_BATCH):
        return False
    return are_small(products, products.layers, batch)
