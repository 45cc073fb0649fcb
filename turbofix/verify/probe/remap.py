"""Every torch function call passes here: CUDA devices in it become the CPU, and tensors know where they would lie.

What goes from one device to the other is copied, as it is on a GPU: what is changed in place behind it shows. A tensor
lies on the GPU for certain, on the CPU for certain, or it is not known where, and only what is certain is refused.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils.data import get_worker_info

_Anything = TypeVar("_Anything")

listener: Callable[..., None] | None = None
"""Told of each tensor that goes from the host to the GPU, or back: ``(tensor, pinned=, waits=, to_cuda=)``."""

pretended: Any = None
"""Where tensors on the GPU are only pretended, what makes them (``there``) and of them (``back``)."""

card, cards = 0, 1
"""Which of how many cards is this process's own."""

_NAMES_A_DEVICE = (str, torch.device)
_MAY_HOLD_TENSORS: Any = (torch.Tensor, tuple, list)

_TOLD_THE_TRUTH = ("torch", "triton", "bitsandbytes", "_turbofix_probe")
"""Packages that choose their own kernels by what they are told: torch's compiler breaks where it is told of a card that
is not there, and bitsandbytes, which has kernels for a CPU as well, cannot be imported."""

# A module's own `to` passes on what it was given.
_PASSES_ON = "torch.nn.modules.module"

# What these return lies where their first argument does, whatever the others are for.
_AS_THE_FIRST = frozenset({"__getitem__", "expand_as", "view_as", "reshape_as", "ctc_loss"})
# (values, counts): CUDA wants the counts on the CPU
_WITH_COUNTS = frozenset({"_pack_padded_sequence", "_pad_packed_sequence"})


# What computes something of all its tensors at once: on a GPU they must lie on one device, but for a single number.
_TOGETHER = frozenset(
    """
    add radd sub rsub mul rmul div true_divide rtruediv rdiv floor_divide floordiv rfloordiv remainder fmod mod rmod
    pow rpow matmul rmatmul mm bmm mv dot addmm addbmm baddbmm addmv addcmul addcdiv lerp maximum minimum fmax fmin
    eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor and or xor multiply divide
    subtract where cat concat concatenate stack hstack vstack gather scatter scatter_add index_select masked_fill
    masked_select einsum linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    embedding embedding_bag cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss
    l1_loss smooth_l1_loss huber_loss kl_div batch_norm layer_norm group_norm scaled_dot_product_attention cdist
    cosine_similarity atan2 isclose allclose equal
    """.split()  # noqa: SIM905 (a line for each word, or none to read)
)
# Code of torch's that handles tensors whose place is known to it alone.
_HANDLES = ("torch.optim", "torch.amp", "torch.autograd", "torch.distributed", "torch.nn.utils", "torch.utils")


def is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def moved(device: Any) -> Any:
    """The device to use instead. A worker process that touches CUDA fails, as it does on a real GPU."""
    if not is_cuda(device):
        return device
    if get_worker_info() is not None:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. "
            "To use CUDA with multiprocessing, you must use the 'spawn' start method"
        )
    return "cpu" if isinstance(device, str) else torch.device("cpu")


def from_user(depth: int = 2) -> bool:
    """Whether the caller is the user's code, or another's that does not need the truth."""
    return _caller(depth + 1).partition(".")[0] not in _TOLD_THE_TRUTH


def _caller(depth: int) -> str:
    frame: Any = sys._getframe(depth)
    while frame.f_code.co_name == "__torch_function__":  # of another mode, through which the call has come
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def place_of(thing: Any) -> bool | None:
    """True on the GPU, False on the CPU, None where that is not known."""
    found: bool | None = getattr(thing, "_turbofix_on_cuda", None)
    return found


def put(result: _Anything, place: bool | None) -> _Anything:
    """Remember where this tensor, or each of some, would lie."""
    if isinstance(result, torch.Tensor):
        if place is not None:
            result._turbofix_on_cuda = place  # type: ignore[attr-defined]
        elif place_of(result) is not None:
            del result._turbofix_on_cuda  # type: ignore[attr-defined]
    elif isinstance(result, (list, tuple)):
        for one in result:
            put(one, place)
    elif isinstance(result, dict):
        put(list(result.values()), place)
    elif isinstance(result, torch.nn.Module):
        put([*result.parameters(), *result.buffers()], place)
    return result


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Those among the values, and in lists among them."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [one for one in value if isinstance(one, torch.Tensor)]
    return found


