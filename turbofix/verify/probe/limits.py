"""What a run may touch, and what becomes of it when it ends.

Landlock (Linux 5.13 and later) lets a process give up the right to write outside given folders, for itself and all its
children. It says nothing of modes, owners and times of files, so an audit hook stands beside it; where the kernel has
no Landlock, the hook and the patched writers of ``guard`` are all there is, and the report says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Iterable, Iterator

LANDLOCK = "landlock"
GUARD = "guard"

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
# remove and make folders, files, devices, sockets, pipes and links
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "dri", "kfd")

# how long a killed process may take to vanish, in seconds
_PATIENCE = 5.0


def landlock_version() -> int:
    """The kernel's Landlock interface version, 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _system_call(_CREATE_RULESET, None, 0, 1))


def _system_call(*arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return int(library.syscall(*arguments))


def _writable_devices() -> Iterator[str]:
    yield from (os.path.join("/dev", name) for name in _DEVICES)
    with contextlib.suppress(OSError):
        yield from (os.path.join("/dev", name) for name in os.listdir("/dev") if name.startswith("nvidia"))
    yield "/proc/self"


def deny_writes(writable: Iterable[str], level: str | None) -> str:
    """Give up, for good, the right to write anywhere but beneath ``writable``; return the level that was reached."""
    folders = [os.path.realpath(path) for path in writable]
    reached = LANDLOCK if level != GUARD and _restrict(folders) else GUARD
    from . import guard

    guard.install(folders, thorough=reached == GUARD)
    return reached


def _restrict(folders: list[str]) -> bool:
    version = landlock_version()
    # Before version 3 a file outside could still be cut to nothing: not a boundary.
    if version < 3:
        return False
    denied = _WRITE_FILE | _CHANGE_FOLDER | _REFER | _TRUNCATE
    attributes = struct.pack("=Q", denied)
    rules = _system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    for path in (*folders, *_writable_devices()):
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = denied if os.path.isdir(path) else _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", allowed, place)
        failed = _system_call(_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
        os.close(place)
        if failed and path in folders:
            os.close(rules)
            return False
    no_new_privileges = 38
    ctypes.CDLL(None).prctl(no_new_privileges, 1, 0, 0, 0)
    restricted = _system_call(_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return restricted


def die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent; a fork has to ask for itself."""
    if sys.platform.startswith("linux"):
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Ask the kernel to hand this process its orphaned descendants, so that they can be found and ended."""
    if sys.platform.startswith("linux"):
        become_subreaper = 36
        ctypes.CDLL(None).prctl(become_subreaper, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All living processes below ``pid``, parents first; empty where there is no ``/proc``."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as handle:
                    state, parent = handle.read().rpartition(b")")[2].split()[:2]
                    if state != b"Z":
                        children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill_descendants(pid: int) -> None:
    """Kill everything below ``pid``, and what those leave behind, and wait until it is gone."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        living = descendants(pid)
        for child in living:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        _reap()
        if not living:
            return
        time.sleep(0.01)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
