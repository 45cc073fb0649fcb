"""What calls of libraries do: which objects they make, what they return, which acts they log."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from turbofix.domain.tensors import (
    device_meant,
    device_of,
    elements_passed,
    hosts_passed,
    in_precision,
    joined_hosts,
    read_on_host,
    reduces_all,
    result_of,
    roles_of,
    tensors_in,
    tensors_passed,
    unknown_of,
)
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    NEVER,
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Computed,
    Const,
    Device,
    Entry,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Option,
    Origin,
    Partial,
    Sequence,
    Tensor,
    Union,
    Value,
    join,
    join_all,
    join_devices,
    members,
)
from turbofix.interpreter import access, builtin_calls, calls, imports
from turbofix.interpreter.brains import command_line as options
from turbofix.interpreter.brains import config_files
from turbofix.library import tables as libraries
from turbofix.library.rows import count_of, gives_no_tensor, reads

if TYPE_CHECKING:
    from turbofix.interpreter.walk import Interpreter

Handler = Callable[["Interpreter", str, Arguments, ast.AST], Value]


LAYERED = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
"""What is given its layers when it is built."""


def call_external(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a library's function or class gives."""
    if qualname.startswith("builtins."):
        return builtin_calls.call_builtin(interp, qualname[9:], arguments, node)
    handler = _HANDLERS.get(qualname) or config_files.HANDLERS.get(qualname)
    if handler is not None:
        return handler(interp, qualname, arguments, node)
    kind = libraries.kind_of(qualname)
    if kind is not None:
        return _make(interp, qualname, kind, arguments, node)
    package = qualname.partition(".")[0]
    if package == "torch":
        return _call_torch(interp, qualname, arguments, node)
    if libraries.gives_tensors(qualname) and (tensors := tensors_passed(arguments)):
        result = result_of(tensors, interp.origin(node))
        interp.event("call", node, qualname, None, arguments, result)
        return result
    if reads(qualname) and tensors_passed(arguments):
        return _read(interp, qualname, arguments, node)
    if package == "numpy":
        return _call_numpy(interp, qualname, arguments, node)
    if package == "math":
        return _call_math(interp, qualname, arguments, node)
    if package == "itertools":
        return _call_itertools(interp, qualname, arguments, node)
    if package == "time":
        return NUMBER
    if package == "random" and qualname not in ("random.Random", "random.SystemRandom"):  # those are objects
        return _call_random(interp, qualname, arguments, node)
    last = qualname.rpartition(".")[2]
    if last in _UNIQUE_NAMES and not qualname.endswith(".*"):
        return _HANDLERS[_UNIQUE_NAMES[last]](interp, qualname, arguments, node)
    return call_unknown(interp, qualname, arguments, node)


def first(arguments: Arguments, *names: str) -> Value | None:
    """The first argument, by position or by one of these names."""
    if arguments.positions:
        return arguments.positions[0].value
    for name in names:
        if name in arguments.keywords:
            return arguments.keywords[name].value
    return None


def option_default(value: Value) -> Value:
    """The default inside ``typer.Option(32)``; any other value is itself."""
    if type(value) is Made and value.kind == "parameter_default":
        passed = value.arguments.get("default", 0)
        return passed.value if passed is not None else UNKNOWN
    return value


# --- objects ----------------------------------------------------------------------------------------------------------


