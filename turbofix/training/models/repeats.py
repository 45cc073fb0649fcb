"""Blocks of a model that could be computed a second time instead of kept, where the program lacks memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Made, members
from turbofix.findings import Evidence
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, is_main_test, parameters
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Argument, Loader, Repeated, Step, Training
from turbofix.training.objects import Layers, layers_of

_ENABLED = regex(r"gradient_checkpointing_enable|gradient_checkpointing\s*=\s*True|utils\.checkpoint")
_SWITCHED = regex(r"gradient_checkpointing_enable|utils\.checkpoint")
_SMALL = 2
"""A batch of at most so many samples, of which several make up an update, is as small as memory makes it."""

_FAMILIES = (
    "bert|(?:xlm-?)?roberta|camembert|gpt-?2|gpt-?neo|(?:flan-|m|by)?t5|llama|mistral|qwen|opt|bloom|m?bart|vit|"
    "wav2vec2|whisper"
)
"""Families of transformers whose models can do without their activations; not so SqueezeBERT, and others of BERT's."""

_CLASS = regex(rf"(?i:{_FAMILIES})[\d.]*(?:Model|For|LMHead|DoubleHeads)")
_CHECKPOINT = regex(rf"(?:[\w.-]+/)?(?:{_FAMILIES})(?![a-z])", re.IGNORECASE)
_IN_PLACE = regex(r"\.[a-z]\w*[a-z]_\(|inplace\s*=\s*True|\bprint\(|(?<!torch\.)\brandom\.")
_STATISTICS = ("BatchNorm", "SyncBatchNorm", "InstanceNorm", "spectral_norm", "SpectralNorm")


def repeated(analysis: Analysis, steps: tuple[Step, ...], loaders: tuple[Loader, ...]) -> tuple[Repeated, ...]:
    """What could be computed twice in a program that tells of its lack of memory; nothing where it does not."""
    files = list(analysis.execution.modules.values())
    if not steps or any(_ENABLED.search(_without_comments(each)) for each in files):
        return ()
    scarce = tuple(_scarce(analysis, files, steps, loaders))
    if not scarce:
        return ()
    found: dict[Site, Repeated] = {}
    for event in analysis.facts.of("iterate"):
        each = _blocks(analysis, event, steps, scarce)
        if each is not None:
            found.setdefault(each.call, each)
    trained = {site for step in steps for site in step.models}
    for event in analysis.facts.of("make"):
        for made in members(event.result) if analysis.facts.site(event) in trained else ():
            if (
                isinstance(made, Made)
                and made.qualname.startswith("transformers.")
                and made.kind in ("module", "model")
            ):
                each = _of_library(analysis, event, made, scarce)
                if each is not None:
                    found.setdefault(each.call, each)
    return tuple(found[site] for site in sorted(found))


def _without_comments(module: ModuleFile) -> str:
    return re.sub(r"#.*", "", module.text) if "checkpoint" in module.text else ""


def _scarce(
    analysis: Analysis, files: list[ModuleFile], steps: Iterable[Step], loaders: tuple[Loader, ...]
) -> Iterator[Evidence]:
    """What tells that memory limits a program: it ends where it runs out of it, or batches could not be smaller."""
    for module in (each for each in files if "OutOfMemoryError" in each.text):
        for handler in every(ast.ExceptHandler, module.tree):
            ends = any(isinstance(each, ast.Raise) for each in handler.body)  # to skip a batch leaves room for others
            if ends and (dotted(handler.type) or "").endswith("OutOfMemoryError"):
                yield Evidence("running out of memory ends it", analysis.facts.places.site(handler, module))
    for step in steps:
        many = step.accumulation.steps.values if step.accumulation is not None else ()
        for loader in loaders:
            sizes = loader.argument("batch_size").values
            if loader.site not in step.loaders or len(many) != 1 or len(sizes) != 1:
                continue
            if isinstance(many[0], int) and many[0] > 1 and isinstance(sizes[0], int) and 1 <= sizes[0] <= _SMALL:
                yield Evidence(f"batches of {sizes[0]}, of which {many[0]} make up an update", loader.site)


