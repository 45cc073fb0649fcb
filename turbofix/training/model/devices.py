"""Transfers, tensors made in a step, and waits for the device, as codemods see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from turbofix.dataflow.known import ABSENT, ALWAYS, Placement
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.dataflow.known import Accumulator, Argument, Guard
    from turbofix.source.site import Site
    from turbofix.training.model.data import Batch
    from turbofix.training.model.models import Hazard


@dataclass(frozen=True)
class Transfer:
    """One ``.to(...)``, ``.cuda()`` or ``.cpu()`` that moves something between host and device."""

    site: Site
    method: Literal["to", "cuda", "cpu", "type", "other"]
    what: Literal["batch", "input", "model", "param", "output", "made", "object", "unknown"]
    to: Placement
    non_blocking: Argument
    guard: Guard = ALWAYS
    dtype_only: bool = False
    pageable: bool = False  # from numpy or a freshly made host tensor: never pinned, non_blocking gains nothing
    cast: tuple[Site, Site, str] | None = None  # if so only by this cast of what the loader made: it, that, its text
    again: bool = False  # of what an earlier transfer has brought to the device already
    loader: Site | None = None  # the loader whose batch it moves
    likely: Literal["batch", "output"] | None = None  # where `what` is unknown: what its use makes it, not its making
    in_step: bool = False


@dataclass(frozen=True)
class Made:
    """A call that fills memory of the host. Where it cannot be told a device, ``written`` is what can, with qualified
    names and the device in braces. ``inside``: a helper makes it."""

    site: Site
    name: str
    written: str | None = None
    inside: bool = False


@dataclass(frozen=True)
class Helper:
    """A function that makes a tensor: its call, where it stands, and its last parameter."""

    call: Site
    function: Site
    beside: str


@dataclass(frozen=True)
class Creation:
    """A tensor that is made on the host in a step or an evaluation, of nothing but numbers, and copied to a GPU.

    ``site`` is the copy (``torch.zeros(n).long().to(device)``), ``moved`` what is left of it (None where it stays, for
    it changes the type too), ``calls`` those that make it. ``device`` and ``dtype`` are the sources of what it is
    told, None where it is told none. ``draws``: its numbers are random. ``rounds``: a GPU may round them differently.
    ``packs``: the copy also gives each number a place of its own. ``kept``: its statement keeps it in an attribute or a
    container. ``unsure``: what the copy is told may be no device. ``meets``: what enters it may be tensors of the host.
    ``unused`` is a statement that is needed no more. ``only_if`` is the test that it is copied by, and else left on the
    host. ``switch``: what lets it happen. ``why_not`` says why it cannot be made on the device, in one sentence.
    """

    site: Site
    moved: Site | None
    calls: tuple[Made, ...]
    to: Placement
    device: str | None = None
    dtype: str | None = None
    draws: bool = False
    rounds: bool = False
    packs: bool = False
    guard: Guard = ALWAYS
    switch: Argument = ABSENT
    kept: bool = False
    unsure: bool = False
    meets: bool = False
    unused: Site | None = None
    helpers: tuple[Helper, ...] = ()
    only_if: str | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class HostIndex:
    """An array or list of the host by which a step indexes tensors on the GPU, so many ``times``: each time it is
    copied there. ``site`` is what it is given, or the ``BatchSampler`` that a loop takes it of, whose ``body`` begins
    at that site. ``to`` is where the first of the tensors lies."""

    site: Site
    name: str
    times: int
    to: Placement
    body: Site | None = None


@dataclass(frozen=True)
class Show:
    """A statement that shows values in a training or evaluation step.

    ``syncs`` are the reads of device tensors in its arguments (explicit, like ``loss.item()``, or implicit: a tensor
    that is printed).
    """

    statement: Site
    kind: Literal["print", "progress", "writer", "logger", "tracker", "other"]
    guard: Guard
    syncs: tuple[Site, ...]
    alone: bool = True  # the statement does nothing else and nothing reads its result


Holds: TypeAlias = Literal["number", "list", "dict", "lists", "dicts", "tuples", "rows", "other"]


@dataclass(frozen=True)
class Look:
    """What becomes of a number that was read, wherever it went: what uses it in each step, and where else it is seen.

    Of what is ``seen``, ``site`` gives it: itself (``holds`` is "number"), or the list or dict (of numbers, of "lists")
    that keeps it, under ``keys``; or a list of "dicts", "tuples" or lists ("rows"), where ``keys`` are those of each
    dict, or have a word for each item that is such a number, and "" for the others. ``sure``: no other number may be
    there, and all of the keys are. ``plain``, ``untouched``, ``grown``: as ``dataflow.Use`` has them.
    """

    kind: Literal["shown", "control", "summed", "stored", "returned", "passed", "other", "seen"]
    site: Site
    statement: Site
    holds: Holds
    keys: tuple[str, ...]
    sure: bool
    plain: bool
    untouched: bool
    grown: bool


@dataclass(frozen=True)
class Sync:
    """A place where the host waits for the device: ``.item()``, ``float()``, ``.cpu()``, ``.tolist()``, printing one,
    giving one to a metric of ``evaluate``, which keeps it on the host (``metric``).

    ``use`` says what becomes of the value. ``summed``: added to ``accumulator``. ``shown``: in the arguments of
    ``show``. ``stored``: appended or assigned into a container. ``control``: decides what the program does next.
    ``returned``: leaves the function. ``other``: anything else, or several of these.
    ``loops`` are the loops that it happens in, whatever function they stand in. ``scalar``: the
    tensor certainly has no dimension, and is what an operation made: no view of a larger one.
    ``plain``: on some path it is a number already, which has no tensor's methods.
    ``replayed``: a part of the program is compiled to be replayed from CUDA graphs, whose results lie in memory that
    the next step uses again. ``looks``: what becomes of a number in all of the program, up to where it is looked at no
    more than now and then. ``shared``: another file may call the function that returns it: it names the function, or
    its class. ``dropped``: nothing in the program takes what the function returns.
    """

    site: Site
    how: Literal[
        "item", "float", "int", "bool", "cpu", "numpy", "tolist", "print", "format", "data", "metric",
        "other",
    ]  # fmt: skip
    of: Literal["loss", "output", "grad", "param", "batch", "tensor", "unknown"]
    of_text: str  # the source of the tensor: "loss" in "loss.item()"
    statement: Site
    guard: Guard
    use: Literal["summed", "shown", "stored", "control", "returned", "other"]
    accumulator: Accumulator | None = None
    show: Show | None = None
    no_grad: bool = False
    on_device: Placement = Placement("unknown")
    loops: tuple[Site, ...] = ()
    scalar: bool = False
    plain: bool = False
    replayed: bool = False
    looks: tuple[Look, ...] = ()
    shared: bool = False
    dropped: bool = False


@dataclass(frozen=True)
class Purpose:
    """What a chore may be there for: a ``clock`` that the program reads, ``memory`` that it measures, a ``stream`` (or
    library, or copy) of which torch's own order does not know, a ``collector`` that it runs by hand.
    """

    kind: Literal["clock", "memory", "stream", "collector"]
    site: Site


@dataclass(frozen=True)
class Chore:
    """A call in a loop over batches that computes nothing: ``torch.cuda.empty_cache()``, ``gc.collect()``,
    ``torch.cuda.synchronize()``.

    ``alone``: the call is a statement of its own; ``statement`` holds it, with the tests that stand above it alone.
    ``purpose`` is what it may be there for.
    """

    site: Site
    statement: Site
    kind: Literal["empty_cache", "collect", "synchronize"]
    name: str
    guard: Guard = ALWAYS
    alone: bool = True
    comments: tuple[str, ...] = ()
    purpose: Purpose | None = None


@dataclass(frozen=True)
class Moved:
    """An expression whose tensor moves: to the device (None), to another source of one, or to the "cpu"."""

    site: Site
    text: str | None = None


@dataclass(frozen=True)
class Unplaced:
    """What brings a training that knows of no device to a GPU, or the first thing (``hazard``) that is in the way.

    ``models`` are the constructions of all models that its loops call, ``batches`` what these read, ``moves`` the
    other expressions. The device is chosen behind the import ``after``.
    """

    models: tuple[Site, ...]
    batches: tuple[Batch, ...] = ()
    moves: tuple[Moved, ...] = ()
    after: Site | None = None
    hazard: Hazard | None = None


@dataclass(frozen=True)
class Held:
    """A literal, or an option's default, by which a program stays on the CPU that can use a GPU.

    ``wanted`` is what it would be on a GPU: a text or number without quotes (``quoted``: it is a text), empty where the
    literal is False; None for a flag, which has no default to change. ``inner``: it stands inside of an expression.
    """

    site: Site
    wanted: str | None
    option: str | None = None
    quoted: bool = False
    inner: bool = False
