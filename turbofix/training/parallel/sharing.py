"""How the batches of a training are shared out among processes: its loaders, and what its steps draw by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import LoopRecord
from turbofix.domain.values import Const, Made, Tensor, Value, flatten, members
from turbofix.library.tables import LOADERS_ALIKE
from turbofix.source.answers import every
from turbofix.source.names import dotted, loaded, loads, parameters, stored, targets
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.loaders import loader_sites, loaders_in
from turbofix.training.model import Argument, Divided, Drawn, Loader, Pass, Step
from turbofix.training.parallel.phases import phases
from turbofix.training.parallel.reading import by_batches, is_mixed, reads, shares_seen, told_by, unfit_sampler
from turbofix.training.parallel.wrapping import NotWrapped, Unfit, argument
from turbofix.training.steps.regions import no_grad

_FACTORIES = ("zeros", "ones", "full", "empty", "rand", "randn", "randint", "normal", "arange")


def divided(
    analysis: Analysis, loaders: tuple[Loader, ...], steps: tuple[Step, ...], read: set[Made]
) -> Iterator[Divided]:
    """The loaders that steps ``read`` their batches from. Raises NotWrapped for one that cannot be shared out."""
    sites = {analysis.facts.origin_site(each.origin) for each in read}
    nodes = {analysis.facts.places.site(each.node, each.module): each.node for each in analysis.execution.loops}
    for step in steps:
        node, known = nodes[step.loop.site], phases(analysis)
        mixed = node in known or (len(step.loaders) > 1 and "[" in (step.loop.iterated or ""))  # `loaders[phase]`
        if mixed and step.loaders and known.get(node) is None:
            raise NotWrapped("one loop reads the loaders of training and evaluation, which stays whole", step.loop.site)
    for loader in loaders:
        if loader.site in sites:
            yield _divided(analysis, loader, steps, read)


def _divided(analysis: Analysis, loader: Loader, steps: tuple[Step, ...], read: set[Made]) -> Divided:
    site, given = loader.site, loader.argument
    if loader.subclass is not None and loader.subclass not in LOADERS_ALIKE:
        raise Unfit(f"`{loader.subclass}` is a loader of which it is not known how it is shared out", site)
    if len(loader.unpacks) > 1 or loader.open_mapping:
        raise NotWrapped("mappings that are unpacked may hold its batch size and its order", site)
    mapping = loader.unpacks[0] if loader.unpacks else None
    batches = not _is_none(given("batch_sampler"))
    sampler = given("batch_sampler" if batches else "sampler")
    chosen = not _is_none(sampler)
    if chosen and (sampler.site is None or sampler.may_be_absent):
        raise NotWrapped("its sampler is not written in its call, and cannot be shared out", site)
    if chosen and (why_not := unfit_sampler(analysis, read, site)) is not None:
        raise Unfit(why_not, site)
    dataset, batch, shuffle, drop = map(given, ("dataset", "batch_size", "shuffle", "drop_last"))
    unpacked = frozenset(loader.mapping_entries) if mapping is not None else frozenset[str]()
    written = batches or "batch_size" in unpacked or (batch.site is not None and batch.site.path == site.path)
    if dataset.site is None or "dataset" in unpacked or not written:
        raise NotWrapped("its data or its batch size are not written in its call, and cannot be shared out", site)
    if batch.values == (1,) and batch.state == "value":  # of an option, it is asked when it runs
        raise Unfit("a batch of one sample cannot be shared out: accumulate gradients, or take larger ones", site)
    only = told_by(analysis, loader, read)
    written_out = shuffle.site is not None and shuffle.site.kind == "Constant"
    shuffled = bool(shuffle.values[0]) if written_out else False if shuffle.state == "absent" else None
    passes = tuple(passes_of(analysis, loader, steps, read))
    stream = loader.dataset.kind == "iterable"
    if not passes and not stream and not chosen:
        raise NotWrapped("where it is read was not followed, and each epoch would have the same order", site)
    return Divided(
        site,
        dataset.site,
        None if "batch_size" in unpacked else batch.site,
        None if "shuffle" in unpacked else shuffle.site,
        None if "shuffle" in unpacked else shuffled,
        None if "drop_last" in unpacked else drop.site,
        () if chosen or shuffled is False else passes,
        stream=stream,
        sampler=sampler.site if chosen else None,
        batches=batches,
        early=_is_early(analysis, loader),
        inside=_is_inside(analysis, loader, batch, plain=not (chosen or stream or unpacked)),
        only=only,
        mapping=mapping,
        in_mapping=unpacked & {"batch_size", "shuffle", "drop_last"},
    )


def _is_early(analysis: Analysis, loader: Loader) -> bool:
    """Whether a loader is made by a file that is imported, in front of what the script sets up."""
    event = next(each for each in analysis.facts.of("make") if analysis.facts.site(each) == loader.site)
    frames = [each for each in analysis.facts.frames(event) if isinstance(each.scope, ast.Module)]
    return any(each.module is not analysis.execution.entry for each in frames)


def _is_inside(analysis: Analysis, loader: Loader, batch: Argument, *, plain: bool) -> bool:
    """Whether a comprehension makes a loader, which no statement can do anything for. Raises NotWrapped."""
    event = next(each for each in analysis.facts.of("make") if analysis.facts.site(each) == loader.site)
    places, variables = analysis.facts.places, set[str | None]()
    statement = places.statement(event.node, event.module)
    for above in places.ancestors(event.node, event.module):
        if above is statement:
            break
        if isinstance(above, ast.Lambda):
            variables |= {each.arg for each in parameters(above)}
        for each in getattr(above, "generators", ()):
            variables |= {dotted(one) for one in targets(each.target)}
    if variables and (not plain or variables & loaded(ast.parse(batch.text or "None", mode="eval"))):
        raise NotWrapped("a comprehension makes it, of which each round would need statements of its own", loader.site)
    return bool(variables)


def _is_none(given: Argument) -> bool:
    return given.state == "absent" or (given.state == "value" and given.values == (None,))


def passes_of(analysis: Analysis, loader: Loader, steps: tuple[Step, ...], read: set[Made]) -> Iterator[Pass]:
    """Where steps begin to read a loader: in front of a loop, or of what asks for an iterator."""
    places, told = analysis.facts.places, set[Site]()
    batched = {each for each in read if by_batches(each)}  # whose samplers have no epochs
    mixed = {each.node for each in analysis.execution.loops if is_mixed(each, read - batched)}
    either = {each.node for each in analysis.execution.loops if reads(each, batched)}
    for reading, node, module in _readings(analysis):
        names = _names(analysis, reading, module)
        named = next((each for each in names if _is_loader(analysis, each, module, loader)), None)
        statement = places.statement(node, module)
        phase = phases(analysis).get(node)
        if phase is not None:
            site = places.site(node, module)
            if site not in told and any(loader.site == analysis.facts.origin_site(each.origin) for each in phase.read):
                told.add(site)
                yield Pass(site, phase.text, _epoch(analysis, phase.outer, module), phase.only)
            continue
        if named is None or statement is None:
            continue
        site = places.site(statement, module)
        if site not in told and _leads_to_step(analysis, statement, module, steps):
            told.add(site)
            text = ast.unparse(named)
            own = Pass(site, text, _epoch(analysis, statement, module), shares_seen(text) if statement in mixed else "")
            calling = _in_caller(analysis, named, statement, module) if own.epoch is None else None
            if calling is not None and statement in either:
                calling = replace(calling, only=shares_seen(calling.loader))
            yield calling or own


def share_test(
    analysis: Analysis, record: LoopRecord, read: set[Made], data: tuple[Divided, ...], *, beside: bool = False
) -> str:
    """The test of whether a loop goes over a share; "" where it always does. Raises NotWrapped."""
    phase = phases(analysis).get(record.node)
    if phase is not None:
        return phase.only
    if not is_mixed(record, read) or isinstance(record.node, ast.While):
        return ""
    sites = {analysis.facts.origin_site(each.origin) for each in loaders_in(record.iterated)}
    shared = [each for each in data if each.loader in sites]
    alike = len({each.batches for each in shared}) == 1 and not any(each.stream for each in shared)
    for each in _names(analysis, record.node.iter, record.module):
        if (alike or beside) and loader_sites(analysis, value_of(analysis, each, record.module)):
            return shares_seen(ast.unparse(each), batches=not beside and shared[0].batches)
    why = "it also goes over loaders that stay whole, and which it goes over was not followed"
    raise NotWrapped(why, analysis.facts.places.site(record.node, record.module))


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


def sizes_read(analysis: Analysis, loaders: tuple[Loader, ...], records: list[LoopRecord]) -> Iterator[Site]:
    """Where steps make tensors, or states, as large as a batch: by the name that its size has."""
    facts = analysis.facts
    batches = {given.site: given for loader in loaders for given in (loader.argument("batch_size"),)}
    reads = {site for given in batches.values() for site in given.reads}
    for event in facts.of("call", "make"):
        if event.name.rpartition(".")[2] not in _FACTORIES or not isinstance(event.node, ast.Call):
            continue
        if not any(facts.inside(event, record.node) for record in records):
            continue
        for node in walk(event.node):
            site = facts.places.site(node, event.module) if isinstance(node, (ast.Name, ast.Attribute)) else None
            if site is not None and site in reads and not _is_of_batch(analysis, node, event.module):
                yield site


def _is_of_batch(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    """Whether a name is set to the size of a batch as it comes."""
    if not isinstance(node, ast.Name):
        return False
    scope = analysis.facts.places.scope(node, module)
    writes = analysis.facts.bindings.writes(scope, node.id)
    return any(isinstance(each, (ast.Assign, ast.AnnAssign)) and each.lineno < node.lineno for each in writes)


def _loops_around(analysis: Analysis, record: LoopRecord) -> set[ast.AST]:
    """The loops in which a loop runs, through calls."""
    ways = ([each.node for each in analysis.facts.loops(event)] for event in analysis.facts.of("backward"))
    return {each for way in ways if record.node in way for each in way[: way.index(record.node)]}


def drawn(analysis: Analysis, records: list[tuple[Step, LoopRecord]]) -> Iterator[Drawn]:
    """The batches that steps draw by hand, of data in memory: the names that are set first of all that a model gets."""
    places = analysis.facts.places
    reading = {record.node for step, record in records if step.loaders}
    for step, record in records:
        if step.loaders or reading & _loops_around(analysis, record):  # it has a batch from the loop around it
            continue
        found: dict[ast.AST, list[str]] = {}
        scope, whole = places.scope(record.node, record.module), None
        for event in analysis.facts.of("forward", "criterion"):
            frames = analysis.facts.frames_within(event, record.node)
            call = frames[1].call if len(frames) > 1 else event.node  # a method that makes the step is given the batch
            if frames and frames[0].scope is scope and isinstance(call, ast.Call) and not no_grad(event):
                for given in (*call.args, *(each.value for each in call.keywords)):
                    _sources(analysis, given, record, found, set())
                    whole = whole or _whole(analysis, given, record)
        for statement in found:
            if isinstance(statement, ast.Assign) and any(map(_cuts_elsewhere, walk(statement.value))):
                why = "its batches are cut along another dimension than the first, along which a share is cut"
                raise NotWrapped(why, places.site(statement, record.module))
        for call, module in _unpadded(analysis) if found else ():
            why = "it pads to the longest of a share, not of the batch: tell it `total_length`"
            raise NotWrapped(why, places.site(call, module))
        again = any(each.kind == "autograd_grad" for each in analysis.facts.events_in(record.node))
        if found and (again or whole is not None):
            name = f"`{ast.unparse(whole)}`" if whole is not None else "what gradients are asked for"
            site = places.site(whole, record.module) if whole is not None else step.loop.site
            raise NotWrapped(f"{name} is given as a whole, beside batches that are cut by hand", site)
        if not found:
            why = "where its batches come from was not followed, and every process would take all of them"
            raise NotWrapped(why, step.loop.site)
        for statement, names in found.items():
            unique = tuple(dict.fromkeys(names))
            inside = statement is record.node
            at = record.node.body[0] if inside else statement
            yield Drawn(places.site(at, record.module), unique, inside)
            for each in _fetched_before(analysis, scope, record, unique):
                yield Drawn(places.site(each, record.module), unique)


def _cuts_elsewhere(node: ast.AST) -> bool:
    """Whether an expression cuts a window out of another dimension than the first: ``data[:, i : i + size]``."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return False
    first, *others = node.slice.elts
    whole = isinstance(first, ast.Slice) and first.lower is None and first.upper is None
    windows = (each.lower for each in others if isinstance(each, ast.Slice) and each.upper is not None)
    return whole and any(each is not None and loaded(each) for each in windows)


