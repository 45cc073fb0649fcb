"""The optimizers that a program builds: of what, with which arguments, and how each comes to where it steps."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from turbofix.dataflow.exports import called_outside
from turbofix.dataflow.placements import UNKNOWN_PLACE
from turbofix.dataflow.provenance import argument_from, bound_arguments
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Const,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Sequence,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.library.tables import parameters_of
from turbofix.regex import regex
from turbofix.source.names import dotted, is_main_test, parameters
from turbofix.source.places import FUNCTIONS, LOOPS, SCOPES
from turbofix.source.site import Site
from turbofix.training.data.loaders import merged
from turbofix.training.frameworks.in_charge import takes_loss
from turbofix.training.frameworks.owners import PLACED, is_owner, owner_beside, placed
from turbofix.training.model import Act, Model, Optimizer, Passing, StateSave, Step
from turbofix.training.models.complexes import has_complex_weights
from turbofix.training.objects import models_in
from turbofix.training.optimizers.unfused import regrouped, unfused
from turbofix.training.steps.acts import act_of, concerned, is_model, optimizers_in, stepper

_COMPUTED = {"made", "data", "input", "batch", "output"}


_UNSURE = {"param", "maybe_output", "object"}


_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)


def optimizers(analysis: Analysis, steps: tuple[Step, ...], known: tuple[Model, ...]) -> tuple[Optimizer, ...]:
    """Every optimizer that is built."""
    facts = analysis.facts
    by_node: dict[int, list[Event]] = {}
    for event in facts.of("make"):
        if any(isinstance(member, Made) and member.kind == "optimizer" for member in members(event.result)):
            by_node.setdefault(id(event.node), []).append(event)
    used = {site for step in steps for site in step.optimizers}
    taken = placed(analysis)
    found = [_optimizer(analysis, events, used, known, taken) for events in by_node.values()]
    return tuple(sorted(found, key=lambda each: each.site))


def _made_as_well(analysis: Analysis, node: ast.AST) -> Iterator[str]:
    """What else a call makes that makes an optimizer: ``cls(**params)`` of a helper for all that a file names."""
    for event in analysis.facts.at(node):
        for each in members(event.result) if event.kind in ("make", "construct") else ():
            made = each.base if isinstance(each, Instance) and each.base is not None else each
            if isinstance(made, Made) and made.kind != "optimizer":
                yield made.qualname
            elif isinstance(made, Instance):
                yield made.cls.node.name


def _optimizer(
    analysis: Analysis, events: list[Event], used: set[Site], known: tuple[Model, ...], taken: frozenset[Site]
) -> Optimizer:
    facts = analysis.facts
    event = events[0]
    node, module = event.node, event.module
    made = [
        member
        for each in events
        for member in members(each.result)
        if isinstance(member, Made) and member.kind == "optimizer"
    ]
    names = {each.qualname for each in made}
    qualname = next(iter(names)) if len(names) == 1 else None
    order = parameters_of(qualname or "") or ("params", "lr")
    all_arguments = [each.arguments for each in events if each.arguments is not None]
    passed = merged(bound_arguments(each, order) for each in all_arguments)
    statement = facts.places.statement(node, module) or node
    site = facts.places.site(node, module)
    passes, complete = _passes(analysis, made)
    params = [each.value for one in all_arguments if (each := one.get("params", 0)) is not None]
    if not any(True for owner in parameter_owners(params) for _ in models_in(owner)):  # create_optimizer(args, model)
        params += [value for one in all_arguments for value in one.values() if any(True for _ in models_in(value))]
    trained = _trained(analysis, params, known)
    device = UNKNOWN_PLACE
    if trained:
        device = trained[0].device
    elif site in taken:
        device = PLACED  # a framework that takes an optimizer over moves its parameters
    qualname = qualname if qualname is None or not qualname.endswith("*") else None
    arguments = {name: argument_from(each, module, facts, analysis.reads) for name, each in sorted(passed.items())}
    return Optimizer(
        site=site,
        qualname=qualname,
        qualnames=tuple(sorted(names.union(_made_as_well(analysis, node)))),
        arguments=arguments,
        open_mapping=any(each.open or each.star for each in all_arguments),
        statement=facts.places.site(statement, module),
        target_text=_target_text(analysis, statement, node, module),
        name=_target_text(analysis, statement, node, module),
        passes=passes,
        passes_complete=complete,
        function=facts.places.function_site(node, module),
        in_loop=any(isinstance(each.node, LOOPS) for one in events for each in facts.loops(one)),
        device=device,
        before_move=_before_move(analysis, event, params),
        unfused=unfused(analysis, qualname),
        shared=_share(parameter_owners(params)),
        regrouped=qualname == "torch.optim.SGD" and regrouped(analysis),
        state_loads=_state_loads(analysis, made),
        state_saves=_state_saves(analysis, made),
        branch=_branch(analysis, node, module),
        trains=_trains(params, trained),  # type: ignore[arg-type]
        used=site in used,
        handed_over=_is_handed_over(analysis),
        owner=owner_beside(analysis, event),
        complex=has_complex_weights(analysis),
    )


_MOST_PARTS = 3000
_WITH_PARAMETERS = regex(r"torch\.nn\.(Conv|Linear|Embedding|BatchNorm|LayerNorm|LSTM|GRU|RNN|Transformer|Multihead)")


def parts_of(model: Value) -> list[Value]:
    """A model, the modules in it and the weights that it holds by themselves; nothing where it is not known."""
    found: dict[int, Value] = {}
    waiting: list[Value] = [model] if isinstance(model, (Instance, Made)) else []
    while waiting and len(found) < _MOST_PARTS:
        each = waiting.pop()
        weight = isinstance(each, Tensor) and "param" in each.roles
        if id(each) in found or not (weight or (isinstance(each, (Instance, Made)) and is_model(each))):
            continue
        found[id(each)] = each
        if isinstance(each, (Instance, Made)):
            base = each.base if isinstance(each, Instance) else each
            held = [*each.attributes.values(), *each.children.values(), base.inner if base is not None else None]
            waiting += [part for value in held for part in flatten(value, 3)]
    return list(found.values())


def _share(owners: Iterable[Value]) -> bool:
    """Whether one layer is surely a part of two models whose parameters are handed over together."""
    models = {id(each): each for owner in owners for each in models_in(owner)}
    known = [model for model in models.values() if isinstance(model, (Instance, Made)) and _is_made_once(model)]
    layers = [
        {id(each) for each in parts_of(model) if isinstance(each, Made) and _WITH_PARAMETERS.match(each.qualname)}
        for model in (known if len(known) > 1 else ())
    ]
    return any(one & other for index, one in enumerate(layers) for other in layers[:index])


def _is_made_once(model: Instance | Made) -> bool:
    return not any(
        level.kind in ("loop", "comprehension", "try") or (level.kind == "if" and not level.decided)
        for level in model.made_at.chain()
    )


def _is_handed_over(analysis: Analysis) -> bool:
    """Whether an engine may be given the optimizer: one that is made takes some, or one is not seen being made."""
    made = (member for event in analysis.facts.of("make") for member in members(event.result))
    given = [each.arguments for each in made if isinstance(each, Made) and each.kind == "engine"]
    takes = any(each.open or each.star or each.get("optimizer", 2) is not None for each in given)
    return takes or (not given and any(takes_loss(event) for event in analysis.facts.of("backward")))


def _target_text(analysis: Analysis, statement: ast.AST, node: ast.AST, module: ModuleFile) -> str | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is node:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is node:
        target = statement.target
    else:
        return None
    if isinstance(target, (ast.Tuple, ast.List)):
        return None
    return analysis.facts.places.text(target, module)


def parameter_owners(params: list[Value]) -> Iterator[Value]:
    """The models whose parameters an optimizer is given; one value for each way in which it is built."""
    for each in (member for value in params for member in flatten(value, 4)):
        if isinstance(each, (Iterated, Tensor, Opaque)):
            # a tensor that a model has computed is not a parameter of it
            if each.source is not None and not (isinstance(each, Tensor) and "param" not in each.roles):
                yield from members(each.source)
        elif isinstance(each, (Instance, Made)):
            yield each


def _trained(analysis: Analysis, params: list[Value], known: tuple[Model, ...]) -> list[Model]:
    sites = {
        site
        for value in parameter_owners(params)
        for model in models_in(value)
        if (site := analysis.facts.origin_site(model.origin)) is not None
    }
    return [model for model in known if model.site in sites]


def _trains(params: list[Value], trained: list[Model]) -> str:
    if trained:
        return "model"
    inside = [each for value in params for each in flatten(value, 4)]
    found = [each for each in inside if not isinstance(each, (Sequence, Mapping, Const, Iterated))]
    if any(isinstance(member, (Instance, Made)) for value in parameter_owners(params) for member in members(value)):
        return "model"
    tensors = [each for each in found if isinstance(each, Tensor)]
    if tensors and len(tensors) == len(found):
        if all("param" in each.roles and each.source is not None for each in tensors):
            return "model"
        # torch's optimizers take leaves alone: what a model has computed was detached on its way here
        if all(each.roles & _COMPUTED and not each.roles & _UNSURE for each in tensors):
            return "inputs"
    return "unknown"


def _before_move(analysis: Analysis, event: Event, params: list[Value]) -> bool:
    """Whether the optimizer's model is moved to a GPU only after the optimizer took its parameters."""
    owners = [model for value in parameter_owners(params) for model in models_in(value)]
    moves = [
        each.order
        for each in analysis.facts.of("transfer")
        if each.name in ("to", "cuda")
        and any(model is owner for model in models_in(each.receiver) for owner in owners)
        and analysis.devices.of_transfer(each).reaches_cuda
    ]
    return bool(moves) and min(moves) > event.order


