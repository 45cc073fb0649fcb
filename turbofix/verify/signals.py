"""Signals while a script is verified: being asked to end cleans up, and cleaning up is not disturbed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

ENDING = ("SIGTERM", "SIGHUP")


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Within it a request to end (SIGTERM, SIGHUP) raises ``SystemExit``, so that what was opened is closed."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # one that is ignored (as nohup does) or handled by the caller stays so
    with _handling(dict.fromkeys(ENDING, leave), only_default=True):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within it a second Ctrl-C, or a request to end, does nothing."""
    with _handling(dict.fromkeys(("SIGINT", *ENDING), signal.SIG_IGN), only_default=False):
        yield


@contextlib.contextmanager
def _handling(handlers: dict[str, Any], *, only_default: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets the main thread alone set handlers
        return
    previous: dict[int, Any] = {}
    try:
        for name, handler in handlers.items():
            number = getattr(signal, name, None)
            if number is not None and (not only_default or signal.getsignal(number) is signal.SIG_DFL):
                previous[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
