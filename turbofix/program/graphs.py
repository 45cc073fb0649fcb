"""Graphs that outlive a step: a backward through what a model computed before an optimizer changed its weights.

Plain torch notices it where the changed weights are needed again, and raises; a fused optimizer does not tell autograd
of its updates, and the backward silently goes on with other weights than the forward pass had. What a name holds is
followed through the statements of one function, twice through the body of the training loop; ``detach`` and its like
end a graph, and so does an assignment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.acts import concerned, optimizers_in
from turbofix.program.analysis import Analysis
from turbofix.program.events import Event, LoopRecord
from turbofix.program.facts import Frame
from turbofix.program.libraries import DEAD_ENDS, words
from turbofix.program.model import Stale
from turbofix.program.names import body_of, dotted, targets
from turbofix.program.objects import parameter_owners
from turbofix.program.regions import anchors, loss_expression, no_grad
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS
from turbofix.program.tensors import tensors_in
from turbofix.program.values import Const, External, Host, Instance, Made, Unknown, Value, flatten, members

Graph = tuple[Site, "Site | None"]
"""That something was computed by a model which this optimizer trains, and the step that it has made since then."""

State = dict[str, frozenset[Graph]]

_CUTS = words(
    """
    sample sample_n multinomial detach item tolist numpy size dim numel argmax argmin argsort eq ne lt gt le ge
    new new_zeros new_ones new_tensor zeros_like ones_like
    """
)
_CUT_PARTS = words("data shape grad dtype device is_cuda ndim requires_grad")
_ADDING = words("append extend insert add")


def stale(
    analysis: Analysis, record: LoopRecord, backwards: list[Event], updates: list[Event], events: list[Event]
) -> tuple[Stale, ...]:
    """The backward passes of a training loop that go through weights which a step has changed since the forward."""
    facts = analysis.facts
    trained = _trained(analysis, updates)
    if not trained:
        return ()
    first = next((event for event in backwards if facts.inside(event, record.node)), None)
    if first is None:
        return ()
    frames = facts.frames(first)
    start = next((i for i, each in enumerate(frames) if any(record.node is loop for loop in each.loops)), None)
    if start is None:
        return ()
    walks = [Walk(analysis, frames[: start + 1], trained, events, record.node)]
    for backward in backwards:
        own = facts.frames(backward)
        if len(own) > start + 1 and not any(own[-1].scope is walk.frames[-1].scope for walk in walks):
            walks.append(Walk(analysis, own, trained, events, None))
    return tuple(sorted({each for walk in walks for each in walk.run()}, key=lambda each: each.backward))


def _trained(analysis: Analysis, updates: list[Event]) -> dict[int, set[Site]]:
    """The optimizers of each model, and of each module in it, by the identity of the value."""
    found: dict[int, set[Site]] = {}
    for event in updates:
        for optimizer in optimizers_in(concerned(event)):
            site = analysis.facts.origin_site(optimizer.origin)
            passed = optimizer.arguments.get("params", 0) if optimizer.arguments is not None else None
            if site is None or passed is None:
                continue
            waiting: list[Value] = list(parameter_owners([passed.value]))
            seen: set[int] = set()
            while waiting:
                model = waiting.pop()
                if id(model) in seen or not isinstance(model, (Instance, Made)) or len(seen) > _MOST:
                    continue
                seen.add(id(model))
                found.setdefault(id(model), set()).add(site)
                for value in model.attributes.values():
                    waiting += flatten(value, 2)
                if isinstance(model, Made):
                    waiting += flatten(model.inner, 2)
    return found


_MOST = 2000


class Walk:
    """One function's statements, and which names hold whose graph while they run."""

    def __init__(
        self,
        analysis: Analysis,
        frames: tuple[Frame, ...],
        trained: Mapping[int, set[Site]],
        events: Iterable[Event],
        loop: ast.AST | None,
    ) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.frames = frames
        self.trained = trained
        self.loop = loop
        self.found: set[Stale] = set()
        self.left: list[list[State]] = [[]]  # the states at the breaks and continues of each loop around
        self.marks: dict[int, list[Event]] = {}
        kinds = ("forward", "step", "backward", "return")
        live = [event for event in analysis.facts.of(*kinds) if loop is None or event.kind != "backward"]
        inside = {id(event) for event in events}
        live += [event for event in events if event.kind == "backward" and loop is not None]
        for node, event in anchors(analysis, live, frames):
            if event.kind == "forward" or event.kind == "return" or id(event) in inside:
                self.marks.setdefault(id(node), []).append(event)

    def run(self) -> set[Stale]:
        """Walk through the function."""
        if not isinstance(self.frames[-1].scope, ast.Lambda):
            self.block([each for each in body_of(self.frames[-1].scope) if isinstance(each, ast.stmt)], {})
        return self.found

    def block(self, body: Iterable[ast.stmt], state: State) -> State:
        """The state after some statements."""
        for statement in body:
            if self.ended(state):
                break
            if isinstance(statement, (ast.Continue, ast.Break)):
                self.left[-1].append(state)
            if isinstance(statement, (ast.Continue, ast.Break, ast.Return, ast.Raise)):
                self.expression(getattr(statement, "value", None) or _NOTHING, state)
                return {_END: frozenset()}
            state = self.statement(statement, state)
        return state

    def ended(self, state: State) -> bool:
        """Whether no path leads on from here."""
        return _END in state

    def statement(self, node: ast.stmt, state: State) -> State:
        """The state after a statement."""
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return state
        if isinstance(node, ast.If):
            self.expression(node.test, state)
            return _either(self.block(node.body, dict(state)), self.block(node.orelse, dict(state)))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, state)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            after = self.block(node.body, dict(state))
            if any(self._is_quiet(item.context_expr) for item in node.items):
                return {name: graphs for name, graphs in after.items() if state.get(name) == graphs}
            return after
        if isinstance(node, ast.Try):
            after = self.block([*node.body, *node.orelse], dict(state))
            for handler in node.handlers:
                after = _either(after, self.block(handler.body, dict(state)))
            return self.block(node.finalbody, after)
        return self._simple(node, state)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State:
        before = dict(state)
        for _ in range(2 if node is self.loop else 1):
            inner = dict(before)
            if not isinstance(node, ast.While):
                graphs = self.expression(node.iter, inner)
                for target in targets(node.target):
                    _set(inner, target, graphs, keep=False)
            self.left.append([])
            after = self.block(node.body, inner)
            for each in self.left.pop():
                after = _either(after, each)
            if not isinstance(node, ast.While) and isinstance(node.target, ast.Name):
                cut = _cut_in_place(node.body, node.target.id)
                held = dotted(node.iter)
                if cut and held is not None:
                    after.pop(held, None)
                    before.pop(held, None)
            before = _either(before, after)
        return self.block(node.orelse, before)

    def _simple(self, node: ast.stmt, state: State) -> State:
        value = getattr(node, "value", None)
        graphs = self.expression(value, state) if isinstance(value, ast.expr) else frozenset()
        if isinstance(node, ast.Assign):
            for target in node.targets:
                cut = self._items_cut(node.value) if isinstance(target, ast.Tuple) else ()
                parts = target.elts if isinstance(target, ast.Tuple) and len(cut) == len(target.elts) else [target]
                for index, part in enumerate(parts):
                    for single in targets(part):
                        ends = part is not target and cut[index]
                        _set(state, single, frozenset() if ends else graphs, keep=False)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _set(state, node.target, graphs, keep=False)
        elif isinstance(node, ast.AugAssign):
            _set(state, node.target, graphs, keep=True)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                base = target.value if isinstance(target, ast.Subscript) else target
                state.pop(dotted(base) or "", None)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._method(node.value, state, graphs)
            callee = self.facts.evaluate(node.value.func, self.frames)
            if any(isinstance(each, External) and each.qualname in DEAD_ENDS for each in members(callee)):
                return {_END: frozenset()}
        return state

    def _method(self, call: ast.Call, state: State, graphs: frozenset[Graph]) -> None:
        """What a call as a statement does to the names that it is made on."""
        held = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if held is None or not isinstance(call.func, ast.Attribute):
            return
        if call.func.attr in _ADDING:
            _add(state, held, graphs)
        elif call.func.attr in ("clear", "detach_"):
            state.pop(held, None)

    # --- expressions --------------------------------------------------------------------------------------------

    def expression(self, node: ast.expr, state: State) -> frozenset[Graph]:
        """The graphs that an expression's value holds; the steps and backward passes in it happen."""
        if self._detaches(node):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.expression(child, state)
            return frozenset()
        name = dotted(node)
        if name is not None:
            return frozenset().union(*(graphs for held, graphs in state.items() if _holds(held, name)))
        if isinstance(node, ast.Lambda):
            return frozenset()
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node, state)
        found: frozenset[Graph] = frozenset()
        for child in ast.iter_child_nodes(node):
            inner = child.value if isinstance(child, ast.keyword) else child
            if isinstance(inner, ast.expr):
                found |= self.expression(inner, state)
        if isinstance(node, ast.Call):
            if _cuts_each(node):
                found = frozenset()
            found = self._call(node, state, found)
        return frozenset() if isinstance(node, (ast.Compare, ast.JoinedStr)) else found

    def _call(self, node: ast.Call, state: State, found: frozenset[Graph]) -> frozenset[Graph]:
        here = self.marks.get(id(node), [])
        returned = [each for each in here if each.kind == "return"]
        for event in sorted(here, key=lambda each: each.order):
            if event.kind == "forward" and not no_grad(event) and _is_call(event):
                found |= {(site, None) for model in members(event.receiver) for site in self._trainers(model)}
            elif event.kind == "step":
                found = self._after_step(event, state, found)
            elif event.kind == "backward" and event.node is node:
                self._backward(event, state, found)
        if any(_is_cut(each) for each in returned):  # a function of the project that ends the graph
            return frozenset()
        return found

    def _items_cut(self, node: ast.expr) -> list[bool]:
        """Which items of the tuple that a function of the project returns have no graph."""
        found: list[bool] = []
        for event in self.marks.get(id(node), []):
            value = getattr(event.node, "value", None)
            if event.kind != "return":
                continue
            if not isinstance(value, ast.Tuple) or (found and len(value.elts) != len(found)):
                return []
            given = [self._detaches(each) for each in value.elts]
            found = [one and other for one, other in zip(found, given, strict=True)] if found else given
        return found

    def _trainers(self, model: Value, depth: int = 3) -> set[Site]:
        found = set(self.trained.get(id(model), ()))
        if isinstance(model, Made) and model.kind in ("wrapper", "engine") and depth:
            for member in members(model.inner):
                found |= self._trainers(member, depth - 1)
        return found

    def _after_step(self, event: Event, state: State, found: frozenset[Graph]) -> frozenset[Graph]:
        """Mark what the optimizer's models have computed so far."""
        stepping = {self.facts.origin_site(each.origin) for each in optimizers_in(concerned(event))}
        place = self.facts.site(event)

        def marked(graphs: frozenset[Graph]) -> frozenset[Graph]:
            return frozenset((site, step or (place if site in stepping else None)) for site, step in graphs)

        for name, graphs in list(state.items()):
            state[name] = marked(graphs)
        return marked(found)

    def _backward(self, event: Event, state: State, found: frozenset[Graph]) -> None:
        """A backward pass from what its call is made on, or given: ``found`` are the graphs of either."""
        loss = loss_expression(self.analysis, event)
        if loss is None:
            return
        for site, step in self.expression(loss, dict(state)) if not isinstance(loss, ast.Call) else found:
            if step is not None:
                self.found.add(Stale(site, step, self.facts.site(event)))

    def _comprehension(self, node: ast.expr, state: State) -> frozenset[Graph]:
        inner = dict(state)
        for generator in getattr(node, "generators", ()):
            graphs = self.expression(generator.iter, inner)
            for target in targets(generator.target):
                _set(inner, target, graphs, keep=False)
        parts = [getattr(node, name) for name in ("elt", "value") if isinstance(getattr(node, name, None), ast.expr)]
        return frozenset().union(*(self.expression(part, inner) for part in parts))

    def _detaches(self, node: ast.expr) -> bool:
        """Whether an expression gives something without a graph, whatever stands in it."""
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Attribute) and node.func.attr in _CUTS
        return isinstance(node, ast.Attribute) and node.attr in _CUT_PARTS

    def _is_quiet(self, item: ast.expr) -> bool:
        """Whether a ``with`` item switches gradients off."""
        return any(
            isinstance(member, Made) and member.kind == "gradmode" and "enable_grad" not in member.qualname
            for event in self.facts.at(item)
            if event.kind == "enter"
            for member in members(event.receiver)
        )


