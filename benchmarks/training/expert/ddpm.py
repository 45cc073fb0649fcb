"""A diffusion model of 32 x 32 pictures, as fast as one GPU allows.

The pictures and the schedule of the noise are on the GPU. The U-Net computes in bfloat16 with the channels last and
fused attention, and is compiled; weights and their average are updated in a few kernels, and losses are read once an
epoch.
"""

import argparse
import copy
import itertools
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_shapes(n, img_size):
    g = torch.Generator().manual_seed(0)
    ys = torch.linspace(0, 1, img_size).view(-1, 1)
    xs = torch.linspace(0, 1, img_size).view(1, -1)
    images = torch.empty(n, 3, img_size, img_size, dtype=torch.uint8)
    for i in range(n):
        cy, cx, r = (0.3 + 0.4 * torch.rand(3, generator=g)).tolist()
        dy, dx = (ys - cy).abs(), (xs - cx).abs()
        kind = i % 3
        if kind == 0:
            shape = torch.maximum(dy, dx) < r / 2
        elif kind == 1:
            shape = dy**2 + dx**2 < (r / 2) ** 2
        else:
            shape = (torch.minimum(dy, dx) < r / 6) & (torch.maximum(dy, dx) < r / 2)
        colours = torch.rand(2, 3, 1, 1, generator=g)
        image = torch.where(shape, colours[0], colours[1] * (0.5 + 0.5 * ys * xs))
        images[i] = (255 * image).to(torch.uint8)
    return images


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, time_emb_dim, dropout=0.1):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, dim)
        self.conv1 = nn.Conv2d(dim, dim_out, 3, padding=1)
        self.time_proj = nn.Linear(time_emb_dim, dim_out)
        self.norm2 = nn.GroupNorm(8, dim_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(dim_out, dim_out, 3, padding=1)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time_proj(F.silu(t))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return h + self.res_conv(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, dim)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        # with the channels last this is a view: positions first, and the channels of one of them side by side
        qkv = self.to_qkv(self.norm(x)).permute(0, 2, 3, 1).reshape(b, h * w, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        out = out.transpose(1, 2).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return x + self.to_out(out)


class Unet(nn.Module):
    def __init__(self, dim=128, dim_mults=(1, 2, 2, 2), channels=3, img_size=32, attn_size=16):
        super().__init__()
        self.init_conv = nn.Conv2d(channels, dim, 3, padding=1)

        dims = [dim, *[dim * m for m in dim_mults]]
        in_out = list(itertools.pairwise(dims))

        time_dim = dim * 4
        self.time_mlp = nn.Sequential(
            SinusoidalPositionEmbeddings(dim),
            nn.Linear(dim, time_dim),
            nn.GELU(),
            nn.Linear(time_dim, time_dim),
        )

        self.downs = nn.ModuleList([])
        self.ups = nn.ModuleList([])
        num_resolutions = len(in_out)

        size = img_size
        for ind, (dim_in, dim_out) in enumerate(in_out):
            is_last = ind >= (num_resolutions - 1)
            self.downs.append(
                nn.ModuleList(
                    [
                        ResnetBlock(dim_in, dim_out, time_dim),
                        ResnetBlock(dim_out, dim_out, time_dim),
                        Attention(dim_out) if size == attn_size else nn.Identity(),
                        nn.Conv2d(dim_out, dim_out, 4, 2, 1) if not is_last else nn.Identity(),
                    ]
                )
            )
            if not is_last:
                size //= 2

        mid_dim = dims[-1]
        self.mid_block1 = ResnetBlock(mid_dim, mid_dim, time_dim)
        self.mid_attn = Attention(mid_dim)
        self.mid_block2 = ResnetBlock(mid_dim, mid_dim, time_dim)

        for ind, (dim_in, dim_out) in enumerate(reversed(in_out)):
            is_last = ind == (num_resolutions - 1)
            self.ups.append(
                nn.ModuleList(
                    [
                        ResnetBlock(dim_out * 2, dim_out, time_dim),
                        ResnetBlock(dim_out * 2, dim_in, time_dim),
                        Attention(dim_in) if size == attn_size else nn.Identity(),
                        nn.Sequential(
                            nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(dim_in, dim_in, 3, padding=1)
                        )
                        if not is_last
                        else nn.Identity(),
                    ]
                )
            )
            size *= 2

        self.final_block = ResnetBlock(dim * 2, dim, time_dim)
        self.final_conv = nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        x = self.init_conv(x)
        r = x.clone()
        t = self.time_mlp(time)

        h = []
        for block1, block2, attn, downsample in self.downs:
            x = block1(x, t)
            h.append(x)
            x = block2(x, t)
            x = attn(x)
            h.append(x)
            x = downsample(x)

        x = self.mid_block1(x, t)
        x = self.mid_attn(x)
        x = self.mid_block2(x, t)

        for block1, block2, attn, upsample in self.ups:
            x = torch.cat((x, h.pop()), dim=1)
            x = block1(x, t)
            x = torch.cat((x, h.pop()), dim=1)
            x = block2(x, t)
            x = attn(x)
            x = upsample(x)

        x = torch.cat((x, r), dim=1)
        x = self.final_block(x, t)
        return self.final_conv(x)


def train(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    pictures = make_shapes(args.images, args.image_size).to(device).contiguous(memory_format=torch.channels_last)
    alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, args.noise_steps), dim=0).to(device)
    sqrt_alphas_cumprod = alphas_cumprod.sqrt()
    sqrt_one_minus_alphas_cumprod = (1.0 - alphas_cumprod).sqrt()

    model = Unet(dim=args.dim, img_size=args.image_size).to(device, memory_format=torch.channels_last)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    ema_model = copy.deepcopy(model).eval().requires_grad_(False)
    weights, averages = list(model.parameters()), list(ema_model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=args.lr, fused=True if on_gpu else None)
    if on_gpu:
        model.compile()

    def batch_of(indices):
        images = pictures[indices].float() / 255
        mirrored = torch.rand(len(images), 1, 1, 1, device=device) < 0.5
        return torch.where(mirrored, images.flip(3), images) * 2 - 1

    steps = args.images // args.batch_size
    updates, began = 0, time.time()
    for epoch in range(args.epochs):
        losses = []
        order = torch.randperm(args.images, device=device)
        for i in range(steps):
            images = batch_of(order[i * args.batch_size : (i + 1) * args.batch_size])
            t = torch.randint(0, args.noise_steps, (args.batch_size,), device=device)
            noise = torch.randn_like(images)
            mean, std = sqrt_alphas_cumprod[t], sqrt_one_minus_alphas_cumprod[t]
            x_t = mean.view(-1, 1, 1, 1) * images + std.view(-1, 1, 1, 1) * noise
            with torch.autocast(device.type, dtype=torch.bfloat16):
                predicted_noise = model(x_t, t)
            loss = F.mse_loss(predicted_noise.float(), noise)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                if updates < args.ema_start:
                    torch._foreach_copy_(averages, weights)
                else:
                    torch._foreach_lerp_(averages, weights, 1 - 0.995)
            updates += 1
            losses.append(loss.detach())
        print(f"epoch {epoch}: mean MSE {torch.stack(losses).mean().item():.4f}, {time.time() - began:.1f} s")

    samples = sample(ema_model, alphas_cumprod, args)
    print(f"samples: mean pixel {samples.float().mean().item():.1f}")
    if args.run_name:
        torch.save(model.state_dict(), f"{args.run_name}_ckpt.pt")
        torch.save(ema_model.state_dict(), f"{args.run_name}_ema_ckpt.pt")
        torch.save(optimizer.state_dict(), f"{args.run_name}_optim.pt")


@torch.no_grad()
def sample(model, alphas_cumprod, args):
    """Pictures out of noise, in steps of DDIM."""
    device = alphas_cumprod.device
    x = torch.randn((args.samples, 3, args.image_size, args.image_size), device=device)
    times = torch.linspace(args.noise_steps - 1, 0, args.sample_steps, device=device).long()
    alphas = torch.cat([alphas_cumprod[times], torch.ones(1, device=device)])
    for i in range(args.sample_steps):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            predicted_noise = model(x, times[i].expand(args.samples)).float()
        x0 = ((x - (1 - alphas[i]).sqrt() * predicted_noise) / alphas[i].sqrt()).clamp(-1, 1)
        x = alphas[i + 1].sqrt() * x0 + (1 - alphas[i + 1]).sqrt() * predicted_noise
    return ((x.clamp(-1, 1) + 1) / 2 * 255).to(torch.uint8)


def launch():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run_name", type=str, default="")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--images", type=int, default=51200)
    parser.add_argument("--image_size", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--noise_steps", type=int, default=1000)
    parser.add_argument("--ema_start", type=int, default=2000)
    parser.add_argument("--print_every", type=int, default=20)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--sample_steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train(args)


if __name__ == "__main__":
    launch()
