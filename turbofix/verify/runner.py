"""Run the user's script in a child of the user's interpreter, as often as asked, and read back what the probe saw."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from turbofix.records import dataclass
from turbofix.verify.probe import limits
from turbofix.verify.request import Options
from turbofix.verify.result import Inconclusive
from turbofix.verify.scratch import Scratch

PROBE = Path(__file__).parent / "probe"

# seconds that torch may take to be imported
START = 300.0
# bytes that the original's tensors may take in the scratch folder, and the share of the free disk
MOST_TENSOR_BYTES = 8 << 30
DISK_SHARE = 0.25

OnStep = Callable[[int], None]

QUIET = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "MLFLOW_TRACKING_URI": "",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "MPLBACKEND": "Agg",
}


@dataclass(frozen=True)
class Ended:
    """How a run ended (stopped, finished, crashed, shorten or killed), and its log, empty when it left none."""

    how: str
    log: Mapping[str, Any] = field(default_factory=dict)
    complaint: str | None = None
    last_words: str = ""
    timed_out: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.log.get("rows", ()))


class Child:
    """The user's interpreter with the probe in it; it imports torch once and forks for every run."""

    def __init__(self, scratch: Scratch, script: Path, args: tuple[str, ...], cwd: Path, options: Options) -> None:
        self._scratch, self._script, self._args, self._cwd, self._options = scratch, script, args, cwd, options
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._orders = self._replies = -1
        self.torch = ""
        self.cuda = False
        self.device_name: str | None = None
        self.isolation = ""

    def start(self) -> None:
        """Start the interpreter and import torch; ``Inconclusive`` where that fails."""
        self.close()
        root = self._scratch.root
        for name in ("tmp", "cache", "logs"):
            (root / name).mkdir(exist_ok=True)
        (root / "mirror").mkdir(exist_ok=True)
        orders_read, self._orders = os.pipe()
        self._replies, replies_write = os.pipe()
        configuration = root / "logs" / "child.json"
        configuration.write_text(
            json.dumps(
                {
                    "requests": orders_read,
                    "replies": replies_write,
                    "writable": [str(root)],
                    "isolation": self._options.isolation,
                    "name_device": self._options.device != "cpu",
                }
            )
        )
        python = self._options.python or sys.executable
        try:
            with open(root / "logs" / "child.txt", "wb") as words:
                self._process = subprocess.Popen(
                    [python, str(PROBE), str(configuration)],
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    pass_fds=(orders_read, replies_write),
                    start_new_session=True,
                    cwd=root,
                    env=self._environment(),
                )
        except OSError as error:
            raise Inconclusive(f"the interpreter {python} could not be started: {error.strerror}") from error
        finally:
            os.close(orders_read)
            os.close(replies_write)
        ready = self._wait(time.monotonic() + START, lambda step: None)
        if not ready or not ready.get("ready"):
            words_said = _tail(root / "logs" / "child.txt")
            why = (ready or {}).get("error") or words_said or "it ended without a word"
            self.close()
            raise Inconclusive(f"{python} could not import torch: {why}")
        self.torch, self.cuda = ready["torch"], ready["cuda"]
        self.device_name, self.isolation = ready["device_name"], ready["isolation"]

    def _environment(self) -> dict[str, str]:
        root = self._scratch.root
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        environment.update(QUIET)
        environment.update(self._python_path(mirrored=False))
        environment.update(
            TMPDIR=str(self._scratch.temporary),
            MPLCONFIGDIR=str(root / "cache"),
            TORCHINDUCTOR_CACHE_DIR=str(root / "cache" / "inductor"),
            TRITON_CACHE_DIR=str(root / "cache" / "triton"),
            NUMBA_CACHE_DIR=str(root / "cache"),
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONHASHSEED="0",
            PYTHONUNBUFFERED="",
            OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
            PYTORCH_NVML_BASED_CUDA_CHECK="1",
        )
        if self._options.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment

    def _python_path(self, *, mirrored: bool) -> dict[str, str]:
        """``PYTHONPATH`` as it is meant from the user's working folder, or the same in the mirror."""
        given = os.environ.get("PYTHONPATH")
        if not given:
            return {}
        folders = [Path(os.path.normpath(self._cwd / entry)) for entry in given.split(os.pathsep)]
        if mirrored:
            folders = [self._scratch.mirror(one) if self._scratch.holds(one) else one for one in folders]
        return {"PYTHONPATH": os.pathsep.join(map(str, folders))}

    def run(self, files: Mapping[Path, bytes], order: Mapping[str, Any], on_step: OnStep) -> Ended:
        """Run the script once with ``files`` in place of the originals.

        A run that goes past its time limit is killed with everything that it started.
        """
        if self._process is None or self._process.poll() is not None:
            self.start()
        self._scratch.populate(files)
        logs = self._scratch.root / "logs"
        log = logs / "log.json"
        log.unlink(missing_ok=True)
        script = self._scratch.mirror(self._script)
        beneath = self._cwd in self._script.parents
        whole = {
            "folder": str(self._scratch.mirror(self._cwd)),
            "script": str(script),
            "name": os.path.relpath(self._script, self._cwd) if beneath else str(script),
            "arguments": [self._scratch.argument(argument) for argument in self._args],
            "mirror": str(self._scratch.mirror_root),
            "mirrored": {str(tree): str(self._scratch.mirror(tree)) for tree in self._scratch.trees},
            "environment": {"PWD": str(self._scratch.mirror(self._cwd)), **self._python_path(mirrored=True)},
            "stdout": str(logs / "stdout.txt"),
            "stderr": str(logs / "stderr.txt"),
            "log": str(log),
            "tensors": str(self._scratch.root / "tensors"),
            "tensor_bytes": self._tensor_bytes(),
            "seed": self._options.seed,
            **order,
        }
        os.write(self._orders, (json.dumps(whole) + "\n").encode())
        ended = self._wait(time.monotonic() + self._options.timeout, on_step)
        if ended is None:
            alive = self._process is not None and self._process.poll() is None
            self.close()
            if alive:
                limit = f"ran past its time limit of {self._options.timeout:g} seconds"
                return Ended("killed", complaint=limit, timed_out=True)
            return Ended("killed", complaint="was killed")
        words = _tail(logs / "stderr.txt")
        try:
            found = json.loads(log.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Ended("killed", complaint=_death(ended["ended"]), last_words=words)
        return Ended(found["how"], found, found.get("error"), words)

    def _tensor_bytes(self) -> int:
        free = os.statvfs(self._scratch.root)
        return min(MOST_TENSOR_BYTES, int(free.f_bavail * free.f_frsize * DISK_SHARE))

    def _wait(self, until: float, on_step: OnStep) -> dict[str, Any] | None:
        """The next reply that is not a step count; None when time is up or the child is gone."""
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                message: dict[str, Any] = json.loads(line)
                if "step" not in message:
                    return message
                on_step(message["step"])
                continue
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                return None
            chunk = os.read(self._replies, 65536)
            if not chunk:
                return None
            self._rest += chunk

    def close(self) -> None:
        """End the child and everything below it; safe to call more than once."""
        process, self._process = self._process, None
        if process is not None:
            # Stopped first, so that it cannot start more while its descendants are counted.
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGSTOP)
            for _ in range(100):
                living = limits.descendants(process.pid)
                for pid in living:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                if not living:
                    break
                time.sleep(0.01)
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (self._orders, self._replies):
            if pipe >= 0:
                with contextlib.suppress(OSError):
                    os.close(pipe)
        self._orders = self._replies = -1
        self._rest = b""


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.WEXITSTATUS(status)} and left no log"


def _tail(path: Path) -> str:
    """The last line that says something."""
    try:
        with open(path, "rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - 4096))
            lines = handle.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
