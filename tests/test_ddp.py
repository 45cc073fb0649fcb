"""Whole scripts that `ddp` carries to several processes: what they learn there, what they leave, and how they end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ranks

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.engine.verifying import plan_comparison
from turbofix.findings import Risk
from turbofix.source.files import Workspace
from turbofix.training.model import Target
from turbofix.verify import Options, runner, verify

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("warm_interpreters"),
    pytest.mark.skipif(not runner.FORKS, reason="several processes are run on Linux alone"),
]

FOLDER = Path(__file__).parent / "several"
SCRIPTS = (
    "flat",
    "functions",
    "trainer",
    "accumulation",
    "gan",
    "metrics",
    "resume",
    "stream",
    "weighted",
    "phases",
    "batches",
    "copies",
    "padded",
    "beside",
    "accelerated",
    "methods",
)
PLAIN = ("flat", "functions", "resume")
"""Of which each process may have a share of the data."""
STEPS, BOUND = 51, 1e-5
SIXTEEN_BITS = {"accumulation": 1e-3}
"""Of products in 16 bits, which round otherwise for half of a batch."""
NEEDS = {"accelerated": "accelerate"}


@pytest.fixture(scope="module")
def launcher() -> Iterator[ranks.Server]:
    with ranks.server() as server:
        yield server


def applied(path: Path, zero: int = 0) -> pipeline.Rewriting:
    chosen = [each for each in registry.load() if each.name == "ddp"]
    trust = pipeline.Trust(likely=True)
    return pipeline.apply(path, Workspace(), chosen, Target(gpus=2, zero=zero), Risk.EQUIVALENT, trust=trust)


def rewritten(path: Path, zero: int = 0) -> str:
    """The script as `ddp` writes it; what it calls is written beside it."""
    found = applied(path, zero)
    assert not found.report.notes, found.report.notes
    for other, text in found.texts.items():
        if not other.exists():
            other.write_text(text)
    return found.texts[path]


def written_otherwise(path: Path, old: str, new: str) -> None:
    """Have what stands beside a script do something else, as it would on another machine, or in less time."""
    (beside,) = (each for each in map(path.with_name, ("ranks.py", "workers.py")) if each.exists())
    text = beside.read_text()
    assert text.count(old) == 1
    beside.write_text(text.replace(old, new))


def refused(path: Path) -> str | None:
    """Why `ddp` leaves the script alone."""
    (finding,) = applied(path).report.findings
    return finding.why_not


@pytest.mark.parametrize(("name", "zero"), [*((name, 0) for name in SCRIPTS), *((name, 1) for name in PLAIN)])
def test_two_processes_learn_what_one_learns(
    name: str, zero: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    script, candidate = tmp_path / f"{name}.py", tmp_path / "theirs"
    shutil.copy(FOLDER / f"{name}.py", script)
    candidate.mkdir()
    for path, text in applied(script, zero).texts.items():
        (candidate / path.name).write_text(text)
    found = verify(plan_comparison(script, candidate, (), Risk.EQUIVALENT, Options(steps=STEPS, timeout=120.0)))
    assert found.verdict == "pass", found.reason
    assert (found.processes, found.steps >= 50) == (2, True)
    told = re.search(r"of one process \(largest relative difference (\S+) over (\d+) steps", " ".join(found.notes))
    assert told is not None, "\n".join(found.notes)
    assert int(told[2]) >= 50
    assert float(told[1]) <= SIXTEEN_BITS.get(name, BOUND)


def shape(printed: str) -> list[str]:
    """What is printed, but for the numbers."""
    return [re.sub(r"[\d.]+", "#", line) for line in printed.splitlines()]


@pytest.mark.parametrize("name", ["copies", "gan", "methods"])
def test_it_prints_once_and_keeps_what_the_script_keeps(name: str, tmp_path: Path, launcher: ranks.Server) -> None:
    one, alone, two = (tmp_path / folder / f"{name}.py" for folder in ("one", "alone", "two"))
    for path in (one, alone, two):
        path.parent.mkdir()
        shutil.copy(FOLDER / f"{name}.py", path)
    for each, text in applied(two).texts.items():
        for path in (alone, two):
            path.with_name(each.name).write_text(text)
    ours = launcher.run(one, 1).out[0]
    assert launcher.run(alone, 1).out[0] == ours  # without torchrun it does what it did
    theirs = launcher.run(two)
    assert not theirs.error, theirs.error
    assert (shape(theirs.out[0]), theirs.out[1]) == (shape(ours), "")
    saved = {each.name for each in one.parent.iterdir()} - {one.name}
    assert {each.name for each in two.parent.iterdir()} - {one.name, "workers.py", "__pycache__"} == saved != set()
    for each in saved:
        assert keys(one.parent / each) == keys(two.parent / each)


def keys(path: Path) -> object:
    """What a checkpoint holds, but for the numbers."""

    def of(kept: object) -> object:
        if isinstance(kept, dict):
            return {key: of(value) for key, value in kept.items()}
        return tuple(kept.shape) if isinstance(kept, torch.Tensor) else type(kept).__name__

    return of(torch.load(path, weights_only=False))


def test_what_epochs_show_is_that_of_all(tmp_path: Path, launcher: ranks.Server) -> None:
    """In each of the ways in which scripts count: `tests/several/figures.py`."""
    script = tmp_path / "figures.py"
    shutil.copy(FOLDER / "figures.py", script)
    ours = launcher.run(script, 1).out[0].split()
    text = rewritten(script)
    script.write_text(text)
    theirs = launcher.run(script)
    assert not theirs.error, theirs.error
    shown = list(zip(ours, theirs.out[0].split(), strict=True))
    assert len(shown) > 40
    for one, all_together in shown:
        if one != all_together:
            assert float(all_together) == pytest.approx(float(one), rel=1e-6), shown


def test_a_checkpoint_of_two_processes_goes_on_in_the_script_as_it_was(tmp_path: Path, launcher: ranks.Server) -> None:
    script = tmp_path / "resume.py"
    shutil.copy(FOLDER / "resume.py", script)
    script.write_text(rewritten(script))
    assert not launcher.run(script).error
    shutil.copy(FOLDER / "resume.py", script)
    assert launcher.run(script, 1).out[0].startswith("goes on at epoch 4\n")


SMALL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn({count}, 4)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size={size}, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a).squeeze(1), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return tmp_path / "small.py"


def test_a_share_of_one_sample_is_not_normalised(small: Path) -> None:
    """On CPUs, where layers of one dimension do not take it."""
    text = SMALL.format(count=16, size=8)
    small.write_text(text.replace("nn.Linear(4, 1)", "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))"))
    assert "workers.shared(model)" in shared_out(small)


def test_a_share_of_one_sample_is_not_squeezed(small: Path) -> None:
    text = SMALL.format(count=30, size=8)
    assert "DistributedSampler(" in shared_out(small, text)
    assert "DistributedSampler(" not in shared_out(small, text.replace("squeeze(1)", "squeeze()"))


def test_the_last_loss_is_that_of_the_whole_batch(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.format(count=4, size=4).replace('print("epoch", epoch)', "print(loss.item())")
    small.write_text(text)
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    small.write_text(rewritten(small))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-5)


TRAINING = """\
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Answer:
    scores: torch.Tensor
    kept: torch.Tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.idle = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def encode(self, x):
        return self.body(x).tanh()

    def decode(self, kept):
        return self.head(kept)

    def forward(self, x):
        return self.decode(self.encode(x))


class Spread(nn.Module):
    def forward(self, scores, labels):
        return F.cross_entropy(scores, labels) / scores.std(0).sum()


class Told(Net):
    def forward(self, x):
        kept = self.encode(x)
        return Answer(scores=self.decode(kept), kept=kept)


class Losing(Net):
    warm = 0

    def forward(self, x, labels, how="mean"):
        scores = super().forward(x)
        lost = F.cross_entropy(scores, labels, reduction=how)
        kept = self.warm * scores.pow(2).sum()
        return {"loss": lost, "row": lost[None], "scores": scores, "name": "losing", "kept": kept}


