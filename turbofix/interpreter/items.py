"""Items of values, ``x[key]``: reading and writing."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import part_of, tensors_in
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    CUT,
    FROM_FILE,
    NONE,
    NUMBER,
    UNKNOWN,
    Computed,
    Const,
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
    Unknown,
    Value,
    default_of,
    is_hashable,
    join,
    join_all,
    members,
    widened,
)
from turbofix.interpreter.attributes import changes, child, named_member, read_attribute, write_attribute
from turbofix.interpreter.containers import element_of, items_of, of_option, place_in, put
from turbofix.interpreter.definitions import is_module
from turbofix.interpreter.imports import fill
from turbofix.interpreter.state import Interpreter


def read_item(interp: Interpreter, container: Value, key: Value | None, node: ast.AST) -> Value:
    """``container[key]``; the key is None for a slice."""
    found: Value | None = None
    held = members(container)
    if type(key) is Const and type(key.value) is int and any(isinstance(member, (Tensor, Host)) for member in held):
        interp.event("index", node, "", container)
    for member in held:
        if not (type(member) is Const and member.value is None):  # None has no items: what is read is of the others
            found = join(found, _read_item(interp, member, key, node))
    return found or UNKNOWN


def _read_item(interp: Interpreter, value: Value, key: Value | None, node: ast.AST) -> Value:
    if isinstance(value, Mapping):
        fill(interp, value)
        if value.factory is not None and not (type(key) is Const and key.value in value.entries):
            put(interp, value, key or UNKNOWN, interp.call(value.factory, Arguments(), node), None)
        found = _mapping_item(value, key)
        return widened(found) if type(key) is Const and changes(interp, key.value, found) else found
    if type(value) is Sequence:
        found = _sequence_item(interp, value, key, node)
        return widened(found) if type(found) is Const and value.kind == "list" and interp.may_repeat else found
    if type(value) is Tensor:
        return _tensor_item(interp, value, key, node)
    if type(value) is Instance:
        own = interp.call_own(value, "__getitem__", positional(key or UNKNOWN), node)
        items = items_of(value) if own is None else None
        found = _read_item(interp, items, key, node) if items is not None else UNKNOWN
        return own or (value if items is None and is_module(value) else found)
    if type(value) is Made:
        return _made_item(interp, value, key, node)
    if type(value) is Opaque:
        value.uses.add("[]")
        name = f"[{key.value!r}]" if type(key) is Const else "[]"
        return child(interp, value, name, node, "element" if value.how == "element" else "attribute")
    if type(value) is Namespace:
        if type(key) is Const and isinstance(key.value, str):
            return read_attribute(interp, value, key.value, node)
        return join_all(value.attributes.values()) or UNKNOWN
    if type(value) is Option and value.how == FROM_FILE and type(value.default) is Const:
        return of_option(value, _read_item(interp, value.default, key, node))
    if type(value) is Const and isinstance(value.value, (str, tuple)):
        text = value.value
        within = _bounds(interp, node) if key is None else None
        number = place_in(text, key)
        if within is not None:
            return Const(text[within], interp.origin(node))
        return Const(text[number], value.origin) if number is not None else UNKNOWN
    if type(value) is External and value.qualname.endswith(".__dict__"):
        return named_member(interp, External(value.qualname.removesuffix(".__dict__")), key, node)
    if type(value) is External and value.qualname == "os.environ":
        return Computed(interp.origin(node), "os.environ")
    if type(value) is ModuleValue:  # globals()[name], module.__dict__[name]
        return named_member(interp, value, key, node)
    if type(value) is Iterated:
        return value.element
    return value if type(value) is Host or value is NUMBER else UNKNOWN


def _tensor_item(interp: Interpreter, value: Tensor, key: Value | None, node: ast.AST) -> Value:
    if _is_old_read(node):
        interp.event("sync", node, "data", value)
        return Host(value, (interp.origin(node),))
    # an output's item by the name of the loss is the loss
    is_loss = type(key) is Const and isinstance(key.value, str) and "loss" in key.value
    part = part_of(value, frozenset({"loss"}) if is_loss else frozenset(), interp.origin(node))
    part.pageable = part.pageable or (isinstance(node, ast.Subscript) and is_scattered(node.slice, key))
    return part


def _is_old_read(node: ast.AST) -> bool:
    """``loss.data[0]``, how a value was read before ``item()``."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "data"
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == 0
        and "loss" in ast.dump(node.value.value)
    )


def _mapping_item(value: Mapping, key: Value | None) -> Value:
    every = join_all(entry.value for entry in value.entries.values()) if type(key) is not Const else None
    name = default_of(key) if key is not None else None
    entry = value.entries.get(name.value) if type(name) is Const and is_hashable(name.value) else None
    if type(key) is Option and type(name) is Const:
        told = key.how == FROM_FILE or CUT in members(every)  # the file names it; or too many to follow them all
        return entry.value if told and entry is not None else every or value.element or UNKNOWN
    if type(key) is Const and is_hashable(key.value):
        beside = value.element if value.open or entry is None else None
        return join(entry.value, beside) or UNKNOWN if entry is not None else _any_entry(beside)
    everything = join(value.element, every)
    return _any_entry(everything) if value.open else everything or UNKNOWN


