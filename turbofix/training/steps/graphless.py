"""Whether an evaluation needs the graphs that it builds: whether anything asks for gradients, or takes results on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import tensors_in
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import Bound, Class, Function, Instance, Made, Namespace, Value, members
from turbofix.library.tables import words
from turbofix.source.answers import every
from turbofix.source.names import walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, blocks
from turbofix.source.site import Site
from turbofix.training.model import KeptGraph, Step
from turbofix.training.steps.acts import is_model, is_module_class, keeps_graph
from turbofix.training.steps.regions import no_grad

_ASKING = frozenset(
    {
        "requires_grad", "requires_grad_", "retain_grad", "register_hook", "register_full_backward_hook", "grad",
        "register_backward_hook", "backward", "grad_fn", "enable_grad", "set_grad_enabled", "autograd", "is_leaf",
        "inference_mode", "is_grad_enabled", "vjp", "jvp", "jacrev", "jacobian", "hessian", "retain_graph",
        "create_graph", "saved_tensors_hooks",
    }
)  # fmt: skip
_LEARNING = ("backward", "autograd_grad", "step", "zero_grad", "update", "clip", "unscale", "compile", "wrap")
_ASKING_LIBRARIES = (
    "captum", "torchattacks", "foolbox", "advertorch", "art", "cleverhans", "pytorch_grad_cam", "torchdiffeq",
    "higher", "learn2learn", "functorch", "torchopt",
)  # fmt: skip
LEFT_TO_RUNS = frozenset({"library", "handed", "retained", "kept", "cached"})
"""Reasons for which a graph may be needed and mostly is not: a run that needs one ends, or learns differently."""
PLAIN = frozenset({"float", "int", "len", "str", "bool", "round"})
CUTTING = words("detach item tolist numpy argmax argmin argsort eq ne gt ge lt le")
"""Methods, and functions of torch, whose result has no graph."""
KEEPING = frozenset({"append", "extend", "add", "update", "insert", "put", "setdefault", "appendleft"})


def kept_graph(
    analysis: Analysis, record: LoopRecord, events: list[Event], steps: tuple[Step, ...]
) -> KeptGraph | None:
    """What to say of the graphs of a loop over batches that has no backward pass; None where it builds none."""
    forwards = [event for event in events if event.kind == "forward" and not inside_model(analysis, event)]
    forwards = [event for event in forwards if not is_pipeline(event)]
    if not forwards or any(no_grad(event) for event in events if event.kind in ("forward", "unknown_call")):
        return None
    if _in_step(analysis, forwards, steps) or is_switched(analysis):
        return None
    places, module = analysis.facts.places, record.module
    function = places.function(record.node, module)
    alone = function is not None and does_nothing_else(analysis, function)
    reasons = list(_reasons(analysis, record, events, steps))
    why = next((each for each in reasons if each[0] not in LEFT_TO_RUNS), reasons[0] if reasons else None)
    return KeptGraph(
        places.site(record.node, module),
        places.site(function, module) if alone and function is not None else None,
        frozenset.intersection(*(_through(analysis, event, record) for event in forwards)),
        why[0] if why else None,
        why[1] if why else None,
    )


def is_pipeline(event: Event) -> bool:
    """Whether what is called is one of diffusers' pipelines, which build no graphs."""
    made = [each.qualname for each in members(event.receiver) if isinstance(each, Made)]
    return bool(made) and all(name.startswith("diffusers.") and "Pipeline" in name for name in made)


def _through(analysis: Analysis, event: Event, record: LoopRecord) -> frozenset[Site]:
    """The functions between a loop and what happens in it."""
    frames = analysis.facts.frames_within(event, record.node)[1:]
    return frozenset(analysis.facts.places.site(frame.scope, frame.module) for frame in frames)


def inside_model(analysis: Analysis, event: Event) -> bool:
    """Whether an event happens inside a model's own code."""
    return any(is_forward(frame) for frame in analysis.facts.frames(event))


def is_forward(frame: Frame) -> bool:
    detail = frame.opener.detail if frame.opener is not None else None
    receiver = detail.receiver if isinstance(detail, Bound) else None
    of_module = isinstance(receiver, Instance) and is_module_class(receiver)
    return of_module and getattr(frame.scope, "name", "") == "forward"


