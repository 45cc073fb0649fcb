"""Every framework against every codemod: it is recognised by what is called, and no second mechanism is added to it."""

from __future__ import annotations

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target
from turbofix.training.program import analyse

BATCHES = {"pin-memory", "non-blocking"}
LEFT = {"tf32", "fused-optimizer"}
"""What stays the script's own under Accelerate and Fabric, besides messages and reads."""

OWNED = {"autocast"} | BATCHES | LEFT
"""Codemods of precision, placement and stepping: a framework's business where there is one."""

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
{imports}

def main():
    device = torch.device("cuda")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16384), nn.ReLU(), nn.Linear(16384, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = datasets.ImageFolder("leaves", transforms.ToTensor())
    loader = DataLoader(data, batch_size=32, shuffle=True)
    {prepare}
    for epoch in range(10):
        total = 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            {backward}
            {step}
            total += loss.item()
        print(total / len(loader))


if __name__ == "__main__":
    main()
"""

PREPARED = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
LITE = "class Lite(LightningLite):\n    def run(self):\n        pass\n"
INITIALIZED = 'model, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config="zero.json")'

LOOPS = {
    "accelerate": (
        "from accelerate import Accelerator",
        f"accelerator = Accelerator(); {PREPARED}",
        "accelerator.backward(loss)",
        "optimizer.step()",
    ),
    "accelerate, by its package": (
        "import accelerate",
        f'accelerator = accelerate.Accelerator(mixed_precision="bf16"); {PREPARED}',
        "accelerator.backward(loss)",
        "optimizer.step()",
    ),
    "fabric": (
        "import lightning as L",
        "fabric = L.Fabric(); model, optimizer = fabric.setup(model, optimizer)",
        "fabric.backward(loss)",
        "optimizer.step()",
    ),
    "fabric, its own package": (
        "from lightning_fabric import Fabric",
        "fabric = Fabric(); model, optimizer = fabric.setup(model, optimizer)",
        "fabric.backward(loss)",
        "optimizer.step()",
    ),
    "fabric, as it was called before": (
        f"from pytorch_lightning.lite import LightningLite\n{LITE}",
        "fabric = Lite(); model, optimizer = fabric.setup(model, optimizer)",
        "fabric.backward(loss)",
        "optimizer.step()",
    ),
    "deepspeed": ("import deepspeed", INITIALIZED, "model.backward(loss)", "model.step()"),
    "deepspeed, when it is asked for": (
        "import deepspeed, sys",
        f'if "--deepspeed" in sys.argv: {INITIALIZED}',
        "loss.backward()",
        "optimizer.step()",
    ),
}

WITHOUT_A_LOOP = {
    "lightning": """
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = torch.nn.Linear(2, 2)
    def training_step(self, batch, index):
        images, labels = batch
        optimizer = self.optimizers()
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(self.net(images), labels)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss.item())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

def main():
    loader = DataLoader(datasets.ImageFolder("leaves", transforms.ToTensor()), batch_size=4)
    pl.Trainer(accelerator="gpu").fit(Classifier(), loader)

main()
""",
    "lightning, from the command line": """
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI

class Classifier(LightningModule):
    def training_step(self, batch, index):
        return self(batch).mean()

LightningCLI(Classifier)
""",
    "lightning, by its own constructor": """
import argparse
import pytorch_lightning as pl

trainer = pl.Trainer.from_argparse_args(argparse.ArgumentParser().parse_args())
trainer.fit(None)
""",
    "lightning, a file of modules": """
import torch
from lightning import LightningModule

class Classifier(LightningModule):
    def training_step(self, batch, index):
        return self(batch).mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
""",
    "transformers": """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return model(**inputs).loss

Weighted(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=TrainingArguments("out")).train()
""",
    "transformers, by trl": """
from trl import SFTTrainer