def _any_entry(value: Value | None) -> Value:
    """What stands under a key that is not known: a constant that was put there is not all that may be there."""
    return widened(value) if type(value) is Const else value or UNKNOWN


def _sequence_item(interp: Interpreter, value: Sequence, key: Value | None, node: ast.AST) -> Value:
    number = place_in(value.items, key)
    if number is not None and value.items is not None:
        return value.items[number]
    if key is not None:
        return element_of(value)
    if value.items is None:
        return value
    within = _bounds(interp, node)
    items, element = (value.items[within], None) if within is not None else (None, join_all(value.items))
    return Sequence(items, interp.control, interp.origin(node), value.kind, element)


def _bounds(interp: Interpreter, node: ast.AST) -> slice | None:
    """What is cut out of a list or text, where a file or the program's text says it."""
    part = node.slice if isinstance(node, ast.Subscript) else None
    if not isinstance(part, ast.Slice):
        return None
    ends: list[int | None] = []
    for each in (part.lower, part.upper, part.step):
        value = interp.frame.values.get(each) if each is not None else NONE
        listed = [member.default for member in members(value) if type(member) is Option and member.how == "config"]
        told = listed[0] if len(listed) == 1 else value
        if type(told) is not Const or not (told.value is None or type(told.value) is int):
            return None
        ends.append(told.value)
    return slice(*ends) if ends[2] != 0 else None


def _made_item(interp: Interpreter, value: Made, key: Value | None, node: ast.AST) -> Value:
    name = key.value if type(key) is Const else None
    if isinstance(name, str) and name in value.attributes:
        return value.attributes[name]
    if value.kind == "dataset" and (key is None or isinstance(name, str)):
        return value  # a part, or a split of the data
    if value.kind in ("dataset", "tokens"):
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), value)
    if value.kind == "module" and value.inner is not None:
        return read_item(interp, value.inner, key, node)
    return child(interp, value, f"[{name!r}]" if type(key) is Const else "[]", node)


def write_item(  # noqa: PLR0913
    interp: Interpreter, container: Value, key: Value, value: Value, node: ast.AST, target: ast.Subscript
) -> None:
    """``container[key] = value``."""
    name = key.value if type(key) is Const else None
    if isinstance(container, Mapping):
        put(interp, container, key, value, node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None)
    elif isinstance(container, (Namespace, Made)) and isinstance(name, str):
        write_attribute(interp, container, name, value, node)
    elif type(container) is Namespace:
        container.open = True
    elif type(container) is Sequence:
        number = place_in(container.items, key)
        if container.items is None:
            container.element = join(container.element, value)
        elif number is not None:
            strong = interp.certainty(container.made_at) == "strong"
            container.items[number] = value if strong else join(container.items[number], value) or value
        else:
            container.items = [join(old, value) or value for old in container.items]
    elif type(container) is Instance:
        items = items_of(container)
        if interp.call_own(container, "__setitem__", positional(key, value), target) is None and items is not None:
            put(interp, items, key, value, None)
    elif type(container) is Opaque:
        if type(key) is Const:
            container.children[f"[{name!r}]"] = value
    elif type(container) is ModuleValue and type(key) is not Const:  # globals()[name] = value
        interp.destroy()
    elif type(container) is External and container.qualname == "os.environ" and type(key) is Const:
        interp.event("set", node, f'os.environ["{name}"]', container, None, value)
    elif type(container) is Tensor:
        written = positional(key, value)
        if any(True for _ in tensors_in(value)) and indexes(target.slice, key):
            interp.event("call", target, "Tensor.index_put_", container, written)
        # filling a tensor item by item with what was read from another, or the other way round
        for tensor in tensors_in(value):
            if tensor.device != container.device:
                interp.event("call", target, "Tensor.__setitem__", container, written)


def indexes(node: ast.expr, key: Value) -> bool:
    """Whether a subscript picks by a tensor (a mask, positions), and not by numbers and slices alone.

    Writing that way asks for equal data types on both sides, as writing to a slice does not.
    """
    if isinstance(node, (ast.Slice, ast.Constant)):
        return False
    if isinstance(node, ast.Tuple) and type(key) is Sequence and key.items is not None:
        return any(indexes(each, item) for each, item in zip(node.elts, key.items, strict=False))
    return any(
        isinstance(member, (Tensor, Opaque)) or (type(member) is Unknown and not member.number)
        for member in members(key)
    )


def is_scattered(node: ast.expr, key: Value | None) -> bool:
    """Whether what a subscript picks from a tensor lies in one piece no longer, or was copied into new memory.

    In one piece are the items of leading dimensions, and one slice behind them, of all that lies further behind.
    """
    if key is not None and any(isinstance(each, (Tensor, Sequence)) for each in members(key)):
        if not isinstance(node, ast.Tuple):
            return True  # a mask, positions
        assert type(key) is Sequence
        if any(isinstance(each, (Tensor, Sequence)) for item in key.items or () for each in members(item)):
            return True
    leading = True
    for each in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(each, ast.Constant) and (each.value is None or each.value is Ellipsis):
            leading = leading and each.value is None
            continue
        whole = isinstance(each, ast.Slice) and each.lower is each.upper is each.step is None
        stepped = isinstance(each, ast.Slice) and each.step is not None
        if stepped or not (leading or whole):
            return True
        leading = leading and not isinstance(each, ast.Slice)
    return False
