"""Losses that are means over what counts in a batch: of its padded positions, each process has another number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Const, Made, Value, members
from turbofix.training.model import Counted
from turbofix.training.steps.regions import no_grad

_MEANS = frozenset(
    f"torch.nn.{name}" for name in ("CrossEntropyLoss", "NLLLoss", "functional.cross_entropy", "functional.nll_loss")
)
_PLACES = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.BinOp, ast.Return)


def counted(analysis: Analysis, records: list[LoopRecord]) -> Iterator[Counted]:
    """The losses of steps that leave out what has a number of its own, or weigh by class, and are means over that."""
    facts, told = analysis.facts, set[ast.AST]()
    called = {id(event.node) for event in facts.of("forward")}
    for record in records:
        for event in facts.events_in(record.node):
            parent = facts.places.parent(event.node, event.module)
            fits = event.kind in ("criterion", "call") and isinstance(parent, _PLACES) and not no_grad(event)
            # a model that computes its loss itself does so in evaluations too, which a process may do alone
            fits = fits and not any(id(frame.call) in called for frame in facts.frames(event))
            weights = _weights(event) if fits and event.node not in told else None
            if weights is not None:
                told.add(event.node)
                yield Counted(facts.site(event), weights)


def _weights(event: Event) -> str | None:
    """What each position weighs in a mean, in the words of the text at its call; None for no mean, or one over all."""
    call, given = event.node, event.arguments
    target = given.get("target", 1) if given is not None else None
    if not isinstance(call, ast.Call) or given is None or target is None or target.node is None:
        return None
    made = [each for each in members(event.receiver) if isinstance(each, Made) and each.qualname in _MEANS]
    if made:
        told, name = [each.arguments for each in made], ast.unparse(call.func)
        words = {each: f"{name}.{each}" for each in ("ignore_index", "weight")}
    elif event.name in _MEANS:
        told = [given]
        nodes = {each: passed.node for each in ("ignore_index", "weight") if (passed := given.get(each)) is not None}
        words = {each: ast.unparse(node) for each, node in nodes.items() if node is not None}
    else:
        return None
    if not all(_is_mean(each.get("reduction")) for each in told):
        return None
    text = ast.unparse(target.node)
    whole = text if isinstance(target.node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"
    left = [each.get("ignore_index") for each in told]
    weighed = [each.get("weight") for each in told]
    parts = []
    if "weight" in words and all(each is not None and not _is(each.value, None) for each in weighed):
        parts.append(f"{words['weight']}[{text}]")
    if "ignore_index" in words and all(each is not None and not _is_sentinel(each.value) for each in left):
        parts.append(f"{whole} != {words['ignore_index']}")
    return " * ".join(f"({each})" if len(parts) > 1 and "!=" in each else each for each in parts) or None


def _is_mean(given: object) -> bool:
    value = getattr(given, "value", None)
    return given is None or all(_is(each, "mean") for each in members(value))


def _is(value: Value | None, what: object) -> bool:
    return any(isinstance(each, Const) and each.value == what for each in members(value))


def _is_sentinel(value: Value | None) -> bool:
    """Whether it is a number that stands for nothing in particular, as in many language models without padding."""
    return any(isinstance(each, Const) and each.value == -1 for each in members(value))
