"""Interpreters that have imported torch already, for what is not about how an interpreter starts.

A verification starts an interpreter, and most of what it takes on a small script is the import of torch. Here one
process imports it once, for all verifications of a test process with the same environment, and forks for each of them.
From there on it is the probe's own program: the warden, the level of isolation, the fork for each run. A plain script
of torch's is run in such a fork as well (``script``), as ``python SCRIPT`` would run it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MARK = "TURBOFIX_SCRATCH"

OWN = {
    *(MARK, "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"),
    *("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"),
}
"""The variables that each verification has for itself, and that nobody reads at the import of torch."""

LATER = {
    *("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"),
    *("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_NVML_BASED_CUDA_CHECK"),
}
"""Others that a fork heeds as well as a new interpreter: they are read later, or seen to here."""

AT_THE_START = {"PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8"}
"""What those that are read at the start of an interpreter are for all: a plain script has any seed."""

ROOM = 400
"""Characters that the path of a scratch folder may have."""


class Kept:
    """The processes that have imported torch: one for each environment."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def start(self, command: Sequence[str], **given: Any) -> Forked | subprocess.Popen[bytes]:
        """As ``subprocess.Popen`` would, but in a fork; of another interpreter than this one none is kept."""
        python, *arguments = command
        if python != sys.executable:
            return subprocess.Popen(command, **given)
        environment: dict[str, str] = given["env"]
        return Forked(self.control(python, environment), arguments, environment, given)

    def script(self, arguments: Sequence[str], cwd: Path, log: IO[bytes], **settings: str) -> Started:
        """``python ARGUMENTS`` in ``cwd``, on one thread, with ``settings`` in its environment; ``log`` is its stderr.

        Without forks it is an interpreter of its own.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
        given: dict[str, Any] = {"cwd": cwd, "env": {**environment, **settings}, "stderr": log, "pass_fds": ()}
        given |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        if not sys.platform.startswith("linux"):
            return subprocess.Popen([sys.executable, *arguments], **given)
        return Forked(self.control(sys.executable, environment), list(arguments), given["env"], given, plain=True)

    def run(
        self, arguments: Sequence[str], cwd: Path, timeout: float = 120, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """What such a script has said when it has ended."""
        with tempfile.TemporaryFile() as log:
            started = self.script(arguments, cwd, log, **settings)
            assert started.stdin is not None and started.stdout is not None
            late = threading.Timer(timeout, started.kill)
            late.start()
            with started.stdin, started.stdout:
                out = started.stdout.read().decode()
            code = started.wait(timeout)
            late.cancel()
            log.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, out, log.read().decode())

    def told(self, text: str, folder: Path, timeout: float = 120, **settings: str) -> str:
        """What a program prints that ends well, by its text; it is laid into ``folder`` and runs there."""
        (folder / "program.py").write_text(text, encoding="utf-8")
        ran = self.run(["program.py"], folder, timeout, **settings)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def control(self, python: str, environment: Mapping[str, str]) -> socket.socket:
        """The line to the process for this interpreter and environment."""
        return self._process(python, environment)[1]

    def pid(self, python: str, environment: Mapping[str, str]) -> int:
        """That process, whose children are the forks."""
        return self._process(python, environment)[0].pid

    def _process(self, python: str, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        from turbofix.verify.runner import QUIET  # what is kept need not import it

        common = {name: value for name, value in environment.items() if name not in {*OWN, *LATER, *QUIET}}
        common |= AT_THE_START
        key = (python, *sorted(common.items()))
        if key not in self._kept:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [python, __file__, str(theirs.fileno())],
                    env={**common, MARK: "-" * ROOM},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._kept[key] = process, ours
        return self._kept[key]

    def close(self) -> None:
        for process, control in self._kept.values():
            control.close()
            process.wait(60)
        self._kept.clear()


class Forked:
    """What ``turbofix.verify.runner`` uses of a ``Popen``."""

    def __init__(
        self,
        control: socket.socket,
        arguments: list[str],
        environment: dict[str, str],
        given: dict[str, Any],
        *,
        plain: bool = False,
    ) -> None:
        assert given["start_new_session"] and given["stdin"] == given["stdout"] == subprocess.PIPE
        assert plain or len(environment[MARK]) < ROOM
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self._status, status = os.pipe()
        order = {
            "arguments": arguments,
            "cwd": str(given["cwd"]),
            "environment": environment,
            "numbers": [0, 1, 2, *given["pass_fds"]],
            "plain": plain,
        }
        handed = [status, read_in, write_out, given["stderr"].fileno(), *given["pass_fds"]]
        socket.send_fds(control, [json.dumps(order).encode()], handed)
        for descriptor in (status, read_in, write_out):
            os.close(descriptor)
        self.stdin, self.stdout = os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb")
        self.returncode: int | None = None
        self._said = b""
        self.pid = int(self._line())

    def _line(self) -> bytes:
        while b"\n" not in self._said:
            more = os.read(self._status, 64)
            assert more, "the process that has imported torch is gone"
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(self._line()))
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


Started = Forked | subprocess.Popen[bytes]


# --- in the process that is kept ------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Import torch, then fork as often as asked to, until the tests are over."""
    import gc

    gc.disable()
    import torch
    import torch._dynamo  # noqa: F401  (as the probe does)

    gc.freeze()
    gc.enable()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        for ready in select.select([control, ended], [], [])[0]:
            if ready is ended:
                os.read(ended, 512)
                for pid, status in reaped():
                    with contextlib.suppress(OSError):
                        os.write(statuses[pid], b"%d\n" % status)
                    os.close(statuses.pop(pid))
                continue
            text, handed, *_ = socket.recv_fds(control, 1 << 20, 16)
            if not text:
                return
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                become(json.loads(text), handed[1:])
            statuses[pid], *others = handed
            os.write(statuses[pid], b"%d\n" % pid)
            for descriptor in others:
                os.close(descriptor)


def reaped() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def become(order: dict[str, Any], handed: list[int]) -> None:
    """Be the process that was asked for; never returns."""
    status = 70
    try:
        os.setsid()
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 512) for descriptor in handed]
        os.closerange(3, 512)
        for descriptor, number in zip(high, order["numbers"], strict=True):
            os.dup2(descriptor, number)
        os.closerange(512, 1024)
        os.chdir(order["cwd"])
        if not order["plain"]:
            mark(order["environment"][MARK])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        tempfile.tempdir = None  # torch has asked for it, and the answer is remembered
        sys.argv[:] = order["arguments"]
        if order["plain"]:
            status = ended(sys.argv[0])
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def ended(script: str) -> int:
    """The status of an interpreter that ends with a script, after all that one does at its end."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def mark(path: str) -> None:
    """Write the scratch folder into the environment that this process was started with: the one that others see."""
    with open("/proc/self/stat", encoding="ascii") as handle:
        # what follows the name in brackets begins with the third field; the 50th is where the environment begins
        start = int(handle.read().rpartition(")")[2].split()[50 - 3])
    with open("/proc/self/environ", "rb") as handle:
        at = handle.read().index(f"{MARK}={'-' * ROOM}".encode()) + len(MARK) + 1
    ctypes.memmove(start + at, path.encode() + b"\0", len(path.encode()) + 1)


if __name__ == "__main__":
    sys.path.pop(0)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)
