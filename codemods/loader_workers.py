"""Prepare batches in worker processes, beside the training.

Why slow
    Without workers the training process itself reads, decodes and collates every batch, and the GPU waits meanwhile.
    Workers that are started anew in each epoch cost their start each time; ``persistent_workers`` keeps them.

Example
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)

Use instead
    ::

        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        train_loader = DataLoader(
            train_set, batch_size=64, shuffle=True,
            num_workers=min(16, cpus), persistent_workers=True, prefetch_factor=4,
        )

    The CPUs are shared between ranks and the loaders that one loop reads at once. An option or a constant that holds
    the number gets another default; a configuration file, which cannot count, is told 8. Less than eight are too
    few where files are decoded or text is tokenised. A script that trains at module level gets its guard. Where a
    worker could not be spawned there are workers only where processes are forked (``... if forks else 0``). The
    ``Trainer`` of transformers has settings for it (``dataloader_num_workers``).

When refused
    What no run of the script would show: an ``IterableDataset`` that every worker would yield whole, samples drawn from
    a generator of the dataset's own, files that forked workers would share, a dataset that is changed from batch to
    batch (from epoch to epoch: workers are not kept). Work on the GPU in the dataset or collate function is refused,
    and samples that are tensors in memory already, a number that is passed by the user, read for something else, or
    given a reason by a comment, and mappings that could not be read.
    Nothing is said of a handful of samples, and of loader classes of other libraries.

Risk
    equivalent: the same samples and batches. Random numbers that are drawn for each sample come from the worker's own
    generator, and persistent workers change the shuffle from the second epoch on.

Measured
    Not measured in isolation: no trustworthy figure for worker counts was found. Measure with ``turbofix verify``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import ON_GPU, PICKLED, SAME_ITEMS, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.source.datafile import is_data
from turbofix.source.names import dotted
from turbofix.training.evidence import of_data, of_loader
from turbofix.training.model import (
    Argument,
    Dataset,
    Framework,
    Loader,
    Region,
    SetLater,
    Training,
    TrainingProgram,
)

from ._copies import is_kept
from ._guard import changed_in, left_behind, on_gpu_above
from ._loaders import (
    SMALL_IMAGES,
    at,
    called,
    comment_above,
    copies_itself,
    dict_of,
    earlier_in_its_block,
    gives_reason,
    is_built_each_time,
    is_read_again,
    mend_help,
    reason_beside,
    said_beside,
    whole,
)
from ._pages import pages_of
from ._trainers import LOADING, on_gpu
from ._trainers import evidence as settings
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    after=("preload-dataset",),
    known_as=("num_workers", "persistent_workers", "prefetch_factor"),
    assumes=(SAME_ITEMS, PICKLED, ON_GPU),
    worth=Worth.HIGH,
)

MOST = 16
FEW = 8
"""Half of the CPUs that a rank has on a machine for training: fewer workers than that cannot keep up with decoding. A
configuration file, which cannot count CPUs, is told so many."""
PASSING_ON = ("torch_geometric.", "dgl.dataloading.")
"""Libraries whose loaders give torch's the arguments that are not their own: their data may be read from files."""

TRAINERS = "dataloader_"
"""How the settings of transformers' trainer for its loaders begin."""

WORDS = ("sched_getaffinity", "LOCAL_WORLD_SIZE")
SMALL_BATCH = 64
HANDFUL = 64
SHORT_EPOCH = 10_000
KEEPING = (Framework.ACCELERATE, Framework.FABRIC, Framework.LIGHTNING)
"""The frameworks that make the script's loaders anew, and keep their workers."""

HEAVY = {"decode": "files are decoded", "tokenize": "text is tokenised"}
WORK = {**HEAVY, "read": "files are read", "transform": "samples are transformed", "compute": "samples are computed"}


@dataclass(frozen=True)
class Extra:
    """What one loader gets beside the number.

    ``number`` is where the call or the mapping that it unpacks names the number; None where the number is added.
    ``entry``: that stands in a mapping. ``persistent``: keep the workers. ``closed``: what the call unpacks holds
    nothing of it.
    """

    call: Site
    number: Site | None
    entry: bool
    persistent: bool
    prefetch: bool
    closed: bool = False


