"""From the event log to the frozen model: training steps, evaluations, and all that belongs to them.

A training step is the innermost loop in whose stack both a backward and an optimizer's step stand. Schedulers and
environments have a ``step`` too; they are told apart by value, never by name.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.dataflow.facts import Facts, Frame, unwrapped
from turbofix.dataflow.placements import UNKNOWN_PLACE
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import (
    Const,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.interpreter.execution import Beside, Execution, ModuleFile, Reader, execute, nothing_beside
from turbofix.library.tables import BARS, DEAD_ENDS, STARTERS, is_widened, unfit_for_half, words
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import body_of, dotted, loaded, names_of, stored
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site, tell_apart
from turbofix.training.checkpoints import run
from turbofix.training.data.lasting import cut_size, iterations, passes
from turbofix.training.data.loaders import loader_sites, loaders, with_use
from turbofix.training.data.paddings import paddings
from turbofix.training.data.preloading import preloads
from turbofix.training.data.rebuilt import first_batches, rebuilts
from turbofix.training.data.same_items import built_again, same_items
from turbofix.training.data.shapes import resized
from turbofix.training.devices.chosen import held_back
from turbofix.training.devices.factories import creations, creations_in_passes
from turbofix.training.devices.syncs import leaks, syncs_and_shows
from turbofix.training.devices.transfers import transfers
from turbofix.training.devices.unplaced import unplaced
from turbofix.training.frameworks.branches import keeping_from_training
from turbofix.training.frameworks.configurations import told_by
from turbofix.training.frameworks.lightning import with_feeding
from turbofix.training.frameworks.owners import PLACED, hands_over, owners, placed
from turbofix.training.frameworks.owning import framework_of
from turbofix.training.frameworks.trainings import trainings
from turbofix.training.frameworks.unread import accumulation_wish
from turbofix.training.model import (
    ABSENT,
    Biases,
    Called,
    Evaluation,
    Framework,
    Layouts,
    Loop,
    Model,
    Modules,
    Placement,
    Region,
    Step,
    Target,
    TrainingProgram,
    Transfer,
)
from turbofix.training.models.attention import attentions, fused_attentions, unwanted_weights
from turbofix.training.models.biases import biases
from turbofix.training.models.compiling import with_compiling
from turbofix.training.models.formulas import formulas
from turbofix.training.models.layouts import layouts
from turbofix.training.models.listed import listed
from turbofix.training.models.repeats import repeated, repeated_in_trainings
from turbofix.training.objects import (
    autocasts_around,
    model_choices,
    model_sites,
    models,
    optimizers,
    precision,
    settings,
)
from turbofix.training.optimizers.bulk import bulks
from turbofix.training.script import script
from turbofix.training.steps.acts import accumulation, acts, concerned, is_model, optimizers_in, stepper
from turbofix.training.steps.averages import averagings
from turbofix.training.steps.discarded import thrown_away
from turbofix.training.steps.graphless import kept_graph
from turbofix.training.steps.housekeeping import chores
from turbofix.training.steps.knowledge import data_known, model_known, optimizer_known
from turbofix.training.steps.losses import called_in, loss_of, qualname_of
from turbofix.training.steps.old_amp import old_names
from turbofix.training.steps.planned import planned, schedule
from turbofix.training.steps.regions import evaluation_region, forward_region, in_model, is_update, no_grad
from turbofix.training.steps.samplings import samplings
from turbofix.training.steps.scalers import scalings
from turbofix.training.steps.weights import weights
from turbofix.training.steps.zeroing import late, zeroings
from turbofix.training.told.debugging import debugging
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
    settings = {} if program.trains else keeping_from_training(analysis)
    analysis.close()
    if settings and (execution := execute(entry, root, read, beside, settings)) is not None:
        analysis = Analysis(execution)
        otherwise = program_of(analysis, target)
        analysis.close()
        return otherwise if otherwise.trains else program
    return program


def _knows_devices(analysis: Analysis) -> bool:
    """Whether a program says "cuda" somewhere, or moves things to a device that somebody else names."""
    if any("cuda" in module.text for module in analysis.execution.modules.values()):
        return True
    moved = (event for event in analysis.facts.of("transfer") if event.name == "to")
    return any(analysis.devices.of_transfer(event).where == "unknown" for event in moved)


def program_of(analysis: Analysis, target: Target) -> TrainingProgram:
    """The training program that an abstract execution shows."""
    execution, facts = analysis.execution, analysis.facts
    held = held_back(analysis)
    analysis.devices.held = bool(held)
    known_models = models(analysis)
    steps = tuple(sorted(_steps(analysis, known_models), key=lambda step: step.loop.site))
    framework = framework_of(analysis, bool(steps))
    trains = bool(steps) or framework not in (Framework.PYTORCH, Framework.NONE)
    # A program that trains nothing is not sped up: its loops, which may be many, need not be known.
    evaluations = tuple(sorted(_evaluations(analysis, steps, known_models), key=_place) if trains else ())
    made = optimizers(analysis, steps, known_models)
    read = with_feeding(analysis, with_use(analysis, loaders(analysis), steps, evaluations), framework)
    complete, reason = _completeness(execution, analysis)
    holders = owners(analysis)
    asked = trainings(analysis, framework)
    names_cuda = any(each.option for each in held) if held else _knows_devices(analysis)
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
        preloads=preloads(analysis, read, steps, framework) if trains else (),
        optimizers=made,
        models=with_compiling(analysis, known_models, steps) if _may_compile(framework, known_models) else known_models,
        precision=precision(analysis),
        settings=settings(analysis),
        debugging=debugging(analysis) if trains else (),
        distributed=_calls(facts.events, "torch.distributed.init_process_group", "deepspeed.init_distributed"),
        processes=_starts_processes(facts),
        incomplete_because=reason,
        entered=execution.entered,
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
        scalings=scalings(analysis),
        creations=creations_in_passes(analysis) if trains and not steps else (),
        averagings=averagings(analysis, steps),
        repeated=repeated(analysis, steps, read)
        if framework is Framework.PYTORCH
        else repeated_in_trainings(analysis, asked),
        run=run(analysis, steps, read) if framework in (Framework.PYTORCH, Framework.ACCELERATE) else None,
        rebuilt=rebuilts(analysis) if trains else (),
        attentions=attentions(analysis) if trains else (),
        unwanted=unwanted_weights(analysis) if trains else (),
        fused_attentions=fused_attentions(analysis) if trains else (),
        listed=listed(analysis) if trains else (),
        formulas=formulas(analysis) if trains else (),
        same_items=same_items(analysis, read, steps) if trains else (),
        built_again=built_again(analysis) if trains else (),
        bulks=bulks(analysis, known_models) if trains else (),
        paddings=paddings(analysis, steps) if trains else (),
        samplings=samplings(analysis, steps, evaluations) if trains else (),
        held=held if trains else (),
        unplaced=unplaced(analysis, steps, evaluations, known_models, framework),
        habits=tuple(habits(analysis, steps)) if trains else (),
        overlooked=tuple(overlooked(analysis, (*steps, *evaluations)))
        if trains and (names_cuda or framework in (Framework.LIGHTNING, Framework.TRANSFORMERS))
        else (),
        told_by=told_by(analysis),
        guessed=execution.guessed,
        acts_on=frozenset((module.path, line) for module, line in _lines(facts.events, execution.entry)),
    )


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
    found: set[str] = set()
    for plain in every(ast.Import, tree):
        found |= {alias.name.partition(".")[0] for alias in plain.names}
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
    for event in analysis.facts.of("make") if seen.where == "cpu" else ():
        for made in members(event.result):
            if isinstance(made, Made) and made.kind in ("accelerator", "fabric"):
                named = made.arguments.get("accelerator", 0) if made.kind == "fabric" else made.arguments.get("cpu")
                told = members(named.value) if named is not None else ()
                if not told or not all(isinstance(each, Const) and each.value in ("cpu", True) for each in told):
                    return Placement("conditional")
    return seen


# --- finding the steps ----------------------------------------------------------------------------------------------


def training_loops(analysis: Analysis) -> list[tuple[LoopRecord, list[Event], list[Event]]]:
    """The loops that train, each with its backward passes and its optimizer steps."""
    facts = analysis.facts
    updates = [event for event in _without_wrapped(analysis, facts.of("step")) if is_update(event)]
    found: dict[int, tuple[LoopRecord, list[Event], list[Event]]] = {}
    for backward in _without_inner(analysis, facts.of("backward")):
        chosen: tuple[LoopRecord, list[Event]] | None = None
        for record in reversed(facts.loops(backward)):
            if not isinstance(record.node, LOOPS):
                continue
            here = [event for event in updates if facts.inside(event, record.node)]
            certain = [event for event in here if stepper(event.receiver) != "unknown"]
            if here:
                chosen = record, certain or here
                if not _over_optimizers(record):
                    break
        if chosen is None:
            continue
        record, here = chosen
        known = found.setdefault(id(record.node), (record, [], []))
        known[1].append(backward)
        known[2].extend(event for event in here if not any(event is each for each in known[2]))
    return list(found.values())


def _over_optimizers(record: LoopRecord) -> bool:
    """Whether a loop goes through optimizers (``for net, opt in zip(nets, opts)``), not through data."""
    return any(
        isinstance(each, Made) and each.kind == "optimizer"
        for member in members(record.iterated)
        for each in flatten(member.element if isinstance(member, Iterated) else member)
    )


def _without_inner(analysis: Analysis, events: list[Event]) -> list[Event]:
    """The events, without those whose call is a project method that holds another of the same kind (a wrapper)."""
    calls = {id(frame.call) for event in events for frame in analysis.facts.frames(event) if frame.call is not None}
    return [event for event in events if id(event.node) not in calls]


def _without_wrapped(analysis: Analysis, events: list[Event]) -> list[Event]:
    """The steps, each once: of an optimizer that steps others inside of its own, its own; of a wrapper, the inner."""
    outer = {
        id(event.node)
        for event in events
        if any(
            isinstance(each, Instance) and each.base is not None and each.base.kind == "optimizer"
            for each in members(event.receiver)
        )
    }
    inner = {id(event) for event in events if _calls_around(analysis, event) & outer}
    whole = [event for event in events if id(event) not in inner]
    return _without_inner(analysis, whole)


def _calls_around(analysis: Analysis, event: Event) -> set[int]:
    return {id(frame.call) for frame in analysis.facts.frames(event) if frame.call is not None}


def _steps(analysis: Analysis, known: tuple[Model, ...]) -> list[Step]:
    return [
        _step(analysis, record, backwards, updates, known) for record, backwards, updates in training_loops(analysis)
    ]


def _step(
    analysis: Analysis, record: LoopRecord, backwards: list[Event], updates: list[Event], known: tuple[Model, ...]
) -> Step:
    facts = analysis.facts
    loop = record.node
    events = facts.events_in(loop)
    evaluating = _evaluation_nodes(analysis, events, loop)
    training = [event for event in events if not any(facts.inside(event, each) for each in evaluating)]
    sources = _sources(analysis, record, backwards, training)
    found_loaders = _loaders_read(analysis, sources, training)
    moved = transfers(analysis, training, loop, found_loaders, in_step=True)
    regions = _with_escapes(analysis, _regions(analysis, backwards, loop, training), training, loop)
    choices = model_choices(analysis, training, loop)
    called = sorted({site for each in choices for site in each})
    device = _device(analysis, moved, called, known, _scope(analysis, backwards[0], loop, regions))
    if device.where in ("cpu", "unknown") and not placed(analysis).isdisjoint(found_loaders):
        device = PLACED
    reading, shown = syncs_and_shows(analysis, training, loop, device)
    backward_acts = acts(analysis, backwards, loop)
    update_acts = acts(analysis, updates, loop)
    own = {id(event.node) for event in updates}
    inside = [event for event in _of(events, "step") if _calls_around(analysis, event) & own and is_update(event)]
    concerned_optimizers = sorted(
        {
            site
            for event in (*updates, *inside)
            for made in optimizers_in(concerned(event))
            if (site := facts.origin_site(made.origin)) is not None
        }
    )
    cut, draws = cut_size(analysis, backwards[0], loop, training) if not found_loaders else (ABSENT, None)
    seen = all(act.certainty == "seen" for act in update_acts) and bool(update_acts)
    kind = _source(sources, training, found_loaders)
    return Step(
        loop=_loop(analysis, record),
        epoch_loop=_epoch_loop(analysis, record, backwards),
        function=facts.places.function_site(loop, record.module),
        source=kind,  # type: ignore[arg-type]
        loaders=tuple(found_loaders),
        transfers=moved,
        forward=_one_region(regions),
        forwards=regions,
        loss=loss_of(analysis, backwards, training),
        backwards=backward_acts,
        updates=update_acts,
        zero_grads=acts(analysis, _of(training, "zero_grad"), loop),
        clips=acts(analysis, _of(training, "clip"), loop),
        unscales=acts(analysis, _of(training, "unscale"), loop),
        scaler_updates=acts(
            analysis, [event for event in _of(training, "update") if stepper(event.receiver) == "scaler"], loop
        ),
        scheduler_steps=acts(
            analysis, [event for event in _of(training, "step") if stepper(event.receiver) == "scheduler"], loop
        ),
        accumulation=accumulation(analysis, loop, backwards, updates),
        syncs=reading,
        shows=shown,
        autocast=_autocast(analysis, training),
        device=device,
        optimizers=tuple(concerned_optimizers),
        models=tuple(called),
        choices=tuple(choices),
        calls=called_in(analysis, training, loop, regions),
        grad_reads=tuple(sorted({facts.site(event) for event in _of(training, "grad_read")})),
        certainty="seen" if seen else "inferred",
        leaks=leaks(analysis, training, loop),
        optimizer=optimizer_known(updates),
        model=model_known(analysis, training, updates, loop),
        data=data_known(sources, found_loaders, kind),
        thrown_away=thrown_away(analysis, record, backwards),
        chores=chores(analysis, training, record),
        zeroings=zeroings(analysis, training, record),
        late=late(analysis, training, record),
        creations=creations(analysis, training, loop),
        first_batches=first_batches(analysis, training, loop),
        wish=accumulation_wish(analysis, backwards[0]),
        reached=any(_is_called(analysis, backward) for backward in backwards),
        weights=weights(analysis, updates, training, bool(_of(training, "clip"))),
        planned=planned(analysis, record, updates),
        resized=resized(analysis, record, training),
        iterations=iterations(analysis, backwards[0], loop),
        cut=cut,
        draws=draws,
        passes=passes(analysis, backwards[0], loop),
    )


def _is_called(analysis: Analysis, event: Event) -> bool:
    """Whether the program itself comes to an event, from the body of a file."""
    frames = analysis.facts.frames(event)
    return bool(frames) and isinstance(frames[0].scope, ast.Module)


def _of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


def _evaluation_nodes(analysis: Analysis, events: list[Event], loop: ast.AST) -> list[ast.AST]:
    """The loops inside a training loop that only evaluate: forward passes without a graph and without a backward."""
    found: list[ast.AST] = []
    busy: set[int] = set()
    for event in events:
        inner = _inner_loops(analysis, event, loop)
        if event.kind in ("backward", "step"):
            busy.update(id(each) for each in inner)
    for event in events:
        if event.kind in ("forward", "unknown_call") and no_grad(event):
            for each in _inner_loops(analysis, event, loop):
                if id(each) not in busy and not any(each is other for other in found):
                    found.append(each)
    return found


def _inner_loops(analysis: Analysis, event: Event, loop: ast.AST) -> list[ast.AST]:
    nodes = [record.node for record in analysis.facts.loops(event)]
    position = next((i for i, node in enumerate(nodes) if node is loop), len(nodes))
    return [node for node in nodes[position + 1 :] if isinstance(node, LOOPS)]


def _regions(analysis: Analysis, backwards: list[Event], loop: ast.AST, events: list[Event]) -> tuple[Region, ...]:
    found: dict[tuple[Site, Site], Region] = {}
    for backward in backwards:
        region = forward_region(analysis, backward, loop, events)
        if region is not None:
            place = (region.first, region.last)
            found[place] = _both(found[place], region) if place in found else region
    return tuple(sorted(found.values(), key=lambda region: region.first))


def _both(one: Region, other: Region) -> Region:
    """A region that runs for two losses, or in two ways."""
    if one == other:
        return one
    return replace(
        one,
        blockers=tuple(dict.fromkeys((*one.blockers, *other.blockers))),
        between=tuple(dict.fromkeys((*one.between, *other.between))),
        half=one.half or other.half,
        products=tuple(sorted({*one.products, *other.products})),
        tangled=one.tangled or other.tangled,
        criteria_inside=tuple(sorted({*one.criteria_inside, *other.criteria_inside})),
        criteria_hidden=tuple(sorted({*one.criteria_hidden, *other.criteria_hidden})),
        calls_end=one.calls_end if one.calls_end == other.calls_end else None,
        lifted=one.lifted if one.lifted == other.lifted else None,
        outputs=one.outputs if one.outputs == other.outputs else None,
    )


def _with_escapes(
    analysis: Analysis, regions: tuple[Region, ...], events: list[Event], loop: ast.AST
) -> tuple[Region, ...]:
    """The regions with the places that hand a result of theirs to other libraries.

    In the loop these are calls of such libraries (reads by numpy are syncs of the step); after it, reads by numpy too.
    """
    facts = analysis.facts
    inside = {id(event) for event in events}
    foreign: set[Site] = set()
    later: dict[Site, list[Site]] = {}
    unfit: dict[tuple[Site, Site | None], Called] = {}
    widened: dict[tuple[Site, Site | None], Called] = {}
    for event in facts.of("call", "sync"):
        values = [event.receiver] if event.kind == "sync" else []
        raises = event.kind == "call" and unfit_for_half(qualname_of(event)) is not None
        raises = raises and not in_model(analysis, event, 0)
        if event.kind == "call" and (raises or is_foreign(event.name)) and event.arguments is not None:
            values = [*event.arguments.values(), *([event.receiver] if raises else ())]
            if event.name == "Tensor.index_put_":
                values = values[1:]  # not where it is put
        elif event.kind == "sync" and (event.name != "numpy" or id(event) in inside):
            continue
        for member in (each for value in values for each in flatten(value)):
            if not isinstance(member, Tensor) or not member.roles & {"output", "maybe_output"}:
                continue
            if "loss" in member.roles:
                continue
            site = facts.site(event)
            if id(event) not in inside and (member.origin is None or facts.inside(event, loop)):
                continue
            origin = None if id(event) in inside else facts.origin_site(member.origin) or site
            if raises:
                (unfit if member.half else widened)[site, origin] = Called(event.name, site)
            elif origin is None:
                foreign.add(site)
            else:
                later.setdefault(origin, []).append(site)
    found: list[Region] = []
    for region in regions:
        raising = unfit | widened if widened and _leaves_narrow(analysis, events, region) else unfit
        found.append(
            replace(
                region,
                escapes=tuple(
                    sorted(
                        foreign | {site for origin, sites in later.items() if _within(origin, region) for site in sites}
                    )
                ),
                unfit=tuple(
                    called
                    for (site, origin), called in sorted(raising.items(), key=lambda each: each[0][0])
                    if origin is None or _within(origin, region)
                ),
            )
        )
    return tuple(found)


def _leaves_narrow(analysis: Analysis, events: list[Event], region: Region) -> bool:
    """Whether what autocast computes in 32 bits is computed of the model's output behind the region: in 16 there."""
    facts = analysis.facts
    for event in events:
        if event.kind != "call" or event.arguments is None or not is_widened(event.name):
            continue
        operands = [each for value in (event.receiver, *event.arguments.values()) for each in flatten(value)]
        if any(isinstance(each, Tensor) and each.half and "loss" not in each.roles for each in operands) and not any(
            _within(facts.places.site(frame.anchor, frame.module), region) for frame in facts.frames(event)
        ):
            return True
    return False