def _unpadded(analysis: Analysis) -> Iterator[tuple[ast.Call, ModuleFile]]:
    """The calls that pad packed sequences to the longest that they are given."""
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree):
            pads = (dotted(call.func) or "").rpartition(".")[2] == "pad_packed_sequence"
            told = len(call.args) > 3 or any(each.arg in ("total_length", None) for each in call.keywords)
            if pads and not told:
                yield call, module


def _fetched_before(
    analysis: Analysis, scope: ast.AST, record: LoopRecord, names: tuple[str, ...]
) -> Iterator[ast.stmt]:
    """Where the first batch is drawn in front of a loop that draws the next one behind each step."""
    for each in walk(scope):
        early = isinstance(each, ast.Assign) and each.lineno < record.node.lineno
        if not isinstance(each, ast.Assign) or not early:
            continue
        set_here = {dotted(one) for target in each.targets for one in targets(target)}
        if set_here == {*names} and analysis.facts.places.scope(each, record.module) is scope:
            yield each


def _sources(
    analysis: Analysis, node: ast.AST, record: LoopRecord, found: dict[ast.AST, list[str]], seen: set[str]
) -> bool:
    """Gather the names that an expression of a loop is computed of, and that are given all of a batch; whether any."""
    any_found = False
    for read in loads(node):
        name = (dotted(read) or "").partition(".")[0]
        setting = _setting(record, name)
        itself = isinstance(setting, ast.Assign) and name in loaded(setting.value)
        if itself or (isinstance(setting, ast.Assign) and any(read is each for each in walk(setting))):
            why = f"`{name}` goes from step to step, as large as a whole batch"
            raise NotWrapped(why, analysis.facts.places.site(read, record.module))
        if name in seen:
            any_found = any_found or any(name in names for names in found.values())
            continue
        if setting is None or not _may_be_batch(analysis, name, setting, record):
            continue
        seen.add(name)
        value: ast.AST = setting.value if isinstance(setting, ast.Assign) else setting
        if setting is record.node or not _sources(analysis, value, record, found, seen):
            found.setdefault(setting, []).append(name)
        any_found = True
    return any_found


