"""What calls of libraries do: which objects they make, what they return, which acts they log."""

from __future__ import annotations

import ast
import copy

from turbofix.domain.tensors import (
    device_meant,
    device_of,
    hosts_passed,
    joined_hosts,
    read_on_host,
    result_of,
    roles_of,
    tensors_in,
    tensors_passed,
)
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    NEVER,
    NONE,
    NUMBER,
    UNKNOWN,
    Computed,
    Const,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Option,
    Partial,
    Sequence,
    Tensor,
    Value,
    join_all,
    join_devices,
    members,
)
from turbofix.interpreter.attributes import device
from turbofix.interpreter.brains.command_line import absl_flag, make_parser, structured_cli
from turbofix.interpreter.brains.config_files import HANDLERS as OF_CONFIG_FILES
from turbofix.interpreter.builtin_calls import call_builtin
from turbofix.interpreter.containers import merge
from turbofix.interpreter.definitions import is_layer
from turbofix.interpreter.elements import iterate
from turbofix.interpreter.imports import import_by_name
from turbofix.interpreter.models import LAYERED, layers_given, name_layers
from turbofix.interpreter.state import Handler, Interpreter
from turbofix.interpreter.torch_calls import (
    apex_initialize,
    autograd_backward,
    autograd_grad,
    call_torch,
    clip,
    compile_model,
    deepspeed_initialize,
    device_passed,
    load_checkpoint,
    read_by,
    save_checkpoint,
    scale_loss,
    set_switch,
)
from turbofix.interpreter.unknowns import call_unknown
from turbofix.library import tables as libraries
from turbofix.library.rows import reads
from turbofix.library.tables import NAMES


