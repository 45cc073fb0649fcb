"""Calls of what is unknown.

It never swallows an act: ``x.backward()``, ``x.step()``, ``x.to()`` are logged whatever ``x`` is.
"""

from __future__ import annotations

import ast
import sys

from turbofix.domain.tensors import (
    changed,
    device_meant,
    elements_passed,
    hosts_passed,
    is_dtype,
    is_layout,
    joined_hosts,
    scaled,
    tensors_passed,
    unknown_of,
    with_roles,
)
from turbofix.domain.trace import Arguments, EventKind
from turbofix.domain.values import (
    NONE,
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
    Opaque,
    Tensor,
    Unknown,
    Value,
    members,
)
from turbofix.interpreter.attributes import child
from turbofix.interpreter.brains.command_line import invoke_from_command_line
from turbofix.interpreter.containers import iterated_parts
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES

ACTS: dict[str, EventKind] = {
    "step": "step",
    "zero_grad": "zero_grad",
    "update": "update",
    "unscale_": "unscale",
    "load_state_dict": "load",
}


def call_opaque(interp: Interpreter, callee: Opaque, arguments: Arguments, node: ast.AST) -> Value:
    """A call of something unknown: with tensors it may be a model, a loss, anything that gives a tensor."""
    callee.uses.add("()")
    if tensors_passed(arguments) or elements_passed(arguments):
        callee.uses.add("(tensor)")
        if len(tensors_passed(arguments)) > 1:
            callee.uses.add("(tensors)")
    if interp.loop_depth and (arguments.positions or arguments.keywords or arguments.open):
        interp.event("unknown_call", node, callee.name, callee, arguments)
    result = unknown_result(interp, callee, arguments, node)
    if type(result) is Tensor and result.foreign and callee.uses & NAMES["module_uses"]:
        result = with_roles(result, frozenset({"output"}))
        if callee.how == "call":
            interp.event("forward", node, callee.name, callee, arguments, result)
    return result


def unknown_result(interp: Interpreter, callee: Value, arguments: Arguments, node: ast.AST) -> Value:
    tensors = tensors_passed(arguments)
    if tensors or elements_passed(arguments):
        return unknown_of(tensors, interp.origin(node))
    hosts = hosts_passed(arguments)
    if hosts and type(callee) is not Opaque:
        return joined_hosts(hosts)
    hand(interp, arguments, node)
    return child(interp, callee, f"()@{getattr(node, 'lineno', 0)}", node, "call")


def hand(interp: Interpreter, arguments: Arguments, node: ast.AST, *, objects: bool = True) -> None:
    """Give values to a call that is not followed: it may call functions, and methods of ``objects``."""
    for value in arguments.values():
        for member in members(value):
            if type(member) in (Function, Bound) or (objects and type(member) in (Instance, Class)):
                interp.handed.append((member, node, interp.control, interp.frame))


