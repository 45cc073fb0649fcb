"""Notice a script that waits: for input, for a client, for a window, for a thread that never ends. It has no end.

What shows that it goes on is told here (batches, backward passes, steps), and so does the time on a processor that its
processes take: an evaluation may be silent for long.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from . import kernel, processes

# seconds for which a script may compute without a batch or a step, and how many times the whole run before
SILENT = 20.0
MOST_SILENT = 60.0
# a rest is long that is so many times the longest before
TIMES = 3.0

_PAUSE = 0.25
# of one processor: a server that looks for clients now and then does nothing
_BUSY = 0.05


class Patience:
    """Looks at this process from a thread of its own, and calls ``give_up`` from there.

    It is told whether the script waits, which nothing but ``seconds`` of rest show, or its time is up.
    """

    def __init__(self, seconds: float, give_up: Callable[[bool], None]) -> None:
        self._seconds, self._give_up = seconds, give_up
        self._main = os.getpid()
        self._begun = self._stirred = time.monotonic()
        self._until = math.inf
        self._ready = self._looks = False

    def stir(self, *, ready: bool) -> None:
        """Something has been done. It is worth waiting for more unless enough is known to be ``ready``."""
        self._stirred = time.monotonic()
        self._ready = ready

    def start(self, seconds: float = math.inf) -> None:
        """Begin to look, where that is not done already; so many seconds are left."""
        self._until = time.monotonic() + seconds
        self._seconds = min(self._seconds, seconds / 2)
        if not self._looks:
            self._looks = True
            threading.Thread(target=self._look, name="turbofix", daemon=True).start()

    def _look(self) -> None:
        rested_since, longest, stirred = time.monotonic(), 0.0, self._stirred
        used, _ = self._work()
        while True:
            time.sleep(_PAUSE)
            now, before = time.monotonic(), used
            used, at_work = self._work()
            if at_work or self._stirred != stirred or used - before > _BUSY * _PAUSE or used < before:
                longest = max(longest, now - _PAUSE - rested_since)
                rested_since, stirred = now, self._stirred
            silent = min(max(SILENT, 2 * (self._stirred - self._begun)), MOST_SILENT)
            # elsewhere what the workers do is not seen
            rest = max(self._seconds, TIMES * longest) if kernel.LINUX else silent
            waits = self._ready and (now - rested_since > rest or now - self._stirred > silent)
            if waits or now > self._until:
                self._give_up(waits)
                return

    def _work(self) -> tuple[float, bool]:
        return processes.work_of([self._main, *processes.below(self._main)])


def line_of_main_thread(order: dict[str, Any]) -> tuple[str, int] | None:
    """The innermost line of the user's own code that the main thread is at."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return innermost(traceback.extract_stack(frame), order) if frame is not None else None


def innermost(frames: Iterable[traceback.FrameSummary], order: dict[str, Any]) -> tuple[str, int] | None:
    """The innermost of these lines that is the user's own code, with its file as seen from the script's folder."""
    roots = tuple(os.path.join(root, "") for root in order["own"])
    # an environment may lie within the project
    own = [one for one in frames if one.filename.startswith(roots) and "site-packages" not in one.filename]
    if not own:
        return None
    return os.path.relpath(own[-1].filename, os.path.dirname(order["script"])), own[-1].lineno or 0
