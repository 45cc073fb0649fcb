"""Gradients that processes sum with each backward pass, in a step that updates after several of them.

What would hold them back is a ``with`` around forward and backward pass, under a test that is true where an update may
follow: the test of the update itself, or that for the last round of the loop over micro-batches.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from turbofix.dataflow.facts import Frame, settled_name
from turbofix.dataflow.guards import Condition
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Iterated, Made, Sequence, Tensor, Value, members
from turbofix.source.answers import every
from turbofix.source.names import dotted, loaded, loads, stores, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, contains
from turbofix.source.site import Site
from turbofix.training.model import Accumulation, Act, Loop, Reduction
from turbofix.training.steps.acts import is_update, stepper
from turbofix.training.steps.regions import Search, Span, no_grad

PARALLEL = "torch.nn.parallel.DistributedDataParallel"
_HOLDING = (".no_sync", ".accumulate", ".no_backward_sync")
_SPOKEN = ("no_sync", "require_backward_grad_sync")
_STEADY = frozenset(("len", "int", "bool", "min", "max", "abs"))


class _Unfit(Exception):  # noqa: N818 (no error)
    """Why nothing can be put around the micro-batches, in a clause."""


class Doing(NamedTuple):
    """What happens in a step: its loop, backward passes and updates, all that is no evaluation, and the groups."""

    record: LoopRecord
    loop: Loop
    backwards: list[Event]
    updates: list[Event]
    events: list[Event]
    groups: Accumulation | None


def reduction(analysis: Analysis, doing: Doing, acts: tuple[Act, ...]) -> Reduction | None:
    """How the gradients of a step come from process to process; None where that is not with each backward pass."""
    facts = analysis.facts
    site = facts.site(doing.backwards[0])
    calls = [each for each in doing.events if each.kind in ("forward", "unknown_call") and not no_grad(each)]
    calls = [each for each in calls if any(True for _ in _wrapped(analysis, each))]
    held = next((found for each in doing.backwards if (found := _held(analysis, each)) is not None), None)
    if held is not None:
        late = bool(calls) and all(_held(analysis, each) is None for each in calls)
        return Reduction(site, held=held, late=late)
    if (told := _told(analysis)) is not None:
        return Reduction(site, held=told)
    try:
        return _whole(analysis, doing, calls, acts) if calls else None
    except _Unfit as reason:
        return Reduction(site, why_not=str(reason))


def _wrapped(analysis: Analysis, call: Event) -> Iterator[Value]:
    """What is called of a model that DistributedDataParallel wraps, or that Accelerate may."""
    prepared = analysis.once(("prepared",), lambda: _prepared(analysis))
    for each in members(call.receiver):
        if id(each) in prepared or (isinstance(each, Made) and each.qualname == PARALLEL):
            yield each


def _prepared(analysis: Analysis) -> dict[int, Value]:
    """What Accelerate is given to prepare."""
    calls = (each for each in analysis.facts.of("call") if each.name.endswith("accelerate.Accelerator.prepare"))
    given = (value for each in calls if each.arguments is not None for value in each.arguments.values())
    return {id(each): each for value in given for each in members(value)}


def _held(analysis: Analysis, event: Event) -> Site | None:
    """The ``with`` around an event that may keep gradients back."""
    for level in event.control.upwards():
        if level.kind == "with" and isinstance(level.detail, tuple) and level.module is not None:
            item, value = level.detail
            if any(isinstance(each, Made) and each.qualname.endswith(_HOLDING) for each in members(value)):
                return analysis.facts.places.site(item.context_expr, level.module)
    return None


def _told(analysis: Analysis) -> Site | None:
    """Where else the program speaks of holding gradients back: a method that is entered by another name, a switch."""
    for module in analysis.execution.modules.values():
        if any(f".{name}" in module.text for name in _SPOKEN):
            for each in every(ast.Attribute, module.tree):
                if each.attr in _SPOKEN:
                    return analysis.facts.places.site(each, module)
    return None


def _whole(analysis: Analysis, doing: Doing, calls: list[Event], acts: tuple[Act, ...]) -> Reduction | None:
    """All that a ``with`` takes, None where every backward pass has its update.

    Raises _Unfit where it would change what is learned, or cannot be written.
    """
    span = _span(analysis, doing)
    inner = _inner(analysis, doing)
    if inner is not None:
        frame, first, last = _statements(analysis, span, analysis.facts.places.scope(inner.node, inner.module))
        if not contains(inner.node, first, inner.module):
            raise _Unfit("several backward passes go through one forward pass")
        stepping = _of_last_round(analysis, doing, inner, frame)
        inside = [each for each in doing.events if analysis.facts.inside(each, inner.node)]
    else:
        condition = _condition(analysis, doing)
        if condition is None:
            return None
        test, where, scope = _passed(analysis, condition)
        frame, first, last = _statements(analysis, span, scope)
        stepping = _text(_at(analysis, test, first, where, frame), condition.holds)
        inside = [each for each in doing.events if not _is_under(analysis, each, condition, doing)]
    block = analysis.facts.places.block(first, frame.module)
    statements = block[block.index(first) : block.index(last) + 1]
    if any(isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await)) for each in statements for part in walk(each)):
        raise _Unfit("the forward pass hands over to others in the midst of it")
    for each in inside:
        if each.kind in ("clip", "unscale", "grad_read"):
            line = analysis.facts.site(each).line_from(frame.module.path)
            raise _Unfit(f"{line} uses the gradients of each micro-batch, and those would be of one process alone")
    late = _flush(analysis, doing) if inner is None else None
    if late is not None:
        stepping = f"{stepping} or {_of_last_batch(analysis, doing, late, frame)}"
    text, sure = _model(analysis, frame, statements, calls)
    nodes, ways = {id(each.node) for each in calls}, {id(each.control) for each in calls}
    sure = sure and all(id(each.control) in ways for each in doing.events if id(each.node) in nodes)
    places, owners = analysis.facts.places, [each.owner for each in acts if each.owner]
    return Reduction(
        backward=analysis.facts.site(doing.backwards[0]),
        model=text,
        owner=owners[0] if owners else "",
        sure=sure,
        first=places.site(first, frame.module),
        last=places.site(last, frame.module),
        stepping=stepping,
    )


def _span(analysis: Analysis, doing: Doing) -> Span:
    """The statements from the forward pass to the backward, which are the same for each of the backward passes."""
    found = [Search(analysis, each, doing.record.node, doing.events).span() for each in doing.backwards]
    spans = [each for each in found if each is not None]
    if len(spans) < len(found):
        raise _Unfit("the forward pass could not be told apart from the rest of the step")
    if len({(id(each.block[each.first]), id(each.block[-1])) for each in spans}) > 1:
        raise _Unfit("a micro-batch has several backward passes: put `no_sync()` around all of them but the last")
    return spans[0]


def _statements(analysis: Analysis, span: Span, scope: ast.AST) -> tuple[Frame, ast.stmt, ast.stmt]:
    """The first and the last statement of a micro-batch in the function that knows which is the last one."""
    frame = next((each for each in span.frames if each.scope is scope), None)
    if frame is None:
        raise _Unfit("the function that makes the forward pass does not know which micro-batch is the last one")
    if frame is span.frames[-1]:
        return frame, span.block[span.first], span.block[-1]
    statement = analysis.facts.places.statement(frame.anchor, frame.module)
    if statement is None:
        raise _Unfit("the forward pass stands in an expression of its own")
    return frame, statement, statement


def _text(test: ast.expr, holds: bool) -> str:
    """The source of a test, or of its opposite."""
    turned = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.NotEq)
    if holds or not turned:
        source = f"({ast.unparse(test)})" if isinstance(test, ast.IfExp) or not holds else ast.unparse(test)
        return source if holds else f"not {source}"
    assert isinstance(test, ast.Compare)
    return ast.unparse(ast.Compare(test.left, [ast.Eq()], test.comparators))


# --- the test -----------------------------------------------------------------------------------------------------


def _inner(analysis: Analysis, doing: Doing) -> LoopRecord | None:
    """The loop over micro-batches, where the update stands behind one."""
    around = analysis.facts.loops(doing.backwards[0])
    at = next(number for number, each in enumerate(around) if each.node is doing.record.node)
    loops = [each for each in around[at + 1 :] if isinstance(each.node, LOOPS)]
    if len(loops) > 1:
        raise _Unfit("its micro-batches are made in several loops, one in another")
    return loops[0] if loops else None


def _of_last_round(analysis: Analysis, doing: Doing, inner: LoopRecord, frame: Frame) -> str:
    """The test for the last round of the loop over micro-batches."""
    node, facts = inner.node, analysis.facts
    if not all(facts.inside(each, node) for each in doing.backwards):
        raise _Unfit("another backward pass follows the loop over micro-batches")
    if any(isinstance(each, (ast.Break, ast.Return)) for each in walk_here(node)):
        raise _Unfit("the loop over micro-batches may end before its last round")
    for backward in doing.backwards:
        if analysis.guards.guard(backward, node).kind not in ("always", "config"):
            raise _Unfit("a test decides whether the last micro-batch goes backward")
    counter, many = _counted(analysis, inner, frame)
    if {counter, many} & {name for statement in node.body for name, _ in stores(statement)}:
        raise _Unfit("the loop over micro-batches changes what counts them")
    return f"{counter} == {int(many) - 1 if many.isdigit() else f'{many} - 1'}"


def _counted(analysis: Analysis, inner: LoopRecord, frame: Frame) -> tuple[str, str]:
    """The name that counts the rounds of a loop from 0, and how many there are."""
    node = inner.node
    call = node.iter if isinstance(node, ast.For) else None
    if isinstance(node, ast.For) and isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords:
        name, given = dotted(call.func), call.args[0]
        simple = dotted(given) is not None or isinstance(given, ast.Constant)
        if name == "range" and isinstance(node.target, ast.Name) and simple:
            return node.target.id, ast.unparse(given)
        first = node.target.elts[0] if isinstance(node.target, ast.Tuple) else None
        kinds = members(analysis.facts.evaluate(given, (frame,)))
        sized = bool(kinds) and all(isinstance(each, (Sequence, Tensor, Iterated)) for each in kinds)
        if name == "enumerate" and isinstance(first, ast.Name) and dotted(given) is not None and sized:
            return first.id, f"len({dotted(given)})"
    raise _Unfit(
        "nothing counts the rounds of the loop over micro-batches: let `enumerate` do it, and test for the last"
    )


def _condition(analysis: Analysis, doing: Doing) -> Condition | None:
    """The test under which all updates happen, and more than the backward pass; None where there is none."""
    loop, guards = doing.record.node, analysis.guards
    around = [guards.conditions(each, loop) for each in doing.updates]
    shared = set.intersection(*({_said(each) for each in one} for one in around))
    backward = {_said(each) for one in doing.backwards for each in guards.conditions(one, loop)}
    tests = [each for each in around[0] if each.test is not None and _said(each) in shared - backward]
    found = [each for each in tests if guards.judge(each, loop)[0] == "every_n" or _is_reset(each)]
    if found and min(_first(doing.updates)) < max(_first(doing.backwards)):
        raise _Unfit("the update stands in front of the forward pass: it takes what the micro-batch before it left")
    if not found:
        if doing.groups is None:
            return None
        raise _Unfit("the updates of a step happen under several tests")
    for one in doing.backwards:
        for other in guards.conditions(one, loop):
            if _said(other) not in shared and guards.judge(other, loop)[0] != "config":
                line = getattr(other.node, "lineno", 0)
                raise _Unfit(
                    f"line {line} decides whether a micro-batch goes backward, and an update may follow all the same"
                )
    return found[0]


def _first(events: list[Event]) -> Iterable[int]:
    """When each of the calls behind events happens for the first time: a function may run more than once."""
    found: dict[int, int] = {}
    for each in events:
        found[id(each.node)] = min(each.order, found.get(id(each.node), each.order))
    return found.values()


def _is_reset(condition: Condition) -> bool:
    """Whether a test reads a number that is set anew where it holds: ``if count == 8: ...; count = 0``."""
    body = condition.node.body if isinstance(condition.node, ast.If) and condition.holds else []
    names = {name for statement in body for name, _ in stores(statement)}
    return condition.test is not None and not names.isdisjoint(map(dotted, loads(condition.test)))


def _passed(analysis: Analysis, condition: Condition) -> tuple[ast.expr, ast.AST, ast.AST]:
    """A test, where it is read, and the function that it stands in; those of the caller that passes it."""
    test, frames, where = condition.test, condition.frames, condition.node
    while isinstance(test, ast.Name) and (given := analysis.guards.passed_for(test, frames)) is not None:
        where, frames, test = frames[-1].call or where, frames[:-1], given
    assert test is not None
    return test, where, frames[-1].scope


def _said(condition: Condition) -> tuple[str, bool]:
    return ast.unparse(condition.test or ast.Constant(None)), condition.holds


def _is_under(analysis: Analysis, event: Event, condition: Condition, doing: Doing) -> bool:
    return _said(condition) in map(_said, analysis.guards.conditions(event, doing.record.node))


def _at(analysis: Analysis, test: ast.expr, first: ast.stmt, where: ast.AST, frame: Frame) -> ast.expr:
    """A test that is read at ``where``, as it reads in front of ``first``."""
    for each in walk(test):
        steady = not isinstance(each, ast.Call) or (isinstance(each.func, ast.Name) and each.func.id in _STEADY)
        if isinstance(each, (ast.NamedExpr, ast.Await)) or not steady:
            raise _Unfit("the test of the update calls something, which would happen twice")
    places, module = analysis.facts.places, frame.module
    loop = next((each for each in places.ancestors(first, module) if isinstance(each, LOOPS)), None)
    body: list[ast.stmt] = loop.body if isinstance(loop, LOOPS) else getattr(frame.scope, "body", [])
    begin, end = first.lineno, getattr(where, "lineno", 0)
    between = [(n, w) for statement in body for n, w in stores(statement) if begin <= getattr(w, "lineno", 0) < end]
    whole = {name for each in loads(test) if (name := dotted(each)) is not None}
    changed = [(n, w) for n, w in between if n in loaded(test) or n.startswith(tuple(f"{name}." for name in whole))]
    if not changed:
        _refuse_changed_elsewhere(analysis, whole, begin, end, frame)
        return test
    name, write = changed[0]
    if len(changed) == 1 and isinstance(write, ast.Assign) and dotted(test) == name == dotted(write.targets[0]):
        return _at(analysis, write.value, first, write, frame)
    blocks = [places.block(each, module) for each in (first, where) if isinstance(each, ast.stmt)]
    counts = (
        isinstance(write, ast.AugAssign) and isinstance(write.op, ast.Add) and isinstance(write.value, ast.Constant)
    )
    if len(changed) == 1 and counts and name in whole and any(write in each for each in blocks):
        assert isinstance(write, ast.AugAssign)
        _refuse_changed_elsewhere(analysis, whole, begin, end, frame)
        counted: ast.expr = _Counted(name, write.value).visit(copy.deepcopy(test))
        return counted
    raise _Unfit(f"`{name}`, which the test of the update reads, changes between the forward pass and the test")


def _refuse_changed_elsewhere(analysis: Analysis, names: set[str], begin: int, end: int, frame: Frame) -> None:
    """Raise _Unfit where what a test reads is changed by something that is called between two lines."""
    facts, module = analysis.facts, frame.module
    called = {dotted(each.func) or "" for each in every(ast.Call, module.tree) if begin <= each.lineno < end}
    for name in names:
        writers = {scope for _, scope, _ in facts.attribute_writes(name.rpartition(".")[2]) if "." in name}
        writers |= {facts.places.scope(each, module) for each in every(ast.Global, module.tree) if name in each.names}
        writers |= {facts.places.scope(each, module) for each in every(ast.Nonlocal, module.tree) if name in each.names}
        changing = {getattr(each, "name", "") for each in writers if each is not frame.scope}
        for each in called:
            receiver, _, method = each.rpartition(".")
            if method in changing or receiver == name:
                raise _Unfit(f"`{name}`, which the test of the update reads, may be changed by `{each}` before it")


class _Counted(ast.NodeTransformer):
    """A name, and what will have been added to it."""

    def __init__(self, name: str, more: ast.expr) -> None:
        self._name, self._more = name, more

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == self._name:
            return ast.BinOp(node, ast.Add(), self._more)
        return self.generic_visit(node)


# --- what else uses the gradients, and the model ------------------------------------------------------------------


def _flush(analysis: Analysis, doing: Doing) -> Event | None:
    """An update behind the loop, with the gradients of the last micro-batches: no other loop that trains holds it."""
    facts = analysis.facts
    around = [each.node for each in facts.loops(doing.backwards[0])]
    known = all(stepper(each.receiver) != "unknown" for each in doing.updates)
    for event in facts.of("step"):
        if not is_update(event) or facts.inside(event, doing.record.node):
            continue
        if known and stepper(event.receiver) == "unknown":
            continue  # a scheduler, perhaps
        own = [each.node for each in facts.loops(event) if not any(each.node is one for one in around)]
        beside = any(facts.inside(backward, each) for each in own for backward in facts.of("backward"))
        if not beside and event.order > doing.backwards[0].order:
            return event
    return None


def _of_last_batch(analysis: Analysis, doing: Doing, late: Event, frame: Frame) -> str:
    """The test for the last batch of the loop, whose gradients an update behind it uses."""
    loop, node = doing.loop, doing.record.node
    line = analysis.facts.site(late).line_from(frame.module.path)
    here = analysis.facts.places.scope(node, doing.record.module) is frame.scope
    counts = isinstance(node, ast.For) and loop.counter in [dotted(each) for each in walk(node.target)]
    if not here or not counts or loop.sized is None or loop.counter_start not in (0, 1):
        raise _Unfit(
            f"{line} updates with what the last micro-batches of a pass left, and nothing tells which these are"
        )
    skips = any(analysis.guards.guard(each, node).kind not in ("always", "config") for each in doing.backwards)
    if skips or any(isinstance(each, (ast.Break, ast.Return)) for each in walk_here(node)):
        raise _Unfit(f"{line} updates with what the last micro-batches left, and the last round may not be reached")
    return f"{loop.counter}{'' if loop.counter_start else ' + 1'} == {loop.sized}"


def _model(analysis: Analysis, frame: Frame, block: list[ast.stmt], calls: list[Event]) -> tuple[str, bool]:
    """What the function of the step calls the wrapped model, and whether it is surely wrapped there."""
    facts = analysis.facts
    wanted = [each for call in calls for each in _wrapped(analysis, call)]
    found: dict[str, bool] = {}
    for statement in block:
        for node in loads(statement):
            run = (each.values.get(node) for each in facts.executions(frame.scope))  # whoever calls the function
            held = [member for value in run for member in members(settled_name(value))]
            if (text := dotted(node)) is not None and any(each is one for each in held for one in wanted):
                found[text] = all(any(each is one for one in wanted) for each in held)
    for call in calls if not found else ():
        text = dotted(getattr(call.node, "func", None)) or ""
        if text.startswith("self.") and _class(analysis, call.node, call.module) is _class(
            analysis, frame.anchor, frame.module
        ):
            found[text] = all(any(each is one for one in wanted) for each in members(call.receiver))
    if len(found) != 1:
        raise _Unfit(
            "several wrapped models are called"
            if found
            else "the function of the step has no name for the wrapped model"
        )
    return next(iter(found.items()))


def _class(analysis: Analysis, node: ast.AST, module: ModuleFile) -> ast.AST | None:
    """The class whose method holds a node."""
    around = analysis.facts.places.ancestors(node, module)
    method = next((each for each in around if isinstance(each, FUNCTIONS)), None)
    parent = analysis.facts.places.parent(method, module) if method is not None else None
    return parent if isinstance(parent, ast.ClassDef) else None
