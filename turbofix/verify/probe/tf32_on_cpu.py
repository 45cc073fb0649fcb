"""Round what the tensor cores would round: float32 matrix products in TF32, for a program that runs on a CPU instead.

A tensor core reads the operands of such a product with 10 bits of mantissa instead of 23 (``cvt.rna.tf32.f32`` of the
PTX ISA: to nearest, ties away from zero) and adds in float32. Forward and backward passes are rounded alike, where the
program has allowed it, and while it does. Attention in one kernel is left as it is: its kernels decide for themselves;
convolutions and LSTMs are too: cuDNN has a switch of its own. The products of GRUs and plain RNNs, which a CPU shows
one by one, are rounded though cuDNN's switch would decide. What is multiplied in float16 is added up in float32, as a
tensor core does; a CPU that knows float16 badly takes ten times as long. Nothing of this is done in a program that
compiles, whose graphs know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from .patching import wrap

_DROPPED_BITS = 13
_HALF = 1 << (_DROPPED_BITS - 1)
_KEPT = ~((1 << _DROPPED_BITS) - 1)

_aten: Any = torch.ops.aten
# the positions of the two operands
_PRODUCTS = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.addbmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
}
_SUMS = {*_PRODUCTS, _aten.convolution.default, _aten.convolution_backward.default}

_SETTERS = ("_set_float32_matmul_precision", "_set_cublas_allow_tf32", "_set_fp32_precision_setter")


_Mode: Any = dispatch.TorchDispatchMode  # untyped in torch


class Rounding(_Mode):  # type: ignore[misc]
    """Every operation passes here from when the program first allows TF32, or computes in float16; autograd's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = False
        self.entered = False
        self.compiles = False
        self.products = 0
        """How many products have been rounded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = _PRODUCTS.get(func) if self.allowed else None
        if places is not None and all(args[place].dtype is torch.float32 for place in places):
            self.products += 1
            args = tuple(rounded(each) if place in places else each for place, each in enumerate(args))
        if func in _SUMS and args[1].dtype is torch.float16:
            return _cast(func(*_cast(args, torch.float16, torch.float32)), torch.float32, torch.float16)
        return func(*args, **(kwargs or {}))

    def look(self) -> None:
        """See what the program allows by now."""
        self.allowed = _is_allowed()
        if self.allowed:
            self.enter()

    def enter(self) -> None:
        """Be there from now on."""
        if not self.entered and not self.compiles:
            self.entered = True
            self.__enter__()

    def leave(self) -> None:
        """Be gone, for the compiler compiles nothing below a mode."""
        self.compiles = True
        stack = dispatch._get_current_dispatch_mode_stack()
        if self.entered and stack and stack[-1] is self:
            self.entered = False
            self.__exit__(None, None, None)


def _cast(some: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """A tensor, or those in a tuple, in another precision."""
    if isinstance(some, tuple):
        return tuple(_cast(each, old, new) for each in some)
    return some.to(new) if isinstance(some, torch.Tensor) and some.dtype is old else some


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of float32, rounded to TF32's 10 bits of mantissa; infinities and a CPU's NaN stay what they are."""
    return tensor.view(torch.int32).add(_HALF).bitwise_and_(_KEPT).view(torch.float32)


def install() -> Rounding:
    """Have the switches of TF32 act, for this process and the workers forked from it."""
    rounding = Rounding()

    def looking(original: Any) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            result = original(*arguments)
            rounding.look()
            return result

        return change

    for name in _SETTERS:
        wrap(torch._C, name, looking)
    return rounding


def _is_allowed() -> bool:
    """Whether float32 matrix products may use TF32, by either kind of switch: the older is not to be read beside the
    newer (and raises)."""
    try:
        return bool(torch._C._get_cublas_allow_tf32())
    except RuntimeError:
        newer: Any = torch._C
        return bool(newer._get_fp32_precision_getter("cuda", "matmul") == "tf32")
