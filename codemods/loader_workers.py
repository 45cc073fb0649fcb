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
    a generator of the dataset's own, files that forked workers would share. Work on the GPU in the dataset or collate
    function is refused, and samples that are tensors in memory already, a number that is passed by the user or given a
    reason by a comment, and mappings that could not be read.
    Nothing is said of a handful of samples, and of loader classes of other libraries.

Risk
    equivalent: the same samples and batches. Random numbers that are drawn for each sample come from the worker's own
    generator, and persistent workers change the shuffle from the second epoch on.

Measured
    Not measured in isolation: no trustworthy figure for worker counts was found. Measure with ``turbofix verify``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from turbofix.assumptions import ON_GPU, PICKLED, READ_WHOLE, SAME_ITEMS, Assumption
from turbofix.codemod import Codemod
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.source.datafile import is_data
from turbofix.training.evidence import of_data, of_loader
from turbofix.training.model import Argument, Dataset, Framework, Loader, Training, TrainingProgram

from ._copies import is_kept
from ._loaders import SMALL_IMAGES, called, copies_itself, is_built_each_time, is_read_again, reason_beside, said_beside
from ._trainers import LOADING, on_gpu
from ._trainers import evidence as settings
from ._trainers import why_not as why_not_setting
from ._workers import FEW, Extra, Plan, kept_if

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    after=("preload-dataset",),
    known_as=("num_workers", "persistent_workers", "prefetch_factor"),
    assumes=(SAME_ITEMS, PICKLED, ON_GPU, READ_WHOLE),
    worth=Worth.HIGH,
)

PASSING_ON = ("torch_geometric.", "dgl.dataloading.")
"""Libraries whose loaders give torch's the arguments that are not their own: their data may be read from files."""

TRAINERS = "dataloader_"
"""How the settings of transformers' trainer for its loaders begin."""

SMALL_BATCH, HANDFUL, SHORT_EPOCH = 64, 64, 10_000
KEEPING = (Framework.ACCELERATE, Framework.FABRIC, Framework.LIGHTNING)
"""The frameworks that make the script's loaders anew, and keep their workers."""