def _blocks(analysis: Analysis, event: Event, steps: Iterable[Step], evidence: tuple[Evidence, ...]) -> Repeated | None:
    """A loop over a list of blocks in the forward pass of a training step."""
    node, module, facts = event.node, event.module, analysis.facts
    lists = [each for each in members(event.receiver) if isinstance(each, Made)]
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name) or len(lists) != 1:
        return None
    if lists[0].qualname != "torch.nn.ModuleList" or len(members(event.receiver)) != 1:
        return None
    frames = facts.frames(event)
    frame = frames[-1] if frames else None
    cls = frame.function.cls if frame is not None and frame.function is not None else None
    if frame is None or cls is None or not any(base == "torch.nn.Module" for base in cls.externals()):
        return None
    within = {facts.places.site(record.node, record.module) for record in facts.loops(event)}
    if not any(step.loop.site in within for step in steps):
        return None
    calls = [
        each
        for statement in node.body
        for each in walk(statement)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == node.target.id
    ]
    statement = facts.places.statement(calls[0], module) if len(calls) == 1 else None
    first = parameters(frame.scope)[:1]
    if not isinstance(statement, ast.Assign) or statement not in node.body or not first:
        return None
    why = None
    if any(isinstance(each, ast.Starred) for each in calls[0].args) or any(not each.arg for each in calls[0].keywords):
        why = "what the blocks are given is unpacked"
    layers = Layers()
    layers_of(lists[0], layers)
    why = why or _second_time(analysis, layers)
    return Repeated(facts.places.site(calls[0], module), first[0].arg, node.target.id, evidence, why_not=why)


def _second_time(analysis: Analysis, layers: Layers) -> str | None:
    """What a second forward pass of blocks would change, or could change."""
    for name in sorted(layers.names):
        if name.rpartition(".")[2].startswith(_STATISTICS):
            return f"{name.rpartition('.')[2]} would count every batch twice"
    for cls in layers.own:
        if _IN_PLACE.search(analysis.facts.places.text(cls.node, cls.module)):
            return f"something is changed in place, or drawn at random beside torch, in `{cls.node.name}`"
    return None


def _of_library(analysis: Analysis, event: Event, made: Made, evidence: tuple[Evidence, ...]) -> Repeated | None:
    """A model of transformers, made and given a name in one statement."""
    facts, module = analysis.facts, event.module
    statement = facts.places.statement(event.node, module)
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if name is None or not made.qualname.endswith(".from_pretrained"):
        return None
    assert statement is not None
    why = _of_family(made)
    above = facts.places.parent(statement, module)
    if isinstance(above, ast.If) and not is_main_test(above.test):
        why = "the model is made under a test, and perhaps in another way elsewhere"
    why = _frozen(analysis) or why
    return Repeated(facts.places.site(statement, module), name, name, evidence, library=True, why_not=why)


def _of_family(made: Made) -> str | None:
    """Why it is not known that a model has the switch."""
    given = made.arguments.get("pretrained_model_name_or_path", 0)
    names = [each.value for each in members(given.value) if isinstance(each, Const)] if given is not None else []
    by_name = (
        made.qualname.startswith("transformers.Auto") and names and all(_CHECKPOINT.match(str(one)) for one in names)
    )
    known = bool(by_name) or _CLASS.match(made.qualname.split(".")[1]) is not None
    return None if known else "whether this model can do without its activations is not known"


def _frozen(analysis: Analysis) -> str | None:
    """Why a model may not train as a whole."""
    if any("peft" in each.text or "requires_grad" in each.text for each in analysis.execution.modules.values()):
        return "part of the model is frozen, and its inputs would have to take gradients for it"
    return None


def repeated_in_trainings(analysis: Analysis, trainings: tuple[Training, ...]) -> tuple[Repeated, ...]:
    """Trainings of transformers whose settings tell of a lack of memory, by tiny batches."""
    if not trainings or any(_SWITCHED.search(_without_comments(each)) for each in analysis.execution.modules.values()):
        return ()
    return tuple(each for training in trainings for each in _in_training(analysis, training))


def _in_training(analysis: Analysis, training: Training) -> Iterator[Repeated]:
    size, many = (training.argument(name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps"))
    if not (_is_number(size, 1, _SMALL) and _is_number(many, 2, None)):
        return
    said = f"batches of {size.values[0]}, of which {many.values[0]} make up an update"
    evidence = (Evidence(said, size.edit_at or size.site or training.site),)
    sites = {model.site for model in training.models}
    found = [
        made
        for event in analysis.facts.of("make")
        if analysis.facts.site(event) in sites
        for made in members(event.result)
        if isinstance(made, Made) and made.qualname.startswith("transformers.")
    ]
    if not found or len(found) != len(sites):
        return
    why = _frozen(analysis) or next((reason for made in found if (reason := _of_family(made))), None)
    yield Repeated(training.site, "", training.models[0].name or "the model", evidence, why_not=why, setting=True)


def _is_number(given: Argument, least: int, most: int | None) -> bool:
    """Whether an argument is a number in a range, unless the user of the script says otherwise."""
    if given.state not in ("value", "option") or len(given.values) != 1:
        return False
    value = given.values[0]
    return isinstance(value, int) and least <= value and (most is None or value <= most)
