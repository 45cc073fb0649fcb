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
)
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Const,
    Instance,
    Made,
    Mapping,
    Origin,
    Sequence,
    Tensor,
    Value,
    join,
    join_devices,
    members,
)
from turbofix.interpreter.attributes import add_weight, child, read_attribute, write_attribute
from turbofix.interpreter.containers import iterated_parts
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.models import add_layer, forward, parts_of
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import ACTS, target_of
from turbofix.library.tables import NAMES


def _move_tensor(interp: Interpreter, tensor: Tensor, name: str, arguments: Arguments, node: ast.AST) -> Tensor:
    place, origin = target_of(name, arguments), interp.origin(node)
    if place is not None:
        result = moved(tensor, place, origin)
        interp.event("transfer", node, name, tensor, arguments, result)
        if name == "cpu":
            interp.event("sync", node, "cpu", tensor)
        return result
    given = any(is_dtype(passed.value) for passed in arguments.positions)
    if name == "type" or "dtype" in arguments.keywords or given:
        interp.event("cast", node, f"Tensor.{name}", tensor, arguments)
        return cast(tensor, origin)
    interp.event("call", node, f"Tensor.{name}", tensor, arguments)
    return moved(tensor, tensor.device, origin)


def call_tensor_method(interp: Interpreter, tensor: Tensor, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """What a method of a tensor gives, and which act it is."""
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
    if name in NAMES["tensor_numbers"]:
        return NUMBER
    if name in NAMES["tensor_truths"]:
        return UNKNOWN
    if name in ("items", "named_parameters", "values", "keys"):  # a batch that is a dict
        return iterated_parts(tensor, tensor, name, origin)
    if name == "copy_":
        return interp.gives(tensor, node, "Tensor.copy_", tensor, arguments)
    if name in ("detach", "detach_"):
        interp.event("call", node, f"Tensor.{name}", tensor, arguments)
        return detached(tensor, origin)
    given = [tensor, *tensors_passed(arguments)]
    if name in NAMES["like_another"]:  # the other tensor gives only its shape, type or place
        result = moved(tensor, device_of(given if name == "type_as" else [tensor]), origin)
        return interp.gives(result, node, f"Tensor.{name}", tensor, arguments)
    result = in_precision(result_of(given, origin, name), name)
    plain = not (arguments.positions or arguments.keywords or arguments.open or arguments.star)
    # What comes out of a loader or an unknown call may be of another library, whose sums have columns.
    if plain and name in NAMES["reductions"] and not tensor.roles & {"object", "maybe_output", "batch", "data"}:
        result.scalar = bool(tensor.roles)
    several: Value = result
    along = name in ("max", "min", "median", "kthvalue") and arguments.get("dim", 0) is not None
    if along or name in ("topk", "sort"):
        several = Sequence([result, result], interp.control, origin)
    elif name in ("split", "chunk", "unbind", "tensor_split"):
        several = Sequence(None, interp.control, origin, "tuple", result)
    return interp.gives(several, node, f"Tensor.{name}", tensor, arguments)


def _move_model(interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    place = target_of(name, arguments)
    if place is None:
        interp.event("cast", node, name, model, arguments)
        return model
    interp.event("transfer", node, name, model, arguments, model)
    for each in (model, *(members(model.inner) if type(model) is Made and model.kind in ("wrapper", "engine") else ())):
        if isinstance(each, (Instance, Made)):
            undecided = interp.is_undecided_since(each.made_at)
            each.device = join_devices(each.device, place) if undecided and each.device != "unknown" else place
    return model


def call_model_method(
    interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """What a method of a model gives, and which act it is."""
    origin = interp.origin(node)
    value = arguments.at(0)
    made = model if type(model) is Made else None
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
    if name in ("parameters", "buffers", "named_parameters", "named_buffers"):
        return iterated_parts(_weight(model, origin), model, name, origin)
    if name in ACTS:
        interp.event(ACTS[name], node, name, model, arguments)
        return UNKNOWN
    if name == "backward":
        interp.event("backward", node, "engine" if made else "", value or model, arguments)
        return NONE
    if name == "compile":
        interp.event("compile", node, name, model, arguments, model)
        return NONE
    if name in NAMES["module_itself"]:
        interp.event("call", node, f"Module.{name}", model, arguments)
        if name == "apply" and value is not None:
            interp.call(value, positional(child(interp, model, "<layer>", node)), node)
        return model
    if name in NAMES["module_parts"]:
        return iterated_parts(join(model, parts_of(interp, model, node)) or model, model, name, origin)
    if name in ("register_buffer", "register_parameter", "add_module", "register_module", "__setattr__"):
        return _register(interp, model, name, arguments, node)
    if made and name in ("append", "extend", "insert", "update"):
        added = arguments.at(1 if name == "insert" else 0) or UNKNOWN
        add_layer(interp, made, iterate(interp, added, node) if name in ("extend", "update") else added)
        return model
    if made and name in ("items", "values", "keys") and made.inner is not None:
        return iterated_parts(iterate(interp, made.inner, node), model, name, origin)
    if name == "state_dict":
        interp.event("call", node, f"Module.{name}", model, arguments)
        return Mapping(interp.control, origin, {}, True, _weight(model, origin))
    if name == "no_sync":
        return interp.make("torch.nn.parallel.DistributedDataParallel.no_sync", "nosync", arguments, node, log=False)
    if made and name != "generate" and made.kind in ("wrapper", "engine") and made.inner is not None:
        found = read_attribute(interp, made.inner, name, ast.copy_location(ast.Pass(), node), called=True)
        if type(found) is Bound:
            return interp.call(found, arguments, node)
    tensors = tensors_passed(arguments)
    if tensors or name == "generate":
        result = Tensor(frozenset({"output"}), surest(model.device, device_of(tensors)), origin, model, half=True)
        interp.event("forward", node, name, model, arguments, result)
        return result
    interp.event("call", node, f"Module.{name}", model, arguments)
    return child(interp, model, f".{name}()", node, "call")


def _weight(model: Instance | Made, origin: Origin) -> Tensor:
    return Tensor(frozenset({"param"}), model.device, origin, model)


def _register(interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``register_buffer``, ``add_module`` and the like: an attribute, or one of those whose name is not known."""
    key = arguments.first("name")
    value = arguments.at(1) or Arguments([], arguments.keywords).first("tensor", "module", "param")
    layer = name in ("add_module", "register_module")
    if value is None:
        return NONE
    if type(key) is Const and isinstance(key.value, str):
        write_attribute(interp, model, key.value, value, node)
    elif type(model) is Instance and layer:
        model.attributes["<layers>"] = join(model.attributes.get("<layers>"), value) or value
    else:
        add_weight(model, value)
    if type(model) is Made and layer:
        add_layer(interp, model, value)
    return NONE
