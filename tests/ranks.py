"""Scripts run by several processes each, as torchrun would start them, in forks of one that has imported torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SERVER = """
import atexit, json, os, runpy, signal, sys
import torch._dynamo, torch.distributed.fsdp, torch.distributed.optim, torch.distributed.tensor, torch.utils.data

def run(rank, folder, script, processes, port, args, before):
    signal.alarm(120)  # whoever waits in vain
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(processes))
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [script, *args]
    exec(before, {})
    runpy.run_path(script, run_name="__main__")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # all of torch, object by object, would be taken down in a second

torch.set_num_threads(1)
for line in sys.stdin:
    asked, ranks = json.loads(line), []
    for rank in range(asked["processes"]):
        sys.stdout.flush()
        ranks.append(os.fork())
        if not ranks[-1]:
            run(rank, **asked)
    for each in ranks:
        os.waitpid(each, 0)
    print("done", flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """What the processes of a run printed, and what went wrong in them."""

    out: tuple[str, ...]
    err: tuple[str, ...]

    @property
    def error(self) -> str:
        # torch sometimes aborts a process that leaves the group, when its work is done: what it wrote counts
        return next((each for each in self.err if "Error" in each or "Exit" in each), "")


class Server:
    """Runs scripts, one after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, script: Path, processes: int = 2, *args: str, before: str = "") -> Ran:
        """Run a script in its folder, by torchrun's rules where the processes are several, behind other code."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        asked = {"folder": str(script.parent), "script": script.name, "processes": processes, "port": port}
        asked |= {"args": args, "before": before}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"
        out, err = (
            [script.with_name(f"{name}.{n}").read_text("utf-8") for n in range(processes)] for name in ("out", "err")
        )
        for name in ("out", "err"):
            for number in range(processes):
                script.with_name(f"{name}.{number}").unlink()
        return Ran(tuple(out), tuple(err))


@contextmanager
def server() -> Iterator[Server]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Server(process)
        process.kill()
