"""The calls that make up a training step: backward, optimizer.step, zero_grad, clipping, unscaling, scaler.update."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from turbofix.dataflow.facts import settled
from turbofix.dataflow.guards import ORDER
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, Passed
from turbofix.domain.values import Const, Instance, Made, Opaque, Tensor, Union, Value, members
from turbofix.interpreter.definitions import is_module
from turbofix.regex import regex
from turbofix.source.site import Site
from turbofix.training.model import ALWAYS, Act, Guard

Stepper = Literal["optimizer", "scaler", "scheduler", "environment", "engine", "likely", "unknown"]

_CALLED_ON = ("clip", "zero_grad", "step", "unscale", "update", "scale", "load")
_NAMED = regex(r"""[A-Za-z_][\w.]*(\[(\d+|"[^"]*"|'[^']*')\])*""")
_SCHEDULER_USES = {"get_last_lr", "get_lr"}
_MODEL_USES = {"train", "eval", "parameters", "named_parameters", "zero_grad", "modules", "children"}
ENGINES = ("engine", "accelerator", "fabric", "lossscaler")


def stepper(value: Value | None) -> Stepper:
    """What something is that ``.step(...)`` is called on. "likely": unknown, but used like an optimizer."""
    found = {_stepper(member) for member in members(value)}
    for kind in ("optimizer", "scaler", "engine", "likely"):
        if kind in found:
            return kind
    found.discard("unknown")
    if found == {"scheduler"}:
        return "scheduler"
    return "environment" if found else "unknown"


def _stepper(member: Value) -> Stepper:
    if isinstance(member, Made):
        if member.kind in ("optimizer", "scaler", "scheduler"):
            return member.kind  # type: ignore[return-value]
        return "engine" if member.kind in ENGINES else "environment"
    if isinstance(member, Instance):
        return _stepper_of_instance(member)
    if isinstance(member, Opaque):
        uses = used(member)
        if "unscale_" in uses or {"scale", "update"} <= uses:
            return "scaler"
        if uses & _SCHEDULER_USES:
            return "scheduler"
        if "reset" in uses and "zero_grad" not in uses:
            return "environment"
        if "zero_grad" in uses or "param_groups" in uses or "param_groups" in member.children:
            return "likely"
    return "unknown"


def _stepper_of_instance(instance: Instance) -> Stepper:
    bases = instance.cls.externals()
    if instance.base is not None and instance.base.kind in ("optimizer", "scheduler"):
        return instance.base.kind  # type: ignore[return-value]
    if any("lr_scheduler" in base for base in bases):
        return "scheduler"
    if any(base.startswith("torch.optim.") for base in bases):
        return "optimizer"
    held = [member for value in instance.attributes.values() for member in members(value)]
    if any(isinstance(member, Made) and member.kind == "optimizer" for member in held):
        # a scheduler of the project's own holds the optimizer too, but never clears gradients through itself
        return (
            "optimizer" if instance.cls.find("zero_grad") is not None or "zero_grad" in instance.uses else "scheduler"
        )
    return "environment"


def used(value: Value) -> set[str]:
    """The methods that were called on a value."""
    return getattr(value, "uses", set())


def is_model(value: Value | None) -> bool:
    """Whether a value is a model: a module of torch or of the project, or used like one."""
    for member in members(value):
        if isinstance(member, Made) and member.kind in ("module", "wrapper", "model"):
            return True
        if isinstance(member, Instance) and is_module_class(member):
            return True
        if isinstance(member, Opaque) and used(member) & _MODEL_USES and "step" not in used(member):
            return True
    return False


def is_module_class(instance: Instance) -> bool:
    """Whether an object's class derives from ``torch.nn.Module``, through libraries too."""
    if instance.base is not None and instance.base.kind in ("module", "wrapper", "model", "criterion"):
        return True
    return (
        is_module(instance)
        or any(
            base == "torch.nn.Module" or base.startswith(("torch.nn.", "transformers.", "timm.", "torchvision.models."))
            for base in instance.cls.externals()
        )
        or any("Module" in base.rpartition(".")[2] for base in instance.cls.externals())
    )


def optimizers_in(value: Value | None, depth: int = 3) -> Iterator[Made | Instance]:
    """The optimizers that a value is, wraps or holds, each once."""
    return iter(dict.fromkeys(made for _, made in optimizers_held(value, depth)))


def optimizers_held(value: Value | None, depth: int = 3) -> Iterator[tuple[Made | Instance, Made]]:
    """The optimizers that a value is, wraps or holds: the object, the project's own or torch's, and torch's in it."""
    looked: dict[Value, int] = {}  # how far down from there: the parts of models hold each other many times over
    waiting: list[tuple[Value, int]] = [(member, depth) for member in members(value)]
    for member, left in waiting:  # grows meanwhile
        if not isinstance(member, (Made, Instance)):
            continue
        made = member if isinstance(member, Made) else member.base
        if made is not None and made.kind == "optimizer":
            yield member, made
        elif looked.get(member, 0) < left:
            looked[member] = left
            held = (member.inner,) if isinstance(member, Made) else member.attributes.values()
            waiting += [(part, left - 1) for each in held if each.__class__ in _HOLDERS for part in members(each)]


_HOLDERS = (Made, Instance, Union)
"""What may be or hold an optimizer: most attributes are none of these."""


def concerned(event: Event) -> Value | None:
    """The optimizer that a step or unscale is about: the argument of ``scaler.step(optimizer)``, else the receiver."""
    if event.kind == "unscale" or stepper(event.receiver) == "scaler":
        passed = event.arguments.get("optimizer", 0) if event.arguments is not None else None
        if passed is not None:
            return passed.value
    return event.receiver


def certainty(event: Event) -> Literal["seen", "inferred"]:
    """Whether what an act is called on was seen being made, or only judged by its use."""
    if any(isinstance(member, Made) and member.kind == "scheduler" for member in members(event.receiver)):
        return "seen"
    if event.kind in ("step", "zero_grad", "unscale"):
        return "seen" if any(True for _ in optimizers_in(concerned(event))) or is_model(event.receiver) else "inferred"
    if event.kind == "backward":
        return "seen" if any(isinstance(member, Tensor) for member in members(event.receiver)) else "inferred"
    return "seen"


def is_update(event: Event) -> bool:
    """Whether a ``step`` event may be an optimizer's (not a scheduler's or an environment's)."""
    return stepper(event.receiver) not in ("scheduler", "environment")


def loss_expression(analysis: Analysis, event: Event) -> ast.expr | None:
    """The expression that a backward starts from: ``loss`` in ``scaler.scale(loss).backward()``."""
    node = event.node
    if not isinstance(node, ast.Call):
        return None
    first = node.args[0] if node.args else None
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("backward", "manual_backward"):
        return first
    base = node.func.value
    if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr == "scale" and base.args:
        return base.args[0]
    # `accelerator.backward(loss)`: the loss is what it is given, not what it is called on
    passed = event.arguments.positions[0].value if event.arguments and event.arguments.positions else None
    handed = passed is not None and passed is event.receiver
    return first if first is not None and (event.name == "torch.autograd.backward" or handed) else base


def act_of(analysis: Analysis, event: Event, loop: ast.AST | None) -> Act:
    """One call of a step, in its place."""
    places = analysis.facts.places
    node, module = event.node, event.module
    statement = places.statement(node, module) or node
    parent = places.parent(node, module)
    optimizer = sorted(
        site
        for made in optimizers_in(concerned(event))
        if (site := analysis.facts.origin_site(made.origin)) is not None
    )
    return Act(
        site=places.site(node, module),
        statement=places.site(statement, module),
        receiver_text=receiver_text(analysis, event),
        guard=analysis.guards.guard(event, loop) if loop is not None else ALWAYS,
        certainty=certainty(event),
        optimizer=optimizer[0] if len(set(optimizer)) == 1 else None,
        function=places.function_site(node, module),
        alone=isinstance(parent, ast.Expr),
        scaled=is_scaled(event),
        closure=event.kind == "step" and _takes_closure(event),
        create_graph=event.kind == "backward" and creates_graph(event),
        concerns=_concerns(analysis, event) if event.kind in ("step", "load") else "",
        owner=_owner(analysis, event) if event.kind == "backward" else "",
    )


def receiver_text(analysis: Analysis, event: Event) -> str:
    """The source of what an act is called on; for clips, of the first argument; for a backward, of the loss."""
    places = analysis.facts.places
    node = event.node
    if event.kind == "backward":
        expression = loss_expression(analysis, event)
        return places.text(expression, event.module) if expression is not None else ""
    if not isinstance(node, ast.Call):
        return ""
    if event.kind == "clip" and event.name == "lossscaler":
        passed = event.arguments.keywords.get("parameters") if event.arguments is not None else None
        return places.text(passed.node, event.module) if passed is not None and passed.node is not None else ""
    if event.kind == "clip" and node.args:
        return places.text(node.args[0], event.module)
    if event.kind in _CALLED_ON and isinstance(node.func, ast.Attribute):
        return places.text(node.func.value, event.module)
    return places.text(node.func, event.module)


def _owner(analysis: Analysis, event: Event) -> str:
    """The source of Accelerate's or Fabric's object, where that is what a backward is called on."""
    call = event.node
    if event.name not in ("accelerator", "fabric") or not isinstance(call, ast.Call):
        return ""
    return analysis.facts.places.text(call.func.value, event.module) if isinstance(call.func, ast.Attribute) else ""


def _concerns(analysis: Analysis, event: Event) -> str:
    """The source of the optimizer that a step is about, or of the named state that optimizers alone load."""
    node = event.node
    if event.kind == "load":
        loads = [each.receiver for each in analysis.facts.at(node) if each.kind == "load"]
        sole = all(list(members(each)) == list(optimizers_in(each, 0)) for each in loads)
        state = node.args[0] if sole and isinstance(node, ast.Call) and len(node.args) == 1 else None
        named = state is not None and _NAMED.fullmatch(analysis.facts.places.text(state, event.module))
        return named[0] if named else ""
    if is_scaled(event) and isinstance(node, ast.Call):
        return analysis.facts.places.text(node.args[0], event.module) if node.args else ""
    return receiver_text(analysis, event)


def is_scaled(event: Event) -> bool:
    """Whether a backward or step goes through a gradient scaler."""
    if event.kind == "backward":
        node = event.node
        direct = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Call)
            and isinstance(node.func.value.func, ast.Attribute)
            and node.func.value.func.attr == "scale"
        )
        return (
            direct
            or event.name in ("scaled", "lossscaler")
            or any(isinstance(member, Tensor) and member.scaled_from is not None for member in members(event.receiver))
        )
    return event.kind == "step" and (event.name == "lossscaler" or stepper(event.receiver) == "scaler")


