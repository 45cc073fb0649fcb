"""A training under Accelerate, which shares out models and data by itself where it is started as several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import members
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.training.model import Evaluation, Owner, Parallel, Step, Totals
from turbofix.training.objects import models_in
from turbofix.training.parallel.decisions import decisions
from turbofix.training.parallel.sharing import value_of
from turbofix.training.parallel.totals import totals
from turbofix.training.parallel.wrapping import NotWrapped
from turbofix.training.steps.training import training_loops

_FOR_SEVERAL = regex(r"\b(is_(local_)?main_process|num_processes|process_index|wait_for_everyone|gather_for_metrics)\b")
_STATES = frozenset(("state_dict", "load_state_dict", "save_pretrained"))


def accelerated(
    analysis: Analysis, found: Parallel, owner: Owner, steps: tuple[Step, ...], evaluations: tuple[Evaluation, ...]
) -> Parallel:
    """What Accelerate leaves to the script: the batch of all processes, sums, files and names. Raises NotWrapped."""
    places = analysis.facts.places
    for name in ("dataloader_config", "split_batches"):
        if owner.argument(name).state != "absent" or owner.open_mapping:
            raise NotWrapped("it says itself how Accelerate shares out batches", owner.site)
    if any(_FOR_SEVERAL.search(module.text) for module in analysis.execution.modules.values()):
        raise NotWrapped(
            "Accelerate trains it by several processes as it is: `accelerate launch` starts them", owner.site
        )
    sites = {step.loop.site for step in steps}
    records = [record for record, *_ in training_loops(analysis) if places.site(record.node, record.module) in sites]
    counted = [each for record in records if (each := totals(analysis, record)) is not None]
    return replace(
        found,
        owner=owner.site,
        totals=(*counted, *_evaluated(analysis, evaluations)),
        decisions=tuple(decisions(analysis, records)),
        unwraps=tuple(dict.fromkeys(_states(analysis, [*analysis.execution.modules.values()]))),
        indexed=(),
        hiding=(),
        metrics=(),
    )


def _evaluated(analysis: Analysis, evaluations: tuple[Evaluation, ...]) -> Iterator[Totals]:
    """What evaluations count of the data that Accelerate shares out, where they gather nothing themselves."""
    sites = {each.loop.site for each in evaluations if each.loaders}
    for record in analysis.execution.loops:
        site = analysis.facts.places.site(record.node, record.module)
        if site not in sites or "gather" in ast.unparse(record.node):
            continue
        found = totals(analysis, record)
        if found is None:
            raise NotWrapped("it evaluates on a part of the data: gather_for_metrics puts the parts together", site)
        yield found


def _states(analysis: Analysis, modules: list[ModuleFile]) -> Iterator[Site]:
    """The models whose weights are saved or loaded by name, which have other names where they are wrapped."""
    for module in modules:
        for call in every(ast.Call, module.tree):
            func = call.func
            if isinstance(func, ast.Attribute) and func.attr in _STATES and dotted(func.value) is not None:
                held = members(value_of(analysis, func.value, module))
                if any(True for value in held for _ in models_in(value)):
                    yield analysis.facts.places.site(func.value, module)
