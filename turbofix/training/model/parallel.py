"""What it takes to train in several processes, one for each GPU, as codemods see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.source.site import Site
    from turbofix.training.model.models import Hazard


@dataclass(frozen=True)
class Wrapped:
    """A model that is trained, and where it is wrapped: in front of (``behind``: after) the statement ``at``.

    ``text`` is what it is called there, ``becomes`` what the wrapped one is called beside it. ``uses`` are the
    expressions that take the wrapped one in its place, each with its new text; ``unwraps`` those of functions which are
    given it, and that need the model itself. ``normed``: it has batch normalisation. ``idle``: some of its layers are
    never called.
    """

    model: Site
    text: str
    at: Site
    behind: bool
    becomes: str
    uses: tuple[tuple[Site, str], ...] = ()
    unwraps: tuple[Site, ...] = ()
    normed: bool = False
    idle: bool = False


@dataclass(frozen=True)
class Pass:
    """Where a loader is read: the loop, or the statement that begins to read it, and what it is called there.

    ``epoch`` is the name of a variable that counts the passes.
    """

    at: Site
    loader: str
    epoch: str | None = None


@dataclass(frozen=True)
class Divided:
    """A loader whose batches are shared out: its call, data, batch size and order, as they are written.

    ``shuffle`` is None where it is not passed, and ``shuffled`` where it is decided when the script runs.
    """

    loader: Site
    dataset: Site
    batch: Site
    shuffle: Site | None
    shuffled: bool | None
    drop_last: Site | None
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Figure:
    """What a loop counts of a process's share, and how it becomes that of all: numbers add up.

    ``batches`` are a list with a number for each batch, ``samples`` one with something for each sample, ``entries`` a
    dict of numbers. ``mean``: each process has means over its own batches. ``tensor``: it is one on a device, or holds
    such; ``unsure``: that is not known. ``carries``: it may still hold the graph of a loss. ``padded``: it is divided
    by a number of samples, of which shares count some twice so that all are as long.
    """

    text: str
    kind: Literal["number", "batches", "samples", "entries"]
    mean: bool = False
    tensor: bool = False
    carries: bool = False
    unsure: bool = False
    padded: bool = False


@dataclass(frozen=True)
class Totals:
    """What a loop over ``loader`` counts of a process's share and what is read behind it; ``anew`` are lines that
    compute of it."""

    loop: Site
    figures: tuple[Figure, ...] = ()
    anew: tuple[str, ...] = ()
    loader: str = ""


FIRST_LINE = "# turbofix: skip-file\n"
"""Of a file that turbofix has written: it says nothing of it."""


@dataclass(frozen=True)
class Beside:
    """A file beside a script, which holds what its processes share: its ``path``, and the ``module`` that it is.

    ``at`` is the statement of the script in front of which that is imported.
    """

    at: Site
    path: Path
    module: str


@dataclass(frozen=True)
class Parallel:
    """A training of one process, and all that has to change in it for several.

    ``beside`` is the file that holds what they share. ``shared`` is what is called of the models of which each process
    computes its rows for the one that runs the script; ``normed``: they have batch normalisation. ``copied`` are calls
    of ``DataParallel``. ``by_shares``: how all run the script instead, each on its share of the data, if they can:
    ``models`` and ``loaders`` are what is shared out then, ``apart`` the generators of which each process has its own,
    ``made`` what is called by one process for all, ``fetching`` what is called by one first, ``bars`` progress bars,
    and ``decisions`` expressions that decide over the rest of the training, where processes may differ.
    """

    loop: Site
    beside: Beside | None = None
    models: tuple[Wrapped, ...] = ()
    copied: tuple[Site, ...] = ()
    loaders: tuple[Divided, ...] = ()
    totals: tuple[Totals, ...] = ()
    buffers: tuple[tuple[Site, str], ...] = ()
    shared: tuple[Site, ...] = ()
    normed: bool = False
    made: tuple[Site, ...] = ()
    fetching: tuple[Site, ...] = ()
    bars: tuple[Site, ...] = ()
    apart: tuple[str, ...] = ()
    decisions: tuple[Site, ...] = ()
    by_shares: Parallel | None = None
    hazard: Hazard | None = None


@dataclass(frozen=True)
class Saved:
    """A ``state_dict()`` that the first process writes to a file: the call, and what it is called on at ``at``.

    ``at`` is the last statement on the way to it that all processes reach, ``tests`` are what it asks beside the rank.
    ``apart``: the first process alone makes the call; ``far``: in another function than that of ``at``.
    """

    call: Site
    at: Site
    text: str
    tests: tuple[str, ...] = ()
    apart: bool = False
    far: bool = False


@dataclass(frozen=True)
class Loaded:
    """A ``load_state_dict(state)`` of something that is shared out: the argument, and what it is called on."""

    state: Site
    text: str


@dataclass(frozen=True)
class Wrap:
    """The call of ``DistributedDataParallel`` that is replaced, its module, and whether it comes before the optimizer.

    ``alone``: the statement that does nothing but to wrap, and can go.
    """

    call: Site
    module: Site
    before: bool
    alone: Site | None = None


@dataclass(frozen=True)
class Stage:
    """What ``deepspeed.initialize`` is told of ZeRO: its ``call``, and the mapping that tells it.

    ``place`` is that mapping (of a configuration file: the last value in it), ``section`` the one of ZeRO in it, each
    None where it is not seen. ``stage`` is what stands there, at ``at``. ``numbers`` are the other settings that are
    whole numbers or flags, ``steps`` the class of the optimizer that the engine is given, if it is torch's.
    """

    call: Site
    place: Site | None = None
    section: Site | None = None
    stage: int | None = None
    at: Site | None = None
    numbers: tuple[tuple[str, int], ...] = ()
    steps: str | None = None


@dataclass(frozen=True)
class Sharding:
    """An optimizer of a training in several processes, and what has to change where they share out its state.

    ``names`` are the parameters of its class; ``returned``: a function builds it and gives it back. ``states`` are
    where its state is saved, ``decisions`` the tests on the way there that processes may answer differently. The rest
    is for sharing out parameters, too: ``weights`` are where the model is saved, ``loads`` where states are loaded,
    ``modules`` the reads of what is wrapped, ``heads`` the last imports of the files and what follows them,
    ``agreeing`` functions of theirs by which the first process decides. ``hazard`` is in the way of all, ``whole`` of
    that. ``model`` is what the model is called at the optimizer.
    """

    optimizer: Site
    names: tuple[str, ...] = ()
    states: tuple[Saved, ...] = ()
    decisions: tuple[Site, ...] = ()
    hazard: Hazard | None = None
    model: str = ""
    wrap: Wrap | None = None
    weights: tuple[Saved, ...] = ()
    loads: tuple[Loaded, ...] = ()
    modules: tuple[Site, ...] = ()
    all_decisions: tuple[Site, ...] = ()
    heads: tuple[tuple[Site, Site], ...] = ()
    agreeing: tuple[tuple[Site, str], ...] = ()
    returned: bool = False
    whole: Hazard | None = None


@dataclass(frozen=True)
class Staged:
    """A ``model`` whose layers follow each other, and the one step that trains it: each process could keep some.

    ``layers`` is what the sequence of them is called in front of the statement ``optimizer``, and ``parameters`` the
    model in its arguments. From ``first`` to ``last`` stand the statements that compute ``loss`` of ``inputs`` and
    ``targets`` by ``criterion``, and go backward; ``zeroing`` are those among them that forget gradients. ``saves`` are
    statements in front of which all layers are to be together. ``alike`` is what any training by several processes
    needs, None beside a ``hazard``.
    """

    model: Site
    layers: str = ""
    optimizer: Site | None = None
    parameters: Site | None = None
    first: Site | None = None
    last: Site | None = None
    loss: str = ""
    inputs: str = ""
    targets: str = ""
    criterion: str = ""
    zeroing: tuple[str, ...] = ()
    saves: tuple[Site, ...] = ()
    alike: Parallel | None = None
    hazard: Hazard | None = None
