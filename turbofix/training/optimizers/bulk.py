"""Which optimizers of Adam's kind keep states for all parameters of a large model."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Class, Instance, Made, Opaque, members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.training.model import Bulk, Hazard, Model
from turbofix.training.objects import models_in
from turbofix.training.optimizers.optimizer import parameter_owners
from turbofix.training.steps.weights import is_all, is_owner, names_before

BULKY = 1_000_000_000
"""So many numbers, and Adam's two float32 states for them take 8 GB: less is no limit on the GPUs of a data center."""

_KINDS = ("torch.optim.Adam", "torch.optim.AdamW")

_STATES = regex(r"\bexp_avg|optim\w*\.state\b(?!_)")

_SHARDING = regex(r"\bfully_shard\b|\bFullyShardedDataParallel\b|\bparallelize_module\b|\bdistribute_tensor\b")


_OF_TORCH_ALONE = frozenset(("amsgrad", "maximize", "capturable", "differentiable", "fused", "foreach"))
"""Options in the groups of torch's optimizers that bitsandbytes' do not have, or do not heed."""


def bulks(analysis: Analysis, models: Iterable[Model]) -> tuple[Bulk, ...]:
    """The optimizers of Adam's kind that train all of one bulky model."""
    large = {model.site for model in models if model.numbers >= BULKY}
    if large and any(_SHARDING.search(module.text) for module in analysis.execution.modules.values()):
        return ()
    found: dict[int, Bulk] = {}
    for event in analysis.facts.of("make") if large else ():
        for optimizer in members(event.result):
            if isinstance(optimizer, Made) and optimizer.qualname in _KINDS and id(event.node) not in found:
                bulk = _bulk(analysis, event, optimizer, large)
                if bulk is not None:
                    found[id(event.node)] = bulk
    return tuple(sorted(found.values(), key=lambda each: each.optimizer))


def _bulk(analysis: Analysis, event: Event, optimizer: Made, large: set[Site]) -> Bulk | None:
    facts = analysis.facts
    passed = optimizer.arguments.get("params", 0)
    if passed is None or passed.node is None:
        return None
    owners: dict[int, Made | Instance | Opaque] = {}
    for owner in parameter_owners([passed.value]):
        owners.update((id(each), each) for each in models_in(owner))
    (owned,) = owners.values() if len(owners) == 1 else (None,)
    model = facts.origin_site(owned.origin) if owned is not None else None
    if owned is None or model not in large or not is_all(analysis, passed.node, optimizer.origin.module, groups=True):
        return None
    assert model is not None
    frames = [facts.frames(each) for each in facts.at(event.node) if each.kind == "make"]
    called = members(facts.evaluate(event.node.func, frames[0])) if isinstance(event.node, ast.Call) else ()
    if any(isinstance(each, Class) for each in called):
        return None  # a class of the project, which may step in a way of its own
    names = names_before(event, frames[0][-1])
    text = next((dotted(name) for name in names if all(is_owner(analysis, name, each, owned) for each in frames)), None)
    statement = facts.places.statement(event.node, event.module)
    alone = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)) and statement.value is event.node
    hazard = _hazard(analysis) or _looked_at(analysis, optimizer)
    return Bulk(facts.site(event), model, text, alone, hazard)


def _hazard(analysis: Analysis) -> Hazard | None:
    """Where the program looks at the states that torch keeps."""
    for module in analysis.execution.modules.values():
        match = _STATES.search(module.text)
        if match is not None:
            line = module.text.count("\n", 0, match.start()) + 1
            site = Site(module.path, line, 0, line, 0, "")
            return Hazard("the states of the optimizer are looked at", site)
    return None


def _looked_at(analysis: Analysis, optimizer: Made) -> Hazard | None:
    """Where the program does more with an optimizer than both kinds of them do alike."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        keys: list[ast.Subscript | ast.Dict] = [*every(ast.Subscript, module.tree), *every(ast.Dict, module.tree)]
        for key in keys:
            names = key.keys if isinstance(key, ast.Dict) else [key.slice]
            said = {each.value for each in names if isinstance(each, ast.Constant)}
            if said & _OF_TORCH_ALONE:
                return Hazard("an option of torch's optimizers is set or read in a group", places.site(key, module))
            stored = isinstance(key, ast.Subscript) and isinstance(key.ctx, ast.Store)
            if stored and "weight_decay" in said and optimizer.qualname == "torch.optim.Adam":
                why = "a weight decay is set later on, which bitsandbytes applies as AdamW does"
                return Hazard(why, places.site(key, module))
    return None
