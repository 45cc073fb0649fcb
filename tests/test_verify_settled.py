"""Assumptions that a run settles: where one is false the rewrite goes, by name; where it holds it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbofix import assumptions
from turbofix.assumptions import Assumption
from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, Verification, verify
from turbofix.verify.request import ASSUMPTION, LIKELY
from turbofix.verify.settle import FACTS, observed

FLAT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
WIDTH = 64


class Numbers(Dataset):
    def __init__(self):
        self.values = torch.randn(320, WIDTH)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index], self.values[index, :1]


model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1))
# the model is made
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = Numbers()
for epoch in range(EPOCHS):
    for x, y in DataLoader(data, batch_size=64):
        # a batch has come
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PICTURES = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(EPOCHS):
    loss = model(torch.randn(4, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ON_GPU = """device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = model.to(device)
optimizer"""

PROCESS = """import multiprocessing
helper = multiprocessing.get_context("fork").Process(target=print)
helper.start()
helper.join()
optimizer"""

VARYING = "size = 1 + int(x.abs().sum()) % 64; x, y = x[:size], y[:size]"
DOUBLE = FLAT.replace("# the model is made", "model.double()").replace("model(x), y", "model(x.double()), y")
SPARE = "model.register_parameter('spare', nn.Parameter(torch.zeros(1)))"

SCRIPTS = {
    # fact: (a script where the assumption is false, one where it holds)
    "device": (FLAT, FLAT.replace("optimizer", ON_GPU, 1).replace("# a batch", "x, y = x.to(device), y.to(device)  #")),
    "products": (FLAT.replace("64", "8"), FLAT),
    "sizes": (FLAT.replace("# a batch has come", VARYING), FLAT),
    "dtype": (DOUBLE, FLAT),
    "dimensions": (FLAT, PICTURES),
    "batches": (PICTURES, FLAT),
    "pickling": (FLAT.replace("data = Numbers()", "data = Numbers()\ndata.change = lambda x: x"), FLAT),
    "gradients": (FLAT.replace("# the model is made", SPARE), FLAT),
    "length": (FLAT.replace("EPOCHS", "2"), FLAT),
    "processes": (FLAT.replace("optimizer", PROCESS, 1), FLAT),
}  # fmt: skip

OBSERVED = [each for each in assumptions.ALL if each.check.kind == "observe"]


def verified(text: str, script: Path, *assumed: Assumption, change: str = "EPOCHS", proven: str = "") -> Verification:
    """A rewrite that rests on assumptions, and on nothing where ``proven`` is what it makes of the text then."""
    script.write_text(text.replace("EPOCHS", "1000"), encoding="utf-8")
    rewritten = text.replace("EPOCHS", "500 * 2") if change == "EPOCHS" else change

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        refuted = any(ASSUMPTION + each.name in without for each in assumed)
        if "change" in without or (refuted and not proven):
            return ()
        if refuted or LIKELY + "change" in without:
            return (Stage("change", Risk.EXACT, {script: proven.encode()}),) if proven else ()
        return (Stage("change", Risk.EXACT, {script: rewritten.encode()}, assumes=assumed, proven=bool(proven)),)

    return verify(Request(script, (), rebuild(frozenset()), Options(timeout=120), rebuild))


def test_every_observed_fact_has_scripts_and_a_judge() -> None:
    assert {each.check.of for each in OBSERVED} == SCRIPTS.keys() == FACTS.keys()


@pytest.mark.parametrize("assumption", OBSERVED, ids=lambda each: each.name)
def test_what_is_false_is_refuted_by_name(assumption: Assumption, tmp_path: Path) -> None:
    found = verified(SCRIPTS[assumption.check.of][0], tmp_path / "train.py", assumption)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) != ("pass", "kept"), judgement.reason
    assert f"`{assumption.name}`" in judgement.reason
    assert not found.kept


@pytest.mark.parametrize("assumption", OBSERVED, ids=lambda each: each.name)
def test_what_holds_is_observed_and_kept(assumption: Assumption, tmp_path: Path) -> None:
    found = verified(SCRIPTS[assumption.check.of][1], tmp_path / "train.py", assumption)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("pass", "kept"), (found.reason, judgement.reason)
    assert [(one.assumption.name, one.how) for one in judgement.assumes] == [(assumption.name, "observed")]


def test_a_run_that_was_made_short_says_nothing_of_the_length() -> None:
    ended = {"how": "finished", "rows": [{}] * 8}
    for arguments, how in (((), "refuted"), (("--epochs", "1"), "not exercised")):
        found = observed([assumptions.LONG_ENOUGH], {**ended, "arguments": arguments})["long-enough"]
        assert found.how == how
        assert "8 steps" in found.figure


def test_what_a_comparison_refutes_is_named_and_what_is_proven_stays(tmp_path: Path) -> None:
    text = FLAT.replace("EPOCHS", "1000")
    wrong = text.replace("lr=0.01", "lr=0.02")
    fine = text.replace("range(1000)", "range(10 * 100)")
    found = verified(text, tmp_path / "train.py", assumptions.SAME_ITEMS, change=wrong, proven=fine)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("pass", "kept")
    assert "`same-items` is refuted" in judgement.reason
    assert dict(found.kept) == {tmp_path / "train.py": fine.encode()}
    found = verified(text, tmp_path / "train.py", assumptions.SAME_ITEMS, change=wrong)
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("fail", "dropped")
    assert "that refutes `same-items`" in judgement.reason
