"""A minute of measurements on a GPU: ``python calibration.py cuda`` prints them as one JSON object.

Run by the user's interpreter, alone. Rates are the best of some runs: what the card can do, not what it does beside
others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

LEAST = {"cuda": 0.2, "cpu": 0.005}  # seconds that a rate is measured over
RUNS = 5
STARTS = 300  # kernels in a row: fewer than wait for the GPU in a queue
SIDE = {"cuda": 8192, "cpu": 256}  # of a matrix
NUMBERS = {"cuda": 1 << 27, "cpu": 1 << 16}  # of a vector


def measure(device: str) -> dict[str, Any]:
    """What the card is called, what it has, and what it reaches: TFLOP/s, GB/s, microseconds."""
    side, numbers = SIDE[device], NUMBERS[device]
    found: dict[str, Any] = {"torch": torch.__version__, **_about(device)}
    matmul: Any = torch.backends.cuda.matmul
    for name, dtype, rounds in (
        ("half", torch.float16, False),
        ("tf32", torch.float32, True),
        ("float32", torch.float32, False),
    ):
        matmul.allow_tf32 = rounds
        left, right = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(left)
        found[name] = 2 * side**3 / _seconds(lambda: torch.mm(left, right, out=out), device) * 1e-12  # noqa: B023
    one, other = (torch.ones(numbers, device=device) for _ in range(2))
    sums = torch.empty_like(one)
    found["bandwidth"] = 3 * 4 * numbers / _seconds(lambda: torch.add(one, other, out=sums), device) * 1e-9
    here = torch.ones(numbers, pin_memory=device == "cuda")
    found["link"] = 4 * numbers / _seconds(lambda: one.copy_(here, non_blocking=True), device) * 1e-9
    small = torch.ones(8, device=device)
    found["start"] = min(_host(lambda: small.add_(1), device, STARTS) for _ in range(RUNS)) * 1e6
    read = min(_host(small[0].item, device, STARTS) for _ in range(RUNS)) * 1e6
    found["read"] = max(read - found["start"], 0.0)
    return found


def _about(device: str) -> dict[str, Any]:
    if device != "cuda":
        return {"name": device, "capability": [0, 0], "multiprocessors": 1, "memory": 1.0}
    of = torch.cuda.get_device_properties(0)
    return {
        "name": of.name,
        "capability": [of.major, of.minor],
        "multiprocessors": of.multi_processor_count,
        "memory": of.total_memory / 1e9,
    }


def _seconds(run: Callable[[], Any], device: str) -> float:
    """Of one run, the device's time: so many in a row that the clock is sure."""
    times, best = 1, float("inf")
    run()
    while True:
        took = _took(run, device, times)
        if took >= LEAST[device]:
            break
        times *= 2
    for _ in range(RUNS):
        best = min(best, _took(run, device, times) / times)
    return best


def _took(run: Callable[[], Any], device: str, times: int) -> float:
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        run()
    _wait(device)
    return time.perf_counter() - began


def _host(run: Callable[[], Any], device: str, times: int) -> float:
    """Seconds of the host for one run, which it does not wait for by itself."""
    run()
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - began) / times


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1] == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here")
    print(json.dumps(measure(sys.argv[1])))
