"""Learn to reverse sequences: a small transformer with attention written out, dropout and accumulated gradients."""

import argparse
import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset, random_split


class SelfAttention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = self.drop(att.softmax(dim=-1))
        y = (att @ v).transpose(1, 2).reshape(b, t, c)
        return self.drop(self.proj(y))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.att = SelfAttention(width, heads, dropout)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.att(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Reverser(nn.Module):
    def __init__(self, vocabulary=20, length=10, width=32, heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        h = self.tok(x) + self.pos
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accum", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    return parser.parse_args()


def make_loaders(args):
    sequences = torch.randint(0, 20, (330, 10))
    train, held = random_split(TensorDataset(sequences, sequences.flip(1)), [300, 30])
    return (
        DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=0),
        DataLoader(held, batch_size=args.batch_size),
    )


def train_one_epoch(model, loader, criterion, optimizer, scheduler, device, args):
    model.train()
    total = 0.0
    for i, (src, tgt) in enumerate(loader):
        src, tgt = src.to(device), tgt.to(device)
        logits = model(src)
        loss = criterion(logits.reshape(-1, 20), tgt.reshape(-1)) / args.accum
        loss.backward()
        total += loss.item() * args.accum
        if (i + 1) % args.accum == 0 or i + 1 == len(loader):
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, criterion, device):
    model.eval()
    total = 0.0
    for src, tgt in loader:
        src, tgt = src.to(device), tgt.to(device)
        total += criterion(model(src).flatten(0, 1), tgt.flatten()).item()
    return total / len(loader)


def main():
    args = get_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, held_loader = make_loaders(args)
    model = Reverser().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / 10, math.sqrt(10 / (step + 1))))
    best = float("inf")
    for epoch in range(args.epochs):
        train_loss = train_one_epoch(model, train_loader, criterion, optimizer, scheduler, device, args)
        held_loss = evaluate(model, held_loader, criterion, device)
        print(f"epoch {epoch:3d} | train {train_loss:.4f} | held {held_loss:.4f}")
        if held_loss < best:
            best = held_loss
            torch.save({"model": model.state_dict(), "epoch": epoch}, "best.pt")


if __name__ == "__main__":
    main()
