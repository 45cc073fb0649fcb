"""All that has to change in a training of one process so that several can run it, one for each GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Made
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.model import (
    Beside,
    Divided,
    Drawn,
    Evaluation,
    Loader,
    Model,
    Owner,
    Parallel,
    Script,
    Step,
    Summed,
    Totals,
)
from turbofix.training.parallel.accelerated import accelerated
from turbofix.training.parallel.besides import besides
from turbofix.training.parallel.counted import counted
from turbofix.training.parallel.decisions import decisions
from turbofix.training.parallel.once import Once, last_imports
from turbofix.training.parallel.paths import chosen_paths, made_where_missing
from turbofix.training.parallel.phases import other_phase, phases
from turbofix.training.parallel.reading import lengths, read_by_steps, reads, refuse_other_reads
from turbofix.training.parallel.restored import read_to_one_gpu
from turbofix.training.parallel.sharing import divided, drawn, share_test, sizes_read
from turbofix.training.parallel.skips import ends, skips
from turbofix.training.parallel.start import beginning, is_repeated, starting
from turbofix.training.parallel.sums import sums
from turbofix.training.parallel.totals import totals
from turbofix.training.parallel.wrapping import NotWrapped, Unfit, copied, is_synchronised, wrapped
from turbofix.training.steps.training import training_loops

_ONE_GPU = regex(r"cuda:\d+")
_COMPARED = regex(
    r"\b(\w+) @ \1\.(T\b|t\(\))|(mm|matmul)\((\w+), \4\.(T\b|t\(\)|transpose\(0, 1|transpose\(1, 0)|cdist\((\w+), \6\b"
    r"|(\w+)\.unsqueeze\([01]\), \7\.unsqueeze\([01]\)"
)
"""What a loss over pairs of samples looks like."""

_SEEDING = {"torch": ("torch.manual_seed",), "random": ("random.seed",), "numpy": ("numpy.random.seed",)}
_DRAWING = {
    "numpy": regex(r"\b(np|numpy)\.random\.(?!seed\()"),
    "random": regex(r"(?<![\w.])random\.(random|shuffle|sample|choices?|randint|uniform|randrange|gauss)\("),
}
_SPLITTING = regex(r"train_test_split|KFold|resample\(")
"""What draws from NumPy's generator out of sight."""

_OF_TORCH = regex(r"torch\.(rand|randn|randint|randperm|multinomial|bernoulli|normal)(_like)?")
_LOGGERS = {name: regex(rf"(?m)^\s*(import|from) {name}\b") for name in ("logging", "loguru")}
_SEEDING_ALL = ("seed", "seed_everything", "set_seed")


def parallel(  # noqa: PLR0913
    analysis: Analysis,
    script: Script,
    models: tuple[Model, ...],
    loaders: tuple[Loader, ...],
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
    owners: tuple[Owner, ...] = (),
) -> Parallel | None:
    """What several processes need; None where no steps of the program's own are seen."""
    first = script.trains_at or script.setup
    if not steps:
        return None
    setup = beginning(analysis, first or steps[0].loop.site)
    try:
        if first is None:
            raise NotWrapped("where it is set up was not followed", setup)
        if owners:
            return accelerated(analysis, alike(analysis, setup, steps[0].loop.site), owners[0], steps, evaluations)
        return _parallel(analysis, setup, models, loaders, steps, evaluations)
    except NotWrapped as why:
        return Parallel(setup, (), steps[0].loop.site, hazard=why.hazard)


def alike(analysis: Analysis, setup: Site, loop: Site) -> Parallel:
    """What every training by several processes needs: what one of them does for all, and how they begin.

    Raises:
        NotWrapped: it would go wrong in silence.
    """
    _refuse(analysis)
    modules = [*analysis.execution.modules.values()]
    once = Once(analysis, modules, normed=is_synchronised(analysis), starts=starting(analysis, setup))
    runs = once.runs()
    saves = [each for statement, _ in once.statements for each in walk(statement)]
    missing = tuple(made_where_missing(analysis, once.written))
    return Parallel(
        setup,
        last_imports(analysis, modules),
        loop,
        once=runs,
        narrowed=once.narrowed(),
        opened=tuple(once.opened),
        receivers=tuple(once.receivers),
        writers=tuple(once.writers),
        disabled=tuple(once.disabled),
        bars=tuple(once.bars),
        contexts=tuple(once.contexts),
        downloads=once.downloads(),
        repeated=is_repeated(analysis, setup),
        loads=tuple(dict.fromkeys(once.loads(saves))),
        decisions=tuple(dict.fromkeys((*chosen_paths(analysis, modules), *(test for test, _ in missing)))),
        on_one_gpu=tuple(dict.fromkeys(read_to_one_gpu(analysis))),
        fetched=tuple(statement for _, statement in missing),
        indexed=tuple(_indexed(analysis, modules)),
        unseeded=tuple(_unseeded(analysis, modules)),
        loggers=tuple(name for name, pattern in _LOGGERS.items() if any(pattern.search(each.text) for each in modules)),
    )


