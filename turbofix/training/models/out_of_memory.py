"""Trainings of transformers that tell of a lack of memory, and could compute activations twice instead of keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Made, members
from turbofix.findings import Evidence
from turbofix.regex import regex
from turbofix.training.model import Repeated, Training

_ENABLED = regex(r"gradient_checkpointing_enable|utils\.checkpoint")
_SMALL = 2
"""A batch of at most so many samples, of which several make up an update, is as small as memory makes it."""


def repeated(analysis: Analysis, trainings: tuple[Training, ...]) -> tuple[Repeated, ...]:
    """What could be computed twice in trainings that add up gradients over tiny batches."""
    files = list(analysis.execution.modules.values())
    if any(_ENABLED.search(re.sub(r"#.*", "", each.text)) for each in files if "checkpoint" in each.text):
        return ()
    frozen = any("peft" in each.text or "requires_grad" in each.text for each in files)
    why = "part of the model is frozen, and its inputs would have to take gradients for it" if frozen else None
    return tuple(each for training in trainings for each in _in_training(analysis, training, why))


def _in_training(analysis: Analysis, training: Training, why_not: str | None) -> Iterator[Repeated]:
    given = [training.argument(name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")]
    size, many = (next(iter(each.values), None) if each.state in ("value", "option") else None for each in given)
    sites = {model.site for model in training.models}
    events = [each for each in analysis.facts.of("make") if analysis.facts.site(each) in sites]
    made = [each for event in events for each in members(event.result)]
    known = all(isinstance(each, Made) and each.qualname.startswith("transformers.") for each in made)
    if isinstance(size, int) and isinstance(many, int) and 1 <= size <= _SMALL and many > 1 and made and known:
        said = f"batches of {size}, of which {many} make up an update"
        evidence = Evidence(said, given[0].edit_at or given[0].site or training.site)
        yield Repeated(training.site, training.models[0].name or "the model", (evidence,), why_not)
