"""The original's moments on disk, by optimizer: written step by step, read back in the same order.

The values before a step are most often those after the last one, and then they are not written again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from torch import Tensor

from . import products, tensors
from .lockstep import Moment


class Store:
    """Moments in one folder, up to a limit in bytes. One program writes, the other reads, each in its own process."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder, self._left = folder, limit
        self._writers: dict[int, tensors.Writer] = {}
        self._readers: dict[int, Iterator[Moment]] = {}
        # by optimizer: the moment written or read last, and of one read, its step
        self._last: dict[int, Moment] = {}
        self._step: dict[int, int] = {}
        os.makedirs(folder, exist_ok=True)

    def _path(self, optimizer: int) -> str:
        return os.path.join(self._folder, str(optimizer))

    def write(self, optimizer: int, moment: Moment) -> bool:
        """Write the optimizer's next moment down; False once the limit is reached or the disk is full."""
        last = self._last.get(optimizer)
        follows = last is not None and _same(last.after, moment.before)
        content = [] if follows else list(moment.before)
        content += [*moment.after, *moment.buffers.values(), *(g for g in moment.gradients if g is not None)]
        self._left -= sum(tensor.numel() * tensor.element_size() for tensor in content)
        if self._left < 0:
            return False
        with_gradient = [gradient is not None for gradient in moment.gradients]
        note = (moment.names, follows, list(moment.buffers), with_gradient, moment.skipped)
        try:
            if optimizer not in self._writers:
                self._writers[optimizer] = tensors.Writer(self._path(optimizer))
            self._writers[optimizer].append(content, note)
        except OSError:
            return False
        self._last[optimizer] = moment
        return True

    def read(self, optimizer: int, step: int) -> Moment | None:
        """The moment of a step, which is the one read last or comes after it; None where it was not written."""
        if optimizer not in self._readers:
            self._readers[optimizer] = _moments(self._path(optimizer))
            self._step[optimizer] = -1
        while self._step[optimizer] < step:
            moment = next(self._readers[optimizer], None)
            if moment is None:
                return None
            self._last[optimizer] = moment
            self._step[optimizer] += 1
        return self._last[optimizer]


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(
        a.dtype == b.dtype and products.same(a, b) for a, b in zip(some, others, strict=True)
    )


def _moments(path: str) -> Iterator[Moment]:
    """The moments of a file; none where there is no file."""
    before: list[Tensor] = []
    for found, (names, follows, buffers, with_gradient, skipped) in tensors.records(path):
        left = iter(found)
        moment = Moment(names, before if follows else [next(left) for _ in names])
        before = moment.after = [next(left) for _ in names]
        moment.buffers = {name: next(left) for name in buffers}
        moment.gradients = [next(left) if there else None for there in with_gradient]
        moment.skipped = skipped
        yield moment
