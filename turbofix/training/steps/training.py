"""The training steps: the innermost loop in whose stack both a backward and an optimizer's step stand, and all of it.

Schedulers and environments have a ``step`` too; they are told apart by value, never by name.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Instance, Iterated, Made, Value, flatten, members
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.data.lasting import cut_size, iterations, passes
from turbofix.training.data.shapes import resized
from turbofix.training.devices.factories import creations
from turbofix.training.devices.indices import host_indices, made_to_index
from turbofix.training.devices.syncs import leaks, syncs_and_shows
from turbofix.training.devices.transfers import transfers
from turbofix.training.frameworks.owners import PLACED, placed
from turbofix.training.frameworks.unread import accumulation_wish
from turbofix.training.model import ABSENT, Loop, Model, Region, Step
from turbofix.training.objects import model_sites
from turbofix.training.steps.accumulation import accumulation
from turbofix.training.steps.acts import acts, concerned, is_update, optimizers_in, stepper
from turbofix.training.steps.discarded import thrown_away
from turbofix.training.steps.escapes import with_escapes
from turbofix.training.steps.housekeeping import chores
from turbofix.training.steps.inputs import autocast_of, device_of, loaders_read, source_of
from turbofix.training.steps.loops import loop_of
from turbofix.training.steps.losses import called_in, loss_of
from turbofix.training.steps.planned import planned
from turbofix.training.steps.reductions import Doing, reduction
from turbofix.training.steps.regions import forward_region, no_grad
from turbofix.training.steps.weights import weights
from turbofix.training.steps.zeroing import late, zeroings


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


def training_steps(analysis: Analysis, known: tuple[Model, ...]) -> list[Step]:
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
    found_loaders = loaders_read(analysis, sources, training)
    moved = transfers(analysis, training, loop, found_loaders, in_step=True)
    regions = with_escapes(analysis, _regions(analysis, backwards, loop, training), training, loop)
    called = model_sites(analysis, training, loop)
    device = device_of(analysis, moved, called, known, _scope(analysis, backwards[0], loop, regions))
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
    kind = source_of(sources, training, found_loaders)
    written, groups = loop_of(analysis, record), accumulation(analysis, loop, backwards, updates)
    doing = Doing(record, written, backwards, updates, training, groups)
    return Step(
        loop=written,
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
        accumulation=groups,
        reduction=reduction(analysis, doing, backward_acts),
        syncs=reading,
        shows=shown,
        autocast=autocast_of(analysis, training),
        device=device,
        optimizers=tuple(concerned_optimizers),
        models=tuple(called),
        calls=called_in(analysis, training, loop, regions),
        grad_reads=tuple(sorted({facts.site(event) for event in _of(training, "grad_read")})),
        certainty="seen" if seen else "inferred",
        leaks=leaks(analysis, training, loop),
        thrown_away=thrown_away(analysis, record, backwards),
        chores=chores(analysis, training, record),
        zeroings=zeroings(analysis, training, record),
        late=late(analysis, training, record),
        creations=(*creations(analysis, training, loop), *made_to_index(analysis, training, loop)),
        indices=host_indices(analysis, training, loop),
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
        mixed=one.mixed or other.mixed,
        outputs=one.outputs if one.outputs == other.outputs else None,
    )


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


def _epoch_loop(analysis: Analysis, record: LoopRecord, backwards: list[Event]) -> Loop | None:
    """The next loop around the step's loop, through the call that holds it."""
    outer = [each for each in analysis.facts.enclosing_loops(record.node, backwards[0]) if isinstance(each.node, LOOPS)]
    return loop_of(analysis, outer[-1]) if outer else None


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
