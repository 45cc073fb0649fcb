"""Calls of the project's functions and classes: their bodies are executed where the call stands, so many calls deep."""

from __future__ import annotations

import ast

from turbofix.domain.scopes import Frame, Scope
from turbofix.domain.trace import Arguments, Passed, completed, positional
from turbofix.domain.values import (
    NONE,
    UNKNOWN,
    Bound,
    Class,
    Const,
    Entry,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    Option,
    Origin,
    Partial,
    Sequence,
    Value,
    join,
    join_all,
    members,
)
from turbofix.interpreter.brains.command_line import CLICK, click_options
from turbofix.interpreter.brains.config_files import command_line, given_by_hydra
from turbofix.interpreter.containers import merge
from turbofix.interpreter.definitions import (
    LAYERS,
    declared_parameters,
    default_value,
    field_default,
    fields_of,
    has_decorator,
    is_module,
    option_default,
    stops_gradients,
)
from turbofix.interpreter.elements import iterate
from turbofix.interpreter.library_calls import call_external
from turbofix.interpreter.models import LAYERED, layers_given
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries
from turbofix.library.tables import NAMES
from turbofix.source.answers import once_per_node


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
    names, positions = scope.names, arguments.positions
    used: set[str] = set()
    maybe = arguments.open or arguments.star
    for index, (name, parameter, default) in enumerate(parameters):
        passed = positions[index] if index < len(positions) and index < ordinary else None
        if passed is None:
            passed = arguments.keywords.get(name)
            used.add(name)
        if passed is not None and passed.must:
            names[name] = passed.value
        else:
            otherwise = _default(interp, function, parameter, default, None if maybe else node, arguments)
            names[name] = join(passed.value, otherwise) or UNKNOWN if passed is not None else otherwise
    if declared.vararg is not None:
        rest = [passed.value for passed in positions[ordinary:]]
        unknown = arguments.star or node is None
        items, element = (None, join_all(rest)) if unknown else (rest, None)
        names[declared.vararg.arg] = Sequence(items, interp.control, None, "tuple", element)
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
    call: ast.AST | None,
    arguments: Arguments,
) -> Value:
    """The value of a parameter that is not passed, as far as one sees: its default in a call that passes no more."""
    if default is None:
        unknown = interp.opaque(parameter.arg, "parameter", parameter)
        return join(arguments.rest, unknown) or unknown
    value = default_value(interp, function, default)
    if call is not None:
        return value
    unwrapped = option_default(value)
    if type(unwrapped) is Const and unwrapped.value is not None:
        is_plain = unwrapped is value
        origin = Origin(default, function.module) if is_plain else unwrapped.origin
        how = "parameter" if is_plain else "typer"
        return Option(parameter.arg, unwrapped, origin, how, isinstance(unwrapped.value, bool))
    return join(value, interp.opaque(parameter.arg, "parameter", parameter)) or UNKNOWN


DEEPEST = 12
CONTEXTS = 5
CONTEXTS_OF_TRAINING = 15

CONTEXTS_OF_REGISTRY, FEW = 60, 3
"""A function is executed in so many contexts, one of a training step, or that looks something up, in more."""


def decorator(interp: Interpreter, node: ast.expr) -> Value:
    """A decorator's value; of a library's decorator that is called, the name of what is called."""
    callee = interp.eval(node.func) if isinstance(node, ast.Call) else None
    if type(callee) is not External or not isinstance(node, ast.Call):
        return interp.eval(node)
    arguments = evaluate_arguments(interp, node)
    makes = libraries.kind_of(callee.qualname) in ("gradmode", "autocast")
    return call_external(interp, callee.qualname, arguments, node) if makes else callee


def decorate(interp: Interpreter, function: Function) -> Value:
    """The function behind its decorators: those of libraries change nothing, the project's are executed."""
    value: Value = function
    for each in reversed(function.decorators):
        if type(each) is External and each.qualname == "torch.compile":
            interp.event("compile", function.node, each.qualname, function)
        under_way = type(each) is Function and interp.active.get(each.node)
        if isinstance(each, (Function, Bound, Partial)) and not under_way:
            changed = interp.call(each, positional(value), function.node)
            value = changed if isinstance(changed, (Function, Bound, Partial)) else value
    return value


def invoke(interp: Interpreter, function: Function, arguments: Arguments, node: ast.AST | None) -> Value:
    """Execute a function's body. ``node`` is the call; None for a function that nobody calls."""
    body = function.node
    interp.called.add(body)
    outer = [given for scope, given in interp.active.get(body, ()) if scope is function.scope]
    if interp.call_depth > DEEPEST or len(outer) > 1 or (outer and _passes_the_same(outer[0], arguments)):
        return interp.summaries.get(body, UNKNOWN)
    count = interp.count(body)
    closure = (body, function.scope)
    is_wrapper = function.scope.parent is not None and closure not in interp.closures  # which wraps what no other does
    is_first = is_wrapper or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))  # or makes one
    interp.closures.add(closure)
    is_long = isinstance(body, ast.Lambda) or len(body.body) > FEW
    most = CONTEXTS_OF_TRAINING if is_long and not is_first else CONTEXTS_OF_REGISTRY
    again = is_first or _only_computes(body) or interp.glance.differs_by_call(body, function.module)
    if count >= CONTEXTS and (count >= most or not again):
        if node is not None:
            interp.summarized.append((interp.frame, node, body))
        return interp.summaries.get(body, UNKNOWN)
    result = _execute(interp, function, arguments, node)
    interp.summaries[body] = join(interp.summaries.get(body), result) or result
    return result


