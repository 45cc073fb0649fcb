"""A training with one slow thing planted in it: ``python planted.py loading|reads|tiny|optimizer|copies|attention``."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANTED = sys.argv[1]
TOKENS, HEADS, WIDTH = (2048, 16, 32) if PLANTED == "attention" else (64, 2, 16)
BATCH = {"tiny": 1, "attention": 1}.get(PLANTED, 16)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Sentences(Dataset):
    def __len__(self):
        return 8 * BATCH

    def __getitem__(self, index):
        if PLANTED == "loading":
            time.sleep(0.02)
        return (torch.arange(TOKENS) * (index + 1)) % 50


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20_000_000 // WIDTH if PLANTED == "optimizer" else 50, WIDTH)
        self.queries = nn.Linear(WIDTH, 3 * WIDTH)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(40 if PLANTED == "tiny" else 2)))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, tokens):
        given = self.embedding(tokens)
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.queries(given).chunk(3, -1)
        )
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).flatten(-2)
        return self.head(self.layers(mixed))


model = Model().to(device)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Sentences(), batch_size=BATCH)
if PLANTED != "loading":
    loader = list(loader)
pictures = torch.zeros(64, 3, 512, 512)
for _ in range(2):
    for tokens in loader:
        given = tokens.to(device)
        loss = nn.functional.cross_entropy(model(given).flatten(0, 1), given.flatten())
        if PLANTED == "copies":
            loss = loss + 0 * pictures.to(device).mean()
        optimizer.zero_grad()
        loss.backward()
        if PLANTED == "reads":
            norms = [parameter.grad[0].sum().item() for parameter in model.parameters() for _ in range(10)]
        optimizer.step()
