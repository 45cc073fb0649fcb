"""Keep what a dataset makes of its files and texts, instead of making it anew in every epoch.

Why slow
    A dataset that decodes, resamples, tokenises or parses in its ``__getitem__`` does so for every item in every epoch.
    Without workers the GPU waits for it, and the result is the same each time.

Example
    ::

        class Clips(Dataset):
            def __getitem__(self, index):
                sound, rate = torchaudio.load(self.paths[index])
                return torchaudio.transforms.Resample(rate, 16000)(sound), self.labels[index]

Use instead
    ::

        class Clips(Dataset):
            @remembered  # a function that is put into the script: it keeps what it gives, up to a gigabyte
            def __getitem__(self, index):

    Where nothing of an item is random and items are stacked as they are, the loader makes all of them once instead, by
    its workers, and takes whole batches (see ``preload-dataset``). Where a part of an item is random (a crop), the
    expression that reads the file is kept. Workers that end with each epoch would forget: then the loader gets
    ``persistent_workers=True``.

When refused
    - Where an item draws random numbers or changes the next ones, and reads no whole file before that: put what comes
      before it into a function of its own.
    - Where the code behind the reading changes what was read in place: let it copy first.
    - Where the dataset changes with its items, or while the program trains.
    - Where the function has a decorator already.

Risk
    exact: the batches hold the same numbers. equivalent: where workers stay, the batches come in another order from the
    second epoch on. Each worker keeps items of its own.

Measured
    Loading alone, 4000 texts of 300 words taken apart by a regular expression: 5.4 s in an epoch before, 0.13 s from
    the second one on (a run of our own, on one CPU core).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from turbofix.assumptions import SAME_ITEMS
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.evidence import of_data, of_loader
from turbofix.training.model import KeptRead, Loader, Preload, SameItems, TrainingProgram

from ._loaders import (
    ONCE,
    called,
    is_in_the_way,
    is_read_once,
    node_of,
    put_above,
    site_of,
    unfollowed,
    whole,
)
from ._once import ROOM, put_remembered, take_whole

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EXACT,
    after=("dynamic-padding", "loader-workers", "preload-dataset"),
    known_as=("tokenize once", "cached items"),
    assumes=(SAME_ITEMS,),
    worth=Worth.HIGH,
)

SAME_FILES = replace(SAME_ITEMS, sentence="the files that are read do not change while it trains")

DOES = {
    "sound": "prepares its sounds anew",
    "pictures": "prepares its pictures anew",
    "texts": "takes its texts apart anew",
    "files": "reads its files anew",
    "tables": "cuts its rows out of a table anew",
    "items": "prepares its items anew",
}


@dataclass(frozen=True)
class Kept:
    """What is kept, and the arguments by which the workers of its loaders stay: call, name, value."""

    same: SameItems
    staying: tuple[tuple[Site, str, str], ...]


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Datasets that do the same for an item in each epoch."""
    preloads = {each.loader: each for each in program.preloads}
    told: set[Site] = set()
    for same in program.same_items:
        told |= {*same.loaders}
        yield of_class(program, same, preloads)
    for site, preload in preloads.items():
        loader = program.loader(site)
        data = (loader.dataset.qualname or "torchvision.") if loader is not None else ""
        if loader is not None and preload.heavy and site not in told and data.startswith("torchvision."):
            message = f"the data of {called(loader)} decode their pictures anew in every epoch"
            why = preload.why_not or (ONCE if is_read_once(program, loader) else None)
            seen = of_loader(program, loader, "num_workers")
            rests: dict[str, Any] = {
                "plan": (preload,),
                "evidence": seen,
                "assumes": (SAME_ITEMS,),
                "worth": Worth.SOME,
            }
            yield codemod.offer(site, message + ("" if why else ROOM), why, **rests)
    random = {loader.site for loader in program.loaders if loader.dataset.random}
    told |= {site for site, each in preloads.items() if each.why_not is None or site not in random}
    for loader in program.loaders:
        if loader.role in ("training", "both") and loader.site not in told:
            message = f"each pass over {called(loader)} makes its samples anew"
            yield codemod.refuse(loader.site, message, unfollowed(program, loader), evidence=of_data(loader))


