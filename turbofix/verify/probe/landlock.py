"""Give up, for this process and all below it, the right to write anywhere but beneath given folders.

Landlock is part of Linux since 5.13. It says nothing of modes, owners and times of files: where nothing stronger holds
those, the audit hook of ``guard`` does, as far as Python's own calls go. From 6.12 on it also keeps signals inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Iterator

from . import kernel

# Before version 3 a file outside could still be cut to nothing: not a boundary by itself.
LEAST_VERSION = 3
# Before version 2 no file can be moved from one folder to another: no use beside a boundary either.
LEAST_BESIDE_ANOTHER = 2

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
# remove and make folders, files, devices, sockets, pipes and links
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
_TRUNCATE_SINCE = 3
_SIGNALS, _SIGNALS_SINCE = 1 << 1, 6
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "dri", "kfd")


def version() -> int:
    """The kernel's Landlock interface version, 0 where there is none."""
    return max(0, kernel.system_call(_CREATE_RULESET, None, 0, 1)) if kernel.LINUX else 0


def restrict(writable: Iterable[str], *, least: int = LEAST_VERSION) -> None:
    """Write beneath ``writable`` and to devices alone from here on, and signal nobody outside.

    Raises ``OSError`` where that cannot be had in the version ``least``; then nothing was given up.
    """
    if version() < least:
        raise OSError("this kernel has no Landlock that could deny writes")
    denied = _WRITE_FILE | _CHANGE_FOLDER | _REFER | (_TRUNCATE if version() >= _TRUNCATE_SINCE else 0)
    attributes = struct.pack("=Q", denied)
    if version() >= _SIGNALS_SINCE:
        attributes = struct.pack("=QQQ", denied, 0, _SIGNALS)
    rules = kernel.checked("landlock", kernel.system_call(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        for path in writable:
            _allow(rules, path, denied)
        for path in _devices():
            with contextlib.suppress(OSError):
                _allow(rules, path, denied)
        give_up_new_privileges()
        kernel.checked("landlock", kernel.system_call(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def give_up_new_privileges() -> None:
    """No program that is started from here on has more rights than this process."""
    no_new_privileges = 38
    kernel.call("prctl", no_new_privileges, 1, 0, 0, 0)


def _allow(rules: int, path: str, everything: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = everything if os.path.isdir(path) else everything & (_WRITE_FILE | _TRUNCATE)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place))
        kernel.checked("landlock", kernel.system_call(_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(place)


def _devices() -> Iterator[str]:
    yield from (os.path.join("/dev", name) for name in _DEVICES)
    with contextlib.suppress(OSError):
        yield from (os.path.join("/dev", name) for name in os.listdir("/dev") if name.startswith("nvidia"))
    yield "/proc/self"
