"""Attributes, items and elements of values: reading, writing, unpacking, iterating."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from turbofix.domain.tensors import ANY_DTYPE, detached, in_precision, part_of, tensors_in, with_roles
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    CUT,
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Class,
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
    Method,
    ModuleValue,
    Namespace,
    Opaque,
    Option,
    Sequence,
    Tensor,
    Union,
    Unknown,
    Value,
    flatten,
    is_hashable,
    join,
    join_all,
    members,
    widened,
)
from turbofix.interpreter import builtin_calls, calls, imports, methods
from turbofix.interpreter.brains import config_files
from turbofix.library import tables as libraries

if TYPE_CHECKING:
    from turbofix.interpreter.walk import Interpreter

_DEEPEST_OPAQUE = 6
_TENSOR_VIEWS = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
_TENSOR_FACTS = libraries.words(
    """
    shape ndim requires_grad is_cuda layout is_leaf names itemsize nbytes is_sparse grad_fn _version output_nr
    retains_grad
    """
)
_NAMESPACE_METHODS = libraries.words(
    """
    update get keys items values copy pop setdefault __dict__ merge_from_file freeze defrost
    """
)
_WEIGHTS = (frozenset({"param"}), frozenset({"param", "made"}))
_READS = frozenset({"shape", "dtype", "ndim", "size", "nbytes"})


# --- attributes -------------------------------------------------------------------------------------------------------

_TENSORS = ("data", "targets", "tensors", "labels", "train_data", "train_labels", "test_data")
"""What data sets of torchvision hold."""


def read_attribute(interp: Interpreter, value: Value, name: str, node: ast.AST, called: bool = False) -> Value:
    """What ``value.name`` is; ``called``: as the callee of a call."""
    if type(value) is Instance:
        return _read_instance(interp, value, name, node, called)
    if type(value) is not Union:
        return _read(interp, value, name, node, called)
    found: Value | None = None
    modules = [each for each in value.values if type(each) is ModuleValue]
    held = [each for each in modules if imports.member(interp, each.module, name) is not None]  # of those, one is meant
    for member in held if held and len(modules) == len(value.values) else value.values:
        if not (type(member) is Const and member.value is None):
            found = join(found, _read(interp, member, name, node, called))
    return found or UNKNOWN


def _read(interp: Interpreter, value: Value, name: str, node: ast.AST, called: bool) -> Value:
    if type(value) is Instance:
        return _read_instance(interp, value, name, node, called)
    if type(value) is External:
        if name == "FLAGS" and value.qualname == "absl.flags":
            return flags(interp)
        member, is_dropped = _member_of(value.qualname, name)
        if is_dropped:
            interp.event("import", node, f"{value.qualname}.{name}")
        return imports.library(interp, member.qualname)
    if type(value) is Tensor:
        return _read_tensor(interp, value, name, node, called)
    if type(value) is Opaque:
        return _read_opaque(interp, value, name, node, called)
    if type(value) is Made:
        return _read_made(interp, value, name, node, called)
    if type(value) is Namespace:
        found = value.attributes.get(name)
        if found is not None:
            return widened(found) if _changes(interp, name, found) else found
        if called or name in _NAMESPACE_METHODS:
            return Method(value, name)
        return interp.opaque(f"<config>.{name}", "attribute", node) if value.open else UNKNOWN
    if type(value) is ModuleValue:
        return _read_module(interp, value, name, node)
    if type(value) is Class:
        return _read_class(interp, value, name, node)
    if type(value) is calls.Super:
        return calls.read_super(interp, value, name, node)
    if type(value) is Host:
        return Method(value, name) if called else NUMBER if name in _READS else value
    if isinstance(value, Mapping) and not called:
        # a mapping that is read by attribute is an EasyDict, a batch encoding, an output
        entry = value.entries.get(name)
        return entry.value if entry is not None else value.element or UNKNOWN
    if name == "data" and value is NUMBER:  # of what is a number before the loop and a tensor after
        return value
    return Method(value, name) if called else UNKNOWN


@lru_cache(maxsize=8192)
def _member_of(library: str, name: str) -> tuple[External, bool]:
    """A library's name, and whether it is gone."""
    qualname = f"{library}.{name}"
    member = External(qualname if library.endswith(".*") else libraries.canonical(qualname))
    return member, libraries.dropped(qualname) is not None


