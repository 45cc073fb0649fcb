"""Momentum and weight decay that an optimizer gets by another way than the arguments of its construction."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Const, Made, Mapping, Opaque, Value, flatten, members
from turbofix.source.answers import every, once_per_node
from turbofix.source.nodes import walk

_SETTINGS = ("momentum", "weight_decay")
_CYCLING = frozenset({"torch.optim.lr_scheduler.OneCycleLR", "torch.optim.lr_scheduler.CyclicLR"})
"""Schedulers that set the momentum too, of an SGD that was made without it as well."""


def is_regrouped(analysis: Analysis, params: Iterable[Value]) -> bool:
    """Whether parameters may have settings of their own: in a group, by a schedule, or by the script's hand."""
    if any(_may_set(each) for value in params for each in flatten(value, 2)):
        return True
    if any(map(_cycles_momentum, _schedulers(analysis))):
        return True
    modules = analysis.execution.modules.values()
    return any(_changes_groups(module.tree) for module in modules if "param_group" in module.text)


def _may_set(group: Value) -> bool:
    if isinstance(group, Opaque):
        return group.how in ("call", "import", "parameter", "free")
    return isinstance(group, Mapping) and (group.open or any(name in group.entries for name in _SETTINGS))


def _schedulers(analysis: Analysis) -> Iterator[Made]:
    for event in analysis.facts.of("make"):
        for each in members(event.result):
            if isinstance(each, Made) and each.qualname in _CYCLING:
                yield each


def _cycles_momentum(scheduler: Made) -> bool:
    told = scheduler.arguments.get("cycle_momentum")
    return told is None or not told.must or not (isinstance(told.value, Const) and told.value.value is False)


@once_per_node
def _changes_groups(tree: ast.Module) -> bool:
    """Whether a file that speaks of groups of parameters names their settings, or sets them by computed names."""
    named = (key for each in every(ast.Dict, tree) for key in each.keys)
    if any(isinstance(key, ast.Constant) and key.value in _SETTINGS for key in named):
        return True
    if any(
        keyword.arg in _SETTINGS and getattr(call.func, "attr", getattr(call.func, "id", "")) in ("dict", "update")
        for call in every(ast.Call, tree)
        for keyword in call.keywords
    ):
        return True
    groups = {
        each.id
        for loop in every(ast.For, tree)
        if any(isinstance(part, ast.Attribute) and part.attr == "param_groups" for part in walk(loop.iter))
        for each in walk(loop.target)
        if isinstance(each, ast.Name)
    }
    for node in every(ast.Subscript, tree):
        if isinstance(node.ctx, ast.Store):
            if isinstance(node.slice, ast.Constant):
                if node.slice.value in _SETTINGS:
                    return True
            elif any(
                getattr(each, "id", getattr(each, "attr", "")) in (groups | {"param_groups"})
                for each in walk(node.value)
            ):
                return True
    return False
