"""What is right already is told with its line, where it is really in force: not in dead code, not behind a switch."""

from __future__ import annotations

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.training.model import Target

PROGRAM = """
import argparse
import os
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def train(model, loader, optimizer, device, scaler=None, precision=nullcontext()):
    for images, labels in loader:
        images = images.to(device{copy})
        labels = labels.to(device{copy})
        with {precision}:
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(args):
    {switch}
    device = torch.device("cuda")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3{optimizer})
    data = datasets.ImageFolder("leaves", transforms.ToTensor())
    loader = DataLoader(data, batch_size=32, shuffle=True{loader})
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    precision = torch.autocast("cuda") if args.amp else nullcontext()
    for _ in range(10):
        train(model, loader, optimizer, device, scaler, precision)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="{amp}")
    parser.add_argument("--workers", type=int, default={workers})
    main(parser.parse_args())
"""

PLAIN = {
    "copy": "",
    "precision": "nullcontext()",
    "switch": "pass",
    "optimizer": "",
    "loader": "",
    "amp": "store_true",
    "workers": "8",
}
LOOP, AUTOCAST, COPIES, SWITCH, OPTIMIZER, LOADER = 13, 16, [14, 15], 24, 27, 29


def told(**changes: str) -> list[tuple[str, int]]:
    text = PROGRAM.format(**{**PLAIN, **changes})
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
    assert not report.notes, report.notes
    assert report.trains
    # every variant makes its scaler by `torch.amp` and asks for a GPU, which are no questions here; at the loop of a
    # training stands what would bring nothing, and `zero_grad()` is in all
    beside = ("modern-amp", "use-cuda", "set-to-none")
    right = [each for each in report.in_place if each.codemod not in beside and each.site.line != LOOP]
    return [(each.codemod, each.site.line) for each in right if not each.message.endswith("bring nothing")]


def test_a_plain_training_has_nothing_in_place() -> None:
    assert told() == []


@pytest.mark.parametrize(
    "precision",
    [
        'torch.autocast("cuda", dtype=torch.bfloat16)',
        "torch.cuda.amp.autocast()",
        'torch.autocast("cuda", enabled=True)',
        'torch.autocast("cuda", enabled=torch.cuda.is_available())',
    ],
)
def test_autocast_in_force(precision: str) -> None:
    assert told(precision=precision) == [("autocast", AUTOCAST)]


@pytest.mark.parametrize("precision", ["precision", 'torch.autocast("cuda", enabled=scaler is not None)'])
def test_autocast_behind_a_switch_is_in_place_where_the_switch_is_on(precision: str) -> None:
    assert told(precision=precision, amp="store_true") == []
    assert told(precision=precision, amp="store_false") == [("autocast", AUTOCAST)]


def test_autocast_behind_a_test_of_which_nothing_is_known_says_so() -> None:
    text = PROGRAM.format(**{**PLAIN, "precision": 'torch.autocast("cuda") if os.path.exists("x") else nullcontext()'})
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
    assert [each.message for each in report.in_place if each.codemod == "autocast"] == [
        'the forward pass runs under autocast, where `os.path.exists("x")` says so'
    ]


def test_workers() -> None:
    for number in ("8", "args.workers", "os.cpu_count()"):
        assert told(loader=f", num_workers={number}, persistent_workers=True") == [("loader-workers", LOADER)]
        assert told(loader=f", num_workers={number}") == [("loader-workers", LOADER)]  # (and told to keep them)
    assert told(loader=", num_workers=args.workers", workers="0") == []


def test_pinned_memory_and_copies_that_need_it() -> None:
    pinned = ("pin-memory", LOADER)
    assert told(loader=", pin_memory=True") == [pinned]
    assert told(loader=", pin_memory=False") == []
    copies = [("non-blocking", line) for line in COPIES]
    assert told(loader=", pin_memory=True", copy=", non_blocking=True") == [*copies, pinned]
    assert told(copy=", non_blocking=True") == []  # pageable memory: the copy blocks whatever it is asked


def test_gradients_of_none() -> None:
    own = "class Own(torch.optim.AdamW):\n    def zero_grad(self):\n        pass\n\n\ndef train("
    plain = PROGRAM.format(**PLAIN)
    for text, right in ((plain, 1), (plain.replace("torch.optim.AdamW", "Own").replace("def train(", own), 0)):
        report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
        assert len([each for each in report.in_place if each.codemod == "set-to-none"]) == right


