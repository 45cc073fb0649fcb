"""Stand in for a GPU that is not there, so that the learning of a program written for CUDA can be checked on a CPU.

Devices are remapped where torch's functions take them; ``torch.cuda`` answers the user's code as an Ampere card would,
and torch's own code truthfully; autocast and the gradient scaler really cast and really scale, and what TF32 rounds is
rounded. What a GPU would refuse and a CPU would not is refused here too, where it is known. CUDA graphs, custom
kernels, several devices do not work.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from . import remap, tf32_on_cpu
from .patching import wrap
from .remap import Remap, from_user, is_cuda, moved, place_among, place_of, put

_MEMORY = 24 << 30


class _Stream:
    """A stream on which everything is done at once."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.device = torch.device("cpu")

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record()
        return event

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def synchronize(self) -> None:
        return None


class _Event:
    """An event that happens when it is recorded."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._at = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: _Event) -> float:
        return (end_event._at - self._at) * 1e3

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        return None

    def synchronize(self) -> None:
        return None


@functools.cache
def install() -> Callable[[], dict[str, Any]]:
    """Put the stand-in in place once, for this process and those forked from it.

    What is returned says whether the program has used it since, and how many products were rounded as in TF32.
    """
    _answer_as_a_card()
    _replace_streams()
    rounding = tf32_on_cpu.install()
    _map_autocast(rounding)
    _map_recurrent()
    _map_scaler()
    _spare_optimizers()
    mode: Any = Remap()
    _map_constructors()
    _map_default(mode)
    _map_compiler(rounding)
    mode.__enter__()
    return lambda: {"remapped": bool(mode.moved), "rounded": rounding.products}


def _answer_as_a_card() -> None:
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": lambda: remap.cards,
        "current_device": lambda: remap.card,
        "get_device_name": "CPU in place of CUDA",
        "get_device_capability": (8, 0),
        "is_bf16_supported": True,
        "get_arch_list": ["sm_80"],
        "mem_get_info": (_MEMORY, _MEMORY),
        "memory_summary": "",
        **dict.fromkeys((
            "init", "synchronize", "set_device", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "seed",
            "seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
            "set_per_process_memory_fraction",
        )),
        **dict.fromkeys((
            "utilization", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
            "memory_cached", "max_memory_cached",
        ), 0),
    }  # fmt: skip

    def answering(answer: Any) -> Callable[[Any], Callable[..., Any]]:
        def make(original: Any) -> Callable[..., Any]:
            def ask(*arguments: Any, **keywords: Any) -> Any:
                if not from_user():
                    return original(*arguments, **keywords)
                return answer() if callable(answer) else answer

            return ask

        return make

    def always(answer: Any) -> Callable[[Any], Callable[..., Any]]:
        return lambda original: lambda *arguments, **keywords: answer

    for name, answer in answers.items():
        wrap(torch.cuda, name, answering(answer))
    properties = types.SimpleNamespace(
        name=answers["get_device_name"], total_memory=_MEMORY, major=8, minor=0, multi_processor_count=80
    )
    wrap(torch.cuda, "get_device_properties", answering(properties))
    wrap(torch.cuda, "memory_stats", answering(collections.defaultdict(int)))
    state = torch.zeros(16, dtype=torch.uint8)
    # torch's own functions ask as well, of the tensors' device: `fork_rng` under a pipeline
    states = {"get_rng_state": state, "get_rng_state_all": [state], "set_rng_state": None, "set_rng_state_all": None}
    for owner in (torch.cuda, torch.cuda.random):  # transformers asks the latter
        for name, answer in states.items():
            wrap(owner, name, always(answer))
    for name in ("range_push", "range_pop", "mark"):
        wrap(torch.cuda.nvtx, name, answering(None))
    _answer_as_accelerator(answers, answering)


def _answer_as_accelerator(answers: dict[str, Any], answering: Callable[[Any], Any]) -> None:
    """Let ``torch.accelerator`` (torch 2.6 and later) say of the card what ``torch.cuda`` says."""
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    for name in (
        "is_available", "device_count", "synchronize", "empty_cache", "memory_allocated", "max_memory_allocated",
        "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats",
    ):  # fmt: skip
        wrap(accelerator, name, answering(answers[name]))
    wrap(accelerator, "get_memory_info", answering(answers["mem_get_info"]))
    wrap(accelerator, "memory_stats", answering(collections.defaultdict(int)))
    wrap(accelerator, "reset_accumulated_memory_stats", answering(None))
    wrap(accelerator, "empty_host_cache", answering(None))
    wrap(accelerator, "current_accelerator", answering(torch.device("cuda")))
    wrap(accelerator, "current_stream", answering(_Stream()))
    wrap(accelerator, "set_stream", answering(None))
    wrap(accelerator, "device_index", answering(contextlib.nullcontext()))
    for name in ("current_device_index", "current_device_idx"):
        wrap(accelerator, name, answering(answers["current_device"]))
    for name in ("set_device_index", "set_device_idx"):
        wrap(accelerator, name, answering(None))


def _replace_streams() -> None:
    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event = _Stream, _Event
    # its argument is looked at before a function mode is asked
    wrap(torch.Tensor, "record_stream", lambda original: lambda *arguments, **keywords: None)
    stream = _Stream()
    cuda.current_stream = cuda.default_stream = lambda device=None: stream
    cuda.stream = cuda.device = cuda.device_of = lambda *arguments, **keywords: contextlib.nullcontext()
    for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Byte", "Char", "Bool"):
        if hasattr(torch, f"{kind}Tensor"):
            setattr(cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _map_autocast(rounding: tf32_on_cpu.Rounding) -> None:
    active = [0]

    def initialising(original: Any) -> Callable[..., None]:
        def __init__(
            self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
        ) -> None:
            self._turbofix_cuda = is_cuda(device_type)
            if self._turbofix_cuda:
                device_type, dtype = "cpu", dtype or torch.float16
            original(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

        return __init__

    def counting(by: int) -> Callable[[Any], Callable[..., Any]]:
        def make(original: Any) -> Callable[..., Any]:
            def change(self: Any, *arguments: Any) -> Any:
                if getattr(self, "_turbofix_cuda", False) and self._enabled:
                    active[0] += by
                    if self.fast_dtype is torch.float16:
                        rounding.enter()
                return original(self, *arguments)

            return change

        return make

    def refusing(original: Any) -> Callable[..., Any]:
        def binary_cross_entropy(*arguments: Any, **keywords: Any) -> Any:
            if active[0] and torch.is_autocast_enabled("cpu"):
                raise RuntimeError(
                    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast "
                    "(CUDA refuses them; use binary_cross_entropy_with_logits)"
                )
            return original(*arguments, **keywords)

        return binary_cross_entropy

    wrap(torch.autocast, "__init__", initialising)
    wrap(torch.autocast, "__enter__", counting(1))
    wrap(torch.autocast, "__exit__", counting(-1))
    wrap(torch.nn.functional, "binary_cross_entropy", refusing)

    def for_cuda(original: Any) -> Callable[..., Any]:
        def ask(device_type: str | None = None) -> Any:
            return original("cpu" if device_type is None or is_cuda(device_type) else device_type)

        return ask

    def set_for_cuda(original: Any) -> Callable[..., Any]:
        def change(*given: Any, **named: Any) -> Any:
            if not named:
                device_type, value = given if len(given) == 2 else ("cuda", *given)  # the GPU's where no device is said
                given = ("cpu" if is_cuda(device_type) else device_type, value)
            return original(*given, **named)

        return change

    # The compiler asks for the GPU's state before it traces, and sets what it was told when it is done.
    wrap(torch, "set_autocast_enabled", set_for_cuda)
    wrap(torch, "set_autocast_dtype", set_for_cuda)
    wrap(torch, "set_autocast_gpu_dtype", lambda original: lambda dtype: torch.set_autocast_dtype("cpu", dtype))
    wrap(torch, "is_autocast_enabled", for_cuda)
    wrap(torch, "get_autocast_dtype", for_cuda)
    wrap(torch, "get_autocast_gpu_dtype", lambda original: lambda: torch.get_autocast_dtype("cpu"))


def _map_recurrent() -> None:
    """LSTMs in 16 bits without oneDNN, which has none for many processors and fails; torch's own kernels know them."""
    halves = (torch.float16, torch.bfloat16)

    def without_onednn(original: Any) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            halved = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") in halves
            if not halved and arguments[0].dtype not in halves:
                return original(*arguments)
            with torch.backends.mkldnn.flags(enabled=False):
                return original(*arguments)

        return run

    wrap(torch._VF, "lstm", without_onednn)


