"""Gradients that are summed over several micro-batches before one update, and over how many."""

from __future__ import annotations

import ast
from dataclasses import replace

from turbofix.dataflow.facts import Frame, settled
from turbofix.dataflow.provenance import argument_of
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, Passed
from turbofix.domain.values import UNKNOWN
from turbofix.source.names import dotted, loads
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS, contains
from turbofix.source.site import Site
from turbofix.training.model import Accumulation, Argument
from turbofix.training.steps.acts import loss_expression


def accumulation(
    analysis: Analysis, loop: ast.AST, backwards: list[Event], updates: list[Event]
) -> Accumulation | None:
    """Gradients summed over several micro-batches: a step under ``% n``, or an inner loop around the backward."""
    facts = analysis.facts
    for update in updates:
        guard = analysis.guards.guard(update, loop)
        if guard.kind != "every_n":
            continue
        for condition in analysis.guards.conditions(update, loop):
            if condition.test is None or analysis.guards.judge(condition, loop)[0] != "every_n":
                continue
            found = _count_expression(analysis, condition.test, condition.frames)
            if found is None:
                continue
            count, frames = found
            if any(_under(analysis, backward, condition.node, frames) for backward in backwards):
                continue  # the backward stands under the same test: nothing is summed
            module = condition.frames[-1].module
            steps = _steps_argument(analysis, count, frames)
            divisions = _divisions(analysis, backwards, count, frames, loop)
            steps = _without_divisions(steps, divisions)
            return Accumulation(steps, facts.places.site(condition.node, module), bool(divisions))
    return _inner_loop(analysis, loop, backwards, updates)


def _under(analysis: Analysis, backward: Event, node: ast.AST, frames: tuple[Frame, ...]) -> bool:
    """Whether a backward lies in the body of the statement that guards the step."""
    for frame in analysis.facts.frames(backward):
        if frame.scope is frames[-1].scope and isinstance(node, ast.If):
            return any(contains(each, frame.anchor, frame.module) for each in node.body)
    return False


def _count_expression(
    analysis: Analysis, test: ast.expr, frames: tuple[Frame, ...]
) -> tuple[ast.expr, tuple[Frame, ...]] | None:
    """The ``n`` of ``(i + 1) % n == 0``, through a name that holds the test."""
    for node in walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return node.right, frames
    for name in loads(test):
        if isinstance(name, ast.Name):
            passed = analysis.guards.passed_for(name, frames)
            if passed is not None and not isinstance(passed, ast.Name):
                return _count_expression(analysis, passed, frames[:-1])
            for write in analysis.facts.bindings.writes(frames[-1].scope, name.id):
                if isinstance(write, ast.Assign):
                    for node in walk(write.value):
                        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                            return node.right, frames
    return None


def _steps_argument(analysis: Analysis, count: ast.expr, frames: tuple[Frame, ...]) -> Argument:
    value = analysis.facts.evaluate(count, frames) or UNKNOWN
    return argument_of(Passed(value, True, count), analysis.facts, analysis.reads, frames[-1].module)


def _without_divisions(steps: Argument, divisions: tuple[Site, ...]) -> Argument:
    """The argument without the reads that only divide the loss by it: they belong to the accumulation."""

    def inside(read: Site, whole: Site) -> bool:
        start, end = (whole.line, whole.column), (whole.end_line, whole.end_column)
        return read.path == whole.path and start <= (read.line, read.column) <= end

    kept = tuple(read for read in steps.reads if not any(inside(read, whole) for whole in divisions))
    return replace(steps, reads=kept)


def _divisions(
    analysis: Analysis, backwards: list[Event], count: ast.expr, frames: tuple[Frame, ...], loop: ast.AST
) -> tuple[Site, ...]:
    """The divisions of the loss by the same value, in the functions that run the step."""
    facts = analysis.facts
    wanted = dotted(count) or ast.unparse(count)
    last = wanted.rpartition(".")[2]
    number = settled(facts.evaluate(count, frames))
    found: set[Site] = set()
    for backward in backwards:
        for frame in facts.frames_within(backward, loop):
            for node in walk(frame.scope):
                divisor: ast.expr | None = None
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                    divisor = node.right
                elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                    divisor = node.value
                if divisor is None:
                    continue
                text = dotted(divisor) or ast.unparse(divisor)
                same = text == wanted or (
                    frame.scope is not frames[-1].scope and text.rpartition(".")[2] == last and not last.isdigit()
                )
                if not same and isinstance(number, int) and isinstance(divisor, ast.Constant):
                    same = divisor.value == number
                if same and _feeds_loss(analysis, node, backward, frame):
                    found.add(facts.places.site(node, frame.module))
    return tuple(sorted(found))


def _feeds_loss(analysis: Analysis, division: ast.AST, backward: Event, frame: Frame) -> bool:
    """Whether a division makes (part of) what the backward starts from: by its own text, or through a name."""
    places = analysis.facts.places
    if contains(backward.node, division, frame.module):
        return True
    statement = places.statement(division, frame.module)
    expression = loss_expression(analysis, backward) if frame.anchor is backward.node else frame.anchor
    names = {dotted(each) for each in loads(expression)} if expression is not None else set()
    if isinstance(statement, ast.AugAssign):
        return dotted(statement.target) in names
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(dotted(target) in names for target in targets)
    return frame.anchor is not backward.node and isinstance(statement, ast.Return)


def _inner_loop(analysis: Analysis, loop: ast.AST, backwards: list[Event], updates: list[Event]) -> Accumulation | None:
    """``for micro_step in range(n)`` around the backward, the step after it."""
    facts = analysis.facts
    for backward in backwards:
        inner = list(facts.loops(backward))
        position = next((i for i, record in enumerate(inner) if record.node is loop), None)
        if position is None or position + 1 >= len(inner):
            continue
        record = inner[position + 1]
        if any(facts.inside(update, record.node) for update in updates):
            continue
        frames = facts.frames(backward)
        depth = next(i for i, frame in enumerate(frames) if any(record.node is each for each in frame.loops))
        site = facts.places.site(record.node, record.module)
        node = record.node
        if isinstance(node, (ast.For, ast.AsyncFor)) and isinstance(node.iter, ast.Call):
            call = node.iter
            if isinstance(call.func, ast.Name) and call.func.id == "range" and len(call.args) == 1:
                count = call.args[0]
                steps = _steps_argument(analysis, count, frames[: depth + 1])
                divisions = _divisions(analysis, [backward], count, frames[: depth + 1], loop)
                steps = _without_divisions(steps, divisions)
                return Accumulation(steps, site, bool(divisions))
        if isinstance(node, LOOPS):
            return Accumulation(Argument("unknown"), site, False)
    return None
