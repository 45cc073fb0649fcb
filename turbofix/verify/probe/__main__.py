"""The server in the child: imports torch once, then runs the script in a fork of itself as often as it is asked to.

Started as ``python <this folder> serve <configuration.json>``. One JSON object per line comes in through standard
input, and one per line goes out through standard output; the script gets standard streams of its own. Where processes
cannot be forked safely it runs the script once, in itself, and ends. As ``python <this folder> try
<configuration.json>`` it only says which levels of isolation cannot be had here, and why.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import sys
import traceback
from typing import Any

PACKAGE = "_turbofix_probe"


def _load_package() -> None:
    """Make this folder importable under a name of its own, without putting anything on the user's ``sys.path``."""
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)


def _module(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


class _Line:
    """The two pipes to turbofix, taken off the standard streams."""

    def __init__(self) -> None:
        self.orders, self._replies = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def say(self, message: dict[str, Any]) -> None:
        os.write(self._replies, (json.dumps(message) + "\n").encode())

    def close(self) -> None:
        os.close(self.orders)
        os.close(self._replies)


def main() -> None:
    with open(sys.argv[2], encoding="utf-8") as handle:
        configuration = json.load(handle)
    sys.path.pop(0)  # this folder: its module names must not shadow the user's
    _load_package()
    if sys.argv[1] == "try":
        print(json.dumps(_module("levels").obstacles(configuration)))
        return
    line = _Line()
    try:
        if hasattr(os, "fork"):
            _part_from_warden(configuration, line)
        _module("levels").hold(configuration)
        _import_torch()
    except (ImportError, OSError) as error:
        line.say({"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    _serve(configuration, line)


def _part_from_warden(configuration: dict[str, Any], line: _Line) -> None:
    """Go on in a child; this process stays behind as its warden and returns no more."""
    processes = _module("processes")
    processes.adopt_orphans()
    if configuration["level"] == "overlay":
        _module("namespaces").enter(own_user=configuration["own_user"])
    server = os.fork()
    if server:
        line.close()
        try:
            _module("warden").watch(
                configuration["lifeline"], server, configuration["root"], keep=configuration["keep"]
            )
        finally:
            os._exit(0)
    processes.die_with_parent()
    processes.adopt_orphans()
    processes.go_first()
    os.close(configuration["lifeline"])
    if configuration["lock"] is not None:
        os.close(configuration["lock"])  # held by turbofix and the warden alone: free when both are dead


def _import_torch() -> None:
    """Import torch, and what every fork would otherwise have to import for itself."""
    gc.disable()  # importing makes many objects and next to no garbage
    importlib.import_module("torch")
    # what every optimizer imports when it is made
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")
    for name in (
        "run",
        "ahead",
        "cards_on_cpu",
        "coverage",
        "cuda_on_cpu",
        "monitors",
        "patience",
        "ranks",
        "record",
        "shorten",
        "speed",
        "tally",
    ):
        _module(name)


def _serve(configuration: dict[str, Any], line: _Line) -> None:
    import torch

    cuda = bool(torch.cuda.is_available())
    device = torch.cuda.get_device_name(0) if cuda and configuration["name_device"] else None
    cards = torch.cuda.device_count() if cuda else 0
    line.say({"ready": True, "torch": torch.__version__, "cuda": cuda, "device_name": device, "cards": cards})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # what is there now is torch's: a fork need neither collect it nor look through it
    gc.freeze()
    gc.enable()
    ahead: list[str] = []
    with os.fdopen(line.orders, "rb", closefd=False) as orders:
        for text in iter(orders.readline, b""):
            order = json.loads(text)
            if not configuration["forks"]:
                os._exit(_run(configuration, order, line))
            if more := [each for each in order["imports"] if each not in ahead]:
                ahead += more
                if not _module("ahead").import_all(more, remap=order["remap"]):
                    line.say({"spoilt": True})
                    return
            status = _fork_run(configuration, order, line)
            _module("processes").kill_descendants(os.getpid())
            line.say({"ended": status})


def _fork_run(configuration: dict[str, Any], order: dict[str, Any], line: _Line) -> int:
    """Run the script once in a fork and return the fork's wait status."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        return status
    code = 70
    try:
        os.setpgid(0, 0)
        _module("processes").die_with_parent()
        os.close(line.orders)
        code = _run(configuration, order, line)
    finally:
        os._exit(code)


def _run(configuration: dict[str, Any], order: dict[str, Any], line: _Line) -> int:
    code = 70
    try:
        for number, name, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, order["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, order["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            stream = os.open(name, flags, 0o600)
            os.dup2(stream, number)
            os.close(stream)
        _limit_files(order["file_size"])
        try:
            _module("levels").hold_run(configuration, order)
        except OSError as error:
            line.say({"unheld": str(error)})
            return code
        code = _module("run").run(order, line.say)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return code


def _limit_files(size: int) -> None:
    """No file may grow beyond ``size`` bytes."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        resource = importlib.import_module("resource")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


if __name__ == "__main__":
    main()