SFTTrainer("gpt2", train_dataset=None).train()
""",
}

PLAIN = ("", "pass", "loss.backward()", "optimizer.step()")
MERELY_IMPORTED = {
    "accelerate": "from accelerate import Accelerator",
    "deepspeed": "import deepspeed",
    "lightning": "import lightning as L",
    "ignite's metrics": "from ignite.metrics import Accuracy\naccuracy = Accuracy()",
    "transformers": "from transformers import Trainer",
    "seeding by lightning": "import lightning as L\nL.seed_everything(1)",
}


def program(imports: str, prepare: str, backward: str, step: str) -> str:
    return PROGRAM.format(imports=imports, prepare=prepare, backward=backward, step=step)


def report(text: str) -> pipeline.FileReport:
    return pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())


def fixable(found: pipeline.FileReport) -> set[str]:
    return {each.codemod for each in found.findings if each.fixable}


def proven(found: pipeline.FileReport) -> set[str]:
    return {each.codemod for each in found.findings if each.fixable and each.certainty == "proven"}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_under_a_framework_keeps_to_the_framework(name: str) -> None:
    text = program(*LOOPS[name])
    found = report(text)
    assert found.framework == name.partition(",")[0]
    allowed = {
        "deepspeed": BATCHES,
        "accelerate": LEFT | BATCHES,  # whose own settings say how batches are copied
        "fabric": LEFT | {"pin-memory"},
    }.get(found.framework, set())
    # by its own option, if the launcher sets none; by what to set in its configuration
    told = {"autocast"} if found.framework in ("accelerate", "deepspeed") else set()
    assert not {each.codemod for each in found.findings if not each.is_unseen} & (OWNED - allowed - told)
    assert not fixable(found) & (OWNED - allowed - (told if found.framework == "accelerate" else set()))
    rewriting = pipeline.apply(ENTRY, MemoryWorkspace.of(text), registry.load(), Target(), Risk.RECIPE)
    after = rewriting.texts.get(ENTRY, text)
    words = {"autocast", "GradScaler", *(each.replace("-", "_") for each in BATCHES - allowed)}
    words |= set() if "fused-optimizer" in allowed else {"fused"}
    assert [word for word in sorted(words) if word in after] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accelerate", {"tf32", "fused-optimizer", "defer-item"}),
        ("accelerate, by its package", {"fused-optimizer", "defer-item"}),  # which asks for bfloat16
        ("fabric", {"tf32", "fused-optimizer", "defer-item"}),
        ("fabric, its own package", {"tf32", "fused-optimizer", "defer-item"}),
        ("fabric, as it was called before", {"defer-item"}),
        ("deepspeed", set()),
    ],
)
def test_what_a_framework_leaves_to_the_script_is_found(name: str, expected: set[str]) -> None:
    imports, prepare, backward, step = LOOPS[name]
    make, _, prepare = prepare.partition("; ")
    text = program(imports, prepare or make, backward, step)
    if prepare:  # made first, as it has to be for what asks it
        text = text.replace("    device =", f"    {make}\n    device =")
    assert proven(report(text)) & (LEFT | {"defer-item"}) == expected


@pytest.mark.parametrize("name", WITHOUT_A_LOOP)
def test_a_training_without_a_loop_of_its_own_is_the_frameworks(name: str) -> None:
    found = report(WITHOUT_A_LOOP[name])
    assert found.framework == name.partition(",")[0]
    assert found.trains
    # The trainer of transformers has a switch for TF32, and no warm-up by default; mixed precision is refused for the
    # `compute_loss` of its own. Under Lightning the loaders are the script's.
    assert proven(found) == {
        "transformers": {"tf32", "warmup-schedule"},
        "lightning": {"fused-optimizer", "loader-workers", "pin-memory"},
    }.get(name, set())


IGNITE = """
import torch
from ignite.engine import Engine, create_supervised_trainer
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(datasets.ImageFolder("leaves", transforms.ToTensor()), batch_size=4)

def step(engine, batch):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch[0].cuda()), batch[1].cuda()).backward()
    optimizer.step()

"""


def test_an_engine_of_ignite_is_but_a_loop_around_a_step() -> None:
    found = report(IGNITE + "Engine(step).run(loader, max_epochs=3)\n")
    assert found.framework == "pytorch"
    assert fixable(found) >= {"fused-optimizer", "pin-memory", "non-blocking"}
    made = "create_supervised_trainer(model, optimizer, torch.nn.CrossEntropyLoss(), 'cuda')"
    found = report(IGNITE + f"{made}.run(loader, max_epochs=3)\n")
    assert fixable(found) >= {"fused-optimizer", "pin-memory"}
    assert not fixable(found) & {"autocast", "non-blocking"}


def test_batches_under_deepspeed_are_copied_by_the_script() -> None:
    assert fixable(report(program(*LOOPS["deepspeed"]))) >= BATCHES


def test_a_loader_under_accelerate_stays_the_users_own() -> None:
    assert "loader-workers" in fixable(report(program(*LOOPS["accelerate"])))


@pytest.mark.parametrize("name", MERELY_IMPORTED)
def test_what_is_merely_imported_owns_nothing(name: str) -> None:
    found = report(program(MERELY_IMPORTED[name], *PLAIN[1:]))
    assert found.framework == "pytorch"
    assert fixable(found) >= {"autocast", "tf32", "fused-optimizer", "pin-memory", "non-blocking"}


@pytest.mark.parametrize(
    ("imports", "framework"),
    [
        ("from accelerate import Accelerator", "accelerate"),
        ("import lightning as L", "fabric"),
        ("import deepspeed", "deepspeed"),
        ("", "pytorch"),
    ],
)
def test_an_engine_that_is_passed_in_takes_the_loss(imports: str, framework: str) -> None:
    text = f"""