def test_fused() -> None:
    assert told(optimizer=", fused=True") == [("fused-optimizer", OPTIMIZER)]
    assert told(optimizer=", fused=False") == []


def test_of_what_would_bring_nothing_the_reason_is_told() -> None:
    text = PROGRAM.format(**PLAIN)
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
    told = {each.codemod: each.message for each in report.in_place if each.site.line == LOOP}
    assert told["tf32"] == "no float32 product of its is known to be large enough for TF32 to matter"
    spoken = {each.codemod for each in (*report.in_place, *report.findings)}
    assert {each.name for each in registry.load() if each.otherwise is not None} <= spoken


def test_tensor_cores() -> None:
    switch = 'torch.set_float32_matmul_precision("high")'
    assert told(switch=switch) == [("tf32", SWITCH)]
    assert told(switch='torch.set_float32_matmul_precision("highest")') == []
    assert told(switch=f"if False: {switch}") == []
    assert told(switch=f"if args.amp: {switch}", amp="store_true") == []
    assert told(switch=f"if args.amp: {switch}", amp="store_false") == [("tf32", SWITCH)]


HABITS = """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
loader = DataLoader(make(), batch_size=8, num_workers=8, pin_memory=True, persistent_workers=True)
for line in open("notes"):
    print(line)
for epoch in range(100):
    for step, (images, labels) in enumerate(loader):
        images, labels = images.cuda(), labels.cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("step")
        if step % 50 == 0:
            print("every now and then")
    schedule.step()
    print("an epoch")
    torch.save([model.state_dict(), optimizer.state_dict()], "model.pt")
"""


def test_a_table_tells_what_else_is_right_and_where() -> None:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(HABITS), registry.load(), Target())
    assert not report.notes, report.notes
    lines = HABITS.splitlines()
    found = {(each.codemod, lines[each.site.line - 1].strip().split("(")[0]) for each in report.in_place}
    assert found >= {
        ("bias-before-norm", "model = nn.Sequential"),
        ("warmup-schedule", "schedule = torch.optim.lr_scheduler.CosineAnnealingLR"),
        ("loader-workers", "loader = DataLoader"),
        ("pin-memory", "loader = DataLoader"),
        ("set-to-none", "optimizer.zero_grad"),
        ("clip-gradients", "nn.utils.clip_grad_norm_"),
        ("crash-checkpoint", "torch.save"),
    }
    weights = MemoryWorkspace.of(HABITS.replace(", optimizer.state_dict()]", "]"))
    in_place = pipeline.analyze(ENTRY, weights, registry.load(), Target()).in_place
    kept = [each.message for each in in_place if each.codemod == "crash-checkpoint"]
    assert kept == ["weights are saved in the course of the training"]  # from which alone no training goes on
    shown = {lines[each.site.line - 1].strip() for each in report.in_place if each.codemod == "throttle-logging"}
    assert shown == {"if step % 50 == 0:", 'print("an epoch")'}


def test_what_has_no_codemod_yet_is_told_by_the_nearest() -> None:
    text = (
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        "from data import Pictures\n"
        "model = DistributedDataParallel(torch.nn.Linear(3, 3).cuda())\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "sampler = DistributedSampler(Pictures())\n"
        "for epoch in range(3):\n"
        "    sampler.set_epoch(epoch)\n"
        "    for step, x in enumerate(DataLoader(Pictures(), sampler=sampler)):\n"
        "        if step % 4:\n"
        "            with model.no_sync():\n"
        "                model(x.cuda()).sum().backward()\n"
        "            continue\n"
        "        model(x.cuda()).sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
    )
    report = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), registry.load(), Target())
    told = [(each.codemod, each.site.line) for each in report.in_place if each.codemod in ("ddp", "no-sync")]
    assert told == [("ddp", 5), ("ddp", 7), ("ddp", 9), ("no-sync", 12)]


SUMS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import Pictures

device = torch.device("cuda")
net, critic = nn.Linear(9, 9).to(device), nn.Linear(9, 1).to(device)
optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()], 0.1)
loader = DataLoader(Pictures(), batch_size=64)


