"""What a script says and never reads: over how many batches gradients shall add up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Namespace, Option, Value, members
from turbofix.interpreter.execution import ModuleFile
from turbofix.source.answers import everything
from turbofix.source.names import dotted, parameters
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
            is_given = name in given and not bindings.writes(scope, name) and scope is frame.scope
            if not is_given and not _is_set_before(analysis, scope, name, event):
                continue
            found = [_told(analysis, key, option) for key, option in sorted(parsed[0].attributes.items())]
            told = [(key, option, default) for key, option, default in filter(None, found)]
            if len(told) == 1 and not parsed[0].open:
                key, option, default = told[0]
                place = analysis.facts.origin_site(option.origin)
                return Argument("option", (default,), text=f"{name}.{key}", option=option.name, edit_at=place)
    return ABSENT


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


def _is_set_before(analysis: Analysis, scope: ast.AST, name: str, event: Event) -> bool:
    """Whether a name is set once, by parsing the command line in a statement of its own, ahead of the call."""
    writes = analysis.facts.bindings.writes(scope, name)
    if len(writes) != 1 or not isinstance(writes[0], ast.Assign) or not isinstance(writes[0].value, ast.Call):
        return False
    is_parsed = (dotted(writes[0].value.func) or "").endswith(".parse_args")
    within = writes[0] in getattr(scope, "body", ())
    return is_parsed and within and writes[0].lineno < event.node.lineno  # type: ignore[attr-defined]


def _told(analysis: Analysis, key: str, value: Value) -> tuple[str, Option, int] | None:
    """The option with its default, where it is a whole number of that kind which nothing reads."""
    default = settled(value.default) if isinstance(value, Option) and not value.derived else None
    if not isinstance(value, Option) or value.how != "argparse" or type(default) is not int or default < 1:
        return None
    call = _declaration(analysis, value)
    given = {each.arg: each.value for each in call.keywords} if call is not None else {}
    if dotted(given.get("type")) != "int" or "choices" in given or not is_number_of_batches(key):
        return None
    if any(True for module in analysis.execution.modules.values() for _ in _said(module, key)):
        return None
    return key, value, default


_ADDING = {"acc", "accum", "accumulate", "accumulated", "accumulation"}
_PASSES = {"grad", "grads", "gradient", "gradients", "step", "steps", "iter", "iters", "iterations", "batch", "batches"}


def is_number_of_batches(name: str) -> bool:
    """Whether a name says that it is the number of batches whose gradients add up: ``grad_accum_steps``."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
    return bool(words & _ADDING and words & _PASSES) and words <= _ADDING | _PASSES | _COUNTS


def _declaration(analysis: Analysis, option: Option) -> ast.Call | None:
    """The ``add_argument`` call that declares an option."""
    if option.origin is None:
        return None
    node, module = option.origin.node, option.origin.module
    for each in (node, analysis.facts.places.parent(node, module)):
        above = analysis.facts.places.parent(each, module) if isinstance(each, ast.keyword) else each
        if isinstance(above, ast.Call) and (dotted(above.func) or "").endswith("add_argument"):
            return above
    return None


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
