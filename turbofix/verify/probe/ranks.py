"""One run of the user's script in several processes, as torchrun starts them: each is watched, and all end together.

This process stands above them, as torchrun's agent does: it serves the store in which they find each other (so that
the port is one that is free), waits for them, and notices when one dies, or when all wait for what never comes. A
process that is done holds still, its connections open, until the others are: none is left alone in a collective.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import processes
from .patching import wrap
from .patience import TIMES, line_of_main_thread

# seconds for which no process may do anything until they are taken to wait for each other, or for one that is done
STILL = 10.0
STILL_FOR_ONE = 3.0
# and what they take to tell where they are, or to die of another's death
SETTLING = 0.5
_PAUSE = 0.02
_LOOK = 0.5
# of one processor, while nothing is done
_BUSY = 0.05
# bytes of what a process that died wrote
_LAST_WORDS = 4096

Run = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], int]


class _Rank:
    """One of the processes, seen from above."""

    def __init__(self, number: int, pid: int, hears: int, asks: int, order: dict[str, Any]) -> None:
        self.number, self.pid, self._hears, self._asks, self._order = number, pid, hears, asks, order
        self.done = self.moved = self.trains = False
        self.status: int | None = None
        self.where: dict[str, Any] = {"line": None, "steps": 0}

    def look(self) -> None:
        """Take note of what it says, and of its end."""
        while select.select([self._hears], [], [], 0)[0] and (said := os.read(self._hears, 1 << 16)):
            for line in said.decode().splitlines():
                self.done = self.done or line == "done"
                self.moved = self.trains = True
                if line.startswith("{"):
                    self.where = json.loads(line)
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
            # torch sometimes aborts a process that leaves the group when its work is done
            aborted = self.status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT
            self.done = self.done or (aborted and self.log().get("how") == "finished")

    @property
    def dead(self) -> bool:
        served = self.status == 0 and not self.trains
        return self.status is not None and not self.done and not served

    def ask_where(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._asks, b"?")

    def log(self) -> dict[str, Any]:
        try:
            with open(self._order["log"], encoding="utf-8") as handle:
                return dict(json.load(handle))
        except (OSError, ValueError):
            return {}

    def died_at(self) -> float:
        """When it wrote its log; one that could write none any more came first."""
        try:
            return os.stat(self._order["log"]).st_mtime if self.log().get("how") == "crashed" else 0.0
        except OSError:
            return 0.0

    def last_words(self) -> str:
        with contextlib.suppress(OSError), open(self._order["stderr"], "rb") as handle:
            handle.seek(max(0, os.stat(self._order["stderr"]).st_size - _LAST_WORDS))
            return handle.read().decode("utf-8", "replace")
        return ""


def run_all(order: dict[str, Any], say: Callable[[dict[str, Any]], None], run: Run) -> int:
    """Run the script in ``order["processes"]`` processes; the log of all is written to ``order["log"]``."""
    processes.adopt_orphans()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ranks = [_start(number, order, listening, say, run) for number in range(order["processes"])]
        store = _serve(listening, order["processes"])
        stuck = _wait(ranks, order["all_seconds"])
    if stuck:
        for one in ranks:
            one.ask_where()
        time.sleep(SETTLING)
    for one in ranks:
        one.look()
    processes.kill_descendants(os.getpid())
    del store
    if ranks[0].done and not any(one.trains or one.dead for one in ranks[1:]):
        del ranks[1:]  # they compute for the first one, which alone runs the script
    dead = sorted((one for one in ranks if one.dead), key=_Rank.died_at)
    if dead and dead[0].number:
        sys.stderr.write(dead[0].last_words())
    logs = [one.log() for one in ranks]
    if order["processes"] > 1:
        _write(order["log"], _of_all(ranks, logs, dead[0] if dead else None, stuck))
    elif logs[0]:
        os.replace(f"{order['log']}.0", order["log"])
    return 0


def _of_all(
    ranks: Sequence[_Rank], logs: list[dict[str, Any]], dead: _Rank | None, stuck: str | None
) -> dict[str, Any]:
    """The log of a run of several processes: theirs, and how they ended."""
    error = logs[dead.number].get("error", f"the death of rank {dead.number}") if dead is not None else None
    return {
        "how": "crashed" if dead is not None else "waiting" if stuck else "stopped",
        "error": error,
        "steps": min(len(log.get("rows", ())) for log in logs),
        "ranks": logs,
        "done": [one.done for one in ranks],
        "where": [one.where for one in ranks],
        "died": [dead.number, dead.status] if dead is not None else None,
        "stuck": stuck,
    }


def _write(path: str, log: dict[str, Any]) -> None:
    with open(path + ".part", "w", encoding="utf-8") as handle:
        handle.write(json.dumps(log))
    os.replace(path + ".part", path)


def _start(
    number: int, order: dict[str, Any], listening: socket.socket, say: Callable[[dict[str, Any]], None], run: Run
) -> _Rank:
    """Fork one of the processes, which runs the script and returns no more."""
    (hears, tells), (asked, asks) = os.pipe(), os.pipe()
    own = {**order, "rank": number, "log": f"{order['log']}.{number}"}
    own.update({name: f"{order[name]}.{number}" for name in ("stdout", "stderr") if number})
    if order["apart"] and order["processes"] > 1:  # each is held against its own of the original
        own["tensors"] = f"{order['tensors']}.{number}"
        own["tensor_bytes"] = order["tensor_bytes"] // order["processes"]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(own["log"])
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(tells)
        os.close(asked)
        return _Rank(number, pid, hears, asks, own)
    code = 70
    try:
        processes.die_with_parent()
        os.environ.update(_environment(number, order["processes"], listening.getsockname()[1]))
        if not sys.modules["torch"].cuda.is_available():
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # where there is no GPU it joins no others else
        for one in (hears, asks, listening.detach()):
            os.close(one)
        for stream, name in ((1, "stdout"), (2, "stderr")) if number else ():
            opened = os.open(own[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, stream)
            os.close(opened)
        threading.Thread(target=_tell_where, args=(asked, tells, own), daemon=True).start()

        def tell(message: dict[str, Any]) -> None:
            os.write(tells, b"on\n")
            if not number:
                say(message)

        code = run({**own, "leave": lambda: _hold_still(tells)}, tell)
        if not code:
            _hold_still(tells)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _environment(number: int, count: int, port: int) -> dict[str, str]:
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(number)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count)),
        **dict.fromkeys(("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), "0"),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "turbofix",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


VARIABLES = frozenset(_environment(0, 1, 0)) - {"GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"}
"""What tells a process that it is one of several."""


def _hold_still(tells: int) -> NoReturn:
    """Say that all is done, and wait to be ended."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(tells, b"done\n")
    while True:
        time.sleep(60)


