"""Train on several GPUs, one process for each: DistributedDataParallel, started by torchrun.

Why slow
    A script of one process uses one GPU. ``DataParallel`` copies the model to all of them in every step, from one
    Python process that holds them all up.

Example
    ::

        train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
        model = Net().to(device)
        for epoch in range(10):
            for images, labels in train_loader:
                loss = criterion(model(images.to(device)), labels.to(device))

Use instead
    ::

        train_sampler = None
        if world_size > 1:
            train_sampler = DistributedSampler(train_set)
        train_loader = DataLoader(
            train_set, batch_size=64 // world_size, shuffle=train_sampler is None, sampler=train_sampler
        )
        model = Net().to(device)
        ddp_model = model
        if world_size > 1:
            ddp_model = DistributedDataParallel(model)
        for epoch in range(10):
            if world_size > 1:
                train_loader.sampler.set_epoch(epoch)
            for images, labels in train_loader:
                loss = criterion(ddp_model(images.to(device)), labels.to(device))

    ``torchrun --nproc-per-node=8 train.py`` starts it on eight GPUs; without torchrun it does what it did. The batch of
    all processes together is the script's, so that its learning rate holds. One process prints, saves, logs and fetches
    data first; sums over an epoch are those of all. Each process evaluates on all of the data. A sampler of the
    script's own chooses in the first process, and each takes its part. Batch normalisation counts over all processes,
    by ``SyncBatchNorm``, on GPUs. For ``model.loss(x)`` a small module is wrapped whose call is that method. Where one
    function makes all loaders alike, or the training's is gone through for something else, it stays whole, and another
    one beside it gives each process its share.

When refused
    It speaks where several GPUs are asked for (``--gpus 8``) or ``DataParallel`` is used. It is refused for samplers
    without an end, loaders that are made anew in the training's loop for it and for evaluations alike, batches that are
    cut along another dimension than the first or used beside whole data, models that steps call by several methods,
    objects that are saved as a whole with what would wrap a model of theirs, sums of losses beside means, losses over
    pairs of samples, a state that goes from step to step, agents in an environment, numbers that a file draws as it is
    imported, questions to the user, sets of texts that are gone through in an order which differs between processes,
    scripts that Accelerate trains by several processes already, and notebooks.

Risk
    equivalent: the same batches give the same gradients but for rounding; dropout draws other numbers in each process.

Measured
    Not measured on GPUs here: `verify` compares two processes with one.
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import EVERY_GRADIENT, SHARED_OUT
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Worth
from turbofix.training.evidence import of_loop
from turbofix.training.model import Parallel, TrainingProgram

from ._precision import ENVIRONMENTS
from ._ranks import Ranks
from ._shares import share_data

codemod = Codemod(
    __name__,
    group="distributed",
    risk=Risk.EQUIVALENT,
    once=True,
    processes=True,
    shares=True,
    known_as=("DistributedDataParallel", "DataParallel", "torchrun", "several GPUs"),
    assumes=(SHARED_OUT, EVERY_GRADIENT),
    worth=Worth.HIGH,
)

ONE = "one process trains: started by torchrun, one for each GPU would share its batches"


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """A training in one process that is for several GPUs."""
    found = program.parallel
    if found is None or program.distributed or program.processes:
        return
    copies = bool(found.copied)
    site = found.copied[0].call if copies else found.models[0].model if found.models else found.loop
    message = ONE
    if copies:
        message = "`DataParallel` copies the model to all GPUs in every step, from one process"
    seen = tuple(map(of_loop, program.steps[:1]))
    seen += tuple(Evidence("its batches are shared out", each.loader) for each in found.loaders)
    reason = None
    if program.libraries & ENVIRONMENTS:
        reason = "it acts in an environment, and each process would have one of its own"
    if found.hazard is not None:
        reason = f"{found.hazard.why} ({found.hazard.site.line_from(site.path)})"
    if any(each.normed for each in found.models) or any(each.normed for each in found.copied):
        message += "; batch normalisation then counts over all of them (SyncBatchNorm)"
    looks = any(each.idle for each in found.models) or any(each.idle for each in found.copied)
    assumes = (SHARED_OUT,) if looks else (SHARED_OUT, EVERY_GRADIENT)
    yield codemod.offer(site, message, reason, plan=found, evidence=seen, assumes=assumes)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Start the processes' group, wrap the models, share out the data, and let one process speak for all."""
    plan = finding.plan
    assert isinstance(plan, Parallel)
    ranks = Ranks(edit, plan)
    ranks.wrap_models()
    share_data(ranks)
    ranks.add_up()
    ranks.scale_sums()
    ranks.weigh()
    ranks.agree()
    ranks.do_once()
    ranks.set_up()
