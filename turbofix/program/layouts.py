"""What a program takes for granted of how tensors lie in memory, and where it chooses a memory format itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node
from turbofix.program.model import Layouts, Model
from turbofix.program.names import body_of, walk_here

_LYING = frozenset(
    ("view", "view_as", "as_strided", "stride", "is_contiguous", "data_ptr", "untyped_storage", "storage")
)
"""Methods that take for granted, or ask, how the elements of a tensor follow on one another."""

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
        for node in every(ast.Attribute, module.tree)
        if node.attr in ("channels_last", "channels_last_3d")
    ]
    scopes = {id(frame.scope): frame for event in facts.events for frame in facts.frames(event)}
    lying = [places.site(node, frame.module) for frame in scopes.values() for node in _lying_in(frame.scope)]
    weights = [
        places.site(node, module)
        for module in modules
        for node in every(ast.Call, module.tree)
        if _called(node) in _WEIGHTS
    ]
    return Layouts(tuple(sorted(chosen)), tuple(sorted(set(lying))), tuple(sorted(weights)))


@once_per_node
def _lying_in(scope: ast.AST) -> tuple[ast.Call, ...]:
    return tuple(_calls(scope))


def _calls(scope: ast.AST) -> Iterator[ast.Call]:
    for node in (each for part in body_of(scope) for each in walk_here(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LYING:
            yield node


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
