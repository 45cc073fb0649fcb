"""What a worker process that is spawned does not know of the program: what is set where only the script itself runs.

Such a worker imports the script anew, without what stands under its guard and what that calls. A global that its
samples are made from has the value there that the top level of its file gave it. All this is read from the text.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TypeAlias

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Class, External, Function, ModuleValue, members
from turbofix.library.tables import words
from turbofix.records import dataclass
from turbofix.source.answers import once_per_node
from turbofix.source.names import dotted
from turbofix.source.nodes import children, walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.training.model import SetLater
from turbofix.training.script import is_guard

Read: TypeAlias = tuple[ModuleFile, str, object]
"""A name of a file, and the item or attribute of it that is read: None for the whole."""

CHANGING = words(
    """
    append extend insert pop popitem remove clear sort reverse update setdefault add discard appendleft popleft rotate
    merge_from_file merge_from_list merge_from_other_cfg merge_with_dotlist merge_with
    """
)
"""Methods that change a list, a dict, or the settings of yacs and OmegaConf."""


@dataclass(frozen=True)
class Write:
    """Where a text sets a name of its file, or a part of what it stands for: ``part`` is None for all of it.

    ``first``: it gives the name a value, as whoever imports the file sees it.
    """

    name: str
    part: object
    line: int
    first: bool


def names_read(function: Function) -> set[Read]:
    """The names of its file that a function reads, with the part of each."""
    found: set[Read] = set()
    for name, part in _free(function.node):
        held = members(function.module.scope.names.get(name))
        if part is None and any(isinstance(each, External) for each in held):
            continue  # what is called in a library is not changed by a setting of it
        found.add((function.module, name, part))
        for each in held:
            if isinstance(each, ModuleValue) and isinstance(part, str):
                found.add((each.module, part, None))
    return found


@once_per_node
def _free(node: ast.AST) -> frozenset[tuple[str, object]]:
    """The names that a function does not set itself, each with the constant item or attribute that is taken of it."""
    nodes = list(walk(node))
    own = _own(node)
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    parts: dict[int, object] = {}
    for each in nodes:
        if isinstance(each, (ast.Attribute, ast.Subscript)) and id(each) not in called:
            parts[id(each.value)] = _part(each)
    return frozenset(
        (each.id, parts.get(id(each))) for each in nodes if isinstance(each, ast.Name) and each.id not in own
    )


@once_per_node
def _own(function: ast.AST) -> frozenset[str]:
    """The names that belong to a function: what it sets, and its parameters, less those it calls global."""
    nodes = list(walk(function))
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    outer = {name for each in nodes if isinstance(each, ast.Global) for name in each.names}
    return frozenset((stored - outer) | {each.arg for each in nodes if isinstance(each, ast.arg)})


def _part(node: ast.Attribute | ast.Subscript) -> object:
    """The name of an attribute, or a constant key; None for one that is computed."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.slice.value if isinstance(node.slice, ast.Constant) else None


def set_later(analysis: Analysis, read: Collection[Read], classes: Collection[Class]) -> tuple[SetLater, ...]:
    """Which of the globals and classes that make samples are set where a spawned worker does not come, once for each.

    That is under the script's guard and in functions; where it has no guard, wherever one may come to stand above.
    """
    entry, site = analysis.execution.entry, analysis.facts.places.site
    guarded = any(is_guard(top) for top in entry.tree.body)
    parts: dict[str, set[object]] = {each.node.name: {None} for each in classes}
    for _, name, part in read:
        parts.setdefault(name, set()).add(part)
    found: dict[str, SetLater] = {}
    for module in analysis.execution.modules.values():
        for top in module.tree.body:
            is_function = isinstance(top, FUNCTIONS) and top.name not in parts
            guards = not is_function and is_guard(top)
            if not is_function and not guards and (guarded or module is not entry):
                continue  # a worker comes there
            if parts.keys().isdisjoint(_names(top)):
                continue
            where = "" if module is entry else f" of {module.path.name}"
            for write in _writes(top):
                read_parts = parts.get(write.name, ())
                if write.first and not is_function and not guards:
                    continue
                if _is_library(module, write.name):
                    continue  # a switch of torch makes no samples, and `torch.sort` changes nothing of torch
                if read_parts and (None in read_parts or write.part is None or write.part in read_parts):
                    of_class = any(each.node.name == write.name for each in classes) and write.part is not None
                    named = f"{write.name}.{write.part}" if of_class else write.name
                    later = SetLater(named, f"line {write.line}{where}", site(top, module), guarded or is_function)
                    found[write.name] = later  # of several statements without a guard, the last one comes under it
    return tuple(found.values())


def _is_library(module: ModuleFile, name: str) -> bool:
    """Whether a name of a file is a library that it imports."""
    found = members(module.scope.names.get(name))
    return bool(found) and all(isinstance(each, External) for each in found)


@once_per_node
def _names(top: ast.stmt) -> frozenset[str]:
    return frozenset(each.id for each in walk(top) if isinstance(each, ast.Name))


@once_per_node
def _writes(top: ast.stmt) -> tuple[Write, ...]:
    """What a statement of a file's top level, or the function that it defines, sets of the names of its file."""
    found: list[Write] = []
    nothing: frozenset[str] = frozenset()
    waiting: list[tuple[ast.AST, frozenset[str]]] = [(top, nothing)]
    for node, around in waiting:  # grows meanwhile
        own = _own(node) if isinstance(node, FUNCTIONS) else around
        if isinstance(node, _CHANGING):
            is_first = isinstance(node, ast.Name) and not isinstance(top, LOOPS)
            told = ((name, part) for name, part in _targets(node) if name not in own)
            found += (Write(name, part, getattr(node, "lineno", 0), is_first) for name, part in told)
        waiting += [(each, own) for each in children(node)]
    return tuple(found)


_CHANGING = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def _targets(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The name at the root of what a node changes, with the part that it changes."""
    changed: ast.AST | None = None
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, None
    elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        changed = node
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        changed = node.func.value
    elif isinstance(node, ast.Call) and node.args and (dotted(node.func) or "").endswith(("random.shuffle", "setattr")):
        changed = node.args[0]
    part: object = None
    while isinstance(changed, (ast.Attribute, ast.Subscript)):
        part = _part(changed)
        changed = changed.value
    if isinstance(changed, ast.Name):
        yield changed.id, part
