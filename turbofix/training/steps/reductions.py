"""Gradients that processes sum with each backward pass, in a step that updates after several of them.

What would hold them back is a ``with`` around forward and backward pass, under a test that is true where an update may
follow: the test of the update itself, or that for the last round of the loop over micro-batches.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.guards import Condition
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Instance, Iterated, Made, Sequence, Tensor, members
from turbofix.source.answers import every
from turbofix.source.names import dotted, loaded, loads, stores, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, contains
from turbofix.source.site import Site
from turbofix.training.frameworks.owners import placed
from turbofix.training.model import Accumulation, Act, Loop, Reduction
from turbofix.training.steps.acts import is_update
from turbofix.training.steps.regions import Search, Span, no_grad

PARALLEL = "torch.nn.parallel.DistributedDataParallel"
_HOLDING = (".no_sync", ".accumulate", ".no_backward_sync")
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
    calls = [each for each in doing.events if each.kind == "forward" and not no_grad(each)]
    calls = [each for each in calls if any(True for _ in _wrapped(analysis, each))]
    if not calls:
        return None
    site = facts.site(doing.backwards[0])
    held = next((found for each in doing.backwards if (found := _held(analysis, each)) is not None), None)
    if held is not None:
        return Reduction(site, held=held, late=all(_held(analysis, each) is None for each in calls))
    for node, _, module in facts.attribute_writes("require_backward_grad_sync"):
        return Reduction(site, held=facts.places.site(node, module))
    if doing.groups is None or any(".no_sync" in module.text for module in analysis.execution.modules.values()):
        return None
    try:
        return _whole(analysis, doing, calls, acts)
    except _Unfit as reason:
        return Reduction(site, why_not=str(reason))


def _wrapped(analysis: Analysis, call: Event) -> Iterator[Made | Instance]:
    """What is called of a model that DistributedDataParallel wraps, or that Accelerate may."""
    for each in members(call.receiver):
        if isinstance(each, Made) and each.qualname == PARALLEL:
            yield each
        elif isinstance(each, (Made, Instance)) and analysis.facts.origin_site(each.origin) in placed(analysis):
            yield each


def _held(analysis: Analysis, event: Event) -> Site | None:
    """The ``with`` around an event that may keep gradients back."""
    for level in event.control.upwards():
        if level.kind == "with" and isinstance(level.detail, tuple) and level.module is not None:
            item, value = level.detail
            if any(isinstance(each, Made) and each.qualname.endswith(_HOLDING) for each in members(value)):
                return analysis.facts.places.site(item.context_expr, level.module)
    return None


def _whole(analysis: Analysis, doing: Doing, calls: list[Event], acts: tuple[Act, ...]) -> Reduction:
    """All that a ``with`` takes; raises _Unfit where it would change what is learned, or cannot be written."""
    span = _span(analysis, doing)
    frame, first, last = span.frames[-1], span.block[span.first], span.block[-1]
    if any(isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await)) for each in walk(first)):
        raise _Unfit("the forward pass hands over to others in the midst of it")
    inner = _inner(analysis, doing)
    if inner is not None:
        stepping = _of_last_round(analysis, doing, inner, frame)
        inside = [each for each in doing.events if analysis.facts.inside(each, inner.node)]
    else:
        condition = _condition(analysis, doing)
        if condition.frames[-1].scope is not frame.scope:
            raise _Unfit("the test of the update stands in another function than the forward pass")
        assert condition.test is not None
        test = _at(analysis, condition.test, first, condition.node, frame)
        stepping = ast.unparse(test) if condition.holds else f"not ({ast.unparse(test)})"
        inside = [each for each in doing.events if not _is_under(analysis, each, condition, doing)]
    for each in inside:
        if each.kind in ("clip", "unscale", "grad_read"):
            line = analysis.facts.site(each).line_from(frame.module.path)
            raise _Unfit(f"{line} uses the gradients of each micro-batch, and those would be of one process alone")
    late = _flush(analysis, doing)
    if late is not None:
        stepping = f"{stepping} or {_of_last_batch(analysis, doing, late, frame)}"
    text, sure = _model(analysis, span, calls)
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
    if facts.places.scope(node, inner.module) is not frame.scope:
        raise _Unfit("the loop over micro-batches stands in another function than the forward pass")
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
    raise _Unfit("nothing counts the rounds of the loop over micro-batches: let `enumerate` do it, and test for the last")


def _condition(analysis: Analysis, doing: Doing) -> Condition:
    """The test under which all updates happen, and more than the backward pass."""
    loop, guards = doing.record.node, analysis.guards
    around = [guards.conditions(each, loop) for each in doing.updates]
    shared = set.intersection(*({_said(each) for each in one} for one in around))
    for each in around[0]:
        if each.test is not None and _said(each) in shared and guards.judge(each, loop)[0] == "every_n":
            break
    else:
        raise _Unfit("several updates of a step happen under several tests")
    for backward in doing.backwards:
        for other in guards.conditions(backward, loop):
            if _said(other) not in shared and guards.judge(other, loop)[0] != "config":
                line = f"line {getattr(other.node, 'lineno', 0)}"
                raise _Unfit(f"{line} decides whether a micro-batch goes backward, and an update may follow one that does not")
    return each


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
    _refuse_changed_elsewhere(analysis, whole, begin, end, frame)
    if not changed:
        return test
    name, write = changed[0]
    if len(changed) == 1 and isinstance(write, ast.Assign) and dotted(test) == name == dotted(write.targets[0]):
        return _at(analysis, write.value, first, write, frame)
    counts = isinstance(write, ast.AugAssign) and isinstance(write.op, ast.Add) and name in whole
    blocks = [places.block(each, module) for each in (first, where) if isinstance(each, ast.stmt)]
    if len(changed) == 1 and counts and isinstance(write, ast.AugAssign) and any(write in each for each in blocks):
        if isinstance(write.value, ast.Constant):
            return _Counted(name, write.value).visit(copy.deepcopy(test))  # type: ignore[no-any-return]
    raise _Unfit(f"`{name}`, which the test of the update reads, changes between the forward pass and the test")


def _refuse_changed_elsewhere(analysis: Analysis, names: set[str], begin: int, end: int, frame: Frame) -> None:
    """Raise _Unfit where a method that is called between two lines writes an attribute which a test reads."""
    for name in names:
        for _, scope, _ in analysis.facts.attribute_writes(name.rpartition(".")[2]) if "." in name else ():
            called = getattr(scope, "name", "") if scope is not frame.scope else ""
            for call in every(ast.Call, frame.module.tree):
                if begin <= call.lineno < end and (dotted(call.func) or "").rpartition(".")[2] == called:
                    raise _Unfit(f"`{name}`, which the test of the update reads, is changed by `{called}` before it")


class _Counted(ast.NodeTransformer):
    """A name, and what will have been added to it."""

    def __init__(self, name: str, more: ast.expr) -> None:
        self._name, self._more = name, more

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == self._name:
            return ast.BinOp(node, ast.Add(), self._more)
        return self.generic_visit(node)


# --- what else uses the gradients, and the model ------------------------------------------------------------------


def _flush(analysis: Analysis, doing: Doing) -> Event | None:
    """An update behind the loop, with the gradients of the last micro-batches: no other loop that trains holds it."""
    facts = analysis.facts
    backwards = facts.of("backward")
    for event in facts.of("step"):
        if not is_update(event) or facts.inside(event, doing.record.node):
            continue
        own = [each for each in facts.loops(event) if not contains(each.node, doing.record.node, each.module)]
        beside = any(facts.inside(backward, each.node) for each in own for backward in backwards)
        if not beside and event.order > doing.backwards[0].order:
            return event
    return None


def _of_last_batch(analysis: Analysis, doing: Doing, late: Event, frame: Frame) -> str:
    """The test for the last batch of the loop, whose gradients an update behind it uses."""
    loop, node = doing.loop, doing.record.node
    line = analysis.facts.site(late).line_from(frame.module.path)
    here = analysis.facts.places.scope(node, doing.record.module) is frame.scope
    if not here or loop.counter is None or loop.sized is None:
        raise _Unfit(f"{line} updates with what the last micro-batches of a pass left, and nothing tells which these are")
    if any(isinstance(each, ast.Break) for each in walk_here(node)):
        raise _Unfit(f"{line} updates with what the last micro-batches left, and the loop may end before its last round")
    return f"{loop.counter}{'' if loop.counter_start else ' + 1'} == {loop.sized}"


def _model(analysis: Analysis, span: Span, calls: list[Event]) -> tuple[str, bool]:
    """What the function of the step calls the wrapped model, and whether it is surely wrapped there."""
    facts, frame = analysis.facts, span.frames[-1]
    wanted = [each for call in calls for each in _wrapped(analysis, call)]
    found: dict[str, bool] = {}
    for statement in span.block[span.first :]:
        for node in loads(statement):
            held = members(facts.evaluate(node, span.frames))
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
            "several wrapped models are called" if found else "the function of the step has no name for the wrapped model"
        )
    return next(iter(found.items()))


def _class(analysis: Analysis, node: ast.AST, module: ModuleFile) -> ast.AST | None:
    """The class whose method holds a node."""
    around = analysis.facts.places.ancestors(node, module)
    method = next((each for each in around if isinstance(each, FUNCTIONS)), None)
    parent = analysis.facts.places.parent(method, module) if method is not None else None
    return parent if isinstance(parent, ast.ClassDef) else None
