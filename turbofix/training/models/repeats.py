"""Blocks of a model that could be computed a second time instead of kept, where the program lacks memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, members
from turbofix.findings import Evidence
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, parameters
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Loader, Repeated, Step, Training
from turbofix.training.objects import Layers, layers_of

_ENABLED = regex(r"gradient_checkpointing_enable|utils\.checkpoint|gradient_checkpointing\s*=\s*True")
_SMALL = 2
"""A batch of at most so many samples, of which several make up an update, is as small as memory makes it."""

_IN_PLACE = regex(r"\.[a-z]\w*[a-z]_\(|inplace\s*=\s*True|\bprint\(|(?<!torch\.)\brandom\.")
_STATISTICS = ("BatchNorm", "SyncBatchNorm", "InstanceNorm", "spectral_norm", "SpectralNorm")


def repeated(analysis: Analysis, steps: tuple[Step, ...], loaders: tuple[Loader, ...]) -> tuple[Repeated, ...]:
    """What could be computed twice in a program that tells of its lack of memory; nothing where it does not."""
    scarce = tuple(_scarce(analysis, steps, loaders))
    if not scarce or _is_there(analysis):
        return ()
    found: dict[Site, Repeated] = {}
    trained = {site for step in steps for site in step.models}
    for event in analysis.facts.of("iterate", "make"):
        each = _blocks(analysis, event, steps, scarce)
        if event.kind == "make" and analysis.facts.site(event) in trained:
            each = _of_library(analysis, event, scarce)
        if each is not None:
            found.setdefault(each.call, each)
    return tuple(found[site] for site in sorted(found))


def _is_there(analysis: Analysis) -> bool:
    """Whether something is computed a second time already."""
    texts = (each.text for each in analysis.execution.modules.values() if "checkpoint" in each.text)
    return any(_ENABLED.search(re.sub(r"#.*", "", each)) for each in texts)


def _scarce(analysis: Analysis, steps: Iterable[Step], loaders: tuple[Loader, ...]) -> Iterator[Evidence]:
    """What tells that memory limits a program: it ends where it runs out of it, or batches could not be smaller."""
    for module in analysis.execution.modules.values():
        for handler in every(ast.ExceptHandler, module.tree) if "OutOfMemoryError" in module.text else ():
            ends = any(isinstance(each, ast.Raise) for each in handler.body)  # to skip a batch leaves room for others
            if ends and (dotted(handler.type) or "").endswith("OutOfMemoryError"):
                yield Evidence("running out of memory ends it", analysis.facts.places.site(handler, module))
    for step in steps:
        many = step.accumulation.steps.values if step.accumulation is not None else ()
        for loader in loaders:
            sizes = loader.argument("batch_size").values
            if loader.site in step.loaders and _is_between(many, 2, None) and _is_between(sizes, 1, _SMALL):
                yield Evidence(f"batches of {sizes[0]}, of which {many[0]} make up an update", loader.site)


def _is_between(values: tuple[object, ...], least: int, most: int | None) -> bool:
    """Whether a value is one number in a range."""
    value = values[0] if len(values) == 1 else None
    return isinstance(value, int) and least <= value and (most is None or value <= most)


def _blocks(analysis: Analysis, event: Event, steps: Iterable[Step], evidence: tuple[Evidence, ...]) -> Repeated | None:
    """A loop over a list of blocks in the forward pass of a training step."""
    node, facts, frames = event.node, analysis.facts, analysis.facts.frames(event)
    lists = [each for each in members(event.receiver) if getattr(each, "qualname", "") == "torch.nn.ModuleList"]
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name) or len(lists) != 1 or not frames:
        return None
    own, name = parameters(frames[-1].scope)[:1], node.target.id
    within = {facts.places.site(record.node, record.module) for record in facts.loops(event)}
    calls = [
        each for one in node.body for each in walk(one) if isinstance(each, ast.Call) and dotted(each.func) == name
    ]
    statement = facts.places.statement(calls[0], event.module) if len(calls) == 1 else None
    if not own or not isinstance(statement, ast.Assign) or not any(step.loop.site in within for step in steps):
        return None
    layers = Layers()
    layers_of(lists[0], layers)
    why = _second_time(analysis, layers)
    return Repeated(facts.places.site(calls[0], event.module), own[0].arg, name, evidence, why_not=why)


def _second_time(analysis: Analysis, layers: Layers) -> str | None:
    """What a second forward pass of blocks would change, or could change."""
    for name in sorted(layers.names):
        if name.rpartition(".")[2].startswith(_STATISTICS):
            return f"{name.rpartition('.')[2]} would count every batch twice"
    for cls in layers.own:
        if _IN_PLACE.search(analysis.facts.places.text(cls.node, cls.module)):
            return f"something is changed in place, or drawn at random beside torch, in `{cls.node.name}`"
    return None


def _is_of_transformers(event: Event) -> bool:
    """Whether a library's model is made of a checkpoint."""
    made = [each for each in members(event.result) if isinstance(each, Made)]
    return bool(made) and all(re.match(r"transformers\..*\.from_pretrained$", each.qualname) for each in made)


def _of_library(analysis: Analysis, event: Event, evidence: tuple[Evidence, ...]) -> Repeated | None:
    """A model of transformers, made and given a name in one statement."""
    statement = analysis.facts.places.statement(event.node, event.module)
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if statement is None or name is None or not _is_of_transformers(event):
        return None
    site = analysis.facts.places.site(statement, event.module)
    return Repeated(site, name, name, evidence, library=True, why_not=_frozen(analysis))


def _frozen(analysis: Analysis) -> str | None:
    """Why a model may not train as a whole."""
    if any("peft" in each.text or "requires_grad" in each.text for each in analysis.execution.modules.values()):
        return "part of the model is frozen, and its inputs would have to take gradients for it"
    return None


def repeated_in_trainings(analysis: Analysis, trainings: tuple[Training, ...]) -> tuple[Repeated, ...]:
    """Trainings of transformers whose settings tell of a lack of memory, by tiny batches."""
    return tuple(each for training in trainings if not _is_there(analysis) for each in _in_training(analysis, training))


def _in_training(analysis: Analysis, training: Training) -> Iterator[Repeated]:
    given = [training.argument(name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")]
    size, many = (each.values if each.state in ("value", "option") else () for each in given)
    sites = {model.site for model in training.models}
    made = [each for each in analysis.facts.of("make") if analysis.facts.site(each) in sites]
    if _is_between(size, 1, _SMALL) and _is_between(many, 2, None) and made and all(map(_is_of_transformers, made)):
        said = f"batches of {size[0]}, of which {many[0]} make up an update"
        evidence = (Evidence(said, given[0].edit_at or given[0].site or training.site),)
        name = training.models[0].name or "the model"
        yield Repeated(training.site, "", name, evidence, why_not=_frozen(analysis), setting=True)