def flags(interp: Interpreter) -> Namespace:
    """absl's ``FLAGS``."""
    if interp.flags is None:
        interp.flags = Namespace(None, {}, True)
    return interp.flags


def _read_module(interp: Interpreter, value: ModuleValue, name: str, node: ast.AST) -> Value:
    found = imports.member(interp, value.module, name)
    if name == "__dict__":
        return value
    if found is None and name in ("get", "update"):  # of globals()
        return Method(value, name)
    return found if found is not None else interp.opaque(f"{value.module.name}.{name}", "import", node)


def _read_class(interp: Interpreter, value: Class, name: str, node: ast.AST) -> Value:
    found = value.find(name)
    for member in members(found):
        if type(member) is Function and has_decorator(member, "builtins.classmethod"):
            return Bound(value, member)
    if found is not None:
        return found
    if name == "__name__":
        return Const(value.node.name, interp.origin(node))
    if name == "apply" and "torch.autograd.Function" in value.externals():
        knows_autocast = any(
            type(each) is External and each.qualname.endswith(".custom_fwd")
            for member in members(value.find("forward"))
            if type(member) is Function
            for each in member.decorators
        )
        return External("torch.amp.custom_fwd.apply" if knows_autocast else "torch.autograd.Function.apply")
    return Method(value, name)


def _read_instance(interp: Interpreter, value: Instance, name: str, node: ast.AST, called: bool) -> Value:
    found = value.attributes.get(name)
    if found is not None:
        return _current(interp, value, name, found)
    found = value.cls.find(name)
    if found is not None:
        read: Value | None = None
        for member in members(found):
            read = join(read, _bind_member(interp, value, member, node))
        return _current(interp, value, name, read or UNKNOWN)
    if name == "__class__":
        return value.cls
    if name == "__dict__":
        return Namespace(value.made_at, value.attributes, True)
    value.uses.add(name)
    if value.base is not None and not called:
        return _read_made(interp, value.base, name, node, called)
    if called:
        return Method(value, name)
    lightning = any(base.endswith(".LightningModule") for base in value.cls.externals())
    if name == "device" and calls.is_module(value):  # the trainer places it
        return device(interp, "conditional" if lightning else value.device, node)
    if name == "hparams" and lightning:
        return value.attributes.setdefault(name, Namespace(value.made_at, {}, True))
    known = value.children.get(name)
    if known is None:
        known = value.children[name] = Opaque(
            f"{value.cls.node.name}.{name}", "attribute", interp.origin(node), 1, value
        )
    return known


def _changes(interp: Interpreter, name: object, found: Value) -> bool:
    """Whether a constant in an attribute or an entry may be another one in the next iteration."""
    if type(found) is not Const or not interp.may_repeat:
        return False
    return not interp.changed.get(name, set()) <= {repr(found.value)}  # type: ignore[call-overload]


def _current(interp: Interpreter, value: Instance, name: str, found: Value) -> Value:
    """A constant in an attribute, unless it is changed from one iteration to the next."""
    if type(found) is not Const or not interp.may_repeat:
        return found
    changes = _changes(interp, name, found) or any(
        type(base) is Class and name in interp.glance.changing_attributes(base.node) for base in value.cls.mro()
    )
    return widened(found) if changes else found


def _bind_member(interp: Interpreter, value: Instance, member: Value, node: ast.AST) -> Value:
    if type(member) is Function:
        if has_decorator(member, "builtins.property", "functools.cached_property", "torch.utils.data.lazy_property"):
            return calls.call(interp, Bound(value, member), Arguments(), node)
        if has_decorator(member, "builtins.staticmethod"):
            return member
        if has_decorator(member, "builtins.classmethod"):
            return Bound(value.cls, member)
        return Bound(value, member)
    return member


