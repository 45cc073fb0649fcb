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

_FLATTENING = frozenset(
    ("torch.nn.utils.parameters_to_vector", "torch.nn.utils.convert_parameters.parameters_to_vector")
)
_LBFGS = "torch.optim.LBFGS"
"""What views the weights, or their gradients, as rows of numbers, which raises in another order."""


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
    views: set[tuple[Site, Site]] = set()
    for scope, frame in {frame.scope: frame for frame in facts.opened()}.items():
        for node in _views_in(scope) if ".view(" in frame.module.text else ():
            assert isinstance(node.func, ast.Attribute)
            seen = receivers.get(id(node))
            if any(map(_is_computed, seen)) if seen is not None else is_of_layer(frame):
                views.add((places.site(node.func, frame.module), places.site(node.func.value, frame.module)))
    flattened = [facts.site(event) for event in facts.of("call", "make") if _flattens(event)]
    return Layouts(tuple(sorted(chosen)), tuple(sorted(views)), tuple(sorted(flattened)))


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


def _flattens(event: Event) -> bool:
    """Whether torch's own code behind a call takes the order of weights for granted."""
    made = [each.qualname for each in members(event.result) if isinstance(each, Made)] if event.kind == "make" else []
    return event.name in _FLATTENING or _LBFGS in made


@once_per_node
def _views_in(scope: ast.AST) -> list[ast.Call]:
    """The views in the body of a function, class or file itself, but of the bytes as other numbers."""
    calls = (node for statement in body_of(scope) for node in walk_here(statement) if isinstance(node, ast.Call))
    return [each for each in calls if getattr(each.func, "attr", "") == "view" and not _is_dtype(each)]