def _within(site: Site, region: Region) -> bool:
    first, last = region.first, region.last
    return site.path == first.path and first.line <= site.line and site.end_line <= last.end_line


_TORCHLIKE = words(
    """
    torch torchvision torchaudio torchmetrics torch_geometric builtins math copy time os sys logging functools itertools
    list dict set tuple str
    random tqdm collections contextlib typing einops timm transformers accelerate apex deepspeed wandb xformers
    lightning pytorch_lightning kornia monai peft diffusers fairscale bitsandbytes horovod gc warnings operator json
    """
)


def is_foreign(qualname: str) -> bool:
    """Whether a function belongs to a library that does not take tensors of half precision as torch does."""
    package, dot, _ = qualname.partition(".")
    known = package in _TORCHLIKE or package.startswith("torch_")
    return bool(dot) and not known and package[:1].islower()


def _scope(
    analysis: Analysis, backward: Event, loop: ast.AST, regions: tuple[Region, ...]
) -> tuple[ast.AST, ModuleFile]:
    """The function (or module) that holds the forward pass."""
    frames = analysis.facts.frames_within(backward, loop)
    for frame in reversed(frames):
        site = analysis.facts.places.site(frame.scope, frame.module) if isinstance(frame.scope, FUNCTIONS) else None
        if regions and regions[0].function == site and regions[0].first.path == frame.module.path:
            return frame.scope, frame.module
    return frames[-1].scope, frames[-1].module


