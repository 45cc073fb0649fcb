"""Two networks against each other, on points of a ring."""

import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
latent = 8
angles = torch.rand(640) * 2 * math.pi
ring = torch.stack([angles.cos(), angles.sin()], 1)
dataloader = DataLoader(TensorDataset(ring), batch_size=32, shuffle=True)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.main(x).view(-1)


netG = Generator().to(device)
netD = Discriminator().to(device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))

for epoch in range(3):
    for i, (real,) in enumerate(dataloader):
        real = real.to(device)
        netD.zero_grad()
        label = torch.ones(real.size(0), device=device)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        noise = torch.randn(real.size(0), latent, device=device)
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach()), torch.zeros_like(label))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
        if i % 10 == 0:
            print(
                f"[{epoch}][{i}/{len(dataloader)}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}"
            )
    torch.save(netG.state_dict(), f"netG_{epoch}.pth")
    torch.save(netD.state_dict(), f"netD_{epoch}.pth")