@dataclass(frozen=True)
class Plan:
    """``values`` are where the number stands; none where it is added to the call, or stays as it is (not ``counted``).

    ``anchors`` are all places of this file where a number goes: they share one line that counts the CPUs.
    ``devices``: as many ranks as there are GPUs may share the CPUs. ``share``: as many loaders, read by one loop,
    divide the number among them. ``prefix``: how the names of the arguments begin. ``forked``: there are workers only
    where processes are forked; else the statements ``unguarded`` get a guard.
    """

    values: tuple[Site, ...]
    counted: bool
    extras: tuple[Extra, ...]
    anchors: tuple[Site, ...] = ()
    ranks: bool = False
    devices: bool = False
    unguarded: Region | None = None
    forked: bool = False
    share: int = 1
    prefix: str = ""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loaders without workers, with too few of them, or that start them anew in each of their short epochs."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework not in KEEPING and not copies_itself(program):
        return
    waiting: list[Site] = []
    judged = [each for each in program.loaders if each.role != "unused"]
    yield from (codemod.refuse(each.site, *said_elsewhere(each)) for each in judged if is_told_elsewhere(each))
    judged = [each for each in judged if not each.open_mapping]
    for loader in judged:
        few = has_none(loader.argument("num_workers")) or has_too_few(loader)
        own = loader.subclass is None or (loader.subclass.startswith(PASSING_ON) and "read" in loader.dataset.work)
        if own and few and worth(program, loader) is not None:
            waiting.append(place(loader))
    restarting: dict[Site, list[Loader]] = {}
    for loader in judged:
        workers = loader.argument("num_workers")
        if place(loader) in waiting or has_none(workers):
            continue
        # of one of another library it is not known what it does with workers, but it has them
        if restarts(program, loader):
            restarting.setdefault(loader.mapping_entries.get("num_workers", loader.site), []).append(loader)
        if has_any(workers):
            yield codemod.in_place(loader.site, f"{called(loader)} loads with {numbers(workers)}")
    fixable: dict[Site, list[Loader]] = {}
    refused: dict[tuple[str, object], list[Loader]] = {}
    for site in dict.fromkeys(waiting):
        loaders = [loader for loader in program.loaders if place(loader) == site]
        reasons = [reason for loader in loaders if (reason := why_not(program, loader)) is not None]
        if reasons:
            refused.setdefault(cause(program, loaders[0], reasons[0]), []).extend(loaders)
        else:
            fixable[site] = loaders
    for (reason, _), loaders in refused.items():
        yield codemod.refuse(place(loaders[0]), message(loaders), reason, evidence=evidence(program, loaders))
    for site, loaders in fixable.items():
        anchors = tuple(sorted(other for other in fixable if other.path == site.path))
        values = written_at(loaders[0].argument("num_workers"))
        extras = tuple(extra(program, loader) for loader in loaders)
        forked = next((why for loader in loaders if (why := only_forked(program, loader)) is not None), None)
        shares = [
            len(set(loader.together) & {each.site for many in fixable.values() for each in many}) for loader in loaders
        ]
        shared = 1 + max(shares)
        startable = program.script.guarded or is_notebook(program) or positive(loaders[0].argument("num_workers"))
        plan = Plan(
            values,
            counted=True,
            extras=extras,
            anchors=anchors,
            ranks=is_shared(program),
            devices=by_devices(program),
            unguarded=None if startable else program.script.unguarded,
            forked=forked is not None,
            share=shared,
        )
        yield codemod.finding(
            site,
            message(loaders)
            + ("; it is built anew for each pass, and its workers with it" if is_built_each_time(loaders[0]) else "")
            + said_of_forks(forked)
            + said_beside(loaders[0].argument("num_workers")),
            plan=plan,
            evidence=evidence(program, loaders),
            assumes=(each for loader in loaders for each in open_ones(program, loader)),
            worth=min(found for loader in loaders if (found := worth(program, loader)) is not None),
        )
    for site, loaders in restarting.items():
        yield kept(program, site, loaders)
    yield from unseen(program)