def clip_gradients(parameters):
    for each in parameters:
        each.grad.clamp_(-1, 1)


for epoch in range(10):
    hits, seen, counted, read = 0, 0, 0, 0
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        made = net(x)
        loss = nn.functional.cross_entropy(made, y) + critic(made.detach()).mean()
        loss.backward()
        if (step + 1) % 4 == 0:
            clip_gradients(net.parameters())
            optimizer.step()
            optimizer.zero_grad()
        hits += (made.argmax(1) == y).sum()
        counted += len(y)
        read += (made.argmax(1) == y).sum()
        print(read.item())
        seen += loss
    if epoch % 2 == 0:
        print(hits.item() / counted)
"""


def test_sums_that_no_step_reads_and_what_a_step_cuts_off() -> None:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(SUMS), registry.load(), Target())
    lines = SUMS.splitlines()
    found = {(each.codemod, lines[each.site.line - 1].strip()) for each in report.in_place}
    sums = {line for codemod, line in found if codemod == "defer-item"}
    assert sums == {"hits += (made.argmax(1) == y).sum()"}  # one is read in each step, one keeps its graph, one counts
    assert found >= {
        ("skip-unused-gradients", "loss = nn.functional.cross_entropy(made, y) + critic(made.detach()).mean()"),
        ("grad-accumulation", "if (step + 1) % 4 == 0:"),
        ("clip-gradients", "clip_gradients(net.parameters())"),
        ("throttle-logging", "if epoch % 2 == 0:"),
    }


LOGGED = """
import torch
from torch import nn
import lightning.pytorch as pl
from torch.utils.data import DataLoader
from data import Pictures


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(9, 9)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        self.log("number", loss.item())
        self.log("shown", loss, prog_bar=True)
        self.log_dict({"again": loss})
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


pl.Trainer(accelerator="auto", max_epochs=9).fit(Net(), DataLoader(Pictures(), batch_size=64))
"""


def test_what_lightning_logs_as_a_tensor() -> None:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(LOGGED), registry.load(), Target())
    lines = LOGGED.splitlines()
    found = [lines[each.site.line - 1].strip() for each in report.in_place if each.codemod == "defer-item"]
    assert found == ['self.log("loss", loss)', 'self.log_dict({"again": loss})']
    assert "use-cuda" in {each.codemod for each in report.in_place}


def test_items_that_are_made_once() -> None:
    text = (
        "import torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Mails(Dataset):\n"
        "    def __init__(self, texts, tokenizer):\n"
        "        self.rows = [torch.tensor(tokenizer.encode(text)) for text in texts]\n"
        "    def __getitem__(self, index):\n"
        "        return self.rows[index]\n"
        "    def __len__(self):\n"
        "        return len(self.rows)\n"
        "model = torch.nn.Linear(3, 3).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "{}\n"
        "for epoch in range(30):\n"
        "    {}\n"
        "        loss = model(x).sum()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
    )
    held = text.format("mails = Mails(open('mails').readlines(), load())", "for x in DataLoader(mails, batch_size=8):")
    assert ("cache-preprocessing", 5) in _told(held)


def _told(text: str) -> list[tuple[str, int]]:
    report = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), registry.load(), Target())
    return [(each.codemod, each.site.line) for each in report.in_place]


SETTINGS = """
from dataclasses import dataclass, field

import transformers
from datasets import load_dataset


@dataclass
class Settings(transformers.TrainingArguments):
    output_dir: str = field(default="out")
    logging_steps: int = field(default={steps})
    dataloader_pin_memory: bool = field(default={pins})