class Found(Net):
    bound = 9

    def forward(self, x):
        scores = super().forward(x)
        return scores[scores[:, 0] > self.bound]


class Beside(Net):
    def forward(self, x, other):
        return super().forward(x) + (other(x) if isinstance(other, nn.Module) else other.pow(2).sum(0))


torch.manual_seed(0)
np.random.seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(COUNT, 6)
y = x.argmax(1) % 3
softmax = nn.Softmax(0)
model = Net()
net = nn.Linear(6, 3)
optimizer = torch.optim.Adam([*model.parameters(), *net.parameters()], 0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
state = None
for epoch in range(3):
    shown = []
    for a, b in loader:
        STEP
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown.append(loss.item())
        if loss.item() < 0.9:
            break
    print(epoch, len(shown), *shown)
print(*(each.sum().item() for each in model.parameters()))
"""
SAME = {
    "a sum": "loss = F.cross_entropy(model(a), b, reduction='sum')",
    "a mean over what counts": "loss = F.cross_entropy(model(a), b, ignore_index=2)",
    "weighted": "loss = F.cross_entropy(model(a), b, weight=torch.tensor([1.0, 2.0, 5.0]))",
    "pairs": "z = F.normalize(model(a))\nloss = F.cross_entropy(z @ z.T / 0.2, torch.arange(len(a)))",
    "weights beside": "loss = F.cross_entropy(model(a), b) + 0.1 * sum(each.norm() for each in model.parameters())",
    "two passes": "loss = F.cross_entropy(model(a), b) + F.mse_loss(model(a + 0.1), model(a))",
    "a gradient's size": """\
inputs = a.clone().requires_grad_()
scores = model(inputs)
(grad,) = torch.autograd.grad(scores.logsumexp(1).sum(), inputs, create_graph=True)
loss = F.cross_entropy(scores, b) + grad.norm(2, 1).pow(2).mean()""",
    "a hook": """\
kept = []
hook = model.body.register_forward_hook(lambda layer, given, answer: kept.append(answer))
loss = F.cross_entropy(model(a), b) + kept[0].pow(2).mean()
hook.remove()""",
    "what sees gradients": """\
state = state or model.head.weight.register_hook(lambda grad: shown.append(grad.norm().item()))
loss = F.cross_entropy(model(a), b)""",
    "methods": "loss = F.cross_entropy(model.decode(model.encode(a)), b)",
    "forward by name": "loss = F.cross_entropy(model.forward(a), b)",
    "cut by hand": "order = np.random.permutation(COUNT)[:8]\nloss = F.cross_entropy(model(x[order]), y[order])",
    "over samples": "loss = F.cross_entropy(model(a), b) * (a.mean(0).norm() + len(a))",
    "a loss of its own": "loss = Spread()(model(a), b)",
    "a softmax beside": "loss = F.cross_entropy(model(a), b)\nwith torch.no_grad():\n    softmax(torch.ones(10))",
    "left out": "if a[0, 0] > 0:\n    continue\nloss = F.cross_entropy(model(a), b)",
    "Told": "told = model(a)\nloss = F.cross_entropy(told.scores, b) + told.kept.pow(2).mean()",
    "Losing": "loss = model(a, labels=b)['loss']",
    "Losing, as a row": "loss = model(a, labels=b)['row'].mean()",
    "Losing, from zero": "model.warm = epoch\nlost = model(a, labels=b)\nloss = lost['loss'] + lost['kept']",
    "Losing, as told": "loss = sum(model(a, labels=b, how=each)['loss'] for each in ('mean', 'sum'))",
    "Found nothing at first": (
        "model.bound = -9 if epoch else 9\n"
        "loss = F.cross_entropy(model.decode(model.encode(a)), b) + model(a).sum() / 9"
    ),
    "Beside a net": "loss = F.cross_entropy(model(a, net), b)",
    "Beside what it gave": "loss = F.cross_entropy(model(a, model(x[:6], x[0, :3])), b)",
    "a gradient of gradients": """\
lost = F.cross_entropy(model(a), b)
(grad,) = torch.autograd.grad(lost, model.head.weight, create_graph=True)
loss = lost + grad.pow(2).sum()""",
}


@pytest.mark.parametrize("name", SAME)
def test_all_that_a_script_does_with_a_batch_is_the_same(name: str, small: Path, launcher: ranks.Server) -> None:
    """Whatever its losses, figures and decisions hang on; the last batch of 21 samples does not divide."""
    text = TRAINING.replace("STEP\n", SAME[name].replace("\n", "\n        ") + "\n", 1).replace("COUNT", "21")
    text = (
        text.replace("= Net()", f"= {re.split('[ ,]', name)[0]}()")
        if name[:4] in ("Told", "Losi", "Besi", "Foun")
        else text
    )
    small.write_text(text)
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    text = rewritten(small)
    assert "workers.shared(model" in text
    small.write_text(text)
    assert [float(each) for each in launcher.run(small, 1).out[0].split()] == ours  # without torchrun
    ran = launcher.run(small)
    assert not ran.error, ran.error
    whole = ("a hook", "Told", "Found nothing at first", "a gradient's size", "a gradient of gradients")
    assert ("computes the whole batch" in ran.err[0]) == (name in whole)
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-4)
    assert len(ours) > 11


HANGING = {
    "a mean over the batch": "return super().forward(x - x.mean(0))",
    "a running figure": "self.seen = 0.9 * self.seen + x.mean()\nreturn super().forward(x) * self.seen",
    "a state made beforehand": "return super().forward(x + self.hidden[: len(x)])",
    "weights that are asked for": "return super().forward(self.bounded(x.argmax(1)))",
    "a table of NumPy's that it changes": (
        "self.table *= 0.5\nself.table += x.detach().sum(0).numpy()\n"
        "return super().forward(x + torch.from_numpy(self.table))"
    ),
    "a buffer that changes slowly": (
        "y = super().forward(x) * (self.slow - 1) * 1e4\nself.slow += 1e-5 * x.sum()\nreturn y"
    ),
    "its batch in place": "return super().forward(x.mul_(2))",
    "a queue": "self.queue.append(x.mean())\nreturn super().forward(x) * sum(self.queue)",
    "a generator of its own": "return super().forward(x + torch.rand(x.shape, generator=self.chance))",
    "layers that some rows leave out": (
        "self.calls.append(0)\ny = super().forward(x)\n"
        "return y + self.other(x) if len(self.calls) > 4 and x[:, 0].max() > 0.5 else y"
    ),
    "a tensor that it changes": "self.hidden.mul_(0.5).add_(x.sum())\nreturn super().forward(x) * self.hidden.mean()",
    "a layer that takes the rows for steps in time": "return super().forward(x + 3e-4 * self.steps(x)[0])",
    "hooks that it sets up": (
        "if not hasattr(self, 'hooked'):\n"
        "    self.hooked = self.normed.register_forward_hook(lambda *_: self.calls.append(0))\n"
        "self.calls.clear()\n"
        "return self.normed(super().forward(x)) * len(self.calls)"
    ),
    "each against each": "kept = super().forward(x)\nreturn kept @ kept.t()",
    "one sample after another": "return torch.stack([super(Net, self).forward(each) for each in x]).roll(1, 0)",
}
"""Answers of which the rows hang on each other."""
EACH = {
    "noise": "return super().forward(x + 0 * torch.randn_like(x))",
    "a decision for all": "return super().forward(x) if torch.rand(1) < 2 else x",
    "weights by norm": "return self.normed(super().forward(x))",
    "what it prints": "self.calls.append(0)\nprint(len(self.calls), end=' ')\nreturn super().forward(x)",
    "a figure read outside": "self.kl = x.pow(2).mean()\nreturn super().forward(x)",
    "a list that is made anew": "self.memory = [x.mean(1)]\nreturn super().forward(x)",
    "a figure as a number": (
        "y = super().forward(x) * (1 + self.run)\nself.run = self.run / 2 + x.mean().item()\nreturn y"
    ),
    "flattened": "return super().forward(x.view(-1, 2).view(-1, 6)).view(-1).view(-1, 3)",
}
"""Answers of which each row is computed by itself."""


@pytest.mark.parametrize("name", [*HANGING, *EACH])
def test_rows_that_hang_on_each_other_are_computed_by_all(name: str, small: Path, launcher: ranks.Server) -> None:
    """The first calls tell, whatever it is: a call is shared out where its answer to some rows is as to all."""
    body = (HANGING | EACH)[name].replace("\n", "\n        ")
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a * 1), b) + getattr(model, 'kl', 0)\n", 1)
    text = text.replace(
        "torch.manual_seed",
        f"""\
class Own(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("slow", torch.ones(1))
        self.run, self.queue, self.chance = 0.0, collections.deque(), torch.Generator()
        self.other = nn.Linear(6, 3)
        self.hidden, self.kl, self.calls = torch.arange(8.0)[:, None], 0, []
        self.steps = nn.RNN(6, 6)
        self.table = self.hidden.new_zeros(6).numpy()
        self.bounded = nn.Embedding(6, 6, max_norm=1)
        self.normed = nn.utils.weight_norm(nn.Linear(3, 3))

    def forward(self, x):
        {body.replace("super(Net", "super(Own")}


torch.manual_seed""",
        1,
    )
    text = text.replace("shuffle=True", "shuffle=True, generator=torch.Generator()")
    text = "import collections\nimport warnings\n\nwarnings.filterwarnings('ignore')\n" + text  # but ours
    small.write_text(text.replace("= Net()", "= Own()").replace("COUNT", "21"))
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    small.write_text(rewritten(small))
    ran = launcher.run(small)
    assert not any("Traceback" in each for each in ran.err), ran.err
    assert ("computes the whole batch of Own" in ran.err[0]) == (name in HANGING)
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-4)


def as_by_one(small: Path, launcher: ranks.Server) -> str:
    """See that two processes print the figures of one; what the first of them says beside."""
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    small.write_text(rewritten(small))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-4)
    return ran.err[0]


def test_hooks_that_a_library_sets_up_in_its_layers_see_the_rows(small: Path, launcher: ranks.Server) -> None:
    """They are part of what it computes: Transformers' collect hidden states so."""
    layer = """\
from torch import nn


class Told(nn.Linear):
    def forward(self, x):
        if not self._forward_hooks:
            self.register_forward_hook(lambda layer, given, answer: answer * 2)
        return super().forward(x)
"""
    packages = small.parent / "site-packages"
    (packages / "told").mkdir(parents=True)
    (packages / "told" / "__init__.py").write_text(layer)
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "21")
    text = text.replace("= Net()", "= nn.Sequential(told.Told(6, 6), Net())")
    text = f"import sys\n\nsys.path.append({str(packages)!r})\nimport told\n" + text
    small.write_text(text)
    assert "computes the whole batch" not in as_by_one(small, launcher)


def tried(text: str, behind: str) -> str:
    """A training whose epochs may fail, and what is done then."""
    head, loop = text.split("for epoch", 1)
    return "import os\n" + head + "try:\n" + textwrap.indent("for epoch" + loop, "    ") + behind


TOLD = "except RuntimeError as error:\n    import sys\n\n    print(error, file=sys.stderr)\n"


def test_each_process_has_the_keys_and_values_of_its_rows(small: Path, launcher: ranks.Server) -> None:
    cached = """\
class KeysCache:
    def __init__(self, keys):
        self.keys = keys


class Own(Net):
    def forward(self, x):
        kept = self.encode(x)
        return {"scores": self.decode(kept), "cache": KeysCache(kept)}


class Spread("""
    text = TRAINING.replace("class Spread(", cached, 1).replace("= Net()", "= Own()")
    text = text.replace("STEP\n", "loss = F.cross_entropy(model(a)['scores'], b)\n")
    small.write_text(rewritten_of(small, text.replace("COUNT", "24")))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert "computes the whole batch" not in ran.err[0]


def test_what_is_no_model_is_called_as_it_stands(small: Path, launcher: ranks.Server) -> None:
    """A method of a tensor, say."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    small.write_text(rewritten_of(small, text) + "print(workers.shared(x.size)(0))\n")
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert ran.out[0].split()[-1] == "24"


def test_samples_may_come_second(small: Path, launcher: ranks.Server) -> None:
    text = TRAINING.replace("= Net()", "= nn.GRU(6, 3)").replace(
        "STEP\n", "out = model(torch.stack([a, a, a]))[0][-1]\n        loss = F.cross_entropy(out, b)\n"
    )
    small.write_text(text.replace("COUNT", "21"))
    as_by_one(small, launcher)


STATE = TRAINING.replace("= Net()", "= nn.GRU(6, 3, num_layers=3, batch_first=True)").replace(
    "STEP\n",
    "out, state = model(a[:, None], state)\n        state = state.detach()\n"
    "        loss = F.cross_entropy(out[:, 0], b)\n",
)


def test_a_state_goes_from_step_to_step(small: Path, launcher: ranks.Server) -> None:
    small.write_text(STATE.replace("COUNT", "24"))
    as_by_one(small, launcher)


def test_each_process_drops_other_numbers(small: Path, launcher: ranks.Server) -> None:
    text = TRAINING.replace("STEP\n", "out = model(a)\n        loss = F.cross_entropy(out * 1, b)\n").replace(
        "COUNT", "24"
    )
    text = text.replace("self.body(x).tanh()", "F.dropout(torch.ones_like(self.body(x)), 0.5)")
    small.write_text(rewritten_of(small, text) + "print(workers.shared(model.encode)(x[:8]).tolist())\n")
    ran = launcher.run(small)
    assert not ran.error, ran.error
    rows = eval(ran.out[0].splitlines()[-1])
    assert rows[:4] != rows[4:]


def test_norms_that_count_over_all_are_of_their_class_and_so_are_their_copies(
    small: Path, launcher: ranks.Server
) -> None:
    text = SMALL.format(count=16, size=8)
    asked = """
import copy
import io
import sys


class Acting(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).relu()


pair = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm2d(6, affine=False), Acting(6)).eval()
given = [torch.randn(4, 6), torch.randn(4, 6, 2, 2), torch.randn(4, 6)]
before = [each(one) for each, one in zip(pair, given)]
ranks.synchronise(pair)
ranks.synchronise(pair)
file = io.BytesIO()
torch.save(pair, file)
file.seek(0)
for one in (pair, copy.deepcopy(pair), torch.load(file, weights_only=False)):
    assert all(torch.equal(each(x), y) for each, x, y in zip(one, given, before))
    assert [isinstance(each, nn.BatchNorm2d) for each in one] == [False, True, False]
    print(*[isinstance(each, nn.SyncBatchNorm) for each in one], file=sys.stderr)