def place_among(tensors: Iterable[torch.Tensor]) -> bool | None:
    """Where that lies which is computed of them; a single number on the CPU goes along with all others."""
    places = {place_of(one) for one in tensors if place_of(one) is not False or one.dim()}
    if True in places:
        return None if False in places else True
    return None if None in places else False


class Remap(TorchFunctionMode):
    """The mode itself."""

    def __init__(self) -> None:
        super().__init__()
        tensor: Any = torch.Tensor
        self._device = tensor.device.__get__
        self.moved = False
        self.by_default = False
        """Whether tensors are made on the GPU where no device is named (``torch.set_default_device``)."""
        self._known: dict[Any, tuple[str, bool]] = {}
        self._guessed = False  # whether a tensor of which that is not known was said to lie on the CPU
        self._answers: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
            # an object that only names a device is what it says, and so is what a module's `to` is given
            torch.device: lambda func, args, kwargs: func(*args, **kwargs),
            torch._C._nn._parse_to: _parse,
            self._device: self._tell_place,
            tensor.is_cuda.__get__: self._tell_place,
            tensor.data.__set__: _swap,
            tensor.cuda: self._to_cuda,
            tensor.cpu: lambda func, args, kwargs: _landed(func(*args, **kwargs), args[0], kwargs, place=False),
            tensor.to: self._to,
            tensor.type: self._type,
            tensor.tolist: _to_list,
            tensor.numpy: _to_numpy,
            tensor.__array__: _to_numpy,
            tensor.type_as: lambda func, args, kwargs: _landed(
                func(*args, **kwargs), args[0], place=place_of((*args, *kwargs.values())[1])
            ),
            tensor.pin_memory: _pin,
            tensor.is_pinned: lambda func, args, kwargs: True,
            tensor.get_device: lambda func, args, kwargs: card,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # every operation comes through here: what is asked of most is asked in place, and of a function once
        answer = self._answers.get(func)
        if answer is not None:
            return answer(func, args, kwargs or {})
        name, together = self._known.get(func) or self._know(func)
        if self.by_default and func in _device_constructors() and (kwargs or {}).get("device") is None:
            kwargs = {**(kwargs or {}), "device": "cuda"}
        to_cuda = False
        for argument in args:
            if type(argument) in _NAMES_A_DEVICE and is_cuda(argument):
                to_cuda = True
        if kwargs or to_cuda:
            to_cuda, args, kwargs = self._without_cuda(args, kwargs or {})
        tensors = _tensors(itertools.chain(args, kwargs.values()) if kwargs else args)
        places = [getattr(one, "_turbofix_on_cuda", None) for one in tensors]
        if together and True in places and False in places:
            _demand_one_device(name, tensors)
        result: Any = func(*args, **kwargs) if kwargs else func(*args)
        if not isinstance(result, _MAY_HOLD_TENSORS) or (args and result is args[0] and not to_cuda):
            return result
        if to_cuda:
            if func in (torch.as_tensor, torch.asarray) and place_among(tensors) is not True:
                result = result.clone()  # which elsewhere shares the memory of what it is given
            if pretended is not None and isinstance(result, torch.Tensor):
                result = pretended.there(result)
            return put(result, True)
        place: bool | None
        if kwargs and kwargs.get("device") is not None:
            place = self._place_named(kwargs["device"], truthful=from_user())
        elif name in _WITH_COUNTS:
            put(result[1:], False)
            return (put(result[0], place_of(args[0])), *result[1:])
        elif func is torch.tensor and not isinstance(args[0], torch.Tensor):
            place = False
        elif name in _AS_THE_FIRST:
            place = place_of(args[0])
        elif False in places:
            place = place_among(tensors)
        else:
            place = None if None in places and True not in places else bool(places)
        if place is not None:
            put(result, place)
        return result

    def _know(self, func: Any) -> tuple[str, bool]:
        """A function's name, and whether what it is given must lie on one device."""
        name = getattr(func, "__name__", "")
        self._known[func] = name, name == "__getitem__" or name.strip("_") in _TOGETHER
        return self._known[func]

    def _without_cuda(self, args: Any, kwargs: dict[str, Any]) -> tuple[bool, Any, dict[str, Any]]:
        """Whether the arguments name a CUDA device, and the arguments without it."""
        to_cuda = any(type(argument) in _NAMES_A_DEVICE and is_cuda(argument) for argument in args)
        if kwargs:
            kwargs = dict(kwargs)
            if type(kwargs.get("device")) is int:
                kwargs["device"] = "cuda"
            to_cuda = to_cuda or is_cuda(kwargs.get("device"))
            if to_cuda and "device" in kwargs:
                kwargs["device"] = moved(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        if to_cuda:
            self.moved = True
            args = tuple(moved(argument) if type(argument) in _NAMES_A_DEVICE else argument for argument in args)
        return to_cuda, args, kwargs

    def _place_named(self, device: Any, *, truthful: bool) -> bool | None:
        """The place that a device names which is not the GPU; what torch's own code gives is always the real one."""
        certain = isinstance(device, str) or (truthful and not self._guessed)
        return False if certain and torch.device(device).type == "cpu" else None

    def _tell_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        place = place_of(args[0])
        if place is None:
            # what needs gradients is a parameter or comes from one, and a model is moved as a whole
            place = self.moved and args[0].requires_grad
            self._guessed = self._guessed or (self.moved and not place)
        if not place or not from_user(3):
            return func(*args)
        return torch.device("cuda", card) if func == self._device else True

    def _to_cuda(self, func: Any, args: Any, kwargs: Any) -> Any:
        moved("cuda")
        self.moved = True
        return _landed(args[0], args[0], kwargs, place=True)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cuda", *args[2:])
        given = kwargs.get("device", kwargs.get("other", args[1] if len(args) > 1 else None))
        to_cuda, args, kwargs = self._without_cuda(args, kwargs)
        place: bool | None
        if isinstance(given, torch.Tensor):
            place = place_of(given)
        elif to_cuda:
            place = True
        elif isinstance(given, _NAMES_A_DEVICE):
            place = self._place_named(given, truthful=from_user(3) or _caller(3) == _PASSES_ON)
        else:
            return put(func(*args, **kwargs), place_of(args[0]))
        return _landed(func(*args, **kwargs), args[0], kwargs, place=place)

    def _type(self, func: Any, args: Any, kwargs: Any) -> Any:
        wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
        if not isinstance(wanted, str):
            # of the classes, those of the GPU are the CPU's here
            result = func(*args, **kwargs)
            return put(result, place_of(args[0]) if isinstance(wanted, torch.dtype) else None)
        on_cuda = "torch.cuda." in wanted
        self.moved = self.moved or on_cuda
        return _landed(func(args[0], wanted.replace("torch.cuda.", "torch.")), args[0], place=on_cuda)


def _landed(result: torch.Tensor, source: torch.Tensor, how: Any = None, *, place: bool | None) -> torch.Tensor:
    """What came of taking a tensor to a place: a copy where it was at another."""
    before = place_of(source)
    if listener is not None and place is not None and bool(before) is not place:
        pinned = bool(getattr(source, "_turbofix_pinned", False))
        listener(source, pinned=pinned, waits=not (how or {}).get("non_blocking"), to_cuda=place)
    if pretended is not None and place is not None:
        result = pretended.there(result) if place else pretended.back(result)
    if place is None:
        return put(result, True if before else None)
    if result is not source:
        return put(result, place)
    stays = before is place or not (place or before)
    return source if stays else put(source.clone(), place)


def _demand_one_device(name: str, tensors: list[torch.Tensor]) -> None:
    """Refuse what a GPU refuses: tensors of which one lies there for certain, and another for certain does not."""
    places = [place_of(one) for one in tensors]
    if True not in places or False not in places or _caller(3).startswith(_HANDLES):
        return
    if name == "__getitem__":
        if not places[0] and any(one.dim() for one, place in zip(tensors, places, strict=True) if place):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    else:
        written = name.endswith("_") and not name.endswith("__") and not places[0]
        if written or any(one.dim() for one, place in zip(tensors, places, strict=True) if place is False):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            )


def _to_numpy(func: Any, args: Any, kwargs: Any) -> Any:
    if place_of(args[0]) and kwargs.get("force"):
        return func(*args, **kwargs).copy()
    if place_of(args[0]):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(*args, **kwargs)


def _to_list(func: Any, args: Any, kwargs: Any) -> Any:
    return func(_landed(args[0], args[0], place=False) if place_of(args[0]) else args[0])


def _parse(func: Any, args: Any, kwargs: Any) -> Any:
    if args and type(args[0]) is int:
        args = ("cuda", *args[1:])
    return func(*args, **kwargs)


def _swap(func: Any, args: Any, kwargs: Any) -> None:
    func(*args)
    put(args[0], place_of(args[1]))


def _pin(func: Any, args: Any, kwargs: Any) -> Any:
    if getattr(args[0], "_turbofix_pinned", False):
        return args[0]
    pinned = put(args[0].clone(), False)
    pinned._turbofix_pinned = True
    return pinned
