"""Lengths and angles of tensors seen as long vectors, in double precision, and cheap where two are the same."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Products:
    """Of two vectors x and y: x·x, y·y and (x - y)·(x - y)."""

    old: float = 0.0
    new: float = 0.0
    apart: float = 0.0

    @property
    def angle(self) -> float:
        """1 - the cosine; 0 where both vanish, 1 where one does."""
        if self.old == 0 or self.new == 0:
            return 0.0 if self.old == self.new else 1.0
        x, y = math.sqrt(self.old), math.sqrt(self.new)
        # what the distance leaves beside the difference in length: no cancellation of numbers near 1
        return max((self.apart - (x - y) * (x - y)) / (2 * x * y), 0.0) if self._finite() else float("nan")

    def _finite(self) -> bool:
        return math.isfinite(self.old) and math.isfinite(self.new)

    @property
    def ratio(self) -> float:
        """The new length over the old one; 1 where both vanish."""
        if self.old == 0:
            return 1.0 if self.new == 0 else float("inf")
        return math.sqrt(self.new) / math.sqrt(self.old)

    @property
    def norm(self) -> float:
        return math.sqrt(self.old)

    @property
    def difference(self) -> float:
        return math.sqrt(self.apart)

    @property
    def off(self) -> float:
        """The difference, as a share of the old vector's length."""
        return self.difference / self.norm if self.old else float(self.apart > 0)

    def report(self) -> dict[str, float]:
        return {"angle": self.angle, "ratio": self.ratio, "norm": self.norm}


def total(parts: Iterable[Products]) -> Products:
    """The products of the vectors that the parts make up, one after another."""
    old = new = apart = 0.0
    for part in parts:
        old, new, apart = old + part.old, new + part.new, apart + part.apart
    return Products(old, new, apart)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are equal bit for bit. None is as good as zeros, and what is not a number equals its like."""
    if a is None or b is None:
        return all(one is None or not bool(one.any()) for one in (a, b))
    if a.shape != b.shape:
        return False
    b = b.to(a.dtype)
    return torch.equal(a, b) or torch.equal(a.nan_to_num(nan=0.5), b.nan_to_num(nan=0.5))


def of(a: Tensor | None, b: Tensor | None, *, equal: bool) -> Products:
    """The products of two tensors of one shape; one that is None is zero. ``equal`` when they are known to be."""
    if equal and a is not None:
        square = _square(a)
        return Products(square, square, 0.0 if math.isfinite(square) else square)
    if a is None or b is None:
        old, new = (0.0 if one is None else _square(one) for one in (a, b))
        return Products(old, new, old + new)
    return Products(_square(a), _square(b), _square(_difference(b, a)))


def changes(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], *, equal: bool) -> Products:
    """The products of what two programs did to a tensor, each given as (the original's, the candidate's)."""
    ours = _difference(after[0], before[0])
    return of(ours, ours if equal else _difference(after[1], before[1]), equal=equal)


def _difference(after: Tensor, before: Tensor) -> Tensor:
    # a difference of half-precision numbers would be rounded away, one of single precision is exact enough
    if after.dtype in (torch.float32, torch.float64) and before.dtype == after.dtype:
        return after - before
    return after.to(_wide(after)) - before.to(_wide(before))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _square(tensor: Tensor) -> float:
    known = tensor.is_floating_point() or tensor.is_complex()
    return float(torch.linalg.vector_norm(tensor if known else tensor.double(), dtype=_wide(tensor))) ** 2
