"""Calls that raise on every torch that a rewrite may count on, whatever the data: each is told from one event.

A form counts only where its text and its values leave nothing open: what a name holds is followed through the
statements right before its use, and no further.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type
from turbofix.program.events import Event
from turbofix.program.evidence import short
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import constants, unwrapped
from turbofix.program.libraries import words
from turbofix.program.names import stored
from turbofix.program.sites import SCOPES
from turbofix.program.values import Const, Made, Sequence, members

Said = tuple[str, str]

_PACKING = words("torch.nn.utils.rnn.pack_padded_sequence torch.nn.utils.rnn.pack_sequence")
_GRIDS = words("torchvision.utils.save_image torchvision.utils.make_grid")
_PROBABILITIES = words(
    """
    torch.nn.BCELoss torch.nn.BCEWithLogitsLoss torch.nn.functional.binary_cross_entropy
    torch.nn.functional.binary_cross_entropy_with_logits
    """
)
_PACKED = 4
"""How many fields a ``PackedSequence`` has since torch 1.1."""
_KEEPING_LAYOUT = words("float double half int long byte")
_MOVING = words("cuda cpu")
_FULL_KEYWORDS = {"device", "requires_grad", "fill_value", "size"}


def misuse(analysis: Analysis, event: Event, oldest: tuple[int, int]) -> Said | None:
    """The error that the call of an event raises for certain, and why."""
    node = event.node
    if not isinstance(node, ast.Call) or oldest < (1, 7):
        return None
    if event.kind == "criterion":
        return _integer_labels(analysis, event, node)
    if event.name == "Tensor.view":
        return _transposed_view(analysis, event, node)
    if event.name in _PACKING:
        return _unpacked(analysis, event, node)
    if event.name in _GRIDS and oldest >= (2, 1):
        passed = event.arguments.keywords.get("range") if event.arguments is not None else None
        if passed is not None and passed.must and any(each.arg == "range" for each in node.keywords):
            why = f"on torchvision 0.16 (torch 2.1) and newer: `{_last(event)}` has no `range`, but `value_range`"
            return "TypeError", why
    return None


# --- the kinds --------------------------------------------------------------------------------------------------------


def _unpacked(analysis: Analysis, event: Event, node: ast.Call) -> Said | None:
    """``scores, _ = pack_padded_sequence(...)``."""
    parent = analysis.facts.places.parent(node, event.module)
    if not isinstance(parent, ast.Assign) or parent.value is not node:
        return None
    for target in parent.targets:
        if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) != _PACKED:
            if any(isinstance(each, ast.Starred) for each in target.elts):
                return None
            counts = f"{_PACKED} values, and {len(target.elts)} names take them"
            return "ValueError", f"on torch 1.1 and newer: `{_last(event)}` gives {counts}"
    return None


def _integer_labels(analysis: Analysis, event: Event, node: ast.Call) -> Said | None:
    """``BCELoss()(output, torch.full((n,), 1))``: the loss takes no integers."""
    callees = members(event.receiver)
    if event.name not in _PROBABILITIES or event.arguments is None or not callees:
        return None
    if any(getattr(each, "qualname", None) not in _PROBABILITIES for each in callees):
        return None
    passed = event.arguments.get("target", 1)
    if passed is None or not passed.must or passed.node is None:
        return None
    made = _followed(analysis, passed.node, event)
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and _only_moves(analysis, made, event):
        made = _followed(analysis, made.func.value, event)
    if not isinstance(made, ast.Call) or not _is_full_of_integers(analysis, made, event):
        return None
    text = short(analysis.facts.places.text(made, event.module))
    return "RuntimeError", f"on torch 1.7 and newer: `{text}` holds integers, which `{_last(event)}` does not take"


def _transposed_view(analysis: Analysis, event: Event, node: ast.Call) -> Said | None:
    """``correct[:k].view(-1)`` of what was compared with ``pred.t()``: its rows do not lie one after another."""
    if not isinstance(node.func, ast.Attribute) or node.keywords or [_integer(each) for each in node.args] != [-1]:
        return None
    sliced: ast.expr = node.func.value
    while (
        isinstance(sliced, ast.Call)
        and isinstance(sliced.func, ast.Attribute)
        and sliced.func.attr in _KEEPING_LAYOUT
        and not (sliced.args or sliced.keywords)
    ):
        sliced = sliced.func.value
    if not isinstance(sliced, ast.Subscript) or not isinstance(sliced.slice, ast.Slice):
        return None
    part = sliced.slice
    if part.lower is not None or part.step is not None or part.upper is None:
        return None
    rows = _numbers(analysis, part.upper, event)
    most = _largest(analysis, _compared(analysis, sliced.value, event), event)
    if rows is None or most is None or max(rows, default=0) < 2 or most < 2 or not _has_several_items(analysis, event):
        return None
    text = short(analysis.facts.places.text(node, event.module))
    return "RuntimeError", f"on torch 1.7 and newer: `{text}` views what is transposed (use `reshape`)"


def _compared(analysis: Analysis, node: ast.expr, event: Event) -> ast.expr | None:
    """How many predictions ``pred`` holds per item in ``pred.t().eq(target.view(1, -1).expand_as(pred))``."""
    made = _followed(analysis, node, event)
    if isinstance(made, ast.Compare) and len(made.ops) == 1 and isinstance(made.ops[0], ast.Eq):
        first, second = made.left, made.comparators[0]
    elif isinstance(made, ast.Call) and _method(made) == "eq" and len(made.args) == 1 and not made.keywords:
        assert isinstance(made.func, ast.Attribute)
        first, second = made.func.value, made.args[0]
    else:
        return None
    if isinstance(second, ast.Call) and _method(second) == "expand_as":
        assert isinstance(second.func, ast.Attribute)
        second = second.func.value
    if not isinstance(second, ast.Call) or _method(second) not in ("view", "reshape"):
        return None
    if [_integer(each) for each in second.args] != [1, -1]:
        return None
    turned = _followed(analysis, first, event)
    if not isinstance(turned, ast.Call) or _method(turned) != "t" or turned.args:
        return None
    assert isinstance(turned.func, ast.Attribute)
    return _found(analysis, turned.func.value, event)


def _found(analysis: Analysis, node: ast.expr, event: Event) -> ast.expr | None:
    """The ``k`` in ``_, pred = output.topk(k, 1)``."""
    if not isinstance(node, ast.Name):
        return None
    statement = definition(analysis, node, event.module)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    call, target = statement.value, statement.targets[0]
    if _method(call) != "topk" or len(call.args) < 2 or _integer(call.args[1]) != 1:
        return None
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or len(statement.targets) != 1:
        return None
    name = target.elts[1]
    return call.args[0] if isinstance(name, ast.Name) and name.id == node.id else None


def _largest(analysis: Analysis, node: ast.expr | None, event: Event) -> int | None:
    """The value of ``max(topk)``."""
    made = _followed(analysis, node, event) if node is not None else None
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "max" and len(made.args) == 1:
        found = _items(analysis, made.args[0], event)
        return max(found) if found else None
    return _integer(made)


def _numbers(analysis: Analysis, node: ast.expr, event: Event) -> list[int] | None:
    """What a number is in turn: itself, or the items that ``for k in topk`` runs over."""
    value = _integer(node)
    if value is not None:
        return [value]
    if not isinstance(node, ast.Name):
        return None
    for loop in analysis.facts.places.ancestors(node, event.module):
        if isinstance(loop, SCOPES):
            return None
        if isinstance(loop, ast.For) and node.id in stored([loop]):
            if not isinstance(loop.target, ast.Name) or loop.target.id != node.id or node.id in stored(loop.body):
                return None
            return _items(analysis, loop.iter, event)
    return None


def _items(analysis: Analysis, node: ast.expr, event: Event) -> list[int] | None:
    """The numbers in a tuple."""
    frames = analysis.facts.frames(event)
    if isinstance(node, (ast.Tuple, ast.List)):
        return _all_known([_integer(each) for each in node.elts])
    value = analysis.facts.evaluate(node, frames)
    if not isinstance(value, Sequence) or value.items is None:
        return None
    return _all_known(
        [each.value if isinstance(each, Const) and type(each.value) is int else None for each in value.items]
    )


def _all_known(found: list[int | None]) -> list[int] | None:
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _has_several_items(analysis: Analysis, event: Event) -> bool:
    """Whether the batches hold more than one item: a single column is never in the wrong order."""
    facts = analysis.facts
    around = [each for record in facts.loops(event) for each in unwrapped(record.iterated)]
    loaders = [each for each in around if isinstance(each, Made) and each.kind == "loader"]
    if not loaders:
        made = [each for made in facts.of("make") for each in members(made.result)]
        loaders = [each for each in made if isinstance(each, Made) and each.kind == "loader"]
    return bool(loaders) and all(_is_batching(each) for each in loaders)


def _is_batching(loader: Made) -> bool:
    passed = loader.arguments.get("batch_size", 1)
    if passed is None:
        return "batch_sampler" in loader.arguments.keywords
    return passed.must and not any(each is None or each == 1 for each in constants(passed.value))


# --- what a name holds ------------------------------------------------------------------------------------------------


def _followed(analysis: Analysis, node: ast.expr, event: Event, depth: int = 4) -> ast.expr:
    """The expression whose value a name holds at its use, where the statements before it leave no doubt."""
    while isinstance(node, ast.Name) and depth:
        statement = definition(analysis, node, event.module)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            break
        if not isinstance(statement.targets[0], ast.Name):
            break
        node, depth = statement.value, depth - 1
    return node


def definition(analysis: Analysis, use: ast.Name, module: ModuleFile) -> ast.stmt | None:
    """The statement that certainly gave a name what it holds at its use; None where there may be another."""
    places = analysis.facts.places
    if any(use.id in getattr(each, "names", ()) for each in _outward(module.tree)):
        return None
    if analysis.facts.bindings.owner(use.id, use, module) is not places.scope(use, module):
        return None
    statement = places.statement(use, module)
    while statement is not None:
        block = places.block(statement, module)
        index = next((i for i, each in enumerate(block) if each is statement), 0)
        for before in reversed(block[:index]):
            if use.id in stored([before]):
                return before
        parent = places.parent(statement, module)
        if isinstance(parent, ast.ExceptHandler) or parent is None or isinstance(parent, (*SCOPES, ast.Module)):
            return None
        beside: list[ast.AST] = [parent]  # the iteration before may have set it, or another part of a `try`
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            beside = list(parent.items)
        elif isinstance(parent, ast.If):
            beside = [parent.test]
        if use.id in stored(beside):
            return None
        statement = parent if isinstance(parent, ast.stmt) else None
    return None


def _outward(tree: ast.Module) -> Iterator[ast.AST]:
    found = by_type(tree)
    yield from found.get(ast.Global, ())
    yield from found.get(ast.Nonlocal, ())


def _is_full_of_integers(analysis: Analysis, call: ast.Call, event: Event) -> bool:
    """Whether it is ``torch.full(size, 1)``, whose type is that of the number."""
    made = [each for each in analysis.facts.at(call) if each.kind == "call"]
    if not made or any(each.name != "torch.full" for each in made):
        return False
    if any(each.arg not in _FULL_KEYWORDS for each in call.keywords):
        return False
    if any(isinstance(each, ast.Starred) for each in call.args):
        return False
    named = next((each.value for each in call.keywords if each.arg == "fill_value"), None)
    value = call.args[1] if len(call.args) == 2 else named
    return value is not None and _settled(analysis, value, event) is not None


def _settled(analysis: Analysis, node: ast.expr, event: Event) -> int | None:
    """A whole number, written there or held by a name that is set once."""
    node = _followed(analysis, node, event)
    if isinstance(node, ast.Name):
        tree = event.module.tree
        if analysis.facts.bindings.owner(node.id, node, event.module) is not tree:
            return None
        writes = analysis.facts.bindings.writes(tree, node.id)
        if len(writes) != 1 or any(node.id in getattr(each, "names", ()) for each in _outward(tree)):
            return None
        write = writes[0]
        if not isinstance(write, ast.Assign) or not all(isinstance(each, ast.Name) for each in write.targets):
            return None
        node = write.value
    return _integer(node)


def _integer(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return -inner if inner is not None else None
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _last(event: Event) -> str:
    return event.name.rpartition(".")[2]


def _method(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _only_moves(analysis: Analysis, call: ast.Call, event: Event) -> bool:
    """Whether a call of a tensor's method gives the same numbers of the same type, perhaps elsewhere."""
    name = _method(call)
    if name in _MOVING:
        return True
    if name != "to" or len(call.args) != 1 or any(each.arg != "non_blocking" for each in call.keywords):
        return False
    found = members(analysis.facts.evaluate(call.args[0], analysis.facts.frames(event)))
    return bool(found) and all(
        (isinstance(each, Made) and each.kind == "device") or (isinstance(each, Const) and isinstance(each.value, str))
        for each in found
    )
