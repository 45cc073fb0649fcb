"""Take length out of a run: long data sets are shortened alike for both programs, and keep their tail.

The plan says, for a sampler (or batch sampler) of so many entries, how many of them an epoch may have. The loader's own
length follows, so that ``len(loader)`` and the number of batches agree as they did.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader


class _Shortened:
    """A sampler or batch sampler that ends early; everything else is the original's."""

    def __init__(self, original: Any, length: int) -> None:
        count = processes_of(original)
        drops = getattr(original, "drop_last", False) and count > 1
        self._original, self._length = original, length // count if drops else -(-length // count)
        self.whole = length

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._original), self._length)

    def __len__(self) -> int:
        return self._length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def size_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except TypeError:
        return None


def reads_once(loader: Any) -> bool:
    """Whether a loader is the one with which a rewrite reads a data set whole, in front of the training, to keep it.

    Its mark is a `range` for a sampler beside a generator of its own, which then orders nothing: no script has both.
    """
    return type(loader.sampler) is range and loader.generator is not None


def entries(loader: Any) -> int | None:
    """How many entries the loader's sampler has: samples where torch cuts the batches, else batches; or unknown.

    Torch's ``BatchSampler`` may also be the sampler of a loader that is told to make no batches (``batch_size=None``).
    """
    entering = loader.sampler if loader.batch_sampler is None else plain_batches(loader.batch_sampler)
    sampler: Any = entering.sampler if type(entering) is BatchSampler else entering
    return size_of(sampler.dataset if processes_of(sampler) > 1 else sampler)


def processes_of(sampler: Any) -> int:
    """How many processes a sampler (torch's ``DistributedSampler``) shares its data set out among."""
    count = getattr(sampler, "num_replicas", 1)
    return count if type(count) is int and hasattr(sampler, "dataset") else 1


def plain_batches(batches: Any) -> Any:
    """What makes the batches that another sampler of batches (Accelerate's) hands on in part."""
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return batches


def pieces_of(entering: Any) -> int:
    """Of how many processes each takes a piece of every batch that a sampler chooses: Accelerate's, or a rewrite's."""
    if getattr(entering, "split_batches", False):
        count = getattr(entering, "num_processes", 1)
    else:
        count = getattr(entering, "num_replicas", 1) if hasattr(entering, "batch_sampler") else 1
    return count if type(count) is int else 1


def shares(loader: Any) -> tuple[int, int | None]:
    """Among how many processes the samples are shared out, and after how many of its own one has another share.

    None where the shares are equal. Else the last batch of an epoch has samples twice, or lacks some.
    """
    entering = loader._index_sampler
    split = pieces_of(entering)
    if split > 1:
        inner = plain_batches(entering)
        whole, size = size_of(getattr(inner, "sampler", None)) or 0, getattr(inner, "batch_size", None) or 1
        return split, whole // size * size // split if whole % size else None
    sampler = getattr(entering, "sampler", entering)
    count = processes_of(sampler)
    if count == 1:
        return 1, None
    whole = sampler.whole if isinstance(sampler, _Shortened) else size_of(sampler.dataset) or 0
    cut = getattr(sampler, "drop_last", False) and getattr(entering, "drop_last", False)
    return count, None if cut or whole % count == 0 else size_of(sampler)


def install(plan: Mapping[int, int], others: int) -> None:
    """Shorten every loader whose number of entries is in ``plan``, and, where there is a plan, every other long one.

    Of the others about ``others`` entries are kept, and the remainder modulo 64, so that a partial last batch stays.
    """
    if not plan:
        return
    original = DataLoader._index_sampler.fget  # type: ignore[attr-defined]

    def index_sampler(self: Any) -> Any:
        whole = original(self)
        count = entries(self)
        if count is None or reads_once(self) or not hasattr(self.dataset, "__getitem__"):
            return whole
        kept = plan.get(count, count if count < 2 * others else others + count % 64)
        if kept >= count:
            return whole
        if type(whole) is BatchSampler:
            return BatchSampler(_Shortened(whole.sampler, kept), whole.batch_size, whole.drop_last)
        return _Shortened(whole, kept)

    setattr(DataLoader, "_index_sampler", property(index_sampler))  # noqa: B010 (mypy: a property is read-only)
