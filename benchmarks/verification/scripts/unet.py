"""Segment discs out of noise: a tiny U-Net, a config and an engine class, mixed precision, accumulated gradients."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    epochs: int = 6
    batch_size: int = 4
    accumulate: int = 2
    lr: float = 2e-3
    clip: float = 1.0
    amp: bool = True


class Discs(Dataset):
    def __init__(self, count, size=8):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        cx, cy, r = (torch.rand(3, generator=generator) * 3 + 2.5).tolist()
        grid = torch.arange(self.size, dtype=torch.float32)
        mask = ((grid[:, None] - cy) ** 2 + (grid[None, :] - cx) ** 2 < (r / 2) ** 2).float()[None]
        return mask + torch.randn(1, self.size, self.size, generator=generator) * 0.5, mask


def double_conv(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = double_conv(1, 6)
        self.down2 = double_conv(6, 12)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.merge = double_conv(12, 6)
        self.head = nn.Conv2d(6, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        return self.head(self.merge(torch.cat([a, self.up(b)], dim=1)))


def dice_loss(logits, target):
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


class Engine:
    def __init__(self, config):
        self.config = config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.net = UNet().to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=config.lr)
        self.scaler = torch.amp.GradScaler("cuda", enabled=config.amp, init_scale=2048.0)
        self.loader = DataLoader(Discs(46), batch_size=config.batch_size, shuffle=True)
        self.step_count = 0

    def loss(self, images, masks):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.config.amp):
            logits = self.net(images)
        return F.binary_cross_entropy_with_logits(logits.float(), masks) + dice_loss(logits.float(), masks)

    def update(self):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.step_count += 1

    def run_epoch(self):
        self.net.train()
        total = torch.zeros((), device=self.device)
        for i, (images, masks) in enumerate(self.loader):
            images = images.to(self.device)
            masks = masks.to(self.device)
            loss = self.loss(images, masks)
            self.scaler.scale(loss / self.config.accumulate).backward()
            total += loss.detach()
            if (i + 1) % self.config.accumulate == 0:
                self.update()
        return total.item() / len(self.loader)

    def fit(self):
        for epoch in range(self.config.epochs):
            print(f"epoch {epoch} mean loss {self.run_epoch():.4f} after {self.step_count} updates")
            self.net.eval()
            with torch.no_grad():
                images, masks = next(iter(self.loader))
                print("   dice", round(1 - dice_loss(self.net(images.to(self.device)), masks.to(self.device)).item(), 3))


Engine(Config()).fit()
