"""States that are read from files: where they go, if nothing says so, is the GPU that they were on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.source.names import reads_of
from turbofix.source.places import Places
from turbofix.source.site import Site


def read_to_one_gpu(analysis: Analysis) -> Iterator[Site]:
    """The calls that read states to where they were saved, the first GPU, for what has a place of its own."""
    places = analysis.facts.places
    for event in analysis.facts.of("load"):
        given = event.arguments
        if event.name != "torch.load" or given is None or given.open or given.get("map_location", 1) is not None:
            continue
        if _is_of_states(places, places.parent(event.node, event.module), event):
            yield places.site(event.node, event.module)


def _is_of_states(places: Places, parent: ast.AST | None, event: Event) -> bool:
    """Whether what is read is given to ``load_state_dict``, or looked up in, and nothing else."""
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Attribute) and parent.func.attr == "load_state_dict"
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return isinstance(parent, ast.Subscript)
    reads = reads_of(parent.targets[0].id, places.scope(parent, event.module))
    above = [places.parent(each, event.module) for each in reads]
    given = [each for each in above if isinstance(each, ast.Call)]
    looked = (ast.Subscript, ast.Compare)
    kept = (*looked, ast.Call, ast.Attribute)
    return (
        bool(above)
        and all(isinstance(each, kept) for each in above)
        and all(isinstance(each.func, ast.Attribute) and each.func.attr == "load_state_dict" for each in given)
    )
