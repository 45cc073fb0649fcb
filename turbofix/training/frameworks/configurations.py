"""What is told by mappings of configuration files."""

from __future__ import annotations

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Const, Option
from turbofix.source.datafile import is_data
from turbofix.source.site import Site


def told_by(analysis: Analysis) -> dict[Site, tuple[Site, ...]]:
    """The constructions that unpack mappings of configuration files, each with the last value in these mappings."""
    places, found = analysis.facts.places, dict[Site, dict[str, dict[Site, None]]]()
    for event in analysis.facts.of("make"):
        told = [
            places.site(each.entry, each.entry_module)
            for each in (event.arguments.keywords.values() if event.arguments is not None else ())
            if each.must and each.node is None and each.entry is not None and isinstance(each.value, (Const, Option))
            if each.entry_module is not None and is_data(each.entry_module.path)
        ]
        if told:
            found.setdefault(analysis.facts.site(event), {}).setdefault(event.name, {})[max(told)] = None
    # one call of Lightning's command line makes several things: it is the trainer that is asked for
    made = {site: max(names, key=lambda name: name.endswith(".Trainer")) for site, names in found.items()}
    return {site: tuple(found[site][name]) for site, name in made.items()}
