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


@pytest.mark.parametrize(
    ("asked", "given", "stops"),
    [
        ("if error is not None:", "return error", True),
        ("if not_there is None:\n    continue\nif error is not None:", "return error", False),
        ("if error is None:\n    continue\nwith torch.no_grad():", "return error", True),
        ("if error is None:", "return error", False),
        ("if error:", "return error", False),
        ("if error is not None:", "return error.item()", False),
        ("if error is not None:", "if sys.argv:\n        return None\n    return error", False),
        ("if error is not None:", "if sys.argv:\n        return error", False),
        ("if error is not None and sys.argv:", "return error", False),
    ],
)
def test_a_result_that_is_none_where_no_step_was_made(asked: str, given: str, stops: bool) -> None:
    learning = f"""
import sys
import torch
import torch.nn as nn
from plays import memory, not_there

model = nn.Linear(40, 5).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def learn(size):
    if len(memory) < size:
        return None
    x, y = memory.sample(size)
    error = nn.functional.mse_loss(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
    {given}

for step in range(1000):
    error = learn(32)
    {asked.replace(chr(10), chr(10) + "    ")}
        print(error.data[0])
"""
    program = analyse(ENTRY, ROOT, {ENTRY: learning}.get, Target())
    assert program is not None
    assert program.steps
    assert raises(program.stops) == ("IndexError" if stops else None)


def test_each_of_several_trainings_ends_at_a_place_of_its_own() -> None:
    second = "if sys.argv:\n    for x, y in loader:\n        loss = criterion(model(x.cuda()), y.cuda())\n"
    second += "        loss.backward()\n        optimizer.step()\n        PRINT\n    sys.exit()"
    found = stop_of(second.replace("PRINT", "print(loss.data[0])"), "print(loss.data[0])")
    assert raises(found) == "IndexError"
    assert stop_of(second.replace("PRINT", "print(loss.item())"), "print(loss.data[0])") is None


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
        ("# from corn import __version__", "if step % 100 == 0:\n    torch.save({'version': __version__}, 'last.pt')"),
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
        ("", "print(__name__, __doc__, __package__, __spec__, __builtins__)"),
        ("class Twin:\n    place = __module__, __qualname__\n    def own(self):\n        __class__\nTwin().own()", ""),
        ("class Twin:\n    def __init__(self):\n        self.a = __hidden\ntwin = Twin()", ""),
        ("from corn import __version__", "print(__version__)"),
        ("__version__ = '1'", "print(__version__)"),
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


@pytest.mark.parametrize(
    ("before", "stops"),
    [
        ("twin = Twin()\nclass Twin:\n    pass", True),
        ("print(width)\nwidth = 3", True),
        ("for k in (1, 2):\n    print(width)\nwidth = 3", True),
        ("def show():\n    print(width)\nwidth = 3", False),
        ("import atexit\ndef show():\n    print(width)\natexit.register(show)\nwidth = 3", False),
        ("if sys.argv:\n    print(width)\nwidth = 3", False),
        ("try:\n    width\nexcept NameError:\n    width = 3", False),
        ("for k in (1, 2):\n    if k == 2:\n        print(width)\n    width = 3", False),
        ("lazy = (width for _ in range(3))\nwidth = 3", False),
        ("show = lambda: width\nwidth = 3", False),
        ("exec('width = 3')\nprint(width)\nwidth = 3", False),
        ("from corn import *\nprint(width)\nwidth = 3", False),
        ("def bind():\n    global width\n    width = 3\nbind()\nprint(width)\nwidth = 3", False),
        ("def show(value: width) -> width:\n    pass\nwidth = 3", False),
        ("width = 2\nprint(width)\nwidth = 3", False),
    ],
)
def test_a_name_that_is_bound_further_down_stops(before: str, stops: bool) -> None:
    assert raises(stop_of(before)) == ("NameError" if stops else None)


def test_the_cells_of_a_notebook_are_run_in_any_order() -> None:
    entry = ROOT / "train.ipynb"
    text = LOOP.replace("BEFORE", "print(width)\nwidth = 3").replace("INSIDE", "pass").replace("AFTER", "")
    program = analyse(entry, ROOT, {entry: text}.get, Target())
    assert program is not None
    assert program.steps
    assert program.stops is None


