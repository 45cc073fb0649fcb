"""Functions that a training calls to look at its models, or to act by them, and that build graphs meanwhile.

What they compute must end in them: it is shown, written to a file, or read as numbers. Whatever may take a tensor with
its graph out of such a function (what it returns, an attribute, a container from elsewhere, unknown code) ends the
search without an answer.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from turbofix.nodes import walk
from turbofix.program.acts import is_module_class
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, parents_in
from turbofix.program.contents import is_builtin
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame, argument_for
from turbofix.program.graphless import (
    ASKING_LIBRARIES,
    CUTTING,
    KEEPING,
    PLAIN,
    asks,
    does_nothing_else,
    is_switched,
)
from turbofix.program.model import Evaluation, Sampling, Step
from turbofix.program.names import parameters
from turbofix.program.objects import autocasts_around, model_sites
from turbofix.program.regions import no_grad
from turbofix.program.values import (
    Bound,
    Class,
    Const,
    Function,
    Host,
    Instance,
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
from turbofix.program.wording import Wording

_OWN_CODE = (Function, Bound, Class, Partial)
_UNSEEN = Wording(
    ("register_", "grad_enabled", "inference_mode", "lru_cache", "cache("),
    re.compile(r"register_\w*hook|set_grad_enabled|is_grad_enabled|inference_mode\(\s*False|\blru_cache\b|\bcache\("),
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
_ABOUT = frozenset({"getattr", "hasattr", "isinstance", "len", "super", "type", "id"})
_MOST = 2000


def samplings(analysis: Analysis, steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]) -> tuple[Sampling, ...]:
    """The functions that a training calls, and in which nothing needs the graphs that are built."""
    modules = analysis.execution.modules.values()
    if not steps or is_switched(analysis) or any(_UNSEEN.is_in(module.text) for module in modules):
        return ()
    if any(_imports_asking(module) for module in modules):
        return ()
    search = _Search(analysis, steps, evaluations)
    return tuple(sorted(search.run(), key=lambda each: each.function))


def _imports_asking(module: ModuleFile) -> bool:
    names = [each.name for node in every(ast.Import, module.tree) for each in node.names]
    names += [node.module or "" for node in every(ast.ImportFrom, module.tree)]
    return any(name.partition(".")[0] in ASKING_LIBRARIES for name in names)


class _Search:
    """The functions of a program that trains."""

    def __init__(self, analysis: Analysis, steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.steps = {step.loop.site: step for step in steps}
        self.told = {each.loop.site for each in evaluations if each.graphs is not None or each.no_grad}
        self.training = {id(record.node) for event in self.facts.of("backward") for record in self.facts.loops(event)}
        self.judged: dict[int, bool] = {}
        self.asked: set[tuple[int, str]] = set()
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

    def _sampling(self, frame: Frame, event: Event) -> Sampling:
        inside = self.facts.events_in_functions([frame.scope])
        loop = next(record for record in reversed(self.facts.loops(event)) if id(record.node) in self.training)
        return Sampling(
            self.facts.places.site(frame.scope, frame.module),
            self.facts.places.site(loop.node, loop.module),
            tuple(model_sites(self.analysis, inside, loop.node)),
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
        own = all(
            self._keeps_nothing(frames, seen) if not in_model else not self._is_remembered(frames[-1])
            for frames, in_model in visited.values()
        )
        return (
            own
            and self._gives_nothing(function, frame, inside)
            and not any(self._hands_over(event) for event in inside)
            and all(self._forgets(model) for event in inside if event.kind == "forward" for model in _receivers(event))
        )

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
        returned = [node for node in walk(function) if isinstance(node, ast.Return) and not _is_none(node.value)]
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
            if not is_method and any(each.id == function.name for each in every(ast.Name, module.tree)):
                named: list[ast.expr] = [each for each in every(ast.Name, module.tree) if each.id == function.name]
            else:
                named = []
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
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                places = [each for target in targets for each in _places(target)]
                if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    places += [node.target]  # a tensor is changed in place
                if any(not self._is_own(each, frames) for each in places) and self.may_hold(node.value, frames):
                    return False
            elif isinstance(node, (ast.For, ast.withitem, ast.comprehension)):
                target = node.optional_vars if isinstance(node, ast.withitem) else node.target
                if target is not None and any(True for _ in _places(target)):
                    return False
            elif isinstance(node, ast.Call) and not (
                self._leaves_alone(node, frames) and self._is_followed(node, frames, seen)
            ):
                return False
        return True

    def _is_followed(self, node: ast.Call, frames: tuple[Frame, ...], seen: frozenset[int]) -> bool:
        """Whether a call that is given a graph enters no function of the project but those that are looked at."""
        entered = [each for each in members(self.facts.evaluate(node.func, frames)) if isinstance(each, _OWN_CODE)]
        functions = [each.function if isinstance(each, Bound) else each for each in entered]
        if all(isinstance(each, Function) and id(each.node) in seen for each in functions):
            return True
        given = [*node.args, *(each.value for each in node.keywords)]
        return not any(self.may_hold(each, frames) for each in given)

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

    def _hands_over(self, event: Event) -> bool:
        """Whether code that is not known is given something with a graph, or a model."""
        given = event.arguments.values() if event.arguments is not None else []
        if event.kind == "unknown_call":
            return any(map(_may_hold_graph, [*given, event.receiver] if event.receiver is not None else given))
        foreign = event.kind == "call" and not event.name.startswith(("torch.", "builtins."))
        return foreign and any(_is_model(each) for value in given for each in flatten(value, 2))

    # --- what the models do

    def _forgets(self, model: Value) -> bool:
        """Whether the code of a model and of its modules keeps nothing that is read before it is computed anew."""
        seen: set[int] = set()
        waiting: list[Value] = [model]
        while waiting:
            each = waiting.pop()
            if len(seen) > _MOST:
                return False
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, Instance) and is_module_class(each) and not self._code_forgets(each, seen):
                return False
            if isinstance(each, (Instance, Made)):
                waiting += [
                    inner
                    for value in (*each.attributes.values(), *each.children.values())
                    for inner in flatten(value, 3)
                ]
            if isinstance(each, Made):
                waiting += flatten(each.inner, 3)
        return True

    def _code_forgets(self, module: Instance, seen: set[int]) -> bool:
        """The same for one module: its ``forward``, and the methods that this comes to."""
        waiting: list[Value | None] = [module.cls.find("forward")]
        while waiting:
            method = waiting.pop()
            if not isinstance(method, Function) or id(method.node) in seen:
                continue
            seen.add(id(method.node))
            if self._is_remembered(Frame(method.node, method.module, method.node, None, (), method)):
                return False
            names = {each.attr for each in walk(method.node) if isinstance(each, ast.Attribute)}
            waiting += [module.cls.find(name) for name in sorted(names)]
        return True

    def _is_remembered(self, frame: Frame) -> bool:
        """Whether a model's function asks for gradients, or keeps what others, or its next call, may read."""
        scope = frame.scope
        is_method = frame.function is not None and frame.function.cls is not None
        module = {each.arg for each in parameters(scope)[:1]} if is_method else set()
        for node in walk(scope):
            asked = asks(node) and not isinstance(node, ast.keyword)  # a leaf that nobody asks for its gradient is none
            if asked or isinstance(node, (ast.Global, ast.Nonlocal)):
                return True
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(self._is_found_again(each, node, frame) for target in targets for each in _places(target)):
                    return True
            func = node.func if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and node.args:
                if func.attr in _STORING and not self._is_own(func, (frame,)):
                    return True
                if func.attr.endswith("_") and not func.attr.startswith("_") and isinstance(func.value, ast.Attribute):
                    return True
            if isinstance(func, ast.Name) and func.id not in _ABOUT and isinstance(node, ast.Call):
                given = [each.id for each in node.args if isinstance(each, ast.Name)]
                if not module.isdisjoint(given):
                    return True  # a function that is given the module
        return False

    def _is_found_again(self, place: ast.expr, store: ast.AST, frame: Frame) -> bool:
        """Whether what a model puts into an attribute or an item may be read before it is put there anew."""
        base = place
        while isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Attribute):
            return self._is_read_elsewhere(base.attr, store, frame.scope)
        if not isinstance(base, ast.Name) or any(each.arg == base.id for each in parameters(frame.scope)):
            return True
        writes = self.facts.bindings.writes(frame.scope, base.id)
        return not any(_binds(each, base.id) for each in writes)

    def _is_read_elsewhere(self, name: str, store: ast.AST, scope: ast.AST) -> bool:
        end = getattr(store, "end_lineno", 0)
        later = {id(each) for each in walk(scope) if getattr(each, "lineno", 0) > end}
        return any(
            isinstance(each.ctx, ast.Load) and each.attr == name and id(each) not in later
            for module in self.analysis.execution.modules.values()
            if name in module.text
            for each in every(ast.Attribute, module.tree)
        )

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
        if isinstance(node, ast.Attribute) and node.attr in _CUT_PARTS:
            return self._is_own_code(node, frames)
        if isinstance(node, ast.Call) and self._is_cut(node, frames, depth):
            return False
        if isinstance(node, ast.Subscript) and not self.may_hold(node.value, frames, depth - 1):
            return False
        if isinstance(node, ast.Name):
            known = self._named(node, frames, depth)
            if known is not None:
                return known
        value = self.facts.evaluate(node, frames)
        return value is None or _may_hold_graph(value) or (self.leaves and _may_begin_a_graph(value))

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

    def _named(self, node: ast.Name, frames: tuple[Frame, ...], depth: int) -> bool | None:
        """Whether what a function's own name is set to may have a graph; None where that is not all that it can be."""
        scope = frames[-1].scope
        given = any(each.arg == node.id for each in parameters(scope))
        if not given and not self.facts.bindings.is_local(node.id, scope):
            return None
        named = (each for each in walk(scope) if isinstance(each, ast.Name) and each.id == node.id)
        if any(self._is_shared(each, frames) for each in named) and self._is_container(node, frames):
            return True
        key = (id(scope), node.id)
        if key in self.asked:
            return False  # it is asked what it is set to from itself
        self.asked.add(key)
        try:
            put, plain = self._put(node, scope)
            if given:
                call = frames[-1].call
                passed = argument_for(node.id, frames[-1], call) if isinstance(call, ast.Call) else None
                plain = plain and passed is not None
                if passed is not None and len(frames) > 1 and self.may_hold(passed, frames[:-1], depth - 1):
                    return True
            if any(self.may_hold(each, frames, depth - 1) for each in put):
                return True
        finally:
            self.asked.discard(key)
        return False if plain and (put or given) else None

    def _put(self, node: ast.Name, scope: ast.AST) -> tuple[list[ast.expr], bool]:
        """What a name of a function is set to, and what is put into it; whether that is all."""
        put: list[ast.expr] = []
        plain = True
        for each in self.facts.bindings.writes(scope, node.id):
            target = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            plain = plain and isinstance(each, (ast.Assign, ast.AugAssign))
            plain = plain and not any(isinstance(one, (ast.Tuple, ast.List, ast.Starred)) for one in target)
            if isinstance(each, (ast.Assign, ast.AugAssign)):
                put.append(each.value)
        for call in walk(scope):
            method = call.func if isinstance(call, ast.Call) else None
            base = method.value if isinstance(method, ast.Attribute) else None
            if isinstance(call, ast.Call) and isinstance(base, ast.Name) and base.id == node.id:
                put += [*call.args, *(keyword.value for keyword in call.keywords)]
        return put, plain

    def _is_shared(self, name: ast.Name, frames: tuple[Frame, ...]) -> bool:
        """Whether something else may stand for what a name stands for, from here on, and be given more."""
        if not isinstance(name.ctx, ast.Load):
            return False
        above = self.facts.places.parent(name, frames[-1].module)
        if isinstance(above, ast.Call) and above.func is not name:
            return self._is_own_code(above.func, frames) or self.facts.evaluate(above.func, frames) is None
        reading = (ast.Attribute, ast.Subscript, ast.Return, ast.For, ast.comprehension, ast.BinOp, ast.Compare)
        return not isinstance(above, (*reading, ast.UnaryOp, ast.AugAssign, ast.FormattedValue, ast.If, ast.Expr))

    def _is_container(self, node: ast.Name, frames: tuple[Frame, ...]) -> bool:
        """Whether a name is one of something that more may have been put into than is known."""
        found = members(self.facts.evaluate(node, frames))
        return any(isinstance(each, (Sequence, Mapping)) for each in found)


