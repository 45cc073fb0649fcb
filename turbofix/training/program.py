"""From the event log to the frozen model of a training: all that the other files of this room find, in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.dataflow.facts import Facts
from turbofix.dataflow.placements import UNKNOWN_PLACE
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Instance, Made, members
from turbofix.interpreter.execution import Beside, Execution, Reader, execute, nothing_beside
from turbofix.library.tables import STARTERS
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import dotted
from turbofix.source.site import Site, tell_apart
from turbofix.training.checkpoints import run
from turbofix.training.data.loaders import loaders, with_use
from turbofix.training.data.numbered import numbered
from turbofix.training.data.paddings import paddings
from turbofix.training.data.preloading import preloads
from turbofix.training.data.rebuilt import rebuilts
from turbofix.training.data.remembered import remembered
from turbofix.training.data.same_items import same_items
from turbofix.training.devices.chosen import held_back
from turbofix.training.devices.factories import creations, in_passes
from turbofix.training.devices.indices import made_to_index
from turbofix.training.devices.unplaced import unplaced
from turbofix.training.frameworks.configurations import told_by
from turbofix.training.frameworks.in_charge import framework_of
from turbofix.training.frameworks.lightning import with_feeding
from turbofix.training.frameworks.owners import hands_over, is_owner, moves, owners, placed
from turbofix.training.frameworks.trainings import trainings
from turbofix.training.model import (
    Biases,
    Evaluation,
    Framework,
    Layouts,
    Model,
    Modules,
    Owner,
    Placement,
    Target,
    TrainingProgram,
)
from turbofix.training.models.attention import attentions, fused_attentions
from turbofix.training.models.biases import biases
from turbofix.training.models.compiling import with_compiling
from turbofix.training.models.formulas import formulas
from turbofix.training.models.layouts import layouts
from turbofix.training.models.listed import listed
from turbofix.training.models.out_of_memory import repeated
from turbofix.training.models.weights import unwanted_weights
from turbofix.training.models.wrappings import wrappings
from turbofix.training.objects import models
from turbofix.training.optimizers.optimizer import optimizers
from turbofix.training.parallel.parallel import parallel
from turbofix.training.parallel.pipelined import staged
from turbofix.training.parallel.sharding import shardings
from turbofix.training.parallel.stages import stages
from turbofix.training.parallel.wrapping import COPYING
from turbofix.training.precision import precision, settings
from turbofix.training.script import script
from turbofix.training.steps.averages import averagings
from turbofix.training.steps.evaluations import evaluations_of
from turbofix.training.steps.graphless import samplings
from turbofix.training.steps.old_amp import old_names
from turbofix.training.steps.planned import schedule
from turbofix.training.steps.training import training_steps
from turbofix.training.told.habits import habits
from turbofix.training.told.overlooked import overlooked
from turbofix.training.told.removed import removed


def analyse(
    entry: Path, root: Path, read: Reader, target: Target, beside: Beside = nothing_beside
) -> TrainingProgram | None:
    """Execute a script abstractly and say what it does as a training program; None where it has no text or no syntax.

    ``root`` is the folder above which no module of the project is looked for; ``read`` gives the text of a file;
    ``beside`` lists the project's files, those that the script does not import among them.
    """
    execution = execute(entry, root, read, beside)
    if execution is None:
        return None
    tell_apart(entry, {entry, *(each.path for each in execution.modules.values())})
    analysis = Analysis(execution)
    program = program_of(analysis, target)
    analysis.close()
    return program


def _knows_devices(analysis: Analysis) -> bool:
    """Whether a program says "cuda" somewhere, or moves things to a device that somebody else names."""
    texts = [module.text for module in analysis.execution.modules.values()]
    if any("cuda" in text or "torch.accelerator" in text for text in texts):
        return True
    moved = (event for event in analysis.facts.of("transfer") if event.name == "to")
    return any(analysis.devices.of_transfer(event).where == "unknown" for event in moved)


def program_of(analysis: Analysis, target: Target) -> TrainingProgram:
    """The training program that an abstract execution shows."""
    execution, facts = analysis.execution, analysis.facts
    held = held_back(analysis)
    analysis.devices.held = bool(held)
    known_models = models(analysis)
    steps = tuple(sorted(training_steps(analysis, known_models), key=lambda step: step.loop.site))
    framework = framework_of(analysis, bool(steps))
    trains = bool(steps) or framework not in (Framework.PYTORCH, Framework.NONE)
    # A program that trains nothing is not sped up: its loops, which may be many, need not be known.
    evaluations = tuple(sorted(evaluations_of(analysis, steps, known_models), key=_place) if trains else ())
    made = optimizers(analysis, steps, known_models)
    read = with_feeding(analysis, with_use(analysis, loaders(analysis), steps, evaluations), framework)
    complete, reason = _completeness(execution, analysis)
    holders = owners(analysis)
    asked = trainings(analysis, framework)
    names_cuda = any(each.option for each in held) if held else _knows_devices(analysis)
    passing = in_passes(analysis) if trains and not steps else []
    return TrainingProgram(
        entry=execution.entry.path,
        files=tuple(sorted(execution.modules)),
        modules=Modules(execution.modules),
        framework=framework,
        complete=complete,
        trains=trains,
        device=_placed(analysis, _join_devices([step.device for step in steps] or [m.device for m in known_models])),
        names_cuda=names_cuda,
        script=script(analysis),
        target=_fitting(execution, target),
        steps=steps,
        evaluations=evaluations,
        loaders=read,
        remembered=remembered(analysis) if trains and names_cuda else (),
        numbered=numbered(analysis) if trains else {},
        preloads=preloads(analysis, read, steps, framework) if trains else (),
        optimizers=made,
        models=with_compiling(analysis, known_models, steps) if _may_compile(framework, known_models) else known_models,
        wrappings=wrappings(analysis) if trains else (),
        precision=precision(analysis),
        settings=settings(analysis),
        distributed=_calls(facts.events, "torch.distributed.init_process_group", "deepspeed.init_distributed"),
        processes=_starts_processes(facts),
        incomplete_because=reason,
        unfollowed=() if trains else execution.unfollowed,
        libraries=_libraries(execution),
        thaws=tuple(sorted(_thaws(analysis))),
        removed=removed(analysis, _fitting(execution, target)),
        owners=holders,
        trainings=asked,
        hands_over=hands_over(analysis, holders),
        layouts=layouts(analysis, known_models) if trains else Layouts(),
        biases=biases(analysis) if trains else Biases(),
        placed=placed(analysis),
        schedule=schedule(analysis),
        old_names=old_names(analysis),
        creations=(*creations(analysis, passing, None), *made_to_index(analysis, passing, None)),
        averagings=averagings(analysis, steps),
        repeated=repeated(analysis, asked),
        run=run(analysis, steps, read) if framework in (Framework.PYTORCH, Framework.ACCELERATE) else None,
        rebuilt=rebuilts(analysis) if trains else (),
        attentions=attentions(analysis) if trains else (),
        unwanted=unwanted_weights(analysis) if trains else (),
        fused_attentions=fused_attentions(analysis) if trains else (),
        listed=listed(analysis) if trains else (),
        formulas=formulas(analysis) if trains else (),
        same_items=same_items(analysis, read, steps) if trains else (),
        paddings=paddings(analysis, steps) if trains else (),
        samplings=samplings(analysis, steps, evaluations) if trains else (),
        held=held if trains else (),
        parallel=parallel(analysis, known_models, tuple(read), steps, evaluations, _accelerators(framework, holders))
        if framework in (Framework.PYTORCH, Framework.ACCELERATE) and _is_for_several(analysis, target)
        else None,
        shardings=tuple(shardings(analysis, made, known_models)) if target.zero and trains else (),
        stages=tuple(stages(analysis)) if framework is Framework.DEEPSPEED else (),
        staged=staged(analysis, known_models, steps)
        if framework is Framework.PYTORCH and target.pipeline > 1
        else None,
        unplaced=unplaced(analysis, steps, evaluations, known_models, framework),
        habits=tuple(habits(analysis, steps)) if trains else (),
        overlooked=tuple(overlooked(analysis, (*steps, *evaluations)))
        if trains and (names_cuda or framework in (Framework.LIGHTNING, Framework.TRANSFORMERS))
        else (),
        told_by=told_by(analysis),
        guessed=execution.guessed,
        acts_on=frozenset((module.path, line) for module, line in _lines(facts.events, execution.entry)),
    )


def _accelerators(framework: Framework, owners: tuple[Owner, ...]) -> tuple[Owner, ...]:
    return owners if framework is Framework.ACCELERATE else ()


def _is_for_several(analysis: Analysis, target: Target) -> bool:
    """Whether a training is to run on several GPUs, or does so in one process."""
    return target.gpus > 1 or any(each.name == COPYING for each in analysis.facts.events if each.kind == "wrap")


def _may_compile(framework: Framework, models: Iterable[Model]) -> bool:
    """Whether what compiling takes is of use: frameworks that compile by themselves are told to by other means."""
    own = (Framework.PYTORCH, Framework.ACCELERATE, Framework.TRANSFORMERS)
    return framework in own or any(each.compiled is not None for each in models)


def _lines(events: Iterable[Event], entry: ModuleFile) -> set[tuple[ModuleFile, int]]:
    """The lines of other files that events are on; not by their paths yet, which are hashed in Python code."""
    return {
        (event.module, event.node.lineno)  # type: ignore[attr-defined]  # no event is of a whole module
        for event in events
        if event.module is not entry
    }


def _place(evaluation: Evaluation) -> Site:
    return evaluation.loop.site


def _thaws(analysis: Analysis) -> Iterator[Site]:
    """Where ``requires_grad`` is set to what is not False."""
    places = analysis.facts.places
    for write, _, module in analysis.facts.attribute_writes("requires_grad"):
        value = getattr(write, "value", None)
        if not (isinstance(value, ast.Constant) and value.value is False):
            yield places.site(write, module)
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree) if "requires_grad_" in module.text else ():
            if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                if given and not (isinstance(given[0], ast.Constant) and given[0].value is False):
                    yield places.site(call, module)


_ACCELERATOR_SINCE = (2, 6)


_LAST_TORCH = {"torchtext": (2, 3)}
"""Libraries that ended, with the torch that their last release was built for: it does not load beside a newer one."""


def _fitting(execution: Execution, target: Target) -> Target:
    """The target, as far as the program itself can meet it.

    What it imports may go with no torch that is newer, or with none that is older: ``torch.accelerator`` came with 2.6.
    """
    imported = _libraries(execution)
    newest = [torch for library, torch in _LAST_TORCH.items() if library in imported]
    if newest:
        target = replace(target, torch=min(target.torch, *newest), recent=None)
    for module in execution.modules.values():
        if "torch.accelerator" not in module.text or "hasattr(torch" in module.text:
            continue
        if any(dotted(node) == "torch.accelerator" for node in every(ast.Attribute, module.tree)):
            return replace(target, torch=max(target.torch, _ACCELERATOR_SINCE), recent=None)
    return target


def _libraries(execution: Execution) -> frozenset[str]:
    """The packages that the files import, without the project's own."""
    own = {module.name.partition(".")[0] for module in execution.modules.values()}
    found: set[str] = set()
    for module in execution.modules.values():
        found |= _packages_imported(module.tree)
    return frozenset(found - own)


