"""Classes of which one is rare: a sampler draws its samples more often, and validation takes a part of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(400, 12)
y = (x.sum(1) > 4).long()
data = TensorDataset(x, y)
order = torch.randperm(400)
weights = 1.0 / torch.bincount(y)[y]
weights[order[:80]] = 0
balanced = WeightedRandomSampler(weights, 336, generator=torch.Generator().manual_seed(1))
train_loader = DataLoader(data, batch_size=32, sampler=balanced)
valid_loader = DataLoader(data, batch_size=40, sampler=SubsetRandomSampler(order[:80]))
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(6):
    total, right = 0.0, 0
    for a, b in train_loader:
        a, b = a.to(device), b.to(device)
        scores = model(a)
        loss = nn.functional.cross_entropy(scores, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(b)
        right += (scores.argmax(1) == b).sum().item()
    print(f"epoch {epoch}: {total / len(train_loader.sampler):.4f}, {right / len(train_loader.sampler):.4f} right")
    with torch.no_grad():
        hits = sum((model(a.to(device)).argmax(1) == b.to(device)).sum().item() for a, b in valid_loader)
    print(f"  of others {hits / len(valid_loader.sampler):.4f} right")
torch.save(model.state_dict(), "weighted.pt")
