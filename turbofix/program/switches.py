"""Whether something that the program may use is switched on: by the tests under which it is made, as they stand now.

A test that asks for the machine (``torch.cuda.is_available()``) is no switch; one on an option, a constant or an
attribute that holds one is. ``not args.no_amp`` and ``args.precision == "amp"`` are read as Python reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.facts import Facts, Frame
from turbofix.program.model import ABSENT, Argument
from turbofix.program.values import Const, Option, Origin, members
from turbofix.records import dataclass

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: eq,
    ast.NotEq: ne,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Lt: lt,
    ast.LtE: le,
    ast.Gt: gt,
    ast.GtE: ge,
}


@dataclass(frozen=True, eq=False)
class Stand:
    """What an expression is as the program stands: its value, the option that decides it, and where that is written."""

    value: object
    option: str | None = None
    origin: Origin | None = None


def switch_of(analysis: Analysis, event: Event) -> Argument:
    """Whether the tests around an event let it happen: ``values`` holds that, ``option`` names who may say otherwise.

    The first test that holds it back is told, else the last that lets it pass; absent where no test is known.
    """
    facts = analysis.facts
    frames = facts.frames(event)
    found = ABSENT
    for index, frame in enumerate(frames):
        inner = frames[: index + 1]
        anchor = event.node if index == len(frames) - 1 else frame.anchor
        for condition in analysis.guards.tests_around(anchor, frame.scope, inner, returns=False):
            stand = stands(facts, condition.test, inner) if condition.test is not None else None
            if stand is None or condition.test is None:
                continue
            lets = bool(stand.value) == condition.holds
            site = facts.places.site(condition.test, frame.module)
            found = Argument(
                "option" if stand.option else "value",
                (lets,),
                site=site,
                text=" ".join(facts.places.text(condition.test, frame.module).split()),
                edit_at=facts.origin_site(stand.origin),
                option=stand.option,
            )
            if not lets:
                return found
    return found


def stands(facts: Facts, node: ast.expr, frames: tuple[Frame, ...]) -> Stand | None:
    """What an expression is as the program stands; None where that depends on the machine, or is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = stands(facts, node.operand, frames)
        return Stand(not inner.value, inner.option, inner.origin) if inner is not None else None
    if isinstance(node, ast.BoolOp):
        return _joined(facts, node, frames)
    if isinstance(node, ast.Compare):
        return _compared(facts, node, frames)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        items = [stands(facts, each, frames) for each in node.elts]
        known = [each.value for each in items if each is not None]
        return Stand(tuple(known)) if len(known) == len(items) else None
    found = members(facts.evaluate(node, frames))
    if len(found) != 1:
        return None
    (value,) = found
    if isinstance(value, Const):
        return Stand(value.value, None, value.origin)
    if isinstance(value, Option) and isinstance(value.default, Const) and not value.derived:
        return Stand(value.default.value, value.name, value.origin)
    return None


def _joined(facts: Facts, node: ast.BoolOp, frames: tuple[Frame, ...]) -> Stand | None:
    """``a and b`` is off where one of them is, whatever the other; on where both are known to be."""
    decides = isinstance(node.op, ast.Or)
    parts = [stands(facts, each, frames) for each in node.values]
    for part in parts:
        if part is not None and bool(part.value) == decides:
            return part
    return parts[-1] if None not in parts else None


def _compared(facts: Facts, node: ast.Compare, frames: tuple[Frame, ...]) -> Stand | None:
    """``args.precision == "amp"``, ``level != 0``, ``name in ("fp16", "bf16")``."""
    left, right = stands(facts, node.left, frames), stands(facts, node.comparators[0], frames)
    if left is None or right is None or len(node.ops) != 1:
        return None
    try:
        value = _COMPARISONS[type(node.ops[0])](left.value, right.value)
    except TypeError:
        return None
    told = left if left.option else right if right.option else left
    return Stand(value, told.option, told.origin)
