"""How many steps a training takes at most, where its loops are left by a count.

``iterations`` of ``lasting`` tells how many they are where loops run to their ends. Here a loop may be left earlier:
where ``enumerate`` has counted so far (``if i >= limit: break``), where a counter that only grows has
(``if step > total: break``), or once a flag is set where one has (``while not done``). Numbers are literals and the
defaults of options. What a counter is set to before its loop, when a training is resumed, leaves fewer steps, not more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.nodes import children, walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type
from turbofix.program.events import Event, LoopRecord
from turbofix.program.facts import settled
from turbofix.program.lasting import rounds
from turbofix.program.names import dotted, stored
from turbofix.program.sites import LOOPS, SCOPES

Comparisons = dict[type[ast.cmpop], int]

_LEAVES: tuple[Comparisons, Comparisons] = (
    {ast.GtE: 0, ast.Eq: 0, ast.Gt: 1},
    {ast.LtE: 0, ast.Eq: 0, ast.Lt: 1},
)
"""Comparisons of a counter that end a loop, on their left and on their right: how many iterations beyond the number."""
_STAYS: tuple[Comparisons, Comparisons] = (
    {ast.Lt: 0, ast.NotEq: 0, ast.LtE: 1},
    {ast.Gt: 0, ast.NotEq: 0, ast.GtE: 1},
)
"""Those under which it goes on."""


def at_most(analysis: Analysis, backward: Event, loop: ast.AST) -> int | None:
    """How many steps a training takes at most, as far as literals and defaults tell; None where they do not."""
    frames = analysis.facts.frames(backward)
    total: int | None = 1
    for record in analysis.facts.loops(backward):
        index = next((i for i, frame in enumerate(frames) if any(record.node is each for each in frame.loops)), None)
        if index is None:
            return None
        bounds = list(_Look(analysis, backward, record, index).bounds())
        known = rounds(analysis, record, frames[: index + 1])
        once = min((each for each in (known, *(count for count, _ in bounds)) if each is not None), default=None)
        total = total * once if total is not None and once is not None else None
        overall = min((each for each, ever in bounds if ever), default=None)
        if overall is not None:
            total = overall if total is None else min(total, overall)
        if record.node is loop:
            return total
    return None


class _Look:
    """One of the loops around a step."""

    def __init__(self, analysis: Analysis, backward: Event, record: LoopRecord, index: int) -> None:
        self.facts = analysis.facts
        self.node, self.module = record.node, record.module
        frames = self.facts.frames(backward)
        self.here = frames[: index + 1]
        self.called_in_a_loop = any(frame.loops for frame in frames[:index])
        self.step = backward.node if index == len(frames) - 1 else frames[index].anchor
        nodes = [each.node for each in self.facts.loops(backward)]
        self.outer = nodes[: nodes.index(record.node)]

    def bounds(self) -> Iterator[tuple[int, bool]]:
        """How often it runs at most; whether in all, or each time that it is come to."""
        for statement in self.node.body:
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Break, ast.Return)):
                for test in _parts(statement.test, ast.Or):
                    yield from self._counted(test, _LEAVES)
        if isinstance(self.node, ast.While):
            for test in _parts(self.node.test, ast.And):
                yield from self._counted(test, _STAYS)
                if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                    yield from self._flagged(test.operand)

    def _flagged(self, flag: ast.expr) -> Iterator[tuple[int, bool]]:
        """A loop that runs until a flag is set, which it is once a counter has come so far."""
        name = dotted(flag)
        if name is None or any(inside and not _sets_true(each) for each, inside, _ in self._writes(flag)):
            return
        for statement in self.node.body:
            if not isinstance(statement, ast.If):
                continue
            if not any(_sets_true(each) and name in stored([each]) for each in statement.body):
                continue
            rest = [each for each in _parts(statement.test, ast.And) if not self._is_given(each)]
            if len(rest) == 1:
                yield from self._counted(rest[0], _LEAVES)

    def _is_given(self, test: ast.expr) -> bool:
        """Whether a test that something is not None is known to hold."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.IsNot):
            return False
        other = test.comparators[0]
        is_none = isinstance(other, ast.Constant) and other.value is None
        return is_none and settled(self.facts.evaluate(test.left, self.here)) is not None

    def _counted(self, test: ast.expr, sides: tuple[Comparisons, Comparisons]) -> Iterator[tuple[int, bool]]:
        """The bound that the comparison of a counter with a number sets."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return
        left, right, kind = test.left, test.comparators[0], type(test.ops[0])
        for counter, limit, more in ((left, right, sides[0].get(kind)), (right, left, sides[1].get(kind))):
            most = settled(self.facts.evaluate(limit, self.here)) if more is not None else None
            if more is None or type(most) is not int or not isinstance(counter, (ast.Name, ast.Attribute)):
                continue
            first = self._enumerated(counter)
            begin = (first, False) if first is not None else self._grown(counter)
            if begin is not None and most - begin[0] + more > 0:  # none at all: what says "no limit", as -1 and 0 do
                yield most - begin[0] + more, begin[1]

    def _enumerated(self, counter: ast.Name | ast.Attribute) -> int | None:
        """From what number on ``enumerate`` counts the iterations, in this name."""
        node = self.node
        if not isinstance(node, ast.For) or not isinstance(counter, ast.Name) or not isinstance(node.target, ast.Tuple):
            return None
        named = node.target.elts[0]
        if not isinstance(named, ast.Name) or named.id != counter.id or counter.id in stored(node.body):
            return None
        call = node.iter
        if not isinstance(call, ast.Call) or self.facts.offered(call.func, self.module) != "builtins.enumerate":
            return None
        start = next((each.value for each in call.keywords if each.arg == "start"), None)
        start = call.args[1] if len(call.args) > 1 else start
        number = settled(self.facts.evaluate(start, self.here)) if start is not None else 0
        return number if type(number) is int else None

    def _grown(self, counter: ast.Name | ast.Attribute) -> tuple[int, bool] | None:
        """What a counter begins with that every iteration adds to; whether it goes on through the loops around."""
        name = dotted(counter)
        body = self.node.body
        adding = next((i for i, each in enumerate(body) if _adds(each) and name in stored([each])), None)
        if adding is None or any(isinstance(each, ast.Continue) for each in _own(body)):
            return None
        step = next((i for i, each in enumerate(body) if any(one is self.step for one in walk(each))), 0)
        if any(isinstance(each, (ast.Break, ast.Return)) for each in _own(body[step:adding])):
            return None  # a step that is not counted
        begins: list[int] = []
        ever = not (isinstance(counter, ast.Name) and self.called_in_a_loop)
        for write, inside, again in self._writes(counter):
            if inside and not _adds(write):
                return None
            if not inside and isinstance(write, (ast.Assign, ast.AnnAssign)) and isinstance(write.value, ast.Constant):
                begins += [write.value.value] if type(write.value.value) is int else []
            ever = ever and (inside or not again)
        return min(begins, default=0), ever

    def _writes(self, name: ast.expr) -> Iterator[tuple[ast.AST, bool, bool]]:
        """What writes a name or an attribute; whether in this loop, and whether in one around it."""
        here = {id(each) for each in walk(self.node)}
        around = {id(each) for node in self.outer for each in walk(node)}
        if isinstance(name, ast.Name):
            tree, owner = self.module.tree, self.facts.bindings.owner(name.id, name, self.module)
            outward = (*by_type(tree).get(ast.Global, ()), *by_type(tree).get(ast.Nonlocal, ()))
            if any(name.id in getattr(each, "names", ()) for each in outward):
                yield name, True, True
            for write in self.facts.bindings.writes(owner, name.id):
                yield write, id(write) in here, id(write) in around
            return
        if not isinstance(name, ast.Attribute):
            return
        home = self.facts.places.scope(self.node, self.module)
        for write, scope, _ in self.facts.attribute_writes(name.attr):
            if scope is home:
                yield write, id(write) in here, id(write) in around
                continue
            loops = self._loops_around(scope)
            yield write, id(self.node) in loops, any(id(each) in loops for each in self.outer)

    def _loops_around(self, function: ast.AST) -> set[int]:
        """The loops that a function is called in."""
        calls = (each for each in self.facts.execution.scopes if getattr(each.detail, "node", None) is function)
        return {id(level.node) for each in calls for level in each.upwards() if level.kind == "loop"}


def _parts(test: ast.expr, kind: type[ast.boolop]) -> list[ast.expr]:
    """The tests that ``and``, or ``or``, joins."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, kind) else [test]


def _sets_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is True


def _adds(node: ast.AST) -> bool:
    """Whether a statement adds a number above zero: ``step += 1``."""
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
        return False
    added = node.value.value if isinstance(node.value, ast.Constant) else 0
    return isinstance(added, (int, float)) and added > 0


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """What lies in the body of a loop, other than in loops and functions in it."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*LOOPS, *SCOPES)):
            waiting += children(node)
