"""Keep what a dataset makes of its files and texts, instead of making it anew in every epoch.

Why slow
    A dataset that decodes, resamples, tokenises or parses in its ``__getitem__`` does so for every item in every epoch,
    in Python and, without workers, while the GPU waits. What comes of it is the same each time. A transform, tokenizer
    or model that is built for each item is read or computed anew as often.

Example
    ::

        class Clips(Dataset):
            def __getitem__(self, index):
                sound, rate = torchaudio.load(self.paths[index])
                return torchaudio.transforms.Resample(rate, 16000)(sound), self.labels[index]

Use instead
    ::

        def remembered(make):
            # keeps what a function gives for the same arguments, as long as it takes less than a gigabyte
            kept, taken = {}, 0

            def size(item):
                if hasattr(item, "element_size"):  # a tensor
                    return item.element_size() * item.nelement()
                if isinstance(item, Mapping):
                    item = list(item.values())
                parts = item if isinstance(item, (list, tuple)) else ()
                return sys.getsizeof(item) + getattr(item, "nbytes", 0) + sum(map(size, parts))

            @functools.wraps(make)
            def remember(*given, **named):
                nonlocal taken
                key = (*given, *named.items())
                if key in kept:
                    return kept[key]
                item = make(*given, **named)
                if taken < 1 << 30:
                    taken += size(item)
                    kept[key] = item
                return item

            return remember


        resample_once = functools.lru_cache(torchaudio.transforms.Resample)


        class Clips(Dataset):
            @remembered
            def __getitem__(self, index):
                sound, rate = torchaudio.load(self.paths[index])
                return resample_once(rate, 16000)(sound), self.labels[index]

    Items are made when they are first asked for. Where only a part of an item is random (a crop of a decoded clip), the
    function of the project that reads the rest is remembered. Of torchvision's small data sets (MNIST, CIFAR) whose
    transforms are not random, the loader is given a list.

When refused
    Where an item draws random numbers and no function of the project makes what comes before them; where a collate
    function or the code behind the reading changes what it was given in place; where the dataset changes with its items
    or is changed while the program trains; where worker processes that end with each epoch would forget what they kept;
    where the function has a decorator already. A transform that is built of what changes from item to item, in a list
    or a dict, is refused, too. Nothing is said of trainings of one epoch.

Risk
    exact: the batches hold the same numbers. With workers that stay, each keeps items of its own.

Measured
    Loading alone, of 4000 texts of 300 words that a regular expression takes apart: 5.4 s in an epoch without, 0.13 s
    with it from the second one on (a run of our own, on one CPU core). What it is to a training depends on how much of
    a step the main process spends on its items; ``turbofix verify`` measures it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from turbofix.assumptions import SAME_ITEMS
from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.program.evidence import of_loader
from turbofix.program.model import BuiltAgain, Listed, Loader, SameItems, TrainingProgram

from ._loaders import put_above

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    after=("dynamic-padding", "loader-workers", "preload-dataset"),
    known_as=("tokenize once", "cached items"),
    assumes=(SAME_ITEMS,),
    worth=Worth.HIGH,
)


DOES = {
    "sound": "reads and filters the same sounds",
    "pictures": "decodes and resizes the same pictures",
    "texts": "takes the same texts apart",
    "files": "reads the same files",
    "tables": "cuts the same rows out of a table",
}

FORGET = "worker processes that end with each epoch forget what they kept: pass `persistent_workers=True` first"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Datasets that do the same for an item in each epoch, and what they build anew for each."""
    for same in program.same_items:
        loaders = [loader for site in same.loaders if (loader := program.loader(site)) is not None]
        forgets = bool(loaders) and all(map(loses_workers, loaders))
        if same.cached and not forgets:
            yield codemod.in_place(same.site, f"`{same.name}` keeps the items that it has made")
            continue
        message = f"`{same.name}` {DOES[same.work[0]]} in every epoch"
        seen = tuple(each for loader in loaders[:1] for each in of_loader(program, loader, "num_workers"))
        reason = same.why_not or (FORGET if forgets else None)
        if reason is not None:
            yield codemod.refuse(same.site, message, reason, evidence=seen)
            continue
        waits = any(loader.argument("num_workers").state == "absent" for loader in loaders)
        worth = Worth.HIGH if waits and same.work[0] != "pictures" else Worth.SOME
        yield codemod.finding(same.site, message, plan=same, evidence=seen, assumes=(SAME_ITEMS,), worth=worth)
    again = any(step.passes is None or step.passes > 1 for step in program.steps)
    for listed in program.in_lists if again else ():
        loader = program.loader(listed.loader)
        if loader is None:
            continue
        message = f"the transforms of `{listed.name}`, none of them random, are done again in every epoch"
        seen = of_loader(program, loader, "num_workers")
        works = loader.argument("num_workers").state != "absent" and loader.argument("num_workers").values != (0,)
        reason = listed.why_not or ("worker processes may do so beside the training" if works else None)
        if reason is not None:
            yield codemod.refuse(listed.site, message, reason, evidence=seen)
        else:
            yield codemod.finding(
                listed.site, message, plan=listed, evidence=seen, assumes=(SAME_ITEMS,), worth=Worth.SOME
            )
    for built in program.built_again:
        message = f"`{built.name}` is built anew for each item"
        seen = (Evidence("built", built.call),)
        if built.why_not is not None:
            yield codemod.refuse(built.call, message, built.why_not, evidence=seen)
        else:
            yield codemod.finding(built.call, message, plan=built, evidence=seen, assumes=(SAME_ITEMS,))


