"""All that has to change in a training of one process so that several can run it, one for each GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Option, Unknown, members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.model import (
    Evaluation,
    Loader,
    Model,
    Owner,
    Parallel,
    Step,
)
from turbofix.training.parallel.accelerated import accelerated
from turbofix.training.parallel.decisions import decisions
from turbofix.training.parallel.files import Files
from turbofix.training.parallel.plain import is_plain, scopes_of_models
from turbofix.training.parallel.reading import read_by_steps, refuse_other_reads
from turbofix.training.parallel.rows import shared_calls
from turbofix.training.parallel.sharing import divided, value_of
from turbofix.training.parallel.start import beginning, beside
from turbofix.training.parallel.totals import totals
from turbofix.training.parallel.wrapping import (
    NotWrapped,
    copied,
    differentiates,
    is_normed,
    wrapped,
)
from turbofix.training.script import is_guard
from turbofix.training.steps.training import training_loops

_GPUS = 8  # of a usual machine
_ONE_GPU = regex(r"cuda:\d+")
_ALL = r"(\w+\.)*(seed_everything|set_seed)|"
_SEEDING = {
    "torch": regex(_ALL + r"torch\.manual_seed|manual_seed"),
    "random": regex(_ALL + r"random\.seed"),
    "numpy": regex(_ALL + r"(np|numpy)\.random\.seed"),
}
"""What seeds a generator, or all of them."""
_RESEEDING = frozenset(("random.seed", "numpy.random.seed"))
"""What seeds a generator by chance, where it is given nothing."""
_DRAWING = {
    "numpy": regex(r"\b(np|numpy)\.random\.(?!seed\()"),
    "random": regex(r"(?<![\w.])random\.(random|shuffle|sample|choices?|randint|uniform|randrange|gauss)\("),
}
_DRAWS = regex(
    r"torch\.(rand|bernoulli|multinomial|normal|poisson)|\.(normal|uniform|bernoulli|random|exponential)_\("
    r"|\b(np|numpy)\.random\.|(?<![\w.])random\.\w|\br?sample\("
)
"""What draws random numbers, but for dropout, which an evaluation is without."""
_CHANCE = regex(r"rand|\btime\b|entropy|\bseed\(\)|getpid")
"""What gives each process another number."""
_EVALUATES = regex(r"\.eval\(\)|\.train\((mode=)?False\)")
_BROUGHT = {
    "numpy": regex(
        r"(?m)^\s*(import|from) [^#\n]*\b(numpy|sklearn|scipy|pandas|cv2|skimage|imblearn|librosa|gensim|torchaudio)\b"
    ),
    "random": regex(r"(?m)^\s*(import|from) [^#\n]*\brandom\b"),
}
"""What brings a generator, which libraries draw from as well."""
_SPLITTING = regex(r"train_test_split|KFold|resample\(")
"""What draws from NumPy's generator out of sight."""

_BATCHES = regex(r"squeeze\(|\[0\]|view\(|reshape\(|flatten\(0")
_ITS_OWN = regex(r"SystemRandom|as_completed\(|imap_unordered\(|WebDataset\(")
"""What gives each process something else, and no seed changes that."""
_COMPARED = regex(
    r"\b(\w+) @ \1\.(T\b|t\(\))|(mm|matmul)\((\w+), \4\.(T\b|t\(\)|transpose\(0, 1|transpose\(1, 0)|cdist\((\w+), \6\b"
    r"|(\w+)\.unsqueeze\([01]\), \7\.unsqueeze\([01]\)"
)
"""What compares the samples of a batch with each other looks like."""
_THREADS = regex(r"threading\.Thread\(|(?<!\.)\bThread\(|ThreadPoolExecutor\(")
_LOGGERS = {name: regex(rf"(?m)^\s*(import|from) [^#\n]*\b{name}\b") for name in ("loguru", "hydra")}


def parallel(  # noqa: PLR0913
    analysis: Analysis,
    models: tuple[Model, ...],
    loaders: tuple[Loader, ...],
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
    owners: tuple[Owner, ...] = (),
) -> Parallel | None:
    """What several processes need; None where no steps of the program's own are seen."""
    if not steps:
        return None
    try:
        found = alike(analysis, steps[0].loop.site)
        if owners:
            found = accelerated(analysis, found, owners[0], steps, evaluations)
        else:
            alike_but_rows = _in_step(analysis, found, models, loaders, steps)
            found = _shared_out(analysis, found, models, loaders, steps, evaluations) or alike_but_rows
        return replace(found, beside=beside(analysis, found))
    except NotWrapped as why:
        return Parallel(steps[0].loop.site, hazard=why.hazard)


