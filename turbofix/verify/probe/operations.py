"""Write down what a training step computes, operation by operation: names, arithmetic, bytes, precision.

Sizes are those of torch's own operations (aten), below autograd and autocast, so that the backward pass and every cast
are among them. How long they take on a GPU is for ``turbofix.estimate`` to say; nothing is timed here. The tensors may
be real ones or fake ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch as dispatch
from torch.utils._pytree import tree_leaves

_aten: Any = torch.ops.aten

# of an operation's row: what it is for the clock of a GPU
PRODUCT, CONVOLUTION, DEPTHWISE, GROUPED, ATTENTION = "product", "convolution", "depthwise", "grouped", "attention"
RECURRENT = "recurrent"
POINTWISE, REDUCTION, OTHER = "pointwise", "reduction", "other"

# No work of a GPU: views, and what only asks. What is a view by its schema is known without a name.
_FREE = frozenset(
    """
    _unsafe_view _reshape_alias lift lift_fresh empty empty_like empty_strided new_empty new_empty_strided detach alias
    is_same_size sym_size sym_numel sym_stride sym_storage_offset is_contiguous dim device prim_device numel
    _has_compatible_shallow_copy_type _version resize_ set_ record_stream is_pinned
    """.split()  # noqa: SIM905 (a line for each word, or none to read)
)
_REDUCTIONS = frozenset(
    """
    sum mean amax amin max min prod var std var_mean std_mean norm linalg_vector_norm logsumexp argmax argmin any all
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm native_group_norm
    native_layer_norm_backward native_group_norm_backward native_batch_norm native_batch_norm_backward
    _native_batch_norm_legit cudnn_batch_norm cudnn_batch_norm_backward _batch_norm_with_update
    batch_norm_backward _fused_rms_norm _fused_rms_norm_backward cumsum nll_loss_forward nll_loss_backward
    nll_loss2d_forward nll_loss2d_backward mse_loss binary_cross_entropy smooth_l1_loss
    """.split()  # noqa: SIM905
)
# read twice where they train: statistics first, and then what is made of them
_NORMALISING = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_with_update"}
)
_PLACES = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "_addmm_activation": (1, 2),
}
# The host waits for their result: a number, or a size.
_READS = frozenset({"_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero"})
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "convolution_backward"})
_RECURRENT = frozenset({"mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"})

# of torch, or of its packages: what they take is small beside a network
_OWN = frozenset({"aten", "prim", "prims", "inductor", "profiler", "torchvision", "torchaudio", "quantized"})

_weak: Any = StorageWeakRef  # untyped in torch
_Mode: Any = dispatch.TorchDispatchMode  # untyped in torch

Row = list[Any]
"""``[name, kind, phase, flops, bytes read, bytes written, bits, shape, turned, inputs, outputs]``.

