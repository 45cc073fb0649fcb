"""Losses that are means over what counts in a batch: of its padded positions, each process has another number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Const, Made, members
from turbofix.training.model import Counted
from turbofix.training.steps.regions import no_grad

_MEANS = frozenset(
    f"torch.nn.{name}" for name in ("CrossEntropyLoss", "NLLLoss", "functional.cross_entropy", "functional.nll_loss")
)
_PLACES = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.BinOp, ast.Return)


def counted(analysis: Analysis, records: list[LoopRecord]) -> Iterator[Counted]:
    """The losses of steps that leave out what has a number of its own, and are means over the rest."""
    facts, told = analysis.facts, set[ast.AST]()
    for record in records:
        for event in facts.events_in(record.node):
            if event.kind not in ("criterion", "call") or no_grad(event) or event.node in told:
                continue
            left_out, given = (
                _left_out(event),
                event.arguments.get("target", 1) if event.arguments is not None else None,
            )
            parent = facts.places.parent(event.node, event.module)
            if left_out is None or given is None or given.node is None or not isinstance(parent, _PLACES):
                continue
            told.add(event.node)
            yield Counted(facts.site(event), f"{ast.unparse(given.node)}", left_out)


def _left_out(event: Event) -> str | None:
    """What a loss leaves out, in the words of the text at its call; None for no mean, or one over all."""
    call = event.node
    if not isinstance(call, ast.Call):
        return None
    made = [each for each in members(event.receiver) if isinstance(each, Made) and each.qualname in _MEANS]
    if made:
        known = all(each.arguments.get("ignore_index") is not None for each in made)
        mean = all(_is_mean(each.arguments.get("reduction")) for each in made)
        return f"{ast.unparse(call.func)}.ignore_index" if known and mean else None
    if event.name not in _MEANS or event.arguments is None:
        return None
    index = event.arguments.get("ignore_index")
    mean = _is_mean(event.arguments.get("reduction"))
    return ast.unparse(index.node) if index is not None and index.node is not None and mean else None


def _is_mean(given: object) -> bool:
    value = getattr(given, "value", None)
    return given is None or all(isinstance(each, Const) and each.value == "mean" for each in members(value))
