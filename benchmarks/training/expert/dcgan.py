"""DCGAN on pictures of 64 x 64 pixels, as fast as one GPU allows.

The networks are small, so that launching kernels is what costs: the pictures are kept on the GPU, and the whole step,
with the choice of the batch, both updates and the log of the losses, is one CUDA graph, which is replayed. Inside it,
everything is in bfloat16 with the channels last and compiled, the discriminator ends in logits, and the step of the
generator computes no gradients for the weights of the discriminator.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

NC = 3


def make_faces(n):
    g = torch.Generator().manual_seed(1)
    ys = torch.arange(64.0).view(64, 1)
    xs = torch.arange(64.0).view(1, 64)
    pictures = torch.empty(n, 3, 64, 64, dtype=torch.uint8)
    for i in range(n):
        cy, cx, r, e = torch.rand(4, generator=g).tolist()
        cy, cx, r = 24 + 16 * cy, 24 + 16 * cx, 12 + 10 * r
        skin, background = torch.randint(40, 216, (2, 3, 1, 1), generator=g)
        picture = torch.where((ys - cy) ** 2 + (xs - cx) ** 2 < r**2, skin, background)
        for side in (-1, 1):
            eye = (ys - cy + r / 4) ** 2 + (xs - cx - side * r * (0.3 + 0.2 * e)) ** 2 < 6
            picture = picture.masked_fill(eye, 0)
        pictures[i] = picture.to(torch.uint8)
    return pictures


def generator(nz, ngf):
    return nn.Sequential(
        nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False),
        nn.BatchNorm2d(ngf * 8),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf * 4),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf, NC, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator(ndf):
    """Ends in logits: their loss is that of a sigmoid's results, and holds in 16 bits."""
    return nn.Sequential(
        nn.Conv2d(NC, ndf, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ndf * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ndf * 4),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 4, ndf * 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ndf * 8),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def init_weights(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


class Training:
    def __init__(self, opt, device):
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.nz, self.batch_size = opt.nz, opt.batchSize
        self.pictures = make_faces(opt.images).to(device).contiguous(memory_format=torch.channels_last)

        layout = {"device": device, "memory_format": torch.channels_last}
        self.netG = generator(opt.nz, opt.ngf).apply(init_weights).to(**layout)
        self.netD = discriminator(opt.ndf).apply(init_weights).to(**layout)
        self.generate, self.judge = self.netG, self.netD
        if self.on_gpu and opt.compile:
            self.generate, self.judge = torch.compile(self.netG), torch.compile(self.netD)

        adam = {"lr": opt.lr, "betas": (opt.beta1, 0.999)}
        if self.on_gpu:
            adam |= {"fused": True, "capturable": True}
        self.optimizerD = torch.optim.Adam(self.netD.parameters(), **adam)
        self.optimizerG = torch.optim.Adam(self.netG.parameters(), **adam)

        # what a captured step reads and writes
        self.per_epoch = opt.images // opt.batchSize
        self.indices = torch.zeros(opt.batchSize, dtype=torch.long, device=device)
        self.losses = torch.zeros(opt.niter * self.per_epoch, 2, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.graph = None
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self.eager_steps = 0

    def autocast(self):
        # the cache of cast weights must not outlive a capture
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def real_batch(self):
        images = self.pictures[self.indices].float() / 255
        mirrored = torch.rand(self.batch_size, 1, 1, 1, device=self.device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
        return (images - 0.5) / 0.5

    def compute(self):
        """One step: the discriminator's update, then the generator's."""
        self.optimizerD.zero_grad(set_to_none=True)
        real = self.real_batch()
        noise = torch.randn(self.batch_size, self.nz, 1, 1, device=self.device)
        with self.autocast():
            fake = self.generate(noise)
            on_real = self.judge(real).float()
            on_fake = self.judge(fake.detach()).float()
        loss_d = F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
        loss_d = loss_d + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
        loss_d.backward()
        self.optimizerD.step()

        self.optimizerG.zero_grad(set_to_none=True)
        self.netD.requires_grad_(False)
        with self.autocast():
            judged = self.judge(fake).float()
        loss_g = F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        loss_g.backward()
        self.netD.requires_grad_(True)
        self.optimizerG.step()

        self.losses.index_copy_(0, self.position, torch.stack([loss_d, loss_g]).detach()[None])
        self.position += 1

    def step(self, indices):
        self.indices.copy_(indices)
        if not self.on_gpu:
            self.compute()
        elif self.graph is not None:
            self.graph.replay()
        else:
            # the first steps compile and choose kernels, beside the stream that the capture must have for itself
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.compute()
            torch.cuda.current_stream().wait_stream(self.stream)
            self.eager_steps += 1
            if self.eager_steps == 5:
                self.optimizerD.zero_grad(set_to_none=True)
                self.optimizerG.zero_grad(set_to_none=True)
                torch.cuda.synchronize()
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self.compute()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batchSize", type=int, default=128)
    parser.add_argument("--images", type=int, default=200000)
    parser.add_argument("--nz", type=int, default=100)
    parser.add_argument("--ngf", type=int, default=64)
    parser.add_argument("--ndf", type=int, default=64)
    parser.add_argument("--niter", type=int, default=25)
    parser.add_argument("--lr", type=float, default=0.0002)
    parser.add_argument("--beta1", type=float, default=0.5)
    parser.add_argument("--manualSeed", type=int, default=999)
    parser.add_argument("--outf", default="")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    opt = parser.parse_args()

    torch.manual_seed(opt.manualSeed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = Training(opt, device)
    fixed_noise = torch.randn(64, opt.nz, 1, 1, device=device)

    for epoch in range(opt.niter):
        order = torch.randperm(opt.images, device=device)
        for i in range(training.per_epoch):
            training.step(order[i * opt.batchSize : (i + 1) * opt.batchSize])
        loss_d, loss_g = training.losses[epoch * training.per_epoch : (epoch + 1) * training.per_epoch].mean(0).tolist()
        with torch.no_grad(), training.autocast():
            fake = training.netG(fixed_noise).float()
        print(
            f"epoch {epoch}: Loss_D {loss_d:.4f} Loss_G {loss_g:.4f}, pixels from {fake.min():.3f} to {fake.max():.3f}"
        )
        if opt.outf:
            torch.save(training.netG.state_dict(), f"{opt.outf}netG_epoch_{epoch}.pth")
            torch.save(training.netD.state_dict(), f"{opt.outf}netD_epoch_{epoch}.pth")
    print(f"last epoch: mean Loss_D {loss_d:.4f}, mean Loss_G {loss_g:.4f}")


if __name__ == "__main__":
    main()
