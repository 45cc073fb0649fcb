"""What the text tells of what is right: by the shape of code, and of code that was not executed."""

from __future__ import annotations

import re

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.training.model import Target

TRAINING = """
import os
import pickle
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch_geometric.data import InMemoryDataset


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    pass


class Photos(Dataset):
    def __init__(self, paths, transform):
        self.images, self.paths = [], []
        self.transform = transform
        for path in paths:
            image = Image.open(path)
            image = image.convert("RGB")
            self.images.append(image)  # cache-preprocessing
            self.paths.append(path)

    def __getitem__(self, index):
        return self.transform(self.images[index])


class Listed(Dataset):
    def __init__(self, paths):
        self.paths = []
        for path in paths:
            self.paths.append(path)

    def __getitem__(self, index):
        return Image.open(self.paths[index])


class Graphs(InMemoryDataset):
    def process(self):  # cache-preprocessing
        torch.save(self.collate([read(path) for path in self.raw_paths]), self.processed_paths[0])


class TextDataset(Dataset):
    def __init__(self, codes, sizes):
        self.codes, self.sizes = codes, sizes

    def __getitem__(self, index):
        return self.codes[index], self.sizes[index]


class Collator:
    def __init__(self, tokenizer, padding=True, labels="max_length"):
        self.tokenizer, self.padding, self.labels = tokenizer, padding, labels

    def __call__(self, rows):
        wanted = self.tokenizer([row[1] for row in rows], padding=self.labels)
        return self.tokenizer([row[0] for row in rows], padding=self.padding), wanted  # dynamic-padding


def collate_sounds(batch):
    lengths = torch.tensor([each.shape[0] for each in batch])
    assert lengths.max() < 9000
    sounds = torch.zeros(len(batch), lengths.max())  # dynamic-padding
    for row, each in zip(sounds, batch):
        row[: len(each)] = each
    sizes = [len(each) for each in batch]
    return sounds, max(sizes)  # dynamic-padding


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer("scale", torch.ones(8))  # device-tensors
        for parameter in self.body.parameters():
            parameter.requires_grad = False
        self.start = torch.zeros(8, device="cuda")

    def forward(self, x):
        with torch.no_grad():
            x = self.body(x)
        noise = torch.randn(8, device=x.device)  # device-tensors
        return self.head(x + noise + torch.zeros(8))


def collate(batch):
    size = max(len(each) for each in batch)  # dynamic-padding
    return torch.stack([nn.functional.pad(each, (0, size - len(each))) for each in batch])


def widest(texts):
    return max(len(each) for each in texts)


def report(values):
    print(values)


def load(path):
    if os.path.exists(path):
        with open(path, "rb") as file:
            return pickle.load(file)  # cache-preprocessing
    return None


def train_epoch(model, loader, optimizer, epoch):
    losses, recent = [], []
    for step, x in enumerate(loader):
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # defer-item
        recent.append(loss)
        if (step + 1) % 50 == 0:  # throttle-logging
            report(losses[-1])
        if not step % 100:  # throttle-logging
            print(losses[-1])
        if len(recent) == 20:  # throttle-logging
            print("twenty")
            recent.clear()
        if step > 3:
            report(step)
    for group in optimizer.param_groups:
        group["lr"] *= 0.9  # warmup-schedule


def main():
    model = Net().cuda()
    table = torch.tensor(load("table.pkl")).cuda()  # preload-dataset
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.param_groups[0]["lr"] = 0.1
    schedule = Warmup(optimizer)  # warmup-schedule
    loader = DataLoader(Photos(["a.png"], table), collate_fn=collate)
    texts = load("texts.pkl")
    codes = [encode(text) for text in texts]  # cache-preprocessing
    sizes = [len(code) for code in codes]
    words, rows = TextDataset(codes, sizes), TensorDataset(table)  # cache-preprocessing
    for epoch in range(9):
        train_epoch(model, loader, optimizer, epoch)


main()
"""
CODEMODS = set(re.findall(r"#  ?([a-z-]+)$", TRAINING, re.MULTILINE))


def told(text: str, **others: str) -> set[tuple[str, int]]:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text, **others), registry.load(), Target())
    assert not report.notes, report.notes
    return {(each.codemod, each.site.line) for each in report.in_place}


def test_shapes_are_told_where_they_are_right_and_nowhere_else() -> None:
    marked = {
        (match[1], number)
        for number, line in enumerate(TRAINING.splitlines(), 1)
        if (match := re.search(r"# ([a-z-]+)$", line)) is not None
    }

    found = {each for each in told(TRAINING) if each[0] in CODEMODS}
    assert found == marked


