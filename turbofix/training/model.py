"""The training program as codemods see it: frozen, and resolved by value and qualified name.

Everything here is an answer about the user's program, with the place (``Site``) where it was read. What could not
be resolved is said so (``state == "unknown"``, ``certainty == "inferred"``, ``complete == False``); a codemod that
needs more than is known refuses. Texts (``..._text``) are source texts that are valid at the place they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from turbofix.findings import STUB, Evidence, InPlace, Site
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.domain.scopes import ModuleFile


class Framework(Enum):
    """Who owns precision, placement and stepping."""

    PYTORCH = "pytorch"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    TRANSFORMERS = "transformers"
    DEEPSPEED = "deepspeed"
    FABRIC = "fabric"
    NONE = "none"


@dataclass(frozen=True)
class Target:
    """What the rewritten program must run on.

    ``capability`` is the CUDA compute capability (8.0 = Ampere), ``torch`` the oldest torch version, as (2, 4).
    ``recent``: the version that it may be as well where only the project's own requirements name ``torch``, as they
    did when they were written. ``others`` are the oldest versions of other packages, where the project says so.
    """

    capability: tuple[int, int] = (8, 0)
    torch: tuple[int, int] = (2, 4)
    recent: tuple[int, int] | None = None
    others: tuple[tuple[str, tuple[int, int]], ...] = ()

    def oldest(self, package: str) -> tuple[int, int] | None:
        """The oldest version of another package that a rewrite must serve; None where nothing is asked for."""
        return dict(self.others).get(package)


# --- values -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """What one argument of a call can be.

    ``absent``: not passed, the callee's default holds. ``value``: always ``values[0]``. ``option``: the user of the
    script chooses, ``values[0]`` is the default (what stands in a configuration file is a ``value`` that has an
    option's name). ``may``: one of ``values``, or absent on some paths (``may_be_absent``). ``computed``: a number or
    object made at run time (``os.cpu_count()``). ``unknown``: nothing is known, it may even be absent (an unpacked
    mapping that may hold it).
    """

    state: Literal["absent", "value", "option", "may", "computed", "unknown"]
    values: tuple[object, ...] = ()
    may_be_absent: bool = False
    site: Site | None = None  # the argument's expression in the call, where it is written there
    text: str | None = None  # that expression's source
    edit_at: Site | None = None  # the literal, dict entry or option default that a person would change
    option: str | None = None  # the option's name as the user of the script writes it: "--batch-size"
    reads: tuple[Site, ...] = ()  # every other place that reads the name (or option) which carries this value
    comment: str | None = None  # the comment on the line of edit_at or of the call's argument, if any
    way: tuple[Evidence, ...] = ()  # the statements that carry the value from edit_at to the call
    flag: Site | None = None  # the call that makes the option, where that has no default of its own
    wanted: object = None  # what would have to stand at edit_at for a switch to stand otherwise, where that is known
    written: tuple[tuple[object, Site], ...] = ()  # several values, each with the place where it is written

    @property
    def off(self) -> bool:
        """Whether it is certainly false, as the program stands."""
        return self.state in ("value", "option") and not any(self.values)

    @property
    def known(self) -> bool:
        """Whether every possible value is in ``values``."""
        return self.state in ("value", "option") or (self.state == "may" and not self.may_be_absent)


ABSENT = Argument("absent")


@dataclass(frozen=True)
class Guard:
    """Under which condition something inside a loop runs.

    ``always``: in every iteration. ``every_n``: under ``step % n``-like tests (``every`` is n where known). ``rank``:
    on one process only. ``config``: under a test that does not change during the run (a flag). ``step``: under tests
    that decide over the loop's backward passes as well. ``condition``: any other test. ``except``: in an exception
    handler. ``tests`` are the sites of the tests, outermost first.
    """

    kind: Literal["always", "every_n", "rank", "config", "step", "condition", "except"] = "always"
    tests: tuple[Site, ...] = ()
    every: int | None = None


ALWAYS = Guard()


@dataclass(frozen=True)
class Placement:
    """Where tensors go.

    ``cuda``: always a GPU (hard-coded). ``conditional``: a GPU where there is one or where the user asks for it.
    ``text`` is the source of the device expression at this place (``device``, ``self.device``, ``"cuda"``), None for
    ``.cuda()``; ``text_kind`` says what kind of object that text is. ``test`` is the source of a test, valid at this
    place, that is true exactly when a GPU is used (``use_cuda``, from ``if use_cuda: x = x.cuda()``); ``tests`` their
    sites.
    """

    where: Literal["cpu", "cuda", "conditional", "unknown"]
    text: str | None = None
    text_kind: Literal["device", "string", "index", "tensor", "unknown"] = "unknown"
    test: str | None = None
    tests: tuple[Site, ...] = ()
    mps: bool = False  # it may also be a device that is neither CPU nor CUDA (mps, xpu, torch.accelerator's choice)
    needs: str | None = None  # of a loader's: the option without which no GPU is used, where no words tell it there

    @property
    def reaches_cuda(self) -> bool:
        """Whether the program may run on a GPU here."""
        return self.where in ("cuda", "conditional")


# --- data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetLater:
    """A global that samples are made from, set where a spawned worker, which imports the script, does not come.

    ``top`` is the statement of the script's top level that leads there; ``guarded``: a guard, which keeps the worker
    out. Where the script has none, one may be added above it.
    """

    name: str
    where: str
    top: Site
    guarded: bool


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
    later: tuple[SetLater, ...] = ()  # the globals that it reads and that a spawned worker does not know
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
    ``helper`` the first such function of the file. ``reads`` are kept instead where an item is random. ``cached``: the
    items are kept already; ``done``: there is nothing to keep, as it says; ``why_not``: what may differ.
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
    cached: bool = False
    done: str | None = None


@dataclass(frozen=True)
class BuiltAgain:
    """A transform, tokenizer or model that is built anew for each item, by ``call`` of ``callee``, in ``top``."""

    call: Site
    callee: Site
    name: str
    top: Site


@dataclass(frozen=True)
class Sizes:
    """Whether batches have one size, the last one of a pass left out; ``why`` not, or not known: one clause.

    ``site``: where the program changes them on their way through a loop. ``partly``: a part of each batch is stacked.
    """

    state: Literal["fixed", "varies", "unknown"] = "unknown"
    why: str | None = None
    site: Site | None = None
    partly: bool = False


class Told:
    """What is made with arguments, by their names."""

    arguments: Mapping[str, Argument]

    def argument(self, name: str) -> Argument:
        """The argument of that name; ``absent`` when nothing passes it."""
        return self.arguments.get(name, ABSENT)


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
    spelled_out: bool = True  # each of these is written out in the same scope, and only unpacked: all its keys are read
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
    cut: Argument = ABSENT  # how many samples a batch has where its sampler is a BatchSampler, and it makes no batches
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
    def samples(self) -> Argument:
        """How many samples a batch has."""
        return self.argument("batch_size") if self.cut.state == "absent" else self.cut


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
    needless: tuple[Site, ...] = ()  # statements whose values `calls` hold
    helpers: tuple[Helper, ...] = ()
    only_if: str | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class MovedAgain:
    """A tensor that an object keeps on the host, and that a training copies to a GPU whenever it is read.

    ``site`` is the copy of ``moved`` (the attribute ``name``, or a part of it), in ``statement``; ``told`` is how the
    copy is called, and with what. ``alike``: all rounds of the loop ``statement`` compute ``told``, to be ``name``.
    """

    site: Site
    moved: Site
    name: str
    told: str
    statement: Site
    to: Placement
    guard: Guard = ALWAYS
    alike: bool = False


# --- what happens in a step ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """One call of a model, written in a region, that gives one tensor, or several to ``names`` in its ``statement``."""

    call: Site
    statement: Site
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Region:
    """Consecutive statements of one block, from ``first`` to ``last``, in one file.

    ``blockers`` says why the region cannot be put under a ``with`` (one sentence each); empty means it can. ``half``:
    under autocast, the loss might come out in 16 bits, because it is put together by hand. ``products`` are matrix
    products beside the models, ``tangled`` if one is no later than the last call of a model, as are the criteria that
    ``criteria_inside`` names; those in ``criteria_hidden`` are called by a model. ``calling`` are the statements that
    call a model, ``calls_end`` is the last one, ``outputs`` what the calls give in 16 bits; None where some of it does
    not come out as tensors. ``lifted`` are those in statements that do more, such as to call a criterion or to go
    backward, in front of which their calls can stand; None where they cannot. ``idle`` are statements behind
    ``calls_end`` that do not lead to the loss. ``unfit`` are calls beside it, and after the loop, that are given a
    result of it in 16 bits and raise for it (``libraries.unfit_for_half``).
    """

    first: Site
    last: Site
    function: Site | None = None  # the function or method that holds it, None for module level
    blockers: tuple[str, ...] = ()
    between: tuple[str, ...] = ()  # those that lie between the calls of models: they are none where each is wrapped
    escapes: tuple[Site, ...] = ()  # where a floating tensor computed in it is given to another library, at any time
    half: bool = False
    products: tuple[Site, ...] = ()
    tangled: bool = False
    criteria_inside: tuple[str, ...] = ()
    criteria_hidden: tuple[str, ...] = ()
    calls_end: Site | None = None
    calling: tuple[Site, ...] = ()
    lifted: tuple[Output, ...] | None = ()
    outputs: tuple[Output, ...] | None = None
    idle: tuple[Site, ...] = ()
    unfit: tuple[Called, ...] = ()


@dataclass(frozen=True)
class Act:
    """One call that makes up a training step: backward, optimizer.step, zero_grad, clip, unscale, scaler.update.

    ``statement`` is the statement line that holds it. ``receiver_text`` is the source of what it is called on
    (``optimizer``, ``self.optimizer``, ``loss``); for clips, of the first argument.
    """

    site: Site
    statement: Site
    receiver_text: str
    guard: Guard = ALWAYS
    certainty: Literal["seen", "inferred"] = "seen"
    optimizer: Site | None = None  # the construction of the optimizer concerned, where it is known
    function: Site | None = None
    alone: bool = True  # the call is a statement of its own: nothing reads its result
    scaled: bool = False  # goes through a GradScaler
    closure: bool = False  # optimizer.step(closure)
    create_graph: bool = False  # a backward that is differentiated again
    keeps_graph: bool = False  # a backward that may leave its graph for another one
    concerns: str = ""  # of a step: `optimizer` in `scaler.step(optimizer)`; of a load: the state, where it is named
    owner: str = ""  # of a backward: the source of Accelerate's or Fabric's object that it is called on


@dataclass(frozen=True)
class Accumulation:
    """Gradients summed over several micro-batches before one optimizer step."""

    steps: Argument  # how many micro-batches
    guard: Site  # the `if` that holds the optimizer's step, or the inner loop over micro-batches
    divided: bool  # the loss is divided by the same value


class Called(NamedTuple):  # made by the thousand
    """An external call inside the forward pass (through the project's own modules): ``torch.linalg.svd``,
    ``Tensor.masked_fill`` for methods of tensors. ``constants`` are its literal arguments.
    ``of_weights``: what it is given may be weights of the program's own (a parameter, or something that is not known),
    and not only what layers gave. ``of_halves``: under autocast something that it is given may come in 16 bits.
    ``beside``: it happens in the loop, and in none of the statements of its forward passes. ``operands``: what of it is
    to be given 32 bits, or the type of its first operand, where it is unfit for 16."""

    qualname: str
    site: Site
    constants: tuple[object, ...] = ()
    of_weights: bool = False
    of_halves: bool = False
    beside: bool = False
    operands: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Loss:
    """The value that backward starts from."""

    certainty: Literal["seen", "inferred", "unknown"]
    qualnames: tuple[str, ...] = ()  # torch.nn.CrossEntropyLoss, torch.nn.functional.nll_loss, ...
    text: str | None = None  # the name it goes by at backward: "loss"
    plain: bool = (
        False  # every criterion was seen to be given neither weight= nor ignore_index=: all samples count alike
    )


@dataclass(frozen=True)
class Read:
    """One place where an accumulating variable is read, and when that is."""

    site: Site
    statement: Site
    when: Literal["every_step", "every_n", "condition", "after_loop", "elsewhere"]
    show: Site | None = None  # the statement that shows it, where it is only shown (directly, or through names)


@dataclass(frozen=True)
class Accumulator:
    """A variable or attribute that sums what a sync reads: ``total += loss.item() * n``.

    ``update`` is the augmented assignment. ``inits`` are the statements that set it before the loop (``total = 0.0``).
    ``simple`` is False where it is aliased, captured by a closure, global, unpacked or returned inside the loop.
    """

    text: str
    update: Site
    inits: tuple[Site, ...]
    reads: tuple[Read, ...]
    loop: Site
    simple: bool = True
    why_not_simple: str | None = None


@dataclass(frozen=True)
class Meter:
    """An object of a project class that takes a value in every step: ``losses.update(loss.item(), n)``.

    ``computes_only``: its class does nothing with the value but arithmetic and formatting that a tensor survives; None
    where the call itself does more.
    """

    call: Site
    computes_only: bool | None


@dataclass(frozen=True)
class Show:
    """A statement that shows values in a training or evaluation step.

    ``syncs`` are the reads of device tensors in its arguments (explicit, like ``loss.item()``, or implicit: a tensor
    that is printed). ``reading`` are the calls in it that only show or look something up: of functions of the project,
    of the ``print`` of Accelerate and Fabric. ``interval`` is the n of its guard's ``step % n``, where every step
    passes for it is 1.
    """

    statement: Site
    kind: Literal["print", "progress", "writer", "logger", "tracker", "other"]
    guard: Guard
    syncs: tuple[Site, ...]
    alone: bool = True  # the statement does nothing else and nothing reads its result
    reading: tuple[Site, ...] = ()
    interval: Argument | None = None


@dataclass(frozen=True)
class Look:
    """What becomes of a number that was read, wherever it went: what uses it in each step, and where else it is seen.

    Of what is ``seen``, ``site`` gives it: itself (``holds`` is "number"), or the list or dict (of numbers, of "lists")
    that keeps it, under ``keys``. ``sure``: no other number may be there, and all of the keys are. ``plain``,
    ``untouched``, ``grown``: as ``dataflow.Use`` has them.
    """

    kind: Literal["shown", "control", "summed", "stored", "returned", "passed", "other", "seen"]
    site: Site
    statement: Site
    holds: Literal["number", "list", "dict", "lists", "other"]
    keys: tuple[str, ...]
    sure: bool
    plain: bool
    untouched: bool
    grown: bool


@dataclass(frozen=True)
class Sync:
    """A place where the host waits for the device: ``.item()``, ``float()``, ``.cpu()``, ``.tolist()``, printing one,
    giving one to a metric of ``evaluate``, which keeps it on the host (``metric``).

    ``use`` says what becomes of the value. ``summed``: added to ``accumulator``. ``meter``: given to ``meter``.
    ``shown``: in the arguments of ``show``. ``stored``: appended or assigned into a container. ``control``: decides
    what the program does next. ``returned``: leaves the function. ``nothing``: it is thrown away. ``other``: anything
    else, or several of these.
    ``results`` are the calls of functions of the project that the tensor may be the result of, each with what those
    functions return. ``loops`` are the loops that it happens in, whatever function they stand in. ``scalar``: the
    tensor certainly has no dimension, and is what an operation made: no view of a larger one.
    ``plain``: on some path it is a number already, which has no tensor's methods.
    ``replayed``: a part of the program is compiled to be replayed from CUDA graphs, whose results lie in memory that
    the next step uses again. ``looks``: what becomes of a number in all of the program, up to where it is looked at no
    more than now and then. ``shared``: another file may call the function that returns it: it names the function, or
    its class.
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
    use: Literal["summed", "meter", "shown", "stored", "control", "returned", "nothing", "other"]
    accumulator: Accumulator | None = None
    meter: Meter | None = None
    show: Show | None = None
    no_grad: bool = False
    on_device: Placement = Placement("unknown")
    unread: bool = False  # stored in a list of the file that nothing reads
    forgotten: bool = False  # and which ends with the function that makes it
    results: tuple[tuple[Site, tuple[Site, ...]], ...] = ()
    loops: tuple[Site, ...] = ()
    scalar: bool = False
    plain: bool = False
    replayed: bool = False
    looks: tuple[Look, ...] = ()
    shared: bool = False


@dataclass(frozen=True)
class Purpose:
    """What a chore may be there for: a ``clock`` that its loop reads, ``memory`` that it measures, a ``stream`` (or
    library) of which torch's own waits do not know, ``copies`` that do not block, a ``collector`` that the program runs
    by hand, a ``cycle`` of references that a differentiable backward pass leaves behind.
    """

    kind: Literal["clock", "memory", "stream", "copies", "collector", "cycle"]
    site: Site


@dataclass(frozen=True)
class Chore:
    """A call in a loop over batches that computes nothing: ``torch.cuda.empty_cache()``, ``gc.collect()``,
    ``torch.cuda.synchronize()``.

    ``alone``: the call is a statement of its own. ``outside`` is where the same call happens without the loop, through
    a function that is called elsewhere too. ``purpose`` is what it may be there for.
    """

    site: Site
    statement: Site
    kind: Literal["empty_cache", "collect", "synchronize"]
    name: str
    guard: Guard = ALWAYS
    alone: bool = True
    comments: tuple[str, ...] = ()
    outside: Site | None = None
    purpose: Purpose | None = None


@dataclass(frozen=True)
class Zeroing:
    """Gradients that are filled with zeros in a step: ``zero_grad(set_to_none=False)``, or a loop over parameters.

    ``receiver_text`` is what is told to forget them (``optimizer``, ``self.model``), None where that is not known to be
    a module or an optimizer of torch. ``keyword``: the argument is given by name; None for a loop, whose statement is
    ``site``. ``read`` is where the program reads a gradient by itself.
    """

    site: Site
    receiver_text: str | None
    keyword: bool | None = None
    guard: Guard = ALWAYS
    comments: tuple[str, ...] = ()
    read: Site | None = None


@dataclass(frozen=True)
class Loop:
    """A ``for`` or ``while`` over batches.

    ``counter`` is the name of a variable that counts its iterations, from ``counter_start`` (``enumerate``).
    ``iterated`` is the source of what is iterated, ``target`` of the target; ``sized`` is a source text for its number
    of iterations, valid in the loop (``len(train_loader)``), where it can be written.
    """

    site: Site
    iterated: str | None = None
    target: str | None = None
    counter: str | None = None
    counter_start: int = 0
    sized: str | None = None
    progress: Site | None = None  # the progress bar (tqdm(...)) around it
    progress_name: str | None = None


@dataclass(frozen=True)
class Known:
    """How surely one part of a step is known, and as what.

    ``seen``: where it is made was seen. ``inferred``: judged by how it is used. ``names`` are qualified names, the
    project's class names, or what else the program calls it; ``why`` says what is in the way of more.
    """

    certainty: Literal["seen", "inferred", "unknown"] = "unknown"
    names: tuple[str, ...] = ()
    why: str | None = None


@dataclass(frozen=True)
class ThrownAway:
    """A backward pass that goes on into models whose gradients of it nothing uses: they are cleared before a step.

    ``cuts`` are the expressions at which it could end, tensors that a model or a criterion is given, ``names`` their
    sources. ``models`` is what the program calls those models, ``cleared`` where it clears their gradients (nowhere, if
    no optimizer is given their parameters). ``why_not`` is what may use the gradients all the same. ``done``: it does
    not go on into them, since what they gave is detached already. ``kept``: it has to go through them, and only the
    gradients of their weights are lost; these are the models whose gradients are wanted, as they are called there.
    ``certain``: nothing reads those gradients, as far as the whole text tells. ``at_once``: ``backward`` is a statement
    that builds the graph of a model's call, and keeps nothing of it; so do those behind it, down to ``built``. Else
    ``built`` are the statements that need no graph once the backward pass ends there, and then no cut either.
    """

    backward: Site
    names: tuple[str, ...]
    cuts: tuple[Site, ...]
    models: tuple[str, ...]
    cleared: tuple[Site, ...] = ()
    why_not: str | None = None
    done: bool = False
    kept: tuple[str, ...] = ()
    certain: bool = False
    at_once: bool = False
    built: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Weights:
    """What one update of a step changes: all parameters of the object that ``text`` names in the update's function.

    Nothing changes their gradients between the backward and the update. ``why_not`` where this is not known.
    ``model`` is where the object is made.
    """

    update: Site
    text: str | None = None
    model: Site | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Planned:
    """How many updates a training makes: ``text``, valid behind the statement ``after`` beside its optimizer.

    ``loader`` is the one whose length it takes, None where one loop runs over all steps.
    """

    text: str | None = None
    after: Site | None = None
    loader: Site | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Step:
    """One training step: the innermost loop that holds a backward and an optimizer's step."""

    loop: Loop
    epoch_loop: Loop | None
    function: Site | None
    source: Literal["loader", "list", "generator", "tensors", "custom", "none", "unknown"]
    loaders: tuple[Site, ...]
    transfers: tuple[Transfer, ...]
    forward: Region | None  # from the first statement of the forward pass to the last that computes the loss
    loss: Loss
    backwards: tuple[Act, ...]
    updates: tuple[Act, ...]
    zero_grads: tuple[Act, ...] = ()
    clips: tuple[Act, ...] = ()
    unscales: tuple[Act, ...] = ()
    scaler_updates: tuple[Act, ...] = ()
    scheduler_steps: tuple[Act, ...] = ()
    accumulation: Accumulation | None = None
    syncs: tuple[Sync, ...] = ()
    shows: tuple[Show, ...] = ()
    autocast: Site | None = None  # an autocast region (or context variable that may be one) around the forward pass
    device: Placement = Placement("unknown")  # where its forward pass runs
    optimizers: tuple[Site, ...] = ()
    models: tuple[Site, ...] = ()
    choices: tuple[tuple[Site, ...], ...] = ()  # for each call of a model, those of ``models`` one of which it calls
    calls: tuple[Called, ...] = ()  # external calls inside the forward region
    grad_reads: tuple[Site, ...] = ()  # `.grad` read by hand
    certainty: Literal["seen", "inferred"] = "seen"
    forwards: tuple[Region, ...] = ()  # one region for each loss: a GAN has several, and then `forward` has a blocker
    leaks: tuple[
        Accumulator, ...
    ] = ()  # `total += loss` with its graph, never backpropagated: every step's graph is kept
    optimizer: Known = Known()  # what its updates step
    model: Known = Known()  # what its forward passes call
    data: Known = Known()  # where its data come from; ``source`` says the kind
    thrown_away: tuple[ThrownAway, ...] = ()  # backward passes that compute gradients which nothing uses
    chores: tuple[Chore, ...] = ()  # what keeps house in it
    zeroings: tuple[Zeroing, ...] = ()  # where it fills gradients with zeros
    late: Site | None = None  # SGD with momentum: what may give a parameter its first gradient after the first update
    creations: tuple[Creation, ...] = ()  # tensors made on the host and copied at once
    first_batches: tuple[tuple[Site, Site], ...] = ()  # `next(iter(loader))` in every round, and the loader
    wish: Argument = ABSENT  # over how many batches gradients shall add up, by an option or constant that nothing reads
    reached: bool = True  # False: nothing here calls the function that holds its loop, which was followed on its own
    weights: tuple[Weights, ...] = ()  # of each update, in a step that clips no gradients
    planned: Planned = Planned()
    resized: Sizes | None = None  # what may change the size of the tensors that models are given, or have inside them
    iterations: int | None = None  # in the whole training, as far as literals and defaults tell
    passes: int | None = None  # over its data, at most; None where it is no loop over data in loops that count
    cut: Argument = ABSENT  # how many samples it cuts out of its data for a step, where no loader gives it batches
    draws: int | None = None  # how long these are, where it draws windows of its data at random


@dataclass(frozen=True)
class KeptGraph:
    """Graphs that an evaluation builds, with no backward pass to go through them.

    ``function`` is the one that holds the loop, where it does nothing else that a gradient could be wanted of;
    ``through`` are the functions that the loop calls and that every one of its forward passes happens in.
    ``why`` says what may need them, and ``where``: ``asked`` (a gradient is asked for), ``library`` (of attacks or
    explanations), ``handed`` (the model is handed to other code), ``cached`` (a module keeps what it computes first),
    ``retained`` (graphs are gone through twice), ``yielded`` (others run in the midst of it), ``taken`` and ``kept``
    (results go on to a step, or may).
    """

    loop: Site
    function: Site | None = None
    through: frozenset[Site] = frozenset()
    why: str | None = None
    where: Site | None = None


@dataclass(frozen=True)
class Sampling:
    """A function that the training calls, whose forward passes build graphs that nothing takes out of it.

    ``loop`` is the innermost loop of the training around the call, ``models`` are those that it calls. ``sure``: these
    keep nothing, and no code that is not known is given a graph or a model.
    """

    function: Site
    loop: Site
    models: tuple[Site, ...] = ()
    sure: bool = False


@dataclass(frozen=True)
class Evaluation:
    """A loop over batches with forward passes and no backward."""

    loop: Loop
    function: Site | None
    loaders: tuple[Site, ...]
    forward: Region | None
    no_grad: bool
    transfers: tuple[Transfer, ...] = ()
    syncs: tuple[Sync, ...] = ()
    shows: tuple[Show, ...] = ()
    autocast: Site | None = None
    device: Placement = Placement("unknown")
    models: tuple[Site, ...] = ()
    calls: tuple[Called, ...] = ()
    leaks: tuple[Accumulator, ...] = ()
    around: frozenset[Site] = frozenset()  # the loops that repeat it, through calls too
    chores: tuple[Chore, ...] = ()  # what keeps house in it
    graphs: KeptGraph | None = None  # what it builds for nothing
    creations: tuple[Creation, ...] = ()  # tensors made on the host and copied at once
    resized: Sizes | None = None  # as in a step


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
    batches uses them on the GPU. ``certain``: its items are known to stay as they are. ``heavy``: it takes long to make
    them, because they are read, decoded, resized or tokenised. ``rows``: it is built anew in every round, of data that
    give rows of several tensors, by a slice as well. ``augment``: what is drawn for each of its pictures.
    """

    loader: Site
    helper: Site
    on_device: bool
    certain: bool
    heavy: bool = False
    why_not: str | None = None
    rows: bool = False
    augment: Augment | None = None


@dataclass(frozen=True)
class Rebuilt:
    """A loader, a criterion or data that a loop builds anew in every round from what stays the same.

    ``statements`` are the assignments that build it, its own last: those of its data and samplers go with it. ``above``
    is the loop in front of which they can stand, ``loop`` the one that holds them. ``data``: data are built with it.
    ``lasting``: a loader whose workers shall stay (``persistent_workers``). ``cheap``: a criterion without tensors.
    ``why_not`` says what is in the way.
    """

    site: Site
    statements: tuple[Site, ...]
    loop: Site
    above: Site
    kind: Literal["loader", "criterion", "dataset"]
    name: str
    data: bool = False
    lasting: bool = False
    cheap: bool = False
    why_not: str | None = None


# --- objects ------------------------------------------------------------------------------------------------------


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

    ``chosen`` is where the program chooses a memory format itself, ``lying`` where code that was executed asks how
    elements follow on one another, or takes it for granted. ``weights``: those that no layer makes. ``views`` are the
    callees of ``x.view(...)`` of what layers compute, with the ``x``. ``flattened``: torch does so to weights.
    """

    chosen: tuple[Site, ...] = ()
    lying: tuple[Site, ...] = ()
    weights: tuple[Site, ...] = ()
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
class Padding:
    """One call of a tokenizer that pads texts of a training: to a fixed length, or (``dynamic``) to the longest.

    ``of``: the texts of one ``batch``, or, before there are batches, of one ``item`` or of ``all``. ``value`` is what
    says so, ``in_eights``: the fixed length is a known multiple of eight. ``by_hand``: no tokenizer does it, but
    the program. ``readers`` (loaders, or trainers of transformers, each with the collate function that it is given)
    could cut off what is padding in all texts of a batch, by a function in front of ``helper`` and the item's
    ``mask``, or by what the parts of items at ``keys`` share at their ends (``squares``: some may be masks of two such
    lengths); ``targets``: the labels are texts of another length. ``why_not`` speaks against it.
    """

    site: Site
    of: Literal["batch", "item", "all"]
    value: Site | None = None
    in_eights: bool = False
    dynamic: bool = False
    trainer: bool = False
    targets: bool = False
    by_hand: bool = False
    readers: tuple[tuple[Site, Site | None], ...] = ()
    helper: Site | None = None
    mask: str | None = None
    keys: tuple[str | int, ...] = ()
    squares: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class Batch:
    """The tensors of a batch, by the names that a loop gives them: they are bound before the statement ``at``, or
    (``behind``) by it. ``kind`` says what a single name holds. ``text``: the source of the device, where its name is
    not known."""

    loop: Site
    at: Site
    names: tuple[str, ...]
    behind: bool = False
    kind: str = "tensor"
    text: str | None = None


@dataclass(frozen=True)
class Moved:
    """An expression whose tensor moves: to the device (None), to another source of one, or to the "cpu"."""

    site: Site
    text: str | None = None


@dataclass(frozen=True)
class Unplaced:
    """What brings a training that knows of no device to a GPU, or the first thing (``hazard``) that is in the way.

    ``models`` are the constructions of all models that its loops call, ``batches`` what these read, ``moves`` the
    other expressions. The device is chosen in front of the statement ``before``, where all of it stands in one
    function or file's top level, else behind the import ``after``.
    """

    models: tuple[Site, ...]
    batches: tuple[Batch, ...] = ()
    moves: tuple[Moved, ...] = ()
    before: Site | None = None
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
    comments: tuple[str, ...] = ()
    quoted: bool = False
    inner: bool = False


@dataclass(frozen=True)
class Compiling:
    """What it takes to compile a model in place.

    ``after`` is the statement, of those that move or wrap it, behind which it is what the steps call, ``text`` its name
    there and ``place`` where it is then; None where that is not known to be one statement outside of loops.
    ``tested``: that statement stands under a test that says whether ``place`` is a GPU. ``hazard`` is the first thing
    in its forward pass that a compiler cannot see through, ``foreign`` what else in the program does not go with it.
    """

    after: Site | None = None
    text: str | None = None
    place: Placement = Placement("unknown")
    hazard: Hazard | None = None
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
class StateSave:
    """One ``optimizer.state_dict()`` that is written to a checkpoint.

    ``mapping`` is the dict display (or ``dict(...)`` call) whose entry ``key`` it is, None where it stands elsewhere.
    """

    site: Site
    mapping: Site | None = None
    key: str | None = None
    function: Site | None = None


@dataclass(frozen=True)
class Optimizer(Told):
    """One optimizer construction.

    ``qualname`` is canonical (``torch.optim.Adam``); None where it is only inferred from use, or one of several
    ``qualnames`` (``torch.optim.*``: any). ``statement`` is the assignment that holds it; ``target_text`` what it is
    assigned to. ``passes`` are the hops to the steps.
    ``in_loop``: built inside a loop, or in a function that is called in one.
    """

    site: Site
    qualname: str | None
    arguments: Mapping[str, Argument]
    open_mapping: bool
    statement: Site
    target_text: str | None
    name: str | None
    passes: tuple[Passing, ...] = ()
    passes_complete: bool = True  # every place that receives it was seen
    function: Site | None = None
    in_loop: bool = False
    device: Placement = Placement("unknown")  # of its parameters
    before_move: bool = False  # built before its model was moved to the GPU
    sparse: bool = False  # trains parameters whose gradients are sparse (Embedding(sparse=True))
    distributed: str | None = None  # the call that makes DTensors of some of its parameters, perhaps not of all
    sharded: bool = False  # its parameters may be DTensors, by ``fully_shard``
    lazy: bool = False  # some of its parameters may have no shape yet when it is built (LazyLinear)
    shared: bool = False  # is given parameters twice: those of a module that is a part of two of its models
    regrouped: bool = False  # SGD: some parameters may have other momentum or weight decay than its arguments say
    state_loads: tuple[Act, ...] = ()  # optimizer.load_state_dict(...)
    state_saves: tuple[StateSave, ...] = ()
    branch: Site | None = None  # the outermost if/try/with/loop around its construction, the __main__ guard left out
    trains: Literal["model", "inputs", "unknown"] = "unknown"
    used: bool = True  # some step of the program updates it
    handed_over: bool = False  # DeepSpeed steps it: it may be what `deepspeed.initialize` is given
    owner: str | None = None  # what the framework's object is called where it is built: `accelerator`, `self.fabric`
    complex: bool = False  # some parameters of the program are complex numbers
    frozen: Site | None = None  # where its model is frozen, in every run, but for one or two of its last layers
    qualnames: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD whose construction asks for neither momentum nor weight decay."""
        given = (self.argument("momentum"), self.argument("weight_decay"))
        return (
            self.qualname == "torch.optim.SGD"
            and not self.open_mapping
            and all(each.state == "absent" or (each.state == "value" and not any(each.values)) for each in given)
        )


@dataclass(frozen=True)
class Bulk:
    """An ``Adam`` or ``AdamW`` that is given all parameters of one model with a hundred million of them or more.

    ``text`` is what the function that builds it calls the model there, None where it has no name for it. ``alone``: a
    statement does nothing else than assign or return it. ``hazard``: what needs its states as torch keeps them.
    """

    optimizer: Site
    model: Site
    text: str | None = None
    alone: bool = False
    hazard: Hazard | None = None


@dataclass(frozen=True)
class Scaler:
    """A ``GradScaler``, an ``autocast`` or another part of a mixed-precision set-up that the program has already.

    ``framework``: an engine or wrapper of a library that owns the precision. ``enabled`` is the argument of that name,
    or the test under which the part is made; ``entered`` are the places that put something under it.
    """

    site: Site
    qualname: str
    kind: Literal["scaler", "autocast", "apex", "half", "framework"]
    enabled: Argument = ABSENT
    dtype: str | None = None
    entered: tuple[Site, ...] = ()

    @property
    def disabled(self) -> bool:
        """Whether a literal switches it off where it stands, as around a layer that must stay in float32.

        A name or a setting that is false now is a switch that somebody may turn on.
        """
        enabled = self.enabled
        return enabled.state == "value" and not enabled.values[0] and enabled.edit_at in (None, enabled.site)


@dataclass(frozen=True)
class OldName:
    """One use of a name of ``torch.cuda.amp`` that torch has deprecated: a call of it, or the name by itself.

    ``name`` is ``autocast``, ``GradScaler``, ``custom_fwd`` or ``custom_bwd``, ``site`` what a person would change,
    ``spelled`` the module's part of the text with its new spelling: the name's own, or in the import that brings it,
    which then serves all uses of one ``brought``. ``takes`` are the arguments given. ``bare``: the name decorates a
    function without being called; ``named``: it is only asked for, in an annotation or by ``isinstance``. ``nested``:
    it may be entered inside another region of another dtype. ``guarded``: the program itself asks which torch it has.
    """

    name: str
    site: Site
    spelled: tuple[Site, str]
    brought: Site | None = None
    takes: tuple[str, ...] = ()
    bare: bool = False
    named: bool = False
    nested: bool = False
    guarded: bool = False
    why_not: str | None = None  # what makes another spelling unsafe


@dataclass(frozen=True)
class Scaling:
    """What is done with a gradient scaler, where one name holds it and all of that was seen (else ``why_not``).

    ``statement`` makes it. ``scaled`` are the calls of ``scaler.scale`` with the losses in them, ``steps`` those of
    ``scaler.step`` with the optimizers, ``others`` those that do nothing without it. ``brought`` is the entry of an
    import that brings the scaler's class and nothing else uses.
    """

    site: Site
    statement: Site | None = None
    scaled: tuple[tuple[Site, Site], ...] = ()
    steps: tuple[tuple[Site, Site], ...] = ()
    others: tuple[Site, ...] = ()
    brought: Site | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Owner(Told):
    """One ``Accelerator(...)`` or ``Fabric(...)``: the object through which a framework trains.

    ``started`` is a precision that Accelerate's launcher is told by a file of the project, and the name of that file.
    """

    site: Site
    qualname: str
    arguments: Mapping[str, Argument]
    open_mapping: bool = False
    started: tuple[str, str] | None = None


@dataclass(frozen=True)
class ModuleSteps:
    """The steps of a ``LightningModule``, which Lightning puts under autocast as they are, losses included.

    ``losses`` are the criteria that they call. ``by_hand``: the steps compute beside these and the model, or what it
    has returned is kept, or predicted, for code beside them. ``leaves`` is where the file makes a numpy array of a
    tensor. ``manual``: the module steps its optimizers itself. ``clips`` is where it clips gradients,
    ``hands_clipping``: by Lightning's hand. ``old`` is a name that only Lightning 1 knows. ``resized`` is what may
    change the size of the tensors in them. ``freezes`` is where the file may keep parameters from being trained.
    ``logged`` are the tensors that are read for ``self.log``, and their sources.
    """

    calls: tuple[Called, ...] = ()
    losses: tuple[str, ...] = ()
    by_hand: bool = False
    leaves: Site | None = None
    manual: bool = False
    clips: Site | None = None
    hands_clipping: bool = False
    old: str | None = None
    resumes: bool = False  # a checkpoint may be passed, whose optimizer state is loaded
    resized: Sizes | None = None
    freezes: Site | None = None
    logged: tuple[tuple[Site, str], ...] = ()


Precision: TypeAlias = Literal["float32", "other", "own", "unknown"]
"""What a model is made in; "other": 16 bits or quantized; "own": a class of the project, which may compute anything."""


@dataclass(frozen=True)
class Training(Told):
    """A training that a framework runs by itself, by the settings that it is given.

    ``site`` is the construction of the settings: ``TrainingArguments(...)``, Lightning's ``Trainer(...)``.
    ``arguments`` are what they are given and what the project's own class of settings (``own``) has as fields.
    ``parsed``: they come from the command line, which may set them all, by options that begin so: "--", "--trainer.".
    ``reads`` and ``changed`` are the places that read a setting or set it afterwards ("": that may set any).
    ``overrides`` are the methods of the project's own class of trainer.
    """

    site: Site
    qualname: str
    arguments: Mapping[str, Argument]
    open_mapping: bool = False
    parsed: str | None = None
    own: bool = False
    reads: tuple[tuple[str, Site], ...] = ()
    changed: tuple[tuple[str, Site], ...] = ()
    models: tuple[Model, ...] = ()
    precision: Precision = "unknown"
    overrides: frozenset[str] = frozenset()
    own_optimizer: bool = False  # the trainer is, or may be, given an optimizer
    dataset: Dataset | None = None  # what it trains on, where it is given that
    evaluated: Dataset | None = None  # what it evaluates on, where it is given that
    collate: Literal["default", "function", "lambda", "local", "unknown"] = "default"
    wish: Argument = ABSENT  # over how many batches gradients shall add up, by an option or constant that nothing reads
    stacks: bool = False  # torch.stack puts its batches together, in the way that is the trainer's own
    again: bool = False  # in more than one epoch, with nothing of the script's in between
    resumes: bool = False  # it may go on from a checkpoint, with the state of the optimizer in it
    imported: bool = False  # the settings are made when the file is imported, as a spawned worker does
    module: ModuleSteps | None = None  # what Lightning calls in each step
    # the models in the module that its steps call, each with the statement before which they have these names
    parts: tuple[tuple[str, Model, Site], ...] = ()
    inside: bool = False  # behind it instead: it is the last one of the module's ``__init__``
    in_bar: tuple[Site, ...] = ()  # what the steps of Lightning's module show in its progress bar, by default in each


@dataclass(frozen=True)
class Averaging:
    """A loop over parameters in a training step: ``base`` becomes ``base * scale + other * weight``.

    All are source texts, valid in the loop. Without ``scale`` it is ``lerp_``, without ``weight`` a copy. ``renewed``:
    ``base`` is given other memory (``kept.data = ...``). ``test`` is what is asked of each, ``rest`` what is done to
    all that do not pass; ``done`` are methods that change ``base`` by a number. ``unsure``: what it goes through may be
    something else. ``hollow``: it may find none, as among the buffers of most networks. ``why_not`` is what may be no
    weight.
    """

    loop: Site
    target: str
    iterated: str
    base: str
    other: str
    scale: str | None = None
    weight: str | None = None
    renewed: bool = False
    test: str | None = None
    rest: str | None = None
    done: tuple[tuple[str, str], ...] = ()
    unsure: bool = False
    hollow: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class Repeated:
    """Where activations of a model can be computed again in the backward pass, in a program that lacks memory.

    ``call`` is the call of one of several blocks in the forward pass (``block(x)``), ``owner`` what its method calls
    the model; for a model of transformers, ``call`` is its construction and ``name`` what it is called; where a trainer
    runs it, ``call`` is the construction of the trainer's settings, which have a switch for it (``setting``).
    ``evidence`` tells that memory is what limits the program, ``why_not`` what a second forward pass would change.
    """

    call: Site
    owner: str
    name: str
    evidence: tuple[Evidence, ...]
    library: bool = False
    why_not: str | None = None
    setting: bool = False


@dataclass(frozen=True)
class Part:
    """An object with a state of its own (``state_dict``): how it is called at the loop, what it is, its last name."""

    text: str
    kind: str
    key: str


@dataclass(frozen=True)
class Parser:
    """Where a script says which options it has: its last ``add_argument``, and how the loop calls the parsed ones."""

    last: Site
    name: str
    options: str


@dataclass(frozen=True)
class Run:
    """The outermost loop of a training that saves nothing that it could go on from. ``result`` is where it is saved
    behind it, ``weights`` where weights alone are saved in it, ``body`` the first statement of a round.

    ``counted`` is the call of ``range`` that it counts by, from ``start`` (None: from 0), ``rounds`` how often and
    ``samples`` how many samples a round has, each None where that is not known. ``carried`` are the plain variables
    that a round leaves to the next, ``generators`` the modules beside torch that draw random numbers, ``drawn`` the
    calls that choose the data anew at each start. ``why_not`` is what a checkpoint of these would lack.
    """

    loop: Site
    body: Site
    counter: str
    counted: Site
    start: str | None
    start_site: Site | None
    rounds: int | None
    samples: int | None
    result: Site | None
    parts: tuple[Part, ...]
    carried: tuple[str, ...]
    generators: tuple[str, ...]
    weights: Site | None = None
    parser: Parser | None = None
    drawn: tuple[tuple[Site, str], ...] = ()
    why_not: str | None = None


@dataclass(frozen=True)
class Setting:
    """A global switch that the program sets: ``torch.backends.cuda.matmul.allow_tf32``,
    ``torch.set_float32_matmul_precision``, ``torch.use_deterministic_algorithms``,
    ``os.environ["CUDA_LAUNCH_BLOCKING"]``. ``switch`` is what the tests around it say, as the program stands.
    """

    name: str
    value: Argument
    site: Site
    guard: Guard = ALWAYS
    switch: Argument = ABSENT


@dataclass(frozen=True)
class DebugAid:
    """Something that helps to find errors and slows every step while it is on.

    ``anomaly``: ``torch.autograd.set_detect_anomaly``, ``detect_anomaly``, Lightning's ``detect_anomaly=``, whose
    argument ``value`` turns it on (ABSENT: it is on). ``blocking``: ``os.environ["CUDA_LAUNCH_BLOCKING"]``.
    ``profiler``: a context around the backward pass; ``scheduled`` if it records some of
    the steps, ``read`` where the program uses what it recorded. ``switch`` and ``guard`` are as those of a setting.
    ``caught``: the handler that would take an error which only this aid raises.
    """

    site: Site
    kind: Literal["anomaly", "blocking", "profiler"]
    name: str
    value: Argument = ABSENT
    guard: Guard = ALWAYS
    switch: Argument = ABSENT
    comments: tuple[str, ...] = ()
    caught: Site | None = None
    scheduled: bool = False
    read: Site | None = None


@dataclass(frozen=True)
class Listed:
    """A list that Python makes of tensors or numbers one by one, and what does it at once: a source, with names of
    torch in braces. ``codemod`` speaks of it; ``unplaced``: made for a tensor that may lie on the host. ``more``: what
    else is replaced by what. ``above``: the statement in front of which a name, "{above}", is given what source."""

    site: Site
    message: str
    text: str
    unplaced: bool = False
    codemod: str = "native-ops"
    more: tuple[tuple[Site, str], ...] = ()
    above: tuple[Site, str, str] | None = None


@dataclass(frozen=True)
class Formula:
    """A formula that is written out, and that torch has a function for, by what it computes.

    ``input`` is the source of what it is computed of; ``weight``, ``bias`` and ``eps`` those of a norm over the last
    dimension, ``dim`` that of a softmax. The logits of a cross-entropy (with ``target`` and ``reduction``) may have
    ``many`` dimensions before the last. Of the norms, ``unbiased`` divides by n - 1, ``outside`` adds ``eps`` to the
    deviation, and ``unbiased_outside`` does both. ``removed`` are the statements that only lead to it.
    """

    site: Site
    kind: str  # as torch.nn.functional calls it, or how a norm differs
    input: str
    target: str | None = None
    weight: str | None = None
    bias: str | None = None
    eps: str | None = None
    dim: str | None = None
    many: bool = False
    reduction: str | None = None
    removed: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Unwanted:
    """A call that asks for attention weights which nobody reads: the argument that asks for less, or is ``done``."""

    call: Site
    message: str
    name: str = ""
    value: str = ""
    certain: bool = True
    done: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class Unread:
    """Where attention weights are handed on that nobody seems to read; None for a hook that may read them."""

    site: Site | None


@dataclass(frozen=True)
class Attention:
    """One softmax(QK^T * scale + masks) V that is written out, in a function that the program runs.

    ``product`` is the product of weights and values. All texts are sources valid there: ``mask`` is for ``attn_mask``,
    for ``is_causal`` where it is ``causal``; ``behind`` turns the result. ``heads``: there are three dimensions, and
    torch's kernels take four. ``removed`` are the statements that only lead to it, ``unread`` the weights that are
    handed on and that nobody seems to read. ``typed`` are scores asked for their dtype or device, which are those of
    ``like``. ``certain``: the text alone shows that torch's function computes the same. ``why_not`` speaks against it;
    then the rest is empty.
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
    typed: tuple[Site, ...] = ()
    like: str = ""
    why_not: str | None = None


@dataclass(frozen=True)
class Script:
    """The entry file as a script.

    ``setup`` is the first statement of its set-up code that calls torch (seeding, choosing a device, building the
    model), where a person would put a global switch. ``guarded``: the training runs under ``__main__`` (or is only
    reached by a call from there). ``unguarded`` is the range of top-level statements that would have to move under a
    guard; None when nothing runs at import, or when definitions would have to move, too. ``on_gpu`` is where a guarded
    script puts something on a GPU above its guard, as every spawned worker would do once more. ``trains_at`` is the
    first statement of the set-up in the process that trains, which is ``setup`` where the script's own does: else it
    stands in the function that the others run. None where that is not known to be one place. ``starts``: the file may
    train when it is run; False for one of definitions, which others import and call. ``trains_here``: it trains in its
    own process, too, or in no other one. ``workers``: the functions that set models up in processes that it starts.
    """

    setup: Site | None
    setup_function: Site | None
    guarded: bool
    unguarded: Region | None = None
    on_gpu: Site | None = None
    trains_at: Site | None = None
    starts: bool = True
    trains_here: bool = True
    workers: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Removed:
    """Something that torch or a companion has taken away (``site``), and how it is said today.

    ``how``: ``after`` puts a text behind ``part``; ``argument`` puts the second
    text in the place of an argument, or leaves it out of the call that ``part`` is; ``given`` adds an argument;
    ``name`` is an import that becomes the first text, or the name itself, which becomes
    the second; ``calls`` are those of an AdamW that torch's own takes over.
    """

    site: Site
    message: str
    how: Literal["after", "argument", "given", "name"]
    part: Site | None = None
    texts: tuple[str, ...] = ()
    why_not: str | None = None  # what speaks against the new form, or that there is none
    calls: tuple[Site, ...] = ()


@dataclass(eq=False)
class Modules:
    """The files of a program; those of two programs are equal where their texts are."""

    by_path: Mapping[Path, ModuleFile]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Modules) and self._texts() == other._texts()

    def __hash__(self) -> int:
        return hash(frozenset(self.by_path))

    def __repr__(self) -> str:
        return f"{len(self.by_path)} files"

    def _texts(self) -> dict[Path, str]:
        return {path: module.text for path, module in self.by_path.items()}


@dataclass(frozen=True)
class Overlooked:
    """What is slow by the look of its text; ``around``: the function that it stands in."""

    codemod: str
    site: Site
    message: str
    why_not: str
    around: Site


@dataclass(frozen=True)
class TrainingProgram:
    """Everything the model knows of one entry script and the project modules that it imports.

    ``evaluations`` are those of a program that trains.
    """

    entry: Path
    files: tuple[Path, ...]
    framework: Framework
    complete: bool  # False: the budget ran out, or the program changes its own names (exec); nothing is certain then
    trains: bool  # there is at least one training step
    device: Placement  # of the training as a whole
    script: Script
    target: Target
    names_cuda: bool = False  # its files say "cuda" somewhere, or it moves things to a device that is not known
    steps: tuple[Step, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    loaders: tuple[Loader, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    models: tuple[Model, ...] = ()
    precision: tuple[Scaler, ...] = ()
    settings: tuple[Setting, ...] = ()
    debugging: tuple[DebugAid, ...] = ()  # what was left on from looking for errors
    distributed: bool = False  # torch.distributed is initialised somewhere
    processes: bool = False  # starts processes of its own (Hogwild, mp.spawn)
    incomplete_because: str | None = None
    entered: bool = False  # what trains is called from code that was not followed
    unfollowed: tuple[str, ...] = ()  # where nothing trains: sentences on what may, and was not followed
    libraries: frozenset[str] = (
        frozenset()
    )  # the packages that its files import, by their first name: "gym", "torchdiffeq"
    thaws: tuple[Site, ...] = ()  # where tensors are told to take gradients again: `p.requires_grad = True`
    removed: tuple[Removed, ...] = ()  # what has to be mended before it can run
    owners: tuple[Owner, ...] = ()  # the framework's objects
    trainings: tuple[Training, ...] = ()  # what a framework's own trainer is asked for
    hands_over: bool = False  # they may leave model and precision to an engine: DeepSpeed, Megatron-LM, FSDP
    preloads: tuple[Preload, ...] = ()  # loaders that could take whole batches of items that are made once
    rebuilt: tuple[Rebuilt, ...] = ()  # what its loops build anew in every round
    layouts: Layouts = Layouts()
    biases: Biases = Biases()
    # how it changes the learning rate: from its height on, by schedules that multiply it, or in another way
    schedule: Literal["no", "falling", "other"] = "no"
    placed: frozenset[Site] = frozenset()  # the models, optimizers and loaders that the framework moves to its device
    old_names: tuple[OldName, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    creations: tuple[Creation, ...] = ()  # in the passes of a framework's training, as those of a step
    moved_again: tuple[MovedAgain, ...] = ()  # what objects keep on the host, and copy to the GPU whenever it is read
    averagings: tuple[Averaging, ...] = ()  # loops over the parameters of two models, in training steps
    repeated: tuple[Repeated, ...] = ()  # where a program that lacks memory could do without activations
    run: Run | None = None  # the loop of the whole training, where nothing is kept before its end
    attentions: tuple[Attention, ...] = ()  # those that are written out, of a program that trains
    unwanted: tuple[Unwanted, ...] = ()
    fused_attentions: tuple[Site, ...] = ()  # where it calls torch's own
    same_items: tuple[SameItems, ...] = ()  # datasets whose items are made anew in each epoch, and need not be
    built_again: tuple[BuiltAgain, ...] = ()
    bulks: tuple[Bulk, ...] = ()  # the optimizers that keep states for large models, of a program that trains
    listed: tuple[Listed, ...] = ()  # lists of tensors that one call makes
    formulas: tuple[Formula, ...] = ()  # those that torch has a function for, of a program that trains
    paddings: tuple[Padding, ...] = ()
    samplings: tuple[Sampling, ...] = ()  # the functions that a training calls and that build graphs for nothing
    held: tuple[Held, ...] = ()  # what keeps it on the CPU although it moves by a device
    unplaced: Unplaced | None = None  # None for a program that knows of devices, or is none of plain torch
    habits: tuple[InPlace, ...] = ()  # what it does right, as far as a table tells
    overlooked: tuple[Overlooked, ...] = ()  # what a table tells of its text alone
    acts_on: frozenset[tuple[Path, int]] = frozenset()  # the lines of its modules, less the script's, that do something
    told_by: Mapping[Site, tuple[Site, ...]] = field(
        default_factory=dict
    )  # constructions by mappings of configuration files: a value in each mapping
    guessed: frozenset[Path] = frozenset()  # files of which no path says that they are read, or are so as they stand
    modules: Modules = field(default_factory=lambda: Modules({}))  # its files, as they were executed

    @property
    def trained_at(self) -> Site | None:
        """A place in the program that stands for its training: its loop, what a framework is told, or its set-up."""
        places = (*(step.loop.site for step in self.steps), *(each.site for each in self.trainings), self.script.setup)
        own = (each for each in places if each is not None and each.path.suffix != STUB)
        return next(own, None) if self.trains else None

    def loader(self, site: Site | None) -> Loader | None:
        """The loader constructed at ``site``."""
        return next((loader for loader in self.loaders if loader.site == site), None)

    def optimizer(self, site: Site | None) -> Optimizer | None:
        """The optimizer constructed at ``site``."""
        return next((optimizer for optimizer in self.optimizers if optimizer.site == site), None)

    def model(self, site: Site | None) -> Model | None:
        """The model constructed at ``site``."""
        return next((model for model in self.models if model.site == site), None)

    def part(self, site: Site | None) -> Scaler | None:
        """The part of mixed precision that is made, or entered, at ``site``; one that is on before one that is off."""
        parts = [part for part in self.precision if site == part.site or site in part.entered]
        return min(parts, key=lambda part: (part.enabled.off, part.enabled.option is None), default=None)

    def setting(self, name: str) -> tuple[Setting, ...]:
        """Every place that sets the switch of that qualified name."""
        return tuple(setting for setting in self.settings if setting.name == name)
