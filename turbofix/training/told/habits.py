"""What a program does right already, read off the event log, and off the text, by the rows of ``habits.tsv``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import is_off
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Arguments, Event, Passed
from turbofix.domain.values import Const, Instance, Option, Tensor, Value, flatten, members
from turbofix.findings import InPlace
from turbofix.library.tables import CLIPS, kind_of, rows_of
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.training.checkpoints import are_weights, models
from turbofix.training.model import Step
from turbofix.training.told.written import SHAPES, calls_by_name, is_interval, named_calls, written_of

_SLOWED = regex(r"output_attentions ?= ?True|set_attn_processor")
"""What may put a library's attention that is written out in the place of torch's own."""


@dataclass(frozen=True)
class Habit:
    """One row of the table."""

    codemod: str
    kind: str
    names: tuple[str, ...]
    argument: str
    position: int | None
    value: str
    where: str
    sentence: str

    def covers(self, event: Event, there: Collection[str]) -> bool:
        """Whether an event of the row's kind and name, there, is such a habit."""
        return self.where in there and (not self.argument or self._given(event))

    def is_called(self, name: str) -> bool:
        """Whether a qualified name is one of the row's."""
        return _names(self.names).hold(name)

    def _given(self, event: Event) -> bool:
        if event.arguments is None:
            return False
        passed = event.arguments.get(self.argument, self.position)
        if passed is None:
            return self.value.startswith("!") and not event.arguments.open
        values = (each.default if isinstance(each, Option) else each for each in members(passed.value))
        known = [each.value for each in values if isinstance(each, Const)]
        return self._fits(known)

    def is_open(self, event: Event) -> bool:
        """Whether nothing is known of the value that the row asks for."""
        given = event.arguments.get(self.argument) if event.arguments is not None else None
        found = [] if given is None or given.node is None else members(given.value)
        return any(not isinstance(each, (Const, Option)) for each in found)

    def _fits(self, known: list[object]) -> bool:
        """Whether values are as the row says: ``*`` any true one, ``>1`` more, ``!no`` all others, ``?so`` one."""
        if self.value == "*":
            return not known or any(known)  # what is not known is told with its text
        if self.value == ">1":
            return not known or any(type(each) is not int or each > 1 for each in known)
        if self.value.startswith("?"):
            return any(fnmatchcase(str(each), self.value[1:]) for each in known)
        if self.value.startswith("!"):
            return all(str(each) != self.value[1:] for each in known)
        return bool(known) and all(fnmatchcase(str(each), self.value) for each in known)

    def is_written(self, call: ast.Call) -> bool:
        """Whether a call that was not executed is given what the row says."""
        if not self.argument:
            return True
        words = {word.arg: word.value for word in call.keywords}
        given = words.get(self.argument)
        if given is None and self.position is not None and self.position < len(call.args):
            given = call.args[self.position]
        if given is None:
            return self.value.startswith("!") and None not in words
        if isinstance(given, (ast.List, ast.Tuple, ast.Dict)):
            return self.value == "*"
        return isinstance(given, ast.Constant) and self._fits([given.value])


class Names(NamedTuple):
    """Qualified names, sorted by how they are compared: a pattern for each would cost more than all comparisons."""

    whole: frozenset[str]
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    shapes: tuple[str, ...]

    def hold(self, name: str) -> bool:
        """Whether a name is one of them."""
        same = name in self.whole or name.startswith(self.starts) or name.endswith(self.ends)
        return same or any(fnmatchcase(name, each) for each in self.shapes)


@cache
def _names(names: tuple[str, ...]) -> Names:
    found: tuple[list[str], ...] = ([], [], [], [])
    for each in names:
        special = [sign for sign in each if sign in "*?["]
        kind = 3 if special else 0
        if special == ["*"]:
            kind = 1 if each.endswith("*") else 2 if each.startswith("*") else 3
        found[kind].append(each.strip("*") if kind in (1, 2) else each)
    whole, *others = found
    return Names(frozenset(whole), *map(tuple, others))


def _called(event: Event) -> str:
    """The method by whose call something is entered: ``.no_sync``."""
    node = getattr(event.node, "context_expr", event.node)
    return f".{node.func.attr}" if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


@cache
def table() -> dict[str, tuple[Habit, ...]]:
    """The rows by kind of event."""
    found: dict[str, tuple[Habit, ...]] = {}
    for codemod, kind, names, argument, where, sentence in rows_of("habits.tsv"):
        name, _, value = argument.partition("=")
        name, _, position = name.partition("@")
        name = "" if name == "-" else name
        at = int(position) if position else None
        row = Habit(codemod, kind, tuple(names.split()), name, at, value, where, sentence)
        found[kind] = (*found.get(kind, ()), row)
    return found


