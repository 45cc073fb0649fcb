"""A loop over batches in a loop over phases, of which one trains: ``for phase in ("train", "val")``."""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Made, Mapping, members
from turbofix.records import dataclass
from turbofix.source.names import dotted, loaded, targets
from turbofix.source.places import FUNCTIONS
from turbofix.training.data.loaders import loaders_in

_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda value, many: value in many,
    ast.NotIn: lambda value, many: value not in many,
}


@dataclass(frozen=True, eq=False)
class Phase:
    """A loop over batches that trains where ``test`` holds, which asks for ``name`` alone, set by the loop ``outer``.

    ``text`` is what the loader is called there, ``read`` are those that it trains on. Of one that a comprehension makes
    for every phase, ``made`` says by what test it is that of the training. ``whole`` are those of the other phases.
    """

    outer: ast.For
    test: ast.expr
    name: str
    text: str
    read: frozenset[Made]
    whole: frozenset[Made]
    made: dict[Made, str] = field(default_factory=dict)

    @property
    def only(self) -> str:
        """The source of the test."""
        return _source(self.test)


def phases(analysis: Analysis) -> dict[ast.AST, Phase | None]:
    """The loops over batches in which one of several phases trains; None for one whose loaders were not followed."""
    return analysis.once("phases", lambda: dict(_phases(analysis)))


def _phases(analysis: Analysis) -> Iterator[tuple[ast.AST, Phase | None]]:
    for backward in analysis.facts.of("backward"):
        for record in analysis.facts.loops(backward):
            if not isinstance(record.node, ast.For):
                continue
            for each in analysis.guards.conditions(backward, record.node):
                names = loaded(each.test) if each.test is not None else set[str]()
                outer = _over(analysis, record, next(iter(names))) if len(names) == 1 else None
                if outer is not None and each.test is not None:
                    test = each.test if each.holds else ast.UnaryOp(ast.Not(), each.test)
                    yield record.node, _phase(analysis, record, outer, test)


def _over(analysis: Analysis, record: LoopRecord, name: str) -> ast.For | None:
    """The loop around another one, in its function, that goes through phases by this name."""
    for above in analysis.facts.places.ancestors(record.node, record.module):
        if isinstance(above, ast.For) and name in {dotted(each) for each in targets(above.target)}:
            counts = any(dotted(each.func) == "range" for each in ast.walk(above.iter) if isinstance(each, ast.Call))
            return None if counts else above
        if isinstance(above, FUNCTIONS):
            return None
    return None


def _phase(analysis: Analysis, record: LoopRecord, outer: ast.For, test: ast.expr) -> Phase | None:
    """What is read where the test holds; None where that was not followed."""
    (name,) = loaded(test)
    reading = read_by(analysis, record.node.iter, record.module)  # type: ignore[union-attr]
    by_items = isinstance(outer.iter, ast.Call) and isinstance(outer.iter.func, ast.Attribute)
    if isinstance(reading, ast.Subscript) and dotted(reading.slice) == name:
        holder = reading.value
    elif by_items and outer.iter.func.attr == "items" and dotted(reading) in map(dotted, targets(outer.target)):  # type: ignore[attr-defined]
        holder = outer.iter.func.value  # type: ignore[attr-defined]
    else:
        return None
    read, whole, made = set[Made](), set[Made](), dict[Made, str]()
    for each in held_by(analysis, holder, record.module):
        for key, entry in each.entries.items():
            trains = _holds(test, key)
            if trains is None:
                return None
            (read if trains else whole).update(loaders_in(entry.value))
        for loader in loaders_in(each.element):
            variable = _of_comprehension(each)
            if variable is None:
                return None
            read.add(loader)
            made[loader] = _source(_renamed(test, variable))
    found = Phase(outer, test, name, ast.unparse(reading), frozenset(read), frozenset(whole), made)
    return found if read and not read & whole else None


def read_by(analysis: Analysis, node: ast.expr, module: ModuleFile) -> ast.expr:
    """What a loop runs over, without the progress bar around it or the name that this has."""
    bindings = analysis.facts.bindings
    node = analysis.facts.without_bar(node, module)
    if isinstance(node, ast.Name):
        writes = bindings.writes(bindings.owner(node.id, node, module), node.id)
        (only,) = writes if len(writes) == 1 else (None,)
        if isinstance(only, ast.Assign):
            return analysis.facts.without_bar(only.value, module)
    return node


def held_by(analysis: Analysis, node: ast.expr, module: ModuleFile) -> list[Mapping]:
    """The mappings that an expression is."""
    frame = Frame(analysis.facts.places.scope(node, module), module, node, None, ())
    return [each for each in members(analysis.facts.evaluate(node, (frame,))) if isinstance(each, Mapping)]


def other_phase(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether a loop reads ``loaders["val"]``, which is not that of the training, though one call makes both."""
    reading = read_by(analysis, node, module)
    if not isinstance(reading, ast.Subscript) or not isinstance(reading.slice, ast.Constant):
        return False
    made = {loader for each in held_by(analysis, reading.value, module) for loader in loaders_in(each.element)}
    found = [each for each in phases(analysis).values() if each is not None and made & each.made.keys()]
    return bool(found) and all(_holds(each.test, reading.slice.value) is False for each in found)


def _of_comprehension(held: Mapping) -> str | None:
    """The variable of a comprehension that makes a loader for each key: ``{x: DataLoader(...) for x in phases}``."""
    node = held.origin.node if held.origin is not None else None
    if not isinstance(node, ast.DictComp) or not isinstance(node.key, ast.Name) or len(node.generators) != 1:
        return None
    return node.key.id if dotted(node.generators[0].target) == node.key.id else None


def _holds(test: ast.expr, value: object) -> bool | None:
    """Whether a test of one name holds for a value; None where it is not one of plain comparisons."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        held = _holds(test.operand, value)
        return None if held is None else not held
    if isinstance(test, ast.Name):
        return bool(value)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in _COMPARED:
        return None
    left, right = test.left, test.comparators[0]
    if isinstance(right, ast.Name) and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        left, right = right, left
    try:
        return _COMPARED[type(test.ops[0])](value, ast.literal_eval(right)) if isinstance(left, ast.Name) else None
    except ValueError:
        return None


def _renamed(test: ast.expr, name: str) -> ast.expr:
    test = copy.deepcopy(test)
    for each in ast.walk(test):
        if isinstance(each, ast.Name):
            each.id = name
    return test


def _source(test: ast.expr) -> str:
    return ast.unparse(test).replace("'", '"')