def has_decorator(function: Function, *qualnames: str) -> bool:
    """Whether a function has a decorator of these names."""
    return bool(function.decorators) and any(
        type(member) is External and member.qualname in qualnames
        for value in function.decorators
        for member in members(value)
    )


def device(interp: Interpreter, place: Device, node: ast.AST) -> Made:
    """The device of a tensor or module."""
    made = interp.make("torch.device", "device", Arguments(), node, log=False)
    if made.device == "unknown":
        made.device = place
    elif made.device != place:
        made = Made("torch.device", "device", Arguments(), interp.origin(node), interp.control, device=place)
    return made


def _read_tensor(interp: Interpreter, value: Tensor, name: str, node: ast.AST, called: bool) -> Value:
    if name == "data":
        return detached(value, interp.origin(node))
    if name in _TENSOR_VIEWS:
        return in_precision(value, name)
    if name == "grad":
        interp.event("grad_read", node, "", value)
        return with_roles(value, frozenset({"grad"}), interp.origin(node))
    if name == "device":
        return device(interp, value.device, node)
    if name == "dtype":
        return ANY_DTYPE
    if name in _TENSOR_FACTS:
        return NUMBER if name in ("shape", "ndim") else UNKNOWN
    if called:
        return Method(value, name)
    # the outputs of a model carry tensors as attributes
    added = frozenset({"loss"}) if name == "loss" or name.endswith("_loss") else frozenset()
    return part_of(value, added, interp.origin(node))


def _read_opaque(interp: Interpreter, value: Opaque, name: str, node: ast.AST, called: bool) -> Value:
    known = value.children.get("." + name)
    if known is None and value.name in imports.BY_NAME and (known := imports.defined(interp, name)) is not None:
        value.children["." + name] = known
    if known is not None and type(known) is not Opaque:
        return known
    value.uses.add(name)
    if called:
        return Method(value, name)
    if name == "grad":
        interp.event("grad_read", node, "", value)
    if name == "dtype":
        return ANY_DTYPE
    return child(interp, value, "." + name, node)


def child(interp: Interpreter, value: Value, name: str, node: ast.AST, how: str = "attribute") -> Value:
    """A part of an unknown: the same object each time it is asked for."""
    if not isinstance(value, (Opaque, Made, Instance)):
        return UNKNOWN
    known = value.children.get(name)
    if known is not None:
        return known
    depth = value.depth if type(value) is Opaque else 0
    if depth >= _DEEPEST_OPAQUE:
        return UNKNOWN
    if type(value) is Opaque and value.how == "element":
        how = "element"
    label = (
        value.name if isinstance(value, Opaque) else value.qualname if isinstance(value, Made) else value.cls.node.name
    )
    known = value.children[name] = Opaque(label + name, how, interp.origin(node), depth + 1, value)
    return known


def _read_made(interp: Interpreter, value: Made, name: str, node: ast.AST, called: bool) -> Value:
    found = value.attributes.get(name)
    if found is not None:
        return found
    value.uses.add(name)
    kind = value.kind
    if kind in ("wrapper", "engine") and name == "module" and value.inner is not None:
        return value.inner
    if kind == "loader" and name in ("dataset", "sampler", "batch_size", "batch_sampler", "collate_fn", "num_workers"):
        passed = value.arguments.get(name, libraries.loader_parameters().index(name))
        if passed is not None:
            return passed.value
    if name == "device":
        if kind in ("accelerator", "fabric"):
            return device(interp, "conditional", node)
        if kind in ("module", "wrapper", "engine", "device"):
            return device(interp, value.device, node)
    if called:
        return Method(value, name)
    if kind == "dataset" and name in _TENSORS:
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), value)
    if kind in ("module", "wrapper", "engine"):
        if kind != "module" and value.inner is not None:
            return read_attribute(interp, value.inner, name, node)
        if name in ("weight", "bias", "data"):
            return Tensor(frozenset({"param"}), value.device, interp.origin(node), value)
    return child(interp, value, "." + name, node)


