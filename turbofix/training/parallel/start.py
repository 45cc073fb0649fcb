"""Where a training by several processes begins: in front of all that its files do, write or draw."""

from __future__ import annotations

import ast
import itertools
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.source.answers import every
from turbofix.source.places import FUNCTIONS, Places
from turbofix.source.site import Site
from turbofix.training.model import FIRST_LINE, Beside, Parallel


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


def beside(analysis: Analysis, plan: Parallel) -> Beside:
    """Where what the processes share is written: a file that every file can import which a plan speaks of, and every
    script that imports one of these."""
    entry, modules = analysis.execution.entry, [*analysis.execution.modules.values()]
    home, spoken = entry.path.parent, _spoken_of(plan) - {entry.path}
    outside = [each for each in modules if each.path in spoken and home not in each.path.parents]
    setup = beginning(entry, analysis.facts.places)
    package = _package(entry, modules)
    if outside and not package:
        home = _root(outside[0])
        searched = [each for each in entry.tree.body if "sys.path" in ast.unparse(each) and not _defines(each)]
        following = [each for each in entry.tree.body if searched and each.lineno > (searched[-1].end_lineno or 0)]
        if following and following[0].lineno > setup.line:
            setup = analysis.facts.places.site(following[0], entry)
    known = {name for module in modules for name in _words(module)}
    for number in itertools.count(1):
        name = "workers" if plan.shared else "ranks"
        name += f"_{number}" if number > 1 else ""
        path = home / f"{name}.py"
        there = analysis.execution.read(path)
        ours = there is not None and there.startswith(FIRST_LINE)
        if ours or (there is None and name not in known):
            break
    return Beside(setup, path, f"{package}{name}")


def _spoken_of(plan: Parallel) -> set[Path]:
    """The files that a plan changes."""
    found: set[Path] = set()
    waiting: list[object] = [getattr(plan, each.name) for each in fields(plan)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Site):
            found.add(each.path)
        elif isinstance(each, tuple):
            waiting += each
        elif is_dataclass(each):
            waiting += [getattr(each, one.name) for one in fields(each)]
    return found


def _defines(statement: ast.stmt) -> bool:
    return isinstance(statement, (*FUNCTIONS, ast.ClassDef))


def _words(module: ModuleFile) -> set[str]:
    """The names that a file uses for anything."""
    found = {each.id for each in every(ast.Name, module.tree)} | {each.arg for each in every(ast.arg, module.tree)}
    return found | {each.asname or each.name for each in every(ast.alias, module.tree)}


def _root(module: ModuleFile) -> Path:
    """The folder in which a module was found by its name."""
    parts = module.name.split(".")
    return module.path.parents[len(parts) - (module.path.name != "__init__.py")]


def _package(entry: ModuleFile, modules: list[ModuleFile]) -> str:
    """The package that a script is a part of, where its files are imported so: ``"src."``; else nothing."""
    home = entry.path.parent
    if any(each.level for each in every(ast.ImportFrom, entry.tree)):
        names, folder = [home.name], home
        while (folder.parent / "__init__.py") in {each.path for each in modules}:
            folder = folder.parent
            names.insert(0, folder.name)
        return "".join(f"{each}." for each in names)
    for each in modules:
        parts = each.name.split(".")
        above = len(parts) > 1 and home in each.path.parents and _root(each)
        if above and above in home.parents:
            return "".join(f"{part}." for part in home.relative_to(above).parts)
    return ""