# --- small answers ----------------------------------------------------------------------------------------------------


def _holds(held: str, name: str) -> bool:
    return held == name or name.startswith(held + ".")


def _set(state: State, target: ast.expr, graphs: frozenset[Graph], *, keep: bool) -> None:
    """Give a target what is assigned to it; an item is added to what its container holds."""
    while isinstance(target, (ast.Subscript, ast.Starred)):
        keep = keep or isinstance(target, ast.Subscript)
        target = target.value
    name = dotted(target)
    if name is None:
        return
    if keep:
        _add(state, name, graphs)
    elif graphs:
        state[name] = graphs
    else:
        state.pop(name, None)


def _add(state: State, name: str, graphs: frozenset[Graph]) -> None:
    if graphs:
        state[name] = state.get(name, frozenset()) | graphs


_END = ""
"""The name that stands in the state where a block has been left."""
_NOTHING = ast.Constant(None)


def _either(first: State, second: State) -> State:
    if _END in first:
        return second
    if _END in second:
        return first
    return {name: first.get(name, frozenset()) | second.get(name, frozenset()) for name in {**first, **second}}


def _cut_in_place(body: list[ast.stmt], name: str) -> bool:
    """``for state in states: state.detach_()``."""
    return any(
        isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and each.value.func.attr == "detach_"
        and dotted(each.value.func.value) == name
        for each in body
    )


def _cuts_each(call: ast.Call) -> bool:
    """``map(lambda state: state.detach(), states)``."""
    return any(
        isinstance(each, ast.Lambda)
        and isinstance(each.body, ast.Call)
        and isinstance(each.body.func, ast.Attribute)
        and each.body.func.attr in _CUTS
        for each in call.args
    )


def _is_call(event: Event) -> bool:
    """Whether a model itself is called: what else its methods give (labels, a sample) is not known to have a graph."""
    function = getattr(event.node, "func", None)
    return not isinstance(function, ast.Attribute) or event.name != function.attr or function.attr == "forward"


def _is_cut(event: Event) -> bool:
    """Whether a ``return`` gives what has no graph, by its value or (of tuples of states, or itself) by its text."""
    found = list(tensors_in(event.result))
    if found and all(each.detached for each in found):
        return True
    plain = members(event.result)
    if plain and all(isinstance(e, (Const, Host)) or (isinstance(e, Unknown) and e.number) for e in plain):
        return True
    return any(isinstance(each, ast.Attribute) and each.attr in ("detach", "data") for each in walk(event.node))
