"""What a script says and never reads: over how many batches gradients shall add up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Namespace, Option, Value, members
from turbofix.source.answers import everything
from turbofix.source.names import parameters
from turbofix.training.model import ABSENT, Argument

_COUNTS = {"n", "nb", "num", "number", "count", "max"}


def accumulation_wish(analysis: Analysis, event: Event) -> Argument:
    """The option or constant that says over how many batches the gradients of a step shall add up, where nothing
    reads it."""
    if event.module is not analysis.execution.entry or "acc" not in event.module.text.lower():
        return ABSENT
    found = _option(analysis, event)
    return found if found.state != "absent" else _constant(analysis, event)


def wish_at(analysis: Analysis, node: ast.AST) -> Argument:
    """The same at a call that makes a trainer, or the settings of one."""
    events = analysis.facts.at(node)
    return accumulation_wish(analysis, events[0]) if events else ABSENT


def _option(analysis: Analysis, event: Event) -> Argument:
    """The option with such a name, in words that are valid at an event, where nothing reads it."""
    frames = analysis.facts.frames(event)
    if not frames or event.module is not analysis.execution.entry:
        return ABSENT
    frame, bindings = frames[-1], analysis.facts.bindings
    places: list[tuple[ast.AST, dict[str, Value]]] = [(event.module.tree, event.module.scope.names)]
    if frame.opener is not None and frame.scope is not event.module.tree and frame.opener in analysis.execution.scopes:
        places.insert(0, (frame.scope, analysis.execution.scopes[frame.opener].names))
    given = {each.arg: analysis.facts.named(each.arg, frame.scope, frame) for each in parameters(frame.scope)}
    places.insert(0, (frame.scope, {name: value for name, value in given.items() if value is not None}))
    for scope, names in places:
        for name, value in sorted(names.items()):
            parsed = [each for each in members(value) if isinstance(each, Namespace)]
            if len(parsed) != 1 or bindings.owner(name, event.node, event.module) is not scope:
                continue
            found = {key: each for key, each in parsed[0].attributes.items() if _is_unread(analysis, key, each)}
            for key, option in found.items() if len(found) == 1 else ():
                assert isinstance(option, Option)
                place = analysis.facts.origin_site(option.origin)
                default = settled(option.default)
                return Argument("option", (default,), text=f"{name}.{key}", option=option.name, edit_at=place)
    return ABSENT


def _is_unread(analysis: Analysis, key: str, value: Value) -> bool:
    """Whether it is an option for such a number, and no file says its name."""
    if not isinstance(value, Option) or value.how != "argparse" or not is_number_of_batches(key):
        return False
    default = None if value.derived else settled(value.default)
    said = (each for module in analysis.execution.modules.values() for each in _said(module, key))
    return type(default) is int and default > 0 and next(said, None) is None


def _constant(analysis: Analysis, event: Event) -> Argument:
    """The whole number of the file's top level, set once, that says so and that no file reads."""
    module = event.module
    for name, value in sorted(module.scope.names.items()):
        if not is_number_of_batches(name) or not isinstance(value, Const) or type(value.value) is not int:
            continue
        writes = analysis.facts.bindings.writes(module.tree, name)
        if len(writes) != 1 or not isinstance(writes[0], ast.Assign) or writes[0] not in module.tree.body:
            continue
        said = [each for other in analysis.execution.modules.values() for each in _said(other, name)]
        if len(said) == 1 and value.value > 1 and writes[0].lineno < event.node.lineno:  # type: ignore[attr-defined]
            place = analysis.facts.places.site(writes[0].value, module)
            return Argument("value", (value.value,), text=name, edit_at=place)
    return ABSENT


_ADDING = {"acc", "accum", "accumulate", "accumulated", "accumulation"}
_PASSES = {"grad", "grads", "gradient", "gradients", "step", "steps", "iter", "iters", "iterations", "batch", "batches"}


def is_number_of_batches(name: str) -> bool:
    """Whether a name says that it is the number of batches whose gradients add up: ``grad_accum_steps``."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
    return bool(words & _ADDING and words & _PASSES) and words <= _ADDING | _PASSES | _COUNTS


def _said(module: ModuleFile, key: str) -> Iterator[ast.AST]:
    """The places where a file says a name in any way in which it could be read or set."""
    for node in everything(module.tree):
        if isinstance(node, ast.Attribute):
            name: object = node.attr
        elif isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, (ast.arg, ast.keyword)):
            name = node.arg
        else:
            name = node.value if isinstance(node, ast.Constant) else None
        if name == key:
            yield node
