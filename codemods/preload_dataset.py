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
    left to the loader as it was; windows that overlap are measured, and kept, each by itself. The copies in the loop
    find their tensors on the device and do nothing. A loop that reads its batches on the host gets them there. Windows
    that are stacked one by one (``torch.stack([data[i : i + n] for i in starts])``) become one indexing of the data.

    A batch that an agent draws out of its memory (``zip(*random.sample(self.memory, size))``) is put together item by
    item, too. ``Columns``, a class that is put into the file, keeps each part of the items in an array, and draws the
    same ones: out of a ``deque`` of a length, or a list in which the oldest item is replaced.

    Pictures of a data set of torchvision's that are cropped and mirrored by chance (``RandomCrop``,
    ``RandomHorizontalFlip``, ``RandomVerticalFlip``) are made once, with the border that they are cropped out of.
    Classes that are put into the file take the place of these transforms: they draw for each picture of a batch.

    A loader of nothing but numbers, right in the loop that indexes tensors by them (``DataLoader(range(n), 65536,
    shuffle=True)``), is handed to ``numbered``, which cuts the same batches out of one tensor.

When refused
    It speaks of data that are read in several epochs: a ``TensorDataset``, pairs in a list, torchvision's small sets,
    columns that ``datasets`` gives as tensors, a class of the script whose items read no files and draw nothing by
    chance (files and texts: see ``cache-preprocessing``).
    Of what is drawn by chance, pictures that are cropped and mirrored are taken, where their transforms stand in a list
    beside the loader and nothing else reads them: other random transforms are named.
    A memory is left alone where its class does more with it than to add items, to count and to draw them, or where what
    it gives is stacked as tensors.
    It is refused where the data change with their items, where a loader is built anew in every round, where its
    ``collate_fn`` does more than to stack, and where texts are among the items.

Risk
    exact: the same batches in the same order, of the same bits. Equivalent where pictures are cropped or mirrored: each
    by a draw of its own as before, but of another sequence (``verify`` gives both programs the same draws). Equivalent,
    too, where workers stayed for all passes (``persistent_workers``): without them each pass draws a number more, and
    the second comes in another order.

Measured
    Data sets were not measured in isolation. A batch of 256 out of an agent's memory, of two states of 24 numbers and
    three numbers beside them, took a CPU 0.2 ms instead of 0.4 ms (``np.array``) or 1.3 ms (``np.stack``). The batches
    of 200,000 numbers, 1024 each, took a busy one 0.03 s instead of 0.5 s.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import ALIKE_ITEMS, SAME_FORMULA, SAME_ITEMS
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.evidence import of_data, of_loader
from turbofix.training.model import Preload, TrainingProgram

from ._listed import made_at_once
from ._loaders import ONCE, called, is_in_the_way, is_read_once, unfollowed
from ._once import ROOM, take_whole
from ._replayed import of_numbers, replayed

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    known_as=("data on the GPU", "TensorDataset"),
    assumes=(SAME_ITEMS, SAME_FORMULA, ALIKE_ITEMS),
    worth=Worth.HIGH,
)


PREPARED = "its items are made of files or texts: `cache-preprocessing` tells whether they can be kept"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loaders that stack the same items anew in every epoch."""
    yield from made_at_once(codemod, program)
    yield from replayed(codemod, program)
    numbered = {each.site: each for each in of_numbers(codemod, program)}
    yield from numbered.values()
    for preload in program.preloads:
        loader = program.loader(preload.loader)
        if loader is None or preload.heavy:
            continue
        arrow = (loader.dataset.qualname or "").startswith("datasets.")
        lies = "on the GPU" if loader.dataset.on_device else "in an Arrow table" if arrow else "in memory"
        copied = preload.on_device and not loader.dataset.on_device and loader.copies
        message = f"{called(loader)} stacks its batches item by item, of what lies {lies}"
        message += ", and each is copied to the GPU" if copied else ""
        if program.target.gpus > 1:
            yield codemod.refuse(loader.site, message, "several processes share out its samples by their numbers")
            continue
        message += ROOM
        if preload.augment is not None:
            message += ", and changed at random in whole batches, each picture by a draw of another sequence"
        seen = (*of_loader(program, loader, "batch_size"), *of_data(loader))
        # (workers that stay have drawn the seed of their pass once, others draw one for each: it moves the sequence on)
        others = preload.augment is not None or is_in_the_way(loader.argument("persistent_workers"))
        risk = Risk.EQUIVALENT if others else Risk.EXACT
        worth = Worth.SOME if loader.role == "evaluation" else Worth.HIGH
        why = preload.why_not or (ONCE if is_read_once(program, loader) else None)
        yield codemod.offer(
            loader.site, message, why, plan=preload, risk=risk, evidence=seen, assumes=(SAME_ITEMS,), worth=worth
        )
    told = {*numbered, *(each.loader for each in program.preloads if not each.heavy)}
    for loader in program.loaders:
        if loader.role in ("training", "both") and loader.site not in told:
            message = f"each pass over {called(loader)} makes its batches anew"
            prepared = any(each.loader == loader.site for each in program.preloads)
            why = PREPARED if prepared else unfollowed(program, loader)
            yield codemod.refuse(loader.site, message, why, evidence=of_data(loader))


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Hand the loader to a function that makes its items once."""
    plan = finding.plan
    assert isinstance(plan, Preload)
    take_whole(plan, edit)
