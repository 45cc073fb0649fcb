"""Where a step fills gradients with zeros instead of forgetting them, and where some may come late."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame, settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Bound, Instance, Made, Value, members
from turbofix.source.site import Site
from turbofix.training.model import Zeroing
from turbofix.training.steps.acts import concerned, is_module_class, optimizers_in
from turbofix.training.steps.regions import no_grad

_OFTEN = ("always", "config")
_FILLS = re.compile(
    r"for (?P<p>\w+) in .+\.(?:parameters\(\)|param_groups):\n(?: +for \w+ in .+\[\"params\"\]:\n)?"
    r"(?: +if \w+\.grad is not None.*:\n)?(?: +\w+\.grad\.detach_\(\)\n)?"
    r" +\w+\.grad(?:\.data)?\.(?:zero_\(\)|fill_\(0\))"
)
"""A loop over parameters that does nothing but ``p.grad.zero_()``."""


def zeroings(analysis: Analysis, events: list[Event], record: LoopRecord) -> tuple[Zeroing, ...]:
    """The zeroings of a step, in order."""
    places = analysis.facts.places
    found: dict[Site, Zeroing] = {}
    for event in events:
        node: ast.AST | None = event.node if event.kind == "zero_grad" and _keeps_zeros(event) else None
        owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if event.kind == "grad_read":
            loops = [each for each in places.ancestors(event.node, event.module) if isinstance(each, ast.For)]
            filling = [each for each in loops[:2] if _FILLS.fullmatch(ast.unparse(each).replace("'", '"'))]
            node = filling[-1] if filling else None
            owner = _gone_through(filling[-1]) if filling else None
        if node is None:
            continue
        known = owner is not None and _is_torchs(analysis.facts.evaluate(owner, analysis.facts.frames(event)))
        text = places.text(owner, event.module) if owner is not None and known else None
        guard, site = analysis.guards.guard(event, record.node), places.site(node, event.module)
        found.setdefault(site, Zeroing(site, text, isinstance(node, ast.For), guard))
    return tuple(found[site] for site in sorted(found))


def _keeps_zeros(event: Event) -> bool:
    passed = event.arguments.get("set_to_none", 0) if event.arguments is not None else None
    return passed is not None and passed.must and settled(passed.value) is False


def _gone_through(loop: ast.For) -> ast.expr | None:
    """The model or optimizer whose parameters a loop goes through."""
    made = loop.iter.func if isinstance(loop.iter, ast.Call) else loop.iter
    return made.value if isinstance(made, ast.Attribute) else None


def _is_torchs(value: Value | None) -> bool:
    """Whether something is certainly a module, or an optimizer of torch's, with the ``zero_grad`` that these have."""
    found = members(value)
    return bool(found) and all(
        (isinstance(each, Made) and each.qualname.startswith("torch.") and each.kind in ("optimizer", "module"))
        or (isinstance(each, Instance) and is_module_class(each) and each.cls.find("zero_grad") is None)
        for each in found
    )


def late(analysis: Analysis, events: list[Event], record: LoopRecord) -> Site | None:
    """What may give parameters that SGD moves by momentum their first gradient after the first update."""
    stepped = [each for event in events if event.kind == "step" for each in optimizers_in(concerned(event))]
    return next(_deciding(analysis, events, record), None) if any(map(_has_momentum, stepped)) else None


def _has_momentum(optimizer: Value) -> bool:
    if not isinstance(optimizer, Made) or optimizer.qualname != "torch.optim.SGD":
        return False
    momentum = optimizer.arguments.get("momentum", 2)
    return optimizer.arguments.open or (momentum is not None and settled(momentum.value) not in (0, 0.0))


def _deciding(analysis: Analysis, events: list[Event], record: LoopRecord) -> Iterator[Site]:
    """What may decide from step to step which parameters get a gradient, and no update waits for.

    What stands under the same tests as an update is there by then.
    """
    loop = record.node
    awaited = [analysis.guards.guard(event, loop).tests for event in events if event.kind == "step"]
    losses = {analysis.guards.guard(event, loop).tests for event in events if event.kind == "criterion"}
    if len(losses) == 1:
        awaited += losses  # a single kind of loss: there is no gradient at all without it
    for event in events:
        frames = analysis.facts.frames_within(event, loop)
        learning = event.kind in ("backward", "forward", "criterion") or any(map(_is_of_module, frames))
        if not learning or no_grad(event):
            continue
        guard = analysis.guards.guard(event, loop)
        waits = any(tests[: len(guard.tests)] == guard.tests for tests in awaited)
        if guard.kind not in _OFTEN and not waits:
            yield guard.tests[-1] if guard.tests else analysis.facts.site(event)
        called = event.node.func if isinstance(event.node, ast.Call) else None
        if isinstance(called, ast.Subscript) and not isinstance(called.slice, ast.Constant):
            yield analysis.facts.site(event)  # one of several layers, by a number or a name that is computed


def _is_of_module(frame: Frame) -> bool:
    """Whether a function is a method of a module."""
    detail = frame.opener.detail if frame.opener is not None else None
    receiver = detail.receiver if isinstance(detail, Bound) else None
    return isinstance(receiver, Instance) and is_module_class(receiver)
