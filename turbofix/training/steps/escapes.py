"""Results of a forward pass that are handed on to what may not take 16 bits."""

from __future__ import annotations

import ast
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Tensor, flatten
from turbofix.library.tables import is_widened, unfit_for_half, words
from turbofix.source.site import Site
from turbofix.training.model import Called, Region
from turbofix.training.steps.losses import qualname_of
from turbofix.training.steps.regions import in_model


def with_escapes(
    analysis: Analysis, regions: tuple[Region, ...], events: list[Event], loop: ast.AST
) -> tuple[Region, ...]:
    """The regions with the places that hand a result of theirs to other libraries, or to what does not take 16 bits.

    In the loop these are calls (reads by numpy are syncs of the step); after it, reads by numpy too.
    """
    facts = analysis.facts
    inside = {id(event) for event in events}
    escapes: list[tuple[Site, Site | None]] = []
    unfit: dict[tuple[Site, Site | None], Called] = {}
    widened: dict[tuple[Site, Site | None], Called] = {}
    for event in facts.of("call", "sync"):
        is_call, is_inside = event.kind == "call", id(event) in inside
        raises = is_call and unfit_for_half(qualname_of(event)) is not None and not in_model(analysis, event, 0)
        if is_call and (raises or is_foreign(event.name)) and event.arguments is not None:
            values = [*event.arguments.values(), *([event.receiver] if raises else ())]
            values = values[1:] if event.name == "Tensor.index_put_" else values  # not where it is put
        elif event.kind == "sync" and event.name == "numpy" and not is_inside:
            values = [event.receiver]
        else:
            continue
        for each in (each for value in values for each in flatten(value)):
            if not isinstance(each, Tensor) or not each.roles & {"output", "maybe_output"} or "loss" in each.roles:
                continue
            if not is_inside and (each.origin is None or facts.inside(event, loop)):
                continue
            site = facts.site(event)
            origin = None if is_inside else facts.origin_site(each.origin) or site
            if not raises:
                escapes.append((site, origin))
            else:
                (unfit if each.half else widened)[site, origin] = Called(event.name, site)
    found: list[Region] = []
    for region in regions:
        raising = unfit | widened if widened and _leaves_narrow(analysis, events, region) else unfit
        there = {key: called for key, called in raising.items() if key[1] is None or _within(key[1], region)}
        sites = {site for site, origin in escapes if origin is None or _within(origin, region)}
        ordered = tuple(called for _, called in sorted(there.items(), key=lambda each: each[0][0]))
        found.append(replace(region, escapes=tuple(sorted(sites)), unfit=ordered))
    return tuple(found)


def _leaves_narrow(analysis: Analysis, events: list[Event], region: Region) -> bool:
    """Whether what autocast computes in 32 bits is computed of the model's output behind the region: in 16 there."""
    facts = analysis.facts
    for event in events:
        if event.kind != "call" or event.arguments is None or not is_widened(event.name):
            continue
        operands = [each for value in (event.receiver, *event.arguments.values()) for each in flatten(value)]
        if any(isinstance(each, Tensor) and each.half and "loss" not in each.roles for each in operands) and not any(
            _within(facts.places.site(frame.anchor, frame.module), region) for frame in facts.frames(event)
        ):
            return True
    return False


def _within(site: Site, region: Region) -> bool:
    first, last = region.first, region.last
    return site.path == first.path and first.line <= site.line and site.end_line <= last.end_line


_TORCHLIKE = words(
    """
    torch torchvision torchaudio torchmetrics torch_geometric builtins math copy time os sys logging functools itertools
    list dict set tuple str
    random tqdm collections contextlib typing einops timm transformers accelerate apex deepspeed wandb xformers
    lightning pytorch_lightning kornia monai peft diffusers fairscale bitsandbytes horovod gc warnings operator json
    """
)


def is_foreign(qualname: str) -> bool:
    """Whether a function belongs to a library that does not take tensors of half precision as torch does."""
    package, dot, _ = qualname.partition(".")
    known = package in _TORCHLIKE or package.startswith("torch_")
    return bool(dot) and not known and package[:1].islower()
