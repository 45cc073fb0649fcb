"""A notebook is run as a script, as it is and as rewritten; what is said of it counts lines in its cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Run, runner

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

IMPORTS = """\
%matplotlib inline
!pip install nothing
import torch
from IPython.display import clear_output
from torch.utils.data import DataLoader, TensorDataset
here = !pwd
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
DATA = """\
x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """\
%%time
for epoch in range(3):
    total = 0.0
    for a, b in loader:
        a, b = a.to(device), b.to(device)
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    clear_output(wait=True)
    print(epoch, total / len(loader))
display(model)
get_ipython().run_line_magic("ls", "")
import IPython
if IPython.version_info[:2] < (8, 24):  # as matplotlib asks
    raise SystemExit("old")
"""


def book(*cells: str) -> str:
    """A notebook of code cells, each behind one of text."""
    made = []
    for cell in cells:
        made.append({"cell_type": "markdown", "metadata": {}, "source": ["so"]})
        lines = cell.splitlines(keepends=True)
        made.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines})
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def test_what_survives_is_written_into_the_notebook(run: Run, tmp_path: Path) -> None:
    (tmp_path / "book.ipynb").write_text(book(IMPORTS, DATA, LOOP))
    ran = run("apply", "--verify", "--write", "--select", "defer-item", "book.ipynb")
    assert ran.code == 0
    assert "PASS  it learns the same over 20 steps and 2 epoch ends" in ran.out
    assert "the notebook ran as a script" in " ".join(ran.out.split())
    loop = LOOP.replace("+= loss.item()", "+= loss.detach().double()")
    loop = loop.replace("    clear", "    total = float(total)\n    clear")
    assert (tmp_path / "book.ipynb").read_text() == book(IMPORTS, DATA, loop)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lr=0.1", "lr=0.2", "at step 1 the learning rate is 0.2 instead of 0.1"),
        ("    total = 0.0\n", "    1 / 0\n", 'ZeroDivisionError: division by zero" at book.ipynb, cell 6, line 3'),
    ],
)
def test_a_notebook_is_compared_with_another(run: Run, tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "book.ipynb").write_text(book(IMPORTS, DATA, LOOP))
    (tmp_path / "theirs.ipynb").write_text(
        book(IMPORTS, DATA, LOOP).replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    )
    ran = run("verify", "--output-format", "json", "book.ipynb", "theirs.ipynb")
    assert ran.code == 1
    assert words in json.loads(ran.out)["reason"]


def test_what_stops_a_notebook_is_told_by_its_cell(run: Run, tmp_path: Path) -> None:
    (tmp_path / "book.ipynb").write_text(book(IMPORTS, DATA, "\nname = input()\n" + LOOP[len("%%time\n") :]))
    ran = run("verify", "--output-format", "json", "--select", "defer-item", "book.ipynb")
    assert ran.code == 2
    assert "the script asks for input at book.ipynb, cell 6, line 2," in json.loads(ran.out)["reason"]


def test_what_did_not_run_is_told_by_its_cell(run: Run, tmp_path: Path) -> None:
    unused = "def unused(epochs):\n" + "".join(f"    {line}" for line in LOOP.splitlines(True)[1:10])
    (tmp_path / "book.ipynb").write_text(book(IMPORTS, DATA, LOOP, unused))
    theirs = book(IMPORTS, DATA, LOOP, unused.replace("total = 0.0", "total = 0"))
    (tmp_path / "theirs.ipynb").write_text(theirs)
    ran = run("verify", "--output-format", "json", "book.ipynb", "theirs.ipynb")
    assert "what it changed at book.ipynb, cell 8, line 3, did not run" in json.loads(ran.out)["reason"]