def write_attribute(interp: Interpreter, value: Value, name: str, new: Value, node: ast.AST) -> None:
    """``value.name = new``."""
    if isinstance(value, (Instance, Namespace)):
        certainty = interp.certainty(value.made_at)
        if certainty == "strong" or (certainty == "weak" and name not in value.attributes):
            value.attributes[name] = new
        elif certainty == "weak":
            if type(value) is Instance:
                add_weight(value, new)
            value.attributes[name] = join(value.attributes[name], new) or new
    elif type(value) is Made:
        if name in value.attributes:
            add_weight(value, new)
        if value.kind == "progress" and name == "desc" and isinstance(node, ast.Assign):
            interp.event("show", node, "set_description", value, Arguments([Passed(new)]))
        if interp.certainty(value.made_at) != "never":
            value.attributes[name] = join(value.attributes.get(name), new) or new
    elif type(value) is Opaque:
        value.children["." + name] = new
    elif type(value) is ModuleValue:
        value.module.scope.names[name] = new
    elif type(value) is Class:
        value.names[name] = join(value.names.get(name), new) or new
    elif type(value) is Tensor and name == "data":
        interp.event("call", node, "Tensor.set_", value)  # what ``tensor.data = new`` does to it
    elif isinstance(value, Mapping):
        put(interp, value, Const(name), new, None)
    elif type(value) is External:
        interp.event("set", node, libraries.canonical(f"{value.qualname}.{name}"), value, None, new)


def add_weight(model: Instance | Made, value: Value) -> None:
    """What a model holds under a name that is not known, or beside another weight: two of them join to neither."""
    weights = [each for each in flatten(value) if type(each) is Tensor and each.roles in _WEIGHTS]
    if not weights:
        return
    held = model.attributes.get("<weights>")
    known = held.items or [] if type(held) is Sequence else []
    new = [each for each in weights if not any(each is one for one in known)]
    model.attributes["<weights>"] = Sequence([*known, *new], kind="list")


# --- items ------------------------------------------------------------------------------------------------------------


def read_item(interp: Interpreter, container: Value, key: Value | None, node: ast.AST) -> Value:
    """``container[key]``; the key is None for a slice."""
    found: Value | None = None
    if (
        type(key) is Const
        and type(key.value) is int
        and any(isinstance(member, (Tensor, Host)) for member in members(container))
    ):
        interp.event("index", node, "", container)
    for member in members(container):
        if not (type(member) is Const and member.value is None):  # None has no items: what is read is of the others
            found = join(found, _read_item(interp, member, key, node))
    return found or UNKNOWN


