"""Small arrays of numbers: what formulas are worked out with, without torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from turbofix.records import dataclass


class OtherError(Exception):
    """It is nothing that is known here."""


@dataclass(frozen=True)
class Array:
    """Numbers in order, the last dimension the fastest."""

    shape: tuple[int, ...]
    numbers: list[float]

    def __getitem__(self, place: tuple[int, ...]) -> float:
        """The number at a place of an array that this one is broadcast to."""
        offset = 0
        for at, size in zip(place[len(place) - len(self.shape) :], self.shape, strict=True):
            if not -size <= at < size and size != 1:
                raise OtherError
            offset = offset * size + (0 if size == 1 else at % size)
        return self.numbers[offset]

    def dimension(self, number: float, more: int = 0) -> int:
        """A dimension, counted from the front."""
        size = len(self.shape) + more
        if not -size <= number < size or number != int(number):
            raise OtherError
        return int(number) % size


def number(value: float) -> Array:
    """One number."""
    return Array((), [float(value)])


def places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All places of an array."""
    return itertools.product(*map(range, shape))


def _with(place: tuple[int, ...], along: int, at: int) -> tuple[int, ...]:
    return (*place[:along], at, *place[along + 1 :])


def _broadcast(*arrays: Array) -> tuple[int, ...]:
    sizes = itertools.zip_longest(*(reversed(each.shape) for each in arrays), fillvalue=1)
    found = [set(each) - {1} for each in sizes]
    if any(len(each) > 1 for each in found):
        raise OtherError
    return tuple(each.pop() if each else 1 for each in reversed(found))


def combined(operation: Callable[..., float], *arrays: Array) -> Array:
    """An operation on each place of arrays."""
    shape = _broadcast(*arrays)
    return Array(shape, [operation(*(each[place] for each in arrays)) for place in places(shape)])


def reduced(operation: Callable[[list[float]], float], array: Array, dim: float | None, *, keep: bool) -> Array:
    """One number of each row along a dimension, or of all."""
    if dim is None:
        return number(operation(array.numbers))
    along = array.dimension(dim)
    shape = tuple(1 if at == along else size for at, size in enumerate(array.shape))
    rows = [[array[_with(place, along, at)] for at in range(array.shape[along])] for place in places(shape)]
    kept = shape if keep else tuple(size for at, size in enumerate(shape) if at != along)
    return Array(kept, [operation(row) for row in rows])


def gathered(array: Array, dim: float, index: Array) -> Array:
    """What ``torch.gather`` gives."""
    along = array.dimension(dim)
    if len(index.shape) != len(array.shape):
        raise OtherError
    taken = [array[_with(at, along, int(index[at]))] for at in places(index.shape)]
    return Array(index.shape, taken)


def picked(array: Array, indices: list[Array]) -> Array:
    """``array[rows, columns]``."""
    if len(indices) != len(array.shape):
        raise OtherError
    shape = _broadcast(*indices)
    return Array(shape, [array[tuple(int(each[at]) for each in indices)] for at in places(shape)])


def shaped(array: Array, sizes: list[float]) -> Array:
    """``array.view(...)``."""
    known = math.prod(int(each) for each in sizes if each != -1)
    shape = tuple(len(array.numbers) // known if each == -1 else int(each) for each in sizes)
    if math.prod(shape) != len(array.numbers):
        raise OtherError
    return Array(shape, array.numbers)


def squeezed(array: Array, dim: float | None, *, more: bool) -> Array:
    """Without a dimension of size 1, or with one more."""
    if dim is None:
        return Array(tuple(size for size in array.shape if size != 1), array.numbers)
    at = array.dimension(dim, more)
    before, behind = array.shape[:at], array.shape[at:]
    return Array((*before, 1, *behind) if more else (*before, *behind[behind[0] == 1 :]), array.numbers)