# --- attributes -----------------------------------------------------------------------------------------------------

OWN = """
class Rates(BASES):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate
    def report(self):
        READ
BESIDE
rates = Rates(3)
"""


def unset_of(read: str, *, bases: str = "nn.Module", beside: str = "", inside: str = "rates.report()") -> str | None:
    text = OWN.replace("READ", read.replace("\n", "\n        ")).replace("BASES", bases).replace("BESIDE", beside)
    return raises(stop_of(text, inside))


@pytest.mark.parametrize("bases", ["nn.Module", "object", "Plain"])
def test_an_attribute_that_nothing_sets_stops(bases: str) -> None:
    plain = "class Plain:\n    base = 1\n"
    text = plain + OWN.replace("READ", "print(self.speed)").replace("BASES", bases).replace("BESIDE", "")
    assert raises(stop_of(text, "rates.report()")) == "AttributeError"


@pytest.mark.parametrize(
    "read",
    [
        "print(self.rate)",
        "print(self.training, self.report)",
        "print(self._speed)",
        "print(self.__class__, self.__dict__)",
        "self.speed = 1\nprint(self.speed)",
        "for self.speed in range(3):\n    print(self.speed)",
        "if sys.argv:\n    self.speed = 1\nprint(self.speed)",
        "setattr(self, 'speed', 1)\nprint(self.speed)",
        "for key in sys.argv:\n    setattr(self, key, 1)\nprint(self.speed)",
        "self.__dict__.update(sys.argv)\nprint(self.speed)",
        "vars(self).update(sys.argv)\nprint(self.speed)",
        "self.register_buffer('speed', weights)\nprint(self.speed)",
        "self.register_buffer(sys.argv[1], weights)\nprint(self.speed)",
        "fill(self)\nprint(self.speed)",
        "print(self.speed if hasattr(self, 'speed') else 1)",
        "try:\n    print(self.speed)\nexcept AttributeError:\n    pass",
        "if sys.argv:\n    print(self.speed)",
    ],
)
def test_an_attribute_that_may_be_set_or_is_not_surely_read_does_not(read: str) -> None:
    assert unset_of(read, beside="from corn import fill") is None


@pytest.mark.parametrize(
    ("bases", "beside"),
    [
        ("Elsewhere", ""),
        ("nn.Linear", ""),
        ("Open", ""),
        ("Made", ""),
        ("nn.Module", "Rates.speed = 3"),
        ("nn.Module", "@property\ndef speed(self):\n    return 3\nRates.speed = speed"),
        ("nn.Module", "exec('Rates.speed = 3')"),
    ],
)
def test_an_attribute_that_a_base_or_another_place_may_give_does_not(bases: str, beside: str) -> None:
    classes = """
from corn import Elsewhere, made
class Open:
    def __getattr__(self, name):
        return 3
@made
class Made:
    pass
"""
    text = classes + OWN.replace("READ", "print(self.speed)").replace("BASES", bases).replace("BESIDE", beside)
    assert stop_of(text, "rates.report()") is None


def test_an_attribute_that_a_class_of_another_file_may_set_does_not() -> None:
    text = """
import torch
from torch import nn
class Base(nn.Module):
    def fit(self, rows):
        optimizer = torch.optim.Adam(self.parameters())
        for x in rows:
            loss = self(x).mean()
            loss.backward()
            optimizer.step()
            print(self.speed)
"""
    program = analyse(ENTRY, ROOT, {ENTRY: text}.get, Target())
    assert program is not None
    assert program.steps
    assert program.stops is None


FITTED = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from corn import Kernels

class Net(L.LightningModule):
    def __init__(self, rate=0.1):
        super().__init__()
        self.rate = rate
        self.net = nn.Linear(40, 5)
    def training_step(self, batch, index):
        IN_STEP
        return self.net(batch).mean()
    def validation_step(self, batch, index):
        IN_VALIDATION
    def configure_optimizers(self):
        IN_OPTIMIZERS
        return torch.optim.Adam(self.parameters(), lr=self.rate)

