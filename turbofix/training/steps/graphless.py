"""Whether what only looks at a model needs the graphs that it builds: whether anything asks for gradients, or takes
results on.

That is an evaluation (a loop over batches without a backward pass), a function that a training calls to look at its
models, and what runs a model when all training is over.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Several

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.reaching import readers
from turbofix.domain.trace import Event, LoopRecord
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    Function,
    Host,
    Made,
    Mapping,
    Option,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)  # fmt: skip
from turbofix.library.rows import cuts_graph
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, targets, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, blocks
from turbofix.source.site import Site
from turbofix.source.wording import Wording
from turbofix.training.model import Evaluation, KeptGraph, Sampling, Step
from turbofix.training.objects import model_sites, outermost
from turbofix.training.precision import autocasts_around
from turbofix.training.steps.acts import is_model
from turbofix.training.steps.regions import no_grad

_ASKING = words(
    "requires_grad requires_grad_ retain_grad register_hook register_full_backward_hook grad register_backward_hook "
    "backward grad_fn enable_grad set_grad_enabled autograd is_leaf inference_mode is_grad_enabled vjp jvp jacrev "
    "jacobian hessian retain_graph create_graph saved_tensors_hooks"
)
_LEARNING = words("backward autograd_grad step zero_grad update clip unscale compile wrap load destroy")
_ASKING_LIBRARIES = words(
    "captum torchattacks foolbox advertorch art cleverhans pytorch_grad_cam torchdiffeq higher learn2learn functorch "
    "torchopt"
)
_UNSEEN = Wording(
    ("register_", "grad_enabled", "inference_mode", "lru_cache", "cache("),
    regex(r"register_\w*hook|set_grad_enabled|is_grad_enabled|inference_mode\(\s*False|\blru_cache\b|\bcache\("),
)
"""What makes a graph, or its lack, felt where the text of a function does not show it."""
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
_PLAIN = words("float int len str bool round")
"""Methods, and functions of torch, whose result has no graph."""
_KEEPING = words("append extend add update insert put setdefault appendleft push send store record remember")


# --- evaluations ------------------------------------------------------------------------------------------------------


def kept_graph(
    analysis: Analysis, record: LoopRecord, events: list[Event], steps: tuple[Step, ...]
) -> KeptGraph | None:
    """What to say of the graphs of a loop over batches that has no backward pass; None where it builds none."""
    facts, places = analysis.facts, analysis.facts.places
    forwards = [each for each in events if each.kind == "forward" and not _in_model(facts.frames(each))]
    forwards = [event for event in forwards if not _is_pipeline(event)]
    if not forwards or any(no_grad(event) for event in events if event.kind in ("forward", "unknown_call")):
        return None
    trained = {step.loop.site for step in steps}
    if any(places.site(each.node, each.module) in trained for event in forwards for each in facts.loops(event)):
        return None  # a training step runs it: what comes out of it may be a part of its loss
    if any(
        event.name == "torch.set_grad_enabled" and isinstance(places.parent(event.node, event.module), ast.Expr)
        for event in facts.of("call")
    ):
        return None  # graphs are switched on and off by statements
    function = places.function(record.node, record.module)
    alone = function is not None and _does_nothing_else(analysis, function)
    why, where = next(_needs(analysis, record, forwards, events, steps), (None, None))
    through = [facts.frames_within(event, record.node)[1:] for event in forwards]
    return KeptGraph(
        places.site(record.node, record.module),
        places.site(function, record.module) if alone and function is not None else None,
        frozenset.intersection(*(frozenset(places.site(each.scope, each.module) for each in some) for some in through)),
        why,
        where,
    )


def _needs(
    analysis: Analysis, record: LoopRecord, forwards: list[Event], events: list[Event], steps: tuple[Step, ...]
) -> Iterator[tuple[str, Site]]:
    """Why the graphs may be needed, each with the place that tells; what a run decides last."""
    facts, places, module = analysis.facts, analysis.facts.places, record.module
    around = facts.frames(forwards[0])
    around = around[: len(around) - len(facts.frames_within(forwards[0], record.node)) + 1]
    entered: dict[ast.AST, tuple[Frame, ...]] = {record.node: around}
    for event in events:
        frames = facts.frames(event)
        for index in range(len(frames) - len(facts.frames_within(event, record.node)) + 1, len(frames)):
            entered.setdefault(frames[index].scope, frames[: index + 1])
    here = [each for block in blocks(record.node) for statement in block for each in walk_here(statement)]
    for scope, frames in entered.items():
        for node in here if scope is record.node else walk(scope):
            if _asks(node):
                yield "asked", places.site(node, frames[-1].module)
    for node in here:
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            yield "yielded", places.site(node, module)
    yield from _taken(analysis, record.node, around, steps)
    for scope, frames in entered.items():
        for node in walk(scope):
            kept = _kept_attribute(node)
            if kept is not None and holds_graph(analysis, kept, frames):
                yield "kept", places.site(node, frames[-1].module)
    for event in events:
        foreign = event.kind in ("call", "unknown_call") and not event.name.startswith(("torch.", "builtins."))
        if foreign and event.arguments is not None and any(map(is_model, event.arguments.values())):
            yield "kept", facts.site(event)
    if _library(analysis):
        yield "library", places.site(record.node, module)


def _taken(
    analysis: Analysis, source: ast.AST, frames: tuple[Frame, ...], steps: tuple[Step, ...]
) -> Iterator[tuple[str, Site]]:
    """Where what a part of a function sets, or is computed from it, comes into a training loop or a call that trains.

    What it returns is followed into the statement that calls it.
    """
    places, scope, module = analysis.facts.places, frames[-1].scope, frames[-1].module
    reached, training = readers(scope), _training_nodes(analysis, steps)
    inside = {id(each) for each in walk(source)}
    learning: set[int] = set()
    for node in walk(scope):
        if id(node) in training and source is not node and source not in walk(node):
            learning |= {id(each) for each in walk(node)}
    flows = [(value, given) for value, given in map(_flow, walk(source)) if value is not None]
    graphs = [given for value, given in flows if holds_graph(analysis, value, frames)]
    put = {id(one) for given in graphs for target in given for one in walk(target)}
    waiting = [each for each, reads in reached.items() if put & {id(each), *map(id, reads)}]
    for each in waiting:  # grows meanwhile
        for read in reached.get(each, ()):
            if id(read) in inside or not holds_graph(analysis, read, frames):
                continue
            if id(read) in learning:
                yield "taken", places.site(read, module)
                continue
            statement = places.statement(read, module)
            call = frames[-1].call
            if isinstance(statement, ast.Return) and call is not None and len(frames) > 1:
                caller = places.statement(call, frames[-2].module)
                if caller is not None and holds_graph(analysis, statement.value, frames):
                    yield from _taken(analysis, caller, frames[:-1], steps)
            value, given = _flow(statement) if statement is not None else (None, [])
            if value is not None and any(read is one for one in walk(value)):
                found = {id(one) for target in given for one in walk(target)}
                waiting += [
                    one for one, reads in reached.items() if one not in waiting and found & {id(one), *map(id, reads)}
                ]


def _training_nodes(analysis: Analysis, steps: tuple[Step, ...]) -> set[int]:
    """The loops of training steps, the calls that run a backward pass, and those of the backward passes."""
    places, sites = analysis.facts.places, {step.loop.site for step in steps}
    found: set[int] = set()
    for event in analysis.facts.of("backward", "autograd_grad"):
        found.add(id(event.node))
        found |= {id(frame.call) for frame in analysis.facts.frames(event) if frame.call is not None}
    for module in analysis.execution.modules.values():
        loops = [node for kind in LOOPS for node in every(kind, module.tree)]
        found |= {id(node) for node in loops if places.site(node, module) in sites}
    return found


def _flow(node: ast.AST) -> tuple[ast.expr | None, list[ast.expr]]:
    """What a statement or call hands on, and to what."""
    if isinstance(node, ast.Expr):
        node = node.value
    if isinstance(node, ast.Assign):
        return node.value, node.targets
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        return node.value, [node.target]
    if isinstance(node, ast.For):
        return node.iter, [node.target]
    method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    if method in _KEEPING or (method.endswith("_") and not method.startswith("_")):
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return ast.Tuple([*node.args, *(each.value for each in node.keywords)], ast.Load()), [node.func.value]
    return None, []


def _is_pipeline(event: Event) -> bool:
    """Whether what is called is one of diffusers' pipelines, which build no graphs."""
    made = [each.qualname for each in members(event.receiver) if isinstance(each, Made)]
    return bool(made) and all(name.startswith("diffusers.") and "Pipeline" in name for name in made)


