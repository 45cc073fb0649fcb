"""One function over many inputs, in worker processes, each input within a limit of processor time."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

LIMIT = 120.0
"""Seconds of processor time after which a file is given up: far above what any may take."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class TookTooLong(BaseException):
    """The limit is over. Not an ``Exception``: the engine would make a note of it and go on."""


def run(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    jobs: int,
    label: str,
    tell: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """The results in the order of the tasks, with a progress bar on a terminal; ``tell`` gets each as it comes.

    Interrupted (Ctrl-C), it gives the results that there are.
    """
    # Spawned, as the tool itself does: every worker begins as a fresh interpreter does.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, jobs), context, initializer=prepare) as pool:
        results: list[Result] = []
        try:
            for result in shown(pool.map(function, tasks, chunksize=4), len(tasks), label):
                tell(result)
                results.append(result)
        except KeyboardInterrupt:
            sys.stderr.write(f"interrupted after {len(results)} of {len(tasks)}\n")
            pool.shutdown(wait=False, cancel_futures=True)
        return results


def prepare() -> None:
    """What holds in every worker: nothing is said of other people's invalid escapes, and only the parent is stopped."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that collects the results


def shown(results: Iterator[Result], total: int, label: str) -> Iterator[Result]:
    """The results as they come, with a progress bar where somebody looks."""
    if not sys.stderr.isatty():
        for number, result in enumerate(results, start=1):
            yield result
            if number % 100 == 0:
                sys.stderr.write(f"{label}: {number} of {total}\n")
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(results, label, total=total, console=Console(stderr=True), transient=True)


@contextlib.contextmanager
def limited(seconds: float = LIMIT) -> Iterator[Callable[[], float]]:
    """Stop what runs inside after so much processor time; gives a clock of that time. Raises TookTooLong."""

    def stop(number: int, frame: object) -> None:
        raise TookTooLong(f"it took more than {seconds:g} s of processor time")

    begun = time.process_time()
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield lambda: time.process_time() - begun
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
