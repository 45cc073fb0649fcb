"""A small conditional DCGAN on blobs: two networks with BatchNorm, two optimizers, three backward passes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
latent = 8


def blobs(n):
    """Pictures of one bright spot, and the quarter that it is in."""
    generator = torch.Generator().manual_seed(5)
    row, column = torch.randint(0, 8, (2, n), generator=generator)
    grid = torch.arange(8.0)
    rows = torch.exp(-((grid[None, :] - row[:, None]) ** 2) / 4)
    columns = torch.exp(-((grid[None, :] - column[:, None]) ** 2) / 4)
    return rows[:, None, :, None] * columns[:, None, None, :] * 2 - 1, (row // 4) * 2 + column // 4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Embedding(4, latent)
        self.net = nn.Sequential(
            nn.ConvTranspose2d(latent, 16, 2, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z, y):
        return self.net((z * self.label(y))[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Embedding(4, 16)
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64, 16),
        )

    def forward(self, x, y):
        return (self.net(x) * self.label(y)).sum(1)


netG = Generator().to(device)
netD = Discriminator().to(device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
loader = DataLoader(TensorDataset(*blobs(170)), batch_size=16, shuffle=True)

for epoch in range(4):
    for i, (real, quarter) in enumerate(loader):
        real, quarter = real.to(device), quarter.to(device)
        n = real.size(0)
        # the discriminator: real pictures, then made ones
        netD.zero_grad()
        errD_real = criterion(netD(real, quarter), torch.ones(n, device=device))
        errD_real.backward()
        fake = netG(torch.randn(n, latent, device=device), quarter)
        errD_fake = criterion(netD(fake.detach(), quarter), torch.zeros(n, device=device))
        errD_fake.backward()
        nn.utils.clip_grad_norm_(netD.parameters(), 0.5)
        optimizerD.step()
        # the generator
        netG.zero_grad()
        errG = criterion(netD(fake, quarter), torch.ones(n, device=device))
        errG.backward()
        optimizerG.step()
        if i % 5 == 0:
            print(
                f"[{epoch}][{i}/{len(loader)}] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}"
            )
    torch.save({"netG": netG.state_dict(), "netD": netD.state_dict()}, f"gan_{epoch}.pt")
