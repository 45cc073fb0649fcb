"""Gradients that a backward pass computes and that nobody uses: those of a generator in the discriminator's step.

What a name holds is followed through the statements of a training, from the models that computed it to the backward
passes that start from it, through calls of the project's functions too. Where a value of one model is given to another
one or to a criterion, a backward pass could end there. It may, where the gradients that the first one gets from it are
cleared before anything uses them. Whatever takes a value out of sight (a container of somebody else, a closure, several
functions that a call may mean) ends the search without an answer.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.nodes import words as words_of
from turbofix.program.acts import (
    concerned,
    creates_graph,
    is_model,
    is_module_class,
    optimizers_in,
    stepper,
    told_to_backward,
)
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node, parents_in
from turbofix.program.contents import is_builtin
from turbofix.program.events import Control, Event, LoopRecord, Passed
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Facts, Frame, argument_for, qualnames
from turbofix.program.libraries import WEIGHED, words
from turbofix.program.model import ThrownAway
from turbofix.program.names import body_of, dotted, parameters
from turbofix.program.regions import loss_expression, no_grad, shared_frames
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS
from turbofix.program.values import (
    Bound,
    Class,
    Const,
    Function,
    Instance,
    Made,
    Opaque,
    Partial,
    Sequence,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.program.weights import asks_for_gradients
from turbofix.program.zeroing import gradient_reads

Key: TypeAlias = tuple[tuple[int, ...], int]
"""An expression, in the function calls that it is evaluated in."""


class From(NamedTuple):
    """Computed with a graph in one call of a model; None for one that is not known. ``quiet``: without a graph."""

    model: Value | None
    call: Key = ((), 0)
    quiet: bool = False


class Via(NamedTuple):
    """Computed from the value of an expression that a model or a criterion was given."""

    given: Key


Marks: TypeAlias = frozenset["From | Via"]
State: TypeAlias = dict[str, Marks]
Path: TypeAlias = tuple[int, ...]

_NONE: Marks = frozenset()
_END = ""
_CUTS = words(
    """
    detach item tolist numpy size dim numel argmax argmin argsort eq ne lt gt le ge new new_zeros new_ones new_tensor
    new_full new_empty zeros_like ones_like
    """
)
_CUT_PARTS = words("data shape grad dtype device is_cuda ndim requires_grad training")
_ABOUT = words("parameters named_parameters train eval zero_grad state_dict load_state_dict to cuda apply")
_UNSEEN = re.compile(
    r"register_\w*hook|retain_grad\b|checkpoint_wrapper|utils\.checkpoint\b|gradient_checkpointing|import checkpoint\b"
    r"|autograd\.Function|\.grad_fn\b|\.is_leaf\b|set_grad_enabled|add_param_group|\.watch\("
    r"|\._parameters\b|[\"']_(?:parameters|modules)[\"']|\bobject\.__setattr__\("
    r"|[\"']requires_grad[\"']|\[\s*[\"']params[\"']\s*\]|\bparam_groups\s*(?:\.\s*(?:append|extend|insert)\b|\+?=(?!=))"
)
"""What makes a gradient's way longer than the text shows, lets a layer ask whether its input needs one, freezes a
weight by text, or gives a weight to a second module or an optimizer unseen."""
_DEEPEST = 6
_LONGEST = 20_000
_WEIGHT_LISTS = frozenset(("torch.nn.ParameterList", "torch.nn.ParameterDict"))
_IN_PLACE = re.compile(
    r"torch\.nn\.\w*(ReLU|ReLU6|ELU|SELU|SiLU|Mish|Hardtanh|Hardswish|Hardsigmoid|Dropout\w*|Threshold)$"
)
_MOST = 3000


def thrown_away(analysis: Analysis, record: LoopRecord, backwards: list[Event]) -> tuple[ThrownAway, ...]:
    """The backward passes of a training loop that go on into models which make no use of it, or that could."""
    facts = analysis.facts
    first = next((event for event in backwards if facts.inside(event, record.node)), None)
    if first is None or not _may_be_any(analysis, record):
        return ()
    uses = Uses(analysis)
    modules = analysis.execution.modules.values()
    if not uses.known or any(_says(each.text, _UNSEEN) or _reaches_inside(analysis, each) for each in modules):
        return ()
    frames = facts.frames(first)
    start = next((i for i, each in enumerate(frames) if any(record.node is loop for loop in each.loops)), None)
    if start is None:
        return ()
    search = Search(analysis, frames[: start + 1])
    if not search.run():
        return ()
    found = Judgement(analysis, search, uses).of(backwards)
    return tuple(sorted(found, key=lambda each: each.backward))


def _reaches_inside(analysis: Analysis, module: ModuleFile) -> bool:
    """Whether a file takes the attributes of a model apart by ``vars`` or ``__dict__``, and does more than show them.

    What it puts there, a weight of another model perhaps, no attribute shows.
    """
    if "vars" not in module.text and "__dict__" not in module.text:
        return False
    parents = parents_in(module.tree)
    taken = [(each, each.value) for each in every(ast.Attribute, module.tree) if each.attr == "__dict__"]
    found: list[tuple[ast.expr, ast.expr]] = [*taken]
    calls = [each for each in every(ast.Call, module.tree) if isinstance(each.func, ast.Name) and each.args]
    found += [(each, each.args[0]) for each in calls if dotted(each.func) == "vars"]
    for node, owner in found:
        parent = parents.get(node)
        shown = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and node in parent.args
        if not shown and isinstance(owner, ast.Name):
            scopes = (module.scope, *analysis.execution.scopes.values())
            if any(is_model(scope.names.get(owner.id)) for scope in scopes if scope.module is module):
                return True
        elif not shown:
            return True
    return False


def _may_be_any(analysis: Analysis, record: LoopRecord) -> bool:
    """Whether more than one model is called in a loop, and all models may take gradients all the time."""
    called = {
        id(model)
        for event in analysis.facts.events_in(record.node)
        if event.kind == "forward"
        for model in members(event.receiver)
    }
    if len(called) < 2:
        return False
    if any(not _takes_gradients(module.tree) for module in analysis.execution.modules.values() if _TOLD in module.text):
        return False
    # two modules may share a weight
    return not any(
        isinstance(getattr(write, "value", None), ast.Attribute)
        for write, _, _ in analysis.facts.attribute_writes("weight")
    )


_TOLD = "requires_grad"


@once_per_node
def _takes_gradients(tree: ast.Module) -> bool:
    """Whether nothing in a file freezes weights, or does something else where there are no gradients."""
    parents = parents_in(tree)
    for call in every(ast.Call, tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            if not all(isinstance(each, ast.Constant) and each.value is True for each in given):
                return False
    for node in every(ast.Attribute, tree):
        if node.attr != _TOLD:
            continue
        chain: list[ast.AST] = [node]
        while not isinstance(chain[-1], (ast.stmt, ast.Lambda, *COMPREHENSIONS)):
            chain.append(parents[chain[-1]])
        if isinstance(node.ctx, ast.Load):
            if isinstance(chain[-1], ast.stmt):
                return False
        else:
            value = getattr(chain[-1], "value", None)
            loop = parents.get(chain[-1])
            if not (isinstance(value, ast.Constant) and value.value is True):
                return False
            if isinstance(loop, ast.For) and _over_parameters(loop):  # else it is an input that gradients are taken by
                return False
    return True


def _over_parameters(loop: ast.For) -> bool:
    return any(isinstance(each, ast.Attribute) and "parameters" in each.attr for each in walk(loop.iter))


# --- what uses the gradients of a model -------------------------------------------------------------------------------


def _parts(model: Value) -> frozenset[int]:
    """A model, all modules in it and the weights that it holds by themselves, by identity.

    A weight that was read off another module (``judge.scale = painter.head.bias``) is that module's, too.
    """
    return frozenset(map(id, _held_by(model)))


def _modules(model: Value) -> Iterator[Value]:
    """A model and all modules in it."""
    return filter(_holds_weights, _held_by(model, shared=False))


def _held_by(model: Value, *, shared: bool = True) -> Iterator[Value]:
    """A model, all modules in it and the weights that it holds by themselves. ``shared``: and whose these are, too."""
    seen: set[int] = set()
    waiting: list[Value] = [model]
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if id(each) in seen or not (_is_weight(each) or _holds_weights(each)):
            continue
        seen.add(id(each))
        yield each
        held: list[Value] = []
        if isinstance(each, Tensor) and shared and each.source is not None:
            held = [each.source]
        if isinstance(each, (Instance, Made)):
            held = [*each.attributes.values(), *each.children.values()]
        if isinstance(each, Made) and each.qualname in _WEIGHT_LISTS:
            held += [passed.value for passed in each.arguments.positions]
        if isinstance(each, Made) and each.inner is not None:
            held.append(each.inner)
        elif isinstance(each, Instance) and each.base is not None and each.base.inner is not None:
            held.append(each.base.inner)
        for value in held:
            waiting += flatten(value, 3)


def _begins_in_place(model: Value, depth: int = 5) -> bool:
    """Whether a model may begin with a layer that changes its input in place."""
    if isinstance(model, Made):
        if _IN_PLACE.match(model.qualname):
            flags = [*(each.value for each in model.arguments.positions), *model.arguments.keywords.values()]
            told = (each.value if isinstance(each, Passed) else each for each in flags)
            return any(isinstance(each, Const) and each.value is True for each in told)
        first = next(iter(members(model.inner)), None)
        while isinstance(first, Sequence) and first.items:
            first = next(iter(members(first.items[0])), None)
        return first is not None and depth > 0 and _begins_in_place(first, depth - 1)
    if not isinstance(model, Instance):
        return False
    method = model.cls.find("forward")
    if not isinstance(method, Function) or depth == 0:
        return False
    names = {each.arg for each in parameters(method.node)[1:]}
    for node in walk(method.node):
        if isinstance(node, ast.AugAssign) and dotted(node.target) in names:
            return True
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        on = dotted(func.value) if isinstance(func, ast.Attribute) else None
        if isinstance(func, ast.Attribute) and on in names and func.attr.endswith("_"):
            return True
        if not any(dotted(each) in names for each in node.args):
            continue
        if any(each.arg == "inplace" for each in node.keywords):
            return True
        if isinstance(func, ast.Attribute) and on == "self":
            layers = flatten(model.attributes.get(func.attr), 1)
            if any(_begins_in_place(each, depth - 1) for each in layers):
                return True
    return False


def _picks_learning(test: ast.expr) -> bool:
    """``lambda p: p.requires_grad``."""
    given = parameters(test) if isinstance(test, ast.Lambda) else []
    return isinstance(test, ast.Lambda) and len(given) == 1 and asks_for_gradients(test.body, given[0].arg)


def _gives_all_parameters(model: Value) -> bool:
    """Whether ``model.parameters()`` certainly are those of a model and of all modules in it."""
    own = isinstance(model, Instance) and any(
        model.cls.find(name) is not None for name in ("parameters", "named_parameters", "named_modules")
    )
    return not own and not isinstance(model, Opaque) and _holds_weights(model) and not _hides_some(model)


def _hides_some(model: Value) -> bool:
    """Whether a module keeps others in a plain list or dict, where its ``parameters()`` do not look."""
    registered: set[int] = set()
    kept: set[int] = set()
    for each in _modules(model):
        if isinstance(each, Instance):
            for name, value in each.attributes.items():
                direct = {id(one) for one in members(value)}
                held = {id(one) for one in flatten(value, 3) if _is_weight(one) or _holds_weights(one)}
                # ("<...>": what the execution keeps of a module by itself)
                (registered if name.startswith("<") else kept).update(held)
                registered |= direct
        if isinstance(each, (Instance, Made)):
            registered.update(id(one) for value in each.children.values() for one in flatten(value, 3))
        inner = each.inner if isinstance(each, Made) else None
        if isinstance(each, Instance) and each.base is not None:
            inner = each.base.inner
        registered.update(id(one) for one in flatten(inner, 3))
    return bool(kept - registered)


def _is_weight(value: Value) -> bool:
    return isinstance(value, Tensor) and "param" in value.roles


def _holds_weights(value: Value) -> bool:
    if isinstance(value, Instance):
        return is_module_class(value)
    if isinstance(value, Made):
        return value.kind in ("module", "wrapper", "model", "criterion")
    return isinstance(value, Opaque)


class Uses:
    """What the program does with gradients: clears them, clips them, steps by them. ``known``: all of it was seen."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.trained: dict[int, frozenset[int]] = {}  # optimizer -> the modules whose parameters it is given
        self.owners: dict[int, Value] = {}  # the models whose parameters an optimizer or a clip is given
        self.uses: list[tuple[Event, frozenset[int], int | None]] = []
        self.known = self._read()

    def _read(self) -> bool:
        facts = self.analysis.facts
        made = [(event, each) for event in facts.of("make") for each in members(event.result) if _is_optimizer(each)]
        for event, optimizer in made:
            assert isinstance(optimizer, Made)
            passed = optimizer.arguments.get("params", 0)
            owners = self._given(passed.node if passed is not None else None, facts.frames(event))
            if owners is None or not optimizer.qualname.startswith("torch.optim."):
                return False
            self.owners.update((id(each), each) for each in owners)
            known = self.trained.get(id(optimizer), frozenset())
            self.trained[id(optimizer)] = known.union(*map(_parts, owners))
        for event in facts.of("step", "unscale"):
            kind = stepper(event.receiver)
            if kind in ("scheduler", "environment"):
                continue
            found = list(optimizers_in(concerned(event)))
            if not found or kind not in ("optimizer", "scaler") or any(id(each) not in self.trained for each in found):
                return False
            passed = event.arguments.get("closure", 0) if event.arguments is not None and kind == "optimizer" else None
            if passed is not None:
                return False
            for each in found:
                self.uses.append((event, self.trained[id(each)], id(each)))
        for event in facts.of("clip"):
            passed = event.arguments.get("parameters", 0) if event.arguments is not None else None
            owners = self._given(passed.node if passed is not None else None, facts.frames(event))
            if owners is None:
                return False
            self.owners.update((id(each), each) for each in owners)
            self.uses.append((event, frozenset().union(*map(_parts, owners)), None))
        return bool(self.trained)

    def _given(self, node: ast.AST | None, frames: tuple[Frame, ...], depth: int = 4) -> list[Value] | None:
        """The modules all of whose parameters an expression is made of; None where it may be something else."""
        if node is None or depth < 0:
            return None
        facts = self.analysis.facts
        if isinstance(node, ast.Name):
            owner = facts.bindings.owner(node.id, node, frames[-1].module)
            writes = facts.bindings.writes(owner, node.id)
            if len(writes) == 1 and isinstance(writes[0], ast.Assign) and owner is frames[-1].scope:
                return self._given(writes[0].value, frames, depth - 1)
            if isinstance(owner, FUNCTIONS) and len(frames) > 1 and owner is frames[-1].scope and not writes:
                call = frames[-1].call
                passed = argument_for(node.id, frames[-1], call) if isinstance(call, ast.Call) else None
                return self._given(passed, frames[:-1], depth - 1)
            return None
        if isinstance(node, (ast.List, ast.Tuple)):
            return self._all(node.elts, frames, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._all([node.left, node.right], frames, depth)
        if isinstance(node, ast.Dict):
            found = [
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "params"
            ]
            return self._all(found, frames, depth) if len(found) == 1 else None
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "parameters" and not (node.args or node.keywords):
            owners = list(members(facts.evaluate(node.func.value, frames)))
            sure = len(owners) == 1 and _gives_all_parameters(owners[0])
            return owners if sure else None
        if isinstance(node.func, ast.Name) and is_builtin(self.analysis, node.func, frames[-1].module):
            if node.func.id in ("list", "tuple", "iter") and len(node.args) == 1:
                return self._given(node.args[0], frames, depth - 1)
            # nothing is frozen (see ``_takes_gradients``): those that ask for gradients are all of them
            if node.func.id == "filter" and len(node.args) == 2 and _picks_learning(node.args[0]):
                return self._given(node.args[1], frames, depth - 1)
        elif node.args and qualnames(facts.evaluate(node.func, frames)) == {"itertools.chain"}:
            return self._all(node.args, frames, depth)
        return None

    def _all(self, nodes: list[ast.expr], frames: tuple[Frame, ...], depth: int) -> list[Value] | None:
        found: list[Value] = []
        for each in nodes:
            given = self._given(each, frames, depth - 1)
            if given is None:
                return None
            found += given
        return found

    def are_lost(self, model: Value, backward: Event) -> bool:
        """Whether the gradients that a backward pass gives a model are cleared before anything uses them."""
        own = _parts(model)
        return all(
            self._cleared(event, backward, own, model, optimizer)
            for event, parts, optimizer in self.uses
            if parts & own
        )

    def is_trained(self, model: Value) -> bool:
        """Whether some optimizer is given parameters of a model."""
        own = _parts(model)
        return any(parts & own for parts in self.trained.values())

    def clearing(self, model: Value) -> Site | None:
        """A call that clears the gradients of a model."""
        own = _parts(model)
        for event in self.analysis.facts.of("zero_grad"):
            if any(self._clears(event, own, model, optimizer) for _, parts, optimizer in self.uses if parts & own):
                return self.analysis.facts.site(event)
        return None

    def _cleared(self, use: Event, backward: Event, own: frozenset[int], model: Value, optimizer: int | None) -> bool:
        return any(
            self._clears(event, own, model, optimizer) and self._always_between(event, use, backward)
            for event in self.analysis.facts.of("zero_grad")
        )

    def _clears(self, event: Event, own: frozenset[int], model: Value, optimizer: int | None) -> bool:
        """Whether a call clears all gradients of a model that a use of them (by this optimizer) reads."""
        if event.arguments is not None and event.arguments.values():
            return False  # set_to_none=False: a weight that takes no part could tell
        found = members(event.receiver)
        if len(found) != 1:
            return False
        if id(found[0]) == optimizer:
            return True
        if _is_optimizer(found[0]):
            return optimizer is None and id(model) in self.trained.get(id(found[0]), ())
        if isinstance(found[0], Instance) and found[0].cls.find("zero_grad") is not None:
            return False
        return _holds_weights(found[0]) and own <= _parts(found[0])

    def _always_between(self, clear: Event, use: Event, backward: Event) -> bool:
        """Whether, wherever a use happens, the clearing has happened since the backward pass, if that ever did."""
        places = self.analysis.facts.places
        if not isinstance(places.parent(clear.node, clear.module), ast.Expr):
            return False
        facts = self.analysis.facts
        if not _is_above(facts, clear, use):
            return False
        if not (_is_above(facts, backward, clear) or _is_above(facts, use, backward)):
            return False
        tests = _levels(use.control)
        if not _levels(clear.control) <= tests or _may_have_left(clear, use):
            return False
        mine = [id(each.node) for each in self.analysis.facts.loops(clear)]
        theirs = [id(each.node) for each in self.analysis.facts.loops(use)]
        both = [each for each in theirs if each in {id(one.node) for one in self.analysis.facts.loops(backward)}]
        return mine == theirs[: len(mine)] and mine[: len(both)] == both


def _is_above(facts: Facts, first: Event, second: Event) -> bool:
    """Whether an event's statement stands above another's, in the innermost function that both happen in.

    The log's order is that in which they were first seen, which may be in a second round through a loop.
    """
    own, other = facts.frames(first), facts.frames(second)
    count = shared_frames(own, other)
    if count == 0 or own[count - 1].module is not other[count - 1].module:
        return False
    return getattr(own[count - 1].anchor, "end_lineno", 0) < getattr(other[count - 1].anchor, "lineno", 0)


def _levels(control: Control) -> set[tuple[str, int, object]]:
    """The tests, loops and ``try`` blocks that something happens under."""
    return {
        (each.kind, id(each.node), each.detail if each.kind in ("if", "choice") else None)
        for each in control.upwards()
        if each.kind in ("if", "choice", "try", "loop", "comprehension")
    }


def _may_have_left(event: Event, other: Event) -> bool:
    """Whether a function that the event happens in, and the other one does not, may have returned before."""
    shared = {id(each.node) for each in other.control.upwards() if each.kind == "call"}
    return any(
        each.kind == "call" and each.returned and id(each.node) not in shared for each in event.control.upwards()
    )


def _is_optimizer(value: Value) -> bool:
    return isinstance(value, Made) and value.kind == "optimizer"


# --- which backward pass goes through what ----------------------------------------------------------------------------


class Given(NamedTuple):
    """An expression that a model or a criterion was given: where it stands, and by whom it was computed."""

    node: ast.expr
    module: ModuleFile
    whole: bool  # it certainly is a tensor
    begins_in_place: bool  # a model that is given it may begin by changing it


class Lost(Exception):  # noqa: N818
    """Something was seen that this search does not see through."""


class Search:
    """The statements of a function and of those that it calls, and whose graph each name holds meanwhile."""

    def __init__(self, analysis: Analysis, frames: tuple[Frame, ...]) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.frames = frames
        self.given: dict[Key, Given] = {}
        self.inner: dict[Key, Marks] = {}
        self.done: dict[int, str] = {}  # what was given on detached, by the model that computed it
        self.escaped: set[Key] = set()
        self.differentiated: dict[Key, Site] = {}  # where a gradient is taken through an expression, or by it
        self.called: dict[int, str] = {}  # how the program calls a model
        self.calls: dict[Key, ast.Call] = {}  # the calls of models
        self.followed = 0
        self.visited: set[int] = set()  # the calls of models that were followed
        self.reached: list[tuple[Event, Marks]] = []
        self.left: list[list[State]] = [[]]
        self.returns: list[list[tuple[Marks, list[Marks]]]] = []
        self.items: dict[int, list[Marks]] = {}
        self.events: dict[tuple[Path, int], list[Event]] = {}
        depth = len(frames)
        path = _path(frames)
        for event in self.facts.events:
            own = self.facts.frames(event)
            if len(own) < depth or own[depth - 1].scope is not frames[-1].scope:
                continue
            whole = _path(own)
            if whole[:depth] != path:
                continue
            for count in range(depth, len(own) + 1):
                self.events.setdefault((whole[:count], id(own[count - 1].anchor)), []).append(event)

    def run(self) -> bool:
        """Walk through the function; whether all of it could be followed."""
        scope = self.frames[-1].scope
        if isinstance(scope, ast.Lambda):
            return False
        try:
            after = self.block([each for each in body_of(scope) if isinstance(each, ast.stmt)], {})
        except Lost:
            return False
        seen = {id(event) for event, _ in self.reached}
        if any(id(event) not in seen for event in self.facts.of("backward")):
            own = self._self()
            for state in (after, *self.left[0]):
                for name, marks in state.items():
                    if own is not None and name.startswith(f"{own}."):
                        self._escape(marks)
        return True

    # --- statements

    def block(self, body: Iterable[ast.stmt], state: State) -> State:
        """The state after some statements."""
        for statement in body:
            if _END in state:
                break
            if isinstance(statement, (ast.Continue, ast.Break)):
                self.left[-1].append(state)
                return {_END: _NONE}
            if isinstance(statement, ast.Return):
                self._return(statement, state)
                return {_END: _NONE}
            if isinstance(statement, ast.Raise):
                return {_END: _NONE}
            state = self.statement(statement, state)
        return state

    def _return(self, node: ast.Return, state: State) -> None:
        if not self.returns:
            self._escape(self.expression(node.value, state) if node.value is not None else _NONE)
            self.left[0].append(state)
            return
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else []
        items = [self.expression(each, state) for each in parts]
        whole = frozenset().union(*items) if items else _NONE
        if node.value is not None and not items:
            whole = self.expression(node.value, state)
            items = self.items.get(id(node.value), [])
        self.returns[-1].append((whole, items))
        self.left[0].append(state)

    def statement(self, node: ast.stmt, state: State) -> State:
        """The state after a statement."""
        self.followed += 1
        if self.followed > _LONGEST:
            raise Lost
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return state
        if isinstance(node, ast.If):
            self.expression(node.test, state)
            return _either(self.block(node.body, dict(state)), self.block(node.orelse, dict(state)))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, state)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            before = dict(state)
            for item in node.items:
                marks = self.expression(item.context_expr, state)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, marks, state)
            after = self.block(node.body, state)
            if any(self._is_quiet(item.context_expr) for item in node.items):
                return {n: marks if before.get(n) == marks else _quiet(marks) for n, marks in after.items()}
            return after
        if isinstance(node, ast.Try):
            before = dict(state)
            after = self.block([*node.body, *node.orelse], dict(state))
            for handler in node.handlers:
                after = _either(
                    after, self.block(handler.body, _either(before, after) if _END not in after else before)
                )
            return self.block(node.finalbody, after)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
            return self._simple(node, state)
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise Lost
        if isinstance(node, ast.Delete):
            return state
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child, state)
            elif not isinstance(child, (ast.alias, ast.expr_context)):
                raise Lost  # a match statement
        return state

    def _is_quiet(self, item: ast.expr) -> bool:
        """Whether a ``with`` item switches gradients off."""
        return any(
            isinstance(member, Made) and member.kind == "gradmode" and "enable_grad" not in member.qualname
            for event in self.facts.at(item)
            if event.kind == "enter"
            for member in members(event.receiver)
        )

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State:
        before = dict(state)
        for _ in range(2):
            inner = dict(before)
            if isinstance(node, ast.While):
                self.expression(node.test, inner)
            else:
                self._assign(node.target, self.expression(node.iter, inner), inner)
            self.left.append([])
            after = self.block(node.body, inner)
            for each in self.left.pop():
                after = _either(after, each)
            before = _either(before, after)
        return self.block(node.orelse, before)

    def _simple(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr, state: State) -> State:
        if node.value is None:
            return state
        if isinstance(node, ast.Assign):
            parts: list[Marks] = []
            if isinstance(node.value, ast.Tuple):
                parts = [self.expression(each, state) for each in node.value.elts]
                marks: Marks = frozenset().union(*parts) if parts else _NONE
            else:
                marks = self.expression(node.value, state)
                parts = self.items.get(id(node.value), [])
            for target in node.targets:
                if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == len(parts):
                    for single, each in zip(target.elts, parts, strict=True):
                        self._assign(single, each, state)
                else:
                    self._assign(target, marks, state)
            return state
        marks = self.expression(node.value, state)
        if isinstance(node, ast.AnnAssign):
            self._assign(node.target, marks, state)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, marks | self.expression(node.target, state), state)
        elif isinstance(node.value, (ast.Yield, ast.YieldFrom, ast.Await)):
            self._escape(marks)
        elif isinstance(node.value, ast.Call):
            self._told(node.value, state)
        return state

    def _told(self, call: ast.Call, state: State) -> None:
        """What a call as a statement may keep of what it is given: in what it is called on."""
        if self._here(call):
            kinds = {event.kind for event in self._here(call)}
            if kinds & {"backward", "show", "step", "zero_grad", "clip", "save"}:
                return
        given = frozenset().union(*(self.expression(each, dict(state)) for each in _arguments(call)), _NONE)
        if not any(isinstance(each, Via) for each in given) or self._inlined(call) is not None:
            return
        held = call.func.value if isinstance(call.func, ast.Attribute) else None
        while isinstance(held, ast.Subscript):
            held = held.value
        name = dotted(held)
        if name is not None and self._is_own(name, held):
            state[name] = state.get(name, _NONE) | given
        elif not (isinstance(call.func, ast.Name) and call.func.id == "print"):
            self._escape(given)

    def _is_own(self, name: str, node: ast.AST | None) -> bool:
        """Whether a name is known to this function alone: its own, or an attribute of its own object."""
        scope = self.frames[-1].scope
        head, dot, _ = name.partition(".")
        if not dot:
            return isinstance(scope, ast.Module) or (
                self.facts.bindings.is_local(head, scope) and not any(each.arg == head for each in parameters(scope))
            )
        return self._self() == head

    def _self(self) -> str | None:
        """What a method calls its object."""
        frame = self.frames[-1]
        if frame.function is None or frame.function.cls is None:
            return None
        first = parameters(frame.scope)[:1]
        return first[0].arg if first else None

    def _assign(self, target: ast.expr, marks: Marks, state: State) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._assign(each, marks, state)
            return
        add = False
        while isinstance(target, (ast.Subscript, ast.Starred)):
            add = add or isinstance(target, ast.Subscript)
            target = target.value
        name = dotted(target)
        if name is None or ("." in name and self._self() != name.partition(".")[0]):
            self._escape(marks)
            return
        if add and not self._is_own(name, target):
            self._escape(marks)
        state[name] = (state.get(name, _NONE) | marks) if add else marks

    def _escape(self, marks: Marks) -> None:
        """Values go where they are not followed: what they were computed from may be needed."""
        for mark in marks:
            if isinstance(mark, Via) and mark.given not in self.escaped:
                self.escaped.add(mark.given)
                self._escape(self.inner.get(mark.given, _NONE))

    # --- expressions

    def expression(self, node: ast.expr, state: State) -> Marks:
        """Whose graphs an expression's value holds; the calls in it happen."""
        if isinstance(node, ast.Constant):
            return _NONE
        name = dotted(node)
        if name is not None:
            return self._named(node, name, state)
        if isinstance(node, ast.Lambda):
            found = frozenset().union(
                *(self._named(each, each.id, state) for each in walk(node.body) if isinstance(each, ast.Name)), _NONE
            )
            self._escape(found)
            return found
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node, state)
        if isinstance(node, ast.NamedExpr):
            marks = self.expression(node.value, state)
            self._assign(node.target, marks, state)
            return marks
        if isinstance(node, ast.Call):
            return self._call(node, state)
        found = _NONE
        for child in ast.iter_child_nodes(node):
            inner = child.value if isinstance(child, ast.keyword) else child
            if isinstance(inner, ast.expr):
                found |= self.expression(inner, state)
        if isinstance(node, ast.Attribute) and node.attr in _CUT_PARTS:
            return _quiet(found)
        if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
            return found | {From(None)}
        return _NONE if isinstance(node, (ast.Compare, ast.JoinedStr)) else found

    def _named(self, node: ast.expr, name: str, state: State) -> Marks:
        found = _NONE
        for held, marks in state.items():
            if held and (held == name or name.startswith(held + ".") or (held.startswith(name + "."))):
                found |= marks
        if found and isinstance(node, ast.Attribute) and node.attr in _CUT_PARTS and name not in state:
            return _quiet(found)
        if not found and isinstance(node, ast.Attribute):
            values = members(self.facts.evaluate(node, self.frames))
            if any(isinstance(each, Tensor) and "param" in each.roles for each in values):
                return frozenset((From(None),))  # a weight, by itself
        return found

    def _comprehension(self, node: ast.expr, state: State) -> Marks:
        inner = dict(state)
        for generator in getattr(node, "generators", ()):
            marks = self.expression(generator.iter, inner)
            self._assign(generator.target, marks, inner)
            for test in generator.ifs:
                self.expression(test, inner)
        parts = [
            getattr(node, name) for name in ("key", "elt", "value") if isinstance(getattr(node, name, None), ast.expr)
        ]
        return frozenset().union(*(self.expression(part, inner) for part in parts), _NONE)

    def _here(self, node: ast.AST) -> list[Event]:
        """The events of a node itself, in this function."""
        count = len(self.frames)
        return [
            event
            for event in self.events.get((_path(self.frames), id(node)), ())
            if len(self.facts.frames(event)) == count
        ]

    def _inlined(self, node: ast.Call) -> tuple[Frame, ...] | None:
        """The frames of the one function of the project that a call enters."""
        if any(event.kind in ("forward", "criterion", "construct", "make") for event in self._here(node)):
            return None
        count = len(self.frames)
        found: dict[int, tuple[Frame, ...]] = {}
        for event in self.events.get((_path(self.frames), id(node)), ()):
            own = self.facts.frames(event)
            if len(own) > count and own[count].call is node:
                found.setdefault(id(own[count].scope), own[: count + 1])
        if len(found) > 1:
            raise Lost
        return next(iter(found.values()), None)

    def _call(self, node: ast.Call, state: State) -> Marks:
        func = node.func
        base = self.expression(func.value, state) if isinstance(func, ast.Attribute) else _NONE
        given = [(each, self.expression(each, state)) for each in _arguments(node)]
        marks: Marks = base.union(*(each for _, each in given))
        here = self._here(node)
        kinds = {event.kind for event in here}
        for event in here:
            if event.kind == "backward" and event.node is node:
                self._backward(event, state)
                return _NONE
            if event.kind == "autograd_grad":
                for each in _all_given(self, marks):
                    self.differentiated.setdefault(each, self.facts.site(event))
                self._escape(marks)
                return marks
        forwards = [event for event in here if event.kind in ("forward", "criterion")]
        if forwards:
            return self._forward(node, forwards, given, state)
        if isinstance(func, ast.Attribute) and func.attr in _CUTS and self._is_of_tensor(func, base):
            return _quiet(marks)
        inlined = self._inlined(node)
        if inlined is not None:
            return self._enter(node, inlined, state)
        call = (_path(self.frames), id(node))
        deeper = [e for e in self.events.get((_path(self.frames), id(node)), ()) if e not in here]
        if any(event.kind in ("backward", "autograd_grad", "step") for event in deeper):
            raise Lost
        for event in deeper:
            if event.kind == "forward" and not no_grad(event):
                self.visited.add(id(event))
                marks |= {From(each, call) for each in members(event.receiver)}
        if "construct" in kinds or any(event.kind == "return" for event in deeper) or self._is_own_code(func):
            self._escape(marks)
        if isinstance(func, ast.Attribute) and func.attr not in _ABOUT:
            owner = members(self.facts.evaluate(func.value, self.frames))
            marks |= {From(each, call) for each in owner if _holds_weights(each) and is_model(each)}
            if func.attr.endswith("_") and not func.attr.startswith("_") and dotted(func.value) is not None:
                held = dotted(func.value) or ""
                if held in state:
                    state[held] |= marks
        return marks

    def _is_of_tensor(self, func: ast.Attribute, base: Marks) -> bool:
        """Whether something called by the name of a tensor's method is one: ``x.detach()``, ``torch.argmax(x)``."""
        if not base:
            return any(name.startswith("torch.") for name in qualnames(self.facts.evaluate(func, self.frames)))
        return not self._is_own_code(func)

    def _is_own_code(self, node: ast.expr) -> bool:
        """Whether a call may enter code of the project, which was not followed."""
        return any(
            isinstance(each, (Function, Bound, Class, Partial))
            for each in members(self.facts.evaluate(node, self.frames))
        )

    def _forward(
        self, node: ast.Call, forwards: list[Event], given: list[tuple[ast.expr, Marks]], state: State
    ) -> Marks:
        """A model or a criterion is called."""
        for event in self.events.get((_path(self.frames), id(node)), ()):
            if event.kind in ("backward", "step"):
                raise Lost
            if event.kind == "forward":
                self.visited.add(id(event))
        quiet = all(no_grad(event) for event in forwards) or self._gives_no_graph(node, forwards)
        self.calls[_path(self.frames), id(node)] = node
        for event in forwards:
            for each in members(event.receiver):
                self.called.setdefault(id(each), dotted(node.func) or "the model")
        found: Marks = frozenset(
            From(
                each if _holds_weights(each) and not isinstance(each, Opaque) else None, (_path(self.frames), id(node))
            )
            for event in forwards
            for each in members(event.receiver)
            if event.kind == "forward" or _holds_weights(each)
        )
        for expression, marks in given:
            if not any(isinstance(each, Via) or not each.quiet for each in marks):
                for mark in marks:
                    if isinstance(mark, From):
                        text = self.facts.places.text(expression, self.frames[-1].module)
                        self.done.setdefault(id(mark.model), text)
                        found |= {mark}
                continue
            if quiet:
                continue
            changes = any(_begins_in_place(each) for event in forwards for each in members(event.receiver))
            for source, own, whole in list(self._sources(expression, state)):
                key = (_path(self.frames), id(source))
                known = self.given.get(key)
                self.given[key] = Given(
                    source,
                    self.frames[-1].module,
                    whole and (known is None or known.whole),
                    changes or (known is not None and known.begins_in_place),
                )
                self.inner[key] = self.inner.get(key, _NONE) | own
                found |= {Via(key)}
        return _quiet(found) if quiet else found

    def _gives_no_graph(self, node: ast.Call, forwards: list[Event]) -> bool:
        """Whether the models themselves compute without a graph, or return what has none."""
        values = [each for event in forwards for each in members(event.returned)]
        if values and all(isinstance(each, Tensor) and each.detached for each in values):
            return True
        count = len(self.frames)
        inner = [
            event
            for event in self.events.get((_path(self.frames), id(node)), ())
            if event.kind == "forward" and len(self.facts.frames(event)) > count
        ]
        return bool(inner) and all(map(no_grad, inner))

    def _sources(self, node: ast.expr, state: State) -> Iterator[tuple[ast.expr, Marks, bool]]:
        """The smallest expressions in an argument that hold a graph, with that, and whether each is a tensor."""
        copy = dict(state)
        marks = self.expression(node, copy)
        if not any(isinstance(each, Via) or not each.quiet for each in marks):
            return
        plain = dotted(node) is not None
        called = isinstance(node, ast.Call) and any(each.kind == "forward" for each in self._here(node))
        if plain or called:
            values = members(self.facts.evaluate(node, self.frames))
            yield node, marks, bool(values) and all(map(_is_plain_tensor, values))
            return
        children: list[ast.expr] = []
        if isinstance(node, ast.Call) and self._inlined(node) is None and not self._here_deeper(node):
            children = [*_arguments(node)]
            if isinstance(node.func, ast.Attribute):
                children.append(node.func.value)
        elif isinstance(node, (ast.Tuple, ast.List)):
            children = node.elts
        elif isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Starred)):
            children = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        below = [each for child in children for each in self._sources(child, state)]
        if below:
            yield from below
        else:
            yield node, marks, False

    def _here_deeper(self, node: ast.AST) -> bool:
        count = len(self.frames)
        return any(
            len(self.facts.frames(event)) > count for event in self.events.get((_path(self.frames), id(node)), ())
        )

    def _enter(self, node: ast.Call, frames: tuple[Frame, ...], state: State) -> Marks:
        """A function of the project is called: its statements, with what it is given."""
        if len(self.returns) >= _DEEPEST or isinstance(frames[-1].scope, ast.Lambda):
            raise Lost
        scope = frames[-1].scope
        outer = self.frames
        inner: State = {}
        names = [each.arg for each in parameters(scope)]
        nested = any(scope is each for each in walk(outer[-1].scope)) and frames[-1].module is outer[-1].module
        if nested:
            inner = {
                held: marks
                for held, marks in state.items()
                if not self.facts.bindings.is_local(held.partition(".")[0], scope)
            }
        opaque = any(isinstance(each, ast.Starred) for each in node.args) or any(
            each.arg is None for each in node.keywords
        )
        spread = getattr(scope, "args", None)
        opaque = opaque or (spread is not None and (spread.vararg is not None or spread.kwarg is not None))
        everything: Marks = _NONE
        if opaque:
            everything = everything.union(*(self.expression(each, dict(state)) for each in _arguments(node)))
        for name in names:
            passed = argument_for(name, frames[-1], node)
            if opaque:
                inner[name] = everything
            elif passed is not None:
                inner[name] = self.expression(passed, dict(state))
        held = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
        first = names[0] if names and frames[-1].function is not None and frames[-1].function.cls is not None else None
        if first is not None and held is not None:
            for name, marks in state.items():
                if name.startswith(held + "."):
                    inner[first + name[len(held) :]] = marks
        self.frames = frames
        kept = self.left
        self.left = [[]]
        self.returns.append([])
        after = self.block([each for each in body_of(scope) if isinstance(each, ast.stmt)], inner)
        for each in self.left[0]:
            after = _either(after, each)
        self.left = kept
        self.frames = outer
        found = self.returns.pop()
        if any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in walk(scope)):
            raise Lost
        for name, marks in after.items():
            if first is not None and name.startswith(first + "."):
                if held is None:
                    self._escape(marks)
                else:
                    state[held + name[len(first) :]] = marks
        lengths = {len(items) for _, items in found}
        self.items.pop(id(node), None)
        if len(lengths) == 1 and lengths != {0}:
            self.items[id(node)] = [
                frozenset().union(*(items[index] for _, items in found)) for index in range(lengths.pop())
            ]
        return frozenset().union(*(whole for whole, _ in found), _NONE)

    def _backward(self, event: Event, state: State) -> None:
        loss = loss_expression(self.analysis, event)
        if loss is None:
            raise Lost
        self.reached.append((event, self.expression(loss, dict(state))))