@once_per_node
def _packages_imported(tree: ast.Module) -> frozenset[str]:
    """Those that an import brings of which something is read; a package may be read by whoever imports the file."""
    read = {each.id for each in every(ast.Name, tree)}
    whole = all(isinstance(each, (ast.Import, ast.ImportFrom)) for each in tree.body)
    found: set[str] = set()
    for plain in every(ast.Import, tree):
        names = [(alias.name.partition(".")[0], alias.asname) for alias in plain.names]
        found |= {package for package, name in names if whole or (name or package) in read}
    for node in every(ast.ImportFrom, tree):
        if node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


def _completeness(execution: Execution, analysis: Analysis) -> tuple[bool, str | None]:
    if not execution.complete:
        return False, execution.incomplete_because or "the program is too large to be followed to its end"
    destroyed = analysis.facts.of("destroy")
    if destroyed:
        event = destroyed[0]
        line = getattr(event.node, "lineno", 0)
        file = event.module.path.name
        return False, f"line {line} of {file} runs other code by `exec` or `globals()`, which may change any setting"
    return True, None


def _calls(events: Iterable[Event], *names: str) -> bool:
    return any(event.name in names for event in events)


def _starts_processes(facts: Facts) -> bool:
    names = {event.name for event in facts.events}
    return any(name.endswith(STARTERS) for name in names) or any(map(_launches_ranks, facts.of("construct", "call")))


