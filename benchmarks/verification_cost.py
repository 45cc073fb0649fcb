"""What a verification costs, as a multiple of the script's own run, and what the probe adds to a step of 10 ms.

    python -m benchmarks.verification_cost [--rounds 5]

The script is a small convolutional network on the CPU: 20 steps of about 10 ms, no compilation, and a rewrite that
passes at once. It is measured in two ways. *candidate*: the rewrite is given, and turbofix's start-up is that of
``turbofix --version``. *codemods*: the script would take a GPU where there is one, and turbofix rewrites it itself, by
three codemods; its start-up is ``turbofix apply``, which reads and rewrites the script as ``verify`` must first. CUDA
is remapped onto the CPU in that way's runs, and what that costs in each operation is a part of the figure.

For each way four commands are run in turn, in every round: the script with no epoch (its start-up), the script,
turbofix's start-up and ``turbofix verify``. CPU time is user and system time of the whole tree of processes, which a
loaded machine stretches least; the figures are medians over the rounds, differences are taken within one, and the
script tells the CPU time of its steps itself.

The probe is measured at a smaller batch of the same network, where the noise is smaller than what is to be seen: every
kind of run in a fork of one process, in turn, by the fastest twentieth of its steps. *timing* is the probe of the timed
runs, *recording* and *comparing* are those that write the original's steps down and hold another run against them; the
latter two are bounded by the cost of the whole.

Exits with 1 above a limit: 5 times the script's own steps beside the two start-ups (CPU time), 5 times the script's
whole run (wall-clock time), 3 % of a 10 ms step for the probe of timed runs.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turbofix.records import dataclass

MOST_TIMES = 5.0
MOST_SHARE = 0.03
STEP_MS = 10.0
STEPS = 20
SMALL_BATCH = 2
PROBED_STEPS = 150
WARM_UP = 30

SCRIPT = """\
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--times", help="where to write the CPU time of every step, in seconds")
options = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.randn(options.steps * options.batch, 3, 16, 16)
kinds = torch.randint(0, 10, (len(images),))
loader = DataLoader(TensorDataset(images, kinds), batch_size=options.batch, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
    nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(2048, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
times = [time.process_time()]
for epoch in range(options.epochs):
    total = 0.0
    for batch, kind in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), kind)
        loss.backward()
        optimizer.step()
        total += loss.item()
        times.append(time.process_time())
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
if options.times:
    with open(options.times, "w") as handle:
        handle.writelines(f"{after - before}\\n" for before, after in zip(times, times[1:]))
"""
REWRITE = ("lr=1e-3", "lr=1e-3, fused=True")
FOR_CUDA = (
    ("(0)\n", '(0)\ndevice = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'),
    ("(2048, 10),\n)", "(2048, 10),\n).to(device)"),
    ("in loader:\n", "in loader:\n        batch, kind = batch.to(device), kind.to(device)\n"),
    ("        total += loss.item()\n", ""),
    ("total / len(loader)", "loss.item()"),
)
CODEMODS = ("non-blocking", "pin-memory", "fused-optimizer")
"""What turbofix is to change in the script for CUDA; ``verify`` has to keep them all."""


@dataclass(frozen=True)
class Cost:
    """Seconds that a command took."""

    cpu: float
    wall: float


def main(
    rounds: Annotated[int, typer.Option(min=1, help="how often each command is run")] = 5,
    probe_rounds: Annotated[int, typer.Option(min=1, help="how often each kind of probe is run")] = 9,
) -> None:
    """Print both costs, and exit with 1 where one is above its limit."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        (place / "train.py").write_text(SCRIPT)
        fork = forking(place)
        batch = batch_for(STEP_MS, lambda batch: fork("plain", batch))
        held = [
            verification(candidate(folder_in(place, "candidate")), batch, rounds),
            verification(codemods(folder_in(place, "codemods")), batch, rounds),
            probe(fork, probe_rounds),
        ]
    raise typer.Exit(0 if all(held) else 1)