def _one_region(regions: tuple[Region, ...]) -> Region | None:
    """The forward pass of a step with one loss; with several, a region that says that it cannot be one."""
    if not regions:
        return None
    if len(regions) == 1:
        return regions[0]
    first = regions[0]
    reason = f"the step has {len(regions)} forward passes with a backward between them"
    return Region(first.first, regions[-1].last, first.function, (reason, *first.blockers))


# --- loops ----------------------------------------------------------------------------------------------------------


def _loop(analysis: Analysis, record: LoopRecord) -> Loop:
    """A loop as its text says it."""
    facts = analysis.facts
    node, module = record.node, record.module
    site = facts.places.site(node, module)
    if not isinstance(node, (ast.For, ast.AsyncFor)):
        return Loop(site, counter=_hand_counter(node))
    text = facts.places.text(node.iter, module)
    target = facts.places.text(node.target, module)
    counter, start, sized = _counting(analysis, node, module)
    if counter in stored(node.body):  # it counts no more when it is read
        counter = None
    bar, bar_name = _progress(analysis, record)
    return Loop(site, text, target, counter or _hand_counter(node), start, sized, bar, bar_name)


def _counting(
    analysis: Analysis, node: ast.For | ast.AsyncFor, module: ModuleFile
) -> tuple[str | None, int, str | None]:
    """The counter of an ``enumerate`` or ``range``, where it starts, and a text for the number of iterations."""
    found = {_counted(analysis, node, each, module) for each in _made_before(analysis, node, module)}
    made = found.pop() if len(found) == 1 else None
    return made if made is not None and made[0] is not None else _counted(analysis, node, node.iter, module)


