"""How many updates a training makes in all, in words of the place where its optimizer is built.

It is worked out where a warm-up may be missing: nobody else asks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Literal

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Made, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.names import dotted, loads
from turbofix.source.nodes import children, walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.training.model import Planned
from turbofix.training.objects import assigned_name
from turbofix.training.steps.acts import concerned, optimizers_in, stepper


class _Unknown(Exception):  # noqa: N818  (an outcome)
    """The number is not known; the argument says why."""


FALLING = words("StepLR MultiStepLR ExponentialLR CosineAnnealingLR ReduceLROnPlateau PolynomialLR MultiplicativeLR")
"""Schedules of torch that begin at the full rate, and multiply whatever the rate is."""

_SETS = regex(
    r"\[[\"']lr[\"']\]\s*[-+*/]?=(?!=)"
    r"|\.param_groups\b(?!\s*\[[^\]]*\]\s*\[[^\]]*\](?!\s*[-+*/]?=(?!=))|\s*[\])])"
)
"""What sets a rate by hand, or may: groups that are asked for a value, or in a comprehension, are only read."""
_WARM = re.compile(r"warm_?-?up|OneCycle", re.IGNORECASE)


def planned(analysis: Analysis, record: LoopRecord, updates: list[Event]) -> Planned:
    """The number of updates of the step in a loop, or why it cannot be written down."""
    try:
        return _planned(analysis, record, updates) if schedule(analysis) != "other" else Planned()
    except _Unknown as unknown:
        return Planned(why_not=str(unknown))


def schedule(analysis: Analysis) -> Literal["no", "falling", "other"]:
    """How the learning rate changes, as far as anything in the program's files tells."""
    return analysis.once("the learning rate is changed", lambda: _schedule(analysis))


def _schedule(analysis: Analysis) -> Literal["no", "falling", "other"]:
    facts, modules = analysis.facts, analysis.execution.modules.values()
    made = [each for event in (*facts.of("make"), *facts.dead) for each in members(event.result)]
    schedulers = [each for each in made if isinstance(each, Made) and each.kind == "scheduler"]
    if any(_SETS.search(module.text) for module in modules):
        return "other"
    if not schedulers:
        stepped = any(stepper(event.receiver) == "scheduler" for event in facts.of("step"))
        return "other" if stepped or any("lr_scheduler" in module.text for module in modules) else "no"
    falling = all(each.qualname.rpartition(".")[2] in FALLING for each in schedulers)
    return "falling" if falling and not any(_WARM.search(module.text) for module in modules) else "other"


def _planned(analysis: Analysis, record: LoopRecord, updates: list[Event]) -> Planned:
    facts = analysis.facts
    made = {id(each): each for event in updates for each in optimizers_in(concerned(event))}
    if len(made) != 1 or len(updates) != 1:  # one event for each way that leads to a step
        raise _Unknown("the optimizer steps in several places, or its step is reached in several ways")
    (optimizer,) = made.values()
    if not isinstance(optimizer, Made):
        raise _Unknown("the optimizer is one of the project's own")
    home, module = facts.places.scope(optimizer.origin.node, optimizer.origin.module), optimizer.origin.module
    statement = facts.places.statement(optimizer.origin.node, module)
    around = [each for each in facts.loops(updates[0]) if isinstance(each.node, LOOPS)]
    if not around or around[-1].node is not record.node or len(around) > 2:
        raise _Unknown("the batches are not one loop in one loop over epochs")
    epochs = around[0]
    if not isinstance(epochs.node, ast.For) or not isinstance(record.node, ast.For) or statement is None:
        raise _Unknown("the training is no loop over epochs and batches that says how often it runs")
    for jump in _jumps(record.node):
        raise _Unknown(f"line {jump.lineno} of {record.module.path.name} may end an epoch earlier")
    count = _count(analysis, epochs.node, epochs.module)
    elsewhere = facts.places.scope(epochs.node, epochs.module) is not home
    if elsewhere and not (count.startswith("self.") or count.isdigit()):
        raise _Unknown("how often the training runs is not known where the optimizer is built")
    batches, loader = _batches(analysis, record, updates[0], home) if len(around) == 2 else (None, None)
    texts = [ast.parse(text, mode="eval").body for text in (count, batches) if text is not None]
    roots = {_root(name) for text in texts for name in loads(text)}
    writes = [write for name in roots for write in facts.bindings.writes(home, name)]
    known = {
        name for name in roots if facts.bindings.writes(home, name) or _is_from_outside(analysis, name, home, module)
    }
    if roots - known:
        raise _Unknown(f"{min(roots - known)} is not known where the optimizer is built")
    for text in texts:
        for name in loads(text):
            _refuse_changes(analysis, name, home, statement)
    last: ast.stmt = statement
    block = facts.places.block(statement, module)
    for write in writes:
        made_at = facts.places.statement(write, module)
        if made_at is not None and made_at.lineno > last.lineno:
            last = made_at
    if not any(last is each for each in block):
        raise _Unknown(f"what it takes is set under a condition, on line {last.lineno}")
    if home is facts.places.scope(epochs.node, epochs.module) and last.lineno >= epochs.node.lineno:
        raise _Unknown(f"what it takes is set in the loop, on line {last.lineno}")
    place = facts.places.site(last, module)
    if loader is None:  # one loop over all steps
        return Planned(count, place)
    number = f"({count})" if isinstance(texts[0], ast.BinOp) else count
    return Planned(f"{number} * len({batches})", place, facts.origin_site(loader.origin))


