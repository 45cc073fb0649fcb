"""Functions that a training calls to look at its models, or to act by them, and that build graphs meanwhile.

What they compute must end in them: it is shown, written to a file, or read as numbers. Whatever may take a tensor with
its graph out of such a function (what it returns, an attribute, a container from elsewhere, unknown code) ends the
search without an answer.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame, argument_for
from turbofix.dataflow.mutation import is_builtin
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    Function,
    Host,
    Made,
    Mapping,
    Option,
    Partial,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.regex import regex
from turbofix.source.answers import every, parents_in
from turbofix.source.names import dotted, parameters, targets
from turbofix.source.nodes import walk
from turbofix.source.wording import Wording
from turbofix.training.model import Evaluation, Sampling, Step
from turbofix.training.objects import model_sites, outermost
from turbofix.training.precision import autocasts_around
from turbofix.training.steps import graphless
from turbofix.training.steps.acts import is_model
from turbofix.training.steps.graphless import (
    CUTTING,
    KEEPING,
    PLAIN,
    asks,
    does_nothing_else,
    given_away,
    imports_asking,
)
from turbofix.training.steps.regions import no_grad

_OWN_CODE = (Function, Bound, Class, Partial)
_UNSEEN = Wording(
    ("register_", "grad_enabled", "inference_mode", "lru_cache", "cache("),
    regex(r"register_\w*hook|set_grad_enabled|is_grad_enabled|inference_mode\(\s*False|\blru_cache\b|\bcache\("),
)
"""What makes a graph, or its lack, felt where the text of a function does not show it."""
_LEARNING = frozenset(
    {
        *("backward", "autograd_grad", "step", "zero_grad", "update", "clip", "unscale", "compile", "wrap", "load"),
        *("make", "construct", "destroy"),
    }
)
_STORING = KEEPING | {"push", "send", "store", "put_nowait", "record", "remember", "register", "__setitem__", "feed"}
_CUT_PARTS = frozenset({"data", "shape", "dtype", "device", "ndim", "is_cuda"})
_PLAIN_VALUES = (Const, Host, Option)
"""What holds no tensor; objects of the project and of libraries may, and so may closures."""


def samplings(analysis: Analysis, steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]) -> tuple[Sampling, ...]:
    """The functions that a training calls, and in which nothing needs the graphs that are built."""
    modules = analysis.execution.modules.values()
    if not steps or any(_UNSEEN.is_in(module.text) for module in modules):
        return ()
    if any(True for module in modules for _ in imports_asking(module)):
        return ()
    search = _Search(analysis, steps, evaluations)
    return tuple(sorted((*search.run(), *search.afterwards()), key=lambda each: each.function))


class _Search:
    """The functions of a program that trains."""

    def __init__(self, analysis: Analysis, steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.steps = {step.loop.site: step for step in steps}
        self.told = {each.loop.site for each in evaluations if each.graphs is not None or each.no_grad}
        self.training = {id(record.node) for event in self.facts.of("backward") for record in self.facts.loops(event)}
        self.judged: dict[int, bool] = {}
        self.sure: set[int] = set()  # in these no model keeps anything, and no code that is not known is given graphs
        self.asked: set[str] = set()
        # whether tensors of the program's own may take gradients
        self.leaves = any("requires_grad" in module.text for module in analysis.execution.modules.values())

    def run(self) -> Iterator[Sampling]:
        """Look at what holds each forward pass, from the training loop inwards."""
        found: dict[int, Sampling] = {}
        for event in self.facts.of("forward"):
            frames = self.facts.frames(event)
            if no_grad(event) or any(map(self._is_of_model, frames)):
                continue
            loop: ast.AST | None = None
            for outer, frame in itertools.pairwise(frames):
                loop = next((each for each in reversed(outer.loops) if id(each) in self.training), loop)
                if loop is None or not isinstance(frame.scope, ast.FunctionDef):
                    continue
                if id(frame.scope) not in self.judged:
                    self.judged[id(frame.scope)] = self._is_closed(frame.scope, frame)
                if self.judged[id(frame.scope)]:
                    if id(frame.scope) not in found:
                        found[id(frame.scope)] = self._sampling(frame, event)
                    break
        yield from found.values()

    def afterwards(self) -> Iterator[Sampling]:
        """What looks at a model when all training is over, so that no graph is needed any more."""
        facts, asking = self.facts, self.facts.of("backward", "autograd_grad")
        if not asking or not facts.loops(asking[-1]):
            return
        last, around = asking[-1].order, facts.loops(asking[-1])[-1]
        training = {id(frame.scope) for event in asking for frame in facts.frames(event)}
        forwards = outermost(self.analysis, [each for each in facts.of("forward") if not graphless.is_pipeline(each)])
        inside = {id(each) for each in forwards for one in facts.loops(each) if id(one.node) in self.training}
        early = [each for each in forwards if each.order < last or id(each) in inside]
        found: dict[int, Sampling] = {}
        training_too = {id(frame.scope) for each in early for frame in facts.frames(each)}
        for event in forwards:
            told = any(facts.places.site(each.node, each.module) in self.told for each in facts.loops(event))
            if event.order < last or id(event) in inside or no_grad(event) or told:
                continue
            inner = next((each for each in facts.frames(event) if id(each.scope) not in training), None)
            node = inner.scope if inner is not None else facts.places.statement(event.node, event.module)
            module = inner.module if inner is not None else event.module
            if not isinstance(node, (ast.FunctionDef, ast.Assign, ast.Expr)) or id(node) in training_too | found.keys():
                continue
            special = isinstance(node, ast.FunctionDef) and (node.decorator_list or node.name.startswith("__"))
            if not special and not any(isinstance(each, (ast.Yield, ast.Await)) or asks(each) for each in walk(node)):
                models = tuple(model_sites(self.analysis, [event], node))
                loop = facts.places.site(around.node, around.module)
                found[id(node)] = Sampling(facts.places.site(node, module), loop, models)
        yield from found.values()

    def _sampling(self, frame: Frame, event: Event) -> Sampling:
        inside = self.facts.events_in_functions([frame.scope])
        loop = next(record for record in reversed(self.facts.loops(event)) if id(record.node) in self.training)
        return Sampling(
            self.facts.places.site(frame.scope, frame.module),
            self.facts.places.site(loop.node, loop.module),
            tuple(model_sites(self.analysis, inside, loop.node)),
            id(frame.scope) in self.sure,
        )

    # --- what a function does

    def _is_closed(self, function: ast.FunctionDef, frame: Frame) -> bool:
        """Whether no graph that is built in a function is needed, there or elsewhere."""
        if not does_nothing_else(self.analysis, function):
            return False
        inside = self.facts.events_in_functions([function])
        first, last = function.lineno, function.end_lineno or function.lineno
        visited: dict[tuple[int, ...], tuple[tuple[Frame, ...], bool]] = {}
        for event in inside:
            if event.kind in _LEARNING and not _is_harmless(event):
                return False
            if event.kind == "forward" and no_grad(event):
                return False
            if event.kind == "forward":
                sites = autocasts_around(self.analysis, event)
                # weights that autocast has cast without a graph would serve the training, too
                if not all(site.path == frame.module.path and first <= site.line <= last for site in sites):
                    return False
            if any(self.facts.places.site(each.node, each.module) in self.told for each in self.facts.loops(event)):
                return False  # an evaluation, of which is spoken already
            frames = self.facts.frames(event)
            start = next(i for i, each in enumerate(frames) if each.scope is function)
            if not self._is_called_by_name(frames[start]):
                return False
            for index in range(start, len(frames)):
                in_model = any(map(self._is_of_model, frames[start + 1 : index + 1]))
                path = (id(frames[index].scope), *(id(each.call) for each in frames[start : index + 1]))
                visited.setdefault(path, (frames[: index + 1], in_model))
        seen = frozenset(id(frames[-1].scope) for frames, _ in visited.values())
        keeping = [in_model for frames, in_model in visited.values() if not self._keeps_nothing(frames, seen)]
        given = [(event.kind == "unknown_call", value) for event in inside for value in given_away(event)]
        if not keeping and not any(is_model(each) or (unknown and _may_hold_graph(each)) for unknown, each in given):
            self.sure.add(id(function))
        return all(keeping) and self._gives_nothing(function, frame, inside)

    def _is_of_model(self, frame: Frame) -> bool:
        """Whether a function runs in the call of a model."""
        function = frame.function
        if function is not None and function.cls is not None and function.name in ("forward", "__call__"):
            return True
        return frame.call is not None and any(event.kind == "forward" for event in self.facts.at(frame.call))

    def _is_called_by_name(self, frame: Frame) -> bool:
        """Whether the call that enters a function says so, and no mechanism enters it for something else."""
        func = frame.call.func if isinstance(frame.call, ast.Call) else None
        name = getattr(frame.scope, "name", None)
        said = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else None
        return name is not None and said == name and not name.startswith("__")

    def _gives_nothing(self, function: ast.FunctionDef, frame: Frame, inside: list[Event]) -> bool:
        """Whether a function returns nothing with a graph, or nobody takes what it returns."""
        told = (node for node in walk(function) if isinstance(node, ast.Return))
        returned = [node for node in told if not isinstance(node.value, (ast.Constant, type(None)))]
        if not returned or self._is_only_told(function, frame):
            return True
        seen: set[int] = set()
        for event in inside:
            frames = self.facts.frames(event)
            if event.kind != "return" or frames[-1].scope is not function:
                continue
            seen.add(id(event.node))
            value = getattr(event.node, "value", None)
            if value is not None and self.may_hold(value, frames):
                return False
        return all(id(node) in seen for node in returned)

    def _is_only_told(self, function: ast.FunctionDef, frame: Frame) -> bool:
        """Whether a function is named in calls alone that are statements by themselves."""
        is_method = frame.function is not None and frame.function.cls is not None
        for module in self.analysis.execution.modules.values():
            if function.name not in module.text:
                continue
            parents = parents_in(module.tree)
            names = every(ast.Name, module.tree) if not is_method else ()
            named: list[ast.expr] = [each for each in names if each.id == function.name]
            named += [each for each in every(ast.Attribute, module.tree) if each.attr == function.name]
            for each in named:
                call = parents.get(each)
                if not isinstance(call, ast.Call) or call.func is not each:
                    return False
                if not isinstance(parents.get(call), ast.Expr):
                    return False
        return True

    def _keeps_nothing(self, frames: tuple[Frame, ...], seen: frozenset[int]) -> bool:
        """Whether a function of the project puts nothing with a graph where others may find it.

        ``seen`` are the functions that are looked at: what is handed to another one is not followed.
        """
        scope = frames[-1].scope
        for node in walk(scope):
            if isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)) or asks(node):
                return False
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                written = node.targets if isinstance(node, ast.Assign) else [node.target]
                places = [each for target in written for each in targets(target) if not isinstance(each, ast.Name)]
                if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    places += [node.target]  # a tensor is changed in place
                if any(not self._is_own(each, frames) for each in places) and self.may_hold(node.value, frames):
                    return False
            elif isinstance(node, (ast.For, ast.withitem, ast.comprehension)):
                target = node.optional_vars if isinstance(node, ast.withitem) else node.target
                if target is not None and any(not isinstance(each, ast.Name) for each in targets(target)):
                    return False
            elif isinstance(node, ast.Call):
                entered = [
                    each for each in members(self.facts.evaluate(node.func, frames)) if isinstance(each, _OWN_CODE)
                ]
                own = [each.function if isinstance(each, Bound) else each for each in entered]
                handed = not all(isinstance(each, Function) and id(each.node) in seen for each in own)
                given = [*node.args, *(each.value for each in node.keywords)]
                if not self._leaves_alone(node, frames) or (handed and any(self.may_hold(e, frames) for e in given)):
                    return False
        return True

    def _leaves_alone(self, node: ast.Call, frames: tuple[Frame, ...]) -> bool:
        """Whether a call keeps nothing of what it is given, as far as its name tells."""
        func = node.func
        if isinstance(func, ast.Name):
            return func.id != "setattr"
        if not isinstance(func, ast.Attribute):
            return True
        in_place = func.attr.endswith("_") and not func.attr.startswith("_")
        if not in_place and func.attr not in _STORING:
            return True
        if self._is_own(func, frames):
            return True
        given = [*node.args, *(each.value for each in node.keywords)]
        return not any(self.may_hold(each, frames) for each in given)

    def _is_own(self, place: ast.expr, frames: tuple[Frame, ...]) -> bool:
        """Whether something that is put there ends with the function: a container that it has made."""
        base = place.value if isinstance(place, (ast.Subscript, ast.Attribute)) else place
        while isinstance(base, ast.Subscript):
            base = base.value
        scope = frames[-1].scope
        bindings = self.facts.bindings
        if not isinstance(base, ast.Name) or (isinstance(place, ast.Attribute) and isinstance(place.ctx, ast.Store)):
            return False
        if not bindings.is_local(base.id, scope) or any(each.arg == base.id for each in parameters(scope)):
            return False
        # an item that is set writes its container, too, whose own the name need not be
        writes = [each for each in bindings.writes(scope, base.id) if _binds(each, base.id)]
        return bool(writes) and all(
            isinstance(each, ast.Assign)
            and all(isinstance(target, ast.Name) for target in each.targets)
            and self._is_made(each.value, frames)
            for each in writes
            if not isinstance(each, ast.AugAssign)
        )

    def _is_made(self, value: ast.expr, frames: tuple[Frame, ...]) -> bool:
        """Whether an expression makes something new: a display, or what a library's function gives."""
        if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant)):
            return True
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            return False
        return value.func.id in ("list", "dict", "set") and is_builtin(self.analysis, value.func, frames[-1].module)

    # --- what an expression holds

    def may_hold(self, node: ast.expr, frames: tuple[Frame, ...], depth: int = 12) -> bool:
        """Whether an expression may be something with a graph, or hold it."""
        if depth < 0:
            return True
        if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr)):
            return False
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BoolOp)):
            parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
            return any(self.may_hold(each, frames, depth - 1) for each in parts)
        if isinstance(node, ast.Call) and dotted(node.func) == "torch.cat" and node.args:
            return self.may_hold(node.args[0], frames, depth - 1)
        if isinstance(node, ast.Attribute) and node.attr in _CUT_PARTS:
            return self._is_own_code(node, frames)
        if isinstance(node, ast.Call) and self._is_cut(node, frames, depth):
            return False
        if isinstance(node, ast.Subscript) and not self.may_hold(node.value, frames, depth - 1):
            return False
        if isinstance(node, ast.Name) and node.id in self.asked:
            return False  # it is set to what it was, and more
        if isinstance(node, ast.Name):
            self.asked.add(node.id)
            writes = [each for each in self.facts.bindings.writes(frames[-1].scope, node.id) if hasattr(each, "value")]
            held = any(self.may_hold(each.value, frames, depth - 1) for each in writes if each.value is not None)
            self.asked.discard(node.id)
            call = frames[-1].call
            passed = argument_for(node.id, frames[-1], call) if isinstance(call, ast.Call) else None
            if held or (passed is not None and len(frames) > 1 and self.may_hold(passed, frames[:-1], depth - 1)):
                return True
            plain = bool(writes) and all(
                isinstance(each.targets[0], ast.Name) for each in writes if hasattr(each, "targets")
            )
            if plain and not any(
                isinstance(each, (Sequence, Mapping)) for each in members(self.facts.evaluate(node, frames))
            ):
                return False
        value = self.facts.evaluate(node, frames)
        made = (each for each in flatten(value, 3) if isinstance(each, Tensor) and "made" in each.roles)
        begins = self.leaves and not all(each.detached for each in made)
        return value is None or _may_hold_graph(value) or begins

    def _is_cut(self, node: ast.Call, frames: tuple[Frame, ...], depth: int) -> bool:
        """Whether a call gives a number, an array or a tensor without a graph: ``x.argmax(1).view(-1)``."""
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if self._is_own_code(node.func, frames):
            return False
        if name in (PLAIN - {"round"} if isinstance(node.func, ast.Name) else CUTTING):
            return True
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        cut = isinstance(inner, ast.Call) and self._is_cut(inner, frames, depth - 1)
        return cut and not any(self.may_hold(each, frames, depth - 1) for each in node.args)

    def _is_own_code(self, node: ast.expr, frames: tuple[Frame, ...]) -> bool:
        return any(isinstance(each, _OWN_CODE) for each in members(self.facts.evaluate(node, frames)))


def _is_harmless(event: Event) -> bool:
    """A loader, a figure, a transform: what holds no weights."""
    return event.kind in ("make", "construct") and not any(
        is_model(each) or (isinstance(each, Made) and each.kind in ("optimizer", "scaler", "scheduler"))
        for each in members(event.result)
    )


def _may_hold_graph(value: Value | None) -> bool:
    """Whether a value may be a tensor with a graph, or anything that may hold one."""
    for member in flatten(value, 3):
        if isinstance(member, Tensor):
            plain = member.origin is not None and not member.foreign
            if not member.detached and (not plain or member.roles & {"output", "maybe_output", "loss", "param"}):
                return True
        elif isinstance(member, (Sequence, Mapping)):
            if member.element is None and not (member.items if isinstance(member, Sequence) else member.entries):
                return True  # what was put into it was not seen
        elif not isinstance(member, _PLAIN_VALUES) and not (isinstance(member, Unknown) and member.number):
            return True
    return False


def _binds(write: ast.AST, name: str) -> bool:
    """Whether a statement gives a name something new, and not an item to what it stands for."""
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in walk(write)
    ) or not isinstance(write, (ast.Assign, ast.AugAssign, ast.AnnAssign))
