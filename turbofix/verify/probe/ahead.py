"""What a run imports of libraries, imported ahead of the next runs, which are forked from where that is done.

Nothing must tell the difference: what the script's environment or folders may have a say in is left to the run itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import os
import sys
import sysconfig
import types
from collections.abc import Iterable
from typing import Any, cast

import torch

from . import cuda_on_cpu, patching

# What keeps its peace over a fork: the allocator that Arrow brings along starts its thread anew.
_FORKABLE = {"jemalloc_bg_thd"}


class Imports:
    """The modules that are looked for until the script changes its environment, in this order."""

    def __init__(self) -> None:
        self._looked_for: list[str] = []
        self._same = True

    def watch(self) -> None:
        sys.meta_path.insert(0, self)
        for name in ("putenv", "unsetenv"):  # by which `os.environ` is changed
            patching.wrap(os, name, self._changing)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """As Python asks for a module that it does not have yet; others find it."""
        if self._same:
            self._looked_for.append(name)

    def _changing(self, original: Any) -> Any:
        def change(*arguments: Any) -> None:
            frame: Any = sys._getframe(1)
            while frame and frame.f_globals.get("__name__") in ("os", "collections.abc"):
                frame = frame.f_back
            # what a library sets when it is imported, it sets there too
            self._same = self._same and frame is not None and _is_library(frame.f_code.co_filename)
            original(*arguments)

        return change

    def of_libraries(self) -> list[str]:
        """Those that were found in the interpreter's own folders."""
        places = ((name, getattr(sys.modules.get(name), "__file__", None)) for name in self._looked_for)
        return [name for name, place in places if isinstance(place, str) and _is_library(place)]


def _is_library(place: str) -> bool:
    own = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep, sysconfig.get_path("stdlib") + os.sep)
    return any(each in place for each in own)


def import_all(names: Iterable[str], *, remap: bool) -> bool:
    """Import these in this process, with the stand-in for a GPU as the run has it; whether it may still be forked.

    It may not where an import has started threads or used the GPU, nor where it has printed what a run would have.
    """
    if remap:
        cuda_on_cpu.install()
    before, cuda = set(sys.modules), cast("Any", torch.cuda)
    gc.disable()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for name in names:
            with contextlib.suppress(Exception, SystemExit):
                found = importlib.util.find_spec(name.partition(".")[0])
                if found is None or (found.has_location and not _is_library(found.origin or "")):
                    break  # the script's, which may change its environment
                importlib.import_module(name)
    gc.freeze()
    gc.enable()
    _AHEAD.extend(module for name, module in sys.modules.items() if name not in before)
    return not printed.getvalue() and len(_threads()) == 1 and not cuda.is_initialized()


def _threads() -> list[str]:
    """The names of the threads of this process that a fork would lose."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as handle:
            names.append(handle.read().strip())
    return [name for name in names if name not in _FORKABLE]


_AHEAD: list[Any] = []


def patch() -> None:
    """Let what was imported ahead use the functions that have been replaced since, as it would if it came behind."""
    now = {
        id(original): getattr(owner, name)
        for original, owner, name in patching.REPLACED
        if isinstance(owner, types.ModuleType)
    }
    for module in _AHEAD:
        content = getattr(module, "__dict__", {})
        for name in [name for name, value in content.items() if id(value) in now]:
            content[name] = now[id(content[name])]