@pytest.mark.parametrize(
    "settings",
    [
        "warmup_steps=9",
        "lr_scheduler_type='cosine'",
        "warmup_steps=9, max_grad_norm=0.5",
        "warmup_steps=9, logging_steps=steps",
    ],
)
def test_what_a_trainer_does_by_itself(settings: str) -> None:
    found = {name for name, _ in told(TRAINER.format(settings=settings))}
    assert found >= {"warmup-schedule", "clip-gradients", "crash-checkpoint", "throttle-logging"}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ("lr_scheduler_type='constant'", "warmup-schedule"),
        ("max_grad_norm=0", "clip-gradients"),
        ("logging_steps=1", "throttle-logging"),
    ],
)
def test_what_a_trainer_is_told_not_to_do(settings: str, name: str) -> None:
    assert name not in {each for each, _ in told(TRAINER.format(settings=settings))}


TRAINER = """
from transformers import AutoModel, Trainer, TrainingArguments

steps = read()
arguments = TrainingArguments("out", {settings})
Trainer(AutoModel.from_pretrained("bert-base-uncased"), arguments, train_dataset=make()).train()
"""

OVERLOOKED = """
import torch
from torch import nn
from torch.utils.data import DataLoader


class Agent:
    def __init__(self, buffer):
        self.buffer = buffer
        self.policy, self.target, self.other = buffer.net(), buffer.net(), buffer.net()
        self.optimizer = torch.optim.Adam(self.policy.parameters())

    def follow(self):
        self.target.load_state_dict(self.policy.state_dict())

    def learn(self):
        x, y = self.buffer.sample()
        wanted = y + self.target.forward(x.cuda()).max()
        known = self.other(x)
        with torch.no_grad():
            more = self.target(y)
        loss = (self.policy(x) - wanted - known - more).square().mean()
        for p in self.policy.parameters():  # foreach-ema
            loss = loss + p.norm()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm(self.policy.parameters(), 1.0)  # modern-api
        self.optimizer.step()

    def test(self, batches):
        self.policy.eval()
        right = 0
        for x in batches:  # no-grad-eval
            right += self.policy(x).argmax().item()
        return right

    @torch.no_grad()
    def look(self, batches):
        self.policy.eval()
        for x in batches:
            print(self.policy(x).argmax().item())


agent = Agent(make())
for step in range(100):
    agent.learn()
    agent.follow()
agent.test(read())
agent.look(read())
"""


REPEATED = """
import torch
from torch import nn
from torch.utils.data import DataLoader


def frequencies(n, device):
    return torch.exp(torch.randn(n) * -0.1).to(device)  # device-tensors


def positions(n, device):
    return torch.arange(n, device=device)


class Decoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.cell = nn.GRUCell(size, size)
        self.mask = None
        self.first = torch.ones(size, size).tril()

    def triangle(self, n):
        return torch.triu(torch.ones(n, n, device="cuda"))

    def kept(self, n):
        if self.mask is None:
            self.mask = torch.triu(torch.ones(n, n)).cuda()
        return self.mask

    def forward(self, x):
        n = x.size(1)
        h = frequencies(n, x.device) + positions(n, x.device)
        if h.sum() > 3:
            h = h + self.triangle(n) + self.kept(n)
        for t in range(n):
            h = self.cell(x[:, t], h)
        return h


class Loss(nn.Module):
    def forward(self, y, wanted: torch.Tensor):
        return torch.where(wanted > 0, y, 0).sum()


def show(loader, model):
    images = next(iter(loader))
    print(model(images))


def training(data):
    return DataLoader(data, batch_size=64)


data = read()
held = training(data)
model = Decoder(8).cuda()
criterion = Loss()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(9):
    for x, y in held:
        loss = criterion(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    show(held_loader(), model)
"""


TOKENIZED = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")


def collate(rows):
    texts = tokenizer([row[0] for row in rows], padding=True, return_tensors="pt")  # cache-preprocessing
    return texts, torch.tensor([row[1] for row in rows])


def ask(model, question):
    return model(**tokenizer(question, return_tensors="pt")).logits


loader = DataLoader(read(), batch_size=64, collate_fn=collate)  # cache-preprocessing
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased").cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for texts, labels in loader:
        loss = model(**texts.to("cuda"), labels=labels.cuda()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print(ask(model, "why"))
"""


@pytest.mark.parametrize("text", [OVERLOOKED, REPEATED, TOKENIZED])
def test_what_the_text_shows_to_be_slow_is_refused_with_what_to_do(text: str) -> None:
    report = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), registry.load(), Target())
    assert not report.notes, report.notes
    marked = {
        (match[1], number)
        for number, line in enumerate(text.splitlines(), 1)
        if (match := re.search(r"# ([a-z-]+)$", line)) is not None
    }
    names = {name for name, _ in marked}
    assert {(each.codemod, each.site.line) for each in report.findings if each.codemod in names} == marked