def _parallel(  # noqa: PLR0913
    analysis: Analysis,
    setup: Site,
    models: tuple[Model, ...],
    loaders: tuple[Loader, ...],
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
) -> Parallel:
    facts, places = analysis.facts, analysis.facts.places
    found = alike(analysis, setup, steps[0].loop.site)
    copies = tuple(copied(analysis, models))
    apart = all(each.apart for each in copies)
    whole = tuple(wrapped(analysis, models, steps, copied=apart))
    if not whole and not copies:
        raise NotWrapped("no model is seen that its steps train", steps[0].loop.site)
    sites = {step.loop.site: step for step in steps}
    records = [
        (sites[site], record)
        for record, *_ in training_loops(analysis)
        if (site := places.site(record.node, record.module)) in sites
    ]
    read = read_by_steps(analysis, steps)
    whole_loop = facts.loops(facts.of("backward")[0])[0]
    evaluated, beside = tuple[Totals, ...](), tuple[Beside, ...]()
    try:
        data = tuple(divided(analysis, loaders, steps, read))
        refuse_other_reads(analysis, read, steps, evaluations)
        evaluated = tuple(_evaluated(analysis, evaluations, read, data))
    except Unfit:
        raise
    except NotWrapped:
        data, beside = (), besides(analysis, loaders, steps, read, whole_loop)
        if not beside or phases(analysis):
            raise
    summed = tuple(dict.fromkeys(sums(analysis, [record for _, record in records])))
    shared = tuple(each for each in loaders if each.site in {one.loader for one in data})
    by_hand, loops = tuple(drawn(analysis, records)), [record for _, record in records]
    decided = tuple(dict.fromkeys((*found.decisions, *decisions(analysis, loops), *ends(analysis, loops))))
    return replace(
        found,
        loop=places.site(whole_loop.node, whole_loop.module),
        models=whole,
        copied=copies,
        loaders=data,
        drawn=by_hand,
        apart=tuple(_apart(analysis, whole_loop, data, by_hand)),
        beside=beside,
        totals=(*_added_up(analysis, loops, summed, read, data, beside=bool(beside)), *evaluated),
        sizes=tuple(dict.fromkeys(sizes_read(analysis, shared, [record for _, record in records]))),
        decisions=decided,
        skips=tuple(each for each in skips(analysis, loops) if each[0] not in decided),
        summed=summed,
        lengths=tuple(dict.fromkeys(lengths(analysis, read))),
        counted=tuple(counted(analysis, [record for _, record in records])),
    )


def _apart(
    analysis: Analysis, loop: LoopRecord, data: tuple[Divided, ...], by_hand: tuple[Drawn, ...]
) -> Iterator[str]:
    """The generators from which each process is to draw numbers of its own: none by which batches are chosen."""
    if any(each.stream for each in data):
        return
    calls = {id(event.node) for event in analysis.facts.of("forward")}
    chosen = [
        event
        for event in (analysis.facts.events_in(loop.node) if by_hand else ())
        if event.kind in ("call", "make") and _OF_TORCH.fullmatch(event.name)
        if not any(id(frame.call) in calls for frame in analysis.facts.frames(event))
    ]
    if not chosen:
        yield "torch"
        for name, pattern in _DRAWING.items() if not by_hand else ():
            if any(pattern.search(module.text) for module in analysis.execution.modules.values()):
                yield name


def _added_up(  # noqa: PLR0913
    analysis: Analysis,
    records: list[LoopRecord],
    summed: tuple[Summed, ...],
    read: set[Made],
    data: tuple[Divided, ...],
    *,
    beside: bool = False,
) -> Iterator[Totals]:
    """What loops count on loaders that are shared out, where these are what they read."""
    for record in records:
        found = totals(analysis, record, summed)
        if found is not None:
            yield replace(found, only=share_test(analysis, record, read, data, beside=beside))


def _evaluated(
    analysis: Analysis, evaluations: tuple[Evaluation, ...], read: set[Made], data: tuple[Divided, ...]
) -> Iterator[Totals]:
    """What evaluations count on loaders that are shared out. Raises NotWrapped where that was not followed."""
    places = analysis.facts.places
    for evaluation in evaluations:
        for record in analysis.execution.loops:
            shared = places.site(record.node, record.module) == evaluation.loop.site and reads(record, read)
            if shared and not (
                isinstance(record.node, ast.For) and other_phase(analysis, record.node.iter, record.module)
            ):
                found = next(_added_up(analysis, [record], (), read, data), None)
                if found is None:
                    why = "it evaluates on a loader whose batches are shared out: give the evaluation one of its own"
                    raise NotWrapped(why, evaluation.loop.site)
                yield found