def _launches_ranks(event: Event) -> bool:
    """Whether Fabric starts the ranks from within the script: by ``launch()``, or as the base of a class of its own."""
    if event.kind == "construct":
        bases = {name for each in members(event.result) if isinstance(each, Instance) for name in each.cls.externals()}
        return any(name.rpartition(".")[2] in ("Fabric", "LightningLite") for name in bases)
    launching = event.kind == "call" and event.name.endswith(".launch")
    for made in members(event.receiver) if launching else ():
        if isinstance(made, Made) and made.kind == "fabric":
            devices = made.arguments.get("devices", 2)
            values = members(devices.value) if devices is not None else ()
            if not values or not all(isinstance(each, Const) and each.value in (1, "1") for each in values):
                return True
    return False


def _join_devices(placements: list[Placement]) -> Placement:
    """Where the training runs as a whole: a GPU if any step does."""
    for where in ("conditional", "cuda", "unknown", "cpu"):
        for placement in placements:
            if placement.where == where:
                return placement
    return UNKNOWN_PLACE


def _placed(analysis: Analysis, seen: Placement) -> Placement:
    """Where the training runs, where Accelerate or Fabric moves the model: to a GPU, where not told otherwise."""
    made = (each for event in analysis.facts.of("make") for each in members(event.result) if is_owner(each))
    return Placement("conditional") if seen.where == "cpu" and any(map(moves, made)) else seen
