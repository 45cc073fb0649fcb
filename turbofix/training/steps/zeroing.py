"""Where a step fills gradients with zeros instead of forgetting them, and where some may come late."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame, settled
from turbofix.dataflow.guards import Condition
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import (
    Bound,
    Const,
    Instance,
    Made,
    Value,
    members,
)
from turbofix.source.names import walk_here
from turbofix.source.places import FUNCTIONS, blocks
from turbofix.source.site import Site
from turbofix.training.model import Zeroing
from turbofix.training.steps.acts import concerned, is_module_class, optimizers_in
from turbofix.training.steps.regions import no_grad

_OFTEN = ("always", "config")
_GRADIENT = re.compile(r"(?<!autograd)\.(?:_|main_)?grad\b(?!\()|[\"'](?:_|main_)?grad[\"']")
_FILLS = re.compile(
    r"for (?P<p>\w+) in .+:\n(?: +if (?:(?P=p)\.requires_grad and )?(?P=p)\.grad is not None"
    r"(?: and (?P=p)\.requires_grad)?:\n)?(?: +(?P=p)\.grad(?:\.data)?\.(?:detach_|requires_grad_)\(.*\)\n)*"
    r" +(?P=p)\.grad(?:\.data)?\.(?:zero_\(\)|fill_\(0(?:\.0)?\))"
)
"""``p.grad.zero_()``, under ``if p.grad is not None``, after ``p.grad.detach_()``."""


def zeroings(analysis: Analysis, events: list[Event], record: LoopRecord) -> tuple[Zeroing, ...]:
    """The zeroings of a step, in order."""
    asked = [(event, None) for event in events if event.kind == "zero_grad" and _keeps_zeros(event)]
    loops = list(_loops(analysis, events))
    if not asked and not loops:
        return ()
    places = analysis.facts.places
    found: dict[Site, Zeroing] = {}
    for event, loop in (*asked, *loops):
        node: ast.AST = loop or event.node
        assert isinstance(event.node, (ast.Call, ast.Attribute))
        site = places.site(node, event.module)
        found.setdefault(
            site,
            Zeroing(
                site,
                _forgets(analysis, loop, event) if loop is not None else _receiver(analysis, event),
                None if loop is not None else isinstance(event.node, ast.Call) and bool(event.node.keywords),
                analysis.guards.guard(event, record.node),
                places.comments_at(node, event.module),
                next(_reads(analysis, [each for _, each in loops if each is not None]), None),
            ),
        )
    return tuple(found[site] for site in sorted(found))


def _keeps_zeros(event: Event) -> bool:
    passed = event.arguments.get("set_to_none", 0) if event.arguments is not None else None
    if passed is None or not passed.must or not isinstance(event.node, ast.Call):
        return False
    return isinstance(passed.value, Const) and passed.value.value is False


def _receiver(analysis: Analysis, event: Event) -> str | None:
    """The text of what ``zero_grad`` is called on, if that is torch's own method."""
    node = event.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if len(node.args) + len(node.keywords) != 1 or not _is_torchs(event.receiver):
        return None
    return analysis.facts.places.text(node.func.value, event.module)


def _is_torchs(value: Value | None) -> bool:
    """Whether something is certainly a module, or an optimizer of torch's, with the ``zero_grad`` that these have."""
    found = members(value)
    return bool(found) and all(_is_one_of_torchs(each) for each in found)


def _is_one_of_torchs(value: Value) -> bool:
    if isinstance(value, Made):
        own = value.qualname.startswith("torch.")
        return own and value.kind in ("optimizer", "module", "wrapper")
    return isinstance(value, Instance) and is_module_class(value) and value.cls.find("zero_grad") is None


def _loops(analysis: Analysis, events: list[Event]) -> Iterator[tuple[Event, ast.For | None]]:
    """The loops of a step that do nothing but fill the gradients of parameters with zeros."""
    places = analysis.facts.places
    for event in events:
        if event.kind != "grad_read":
            continue
        outer: ast.For | None = None
        for above in places.ancestors(event.node, event.module):
            if isinstance(above, FUNCTIONS):
                break
            if not isinstance(above, ast.For):
                continue
            fills = _FILLS.fullmatch(ast.unparse(above)) or (outer is not None and above.body == [outer])
            if not fills or above.orelse:
                break
            outer = above
        if outer is not None:
            yield event, outer


