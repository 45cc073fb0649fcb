"""Who reads what a function hands on: a part of what it returns, or an attribute."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.source.answers import every
from turbofix.source.names import reads_of


def name_of(func: ast.AST | None) -> str:
    """The last name of what is called."""
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def taken_at(analysis: Analysis, function: ast.AST, number: int) -> str | None:
    """Where a caller of a function does more with a part of what it returns than to hand it on."""
    for frame in analysis.facts.executions(function):
        for outer, call in analysis.flow.callers(frame):
            parent = analysis.facts.places.parent(call, outer.module)
            target = parent.targets[0] if isinstance(parent, ast.Assign) else None
            taken = [*target.elts, None][number] if isinstance(target, ast.Tuple) else None
            line = read_at(analysis, taken.attr) if isinstance(taken, ast.Attribute) else None
            if isinstance(taken, ast.Name):
                line = _used_at(analysis, taken, outer.module)
            if line is not None:
                return line
    return None


def _used_at(analysis: Analysis, name: ast.Name, module: ModuleFile) -> str | None:
    """Where a function computes with a name, and does not only return it or keep it in a list."""
    places = analysis.facts.places
    for each in reads_of(name.id, places.scope(name, module)):
        parent = places.parent(each, module)
        appended = isinstance(parent, ast.Call) and name_of(parent.func) == "append"
        if not appended and not isinstance(parent, (ast.Return, ast.Tuple, ast.List, ast.IfExp)):
            return f"on line {each.lineno} of {module.path.name}"
    return None


def read_at(analysis: Analysis, name: str) -> str | None:
    """Where the program reads an attribute of this name, and does not only hand it on under the same one."""
    for module in analysis.execution.modules.values():
        for each in every(ast.Attribute, module.tree) if name in module.text else ():
            handed = getattr(analysis.facts.places.parent(each, module), "arg", None) == name
            if each.attr == name and isinstance(each.ctx, ast.Load) and not handed:
                return f"on line {each.lineno} of {module.path.name}"
    return None