def habits(analysis: Analysis, steps: Collection[Step]) -> Iterator[InPlace]:
    """Each habit once for each line, in program order; what was executed before what is only written."""
    told: set[tuple[str, Path, int]] = set()
    stay = bool(steps) and all(step.device.where == "cpu" for step in steps)
    anywhere = ("any",) if stay else ("any", "gpu")
    always = _passed_each_time(analysis, steps)
    summed = [each.accumulation for each in steps if each.accumulation and 1 not in each.accumulation.steps.values]
    executed = (*_executed(analysis, steps, anywhere, always), *_kept(analysis, stay))
    executed += tuple(
        InPlace("grad-accumulation", each.guard, "gradients add up over several batches") for each in summed
    )
    slowed = any(_SLOWED.search(each.text) for each in analysis.execution.modules.values())
    for habit in (*executed, *_written(analysis, anywhere, always)):
        if slowed and habit.codemod == "sdpa":
            continue
        place = habit.codemod, habit.site.path, habit.site.line
        if place not in told:
            told.add(place)
            yield habit


def _passed_each_time(analysis: Analysis, steps: Collection[Step]) -> Collection[Site]:
    """The tests that each step of a training passes: those of its optimizer, and intervals of 1."""
    guards = [each.guard for step in steps for each in step.shows]
    guards += [each.guard for step in steps for each in step.chores]
    found = {test for guard in guards if guard.every == 1 for test in guard.tests}
    around = (level for event in analysis.facts.of("step") for level in event.control.upwards())
    ifs = ((level.node.test, level.module) for level in around if isinstance(level.node, ast.If))
    return found | {analysis.facts.places.site(test, module) for test, module in ifs if module is not None}


def _executed(
    analysis: Analysis, steps: Collection[Step], anywhere: Collection[str], always: Collection[Site]
) -> Iterator[InPlace]:
    facts = analysis.facts
    loops = {step.loop.site for step in steps}
    outer: set[Site] = set()
    for event in facts.of("backward", "step"):
        outer.update(facts.places.site(record.node, record.module) for record in facts.loops(event))
    alone = are_weights(facts.of("save"), facts.of("call", "unknown_call"))
    for kind in table():
        for event in (*facts.of(kind), *(_settings(facts.of("construct")) if kind == "make" else ())):
            if kind == "save" and alone and not any(map(_is_learned, flatten(event.receiver))):
                continue
            rows = _of_events(kind, event.name or _called(event))
            if not rows:
                continue
            around = [facts.places.site(record.node, record.module) for record in facts.loops(event)]
            where = "step" if not loops.isdisjoint(around) else "loop" if around and around[-1] in outer else ""
            where = "interval" if where == "step" and _every_so_often(analysis, event, always) else where
            for row in rows:
                if row.covers(event, (*anywhere, where or "outside")) and not is_off(analysis, event.node):
                    node, module = _told_at(event.node, row), event.module
                    field = event.arguments.get(row.argument) if event.arguments is not None else None
                    if node is event.node and field is not None and isinstance(field.value, Option):
                        made = field.value.origin
                        node, module = (made.node, made.module) if made is not None else (node, module)
                    says = f", where `{facts.places.text(node, module)}` says so" if row.is_open(event) else ""
                    yield InPlace(row.codemod, facts.places.site(node, module), row.sentence + says)


def _is_learned(value: Value) -> bool:
    """Whether a value is a model, or one of the weights that its ``state_dict`` holds."""
    return models(value) or (isinstance(value, Tensor) and "param" in value.roles)


def _settings(constructed: Collection[Event]) -> Iterator[Event]:
    """Settings by a class of the project that is derived from a library's, by the library's name, with all fields."""
    for event in constructed:
        for made in members(event.result):
            names = made.cls.externals() if isinstance(made, Instance) else ()
            if isinstance(made, Instance) and any(kind_of(name) == "config" for name in names):
                given = dict(event.arguments.keywords) if event.arguments is not None else {}
                given |= {name: Passed(value) for name, value in made.attributes.items()}
                yield from (replace(event, name=name, arguments=Arguments(keywords=given)) for name in names)


def _kept(analysis: Analysis, stay: bool) -> Iterator[InPlace]:
    """Tensors of the GPU that a loop sums or gathers, or gives to Lightning's log, with no wait for their values."""
    given: dict[ast.expr, tuple[ast.AST, ModuleFile, str]] = {}
    for module in analysis.execution.modules.values() if not stay else ():
        for total in every(ast.AugAssign, module.tree):
            if isinstance(total.op, ast.Add):
                given[total.value] = total, module, ""
        for name in ("append", "log", "log_dict"):
            for call in calls_by_name(module.tree).get(name, ()):
                words = {word.arg: word.value for word in call.keywords}
                first = [words.get("value"), words.get("dictionary"), *reversed(call.args)]
                taken = next((each for each in first if each is not None), None)
                if taken is not None and not getattr(words.get("prog_bar"), "value", False):
                    given |= dict.fromkeys(getattr(taken, "values", [taken]), (call, module, name))
    for frame in analysis.execution.frames.values():
        for node in (each for each in given if each in frame.values):
            said, module, name = given[node]
            found = members(frame.values[node])
            tensors = [each for each in found if isinstance(each, Tensor)]
            if not found or len(tensors) < len(found):
                continue
            site = analysis.facts.places.site(said, module)
            if isinstance(said, ast.Call) and name != "append":
                owners = members(frame.values.get(getattr(said.func, "value", said)))
                classes = [base for each in owners if isinstance(each, Instance) for base in each.cls.externals()]
                if any(base.endswith(".LightningModule") for base in classes):
                    yield InPlace("defer-item", site, "Lightning keeps the tensor, and reads it where it logs")
            elif _is_only_summed(analysis, said, module, tensors):
                yield InPlace("defer-item", site, "a tensor is kept, and no step waits for its value")


