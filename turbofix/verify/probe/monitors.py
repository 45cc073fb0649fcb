"""What the run of the original shows of the facts that rewrites rest on, as plain numbers for the log.

Nothing is judged here: ``turbofix.verify.settle`` holds the facts against the assumptions.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.data import dataloader as loading

from .patching import wrap
from .remap import place_of

STEPS = 3  # training steps of which every product is looked at
MOST_SIZES = 32  # sizes of batches that are told apart
ENOUGH_PICKLED = 256 << 20  # bytes after which a data set counts as pickled

_PRODUCTS = {"linear": 1, "matmul": 1, "mm": 1, "bmm": 1, "addmm": 2, "baddbmm": 2, "__matmul__": 1, "einsum": -1}
"""Functions that multiply matrices, with the place of the second matrix."""

_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
_ATTENTION = "scaled_dot_product_attention"
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


class Monitors:
    """The facts of one run; ``facts()`` gives them as JSON."""

    def __init__(self) -> None:
        self.main_process = os.getpid()
        self.steps = 0
        self.products = 0
        self.widest = 0
        self.work = 0
        self.dimensions: set[int] = set()
        self.sizes: Counter[str] = Counter()
        self.convolved: Counter[str] = Counter()  # the sizes of what the first convolution of a step is given
        self.without_gradient = 0
        self.on_cuda = False
        self.batches: Counter[str] = Counter()
        self.unpickled: list[str] = []
        self.restored = 0
        self._pickled: dict[int, Any] = {}
        self._first = self._first_convolution = True
        self._mode: Any = _Watch(self)

    def install(self) -> None:
        """Watch the calls of torch's functions and what the loaders hand out."""
        self._mode.__enter__()  # for as long as the process lives
        for owner in (torch, torch.nn.Module):
            wrap(owner, "compile", self._leave_to_the_compiler)
        wrap(torch.optim.Optimizer, "load_state_dict", self._watch_restoring)
        wrap(loading._BaseDataLoaderIter, "__next__", self._watch_batches)
        wrap(loading._BaseDataLoaderIter, "__init__", self._watch_loaders)

    @property
    def looking(self) -> bool:
        """Whether products are looked at: all in the first steps, later the first ones of a step for their size."""
        first = self._first or (self._first_convolution and bool(self.convolved))
        return (self.steps < STEPS or first) and os.getpid() == self.main_process

    # --- what happens

    def on_step(self, optimizer: Any, gradients: list[Any]) -> None:
        """An optimizer is about to step."""
        self.steps += 1
        self._first = self._first_convolution = True
        self.without_gradient += sum(gradient is None for gradient in gradients)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.on_cuda = self.on_cuda or any(parameter.is_cuda for parameter in parameters[:1])

    def on_product(self, name: str, arguments: Any) -> None:
        """A function that multiplies matrices is called in a training step."""
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        floats = [each for each in tensors if each.is_floating_point()]
        if len(floats) < 2:
            return
        size = str(tuple(floats[0].shape))
        if self._first:
            self._first = False
            if len(self.sizes) < MOST_SIZES:
                self.sizes[size] += 1
        if self._first_convolution and name in _CONVOLUTIONS:
            self._first_convolution = False
            if len(self.convolved) < MOST_SIZES:
                self.convolved[size] += 1
        if self.steps >= STEPS:
            return
        self.products += 1
        if name in _CONVOLUTIONS:
            image, weight = floats[:2]
            self.dimensions.add(image.ndim)
            rows = image.numel() // max(image.shape[1], 1)
            columns, inner = weight.shape[0], weight[0].numel()
        else:
            left, right = floats[-2:] if name in ("addmm", "baddbmm") else floats[:2]
            inner = left.shape[-1] if left.ndim else 1
            rows = left.numel() // max(inner, 1)
            columns = right.numel() // max(inner, 1)
        self.widest = max(self.widest, min(rows, columns, inner))
        self.work = max(self.work, rows * columns * inner)

    def on_recurrent(self, arguments: Any) -> None:
        """A recurrent layer is called: its matrices are in a list."""
        image = next((each for each in arguments if isinstance(each, Tensor)), None)
        weights = next((each for each in arguments if isinstance(each, (list, tuple)) and each), [])
        for weight in weights[:2]:
            if image is not None and isinstance(weight, Tensor) and weight.ndim == 2:
                self.on_product("linear", (image, weight))

    # --- where it is watched

    def _leave_to_the_compiler(self, original: Any) -> Any:
        """A compiler would look through the mode: it goes before anything is compiled."""

        def compiled(*arguments: Any, **keywords: Any) -> Any:
            with contextlib.suppress(Exception):
                overrides: Any = torch.overrides
                if overrides._get_current_function_mode() is self._mode:
                    self._mode.__exit__(None, None, None)
            return original(*arguments, **keywords)

        return compiled

    def _watch_restoring(self, original: Any) -> Any:
        def load_state_dict(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            self.restored += not self.steps  # later the run loads what it has saved itself
            return original(optimizer, *arguments, **keywords)

        return load_state_dict

    def _watch_batches(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            if os.getpid() == self.main_process and sum(self.batches.values()) < MOST_SIZES:
                for tensor in _tensors(batch):
                    self.batches[_place(tensor)] += 1
            return batch

        return __next__

    def _watch_loaders(self, original: Any) -> Any:
        def __init__(iterator: Any, loader: Any, *rest: Any) -> None:
            original(iterator, loader, *rest)
            if os.getpid() == self.main_process and id(loader.dataset) not in self._pickled:
                self._pickled[id(loader.dataset)] = loader.dataset
                self.unpickled += _why_unpickled(loader)

        return __init__

    def facts(self) -> dict[str, Any]:
        """What was seen, for the log."""
        return {
            "products": self.products,
            "widest": self.widest,
            "work": self.work,
            "dimensions": sorted(self.dimensions),
            "sizes": [count for _, count in self.sizes.most_common()],
            "convolved": [count for _, count in self.convolved.most_common()],
            "without_gradient": self.without_gradient,
            "cuda": self.on_cuda,
            "batches": dict(self.batches),
            "unpickled": self.unpickled,
            "restored": self.restored,
            "torch": torch.__version__,
        }


class _Watch(TorchFunctionMode):
    """Every call of a function of torch passes here, on its way to the stand-in for a GPU where there is one."""

    def __init__(self, monitors: Monitors) -> None:
        super().__init__()
        self._monitors = monitors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        monitors = self._monitors
        if monitors.looking and torch.is_grad_enabled():
            name = getattr(func, "__name__", "")
            with contextlib.suppress(Exception):  # what is only watched must not stop the script
                if name in _PRODUCTS or name in _CONVOLUTIONS:
                    operands = args[1:] if name == "einsum" else (*args, *(kwargs or {}).values())
                    monitors.on_product(name, operands)
                elif name == _ATTENTION:
                    query, key = args[0], args[1]
                    monitors.on_product("matmul", (query, key.transpose(-1, -2)))
                elif name in _RECURRENT:
                    monitors.on_recurrent(args)
        return result


class _Sink:
    """A file that keeps nothing, and has enough after a while."""

    def __init__(self) -> None:
        self._size = 0

    def write(self, data: Any) -> int:
        self._size += len(data)
        if self._size > ENOUGH_PICKLED:
            raise _Enough
        return len(data)


class _Enough(Exception):  # noqa: N818 (no error)
    """So much was pickled that the rest will be, too."""


def _why_unpickled(loader: Any) -> list[str]:
    """What of a loader cannot be sent to a process that was not forked, in a few words."""
    for what, thing in (("the data set", loader.dataset), ("its collate function", loader.collate_fn)):
        try:
            ForkingPickler(_Sink()).dump(thing)
        except _Enough:
            continue
        except Exception as error:
            return [f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"]
    return []


def _tensors(batch: Any, depth: int = 3) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if depth and isinstance(batch, dict):
        return [each for value in batch.values() for each in _tensors(value, depth - 1)]
    if depth and isinstance(batch, (list, tuple)):
        return [each for value in batch[:8] for each in _tensors(value, depth - 1)]
    return []


def _place(tensor: Tensor) -> str:
    """Where a tensor lies, on the stand-in for a GPU too."""
    if tensor.is_cuda or place_of(tensor):
        return "cuda"
    try:
        return "pinned" if torch.cuda.is_available() and tensor.is_pinned() else "host"
    except RuntimeError:
        return "host"
