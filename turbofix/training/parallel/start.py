"""Where a training by several processes begins: in front of all that they share, write or fetch, and once."""

from __future__ import annotations

import ast

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.parallel.once import last_import
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


def is_repeated(analysis: Analysis, setup: Site) -> bool:
    """Whether the function that sets up may be called again: by what decorates it, or by several calls."""
    places = analysis.facts.places
    module = next(each for each in analysis.execution.modules.values() if each.path == setup.path)
    calls = [call for each in analysis.execution.modules.values() for call in every(ast.Call, each.tree)]
    for node in walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            places.site(each, module) == setup for each in node.body
        ):
            named = sum(isinstance(each.func, ast.Name) and each.func.id == node.name for each in calls)
            return bool(node.decorator_list) or named > 1
    return False
