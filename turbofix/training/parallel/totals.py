"""What a process counts of its own share of an epoch, and what is read of it behind the loop."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.accumulators import given
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Host, Made, Mapping, Sequence, Tensor, Value, flatten, members
from turbofix.source.names import dotted, loaded
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.training.model import Counted, Summed, Totals
from turbofix.training.parallel.meters import counted_as, meters
from turbofix.training.parallel.sharing import value_of
from turbofix.training.steps.acts import loss_expression

_AS_IT_IS = frozenset(("item", "detach", "cpu", "float", "data", "numpy", "tolist"))
_OF_SAMPLES = frozenset(("batch", "input", "output", "maybe_output", "prediction"))


def totals(analysis: Analysis, record: LoopRecord, summed: Collection[Summed] = ()) -> Totals | None:
    """The sums and lists of a loop over a share of the data that something reads behind it.

    ``summed`` are its losses that are sums over a batch: by their names they are then as large as that of all.
    """
    loop = Pass(analysis, record, summed)
    counted: dict[str, Counted] = {}
    for each in (*_sums(loop), *_lists(loop), *_last(loop)):
        counted.setdefault(each.text, each)
    kept = list(meters(analysis, record, loop.read, loop.fresh, loop.set_anew))
    counted |= {each.text: each for meter in kept for each in meter.counted}
    if not counted or (not loop.trains and all(each.kind == "samples" for each in counted.values())):
        return None  # an evaluation's samples may have an order that matters
    anew = tuple(line for meter in kept for line in meter.anew)
    return Totals(analysis.facts.places.site(loop.node, loop.module), tuple(counted.values()), anew)


class Pass:
    """A loop over a share of the data, with what is set in front of it and what is read behind it."""

    def __init__(self, analysis: Analysis, record: LoopRecord, summed: Collection[Summed] = ()) -> None:
        self.analysis, self.module, self.node = analysis, record.module, record.node
        self.summed, self.scaled = bool(summed), {each.name for each in summed if each.at is not None}
        backward = [event for event in analysis.facts.events_in(record.node) if event.kind == "backward"]
        self.trains, lost = bool(backward), [loss_expression(analysis, event) for event in backward]
        self.losses = {dotted(each) for each in lost if each is not None} - {None}
        self.own = [node for statement in record.node.body for node in _own(statement)]
        self.behind = list(_around(analysis, record.node, record.module, behind=True))
        self.read = {name for each in self.behind for name in loaded(each)}
        self.backward = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in self._walk_behind())
        scope = analysis.facts.places.scope(record.node, record.module)
        self.reached = readers(scope)
        self.starts = dict(_given(each for each in walk(scope) if getattr(each, "lineno", 0) < record.node.lineno))
        # what is set in front of the loop, or behind it, whenever it is passed
        around = _around(analysis, record.node, record.module, within=True)
        self.fresh = [each for one in around for each in (one, *(one.body if isinstance(one, ast.With) else ()))]
        self.set_anew = dict(_given(self.fresh))

    def _walk_behind(self) -> Iterator[ast.AST]:
        for each in self.behind:
            yield from walk(each)

    def is_read(self, target: ast.AST) -> bool:
        """Whether what a name is set to in the loop is read behind it."""
        behind = {*self._walk_behind()}
        return any(each in behind for each in self.reached.get(target, ()))

    def value(self, node: ast.AST) -> list[Value]:
        """What an expression of the loop is, with all that it holds."""
        return list(flatten(value_of(self.analysis, node, self.module)))

    def is_mean(self, text: str, value: ast.expr) -> bool:
        """Whether of what is counted each process has a mean over its batches, and no part of the whole."""
        if _is_loss(self, value) and self.summed:
            return bool(self.scaled & loaded(value))
        return _is_loss(self, value) or _is_divided_by_batches(self, text)


def _sums(loop: Pass) -> Iterator[Counted]:
    for node in loop.own:
        added = _added(node)
        if added is None or isinstance(added[1], ast.Constant):
            continue
        target, value = added
        root, text = _root(target), loop.analysis.facts.places.text(target, loop.module)
        start = loop.starts.get(root)
        if start is None or root not in loop.read:
            continue
        mean, anew = loop.is_mean(text, value), root in loop.set_anew
        if _is_list(start):
            if not isinstance(target, ast.Subscript) and anew:
                yield from _samples(loop, text, value)
        elif isinstance(target, ast.Subscript) and not _is_entry(target):
            if anew and isinstance(start, (ast.Dict, ast.DictComp, ast.Call)) and not _is_tensor(loop, value):
                yield Counted(root, "entries", mean)
        elif anew or mean:
            found = counted_as(text, "number", loop.value(value), mean)
            found = replace(found, carries=found.carries and not _is_comparison(value))
            if not (found.carries and loop.backward) and (not found.unsure or isinstance(start, ast.Constant)):
                yield found


def _lists(loop: Pass) -> Iterator[Counted]:
    for node in loop.own:
        method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) != 1:
            continue
        name, value = dotted(node.func.value) or "", node.args[0]
        if name not in loop.read or not _is_list(loop.starts.get(name)):
            continue
        of_batches = isinstance(loop.value(value)[0], Host) and _is_divided_by_batches(loop, name)
        if method == "append" and (_is_loss(loop, value) or of_batches):
            found = counted_as(name, "figures", loop.value(value), loop.is_mean(name, value))
            yield from () if found.unsure else (found,)
        elif method in ("append", "extend") and name in loop.set_anew:
            yield from _samples(loop, name, value)


def _samples(loop: Pass, text: str, value: ast.expr) -> Iterator[Counted]:
    """A list of what belongs to samples of a share, if it can be put behind that of another one."""
    held = loop.value(value)
    found, tensors = counted_as(text, "samples", held), [each.of if isinstance(each, Host) else each for each in held]
    nested = any(isinstance(each, Mapping) or (isinstance(each, Sequence) and each.kind != "list") for each in held)
    together = not nested or not (found.tensor or found.unsure)
    if together and any(isinstance(each, Tensor) and each.roles & _OF_SAMPLES for each in tensors):
        yield found


def _last(loop: Pass) -> Iterator[Counted]:
    """The loss of the last batch."""
    for node in loop.node.body if loop.trains and not loop.backward else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if _is_loss(loop, value) and name not in loaded(value) and loop.is_read(node.targets[0]):
            mean = not loop.summed or bool(loop.scaled & {name, *loaded(value)})
            found = counted_as(name, "number", loop.value(value), mean)
            yield from () if found.unsure else (found,)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what lies in it, functions left out."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            yield from _own(each)


def _around(
    analysis: Analysis, loop: ast.AST, module: ModuleFile, *, behind: bool = False, within: bool = False
) -> Iterator[ast.stmt]:
    """The statements in each block around a loop in its function (``within`` a pass of the next loop around it).

    ``behind``: those alone that follow it there.
    """
    places, inner = analysis.facts.places, loop
    for above in places.ancestors(loop, module):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, None)
            if isinstance(block, list) and inner in block:
                yield from block[block.index(inner) + 1 :] if behind else [each for each in block if each is not inner]
        inner = above
        if isinstance(above, (*FUNCTIONS, ast.Module)) or (within and isinstance(above, LOOPS)):
            return


def _given(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """What statements set, with what they set it to."""
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in walk(target):
                    name = dotted(each)
                    if name is not None and isinstance(getattr(each, "ctx", None), ast.Store):
                        value = given(node, name) or node.value
                        if value is not None:
                            yield name, value


def _added(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What a statement adds to, and what it adds: ``total += one``, ``total = total + one``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target, node.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target, value = node.targets[0], node.value
        if isinstance(value.op, ast.Add) and ast.unparse(target) == ast.unparse(value.left):
            return target, value.right
    return None


def _root(target: ast.expr) -> str:
    """The name of what holds an entry, or the name itself."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return dotted(target) or ""