def _setting(record: LoopRecord, name: str) -> ast.stmt | None:
    """The statement of a loop that sets a name first, or the loop that gives it; None where that counts."""
    for loop in walk(record.node):
        if isinstance(loop, ast.For) and name in {dotted(each) for each in targets(loop.target)}:
            text, first = ast.unparse(loop.iter), dotted(next(targets(loop.target)))
            counts = "range(" in text or ("enumerate(" in text and first == name)
            return None if counts or loop is not record.node else loop
    for each in walk(record.node):
        given = each.targets if isinstance(each, ast.Assign) else []
        if isinstance(each, ast.Assign) and name in {dotted(one) for target in given for one in targets(target)}:
            return each
    return None


def _whole(analysis: Analysis, node: ast.AST, record: LoopRecord) -> ast.expr | None:
    """A tensor among what an expression reads that no statement of the loop sets."""
    for read in loads(node):
        name = (dotted(read) or "").partition(".")[0]
        held = flatten(value_of(analysis, read, record.module))
        if any(isinstance(each, Tensor) for each in held) and name not in stored([record.node]):
            return read
    return None


def _may_be_batch(analysis: Analysis, name: str, setting: ast.stmt, record: LoopRecord) -> bool:
    """Whether a name may hold a tensor or an array: no number, no text."""
    target = next(
        each
        for target in ([setting.target] if isinstance(setting, ast.For) else setting.targets)  # type: ignore[attr-defined]
        for each in targets(target)
        if dotted(each) == name
    )
    held = list(flatten(value_of(analysis, target, record.module)))
    computed = any(isinstance(each, Tensor) and each.roles & {"output", "loss", "prediction"} for each in held)
    return not computed and not (held and all(isinstance(each, Const) for each in held))