def _optimizers_of(analysis: Analysis, event: Event) -> list[Made | Instance]:
    """The optimizers in what an event's call is made on: each optimizer of a program asks for them, of whole models."""
    return analysis.once(("optimizers of", id(event.receiver)), lambda: list(optimizers_in(event.receiver)))


def _state_loads(analysis: Analysis, made: list[Made]) -> tuple[Act, ...]:
    found: dict[Site, Act] = {}
    for event in analysis.facts.of("load"):
        if any(one is each for one in _optimizers_of(analysis, event) for each in made):
            found.setdefault(analysis.facts.site(event), act_of(analysis, event, None))
    for event in analysis.once("calls of owners", lambda: _calls_of_owners(analysis)):
        if event.name.rpartition(".")[2] in ("load_state", "load", "load_raw"):  # `accelerator.load_state(...)`
            found.setdefault(analysis.facts.site(event), act_of(analysis, event, None))
    return tuple(found[site] for site in sorted(found))


def _calls_of_owners(analysis: Analysis) -> list[Event]:
    return [event for event in analysis.facts.of("call") if any(is_owner(each) for each in members(event.receiver))]


def _state_saves(analysis: Analysis, made: list[Made]) -> tuple[StateSave, ...]:
    """The places that take the optimizer's state, with the entry of a checkpoint's dict that each is."""
    places = analysis.facts.places
    found: dict[Site, StateSave] = {}
    for event in analysis.facts.of("call"):
        if not event.name.endswith("state_dict") or event.name.endswith("load_state_dict"):
            continue
        if not any(one is each for one in _optimizers_of(analysis, event) for each in made):
            continue
        node, module = event.node, event.module
        parent = places.parent(node, module)
        mapping: ast.AST | None = None
        key: str | None = None
        if isinstance(parent, ast.Dict):
            mapping = parent
            entry = next((name for name, value in zip(parent.keys, parent.values, strict=False) if value is node), None)
            key = entry.value if isinstance(entry, ast.Constant) and isinstance(entry.value, str) else None
        elif isinstance(parent, ast.keyword) and parent.arg is not None:
            call = places.parent(parent, module)
            if isinstance(call, ast.Call) and dotted(call.func) == "dict":
                mapping, key = call, parent.arg
        site = places.site(node, module)
        taken = places.site(mapping, module) if mapping is not None and key is not None else None
        found.setdefault(site, StateSave(site, taken, key, places.function_site(node, module)))
    return tuple(found[site] for site in sorted(found))


