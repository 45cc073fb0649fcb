"""The training program as a whole: its files, its settings, and all that was found in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from turbofix.dataflow.known import ABSENT, ALWAYS
from turbofix.records import dataclass
from turbofix.source.site import STUB
from turbofix.training.model.models import Biases, Layouts

if TYPE_CHECKING:
    from turbofix.dataflow.known import Argument, Guard, Placement
    from turbofix.domain.scopes import ModuleFile
    from turbofix.findings import InPlace
    from turbofix.source.site import Site
    from turbofix.training.model.data import Loader, Padding, Preload, Rebuilt, Remembered, SameItems
    from turbofix.training.model.devices import Creation, Held, Unplaced
    from turbofix.training.model.frameworks import Framework, Owner, Training
    from turbofix.training.model.models import Attention, Formula, Listed, Model, Repeated, Wrapping
    from turbofix.training.model.optimizers import OldName, Optimizer, Scaler
    from turbofix.training.model.parallel import Parallel, Sharding, Stage, Staged
    from turbofix.training.model.steps import Averaging, Evaluation, Region, Sampling, Step


@dataclass(frozen=True)
class Target:
    """What the rewritten program must run on.

    ``capability`` is the CUDA compute capability (8.0 = Ampere), ``torch`` the oldest torch version, as (2, 4).
    ``recent``: the version that it may be as well where only the project's own requirements name ``torch``, as they
    did when they were written. ``others`` are the oldest versions of other packages, where the project says so.
    ``gpus``: on so many at once. ``zero``: what of a training is shared out among them (1 to 3), 0 for nothing;
    ``pipeline``: or its layers in so many stages.
    """

    capability: tuple[int, int] = (8, 0)
    torch: tuple[int, int] = (2, 4)
    recent: tuple[int, int] | None = None
    others: tuple[tuple[str, tuple[int, int]], ...] = ()
    gpus: int = 1
    zero: int = 0
    pipeline: int = 1

    def oldest(self, package: str) -> tuple[int, int] | None:
        """The oldest version of another package that a rewrite must serve; None where nothing is asked for."""
        return dict(self.others).get(package)


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
    that a round leaves to the next, ``generators`` the modules beside torch that draw random numbers. ``why_not`` is
    what a checkpoint of these would lack.
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
    comments: tuple[str, ...] = ()  # beside and above it


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
    wrappings: tuple[Wrapping, ...] = ()  # by DistributedDataParallel
    precision: tuple[Scaler, ...] = ()
    settings: tuple[Setting, ...] = ()
    distributed: bool = False  # torch.distributed is initialised somewhere
    processes: bool = False  # starts processes of its own (Hogwild, mp.spawn)
    incomplete_because: str | None = None
    unfollowed: tuple[str, ...] = ()  # where nothing trains: sentences on what may, and was not followed
    libraries: frozenset[str] = (
        frozenset()
    )  # the packages that its files import, by their first name: "gym", "torchdiffeq"
    thaws: tuple[Site, ...] = ()  # where tensors are told to take gradients again: `p.requires_grad = True`
    removed: tuple[Removed, ...] = ()  # what has to be mended before it can run
    owners: tuple[Owner, ...] = ()  # the framework's objects
    trainings: tuple[Training, ...] = ()  # what a framework's own trainer is asked for
    hands_over: bool = False  # they may leave model and precision to an engine: DeepSpeed, Megatron-LM, FSDP
    remembered: tuple[Remembered, ...] = ()  # memories of agents that steps draw their batches of
    numbered: Mapping[Site, Site] = field(default_factory=dict)  # loaders of numbers, with where a helper can go
    preloads: tuple[Preload, ...] = ()  # loaders that could take whole batches of items that are made once
    rebuilt: tuple[Rebuilt, ...] = ()  # what its loops build anew in every round
    layouts: Layouts = Layouts()
    biases: Biases = Biases()
    # how it changes the learning rate: from its height on, by schedules that multiply it, or in another way
    schedule: Literal["no", "falling", "other"] = "no"
    placed: frozenset[Site] = frozenset()  # the models, optimizers and loaders that the framework moves to its device
    old_names: tuple[OldName, ...] = ()
    creations: tuple[Creation, ...] = ()  # in the passes of a framework's training, as those of a step
    averagings: tuple[Averaging, ...] = ()  # loops over the parameters of two models, in training steps
    repeated: tuple[Repeated, ...] = ()  # where a program that lacks memory could do without activations
    run: Run | None = None  # the loop of the whole training, where nothing is kept before its end
    attentions: tuple[Attention, ...] = ()  # those that are written out, of a program that trains
    unwanted: tuple[Unwanted, ...] = ()
    fused_attentions: tuple[Site, ...] = ()  # where it calls torch's own
    same_items: tuple[SameItems, ...] = ()  # datasets whose items are made anew in each epoch, and need not be
    listed: tuple[Listed, ...] = ()  # lists of tensors that one call makes
    formulas: tuple[Formula, ...] = ()  # those that torch has a function for, of a program that trains
    paddings: tuple[Padding, ...] = ()
    samplings: tuple[Sampling, ...] = ()  # the functions that a training calls and that build graphs for nothing
    held: tuple[Held, ...] = ()  # what keeps it on the CPU although it moves by a device
    parallel: Parallel | None = None  # what several processes need, where it is for several GPUs
    shardings: tuple[Sharding, ...] = ()  # of its optimizers, where these are asked for and it has several processes
    stages: tuple[Stage, ...] = ()  # what DeepSpeed is told of ZeRO
    staged: Staged | None = None  # what it takes to have a stage of layers in each, where that is asked for
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
