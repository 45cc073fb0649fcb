"""CPU time of ``turbofix analyze SCRIPT`` as a multiple of ``python -c "import libcst, typer"``, measured side by side.

    python -m benchmarks.startup SCRIPT [--runs 15]

User and system time of whole processes, the two commands in turn; the median, the least and the greatest ratio.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

BASE = [sys.executable, "-c", "import libcst, typer"]


def main(
    script: Annotated[Path, typer.Argument(help="the training script to analyze", exists=True)],
    runs: Annotated[int, typer.Option(help="how often each command is run")] = 15,
) -> None:
    """Print the ratio of CPU times."""
    ours = [sys.executable, "-m", "turbofix", "analyze", str(script)]
    cpu_seconds(BASE), cpu_seconds(ours)  # compiled files and caches are warm from here on
    base, own = zip(*((cpu_seconds(BASE), cpu_seconds(ours)) for _ in range(runs)), strict=True)
    ratios = sorted(mine / other for other, mine in zip(base, own, strict=True))
    typer.echo(
        f"import libcst, typer: {statistics.median(base):.3f} s; turbofix analyze: {statistics.median(own):.3f} s"
    )
    typer.echo(
        f"ratio: {statistics.median(own) / statistics.median(base):.2f} of the medians; "
        f"by run {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}), {runs} runs"
    )


def cpu_seconds(command: list[str]) -> float:
    """The CPU time, user and system, of one run of a command."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    typer.run(main)