trainer = L.Trainer(max_epochs=3)
trainer.RUN(Net(), DataLoader(Kernels(), batch_size=32))
"""


@pytest.mark.parametrize(
    ("place", "line", "run", "error"),
    [
        ("IN_OPTIMIZERS", "print(self.speed)", "fit", "AttributeError"),
        ("IN_OPTIMIZERS", "print(nowhere)", "fit", "NameError"),
        ("IN_STEP", "print(self.speed)", "fit", "AttributeError"),
        ("IN_STEP", "if index:\n            print(self.speed)", "fit", None),
        ("IN_VALIDATION", "print(self.speed)", "fit", None),
        ("IN_OPTIMIZERS", "print(self.trainer, self.hparams.speed, self.current_epoch)", "fit", None),
        ("IN_OPTIMIZERS", "self.save_hyperparameters()\n        print(self.speed)", "fit", "AttributeError"),
        ("IN_OPTIMIZERS", "print(self.speed)", "validate", None),
    ],
)
def test_what_lightning_calls_stops(place: str, line: str, run: str, error: str | None) -> None:
    text = FITTED.replace(place, line).replace("RUN", run)
    for each in ("IN_STEP", "IN_VALIDATION", "IN_OPTIMIZERS"):
        text = text.replace(each, "pass")
    program = analyse(ENTRY, ROOT, {ENTRY: text}.get, Target())
    assert program is not None
    assert program.trains
    assert raises(program.stops) == error


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


def test_a_loop_over_what_holds_something_is_entered() -> None:
    assert raises(stop_of(inside="for k in (1, 2):\n    print(k, loss.data[0])")) == "IndexError"
    assert stop_of(inside="for k in ():\n    print(k, loss.data[0])") is None
    assert stop_of(inside="for k in (1, 2):\n    if sys.argv:\n        break\n    print(k, loss.data[0])") is None


# --- calls that raise -----------------------------------------------------------------------------------------------

TOP = """
def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        found = []
        for k in topk:
            found.append(correct[:k].view(-1).float().sum(0))
        return found