def _spare_optimizers() -> None:
    """What torch's own optimizers compute stays where it was: nobody need look at each of their operations."""

    def spared(original: Any) -> Callable[..., Any]:
        def step(*arguments: Any, **keywords: Any) -> Any:
            with contextlib.nullcontext() if torch.compiler.is_compiling() else torch._C.DisableTorchFunction():
                return original(*arguments, **keywords)

        return step

    for name in ("adam", "adamw", "sgd", "rmsprop", "adagrad", "nadam", "radam"):
        wrap(sys.modules[f"torch.optim.{name}"], name, spared)


def _map_compiler(rounding: tf32_on_cpu.Rounding) -> None:
    """Compiled code runs without the mode, which the compiler would trace, and cannot: devices in it are real ones."""
    from torch._dynamo import eval_frame

    def compiling(original: Any) -> Callable[..., Any]:
        def __call__(self: Any, fn: Any) -> Any:
            rounding.leave()
            compiled = original(self, fn)
            if not isinstance(compiled, types.FunctionType):
                return compiled  # a module, whose forward pass comes through here again, or a class

            @functools.wraps(compiled)
            def run(*arguments: Any, **keywords: Any) -> Any:
                if torch.compiler.is_compiling():
                    return compiled(*arguments, **keywords)
                with torch._C.DisableTorchFunction():
                    result = compiled(*arguments, **keywords)
                given = [one for one in (*arguments, *keywords.values()) if isinstance(one, torch.Tensor)]
                return put(result, True) if place_among(given) else result

            return run

        return __call__

    wrap(eval_frame._TorchDynamoContext, "__call__", compiling)


