"""Tensors on the GPU that have sizes and no numbers: nothing is computed on them, and they take no memory.

What a program makes there, and does not move there, is made in full first.

What lies on the host stays as it is, and so do the data and the time that they take. What goes to the GPU that is not
there becomes one of torch's fake tensors, on which each operation only finds out what its result would look like, so
that a step of a network too large for this machine can be written down in a second. Whole numbers and masks of a batch
(labels, tokens, lengths) and single numbers are kept beside, and what is computed of those alone is known: sizes may
depend on it. Of what is not known, a number that is read is 1, or False, and all is finite. What depends on other
numbers (sizes of what is chosen by a score) cannot be had like this, and raises.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from . import remap
from .patching import wrap

_aten: Any = torch.ops.aten
_Mode: Any = fake_tensor.FakeTensorMode  # untyped in torch
_swap: Any = torch._C._swap_tensor_impl
_CERTAIN = {_aten.isnan.default: False, _aten.isinf.default: False}
_LARGEST = 1 << 20  # numbers of a tensor that are kept


class Pretended(_Mode):  # type: ignore[misc]
    """The fake tensors of a run, and their way to the GPU and back."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.seconds = 0.0
        """What pretending has taken, and a GPU would not."""
        self._inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten._local_scalar_dense.default:
            return _number(args[0])
        if func is _aten._pack_padded_sequence.default and not is_pretended(args[1]):
            return _packed(*args)
        kwargs = kwargs or {}
        with self.standing_still():
            try:
                result = super().__torch_dispatch__(func, types, args, kwargs)
            except fake_tensor.DynamicOutputShapeException:
                known = _computed(func, args, kwargs)
                if known is None:
                    raise
                return tree_map_only(Tensor, self.there, known)
            _follow(func, args, kwargs, result)
        return result

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Count the time that passes inside as taken by pretending, once."""
        if self._inside:
            yield
            return
        began, self._inside = time.perf_counter(), True
        try:
            yield
        finally:
            self._inside = False
            self.seconds += time.perf_counter() - began

    def there(self, tensor: Tensor) -> Tensor:
        """What a tensor is on the GPU."""
        if is_pretended(tensor):
            return tensor
        made: Any
        with self.standing_still(), torch._C.DisableTorchFunction(), self:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            made.requires_grad_(tensor.requires_grad)
        if _is_kept(tensor):
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                made._turbofix_numbers = tensor.detach().clone()
        return made  # type: ignore[no-any-return]

    def back(self, tensor: Tensor) -> Tensor:
        """What a tensor is on the host: its numbers where they are known, or else ones."""
        if not is_pretended(tensor):
            return tensor
        known = _known(tensor)
        if known is not None:
            return known.clone()
        return _one(tensor).expand(tensor.shape).clone()


def _number(tensor: Tensor) -> Any:
    known = _known(tensor)
    if known is not None:
        return known.item()
    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def _known(tensor: Tensor) -> Tensor | None:
    """The numbers of a tensor; None where they are only pretended."""
    found: Tensor | None = getattr(tensor, "_turbofix_numbers", None) if is_pretended(tensor) else tensor
    return found


def _is_kept(tensor: Tensor) -> bool:
    """Whether the numbers of such a tensor are kept where they are known."""
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return ((whole and tensor.numel() <= _LARGEST) or tensor.dim() == 0) and tensor.layout is torch.strided


def _follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Keep the numbers of a result that are known, and no others."""
    made: list[Any] = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
    if not made or not all(map(_is_kept, made)):
        return
    known = [each for each in tree_leaves(_computed(func, args, kwargs)) if isinstance(each, Tensor)]
    for place, each in enumerate(made):
        numbers = known[place] if place < len(known) else None
        if is_pretended(each):
            each._turbofix_numbers = numbers if numbers is None or numbers.shape == each.shape else None


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives for numbers that are all known; None for others."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        certain = _certain(func, args)
        if certain is not None:
            return torch.full((1,) * args[0].dim(), certain).expand(args[0].shape)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if not given or any(_known(each) is None for each in given):
            return None
        args, kwargs = tree_map_only(Tensor, _known, (args, kwargs))
        with contextlib.suppress(Exception):
            return func(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
    return None


def _certain(func: Any, args: Any) -> bool | None:
    """What a comparison says of everything that is finite: ``isfinite`` is ``(x == x) * (abs(x) != inf)``."""
    if func is _aten.eq.Tensor and args[0] is args[1]:
        return True
    if func is _aten.ne.Scalar and args[1] == math.inf:
        return True
    return _CERTAIN.get(func)


def _packed(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Sequences without their padding, and how many go on at each step: the host knows the lengths."""
    left = torch.tensor([int((lengths > step).sum()) for step in range(int(lengths.max()))])
    return padded.new_empty((int(lengths.sum()), *padded.shape[2:])), left


def is_pretended(tensor: Tensor) -> bool:
    """Whether a tensor lies on the GPU that is not there."""
    return isinstance(tensor, fake_tensor.FakeTensor)


def _one(tensor: Tensor) -> Tensor:
    return torch.full((1,) * tensor.dim(), _number(tensor), dtype=tensor.dtype)


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
    kind.tolist = plain.tolist  # fake tensors have one of their own, which reads number by number
    _foreach_utils._foreach_supported_types.append(kind)  # gradients are clipped all at once
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
