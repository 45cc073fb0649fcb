"""Calls, by what is called: the methods of values that are not the project's own, too."""

from __future__ import annotations

import ast
from collections.abc import Callable

from turbofix.domain.tensors import device_of, reduces_all, tensors_passed, unknown_of, with_roles
from turbofix.domain.trace import Arguments, completed, prepended
from turbofix.domain.values import (
    FROM_FILE,
    NONE,
    UNKNOWN,
    Bound,
    Class,
    Const,
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
    Partial,
    Sequence,
    Super,
    Tensor,
    Union,
    Value,
    join,
)
from turbofix.interpreter.attributes import named_member, read_attribute
from turbofix.interpreter.containers import of_option
from turbofix.interpreter.definitions import has_decorator, is_module
from turbofix.interpreter.elements import iterate
from turbofix.interpreter.library_calls import call_external
from turbofix.interpreter.library_methods import (
    call_inherited_method,
    call_mapping_method,
    call_namespace_method,
    call_object_method,
    call_sequence_method,
    call_text_method,
)
from turbofix.interpreter.models import forward
from turbofix.interpreter.project_calls import construct, evaluate_arguments, takes
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.torch_calls import call_tensor_method
from turbofix.interpreter.unknowns import call_method_of_anything, call_method_of_unknown, call_opaque, unknown_result
from turbofix.library import tables as libraries
from turbofix.source.names import parameters


def evaluate_call(interp: Interpreter, node: ast.Call) -> Value:
    """``f(...)``."""
    function = node.func
    if isinstance(function, ast.Attribute):
        callee = read_attribute(interp, interp.eval(function.value), function.attr, function, called=True)
        if function.attr == "forward" and type(callee) is Bound and type(callee.receiver) is Instance:
            model = callee.receiver
            if model.cls.find("forward") is callee.function and is_module(model):
                return forward(interp, model, evaluate_arguments(interp, node), node)
    else:
        callee = interp.eval(function)
        if type(callee) is External and callee.qualname == "builtins.super":
            return _super(interp)
    return interp.call(callee, evaluate_arguments(interp, node), node)


def _super(interp: Interpreter) -> Value:
    function = interp.frame.function
    if function is None or function.cls is None:
        return UNKNOWN
    receiver = next(iter(parameters(function.node)), None)
    held = interp.frame.scope.names.get(receiver.arg) if receiver is not None else None
    return Super(held or UNKNOWN, function.cls)


def call(interp: Interpreter, callee: Value, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a value gives."""
    if type(callee) is Union:
        found: Value | None = None
        up = interp.control
        refused = [member for member in callee.values if type(member) is Class and not takes(member, arguments)]
        for number, member in enumerate(callee.values):
            if type(member) is not Const and (member not in refused or len(refused) == len(callee.values)):
                interp.enter("choice", node, number)
                found = join(found, interp.call(member, arguments, node))
                interp.control = up
        _log_move_of_objects(interp, callee, arguments, node)
        return found or UNKNOWN
    if type(callee) is Method:
        return call_method(interp, callee.receiver, callee.name, arguments, node)
    if type(callee) is External:
        return call_external(interp, callee.qualname, arguments, node)
    if type(callee) is Function:
        return interp.invoke(callee, arguments, node)
    if type(callee) is Bound:
        if callee.function.name in ("step", "zero_grad"):
            _log_own_optimizer(interp, callee, arguments, node)
        return interp.invoke(callee.function, prepended(callee.receiver, arguments), node)
    if type(callee) is Class:
        return construct(interp, callee, arguments, node)
    if type(callee) is Partial:
        return interp.call(callee.function, completed(callee.arguments, arguments), node)
    if type(callee) is Instance:
        return _call_instance(interp, callee, arguments, node)
    if type(callee) is Made:
        return _call_made(interp, callee, arguments, node)
    if type(callee) is Opaque:
        return call_opaque(interp, callee, arguments, node)
    if type(callee) is Option and type(callee.default) in (Class, Function, External, Partial):
        return interp.call(callee.default, arguments, node)
    if type(callee) is Tensor:
        return with_roles(callee, frozenset(), interp.origin(node))
    tensors = tensors_passed(arguments)
    if tensors:
        if interp.loop_depth:
            interp.event("unknown_call", node, "", callee, arguments)
        return unknown_of(tensors, interp.origin(node))
    if callee is UNKNOWN and isinstance(node, ast.Call):
        # what a class that nobody knows makes may be a model or an optimizer, one for each way to this call
        return interp.opaque(f"<made by {interp.control.path}>", "call", node)
    return UNKNOWN


def _log_own_optimizer(interp: Interpreter, callee: Bound, arguments: Arguments, node: ast.AST) -> None:
    """An optimizer of the project's own steps as any other does."""
    receiver, name = callee.receiver, callee.function.name
    bases = receiver.cls.externals() if type(receiver) is Instance else ()
    if not {"optimizer", "scheduler"}.isdisjoint(map(libraries.kind_of, bases)):
        interp.event("step" if name == "step" else "zero_grad", node, name, receiver, arguments)


def _call_instance(interp: Interpreter, callee: Instance, arguments: Arguments, node: ast.AST) -> Value:
    own = interp.call_own(callee, "__call__", arguments, node)
    if own is not None:
        return own
    return (forward if is_module(callee) else unknown_result)(interp, callee, arguments, node)


def _call_made(interp: Interpreter, callee: Made, arguments: Arguments, node: ast.AST) -> Value:
    kind = callee.kind
    if callee.qualname == "torch.nn.*" and len(tensors_passed(arguments)) > 1:
        kind = "criterion"  # one that a file or an option names
    if kind in ("module", "wrapper", "engine"):
        return forward(interp, callee, arguments, node)
    if kind == "criterion":
        tensors = tensors_passed(arguments)
        result = Tensor(frozenset({"loss", "output"}), device_of(tensors), interp.origin(node))
        one = len(callee.arguments.positions) <= 1 and reduces_all(callee.arguments)
        one = one and not callee.attributes.keys() & {"reduction", "reduce"}
        result.scalar = one and libraries.is_scalar_loss(callee.qualname)
        interp.event("criterion", node, callee.qualname, callee, arguments, result)
        return result
    if kind in ("transform", "tokenizer"):
        interp.event("call", node, callee.qualname, callee, arguments)
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), callee)
    if kind == "lossscaler":
        return call_loss_scaler(interp, callee, arguments, node)
    if kind == "progress":
        return iterate(interp, callee, node)
    if kind in ("gradmode", "autocast"):  # as a decorator of a value
        return arguments.positions[0].value if arguments.positions else UNKNOWN
    interp.event("call", node, callee.qualname, callee, arguments)
    return unknown_result(interp, callee, arguments, node)


