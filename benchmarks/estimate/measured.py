"""The measurements, by card, torch version and layout, and which of them the constants may be fitted on."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    """One published file: ``mode`` is train or infer, ``last`` channels-last; it may be ``fitted`` on.

    ``written`` says that its torch has no attention in one kernel.
    """

    mode: str
    last: bool
    torch: str
    card: str
    file: str
    fitted: bool = False
    written: bool = False


SETTINGS = (
    Setting("train", False, "1.12", "rtx3090", "timm-train-amp-nchw-pt112-cu113-rtx3090.csv", True),
    Setting("train", True, "1.12", "rtx3090", "timm-train-amp-nhwc-pt112-cu113-rtx3090.csv", True),
    Setting("infer", False, "2.4", "rtx3090", "timm-infer-amp-nchw-pt240-cu124-rtx3090.csv", True),
    Setting("infer", True, "2.4", "rtx3090", "timm-infer-amp-nhwc-pt240-cu124-rtx3090.csv", True),
    Setting("infer", False, "1.13", "rtx3090", "timm-infer-amp-nchw-pt113-cu117-rtx3090.csv", written=True),
    Setting("infer", False, "2.4", "rtx4090", "timm-infer-amp-nchw-pt240-cu124-rtx4090.csv"),
    Setting("infer", True, "2.4", "rtx4090", "timm-infer-amp-nhwc-pt240-cu124-rtx4090.csv"),
)
COMPILED = "timm-infer-amp-nchw-pt240-cu124-rtx4090-dynamo.csv"
EAGER = SETTINGS[5]
PUBLISHED = "nvidia-training.tsv"

Network = tuple[str, int]
"""A network of timm by its name without a tag, and the size of its images."""


class Step(NamedTuple):
    """Seconds for one sample, and the batch that they were measured with."""

    per_sample: float
    batch: int


def steps(folder: Path, file: str, mode: str) -> dict[Network, Step]:
    """The measured steps of a file."""
    found: dict[Network, Step] = {}
    for row in rows_of(folder / file, ","):
        network = row["model"].partition(".")[0], int(row[f"{mode}_img_size"])
        step = Step(1 / float(row[f"{mode}_samples_per_sec"]), int(row[f"{mode}_batch_size"]))
        found.setdefault(network, step)
    return found


class Published(NamedTuple):
    """Samples (or frames, or sequences) per second of a training in full and in mixed precision on one card."""

    model: str
    batch: int
    card: str
    tf32: bool
    full: float
    mixed: float


def published(folder: Path) -> list[Published]:
    """The rows of NVIDIA's table."""
    cards = {"A100-SXM-80GB": "a100", "V100-SXM2-16GB": "v100"}
    return [
        Published(
            row["model"],
            int(row["batch"]),
            cards[row["gpu"]],
            row["full_precision"] == "TF32",
            float(row["full"]),
            float(row["mixed"]),
        )
        for row in rows_of(folder / PUBLISHED, "\t")
    ]


def rows_of(path: Path, delimiter: str) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as handle:
        yield from csv.DictReader(handle, delimiter=delimiter)


def held_out(family: str) -> bool:
    """Whether a family of networks (a module of timm) is kept from the fitting: one in two, by its name's hash."""
    return int(hashlib.sha1(family.encode(), usedforsecurity=False).hexdigest(), 16) % 2 == 0
