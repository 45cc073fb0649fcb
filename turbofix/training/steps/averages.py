"""Loops over the parameters of two models that bring those of one a little nearer to those of the other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Bound,
    Computed,
    Const,
    Function,
    Host,
    Option,
    Tensor,
    Unknown,
    flatten,
    members,
)
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import dotted, reads_of, targets
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.model import Averaging, Step

_STATES = {"state_dict": "state", "buffers": "buffers", "named_buffers": "buffers"}
_SOME_PASS = regex(r"requires_grad|floating_point")
"""What is asked of parameters, and some of those that are trained pass."""
_PLACE = regex(r"(?:[A-Za-z_]\w*|[\w.]+\[[A-Za-z_]\w*\])(?:\.data|\.grad|\.detach\(\))*")
_CUT = regex(r"(?:\.data|\.detach\(\)|\.clone\([^()]*\))+$")
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
    renewed: bool = False
    summed: bool = False  # in another tensor, that may have another type
    done: tuple[tuple[str, ast.expr], ...] = ()


def averagings(analysis: Analysis, steps: Iterable[Step]) -> tuple[Averaging, ...]:
    """The loops over parameters in training steps that do nothing but average, or copy."""
    facts = analysis.facts
    training = {step.loop.site for step in steps}
    found: dict[Site, Averaging] = {}
    others: set[Site] = set()  # loops that are something else on some way
    for event in facts.of("call") if training else ():
        if event.name not in ("Tensor.mul_", "Tensor.lerp_", "Tensor.copy_", "Tensor.clamp_"):
            continue
        if not all(isinstance(each, Tensor) and each.roles & {"param", "grad"} for each in members(event.receiver)):
            continue
        statement = facts.places.statement(event.node, event.module)
        loop = facts.places.parent(statement, event.module) if statement is not None else None
        if isinstance(loop, ast.If):
            loop = facts.places.parent(loop, event.module)
        if not isinstance(loop, ast.For) or loop.orelse:
            continue
        site = facts.places.site(loop, event.module)
        around = {facts.places.site(each.node, each.module) for each in facts.loops(event) if each.node is not loop}
        if not around & training:
            continue
        read = _averaging(analysis, event, loop, facts.frames(event))
        if read is not None and (site not in found or read.why_not):
            found[site] = read
    for event in facts.of("iterate") if training else ():
        loop = event.node
        last = _tested(loop)[1][-1] if isinstance(loop, ast.For) and not loop.orelse else None
        if not isinstance(loop, ast.For) or last is None or not (_is_renewal(last) or isinstance(last, ast.AugAssign)):
            continue
        gone_through = [each for each in flatten(event.receiver) if isinstance(each, Tensor)]
        named = isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Subscript)
        if not named and not (gone_through and all(each.roles & {"param", "grad"} for each in gone_through)):
            continue
        if not {facts.places.site(each.node, each.module) for each in facts.loops(event)} & training:
            continue
        site = facts.places.site(loop, event.module)
        read = _averaging(analysis, event, loop, facts.frames(event))
        if read is None:
            others.add(site)
            continue
        if site in found and (read.scale, read.weight) != (found[site].scale, found[site].weight):
            others.add(site)
        if site not in found or read.why_not:
            found[site] = read
    return tuple(found[site] for site in sorted(found) if site not in others)


def _averaging(analysis: Analysis, event: Event, loop: ast.For, frames: tuple[Frame, ...]) -> Averaging | None:
    facts, module = analysis.facts, event.module
    own = {each.id for each in targets(loop.target) if isinstance(each, ast.Name)}
    if not frames:
        return None
    test, written = _tested(loop)
    rest = loop.body[0].orelse if test is not None and isinstance(loop.body[0], ast.If) else []
    body = _inlined(analysis, written, own, frames)
    formula = _formula(body, own)
    if formula is None:
        return None
    numbers = [each for each in (formula.scale, formula.weight, *(by for _, by in formula.done)) if each is not None]
    pure = (test is None or _is_test(test)) and all(
        not any(isinstance(node, (ast.Call, ast.Await, ast.NamedExpr)) for node in walk(each)) for each in numbers
    )
    if not pure or any(_names(each) & own for each in numbers):
        return None
    if isinstance(test, ast.UnaryOp) and (formula.weight is None or "floating_point" in ast.unparse(test)):
        return None  # the few that are not trained
    if rest and (formula.renewed or len(rest) > 1 or not _is_copy(rest[0], formula)):
        return None
    if not _is_place(formula.base) or not _is_place(formula.other) or not _names(formula.other) & own:
        return None
    inside = {node.id for node in walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if any(_is_read_behind(analysis, name, loop, frames[-1]) for name in inside):
        return None

    def text(node: ast.AST) -> str:
        """The source of what stands in the loop; what was put together of several places is written anew."""
        if body is not written and loop not in facts.places.ancestors(node, module):
            return ast.unparse(node)
        return " ".join(facts.places.text(node, module).split())

    why, unsure = None, test is not None
    for each in numbers:
        for name in (node for node in walk(each) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))):
            if isinstance(facts.places.parent(name, module), (ast.Attribute, ast.Subscript)):
                continue
            values = members(facts.evaluate(name, frames))
            known = [isinstance(value, _PLAIN) or (isinstance(value, Unknown) and value.number) for value in values]
            if any(isinstance(value, Tensor) for value in values) and not formula.done:
                why = f"whether `{text(name)}` is a plain number is not known"
            unsure = unsure or not values or not all(known)
    kinds = set(_sources(analysis, loop, formula, frames))
    if isinstance(formula.base, ast.Subscript) and formula.renewed and not kinds & {"parameters", "state", "buffers"}:
        return None
    unsure = unsure or kinds != {"parameters"}
    asked, left = text(test) if test is not None else None, ast.unparse(rest[0]) if rest else None
    # `mul_` would have stopped at a whole number
    if kinds & {"state", "buffers"} and formula.summed and not formula.renewed:
        if test is None and body is written and len(body) == 1:
            asked, left = f"{text(formula.base)}.is_floating_point()", " ".join(text(body[0]).split())
        elif asked is None or "floating_point" not in asked:
            why = "a state also holds buffers, some of which may be whole numbers and are no weights"
    return Averaging(
        loop=facts.places.site(loop, module),
        target=text(loop.target),
        iterated=text(loop.iter),
        base=text(formula.base),
        other=text(formula.other),
        scale=text(formula.scale) if formula.scale is not None else None,
        weight=text(formula.weight) if formula.weight is not None else None,
        renewed=formula.renewed,
        test=asked,
        rest=left,
        done=tuple((method, text(each)) for method, each in formula.done),
        unsure=unsure,
        hollow="buffers" in kinds
        or not (kinds & {"parameters", "state"} if asked is None else _SOME_PASS.search(asked)),
        why_not=why,
    )


def _tested(loop: ast.For) -> tuple[ast.expr | None, list[ast.stmt]]:
    """What is asked of each parameter, and what is done to those that pass."""
    first, *rest = loop.body
    if isinstance(first, ast.If) and not rest:
        return first.test, first.body
    skips = isinstance(first, ast.If) and not first.orelse and [type(each) for each in first.body] == [ast.Continue]
    if isinstance(first, ast.If) and skips and rest and isinstance(first.test, ast.UnaryOp):
        return (first.test.operand, rest) if isinstance(first.test.op, ast.Not) else (None, loop.body)
    return None, loop.body


def _is_copy(statement: ast.stmt, formula: Formula) -> bool:
    """``else: kept.copy_(p)``, ``else: kept[name] = p.clone()``: what is not trained is taken over as it is."""
    pair = [_bare(formula.base), _bare(formula.other)]
    if isinstance(statement, ast.Assign) and _is_renewal(statement):
        return [*map(_bare, statement.targets), _bare(statement.value)] == pair
    call = statement.value if isinstance(statement, ast.Expr) else None
    copied = _method(call, "copy_") if isinstance(call, ast.Call) and len(call.args) == 1 else None
    return copied is not None and [_bare(copied[0]), _bare(call.args[0])] == pair  # type: ignore[union-attr]


def _is_test(node: ast.expr) -> bool:
    """Whether asking it does nothing else."""
    asked = ("is_floating_point", "is_complex", "startswith", "endswith")
    return not any(
        isinstance(each, (ast.Await, ast.NamedExpr, ast.IfExp))
        or (isinstance(each, ast.Call) and (dotted(each.func) or "").rpartition(".")[2] not in asked)
        for each in walk(node)
    )


def _is_read_behind(analysis: Analysis, name: str, loop: ast.For, frame: Frame) -> bool:
    """Whether what the loop leaves under a name may be read when it is over."""
    places, module = analysis.facts.places, frame.module
    around = [each for each in places.ancestors(loop, module) if isinstance(each, LOOPS)]
    for read in reads_of(name, frame.scope):
        above = list(places.ancestors(read, module))
        if loop in above or not (read.lineno > loop.lineno or any(each in above for each in around)):
            continue
        if not any(name in _bound(each) for each in above):
            return True
    return False


def _bound(node: ast.AST) -> set[str]:
    """The names that a loop or comprehension binds for what lies in it."""
    parts = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
    return {each for part in parts for each in _names(part.target)}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _is_place(node: ast.expr) -> bool:
    """``p``, ``p.data``, ``p.grad``, ``p.detach()``, ``kept[name].data``: what names a tensor and does nothing."""
    return _PLACE.fullmatch(ast.unparse(node)) is not None


def _sources(analysis: Analysis, loop: ast.For, formula: Formula, frames: tuple[Frame, ...]) -> Iterator[str]:
    """Where what the loop goes through and looks up comes from: "parameters", "state", "buffers", or something else."""
    facts, frame = analysis.facts, frames[-1]

    def asked(name: ast.Name, seen: set[str]) -> Iterator[str]:
        """The attributes that a name of the function, and the names that it is set from, are asked for."""
        seen.add(name.id)
        owner = facts.bindings.owner(name.id, name, frame.module)
        for write in facts.bindings.writes(owner, name.id) if owner is frame.scope else ():
            value = getattr(write, "value", None)
            for each in walk(value) if value is not None else ():
                if isinstance(each, ast.Attribute):
                    yield each.attr
                elif isinstance(each, ast.Name) and each.id not in seen:
                    yield from asked(each, seen)

    own = {each.id for each in targets(loop.target) if isinstance(each, ast.Name)}
    for part in (loop.iter, formula.base, formula.other):
        owners: set[ast.AST] = set()  # whatever they are called, what they give is parameters
        for node in walk(part):
            if node in owners:
                continue
            if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                owners.update(walk(node.value))
                yield "parameters"
            elif isinstance(node, ast.Attribute) and node.attr in _STATES:
                yield _STATES[node.attr]
            elif isinstance(node, ast.Name) and node.id not in own and isinstance(node.ctx, ast.Load):
                named = set(asked(node, set()))
                if named & {"parameters", "named_parameters"}:
                    yield "parameters"
                elif states := named & _STATES.keys():
                    yield from sorted(_STATES[each] for each in states)
                elif part is not loop.iter or isinstance(facts.places.parent(node, frame.module), ast.Subscript):
                    yield "other"


# --- what stands elsewhere -----------------------------------------------------------------------------------------


def _inlined(analysis: Analysis, body: list[ast.stmt], own: set[str], frames: tuple[Frame, ...]) -> list[ast.stmt]:
    """``kept.data = kept.data * d + p.data * (1 - d)`` for a body that names its tensors first (``old, new =
    kept.data, p.data``), or has a function of the program compute the sum; any other body as it is."""
    *named, last = body
    if not isinstance(last, ast.Assign) or not _is_renewal(last):
        return body
    places: dict[str, ast.expr] = {}
    for statement in named:
        for name, place in _pairs(statement):
            if name is None or name in places or name in own or not _is_place(place) or not _names(place) & own:
                return body
            places[name] = place
    computed = last.value
    if isinstance(computed, ast.Call):
        returned = _returned(analysis, computed, frames)
        if returned is None:
            return body
        computed = returned
    elif not named:
        return body
    summed = _Placed(places).visit(computed)
    return [ast.copy_location(ast.Assign(last.targets, summed), last)] if isinstance(summed, ast.expr) else body


def _pairs(statement: ast.stmt) -> Iterator[tuple[str | None, ast.expr]]:
    """The names that a plain assignment binds, each with what it is bound to; no name for anything else."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        yield None, ast.Constant(None)
        return
    target, value = statement.targets[0], statement.value
    several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    bound = zip(target.elts, value.elts, strict=True) if several else [(target, value)]  # type: ignore[attr-defined]
    for name, given in bound:
        yield (name.id if isinstance(name, ast.Name) else None), given