def _read_item(interp: Interpreter, value: Value, key: Value | None, node: ast.AST) -> Value:
    if isinstance(value, Mapping):
        imports.fill(interp, value)
        if value.factory is not None and not (type(key) is Const and key.value in value.entries):
            put(interp, value, key or UNKNOWN, calls.call(interp, value.factory, Arguments(), node), None)
        found = _mapping_item(value, key)
        return widened(found) if type(key) is Const and _changes(interp, key.value, found) else found
    if type(value) is Sequence:
        found = _sequence_item(interp, value, key, node)
        return widened(found) if type(found) is Const and value.kind == "list" and interp.may_repeat else found
    if type(value) is Tensor:
        if _is_old_read(node):
            interp.event("sync", node, "data", value)
            return Host(value, (interp.origin(node),))
        # an output's item by the name of the loss is the loss
        is_loss = type(key) is Const and isinstance(key.value, str) and "loss" in key.value
        part = part_of(value, frozenset({"loss"}) if is_loss else frozenset(), interp.origin(node))
        part.pageable = part.pageable or (isinstance(node, ast.Subscript) and is_scattered(node.slice, key))
        return part
    if type(value) is Host:
        return value
    if type(value) is Namespace:
        if type(key) is Const and isinstance(key.value, str):
            return _read(interp, value, key.value, node, False)
        return join_all(value.attributes.values()) or UNKNOWN
    if type(value) is Instance:
        method = value.cls.find("__getitem__")
        if type(method) is Function:
            return calls.call(interp, Bound(value, method), Arguments([Passed(key or UNKNOWN)]), node)
        if (items := items_of(value)) is not None:
            return _read_item(interp, items, key, node)
        return value if calls.is_module(value) else UNKNOWN
    if type(value) is Made:
        return _made_item(interp, value, key, node)
    if type(value) is Opaque:
        value.uses.add("[]")
        return child(
            interp,
            value,
            f"[{key.value!r}]" if type(key) is Const else "[]",
            node,
            "element" if value.how == "element" else "attribute",
        )
    if type(value) is Iterated:
        return value.element
    if type(value) is Option and value.how == "config" and type(value.default) is Const:
        return methods.of_option(value, _read_item(interp, value.default, key, node))
    if type(value) is Const and isinstance(value.value, (str, tuple)):
        if key is None:
            within = _bounds(interp, node)
            return Const(value.value[within], interp.origin(node)) if within is not None else UNKNOWN
        index = key.value if type(key) is Const else None
        in_range = isinstance(index, int) and -len(value.value) <= index < len(value.value)
        return Const(value.value[index], value.origin) if isinstance(index, int) and in_range else UNKNOWN
    if type(value) is External:
        return _external_item(value, key, node, interp)
    if type(value) is ModuleValue:  # globals()[name], module.__dict__[name]
        return calls.named_member(interp, value, key, node)
    return NUMBER if type(value) is Unknown and value.number else UNKNOWN


def items_of(instance: Instance) -> Mapping | None:
    """What an object holds whose class derives from ``dict``."""
    if _DICTS.isdisjoint(instance.cls.externals()):
        return None
    held = instance.attributes.setdefault("<items>", Mapping(instance.made_at, instance.origin))
    return held if isinstance(held, Mapping) else None


_DICTS = frozenset({"builtins.dict", "collections.OrderedDict", "collections.UserDict", "collections.defaultdict"})


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
    if type(key) is Option and type(key.default) is Const:
        every = join_all(entry.value for entry in value.entries.values())
        told = key.how == config_files.HOW or CUT in members(every)  # the file names it; or too many to follow them all
        if told and is_hashable(key.default.value) and key.default.value in value.entries:
            return value.entries[key.default.value].value
        return every or value.element or UNKNOWN
    if type(key) is Const and is_hashable(key.value):
        entry = value.entries.get(key.value)
        if entry is not None:
            return (
                entry.value if value.element is None or not value.open else join(entry.value, value.element) or UNKNOWN
            )
        return _any_entry(value.element)
    everything = join(value.element, join_all(entry.value for entry in value.entries.values()))
    return _any_entry(everything) if value.open else everything or UNKNOWN


def _any_entry(value: Value | None) -> Value:
    """What stands under a key that is not known: a constant that was put there is not all that may be there."""
    return widened(value) if type(value) is Const else value or UNKNOWN


def _sequence_item(interp: Interpreter, value: Sequence, key: Value | None, node: ast.AST) -> Value:
    if key is None:
        return _slice_of(interp, value, node)
    if (
        value.items is not None
        and type(key) is Const
        and isinstance(key.value, int)
        and -len(value.items) <= key.value < len(value.items)
    ):
        return value.items[key.value]
    return element_of(value)


def _slice_of(interp: Interpreter, value: Sequence, node: ast.AST) -> Value:
    within = _bounds(interp, node)
    if value.items is not None and within is not None:
        return Sequence(value.items[within], interp.control, interp.origin(node), value.kind)
    if value.items is None:
        return value
    return Sequence(None, interp.control, interp.origin(node), value.kind, join_all(value.items))


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
    if type(key) is Const and isinstance(key.value, str):
        found = value.attributes.get(key.value)
        if found is not None:
            return found
    if value.kind == "dataset":
        if key is None or (type(key) is Const and isinstance(key.value, str)):
            return value  # a part, or a split of the data
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), value)
    if value.kind == "tokens":
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), value)
    if value.kind == "module" and value.inner is not None:
        return read_item(interp, value.inner, key, node)
    return child(interp, value, f"[{key.value!r}]" if type(key) is Const else "[]", node)


