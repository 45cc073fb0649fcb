"""What can be pinned of a loader's batches."""

from __future__ import annotations

from typing import Literal

from turbofix.training.model import Loader

BY_DEEPSPEED = "deepspeed.runtime.dataloader.DeepSpeedDataLoader"
"""What ``deepspeed.initialize`` makes of its ``training_data``; it pins its memory."""

HANDFUL = 4
"""How many batches of an evaluation are not worth a pinning thread."""


def pinning(loader: Loader) -> Literal["pinned", "can be", "maybe", "no"]:
    """Whether the loader hands out pinned memory, or could.

    ``maybe``: what the call passes is not known, or changes from run to run; ``no``: pinning is not possible or has
    nothing to pin.
    """
    pin = loader.argument("pin_memory")
    if loader.subclass == BY_DEEPSPEED:
        return "pinned"
    if loader.dataset.on_device or loader.collate_on_device or sparse(loader) is not None:
        return "no"
    if pin.state == "value" and pin.values[0]:
        return "pinned"
    if pin.state == "computed" or (pin.state in ("may", "option") and any(pin.values)):
        return "pinned"  # where a GPU is used: `pin_memory=torch.cuda.is_available()`
    if pin.state in ("unknown", "may") or loader.open_mapping:
        return "maybe"
    if (loader.subclass is not None or loader.batch == "object") and not gives_graphs(loader):
        return "no"
    return "can be"


def sparse(loader: Loader) -> str | None:
    """What makes sparse tensors of a loader's batches, which torch 2.4 cannot pin; None for dense ones.

    torch's own collate function takes none, so that the samples' count where the program has its own, or makes no
    batches.
    """
    size = loader.argument("batch_size")
    own = loader.collate != "default" or any(each is None for each in size.values)
    made = loader.collating.sparse if loader.collating is not None else None
    return made or (loader.dataset.sparse if own else None)


def gives_graphs(loader: Loader) -> bool:
    """Whether its batches are PyTorch Geometric's, which can be pinned and whose ``to`` takes ``non_blocking``.

    Not those of a sampling loader, which are put together behind the pinning. A collate function they leave aside.
    """
    package, _, name = (loader.subclass or "").rpartition(".")
    is_theirs = package in ("torch_geometric.loader", "torch_geometric.data")
    return is_theirs and name in ("DataLoader", "DenseDataLoader")


def is_idle(loader: Loader) -> bool:
    """Whether no copy of the loader's batches has anything to run beside.

    It only serves evaluations, of a handful of batches that the training process itself would pin.
    """
    workers, batch, length = loader.argument("num_workers"), loader.argument("batch_size"), loader.dataset.length
    sizes = [each for each in batch.values if type(each) is int and each > 0] if batch.known else []
    if loader.role != "evaluation" or length is None or not sizes or len(sizes) != len(batch.values):
        return False
    if not (workers.state == "absent" or (workers.state == "value" and workers.values == (0,))):
        return False
    return -(-length // min(sizes)) <= HANDFUL
