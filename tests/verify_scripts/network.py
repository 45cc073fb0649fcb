"""A network with BatchNorm, augmentation from three generators, noise in the step, a schedule and checkpoints."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(1000, 8, generator=generator)
        self.y = self.x[:, :4].argmax(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noisy = self.x[index] + 0.1 * torch.randn(8)
        return noisy * random.uniform(0.9, 1.1) + float(np.random.normal()) / 10, self.y[index]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.body(x)


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Augmented(), batch_size=16, shuffle=True)
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(20):
        for x, y in loader:
            x, y = x.to(device), y.to(device)  # noqa: PLW2901 (as people write it)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x + 0.01 * torch.randn_like(x)), y)
            loss.backward()
            optimizer.step()
        schedule.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, "state.pt")