def _takes_closure(event: Event) -> bool:
    arguments = event.arguments
    if arguments is None or event.name == "lossscaler" or stepper(event.receiver) in ("scaler", "scheduler"):
        return False
    passed = arguments.get("closure", 0)
    return passed is not None and not any(
        isinstance(member, Const) and member.value is None for member in members(passed.value)
    )


_BACKWARD: tuple[str, ...] = ("gradient", "retain_graph", "create_graph", "inputs")
_SIGNATURES: dict[str, tuple[str, ...]] = {
    "lossscaler": (),
    "torch.autograd.backward": ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs"),
    "torch.autograd.grad": ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph"),
}


def told_to_backward(event: Event, name: str) -> Passed | None:
    """What a backward pass, or ``torch.autograd.grad``, is told by that name: by keyword or by position."""
    if event.arguments is None:
        return None
    order = _SIGNATURES.get(event.name, _BACKWARD)
    return event.arguments.get(name, order.index(name) if name in order else None)


def creates_graph(event: Event) -> bool:
    """Whether the gradients of a backward pass, or of ``torch.autograd.grad``, may be differentiated again."""
    passed = told_to_backward(event, "create_graph")
    if passed is None:
        return event.arguments is not None and (event.arguments.open or event.arguments.star)
    return settled(passed.value) is not False


