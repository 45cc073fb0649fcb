"""The parts of mixed precision that a program has, and the global switches that it sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.guards import Condition
from turbofix.dataflow.provenance import argument_from, argument_of
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import around, picked, stands, switch_of, told
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Arguments, Event, Passed
from turbofix.domain.values import Const, External, Instance, Made, Value, members
from turbofix.source.answers import every
from turbofix.source.names import dotted, is_main_test
from turbofix.source.site import Site
from turbofix.training.frameworks.in_charge import takes_loss
from turbofix.training.model import ABSENT, ALWAYS, Argument, Guard, Scaler, Setting
from turbofix.training.steps.acts import is_model, stepper

_OF_PRECISION = frozenset(("make", "call", "cast", "backward", "step", "wrap"))
"""The kinds of events that may be a part of mixed precision."""


def precision(analysis: Analysis) -> tuple[Scaler, ...]:
    """The parts of a mixed-precision set-up that the program has already, dead branches included."""
    facts = analysis.facts
    found: dict[Site, Scaler] = {}
    entered: dict[Site, set[Site]] = {}
    for event in facts.of("enter"):
        for member in members(event.receiver):
            if isinstance(member, Made) and member.kind == "autocast":
                made = facts.origin_site(member.origin)
                if made is not None:
                    entered.setdefault(made, set()).add(facts.site(event))
    for event in (*facts.events, *facts.dead):
        scaler = _scaler(analysis, event, entered) if event.kind in _OF_PRECISION else None
        if scaler is not None:
            found.setdefault(scaler.site, scaler)
    for module in facts.execution.modules.values():
        plain, asynchronous = every(ast.FunctionDef, module.tree), every(ast.AsyncFunctionDef, module.tree)
        lists = [*(each.decorator_list for each in plain), *(each.decorator_list for each in asynchronous)]
        for decorator in (decorator for decorators in lists for decorator in decorators):
            if is_autocast_decorator(decorator, module):
                site = facts.places.site(decorator, module)
                found.setdefault(site, Scaler(site, "torch.autocast", "autocast"))
    return tuple(found[site] for site in sorted(found))


def _scaler(analysis: Analysis, event: Event, entered: dict[Site, set[Site]]) -> Scaler | None:
    """The part of mixed precision that an event is."""
    site = analysis.facts.site
    if event.kind == "make":
        for member in reversed(members(event.result)):
            if isinstance(member, Made) and member.kind in ("scaler", "lossscaler", "autocast"):
                return Scaler(
                    site(event),
                    member.qualname,
                    "autocast" if member.kind == "autocast" else "scaler",
                    _enabled(analysis, event, member),
                    _dtype_text(member.arguments),
                    tuple(sorted(entered.get(site(event), ()))),
                )
    elif event.kind == "call" and event.name.startswith("apex.amp."):
        return Scaler(site(event), event.name, "apex", switch_of(analysis, event))
    elif event.kind == "cast" and event.name in ("half", "bfloat16") and is_model(event.receiver):
        named = "float16" if event.name == "half" else event.name
        return Scaler(site(event), f"torch.nn.Module.{event.name}", "half", switch_of(analysis, event), named)
    elif event.kind == "backward" and (takes_loss(event) or _is_owned(event)):
        return Scaler(site(event), receiver_name(event), "framework")
    elif event.kind == "step" and stepper(event.receiver) == "scaler" and not _made(event.receiver):
        return Scaler(site(event), receiver_name(event), "scaler")
    if event.kind in ("make", "call", "wrap") and _sets_precision(event):
        return Scaler(site(event), event.name, "framework", switch_of(analysis, event))
    return None


_OWN_PRECISION = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "mixed_precision",
    "torch.distributed.fsdp.fully_shard": "mp_policy",
    "torch.distributed._composable.fsdp.fully_shard": "mp_policy",
    "intel_extension_for_pytorch.optimize": "dtype",
    "transformer_engine.pytorch.autocast": None,
    "transformer_engine.pytorch.fp8_autocast": None,
    "ray.train.torch.accelerate": "amp",
}
"""Calls by which a library (or torch's sharding) takes over the precision, and the argument that says so."""


def _sets_precision(event: Event) -> bool:
    """Whether a call takes over the precision: the argument for it is passed, and may be more than None or float32."""
    if event.name not in _OWN_PRECISION or event.arguments is None:
        return False
    name = _OWN_PRECISION[event.name]
    passed = event.arguments.get(name) if name is not None else None
    given = members(passed.value) if passed is not None else ()
    return name is None or any(
        each.value if isinstance(each, Const) else getattr(each, "qualname", None) != "torch.float32" for each in given
    )


def _is_owned(event: Event) -> bool:
    """``optimizer.backward(loss)`` of an optimizer that scales the loss itself, as apex's FP16_Optimizer."""
    return event.name == "optimizer" and event.arguments is not None and bool(event.arguments.positions)


def _made(value: Value | None) -> bool:
    """Whether a value was seen being made."""
    return any(isinstance(member, (Made, Instance)) for member in members(value))


def receiver_name(event: Event) -> str:
    """What the call of an event is made on, as it is written: ``engine`` of ``engine.backward(loss)``."""
    function = event.node.func if isinstance(event.node, ast.Call) else None
    return dotted(function) or event.name if function is not None else event.name


def is_autocast_decorator(node: ast.expr, module: ModuleFile) -> bool:
    """Whether a decorator is torch's autocast."""
    call = node.func if isinstance(node, ast.Call) else node
    name = dotted(call)
    if name is None:
        return False
    head, _, rest = name.partition(".")
    value = module.scope.names.get(head)
    return any(
        isinstance(member, External) and (f"{member.qualname}.{rest}" if rest else member.qualname).endswith("autocast")
        for member in members(value)
    )


def autocasts_around(analysis: Analysis, event: Event) -> Iterator[Site]:
    """The autocast regions that an event happens under: where each is entered, or decorates a function."""
    places = analysis.facts.places
    for level in event.control.upwards():
        if level.kind == "with" and isinstance(level.detail, tuple) and level.module is not None:
            item, value = level.detail
            place = item if item is not None else level.node
            if place is not None and any(isinstance(each, Made) and each.kind == "autocast" for each in members(value)):
                yield places.site(place, level.module)
    for frame in analysis.facts.frames(event):
        for decorator in getattr(frame.scope, "decorator_list", ()):
            if is_autocast_decorator(decorator, frame.module):
                yield places.site(decorator, frame.module)


def _enabled(analysis: Analysis, event: Event, made: Made) -> Argument:
    position = None
    if made.kind == "autocast":
        position = 2 if made.qualname == "torch.autocast" else 0
    passed = made.arguments.get("enabled", position)
    given = argument_from(passed, event.module, analysis.facts, analysis.reads)
    if made.kind == "autocast" and given.state == "absent":
        given = _full_precision(analysis, event, made)
    if given.state not in ("absent", "value", "option") and passed is not None and isinstance(passed.node, ast.expr):
        stand = stands(analysis.facts, passed.node, analysis.facts.frames(event))
        given = told(analysis, stand, passed.node, event.module) if stand is not None else given
    if given.state not in ("absent", "value") or given.off:
        return given  # the script says itself what turns it on; tests around it may decide on more
    switch = switch_of(analysis, event)
    return switch if switch.state != "absent" and (given.state == "absent" or not any(switch.values)) else given


def _full_precision(analysis: Analysis, event: Event, made: Made) -> Argument:
    """Autocast to float32 casts nothing: it is off where the dtype that an option picks is that one."""
    passed = made.arguments.get("dtype")
    if passed is None or not isinstance(passed.node, ast.expr):
        return ABSENT
    found = picked(analysis.facts, passed.node, analysis.facts.frames(event))
    if found is None or (dotted(found[0]) or "").rpartition(".")[2] not in ("float32", "float"):
        return ABSENT
    _, stand, choices = found
    halves = (key for key, value in choices.items() if (dotted(value) or "").endswith(".bfloat16"))
    wanted = stand.wanted if True in choices else next(halves, None)
    return replace(told(analysis, replace(stand, wanted=wanted), passed.node, event.module), values=(False,))


def _dtype_text(arguments: Arguments) -> str | None:
    """The one data type that is asked for; None where there are several, or none."""
    passed = arguments.get("dtype", None)
    found: set[str] = set()
    for candidate in [passed] if passed is not None else arguments.positions[:2]:
        for member in members(candidate.value):
            if isinstance(member, External) and member.qualname.startswith("torch."):
                last = member.qualname.rpartition(".")[2]
                found.add({"half": "float16", "float": "float32"}.get(last, last))
    return found.pop() if len(found) == 1 else None


def settings(analysis: Analysis) -> tuple[Setting, ...]:
    """The global switches that the program sets."""
    found: dict[tuple[Site, str], Setting] = {}
    for event in analysis.facts.of("set"):
        setting = setting_of(analysis, event)
        found.setdefault((setting.site, setting.name), setting)
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0], key[1])))


