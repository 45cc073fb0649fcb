"""Gradients over four micro-batches, and 16 bits where there is a GPU."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 8
ACCUMULATE = 4
device = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(11)
inputs = torch.randn(512, 20)
targets = torch.randint(0, 5, (512,))
loader = DataLoader(TensorDataset(inputs, targets), BATCH_SIZE, shuffle=True, drop_last=True)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.LayerNorm(48))
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        return self.head(self.body(x))


net = Classifier().to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=device == "cuda")

for epoch in range(4):
    optimizer.zero_grad()
    epoch_loss = 0.0
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        with torch.autocast(device, dtype=torch.float16, enabled=device == "cuda"):
            loss = F.cross_entropy(net(x), y) / ACCUMULATE
        scaler.scale(loss).backward()
        epoch_loss += loss.item() * ACCUMULATE
        if (step + 1) % ACCUMULATE == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    print(f"epoch {epoch}: loss {epoch_loss / len(loader):.5f}")
torch.save(net, "classifier.pt")
