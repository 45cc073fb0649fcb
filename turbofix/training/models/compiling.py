"""What it takes to compile a model: where it is whole and on its device, and what it has to be called by.

What breaks the graph of its forward pass, a run shows: nothing of that is looked for.
"""

from __future__ import annotations

import ast
from collections.abc import Container
from dataclasses import replace

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import switch_of
from turbofix.domain.trace import Event
from turbofix.domain.values import Bound, Instance, Made, Value, members
from turbofix.source.names import dotted, stored, targets_of
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.training.model import ABSENT, Compiling, Hazard, Model, Step
from turbofix.training.objects import called_through, methods_around, models_in, outermost
from turbofix.training.script import is_guard

_EXPORTING = (
    *("torch.jit.script", "torch.jit.trace", "torch.jit.save", "torch.onnx.export", "torch.onnx._export"),
    *("torch.fx.", "torch.ao.", "torch.export."),
)
"""What takes no compiled model: often at the end of a training, where no short run comes."""

_OTHERWISE = "the model is called by another method than as `model(x)`"

_SAME = ("train", "eval", "requires_grad_", "apply", "float")
"""Methods of a module that return the module."""


def with_compiling(analysis: Analysis, models: tuple[Model, ...], steps: tuple[Step, ...]) -> tuple[Model, ...]:
    """The models that steps call, with what compiling them would take."""
    called = {site for step in steps for site in step.models}
    if not called:
        return models
    forwards, taken, facts = _forwards(analysis), differentiated(analysis), analysis.facts
    exports = [each for each in facts.of("call") if each.name.startswith(_EXPORTING)]
    exported = Hazard(f"the program calls {exports[0].name}", facts.site(exports[0])) if exports else None
    dead = [event for event in analysis.facts.dead if event.kind == "compile"]
    told = [(event, switch_of(analysis, event)) for event in (*analysis.facts.of("compile"), *dead)]

    def with_own(model: Model) -> Model:
        found = _compiling(analysis, model, forwards.get(model.site, []))
        own = [switch for event, switch in told if _is_of(analysis, event.receiver, model)]
        off = own[0] if own and all(each.off for each in own) else ABSENT
        unsure = own[0] if own and all(each.state == "unknown" for each in own) else ABSENT
        compiled = model.compiled
        if found.barred is not None and found.barred.why == _OTHERWISE:
            named = analysis.once("methods of models", lambda: _methods(analysis, steps))
            bound = [(event, each) for event, _ in told for each in members(event.receiver) if isinstance(each, Bound)]
            done = {each.function.name: event for event, each in bound if _is_of(analysis, each.receiver, model)}
            methods = named.get(model.site, ())
            if methods:
                found = replace(found, barred=_copied(analysis, model), methods=methods)
                compiled = analysis.facts.site(done[methods[0]]) if done.keys() >= {*methods} else compiled
        compiling = replace(found, foreign=taken.get(model.site) or taken.get(None) or exported, off=off, unsure=unsure)
        return replace(model, compiling=compiling, compiled=None if off.off else compiled)

    return tuple(with_own(each) if each.site in called else each for each in models)


def _forwards(analysis: Analysis) -> dict[object, list[Event]]:
    """The calls of each model, by where it is made."""
    forwards: dict[object, list[Event]] = {}
    for event in outermost(analysis, analysis.facts.of("forward")):
        for value in models_in(event.receiver):
            forwards.setdefault(analysis.facts.origin_site(value.origin), []).append(event)
    return forwards


def differentiated(analysis: Analysis) -> dict[object, Hazard]:
    """The models beside whose calls the program takes gradients by itself, by where they are made; None for any."""
    facts, why = analysis.facts, "the program takes gradients by itself, perhaps to differentiate them"
    found: dict[object, Hazard] = {}
    for event in facts.of("autograd_grad"):
        scope, forwards = facts.frames(event)[-1].scope, _forwards(analysis)
        calls = ((site, frame) for site, events in forwards.items() for each in events for frame in facts.frames(each))
        for site in {site for site, frame in calls if frame.scope is scope} or {None}:
            found.setdefault(site, Hazard(why, facts.site(event)))
    return found