def _refuse_changes(analysis: Analysis, name: ast.Name | ast.Attribute, home: ast.AST, statement: ast.stmt) -> None:
    """Raise where an attribute may be another one in the loop than it is where the optimizer is built."""
    for node, scope, module in analysis.facts.attribute_writes(name.attr) if isinstance(name, ast.Attribute) else ():
        line = getattr(node, "lineno", 0)
        later = line >= statement.lineno and not (dotted(name) or "").startswith(
            "self."
        )  # the scheduler comes after it
        if scope is not home or later:
            raise _Unknown(f"`{dotted(name)}` may be changed (line {line} of {module.path.name})")


def _count(analysis: Analysis, loop: ast.For, module: ModuleFile) -> str:
    """The number of iterations of ``for epoch in range(args.epochs)``."""
    node = analysis.facts.without_bar(loop.iter, module)
    if not isinstance(node, ast.Call) or node.keywords or not 0 < len(node.args) < 3:
        raise _Unknown("the outer loop does not say how often it runs")
    if analysis.facts.offered(node.func, module) != "builtins.range":
        raise _Unknown("the outer loop does not say how often it runs")
    end, first = node.args[-1], node.args[0] if len(node.args) == 2 else ast.Constant(0)
    start = first.value if isinstance(first, ast.Constant) and type(first.value) is int else None
    if start is None:
        raise _Unknown("the training may begin in the middle")
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and start:
        one, other = (end.left, end.right) if isinstance(end.right, ast.Constant) else (end.right, end.left)
        if isinstance(other, ast.Constant) and other.value == start:
            end, start = one, 0
    if any(
        not isinstance(each, (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator)) for each in walk(end)
    ):
        raise _Unknown("the outer loop does not say how often it runs")
    text = analysis.facts.places.text(end, module)
    return str(int(text) - start) if text.isdigit() else f"({text} - {start})" if start else text


def _batches(analysis: Analysis, record: LoopRecord, update: Event, home: ast.AST) -> tuple[str, Made]:
    """The loader that the batches come from, in words of the optimizer's home."""
    facts = analysis.facts
    assert isinstance(record.node, ast.For)
    node = facts.without_bar(record.node.iter, record.module)
    frames = facts.frames(update)
    depth = next(i for i, frame in enumerate(frames) if any(record.node is each for each in frame.loops))
    found = members(facts.evaluate(node, frames[: depth + 1]))
    loader = found[0] if len(found) == 1 else None
    if not isinstance(loader, Made) or loader.qualname != "torch.utils.data.DataLoader":
        raise _Unknown("how many batches an epoch has is not known")
    text = dotted(node)
    if text is not None and (frames[depth].scope is home or text.startswith("self.")):
        return text, loader
    name = assigned_name(analysis, loader.origin.node, loader.origin.module)
    if name is None or facts.places.scope(loader.origin.node, loader.origin.module) is not home:
        raise _Unknown("the loader is not known where the optimizer is built")
    return name, loader


def _root(name: ast.Name | ast.Attribute) -> str:
    """``args`` of ``args.epochs``, but ``self.epochs`` of ``self.epochs.count``."""
    parts = (dotted(name) or "").split(".")
    return ".".join(parts[:2]) if parts[0] == "self" else parts[0]


def _is_from_outside(analysis: Analysis, name: str, home: ast.AST, module: ModuleFile) -> bool:
    """Whether a name is a parameter of a function, or its module's."""
    if isinstance(home, FUNCTIONS):
        given = [*home.args.posonlyargs, *home.args.args, *home.args.kwonlyargs]
        if any(each.arg == name for each in given):
            return True
    return "." not in name and bool(analysis.facts.bindings.writes(module.tree, name)) and home is not module.tree


def _jumps(loop: ast.AST) -> Iterator[ast.stmt]:
    """What may leave a loop before its end."""
    stack: list[tuple[ast.AST, bool]] = [(each, True) for each in getattr(loop, "body", [])]
    while stack:
        node, own = stack.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and own):
            yield node
        stack += [(each, own and not isinstance(node, LOOPS)) for each in children(node)]
