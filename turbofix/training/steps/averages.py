"""Loops over the parameters of models that bring those of one nearer to those of another, or do one thing to all.

A loop is taken for what its statements say: products, sums and copies of one tensor by numbers that are the same for
all. That nothing else holds the memory of a tensor that is given another one is left to a run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.trace import Event
from turbofix.domain.values import Computed, Const, Host, Option, Tensor, Unknown, flatten, members
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import targets
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Averaging, Step

_PLACE = regex(r"(?:[A-Za-z_]\w*|[\w.]+\[[A-Za-z_]\w*\])(?:\.data|\.grad|\.detach\(\))*")
_CUT = regex(r"(?:\.data|\.detach\(\)|\.clone\([^()]*\))+$")
_ALL = regex(r"(?:zip\()?[\w.\[\]]+\.(?:named_)?parameters\(\)(?:, [\w.\[\]]+\.parameters\(\)\))?")
"""All parameters of one model, or of two of them."""
_PLAIN = (Const, Option, Computed, Host)


@dataclass(frozen=True, eq=False)
class Formula:
    """``base`` becomes ``base * scale + other * weight``; by ``lerp_``, no scale; a plain copy, neither.

    Where something is ``done`` to it, by a method and a number (``mul_``, ``clamp_min_``), ``other`` is ``base``.
    """

    base: ast.expr
    other: ast.expr
    scale: ast.expr | None = None
    weight: ast.expr | None = None
    done: tuple[tuple[str, ast.expr], ...] = ()

    @property
    def numbers(self) -> list[ast.expr]:
        """What the tensors are multiplied or bounded by."""
        found = (self.scale, self.weight, *(number for _, number in self.done))
        return [each for each in found if each is not None]


def averagings(analysis: Analysis, steps: Iterable[Step]) -> tuple[Averaging, ...]:
    """The loops over parameters in training steps that do nothing but average, copy, multiply or bound."""
    facts = analysis.facts
    training = {step.loop.site for step in steps}
    found: dict[Site, Averaging] = {}
    for event in facts.of("iterate") if training else ():
        loop, frames = event.node, facts.frames(event)
        around = {facts.places.site(each.node, each.module) for each in facts.loops(event) if each.node is not loop}
        if not isinstance(loop, ast.For) or loop.orelse or not frames or not around & training:
            continue
        test, body = _tested(loop)
        own = {each.id for each in targets(loop.target) if isinstance(each, ast.Name)}
        formula = _formula(body, own)
        if formula is None or not _is_of_weights(analysis, formula, event, own):
            continue
        if any(
            read not in walk(loop) for each in walk(loop.target) for read in readers(frames[-1].scope).get(each, ())
        ):
            continue  # what the loop leaves under a name is read behind it
        read = _averaging(analysis, loop, formula, test, frames)
        if read.loop not in found or read.why_not:
            found[read.loop] = read
    return tuple(found[site] for site in sorted(found))


def _averaging(
    analysis: Analysis, loop: ast.For, formula: Formula, test: ast.expr | None, frames: tuple[Frame, ...]
) -> Averaging:
    facts = analysis.facts
    all_of_them = _ALL.fullmatch(ast.unparse(loop.iter)) is not None
    why, unsure = None, test is not None or not all_of_them or not isinstance(loop.body[0], ast.Expr)
    for name in (
        node for each in formula.numbers for node in walk(each) if isinstance(node, (ast.Name, ast.Attribute))
    ):
        if isinstance(facts.places.parent(name, frames[-1].module), (ast.Attribute, ast.Subscript)):
            continue
        values = members(facts.evaluate(name, frames))
        if any(isinstance(value, Tensor) for value in values) and not formula.done:
            why = f"whether `{ast.unparse(name)}` is a plain number is not known"
        known = [isinstance(value, _PLAIN) or (isinstance(value, Unknown) and value.number) for value in values]
        unsure = unsure or not values or not all(known)

    def text(node: ast.expr | None) -> str | None:
        """The source of what stands in the loop; what was put together of several places is written anew."""
        if node is None or loop not in facts.places.ancestors(node, frames[-1].module):
            return None if node is None else ast.unparse(node)
        return " ".join(facts.places.text(node, frames[-1].module).split())

    return Averaging(
        loop=facts.places.site(loop, frames[-1].module),
        target=text(loop.target) or "",
        iterated=text(loop.iter) or "",
        base=text(formula.base) or "",
        other=text(formula.other) or "",
        scale=text(formula.scale),
        weight=text(formula.weight),
        test=text(test),
        done=tuple((method, text(each) or "") for method, each in formula.done),
        unsure=unsure,
        hollow=test is not None or not all_of_them,
        why_not=why,
    )


def _is_of_weights(analysis: Analysis, formula: Formula, event: Event, own: set[str]) -> bool:
    """Whether a loop goes through weights or gradients, and what it multiplies by is the same for all of them."""
    given = [each.receiver for node in walk(event.node) for each in analysis.facts.at(node) if each.kind == "call"]
    frames = analysis.facts.frames(event)
    given += [event.receiver, *(analysis.facts.evaluate(each, frames) for each in (formula.base, formula.other))]
    seen = [one for value in given for one in flatten(value)]
    roles = [each.roles & {"param", "grad"} for each in seen if isinstance(each, Tensor)]
    changing = (ast.Await, ast.NamedExpr, ast.Call)
    pure = all(not isinstance(node, changing) for each in formula.numbers for node in walk(each))
    places = all(_PLACE.fullmatch(ast.unparse(each)) for each in (formula.base, formula.other))
    same = not any(_names(each) & own for each in formula.numbers)
    return any(roles) and pure and same and places and bool(_names(formula.other) & own)


def _tested(loop: ast.For) -> tuple[ast.expr | None, list[ast.stmt]]:
    """What is asked of each parameter, and what is done to those that pass."""
    first, *rest = loop.body
    if not isinstance(first, ast.If) or first.orelse:
        return None, loop.body
    if not rest:
        return first.test, first.body
    skips = [type(each) for each in first.body] == [ast.Continue]
    if not skips:
        return None, loop.body
    negated = isinstance(first.test, ast.UnaryOp) and isinstance(first.test.op, ast.Not)
    return (first.test.operand if negated else ast.UnaryOp(ast.Not(), first.test)), rest  # type: ignore[attr-defined]


def _formula(body: list[ast.stmt], own: set[str]) -> Formula | None:
    """What the statements of such a loop compute."""
    done = [one for statement in body for one in _done(statement)]
    if not done or len({_bare(base) for base, _, _ in done}) != 1:
        return None
    base, names = done[0][0], [name for _, name, _ in done]
    given: list[dict[int | str, ast.expr]] = [
        {**dict(enumerate(call.args)), **{each.arg or "**": each.value for each in call.keywords}}
        for _, _, call in done
    ]
    if names == ["mul_", "add_"] and given[0].keys() == {0} and given[1].keys() in ({0}, {0, "alpha"}):
        other, weight = given[1][0], given[1].get("alpha")
        if weight is None:
            (other, weight) = _product(other, own) or (other, None)
        return Formula(base, other, given[0][0], weight) if weight is not None else None
    if names == ["lerp_"] and given[0].keys() == {0, 1}:
        return Formula(base, given[0][0], None, given[0][1])
    if names == ["mul_"] and given[0].keys() == {0}:
        return Formula(base, base, done=(("mul_", given[0][0]),))
    if names == ["clamp_"] and given[0] and given[0].keys() <= {0, 1, "min", "max"}:
        ends: dict[int | str, str] = {0: "min", 1: "max", "min": "min", "max": "max"}
        return Formula(base, base, done=tuple((f"clamp_{ends[key]}_", by) for key, by in given[0].items()))
    if names != ["copy_"] or given[0].keys() != {0}:
        return None
    value = given[0][0]
    if not isinstance(value, ast.BinOp):
        return Formula(base, value)
    parts = [_product(each, own) for each in (value.left, value.right)] if isinstance(value.op, ast.Add) else []
    for (one, scale), (other, weight) in zip(parts, reversed(parts), strict=True) if all(parts) else ():  # type: ignore[misc]
        if _bare(one) == _bare(base) != _bare(other):
            return Formula(base, other, scale, weight)
    return None


def _done(statement: ast.stmt) -> Iterator[tuple[ast.expr, str, ast.Call]]:
    """The methods that a statement calls on a tensor, one after another; what an assignment does is said by them."""
    node: ast.expr = statement.value if isinstance(statement, ast.Expr) else ast.Constant(None)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Mult, ast.Add)):
        name = "mul_" if isinstance(statement.op, ast.Mult) else "add_"
        node = ast.Call(ast.Attribute(statement.target, name, ast.Load()), [statement.value], [])
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        node = ast.Call(ast.Attribute(statement.targets[0], "copy_", ast.Load()), [statement.value], [])
    found: list[tuple[str, ast.Call]] = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        found.append((node.func.attr, node))
        node = node.func.value
    yield from ((node, name, call) for name, call in reversed(found))
    if not found:
        yield ast.Constant(None), "", ast.Call(ast.Constant(None), [], [])  # something else


def _product(node: ast.expr, own: set[str]) -> tuple[ast.expr, ast.expr] | None:
    """The tensor and the number of ``p.data * (1 - d)``: what the loop gives, and the other factor."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    for tensor, number in ((node.left, node.right), (node.right, node.left)):
        if _PLACE.fullmatch(ast.unparse(tensor)) and _names(tensor) & own and not _names(number) & own:
            return tensor, number
    return None


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _bare(node: ast.expr) -> str:
    """A place without ``.data``, ``.detach()`` and ``.clone()``."""
    return _CUT.sub("", ast.unparse(node))
