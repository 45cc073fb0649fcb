"""Options of the command line: what the user of a script may choose, and what it is otherwise."""

from __future__ import annotations

import ast

from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    NEVER,
    NONE,
    UNKNOWN,
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Namespace,
    Opaque,
    Option,
    Origin,
    Sequence,
    Unknown,
    Value,
    join,
    members,
)
from turbofix.interpreter.containers import element_of
from turbofix.interpreter.definitions import (
    annotated,
    declared_parameters,
    default_value,
    evaluated,
    field_default,
    option_default,
)
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries

_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group", "add_subparsers", "add_parser"})
_PARSES = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"})


# --- argparse ---------------------------------------------------------------------------------------------------------


def make_parser(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Made:
    """An ``ArgumentParser``, with the options of its parents."""
    parser = interp.make(qualname, "argparse", arguments, node)
    namespace = declared(parser)
    for value in members(arguments.value("parents")):
        for parent in members(element_of(value)) if isinstance(value, Sequence) else ():
            base = parent.base if isinstance(parent, Instance) else parent
            if isinstance(base, Made) and isinstance(base.inner, Namespace):
                namespace.attributes.update(base.inner.attributes)
                namespace.open = namespace.open or base.inner.open
    return parser


def declared(parser: Made) -> Namespace:
    """The options that were added to a parser so far."""
    if not isinstance(parser.inner, Namespace):
        parser.inner = Namespace(None)
    return parser.inner


def call_parser(interp: Interpreter, parser: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """A method of a parser, or of one of its groups or subparsers, which count as the parser itself."""
    namespace = declared(parser)
    if name in ("add_argument", "add_option", "add"):
        _add_argument(interp, namespace, arguments, node)
        return interp.opaque("<argument>", "call", node)
    if name in _GROUPS:
        destination = _constant(arguments, "dest")
        if name == "add_subparsers" and destination is not None:
            namespace.attributes[str(destination)] = Option(str(destination), UNKNOWN, interp.origin(node), "argparse")
        return parser
    if name == "set_defaults":
        for key, passed in arguments.keywords.items():
            old = namespace.attributes.get(key)
            origin = interp.origin(passed.node) if passed.node is not None else None
            if isinstance(old, Option):
                namespace.attributes[key] = _changed(old, passed.value, origin)
            else:  # each subparser may say another one
                namespace.attributes[key] = join(old, passed.value) or passed.value
        namespace.open = namespace.open or arguments.open
        return NONE
    if name in _PARSES:
        parsed = Namespace(interp.control, dict(namespace.attributes), namespace.open)
        for key, old in _passed_by_code(arguments, parsed).items():
            parsed.attributes[key] = _changed(old, UNKNOWN, old.origin)
        given = arguments.value("namespace", 1)
        if isinstance(given, Namespace):
            given.attributes.update(parsed.attributes | given.attributes)
            parsed = given
        if name == "parse_known_args":
            rest = interp.opaque("<arguments>", "call", node)
            return Sequence([parsed, rest], interp.control, interp.origin(node))
        return parsed
    return NEVER if name == "error" else interp.opaque(f"{parser.qualname}.{name}()", "call", node)


def _changed(option: Option, default: Value, origin: Origin | None) -> Option:
    return Option(option.name, default, origin, option.how, option.flag)


def _passed_by_code(arguments: Arguments, parsed: Namespace) -> dict[str, Option]:
    """The options that the code itself passes, whose defaults say nothing: ``parse_args(["--size", "7"])``."""
    lists = [value for value in members(arguments.value("args", 0)) if isinstance(value, Sequence)]
    given = [each.value for value in lists for each in value.items or [] if isinstance(each, Const)]
    words = [word for word in given if isinstance(word, str) and word.startswith("-")]
    flags = tuple(word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--"))
    short = len(flags) < len(words)  # which one, nothing tells
    options = {key: value for key, value in parsed.attributes.items() if isinstance(value, Option)}
    return {key: value for key, value in options.items() if short or (flags and key.startswith(flags))}


def _add_argument(interp: Interpreter, namespace: Namespace, arguments: Arguments, node: ast.AST) -> None:
    given = [passed.value.value for passed in arguments.positions if isinstance(passed.value, Const)]
    names = [name for name in given if isinstance(name, str)]
    long = [name for name in names if name.startswith("--")] or names
    destination = _constant(arguments, "dest")
    if not long and destination is None:
        namespace.open = True
        return
    name = long[0] if long else str(destination)
    key = str(destination or name.lstrip("-").replace("-", "_"))
    action = arguments.value("action")
    how = action.value if isinstance(action, Const) else None
    if how in ("version", "help"):
        return
    flag = how in ("store_true", "store_false") or _is_on_and_off(action)
    default, required = arguments.get("default"), _constant(arguments, "required") is True
    origin = interp.origin(node)
    value: Value = NONE
    if default is not None and not required:
        value = default.value
        if default.node is not None:
            origin = interp.origin(default.node)
    elif how in ("store_true", "store_false") and not required:
        value = Const(how == "store_false", origin)
    elif required or not name.startswith("-"):
        value = UNKNOWN  # must be given
    if isinstance(value, Option):
        value = value.default
    kind = arguments.value("type")
    if isinstance(value, Const) and isinstance(value.value, str) and isinstance(kind, External):
        value = _typed(value, kind.qualname)
    old = namespace.attributes.get(key)
    if isinstance(old, Option) and default is None and flag:  # --cuda and --no-cuda share a destination
        namespace.attributes[key] = old
    else:
        namespace.attributes[key] = Option(name, value, origin, "argparse", flag)


def _is_on_and_off(action: Value | None) -> bool:
    """``argparse.BooleanOptionalAction``."""
    return isinstance(action, External) and action.qualname == "argparse.BooleanOptionalAction"


def _typed(value: Const, qualname: str) -> Const:
    """argparse converts a default that is a text."""
    convert = {"builtins.int": int, "builtins.float": float}.get(qualname)
    try:
        return Const(convert(str(value.value)), value.origin) if convert is not None else value
    except ValueError:
        return value


def _constant(arguments: Arguments, name: str) -> object:
    """What is passed by that name, where it is a constant."""
    value = arguments.value(name)
    return value.value if isinstance(value, Const) else None


# --- dataclasses and functions as command lines -----------------------------------------------------------------------


_MAPPING = ("dacite",)
"""Libraries that fill a dataclass from a mapping, which comes from anywhere."""


def options_of(
    interp: Interpreter, cls: Class, node: ast.AST, how: str = "dataclass", inside: tuple[Class, ...] = ()
) -> Value:
    """An object of a dataclass that is filled from the command line, with those of its fields that are dataclasses.

    What a mapping fills is not known: it may have another value for any default.
    """
    instance = interp.call(cls, Arguments(), node)
    assert isinstance(instance, Instance)
    for statement, owner in annotated(cls):
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        value = instance.attributes.get(name) or field_default(interp, statement, owner) or UNKNOWN
        kind = evaluated(interp, statement.annotation, owner.module.scope) if type(value) in (Unknown, Opaque) else None
        if type(kind) is Class and kind not in (cls, *inside):
            instance.attributes[name] = value = options_of(interp, kind, node, how, (cls, *inside))
        if how in _MAPPING and not isinstance(value, Instance):
            instance.attributes[name] = UNKNOWN
        elif not isinstance(value, (Instance, Option)):
            origin = value.origin if isinstance(value, Const) else None
            place = origin.node if origin is not None else statement.value or statement
            flag = isinstance(value, Const) and isinstance(value.value, bool)
            instance.attributes[name] = Option(name, value, Origin(place, owner.module), how, flag)
    return instance


def structured_cli(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``tyro.cli(Config)``, ``fire.Fire(main)``, ``app.run(main)``, and ``dacite.from_dict(Config, settings)``."""
    interp.event("call", node, qualname, None, arguments)
    target = arguments.first("f", "component", "config_class", "function", "data_class")
    how = qualname.partition(".")[0]
    for member in members(target):
        if isinstance(member, Class):
            return options_of(interp, member, node, how)
        if isinstance(member, (Function, Bound)):
            return invoke_from_command_line(interp, member, node, how)
    return interp.opaque(qualname + "()", "call", node)


def call_class_parser(interp: Interpreter, parser: Made, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``HfArgumentParser((A, B)).parse_args_into_dataclasses()``: the settings get what ``set_defaults`` gave."""
    if name == "set_defaults":
        parser.arguments.keywords.update(arguments.keywords)
    if not name.startswith("parse"):
        return UNKNOWN
    given = parser.arguments.first("dataclass_types")
    classes = given.items if isinstance(given, Sequence) and given.items is not None else [given]
    filled = Arguments(keywords=dict(parser.arguments.keywords), open=True)
    found: list[Value] = []
    for cls in classes:
        if isinstance(cls, Class):
            found.append(options_of(interp, cls, node))
        elif isinstance(cls, External):
            found.append(interp.make(cls.qualname, libraries.kind_of(cls.qualname) or "config", filled, node))
        else:
            found.append(UNKNOWN)
    return Sequence(found, interp.control, interp.origin(node))


def invoke_from_command_line(
    interp: Interpreter, function: Function | Bound, node: ast.AST, how: str = "parameter"
) -> Value:
    """Call a function whose parameters the user of the script chooses: each default becomes an option."""
    target = function.function if isinstance(function, Bound) else function
    arguments = click_options(interp, target)
    if isinstance(function, Bound):
        arguments.positions.insert(0, Passed(function.receiver))
    for name, _, default in declared_parameters(target.node.args)[1]:
        if default is not None and name not in arguments.keywords:
            value = default_value(interp, target, default)
            unwrapped = option_default(value)
            told = unwrapped.origin if unwrapped is not value and isinstance(unwrapped, Const) else None
            flag = isinstance(unwrapped, Const) and isinstance(unwrapped.value, bool)
            arguments.keywords[name] = Passed(
                Option(name, unwrapped, told or Origin(default, target.module), how, flag)
            )
    arguments.open = target.node.args.kwarg is not None
    return interp.invoke(target, arguments, node)


def click_options(interp: Interpreter, function: Function) -> Arguments:
    """The options that click's decorators declare, by the parameter that they fill."""
    arguments = Arguments()
    for node in getattr(function.node, "decorator_list", ()):
        callee = default_value(interp, function, node.func) if isinstance(node, ast.Call) else None
        if not (isinstance(callee, External) and callee.qualname in CLICK):
            continue
        names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        long = next((name.split("/")[0] for name in names if name.startswith("--")), None)
        bare = next((name for name in names if not name.startswith("-")), None)
        key = bare or (long or "").lstrip("-").replace("-", "_").lower()
        told = {each.arg: each.value for each in node.keywords}
        default = told.get("default")
        flag = "is_flag" in told or any("/" in name for name in names)
        otherwise = Const(False) if flag else NONE
        value = default_value(interp, function, default) if default is not None else otherwise
        option = Option(long or key, value, Origin(default or node, function.module), "click", flag)
        arguments.keywords[key] = Passed(option)
    return arguments


CLICK = ("click.option", "click.argument", "rich_click.option")


def absl_flag(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``flags.DEFINE_integer("batch_size", 32, "...")``."""
    name, default = arguments.first("name"), arguments.get("default", 1)
    if not (isinstance(name, Const) and isinstance(name.value, str)):
        return UNKNOWN
    value, place = (default.value, default.node or node) if default is not None else (NONE, node)
    option = Option(f"--{name.value}", value, interp.origin(place), "absl", "bool" in qualname)
    interp.absl_flags().attributes[name.value] = option
    return Namespace(None, {"value": option})
