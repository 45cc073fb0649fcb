"""Keep what a dataset makes of its texts, instead of making it anew in every epoch.

Why slow
    A dataset that tokenises in its ``__getitem__`` does so for every item in every epoch, in Python and, without
    workers, while the GPU waits. The tokens of a text are the same each time.

Example
    ::

        class Reviews(Dataset):
            def __getitem__(self, index):
                text, label = self.reviews[index]
                tokens = [self.words.get(word, 0) for word in re.findall(r"[a-z]+", text.lower())]
                return torch.tensor(tokens), label

Use instead
    ::

        def remembered(get_item):
            # keeps the items of a dataset, the same in every epoch, as long as they take less than a gigabyte
            items, taken = {}, 0

            def size(item):
                if isinstance(item, Mapping):
                    item = list(item.values())
                parts = item if isinstance(item, (list, tuple)) else ()
                return sys.getsizeof(item) + getattr(item, "nbytes", 0) + sum(map(size, parts))

            @functools.wraps(get_item)
            def remember(self, index):
                nonlocal taken
                if (self, index) in items:
                    return items[self, index]
                item = get_item(self, index)
                if taken < 1 << 30:
                    taken += size(item)
                    items[self, index] = item
                return item

            return remember


        class Reviews(Dataset):
            @remembered
            def __getitem__(self, index):
                text, label = self.reviews[index]
                tokens = [self.words.get(word, 0) for word in re.findall(r"[a-z]+", text.lower())]
                return torch.tensor(tokens), label

    Items are made when they are first asked for. (``functools.lru_cache`` does the same for a number of items, whatever
    they take.)

When refused
    It is done for datasets of the project's own whose items are made of a text (by a tokenizer of a library, ``re``,
    ``split``, ``lower``), by calls each of which is known to give the same for the same arguments: what an item is
    made of is set in ``__init__`` and changed nowhere, under whatever name, nor given to what may change it. Random
    numbers, files that are read, iterators, attributes that are written, data that grow, and calls that are not known:
    nothing is said.

    Nor is anything said where the loader has worker processes: each would keep items of its own and forget them at the
    end of the epoch, or never find them again, since the next epoch gives them to another one. ``loader-workers``,
    which goes first, adds them where it can. Nothing is said of trainings of one epoch, under frameworks, and of
    pictures, of which a gigabyte holds few.

    It is refused where somebody may change the items in place: a collate function of the project's own, a loop or an
    index on the dataset itself, a class that derives from it; and where the loader makes no batches or has a sampler.

Risk
    exact: the batches hold the same numbers. torch's own collate function copies them out of the items.

Measured
    Loading alone, of 4000 texts of 300 words that a regular expression takes apart: 5.4 s in an epoch without, 0.13 s
    with it from the second one on (a run of our own, on one CPU core). What it is to a training depends on how much of
    a step the main process spends on texts; ``turbofix verify`` measures it.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk
from turbofix.program.evidence import of_loader
from turbofix.program.model import Framework, Loader, SameItems, TrainingProgram

from ._loaders import whole

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    after=("dynamic-padding", "loader-workers", "preload-dataset"),
    known_as=("tokenize once", "cached items"),
)


SINCE = (2, 1)
"""The torch whose tensors say how many bytes they take."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Datasets that take the same texts apart in each epoch."""
    if program.framework is not Framework.PYTORCH or program.target.torch < SINCE:
        return
    for same in program.same_items:
        if same.cached:
            yield codemod.in_place(same.method, f"`{same.name}` keeps the items that it has made")
            continue
        loaders = [loader for site in same.loaders if (loader := program.loader(site)) is not None]
        if len(loaders) != len(same.loaders) or not all(map(has_none, loaders)):
            continue
        message = f"`{same.name}` takes the same texts apart in every epoch, which the training waits for"
        seen = (Evidence("a text is taken apart", same.work), *of_loader(program, loaders[0], "num_workers"))
        reason = why_not(same, loaders)
        if reason is not None:
            yield codemod.refuse(same.method, message, reason, evidence=seen)
        else:
            yield codemod.finding(same.method, message, plan=same, evidence=seen)


def has_none(loader: Loader) -> bool:
    """Whether a loader loads in the training process, unless the user of the script says otherwise."""
    workers = loader.argument("num_workers")
    given = workers.state in ("value", "option") and workers.values == (0,)
    return not loader.open_mapping and loader.subclass is None and (workers.state == "absent" or given)


def why_not(same: SameItems, loaders: list[Loader]) -> str | None:
    """Who may change the items in place, or why keeping them gains nothing."""
    for loader in loaders:
        name = f"`{loader.name}`" if loader.name else "the loader"
        if loader.collate != "default":
            return f"the collate function of {name} is given the items themselves, and may change them in place"
        size = loader.argument("batch_size")
        if size.state == "unknown" or None in size.values:
            return f"{name} may hand out the items themselves, and not batches"
        if loader.argument("sampler").state != "absent" or loader.argument("batch_sampler").state != "absent":
            return f"{name} has a sampler, whose indices need not be numbers"
    return same.why_not


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Let ``__getitem__`` remember what it has given."""
    plan = finding.plan
    assert isinstance(plan, SameItems)
    name = edit.free_name("remembered", plan.helper)
    wraps, measure = edit.name("functools.wraps", plan.helper), edit.name("sys.getsizeof", plan.helper)
    own = edit.quoted("nbytes", plan.helper)
    mapping = edit.name("collections.abc.Mapping", plan.helper, module="collections.abc")
    lines = [
        f"def {name}(get_item):",
        '    """Keep the items of a dataset, the same in every epoch, as long as they take less than a gigabyte."""',
        "    items, taken = {}, 0",
        "",
        "    def size(item):",
        f"        if isinstance(item, {mapping}):",
        "            item = list(item.values())",
        "        parts = item if isinstance(item, (list, tuple)) else ()",
        f"        return {measure}(item) + getattr(item, {own}, 0) + sum(map(size, parts))",
        "",
        f"    @{wraps}(get_item)",
        "    def remember(self, index):",
        "        nonlocal taken",
        "        if (self, index) in items:",
        "            return items[self, index]",
        "        item = get_item(self, index)",
        "        if taken < 1 << 30:",
        "            taken += size(item)",
        "            items[self, index] = item",
        "        return item",
        "",
        "    return remember",
        "",
        "",
    ]
    above = whole(edit, plan.helper).splitlines()[: plan.helper.line - 1]
    if above and above[-1].strip() and not above[-1].lstrip().startswith(("#", "@")):
        lines = ["", "", *lines]
    edit.before(plan.helper, *lines, above_comments=True)
    edit.before(finding.site, f"@{name}")