_watched: list[Any] = []  # the recorder of this process


def _tell_where(asked: int, tells: int, order: dict[str, Any]) -> None:
    """Whenever this is asked: the line of the user's code that the process is at, and how many steps it has taken."""
    while os.read(asked, 1):
        told = {"line": line_of_main_thread(order), "steps": len(_watched[0].rows) if _watched else 0}
        os.write(tells, (json.dumps(told) + "\n").encode())


def _serve(listening: socket.socket, count: int) -> Any:
    """The store in which the processes find each other; to be kept while they run."""
    import torch.distributed

    store: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
    port, how = listening.getsockname()[1], {"is_master": True, "wait_for_workers": False}
    try:
        return store("127.0.0.1", port, count, **how, master_listen_fd=os.dup(listening.fileno()))
    except TypeError:  # an older torch opens the port itself
        listening.close()
        return store("127.0.0.1", port, count, **how)


def _wait(ranks: Sequence[_Rank], seconds: float) -> str | None:
    """Until all are done, or one is dead; else what is the matter: all are ``still``, or it is ``late``."""
    now = looked = rested_since = time.monotonic()
    until, longest, used = now + seconds, 0.0, 0.0
    while True:
        for one in ranks:
            one.look()
        if ranks[0].done and all(one.done or not one.trains for one in ranks):
            return None
        if any(one.dead for one in ranks):
            time.sleep(SETTLING)
            return None
        now = time.monotonic()
        if now > until:
            return "late"
        if now > looked + _LOOK and len(ranks) > 1:
            looked, before = now, used
            used, at_work = processes.work_of(processes.below(os.getpid()))
            if at_work or used - before > _BUSY * _LOOK or used < before or any(one.moved for one in ranks):
                longest, rested_since = max(longest, now - _LOOK - rested_since), now
            for one in ranks:
                one.moved = False
            still = STILL_FOR_ONE if any(one.done for one in ranks) else STILL
            if now - rested_since > max(still, TIMES * longest):
                return "still"
        time.sleep(_PAUSE)


def watch(recorder: Any) -> None:
    """In one of the processes: note how they talk, and write the log before they part, for torch may abort there."""
    import torch
    import torch.distributed as dist

    _watched.append(recorder)

    def joining(original: Any) -> Callable[..., Any]:
        def init_process_group(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            recorder.events["backend"] = dist.get_backend()
            return result

        return init_process_group

    def parting(original: Any) -> Callable[..., Any]:
        def destroy_process_group(*arguments: Any, **keywords: Any) -> Any:
            recorder.finish("finished")
            return original(*arguments, **keywords)

        return destroy_process_group

    def hooking(original: Any) -> Callable[..., Any]:
        def register_comm_hook(self: Any, state: Any, hook: Any) -> Any:
            # gradients that travel in 16 bits are rounded to that
            recorder.events["halved"] = recorder.events["halved"] or "16" in getattr(hook, "__name__", "")
            return original(self, state, hook)

        return register_comm_hook

    wrap(torch.nn.parallel.DistributedDataParallel, "register_comm_hook", hooking)
    wrap(dist, "init_process_group", joining)
    wrap(dist, "destroy_process_group", parting)
