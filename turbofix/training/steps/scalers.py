"""The gradient scalers that one name holds, with all that is done with them: what has to go if the scaler goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.exports import takers, takers_outside
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Scaling

_HALF = regex(r"\b(half|float16|HalfTensor)\b")
_HALVES = ("half", "float16", "HalfTensor")

Held = ast.Name | ast.Attribute

_QUALNAMES = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler")


def scalings(analysis: Analysis) -> tuple[Scaling, ...]:
    """Every gradient scaler of torch that is made by itself in the statement that gives it its name."""
    facts = analysis.facts
    found = {
        facts.site(event): _scaling(analysis, event)
        for event in facts.of("make")
        if any(isinstance(each, Made) and each.qualname in _QUALNAMES for each in members(event.result))
    }
    return tuple(found[site] for site in sorted(found))


def _scaling(analysis: Analysis, event: Event) -> Scaling:
    facts, module = analysis.facts, event.module
    site = facts.site(event)
    statement = facts.places.parent(event.node, module)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    name = dotted(target)
    if not isinstance(statement, ast.Assign) or not isinstance(target, (ast.Name, ast.Attribute)) or name is None:
        return Scaling(site, why_not="the scaler has no name of its own")
    made = facts.places.site(statement, module)
    passed = event.arguments
    named = {each.qualname for each in members(event.result) if isinstance(each, Made)}
    first = 1 if named == {"torch.amp.GradScaler"} else 0  # the device
    is_plain = passed is not None and not passed.open and not passed.star and len(passed.positions) <= first
    if passed is None or not is_plain or set(passed.keywords) - {"device", "enabled"}:
        return Scaling(site, made, why_not="its scale is chosen by hand")
    half = _in_float16(analysis)
    if half is not None:
        return Scaling(site, made, why_not=f"{half.line_from(module.path)} computes in float16")
    uses = _uses(analysis, target, module)
    if uses is None:
        return Scaling(site, made, why_not=f"{name} may be another scaler elsewhere, or used in another file")
    scaled: list[tuple[Site, Site]] = []
    steps: list[tuple[Site, Site]] = []
    gone: list[Site] = []
    for use in uses:
        call = _method_call(analysis, use, module)
        if call is None:
            where = use.lineno
            return Scaling(site, made, why_not=f"line {where} uses the scaler for more than scaling and stepping")
        assert isinstance(call.func, ast.Attribute)
        alone = isinstance(facts.places.parent(call, module), ast.Expr)
        here = facts.places.site(call, module)
        given = [facts.places.site(each, module) for each in call.args]
        kind = call.func.attr
        simple = not call.keywords and not any(isinstance(each, ast.Starred) for each in call.args)
        if simple and kind == "scale" and len(given) == 1 and _is_backward(analysis, call, module):
            scaled.append((here, given[0]))
        elif simple and kind == "step" and len(given) == 1 and alone and dotted(call.args[0]) is not None:
            steps.append((here, given[0]))
        elif simple and alone and ((kind == "unscale_" and len(given) == 1) or (kind == "update" and not given)):
            gone.append(here)
        else:
            return Scaling(site, made, why_not=f"line {here.line} uses the scaler for more than scaling and stepping")
    if not scaled or not steps:
        return Scaling(site, made, why_not="where the scaler is used was not seen")
    return Scaling(site, made, tuple(scaled), tuple(steps), tuple(gone), _import_of(analysis, event))


def _in_float16(analysis: Analysis) -> Site | None:
    """Where a file speaks of float16: what is computed there has gradients that want to be scaled."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        if not _HALF.search(module.text):
            continue
        for each in every(ast.Attribute, module.tree):
            if each.attr in _HALVES:
                return places.site(each, module)
        for brought in every(ast.ImportFrom, module.tree):
            if any(alias.name in _HALVES for alias in brought.names):
                return places.site(brought, module)
        for text in every(ast.Constant, module.tree):  # `getattr(torch, "float16")`, `model.type("torch.HalfTensor")`
            if isinstance(text.value, str) and text.value.rpartition(".")[2] in _HALVES:
                return places.site(text, module)
    return None


