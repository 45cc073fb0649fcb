"""What DeepSpeed is told, by a JSON file or a dict, and what else is told by mappings of configuration files."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from turbofix.datafile import DataText, NotPlainError, is_data, values
from turbofix.findings import Site
from turbofix.program.analysis import Analysis
from turbofix.program.arguments import argument_from
from turbofix.program.events import Passed
from turbofix.program.execution import ModuleFile
from turbofix.program.model import Argument, Configuration
from turbofix.program.values import Const, Mapping, Option, Value, members

_NAMED_LATER = "DeepSpeed's configuration is named when the script is started"


def configuration(analysis: Analysis, module: ModuleFile, passed: Passed | None) -> Configuration:
    """What a call tells DeepSpeed, if that can be read."""
    if passed is None:
        return Configuration(why_not=_NAMED_LATER)
    given = argument_from(passed, module, analysis.facts, analysis.reads)
    if given.option is not None and not any(given.values):
        return Configuration(given, why_not=f"{_NAMED_LATER} ({given.option})")
    found = list(members(passed.value))
    if len(found) == 1 and isinstance(found[0], Mapping):
        return _written_out(analysis, found[0], given)
    names = [each for each in given.values if isinstance(each, str)]
    if given.state not in ("value", "option") or len(names) != 1:
        return Configuration(given, why_not="DeepSpeed's configuration is put together when the script runs")
    return _from_file(analysis, names[0], given)


def _from_file(analysis: Analysis, name: str, given: Argument) -> Configuration:
    """The configuration in a file that the script names, relative to where it is started: in its folder, or above."""
    paths = [path for path in _candidates(analysis, name) if analysis.execution.read(path) is not None]
    if len(paths) != 1:
        there = "is not in the project" if not paths else "is there more than once in the project"
        return Configuration(given, why_not=f"DeepSpeed's configuration ({name}) {there}")
    text = analysis.execution.read(paths[0]) or ""
    try:
        file = DataText(paths[0], text)
    except NotPlainError as error:
        return Configuration(given, why_not=f"DeepSpeed's configuration ({name}) {error}")
    keys: list[tuple[str, ...]] = [(key,) for _, key, _ in file.top.entries]
    keys += [(key, inner) for _, key, node in file.top.entries for _, inner, _ in node.entries]
    places = {".".join(each): site for each in keys if (site := file.site(*each)) is not None}
    return Configuration(given, values(text), file.site(), places)


def _candidates(analysis: Analysis, name: str) -> list[Path]:
    if os.path.isabs(name) or name.startswith("~") or not name.endswith(".json"):
        return []
    root, folder = analysis.execution.root, analysis.execution.entry.path.parent
    folders = [each for each in (folder, *folder.parents) if each == root or root in each.parents]
    found = [Path(os.path.normpath(each / name)) for each in folders or [folder]]
    return [path for path in dict.fromkeys(found) if root in path.parents]


def _written_out(analysis: Analysis, mapping: Mapping, given: Argument) -> Configuration:
    """The configuration in a dict of the script."""
    origin = mapping.origin
    if mapping.open or origin is None or not isinstance(origin.node, ast.Dict):
        return Configuration(given, why_not="DeepSpeed's configuration is put together when the script runs")
    places = analysis.facts.places
    sites: dict[str, Site] = {}
    for key, entry in mapping.entries.items():
        for inner, each in _inner(entry.value):
            if each.origin is not None:
                sites[f"{key}.{inner}"] = places.site(each.origin.node, each.origin.module)
    said = _constants(mapping)
    return Configuration(
        given, said if isinstance(said, dict) else None, places.site(origin.node, origin.module), sites
    )


def _inner(value: Value) -> Iterator[tuple[object, Const]]:
    for each in members(value):
        if isinstance(each, Mapping):
            for key, entry in each.entries.items():
                yield from ((key, one) for one in members(entry.value) if isinstance(one, Const))


def _constants(value: Value) -> object:
    """A value as far as it is known; an ellipsis stands for what is not."""
    found = list(members(value))
    if len(found) != 1:
        return ...
    if isinstance(found[0], Const):
        return found[0].value
    if isinstance(found[0], Mapping) and not found[0].open:
        return {key: _constants(each.value) if each.must else ... for key, each in found[0].entries.items()}
    return ...


def told_by(analysis: Analysis) -> dict[Site, tuple[Site, ...]]:
    """The constructions that unpack mappings of configuration files, each with the last value in these mappings."""
    places, found = analysis.facts.places, dict[Site, dict[str, dict[Site, None]]]()
    for event in analysis.facts.of("make"):
        told = [
            places.site(each.entry, each.entry_module)
            for each in (event.arguments.keywords.values() if event.arguments is not None else ())
            if each.node is None and each.entry is not None and isinstance(each.value, (Const, Option))
            if each.entry_module is not None and is_data(each.entry_module.path)
        ]
        if told:
            found.setdefault(analysis.facts.site(event), {}).setdefault(event.name, {})[max(told)] = None
    # one call of Lightning's command line makes several things: it is the trainer that is asked for
    made = {site: max(names, key=lambda name: name.endswith(".Trainer")) for site, names in found.items()}
    return {site: tuple(found[site][name]) for site, name in made.items()}