HEAVY = {"decode": "files are decoded", "tokenize": "text is tokenised"}
WORK = {**HEAVY, "read": "files are read", "transform": "samples are transformed", "compute": "samples are computed"}
ELSEWHERE = "the number comes from elsewhere than the call: add persistent_workers beside it"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Loaders without workers, with too few of them, or that start them anew in each of their short epochs."""
    if program.framework is Framework.TRANSFORMERS:
        for training in program.trainings:
            yield from under_trainer(program, training)
    if program.framework not in KEEPING and not copies_itself(program):
        return
    judged = [each for each in program.loaders if each.role != "unused"]
    waiting = {place(each) for each in judged if is_waiting(program, each)}
    restarting: dict[Site, list[Loader]] = {}
    for loader in judged:
        workers = loader.argument("num_workers")
        if loader.open_mapping:
            if is_own(loader) and loader.role == "training" and workers.state in ("absent", "unknown"):
                message = f"whether {called(loader)} has workers is said by a mapping that is read when the script runs"
                reason = "look there for num_workers (as many as there are CPUs, at most 16) and persistent_workers"
                yield codemod.refuse(loader.site, message, reason)
        elif place(loader) not in waiting and not has_none(workers) and has_any(workers):
            yield codemod.in_place(loader.site, f"{called(loader)} loads with {numbers(workers)}")
            if restarts(program, loader):
                restarting.setdefault(loader.mapping_entries.get("num_workers", loader.site), []).append(loader)
    by_place = {site: [each for each in program.loaders if place(each) == site] for site in sorted(waiting)}
    reasons = {site: next(filter(None, (why_not(program, each) for each in by_place[site])), None) for site in by_place}
    given = [site for site, reason in reasons.items() if reason is None]
    for site, loaders in by_place.items():
        told: dict[str, Any] = {"evidence": (*of_loader(program, loaders[0], "num_workers"), *of_data(loaders[0]))}
        if reasons[site] is not None:
            yield codemod.refuse(site, message_of(loaders), reasons[site] or "", **told)
            continue
        forked = next(filter(None, (only_forked(program, each) for each in loaders)), None)
        beside = {each.site for one in given for each in by_place[one]}
        startable = program.script.guarded or is_notebook(program) or positive(loaders[0].argument("num_workers"))
        plan = Plan(
            written_at(loaders[0].argument("num_workers")),
            counted=True,
            extras=tuple(extra(program, loader) for loader in loaders),
            anchors=tuple(each for each in given if each.path == site.path),
            ranks=is_shared(program),
            devices=by_devices(program),
            unguarded=None if startable else program.script.unguarded,
            forked=forked is not None,
            share=1 + max(len(beside.intersection(each.together)) for each in loaders),
        )
        yield codemod.finding(
            site,
            message_of(loaders) + said_of_forks(forked) + said_beside(loaders[0].argument("num_workers")),
            plan=plan,
            assumes=(each for loader in loaders for each in open_ones(program, loader)),
            worth=min(filter(None, (worth(program, each) for each in loaders))),
            **told,
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


def under_trainer(program: TrainingProgram, training: Training) -> Iterator[Finding | Refusal | InPlace]:
    """A training of transformers, whose settings say how many workers the trainer's own loaders have."""
    data, workers = training.dataset, training.argument(f"{TRAINERS}num_workers")
    if data is None or training.overrides & LOADING:
        return
    inline = workers.state == "absent" or workers.edit_at == workers.site
    loader = Loader(
        training.site, {"num_workers": workers}, data, role="training", collate=training.collate, name="Trainer"
    )
    told: dict[str, Any] = {"evidence": (*settings(training, f"{TRAINERS}num_workers"), *of_data(loader))}
    stays = training.argument(f"{TRAINERS}persistent_workers").state != "absent"
    if not has_none(workers):
        yield codemod.in_place(workers.edit_at or training.site, f"the trainer loads with {numbers(workers)}")
        if training.again and not stays:
            said = f"the trainer starts {numbers(workers)} anew in every epoch"
            reason = why_not_setting(program, training, f"{TRAINERS}persistent_workers")
            if reason is None and kept_if(workers.text or "") is None:
                reason = ELSEWHERE
            only = Extra(training.site, workers.site, False, True)
            plan = Plan((), False, (only,), prefix=TRAINERS)
            yield codemod.offer(training.site, said, reason, plan=plan, worth=Worth.SMALL, **told)
        return
    reason = why_not_setting(program, training, f"{TRAINERS}num_workers", "4")
    each_data = [data, *([training.evaluated] if training.evaluated is not None else [])]
    reason = reason or next(filter(None, (why_not(program, replace(loader, dataset=each)) for each in each_data)), None)
    forked = only_forked(program, loader)
    if forked is None and (training.imported or not program.script.guarded) and not is_notebook(program):
        forked = AT_MODULE_LEVEL
    only = Extra(training.site, None if inline else workers.site, False, training.again and not stays)
    plan = Plan(
        written_at(workers), True, (only,), (place(loader),), ranks=True, forked=forked is not None, prefix=TRAINERS
    )
    message = message_of([loader]) + said_of_forks(forked) + said_beside(workers)
    heavy = any(kind in data.work for kind in (*HEAVY, "read"))
    found = Worth.HIGH if heavy else Worth.SMALL
    rests = open_ones(program, loader)
    yield codemod.offer(place(loader), message, reason, plan=plan, assumes=rests, worth=found, **told)


# --- what is there ------------------------------------------------------------------------------------------------


def place(loader: Loader) -> Site:
    """Where a person would change the number: the call, or the option, constant or entry that decides it."""
    workers = loader.argument("num_workers")
    return next((each for each in written_at(workers) if each != workers.site), loader.site)


def written_at(workers: Argument) -> tuple[Site, ...]:
    """Where the number is written: in one place, or in several of configuration files, one for each loader."""
    several = tuple(site for _, site in workers.written)
    return (workers.edit_at,) if workers.edit_at else several if all(is_data(each.path) for each in several) else ()


def is_own(loader: Loader) -> bool:
    """Whether it is torch's loader, or one that passes on what is not its own, of data that may be read from files."""
    return loader.subclass is None or (loader.subclass.startswith(PASSING_ON) and "read" in loader.dataset.work)


