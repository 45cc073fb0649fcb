"""A model that steps call by its method `training_loss`, in a function that is given it once for each epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Diffusion(nn.Module):
    def __init__(self, width=32, levels=10):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, width), nn.Tanh(), nn.Linear(width, 8))
        self.levels = levels
        self.register_buffer("kept", torch.linspace(0.99, 0.1, levels))

    def forward(self, noisy, level):
        return self.net(torch.cat([noisy, level[:, None] / self.levels], dim=1))

    def training_loss(self, x, noise, level):
        kept = self.kept[level][:, None]
        return F.mse_loss(self(kept.sqrt() * x + (1 - kept).sqrt() * noise, level), noise)

    @torch.no_grad()
    def sample(self, start):
        x = start
        for level in reversed(range(self.levels)):
            x = x - 0.1 * self(x, torch.full((len(x),), level, device=x.device))
        return x


def train_epoch(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for x, noise, level in loader:
        loss = model.training_loss(x.to(device), noise.to(device), level.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    model.eval()
    return total / len(loader), model.sample(torch.zeros(4, 8, device=device)).mean().item()


def evaluate(model, loader, device):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, noise, level in loader:
            total += model.training_loss(x.to(device), noise.to(device), level.to(device)).item()
    return total / len(loader)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(320, 8) * 0.2 + torch.arange(8) / 8
    data = TensorDataset(x, torch.randn(320, 8), torch.randint(0, 10, (320,)))
    train_set, test_set = torch.utils.data.random_split(data, [240, 80])
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=40)
    model = Diffusion().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(5):
        loss, mean = train_epoch(model, train_loader, optimizer, device)
        print(f"epoch {epoch}: train {loss:.4f} test {evaluate(model, test_loader, device):.4f} samples {mean:.4f}")
        torch.save(model.state_dict(), "diffusion.pt")


if __name__ == "__main__":
    main()
