"""What it takes to compile a model: where it is whole and on its device, and what in its forward pass is in the way.

A compiled forward pass is one graph for tensors of one size. Whatever reads a tensor on the host, calls other code,
keeps state in the model or goes on until something happens breaks that graph, or has it compiled again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import switch_of
from turbofix.domain.trace import Control, Event
from turbofix.domain.values import Bound, Instance, Made, Tensor, Value, members
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import once_per_node
from turbofix.source.names import body_of, dotted, stored, targets_of, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.source.site import Site
from turbofix.training.data.shapes import hazards_in
from turbofix.training.model import ABSENT, Compiling, Hazard, Model, Step
from turbofix.training.objects import called_through, methods_around, models_in, outermost
from turbofix.training.script import is_guard

_READING = frozenset(("sync", "show", "grad_read", "autograd_grad", "backward", "save", "load", "destroy", "set"))

_BUILDING = frozenset(("make", "construct", "unknown_call"))

_TRACED = ("torch.", "Tensor.", "builtins.", "math.", "typing.", "list.", "dict.", "collections.OrderedDict")

_UNTRACED = (
    *("torch.utils.", "torch.autograd.", "torch.jit.", "torch.fft.", "torch.linalg.", "torch.nn.utils.", "torch.cuda."),
    *("torch.distributed.", "torch.random.", "torch.manual_seed", "torch.stft", "torch.istft", "torch.complex"),
    *("torch.view_as_complex", "torch.sparse", "torch.save", "torch.load", "torch.nn.init.", "torch.tensor"),
)

_KNOWN_CONTEXT = regex(r"\b(no_grad|autocast)\(")
_OTHERWISE = "the model is called by another method than as `model(x)`"

_SAME = ("train", "eval", "requires_grad_", "apply", "float")
"""Methods of a module that return the module."""


def with_compiling(analysis: Analysis, models: tuple[Model, ...], steps: tuple[Step, ...]) -> tuple[Model, ...]:
    """The models that steps call, with what compiling them would take."""
    called = {site for step in steps for site in step.models}
    if not called:
        return models
    forwards, set_up = _forwards(analysis), _set_up(analysis)
    inside = _inside(analysis, [event for events in forwards.values() for event in events])

    def passes(site: Site) -> tuple[list[Event], list[Event]]:
        own = forwards.get(site, [])
        return own, [each for node in dict.fromkeys(id(event.node) for event in own) for each in inside.get(node, ())]

    uses, hooked = list(_uses(analysis, forwards)), next(_hooks(analysis, built=True), None)
    dead = [event for event in analysis.facts.dead if event.kind == "compile"]
    told = [(event, switch_of(analysis, event)) for event in (*analysis.facts.of("compile"), *dead)]

    def with_own(model: Model) -> Model:
        found = _compiling(analysis, set_up, model, *passes(model.site))
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
        foreign = next((hazard for hazard, sites in uses if not sites or model.site in sites), None)
        compiling = replace(found, hazard=found.hazard or hooked, foreign=foreign, off=off, unsure=unsure)
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
    """The models beside whose calls the program takes gradients by itself, by where they are made."""
    return {site: hazard for hazard, sites in _gradients(analysis, _forwards(analysis)) for site in sites}


def _inside(analysis: Analysis, forwards: list[Event]) -> dict[int, list[Event]]:
    """What happens in each call of a model, by the node of the call."""
    nodes = {id(event.node) for event in forwards}
    facts = analysis.facts
    found: dict[int, list[Event]] = {}
    lists: dict[Control, list[list[Event]]] = {}  # those that an event belongs to, which its level decides
    for event in facts.events:
        own = lists.get(event.control)
        if own is None:
            calls = [id(frame.call) for frame in facts.frames(event) if id(frame.call) in nodes]
            own = lists[event.control] = [found.setdefault(each, []) for each in calls]
        for each in own:
            each.append(event)
    return found


def _uses(analysis: Analysis, forwards: dict[object, list[Event]]) -> Iterator[tuple[Hazard, set[object]]]:
    """What else a program does with its models that a compiled one does not go with; with which, or with any."""
    facts = analysis.facts
    yield from ((hazard, set()) for hazard in _hooks(analysis, built=False))
    yield from _gradients(analysis, forwards)
    for event in facts.of("call"):
        if event.name.startswith(("torch.jit.", "torch.onnx.", "torch.fx.", "torch.ao.", "torch.export.")):
            yield Hazard(f"the program calls {event.name}", facts.site(event)), set()


def _gradients(analysis: Analysis, forwards: dict[object, list[Event]]) -> Iterator[tuple[Hazard, set[object]]]:
    facts, why = analysis.facts, "the program takes gradients by itself, perhaps to differentiate them"
    for event in facts.of("autograd_grad"):
        scope = facts.frames(event)[-1].scope
        pairs = ((site, frame) for site, calls in forwards.items() for each in calls for frame in facts.frames(each))
        yield Hazard(why, facts.site(event)), {site for site, frame in pairs if frame.scope is scope}


def _hooks(analysis: Analysis, *, built: bool) -> Iterator[Hazard]:
    """Hooks of layers: those that a model is built with, which the compiler goes through, or the others."""
    for frame in {frame.scope: frame for frame in analysis.facts.opened()}.values():
        if "register_" in frame.module.text and (getattr(frame.scope, "name", "") == "__init__") == built:
            for node in _hooking_in(frame.scope):
                yield Hazard("forward passes have hooks", analysis.facts.places.site(node, frame.module))


@once_per_node
def _hooking_in(scope: ast.AST) -> list[ast.Call]:
    """The calls in the body of a function, class or file itself that register a hook."""
    calls = (node for statement in body_of(scope) for node in walk_here(statement) if isinstance(node, ast.Call))
    return [node for node in calls if registers_hook(node)]


def registers_hook(call: ast.Call) -> bool:
    """Whether a call has something called whenever a layer is, or a gradient is there: not where a state is saved."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.startswith("register_") and name.endswith("_hook") and "_state_" not in name


