"""Models and what their layers compute, as codemods see them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.dataflow.known import ABSENT, Placement, Told
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.dataflow.known import Argument
    from turbofix.findings import Evidence
    from turbofix.source.site import Site
    from turbofix.training.model.frameworks import Unread


@dataclass(frozen=True)
class Product:
    """A layer that multiplies its input by a matrix of ``inputs`` by ``outputs``, each None where no literal tells.

    A layer that is made more than once has the widest sides of all, and the sides in ``narrow`` stand for the widest
    matrix that is certainly among them: its matrices may be 2048 by 64 and 64 by 2048, and none 2048 by 2048. They are
    also those that it has where parameters are left out that a ``**mapping`` may fill.
    ``by_position``: its rows are positions whatever is beside it (a library's transformer).
    """

    layer: str
    inputs: int | None = None
    outputs: int | None = None
    narrow: tuple[int, int] | None = None
    by_position: bool = False

    @property
    def sides(self) -> tuple[int, ...]:
        """The sides that are known."""
        return tuple(side for side in (self.inputs, self.outputs) if side is not None)

    @property
    def sure(self) -> tuple[int, int] | None:
        """The sides of a matrix that is there unless options say otherwise; None where none is known."""
        if self.narrow is not None or self.inputs is None or self.outputs is None:
            return self.narrow
        return self.inputs, self.outputs

    @property
    def elements(self) -> int | None:
        """How many numbers the matrix holds; None where a side is not known."""
        return self.inputs * self.outputs if self.inputs is not None and self.outputs is not None else None


@dataclass(frozen=True)
class Products:
    """The layers of a model that multiply matrices, recurrent ones left out: cuDNN has a precision of its own."""

    layers: tuple[Product, ...] = ()
    complete: bool = False  # no other layer of the model multiplies any
    beside_convolutions: bool = False
    beside_network: bool = False  # a library's ready-made convolutional network is among them
    of_sequences: bool = False  # recurrent or normalised layers: inputs with a position
    of_graphs: bool = False
    embeds: bool = False
    channels: int | None = 0  # the most that a convolution takes or gives; None where no literal tells

    @property
    def by_position(self) -> bool:
        """Whether rows are positions (tokens, nodes), of which a batch has many more than samples."""
        return self.of_sequences or self.of_graphs or (self.embeds and not self.beside_convolutions)


@dataclass(frozen=True)
class Convolution:
    """A convolution of a model over ``dims`` dimensions, or (``whole``) a network of a library that is made of them.

    The numbers are those that literals tell, the largest of several; None where none does. ``cuts``: it only cuts its
    input into patches (its kernel is as large as its stride), each of which it multiplies by a matrix. ``unknown``: a
    network by a name that is not known, and may be a transformer.
    """

    layer: str
    dims: int
    inputs: int | None = None
    outputs: int | None = None
    groups: int | None = None
    whole: bool = False
    cuts: bool = False
    unknown: bool = False


@dataclass(frozen=True)
class Layouts:
    """How tensors lie in memory, in a program whose models convolve; else all of it is empty.

    ``chosen`` is where the program chooses a memory format itself. ``views`` are the callees of ``x.view(...)`` of what
    layers compute, with the ``x``. ``flattened``: where torch sees weights as rows of numbers.
    """

    chosen: tuple[Site, ...] = ()
    views: tuple[tuple[Site, Site], ...] = ()
    flattened: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Biased:
    """A layer with a bias, the batch norm that alone takes its result, and where ``bias`` is among its arguments."""

    layer: Site
    norm: Site
    kind: str
    position: int


@dataclass(frozen=True)
class Hazard:
    """What stands in the way of something, in a clause, and where."""

    why: str
    site: Site


@dataclass(frozen=True)
class Biases:
    """The layers whose bias a norm takes out again, and the first thing in the program that needs it.

    ``loaded``: where weights are loaded, or else saved: those of before the change have the bias.
    """

    layers: tuple[Biased, ...] = ()
    needed: Hazard | None = None
    loaded: Hazard | None = None


@dataclass(frozen=True)
class Compiling:
    """What it takes to compile a model in place.

    ``after`` is the statement, of those that move or wrap it, behind which it is what the steps call, ``text`` its name
    there and ``place`` where it is then; None where that is not known to be one statement outside of loops.
    ``tested``: that statement stands under a test that says whether ``place`` is a GPU. ``foreign`` is what else in the
    program does not go with it.
    """

    after: Site | None = None
    text: str | None = None
    place: Placement = Placement("unknown")
    tested: bool = False
    foreign: Hazard | None = None
    moved: Site | None = None  # the last call that moves it, before or behind what wraps it
    method: str = ""  # of that call: "to", "cuda"
    off: Argument = ABSENT  # the switch under which the script compiles it, where that is off
    unsure: Argument = ABSENT  # and where nobody knows how it stands
    barred: Hazard | None = None  # why compiling would do nothing
    methods: tuple[str, ...] = ()  # what the steps call of it by name, past what `compile()` changes
    before: Site | None = None  # where there is no ``after``: the outermost loop of the training, where it has ``text``


@dataclass(frozen=True)
class Model:
    """A model that is trained or evaluated. ``layers`` are the qualified names of the external layers in it.

    What wraps a part of it (fairscale's ``checkpoint_wrapper``) is listed with them.
    """

    site: Site
    name: str | None
    cls: Site | None
    layers: frozenset[str]
    layers_complete: bool  # every layer was seen; False where part of it comes from elsewhere
    device: Placement = Placement("unknown")
    # `torch_dtype=torch.bfloat16` made it, or .half(), .bfloat16() or .double() was called on it, or one of the first
    # two on a part of it
    half: bool = False
    dtype: str | None = None  # "float64" where the program chose one; None beside ``half``: float32 as well, or in part
    compiled: Site | None = None
    wrapped: str | None = None  # torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    products: Products = Products()
    convolutions: tuple[Convolution, ...] = ()
    compiling: Compiling | None = None  # None where no step calls it, or its framework compiles
    numbers: int = 0  # at least so many are in its matrices and trained, embeddings and convolutions left out
    pretrained: bool = False  # it, or a part of it, is given weights of a file before its training


@dataclass(frozen=True)
class Wrapping(Told):
    """A call of ``DistributedDataParallel``, with its arguments by name, and the models that it is given.

    Or one of what tells Accelerate how to call it, which is given none.
    """

    site: Site
    arguments: Mapping[str, Argument]
    open_mapping: bool = False  # a `**mapping` in the call may hold keys that were not seen
    models: tuple[Site, ...] = ()
    idle: bool = False  # some layers of theirs are never called


@dataclass(frozen=True)
class Passing:
    """One hop that an object makes as an argument: the call, the argument in it, the function and its parameter.

    ``outside``: a file of the project that is no part of the program, and calls the function, too.
    """

    call: Site
    argument: Site
    function: Site
    parameter: str
    outside: Path | None = None


@dataclass(frozen=True)
class Repeated:
    """A training of transformers that lacks memory: the construction of its settings, and the name of its model.

    ``evidence`` tells that memory is what limits it, ``why_not`` what a second forward pass would not go with.
    """

    call: Site
    name: str
    evidence: tuple[Evidence, ...]
    why_not: str | None = None


@dataclass(frozen=True)
class Listed:
    """What Python makes or reads one by one, and what does it at once: a source, with names of torch in braces.

    ``codemod`` speaks of it; ``unplaced``: of a tensor that may lie on the host. ``more``: what else is replaced by
    what. ``above``: the statement in front of which a name, "{above}", is given what source.
    """

    site: Site
    message: str
    text: str
    codemod: str
    unplaced: bool = False
    more: tuple[tuple[Site, str], ...] = ()
    above: tuple[Site, str, str] | None = None


@dataclass(frozen=True)
class Formula:
    """A formula that is written out, and that torch has a function for, by what it computes.

    ``input`` is the source of what it is computed of; ``weight``, ``bias`` and ``eps`` those of a norm over the last
    dimension, ``dim`` that of a log-softmax. Of the norms, ``unbiased`` divides by n - 1, ``outside`` adds ``eps`` to
    the deviation, and ``unbiased_outside`` does both. ``removed`` are the statements that only lead to it.
    ``certain``: its weights are known to be rows, and its ``eps`` to be a number.
    """

    site: Site
    kind: str  # as torch.nn.functional calls it, or how a norm differs
    input: str
    weight: str | None = None
    bias: str | None = None
    eps: str | None = None
    dim: str | None = None
    removed: tuple[Site, ...] = ()
    certain: bool = True


@dataclass(frozen=True)
class Attention:
    """One softmax(QK^T * scale + masks) V that is written out, in a function that the program runs.

    ``product`` is the product of weights and values. All texts are sources valid there: ``mask`` is for ``attn_mask``,
    for ``is_causal`` where it is ``causal``; ``behind`` turns the result. ``heads``: there are three dimensions, and
    torch's kernels take four. ``removed`` are the statements that only lead to it, ``unread`` the weights that are
    handed on and that nobody seems to read. ``certain``: the text alone shows that torch's function computes the same.
    ``why_not`` speaks against it; then the rest is empty.
    """

    softmax: Site
    product: Site
    function: Site
    query: str = ""
    key: str = ""
    value: str = ""
    mask: str | None = None
    causal: bool = False
    dropout: str | None = None
    scale: str = "1.0"
    behind: str = ""
    heads: bool = False
    removed: tuple[Site, ...] = ()
    unread: tuple[Unread, ...] = ()
    certain: bool = True
    why_not: str | None = None