def unseen(program: TrainingProgram) -> Iterator[Refusal]:
    """Trainings whose loaders are made where they are not seen: by a library, or by what was not followed."""
    if any(loader.role != "unused" for loader in program.loaders):
        return
    unread = [step.loop for step in program.steps if not step.loaders]  # those over numbers hand out no batches
    fed = [loop.site for loop in unread if loop.iterated is not None and "range(" not in loop.iterated]
    for site in (*fed, *(each.site for each in under_lightning(program))):
        yield codemod.refuse(
            site,
            "no loader is seen that prepares the batches of this training beside it",
            "look where they are made: a DataLoader wants num_workers (as many as there are CPUs, at most 16) and "
            "persistent_workers, and without one every step waits for its batch",
        )


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings say how many workers the trainer's own loaders have."""
    for training in program.trainings:
        data, workers = training.dataset, training.argument(f"{TRAINERS}num_workers")
        if data is None or training.overrides & LOADING:
            continue
        if not has_none(workers):
            yield from kept_by_trainer(program, training, workers)
            continue
        inline = workers.state == "absent" or workers.edit_at == workers.site
        loader = Loader(
            training.site, {"num_workers": workers}, data, role="training", collate=training.collate, name="Trainer"
        )
        site, said = place(loader), message([loader])
        seen = (*settings(training, f"{TRAINERS}num_workers"), *of_data(loader))
        reason = why_not_setting(program, training, f"{TRAINERS}num_workers", "4") or why_not(program, loader)
        if reason is None and training.evaluated is not None:
            reason = why_not(program, replace(loader, dataset=training.evaluated))
        if reason is None and training.argument(f"{TRAINERS}persistent_workers").state != "absent":
            reason = "the settings say something of dataloader_persistent_workers already: add the workers beside it"
        if reason is not None:
            yield codemod.refuse(site, said, reason, evidence=seen)
            continue
        forked = only_forked(program, loader)
        if forked is None and (training.imported or not program.script.guarded) and not is_notebook(program):
            forked = AT_MODULE_LEVEL
        only = Extra(training.site, None if inline else workers.site, False, training.again, False, True)
        plan = Plan(
            written_at(workers),
            counted=True,
            extras=(only,),
            anchors=(site,),
            ranks=True,
            forked=forked is not None,
            prefix=TRAINERS,
        )
        heavy = any(kind in data.work for kind in (*HEAVY, "read"))
        yield codemod.finding(
            site,
            said + said_of_forks(forked) + said_beside(workers),
            plan=plan,
            evidence=seen,
            assumes=open_ones(program, loader),
            worth=Worth.HIGH if heavy else Worth.SMALL,
        )


# --- what is there ------------------------------------------------------------------------------------------------


def place(loader: Loader) -> Site:
    """Where a person would change the number: the call, or the option, constant or entry that decides it."""
    workers = loader.argument("num_workers")
    return next((each for each in written_at(workers) if each != workers.site), loader.site)


def written_at(workers: Argument) -> tuple[Site, ...]:
    """Where the number is written: in one place, or in several of configuration files, one for each loader."""
    several = tuple(site for _, site in workers.written)
    return (workers.edit_at,) if workers.edit_at else several if all(is_data(each.path) for each in several) else ()


def has_none(workers: Argument) -> bool:
    """Whether the loader loads in the training process, unless the user of the script says otherwise."""
    return workers.state == "absent" or (workers.state in ("value", "option", "may") and workers.values == (0,))


def has_too_few(loader: Loader) -> bool:
    """Whether the script has a few workers, by default, for work that keeps more of them busy."""
    workers, data = loader.argument("num_workers"), loader.dataset
    if loader.role == "evaluation" or loader.first_only:
        return False
    few = workers.values in [(each,) for each in range(1, FEW)]
    return (
        few
        and bool(written_at(workers))
        and workers.state in ("value", "option")
        and any(kind in HEAVY for kind in data.work)
    )


def positive(workers: Argument) -> bool:
    """Whether every number that is known of is one of workers."""
    return bool(workers.values) and all(type(each) is int and each > 0 for each in workers.values)


def worth(program: TrainingProgram, loader: Loader) -> Worth | None:
    """What workers may bring: what is known of the work for each sample; None where there is certainly nothing.

    On a CPU the workers take from the training what they give, so that reading, decoding and tokenising count most.
    """
    data = loader.dataset
    waits = any(kind in data.work for kind in (*HEAVY, "read"))
    if loader.first_only and not loader.asked_again:
        return None
    if loader.role == "evaluation" and not is_looped_over(program, loader):
        return None
    if loader.role == "evaluation" and not waits and not is_read_again(program, loader):
        return None
    if data.kind != "map" and loader.role == "evaluation" and loader.built_in_loop:
        return None
    is_handful = not waits and data.length is not None and data.length <= HANDFUL
    is_free = not data.work and "." not in (data.qualname or "") and loader.collating is None
    if data.kind == "map" and (is_handful or is_free):
        return None
    if not waits and not reaches_gpu(program):
        return Worth.SMALL if may_reach_gpu(program) else None
    if is_kept(program, loader) and {*data.work} <= {"compute", "numpy"}:
        return Worth.SMALL  # whole batches of what lies in memory are better
    cheap = data.kind == "map" and not waits and "transform" not in data.work and data.qualname not in SMALL_IMAGES
    if loader.role == "evaluation" or cheap or has_too_few(loader):
        return Worth.SOME
    return Worth.HIGH


def reaches_gpu(program: TrainingProgram) -> bool:
    """Whether the training runs on a GPU where there is one."""
    return program.device.reaches_cuda or any(on_gpu(each) for each in under_lightning(program))


