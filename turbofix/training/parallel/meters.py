"""Objects of a program's own classes that a loop has count, and what of them adds up over processes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from turbofix.domain.values import (
    Class,
    Const,
    Function,
    Host,
    Instance,
    Mapping,
    Opaque,
    Sequence,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import dotted, loaded, parameters
from turbofix.source.nodes import walk
from turbofix.training.model import Figure
from turbofix.training.parallel.passes import Pass
from turbofix.training.parallel.sharing import value_of

_PLAIN = frozenset(("builtins.object", "abc.ABC"))
_SELF = regex(r"\bself\b")
_EMPTY = frozenset(("list", "dict", "defaultdict", "Counter", "zeros", "tensor"))


@dataclass(frozen=True)
class Meter:
    """What one object counts, and lines that compute anew what it keeps of that (``losses.avg = ...``)."""

    figures: tuple[Figure, ...]
    anew: tuple[str, ...] = ()


@dataclass
class _Kept:
    """What a method does to the attributes of its object, other methods that it calls included."""

    sums: dict[str, None] = field(default_factory=dict)
    entries: dict[str, None] = field(default_factory=dict)
    lists: dict[str, None] = field(default_factory=dict)
    given: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def added(self) -> set[str]:
        return {*self.sums, *self.entries, *self.lists}


def meters(loop: Pass) -> Iterator[Meter]:
    """The objects that a loop has count, which begin anew whenever it is passed, and are read behind it."""
    facts, module, done = loop.analysis.facts, loop.module, set[str]()
    function = facts.places.function(loop.node, module)
    read = {each.arg for each in parameters(function)} if function is not None else set()  # by the caller
    receivers = [each.func.value for each in loop.calls if isinstance(each.func, ast.Attribute)]
    for receiver in receivers:
        name = facts.places.text(receiver, module)
        if name in done or not (loop.is_read(receiver) or name in read):
            continue
        done.add(name)
        held = members(value_of(loop.analysis, receiver, module))
        objects = [each for each in held if isinstance(each, Instance) and not set(each.cls.externals()) - _PLAIN]
        if len({each.cls for each in objects}) != 1 or len(objects) < len(held):
            continue
        cls, kept = objects[0].cls, _Kept()
        for each in loop.calls:
            if isinstance(each.func, ast.Attribute) and ast.unparse(each.func.value) == ast.unparse(receiver):
                _follow(cls, each.func.attr, kept)
        made = isinstance(loop.start(receiver, anew=True), ast.Call) and _starts(cls, "__init__", kept.added)
        if kept.added and (made or _is_reset(name, cls, kept.added, loop.fresh)):
            meter = _meter(name, kept, objects)
            if meter is not None:
                yield meter


def _meter(name: str, kept: _Kept, objects: list[Instance]) -> Meter | None:
    """How one is put together, where what it adds up is not set in other ways, and sums come with what divides them."""
    if kept.added & {*kept.given} or len(kept.sums) + len(kept.entries) == 1:
        return None
    values = {attribute: _held(objects, attribute) for attribute in kept.added}
    if not any(isinstance(value, (Host, Tensor)) for held in values.values() for value in held):
        return None  # a clock
    tensors = {attribute for attribute, held in values.items() if any(isinstance(each, Tensor) for each in held)}
    if tensors & {*kept.entries} or any(isinstance(each, Mapping) for name in kept.lists for each in values[name]):
        return None
    counted = [figure_of(f"{name}.{each}", "number", values[each]) for each in kept.sums]
    counted += [Figure(f"{name}.{each}", "entries") for each in kept.entries]
    counted += [figure_of(f"{name}.{each}", "samples", values[each]) for each in kept.lists]
    return Meter(tuple(counted), tuple(_anew(name, kept)))


def _held(objects: list[Instance], attribute: str) -> list[Value]:
    return [value for each in objects for value in flatten(each.attributes.get(attribute))]


def figure_of(
    text: str, kind: Literal["number", "batches", "samples"], held: list[Value], mean: bool = False
) -> Figure:
    """What is counted, by what it holds beside constants: tensors, numbers, or what may be either."""
    found = [each for each in held if not isinstance(each, (Const, Sequence))]
    tensors = [each for each in found if isinstance(each, Tensor) and (kind != "samples" or each.device != "cpu")]
    sure = not tensors or (len(tensors) == len(found) and not any(each.foreign for each in tensors))
    sure = sure and not (kind == "number" and any(isinstance(each, Opaque) for each in found))
    carries = sure and any(not each.detached for each in tensors)
    return Figure(text, kind, mean, bool(tensors) and sure, carries, unsure=not sure)


def _anew(name: str, kept: _Kept) -> Iterator[str]:
    """What is computed of the sums alone, computed again."""
    known = {f"self.{each}" for each in kept.added}
    for attribute, value in kept.given.items():
        used = {each for each in loaded(value) if each != "self" and not hasattr(builtins, each)}
        if used and used <= known:
            yield f"{name}.{attribute} = {_SELF.sub(lambda _: name, ast.unparse(value))}"
            known.add(f"self.{attribute}")


def _follow(cls: Class, method: str, kept: _Kept, depth: int = 3) -> None:
    """Note what a method of a class does to its object."""
    found = cls.find(method)
    if not isinstance(found, Function) or isinstance(found.node, ast.Lambda) or not depth:
        return
    for node in walk(found.node):
        if isinstance(node, ast.AugAssign):
            inside = isinstance(node.target, ast.Subscript)
            name = _attribute(node.target.value if isinstance(node.target, ast.Subscript) else node.target)
            if name is not None and isinstance(node.op, ast.Add):
                (kept.entries if inside else kept.sums).setdefault(name)
            elif name is not None:
                kept.given[name] = node.value
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in walk(target):
                    name = _attribute(each)
                    if name is not None:
                        kept.given[name] = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = _attribute(node.func.value)
            if name is not None and node.func.attr in ("append", "extend"):
                kept.lists.setdefault(name)
            elif dotted(node.func.value) == "self":
                _follow(cls, node.func.attr, kept, depth - 1)


def _attribute(node: ast.AST) -> str | None:
    held = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if held else None  # type: ignore[attr-defined]


def _is_reset(name: str, cls: Class, added: set[str], fresh: list[ast.stmt]) -> bool:
    """Whether one of an object's methods is called there that begins anew."""
    for statement in fresh:
        func = getattr(getattr(statement, "value", None), "func", None)
        if isinstance(func, ast.Attribute) and dotted(func.value) == name and _starts(cls, func.attr, added):
            return True
    return False


def _starts(cls: Class, method: str, added: set[str]) -> bool:
    """Whether a method sets to their beginnings all that is added to: zeros, lists and dicts."""
    kept = _Kept()
    _follow(cls, method, kept)
    values = [kept.given.get(each) for each in added]
    return not kept.added and all(map(_is_empty, values))


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return (dotted(value.func) or "").rpartition(".")[2] in _EMPTY
    return isinstance(value, (ast.Constant, ast.List, ast.Dict, ast.DictComp))
