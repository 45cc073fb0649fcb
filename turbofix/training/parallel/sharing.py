"""How the batches of a training are shared out among processes: its loaders, and what its steps draw by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Made, Value, members
from turbofix.source.answers import every
from turbofix.source.names import dotted, parameters, stored
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.loaders import loader_sites
from turbofix.training.model import Argument, Divided, Loader, Pass, Step
from turbofix.training.parallel.reading import is_made_for_steps
from turbofix.training.parallel.wrapping import NotWrapped, argument

_FACTORIES = ("zeros", "ones", "full", "empty", "rand", "randn", "randint", "normal", "arange")


def divided(
    analysis: Analysis, loaders: tuple[Loader, ...], steps: tuple[Step, ...], read: set[Made]
) -> Iterator[Divided]:
    """The loaders that steps ``read`` their batches from. Raises NotWrapped for one that is no plain one of theirs."""
    sites = {analysis.facts.origin_site(each.origin) for each in read}
    for loader in loaders:
        if loader.site in sites:
            yield _divided(analysis, loader, steps, read)


def _divided(analysis: Analysis, loader: Loader, steps: tuple[Step, ...], read: set[Made]) -> Divided:
    site, given = loader.site, loader.argument
    dataset, batch, shuffle, drop = map(given, ("dataset", "batch_size", "shuffle", "drop_last"))
    plain = loader.subclass is None and not loader.unpacks and not loader.open_mapping
    plain = plain and loader.dataset.kind != "iterable" and _is_none(given("sampler"))
    plain = plain and _is_none(given("batch_sampler")) and is_made_for_steps(analysis, loader, read)
    plain = plain and batch.values != (1,) and _is_by_itself(analysis, loader)
    if not plain or batch.site is None or batch.site.path != site.path or dataset.site is None:
        raise NotWrapped("it is no plain loader of the training alone", site)
    written_out = shuffle.site is not None and shuffle.site.kind == "Constant"
    shuffled = bool(shuffle.values[0]) if written_out else False if shuffle.state == "absent" else None
    passes = tuple(passes_of(analysis, loader, steps))
    if not passes:
        raise NotWrapped("where it is read was not followed, and each epoch would have the same order", site)
    return Divided(
        site, dataset.site, batch.site, shuffle.site, shuffled, drop.site, () if shuffled is False else passes
    )


def _is_by_itself(analysis: Analysis, loader: Loader) -> bool:
    """Whether a statement of the script that is started makes a loader, and no comprehension or imported file does."""
    event = next(each for each in analysis.facts.of("make") if analysis.facts.site(each) == loader.site)
    frames = [each for each in analysis.facts.frames(event) if isinstance(each.scope, ast.Module)]
    if any(each.module is not analysis.execution.entry for each in frames):
        return False
    places = analysis.facts.places
    statement = places.statement(event.node, event.module)
    for above in places.ancestors(event.node, event.module):
        if above is statement:
            break
        if isinstance(above, (ast.Lambda, *COMPREHENSIONS)):
            return False
    return True


def _is_none(given: Argument) -> bool:
    return given.state == "absent" or (given.state == "value" and given.values == (None,))


def passes_of(analysis: Analysis, loader: Loader, steps: tuple[Step, ...]) -> Iterator[Pass]:
    """Where steps begin to read a loader: in front of a loop, or of what asks for an iterator."""
    places, told = analysis.facts.places, set[Site]()
    for reading, node, module in _readings(analysis):
        names = _names(analysis, reading, module)
        named = next((each for each in names if _is_loader(analysis, each, module, loader)), None)
        statement = places.statement(node, module)
        if named is None or statement is None:
            continue
        site = places.site(statement, module)
        if site not in told and _leads_to_step(analysis, statement, module, steps):
            told.add(site)
            own = Pass(site, ast.unparse(named), _epoch(analysis, statement, module))
            yield (_in_caller(analysis, named, statement, module) if own.epoch is None else None) or own


def _readings(analysis: Analysis) -> Iterator[tuple[ast.expr, ast.AST, ModuleFile]]:
    """What the program goes through: in loops, and by iterators."""
    for event in analysis.facts.of("iterate"):
        if isinstance(event.node, (ast.For, ast.AsyncFor)):
            yield event.node.iter, event.node, event.module
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree):
            if dotted(call.func) == "iter" and call.args:
                yield call.args[0], call, module


def _names(analysis: Analysis, node: ast.expr, module: ModuleFile) -> list[ast.expr]:
    """The names in an expression, and those in what its names were set to: ``loader`` of ``bar = tqdm(loader)``."""
    named = (ast.Name, ast.Attribute)
    found: list[ast.expr] = [each for each in walk(node) if isinstance(each, named) and dotted(each)]
    for each in [one for one in found if isinstance(one, ast.Name)]:
        bindings = analysis.facts.bindings
        for write in bindings.writes(bindings.owner(each.id, each, module), each.id):
            made = write.value if isinstance(write, ast.Assign) else getattr(write, "context_expr", None)
            found += [one for one in walk(made) if isinstance(one, named) and dotted(one)] if made is not None else []
    return found


def _is_loader(analysis: Analysis, node: ast.expr, module: ModuleFile, loader: Loader) -> bool:
    value = value_of(analysis, node, module)
    kinds = {each.kind for each in members(value) if isinstance(each, Made)}
    return kinds == {"loader"} and loader.site in loader_sites(analysis, value)


def value_of(analysis: Analysis, node: ast.AST, module: ModuleFile) -> Value | None:
    """What an expression was, whoever called its function."""
    scope = analysis.facts.places.scope(node, module)
    return analysis.facts.evaluate(node, (Frame(scope, module, node, None, ()),))


def _leads_to_step(analysis: Analysis, statement: ast.stmt, module: ModuleFile, steps: tuple[Step, ...]) -> bool:
    """Whether a statement is the loop of a step, holds or precedes one, or stands in it: no evaluation's."""
    places = analysis.facts.places
    site, scope = places.site(statement, module), places.scope(statement, module)
    loops = {step.loop.site for step in steps}
    if isinstance(statement, LOOPS):
        return (
            site in loops
            or any(places.site(each, module) in loops for each in walk(statement) if isinstance(each, LOOPS))
            or any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in walk(statement))
        )
    return any(isinstance(each, LOOPS) and places.site(each, module) in loops for each in walk(scope))