def _path(frames: tuple[Frame, ...]) -> Path:
    return tuple(id(frame.call) for frame in frames)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _quiet(marks: Marks) -> Marks:
    """What is left without a graph."""
    return frozenset(From(each.model, quiet=True) for each in marks if isinstance(each, From))


def _either(first: State, second: State) -> State:
    if _END in first:
        return second
    if _END in second:
        return first
    return {name: first.get(name, _NONE) | second.get(name, _NONE) for name in {**first, **second}}


def _is_plain_tensor(value: Value) -> bool:
    return isinstance(value, Tensor) and not value.foreign and "object" not in value.roles


# --- what to make of it -----------------------------------------------------------------------------------------------


class Judgement:
    """What was found, held against what the program does with gradients."""

    def __init__(self, analysis: Analysis, search: Search, uses: Uses) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.search = search
        self.uses = uses
        self.through: dict[Key, list[Event]] = {}
        for event, marks in search.reached:
            for given in _all_given(search, marks):
                self.through.setdefault(given, []).append(event)
        open_at = {given[1] for given in search.given if not self._may_end(given)}
        self.accepted = {given for given in self.through if given[1] not in open_at}

    def _may_end(self, given: Key) -> bool:
        """Whether every backward pass through an expression may end at it."""
        if given not in self.through:
            return given not in self.search.escaped
        found = self.search.given[given]
        models = _models(self.search, self.search.inner[given])
        return (
            found.whole
            and given not in self.search.escaped
            and self._all_are_lost(given, self.through[given])
            and any(model is not None and self._has_weights(model) for model in models)
            and not any(_is_special(event) for event in self.through[given])
            and not found.begins_in_place
            and _all_followed(self.analysis, self.search, found)
        )

    def _all_are_lost(self, given: Key, events: Iterable[Event]) -> bool:
        models = _models(self.search, self.search.inner[given])
        if not models or None in models:
            return False
        return all(self.uses.are_lost(model, event) for model in models if model is not None for event in events)

    def _has_weights(self, model: Value) -> bool:
        """Whether a model has weights that take gradients."""
        return self.uses.is_trained(model) or any(
            isinstance(each, Made) and WEIGHED.match(each.qualname) for each in _modules(model)
        )

    def of(self, backwards: list[Event]) -> Iterator[ThrownAway]:
        """What is thrown away by each of these backward passes, or could be."""
        wanted = {event.node for event in backwards}
        together: dict[ast.AST, list[tuple[Event, Marks]]] = {}
        for event, marks in self.search.reached:
            if event.node in wanted:
                together.setdefault(event.node, []).append((event, marks))
        for pairs in together.values():
            found = self._of([event for event, _ in pairs], frozenset().union(*(marks for _, marks in pairs)))
            if found is None:
                found = self._on_the_way(pairs)
            if found is not None:
                yield found

    # --- weights that lie on the way

    def _on_the_way(self, pairs: list[tuple[Event, Marks]]) -> ThrownAway | None:
        """What a backward pass computes for the weights of models that it only has to go through."""
        modules = self.analysis.execution.modules.values()
        if any(_says(each.text, _FREEZING) or _makes_frozen_weights(each.tree) for each in modules):
            return None
        found: set[tuple[str, ...]] = set()
        passed: dict[int, Value] = {}
        for event, marks in pairs:
            node = event.node
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or _is_special(event):
                return None
            if event.arguments is None or event.arguments.open or event.arguments.star:
                return None
            if node.func.attr != "backward" or event.name == "torch.autograd.backward":
                return None
            if not members(event.receiver) or not all(map(_is_plain_tensor, members(event.receiver))):
                return None  # an object's own `backward` may take no such argument
            lost, kept = self._shares(event, marks)
            names = [self._name_at(event, model, marks) for model in kept]
            if not lost or not kept or None in names:
                return None
            found.add(tuple(sorted({name for name in names if name is not None})))
            passed.update((id(model), model) for model in lost)
        if len(found) != 1:
            return None
        site = self.facts.site(pairs[0][0])
        models = [model for model in passed.values() if self.uses.is_trained(model)]
        called = sorted({self._called_on(model, pairs) for model in models})
        others = sorted({self._called_on(each, pairs) for each in passed.values() if not self.uses.is_trained(each)})
        cleared = sorted({clear for model in models if (clear := self.uses.clearing(model)) is not None})
        read = next(gradient_reads(self.analysis), None)
        why = None if read is None else f"a gradient is read on {read.line_from(site.path)}"
        found_by = found.pop()
        return ThrownAway(site, (), (), tuple(called), tuple(cleared), why, kept=found_by, untrained=tuple(others))

    def _called_on(self, model: Value, pairs: list[tuple[Event, Marks]]) -> str:
        """What a model is called where the graph of a backward pass goes through it."""
        for _, marks in pairs:
            for mark in sorted(_without(self.search, marks, set()), key=lambda each: each.call[1]):
                call = self.search.calls.get(mark.call)
                if mark.model is model and not mark.quiet and call is not None:
                    name = dotted(call.func)
                    if name is not None:
                        return name
        return self.search.called.get(id(model), "a model")

    def _shares(self, event: Event, marks: Marks) -> tuple[list[Value], list[Value]]:
        """The models whose gradients of a backward pass are lost though some optimizer has them, and those whose are
        not; none where that is not known of all."""
        reached = {each.model for each in _without(self.search, marks, set()) if not each.quiet}
        if None in reached:
            return [], []
        models = [model for model in reached if model is not None and self._has_weights(model)]
        kept = [model for model in models if not self.uses.are_lost(model, event)]
        lost = [model for model in models if model not in kept]
        own = frozenset().union(*map(_parts, kept))
        # a penalty on weights reaches a model that is not called
        others = (each for each in self.uses.owners.values() if not self.uses.are_lost(each, event))
        if not all(_parts(each) <= own for each in others) or any(_parts(each) & own for each in lost):
            return [], []
        if not all(_gives_all_parameters(model) and _is_all_torch(model) for model in kept):
            return [], []
        if not any(map(self.uses.is_trained, lost)):
            return [], []
        return lost, kept

    def _name_at(self, event: Event, model: Value, marks: Marks) -> str | None:
        """What a model is called where a backward pass starts: as it was when it was called in the same function."""
        frames = self.facts.frames(event)
        scope, module = frames[-1].scope, frames[-1].module
        for mark in sorted(_without(self.search, marks, set()), key=lambda each: each.call[1]):
            call = self.search.calls.get(mark.call)
            if mark.model is not model or call is None or mark.call[0] != _path(frames):
                continue
            name = dotted(call.func)
            if name is None:
                continue
            head, dot, rest = name.partition(".")
            if any(each.arg == head for each in parameters(scope)):
                written = len(self.facts.bindings.writes(scope, head)) == 0
            else:
                owner = self.facts.bindings.owner(head, call, module)
                written = len(self.facts.bindings.writes(owner, head)) == 1
            if dot:
                written = written and "." not in rest and len(self.facts.attribute_writes(rest)) == 1
            if written:
                return name
        return None

    def _of(self, events: list[Event], marks: Marks) -> ThrownAway | None:
        search = self.search
        site = self.facts.site(events[0])
        cuts = _outermost(search, marks, self.accepted)
        skipped = {each for given in cuts for each in _without(search, search.inner[given], set()) if not each.quiet}
        rest = {each for each in _without(search, marks, self.accepted) if not each.quiet}
        if cuts and not rest & skipped:
            if not any(each.model is not None and self.uses.is_trained(each.model) for each in rest):
                return None  # nothing would be left to differentiate
            read = next(gradient_reads(self.analysis), None)
            why = None if read is None else f"a gradient is read on {read.line_from(site.path)}"
            return self._said(site, cuts, why)
        if cuts:
            return self._said(site, cuts, "the backward pass comes there by another way, too")
        for given in sorted(_all_given(search, marks) - self.accepted, key=self._place):
            why = self._why_not(given, events, site)
            if why is not None:
                return self._said(site, {given}, why)
        return self._done(events, marks, site)

    def _place(self, given: Key) -> Site:
        found = self.search.given[given]
        return self.facts.places.site(found.node, found.module)

    def _done(self, events: list[Event], marks: Marks, site: Site) -> ThrownAway | None:
        """What a model gave another one detached, where gradients would be thrown away."""
        live = {each.model for each in _without(self.search, marks, set()) if not each.quiet}
        whole = marks.union(*(self.search.inner[given] for given in _all_given(self.search, marks)))
        quiet = [each for each in whole if isinstance(each, From)]
        for mark in sorted(quiet, key=lambda each: self.search.done.get(id(each.model), "")):
            if not mark.quiet or mark.model is None or mark.model in live:
                continue
            text = self.search.done.get(id(mark.model))
            if text is None or not self.uses.is_trained(mark.model):
                continue
            if all(self.uses.are_lost(mark.model, event) for event in events):
                called = self.search.called.get(id(mark.model), "a model")
                return ThrownAway(site, (text,), (), (called,), done=True)
        return None

    def _why_not(self, given: Key, events: list[Event], site: Site) -> str | None:
        """Why a backward pass whose gradients are lost may not end at an expression."""
        found = self.search.given[given]
        models = _models(self.search, self.search.inner[given])
        if not found.whole or not all(model is not None and self.uses.is_trained(model) for model in models):
            return None
        if not self._all_are_lost(given, events):
            return None
        taken = self.search.differentiated.get(given)
        if taken is not None:
            return f"{taken.line_from(site.path)} takes a gradient through it (`torch.autograd.grad`)"
        other = [each for each in self.through[given] if not self._all_are_lost(given, [each])]
        if not other:
            return None
        where = self.facts.site(other[0]).line_from(site.path)
        return f"the backward pass on {where} goes through the same call, and needs them"

    def _said(self, site: Site, cuts: set[Key], why_not: str | None) -> ThrownAway:
        search, places = self.search, self.facts.places
        given = [search.given[each] for each in cuts]
        sites = tuple(sorted(places.site(each.node, each.module) for each in given))
        names = tuple(dict.fromkeys(places.text(each.node, each.module) for each in given))
        models = {id(m): m for each in cuts for m in _models(search, search.inner[each]) if m is not None}.values()
        called = sorted({search.called.get(id(model), "a model") for model in models if self.uses.is_trained(model)})
        cleared = sorted({found for model in models if (found := self.uses.clearing(model)) is not None})
        if not called:
            called = sorted({search.called.get(id(model), "a model") for model in models})
        return ThrownAway(site, tuple(sorted(names)), sites, tuple(called), tuple(cleared), why_not)


