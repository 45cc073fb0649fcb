"""The criteria whose values the backward passes of a step start from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Const,
    External,
    Function,
    Instance,
    Made,
    Opaque,
    Tensor,
    Unknown,
    Value,
    members,
)
from turbofix.library.tables import NO_MIXING, is_sigmoid, unfit_for_half, widened_operands
from turbofix.records import dataclass
from turbofix.source.site import Site
from turbofix.training.model import Called, Loss, Region
from turbofix.training.objects import models_in
from turbofix.training.steps.acts import loss_expression
from turbofix.training.steps.regions import no_grad


def loss_of(analysis: Analysis, backwards: list[Event], events: list[Event]) -> Loss:
    """The criteria whose values the backward passes start from: all that an option chooses among."""
    facts = analysis.facts
    called = [event for event in events if event.kind == "criterion" and not no_grad(event)]
    criteria = _criteria(analysis, called)
    if not criteria:  # the model computes its own loss, and its code was followed for another call of it
        criteria = _criteria(analysis, [each for each in inside_models(analysis, events) if each.kind == "criterion"])
    certainty = "unknown"
    for backward in backwards:
        for member in members(backward.receiver):
            if isinstance(member, Tensor):
                known = member.roles & {"loss", "output", "maybe_output"}
                certainty = "seen" if known or certainty == "seen" else "inferred"
    if criteria and certainty == "unknown":
        certainty = "inferred"
    if certainty == "seen" and _chooses_unknown(analysis, events, {site for site, _ in criteria}):
        certainty = "inferred"
    text = None
    if backwards:
        expression = loss_expression(analysis, backwards[-1])
        text = facts.places.text(expression, backwards[-1].module) if expression is not None else None
    ordered = sorted(criteria)
    return Loss(
        certainty,  # type: ignore[arg-type]
        tuple(name for _, name in ordered),
        text,
    )


def _criteria(analysis: Analysis, events: Iterable[Event]) -> set[tuple[Site, str]]:
    """The places and names of criteria."""
    return {(analysis.facts.site(event), name) for event in events for name in _criterion_names(event)}


def _chooses_unknown(analysis: Analysis, events: Iterable[Event], criteria: set[Site]) -> bool:
    """Whether a call of a criterion may call something instead whose making was not seen through."""
    return any(
        event.kind == "unknown_call"
        and any(isinstance(each, Opaque) and each.how == "call" for each in members(event.receiver))
        and analysis.facts.site(event) in criteria
        for event in events
    )


def inside_models(analysis: Analysis, events: list[Event]) -> list[Event]:
    """What happens in the forward passes of the models that the events call, in whatever call it was followed."""
    forwards = {
        function.node
        for event in events
        if event.kind in ("forward", "criterion")
        for model in models_in(event.receiver)
        if isinstance(model, Instance)
        if isinstance(function := model.cls.find("forward"), Function)
    }
    inside = analysis.facts.events_in_functions(forwards)
    return [event for event in inside if event.kind in ("criterion", "call", "forward")]


def _criterion_names(event: Event) -> Iterator[str]:
    found = False
    for member in members(event.receiver):
        if isinstance(member, (Made, External)):
            yield member.qualname
        elif isinstance(member, Instance):
            yield member.cls.node.name
        else:
            continue
        found = True
    if not found:
        yield event.name or "unknown"


# --- what forward passes call ---------------------------------------------------------------------------------------


def called_in(
    analysis: Analysis, events: list[Event], loop: ast.AST | None = None, regions: Iterable[Region] = ()
) -> tuple[Called, ...]:
    """The external calls inside the forward passes: those under a model's call, and those on tensors beside it.

    ``regions`` are the statements of the forward passes in the iterations of ``loop``.
    """
    found: dict[tuple[Site, str], _Given] = {}
    by_node: dict[tuple[ast.AST, str], _Given] = {}  # the same: most places are come by many times
    known = analysis.once("what calls are given", dict[Event, "tuple[str, _Given]"])  # loops share their events
    for event in dict.fromkeys((*events, *inside_models(analysis, events))):
        if event.kind not in ("call", "forward", "criterion"):
            continue
        call = known.get(event)
        if call is None:
            call = known[event] = _given_at(event)
            if call[0] and (unfit_for_half(call[0]) is not None or is_sigmoid(call[0])):
                call[1].operands = _operands(analysis, event, call[0])
        name, one = call
        if not name:
            continue
        given = by_node.get((event.node, name))
        if given is None:
            given = by_node[event.node, name] = found.setdefault((analysis.facts.site(event), name), _Given())
        given.add(one)
        given.beside = given.beside and loop is not None and _is_beside(analysis, event, loop, regions)
    return tuple(
        Called(name, site, given.constants, given.weights, given.halves, given.beside, tuple(given.operands or ()))
        for (site, name), given in sorted(found.items(), key=_by_place)
    )


def _is_beside(analysis: Analysis, event: Event, loop: ast.AST, regions: Iterable[Region]) -> bool:
    """Whether an event happens in the iterations of a loop, and in none of its regions."""
    frames = analysis.facts.frames(event)
    nodes = (*(frame.call for frame in frames[1:]), event.node)
    return any(loop in frame.loops for frame in frames) and not any(
        region.first.line <= getattr(node, "lineno", 0) <= region.last.end_line
        and frame.module.path == region.first.path
        for region in regions
        for frame, node in zip(frames, nodes, strict=True)
    )


def _by_place(found: tuple[tuple[Site, str], object]) -> tuple[object, ...]:
    """Paths are compared in Python code, and their parts are not."""
    site, name = found[0]
    return site.path.parts, site[1:], name


def _given_at(event: Event) -> tuple[str, _Given]:
    """The name of what is called at an event, and what it is given; no name for what computes nothing with tensors."""
    if event.kind == "call":
        name = qualname_of(event)
    else:
        names = [member.qualname for member in members(event.receiver) if isinstance(member, (Made, External))]
        name = min(names, default=event.name)
    if not name or name.startswith(("builtins.", "logging.", "os.", "time.", "math.")):
        return "", _Given()
    constants: list[object] = []
    weights = halves = False
    passed = event.arguments.values() if event.arguments is not None else ()
    for value in (event.receiver, *passed):
        for each in members(value):
            if isinstance(each, Tensor):
                weights = weights or "param" in each.roles
                halves = halves or each.half
            elif isinstance(each, Const):
                constants.append(each.value)
            elif isinstance(each, (Opaque, Unknown)):
                weights = True
    return name, _Given(tuple(constants), weights, halves)


def _operands(analysis: Analysis, event: Event, name: str) -> list[Site]:
    """The expressions of a call that is unfit for 16 bits to which a type can be given; none where one is no tensor."""
    node, places = event.node, analysis.facts.places
    if event.arguments is None or not isinstance(node, (ast.Call, ast.Subscript)):
        return []
    found: dict[ast.AST, Value | None] = {}
    for key, place in widened_operands(name):
        passed = event.arguments.get(key, place) if place >= 0 else None
        if passed is not None and passed.node is not None:
            found[passed.node] = passed.value
        elif place < 0 and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found[node.func.value] = event.receiver
    if isinstance(node, ast.Subscript):  # `kept[mask] = values`
        statement = places.parent(node, event.module)
        if isinstance(statement, ast.Assign) and statement.targets == [node]:
            found[statement.value] = event.arguments.positions[1].value
    mixed = unfit_for_half(name) == NO_MIXING
    tensors = {each: {type(one) for one in members(value)} == {Tensor} for each, value in found.items()}
    kept = [each for each, sure in tensors.items() if sure or not mixed]
    return [places.site(each, event.module) for each in kept]


def qualname_of(event: Event) -> str:
    """The name of what a call calls; ``Tensor.scatter.value`` where one number is scattered, which has no type."""
    owner, _, last = event.name.rstrip("_").rpartition(".") if "scatter" in event.name else ("", "", "")
    if last != "scatter" or owner not in ("torch", "Tensor") or event.arguments is None:
        return event.name
    passed = event.arguments.get("value", 3 if owner == "torch" else 2)
    given = members(passed.value) if passed is not None else ()
    number = bool(given) and all(isinstance(each, Const) and isinstance(each.value, (int, float)) for each in given)
    return f"{owner}.scatter.value" if number else event.name


@dataclass(eq=False, slots=True)
class _Given:
    """What a call is given: its literals, and whether weights or numbers of 16 bits are among the rest."""

    constants: tuple[object, ...] = ()
    weights: bool = False
    halves: bool = False
    beside: bool = True
    operands: list[Site] | None = None

    def add(self, other: _Given) -> None:
        """Another caller may pass others."""
        self.weights = self.weights or other.weights
        self.halves = self.halves or other.halves
        if other.operands is not None:
            self.operands = [each for each in other.operands if self.operands is None or each in self.operands]
        if other.constants:
            self.constants += tuple([each for each in other.constants if each not in self.constants])
