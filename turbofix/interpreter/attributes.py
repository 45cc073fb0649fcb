"""Attributes of values: reading and writing."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache

from turbofix.domain.tensors import ANY_DTYPE, detached, in_precision, part_of, with_roles
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    FROM_FILE,
    NUMBER,
    UNKNOWN,
    Bound,
    Class,
    Const,
    Device,
    External,
    Function,
    Host,
    Instance,
    Made,
    Mapping,
    Method,
    ModuleValue,
    Namespace,
    Opaque,
    Option,
    Sequence,
    Super,
    Tensor,
    Union,
    Unknown,
    Value,
    flatten,
    join,
    join_all,
    members,
    widened,
)
from turbofix.interpreter.containers import put
from turbofix.interpreter.definitions import has_decorator, is_module
from turbofix.interpreter.imports import BY_NAME, defined, library, member_of, run, text_of
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES

_DEEPEST_OPAQUE = 6
_WEIGHTS = (frozenset({"param"}), frozenset({"param", "made"}))


def read_attribute(interp: Interpreter, value: Value, name: str, node: ast.AST, called: bool = False) -> Value:
    """What ``value.name`` is; ``called``: as the callee of a call."""
    if type(value) is not Union:
        return _READERS.get(type(value), _read_other)(interp, value, name, node, called)
    found: Value | None = None
    modules = [each for each in value.values if type(each) is ModuleValue]
    held = [each for each in modules if member_of(interp, each.module, name) is not None]  # of those, one is meant
    for each in held if held and len(modules) == len(value.values) else value.values:
        if not (type(each) is Const and each.value is None):
            found = join(found, _READERS.get(type(each), _read_other)(interp, each, name, node, called))
    return found or UNKNOWN


def _read_other(interp: Interpreter, value: Value, name: str, node: ast.AST, called: bool) -> Value:
    if type(value) is Host:
        return Method(value, name) if called else NUMBER if name in NAMES["array_facts"] else value
    if isinstance(value, Mapping) and not called:
        # a mapping that is read by attribute is an EasyDict, a batch encoding, an output
        entry = value.entries.get(name)
        return entry.value if entry is not None else value.element or UNKNOWN
    if name == "data" and value is NUMBER:  # of what is a number before the loop and a tensor after
        return value
    return Method(value, name) if called else UNKNOWN


def _read_external(interp: Interpreter, value: External, name: str, node: ast.AST, called: bool) -> Value:
    member, is_dropped = _member_of(value.qualname, name)
    if is_dropped:
        interp.event("import", node, f"{value.qualname}.{name}")
    return library(interp, member.qualname)


def _read_namespace(interp: Interpreter, value: Namespace, name: str, node: ast.AST, called: bool) -> Value:
    found = value.attributes.get(name)
    if found is not None:
        return widened(found) if changes(interp, name, found) else found
    if called or name in NAMES["namespace_methods"]:
        return Method(value, name)
    return interp.opaque(f"<config>.{name}", "attribute", node) if value.open else UNKNOWN


@lru_cache(maxsize=8192)
def _member_of(library: str, name: str) -> tuple[External, bool]:
    """A library's name, and whether it is gone."""
    qualname = f"{library}.{name}"
    member = External(qualname if library.endswith(".*") else libraries.canonical(qualname))
    return member, libraries.dropped(qualname) is not None


def _read_module(interp: Interpreter, value: ModuleValue, name: str, node: ast.AST, called: bool) -> Value:
    found = member_of(interp, value.module, name)
    if name == "__dict__":
        return value
    if found is None and name in ("get", "update"):  # of globals()
        return Method(value, name)
    return found if found is not None else interp.opaque(f"{value.module.name}.{name}", "import", node)