def of_class(program: TrainingProgram, same: SameItems, preloads: Mapping[Site, Preload]) -> Finding | Refusal:
    """What is said of one class of datasets."""
    if same.done is not None:
        return codemod.refuse(same.site, same.done, same.why_not or "")
    loaders = [loader for site in same.loaders if (loader := program.loader(site)) is not None]
    leaving = [loader for loader in loaders if loses_workers(loader)]
    message = f"`{same.name}` {DOES['files' if same.reads else same.work[0]]} in every epoch"
    seen = tuple(each for loader in loaders[:1] for each in of_loader(program, loader, "num_workers"))
    waits = any(loader.argument("num_workers").state == "absent" for loader in loaders)
    worth = Worth.HIGH if waits and same.work[0] not in ("pictures", "items") else Worth.SOME
    # (workers that stay do not see a change)
    why = same.why_not or next(filter(None, (each.dataset.stateful for each in leaving)), None)
    again = leaving or [loader for loader in loaders if not is_read_once(program, loader)]
    at_once = [preloads[each.site] for each in again if each.site in preloads]
    at_once = [each for each in at_once if each.why_not is None and (each.heavy or leaving)]
    sizes = [each.argument("batch_size") for each in again]  # (one by one, items may have any size)
    several = not any(each.state == "absent" or 1 in each.values for each in sizes)
    told: dict[str, Any] = {"evidence": seen, "assumes": (SAME_FILES if same.reads else SAME_ITEMS,), "worth": worth}
    if same.why_not is None and not same.reads and several and at_once and len(at_once) == len(again):
        stayed = any(is_in_the_way(each.argument("persistent_workers")) for each in again)
        risk = Risk.EQUIVALENT if stayed else Risk.EXACT
        return codemod.finding(same.site, message + ROOM, plan=tuple(at_once), risk=risk, **told)
    message += "; up to a gigabyte of it is kept" * (why is None)
    stay = leaving if leaving == loaders else [each for each in leaving if not each.unpacks]
    risk = Risk.EQUIVALENT if leaving else Risk.EXACT  # (the order of the second pass on is another one)
    return codemod.offer(same.site, message, why, plan=Kept(same, tuple(map(staying, stay))), risk=risk, **told)


def loses_workers(loader: Loader) -> bool:
    """Whether a loader has worker processes that end with each epoch."""
    workers, stay = loader.argument("num_workers"), loader.argument("persistent_workers")
    has = workers.state in ("value", "option") and not {0, None} & {*workers.values}
    return has and not loader.open_mapping and (stay.state == "absent" or stay.values == (False,))


def staying(loader: Loader) -> tuple[Site, str, str]:
    """The argument by which the workers of a loader stay from epoch to epoch."""
    workers = loader.argument("num_workers")
    always = workers.state == "value" or workers.text is None
    return loader.site, "persistent_workers", "True" if always else f"{workers.text} > 0"


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Let a function remember what it has given."""
    plan = finding.plan
    if isinstance(plan, tuple):
        for each in plan:
            take_whole(each, edit)
        return
    assert isinstance(plan, Kept)
    kept, plan = plan, plan.same
    for loader in kept.staying:
        edit.argument(*loader, spelled_out=True)
    name = put_remembered(edit, plan.helper, pictures=plan.pictures)
    known: dict[str, str] = {}
    for read in plan.reads:
        keep_read(read, name, known, edit)
    if not plan.reads:
        method = node_of(edit, plan.method)
        static = method.decorator_list if isinstance(method, ast.FunctionDef) else []
        edit.before(plan.method, "@staticmethod" if static else f"@{name}")
        for each in static:  # (what is kept is the function, not the method)
            edit.replace(site_of(each, plan.method.path, whole(edit, plan.method)), name)


def keep_read(read: KeptRead, keep: str, known: dict[str, str], edit: Edit) -> None:
    """Let a function that remembers read a file; ``known`` are those that there are, by what they do."""
    does = re.sub(r"'([^'\"\\]*)'", lambda text: edit.quoted(text[1], read.site), read.definition)
    does = does or edit.text(read.callee)
    if does not in known:
        known[does] = name = edit.free_name(f"{read.name}_once", read.top, known.values())
        lines = [f"@{keep}", f"def {name}({', '.join(read.parameters)}):", f"    return {does}"]
        put_above(edit, read.top, *(lines if read.definition else [f"{name} = {keep}({does})"]))
    given = ", ".join(map(edit.text, read.given))
    if read.definition:
        edit.replace(read.site, f"{known[does]}({given})" + (f".{read.copied}()" if read.copied else ""))
    else:
        edit.replace(read.callee, known[does])
        if read.copied:
            edit.insert_after(read.site, f".{read.copied}()")
