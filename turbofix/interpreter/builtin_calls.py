"""Python's built-in functions on abstract values."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, Literal

from turbofix.domain.tensors import joined_hosts, read_on_host, result_of, tensors_in
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    NEVER,
    NONE,
    NUMBER,
    UNKNOWN,
    Computed,
    Const,
    Entry,
    External,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    ModuleValue,
    Namespace,
    Opaque,
    Option,
    Sequence,
    Tensor,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter.attributes import add_weight, named_member, write_attribute
from turbofix.interpreter.containers import merge, put_keywords
from turbofix.interpreter.elements import iterate
from turbofix.interpreter.imports import import_by_name, text_of
from turbofix.interpreter.state import Handler, Interpreter


def call_builtin(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a built-in gives."""
    handler = _HANDLERS.get(name)
    return handler(interp, name, arguments, node) if handler is not None else UNKNOWN


def _range(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    return Iterated(NUMBER, None, "range", interp.origin(node))


def _enumerate(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    source, start = arguments.first("iterable"), arguments.value("start", 1)
    begin = start.value if type(start) is Const and isinstance(start.value, int) else 0
    element = Sequence([NUMBER, iterate(interp, source, node)], interp.control)
    return Iterated(element, source, name, interp.origin(node), begin)


def _zip(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    values = [passed.value for passed in arguments.positions]
    joined, element = join_all(values), Sequence([], interp.control)
    if arguments.star:
        columns = _columns(interp, values, node)
        return columns or Iterated(joined or UNKNOWN, joined, name, interp.origin(node))
    element.items = [iterate(interp, value, node) for value in values]
    return Iterated(element, joined, name, interp.origin(node))


def _columns(interp: Interpreter, values: list[Value], node: ast.AST) -> Sequence | None:
    """What ``zip(*rows)`` gives: the columns, where each of the rows is a tuple of the same known length."""
    rows = [row for value in values for row in members(value)]
    known = [row.items for row in rows if type(row) is Sequence and row.items is not None]
    if not known or len(known) < len(rows) or len({len(row) for row in known}) > 1:
        return None
    columns = [join_all(items) or UNKNOWN for items in zip(*known, strict=True)]
    origin = interp.origin(node)
    return Sequence([Sequence(None, interp.control, origin, "tuple", each) for each in columns], interp.control, origin)


def _iter(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    source = arguments.at(0)
    return Iterated(iterate(interp, source, node), source, name, interp.origin(node))


def _next(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    source = arguments.at(0) or UNKNOWN
    element = iterate(interp, source, node)
    interp.event("next", node, "", source, arguments, element)
    return join(element, arguments.at(1)) or UNKNOWN


def _collect(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``list``, ``tuple``, ``set``, ``sorted``, ``reversed``."""
    kind: Literal["list", "tuple", "set"] = "tuple" if name == "tuple" else "set" if name.endswith("set") else "list"
    value, origin = arguments.at(0), interp.origin(node)
    if name == "list" and type(value) is Made and value.kind in ("module", "dataset"):
        return value
    if value is None:
        return Sequence([], interp.control, origin, kind)
    if type(value) is Sequence and value.items is not None and kind != "set":
        items = value.items[::-1] if name == "reversed" else list(value.items)
        return Sequence(items, interp.control, origin, kind)
    return Sequence(None, interp.control, origin, kind, iterate(interp, value, node))


def _map(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``map``, ``filter``."""
    function, *sources = (passed.value for passed in arguments.positions) if arguments.positions else (UNKNOWN,)
    elements = [iterate(interp, source, node) for source in sources]
    given = interp.call(function, positional(*elements), node)
    element = elements[0] if elements and name == "filter" else given
    return Iterated(element, sources[0] if sources else None, name, interp.origin(node))


def _convert(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``int``, ``float``, ``bool``, ``round``: reading a tensor is a sync."""
    value = arguments.at(0)
    if value is None:
        return Const({"int": 0, "float": 0.0, "bool": False}.get(name, 0), interp.origin(node))
    # `int(None)` raises: where the value can be something else too, what follows has a number
    taken = [each for each in members(value) if not (type(each) is Const and each.value is None)] or members(value)
    return join_all(_convert_one(interp, name, member, arguments, node) for member in taken) or UNKNOWN


def _convert_one(interp: Interpreter, name: str, value: Value, arguments: Arguments, node: ast.AST) -> Value:
    if type(value) is Tensor:
        read = interp.absorb(node) or value
        interp.event("sync", node, name if name in ("int", "float", "bool") else "float", read, arguments)
        return read_on_host(read, interp.origin(node))
    if isinstance(value, (Host, Opaque, Computed)):
        return value
    if type(value) is Const:
        return _converted(name, value)
    if type(value) is Option:
        default = value.default
        if type(default) is Const and default.value is None:
            # `int(None)` raises: where this is reached, the user has given a number
            return value.made(NUMBER) if name in ("int", "float", "round") else value
        default = _converted(name, default) if type(default) is Const else default
        return Option(value.name, default, value.origin, value.how, value.flag, value.derived)
    return NUMBER


def _converted(name: str, value: Const) -> Value:
    convert: Callable[[Any], object] | None = {"int": int, "float": float, "bool": bool}.get(name)
    try:
        return Const(convert(value.value), value.origin) if convert is not None else NUMBER
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN


def _str(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    if value is None:
        return Const("", interp.origin(node))
    interp.show_tensors(value, arguments.positions[0].node or node, "format")
    if type(value) is Const and isinstance(value.value, (str, int, float)):
        return Const(str(value.value), value.origin)
    return value if type(value) is Option and text_of(value) is not None else UNKNOWN


def _arithmetic(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``sum``, ``max``, ``min``, ``abs``, ``pow``, ``divmod``."""
    values = [passed.value for passed in arguments.positions]
    several = len(values) > 1 and name in ("max", "min")
    if len(values) == 1 and name != "abs":
        values = [iterate(interp, values[0], node)] if not isinstance(values[0], Mapping) else [NUMBER]
    tensors = [tensor for value in values for tensor in tensors_in(value, 0)]
    if tensors:
        if several:
            interp.event("sync", node, "bool", join_all(tensors))
        return result_of(tensors, interp.origin(node))
    hosts = [host for value in values for host in tensors_in(value, 0, Host)]
    if hosts:
        return joined_hosts(hosts)
    if several:
        numbers = [value.value for value in values if type(value) is Const and isinstance(value.value, (int, float))]
        if len(numbers) == len(values):
            return Const(max(numbers) if name == "max" else min(numbers), interp.origin(node))
        if any(isinstance(member, (Option, Computed)) for value in values for member in members(value)):
            return Computed(interp.origin(node))
    return values[0] if name == "abs" and values and type(values[0]) is Opaque else NUMBER


def _len(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    for member in members(value):
        if isinstance(member, (Made, Instance, Opaque)):
            member.uses.add("len")
    fixed = type(value) is Sequence and (not interp.loop_depth or interp.certainty(value.made_at) == "strong")
    if type(value) is Sequence and value.items is not None and fixed:
        return Const(len(value.items), interp.origin(node))
    return NUMBER


def _unknown_truth(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    element = iterate(interp, arguments.at(0), node)
    return element if any(isinstance(member, (Tensor, Host)) for member in members(element)) else UNKNOWN


def _dict(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    mapping = Mapping(interp.control, interp.origin(node))
    value = arguments.at(0)
    if value is not None:
        merge(interp, mapping, value, strong=True)
    put_keywords(interp, mapping, arguments, True)
    return mapping


def _getattr(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    owner, default = arguments.at(0) or UNKNOWN, arguments.at(2)
    found = named_member(interp, owner, arguments.at(1), node)
    return found if isinstance(owner, (External, ModuleValue)) else join(found, default) or UNKNOWN


def _setattr(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    key, value = arguments.at(1), arguments.at(2) or UNKNOWN
    for member in members(arguments.at(0)):
        if type(key) is Const and isinstance(key.value, str):
            write_attribute(interp, member, key.value, value, node)
            continue
        # any attribute may be set: those that were constants are the user's choice now
        for attribute, old in list(member.attributes.items()) if isinstance(member, (Namespace, Instance)) else ():
            if type(old) is Const:
                member.attributes[attribute] = Option(attribute, old, old.origin, "setattr")  # type: ignore[attr-defined]
        if type(member) is Namespace:
            member.open = True
        if type(member) is Instance and any(type(each) is Made and each.kind == "module" for each in members(value)):
            member.attributes["<layers>"] = join(member.attributes.get("<layers>"), value) or value  # one of them
        if isinstance(member, (Instance, Made)):
            add_weight(member, value)
    return NONE


def _vars(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    held = Namespace(value.made_at, value.attributes, True) if type(value) is Instance else value
    return held or _globals(interp, "locals", arguments, node)


def _print(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.show_arguments(arguments, node, "print")
    interp.event("show", node, "print", None, arguments)
    return NONE


def _open(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    opened = interp.opaque("open()", "call", node)
    if arguments.positions:
        opened.children["<path>"] = arguments.positions[0].value
    return opened


def _object(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    return interp.opaque(f"{name}()", "call", node)


def _type(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    return value.cls if type(value) is Instance and len(arguments.positions) == 1 else UNKNOWN


def _exec(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """Code that is not in the program's text: what the module's constants were is no longer a fact."""
    interp.event("destroy", node, name, None, arguments)
    interp.destroy()
    return UNKNOWN


def _eval(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``eval("nn." + name)``: of a text that is known, what it names."""
    text = text_of(arguments.at(0)) or ""
    if re.fullmatch(r"[A-Za-z_][\w.]*", text) and not text.endswith("."):
        found = interp.eval(ast.parse(text, mode="eval").body)
        return found if type(arguments.at(0)) is Const else join(found, UNKNOWN) or UNKNOWN
    return interp.opaque("eval()", "call", node)


def _globals(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    if name == "globals":
        return ModuleValue(interp.frame.module)
    entries: dict[object, Entry] = {key: Entry(value, True) for key, value in interp.frame.scope.names.items()}
    return Mapping(interp.control, None, entries, True)


def _exit(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    return NEVER


_HANDLERS: dict[str, Handler] = {
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
    "iter": _iter,
    "next": _next,
    "map": _map,
    "filter": _map,
    "dict": _dict,
    "str": _str,
    "repr": _str,
    "format": _str,
    "len": _len,
    "__import__": import_by_name,
    "getattr": _getattr,
    "setattr": _setattr,
    "vars": _vars,
    "print": _print,
    "open": _open,
    "object": _object,
    "input": _object,
    "type": _type,
    "exec": _exec,
    "eval": _eval,
    "globals": _globals,
    "locals": _globals,
    "exit": _exit,
    "quit": _exit,
    "any": _unknown_truth,
    "all": _unknown_truth,
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "sorted", "reversed"), _collect),
    **dict.fromkeys(("int", "float", "bool", "round", "complex"), _convert),
    **dict.fromkeys(("sum", "max", "min", "abs", "pow", "divmod"), _arithmetic),
}
