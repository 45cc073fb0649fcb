"""What was left on from looking for errors: anomaly detection, launches that block, profilers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.provenance import argument_from
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Arguments, Event
from turbofix.domain.values import Made, members
from turbofix.source.site import Site
from turbofix.training.model import ABSENT, DebugAid
from turbofix.training.precision import circumstances, setting_of

DETECTING = "torch.autograd.detect_anomaly"
SETTING = "torch.autograd.set_detect_anomaly"
BLOCKING = 'os.environ["CUDA_LAUNCH_BLOCKING"]'

_TRAINERS = frozenset(("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer"))
_PROFILERS = ("torch.profiler.profile", "torch.autograd.profiler.profile", "torch.autograd.profiler.emit_nvtx")
_CATCHING = frozenset(("RuntimeError", "Exception", "BaseException"))


def debugging(analysis: Analysis) -> tuple[DebugAid, ...]:
    """The aids of a program that trains, in order."""
    found: dict[Site, DebugAid] = {}
    for aid in (*_anomalies(analysis), *_profilers(analysis)):
        found.setdefault(aid.site, aid)
    return tuple(found[site] for site in sorted(found))


def _anomalies(analysis: Analysis) -> Iterator[DebugAid]:
    facts = analysis.facts
    for event in facts.of("set"):
        if event.name not in (SETTING, DETECTING, BLOCKING):
            continue
        setting = setting_of(analysis, event)
        value = ABSENT if event.name == DETECTING else setting.value
        aid = DebugAid(
            setting.site,
            "blocking" if event.name == BLOCKING else "anomaly",
            event.name,
            value,
            setting.guard,
            setting.switch,
            facts.places.comments_at(event.node, event.module),
        )
        yield aid if aid.kind == "blocking" else replace(aid, caught=_caught(analysis))
    for event in facts.of("make"):
        passed = event.arguments.get("detect_anomaly") if event.name in _TRAINERS and event.arguments else None
        if passed is not None and passed.node is not None:
            value = argument_from(passed, event.module, facts, analysis.reads)
            guard, switch = circumstances(analysis, event)
            comments = facts.places.comment(passed.node, event.module)
            site = facts.places.site(passed.node, event.module)
            yield DebugAid(site, "anomaly", event.name, value, guard, switch, (comments,) if comments else ())


def _profilers(analysis: Analysis) -> Iterator[DebugAid]:
    """The profilers that a backward pass runs under."""
    facts = analysis.facts
    seen: set[ast.AST] = set()
    for event in facts.of("backward"):
        for level in event.control.upwards():
            if level.kind != "with" or not isinstance(level.detail, tuple):
                continue
            item, value = level.detail
            if not isinstance(item, ast.withitem) or item in seen:
                continue
            seen.add(item)
            name, arguments = _profiler(analysis, item, value)
            entered = next((each for each in facts.at(item.context_expr) if each.kind == "enter"), None)
            if name is None or entered is None or not isinstance(item.context_expr, ast.Call):
                continue
            guard, switch = circumstances(analysis, entered)
            passed = arguments.get("enabled", 0) if name != _PROFILERS[0] else None
            yield DebugAid(
                facts.site(entered),
                "profiler",
                name,
                argument_from(passed, entered.module, facts, analysis.reads),
                guard,
                switch,
                facts.places.comments_at(item.context_expr, entered.module),
                scheduled=arguments.get("schedule", 1) is not None or arguments.open,
                read=_read(analysis, item, entered),
            )


def _profiler(analysis: Analysis, item: ast.withitem, value: object) -> tuple[str | None, Arguments]:
    for each in members(value) if value is not None else ():  # type: ignore[arg-type]
        if isinstance(each, Made) and each.qualname in _PROFILERS:
            return each.qualname, each.arguments
    for event in analysis.facts.at(item.context_expr):
        if event.kind == "call" and event.name in _PROFILERS:
            return event.name, event.arguments or Arguments()
    return None, Arguments()


def _read(analysis: Analysis, item: ast.withitem, event: Event) -> Site | None:
    """Where a profiler is used for more than to be told that a step is over."""
    if item.optional_vars is None:
        return None
    places, module = analysis.facts.places, event.module
    if not isinstance(item.optional_vars, ast.Name):
        return places.site(item.optional_vars, module)
    name = item.optional_vars.id
    for node in ast.walk(places.scope(item.context_expr, module)):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            above = places.parent(node, module)
            if not (isinstance(above, ast.Attribute) and above.attr == "step"):
                return places.site(node, module)
    return None


def _caught(analysis: Analysis) -> Site | None:
    """A handler around a backward pass that goes on after the error which a gradient that is no number raises there."""
    for event in analysis.facts.of("backward", "autograd_grad"):
        for level in event.control.upwards():
            if level.kind != "try" or not isinstance(level.node, ast.Try) or level.module is None:
                continue
            for handler in level.node.handlers:
                if not isinstance(handler.body[-1], ast.Raise) and _catches(handler):
                    return analysis.facts.places.site(handler, level.module)
    return None


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in _CATCHING for each in kinds)
