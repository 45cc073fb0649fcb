"""Programs that end with an error on every torch that counts: found where it is certain, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Run, runner
from memory import ENTRY, ROOT

from turbofix.program.model import Stop, Target
from turbofix.program.steps import analyse

LOOP = """
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.utils.data import DataLoader

from corn import Kernels

weights = torch.ones(5).cuda()
model = nn.Linear(40, 5).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Kernels(), batch_size=32)
BEFORE
for epoch in range(3):
    for step, (x, y) in enumerate(loader):
        loss = criterion(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        INSIDE
AFTER
"""


def stop_of(before: str = "pass", inside: str = "pass", after: str = "pass", **modules: str) -> Stop | None:
    text = LOOP.replace("INSIDE", inside.replace("\n", "\n        ")).replace("BEFORE", before).replace("AFTER", after)
    texts = {ENTRY: text, **{ROOT / f"{name}.py": each for name, each in modules.items()}}
    program = analyse(ENTRY, ROOT, texts.get, Target())
    assert program is not None
    assert program.steps
    return program.stops


def raises(stop: Stop | None) -> str | None:
    return stop and stop.error


@pytest.mark.parametrize(
    "inside",
    [
        "print(loss.data[0])",
        "print(loss[0])",
        "print(loss.data.cpu().numpy()[0])",
        "print(loss.cpu().data[0])",
        "print((loss / 4 + F.mse_loss(model(x.cuda()), y.cuda())).data[0])",
        "print(torch.mean(model(x.cuda())).data[0])",
        "print(model(x.cuda()).sum().data[0])",
        "if step % 50 == 0:\n    print(loss.data[0])",
        "total = 0\nfor part in (x, y):\n    pass\nprint((-loss).data[0])",
        "kept = 0\nkept += loss\nprint(kept.data[0])",
    ],
)
def test_an_index_into_a_number_stops(inside: str) -> None:
    assert raises(stop_of(inside=inside)) == "IndexError"


@pytest.mark.parametrize(
    "inside",
    [
        "print(loss.item())",
        "print(loss.view(1)[0])",
        "print(loss[None])",
        "print(F.cross_entropy(model(x.cuda()), y.cuda(), reduction='none')[0])",
        "print(F.cross_entropy(model(x.cuda()), y.cuda(), weights, None, -1, False)[0])",
        "print(nn.CrossEntropyLoss(reduce=False)(model(x.cuda()), y.cuda())[0])",
        "print(nn.CrossEntropyLoss(reduction=sys.argv[1])(model(x.cuda()), y.cuda())[0])",
        "print(torch.mean(model(x.cuda()), 0).data[0])",
        "print(model(x.cuda()).sum(dim=0).data[0])",
        "print((loss * weights)[0])",
        "print(model(x.cuda()).data[0])",
        "print(y.mean()[0])",  # of a batch that may be another library's
        # what may not be reached
        "if sys.argv:\n    print(loss.data[0])",
        "if torch.__version__ < '0.4':\n    print(loss.data[0])\nelse:\n    print(loss.item())",
        "try:\n    print(loss.data[0])\nexcept IndexError:\n    print(loss.item())",
        "if False:\n    print(loss.data[0])",
        "for each in sys.argv:\n    print(loss.data[0])",
        "print(sys.argv and loss.data[0])",
        "print(loss.data[0] if sys.argv else 0)",
        "show = lambda: loss.data[0]",
        "if sys.argv:\n    continue\nprint(loss.data[0])",
    ],
)
def test_an_index_that_is_right_or_may_not_be_reached_does_not(inside: str) -> None:
    assert stop_of(inside=inside) is None


def test_values_through_functions_count_in_every_call() -> None:
    helper = "def show(value):\n    print(value.data[0])\n"
    assert raises(stop_of(helper, "show(loss)")) == "IndexError"
    assert stop_of(helper, "show(model(x.cuda()))") is None
    assert (
        stop_of("def show(value):\n    if sys.argv:\n        return\n    print(value.data[0])\n", "show(loss)") is None
    )
    assert stop_of("def unused(value):\n    print(F.mse_loss(value, value).data[0])\n") is None


def test_losses_that_the_devices_of_a_wrapper_give_one_by_one_are_no_number() -> None:
    class_of = """
class Scored(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


scored = nn.DataParallel(Scored(model))
"""
    assert stop_of(class_of, "print(scored(x.cuda(), y.cuda())[0])") is None


def test_what_comes_after_the_training_does_not_stop_it() -> None:
    assert stop_of(after="print(loss.data[0])\nprint(nowhere)") is None


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("", "print(nowhere)"),
        ("", "for k in xrange(3):\n    pass"),
        ("model.apply(init_weights)", ""),
        (
            "class Twin(nn.Module):\n    def __init__(self):\n        self.a = width\ntwin = Twin()",
            "",
        ),
        ("def log(value):\n    print(nowhere, value)", "log(step)"),
        ("def first():\n    nowhere = 1\n    return nowhere", "print(nowhere)"),
    ],
)
def test_a_name_that_nothing_binds_stops(before: str, inside: str) -> None:
    assert raises(stop_of(before or "pass", inside or "pass")) == "NameError"


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("from corn import *", "print(nowhere)"),
        ("exec('nowhere = 1')", "print(nowhere)"),
        ("globals()['nowhere'] = 1", "print(nowhere)"),
        ("if sys.argv:\n    nowhere = 1", "print(nowhere)"),
        ("def late():\n    global nowhere\n    nowhere = 1", "print(nowhere)"),
        ("try:\n    xrange\nexcept NameError:\n    xrange = range", "for k in xrange(3):\n    pass"),
        ("if sys.version_info[0] == 2:\n    range = xrange", ""),
        ("def unused():\n    print(nowhere)", ""),
        ("class Twin(nn.Module):\n    def __init__(self):\n        self.a = width\n", ""),
        (
            "one = model if sys.argv else print\ndef two(value):\n    nowhere\nkind = two if sys.argv else print",
            "kind(1)",
        ),
        ("", "try:\n    nowhere\nexcept NameError:\n    pass"),
        ("", "if (wide := step) and sys.argv:\n    pass\nprint(wide)"),
        ("", "print(__file__, _)"),
        ("", "display(step)"),
        ("def rows():\n    yield nowhere\nlazy = rows()", ""),
    ],
)
def test_a_name_that_may_be_bound_or_may_not_be_read_does_not(before: str, inside: str) -> None:
    assert stop_of(before or "pass", inside or "pass") is None


def test_star_imports_of_the_project_bind_what_its_files_bind() -> None:
    assert stop_of("from parts import *", "print(width)", parts="from sizes import *\n", sizes="width = 3\n") is None
    assert raises(stop_of("from parts import *", "print(width)", parts="height = 3\n")) == "NameError"
    assert stop_of("from parts import *", "print(width)", parts="from numpy import *\n") is None


def test_modules_are_told_by_their_files() -> None:
    stop = stop_of(
        "from parts import Twin\ntwin = Twin()", parts="class Twin:\n    def __init__(self):\n        self.a = width\n"
    )
    assert stop is not None
    assert stop.sentence(ENTRY).startswith("line 3 of parts.py raises NameError")
    assert stop_of("import parts\nparts.width = 3\ntwin = parts.Twin()", parts="class Twin:\n    a = 1\n") is None


def test_one_of_two_trainings_that_are_chosen_from_does_not_stop_the_other() -> None:
    other = "if sys.argv:\n    for x, y in loader:\n        loss = criterion(model(x.cuda()), y.cuda())\n"
    other += "        loss.backward()\n        optimizer.step()\n        print(loss.data[0])\n    sys.exit()"
    assert stop_of(other) is None


# --- imports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("from torchtext.legacy import data", "ModuleNotFoundError"),
        ("import torchtext.legacy.data as data", "ModuleNotFoundError"),
        ("from torchtext import legacy", "ImportError"),
        ("from torchtext.data import Field, BucketIterator", "ImportError"),
        ("from torchtext import data\ntext = data.Field()", "AttributeError"),
        ("from torch._six import inf", "ModuleNotFoundError"),
        ("from torch.utils.ffi import create_extension", "ModuleNotFoundError"),
    ],
)
def test_an_import_of_what_is_gone_stops(line: str, error: str) -> None:
    assert raises(stop_of(line)) == error


@pytest.mark.parametrize(
    "line",
    [
        "from torchtext.data import get_tokenizer",
        "from torchtext.vocab import build_vocab_from_iterator",
        "try:\n    from torchtext.legacy import data\nexcept ImportError:\n    from torchtext import data",
        "def old():\n    from torchtext.legacy import data",
        "if sys.argv:\n    from torchtext.legacy import data",
    ],
)
def test_an_import_that_works_or_may_be_left_out_does_not(line: str) -> None:
    assert stop_of(line) is None


def test_an_import_that_the_oldest_torch_still_has_does_not() -> None:
    texts = {ENTRY: LOOP.replace("BEFORE", "from torch._six import inf").replace("INSIDE", "pass").replace("AFTER", "")}
    for version, stops in (((1, 13), False), ((2, 0), True)):
        program = analyse(ENTRY, ROOT, texts.get, Target(torch=version))
        assert program is not None
        assert (program.stops is not None) is stops


def test_an_import_in_a_module_counts_where_the_module_is_certainly_imported() -> None:
    parts = "from torchtext.legacy import data\nwidth = 3\n"
    assert raises(stop_of("from parts import width\nprint(width)", parts=parts)) == "ModuleNotFoundError"
    guarded = "try:\n    from parts import width\nexcept ImportError:\n    width = 3\nprint(width)"
    assert stop_of(guarded, parts=parts) is None


# --- what the engine makes of it ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def text(inside: str) -> str:
    return LOOP.replace("INSIDE", inside).replace("BEFORE", "pass").replace("AFTER", "pass")


def test_nothing_of_such_a_program_is_fixable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text("print(loss.data[0])"))
    found = run("analyze", "--output-format", "json", "train.py")
    document = json.loads(found.out)
    assert found.code == 0
    assert document["files"][0]["stops"] == {
        "path": "train.py",
        "line": 24,
        "message": "raises IndexError on torch 0.5 and newer: `loss.data[0]` indexes a number",
    }
    assert document["findings"]
    assert not any(each["fixable"] for each in document["findings"])
    why = "line 24 raises IndexError on torch 0.5 and newer: `loss.data[0]` indexes a number; mend that first"
    assert why in {each["why_not"] for each in document["findings"]}
    assert "Nothing is rewritten before that is mended" in " ".join(run("analyze", "train.py").out.split())
    assert run("apply", "train.py").out == ""
    (tmp_path / "train.py").write_text(text("print(loss.item())"))
    found = run("analyze", "--output-format", "json", "train.py")
    assert json.loads(found.out)["files"][0]["stops"] is None
    assert any(each["fixable"] for each in json.loads(found.out)["findings"])


def test_a_program_that_cannot_run_has_no_say_in_what_it_shares(run: Run, tmp_path: Path) -> None:
    shared = "from torch.utils.data import DataLoader\n\nfrom corn import Kernels\n\n\ndef rows():\n"
    (tmp_path / "data.py").write_text(shared + "    return DataLoader(Kernels(), batch_size=32)\n")
    for name, inside in (("a_broken", "print(loss.data[0])"), ("b_whole", "print(loss.item())")):
        script = text(inside).replace("DataLoader(Kernels(), batch_size=32)", "rows()")
        (tmp_path / f"{name}.py").write_text(script.replace("from corn import Kernels", "from data import rows"))
    document = json.loads(run("analyze", "--output-format", "json", "--select", "pin-memory", ".").out)
    assert [(each["path"], each["fixable"]) for each in document["findings"]] == [("data.py", True)]
    assert "pin_memory=True" in run("apply", "--select", "pin-memory", ".").out
