"""What a verification costs hangs on the steps that it compares, not on how long the script would go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, Verification, original, verify

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

BEFORE = """\
import itertools, socket, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """\
    total = 0.0
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss {total / len(loader):.4f}")
"""
THREE = BEFORE + "for epoch in range(3):\n" + LOOP
SAVED = "torch.save(model.state_dict(), 'end.pt')\n"

WITHOUT_END = {
    "while True": BEFORE + "while True:\n" + LOOP,
    "a million epochs": BEFORE + "for epoch in range(10**6):\n" + LOOP,
    "a count": BEFORE + "for epoch in itertools.count():\n" + LOOP + "    time.sleep(0.01)\n",
}
WAITING = {
    "sleeps": "time.sleep(10**6)\n",
    "asks": "input('Enter to close')\n",
    "serves": "server = socket.create_server(('127.0.0.1', 0))\nwhile True:\n    server.accept()\n",
    "polls": "while True:\n    time.sleep(0.05)\n",
    "joins": "thread = threading.Thread(target=time.sleep, args=(10**6,))\nthread.start()\nthread.join()\n",
}


def verify_pair(folder: Path, ours: str, theirs: str) -> Verification:
    script = folder / "ours.py"
    script.write_text(ours)
    stage = Stage(None, Risk.EQUIVALENT, {script: theirs.encode()})
    return verify(Request(script, stages=(stage,), options=Options(timeout=60)))


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds that the verification of a script with three epochs takes, once everything is warm."""
    folder = tmp_path_factory.mktemp("three")
    verify_pair(folder, THREE, THREE)
    begun = time.monotonic()
    found = verify_pair(folder, THREE, THREE)
    assert found.reason == "it learns the same over 20 steps and 2 epoch ends"
    return time.monotonic() - begun


@pytest.mark.parametrize("name", WITHOUT_END)
def test_a_training_without_end_costs_what_its_compared_steps_do(
    tmp_path: Path, three_epochs: float, name: str
) -> None:
    begun = time.monotonic()
    found = verify_pair(tmp_path, WITHOUT_END[name], WITHOUT_END[name])
    # the time of an interpreter's start is saved here, so that a busy machine may take some more
    assert time.monotonic() - begun < 2 * three_epochs + 5
    assert found.reason == "it learns the same over 20 steps and 2 epoch ends"
    assert "the end of the training was not seen" in found.notes


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as that, each run waits here."""
    monkeypatch.setattr(original, "IDLE", original.IDLE / 4)


@pytest.mark.parametrize(("name", "epochs"), [*((name, 1) for name in WAITING), ("sleeps", 5), ("asks", 5)])
def test_a_script_that_waits_at_its_end_is_judged_to_there(
    tmp_path: Path, little_patience: None, name: str, epochs: int
) -> None:
    training = THREE.replace("range(3)", f"range({epochs})")
    script = training + WAITING[name] + SAVED
    line = script[: script.index(SAVED)].count("\n")
    begun = time.monotonic()
    found = verify_pair(tmp_path, script, script.replace("lr=0.1", "lr=0.1, foreach=True"))
    assert time.monotonic() - begun < 20  # the limit of one run is 30
    assert found.verdict == "pass"
    assert found.steps == (8 if epochs == 1 else 20)
    assert f"the script waits at ours.py, line {line}: what comes after that was not seen" in found.notes


def test_the_read_out_between_the_last_step_and_a_wait_is_compared(tmp_path: Path, little_patience: None) -> None:
    script = THREE.replace("range(3)", "range(1)") + WAITING["asks"]
    found = verify_pair(tmp_path, script, script.replace("total += loss", "total = loss"))
    assert found.verdict == "fail" and "it prints" in found.reason


def test_another_number_of_steps_before_a_wait_is_neither_right_nor_wrong(
    tmp_path: Path, little_patience: None
) -> None:
    script = THREE.replace("range(3)", "range(1)") + WAITING["asks"]
    found = verify_pair(tmp_path, script, script.replace("range(1)", "range(2)"))
    assert found.verdict == "inconclusive"
    assert found.reason == "the rewritten script takes 9 steps, and the original waits at ours.py, line 19 after 8"