def setting_of(analysis: Analysis, event: Event) -> Setting:
    """What one event sets, and when."""
    facts = analysis.facts
    value: Argument = Argument("unknown")
    if event.arguments is not None and (event.arguments.positions or event.arguments.keywords):
        first = (*event.arguments.positions, *event.arguments.keywords.values())[0]
        value = argument_from(first, event.module, facts, analysis.reads)
    elif event.result is not None:
        node = event.node.value if isinstance(event.node, ast.Assign) else None
        value = argument_of(Passed(event.result, True, node), facts, analysis.reads, event.module)
    elif event.arguments is not None:
        value = ABSENT
    guard, switch = circumstances(analysis, event)
    comments = facts.places.comments_at(event.node, event.module)
    return Setting(event.name, value, facts.site(event), guard, switch, comments)


def _around(analysis: Analysis, event: Event) -> list[Condition]:
    """The tests that an event stands under in the program as a whole, outermost first."""
    return [condition for condition, _ in around(analysis, event.node, analysis.facts.frames(event))]


def circumstances(analysis: Analysis, event: Event) -> tuple[Guard, Argument]:
    """Under which tests an event happens in the program as a whole, and what they say as the program stands.

    Those that a training stands under in the same block are none: whenever that runs, the event has happened.
    """
    facts = analysis.facts
    trained = {id(each.test) for one in facts.of("backward") for each in _around(analysis, one) if each.holds}
    conditions = [
        each
        for each in _around(analysis, event)
        if not (each.test is not None and (is_main_test(each.test) or (each.holds and id(each.test) in trained)))
    ]
    loop = next((record.node for record in facts.loops(event)), facts.execution.entry.tree)
    guard = analysis.guards.judge_all(conditions, loop) if conditions else ALWAYS
    return guard, switch_of(analysis, event) if conditions else ABSENT