def batch_for(step_ms: float, measure: Callable[[int], float]) -> int:
    """The batch size at which a step takes ``step_ms`` milliseconds; ``measure`` gives those of a batch size."""
    small, large = 8, 32
    less, more = measure(small), measure(large)
    per_sample = max((more - less) / (large - small), 1e-3)
    return max(1, round(large + (step_ms - more) / per_sample))


# --- the whole verification


@dataclass(frozen=True)
class Way:
    """One way to be verified: a folder with ``train.py``, and turbofix's arguments for its start-up and for the whole.

    ``proves`` says of the JSON of a verification whether it is one of what is to be measured.
    """

    name: str
    folder: Path
    start: tuple[str, ...]
    verify: tuple[str, ...]
    proves: Callable[[Mapping[str, Any]], bool]


def folder_in(place: Path, name: str) -> Path:
    """A new folder."""
    (place / name).mkdir()
    return place / name


def candidate(folder: Path) -> Way:
    """A rewrite that the user gives."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "candidate.py").write_text(SCRIPT.replace(*REWRITE))
    return Way("candidate", folder, ("--version",), ("train.py", "candidate.py"), lambda found: not found["codemods"])


def codemods(folder: Path) -> Way:
    """A rewrite that turbofix makes."""
    (folder / "train.py").write_text(for_cuda(SCRIPT))

    def proves(found: Mapping[str, Any]) -> bool:
        return {one["codemod"]: one["verdict"] for one in found["codemods"]} == dict.fromkeys(CODEMODS, "kept")

    selected = ("--select", ",".join(CODEMODS), "train.py")
    # `apply` alone ends with 1 where it has something to propose
    return Way("codemods", folder, ("apply", "-q", "--exit-zero", *selected), selected, proves)


def for_cuda(script: str) -> str:
    """The script as one that takes a GPU where there is one."""
    for old, new in FOR_CUDA:
        assert script.count(old) == 1
        script = script.replace(old, new)
    return script


def verification(way: Way, batch: int, rounds: int) -> bool:
    """Measure ``turbofix verify`` beside the script; whether it stays below the limits."""
    python, ours = [sys.executable], [sys.executable, "-m", "turbofix"]
    script = ["train.py", "--batch", str(batch)]
    result = way.folder / "result.json"
    told = ["-q", "--output-format", "json", "--output-file", result.name]
    commands = {
        "start": [*python, *script, "--epochs", "0"],
        "script": [*python, *script, "--times", "times.txt"],
        "turbofix": [*ours, *way.start],
        "verify": [*ours, "verify", *told, *way.verify, "--", *script[1:]],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    steps = []
    for _ in range(rounds):
        for name, command in commands.items():
            costs[name].append(cost_of(command, way.folder))
        steps.append(sum(step_times(way.folder)))
        if not way.proves(json.loads(result.read_text())):
            raise SystemExit(f"{way.name}: this is not the verification that is to be measured: {result.read_text()}")
    cpu = {name: statistics.median(one.cpu for one in found) for name, found in costs.items()}
    wall = {name: statistics.median(one.wall for one in found) for name, found in costs.items()}
    for name, words in (
        ("start", "the script with no epoch"),
        ("script", f"the script, {STEPS} steps at a batch of {batch}"),
        ("turbofix", f"turbofix {way.start[0]}"),
        ("verify", f"turbofix verify, {way.name}"),
    ):
        typer.echo(f"{words:<42} {cpu[name]:6.2f} s CPU  {wall[name]:6.2f} s wall clock")
    own = statistics.median(steps)
    beside = [
        verify.cpu - start.cpu - turbofix.cpu
        for verify, start, turbofix in zip(costs["verify"], costs["start"], costs["turbofix"], strict=True)
    ]
    times = statistics.median(beside) / own
    whole = wall["verify"] / wall["script"]
    typer.echo(f"own steps: {own:.2f} s CPU, {own / STEPS * 1e3:.1f} ms a step; medians of {rounds} rounds")
    return all(
        [
            held(f"{way.name}: verify beside the start-ups, by the own steps (CPU)", times, MOST_TIMES, "×"),
            held(f"{way.name}: verify by the script's whole run (CPU)", cpu["verify"] / cpu["script"], MOST_TIMES, "×"),
            held(f"{way.name}: verify by the script's whole run (wall clock)", whole, MOST_TIMES, "×"),
        ]
    )


def step_times(place: Path) -> list[float]:
    """The CPU seconds of each step of the run that was the last to write them."""
    return [float(line) for line in (place / "times.txt").read_text().split()]


def cost_of(command: Sequence[str], folder: Path) -> Cost:
    """The cost of one run of a command, which has to succeed: a verification that does not pass is no measure."""
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, time.monotonic() - began)


def held(what: str, value: float, limit: float, unit: str) -> bool:
    """Print a value beside its limit; whether it is within."""
    good = value <= limit
    typer.echo(f"{what}: {value:.2f} {unit} (limit {limit:g} {unit}){'' if good else '  ABOVE'}")
    return good


# --- the probe


def probe(fork: Callable[[str, int], float], rounds: int) -> bool:
    """Measure what each kind of run adds to a step; whether that of the timed runs stays below the limit."""
    added: dict[str, list[float]] = {"timing": [], "recording": [], "comparing": []}
    for _ in range(rounds):
        plain = fork("plain", SMALL_BATCH)
        for kind, found in added.items():
            found.append(fork(kind, SMALL_BATCH) - plain)
    for kind in ("recording", "comparing"):
        typer.echo(f"{kind} adds {statistics.median(added[kind]):.2f} ms to a step")
    share = statistics.median(added["timing"]) / STEP_MS * 100
    return held(f"the probe of timed runs on a step of {STEP_MS:g} ms", share, MOST_SHARE * 100, "%")


def forking(place: Path) -> Callable[[str, int], float]:
    """A function that runs the script in a fork of this process and gives the milliseconds of its fast steps."""
    import gc
    import importlib

    importlib.import_module("torch")
    importlib.import_module("torch._dynamo")  # what an optimizer would import
    gc.collect()
    gc.freeze()

    def run(kind: str, batch: int) -> float:
        child = os.fork()
        if not child:
            try:
                _run_probed(place, kind, batch)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        kept = sorted(step_times(place)[WARM_UP:])
        (place / "times.txt").unlink()
        return kept[len(kept) // 20] * 1e3

    return run


def _run_probed(place: Path, kind: str, batch: int) -> None:
    """Run the script in this process as ``kind`` says."""
    from turbofix.verify.probe import run

    with open(place / "output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
    arguments = [f"--steps={PROBED_STEPS + WARM_UP}", "--epochs=1", f"--batch={batch}", "--times=times.txt"]
    order: dict[str, Any] = {
        "environment": {},
        "folder": str(place),
        "mirror": str(place),
        "mirrored": {},
        "script": str(place / "train.py"),
        "name": "train.py",
        "arguments": arguments,
        "log": str(place / "log.json"),
        "tensors": str(place / "tensors"),
        "tensor_bytes": 1 << 30,
        "seed": 0,
        "speed": kind == "timing",
        "warm_up": WARM_UP,
        "replay": kind == "comparing",
        "stop_after": None,
        "steps": 10 * PROBED_STEPS,
        "minimum": 20,
        "seconds": 600,
        "may_shorten": False,
        "shorten": {},
        "finish_seconds": 0,
        "patience": 0.0,
        "mark": None,
        "dropout": True,
        "remap": False,
        "watch": {},
    }
    if kind != "plain":
        run.run(order, lambda message: None)
        return
    os.chdir(place)
    sys.argv = ["train.py", *arguments]
    exec(compile(SCRIPT, "train.py", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    typer.run(main)