def call_external(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a library's function or class gives."""
    package, _, name = qualname.partition(".")
    if package == "builtins":
        return call_builtin(interp, name, arguments, node)
    handler = _HANDLERS.get(qualname)
    if handler is not None:
        return handler(interp, qualname, arguments, node)
    kind = libraries.kind_of(qualname)
    if kind is not None:
        return make_object(interp, qualname, kind, arguments, node)
    if package != "torch" and libraries.gives_tensors(qualname) and (tensors := tensors_passed(arguments)):
        result = result_of(tensors, interp.origin(node))
        interp.event("call", node, qualname, None, arguments, result)
        return result
    if reads(qualname) and tensors_passed(arguments):
        return read_by(interp, qualname, arguments, node)
    return _PACKAGES.get(package, call_unknown)(interp, qualname, arguments, node)


# --- objects that are made --------------------------------------------------------------------------------------------


def make_object(interp: Interpreter, qualname: str, kind: str, arguments: Arguments, node: ast.AST) -> Value:
    """What a call makes of which the kind is known."""
    maker = _MAKERS.get(kind)
    if maker is not None:
        return maker(interp, qualname, arguments, node)
    inner: Value | None = None
    if qualname in LAYERED:
        inner = layers_given(interp, qualname, arguments, node)
    elif kind == "module" and arguments.positions:
        # TransformerEncoder(layer, ...): modules given to a module are part of it
        parts = [passed.value for passed in arguments.positions if is_layer(passed.value)]
        inner = Sequence(parts, interp.control) if parts else None
    made = interp.make(qualname, kind, arguments, node, inner, log=kind not in _UNLOGGED)
    if qualname == "torch.nn.ModuleDict" and len(arguments.positions) == 1:
        name_layers(made, arguments.positions[0].value)
    if kind in ("module", "criterion"):
        by_map = qualname.startswith("transformers.") and "device_map" in arguments.keywords
        made.device = "conditional" if by_map else device_passed(interp, arguments)
    elif kind == "debugmode":
        interp.event("set", node, qualname, None, arguments, arguments.first("mode"))
    elif qualname == "torch.set_grad_enabled":
        interp.event("call", node, qualname, None, arguments)
    elif qualname.endswith(".splits"):  # torchtext's: one iterator for each of the datasets
        return Sequence(None, interp.control, interp.origin(node), "tuple", made)
    return made


_UNLOGGED = frozenset({"nullcontext", "parameter_default"})


def _make_parameter(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    tensors = tensors_passed(arguments)
    result = Tensor(roles_of(tensors) | {"param"}, device_of(tensors, "cpu"), interp.origin(node))
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _make_wrapper(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    wrapper = interp.make(qualname, "wrapper", arguments, node, arguments.first("module", "model"), log=False)
    for wrapped in members(wrapper.inner):
        if isinstance(wrapped, (Instance, Made)):
            wrapper.device = wrapped.device
    if qualname == "torch.nn.DataParallel" and wrapper.device == "cpu":
        wrapper.device = "conditional"
    if qualname != "fairscale.nn.checkpoint_wrapper":  # that is around a part of a model
        interp.event("wrap", node, qualname, wrapper.inner, arguments, wrapper)
    return wrapper


def _make_device(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    made, place = interp.make(qualname, "device", arguments, node), device_meant(arguments.first("type", "device"))
    made.device = place if made.device == "unknown" else join_devices(made.device, place)
    return made


def _make_progress(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    iterable = arguments.first("iterable", "sequence")
    if qualname in ("tqdm.trange", "tqdm.tnrange"):
        iterable = Iterated(NUMBER, None, "range", interp.origin(node))
    return interp.make(qualname, "progress", arguments, node, iterable)


_MAKERS: dict[str, Handler] = {
    "parameter": _make_parameter,
    "wrapper": _make_wrapper,
    "device": _make_device,
    "progress": _make_progress,
    "argparse": make_parser,
}


# --- numpy, math, itertools, random -----------------------------------------------------------------------------------


def _call_numpy(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if qualname == "numpy.prod" and (product := _product_of(interp, arguments, node)) is not None:
        return product
    host = _read(interp, "numpy", arguments, node)
    result = host if host is not None else interp.opaque(qualname + "()", "call", node)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _call_math(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if qualname == "math.prod" and (product := _product_of(interp, arguments, node)) is not None:
        return product
    return _read(interp, "float", arguments, node) or NUMBER


def _read(interp: Interpreter, how: str, arguments: Arguments, node: ast.AST) -> Value | None:
    """What a function of the host reads of tensors that it is given, or is given that was read before."""
    for passed in arguments.positions:
        if any(True for _ in tensors_in(passed.value, 2)):
            interp.event("sync", passed.node or node, how, passed.value)
            return read_on_host(passed.value, interp.origin(passed.node or node))
    hosts = hosts_passed(arguments)
    return joined_hosts(hosts) if hosts else None


def _product_of(interp: Interpreter, arguments: Arguments, node: ast.AST) -> Value | None:
    """``prod`` of a tuple of known numbers, as widths are computed from the shape of a picture."""
    value = arguments.at(0) if len(arguments.positions) == 1 and not arguments.keywords else None
    items = value.items if type(value) is Sequence else None
    if not items or not all(isinstance(each, (Const, Option)) for each in items):
        return None
    result: Value = Const(1, interp.origin(node))
    for item in items:
        result = interp.operate(result, item, ast.Mult(), node)
    return result


def _call_itertools(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    name = qualname.rpartition(".")[2]
    values = [passed.value for passed in arguments.positions]
    elements: list[Value] = [iterate(interp, value, node) for value in values]
    element = elements[0] if elements else NUMBER
    if name in ("product", "zip_longest", "combinations", "permutations"):
        element = Sequence(elements, interp.control)
    elif name == "chain":
        element = join_all(elements) or UNKNOWN
    several = name in ("product", "zip_longest", "combinations", "permutations", "chain")
    return Iterated(element, join_all(values if several else values[:1]), name, interp.origin(node))


def _call_random(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    if qualname in ("random.Random", "random.SystemRandom"):
        return call_unknown(interp, qualname, arguments, node)
    interp.event("call", node, qualname, None, arguments)
    value = arguments.first()
    if value is not None and qualname in ("random.choice", "random.sample", "random.choices"):
        element = iterate(interp, value, node)
        return element if qualname == "random.choice" else Sequence(None, interp.control, None, "list", element)
    return NONE if qualname == "random.shuffle" else NUMBER


def _call_time(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return NUMBER


_PACKAGES: dict[str, Handler] = {
    "torch": call_torch,
    "numpy": _call_numpy,
    "math": _call_math,
    "itertools": _call_itertools,
    "random": _call_random,
    "time": _call_time,
}


# --- what is like another value ---------------------------------------------------------------------------------------


def _pass_through(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    value = (arguments.value("val", 1) if qualname == "typing.cast" else arguments.first()) or UNKNOWN
    interp.event("call", node, qualname, None, arguments, value)
    if qualname in ("copy.copy", "copy.deepcopy") and isinstance(value, Mapping):
        copied = Mapping(interp.control, value.origin)
        merge(interp, copied, value, strong=True)
        return copied
    if qualname == "copy.deepcopy":
        return join_all(_copied(member) for member in members(value)) or UNKNOWN
    if qualname == "torch.autograd.Variable" and not any(True for _ in tensors_in(value)):
        return Tensor(frozenset({"made"}), "unknown", interp.origin(node))
    return value


def _copied(value: Value) -> Value:
    """A model of its own with the same layers (a teacher, an average of weights); any other value is itself."""
    if type(value) is Sequence and any(is_layer(each) for each in value.items or ()):
        items = [_copied(each) for each in value.items or ()]
        return Sequence(items, value.made_at, value.origin, value.kind, value.element)
    if type(value) is Tensor and "param" in value.roles:
        return copy.copy(value)
    if not isinstance(value, (Instance, Made)) or not is_layer(value):
        return value
    made = copy.copy(value)
    made.children = {}
    made.attributes = {name: _copied(each) for name, each in value.attributes.items()}
    if type(made) is Made and made.inner is not None:
        made.inner = _copied(made.inner)
    return made


def _runtime(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    return Computed(interp.origin(node), qualname)


def _environment(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    named, default = arguments.value("key", 0), arguments.value("default", 1)
    if type(default) is Const and isinstance(default.value, str) and default.value.isidentifier():
        interp.event("call", node, qualname, None, arguments)
        name = named.value if type(named) is Const else "the environment"
        return Option(str(name), default, default.origin, "environment")
    return _runtime(interp, qualname, arguments, node)


def _current_accelerator(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return device(interp, "conditional", node)


def _partial(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return Partial(arguments.first() or UNKNOWN, arguments.rest_of())


def _namespace(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    held = _dict(interp, arguments, node)
    attributes = {key: entry.value for key, entry in held.entries.items() if isinstance(key, str)}
    return Namespace(interp.control, attributes, held.open)


def _dict(interp: Interpreter, arguments: Arguments, node: ast.AST) -> Mapping:
    made = call_builtin(interp, "dict", arguments, node)
    assert isinstance(made, Mapping)
    return made


def _ordered_dict(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = _dict(interp, arguments, node)
    interp.event("call", node, qualname, None, arguments, result)
    return result


def _default_dict(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    result = _dict(interp, arguments.rest_of(), node)
    result.open, result.factory = True, arguments.first("default_factory")
    interp.event("call", node, qualname, None, arguments.rest_of(), result)
    return result


# --- what is called by a library --------------------------------------------------------------------------------------


def _start(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``Process(target=worker, args=(a, b))``; ``mp.spawn(worker, args=(a, b))``, which gives the worker its rank."""
    interp.event("call", node, qualname, None, arguments)
    given = Arguments()
    if "spawn" in qualname or "start_processes" in qualname:
        given.positions.append(Passed(Computed(interp.origin(node), "rank")))
    is_process = qualname in NAMES["processes"]
    passed = arguments.value("args", None if is_process else 1)
    if type(passed) is Sequence and passed.items is not None:
        given.positions.extend(Passed(item) for item in passed.items)
    else:
        given.star = passed is not None
    function = arguments.value("target") if is_process else arguments.first("fn", "function")
    if function is not None:
        interp.call(function, given, node)
    return interp.opaque(qualname + "()", "call", node)


def _dead_end(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return NEVER


def _random_split(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    made = interp.make(qualname, "dataset", arguments, node, arguments.first("dataset"))
    return Sequence(None, interp.control, interp.origin(node), "list", made)


def _trainer_from_argparse(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    told = Arguments([], {name: each for name, each in arguments.keywords.items() if name != "args"})
    return interp.make(qualname.rpartition(".")[0], "trainer", told, node)


_HANDLERS: dict[str, Handler] = {
    "collections.defaultdict": _default_dict,
    "collections.OrderedDict": _ordered_dict,
    "torch.autograd.backward": autograd_backward,
    "torch.autograd.grad": autograd_grad,
    "torch.compile": compile_model,
    "torch.save": save_checkpoint,
    "torch.load": load_checkpoint,
    "accelerate.utils.save": save_checkpoint,
    "apex.amp.scale_loss": scale_loss,
    "apex.amp.initialize": apex_initialize,
    "deepspeed.initialize": deepspeed_initialize,
    "torch.utils.data.random_split": _random_split,
    "torch.accelerator.current_accelerator": _current_accelerator,
    "functools.partial": _partial,
    "importlib.import_module": import_by_name,
    "os.environ.get": _environment,
    "os.getenv": _environment,
    **dict.fromkeys(libraries.SWITCHES, set_switch),
    **dict.fromkeys(libraries.CLIPS, clip),
    **dict.fromkeys(NAMES["runtime"], _runtime),
    **dict.fromkeys(NAMES["pass_through"], _pass_through),
    **dict.fromkeys(NAMES["namespaces"], _namespace),
    **dict.fromkeys(NAMES["launchers"] | NAMES["processes"], _start),
    **dict.fromkeys(libraries.DEAD_ENDS, _dead_end),
    **dict.fromkeys(NAMES["structured_cli"], structured_cli),
    **dict.fromkeys(NAMES["from_argparse"], _trainer_from_argparse),
    **dict.fromkeys(NAMES["absl_flags"], absl_flag),
    **OF_CONFIG_FILES,
}
