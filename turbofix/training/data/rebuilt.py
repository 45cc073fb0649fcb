"""What a loop builds anew in every round, out of names that it does not set."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, members
from turbofix.regex import regex
from turbofix.source.names import dotted, loads, stores
from turbofix.source.nodes import walk
from turbofix.training.model import Rebuilt

_KINDS = ("loader", "criterion", "dataset")
_DRAWS = regex(r"random|\brand\w*\(|shuffle\(|Generator")


def rebuilts(analysis: Analysis) -> tuple[Rebuilt, ...]:
    """The loaders, criteria and data that loops which train or evaluate build anew, in the order of the text."""
    facts = analysis.facts
    working = {id(each.node) for event in facts.of("backward", "forward") for each in facts.loops(event)}
    found: dict[ast.AST, Rebuilt] = {}
    for event in facts.of("make"):
        made = next((each for each in members(event.result) if isinstance(each, Made) and each.kind in _KINDS), None)
        statement = facts.places.statement(event.node, event.module)
        loop = facts.places.parent(statement, event.module) if statement is not None else None
        if made is None or not isinstance(loop, ast.For) or id(loop) not in working:
            continue
        group = _group(analysis, statement, loop)
        if group and not _trains_anew(analysis, loop):
            found[group[-1]] = _rebuilt(analysis, event, made, _outermost(analysis, event, loop, group), group)
    parts = {site for each in found.values() for site in each.statements[:-1]}
    whole = [each for each in found.values() if each.statements[-1] not in parts]
    return tuple(sorted(whole, key=lambda each: each.site))


def _rebuilt(analysis: Analysis, event: Event, made: Made, loop: ast.For, group: list[ast.Assign]) -> Rebuilt:
    places, module = analysis.facts.places, event.module
    above = places.site(loop, module)
    changing = next(_changing(loop, group), None)
    why = f"`{changing}` is handed to a call in the loop, which may change it: build it once, if not"
    if any(_DRAWS.search(places.text(each, module)) for each in group):
        changing, why = "", "it is drawn anew in each round: build it once, if that is not meant"
    if any(places.comments_at(each, module) for each in group):
        changing, why = "", "a comment stands beside it, which may say why"
    stays = made.arguments.get("persistent_workers")
    return Rebuilt(
        site=analysis.facts.site(event),
        statements=tuple(places.site(each, module) for each in group),
        loop=above,
        kind=made.kind,  # type: ignore[arg-type]
        name=dotted(group[-1].targets[0]) or "",
        lasting=stays is not None and getattr(stays.node, "value", None) is not False,
        why_not=None if changing is None else why,
    )


def _outermost(analysis: Analysis, event: Event, loop: ast.For, group: list[ast.Assign]) -> ast.For:
    """The outermost of the loops right in each other that set nothing of what the assignments read."""
    own = {dotted(each.targets[0]) for each in group}
    read = {dotted(one) for each in group for one in loads(each.value)} - own
    above = analysis.facts.places.parent(loop, event.module)
    if not isinstance(above, ast.For) or read & {to for to, _ in stores(above)}:
        return loop
    return _outermost(analysis, event, above, group)


def _group(analysis: Analysis, statement: ast.stmt | None, loop: ast.For) -> list[ast.Assign] | None:
    """The assignments that build something, its own last; None where the loop sets what they read in another way."""

    def builds(each: ast.Assign) -> bool:
        made = (one for event in analysis.facts.at(each.value) for one in members(event.result))
        return any(isinstance(one, Made) and one.kind in (*_KINDS, "sampler", "transform") for one in made)

    written = list(stores(loop))
    group: list[ast.Assign] = []
    waiting: list[ast.AST | None] = [statement]
    while waiting:
        each = waiting.pop()
        if each in group:
            continue
        if not isinstance(each, ast.Assign) or each not in loop.body or not isinstance(each.targets[0], ast.Name):
            return None
        name = each.targets[0].id
        before = [loop.iter, *loop.body[: loop.body.index(each)]]
        once = len(each.targets) == 1 and sum(to.partition(".")[0] == name for to, _ in written) == 1
        if not once or any(isinstance(one, ast.Name) and one.id == name for node in before for one in walk(node)):
            return None
        if each is not statement and not builds(each):
            return None
        group.append(each)
        read = {dotted(one) or "" for one in loads(each.value)}
        for to, node in written:
            if any(f"{one}.".startswith(f"{to}.") or f"{to}.".startswith(f"{one}.") for one in read):
                waiting.append(next((one for one in loop.body if one is node or node in walk(one)), None))
    return sorted(group, key=lambda each: each.lineno)


def _changing(loop: ast.For, group: list[ast.Assign]) -> Iterator[str]:
    """What the loop hands to other calls, or calls methods of, of what the statements are given."""
    own = {id(each) for one in group for each in walk(one)}
    building = [each for one in group for each in walk(one.value) if isinstance(each, ast.Call)]
    building = [each for each in building if getattr(each.func, "attr", None) not in ("to", "cuda")]
    arguments = (one for call in building for one in (*call.args, *(each.value for each in call.keywords)))
    given = {dotted(each) for one in arguments for each in loads(one)}
    for call in (each for each in walk(loop) if isinstance(each, ast.Call) and id(each) not in own):
        receiver = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
        others = call.args if dotted(call.func) != "len" else []
        yield from (name for name in (receiver, *map(dotted, others)) if name is not None and name in given)


def _trains_anew(analysis: Analysis, loop: ast.For) -> bool:
    """Whether each round is a training of its own, beside which what it builds costs nothing."""
    made = (each for event in analysis.facts.events_in(loop) if event.kind == "make" for each in members(event.result))
    return any(isinstance(each, Made) and each.kind == "optimizer" for each in made)
