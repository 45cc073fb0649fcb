"""What a program does right already, read off the event log by the rows of ``habits.tsv``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from turbofix.findings import InPlace, Site
from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.model import Step
from turbofix.program.values import Const, Option, members
from turbofix.records import dataclass

ROWS = Path(__file__).with_name("habits.tsv")


@dataclass(frozen=True)
class Habit:
    """One row of the table."""

    codemod: str
    kind: str
    names: tuple[str, ...]
    argument: str
    value: str
    where: str
    sentence: str

    def covers(self, event: Event, where: str) -> bool:
        """Whether an event of this kind, there, is such a habit."""
        if self.where not in ("any", where) or not (self.names == ("-",) or self._is(event.name or _called(event))):
            return False
        return not self.argument or self._given(event)

    def _is(self, name: str) -> bool:
        return any(
            name.startswith(each[:-1])
            if each.endswith("*")
            else name.endswith(each[1:])
            if each.startswith("*")
            else name == each
            for each in self.names
        )

    def _given(self, event: Event) -> bool:
        passed = event.arguments.get(self.argument) if event.arguments is not None else None
        if passed is None:
            return False
        values = (each.default if isinstance(each, Option) else each for each in members(passed.value))
        known = [each.value for each in values if isinstance(each, Const)]
        if self.value == "*":
            return not known or any(known)
        return bool(known) and all(str(each) == self.value for each in known)


def _called(event: Event) -> str:
    """The method by whose call something is entered: ``.no_sync``."""
    node = getattr(event.node, "context_expr", event.node)
    return f".{node.func.attr}" if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


@cache
def table() -> dict[str, tuple[Habit, ...]]:
    """The rows by kind of event."""
    found: dict[str, tuple[Habit, ...]] = {}
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        codemod, kind, names, argument, where, sentence = line.split("\t")
        name, _, value = argument.partition("=")
        row = Habit(codemod, kind, tuple(names.split()), "" if argument == "-" else name, value, where, sentence)
        found[kind] = (*found.get(kind, ()), row)
    return found


def habits(analysis: Analysis, steps: Iterable[Step]) -> Iterator[InPlace]:
    """Each habit once for each place, in program order."""
    facts = analysis.facts
    loops = {step.loop.site for step in steps}
    outer: set[Site] = set()
    for event in facts.of("backward", "step"):
        outer.update(facts.places.site(record.node, record.module) for record in facts.loops(event))
    told: set[tuple[str, Site]] = set()
    for kind, rows in table().items():
        for event in facts.of(kind):
            around = [facts.places.site(record.node, record.module) for record in facts.loops(event)]
            where = "step" if not loops.isdisjoint(around) else "loop" if around and around[-1] in outer else ""
            where = "interval" if where == "step" and _every_so_often(event) else where
            for row in rows:
                if row.covers(event, where):
                    site = facts.site(event)
                    if (row.codemod, site) not in told:
                        told.add((row.codemod, site))
                        yield InPlace(row.codemod, site, row.sentence)


def _every_so_often(event: Event) -> bool:
    """Whether a test of a remainder guards it: `if step % 100 == 0`."""
    tests = (level.node.test for level in event.control.upwards() if isinstance(level.node, (ast.If, ast.IfExp)))
    return any(isinstance(node, ast.Mod) for test in tests for node in ast.walk(test))