``bits`` are those of a number that is computed with (16, 32, 64). ``shape`` is that of a product: how many there are,
the rows, the columns, the channels that are summed over, the size of the kernel, and of a convolution the dimensions
that it goes over (it is taken as the product that it amounts to); empty for what is none. ``turned`` are the bytes that
a convolution in channels-first has to turn round where the tensor cores are used. ``inputs`` and ``outputs`` are pairs
of a memory's number and the bytes of it that are touched.
"""


class Operations(_Mode):  # type: ignore[misc]
    """Every operation passes here while it is entered; ``rows`` are those with work in them.

    ``phase`` goes into each row. ``where`` gives the user's line for what reads the GPU (``reads``), ``on_host`` says
    which tensors lie on the host for certain: to read those waits for nothing. Where it can be told of each tensor
    whether it lies ``on_gpu``, what only the host computes is left out. ``peak`` are the most bytes that the memories
    of the operations, which are seen from their first one on, took at once.
    """

    def __init__(
        self,
        where: Callable[[], tuple[str, int] | None] | None = None,
        on_host: Callable[[Any], bool] = lambda tensor: False,
        on_gpu: Callable[[Any], bool] | None = None,
    ) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.phase = "forward"
        self.paused = False
        self.reads: list[tuple[str, tuple[str, int] | None]] = []
        self.foreign: set[str] = set()
        """Operations that are not torch's own."""
        self._where, self._on_host, self._on_gpu = where, on_host, on_gpu
        self._numbers: dict[Any, int] = {}
        self.peak = 0
        self._taken: dict[int, int] = {}  # bytes of each memory that is not known to be given back
        self._alive: list[Any] = []  # an address is not given out again while one of these is kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.paused:
            self._write(func, args, kwargs, result)
        return result

    def _write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._overloadpacket.__name__
        if name in _READS and not self._on_host(args[0]):
            self.reads.append((name, self._where() if self._where is not None else None))
        if name in _FREE or func.is_view:
            return
        if func.namespace not in _OWN:
            self.foreign.add(f"{func.namespace}::{name}")
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if not any(map(self._on_gpu, (*given, *made))) if self._on_gpu is not None else not given and not made:
            return
        inputs, outputs = [self._touched(each) for each in given], [self._touched(each) for each in made]
        read, written = (float(sum(size for _, size in some)) for some in (inputs, outputs))
        bits = _bits(given or made)
        kind, flops, shape, turned = _work(name, func, args, given, made)
        if kind in (CONVOLUTION, DEPTHWISE, GROUPED) and name == "convolution_backward":
            read += inputs[0][1]  # the gradient is read for the input's and for the weight's
        if name.endswith("batch_norm_backward") or (name in _NORMALISING and len(args) > 5 and args[5]):
            read *= 2
        self.rows.append([name, kind, self.phase, flops, read, written, bits, shape, turned, inputs, outputs])

    def note(self, name: str, steps: int, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Write down an operation of a recurrent layer, which did not pass here."""
        if self.paused:
            return
        inputs, outputs = [self._touched(each) for each in given], [self._touched(each) for each in made]
        read, written = (float(sum(size for _, size in some)) for some in (inputs, outputs))
        flops, shape = recurrent(name, given, steps)
        bits = made[0].element_size() * 8 if "backward" not in name else _bits(given)
        self.rows.append([name, RECURRENT, self.phase, flops, read, written, bits, shape, 0.0, inputs, outputs])

    def _touched(self, tensor: Tensor) -> tuple[int, int]:
        """The number of a tensor's memory, and how many bytes of it are touched: what is expanded lies there once."""
        size = tensor.element_size()
        if tensor.layout is not torch.strided:
            return -1, tensor.numel() * size
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
            size *= length if stride else 1
        reference = _weak(tensor.untyped_storage())
        number = self._numbers.get(reference.cdata)
        if number is None:
            number = self._numbers[reference.cdata] = len(self._alive)
            self._alive.append(reference)
            self._take(number, tensor.untyped_storage().nbytes())
        return number, size

    def _take(self, number: int, size: int) -> None:
        """Count a memory, and those that are still there where that may be more than ever."""
        self._taken[number] = size
        if sum(self._taken.values()) <= self.peak:
            return
        for each in [each for each in self._taken if self._alive[each].expired()]:
            del self._taken[each]
        self.peak = max(self.peak, sum(self._taken.values()))


def _bits(tensors: Iterable[Tensor]) -> int:
    """Of the numbers that are computed with: those of the first tensor of floating point."""
    for each in tensors:
        if each.is_floating_point() or each.is_complex():
            return each.element_size() * 8
    return 32


def _work(
    name: str, func: Any, args: Any, given: list[Tensor], made: list[Tensor]
) -> tuple[str, float, list[int], float]:
    """An operation's kind, its FLOPs, its shape as a product, and the bytes whose layout is turned round."""
    if name in _PLACES:
        left, right = (args[place] for place in _PLACES[name])
        batch = math.prod(left.shape[:-2])
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        return PRODUCT, 2.0 * batch * rows * inner * columns, [batch, rows, columns, inner, 1], 0.0
    if name in _CONVOLUTIONS:
        return _convolution(name, args, made)
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return _attention(name, given, causal=_causal(func, args))
    if name in _RECURRENT:
        return RECURRENT, *recurrent(name, given, given[0].shape[0]), 0.0
    if torch.Tag.pointwise in func.tags or name in ("copy_", "_to_copy", "clone", "fill_", "zero_", "native_dropout"):
        return POINTWISE, 0.0, [], 0.0
    return (REDUCTION if name in _REDUCTIONS else OTHER), 0.0, [], 0.0


def _convolution(name: str, args: Any, made: list[Tensor]) -> tuple[str, float, list[int], float]:
    if name == "convolution_backward":
        output, image, weight = args[0], args[1], args[2]
        transposed, groups = args[7], args[9]
        times = sum(bool(each) for each in args[10][:2])
    else:
        image, weight, output = args[0], args[1], made[0]
        transposed, groups = args[6], args[8]
        times = 1
    places = output if not transposed else image
    rows = places.numel() // max(places.shape[1], 1)
    inside, kernel = weight.shape[1], math.prod(weight.shape[2:])
    flops = 2.0 * rows * weight.numel() * times
    shape = [groups, rows, weight.shape[0] // groups, inside, kernel, image.ndim - 2]
    kind = CONVOLUTION if groups == 1 else DEPTHWISE if inside == 1 else GROUPED
    last = image.ndim == 4 and image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()
    sizes = [float(each.numel() * each.element_size()) for each in (image, output)]
    turned = 0.0 if last else 2 * sum(sizes)
    if name == "convolution_backward" and not last:
        turned = 2 * (2 * sizes[0] + sizes[1])
    return kind, flops, shape, turned


def _causal(func: Any, args: Any) -> bool:
    """Whether attention looks back only: its one kernel leaves out what lies ahead."""
    names = [each.name for each in func._schema.arguments]
    place = names.index("is_causal") if "is_causal" in names else len(args)
    return place < len(args) and bool(args[place])


def _attention(name: str, given: list[Tensor], *, causal: bool) -> tuple[str, float, list[int], float]:
    backward = "backward" in name
    query, key, value = given[1:4] if backward else given[:3]
    length, other = query.shape[-2], key.shape[-2]
    flops = 2.0 * math.prod(query.shape[:-2]) * length * other * (query.shape[-1] + value.shape[-1])
    shape = [math.prod(query.shape[:-2]), length, other, query.shape[-1], 1]
    return ATTENTION, flops * (2.5 if backward else 1.0) * (0.5 if causal else 1.0), shape, 0.0


def recurrent(name: str, given: Sequence[Tensor], steps: int) -> tuple[float, list[int]]:
    """FLOPs and shape of recurrent layers; ``given`` are the sequences, and among the rest the weights.

    Every weight meets every step of every sequence once, and twice on the way back.
    """
    image = given[0]
    rows = math.prod(image.shape[:-1])
    weights = sum(each.numel() for each in given[1:] if each.ndim == 2)
    shape = [steps, rows, weights // max(image.shape[-1], 1), image.shape[-1], 1]
    return 2.0 * rows * weights * (2 if "backward" in name else 1), shape
