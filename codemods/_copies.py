"""Which copies of batches do not make the host wait, or need not: pin-memory and non-blocking decide it together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from turbofix.findings import Site
from turbofix.program.model import Evaluation, Loader, Step, TrainingProgram, Transfer
from turbofix.program.pinning import gives_graphs, is_idle, pinning, synchronized, waiting_copies
from turbofix.records import dataclass

from ._loaders import does_not_block, may_be_non_blocking
from ._precision import cuda_test


@dataclass(frozen=True)
class Copying:
    """A copy of batches to a GPU, with the loaders that they come from.

    ``given``: it does not block, or not always. ``can be``: it may be given ``non_blocking``; ``value`` is the source
    of what that is set to, None where it is refused (``why_not``). ``behind``: it moves no batch, but waits for the
    copy of one that stands in front of it.
    """

    transfer: Transfer
    loaders: tuple[Loader, ...]
    state: Literal["given", "can be"]
    value: str | None = None
    why_not: str = ""
    behind: Site | None = None


def copyings(program: TrainingProgram) -> Iterator[Copying]:
    """The copies that could run beside the computation, and those that would take that from them."""
    found = tuple(of_batches(program))
    yield from found
    moved = waiting_moves(program)
    eased = {
        each.transfer.site: each
        for each in found
        if each.transfer.site not in moved
        and (each.state == "given" or each.value is not None)
        and all(pinning(loader) in ("pinned", "can be") for loader in each.loaders)
    }
    for late, fronts in waiting_copies(program):
        served = [eased[site] for site in sorted(fronts) if site in eased]
        if served and can_go_along(late):
            value = cuda_test(late.to) if late.to.mps else "True"
            yield Copying(late, served[-1].loaders, "can be", value, behind=served[-1].transfer.site)


def of_batches(program: TrainingProgram) -> Iterator[Copying]:
    """The copies of batches that could run beside the computation, in the order of the source."""
    moved = waiting_moves(program)
    for transfer, loaders in copies(program):
        if not loaders or transfer.pageable or transfer.again or not transfer.to.reaches_cuda or transfer.dtype_only:
            continue
        if does_not_block(transfer.non_blocking):
            yield Copying(transfer, loaders, "given")
            continue
        if any(pinning(loader) not in ("pinned", "can be") or loader.first_only for loader in loaders):
            continue
        if any(pinning(loader) == "can be" and wish_is_elsewhere(loader) for loader in loaders):
            continue
        if len(loaders) > 1 and any(pinning(loader) == "can be" and loader.elsewhere for loader in loaders):
            continue  # which of them it reads is up to a program that is not seen
        if transfer.site in moved:
            continue
        if transfer.non_blocking.state != "absent" or all(is_idle(program, loader) for loader in loaders):
            continue
        graphs = all(map(gives_graphs, loaders))
        if not graphs and (transfer.what == "object" or any(loader.batch == "object" for loader in loaders)):
            why = "the batch is an object of its own class, whose `to` may not take non_blocking"
            yield Copying(transfer, loaders, "can be", None, why)
        elif (graphs or transfer.what != "object") and may_be_non_blocking(transfer):
            value = cuda_test(transfer.to) if transfer.to.mps else "True"
            why = "the device may be Apple's, where such a copy may be read too early, and no test here tells"
            yield Copying(transfer, loaders, "can be", value, why)


def eased(program: TrainingProgram) -> frozenset[Site]:
    """The copies that do not block, or will not when the same run has rewritten them: those that pinning serves."""
    return frozenset(
        copy.transfer.site for copy in copyings(program) if copy.state == "given" or copy.value is not None
    )


def copies(program: TrainingProgram) -> Iterator[tuple[Transfer, tuple[Loader, ...]]]:
    """The copies in all loops over batches, each once, in the order of the source, with the loaders of the batches.

    Where a batch may come from several loaders (one function validates on two sets), it is all that its loop reads;
    none where one of them is not known.
    """
    found: dict[Site, tuple[Transfer, tuple[Loader, ...]]] = {}
    loops: tuple[Step | Evaluation, ...] = (*program.evaluations, *program.steps)
    for loop in loops:
        for transfer in loop.transfers:
            sites = (transfer.loader,) if transfer.loader is not None else loop.loaders
            known = tuple(loader for site in sites if (loader := program.loader(site)) is not None)
            found[transfer.site] = transfer, known if len(known) == len(sites) else ()
    yield from (found[site] for site in sorted(found))


def waiting_moves(program: TrainingProgram) -> frozenset[Site]:
    """The copies that another copy of the same iteration, or a wait for all of the GPU's work, would only take the wait
    from, and that must keep blocking."""
    waiting = waiting_copies(program)
    moved = {site for late, fronts in waiting if not can_go_along(late) for site in fronts}
    return frozenset(moved | synchronized(program))


def can_go_along(transfer: Transfer) -> bool:
    """Whether a copy of pageable memory need not wait either: of so few elements that the driver takes them at once."""
    told = not transfer.to.mps or cuda_test(transfer.to) is not None
    return transfer.at_once and told and transfer.method in ("to", "cuda", "type")


def wish_is_elsewhere(loader: Loader) -> bool:
    """Whether the GPU is used only if the user asks for it, which the place where the loader is made does not tell."""
    return loader.goes_to.needs is not None and cuda_test(loader.goes_to) is None
