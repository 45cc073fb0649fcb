"""Run the user's script in a child of the user's interpreter, as often as asked, and read back what the probe saw."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from turbofix.records import dataclass
from turbofix.source.magics import MARK
from turbofix.verify import signals, windows
from turbofix.verify.isolation import PROBE
from turbofix.verify.probe import processes, ranks
from turbofix.verify.probe.levels import GUARD
from turbofix.verify.probe.warden import RELEASE, forget_shared_memory
from turbofix.verify.request import NOTEBOOK, Options
from turbofix.verify.resources import PAUSE, Watch, limits_for
from turbofix.verify.result import Inconclusive
from turbofix.verify.scratch import Scratch

# seconds that torch may take to be imported
START = 300.0
# bytes that the original's tensors may take in the scratch folder, and the share of the free disk
MOST_TENSOR_BYTES = 8 << 30
DISK_SHARE = 0.25

# seconds for which a script may do nothing until it is taken to wait for what never comes
IDLE = 2.0
# seconds that a child may take to end
PATIENCE = 10.0

# Elsewhere a fork of a process that has threads and frameworks in it may hang.
FORKS = sys.platform.startswith("linux")

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


_ENDS = {"finished": ", to its end", "waiting": ", then it waits", "shorten": ", to know how long its data are"}
# lines of the script's own output that are kept of a run
_LINES_KEPT = 20


@dataclass(frozen=True)
class Ended:
    """How a run ended (stopped, finished, crashed, waiting, shorten or killed), and its log, empty when it left none.

    ``stopped`` says that it broke a limit, which is then the ``complaint``. ``seconds`` is what it took, ``output`` the
    last lines that the script wrote.
    """

    how: str
    log: Mapping[str, Any] = field(default_factory=dict)
    complaint: str | None = None
    last_words: str = ""
    stopped: bool = False
    seconds: float = 0.0
    output: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it did not end as a training does, on the way to its end neither."""
        return self.complaint is not None or self.log.get("end", {}).get("how") == "crashed"

    @property
    def in_words(self) -> str:
        """How far it came, in which time, and how it ended."""
        end = self.log.get("end", {})
        steps = self.log["steps"] if "steps" in self.log else len(self.rows)
        words = f"{steps} steps in {self.seconds:.1f} s"
        error = self.complaint or end.get("error")
        if "crashed" in (self.how, end.get("how")):
            words += f', then it stopped with "{error}"'
        elif self.complaint:
            words += f", then it {self.complaint}"
        return words + _ENDS.get(end.get("how", self.how), "")

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.log.get("rows", ()))


