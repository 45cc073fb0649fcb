"""Data sets, loaders and batches, as codemods see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from turbofix.dataflow.known import Placement, Told
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.dataflow.known import Argument
    from turbofix.source.site import Site
    from turbofix.training.model.devices import Transfer


@dataclass(frozen=True)
class Dataset:
    """What a loader reads.

    ``tensors``: tensors in memory (TensorDataset, a list of tensors); items cost nothing. ``map``: ``__getitem__``.
    ``iterable``: ``IterableDataset``. ``length`` in samples where it is known, by the defaults of options.
    """

    kind: Literal["tensors", "map", "iterable", "unknown"]
    site: Site | None = None
    qualname: str | None = None  # torchvision.datasets.ImageFolder, or the project's class name
    on_device: bool = False  # its tensors live on the GPU already, or it works on the GPU
    random: bool = False  # draws random numbers per item (augmentation, sampling)
    worker_aware: bool = False  # an iterable dataset that asks get_worker_info
    work: tuple[str, ...] = ()  # work per item that was seen: "decode", "tokenize", "transform", "read", "numpy"
    length: int | None = None
    unpicklable: str | None = None  # why its items or itself cannot be sent to a spawned worker (lambda, local class)
    stateful: str | None = None  # what may make a worker's samples others: it is changed, or its samples need gradients
    generator: str | None = None  # the random generator, kept from item to item, that an item is drawn from
    sparse: str | None = None  # what makes sparse tensors of its items, or for them
    shared: str | None = None  # the open file of a module that its items are read from
    table: bool = False  # it reads tables or arrays as a whole when it is made, and cuts its items out of them


@dataclass(frozen=True)
class KeptRead:
    """An expression that reads a file for an item, and whose value can be kept: ``Image.open(path).convert("RGB")``.

    ``callee`` is the function ``name`` in it that reads, ``given`` what that is given beside constants, ``definition``
    the same with ``parameters`` in their place, empty where the expression is a call alone. ``copied``: the method by
    which its value is copied, where it is changed in place later. ``top``: the statement of the file that it stands in.
    """

    site: Site
    callee: Site
    name: str
    given: tuple[Site, ...]
    parameters: tuple[str, ...]
    definition: str
    top: Site
    copied: str | None = None


@dataclass(frozen=True)
class SameItems:
    """A class of datasets whose items are made anew in each epoch, and the function whose results can be kept.

    ``site`` is where it is told, ``method`` the ``__getitem__`` that is decorated, ``work`` what it takes long with,
    ``helper`` the first such function of the file. ``reads`` are kept instead where an item is random.
    ``done``: there is nothing to keep, as it says; ``why_not``: what may differ.
    """

    site: Site
    method: Site
    loaders: tuple[Site, ...]
    name: str
    helper: Site
    work: tuple[str, ...] = ()
    reads: tuple[KeptRead, ...] = ()
    pictures: bool = False  # some of the file's results may be PIL's
    why_not: str | None = None
    done: str | None = None


@dataclass(frozen=True)
class Sizes:
    """Whether batches have one size, the last one of a pass left out; ``why`` not, or not known: one clause.

    ``site``: where the program changes them on their way through a loop. ``partly``: a part of each batch is stacked.
    """

    state: Literal["fixed", "varies", "unknown"] = "unknown"
    why: str | None = None
    site: Site | None = None
    partly: bool = False


@dataclass(frozen=True)
class Loader(Told):
    """One ``torch.utils.data.DataLoader(...)`` construction.

    ``arguments`` holds every parameter of DataLoader by name, resolved through positions, ``**kwargs`` and helpers.
    ``open_mapping``: a ``**mapping`` in the call may hold keys that were not seen (then never add a keyword).
    ``role``: what its batches are used for. ``factory``: the call stands in a helper that builds several loaders.
    """

    site: Site
    arguments: Mapping[str, Argument]
    dataset: Dataset
    role: Literal["training", "evaluation", "both", "unused", "unknown"]
    open_mapping: bool = False
    unpacks: tuple[Site, ...] = ()  # the `**mapping` arguments of the call
    mapping_entries: Mapping[str, Site] = field(
        default_factory=dict
    )  # key -> its entry in the dict display it came from
    collate: Literal["default", "function", "lambda", "local", "unknown"] = "default"
    collate_on_device: bool = False  # collate_fn moves tensors to the GPU or pins memory
    collating: Dataset | None = None  # what its own collate function does, seen as what a worker would be sent
    batch: Literal["tensors", "object", "unknown"] = (
        "unknown"  # tensors in tuples/lists/dicts, or an object with its own `to`
    )
    built_in_loop: bool = False
    again: bool = False  # if so: each of those that are built is read in several rounds of a loop of its own
    first_only: bool = False  # only ever asked for its first batch: `next(iter(loader))`
    asked_again: bool = False  # so asked in a loop
    unused: bool = False  # run through without a look at its batches: `for _ in loader: pass`
    subclass: str | None = None  # a loader class of the project or of another library (torch_geometric)
    copies: tuple[Transfer, ...] = ()  # host-to-device copies of its batches, in every loop that reads it
    goes_to: Placement = Placement("unknown")  # where the copies go; its texts are valid at the construction
    name: str | None = None  # how the code calls it: "train_loader"
    comments: tuple[str, ...] = ()  # the comments on the lines of its statement, and straight above it
    cycled: bool = False  # an endless generator runs through it again and again: `cycle(loader)`
    fed: Literal["no", "once", "again"] = "no"  # read by a framework's trainer: in one epoch, or in every one anew
    together: tuple[Site, ...] = ()  # the loaders that one loop reads at once with it: `zip(images, sketches)`
    sizes: Sizes = Sizes()  # of its batches

    @property
    def spelled_out(self) -> bool:
        """Whether its call passes all that it is given by name: no mapping that is unpacked may hold more elsewhere."""
        return not self.unpacks

    @property
    def samples(self) -> Argument:
        """How many samples a batch has."""
        return self.argument("batch_size")


@dataclass(frozen=True)
class Augment:
    """Random transforms of pictures in memory that whole batches can go through.

    ``listed`` is the list of all of them, ``parts`` its elements: each is done ``once``, or a class takes its place.
    """

    listed: Site
    parts: tuple[tuple[Site, str], ...]


@dataclass(frozen=True)
class Preload:
    """A loader of data in memory that could take whole batches of items that are made once.

    ``helper`` is a statement of its file in front of which a function can be defined. ``on_device``: all that reads its
    batches uses them on the GPU. ``heavy``: it takes long to make
    them, because they are read, decoded, resized or tokenised.
    ``augment``: what is drawn for each of its pictures.
    """

    loader: Site
    helper: Site
    on_device: bool
    heavy: bool = False
    why_not: str | None = None
    augment: Augment | None = None


@dataclass(frozen=True)
class Remembered:
    """The memory of an agent that a step draws a batch of at ``site``, and puts together item by item.

    It is ``made`` for so many items (the source of that number). ``becomes`` are the texts of what draws of it and
    takes the items apart, where it gives each part of them as an array. ``above`` is where a class can be defined.
    """

    site: Site
    made: Site
    size: str
    above: Site
    becomes: tuple[tuple[Site, str], ...]


@dataclass(frozen=True)
class Rebuilt:
    """A loader, a criterion or data that ``loop`` builds anew in every round from what it does not set.

    ``statements`` are the assignments that build it, its own last: those of its data and samplers go with it.
    ``lasting``: a loader whose workers shall stay (``persistent_workers``). ``why_not`` says what is in the way.
    """

    site: Site
    statements: tuple[Site, ...]
    loop: Site
    kind: Literal["loader", "criterion", "dataset"]
    name: str
    lasting: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class Padding:
    """One call that pads texts of a training: to a fixed length, or (``dynamic``) to the longest of a batch.

    ``by_hand``: no tokenizer does it, but the program. ``readers`` (loaders, or trainers of transformers, each with the
    collate function that it is given) could cut off what is padding in all texts of a batch, by a function in front of
    ``helper``. ``why_not`` speaks against it.
    """

    site: Site
    dynamic: bool = False
    trainer: bool = False
    by_hand: bool = False
    of_all: bool = False  # to the longest of all texts, or of those that are mapped together
    readers: tuple[tuple[Site, Site | None], ...] = ()
    helper: Site | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Batch:
    """The tensors of a batch, by the names that a loop gives them: they are bound before the statement ``at``, or
    (``behind``) by it. ``kind`` says what a single name holds: a "tensor", or a "mapping". ``text``: the source of the
    device, where its name is not known."""

    at: Site
    names: tuple[str, ...]
    behind: bool = False
    kind: str = "tensor"
    text: str | None = None
