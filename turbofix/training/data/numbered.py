"""Loaders of nothing but numbers, by which a step indexes tensors: ``DataLoader(range(n), 65536, shuffle=True)``."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.training.data.preloading import place_of_helper

_GIVEN = frozenset(("dataset", "batch_size", "shuffle", "drop_last"))
_AROUND = ("enumerate", "tqdm", "tqdm.tqdm", "iter")


def numbered(analysis: Analysis) -> dict[Site, Site]:
    """The loaders of nothing but numbers that a loop is right over, each with where a helper can go."""
    found: dict[Site, Site] = {}
    for event in analysis.facts.of("make"):
        call, given = event.node, event.arguments
        named = event.name.startswith("torch.utils.data.") and event.name.endswith("DataLoader")
        if not isinstance(call, ast.Call) or given is None or given.open or given.star or not named:
            continue
        data, size = given.get("dataset", 0), given.get("batch_size", 1)
        ranged = data is not None and isinstance(data.node, ast.Call) and dotted(data.node.func) == "range"
        plain = given.keywords.keys() <= _GIVEN and len(given.positions) <= 3
        if not ranged or size is None or not plain or getattr(size.node, "value", size) is None:
            continue
        whole: ast.AST = call
        above = analysis.facts.places.parent(call, event.module)
        while isinstance(above, ast.Call) and dotted(above.func) in _AROUND and above.args[:1] == [whole]:
            whole, above = above, analysis.facts.places.parent(above, event.module)
        if isinstance(above, ast.For) and above.iter is whole:
            found[analysis.facts.site(event)] = place_of_helper(analysis, call, event.module)
    return found
