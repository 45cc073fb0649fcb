"""A checkpoint in each epoch, and a run that goes on from it."""

import argparse
import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="checkpoint.pt")
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("-b", "--batch", default=16, type=int)
args = parser.parse_args()


def save_checkpoint(model, optimizer, epoch, path):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path)


def train_epoch(model, loader, optimizer):
    total = 0.0
    device = next(model.parameters()).device
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(256, 10)
    loader = DataLoader(TensorDataset(x, x.cumsum(1)), batch_size=args.batch, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 40), nn.SiLU(), nn.Linear(40, 10)).to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    start = 0
    if os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
        print(f"goes on at epoch {start}")
    for epoch in range(start, start + args.epochs):
        print(f"epoch {epoch}: {train_epoch(model, loader, optimizer):.5f}")
        save_checkpoint(model, optimizer, epoch, args.resume)
