"""U-Net that separates blobs from their background, as fast as one GPU allows.

The pictures are kept on the GPU as bytes and turned over there. Convolutions run in bfloat16 with the channels last,
the model is compiled, one kernel updates the weights, and losses are read once an epoch.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def make_pictures(n, size, seed=0):
    rng = np.random.RandomState(seed)
    ys, xs = np.mgrid[0:size, 0:size].astype(np.float32) / size
    images = np.empty((n, size, size, 3), dtype=np.uint8)
    masks = np.empty((n, size, size), dtype=np.uint8)
    for i in range(n):
        mask = np.zeros((size, size), dtype=bool)
        for _ in range(rng.randint(1, 5)):
            cy, cx = rng.uniform(0.2, 0.8, 2)
            ry, rx = rng.uniform(0.05, 0.2, 2)
            mask |= ((ys - cy) / ry) ** 2 + ((xs - cx) / rx) ** 2 < 1
        background = 90 + 40 * xs + 30 * ys
        image = background[..., None] + mask[..., None] * rng.uniform(20, 60, 3)
        noise = rng.randint(-40, 41, size=(size, size, 3))
        images[i] = np.clip(image + noise, 0, 255).astype(np.uint8)
        masks[i] = mask
    return torch.from_numpy(images), torch.from_numpy(masks)


def prepared(images, masks):
    """A batch as the network takes it: turned over at random, in floats. The bytes have their channels last already."""
    images = images.permute(0, 3, 1, 2)
    for dim in (-1, -2):
        turned = torch.rand(len(images), device=images.device) < 0.5
        images = torch.where(turned.view(-1, 1, 1, 1), images.flip(dim), images)
        masks = torch.where(turned.view(-1, 1, 1), masks.flip(dim), masks)
    return images.float().div_(255).contiguous(memory_format=torch.channels_last), masks.float()


def double_conv(in_channels, out_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=64):
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.downs = nn.ModuleList(
            [double_conv(before, after) for before, after in zip([n_channels, *widths], widths, strict=False)]
        )
        self.raises = nn.ModuleList(
            [nn.ConvTranspose2d(each, each // 2, kernel_size=2, stride=2) for each in reversed(widths[1:])]
        )
        self.ups = nn.ModuleList([double_conv(each, each // 2) for each in reversed(widths[1:])])
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1)

    def forward(self, x):
        kept = []
        for level, down in enumerate(self.downs):
            x = down(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for larger, up in zip(self.raises, self.ups, strict=True):
            x = up(torch.cat([kept.pop(), larger(x)], dim=1))
        return self.outc(x)


def dice_coeff(masks, target, epsilon=1e-6):
    inter = 2 * (masks * target).sum(dim=(-1, -2))
    sets_sum = masks.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", "-e", type=int, default=300)
    parser.add_argument("--batch-size", "-b", type=int, default=16)
    parser.add_argument("--learning-rate", "-l", type=float, default=1e-4, dest="lr")
    parser.add_argument("--pictures", type=int, default=1760)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--validation", "-v", type=float, default=10.0)
    parser.add_argument("--gradient-clipping", type=float, default=1.0)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    images, masks = (each.to(device) for each in make_pictures(args.pictures, args.size))
    n_val = int(len(images) * args.validation / 100)
    n_train = len(images) - n_val
    split = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)
    train_indices, val_indices = split[:n_train], split[n_train:]

    model = UNet(n_channels=3, n_classes=1, width=args.width).to(device, memory_format=torch.channels_last)
    if on_gpu:
        model.compile()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-8, fused=True if on_gpu else None)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)

    def logits_of(inputs):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return model(inputs).squeeze(1).float()

    @torch.no_grad()
    def evaluate():
        model.eval()
        scores = []
        for step in range(n_val // args.batch_size):
            chosen = val_indices[step * args.batch_size : (step + 1) * args.batch_size]
            inputs, targets = prepared(images[chosen], masks[chosen])
            scores.append(dice_coeff((logits_of(inputs) > 0).float(), targets))
        model.train()
        return torch.stack(scores).mean().item() if scores else 0.0

    global_step = 0
    for epoch in range(1, args.epochs + 1):
        losses = []
        order = train_indices[torch.randperm(n_train, device=device)]
        for chosen in order.split(args.batch_size):
            inputs, targets = prepared(images[chosen], masks[chosen])
            logits = logits_of(inputs)
            loss = F.binary_cross_entropy_with_logits(logits, targets)
            loss = loss + 1 - dice_coeff(torch.sigmoid(logits), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.gradient_clipping)
            optimizer.step()
            losses.append(loss.detach())
            global_step += 1
            if global_step % args.log_every == 0:
                print(f"step {global_step}: loss {loss.item():.4f}")
        val_score = evaluate()
        scheduler.step(val_score)
        train_loss = torch.stack(losses).mean().item()
        print(f"Epoch {epoch}: train loss {train_loss:.4f}, validation Dice score {val_score:.4f}")
        if args.checkpoint:
            torch.save(model.state_dict(), args.checkpoint)


if __name__ == "__main__":
    main()
