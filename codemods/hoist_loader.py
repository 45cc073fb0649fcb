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

    The statements move as they are, out of all loops that change nothing they read. A transform of sounds that
    computes filters (``torchaudio.transforms.Resample(rate, 16000)(sound)``) comes from a function that keeps it, and
    so does a ``nn.Transformer()`` that only makes a mask. ``next(iter(loader))`` goes on with one iterator.

When refused
    Nothing is said where something that is read changes in the loop (the epoch, a fold). It is refused

    - where the construction may read or draw: a data set of the project's own, ``random_split``, a folder of images;
    - where a sampler copies or counts what it is given (``WeightedRandomSampler``, ``DistributedSampler``);
    - where the data may grow or change in place while the loop runs;
    - where a comment on its lines may say why, or a function that reads it builds it;
    - for ``next(iter(loader))`` in every step where the loader does not shuffle: it is the same batch each time.

Risk
    exact: a loader draws when it is read, and a criterion without state gives the same. Where workers shall stay
    (``persistent_workers``) it is equivalent: they draw on where they would have begun anew. An iterator that goes on
    is another recipe: it draws no sample twice in a pass.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.program.evidence import of_loop
from turbofix.program.model import FirstBatch, Kept, Rebuilt, TrainingProgram
from turbofix.records import dataclass

from ._loaders import called, is_built_each_time, is_in_the_way, put_above
from ._pages import pages_of

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
        if each.why_not is not None:
            yield codemod.refuse(each.site, message, each.why_not, risk=risk, evidence=seen)
        else:
            plan = Plan(each.statements, each.above)
            worth = Worth.SMALL if each.cheap else None
            yield codemod.finding(each.site, message, plan=plan, risk=risk, evidence=seen, worth=worth)
    told = {each.site for each in program.rebuilt}
    for loader in program.loaders:
        page = pages_of(program)(loader.site)
        afar = page.loop_of(page.node(loader.site)) is None  # a function that the loop calls builds it
        if loader.role in ("training", "both") and is_built_each_time(loader) and afar and loader.site not in told:
            message = f"{called(loader)} is built anew for each pass over its data: its workers cannot stay"
            reason = "where its data stay the same, build it once, above the loop over epochs, and hand it in"
            yield codemod.refuse(loader.site, message, reason)
    for kept in program.filters:
        message = f"`{kept.kind}` computes its filters anew whenever it is built, for each item or forward pass"
        risk = Risk.EXACT
        if kept.kind == "Transformer":  # (the weights are drawn)
            message, risk = "a whole `Transformer` is built in each forward pass, only for its mask", Risk.EQUIVALENT
        made = (Evidence("built", kept.site),)
        yield codemod.finding(
            kept.site, message, plan=kept, risk=risk, evidence=made, assumes=(READ_WHOLE,), worth=Worth.SOME
        )
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


def first_batches(program: TrainingProgram) -> Iterator[Finding | Refusal]:
    """Loaders that every training step asks for a first batch."""
    for step in program.steps:
        for asked in step.first_batches:
            loader = program.loader(asked.loader)
            if loader is None:
                continue
            name = f"`{loader.name}`" if loader.name else "the loader"
            shuffle = loader.argument("shuffle")
            same = shuffle.state == "absent" and loader.argument("sampler").state == "absent"
            reason = None
            if same or (shuffle.state == "value" and not shuffle.values[0]):
                reason = (
                    "without shuffling it is the same batch in each step: take it once, above the loop, if you mean it"
                )
            elif asked.begins is None or loader.built_in_loop:
                reason = "what it is started of may be made anew as well: keep one loader and one iterator of it"
            elif is_in_the_way(loader.argument("persistent_workers")):
                reason = "its workers stay for one reader: keep one iterator, and let nothing else read the loader"
            message = f"{name} is started anew in every training step for one batch, its workers too"
            message += "" if reason else "; one iterator that goes on draws no sample twice in a pass"
            seen = (of_loop(step), Evidence("asked here", asked.site), Evidence("built", loader.site))
            yield codemod.offer(asked.site, message, reason, plan=asked, risk=Risk.RECIPE, evidence=seen)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Move the statements in front of the loop."""
    plan = finding.plan
    if isinstance(plan, FirstBatch):
        assert plan.begins is not None
        cache, name = edit.name("functools.lru_cache", plan.helper), edit.free_name("going_on", plan.helper)
        put_above(
            edit,
            plan.helper,
            f"@{cache}(maxsize=8)",
            f"def {name}(loader):",
            '    """The batches of a loader, which starts anew when it has given all of them."""',
            "    while True:",
            "        yield from loader",
        )
        edit.replace(plan.begins, name)
        return
    if isinstance(plan, Kept):
        name, cache = edit.free_name(plan.name, plan.helper), edit.name("functools.lru_cache", plan.helper)
        put_above(edit, plan.helper, f"{name} = {cache}(maxsize=8)({edit.text(plan.site)})")
        edit.replace(plan.site, name)
        return
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