# --- functions that look at a model ----------------------------------------------------------------------------------


def samplings(analysis: Analysis, steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]) -> tuple[Sampling, ...]:
    """The functions that a training calls to look at its models, and what looks at them when all training is over."""
    if not steps or any(_UNSEEN.is_in(each.text) for each in analysis.execution.modules.values()) or _library(analysis):
        return ()
    told = {each.loop.site for each in evaluations if each.graphs is not None or each.no_grad}
    found = {each.function: each for each in (*_beside(analysis, told), *_afterwards(analysis, told))}
    return tuple(found[site] for site in sorted(found))


def _beside(analysis: Analysis, told: set[Site]) -> Iterator[Sampling]:
    """The outermost functions that a training loop calls, and in which no graph is needed."""
    facts = analysis.facts
    training = {id(record.node) for event in facts.of("backward") for record in facts.loops(event)}
    judged: dict[ast.AST, bool] = {}
    for event in facts.of("forward"):
        frames = facts.frames(event)
        if no_grad(event) or _in_model(frames):
            continue
        loop: LoopRecord | None = None
        loops = {id(each.node): each for each in facts.loops(event)}
        for index, frame in enumerate(frames[1:], 1):
            loop = next((loops[id(n)] for n in reversed(frames[index - 1].loops) if id(n) in training), loop)
            scope = frame.scope
            if loop is None or not isinstance(scope, ast.FunctionDef):
                continue
            if scope not in judged:
                judged[scope] = _is_closed(analysis, scope, frames[: index + 1], told)
            if judged[scope]:
                models = tuple(model_sites(analysis, facts.events_in_functions([scope]), loop.node))
                site = facts.places.site(loop.node, loop.module)
                yield Sampling(facts.places.site(scope, frame.module), site, models)
                break


