"""Variables that a loop sums into: what sets them, who reads them and when, and whether that is all there is."""

from __future__ import annotations

import ast
from typing import Literal

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.known import Accumulator, Read
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.dataflow.uses import STORING
from turbofix.domain.trace import Event
from turbofix.source.names import dotted
from turbofix.source.places import LOOPS
from turbofix.source.site import Site

When = Literal["every_step", "every_n", "condition", "after_loop"]
_SEEN_IN_LOOP: dict[str, When] = {"every_n": "every_n", "condition": "condition", "except": "condition"}


def accumulator_of(analysis: Analysis, update: ast.AugAssign, event: Event, loop: ast.AST) -> Accumulator | None:
    """The variable that an augmented assignment sums into, with what sets it before, and every read of the sum.

    That is ``simple`` for a name of one function or file, of numbers alone, that is only read.
    """
    facts, module, text = analysis.facts, event.module, dotted(update.target)
    if text is None:
        return None
    places, scope = facts.places, facts.places.scope(update, module)
    around = [each for each in places.ancestors(update, module) if isinstance(each, LOOPS)]
    own = next((each for each in around if places.scope(each, module) is scope), None)
    inits: list[ast.AST] = []
    reads: list[Read] = []
    why = "it is summed outside of the function that holds the loop" if own is None else None
    if not isinstance(update.target, ast.Name):
        why = why or "an object keeps it, which other code may read"
    elif facts.bindings.owner(text, update.target, module) is not scope or text in facts.bindings.captured(scope):
        why = why or "other functions use it, too"
    else:
        reached = readers(scope)
        sums: set[ast.AST] = {update.target}  # and those that go on with what it summed
        others = _sums(facts.bindings.writes(scope, text))
        for _ in others:
            sums |= {each.target for each in others if any(each.target in reached.get(known, ()) for known in sums)}
        set_before = [each for each, seen in reached.items() if update.target in seen and each not in sums]
        inits = [places.statement(each, module) or each for each in set_before]
        if not inits or any(literal(each, text) is None for each in inits):
            why = why or "it does not begin as a number"
        for node in dict.fromkeys(read for each in sums for read in reached.get(each, ()) if read not in sums):
            when = _when(analysis, node, update, own, facts.frames(event))
            statement = places.statement(node, module) or node
            shown = _shown_by(analysis, node, facts.frames(event))
            reads.append(Read(places.site(node, module), places.site(statement, module), when, shown))
            parent = places.parent(node, module)
            stored = isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") in STORING
            kept = isinstance(statement, ast.Return) or getattr(parent, "value", None) is node or stored
            if when != "after_loop" and isinstance(parent, ast.AugAssign) and parent.target is node:
                why = why or "the loop changes it in other ways than by adding to it"
            if when != "after_loop" and kept:
                why = why or "the loop keeps it elsewhere, too"
    place = (own, module) if own is not None else (loop, module)
    if own is None:
        place = next(((each.node, each.module) for each in facts.loops(event) if each.node is loop), place)
    return Accumulator(
        text=places.text(update.target, module),
        update=places.site(update, module),
        inits=tuple(sorted(places.site(each, module) for each in inits)),
        reads=tuple(sorted(reads, key=lambda read: read.site)),
        loop=places.site(*place),
        simple=why is None,
        why_not_simple=why,
    )


def _sums(writes: list[ast.AST]) -> list[ast.AugAssign]:
    return [each for each in writes if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add)]


def _when(analysis: Analysis, node: ast.AST, update: ast.AST, loop: ast.AST | None, frames: tuple[Frame, ...]) -> When:
    """When a read happens, beside the update."""
    module = frames[-1].module
    if loop is None or loop not in analysis.facts.places.ancestors(node, module):
        return "after_loop"
    if not any(loop is each for each in frames[-1].loops):
        return "condition"
    here, summed = (analysis.guards.conditions_of(each, frames, loop) for each in (node, update))
    guard = analysis.guards.beside(here, summed, loop)
    if guard.kind == "every_n" and guard.every == 1:
        return "every_step"  # every step passes `step % 1 == 0`, unless somebody asks for another interval
    return _SEEN_IN_LOOP.get(guard.kind, "every_step")


def _shown_by(analysis: Analysis, node: ast.AST, frames: tuple[Frame, ...]) -> Site | None:
    """The statement that shows what a read gives, where that is all that becomes of it."""
    places, module = analysis.facts.places, frames[-1].module
    uses = analysis.flow.uses(node, frames[-1].opener)
    shown = {places.statement(each.node, module) for each in uses}
    statement = shown.pop() if len(shown) == 1 else None
    if statement is None or any(each.kind != "shown" or each.chosen for each in uses):
        return None
    return places.site(statement, module)


def literal(write: ast.AST, name: str) -> int | float | None:
    """The number that a statement gives to a name; None where it gives something else."""
    value = given(write, name)
    if isinstance(value, ast.Constant) and type(value.value) in (int, float):
        assert isinstance(value.value, (int, float))
        return value.value
    return None


def given(write: ast.AST, name: str) -> ast.expr | None:
    """The expression that an assignment gives to a name, perhaps one of several: ``losses, total = [], 0.0``."""
    if not isinstance(write, (ast.Assign, ast.AnnAssign)) or write.value is None:
        return None
    for target in write.targets if isinstance(write, ast.Assign) else [write.target]:
        if dotted(target) == name:
            return write.value
        if isinstance(target, ast.Tuple) and isinstance(write.value, ast.Tuple):
            pairs = zip(target.elts, write.value.elts, strict=False)
            value = next((value for each, value in pairs if dotted(each) == name), None)
            if value is not None:
                return value
    return None