def may_reach_gpu(program: TrainingProgram) -> bool:
    """Whether it may be brought to a GPU: by the script, or by what its configuration says."""
    told = under_lightning(program)
    return any(on_gpu(each) is None for each in told) if told else program.framework is Framework.PYTORCH


def open_ones(program: TrainingProgram, loader: Loader) -> Iterator[Assumption]:
    """What workers for a loader rest on, and the text does not tell."""
    data = loader.dataset
    waits = any(kind in data.work for kind in (*HEAVY, "read"))
    if said_beside(loader.argument("num_workers")) or may_change(loader):
        yield SAME_ITEMS
    unknown = data.kind == "unknown" or loader.collate == "unknown"
    unknown = unknown or any(made.stateful is not None for made in made_by(loader))
    if unknown and only_forked(program, loader) is None:
        yield PICKLED
    if not waits and not reaches_gpu(program) and may_reach_gpu(program):
        yield ON_GPU


def under_lightning(program: TrainingProgram) -> tuple[Training, ...]:
    """The trainings of Lightning, which takes model and batches to a GPU by itself where there is one."""
    return program.trainings if program.framework is Framework.LIGHTNING else ()


def has_any(workers: Argument) -> bool:
    """Whether there are workers, in some cases (`4 if use_cuda else 0`), or as far as somebody else says."""
    some = workers.state in ("may", "option") and any(type(each) is int and each > 1 for each in workers.values)
    return positive(workers) or some or workers.state in ("computed", "unknown")


def is_told_elsewhere(loader: Loader) -> bool:
    """Whether a mapping that is not in the text may give a training's loader its workers."""
    open_ = loader.open_mapping and loader.argument("num_workers").state in ("absent", "unknown")
    return open_ and loader.role == "training" and loader.subclass is None and loader.dataset.kind != "tensors"


def said_elsewhere(loader: Loader) -> tuple[str, str]:
    """What is said of such a loader, and what its reader can do."""
    return (
        f"whether {called(loader)} has workers, and keeps them, is said by a mapping that is read when the script runs",
        "look there for num_workers (as many as there are CPUs, at most 16), persistent_workers and pin_memory",
    )


def restarts(program: TrainingProgram, loader: Loader) -> bool:
    """Whether a loader that may have workers starts them anew in each pass over its data, and is seen to keep none."""
    workers = loader.argument("num_workers")
    if loader.argument("persistent_workers").state != "absent" or is_built_each_time(loader) or loader.first_only:
        return False
    entry = loader.mapping_entries.get("num_workers")
    if not has_any(workers) or (workers.site is None and (entry is None or 0 in workers.values)):
        return False
    return is_read_again(program, loader)


def has_short_epochs(loader: Loader) -> bool:
    """Whether the start of workers is a part of its epochs: the data are few, or lie in memory."""
    data = loader.dataset
    at_once = data.qualname in SMALL_IMAGES or data.table or data.kind == "tensors"
    return at_once or (data.length or SHORT_EPOCH + 1) <= SHORT_EPOCH


def kept_if(number: str) -> str | None:
    """The test under which workers can be kept: that there are any, by what says how many; None: not to be repeated."""
    tree = ast.parse(number, mode="eval").body
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    if isinstance(tree, ast.Constant):
        return "True" if tree.value else None
    if re.fullmatch(r"([\w.]+\.)?cpu_count\(\)", number):
        return "True"
    if any((dotted(each.func) or "").rpartition(".")[2] not in PURE for each in calls) or "\n" in number:
        return None
    return f"{number} > 0" if isinstance(tree, OPERANDS) else f"({number}) > 0"


PURE = ("int", "min", "max", "len", "get", "cpu_count", "device_count", "getattr", "sched_getaffinity")
OPERANDS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp)


def kept(program: TrainingProgram, site: Site, loaders: list[Loader]) -> Finding | Refusal:
    """What to say of loaders that start their workers anew in each epoch."""
    first = loaders[0]
    workers, entry = first.argument("num_workers"), first.mapping_entries.get("num_workers")
    verb = "start" if len(loaders) > 1 else "starts"
    when = "pass over the data" if first.cycled else "epoch"
    said = f"{listed(loaders)} {verb} {numbers(workers)} anew in every {when}"
    seen = evidence(program, loaders)
    change = next((told for each in loaders if (told := changed(program, each)) is not None), None)
    reason = change and f"the dataset is changed while training (`{change}`), which workers that are kept would not see"
    if first.subclass is not None and not first.subclass.startswith(PASSING_ON):
        reason = f"`{first.subclass}` is a loader of its own: pass persistent_workers on where it is built"
    elif entry is None and (first.unpacks or kept_if(workers.text or "f()") is None):
        reason = "the number comes from elsewhere than the call: add persistent_workers beside it"
    only = Extra(first.site, entry or workers.site, entry is not None, True, False)
    plan = Plan((), False, (only,))
    assumes = [SAME_ITEMS] if any(map(may_change, loaders)) else []
    found = Worth.SOME if any(has_short_epochs(each) or each.cycled for each in loaders) else Worth.SMALL
    return codemod.offer(site, said, reason, plan=plan, evidence=seen, assumes=assumes, worth=found)


