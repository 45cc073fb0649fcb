"""Methods of tensors."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import (
    cast,
    detached,
    device_of,
    in_precision,
    is_dtype,
    moved,
    read_on_host,
    result_of,
    tensors_in,
    tensors_passed,
    with_half,
)
from turbofix.domain.trace import Arguments
from turbofix.domain.values import NONE, NUMBER, UNKNOWN, Iterated, Sequence, Tensor, Value
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import ACTS, READS, label, target_of
from turbofix.library import tables as libraries

_LIKE_ANOTHER = frozenset({"type_as", "view_as", "expand_as", "reshape_as"})


_TENSOR_NUMBERS = libraries.words(
    """
    size dim numel nelement data_ptr get_device stride element_size ndimension storage_offset
    """
)


_TENSOR_TRUTHS = libraries.words(
    """
    is_contiguous is_floating_point is_complex is_pinned is_set_to is_shared is_signed has_names
    """
)


def _casts_dtype(arguments: Arguments) -> bool:
    return "dtype" in arguments.keywords or any(is_dtype(passed.value) for passed in arguments.positions)


def _move_tensor(interp: Interpreter, tensor: Tensor, name: str, arguments: Arguments, node: ast.AST) -> Tensor:
    place = target_of(name, arguments)
    origin = interp.origin(node)
    if place is None:
        interp.event(
            "cast" if _casts_dtype(arguments) or name == "type" else "call",
            node,
            label("Tensor", name),
            tensor,
            arguments,
        )
        casts = _casts_dtype(arguments) or name == "type"
        same = cast(tensor, origin) if casts else moved(tensor, tensor.device, origin)
        return with_half(same, tensor.half and not casts)
    result = moved(tensor, place, origin)
    interp.event("transfer", node, name, tensor, arguments, result)
    if name == "cpu":
        interp.event("sync", node, "cpu", tensor)
    return result


def call_tensor_method(interp: Interpreter, tensor: Tensor, name: str, arguments: Arguments, node: ast.AST) -> Value:
    origin = interp.origin(node)
    if name == "backward":
        loss = tensor.scaled_from
        for each in tensors_in(loss or tensor) if arguments.get("gradient", 0) is None else ():
            each.scalar = True
        interp.event("backward", node, "scaled" if loss is not None else "", loss or tensor, arguments)
        return NONE
    if name in ("to", "cuda", "cpu") or (name == "type" and arguments.positions):
        return _move_tensor(interp, tensor, name, arguments, node)
    if name in READS:
        read = interp.absorb(node) or tensor
        interp.event("sync", node, name, read)
        return read_on_host(read, origin)
    if name in ACTS:
        interp.event(ACTS[name], node, name, tensor, arguments)
        return UNKNOWN
    if name in ("detach", "detach_"):
        interp.event("call", node, label("Tensor", name), tensor, arguments)
        return detached(tensor, origin)
    if name in _TENSOR_NUMBERS:
        return NUMBER
    if name in _TENSOR_TRUTHS:
        return UNKNOWN
    if name in ("items", "named_parameters"):  # a batch that is a dict
        return Iterated(Sequence([UNKNOWN, tensor]), tensor, name, origin)
    if name == "values":
        return Iterated(tensor, tensor, name, origin)
    if name == "keys":
        return Iterated(UNKNOWN, tensor, name, origin)
    if name in ("train", "eval"):
        interp.event("mode", node, name, tensor, arguments)
        return tensor
    result: Value
    if name == "copy_":
        result = tensor
    elif name in _LIKE_ANOTHER:  # the other tensor gives only its shape, type or place
        result = moved(
            tensor, device_of([tensor, *tensors_passed(arguments)] if name == "type_as" else [tensor]), origin
        )
    else:
        result = in_precision(result_of([tensor, *tensors_passed(arguments)], origin, name), name)
        plain = not (arguments.positions or arguments.keywords or arguments.open or arguments.star)
        # What comes out of a loader or an unknown call may be of another library, whose sums have columns.
        if plain and name in libraries.REDUCTIONS and not tensor.roles & {"object", "maybe_output", "batch", "data"}:
            result.scalar = bool(tensor.roles)
        if name in ("max", "min", "topk", "sort", "median", "kthvalue") and (
            (arguments.get("dim", 0) is not None) or name in ("topk", "sort")
        ):
            result = Sequence([result, result], interp.control, origin)
        elif name in ("split", "chunk", "unbind", "tensor_split"):
            result = Sequence(None, interp.control, origin, "tuple", result)
    interp.event("call", node, label("Tensor", name), tensor, arguments, result)
    return result
