"""The networks of NVIDIA's table, built from what their papers say: sizes and layers, no code and no weights of theirs.

ResNet-50 (He et al. 2015), SSD with its first stages on 300 pixels (Liu et al. 2016), Jasper 10×5 with dense residuals
(Li et al. 2019; 16.7 s of sound at most, 100 frames a second), FastPitch (Łańcucki 2021; sentences of LJSpeech, 6.6 s
in the mean). A batch of sounds is as long as its longest: that is computed with, while a published rate counts the
frames that there are. Where gradients are added up over several batches, each pays for its part of the update.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.estimate.networks import timm_of

BOXES, CLASSES = 8732, 81
FRAMES = 566
LONGEST, LETTERS = 870, 187
"""Frames of a sentence of LJSpeech in the mean, and frames and letters of the longest."""


class Training(NamedTuple):
    """A model, its inputs and loss; ``last`` says channels-last, ``per_step`` what is counted in a batch of one.

    ``batches`` are those that one update is for.
    """

    model: nn.Module
    inputs: Callable[[], tuple[Any, ...]]
    loss: Callable[[Any], Tensor]
    last: bool = False
    per_step: int = 1
    batches: int = 1


def training(name: str, batch: int) -> Training:
    """The training of a row of the table, by the beginning of its name."""
    makers = {"ResNet-50": _resnet, "SSD300": _ssd, "FastPitch": _fastpitch, "Jasper": _jasper}
    batches = re.search(r"accumulation (\d+)", name)
    made = makers[name.split(" ", maxsplit=1)[0]](batch)
    return made._replace(batches=int(batches[1])) if batches else made


def _classes(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long)


def _resnet(batch: int) -> Training:
    def loss(found: Tensor) -> Tensor:
        return functional.cross_entropy(found.float(), _classes(batch))

    return Training(timm_of().create_model("resnet50"), lambda: (torch.empty(batch, 3, 224, 224),), loss, last=True)


class _Ssd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = timm_of().create_model("resnet50", output_stride=8)
        self.stem = nn.Sequential(whole.conv1, whole.bn1, whole.act1, whole.maxpool)
        self.stages = nn.Sequential(whole.layer1, whole.layer2, whole.layer3)
        for layer in whole.layer3.modules():  # the stage keeps the size that it is given, without dilation
            if isinstance(layer, nn.Conv2d) and layer.dilation != (1, 1):
                layer.dilation, layer.padding = (1, 1), (1, 1)
        sizes = [(1024, 256, 512, 2), (512, 256, 512, 2), (512, 128, 256, 2), (256, 128, 256, 1), (256, 128, 256, 1)]
        self.extra = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(given, between, 1, bias=False),
                nn.BatchNorm2d(between),
                nn.ReLU(),
                nn.Conv2d(between, made, 3, stride, 1 if stride == 2 else 0, bias=False),
                nn.BatchNorm2d(made),
                nn.ReLU(),
            )
            for given, between, made, stride in sizes
        )
        anchors = (4, 6, 6, 6, 4, 4)
        widths = (1024, 512, 512, 256, 256, 256)
        self.heads = nn.ModuleList(
            nn.Conv2d(width, count * (4 + CLASSES), 3, padding=1) for width, count in zip(widths, anchors, strict=True)
        )

    def forward(self, images: Tensor) -> Tensor:
        maps = [self.stages(self.stem(images))]
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        found = [
            head(each).reshape(images.shape[0], -1, 4 + CLASSES) for head, each in zip(self.heads, maps, strict=True)
        ]
        return torch.cat(found, 1)


def _ssd(batch: int) -> Training:
    def loss(found: Tensor) -> Tensor:
        places, classes = found[..., :4], found[..., 4:]
        target = _classes(batch * classes.shape[1])
        return functional.smooth_l1_loss(places.float(), torch.zeros_like(places).float()) + functional.cross_entropy(
            classes.reshape(-1, CLASSES).float(), target
        )

    return Training(_Ssd(), lambda: (torch.empty(batch, 3, 300, 300),), loss, last=True)


class _Jasper(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def layer(given: int, made: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
            padding = dilation * (kernel - 1) // 2
            convolution = nn.Conv1d(given, made, kernel, stride, padding, dilation, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm1d(made), nn.ReLU(), nn.Dropout(0.2))

        self.first = layer(64, 256, 11, stride=2)
        blocks = [(256, 11), (256, 11), (384, 13), (384, 13), (512, 17), (512, 17), (640, 21), (640, 21), (768, 25)]
        blocks.append((768, 25))
        self.blocks, self.residuals = nn.ModuleList(), nn.ModuleList()
        widths = [256]
        for made, kernel in blocks:
            self.blocks.append(nn.Sequential(*(layer(widths[-1] if not at else made, made, kernel) for at in range(5))))
            ways = (nn.Sequential(nn.Conv1d(each, made, 1, bias=False), nn.BatchNorm1d(made)) for each in widths)
            self.residuals.append(nn.ModuleList(ways))
            widths.append(made)
        self.last = nn.Sequential(layer(768, 896, 29, dilation=2), layer(896, 1024, 1), nn.Conv1d(1024, 29, 1))

    def forward(self, sound: Tensor) -> Tensor:
        seen = [self.first(sound)]
        for block, residuals in zip(self.blocks, self.residuals, strict=True):
            made = block(seen[-1])
            ways: Any = residuals
            for each, residual in zip(seen, ways, strict=True):
                made = made + residual(each)
            seen.append(made)
        found: Tensor = self.last(seen[-1])
        return found


def _jasper(batch: int) -> Training:
    def loss(found: Tensor) -> Tensor:
        return functional.log_softmax(found.float(), 1).mean()

    return Training(_Jasper(), lambda: (torch.empty(batch, 64, 1670),), loss)


class _Block(nn.Module):
    """Attention with one head of 64, and two convolutions of 3."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.out = nn.Linear(384, 192), nn.Linear(64, 384, bias=False)
        self.wide, self.narrow = nn.Conv1d(384, 1536, 3, padding=1), nn.Conv1d(1536, 384, 3, padding=1)
        self.norms = nn.ModuleList(nn.LayerNorm(384) for _ in range(2))

    def forward(self, given: Tensor) -> Tensor:
        query, key, value = self.queries(given).chunk(3, -1)
        shares = functional.dropout(functional.softmax(query @ key.transpose(1, 2) * 0.125, -1), 0.1)
        mixed = self.norms[0](given + functional.dropout(self.out(shares @ value), 0.1))
        made = self.narrow(functional.relu(self.wide(mixed.transpose(1, 2)))).transpose(1, 2)
        found: Tensor = self.norms[1](mixed + functional.dropout(made, 0.1))
        return found


