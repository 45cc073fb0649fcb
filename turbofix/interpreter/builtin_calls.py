"""Python's built-in functions on abstract values."""

from __future__ import annotations

import ast

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
from turbofix.interpreter.imports import import_by_name
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.state import Handler, Interpreter


def call_builtin(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a built-in gives."""
    handler = _HANDLERS.get(name)
    return handler(interp, name, arguments, node) if handler is not None else UNKNOWN


def _range(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    return Iterated(NUMBER, None, "range", interp.origin(node))


def _enumerate(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    source = arguments.first("iterable")
    start = arguments.get("start", 1)
    begin = start.value.value if start is not None and type(start.value) is Const else 0
    element = Sequence([NUMBER, iterate(interp, source, node)], interp.control)
    return Iterated(element, source, "enumerate", interp.origin(node), begin if isinstance(begin, int) else 0)


def _zip(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    values = [passed.value for passed in arguments.positions]
    if arguments.star:
        return _columns(interp, values, node) or Iterated(
            join_all(values) or UNKNOWN, join_all(values), "zip", interp.origin(node)
        )
    element = Sequence([iterate(interp, value, node) for value in values], interp.control)
    return Iterated(element, join_all(values), "zip", interp.origin(node))


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
    return Iterated(iterate(interp, source, node), source, "iter", interp.origin(node))


def _next(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    source = arguments.at(0) or UNKNOWN
    element = iterate(interp, source, node)
    interp.event("next", node, "", source, arguments, element)
    default = arguments.at(1)
    return join(element, default) or UNKNOWN


def _collect(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``list``, ``tuple``, ``set``, ``sorted``, ``reversed``."""
    kind = "tuple" if name == "tuple" else "set" if name in ("set", "frozenset") else "list"
    origin = interp.origin(node)
    value = arguments.at(0)
    if value is None:
        return Sequence([], interp.control, origin, "list" if kind == "tuple" else kind)  # type: ignore[arg-type]
    if type(value) is Sequence and value.items is not None and name in ("list", "tuple", "sorted", "reversed"):
        items = value.items[::-1] if name == "reversed" else list(value.items)
        return Sequence(items, interp.control, origin, kind)  # type: ignore[arg-type]
    if name == "list" and type(value) is Made and value.kind in ("module", "dataset"):
        return value
    return Sequence(None, interp.control, origin, kind, iterate(interp, value, node))  # type: ignore[arg-type]


def _map(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    if len(arguments.positions) < 2:
        return UNKNOWN
    sources = [passed.value for passed in arguments.positions[1:]]
    elements = positional(*(iterate(interp, source, node) for source in sources))
    function = arguments.positions[0].value
    return Iterated(interp.call(function, elements, node), sources[0], "map", interp.origin(node))


def _filter(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    source = arguments.at(1)
    element = iterate(interp, source, node)
    function = arguments.at(0)
    if function is not None:
        interp.call(function, positional(element), node)
    return Iterated(element, source, "filter", interp.origin(node))


def _convert(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``int``, ``float``, ``bool``, ``round``: reading a tensor is a sync."""
    value = arguments.at(0)
    if value is None:
        return Const({"int": 0, "float": 0.0, "bool": False}.get(name, 0), interp.origin(node))
    # `int(None)` raises: where the value can be something else too, what follows has a number
    taken = [each for each in members(value) if not (type(each) is Const and each.value is None)]
    return (
        join_all(_convert_one(interp, name, member, arguments, node) for member in taken or members(value)) or UNKNOWN
    )


def _convert_one(interp: Interpreter, name: str, value: Value, arguments: Arguments, node: ast.AST) -> Value:
    if type(value) is Tensor:
        read = interp.absorb(node) or value
        interp.event("sync", node, name if name in ("int", "float", "bool") else "float", read, arguments)
        return read_on_host(read, interp.origin(node))
    if isinstance(value, (Host, Opaque, Computed)):
        return value
    if type(value) is Const:
        return _converted(name, value, node, interp)
    if type(value) is Option:
        default = value.default
        if type(default) is Const and default.value is None and name in ("int", "float", "round"):
            # `int(None)` raises: where this is reached, the user has given a number
            return Option(value.name, NUMBER, value.origin, value.how, value.flag, derived=True)
        if type(default) is Const and default.value is not None:
            default = _converted(name, default, node, interp)
        return Option(value.name, default, value.origin, value.how, value.flag, value.derived)
    return NUMBER


def _converted(name: str, value: Const, node: ast.AST, interp: Interpreter) -> Value:
    try:
        if name == "int":
            return Const(int(value.value), value.origin)  # type: ignore[call-overload]
        if name == "float":
            return Const(float(value.value), value.origin)  # type: ignore[arg-type]
        if name == "bool":
            return Const(bool(value.value), value.origin)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN
    return NUMBER


def _str(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    if value is None:
        return Const("", interp.origin(node))
    place = arguments.positions[0].node or node
    interp.show_tensors(value, place, "format")
    if type(value) is Const and isinstance(value.value, (str, int, float)):
        return Const(str(value.value), value.origin)
    return (
        value
        if type(value) is Option and type(value.default) is Const and isinstance(value.default.value, str)
        else UNKNOWN
    )


def _arithmetic(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``sum``, ``max``, ``min``, ``abs``, ``pow``, ``divmod``."""
    values = [passed.value for passed in arguments.positions]
    if len(values) == 1 and name != "abs":
        values = [iterate(interp, values[0], node)] if not isinstance(values[0], Mapping) else [NUMBER]
    tensors = [tensor for value in values for tensor in tensors_in(value, 0)]
    if tensors:
        if name in ("max", "min") and len(arguments.positions) > 1:
            interp.event("sync", node, "bool", join_all(tensors))
        return result_of(tensors, interp.origin(node))
    hosts = [host for value in values for host in tensors_in(value, 0, Host)]
    if hosts:
        return joined_hosts(hosts)
    if name in ("max", "min") and len(arguments.positions) > 1:
        numbers = [value.value for value in values if type(value) is Const]
        if len(numbers) == len(values) and all(isinstance(each, (int, float)) for each in numbers):
            return Const(max(numbers) if name == "max" else min(numbers), interp.origin(node))  # type: ignore[type-var]
        if any(isinstance(member, (Option, Computed)) for value in values for member in members(value)):
            return Computed(interp.origin(node))
    if name == "abs" and isinstance(values[0] if values else None, Opaque):
        return values[0]
    return NUMBER


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
    value = arguments.at(0)
    if name in ("any", "all") and value is not None:
        element = iterate(interp, value, node)
        for kind in (Tensor, Host):
            if any(isinstance(member, kind) for member in members(element)):
                return element
    return UNKNOWN


def _dict(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    mapping = Mapping(interp.control, interp.origin(node))
    value = arguments.at(0)
    if value is not None:
        merge(interp, mapping, value, strong=True)
    put_keywords(interp, mapping, arguments, True)
    return mapping


def _getattr(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    owner, key, default = arguments.at(0), arguments.at(1), arguments.at(2)
    if owner is None or key is None:
        return UNKNOWN
    found = named_member(interp, owner, key, node)
    if default is not None and not isinstance(owner, (External, ModuleValue)):
        return join(found, default) or UNKNOWN
    return found


def _setattr(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    owner, key, value = arguments.at(0), arguments.at(1), arguments.at(2)
    for member in members(owner):
        if type(key) is Const and isinstance(key.value, str) and value is not None:
            write_attribute(interp, member, key.value, value, node)
        elif isinstance(member, (Namespace, Instance)):
            # any attribute may be set: those that were constants are the user's choice now
            if type(member) is Namespace:
                member.open = True
            for attribute, old in list(member.attributes.items()):
                if type(old) is Const:
                    member.attributes[attribute] = Option(attribute, old, old.origin, "setattr")
            if value is not None and any(type(each) is Made and each.kind == "module" for each in members(value)):
                member.attributes["<layers>"] = join(member.attributes.get("<layers>"), value) or value  # one of them
        if isinstance(member, (Instance, Made)) and type(key) is not Const and value is not None:
            add_weight(member, value)
    return NONE


def _vars(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.at(0)
    if value is None:
        return Mapping(interp.control, None, {}, True)
    if type(value) is Instance:
        return Namespace(value.made_at, value.attributes, True)
    return value


def _print(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    for passed in arguments.positions:
        interp.show_tensors(passed.value, passed.node or node, "print")
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
    text = arguments.at(0)
    if type(text) is Option:
        text = text.default
    if type(text) is Const and isinstance(text.value, str) and len(text.value) < 2000:
        try:
            expression = ast.parse(text.value, mode="eval")
        except (SyntaxError, ValueError, RecursionError):
            return interp.opaque("eval()", "call", node)
        if isinstance(expression.body, (ast.Name, ast.Attribute)):
            return (
                join(interp.eval(expression.body), None if isinstance(arguments.at(0), Const) else UNKNOWN) or UNKNOWN
            )
    return interp.opaque("eval()", "call", node)


def _globals(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    if name == "locals":
        return Mapping(
            interp.control, None, {key: Entry(value, True) for key, value in interp.frame.scope.names.items()}, True
        )
    return ModuleValue(interp.frame.module)


def _exit(interp: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    return NEVER


_HANDLERS: dict[str, Handler] = {
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
    "iter": _iter,
    "next": _next,
    "map": _map,
    "filter": _filter,
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
