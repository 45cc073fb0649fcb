"""One run of the user's script in this process: set it up as ``python script.py`` would, watch it, write its log."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib.machinery
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from . import notebook, patience, ranks
from .levels import DENIALS

Say = Callable[[dict[str, Any]], None]

# what ``input`` says where there is none
_NO_INPUT = ("EOF when reading a line",)


def run(order: dict[str, Any], say: Say) -> int:
    """Run the script as ``order`` says and return the exit status; the log is written to ``order["log"]``."""
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    _import_from_the_mirror(order["mirrored"])
    if order.get("tally"):
        return _tally(order, say)
    if order["speed"]:
        return _measure(order, say)
    if order.get("processes"):
        return ranks.run_all(order, say, _verify)
    return _verify(order, say)


def _import_from_the_mirror(mirrored: dict[str, str]) -> None:
    """What Python would import from the user's folders (``PYTHONPATH``, an editable install) comes from the mirror."""

    def moved(path: str) -> str:
        for tree, mirror in mirrored.items():
            if path == tree or path.startswith(tree + os.sep):
                return mirror + path[len(tree) :]
        return path

    sys.path[:] = [moved(path) for path in sys.path]
    for finder in [module for name, module in sys.modules.items() if name.startswith("__editable___")]:
        mapping = getattr(finder, "MAPPING", None)
        if isinstance(mapping, dict):
            mapping.update({name: moved(path) for name, path in mapping.items() if isinstance(path, str)})


def _verify(order: dict[str, Any], say: Say) -> int:
    import torch

    from . import ahead, cards_on_cpu, coverage, cuda_on_cpu, monitors, neutral, record, shorten, watch

    torch.set_num_threads(1)
    # the system clears each page that it hands out, which takes longer than most of what is then computed in it
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library has no such function
        for setting, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX and M_TRIM_THRESHOLD: free memory is kept
            ctypes.CDLL(None).mallopt(setting, value)
    chance = neutral.Chance(order["seed"])
    neutral.seed_everything(chance, order.get("shift", 0))
    neutral.draw_in_order()
    if order.get("processes"):
        neutral.draw_for_all(chance, order["rank"])
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    lines = coverage.Lines(order["watch"])
    stand_in = cuda_on_cpu.install() if order["remap"] else lambda: {"remapped": False, "rounded": 0}
    watched = monitors.Monitors() if order.get("monitor") else None
    facts = watched.facts if watched is not None else dict
    imports = ahead.Imports()
    order["extra"] = lambda: {
        "ran": lines.ran(),
        "facts": facts(),
        "imports": [] if order["replay"] else imports.of_libraries(),
        "shuffles": chance.shuffles,
        **stand_in(),
    }
    order["chance"] = chance.digest
    recorder = record.Recorder(order, say, watched.on_step if watched is not None else None)
    shorten.install({int(count): kept for count, kept in order["shorten"].items()}, record.OTHERS_KEPT)
    neutral.watch_loaders(chance, recorder.on_batch, recorder.on_end, recorder.name_loader, lambda: recorder.hurrying)
    watch.install(recorder, dropout=order["dropout"])
    if watched is not None:
        watched.install()
    if order.get("processes"):
        ranks.watch(recorder)
        if order["remap"]:
            cards_on_cpu.install(order["rank"], order["processes"])
    ahead.patch()
    imports.watch()
    lines.watch()
    return _run_script(order, recorder.finish)


def _measure(order: dict[str, Any], say: Say) -> int:
    from . import speed

    watch = speed.Stopwatch(order, say)
    watch.install()
    return _run_script(order, watch.finish)


def _tally(order: dict[str, Any], say: Say) -> int:
    import torch

    from . import cuda_on_cpu, monitors, pretended, tally

    torch.set_num_threads(1)
    stand_in = cuda_on_cpu.install() if order["remap"] else lambda: {"remapped": False}
    if order["pretend"]:
        pretended.install()
    watched = monitors.Monitors() if order["monitor"] else None
    if watched is not None:
        order["extra"] = lambda: {"facts": watched.facts(), **stand_in()}
        watched.install()
    one = tally.Tally(order, say, lambda: bool(stand_in()["remapped"]), watched.on_step if watched else None)
    one.install()
    return _run_script(order, one.finish)


def _run_script(order: dict[str, Any], finish: Callable[..., None]) -> int:
    """Run it as the main module; its exception becomes part of the log, in one sentence's worth of words."""
    script = order["script"]
    sys.argv = [order["name"], *order["arguments"]]
    sys.path.insert(0, os.path.dirname(script))
    try:
        _run_as_main(script, order["mark"])
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            finish("crashed", {"error": f"SystemExit: {leaving.code}", "line": _line_of(leaving, order)})
            return 1
    except BaseException as error:
        if isinstance(error, EOFError) and error.args == _NO_INPUT:
            finish("waiting", {"line": _line_of(error, order)})
            return 0
        traceback.print_exc()
        finish("crashed", {"error": _describe(error), "line": _line_of(error, order), **_place_of(error)})
        return 1
    finish("finished")
    return 0


def _run_as_main(script: str, mark: str | None) -> None:
    """What ``runpy.run_path`` does, but with ``sys.argv[0]`` as the user typed it.

    In a notebook's code ``mark`` stands for the characters of what is not Python.
    """
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
    main.__dict__["__builtins__"] = builtins
    with open(script, "rb") as handle:
        content = handle.read()
    if mark is not None:
        notebook.furnish(main.__dict__, content.decode(), mark)
    code = compile(content, script, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    # an error from a worker brings its whole traceback along: what it says is in the last line
    text = lines[-1] if "Traceback" in str(error) else " ".join(lines)
    words = " ".join(text.split())
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__


def _place_of(error: BaseException) -> dict[str, str]:
    """The place that could not be written or was not found, where that is what the error says."""
    name, words = getattr(error, "filename", None), str(error)
    if not isinstance(name, (str, bytes)):
        return {}
    if isinstance(error, FileNotFoundError) or "does not exist" in words:  # torch's, of the folder to save in
        return {"missing": os.path.abspath(os.fsdecode(name))}
    denied = any(sign in words for sign in DENIALS)
    return {"denied": os.path.abspath(os.fsdecode(name))} if denied else {}


def _line_of(error: BaseException, order: dict[str, Any]) -> tuple[str, int] | None:
    """The innermost line of the user's own code that the error passed through."""
    return patience.innermost(traceback.extract_tb(error.__traceback__), order)