class _FastPitch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(148, 384)
        self.encoder, self.decoder = (nn.Sequential(*(_Block() for _ in range(6))) for _ in range(2))
        self.predictors = nn.ModuleList(
            nn.ModuleList([nn.Conv1d(384, 256, 3, padding=1), nn.Conv1d(256, 256, 3, padding=1), nn.Linear(256, 1)])
            for _ in range(2)
        )
        self.out = nn.Linear(384, 80)

    def forward(self, letters: Tensor, places: Tensor) -> tuple[Tensor, list[Tensor]]:
        read = self.encoder(self.letters(letters))
        guesses = []
        predictors: Any = self.predictors
        for first, second, last in predictors:
            made = functional.relu(second(functional.relu(first(read.transpose(1, 2)))))
            guesses.append(last(made.transpose(1, 2)))
        stretched = read.gather(1, places[..., None].expand(-1, -1, 384))
        return self.out(self.decoder(stretched)), guesses


def _fastpitch(batch: int) -> Training:
    def loss(found: tuple[Tensor, list[Tensor]]) -> Tensor:
        made, guesses = found
        wrong = (made.float() ** 2).mean()
        return wrong + sum(((each.float() ** 2).mean() for each in guesses), start=torch.zeros(()))

    def inputs() -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, LETTERS, dtype=torch.long), torch.zeros(batch, LONGEST, dtype=torch.long)

    return Training(_FastPitch(), inputs, loss, per_step=FRAMES)
