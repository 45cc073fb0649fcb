"""Record one training step of a run: what it computes, copies to the GPU, reads from it, and how long its data take.

The step is the one behind the first of the leading optimizer, from the end of one to the end of the next. Nothing of it
is changed but that the compiler leaves it as it is: what it makes of the step is estimated.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch
from torch.utils.data import dataloader as loading
from torch.utils.data._utils import fetch as fetching

from . import processes, recurrent, remap
from .neutral import batch_size
from .operations import Operations
from .patching import wrap
from .pretended import is_pretended

# What CUDA's autocast computes in float32 and a CPU's in 16 bits (torch's documentation of autocast, "CUDA ops that
# autocast to float32").
_WIDE = frozenset(
    """
    acos asin cosh cosine_embedding_loss cdist cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1
    group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log10 log_softmax log1p log2 margin_ranking_loss
    mse_loss multilabel_margin_loss multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal
    rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum renorm tan triplet_margin_loss
    """.split()  # noqa: SIM905
)
# further readings of a step's data, and seconds after which there is no further one
_READINGS, _LONGEST_READING = 8, 1.0
_HALVES = (torch.float16, torch.bfloat16)
_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class AsOnCuda(TorchFunctionMode):
    """Autocast on the CPU, with the list of CUDA's added; and attention in one kernel where CUDA has one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attended(func, *args, **kwargs)
        if getattr(func, "__name__", "") in _WIDE and torch.is_autocast_enabled("cpu"):
            args = tuple(_wide(each) for each in args)
            kwargs = {name: _wide(each) for name, each in kwargs.items()}
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


def _attended(func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **named: Any) -> Any:
    """Attention: with a mask or dropout, too, which a CPU's one kernel does not take in training, and CUDA's do.

    Nobody looks at the numbers, so that dropout is left out.
    """
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    alike = query.dim() == 4 and query.shape[-1] == value.shape[-1] and query.shape[1] == key.shape[1]
    if kernel is None or not alike or (attn_mask is not None and attn_mask.requires_grad):
        return func(query, key, value, attn_mask, *rest, **named)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    if attn_mask is not None:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = bias.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype is torch.bool else attn_mask.to(bias)
    causal = rest[1] if len(rest) > 1 else named.get("is_causal", False)
    return kernel(query, key, value, 0.0, causal, attn_mask=attn_mask, scale=named.get("scale"))[0]