def _compiling(
    analysis: Analysis, set_up: SetUp, model: Model, forwards: list[Event], inside: list[Event]
) -> Compiling:
    values: list[Value] = [
        each
        for event in forwards
        for each in models_in(event.receiver)
        if analysis.facts.origin_site(each.origin) == model.site
    ]
    hazard = next(_hazards(analysis, forwards, inside), None)
    barred = None
    if not all(_has_own_forward(each) for each in values):
        barred = Hazard(
            "`model.compile()` compiles nothing where the model is one of torch.nn's own classes", model.site
        )
    elif all(_calls_method(event) or called_through(analysis, event, None) is not None for event in forwards):
        barred = Hazard(_OTHERWISE, analysis.facts.site(forwards[0]) if forwards else model.site)
    last = _last_of_set_up(analysis, set_up.all_of(values))
    if last is None:
        return _before_training(analysis, Compiling(hazard=hazard, barred=barred), model, forwards)
    statement = analysis.facts.places.statement(last.node, last.module)
    text = _name(statement, last.node)
    placed = [each for each in (last,) if each.kind == "transfer"] or set_up.moves_of(values)
    place = analysis.devices.of_transfer(placed[-1]) if placed else model.device
    under = _tests_above(analysis, statement, last)
    wrapped = under and any(id(each) in set_up.wraps for each in values)  # perhaps only where there are several GPUs
    if statement is None or text is None or len(under) > 1 or wrapped or (under and under[0] not in place.tests):
        return _before_training(analysis, Compiling(hazard=hazard, barred=barred), model, forwards)
    after = analysis.facts.places.site(statement, last.module)
    moved = analysis.facts.site(placed[-1]) if placed else None
    method = placed[-1].name if placed else ""
    return Compiling(after, text, place, hazard, tested=bool(under), moved=moved, method=method, barred=barred)


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


@dataclass(eq=False)
class SetUp:
    """The calls that move models, and those that wrap them, by the identity of the model."""

    moves: dict[int, list[Event]]
    wraps: dict[int, list[Event]]

    def moves_of(self, values: list[Value]) -> list[Event]:
        """The calls that move one of some models, in program order."""
        return _of(self.moves, values)

    def all_of(self, values: list[Value]) -> list[Event]:
        """The same, with those that wrap it."""
        found = {id(event): event for event in (*_of(self.moves, values), *_of(self.wraps, values))}
        return sorted(found.values(), key=lambda event: event.order)


