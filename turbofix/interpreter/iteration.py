"""Elements of values: loops, unpacking, ``with``; what a loader gives."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import tensors_in, with_roles
from turbofix.domain.trace import Arguments, Passed, positional, prepended
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
    Unknown,
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
    prepared = loader.attributes.get("prepared")
    place: Device = "conditional" if prepared is not None else "cpu"
    batch = Tensor(frozenset({"batch"}), place, interp.origin(node), loader)
    dataset = loader.arguments.get("dataset", 0)
    collate = loader.arguments.get("collate_fn", libraries.LOADER_PARAMETERS.index("collate_fn"))
    items: Value | None = None
    for member in members(dataset.value) if dataset is not None else ():
        items = join(items, _item_of(interp, loader, member, node))
    devices = {tensor.device for tensor in tensors_in(items)}
    if devices in ({"cuda"}, {"conditional"}, {"cuda", "conditional"}):
        place = "cuda" if devices == {"cuda"} else "conditional"
        batch = Tensor(batch.roles, place, batch.origin, loader)
    if collate is None or not any(
        isinstance(each, (Function, Bound, Instance, Partial)) for each in members(collate.value)
    ):
        return batch
    several = Sequence(None, None, interp.origin(node), "list", items or UNKNOWN)
    collated = _in_worker(interp, (loader, "collate"), collate.value, positional(several), node)
    return _as_batch(collated, batch) if collated is not None else batch


def _item_of(interp: Interpreter, loader: Made, dataset: Value, node: ast.AST) -> Value | None:
    """An item of a dataset: what its ``__getitem__`` or ``__iter__`` gives."""
    if type(dataset) is Instance:
        method = dataset.cls.find("__getitem__")
        if type(method) is Function:
            return _in_worker(interp, dataset, Bound(dataset, method), positional(NUMBER), node)
        method = dataset.cls.find("__iter__")
        if type(method) is Function:
            found = _in_worker(interp, dataset, Bound(dataset, method), Arguments(), node)
            return found.element if type(found) is Iterated else found
    if type(dataset) is Made:
        if dataset.qualname == "torch.utils.data.TensorDataset":
            return Sequence([passed.value for passed in dataset.arguments.positions], None)
        if (
            dataset.qualname in ("torch.utils.data.Subset", "torch.utils.data.ConcatDataset")
            and dataset.arguments.positions
        ):
            inner = dataset.arguments.positions[0].value
            found = None
            for member in members(element_of(inner) if type(inner) is Sequence else inner):
                if member is not dataset:
                    found = join(found, _item_of(interp, loader, member, node))
            return found
        if dataset.kind == "dataset" and dataset.inner is not None:
            return join_all(_item_of(interp, loader, member, node) for member in members(dataset.inner))
    if type(dataset) is Sequence:
        return element_of(dataset)
    if type(dataset) is Tensor:
        return dataset
    return None


def _in_worker(interp: Interpreter, key: object, function: Value, arguments: Arguments, node: ast.AST) -> Value | None:
    """Run what a loader's workers run, once, apart from the loop that reads the loader."""
    known = interp.fetched.get(key)
    if known is not None:
        return known
    interp.fetched[key] = UNKNOWN
    up, depth = interp.control, interp.loop_depth
    interp.control, interp.loop_depth = interp.new_root("worker"), 0
    value: Value | None = None
    for member in members(function):
        if type(member) is Bound:
            value = join(value, interp.invoke(member.function, prepended(member.receiver, arguments), None))
        elif type(member) is Function:
            value = join(value, interp.invoke(member, arguments, None))
        else:
            value = join(value, interp.call(member, arguments, node))
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
    if type(value) is Opaque and value.how == "call" and _is_made_by_class(value):
        return Opaque(value.name, value.how, value.origin, value.depth, batch.source)
    if type(value) is Sequence and value.items is not None and depth < 3:
        items = [_as_batch(item, batch, depth + 1) for item in value.items]
        return Sequence(items, value.made_at, value.origin, value.kind)
    if type(value) is Sequence and depth < 3 and any(True for _ in tensors_in(value.element)):
        each = _as_batch(value.element or UNKNOWN, batch, depth + 1)
        return Sequence(None, value.made_at, value.origin, value.kind, each)
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
    if isinstance(value, (Instance, Sequence)):
        return value
    return batch


def _is_made_by_class(value: Opaque) -> bool:
    """Whether an unknown is an object of a class that the project does not hold: ``boxlib.Boxes()``."""
    is_class = value.name.endswith("()") and value.name[:-2].rpartition(".")[2][:1].isupper()
    return is_class and not value.name.startswith(libraries.LIKE_TENSORS)


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
