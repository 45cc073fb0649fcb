"""ResNet-50 with Hugging Face Accelerate."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __init__(self, n, classes, image_size, seed, train):
        rng = np.random.default_rng(seed)
        side = image_size * 8 // 7
        looks = np.random.default_rng(99).integers(0, 192, (classes, 8, 8, 3), dtype=np.uint8)
        self.labels = rng.integers(0, classes, n)
        self.images = rng.integers(0, 64, (n, side, side, 3), dtype=np.uint8)
        coarse = np.arange(side) * 8 // side
        for image, label in zip(self.images, self.labels, strict=True):
            image += looks[label][coarse][:, coarse]
        self.image_size = image_size
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1)
        room = image.size(1) - self.image_size
        top, left = torch.randint(0, room + 1, (2,)).tolist() if self.train else (room // 2, room // 2)
        image = image[:, top : top + self.image_size, left : left + self.image_size]
        if self.train and torch.rand(1).item() < 0.5:
            image = image.flip(2)
        return (image.float().div(255) - self.mean) / self.std, int(self.labels[index])


class Bottleneck(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or width_in != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


def resnet(blocks, width, classes):
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width_in = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(width_in, width << stage, 2 if stage and not block else 1))
            width_in = 4 * (width << stage)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


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
    parser.add_argument("--workers", default=8, type=int)
    args = parser.parse_args()

    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = Accelerator(
        mixed_precision="bf16",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor"),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )

    train_set = Images(args.train_images, args.classes, args.image_size, args.seed, train=True)
    val_set = Images(args.val_images, args.classes, args.image_size, args.seed + 1, train=False)
    options = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    options["persistent_workers"] = args.workers > 0
    train_loader, val_loader = DataLoader(train_set, shuffle=True, **options), DataLoader(val_set, **options)
    model = resnet(args.blocks, args.width, args.classes)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler
    )

    for epoch in range(args.epochs):
        model.train()
        for step, (images, labels) in enumerate(train_loader):
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}")
        scheduler.step()

        model.eval()
        total = torch.zeros(2, device=accelerator.device)
        with torch.no_grad():
            for images, labels in val_loader:
                outputs, labels = accelerator.gather_for_metrics((model(images), labels))
                loss = F.cross_entropy(outputs, labels, reduction="sum")
                total += torch.stack([loss, (outputs.argmax(1) == labels).sum()])
        val_loss, top1 = (total / len(val_set)).tolist()
        accelerator.print(f"epoch {epoch}: val loss {val_loss:.4f}, top-1 {top1:.4f}")
        accelerator.save(accelerator.unwrap_model(model).state_dict(), "checkpoint.pt")


if __name__ == "__main__":
    main()