def _external_item(value: External, key: Value | None, node: ast.AST, interp: Interpreter) -> Value:
    package, _, last = value.qualname.rpartition(".")
    if last == "__dict__" and package:
        return calls.named_member(interp, External(package), key, node)
    if value.qualname == "os.environ":
        return Computed(interp.origin(node), "os.environ")
    return UNKNOWN


def write_item(  # noqa: PLR0913
    interp: Interpreter, container: Value, key: Value, value: Value, node: ast.AST, target: ast.Subscript
) -> None:
    """``container[key] = value``."""
    if isinstance(container, Mapping):
        written = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        put(interp, container, key, value, written)
    elif type(container) is Namespace:
        if type(key) is Const and isinstance(key.value, str):
            write_attribute(interp, container, key.value, value, node)
        else:
            container.open = True
    elif type(container) is Sequence:
        if (
            container.items is not None
            and type(key) is Const
            and isinstance(key.value, int)
            and -len(container.items) <= key.value < len(container.items)
        ):
            strong = interp.certainty(container.made_at) == "strong"
            old = container.items[key.value]
            container.items[key.value] = value if strong else join(old, value) or value
        elif container.items is not None:
            container.items = [join(old, value) or value for old in container.items]
        else:
            container.element = join(container.element, value)
    elif type(container) is Instance:
        method = container.cls.find("__setitem__")
        if type(method) is Function:
            calls.call(interp, Bound(container, method), Arguments([Passed(key), Passed(value)]), target)
        elif (items := items_of(container)) is not None:
            put(interp, items, key, value, None)
    elif type(container) is Opaque:
        if type(key) is Const:
            container.children[f"[{key.value!r}]"] = value
    elif type(container) is Made and container.kind == "module" and type(key) is Const:
        if isinstance(key.value, str):
            write_attribute(interp, container, key.value, value, node)
        container.inner = join(container.inner, Sequence([value], interp.control))
    elif type(container) is ModuleValue and type(key) is not Const:  # globals()[name] = value
        builtin_calls.destroy(interp)
    elif type(container) is External and container.qualname == "os.environ" and type(key) is Const:
        interp.event("set", node, f'os.environ["{key.value}"]', container, None, value)
    elif type(container) is Tensor:
        if any(True for _ in tensors_in(value)) and indexes(target.slice, key):
            interp.event("call", target, "Tensor.index_put_", container, Arguments([Passed(key), Passed(value)]))
        # filling a tensor item by item with what was read from another, or the other way round
        for tensor in tensors_in(value):
            if tensor.device != container.device:
                interp.event("call", target, "Tensor.__setitem__", container, Arguments([Passed(key), Passed(value)]))


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


def put(  # noqa: PLR0913
    interp: Interpreter, mapping: Mapping, key: Value, value: Value, node: ast.expr | None, must: bool = True
) -> None:
    """Set an entry of a dict."""
    certainty = interp.certainty(mapping.made_at)
    if certainty == "never":
        return
    keys = [each.value for each in members(key) if type(each) is Const and is_hashable(each.value)]
    if len(keys) < len(members(key)):
        mapping.element = join(mapping.element, value)
        mapping.open = True
        return
    entry = Entry(value, must and len(keys) == 1, interp.origin(node) if node is not None else None)
    for each in keys:
        put_entry(mapping, each, entry, certainty == "strong")


