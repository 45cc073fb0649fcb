"""Objects of the project's classes: what their constructors and bases make of them."""

from __future__ import annotations

import ast

from turbofix.domain.trace import Arguments
from turbofix.domain.values import UNKNOWN, Bound, Class, Function, Instance, join
from turbofix.interpreter.brains.config_files import COMMAND_LINES, command_line
from turbofix.interpreter.definitions import LAYERS, field_default, fields_of, is_module
from turbofix.interpreter.models import LAYERED, layers_given
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries

CONSTRUCTIONS = 12


_BASES_MADE = frozenset(
    {"loader", "dataset", "sampler", "argparse", "optimizer", "scheduler", "accelerator", "trainer"}
)


def takes(cls: Class, arguments: Arguments) -> bool:
    """Whether a class can be made with arguments: one of several that cannot is not the one that is meant."""
    init = cls.find("__init__")
    if arguments.open or arguments.star or type(init) is not Function or isinstance(init.node, ast.Lambda):
        return True
    given = init.node.args
    if init.node.decorator_list or given.vararg is not None:
        return True
    named = [each.arg for each in (*given.args, *given.kwonlyargs)]
    if given.kwarg is None and not arguments.keywords.keys() <= {*named}:
        return False
    by_position = [*given.posonlyargs, *given.args][1:]
    if len(arguments.positions) > len(by_position):
        return False
    needed = [each.arg for each in by_position[: len(by_position) - len(given.defaults)]]
    needed = needed[len(arguments.positions) :]
    needed += [each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return arguments.keywords.keys() >= {*needed}


def new_instance(interp: Interpreter, cls: Class, node: ast.AST) -> Instance:
    """An object of the class, before its ``__init__``."""
    instance = Instance(cls, interp.origin(node), interp.control)
    for qualname in cls.externals():
        if libraries.kind_of(qualname) == "argparse":
            instance.base = interp.make(qualname, "argparse", Arguments(), node, log=False)
    return instance


def construct(interp: Interpreter, cls: Class, arguments: Arguments, node: ast.AST) -> Instance:
    """Make an object of a class of the project."""
    instance = new_instance(interp, cls, node)
    instance.arguments = arguments
    interp.event("construct", node, cls.node.name, None, arguments, instance)
    init = cls.find("__init__")
    if type(init) is Function:
        key = cls.node
        count = interp.count(key)
        earlier = interp.instances.get(key)
        if count >= CONSTRUCTIONS and earlier is not None:
            instance.attributes.update(earlier.attributes)
            instance.base = earlier.base
            return instance
        interp.call(Bound(instance, init), arguments, node)
        interp.instances[key] = instance
        return instance
    interp.instances[cls.node] = instance
    if fields := fields_of(cls):
        _fill_fields(interp, instance, fields, arguments)
        finish = cls.find("__post_init__")
        if type(finish) is Function:
            interp.call(Bound(instance, finish), Arguments(), node)
    elif instance.base is None:
        make_base(interp, instance, arguments, node)
    return instance


def make_base(interp: Interpreter, instance: Instance, arguments: Arguments, node: ast.AST) -> None:
    """What the constructor of the external base makes: a loader for DataLoader's, layers for Sequential's."""
    for qualname in instance.cls.externals():
        if qualname in LAYERED:
            inner = layers_given(interp, qualname, arguments, node)
            instance.attributes[LAYERS] = interp.make(qualname, "module", arguments, node, inner, log=False)
        if is_module(instance):
            continue
        kind = libraries.kind_of(qualname)
        if qualname in COMMAND_LINES:
            instance.base = command_line(interp, qualname, arguments, node)
            instance.attributes |= instance.base.attributes
            return
        if kind in _BASES_MADE and qualname not in ("torch.utils.data.Dataset", "torch.utils.data.IterableDataset"):
            if kind == "argparse":
                return
            instance.base = interp.make(qualname, kind, arguments, node)
            return


def _fill_fields(
    interp: Interpreter, instance: Instance, fields: list[tuple[ast.AnnAssign, Class]], arguments: Arguments
) -> None:
    for index, (statement, owner) in enumerate(fields):
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        passed = arguments.get(name, index)
        default = field_default(interp, statement, owner)
        if passed is not None and passed.must:
            instance.attributes[name] = passed.value
        elif passed is not None:
            instance.attributes[name] = join(passed.value, default) or UNKNOWN
        elif arguments.open or arguments.star:
            instance.attributes[name] = join(default, UNKNOWN) or UNKNOWN
        elif default is not None:
            instance.attributes[name] = default
        else:
            instance.attributes[name] = interp.opaque(name, "parameter", statement)
