"""What a program takes for granted of how tensors lie in memory, and where it chooses a memory format itself."""

from __future__ import annotations

import ast

from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node
from turbofix.program.events import Event
from turbofix.program.model import Layouts, Model
from turbofix.program.names import body_of, walk_here
from turbofix.program.values import Made, members

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
    scopes = {frame.scope: frame.module for frame in facts.opened()}
    lying = [
        places.site(node, module)
        for scope, module in scopes.items()
        if scope is module.tree or _says_how_it_lies(places.text(scope, module))
        for node in _lying_in(scope)
    ]
    lying += [facts.site(event) for event in facts.of("call", "make") if _flattens(event)]
    weights = [
        places.site(node, module)
        for module in modules
        if any(name in module.text for name in _WEIGHTS)
        for node in every(ast.Call, module.tree)
        if _called(node) in _WEIGHTS
    ]
    return Layouts(tuple(sorted(chosen)), tuple(sorted(set(lying))), tuple(sorted(weights)))


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