def is_waiting(program: TrainingProgram, loader: Loader) -> bool:
    """Whether a loader has no workers, or too few, and would gain by them."""
    few = has_none(loader.argument("num_workers")) or has_too_few(loader)
    return is_own(loader) and not loader.open_mapping and few and worth(program, loader) is not None


def has_none(workers: Argument) -> bool:
    """Whether the loader loads in the training process, unless the user of the script says otherwise."""
    return workers.state == "absent" or (workers.state in ("value", "option", "may") and workers.values == (0,))


def has_too_few(loader: Loader) -> bool:
    """Whether the script has a few workers, by default, for work that keeps more of them busy."""
    workers = loader.argument("num_workers")
    heavy = any(kind in HEAVY for kind in loader.dataset.work) and loader.role != "evaluation" and not loader.first_only
    few = workers.state in ("value", "option") and workers.values in [(each,) for each in range(1, FEW)]
    return few and heavy and bool(written_at(workers))


def positive(workers: Argument) -> bool:
    """Whether every number that is known of is one of workers."""
    return bool(workers.values) and all(type(each) is int and each > 0 for each in workers.values)


def has_any(workers: Argument) -> bool:
    """Whether there are workers, in some cases (`4 if use_cuda else 0`), or as far as somebody else says."""
    some = workers.state in ("may", "option") and any(type(each) is int and each > 1 for each in workers.values)
    return positive(workers) or some or workers.state in ("computed", "unknown")


def worth(program: TrainingProgram, loader: Loader) -> Worth | None:
    """What workers may bring: what is known of the work for each sample; None where there is certainly nothing.

    On a CPU the workers take from the training what they give, so that reading, decoding and tokenising count most.
    """
    data, evaluates = loader.dataset, loader.role == "evaluation"
    waits = any(kind in data.work for kind in (*HEAVY, "read"))
    handful = not waits and data.length is not None and data.length <= HANDFUL
    free = not data.work and "." not in (data.qualname or "") and loader.collating is None
    once = evaluates and not waits and not is_read_again(program, loader)
    if (loader.first_only and not loader.asked_again) or once or (data.kind == "map" and (handful or free)):
        return None
    trainings = under_lightning(program)
    if not waits and not (program.device.reaches_cuda or any(map(on_gpu, trainings))):
        return Worth.SMALL if may_reach_gpu(program) else None
    if is_kept(program, loader) and {*data.work} <= {"compute", "numpy"}:
        return Worth.SMALL  # whole batches of what lies in memory are better
    cheap = data.kind == "map" and not waits and "transform" not in data.work and data.qualname not in SMALL_IMAGES
    return Worth.SOME if evaluates or cheap or has_too_few(loader) else Worth.HIGH


def may_reach_gpu(program: TrainingProgram) -> bool:
    """Whether a training that is not seen to reach a GPU may be brought to one: by the script, or by its settings."""
    told = under_lightning(program)
    return any(on_gpu(each) is None for each in told) if told else program.framework is Framework.PYTORCH


def under_lightning(program: TrainingProgram) -> tuple[Training, ...]:
    """The trainings of Lightning, which takes model and batches to a GPU by itself where there is one."""
    return program.trainings if program.framework is Framework.LIGHTNING else ()


def open_ones(program: TrainingProgram, loader: Loader) -> Iterator[Assumption]:
    """What workers for a loader rest on, and the text does not tell."""
    data, workers = loader.dataset, loader.argument("num_workers")
    changes = may_change([loader])
    if said_beside(workers) or changes:
        yield SAME_ITEMS
    if (changes or loader.collate == "unknown") and only_forked(program, loader) is None:
        yield PICKLED
    if workers.state == "absent" and not loader.spelled_out and loader.site not in program.told_by:
        yield READ_WHOLE  # (what it unpacks may hold the number elsewhere)
    waits = any(kind in data.work for kind in (*HEAVY, "read"))
    on_it = program.device.reaches_cuda or any(map(on_gpu, under_lightning(program)))
    if not waits and not on_it and may_reach_gpu(program):
        yield ON_GPU