def _make(interp: Interpreter, qualname: str, kind: str, arguments: Arguments, node: ast.AST) -> Value:
    if kind == "parameter":
        tensors = tensors_passed(arguments)
        result = Tensor(roles_of(tensors) | {"param"}, device_of(tensors, "cpu"), interp.origin(node))
        interp.event("call", node, qualname, None, arguments, result)
        return result
    if kind == "device":
        return _make_device(interp, qualname, arguments, node)
    if kind == "wrapper":
        wrapper = interp.make(qualname, kind, arguments, node, first(arguments, "module", "model"), log=False)
        for wrapped in members(wrapper.inner):
            if isinstance(wrapped, (Instance, Made)):
                wrapper.device = wrapped.device
        if qualname.endswith("DataParallel") and "torch.nn.DataParallel" in qualname and wrapper.device == "cpu":
            wrapper.device = "conditional"
        interp.event("wrap", node, qualname, wrapper.inner, arguments, wrapper)
        return wrapper
    if kind == "argparse":
        return options.make_parser(interp, qualname, arguments, node)
    if kind == "progress":
        return _make_progress(interp, qualname, arguments, node)
    if kind == "debugmode":
        interp.event("set", node, qualname, None, arguments, first(arguments, "mode"))
        return interp.make(qualname, kind, arguments, node)
    if kind == "tokenizer" or kind == "transform" or kind == "config":
        return interp.make(qualname, kind, arguments, node)
    if kind == "loader" and qualname.endswith(".splits"):  # torchtext's: one iterator for each of the datasets
        made = interp.make(qualname, kind, arguments, node)
        return Sequence(None, interp.control, interp.origin(node), "tuple", made)
    inner: Value | None = None
    if qualname in LAYERED:
        inner = layers(interp, qualname, arguments, node)
    elif kind == "module" and arguments.positions:
        # TransformerEncoder(layer, ...): modules given to a module are part of it
        parts = [passed.value for passed in arguments.positions if _is_layer(passed.value)]
        inner = Sequence(parts, interp.control) if parts else None
    made = interp.make(qualname, kind, arguments, node, inner)
    if qualname == "torch.nn.ModuleDict" and len(arguments.positions) == 1:
        _name_layers(made, arguments.positions[0].value)
    if kind in ("module", "criterion"):
        made.device = _device_passed(interp, arguments)
        if made.qualname.startswith("transformers.") and "device_map" in arguments.keywords:
            made.device = "conditional"
    if qualname == "torch.set_grad_enabled":
        interp.event("call", node, qualname, None, arguments)
    return made


def _is_layer(value: Value) -> bool:
    return any(
        (type(member) is Made and member.kind in ("module", "criterion"))
        or (type(member) is Instance and calls.is_module(member))
        for member in members(value)
    )