def kept_by_trainer(
    program: TrainingProgram, training: Training, workers: Argument
) -> Iterator[Finding | Refusal | InPlace]:
    """What to say of a trainer of transformers whose loaders have workers."""
    site = workers.edit_at or training.site
    yield codemod.in_place(site, f"the trainer loads with {numbers(workers)}")
    if not training.again or training.argument(f"{TRAINERS}persistent_workers").state != "absent":
        return
    said = f"the trainer starts {numbers(workers)} anew in every epoch"
    seen = settings(training, f"{TRAINERS}num_workers")
    reason = why_not_setting(program, training, f"{TRAINERS}persistent_workers")
    elsewhere = training.site not in program.told_by if workers.site is None else kept_if(workers.text or "f()") is None
    if reason is None and elsewhere:
        reason = f"the number comes from elsewhere than the call: add {TRAINERS}persistent_workers beside it"
    only = Extra(training.site, workers.site, False, True, False, True)
    yield codemod.offer(
        training.site, said, reason, plan=Plan((), False, (only,), prefix=TRAINERS), evidence=seen, worth=Worth.SMALL
    )


def is_looped_over(program: TrainingProgram, loader: Loader) -> bool:
    """Whether an evaluation loops over the loader, rather than take a batch from it now and then while training."""
    training = {loop.site for step in program.steps for loop in (step.loop, step.epoch_loop) if loop is not None}
    looped = any(loader.site in each.loaders and each.loop.site not in training for each in program.evaluations)
    return looped or loader.fed != "no"


# --- what stands in the way ---------------------------------------------------------------------------------------


def why_not(program: TrainingProgram, loader: Loader) -> str | None:
    """What makes workers unsafe or slower for a loader, where a person could still act on it."""
    workers, data = loader.argument("num_workers"), loader.dataset
    if data.kind == "tensors":
        return (
            "its samples are tensors in memory already, which workers would only send back and forth, "
            "10 to 100 times slower: move them to the GPU once, before the loop, instead"
        )
    if said := reason_beside(workers):
        return said
    if data.on_device or loader.collate_on_device:
        return "its dataset or collate_fn uses the GPU, which worker processes must not"
    if data.kind == "iterable" and not data.worker_aware:
        return "its dataset is iterated and does not ask get_worker_info: every worker would yield all of the data"
    for made in made_by(loader):
        if (reason := why_not_copied(loader, made)) is not None:
            return reason
    if (change := changed(program, loader, between_batches=True)) is not None:
        return f"the dataset is changed in the loop over batches (`{change}`), which no worker would see"
    if loader.asked_again:
        return "batches are taken by next(iter(...)), which would start all workers for each of them"
    if is_built_each_time(loader) and has_short_epochs(loader):
        return "it is built anew in each epoch, as its workers would be: build it once, before the loop"
    forked = only_forked(program, loader)
    chosen = any(each.name.endswith("multiprocessing.set_start_method") for each in program.settings)
    if forked is not None and (loader.argument("multiprocessing_context").state != "absent" or chosen):
        return f"{forked}, and the program chooses how its processes start"
    return why_not_started(program) or why_not_changed(program, loader)


def changed(program: TrainingProgram, loader: Loader, *, between_batches: bool = False) -> str | None:
    """What changes the dataset in the loop over epochs, which workers that are kept would not see.

    None of them sees what is changed ``between_batches``.
    """
    pages, files = pages_of(program), program.modules.by_path
    call = pages(loader.site).node(loader.site) if loader.site.path in files else None
    owners = {f"{loader.name}.dataset"}
    if isinstance(call, ast.Call):
        given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "dataset")]
        owners |= {ast.unparse(dataset) for dataset in given} - {"self"}  # that is another object in the loop
    for loop in (step.loop if between_batches else step.epoch_loop for step in program.steps):
        if loop is not None and loop.site.path in files:
            change = changed_in(pages(loop.site).node(loop.site), owners)
            if change is not None:
                return change
    return None


