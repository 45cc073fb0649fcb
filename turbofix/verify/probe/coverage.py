"""Which lines of the changed files ran, in this process and in the workers forked from it.

Only frames of those files are traced line by line.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Mapping
from typing import Any


class Lines:
    """A byte per line of each watched file, in memory that forked workers share."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self._start: dict[str, int] = {}
        size = 0
        for path, length in lengths.items():
            self._start[path] = size
            size += length + 2
        self._lengths = dict(lengths)
        self._bytes = mmap.mmap(-1, size + 1)

    def _mark(self, path: str, line: int) -> None:
        if 0 < line <= self._lengths[path]:
            self._bytes[self._start[path] + line] = 1

    def ran(self) -> dict[str, list[int]]:
        return {
            path: [line for line in range(1, length + 1) if self._bytes[self._start[path] + line]]
            for path, length in self._lengths.items()
        }

    def watch(self) -> None:
        if not self._lengths:
            return
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame: Any, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        if path not in self._lengths:
            return None

        def local(frame: Any, event: str, argument: object) -> Any:
            if event == "line":
                self._mark(path, frame.f_lineno)
            return local

        return local
