"""Whether something that the program may use is switched on: by the tests under which it is made, as they stand now.

A test that asks for the machine (``torch.cuda.is_available()``) is no switch; one on an option, a constant or an
attribute that holds one is. ``not args.no_amp`` and ``args.precision == "amp"`` are read as Python reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from turbofix.dataflow.facts import Facts, Frame, argument_for
from turbofix.dataflow.guards import Condition, Guards
from turbofix.dataflow.known import ABSENT, Argument
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Instance, Option, Origin, members
from turbofix.library.tables import TRAINERS_START
from turbofix.records import dataclass
from turbofix.source.names import is_main_test

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
    """What an expression is as the program stands: its value, the option that decides it, and where that is written.

    ``wanted`` is what would have to be written there for a test to turn out otherwise, where that is known.
    """

    value: object
    option: str | None = None
    origin: Origin | None = None
    wanted: object = None


def switch_of(analysis: Analysis, event: Event) -> Argument:
    """Whether the tests around an event let it happen: ``values`` holds that, ``option`` names who may say otherwise.

    The first test that holds it back is told, else the last of which nothing is known, else the last that lets it pass;
    absent where there is none.
    """
    decisive: tuple[Stand | None, Condition, ModuleFile] | None = None
    no_switches = analysis.once("tests of the training", lambda: _of_training(analysis))
    if len(analysis.facts.at(event.node)) > 1:  # what happens whichever way a test turns out hangs not on it
        no_switches |= analysis.once(("either way", id(event.node)), lambda: _either_way(analysis, event.node))
    for condition, inner in around(analysis, event.node, analysis.facts.frames(event)):
        test, holds = condition.test, condition.holds
        if test is None or is_main_test(test) or (id(test), holds) in no_switches:
            continue
        stand, of_device = _reading(analysis, condition, inner)
        if of_device or (stand is not None and bool(stand.value) == holds and decisive and decisive[0] is None):
            continue
        decisive = stand, condition, inner[-1].module
        if stand is not None and bool(stand.value) != holds:
            break
    if decisive is None:
        return ABSENT
    stand, condition, module = decisive
    assert condition.test is not None
    found = told(analysis, stand, condition.test, module)
    text = found.text if condition.holds else f"not ({found.text})"
    return replace(found, text=text, values=(bool(stand.value) == condition.holds,) if stand is not None else ())


def _reading(analysis: Analysis, condition: Condition, frames: tuple[Frame, ...]) -> tuple[Stand | None, bool]:
    """How a test stands, and whether it only asks for the machine; once for all events under it."""

    def read() -> tuple[Stand | None, bool]:
        assert condition.test is not None
        stand = stands(analysis.facts, condition.test, frames)
        lets = stand is None or bool(stand.value) == condition.holds
        return stand, lets and analysis.devices.is_device_test(condition)

    return analysis.once(("how a test stands", id(condition)), read)  # the guards keep the condition


def around(
    analysis: Analysis, node: ast.AST, frames: tuple[Frame, ...]
) -> Iterator[tuple[Condition, tuple[Frame, ...]]]:
    """The tests that something happens under, outermost first, each with the frames of its function."""
    for index, frame in enumerate(frames):
        inner = frames[: index + 1]
        anchor = node if index == len(frames) - 1 else frame.anchor
        for condition in analysis.guards.tests_around(anchor, frame.scope, inner, returns=False):
            yield condition, inner


def _tests(analysis: Analysis, event: Event) -> frozenset[tuple[int, bool]]:
    tests = around(analysis, event.node, analysis.facts.frames(event))
    return frozenset((id(each.test), each.holds) for each, _ in tests)


def _either_way(analysis: Analysis, node: ast.AST) -> frozenset[tuple[int, bool]]:
    """The tests that what happens at a node stands under, turned round."""
    return frozenset((test, not holds) for each in analysis.facts.at(node) for test, holds in _tests(analysis, each))


def is_off(analysis: Analysis, node: ast.AST) -> bool:
    """Whether all that happens at a node happens under a switch that is off."""
    found = analysis.facts.at(node)
    off = (switch_of(analysis, event).off for event in found)
    return bool(found) and analysis.once(("is off", id(node)), lambda: all(off))


def _of_training(analysis: Analysis) -> frozenset[tuple[int, bool]]:
    """The tests that a training happens under, and none where they turn out otherwise: they decide on more than how."""
    starts = (each for each in analysis.facts.of("call") if each.name in TRAINERS_START)
    found = {test for each in (*analysis.facts.of("backward"), *starts) for test in _tests(analysis, each)}
    return frozenset((test, holds) for test, holds in found if (test, not holds) not in found)


def picked(
    facts: Facts, node: ast.expr, frames: tuple[Frame, ...], depth: int = 8
) -> tuple[ast.expr, Stand, dict[object, ast.expr]] | None:
    """What ``{"float32": torch.float32, ...}[args.dtype]`` or ``a if test else b``, or a name for it, picks as the
    program stands: by what, and from what else."""
    choices: dict[object, ast.expr] = {}
    by: ast.expr = node
    if isinstance(node, ast.IfExp):
        by, choices = node.test, {True: node.body, False: node.orelse}
    elif isinstance(node, ast.Subscript):
        table = node.value if isinstance(node.value, ast.Dict) else (facts.defined(node.value, frames) or (None,))[0]
        pairs = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
        by, choices = node.slice, {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    elif depth and (definition := facts.defined(node, frames)) is not None:
        return picked(facts, *definition, depth - 1)
    stand = stands(facts, by, frames, depth - 1) if choices else None
    key = bool(stand.value) if stand is not None and isinstance(node, ast.IfExp) else stand and stand.value
    return (choices[key], stand, choices) if stand is not None and key in choices else None


def told(analysis: Analysis, stand: Stand | None, node: ast.expr, module: ModuleFile) -> Argument:
    """What an expression is as the program stands."""
    places = analysis.facts.places
    site, text = places.site(node, module), " ".join(places.text(node, module).split())
    if stand is None:
        return Argument("unknown", site=site, text=text)
    origin = stand.origin
    return Argument(
        "option" if stand.option else "value",
        (stand.value,),
        site=site,
        text=text,
        edit_at=analysis.facts.origin_site(origin),
        option=stand.option,
        comment=places.comment(origin.node, origin.module) if origin is not None else None,
        wanted=stand.wanted,
    )


def stands(facts: Facts, node: ast.expr, frames: tuple[Frame, ...], depth: int = 8) -> Stand | None:
    """What an expression is as the program stands; None where that depends on the machine, or is not known."""
    if depth < 0 or not frames:
        return None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = stands(facts, node.operand, frames, depth - 1)
        return replace(inner, value=not inner.value) if inner is not None else None
    if isinstance(node, ast.BoolOp):
        return _joined(facts, node, frames, depth - 1)
    if isinstance(node, ast.Compare):
        return _compared(facts, node, frames, depth - 1)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        items = [stands(facts, each, frames, depth - 1) for each in node.elts]
        known = [each.value for each in items if each is not None]
        return Stand(tuple(known)) if len(known) == len(items) else None
    found = members(facts.evaluate(node, frames))
    if isinstance(node, ast.IfExp) and (choice := picked(facts, node, frames, depth)) is not None:
        chosen, by, _ = choice
        inner = stands(facts, chosen, frames, depth - 1)
        return replace(by, value=inner.value) if inner is not None else None
    if len(found) != 1 or not isinstance(found[0], (Const, Option)):
        definition = facts.defined(node, frames)
        if definition is not None:
            return stands(facts, *definition, depth - 1)
        return _set_last(facts, node, frames, depth - 1) if isinstance(node, ast.Attribute) else None
    value = found[0]
    option = value.name if isinstance(value, Option) and not value.derived else None
    const = value.default if isinstance(value, Option) and option else value
    if not isinstance(const, Const):
        return None
    wanted = not const.value if isinstance(const.value, bool) else None
    return Stand(const.value, option, value.origin, wanted)


def _joined(facts: Facts, node: ast.BoolOp, frames: tuple[Frame, ...], depth: int) -> Stand | None:
    """``a and b`` is off where one of them is, whatever the other; on where both are known to be."""
    decides = isinstance(node.op, ast.Or)
    parts = [stands(facts, each, frames, depth) for each in node.values]
    for part in parts:
        if part is not None and bool(part.value) == decides:
            return part
    return parts[-1] if None not in parts else None


def _compared(facts: Facts, node: ast.Compare, frames: tuple[Frame, ...], depth: int) -> Stand | None:
    """``args.precision == "amp"``, ``level != 0``, ``name in ("fp16", "bf16")``."""
    right = stands(facts, node.comparators[0], frames, depth)
    if right is not None and right.value is None and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        left = _presence(facts, node.left, frames, depth)
    else:
        left = stands(facts, node.left, frames, depth)
    if left is None or right is None or len(node.ops) != 1:
        return None
    try:
        value = _COMPARISONS[type(node.ops[0])](left.value, right.value)
    except TypeError:
        return None
    told, other = (right, left) if right.option and not left.option else (left, right)
    literal = getattr(told.origin.node, "value", None) if told.origin is not None else None
    wanted = other.value if isinstance(node.ops[0], ast.Eq) and not value and literal == told.value else None
    return Stand(value, told.option, told.origin, wanted)


MADE = object()
"""What stands for an object that is there, whatever it is."""


def _presence(facts: Facts, node: ast.expr, frames: tuple[Frame, ...], depth: int) -> Stand | None:
    """Whether a name holds an object or None: by its definitions that are in force, through calls too."""
    if depth < 0 or not frames:
        return None
    if isinstance(node, ast.Constant):
        return Stand(node.value)
    if isinstance(node, ast.Call):
        return Stand(MADE)
    if isinstance(node, ast.IfExp):
        test = stands(facts, node.test, frames, depth - 1)
        chosen = _presence(facts, node.body if test and test.value else node.orelse, frames, depth - 1)
        return Stand(chosen.value, test.option, test.origin) if test is not None and chosen is not None else None
    if isinstance(node, ast.Attribute):
        return stands(facts, node, frames, depth - 1)
    if not isinstance(node, ast.Name):
        return None
    frame = frames[-1]
    held = [getattr(each, "value", MADE) is None for each in members(facts.evaluate(node, frames))]
    if held and len({*held}) == 1:
        return Stand(None if held[0] else MADE)
    owner = facts.bindings.owner(node.id, node, frame.module)
    writes = facts.bindings.writes(owner, node.id)
    if owner is frame.scope and not writes and isinstance(frame.call, ast.Call):
        passed = argument_for(node.id, frame, frame.call)
        return _presence(facts, passed, frames[:-1], depth - 1) if passed is not None else None
    return _last_written(facts, writes, frames, depth) if owner is frame.scope else None


def _set_last(facts: Facts, node: ast.Attribute, frames: tuple[Frame, ...], depth: int) -> Stand | None:
    """What an attribute is that one method of its object sets, in several ways."""
    classes = [each.cls.node.body for each in members(facts.evaluate(node.value, frames)) if isinstance(each, Instance)]
    writes = [each for each in facts.attribute_writes(node.attr) if any(each[1] in body for body in classes)]
    inner = facts.there(Origin(writes[0][0], writes[0][2])) if len({scope for _, scope, _ in writes}) == 1 else ()
    found = _last_written(facts, [write for write, _, _ in writes], inner, depth) if inner and depth > 0 else None
    return found if found is not None and found.value is not MADE else None


def _last_written(facts: Facts, writes: list[ast.AST], frames: tuple[Frame, ...], depth: int) -> Stand | None:
    """What the last of some assignments leaves, of those whose tests let them happen as the program stands."""
    frame = frames[-1]
    found: Stand | None = None
    for write in sorted(writes, key=lambda each: getattr(each, "lineno", 0)):
        if not isinstance(write, (ast.Assign, ast.AnnAssign)) or write.value is None:
            return None
        told: Stand | None = None
        for condition in Guards(facts).tests_around(write, frame.scope, frames, returns=False):
            told = stands(facts, condition.test, frames, depth - 1) if condition.test is not None else None
            if told is None:
                return None
            if bool(told.value) != condition.holds:
                found = Stand(found.value, told.option, told.origin) if found is not None else None
                break
        else:
            written = _presence(facts, write.value, frames, depth - 1)
            if written is None:
                return None
            found = Stand(written.value, written.option or (told.option if told else None), written.origin)
    return found