def call_unknown(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """A library's function of which nothing is known but its name."""
    if qualname in NAMES["trackers"]:
        interp.event("show", node, qualname, None, arguments)
        interp.show_arguments(arguments, node, "print")
        return NONE
    tensors, hosts = tensors_passed(arguments), hosts_passed(arguments)
    package, last = qualname.partition(".")[0], qualname.rpartition(".")[2]
    result: Value = UNKNOWN
    if last[:1].isupper() or not (tensors or hosts):
        result = interp.opaque(qualname + "()", "call", node)
    elif tensors:
        foreign = not qualname.startswith(libraries.LIKE_TENSORS)
        result = changed(unknown_of(tensors, interp.origin(node)), foreign=foreign)
    else:
        result = joined_hosts(hosts)
    hand(interp, arguments, node, objects=package not in _KEEPING)
    interp.event("call", node, qualname, None, arguments, result)
    for value in (
        [each.value for each in arguments.positions] if last in NAMES["runners"] else ()
    ):  # it runs functions that it is given
        for member in members(value):
            if isinstance(member, (Function, Bound)):
                invoke_from_command_line(interp, member, node)
    return result


_KEEPING = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages that call no methods of an object that they are given, but those that every object has."""


def target_of(name: str, arguments: Arguments) -> Device | None:
    """Where ``to``, ``cuda`` or ``cpu`` moves something; None for ``to(dtype)``."""
    if name in ("cpu", "cuda"):
        return name  # type: ignore[return-value]
    given = arguments.at(0)
    if name == "type":
        kinds = members(given)
        on_gpu = [type(each) is External and each.qualname.startswith("torch.cuda.") for each in kinds]
        return ("cuda" if all(on_gpu) else "conditional") if any(on_gpu) else None
    if "device" in arguments.keywords:
        given = arguments.keywords["device"].value
    elif given is None and arguments.rest is not None:
        return "unknown"
    return None if given is None or is_dtype(given) or is_layout(given) else device_meant(given)


def call_method_of_unknown(
    interp: Interpreter, receiver: Opaque, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A method of something unknown, which remembers it."""
    receiver.uses.add(name)
    if name in ("parameters", "named_parameters"):
        weight = Tensor(frozenset({"param"}), "unknown", interp.origin(node), receiver)
        return iterated_parts(weight, receiver, name, interp.origin(node))
    if name == "compile" and not arguments.keywords.keys() & {"optimizer", "loss"}:  # (as Keras has it)
        interp.event("compile", node, name, receiver, arguments, receiver)
    if name == "step":
        call_closure(interp, arguments, node)
    known = act_of_unknown(interp, receiver, name, arguments, node)
    if known is not None:
        return known
    method = child(interp, receiver, "." + name, node)
    if type(method) is Opaque:
        return call_opaque(interp, method, arguments, node)
    tensors = tensors_passed(arguments)
    return unknown_of(tensors, interp.origin(node)) if tensors else UNKNOWN


def call_closure(interp: Interpreter, arguments: Arguments, node: ast.AST) -> None:
    """``optimizer.step(closure)``."""
    for member in members(arguments.at(0)):
        if isinstance(member, (Function, Bound)):
            interp.call(member, Arguments(), node)


def act_of_unknown(
    interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST
) -> Value | None:
    """An act that its name alone makes worth logging; None for any other method."""
    value = arguments.at(0)
    if name == "backward":
        is_engine = any(type(member) is Tensor for member in members(value))
        interp.event("backward", node, "engine" if is_engine else "", value if is_engine else receiver, arguments)
        return NONE
    if name in ACTS:
        interp.event(ACTS[name], node, name, receiver, arguments)
        return UNKNOWN
    place = target_of(name, arguments) if name in ("to", "cuda", "cpu") else None
    if place is not None:
        interp.event("transfer", node, name, receiver, arguments, receiver)
        if name == "cpu":
            interp.event("sync", node, "cpu", receiver)
        return receiver
    if name == "to" or (name in NAMES["casts"] and not arguments.positions):
        interp.event("cast", node, name, receiver, arguments)
        return receiver
    if name in ("item", "numpy", "tolist") and not arguments.positions:
        on_host = type(receiver) is Const or (type(receiver) is Opaque and receiver.name.startswith("numpy."))
        if not on_host:
            interp.event("sync", node, name, interp.absorb(node) or receiver)
        return Host(None, (interp.origin(node),)) if on_host or name == "item" else UNKNOWN
    if name in ("train", "eval") and len(arguments.positions) <= 1:
        interp.event("mode", node, name, receiver, arguments)
        return receiver
    if name in libraries.SHOWING_METHODS or name in ("info", "warning", "debug"):
        return show(interp, receiver, name, arguments, node)
    if name in NAMES["same"]:
        return receiver
    if name == "scale" and value is not None:
        interp.event("scale", node, name, receiver, arguments)
        return scaled(value, interp.origin(node))
    if name in ("clip_grad_norm_", "clip_grad_norm", "clip_master_grads"):
        interp.event("clip", node, name, receiver, arguments)
        return Tensor(frozenset({"grad"}), "unknown", interp.origin(node))
    return None


def call_method_of_anything(
    interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    known = act_of_unknown(interp, receiver, name, arguments, node)
    if known is not None:
        return known
    tensors = tensors_passed(arguments)
    if tensors:
        if interp.loop_depth:
            interp.event("unknown_call", node, name, receiver, arguments)
        return unknown_of(tensors, interp.origin(node))
    return NUMBER if type(receiver) is Unknown and receiver.number else UNKNOWN


def show(interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method that shows its arguments; tensors among them are read on the host."""
    interp.show_arguments(arguments, node, "print")
    interp.event("show", node, name, receiver, arguments)
    return NONE