class _Placed(ast.NodeTransformer):
    """Puts expressions in the place of names, in new nodes: the tree of the program stays as it is."""

    def __init__(self, places: dict[str, ast.expr]) -> None:
        self.places = places

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Name):
            return self.places.get(node.id, node)
        fields = {
            name: [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
            if isinstance(value, list)
            else self.visit(value)
            if isinstance(value, ast.AST)
            else value
            for name, value in ast.iter_fields(node)
        }
        return ast.copy_location(type(node)(**fields), node)


def _returned(analysis: Analysis, call: ast.Call, frames: tuple[Frame, ...]) -> ast.expr | None:
    """The sum that a function of the program returns for the tensors of a pair, in the words of the caller."""
    function = _called(analysis, call, frames)
    if function is None or call.keywords or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    node = function.node
    assert isinstance(node, ast.FunctionDef)
    given = [*node.args.posonlyargs, *node.args.args]
    if node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.decorator_list:
        return None
    passed = list(call.args)
    if function.cls is not None:
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
            return None
        passed.insert(0, call.func.value)
    if len(passed) != len(given):
        return None
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    told = dict(zip((each.arg for each in given), passed, strict=True))
    *tests, last = body
    # `if old is None: return new`: what the loop hands over is a tensor
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    if not all(isinstance(each, ast.If) and ast.unparse(each.test).endswith(" is None") for each in tests):
        return None
    bindings, module = analysis.facts.bindings, function.module
    for name in (each for each in walk(last.value) if isinstance(each, ast.Name) and each.id not in told):
        if module is not frames[-1].module or bindings.owner(name.id, name, module) is not module.tree:
            return None
        if bindings.is_local(name.id, frames[-1].scope):
            return None  # another thing by that name in the loop
    if any(isinstance(each, (ast.Lambda, *COMPREHENSIONS)) for each in walk(last.value)):
        return None
    found = _Placed(told).visit(last.value)
    return found if isinstance(found, ast.expr) else None


def _called(analysis: Analysis, call: ast.Call, frames: tuple[Frame, ...]) -> Function | None:
    """The one function of the program that a call runs."""
    values = members(analysis.facts.evaluate(call.func, frames))
    found = [value.function if isinstance(value, Bound) else value for value in values]
    known = [each for each in found if isinstance(each, Function)]
    alone = len(known) == len(found) and len({id(each.node) for each in known}) == 1
    return known[0] if alone and isinstance(known[0].node, ast.FunctionDef) else None


# --- the formula --------------------------------------------------------------------------------------------------


def _formula(body: list[ast.stmt], own: set[str]) -> Formula | None:
    """What the statements of such a loop compute."""
    if len(body) == 1 and isinstance(body[0], ast.Assign):
        return _renewed(body[0], own)
    only = body[0] if len(body) == 1 else None
    if isinstance(only, ast.AugAssign) and isinstance(only.op, ast.Mult):
        return Formula(only.target, only.target, done=(("mul_", only.value),))
    calls = [each.value for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    if len(calls) != len(body) or not 1 <= len(calls) <= 2:
        return None
    first = calls[0]
    assert isinstance(first, ast.Call)
    if len(calls) == 2:  # kept.mul_(d), then kept.add_(...)
        second = calls[1]
        assert isinstance(second, ast.Call)
        scaled, added = _method(first, "mul_"), _method(second, "add_")
        if scaled is None or added is None or ast.dump(scaled[0]) != ast.dump(added[0]):
            return None
        return _added(scaled[0], first, second, own)
    added = _method(first, "add_")
    if added is not None:
        inner = added[0]
        scaled = _method(inner, "mul_") if isinstance(inner, ast.Call) else None
        return _added(scaled[0], inner, first, own) if scaled is not None and isinstance(inner, ast.Call) else None
    lerped = _method(first, "lerp_")
    if lerped is not None and len(first.args) == 2 and not first.keywords:
        return Formula(lerped[0], first.args[0], None, first.args[1])
    clamped = _method(first, "clamp_")
    if clamped is not None:
        given = dict(zip(("min", "max"), first.args, strict=False)) | {
            each.arg or "": each.value for each in first.keywords
        }
        known = given.keys() <= {"min", "max"} and given
        bounds = tuple((f"clamp_{end}_", given[end]) for end in ("min", "max") if end in given)
        return Formula(clamped[0], clamped[0], done=bounds) if known else None
    scaled = _method(first, "mul_")
    if scaled is not None and len(first.args) == 1 and not first.keywords:
        return Formula(scaled[0], scaled[0], done=(("mul_", first.args[0]),))
    copied = _method(first, "copy_")
    if copied is None or len(first.args) != 1 or first.keywords:
        return None
    value = first.args[0]
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
        return Formula(copied[0], value)
    return _summed(copied[0], value, own)


def _is_renewal(statement: ast.stmt) -> bool:
    """Whether a statement gives a tensor other memory: ``kept.data = ...``, ``state[name] = ...``."""
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and (
            isinstance(statement.targets[0], ast.Subscript)
            or (isinstance(statement.targets[0], ast.Attribute) and statement.targets[0].attr == "data")
        )
    )


def _renewed(statement: ast.Assign, own: set[str]) -> Formula | None:
    """``kept.data = kept.data * d + p.data * (1 - d)``, where no graph can come out of it."""
    base, given = statement.targets[0], statement.value
    if not _is_renewal(statement) or not (isinstance(given, ast.BinOp) and isinstance(given.op, ast.Add)):
        return None
    found = _summed(base, given, own)
    if isinstance(base, ast.Subscript) and found is not None:
        return replace(found, renewed=True) if _names(base.slice) & own else None
    if found is None or not isinstance(base, ast.Attribute):
        return None
    is_own = bool(_names(base.value.slice if isinstance(base.value, ast.Subscript) else base.value) & own)
    tensors = [_product(each, own) for each in (given.left, given.right)]
    cut = all(each is not None and not isinstance(each[0], (ast.Name, ast.Subscript)) for each in tensors)
    return replace(found, renewed=True) if cut and is_own and _is_place(base) else None


def _summed(base: ast.expr, given: ast.BinOp, own: set[str]) -> Formula | None:
    """The sum of two products, one of them with what becomes of it."""
    left, right = _product(given.left, own), _product(given.right, own)
    if left is None or right is None:
        return None
    for one, two in ((left, right), (right, left)):
        if _bare(one[0]) == _bare(base) != _bare(two[0]):
            return Formula(base, two[0], one[1], two[1], summed=True)
    return None


def _method(call: ast.Call, name: str) -> tuple[ast.expr] | None:
    """What the method of that name is called on."""
    return (call.func.value,) if isinstance(call.func, ast.Attribute) and call.func.attr == name else None


def _added(base: ast.expr, scaled: ast.Call, added: ast.Call, own: set[str]) -> Formula | None:
    """``base.mul_(scale).add_(other, alpha=weight)``, or with the weight in a product."""
    if len(scaled.args) == 1 and len(added.args) == 2 and not (scaled.keywords or added.keywords):
        return Formula(base, added.args[1], scaled.args[0], added.args[0])  # the weight first, as it was once written
    if len(scaled.args) != 1 or scaled.keywords or len(added.args) != 1:
        return None
    if [each.arg for each in added.keywords] == ["alpha"]:
        return Formula(base, added.args[0], scaled.args[0], added.keywords[0].value)
    product = _product(added.args[0], own) if not added.keywords else None
    return Formula(base, product[0], scaled.args[0], product[1]) if product is not None else None


def _product(node: ast.expr, own: set[str]) -> tuple[ast.expr, ast.expr] | None:
    """The tensor and the number of ``p.data * (1 - d)``: what the loop gives, and the other factor."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    for factor, number in ((node.left, node.right), (node.right, node.left)):
        copied = _method(factor, "clone") if isinstance(factor, ast.Call) else None
        tensor = copied[0] if copied else factor
        if _is_place(tensor) and _names(tensor) & own and not _names(number) & own:
            return tensor, number
    return None


def _bare(node: ast.expr) -> str:
    """A place without ``.data``, ``.detach()`` and ``.clone()``."""
    return _CUT.sub("", ast.unparse(node))