"""
SCORE = "accuracy(model(x.cuda()), y.cuda(), topk=(1, 5))"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        (".view(-1).float()", ".float().view(-1)"),
        ("correct = pred.eq(target.view(1, -1).expand_as(pred))", "correct = pred == target.view(1, -1)"),
        ("topk=(1,)", "topk=(5,)"),
        ("maxk = max(topk)", "maxk = 5"),
    ],
)
def test_a_view_of_what_is_transposed_stops(old: str, new: str) -> None:
    assert raises(stop_of(TOP.replace(old, new) if old else TOP, SCORE)) == "RuntimeError"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".view(-1).float()", ".reshape(-1).float()"),
        (".view(-1).float()", ".contiguous().view(-1).float()"),
        (".view(-1).float()", ".view(k, -1).float()"),
        ("pred = pred.t()", "pred = pred.t().contiguous()"),
        ("pred = pred.t()", "if len(topk) > 1:\n            pred = pred.t()"),
        ("expand_as(pred))", "expand_as(pred)).contiguous()"),
        ("found = []", "found = []\n        if target.numel():\n            correct = correct.contiguous()"),
        ("output.topk(maxk, 1, True, True)", "output.topk(maxk, -1, True, True)"),
        ("correct[:k]", "correct[0]"),
        ("target.view(1, -1).expand_as(pred)", "target"),
    ],
)
def test_a_view_that_may_be_right_does_not(old: str, new: str) -> None:
    assert old in TOP
    assert stop_of(TOP.replace(old, new), SCORE) is None


def test_a_view_of_a_single_row_or_column_does_not() -> None:
    assert stop_of(TOP, "accuracy(model(x.cuda()), y.cuda())") is None
    assert stop_of(TOP, "accuracy(model(x.cuda()), y.cuda(), topk=(1,))") is None
    assert stop_of(TOP, "accuracy(model(x.cuda()), y.cuda(), topk=tuple(sys.argv))") is None
    assert stop_of(TOP + "loader = DataLoader(Kernels(), batch_size=1)", SCORE) is None
    assert stop_of(TOP + "loader = DataLoader(Kernels())", SCORE) is None
    assert stop_of(TOP, "if sys.argv:\n    " + SCORE) is None


@pytest.mark.parametrize(
    ("line", "stops"),
    [
        ("scores, _ = pack_padded_sequence(model(x.cuda()), [3, 2], batch_first=True)", True),
        ("scores, _, first = pack_padded_sequence(model(x.cuda()), [3, 2])", True),
        ("scores, _, first, last = pack_padded_sequence(model(x.cuda()), [3, 2])", False),
        ("scores, *_ = pack_padded_sequence(model(x.cuda()), [3, 2])", False),
        ("scores = pack_padded_sequence(model(x.cuda()), [3, 2])", False),
        ("scores, _ = pack_padded_sequence(model(x.cuda()), [3, 2])[:2]", False),
        ("scores, _ = pad_packed_sequence(pack_padded_sequence(model(x.cuda()), [3, 2]))", False),
        ("try:\n    scores, _ = pack_padded_sequence(model(x.cuda()), [3])\nexcept ValueError:\n    pass", False),
    ],
)
def test_a_packed_sequence_has_four_fields(line: str, stops: bool) -> None:
    names = "from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence"
    assert raises(stop_of(names, line)) == ("ValueError" if stops else None)


def test_another_function_of_that_name_may_give_two_values() -> None:
    own = "def pack_padded_sequence(value, lengths):\n    return value, lengths\n"
    assert stop_of(own, "scores, _ = pack_padded_sequence(model(x.cuda()), [3, 2])") is None


@pytest.mark.parametrize(
    ("before", "labels", "stops"),
    [
        ("", "torch.full((32,), 1).cuda()", True),
        ("real = 1", "torch.full((32,), real, device='cuda')", True),
        ("", "torch.full(size=(32,), fill_value=0).to(torch.device('cuda'))", True),
        ("", "torch.full((32,), 1.0).cuda()", False),
        ("", "torch.full((32,), 1, dtype=torch.float).cuda()", False),
        ("", "torch.full((32,), 1).float().cuda()", False),
        ("", "torch.full((32,), 1).to(torch.float32)", False),
        ("", "torch.full((32,), 1).to(x)", False),
        ("", "torch.full((32,), True).cuda()", False),  # a case of its own: not looked at
        ("real = float(sys.argv[1])", "torch.full((32,), real)", False),
        ("real = 1\nif sys.argv:\n    real = 0.9", "torch.full((32,), real)", False),
    ],
)
def test_whole_numbers_are_no_labels_of_a_binary_loss(before: str, labels: str, stops: bool) -> None:
    for made, call in (
        ("bce = nn.BCEWithLogitsLoss()", "bce(model(x.cuda()).view(-1), labels)"),
        ("bce = nn.BCELoss()", "bce(target=labels, input=model(x.cuda()).view(-1))"),
        ("bce = F.binary_cross_entropy_with_logits", "bce(model(x.cuda()).view(-1), labels)"),
    ):
        found = stop_of(f"{made}\n{before}", f"labels = {labels}\nother = {call}")
        assert raises(found) == ("RuntimeError" if stops else None)
    assert stop_of(f"{before}\nmse = nn.MSELoss()", f"labels = {labels}\nmse(model(x.cuda()), labels)") is None


@pytest.mark.parametrize(
    ("call", "stops"),
    [
        ("save_image(x, 'x.png', normalize=True, range=(-1, 1))", True),
        ("make_grid(x, range=(-1, 1))", True),
        ("save_image(x, 'x.png', normalize=True, value_range=(-1, 1))", False),
        ("if sys.argv:\n    save_image(x, 'x.png', range=(-1, 1))", False),
    ],
)
def test_images_are_saved_with_a_range_of_values(call: str, stops: bool) -> None:
    assert raises(stop_of("from torchvision.utils import make_grid, save_image", call)) == (
        "TypeError" if stops else None
    )
    texts = {ENTRY: LOOP.replace("BEFORE", "import torchvision.utils").replace("AFTER", "")}
    texts[ENTRY] = texts[ENTRY].replace("INSIDE", "torchvision.utils.save_image(x, 'x.png', range=(-1, 1))")
    program = analyse(ENTRY, ROOT, texts.get, Target(torch=(2, 0)))
    assert program is not None
    assert program.stops is None


# --- weights that a step overwrites ---------------------------------------------------------------------------------

PAIR = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

from corn import Kernels


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))

    def forward(self, x):
        flat = x.view(x.shape[0], -1)
        score = self.body(flat)
        return score


maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()
critic = Critic().cuda()
make = torch.optim.Adam(maker.parameters(), lr=1e-3)
judge = torch.optim.Adam(critic.parameters(), lr=1e-3)
for x in DataLoader(Kernels(), batch_size=32):
    make.zero_grad()
    judge.zero_grad()
    real = critic(x.cuda())
    fake = critic(maker(torch.randn(32, 4).cuda()))
    whole = torch.sum(torch.exp(-real)) + torch.sum(torch.exp(-fake))
    first = torch.sum(real) / 32 + torch.log(whole)
    first.backward(retain_graph=True)
    judge.step()
    second = (torch.sum(real) + torch.sum(fake)) / 64 + torch.log(whole)
    second.backward()
    make.step()
"""


