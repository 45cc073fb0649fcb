"""Run a training script as it is, and measure its optimizer steps from outside.

    python runner.py --out FILE --warm-up N --steps N [--profile N] [--eager] SCRIPT [ARGUMENT ...]
    python runner.py --serve

Steps are those of the first optimizer that steps. The window opens behind the first ``--warm-up`` steps (compiling, the
choice of kernels, first batches) and closes behind ``--steps``; the device is waited for at these two places only, so
that everything between them counts: loading, validation, printing. Where a script captures its step as a CUDA graph,
replays of that graph are steps; other graphs, such as those of ``torch.compile``, are not.

``--profile N`` traces the GPU for N steps behind the warm-up instead, and tells the share of the time in which a kernel
ran. ``--eager`` hands what the script compiles to the backend ``eager``: the tracing is real, the speed is not. What
the script prints stays on its own output; FILE gets one JSON object. Needs torch and nothing else.

``--serve`` does this in forks, one after another, for small runs on a CPU, beside which imports are long: each line of
its input is a JSON list, a folder, the file there for what is printed, and the arguments as above; each line of its
output is an exit status.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import runpy
import sys
import time
import traceback
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class Steps:
    """Counts the steps of the first optimizer and tells ``reached`` of each new count."""

    def __init__(self, reached: Any) -> None:
        self.count = 0
        self.reached = reached
        self.first: Optimizer | None = None
        self.capturing: Any = None
        self.captured: dict[int, int] = {}  # steps within one graph, by the graph's id
        self.graphs: list[Any] = []  # keeps the ids of those graphs from being used again
        register_optimizer_step_post_hook(self.stepped)
        if torch.cuda.is_available():
            self.watch_graphs()

    def stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self.first is None:
            self.first = optimizer
        if optimizer is not self.first:
            return
        if self.capturing is None:
            self.advance(1)
            return
        if id(self.capturing) not in self.captured:
            self.graphs.append(self.capturing)
        self.captured[id(self.capturing)] = self.captured.get(id(self.capturing), 0) + 1

    def advance(self, steps: int) -> None:
        self.count += steps
        self.reached(self.count)

    def watch_graphs(self) -> None:
        graph: Any = torch.cuda.CUDAGraph
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

        def capture_begin(this: Any, *given: Any, **named: Any) -> Any:
            self.capturing = this
            return begin(this, *given, **named)

        def capture_end(this: Any) -> Any:
            self.capturing = None
            return end(this)

        def replayed(this: Any) -> Any:
            result = replay(this)
            if id(this) in self.captured:
                self.advance(self.captured[id(this)])
            return result

        graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed


class Window:
    """The steps that are timed."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.warm_up, self.steps = warm_up, steps
        self.opened: tuple[int, float] | None = None
        self.closed: tuple[int, float] | None = None

    def reached(self, count: int) -> None:
        if self.opened is None and count >= self.warm_up:
            wait()
            self.opened = count, time.perf_counter()
        elif self.closed is None and count >= self.steps:
            wait()
            self.closed = count, time.perf_counter()

    def told(self) -> dict[str, Any]:
        if self.opened is None or self.closed is None:
            return {"window_steps": 0, "window_seconds": None}
        return {"window_steps": self.closed[0] - self.opened[0], "window_seconds": self.closed[1] - self.opened[1]}


class Profile:
    """The steps during which the GPU is traced; the trace costs the host little, since only the device is asked."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.warm_up, self.until = warm_up, warm_up + steps
        self.profile: Any = None
        self.busy: float | None = None

    def reached(self, count: int) -> None:
        if self.profile is None and count >= self.warm_up:
            wait()
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profile.start()
            self.began = time.perf_counter()
        elif self.profile is not None and self.busy is None and count >= self.until:
            wait()
            seconds = time.perf_counter() - self.began
            self.profile.stop()
            self.busy = covered(self.kernels()) / 1e6 / seconds

    def kernels(self) -> list[tuple[float, float]]:
        ranges = [event.time_range for event in self.profile.events() if event.device_type.name == "CUDA"]
        return [(each.start, each.end) for each in ranges]

    def told(self) -> dict[str, Any]:
        return {"busy": self.busy}


def covered(ranges: list[tuple[float, float]]) -> float:
    """The length of the union of ranges."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(ranges):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def wait() -> None:
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()


def compile_eagerly() -> None:
    """Let ``torch.compile`` trace, and run what it traced as it is."""
    library: Any = torch
    compile_ = library.compile

    def eagerly(model: Any = None, **given: Any) -> Any:
        kept = {name: given[name] for name in ("fullgraph", "dynamic") if name in given}
        return compile_(model, backend="eager", **kept)

    library.compile = eagerly


def serve() -> None:
    """Run one program for each line, in a fork that has imported what takes time."""
    for name in ("torch._dynamo", "accelerate"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        place, said, *arguments = json.loads(line)
        if not os.fork():
            status = 1
            os.chdir(place)
            output = os.open(said, os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            try:
                main(arguments)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--profile", type=int, default=0)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(given)
    if options.eager:
        compile_eagerly()
    watched = Profile(options.warm_up, options.profile) if options.profile else Window(options.warm_up, options.steps)
    steps = Steps(watched.reached)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(options.script).rpartition("/")[0]
    try:
        runpy.run_path(options.script, run_name="__main__")
    finally:
        cuda = torch.cuda.is_available()
        peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open(options.out, "w", encoding="utf-8") as handle:
            json.dump({"steps": steps.count, "peak_memory": peak, **watched.told()}, handle)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main(sys.argv[1:])
