"""Make the items of data in memory once, and take whole batches of them, from the GPU where they fit.

Why slow
    A loader asks its data for one sample after the other, and stacks a batch of them: hundreds of small operations in
    Python for each step, and a copy to the GPU that waits for them, for what is one indexing of a tensor.

Example
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device), targets.to(device)

Use instead
    ::

        train_loader = preloaded(DataLoader(train_set, batch_size=64, shuffle=True))

    ``preloaded``, a function that is put into the file, asks for every item once, measures them, and gives a loader of
    the same batches in the same order, which indexes tensors: on the GPU where they take an eighth of its free memory
    at most, else on the host. What takes more than that and more than two gigabytes, and items that are no tensors, are
    left to the loader as it was. The copies in the loop find their tensors on the device and do nothing. A loop that
    reads its batches on the host gets them there. Batches cut by hand (``x[i : i + 64].to(device)``) are cut out of
    data that were moved before the loop, where they have room. Windows that are stacked one by one
    (``torch.stack([data[i : i + n] for i in starts])``) become one indexing of the data.

When refused
    It speaks of data in memory that are read in several epochs: a ``TensorDataset``, torchvision's small sets, a class
    of the script whose items read no files and draw nothing by chance (files and texts: see ``cache-preprocessing``).
    It is refused where the data change while the program trains, where a loader is built anew in every round (but of
    rows of tensors), where its ``collate_fn`` does more than to stack, and where the program reads ``loader.dataset``.

Risk
    exact: the same batches in the same order, of the same bits. Equivalent where workers stayed for all passes
    (``persistent_workers``): without them each pass draws a number more, and the second comes in another order.

Measured
    Not measured in isolation.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import SAME_FORMULA, SAME_ITEMS
from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.program.evidence import of_data, of_loader
from turbofix.program.model import CutByHand, Listed, Loader, Preload, TrainingProgram
from turbofix.program.preloading import HEAVY

from ._listed import made_at_once, write
from ._loaders import ONCE, ONE_PASS, called, is_in_the_way, is_read_once, trains_again
from ._once import ROOM, put_moved, take_whole

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    known_as=("data on the GPU", "TensorDataset"),
    assumes=(SAME_ITEMS, SAME_FORMULA),
    worth=Worth.HIGH,
)


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loaders that stack the same items anew in every epoch."""
    yield from made_at_once(codemod, program)
    if program.moved_once is not None:
        yield codemod.in_place(program.moved_once, "the data are brought to the GPU once, before the training")
    again = {each.site for each in program.moved_again}
    for cut in (each for each in program.cut_by_hand if each.site not in again):
        message = f"batches are cut out of `{cut.name}` and copied to the GPU one by one, in every epoch anew"
        where = (Evidence("copied", cut.site),)
        yield codemod.offer(
            cut.site, message, cut.why_not, plan=cut, evidence=where, assumes=(SAME_ITEMS,), worth=Worth.SOME
        )
    kept = {site for same in program.same_items if same.cached for site in same.loaders}
    for preload in program.preloads:
        loader = program.loader(preload.loader)
        if loader is None or preload.heavy or preload.loader in kept:
            continue
        lies = "on the GPU" if loader.dataset.on_device else "in memory"
        copied = (
            ", and each is copied to the GPU" if preload.on_device and lies == "in memory" and loader.copies else ""
        )
        message = f"{called(loader)} stacks its batches item by item, of what lies {lies}{copied}"
        message += "" if preload.rows else ROOM
        seen = (*of_loader(program, loader, "batch_size"), *of_data(loader))
        # (workers that stay have drawn the seed of their pass once, others draw one for each: it moves the sequence on)
        risk = Risk.EQUIVALENT if is_in_the_way(loader.argument("persistent_workers")) else Risk.EXACT
        worth = Worth.SOME if loader.role == "evaluation" else Worth.HIGH
        assumes = () if preload.certain else (SAME_ITEMS,)
        why = preload.why_not or (ONCE if is_read_once(program, loader) else None)
        yield codemod.offer(
            loader.site, message, why, plan=preload, risk=risk, evidence=seen, assumes=assumes, worth=worth
        )
    told = kept | {each.loader for each in program.preloads if not each.heavy}
    for loader in program.loaders:
        if loader.role in ("training", "both") and loader.site not in told:
            message = f"each pass over {called(loader)} makes its batches anew"
            why = untaken(loader) if trains_again(program) else ONE_PASS
            yield codemod.refuse(loader.site, message, why, evidence=of_data(loader))


def untaken(loader: Loader) -> str:
    """Why the batches of a loader of which nothing else is known are not taken as a whole."""
    if loader.dataset.kind == "iterable":
        return "its data come in a stream: keep as one tensor what fits into memory"
    if loader.dataset.random:
        return (
            "its samples are drawn at random each time: keep what they are made of as one tensor, and draw for a batch"
        )
    if HEAVY & {*loader.dataset.work}:
        return "its items come from files one by one: where the GPU has room for all, keep them there as one tensor"
    return "its data are not known to lie in memory: where they do, keep them as one tensor, and index that"


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Hand the loader to a function that makes its items once."""
    plan = finding.plan
    if isinstance(plan, CutByHand):
        move_whole(plan, edit)
        return
    if isinstance(plan, Listed):
        write(plan, edit)
        return
    assert isinstance(plan, Preload)
    take_whole(plan, edit)


def move_whole(plan: CutByHand, edit: Edit) -> None:
    """Move data to the device before the loop that cuts batches out of them."""
    helper = put_moved(edit, plan.helper)
    name = edit.free_name(f"{plan.name.rpartition('.')[2]}_whole", plan.loop)
    device = edit.quoted("cuda", plan.loop) if plan.device == "cuda" else plan.device
    data = f"{plan.makes}({plan.name})" if plan.makes else plan.name
    edit.before(plan.loop, f"{name} = {helper}({data}, {device})")
    edit.replace(plan.made, f"{name}[{edit.text(plan.chosen)}]")
