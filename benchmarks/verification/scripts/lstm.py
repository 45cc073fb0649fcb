"""Predict the next letter of made-up words of different lengths: nn.LSTM, padding, mixed precision, a Trainer class."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD = 0
AMP = True


class Words(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.words = [self.make(rng) for _ in range(count)]

    @staticmethod
    def make(rng):
        letter, word = rng.randint(1, 20), []
        for _ in range(rng.randint(5, 12)):
            word.append(letter)
            letter = letter % 20 + rng.choice([1, 1, 2])
            letter = min(letter, 20)
        return word

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        word = torch.tensor(self.words[i])
        return word[:-1], word[1:]


def collate(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True, padding_value=PAD), pad_sequence(ys, batch_first=True, padding_value=PAD)


class Speller(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(21, 16, padding_idx=PAD)
        self.lstm = nn.LSTM(16, hidden, num_layers=2, dropout=0.2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(hidden, 21)

    def forward(self, x):
        h, _ = self.lstm(self.embed(x))
        return self.out(self.drop(h))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Speller().to(self.device)
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.scaler = torch.amp.GradScaler("cuda", enabled=AMP, init_scale=1024.0)
        self.train_loader = DataLoader(Words(250, 1), batch_size=24, shuffle=True, collate_fn=collate)
        self.valid_loader = DataLoader(Words(40, 2), batch_size=40, collate_fn=collate)
        self.history = []

    def training_step(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16, enabled=AMP):
            logits = self.model(x)
            loss = self.criterion(logits.transpose(1, 2), y)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=0.25)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            meter = AverageMeter()
            for x, y in self.train_loader:
                x, y = x.to(self.device), y.to(self.device)
                loss = self.training_step(x, y)
                meter.update(loss.item(), x.size(0))
            self.history.append({"epoch": epoch, "loss": meter.avg, "valid": self.validate()})
            print(self.history[-1])

    def validate(self):
        self.model.eval()
        meter = AverageMeter()
        with torch.inference_mode():
            for x, y in self.valid_loader:
                x, y = x.to(self.device), y.to(self.device)
                meter.update(self.criterion(self.model(x).flatten(0, 1), y.flatten()).item(), x.size(0))
        return meter.avg


Trainer().fit(4)
