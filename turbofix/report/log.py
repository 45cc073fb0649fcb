"""A profile's figures for a logger of trainings: a line of JSON, TensorBoard, or Weights & Biases without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofix.verify.profile import Profile

TENSORBOARD, WANDB = "tensorboard:", "wandb:"
NEEDS = {TENSORBOARD: "tensorboardX", WANDB: "wandb"}
"""The package that writes what a target with this beginning asks for."""


def figures(profile: Profile) -> dict[str, float | str | None]:
    """Seconds by part, as loggers of training figures name them, and what else is known of a step."""
    found: dict[str, float | str | None] = {f"perf/{name}_time": ms * 1e-3 for name, ms in profile.step_ms.items()}
    found["perf/step_time"] = found.pop("perf/total_time")
    found["perf/mfu"] = profile.estimate.utilisation
    found["perf/samples_per_second"] = profile.throughput
    found["perf/estimated_on"] = None if profile.measured else profile.estimate.gpu
    return found


def write(profile: Profile, target: str) -> None:
    """Add the figures to ``target``: a file, ``tensorboard:FOLDER`` or ``wandb:FOLDER``.

    Raises:
        OSError: it cannot be written.
    """
    found = figures(profile)
    numbers = {name: value for name, value in found.items() if isinstance(value, float)}
    if target.startswith(TENSORBOARD):
        from tensorboardX import SummaryWriter

        with SummaryWriter(target.removeprefix(TENSORBOARD)) as writer:
            for name, value in numbers.items():
                writer.add_scalar(name, value, 0)
    elif target.startswith(WANDB):
        import wandb

        folder = Path(target.removeprefix(WANDB))
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True)
        with wandb.init(project="turbofix", mode="offline", dir=str(folder), settings=settings) as run:
            run.log(numbers)
            run.config["estimated_on"] = found["perf/estimated_on"]
        wandb.teardown()  # what writes the file is a process of its own: wait for it
    else:
        with Path(target).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(found) + "\n")
