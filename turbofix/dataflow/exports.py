"""Which of a file's names the other files of the program use, and of its project, which other scripts may run."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.library.tables import NAMES, SHOWING_METHODS
from turbofix.source.answers import every, parents_in
from turbofix.source.names import dotted, targets, targets_of
from turbofix.source.nodes import parse, unreadable, walk

_SHOWING = (SHOWING_METHODS | NAMES["logging_methods"] | {"print", "pprint"}) - {"log"}
"""What shows what it is given, by its name (``log`` may be a logarithm)."""


def takers(analysis: Analysis, module: ModuleFile, names: Set[str]) -> Iterator[tuple[ast.AST, ModuleFile]]:
    """Where other files take these names of a file: ``from common import scaler``, ``common.scaler``."""
    for other in analysis.execution.modules.values():
        for node in _taken(other.tree, other.path, module.path, analysis, names) if other is not module else ():
            yield node, other


def takers_outside(
    analysis: Analysis, module: ModuleFile, names: Set[str], where: Callable[[str], object] = bool
) -> Iterator[tuple[ast.AST, Path]]:
    """The same of the project's files that this program does not import: another script may run them.

    Only files whose text is as ``where`` asks are read.
    """
    own = {module.path.stem, module.path.parent.name}
    for path in analysis.execution.elsewhere:
        text = analysis.execution.read(path)
        if text is None or not any(name in text for name in names) or own.isdisjoint(_words(text)) or not where(text):
            continue
        for node in () if unreadable(text) else _taken(parse(text), path, module.path, analysis, names):
            yield node, path


@functools.lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    """The words of a file: many scripts of a folder ask the same files for theirs."""
    return frozenset(map(sys.intern, re.findall(r"\w+", text)))


def called_outside(analysis: Analysis, module: ModuleFile, function: ast.AST) -> Path | None:
    """A file of the project that this program does not import, and that calls a function, or a method of a class."""
    above = (function, *analysis.facts.places.ancestors(function, module))
    names = [each.name for each in above if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    called = re.compile(rf"\b{re.escape(names[0])}\(")
    return next((path for _, path in takers_outside(analysis, module, {names[-1]}, called.search)), None)


def reads_result(text: str, function: str, cls: str | None) -> bool:
    """Whether a file may do more with what a function gives than to show it, by the function's name; by its class's, if
    that calls it (``forward``)."""
    if unreadable(text):
        return True
    tree = parse(text)
    name = cls if cls is not None and (function == "forward" or function.startswith("__")) else function
    for node in walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or (dotted(node) or "").rpartition(".")[2] != name:
            continue
        call = parents_in(tree).get(node)
        if name == cls or not isinstance(call, ast.Call) or call.func is not node:
            return True
        statement = parents_in(tree).get(call)
        given = targets_of(statement) if isinstance(statement, ast.Assign) else []
        names = {dotted(single) for target in given for single in targets(target)}
        kept = names and all(
            isinstance(each.ctx, ast.Store) or _is_shown(each, tree)
            for each in every(ast.Name, tree)
            if each.id in names
        )
        if not (kept or isinstance(statement, ast.Expr) or _is_shown(call, tree)):
            return True
    return False


def _is_shown(node: ast.AST, tree: ast.Module) -> bool:
    """Whether a value goes into a text, or straight into a call that shows what it is given."""
    above = parents_in(tree).get(node)
    called = (dotted(above.func) or "").rpartition(".")[2] if isinstance(above, ast.Call) else None
    return isinstance(above, ast.FormattedValue) or called in _SHOWING


def _taken(tree: ast.Module, path: Path, source: Path, analysis: Analysis, names: Set[str]) -> Iterator[ast.AST]:
    """Where a file takes these names of another one."""
    holding: set[str] = set()
    starred = False
    for node in walk(tree):
        if isinstance(node, ast.ImportFrom):
            whole = node.module or ""
            if _leads_to(whole, node.level, path, source, analysis):
                if any(alias.name in names for alias in node.names):
                    yield node
                starred = starred or any(alias.name == "*" for alias in node.names)
            for alias in node.names:
                if _leads_to(f"{whole}.{alias.name}".strip("."), node.level, path, source, analysis):
                    holding.add(alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _leads_to(alias.name, 0, path, source, analysis):
                    holding.add(alias.asname or alias.name)
    for node in walk(tree) if holding or starred else ():
        of_it = isinstance(node, ast.Attribute) and node.attr in names and dotted(node.value) in holding
        if of_it or (starred and isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)):
            yield node


def _leads_to(name: str, level: int, path: Path, source: Path, analysis: Analysis) -> bool:
    """Whether an import in the file ``path`` leads to the file ``source``: the nearest one counts."""
    last = name.rpartition(".")[2]
    if last not in (source.stem, source.parent.name) if last else source.name != "__init__.py":
        return False
    root = analysis.execution.root
    folders = [folder for folder in path.absolute().parents if folder == root or root in folder.parents]
    if level:
        folders = list(path.absolute().parents[level - 1 : level])
    rest = name.split(".") if name else []
    ends = (Path(*rest[:-1], f"{rest[-1]}.py"), Path(*rest, "__init__.py")) if rest else (Path("__init__.py"),)
    for each in (folder / end for folder in folders for end in ends):
        if each == source.absolute():
            return True
        if rest and analysis.execution.read(each) is not None:
            return False
    return False