def _read_class(interp: Interpreter, value: Class, name: str, node: ast.AST, called: bool) -> Value:
    found = value.find(name)
    for each in members(found):
        if type(each) is Function and has_decorator(each, "builtins.classmethod"):
            return Bound(value, each)
    if found is not None:
        return found
    if name == "__name__":
        return Const(value.node.name, interp.origin(node))
    if name == "apply" and "torch.autograd.Function" in value.externals():
        forward = [each for each in members(value.find("forward")) if type(each) is Function]
        knows_autocast = any(
            has_decorator(each, "torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd") for each in forward
        )
        return External("torch.amp.custom_fwd.apply" if knows_autocast else "torch.autograd.Function.apply")
    return Method(value, name)


def _read_instance(interp: Interpreter, value: Instance, name: str, node: ast.AST, called: bool) -> Value:
    found = value.attributes.get(name)
    if found is not None:
        return _current(interp, value, name, found)
    found = value.cls.find(name)
    if found is not None:
        read = join_all(_bind_member(interp, value, each, node) for each in members(found))
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
    if name == "device" and is_module(value):  # the trainer places it
        return device(interp, "conditional" if lightning else value.device, node)
    if name == "hparams" and lightning:
        return value.attributes.setdefault(name, Namespace(value.made_at, {}, True))
    known = value.children.get(name)
    if known is None:
        label = f"{value.cls.node.name}.{name}"
        known = value.children[name] = Opaque(label, "attribute", interp.origin(node), 1, value)
    return known


def changes(interp: Interpreter, name: object, found: Value) -> bool:
    """Whether a constant in an attribute or an entry may be another one in the next iteration."""
    if type(found) is not Const or not interp.may_repeat:
        return False
    return not interp.changed.get(name, set()) <= {repr(found.value)}  # type: ignore[call-overload]


def _current(interp: Interpreter, value: Instance, name: str, found: Value) -> Value:
    """A constant in an attribute, unless it is changed from one iteration to the next."""
    if type(found) is not Const or not interp.may_repeat:
        return found
    is_changed = changes(interp, name, found) or any(
        type(base) is Class and name in interp.glance.changing_attributes(base.node) for base in value.cls.mro()
    )
    return widened(found) if is_changed else found


def _bind_member(interp: Interpreter, value: Instance, member: Value, node: ast.AST) -> Value:
    if type(member) is not Function or has_decorator(member, "builtins.staticmethod"):
        return member
    if has_decorator(member, "builtins.property", "functools.cached_property", "torch.utils.data.lazy_property"):
        return interp.call(Bound(value, member), Arguments(), node)
    return Bound(value.cls if has_decorator(member, "builtins.classmethod") else value, member)


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
    if name in NAMES["tensor_views"]:
        return in_precision(value, name)
    if name == "grad":
        interp.event("grad_read", node, "", value)
        return with_roles(value, frozenset({"grad"}), interp.origin(node))
    if name == "device":
        return device(interp, value.device, node)
    if name == "dtype":
        return ANY_DTYPE
    if name in NAMES["tensor_facts"]:
        return NUMBER if name in ("shape", "ndim") else UNKNOWN
    if called:
        return Method(value, name)
    # the outputs of a model carry tensors as attributes
    added = frozenset({"loss"}) if name == "loss" or name.endswith("_loss") else frozenset()
    return part_of(value, added, interp.origin(node))


def _read_opaque(interp: Interpreter, value: Opaque, name: str, node: ast.AST, called: bool) -> Value:
    known = value.children.get("." + name)
    if known is None and value.name in BY_NAME and (known := defined(interp, name)) is not None:
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
    depth, label = 0, value.cls.node.name if type(value) is Instance else ""
    if type(value) is Opaque:
        depth, label, how = value.depth, value.name, "element" if value.how == "element" else how
    elif type(value) is Made:
        label = value.qualname
    if depth >= _DEEPEST_OPAQUE:
        return UNKNOWN
    known = value.children[name] = Opaque(label + name, how, interp.origin(node), depth + 1, value)
    return known


