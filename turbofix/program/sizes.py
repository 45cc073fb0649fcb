"""How much work the matrix products of a training step are: widths of the layers times the rows of a batch.

Nothing is measured here. What is known are literals and options' defaults; what is not known counts neither as large
nor as small, and the two questions below say what then.
"""

from __future__ import annotations

from turbofix.program.model import Product, Products, Step, TrainingProgram

THIN = 128
"""The width of a matrix below which its product reads and writes too much for what it multiplies, so that memory
bounds it, and not the arithmetic that tensor cores speed up."""

NOTICEABLE = 1 << 28
"""Multiplications of one product that take noticeable time in full float32: 0.5 GFLOP, which an A100 (19.5 TFLOPS,
its data sheet) needs 28 microseconds for at best, several times as long as launching a kernel."""

LAUNCH = 1 << 27
"""Multiplications of one product that are over in about the time in which the host launches the kernels around it:
64 samples through a matrix of two million elements, at most 14 microseconds on an A100 in float32."""

ROWS = 256
"""The samples of a batch where nothing tells how many there are."""

POSITIONS_AREA = 256 * 256
"""Elements of the matrices that are worth it where rows are tokens or nodes, of which there are thousands."""

NARROW_AREA = 64 * 512
"""Elements of the largest matrix of a network that is bound by launches although its rows are tokens: 64 wide."""

CLASSES = 1000
"""The outputs that a classifier has at most, wherever its number of inputs is not known (ImageNet has 1000)."""

SMALL_BATCH = 64


def batch_of(program: TrainingProgram, step: Step) -> int | None:
    """The samples of a step's largest batch; None where a loader's is not known."""
    found: list[int] = []
    for site in step.loaders:
        loader = program.loader(site)
        size = loader.argument("batch_size") if loader is not None else None
        if size is None or size.state not in ("value", "option"):
            return None
        for value in size.values:
            if not isinstance(value, int):
                return None
            found.append(value)
    return max(found, default=None)


def has_noticeable(products: Products, batch: int | None) -> bool:
    """Whether a model multiplies float32 matrices that take noticeable time, as far as its layers tell.

    Where nothing is seen but that layers of other libraries are there, they may. Behind convolutions the last linear
    layer is the classifier, whose inputs a pooling has made few: it never counts.
    """
    if products.foreign:
        return True
    layers = products.layers
    if not layers:
        return not products.complete and not products.beside_convolutions
    if products.beside_convolutions and not products.by_position and _is_classifier(layers[-1]):
        layers = layers[:-1]
    return any(_is_noticeable(layer, products, batch) for layer in layers)


def _is_classifier(product: Product) -> bool:
    """Whether the last layer behind convolutions may be the classifier."""
    return product.outputs is None or product.outputs <= CLASSES or product.outputs < (product.inputs or 0)


def _is_noticeable(product: Product, products: Products, batch: int | None) -> bool:
    sides = product.sides
    if sides and min(sides) <= THIN:
        return False
    if products.by_position:
        return not sides or (product.elements or max(sides) ** 2) >= POSITIONS_AREA
    if not sides:
        return True
    rows = ROWS if batch is None else batch
    # a side that is not known is taken to be as wide as the other one
    return rows * (product.elements or sides[0] ** 2) >= NOTICEABLE


def is_bound_by_launches(products: Products, batch: int | None) -> bool:
    """Whether every product of a model without convolutions is known to be over before the next one is launched.

    A side that is not known is small only beside one that is very small itself: a data set's features or classes.
    """
    if batch is None or not products.complete or products.of_graphs:
        return False
    if products.by_position and batch > SMALL_BATCH:
        return False
    limit = NARROW_AREA if products.by_position else LAUNCH // batch
    return all(
        each.elements <= limit if each.elements is not None else bool(each.sides) and each.sides[0] <= SMALL_BATCH
        for each in products.layers
    )
