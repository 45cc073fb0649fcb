"""What runs beside a training, and what instead of it."""

from __future__ import annotations

import ast

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.source.answers import every
from turbofix.source.places import FUNCTIONS, Places


def on_the_way(analysis: Analysis) -> set[int]:
    """The functions and files that run beside the training, not in the other branch of a test."""
    places = analysis.facts.places
    trained = [analysis.facts.frames(each) for each in analysis.facts.of("backward")]
    found, seen = set[int](), set[int]()
    for frames in map(analysis.facts.frames, analysis.facts.levels()):
        seen.update(id(frame.scope) for frame in frames)
        if not all(_is_instead(places, frames, each) for each in trained):
            found.update(id(frame.scope) for frame in frames)
    for module in analysis.execution.modules.values():
        for function in every(ast.FunctionDef, module.tree):  # in which nothing happens that is told
            if id(function) not in seen and analysis.facts.executions(function):
                found.add(id(function))
    return found


def _is_instead(places: Places, frames: tuple[Frame, ...], others: tuple[Frame, ...]) -> bool:
    """Whether one of two ways is taken where the other is not."""
    for frame, other in zip(frames, others, strict=False):
        if frame.scope is not other.scope:
            return False
        if frame.anchor is other.anchor:
            continue
        here, there = (_branches(places, each, frame.module) for each in (frame.anchor, other.anchor))
        return any(each in there and there[each] != branch for each, branch in here.items())
    return False


def _branches(places: Places, node: ast.AST, module: ModuleFile) -> dict[ast.If, bool]:
    """The tests in a function that something is under, each with whether it is in the other branch."""
    found: dict[ast.If, bool] = {}
    for above in places.ancestors(node, module):
        if isinstance(above, (*FUNCTIONS, ast.Module)):
            break
        if isinstance(above, ast.If) and node is not above.test:
            found[above] = node in above.orelse
        node = above
    return found