def _read_made(interp: Interpreter, value: Made, name: str, node: ast.AST, called: bool) -> Value:
    found = value.attributes.get(name)
    if found is not None:
        return found
    value.uses.add(name)
    kind = value.kind
    holds = kind in ("wrapper", "engine") and value.inner is not None
    if holds and name == "module":
        return value.inner or UNKNOWN
    if kind == "loader" and name in libraries.loader_parameters():
        passed = value.arguments.value(name, libraries.loader_parameters().index(name))
        if passed is not None:
            return passed
    if name == "device" and kind in ("accelerator", "fabric"):
        return device(interp, "conditional", node)
    if name == "device" and kind in ("module", "wrapper", "engine", "device"):
        return device(interp, value.device, node)
    if called:
        return Method(value, name)
    if kind == "dataset" and name in NAMES["dataset_tensors"]:
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), value)
    if holds:
        return read_attribute(interp, value.inner or UNKNOWN, name, node)
    if kind in ("module", "wrapper", "engine") and name in ("weight", "bias", "data"):
        return Tensor(frozenset({"param"}), value.device, interp.origin(node), value)
    return child(interp, value, "." + name, node)


_READERS: dict[type[Value], Callable[..., Value]] = {
    Instance: _read_instance,
    External: _read_external,
    Tensor: _read_tensor,
    Opaque: _read_opaque,
    Made: _read_made,
    Namespace: _read_namespace,
    ModuleValue: _read_module,
    Class: _read_class,
    Super: lambda interp, value, name, node, _: read_super(interp, value, name),
}


def read_super(interp: Interpreter, value: Super, name: str) -> Value:
    """``super().name``: looked up behind the class in the order of the receiver's bases."""
    receiver = next((each for each in members(value.receiver) if isinstance(each, (Instance, Class))), None)
    owner = receiver.cls if type(receiver) is Instance else receiver if type(receiver) is Class else value.cls
    order = owner.mro() if value.cls in owner.mro() else value.cls.mro()
    for base in order[order.index(value.cls) + 1 :]:
        if type(base) is Class and name in base.names:
            found = base.names[name]
            return Bound(value.receiver, found) if type(found) is Function else found
    return Method(receiver, "super." + name) if receiver is not None else UNKNOWN


def named_member(interp: Interpreter, owner: Value, key: Value | None, node: ast.AST) -> Value:
    """``getattr(owner, key)``: an option's value may be any member of a module."""
    if type(key) is Union:  # a text that something unknown may have replaced is what is meant, where it names one
        named = tuple(each for each in key.values if type(each) is Const) or (UNKNOWN,)
        return join_all(named_member(interp, owner, each, node) for each in named) or UNKNOWN
    name, known = text_of(key), None
    if name is not None and name.isidentifier():
        known = read_attribute(interp, owner, name, node)
        if type(key) is not Option or (key.how == FROM_FILE and not isinstance(known, (Unknown, Opaque))):
            return known  # the text or the file names it
    for member in members(owner):
        if type(member) is External:
            known = join(known, External(f"{member.qualname}.*"))
        elif type(member) is ModuleValue:
            run(interp, member.module)
            values = [member_of(interp, member.module, name) for name in list(member.module.scope.names)]
            own: list[Value] = [each for each in values if isinstance(each, (Function, Class))]
            known = join(known, join_all((own or [each for each in values if type(each) is External])[:8]))
        else:
            held = join_all(member.attributes.values()) if type(member) is Instance else None
            known = join(join(known, held), UNKNOWN)
    return known or UNKNOWN


def write_attribute(interp: Interpreter, value: Value, name: str, new: Value, node: ast.AST) -> None:
    """``value.name = new``."""
    if isinstance(value, (Instance, Namespace, Made)):
        certainty = interp.certainty(value.made_at)
        old = value.attributes.get(name)
        if type(value) is Made and value.kind == "progress" and name == "desc" and isinstance(node, ast.Assign):
            interp.event("show", node, "set_description", value, positional(new))
        is_weak = certainty == "weak" or (type(value) is Made and certainty == "strong")
        if old is not None and is_weak and not isinstance(value, Namespace):
            add_weight(value, new)
        if certainty != "never":
            value.attributes[name] = join(old, new) or new if is_weak else new
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
