"""Layers that a model has and never calls: their parameters get no gradient in any step."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Class, Instance, Made, Value, flatten, members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.training.objects import Layers, layers_of

LEARNING = regex(r"torch\.nn\.(\w*(Linear|Conv|Embedding|BatchNorm|LSTM|GRU|RNN|Attention|Transformer)\w*|PReLU)")
_OF_DATA = regex(r"\.any\(|numel\(|\.sum\(|nonzero")
_LAYER = regex(r"^self\.\w+|expert|layer")
_WITH_POOLER = regex(r"transformers\.(Auto|Bert|Roberta|XLMRoberta|Albert|Camembert|Ernie)Model\b")
_POOLED = regex(r"pool|\[1\]|_, \w+ = self\.")
_TOLD = regex(r"\bself\.(?!training\b)")
_OF_TENSORS = frozenset(("norm", "mean", "std", "var", "softmax", "dropout", "weight", "bias", "data", "linear"))
_BY_NAME = regex(r"getattr\(self|_modules|\.(named_)?(children|modules)\(")


def has_idle_layers(analysis: Analysis, models: Iterable[Value]) -> bool:
    """Whether models hold layers with parameters that nothing reads, but to initialise them, or only some data need."""
    waiting, seen = [*models], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Made):
            parts = [each.inner, *each.arguments.values(), *each.attributes.values()]
            waiting += [one for part in parts for one in flatten(part, 4)]
        if not isinstance(each, Instance):
            continue
        own = [one.node for one in each.cls.mro() if isinstance(one, Class)]
        if any(map(_asks_its_data, own)):
            return True
        by_name = each.base is not None or any(_BY_NAME.search(ast.unparse(one)) for one in own)
        text = " ".join(map(ast.unparse, own))
        for name, held in each.attributes.items():
            waiting += flatten(held, 4)
            read = any((name, one) in _read(analysis) for one in (None, *own))
            if not read and not by_name and _learns(held):
                return True
            if _pools(held) and not _POOLED.search(text):
                return True
            if (
                _learns(held)
                and (None not in [one for key, one in _read(analysis) if key == name])
                and _asks(own, name)
            ):
                return True
    return False


def _pools(held: Value) -> bool:
    """Whether it is a ready-made encoder with a layer over its first position."""
    return any(isinstance(each, Made) and _WITH_POOLER.match(each.qualname) for each in members(held))


def _asks(classes: list[ast.ClassDef], name: str) -> bool:
    """Whether a layer is called in one branch of a test of what the model is told, and nowhere else."""
    functions = [each for cls in classes for each in cls.body if isinstance(each, ast.FunctionDef)]
    inside = [each for function in functions if function.name != "__init__" for each in walk(function)]
    calls = {each for each in inside if isinstance(each, ast.Attribute) and dotted(each) == f"self.{name}"}
    for test in inside:
        if isinstance(test, (ast.If, ast.IfExp)) and _TOLD.search(ast.unparse(test.test)):
            for block in (test.body, test.orelse):
                held = {one for each in (block if isinstance(block, list) else [block]) for one in walk(each)}
                if calls and calls <= held:
                    return True
    return False


def _asks_its_data(cls: ast.ClassDef) -> bool:
    """Whether it calls layers of its own where a test of numbers says so: experts that get samples."""
    tests = (each for each in walk(cls) if isinstance(each, ast.If) and _OF_DATA.search(ast.unparse(each.test)))
    inside = (one for each in tests for one in walk(each) if isinstance(one, ast.Call))
    return any(_LAYER.search(ast.unparse(each.func)) for each in inside)


def _learns(value: Value) -> bool:
    """Whether a layer certainly has parameters."""
    layers = Layers()
    for each in flatten(value, 4):
        layers_of(each, layers)
    return any(LEARNING.fullmatch(each.qualname) for each in layers.parts)


def _read(analysis: Analysis) -> frozenset[tuple[str, ast.ClassDef | None]]:
    """The attributes that the program's files read, other than in calls of ``torch.nn.init``.

    With each: the class that reads it of itself.
    """

    def found() -> frozenset[tuple[str, ast.ClassDef | None]]:
        names: set[tuple[str, ast.ClassDef | None]] = set()
        for module in analysis.execution.modules.values():
            calls = [call for call in every(ast.Call, module.tree) if "init." in (dotted(call.func) or "")]
            initialised = {id(each) for call in calls for each in walk(call)}
            own = {id(one): cls for cls in every(ast.ClassDef, module.tree) for one in walk(cls)}
            for each in every(ast.Attribute, module.tree):
                if isinstance(each.ctx, ast.Load) and id(each) not in initialised:
                    itself = isinstance(each.value, ast.Name) and each.value.id == "self"
                    if itself or each.attr not in _OF_TENSORS:
                        names.add((each.attr, own.get(id(each)) if itself else None))
        return frozenset(names)

    return analysis.once(("attributes that are read",), found)
