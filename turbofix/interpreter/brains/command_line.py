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
    Option,
    Origin,
    Sequence,
    Value,
    members,
)
from turbofix.interpreter.containers import element_of
from turbofix.interpreter.definitions import default_value, field_default, fields_of, option_default
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries

_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group", "add_subparsers", "add_parser"})
_PARSES = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"})


# --- argparse ---------------------------------------------------------------------------------------------------------


def make_parser(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Made:
    """An ``ArgumentParser``, with the options of its parents."""
    parser = interp.make(qualname, "argparse", arguments, node)
    namespace = declared(parser)
    parents = arguments.get("parents")
    for value in members(parents.value) if parents is not None else ():
        if not isinstance(value, Sequence):
            continue
        for parent in members(element_of(value)):
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
        destination = arguments.get("dest")
        if name == "add_subparsers" and destination is not None and isinstance(destination.value, Const):
            key = str(destination.value.value)
            namespace.attributes[key] = Option(key, UNKNOWN, interp.origin(node), "argparse")
        return parser
    if name == "set_defaults":
        for key, passed in arguments.keywords.items():
            old = namespace.attributes.get(key)
            origin = interp.origin(passed.node) if passed.node is not None else None
            if isinstance(old, Option):
                namespace.attributes[key] = Option(old.name, passed.value, origin, old.how, old.flag)
            else:
                namespace.attributes[key] = passed.value
        namespace.open = namespace.open or arguments.open
        return NONE
    if name in _PARSES:
        parsed = Namespace(interp.control, dict(namespace.attributes), namespace.open)
        for key in _passed_by_code(arguments, parsed):
            old = parsed.attributes[key]
            assert isinstance(old, Option)
            parsed.attributes[key] = Option(old.name, UNKNOWN, old.origin, old.how, old.flag)
        for target in _given_namespace(arguments):
            for key, value in parsed.attributes.items():
                target.attributes.setdefault(key, value)
            parsed = target
        if name == "parse_known_args":
            rest = interp.opaque("<arguments>", "call", node)
            return Sequence([parsed, rest], interp.control, interp.origin(node))
        return parsed
    if name == "error":
        return NEVER
    if name not in ("print_help", "format_help", "print_usage", "add_argument_group"):
        namespace.open = namespace.open or not parser.qualname.startswith("argparse")
    return interp.opaque(f"{parser.qualname}.{name}()", "call", node)


def _passed_by_code(arguments: Arguments, parsed: Namespace) -> list[str]:
    """The options that the code itself passes, whose defaults say nothing: ``parse_args(["--size", "7"])``."""
    passed = arguments.get("args", 0)
    given = (
        [each for value in members(passed.value) if isinstance(value, Sequence) for each in value.items or []]
        if (passed is not None)
        else []
    )
    words = [each.value for each in given if isinstance(each, Const) and isinstance(each.value, str)]
    flags = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    short = any(word.startswith("-") and not word.startswith("--") for word in words)  # which one, nothing tells
    options = [key for key, value in parsed.attributes.items() if isinstance(value, Option)]
    return [key for key in options if short or any(key.startswith(flag) for flag in flags)]


def _given_namespace(arguments: Arguments) -> list[Namespace]:
    passed = arguments.get("namespace", 1)
    return [each for each in members(passed.value) if isinstance(each, Namespace)] if passed is not None else []


def _add_argument(interp: Interpreter, namespace: Namespace, arguments: Arguments, node: ast.AST) -> None:
    names = [
        passed.value.value
        for passed in arguments.positions
        if isinstance(passed.value, Const) and isinstance(passed.value.value, str)
    ]
    long = [name for name in names if name.startswith("--")] or names
    destination = _text(arguments, "dest")
    if not long and destination is None:
        namespace.open = True
        return
    name = long[0] if long else str(destination)
    key = destination or name.lstrip("-").replace("-", "_")
    action = arguments.get("action")
    action_name = _text(arguments, "action")
    if (
        action is not None
        and isinstance(action.value, External)
        and action.value.qualname == "argparse.BooleanOptionalAction"
    ):
        action_name = "BooleanOptionalAction"
    if action_name in ("version", "help"):
        return
    flag = action_name in ("store_true", "store_false", "BooleanOptionalAction")
    default = arguments.get("default")
    origin = interp.origin(node)
    value: Value
    if _is_true(arguments, "required"):
        value = UNKNOWN  # it must be given: a default never holds
    elif default is not None:
        value = default.value
        if default.node is not None:
            origin = interp.origin(default.node)
        elif default.entry is not None and default.entry_module is not None:
            origin = Origin(default.entry, default.entry_module)
    elif flag and action_name != "BooleanOptionalAction":
        value = Const(action_name == "store_false", origin)
    elif not name.startswith("-"):
        value = UNKNOWN  # must be given
    else:
        value = NONE
    if isinstance(value, Option):
        value = value.default
    type_ = arguments.get("type")
    if (
        isinstance(value, Const)
        and isinstance(value.value, str)
        and type_ is not None
        and isinstance(type_.value, External)
    ):
        value = _typed(value, type_.value.qualname)
    option = Option(name, value, origin, "argparse", flag)
    old = namespace.attributes.get(key)
    # several arguments may share a destination: --cuda and --no-cuda
    if isinstance(old, Option) and default is None and flag:
        option = Option(old.name, old.default, old.origin, old.how, old.flag)
    namespace.attributes[key] = option


def _typed(value: Const, qualname: str) -> Const:
    """argparse converts a default that is a text."""
    try:
        if qualname == "builtins.int":
            return Const(int(str(value.value)), value.origin)
        if qualname == "builtins.float":
            return Const(float(str(value.value)), value.origin)
    except ValueError:
        return value
    return value


def _text(arguments: Arguments, name: str) -> str | None:
    passed = arguments.get(name)
    if passed is not None and isinstance(passed.value, Const) and isinstance(passed.value.value, str):
        return passed.value.value
    return None


def _is_true(arguments: Arguments, name: str) -> bool:
    passed = arguments.get(name)
    return passed is not None and isinstance(passed.value, Const) and passed.value.value is True


# --- dataclasses and functions as command lines -----------------------------------------------------------------------


def options_of(interp: Interpreter, cls: Class, node: ast.AST, how: str = "dataclass") -> Value:
    """An object of a dataclass that is filled from the command line."""
    instance = interp.call(cls, Arguments(), node)
    if not isinstance(instance, Instance):
        return instance
    fields = fields_of(cls)
    if not fields:
        fields = [
            (statement, owner)
            for owner in reversed(cls.mro())
            if isinstance(owner, Class)
            for statement in owner.node.body
            if isinstance(statement, ast.AnnAssign)
        ]
    for statement, owner in fields:
        if not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        value = instance.attributes.get(name) or field_default(interp, statement, owner) or UNKNOWN
        if isinstance(value, (Instance, Option)):
            continue
        place = (
            value.origin.node if isinstance(value, Const) and value.origin is not None else statement.value or statement
        )
        flag = isinstance(value, Const) and isinstance(value.value, bool)
        instance.attributes[name] = Option(name, value, Origin(place, owner.module), how, flag)
    return instance


def structured_cli(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``tyro.cli(Config)``, ``fire.Fire(main)``, ``typer.run(main)``, ``app.run(main)``."""
    interp.event("call", node, qualname, None, arguments)
    target = arguments.first("f", "component", "config_class", "function")
    for member in members(target):
        if isinstance(member, Class):
            return options_of(interp, member, node, qualname.partition(".")[0])
        if isinstance(member, (Function, Bound)):
            return invoke_from_command_line(interp, member, node, qualname.partition(".")[0])
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
    receiver = function.receiver if isinstance(function, Bound) else None
    target = function.function if isinstance(function, Bound) else function
    arguments = click_options(interp, target)
    if receiver is not None:
        arguments.positions.insert(0, Passed(receiver))
    declared = target.node.args
    ordinary = [*declared.posonlyargs, *declared.args]
    defaults: dict[str, ast.expr] = dict(
        zip([each.arg for each in ordinary[len(ordinary) - len(declared.defaults) :]], declared.defaults, strict=True)
    )
    defaults.update(
        {
            each.arg: value
            for each, value in zip(declared.kwonlyargs, declared.kw_defaults, strict=True)
            if value is not None
        }
    )
    for name, default in defaults.items():
        if name not in arguments.keywords:
            value = default_value(interp, target, default)
            unwrapped = option_default(value)
            origin = Origin(default, target.module)
            if unwrapped is not value and isinstance(unwrapped, Const) and unwrapped.origin is not None:
                origin = unwrapped.origin
            flag = isinstance(unwrapped, Const) and isinstance(unwrapped.value, bool)
            arguments.keywords[name] = Passed(Option(name, unwrapped, origin, how, flag))
    arguments.open = declared.kwarg is not None
    return interp.invoke(target, arguments, node)


def click_options(interp: Interpreter, function: Function) -> Arguments:
    """The options that click's decorators declare, by the parameter that they fill."""
    arguments = Arguments()
    for node in getattr(function.node, "decorator_list", ()):
        if not isinstance(node, ast.Call):
            continue
        callee = default_value(interp, function, node.func)
        if not (
            isinstance(callee, External) and callee.qualname in ("click.option", "click.argument", "rich_click.option")
        ):
            continue
        names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        long = next((name for name in names if name.startswith("--")), None)
        bare = next((name for name in names if not name.startswith("-")), None)
        if long is None and bare is None:
            continue
        key = bare or str(long).split("/")[0].lstrip("-").replace("-", "_").lower()
        keywords = {each.arg: each.value for each in node.keywords if each.arg is not None}
        default = keywords.get("default")
        value = default_value(interp, function, default) if default is not None else NONE
        flag = "is_flag" in keywords or "/" in (long or "")
        if default is None and flag:
            value = Const(False)
        option = Option((long or key).split("/")[0], value, Origin(default or node, function.module), "click", flag)
        arguments.keywords[key] = Passed(option)
    return arguments


def absl_flag(interp: Interpreter, qualname: str, arguments: Arguments, node: ast.AST) -> Value:
    """``flags.DEFINE_integer("batch_size", 32, "...")``."""
    namespace = interp.absl_flags()
    name = arguments.first("name")
    default = arguments.get("default", 1)
    if not (isinstance(name, Const) and isinstance(name.value, str)):
        return UNKNOWN
    place = default.node if default is not None and default.node is not None else node
    value = default.value if default is not None else NONE
    option = Option(f"--{name.value}", value, interp.origin(place), "absl", "bool" in qualname)
    namespace.attributes[name.value] = option
    return Namespace(None, {"value": option})
