"""The process above all others of a verification: it outlives turbofix, if only to clear up after it.

Turbofix holds the other end of its lifeline. When that end closes without a word, turbofix is dead (killed outright,
or by the machine's lack of memory): then the warden ends everything below it and removes the scratch folder.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat

from . import processes

# what turbofix sends through the lifeline when it ends a child in good order
RELEASE = b"."

# in the scratch folder: the names of the shared memory that the script made, where that is not its own
SHARED = "shared-memory.txt"
_SHARED_MEMORY = "/dev/shm"

# seconds between two looks for children that have ended
_PAUSE = 0.5


def watch(lifeline: int, server: int, root: str, *, keep: bool) -> None:
    """Wait for the end of turbofix or of ``server``, then end everything below; returns when that is done."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    word: bytes | None = None
    alive = True
    while word is None:
        if select.select([lifeline], [], [], _PAUSE)[0]:
            word = os.read(lifeline, 1)
        if alive and not _lives(server):
            alive = False
            # what it leaves behind must not wait until turbofix asks
            processes.kill_descendants(os.getpid())
        processes.reap()
    processes.kill_descendants(os.getpid())
    if word != RELEASE:
        processes.kill_marked(root)
        forget_shared_memory(root)
        if not keep:
            remove(root)


def _lives(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def forget_shared_memory(root: str) -> None:
    """Remove the shared memory that the script made under names, and left."""
    note = os.path.join(root, SHARED)
    with contextlib.suppress(OSError):
        with open(note, encoding="utf-8") as handle:
            names = [os.path.basename(line.strip()) for line in handle]
        os.unlink(note)
        for name in filter(None, names):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(_SHARED_MEMORY, name))


def remove(folder: str) -> None:
    """Remove ``folder`` with everything in it, also what was made read-only; nothing above it is touched."""

    tried: set[str] = set()

    def insist(function: object, path: str, error: object) -> None:
        if path in tried:
            return
        tried.add(path)
        with contextlib.suppress(OSError):
            if path != folder:
                os.chmod(os.path.dirname(path), stat.S_IRWXU)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
                shutil.rmtree(path, onerror=insist)
            else:
                os.unlink(path)

    if os.path.isdir(folder) and not os.path.islink(folder):
        shutil.rmtree(folder, onerror=insist)