def alike(analysis: Analysis, loop: Site) -> Parallel:
    """What every training by several processes needs: what one of them does for all, and how they begin.

    Raises:
        NotWrapped: it would go wrong in silence.
    """
    _refuse(analysis)
    modules, files = [*analysis.execution.modules.values()], Files(analysis)
    found = Parallel(
        loop,
        made=tuple(files.made),
        fetching=tuple(files.fetching),
        settled=tuple(files.settled),
        opened=tuple(files.opened),
        both=tuple(files.both),
        receivers=tuple(files.receivers),
        logs=tuple(files.logs),
        writers=tuple(files.writers),
        disabled=tuple(files.disabled),
        bars=tuple(files.bars),
        streams=tuple(files.streams),
        metrics=tuple(files.metrics),
        shown=tuple(files.shown),
        alone=tuple(files.alone),
        told=tuple(files.told.items()),
        contexts=tuple(files.contexts),
        indexed=_devices(analysis, modules),
        hiding=tuple(_hiding(analysis, modules)),
        unseeded=tuple(_unseeded(analysis, modules)),
        loggers=tuple(name for name, pattern in _LOGGERS.items() if any(pattern.search(each.text) for each in modules)),
    )
    return replace(found, beside=beside(analysis, found))


def _in_step(
    analysis: Analysis,
    found: Parallel,
    models: tuple[Model, ...],
    loaders: tuple[Loader, ...],
    steps: tuple[Step, ...],
) -> Parallel:
    """What it takes where all processes do the same, but for the rows that each computes. Raises NotWrapped."""
    sites = {each for step in steps for each in step.loaders}
    batches = [each.argument("batch_size") for each in loaders if each.site in sites]
    loops = [ast.unparse(each.node) for each, *_ in training_loops(analysis)]
    made_inside = any(_BATCHES.search(each) for each in loops)  # each sample of the loader is a batch
    if batches and not made_inside and all(each.values == (1,) and each.state == "value" for each in batches):
        raise NotWrapped("a batch of one sample has no rows to share out", steps[0].loop.site)
    return replace(
        found,
        copied=tuple(dict.fromkeys(copied(analysis))),
        same=tuple(_same(analysis)),
        shared=shared_calls(analysis, models, steps),
        normed=any(is_normed(analysis, each) for each in models),
        synchronised=not differentiates(analysis),
    )


def _shared_out(  # noqa: PLR0913
    analysis: Analysis,
    found: Parallel,
    models: tuple[Model, ...],
    loaders: tuple[Loader, ...],
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
) -> Parallel | None:
    """What it takes to share out a loader, where nothing that a process does hangs on its share of the data."""
    places, sites = analysis.facts.places, {each.loop.site for each in steps}
    loops = [each for each, *_ in training_loops(analysis) if places.site(each.node, each.module) in sites]
    if len(loops) != 1 or any(each.wrapped is not None for each in models):
        return None
    if any("torch.nn.BatchNorm1d" in each.layers for each in models):
        return None  # on CPUs they take no share of one sample
    try:
        _refuse_pairs(analysis)
        whole = tuple(wrapped(analysis, models, steps))
        read = read_by_steps(analysis, steps)
        data = tuple(divided(analysis, loaders, steps, read))
        refuse_other_reads(analysis, read, steps)
    except NotWrapped:
        return None
    sites = {each.loader for each in data}
    sizes = {size for each in loaders if each.site in sites for size in each.argument("batch_size").values}
    if any(type(size) is int and size % _GPUS for size in sizes):
        return None  # what some numbers of processes could not divide
    if _is_by_chance(analysis, [each for each in loaders if each.site not in sites and each.role != "unused"]):
        return None  # each process would evaluate otherwise, and decide otherwise
    counted = totals(analysis, loops[0])
    outer = analysis.facts.loops(analysis.facts.of("backward")[0])[0]
    chosen = replace(
        found,
        loop=places.site(outer.node, outer.module),
        models=whole,
        loaders=data,
        apart=tuple(_apart(analysis)),
        totals=(counted,) if counted is not None else (),
    )
    if not is_plain(analysis, chosen, loops[0]):
        return None
    called = next(each.node.func for each in analysis.facts.events_in(loops[0].node) if each.kind == "forward")  # type: ignore[attr-defined]
    site = places.site(called, loops[0].module)
    text = dict(whole[0].uses).get(site, ast.unparse(called))
    behind = (places.site(loops[0].node, loops[0].module), text)
    return replace(chosen, buffers=(behind,) if whole[0].normed else (), decisions=tuple(decisions(analysis, loops)))


