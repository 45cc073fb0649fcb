"""What a process counts of its own share of an epoch, and what is read of it behind the loop."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Host, Made, Tensor, flatten, members
from turbofix.source.names import dotted, loaded
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.training.model import Summed, Totals
from turbofix.training.parallel.sharing import value_of

_AS_IT_IS = frozenset(("item", "detach", "cpu", "float", "data", "numpy", "tolist"))


def totals(analysis: Analysis, record: LoopRecord, summed: Collection[Summed] = ()) -> Totals | None:
    """The sums and lists of a loop over a share of the data that something reads behind it.

    ``summed`` are its losses that are sums over a batch: by their names they are then as large as that of all.
    """
    module, loop = record.module, record.node
    scope = analysis.facts.places.scope(loop, module)
    behind = {name for each in _behind(analysis, loop, module) for name in loaded(each)}
    before = {name for name, line in _set_at(scope) if line < loop.lineno}
    sums: dict[str, ast.expr] = {}
    lists: dict[str, ast.expr] = {}
    for node in (each for statement in loop.body for each in _own(statement)):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            if node.target.id in behind & before and not isinstance(node.value, ast.Constant):
                sums.setdefault(node.target.id, node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            name = dotted(node.func.value) or ""
            if name in behind & before and node.args and _is_loss(analysis, node.args[0], module):
                lists[name] = node.args[0]
    by_batches = {name for name in sums if _is_divided_by_batches(analysis, name, loop, module)}
    means = {name for name, value in sums.items() if name in by_batches or _is_loss(analysis, value, module)}
    if summed:  # a loss of a share is a part of the whole, but for what is scaled
        scaled = {each.name for each in summed if each.at is not None}
        losses = {name for name, value in sums.items() if _is_loss(analysis, value, module)}
        means = (means - losses) | {name for name in losses if scaled & loaded(sums[name])}
        lists = {name: value for name, value in lists.items() if scaled & loaded(value)}
    tensors = {name for name, value in sums.items() if _is_tensor(analysis, name, value, module)}
    if not sums and not lists:
        return None
    return Totals(
        analysis.facts.places.site(loop, module),
        tuple(name for name in sums if name not in means),
        tuple(name for name in sums if name in means),
        tuple(lists),
        tuple(name for name in sums if name in tensors),
    )


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what lies in it, functions left out."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            yield from _own(each)


def _behind(analysis: Analysis, loop: ast.AST, module: ModuleFile) -> Iterator[ast.stmt]:
    """The statements that run behind a loop in its function: those that follow in each block around it."""
    places, inner = analysis.facts.places, loop
    for above in places.ancestors(loop, module):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, None)
            if isinstance(block, list) and inner in block:
                yield from block[block.index(inner) + 1 :]
        inner = above
        if isinstance(above, (*FUNCTIONS, ast.Module)):
            return


def _set_at(scope: ast.AST) -> Iterator[tuple[str, int]]:
    for node in walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for each in walk(target):
                    if isinstance(each, (ast.Name, ast.Attribute)) and (name := dotted(each)) is not None:
                        yield name, node.lineno


def _is_loss(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether a number is the loss of a batch as it is: a mean over its samples."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _AS_IT_IS:
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float" and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr in _AS_IT_IS:
            node = node.value
        else:
            break
    found = list(flatten(value_of(analysis, node, module)))
    tensors = [each.of if isinstance(each, Host) else each for each in found]
    return any(isinstance(each, Tensor) and "loss" in each.roles for each in tensors) and not isinstance(
        node, ast.BinOp
    )


def _is_tensor(analysis: Analysis, name: str, value: ast.expr, module: ModuleFile) -> bool:
    held = list(flatten(value_of(analysis, value, module)))
    return bool(held) and all(isinstance(each, Tensor) for each in held)


def _divisions(analysis: Analysis, name: str, loop: ast.AST, module: ModuleFile) -> Iterator[ast.expr]:
    """What a sum is divided by behind its loop."""
    for statement in _behind(analysis, loop, module):
        for node in walk(statement):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and name in loaded(node.left):
                yield node.right
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and dotted(node.target) == name:
                yield node.value


def _is_divided_by_batches(analysis: Analysis, name: str, loop: ast.AST, module: ModuleFile) -> bool:
    """Whether a sum is divided by a number of batches: the length of a loader, or what the loop counts them by."""
    counted = {
        dotted(each.target)
        for statement in loop.body  # type: ignore[attr-defined]
        for each in _own(statement)
        if isinstance(each, ast.AugAssign) and isinstance(each.value, ast.Constant)
    }
    iterated = dotted(getattr(loop, "iter", None))
    target = getattr(loop, "target", None)
    if isinstance(target, ast.Tuple) and isinstance(getattr(loop, "iter", None), ast.Call):
        counted.add(dotted(target.elts[0]))
    for divisor in _divisions(analysis, name, loop, module):
        names = [
            each for each in walk(divisor) if isinstance(each, ast.Call) and dotted(each.func) == "len" and each.args
        ]
        if any(_is_loader(analysis, call.args[0], module) or dotted(call.args[0]) == iterated for call in names):
            return True
        if any(name in counted for name in loaded(divisor)):
            return True
    return False


def _is_loader(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    value = value_of(analysis, node, module)
    return any(isinstance(each, Made) and each.kind == "loader" for each in members(value))