def _made_before(analysis: Analysis, node: ast.For | ast.AsyncFor, module: ModuleFile) -> tuple[ast.expr, ...]:
    """What a loop runs over, if it goes by a name: ``steps = tqdm(enumerate(loader)) if first else enumerate(loader)``.

    Nothing where something that this reads is changed before the loop is over.
    """
    if not isinstance(node.iter, ast.Name):
        return ()
    bindings = analysis.facts.bindings
    owner = bindings.owner(node.iter.id, node.iter, module)
    writes = bindings.writes(owner, node.iter.id)
    made = writes[0] if len(writes) == 1 and owner is analysis.facts.places.scope(node, module) else None
    if not isinstance(made, (ast.Assign, ast.withitem)):
        return ()
    value = made.value if isinstance(made, ast.Assign) else made.context_expr  # `with tqdm(loader) as bar:`
    lines = [getattr(each, "lineno", 0) for name in loaded(value) for each in bindings.writes(owner, name)]
    changed = any(value.lineno < line <= (node.end_lineno or line) for line in lines)
    if changed:
        return ()
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def _counted(
    analysis: Analysis, node: ast.For | ast.AsyncFor, iterated: ast.expr, module: ModuleFile
) -> tuple[str | None, int, str | None]:
    """The same for one expression that the loop may run over."""
    places = analysis.facts.places
    outer = iterated
    counter: str | None = None
    start = 0
    told: str | None = None
    target: ast.expr = node.target
    for _ in range(4):
        if not isinstance(iterated, ast.Call):
            break
        name = analysis.facts.offered(iterated.func, module)
        if name == "builtins.enumerate" and iterated.args:
            if isinstance(target, ast.Tuple) and target.elts and counter is None:
                counter = dotted(target.elts[0])
            begin = iterated.args[1] if len(iterated.args) > 1 else None
            begin = next((each.value for each in iterated.keywords if each.arg == "start"), begin)
            if isinstance(begin, ast.Constant) and isinstance(begin.value, int):
                start = begin.value
            elif begin is not None:
                counter = None
            iterated = iterated.args[0]
        elif name in ("builtins.range", "tqdm.trange", "tqdm.tnrange"):
            if isinstance(target, ast.Name):
                counter = target.id
                first = iterated.args[0] if len(iterated.args) > 1 else None
                if isinstance(first, ast.Constant) and isinstance(first.value, int):
                    start = first.value
                elif first is not None:
                    counter = None
            size = places.text(iterated.args[0], module) if len(iterated.args) == 1 else None
            return counter, start, size
        elif iterated.args and (name in BARS or (name == "builtins.iter" and len(iterated.args) == 1)):
            told = next((places.text(each.value, module) for each in iterated.keywords if each.arg == "total"), told)
            iterated = iterated.args[0]
        else:
            break
    base = dotted(iterated)
    # who tells a bar another number may be given what has no length
    known = (
        base is not None
        and told in (None, f"len({base})")
        and (_is_sized(analysis, iterated, module) if outer is node.iter else _is_loader(analysis, iterated, node))
    )
    sized = f"len({base})" if known else None
    return counter, start, sized


