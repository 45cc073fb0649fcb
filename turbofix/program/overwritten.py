"""Backward passes that autograd ends, since a step has overwritten weights that it needs.

``d_loss.backward(retain_graph=True); optimizer_d.step(); g_loss.backward()``, where ``g_loss`` goes through what the
discriminator computed before its step: the second layer's weights are needed for the first one's gradients, and have
another version by now. ``Step.stale`` says where that may be; here it is certain: within one block of statements, each
graph followed only through what surely keeps it, through models that are seen whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import field

from turbofix.nodes import walk
from turbofix.program.acts import concerned, optimizers_in
from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.libraries import words
from turbofix.program.names import body_of, parameters, stored
from turbofix.program.objects import parameter_owners
from turbofix.program.regions import loss_expression, no_grad
from turbofix.program.sites import FUNCTIONS, LOOPS
from turbofix.program.values import Function, Instance, Made, Sequence, Value, members
from turbofix.records import dataclass

_WEIGHTED = words("Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d")
_PLAIN = words(
    """
    ReLU LeakyReLU ELU GELU SiLU SELU Tanh Sigmoid Softplus Flatten Dropout Dropout2d BatchNorm1d BatchNorm2d LayerNorm
    InstanceNorm2d MaxPool2d AvgPool2d Upsample Softmax LogSoftmax
    """
)
_KEEPING = words("sum mean exp log sqrt view reshape squeeze unsqueeze flatten abs neg float double cuda relu sigmoid")
_LOSSES = words(
    "BCELoss BCEWithLogitsLoss MSELoss L1Loss SmoothL1Loss CrossEntropyLoss NLLLoss "
    "binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss cross_entropy nll_loss"
)
_OPTIMIZERS = words("SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam")
_BLIND = words("autocast scaler accelerator fabric engine trainer lossscaler wrapper")
"""Kinds of objects under which a forward may need copies of the weights, and a step may be left out."""

_INPUT = 0
"""Stands for what a model's ``forward`` is given."""

Graphs = frozenset[int]
_NONE: Graphs = frozenset()


@dataclass(eq=False)
class State:
    """What is certain between two statements; graphs go by the identity of the model's call."""

    holds: dict[str, Graphs] = field(default_factory=dict)
    models: dict[int, int] = field(default_factory=dict)  # of each graph, the identity of the model
    graded: frozenset[int] = _NONE  # models whose weights have gradients
    stale: dict[int, Event] = field(default_factory=dict)  # graphs whose weights a step has overwritten

    def copy(self) -> State:
        """A state that a branch may change."""
        return State(dict(self.holds), dict(self.models), self.graded, dict(self.stale))

    def meet(self, other: State) -> State:
        """What is certain after either of two branches."""
        return State(
            {name: graphs & other.holds[name] for name, graphs in self.holds.items() if name in other.holds},
            {**self.models, **other.models},
            self.graded & other.graded,
            {graph: step for graph, step in self.stale.items() if graph in other.stale},
        )


def overwritten(analysis: Analysis, backward: Event) -> Event | None:
    """The step that certainly overwrites weights which a backward pass needs."""
    facts = analysis.facts
    frames = facts.frames(backward)
    if not frames or backward.name == "scaled" or len({id(each.node) for each in facts.of("backward")}) < 2:
        return None
    if analysis.facts.of("autograd_grad") or not is_plain(analysis):
        return None
    scope, module = frames[-1].scope, backward.module
    if isinstance(scope, ast.Lambda):
        return None
    block = body_of(scope)
    for each in facts.places.ancestors(backward.node, module):
        if each is scope:
            break
        if isinstance(each, LOOPS):
            block = each.body
            break
    walker = _Walker(analysis, module, backward)
    walker.block([each for each in block if isinstance(each, ast.stmt)], State())
    return walker.found


def is_plain(analysis: Analysis) -> bool:
    """Whether nothing in the program changes what a graph needs, or which weights have gradients."""
    return analysis.once("changes no graph", lambda: _is_plain(analysis))


def _is_plain(analysis: Analysis) -> bool:
    facts = analysis.facts
    if facts.attribute_writes("requires_grad") or facts.of("compile", "wrap", "scale", "unscale"):
        return False
    for module in analysis.facts.execution.modules.values():
        if any(getattr(each, "attr", "") in _SWITCHES for each in by_type(module.tree).get(ast.Attribute, ())):
            return False
    made = [each for event in facts.of("make", "enter") for each in members(event.result or event.receiver)]
    return not any(isinstance(each, Made) and each.kind in _BLIND for each in made)


