"""torch's functions, and those of libraries that train with it: what they give, and which acts they are."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import (
    device_meant,
    device_of,
    elements_passed,
    in_precision,
    reduces_all,
    result_of,
    roles_of,
    scaled,
    tensors_passed,
    unknown_of,
)
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    NONE,
    UNKNOWN,
    Bound,
    Const,
    Device,
    External,
    Sequence,
    Tensor,
    Value,
    join_devices,
    members,
)
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.unknowns import call_unknown
from turbofix.library import tables as libraries
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
    models = arguments.get("models", 0)
    optimizers = arguments.get("optimizers", 1)
    given = [passed.value for passed in (models, optimizers) if passed is not None]
    if len(given) == 1:
        return given[0]
    return Sequence(given, interp.control, interp.origin(node)) if given else UNKNOWN


def deepspeed_initialize(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    model = arguments.get("model", 1)
    optimizer = arguments.get("optimizer", 2)
    data = arguments.get("training_data", 4)
    engine = interp.make(
        "deepspeed.DeepSpeedEngine", "engine", arguments, node, model.value if model is not None else None
    )
    engine.device = "conditional"  # DeepSpeed chooses: it runs on CPUs and other accelerators too
    loader: Value = NONE
    if data is not None:
        given = positional(data.value)
        given.keywords |= {name: each for name, each in arguments.keywords.items() if name == "collate_fn"}
        loader = interp.make("deepspeed.runtime.dataloader.DeepSpeedDataLoader", "loader", given, node)
    return Sequence(
        [
            engine,
            optimizer.value if optimizer is not None else interp.opaque("deepspeed.optimizer", "call", node),
            loader,
            interp.opaque("deepspeed.scheduler", "call", node),
        ],
        interp.control,
        interp.origin(node),
    )


def call_torch(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    package, _, name = qualname.rpartition(".")
    if package == "torch.nn.functional":
        return _call_functional(interp, qualname, arguments, node)
    if package in ("torch", "torch.sparse", "torch.linalg", "torch.fft", "torch.special") or (
        package == "torch.cuda" and name.endswith("Tensor")
    ):
        return _call_tensor_function(interp, qualname, package, name, arguments, node)
    if package == "torch.nn.init":
        interp.event("call", node, qualname, None, arguments)
        return arguments.first("tensor") or UNKNOWN
    if package.startswith("torch.distributions"):
        interp.event("call", node, qualname, None, arguments)
        tensors = tensors_passed(arguments)
        return result_of(tensors, interp.origin(node)) if tensors else interp.opaque(qualname + "()", "call", node)
    if package == "torch.nn.utils.rnn" and (tensors := tensors_passed(arguments)):
        return _call_padding(interp, qualname, tensors, arguments, node)
    return call_unknown(interp, qualname, arguments, node)


def _call_padding(
    interp: Interpreter, qualname: str, tensors: list[Tensor], arguments: Arguments, node: ast.AST
) -> Value:
    """``torch.nn.utils.rnn``: padding gives a tensor, packing an object that holds some."""
    origin = interp.origin(node)
    result: Value = result_of(tensors, origin)
    if qualname.endswith("pad_packed_sequence"):
        result = Sequence([result, Tensor(frozenset({"made"}), "cpu", origin, pageable=True)], interp.control, origin)
    elif "unp" in qualname:  # unpad_sequence, unpack_sequence
        result = Sequence(None, interp.control, origin, "list", result)
    elif not qualname.endswith("pad_sequence"):
        result = unknown_of(tensors, origin)
    interp.event("call", node, qualname, None, arguments, result)
    return result


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
    tensors = tensors_passed(arguments)
    if qualname in libraries.LOSSES:
        result = Tensor(
            roles_of(tensors) - {"maybe_output", "batch"} | {"loss"}, device_of(tensors), interp.origin(node)
        )
        result.scalar = reduces_all(arguments) and qualname != "torch.nn.functional.linear_cross_entropy"
        interp.event("criterion", node, qualname, External(qualname), arguments, result)
        return result
    result = result_of(tensors, interp.origin(node)) if tensors else Tensor(frozenset(), "unknown", interp.origin(node))
    result = in_precision(result, qualname)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _call_tensor_function(  # noqa: PLR0913
    interp: Interpreter, qualname: str, package: str, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    if name in libraries.NO_TENSOR and package == "torch":
        interp.event("call", node, qualname, None, arguments)
        return UNKNOWN
    tensors = tensors_passed(arguments)
    origin = interp.origin(node)
    result: Value
    if name in libraries.FACTORIES or package == "torch.cuda":
        result = _made_tensor(interp, package, name, arguments, tensors, node)
    elif tensors:
        result = in_precision(result_of(tensors, origin, name), qualname)
        result.scalar = result.scalar or (
            package == "torch"
            and name in NAMES["reductions"]
            and len(arguments.positions) == 1
            and not (arguments.star or arguments.open or arguments.keywords)
        )
        if name in ("max", "min", "topk", "sort", "median", "mode", "kthvalue") and _reduces(name, arguments):
            result = Sequence([result, result], interp.control, origin)
    elif package == "torch" and not arguments.positions and not arguments.keywords:
        return call_unknown(interp, qualname, arguments, node)
    else:
        unknown = interp.opaque(qualname + "()", "call", node)
        result = unknown if elements_passed(arguments) else Tensor(frozenset(), "unknown", origin)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _reduces(name: str, arguments: Arguments) -> bool:
    """Whether ``torch.max(x, 1)`` gives values and indices."""
    if name in ("topk", "sort", "kthvalue", "mode"):
        return True
    dim = arguments.get("dim", 1)
    return dim is not None and not any(type(member) is Tensor for member in members(dim.value))


def _made_tensor(  # noqa: PLR0913
    interp: Interpreter, package: str, name: str, arguments: Arguments, tensors: list[Tensor], node: ast.AST
) -> Tensor:
    if package == "torch.cuda":
        place: Device = "cuda"
    elif "device" in arguments.keywords:
        place = device_passed(interp, arguments)
    elif name.endswith("_like") or (name in ("as_tensor", "asarray") and tensors):
        place = device_of(tensors)
    else:
        place = interp.default_device
    from_host = name in libraries.FROM_HOST and bool(arguments.positions)
    roles = roles_of(tensors) if name.endswith("_like") is False and from_host else frozenset()
    if name not in ("as_tensor", "asarray", "from_numpy"):  # a copy, without the graph of what it was copied from
        roles -= {"output", "maybe_output", "prediction"}
    dtype = arguments.keywords.get("dtype")
    is_complex = dtype is not None and str(getattr(dtype.value, "qualname", "")).startswith("torch.c")
    roles |= {"made", "complex"} if is_complex else {"made"}
    return Tensor(roles - {"loss"}, place, interp.origin(node), pageable=from_host or place == "cpu")


def device_passed(interp: Interpreter, arguments: Arguments) -> Device:
    passed = arguments.keywords.get("device")
    if passed is None or (type(passed.value) is Const and passed.value.value is None):
        return interp.default_device
    return device_meant(passed.value)
