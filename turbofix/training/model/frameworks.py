"""Trainings whose loop a framework owns, as codemods see them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from turbofix.dataflow.known import ABSENT, Told
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.dataflow.known import Argument
    from turbofix.source.site import Site
    from turbofix.training.model.data import Dataset, Sizes
    from turbofix.training.model.models import Model
    from turbofix.training.model.steps import Called


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
class Handed:
    """What the last statement of ``configure_optimizers`` returns: one optimizer, by name or ``made`` there, and its
    schedules as they are written; ``value`` is the whole of it."""

    returned: Site
    value: Site
    optimizer: str
    made: Site | None
    schedules: tuple[str, ...]


@dataclass(frozen=True)
class ModuleSteps:
    """The steps of a ``LightningModule``, which Lightning puts under autocast as they are, losses included.

    ``losses`` are the criteria that they call. ``by_hand``: the steps compute beside these and the model, or what it
    has returned is kept, or predicted, for code beside them. ``leaves`` is where the file makes a numpy array of a
    tensor. ``manual``: the module steps its optimizers itself. ``clips`` is where it clips gradients,
    ``hands_clipping``: by Lightning's hand. ``old`` is a name that only Lightning 1 knows. ``resized`` is what may
    change the size of the tensors in them. ``freezes`` is where the file may keep parameters from being trained.
    ``logged`` are the tensors that are read for ``self.log``, and their sources. ``handed``: its optimizer and
    schedules, or why it is not seen what these are.
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
    handed: Handed | str = "`configure_optimizers` was not found"


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
    sixteen_since: str | None = None  # the version of its library from which on it computes in 16 bits by itself
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
class Unread:
    """Where attention weights are handed on that nobody seems to read; None for a hook that may read them."""

    site: Site | None
