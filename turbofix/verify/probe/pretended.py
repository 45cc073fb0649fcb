"""Tensors on the GPU that have sizes and no numbers: nothing is computed on them, and they take no memory.

What lies on the host stays as it is, and so do the data and the time that they take. What goes to the GPU that is not
there becomes one of torch's fake tensors, on which each operation only finds out what its result would look like. A
number that is read of one is 1, or False, so that a step of a network too large for this machine can be written down
in a second. What depends on numbers (sizes of what is chosen by a mask) cannot be had like this, and raises.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor

from . import remap
from .patching import wrap

_aten: Any = torch.ops.aten
_Mode: Any = fake_tensor.FakeTensorMode  # untyped in torch
_swap: Any = torch._C._swap_tensor_impl


class Pretended(_Mode):  # type: ignore[misc]
    """The fake tensors of a run, and their way to the GPU and back."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.seconds = 0.0
        """What pretending has taken, and a GPU would not."""
        self._inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten._local_scalar_dense.default:
            return _number(args[0].dtype)
        if func is _aten._pack_padded_sequence.default and not is_pretended(args[1]):
            return _packed(*args)
        if self._inside:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        began, self._inside = time.perf_counter(), True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        finally:
            self._inside = False
            self.seconds += time.perf_counter() - began

    def there(self, tensor: Tensor) -> Tensor:
        """What a tensor is on the GPU."""
        if is_pretended(tensor):
            return tensor
        with self:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.requires_grad_(tensor.requires_grad)

    def back(self, tensor: Tensor) -> Tensor:
        """What a tensor is on the host: ones."""
        if not is_pretended(tensor):
            return tensor
        return _one(tensor).expand(tensor.shape).clone()


def _number(dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _packed(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Sequences without their padding, and how many go on at each step: the host knows the lengths."""
    left = torch.tensor([int((lengths > step).sum()) for step in range(int(lengths.max()))])
    return padded.new_empty((int(lengths.sum()), *padded.shape[2:])), left


def is_pretended(tensor: Tensor) -> bool:
    """Whether a tensor lies on the GPU that is not there."""
    return isinstance(tensor, fake_tensor.FakeTensor)


def _one(tensor: Tensor) -> Tensor:
    return torch.full((1,) * tensor.dim(), _number(tensor.dtype), dtype=tensor.dtype)


def install() -> None:
    """Have what goes to the GPU pretend from now on."""
    remap.pretended = Pretended()
    wrap(torch.nn.Module, "_apply", _applying)
    kind: Any = fake_tensor.FakeTensor
    tells = kind.device.fget

    def place(tensor: Any) -> torch.device:
        """On the GPU, for all but torch itself; fake tensors are asked past every mode."""
        return torch.device("cuda", 0) if remap.from_user() else tells(tensor)

    kind.device = property(place)
    plain: Any = Tensor
    # of a checkpoint no more is written than how large everything is
    kind.__reduce_ex__ = lambda tensor, how: plain.__reduce_ex__(_one(tensor).expand(tensor.shape), how)
    kind.__format__ = lambda tensor, how: format(tensor.item() if tensor.dim() == 0 else str(tensor), how)


def _applying(original: Any) -> Any:
    def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        for module in self.children() if recurse else ():
            module._apply(fn)
        for parameter in self._parameters.values():
            if parameter is not None:
                with torch.no_grad():
                    _become(parameter, fn(parameter))
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else fn(buffer)
        return self

    return _apply


def _become(parameter: Any, other: Any) -> None:
    """Make a parameter another, and leave it the object that the optimizer and other modules have, as on a GPU."""
    if other is parameter:
        return
    parameter.grad = None
    place = remap.place_of(other)
    other = remap.put(torch.nn.Parameter(other.detach(), parameter.requires_grad), place)
    parameter.__class__, other.__class__ = other.__class__, parameter.__class__
    parameter.__dict__, other.__dict__ = other.__dict__, parameter.__dict__
    _swap(parameter, other)