def _is_only_summed(analysis: Analysis, said: ast.AST, module: ModuleFile, tensors: Collection[Tensor]) -> bool:
    """Whether a loop sums or gathers tensors of the GPU without their graphs, and reads nothing of the total in it."""
    loops = [each for each in analysis.facts.places.ancestors(said, module) if isinstance(each, LOOPS)]
    total = dotted(
        said.target if isinstance(said, ast.AugAssign) else getattr(getattr(said, "func", None), "value", None)
    )
    written = written_of(analysis)
    counts = any(isinstance(each, ast.Compare) or getattr(each, "attr", "") == "eq" for each in walk(said))
    grows = not counts and not all(each.detached for each in tensors)
    if not loops or total is None or any(each.device not in ("cuda", "conditional") for each in tensors):
        return False
    if grows and (isinstance(said, ast.Call) or written.where(said, module) in ("step", "interval")):
        return False
    inside = {id(each) for each in walk(loops[0])}
    reads = [each.node for each in analysis.facts.of("sync") if id(each.node) in inside]
    seldom = (each for each in reads if written.where(each, module) != "interval")
    return not any(dotted(part) == total for read in seldom for part in walk(read))


def _written(analysis: Analysis, anywhere: Collection[str], always: Collection[Site]) -> Iterator[InPlace]:
    """What the text tells of code that was not executed, and by its shape."""
    facts = analysis.facts
    written = written_of(analysis)
    dead = {id(event.node) for event in facts.dead} - {id(event.node) for event in facts.events}
    for row in table()["written"]:
        for node, module in SHAPES[row.names[0]](written):
            if id(node) not in dead and facts.places.site(getattr(node, "test", node), module) not in always:
                yield InPlace(row.codemod, facts.places.site(node, module), row.sentence)
    for module in written.modules:
        for call, name, full in named_calls(module.tree):
            if id(call) in dead:
                continue
            rows = _rows(name, full)
            executed = bool(rows and facts.at(call))
            for row in rows:
                if executed and (row.argument or row.where not in anywhere):
                    continue  # the events tell the values and the loops
                if executed and is_off(analysis, call):
                    continue
                if row.is_written(call) and row.where in (*anywhere, written.where(call, module) or "outside"):
                    yield InPlace(row.codemod, facts.places.site(_told_at(call, row), module), row.sentence)


@lru_cache(maxsize=4096)
def _of_events(kind: str, name: str) -> tuple[Habit, ...]:
    """The rows that speak of events of a kind and name."""
    return tuple(row for row in table()[kind] if row.names == ("-",) or row.is_called(name))


@lru_cache(maxsize=4096)
def _rows(name: str, full: str) -> tuple[Habit, ...]:
    """The rows that speak of what is called by a name; with what its owner was made of, too."""
    own = [*_rows_called("make", name), *_rows_called("call", full)]
    for kind, names in _KINDS.items():
        if _names(names).hold(full):
            own += [row for row in table().get(kind, ()) if row.names == ("-",) or row.is_called(full)]
    return tuple(own)


def _rows_called(kind: str, name: str) -> tuple[Habit, ...]:
    rows, every_name = _named(kind)
    return rows if not every_name.hold(name) else tuple(row for row in table()[kind] if row.is_called(name))


@cache
def _named(kind: str) -> tuple[tuple[Habit, ...], Names]:
    """The rows of a kind for any name, and the names of all others: most calls have none of them."""
    rows = table()[kind]
    names = (name for row in rows if row.names != ("*",) for name in row.names)
    return tuple(row for row in rows if row.names == ("*",)), _names(tuple(names))


def _told_at(node: ast.AST, row: Habit) -> ast.AST:
    """The argument that a row asks for, where the call gives it by its name; else the call."""
    words = node.keywords if isinstance(node, ast.Call) else []
    return next((word.value for word in words if word.arg == row.argument), node)


_KINDS = {
    "clip": (*CLIPS, "*.clip_grad_norm_", "*.clip_grad_value_", "*.clip_gradients"),
    "save": ("torch.save", "*.save_pretrained", "*.save_checkpoint", "*.save_weights", "*.save_state"),
    "zero_grad": ("*.zero_grad",),
    "compile": ("torch.compile",),
    "wrap": ("torch.nn.parallel.DistributedDataParallel",),
}
"""How calls are named that are an event of their own, as far as the text tells."""


def _every_so_often(analysis: Analysis, event: Event, always: Collection[Site]) -> bool:
    places = analysis.facts.places
    above = ((level.node, level.module) for level in event.control.upwards())
    tests = ((node, module) for node, module in above if isinstance(node, ast.If) and module is not None)
    return any(is_interval(node) and places.site(node.test, module) not in always for node, module in tests)
