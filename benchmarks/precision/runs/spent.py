"""What a command and all that it starts take of the processor, even those that are killed before anybody waits."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

SECONDS_BETWEEN = 0.1


class Seen(NamedTuple):
    """A process: its parent, when it began (in ticks since the machine did), and its own seconds of the processor."""

    parent: int
    began: int
    seconds: float


class Spent:
    """Counts, while it is entered, the processes that descend from this one. It reads /proc, which Linux alone has."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Spent:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    @property
    def seconds(self) -> float:
        """All seconds of the processor so far, to a tenth for each process."""
        return sum(self._seconds.values())

    def _count(self) -> None:
        ours = {os.getpid()}
        while not self._done.wait(SECONDS_BETWEEN):
            seen = {int(folder.name): one for folder in Path("/proc").glob("[0-9]*") if (one := look(folder))}
            ours &= seen.keys()
            # whoever lost its parent was ours before, unless it lived for less than the time between two looks
            while more := {pid for pid, one in seen.items() if one.parent in ours} - ours:
                ours |= more
            for pid in ours - {os.getpid()}:
                self._seconds[pid, seen[pid].began] = seen[pid].seconds


def look(folder: Path) -> Seen | None:
    """The process of a folder of /proc; None where it is gone."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    user, system = int(fields[11]), int(fields[12])
    return Seen(int(fields[1]), int(fields[19]), (user + system) / os.sysconf("SC_CLK_TCK"))
