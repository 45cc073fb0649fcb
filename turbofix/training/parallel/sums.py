"""Losses that are sums over a batch, of which each process has a part."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Bound, Const, Function, Instance, Made, members
from turbofix.regex import regex
from turbofix.source.names import dotted, loads
from turbofix.source.nodes import walk
from turbofix.training.model import Summed
from turbofix.training.parallel.sharing import value_of
from turbofix.training.parallel.wrapping import NotWrapped
from turbofix.training.steps.acts import loss_expression
from turbofix.training.steps.regions import no_grad

_COUNTED = regex(r"size|len\(|shape|batch|numel|\bbs\b")


def sums(analysis: Analysis, records: list[LoopRecord]) -> Iterator[Summed]:
    """The losses that are sums over a batch, of which each process has a part. Raises NotWrapped for mixed ones."""
    facts = analysis.facts
    for record in records:
        inside = facts.events_in(record.node)
        asked = [event for event in inside if event.kind in ("criterion", "call") and not no_grad(event)]
        sums = [event for event in asked if _reduction(event) == "sum"]
        means = [event for event in asked if event.kind == "criterion" and _reduction(event) != "sum"]
        backward = [event for event in inside if event.kind == "backward"]
        by_hand = [event for event in backward if not means and _is_sum(analysis, *_value(analysis, event))]
        if not (sums or by_hand) or any(_is_divided(analysis, *_value(analysis, event)) for event in backward):
            continue
        if sums and means:
            why = "a loss is a sum over the batch, and another one a mean: divide the sum by the batch's size"
            raise NotWrapped(why, facts.site(sums[0]))
        for event in backward if sums else by_hand:
            loss, set_at = loss_expression(analysis, event), _written(analysis, event)
            if loss is not None:
                at = facts.places.site(set_at, event.module) if isinstance(set_at, ast.Assign) else None
                yield Summed(facts.places.site(loss, event.module), ast.unparse(loss) if at is not None else "", at)


def _written(analysis: Analysis, event: Event) -> ast.expr | ast.Assign | None:
    """Where a loss at a backward pass is set last, in its function; or the loss, if it has no name."""
    loss = loss_expression(analysis, event)
    return _set_last(analysis, loss, event.module) if isinstance(loss, ast.Name) else loss


def _set_last(analysis: Analysis, name: ast.Name, module: ModuleFile) -> ast.Assign | None:
    """The statement in front of a name that sets it last, in its function."""
    owner, places = analysis.facts.bindings.owner(name.id, name, module), analysis.facts.places
    writes = [each for each in analysis.facts.bindings.writes(owner, name.id) if isinstance(each, ast.Assign)]
    before = [each for each in writes if each.lineno <= name.lineno and name not in walk(each)]
    return next((each for each in reversed(before) if places.scope(each, module) is owner), None)


def _value(analysis: Analysis, event: Event) -> tuple[ast.expr | None, ModuleFile]:
    """What a loss at a backward pass was set to."""
    written = _written(analysis, event)
    return (written.value if isinstance(written, ast.Assign) else written), event.module


def _is_sum(analysis: Analysis, node: ast.expr | None, module: ModuleFile, depth: int = 8) -> bool:
    """Whether an expression sums up a whole tensor, or is made of such sums, here or in functions that it calls."""

    def of(part: ast.expr) -> bool:
        return _is_sum(analysis, part, module, depth - 1)

    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        setting = _set_last(analysis, node, module)
        return setting is not None and isinstance(setting.targets[0], ast.Name) and of(setting.value)
    if isinstance(node, ast.UnaryOp):
        return of(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return of(node.left) and of(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return of(node.left) or of(node.right)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "sum":
        return not node.keywords and len(node.args) == (1 if dotted(node.func) == "torch.sum" else 0)
    own = list(_own_functions(analysis, node, module))
    returns = [(one.value, each.module) for each in own for one in walk(each.node) if isinstance(one, ast.Return)]
    return bool(returns) and all(_is_sum(analysis, value, place, depth - 1) for value, place in returns)


def _is_divided(analysis: Analysis, node: ast.expr | None, module: ModuleFile, depth: int = 8) -> bool:
    """Whether a loss is divided by how many samples there are, on its way from what it is computed of."""
    if node is None or depth == 0:
        return False
    if any(map(_is_shared_out, walk(node))):
        return True
    for each in loads(node):
        if isinstance(each, ast.Name) and _is_divided_in_place(analysis, each, module):
            return True
        setting = _set_last(analysis, each, module) if isinstance(each, ast.Name) else None
        value = setting.value if setting is not None and each not in walk(setting) else None
        if _is_divided(analysis, value, module, depth - 1):
            return True
    for call in (each for each in walk(node) if isinstance(each, ast.Call)):
        for function in _own_functions(analysis, call, module):
            for one in walk(function.node):
                if isinstance(one, ast.Return) and _is_divided(analysis, one.value, function.module, depth - 1):
                    return True
    return False


def _is_divided_in_place(analysis: Analysis, name: ast.Name, module: ModuleFile) -> bool:
    bindings = analysis.facts.bindings
    writes = bindings.writes(bindings.owner(name.id, name, module), name.id)
    return any(
        isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Div) and _COUNTED.search(ast.unparse(each.value))
        for each in writes
    )


def _own_functions(analysis: Analysis, call: ast.Call, module: ModuleFile) -> Iterator[Function]:
    """The functions of the program that a call runs: of an object that is called, its ``forward``."""
    for each in members(value_of(analysis, call.func, module)):
        found = each.function if isinstance(each, Bound) else each
        if isinstance(found, Instance):
            found = found.cls.find("forward") or found
        if isinstance(found, Function) and isinstance(found.node, ast.FunctionDef):
            yield found


def _reduction(event: Event) -> object:
    """What a loss is told of its samples."""
    told = [event.arguments] if event.arguments is not None else []
    told += [each.arguments for each in members(event.receiver) if isinstance(each, Made) and each.kind == "criterion"]
    values = (value for each in told for value in members(each.value("reduction")))
    return next((each.value for each in values if isinstance(each, Const)), None)


def _is_shared_out(node: ast.AST) -> bool:
    """Whether something is divided by how many samples there are."""
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    return divides and _COUNTED.search(ast.unparse(node.right)) is not None  # type: ignore[attr-defined]
