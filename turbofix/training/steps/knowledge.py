"""How surely the parts of a training step are known: its optimizer, its model, and where its data come from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.facts import unwrapped
from turbofix.dataflow.questions import Analysis
from turbofix.domain.tensors import tensors_passed
from turbofix.domain.trace import Event
from turbofix.domain.values import CUT, Instance, Made, Opaque, Tensor, Value, flatten, members
from turbofix.source.site import Site
from turbofix.training.model import Known
from turbofix.training.objects import called_through, models_in, outermost
from turbofix.training.steps.acts import ENGINES, concerned, is_model, optimizers_held, optimizers_in, stepper
from turbofix.training.steps.regions import no_grad


def _joined(parts: list[Known]) -> Known:
    """Several parts that must all be known: as sure as the least sure of them."""
    if not parts:
        return Known()
    names = tuple(sorted({name for part in parts for name in part.names}))
    for certainty in ("unknown", "inferred"):
        whys = [part.why for part in parts if part.certainty == certainty]
        if whys:
            return Known(certainty, names, next((why for why in whys if why), None))
    return Known("seen", names)


def name_of(value: Value) -> str:
    """What a person would call an object: its class, or the name that it goes by."""
    if isinstance(value, Made):
        return value.qualname
    if isinstance(value, Instance):
        return value.cls.node.name
    return value.name if isinstance(value, Opaque) else type(value).__name__.lower()


# --- optimizers -------------------------------------------------------------------------------------------------------


def optimizer_known(updates: Iterable[Event]) -> Known:
    """What the updates of a step step: all of them must be known."""
    return _joined([_stepped(concerned(event)) for event in updates])


def _stepped(value: Value | None) -> Known:
    found = {name_of(each) for each, _ in optimizers_held(value)}  # of the project's own, the project's class
    if found:
        return Known("seen", tuple(sorted(found)))
    for member in members(value):
        if isinstance(member, Made) and member.kind in ENGINES:
            return Known("inferred", (member.qualname,), "the framework makes or holds it")
    kind = stepper(value)
    names = tuple(sorted({name_of(member) for member in members(value) if isinstance(member, (Opaque, Instance))}))
    if kind in ("likely", "optimizer", "scaler"):
        return Known("inferred", names, "where it is made was not seen; it is used like an optimizer")
    return Known("unknown", names, "where it is made was not seen")


# --- models -----------------------------------------------------------------------------------------------------------

_FED = frozenset({"batch", "input", "made", "data"})
_COMPUTED = frozenset({"output", "maybe_output", "loss"})


def model_known(analysis: Analysis, events: list[Event], updates: Iterable[Event], loop: ast.AST) -> Known:
    """What a step calls as its model, with a graph: what only evaluates is not trained."""
    parts: list[Known] = []
    forwards = outermost(analysis, [each for each in events if each.kind == "forward"])
    unseen = _unseen_calls(events)
    for event in [each for each in forwards if not no_grad(each)] or forwards:
        owner = called_through(analysis, event, loop)
        found = [owner] if owner is not None else list(models_in(event.receiver))
        made = [each for each in found if not isinstance(each, Opaque)]
        if made:
            names = {name_of(each) for each in made}
            others = [] if owner is not None else [*_unseen(event.receiver), *unseen.get(id(event.node), ())]
            if others:
                names |= {name_of(each) for each in others if isinstance(each, Opaque)}
                parts.append(Known("inferred", tuple(sorted(names)), "not every model that it may be was seen"))
            else:
                parts.append(Known("seen", tuple(sorted(names))))
        else:
            wrapping = [each for each in members(event.receiver) if isinstance(each, Made) and each.kind == "wrapper"]
            if found or wrapping:
                parts.append(_by_use(found or wrapping))
    if parts:
        return _joined(parts)
    used = _called_unknowns(events)
    if used:
        return _by_use(used)
    if _trains_tensors(updates):
        return Known("seen", ("tensors",), "the step optimises tensors, no model")
    return Known("unknown", (), "no call of a model was seen")


def _unseen_calls(events: Iterable[Event]) -> dict[int, list[Value]]:
    """What a call may call whose making was not seen, by the call: a call of a union is one event for each member."""
    found: dict[int, list[Value]] = {}
    for event in events:
        if event.kind == "unknown_call":
            found.setdefault(id(event.node), []).extend(_unseen(event.receiver))
    return found


def _unseen(value: Value | None, depth: int = 6) -> Iterator[Value]:
    """Of the models that a value may be or wrap, those that were not seen being made, or were too many to name."""
    for member in members(value):
        if member is CUT or (isinstance(member, Opaque) and (member.how == "call" or is_model(member))):
            yield member
        elif isinstance(member, Made) and member.kind in ("wrapper", *ENGINES) and depth:
            yield from _unseen(member.inner, depth - 1)


def _called_unknowns(events: list[Event]) -> list[Value]:
    """The unknown objects that a step calls as its model: used like one, else the first that the batch is given to."""
    modelled: list[Value] = []
    fed: list[Value] = []
    further: list[Value] = []
    for event in events:
        if event.kind != "unknown_call" or event.arguments is None:
            continue
        called = [each for each in members(event.receiver) if isinstance(each, Opaque)]
        roles = frozenset().union(*(tensor.roles for tensor in tensors_passed(event.arguments)))
        modelled += [each for each in called if is_model(each)]
        if roles & _COMPUTED:
            further += called
        elif roles & _FED:
            fed += called
    return modelled or fed or further


def _by_use(values: Iterable[Value]) -> Known:
    names = tuple(sorted({name_of(value) for value in values}))
    return Known("inferred", names, "where it is made was not seen; it is called with the batch")


def _trains_tensors(updates: Iterable[Event]) -> bool:
    """Whether the optimizers of all updates were given tensors that no model holds."""
    held: list[Value] = []
    for event in updates:
        found = [each for each in optimizers_in(concerned(event)) if isinstance(each, Made)]
        if not found:
            return False
        for made in found:
            passed = made.arguments.get("params", 0)
            if passed is None:
                return False
            held += [each for each in flatten(passed.value, 4) if isinstance(each, (Tensor, Opaque, Instance, Made))]
    return bool(held) and all(isinstance(each, Tensor) and each.source is None for each in held)


# --- data -------------------------------------------------------------------------------------------------------------


def data_known(values: Iterable[Value | None], loaders: list[Site], kind: str) -> Known:
    """What a step's data come out of."""
    unseen = {
        member.name for value in values for member in unwrapped(value) if isinstance(member, Opaque) and member.name
    }
    if kind == "unknown":
        return Known("unknown", tuple(sorted(unseen)), "what the loop runs over was not seen being made")
    names = tuple(f"{site.path.name}:{site.line}" for site in loaders) or (kind,)
    if unseen:
        return Known("inferred", names, f"{min(unseen)} was not seen being made on every path")
    return Known("seen", names)