def _of(known: dict[int, list[Event]], values: list[Value]) -> list[Event]:
    found = {id(event): event for value in values for event in known.get(id(value), ())}
    return sorted(found.values(), key=lambda event: event.order)


def _set_up(analysis: Analysis) -> SetUp:
    found = SetUp({}, {})
    for event in analysis.facts.of("transfer"):
        if event.name in ("to", "cuda"):
            for value in models_in(event.receiver):
                found.moves.setdefault(id(value), []).append(event)
    for event in analysis.facts.of("wrap"):
        for value in models_in(event.result or event.receiver):
            found.wraps.setdefault(id(value), []).append(event)
    return found


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


# --- what stands in the way ----------------------------------------------------------------------------------------


def _hazards(analysis: Analysis, forwards: list[Event], inside: list[Event]) -> Iterator[Hazard]:
    """What breaks the graph of a model's forward pass, or has it compiled again and again."""
    facts = analysis.facts
    nodes = {id(event.node) for event in forwards}
    scopes: dict[int, Frame] = {}
    for event in sorted(inside, key=lambda each: each.order):
        frames = facts.frames(event)
        start = next((i for i, frame in enumerate(frames) if frame.call is not None and id(frame.call) in nodes), None)
        if start is None:
            continue
        for frame in frames[start:]:
            scopes.setdefault(id(frame.scope), frame)
        why = _why(event)
        if why is not None:
            yield Hazard(why, facts.site(event))
    for frame in scopes.values():
        for node, why in (*hazards_in(frame.scope), *_breaks_in(frame.scope)):
            yield Hazard(why, facts.places.site(node, frame.module))


def _why(event: Event) -> str | None:
    """What an event in a forward pass breaks."""
    if event.kind in _READING:
        return "the forward pass reads or shows a value on the host"
    if event.kind == "test" and any(isinstance(each, Tensor) for each in members(event.receiver)):
        # (a number that was read from a tensor in the forward pass is told where it is read)
        return "the forward pass goes on as the data say"
    if event.kind in _BUILDING:
        return "the forward pass builds or calls what is not known"
    if event.kind == "call" and (not event.name.startswith(_TRACED) or event.name.startswith(_UNTRACED)):
        return f"the forward pass calls {event.name}"
    return None


@once_per_node
def _breaks_in(scope: ast.AST) -> tuple[tuple[ast.AST, str], ...]:
    """The statements of a forward pass that break its graph, or are compiled again for each number."""
    return tuple(_breaks(scope))


def _breaks(scope: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in walk(scope):
        if isinstance(node, (ast.Try, ast.While, ast.Global, ast.Nonlocal, ast.Yield, ast.Await, ast.Raise)):
            yield node, f"the forward pass has a `{type(node).__name__.lower()}`"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node, "the forward pass keeps something in the model"
        elif isinstance(node, ast.For) and not _is_over_layers(node.iter):
            yield node, "a loop of the forward pass is unrolled, as often as the data say"
        elif isinstance(node, ast.withitem) and not _KNOWN_CONTEXT.search(ast.unparse(node.context_expr)):
            yield node.context_expr, "the forward pass enters a context that is not known"
        elif isinstance(node, ast.Call) and (dotted(node.func) or "").partition(".")[0] in ("random", "np", "numpy"):
            yield node, f"the forward pass calls {dotted(node.func)}"


def _is_over_layers(iterated: ast.expr) -> bool:
    """``self.layers``, ``range(self.depth)``, ``zip(self.convs, self.norms)``: as often each time."""
    if isinstance(iterated, ast.Call) and dotted(iterated.func) in ("range", "enumerate", "zip", "reversed", "len"):
        return all(_is_over_layers(each) for each in iterated.args)
    if isinstance(iterated, ast.Constant):
        return True
    return (dotted(iterated) or "").startswith("self.")