"""
    small.write_text(shared_out(small, text) + asked)
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert ran.err[0].split()[-9:] == ["True", "True", *["False"] * 7]


def test_norms_are_over_all_processes(small: Path, launcher: ranks.Server) -> None:
    """In training, whatever says so: torch's layers, and functions that are given none."""
    own = """\
class Own(nn.Module):
    def forward(self, x):
        return F.batch_norm(x, None, None, training=True)


class Spread("""
    text = TRAINING.replace("= Net()", "= nn.Sequential(Own(), nn.BatchNorm1d(6), Net())").replace("class Spread(", own)
    text = text.replace("STEP\n", "loss = F.cross_entropy(model(a), b, reduction='sum')\n").replace("COUNT", "21")
    small.write_text(text + "print(model[1].running_var.sum().item())\n")
    assert "computes the whole batch" not in as_by_one(small, launcher)


def test_shares_leave_the_same_running_figures_in_all(small: Path, launcher: ranks.Server) -> None:
    """Else an evaluation that each makes for itself says something else in each, and so does what hangs on it."""
    text = SMALL.format(count=16, size=8).replace(
        "nn.Linear(4, 1)",
        "nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 1))",
    )
    small.write_text(text)
    text = shared_out(small)
    assert "DistributedSampler(" in text
    small.write_text(text + 'open(f"kept{ranks.rank}", "w").write(str(model[1].running_var.tolist()))\n')
    assert not launcher.run(small).error
    one, other = ((small.parent / f"kept{rank}").read_text() for rank in range(2))
    assert one == other


