"""A loop over a process's share of the data: what is set in front of it, and what is read behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.accumulators import given
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Made, Value, flatten, members
from turbofix.source.names import dotted, loaded, stored
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.training.parallel.sharing import value_of
from turbofix.training.steps.acts import loss_expression

_COMPUTING = frozenset(("len", "sum", "max", "min", "float", "int", "round", "mean", "item"))


class Pass:
    """One such loop."""

    def __init__(self, analysis: Analysis, record: LoopRecord) -> None:
        facts, loop, module = analysis.facts, record.node, record.module
        self.analysis, self.module, self.node = analysis, module, loop
        backward = [event for event in facts.events_in(loop) if event.kind == "backward"]
        self.trains, lost = bool(backward), [loss_expression(analysis, event) for event in backward]
        self.losses = {dotted(each) for each in lost if each is not None} - {None}
        self.own = [node for statement in loop.body for node in _own(statement)]
        self.calls = [each for each in self.own if isinstance(each, ast.Call)]
        behind = list(_around(analysis, loop, module, behind=True))
        self.behind = [node for each in behind for node in walk(each)]
        self.read = {name for each in behind for name in loaded(each)}
        outer = next((each for each in facts.places.ancestors(loop, module) if isinstance(each, LOOPS)), loop)
        later = [event for event in facts.events_in(outer) if event.kind == "backward"]
        by_hand = any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in self.behind)
        self.goes_on = by_hand or len(later) > len(backward)
        scope = facts.places.scope(loop, module)
        self.reached = readers(scope)
        self.starts = dict(_given(each for each in walk(scope) if getattr(each, "lineno", 0) < loop.lineno))
        around = _around(analysis, loop, module, within=True)
        self.fresh = [each for one in around for each in (one, *(one.body if isinstance(one, ast.With) else ()))]
        self.set_anew = dict(_given(self.fresh))
        self.set_inside = dict(_given(self.own))
        self.computed = list(self._computed(loop.body))
        for computed in self.computed:
            self.behind += walk(computed.value)
            self.read |= loaded(computed.value)

    def _computed(self, body: list[ast.stmt]) -> Iterator[ast.Assign]:
        """What each batch computes of sums and lists alone, and something behind the loop reads."""
        added = {root(each.target) for each in self.own if isinstance(each, ast.AugAssign)}
        receivers = [each.func.value for each in self.calls if isinstance(each.func, ast.Attribute)]
        added |= {root(each) for each in receivers} & {*self.set_anew}
        of_batch = stored([self.node]) - added - {self.counter or ""}
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and self.reaches(node.targets[0]):
                names, calls = loaded(node.value), [each for each in walk(node.value) if isinstance(each, ast.Call)]
                called = {ast.unparse(each.func).rpartition(".")[2] for each in calls}
                if names & added and not names & of_batch and called <= _COMPUTING:
                    yield node

    def takes_time(self, value: ast.expr) -> bool:
        """Whether a number is a time, which all processes take together."""
        parts = [value, *(self.set_inside[name] for name in loaded(value) if name in self.set_inside)]
        calls = [each for part in parts for each in walk(part) if isinstance(each, ast.Call)]
        names = [self.analysis.facts.offered(each.func, self.module) or "" for each in calls]
        return any(name.startswith("time.") for name in names)

    @property
    def counter(self) -> str | None:
        """What numbers the batches: ``enumerate``'s."""
        node, target = getattr(self.node, "iter", None), getattr(self.node, "target", None)
        while isinstance(node, ast.Call) and node.args and isinstance(target, ast.Tuple):
            if self.analysis.facts.offered(node.func, self.module) == "builtins.enumerate":
                return dotted(target.elts[0])
            node = node.args[0]
        return None

    def is_read(self, target: ast.expr) -> bool:
        """Whether something behind the loop reads a name, or what holds an entry; of attributes other methods may."""
        return root(target) in self.read or (dotted(target) or "").startswith("self.")

    def reaches(self, target: ast.expr) -> bool:
        """Whether what a name is set to in the loop is read behind it."""
        behind = {*self.behind}
        return any(each in behind for each in self.reached.get(target, ()))

    def start(self, target: ast.expr, *, anew: bool = False) -> ast.expr | None:
        """What a name or an entry is set to in front of the loop (``anew``: whenever it is passed)."""
        if not isinstance(target, ast.Subscript):
            return (self.set_anew if anew else self.starts).get(dotted(target) or "")
        outer = self.start(target.value, anew=anew) if is_entry(target) else None
        if isinstance(outer, ast.Dict):
            key = ast.unparse(target.slice)
            pairs = zip(outer.keys, outer.values, strict=True)
            return next((value for each, value in pairs if each is not None and ast.unparse(each) == key), None)
        if isinstance(outer, ast.Call) and (dotted(outer.func) or "").endswith("defaultdict") and outer.args:
            made = outer.args[0]
            return made.body if isinstance(made, ast.Lambda) else ast.Call(made, [], [])
        return outer.value if isinstance(outer, ast.DictComp) else None

    def value(self, node: ast.AST) -> list[Value]:
        """What an expression of the loop is, with all that it holds."""
        return list(flatten(value_of(self.analysis, node, self.module)))

    def is_loader(self, node: ast.expr) -> bool:
        """Whether it is what the loop runs over, or another loader."""
        head = getattr(self.node, "iter", None)
        if head is not None and ast.unparse(self.analysis.facts.without_bar(head, self.module)) == ast.unparse(node):
            return True
        held = members(value_of(self.analysis, node, self.module))
        return any(isinstance(each, Made) and each.kind == "loader" for each in held)

    def gathers(self) -> bool:
        """Whether the loop itself puts together what processes have: ``accelerator.gather(...)``."""
        for call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("gather", "gather_for_metrics", "reduce"):
                held = self.value(call.func.value)
                if any(isinstance(each, Made) and each.kind in ("accelerator", "fabric") for each in held):
                    return True
        return False


def root(target: ast.expr) -> str:
    """The name of what holds an entry, or the name itself."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return dotted(target) or ""


def is_entry(target: ast.Subscript) -> bool:
    """Whether it is one entry of a dict, by its key."""
    inner = not isinstance(target.value, ast.Subscript) or is_entry(target.value)
    return inner and isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what lies in it, functions left out."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            yield from _own(each)


def _around(
    analysis: Analysis, loop: ast.AST, module: ModuleFile, *, behind: bool = False, within: bool = False
) -> Iterator[ast.stmt]:
    """The statements in each block around a loop in its function (``within`` a pass of the next loop around it).

    ``behind``: those alone that follow it there.
    """
    places, inner = analysis.facts.places, loop
    for above in places.ancestors(loop, module):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, None)
            if isinstance(block, list) and inner in block:
                yield from block[block.index(inner) + 1 :] if behind else [each for each in block if each is not inner]
        inner = above
        if isinstance(above, (*FUNCTIONS, ast.Module)) or (within and isinstance(above, LOOPS)):
            return


def _given(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """What statements set, with what they set it to."""
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in walk(target):
                    name = dotted(each)
                    if name is not None and isinstance(getattr(each, "ctx", None), ast.Store):
                        value = given(node, name) or node.value
                        if value is not None:
                            yield name, value
