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
    join,
    join_all,
    join_devices,
    members,
)
from turbofix.interpreter.attributes import device
from turbofix.interpreter.brains.command_line import absl_flag, make_parser, structured_cli
from turbofix.interpreter.brains.config_files import HANDLERS
from turbofix.interpreter.builtin_calls import call_builtin
from turbofix.interpreter.containers import as_mapping, merge
from turbofix.interpreter.definitions import is_layer
from turbofix.interpreter.imports import import_by_name
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.models import LAYERED, layers_given, name_layers
from turbofix.interpreter.state import Handler, Interpreter
from turbofix.interpreter.torch_calls import (
    apex_initialize,
    autograd_backward,
    autograd_grad,
    call_torch,
    checkpoint_wrapper,
    clip,
    compile_model,
    deepspeed_arguments,
    deepspeed_initialize,
    default_collate,
    device_passed,
    load_checkpoint,
    save_checkpoint,
    scale_loss,
    set_switch,
)
from turbofix.interpreter.unknowns import call_unknown
from turbofix.library import tables as libraries


def call_external(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """What calling a library's function or class gives."""
    if qualname.startswith("builtins."):
        return call_builtin(interp, qualname[9:], arguments, node)
    handler = _HANDLERS.get(qualname) or HANDLERS.get(qualname)
    if handler is not None:
        return handler(interp, qualname, arguments, node)
    kind = libraries.kind_of(qualname)
    if kind is not None:
        return make_object(interp, qualname, kind, arguments, node)
    package = qualname.partition(".")[0]
    if package == "torch":
        return call_torch(interp, qualname, arguments, node)
    if libraries.gives_tensors(qualname) and (tensors := tensors_passed(arguments)):
        result = result_of(tensors, interp.origin(node))
        interp.event("call", node, qualname, None, arguments, result)
        return result
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
        elements: list[Value] = [iterate(interp, value, node) for value in values]
        return Iterated(Sequence(elements, interp.control), join_all(values), name, origin)
    if name == "chain":
        return Iterated(
            join_all(iterate(interp, value, node) for value in values) or UNKNOWN, join_all(values), name, origin
        )
    if name == "from_iterable":
        element = iterate(interp, iterate(interp, values[0], node), node)
        return Iterated(element, values[0], "chain", origin)
    if name == "starmap" and len(values) > 1:
        return Iterated(UNKNOWN, values[1], name, origin)
    return Iterated(iterate(interp, values[0], node), values[0], name, origin)


def _call_random(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, qualname, None, arguments)
    value = arguments.first()
    if value is not None and qualname in ("random.choice", "random.sample", "random.choices"):
        element = iterate(interp, value, node)
        return element if qualname == "random.choice" else Sequence(None, interp.control, None, "list", element)
    return NONE if qualname == "random.shuffle" else NUMBER


def _pass_through(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    cast = arguments.get("val", 1) if qualname == "typing.cast" else None
    value = cast.value if cast is not None else arguments.first() or UNKNOWN
    interp.event("call", node, qualname, None, arguments, value)
    if qualname in ("copy.copy", "copy.deepcopy") and isinstance(value, Mapping):
        copied = Mapping(interp.control, value.origin)
        merge(interp, copied, value, strong=True)
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
    if type(value) is Sequence and any(is_layer(each) for each in value.items or ()):
        items = [_copied(each, done) for each in value.items or ()]
        return Sequence(items, value.made_at, value.origin, value.kind, value.element)
    if type(value) is Tensor and "param" in value.roles:
        weight = done[id(value)] = copy.copy(value)
        return weight
    if not isinstance(value, (Instance, Made)) or not is_layer(value):
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
    return device(interp, "conditional", node)


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
            mapping = as_mapping(member)
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
    function = arguments.first("fn", "function")
    passed = arguments.get("args", 1)
    given = Arguments()
    if "spawn" in qualname or "start_processes" in qualname:
        given.positions.append(Passed(Computed(interp.origin(node), "rank")))
    _add_args(given, passed)
    if function is not None:
        interp.call(function, given, node)
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
        interp.call(function.value, given, node)
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
    return structured_cli(interp, qualname, arguments, node)


def _absl_flag(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    return absl_flag(interp, qualname, arguments, node)


def _random_split(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    made = interp.make(qualname, "dataset", arguments, node, arguments.first("dataset"))
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
    result = call_builtin(interp, "dict", arguments, node)
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
    "torch.autograd.backward": autograd_backward,
    "torch.autograd.grad": autograd_grad,
    "torch.compile": compile_model,
    "torch.save": save_checkpoint,
    "torch.load": load_checkpoint,
    "accelerate.utils.save": save_checkpoint,
    "apex.amp.scale_loss": scale_loss,
    "apex.amp.initialize": apex_initialize,
    "deepspeed.initialize": deepspeed_initialize,
    "deepspeed.add_config_arguments": deepspeed_arguments,
    "fairscale.nn.checkpoint_wrapper": checkpoint_wrapper,
    "torch.utils.data.random_split": _random_split,
    **dict.fromkeys(libraries.COLLATES, default_collate),
    "torch.accelerator.current_accelerator": _current_accelerator,
    "functools.partial": _partial,
    "importlib.import_module": import_by_name,
    "contextlib.nullcontext": _nullcontext,
    "contextlib.suppress": _nullcontext,
    "os.environ.get": _environment,
    "os.getenv": _environment,
    "typer.Option": _typer_default,
    "typer.Argument": _typer_default,
    **dict.fromkeys(libraries.SWITCHES, set_switch),
    **dict.fromkeys(libraries.CLIPS, clip),
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
