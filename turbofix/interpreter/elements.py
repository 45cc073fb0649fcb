"""Items and elements of values: ``x[key]``, loops, unpacking, ``with``; what a loader gives."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import part_of, tensors_in, with_roles
from turbofix.domain.trace import Arguments, positional, prepended
from turbofix.domain.values import (
    CUT,
    FROM_FILE,
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Computed,
    Const,
    Device,
    Entry,
    External,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    ModuleValue,
    Namespace,
    Opaque,
    Option,
    Partial,
    Sequence,
    Tensor,
    Union,
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
from turbofix.library import tables as libraries


def batch_of(interp: Interpreter, loader: Made, node: ast.AST) -> Value:
    """What iterating a loader gives: tensors on the CPU, unless its dataset or collate function says otherwise."""
    place: Device = "conditional" if "prepared" in loader.attributes else "cpu"
    dataset = loader.arguments.value("dataset", 0)
    collate = loader.arguments.value("collate_fn", libraries.loader_parameters().index("collate_fn"))
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
    if type(value) is Opaque and value.how == "call" and value.name.endswith("()"):
        # an object of a class that the project does not hold: ``boxlib.Boxes()``
        made = value.name.rpartition(".")[2][:1].isupper() and not value.name.startswith(libraries.LIKE_TENSORS)
        return Opaque(value.name, value.how, value.origin, value.depth, batch.source) if made else batch
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
        several = value.qualname.endswith("BatchSampler")
        return Sequence(None, None, interp.origin(node), "list", NUMBER) if several else NUMBER
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
