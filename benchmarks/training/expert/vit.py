"""ViT-S/16 on pictures of 224 x 224 pixels, as fast as one GPU allows.

The pictures are kept on the GPU as bytes; crops, flips and scaling are one sampling of the whole batch there. The model
is compiled and computes in bfloat16 with fused attention, one kernel updates the weights, and losses are read once an
epoch.
"""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

STORED = 96


def get_args():
    parser = argparse.ArgumentParser("ViT training")
    parser.add_argument("--batch-size", default=256, type=int)
    parser.add_argument("--epochs", default=300, type=int)
    parser.add_argument("--train-images", default=131072, type=int)
    parser.add_argument("--val-images", default=10240, type=int)
    parser.add_argument("--num-classes", default=1000, type=int)
    parser.add_argument("--img-size", default=224, type=int)
    parser.add_argument("--patch-size", default=16, type=int)
    parser.add_argument("--embed-dim", default=384, type=int)
    parser.add_argument("--depth", default=12, type=int)
    parser.add_argument("--num-heads", default=6, type=int)
    parser.add_argument("--lr", default=5e-4, type=float)
    parser.add_argument("--weight-decay", default=0.05, type=float)
    parser.add_argument("--warmup-steps", default=2000, type=int)
    parser.add_argument("--clip-grad", default=1.0, type=float)
    parser.add_argument("--smoothing", default=0.1, type=float)
    parser.add_argument("--print-freq", default=50, type=int)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--output", default="")
    return parser.parse_args()


def make_pictures(count, num_classes, seed):
    rng = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 256, (num_classes, 3, 6, 6), generator=torch.Generator().manual_seed(7))
    labels = torch.randint(0, num_classes, (count,), generator=rng)
    images = torch.empty(count, 3, STORED, STORED, dtype=torch.uint8)
    for i in range(count):
        pattern = F.interpolate(patterns[labels[i]][None].float(), size=STORED)[0]
        noise = torch.randn(3, STORED, STORED, generator=rng)
        images[i] = (pattern + 48 * noise).clamp(0, 255).to(torch.uint8)
    return images, labels


class Batches:
    """Batches of pictures on the device, at the size that the network sees."""

    def __init__(self, images, labels, img_size, batch_size, device, train):
        self.images = images.to(device)
        self.labels = labels.to(device)
        self.img_size, self.batch_size, self.device, self.train = img_size, batch_size, device, train
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device=device).view(3, 1, 1)

    def __len__(self):
        count = len(self.images)
        return count // self.batch_size if self.train else -(-count // self.batch_size)

    def __iter__(self):
        count = len(self.images)
        order = torch.randperm(count, device=self.device) if self.train else torch.arange(count, device=self.device)
        for step in range(len(self)):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield self.scaled(self.images[chosen]), self.labels[chosen]

    def scaled(self, images):
        images = images.float() / 255
        if self.train:
            n, device = len(images), self.device
            size = (STORED * torch.empty(n, device=device).uniform_(0.5, 1.0).sqrt()).long()
            room = STORED - size + 1
            top = (torch.rand(n, device=device) * room).long()
            left = (torch.rand(n, device=device) * room).long()
            mirrored = torch.rand(n, device=device) < 0.5
            # where each pixel of the result lies in its crop, held within the crop's border as interpolate() does
            at = (torch.arange(self.img_size, device=device) + 0.5) / self.img_size
            within = (at * size[:, None] - 0.5).clamp_min(0).minimum(size[:, None] - 1)
            xs = torch.where(mirrored[:, None], within.flip(1), within) + left[:, None]
            ys = within + top[:, None]
            grid = torch.stack(torch.broadcast_tensors(xs[:, None, :], ys[:, :, None]), dim=-1)
            images = F.grid_sample(images, (2 * grid + 1) / STORED - 1, mode="bilinear", align_corners=False)
        else:
            images = F.interpolate(images, size=(self.img_size, self.img_size), mode="bilinear")
        return (images - self.mean) / self.std


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.fc1 = nn.Linear(dim, dim * mlp_ratio)
        self.fc2 = nn.Linear(dim * mlp_ratio, dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, img_size, patch_size, num_classes, embed_dim, depth, num_heads):
        super().__init__()
        self.patch_size = patch_size
        self.patch_embed = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // patch_size) ** 2 + 1, embed_dim))
        self.blocks = nn.ModuleList([Block(embed_dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)

        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def patches(self, x):
        """The convolution whose stride is its width, as the matrix product that it is."""
        batch, channels, height, width = x.shape
        p = self.patch_size
        x = x.view(batch, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        x = x.reshape(batch, -1, channels * p * p)
        return F.linear(x, self.patch_embed.weight.flatten(1), self.patch_embed.bias)

    def forward(self, x):
        x = self.patches(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    sizes = (args.img_size, args.batch_size, device)
    train = Batches(*make_pictures(args.train_images, args.num_classes, args.seed + 1), *sizes, train=True)
    val = Batches(*make_pictures(args.val_images, args.num_classes, args.seed + 2), *sizes, train=False)

    model = VisionTransformer(
        args.img_size, args.patch_size, args.num_classes, args.embed_dim, args.depth, args.num_heads
    ).to(device)
    print(f"number of params: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True if on_gpu else None
    )
    total_steps = args.epochs * len(train)

    def lr_lambda(step):
        if step < args.warmup_steps:
            return (step + 1) / args.warmup_steps
        progress = (step - args.warmup_steps) / max(1, total_steps - args.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * progress))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
    if on_gpu:
        model.compile()

    @torch.no_grad()
    def evaluate():
        model.eval()
        right = torch.zeros((), device=device)
        for images, labels in val:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                right += (model(images).argmax(1) == labels).sum()
        model.train()
        return 100 * right.item() / args.val_images

    began = time.time()
    for epoch in range(args.epochs):
        losses, right = [], torch.zeros((), device=device)
        for step, (images, labels) in enumerate(train):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels, label_smoothing=args.smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
            right += (logits.detach().argmax(1) == labels).sum()
            if (step + 1) % args.print_freq == 0:
                print(f"Epoch: [{epoch}] [{step}/{len(train)}] loss: {loss.item():.4f}")
        train_loss = torch.stack(losses).mean().item()
        train_acc = 100 * right.item() / (len(train) * args.batch_size)
        print(f"epoch {epoch}: train loss {train_loss:.4f}, train acc {train_acc:.2f}, val acc {evaluate():.2f}")
    if args.output:
        torch.save(model.state_dict(), args.output)
    print(f"Training time {time.time() - began:.1f} s")


if __name__ == "__main__":
    main(get_args())