(settings,) = transformers.HfArgumentParser(Settings).parse_args_into_dataclasses()
model = transformers.AutoModelForCausalLM.from_pretrained("gpt2")
transformers.Trainer(model=model, args=settings, train_dataset=load_dataset("ag_news")["train"]).train()
"""


def said_of(text: str) -> set[tuple[str, int]]:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
    return {(each.codemod, each.site.line) for each in report.in_place}


def test_the_fields_of_a_class_of_settings_are_told_where_they_stand() -> None:
    said = said_of(SETTINGS.format(steps=50, pins=True))
    assert {("throttle-logging", 11), ("pin-memory", 12), ("crash-checkpoint", 15)} <= said
    assert not {("throttle-logging", 11), ("pin-memory", 12)} & said_of(SETTINGS.format(steps=1, pins=False))


def test_the_gpu_that_a_trainer_is_told() -> None:
    trainer = "import pytorch_lightning as pl\n\ntrainer = pl.Trainer({})\n"
    for given in ("gpus=1", "accelerator='gpu'", "accelerator='cuda'"):
        assert ("use-cuda", 3) in said_of(trainer.format(given)), given
    assert ("use-cuda", 3) not in said_of(trainer.format("accelerator='cpu'"))


def test_batches_that_are_pinned_by_hand() -> None:
    pinned = "batch = batch.pin_memory()\nbatch = batch.to(torch.device('cuda:1'), non_blocking=True)\n"
    head = "import torch\nimport pytorch_lightning as pl\n\npl.Trainer().fit(model)\n\n\ndef send(batch, gpu):\n"
    said = said_of(head + "".join("    " + line + "\n" for line in [*pinned.splitlines(), "return batch"]))
    assert {("pin-memory", 8), ("use-cuda", 9)} <= said


QUIET = """
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from data import batches, settings

model = nn.Linear(9, 9).cuda()
if settings.compiled:
    model = torch.compile(model)
model = DistributedDataParallel(model, find_unused_parameters=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=settings.at_once)


def noise(x):
    return torch.randn(9, device=x.device)


if len(sys.argv) > 5 and False:
    noise(torch.zeros(9))
for epoch in range(9):
    for x in batches():
        mask = torch.tensor(settings.mask, device=x.device)
        for part in range(4):
            loss = model(x.cuda() * mask + noise(x)).sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch)
"""


def test_steps_in_which_nothing_is_shown_and_switches_that_nobody_knows() -> None:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(QUIET), registry.load(), Target())
    lines = QUIET.splitlines()
    found = {(each.codemod, lines[each.site.line - 1].strip(), each.message) for each in report.in_place}
    told = {(codemod, line) for codemod, line, _ in found}
    assert told >= {
        ("throttle-logging", "for part in range(4):"),
        ("grad-accumulation", "for part in range(4):"),
        ("ddp-flags", "model = DistributedDataParallel(model, find_unused_parameters=False)"),
        ("device-tensors", "return torch.randn(9, device=x.device)"),  # also called where nothing ever runs
    }
    assert ("device-tensors", "mask = torch.tensor(settings.mask, device=x.device)") not in told  # that is a copy
    says = {message for _, _, message in found}
    assert "`model` is compiled, where `settings.compiled` says so" in says
    assert "AdamW updates all parameters in one kernel, where `settings.at_once` says so" in says


def test_what_the_settings_of_a_trainer_say() -> None:
    text = (
        "from transformers import Wav2Vec2ForCTC\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "from data import rows\n"
        "model = Wav2Vec2ForCTC.from_pretrained('w')\n"
        "model.freeze_feature_encoder()\n"
        "settings = SFTConfig(\n"
        "    logging_steps=10,\n"
        "    lr_scheduler_type='cosine',\n"
        "    save_strategy='epoch',\n"
        ")\n"
        "SFTTrainer(model=model, args=settings, train_dataset=rows()).train()\n"
    )
    told = {}
    for strategy in ("epoch", "no"):
        workspace = MemoryWorkspace({ENTRY: text.replace("epoch", strategy)})
        in_place = pipeline.analyze(ENTRY, workspace, registry.load(), Target()).in_place
        told[strategy] = {(each.codemod, each.site.line) for each in in_place}
    assert told["epoch"] >= {("skip-unused-gradients", 5), ("throttle-logging", 7), ("warmup-schedule", 8)}
    assert ("crash-checkpoint", 9) in told["epoch"]
    assert "crash-checkpoint" not in {codemod for codemod, _ in told["no"]}
    found = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), registry.load(), Target()).findings
    offered = {each.codemod: each for each in found if each.fixable}
    assert offered["autocast"].message.startswith("before trl 0.19 `SFTConfig` leaves the model in float32")
    assert offered["tf32"].message.startswith("before trl 0.19 ")
    assert offered["autocast"].assumes and offered["tf32"].assumes and "larger-batch" in offered