def _compiling(analysis: Analysis, model: Model, forwards: list[Event]) -> Compiling:
    facts = analysis.facts
    called = [each for event in forwards for each in models_in(event.receiver)]
    values = {id(each): each for each in called if facts.origin_site(each.origin) == model.site}
    barred = None
    if not all(map(_has_own_forward, values.values())):
        why = "`model.compile()` compiles nothing where the model is one of torch.nn's own classes"
        barred = Hazard(why, model.site)
    elif all(_calls_method(event) or called_through(analysis, event, None) is not None for event in forwards):
        barred = Hazard(_OTHERWISE, facts.site(forwards[0]) if forwards else model.site)
    moves = [each for each in facts.of("transfer") if each.name in ("to", "cuda") and _holds(each.receiver, values)]
    wraps = [each for each in facts.of("wrap") if _holds(each.result or each.receiver, values)]
    last = _last_of_set_up(analysis, sorted((*moves, *wraps), key=lambda event: event.order))
    if last is None:
        return _before_training(analysis, Compiling(barred=barred), model, forwards)
    statement = facts.places.statement(last.node, last.module)
    text = _name(statement, last.node)
    placed = last if last.kind == "transfer" else moves[-1] if moves else None
    place = analysis.devices.of_transfer(placed) if placed is not None else model.device
    under = _tests_above(analysis, statement, last)
    wrapped = under and wraps  # perhaps only where there are several GPUs
    if statement is None or text is None or len(under) > 1 or wrapped or (under and under[0] not in place.tests):
        return _before_training(analysis, Compiling(barred=barred), model, forwards)
    after = facts.places.site(statement, last.module)
    moved, method = (facts.site(placed), placed.name) if placed is not None else (None, "")
    return Compiling(after, text, place, tested=bool(under), moved=moved, method=method, barred=barred)


def _holds(value: Value | None, models: Container[int]) -> bool:
    return any(id(each) in models for each in models_in(value))


def _before_training(analysis: Analysis, compiling: Compiling, model: Model, forwards: list[Event]) -> Compiling:
    """The same with the outermost loop of a training, in front of which the model has a name of its own."""
    facts = analysis.facts
    for event in forwards or facts.of("backward"):
        if not any(level.kind == "no_grad" for level in event.control.upwards()):
            frames = facts.frames(event)
            for count, frame in enumerate(frames, 1):
                for loop in frame.loops:
                    text = _name_in(analysis, loop, frames[:count], model)
                    if text is not None:
                        before = facts.places.site(loop, frame.module)
                        return replace(compiling, before=before, text=text, place=model.device)
    return compiling


def _name_in(analysis: Analysis, loop: ast.AST, frames: tuple[Frame, ...], model: Model) -> str | None:
    """What a model is called in a loop that does not give this name to anything."""
    given = stored(node for node in walk(loop) if isinstance(node, ast.stmt))
    looked: set[str] = set()
    for node in walk(loop):
        text = dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if text is None or text in looked or {text, text.partition(".")[0]} & given:
            continue
        looked.add(text)
        value = analysis.facts.evaluate(node, frames)
        if _is_of(analysis, value, model):
            return text
        for each in members(value):  # the object whose method is called there may hold it
            for name, held in each.attributes.items() if isinstance(each, Instance) else ():
                if name.isidentifier() and f"{text}.{name}" not in given and _is_of(analysis, held, model):
                    return f"{text}.{name}"
    return None


def _is_of(analysis: Analysis, value: Value | None, model: Model) -> bool:
    """Whether a value is a model, of all that it may be."""
    return any(analysis.facts.origin_site(each.origin) == model.site for each in models_in(value))