def stop_in(text: str) -> Stop | None:
    program = analyse(ENTRY, ROOT, {ENTRY: text}.get, Target())
    assert program is not None
    assert program.steps
    return program.stops


def test_a_backward_through_weights_that_a_step_has_overwritten_stops() -> None:
    stop = stop_in(PAIR)
    assert stop is not None
    assert stop.sentence(ENTRY) == (
        "line 34 raises RuntimeError on every version: it needs weights that the step in line 32 has overwritten; "
        "mend that first"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("second = (", "print(first.item())\n    second = ("),
        ("torch.log(whole)\n    second", "(torch.log(whole) if x is None else 0)\n    second"),
        ("critic = Critic().cuda()", "critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()"),
        ("    real = critic(x.cuda())", "    if x.sum() > 3:\n        x = -x\n    real = critic(x.cuda())"),
    ],
)
def test_a_backward_that_still_needs_them_does_too(old: str, new: str) -> None:
    assert old in PAIR
    assert raises(stop_in(PAIR.replace(old, new))) == "RuntimeError"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # another forward, no forward, no graph
        (
            "    second =",
            "    real, fake, whole = critic(x.cuda()), critic(x.cuda()), critic(x.cuda()).sum()\n    second =",
        ),
        ("second = (torch.sum(real) + torch.sum(fake)) / 64 + torch.log(whole)", "second = maker(x.cuda()).sum()"),
        ("    second =", "    real, fake, whole = real.detach(), fake.detach(), whole.detach()\n    second ="),
        # the step changes nothing, or nothing that is needed
        ("    judge.step()", "    judge.zero_grad()\n    judge.step()"),
        ("    judge.step()", "    critic.zero_grad()\n    judge.step()"),
        ("judge.step()", "make.zero_grad()"),
        ("    judge.step()", "    if x.sum() > 3:\n        judge.step()"),
        ("critic.parameters(), lr=1e-3", "critic.parameters(), lr=1e-3, fused=True"),
        ("critic.parameters(), lr=1e-3", "critic.body[2:].parameters(), lr=1e-3"),
        ("critic.parameters(), lr=1e-3", "[p for p in critic.parameters() if p.dim() < 2], lr=1e-3"),
        ("nn.Linear(8, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1)", "nn.Flatten(), nn.Linear(8, 1)"),
        ("critic = Critic().cuda()", "critic = Critic().cuda()\ncritic.requires_grad_(False)"),
        ("critic = Critic().cuda()", "critic = nn.DataParallel(Critic().cuda())"),
        ("critic = Critic().cuda()", "critic = torch.compile(Critic().cuda())"),
        ("        score = self.body(flat)", "        score = self.body(flat).detach()"),
        ("        return score", "        if x.sum() > 3:\n            score = x.sum()\n        return score"),
        ("    second.backward()", "    try:\n        second.backward()\n    except RuntimeError:\n        pass"),
    ],
)
def test_a_backward_that_may_go_through_does_not(old: str, new: str) -> None:
    assert old in PAIR
    stop = stop_in(PAIR.replace(old, new))
    assert stop is None or (not stop.certain and new in MAY)


