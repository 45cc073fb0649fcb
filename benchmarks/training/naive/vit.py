"""Train a ViT-S/16 from scratch on pictures of 224 x 224 pixels.

The pictures are made up: every class has a coarse pattern of colours, seen through noise.
"""
import argparse
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


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
    parser.add_argument("--print-freq", default=10, type=int)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--output", default="", help="where to save the weights")
    return parser.parse_args()


class Pictures(Dataset):
    """Small pictures in memory, cropped at random and scaled up to the size that the network sees."""

    stored = 96

    def __init__(self, count, num_classes, img_size, train, seed):
        rng = torch.Generator().manual_seed(seed)
        patterns = torch.randint(0, 256, (num_classes, 3, 6, 6), generator=torch.Generator().manual_seed(7))
        self.labels = torch.randint(0, num_classes, (count,), generator=rng)
        self.images = torch.empty(count, 3, self.stored, self.stored, dtype=torch.uint8)
        for i in range(count):
            pattern = F.interpolate(patterns[self.labels[i]][None].float(), size=self.stored)[0]
            noise = torch.randn(3, self.stored, self.stored, generator=rng)
            self.images[i] = (pattern + 48 * noise).clamp(0, 255).to(torch.uint8)
        self.img_size = img_size
        self.train = train
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        img = self.images[index]
        if self.train:
            size = int(self.stored * math.sqrt(random.uniform(0.5, 1.0)))
            top = random.randint(0, self.stored - size)
            left = random.randint(0, self.stored - size)
            img = img[:, top:top + size, left:left + size]
            if random.random() < 0.5:
                img = img.flip(2)
        img = F.interpolate(img[None].float() / 255, size=(self.img_size, self.img_size), mode="bilinear")[0]
        return (img - self.mean) / self.std, self.labels[index]


class PatchEmbed(nn.Module):
    def __init__(self, img_size, patch_size, embed_dim):
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, num_heads=6, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]

        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        x = self.proj_drop(x)
        return x


class Mlp(nn.Module):
    def __init__(self, dim, hidden_dim, drop=0.0):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class VisionTransformer(nn.Module):
    def __init__(self, img_size=224, patch_size=16, num_classes=1000, embed_dim=384, depth=12, num_heads=6):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patch_embed.num_patches + 1, embed_dim))
        self.blocks = nn.ModuleList([Block(embed_dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)

        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        B = x.shape[0]
        x = self.patch_embed(x)
        cls_tokens = self.cls_token.expand(B, -1, -1)
        x = torch.cat((cls_tokens, x), dim=1)
        x = x + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x)
        return self.head(x[:, 0])


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def accuracy(output, target, topk=(1, 5)):
    """Computes the accuracy over the k top predictions"""
    maxk = min(max(topk), output.size(1))
    _, pred = output.topk(maxk, 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    return [correct[:min(k, maxk)].reshape(-1).float().sum(0) * 100.0 / target.size(0) for k in topk]


def train_one_epoch(model, criterion, data_loader, optimizer, scheduler, device, epoch, args):
    model.train()
    losses = AverageMeter()
    top1 = AverageMeter()
    start = time.time()

    for step, (samples, targets) in enumerate(data_loader):
        samples = samples.to(device)
        targets = targets.to(device)

        outputs = model(samples)
        loss = criterion(outputs, targets)

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        scheduler.step()

        acc1, acc5 = accuracy(outputs, targets)
        losses.update(loss.item(), samples.size(0))
        top1.update(acc1.item(), samples.size(0))

        if step % args.print_freq == 0:
            rate = losses.count / (time.time() - start)
            print(f"Epoch: [{epoch}] [{step}/{len(data_loader)}] loss: {losses.avg:.4f} acc1: {top1.avg:.2f} "
                  f"lr: {optimizer.param_groups[0]['lr']:.6f} img/s: {rate:.0f}")
    return losses.avg, top1.avg


@torch.no_grad()
def evaluate(data_loader, model, device):
    criterion = nn.CrossEntropyLoss()
    losses = AverageMeter()
    top1 = AverageMeter()
    top5 = AverageMeter()
    model.eval()
    for images, target in data_loader:
        images = images.to(device)
        target = target.to(device)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(acc1.item(), images.size(0))
        top5.update(acc5.item(), images.size(0))
    print(f"* Acc@1 {top1.avg:.3f} Acc@5 {top5.avg:.3f} loss {losses.avg:.3f}")
    return top1.avg


def main(args):
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = Pictures(args.train_images, args.num_classes, args.img_size, train=True, seed=args.seed + 1)
    val_set = Pictures(args.val_images, args.num_classes, args.img_size, train=False, seed=args.seed + 2)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, shuffle=False)

    model = VisionTransformer(args.img_size, args.patch_size, args.num_classes,
                              args.embed_dim, args.depth, args.num_heads)
    model.to(device)
    print(f"number of params: {sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6:.1f}M")

    criterion = nn.CrossEntropyLoss(label_smoothing=args.smoothing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    total_steps = args.epochs * len(train_loader)

    def lr_lambda(step):
        if step < args.warmup_steps:
            return (step + 1) / args.warmup_steps
        progress = (step - args.warmup_steps) / max(1, total_steps - args.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * progress))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)

    best_acc = 0.0
    start_time = time.time()
    for epoch in range(args.epochs):
        train_loss, train_acc = train_one_epoch(
            model, criterion, train_loader, optimizer, scheduler, device, epoch, args)
        val_acc = evaluate(val_loader, model, device)
        print(f"epoch {epoch}: train loss {train_loss:.4f}, train acc {train_acc:.2f}, val acc {val_acc:.2f}")
        if val_acc > best_acc:
            best_acc = val_acc
            if args.output:
                torch.save(model.state_dict(), args.output)
    print(f"Training time {time.time() - start_time:.1f} s, best acc {best_acc:.2f}")


if __name__ == "__main__":
    main(get_args())
