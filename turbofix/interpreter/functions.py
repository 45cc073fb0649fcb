"""Functions of the project: their bodies are executed where the call stands."""

from __future__ import annotations

import ast

from turbofix.domain.scopes import Frame, Scope
from turbofix.domain.trace import Arguments, completed, positional
from turbofix.domain.values import (
    NONE,
    UNKNOWN,
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    Origin,
    Partial,
    Value,
    join,
    members,
)
from turbofix.interpreter.arguments import bind_parameters, evaluate_arguments
from turbofix.interpreter.brains.command_line import click_options
from turbofix.interpreter.brains.config_files import given_by_hydra
from turbofix.interpreter.definitions import has_decorator, stops_gradients
from turbofix.interpreter.library_calls import call_external
from turbofix.interpreter.state import Interpreter
from turbofix.library import tables as libraries

DEEPEST = 12


CONTEXTS = 5


CONTEXTS_OF_TRAINING = 15


CONTEXTS_OF_REGISTRY, FEW = 60, 3
"""A function is executed in so many contexts, one of a training step, or that looks something up, in more."""


def decorator(interp: Interpreter, node: ast.expr) -> Value:
    """A decorator's value; of a library's decorator that is called, the name of what is called."""
    if isinstance(node, ast.Call):
        callee = interp.eval(node.func)
        if type(callee) is External:
            arguments = evaluate_arguments(interp, node)
            if libraries.kind_of(callee.qualname) in ("gradmode", "autocast"):
                return call_external(interp, callee.qualname, arguments, node)
            return callee
    return interp.eval(node)


def decorate(interp: Interpreter, function: Function) -> Value:
    """The function behind its decorators: those of libraries change nothing, the project's are executed."""
    value: Value = function
    for each in reversed(function.decorators):
        if type(each) is External and each.qualname in ("torch.compile", "torch.jit.script"):
            if each.qualname == "torch.compile":
                interp.event("compile", function.node, each.qualname, function)
            continue
        under_way = type(each) is Function and interp.active.get(each.node)
        if isinstance(each, (Function, Bound, Partial)) and not under_way:
            changed = interp.call(each, positional(value), function.node)
            if isinstance(changed, (Function, Bound, Partial)):
                value = changed
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
    if count >= CONTEXTS and (count >= most or not (is_first or interp.glance.differs_by_call(body, function.module))):
        if node is not None:
            interp.summarized.append((interp.frame, node, body))
        return interp.summaries.get(body, UNKNOWN)
    result = _execute(interp, function, arguments, node)
    interp.summaries[body] = join(interp.summaries.get(body), result) or result
    return result


def _passes_the_same(first: Arguments, second: Arguments) -> bool:
    """Whether a function that calls itself is given nothing else by which it would take another way."""
    pairs = [(passed, second.keywords.get(name, passed)) for name, passed in first.keywords.items()]
    pairs += zip(first.positions, second.positions, strict=False)
    return not any(_differ(one.value, two.value) for one, two in pairs)


def _differ(one: Value, two: Value) -> bool:
    if isinstance(one, Const) and isinstance(two, Const):
        return one.value != two.value
    return type(one) is type(two) in _TELLING and one is not two


_TELLING = (Instance, Mapping, Class, Function, Bound)


def _execute(interp: Interpreter, function: Function, arguments: Arguments, node: ast.AST | None) -> Value:
    body = function.node
    if has_decorator(function, "click.option", "click.argument", "rich_click.option"):
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
