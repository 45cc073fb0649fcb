"""Elements of values: loops, unpacking, ``with``."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import with_roles
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    NUMBER,
    UNKNOWN,
    Bound,
    Const,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Sequence,
    Tensor,
    Unknown,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter.attributes import child
from turbofix.interpreter.batches import batch_of
from turbofix.interpreter.containers import element_of
from turbofix.interpreter.definitions import is_module
from turbofix.interpreter.state import Interpreter


def iterate(interp: Interpreter, value: Value | None, node: ast.AST) -> Value:
    """What a loop over the value gives its target."""
    found: Value | None = None
    for member in members(value):
        found = join(found, _iterate(interp, member, node))
    return found or UNKNOWN


def _iterate(interp: Interpreter, value: Value, node: ast.AST) -> Value:
    if type(value) is Sequence:
        return element_of(value)
    if type(value) is Iterated:
        return value.element
    if type(value) is Made:
        return _iterate_made(interp, value, node)
    if type(value) is Tensor:
        return with_roles(value, frozenset(), interp.origin(node))
    if type(value) is Host:
        return value
    if type(value) is Instance:
        return _iterate_instance(interp, value, node)
    if type(value) is Opaque:
        value.uses.add("iter")
        return child(interp, value, "<element>", node, "element")
    if isinstance(value, Mapping):
        return join_all(Const(key) for key in list(value.entries)[:8]) or UNKNOWN
    if type(value) is Const and isinstance(value.value, tuple):
        return join_all(Const(each, value.origin) for each in value.value[:8]) or UNKNOWN
    return UNKNOWN


def _iterate_made(interp: Interpreter, value: Made, node: ast.AST) -> Value:
    value.uses.add("iter")
    if value.kind == "loader":
        return batch_of(interp, value, node)
    if value.kind == "progress":
        return iterate(interp, value.inner, node) if value.inner is not None else UNKNOWN
    if value.kind in ("dataset", "tokens"):
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), value)
    if value.kind == "sampler":
        return NUMBER
    if value.kind in ("module", "wrapper"):
        return iterate(interp, value.inner, node) if value.inner is not None else child(interp, value, "<layer>", node)
    return child(interp, value, "<element>", node, "element")


def _iterate_instance(interp: Interpreter, value: Instance, node: ast.AST) -> Value:
    value.uses.add("iter")
    method = value.cls.find("__iter__")
    if type(method) is Function:
        iterator = interp.call(Bound(value, method), Arguments(), node)
        if type(iterator) is Iterated:
            return iterator.element
        if iterator is not value and not any(type(member) is Instance for member in members(iterator)):
            return iterate(interp, iterator, node)
    elif value.base is not None and (
        value.base.kind == "loader"
        or (value.base.kind in ("dataset", "sampler") and not isinstance(value.cls.find("__getitem__"), Function))
    ):
        return _iterate_made(interp, value.base, node)
    for name in ("__next__", "next", "__getitem__"):
        method = value.cls.find(name)
        if type(method) is Function:
            arguments = Arguments([Passed(NUMBER)] if name == "__getitem__" else [])
            return interp.call(Bound(value, method), arguments, node)
    return value if is_module(value) else UNKNOWN


def unpack(interp: Interpreter, value: Value, target: ast.Tuple | ast.List) -> list[Value]:
    """The parts of a value for the parts of a tuple that it is assigned to."""
    count = len(target.elts)
    starred = next((i for i, each in enumerate(target.elts) if isinstance(each, ast.Starred)), None)
    parts: list[Value | None] = [None] * count
    for member in members(value):
        if type(member) is Const and member.value is None:
            continue
        for index, part in enumerate(_unpack(interp, member, count, starred, target)):
            parts[index] = join(parts[index], part)
    return [part or UNKNOWN for part in parts]


def _unpack(interp: Interpreter, value: Value, count: int, starred: int | None, node: ast.AST) -> list[Value]:
    if type(value) is Sequence:
        if value.items is None:
            return [element_of(value)] * count
        if starred is None and len(value.items) == count:
            return list(value.items)
        if starred is not None and len(value.items) >= count - 1:
            after = count - 1 - starred
            middle = value.items[starred : len(value.items) - after]
            rest = Sequence(list(middle), interp.control, interp.origin(node), "list")
            return [*value.items[:starred], rest, *value.items[len(value.items) - after :]]
        return [element_of(value)] * count
    if type(value) is Tensor:
        return [value] * count
    if isinstance(value, (Iterated, Host)):
        return [value.element if type(value) is Iterated else value] * count
    if type(value) is Opaque:
        return [
            child(interp, value, f"[{index}]", node, "element" if value.how == "element" else "call")
            for index in range(count)
        ]
    if type(value) is Const and isinstance(value.value, (tuple, list)) and len(value.value) == count:
        return [Const(each, value.origin) for each in value.value]
    if isinstance(value, (Made, Instance)):
        return [value if type(value) is Made and value.kind == "dataset" else iterate(interp, value, node)] * count
    if type(value) is Unknown and value.number:
        return [NUMBER] * count
    return [UNKNOWN] * count


def enter_context(interp: Interpreter, value: Value, node: ast.AST) -> Value:
    """What ``with value as x`` binds to x."""
    entered: Value | None = None
    for member in members(value):
        method = member.cls.find("__enter__") if type(member) is Instance else None
        if type(method) is Function:
            entered = join(entered, interp.call(Bound(member, method), Arguments(), node))
        else:
            entered = join(entered, member)
    return entered or UNKNOWN