def _is_closed(analysis: Analysis, function: ast.FunctionDef, frames: tuple[Frame, ...], told: set[Site]) -> bool:
    """Whether no graph that is built in a function is needed, there or elsewhere."""
    facts = analysis.facts
    name = getattr(frames[-1].call, "func", None)
    if function.name.startswith("__") or function.name not in (getattr(name, "attr", ""), getattr(name, "id", "")):
        return False  # a mechanism enters it for something else
    if not _does_nothing_else(analysis, function):
        return False
    inside = facts.events_in_functions([function])
    if any(facts.places.site(each.node, each.module) in told for event in inside for each in facts.loops(event)):
        return False  # an evaluation, of which is spoken already
    if any(True for each in inside if each.kind == "forward" for _ in autocasts_around(analysis, each)):
        return False  # its casts of the weights would serve the training, too
    seen: dict[ast.AST, tuple[Frame, ...]] = {}
    for event in inside:
        around = facts.frames(event)
        start = next(i for i, each in enumerate(around) if each.scope is function)
        for index in range(start, len(around)):
            seen.setdefault(around[index].scope, around[: index + 1])
    for scope, its in seen.items():
        for node in walk(scope) if not _in_model(its) else ():
            if _asks(node):
                return False
            gone = _gone(analysis, node, scope, its, seen)
            if isinstance(node, ast.Return) and scope is function:
                gone = (node.value,)
            if any(holds_graph(analysis, each, its) for each in gone):
                return False
    return True


