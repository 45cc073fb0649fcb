"""Time a run as it is, with nothing neutralised: the clock over the steps after the warm-up, and the peak of memory.

Wall-clock time over many steps is right whatever is asynchronous in between, as long as the device is idle at both
ends. The parts of a step are taken with events on CUDA, since a clock around a call only sees the call.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader as loading

from . import processes
from .neutral import batch_size
from .patching import wrap
from .patience import Patience
from .tolerances import FEWEST_STEPS

# the marks of a step in their order, each with the part of the step that it ends
_PARTS = {
    "batch": "data",
    "backward": "forward",
    "backward done": "backward",
    "step": "other",
    "step done": "optimizer",
}


class Stopwatch:
    """Counts steps and samples, and keeps the times of their parts. ``order`` gives ``warm_up`` and ``steps``."""

    def __init__(self, order: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        self._order, self._say = order, say
        self._main = os.getpid()
        self._cuda = torch.cuda.is_available()
        self._begun = time.perf_counter()
        self._steps = self._samples = 0
        self._drawn: dict[int, int] = {}  # samples of the last batch of each pass over data, until it is trained on
        self._start = self._stopped = 0.0
        self._patience = Patience(order["patience"], self._wait_no_longer)
        self._marks: list[tuple[str, Any]] = []
        self._waited = 0.0
        self._leading: Any = None
        self._warm_up_seconds: float | None = None

    def install(self) -> None:
        def next_batch(original: Any) -> Callable[..., Any]:
            def __next__(iterator: Any) -> Any:
                self._drawn.pop(id(iterator), None)  # no step came of the one before: an evaluation's
                began = time.perf_counter()
                batch = original(iterator)
                self._waited += time.perf_counter() - began
                self._drawn[id(iterator)] = batch_size(batch)
                self._stir()
                self._mark("batch")
                return batch

            return __next__

        def backward(original: Any) -> Callable[..., Any]:
            def run(*arguments: Any, **keywords: Any) -> Any:
                self._train()
                self._mark("backward")
                result = original(*arguments, **keywords)
                self._mark("backward done")
                return result

            return run

        # whether graphs are built says nothing: an evaluation may build them in one program and not in the other
        wrap(loading._BaseDataLoaderIter, "__next__", next_batch)
        wrap(torch.autograd, "backward", backward)
        self._patience.start()
        register_optimizer_step_pre_hook(lambda *_: self._mark("step"))
        register_optimizer_step_post_hook(self._stepped)

    def _mark(self, name: str) -> None:
        if not self._start or os.getpid() != self._main:
            return
        if self._cuda:
            cuda: Any = torch.cuda
            event = cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))

    def _train(self) -> None:
        """Count the samples that a backward pass or a step follows on."""
        self._samples += sum(self._drawn.values())
        self._drawn.clear()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() != self._main:
            return
        self._train()
        self._mark("step done")
        self._stopped = time.perf_counter()
        self._stir()
        self._leading = self._leading or optimizer
        if optimizer is not self._leading:
            return
        self._steps += 1
        if self._steps % 10 == 0:
            self._say({"step": self._steps})
        if self._steps == self._order["warm_up"]:
            self._wait_for_device()
            self._warm_up_seconds = time.perf_counter() - self._begun
            self._samples, self._waited = 0, 0.0
            if self._cuda:
                torch.cuda.reset_peak_memory_stats()
            self._start = time.perf_counter()
        if self._steps >= self._order["warm_up"] + self._order["steps"]:
            self.finish("stopped")
            processes.leave()

    def _stir(self) -> None:
        self._patience.stir(ready=self._steps >= FEWEST_STEPS)

    def _wait_no_longer(self, _: bool) -> None:
        self.finish("waiting")
        processes.leave()

    def _wait_for_device(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def finish(self, how: str, more: dict[str, Any] | None = None) -> None:
        if os.getpid() != self._main:
            return
        self._wait_for_device()
        steps = self._steps - self._order["warm_up"]
        end = self._stopped if how == "waiting" else time.perf_counter()
        seconds = end - self._start if self._start and steps > 0 else None
        log = {
            "how": how,
            "seconds": seconds,
            "steps": max(steps, 0),
            "samples": self._samples,
            "warm_up_seconds": self._warm_up_seconds,
            "parts_ms": self._parts(steps) if seconds else {},
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if self._cuda and seconds else None,
            **(more or {}),
        }
        with open(self._order["log"], "w", encoding="utf-8") as handle:
            json.dump(log, handle)

    def _parts(self, steps: int) -> dict[str, float]:
        """Milliseconds of each part, per step; the wait for data is the main process's, the rest the device's."""
        parts = {"data": self._waited * 1e3 / steps}
        for (_, before), (name, after) in zip(self._marks, self._marks[1:], strict=False):
            part = _PARTS[name]
            if part != "data":
                passed = before.elapsed_time(after) if self._cuda else (after - before) * 1e3
                parts[part] = parts.get(part, 0.0) + passed / steps
        return parts