def _tests_above(analysis: Analysis, statement: ast.stmt | None, event: Event) -> list[Site]:
    """The tests under which a statement stands in its function; its own place for each loop or handler around it."""
    places = analysis.facts.places
    found: list[Site] = []
    for above in places.ancestors(statement, event.module) if statement is not None else ():
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            break
        if isinstance(above, ast.If) and not is_guard(above):
            inside = any(statement is each for block in above.body for each in walk(block))
            found.append(places.site(above.test if inside else above, event.module))
        elif isinstance(above, (*LOOPS, ast.Try)):
            found.append(places.site(above, event.module))
    return found


def _calls_method(event: Event) -> bool:
    """Whether a forward pass is a method (``vae.encode(x)``, ``model.forward(x)``), not a call of the model."""
    func = event.node.func if isinstance(event.node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr in (event.name, "forward")


def _methods(analysis: Analysis, steps: tuple[Step, ...]) -> dict[Site | None, tuple[str, ...]]:
    """The methods by which alone steps call models, where none of them goes backward as well."""
    facts, training, found = analysis.facts, {step.loop.site for step in steps}, dict[Site | None, set[str]]()
    for event in (*outermost(analysis, facts.of("forward")), *facts.of("backward", "step")):
        loops = (each.node for each in facts.loops(event) if facts.places.site(each.node, each.module) in training)
        loop = next(loops, None)
        if loop is None or any(level.kind == "no_grad" for level in event.control.upwards()):
            continue
        forward = event.kind == "forward"
        called = [*methods_around(analysis, event, loop)][:1]
        for model, name in called:
            found.setdefault(facts.origin_site(model.origin), set()).add(name if forward else "")
        for value in models_in(event.receiver) if forward and not called else ():
            name = event.node.func.attr if _calls_method(event) else ""  # type: ignore[attr-defined]
            found.setdefault(facts.origin_site(value.origin), set()).add(name)
    return {site: tuple(sorted(names)) for site, names in found.items() if "" not in names}


def _copied(analysis: Analysis, model: Model) -> Hazard | None:
    """Where the model is copied or saved as a whole: a method that was compiled by itself belongs to the first one."""
    facts = analysis.facts
    for event in facts.of("call", "save"):
        copies = event.kind == "call" and event.name == "copy.deepcopy"
        if (copies or event.kind == "save") and _is_of(analysis, event.result if copies else event.receiver, model):
            return Hazard("the model is copied or saved whole, with the method that is called", facts.site(event))
    return None


def _has_own_forward(value: Value) -> bool:
    """Whether the forward pass is one that ``compile()`` compiles: not written in ``torch.nn`` (seen on torch 2.13)."""
    if isinstance(value, Instance):
        return value.cls.find("forward") is not None
    if isinstance(value, Made) and value.kind == "wrapper":
        return all(_has_own_forward(each) for each in members(value.inner))
    return not isinstance(value, Made) or not value.qualname.startswith("torch.nn.")


def _last_of_set_up(analysis: Analysis, found: list[Event]) -> Event | None:
    """What moves or wraps a model last, where that is in one function, once, and in no loop."""
    facts = analysis.facts
    if not found or any(facts.loops(event) for event in found):
        return None
    scopes = {id(facts.frames(event)[-1].scope) for event in found if facts.frames(event)}
    nodes = [id(event.node) for event in found]
    return found[-1] if len(scopes) == 1 and len(set(nodes)) == len(nodes) else None


def _name(statement: ast.stmt | None, node: ast.AST) -> str | None:
    """What a model is called behind the statement that moves or wraps it."""
    assigned = targets_of(statement) if isinstance(statement, (ast.Assign, ast.AnnAssign)) else []
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and len(assigned) == 1:
        value = statement.value
        while value is not node and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr not in _SAME:
                return None
            value = value.func.value
        return dotted(assigned[0]) if value is node else None
    if isinstance(statement, ast.Expr) and statement.value is node and isinstance(node, ast.Call):
        return dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
    return None
