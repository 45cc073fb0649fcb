"""The entry file as a script: where its set-up code begins, and what runs when it is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.exports import takers_outside
from turbofix.dataflow.facts import Frame, unwrapped
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import External, Instance, Made, members
from turbofix.library.tables import STARTERS, TRAINERS_START
from turbofix.source.names import is_main_test, stores
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Region, Script
from turbofix.training.steps.acts import is_model, optimizers_in

_SETTING_UP = ("make", "set", "construct", "transfer", "call", "wrap", "compile", "forward")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_HARMLESS = ("torch.utils.data.", "torchvision.transforms.", "torchvision.datasets.", "logging.", "argparse.")
_WORKING = ("backward", "step", "forward", "iterate", "transfer", "construct", "sync", "show", "save", "next")


def script(analysis: Analysis) -> Script:
    """What the entry file does as a script."""
    facts = analysis.facts
    module = facts.execution.entry
    place = _setup(analysis, module)
    trains_at = _where_it_trains(analysis, module, place)
    working = [event for event in facts.events if _runs_at_import(analysis, event, module)]
    guarded = not any(_reads_or_trains(event) for event in working)
    region = None if guarded else _unguarded(analysis, module, working)
    on_gpu = next((facts.site(event) for event in working if guarded and _puts_on_gpu(analysis, event)), None)
    starts = _starts(analysis, module)
    here, workers = _trains_here(analysis), tuple(_workers(analysis))
    if place is None:
        return Script(None, None, guarded, region, on_gpu, trains_at, starts, here, workers)
    statement, scope = place
    site = facts.places.site(scope, module) if not isinstance(scope, ast.Module) else None
    return Script(facts.places.site(statement, module), site, guarded, region, on_gpu, trains_at, starts, here, workers)


def _starts(analysis: Analysis, module: ModuleFile) -> bool:
    """Whether a file may train when it is run: its top level reaches a backward pass, or has work for its own code.

    It has some under a guard, and where it names what it defines: ``main()``, ``run(Trainer)``.
    """
    backwards = analysis.facts.of("backward", "autograd_grad")
    if any(_anchor_in_entry(analysis, event, module) is not None for event in backwards):
        return True
    own = {each.name for each in module.tree.body if isinstance(each, _DEFINITIONS)}
    working = [each for each in module.tree.body if not isinstance(each, _DEFINITIONS)]
    return any(
        is_guard(statement) or any(isinstance(node, ast.Name) and node.id in own for node in walk(statement))
        for statement in working
    )


def is_guard(statement: ast.AST) -> bool:
    """``if __name__ == "__main__":``."""
    return isinstance(statement, ast.If) and is_main_test(statement.test)


def _anchor_in_entry(analysis: Analysis, event: Event, module: ModuleFile) -> Frame | None:
    """The frame of the entry's own top level, through which an event happened."""
    frames = analysis.facts.frames(event)
    return frames[0] if frames and frames[0].scope is module.tree else None


def _top_statement(analysis: Analysis, node: ast.AST, module: ModuleFile) -> ast.stmt | None:
    """The statement of the file's top level that holds a node."""
    current: ast.AST = node
    for each in analysis.facts.places.ancestors(node, module):
        if isinstance(each, ast.Module):
            return current if isinstance(current, ast.stmt) else None
        current = each
    return None


def _runs_at_import(analysis: Analysis, event: Event, module: ModuleFile) -> bool:
    """Whether an event happens when the file is imported: from its top level, outside of the guard."""
    opens = event.kind == "make" and any(
        isinstance(each, Made) and each.kind in ("loader", "dataset") for each in members(event.result)
    )
    if event.kind not in _WORKING and not opens and event.name not in TRAINERS_START:
        return False
    frame = _anchor_in_entry(analysis, event, module)
    if frame is None:
        return False
    anchor = frame.anchor  # the same for all events in what one call does
    return analysis.once(("is run at import", anchor), lambda: _is_run_at_import(analysis, anchor, module))


def _is_run_at_import(analysis: Analysis, node: ast.AST, module: ModuleFile) -> bool:
    top = _top_statement(analysis, node, module)
    return top is not None and not is_guard(top) and not isinstance(top, (ast.Import, ast.ImportFrom))


def _reads_or_trains(event: Event) -> bool:
    """Whether an event must not happen again in a worker that imports the script: training, or reading a loader."""
    if event.kind in ("backward", "next") or (event.kind == "call" and event.name in TRAINERS_START):
        return True
    return event.kind == "iterate" and any(
        (isinstance(member, Made) and member.kind == "loader")
        or (isinstance(member, Instance) and member.base is not None and member.base.kind == "loader")
        for member in unwrapped(event.receiver)
    )


