"""The processes of a training, one for each GPU: each has its share of the data, and one speaks for all.

turbofix has written this file beside a script, which calls ``begin()`` before all else. Without torchrun nothing here
changes what the script does. Where torchrun starts it, it needs torch 2.4 and Python 3.10.
"""

import atexit
import copyreg
import logging
import math
import multiprocessing
import os
import random
import signal
import sys
import time

rank = int(os.environ.get("RANK", 0))  # torchrun tells each process
world_size = int(os.environ.get("WORLD_SIZE", 1))

if world_size > 1 and "PYTHONHASHSEED" not in os.environ:  # of the processes all are to go through sets in one order
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

import torch  # now that this process is the one that stays


class Process:
    """What this process is at."""

    single = False  # one does for all what it is doing
    parted = False  # it does not wait for the others any more
    meetings = 0  # with the others, under an error


def begin():
    """Join the other processes, where torchrun has started several; all begin with the same random numbers."""
    if world_size == 1 or multiprocessing.parent_process() is not None:
        return
    local = os.environ["LOCAL_RANK"]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", local).split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(local) % len(gpus)]  # each sees one GPU
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    seed = agreed(torch.initial_seed())
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(seed % 2**32)
    atexit.register(leave)
    signal.signal(signal.SIGINT, interrupted)
    if rank > 0:  # one prints
        sys.stdout = open(os.devnull, "w")
        os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", MPLBACKEND="Agg")
        logging.disable(logging.WARNING)


def together():
    """Whether processes do the same: this is no worker of one, and no part of what one does for all."""
    alone = multiprocessing.parent_process() is not None or Process.single
    return world_size > 1 and torch.distributed.is_initialized() and not alone


def met():
    """Wait for all processes; whether they came. Not for ever where this one has an error, which may be its own."""
    group, error = torch.distributed, sys.exc_info()[0]
    if Process.parted:  # each is somewhere else
        return False
    if error is None:
        group.barrier()
        return True
    Process.meetings, latest = Process.meetings + 1, time.monotonic() + 300
    store, name = group.distributed_c10d._get_default_store(), f"meeting {Process.meetings}"
    came = store.add(name, 1)
    while came < world_size and time.monotonic() < latest:
        time.sleep(0.02)
        came = store.add(name, 0)
    if came < world_size:
        Process.parted = True
    return came == world_size


def once(call):
    """A call that the first process makes for all: they wait until it is done."""

    def made(*args, **kwargs):
        several, answer = together(), None
        came = several and met()
        if rank == 0 or not several:
            answer = call(*args, **kwargs)
        if came:
            met()
        return answer

    return made


def first(call):
    """A call that the first process makes before the others do, which then find what it fetched."""

    def made(*args, **kwargs):
        several = together()
        if several and rank > 0:
            torch.distributed.barrier()
        Process.single, before = True, Process.single  # each makes what it calls by itself
        try:
            return call(*args, **kwargs)
        finally:
            Process.single = before
            if several and rank == 0:
                torch.distributed.barrier()

    return made


def leave():
    """Leave the other processes: when all have come to the end, or in a minute; at once where this one has failed."""
    if not torch.distributed.is_initialized():  # a worker of its own
        return
    store = torch.distributed.distributed_c10d._get_default_store()
    failed = hasattr(sys, "last_type") or Process.parted
    came, latest = store.add("left", 1), time.monotonic() + (2 if failed else 60)
    while came < torch.distributed.get_world_size() and time.monotonic() < latest:
        time.sleep(0.02)
        came = store.add("left", 0)
    if failed and rank > 0:
        time.sleep(5)  # torchrun ends the others then
    torch.distributed.destroy_process_group()
    time.sleep(0.2)  # for its threads, which Python does not wait for


def interrupted(*given):
    Process.parted = True  # each process goes on by itself: the others are somewhere else
    signal.default_int_handler(*given)


def agreed(decision):
    """What the first process decides, for all of them."""
    if world_size == 1:
        return decision
    decided = [decision]
    torch.distributed.broadcast_object_list(decided)
    return decided[0]


def like(figure, number):
    """A number, on a device where the figure is."""
    return figure.new_full(figure.shape, number) if isinstance(figure, torch.Tensor) else number


def of_all(figure, loader):
    """A sum over shares that are as long because some samples are in two: in proportion, over all samples."""
    whole = figure * min(1.0, len(loader.dataset) / loader.sampler.total_size)
    if isinstance(figure, torch.Tensor):
        return whole if figure.is_floating_point() else whole.round().to(figure.dtype)
    return round(whole) if isinstance(figure, int) else whole


def synchronise(model):
    """Have its layers normalise batches over all processes; else, and in files, they are what they were. A layer that
    computes in a way of its own is left as it is."""
    for layer in model.modules():
        kind = type(layer)
        if getattr(kind, "forward", None) is torch.nn.modules.batchnorm._BatchNorm.forward:
            made = (copyreg._reconstructor, (kind, object, None))
            kept = {"__reduce_ex__": lambda self, _, made=made: (*made, vars(self))}
            layer.process_group = None
            layer.__class__ = type(kind.__name__, (torch.nn.SyncBatchNorm, kind), kept)


class Pipeline:
    """The layers of this process, and steps through those of all."""

    def __init__(self, layers):
        sizes = [sum(each.numel() for each in layer.parameters()) for layer in layers]
        middles = [sum(sizes[:number]) + size / 2 for number, size in enumerate(sizes)]
        owners = [min(int(each / max(sum(sizes), 1) * world_size), world_size - 1) for each in middles]
        shared = sum(each.numel() for each in layers.parameters()) < sum(sizes)
        if shared or len({owner for owner, size in zip(owners, sizes) if size}) < world_size:
            sys.exit("the layers cannot be shared out among so many processes: start fewer")
        for layer, owner in zip(layers, owners):
            if owner != rank:
                layer.cpu()
        self.layers, self.owners, self.schedules = layers, owners, {}
        self.own = torch.nn.Sequential(*[layer for layer, owner in zip(layers, owners) if owner == rank])
        self.device = next(self.own.parameters()).device

    def parameters(self):
        return self.own.parameters()

    def step(self, inputs, targets, criterion):
        """The mean loss of a batch of the first process; its gradients are added to those that are there."""
        if inputs.shape not in self.schedules:
            from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

            stage = PipelineStage(self.own, rank, world_size, self.device)
            parts = math.gcd(len(inputs), 2 * world_size)
            self.schedules[inputs.shape] = ScheduleGPipe(stage, parts, loss_fn=criterion)
        schedule, targets, losses = self.schedules[inputs.shape], targets.contiguous(), []
        torch.distributed.broadcast(targets, 0)
        if rank == 0:
            schedule.step(inputs)
        elif rank == world_size - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)
        torch.distributed.broadcast(loss, world_size - 1)
        return loss

    def gather(self):
        """Bring the layers of all processes up to date in each."""
        for layer, owner in zip(self.layers, self.owners):
            state = [{name: value.cpu() for name, value in layer.state_dict().items()}]
            torch.distributed.broadcast_object_list(state, owner)
            layer.load_state_dict(state[0])
