"""Optimizers and gradient scalers, as codemods see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from turbofix.dataflow.known import ABSENT, Placement, Told
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.dataflow.known import Argument
    from turbofix.source.site import Site
    from turbofix.training.model.models import Passing
    from turbofix.training.model.steps import Act


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
    unfused: str | None = None  # what makes gradients sparse, or DTensors, for which it has no fused kernel
    shared: bool = False  # is given parameters twice: those of a layer that is a part of two of its models
    regrouped: bool = False  # SGD: some parameters may have other momentum or weight decay than its arguments say
    state_loads: tuple[Act, ...] = ()  # optimizer.load_state_dict(...)
    state_saves: tuple[StateSave, ...] = ()
    branch: Site | None = None  # the outermost if/try/with/loop around its construction, the __main__ guard left out
    trains: Literal["model", "inputs", "unknown"] = "unknown"
    used: bool = True  # some step of the program updates it
    handed_over: bool = False  # DeepSpeed steps it: it may be what `deepspeed.initialize` is given
    owner: str | None = None  # what the framework's object is called where it is built: `accelerator`, `self.fabric`
    complex: bool = False  # some parameters of the program are complex numbers
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

    ``name`` is ``autocast`` or ``GradScaler``, ``site`` what a person would change, ``spelled`` the module's part of
    the text with its new spelling: the name's own, or in the import that brings it, which then serves all uses of one
    ``brought``. ``takes`` are the names of the arguments given. ``named``: it is only asked for, in an annotation or by
    ``isinstance``. ``nested``: another type may be in force. ``guarded``: the program itself asks which torch it has.
    """

    name: str
    site: Site
    spelled: tuple[Site, str]
    brought: Site | None = None
    takes: tuple[str, ...] = ()
    named: bool = False
    nested: bool = False
    guarded: bool = False
    why_not: str | None = None  # what makes another spelling unsafe
