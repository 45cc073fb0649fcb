"""One module per job: what `benchmarks.training.job.Job` asks of it. They are found here, no list is edited."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.training.job import Job


def all_jobs() -> dict[str, Job]:
    """Every job by its name."""
    modules = (importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__))
    jobs: list[Job] = [module.JOB for module in modules]
    return {job.name: job for job in jobs}
