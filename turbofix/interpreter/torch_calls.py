"""torch's functions and methods, and those of libraries that train with it."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import (
    NO_ROLES,
    cast,
    detached,
    device_meant,
    device_of,
    elements_passed,
    in_precision,
    is_dtype,
    moved,
    read_on_host,
    reduces_all,
    result_of,
    roles_of,
    scaled,
    surest,
    tensors_in,
    tensors_passed,
    unknown_of,
)
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Const,
    Device,
    External,
    Instance,
    Made,
    Mapping,
    Origin,
    Sequence,
    Tensor,
    Value,
    join,
    join_all,
    join_devices,
    members,
)
from turbofix.interpreter.attributes import add_weight, child, read_attribute, write_attribute
from turbofix.interpreter.containers import iterated_parts
from turbofix.interpreter.elements import iterate
from turbofix.interpreter.models import add_layer, forward, parts_of
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import ACTS, call_unknown, target_of
from turbofix.library import tables as libraries
from turbofix.library.rows import count_of, gives_no_tensor, reads, row
from turbofix.library.tables import NAMES


def clip(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = Tensor(frozenset({"grad"}), device_of(tensors_passed(arguments)), interp.origin(node))
    interp.event("clip", node, qualname, arguments.first("parameters"), arguments, result)
    return result


def autograd_backward(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("backward", node, qualname, arguments.first("tensors"), arguments)
    return NONE


def autograd_grad(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    outputs = arguments.first("outputs")
    result = Tensor(frozenset({"grad"}), device_of(tensors_passed(arguments)), interp.origin(node))
    interp.event("autograd_grad", node, qualname, outputs, arguments, result)
    return Sequence(None, interp.control, interp.origin(node), "tuple", result)


def compile_model(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    model = arguments.first("model")
    whole = model.receiver if isinstance(model, Bound) and model.function.name == "forward" else model
    interp.event("compile", node, qualname, whole, arguments, model)
    return model or UNKNOWN


def save_checkpoint(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if arguments.get("f", 1) is not None or arguments.star or arguments.open:  # without a file it raises
        interp.event("save", node, qualname, arguments.first("obj"), arguments)
    return NONE


def load_checkpoint(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = interp.opaque(qualname + "()", "call", node)
    interp.event("load", node, qualname, None, arguments, result)
    return result


def scale_loss(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """apex's ``with amp.scale_loss(loss, optimizer) as scaled_loss``."""
    loss = arguments.first("loss") or UNKNOWN
    interp.event("scale", node, qualname, None, arguments)
    return scaled(loss, interp.origin(node))