def _is_entry(target: ast.Subscript) -> bool:
    """Whether it is one entry of a dict, by its key."""
    inner = not isinstance(target.value, ast.Subscript) or _is_entry(target.value)
    return inner and isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)


def _is_list(start: ast.expr | None) -> bool:
    return isinstance(start, (ast.List, ast.ListComp)) or (isinstance(start, ast.Call) and dotted(start.func) == "list")


def _is_loss(loop: Pass, node: ast.expr) -> bool:
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
    tensors = [each.of if isinstance(each, Host) else each for each in loop.value(node)]
    is_loss = any(isinstance(each, Tensor) and "loss" in each.roles for each in tensors)
    return dotted(node) in loop.losses or (is_loss and not isinstance(node, ast.BinOp))


def _is_tensor(loop: Pass, value: ast.expr) -> bool:
    return any(isinstance(each, Tensor) for each in loop.value(value))


def _is_comparison(value: ast.expr) -> bool:
    """Whether a number says how often something holds, which has no gradient."""
    return any(isinstance(each, ast.Compare) or getattr(each, "attr", "") in ("eq", "ne") for each in walk(value))


def _divisors(loop: Pass, text: str) -> Iterator[ast.expr]:
    """What a sum, or something of its entries, is divided by behind its loop."""
    root = text.partition("[")[0]
    for statement in loop.behind:
        names = loaded(statement)
        for node in walk(statement) if root in names else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                if root in loaded(node.left) or root != text:
                    yield node.right
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and _root(node.target) == root:
                yield node.value


def _is_divided_by_batches(loop: Pass, text: str) -> bool:
    """Whether a sum is divided by a number of batches: the length of a loader, or what the loop counts them by."""
    added = [each for each in loop.own if isinstance(each, ast.AugAssign) and isinstance(each.value, ast.Constant)]
    counted = {dotted(each.target) for each in added}
    head = getattr(loop.node, "iter", None)
    iterated = dotted(loop.analysis.facts.without_bar(head, loop.module)) if head is not None else None
    target = getattr(loop.node, "target", None)
    if isinstance(target, ast.Tuple) and isinstance(head, ast.Call):
        counted.add(dotted(target.elts[0]))
    for divisor in _divisors(loop, text):
        names = loaded(divisor)
        written = [each for part in (divisor, *map(loop.starts.get, names)) if part is not None for each in walk(part)]
        calls = [each for each in written if isinstance(each, ast.Call) and dotted(each.func) == "len" and each.args]
        if any(_is_loader(loop, call.args[0]) or (dotted(call.args[0]) or "") == iterated for call in calls):
            return True
        if names & counted:
            return True
    return False


def _is_loader(loop: Pass, node: ast.expr) -> bool:
    value = value_of(loop.analysis, node, loop.module)
    return any(isinstance(each, Made) and each.kind == "loader" for each in members(value))
