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
    Nothing is said of a handful of samples, and of loader classes of other libraries, but for those of graph libraries
    that batch graphs or read files.

Risk
    equivalent: the same samples and batches. Random numbers that are drawn for each sample come from the worker's own
    generator, and persistent workers change the shuffle from the second epoch on.

Measured
    Not measured in isolation: no trustworthy figure for worker counts was found. Measure with ``turbofix verify``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from turbofix.assumptions import ON_GPU, PICKLED, READ_WHOLE, SAME_ITEMS
from turbofix.codemod import Codemod
from turbofix.findings import Finding, InPlace, Refusal, Risk, Site, Worth
from turbofix.training.evidence import of_data, of_loader
from turbofix.training.model import Framework, Loader, Training, TrainingProgram

from ._loaders import called, copies_itself, said_beside
from ._loading import (
    AT_MODULE_LEVEL,
    ELSEWHERE,
    HEAVY,
    KEEPING,
    PASSING_ON,
    TRAINERS,
    by_devices,
    change_of,
    extra,
    has_any,
    has_none,
    has_short_epochs,
    is_notebook,
    is_own,
    is_shared,
    is_waiting,
    listed,
    may_change,
    message_of,
    numbers,
    only_forked,
    open_ones,
    place,
    positive,
    restarts,
    said_of_forks,
    under_lightning,
    why_not,
    worth,
    written_at,
)
from ._trainers import LOADING
from ._trainers import evidence as settings
from ._trainers import why_not as why_not_setting
from ._workers import Extra, Plan, kept_if

codemod = Codemod(
    __name__,
    group="data",
    risk=Risk.EQUIVALENT,
    after=("preload-dataset",),
    known_as=("num_workers", "persistent_workers", "prefetch_factor"),
    assumes=(SAME_ITEMS, PICKLED, ON_GPU, READ_WHOLE),
    worth=Worth.HIGH,
)


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
        elif is_own(loader) and workers.state == "option" and workers.values == (None,):
            message = f"{called(loader)} has as many workers as {workers.option} says, which has no default"
            yield codemod.refuse(loader.site, message, f"pass {workers.option}: as many as there are CPUs, at most 16")
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


def kept(program: TrainingProgram, site: Site, loaders: list[Loader]) -> Finding | Refusal:
    """What to say of loaders that start their workers anew in each epoch."""
    first = loaders[0]
    workers, entry = first.argument("num_workers"), first.mapping_entries.get("num_workers")
    verb, when = "start" if len(loaders) > 1 else "starts", "pass over the data" if first.cycled else "epoch"
    said = f"{listed(loaders)} {verb} {numbers(workers)} anew in every {when}"
    change = next(filter(None, map(change_of, loaders)), None)
    reason = change and f"{change}, which workers that are kept would not see"
    if first.subclass is not None and not first.subclass.startswith(PASSING_ON):
        reason = f"`{first.subclass}` is a loader of its own: pass persistent_workers on where it is built"
    elif entry is None and kept_if(workers.text or "") is None:
        reason = ELSEWHERE
    plan = Plan((), False, (Extra(first.site, entry or workers.site, entry is not None, True),))
    assumes = [SAME_ITEMS] * may_change(loaders) + [READ_WHOLE] * (entry is None and bool(first.unpacks))
    seen = (*of_loader(program, first, "num_workers"), *of_data(first))
    found = Worth.SOME if any(map(has_short_epochs, loaders)) else Worth.SMALL
    return codemod.offer(site, said, reason, plan=plan, evidence=seen, assumes=assumes, worth=found)