def why_not_copied(loader: Loader, data: Dataset) -> str | None:
    """What a worker's copy of a dataset, or of what puts its samples together, would do otherwise."""
    if data.generator is not None and (loader.argument("worker_init_fn").text or "None") == "None":
        return (
            f"its samples are drawn from the generator `{data.generator}`, of which every worker would have the same "
            "copy and draw the same numbers: seed it for each worker in a worker_init_fn"
        )
    if data.shared is not None:
        return f"{data.shared}: all forked workers would share its place in the file"
    return None


def cause(program: TrainingProgram, loader: Loader, reason: str) -> tuple[str, object]:
    """A reason, and what it is about: loaders that the same thing stands in the way of are told of together."""
    if reason == why_not_started(program):
        return reason, None
    if reason == why_not_changed(program, loader):
        return reason, frozenset(loader.mapping_entries.values()) or loader.argument("num_workers").option or place(
            loader
        )
    return reason, place(loader)


AT_MODULE_LEVEL = "the script trains at module level, which every spawned worker would do once more"


def only_forked(program: TrainingProgram, loader: Loader) -> str | None:
    """What a spawned worker (macOS, Windows, Python 3.14) could not do, where a forked one can."""
    if positive(loader.argument("num_workers")):
        return None  # it starts them already
    spawned = "cannot be sent to a spawned worker"
    if loader.collate == "lambda":
        return f"its collate_fn is a lambda, which {spawned}"
    if loader.collate == "local":
        return f"its collate_fn is defined inside a function and {spawned}"
    makers = made_by(loader)
    for made in makers:
        if made.unpicklable is not None:
            return f"{made.unpicklable}, which {spawned}"
    if "lambda" in (loader.argument("worker_init_fn").text or ""):
        return f"its worker_init_fn is a lambda, which {spawned}"
    if is_notebook(program):
        own = "." not in (loader.dataset.qualname or ".") or loader.collate != "default"
        return f"its dataset or collate_fn is defined in the notebook and {spawned}" if own else None
    if program.script.on_gpu is not None:
        line = program.script.on_gpu.line_from(loader.site.path)
        return (
            f"the script works on the GPU outside of its guard ({line}), which every spawned worker would do once more"
        )
    for each in set_later(loader):
        return f"`{each.name}`, which makes its samples, is set on {each.where}, where a spawned worker does not come"
    region = program.script.unguarded
    moves = region is not None and not any(each.top >= region.first for made in makers for each in made.later)
    return None if program.script.guarded or moves else AT_MODULE_LEVEL


def made_by(loader: Loader) -> list[Dataset]:
    """What makes the samples and puts them together."""
    return [each for each in (loader.dataset, loader.collating) if each is not None]


def set_later(loader: Loader) -> list[SetLater]:
    """The globals that make its samples, and that are set where a spawned worker does not come."""
    later = (each for made in made_by(loader) for each in made.later)
    return [each for each in later if each.guarded or each.top.kind in ("For", "While")]


def may_change(loader: Loader) -> bool:
    """Whether its samples may be others from epoch to epoch, which the copies of workers do not show."""
    return bool(set_later(loader)) or any(
        made.kind == "unknown" or made.stateful is not None for made in made_by(loader)
    )


def said_of_forks(forked: str | None) -> str:
    """What a message adds where there are workers only on some machines."""
    return (
        f"; {forked}: it stays as it is where processes are not forked (macOS, Windows, Python 3.14)" if forked else ""
    )


def why_not_started(program: TrainingProgram) -> str | None:
    """What keeps the script from starting worker processes."""
    if "horovod" in program.libraries:
        return "Horovod starts the ranks, and how many of them share the CPUs is not known here"
    if program.processes:
        if program.framework is Framework.FABRIC:
            return "the script starts its own processes, and how many of them share the CPUs is not known here"
        if not program.distributed:
            return "the script starts processes of its own, which may not be allowed to start workers in turn"
    return None


def why_not_changed(program: TrainingProgram, loader: Loader) -> str | None:
    """Why the number cannot be changed where it stands."""
    workers = loader.argument("num_workers")
    if workers.state == "absent":
        is_known = loader.spelled_out or loader.site in program.told_by
        return None if is_known else "the call unpacks a mapping: add `num_workers` to that mapping"
    if not written_at(workers):
        return f"the script has an option for it: pass {workers.option or 'it'}"
    loaders = {each.argument("num_workers").site for each in program.loaders}
    entries = {each.mapping_entries.get("num_workers") for each in program.loaders}
    others = [read for read in workers.reads if read not in loaders | entries and not is_passed_on(program, read)]
    if others and workers.state != "value" and not is_data(place(loader).path):
        return f"the number is read for something else too ({at(others[0].line)})"
    return None