def _unguarded(analysis: Analysis, module: ModuleFile, working: list[Event]) -> Region | None:
    """The top-level statements that would have to stand under a guard: all from the first that works on.

    What stands above the last function or class before the first loop over data may stay where it is, as long as it
    does not work on a GPU. None where a function or class would come along.
    """
    body = module.tree.body
    busy: set[int] = set()
    looping: set[int] = set()
    on_gpu: set[int] = set()
    models: set[int] = set()
    for event in working:
        position = _position(analysis, event, module)
        if position is None or isinstance(body[position], _DEFINITIONS):
            continue
        busy.add(position)
        if _reads_or_trains(event):
            looping.add(position)
        if _puts_on_gpu(analysis, event):
            on_gpu.add(position)
        if event.kind == "construct" and is_model(event.result):
            models.add(position)
    if not looping:
        return None
    end = min(looping)
    while True:
        defined = max((i for i in range(end) if isinstance(body[i], _DEFINITIONS)), default=-1)
        first = min(position for position in busy if position > defined)
        if not any(position < first for position in on_gpu):
            break
        # every spawned worker would repeat what happens on the GPU: the definitions in between come along
        end = min(on_gpu | models)
    moving = body[first:]
    taken = takers_outside(analysis, module, {name for top in moving for name, _ in stores(top)})
    if any(isinstance(each, _DEFINITIONS) or is_guard(each) for each in moving) or any(taken):
        return None  # a spawned worker, and who imports the script, may need what is defined there
    places = analysis.facts.places
    return Region(places.site(moving[0], module), places.site(moving[-1], module), None)


def _position(analysis: Analysis, event: Event, module: ModuleFile) -> int | None:
    """Where in the file the top-level statement stands in which an event happens."""
    frame = _anchor_in_entry(analysis, event, module)
    top = _top_statement(analysis, frame.anchor, module) if frame is not None else None
    return next((i for i, statement in enumerate(module.tree.body) if statement is top), None)


def _puts_on_gpu(analysis: Analysis, event: Event) -> bool:
    """Whether an event copies something to a device that may be a GPU."""
    if event.kind != "transfer" or event.name == "cpu":
        return False
    return analysis.devices.of_transfer(event).where != "cpu"


def _setup(analysis: Analysis, module: ModuleFile) -> tuple[ast.stmt, ast.AST] | None:
    """The first statement of the set-up code that calls torch, and the function (or module) that holds it.

    Where everything happens in a function that the top level calls, that function is looked into, and the one that
    trains where nothing here calls it. It is never behind the training: where a loop builds and trains
    (``for fold in folds:``), it is that loop.
    """
    facts = analysis.facts
    training = {id(frame.call) for event in facts.of("backward") for frame in facts.frames(event)}
    root = _root(analysis, module)
    for event in facts.events:
        if not _sets_up(event) or _is_argument_of_loader(analysis, event):
            continue
        frames = facts.frames(event)
        if not frames or frames[0].scope is not root:
            continue
        # the deepest function of the entry file that holds set-up and training: main(), but not a helper or a class
        chosen = frames[0]
        for frame in frames[1:]:
            plain = frame.function is None or frame.function.cls is None
            if frame.module is not module or not plain or chosen.loops or not isinstance(frame.call, ast.Call):
                break
            if not _is_main_call(analysis, frame, module) or (training and id(frame.call) not in training):
                break
            chosen = frame
        if chosen.loops:
            continue
        statement = _outer_statement(analysis, chosen, module)
        if statement is None or isinstance(statement, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)):
            continue
        first = min(facts.of("backward"), key=lambda event: event.order, default=None)
        if first is not None and first.order < event.order:
            return _leading_to(analysis, first, chosen.scope, module)
        if module.path.suffix == ".ipynb" and len(frames) > 1:
            # A cell that tries a helper out is no set-up code: what follows the imports is.
            return _behind_imports(module) or (statement, chosen.scope)
        return statement, chosen.scope
    first = next(iter(facts.of("backward")), None)
    return _leading_to(analysis, first, module.tree, module) if first is not None else None


def _root(analysis: Analysis, module: ModuleFile) -> ast.AST:
    """Where a file starts: its top level, or the one function that builds optimizers and trains for another file."""
    facts = analysis.facts
    roots = {id(frames[0].scope): frames[0].scope for frames in map(facts.frames, facts.of("backward")) if frames}
    root = next(iter(roots.values()), module.tree)
    made = (each for each in facts.of("make") if any(True for _ in optimizers_in(each.result)))
    if len(roots) == 1 and root in module.tree.body and any(facts.frames(each)[0].scope is root for each in made):
        return root
    return module.tree


def _where_it_trains(analysis: Analysis, module: ModuleFile, setup: tuple[ast.stmt, ast.AST] | None) -> Site | None:
    """The first statement of the set-up in the process that trains, whichever starts it.

    Where a function that other processes run trains, it may also be called by the script itself (``if args.spawn:``):
    what stands in it holds for both.
    """
    facts = analysis.facts
    trained = [facts.frames(event) for event in facts.of("backward")]
    if not trained or any(not frames or frames[0].scope is not module.tree for frames in trained):
        return None
    run = [frame for frames in trained for frame in frames[1:] if _is_started(analysis, frame)]
    if not run:
        return facts.places.site(setup[0], module) if setup is not None else None
    worker = run[0]
    if any(all(frame.scope is not worker.scope for frame in frames) for frames in trained):
        return None
    if any(frame.scope is not worker.scope for frame in run) or isinstance(worker.scope, ast.Lambda):
        return None
    for event in facts.events_in_functions([worker.scope]):
        if event.kind == "backward" or _sets_up(event):
            frame = next(each for each in facts.frames(event) if each.scope is worker.scope)
            statement = _outer_statement(analysis, frame, worker.module)
            return facts.places.site(statement, worker.module) if statement is not None else None
    return None


