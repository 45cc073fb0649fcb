"""Variables that a loop sums into: what sets them, who reads them and when, and whether that is all there is."""

from __future__ import annotations

import ast
from dataclasses import field
from typing import Literal

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.known import Accumulator, Read
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.uses import STORING
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.records import dataclass
from turbofix.source.answers import everything
from turbofix.source.names import dotted, reads_of
from turbofix.source.places import LOOPS, contains
from turbofix.source.site import Site

When = Literal["every_step", "every_n", "condition", "after_loop", "elsewhere"]
_SEEN_IN_LOOP: dict[str, When] = {"every_n": "every_n", "condition": "condition", "except": "condition"}


@dataclass(eq=False)
class Summing:
    """One augmented assignment, with its surroundings. ``loop`` is the innermost loop around it in its own function."""

    analysis: Analysis
    update: ast.AugAssign
    text: str
    module: ModuleFile
    frames: tuple[Frame, ...]
    scope: ast.AST = field(init=False)
    loop: ast.AST | None = None
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        places = self.analysis.facts.places
        self.scope = places.scope(self.update, self.module)
        for each in places.ancestors(self.update, self.module):
            if each is self.scope:
                break
            if isinstance(each, LOOPS):
                self.loop = each
                break

    def in_loop(self, node: ast.AST) -> bool:
        """Whether a node stands in the loop."""
        return self.loop is not None and self.holds(self.loop, node)

    def holds(self, outer: ast.AST, node: ast.AST) -> bool:
        """Whether a node lies in another one."""
        return contains(outer, node, self.module)

    def precedes(self, first: ast.AST, second: ast.AST) -> bool:
        """Whether ``first`` always runs before ``second``: its block holds the second further down, perhaps nested."""
        places = self.analysis.facts.places
        statement = places.statement(first, self.module)
        if statement is None:
            return False
        block = places.block(statement, self.module)
        position = next((i for i, each in enumerate(block) if each is statement), len(block))
        return any(self.holds(each, second) for each in block[position + 1 :])

    def is_around(self, node: ast.AST) -> bool:
        """Whether an outer loop holds the loop and the node, so that what stands below runs before the next round."""
        if self.loop is None:
            return False
        outer = self.analysis.facts.places.ancestors(self.loop, self.module)
        return any(isinstance(each, LOOPS) and self.holds(each, node) for each in outer)

    def writes(self) -> list[ast.AST]:
        """Every statement of the scope that writes the variable."""
        return self.analysis.facts.bindings.writes(self.scope, self.text)

    # --- what sets it -----------------------------------------------------------------------------------------------

    def inits(self) -> list[ast.AST]:
        """The statements that set it before the loop; notes what makes it more than a sum."""
        before: list[ast.AST] = []
        for write in self.writes():
            inside = self.in_loop(write)
            if isinstance(write, ast.AugAssign):
                if inside and not isinstance(write.op, ast.Add):
                    self.reasons.append("the loop changes it in other ways than by adding to it")
                continue
            if not inside:
                if self.loop is not None and _line(write) > _line(self.loop) and not self.is_around(write):
                    continue  # it is set anew after the loop, as in the `total = total / n` that reads it
                if self.loop is not None and self.precedes(write, self.loop):
                    before.clear()  # this one always runs later than those above it
                before.append(write)
            if literal(write, self.text) is None:
                self.reasons.append("it does not begin as a number")
        return before

    # --- who reads it -----------------------------------------------------------------------------------------------

    def reads(self) -> list[Read]:
        """The places that may see what the loop summed; notes what makes it more than a sum."""
        owner, head = self.analysis.facts.bindings.owner, self.text.partition(".")[0]
        nodes: list[ast.AST] = [
            each for each in reads_of(self.text, self.scope) if owner(head, each, self.module) is self.scope
        ]
        nodes += [
            write.target
            for write in self.writes()
            if isinstance(write, ast.AugAssign) and write is not self.update and not isinstance(write.op, ast.Add)
        ]
        found = [self._read(node, self._when(node)) for node in nodes if self._is_reached(node)]
        if "." in self.text:
            last = self.text.rpartition(".")[2]
            places = self.analysis.facts.places
            found += [
                self._read(node, "elsewhere")
                for node in everything(self.module.tree)
                if isinstance(node, ast.Attribute)
                and node.attr == last
                and isinstance(node.ctx, ast.Load)
                and places.scope(node, self.module) is not self.scope
            ]
        return sorted(found, key=lambda read: read.site)

    def _read(self, node: ast.AST, when: When) -> Read:
        places = self.analysis.facts.places
        statement = places.statement(node, self.module) or node
        return Read(
            places.site(node, self.module),
            places.site(statement, self.module),
            when,
            self._shown_by(node),
        )

    def _shown_by(self, node: ast.AST) -> Site | None:
        """The statement that shows what a read gives, where that is all that becomes of it."""
        places = self.analysis.facts.places
        uses = self.analysis.flow.uses(node, self.frames[-1].opener if self.frames else None)
        shown = {places.statement(each.node, self.module) for each in uses}
        statement = shown.pop() if len(shown) == 1 else None
        if statement is None or any(each.kind != "shown" or each.chosen for each in uses):
            return None
        return places.site(statement, self.module)

    def _when(self, node: ast.AST) -> When:
        if self.loop is None or not self.in_loop(node):
            return "after_loop" if self.loop is not None and _line(node) > _end(self.loop) else "elsewhere"
        self._note_aliases(node)
        if not self.frames or self.frames[-1].scope is not self.scope:
            return "condition"
        if not any(self.loop is each for each in self.frames[-1].loops):
            return "condition"
        guards = self.analysis.guards
        here, summed = (guards.conditions_of(each, self.frames, self.loop) for each in (node, self.update))
        guard = guards.beside(here, summed, self.loop)
        if guard.kind == "every_n" and guard.every == 1:
            return "every_step"  # every step passes `step % 1 == 0`, unless somebody asks for another interval
        return _SEEN_IN_LOOP.get(guard.kind, "every_step")

    def _note_aliases(self, node: ast.AST) -> None:
        """A read in the loop that keeps the object itself: later additions would change it there too."""
        places = self.analysis.facts.places
        parent = places.parent(node, self.module)
        if isinstance(places.statement(node, self.module), ast.Return):
            self.reasons.append("it is returned inside the loop")
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is node:
            self.reasons.append("it is given another name inside the loop")
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr in STORING:
            self.reasons.append("it is stored inside the loop")

    def _is_reached(self, node: ast.AST) -> bool:
        """Whether a read can see what the loop summed: it is not set anew in between, nor does the read come before."""
        if self.loop is None or self.in_loop(node):
            return True
        below = _line(node) > _end(self.loop)
        if not below and not self.is_around(node):
            return False
        for write in self.writes():
            if isinstance(write, ast.AugAssign) or self.in_loop(write) or not self.precedes(write, node):
                continue
            if below and _line(write) > _end(self.loop):
                return False
            if not below and self.is_around(write):
                return False
        return True