def _is_by_chance(analysis: Analysis, others: list[Loader]) -> bool:
    """Whether what else is read, or what layers compute, hangs on random numbers, of which a process has its own."""
    for each in others:
        shuffled = each.argument("shuffle")
        in_order = shuffled.state == "absent" or (shuffled.state == "value" and not any(shuffled.values))
        if each.dataset.random or each.dataset.kind == "unknown" or not in_order:
            return True
    texts = [module.text for module in analysis.execution.modules.values()]
    dropped = bool(others) and any("ropout" in each for each in texts) and not any(map(_EVALUATES.search, texts))
    return dropped or any(_DRAWS.search(ast.unparse(each)) for each in scopes_of_models(analysis))


def _apart(analysis: Analysis) -> Iterator[str]:
    """The generators from which each process is to draw numbers of its own, once its data are shared out."""
    yield "torch"
    for name, pattern in _DRAWING.items():
        if any(pattern.search(module.text) for module in analysis.execution.modules.values()):
            yield name


def _refuse_pairs(analysis: Analysis) -> None:
    """Raise NotWrapped for losses over pairs of samples, of which a process would have those of its share alone."""
    places = analysis.facts.places
    for frame in analysis.facts.opened():
        name = getattr(frame.scope, "name", "")
        if name and not isinstance(frame.scope, ast.ClassDef) and _COMPARED.search(ast.unparse(frame.scope)):
            raise NotWrapped("samples of a batch are compared with each other", places.site(frame.scope, frame.module))
    for event in analysis.facts.of("criterion", "call"):
        if _picks_itself(analysis, event):
            raise NotWrapped("each sample of a batch is told from the other ones", analysis.facts.site(event))


def _refuse(analysis: Analysis) -> None:
    """Raise NotWrapped for what would go wrong in silence."""
    places = analysis.facts.places
    entry = analysis.execution.entry
    if entry.path.suffix == ".ipynb":
        raise NotWrapped("torchrun starts scripts, no notebooks", places.site(entry.tree, entry))
    for module in analysis.execution.modules.values():
        tree, own = places.site(module.tree, module), _ITS_OWN.search(module.text)
        if own is not None:
            raise NotWrapped(f"`{own[0].rstrip('(')}` gives each process something else", tree)
        if (threads := _THREADS.search(module.text)) is not None:
            why = f"`{threads[0].rstrip('(')}` may come to where processes wait for each other in another order"
            raise NotWrapped(why, tree)


def _same(analysis: Analysis) -> Iterator[Site]:
    """The classes of loaders that are to give all processes the batches of the first, where they would differ."""
    modules = [*analysis.execution.modules.values()]
    classes = [each for module in modules for each in every(ast.ClassDef, module.tree)]
    loaders = {each.name for each in classes if any((dotted(base) or "").endswith("DataLoader") for base in each.bases)}
    for module in modules:
        entry = module is analysis.execution.entry
        for call in every(ast.Call, module.tree):
            name = analysis.facts.offered(call.func, module) or ""
            own = not name and (dotted(call.func) or "").rpartition(".")[2] in loaders
            aside = not entry and any(is_guard(each) for each in analysis.facts.places.ancestors(call, module))
            if (own or name.rpartition(".")[2] == "DataLoader") and not aside:
                yield analysis.facts.places.site(call.func, module)


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


def _devices(analysis: Analysis, modules: list[ModuleFile]) -> tuple[tuple[Site, str], ...]:
    """What may name another GPU than the first, and the files that may hold tensors of it."""
    found = dict.fromkeys(_indexed(analysis, modules))
    if any("world_size > 1" in text or "visible" in text for _, text in found):
        cards = 'map_location={f"cuda:{each}": "cuda:0" for each in range(16)} if world_size > 1 else None'
        for module in modules:
            for call in every(ast.Call, module.tree):
                reads = analysis.facts.offered(call.func, module) == "torch.load" and len(call.args) == 1
                if reads and not any(each.arg in ("map_location", None) for each in call.keywords):
                    found[analysis.facts.places.site(call.args[0], module), f"OLD, {cards}"] = None
    return tuple(found)