def _says(text: str, pattern: re.Pattern[str]) -> bool:
    """Whether a pattern is found in a text, other than in a comment."""
    found = [match.start() for match in pattern.finditer(text)]
    if not found:
        return False
    try:
        comments = [each for each in words_of(text) if each.is_comment]
    except (SyntaxError, tokenize.TokenError):
        return True
    return any(not any(each.start <= place < each.end for each in comments) for place in found)


_FREEZING = re.compile(r"\bfreeze|\bfrom_pretrained\b|checkpointing\b|\bmemory_efficient\b")


@once_per_node
def _makes_frozen_weights(tree: ast.Module) -> bool:
    """Whether a file may make weights that take no gradients: a backward pass may not be told to compute theirs."""
    for loop in every(ast.For, tree):
        if _over_parameters(loop) and any(
            isinstance(each, ast.Attribute) and each.attr == "detach_" for each in walk(loop)
        ):
            return True
    return any(
        (dotted(call.func) or "").rpartition(".")[2].endswith("Parameter")
        and (len(call.args) > 1 or bool(call.keywords) or any(isinstance(each, ast.Starred) for each in call.args))
        for call in every(ast.Call, tree)
    )


def _is_all_torch(model: Value) -> bool:
    """Whether all modules in a model are torch's layers or the program's own: all their weights take gradients."""
    return all(
        isinstance(each, Instance)
        or (isinstance(each, Made) and each.qualname.startswith("torch.nn."))
        or (isinstance(each, Opaque) and each.name.endswith("<layer>"))  # one of them, as ``apply`` gives it
        for each in _modules(model)
    )


