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
    Nothing is said where the loop sets something that is read (the epoch, a fold) or trains another model in each
    round. It is refused where the data are handed to other calls of the loop, where a comment may say why, where a
    function that reads the loader builds it, and for ``next(iter(loader))`` in every step.

Risk
    exact: a loader draws when it is read, and a criterion without state gives the same. Where workers shall stay
    (``persistent_workers``) it is equivalent: they draw on where they would have begun anew.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import SAME_ITEMS
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.evidence import of_loop
from turbofix.training.model import Rebuilt, TrainingProgram

from ._loaders import called, is_built_each_time, is_inside

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    known_as=("loader rebuilt in every epoch",),
    assumes=(SAME_ITEMS,),
)

SAME_EACH_ROUND = replace(SAME_ITEMS, sentence="what is built is the same in each round, and nothing changes it")


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """What loops build anew in every round."""
    epochs = {step.epoch_loop.site for step in program.steps if step.epoch_loop is not None}
    for each in program.rebuilt:
        message = f"`{each.name}` is built anew in every {'epoch' if each.loop in epochs else 'round of a loop'}"
        message += ": its workers cannot stay" if each.kind == "loader" else ""
        yield codemod.offer(
            each.site,
            message,
            each.why_not,
            plan=each,
            risk=Risk.EQUIVALENT if each.lasting else Risk.EXACT,
            evidence=(Evidence("the loop that builds it", each.loop), Evidence("built", each.site)),
            assumes=(SAME_EACH_ROUND,),
            worth=Worth.SMALL if each.kind == "criterion" else None,
        )
    for step in program.steps:  # what reads a loader builds it, out of the loop over epochs
        for loader in filter(None, map(program.loader, step.loaders)):
            within = step.function is not None and is_inside(loader.site, step.function)
            looped = step.epoch_loop is not None and is_inside(loader.site, step.epoch_loop.site)
            if is_built_each_time(loader) and within and not looped:
                message = f"{called(loader)} is built anew for each pass over its data: its workers cannot stay"
                reason = "where its data stay the same, build it once, above the loop over epochs, and hand it in"
                yield codemod.refuse(loader.site, message, reason)
            elif loader.asked_again:
                message = f"{called(loader)} is started anew in every training step for one batch, its workers too"
                reason = "keep one iterator, and start it anew when it ends: it draws no sample twice in a pass"
                yield codemod.refuse(loader.site, message, reason, risk=Risk.RECIPE, evidence=(of_loop(step),))


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Move the statements in front of the loop."""
    plan = finding.plan
    assert isinstance(plan, Rebuilt)
    lines: list[str] = []
    for site in plan.statements:
        first, *more = edit.text(site).splitlines()
        if any(mark in line for line in (first, *more) for mark in ('"""', "'''")):
            raise Refuse("a text that may have several lines stands in it")
        indent = " " * site.column
        lines += [first, *(line.removeprefix(indent) for line in more)]
    edit.before(plan.loop, *lines)
    for site in plan.statements:
        edit.delete(site)
