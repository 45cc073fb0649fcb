"""What a program takes for granted of how tensors lie in memory, and where it chooses a memory format itself."""

from __future__ import annotations

import ast

from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node, parents_in
from turbofix.program.events import Event
from turbofix.program.model import Layouts, Model
from turbofix.program.sites import SCOPES, outside
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
    asking = {module for module in modules if any(name in module.text for name in _LYING)}
    lying = [
        places.site(node, module)
        for module in asking
        for node, scope in _lying_in(module.tree)
        if scopes.get(scope) is module
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


def _flattens(event: Event) -> bool:
    """Whether torch's own code behind a call takes the order of weights for granted."""
    made = [each.qualname for each in members(event.result) if isinstance(each, Made)] if event.kind == "make" else []
    return event.name in _FLATTENING or _LBFGS in made


@once_per_node
def _lying_in(tree: ast.Module) -> list[tuple[ast.Call, ast.AST]]:
    """The calls of such methods in a file, with the function, class or file in whose body itself each is."""
    parents = parents_in(tree)
    found: list[tuple[ast.Call, ast.AST]] = []
    for call in every(ast.Call, tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _LYING:
            child: ast.AST = call
            scope = parents[call]
            while not isinstance(scope, SCOPES):
                child, scope = scope, parents[scope]
            if not outside(child, scope):
                found.append((call, scope))
    return found


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
