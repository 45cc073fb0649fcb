"""About how many samples a loader's data have."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from turbofix.training.model import Target
from turbofix.training.program import analyse

ROOT = Path("/project")

HEAD = """
import argparse
import random
from contextlib import suppress
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=60)
parser.add_argument("--share", type=float, default=0.25)
args = parser.parse_args()


def unknown():
    return int(input())


class Data(Dataset):
    def __init__(self, count, numbers=None):
{body}

    def __len__(self):
        return {length}

    def __getitem__(self, index):
        return index


{main}
loader = DataLoader({data}, batch_size=4)
for batch in loader:
    print(batch)
"""


def length(body: str, size: str, main: str = "", data: str = "Data(args.count)") -> int | None:
    text = HEAD.format(
        body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8),
        length=size,
        main=textwrap.dedent(main),
        data=data,
    )
    found = analyse(ROOT / "train.py", ROOT, {ROOT / "train.py": text}.get, Target())
    assert found is not None
    (loader,) = found.loaders
    return loader.dataset.length


@pytest.mark.parametrize(
    ("body", "size", "expected"),
    [
        ("self.x = torch.empty(count, 3, dtype=torch.uint8)", "len(self.x)", 60),
        ("self.n = count * 2", "self.n", 120),
        ("self.x = torch.arange(3, count)", "len(self.x)", 57),
        # not known
        ("self.x = []\nfor i in range(count):\n    if i % 7:\n        self.x.append(i)", "len(self.x)", None),
        ("self.x = []\nfor i in range(unknown()):\n    self.x.append(i)", "len(self.x)", None),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nself.x.pop()", "len(self.x)", None),
        ("self.x = [i for i in range(count) if i % 3]", "len(self.x)", None),
        ("self.x = [1, 2]\nself.x.extend(numbers)", "len(self.x)", None),
        ("self.x = np.zeros(count)\nself.x = self.x[self.x > 0]", "len(self.x)", None),
        ("count = unknown()\nself.x = np.zeros(count)", "len(self.x)", None),
        ("self.x = torch.zeros(3, count).view(-1)", "len(self.x)", None),
        ("self.x = np.loadtxt('numbers.txt')[:count]", "len(self.x)", None),
        ("self.x = self", "len(self.x)", None),
        ("self.x = Data(count)", "len(self.x)", None),
    ],
)
def test_what_the_code_says(body: str, size: str, expected: int | None) -> None:
    assert length(body, size) == expected


@pytest.mark.parametrize(
    ("main", "data", "expected"),
    [
        ("train, rest = random_split(Data(args.count), [0.5, 0.5])", "rest", None),
        ("", "Subset(Data(args.count), np.nonzero(np.zeros(9))[0])", None),
        ("args = parser.parse_args(['--count', '7'])", "Data(args.count)", None),
        ("", "Data(0, torch.zeros(8, 2))", 8),
    ],
)
def test_parts_of_data(main: str, data: str, expected: int | None) -> None:
    body = "self.x = [i for i in range(count)]" if "Data(0" not in data else "self.x = numbers"
    assert length(body, "len(self.x)", main, data) == expected


def test_who_counts_by_iterating_has_no_length() -> None:
    part = "from torch.utils.data import IterableDataset\n\n\nclass Part(Data, IterableDataset):\n    pass"
    assert length("self.x = [i for i in range(count)]", "len(self.x)", part, "Part(60)") is None