def _indexed(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[tuple[Site, str]]:
    """What may name another GPU than the first, and what it is where a process sees one alone; OLD stands there now."""
    places, first = analysis.facts.places, "0 if world_size > 1 else OLD"
    classes = {each.name for module in modules for each in every(ast.ClassDef, module.tree)}
    placing: dict[int, list[tuple[ast.expr, list[Option]]]] = {}
    for call, moved, options in _placing(analysis, modules):
        placing.setdefault(id(call), []).append((moved, options))
    devices = {one.name for some in placing.values() for _, options in some for one in options if one.how == "argparse"}
    for module in modules:
        for node in every(ast.Constant, module.tree):
            if isinstance(node.value, str) and _ONE_GPU.fullmatch(node.value) and node.value != "cuda:0":
                yield places.site(node, module), '"cuda:0" if world_size > 1 else OLD'
        for text in every(ast.JoinedStr, module.tree):
            head, *rest = text.values
            if isinstance(head, ast.Constant) and head.value == "cuda:" and len(rest) == 1:
                yield places.site(rest[0].value, module), first  # type: ignore[attr-defined]
        for added in every(ast.BinOp, module.tree):
            if isinstance(added.left, ast.Constant) and added.left.value == "cuda:":
                yield places.site(added.right, module), f"str({first.replace('OLD', '(OLD)')})"
            elif isinstance(added.left, ast.Constant) and added.left.value in ("cuda:%d", "cuda:%s", "cuda:%i"):
                yield places.site(added.right, module), f"({first})"
        for test in every(ast.Compare, module.tree):  # whether there are so many
            sides = [test.left, *test.comparators]
            if any(isinstance(each, ast.Call) and (dotted(each.func) or "").endswith("device_count") for each in sides):
                parts = [
                    part
                    for each in sides
                    for part in ((each.left, each.right) if isinstance(each, ast.BinOp) else (each,))
                ]
                named = [each for each in parts if isinstance(each, (ast.Name, ast.Attribute))]
                yield from ((places.site(each, module), f"({first})") for each in named)
        for call in every(ast.Call, module.tree):
            torch_s = (dotted(call.func) or "").endswith(".seed") and "torch" in module.text
            torch_s = torch_s and isinstance(places.parent(call, module), ast.Expr)
            by_chance = torch_s or analysis.facts.offered(call.func, module) in _RESEEDING
            if by_chance and not (call.args or call.keywords):
                yield places.site(call, module), "OLD(DRAWN)"
            if analysis.facts.offered(call.func, module) == "torch.cuda.device_count":
                yield places.site(call, module), "OLD * world_size"  # of which a process sees one
            if analysis.facts.offered(call.func, module) == "torch.distributed.is_initialized":
                yield places.site(call, module), "False"  # each process does what one would do alone
            name = dotted(call.func) or ast.unparse(call.func)
            if name == "torch.device" and len(call.args) == 1 and not isinstance(call.args[0], ast.Starred):
                for each in _chosen(analysis, call.args[0], module):
                    yield places.site(each, module), "visible(OLD)"
            if _names(call) & devices and _is_text(call):  # an option that is given to a model or a tensor as it stands
                typed = [each.value for each in call.keywords if each.arg == "type"]
                last = (*typed, *call.args)[0 if typed else -1]
                yield places.site(last, module), "visible" if typed else "OLD, type=visible"
            for each, options in placing.get(id(call), ()):
                if any(one.how != "argparse" for one in options):
                    yield places.site(each, module), "visible(OLD)"
            takes = {"torch.cuda.set_device": 0, "torch.device": 0 if len(call.args) == 1 else 1}
            at = 0 if name.endswith((".cuda", "'cuda:{}'.format")) and len(call.args) == 1 else takes.get(name)
            of_class = name.rpartition(".")[0].rpartition(".")[2] in classes  # whose argument is what it moves
            plain = len(call.args) > (at or 0) and not any(isinstance(each, ast.Starred) for each in call.args)
            given = call.args[at] if at is not None and plain and not of_class else None
            counts = isinstance(given, ast.Constant) and type(given.value) is int and given.value > 0
            if counts or (given is not None and not isinstance(given, ast.Constant) and (at or name != "torch.device")):
                yield places.site(given, module), first  # type: ignore[arg-type]


def _placing(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[tuple[ast.Call, ast.expr, list[Option]]]:
    """The options that name a device, in calls that something is moved by."""
    for module in modules:
        for call in every(ast.Call, module.tree):
            to = call.args[:1] if isinstance(call.func, ast.Attribute) and call.func.attr == "to" else []
            for each in [*to, *(each.value for each in call.keywords if each.arg in ("device", "map_location"))]:
                options = [one for one in members(value_of(analysis, each, module)) if isinstance(one, Option)]
                options = [one for one in options if isinstance(one.default, Const) and not one.derived]
                options = [one for one in options if type(one.default.value) in (str, type(None))]  # type: ignore[attr-defined]
                if options:
                    yield call, each, options


def _names(call: ast.Call) -> set[object]:
    """What an option of a command line is called, if a call declares one."""
    declares = (dotted(call.func) or "").rpartition(".")[2] == "add_argument"
    return {each.value for each in call.args if isinstance(each, ast.Constant)} if declares else set()


def _is_text(call: ast.Call) -> bool:
    """Whether an option is declared to be any text."""
    told = {each.arg: ast.unparse(each.value) for each in call.keywords}
    plain = all(isinstance(each, ast.Constant) for each in call.args)
    return plain and told.get("type", "str") == "str" and {"action", "nargs", "choices", None}.isdisjoint(told)


def _chosen(analysis: Analysis, device: ast.expr, module: ModuleFile) -> Iterator[ast.expr]:
    """The parts of a device's name that may hold any number, as options do."""
    if isinstance(device, ast.IfExp):
        yield from _chosen(analysis, device.body, module)
        yield from _chosen(analysis, device.orelse, module)
    elif isinstance(device, ast.BoolOp):
        for each in device.values:
            yield from _chosen(analysis, each, module)
    elif isinstance(device, (ast.Name, ast.Attribute, ast.Subscript)):
        held = members(value_of(analysis, device, module))
        if not held or not all(isinstance(each, Const) for each in held):
            yield device


def _hiding(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[Site]:
    """The statements that hide all GPUs but some from the process."""
    imported = beginning(analysis.execution.entry, analysis.facts.places)
    for module in modules:
        for node in every(ast.Assign, module.tree):
            several = isinstance(node.value, ast.Constant) and "," in str(node.value.value)
            site = analysis.facts.places.site(node, module)
            early = several and site.path == imported.path and site < imported  # of these each process takes one
            if "CUDA_VISIBLE_DEVICES" in ast.unparse(node.targets[0]) and not early:
                yield site


def _unseeded(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[str]:
    """The generators of random numbers that the program draws from, and does not always seed."""
    calls = [(call, module) for module in modules for call in every(ast.Call, module.tree)]
    own = {each.name for module in modules for each in every(ast.FunctionDef, module.tree)}  # which seed what they do
    named = [(dotted(call.func) or "", call, module) for call, module in calls]
    named = [each for each in named if each[0].rpartition(".")[2] not in own]
    for name, pattern in _SEEDING.items():
        spoken = name == "torch" or any(_BROUGHT[name].search(module.text) for module in modules)
        seeding = [(call, module) for text, call, module in named if pattern.fullmatch(text)]
        if spoken and not any(_is_sure(analysis, call, module, calls) for call, module in seeding):
            yield name


def _is_sure(
    analysis: Analysis, call: ast.Call, module: ModuleFile, calls: list[tuple[ast.Call, ModuleFile]], depth: int = 3
) -> bool:
    """Whether a call is made in every run: under no test, in a function of which that holds as well."""
    function: ast.AST | None = None
    seeds = [each for given in call.args[:1] for each in members(value_of(analysis, given, module))]
    told = {dotted(each) for each in call.args[:1]} - {None}
    for each in analysis.execution.modules.values():
        settings = [one for one in every(ast.Assign, each.tree) if {dotted(target) for target in one.targets} & told]
        if any(_CHANCE.search(ast.unparse(one.value)) for one in settings):
            return False
    if any(isinstance(each, Unknown) for each in seeds):
        return False  # it may be drawn, which each process would do by itself
    for above in analysis.facts.places.ancestors(call, module):
        of_entry = is_guard(above) and module is analysis.execution.entry
        if isinstance(above, (ast.If, ast.IfExp, ast.Try)) and not of_entry:
            return False
        if isinstance(above, FUNCTIONS):
            function = above
            break
    if function is None:
        return True
    name = getattr(function, "name", "")
    callers = [each for each in calls if (dotted(each[0].func) or "").rpartition(".")[2] == name]
    return bool(depth) and any(_is_sure(analysis, *each, calls, depth - 1) for each in callers)
