"""Methods of tensors and of models, the project's and those of libraries."""

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
    surest,
    tensors_in,
    tensors_passed,
    with_half,
)
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Const,
    Instance,
    Iterated,
    Made,
    Mapping,
    Sequence,
    Tensor,
    Value,
    join,
    join_devices,
    members,
)
from turbofix.interpreter.attributes import add_weight, child, read_attribute, write_attribute
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.models import add_layer, forward, parts_of
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import ACTS, label, target_of
from turbofix.library.tables import NAMES


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
    if name in NAMES["reads"]:
        read = interp.absorb(node) or tensor
        interp.event("sync", node, name, read)
        return read_on_host(read, origin)
    if name in ACTS:
        interp.event(ACTS[name], node, name, tensor, arguments)
        return UNKNOWN
    if name in ("detach", "detach_"):
        interp.event("call", node, label("Tensor", name), tensor, arguments)
        return detached(tensor, origin)
    if name in NAMES["tensor_numbers"]:
        return NUMBER
    if name in NAMES["tensor_truths"]:
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
    elif name in NAMES["like_another"]:  # the other tensor gives only its shape, type or place
        result = moved(
            tensor, device_of([tensor, *tensors_passed(arguments)] if name == "type_as" else [tensor]), origin
        )
    else:
        result = in_precision(result_of([tensor, *tensors_passed(arguments)], origin, name), name)
        plain = not (arguments.positions or arguments.keywords or arguments.open or arguments.star)
        # What comes out of a loader or an unknown call may be of another library, whose sums have columns.
        if plain and name in NAMES["reductions"] and not tensor.roles & {"object", "maybe_output", "batch", "data"}:
            result.scalar = bool(tensor.roles)
        if name in ("max", "min", "topk", "sort", "median", "kthvalue") and (
            (arguments.get("dim", 0) is not None) or name in ("topk", "sort")
        ):
            result = Sequence([result, result], interp.control, origin)
        elif name in ("split", "chunk", "unbind", "tensor_split"):
            result = Sequence(None, interp.control, origin, "tuple", result)
    interp.event("call", node, label("Tensor", name), tensor, arguments, result)
    return result


def _move_model(interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    place = target_of(name, arguments)
    if place is None:
        interp.event("cast", node, name, model, arguments)
        return model
    interp.event("transfer", node, name, model, arguments, model)
    for each in (
        model,
        *(members(model.inner) if type(model) is Made and model.kind in ("wrapper", "engine") else ()),
    ):
        if isinstance(each, (Instance, Made)):
            undecided = interp.is_undecided_since(each.made_at)
            each.device = join_devices(each.device, place) if undecided and each.device != "unknown" else place
    return model


def call_model_method(
    interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    origin = interp.origin(node)
    if name in ("to", "cuda", "cpu", "type"):
        return _move_model(interp, model, name, arguments, node)
    if name in NAMES["casts"]:
        interp.event("cast", node, name, model, arguments, model)
        return model
    if name in ("train", "eval"):
        interp.event("mode", node, name, model, arguments)
        return model
    if name in ("forward", "__call__"):
        return forward(interp, model, arguments, node)
    if name == "__setattr__":
        key, value = arguments.at(0), arguments.at(1)
        if type(key) is Const and isinstance(key.value, str) and value is not None:
            write_attribute(interp, model, key.value, value, node)
        elif value is not None:
            add_weight(model, value)
        return NONE
    if name in ("parameters", "buffers"):
        parameter = Tensor(frozenset({"param"}), model.device, origin, model)
        return Iterated(parameter, model, name, origin)
    if name in ("named_parameters", "named_buffers"):
        parameter = Tensor(frozenset({"param"}), model.device, origin, model)
        return Iterated(Sequence([UNKNOWN, parameter]), model, name, origin)
    if name in ACTS:
        interp.event(ACTS[name], node, name, model, arguments)
        return UNKNOWN
    if name == "backward":
        interp.event("backward", node, "engine" if type(model) is Made else "", arguments.at(0) or model, arguments)
        return NONE
    if name == "compile":
        interp.event("compile", node, name, model, arguments, model)
        return NONE
    if name in NAMES["module_itself"]:
        interp.event("call", node, label("Module", name), model, arguments)
        function = arguments.at(0)
        if name == "apply" and function is not None:
            part = child(interp, model, "<layer>", node)
            interp.call(function, positional(part), node)
        return model
    if name in NAMES["module_parts"]:
        part = join(model, parts_of(interp, model, node)) or model
        return Iterated(part if not name.startswith("named") else Sequence([UNKNOWN, part]), model, name, origin)
    if name in ("register_buffer", "register_parameter", "add_module", "register_module"):
        key = arguments.first("name")
        value = arguments.at(1) or Arguments([], arguments.keywords).first("tensor", "module", "param")
        layer = name in ("add_module", "register_module")
        if type(key) is Const and isinstance(key.value, str) and value is not None:
            write_attribute(interp, model, key.value, value, node)
        elif type(model) is Instance and value is not None and layer:
            model.attributes["<layers>"] = join(model.attributes.get("<layers>"), value) or value  # one of them
        elif value is not None:
            add_weight(model, value)
        if type(model) is Made and value is not None and layer:
            add_layer(interp, model, value)
        return NONE
    if name in ("append", "extend", "insert", "update") and type(model) is Made:
        added = arguments.at(1 if name == "insert" else 0) or UNKNOWN
        add_layer(interp, model, iterate(interp, added, node) if name in ("extend", "update") else added)
        return model
    if name in ("items", "values", "keys") and type(model) is Made and model.inner is not None:
        part = iterate(interp, model.inner, node)
        return Iterated(
            Sequence([UNKNOWN, part]) if name == "items" else part if name == "values" else UNKNOWN, model, name, origin
        )
    if name == "generate":
        result = Tensor(
            frozenset({"output"}), surest(model.device, device_of(tensors_passed(arguments))), origin, model, half=True
        )
        interp.event("forward", node, name, model, arguments, result)
        return result
    if name == "state_dict":
        interp.event("call", node, label("Module", name), model, arguments)
        return Mapping(interp.control, origin, {}, True, Tensor(frozenset({"param"}), model.device, origin, model))
    if name == "no_sync":
        return interp.make("torch.nn.parallel.DistributedDataParallel.no_sync", "nosync", arguments, node, log=False)
    if type(model) is Made and model.kind in ("wrapper", "engine") and model.inner is not None:
        found = read_attribute(interp, model.inner, name, ast.copy_location(ast.Pass(), node), called=True)
        if type(found) is Bound:
            return interp.call(found, arguments, node)
    tensors = tensors_passed(arguments)
    if tensors:
        result = Tensor(frozenset({"output"}), surest(model.device, device_of(tensors)), origin, model, half=True)
        interp.event("forward", node, name, model, arguments, result)
        return result
    interp.event("call", node, label("Module", name), model, arguments)
    return child(interp, model, f".{name}()", node, "call")