@once_per_node
def _only_computes(function: ast.AST) -> bool:
    """Whether a function is a few assignments, as the ``update`` of a meter: cheaper to execute than to stand for."""
    body = getattr(function, "body", None)
    statements = body if isinstance(body, list) else []
    return 0 < len(statements) <= 6 and all(isinstance(each, (ast.Assign, ast.AugAssign)) for each in statements)


def _passes_the_same(first: Arguments, second: Arguments) -> bool:
    """Whether a function that calls itself is given nothing else by which it would take another way."""
    pairs = [(passed, second.keywords.get(name, passed)) for name, passed in first.keywords.items()]
    pairs += zip(first.positions, second.positions, strict=False)
    for one, two in ((a.value, b.value) for a, b in pairs):
        if type(one) is type(two) in _TELLING and one is not two:
            return False
        if type(one) is Const and type(two) is Const and one.value != two.value:
            return False
    return True


_TELLING = (Instance, Mapping, Class, Function, Bound)


def _execute(interp: Interpreter, function: Function, arguments: Arguments, node: ast.AST | None) -> Value:
    body = function.node
    if has_decorator(function, *CLICK):
        arguments = completed(click_options(interp, function), arguments)
    if has_decorator(function, "hydra.main") and not arguments.positions:
        arguments = given_by_hydra(interp, function)
    up, outer = interp.control, interp.frame
    scope = Scope(function.scope, function.module)
    level = interp.enter("call", node, function)
    interp.frame = frame = interp.frames[level] = Frame(function, scope, function.module, arguments=arguments)
    interp.call_depth += 1
    active = interp.active.get(body, ())
    interp.active[body] = (*active, (function.scope, arguments))
    bind_parameters(interp, function, arguments, scope, node)
    for value, place in zip(function.decorators, getattr(body, "decorator_list", ()), strict=True):
        if stops_gradients(value):
            interp.enter("no_grad", place)
        elif any(type(each) is Made and each.kind == "autocast" for each in members(value)):
            interp.enter("with", place, (None, value))
    if isinstance(body, ast.Lambda):
        frame.returned = interp.eval(body.body)
    elif interp.block(body.body):
        frame.returned = join(frame.returned, NONE)
    interp.active[body] = active
    interp.call_depth -= 1
    interp.control, interp.frame = up, outer
    if interp.glance.is_generator(body, function.module):
        yielded = frame.yielded or UNKNOWN
        if has_decorator(function, "contextlib.contextmanager", "contextlib.asynccontextmanager"):
            return yielded
        return Iterated(yielded, function, "generator", Origin(node or body, level.module or function.module))
    return frame.returned or UNKNOWN


CONSTRUCTIONS = 12


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


def construct(interp: Interpreter, cls: Class, arguments: Arguments, node: ast.AST) -> Instance:
    """Make an object of a class of the project."""
    instance = Instance(cls, interp.origin(node), interp.control, arguments=arguments)
    interp.event("construct", node, cls.node.name, None, arguments, instance)
    if type(cls.find("__init__")) is Function:
        count, earlier = interp.count(cls.node), interp.instances.get(cls.node)
        if count >= CONSTRUCTIONS and earlier is not None:
            instance.attributes.update(earlier.attributes)
            instance.base = earlier.base
            return instance
        interp.call_own(instance, "__init__", arguments, node)
    elif fields := fields_of(cls):
        _fill_fields(interp, instance, fields, arguments)
    else:
        make_base(interp, instance, arguments, node)
    interp.instances[cls.node] = instance
    interp.call_own(instance, "__post_init__", Arguments(), node)
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
        if qualname in NAMES["lightning_cli"]:
            instance.base = command_line(interp, qualname, arguments, node)
            instance.attributes |= instance.base.attributes
            return
        if kind in NAMES["bases_made"] and not qualname.endswith(("data.Dataset", "data.IterableDataset")):
            instance.base = interp.make(qualname, kind or "", arguments, node)
            return


def _fill_fields(
    interp: Interpreter, instance: Instance, fields: list[tuple[ast.AnnAssign, Class]], arguments: Arguments
) -> None:
    for index, (statement, owner) in enumerate(fields):
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        passed, default = arguments.get(name, index), field_default(interp, statement, owner)
        maybe = passed is None and (arguments.open or arguments.star)
        if passed is not None:
            default = passed.value if passed.must else join(passed.value, default)
        value = join(default, UNKNOWN) if maybe else default
        instance.attributes[name] = value or interp.opaque(name, "parameter", statement)
