"""Train on several GPUs, one process for each, started by torchrun: each computes some rows of a batch.

Why slow
    A script of one process uses one GPU. ``DataParallel`` copies the model to all of them in every step, from one
    Python process that holds them all up.

Example
    ::

        for epoch in range(10):
            for images, labels in train_loader:
                loss = criterion(model(images.to(device)), labels.to(device))

Use instead
    ::

        import workers

        if __name__ == "__main__":
            workers.begin()  # where torchrun starts it

        ...
        for epoch in range(10):
            for images, labels in train_loader:
                loss = criterion(workers.shared(model)(images.to(device)), labels.to(device))

    ``workers.py`` is written beside the script: all that processes do with one another stands there, and it is the same
    for every script. ``torchrun --nproc-per-node=8 train.py`` starts it on eight GPUs; without torchrun it does what it
    did. Where an option of the script begins as one of torchrun's does (``--log``, ``--n``), write ``-- train.py``.

    One process runs the script, as it stands, and the others compute for it. ``workers.shared`` sends them the model,
    as it is then, and the batch: each computes its rows, the first process has those of all, and the sums of the
    gradients. So data, losses, figures, decisions, files and random numbers are those of one process, whatever they
    hang on. Batch normalisation in training counts over all processes, and what a model keeps of a call (attention, a
    loss) is that of all rows. ``DataParallel`` is passed by; ``"cuda:0"`` is a GPU of its own in each process.

    The first three calls, the tenth, the hundredth and so on are tried on the whole batch, too, without random numbers,
    and on one where other rows stand beside those of the process. Where the answer to some rows is not as that to all,
    the first process computes the whole batch from then on, and a warning says so: layers that take figures over a
    batch, losses that are no mean or sum of the rows'. So it is with models that do not go to other processes, and with
    hooks that are to see the batch. Gradients that are differentiated again are computed whole.

    One process reads and prepares all of the data: this pays where the model is what takes the time. ``workers.py``
    needs torch 2.4, Python 3.10 and ``cloudpickle``, by which the others have the classes and functions of the script,
    where torchrun starts it.

    With ``--zero`` each process is to train a part of what a model keeps. So a plain script, which prints and saves
    beside a loop that does nothing with a batch but to train one model, is run by all, as is usual::

        train_sampler = None
        if ranks.world_size > 1:
            train_sampler = DistributedSampler(train_set)
        train_loader = DataLoader(
            train_set, batch_size=64 // ranks.world_size, shuffle=train_sampler is None, sampler=train_sampler
        )
        ddp_model = model
        if ranks.world_size > 1:
            ddp_model = DistributedDataParallel(model)
        for epoch in range(10):
            if ranks.world_size > 1:
                train_loader.sampler.set_epoch(epoch)

    The batch of all processes together is the script's, so that its learning rate holds, and so are the sums that are
    printed. The first process prints, shows bars, saves and fetches data (``ranks.once(torch.save)(...)``); the others
    wait where that is read.

When refused
    It speaks where several GPUs are asked for (``--gpus 8``) or ``DataParallel`` is used. It is refused where processes
    may wait for each other in vain: models with batch normalisation that choose by their rows which layers they call.
    So are batches of one sample, nodes of graphs, scripts that never use a GPU, notebooks, models that go backward by
    themselves, and scripts that Accelerate trains by several processes already.

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

from ._frameworks import NAMES
from ._precision import GRAPHS
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
    elsewhere = program.processes and (program.framework in NAMES or not program.script.trains_here)
    if found is None or program.distributed or elsewhere:
        return
    if program.target.zero and found.by_shares is not None:  # of which each process is to keep a part
        found = found.by_shares
    copies = bool(found.copied)
    at = (*found.copied, *found.shared, *(each.model for each in found.models), found.loop)
    message = ONE
    if copies:
        message = "`DataParallel` copies the model to all GPUs in every step, from one process"
    seen = tuple(map(of_loop, program.steps[:1]))
    seen += tuple(Evidence("its batches are shared out", each.loader) for each in found.loaders)
    reason = None
    if program.libraries & GRAPHS and found.shared:
        reason = "the rows of its batches are nodes of graphs, which do not go without each other"
    if not program.names_cuda and program.framework is None:
        reason = "it never uses a GPU: `use-cuda` moves it to one first"
    if found.hazard is not None:
        reason = f"{found.hazard.why} ({found.hazard.site.line_from(at[0].path)})"
    if found.normed or any(each.normed for each in found.models):
        message += "; batch normalisation then counts over all of them"
    assumes = (SHARED_OUT,) if found.shared else (SHARED_OUT, EVERY_GRADIENT)
    yield codemod.offer(at[0], message, reason, plan=found, evidence=seen, assumes=assumes)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Start the processes' group, wrap the models, share out the data, and let one process speak for all."""
    plan = finding.plan
    assert isinstance(plan, Parallel)
    ranks = Ranks(edit, plan)
    ranks.share_calls()
    ranks.wrap_models()
    share_data(ranks)
    ranks.add_up()
    ranks.agree()
    ranks.do_once()
    ranks.set_up()
