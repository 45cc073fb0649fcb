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

        import ranks

        if __name__ == "__main__":
            ranks.begin()  # where torchrun starts it

        ...
        train_sampler = None
        if ranks.world_size > 1:
            train_sampler = DistributedSampler(train_set)
        train_loader = DataLoader(
            train_set, batch_size=64 // ranks.world_size, shuffle=train_sampler is None, sampler=train_sampler
        )
        model = Net().to(device)
        ddp_model = model
        if ranks.world_size > 1:
            ddp_model = DistributedDataParallel(model)
        for epoch in range(10):
            if ranks.world_size > 1:
                train_loader.sampler.set_epoch(epoch)
            for images, labels in train_loader:
                loss = criterion(ddp_model(images.to(device)), labels.to(device))

    ``ranks.py`` is written beside the script: all that processes do with one another stands there, and it is the same
    for every script. ``torchrun --nproc-per-node=8 train.py`` starts it on eight GPUs; without torchrun it does what it
    did. Where an option of the script begins as one of torchrun's does (``--log``, ``--n``), write ``-- train.py``. The
    batch of all processes together is the script's, so that its learning rate holds. So are the sums that are printed.

    That is for a loop that does nothing with a batch but to train one model on it and to add up what it shows, where
    no evaluation hangs on chance. All others stay as they are: every process runs the whole script with the same
    batches and numbers, and lines change where a loader is made and where a model is called::

        train_loader = ranks.same(DataLoader)(train_set, batch_size=64, shuffle=True)
        loss = criterion(ranks.shared(model)(images.to(device)), labels.to(device))

    The model computes the rows of this process, and answers with those of all. So losses, figures and decisions are
    those of one process, whatever they hang on: sums, pairs of samples, early stops, several models, methods of a
    model. Gradients are averaged as they come.

    The first three calls, the tenth, the hundredth and so on are tried on the whole batch, too, without random numbers,
    and on one where other rows stand beside those of the process: where the answer to some rows is not as that to all,
    every process computes the whole batch from then on, and a warning says so. Such are layers that take figures over a
    batch or keep them, and losses that are no mean or sum of the rows'. A batch with fewer samples than processes is
    computed whole. Loaders compare some values of each batch in all processes: from the first one that differs (a
    library draws numbers that nobody seeds), all take those of the first process. What comes from no loader is compared
    in the first calls, which stop with an error where it differs. All begin with the weights of the first. Every
    process reads all of the data: this pays where the model is what takes the time.

    The group starts in front of all imports: what a module does as it is imported is done by the group, too. Each
    process sees one GPU, its own, so that ``"cuda:0"`` is right wherever it stands (``ranks.visible(...)`` makes it of
    what an option names), and all go through sets in one order (``PYTHONHASHSEED``). The script's own question whether
    there is a group is answered as for one process.

    A model that is called where nothing was followed is computed whole by each, and its gradients are averaged in front
    of a step of its optimizer, so that what each GPU rounds its own way does not go apart. Of what a model answers to
    a whole batch on GPUs, all go on with what the first has.

    ``ranks.once(torch.save)(...)`` is called by the first process; the others wait, and have what it returns: a
    generator that nobody seeds (``ranks.once(default_rng)()``), too. So it is with questions to the user, and with
    windows: where there are any, the group waits up to a day. Where a process has an error of its own, it waits five
    minutes at most, and after a Ctrl-C for nobody: the first one saves by itself. What it starts is a program of one
    process. The other processes print nothing, and write to nothing what they write to open files
    (``open(ranks.written(path), "w")``), or to a copy of a file that they read as well. What is written needs torch 2.4
    and Python 3.10 where torchrun starts it. Batch normalisation counts over all processes, by ``SyncBatchNorm``, on
    GPUs; the layers are still of their own classes, for models that ask, and so are those of a model that is saved
    whole. A model with layers that normalise in a way of their own is computed whole there.

When refused
    It speaks where several GPUs are asked for (``--gpus 8``) or ``DataParallel`` is used. It is refused where processes
    would differ in silence: numbers that no seed makes alike, threads. And where a process may wait for another in
    vain: models with batch normalisation that choose by their rows which layers they call. So are batches of one
    sample, nodes of graphs, scripts that never use a GPU, agents in an environment, notebooks, models that go backward
    by themselves, and scripts that Accelerate trains by several processes already.

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
from ._precision import ENVIRONMENTS, GRAPHS
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
    copies = bool(found.copied)
    at = (*found.copied, *found.shared, *(each.model for each in found.models), found.loop)
    message = ONE
    if copies:
        message = "`DataParallel` copies the model to all GPUs in every step, from one process"
    seen = tuple(map(of_loop, program.steps[:1]))
    seen += tuple(Evidence("its batches are shared out", each.loader) for each in found.loaders)
    reason = None
    if program.libraries & ENVIRONMENTS:
        reason = "it acts in an environment, and each process would have one of its own"
    if program.libraries & GRAPHS and found.shared:
        reason = "the rows of its batches are nodes of graphs, which do not go without each other"
    if not program.names_cuda and found.owner is None:
        reason = "it never uses a GPU: `use-cuda` moves it to one first"
    if found.hazard is not None:
        reason = f"{found.hazard.why} ({found.hazard.site.line_from(at[0].path)})"
    if (found.normed and found.synchronised) or any(each.normed for each in found.models):
        message += "; batch normalisation then counts over all of them (SyncBatchNorm)"
    assumes = (SHARED_OUT,) if found.shared else (SHARED_OUT, EVERY_GRADIENT)
    yield codemod.offer(at[0], message, reason, plan=found, evidence=seen, assumes=assumes)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Start the processes' group, wrap the models, share out the data, and let one process speak for all."""
    plan = finding.plan
    assert isinstance(plan, Parallel)
    ranks = Ranks(edit, plan)
    ranks.wrap_models()
    share_data(ranks)
    ranks.add_up()
    ranks.agree()
    ranks.in_step()
    ranks.do_once()
    ranks.set_up()
