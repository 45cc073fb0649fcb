"""What a run may use of the machine, and how it is told that it used more."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify.probe import processes

# seconds between two looks at a run
PAUSE = 0.1

MEMORY_SHARE = 0.9
DISK_SHARE = 0.5
MOST_PROCESSES = 2000

# Where the machine does not tell how much memory is free, there is no limit.
_UNKNOWN = 1 << 60
_GIB = 1 << 30

# Counting what many files come to may take that share of the time.
_COUNTING = 0.02
# how often files are counted when the disk as a whole is hardly used, in seconds
_SELDOM = 5.0


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes of memory, and bytes written, for one run with all its processes."""

    seconds: float
    memory: int
    disk: int


def limits_for(seconds: float, memory: int | None, disk: int | None, root: Path) -> Limits:
    """The limits that were asked for; else most of the memory that is free, and half of the disk."""
    return Limits(
        seconds,
        int(available_memory() * MEMORY_SHARE) if memory is None else memory,
        int(shutil.disk_usage(root).free * DISK_SHARE) if disk is None else disk,
    )


def available_memory() -> int:
    """Bytes that can be had without swapping, as the machine and the control group tell."""
    found = [_UNKNOWN]
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as handle:
        found.append(next(int(line.split()[1]) << 10 for line in handle if line.startswith("MemAvailable")))
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(most).read_text()) - int(Path(used).read_text()))
    return max(min(found), 0)


class Watch:
    """Looks at one run, again and again, and says which of its limits it broke."""

    def __init__(self, limits: Limits, warden: int, folders: Sequence[Path]) -> None:
        self._limits, self._warden, self._folders = limits, warden, folders
        self._until = time.monotonic() + limits.seconds
        self._before = bytes_in(folders)
        self._free = shutil.disk_usage(folders[0]).free
        self._counted = time.monotonic()
        self._next_count = 0.0

    def broken(self) -> str | None:
        """What the run did, in words that follow its name; None while it keeps to its limits."""
        if time.monotonic() > self._until:
            return f"ran past its time limit of {self._limits.seconds:g} seconds (--timeout)"
        living = processes.below(self._warden)
        if len(living) > MOST_PROCESSES:
            return f"started more than {MOST_PROCESSES} processes"
        if processes.memory_of(living, self._limits.memory) > self._limits.memory:
            return f"used more memory than its limit of {in_words(self._limits.memory)} (--memory)"
        if self._written() > self._limits.disk:
            return f"wrote more than its limit of {in_words(self._limits.disk)} (--disk)"
        return None

    def _written(self) -> int:
        """Bytes that the run has written since it began; 0 when there is no reason to count them now."""
        now = time.monotonic()
        gone = self._free - shutil.disk_usage(self._folders[0]).free
        due = now > self._counted + _SELDOM or gone > self._limits.disk / 2
        if not due or now < self._next_count:
            return 0
        size = bytes_in(self._folders) - self._before
        self._counted = time.monotonic()
        self._next_count = self._counted + (self._counted - now) / _COUNTING
        return size


def bytes_in(folders: Sequence[Path]) -> int:
    """What everything below the folders takes on the disk; a file that vanishes meanwhile counts as nothing."""
    whole = 0
    waiting = [str(folder) for folder in folders]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        status = entry.stat(follow_symlinks=False)
                        # not every system counts in blocks
                        whole += getattr(status, "st_blocks", 0) * 512 or status.st_size
    return whole


def in_words(size: int) -> str:
    """Bytes as people say them: ``1.5 GiB``."""
    return f"{size / _GIB:.3g} GiB" if size >= _GIB else f"{size / (1 << 20):.3g} MiB"
