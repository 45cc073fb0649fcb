"""Each trap that is known has a case that shows it: ``fixtures/traps.tsv`` says which."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import cases
import pytest
from memory import ENTRY, ROOT, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target

CODEMODS = {codemod.name: codemod for codemod in registry.load()}
TRAPS = 19


@dataclass(frozen=True)
class Row:
    """One line of the table: where the clause comes from, what it says, and the cases that show it."""

    source: str
    clause: str
    codemod: str
    cases: str


def rows() -> list[Row]:
    with (cases.FIXTURES / "traps.tsv").open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file, delimiter="\t")]


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.clause} ({row.codemod})")
def test_the_cases_of_a_trap_are_ones_that_the_tests_run(row: Row) -> None:
    assert re.fullmatch(r"idioms \d+|catalogue [a-z0-9-]+|contract", row.source)
    assert row.clause.strip()
    if row.cases == "-":
        assert row.codemod not in CODEMODS, "this codemod exists now: write the case"
        return
    assert row.codemod in CODEMODS
    for name in row.cases.split():
        assert cases.case(f"{row.codemod.replace('-', '_')}/{name}")


def test_no_row_is_there_twice() -> None:
    assert len({(row.source, row.clause, row.codemod) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len(set(row.cases.split())) == len(row.cases.split())


@pytest.mark.parametrize("number", range(1, TRAPS + 1))
def test_every_trap_has_a_row(number: int) -> None:
    assert [row for row in ROWS if row.source == f"idioms {number}"]


@pytest.mark.parametrize("name", list(CODEMODS))
def test_every_codemod_has_what_the_catalogue_says_of_it_and_something_that_stays_untouched(name: str) -> None:
    own = [case for row in ROWS if row.source == f"catalogue {name}" for case in row.cases.split()]
    assert own
    assert any(cases.case(f"{name.replace('-', '_')}/{case}").kind != "rewrite" for case in own)


def messages(name: str, texts: dict[Path, str]) -> list[str]:
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace(texts), [CODEMODS[name]], Target(), Risk.EQUIVALENT)
    return [each.message for each in rewriting.report.findings]


def test_what_a_setting_from_outside_may_change_is_not_said_as_a_fact() -> None:
    text = cases.case("throttle_logging/settings_from_outside").text
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
