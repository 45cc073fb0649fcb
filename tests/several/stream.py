"""Samples that come in a stream, an odd number of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __iter__(self):
        draw = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            x = torch.randn(9, generator=draw)
            yield x, x.abs().sum()


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Stream(321, 0), batch_size=16, drop_last=True)
    model = nn.Sequential(nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        total, batches = 0.0, 0
        for x, y in loader:
            loss = nn.functional.l1_loss(model(x.to(device)).squeeze(1), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            batches += 1
        print(f"epoch {epoch}: {total / batches:.4f} over {batches} batches")
    torch.save(model.state_dict(), "stream.pt")


if __name__ == "__main__":
    main()
