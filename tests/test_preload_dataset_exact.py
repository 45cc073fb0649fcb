"""``preload-dataset`` promises the same batches: in the same order, of the same bits, laid out alike."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the programs need torch")

PROGRAM = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randn(6, 100).t(), torch.arange(100)
order = torch.Generator().manual_seed(5)
{data}
model = nn.Linear(6, 100).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []

for epoch in range(3):
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((inputs.stride(), inputs.tolist(), labels.tolist(), loss.item()))
    seen.append((len(loader), torch.rand(1).item()))
"""

WHOLE = "data = TensorDataset(x, y)\nloader = DataLoader(data, {})"
PART = "data, _ = random_split(TensorDataset(x, y), [70, 30])\nloader = DataLoader(data, {})"


@pytest.mark.parametrize("data", [WHOLE, PART], ids=["whole", "part"])
@pytest.mark.parametrize(
    "arguments",
    [
        "batch_size=16, shuffle=True",
        "batch_size=16, shuffle=True, drop_last=True",
        "batch_size=16",
        "batch_size=16, shuffle=True, generator=order",
        "16, True, num_workers=2, pin_memory=False",
    ],
)
def test_the_batches_are_the_same(data: str, arguments: str) -> None:
    before = PROGRAM.format(data=data.format(arguments))
    after = rewritten(before, Risk.EXACT)
    assert "loader = preloaded(DataLoader(data, " in after
    assert ran(after) == ran(before)


def test_workers_that_stay_draw_another_order() -> None:
    before = PROGRAM.format(data=WHOLE.format("16, True, num_workers=2, persistent_workers=True"))
    assert rewritten(before, Risk.EXACT) == before
    after = rewritten(before, Risk.EQUIVALENT)
    assert "loader = preloaded(DataLoader(data, " in after
    assert ran(after) != ran(before)


def rewritten(program: str, risk: Risk) -> str:
    codemods = [each for each in registry.load() if each.name == "preload-dataset"]
    trust, held = pipeline.Trust(likely=True), MemoryWorkspace({ENTRY: program})
    return pipeline.apply(ENTRY, held, codemods, Target(), risk, trust=trust).texts.get(ENTRY, program)


def ran(program: str) -> object:
    names: dict[str, object] = {"__name__": "program"}
    exec(compile(program, "program.py", "exec"), names)
    return names["seen"]


def test_a_loader_whose_sampler_cuts_the_batches_is_shortened_by_samples() -> None:
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

    from turbofix.verify.probe.shorten import entries

    samples = list(range(100))
    cut = BatchSampler(SequentialSampler(samples), 16, drop_last=False)
    assert entries(DataLoader(samples, batch_size=16)) == 100
    assert entries(DataLoader(samples, batch_size=None, sampler=cut)) == 100
    assert entries(DataLoader(samples, batch_size=None)) == 100
    assert entries(DataLoader(samples, batch_sampler=list(cut))) == 7


def test_the_loader_that_reads_a_data_set_to_keep_it_is_known_by_its_sampler_and_generator() -> None:
    from torch import Generator
    from torch.utils.data import DataLoader

    from turbofix.verify.probe.shorten import reads_once

    samples = list(range(8))
    assert reads_once(DataLoader(samples, 2, sampler=range(8), generator=Generator()))
    assert not reads_once(DataLoader(samples, 2, sampler=range(8)))
    assert not reads_once(DataLoader(samples, 2, shuffle=True, generator=Generator()))
    assert not reads_once(DataLoader(samples, 2, generator=Generator()))


def test_workers_count_that_only_read_a_data_set_to_keep_it() -> None:
    program = """
from torch import Generator
from torch.utils.data import DataLoader
from turbofix.verify.probe import neutral

workers, batches = [], []
neutral.watch_loaders(
    neutral.Chance(0), lambda *batch: batches.append(batch), print, lambda one: workers.append(one.num_workers), bool
)
list(DataLoader(list(range(8)), 2, sampler=range(8), generator=Generator(), num_workers=1))
print(workers, batches)
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[1] []\n"


def test_what_is_made_of_files_is_left_to_another_codemod() -> None:
    data = (
        'from torchvision import datasets, transforms\nshape = transforms.ToTensor()\ndata = datasets.ImageFolder("x", '
    )
    text = PROGRAM.format(data=f"{data}transform=shape)\nloader = DataLoader(data, batch_size=16, shuffle=True)")
    both = [each for each in registry.load() if each.name in ("preload-dataset", "cache-preprocessing")]
    report = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), both, Target())
    said = {each.codemod: each.why_not or "" for each in report.findings}
    assert said["preload-dataset"].startswith("its items are made of files or texts: `cache-preprocessing` tells")
    assert not said["cache-preprocessing"]


NUMBERS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randn(100, 6, device=device), torch.arange(100, device=device)
model = nn.Linear(6, 100).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []

for epoch in range(3):
    for number, chosen in enumerate({loader}):
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((number, chosen.tolist(), loss.item()))
    seen.append(torch.rand(1).item())
"""


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(range(len(x)), 16, shuffle=True)",
        "DataLoader(range(x.size(0)), batch_size=32, shuffle=True, drop_last=True)",
        "DataLoader(range(100), 30)",
        "DataLoader(dataset=range(96), batch_size=32)",
    ],
)
def test_numbers_are_cut_out_of_one_tensor(loader: str) -> None:
    text = NUMBERS.format(loader=loader)
    after = rewritten_numbers(text)
    assert f"numbered({loader})" in after
    then: dict[str, object] = {}
    exec(compile(after, "train.py", "exec"), then)
    before: dict[str, object] = {}
    exec(compile(text, "train.py", "exec"), before)
    assert before["seen"] == then["seen"]


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(range(100))",
        "DataLoader(range(100), 16, num_workers=2)",
        "DataLoader(range(100), 16, collate_fn=lambda rows: torch.tensor(rows))",
        "DataLoader(list(range(100)), 16)",
        "reversed(list(DataLoader(range(100), 16)))",
    ],
)
def test_other_loaders_of_numbers_stay(loader: str) -> None:
    assert "numbered" not in rewritten_numbers(NUMBERS.format(loader=loader))


def rewritten_numbers(text: str) -> str:
    (codemod,) = (each for each in registry.load() if each.name == "preload-dataset")
    made = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: text}), [codemod], Target(), Risk.EXACT)
    assert not made.report.notes
    return made.texts.get(ENTRY, text)