def _map_scaler() -> None:
    from torch.amp import grad_scaler

    def initialising(original: Any) -> Callable[..., None]:
        def __init__(self: Any, device: Any = "cuda", *arguments: Any, **keywords: Any) -> None:
            original(self, "cpu" if is_cuda(device) else device, *arguments, **keywords)

        return __init__

    wrap(grad_scaler.GradScaler, "__init__", initialising)


def _map_default(mode: Remap) -> None:
    """The device on which tensors are made where none is named."""

    def setting(original: Any) -> Callable[..., Any]:
        def set_default_device(device: Any) -> Any:
            device = "cuda" if type(device) is int else device
            mode.by_default = is_cuda(device)
            return original(moved(device))

        return set_default_device

    def telling(original: Any) -> Callable[..., Any]:
        def get_default_device() -> Any:
            return torch.device("cuda", remap.card) if mode.by_default and from_user() else original()

        return get_default_device

    wrap(torch, "set_default_device", setting)
    wrap(torch, "get_default_device", telling)


def _map_constructors() -> None:
    original: Any = torch.Generator

    class Generator(original):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return original.__new__(cls, "cpu" if type(device) is int else moved(device))

    setattr(torch, "Generator", Generator)  # noqa: B010 (mypy: a class is not to be assigned)

    def staying(original: Any) -> Callable[..., Any]:
        def _make_subclass(kind: Any, data: Any, *rest: Any, **keywords: Any) -> Any:
            return put(original(kind, data, *rest, **keywords), place_of(data))

        return _make_subclass

    wrap(torch.Tensor, "_make_subclass", staying)  # a parameter lies where it is made of

    def loading(original: Any) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
            if isinstance(map_location, (str, torch.device)):
                found = original(f, moved(map_location), *arguments, **keywords)
                return put(found, is_cuda(map_location))
            if map_location is None or isinstance(map_location, dict):
                map_location = "cpu"
            return original(f, map_location, *arguments, **keywords)

        return load

    wrap(torch, "load", loading)

    def default_type(original: Any) -> Callable[..., Any]:
        def set_default_tensor_type(t: Any) -> Any:
            return original(t.replace("torch.cuda.", "torch.") if isinstance(t, str) else t)

        return set_default_tensor_type

    wrap(torch, "set_default_tensor_type", default_type)

    def without_capture(original: Any) -> Callable[..., None]:
        def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
            # capturable asks for tensors on a GPU and changes no number
            if keywords.get("capturable"):
                keywords["capturable"] = False
            original(self, *arguments, **keywords)

        return __init__

    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop):
        wrap(kind, "__init__", without_capture)
