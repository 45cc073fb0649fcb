"""Batches that a sampler of its own puts together, of samples that are about as long as each other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class ByLength:
    """Batches of samples that are as long as each other."""
    def __init__(self, lengths, size):
        self.lengths, self.size = lengths, size
    def __len__(self):
        return len(self.lengths) // self.size
    def __iter__(self):
        order = torch.argsort(self.lengths + torch.rand(len(self.lengths)))
        batches = order[: len(self) * self.size].view(-1, self.size)
        return iter(batches[torch.randperm(len(batches))].tolist())

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(320, 12)
data = TensorDataset(x, x.sum(1))
lengths = torch.randint(0, 9, (320,))
loader = DataLoader(data, batch_sampler=ByLength(lengths, 16))
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(6):
    total = 0.0
    for a, b in loader:
        a, b = a.to(device), b.to(device)
        loss = nn.functional.mse_loss(model(a).squeeze(1), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total / len(loader))
torch.save(model.state_dict(), "batches.pt")
