"""Calls of models: their own code is executed, and the layers that they hold."""

from __future__ import annotations

import ast
from operator import attrgetter

from turbofix.domain.tensors import NO_ROLES, device_of, surest, tensors_passed
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    UNKNOWN,
    Bound,
    Computed,
    Const,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Sequence,
    Tensor,
    Union,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter.containers import element_of
from turbofix.interpreter.definitions import LAYERS, is_criterion, is_layer, is_module
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries

LAYERED = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
"""What is given its layers when it is built."""


def layers_given(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if qualname == "torch.nn.Sequential" and not arguments.star:
        passed = [each.value for each in arguments.positions]
        if len(passed) == 1 and isinstance(passed[0], Mapping):
            return Sequence([entry.value for entry in passed[0].entries.values()], interp.control)
        if len(passed) == 1 and isinstance(passed[0], (Made, Instance)) and not is_layer(passed[0]):
            passed = [iterate(interp, passed[0], node)]
        return Sequence(passed, interp.control, interp.origin(node))
    values = [each.value for each in arguments.positions]
    if not values:
        return Sequence([], interp.control, interp.origin(node), "list")
    value = values[0]
    if type(value) is Sequence and not arguments.star:
        items = list(value.items) if value.items is not None else None
        return Sequence(items, interp.control, interp.origin(node), "list", value.element)
    if isinstance(value, Mapping):
        found = [entry.value for entry in value.entries.values()]
        return Sequence(found or None, interp.control, interp.origin(node), "list", value.element)
    element = join_all(values) if arguments.star else iterate(interp, value, node)
    return Sequence(None, interp.control, interp.origin(node), "list", element)


def name_layers(made: Made, layers: Value) -> None:
    """A ``ModuleDict``'s layers are its attributes, too: ``self.transformer.wte``."""
    for each in members(layers):
        if isinstance(each, Mapping):
            for key, entry in each.entries.items():
                if isinstance(key, str):
                    made.attributes[key] = join(made.attributes.get(key), entry.value) or entry.value


def add_layer(interp: Interpreter, model: Made, layer: Value) -> None:
    inner = model.inner if type(model.inner) is Sequence else None
    if inner is None:
        model.inner = Sequence([layer], interp.control, None, "list")
    elif inner.items is not None and interp.certainty(inner.made_at) == "strong":
        inner.items.append(layer)
    else:
        inner.element = join(element_of(inner) if inner.items else inner.element, layer)
        inner.items = None


def parts_of(interp: Interpreter, model: Instance | Made, node: ast.AST) -> Value | None:
    """The modules that are attributes or layers of a model."""
    if type(model) is Made:
        return iterate(interp, model.inner, node) if model.inner is not None else None
    found: Value | None = None
    for value in list(model.attributes.values())[:16]:
        for member in members(value):
            if (type(member) is Made and member.kind == "module") or (type(member) is Instance and is_module(member)):
                found = join(found, member)
    return found


_HALF = attrgetter("half")


_OUTPUT, _LOSS, _HOLDER = frozenset({"output"}), frozenset({"output", "loss"}), frozenset({"object"})


def forward(interp: Interpreter, model: Instance | Made, arguments: Arguments, node: ast.AST) -> Value:
    """Call a model."""
    tensors = tensors_passed(arguments)
    place = surest(device_of(tensors), model.device)
    bases = _unwrapped(model)
    loss, holds = False, not bases  # what wraps a model that nobody knows gives what that gives
    for base in bases:
        if isinstance(base, Instance):
            loss = loss or is_criterion(base)
        else:
            holds = holds or not libraries.returns_tensor(base.qualname)
    qualname = model.qualname if isinstance(model, Made) else model.cls.node.name
    roles = (_LOSS if loss else _OUTPUT) | (_HOLDER if holds else NO_ROLES)
    half = True in map(_HALF, tensors)
    half = half if loss else True in [gives_half(base, half=half) for base in bases]
    result = Tensor(roles, place, interp.origin(node), model, False, False, None, half)
    event = interp.event("criterion" if loss else "forward", node, qualname, model, arguments, result)
    returned: Value | None = None
    up = interp.control
    for number, base in enumerate(bases):
        if isinstance(base, Instance):
            method = base.cls.find("forward")
            if type(method) is Function:
                if len(bases) > 1:
                    interp.enter("choice", node, number)
                given = _run_forward(interp, Bound(base, method), arguments, node)
                interp.control = up
                returned = join(returned, given)
                place = surest(place, base.device)
            elif type(layers := base.attributes.get(LAYERS)) is Made:
                _forward_layers(interp, layers, arguments, node)
        elif base.kind == "module" and base.inner is not None:
            _forward_layers(interp, base, arguments, node)
    if returned is None:
        event.returned = join(event.returned, result)
        return result
    if model.device in ("cuda", "conditional"):
        place = model.device
    output = _as_output(returned, Tensor(roles, place, interp.origin(node), model, False, False, None, half))
    event.returned = join(event.returned, output)
    return output


def _run_forward(interp: Interpreter, forward: Bound, arguments: Arguments, node: ast.AST) -> Value:
    """Execute the code of a model's call; once where a name is the model or the same model in one of several wrappers.

    Whichever it is that is called, the same code runs there. The calls in it count as often as they are made, so that
    fewer contexts of a function are executed in a program that has many.
    """
    key = forward.receiver, arguments
    if key in interp.forwarded:
        value, counted = interp.forwarded[key]
        for body in counted:
            interp.counts[body] = interp.counts.get(body, 0) + 1
        return value
    before = len(interp.counted)
    value = interp.call(forward, arguments, node)
    interp.forwarded[key] = value, interp.counted[before:]
    return value


def gives_half(model: Value, *, half: bool) -> bool:
    """Whether a module's result has 16 bits under autocast, where ``half`` says so of its input; yes if unknown."""
    if type(model) is not Made or not model.qualname.startswith("torch.nn."):
        return True
    if model.qualname != "torch.nn.Sequential":
        return libraries.precision_of(model.qualname, half=half)
    if type(model.inner) is not Sequence or model.inner.items is None:
        return True
    for layer in model.inner.items:
        half = any(gives_half(member, half=half) for member in members(layer))
    return half


def _unwrapped(model: Value, depth: int = 4) -> list[Instance | Made]:
    """The modules inside wrappers (DataParallel, an engine)."""
    if type(model) is Made and model.kind in ("wrapper", "engine") and model.inner is not None and depth:
        return [base for member in members(model.inner) for base in _unwrapped(member, depth - 1)]
    return [model] if isinstance(model, (Instance, Made)) else []


def _forward_layers(interp: Interpreter, model: Made, arguments: Arguments, node: ast.AST) -> None:
    """The project's own layers in a ``Sequential``, so that what they do is seen."""
    tensors = tensors_passed(arguments)
    value: Value = tensors[0] if tensors else UNKNOWN
    for inner in members(model.inner):
        if type(inner) is Sequence:
            for layer in (*(inner.items or ()), *members(inner.element)):
                for member in members(layer):
                    if type(member) is Instance and is_module(member):
                        value = forward(interp, member, positional(value), node)
                    elif type(member) is Made and member.kind == "module":
                        interp.event("forward", node, member.qualname, member, positional(value))
                        if member.inner is not None:
                            _forward_layers(interp, member, positional(value), node)


def _as_output(value: Value, output: Tensor, depth: int = 0) -> Value:
    """What a project's ``forward`` returned, as a model's output."""
    if type(value) is Tensor:
        roles = (value.roles - {"batch", "data", "maybe_output"}) | output.roles
        half = value.half or (output.half and "maybe_output" in value.roles)
        roles |= {"object"} if value.roles & {"object", "maybe_output"} else frozenset()
        return Tensor(
            roles, output.device, output.origin, output.source, value.detached, False, value.scaled_from, half
        )
    if type(value) is Sequence and value.items is not None and depth < 2:
        return Sequence(
            [_as_output(item, output, depth + 1) for item in value.items], value.made_at, value.origin, value.kind
        )
    if type(value) is Union:
        return join_all(_as_output(member, output, depth + 1) for member in value.values) or output
    if isinstance(value, (Mapping, Instance, Iterated, Const, Sequence, Host, Computed)):
        return value
    return output
