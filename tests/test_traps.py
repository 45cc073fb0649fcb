"""Each trap that is known has a fixture that shows it: ``fixtures/traps.tsv`` says which."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from memory import ENTRY, ROOT, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

FIXTURES = Path(__file__).parent.parent / "fixtures"
CODEMODS = {codemod.name: codemod for codemod in registry.load()}
TRAPS = 19


@dataclass(frozen=True)
class Row:
    """One line of the table: where the clause comes from, what it says, and the fixture that shows it."""

    source: str
    clause: str
    codemod: str
    fixture: str


def rows() -> list[Row]:
    with (FIXTURES / "traps.tsv").open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file, delimiter="\t")]


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.clause} ({row.fixture})")
def test_the_fixture_of_a_trap_is_one_that_the_tests_run(row: Row) -> None:
    assert re.fullmatch(r"idioms \d+|catalogue [a-z0-9-]+|contract", row.source)
    assert row.clause.strip()
    if row.fixture == "-":
        assert row.codemod not in CODEMODS, "this codemod exists now: write the fixture"
        return
    path = FIXTURES / row.fixture
    assert path.exists()
    kind = re.search(r"\.(in|noop|refuse)(\.py)?$", row.fixture)
    assert kind is not None
    assert path.parent.name.replace("_", "-") == row.codemod
    assert row.codemod in CODEMODS
    if kind[1] == "in":
        assert path.with_name(path.name.replace(".in", ".out", 1)).exists()


def test_no_row_is_there_twice() -> None:
    assert len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("number", range(1, TRAPS + 1))
def test_every_trap_has_a_row(number: int) -> None:
    assert [row for row in ROWS if row.source == f"idioms {number}"]


@pytest.mark.parametrize("name", list(CODEMODS))
def test_every_codemod_has_what_the_catalogue_says_of_it_and_something_that_stays_untouched(name: str) -> None:
    own = [row.fixture for row in ROWS if row.source == f"catalogue {name}"]
    assert own
    assert any(".noop" in fixture or ".refuse" in fixture for fixture in own)


def messages(name: str, texts: dict[Path, str]) -> list[str]:
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace(texts), [CODEMODS[name]], Target(), Risk.EQUIVALENT)
    return [each.message for each in rewriting.report.findings]


def test_what_a_setting_from_outside_may_change_is_not_said_as_a_fact() -> None:
    text = (FIXTURES / "throttle_logging" / "settings_from_outside.refuse.py").read_text("utf-8")
    (said,) = messages("throttle-logging", {ENTRY: text})
    assert "in every step (if the interval on line 23 stays 1) to show `loss.item()`" in said


def test_a_copy_in_another_file_is_named_with_its_file() -> None:
    step = """\
import torch
from torch import nn


def train(model, loader, optimizer):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    entry = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

from engine import train
from photos import PhotoFolder

loader = DataLoader(PhotoFolder("train"), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    train(model, loader, optimizer)
"""
    (said,) = messages("pin-memory", {ENTRY: entry, ROOT / "engine.py": step})
    assert said.endswith("(line 7 of engine.py)")
