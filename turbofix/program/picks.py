"""Reads of what a mask has picked from a model's results: the host has waited for these when it knows how many."""

from __future__ import annotations

import ast

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.facts import Frame
from turbofix.program.graphless import inside_model
from turbofix.program.libraries import words
from turbofix.program.sites import contains
from turbofix.program.values import Tensor, Value, members

_COUNTING = frozenset(
    f"{package}.{name}" for package in ("torch", "Tensor") for name in ("masked_select", "nonzero", "argwhere")
)
"""What gives as many items as a tensor has that are true, or no zeros."""
_COMPARING = words("eq ne gt lt ge le logical_and logical_or logical_xor logical_not isnan isfinite isinf bool")
_DEPTH = 4


def picked(analysis: Analysis, event: Event, loop: ast.AST, events: list[Event]) -> Site | None:
    """Where what a read takes to the host was picked by a mask from results of a model, in every step that reads it.

    Nothing but what is computed of the picked items is left to wait for: no model is called between the two.
    """
    facts, module = analysis.facts, event.module
    frames = facts.frames(event)
    if not frames:
        return None
    scope, guards = frames[-1].scope, analysis.guards
    seen: set[str] = set()
    waiting: list[tuple[ast.AST, int]] = [(event.node, _DEPTH)]
    while waiting:
        root, left = waiting.pop()
        for node in walk(root):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and left and node.id not in seen:
                seen.add(node.id)
                writes = facts.bindings.writes(scope, node.id)
                if len(writes) == 1 and isinstance(writes[0], ast.Assign):
                    waiting.append((writes[0].value, left - 1))
            elif (
                _picks(analysis, node, frames)
                and guards.guard_of(node, frames, loop) == guards.guard(event, loop)
                and not _calls_between(analysis, node, event, events)
            ):
                return facts.places.site(node, module)
    return None


def _picks(analysis: Analysis, node: ast.AST, frames: tuple[Frame, ...]) -> bool:
    """Whether an expression picks from a result of a model on a device, as many items as a mask says."""
    if isinstance(node, ast.Subscript):
        masked = _is_mask(analysis, node.slice, frames, _DEPTH)
        return masked and _is_result(analysis.facts.evaluate(node.value, frames))
    if not isinstance(node, ast.Call):
        return False
    made = [each for each in analysis.facts.at(node) if each.kind == "call"]
    return bool(made) and all(
        each.name in _COUNTING
        and any(map(_is_result, (each.receiver, *(each.arguments.values() if each.arguments is not None else ()))))
        for each in made
    )


def _is_mask(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...], depth: int) -> bool:
    """Whether an expression is certainly a tensor of truth values."""
    if depth < 0:
        return False
    facts = analysis.facts
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert) and _is_mask(analysis, node.operand, frames, depth - 1)
    if isinstance(node, ast.BinOp):
        both = isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
        return both and all(_is_mask(analysis, each, frames, depth - 1) for each in (node.left, node.right))
    if isinstance(node, ast.Compare):
        ordered = all(isinstance(op, (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops)
        sides = (node.left, *node.comparators)
        return ordered and len(node.ops) == 1 and any(_is_tensor(facts.evaluate(each, frames)) for each in sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _COMPARING and _is_tensor(facts.evaluate(node.func.value, frames))
    if isinstance(node, ast.Name):
        writes = facts.bindings.writes(frames[-1].scope, node.id)
        values = [each.value if isinstance(each, ast.Assign) else None for each in writes]
        return bool(values) and all(each is not None and _is_mask(analysis, each, frames, depth - 1) for each in values)
    return False


def _is_tensor(value: Value | None) -> bool:
    found = members(value)
    return bool(found) and all(isinstance(each, Tensor) for each in found)


def _is_result(value: Value | None) -> bool:
    """Whether a value is what a model has given, on the device where it gave it."""
    found = members(value)
    return bool(found) and all(
        isinstance(each, Tensor) and bool(each.roles & {"output", "prediction"}) and each.device != "cpu"
        for each in found
    )


def _calls_between(analysis: Analysis, node: ast.AST, read: Event, events: list[Event]) -> bool:
    """Whether a model may be called behind an expression and before a read below it in the same function."""
    scope, module = analysis.facts.places.scope(node, read.module), read.module
    for event in events:
        if event.kind not in ("forward", "unknown_call") or inside_model(analysis, event):
            continue
        if event.kind == "unknown_call" and any(each.kind == "criterion" for each in analysis.facts.at(event.node)):
            continue  # a loss that is passed to a function, which was followed without its callers, too
        anchors = [frame.anchor for frame in analysis.facts.frames(event) if frame.scope is scope]
        for anchor in anchors:
            if contains(node, anchor, analysis.facts.places, module):
                continue
            if getattr(node, "lineno", 0) <= getattr(anchor, "lineno", 0) <= getattr(read.node, "lineno", 0):
                return True
    return False