def is_switched(analysis: Analysis) -> bool:
    """Whether the program switches graphs on and off by statements, and not for the length of a ``with`` alone."""
    places = analysis.facts.places
    return any(
        event.name == "torch.set_grad_enabled" and isinstance(places.parent(event.node, event.module), ast.Expr)
        for event in analysis.facts.of("call")
    )


def _in_step(analysis: Analysis, events: list[Event], steps: tuple[Step, ...]) -> bool:
    """Whether a training step runs the loop: what comes out of it may be a part of its loss."""
    loops = {step.loop.site for step in steps}
    return any(
        analysis.facts.places.site(each.node, each.module) in loops
        for event in events
        for each in analysis.facts.loops(event)
    )


def does_nothing_else(analysis: Analysis, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether no gradient is ever wanted in a function, so that it can be decorated as a whole."""
    if isinstance(function, ast.AsyncFunctionDef) or function.decorator_list:
        return False
    for node in walk(function):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)):
            return False
        if isinstance(node, FUNCTIONS) and node is not function and not isinstance(node, ast.Lambda):
            return False
        if asks(node):
            return False
    inside = analysis.facts.events_in_functions([function])
    if any(event.kind in _LEARNING[:4] for event in inside):
        return False
    forwards = [event for event in inside if event.kind == "forward"]
    if any(no_grad(event) for event in forwards):
        return False
    # setting up an optimizer or a model, or what is returned as it was made, is more than an evaluation
    return not any(event.kind in ("make", "construct") and is_model(event.result) for event in inside)


def asks(node: ast.AST) -> bool:
    """Whether a part of the text asks for a gradient, or whether there is one."""
    if isinstance(node, ast.Attribute):
        return node.attr in _ASKING
    if isinstance(node, ast.keyword):
        return node.arg in ("requires_grad", "create_graph", "retain_graph") and not (
            isinstance(node.value, ast.Constant) and not node.value.value
        )
    return isinstance(node, ast.Name) and node.id in _ASKING - {"grad"}


def imports_asking(module: ModuleFile) -> Iterator[ast.AST]:
    """The imports of libraries that ask for gradients."""
    nodes: list[ast.Import | ast.ImportFrom] = [*every(ast.Import, module.tree), *every(ast.ImportFrom, module.tree)]
    for node in nodes:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        if any(name.partition(".")[0] in _ASKING_LIBRARIES for name in names):
            yield node


def _reasons(
    analysis: Analysis, record: LoopRecord, events: list[Event], steps: tuple[Step, ...]
) -> Iterator[tuple[str, Site]]:
    """Why the graphs may be needed, each with the place that tells."""
    places, facts = analysis.facts.places, analysis.facts
    for module in analysis.execution.modules.values():
        for node in imports_asking(module):
            yield "library", places.site(node, module)
    seen: set[ast.AST] = set()
    for event in events:
        for frame in facts.frames_within(event, record.node):
            here = any(record.node is each for each in frame.loops)
            scope = record.node if here else frame.scope
            if scope in seen:
                continue
            seen.add(scope)
            for block in blocks(scope):
                for statement in block:
                    for part in walk_here(statement):
                        if asks(part) and hasattr(part, "lineno"):
                            yield "asked", places.site(part, frame.module)
                        if not here and isinstance(part, ast.If) and _sets_attribute(part):
                            yield "cached", places.site(part.test, frame.module)
        if any(map(is_model, given_away(event))):
            yield "handed", facts.site(event)
    for event in facts.of("backward", "autograd_grad"):
        if keeps_graph(event):
            yield "retained", facts.site(event)
    handed_on = next(
        (each for each in _here(record.node) if isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await))), None
    )
    if handed_on is not None:
        yield "yielded", places.site(handed_on, record.module)
    yield from _taken_on(analysis, record, events, steps)


def given_away(event: Event) -> list[Value]:
    """What a call gives to code that is neither the project's nor torch's."""
    foreign = event.kind in ("call", "unknown_call") and not event.name.startswith(("torch.", "builtins."))
    return event.arguments.values() if foreign and event.arguments is not None else []


def _here(loop: ast.AST) -> Iterator[ast.AST]:
    """What a loop's own function executes in it."""
    return (each for block in blocks(loop) for statement in block for each in walk_here(statement))


def _sets_attribute(node: ast.If) -> bool:
    """``if self.cache is None: self.cache = ...``: what is made once stays without a graph."""
    test = ast.dump(node.test)
    if "'training'" in test:
        return False
    return any(
        isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name)
        for statement in node.body
        for each in walk_here(statement)
    )


