"""The arguments of a call, and the parameters that they fill."""

from __future__ import annotations

import ast

from turbofix.domain.scopes import Scope
from turbofix.domain.trace import Arguments, Passed
from turbofix.domain.values import (
    UNKNOWN,
    Const,
    Entry,
    Function,
    Mapping,
    Option,
    Origin,
    Sequence,
    Value,
    join,
    join_all,
)
from turbofix.interpreter.containers import merge
from turbofix.interpreter.definitions import declared_parameters, default_value, option_default
from turbofix.interpreter.iteration import iterate
from turbofix.interpreter.state import Interpreter


def evaluate_arguments(interp: Interpreter, node: ast.Call) -> Arguments:
    """The arguments of a call, with its stars unpacked."""
    positions: list[Passed] = []
    keywords: dict[str, Passed] = {}
    arguments = Arguments(positions, keywords)
    evaluate = interp.eval
    for each in node.args:
        if not isinstance(each, ast.Starred):
            positions.append(Passed(evaluate(each), True, each))
            continue
        value = interp.eval(each.value)
        if type(value) is Sequence and value.items is not None:
            positions.extend(Passed(item) for item in value.items)
        else:
            arguments.star = True
            positions.append(Passed(iterate(interp, value, each)))
    for keyword in node.keywords:
        name, given = keyword.arg, keyword.value
        value = evaluate(given)
        if name is not None:
            keywords[name] = Passed(value, True, given)
            continue
        mapping = Mapping(None)
        merge(interp, mapping, value, strong=True)
        for key, entry in mapping.entries.items():
            if isinstance(key, str) and key not in keywords:
                origin = entry.origin
                place = origin.node if origin is not None and isinstance(origin.node, ast.expr) else None
                keywords[key] = Passed(entry.value, entry.must, None, place, origin.module if origin else None)
        arguments.open = arguments.open or mapping.open
        arguments.rest = join(arguments.rest, mapping.element)
    return arguments


def bind_parameters(
    interp: Interpreter, function: Function, arguments: Arguments, scope: Scope, node: ast.AST | None
) -> None:
    """Give a function's parameters their values."""
    declared = function.node.args
    ordinary, parameters = declared_parameters(declared)
    names = scope.names
    positions = arguments.positions
    used: set[str] = set()
    maybe = arguments.open or arguments.star
    for index, (name, parameter, default) in enumerate(parameters):
        passed = positions[index] if index < len(positions) and index < ordinary else None
        if passed is None:
            passed = arguments.keywords.get(name)
            if passed is not None:
                used.add(name)
        if passed is None:
            names[name] = _default(interp, function, parameter, default, node, maybe, arguments)
        elif passed.must:
            names[name] = passed.value
        else:
            otherwise = _default(interp, function, parameter, default, node, maybe, arguments)
            names[name] = join(passed.value, otherwise) or UNKNOWN
    if declared.vararg is not None:
        rest = [passed.value for passed in positions[ordinary:]]
        unknown = arguments.star or node is None
        names[declared.vararg.arg] = Sequence(
            None if unknown else rest, interp.control, None, "tuple", join_all(rest) if unknown else None
        )
    if declared.kwarg is not None:
        mapping = Mapping(interp.control, None, {}, arguments.open or node is None, arguments.rest)
        for name, passed in arguments.keywords.items():
            if name not in used:
                place = passed.node or passed.entry
                module = passed.entry_module or interp.control.module or function.module
                origin = Origin(place, module) if place is not None else None
                mapping.entries[name] = Entry(passed.value, passed.must, origin)
        names[declared.kwarg.arg] = mapping


def _default(  # noqa: PLR0913
    interp: Interpreter,
    function: Function,
    parameter: ast.arg,
    default: ast.expr | None,
    node: ast.AST | None,
    maybe: bool,
    arguments: Arguments,
) -> Value:
    """The value of a parameter that is not passed, as far as one sees."""
    if default is None:
        unknown = interp.opaque(parameter.arg, "parameter", parameter)
        if maybe and arguments.rest is not None:
            return join(arguments.rest, unknown) or unknown
        return unknown
    value = default_value(interp, function, default)
    if node is not None and not maybe:
        return value
    unwrapped = option_default(value)
    if type(unwrapped) is Const and unwrapped.value is not None:
        how = "parameter" if unwrapped is value else "typer"
        origin = unwrapped.origin if unwrapped is not value else Origin(default, function.module)
        return Option(parameter.arg, unwrapped, origin, how, isinstance(unwrapped.value, bool))
    return join(value, interp.opaque(parameter.arg, "parameter", parameter)) or UNKNOWN
