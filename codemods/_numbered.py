"""Loaders of nothing but numbers, by which a step indexes tensors: ``DataLoader(range(n), 65536, shuffle=True)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.codemod import Codemod, SharedPlan
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Finding, Site, Worth
from turbofix.records import dataclass
from turbofix.source.names import dotted
from turbofix.training.evidence import of_loader
from turbofix.training.model import Loader, TrainingProgram
from turbofix.training.told.written import meaning

from ._loaders import called, put_above
from ._pages import Page, pages_of

GIVEN = {"dataset", "batch_size", "shuffle", "drop_last"}
AROUND = ("enumerate", "tqdm", "tqdm.tqdm", "iter")


@dataclass(frozen=True)
class Numbered(SharedPlan):
    """The loader, and the statement above which the function that cuts its batches goes."""

    loader: Site
    above: Site

    def write(self, place: Site, edit: Edit) -> None:
        """Hand it to a function that makes its batches at once."""
        edit.replace(self.loader, f"{put_numbered(edit, self.above)}({edit.text(self.loader)})")


def of_numbers(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding]:
    """The loaders of numbers that a training loop is built over."""
    pages = pages_of(program)
    for loader in program.loaders:
        if loader.role not in ("training", "both") or loader.collate != "default" or loader.subclass is not None:
            continue
        try:
            above = counted(pages(loader.site), loader)
        except Refuse:
            continue
        if above is not None:
            message = f"{called(loader)} gives numbers, which it collects and makes a tensor of one by one"
            seen = of_loader(program, loader, "batch_size")
            plan = Numbered(loader.site, above)
            yield codemod.finding(loader.site, message, plan=plan, evidence=seen, worth=Worth.SOME)


def counted(page: Page, loader: Loader) -> Site | None:
    """The statement above which the function goes, where a loop is right over a loader of a ``range``."""
    call = page.node(loader.site)
    if not isinstance(call, ast.Call) or not {each.arg for each in call.keywords} <= GIVEN or len(call.args) > 3:
        return None
    if meaning(call.func, page.module.tree) not in (
        "torch.utils.data.DataLoader",
        "torch.utils.data.dataloader.DataLoader",
    ):
        return None
    data = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataset")]
    sized = len(call.args) > 1 or any(each.arg == "batch_size" for each in call.keywords)
    ranged = len(data) == 1 and isinstance(data[0], ast.Call) and dotted(data[0].func) == "range"
    if not (ranged and sized) or None in loader.argument("batch_size").values:
        return None
    whole: ast.AST = call
    while (
        isinstance(above := page.parent(whole), ast.Call) and dotted(above.func) in AROUND and above.args[:1] == [whole]
    ):
        whole = above
    if not (isinstance(above, ast.For) and above.iter is whole):
        return None
    body = page.module.tree.body
    top = next(each for each in body if page.holds(each, call))
    return page.site(next((each for each in body if isinstance(each, (ast.ClassDef, ast.FunctionDef))), top))


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