_SWITCHES = words("requires_grad_ set_grad_enabled inference_mode saved_tensors_hooks register_hook functional_call")


class _Walker:
    """The statements of one block, up to a backward pass."""

    def __init__(self, analysis: Analysis, module: ModuleFile, backward: Event | None) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.module = module
        self.backward = backward
        self.found: Event | None = None
        found = by_type(module.tree)
        outer = (*found.get(ast.Global, ()), *found.get(ast.Nonlocal, ()))
        self.shared = {name for each in outer for name in getattr(each, "names", ())}

    def block(self, body: Iterable[ast.stmt], state: State) -> State | None:
        """What is certain after some statements; None where control does not come out."""
        for statement in body:
            after = self.statement(statement, state)
            if after is None:
                return None
            state = after
        return state

    def statement(self, node: ast.stmt, state: State) -> State | None:
        """What is certain after a statement."""
        if isinstance(node, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            return None
        if isinstance(node, ast.If):
            first, second = self.block(node.body, state.copy()), self.block(node.orelse, state.copy())
            return first.meet(second) if first is not None and second is not None else first or second
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assign(node, state)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node.value, state)
        else:
            for name in stored([node]):
                state.holds.pop(name.partition(".")[0], None)
            if not isinstance(node, (ast.Pass, ast.Import, ast.ImportFrom, ast.Assert)):
                self._forget(node, state)
        return state

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, state: State) -> None:
        value = node.value
        graphs = self.graphs(value, state) if value is not None else _NONE
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(node, ast.AugAssign):
            graphs = (graphs | self.graphs(target, state)) if isinstance(node.op, (ast.Add, ast.Sub)) else _NONE
        self._forget(node, state)
        for name in stored([node]):
            state.holds.pop(name.partition(".")[0], None)
        alone = not isinstance(node, ast.Assign) or len(node.targets) == 1
        if alone and isinstance(target, ast.Name) and target.id not in self.shared:
            state.holds[target.id] = graphs

    def _forget(self, node: ast.AST, state: State) -> None:
        """What a statement may undo that is not looked into: the gradients, and with a function's help the graphs."""
        for call in (each for each in walk(node) if isinstance(each, ast.Call)):
            kinds = {each.kind for each in self.facts.at(call)}
            if not kinds or kinds & {"zero_grad", "step", "backward", "unknown_call"}:
                state.graded = _NONE
            if isinstance(call.func, ast.Attribute) and call.func.attr in _UNDOING:
                state.holds.clear()

    def _call(self, node: ast.Call, state: State) -> None:
        events = self.facts.at(node)
        kinds = {each.kind for each in events}
        if kinds == {"backward"}:
            for event in events:
                loss = loss_expression(self.analysis, event)
                graphs = self.graphs(loss, state) if loss is not None else _NONE
                if event is self.backward:
                    self.found = self.found or next((state.stale[each] for each in graphs if each in state.stale), None)
                if event.name != "scaled" and not any(each.arg == "inputs" for each in node.keywords):
                    state.graded |= {state.models[each] for each in graphs if each in state.models}
        elif kinds == {"step"} and len(events) == 1 and not (node.args or node.keywords):
            stepped = self._stepped(events[0]) & state.graded
            for graph, model in state.models.items():
                if model in stepped:
                    state.stale.setdefault(graph, events[0])
        elif not (isinstance(node.func, ast.Name) and node.func.id == "print"):
            self._forget(node, state)
            if not kinds:  # a function of the project may do anything to what it is given
                state.holds.clear()

    def _stepped(self, event: Event) -> frozenset[int]:
        """The models whose weights a step certainly changes, if they have gradients."""
        made = list(optimizers_in(concerned(event)))
        if len(made) != 1 or len(members(event.receiver)) != 1 or made[0] is not event.receiver:
            return _NONE
        optimizer = made[0]
        if not isinstance(optimizer, Made):
            return _NONE
        package, _, name = optimizer.qualname.rpartition(".")
        arguments = optimizer.arguments
        if package != "torch.optim" or name not in _OPTIMIZERS or arguments.open or arguments.star:
            return _NONE
        passed = arguments.get("params", 0)
        if passed is None or not passed.must or {"fused", "differentiable"} & set(arguments.keywords):
            return _NONE
        given = passed.node
        if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute) or given.args:
            return _NONE
        owners = {id(each) for each in parameter_owners([passed.value])}
        return frozenset(owners) if given.func.attr == "parameters" and len(owners) == 1 else _NONE

    # --- graphs -------------------------------------------------------------------------------------------------

    def graphs(self, node: ast.expr, state: State) -> Graphs:
        """The graphs that an expression's value certainly has."""
        if isinstance(node, ast.Name):
            return state.holds.get(node.id, _NONE)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return self.graphs(node.left, state) | self.graphs(node.right, state)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return self.graphs(node.left, state)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.graphs(node.operand, state)
        if not isinstance(node, ast.Call) or any(isinstance(each, ast.Starred) for each in node.args):
            return _NONE
        events = [each for each in self.facts.at(node) if each.kind in ("forward", "criterion", "call")]
        kinds, names = {each.kind for each in events}, {each.name for each in events}
        if kinds == {"forward"}:
            return self._forward(node, events, state)
        if len(kinds) != 1 or len(names) != 1:
            return _NONE
        package, _, last = names.pop().rpartition(".")
        if package == "Tensor" and isinstance(node.func, ast.Attribute):
            return self.graphs(node.func.value, state) if last in _KEEPING else _NONE
        keeps = last in (_LOSSES if kinds == {"criterion"} else _KEEPING)
        if keeps and node.args and package in ("torch", "torch.nn", "torch.nn.functional"):
            return self.graphs(node.args[0], state)
        return _NONE

    def _forward(self, node: ast.Call, events: list[Event], state: State) -> Graphs:
        """The graph of a model's call, and those that it carries on."""
        receivers = [event.receiver for event in events]
        called = {id(member): member for value in receivers for member in members(value)}
        for model in list(called.values()):  # the layers of a ``Sequential`` are called where it is
            layers = model.inner if isinstance(model, Made) else None
            for layer in layers.items or () if isinstance(layers, Sequence) else ():
                called.pop(id(layer), None)
        quiet = self.backward is not None and any(no_grad(event) for event in events)
        if quiet or node.keywords or len(node.args) != 1 or not called:
            return _NONE
        if any(len(found) != 1 for found in map(members, receivers) if any(id(each) in called for each in found)):
            return _NONE
        for model in called.values():
            passes = _passing(self.analysis, model)
            if _INPUT not in passes or len(passes) < 2:
                return _NONE
        graph = id(node)
        state.stale.pop(graph, None)
        state.models.pop(graph, None)
        if len(called) == 1:
            state.models[graph] = next(iter(called))
        return frozenset({graph}) | self.graphs(node.args[0], state)


