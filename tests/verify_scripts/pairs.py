"""A small encoder-decoder, trained on reversed sequences with accumulation, clipping and dropout."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
source = torch.randint(1, 32, (48, 4))
target = source.flip(1)
loader = DataLoader(TensorDataset(source, target), batch_size=4, shuffle=True)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.encoder = nn.GRU(16, 16, batch_first=True)
        self.decoder = nn.GRU(16, 16, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(16, 32)

    def forward(self, source, target):
        _, hidden = self.encoder(self.embed(source))
        seen, _ = self.decoder(self.drop(self.embed(target)), hidden)
        return self.out(self.drop(seen))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Pairs().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-5)
known = source[:8].to(device), target[:8].to(device)
accumulate = 4
for epoch in range(12):
    model.train()
    total = 0.0
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)  # noqa: PLW2901 (as people write it)
        loss = nn.functional.cross_entropy(model(x, y).flatten(0, 1), y.flatten())
        (loss / accumulate).backward()
        total += loss.item()
        if (step + 1) % accumulate == 0 or step + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        held = nn.functional.cross_entropy(model(*known).flatten(0, 1), known[1].flatten()).item()
    print(f"epoch {epoch} loss {total / len(loader):.4f} held {held:.4f}")
