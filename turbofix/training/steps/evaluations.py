"""The evaluations: the innermost loops over data with forward passes and no backward."""

from __future__ import annotations

import ast
import itertools

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Value, members
from turbofix.library.tables import DEAD_ENDS
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.training.data.shapes import resized
from turbofix.training.devices.factories import creations
from turbofix.training.devices.syncs import syncs_and_shows
from turbofix.training.devices.transfers import transfers
from turbofix.training.model import Evaluation, Model, Step
from turbofix.training.objects import model_sites
from turbofix.training.steps.acts import stepper
from turbofix.training.steps.graphless import kept_graph
from turbofix.training.steps.housekeeping import chores
from turbofix.training.steps.inputs import autocast_of, device_of, loaders_read, source_of, tensor_in
from turbofix.training.steps.loops import loop_of
from turbofix.training.steps.losses import called_in
from turbofix.training.steps.regions import evaluation_region, no_grad


def evaluations_of(analysis: Analysis, steps: tuple[Step, ...], known: tuple[Model, ...]) -> list[Evaluation]:
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
        if _inside_model(analysis, event) or (event.kind == "unknown_call" and not tensor_in(event)):
            continue
        records = [record for record in facts.loops(event) if isinstance(record.node, LOOPS)]
        quiet = no_grad(event)
        in_step = any(facts.places.site(record.node, record.module) in training for record in records)
        free = [record for record in records if id(record.node) not in busy]
        if in_step and not quiet:
            # a loop over time steps belongs to the training step; one over a loader of its own does not
            free = [record for record in free if source_of([record.iterated]) == "loader"]
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


def _inside_model(analysis: Analysis, event: Event) -> bool:
    """Whether an event happens in the forward pass of a model."""
    return any(
        frame.call is not None and _is_model_call(analysis, frame.call) for frame in analysis.facts.frames(event)
    )


def _reads_data(record: LoopRecord) -> bool:
    return source_of([record.iterated]) in ("loader", "generator", "custom", "list", "unknown", "tensors")


def _evaluation(
    analysis: Analysis, record: LoopRecord, events: list[Event], known: tuple[Model, ...], steps: tuple[Step, ...]
) -> Evaluation:
    facts = analysis.facts
    loop = record.node
    sources = [record.iterated, *(event.receiver for event in events if event.kind == "next")]
    found_loaders = loaders_read(analysis, sources, events)
    moved = transfers(analysis, events, loop, found_loaders, in_step=False)
    forwards = [event for event in events if event.kind in ("forward", "unknown_call")]
    region = evaluation_region(analysis, loop, events)
    scope: tuple[ast.AST, ModuleFile] = (facts.places.scope(loop, record.module), record.module)
    called = model_sites(analysis, events, loop)
    device = device_of(analysis, moved, called, known, scope)
    reading, shown = syncs_and_shows(analysis, events, loop, device)
    return Evaluation(
        loop=loop_of(analysis, record),
        function=facts.places.function_site(loop, record.module),
        loaders=tuple(found_loaders),
        forward=region,
        no_grad=bool(forwards) and all(no_grad(event) for event in forwards),
        transfers=moved,
        syncs=reading,
        shows=shown,
        autocast=autocast_of(analysis, events),
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
