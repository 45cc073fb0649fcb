"""Methods that libraries give to objects: trainers, accelerators, datasets, and what derives from them."""

from __future__ import annotations

import ast

from turbofix.domain.tensors import moved, scaled, tensors_in, tensors_passed, unknown_of
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    NONE,
    NUMBER,
    UNKNOWN,
    Bound,
    Const,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Option,
    Sequence,
    Tensor,
    Value,
    join_all,
    members,
)
from turbofix.interpreter.attributes import child, write_attribute
from turbofix.interpreter.brains.command_line import call_class_parser, call_parser, options_of
from turbofix.interpreter.container_methods import call_mapping_method
from turbofix.interpreter.containers import items_of
from turbofix.interpreter.definitions import is_module
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.project_calls import make_base
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.torch_methods import call_model_method
from turbofix.interpreter.unknowns import ACTS, call_method_of_anything, hand, label, show
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES


def call_inherited_method(
    interp: Interpreter, instance: Instance, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A method that the object's class inherits from a library, or that is not there."""
    if name.startswith("super."):
        name = name[6:]
        if name == "__init__":
            if instance.base is None:
                make_base(interp, instance, arguments, node)
            return NONE
    if name == "__setattr__" and len(arguments.positions) > 1:
        key = arguments.positions[0].value
        if type(key) is Const and isinstance(key.value, str):
            write_attribute(interp, instance, key.value, arguments.positions[1].value, node)
        return NONE
    if name == "save_hyperparameters":
        write_attribute(interp, instance, "hparams", _hyperparameters(interp, arguments), node)
        return NONE
    if instance.base is not None:
        made = instance.base
        method = instance.cls.find("create_optimizer") if (made.kind, name) == ("trainer", "train") else None
        if type(method) is Function:
            instance.attributes.setdefault("model", made.arguments.first("model") or UNKNOWN)
            interp.call(Bound(instance, method), Arguments(), node)
        return call_object_method(interp, made, name, arguments, node)
    if is_module(instance):
        return call_model_method(interp, instance, name, arguments, node)
    instance.uses.add(name)
    if (items := items_of(instance)) is not None and name in NAMES["dict_methods"]:
        return call_mapping_method(interp, items, name, arguments, node)
    if name == "backward":
        interp.event("backward", node, "", arguments.at(0) or instance, arguments)
        return NONE
    if name in ("parse_args", "parse_args_into_dataclasses") and instance.cls.externals():
        return options_of(interp, instance.cls, node)  # Tap
    if name in ACTS:
        interp.event(ACTS[name], node, name, instance, arguments)
        return UNKNOWN
    threads = [each for each in instance.cls.externals() if each.endswith(("Thread", "Process"))]
    if name == "start" and threads and type(run := instance.cls.find("run")) is Function:
        interp.event("call", node, threads[0], None, arguments)
        return interp.call(Bound(instance, run), Arguments(), node)
    if "trainer" in map(libraries.kind_of, instance.cls.externals()):
        return _call_trainer(interp, instance, name, arguments, node)
    if instance.cls.externals():
        hand(interp, positional(instance), node)
    return call_method_of_anything(interp, instance, name, arguments, node)


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


def call_object_method(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    made.uses.add(name)
    kind = made.kind
    value = arguments.at(0)
    if kind == "argparse":
        return call_parser(interp, made, name, arguments, node)
    if kind == "classparser":
        return call_class_parser(interp, made, name, arguments, node)
    if kind in ("module", "wrapper", "criterion", "engine"):
        return call_model_method(interp, made, name, arguments, node)
    if name == "step":
        for member in members(value):
            if isinstance(member, (Function, Bound)):
                interp.call(member, Arguments(), node)
    if name == "backward":
        interp.event("backward", node, kind, value or made, arguments)
        return NONE
    if kind == "progress" and name == "update":
        interp.event("show", node, name, made, arguments)
        return NONE
    if name in ACTS:
        interp.event(ACTS[name], node, name, made, arguments)
        return UNKNOWN
    if name in libraries.SHOWING_METHODS or (
        kind in ("logger", "writer", "progress") and name in libraries.LOGGING_METHODS
    ):
        return show(interp, made, name, arguments, node)
    if kind == "scaler" and name == "scale":
        interp.event("scale", node, name, made, arguments)
        return scaled(value or UNKNOWN, interp.origin(node))
    if kind in ("accelerator", "fabric"):
        return _call_accelerator(interp, made, name, arguments, node)
    if kind == "dataset":
        return _call_dataset(interp, made, name, arguments, node)
    if kind == "trainer":
        return _call_trainer(interp, made, name, arguments, node)
    if kind == "tokenizer":
        interp.event("call", node, label(made.qualname, name), made, arguments)
        if name in ("pad", "__call__", "batch_encode_plus", "encode", "encode_plus", "apply_chat_template"):
            return Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
        return (
            UNKNOWN if name.startswith(("decode", "batch_decode")) else child(interp, made, f".{name}()", node, "call")
        )
    interp.event("call", node, label(made.qualname, name), made, arguments)
    if kind == "metric" and name in ("add", "add_batch", "compute"):  # it keeps Arrow rows, made of arrays of the host
        given = (*arguments.positions, *arguments.keywords.values())
        read = next((passed for passed in given if any(True for _ in tensors_in(passed.value, 2))), None)
        if read is not None:
            interp.event("sync", read.node or node, "metric", read.value)
    if kind == "loader":
        if name == "__iter__":
            return Iterated(iterate(interp, made, node), made, "iter", interp.origin(node))
        if name in ("next", "__next__"):
            return iterate(interp, made, node)
    if kind == "nullcontext" or kind == "autocast":
        return made
    tensors = tensors_passed(arguments)
    if tensors and kind not in ("optimizer", "scheduler", "writer", "logger", "progress"):
        return unknown_of(tensors, interp.origin(node))
    return child(interp, made, f".{name}()", node, "call")


def _call_accelerator(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """Accelerate and Fabric own placement and stepping."""
    value = arguments.at(0)
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
        interp.event("call", node, label(made.qualname, name), made, arguments, interp_result)
        return interp_result
    if name in ("clip_grad_norm_", "clip_grad_value_", "clip_gradients"):
        result = Tensor(frozenset({"grad"}), "conditional", interp.origin(node))
        interp.event("clip", node, label(made.qualname, name), value, arguments, result)
        return result
    if name == "save" or name == "save_state":
        interp.event("save", node, label(made.qualname, name), value, arguments)
        return NONE
    if name in ("print", "log"):
        return show(interp, made, name, arguments, node)
    interp.event("call", node, label(made.qualname, name), made, arguments)
    if name in NAMES["gathers"]:
        return value or UNKNOWN
    if name == "to_device" and value is not None:
        return (
            join_all(moved(m, "conditional", interp.origin(node)) if type(m) is Tensor else m for m in members(value))
            or UNKNOWN
        )
    if name in NAMES["around"]:
        return interp.make(
            label(made.qualname, name), "autocast" if name == "autocast" else "nosync", arguments, node, log=False
        )
    if name == "launch" and value is not None:
        return interp.call(value, Arguments([], {}, True), node)
    return child(interp, made, f".{name}()", node, "call")


def _call_dataset(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    interp.event("call", node, label(made.qualname, name), made, arguments)
    if name in NAMES["dataset_copies"]:
        function = arguments.at(0)
        if name in ("map", "with_transform", "set_transform", "filter") and function is not None:
            item = Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
            for member in members(function):
                if isinstance(member, (Function, Bound)):
                    interp.call(member, positional(item), node)
        return made
    if name in ("__getitem__", "__next__"):
        return Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
    return child(interp, made, f".{name}()", node, "call")


def _call_trainer(
    interp: Interpreter, trainer: Made | Instance, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A framework's trainer: ``fit`` calls the model's own hooks."""
    qualname = trainer.qualname if isinstance(trainer, Made) else trainer.cls.node.name
    interp.event("call", node, label(qualname, name), trainer, arguments)
    if name in ("fit", "validate", "test", "predict"):
        model = arguments.first("model")
        for member in members(model):
            if type(member) is Instance:
                _call_hooks(interp, member, arguments, node, trains=name == "fit")
    return child(interp, trainer, f".{name}()", node, "call")


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
        interp.call(Bound(model, optimizers), Arguments(), node)
    hooks = (("training_step", given, "train_dataloader"), ("validation_step", evaluation, "val_dataloader"))
    for hook, passed, provider in hooks if trains else hooks[1:]:
        method = model.cls.find(hook)
        if type(method) is not Function:
            continue
        loader: Value | None = passed.value if passed is not None else None
        for source in sources:
            provide = source.cls.find(provider) if type(source) is Instance else None
            if type(provide) is Function:
                loader = interp.call(Bound(source, provide), Arguments(), node)
        batch = iterate(interp, loader, node) if loader is not None else UNKNOWN
        if batch is UNKNOWN:
            batch = interp.opaque("batch", "element", method.node)
        interp.call(Bound(model, method), positional(batch, NUMBER), node)


def _set_up(interp: Interpreter, source: Value, node: ast.AST) -> None:
    """What a trainer calls of a module before it asks for optimizers and loaders."""
    for name, given in (("prepare_data", positional()), ("setup", positional(Const("fit")))):
        method = source.cls.find(name) if type(source) is Instance else None
        if type(method) is Function:
            interp.call(Bound(source, method), given, node)
