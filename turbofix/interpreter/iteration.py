"""Elements of values: loops, unpacking, ``with``; what a loader gives."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import tensors_in, with_roles
from turbofix.domain.trace import Arguments, positional, prepended
from turbofix.domain.values import (
    NUMBER,
    UNKNOWN,
    Bound,
    Const,
    Device,
    Entry,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Partial,
    Sequence,
    Tensor,
    Union,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter.attributes import child
from turbofix.interpreter.containers import element_of
from turbofix.interpreter.definitions import is_module
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries


def batch_of(interp: Interpreter, loader: Made, node: ast.AST) -> Value:
    """What iterating a loader gives: tensors on the CPU, unless its dataset or collate function says otherwise."""
    place: Device = "conditional" if "prepared" in loader.attributes else "cpu"
    dataset = loader.arguments.value("dataset", 0)
    collate = loader.arguments.value("collate_fn", libraries.LOADER_PARAMETERS.index("collate_fn"))
    items = join_all(_item_of(interp, loader, member, node) for member in members(dataset))
    devices = {tensor.device for tensor in tensors_in(items)}
    if devices and devices <= {"cuda", "conditional"}:
        place = "cuda" if devices == {"cuda"} else "conditional"
    batch = Tensor(frozenset({"batch"}), place, interp.origin(node), loader)
    if collate is None or not any(isinstance(each, (Function, Bound, Instance, Partial)) for each in members(collate)):
        return batch
    several = Sequence(None, None, interp.origin(node), "list", items or UNKNOWN)
    collated = _in_worker(interp, (loader, "collate"), collate, positional(several), node)
    return _as_batch(collated, batch) if collated is not None else batch


def _item_of(interp: Interpreter, loader: Made, dataset: Value, node: ast.AST) -> Value | None:
    """An item of a dataset: what its ``__getitem__`` or ``__iter__`` gives."""
    if type(dataset) is Instance:
        for name, given in (("__getitem__", positional(NUMBER)), ("__iter__", Arguments())):
            method = dataset.cls.find(name)
            if type(method) is Function:
                found = _in_worker(interp, dataset, Bound(dataset, method), given, node)
                return found.element if name == "__iter__" and type(found) is Iterated else found
    if type(dataset) is Made:
        if dataset.qualname == "torch.utils.data.TensorDataset":
            return Sequence([passed.value for passed in dataset.arguments.positions], None)
        inner = dataset.inner if dataset.kind == "dataset" else None
        if dataset.qualname in ("torch.utils.data.Subset", "torch.utils.data.ConcatDataset"):
            inner = dataset.arguments.at(0)
        parts = members(element_of(inner) if type(inner) is Sequence else inner)
        return join_all(_item_of(interp, loader, member, node) for member in parts if member is not dataset)
    if type(dataset) is Sequence:
        return element_of(dataset)
    return dataset if type(dataset) is Tensor else None


def _in_worker(interp: Interpreter, key: object, function: Value, arguments: Arguments, node: ast.AST) -> Value | None:
    """Run what a loader's workers run, once, apart from the loop that reads the loader."""
    if key in interp.fetched:
        return interp.fetched[key]
    interp.fetched[key] = UNKNOWN
    up, depth = interp.control, interp.loop_depth
    interp.control, interp.loop_depth = interp.new_root("worker"), 0
    value: Value | None = None
    for member in members(function):
        called = member.function if type(member) is Bound else member
        given = prepended(member.receiver, arguments) if type(member) is Bound else arguments
        own = type(called) is Function
        value = join(value, interp.invoke(called, given, None) if own else interp.call(member, arguments, node))  # type: ignore[arg-type]
    interp.control, interp.loop_depth = up, depth
    interp.fetched[key] = value or UNKNOWN
    return value


def _as_batch(value: Value, batch: Tensor, depth: int = 0, alone: bool = True) -> Value:
    """What a collate function returned, as a batch of the loader; ``alone``: it is that on every path."""
    if type(value) is Tensor:
        place = value.device if value.device in ("cuda", "conditional") else batch.device
        # what a model, or a call that is not seen through, made may be an object that holds tensors
        roles = batch.roles | {"object"} if alone and (value.foreign or "object" in value.roles) else batch.roles
        return Tensor(roles, place, batch.origin, batch.source)
    if type(value) is Sequence and depth < 3 and (value.items is not None or any(tensors_in(value.element))):
        items = [_as_batch(item, batch, depth + 1) for item in value.items] if value.items is not None else None
        element = _as_batch(value.element or UNKNOWN, batch, depth + 1) if items is None else None
        return Sequence(items, value.made_at, value.origin, value.kind, element)
    if isinstance(value, Mapping) and depth < 3:
        entries = {
            key: Entry(_as_batch(entry.value, batch, depth + 1), entry.must, entry.origin)
            for key, entry in value.entries.items()
        }
        element = _as_batch(value.element, batch, depth + 1) if value.element is not None else None
        return Mapping(value.made_at, value.origin, entries, value.open, element)
    if type(value) is Union:
        # a container beside it shows what it is: the call that is not seen through is a blank path then
        alone = not any(isinstance(member, (Sequence, Mapping)) for member in value.values)
        return join_all(_as_batch(member, batch, depth + 1, alone) for member in value.values) or batch
    return value if isinstance(value, (Instance, Sequence)) else batch


def iterate(interp: Interpreter, value: Value | None, node: ast.AST) -> Value:
    """What a loop over the value gives its target."""
    return join_all(_iterate(interp, member, node) for member in members(value)) or UNKNOWN


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
    base = value.base
    kinds = ("loader",) if type(value.cls.find("__getitem__")) is Function else ("loader", "dataset", "sampler")
    iterator = interp.call_own(value, "__iter__", Arguments(), node)
    if iterator is not None:
        if iterator is not value and not any(type(member) is Instance for member in members(iterator)):
            return iterate(interp, iterator, node)
    elif base is not None and base.kind in kinds:
        return _iterate_made(interp, base, node)
    for name in ("__next__", "next", "__getitem__"):
        found = interp.call_own(value, name, positional(NUMBER) if name == "__getitem__" else Arguments(), node)
        if found is not None:
            return found
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
        items = value.items
        if items is not None and starred is None and len(items) == count:
            return list(items)
        if items is not None and starred is not None and len(items) >= count - 1:
            end = len(items) - (count - 1 - starred)
            return [*items[:starred], Sequence(items[starred:end], interp.control, None, "list"), *items[end:]]
        return [element_of(value)] * count
    if type(value) is Opaque:
        how = "element" if value.how == "element" else "call"
        return [child(interp, value, f"[{index}]", node, how) for index in range(count)]
    if type(value) is Const and isinstance(value.value, tuple) and len(value.value) == count:
        return [Const(each, value.origin) for each in value.value]
    if type(value) is Tensor or value is NUMBER or (type(value) is Made and value.kind == "dataset"):
        return [value] * count
    if isinstance(value, (Iterated, Host, Made, Instance)):
        return [iterate(interp, value, node)] * count
    return [UNKNOWN] * count


def enter_context(interp: Interpreter, value: Value, node: ast.AST) -> Value:
    """What ``with value as x`` binds to x."""
    entered = (interp.call_own(member, "__enter__", Arguments(), node) or member for member in members(value))
    return join_all(entered) or UNKNOWN
