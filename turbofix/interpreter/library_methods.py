"""Methods of what libraries make, of containers, and of classes that derive from a library's."""

from __future__ import annotations

import ast
import contextlib

from turbofix.domain.tensors import moved, scaled, tensors_in, tensors_passed, unknown_of
from turbofix.domain.trace import Arguments, positional
from turbofix.domain.values import (
    FROM_FILE,
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
    is_hashable,
    join,
    join_all,
    members,
)
from turbofix.interpreter.attributes import child, write_attribute
from turbofix.interpreter.brains.command_line import call_class_parser, call_parser, options_of
from turbofix.interpreter.containers import append, drop_item, element_of, items_of, merge, of_option, put, put_keywords
from turbofix.interpreter.definitions import is_module
from turbofix.interpreter.elements import iterate, read_item
from turbofix.interpreter.imports import fill, text_of
from turbofix.interpreter.project_calls import make_base
from turbofix.interpreter.state import Interpreter
from turbofix.interpreter.torch_calls import call_model_method
from turbofix.interpreter.unknowns import (
    ACTS,
    act_of_unknown,
    call_closure,
    call_method_of_anything,
    hand,
    show,
    target_of,
)
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES


def call_mapping_method(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method of a dict."""
    origin = interp.origin(node)
    if name == "update":
        return _update_mapping(interp, mapping, arguments)
    if name in ("get", "pop", "setdefault"):
        return _take(interp, mapping, name, arguments, node)
    if name in ("items", "values", "keys"):
        part = iterate(interp, mapping, node) if name == "keys" else read_item(interp, mapping, None, node)
        element = Sequence([UNKNOWN, part]) if name == "items" else part
        return Iterated(element, mapping, name, origin)
    if name in ("copy", "__copy__"):
        copied = Mapping(interp.control, mapping.origin)
        merge(interp, copied, mapping, strong=True)
        return copied
    if name in ("to", "cuda", "cpu"):
        interp.event("transfer", node, name, mapping, arguments, mapping)
        first = next(tensors_in(mapping), None)
        moved_element = moved(first, target_of(name, arguments) or "unknown", origin) if first else mapping.element
        return Mapping(interp.control, mapping.origin, {}, True, moved_element)
    if name == "clear" and interp.certainty(mapping.made_at) == "strong":
        mapping.entries.clear()
        return NONE
    known = act_of_unknown(interp, mapping, name, arguments, node) if not arguments.positions else None
    return known or UNKNOWN


def _update_mapping(interp: Interpreter, mapping: Mapping, arguments: Arguments) -> Value:
    certainty = interp.certainty(mapping.made_at)
    if certainty != "never":
        value = arguments.at(0)
        if value is not None:
            merge(interp, mapping, value, certainty == "strong")
        put_keywords(interp, mapping, arguments, certainty == "strong")
    return NONE


def _take(interp: Interpreter, mapping: Mapping, name: str, arguments: Arguments, node: ast.AST) -> Value:
    fill(interp, mapping)
    key, default = arguments.at(0), arguments.at(1) or NONE
    if not (type(key) is Const and is_hashable(key.value)):
        return read_item(interp, mapping, key, node)
    entry = mapping.entries.get(key.value)
    if entry is not None:
        found: Value | None = entry.value if entry.must else join(entry.value, default)
    else:
        found = join(mapping.element or UNKNOWN, default) if mapping.open else default
    if name == "setdefault" and not (entry is not None and entry.must):
        place = arguments.positions[1].node if len(arguments.positions) > 1 else None
        put(interp, mapping, key, found or UNKNOWN, place)
    elif name == "pop":
        drop_item(interp, mapping, key)
    return found or UNKNOWN


def call_namespace_method(
    interp: Interpreter, namespace: Namespace, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A method of parsed options, or of a dict whose keys are attributes."""
    value = arguments.at(0)
    if name == "update":
        given = Mapping(namespace.made_at)
        _update_mapping(interp, given, arguments)
        namespace.open = namespace.open or given.open
        for key, entry in given.entries.items():
            if isinstance(key, str):
                write_attribute(interp, namespace, key, entry.value, node)
        return NONE
    if name in ("get", "pop", "setdefault") and type(value) is Const and isinstance(value.value, str):
        otherwise = arguments.at(1) or (UNKNOWN if namespace.open else NONE)
        return namespace.attributes.get(value.value, otherwise)
    if name == "items":
        everything = join_all(namespace.attributes.values()) or UNKNOWN
        return Iterated(Sequence([UNKNOWN, everything]), namespace, name, interp.origin(node))
    if name == "copy":
        return Namespace(interp.control, dict(namespace.attributes), namespace.open)
    if name in ("merge_from_file", "merge_from_list", "load"):
        _open_to_file(namespace)
        return NONE
    return act_of_unknown(interp, namespace, name, arguments, node) or UNKNOWN


def _open_to_file(namespace: Namespace, depth: int = 4) -> None:
    """What a configuration file may override is an option, in the namespaces below too."""
    namespace.open = True
    for key, old in list(namespace.attributes.items()):
        if type(old) is Const:
            namespace.attributes[key] = Option(key, old, old.origin, "file", isinstance(old.value, bool))
        elif type(old) is Namespace and depth:
            _open_to_file(old, depth - 1)


def call_sequence_method(
    interp: Interpreter, sequence: Sequence, name: str, arguments: Arguments, node: ast.AST
) -> Value:
    """A method of a list, tuple or set."""
    value = arguments.at(0)
    if name in ("append", "add", "appendleft", "insert"):
        added = arguments.at(1) if name == "insert" else value
        if added is not None:
            append(interp, sequence, added, at_end=name in ("append", "add"))
            interp.event("call", node, f"list.{name}", sequence, arguments)
        return NONE
    if name in ("extend", "update", "extendleft") and value is not None:
        if type(value) is Sequence and value.items is not None and sequence.items is not None:
            for item in list(value.items):
                append(interp, sequence, item, at_end=True)
        else:
            append(interp, sequence, iterate(interp, value, node), at_end=False)
        return NONE
    if name in ("pop", "popleft"):
        at = value.value if type(value) is Const else 0 if name == "popleft" else None if arguments.positions else -1
        items = sequence.items if interp.certainty(sequence.made_at) == "strong" else None
        if items and type(at) is int and -len(items) <= at < len(items):
            return items.pop(at)
        return element_of(sequence)
    if name == "copy":
        items = list(sequence.items) if sequence.items is not None else None
        return Sequence(items, interp.control, sequence.origin, sequence.kind, sequence.element)
    if name in ("index", "count"):
        return NUMBER
    known = act_of_unknown(interp, sequence, name, arguments, node) if name != "clear" else NONE
    return known if known is not None else NONE if name in ("sort", "reverse", "remove") else UNKNOWN


def call_text_method(interp: Interpreter, receiver: Const, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method of a constant: of a text, what it gives."""
    text, origin = receiver.value, interp.origin(node)
    if not isinstance(text, str):
        return call_method_of_anything(interp, receiver, name, arguments, node) if text is not None else UNKNOWN
    if name == "format":
        interp.show_arguments(arguments, node, "format")
        return interp.text(text, node)
    given = [passed.value.value if type(passed.value) is Const else None for passed in arguments.positions]
    if name in NAMES["text_methods"] and None not in given and not arguments.keywords:
        with contextlib.suppress(TypeError, ValueError):
            made = getattr(text, name)(*given)
            if not isinstance(made, (list, tuple)):
                return Const(made, origin)
            return Sequence([Const(each, origin) for each in made], interp.control, origin, "list")
    joined = arguments.at(0) if name == "join" else None
    if type(joined) is Sequence and joined.items is not None:
        named = [each for each in joined.items if type(each) is Option and each.how == FROM_FILE]
        words = [text_of(each) for each in joined.items]
        if len(named) in (0, len(words)) and not any(word is None for word in words):
            whole = Const(text.join(word for word in words if word is not None), origin)
            return of_option(named[0], whole) if named else whole
    return Sequence(None, interp.control, origin, "list", UNKNOWN) if name == "split" else UNKNOWN


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