def apex_initialize(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    given = [arguments.value("models", 0), arguments.value("optimizers", 1)]
    items = [each for each in given if each is not None]
    return items[0] if len(items) == 1 else Sequence(items, interp.control, interp.origin(node))


def deepspeed_initialize(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    engine = interp.make("deepspeed.DeepSpeedEngine", "engine", arguments, node, arguments.value("model", 1))
    engine.device = "conditional"  # DeepSpeed chooses: it runs on CPUs and other accelerators too
    told = arguments.get("config", 10) or arguments.get("config_params", 12)
    if told is not None:
        from turbofix.interpreter.brains.config_files import told_at

        engine.attributes["config"] = told_at(interp, told)
    optimizer = arguments.value("optimizer", 2) or interp.opaque("deepspeed.optimizer", "call", node)
    data = arguments.value("training_data", 4)
    loader: Value = NONE
    if data is not None:
        given = positional(data)
        given.keywords |= {name: each for name, each in arguments.keywords.items() if name == "collate_fn"}
        loader = interp.make("deepspeed.runtime.dataloader.DeepSpeedDataLoader", "loader", given, node)
    scheduler = interp.opaque("deepspeed.scheduler", "call", node)
    return Sequence([engine, optimizer, loader, scheduler], interp.control, interp.origin(node))


def call_torch(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """A function of torch that makes no object."""
    package, _, name = qualname.rpartition(".")
    tensors = tensors_passed(arguments)
    if package == "torch.nn.functional":
        return _call_functional(interp, qualname, arguments, node)
    if package in _OF_TENSORS or (package == "torch.cuda" and name.endswith("Tensor")):
        return _call_tensor_function(interp, qualname, arguments, node)
    if package == "torch.nn.init":
        interp.event("call", node, qualname, None, arguments)
        return arguments.first("tensor") or UNKNOWN
    if package.startswith("torch.distributions"):
        interp.event("call", node, qualname, None, arguments)
        return result_of(tensors, interp.origin(node)) if tensors else interp.opaque(qualname + "()", "call", node)
    if package == "torch.nn.utils.rnn" and tensors:
        return _call_padding(interp, qualname, tensors, arguments, node)
    return call_unknown(interp, qualname, arguments, node)


_OF_TENSORS = ("torch", "torch.sparse", "torch.linalg", "torch.fft", "torch.special")


def _call_padding(
    interp: Interpreter, qualname: str, tensors: list[Tensor], arguments: Arguments, node: ast.AST
) -> Value:
    """``torch.nn.utils.rnn``: padding gives a tensor, packing an object that holds some."""
    origin = interp.origin(node)
    result: Value = result_of(tensors, origin)
    if qualname.endswith("pad_packed_sequence"):
        result = Sequence([result, Tensor(frozenset({"made"}), "cpu", origin, pageable=True)], interp.control, origin)
    elif not qualname.endswith("pad_sequence"):
        result = unknown_of(tensors, origin)
    return interp.gives(result, node, qualname, None, arguments)


def set_switch(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    value = arguments.first()
    interp.event("set", node, qualname, None, arguments, value)
    if qualname in ("torch.set_default_device", "torch.set_default_tensor_type") and value is not None:
        place: Device = device_meant(value)
        if type(value) is Const and isinstance(value.value, str) and value.value.startswith("torch."):
            place = "cuda" if ".cuda." in value.value else "cpu"
        strong = not interp.is_undecided_since(interp.roots[0])
        interp.default_device = place if strong else join_devices(interp.default_device, place)
    return NONE


def _call_functional(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    tensors, origin = tensors_passed(arguments), interp.origin(node)
    if libraries.is_loss(qualname):
        roles = roles_of(tensors) - {"maybe_output", "batch"} | {"loss"}
        result = Tensor(roles, device_of(tensors), origin, scalar=reduces_all(arguments))
        interp.event("criterion", node, qualname, External(qualname), arguments, result)
        return result
    result = result_of(tensors, origin) if tensors else Tensor(origin=origin)
    return interp.gives(in_precision(result, qualname), node, qualname, None, arguments)


def _call_tensor_function(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    package, _, name = qualname.rpartition(".")
    tensors, origin = tensors_passed(arguments), interp.origin(node)
    result: Value = UNKNOWN
    if tensors and reads(qualname):
        return read_by(interp, qualname, arguments, node)
    without = package == "torch" and gives_no_tensor(qualname)
    if libraries.is_factory(f"torch.{name}") or package == "torch.cuda":
        result = _made_tensor(interp, package, name, arguments, tensors, node)
    elif tensors and not without:
        tensor = in_precision(result_of(tensors, origin, name), qualname)
        alone = len(arguments.positions) == 1 and not (arguments.star or arguments.open or arguments.keywords)
        tensor.scalar = tensor.scalar or (alone and package == "torch" and name in NAMES["reductions"])
        count = 2 if name in _BY_DIM and _gives_two(arguments) else count_of(qualname)
        result = tensor if count is None else _several(interp, tensor, count, origin)
    elif without:
        interp.event("call", node, qualname, None, arguments)
        return UNKNOWN
    else:
        unknown = interp.opaque(qualname + "()", "call", node)
        result = unknown if elements_passed(arguments) else Tensor(origin=origin)
    return interp.gives(result, node, qualname, None, arguments)


_BY_DIM = ("max", "min", "median", "nanmedian")
"""What gives values and their positions along a dimension, and one tensor without."""


def _gives_two(arguments: Arguments) -> bool:
    """Whether ``torch.max(x, 1)`` is told a dimension, and not a second tensor."""
    dim = arguments.value("dim", 1)
    return dim is not None and not any(type(member) is Tensor for member in members(dim))


def _several(interp: Interpreter, tensor: Tensor, count: int, origin: Origin) -> Value:
    """A tuple of so many tensors; of any number, where that is 0."""
    return Sequence([tensor] * count or None, interp.control, origin, "tuple", None if count else tensor)


def read_by(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``torch.equal(x, y)``: a function that waits for its tensors and gives a value on the host."""
    tensors = join_all(tensors_passed(arguments))
    interp.event("sync", node, qualname.rpartition(".")[2], tensors)
    return read_on_host(tensors, interp.origin(node))


def _made_tensor(  # noqa: PLR0913
    interp: Interpreter, package: str, name: str, arguments: Arguments, tensors: list[Tensor], node: ast.AST
) -> Tensor:
    shares, like = name in ("as_tensor", "asarray", "from_numpy"), name.endswith("_like")
    place: Device = interp.default_device
    if package == "torch.cuda":
        place = "cuda"
    elif "device" in arguments.keywords:
        place = device_passed(interp, arguments)
    elif like or (shares and tensors):
        place = device_of(tensors)
    from_host = name in libraries.FROM_HOST and bool(arguments.positions)
    roles = roles_of(tensors) if from_host else NO_ROLES
    if not shares:  # a copy, without the graph of what it was copied from
        roles -= {"output", "maybe_output", "prediction"}
    dtype = arguments.value("dtype")
    is_complex = type(dtype) is External and dtype.qualname.startswith("torch.c")
    roles = (roles - {"loss"}) | ({"made", "complex"} if is_complex else {"made"})
    return Tensor(roles, place, interp.origin(node), pageable=from_host or place == "cpu")


def device_passed(interp: Interpreter, arguments: Arguments) -> Device:
    """Where something is made that is told a device, or none."""
    value = arguments.value("device")
    is_none = value is None or (type(value) is Const and value.value is None)
    return interp.default_device if is_none else device_meant(value)


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
    if reads(name):
        read = interp.absorb(node) or tensor
        interp.event("sync", node, name, read)
        return read_on_host(read, origin)
    if name in ACTS:
        interp.event(ACTS[name], node, name, tensor, arguments)
        return UNKNOWN
    if gives_no_tensor(name):
        return NUMBER if row(name).gives == {"number"} else UNKNOWN
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
    count = 2 if name in _BY_DIM and arguments.get("dim", 0) is not None else count_of(name)
    several = result if count is None else _several(interp, result, count, origin)
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