def may_change(loaders: Iterable[Loader]) -> bool:
    """Whether samples may be others from epoch to epoch, which the copies of workers do not show."""
    return any(made.kind == "unknown" or made.stateful is not None for each in loaders for made in made_by(each))


def made_by(loader: Loader) -> list[Dataset]:
    """What makes the samples and puts them together."""
    return [each for each in (loader.dataset, loader.collating) if each is not None]


def restarts(program: TrainingProgram, loader: Loader) -> bool:
    """Whether a loader that may have workers starts them anew in each pass over its data, and is seen to keep none."""
    workers, entry = loader.argument("num_workers"), loader.mapping_entries.get("num_workers")
    if loader.argument("persistent_workers").state != "absent" or loader.first_only:
        return False
    written = workers.site is not None or (entry is not None and 0 not in workers.values)
    return written and is_read_again(program, loader)


def has_short_epochs(loader: Loader) -> bool:
    """Whether the start of workers is a part of its epochs: the data are few, or lie in memory."""
    data = loader.dataset
    at_once = data.qualname in SMALL_IMAGES or data.table or data.kind == "tensors"
    return at_once or loader.cycled or (data.length or SHORT_EPOCH + 1) <= SHORT_EPOCH


def kept(program: TrainingProgram, site: Site, loaders: list[Loader]) -> Finding | Refusal:
    """What to say of loaders that start their workers anew in each epoch."""
    first = loaders[0]
    workers, entry = first.argument("num_workers"), first.mapping_entries.get("num_workers")
    verb, when = "start" if len(loaders) > 1 else "starts", "pass over the data" if first.cycled else "epoch"
    said = f"{listed(loaders)} {verb} {numbers(workers)} anew in every {when}"
    reason = None
    if first.subclass is not None and not first.subclass.startswith(PASSING_ON):
        reason = f"`{first.subclass}` is a loader of its own: pass persistent_workers on where it is built"
    elif entry is None and kept_if(workers.text or "") is None:
        reason = ELSEWHERE
    plan = Plan((), False, (Extra(first.site, entry or workers.site, entry is not None, True),))
    assumes = [SAME_ITEMS] * may_change(loaders) + [READ_WHOLE] * (entry is None and bool(first.unpacks))
    seen = (*of_loader(program, first, "num_workers"), *of_data(first))
    found = Worth.SOME if any(map(has_short_epochs, loaders)) else Worth.SMALL
    return codemod.offer(site, said, reason, plan=plan, evidence=seen, assumes=assumes, worth=found)


# --- what stands in the way ---------------------------------------------------------------------------------------


def why_not(program: TrainingProgram, loader: Loader) -> str | None:
    """What no run would show to go wrong or to be slower, and what keeps the number from being changed."""
    workers, data = loader.argument("num_workers"), loader.dataset
    unseeded = (loader.argument("worker_init_fn").text or "None") == "None"
    drawn = next((each.generator for each in made_by(loader) if each.generator is not None and unseeded), None)
    shared = next((each.shared for each in made_by(loader) if each.shared is not None), None)
    if data.kind == "tensors":
        return (
            "its samples are tensors in memory already, which workers would only send back and forth, "
            "10 to 100 times slower: move them to the GPU once, before the loop, instead"
        )
    if data.on_device or loader.collate_on_device:
        return "its dataset or collate_fn uses the GPU, which worker processes must not"
    if data.kind == "iterable" and not data.worker_aware:
        return "its dataset is iterated and does not ask get_worker_info: every worker would yield all of the data"
    if drawn is not None:
        return (
            f"its samples are drawn from the generator `{drawn}`, of which every worker would have the same "
            "copy and draw the same numbers: seed it for each worker in a worker_init_fn"
        )
    if shared is not None:
        return f"{shared}: all forked workers would share its place in the file"
    if loader.asked_again:
        return "batches are taken by next(iter(...)), which would start all workers for each of them"
    if is_built_each_time(loader) and has_short_epochs(loader):
        return "it is built anew in each epoch, as its workers would be: build it once, before the loop"
    apart = program.framework is Framework.FABRIC or not program.distributed
    if "horovod" in program.libraries or (program.processes and apart):
        return "the script's ranks are started in a way of their own, and how many of them share the CPUs is not known"
    if workers.state != "absent" and not written_at(workers):
        return f"the script has an option for it: pass {workers.option or 'it'}"
    return reason_beside(workers)


