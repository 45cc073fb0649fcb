"""The engines of DeepSpeed: how they are made, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turbofix.findings import Site
from turbofix.program.analysis import Analysis
from turbofix.program.configurations import configuration
from turbofix.program.events import Event, Passed
from turbofix.program.model import Engine
from turbofix.program.objects import models_given
from turbofix.program.trainings import precision_of
from turbofix.program.values import Const, Made, Namespace, Value, members

_CONFIGS = (("config", 10), ("config_params", 12))


def engines(analysis: Analysis) -> tuple[Engine, ...]:
    """The engines that ``deepspeed.initialize`` makes, in the order of the calls."""
    found: dict[Site, Engine] = {}
    for event in analysis.facts.of("make"):
        for made in members(event.result):
            if isinstance(made, Made) and made.kind == "engine" and made.qualname == "deepspeed.DeepSpeedEngine":
                site = analysis.facts.site(event)
                found.setdefault(site, _engine(analysis, event, made, site))
    return tuple(found[site] for site in sorted(found))


def _engine(analysis: Analysis, event: Event, made: Made, site: Site) -> Engine:
    model = made.arguments.get("model", 1)
    values_ = list(members(model.value)) if model is not None else []
    is_open = made.arguments.open or made.arguments.star
    given = None if is_open else next(_configs(made), None)
    return Engine(
        site,
        configuration(analysis, event.module, given),
        models_given(analysis, values_),
        precision_of(values_),
        _called(analysis, made, lambda each: each.name.rpartition(".")[2] == "load_checkpoint"),
        _called(analysis, made, _embeds),
    )


def _called(analysis: Analysis, made: Made, is_wanted: Callable[[Event], bool]) -> Site | None:
    """The first call of the engine, or of one of its methods, of a kind."""
    for event in analysis.facts.of("call", "unknown_call", "forward"):
        if is_wanted(event) and any(each is made for each in members(event.receiver)):
            return analysis.facts.site(event)
    return None


def _embeds(event: Event) -> bool:
    return event.arguments is not None and any(name.endswith("inputs_embeds") for name in event.arguments.keywords)


def _configs(made: Made) -> Iterator[Passed]:
    """What may be the configuration of an engine: an argument of its own, or ``args.deepspeed_config``."""
    for name, position in _CONFIGS:
        passed = made.arguments.get(name, position)
        if passed is not None and not all(_is_none(each) for each in members(passed.value)):
            yield passed
    args = made.arguments.get("args", 0)
    for value in members(args.value) if args is not None else ():
        named = value.attributes.get("deepspeed_config") if isinstance(value, Namespace) else None
        if named is not None and not _is_none(named):
            yield Passed(named)


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None