def accumulator_of(analysis: Analysis, update: ast.AugAssign, event: Event, loop: ast.AST) -> Accumulator | None:
    """The variable that an augmented assignment sums into, with every place that sets or reads it."""
    facts = analysis.facts
    places, module = facts.places, event.module
    text = dotted(update.target)
    if text is None:
        return None
    summing = Summing(analysis, update, text, module, facts.frames(event))
    inits, reads, reasons = summing.inits(), summing.reads(), summing.reasons
    head = text.partition(".")[0]
    captured = facts.bindings.captured(summing.scope)
    if facts.bindings.owner(head, update.target, module) is not summing.scope:
        reasons.append("it belongs to another scope")
    elif text in captured or ("." not in text and head in captured):
        reasons.append("a nested function captures it")
    place = summing.loop, module
    if summing.loop is None:
        reasons.append("it is summed outside of the function that holds the loop")
        place = next(((each.node, each.module) for each in facts.loops(event) if each.node is loop), (loop, module))
    if not inits:
        reasons.append("nothing sets it before the loop in the same function")
    return Accumulator(
        text=places.text(update.target, module),
        update=places.site(update, module),
        inits=tuple(places.site(each, module) for each in inits),
        reads=tuple(reads),
        loop=places.site(place[0] or loop, place[1]),
        simple=not reasons,
        why_not_simple=reasons[0] if reasons else None,
    )


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0) or 0)


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