def is_passed_on(program: TrainingProgram, read: Site) -> bool:
    """Whether a call that is not followed is told the number by the name of it: ``num_workers=config.num_workers``."""
    module = program.modules.by_path.get(read.path)
    line = module.text.splitlines()[read.line - 1] if module is not None else ""
    return re.search(r"\bnum_workers\s*=\s*$", line[: read.column]) is not None


# --- the finding --------------------------------------------------------------------------------------------------


def message(loaders: list[Loader]) -> str:
    """What is slow, why, and where the number comes from."""
    verb = "prepare" if " and " in listed(loaders) else "prepares"
    kinds = {kind for loader in loaders for kind in loader.dataset.work}
    implied = {"read"} if "decode" in kinds else set()
    implied |= {"compute"} if kinds - {"compute"} else set()
    done = [said for kind, said in WORK.items() if kind in kinds - implied]
    waiting = f"every step waits while {' and '.join(done) or 'samples are made'}"
    workers = loaders[0].argument("num_workers")
    if has_none(workers):
        said = f"{listed(loaders)} {verb} batches in the training process: {waiting}"
    else:
        said = f"{listed(loaders)} {verb} batches in {numbers(workers)}, which may be too few: {' and '.join(done)}"
    if any(loader.dataset.random for loader in loaders):
        said += " (random draws for each sample change with workers)"
    return said


def listed(loaders: list[Loader]) -> str:
    """The loaders by name."""
    return " and ".join(dict.fromkeys(called(loader) for loader in loaders))


def numbers(workers: Argument) -> str:
    """How many workers there are."""
    if not positive(workers):
        return f"as many worker processes as `{workers.text or 'num_workers'}` says"
    said = " or ".join(str(each) for each in workers.values)
    return f"{said} worker process" if said == "1" else f"{said} worker processes"


def evidence(program: TrainingProgram, loaders: list[Loader]) -> tuple[Evidence, ...]:
    """Where the number comes from, what is read, and in which loop."""
    return (*of_loader(program, loaders[0], "num_workers"), *of_data(loaders[0]))


def extra(program: TrainingProgram, loader: Loader) -> Extra:
    """What the loader gets beside the number."""
    workers = loader.argument("num_workers")
    entry = loader.mapping_entries.get("num_workers")
    batch = loader.argument("batch_size")
    is_small = batch.known and all(type(each) is int and each <= SMALL_BATCH for each in batch.values)
    is_inline = workers.state == "absent" or workers.edit_at == (workers.site or entry)
    return Extra(
        call=loader.site,
        number=None if is_inline else workers.site or entry,
        entry=entry is not None,
        persistent=(
            loader.argument("persistent_workers").state == "absent"
            and is_read_again(program, loader)
            and changed(program, loader) is None
        ),
        prefetch=(
            is_inline
            and is_small
            and loader.role != "evaluation"
            and entry is None
            and loader.argument("prefetch_factor").state == "absent"
        ),
        closed=loader.spelled_out,
    )


def is_notebook(program: TrainingProgram) -> bool:
    """Whether the program is a notebook, which workers do not import and which needs no guard."""
    return program.entry.suffix == ".ipynb"


def by_devices(program: TrainingProgram) -> bool:
    """Whether a rank for each GPU is started without saying in the environment how many there are."""
    if (program.processes and program.distributed) or program.framework is Framework.DEEPSPEED:
        return True
    devices = [training.argument("devices") for training in program.trainings]
    return program.framework is Framework.LIGHTNING and not all(
        each.values in ((1,), ("1",), ([0],)) for each in devices
    )


def is_shared(program: TrainingProgram) -> bool:
    """Whether several ranks may share the machine's CPUs."""
    if program.framework is Framework.LIGHTNING:
        return by_devices(program)
    return program.distributed or program.framework is not Framework.PYTORCH


# --- the rewrite --------------------------------------------------------------------------------------------------


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Set the number, keep the workers, and guard the script where nothing does."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    refuse_comments(edit, plan)
    forked, unguarded = plan.forked, None if plan.forked else plan.unguarded
    if unguarded is not None:
        text, line = whole(edit, unguarded.first), unguarded.first.line
        forked = left_behind(text, line) is not None or on_gpu_above(text, line) is not None
        unguarded = None if forked else unguarded
    if unguarded is not None:
        header = f"if __name__ == {edit.quoted('__main__', unguarded.first)}:"
        edit.wrap(unguarded.first, unguarded.last, header, above_comments=True)
    where = next(iter(plan.values), finding.site)
    if forked and edit.in_data(where):
        raise Refuse(f"the number stands in {where.path.name}, and no worker could be spawned (macOS, Windows)")
    forks = fork_test(edit, plan, where) if forked else ""
    number = None
    if plan.counted:
        number = str(FEW) if edit.in_data(where) else count(edit, plan, where, unguarded)
    if number is not None:
        number += f" if {forks} else 0" if forks else ""
        for value in plan.values:
            edit.replace(value, number)
            mend_help(edit, value, "0", f"one per CPU, at most {MOST}")
        if not plan.values:
            edit.argument(plan.extras[0].call, f"{plan.prefix}num_workers", number, spelled_out=plan.extras[0].closed)
    for each in plan.extras:
        if each.persistent:
            keep(edit, each, plan, forks)
        if each.prefetch and not forks:
            edit.argument(each.call, "prefetch_factor", "4", spelled_out=each.closed)


