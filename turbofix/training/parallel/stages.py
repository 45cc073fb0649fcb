"""What DeepSpeed is told of ZeRO, by a dict of the program or by a configuration file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Made, Mapping, Origin, Value, members
from turbofix.source.datafile import is_data
from turbofix.source.site import Site
from turbofix.training.model import Stage

_SECTION = "zero_optimization"


def stages(analysis: Analysis) -> Iterator[Stage]:
    """The calls of ``deepspeed.initialize``, with what is seen of their configuration."""
    done: set[Site] = set()
    for event in analysis.facts.of("make"):
        site = analysis.facts.site(event)
        engines = [each for each in members(event.result) if isinstance(each, Made) and each.kind == "engine"]
        if event.name.startswith("deepspeed.") and engines and site not in done:
            done.add(site)
            yield _stage(analysis, site, engines[0])


def _stage(analysis: Analysis, site: Site, engine: Made) -> Stage:
    given = engine.arguments.get("optimizer", 2)
    classes = [each.qualname for each in members(given.value) if isinstance(each, Made)] if given is not None else []
    steps = classes[0] if classes and classes[0].startswith("torch.optim.") else None
    told = [each for each in members(engine.attributes.get("config")) if isinstance(each, Mapping)]
    if len(told) != 1 or told[0].open or told[0].origin is None:
        return Stage(site, steps=steps)
    whole = told[0]
    numbers = tuple(
        (key, value)
        for key, entry in whole.entries.items()
        if isinstance(key, str) and isinstance(value := settled(entry.value), int)
    )
    place = _place(analysis, whole)
    entry = whole.entries.get(_SECTION)
    section = next((each for each in members(entry.value) if isinstance(each, Mapping)), None) if entry else None
    if entry is not None and section is None:
        return Stage(site, steps=steps)
    if section is None:
        return Stage(site, place, numbers=numbers, steps=steps)
    stage = section.entries.get("stage")
    value = settled(stage.value) if stage is not None else 0
    at = _site(analysis, stage.origin) if stage is not None else None
    number = value if isinstance(value, int) else None
    return Stage(site, place, _place(analysis, section), number, at, numbers, steps)


def _place(analysis: Analysis, mapping: Mapping) -> Site | None:
    """A dict display, or a value in a mapping of a configuration file."""
    origin = mapping.origin
    if origin is not None and is_data(origin.module.path):
        plain = (each.origin for each in mapping.entries.values() if not _is_mapping(each.value))
        return max((_site(analysis, each) for each in plain if each is not None), default=None)  # type: ignore[type-var]
    return _site(analysis, origin) if origin is not None and isinstance(origin.node, (ast.Dict, ast.Call)) else None


def _is_mapping(value: Value) -> bool:
    return any(isinstance(each, Mapping) for each in members(value))


def _site(analysis: Analysis, origin: Origin | None) -> Site | None:
    return analysis.facts.origin_site(origin)
