"""What a worker process that is spawned does not know of the program: what is set where only the script itself runs.

Such a worker imports the script anew, without what stands under its guard and what that calls. A global that its
samples are made from has the value there that the top level of its file gave it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import once_per_node
from turbofix.program.events import Control
from turbofix.program.execution import ModuleFile, Scope
from turbofix.program.libraries import words
from turbofix.program.model import SetLater
from turbofix.program.names import is_main_test
from turbofix.program.stale import MUTABLE, MUTATORS, Text, changes, holders, values_in
from turbofix.program.values import Bound, Class, Function, ModuleValue, Value, members

Read: TypeAlias = tuple[ModuleFile, str, object]
"""A name of a file, and the item or attribute of it that is read: None for the whole."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MERGES = words("merge_from_file merge_from_list merge_from_other_cfg merge_with_dotlist merge_with")
"""How the settings of yacs and OmegaConf, whose classes are not seen, are changed."""


def names_read(function: Function) -> set[Read]:
    """The names of its file that a function reads, with the part of each."""
    found = set()
    for name, part in _free(function.node):
        value = function.module.scope.names.get(name)
        found.add((function.module, name, part))
        for each in members(value):
            if isinstance(each, ModuleValue) and isinstance(part, str):
                found.add((each.module, part, None))
    return found


