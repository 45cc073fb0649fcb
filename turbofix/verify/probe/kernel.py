"""The few calls of Linux that Python has no function for. Each raises ``OSError`` where the kernel refuses."""

from __future__ import annotations

import ctypes
import os
import sys

LINUX = sys.platform.startswith("linux")


def system_call(number: int, *arguments: object) -> int:
    """What the call returns, -1 when it failed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return int(library.syscall(number, *arguments))


def call(name: str, *arguments: object) -> int:
    """Call the C library's function ``name``."""
    library = ctypes.CDLL(None, use_errno=True)
    return checked(name, int(getattr(library, name)(*arguments)))


def checked(name: str, result: int) -> int:
    """``result``, or the error that the kernel gave for the call ``name``."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