def _is_loader(analysis: Analysis, named: ast.expr, loop: ast.AST) -> bool:
    """Whether a name that is not what a loop runs over itself stands for a loader there."""
    facts = analysis.facts
    found = [
        value
        for event in facts.at(loop)
        if event.kind == "iterate"
        for value in members(facts.evaluate(named, facts.frames(event)))
    ]
    return bool(found) and all(isinstance(value, Made) and value.kind == "loader" for value in found)


def _is_sized(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether ``len`` of what is iterated is known to work: a loader, a list, a progress bar around one."""
    for event in analysis.facts.of("iterate"):
        if event.module is not module:
            continue
        for value in unwrapped(event.receiver):
            if isinstance(value, (Made, Sequence, Instance)):
                for each in walk(event.node.iter if isinstance(event.node, (ast.For, ast.AsyncFor)) else event.node):
                    if each is node:
                        return not isinstance(value, Made) or value.kind in ("loader", "progress", "dataset")
    return False


def _hand_counter(node: ast.AST) -> str | None:
    """A variable that each iteration increments by one, as a statement of the loop's own block."""
    for statement in getattr(node, "body", ()):
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            continue
        if isinstance(statement.value, ast.Constant) and statement.value.value == 1:
            return dotted(statement.target)
    return None


def _progress(analysis: Analysis, record: LoopRecord) -> tuple[Site | None, str | None]:
    for value in unwrapped(record.iterated):
        if isinstance(value, (Made, Iterated)):
            is_bar = (isinstance(value, Made) and value.kind == "progress") or (
                isinstance(value, Iterated) and value.wrapper in ("tqdm", "progress", "trange")
            )
            if is_bar and value.origin is not None:
                site = analysis.facts.origin_site(value.origin)
                node = value.origin.node
                statement = analysis.facts.places.statement(node, value.origin.module)
                name = None
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    name = dotted(statement.targets[0])
                elif isinstance(statement, ast.With):
                    name = next(
                        (dotted(item.optional_vars) for item in statement.items if item.context_expr is node), None
                    )
                return site, name
    return None, None


def _epoch_loop(analysis: Analysis, record: LoopRecord, backwards: list[Event]) -> Loop | None:
    """The next loop around the step's loop, through the call that holds it."""
    outer = [each for each in analysis.facts.enclosing_loops(record.node, backwards[0]) if isinstance(each.node, LOOPS)]
    return _loop(analysis, outer[-1]) if outer else None


# --- what a step reads ------------------------------------------------------------------------------------------------


def _sources(analysis: Analysis, record: LoopRecord, backwards: list[Event], events: list[Event]) -> list[Value | None]:
    """What the data of a step come out of: what its loop runs over, the loops inside it, and ``next(...)``."""
    found: list[Value | None] = [record.iterated]
    for backward in backwards:
        loops = analysis.facts.loops(backward)
        position = next((i for i, each in enumerate(loops) if each.node is record.node), len(loops))
        found += [each.iterated for each in loops[position + 1 :]]
    fetched = [event for event in events if event.kind == "next"]
    with_graph = [event for event in fetched if not no_grad(event)]  # what is only validated on trains nothing
    return found + [event.receiver for event in with_graph or fetched]


def _loaders_read(analysis: Analysis, sources: list[Value | None], events: list[Event]) -> list[Site]:
    """The loaders that a loop reads: by what it runs over, else by where the batches that it moves come from."""
    found = {site for value in sources for site in loader_sites(analysis, value)}
    if not found:
        for event in events:
            if event.kind == "transfer":
                for member in members(event.receiver):
                    if isinstance(member, Tensor) and "batch" in member.roles:
                        found.update(loader_sites(analysis, member.source))
    return sorted(found)


def _source(values: list[Value | None], events: Iterable[Event] = (), loaders_read: Iterable[Site] = ()) -> str:
    """Where data come from; ``events`` tell of models that are fed tensors which no iteration gave."""
    kinds: set[str] = set()
    for value in values:
        for member in unwrapped(value):
            if isinstance(member, Made) and member.kind == "loader":
                kinds.add("loader")
            elif isinstance(member, Instance):
                base = member.base
                kinds.add("loader" if base is not None and base.kind == "loader" else "custom")
            elif isinstance(member, Made) and member.kind == "dataset":
                kinds.add("custom")
            elif isinstance(member, Iterated) and member.wrapper == "generator":
                kinds.add("generator")
            elif isinstance(member, Sequence) and member.kind == "list":
                kinds.add("list")
            elif isinstance(member, Tensor):
                kinds.add("tensors")
            elif isinstance(member, (Opaque, Mapping)) or (isinstance(member, Unknown) and not member.number):
                kinds.add("unknown")
    for kind in ("loader", "generator", "custom", "tensors", "list", "unknown"):
        if kind in kinds:
            return kind
    if any(True for _ in loaders_read):
        return "loader"
    fed = any(
        _tensor_in(event)
        for event in events
        if event.kind == "forward" or (event.kind == "unknown_call" and is_model(event.receiver))
    )
    return "tensors" if fed else "none"


def _device(
    analysis: Analysis,
    moved: tuple[Transfer, ...],
    called: list[Site],
    known: tuple[Model, ...],
    scope: tuple[ast.AST, ModuleFile],
) -> Placement:
    """Where the forward pass runs: where its batches are moved to, else where its models are.

    ``scope`` is where the answer's texts must be valid: the function (or module) that holds the forward pass.
    """
    placements = [
        each.to
        for kinds in (("batch", "object"), ("input", "made", "unknown"))
        for each in moved
        if each.what in kinds and not each.dtype_only and each.to.where in ("cuda", "conditional")
    ]
    modelled = [model.device for model in known if model.site in called]
    for where in ("conditional", "cuda", "unknown", "cpu"):
        placements += [placement for placement in modelled if placement.where == where]
    if not placements:
        return UNKNOWN_PLACE
    best = placements[0]
    other = any(placement.mps for placement in placements)
    tests = (each.test for each in placements if each.where == best.where and each.test is not None)
    test = next((each for each in tests if _valid(analysis, each, scope)), None)
    kinds = ("device", "string", "index", "tensor", "unknown")
    for placement in sorted(placements, key=lambda each: kinds.index(each.text_kind)):
        if placement.where == best.where and placement.text is not None and _valid(analysis, placement.text, scope):
            return Placement(best.where, placement.text, placement.text_kind, test, best.tests, other)
    name = _device_name(analysis, scope) if best.reaches_cuda else None
    return Placement(best.where, name, "device" if name else "unknown", test, best.tests, other)


def _valid(analysis: Analysis, text: str, scope: tuple[ast.AST, ModuleFile]) -> bool:
    """Whether a source text means something in a function: its names are the function's own, or the module's."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    node, module = scope
    bindings = analysis.facts.bindings
    holders = [node, *(each for each in analysis.facts.places.ancestors(node, module)), module.tree]
    for name in walk(tree):
        if isinstance(name, ast.Name) and not any(
            bindings.is_local(name.id, each) for each in holders if isinstance(each, (*FUNCTIONS, ast.Module))
        ):
            return False
    return True


def _device_name(analysis: Analysis, scope: tuple[ast.AST, ModuleFile]) -> str | None:
    """A name of the function or its module that holds a device, and nothing else ever."""
    node, module = scope
    frame = Frame(node, module, node, None, ())
    for holder in dict.fromkeys((node, module.tree)):
        for name in _set_once(holder):
            value = analysis.facts.named(name, holder, frame)
            found = members(value)
            if found and all(
                isinstance(each, Made) and each.kind == "device" and each.device != "cpu" for each in found
            ):
                return name
    return None


@once_per_node
def _set_once(scope: ast.AST) -> tuple[str, ...]:
    """The names of a function or file that are its parameters or are assigned to, in one place at most."""
    names = names_of(scope)
    stored = {
        target.id
        for statement in body_of(scope)
        for target in walk(statement)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    }
    own = names.parameters | (stored & names.writes.keys())
    return tuple(sorted(name for name in own - names.outer if len(names.writes.get(name, ())) <= 1))


def _autocast(analysis: Analysis, events: list[Event]) -> Site | None:
    """An autocast region around a forward pass, or inside it, or what may be one; those with a graph first."""
    quiet: set[Site] = set()
    found: set[Site] = set()
    for event in events:
        if event.kind in ("forward", "criterion", "unknown_call"):
            sites = autocasts_around(analysis, event)
            (quiet if no_grad(event) else found).update(sites)
        elif event.kind == "enter" and "autocast" in _kinds(event.receiver):
            quiet.add(analysis.facts.site(event))
    return min(found) if found else min(quiet) if quiet else None


def _kinds(value: Value | None) -> set[str]:
    """The kinds of the objects that a value can be."""
    return {member.kind for member in members(value) if isinstance(member, Made)}


# --- evaluations ------------------------------------------------------------------------------------------------------


def _evaluations(analysis: Analysis, steps: tuple[Step, ...], known: tuple[Model, ...]) -> list[Evaluation]:
    """The innermost loops over data with forward passes and no backward."""
    facts = analysis.facts
    busy: set[int] = set()
    for event in facts.of("backward", "autograd_grad"):
        busy.update(id(record.node) for record in facts.loops(event))
    fetching: set[int] = set()  # loops that fetch their data by hand: the innermost around a transfer or next(...)
    for event in facts.of("transfer", "next"):
        inner = [record for record in facts.loops(event) if isinstance(record.node, LOOPS)]
        if inner and not _inside_model(analysis, event):
            fetching.add(id(inner[-1].node))
    training = {step.loop.site for step in steps}
    chosen: dict[int, LoopRecord] = {}
    for event in facts.of("forward", "unknown_call"):
        if _inside_model(analysis, event) or (event.kind == "unknown_call" and not _tensor_in(event)):
            continue
        records = [record for record in facts.loops(event) if isinstance(record.node, LOOPS)]
        quiet = no_grad(event)
        in_step = any(facts.places.site(record.node, record.module) in training for record in records)
        free = [record for record in records if id(record.node) not in busy]
        if in_step and not quiet:
            # a loop over time steps belongs to the training step; one over a loader of its own does not
            free = [record for record in free if _source([record.iterated]) == "loader"]
        data = [record for record in free if _reads_data(record) or id(record.node) in fetching]
        if not data and event.kind == "forward":
            data = free
        if data:
            chosen.setdefault(id(data[-1].node), data[-1])
    found = []
    for record in chosen.values():
        events = facts.events_in(record.node)
        if any(event.kind == "backward" for event in events):
            continue
        if any(event.kind == "step" and stepper(event.receiver) == "optimizer" for event in events):
            continue
        if steps and _ends_the_program(analysis, record, events):
            continue
        found.append(_evaluation(analysis, record, events, known, steps))
    return found


def _ends_the_program(analysis: Analysis, record: LoopRecord, events: list[Event]) -> bool:
    """Whether the program ends behind a loop wherever it runs, before it trains: no run that trains comes by.

    As under ``if args.test_only: ...; sys.exit()``.
    """
    places = analysis.facts.places
    first = min((event.order for event in events), default=0)
    if any(event.order < first for event in analysis.facts.of("backward", "autograd_grad")):
        return False
    for event in events:
        ends = False
        frames = analysis.facts.frames(event)
        for index, frame in enumerate(frames):
            anchor = record.node if any(record.node is each for each in frame.loops) else frame.anchor
            chain = [anchor, *places.ancestors(anchor, frame.module)]
            for inner, outer in itertools.pairwise(chain):
                if outer is frame.scope or isinstance(outer, LOOPS):
                    break
                if isinstance(outer, ast.If) and inner is not outer.test:
                    block = outer.body if any(inner is each for each in outer.body) else outer.orelse
                    ends = ends or _is_exit(analysis, block[-1], frames[: index + 1])
            if anchor is record.node or ends:
                break
        if not ends:
            return False
    return bool(events)


def _is_exit(analysis: Analysis, statement: ast.stmt, frames: tuple[Frame, ...]) -> bool:
    """Whether a statement ends the program: ``sys.exit()``, ``exit()``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    called = members(analysis.facts.evaluate(call.func, frames)) if isinstance(call, ast.Call) else ()
    return bool(called) and all(_names_exit(each) for each in called)


def _names_exit(value: Value) -> bool:
    name = getattr(value, "qualname", None) or getattr(value, "name", None)
    return isinstance(name, str) and (name in DEAD_ENDS or name in ("exit", "quit"))


def _is_model_call(analysis: Analysis, call: ast.AST) -> bool:
    return call in analysis.once("calls of models", lambda: {event.node for event in analysis.facts.of("forward")})


def _tensor_in(event: Event) -> bool:
    if event.arguments is None:
        return False
    return any(isinstance(member, Tensor) for value in event.arguments.values() for member in members(value))


def _inside_model(analysis: Analysis, event: Event) -> bool:
    """Whether an event happens in the forward pass of a model."""
    return any(
        frame.call is not None and _is_model_call(analysis, frame.call) for frame in analysis.facts.frames(event)
    )


def _reads_data(record: LoopRecord) -> bool:
    return _source([record.iterated]) in ("loader", "generator", "custom", "list", "unknown", "tensors")


def _evaluation(
    analysis: Analysis, record: LoopRecord, events: list[Event], known: tuple[Model, ...], steps: tuple[Step, ...]
) -> Evaluation:
    facts = analysis.facts
    loop = record.node
    sources = [record.iterated, *(event.receiver for event in events if event.kind == "next")]
    found_loaders = _loaders_read(analysis, sources, events)
    moved = transfers(analysis, events, loop, found_loaders, in_step=False)
    forwards = [event for event in events if event.kind in ("forward", "unknown_call")]
    region = evaluation_region(analysis, loop, events)
    scope: tuple[ast.AST, ModuleFile] = (facts.places.scope(loop, record.module), record.module)
    called = model_sites(analysis, events, loop)
    device = _device(analysis, moved, called, known, scope)
    reading, shown = syncs_and_shows(analysis, events, loop, device)
    return Evaluation(
        loop=_loop(analysis, record),
        function=facts.places.function_site(loop, record.module),
        loaders=tuple(found_loaders),
        forward=region,
        no_grad=bool(forwards) and all(no_grad(event) for event in forwards),
        transfers=moved,
        syncs=reading,
        shows=shown,
        autocast=_autocast(analysis, events),
        device=device,
        models=tuple(called),
        calls=called_in(analysis, events, loop, (region,) if region is not None else ()),
        around=_loops_around(analysis, record, events),
        chores=chores(analysis, events, record),
        graphs=kept_graph(analysis, record, events, steps),
        creations=creations(analysis, events, loop),
        resized=resized(analysis, record, events),
    )


def _loops_around(analysis: Analysis, record: LoopRecord, events: list[Event]) -> frozenset[Site]:
    """The loops around an evaluation, through the calls that hold it, in any of the ways in which it is reached."""
    facts = analysis.facts
    outer = {id(each): each for event in events for each in facts.enclosing_loops(record.node, event)}
    loops = (each for each in outer.values() if isinstance(each.node, LOOPS))
    return frozenset(facts.places.site(each.node, each.module) for each in loops)
