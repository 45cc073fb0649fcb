"""Which lines of the changed files ran, in this process and in the workers forked from it.

Only functions in which something is changed are traced line by line.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any

from .patching import wrap


class Lines:
    """A byte per line of each watched file, in memory that forked workers share.

    Of each file it is told how many lines it has, and which are changed.
    """

    def __init__(self, watched: Mapping[str, tuple[int, Collection[int]]]) -> None:
        self._start: dict[str, int] = {}
        size = 0
        for path, (length, _) in watched.items():
            self._start[path] = size
            size += length + 2
        self._lengths = {path: length for path, (length, _) in watched.items()}
        self._changed = {path: frozenset(changed) for path, (_, changed) in watched.items()}
        self._tracers: dict[tuple[str, int], Any] = {}
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
        compiler = sys.modules.get("torch._dynamo.convert_frame")
        wrap(getattr(compiler, "CatchErrorsWrapper", None), "__call__", _untraced)

    def _trace(self, frame: Any, event: str, argument: object) -> Any:
        code = frame.f_code
        path = code.co_filename
        if path not in self._lengths:
            return None
        key = path, code.co_firstlineno
        if key not in self._tracers:
            last = max((line for *_, line in code.co_lines() if line), default=0)  # the first may be a decorator's
            has_changed = not self._changed[path].isdisjoint(range(code.co_firstlineno, last + 1))
            self._tracers[key] = self._tracer(path) if has_changed else None
        return self._tracers[key]

    def _tracer(self, path: str) -> Any:
        def local(frame: Any, event: str, argument: object) -> Any:
            if event == "line":
                self._mark(path, frame.f_lineno)
            return local

        return local


def _untraced(original: Any) -> Any:
    """A compiler at work calls a great many functions, each twice as slow when it is traced, and none the script's."""

    def convert(*arguments: Any, **keywords: Any) -> Any:
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return original(*arguments, **keywords)
        finally:
            sys.settrace(trace)

    return convert
