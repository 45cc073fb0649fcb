"""Functions of the project that do nothing but to show what they are given: ``def print(self, text): ...``."""

from __future__ import annotations

import ast

from turbofix.dataflow.facts import Facts, Frame
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.source.names import dotted, loaded, parameters
from turbofix.source.nodes import walk

_CALLS = frozenset(
    {
        "get_rank", "get_world_size", "is_initialized", "is_available", "is_main_process", "int", "getenv", "float",
        "str", "len", "round", "isinstance", "item", "items", "keys", "values", "format", "join", "upper", "lower",
    }
)  # fmt: skip
"""What may be called for a message."""

_MORE = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)


def shown_at(facts: Facts, event: Event) -> tuple[ast.AST, ModuleFile]:
    """Where something is shown: the call itself, or that of the function which only shows it for its callers."""
    node, module, frames = event.node, event.module, facts.frames(event)
    while len(frames) > 1 and isinstance(frames[-1].call, ast.Call) and only_shows(facts, frames):
        node, module, frames = frames[-1].call, frames[-2].module, frames[:-1]
    return node, module


def only_shows(facts: Facts, frames: tuple[Frame, ...]) -> bool:
    """Whether all that a function does is to show what it is given, perhaps on one process only."""
    function = frames[-1].scope
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    given = {each.arg for each in parameters(function)} - {"self"}

    def shows(statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            quiet = not loaded(statement.test) & given and harmless(statement.test)
            return quiet and all(map(shows, (*statement.body, *statement.orelse)))
        call = statement.value if isinstance(statement, (ast.Expr, ast.Return)) else None
        if call is None or isinstance(call, ast.Constant):
            return isinstance(statement, (ast.Expr, ast.Return, ast.Pass))
        if not isinstance(call, ast.Call) or any(each.arg == "file" for each in call.keywords):
            return False
        told = any(each.kind == "show" for each in facts.at(call)) or is_shown_by(call)
        return told and all(map(harmless, (*call.args, *(each.value for each in call.keywords))))

    def is_shown_by(call: ast.Call) -> bool:
        return any(each.call is call for event in facts.of("show") for each in facts.frames(event))

    def harmless(node: ast.AST) -> bool:
        for each in walk(node):
            if isinstance(each, _MORE):
                return False
            # Not any ``get``: that of a queue takes something out, and would not be called where less is shown.
            name = dotted(each.func) or "" if isinstance(each, ast.Call) else "int"
            if name.rpartition(".")[2] in _CALLS or name.endswith("environ.get"):
                continue
            if isinstance(each, ast.Call) and getattr(each.func, "attr", "") in _CALLS:
                continue
            return False
        return True

    return all(map(shows, function.body)) and any(loaded(each) & given for each in function.body)