def _forgets(analysis: Analysis, loop: ast.For, event: Event) -> str | None:
    """What can be told to forget the gradients that a loop goes through: the module, or the optimizer."""
    made, owner = loop.iter, None
    if isinstance(made, ast.Attribute) and made.attr == "param_groups" and "['params']:" in ast.unparse(loop):
        owner = made.value
    elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and not (made.args or made.keywords):
        owner = made.func.value if made.func.attr == "parameters" else None
    if owner is None or not _is_torchs(analysis.facts.evaluate(owner, analysis.facts.frames(event))):
        return None
    return analysis.facts.places.text(owner, event.module)


def _reads(analysis: Analysis, but: list[ast.For]) -> Iterator[Site]:
    """Where the program names a gradient by itself, other than to fill it with zeros in these loops."""
    filled = {line for loop in but for line in range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)}
    for module in analysis.execution.modules.values():
        for number, line in enumerate(module.text.splitlines(), 1) if "grad" in module.text else ():
            named = _GRADIENT.search(line.partition("#")[0])
            if named is not None and number not in filled:
                yield Site(module.path, number, named.start(), number, named.end(), "Attribute")


def late(analysis: Analysis, events: list[Event], record: LoopRecord) -> Site | None:
    """What may give parameters that SGD moves by momentum their first gradient after the first update."""
    stepped = [each for event in events if event.kind == "step" for each in optimizers_in(concerned(event))]
    if not any(map(_has_momentum, stepped)):
        return None
    return next(_deciding(analysis, events, record), None)


def _has_momentum(optimizer: Value) -> bool:
    if not isinstance(optimizer, Made) or optimizer.qualname != "torch.optim.SGD":
        return False
    momentum = optimizer.arguments.get("momentum", 2)
    return optimizer.arguments.open or (momentum is not None and settled(momentum.value) not in (0, 0.0))


def _deciding(analysis: Analysis, events: list[Event], record: LoopRecord) -> Iterator[Site]:
    """What may decide in the code from step to step which parameters get a gradient, and no update waits for.

    What stands under the same tests as an update is there by then.
    """
    places, loop = analysis.facts.places, record.node
    judged: set[ast.AST] = set()
    awaited = [analysis.guards.guard(event, loop).tests for event in events if event.kind == "step"]
    losses = {analysis.guards.guard(event, loop).tests for event in events if event.kind == "criterion"}
    if len(losses) == 1:
        awaited += losses  # a single kind of loss: there is no gradient at all without it
    for event in events:
        if no_grad(event):
            continue
        if event.kind in ("backward", "forward", "criterion"):
            guard = analysis.guards.guard(event, loop)
            waits = any(tests[: len(guard.tests)] == guard.tests for tests in awaited)
            if guard.kind not in _OFTEN and not waits:
                yield guard.tests[-1] if guard.tests else analysis.facts.site(event)
        called = event.node.func if isinstance(event.node, ast.Call) else None
        if isinstance(called, ast.Subscript) and not isinstance(called.slice, ast.Constant):
            yield analysis.facts.site(event)  # one of several layers, by a number or a name that is computed
        frames = analysis.facts.frames(event)
        for frame in analysis.facts.frames_within(event, loop):
            scope = frame.scope
            if scope in judged or not _is_of_module(frame) or any(loop is each for each in frame.loops):
                continue
            judged.add(scope)
            for decision in _tests(scope):
                condition = Condition(decision.test, True, decision, frames[: frames.index(frame) + 1])
                if analysis.guards.judge(condition, loop)[0] not in _OFTEN:
                    yield places.site(decision.test, frame.module)


def _is_of_module(frame: Frame) -> bool:
    """Whether a function is a method of a module."""
    function = frame.function
    if function is None or function.cls is None:
        return False
    detail = frame.opener.detail if frame.opener is not None else None
    receiver = detail.receiver if isinstance(detail, Bound) else None
    if isinstance(receiver, Instance):
        return is_module_class(receiver)
    return any(name.startswith("torch.nn.") for name in function.cls.externals())


def _tests(scope: ast.AST) -> Iterator[ast.If | ast.IfExp | ast.While]:
    """What decides in a function, but over an error."""
    for block in blocks(scope):
        for statement in block:
            for node in walk_here(statement):
                raises = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and not node.orelse
                if isinstance(node, (ast.If, ast.IfExp, ast.While)) and not raises:
                    yield node