def started(small: Path, *given: str) -> subprocess.CompletedProcess[str]:
    """A script in two processes, as torchrun starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", small.name, *given]
    return subprocess.run(command, cwd=small.parent, capture_output=True, text=True, timeout=100, check=False)


def rewritten_of(path: Path, text: str) -> str:
    path.write_text(text)
    return rewritten(path)


def shared_out(path: Path, text: str | None = None) -> str:
    """The script as it is written where each process is to have a share of the data."""
    if text is not None:
        path.write_text(text)
    return rewritten(path, zero=1)


@pytest.mark.parametrize("by_chance", ["layers", "order", "dropout"])
def test_an_evaluation_by_chance_is_not_left_to_each(by_chance: str, small: Path) -> None:
    """Each process would have other figures, and stop, or save, at another epoch than the others."""
    text = SMALL.format(count=16, size=8).replace("torch.manual", NOISY + "torch.manual")
    text = text.replace("nn.Linear(4, 1)", "Noisy()").replace("model =", "held = DataLoader(x, batch_size=8)\nmodel =")
    text += "    model.eval()\n    with torch.no_grad():\n        print(sum(model(a).sum().item() for a in held))\n"
    assert "DistributedSampler(" in shared_out(small, text)
    changes = {
        "layers": ("return super", "x = x + torch.randn_like(x)\n        return super"),
        "order": ("(x, batch_size=8)", "(x, batch_size=8, shuffle=True)"),
        "dropout": ("    model.eval()\n", "    Dropout = nn.Dropout\n"),
    }
    assert "workers.shared(model)" in shared_out(small, text.replace(*changes[by_chance]))


NOISY = """\
class Noisy(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)

    def forward(self, x):
        return super().forward(x)


"""


def test_a_sum_that_is_divided_by_all_samples_is_over_all(small: Path, launcher: ranks.Server) -> None:
    """Shares have some samples twice, so that all are as long."""
    text = (
        SMALL.format(count=17, size=8)
        .replace("    for a,", "    total = right = 0\n    for a,")
        .replace("lr=0.1", "lr=0")
    )
    text = text.replace(
        "    print(",
        "        total += loss.item() * len(b)\n"
        "        right += (b == b).sum().item()\n"
        "    print(total / len(x), f'{right:d}', right / len(x),",
    )
    head, body = text.split("for epoch in range(3):\n")
    own = "def train(read):\n" + body.replace("loader", "read") + "\n\nepoch = 0\ntrain(loader)\n"
    assert "total = ranks.of_all(total, read)" in shared_out(small, head + own)
    small.write_text(text)
    ours = launcher.run(small, 1).out[0].split()
    text = shared_out(small, text)
    assert "DistributedSampler(" in text
    small.write_text(text)
    ran = launcher.run(small)
    assert not ran.error, ran.error
    theirs = ran.out[0].split()
    assert [theirs[at] for at in range(15) if at % 5] == [ours[at] for at in range(15) if at % 5]
    assert list(map(float, theirs[::5])) == pytest.approx(list(map(float, ours[::5])), rel=0.2)


def test_a_default_that_a_call_gives_is_no_field_of_its_argument(small: Path) -> None:
    """A class that is declared by its fields may read its defaults from the environment."""
    text = SMALL.format(count=16, size=8).replace(
        "import torch\n", "import os\nfrom dataclasses import dataclass\n\nimport torch\n", 1
    )
    own = (
        "@dataclass\nclass Config:\n    kind: str = os.environ.get('KIND', 'linear')\n\n\n"
        "def build(kind):\n    if kind == 'linear':\n        return nn.Linear(4, 1)\n    raise ValueError(kind)\n\n\n"
    )
    text = text.replace("device =", own + "device =").replace("model = nn.Linear(4, 1)", "model = build(Config().kind)")
    assert "DistributedSampler(" in shared_out(small, text)


LAYERS = {
    "`x.max() > 1` in `Net` chooses": "if x.max() > 1:\n            x = self.more(x)\n        return x",
    "the model goes backward": "x = super().forward(x)\n        x.mean().backward()\n        return x",
}


@pytest.mark.parametrize("why", LAYERS)
def test_what_no_run_would_show_is_refused(why: str, small: Path) -> None:
    text = SMALL.format(count=16, size=4).replace("squeeze(1), b)", "squeeze(1), b, reduction='sum')")
    small.write_text(text)
    assert "workers.shared(model)" in rewritten(small)
    body = f"    def forward(self, x):\n        {LAYERS[why]}\n"
    text = text.replace("torch.manual", f"class Net(nn.Linear):\n{body}\n\ntorch.manual")
    small.write_text(text.replace("= nn.Linear(4, 1)", "= nn.Sequential(Net(), nn.BatchNorm1d(4))"))
    assert why in str(refused(small))


SAVES = "import torch\n\n\ndef keep(model):\n    torch.save(model.state_dict(), 'model.pt')\n"
UP = "import os\nimport sys\n\nsys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n"


@pytest.mark.parametrize(
    ("script", "head", "file", "start", "beside"),
    [
        ("train.py", "from utils.keeping import keep\n", "utils/keeping.py", ["train.py"], "ranks.py"),
        ("src/train.py", "from src.keeping import keep\n", "src/keeping.py", ["-m", "src.train"], "src/ranks.py"),
        ("src/train.py", "from .keeping import keep\n", "src/keeping.py", ["-m", "src.train"], "src/ranks.py"),
        ("tools/train.py", f"{UP}from utils.keeping import keep\n", "utils/keeping.py", ["tools/train.py"], "ranks.py"),
    ],
)
def test_what_processes_share_stands_where_all_find_it(  # noqa: PLR0913
    script: str, head: str, file: str, start: list[str], beside: str, small: Path
) -> None:
    """And so does another script that imports one of the files that are changed."""
    root = small.parent
    (root / ".git").mkdir()
    for path, text in (
        (script, head + SMALL.format(count=16, size=8) + "keep(model)\n"),
        (file, SAVES),
    ):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    for place, text in applied(root / script, zero=1).texts.items():
        place.write_text(text)
    assert [each.relative_to(root) for each in root.rglob("ranks.py")] == [Path(beside)]
    assert "ranks.once(torch.save)" in (root / file).read_text()
    other = f"from {file.removesuffix('.py').replace('/', '.')} import keep; keep"
    for command in (
        start,
        ["-c", other],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *start],
    ):
        ran = subprocess.run(
            [sys.executable, *command], cwd=root, capture_output=True, text=True, timeout=100, check=False
        )
        assert ran.returncode == 0, ran.stderr
    assert (root / "model.pt").exists()


def test_a_generator_that_is_trained_by_what_it_gave_to_another_loop_is_shared(small: Path) -> None:
    """A loop in the loop trains the critic; the generator takes its step behind it, by the last pictures."""
    text = (FOLDER / "gan.py").read_text()
    begins, ends = text.index("        netD.zero_grad()\n"), text.index("        netG.zero_grad()\n")
    inner = "".join(f"    {line}" for line in text[begins:ends].splitlines(keepends=True))
    inner = inner.replace("fake.detach()", "fake").replace(
        "errD_fake.backward()", "errD_fake.backward(retain_graph=True)"
    )
    text = text[:begins] + "        for _ in range(2):\n" + inner + text[ends:]
    text = text.replace("criterion(netD(fake), label)", "criterion(netD(fake), torch.ones(len(real)))")
    assert "fake = workers.shared(netG)(noise)" in rewritten_of(small, text)


def test_the_group_leaves_the_script_s_names_as_they_are(small: Path, launcher: ranks.Server) -> None:
    names = (
        "from datetime import datetime\nfrom random import random\n\nimport torch\nimport matplotlib.pyplot as plt\n"
    )
    text = SMALL.format(count=16, size=4).replace("import torch\n", names, 1)
    used = "print(datetime.now().year > 2000, random() < 1)\nplt.show()\n"
    small.write_text(rewritten_of(small, text + used))
    ran = launcher.run(small)
    assert (ran.out[0].splitlines()[-1], ran.error) == ("True True", "")


def test_a_call_in_a_call_that_is_shared_is_not_shared_again(small: Path, launcher: ranks.Server) -> None:
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "21")
    small.write_text(text)
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    text = rewritten(small)
    assert "workers.shared(model)(a)" in text
    text = text.replace("workers.shared(model)(a)", "workers.shared(model.scores)(a)")
    method = "    def scores(self, x):\n        return workers.shared(self)(x)\n\n"
    small.write_text(text.replace("    def encode(", f"{method}    def encode(", 1))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert "computes the whole batch" not in ran.err[0]
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-4)


def test_what_is_a_mean_over_the_rows_is_none_of_the_rows_however_near(small: Path, launcher: ranks.Server) -> None:
    """Ten examples of ten classes, and pictures to tell apart: a share of the examples gives nearly the same answer."""
    compared = """\
