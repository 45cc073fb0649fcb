"""Whether a region of autocast computes anything in 16 bits: around a sum of returns it runs, and does nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

_APART = (os.path.join(os.path.dirname(torch.__file__), ""), os.path.join(os.path.dirname(__file__), ""))
_CAST, _COPY = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default

_Mode: Any = dispatch.TorchDispatchMode  # untyped in torch


class Lowered(_Mode):  # type: ignore[misc]
    """Sees every operation from here on and notes whether one casts to 16 bits, as autocast does before a product.

    It is not there at all where the region is off, is known to compute in 16 bits, or may hold compiled code.
    """

    supports_higher_order_operators = True

    def __init__(self, events: dict[str, Any], dtype: torch.dtype | None) -> None:
        super().__init__()
        self._regions, self._line, self._dtype = events["regions"], _users_line(), dtype
        if dtype is None or self._regions.get(self._line):
            self._entered = False
            return
        self._regions[self._line] = bool(events["compiled"])
        self._entered = not events["compiled"]
        if self._entered:
            self.__enter__()

    def leave(self) -> None:
        stack = dispatch._get_current_dispatch_mode_stack()
        if self._entered and stack and stack[-1] is self:
            self._entered = False
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _CAST:
            self._regions[self._line] |= args[0].dtype is torch.float32 and kwargs.get("dtype") is self._dtype
        elif func is _COPY:  # how the weights of cuDNN's recurrent networks are cast
            self._regions[self._line] |= args[1].dtype is torch.float32 and args[0].dtype is self._dtype
        return func(*args, **kwargs)


def _users_line() -> str:
    """The file and line outside of torch that enters the region."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_APART):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
