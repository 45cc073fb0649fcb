"""Other published trainings, in full precision and in 16 bits, on more cards: ``others.tsv``.

BERT on sequences of 384 with fused Adam and WaveGlow on pieces of 8000 samples (Lambda; its FP16 of BERT is taken as
all in 16 bits; its WaveGlow in mixed precision is as fast as in full on every card, so that only the full is here), and
convolutional networks forward and backward, in float32 or altogether in 16 bits. ResNet-50, SSD, FastPitch and Jasper
are left out: NVIDIA's table is to be scored.

**The split** was fixed before anything was fitted: fitted on are BERT, WaveGlow and the families of timm that are not
held out elsewhere (DenseNet; not VGG and ResNet), on cards other than those of ``ONLY_SCORED``. All else is scored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.estimate import measured, networks
from turbofix.estimate.cards import Card, cards
from turbofix.estimate.recording import POINTWISE, Operation, Recording, Update, operation_of

PIECE, SEQUENCE = 8000, 384
FAMILIES = {"densenet": "densenet", "vgg": "vgg", "resnet": "resnet", "wide_resnet": "resnet"}
BOUND, HOST = 1.2, 0.3
"""Where 16 bits are not so many times as fast as 32, the host or the data bound the step: neither row is taken. Nor is
one fitted on of whose time the host may take such a share, at the most that it takes to start an operation."""
ONLY_SCORED = ("rtx4090", "h100", "h100-pcie")
"""Cards of which no training is fitted on."""

# data sheets of cards that there is no estimate for
_TITANS = {
    "titan-rtx": Card("titan-rtx", "turing", 16.3, 16.3, 130.5, 672, 72, 24, 12, "NVIDIA TITAN RTX data sheet"),
    "titan-v": Card("titan-v", "volta", 14.9, 14.9, 110, 653, 80, 12, 12, "NVIDIA TITAN V data sheet"),
}


class Other(NamedTuple):
    """A row: ``precision`` is full (TF32 where the card has it) or half (all in 16 bits, but for the optimizer)."""

    network: str
    batch: int
    card: Card
    precision: str
    figure: float
    unit: str

    @property
    def family(self) -> str:
        return re.split(r"\d|-|_bn", self.network)[0]

    @property
    def fitted(self) -> bool:
        """Whether the constants may be fitted on it: a family of timm that is held out elsewhere is so here."""
        if self.card.name in ONLY_SCORED:
            return False
        return self.family in ("bert", "waveglow") or not measured.held_out(FAMILIES[self.family])

    @property
    def seconds(self) -> float:
        """Of a step."""
        if self.unit == "ms":
            return self.figure * 1e-3
        return self.batch * (PIECE if self.network == "waveglow" else 1) / self.figure


class Whole(NamedTuple):
    """A step as ``fit`` takes it."""

    recording: Recording
    family: str
    batch: int


def others() -> list[Other]:
    """All rows but those that the host or the data bound."""
    rows = measured.rows_of(Path(__file__).with_name("others.tsv"), "\t")
    known = {**cards(), **_TITANS}
    found = [
        Other(
            row["network"], int(row["batch"]), known[row["card"]], row["precision"], float(row["figure"]), row["unit"]
        )
        for row in rows
    ]
    times = {(each.network, each.batch, each.card.name, each.precision): each.seconds for each in found}

    def computes(one: Other) -> bool:
        full, half = (times.get((one.network, one.batch, one.card.name, each)) for each in ("full", "half"))
        return full is None or half is None or one.unit != "ms" or full > BOUND * half

    return [each for each in found if computes(each)]


def whole(row: Other) -> Whole:
    """The step of a row."""
    operations, updates = _step(row.network, row.batch, row.precision)
    recording = Recording(operations, updates, samples=row.batch, tf32=True, tf32_convolutions=True)
    return Whole(recording, row.family, row.batch)


@cache
def _step(network: str, batch: int, precision: str) -> tuple[tuple[Operation, ...], tuple[Update, ...]]:
    made, inputs, loss = _MAKERS.get(network, _timm)(network, batch)
    if precision == "half":
        made, given = made.half(), inputs

        def inputs() -> tuple[Any, ...]:
            return tuple(each.half() if each.is_floating_point() else each for each in given())

    rows, numbers = networks.trace(made, inputs, loss, mixed=False)
    operations, total = tuple(map(operation_of, rows)), sum(numbers)
    if network in _MAKERS:
        fused = network != "waveglow"
        return operations, (Update("Adam", len(numbers), total, 4, fused, False),)
    # these benchmarks set gradients to zero and add to them, and update nothing
    size = total * (2 if precision == "half" else 4)
    adding = Operation("add_", POINTWISE, "backward", 0.0, 2.0 * size, 2.0 * size, 32, (), 0.0)
    return (*operations, adding), ()


Made = tuple[nn.Module, Callable[[], tuple[Any, ...]], Callable[[Any], Tensor]]


def _timm(network: str, batch: int) -> Made:
    def loss(found: Tensor) -> Tensor:
        return functional.cross_entropy(found.float(), torch.zeros(batch, dtype=torch.long))

    return networks.timm_of().create_model(network), lambda: (torch.empty(batch, 3, 224, 224),), loss


class _Layer(nn.Module):
    """A layer of BERT, its attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, given: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = given.shape

        def split(made: Tensor) -> Tensor:
            return made.view(batch, length, self.heads, -1).transpose(1, 2)

        query, key, value = (split(layer(given)) for layer in (self.queries, self.keys, self.values))
        shares = query @ key.transpose(2, 3) / math.sqrt(width // self.heads) + mask
        mixed = functional.dropout(functional.softmax(shares, -1), 0.1) @ value
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        seen = self.norms[0](given + functional.dropout(self.out(mixed), 0.1))
        found: Tensor = self.norms[1](seen + functional.dropout(self.narrow(functional.gelu(self.wide(seen))), 0.1))
        return found


class _Bert(nn.Module):
    """Devlin et al. 2018, with a head that finds a span."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(_Layer(width, width // 64) for _ in range(layers))
        self.span = nn.Linear(width, 2)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        seen = self.words(words) + self.places.weight[: words.shape[1]]
        seen = functional.dropout(self.norm(seen), 0.1)
        for layer in self.layers:
            seen = layer(seen, mask)
        found: Tensor = self.span(seen)
        return found


def _bert(network: str, batch: int) -> Made:
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, SEQUENCE, dtype=torch.long), torch.zeros(batch, 1, 1, SEQUENCE)

    def loss(found: Tensor) -> Tensor:
        return functional.cross_entropy(found.float(), torch.zeros(batch, 2, dtype=torch.long))

    large = network == "bert-large"
    return _Bert(1024 if large else 768, 24 if large else 12), inputs, loss


class _Flow(nn.Module):
    """A coupling layer of WaveGlow: what it makes of half of the channels is from eight dilated convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.part = channels // 2
        self.mixing = nn.Conv1d(channels, channels, 1, bias=False)
        self.first, self.last = nn.Conv1d(self.part, 512, 1), nn.Conv1d(512, channels, 1)
        self.sounds = nn.Conv1d(640, 2 * 512 * 8, 1)
        dilations = [2**at for at in range(8)]
        self.wide = nn.ModuleList(nn.Conv1d(512, 1024, 3, padding=each, dilation=each) for each in dilations)
        self.out = nn.ModuleList(nn.Conv1d(512, 1024 if at < 7 else 512, 1) for at in range(8))

    def forward(self, sound: Tensor, melody: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.mixing(sound).split([self.part, self.part], 1)
        seen, given = self.first(one), self.sounds(melody).chunk(8, 1)
        skipped = torch.zeros_like(seen)
        for at, (wide, out) in enumerate(zip(self.wide, self.out, strict=True)):
            waves, gates = (wide(seen) + given[at]).chunk(2, 1)
            made = out(torch.tanh(waves) * torch.sigmoid(gates))
            if at < 7:
                seen = seen + made[:, :512]
            skipped = skipped + made[:, -512:]
        moved, scale = self.last(skipped).chunk(2, 1)
        return torch.cat([one, other * torch.exp(scale) + moved], 1), scale


class _WaveGlow(nn.Module):
    """Prenger et al. 2018: twelve flows over groups of eight samples, two channels set aside after every fourth."""

    def __init__(self) -> None:
        super().__init__()
        self.longer = nn.ConvTranspose1d(80, 80, 1024, 256)
        self.flows = nn.ModuleList(_Flow(8 - 2 * (at // 4)) for at in range(12))

    def forward(self, sound: Tensor, melody: Tensor) -> tuple[Tensor, ...]:
        long = self.longer(melody)[:, :, : sound.shape[1]]
        grouped = long.unfold(2, 8, 8).permute(0, 2, 1, 3).reshape(sound.shape[0], -1, 640).transpose(1, 2)
        seen = sound.unfold(1, 8, 8).transpose(1, 2)
        found = []
        for at, flow in enumerate(self.flows):
            if at in (4, 8):
                found.append(seen[:, :2])
                seen = seen[:, 2:]
            seen, scale = flow(seen, grouped)
            found.append(scale)
        return (*found, seen)


def _waveglow(network: str, batch: int) -> Made:
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, PIECE), torch.zeros(batch, 80, PIECE // 256 + 1)

    def loss(found: tuple[Tensor, ...]) -> Tensor:
        return sum(((each.float() ** 2).sum() for each in found), start=torch.zeros(()))

    return _WaveGlow(), inputs, loss


_MAKERS: dict[str, Callable[[str, int], Made]] = {"bert-base": _bert, "bert-large": _bert, "waveglow": _waveglow}