def _taken_on(
    analysis: Analysis, record: LoopRecord, events: list[Event], steps: tuple[Step, ...]
) -> Iterator[tuple[str, Site]]:
    """Where a training step may take up what the loop computed: a name, an attribute, what its function returns."""
    places, facts, module = analysis.facts.places, analysis.facts, record.module
    frames = next((found for each in events if (found := facts.frames_within(each, record.node))), ())
    outer = facts.frames(events[0])[: -len(frames)] if frames else ()
    inside = (*outer, *frames[:1])
    scope = places.scope(record.node, module)
    for node in _taken(analysis, scope, module, record.node, steps, inside):
        yield "taken", places.site(node, module)
    for node in walk(record.node):
        kept = kept_attribute(node)
        if kept is not None and _may_be_tensor(analysis, kept, inside):
            yield "kept", places.site(node, module)
    yield from _kept_by_others(analysis, record, events)
    function = places.function(record.node, module)
    if function is None:
        return
    if any(isinstance(each, (ast.Global, ast.Nonlocal)) for each in walk(function)):
        yield "kept", places.site(function, module)
    for event in facts.of("return"):
        around = facts.frames(event)
        if len(around) < 2 or around[-1].scope is not function or event.result is None:
            continue
        if not any(has_tensor(each) for each in members(event.result)):
            continue
        if isinstance(event.node, ast.Return) and not _comes_from(event.node, {id(event.node.value)}, set()):
            continue
        caller = around[-2]
        statement = places.statement(caller.anchor, caller.module)
        if not isinstance(statement, (ast.Assign, ast.Expr)):
            yield "kept", places.site(caller.anchor, caller.module)
            continue
        targets = [each for target in getattr(statement, "targets", ()) for each in walk(target)]
        if any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets):
            yield "kept", places.site(caller.anchor, caller.module)
        for node in _taken(analysis, caller.scope, caller.module, statement, steps, around[:-1]):
            yield "taken", places.site(node, caller.module)


def _kept_by_others(analysis: Analysis, record: LoopRecord, events: list[Event]) -> Iterator[tuple[str, Site]]:
    """Where a function that the loop calls keeps a tensor in an attribute; what models keep is made anew each time."""
    facts = analysis.facts
    seen: set[ast.AST] = set()
    for event in events:
        frames = facts.frames(event)
        for frame in facts.frames_within(event, record.node)[1:]:
            if frame.scope in seen or is_forward(frame):
                continue
            seen.add(frame.scope)
            for node in walk(frame.scope):
                kept = kept_attribute(node)
                if kept is not None and _may_be_tensor(analysis, kept, frames[: frames.index(frame) + 1], seldom=True):
                    yield "kept", analysis.facts.places.site(node, frame.module)


def _taken(  # noqa: PLR0913
    analysis: Analysis,
    scope: ast.AST,
    module: ModuleFile,
    source: ast.AST,
    steps: tuple[Step, ...],
    frames: tuple[Frame, ...],
) -> Iterator[ast.AST]:
    """Where what a part of a scope sets, or is computed from it, comes into a training loop or a call that trains."""
    places, training, reached = analysis.facts.places, _training_calls(analysis), readers(scope)
    inside = {id(each) for each in walk(source)}
    loops = [loop for loop, where in _training_loops(analysis, steps) if where is module and loop is not source]
    learning = {id(each) for loop in loops if places.scope(loop, module) is scope for each in walk(loop)}
    given: set[int] = set()
    for node in walk(scope):
        if isinstance(node, ast.Call) and id(node) in training and source not in walk(node):
            parts = [*node.args, *(each.value for each in node.keywords)]
            parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            given |= {id(each) for part in parts for each in walk(part)}
    flows = [(value, targets) for value, targets in map(_flow, walk(source)) if value is not None]
    graphs = [
        targets for value, targets in flows if isinstance(value, ast.expr) and _may_be_tensor(analysis, value, frames)
    ]
    put = {id(one) for targets in graphs for target in targets for one in walk(target)}
    waiting = [each for each, reads in reached.items() if put & {id(each), *map(id, reads)}]
    for each in waiting:  # grows meanwhile
        for read in reached.get(each, ()):
            if id(read) in inside:
                continue
            if id(read) in given or (id(read) in learning and _may_be_tensor(analysis, read, frames)):
                yield read
            if id(read) in given or id(read) in learning:
                continue
            statement = places.statement(read, module)
            value, targets = _flow(statement) if statement is not None else (None, [])
            kept = getattr(statement, "value", None)
            if value is None and isinstance(kept, ast.Call):
                value, targets = _flow(kept)
            if value is not None and any(read is one for one in walk(value)):
                found = {id(one) for target in targets for one in walk(target)}
                waiting += [
                    one for one, reads in reached.items() if one not in waiting and found & {id(one), *map(id, reads)}
                ]


