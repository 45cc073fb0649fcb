"""A trainer's class: early stopping on a validation loss, the best weights kept."""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count, seed):
        draw = np.random.default_rng(seed)
        self.x = draw.normal(size=(count, 12)).astype("float32")
        self.y = self.x @ draw.normal(size=12).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": torch.from_numpy(self.x[index]), "y": torch.tensor(self.y[index])}


class Regressor(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class Trainer:
    def __init__(self, model, device, batch_size=16, patience=3, folder="runs"):
        self.model = model.to(device)
        self.device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=1)
        self.loss = nn.MSELoss()
        self.train_loader = DataLoader(Rows(256, 0), batch_size=batch_size, shuffle=True)
        self.val_loader = DataLoader(Rows(64, 1), batch_size=64, shuffle=False)
        self.patience = patience
        self.folder = folder
        self.best = float("inf")
        self.waited = 0
        if not os.path.exists(folder):
            os.makedirs(folder)

    def train_epoch(self):
        self.model.train()
        losses = []
        for batch in self.train_loader:
            prediction = self.model(batch["x"].to(self.device))
            loss = self.loss(prediction, batch["y"].to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.item())
        return np.mean(losses)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.loss(self.model(b["x"].to(self.device)), b["y"].to(self.device)).item() for b in self.val_loader]
        return np.mean(losses)

    def fit(self, epochs):
        for epoch in range(epochs):
            train_loss = self.train_epoch()
            val_loss = self.evaluate()
            self.scheduler.step(val_loss)
            print(f"epoch {epoch}: train {train_loss:.5f} validation {val_loss:.5f}")
            if val_loss < self.best:
                self.best, self.waited = val_loss, 0
                torch.save({"model": self.model.state_dict(), "epoch": epoch}, os.path.join(self.folder, "best.pt"))
            else:
                self.waited += 1
                if self.waited > self.patience:
                    print("stopped early")
                    break
        self.model.load_state_dict(torch.load(os.path.join(self.folder, "best.pt"))["model"])
        print(f"best {self.evaluate():.5f}")


if __name__ == "__main__":
    torch.manual_seed(3)
    Trainer(Regressor(32), "cuda" if torch.cuda.is_available() else "cpu").fit(5)