def _uses(
    analysis: Analysis, target: ast.Name | ast.Attribute, module: ModuleFile
) -> list[ast.Name | ast.Attribute] | None:
    """Every place that reads what a name holds; None where these may not be all, or it may hold something else."""
    facts = analysis.facts
    if isinstance(target, ast.Attribute):
        word = re.compile(rf"\b{re.escape(target.attr)}\b")
        writes = facts.attribute_writes(target.attr)
        others = [each for each in analysis.execution.modules.values() if each is not module]
        if dotted(target.value) != "self" or len(writes) != 1 or any(word.search(each.text) for each in others):
            return None
        holder = _class_of(analysis, target, module)
        found = [each for each in every(ast.Attribute, module.tree) if each.attr == target.attr and each is not target]
        if any(dotted(each.value) != "self" or _class_of(analysis, each, module) is not holder for each in found):
            return None
        return None if _is_taken_apart(holder, target.attr) else list(found)
    owner = facts.bindings.owner(target.id, target, module)
    if len(facts.bindings.writes(owner, target.id)) != 1:
        return None
    if isinstance(owner, ast.Module):
        taken = (*takers(analysis, module, {target.id}), *takers_outside(analysis, module, {target.id}))
        if taken:
            return None
    return [
        each
        for each in every(ast.Name, module.tree)
        if each.id == target.id and each is not target and facts.bindings.owner(each.id, each, module) is owner
    ]


def _is_taken_apart(holder: ast.AST | None, attribute: str) -> bool:
    """Whether the methods of a class reach its attributes by other ways than their names, this one among them.

    ``vars(self)``, ``self.__dict__``, ``getattr(self, name)``: to save what each of them holds, say.
    """
    for node in walk(holder) if holder is not None else ():
        if isinstance(node, ast.Attribute) and node.attr == "__dict__" and dotted(node.value) == "self":
            return True
        if isinstance(node, ast.Call) and node.args and dotted(node.args[0]) == "self":
            called = dotted(node.func)
            name = node.args[1] if len(node.args) > 1 else None
            other = isinstance(name, ast.Constant) and name.value != attribute
            if called == "vars" or (called in ("getattr", "setattr", "hasattr", "delattr") and not other):
                return True
    return False


def _class_of(analysis: Analysis, node: ast.AST, module: ModuleFile) -> ast.AST | None:
    return next(
        (each for each in analysis.facts.places.ancestors(node, module) if isinstance(each, ast.ClassDef)), None
    )


def _method_call(analysis: Analysis, use: Held | ast.Call, module: ModuleFile) -> ast.Call | None:
    """The call ``scaler.update()`` around a use of the scaler."""
    method = analysis.facts.places.parent(use, module)
    call = analysis.facts.places.parent(method, module) if isinstance(method, ast.Attribute) else None
    return call if isinstance(call, ast.Call) and call.func is method else None


def _is_backward(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool:
    """``scaler.scale(loss).backward(...)`` as a statement."""
    outer = _method_call(analysis, call, module)
    if outer is None or not isinstance(outer.func, ast.Attribute) or outer.func.attr != "backward":
        return False
    return isinstance(analysis.facts.places.parent(outer, module), ast.Expr)


def _import_of(analysis: Analysis, event: Event) -> Site | None:
    """The entry of an import that brings the scaler's class and nothing else: it has no use without it."""
    call = event.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    name, module = call.func, event.module
    owner = analysis.facts.bindings.owner(name.id, name, module)
    writes = analysis.facts.bindings.writes(owner, name.id)
    uses = [each for each in every(ast.Name, module.tree) if each.id == name.id]
    if len(writes) != 1 or not isinstance(writes[0], ast.ImportFrom) or len(uses) != 1 or "__all__" in module.text:
        return None
    for other in analysis.execution.modules.values():
        imports: Iterator[ast.ImportFrom] = iter(every(ast.ImportFrom, other.tree) if other is not module else ())
        if any(alias.name in (name.id, "*") and each.level for each in imports for alias in each.names):
            return None
    entry = next(each for each in writes[0].names if (each.asname or each.name) == name.id)
    return analysis.facts.places.site(entry, module)
