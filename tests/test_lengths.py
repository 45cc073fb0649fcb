"""How many samples a loader's data have, as far as the text leaves no doubt; and that it says nothing where it does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from turbofix.program.model import Target
from turbofix.program.steps import analyse

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
        ("self.x = np.empty((count, 3))\nfor i in range(count):\n    self.x[i] = i", "len(self.x)", 60),
        ("self.x = np.zeros(shape=(2 * count, 3))", "self.x.shape[0]", 120),
        ("self.x = torch.zeros(count, 2)", "self.x.size(0) // 2", 30),
        ("rng = np.random.default_rng(0)\nself.x = rng.integers(0, 9, count)", "len(self.x)", 60),
        ("rng = np.random.RandomState(0)\nself.x = rng.randint(0, 9, size=(count, 2))", "len(self.x)", 60),
        ("self.x = torch.randint(0, 9, (count,)).tolist()", "len(self.x)", 60),
        ("self.x = np.minimum(np.random.zipf(1.2, count), 9) - 1\nself.x[1::2] = 0", "(len(self.x) - 1) // 7", 8),
        ("self.x = torch.from_numpy(np.random.randn(count, 2).astype(np.float32))[:50, 1:]", "len(self.x)", 50),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)", "len(self.x)", 60),
        ("self.x = []\nfor i in range(count):\n    for j in range(2):\n        self.x.append(i)", "len(self.x)", 120),
        ("self.x, self.y = [], []\nself.z = []\nfor i in tqdm(range(count)):\n    self.z.append(i)", "len(self.z)", 60),
        ("x = []\nfor i in range(count):\n    x.append(i)\nrandom.shuffle(x)\nself.x = x", "len(self.x)", 60),
        ("y = np.arange(count)\nself.x = []\nfor a, b in zip(y, y.tolist()):\n    self.x.append(a)", "len(self.x)", 60),
        ("self.x = [i for i in range(count)] + [0] * 3", "len(self.x)", 63),
        ("self.n = count * 2", "self.n", 120),
        ("self.x = []\nwith torch.no_grad():\n    for i in range(count):\n        self.x.append(i)", "len(self.x)", 60),
        ("n = int(count * args.share)\nself.x = list(range(n))", "len(self.x)", 15),
        ("self.x = torch.arange(3, count)", "len(self.x)", 57),
    ],
)
def test_what_the_code_says(body: str, size: str, expected: int) -> None:
    assert length(body, size) == expected


@pytest.mark.parametrize(
    ("body", "size"),
    [
        # more or fewer than the loop's rounds
        ("self.x = []\nfor i in range(count):\n    if i % 7:\n        self.x.append(i)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    if i == 50:\n        break\n    self.x.append(i)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    if i == 5:\n        continue\n    self.x.append(i)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    with open(i):\n        if i: self.x.append(i)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    with suppress(OSError):\n        self.x.append(i)", "len(self.x)"),
        ("self.x = []\ntry:\n    for i in range(count):\n        self.x.append(i)\nfinally:\n    pass", "len(self.x)"),
        ("n = count\nwhile n < 9999:\n    n = n * n + n * n\nself.x = np.zeros(n)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    for j in range(i):\n        self.x.append(j)", "len(self.x)"),
        ("self.x = []\nwhile len(self.x) < unknown():\n    self.x.append(0)", "len(self.x)"),
        ("self.x = [i for i in range(count) if i % 3]", "len(self.x)"),
        ("self.x = []\nfor i in range(unknown()):\n    self.x.append(i)", "len(self.x)"),
        # made longer or shorter elsewhere
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nself.x.pop()", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nself.x += [0]", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\ndel self.x[::2]", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nself.x[3:] = []", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nself.fill(self.x)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nself.y = self.x\nself.z = self.x", "len(self.x)"),
        ("self.x = np.zeros(count)\nself.x = self.x[self.x > 0]", "len(self.x)"),
        ("self.x = np.zeros(count)\nself.x.resize(3)", "len(self.x)"),
        ("self.x = np.zeros(count)\nsetattr(self, 'x', np.zeros(3))", "len(self.x)"),
        ("count = unknown()\nself.x = np.zeros(count)", "len(self.x)"),
        # another dimension, or a number that is not known
        ("self.x = np.zeros(count)[np.random.permutation(count) > 4]", "len(self.x)"),
        ("self.x = np.zeros((3, count)).T", "len(self.x)"),
        ("self.x = torch.zeros(3, count).view(-1)", "len(self.x)"),
        ("self.x = np.zeros(count) + np.zeros((unknown(), 60))", "len(self.x)"),
        ("self.x = np.zeros(count) @ np.zeros((60, 4))", "len(self.x)"),
        ("self.x = np.loadtxt('numbers.txt')[:count]", "len(self.x)"),
        ("self.x = torch.zeros(count, 2).unique(dim=0)", "len(self.x)"),
    ],
)  # fmt: skip
def test_no_guesses(body: str, size: str) -> None:
    assert length(body, size) is None


@pytest.mark.parametrize(
    ("main", "data", "expected"),
    [
        ("train, rest = random_split(Data(args.count), [50, 10])", "rest", 10),
        (
            """
            data = Data(args.count)
            n_rest = int(len(data) * args.share)
            n_train = len(data) - n_rest
            train, rest = random_split(data, [n_train, n_rest], generator=torch.Generator())
            """,
            "train",
            45,
        ),
        ("train, rest = random_split(Data(args.count), [0.5, 0.5])", "rest", None),
        ("train, rest = random_split(Data(args.count), [50, 10])\ntrain = rest", "train", None),
        ("parts = random_split(Data(args.count), [50, 10])", "parts[0]", None),
        ("x = torch.zeros(args.count, 3)", "TensorDataset(x[:32], x[:32])", 32),
        ("x = torch.zeros(args.count, 3)\nx = x[x[:, 0] > 0]", "TensorDataset(x, x)", None),
        ("", "Subset(Data(args.count), range(0, 30, 2))", 15),
        ("", "Subset(Data(args.count), np.nonzero(np.zeros(9))[0])", None),
        ("data = Data(args.count)\ndata.x = data.x[:7]", "data", None),
        ("data = Data(args.count)\nfor i in range(9):\n    data.x.append(i)", "data", None),
    ],
)
def test_parts_of_data(main: str, data: str, expected: int | None) -> None:
    assert length("self.x = [i for i in range(count)]", "len(self.x)", main, data) == expected


GIVEN = """
def numbers(count, start=0):
    found = []
    for i in range(start, count):
        found.append(i)
    return found


def some(count):
    found = []
    for i in range(count):
        if i % 3:
            found.append(i)
    return found
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("numbers(30)", 30),
        ("numbers(count=args.count, start=4)", 56),
        ("np.asarray(numbers(8)) * 2", 8),
        ("some(30)", None),
        ("numbers(*[30])", None),
    ],
)
def test_a_list_that_is_given(given: str, expected: int | None) -> None:
    assert length("self.x = numbers", "len(self.x)", GIVEN, f"Data(0, {given})") == expected
    assert length("self.x = numbers", "len(self.x)", f"{GIVEN}\nx = {given}", "Data(0, numbers=x)") == expected
    assert length("self.x = numbers\nself.x.append(0)", "len(self.x)", GIVEN, f"Data(0, {given})") is None
    assert length("numbers.append(0)\nself.x = numbers", "len(self.x)", GIVEN, f"Data(0, {given})") is None


def test_what_calls_itself_has_no_length() -> None:
    assert length("self.x = self", "len(self.x)") is None
    assert length("self.x = Data(count)", "len(self.x)") is None
