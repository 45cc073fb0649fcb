"""Run a script until its optimizers have made so many steps, and write down what they cost.

    python steps.py COUNT FILE SCRIPT [ARGS…]

FILE gets one line of JSON: how many steps were seen, and the wall and processor seconds from the first to the last.
It runs in the script's interpreter.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path


def main() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    most, told, script = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    times: list[tuple[float, float]] = []

    def write() -> None:
        told.write_text(
            json.dumps({"steps": len(times), "wall": times[-1][0] - times[0][0], "cpu": times[-1][1] - times[0][1]})
        )

    def stepped(*_: object) -> None:
        spent = os.times()
        times.append((time.perf_counter(), sum(spent[:4])))
        if len(times) > most:
            write()
            os._exit(0)

    register_optimizer_step_post_hook(stepped)
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if len(times) > 1:
            write()


if __name__ == "__main__":
    main()
