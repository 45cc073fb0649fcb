"""Layers that a model has and never calls: their parameters get no gradient in any step."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Class, Instance, Value, flatten
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.training.objects import Layers, layers_of

_LEARNING = regex(r"torch\.nn\.(\w*(Linear|Conv|Embedding|BatchNorm|LSTM|GRU|RNN|Attention|Transformer)\w*|PReLU)")
_BY_NAME = regex(r"getattr\(self|_modules|\.(named_)?(children|modules)\(")


def has_idle_layers(analysis: Analysis, models: Iterable[Value]) -> bool:
    """Whether models hold layers with parameters in attributes that the program reads nowhere, but to initialise."""
    waiting, seen = [*models], set[int]()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Instance) or id(each) in seen or _is_read_by_name(each):
            continue
        seen.add(id(each))
        for name, held in each.attributes.items():
            waiting += flatten(held, 4)
            if name not in _read(analysis) and _learns(held):
                return True
    return False


def _is_read_by_name(model: Instance) -> bool:
    own = [each.node for each in model.cls.mro() if isinstance(each, Class)]
    return model.base is not None or any(_BY_NAME.search(ast.unparse(each)) for each in own)


def _learns(value: Value) -> bool:
    """Whether a layer certainly has parameters."""
    layers = Layers()
    for each in flatten(value, 4):
        layers_of(each, layers)
    return any(_LEARNING.fullmatch(each.qualname) for each in layers.parts)


def _read(analysis: Analysis) -> frozenset[str]:
    """The attributes that the program's files read, other than in calls of ``torch.nn.init``."""

    def found() -> frozenset[str]:
        names: set[str] = set()
        for module in analysis.execution.modules.values():
            calls = [call for call in every(ast.Call, module.tree) if "init." in (dotted(call.func) or "")]
            initialised = {id(each) for call in calls for each in walk(call)}
            reads = [each for each in every(ast.Attribute, module.tree) if isinstance(each.ctx, ast.Load)]
            names.update(each.attr for each in reads if id(each) not in initialised)
        return frozenset(names)

    return analysis.once(("attributes that are read",), found)
