"""ResNet-50 for one H200: pictures stay on the GPU as bytes, cropped there; compiled, channels-last, in bfloat16."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_images(n, classes, image_size, seed):
    """Pictures (n, side, side, 3), uint8, and labels."""
    rng = np.random.default_rng(seed)
    side = image_size * 8 // 7
    looks = np.random.default_rng(99).integers(0, 192, (classes, 8, 8, 3), dtype=np.uint8)
    labels = rng.integers(0, classes, n)
    images = rng.integers(0, 64, (n, side, side, 3), dtype=np.uint8)
    coarse = np.arange(side) * 8 // side
    for image, label in zip(images, labels, strict=True):
        image += looks[label][coarse][:, coarse]
    return torch.from_numpy(images), torch.from_numpy(labels)


class Batches:
    """Batches of pictures as bytes, (batch, 3, size, size) in channels-last order; cropped and flipped on the device.

    The pictures of 8/7 of the size are 0.2 MB each: 8192 of them are 1.6 GB, which is little on such a card.
    """

    def __init__(self, images, labels, size, batch, train):
        self.images, self.labels = images, labels
        self.size, self.batch, self.train = size, batch, train
        self.offsets = torch.arange(size, device=images.device)

    def __iter__(self):
        device, room = self.images.device, self.images.shape[1] - self.size
        count = len(self.labels)
        order = torch.randperm(count, device=device) if self.train else torch.arange(count, device=device)
        for index in order.split(self.batch):
            if self.train:
                top, left = torch.randint(0, room + 1, (2, len(index), 1), device=device)
                flip = torch.rand(len(index), 1, device=device) < 0.5
                columns = left + torch.where(flip, self.size - 1 - self.offsets, self.offsets)
            else:
                top = torch.full((len(index), 1), room // 2, device=device)
                columns = top + self.offsets
            rows = top + self.offsets
            images = self.images[index[:, None, None], rows[:, :, None], columns[:, None, :]]
            yield images.permute(0, 3, 1, 2), self.labels[index]


class Bottleneck(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or width_in != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Takes pictures as bytes: the normalisation is fused into what reads them first."""

    def __init__(self, blocks, width, classes):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", 1 / (torch.tensor(STD).view(1, 3, 1, 1) * 255), persistent=False)
        layers = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        width_in = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(Bottleneck(width_in, width << stage, 2 if stage and not block else 1))
                width_in = 4 * (width << stage)
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images, labels):
        outputs = self.head(self.body((images - self.mean) * self.scale)).float()
        top = outputs.detach().topk(5).indices == labels[:, None]
        return F.cross_entropy(outputs, labels), torch.stack([top[:, 0].sum(), top.sum()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("--batch-size", default=256, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--wd", default=1e-4, type=float)
    parser.add_argument("--train-images", default=131072, type=int)
    parser.add_argument("--val-images", default=5120, type=int)
    parser.add_argument("--image-size", default=224, type=int)
    parser.add_argument("--classes", default=1000, type=int)
    parser.add_argument("--width", default=64, type=int)
    parser.add_argument("--blocks", default=[3, 4, 6, 3], type=int, nargs=4)
    parser.add_argument("--seed", default=0, type=int)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    def batches(n, seed, train):
        images, labels = make_images(n, args.classes, args.image_size, seed)
        return Batches(images.to(device), labels.to(device), args.image_size, args.batch_size, train)

    train, val = batches(args.train_images, args.seed, True), batches(args.val_images, args.seed + 1, False)
    model = ResNet(args.blocks, args.width, args.classes).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd, fused=True if on_gpu else None
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    if on_gpu:
        model.compile()

    def run(data, learn):
        """An epoch: loss and accuracies, which are read once, at its end."""
        model.train(learn)
        total, right = torch.zeros((), device=device), torch.zeros(2, device=device)
        with torch.set_grad_enabled(learn):
            for images, labels in data:
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss, hits = model(images, labels)
                if learn:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                total += loss.detach() * len(labels)
                right += hits
        return (total / len(data.labels)).item(), (right / len(data.labels)).tolist()

    best = 0.0
    for epoch in range(args.epochs):
        began = time.perf_counter()
        loss, (top1, _) = run(train, True)
        speed = args.train_images / (time.perf_counter() - began)
        val_loss, (val_top1, val_top5) = run(val, False)
        scheduler.step()
        print(
            f"epoch {epoch}: loss {loss:.4f}, top-1 {top1:.4f}, {speed:,.0f} images/s; "
            f"val loss {val_loss:.4f}, top-1 {val_top1:.4f}, top-5 {val_top5:.4f}"
        )
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "best": max(best, val_top1),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        }
        torch.save(state, "checkpoint.pt")
        if val_top1 > best:
            best = val_top1
            torch.save(state, "best.pt")


if __name__ == "__main__":
    main()