import torch
{imports}

def train_one_epoch(engine, loader, optimizer):
    model = torch.nn.Linear(4096, 4096).cuda()
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        engine.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
    found = report(text)
    assert found.framework == framework
    assert not {"autocast", "tf32"} & fixable(found)


def test_a_gradient_that_is_passed_to_backward_is_no_engine() -> None:
    text = program(*PLAIN).replace("loss.backward()", "loss.backward(torch.ones_like(loss))")
    assert report(text).framework == "pytorch"
    assert {"autocast", "tf32"} <= {each.codemod for each in report(text).findings}


PRECISION = {
    "apex": (
        "from apex import amp",
        'model, optimizer = amp.initialize(model, optimizer, opt_level="O1")',
        "with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()",
        "optimizer.step()",
    ),
    "apex's optimizer": (
        "from apex.fp16_utils import FP16_Optimizer",
        "optimizer = FP16_Optimizer(optimizer)",
        "optimizer.backward(loss)",
        "optimizer.step()",
    ),
    "sharding": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision",
        "model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))",
        "loss.backward()",
        "optimizer.step()",
    ),
    "sharding, second version": (
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))",
        "loss.backward()",
        "optimizer.step()",
    ),
    "an engine of another library": (
        "import bmtrain",
        "manager = bmtrain.optim.OptimManager(loss_scale=1024)",
        "manager.backward(loss)",
        "manager.step()",
    ),
}


@pytest.mark.parametrize("name", PRECISION)
def test_precision_that_a_library_has_taken_over_is_not_doubled(name: str) -> None:
    found = report(program(*PRECISION[name]))
    assert not {"autocast", "tf32"} & {each.codemod for each in found.findings}
    if name in ("apex", "sharding", "sharding, second version"):
        assert [each.site.line for each in found.in_place if each.codemod == "autocast"] == [14]


OWN_SCALER = """
class Scaler:
    def __init__(self):
        self.inner = torch.cuda.amp.GradScaler()
    def __call__(self, loss, optimizer):
        self.inner.scale(loss).backward()
        self.inner.step(optimizer)
        self.inner.update()
"""

SCALERS = {
    "timm": (
        "from timm.utils import NativeScaler",
        "scaler = NativeScaler()",
        "scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())",
        "pass",
    ),
    "the script's own": (
        OWN_SCALER,
        "scaler = Scaler()",
        "scaler(loss, optimizer)",
        "pass",
    ),
    "another library's": (
        "from fairscale.optim.grad_scaler import ShardedGradScaler",
        "scaler = ShardedGradScaler()",
        "scaler.scale(loss).backward()",
        "scaler.step(optimizer); scaler.update()",
    ),
}


@pytest.mark.parametrize("name", SCALERS)
def test_a_scaler_steps_and_gets_no_second_one(name: str) -> None:
    text = program(*SCALERS[name])
    assert [each.fixable for each in report(text).findings if each.codemod == "autocast"] == [True]
    codemods = [each for each in registry.load() if each.name == "autocast"]
    trusting = pipeline.Trust(likely=True)
    after = pipeline.apply(ENTRY, MemoryWorkspace.of(text), codemods, Target(), Risk.EQUIVALENT, trust=trusting)
    assert after.texts[ENTRY].count("torch.autocast(") == 1
    assert after.texts[ENTRY].count("GradScaler(") == text.count("GradScaler(")
    wrapped = program(*SCALERS[name]).replace("loss = nn.", 'with torch.autocast("cuda"): loss = nn.')
    assert [each.codemod for each in report(wrapped).in_place if each.codemod == "autocast"] == ["autocast"]


def test_a_script_that_only_tests_asks_a_module_for_no_optimizer() -> None:
    text = """
import lightning as L
import torch


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


L.Trainer().HOW(Net())
"""
    line = 1 + text[: text.index("Adam")].count("\n")
    for how, acts in (("fit", True), ("test", False)):
        found = analyse(
            ENTRY,
            ENTRY.parent,
            {ENTRY: "from net import Net\nNet\n", ENTRY.with_name("net.py"): text.replace("HOW", how)}.get,
            Target(),
        )
        assert found is not None
        assert ((ENTRY.with_name("net.py"), line) in found.acts_on) is acts


def test_the_copies_of_one_batch_are_one_finding() -> None:
    text = PROGRAM.format(imports="", prepare="", backward="loss.backward()", step="optimizer.step()")
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
    (copies,) = (each for each in report.findings if each.codemod == "non-blocking")
    assert copies.message == "the host waits for these 2 copies of a batch of `loader`"