class Own(Net):
    def forward(self, examples, x):
        return self.encode(x).flatten(1) @ self.encode(examples).mean(1).flatten(1).T


class Spread("""
    text = TRAINING.replace("class Spread(", compared, 1).replace("= Net()", "= Own()").replace("COUNT", "24")
    text = text.replace(
        "STEP\n",
        "given = a[:, None, None, None, :].expand(8, 8, 1, 1, 6) + noise, a[:, None, None, :]\n"
        "        loss = F.cross_entropy(model(*given), b)\n",
        1,
    )
    small.write_text(text.replace("state = None", "state, noise = None, torch.randn(8, 8, 1, 1, 6) / 100"))
    ours = [float(each) for each in launcher.run(small, 1).out[0].split()]
    text = rewritten(small)
    small.write_text(text)
    written_otherwise(small, "exact else 1e-4", "exact else 1e-1")  # as it may be on GPUs
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert "computes the whole batch of Own" in ran.err[0]
    assert [float(each) for each in ran.out[0].split()] == pytest.approx(ours, rel=1e-4)


def test_a_mask_as_long_as_the_batch_is_no_part_of_it(small: Path, launcher: ranks.Server) -> None:
    masked = """\
class Own(Net):
    def forward(self, x, mask):
        return super().forward(x) + (x[:, :1, None] * mask[None].float()).mean((1, 2))[:, None]


class Spread("""
    text = TRAINING.replace("class Spread(", masked, 1).replace("= Net()", "= Own()").replace("COUNT", "24")
    small.write_text(text.replace("STEP\n", "loss = F.cross_entropy(model(a, torch.ones(8, 8).triu().bool()), b)\n", 1))
    assert "computes the whole batch" not in as_by_one(small, launcher)


def test_data_are_not_preloaded_where_processes_share_them_out(small: Path) -> None:
    small.write_text(SMALL.format(count=4096, size=16))
    both = [each for each in registry.load() if each.name in ("preload-dataset", "ddp")]
    found = pipeline.apply(
        small, Workspace(), both, Target(gpus=2, zero=1), Risk.EQUIVALENT, trust=pipeline.Trust(likely=True)
    )
    assert "DistributedSampler(" in found.texts[small]
    reasons = [each.why_not for each in found.report.findings if each.codemod == "preload-dataset"]
    assert reasons == ["several processes share out its samples by their numbers"]


@pytest.mark.parametrize(("count", "size", "processes"), [(13, 4, 2), (1, 4, 2), (2, 6, 3)])
def test_uneven_batches_and_fewer_samples_than_processes_come_to_an_end(
    count: int, size: int, processes: int, small: Path, launcher: ranks.Server
) -> None:
    small.write_text(SMALL.format(count=count, size=size))
    small.write_text(rewritten(small))
    ran = launcher.run(small, processes)
    assert (ran.out[0].splitlines(), ran.error) == (["epoch 0", "epoch 1", "epoch 2"], "")


def test_a_batch_that_cannot_be_shared_out_is_an_error_that_says_so(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.format(count=12, size=3).replace(
        "torch.manual", "import sys\n\nsize = len(sys.argv) + 2\ntorch.manual", 1
    )
    small.write_text(text.replace("batch_size=3", "batch_size=size"))
    small.write_text(shared_out(small))
    assert all("the batch size is no multiple of the number of processes" in each for each in launcher.run(small).err)


def test_torchrun_s_processes_go_through_sets_in_one_order(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    text = SMALL.format(count=16, size=8).replace("import torch\n", "import sys\n\nimport torch\n", 1)
    words = """\
shown = ["set", *sorted(sys.argv[1:]), *set("a set of many words in no order".split())]
sys.stderr.write(" ".join(shown) + "\\n")  # at once: both write to one place
"""
    small.write_text(shared_out(small, text + words))
    done = started(small, "x y")
    assert done.returncode == 0
    shown = [line for line in done.stderr.splitlines() if line.startswith("set x y ")]
    assert len(shown) == 2
    assert len({*shown}) == 1


def test_torchrun_s_processes_share_the_rows(small: Path) -> None:
    """Processes that are no copies of one another have objects in other places."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    small.write_text(rewritten_of(small, text))
    done = started(small)
    assert done.returncode == 0, done.stderr
    assert "computes the whole batch" not in done.stderr


def test_workers_that_are_spawned_leave_no_group(small: Path) -> None:
    text = SMALL.format(count=16, size=4).replace("shuffle=True", "num_workers=1, multiprocessing_context='spawn'")
    head, loop = text.split("torch.manual_seed(0)", 1)
    loop = 'if __name__ == "__main__":' + loop.replace("\n", "\n    ").rstrip(" ")
    small.write_text(rewritten_of(small, head + loop.replace("range(3)", "range(1)")))
    done = started(small)
    assert done.returncode == 0
    assert "Exception ignored" not in done.stderr


def test_noise_follows_the_seeds_of_the_script(small: Path, launcher: ranks.Server) -> None:
    """A figure that is always taken with the same noise, to compare it, is so by several processes as well."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    text = text.replace("= Net()", "= Noisy()").replace("class Spread(", f"{NOISE}class Spread(", 1)
    asked = "for seed in (1, 1, 2):\n    torch.manual_seed(seed)\n"
    asked += "    print(*(round(workers.shared(model)(x[:8]).sum().item(), 4) for _ in range(9)))\n"
    small.write_text(rewritten_of(small, text) + asked)
    ran = launcher.run(small)
    assert not ran.error, ran.error
    one, again, other = (line.split() for line in ran.out[0].splitlines()[-3:])
    assert one == again != other
    assert len({*one}) == 9


NOISE = """\
class Noisy(Net):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


"""


def test_what_a_model_logs_is_logged_once(small: Path, launcher: ranks.Server) -> None:
    """Not for each try as well."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    logged = "class Logged(Net):\n    def forward(self, x):\n        logging.warning('seen')\n"
    logged += "        return super().forward(x)\n\n\ntorch.manual_seed"
    text = "import logging\n" + text.replace("torch.manual_seed", logged, 1).replace("= Net()", "= Logged()")
    small.write_text(text)
    ours = launcher.run(small, 1).err[0].count("seen")
    small.write_text(rewritten(small))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert [each.count("seen") for each in ran.err] == [ours, 0]


def test_a_state_of_another_size_is_computed_whole(small: Path, launcher: ranks.Server) -> None:
    """What was as long as the batch in the first calls is not so later on."""
    text = TRAINING.replace(
        "STEP\n", "loss = F.cross_entropy(model(a, state), b)\n        state = 1 + 0 * a[:, :3]\n", 1
    )
    text = text.replace("loss =", "state = state[:1] if epoch else torch.zeros(8, 3)\n        loss =", 1)
    layers = "class Kept(Net):\n    def forward(self, x, state):\n        return super().forward(x) + state\n\n\n"
    text = (
        text.replace("= Net()", "= Kept()").replace("class Spread(", f"{layers}class Spread(", 1).replace("COUNT", "24")
    )
    small.write_text(text)
    as_by_one(small, launcher)


def test_a_torch_that_may_not_be_there_is_torch(small: Path) -> None:
    text = SMALL.format(count=16, size=4).replace("squeeze(1), b)", "squeeze(1), b, reduction='sum')")
    head, rest = text.split("\n\n", 1)
    tried = "try:\n    " + head.replace("\n", "\n    ") + "\nexcept ImportError:\n    torch = None\n\n"
    found = rewritten_of(small, tried + rest + "torch.save(model, 'model.pt')\n")
    assert "workers.shared(model)" in found
    assert "\nimport torch\n" not in found


def test_a_script_that_is_imported_again_has_its_group_already(small: Path, launcher: ranks.Server) -> None:
    small.with_name("study.py").write_text("def study():\n    from small import SIZE\n\n    return SIZE\n")
    text = SMALL.format(count=16, size=4).replace("import torch\n", "import torch\nfrom study import study\n", 1)
    head, loop = text.split("torch.manual_seed(0)", 1)
    loop = 'SIZE = 4\n\nif __name__ == "__main__":' + loop.replace("\n", "\n    ").rstrip(" ")
    small.write_text(rewritten_of(small, head + loop + "    print(study())\n"))
    ran = launcher.run(small)
    assert not ran.error, ran.error
    assert ran.out[0].split()[-1] == "4"


def test_what_nothing_calls_is_no_reason_to_refuse(small: Path) -> None:
    text = SMALL.format(count=16, size=4).replace("squeeze(1), b)", "squeeze(1), b, reduction='sum')")
    text += "\n\ndef fit(wanted, hidden):\n    for _ in range(3):\n        (hidden - wanted).sum().backward()\n"
    assert "workers.shared(model)" in rewritten_of(small, text)
    assert "workers.shared(model)" in rewritten_of(small, text + "\n\nfit(x, x.clone().requires_grad_())\n")


def test_a_process_that_does_not_train_is_no_reason_to_refuse(small: Path) -> None:
    text = SMALL.format(count=16, size=4).replace("import torch\n", "import multiprocessing\nimport torch\n", 1)
    started_by = text.replace("torch.manual", "child = multiprocessing.Process(target=print)\ntorch.manual", 1)
    assert "workers.begin" in rewritten_of(small, started_by)
    head, loop = text.split("model = ")
    training = f"{head}def train():\n{textwrap.indent('model = ' + loop, '    ')}\n\n"
    small.write_text(training + "multiprocessing.Process(target=train).start()\n")
    assert "workers.begin" not in applied(small).texts.get(small, "")


def test_what_a_trial_sets_is_put_back_whatever_its_shape(small: Path, launcher: ranks.Server) -> None:
    """As layers do that take their weights from the first batch that they see."""
    body = "if self.fresh:\n    self.shift.data = -x.mean(0, keepdim=True)\n    self.fresh.zero_()\n"
    text = with_forward(body + "return self.decode(self.encode(x + self.shift))\n")
    made = "nn.Linear(8, 3)\n        self.shift = nn.Parameter(torch.zeros(1, 6))\n"
    made += "        self.register_buffer('fresh', torch.ones(()))\n\n    def encode"
    small.write_text(text.replace("nn.Linear(8, 3)\n\n    def encode", made))
    assert "computes the whole batch" in as_by_one(small, launcher)


def test_a_search_against_the_model_is_no_training_of_another_one(small: Path) -> None:
    text = SMALL.format(count=16, size=8)
    text += "for a, b in loader:\n    a = a.clone().requires_grad_()\n"
    text += "    nn.functional.mse_loss(model(a).squeeze(1), b).backward()\n"
    assert "workers.shared(model)" in rewritten_of(small, text)


def test_imports_behind_the_training_are_none_of_the_helpers(small: Path, launcher: ranks.Server) -> None:
    text = SMALL.format(count=16, size=4) + "\nimport types\n\nprint(types.__name__)\n"
    small.write_text(rewritten_of(small, text.replace("model = ", "import sys\n\nmodel = ", 1)))
    ran = launcher.run(small)
    assert (ran.error, ran.out[0].splitlines()) == ("", ["epoch 0", "epoch 1", "epoch 2", "types"])


def test_a_choice_that_only_an_evaluation_makes_is_no_reason_to_refuse(small: Path) -> None:
    text = SMALL.format(count=16, size=4).replace("squeeze(1), b)", "squeeze(1), b, reduction='sum')")
    layers = """\
class Net(nn.Linear):
    def forward(self, x):
        if self.training:
            return super().forward(x)
        return self.search(x)

    def search(self, x):
        while x.max() > 1:
            x = x - self.step(x)
        return super().forward(x)

    def step(self, x):
        return x.abs().mean()


torch.manual"""
    layers = layers.replace("        return self.search(x)", "        else:\n            return self.search(x)")
    text = text.replace("torch.manual", layers).replace("= nn.Linear(4, 1)", "= Net()")
    assert "workers.shared(model)" in rewritten_of(small, text)
    chosen = text.replace("if self.training:", "if not self.training:")
    assert "workers.shared(model)" in rewritten_of(small, chosen)
    small.write_text(chosen.replace("= Net()", "= nn.Sequential(Net(), nn.BatchNorm1d(1))"))
    assert "chooses by the rows" in str(refused(small))


def with_forward(body: str) -> str:
    """A training whose model goes forward by these lines."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    return text.replace("        return self.decode(self.encode(x))\n", textwrap.indent(body, " " * 8), 1)


FORWARD = """\
answer = self.decode(self.encode(x))
self.sizes, self.calls = (len(x), 6 * len(x)), getattr(self, "calls", 0) + 1
return answer * (2 if self.calls > 5 else 1)
"""
COUNTING = """\
self.seen = getattr(self, "seen", 0) + len(x)
return self.decode(self.encode(x)) * (2 if self.seen > 40 else 1)
"""
CHOOSING = """\
kept, answer = self.encode(x), x.new_zeros(len(x), 3)
for sign in dict.fromkeys((x[:, 0] > 0).tolist()):
    rows = (x[:, 0] > 0) == sign
    answer = answer.masked_scatter(rows[:, None], (self.head if sign else self.idle)(kept[rows]))
return answer
"""


def test_what_a_model_counts_and_chooses_is_that_of_all(small: Path, launcher: ranks.Server) -> None:
    small.write_text(with_forward(FORWARD))
    assert "computes the whole batch" not in as_by_one(small, launcher)
    small.write_text(with_forward(COUNTING))
    assert "computes the whole batch" in as_by_one(small, launcher)
    small.write_text(with_forward(CHOOSING))
    as_by_one(small, launcher)


def test_layers_that_the_first_call_makes_are_shared_from_then_on(small: Path, launcher: ranks.Server) -> None:
    text = with_forward("return self.decode(self.encode(x))\n")
    small.write_text(text.replace("= Net()", "= nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 3))"))
    assert "computes the whole batch" not in as_by_one(small, launcher)
    made = "self.late = self.late if hasattr(self, 'late') else nn.Linear(3, 3)\n"  # of the same numbers in all
    small.write_text(with_forward(made + "return self.late(self.decode(self.encode(x)))\n"))
    as_by_one(small, launcher)


def test_a_number_that_says_what_a_model_answers(small: Path, launcher: ranks.Server) -> None:
    text = with_forward(
        "return self.decode(self.encode(x)) if how < 2 else F.cross_entropy(self.decode(self.encode(x)), b)\n"
    )
    text = text.replace("def forward(self, x):", "def forward(self, x, how, b):", 1)
    lost = "loss = model(a, epoch, b)\n        loss = F.cross_entropy(loss, b) if loss.dim() else loss"
    small.write_text(text.replace("loss = F.cross_entropy(model(a), b)", lost))
    assert "computes the whole batch" in as_by_one(small, launcher)


def test_a_hook_in_front_of_a_layer_sees_each_batch_once(small: Path, launcher: ranks.Server) -> None:
    text = with_forward("return self.decode(self.encode(x))\n")
    text = text.replace(
        "= Net()",
        "= Net()\nseen = []\nmodel.body.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))",
    )
    small.write_text(text + "print(sum(seen), len(seen))\n")
    assert "computes the whole batch" in as_by_one(small, launcher)
    text = text.replace(
        "self.head, self.idle = nn.Linear(8, 3)", "self.head, self.idle = nn.utils.spectral_norm(nn.Linear(8, 3))"
    )
    text = text.replace("model.body.register_forward_pre_hook", "repr")
    small.write_text(text)
    assert "computes the whole batch" not in as_by_one(small, launcher)


def test_what_picks_rows_by_number_is_never_tried_with_some(small: Path, launcher: ranks.Server) -> None:
    """On a GPU, a number past the rows would end the process."""
    body = "if others.max() >= len(x):\n    print('past the rows', file=sys.stderr)\n"
    body += "return self.decode(self.encode(x + x[others]))\n"
    text = "import sys\n" + with_forward(body).replace("def forward(self, x):", "def forward(self, x, others):", 1)
    small.write_text(text.replace("model(a)", "model(a, torch.arange(len(a)).flip(0))"))
    said = as_by_one(small, launcher)
    assert ("computes the whole batch" in said, "past the rows" in said) == (True, False)


def test_models_go_after_each_other_in_sixteen_bits(small: Path, launcher: ranks.Server) -> None:
    text = (
        with_forward("return self.decode(self.encode(x))\n")
        .replace("model(a)", "net(model(a))")
        .replace("nn.Linear(6, 3)", "nn.Linear(3, 3)")
    )
    text = text.replace("        loss = ", "        with torch.autocast('cpu', torch.bfloat16):\n            loss = ")
    small.write_text(rewritten_of(small, text))
    ran = launcher.run(small)
    assert (ran.error, "computes the whole batch" in ran.err[0]) == ("", False)


CHANGING = {
    "return answer, answer.mean() + epoch * answer.sum()": True,  # a number that is nothing at first
    "return answer, answer.pow(2).sum() if self.calls > 5 else None": True,
    "return answer, answer.mean() * sum(self.bank.kept).detach()": True,
    "return answer, answer.mean() * (1 + random.random())": False,
    "return answer, answer.mean() * sum(random.random() for _ in answer)": True,
}


@pytest.mark.parametrize("answer", CHANGING)
def test_what_a_model_does_later_is_that_of_one_process(answer: str, small: Path, launcher: ranks.Server) -> None:
    made = """\
import random


class Bank:
    def __init__(self):
        self.kept = []


class Net(nn.Linear):
    def forward(self, x, epoch):
        answer, self.calls = super().forward(x), getattr(self, "calls", 0) + 1
        self.bank.kept = [*self.bank.kept, answer.mean()]
        ANSWER


torch.manual_seed(0)
random.seed(0)
"""
    if "bank" not in answer:
        made = made.replace("        self.bank.kept =", "        #")
    text = SMALL.format(count=76, size=8).replace("torch.manual_seed(0)\n", made.replace("ANSWER", answer))
    many = 900 if "bank" in answer else 1  # layers that keep nothing
    text = text.replace(
        "nn.Linear(4, 1)\n",
        f"Net(4, 1)\nmodel.bank = Bank()\nmodel.many = nn.ModuleList(nn.Identity() for _ in range({many}))\n",
    ).replace("shuffle=True", "shuffle=False")
    text = text.replace("model(a).squeeze(1), b)", "(answer := model(a, epoch))[0].squeeze(1), b)")
    text = text.replace(
        "        optimizer.zero", "        loss = loss + 0.01 * (answer[1] or 0)\n        optimizer.zero"
    )
    text = text.replace('"epoch", epoch)', "*(each.item() for each in model.weight[0]), random.random())")
    text = text.replace("lr=0.1", "lr=0.01")
    small.write_text(text)
    assert ("computes the whole batch" in as_by_one(small, launcher)) == CHANGING[answer]
    if "epoch" in answer:
        late = "answer.mean() + answer.sum() * (self.calls > 5)"  # seen in the tenth call
        small.write_text(rewritten_of(small, text.replace(answer, f"return answer, {late}")))
        assert "computes the whole batch" in launcher.run(small).err[0]


def test_what_other_settings_would_call_is_shared_too(small: Path) -> None:
    text = SMALL.format(count=16, size=4)
    branch = "if SETTINGS['twice']:\n            loss += model(a).mean() + other(a).mean()\n        optimizer.zero"
    text = text.replace("optimizer.zero", branch)
    made = "SETTINGS = {'twice': False}\nother = torch.nn.Linear(4, 4)\ntorch.manual"
    new = rewritten_of(small, text.replace("torch.manual", made, 1))
    assert "loss += workers.shared(model)(a).mean() + workers.shared(other)(a).mean()" in new


def test_a_script_that_another_one_starts_has_no_group(small: Path) -> None:
    small.write_text(rewritten_of(small, SMALL.format(count=16, size=4)))
    small = small.with_name("other.py")
    small.write_text("import small\n")
    torchrun_s = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    command, env = [sys.executable, small.name], {**os.environ, **torchrun_s}
    ran = subprocess.run(command, cwd=small.parent, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert "torchrun has to start the script itself" in ran.stderr


def test_a_mean_over_other_things_than_rows_is_told_where_nothing_was_learnt(
    small: Path, launcher: ranks.Server
) -> None:
    """Each row loses nearly the same at first, so that any mean of them looks like any other one."""
    body = "weights, lost = 0.1 + (x[:, 0] > 0), F.cross_entropy(self.decode(self.encode(x)), b, reduction='none')\n"
    text = with_forward(body + "return (lost * weights).sum() / weights.sum()\n")
    text = text.replace("def forward(self, x):", "def forward(self, x, b):", 1)
    text = text.replace("F.cross_entropy(model(a), b)", "model(a, b)")
    text = text.replace("net = ", "[each.data.mul_(1e-6) for each in model.parameters()]\nnet = ").replace(
        "0.01)", "1e-6)"
    )
    for weights, whole in (("0.1 + (x[:, 0] > 0)", True), ("x[:, 0] ** 0", False)):
        small.write_text(rewritten_of(small, text.replace("0.1 + (x[:, 0] > 0)", weights)))
        ran = launcher.run(small)
        assert (ran.error, "computes the whole batch" in ran.err[0]) == ("", whole)


def test_what_a_model_writes_into_what_it_is_given_is_that_of_the_batch(small: Path, launcher: ranks.Server) -> None:
    text = with_forward("told['mean'] = x.mean().item()\nreturn self.decode(self.encode(x))\n")
    text = text.replace("def forward(self, x):", "def forward(self, x, told):", 1).replace("model(a)", "model(a, told)")
    text = text.replace("state = None", "told = {}") + "print(told['mean'])\n"
    small.write_text(text)
    assert "computes the whole batch" in as_by_one(small, launcher)


def test_all_save_where_the_first_process_decides_to(small: Path) -> None:
    """By an evaluation that each GPU rounds its own way."""
    text = SMALL.format(count=16, size=8).replace("for epoch", "best = 9.0\nfor epoch")
    text += "    with torch.no_grad():\n        held = nn.functional.mse_loss(model(x).squeeze(1), x.sum(1)).item()\n"
    text += "    if held < best:\n        best = held\n        save_checkpoint()\n"
    save = "def save_checkpoint():\n    torch.save(model.state_dict(), 'a.pt')\n\n\ntorch.manual"
    new = shared_out(small, text.replace("torch.manual", save, 1))
    assert "DistributedSampler" in new
    assert "if ranks.agreed(held < best):" in new


def test_trainings_one_after_another_do_the_same(small: Path) -> None:
    head, _, rest = SMALL.format(count=16, size=8).partition("x = torch.randn")
    several = f"{head}for number in range(2):\n" + textwrap.indent("x = torch.randn" + rest, "    ")
    assert "DistributedSampler" in shared_out(small, head + "x = torch.randn" + rest)
    assert "workers.shared(model)" in shared_out(small, several)


def test_what_one_saves_and_fetches_is_there_for_all(small: Path) -> None:
    text = SMALL.format(count=16, size=8).replace("import torch\n", "import os\nimport torch\n", 1)
    text = text.replace("device =", "os.makedirs('kept', exist_ok=True)\ndata = MNIST('data', download=True)\ndevice =")
    text = "from torchvision.datasets import MNIST\n" + text + "torch.save(model.state_dict(), 'kept/model.pt')\n"
    new = shared_out(small, text)
    assert "ranks.once(os.makedirs)('kept', exist_ok=True)" in new
    assert "ranks.first(MNIST)('data', download=True)" in new
    assert "ranks.once(torch.save)(model.state_dict(), 'kept/model.pt')" in new


BESIDE = {
    "open('log.txt', 'w')": True,
    "open('log.txt')": False,
    "torch.optim.lr_scheduler.StepLR(optimizer, 1).step()": False,
    "model.eval()": False,
    "print(time.time())": False,
    "numpy.savetxt('a.txt', x)": True,
    "datetime.datetime.now()": True,
    "numpy.random.default_rng()": True,
    "numpy.random.default_rng(0)": False,
    "random.seed()": True,
    "random.seed(0)": False,
    "input('which? ')": True,
    "frame.to_csv('a.csv')": True,
    "torch.utils.tensorboard.SummaryWriter()": True,
    "os.environ.update(CUDA_VISIBLE_DEVICES='1')": True,
    "model.to('cuda:1')": True,
}


@pytest.mark.parametrize("does", BESIDE)
def test_what_one_process_has_to_do_is_left_to_one(does: str, small: Path) -> None:
    """A script that does more beside its training than to print and to save is run by one process."""
    head = "import datetime\nimport os\nimport random\nimport time\n\nimport numpy\nimport torch\n"
    text = SMALL.format(count=16, size=8).replace("import torch\n", head, 1) + f"{does}\n"
    assert ("workers.shared(model)" in shared_out(small, text)) == BESIDE[does]


def test_processes_name_their_gpus_alike(small: Path, launcher: ranks.Server) -> None:
    """What the script calls its first GPU is another one in each."""
    text = SMALL.format(count=16, size=4)
    small.write_text(rewritten_of(small, text))
    joined = "import os, sys, torch\n\ndef joined(*given, **told):\n"
    joined += "    print(os.environ['CUDA_VISIBLE_DEVICES'], file=sys.stderr, flush=True)\n    os._exit(0)\n\n"
    joined += "os.environ['CUDA_VISIBLE_DEVICES'] = '4,7,9'\ntorch.distributed.init_process_group = joined\n"
    assert [each.strip() for each in launcher.run(small, before=joined).err] == ["4,7,9", "7,9,4"]


def test_torchrun_ends_all_where_one_is_killed(small: Path) -> None:
    paths = [small.parent / name / small.name for name in ("workers", "ranks")]
    for path, write in zip(paths, (rewritten_of, shared_out), strict=True):
        path.parent.mkdir()
        path.write_text(write(path, SMALL.format(count=16, size=8)))
    text, killed = paths[0].with_name("workers.py").read_text(), "    if rank > 0:\n        os.kill(os.getpid(), 9)\n"
    paths[0].with_name("workers.py").write_text(
        text.replace("    if rank > 0:\n        set_chances(chance)\n", killed, 1)
    )
    dying = "    import os\n    if os.environ.get('RANK') == '1':\n        os.kill(os.getpid(), 9)\n    print("
    paths[1].write_text(paths[1].read_text().replace("    print(", dying))
    with ThreadPoolExecutor() as pool:
        for done in pool.map(started, paths):
            assert done.returncode != 0
            assert "SIGKILL" in done.stderr


def test_one_that_fails_or_is_interrupted_saves(small: Path) -> None:
    """After an interrupt in a call that is shared it goes on alone; else the others go on with it."""
    text = SMALL.format(count=16, size=4).replace("    print(", "    if epoch == 1:\n        WHY\n    print(")
    text = tried(text, "KEPT:\n    torch.save(model.state_dict(), 'kept.pt')\n    print(model(x).sum().dim())\n")
    inside = "model.register_forward_hook(lambda *_: os.kill(os.getpid(), 2)); model(x)"
    paths = []
    for number, (why, kept) in enumerate(
        (("raise MemoryError", "finally"), ("os.kill(os.getpid(), 2)", "except KeyboardInterrupt"), (inside, "finally"))
    ):
        paths.append(small.parent / str(number) / small.name)
        paths[-1].parent.mkdir()
        paths[-1].write_text(rewritten_of(paths[-1], text.replace("WHY", why).replace("KEPT", kept)))
    with ThreadPoolExecutor() as pool:  # they wait for most of the time
        done = list(pool.map(started, paths))
    assert all((each.parent / "kept.pt").exists() for each in paths)
    assert [each.stdout.split()[-1] for each in done[:2]] == ["0", "0"]


KEEPING = """\
import threading


class Own(Net):
    def __init__(self):
        super().__init__()
        self.lock, self.log, self.half = threading.Lock(), open("log.txt", "a"), lambda x: x / 2
        self.chance = torch.Generator()
        self.body = nn.utils.parametrizations.weight_norm(self.body)
        self.head = nn.utils.spectral_norm(self.head)

    def encode(self, x):
        return self.half(super().encode(x))


class Spread("""


def test_what_a_model_keeps_is_no_reason_to_compute_it_whole(small: Path, launcher: ranks.Server) -> None:
    """Locks, files and functions without a name, and weights that are computed of others."""
    text = TRAINING.replace("class Spread(", KEEPING, 1).replace("= Net()", "= Own()").replace("COUNT", "24")
    small.write_text(text.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1))
    assert "computes the whole batch" not in as_by_one(small, launcher)


def test_processes_have_a_model_as_it_is(small: Path, launcher: ranks.Server) -> None:
    """Whatever has changed it: a file, its data, its mode, what is trained of it, what it is told, another layer."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    text = text.replace("self.body(x).tanh()", "F.dropout(self.body(x).tanh() * self.much, 0.5, not self.training)")
    text = text.replace("= Net()", "= Net()\nmodel.much = 1").replace("shown.append(loss.item())", "shown.append(0)", 1)
    shows = "graded = [each.grad for each in model.parameters() if each.grad is not None]\n"
    shows += "print(model(x).sum().item(), sum(each.abs().sum().item() for each in graded))\n"
    changes = (
        "model.load_state_dict({name: 0.5 * each for name, each in model.state_dict().items()})",
        "for each in model.parameters(): each.data.mul_(1.1)",
        "model.much = 2",
        "model.requires_grad_(False)\nmodel.head.requires_grad_()",
        "model.body = nn.Linear(6, 8, bias=False)",
        "with torch.inference_mode(): print(model(x).sum().item())",
        "model.load_state_dict(torch.load('kept.pt'), strict=False)",
    )
    text += "torch.save(model.state_dict(), 'kept.pt')\n"
    for each in changes:
        text += f"{each}\noptimizer.zero_grad()\nF.cross_entropy(model(x), y).backward()\n{shows}"
    small.write_text(text)
    assert "computes the whole batch" not in as_by_one(small, launcher)


def test_workers_keep_nothing_of_what_is_gone(small: Path, launcher: ranks.Server) -> None:
    """Calls that nobody goes backward through any more, and models."""
    text = TRAINING.replace("STEP\n", "loss = F.cross_entropy(model(a), b)\n", 1).replace("COUNT", "24")
    head, loop = text.split("model = Net()")
    text = f"{head}for fold in range(3):\n" + textwrap.indent(f"model = Net(){loop}", "    ")
    small.write_text(rewritten_of(small, text) + "workers.shared(model)(x)\n")
    written_otherwise(
        small,
        '        if command == "end":\n',
        '        if command == "end":\n'
        "            print(len(Task.open), len(Task.models), file=sys.stderr, flush=True)\n",
    )
    ran = launcher.run(small)
    assert not ran.error, ran.error
    open_calls, models = map(int, ran.err[1].split()[-2:])
    assert (open_calls <= 2, models <= 2) == (True, True)