class Child:
    """The user's interpreter with the probe in it; it imports torch once and forks for every run.

    Where processes cannot be forked safely every run has an interpreter of its own.
    """

    def __init__(  # noqa: PLR0913
        self,
        scratch: Scratch,
        script: Path,
        args: tuple[str, ...],
        cwd: Path,
        options: Options,
        texts: Mapping[Path, bytes] | None = None,
    ) -> None:
        self._scratch, self._script, self._args, self._cwd, self._options = scratch, script, args, cwd, options
        self.texts = texts or {}  # run in place of the files as they are
        self._forks = FORKS
        self._process: subprocess.Popen[bytes] | None = None
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lifeline = -1
        self._job: windows.Job | None = None
        self.torch = ""
        self.cuda = False
        self._cards = 0
        self.device_name: str | None = None
        self.isolation = ""
        self.touched: set[Path] = set()
        self.imports: tuple[str, ...] = ()  # modules that are imported before a run is forked, where that goes
        self.limits = limits_for(options.timeout, options.memory, options.disk, scratch.root)

    def start(self) -> None:
        """Start the interpreter and import torch; ``Inconclusive`` where that fails."""
        self.close()
        root = self._scratch.root
        for name in ("tmp", "cache", "logs", "mirror"):
            (root / name).mkdir(exist_ok=True)
        python = self._options.python or sys.executable
        lifeline, self._lifeline = os.pipe()
        handed = [one for one in (lifeline, self._scratch.lock) if one is not None]
        configuration = root / "logs" / "child.json"
        configuration.write_text(json.dumps(self._configuration(lifeline)))
        apart: dict[str, Any] = {"pass_fds": handed, "start_new_session": True} if os.name == "posix" else {}
        try:
            with open(root / "logs" / "child.txt", "wb") as words:
                self._process = subprocess.Popen(
                    [python, str(PROBE), "serve", str(configuration)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=words,
                    cwd=root,
                    env=self._environment(),
                    **apart,
                )
        except OSError as error:
            raise Inconclusive(f"the interpreter {python} could not be started: {error.strerror}") from error
        finally:
            os.close(lifeline)
        self._job = windows.Job.around(self._process.pid, self.limits.memory)
        self._said = queue.Queue()
        # A thread, since not every system can wait for a pipe with a limit.
        threading.Thread(target=_listen, args=(self._process.stdout, self._said), daemon=True).start()
        ready = self._wait(START)
        if not isinstance(ready, dict) or not ready.get("ready"):
            words_said = _tail(root / "logs" / "child.txt")
            why = (ready.get("error") if isinstance(ready, dict) else ready) or words_said or "it ended without a word"
            self.close()
            raise Inconclusive(f"{python} could not import torch: {why}")
        self.torch, self.cuda, self._cards = ready["torch"], ready["cuda"], ready["cards"]
        self.device_name, self.isolation = ready["device_name"], self._scratch.held.level

    def why_not_several(self, count: int) -> str | None:
        """Why the script cannot be run as so many processes at once here, or None."""
        if not self._forks:
            return "they are run on Linux alone"
        if self.cuda and self._options.device != "cpu" and self._cards < count:
            return f"{count} of them need {count} GPUs, and {self._cards} is here (--device cpu runs them without)"
        return None

    def _configuration(self, lifeline: int) -> dict[str, Any]:
        root, held = self._scratch.root, self._scratch.held
        return {
            "lifeline": lifeline,
            "lock": self._scratch.lock,
            "root": str(root),
            "keep": self._options.keep_scratch,
            "forks": self._forks,
            "level": held.level,
            "own_user": held.own_user,
            "mirror": str(self._scratch.mirror_root),
            "audit": str(self._audit),
            "name_device": self._options.device != "cpu",
        }

    def programs(self) -> tuple[str, ...]:
        """The programs that the script started and the weakest level does not hold, by name."""
        try:
            lines = self._audit.read_text(encoding="utf-8").splitlines()
        except OSError:
            return ()
        return tuple(dict.fromkeys(lines))

    @property
    def _audit(self) -> Path:
        return self._scratch.root / "logs" / "audit.txt"

    def _environment(self) -> dict[str, str]:
        root = self._scratch.root
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        for name in ranks.VARIABLES:  # it is to train in one process, whatever starts the verification
            environment.pop(name, None)
        environment.update(QUIET)
        environment.update(self._python_path(mirrored=False))
        environment.update(
            {processes.MARK: str(root)},
            TMPDIR=str(self._scratch.temporary),
            TEMP=str(self._scratch.temporary),
            TMP=str(self._scratch.temporary),
            MPLCONFIGDIR=str(root / "cache"),
            **{f"WANDB_{name}DIR": str(root / "cache") for name in ("", "DATA_", "CACHE_", "CONFIG_")},
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
        """Run the script once with ``files`` in place of the originals, and of the texts that are always run so.

        A run that goes past one of its limits is killed with everything that it started.
        """
        if self._process is None or self._process.poll() is not None or self._lifeline < 0:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        self._scratch.populate({**self.texts, **files})
        logs = self._scratch.root / "logs"
        log = logs / "log.json"
        log.unlink(missing_ok=True)
        begun = time.monotonic()
        watch = Watch(self.limits, self._process.pid, self._scratch.written)
        with contextlib.suppress(OSError):
            # under the weakest level the server itself is not held; what is timed starts cold
            spared = order.get("speed") or self._scratch.held.level == GUARD
            whole = {**self._order(logs, log), **order, "imports": () if spared else self.imports}
            self._process.stdin.write((json.dumps(whole) + "\n").encode())
            self._process.stdin.flush()
        ended = self._wait(START + self.limits.seconds, on_step, watch)
        if isinstance(ended, str):
            self._stop_run()
        forget_shared_memory(str(self._scratch.root))
        self.touched.update(self._scratch.touched())
        seconds = time.monotonic() - begun
        output = tuple(line for name in ("stdout.txt", "stderr.txt") for line in _last_lines(logs / name))
        if isinstance(ended, str):
            return Ended("killed", complaint=ended, stopped=True, seconds=seconds, output=output)
        if ended is not None and "spoilt" in ended:
            self.close()
            self.imports = ()
            return self.run(files, order, on_step)
        if ended is not None and "unheld" in ended:
            self.close()
            raise Inconclusive(f"the user's files could not be held at the level {self.isolation}: {ended['unheld']}")
        status = ended["ended"] if ended is not None else self._end_of_process()
        words = _tail(logs / "stderr.txt")
        try:
            found = json.loads(log.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Ended("killed", complaint=_death(status), last_words=words, seconds=seconds, output=output)
        return Ended(found["how"], found, found.get("error"), words, seconds=seconds, output=output)

    def _order(self, logs: Path, log: Path) -> dict[str, Any]:
        scratch = self._scratch
        script = scratch.mirror(self._script)
        beneath = self._cwd in self._script.parents
        tensor_bytes = min(MOST_TENSOR_BYTES, int(shutil.disk_usage(scratch.root).free * DISK_SHARE))
        return {
            "folder": str(scratch.mirror(self._cwd)),
            "script": str(script),
            "name": os.path.relpath(self._script, self._cwd) if beneath else str(script),
            "arguments": [scratch.argument(argument) for argument in self._args],
            "own": [str(folder) for folder in scratch.own_folders],
            "mirrored": {str(tree): str(scratch.mirror(tree)) for tree in scratch.trees},
            "layers": [layer.places() for layer in scratch.held.layers],
            "memory": self.limits.memory,
            "patience": IDLE,
            "mark": MARK if self._script.suffix == NOTEBOOK else None,
            # one file, be it the script's or the probe's; what all of the script's come to is watched from outside
            "file_size": max(self.limits.disk, tensor_bytes),
            "environment": {"PWD": str(scratch.mirror(self._cwd)), **self._python_path(mirrored=True)},
            "stdout": str(logs / "stdout.txt"),
            "stderr": str(logs / "stderr.txt"),
            "log": str(log),
            "tensors": str(scratch.root / "tensors"),
            "tensor_bytes": tensor_bytes,
        }

    def _wait(
        self, seconds: float, on_step: OnStep = lambda step: None, watch: Watch | None = None
    ) -> dict[str, Any] | str | None:
        """The next reply that is not a step count; words when a limit was broken; None when the child is gone."""
        until = time.monotonic() + seconds
        look = 0.0
        while (now := time.monotonic()) < until:
            if watch is not None and now > look:
                look = now + PAUSE
                broken = watch.broken()
                if broken:
                    return broken
            with contextlib.suppress(queue.Empty):
                message = self._said.get(timeout=PAUSE)
                if message is None or "step" not in message:
                    return message
                on_step(message["step"])
        return f"did not answer for {seconds:g} seconds"

    def _stop_run(self) -> None:
        """End the run that is under way with everything below it, and spare the server where that goes."""
        servers = processes.children(self._process.pid) if self._process is not None and self._forks else []
        if servers and all(processes.kill_descendants(server) for server in servers):
            ended = self._wait(PATIENCE)
            if isinstance(ended, dict) and "ended" in ended:
                return
        self.close()

    def _end_of_process(self) -> int | None:
        """The status of a process that is gone or about to go; a warden goes when it is told to, and knows of none."""
        status: int | None = None
        if self._process is not None and not hasattr(os, "fork"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(PATIENCE)
        self.close()
        return status

    def close(self) -> None:
        """End the child and everything below it; safe to call more than once, and not to be interrupted."""
        with signals.undisturbed():
            process, self._process = self._process, None
            lifeline, self._lifeline = self._lifeline, -1
            job, self._job = self._job, None
            if lifeline >= 0:
                with contextlib.suppress(OSError):
                    os.write(lifeline, RELEASE)
                os.close(lifeline)
            if job is not None:
                job.close()
            if process is not None:
                _end(process)
                processes.kill_marked(str(self._scratch.root))
                forget_shared_memory(str(self._scratch.root))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a warden that was told to end what is below it, and itself; if it cannot, do that from here."""
    # what was written and not read yet is of no use to anybody
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    if hasattr(os, "fork"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
            return
        processes.kill_descendants(process.pid)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()


def _listen(pipe: IO[bytes], said: queue.Queue[dict[str, Any] | None]) -> None:
    """Pass on what is said, line by line, and None at the end."""
    with contextlib.suppress(OSError, ValueError), pipe:
        for line in pipe:
            said.put(json.loads(line))
    said.put(None)


def _death(status: int | None) -> str:
    if status is None:
        return "was killed"
    if os.name == "posix" and os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.WEXITSTATUS(status) if os.name == "posix" else status
    return f"ended with status {code} and left no log"


def _tail(path: Path) -> str:
    """The last line that says something."""
    return next((line.strip()[:300] for line in reversed(_last_lines(path)) if line.strip()), "")


def _last_lines(path: Path) -> list[str]:
    try:
        with open(path, "rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - 4096))
            return handle.read().decode("utf-8", "replace").splitlines()[-_LINES_KEPT:]
    except OSError:
        return []
