"""What a finding says is true of the program in front of it, and its worth is judged alike by all codemods."""

from __future__ import annotations

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.engine.pipeline import Trust
from turbofix.findings import Examined, Risk, Worth
from turbofix.training.model import Target

THIN = "nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.Flatten(), nn.Linear(1152, 99), nn.Linear(99, 8)"
WIDE = "nn.Conv2d(1, 256, 3), nn.Conv2d(256, 256, 3), nn.Flatten(), nn.Linear(147456, 4096), nn.Linear(4096, 8)"
TRAINING = """\
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader

from data import Pictures


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(LAYERS)

    def forward(self, x):
        return self.layers(x)


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Pictures(), batch_size=128, shuffle=True)
others = DataLoader(Pictures(), batch_size=128)
for epoch in range(50):
    total = 0.0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        criterion = nn.CrossEntropyLoss()
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # counted
        total += loss.item()
    print(total)
    with torch.no_grad():
        for at, (x, y) in enumerate(others):
            print(model(x.cuda()).argmax(1)[0])
            if at == 4:
                break
torch.save(model.state_dict(), "net.pt")
"""
DATA = """\
import numpy as np
import torch


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 500000

    def __getitem__(self, index):
        return torch.from_numpy(np.load(f"{index}.npy")), index % 8
"""
ARITHMETIC = ("autocast", "channels-last", "compile-model", "tf32")


def workspace(text: str) -> MemoryWorkspace:
    return MemoryWorkspace({ENTRY: text, ENTRY.with_name("data.py"): DATA})


def findings(text: str) -> list[Examined]:
    return list(pipeline.analyze(ENTRY, workspace(text), registry.load(), Target()).findings)


@pytest.mark.parametrize(("layers", "worth"), [(THIN, {Worth.SMALL}), (WIDE, {Worth.HIGH, Worth.SOME})])
def test_one_network_is_worth_the_same_to_whatever_makes_it_faster(layers: str, worth: set[Worth]) -> None:
    found = {each.codemod: each for each in findings(TRAINING.replace("LAYERS", layers)) if each.fixable}
    worths = {name: found[name].worth for name in ARITHMETIC if name in found}
    assert len(worths) > 1
    assert set(worths.values()) <= worth
    assert all(found[name].gain is None for name in worths if worth == {Worth.SMALL})


def test_what_is_hardly_noticed_says_so() -> None:
    found = findings(TRAINING.replace("LAYERS", THIN))
    (built,) = [each for each in found if each.codemod == "hoist-loader"]
    assert built.worth is Worth.SMALL
    assert not [each for each in found if each.codemod == "loader-workers" and "others" in each.message]


def test_a_graph_that_is_kept_is_no_wait() -> None:
    found = findings(TRAINING.replace("LAYERS", WIDE).replace("loss.item()", "loss"))
    (sum_,) = [each for each in found if each.codemod == "defer-item" and "graph" in each.message]
    assert sum_.gain is None


def test_workers_that_an_option_without_a_default_counts_are_to_be_passed() -> None:
    option = "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--workers', type=int)\n"
    text = TRAINING.replace("LAYERS", WIDE).replace("shuffle=True", "num_workers=parser.parse_args().workers")
    (left,) = [
        each for each in findings(option + text) if each.codemod == "loader-workers" and "loader" in each.message
    ]
    assert not left.fixable
    assert left.why_not == "pass --workers: as many as there are CPUs, at most 16"


@pytest.mark.parametrize(("here", "told"), [("settings.device", True), ("torch.device('cuda')", False)])
def test_a_training_that_never_speaks_of_a_gpu_is_told(here: str, *, told: bool) -> None:
    text = (
        TRAINING.replace("LAYERS", WIDE)
        .replace(".cuda()", "")
        .replace("model = Net()", f"import settings\n\nmodel = Net()\nhere = {here}")
    )
    said = [each for each in findings(text) if each.codemod == "use-cuda" and "speaks of CUDA" in each.message]
    assert [each.fixable for each in said] == [False] * told
    few = DATA.replace("500000", "300")
    less = pipeline.analyze(
        ENTRY, MemoryWorkspace({ENTRY: text, ENTRY.with_name("data.py"): few}), registry.load(), Target()
    )
    assert not [each for each in less.findings if "speaks of CUDA" in each.message]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("found = self.table.gather(0, x[:, 0, 0, 0].long().cpu())", "a table on the host is looked up"),
        ("found = self.table.gather(0, x[:, 0, 0, 0].long())", None),
        ("places = self.places.to(x.device)", "what the module keeps is copied to the GPU"),
        ("self.places = self.places.to(x.device)", None),
        ("places = self.places.to(self.device)", None),
        ("places = self.places[: x.size(1)].to(self.device)", "what the module keeps is copied to the GPU"),
        ("places = torch.autograd.Variable(self.places[:3]).to(x.device)", "what the module keeps is copied"),
        ("self.register_buffer('places', x); places = self.places[:3].to(x.device)", None),
        ("rows = torch.LongTensor(self.rows[x.shape[0]]).to(self.dev)", "a tensor is made of what the host holds"),
        ("rows = torch.tensor(self.rows[x.shape[0]]).to(x.device)", "a tensor is made of what the host holds"),
    ],
)
def test_what_a_forward_pass_brings_from_the_host_is_told(line: str, told: str | None) -> None:
    text = TRAINING.replace("LAYERS", WIDE).replace("    return self.layers", f"    {line}\n        return self.layers")
    said = [each for each in findings(text) if each.codemod == "device-tensors" and each.site.line == 15]
    assert [each.message.startswith(told or "") for each in said if not each.fixable] == [True] * (told is not None)