_UNDOING = words("detach_ load_state_dict set_")


def _passing(analysis: Analysis, model: Value) -> Graphs:
    """What a model's output surely goes through: its input, and (any other number) layers one after another."""
    if isinstance(model, Made):
        return frozenset({_INPUT, id(model)}) if _is_chain(model) else _NONE
    if not isinstance(model, Instance):
        return _NONE
    forward = model.cls.find("forward")
    if not isinstance(forward, Function) or isinstance(forward.node, ast.Lambda) or forward.decorators:
        return _NONE
    names = [each.arg for each in parameters(forward.node)]
    body = [each for each in forward.node.body if isinstance(each, ast.stmt)]
    returns = [each for each in walk(forward.node) if isinstance(each, ast.Return)]
    if len(names) != 2 or len(returns) != 1 or not body or body[-1] is not returns[0] or returns[0].value is None:
        return _NONE
    inner = [each for each in walk(forward.node) if isinstance(each, FUNCTIONS) and each is not forward.node]
    if inner or "__call__" in model.cls.names:
        return _NONE
    walker = _Walker(analysis, forward.module, None)
    state: State | None = State({names[1]: frozenset({_INPUT})})
    state = walker.block(body[:-1], state) if state is not None else None
    return walker.graphs(returns[0].value, state) if state is not None else _NONE


def _is_chain(model: Made) -> bool:
    """Whether it is a ``Sequential`` of plain layers, at least two of which have weights that the others need."""
    layers = model.inner
    if model.qualname != "torch.nn.Sequential" or not isinstance(layers, Sequence) or not layers.items:
        return False
    names = [each.qualname.rpartition(".") if isinstance(each, Made) else ("", "", "") for each in layers.items]
    if any(package != "torch.nn" or last not in _WEIGHTED | _PLAIN for package, _, last in names):
        return False
    return sum(last in _WEIGHTED for _, _, last in names) >= 2
