"""What data sheets say of the cards that there is an estimate for (``cards.tsv``), and constants fitted to runs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

DEFAULT = {
    "auto": "a100",
    "volta": "v100",
    "turing": "t4",
    "ampere": "a100",
    "ada": "rtx4090",
    "hopper": "h100",
    "blackwell": "b200",
}
"""The card that stands for an architecture."""


class Card(NamedTuple):
    """A card: TFLOP/s in float32, in TF32 and in 16 bits (dense, tensor cores, float32 sums), GB/s of its memory,
    multiprocessors, GB of memory, GB/s from pinned memory of the host, and where that stands. Of a card that was
    measured also the microseconds in which its host starts a kernel, and that a read adds beside the wait. ``bus`` are
    the GB/s at which cards of one machine add up what they hold, as NCCL counts them (its bus bandwidth).
    """

    name: str
    architecture: str
    float32: float
    tf32: float
    half: float
    bandwidth: float
    multiprocessors: float
    memory: float
    link: float
    source: str
    start: float | None = None
    read: float | None = None
    bus: float | None = None
    bus_source: str = ""

    @property
    def rounds(self) -> bool:
        """Whether its tensor cores take float32 numbers, as TF32."""
        return self.architecture not in ("volta", "turing")


def _rows(name: str) -> list[list[str]]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if line and line[0] != "#"][1:]


@cache
def cards() -> dict[str, Card]:
    """All cards, by name."""
    return {
        row[0]: Card._make([*row[:2], *map(float, row[2:9]), row[9], None, None, float(row[10]), row[11]])
        for row in _rows("cards.tsv")
    }


def card_for(gpu: str) -> Card | None:
    """The card of a name that ``--gpu`` takes: itself, or the one that stands for an architecture; None of no other."""
    name = slug(gpu)
    known = {each.replace("-", ""): card for each, card in cards().items()}
    return known.get(DEFAULT.get(name, name))


def slug(name: str) -> str:
    """A card's name in one word: "NVIDIA GeForce RTX 2080 Ti" is rtx2080ti."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


@cache
def constants() -> dict[str, float]:
    """The fitted constants (``constants.tsv`` says what each is), as shares of what the data sheets promise."""
    return {row[0]: float(row[1]) for row in _rows("constants.tsv")}