def _afterwards(analysis: Analysis, told: set[Site]) -> Iterator[Sampling]:
    """What looks at a model when all training is over, so that no graph is needed any more."""
    facts, asking = analysis.facts, analysis.facts.of("backward", "autograd_grad")
    if not asking or not facts.loops(asking[-1]):
        return
    last, around = asking[-1].order, facts.loops(asking[-1])[-1]
    loops = {id(record.node) for event in asking for record in facts.loops(event)}
    forwards = outermost(analysis, [each for each in facts.of("forward") if not _is_pipeline(each)])
    late = [each for each in forwards if each.order > last and not any(id(n.node) in loops for n in facts.loops(each))]
    early = [each for each in forwards if each not in late]
    training = {frame.scope for event in asking for frame in facts.frames(event)}
    earlier = {frame.scope for event in early for frame in facts.frames(event)}
    for event in late:
        if no_grad(event) or any(facts.places.site(each.node, each.module) in told for each in facts.loops(event)):
            continue
        inner = next((each for each in facts.frames(event) if each.scope not in training), None)
        node = inner.scope if inner is not None else facts.places.statement(event.node, event.module)
        module = inner.module if inner is not None else event.module
        special = isinstance(node, ast.FunctionDef) and (node.decorator_list or node.name.startswith("__"))
        if special or node in earlier or not isinstance(node, (ast.FunctionDef, ast.Assign, ast.Expr)):
            continue
        if not any(isinstance(each, (ast.Yield, ast.Await)) or _asks(each) for each in walk(node)):
            models = tuple(model_sites(analysis, [event], node))
            yield Sampling(facts.places.site(node, module), facts.places.site(around.node, around.module), models)


# --- what the text asks for -------------------------------------------------------------------------------------------