def _epoch(analysis: Analysis, statement: ast.AST, module: ModuleFile) -> str | None:
    """The variable that counts the passes, in the loop around a statement."""
    for above in analysis.facts.places.ancestors(statement, module):
        if isinstance(above, ast.For) and isinstance(above.target, ast.Name) and above.target.id != "_":
            return above.target.id if "range(" in _written_out(analysis, above.iter, module) else None
        if isinstance(above, (*FUNCTIONS, ast.Module)):
            break
    return None


def _written_out(analysis: Analysis, node: ast.expr, module: ModuleFile) -> str:
    """The text of an expression, and of what a name was set to: ``bar`` of ``bar = tqdm(range(9))``."""
    if not isinstance(node, ast.Name):
        return ast.unparse(node)
    writes = analysis.facts.bindings.writes(analysis.facts.bindings.owner(node.id, node, module), node.id)
    return " ".join(ast.unparse(each.value) for each in writes if isinstance(each, ast.Assign))


def _in_caller(analysis: Analysis, named: ast.expr, statement: ast.stmt, module: ModuleFile) -> Pass | None:
    """Where a loop over epochs calls the function that reads a loader, and what it calls that loader."""
    places, scope = analysis.facts.places, analysis.facts.places.scope(statement, module)
    for event in analysis.facts.of("backward"):
        frames = analysis.facts.frames(event)
        at = next((index for index, each in enumerate(frames) if each.scope is scope), 0)
        calling = places.statement(frames[at - 1].anchor, frames[at - 1].module) if at else None
        if calling is None or frames[at].function is None:
            continue
        outer, name = frames[at - 1], dotted(named) or ""
        epoch = _epoch(analysis, calling, outer.module)
        own = [each.arg for each in parameters(scope)] if isinstance(scope, FUNCTIONS) else []
        if name in own:
            passed = argument(frames[at], own.index(name), name)
            name = (dotted(passed) or "") if passed is not None and name not in stored(scope.body) else ""  # type: ignore[attr-defined]
        elif not (name.startswith("self.") and isinstance(frames[at].call, ast.Call) and _on_self(frames[at].call)):
            name = ""
        if epoch is not None and name:
            return Pass(places.site(calling, outer.module), name, epoch)
    return None


def _on_self(call: ast.AST | None) -> bool:
    return isinstance(call, ast.Call) and (dotted(call.func) or "").startswith("self.")