AT_MODULE_LEVEL = "the script trains at module level, which every spawned worker would do once more"


def only_forked(program: TrainingProgram, loader: Loader) -> str | None:
    """What a spawned worker (macOS, Windows, Python 3.14) could not do, where a forked one can."""
    script, spawned = program.script, "cannot be sent to a spawned worker"
    if positive(loader.argument("num_workers")):
        return None  # it starts them already
    if loader.collate in ("lambda", "local"):
        kind = "is a lambda" if loader.collate == "lambda" else "is defined inside a function"
        return f"its collate_fn {kind}, which {spawned}"
    if "lambda" in (loader.argument("worker_init_fn").text or ""):
        return f"its worker_init_fn is a lambda, which {spawned}"
    for made in made_by(loader):
        if made.unpicklable is not None:
            return f"{made.unpicklable}, which {spawned}"
    if is_notebook(program):
        own = "." not in (loader.dataset.qualname or ".") or loader.collate != "default"
        return f"its dataset or collate_fn is defined in the notebook, which {spawned}" if own else None
    if script.on_gpu is not None:
        line = script.on_gpu.line_from(loader.site.path)
        return (
            f"the script works on the GPU outside of its guard ({line}), which every spawned worker would do once more"
        )
    return None if script.guarded or script.unguarded is not None else AT_MODULE_LEVEL


def said_of_forks(forked: str | None) -> str:
    """What a message adds where there are workers only on some machines."""
    return (
        f"; {forked}: it stays as it is where processes are not forked (macOS, Windows, Python 3.14)" if forked else ""
    )


# --- the finding --------------------------------------------------------------------------------------------------


def message_of(loaders: list[Loader]) -> str:
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
    return said + "; it is built anew for each pass, and its workers with it" * is_built_each_time(loaders[0])


def listed(loaders: list[Loader]) -> str:
    """The loaders by name."""
    return " and ".join(dict.fromkeys(called(loader) for loader in loaders))


def numbers(workers: Argument) -> str:
    """How many workers there are."""
    if not positive(workers):
        return f"as many worker processes as `{workers.text or 'num_workers'}` says"
    said = " or ".join(str(each) for each in workers.values)
    return f"{said} worker process" if said == "1" else f"{said} worker processes"


def extra(program: TrainingProgram, loader: Loader) -> Extra:
    """What the loader gets beside the number."""
    workers, entry = loader.argument("num_workers"), loader.mapping_entries.get("num_workers")
    batch = loader.argument("batch_size")
    small = batch.known and all(type(each) is int and each <= SMALL_BATCH for each in batch.values)
    inline = workers.state == "absent" or workers.edit_at == (workers.site or entry)
    fetches = inline and small and entry is None and loader.role != "evaluation"
    stays = loader.argument("persistent_workers").state == "absent"
    return Extra(
        call=loader.site,
        number=None if inline else workers.site or entry,
        entry=entry is not None,
        persistent=stays and is_read_again(program, loader),
        prefetch=fetches and loader.argument("prefetch_factor").state == "absent",
    )


def is_notebook(program: TrainingProgram) -> bool:
    """Whether the program is a notebook, which workers do not import and which needs no guard."""
    return program.entry.suffix == ".ipynb"


def by_devices(program: TrainingProgram) -> bool:
    """Whether a rank for each GPU is started without saying in the environment how many there are."""
    if (program.processes and program.distributed) or program.framework is Framework.DEEPSPEED:
        return True
    devices = [each.argument("devices").values for each in under_lightning(program)]
    return program.framework is Framework.LIGHTNING and not all(each in ((1,), ("1",), ([0],)) for each in devices)


def is_shared(program: TrainingProgram) -> bool:
    """Whether several ranks may share the machine's CPUs."""
    if program.framework is Framework.LIGHTNING:
        return by_devices(program)
    return program.distributed or program.framework is not Framework.PYTORCH
