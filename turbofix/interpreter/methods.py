"""Methods of values that are not the project's own, by what has them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    FROM_FILE,
    NONE,
    UNKNOWN,
    Class,
    Const,
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
    Sequence,
    Tensor,
    Value,
)
from turbofix.interpreter.attributes import named_member
from turbofix.interpreter.construction import construct
from turbofix.interpreter.container_methods import (
    call_mapping_method,
    call_namespace_method,
    call_sequence_method,
    call_text_method,
)
from turbofix.interpreter.containers import of_option
from turbofix.interpreter.definitions import has_decorator
from turbofix.interpreter.object_methods import call_inherited_method, call_object_method
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.tensor_methods import call_tensor_method
from turbofix.interpreter.unknowns import call_method_of_anything, call_method_of_unknown
from turbofix.source.names import parameters


def call_method(interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``receiver.name(...)``."""
    call = _CALLS.get(type(receiver))
    if call is not None:
        return call(interp, receiver, name, arguments, node)
    if type(receiver) is Host:
        return receiver
    if type(receiver) is Iterated:
        if name in ("__next__", "next", "send"):
            interp.event("next", node, "", receiver, arguments, receiver.element)
            return receiver.element
        return UNKNOWN
    if type(receiver) is Option:
        if receiver.how == FROM_FILE and type(receiver.default) is Const:
            return of_option(receiver, call_method(interp, receiver.default, name, arguments, node))
        return (
            receiver
            if name in ("lower", "upper", "strip", "copy")
            else call_method_of_anything(interp, receiver, name, arguments, node)
        )
    if type(receiver) is ModuleValue and name == "update":
        interp.event("destroy", node, "globals().update", None, arguments)
        interp.destroy()
        return NONE
    if type(receiver) is ModuleValue:  # globals().get(name)
        return named_member(interp, receiver, arguments.at(0), node)
    if type(receiver) is Class and receiver.externals() and _makes(receiver, name):
        init = receiver.find("__init__")
        taken = [each.arg for each in parameters(init.node)] if type(init) is Function else []
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
