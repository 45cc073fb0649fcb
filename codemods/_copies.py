"""Which copies of batches do not make the host wait, or need not: pin-memory and non-blocking decide it together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from turbofix.assumptions import BATCHES_ON_HOST, Assumption
from turbofix.findings import Site, Worth
from turbofix.records import dataclass
from turbofix.training.data.pinning import gives_graphs, is_idle, pinning
from turbofix.training.model import Evaluation, Loader, Step, TrainingProgram, Transfer

from ._loaders import ONCE, blocks, is_in_the_way, is_once, may_be_non_blocking
from ._precision import SIMPLE, cuda_test, on_a_gpu


@dataclass(frozen=True)
class Copying:
    """A copy of batches to a GPU, with the loaders that they come from: none where they are not known.

    ``given``: it does not block, or not always. ``can be``: it may be given ``non_blocking``; ``value`` is the source
    of what that is set to, None where it is refused (``why_not``).
    """

    transfer: Transfer
    loaders: tuple[Loader, ...]
    state: Literal["given", "can be"]
    value: str | None = None
    why_not: str = ""
    assumes: tuple[Assumption, ...] = ()

    def worth(self, program: TrainingProgram) -> Worth:
        """Little, where nothing says that the batches are pinned, or they are better taken whole from the GPU, or only
        an evaluation copies them."""
        pins = self.loaders and all(pinning(loader) in ("pinned", "can be") for loader in self.loaders)
        pins = pins and any(loader.role != "evaluation" for loader in self.loaders)
        return Worth.SOME if pins and not all(is_kept(program, loader) for loader in self.loaders) else Worth.SMALL


KEPT = "; where preload-dataset keeps the data on the GPU, it is needless"


def is_kept(program: TrainingProgram, loader: Loader) -> bool:
    """Whether ``preload-dataset`` is offered, after which nothing of a loader is copied in the loop."""
    return any(each.loader == loader.site and not each.heavy and each.why_not is None for each in program.preloads)


def copyings(program: TrainingProgram) -> Iterator[Copying]:
    """The copies of batches that could run beside the computation, in the order of the source."""
    for transfer, loaders, once in copies(program):
        is_batch = transfer.what in ("batch", "object") or transfer.likely == "batch"
        goes = on_a_gpu(program, transfer.to)
        new = blocks(transfer)
        own = new and transfer.what == "input" and transfer.pageable  # of a step that makes its batches by itself
        if not (is_batch or own) or goes is None or transfer.again or transfer.dtype_only:
            continue
        if own or (transfer.pageable and transfer.cast is None):
            if own or (loaders and not once and new):
                yield Copying(transfer, loaders, "can be", None, OWN if own else ANEW)
            continue
        if is_in_the_way(transfer.non_blocking):
            yield Copying(transfer, loaders, "given")
            continue
        unread = (each.first_only or each.role == "unused" or is_idle(each) for each in loaders)
        if loaders and all(idle or pinning(each) == "no" for each, idle in zip(loaders, unread, strict=True)):
            continue
        if not new:
            continue
        if once:
            yield Copying(transfer, loaders, "can be", None, ONCE)
            continue
        unknown = not loaders or transfer.what not in ("batch", "object")
        assumes = (*((BATCHES_ON_HOST,) if unknown else ()), *goes)
        graphs = bool(loaders) and all(map(gives_graphs, loaders))
        if not graphs and (transfer.what == "object" or any(loader.batch == "object" for loader in loaders)):
            why = "the batch is an object of its own class, whose `to` may not take non_blocking"
            yield Copying(transfer, loaders, "can be", None, why)
        elif may_be_non_blocking(transfer):
            value = cuda_test(transfer.to) if transfer.to.mps else "True"
            if value is None and SIMPLE.fullmatch(transfer.to.text or ""):
                value = f'{{torch.device}}({transfer.to.text}).type == "cuda"'  # of a device, its name or its number
            why = "the device may be Apple's, where such a copy may be read too early, and no test here tells"
            yield Copying(transfer, loaders, "can be", value, why, assumes)


def eased(program: TrainingProgram) -> dict[Site, Copying]:
    """The copies that do not block, or will not when the same run has rewritten them: those that pinning serves."""
    given = (copy for copy in copyings(program) if copy.state == "given" or copy.value is not None)
    return {copy.transfer.site: copy for copy in given}


OWN = "no loader is known to pin what it copies: `x.pin_memory().to(device, non_blocking=True)` does not wait"
ANEW = (
    "it is made anew of the batch, or cut out of it, and no copy of pinned memory: copy what the loader hands out, "
    "and compute on the GPU"
)


def copies(program: TrainingProgram) -> Iterator[tuple[Transfer, tuple[Loader, ...], bool]]:
    """The copies in all loops over batches, each once, in the order of the source, with the loaders of the batches.

    Where a batch may come from several loaders (one function validates on two sets), it is all that its loop reads.
    With each, whether it only serves evaluations that run once.
    """
    found: dict[Site, tuple[Transfer, tuple[Loader, ...], bool]] = {}
    loops: tuple[Step | Evaluation, ...] = (*program.evaluations, *program.steps)
    for loop in loops:
        for transfer in loop.transfers:
            sites = (transfer.loader,) if transfer.loader is not None else loop.loaders
            known = tuple(loader for site in sites if (loader := program.loader(site)) is not None)
            _, _, before = found.get(transfer.site, (None, None, True))
            found[transfer.site] = (
                transfer,
                known if len(known) == len(sites) else (),
                is_once(program, loop) and before,
            )
    yield from (found[site] for site in sorted(found))
