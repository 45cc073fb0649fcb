"""A diffusion model of 32 x 32 pictures, with Accelerate."""

import argparse
import copy
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed
from torch import optim
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(format="%(asctime)s - %(levelname)s: %(message)s", level=logging.INFO, datefmt="%I:%M:%S")


class Shapes(Dataset):
    """32 x 32 pictures of a coloured square, disc or cross on a gradient."""

    def __init__(self, n, img_size):
        g = torch.Generator().manual_seed(0)
        ys = torch.linspace(0, 1, img_size).view(-1, 1)
        xs = torch.linspace(0, 1, img_size).view(1, -1)
        self.images = torch.empty(n, 3, img_size, img_size, dtype=torch.uint8)
        for i in range(n):
            cy, cx, r = (0.3 + 0.4 * torch.rand(3, generator=g)).tolist()
            dy, dx = (ys - cy).abs(), (xs - cx).abs()
            kind = i % 3
            if kind == 0:
                shape = torch.maximum(dy, dx) < r / 2
            elif kind == 1:
                shape = dy ** 2 + dx ** 2 < (r / 2) ** 2
            else:
                shape = (torch.minimum(dy, dx) < r / 6) & (torch.maximum(dy, dx) < r / 2)
            colours = torch.rand(2, 3, 1, 1, generator=g)
            image = torch.where(shape, colours[0], colours[1] * (0.5 + 0.5 * ys * xs))
            self.images[i] = (255 * image).to(torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        image = self.images[idx].float() / 255.0
        if torch.rand(1) < 0.5:
            image = torch.flip(image, dims=[-1])
        return image * 2 - 1


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
        embeddings = torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)
        return embeddings


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
        self.scale = (dim // heads) ** -0.5
        self.norm = nn.GroupNorm(8, dim)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=1)
        q, k, v = [t.reshape(b, self.heads, c // self.heads, h * w) for t in qkv]
        q = q * self.scale

        sim = torch.einsum("b h d i, b h d j -> b h i j", q, k)
        attn = sim.softmax(dim=-1)

        out = torch.einsum("b h i j, b h d j -> b h i d", attn, v)
        out = out.permute(0, 1, 3, 2).reshape(b, c, h, w)
        return x + self.to_out(out)


class Unet(nn.Module):
    def __init__(self, dim=128, dim_mults=(1, 2, 2, 2), channels=3, img_size=32, attn_size=16):
        super().__init__()
        self.init_conv = nn.Conv2d(channels, dim, 3, padding=1)

        dims = [dim, *[dim * m for m in dim_mults]]
        in_out = list(zip(dims[:-1], dims[1:]))

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
                nn.ModuleList([
                    ResnetBlock(dim_in, dim_out, time_dim),
                    ResnetBlock(dim_out, dim_out, time_dim),
                    Attention(dim_out) if size == attn_size else nn.Identity(),
                    nn.Conv2d(dim_out, dim_out, 4, 2, 1) if not is_last else nn.Identity(),
                ])
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
                nn.ModuleList([
                    ResnetBlock(dim_out * 2, dim_out, time_dim),
                    ResnetBlock(dim_out * 2, dim_in, time_dim),
                    Attention(dim_in) if size == attn_size else nn.Identity(),
                    nn.Sequential(
                        nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(dim_in, dim_in, 3, padding=1)
                    ) if not is_last else nn.Identity(),
                ])
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


def extract(a, t, x_shape):
    batch_size = t.shape[0]
    out = a.gather(-1, t.cpu())
    return out.reshape(batch_size, *((1,) * (len(x_shape) - 1))).to(t.device)


class Diffusion:
    def __init__(self, noise_steps=1000, beta_start=1e-4, beta_end=0.02, img_size=32, device="cuda"):
        self.noise_steps = noise_steps
        self.img_size = img_size
        self.device = device

        self.betas = torch.linspace(beta_start, beta_end, noise_steps)
        self.alphas = 1.0 - self.betas
        self.alphas_cumprod = torch.cumprod(self.alphas, axis=0)
        self.sqrt_alphas_cumprod = torch.sqrt(self.alphas_cumprod)
        self.sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - self.alphas_cumprod)

    def sample_timesteps(self, n):
        return torch.randint(0, self.noise_steps, (n,))

    def noise_images(self, x, t):
        noise = torch.randn_like(x)
        mean = extract(self.sqrt_alphas_cumprod, t, x.shape)
        std = extract(self.sqrt_one_minus_alphas_cumprod, t, x.shape)
        return mean * x + std * noise, noise

    def sample(self, model, n, steps):
        """Pictures out of noise, in steps of DDIM"""
        logging.info(f"Sampling {n} new images....")
        model.eval()
        times = torch.linspace(self.noise_steps - 1, 0, steps).long()
        with torch.no_grad():
            x = torch.randn((n, 3, self.img_size, self.img_size)).to(self.device)
            for i, time in enumerate(times):
                t = torch.full((n,), int(time), dtype=torch.long).to(self.device)
                predicted_noise = model(x, t)
                alpha = self.alphas_cumprod[time]
                alpha_next = self.alphas_cumprod[times[i + 1]] if i + 1 < steps else torch.tensor(1.0)
                x0 = ((x - torch.sqrt(1 - alpha) * predicted_noise) / torch.sqrt(alpha)).clamp(-1, 1)
                x = torch.sqrt(alpha_next) * x0 + torch.sqrt(1 - alpha_next) * predicted_noise
        model.train()
        return ((x.clamp(-1, 1) + 1) / 2 * 255).type(torch.uint8)


class EMA:
    def __init__(self, beta):
        super().__init__()
        self.beta = beta
        self.step = 0

    def update_model_average(self, ma_model, current_model):
        for current_params, ma_params in zip(current_model.parameters(), ma_model.parameters()):
            old_weight, up_weight = ma_params.data, current_params.data
            ma_params.data = self.update_average(old_weight, up_weight)

    def update_average(self, old, new):
        if old is None:
            return new
        return old * self.beta + (1 - self.beta) * new

    def step_ema(self, ema_model, model, step_start_ema=2000):
        if self.step < step_start_ema:
            self.reset_parameters(ema_model, model)
            self.step += 1
            return
        self.update_model_average(ema_model, model)
        self.step += 1

    def reset_parameters(self, ema_model, model):
        ema_model.load_state_dict(model.state_dict())


def train(args):
    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    accelerator = Accelerator(
        mixed_precision="bf16",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor"),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )
    device = accelerator.device
    dataset = Shapes(args.images, args.image_size)
    dataloader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, drop_last=True,
        num_workers=args.workers, pin_memory=True, persistent_workers=args.workers > 0,
    )
    model = Unet(dim=args.dim, img_size=args.image_size)
    logging.info(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    mse = nn.MSELoss()
    diffusion = Diffusion(noise_steps=args.noise_steps, img_size=args.image_size, device=device)
    l = len(dataloader)
    ema = EMA(0.995)
    ema_model = copy.deepcopy(model).eval().requires_grad_(False).to(device)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    unwrapped = accelerator.unwrap_model(model, keep_torch_compile=False)

    for epoch in range(args.epochs):
        logging.info(f"Starting epoch {epoch}:")
        running_loss = 0.0
        for i, images in enumerate(dataloader):
            t = diffusion.sample_timesteps(images.shape[0]).to(device)
            x_t, noise = diffusion.noise_images(images, t)
            predicted_noise = model(x_t, t)
            loss = mse(noise, predicted_noise)

            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            ema.step_ema(ema_model, unwrapped, step_start_ema=args.ema_start)

            running_loss += loss.detach()
            if (i + 1) % args.print_every == 0:
                logging.info(f"epoch {epoch} [{i + 1}/{l}] MSE {running_loss / (i + 1):.4f}")
        logging.info(f"epoch {epoch}: mean MSE {running_loss / l:.4f}")

    pictures = diffusion.sample(ema_model, n=args.samples, steps=args.sample_steps)
    logging.info(f"samples: mean pixel {pictures.float().mean().item():.1f}")
    if args.run_name:
        accelerator.save(unwrapped.state_dict(), f"{args.run_name}_ckpt.pt")
        accelerator.save(ema_model.state_dict(), f"{args.run_name}_ema_ckpt.pt")
        accelerator.save(optimizer.state_dict(), f"{args.run_name}_optim.pt")


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
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train(args)


if __name__ == "__main__":
    launch()