def _refuse(analysis: Analysis) -> None:
    """Raise NotWrapped for what would go wrong in silence."""
    places = analysis.facts.places
    entry = analysis.execution.entry
    if entry.path.suffix == ".ipynb":
        raise NotWrapped("torchrun starts scripts, no notebooks", places.site(entry.tree, entry))
    for frame in analysis.facts.opened():
        name = getattr(frame.scope, "name", "")
        found = (
            _COMPARED.search(ast.unparse(frame.scope)) if name and not isinstance(frame.scope, ast.ClassDef) else None
        )
        if found is not None:
            why = f"`{found[0]}` compares the samples of a batch with each other, and a process has its share alone"
            raise NotWrapped(why, places.site(frame.scope, frame.module))
    for event in analysis.facts.of("criterion", "call"):
        if _picks_itself(analysis, event):
            why = "each sample of a batch is told from the other ones, and a process has its share alone"
            raise NotWrapped(why, analysis.facts.site(event))
    _refuse_early_draws(analysis)
    for module in analysis.execution.modules.values():
        for node in _unordered(analysis, module):
            why = "the order of this set differs from process to process: sort it"
            raise NotWrapped(why, places.site(node, module))
        for assigned in every(ast.Assign, module.tree):
            target, value = ast.unparse(assigned.targets[0]), assigned.value
            if "CUDA_VISIBLE_DEVICES" in target and isinstance(value, ast.Constant) and "," not in str(value.value):
                raise NotWrapped("it hides all GPUs but one", places.site(assigned, module))


def _refuse_early_draws(analysis: Analysis) -> None:
    """Raise NotWrapped where a file draws numbers as it is imported, in front of what makes them alike in all."""
    for module in analysis.execution.modules.values():
        rest = (*FUNCTIONS, ast.ClassDef, ast.If, ast.Import, ast.ImportFrom)
        plain = [each for each in module.tree.body if not isinstance(each, rest) and not _is_text(each)]
        if module is analysis.execution.entry or any("seed(" in ast.unparse(each) for each in plain):
            continue
        for each in plain:
            text = ast.unparse(each)
            drawn = any(pattern.search(text) for pattern in (*_DRAWING.values(), _SPLITTING))
            if drawn and "random_state" not in text:
                why = "it draws numbers as it is imported, before the processes agree on any: seed it in front of that"
                raise NotWrapped(why, analysis.facts.places.site(each, module))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _picks_itself(analysis: Analysis, event: Event) -> bool:
    """Whether the classes of a loss are the samples themselves: its target counts them."""
    if event.kind == "call" and not event.name.endswith(".cross_entropy"):
        return False
    target = event.arguments.get("target", 1) if event.arguments is not None else None
    node: ast.AST | None = target.node if target is not None else None
    if isinstance(node, ast.Name):
        owner = analysis.facts.bindings.owner(node.id, node, event.module)
        writes = [each for each in analysis.facts.bindings.writes(owner, node.id) if isinstance(each, ast.Assign)]
        node = writes[-1].value if len(writes) == 1 else None
    return node is not None and any(
        isinstance(each, ast.Call) and dotted(each.func) == "torch.arange" for each in walk(node)
    )


_TEXTS = regex(r"word|token|char|text|label|class|name|vocab|path|file|tag|user|item")


def _unordered(analysis: Analysis, module: ModuleFile) -> Iterator[ast.AST]:
    """The sets of texts that are gone through in their own order, which each process has its own of."""
    for node in every(ast.Call, module.tree):
        if dotted(node.func) not in ("list", "enumerate", "tuple", "iter") or not node.args:
            continue
        given = node.args[0]
        if (isinstance(given, ast.Call) and dotted(given.func) == "set") or isinstance(given, (ast.SetComp, ast.Set)):
            above = analysis.facts.places.parent(node, module)
            if isinstance(above, ast.Call) and dotted(above.func) in ("sorted", "len", "sum", "max", "min"):
                continue
            if _TEXTS.search(ast.unparse(given).lower()):
                yield node


def _indexed(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[tuple[Site, str]]:
    """The literals by which a program names one GPU."""
    places = analysis.facts.places
    for module in modules:
        for node in every(ast.Constant, module.tree):
            if isinstance(node.value, str) and _ONE_GPU.fullmatch(node.value):
                yield places.site(node, module), 'f"cuda:{local_rank}"'
        for call in every(ast.Call, module.tree):
            name = dotted(call.func) or ""
            on_gpu = name.endswith(".cuda") or name in ("torch.cuda.set_device", "torch.device")
            for given in call.args[:1] if on_gpu else ():
                if isinstance(given, ast.Constant) and type(given.value) is int:
                    yield places.site(given, module), "local_rank"


def _unseeded(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[str]:
    """The generators of random numbers that the program draws from, and does not seed."""
    called = {event.name for event in analysis.facts.events if event.kind in ("call", "set")}
    texts = [module.text for module in modules]
    if any(name.rpartition(".")[2] in _SEEDING_ALL[1:] for name in called):
        return
    for name, seeds in _SEEDING.items():
        spoken = name == "torch" or any(_DRAWING[name].search(text) for text in texts)
        spoken = spoken or (name == "numpy" and any(_SPLITTING.search(text) for text in texts))
        seeded = any(each in called for each in seeds) or any(
            f"{'np' if name == 'numpy' else name}.{'random.seed' if name == 'numpy' else seeds[0].partition('.')[2]}("
            in text
            for text in texts
        )
        if spoken and not seeded:
            yield name
