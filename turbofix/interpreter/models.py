"""Calls of models: their own code is executed, and the layers that they hold."""

from __future__ import annotations

import ast
from operator import attrgetter

from turbofix.domain.tensors import NO_ROLES, changed, device_of, surest, tensors_passed
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
from turbofix.interpreter.containers import append
from turbofix.interpreter.definitions import LAYERS, is_criterion, is_layer, is_module
from turbofix.interpreter.elements import iterate
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries

LAYERED = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
"""What is given its layers when it is built."""


def layers_given(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """The layers of a ``Sequential``, which is given them one by one, of a list, or of a dict."""
    origin = interp.origin(node)
    values = [each.value for each in arguments.positions]
    value = values[0] if values else None
    if isinstance(value, Mapping) and not arguments.star and len(values) == 1:
        found = [entry.value for entry in value.entries.values()]
        return Sequence(found or None, interp.control, origin, "list", value.element)
    if qualname == "torch.nn.Sequential" and not arguments.star:
        return Sequence(values, interp.control, origin)
    if type(value) is Sequence and not arguments.star:
        items = list(value.items) if value.items is not None else None
        return Sequence(items, interp.control, origin, "list", value.element)
    if value is None:
        return Sequence([], interp.control, origin, "list")
    element = join_all(values) if arguments.star else iterate(interp, value, node)
    return Sequence(None, interp.control, origin, "list", element)


def name_layers(made: Made, layers: Value) -> None:
    """A ``ModuleDict``'s layers are its attributes, too: ``self.transformer.wte``."""
    for each in members(layers):
        if isinstance(each, Mapping):
            for key, entry in each.entries.items():
                if isinstance(key, str):
                    made.attributes[key] = join(made.attributes.get(key), entry.value) or entry.value


def add_layer(interp: Interpreter, model: Made, layer: Value) -> None:
    """Add one more to the layers of a ``Sequential``."""
    if type(model.inner) is Sequence:
        append(interp, model.inner, layer, at_end=True)
    else:
        model.inner = Sequence([layer], interp.control, None, "list")


def parts_of(interp: Interpreter, model: Instance | Made, node: ast.AST) -> Value | None:
    """The modules that are attributes or layers of a model."""
    if type(model) is Made:
        return iterate(interp, model.inner, node) if model.inner is not None else None
    held = [member for value in list(model.attributes.values())[:16] for member in members(value)]
    return join_all(each for each in held if is_layer(each))


_HALF = attrgetter("half")
_OUTPUT, _LOSS, _HOLDER = frozenset({"output"}), frozenset({"output", "loss"}), frozenset({"object"})


def forward(interp: Interpreter, model: Instance | Made, arguments: Arguments, node: ast.AST) -> Value:
    """Call a model."""
    tensors = tensors_passed(arguments)
    place = surest(device_of(tensors), model.device)
    bases = _unwrapped(model)
    own = [base for base in bases if isinstance(base, Instance)]
    loss = any(map(is_criterion, own))
    made = [base.qualname for base in bases if isinstance(base, Made)]
    # what wraps what nobody knows gives what that does
    holds = not bases or not all(map(libraries.returns_tensor, made))
    qualname = model.qualname if isinstance(model, Made) else model.cls.node.name
    roles = (_LOSS if loss else _OUTPUT) | (_HOLDER if holds else NO_ROLES)
    half = True in map(_HALF, tensors)
    half = half if loss else True in [gives_half(base, half=half) for base in bases]
    result = Tensor(roles, place, interp.origin(node), model, half=half)
    event = interp.event("criterion" if loss else "forward", node, qualname, model, arguments, result)
    returned: Value | None = None
    up = interp.control
    for number, base in enumerate(bases):
        method = base.cls.find("forward") if isinstance(base, Instance) else None
        layers = base.attributes.get(LAYERS) if isinstance(base, Instance) else base
        if type(method) is Function:
            if len(bases) > 1:
                interp.enter("choice", node, number)
            returned = join(returned, _run_forward(interp, Bound(base, method), arguments, node))
            interp.control = up
            place = surest(place, base.device)
        elif type(layers) is Made and layers.kind == "module" and layers.inner is not None:
            _forward_layers(interp, layers, arguments, node)
    output: Value = result
    if returned is not None:
        place = model.device if model.device in ("cuda", "conditional") else place
        output = _as_output(returned, changed(result, device=place))
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
        roles |= {"object"} if value.roles & {"object", "maybe_output"} else frozenset()
        half = value.half or (output.half and "maybe_output" in value.roles)
        detached, scaled_from = value.detached, value.scaled_from
        return changed(output, roles=roles, detached=detached, scaled_from=scaled_from, half=half, scalar=False)
    if type(value) is Sequence and value.items is not None and depth < 2:
        items = [_as_output(item, output, depth + 1) for item in value.items]
        return Sequence(items, value.made_at, value.origin, value.kind)
    if type(value) is Union:
        return join_all(_as_output(member, output, depth + 1) for member in value.values) or output
    return value if isinstance(value, (Mapping, Instance, Iterated, Const, Sequence, Host, Computed)) else output