def _branch(analysis: Analysis, node: ast.AST, module: ModuleFile) -> Site | None:
    """The outermost compound statement around a construction, in its function; the ``__main__`` guard is none."""
    places = analysis.facts.places
    outermost: ast.AST | None = None
    for each in places.ancestors(node, module):
        if isinstance(each, SCOPES):
            break
        if isinstance(each, _BRANCHES) and not (isinstance(each, ast.If) and is_main_test(each.test)):
            outermost = each
    return places.site(outermost, module) if outermost is not None else None


def _passes(analysis: Analysis, made: list[Made]) -> tuple[tuple[Passing, ...], bool]:
    """The hops that an optimizer makes as an argument of project functions, on its way to the calls that step it."""
    facts = analysis.facts
    hops: dict[Site, Passing] = {}
    complete = True
    for event in facts.of("step", "zero_grad", "unscale", "update"):
        if not any(one is each for one in optimizers_in(concerned(event)) for each in made):
            continue
        frames = facts.frames(event)
        expression: ast.AST | None = None
        if isinstance(event.node, ast.Call):
            through = event.node.args[0] if stepper(event.receiver) == "scaler" and event.node.args else None
            expression = through or getattr(event.node.func, "value", None)
        for index in range(len(frames) - 1, -1, -1):
            frame = frames[index]
            if not isinstance(expression, ast.Name):
                # an attribute travels with its object; anything else is not followed
                complete = complete and (expression is None or dotted(expression) is not None)
                break
            owner = facts.bindings.owner(expression.id, expression, frame.module)
            if owner is not frame.scope or not any(each.arg == expression.id for each in parameters(frame.scope)):
                break
            if not isinstance(frame.call, ast.Call) or index == 0:
                complete = False
                break
            from turbofix.dataflow.facts import argument_for

            argument = argument_for(expression.id, frame, frame.call)
            if argument is None or not isinstance(frame.scope, FUNCTIONS):
                complete = False
                break
            caller = frames[index - 1]
            hop = Passing(
                facts.places.site(frame.call, caller.module),
                facts.places.site(argument, caller.module),
                facts.places.site(frame.scope, frame.module),
                expression.id,
                called_outside(analysis, frame.module, frame.scope),
            )
            hops.setdefault(hop.argument, hop)
            expression = argument
    for event in facts.events:
        if event.kind == "unknown_call" and event.arguments is not None:
            for value in event.arguments.values():
                if any(one is each for one in optimizers_in(value, 0) for each in made):
                    complete = False
    return tuple(hops[site] for site in sorted(hops)), complete
