"""Build a loader, its data or a criterion once, not in every round of a loop.

Why slow
    A loader that is built in every epoch cannot keep its workers, and its data are read again. A criterion that is
    built in every step costs the host a module, and its class weights a copy to the GPU.

Example
    ::

        for epoch in range(epochs):
            train_set = MNIST("data", train=True, transform=ToTensor())
            train_loader = DataLoader(train_set, batch_size=64, shuffle=True)

Use instead
    ::

        train_set = MNIST("data", train=True, transform=ToTensor())
        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
        for epoch in range(epochs):

    The statements move as they are, out of all loops that change nothing they read.

When refused
    Nothing is said where something that is read changes in the loop (the epoch, a fold). It is refused

    - where the construction may read or draw: a data set of the project's own, ``random_split``, a folder of images;
    - where a sampler copies or counts what it is given (``WeightedRandomSampler``, ``DistributedSampler``);
    - where the data may grow or change in place while the loop runs;
    - where a comment on its lines may say why, or a function that reads it builds it;
    - for ``next(iter(loader))`` in every step: an iterator that goes on draws no sample twice in a pass;
    - for a transform of sounds that computes filters for each item (``torchaudio.transforms.Resample(rate, 16000)``).

Risk
    exact: a loader draws when it is read, and a criterion without state gives the same. Where workers shall stay
    (``persistent_workers``) it is equivalent: they draw on where they would have begun anew.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_loop
from turbofix.training.model import Rebuilt, TrainingProgram

from ._loaders import called, is_built_each_time, is_in_the_way, is_inside

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    known_as=("loader rebuilt in every epoch",),
    assumes=(READ_WHOLE,),
)


@dataclass(frozen=True)
class Plan:
    """The statements that move, and the loop in front of which they go."""

    statements: tuple[Site, ...]
    above: Site


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """What loops build anew in every round."""
    if not program.trains:
        return
    for each in program.rebuilt:
        message = f"`{each.name}` is built anew in every {round_of(program, each)}{consequence(each)}"
        seen = (Evidence("the loop that builds it", each.loop), Evidence("built", each.site))
        risk = Risk.EQUIVALENT if each.lasting else Risk.EXACT
        plan, worth = Plan(each.statements, each.above), Worth.SMALL if each.cheap else None
        yield codemod.offer(each.site, message, each.why_not, plan=plan, risk=risk, evidence=seen, worth=worth)
    for step in program.steps:  # what reads a loader builds it, out of the loop over epochs
        for loader in filter(None, map(program.loader, step.loaders)):
            within = step.function is not None and is_inside(loader.site, step.function)
            looped = step.epoch_loop is not None and is_inside(loader.site, step.epoch_loop.site)
            if is_built_each_time(loader) and within and not looped:
                message = f"{called(loader)} is built anew for each pass over its data: its workers cannot stay"
                reason = "where its data stay the same, build it once, above the loop over epochs, and hand it in"
                yield codemod.refuse(loader.site, message, reason)
    yield from first_batches(program)


def round_of(program: TrainingProgram, each: Rebuilt) -> str:
    """What one round of its loop is."""
    if any(step.loop.site == each.loop for step in program.steps):
        return "training step"
    if any(evaluation.loop.site == each.loop for evaluation in program.evaluations):
        return "step of the evaluation"
    return "epoch" if any(step.epoch_loop and step.epoch_loop.site == each.loop for step in program.steps) else "round"


def consequence(each: Rebuilt) -> str:
    """What that costs."""
    if each.kind == "loader":
        return ", with its data" if each.data else ": its workers cannot stay"
    return ""


def first_batches(program: TrainingProgram) -> Iterator[Refusal]:
    """Loaders that every training step asks for a first batch."""
    for step in program.steps:
        for asked, site in step.first_batches:
            loader = program.loader(site)
            if loader is None:
                continue
            message = f"{called(loader)} is started anew in every training step for one batch, its workers too"
            reason = "keep one iterator, and start it anew when it ends: it draws no sample twice in a pass"
            if not is_in_the_way(loader.argument("shuffle")) and loader.argument("sampler").state == "absent":
                reason = (
                    "without shuffling it is the same batch in each step: take it once, above the loop, if you mean it"
                )
            seen = (of_loop(step), Evidence("asked here", asked), Evidence("built", loader.site))
            yield codemod.refuse(asked, message, reason, risk=Risk.RECIPE, evidence=seen)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Move the statements in front of the loop."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    lines: list[str] = []
    for site in plan.statements:
        first, *more = edit.text(site).splitlines()
        if any(mark in line for line in (first, *more) for mark in ('"""', "'''")):
            raise Refuse("a text that may have several lines stands in it")
        indent = " " * site.column
        lines += [first, *(line.removeprefix(indent) for line in more)]
    edit.before(plan.above, *lines)
    for site in plan.statements:
        edit.delete(site)
