"""What a program takes for granted of how tensors lie in memory, and where it chooses a memory format itself."""

from __future__ import annotations

import ast

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, Tensor, Value, members
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import body_of, dotted, walk_here
from turbofix.source.site import Site
from turbofix.training.model import Layouts, Model

_LYING = frozenset(
    ("view", "view_as", "as_strided", "stride", "is_contiguous", "data_ptr", "untyped_storage", "storage")
)
"""Methods that take for granted, or ask, how the elements of a tensor follow on one another."""

_FLATTENING = frozenset(
    ("torch.nn.utils.parameters_to_vector", "torch.nn.utils.convert_parameters.parameters_to_vector")
)
_LBFGS = "torch.optim.LBFGS"
"""What views the weights, or their gradients, as rows of numbers, which raises in another order."""

_WEIGHTS = frozenset(("Parameter", "ParameterList", "ParameterDict", "register_buffer", "register_parameter"))
"""What makes weights and buffers of a shape that no layer tells."""


def layouts(analysis: Analysis, models: tuple[Model, ...]) -> Layouts:
    """What is to be known of a program before the memory format of a model's convolutions is changed."""
    if not any(model.convolutions for model in models):
        return Layouts()
    facts = analysis.facts
    places = facts.places
    modules = list(analysis.execution.modules.values())
    chosen = [
        places.site(node, module)
        for module in modules
        if "channels_last" in module.text
        for node in every(ast.Attribute, module.tree)
        if node.attr in ("channels_last", "channels_last_3d")
    ]
    receivers: dict[int, list[Value]] = {}
    for event in facts.of("call"):
        if event.name == "Tensor.view":
            receivers.setdefault(id(event.node), []).extend(members(event.receiver))
    scopes = {frame.scope: frame for frame in facts.opened()}
    lying: list[Site] = []
    views: set[tuple[Site, Site]] = set()
    for scope, frame in scopes.items():
        module = frame.module
        if scope is not module.tree and not _says_how_it_lies(places.text(scope, module)):
            continue
        for node in _lying_in(scope):
            assert isinstance(node.func, ast.Attribute)
            seen = receivers.get(id(node))
            if node.func.attr != "view" or _is_dtype(node):
                lying.append(places.site(node, module))
            elif any(map(_is_computed, seen)) if seen is not None else is_of_layer(frame):
                views.add((places.site(node.func, module), places.site(node.func.value, module)))
    flattened = [facts.site(event) for event in facts.of("call", "make") if _flattens(event)]
    weights = [
        places.site(node, module)
        for module in modules
        if any(name in module.text for name in _WEIGHTS)
        for node in every(ast.Call, module.tree)
        if _called(node) in _WEIGHTS
    ]
    return Layouts(
        tuple(sorted(chosen)),
        tuple(sorted(set(lying))),
        tuple(sorted(weights)),
        tuple(sorted(views)),
        tuple(sorted(flattened)),
    )


def _is_computed(value: Value) -> bool:
    """Whether a tensor may be what a layer gives, whose numbers lie in another order then."""
    return not isinstance(value, Tensor) or "output" in value.roles


def _is_dtype(call: ast.Call) -> bool:
    """``x.view(torch.int32)`` reads the bytes as other numbers."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Attribute) and (dotted(first) or "").startswith(("torch.", "np.", "numpy."))


def is_of_layer(frame: Frame) -> bool:
    """Whether it is a method of one of torch's layers, or of a class that derives from one."""
    cls = frame.function.cls if frame.function is not None else None
    return cls is not None and any(name.startswith("torch.nn.") for name in cls.externals())


def _says_how_it_lies(text: str) -> bool:
    return any(name in text for name in _LYING)


def _flattens(event: Event) -> bool:
    """Whether torch's own code behind a call takes the order of weights for granted."""
    made = [each.qualname for each in members(event.result) if isinstance(each, Made)] if event.kind == "make" else []
    return event.name in _FLATTENING or _LBFGS in made


@once_per_node
def _lying_in(scope: ast.AST) -> list[ast.Call]:
    """The calls of such methods in the body of a function, class or file itself."""
    return [
        node
        for statement in body_of(scope)
        for node in walk_here(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LYING
    ]


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
