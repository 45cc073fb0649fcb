"""All that has to change in a training of one process so that several can run it, one for each GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import (
    Evaluation,
    Loader,
    Model,
    Owner,
    Parallel,
    Step,
)
from turbofix.training.parallel.decisions import decisions
from turbofix.training.parallel.files import Files
from turbofix.training.parallel.plain import is_plain, scopes_of_models
from turbofix.training.parallel.reading import read_by_steps, refuse_other_reads
from turbofix.training.parallel.rows import shared_calls
from turbofix.training.parallel.sharing import divided
from turbofix.training.parallel.start import beside
from turbofix.training.parallel.totals import totals
from turbofix.training.parallel.wrapping import (
    NotWrapped,
    copied,
    is_normed,
    wrapped,
)
from turbofix.training.steps.training import training_loops

_GPUS = 8  # of a usual machine
_DRAWING = {
    "numpy": regex(r"\b(np|numpy)\.random\.(?!seed\()"),
    "random": regex(r"(?<![\w.])random\.(random|shuffle|sample|choices?|randint|uniform|randrange|gauss)\("),
}
_DRAWS = regex(
    r"torch\.(rand|bernoulli|multinomial|normal|poisson)|\.(normal|uniform|bernoulli|random|exponential)_\("
    r"|\b(np|numpy)\.random\.|(?<![\w.])random\.\w|\br?sample\("
)
"""What draws random numbers, but for dropout, which an evaluation is without."""
_EVALUATES = regex(r"\.eval\(\)|\.train\((mode=)?False\)")
_BATCHES = regex(r"squeeze\(|\[0\]|view\(|reshape\(|flatten\(0")
_FOR_SEVERAL = regex(r"\b(is_(local_)?main_process|num_processes|process_index|wait_for_everyone|gather_for_metrics)\b")
"""What says that Accelerate's script is for several processes."""
_COMPARED = regex(
    r"\b(\w+) @ \1\.(T\b|t\(\))|(mm|matmul)\((\w+), \4\.(T\b|t\(\)|transpose\(0, 1|transpose\(1, 0)|cdist\((\w+), \6\b"
    r"|(\w+)\.unsqueeze\([01]\), \7\.unsqueeze\([01]\)"
)
"""What compares the samples of a batch with each other looks like."""


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
        if owners and any(_FOR_SEVERAL.search(each.text) for each in analysis.execution.modules.values()):
            why = "Accelerate trains it by several processes as it is: `accelerate launch` starts them"
            raise NotWrapped(why, owners[0].site)
        found = _by_rows(analysis, models, loaders, steps)
        shares = None if owners else _shared_out(analysis, models, loaders, steps, evaluations)
        shares = replace(shares, beside=beside(analysis, shares)) if shares is not None else None
        return replace(found, beside=beside(analysis, found), by_shares=shares)
    except NotWrapped as why:
        return Parallel(steps[0].loop.site, hazard=why.hazard)


def alike(analysis: Analysis, loop: Site) -> Parallel:
    """What every training by several processes needs: what one of them does for all, and how they begin.

    Raises:
        NotWrapped: it would go wrong in silence.
    """
    _refuse_notebooks(analysis)
    files = Files(analysis)
    if files.other is not None:
        raise NotWrapped("it does more beside the training than to print, to show a bar and to save", files.other)
    found = Parallel(loop, made=tuple(files.made), fetching=tuple(files.fetching), bars=tuple(files.bars))
    return replace(found, beside=beside(analysis, found))


def _by_rows(
    analysis: Analysis, models: tuple[Model, ...], loaders: tuple[Loader, ...], steps: tuple[Step, ...]
) -> Parallel:
    """What it takes where one process runs the script, and all compute rows of what it gives to models.

    Raises:
        NotWrapped: no rows are seen, or it is no script.
    """
    _refuse_notebooks(analysis)
    sites = {each for step in steps for each in step.loaders}
    batches = [each.argument("batch_size") for each in loaders if each.site in sites]
    loops = [ast.unparse(each.node) for each, *_ in training_loops(analysis)]
    made_inside = any(_BATCHES.search(each) for each in loops)  # each sample of the loader is a batch
    if batches and not made_inside and all(each.values == (1,) and each.state == "value" for each in batches):
        raise NotWrapped("a batch of one sample has no rows to share out", steps[0].loop.site)
    return Parallel(
        steps[0].loop.site,
        copied=tuple(dict.fromkeys(copied(analysis))),
        shared=shared_calls(analysis, models, steps),
        normed=any(is_normed(analysis, each) for each in models),
    )


def _shared_out(
    analysis: Analysis,
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
        found = alike(analysis, steps[0].loop.site)
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


def _refuse_notebooks(analysis: Analysis) -> None:
    entry = analysis.execution.entry
    if entry.path.suffix == ".ipynb":
        raise NotWrapped("torchrun starts scripts, no notebooks", analysis.facts.places.site(entry.tree, entry))


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
