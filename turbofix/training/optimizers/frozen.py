"""Optimizers that are given a whole model of which all but the last layer is frozen: they have next to nothing to do.

The freezing is a loop over all parameters that runs whatever is passed to the script, ``for p in model.parameters():
p.requires_grad = False``. What is put in after it, or thawed by a loop or two, is held for such a layer.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Iterated, Made, Value, members
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site

_HEADS = 2
"""How many layers may be thawed, each with a weight and a bias."""


def all_but_a_head(analysis: Analysis, event: Event, owners: Sequence[Value]) -> Site | None:
    """Where the model of an optimizer is frozen, but for a layer or two; None where that is not known."""
    writes = analysis.facts.attribute_writes("requires_grad")
    if not writes or len({id(each) for each in owners}) != 1 or not isinstance(owners[0], (Made, Instance)):
        return None
    frozen: Site | None = None
    thawed = 0
    for write, _, module in writes:
        loop, value = _loop_of(analysis, write, module), getattr(getattr(write, "value", None), "value", None)
        if value is False:
            of = _looped(analysis, loop) if loop is not None else []
            whole = bool(of) and all(each is owners[0] for each in of)
            if loop is not None and whole and _is_beside(analysis, loop, module, event):
                frozen = analysis.facts.places.site(loop, module)
        elif loop is not None and value is True:
            thawed += 1
        else:
            return None
    return frozen if thawed <= _HEADS else None


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
