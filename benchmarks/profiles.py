"""``python -m benchmarks.profiles``: what ``turbofix profile --gpu h100`` says of whole trainings, and what that takes.

For each training of ``fixtures/scripts``, and with ``--jobs`` for the ten of ``benchmarks/training`` at full size: the
seconds that the estimate of the script takes, and those with an estimate for each codemod; how many real steps on this
CPU that is (``--real``, which computes them; no run is waited for longer than ``LONGEST``); what bounds
the step, whether the parts come to the whole, and the estimate, or why there is none. Exits with 1 where one could not
be profiled. With ``--overhead``, instead: by how much a step of about 10 ms is longer where it is timed.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.composition import QUICK
from benchmarks.training import jobs
from turbofix.engine import verifying
from turbofix.engine.project import Chosen
from turbofix.estimate.cards import cards
from turbofix.source.files import Workspace
from turbofix.verify import Inconclusive, Options, Request
from turbofix.verify.profile import profile
from turbofix.verify.recorded import recorder
from turbofix.verify.request import Progress

ROOT = Path(__file__).parent.parent
CARD = "h100"
LONGEST = 150.0
"""Seconds that a run may take up to the end of its second real step."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", action="store_true", help="the ten jobs instead of the fixtures")
    parser.add_argument("--real", action="store_true", help="also time a real step")
    parser.add_argument("--overhead", action="store_true", help="what timing costs a step of 10 ms")
    chosen = parser.parse_args()
    if chosen.overhead:
        return _overhead()
    print(
        "| training | seconds | with codemods | a real step | bound | parts over the step | estimate (ms) | codemods |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    failed = 0
    for script, arguments in _jobs() if chosen.jobs else _fixtures():
        begun = time.perf_counter()
        request = Request(script, arguments, options=Options(device="cpu"))
        try:
            found = profile(request, cards()[CARD], _quiet)
        except Inconclusive as why:
            failed += 1
            print(f"| {script.name} | – | – | – | – | – | {why} | – |")
            continue
        took = time.perf_counter() - begun
        *parts, total = found.step_ms.values()
        step = found.estimate.step_ms
        told = step.in_words if step else f"none: {found.estimate.refused}"
        begun = time.perf_counter()
        whole, gained = _rewritten(script, arguments)
        more = time.perf_counter() - begun
        real = _real(request) if chosen.real else "–"
        print(
            f"| {script.stem} | {took:.1f} | {more:.1f} | {real} | {found.estimate.bound} | {sum(parts) / total:.2f} | "
            f"{told} → {whole} | {gained} |",
            flush=True,
        )
    return 1 if failed else 0


def _fixtures() -> Iterator[tuple[Path, tuple[str, ...]]]:
    for script in sorted((ROOT / "fixtures" / "scripts").glob("*.py")):
        yield script, QUICK.get(script.name, ())


def _jobs() -> Iterator[tuple[Path, tuple[str, ...]]]:
    for module in pkgutil.iter_modules(jobs.__path__):
        job = importlib.import_module(f"{jobs.__name__}.{module.name}").JOB
        yield job.path("naive"), job.full.load.arguments


def _rewritten(script: Path, arguments: tuple[str, ...]) -> tuple[str, str]:
    """The estimate of what turbofix makes of a script, and what each codemod brings by it."""
    chosen = Chosen(gpu=CARD)
    request = verifying.plan_profile(script, arguments, chosen, Options(device="cpu"), Workspace())
    found = profile(request, cards()[CARD], _quiet)
    gains = ", ".join(
        f"{each.codemod} {each.gain:.2f}" if each.estimate and each.estimate.speedup else f"{each.codemod} –"
        for each in found.advice
    )
    if found.whole is None or found.whole.step_ms is None:
        return "–", gains
    factor = f" ({found.whole.speedup.in_words}×)" if found.whole.speedup else ""
    return found.whole.step_ms.in_words + factor, gains


def _real(request: Request) -> str:
    """Seconds of a real step on this CPU, that of the optimizer included."""
    options = Options(device="cpu", timeout=LONGEST)
    timed = Request(request.script, request.args, options=options)
    try:
        with recorder(timed, _quiet, pretend=False) as runs:
            return f"{runs.record('', {}).measured['step']:.2g} s"
    except Inconclusive:
        return f"not two in {LONGEST:.0f} s"


TEN_MS = """
import sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(torch.randn(64 * 260, SIZE), batch_size=64)
for step, x in enumerate(loader):
    if step == 20:
        began = time.process_time()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if step == 219:
        print((time.process_time() - began) / 199.5 * 1e3, flush=True)
""".replace("SIZE", "480")
"""Prints the milliseconds of the processor for a step, from the 20th to the 220th."""


def _overhead(runs: int = 7) -> int:
    """Run the training alone and timed, in turn, and compare what it prints itself."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TEN_MS)
        alone, timed = [], []
        with recorder(Request(script, options=Options(device="cpu")), _quiet) as made:
            for _ in range(runs):
                run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
                alone.append(float(run.stdout))
                made.child.start()
                ended = made.child.run({}, {"speed": True, "warm_up": 20, "steps": 235}, lambda step: None)
                timed.append(float(ended.output[-1]))
    ratios = [after / before for before, after in zip(alone, timed, strict=True)]
    longer = statistics.median(ratios)
    print(f"a step of {statistics.median(alone):.2f} ms takes {longer:.3f} times as long where it is timed")
    print(f"pairs: {', '.join(f'{each:.3f}' for each in sorted(ratios))}")
    return 0


def _quiet(progress: Progress) -> None:
    """No word of how it goes."""


if __name__ == "__main__":
    sys.exit(main())
