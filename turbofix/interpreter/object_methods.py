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
from turbofix.interpreter.unknowns import ACTS, call_closure, call_method_of_anything, hand, show
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES


def call_inherited_method(
    interp: Interpreter, instance: Instance, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A method that the object's class inherits from a library, or that is not there."""
    name = name.removeprefix("super.")
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
    made = instance.base
    if made is not None:
        if (made.kind, name) == ("trainer", "train"):
            instance.attributes.setdefault("model", made.arguments.first("model") or UNKNOWN)
            interp.call_own(instance, "create_optimizer", Arguments(), node)
        return call_object_method(interp, made, name, arguments, node)
    if is_module(instance):
        return call_model_method(interp, instance, name, arguments, node)
    instance.uses.add(name)
    externals = instance.cls.externals()
    if (items := items_of(instance)) is not None and name in NAMES["dict_methods"]:
        return call_mapping_method(interp, items, name, arguments, node)
    if name in ("parse_args", "parse_args_into_dataclasses") and externals:
        return options_of(interp, instance.cls, node)  # Tap
    if name == "start" and any(each.endswith(("Thread", "Process")) for each in externals):
        interp.event("call", node, externals[0], None, arguments)
        return interp.call_own(instance, "run", Arguments(), node) or UNKNOWN
    if externals:
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
    """A method of what a library made, by its kind."""
    made.uses.add(name)
    kind = made.kind
    value = arguments.at(0)
    if kind in ("module", "wrapper", "criterion", "engine"):
        return call_model_method(interp, made, name, arguments, node)
    if kind == "argparse":
        return call_parser(interp, made, name, arguments, node)
    if kind == "classparser":
        return call_class_parser(interp, made, name, arguments, node)
    if name == "step":
        call_closure(interp, arguments, node)
    if name == "backward":
        interp.event("backward", node, kind, value or made, arguments)
        return NONE
    if kind == "progress" and name == "update":
        interp.event("show", node, name, made, arguments)
        return NONE
    if name in ACTS:
        interp.event(ACTS[name], node, name, made, arguments)
        return UNKNOWN
    logs = kind in ("logger", "writer", "progress") and name in libraries.LOGGING_METHODS
    if logs or name in libraries.SHOWING_METHODS:
        return show(interp, made, name, arguments, node)
    if kind == "scaler" and name == "scale":
        interp.event("scale", node, name, made, arguments)
        return scaled(value or UNKNOWN, interp.origin(node))
    if kind in ("accelerator", "fabric"):
        return _call_accelerator(interp, made, name, arguments, node)
    if kind == "trainer":
        return _call_trainer(interp, made, name, arguments, node)
    interp.event("call", node, f"{made.qualname}.{name}", made, arguments)
    if kind == "dataset":
        return _call_dataset(interp, made, name, arguments, node)
    if kind == "tokenizer":
        if name in ("pad", "__call__", "batch_encode_plus", "encode", "encode_plus", "apply_chat_template"):
            return Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
        decodes = name.startswith(("decode", "batch_decode"))
        return UNKNOWN if decodes else child(interp, made, f".{name}()", node, "call")
    if kind == "metric" and name in ("add", "add_batch", "compute"):  # it keeps Arrow rows, made of arrays of the host
        given = (*arguments.positions, *arguments.keywords.values())
        read = next((passed for passed in given if any(True for _ in tensors_in(passed.value, 2))), None)
        if read is not None:
            interp.event("sync", read.node or node, "metric", read.value)
    if kind == "loader" and name in ("__iter__", "next", "__next__"):
        element = iterate(interp, made, node)
        return Iterated(element, made, "iter", interp.origin(node)) if name == "__iter__" else element
    if kind in ("nullcontext", "autocast"):
        return made
    tensors = tensors_passed(arguments)
    if tensors and kind not in ("optimizer", "scheduler", "writer", "logger", "progress"):
        return unknown_of(tensors, interp.origin(node))
    return child(interp, made, f".{name}()", node, "call")


def _call_accelerator(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """Accelerate and Fabric own placement and stepping."""
    value, called = arguments.at(0), f"{made.qualname}.{name}"
    if name in libraries.PREPARES:
        return interp.gives(_prepared(interp, arguments, node), node, called, made, arguments)
    if name in ("clip_grad_norm_", "clip_grad_value_", "clip_gradients"):
        result = Tensor(frozenset({"grad"}), "conditional", interp.origin(node))
        interp.event("clip", node, called, value, arguments, result)
        return result
    if name in ("save", "save_state"):
        interp.event("save", node, called, value, arguments)
        return NONE
    if name in ("print", "log"):
        return show(interp, made, name, arguments, node)
    interp.event("call", node, called, made, arguments)
    if name in NAMES["gathers"]:
        return value or UNKNOWN
    if name == "to_device" and value is not None:
        place = interp.origin(node)
        return join_all(moved(m, "conditional", place) if type(m) is Tensor else m for m in members(value)) or UNKNOWN
    if name in NAMES["around"]:
        return interp.make(called, "autocast" if name == "autocast" else "nosync", arguments, node, log=False)
    if name == "launch" and value is not None:
        return interp.call(value, Arguments([], {}, True), node)
    return child(interp, made, f".{name}()", node, "call")


def _prepared(interp: Interpreter, arguments: Arguments, node: ast.AST) -> Value:
    """What ``prepare`` gives back: its arguments, on a device that it chooses."""
    values = [passed.value for passed in arguments.positions]
    for member in (each for value in values for each in members(value)):
        if type(member) is Made:
            member.attributes["prepared"] = Const(True)
        if isinstance(member, (Made, Instance)):
            member.device = "conditional"
    if arguments.star:
        return Sequence(None, interp.control, interp.origin(node), "tuple", join_all(values))
    return values[0] if len(values) == 1 else Sequence(values, interp.control, interp.origin(node))


def _call_dataset(interp: Interpreter, made: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    item = Tensor(frozenset({"data"}), "cpu", interp.origin(node), made)
    if name in ("map", "with_transform", "set_transform", "filter"):
        for member in members(arguments.at(0)):
            if isinstance(member, (Function, Bound)):
                interp.call(member, positional(item), node)
    if name in NAMES["dataset_copies"]:
        return made
    return item if name in ("__getitem__", "__next__") else child(interp, made, f".{name}()", node, "call")


def _call_trainer(interp: Interpreter, trainer: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A framework's trainer: ``fit`` calls the model's own hooks."""
    interp.event("call", node, f"{trainer.qualname}.{name}", trainer, arguments)
    if name in ("fit", "validate", "test", "predict"):
        for member in members(arguments.first("model")):
            if type(member) is Instance:
                _call_hooks(interp, member, arguments, node, trains=name == "fit")
    return child(interp, trainer, f".{name}()", node, "call")


def _call_hooks(interp: Interpreter, model: Instance, arguments: Arguments, node: ast.AST, *, trains: bool) -> None:
    given = arguments.value("train_dataloaders", 1) or arguments.value("train_dataloader")
    evaluation = arguments.value("val_dataloaders", 2) or arguments.value("dataloaders", 1)
    sources: list[Value] = [model, *members(arguments.value("datamodule")), *members(given)]
    for source in reversed(sources):  # the data are set up before the model is
        interp.call_own(source, "prepare_data", Arguments(), node)
        interp.call_own(source, "setup", positional(Const("fit")), node)
    if trains:
        interp.call_own(model, "configure_optimizers", Arguments(), node)
    hooks = (("training_step", given, "train_dataloader"), ("validation_step", evaluation, "val_dataloader"))
    for hook, passed, provider in hooks if trains else hooks[1:]:
        if type(model.cls.find(hook)) is not Function:
            continue
        loader: Value | None = passed
        for source in sources:
            loader = interp.call_own(source, provider, Arguments(), node) or loader
        batch = iterate(interp, loader, node)
        if batch is UNKNOWN:
            batch = interp.opaque("batch", "element", model.cls.node)
        interp.call_own(model, hook, positional(batch, NUMBER), node)
