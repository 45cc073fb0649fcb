"""The server in the child: imports torch once, then runs the script in a fork of itself as often as it is asked to.

Started as ``python <this folder> <configuration.json>``. One JSON object per line comes in through one pipe, and one
per line goes out through another; the script's own standard streams stay the script's.
"""

from __future__ import annotations

import contextlib
import gc
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


def _say(pipe: int, message: dict[str, Any]) -> None:
    os.write(pipe, (json.dumps(message) + "\n").encode())


def _fork_run(order: dict[str, Any], requests: int, replies: int) -> int:
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
        importlib.import_module(PACKAGE + ".limits").die_with_parent()
        os.close(requests)
        for number, name, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, order["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, order["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            stream = os.open(name, flags, 0o600)
            os.dup2(stream, number)
            os.close(stream)
        run = importlib.import_module(PACKAGE + ".run")
        code = run.run(order, lambda message: _say(replies, message))
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as handle:
        configuration = json.load(handle)
    requests, replies = configuration["requests"], configuration["replies"]
    sys.path.pop(0)  # this folder: its module names must not shadow the user's
    _load_package()
    limits = importlib.import_module(PACKAGE + ".limits")
    limits.die_with_parent()
    limits.adopt_orphans()
    isolation = limits.deny_writes(configuration["writable"], configuration["isolation"])
    try:
        import torch

        # what every optimizer imports when it is made, and every fork would pay for
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")
    except ImportError as error:
        _say(replies, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    cuda = bool(torch.cuda.is_available())
    device = torch.cuda.get_device_name(0) if cuda and configuration["name_device"] else None
    _say(
        replies,
        {"ready": True, "torch": torch.__version__, "cuda": cuda, "device_name": device, "isolation": isolation},
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # what is there now is torch's: a fork need neither collect it nor look through it
    gc.collect()
    gc.freeze()
    with os.fdopen(requests, "rb", closefd=False) as lines:
        for line in iter(lines.readline, b""):
            status = _fork_run(json.loads(line), requests, replies)
            limits.kill_descendants(os.getpid())
            _say(replies, {"ended": status})


if __name__ == "__main__":
    main()
