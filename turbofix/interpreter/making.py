"""Objects that libraries make: modules, wrappers, devices, progress bars."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import device_meant, device_of, roles_of, tensors_passed
from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    NUMBER,
    Const,
    Device,
    Instance,
    Iterated,
    Made,
    Sequence,
    Tensor,
    Value,
    join_devices,
    members,
)
from turbofix.interpreter.brains.command_line import make_parser
from turbofix.interpreter.builtin_calls import call_builtin
from turbofix.interpreter.definitions import is_layer
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.models import LAYERED, layers_given, name_layers
from turbofix.interpreter.state import Interpreter


def make_object(interp: Interpreter, qualname: str, kind: str, arguments: Arguments, node: ast.AST) -> Value:
    if kind == "parameter":
        tensors = tensors_passed(arguments)
        result = Tensor(roles_of(tensors) | {"param"}, device_of(tensors, "cpu"), interp.origin(node))
        interp.event("call", node, qualname, None, arguments, result)
        return result
    if kind == "device":
        return _make_device(interp, qualname, arguments, node)
    if kind == "wrapper":
        wrapper = interp.make(qualname, kind, arguments, node, arguments.first("module", "model"), log=False)
        for wrapped in members(wrapper.inner):
            if isinstance(wrapped, (Instance, Made)):
                wrapper.device = wrapped.device
        if qualname.endswith("DataParallel") and "torch.nn.DataParallel" in qualname and wrapper.device == "cpu":
            wrapper.device = "conditional"
        interp.event("wrap", node, qualname, wrapper.inner, arguments, wrapper)
        return wrapper
    if kind == "argparse":
        return make_parser(interp, qualname, arguments, node)
    if kind == "progress":
        return _make_progress(interp, qualname, arguments, node)
    if kind == "debugmode":
        interp.event("set", node, qualname, None, arguments, arguments.first("mode"))
        return interp.make(qualname, kind, arguments, node)
    if kind == "tokenizer" or kind == "transform" or kind == "config":
        return interp.make(qualname, kind, arguments, node)
    if kind == "loader" and qualname.endswith(".splits"):  # torchtext's: one iterator for each of the datasets
        made = interp.make(qualname, kind, arguments, node)
        return Sequence(None, interp.control, interp.origin(node), "tuple", made)
    inner: Value | None = None
    if qualname in LAYERED:
        inner = layers_given(interp, qualname, arguments, node)
    elif kind == "module" and arguments.positions:
        # TransformerEncoder(layer, ...): modules given to a module are part of it
        parts = [passed.value for passed in arguments.positions if is_layer(passed.value)]
        inner = Sequence(parts, interp.control) if parts else None
    made = interp.make(qualname, kind, arguments, node, inner)
    if qualname == "torch.nn.ModuleDict" and len(arguments.positions) == 1:
        name_layers(made, arguments.positions[0].value)
    if kind in ("module", "criterion"):
        made.device = device_passed(interp, arguments)
        if made.qualname.startswith("transformers.") and "device_map" in arguments.keywords:
            made.device = "conditional"
    if qualname == "torch.set_grad_enabled":
        interp.event("call", node, qualname, None, arguments)
    return made


def device_passed(interp: Interpreter, arguments: Arguments) -> Device:
    passed = arguments.keywords.get("device")
    if passed is None or (type(passed.value) is Const and passed.value.value is None):
        return interp.default_device
    return device_meant(passed.value)


def _make_device(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Made:
    meant = arguments.first("type", "device")
    made = interp.make(qualname, "device", arguments, node)
    place = device_meant(meant)
    made.device = place if made.device == "unknown" else join_devices(made.device, place)
    return made


def _make_progress(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    iterable = arguments.first("iterable", "sequence")
    if qualname in ("tqdm.trange", "tqdm.tnrange"):
        iterable = Iterated(NUMBER, None, "range", interp.origin(node))
    if qualname in ("rich.progress.track", "alive_progress.alive_it"):
        return Iterated(iterate(interp, iterable, node), iterable, "track", interp.origin(node))
    if qualname == "tqdm.contrib.tenumerate":
        return call_builtin(interp, "enumerate", arguments, node)
    if qualname.startswith("fastprogress.") and len(arguments.positions) > 1:
        iterable = arguments.positions[0].value
    return interp.make(qualname, "progress", arguments, node, iterable)