MAY = (
    "    if x.sum() > 3:\n        judge.step()",
    "    judge.zero_grad()\n    judge.step()",  # whether there are gradients is not looked at
    "    critic.zero_grad()\n    judge.step()",
    "[p for p in critic.parameters() if p.dim() < 2], lr=1e-3",  # nor which of its parameters are given
    "nn.Flatten(), nn.Linear(8, 1)",  # nor which layers need them
    "        if x.sum() > 3:\n            score = x.sum()\n        return score",
    "    try:\n        second.backward()\n    except RuntimeError:\n        pass",
)
"""Where it may go through and may not, as far as is seen."""


@pytest.mark.parametrize("around", ["torch.no_grad()", "torch.autocast('cuda')"])
def test_a_forward_without_a_graph_or_with_copies_of_the_weights_does_not(around: str) -> None:
    lines = PAIR.splitlines()
    start = next(i for i, each in enumerate(lines) if each.startswith("    real ="))
    lines[start : start + 2] = [f"    with {around}:", *(f"    {each}" for each in lines[start : start + 2])]
    assert stop_in("\n".join(lines)) is None


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


CALLED_BY_OTHERS = """
import math
import torch
from torch import nn
from torch.utils.data import DataLoader
from corn import Kernels

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(64, 192)
    def forward(self, x):
        q, k, v = self.to_qkv(x).view(x.shape[0], x.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * 16**-0.5, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(x.shape)

class Runner:
    def __init__(self, network):
        self.network = network.cuda()
        self.optimizer = torch.optim.AdamW(network.parameters())
    def run(self):
        for x in DataLoader(Kernels(), batch_size=64):
            loss = self.network(x.cuda()).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(nowhere)

if __name__ == "__main__":
    print(Attention().cuda()(torch.zeros(2, 5, 64, device="cuda")))
"""


def test_what_the_script_calls_without_training_is_rewritten_all_the_same(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CALLED_BY_OTHERS)
    document = json.loads(run("analyze", "--output-format", "json", "train.py").out)
    assert {each["codemod"] for each in document["findings"] if each["fixable"]} == {"sdpa"}
    assert "fused-optimizer" in {each["codemod"] for each in document["findings"]}
    shown = " ".join(run("analyze", "train.py").out.split())
    assert "What its training needs is not rewritten before that is mended" in shown
    text = run("apply", "train.py").out
    assert "scaled_dot_product_attention" in text
    assert "fused" not in text
    (tmp_path / "train.py").write_text("from torch._six import inf\n" + CALLED_BY_OTHERS)
    assert run("apply", "train.py").out == ""


TWO = """
import torch
from torch import nn

maker = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()
judge = nn.Linear(8, 1).cuda()
of_maker = torch.optim.Adam(maker.parameters())
of_judge = torch.optim.Adam(judge.parameters())
for step in range(100):
    fake = maker(torch.randn(4, 8, device="cuda"))
    score = judge(fake)
    if step % 5 == 0:
        loss = -score.mean()
        of_maker.zero_grad()
        loss.backward(retain_graph=True)
        of_maker.step()
    AGAIN
    loss = score.mean()
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
"""


@pytest.mark.parametrize("inline", [False, True])
def test_a_backward_through_what_a_step_may_have_changed_may_stop(inline: bool) -> None:
    text = TWO.replace("AGAIN", "pass")
    if inline:
        text = text.replace("    loss.backward()", "    (score * 2).mean().backward()")
    program = analyse(ENTRY, ROOT, {ENTRY: text}.get, Target())
    assert program is not None
    assert program.stops is not None
    assert not program.stops.certain
    assert program.stops.message == (
        "may raise RuntimeError on torch 1.5 and newer: it goes back through weights that the step on line 16 has "
        "changed since"
    )
    anew = TWO.replace("AGAIN", "score = judge(maker(torch.randn(4, 8, device='cuda')).detach())")
    program = analyse(ENTRY, ROOT, {ENTRY: anew}.get, Target())
    assert program is not None
    assert program.stops is None
