"""Which loaders steps read, and what tells these from others, where one call makes both or one loop reads both."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Const, Function, Instance, Made, Sequence, Value, members
from turbofix.source.answers import every
from turbofix.source.names import body_of, dotted, parameters, stored
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.loaders import loaders_in
from turbofix.training.model import Evaluation, Loader, Step
from turbofix.training.parallel.phases import other_phase, phases
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
        level, over = backward.control, set[ast.AST]()
        while level.up is not None:
            phase = phases(analysis).get(level.node) if level.node is not None else None
            if phase is not None:
                found.update(phase.read)
                over.add(phase.outer)
            elif level.kind == "loop" and level.node is not None and level.node not in over:
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


def told_by(analysis: Analysis, loader: Loader, read: set[Made]) -> str:
    """The test, at a call, of whether the loader is one that steps read; "" where all are. Raises NotWrapped.

    ``shuffle`` tells it, or a parameter of the function around it: ``train``, ``split == "train"``.
    """
    made = list(_made_at(analysis, loader.site))
    for phase in phases(analysis).values():
        for _, each in made:
            if phase is not None and each in phase.made:
                return phase.made[each]
    ours = [event for event, each in made if each in read]
    others = [event for event, each in made if each not in read]
    several = bool(made) and _is_one_of_many(analysis, made[0][0])
    if not several and (not ours or not others):
        return ""
    shuffle = loader.argument("shuffle").site
    if shuffle is not None and shuffle.kind != "Constant" and ours and others:
        given = [[_value(_shuffle(event)) for event in events] for events in (ours, others)]
        if test := _test(loader.argument("shuffle").text or "", *map(set, given)):
            return test
    scope = analysis.facts.frames(made[0][0])[-1].scope
    for name in (each.arg for each in parameters(scope) if ours and others):
        if name not in stored(body_of(scope)):
            values = [
                {_value(analysis.facts.named(name, scope, analysis.facts.frames(event)[-1])) for event in events}
                for events in (ours, others)
            ]
            if test := _test(name, *values):
                return test
    why = "its call also makes loaders for evaluations, which stay whole, and nothing in it tells them apart"
    raise NotWrapped(why, loader.site)


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


def _shuffle(event: Event) -> Value | None:
    return event.arguments.value("shuffle", 2) if event.arguments is not None else None


def _value(value: Value | None) -> object:
    """A switch or a short name that a value always is; None where it is none."""
    (only,) = members(value) if len(members(value)) == 1 else (None,)
    constant = only.value if isinstance(only, Const) else None
    plain = isinstance(constant, bool) or (isinstance(constant, str) and constant.isidentifier())
    return constant if plain else None


def _test(text: str, ours: set[object], others: set[object]) -> str:
    """An expression that is true where ``text`` is one of ours, not one of the others."""
    if None in ours | others or ours & others or len(ours) > 1:
        return ""
    (value,) = ours
    if isinstance(value, str):
        return f'{text} == "{value}"'
    loose = isinstance(ast.parse(text, mode="eval").body, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr))
    operand = f"({text})" if loose else text
    return operand if value else f"not {operand}"


def by_batches(loader: Made) -> bool:
    """Whether a loader is given a sampler of whole batches."""
    given = loader.arguments.value("batch_sampler", 4)
    return given is not None and not all(isinstance(each, Const) for each in members(given))


def unfit_sampler(analysis: Analysis, read: set[Made], site: Site) -> str | None:
    """What is in the way of choosing all samples of a pass at once, by a sampler of the script's own."""
    for loader in read:
        if analysis.facts.origin_site(loader.origin) != site:
            continue
        told = loader.arguments
        for each in (*members(told.value("sampler", 3)), *members(told.value("batch_sampler", 4))):
            if isinstance(each, Const):
                return "its sampler may also be None, and what shares out its samples then is another one"
            if isinstance(each, Instance):
                chooses = each.cls.find("__iter__")
                loops = walk(chooses.node) if isinstance(chooses, Function) else ()
                forever = (isinstance(one, ast.While) and isinstance(one.test, ast.Constant) for one in loops)
                if not each.cls.find("__len__") or any(forever):
                    return f"its sampler, `{each.cls.node.name}`, has no length, or chooses without an end"
    return None


def lengths(analysis: Analysis, read: set[Made]) -> Iterator[Site]:
    """How many samples such a loader's sampler chooses, where it is asked. Raises NotWrapped for what else is read."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        for node in every(ast.Attribute, module.tree):
            if node.attr not in ("sampler", "batch_sampler"):
                continue
            frame = Frame(places.scope(node, module), module, node, None, ())
            found = set(loaders_in(analysis.facts.evaluate(node.value, (frame,))))
            above = places.parent(node, module)
            counted = isinstance(above, ast.Call) and dotted(above.func) == "len" and node.attr == "sampler"
            if found & read and counted and found <= read:
                yield places.site(above, module)  # type: ignore[arg-type]
            elif found & read and (counted or isinstance(above, ast.Attribute)):
                why = f"`{ast.unparse(above)}` is read here, and what shares out its samples takes its place"  # type: ignore[arg-type]
                raise NotWrapped(why, places.site(node, module))


def refuse_other_reads(
    analysis: Analysis, read: set[Made], steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]
) -> None:
    """Raise NotWrapped where something else gathers what such a loader gives, and would be given a share of it."""
    facts, places = analysis.facts, analysis.facts.places
    known = {each.loop.site for each in steps} | {each.loop.site for each in evaluations}
    for event in facts.of("iterate"):
        if read.isdisjoint(loaders_in(event.receiver)):
            continue
        around = {places.site(each.node, each.module) for each in facts.loops(event)}
        inside = {places.site(each, event.module) for each in walk(event.node) if isinstance(each, LOOPS)}
        ends = any(isinstance(each, (ast.Break, ast.Return, ast.Yield, ast.YieldFrom)) for each in walk(event.node))
        idle = isinstance(event.node, LOOPS) and all(isinstance(each, ast.Pass) for each in event.node.body)
        if isinstance(event.node, ast.For) and other_phase(analysis, event.node.iter, event.module):
            continue
        if known.isdisjoint(around | inside) and not ends and not idle:
            why = "the loader of the training is gone through here, too, where each process would see its share alone"
            raise NotWrapped(why, facts.site(event))


def reads(record: LoopRecord, read: set[Made]) -> bool:
    """Whether a loop reads one of these loaders."""
    return not read.isdisjoint(loaders_in(record.iterated))


def is_mixed(record: LoopRecord, read: set[Made]) -> bool:
    """Whether a loop reads loaders that are shared out and, at other times, loaders that stay whole."""
    return reads(record, read) and not read.issuperset(loaders_in(record.iterated))


def shares_seen(text: str, *, batches: bool = False) -> str:
    """The test of whether a loader is one that is shared out, where it runs: torch's own samplers have no epochs."""
    return f'hasattr({text}.batch_sampler, "num_replicas")' if batches else f'hasattr({text}.sampler, "set_epoch")'
