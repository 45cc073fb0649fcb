"""Functions of the project that do nothing but to print what they are given: ``def print(self, text): ...``."""

from __future__ import annotations

import ast

from turbofix.nodes import walk
from turbofix.program.answers import once_per_node
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Facts, Frame
from turbofix.program.names import dotted, loaded, parameters

_PRINTS = ("print", "pprint", "echo")

_ASKS = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call,
    ast.expr_context, ast.cmpop, ast.boolop, ast.unaryop,
)  # fmt: skip
"""What a test that asks for the process is written with."""

_CALLS = frozenset(("get_rank", "get_world_size", "is_initialized", "is_available", "is_main_process", "int", "getenv"))
"""What it may call."""

_MORE = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)
"""What the arguments of the print must not hold."""


def shown_at(facts: Facts, event: Event) -> tuple[ast.AST, ModuleFile, tuple[Frame, ...]]:
    """Where something is shown: the call itself, or that of the function which only prints for its callers."""
    node, module, frames = event.node, event.module, facts.frames(event)
    if event.name.rpartition(".")[2] not in _PRINTS:
        return node, module, frames
    while len(frames) > 1 and inner_print(frames[-1].scope) is node and isinstance(frames[-1].call, ast.Call):
        node, module, frames = frames[-1].call, frames[-2].module, frames[:-1]
    return node, module, frames


@once_per_node
def inner_print(function: ast.AST) -> ast.Call | None:
    """The one call of a function, if that is all the function does, perhaps on one process only."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    given = {each.arg for each in parameters(function)} - {"self"}
    if len(body) == 1 and isinstance(body[0], ast.If) and not body[0].orelse:
        test = body[0].test
        if loaded(test) & given or not all(isinstance(each, _ASKS) for each in walk(test)):
            return None
        called = [dotted(each.func) or "" for each in walk(test) if isinstance(each, ast.Call)]
        # Not any ``get``: that of a queue takes something out, and would not be called where less is shown.
        if any(name.rpartition(".")[2] not in _CALLS and not name.endswith("environ.get") for name in called):
            return None
        body = body[0].body
    statement = body[0] if len(body) == 1 else None
    call = statement.value if isinstance(statement, (ast.Expr, ast.Return)) else None
    if not isinstance(call, ast.Call) or any(each.arg == "file" for each in call.keywords):
        return None
    passed = [*call.args, *(each.value for each in call.keywords)]
    more = any(isinstance(each, _MORE) for value in passed for each in walk(value))
    return call if not more and any(loaded(value) & given for value in passed) else None