def _trains_here(analysis: Analysis) -> bool:
    """Whether some way to a backward pass starts no process."""
    trained = (analysis.facts.frames(event) for event in analysis.facts.of("backward"))
    return any(not any(_is_started(analysis, frame) for frame in frames) for frames in trained)


def _workers(analysis: Analysis) -> Iterator[Site]:
    """The functions that processes which the script starts run, where they make or wrap a model."""
    facts = analysis.facts
    for event in facts.of("transfer", "wrap"):
        frames = facts.frames(event)
        first = next((number for number, each in enumerate(frames) if _is_started(analysis, each)), len(frames))
        yield from (facts.places.site(each.scope, each.module) for each in frames[first:])


def _is_started(analysis: Analysis, frame: Frame) -> bool:
    """Whether a process of its own executes a frame: ``mp.spawn(worker)``, ``mp.Process(target=worker)``."""
    return frame.call is not None and any(
        event.kind == "call" and event.name.endswith(STARTERS) for event in analysis.facts.at(frame.call)
    )


def _leading_to(
    analysis: Analysis, event: Event, scope: ast.AST, module: ModuleFile
) -> tuple[ast.stmt, ast.AST] | None:
    """The statement through which an event happens, in a function of the file or else on its top level."""
    frames = analysis.facts.frames(event)
    frame = next((each for each in frames if each.scope is scope), frames[0] if frames else None)
    if frame is None or frame.module is not module or frames[0].scope is not module.tree:
        return None
    statement = _outer_statement(analysis, frame, module)
    return (statement, frame.scope) if statement is not None else None


def _behind_imports(module: ModuleFile) -> tuple[ast.stmt, ast.AST] | None:
    """The statement behind the first imports of torch and those that follow on them, where it defines nothing."""
    body = module.tree.body
    first = next((i for i, each in enumerate(body) if "torch" in imported_by(each)), len(body))
    rest = (each for each in body[first:] if not isinstance(each, (ast.Import, ast.ImportFrom)))
    statement = next(rest, None)
    return (statement, module.tree) if statement is not None and not isinstance(statement, _DEFINITIONS) else None


def imported_by(statement: ast.stmt) -> set[str]:
    """The packages that a statement imports."""
    if isinstance(statement, ast.Import):
        return {alias.name.partition(".")[0] for alias in statement.names}
    return {(statement.module or "").partition(".")[0]} if isinstance(statement, ast.ImportFrom) else set()


def _is_main_call(analysis: Analysis, frame: Frame, module: ModuleFile) -> bool:
    """Whether a call is a statement of its own of the top level or its guard: ``main()``, ``main(args)``."""
    parent = analysis.facts.places.parent(frame.call, module) if frame.call is not None else None
    return isinstance(parent, (ast.Expr, ast.Assign)) or (
        isinstance(parent, ast.Call) and isinstance(analysis.facts.places.parent(parent, module), ast.Expr)
    )


def _outer_statement(analysis: Analysis, frame: Frame, module: ModuleFile) -> ast.stmt | None:
    """The statement directly in the function's (or the guard's) body that holds the frame's node."""
    places = analysis.facts.places
    current = places.statement(frame.anchor, module)
    while current is not None:
        parent = places.parent(current, module)
        if parent is frame.scope or parent is None or is_guard(parent):
            return current
        current = parent if isinstance(parent, ast.stmt) else places.statement(parent, module)
    return None


def _is_argument_of_loader(analysis: Analysis, event: Event) -> bool:
    """Whether a call is an argument of a loader: ``pin_memory=torch.cuda.is_available()`` sets nothing up."""
    return any(
        made.kind == "make" and any(isinstance(each, Made) and each.kind == "loader" for each in members(made.result))
        for above in analysis.facts.places.ancestors(event.node, event.module)
        if isinstance(above, ast.Call)
        for made in analysis.facts.at(above)
    )


def _sets_up(event: Event) -> bool:
    """Whether an event is torch being called to set something up."""
    if event.kind not in _SETTING_UP:
        return False
    names = {event.name}
    for value in (event.result, event.receiver):
        names |= {member.qualname for member in members(value) if isinstance(member, (Made, External))}
    if event.kind == "construct":
        return any(
            base.startswith("torch.nn")
            for member in members(event.result)
            for base in (member.cls.externals() if hasattr(member, "cls") else ())
        )
    return any(name.startswith(("torch.", "torchvision.models", "timm.")) for name in names) and not any(
        name.startswith(_HARMLESS) for name in names
    )