def keeps_graph(event: Event) -> bool:
    """Whether a backward pass, or ``torch.autograd.grad``, may leave the graph for another one."""
    passed = told_to_backward(event, "retain_graph")
    return creates_graph(event) or (passed is not None and settled(passed.value) is not False)


def acts(analysis: Analysis, events: Iterable[Event], loop: ast.AST | None) -> tuple[Act, ...]:
    """The acts at the events' nodes, one for each node, in the order of the text."""
    found: dict[Site, Act] = {}
    for event in events:
        act = act_of(analysis, event, loop)
        known = found.get(act.site)
        if known is None:
            found[act.site] = act
        elif known != act:
            found[act.site] = _merged(known, act)
    return tuple(found[site] for site in sorted(found))


def _merged(first: Act, second: Act) -> Act:
    """The same call, reached in two ways."""
    return replace(
        first,
        guard=wider(first.guard, second.guard),
        certainty="seen" if "seen" in (first.certainty, second.certainty) else "inferred",
        optimizer=first.optimizer if first.optimizer == second.optimizer else None,
        scaled=first.scaled or second.scaled,
        closure=first.closure or second.closure,
        create_graph=first.create_graph or second.create_graph,
    )


def wider(first: Guard, second: Guard) -> Guard:
    """The guard of an act that is reached under two guards: the one that holds more often."""
    return min(first, second, key=lambda guard: (ORDER.index(guard.kind), guard.tests))
