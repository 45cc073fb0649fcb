"""What is said of batches that are added up, and of those whose loader was not followed."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import LEARNS_IN_LARGER
from turbofix.codemod import Codemod
from turbofix.findings import Finding, Refusal, Risk, Site, Worth
from turbofix.source.site import STUB
from turbofix.training.evidence import of_loader, of_value
from turbofix.training.model import Accumulation, Argument, Loader, Step, TrainingProgram

from ._batches import (
    ENOUGH,
    ENOUGH_TOLD,
    NAMED,
    NARROW,
    OTHER_RATE,
    PERHAPS_FEW,
    SMALL,
    TINY,
    TOO_FEW,
    Bounds,
    Plan,
    factor_of,
    joined,
    norm_of,
    one_number,
    place,
    why_not_written,
)
from ._loaders import is_inside, said_beside
from ._options import on_defaults


def accumulated(  # noqa: PLR0913
    codemod: Codemod,
    program: TrainingProgram,
    loader: Loader,
    steps: list[Step],
    by: Accumulation | Argument,
    sizes: Bounds,
) -> Iterator[Finding | Refusal]:
    """Steps that sum the gradients of several small batches, ``by`` their own lines or a framework's argument."""
    size, small, enough = sizes
    batch, own = loader.argument("batch_size"), isinstance(by, Accumulation)
    sums = by.steps if isinstance(by, Accumulation) else by
    many, joins = one_number(sums), 0 < size <= max(NARROW, small) and one_number(batch) == size
    factor = factor_of(size, many, max(ENOUGH, enough)) if many is not None and joins else 1
    if many is None and size <= (TINY if own else small):
        message = f"every update takes several forward and backward passes over batches of {size}: fewer may do"
        unseen = "how many batches add up is not written down: change it, and the batch, where they are worked out"
        yield codemod.refuse(place(loader), message, unseen)
    if many is None or factor == 1:
        return
    message = joined(size, many, factor) + said_beside(batch, sums)
    counted = by.guard if isinstance(by, Accumulation) else sums.site or loader.site
    seen = (*of_loader(program, loader, "batch_size"), of_value("the number of accumulated batches", sums, counted))
    reason = why_not_written(batch, sums)
    if batch.edit_at is not None and batch.edit_at == sums.edit_at:
        reason = "one number says how many are read and added up: put those of one size together, and take their mean"
    elif reason is None and isinstance(by, Accumulation) and not by.divided:
        reason = "the loss is not divided by the number of accumulated batches: the gradient would shrink with it"
    norm = norm_of(program, steps)
    if norm is not None or not own:
        message += "; that changes the recipe a little: "
        message += f"{norm} sees the statistics of larger batches" if norm else "samples may not be divisible by both"
    values: list[tuple[Site, int | str]] = []
    if batch.edit_at is not None and sums.edit_at is not None:
        follows = sums.edit_at.kind == "BinOp" and any(is_inside(read, sums.edit_at) for read in batch.reads)
        values = [(batch.edit_at, size * factor), *(() if follows else ((sums.edit_at, many // factor),))]
    loops = [site for step in steps for site in (step.loop.site, *(act.function for act in step.backwards)) if site]
    yield codemod.offer(
        place(loader),
        message,
        reason,
        plan=Plan(tuple(values), tuple(loops)),
        risk=Risk.EQUIVALENT if norm is None and own else Risk.RECIPE,
        evidence=seen,
        assumes=(LEARNS_IN_LARGER, *on_defaults(batch, sums)),
        worth=Worth.SOME if size <= SMALL else Worth.SMALL,
    )


def named(codemod: Codemod, program: TrainingProgram, site: Site) -> Iterator[Refusal]:
    """What is called the size of a batch, where batches are made by what was not followed."""
    files = [module for module in program.modules.by_path.values() if module.path.suffix != STUB]
    said = [(int(found[1]), each, found.start(1)) for each in files for found in NAMED.finditer(each.text)]
    size, file, start = min((each for each in said if each[0] > 1), key=lambda each: each[0], default=(0, None, 0))
    if file is not None and size <= ENOUGH_TOLD:
        line, few = file.text.count("\n", 0, start) + 1, TOO_FEW if size <= NARROW else PERHAPS_FEW
        message = f"line {line} of {file.path.name} speaks of batches of {size} samples, {few}"
        yield codemod.refuse(site, message, f"who makes them was not followed; where larger ones fit, {OTHER_RATE}")
