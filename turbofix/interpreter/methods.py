"""Methods of values that are not the project's own: tensors, what libraries made, containers, unknowns.

An unknown never swallows an act: ``x.backward()``, ``x.step()``, ``x.zero_grad()``, ``x.to()``, ``x.item()`` are logged
whatever ``x`` is.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from turbofix.domain.tensors import (
    cast,
    detached,
    device_meant,
    device_of,
    in_precision,
    is_dtype,
    is_layout,
    moved,
    read_on_host,
    result_of,
    surest,
    tensors_in,
    tensors_passed,
    unknown_of,
    with_half,
)
from turbofix.domain.trace import Arguments, EventKind
from turbofix.domain.values import (
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Class,
    Const,
    Device,
    Entry,
    External,
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
    Unknown,
    Value,
    is_hashable,
    join,
    join_all,
    join_devices,
    members,
)
from turbofix.interpreter import access, builtin_calls, calls, externals, imports
from turbofix.interpreter.brains import command_line as options
from turbofix.interpreter.brains import config_files
from turbofix.library import tables as libraries
from turbofix.library.rows import count_of, gives_no_tensor, reads, row
from turbofix.source.names import parameters

if TYPE_CHECKING:
    from turbofix.interpreter.walk import Interpreter

_ACTS: dict[str, EventKind] = {
    "step": "step",
    "zero_grad": "zero_grad",
    "update": "update",
    "unscale_": "unscale",
    "load_state_dict": "load",
}
_READS = frozenset({"item", "tolist", "numpy"})
"""Methods that read a tensor, whatever they are called on."""
_NUMBERS = frozenset({"number"})
_CASTS = frozenset({"half", "float", "double", "bfloat16"})
_SAME_TENSOR = libraries.words(
    """
    clone contiguous view reshape squeeze unsqueeze requires_grad_ type_as pin_memory flatten
    """
)
_LIKE_ANOTHER = frozenset({"type_as", "view_as", "expand_as", "reshape_as"})
_OF_MODULES = libraries.words("apply requires_grad_ share_memory to_empty gradient_checkpointing_enable fuse half_")
_GATHERING = libraries.words("unwrap_model gather reduce gather_for_metrics pad_across_processes all_gather all_reduce")
_AROUND = libraries.words("accumulate autocast no_sync no_backward_sync main_process_first local_main_process_first")
_DATASET_COPIES = libraries.words(
    """
    map with_format shuffle select filter remove_columns rename_column set_format train_test_split batch
    select_columns rename_columns sort shard cast_column add_column flatten with_transform set_transform take skip
    """
)
_OF_TEXT = libraries.words(
    """
    split rsplit partition rpartition replace removesuffix removeprefix lower upper strip lstrip rstrip title capitalize
    startswith endswith find rfind index rindex count
    """
)
_OF_DICTS = frozenset({"get", "items", "values", "keys", "update", "pop", "setdefault", "copy"})
_MODEL_PARTS = frozenset({"modules", "children", "named_modules", "named_children"})


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
        if receiver.how == config_files.HOW and type(receiver.default) is Const:
            return of_option(receiver, call_method(interp, receiver.default, name, arguments, node))
        return (
            receiver
            if name in ("lower", "upper", "strip", "copy")
            else _call_anything(interp, receiver, name, arguments, node)
        )
    if type(receiver) is ModuleValue and name == "update":
        interp.event("destroy", node, "globals().update", None, arguments)
        builtin_calls.destroy(interp)
        return NONE
    if type(receiver) is ModuleValue:  # globals().get(name)
        return calls.named_member(interp, receiver, _argument(arguments), node)
    if type(receiver) is Class and receiver.externals() and _makes(receiver, name):
        init = receiver.find("__init__")
        taken = [each.arg for each in parameters(init.node)] if type(init) is Function else []
        kept = {each: passed for each, passed in arguments.keywords.items() if each in taken}
        return calls.construct(interp, receiver, Arguments([], kept, open=True), node)
    return _call_anything(interp, receiver, name, arguments, node)


def _makes(cls: Class, name: str) -> bool:
    """Whether a method that a class inherits from a library makes an object of it: with saved weights, or as a file
    says, which may choose a class where this one is abstract or leaves how it is made to others."""
    found = [cls.find(each) for base in cls.mro() if type(base) is Class for each in base.names]
    abstract = any(type(each) is Function and access.has_decorator(each, "abc.abstractmethod") for each in found)
    chosen = abstract or type(cls.find("__init__")) is not Function
    return name in ("from_pretrained", "load_from_checkpoint") or (name.startswith("from_") and not chosen)


def of_option(option: Option, value: Value) -> Value:
    """What was computed of an option's default, as what the option decides."""
    if type(value) is Sequence and value.items is not None:
        return Sequence([of_option(option, each) for each in value.items], value.made_at, value.origin, value.kind)
    return Option(option.name, value, option.origin, option.how, option.flag, derived=True)