def _training_calls(analysis: Analysis) -> set[int]:
    """The calls that run a backward pass, and those of the backward passes."""
    found: set[int] = set()
    for event in analysis.facts.of("backward", "autograd_grad"):
        found.add(id(event.node))
        found |= {id(frame.call) for frame in analysis.facts.frames(event) if frame.call is not None}
    return found


def _training_loops(analysis: Analysis, steps: tuple[Step, ...]) -> Iterator[tuple[ast.AST, ModuleFile]]:
    sites = {step.loop.site for step in steps}
    for module in analysis.execution.modules.values():
        for kind in LOOPS:
            for node in every(kind, module.tree):
                if analysis.facts.places.site(node, module) in sites:
                    yield node, module


def _flow(node: ast.AST) -> tuple[ast.AST | None, list[ast.expr]]:
    """What a statement or call hands on, and to what."""
    if isinstance(node, ast.Assign):
        return node.value, node.targets
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        return node.value, [node.target]
    if isinstance(node, ast.For):
        return node.iter, [node.target]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return node.context_expr, [node.optional_vars]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
        return ast.Tuple([*node.args, *(each.value for each in node.keywords)], ast.Load()), [node.func.value]
    return None, []


def _comes_from(value: ast.AST, sources: set[int], names: set[str]) -> bool:
    """Whether an expression holds one of some nodes or names, and does not cut it off from its graph."""
    if isinstance(value, ast.Call):
        name = getattr(value.func, "id", None) or getattr(value.func, "attr", None)
        if name in (PLAIN if isinstance(value.func, ast.Name) else CUTTING):
            return False
    if id(value) in sources or (isinstance(value, ast.Name) and value.id in names):
        return True
    return any(_comes_from(each, sources, names) for each in ast.iter_child_nodes(value))


def kept_attribute(node: ast.AST) -> ast.expr | None:
    """What is put into an attribute: ``self.last = x``, ``self.outputs.append(x)``."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(each, ast.Attribute) for target in targets for each in _written_to(target)):
            return node.value
    method = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Call) and method is not None and method.attr in KEEPING and node.args:
        return node.args[0] if isinstance(method.value, ast.Attribute) else None
    return None


def _written_to(target: ast.expr) -> Iterator[ast.expr]:
    """What an assignment writes into: not what an index is computed from (``x[torch.arange(n)] = y``)."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _written_to(each)
        return
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    yield target


def _may_be_tensor(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...], *, seldom: bool = False) -> bool:
    """Whether an expression may be a tensor with a graph; ``seldom``: where nothing is known of it, it is none."""
    if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr, ast.Lambda)):
        return False
    if isinstance(node, ast.Call):
        if any(event.kind == "sync" for event in analysis.facts.at(node)):
            return False
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if name in (PLAIN if isinstance(node.func, ast.Name) else CUTTING):
            called = members(analysis.facts.evaluate(node.func, frames))
            if not any(isinstance(each, (Function, Bound, Class)) for each in called):
                return False
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.BoolOp)):
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return any(_may_be_tensor(analysis, each, frames, seldom=seldom) for each in parts)
    value = analysis.facts.evaluate(node, frames)
    return not seldom if value is None else any(has_tensor(each) for each in members(value))


def has_tensor(value: Value, depth: int = 3) -> bool:
    """Whether a value may be a tensor with a graph, or hold one in its items or attributes."""
    if isinstance(value, Namespace) or (isinstance(value, Instance) and not is_module_class(value)):
        held = (each for attribute in value.attributes.values() for each in members(attribute))
        return depth > 0 and any(has_tensor(each, depth - 1) for each in held)
    return any(
        bool(tensor.roles & {"output", "maybe_output", "loss", "param"}) or tensor.origin is None
        for tensor in tensors_in(value)
    )