class Tally:
    """The recording of one step. ``order`` gives ``skip``, the steps before it, ``fetches``, a file, and ``cards``, of
    which each takes its share of a batch: the first one's is recorded.

    ``remapped`` says whether the script has used the stand-in for a GPU. ``on_step`` is told of an optimizer before it
    steps, with its gradients.
    """

    def __init__(
        self,
        order: dict[str, Any],
        say: Callable[[dict[str, Any]], None],
        remapped: Callable[[], bool],
        on_step: Callable[[Any, list[Any]], None] | None = None,
    ) -> None:
        self._order, self._say, self._remapped, self._on_step = order, say, remapped, on_step
        self._main = os.getpid()
        on_gpu = is_pretended if remap.pretended is not None else None
        self._operations = Operations(self._line, lambda tensor: remap.place_of(tensor) is False, on_gpu)
        self._steps = 0
        self._leading: Any = None
        self._begun = 0.0
        self._in_step = 0
        self._stepped = False
        self._compiles = False
        self._updates: list[dict[str, Any]] = []
        self._copies: list[tuple[int, bool, bool]] = []
        self._drawn: list[tuple[str, int, int]] = []  # data set, workers and samples of each batch of the step
        self._pins = False
        self._kept = 0  # bytes that the optimizers keep for their parameters
        self._waited = self._repeated = 0.0
        self._own = tuple(os.path.join(root, "") for root in order["own"])
        self._folder = os.path.dirname(order["script"])

    @property
    def _recording(self) -> bool:
        return bool(self._begun)

    def install(self) -> None:
        wrap(loading._BaseDataLoaderIter, "__next__", self._drawing)
        wrap(loading._BaseDataLoaderIter, "_next_index", self._choosing)
        for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):
            wrap(kind, "fetch", self._fetching)
        for name in ("backward", "grad"):
            wrap(torch.autograd, name, self._backward)
        for owner in (torch, torch.nn.Module):
            wrap(owner, "compile", self._compiling)
        from torch.amp import grad_scaler

        wrap(grad_scaler.GradScaler, "step", self._scaling)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        remap.listener = self._moved
        if remap.pretended is not None:
            recurrent.install(lambda *told: self._operations.note(*told) if self._recording else None)
        wide: Any = AsOnCuda()
        wide.__enter__()

    # --- what happens

    def _drawing(self, original: Any) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            if os.getpid() != self._main:
                return original(iterator)
            with self._paused():
                began, self._repeated = _now(), 0.0
                batch = original(iterator)
                self._waited += _now() - began - self._repeated
                if self._recording:
                    self._fetch_here(iterator)
            self._pins = self._pins or bool(getattr(iterator, "_pin_memory", False))
            name = _name(getattr(iterator, "_dataset", None))
            self._drawn.append((name, int(getattr(iterator, "_num_workers", 0)), batch_size(batch)))
            return batch

        return __next__

    def _choosing(self, original: Any) -> Callable[..., Any]:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if isinstance(indices, list):
                indices = indices[: -(-len(indices) // self._order["cards"])]
            iterator._turbofix_indices = indices
            return indices

        return _next_index

    def _fetch_here(self, iterator: Any) -> None:
        """Have items that worker processes make made here once more, while those stand still: that time counts."""
        workers, indices = getattr(iterator, "_workers", ()), getattr(iterator, "_turbofix_indices", None)
        stops: Any = getattr(signal, "SIGSTOP", None)
        goes_on: Any = getattr(signal, "SIGCONT", None)
        if not workers or indices is None or stops is None or iterator._dataset_kind != loading._DatasetKind.Map:
            return
        given = iterator._dataset, iterator._auto_collation, iterator._collate_fn, iterator._drop_last
        for worker in workers:
            os.kill(worker.pid, stops)
        with contextlib.suppress(Exception):  # what only a worker can make
            fetcher: Any = fetching._MapDatasetFetcher(*given)
            fetcher.fetch(indices)
        for worker in workers:
            os.kill(worker.pid, goes_on)

    def _fetching(self, original: Any) -> Callable[..., Any]:
        def fetch(fetcher: Any, indices: Any) -> Any:
            here = os.getpid() == self._main
            with self._paused(), contextlib.nullcontext() if here else _unwatched():
                began = _now()
                found = original(fetcher, indices)
                times = [_now() - began]
                if self._recording and here and isinstance(fetcher, fetching._MapDatasetFetcher):
                    times += _read_again(lambda: original(fetcher, indices))
                self._repeated += sum(times[1:])
            line = json.dumps([_name(fetcher.dataset), *times])
            with contextlib.suppress(OSError), open(self._order["fetches"], "a", encoding="utf-8") as handle:
                handle.write(line + "\n")
            return found

        return fetch

    def _backward(self, original: Any) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            before, self._operations.phase = self._operations.phase, "backward"
            try:
                return original(*arguments, **keywords)
            finally:
                self._operations.phase = before

        return run

    def _compiling(self, original: Any) -> Callable[..., Any]:
        def compiled(*arguments: Any, **keywords: Any) -> Any:
            self._compiles = True
            if arguments and isinstance(arguments[0], torch.nn.Module) and original.__qualname__ != "compile":
                return None  # Module.compile
            model = arguments[0] if arguments else keywords.get("model")
            return (lambda function: function) if model is None else model

        return compiled

    def _scaling(self, original: Any) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            self._stepped = False
            found = original(scaler, optimizer, *arguments, **keywords)
            if not self._stepped:  # the gradients were not finite, as in the first steps of a scaler they often are
                self._before_step(optimizer)
                self._after_step(optimizer)
            return found

        return step

    def _before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operations.paused = True
        self._stepped = True
        if self._on_step is not None:
            self._on_step(optimizer, [each.grad for group in optimizer.param_groups for each in group["params"]])
        kwargs = kwargs or {}
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None
        # what a closure computes is no part of the update
        if "closure" in kwargs:
            return args, {**kwargs, "closure": self._unpaused(closure)}
        return (args[0], self._unpaused(closure), *args[2:]), kwargs

    def _unpaused(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._operations.paused = False
            try:
                return closure(*args, **kwargs)
            finally:
                self._operations.paused = True

        return run

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() != self._main:
            return
        self._operations.paused = False
        if self._recording:
            self._updates.append(_update(optimizer))
            self._kept += _kept_by(optimizer)
        self._leading = self._leading or optimizer
        if optimizer is not self._leading:
            return
        self._steps += 1
        self._say({"step": self._steps})
        if self._recording:
            self.finish("stopped")
            processes.leave()
        if self._steps == self._order["skip"]:
            self._drawn.clear()
            self._waited = 0.0
            self._begun = time.perf_counter()
            self._operations.__enter__()

    def _moved(self, tensor: Tensor, *, pinned: bool, waits: bool, to_cuda: bool) -> None:
        if not self._recording or os.getpid() != self._main:
            return
        if to_cuda:
            self._copies.append((tensor.numel() * tensor.element_size(), pinned or self._pins, waits))
        else:
            self._operations.reads.append(("cpu", self._line()))

    @contextlib.contextmanager
    def _paused(self) -> Any:
        """Nothing is written down of the data's making, where that cannot be told from what the GPU computes."""
        before, self._operations.paused = self._operations.paused, remap.pretended is None
        try:
            yield
        finally:
            self._operations.paused = before

    def _line(self) -> tuple[str, int] | None:
        """The innermost line of the user's own code."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._own) and "site-packages" not in name and not name.startswith(_HERE):
                return os.path.relpath(name, self._folder), frame.f_lineno
            frame = frame.f_back
        return None

    # --- the end

    def finish(self, how: str, more: dict[str, Any] | None = None) -> None:
        """Write the log down; without a step where the script ended before there was one."""
        if os.getpid() != self._main:
            return
        step = self._step() if self._updates and how == "stopped" else None
        extra = self._order["extra"]() if "extra" in self._order else {}
        log = {"how": how, "steps": self._steps, "step": step, **extra, **(more or {})}
        with open(self._order["log"], "w", encoding="utf-8") as handle:
            handle.write(json.dumps(log))

    def _step(self) -> dict[str, Any]:
        took = time.perf_counter() - self._begun
        loading_seconds, workers = self._loading()
        matmul: Any = torch.backends.cuda.matmul
        cudnn: Any = torch.backends.cudnn
        return {
            "rows": self._operations.rows,
            "updates": self._updates,
            "copies": self._copies,
            "reads": self._operations.reads,
            "loading": loading_seconds,
            "workers": workers,
            "samples": sum(samples for _, _, samples in self._drawn) or None,
            "tf32": _allowed(lambda: matmul.allow_tf32),
            "tf32_convolutions": _allowed(lambda: cudnn.allow_tf32),
            "compiled": self._compiles,
            "memory": self._operations.peak + self._kept if remap.pretended is not None else None,
            "refused": self._refused(),
            "measured": {"step": took, "waited": self._waited},
        }

    def _refused(self) -> str | None:
        """Why there can be no estimate."""
        if not self._on_gpu():
            return "the script computes on the CPU, and a GPU would have nothing to do"
        if self._operations.foreign:
            names = ", ".join(sorted(self._operations.foreign))
            return f"it runs operations of its own ({names}), of which nothing is known"
        distributed: Any = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            return "it trains on several GPUs, and what they say to each other is not counted"
        return None

    def _on_gpu(self) -> bool:
        groups = self._leading.param_groups
        return self._remapped() or any(each.is_cuda for group in groups for each in group["params"][:1])

    def _loading(self) -> tuple[float | None, int]:
        """Seconds that one process takes for the batches of the step, and how many processes make them."""
        if not self._drawn:
            return None, 0
        seen: dict[str, list[float]] = {}
        again: dict[str, float] = {}  # those of the recorded step, read several times
        with contextlib.suppress(OSError), open(self._order["fetches"], encoding="utf-8") as handle:
            for line in handle:
                with contextlib.suppress(ValueError):
                    name, first, *more = json.loads(line)
                    seen.setdefault(name, []).append(first)
                    if more:
                        again[name] = statistics.median(more)
        total = 0.0
        for name, _, _ in self._drawn:
            times = seen.get(name, [])
            total += again.get(name) or statistics.median(times[1:] or times or [0.0])
        return total, max(workers for _, workers, _ in self._drawn)


@contextlib.contextmanager
def _unwatched() -> Any:
    """Past every mode, each of which takes longer than many a small operation of the data."""
    with torch._C.DisableTorchFunction(), dispatch._disable_current_modes():
        yield


@contextlib.contextmanager
def _with_numbers() -> Any:
    """Without pretending, and past what writes operations and copies down."""
    before = remap.pretended, remap.listener
    remap.pretended = remap.listener = None
    try:
        with dispatch._disable_current_modes():
            yield
    finally:
        remap.pretended, remap.listener = before


def _read_again(fetch: Callable[[], Any]) -> list[float]:
    """Seconds that the same items take, some more times.

    One reading says little, and a data set that keeps its items has them now.
    """
    times: list[float] = []
    # data that go to the GPU one by one do so on the CPU: a copy is as quick, and pretending takes longer than both
    for how in (_unwatched, _with_numbers):
        with contextlib.suppress(Exception), how():
            while len(times) < _READINGS and sum(times) < _LONGEST_READING:
                began, queued = _now(), _queued()
                fetch()
                times.append(_now() - began - (_queued() - queued))
    return times


def _queued() -> float:
    """Seconds for which this thread has waited for a processor that others had, where the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat") as handle:
        return int(handle.read().split()[1]) * 1e-9
    return 0.0


def _now() -> float:
    """Seconds on a clock that stands still while a GPU is pretended."""
    return time.perf_counter() - (remap.pretended.seconds if remap.pretended is not None else 0.0)


def _name(dataset: Any) -> str:
    """A data set's name, the same in a worker."""
    with contextlib.suppress(TypeError, NotImplementedError):
        return f"{type(dataset).__name__} of {len(dataset)}"
    return type(dataset).__name__


def _allowed(ask: Callable[[], Any]) -> bool:
    with contextlib.suppress(RuntimeError):  # the older switch is not to be read beside the newer
        return bool(ask())
    return False


def _kept_by(optimizer: Any) -> int:
    """Bytes of what an optimizer keeps for its parameters."""
    values = [value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()]
    return sum(each.numel() * each.element_size() for each in values if isinstance(each, Tensor) and each.dim())


def _update(optimizer: Any) -> dict[str, Any]:
    """What an optimizer's step updates."""
    groups = optimizer.param_groups
    parameters = [each for group in groups for each in group["params"] if each.grad is not None or each.requires_grad]
    group = groups[0] if groups else {}
    return {
        "kind": type(optimizer).__name__,
        "tensors": len(parameters),
        "numbers": sum(each.numel() for each in parameters),
        "bytes_each": max((each.element_size() for each in parameters), default=4),
        "fused": bool(group.get("fused")),
        # on a GPU that is torch's choice where nothing is said
        "foreach": group.get("foreach") is not False and "foreach" in group,
    }
