"""Optimizers that are given a whole model of which all but the last layer is frozen: they have next to nothing to do.

The freezing is a loop over all parameters that runs whatever is passed to the script, ``for p in model.parameters():
p.requires_grad = False``. What is thawed, or put in after it, has to be known for single ``Linear`` layers.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from turbofix.findings import Site
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.sites import FUNCTIONS
from turbofix.program.values import Instance, Iterated, Made, Value, members

_LINEAR = "torch.nn.Linear"
_CLASSIFIER = "get_classifier"
"""The method of timm's networks that gives their last layer."""
_HEADS = 2
"""How many layers may be left, each with a weight and a bias."""


def all_but_a_head(analysis: Analysis, event: Event, owners: Sequence[Value]) -> Site | None:
    """Where the model of an optimizer is frozen, but for a layer or two; None where that is not known."""
    facts = analysis.facts
    writes = facts.attribute_writes("requires_grad")
    if not writes or len({id(each) for each in owners}) != 1 or not isinstance(owners[0], (Made, Instance)):
        return None
    model = owners[0]
    frozen: Site | None = None
    heads = 0
    for write, _, module in writes:
        loop = _loop_of(analysis, write, module)
        if loop is None:
            if _is_constant(write, False):
                continue  # fewer weights still
            return None
        of = _looped(analysis, loop)
        if _is_constant(write, False):
            if all(each is model for each in of) and of and _is_beside(analysis, loop, module, event):
                frozen = facts.places.site(loop, module)
        elif _is_constant(write, True) and _is_head(analysis, loop, of, model):
            heads += 1
        else:
            return None
    if frozen is None or any(_thaws(each.tree) for each in analysis.execution.modules.values()):
        return None
    put_in = _put_in(analysis, event, model)
    if put_in is None or not 0 < heads + put_in <= _HEADS:
        return None
    return frozen


def _is_constant(write: ast.AST, value: bool) -> bool:
    given = getattr(write, "value", None)
    return isinstance(write, ast.Assign) and isinstance(given, ast.Constant) and given.value is value


def _loop_of(analysis: Analysis, write: ast.AST, module: ModuleFile) -> ast.For | None:
    """The loop ``for p in model.parameters():`` that writes an attribute of all of them."""
    loop = analysis.facts.places.parent(write, module)
    if not isinstance(write, ast.Assign) or not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return None
    call = loop.iter
    if not any(each is write for each in loop.body) or not isinstance(call, ast.Call) or call.args or call.keywords:
        return None
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "parameters" or len(write.targets) != 1:
        return None
    target = write.targets[0]
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return None
    return loop if target.value.id == loop.target.id else None


def _looped(analysis: Analysis, loop: ast.For) -> list[Value]:
    """Whose parameters a loop runs over."""
    runs = [each for node in (loop, loop.iter) for each in analysis.facts.at(node) if each.kind == "iterate"]
    found = [member for each in runs for member in members(each.receiver)]
    return [owner for each in found for owner in (members(each.source) if isinstance(each, Iterated) else (each,))]


def _is_beside(analysis: Analysis, loop: ast.For, module: ModuleFile, event: Event) -> bool:
    """Whether a loop stands under no condition, in the function that builds the optimizer."""
    places = analysis.facts.places
    home = places.scope(event.node, event.module)
    return places.parent(loop, module) is home and isinstance(home, (ast.Module, *FUNCTIONS))


def _is_head(analysis: Analysis, loop: ast.For, of: list[Value], model: Value) -> bool:
    """Whether a loop runs over the parameters of one layer: a Linear, or what timm calls the classifier of a model."""
    if of and all(isinstance(each, Made) and each.qualname == _LINEAR for each in of):
        return True
    assert isinstance(loop.iter, ast.Call)
    assert isinstance(loop.iter.func, ast.Attribute)
    given = loop.iter.func.value
    if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute) or given.func.attr != _CLASSIFIER:
        return False
    if not isinstance(model, Made) or not model.qualname.startswith("timm."):
        return False
    frames = [analysis.facts.frames(each) for node in (loop, loop.iter) for each in analysis.facts.at(node)]
    bases = [each for one in frames for each in members(analysis.facts.evaluate(given.func.value, one))]
    return bool(bases) and all(each is model for each in bases)


def _put_in(analysis: Analysis, event: Event, model: Value) -> int | None:
    """How many Linear layers are put into a model beside its own; None where something else may be."""
    frames = analysis.facts.frames(event)
    count = 0
    for node in every(ast.Assign, event.module.tree):
        for target in node.targets:
            if not isinstance(target, ast.Attribute) or target.attr == "requires_grad":
                continue
            if not any(each is model for each in members(analysis.facts.evaluate(target.value, frames))):
                continue
            held = members(analysis.facts.evaluate(node.value, frames))
            if not held or not all(isinstance(each, Made) and each.qualname == _LINEAR for each in held):
                return None
            count += 1
    return count


def _thaws(tree: ast.Module) -> bool:
    """Whether a file calls ``requires_grad_`` other than to freeze."""
    for call in every(ast.Call, tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            given = [*call.args, *(each.value for each in call.keywords)]
            if not given or not (isinstance(given[0], ast.Constant) and given[0].value is False):
                return True
    return False
