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
        ("self.x = []\nx = self.x\nfor i in range(count):\n    x.append(i)", "len(self.x)"),
        ("self.x = []\nfor i in range(count):\n    self.x.append(i)\nx = self.x or [0]\nx.append(0)", "len(self.x)"),
        ("self.x = []\nif numbers:\n    return\nfor i in range(count):\n    self.x.append(i)", "len(self.x)"),
        ("for j in range(3):\n    self.x = []\n    for i in range(count):\n        self.x.append(i)", "len(self.x)"),
        ("x = []\nfor i in range(count):\n    x.append(i)\nself.x = list(x)\nx.append(i)", "len(self.x)"),
        ("x = []\nfor i in range(count):\n    x.append(i)\nself.n = len(x)\nx.append(i)", "self.n"),
        ("x = [1, 2, 3]\nx.pop()\nself.x = tuple(x)", "len(self.x)"),
        ("self.x = list({1, 1, 2})", "len(self.x)"),
        ("self.x = np.zeros(count)\nx = self.x\nx.shape = (2, 30)\nself.x.shape = (2, 30)", "len(self.x)"),
        ("x = torch.zeros(count)\nself.x = x\nx.unsqueeze_(0)", "len(self.x)"),
        ("self.x = torch.zeros(count)\nself.__dict__.update(numbers)", "len(self.x)"),
        ("self.n = count\nfor k, v in numbers.items():\n    setattr(self, k, v)", "self.n"),
        ("self.n = count\nself.n = 9", "self.n"),
        ("self.x = np.array([1, 2, 3], ndmin=2)", "len(self.x)"),
        ("i = np.arange(2)\nself.x = np.zeros((count, 4, 5, 6))[:, i, :, i]", "len(self.x)"),
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
        ("data = Data(args.count) + Data(args.count)", "data", None),
        ("", "Data(args.count) + Data(args.count)", None),
        ("data = Data(args.count)", "[each for each in data]", None),
        ("data = [1, 2, 3]\ndata.pop()", "data", None),
        ("data = Subset(Data(args.count), list(range(30)))\ndata.indices = data.indices[:7]", "data", None),
        ("data = Subset(Data(args.count), list(range(30)))\ndata.indices.pop()", "data", None),
        ("data = TensorDataset(torch.zeros(60))\ndata.tensors = (torch.zeros(7),)", "data", None),
        ("exec(open('settings.py').read())", "Data(args.count)", None),
        ("globals()['args'] = None", "Data(args.count)", None),
        ("args.count = 9\ndata = Subset(Data(60), range(args.count))\nargs.count = 30", "data", None),
        ("args = parser.parse_args(['--count', '7'])", "Data(args.count)", None),
        ("args = parser.parse_args(['--share', '0.5'])", "Data(args.count)", 60),
        ("for name, value in json.load(open('a')).items():\n    setattr(args, name, value)", "Data(args.count)", None),
        (
            "class Half(Data):\n    def half(self):\n        return 1",
            "Subset(Half(9), range(len(Half(9).half())))",
            None,
        ),
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


@pytest.mark.parametrize(
    "changed",
    [
        "class Part(Data):\n    def __new__(cls, count):\n        return Data(3)",
        "def cut(cls):\n    return cls\n\n\n@cut\nclass Part(Data):\n    pass",
        "class Part(Data, IterableDataset):\n    pass",
    ],
)
def test_what_a_class_does_besides(changed: str) -> None:
    body, size = "self.x = [i for i in range(count)]", "len(self.x)"
    assert length(body, size, "class Part(Data):\n    pass", "Part(60)") == 60
    assert length(body, size, f"from torch.utils.data import IterableDataset\n\n\n{changed}", "Part(60)") is None


@pytest.mark.parametrize(
    ("main", "data", "expected"),
    [
        ("graphs = TUDataset('data', name='MUTAG').shuffle()", "graphs[0.9:]", 19),
        ("graphs = TUDataset('data', 'MUTAG')", "graphs[:0.9]", 169),
        ("graphs = TUDataset('data', 'ENZYMES')\nn = (len(graphs) + 9) // 10", "graphs[n : 2 * n]", 60),
        ("graphs = TUDataset('data', 'ENZYMES')\nrest = graphs[100:].shuffle()", "rest", 500),
        ("graphs = TUDataset('data', 'ENZYMES', transform=print)", "graphs", 600),
        # it is not told which, or graphs are left out
        ("graphs = TUDataset('data', input())", "graphs", None),
        ("graphs = TUDataset('data', 'Mine')", "graphs", None),
        ("graphs = TUDataset('data', 'MUTAG', cleaned=True)", "graphs", None),
        ("graphs = TUDataset('data', 'MUTAG', pre_filter=len)", "graphs", None),
        # a name that stands for the whole here and for a part there
        ("graphs = TUDataset('data', 'MUTAG')\ngraphs = graphs[unknown():]", "graphs", None),
        ("graphs = TUDataset('data', 'MUTAG')", "graphs[torch.randperm(9)]", None),
        ("graphs = TUDataset('data', 'MUTAG')", "graphs[:0.9, 1:]", None),
        # fractions are PyTorch Geometric's affair
        ("graphs = torch.zeros(188, 2)", "TensorDataset(graphs[0.9:])", None),
    ],
)
def test_published_graphs(main: str, data: str, expected: int | None) -> None:
    brought = f"from torch_geometric.datasets import TUDataset\n{main}"
    assert length("pass", "count", brought, data) == expected