def _argument(arguments: Arguments, index: int = 0) -> Value | None:
    return arguments.positions[index].value if index < len(arguments.positions) else None


def _keyword(arguments: Arguments, *names: str) -> Value | None:
    return next((arguments.keywords[name].value for name in names if name in arguments.keywords), None)


# --- moving -----------------------------------------------------------------------------------------------------------


def _target(name: str, arguments: Arguments) -> Device | None:
    """Where ``to``, ``cuda`` or ``cpu`` moves something; None for ``to(dtype)``."""
    if name == "cpu":
        return "cpu"
    if name == "cuda":
        return "cuda"
    given = [passed.value for passed in arguments.positions[:2]]
    if name == "type":
        kinds = [each for value in given for each in members(value)]
        on_gpu = [type(each) is External and each.qualname.startswith("torch.cuda.") for each in kinds]
        if any(on_gpu):
            return "cuda" if all(on_gpu) else "conditional"
        return None
    if "device" in arguments.keywords:
        given = [arguments.keywords["device"].value]
    elif "other" in arguments.keywords:
        given = [arguments.keywords["other"].value]
    elif arguments.rest is not None and not given:
        return "unknown"
    for value in given[:1]:
        return None if is_dtype(value) or is_layout(value) else device_meant(value)
    return None


def _casts_dtype(arguments: Arguments) -> bool:
    return "dtype" in arguments.keywords or any(is_dtype(passed.value) for passed in arguments.positions)


