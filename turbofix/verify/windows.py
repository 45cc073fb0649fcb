"""On Windows, what the warden is elsewhere: a job, whose processes end when turbofix does, and have a memory limit.

Written from the documentation of job objects; it was never run.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_KILL_ON_CLOSE, _JOB_MEMORY = 0x2000, 0x200
_EXTENDED_LIMITS = 9
_TERMINATE_AND_SET_QUOTA = 0x0101


class _Basic(ctypes.Structure):
    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("least_working_set", ctypes.c_size_t),
        ("most_working_set", ctypes.c_size_t),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
    )


class _Extended(ctypes.Structure):
    _fields_ = (
        ("basic", _Basic),
        ("counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("most_process_memory", ctypes.c_size_t),
        ("most_job_memory", ctypes.c_size_t),
    )


class Job:
    """A job object; the system closes it with the process that made it, however that ends."""

    def __init__(self, handle: Any, library: Any) -> None:
        self._handle, self._library = handle, library

    @classmethod
    def around(cls, pid: int, memory: int) -> Job | None:
        """A job with the process ``pid`` and all that it will start, of ``memory`` bytes; None on other systems."""
        if sys.platform != "win32":
            return None
        library = ctypes.WinDLL("kernel32", use_last_error=True)
        library.CreateJobObjectW.restype = library.OpenProcess.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(library.CreateJobObjectW(None, None))
        limits = _Extended()
        limits.basic.flags = _KILL_ON_CLOSE | _JOB_MEMORY
        limits.job_memory = min(memory, ctypes.c_size_t(-1).value)
        library.SetInformationJobObject(handle, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits))
        process = ctypes.c_void_p(library.OpenProcess(_TERMINATE_AND_SET_QUOTA, False, pid))
        library.AssignProcessToJobObject(handle, process)
        library.CloseHandle(process)
        return cls(handle, library)

    def close(self) -> None:
        """End everything in the job."""
        self._library.CloseHandle(self._handle)