def put_entry(mapping: Mapping, key: object, entry: Entry, strong: bool) -> None:
    """Set an entry that may be there already; it replaces the old one only if it is certain to be set."""
    old = mapping.entries.get(key)
    if strong and entry.must:
        mapping.entries[key] = entry
    elif old is None:
        mapping.entries[key] = Entry(entry.value, False, entry.origin)
    else:
        mapping.entries[key] = Entry(join(old.value, entry.value) or UNKNOWN, old.must, entry.origin or old.origin)


def drop_item(interp: Interpreter, mapping: Mapping, key: Value) -> None:
    """``del mapping[key]``, or ``pop``."""
    certainty = interp.certainty(mapping.made_at)
    if type(key) is not Const or not is_hashable(key.value) or certainty == "never":
        return
    old = mapping.entries.get(key.value)
    if old is None:
        return
    if certainty == "strong":
        del mapping.entries[key.value]
    else:
        mapping.entries[key.value] = Entry(old.value, False, old.origin)


def merge(interp: Interpreter, mapping: Mapping, other: Value, strong: bool) -> None:
    """``mapping.update(other)``."""
    alternatives = [each for member in members(other) if (each := as_mapping(member)) is not None]
    if len(alternatives) == 1 and type(other) is not Union:
        for key, entry in alternatives[0].entries.items():
            put_entry(mapping, key, entry, strong)
    else:
        none_of_it = len(alternatives) < len(members(other))
        for key in dict.fromkeys(key for each in alternatives for key in each.entries):
            entries = [each.entries[key] for each in alternatives if key in each.entries]
            must = len(entries) == len(alternatives) and all(entry.must for entry in entries) and not none_of_it
            value = join_all(entry.value for entry in entries) or UNKNOWN
            put_entry(mapping, key, Entry(value, must, entries[0].origin), strong)
    for each in alternatives:
        mapping.open = mapping.open or each.open
        mapping.element = join(mapping.element, each.element)


def as_mapping(value: Value) -> Mapping | None:
    """A value that is unpacked with ``**`` or given to ``dict()``; None for None."""
    if isinstance(value, Mapping):
        return value
    if type(value) is Const and value.value is None:
        return None
    if type(value) is Namespace:
        entries: dict[object, Entry] = {
            name: Entry(each, True, each.origin if isinstance(each, (Option, Const)) else None)
            for name, each in value.attributes.items()
        }
        return Mapping(value.made_at, None, entries, value.open)
    if type(value) is Tensor:
        return Mapping(None, None, {}, True, value)
    if type(value) is Opaque:
        return Mapping(None, None, {}, True, value)
    if type(value) is Iterated and type(value.element) is Sequence and value.element.items:
        return Mapping(None, None, {}, True, value.element.items[-1])
    if type(value) is Sequence:
        return _of_pairs(value)
    return Mapping(None, None, {}, True)


def _of_pairs(value: Sequence) -> Mapping:
    """What a list of keys and values makes: ``OrderedDict([("conv", nn.Conv2d(3, 8, 3))])``."""
    mapping = Mapping(None, None, {}, value.items is None)
    for pair in value.items if value.items is not None else members(value.element):
        key, held = pair.items if type(pair) is Sequence and pair.items and len(pair.items) == 2 else (None, None)
        if type(key) is Const and is_hashable(key.value) and held is not None and value.items is not None:
            mapping.entries[key.value] = Entry(held, True, None)
        else:
            mapping.open = True
            mapping.element = join(mapping.element, held)
    return mapping


# --- iterating and unpacking ------------------------------------------------------------------------------------------


def element_of(value: Sequence) -> Value:
    """What an unknown item of a list or tuple is."""
    if value.items is None:
        return value.element or UNKNOWN
    return join(value.element, join_all(value.items)) or UNKNOWN


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
        return calls.batch_of(interp, value, node)
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
        iterator = calls.call(interp, Bound(value, method), Arguments(), node)
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
            return calls.call(interp, Bound(value, method), arguments, node)
    return value if calls.is_module(value) else UNKNOWN


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
            entered = join(entered, calls.call(interp, Bound(member, method), Arguments(), node))
        else:
            entered = join(entered, member)
    return entered or UNKNOWN
