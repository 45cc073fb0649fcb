"""What it takes to train in several processes, one for each GPU, as codemods see it."""

from __future__ import annotations

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
    never called. ``method`` is the one of its own that steps call, empty where they call the model as such.
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
    method: str = ""


@dataclass(frozen=True)
class Copied:
    """A ``DataParallel(module)`` of one process. ``tests`` are what it stands under.

    ``moved``: only what follows moves it to its device. ``normed`` and ``idle`` as above. ``apart``: it stands under
    tests, and nothing asks it for its module, so that several processes can leave it out.
    """

    call: Site
    module: Site
    tests: tuple[Site, ...] = ()
    moved: bool = False
    normed: bool = False
    idle: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Pass:
    """Where a loader is read: the loop, or the statement that begins to read it, and what it is called there.

    ``epoch`` is the name of a variable that counts the passes, ``only`` the test of whether it is one of steps.
    """

    at: Site
    loader: str
    epoch: str | None = None
    only: str = ""


@dataclass(frozen=True)
class Divided:
    """A loader whose batches are shared out: its call, data, batch size and order, as they are written.

    ``shuffle`` is None where it is not passed. ``stream``: its data are iterated, and have no numbers. ``only``: the
    call also makes loaders for evaluations, which stay whole, and this test tells them apart. ``mapping`` is one that
    the call unpacks, which holds the arguments ``in_mapping``. ``sampler`` is one of the script's own,
    which chooses samples, or (``batches``) whole batches. ``inside``: a comprehension makes it. ``early``: it
    is made while its file is imported, when no group is there yet.
    """

    loader: Site
    dataset: Site
    batch: Site | None
    shuffle: Site | None
    shuffled: bool | None  # None where it is decided when it runs
    drop_last: Site | None
    passes: tuple[Pass, ...]
    stream: bool = False
    only: str = ""
    sampler: Site | None = None
    batches: bool = False
    inside: bool = False
    early: bool = False
    mapping: Site | None = None
    in_mapping: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Beside:
    """A loader that stays whole, by its name in front of the training, and where that takes the one beside it."""

    text: str
    uses: tuple[Site, ...]


@dataclass(frozen=True)
class Drawn:
    """Names that a step gives a whole batch to: behind the statement ``at``, or (``inside``) in front of it."""

    at: Site
    names: tuple[str, ...]
    inside: bool = False


@dataclass(frozen=True)
class Figure:
    """What a loop counts of a process's share, and how it becomes that of all: numbers add up.

    ``batches`` are a list with a number for each batch, ``samples`` one with something for each sample, ``entries`` a
    dict of numbers. ``mean``: each process has means over its own batches. ``tensor``: it is one on a device, or holds
    such; ``unsure``: that is not known. ``carries``: it may still hold the graph of a loss.
    """

    text: str
    kind: Literal["number", "batches", "samples", "entries"]
    mean: bool = False
    tensor: bool = False
    carries: bool = False
    unsure: bool = False


@dataclass(frozen=True)
class Totals:
    """What a loop counts of a process's share and what is read behind it; ``anew`` are lines that compute of it.

    ``only`` is the test of whether it goes over a share, where it also goes over all.
    """

    loop: Site
    figures: tuple[Figure, ...] = ()
    anew: tuple[str, ...] = ()
    only: str = ""


@dataclass(frozen=True)
class Summed:
    """A loss at a backward pass that is a sum over a batch; its name and the statement that sets it, if it has one."""

    loss: Site
    name: str = ""
    at: Site | None = None


@dataclass(frozen=True)
class Counted:
    """A loss that is a mean over what counts: its call, and an expression of how much each position does."""

    call: Site
    weights: str


@dataclass(frozen=True)
class Parallel:
    """A training of one process, and all that has to change in it for several.

    ``setup`` is the first statement of its set-up (``repeated``: which may run again), ``imports`` the last import of
    each file, and what follows it. ``once`` are runs of statements (first and last) that one process alone executes
    (``narrowed``: the first of those that are all of what is under a test, and that test); ``opened`` the names of
    files that are written, ``receivers`` paths that open themselves, ``writers`` calls that make a writer of logs,
    ``disabled`` those that begin a tracker's run, ``bars`` progress bars, ``contexts`` those that log while a block
    runs. ``downloads`` are statements that fetch data, ``loads`` those that read what was saved before, ``on_one_gpu``
    calls that read it to one GPU, ``fetched`` those in which one process writes what all read then. ``indexed`` are
    literals that name one GPU, each with what it becomes. ``sizes`` are other reads of a batch's size in steps,
    ``lengths`` those of how many samples a sampler chooses. ``unseeded`` are the generators that nobody seeds,
    ``apart`` those of which each process has its own in steps; ``decisions`` are expressions that decide over the rest
    of the training, ``skips`` those of a step that leave something out, each with whether one process that finds it so
    is enough. ``summed`` are losses at a backward pass that are sums over a batch, ``counted`` those that are means
    over what counts in one. ``loggers`` are the libraries by which it logs messages. ``owner`` is Accelerate's object,
    which wraps and shares out: ``unwraps`` are models whose weights are then saved or loaded.
    """

    setup: Site
    imports: tuple[tuple[Site, Site], ...]
    loop: Site
    models: tuple[Wrapped, ...] = ()
    copied: tuple[Copied, ...] = ()
    loaders: tuple[Divided, ...] = ()
    beside: tuple[Beside, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    totals: tuple[Totals, ...] = ()
    once: tuple[tuple[Site, Site], ...] = ()
    narrowed: tuple[tuple[Site, Site], ...] = ()
    opened: tuple[Site, ...] = ()
    receivers: tuple[Site, ...] = ()
    writers: tuple[Site, ...] = ()
    disabled: tuple[Site, ...] = ()
    bars: tuple[Site, ...] = ()
    contexts: tuple[Site, ...] = ()
    downloads: tuple[tuple[Site, Site], ...] = ()
    loads: tuple[Site, ...] = ()
    on_one_gpu: tuple[Site, ...] = ()
    fetched: tuple[Site, ...] = ()
    indexed: tuple[tuple[Site, str], ...] = ()
    sizes: tuple[Site, ...] = ()
    unseeded: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    decisions: tuple[Site, ...] = ()
    skips: tuple[tuple[Site, bool], ...] = ()
    summed: tuple[Summed, ...] = ()
    lengths: tuple[Site, ...] = ()
    counted: tuple[Counted, ...] = ()
    owner: Site | None = None
    unwraps: tuple[Site, ...] = ()
    loggers: tuple[str, ...] = ()
    repeated: bool = False
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