def _log_move_of_objects(interp: Interpreter, callee: Union, arguments: Arguments, node: ast.AST) -> None:
    """Where ``x.to(device)`` moves a tensor or an object whose class has its own ``to``, log that it moves both."""
    names = {each.name for each in callee.values if type(each) is Method and type(each.receiver) is Tensor}
    for name in names & {"to", "cuda"}:
        for member in callee.values:
            if type(member) is Bound:
                interp.event("transfer", node, name, member.receiver, arguments)


def call_loss_scaler(interp: Interpreter, scaler: Made, arguments: Arguments, node: ast.AST) -> Value:
    """timm's ``loss_scaler(loss, optimizer, clip_grad=...)``: backward, clipping and step in one call."""
    interp.event("backward", node, "lossscaler", arguments.value("loss", 0) or UNKNOWN, arguments)
    clip = arguments.value("clip_grad", 2)
    if clip is not None and not (type(clip) is Const and clip.value is None):
        interp.event("clip", node, "lossscaler", clip, arguments)
    interp.event("step", node, "lossscaler", arguments.value("optimizer", 1) or UNKNOWN, arguments)
    interp.event("update", node, "lossscaler", scaler, arguments)
    return NONE


def call_method(interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``receiver.name(...)``."""
    call = _CALLS.get(type(receiver))
    if call is not None:
        return call(interp, receiver, name, arguments, node)
    if type(receiver) is Host:
        return receiver
    if type(receiver) is Iterated:
        if name not in ("__next__", "next", "send"):
            return UNKNOWN
        interp.event("next", node, "", receiver, arguments, receiver.element)
        return receiver.element
    if type(receiver) is Option:
        if receiver.how == FROM_FILE and type(receiver.default) is Const:
            return of_option(receiver, call_method(interp, receiver.default, name, arguments, node))
        if name in ("lower", "upper", "strip", "copy"):
            return receiver
    if type(receiver) is ModuleValue and name == "update":
        interp.event("destroy", node, "globals().update", None, arguments)
        interp.destroy()
        return NONE
    if type(receiver) is ModuleValue:  # globals().get(name)
        return named_member(interp, receiver, arguments.at(0), node)
    if type(receiver) is Class and receiver.externals() and _makes(receiver, name):
        init = receiver.find("__init__")
        taken = {each.arg for each in parameters(init.node)} if type(init) is Function else ()
        kept = {each: passed for each, passed in arguments.keywords.items() if each in taken}
        return construct(interp, receiver, Arguments([], kept, open=True), node)
    return call_method_of_anything(interp, receiver, name, arguments, node)


def _makes(cls: Class, name: str) -> bool:
    """Whether a method that a class inherits from a library makes an object of it: with saved weights, or as a file
    says, which may choose a class where this one is abstract or leaves how it is made to others."""
    found = [cls.find(each) for base in cls.mro() if type(base) is Class for each in base.names]
    abstract = any(type(each) is Function and has_decorator(each, "abc.abstractmethod") for each in found)
    chosen = abstract or type(cls.find("__init__")) is not Function
    return name in ("from_pretrained", "load_from_checkpoint") or (name.startswith("from_") and not chosen)


_CALLS: dict[type[Value], Callable[..., Value]] = {
    Tensor: call_tensor_method,
    Instance: call_inherited_method,
    Made: call_object_method,
    Opaque: call_method_of_unknown,
    Mapping: call_mapping_method,
    Sequence: call_sequence_method,
    Namespace: call_namespace_method,
    Const: call_text_method,
}
"""Who knows the methods of a class of values."""
