"""What an agent remembers, in arrays; and numbers by which tensors are indexed, in one tensor."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import ALIKE_ITEMS
from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, Site, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_loader
from turbofix.training.model import Remembered, TrainingProgram

from ._loaders import called, put_above
from ._once import put_columns


@dataclass(frozen=True)
class InArrays(SharedPlan):
    """A memory, with the texts of what reads a batch of it."""

    memory: Remembered

    def write(self, place: Site, edit: Edit) -> None:
        """Put another memory in its place."""
        edit.replace(self.memory.made, f"{put_columns(edit, self.memory.above)}({self.memory.size})")
        for site, text in self.memory.becomes:
            edit.replace(site, text)


@dataclass(frozen=True)
class Numbered(SharedPlan):
    """A loader of numbers, and the statement above which the function that cuts its batches goes."""

    loader: Site
    above: Site

    def write(self, place: Site, edit: Edit) -> None:
        """Hand it to a function that makes its batches at once."""
        edit.replace(self.loader, f"{put_numbered(edit, self.above)}({edit.text(self.loader)})")


def replayed(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding]:
    """The batches that a step draws out of a memory of tuples, which could lie in arrays."""
    for each in program.remembered:
        message = (
            "a batch is put together of items that lie in a list one by one, in every step; in arrays, one for each"
        )
        message += " part of an item, it is one indexing of each"
        seen = (Evidence("the memory", each.made),)
        yield codemod.finding(
            each.site, message, plan=InArrays(each), evidence=seen, assumes=(ALIKE_ITEMS,), worth=Worth.SOME
        )


def of_numbers(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding]:
    """The loaders of numbers that a training loop is built over."""
    for loader in program.loaders:
        above = program.numbered.get(loader.site)
        if above is not None and loader.role in ("training", "both") and loader.subclass is None:
            message = f"{called(loader)} gives numbers, which it collects and makes a tensor of one by one"
            seen = of_loader(program, loader, "batch_size")
            plan = Numbered(loader.site, above)
            yield codemod.finding(loader.site, message, plan=plan, evidence=seen, worth=Worth.SOME)


def put_numbered(edit: Edit, above: Site) -> str:
    """Define the function that cuts the batches of a loader of numbers out of one tensor, and return its name."""
    name = edit.free_name("numbered", above)
    empty, whole, count, draw, seeded = (
        edit.name(f"torch.{each}", above) for each in ("empty", "int64", "arange", "randperm", "Generator")
    )
    shuffles = edit.name("torch.utils.data.RandomSampler", above)
    seed = f"{empty}((), dtype={whole}).random_()"
    put_above(
        edit,
        above,
        f"def {name}(loader):",
        '    """The batches of a loader of numbers, in its order, cut out of one tensor."""',
        f"    {seed}  # as the loader draws one for its workers",
        f"    if isinstance(loader.sampler, {shuffles}):",
        f"        order = {draw}(len(loader.dataset), generator={seeded}().manual_seed({seed}.item()))",
        "    else:",
        f"        order = {count}(len(loader.dataset))",
        "    return order.split(loader.batch_size)[: len(loader)]",
        below=True,
    )
    return name