def _move_tensor(interp: Interpreter, tensor: Tensor, name: str, arguments: Arguments, node: ast.AST) -> Tensor:
    place = _target(name, arguments)
    origin = interp.origin(node)
    if place is None:
        interp.event(
            "cast" if _casts_dtype(arguments) or name == "type" else "call",
            node,
            _label("Tensor", name),
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


def _label(owner: str, name: str) -> str:
    return f"{owner}.{name}"


def _move_model(interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    place = _target(name, arguments)
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


# --- tensors ----------------------------------------------------------------------------------------------------------


def _call_tensor(interp: Interpreter, tensor: Tensor, name: str, arguments: Arguments, node: ast.AST) -> Value:
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
    if name in _ACTS:
        interp.event(_ACTS[name], node, name, tensor, arguments)
        return UNKNOWN
    if name in ("detach", "detach_"):
        interp.event("call", node, _label("Tensor", name), tensor, arguments)
        return detached(tensor, origin)
    if gives_no_tensor(name):
        return NUMBER if row(name).gives == _NUMBERS else UNKNOWN
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
        by_dim = name in ("max", "min", "median", "nanmedian") and arguments.get("dim", 0) is not None
        count = 2 if by_dim else count_of(name)
        if count is not None:
            result = Sequence([result] * count or None, interp.control, origin, "tuple", None if count else result)
    interp.event("call", node, _label("Tensor", name), tensor, arguments, result)
    return result


# --- models, optimizers and the rest of what libraries make -----------------------------------------------------------


def _call_instance(interp: Interpreter, instance: Instance, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method that the object's class inherits from a library, or that is not there."""
    if name.startswith("super."):
        name = name[6:]
        if name == "__init__":
            if instance.base is None:
                calls.make_base(interp, instance, arguments, node)
            return NONE
    if name == "__setattr__" and len(arguments.positions) > 1:
        key = arguments.positions[0].value
        if type(key) is Const and isinstance(key.value, str):
            access.write_attribute(interp, instance, key.value, arguments.positions[1].value, node)
        return NONE
    if name == "save_hyperparameters":
        access.write_attribute(interp, instance, "hparams", _hyperparameters(interp, arguments), node)
        return NONE
    if instance.base is not None:
        made = instance.base
        method = instance.cls.find("create_optimizer") if (made.kind, name) == ("trainer", "train") else None
        if type(method) is Function:
            instance.attributes.setdefault("model", externals.first(made.arguments, "model") or UNKNOWN)
            calls.call(interp, Bound(instance, method), Arguments(), node)
        return _call_made(interp, made, name, arguments, node)
    if calls.is_module(instance):
        return _call_model(interp, instance, name, arguments, node)
    instance.uses.add(name)
    if (items := access.items_of(instance)) is not None and name in _OF_DICTS:
        return _call_mapping(interp, items, name, arguments, node)
    if name == "backward":
        interp.event("backward", node, "", _argument(arguments) or instance, arguments)
        return NONE
    if name in ("parse_args", "parse_args_into_dataclasses") and instance.cls.externals():
        return options.options_of(interp, instance.cls, node)  # Tap
    if name in _ACTS:
        interp.event(_ACTS[name], node, name, instance, arguments)
        return UNKNOWN
    threads = [each for each in instance.cls.externals() if each.endswith(("Thread", "Process"))]
    if name == "start" and threads and type(run := instance.cls.find("run")) is Function:
        interp.event("call", node, threads[0], None, arguments)
        return calls.call(interp, Bound(instance, run), Arguments(), node)
    if "trainer" in map(libraries.kind_of, instance.cls.externals()):
        return _call_trainer(interp, instance, name, arguments, node)
    if instance.cls.externals():
        calls.hand(interp, calls.positional(instance), node)
    return _call_anything(interp, instance, name, arguments, node)


def _hyperparameters(interp: Interpreter, arguments: Arguments) -> Value:
    """What ``self.save_hyperparameters()`` keeps: the settings that it is given, else all that ``__init__`` was given.

    Those of the classes that derive from it count too, and first.
    """
    given = [each.value for each in arguments.positions]
    if len(given) == 1 and not isinstance(given[0], (Const, Option)):
        return given[0]
    held = Namespace(interp.control, {}, bool(given))
    for frame in (interp.frames[level] for level in interp.control.upwards() if level in interp.frames):
        if frame.function is None or frame.function.name != "__init__":
            break
        declared, names = frame.function.node.args, frame.scope.names
        kept = [each.arg for each in (*declared.posonlyargs, *declared.args, *declared.kwonlyargs)]
        held.attributes |= {name: names[name] for name in kept if name in names}
        for each in members(names.get(declared.kwarg.arg)) if declared.kwarg is not None else ():
            if isinstance(each, Mapping):
                held.attributes |= {name: entry.value for name, entry in each.entries.items() if isinstance(name, str)}
                held.open = held.open or each.open
    return held


def _call_model(interp: Interpreter, model: Instance | Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    origin = interp.origin(node)
    if name in ("to", "cuda", "cpu", "type"):
        return _move_model(interp, model, name, arguments, node)
    if name in _CASTS:
        interp.event("cast", node, name, model, arguments, model)
        return model
    if name in ("train", "eval"):
        interp.event("mode", node, name, model, arguments)
        return model
    if name in ("forward", "__call__"):
        return calls.forward(interp, model, arguments, node)
    if name == "__setattr__":
        key, value = _argument(arguments), _argument(arguments, 1)
        if type(key) is Const and isinstance(key.value, str) and value is not None:
            access.write_attribute(interp, model, key.value, value, node)
        elif value is not None:
            access.add_weight(model, value)
        return NONE
    if name in ("parameters", "buffers"):
        parameter = Tensor(frozenset({"param"}), model.device, origin, model)
        return Iterated(parameter, model, name, origin)
    if name in ("named_parameters", "named_buffers"):
        parameter = Tensor(frozenset({"param"}), model.device, origin, model)
        return Iterated(Sequence([UNKNOWN, parameter]), model, name, origin)
    if name in _ACTS:
        interp.event(_ACTS[name], node, name, model, arguments)
        return UNKNOWN
    if name == "backward":
        interp.event(
            "backward", node, "engine" if type(model) is Made else "", _argument(arguments) or model, arguments
        )
        return NONE
    if name == "compile":
        interp.event("compile", node, name, model, arguments, model)
        return NONE
    if name in _OF_MODULES:
        interp.event("call", node, _label("Module", name), model, arguments)
        function = _argument(arguments)
        if name == "apply" and function is not None:
            part = access.child(interp, model, "<layer>", node)
            calls.call(interp, function, calls.positional(part), node)
        return model
    if name in _MODEL_PARTS:
        part = join(model, _parts(interp, model, node)) or model
        return Iterated(part if not name.startswith("named") else Sequence([UNKNOWN, part]), model, name, origin)
    if name in ("register_buffer", "register_parameter", "add_module", "register_module"):
        key = _argument(arguments) or _keyword(arguments, "name")
        value = _argument(arguments, 1) or _keyword(arguments, "tensor", "module", "param")
        layer = name in ("add_module", "register_module")
        if type(key) is Const and isinstance(key.value, str) and value is not None:
            access.write_attribute(interp, model, key.value, value, node)
        elif type(model) is Instance and value is not None and layer:
            model.attributes["<layers>"] = join(model.attributes.get("<layers>"), value) or value  # one of them
        elif value is not None:
            access.add_weight(model, value)
        if type(model) is Made and value is not None and layer:
            _add_layer(interp, model, value)
        return NONE
    if name in ("append", "extend", "insert", "update") and type(model) is Made:
        added = _argument(arguments, 1 if name == "insert" else 0) or UNKNOWN
        _add_layer(interp, model, access.iterate(interp, added, node) if name in ("extend", "update") else added)
        return model
    if name in ("items", "values", "keys") and type(model) is Made and model.inner is not None:
        part = access.iterate(interp, model.inner, node)
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
        interp.event("call", node, _label("Module", name), model, arguments)
        return Mapping(interp.control, origin, {}, True, Tensor(frozenset({"param"}), model.device, origin, model))
    if name == "no_sync":
        return interp.make("torch.nn.parallel.DistributedDataParallel.no_sync", "nosync", arguments, node, log=False)
    if type(model) is Made and model.kind in ("wrapper", "engine") and model.inner is not None:
        found = access.read_attribute(interp, model.inner, name, ast.copy_location(ast.Pass(), node), called=True)
        if type(found) is Bound:
            return calls.call(interp, found, arguments, node)
    tensors = tensors_passed(arguments)
    if tensors:
        result = Tensor(frozenset({"output"}), surest(model.device, device_of(tensors)), origin, model, half=True)
        interp.event("forward", node, name, model, arguments, result)
        return result
    interp.event("call", node, _label("Module", name), model, arguments)
    return access.child(interp, model, f".{name}()", node, "call")


def _parts(interp: Interpreter, model: Instance | Made, node: ast.AST) -> Value | None:
    """The modules that are attributes or layers of a model."""
    if type(model) is Made:
        return access.iterate(interp, model.inner, node) if model.inner is not None else None
    found: Value | None = None
    for value in list(model.attributes.values())[:16]:
        for member in members(value):
            if (type(member) is Made and member.kind == "module") or (
                type(member) is Instance and calls.is_module(member)
            ):
                found = join(found, member)
    return found


def _add_layer(interp: Interpreter, model: Made, layer: Value) -> None:
    inner = model.inner if type(model.inner) is Sequence else None
    if inner is None:
        model.inner = Sequence([layer], interp.control, None, "list")
    elif inner.items is not None and interp.certainty(inner.made_at) == "strong":
        inner.items.append(layer)
    else:
        inner.element = join(access.element_of(inner) if inner.items else inner.element, layer)
        inner.items = None


def _call_made(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    made.uses.add(name)
    kind = made.kind
    value = _argument(arguments)
    if kind == "argparse":
        return options.call_parser(interp, made, name, arguments, node)
    if kind == "classparser":
        return options.call_class_parser(interp, made, name, arguments, node)
    if kind in ("module", "wrapper", "criterion", "engine"):
        return _call_model(interp, made, name, arguments, node)
    if name == "step":
        for member in members(value):
            if isinstance(member, (Function, Bound)):
                calls.call(interp, member, Arguments(), node)
    if name == "backward":
        interp.event("backward", node, kind, value or made, arguments)
        return NONE
    if kind == "progress" and name == "update":
        interp.event("show", node, name, made, arguments)
        return NONE
    if name in _ACTS:
        interp.event(_ACTS[name], node, name, made, arguments)
        return UNKNOWN
    if name in libraries.SHOWING_METHODS or (
        kind in ("logger", "writer", "progress") and name in libraries.LOGGING_METHODS
    ):
        return _show(interp, made, name, arguments, node)
    if kind == "scaler" and name == "scale":
        interp.event("scale", node, name, made, arguments)
        return externals.scaled(value or UNKNOWN, interp, node)
    if kind in ("accelerator", "fabric"):
        return _call_accelerator(interp, made, name, arguments, node)
    if kind == "dataset":
        return _call_dataset(interp, made, name, arguments, node)
    if kind == "trainer":
        return _call_trainer(interp, made, name, arguments, node)
    if kind == "tokenizer":
        interp.event("call", node, _label(made.qualname, name), made, arguments)
        if name in ("pad", "__call__", "batch_encode_plus", "encode", "encode_plus", "apply_chat_template"):
            return Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
        return (
            UNKNOWN
            if name.startswith(("decode", "batch_decode"))
            else access.child(interp, made, f".{name}()", node, "call")
        )
    interp.event("call", node, _label(made.qualname, name), made, arguments)
    if kind == "metric" and name in ("add", "add_batch", "compute"):  # it keeps Arrow rows, made of arrays of the host
        given = (*arguments.positions, *arguments.keywords.values())
        read = next((passed for passed in given if any(True for _ in tensors_in(passed.value, 2))), None)
        if read is not None:
            interp.event("sync", read.node or node, "metric", read.value)
    if kind == "loader":
        if name == "__iter__":
            return Iterated(access.iterate(interp, made, node), made, "iter", interp.origin(node))
        if name in ("next", "__next__"):
            return access.iterate(interp, made, node)
    if kind == "nullcontext" or kind == "autocast":
        return made
    tensors = tensors_passed(arguments)
    if tensors and kind not in ("optimizer", "scheduler", "writer", "logger", "progress"):
        return unknown_of(tensors, interp.origin(node))
    return access.child(interp, made, f".{name}()", node, "call")


def _show(interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method that shows its arguments; tensors among them are read on the host."""
    for passed in (*arguments.positions, *arguments.keywords.values()):
        interp.show_tensors(passed.value, passed.node or node, "print")
    interp.event("show", node, name, receiver, arguments)
    return NONE


def _call_accelerator(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """Accelerate and Fabric own placement and stepping."""
    value = _argument(arguments)
    values = [passed.value for passed in arguments.positions]
    interp_result: Value
    if name in libraries.PREPARES:
        for each in values:
            for member in members(each):
                if type(member) is Made:
                    member.attributes["prepared"] = Const(True)
                if isinstance(member, (Made, Instance)):
                    member.device = "conditional"
        single = len(values) == 1 and not arguments.star
        interp_result = (
            values[0]
            if single
            else Sequence(
                None if arguments.star else values,
                interp.control,
                interp.origin(node),
                "tuple",
                join_all(values) if arguments.star else None,
            )
        )
        interp.event("call", node, _label(made.qualname, name), made, arguments, interp_result)
        return interp_result
    if name in ("clip_grad_norm_", "clip_grad_value_", "clip_gradients"):
        result = Tensor(frozenset({"grad"}), "conditional", interp.origin(node))
        interp.event("clip", node, _label(made.qualname, name), value, arguments, result)
        return result
    if name == "save" or name == "save_state":
        interp.event("save", node, _label(made.qualname, name), value, arguments)
        return NONE
    if name in ("print", "log"):
        return _show(interp, made, name, arguments, node)
    interp.event("call", node, _label(made.qualname, name), made, arguments)
    if name in _GATHERING:
        return value or UNKNOWN
    if name == "to_device" and value is not None:
        return (
            join_all(moved(m, "conditional", interp.origin(node)) if type(m) is Tensor else m for m in members(value))
            or UNKNOWN
        )
    if name in _AROUND:
        return interp.make(
            _label(made.qualname, name), "autocast" if name == "autocast" else "nosync", arguments, node, log=False
        )
    if name == "launch" and value is not None:
        return calls.call(interp, value, Arguments([], {}, True), node)
    return access.child(interp, made, f".{name}()", node, "call")


def _call_dataset(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, _label(made.qualname, name), made, arguments)
    if name in _DATASET_COPIES:
        function = _argument(arguments)
        if name in ("map", "with_transform", "set_transform", "filter") and function is not None:
            item = Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
            for member in members(function):
                if isinstance(member, (Function, Bound)):
                    calls.call(interp, member, calls.positional(item), node)
        return made
    if name in ("__getitem__", "__next__"):
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
    return access.child(interp, made, f".{name}()", node, "call")


def _call_trainer(
    interp: Interpreter, trainer: Made | Instance, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A framework's trainer: ``fit`` calls the model's own hooks."""
    qualname = trainer.qualname if isinstance(trainer, Made) else trainer.cls.node.name
    interp.event("call", node, _label(qualname, name), trainer, arguments)
    if name in ("fit", "validate", "test", "predict"):
        model = externals.first(arguments, "model")
        for member in members(model):
            if type(member) is Instance:
                _call_hooks(interp, member, arguments, node, trains=name == "fit")
    return access.child(interp, trainer, f".{name}()", node, "call")


def _call_hooks(interp: Interpreter, model: Instance, arguments: Arguments, node: ast.AST, *, trains: bool) -> None:
    given = arguments.get("train_dataloaders", 1) or arguments.get("train_dataloader")
    evaluation = arguments.get("val_dataloaders", 2) or arguments.get("dataloaders", 1)
    module = arguments.get("datamodule")
    sources: list[Value] = [model, *members(module.value if module is not None else None)]
    if given is not None:
        sources.extend(members(given.value))
    for source in reversed(sources):  # the data are set up before the model is
        _set_up(interp, source, node)
    optimizers = model.cls.find("configure_optimizers")
    if type(optimizers) is Function and trains:
        calls.call(interp, Bound(model, optimizers), Arguments(), node)
    hooks = (("training_step", given, "train_dataloader"), ("validation_step", evaluation, "val_dataloader"))
    for hook, passed, provider in hooks if trains else hooks[1:]:
        method = model.cls.find(hook)
        if type(method) is not Function:
            continue
        loader: Value | None = passed.value if passed is not None else None
        for source in sources:
            provide = source.cls.find(provider) if type(source) is Instance else None
            if type(provide) is Function:
                loader = calls.call(interp, Bound(source, provide), Arguments(), node)
        batch = access.iterate(interp, loader, node) if loader is not None else UNKNOWN
        if batch is UNKNOWN:
            batch = interp.opaque("batch", "element", method.node)
        calls.call(interp, Bound(model, method), calls.positional(batch, NUMBER), node)


def _set_up(interp: Interpreter, source: Value, node: ast.AST) -> None:
    """What a trainer calls of a module before it asks for optimizers and loaders."""
    for name, given in (("prepare_data", calls.positional()), ("setup", calls.positional(Const("fit")))):
        method = source.cls.find(name) if type(source) is Instance else None
        if type(method) is Function:
            calls.call(interp, Bound(source, method), given, node)


# --- unknowns ---------------------------------------------------------------------------------------------------------


def _call_opaque(interp: Interpreter, receiver: Opaque, name: str, arguments: Arguments, node: ast.AST) -> Value:
    receiver.uses.add(name)
    if name in ("parameters", "named_parameters"):
        parameter = Tensor(frozenset({"param"}), "unknown", interp.origin(node), receiver)
        element: Value = parameter if name == "parameters" else Sequence([UNKNOWN, parameter])
        return Iterated(element, receiver, name, interp.origin(node))
    if name == "compile" and not arguments.keywords.keys() & {"optimizer", "loss"}:  # (as Keras has it)
        interp.event("compile", node, name, receiver, arguments, receiver)
    if name == "step":
        for member in members(_argument(arguments)):
            if isinstance(member, (Function, Bound)):
                calls.call(interp, member, Arguments(), node)
    known = _act_of_unknown(interp, receiver, name, arguments, node)
    if known is not None:
        return known
    method = access.child(interp, receiver, "." + name, node)
    if type(method) is Opaque:
        return calls.call_opaque(interp, method, arguments, node)
    tensors = tensors_passed(arguments)
    return unknown_of(tensors, interp.origin(node)) if tensors else UNKNOWN


def _act_of_unknown(
    interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST
) -> Value | None:
    """An act that its name alone makes worth logging; None for any other method."""
    value = _argument(arguments)
    if name == "backward":
        scaled = any(type(member) is Tensor for member in members(value))
        interp.event("backward", node, "engine" if scaled else "", value if scaled else receiver, arguments)
        return NONE
    if name in _ACTS:
        interp.event(_ACTS[name], node, name, receiver, arguments)
        return UNKNOWN
    if name in ("to", "cuda", "cpu"):
        place = _target(name, arguments)
        if place is None:
            interp.event("cast", node, name, receiver, arguments)
            return receiver
        interp.event("transfer", node, name, receiver, arguments, receiver)
        if name == "cpu":
            interp.event("sync", node, "cpu", receiver)
        return receiver
    if name in _READS and not arguments.positions:
        of_numpy = type(receiver) is Opaque and receiver.name.startswith("numpy.")
        if of_numpy or type(receiver) is Const:  # they lie on the host
            return Host(None, (interp.origin(node),))
        interp.event("sync", node, name, interp.absorb(node) or receiver)
        return Host(None, (interp.origin(node),)) if name == "item" else UNKNOWN
    if name in ("train", "eval") and len(arguments.positions) <= 1:
        interp.event("mode", node, name, receiver, arguments)
        return receiver
    if name in _CASTS and not arguments.positions:
        interp.event("cast", node, name, receiver, arguments)
        return receiver
    if name in libraries.SHOWING_METHODS or name in ("info", "warning", "debug"):
        return _show(interp, receiver, name, arguments, node)
    if name in ("detach", "long", "int", "bool") or name in _SAME_TENSOR:
        return receiver
    if name == "scale" and value is not None:
        interp.event("scale", node, name, receiver, arguments)
        return externals.scaled(value, interp, node)
    if name in ("clip_grad_norm_", "clip_grad_norm", "clip_master_grads"):
        interp.event("clip", node, name, receiver, arguments)
        return Tensor(frozenset({"grad"}), "unknown", interp.origin(node))
    return None


def _call_anything(interp: Interpreter, receiver: Value, name: str, arguments: Arguments, node: ast.AST) -> Value:
    known = _act_of_unknown(interp, receiver, name, arguments, node)
    if known is not None:
        return known
    tensors = tensors_passed(arguments)
    if tensors:
        if interp.loop_depth:
            interp.event("unknown_call", node, name, receiver, arguments)
        return unknown_of(tensors, interp.origin(node))
    return NUMBER if type(receiver) is Unknown and receiver.number else UNKNOWN


# --- containers -------------------------------------------------------------------------------------------------------


def _call_mapping(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = _argument(arguments)
    if name == "update":
        return _update_mapping(interp, mapping, arguments, node)
    if name in ("get", "pop", "setdefault"):
        return _take(interp, mapping, name, arguments, node)
    everything = access.read_item(interp, mapping, None, node)
    origin = interp.origin(node)
    if name == "items":
        return Iterated(Sequence([UNKNOWN, everything]), mapping, name, origin)
    if name == "values":
        return Iterated(everything, mapping, name, origin)
    if name == "keys":
        return Iterated(access.iterate(interp, mapping, node), mapping, name, origin)
    if name in ("copy", "__copy__"):
        copied = Mapping(interp.control, mapping.origin)
        access.merge(interp, copied, mapping, strong=True)
        return copied
    if name in ("to", "cuda", "cpu"):
        place = _target(name, arguments) or "unknown"
        interp.event("transfer", node, name, mapping, arguments, mapping)
        moved_element = (
            moved(t, place, origin) if (t := next(tensors_in(mapping), None)) is not None else mapping.element
        )
        return Mapping(interp.control, mapping.origin, {}, True, moved_element)
    if name == "clear" and interp.certainty(mapping.made_at) == "strong":
        mapping.entries.clear()
        return NONE
    return _act_of_unknown(interp, mapping, name, arguments, node) or UNKNOWN if value is None else UNKNOWN


def _update_mapping(interp: Interpreter, mapping: Mapping, arguments: Arguments, node: ast.AST) -> Value:
    certainty = interp.certainty(mapping.made_at)
    if certainty == "never":
        return NONE
    value = _argument(arguments)
    if value is not None:
        access.merge(interp, mapping, value, certainty == "strong")
    for key, passed in arguments.keywords.items():
        origin = interp.origin(passed.node) if passed.node is not None else None
        access.put_entry(mapping, key, Entry(passed.value, passed.must, origin), certainty == "strong")
    mapping.open = mapping.open or arguments.open
    mapping.element = join(mapping.element, arguments.rest)
    return NONE


def _take(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    imports.fill(interp, mapping)
    key = _argument(arguments)
    default = _argument(arguments, 1) or NONE
    if not (type(key) is Const and is_hashable(key.value)):
        return access.read_item(interp, mapping, key, node)
    entry = mapping.entries.get(key.value)
    found: Value | None
    if entry is not None:
        found = entry.value if entry.must else join(entry.value, default)
    else:
        found = join(join(mapping.element or UNKNOWN, default), None) if mapping.open else default
    if name == "setdefault" and not (entry is not None and entry.must):
        place = arguments.positions[1].node if len(arguments.positions) > 1 else None
        access.put(interp, mapping, key, found or UNKNOWN, place)
    elif name == "pop":
        access.drop_item(interp, mapping, key)
    return found or UNKNOWN


def _call_namespace(interp: Interpreter, namespace: Namespace, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = _argument(arguments)
    if name == "update":
        for member in members(value):
            mapping = access.as_mapping(member)
            if mapping is not None:
                namespace.open = namespace.open or mapping.open
                for key, entry in mapping.entries.items():
                    if isinstance(key, str):
                        access.write_attribute(interp, namespace, key, entry.value, node)
        for key, passed in arguments.keywords.items():
            access.write_attribute(interp, namespace, key, passed.value, node)
        return NONE
    if name in ("get", "pop", "setdefault") and type(value) is Const and isinstance(value.value, str):
        found = namespace.attributes.get(value.value)
        return found if found is not None else _argument(arguments, 1) or (UNKNOWN if namespace.open else NONE)
    if name == "items":
        everything = join_all(namespace.attributes.values()) or UNKNOWN
        return Iterated(Sequence([UNKNOWN, everything]), namespace, name, interp.origin(node))
    if name == "copy":
        return Namespace(interp.control, dict(namespace.attributes), namespace.open)
    if name in ("merge_from_file", "merge_from_list", "load"):
        _open_to_file(namespace)
        return NONE
    return _act_of_unknown(interp, namespace, name, arguments, node) or UNKNOWN


def _open_to_file(namespace: Namespace, depth: int = 4) -> None:
    """What a configuration file may override is an option, in the namespaces below too."""
    namespace.open = True
    for key, old in list(namespace.attributes.items()):
        if type(old) is Const:
            namespace.attributes[key] = Option(key, old, old.origin, "file", isinstance(old.value, bool))
        elif type(old) is Namespace and depth:
            _open_to_file(old, depth - 1)


def _call_sequence(interp: Interpreter, sequence: Sequence, name: str, arguments: Arguments, node: ast.AST) -> Value:
    value = _argument(arguments)
    if name in ("append", "add", "appendleft", "insert"):
        added = _argument(arguments, 1) if name == "insert" else value
        if added is not None:
            _append(interp, sequence, added, at_end=name in ("append", "add"))
            interp.event("call", node, _label("list", name), sequence, arguments)
        return NONE
    if name in ("extend", "update", "extendleft") and value is not None:
        if type(value) is Sequence and value.items is not None and sequence.items is not None:
            for item in list(value.items):
                _append(interp, sequence, item, at_end=True)
        else:
            certainty = interp.certainty(sequence.made_at)
            if certainty != "never":
                sequence.element = join(
                    access.element_of(sequence) if sequence.items else sequence.element,
                    access.iterate(interp, value, node),
                )
                sequence.items = None
        return NONE
    if name in ("pop", "popleft"):
        at = value.value if type(value) is Const else 0 if name == "popleft" else None if arguments.positions else -1
        items = sequence.items if interp.certainty(sequence.made_at) == "strong" else None
        if items and type(at) is int and -len(items) <= at < len(items):
            return items.pop(at)
        return access.element_of(sequence)
    if name == "copy":
        items = list(sequence.items) if sequence.items is not None else None
        return Sequence(items, interp.control, sequence.origin, sequence.kind, sequence.element)
    if name in ("index", "count"):
        return NUMBER
    if name == "clear":
        return NONE
    known = _act_of_unknown(interp, sequence, name, arguments, node)
    return known if known is not None else NONE if name in ("sort", "reverse", "remove") else UNKNOWN


def _append(interp: Interpreter, sequence: Sequence, value: Value, at_end: bool) -> None:
    certainty = interp.certainty(sequence.made_at)
    if certainty == "never":
        return
    if sequence.items is not None and certainty == "strong" and at_end:
        sequence.items.append(value)
        return
    sequence.element = join(access.element_of(sequence) if sequence.items else sequence.element, value)
    sequence.items = None


def _call_const(interp: Interpreter, receiver: Const, name: str, arguments: Arguments, node: ast.AST) -> Value:
    text = receiver.value
    if not isinstance(text, str):
        return _call_anything(interp, receiver, name, arguments, node) if text is not None else UNKNOWN
    if name == "format":
        for passed in (*arguments.positions, *arguments.keywords.values()):
            interp.show_tensors(passed.value, passed.node or node, "format")
        return interp.text(text, node)
    given = [passed.value.value if type(passed.value) is Const else None for passed in arguments.positions]
    if name in _OF_TEXT and None not in given and not arguments.keywords:
        with contextlib.suppress(TypeError, ValueError):
            made, origin = getattr(text, name)(*given), interp.origin(node)
            if not isinstance(made, (list, tuple)):
                return Const(made, origin)
            return Sequence([Const(each, origin) for each in made], interp.control, origin, "list")
    joined = _argument(arguments) if name == "join" else None
    if type(joined) is Sequence and joined.items is not None:
        named = [each for each in joined.items if type(each) is Option and each.how == config_files.HOW]
        words = [each.default if type(each) is Option else each for each in joined.items]
        if all(type(each) is Const and isinstance(each.value, str) for each in words) and len(named) in (0, len(words)):
            made = Const(text.join(each.value for each in words), interp.origin(node))  # type: ignore[attr-defined]
            return of_option(named[0], made) if named else made
    if name == "split":
        return Sequence(None, interp.control, interp.origin(node), "list", UNKNOWN)
    return UNKNOWN


_CALLS: dict[type[Value], Callable[..., Value]] = {
    Tensor: _call_tensor,
    Instance: _call_instance,
    Made: _call_made,
    Opaque: _call_opaque,
    Mapping: _call_mapping,
    Sequence: _call_sequence,
    Namespace: _call_namespace,
    Const: _call_const,
}
"""Who knows the methods of a class of values."""
