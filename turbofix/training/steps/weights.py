"""What an update of a step changes, in words of the function that makes it: ``model`` for ``model.parameters()``, else
what the optimizer has in its groups.

It is worked out for the updates of programs that clip no gradients: nobody else asks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Made, Opaque, Tensor, Value, flatten, members
from turbofix.regex import regex
from turbofix.source.names import dotted, loads
from turbofix.source.wording import Wording
from turbofix.training.model import Weights
from turbofix.training.objects import models_in
from turbofix.training.optimizers.optimizer import parameter_owners
from turbofix.training.steps.acts import concerned, optimizers_in

_HOOKS = Wording(("register_",), regex(r"\bregister_(full_)?(backward_)?(post_accumulate_grad_)?hook\b"))
_ALL = regex(
    r"(?:list\(|tuple\()?[\w.]+\.parameters\(\)\)?"
    r"|filter\(lambda (\w+): \1\.requires_grad, [\w.]+\.parameters\(\)\)"
    r"|[(\[](\w+) for (?:\2 in [\w.]+\.parameters|\w+, \2 in [\w.]+\.named_parameters)\(\)"
    r"(?: if \2\.requires_grad)?[)\]]"
)
"""All parameters of a model, or those of them that are trained."""
_LOADING = regex(r"\.load_state_dict$")


def weights(analysis: Analysis, updates: list[Event], training: list[Event], clips: bool) -> tuple[Weights, ...]:
    """The parameters of each update, where they are all those of one object that its function has a name for."""
    if clips:
        return ()
    by_node: dict[ast.AST, list[Event]] = {}
    for update in updates:
        by_node.setdefault(update.node, []).append(update)
    found = [_weights(analysis, events, training) for events in by_node.values()]
    return tuple(sorted(found, key=lambda each: each.update))


def _registering_hooks(analysis: Analysis) -> ModuleFile | None:
    return next((each for each in analysis.execution.modules.values() if _HOOKS.is_in(each.text)), None)


def _weights(analysis: Analysis, events: list[Event], training: list[Event]) -> Weights:
    site = analysis.facts.site(events[0])
    made = {id(each): each for event in events for each in optimizers_in(concerned(event))}
    if len(made) != 1:
        return Weights(site, why_not="which optimizer steps here is not known")
    (optimizer,) = made.values()
    if not isinstance(optimizer, Made):
        return Weights(site, why_not="the optimizer is one of the project's own")
    hooking = analysis.once("registers hooks", lambda: _registering_hooks(analysis))
    if hooking is not None:
        return Weights(site, why_not=f"{hooking.path.name} registers hooks, which may change the gradients already")
    passed = optimizer.arguments.get("params", 0)
    owners = {id(each): each for each in _owners(passed.value)} if passed is not None else {}
    owner = next(iter(owners.values())) if len(owners) == 1 else None
    model = analysis.facts.origin_site(owner.origin) if owner is not None else None
    handler = _handler(events, training, optimizer, owner)
    if handler is not None:
        where = analysis.facts.site(handler).line_from(site.path)
        return Weights(site, model=model, why_not=f"{where} may change the gradients already")
    more = any(each.name.endswith(".add_param_group") for each in analysis.facts.of("call", "unknown_call"))
    if owner is None or passed is None or passed.node is None or more:
        return Weights(site, model=model)
    frames = [analysis.facts.frames(event) for event in events]
    for text in (
        names_before(events[0], frames[0][-1]) if is_all(analysis, passed.node, optimizer.origin.module) else ()
    ):
        if all(is_owner(analysis, text, each, owner) for each in frames):
            return Weights(site, dotted(text), model)
    return Weights(site, model=model)


def _owners(value: Value) -> Iterator[Made | Instance | Opaque]:
    for owner in parameter_owners([value]):
        yield from models_in(owner)


def is_owner(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...], owner: Value) -> bool:
    """Whether an expression is certainly the object whose parameters are trained, or a wrapper of it."""
    found = members(analysis.facts.evaluate(node, frames))
    return bool(found) and all([each is owner for each in models_in(one)] == [True] for one in found)


def names_before(update: Event, frame: Frame) -> list[ast.Name | ast.Attribute]:
    """The names that the function of an update reads before it, those that it calls first; each once."""
    line = getattr(update.node, "lineno", 0)
    called: dict[str, ast.Name | ast.Attribute] = {}
    other: dict[str, ast.Name | ast.Attribute] = {}
    body = getattr(frame.scope, "body", [])
    for statement in body if isinstance(body, list) else ():
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or statement.lineno > line:
            continue
        for each in loads(statement):
            chain: ast.expr = each
            name = dotted(each) or ""
            if each.lineno > line:
                continue
            called.setdefault(name, each)
            while isinstance(chain, ast.Attribute):
                chain = chain.value
                if isinstance(chain, (ast.Name, ast.Attribute)):
                    other.setdefault(dotted(chain) or "", chain)
    return list({**called, **other}.values())


def _handler(updates: list[Event], training: list[Event], optimizer: Made, owner: Value | None) -> Event | None:
    """A call between the last backward and the update that is given the weights, the model or the optimizer."""
    first = min(update.order for update in updates)
    start = max((each.order for each in training if each.kind == "backward" and each.order < first), default=first)
    for event in training:
        if event.kind not in ("call", "unknown_call") or not start < event.order < first or event.arguments is None:
            continue
        if _LOADING.search(event.name):
            continue
        for each in (one for value in event.arguments.values() for one in flatten(value, 3)):
            if each is optimizer or (each is owner and owner is not None):
                return event
            if isinstance(each, Tensor) and each.roles & {"param", "grad"} and event.name.partition(".")[0] != "torch":
                return event
    return None


# --- all parameters of a model ----------------------------------------------------------------------------------------


def is_all(analysis: Analysis, node: ast.AST, module: ModuleFile, depth: int = 3) -> bool:
    """Whether an optimizer's first argument is all that a model has to train."""
    if isinstance(node, ast.Name) and depth:
        owner = analysis.facts.bindings.owner(node.id, node, module)
        writes = analysis.facts.bindings.writes(owner, node.id)
        (write,) = writes if len(writes) == 1 else (None,)
        return isinstance(write, ast.Assign) and is_all(analysis, write.value, module, depth - 1)
    return _ALL.fullmatch(ast.unparse(node)) is not None
