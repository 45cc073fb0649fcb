"""Regress a made-up price: batches sliced by hand from shuffled tensors, embeddings, a plateau schedule, try/finally."""

import torch
import torch.nn as nn

CONFIG = {"epochs": 5, "batch": 16, "accumulate": 2, "lr": 3e-3, "amp": True, "clip": 2.0}


class Price(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(6, 4)
        self.bn = nn.BatchNorm1d(9)
        self.layers = nn.Sequential(
            nn.Linear(13, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Dropout(0.15), nn.Linear(32, 16), nn.SiLU(), nn.Linear(16, 1)
        )

    def forward(self, numbers, kinds):
        return self.layers(torch.cat([self.bn(numbers), self.kind(kinds)], 1)).squeeze(1)


def make(n):
    numbers = torch.randn(n, 9) * torch.arange(1, 10)
    kinds = torch.randint(0, 6, (n,))
    prices = (numbers[:, :3].sum(1) / 3).tanh() + kinds / 3 + 0.1 * torch.randn(n)
    return numbers, kinds, prices


def main():
    cuda = torch.cuda.is_available()
    numbers, kinds, prices = make(187)
    valid = make(40)
    model = Price()
    if cuda:
        model = model.cuda()
        numbers, kinds, prices = numbers.cuda(), kinds.cuda(), prices.cuda()
        valid = [part.cuda() for part in valid]
    optimizer = torch.optim.Adam(model.parameters(), lr=CONFIG["lr"])
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    scaler = torch.amp.GradScaler("cuda", enabled=CONFIG["amp"], init_scale=512.0)
    loss_fn = nn.SmoothL1Loss()
    history = []
    try:
        for epoch in range(CONFIG["epochs"]):
            model.train()
            order = torch.randperm(len(prices))
            starts = range(0, len(prices), CONFIG["batch"])
            epoch_loss = 0.0
            for number, start in enumerate(starts):
                rows = order[start : start + CONFIG["batch"]]
                with torch.autocast("cuda", dtype=torch.float16, enabled=CONFIG["amp"]):
                    out = model(numbers[rows], kinds[rows])
                    loss = loss_fn(out.float(), prices[rows])
                scaler.scale(loss / CONFIG["accumulate"]).backward()
                epoch_loss += loss.item() * len(rows)
                if (number + 1) % CONFIG["accumulate"] == 0 or number + 1 == len(starts):
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), CONFIG["clip"])
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                error = loss_fn(model(valid[0], valid[1]), valid[2]).item()
            scheduler.step(error)
            history.append(error)
            print("epoch", epoch, "loss", round(epoch_loss / len(prices), 5), "valid", round(error, 5))
    finally:
        torch.save({"model": model.state_dict(), "history": history}, "price.pt")


if __name__ == "__main__":
    main()