@once_per_node
def _free(node: ast.AST) -> frozenset[tuple[str, object]]:
    """The names that a function does not set itself, each with the constant item or attribute that is taken of it."""
    nodes = list(walk(node))
    own = {each.id for each in nodes if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    own |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    parts: dict[int, object] = {}
    for each in nodes:
        if isinstance(each, (ast.Attribute, ast.Subscript)) and id(each) not in called:
            parts[id(each.value)] = _part(each)
    return frozenset(
        (each.id, parts.get(id(each))) for each in nodes if isinstance(each, ast.Name) and each.id not in own
    )


def _part(node: ast.Attribute | ast.Subscript) -> object:
    """The name of an attribute, or a constant key; None for one that is computed."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.slice.value if isinstance(node.slice, ast.Constant) else None


def set_later(analysis: Analysis, read: Collection[Read], classes: Collection[Class]) -> tuple[SetLater, ...]:
    """Which of the globals that make samples are set where a spawned worker does not come, once for each name."""
    question = "set later", frozenset(read), frozenset(map(id, classes))  # many objects of a class make them alike
    return analysis.once(question, lambda: _set_later(analysis, read, classes))


def _set_later(analysis: Analysis, read: Collection[Read], classes: Collection[Class]) -> tuple[SetLater, ...]:
    entry = analysis.execution.entry
    found: dict[str, SetLater] = {}
    guards = [each for each in entry.tree.body if isinstance(each, ast.If) and is_main_test(each.test)]
    bound = {name: (line, guard) for guard in guards for name, line in _bound_under(guard)}
    for module, name, _ in sorted(read, key=_by_name):
        if module is entry and name in bound:
            line, guard = bound[name]
            site = analysis.facts.places.site(guard, entry)
            found.setdefault(name, SetLater(name, _where(analysis, line, entry), site, True))
    by_name: dict[tuple[ModuleFile, str], set[object]] = {}
    for module, name, part in read:
        by_name.setdefault((module, name), set()).add(part)
    held = {
        id(each): (each, name, parts)
        for (module, name), parts in sorted(by_name.items(), key=lambda item: _by_name(item[0]))
        for each in members(module.scope.names.get(name))
        if isinstance(each, MUTABLE) and not isinstance(each, ModuleValue)
    }
    owners = {id(each) for each in classes}
    for text, top, guarded in analysis.once("texts of the script", lambda: list(_texts(analysis, guards))):
        site = analysis.facts.places.site(top, entry)
        declared = (each for each in _declared(text.node) if (text.module, each[0]) in by_name)
        for name, line in (*declared, *_changed(text, by_name, held, owners)):
            later = SetLater(name, _where(analysis, line, text.module), site, guarded)
            known = found.get(name)
            if known is None or known.top < site:  # of several statements without a guard, the last one comes under it
                found[name] = later
    return tuple(found.values())


def _by_name(read: tuple[ModuleFile, str] | Read) -> tuple[str, str]:
    return str(read[0].path), read[1]


def _where(analysis: Analysis, line: int, module: ModuleFile) -> str:
    return f"line {line}" + ("" if module is analysis.execution.entry else f" of {module.path.name}")


@once_per_node
def _bound_under(guard: ast.If) -> tuple[tuple[str, int], ...]:
    """The names that the statements under a guard bind, outside of functions and classes."""
    found: list[tuple[str, int]] = []
    waiting: list[ast.AST] = list(guard.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append((node.name, node.lineno))
            continue
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append((node.id, node.lineno))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [(alias.asname or alias.name.partition(".")[0], node.lineno) for alias in node.names]
        waiting += ast.iter_child_nodes(node)
    return tuple(found)


@once_per_node
def _declared(node: ast.AST) -> tuple[tuple[str, int], ...]:
    """The names of its file that a function says it sets (``global``), and where it does."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ()
    nodes = list(walk(node))
    named = {name for each in nodes if isinstance(each, ast.Global) for name in each.names}
    lines: dict[str, int] = {}
    for each in nodes if named else ():
        if isinstance(each, ast.Name) and each.id in named and not isinstance(each.ctx, ast.Load):
            lines.setdefault(each.id, each.lineno)
    return tuple(lines.items())


def _texts(analysis: Analysis, guards: list[ast.If]) -> Iterator[tuple[Text, ast.stmt, bool]]:
    """What the script itself executes, with the statement of its top level that leads there; ``True``: it is a guard.

    Where the file has none, all of them: a guard that is added may come to stand above any.
    """
    entry = analysis.execution.entry
    starting: list[ast.stmt] = [*guards]
    if not guards:
        starting = [each for each in entry.tree.body if not isinstance(each, _DEFINITIONS)]
    tops = {id(node): top for top in starting for node in walk(top)}
    for top in starting:
        yield Text(top, entry, (entry.scope,)), top, bool(guards)
    known: dict[Control | None, ast.stmt | None] = {None: None}
    found: dict[tuple[int, int], tuple[Function, ast.stmt, list[Scope]]] = {}
    for control, scope in analysis.execution.scopes.items():
        function = control.detail.function if isinstance(control.detail, Bound) else control.detail
        led = _top(control, entry, tops, known)
        if led is not None and isinstance(function, Function):
            found.setdefault((id(function.node), id(led)), (function, led, []))[2].append(scope)
    for function, top, scopes in found.values():
        yield Text(function.node, function.module, tuple(scopes)), top, bool(guards)


def _top(
    control: Control, entry: ModuleFile, tops: dict[int, ast.stmt], known: dict[Control | None, ast.stmt | None]
) -> ast.stmt | None:
    """The statement of the script's top level in which something is executed; None for a worker, or an import."""
    path: list[Control] = []
    level: Control | None = control
    while level not in known:
        assert level is not None
        path.append(level)
        level = level.up
    top = known[level]
    for each in reversed(path):
        if top is None and each.module is entry and each.node is not None and not isinstance(each.node, ast.Module):
            top = tops.get(id(each.node))
            top = None if isinstance(top, (ast.Import, ast.ImportFrom)) else top
        known[each] = top
    return top


def _changed(
    text: Text,
    by_name: Mapping[tuple[ModuleFile, str], set[object]],
    held: Mapping[int, tuple[Value, str, set[object]]],
    owners: set[int],
) -> Iterator[tuple[str, int]]:
    """What of the objects that samples are made from, or of the settings of a module, a text changes; and where."""
    for node, target, method in changes(text.node):
        if method is not None and method not in MUTATORS and method not in _MERGES:
            continue
        inner: ast.expr = node if method is None else target
        for each in (target, *holders(target)):
            part = _part(inner) if isinstance(inner, (ast.Attribute, ast.Subscript)) and inner is not each else None
            inner = each
            for value in values_in(each, text):
                if id(value) in held:
                    _, name, parts = held[id(value)]
                    if part is None or None in parts or part in parts:
                        yield name, node.lineno
                elif isinstance(value, ModuleValue) and (value.module, part) in by_name:
                    yield f"{value.module.name}.{part}", node.lineno
                elif isinstance(value, Class) and id(value) in owners and method is None:
                    yield f"{value.node.name}.{part}", node.lineno