def loses_workers(loader: Loader) -> bool:
    """Whether a loader has worker processes that end with each epoch."""
    workers, stay = loader.argument("num_workers"), loader.argument("persistent_workers")
    has = workers.state in ("value", "option") and not {0, None} & {*workers.values}
    return has and not loader.open_mapping and (stay.state == "absent" or stay.values == (False,))


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Let a function remember what it has given, or build what never changes once."""
    plan = finding.plan
    if isinstance(plan, Listed):
        edit.replace(plan.given, f"list({edit.text(plan.given)})")
        return
    if isinstance(plan, BuiltAgain):
        build_once(plan, edit)
        return
    assert isinstance(plan, SameItems)
    name = edit.free_name("remembered", plan.helper)
    wraps, measure = edit.name("functools.wraps", plan.helper), edit.name("sys.getsizeof", plan.helper)
    own = edit.quoted("nbytes", plan.helper)
    mapping = edit.name("collections.abc.Mapping", plan.helper, module="collections.abc")
    picture = (
        f"        if hasattr(item, {edit.quoted('getbands', plan.helper)}):  # a picture of PIL's",
        "            return item.width * item.height * len(item.getbands())",
    )
    put_above(
        edit,
        plan.helper,
        f"def {name}(make):",
        '    """Keep what a function gives for the same arguments, as long as it takes less than a gigabyte."""',
        "    kept, taken = {}, 0",
        "",
        "    def size(item):",
        f"        if hasattr(item, {edit.quoted('element_size', plan.helper)}):  # a tensor",
        "            return item.element_size() * item.nelement()",
        *(picture if plan.pictures else ()),
        f"        if isinstance(item, {mapping}):",
        "            item = list(item.values())",
        "        parts = item if isinstance(item, (list, tuple)) else ()",
        f"        return {measure}(item) + getattr(item, {own}, 0) + sum(map(size, parts))",
        "",
        f"    @{wraps}(make)",
        "    def remember(*given, **named):",
        "        nonlocal taken",
        "        key = (*given, *named.items())",
        "        if key in kept:",
        "            return kept[key]",
        "        item = make(*given, **named)",
        "        if taken < 1 << 30:",
        "            taken += size(item)",
        "            kept[key] = item",
        "        return item",
        "",
        "    return remember",
    )
    edit.before(plan.method, f"@{name}")


def build_once(plan: BuiltAgain, edit: Edit) -> None:
    """Look up what is built by its arguments, or build it by a function that does so once."""
    cache = edit.name("functools.lru_cache", plan.top)
    name = edit.free_name(f"{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', plan.name).lower()}_once", plan.top)
    if plan.plain:
        put_above(edit, plan.top, f"{name} = {cache}({plan.text})")
        edit.replace(plan.callee, name)
        return
    first, *more = edit.text(plan.call).splitlines()
    indent = " " * (plan.call.column - len("    return "))
    lines = [line.removeprefix(indent) for line in more]
    put_above(edit, plan.top, f"@{cache}(maxsize=None)", f"def {name}():", f"    return {first}", *lines)
    edit.replace(plan.call, f"{name}()")
