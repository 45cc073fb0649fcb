"""Where a training by several processes begins: in front of all that its files do, write or draw."""

from __future__ import annotations

import ast
import itertools
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.source.places import FUNCTIONS, Places
from turbofix.source.site import Site
from turbofix.training.model import Parallel


def beginning(module: ModuleFile, places: Places) -> Site:
    """The first import of what is not Python's own, or a print right before it; else the first statement behind the
    imports."""
    rest, printed = [], None
    for each in module.tree.body:
        names = [one.name for one in each.names] if isinstance(each, ast.Import) else []
        names += [each.module or "."] if isinstance(each, ast.ImportFrom) else []
        if any(name.partition(".")[0] not in sys.stdlib_module_names | {"__future__"} for name in names):
            return places.site(printed or each, module)
        if names:
            printed = None  # the imports of the group's own go there
        elif isinstance(each, ast.Expr) and ast.unparse(each).startswith("print("):
            printed = printed or each
        rest += [each] if not names and not isinstance(each, ast.Expr) else []
    return places.site(rest[0], module)


def last_import(module: ModuleFile, before: int = sys.maxsize) -> tuple[ast.stmt, ast.stmt] | None:
    """The last import of a file's own level, behind which a name can be set, and the statement that follows it; of
    those before a line.

    Of a file that begins with a function or a class, and has none: that one, twice.
    """
    known: tuple[ast.stmt, ast.stmt] | None = None
    for each, following in itertools.pairwise(module.tree.body):
        tried = each.body if isinstance(each, ast.Try) else [each]  # what may not be there
        if (each.end_lineno or 0) >= before:
            break
        if any(isinstance(one, (ast.Import, ast.ImportFrom)) for one in tried):
            known = each, following
        elif isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            break
    first = next((each for each in module.tree.body if not isinstance(each, ast.Expr)), None)
    return known or (isinstance(first, (*FUNCTIONS, ast.ClassDef)) and (first, first)) or None


def last_imports(analysis: Analysis, plan: Parallel) -> tuple[tuple[Site, Site], ...]:
    """The same of each file that has one, in front of all that a plan speaks of there."""
    first: dict[Path, int] = {}
    waiting: list[object] = [getattr(plan, each.name) for each in fields(plan) if each.name not in ("setup", "imports")]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Site):
            first[each.path] = min(each.end_line, first.get(each.path, sys.maxsize))
        elif isinstance(each, tuple):
            waiting += each
        elif is_dataclass(each):
            waiting += [getattr(each, one.name) for one in fields(each)]
    modules, places = [*analysis.execution.modules.values()], analysis.facts.places
    found = ((module, last_import(module, first.get(module.path, sys.maxsize))) for module in modules)
    return tuple((places.site(each[0], module), places.site(each[1], module)) for module, each in found if each)
