"""Processes: to be told apart from everybody else's, counted, weighed, and ended with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from . import kernel

# in the environment of every process of a verification: the scratch folder that it belongs to
MARK = "TURBOFIX_SCRATCH"

# how long a killed process may take to vanish, in seconds
_PATIENCE = 5.0


def die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent; a fork has to ask for itself."""
    if kernel.LINUX:
        set_death_signal = 1
        kernel.call("prctl", set_death_signal, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Ask the kernel to hand this process its orphaned descendants, so that they can be found and ended."""
    if kernel.LINUX:
        become_subreaper = 36
        kernel.call("prctl", become_subreaper, 1, 0, 0, 0)


def go_first() -> None:
    """Where the machine runs out of memory, this process and those below it are to be ended before the user's."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as handle:
        handle.write("1000")


def leave() -> NoReturn:
    """End this process and its workers at once: an exception could be caught by the script, or run its clean-up."""
    import multiprocessing  # torch's; turbofix itself has no use for it

    sys.stdout.flush()
    sys.stderr.flush()
    # another thread cannot keep the main one from hearing of the workers' death: there they outlive it by a moment
    if threading.current_thread() is threading.main_thread():
        if hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for child in multiprocessing.active_children():
            child.kill()
    os._exit(0)


def descendants(pid: int) -> list[int]:
    """All living processes below ``pid``, parents first."""
    started: dict[int, list[int]] = {}
    for child, parent in _parents():
        started.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        under = started.get(waiting.pop(), [])
        found += under
        waiting += under
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Each living process that can be seen, with its parent."""
    if not kernel.LINUX:
        yield from _parents_as_ps_tells()
        return
    for name in _numbers("/proc"):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as handle:
            state, parent = handle.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                yield name, int(parent)


def _parents_as_ps_tells() -> Iterator[tuple[int, int]]:
    for line in _ps("-axo", "pid=,ppid=,stat="):
        child, parent, state = line.split(None, 2)
        if not state.startswith("Z"):
            yield int(child), int(parent)


def _ps(*arguments: str) -> list[str]:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(["ps", *arguments], capture_output=True, text=True, timeout=_PATIENCE, check=False)
        return [line for line in told.stdout.splitlines() if line.strip()]
    return []


def _numbers(folder: str) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    return []


def marked(mark: str) -> list[int]:
    """The living processes that carry ``mark`` in their environment: this user's alone."""
    if sys.platform == "win32":
        return []
    if not kernel.LINUX:
        lines = _ps("-axwwEo", "pid=,command=")
        return [int(line.split(None, 1)[0]) for line in lines if f"{MARK}={mark} " in f"{line} "]
    words = f"{MARK}={mark}".encode()
    found = []
    for pid in _numbers("/proc"):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid() or pid == os.getpid():
                continue
            with open(f"/proc/{pid}/environ", "rb") as handle:
                if words in handle.read().split(b"\0"):
                    found.append(pid)
    return found


def kill_descendants(pid: int) -> bool:
    """Kill everything below ``pid``, and what those leave behind; whether all of it is gone."""
    return _kill_until_gone(lambda: descendants(pid), reap if pid == os.getpid() else lambda: None)


def kill_marked(mark: str) -> bool:
    """Kill every process that carries ``mark``; whether all of them are gone."""
    return _kill_until_gone(lambda: marked(mark), lambda: None)


def _kill_until_gone(find: Callable[[], list[int]], after: Callable[[], None]) -> bool:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        living = find()
        for child in living:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        after()
        if not living:
            return True
        time.sleep(0.01)
    return False


def reap() -> None:
    """Take note of every child that has ended, so that the kernel can forget it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def below(pid: int) -> list[int]:
    """As ``descendants``, without reading about everybody else's processes: cheap enough to be asked all the time.

    Empty on other systems than Linux.
    """
    if not kernel.LINUX:
        return []
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return descendants(pid)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        under = children(waiting.pop())
        found += under
        waiting += under
    return found


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started or adopted; none where the kernel does not tell."""
    found: list[int] = []
    for thread in _numbers(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as handle:
            found += [int(child) for child in handle.read().split()]
    return found


def work_of(pids: list[int]) -> tuple[float, bool]:
    """Seconds on a processor that these living processes have taken together, and whether one is at it, or wants to be.

    Nothing where there is no ``/proc``.
    """
    ticks, at_work = 0, False
    for pid in pids:
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as handle:
            # what follows the name in brackets begins with the third field; user and system time are the 14th and 15th
            fields = handle.read().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            at_work = at_work or fields[0] in (b"R", b"D")
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0, at_work


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes that these processes hold together.

    Pages that several share, and those of files, are counted several times, unless that sum is above ``limit``: then
    it is worth the time to count each page once, and those of files not at all. 0 where there is no ``/proc``.
    """
    if not kernel.LINUX:
        return 0
    page = os.sysconf("SC_PAGE_SIZE")
    whole = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm", "rb") as handle:
            whole += int(handle.read().split()[1]) * page
    return whole if whole <= limit else sum(map(_proportional, pids))


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/smaps_rollup", "rb") as handle:
        return sum(int(line.split()[1]) << 10 for line in handle if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))
    return 0
