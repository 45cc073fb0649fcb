"""The calls that wrap a model for several processes, and what they are given."""

from __future__ import annotations

from turbofix.dataflow.provenance import argument_from, bound_arguments
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.source.site import Site
from turbofix.training.data.loaders import merged
from turbofix.training.model import Wrapping
from turbofix.training.models.idle import has_idle_layers
from turbofix.training.objects import models_in
from turbofix.training.steps.reductions import PARALLEL

_POSITIONS = ("module", "device_ids", "output_device", "dim", "broadcast_buffers")
_HANDLERS = ("accelerate.DistributedDataParallelKwargs", "accelerate.utils.DistributedDataParallelKwargs")


def wrappings(analysis: Analysis) -> tuple[Wrapping, ...]:
    """Every call of DistributedDataParallel, and of what tells Accelerate how to call it."""
    facts = analysis.facts
    ways: dict[Site, list[Event]] = {}
    for event in facts.of("wrap", "call"):
        if event.name in (PARALLEL, *_HANDLERS) and event.arguments is not None:
            ways.setdefault(facts.site(event), []).append(event)
    found = []
    for site, events in sorted(ways.items()):
        given = [each.arguments for each in events if each.arguments is not None]
        passed = merged(bound_arguments(each, _POSITIONS if events[0].kind == "wrap" else ()) for each in given)
        module = events[0].module
        arguments = {name: argument_from(each, module, facts, analysis.reads) for name, each in passed.items()}
        values = [model for each in events for model in models_in(each.receiver)]
        made = (facts.origin_site(model.origin) for model in values)
        models, idle = tuple(sorted({each for each in made if each is not None})), has_idle_layers(analysis, values)
        found.append(Wrapping(site, arguments, any(each.open or each.star for each in given), models, idle))
    return tuple(found)
