"""Training steps, evaluations and what they compute for nobody, as codemods see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from turbofix.dataflow.known import ABSENT, ALWAYS, Placement
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.dataflow.known import Accumulator, Argument, Guard
    from turbofix.source.site import Site
    from turbofix.training.model.data import Sizes
    from turbofix.training.model.devices import Chore, Creation, HostIndex, Show, Sync, Transfer


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
    not come out as tensors. ``mixed``: a statement calls a model and computes a
    loss of it. ``idle`` are statements behind
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
    mixed: bool = False
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
    concerns: str = ""  # of a step: `optimizer` in `scaler.step(optimizer)`; of a load: the state, where it is named
    owner: str = ""  # of a backward: the source of Accelerate's or Fabric's object that it is called on


@dataclass(frozen=True)
class Accumulation:
    """Gradients summed over several micro-batches before one optimizer step."""

    steps: Argument  # how many micro-batches
    guard: Site  # the `if` that holds the optimizer's step, or the inner loop over micro-batches
    divided: bool  # the loss is divided by the same value


@dataclass(frozen=True)
class Reduction:
    """How the gradients of a step come from process to process, where each backward pass may sum them over all.

    ``held``: where the program keeps them back, or (``late``) means to: the forward passes stand outside of it.
    Else ``stepping`` is the source of a test, valid in front of the statement ``first``, that is true for each
    micro-batch that an update may follow; ``last`` is the statement that goes backward. ``model`` is the source of what
    is wrapped, ``sure`` if it always is, ``owner`` that of Accelerate's object. ``why_not`` speaks against it.
    """

    backward: Site
    model: str = ""
    owner: str = ""
    sure: bool = True
    first: Site | None = None
    last: Site | None = None
    stepping: str = ""
    held: Site | None = None
    late: bool = False
    why_not: str | None = None


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


@dataclass(frozen=True)
class Zeroing:
    """Gradients that are filled with zeros in a step: ``zero_grad(set_to_none=False)``, or a ``loop`` over parameters.

    ``receiver_text`` is what is told to forget them (``optimizer``, ``self.model``), None where that is not known to be
    a module or an optimizer of torch.
    """

    site: Site
    receiver_text: str | None
    loop: bool = False
    guard: Guard = ALWAYS


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
class ThrownAway:
    """A backward pass that goes on into models whose gradients of it nothing uses: they are cleared before a step.

    ``cuts`` are the expressions at which it could end, tensors that a model or a criterion is given, ``names`` their
    sources. ``models`` is what the program calls those models, ``cleared`` where it clears their gradients (nowhere, if
    no optimizer is given their parameters). ``why_not`` is what may use the gradients all the same. ``done``: it does
    not go on into them, since what they gave is detached already. ``kept``: it has to go through them, and only the
    gradients of their weights are lost; these are the models whose gradients are wanted, as they are called there.
    ``certain``: no run has to tell. ``at_once``: ``backward`` is a statement
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
    accumulation: Accumulation | None = None
    reduction: Reduction | None = (
        None  # of its gradients over processes; None on one, and without several micro-batches
    )
    syncs: tuple[Sync, ...] = ()
    shows: tuple[Show, ...] = ()
    autocast: Site | None = None  # an autocast region (or context variable that may be one) around the forward pass
    device: Placement = Placement("unknown")  # where its forward pass runs
    optimizers: tuple[Site, ...] = ()
    models: tuple[Site, ...] = ()
    calls: tuple[Called, ...] = ()  # external calls inside the forward region
    grad_reads: tuple[Site, ...] = ()  # `.grad` read by hand
    certainty: Literal["seen", "inferred"] = "seen"
    forwards: tuple[Region, ...] = ()  # one region for each loss: a GAN has several, and then `forward` has a blocker
    leaks: tuple[
        Accumulator, ...
    ] = ()  # `total += loss` with its graph, never backpropagated: every step's graph is kept
    thrown_away: tuple[ThrownAway, ...] = ()  # backward passes that compute gradients which nothing uses
    chores: tuple[Chore, ...] = ()  # what keeps house in it
    zeroings: tuple[Zeroing, ...] = ()  # where it fills gradients with zeros
    late: Site | None = None  # SGD with momentum: what may give a parameter its first gradient after the first update
    creations: tuple[Creation, ...] = ()  # tensors made on the host and copied at once
    indices: tuple[HostIndex, ...] = ()  # what lies on the host and indexes several tensors on the GPU
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
    ``why`` says what may need them, and ``where``: ``asked`` (a gradient is asked for), ``yielded`` (others run in the
    midst of it), ``taken`` (results go on to a step), ``kept`` (they may), ``library`` (of attacks or explanations).
    """

    loop: Site
    function: Site | None = None
    through: frozenset[Site] = frozenset()
    why: str | None = None
    where: Site | None = None


@dataclass(frozen=True)
class Sampling:
    """A function that the training calls, whose forward passes build graphs that nothing takes out of it.

    ``loop`` is the innermost loop of the training around the call, ``models`` are those that it calls.
    """

    function: Site
    loop: Site
    models: tuple[Site, ...] = ()


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
class Averaging:
    """A loop over parameters in a training step: ``base`` becomes ``base * scale + other * weight``.

    All are source texts, valid in the loop. Without ``scale`` it is ``lerp_``, without ``weight`` a copy. ``test`` is
    what is asked of each, ``done`` are methods that change ``base`` by a number. ``unsure``: it may go through
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
    test: str | None = None
    done: tuple[tuple[str, str], ...] = ()
    unsure: bool = False
    hollow: bool = False
    why_not: str | None = None
