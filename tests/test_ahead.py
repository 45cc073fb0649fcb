"""What opens the way for others is told with what it opens, at the places of today."""

from __future__ import annotations

from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.assumptions import ALL_MOVED
from turbofix.engine import pipeline
from turbofix.engine.pipeline import FileReport, Trust, name_of
from turbofix.findings import Examined, Risk
from turbofix.training.model import Target

CPU = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

from data import Pictures

model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 4096), nn.ReLU(), nn.Linear(4096, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Pictures(), batch_size=64, shuffle=True)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(10):
    total = 0.0
    for pictures, classes in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(pictures), classes)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total)
"""
DATA = """\
import numpy as np
import torch


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, index):
        return torch.from_numpy(np.load(f"{index}.npy")) * torch.rand(1), index % 10
"""


def workspace(text: str = CPU) -> MemoryWorkspace:
    return MemoryWorkspace({ENTRY: text, ENTRY.with_name("data.py"): DATA})


def analyse(text: str = CPU) -> FileReport:
    return pipeline.analyze(ENTRY, workspace(text), registry.load(), Target())


def line_of(code: str) -> int:
    return next(number for number, line in enumerate(CPU.splitlines(), 1) if code in line)


def offered(report: FileReport) -> dict[str, Examined]:
    return {each.codemod: each for each in report.findings if each.fixable}


def test_a_program_on_the_cpu_is_told_what_is_slow_on_a_gpu() -> None:
    found = offered(analyse())
    assert found["use-cuda"].assumes == (ALL_MOVED,)
    read = found["defer-item"]
    assert (read.site.line, read.certainty) == (line_of("loss.item()"), "likely")
    assert ALL_MOVED in read.assumes
    assert found["fused-optimizer"].site.line == line_of("torch.optim.Adam")
    assert found["autocast"].site.line == line_of("model(pictures)")
    loader = found["pin-memory"]
    assert loader.site.line == line_of("DataLoader(Pictures")
    assert "(a line that use-cuda writes)" in loader.message  # there is none today where the copies will be made


def test_what_is_written_by_the_way_is_no_place_of_today() -> None:
    assert "non-blocking" not in offered(analyse())  # its copies are those that use-cuda writes
    lines = CPU.count("\n")
    assert all(each.site.line <= lines for each in analyse().findings)


def test_what_is_offered_so_is_written_with_the_rest_and_not_before() -> None:
    report = analyse()
    likely = pipeline.apply(
        ENTRY, workspace(), registry.load(), Target(), Risk.EQUIVALENT, trust=Trust(likely=True), report=report
    )
    done = {name for stage in likely.stages for name in stage.names if name}
    assert {name_of(offered(report)[name]) for name in ("use-cuda", "fused-optimizer", "defer-item")} <= done
    assert not likely.void
    proven = pipeline.apply(ENTRY, workspace(), registry.load(), Target(), Risk.EQUIVALENT, report=report)
    assert not {"use-cuda", "fused-optimizer", "defer-item"} & {stage.codemod for stage in proven.stages}


def test_what_quotes_the_text_to_come_is_left_to_apply() -> None:
    text = CPU.replace("        total += loss.item()\n", "        total += classes.numpy().sum()\n")
    report = analyse(text)
    assert "use-cuda" in offered(report)
    assert not [each.message for each in report.findings if ".cpu()" in each.message]


def test_what_is_slow_on_a_gpu_alone_says_what_it_waits_for() -> None:
    assert offered(analyse())["defer-item"].message.startswith("after `use-cuda`: the host waits for `loss.item()`")
    chosen = registry.select(registry.load(), ["defer-item"])
    alone = pipeline.analyze(ENTRY, workspace(), chosen, Target(), others=registry.load())
    assert [each.why_not for each in alone.findings] == ["it waits for `use-cuda`, which was not chosen"]
    unwanted = registry.select(registry.load(), ["defer-item"], ["use-cuda"])
    assert not pipeline.analyze(ENTRY, workspace(), unwanted, Target()).findings
