"""Where a training by several processes begins: in front of all that they share, write or fetch, and once."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterable

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Function, members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, Places
from turbofix.source.site import Site
from turbofix.training.parallel.sharing import value_of
from turbofix.training.script import is_guard

_OF_OPTIONS = regex(r"pars|arg|conf|cfg|opt|hydra|print|logg|seed|path|time|get|join|environ|set_start_method|main")


def beginning(analysis: Analysis, first: Site) -> Site:
    """The first statement of the function, or guarded block, that sets up; of a script without either, its imports.

    It is not in a function that is called again and again, nor behind work of what calls it.
    """
    places = analysis.facts.places
    module = next(each for each in analysis.execution.modules.values() if each.path == first.path)
    inner: ast.AST | None = None
    for node in walk(module.tree):
        body = getattr(node, "body", None)
        holds = isinstance(node, FUNCTIONS) or (isinstance(node, ast.If) and is_guard(node))
        if holds and isinstance(body, list) and body[0].lineno <= first.line <= (body[-1].end_lineno or 0):
            inner = node
    frames = next((analysis.facts.frames(each) for each in analysis.facts.of("backward")), ())
    at = next((index for index, each in enumerate(frames) if each.scope is inner), 0)
    while at and not _is_at_once(analysis, frames[at - 1], frames[at]):
        at -= 1
        inner, module = _block(analysis, frames[at]), frames[at].module
    if inner is None or isinstance(inner, ast.Module):
        last = last_import(module)
        return places.site(last[1], module) if last is not None else first
    body = [each for each in inner.body if not _is_text(each)]  # type: ignore[attr-defined]
    return places.site(body[0], module)


def _is_at_once(analysis: Analysis, outer: Frame, called: Frame) -> bool:
    """Whether a function is called once, and nothing but options is made before."""
    call = called.call
    if outer.loops or not isinstance(call, ast.Call):
        return False
    own = [each for each in _block(analysis, outer).body if not isinstance(each, (*FUNCTIONS, ast.ClassDef))]  # type: ignore[attr-defined]
    calls = [each for statement in own for each in walk(statement) if isinstance(each, ast.Call)]
    before = [each for each in calls if (each.lineno, each.col_offset) < (call.lineno, call.col_offset)]
    return all(_OF_OPTIONS.search(ast.unparse(each.func).lower()) for each in before)


def _block(analysis: Analysis, frame: Frame) -> ast.AST:
    """The function that a frame stands in, or the block that is for the script that is started."""
    for above in analysis.facts.places.ancestors(frame.anchor, frame.module):
        if above is frame.scope:
            break
        if is_guard(above):
            return above
    return frame.scope


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def starting(analysis: Analysis, setup: Site) -> ast.FunctionDef | None:
    """The function that starts the group of processes; None where a file's own level does."""
    module = next(each for each in analysis.execution.modules.values() if each.path == setup.path)
    for node in every(ast.FunctionDef, module.tree):
        if any(analysis.facts.places.site(each, module) == setup for each in node.body):
            return node
    return None


def is_repeated(analysis: Analysis, setup: Site) -> bool:
    """Whether the function that sets up may be called again: by what decorates it, in a loop, by several calls, or by
    other files, where none calls it here."""
    places, modules, node = analysis.facts.places, analysis.execution.modules.values(), starting(analysis, setup)
    if node is None:
        return False
    called = [
        (call, each)
        for each in modules
        for call in every(ast.Call, each.tree)
        if (dotted(call.func) or "").rpartition(".")[2] == node.name and _calls(analysis, call, each, node)
    ]
    again = any(isinstance(above, LOOPS) for call, place in called for above in places.ancestors(call, place))
    return bool(node.decorator_list) or len(called) != 1 or again


def _calls(analysis: Analysis, call: ast.Call, module: ModuleFile, function: ast.FunctionDef) -> bool:
    """Whether a call is one of this very function."""
    held = members(value_of(analysis, call.func, module))
    return any(isinstance(each, Function) and each.node is function for each in held)


def heavy_import(module: ModuleFile, places: Places) -> Site:
    """The first import of what is not Python's own, in front of which a process has to choose its GPU; else the first
    statement behind the imports."""
    rest = []
    for each in module.tree.body:
        names = [one.name for one in each.names] if isinstance(each, ast.Import) else []
        names += [each.module or "."] if isinstance(each, ast.ImportFrom) else []
        if any(name.partition(".")[0] not in sys.stdlib_module_names | {"__future__"} for name in names):
            return places.site(each, module)
        rest += [each] if not names and not _is_text(each) else []
    return places.site(rest[0], module)


def last_import(module: ModuleFile) -> tuple[ast.stmt, ast.stmt] | None:
    """The last import of a file's own level, behind which a name can be set, and the statement that follows it."""
    known: tuple[ast.stmt, ast.stmt] | None = None
    for each, following in itertools.pairwise(module.tree.body):
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            known = each, following
        elif isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            break
    return known


def last_imports(analysis: Analysis, modules: Iterable[ModuleFile]) -> tuple[tuple[Site, Site], ...]:
    """The same of each file that has one."""
    places, found = analysis.facts.places, ((module, last_import(module)) for module in modules)
    return tuple((places.site(each[0], module), places.site(each[1], module)) for module, each in found if each)
