"""DCGAN on pictures of 64 x 64 pixels (Radford et al. 2015), with Accelerate."""

import argparse
import random

import torch
import torch.nn as nn
import torch.optim as optim
import torch.utils.data
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed

parser = argparse.ArgumentParser()
parser.add_argument('--batchSize', type=int, default=128, help='input batch size')
parser.add_argument('--images', type=int, default=200000, help='number of training pictures')
parser.add_argument('--nz', type=int, default=100, help='size of the latent z vector')
parser.add_argument('--ngf', type=int, default=64)
parser.add_argument('--ndf', type=int, default=64)
parser.add_argument('--niter', type=int, default=25, help='number of epochs to train for')
parser.add_argument('--lr', type=float, default=0.0002, help='learning rate, default=0.0002')
parser.add_argument('--beta1', type=float, default=0.5, help='beta1 for adam. default=0.5')
parser.add_argument('--manualSeed', type=int, default=999, help='manual seed')
parser.add_argument('--workers', type=int, default=12)
parser.add_argument('--outf', default='', help='prefix of the model checkpoints')
opt = parser.parse_args()
print(opt)

print("Random Seed: ", opt.manualSeed)
set_seed(opt.manualSeed)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True

accelerator = Accelerator(
    mixed_precision="bf16",
    dynamo_plugin=TorchDynamoPlugin(backend="inductor"),
    dataloader_config=DataLoaderConfiguration(non_blocking=True),
)
device = accelerator.device
nz = opt.nz
ngf = opt.ngf
ndf = opt.ndf
nc = 3


class Faces(torch.utils.data.Dataset):
    """Round faces of any colour, with two eyes, before a plain background"""

    def __init__(self, n):
        g = torch.Generator().manual_seed(1)
        ys = torch.arange(64.0).view(64, 1)
        xs = torch.arange(64.0).view(1, 64)
        self.pictures = torch.empty(n, 3, 64, 64, dtype=torch.uint8)
        for i in range(n):
            cy, cx, r, e = torch.rand(4, generator=g).tolist()
            cy, cx, r = 24 + 16 * cy, 24 + 16 * cx, 12 + 10 * r
            skin, background = torch.randint(40, 216, (2, 3, 1, 1), generator=g)
            picture = torch.where((ys - cy) ** 2 + (xs - cx) ** 2 < r ** 2, skin, background)
            for side in (-1, 1):
                eye = (ys - cy + r / 4) ** 2 + (xs - cx - side * r * (0.3 + 0.2 * e)) ** 2 < 6
                picture = picture.masked_fill(eye, 0)
            self.pictures[i] = picture.to(torch.uint8)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        img = self.pictures[index].float() / 255
        if random.random() < 0.5:
            img = img.flip(2)
        return (img - 0.5) / 0.5, 0


dataset = Faces(opt.images)
dataloader = torch.utils.data.DataLoader(
    dataset, batch_size=opt.batchSize, shuffle=True, drop_last=True,
    num_workers=opt.workers, pin_memory=True, persistent_workers=opt.workers > 0)


# custom weights initialization called on netG and netD
def weights_init(m):
    classname = m.__class__.__name__
    if classname.find('Conv') != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find('BatchNorm') != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            # input is Z, going into a convolution
            nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 8),
            nn.ReLU(True),
            # state size. (ngf*8) x 4 x 4
            nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            # state size. (ngf*4) x 8 x 8
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            # state size. (ngf*2) x 16 x 16
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            # state size. (ngf) x 32 x 32
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh()
            # state size. (nc) x 64 x 64
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            # input is (nc) x 64 x 64
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            # state size. (ndf) x 32 x 32
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            # state size. (ndf*2) x 16 x 16
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, inplace=True),
            # state size. (ndf*4) x 8 x 8
            nn.Conv2d(ndf * 4, ndf * 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 8),
            nn.LeakyReLU(0.2, inplace=True),
            # state size. (ndf*8) x 4 x 4
            nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
            nn.Sigmoid()
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


netG = Generator()
netG.apply(weights_init)
netD = Discriminator()
netD.apply(weights_init)

criterion = nn.BCELoss()

fixed_noise = torch.randn(64, nz, 1, 1, device=device)
real_label = 1
fake_label = 0

# setup optimizer
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
netG, netD, optimizerG, optimizerD, dataloader = accelerator.prepare(netG, netD, optimizerG, optimizerD, dataloader)

G_losses = []
D_losses = []

for epoch in range(opt.niter):
    for i, data in enumerate(dataloader, 0):
        ############################
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        ###########################
        # train with real
        netD.zero_grad()
        real_cpu = data[0]
        batch_size = real_cpu.size(0)
        label = torch.full((batch_size,), real_label, dtype=real_cpu.dtype, device=device)

        output = netD(real_cpu)
        errD_real = criterion(output, label)
        accelerator.backward(errD_real)
        D_x = output.mean().detach()

        # train with fake
        noise = torch.randn(batch_size, nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        accelerator.backward(errD_fake)
        D_G_z1 = output.mean().detach()
        errD = errD_real + errD_fake
        optimizerD.step()

        ############################
        # (2) Update G network: maximize log(D(G(z)))
        ###########################
        netG.zero_grad()
        label.fill_(real_label)  # fake labels are real for generator cost
        output = netD(fake)
        errG = criterion(output, label)
        accelerator.backward(errG)
        D_G_z2 = output.mean().detach()
        optimizerG.step()

        # Output training stats
        if i % 50 == 0:
            print('[%d/%d][%d/%d] Loss_D: %.4f Loss_G: %.4f D(x): %.4f D(G(z)): %.4f / %.4f'
                  % (epoch, opt.niter, i, len(dataloader),
                     errD.item(), errG.item(), D_x, D_G_z1, D_G_z2))

        # Save Losses for plotting later
        G_losses.append(errG.detach())
        D_losses.append(errD.detach())

    # look at what the generator makes of the fixed noise
    with torch.no_grad():
        fake = netG(fixed_noise).detach().cpu()
    print('epoch %d: pixels from %.3f to %.3f' % (epoch, fake.min(), fake.max()))

    # do checkpointing
    if opt.outf:
        torch.save(netG.state_dict(), '%snetG_epoch_%d.pth' % (opt.outf, epoch))
        torch.save(netD.state_dict(), '%snetD_epoch_%d.pth' % (opt.outf, epoch))

n = len(dataloader)
print('last epoch: mean Loss_D %.4f, mean Loss_G %.4f' % (sum(D_losses[-n:]) / n, sum(G_losses[-n:]) / n))