def _is_special(event: Event) -> bool:
    return creates_graph(event) or told_to_backward(event, "inputs") is not None


def _all_given(search: Search, marks: Marks) -> set[Key]:
    found: set[Key] = set()
    waiting = list(marks)
    while waiting:
        each = waiting.pop()
        if isinstance(each, Via) and each.given not in found:
            found.add(each.given)
            waiting += search.inner.get(each.given, _NONE)
    return found


def _models(search: Search, marks: Marks) -> set[Value | None]:
    """The models that something was computed by, with a graph."""
    found = {each.model for each in marks if isinstance(each, From) and not each.quiet}
    for given in _all_given(search, marks):
        found |= {each.model for each in search.inner[given] if isinstance(each, From) and not each.quiet}
    return found


def _outermost(search: Search, marks: Marks, accepted: set[Key]) -> set[Key]:
    found: set[Key] = set()
    seen: set[Key] = set()
    waiting = list(marks)
    while waiting:
        each = waiting.pop()
        if isinstance(each, Via) and each.given not in seen:
            seen.add(each.given)
            if each.given in accepted:
                found.add(each.given)
            else:
                waiting += search.inner[each.given]
    return found


def _without(search: Search, marks: Marks, accepted: set[Key]) -> set[From]:
    """What a backward pass still goes into where those values are detached."""
    found: set[From] = set()
    seen: set[Key] = set()
    waiting = list(marks)
    while waiting:
        each = waiting.pop()
        if isinstance(each, From):
            found.add(each)
        elif each.given not in accepted and each.given not in seen:
            seen.add(each.given)
            waiting += search.inner[each.given]
    return found


def _all_followed(analysis: Analysis, search: Search, given: Given) -> bool:
    """Whether every call of the statement that holds an expression was followed, in whatever function it happened."""
    for above in (given.node, *analysis.facts.places.ancestors(given.node, given.module)):
        for event in analysis.facts.at(above):
            if event.kind == "forward" and id(event) not in search.visited:
                return False
        if isinstance(above, ast.stmt):
            break
    return True