def test_a_save_without_a_file_saves_nothing() -> None:
    found = findings(TRAINING.replace("LAYERS", WIDE).replace(', "net.pt")', ")"))
    (lost,) = [each for each in found if each.codemod == "crash-checkpoint"]
    assert "it is saved nowhere" in lost.message


def test_nothing_is_left_of_copies_that_preloading_makes_needless() -> None:
    data = "data = torch.utils.data.TensorDataset(torch.randn(512, 1, 28, 28), torch.randint(0, 8, (512,)))\n"
    text = TRAINING.replace("LAYERS", THIN).replace("from data import Pictures\n", data).replace("Pictures()", "data")
    text = text.replace("            if at == 4:\n                break\n", "")
    found = [each for each in findings(text) if each.codemod in ("non-blocking", "pin-memory") and each.fixable]
    assert found
    assert all(
        each.message.endswith("; where preload-dataset keeps the data on the GPU, it is needless") for each in found
    )
    done = pipeline.apply(
        ENTRY, workspace(text), registry.load(), Target(), Risk.EQUIVALENT, trust=Trust(likely=True)
    ).texts[ENTRY]
    assert "preloaded(" in done
    assert "non_blocking" not in done
    assert "pin_memory" not in done


LIGHTNING = """\
import lightning as L
import torch
from torch.utils.data import DataLoader

from data import Pictures


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 8)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


train = DataLoader(Pictures(), batch_size=64)
test = DataLoader(Pictures(), batch_size=64)
trainer = L.Trainer(accelerator="gpu", max_epochs=10)
trainer.fit(Net(), train)
trainer.test(Net(), test)
"""


def test_a_test_after_the_training_is_one_pass() -> None:
    pins = {each.message[:7]: each.why_not for each in findings(LIGHTNING) if each.codemod == "pin-memory"}
    assert pins["`train`"] is None
    assert "one pass of an evaluation" in (pins["`test` "] or "")


ATTENTION = """\
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(64, 64) for _ in range(3))
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(-2, -1) / 8.0 ** 0.5
        weights = torch.softmax(scores, dim=-1)
        return weights @ v


"""


def attention(changed: str, to: str) -> list[tuple[bool, str]]:
    """What sdpa says of an attention, some lines of which are others."""
    assert changed in ATTENTION
    own = ATTENTION.replace(changed, to)
    text = TRAINING.replace("LAYERS", "Attention(), " + WIDE).replace("class Net", own + "class Net")
    said = [each for each in findings(text) if each.codemod == "sdpa"]
    return [(each.fixable, each.message) for each in said]


def test_scores_less_their_greatest_give_the_same_softmax() -> None:
    line = "        weights = torch.softmax"
    for less in ("scores.amax(dim=-1, keepdim=True).detach()", "scores.max(dim=-1, keepdim=True).values"):
        ((fixable, _),) = attention(line, f"        scores = scores - {less}\n{line}")
        assert fixable
    for other in ("scores.amax(dim=1, keepdim=True)", "x.amax(dim=-1, keepdim=True)"):
        assert [fixable for fixable, _ in attention(line, f"        scores = scores - {other}\n{line}")] == [False]


def test_attention_that_was_not_followed_is_told() -> None:
    turned = "scores = scores.permute(1, 0, 2) + self.mask\n        weights = torch.softmax"
    ((fixable, message),) = attention("weights = torch.softmax", turned)
    assert not fixable
    assert message.startswith("attention seems written out")
    assert attention("return weights @ v", "return weights") == []
    assert attention(" @ k.transpose(-2, -1)", " * k") == []  # a gate


def test_an_optimizer_that_was_not_followed_is_told() -> None:
    own = "\n\ndef elsewhere(model, told):\n    return torch.optim.Adam(model.parameters(), 1e-3TOLD)\n"
    for told, count in (("", 1), (", **told", 0), (", fused=True", 0)):
        text = TRAINING.replace("LAYERS", WIDE) + own.replace("TOLD", told)
        said = [each.message for each in findings(text) if each.codemod == "fused-optimizer"]
        assert sum("if they lie on a GPU" in each for each in said) == count