def fork_test(edit: Edit, plan: Plan, site: Site) -> str:
    """A test of whether processes are forked here, by a name that is set above the places of the numbers."""
    head = earlier_in_its_block(edit, plan.anchors, site)
    methods = edit.name("multiprocessing.get_all_start_methods", head)
    test = f"{methods}()[0] == {edit.quoted('fork', head)}"  # the first one is the platform's default
    if is_in_class(edit, head):
        return test
    forks = edit.free_name("forks", head)
    edit.before(head, f"{forks} = {test}", above_comments=True)
    return forks


def refuse_comments(edit: Edit, plan: Plan) -> None:
    """Raise Refuse where a comment above the call, or above the number, speaks of workers: it may say why."""
    for site in (*(each.call for each in plan.extras), *plan.values):
        comment = comment_above(edit, site)
        if "worker" in comment.lower() and gives_reason(comment):
            raise Refuse(f"the comment above may say why it is so: {comment}")


def count(edit: Edit, plan: Plan, site: Site, unguarded: Region | None) -> str:
    """The number of workers as an expression; a line above counts the CPUs that the process may use."""
    head = earlier_in_its_block(edit, plan.anchors, site)
    if is_in_class(edit, head):  # no place for a line of its own: it would become an attribute
        cpus = f"{edit.name('os.cpu_count', site)}() or 1"
        return f"min({MOST}, {cpus})" if plan.share == 1 else f"max(1, min({MOST}, ({cpus}) // {plan.share}))"
    affinity, everything = edit.name("os.sched_getaffinity", head), edit.name("os.cpu_count", head)
    os = affinity.removesuffix(".sched_getaffinity")
    cpus, name, ranks = edit.free_name("cpus", head), *(edit.quoted(word, head) for word in WORDS)
    lines = [f"{cpus} = len({affinity}(0)) if hasattr({os}, {name}) else {everything}() or 1"]
    if plan.devices:
        lines.append(f"{cpus} //= max(1, {edit.name('torch.cuda.device_count', head)}())")
    elif plan.ranks:
        lines.append(f"{cpus} //= int({os}.environ.get({ranks}, 1))")
    begins = edit.statement(head)
    if unguarded is not None and begins == edit.statement(unguarded.first):
        above = whole(edit, head).splitlines()[: begins.line - 1][-1:]
        lines += [""] if above and not above[0].strip() else []  # the guard follows
    edit.before(head, *lines, above_comments=True)
    number = f"min({MOST}, {cpus})" if plan.share == 1 else f"min({MOST}, {cpus} // {plan.share})"
    return f"max(1, {number})" if plan.ranks or plan.share > 1 else number


def is_in_class(edit: Edit, site: Site) -> bool:
    """Whether the number is the default of a dataclass's field or of a method's parameter."""
    statement = edit.statement(site)
    return statement.column > 0 and statement.kind in ("AnnAssign", "FunctionDef", "AsyncFunctionDef")


def keep(edit: Edit, each: Extra, plan: Plan, forks: str) -> None:
    """Give the loader ``persistent_workers``: true, or as long as there are workers where the user says how many."""
    value = kept_if(edit.text(each.number)) if each.number is not None else forks or "True"
    if value is None and plan.counted:
        return
    if value is None:
        raise Refuse("the number comes from elsewhere than the call: add persistent_workers beside it")
    if not each.entry:
        edit.argument(each.call, f"{plan.prefix}persistent_workers", value, spelled_out=each.closed)
        return
    entry = each.number or next(iter(plan.values), None)
    if entry is not None and is_data(entry.path):
        edit.setting(entry, "persistent_workers", "True")
        return
    display = dict_of(edit, entry) if entry is not None else None
    if display is None:
        raise Refuse("the number is put into a mapping by a statement of its own: add persistent_workers beside it")
    edit.entry(display, "persistent_workers", value)
