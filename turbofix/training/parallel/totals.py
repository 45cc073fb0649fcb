"""What a process counts of its own share of an epoch, and what is read of it behind the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Host, Mapping, Sequence, Tensor
from turbofix.source.names import dotted, loaded
from turbofix.source.nodes import walk
from turbofix.training.model import Figure, Totals
from turbofix.training.parallel.meters import figure_of, meters
from turbofix.training.parallel.passes import Pass, is_entry, root

_AS_IT_IS = frozenset(("item", "detach", "cpu", "float", "data", "numpy", "tolist"))
_OF_SAMPLES = frozenset(("batch", "input", "output", "maybe_output", "prediction"))


def totals(analysis: Analysis, record: LoopRecord) -> Totals | None:
    """The sums and lists of a loop over a share of the data that something reads behind it."""
    loop = Pass(analysis, record)
    if loop.gathers():
        return None
    counted: dict[str, Figure] = {}
    for each in (*_sums(loop), *_lists(loop), *_last(loop)):
        counted.setdefault(each.text, each)
    kept = list(meters(loop))
    counted |= {each.text: each for meter in kept for each in meter.figures}
    if not counted or (not loop.trains and all(each.kind == "samples" for each in counted.values())):
        return None  # an evaluation's samples may have an order that matters
    parts = walk(loop.node.iter) if loop.trains and isinstance(loop.node, ast.For) else ()
    read = next((each for each in parts if isinstance(each, (ast.Name, ast.Attribute)) and loop.is_loader(each)), None)
    if read is not None:
        padded = {each: _is_divided_by_samples(loop, each, {*counted}) for each in counted.values()}
        counted = {each.text: replace(each, padded=padded[each]) for each in padded}
    anew = [line for meter in kept for line in meter.anew] + [ast.unparse(each) for each in loop.computed]
    loader = analysis.facts.places.text(read, loop.module) if read is not None else ""
    return Totals(analysis.facts.places.site(loop.node, loop.module), tuple(counted.values()), tuple(anew), loader)


def _sums(loop: Pass) -> Iterator[Figure]:
    for node in loop.own:
        added = _added(node)
        if added is None or isinstance(added[1], ast.Constant) or loop.takes_time(added[1]):
            continue
        target, value = added
        name, text = root(target), loop.analysis.facts.places.text(target, loop.module)
        start = loop.starts.get(name)
        if start is None or not loop.is_read(target):
            continue
        mean, anew = _is_mean(loop, text, value), name in loop.set_anew
        if _is_list(start):
            if not isinstance(target, ast.Subscript) and anew:
                yield from _samples(loop, text, value)
        elif isinstance(target, ast.Subscript) and not is_entry(target):
            if anew and isinstance(start, (ast.Dict, ast.DictComp, ast.Call)) and not _is_tensor(loop, value):
                yield Figure(name, "entries", mean)
        elif anew or mean:
            found = figure_of(text, "number", loop.value(value), mean)
            found = replace(found, carries=found.carries and not _is_comparison(value))
            if not (found.carries and loop.goes_on) and (not found.unsure or isinstance(start, ast.Constant)):
                yield found


def _lists(loop: Pass) -> Iterator[Figure]:
    for call in loop.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if not isinstance(call.func, ast.Attribute) or method not in ("append", "extend") or len(call.args) != 1:
            continue
        target, value = call.func.value, call.args[0]
        if not _is_list(loop.start(target)) or not loop.is_read(target):
            continue
        text, held = loop.analysis.facts.places.text(target, loop.module), loop.value(value)
        of_batches = bool(held) and isinstance(held[0], Host) and _is_divided_by_batches(loop, text)
        if method == "append" and (of_batches or _is_loss(loop, value)):
            found = figure_of(text, "batches", held, _is_mean(loop, text, value))
            if not found.unsure and not (found.carries and loop.goes_on):
                yield found
        elif loop.start(target, anew=True) is not None:
            yield from _samples(loop, text, value)


def _samples(loop: Pass, text: str, value: ast.expr) -> Iterator[Figure]:
    """A list of what belongs to samples of a share, if it can be put behind that of another one."""
    held = loop.value(value)
    found, tensors = figure_of(text, "samples", held), [each.of if isinstance(each, Host) else each for each in held]
    nested = any(isinstance(each, Mapping) or (isinstance(each, Sequence) and each.kind != "list") for each in held)
    together = not (nested and (found.tensor or found.unsure)) and not (found.carries and loop.goes_on)
    if together and any(isinstance(each, Tensor) and each.roles & _OF_SAMPLES for each in tensors):
        yield found


def _last(loop: Pass) -> Iterator[Figure]:
    """The loss of the last batch."""
    for node in loop.node.body if loop.trains and not loop.goes_on else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if _is_loss(loop, value) and name not in loaded(value) and loop.reaches(node.targets[0]):
            found = figure_of(name, "number", loop.value(value), mean=True)
            yield from () if found.unsure else (found,)


def _is_mean(loop: Pass, text: str, value: ast.expr) -> bool:
    """Whether of what is counted each process has a mean over its batches, and no part of the whole."""
    return _is_loss(loop, value) or _is_divided_by_batches(loop, text)


def _added(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What a statement adds to, and what it adds: ``total += one``, ``total = total + one``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target, node.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target, value = node.targets[0], node.value
        if isinstance(value.op, ast.Add) and ast.unparse(target) == ast.unparse(value.left):
            return target, value.right
    return None


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
    name = text.partition("[")[0]
    for node in loop.behind:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if name in loaded(node.left) or (name != text and name in loop.read):
                yield node.right
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and root(node.target) == name:
            yield node.value


def _is_divided_by_samples(loop: Pass, figure: Figure, counted: set[str]) -> bool:
    """Whether a sum is divided by a number of samples that its loop does not count."""
    plain = figure.kind == "number" and not figure.mean
    return plain and any(not loaded(each) & counted for each in _divisors(loop, figure.text))


def _is_divided_by_batches(loop: Pass, text: str) -> bool:
    """Whether a sum is divided by a number of batches: the length of a loader, or what the loop counts them by."""
    added = [each for each in loop.own if isinstance(each, ast.AugAssign) and isinstance(each.value, ast.Constant)]
    counted = {dotted(each.target) for each in added} | {loop.counter}
    for divisor in _divisors(loop, text):
        names = loaded(divisor)
        written = [each for part in (divisor, *map(loop.starts.get, names)) if part is not None for each in walk(part)]
        calls = [each for each in written if isinstance(each, ast.Call) and dotted(each.func) == "len" and each.args]
        if names & counted or any(loop.is_loader(call.args[0]) for call in calls):
            return True
    return False
