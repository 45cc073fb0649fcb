"""What changes while a program trains: objects and globals of which a worker process would keep an old copy."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import once_per_node
from turbofix.program.events import Control
from turbofix.program.execution import ModuleFile, Scope
from turbofix.program.facts import attribute, is_loop
from turbofix.program.libraries import words
from turbofix.program.values import (
    Bound,
    Class,
    External,
    Function,
    Instance,
    Made,
    Mapping,
    Namespace,
    Opaque,
    Sequence,
    Value,
    members,
)
from turbofix.records import dataclass

MUTATORS = words(
    """
    append extend insert pop popitem remove clear sort reverse update setdefault add discard appendleft popleft rotate
    """
)
MUTABLE = (Instance, Made, Mapping, Namespace, Opaque, Sequence)
_SHUFFLES = ("random.shuffle", "np.random.shuffle", "numpy.random.shuffle")


@dataclass(eq=False)
class Text:
    """A loop of the training, or a function that it calls, with the names that are known in it."""

    node: ast.AST
    module: ModuleFile
    scopes: tuple[Scope, ...]


def training_texts(analysis: Analysis, born: Control | None = None) -> list[Text]:
    """The loops around backward passes, and the functions that they call; not those in which ``born`` stands."""
    around = _around(born)
    return analysis.once(("training texts", around), lambda: _training_texts(analysis, around))


def _around(born: Control | None) -> frozenset[int]:
    """The loops that something stands in."""
    return frozenset(id(level.detail) for level in (born.upwards() if born is not None else ()) if is_loop(level))


def _training_texts(analysis: Analysis, around: Collection[int]) -> list[Text]:
    loops: dict[int, Control] = {}
    for event in analysis.facts.of("backward"):
        for level in event.control.upwards():
            if is_loop(level) and id(level.detail) not in around:
                loops[id(level.detail)] = level
    called: dict[int, tuple[ast.AST, ModuleFile, list[Scope]]] = {}
    inside: dict[Control | None, bool] = {None: False}
    for control, scope in analysis.execution.scopes.items():
        if _is_inside(control, loops, inside):
            function = control.detail.function if isinstance(control.detail, Bound) else control.detail
            if isinstance(function, Function):
                called.setdefault(id(function.node), (function.node, function.module, []))[2].append(scope)
    found = [Text(node, module, tuple(scopes)) for node, module, scopes in called.values()]
    for level in loops.values():
        if level.node is not None and level.module is not None:
            outer = next((each for each in level.upwards() if each.kind == "call"), None)
            known = analysis.execution.scopes.get(outer) if outer is not None else None
            found.append(Text(level.node, level.module, (known or level.module.scope,)))
    return found


def _is_inside(control: Control, loops: Collection[int], known: dict[Control | None, bool]) -> bool:
    path: list[Control] = []
    level: Control | None = control
    while level not in known:
        assert level is not None
        path.append(level)
        level = level.up
    found = known[level]
    for each in reversed(path):
        found = known[each] = found or (is_loop(each) and id(each.detail) in loops)
    return found


@once_per_node
def changes(node: ast.AST) -> tuple[tuple[ast.expr, ast.expr, str | None], ...]:
    """What a text may change: where, the object, and the method of its own that would do it (None: it is done here)."""
    found: list[tuple[ast.expr, ast.expr, str | None]] = []
    for each in walk(node):
        if isinstance(each, (ast.Attribute, ast.Subscript)) and isinstance(each.ctx, (ast.Store, ast.Del)):
            found.append((each, each.value, None))
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            if each.args and ast.unparse(each.func) in _SHUFFLES:
                found.append((each, each.args[0], None))
            found.append((each, each.func.value, each.func.attr))
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "setattr" and each.args:
            found.append((each, each.args[0], None))
    return tuple(found)


def changed_while_training(analysis: Analysis, instance: Instance, writing: Collection[str]) -> str | None:
    """How an object, or what it holds, is changed while the program trains; ``writing`` are its methods that do."""
    question = "changed while training", _around(instance.made_at), frozenset(writing)
    for change in analysis.once(question, lambda: _changed(analysis, instance.made_at, writing)):
        if instance in change.targets or instance in change.holders:
            return _told(analysis, change.node, change.target, change.method, change.text)
    return None


@dataclass(eq=False)
class _Change:
    """What changes objects while a program trains: those that a text names, and those that hold what it names."""

    text: Text
    node: ast.expr
    target: ast.expr
    method: str | None
    targets: frozenset[Value]
    holders: frozenset[Value]


def _changed(analysis: Analysis, born: Control, writing: Collection[str]) -> list[_Change]:
    found: list[_Change] = []
    for text in training_texts(analysis, born):
        for node, target, method in changes(text.node):
            content = method in MUTATORS or method is None
            if not content and method not in writing:
                continue
            own = values_in(target, text) if method not in MUTATORS - set(writing) else []
            held = [each for holder in holders(target) for each in values_in(holder, text)] if content else []
            if own or held:
                found.append(_Change(text, node, target, method, frozenset(own), frozenset(held)))
    return found


def _told(analysis: Analysis, node: ast.expr, target: ast.expr, method: str | None, text: Text) -> str:
    where = "" if text.module is analysis.execution.entry else f" of {text.module.path.name}"
    what = f"{ast.unparse(target)}.{method}()" if method is not None else ast.unparse(node)
    return f"it is changed by `{what}` on line {node.lineno}{where} while the program trains"


def holders(node: ast.expr) -> Iterator[ast.expr]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        yield node


def values_in(node: ast.expr, text: Text) -> list[Value]:
    """What a name, or an attribute of one, can be in a text."""
    if isinstance(node, ast.Name):
        found = []
        for scope in text.scopes:
            level: Scope | None = scope
            while level is not None and node.id not in level.names:
                level = level.parent
            found += list(members(level.names[node.id])) if level is not None else []
        return found
    if isinstance(node, ast.Attribute):
        return [each for value in values_in(node.value, text) for each in members(attribute(value, node.attr))]
    return []


def changed_globals(analysis: Analysis, names: Collection[tuple[ModuleFile, str, object]]) -> str | None:
    """Which of the globals that make samples is changed while the program trains, and where."""
    read = {(module, name) for module, name, _ in names if _is_data(module.scope.names.get(name))}
    if not read:
        return None
    texts = training_texts(analysis)
    for module, name in sorted(read, key=lambda each: (str(each[0].path), each[1])):
        held = [each for each in members(module.scope.names.get(name)) if isinstance(each, MUTABLE)]
        for text in texts:
            where = "" if text.module is analysis.execution.entry else f" of {text.module.path.name}"
            for node, target, method in changes(text.node):
                if method is not None and method not in MUTATORS:
                    continue
                for each in (target, *holders(target)):
                    if any(value is one for value in values_in(each, text) for one in held):
                        return f"`{name}`, which makes its samples, is changed on line {node.lineno}{where}"
            line = _rebinds(text, name) if text.module is module else None
            if line is not None:
                return f"`{name}`, which makes its samples, is changed on line {line}{where}"
    return None


def _is_data(value: Value | None) -> bool:
    """Whether a name stands for more than a function or class."""
    return not all(isinstance(each, (Class, External, Function)) for each in members(value))


def _rebinds(text: Text, name: str) -> int | None:
    """The line where a function says that a name which it sets is global, or where a loop of the file sets it."""
    at_top = text.module.scope in text.scopes
    for each in walk(text.node):
        if isinstance(each, ast.Global) and name in each.names:
            return each.lineno
        if at_top and isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load):
            return each.lineno
    return None
