"""Which loaders steps read, and what tells these from others, where one call makes both or one loop reads both."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, Sequence, members
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.loaders import loaders_in
from turbofix.training.model import Loader, Step
from turbofix.training.parallel.wrapping import NotWrapped
from turbofix.training.steps.regions import no_grad


def read_by_steps(analysis: Analysis, steps: tuple[Step, ...]) -> set[Made]:
    """The loaders that steps read: of a loop over any loader, those with which it comes to a backward pass."""
    facts = analysis.facts
    read: dict[tuple[ast.AST, int], list[Made]] = {}
    for event in facts.of("iterate"):
        if not any(isinstance(each, Sequence) for each in members(event.receiver)):  # loaders, one after another
            read.setdefault((event.node, event.control.path), []).extend(loaders_in(event.receiver))
    found = set[Made]()
    for backward in facts.of("backward"):
        level = backward.control
        while level.up is not None:
            if level.kind == "loop" and level.node is not None:
                found.update(read.get((level.node, level.up.path), ()))
            level = level.up
    loops = {step.loop.site for step in steps}
    for event in facts.of("next"):
        around = {facts.places.site(each.node, each.module) for each in facts.loops(event)}
        if around & loops and not no_grad(event):  # an evaluation within a step stays whole
            found.update(loaders_in(event.receiver))
    known = {facts.origin_site(each.origin) for each in found}
    for step in steps:
        if known.isdisjoint(step.loaders):  # it reads them in a way that was not followed
            found.update(made for site in step.loaders for _, made in _made_at(analysis, site))
    return found


def _made_at(analysis: Analysis, site: Site) -> Iterator[tuple[Event, Made]]:
    """The loaders that one call makes, each with the event."""
    for event in analysis.facts.of("make"):
        if analysis.facts.site(event) == site:
            for each in loaders_in(event.result):
                yield event, each


def is_made_for_steps(analysis: Analysis, loader: Loader, read: set[Made]) -> bool:
    """Whether a call makes one loader alone, and that for steps."""
    made = list(_made_at(analysis, loader.site))
    return bool(made) and all(each in read for _, each in made) and not _is_one_of_many(analysis, made[0][0])


def _is_one_of_many(analysis: Analysis, event: Event) -> bool:
    """Whether each round of a comprehension or a loop puts a loader beside those of the others: ``{x: loader}``."""
    places = analysis.facts.places
    statement = places.statement(event.node, event.module)
    for above in places.ancestors(event.node, event.module):
        if isinstance(above, COMPREHENSIONS):
            return True
        if above is statement:
            break
    looped = isinstance(places.parent(statement, event.module), ast.For) if statement is not None else False
    into = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript)
    return looped and (into or (isinstance(statement, ast.Expr) and statement.value is not event.node))


def refuse_other_reads(analysis: Analysis, read: set[Made], steps: tuple[Step, ...]) -> None:
    """Raise NotWrapped where something else gathers what such a loader gives, and would be given a share of it."""
    facts, places = analysis.facts, analysis.facts.places
    known = {each.loop.site for each in steps}
    for event in facts.of("iterate"):
        if read.isdisjoint(loaders_in(event.receiver)):
            continue
        around = {places.site(each.node, each.module) for each in facts.loops(event)}
        inside = {places.site(each, event.module) for each in walk(event.node) if isinstance(each, LOOPS)}
        ends = any(isinstance(each, (ast.Break, ast.Return, ast.Yield, ast.YieldFrom)) for each in walk(event.node))
        idle = isinstance(event.node, LOOPS) and all(isinstance(each, ast.Pass) for each in event.node.body)
        if known.isdisjoint(around | inside) and not ends and not idle:
            why = "the loader of the training is gone through here, too, where each process would see its share alone"
            raise NotWrapped(why, facts.site(event))