def _does_nothing_else(analysis: Analysis, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether no gradient is ever wanted in a function, so that it can be decorated as a whole."""
    if isinstance(function, ast.AsyncFunctionDef) or function.decorator_list:
        return False
    for node in walk(function):
        inner = isinstance(node, FUNCTIONS) and node is not function and not isinstance(node, ast.Lambda)
        if inner or _asks(node) or isinstance(node, (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)):
            return False
    # setting up an optimizer or a model, or what is returned as it was made, is more than an evaluation
    return not any(
        event.kind in _LEARNING
        or (event.kind == "forward" and no_grad(event))
        or (event.kind in ("make", "construct") and is_model(event.result))
        for event in analysis.facts.events_in_functions([function])
    )


def _asks(node: ast.AST) -> bool:
    """Whether a part of the text asks for a gradient, or whether there is one."""
    if isinstance(node, ast.Attribute):
        return node.attr in _ASKING
    if isinstance(node, ast.keyword):
        return node.arg in ("requires_grad", "create_graph", "retain_graph") and not (
            isinstance(node.value, ast.Constant) and not node.value.value
        )
    return isinstance(node, ast.Name) and node.id in _ASKING and node.id != "grad"


def _library(analysis: Analysis) -> bool:
    """Whether a file imports a library that asks for gradients."""
    for module in analysis.execution.modules.values():
        names = [alias.name for node in every(ast.Import, module.tree) for alias in node.names]
        names += [node.module or "" for node in every(ast.ImportFrom, module.tree)]
        if any(name.partition(".")[0] in _ASKING_LIBRARIES for name in names):
            return True
    return False


def _in_model(frames: Iterable[Frame]) -> bool:
    """Whether something happens inside a model's own code."""
    methods = [each.function for each in frames if each.function is not None]
    return any(each.cls is not None and each.name in ("forward", "__call__") for each in methods)


# --- what holds a graph -----------------------------------------------------------------------------------------------


def _kept_attribute(node: ast.AST) -> ast.expr | None:
    """What is put into an attribute: ``self.last = x``, ``self.outputs.append(x)``."""
    value, given = _flow(node) if not isinstance(node, ast.For) else (None, [])
    for target in (one for each in given for one in targets(each)):
        while isinstance(target, ast.Subscript):
            target = target.value  # noqa: PLW2901
        if isinstance(target, ast.Attribute):
            return value
    return None


def _gone(
    analysis: Analysis, node: ast.AST, scope: ast.AST, frames: tuple[Frame, ...], seen: Collection[object]
) -> Several[ast.expr | None]:
    """What is put into an attribute or a container from elsewhere, or given to functions that are not ``seen``."""
    if isinstance(node, ast.Call):
        given = [*node.args, *(each.value for each in node.keywords)]
        called = members(analysis.facts.evaluate(node.func, frames))
        own = [each.function if isinstance(each, Bound) else each for each in called]
        if any(isinstance(each, (Function, Class)) and getattr(each, "node", None) not in seen for each in own):
            return given
        if isinstance(node.func, ast.Name) and node.func.id == "setattr":
            return given
    value, into = _flow(node) if not isinstance(node, ast.For) else (None, [])
    for target in (one for each in into for one in targets(each)):
        named = isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        base: ast.expr = target
        while isinstance(base, ast.Subscript):
            base = base.value
        if (not named or isinstance(node, ast.AugAssign)) and not _is_made_here(base, scope):
            return (value,)
    return ()


def _is_made_here(base: ast.expr, scope: ast.AST) -> bool:
    """Whether a name of a function stands for a number or a container that the function itself has made."""
    if not isinstance(base, ast.Name):
        return False
    writes = [each for each in walk(scope) if isinstance(each, ast.Assign)]
    made = [each.value for each in writes if any(getattr(one, "id", "") == base.id for one in each.targets)]
    called = [dotted(each.func) for each in made if isinstance(each, ast.Call)]
    plain = all(isinstance(each, (*_DISPLAYS, ast.Constant, ast.Call)) for each in made)
    return bool(made) and plain and set(called) <= {"list", "dict", "set"}


def holds_graph(
    analysis: Analysis, node: ast.expr | None, frames: tuple[Frame, ...], asked: frozenset[str] = frozenset()
) -> bool:
    """Whether an expression may be a tensor with a graph, or hold one. ``asked`` are the names that lead to it."""
    if node is None or isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr)):
        return False
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if name in _PLAIN if isinstance(node.func, ast.Name) else cuts_graph(name or ""):
            called = members(analysis.facts.evaluate(node.func, frames))
            return any(isinstance(each, (Function, Bound, Class)) for each in called)
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        inner = node.args[0] if dotted(node.func) == "torch.cat" and node.args else inner
        if isinstance(inner, (ast.Call, ast.Tuple)) and not holds_graph(analysis, inner, frames, asked):
            return any(holds_graph(analysis, each, frames, asked) for each in node.args)
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.BoolOp)):
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return any(holds_graph(analysis, each, frames, asked) for each in parts)
    if isinstance(node, ast.Subscript) and not holds_graph(analysis, node.value, frames, asked):
        return False
    if isinstance(node, ast.Name):
        writes = analysis.facts.bindings.writes(frames[-1].scope, node.id) if node.id not in asked else ()
        given = [each.value for each in writes if isinstance(each, (ast.Assign, ast.AugAssign)) and _names(each, node)]
        if any(holds_graph(analysis, each, frames, asked | {node.id}) for each in given):
            return True
        if node.id in asked or (given and not any(isinstance(each, _DISPLAYS) for each in given)):
            return False
    value = analysis.facts.evaluate(node, frames)
    return value is None or any(_has_graph(each) for each in flatten(value, 3))


def _names(write: ast.Assign | ast.AugAssign, name: ast.Name) -> bool:
    """Whether an assignment gives all of its value to a name."""
    target = write.targets[0] if isinstance(write, ast.Assign) else write.target
    return isinstance(target, ast.Name) and target.id == name.id


def _has_graph(value: Value) -> bool:
    """Whether a value may be a tensor with a graph, or be something that may hold one."""
    if isinstance(value, Tensor):
        computed = value.roles & {"output", "maybe_output", "loss", "param"} or value.origin is None or value.foreign
        return bool(computed) and not value.detached
    if isinstance(value, (Sequence, Mapping)):
        return value.element is None and not (value.items if isinstance(value, Sequence) else value.entries)
    return not isinstance(value, (Const, Host, Option)) and not (isinstance(value, Unknown) and value.number)