def layers(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if qualname == "torch.nn.Sequential" and not arguments.star:
        passed = [each.value for each in arguments.positions]
        if len(passed) == 1 and isinstance(passed[0], Mapping):
            return Sequence([entry.value for entry in passed[0].entries.values()], interp.control)
        if len(passed) == 1 and isinstance(passed[0], (Made, Instance)) and not _is_layer(passed[0]):
            passed = [access.iterate(interp, passed[0], node)]
        return Sequence(passed, interp.control, interp.origin(node))
    values = [each.value for each in arguments.positions]
    if not values:
        return Sequence([], interp.control, interp.origin(node), "list")
    value = values[0]
    if type(value) is Sequence and not arguments.star:
        items = list(value.items) if value.items is not None else None
        return Sequence(items, interp.control, interp.origin(node), "list", value.element)
    if isinstance(value, Mapping):
        found = [entry.value for entry in value.entries.values()]
        return Sequence(found or None, interp.control, interp.origin(node), "list", value.element)
    element = join_all(values) if arguments.star else access.iterate(interp, value, node)
    return Sequence(None, interp.control, interp.origin(node), "list", element)


def _name_layers(made: Made, layers: Value) -> None:
    """A ``ModuleDict``'s layers are its attributes, too: ``self.transformer.wte``."""
    for each in members(layers):
        if isinstance(each, Mapping):
            for key, entry in each.entries.items():
                if isinstance(key, str):
                    made.attributes[key] = join(made.attributes.get(key), entry.value) or entry.value


def _device_passed(interp: Interpreter, arguments: Arguments) -> Device:
    passed = arguments.keywords.get("device")
    if passed is None or (type(passed.value) is Const and passed.value.value is None):
        return interp.default_device
    return device_meant(passed.value)


def _make_device(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Made:
    meant = first(arguments, "type", "device")
    made = interp.make(qualname, "device", arguments, node)
    place = device_meant(meant)
    made.device = place if made.device == "unknown" else join_devices(made.device, place)
    return made


def _make_progress(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    iterable = first(arguments, "iterable", "sequence")
    if qualname in ("tqdm.trange", "tqdm.tnrange"):
        iterable = Iterated(NUMBER, None, "range", interp.origin(node))
    if qualname in ("rich.progress.track", "alive_progress.alive_it"):
        return Iterated(access.iterate(interp, iterable, node), iterable, "track", interp.origin(node))
    if qualname == "tqdm.contrib.tenumerate":
        return builtin_calls.call_builtin(interp, "enumerate", arguments, node)
    if qualname.startswith("fastprogress.") and len(arguments.positions) > 1:
        iterable = arguments.positions[0].value
    return interp.make(qualname, "progress", arguments, node, iterable)


# --- training ---------------------------------------------------------------------------------------------------------


def call_loss_scaler(interp: Interpreter, scaler: Made, arguments: Arguments, node: ast.AST) -> Value:
    """timm's ``loss_scaler(loss, optimizer, clip_grad=...)``: backward, clipping and step in one call."""
    loss = arguments.get("loss", 0)
    optimizer = arguments.get("optimizer", 1)
    interp.event("backward", node, "lossscaler", loss.value if loss is not None else UNKNOWN, arguments)
    clip = arguments.get("clip_grad", 2)
    if clip is not None and not (type(clip.value) is Const and clip.value.value is None):
        interp.event("clip", node, "lossscaler", clip.value, arguments)
    interp.event("step", node, "lossscaler", optimizer.value if optimizer is not None else UNKNOWN, arguments)
    interp.event("update", node, "lossscaler", scaler, arguments)
    return NONE


def _clip(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = Tensor(frozenset({"grad"}), device_of(tensors_passed(arguments)), interp.origin(node))
    interp.event("clip", node, qualname, first(arguments, "parameters"), arguments, result)
    return result


def _backward(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("backward", node, qualname, first(arguments, "tensors"), arguments)
    return NONE


def _grad(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    outputs = first(arguments, "outputs")
    result = Tensor(frozenset({"grad"}), device_of(tensors_passed(arguments)), interp.origin(node))
    interp.event("autograd_grad", node, qualname, outputs, arguments, result)
    return Sequence(None, interp.control, interp.origin(node), "tuple", result)


def _compile(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    model = first(arguments, "model")
    whole = model.receiver if isinstance(model, Bound) and model.function.name == "forward" else model
    interp.event("compile", node, qualname, whole, arguments, model)
    return model or UNKNOWN


def _save(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if arguments.get("f", 1) is not None or arguments.star or arguments.open:  # without a file it raises
        interp.event("save", node, qualname, first(arguments, "obj"), arguments)
    return NONE


def _load(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = interp.opaque(qualname + "()", "call", node)
    interp.event("load", node, qualname, None, arguments, result)
    return result


def _scale_loss(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """apex's ``with amp.scale_loss(loss, optimizer) as scaled_loss``."""
    loss = first(arguments, "loss") or UNKNOWN
    interp.event("scale", node, qualname, None, arguments)
    return scaled(loss, interp, node)


def scaled(loss: Value, interp: Interpreter, node: ast.AST) -> Tensor:
    """A loss multiplied by a gradient scaler."""
    roles: frozenset[str] = frozenset({"loss"})
    place: Device = "unknown"
    for member in members(loss):
        if type(member) is Tensor:
            roles, place = roles | member.roles, member.device
    return Tensor(roles, place, interp.origin(node), scaled_from=loss)


def _apex_initialize(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    models = arguments.get("models", 0)
    optimizers = arguments.get("optimizers", 1)
    given = [passed.value for passed in (models, optimizers) if passed is not None]
    if len(given) == 1:
        return given[0]
    return Sequence(given, interp.control, interp.origin(node)) if given else UNKNOWN


def _deepspeed_initialize(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    model = arguments.get("model", 1)
    optimizer = arguments.get("optimizer", 2)
    data = arguments.get("training_data", 4)
    engine = interp.make(
        "deepspeed.DeepSpeedEngine", "engine", arguments, node, model.value if model is not None else None
    )
    engine.device = "conditional"  # DeepSpeed chooses: it runs on CPUs and other accelerators too
    loader: Value = NONE
    if data is not None:
        given = calls.positional(data.value)
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


def _checkpoint_wrapper(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """fairscale's ``self.mlp = checkpoint_wrapper(self.mlp)``: a part of a model, which goes on as the same module."""
    wrapper = interp.make(qualname, "wrapper", arguments, node, first(arguments, "module"), log=False)
    for wrapped in members(wrapper.inner):
        if isinstance(wrapped, (Instance, Made)):
            wrapper.device = wrapped.device
    return wrapper


def _deepspeed_arguments(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    parser = first(arguments, "parser") or UNKNOWN
    for member in members(parser):
        if type(member) is Made and type(member.inner) is Namespace:
            member.inner.open = True
    return parser


# --- torch ------------------------------------------------------------------------------------------------------------


def _call_torch(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    package, _, name = qualname.rpartition(".")
    if package == "torch.nn.functional":
        return _call_functional(interp, qualname, arguments, node)
    if package in ("torch", "torch.sparse", "torch.linalg", "torch.fft", "torch.special") or (
        package == "torch.cuda" and name.endswith("Tensor")
    ):
        return _call_tensor_function(interp, qualname, package, name, arguments, node)
    if package == "torch.nn.init":
        interp.event("call", node, qualname, None, arguments)
        return first(arguments, "tensor") or UNKNOWN
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


def _default_collate(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """What a loader makes of a list of items without a collate function: the structure of an item, its numbers stacked.

    Of an item that is not known nothing is known but that a batch holds tensors.
    """
    item = access.iterate(interp, first(arguments, "batch", "data"), node)
    result = _collated(interp, item, interp.origin(node))
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _collated(interp: Interpreter, item: Value, origin: Origin, depth: int = 3) -> Value:
    if type(item) is Sequence and item.items is not None and depth:
        items = [_collated(interp, each, origin, depth - 1) for each in item.items]
        return Sequence(items, interp.control, origin, "list")
    if type(item) is Sequence and item.element is not None and depth:
        return Sequence(None, interp.control, origin, "list", _collated(interp, item.element, origin, depth - 1))
    if isinstance(item, Mapping) and depth:
        entries = {
            key: Entry(_collated(interp, entry.value, origin, depth - 1), entry.must, entry.origin)
            for key, entry in item.entries.items()
        }
        element = _collated(interp, item.element, origin, depth - 1) if item.element is not None else None
        return Mapping(interp.control, origin, entries, item.open, element)
    if type(item) is Union and depth:
        return join_all(_collated(interp, each, origin, depth) for each in item.values) or UNKNOWN
    if type(item) is Const and isinstance(item.value, (str, bytes)):
        return Sequence(None, interp.control, origin, "list", item)
    return Tensor(frozenset({"data"}), device_of(list(tensors_in(item)), "cpu"), origin, pageable=True)


def _set_switch(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    value = first(arguments)
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
    if libraries.is_loss(qualname):
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
    if package == "torch" and gives_no_tensor(qualname) and not reads(qualname):
        interp.event("call", node, qualname, None, arguments)
        return UNKNOWN
    tensors = tensors_passed(arguments)
    origin = interp.origin(node)
    if tensors and reads(qualname):
        return _read(interp, qualname, arguments, node)
    result: Value
    if libraries.is_factory(f"torch.{name}") or package == "torch.cuda":
        result = _made_tensor(interp, package, name, arguments, tensors, node)
    elif tensors:
        result = in_precision(result_of(tensors, origin, name), qualname)
        result.scalar = result.scalar or (
            package == "torch"
            and name in libraries.REDUCTIONS
            and len(arguments.positions) == 1
            and not (arguments.star or arguments.open or arguments.keywords)
        )
        count = 2 if name in ("max", "min", "median", "nanmedian") and _reduces(arguments) else count_of(qualname)
        if count is not None:
            result = Sequence([result] * count or None, interp.control, origin, "tuple", None if count else result)
    elif package == "torch" and not arguments.positions and not arguments.keywords:
        return call_unknown(interp, qualname, arguments, node)
    else:
        unknown = interp.opaque(qualname + "()", "call", node)
        result = unknown if elements_passed(arguments) else Tensor(frozenset(), "unknown", origin)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _read(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``torch.equal(x, y)``: a function that waits for its tensors and gives a value on the host."""
    tensors = join_all(tensors_passed(arguments))
    interp.event("sync", node, qualname.rpartition(".")[2], tensors)
    return read_on_host(tensors, interp.origin(node))


def _reduces(arguments: Arguments) -> bool:
    """Whether ``torch.max(x, 1)`` gives values and indices."""
    dim = arguments.get("dim", 1)
    return dim is not None and not any(type(member) is Tensor for member in members(dim.value))


def _made_tensor(  # noqa: PLR0913
    interp: Interpreter, package: str, name: str, arguments: Arguments, tensors: list[Tensor], node: ast.AST
) -> Tensor:
    if package == "torch.cuda":
        place: Device = "cuda"
    elif "device" in arguments.keywords:
        place = _device_passed(interp, arguments)
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


def call_unknown(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """A library's function of which nothing is known but its name."""
    if qualname in libraries.TRACKERS:
        interp.event("show", node, qualname, None, arguments)
        _format_arguments(interp, arguments, node)
        return NONE
    tensors = tensors_passed(arguments)
    is_class = qualname.rpartition(".")[2][:1].isupper()
    result: Value
    if tensors and not is_class:
        result = unknown_of(tensors, interp.origin(node))
        result.foreign = not qualname.startswith(libraries.LIKE_TENSORS)
    elif is_class:
        result = interp.opaque(qualname + "()", "call", node)
    elif hosts := hosts_passed(arguments):
        result = joined_hosts(hosts)
    else:
        result = interp.opaque(qualname + "()", "call", node)
    calls.hand(interp, arguments, node, objects=qualname.partition(".")[0] not in _KEEPING)
    interp.event("call", node, qualname, None, arguments, result)
    _run_callbacks(interp, qualname, arguments, node)
    return result


_KEEPING = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages that call no methods of an object that they are given, but those that every object has."""


def _format_arguments(interp: Interpreter, arguments: Arguments, node: ast.AST) -> None:
    """Tensors that are shown are read on the host."""
    for passed in (*arguments.positions, *arguments.keywords.values()):
        interp.show_tensors(passed.value, passed.node or node, "print")


_RUNNERS = libraries.words("run launch submit notebook_launcher spawn wrap make main apply map starmap")


def _run_callbacks(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> None:
    """A function that is given to something that runs functions is run."""
    if qualname.rpartition(".")[2] in _RUNNERS:
        for passed in arguments.positions:
            for member in members(passed.value):
                if isinstance(member, (Function, Bound)):
                    options.invoke_from_command_line(interp, member, node)


# --- numpy, math, itertools, random -----------------------------------------------------------------------------------


def _call_numpy(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    for passed in arguments.positions:
        if any(True for _ in tensors_in(passed.value, 2)):
            interp.event("sync", passed.node or node, "numpy", passed.value)
            host = read_on_host(passed.value, interp.origin(passed.node or node))
            interp.event("call", node, qualname, None, arguments, host)
            return host
    product = _product_of(interp, arguments, node) if qualname == "numpy.prod" else None
    if product is not None:
        return product
    hosts = hosts_passed(arguments)
    result: Value = joined_hosts(hosts) if hosts else interp.opaque(qualname + "()", "call", node)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _product_of(interp: Interpreter, arguments: Arguments, node: ast.AST) -> Value | None:
    """``prod`` of a tuple of known numbers, as widths are computed from the shape of a picture."""
    if len(arguments.positions) != 1 or arguments.keywords or arguments.star:
        return None
    value = arguments.positions[0].value
    items = value.items if type(value) is Sequence else None
    if not items or not all(isinstance(each, (Const, Option)) for each in items):
        return None
    result: Value = Const(1, interp.origin(node))
    for item in items:
        result = interp.operate(result, item, ast.Mult(), node)
    return result


def _call_math(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    product = _product_of(interp, arguments, node) if qualname == "math.prod" else None
    if product is not None:
        return product
    for passed in arguments.positions:
        if any(type(member) is Tensor for member in members(passed.value)):
            interp.event("sync", passed.node or node, "float", passed.value)
            return read_on_host(passed.value, interp.origin(passed.node or node))
    hosts = hosts_passed(arguments)
    return joined_hosts(hosts) if hosts else NUMBER


def _call_itertools(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    name = qualname.rpartition(".")[2]
    origin = interp.origin(node)
    values = [passed.value for passed in arguments.positions]
    if name == "count":
        return Iterated(NUMBER, None, "count", origin)
    if not values:
        return UNKNOWN
    if name in ("product", "zip_longest", "combinations", "permutations"):
        elements: list[Value] = [access.iterate(interp, value, node) for value in values]
        return Iterated(Sequence(elements, interp.control), join_all(values), name, origin)
    if name == "chain":
        return Iterated(
            join_all(access.iterate(interp, value, node) for value in values) or UNKNOWN, join_all(values), name, origin
        )
    if name == "from_iterable":
        element = access.iterate(interp, access.iterate(interp, values[0], node), node)
        return Iterated(element, values[0], "chain", origin)
    if name == "starmap" and len(values) > 1:
        return Iterated(UNKNOWN, values[1], name, origin)
    return Iterated(access.iterate(interp, values[0], node), values[0], name, origin)


def _call_random(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    value = first(arguments)
    if value is not None and qualname in ("random.choice", "random.sample", "random.choices"):
        element = access.iterate(interp, value, node)
        return element if qualname == "random.choice" else Sequence(None, interp.control, None, "list", element)
    return NONE if qualname == "random.shuffle" else NUMBER


# --- the rest ---------------------------------------------------------------------------------------------------------


def _pass_through(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    cast = arguments.get("val", 1) if qualname == "typing.cast" else None
    value = cast.value if cast is not None else first(arguments) or UNKNOWN
    interp.event("call", node, qualname, None, arguments, value)
    if qualname in ("copy.copy", "copy.deepcopy") and isinstance(value, Mapping):
        copied = Mapping(interp.control, value.origin)
        access.merge(interp, copied, value, strong=True)
        return copied
    if qualname == "copy.deepcopy":
        return join_all(_copied(member, {}) for member in members(value)) or UNKNOWN
    if qualname == "torch.autograd.Variable" and not any(True for _ in tensors_in(value)):
        return Tensor(frozenset({"made"}), "unknown", interp.origin(node))
    return value


def _copied(value: Value, done: dict[int, Value]) -> Value:
    """A model of its own with the same layers (a teacher, an average of weights); any other value is itself."""
    if id(value) in done:
        return done[id(value)]
    if type(value) is Sequence and any(_is_layer(each) for each in value.items or ()):
        items = [_copied(each, done) for each in value.items or ()]
        return Sequence(items, value.made_at, value.origin, value.kind, value.element)
    if type(value) is Tensor and "param" in value.roles:
        weight = done[id(value)] = copy.copy(value)
        return weight
    if not isinstance(value, (Instance, Made)) or not _is_layer(value):
        return value
    made = done[id(value)] = copy.copy(value)
    made.children = {}
    made.attributes = {name: _copied(each, done) for name, each in value.attributes.items()}
    if type(made) is Made and made.inner is not None:
        made.inner = _copied(made.inner, done)
    return made


def _runtime(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    return Computed(interp.origin(node), qualname)


def _current_accelerator(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return access.device(interp, "conditional", node)


def _partial(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if not arguments.positions:
        return UNKNOWN
    rest = Arguments(arguments.positions[1:], arguments.keywords, arguments.open, arguments.star, arguments.rest)
    return Partial(arguments.positions[0].value, rest)


def _namespace(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    namespace = Namespace(interp.control, {}, arguments.open)
    for value in [passed.value for passed in arguments.positions] + (
        [arguments.rest] if arguments.rest is not None else []
    ):
        for member in members(value):
            mapping = access.as_mapping(member)
            if mapping is not None:
                namespace.open = namespace.open or mapping.open
                for key, entry in mapping.entries.items():
                    if isinstance(key, str):
                        namespace.attributes[key] = entry.value
    for name, passed in arguments.keywords.items():
        old = namespace.attributes.get(name)
        namespace.attributes[name] = passed.value if passed.must else join(old, passed.value) or UNKNOWN
    return namespace


def _spawn(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``mp.spawn(worker, args=(a, b))``: the worker gets its rank first."""
    interp.event("call", node, qualname, None, arguments)
    function = first(arguments, "fn", "function")
    passed = arguments.get("args", 1)
    given = Arguments()
    if "spawn" in qualname or "start_processes" in qualname:
        given.positions.append(Passed(Computed(interp.origin(node), "rank")))
    _add_args(given, passed)
    if function is not None:
        calls.call(interp, function, given, node)
    return interp.opaque(qualname + "()", "call", node)


def _process(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``Process(target=worker, args=(a, b))``."""
    interp.event("call", node, qualname, None, arguments)
    function = arguments.get("target")
    given = Arguments()
    _add_args(given, arguments.get("args"))
    keywords = arguments.get("kwargs")
    if keywords is not None and isinstance(keywords.value, Mapping):
        for key, entry in keywords.value.entries.items():
            if isinstance(key, str):
                given.keywords[key] = Passed(entry.value, entry.must)
    if function is not None:
        calls.call(interp, function.value, given, node)
    return interp.opaque(qualname + "()", "call", node)


def _add_args(given: Arguments, passed: Passed | None) -> None:
    if passed is None:
        return
    if type(passed.value) is Sequence and passed.value.items is not None:
        given.positions.extend(Passed(item) for item in passed.value.items)
    else:
        given.star = True


def _dead_end(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return NEVER


def _structured_cli(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return options.structured_cli(interp, qualname, arguments, node)


def _absl_flag(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return options.absl_flag(interp, qualname, arguments, node)


def _random_split(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    made = interp.make(qualname, "dataset", arguments, node, first(arguments, "dataset"))
    return Sequence(None, interp.control, interp.origin(node), "list", made)


def _typer_default(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return interp.make(qualname, "parameter_default", arguments, node, log=False)


def _environment(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    named, given = arguments.get("key", 0), arguments.get("default", 1)
    default = given.value if given is not None else UNKNOWN
    if type(default) is Const and isinstance(default.value, str) and default.value.isidentifier():
        name = named.value.value if named is not None and type(named.value) is Const else "the environment"
        return Option(str(name), default, default.origin, "environment")
    return Computed(interp.origin(node), qualname)


def _nullcontext(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return interp.make(qualname, "nullcontext", arguments, node, log=False)


def _class_parser(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return interp.make(qualname, "classparser", arguments, node)


def _trainer_from_argparse(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    told = Arguments([], {name: each for name, each in arguments.keywords.items() if name != "args"})
    return interp.make(qualname.rpartition(".")[0], "trainer", told, node)


def _ordered_dict(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = builtin_calls.call_builtin(interp, "dict", arguments, node)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _default_dict(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    made = arguments.get("default_factory", 0)
    passed = Arguments(arguments.positions[1:], arguments.keywords, arguments.open, arguments.star, arguments.rest)
    result = _ordered_dict(interp, qualname, passed, node)
    if isinstance(result, Mapping):
        result.open = True
        result.factory = made.value if made is not None else None
    return result


_HANDLERS: dict[str, Handler] = {
    "collections.defaultdict": _default_dict,
    "collections.OrderedDict": _ordered_dict,
    "torch.autograd.backward": _backward,
    "torch.autograd.grad": _grad,
    "torch.compile": _compile,
    "torch.save": _save,
    "torch.load": _load,
    "accelerate.utils.save": _save,
    "apex.amp.scale_loss": _scale_loss,
    "apex.amp.initialize": _apex_initialize,
    "deepspeed.initialize": _deepspeed_initialize,
    "deepspeed.add_config_arguments": _deepspeed_arguments,
    "fairscale.nn.checkpoint_wrapper": _checkpoint_wrapper,
    "torch.utils.data.random_split": _random_split,
    **dict.fromkeys(libraries.COLLATES, _default_collate),
    "torch.accelerator.current_accelerator": _current_accelerator,
    "functools.partial": _partial,
    "importlib.import_module": imports.import_by_name,
    "contextlib.nullcontext": _nullcontext,
    "contextlib.suppress": _nullcontext,
    "os.environ.get": _environment,
    "os.getenv": _environment,
    "typer.Option": _typer_default,
    "typer.Argument": _typer_default,
    **dict.fromkeys(libraries.SWITCHES, _set_switch),
    **dict.fromkeys(libraries.CLIPS, _clip),
    **dict.fromkeys(libraries.RUNTIME, _runtime),
    **dict.fromkeys(libraries.PASS_THROUGH, _pass_through),
    **dict.fromkeys(libraries.NAMESPACES, _namespace),
    **dict.fromkeys(libraries.LAUNCHERS, _spawn),
    **dict.fromkeys(libraries.PROCESSES, _process),
    **dict.fromkeys(libraries.DEAD_ENDS, _dead_end),
    **dict.fromkeys(libraries.STRUCTURED_CLI, _structured_cli),
    **dict.fromkeys(libraries.CLASS_PARSERS, _class_parser),
    **dict.fromkeys(libraries.FROM_ARGPARSE, _trainer_from_argparse),
    **{
        f"absl.flags.DEFINE_{name}": _absl_flag
        for name in libraries.words(
            """
        string integer float bool boolean enum list multi_string multi_integer multi_float multi_enum
        """
        )
    },
}

_UNIQUE_NAMES = {"EasyDict": "easydict.EasyDict", "SimpleNamespace": "types.SimpleNamespace", "DotMap": "dotmap.DotMap"}
"""Names that mean the same in whatever library they stand."""