def _receivers(event: Event) -> Iterator[Value]:
    yield from members(event.receiver)


def _is_harmless(event: Event) -> bool:
    """A loader, a figure, a transform: what holds no weights."""
    return event.kind in ("make", "construct") and not any(
        _is_model(each) or (isinstance(each, Made) and each.kind in ("optimizer", "scaler", "scheduler"))
        for each in members(event.result)
    )


def _is_model(value: Value) -> bool:
    if isinstance(value, Instance):
        return is_module_class(value)
    return isinstance(value, Made) and value.kind in ("module", "model", "wrapper")


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


def _may_begin_a_graph(value: Value) -> bool:
    return any(isinstance(each, Tensor) and "made" in each.roles and not each.detached for each in flatten(value, 3))


def _is_none(node: ast.expr | None) -> bool:
    return node is None or isinstance(node, ast.Constant)


def _places(target: ast.expr) -> Iterator[ast.expr]:
    """The attributes and items among the targets of an assignment."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _places(each)
    elif isinstance(target, ast.Starred):
        yield from _places(target.value)
    elif not isinstance(target, ast.Name):
        yield target


def _binds(write: ast.AST, name: str) -> bool:
    """Whether a statement gives a name something new, and not an item to what it stands for."""
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in walk(write)
    ) or not isinstance(write, (ast.Assign, ast.AugAssign, ast.AnnAssign))
