"""A residual network with BatchNorm and dropout: float16 with a scaler, accumulation with a tail, one-cycle schedule."""

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    def __init__(self, n=236):
        self.n = n
        generator = torch.Generator().manual_seed(11)
        angle = torch.rand(n, generator=generator) * 6 + 0.5
        self.y = (torch.arange(n) % 3).long()
        turn = angle + self.y * 2.1
        self.x = torch.stack([angle * turn.cos(), angle * turn.sin()], 1) / 4

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        return {"x": self.x[idx] + torch.randn(2) * 0.02, "y": self.y[idx]}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width)
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def build():
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), Residual(32), Residual(32), nn.Linear(32, 3))


def train(model, loader, device, epochs=6, accumulation_steps=4, use_amp=True):
    optimizer = torch.optim.Adam(
        [{"params": model[:2].parameters(), "lr": 1e-3}, {"params": model[2:].parameters()}], lr=4e-3
    )
    per_epoch = (len(loader) + accumulation_steps - 1) // accumulation_steps
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [2e-3, 8e-3], total_steps=epochs * per_epoch + 1)
    scaler = GradScaler(enabled=use_amp)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        losses = []
        for step, batch in enumerate(loader, 1):
            x = batch["x"].to(device)
            y = batch["y"].to(device)
            with autocast(enabled=use_amp):
                loss = loss_fn(model(x), y)
                loss = loss / accumulation_steps
            scaler.scale(loss).backward()
            losses.append(loss.item() * accumulation_steps)
            if step % accumulation_steps == 0 or step == len(loader):
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()
        accuracy = evaluate(model, loader, device)
        print(f"epoch {epoch} loss={sum(losses) / len(losses):.5f} acc={accuracy:.3f}")
        torch.save({"epoch": epoch, "state": model.state_dict(), "opt": optimizer.state_dict()}, "last.pt")


def evaluate(model, loader, device):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for batch in loader:
            guess = model(batch["x"].to(device)).argmax(dim=1)
            right += (guess == batch["y"].to(device)).sum().item()
            total += len(guess)
    return right / total


if __name__ == "__main__":
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    train(build().to(gpu), DataLoader(Spirals(), batch_size=12, shuffle=True), gpu)
