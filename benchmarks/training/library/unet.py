"""U-Net that separates blobs from their background, with Accelerate."""

import argparse
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split


class BlobDataset(Dataset):
    """Photographs of blobs on a noisy background, and where the blobs are. Decoded pictures are kept in memory."""

    def __init__(self, n, size, seed=0):
        rng = np.random.RandomState(seed)
        ys, xs = np.mgrid[0:size, 0:size].astype(np.float32) / size
        self.images = np.empty((n, size, size, 3), dtype=np.uint8)
        self.masks = np.empty((n, size, size), dtype=np.uint8)
        for i in range(n):
            mask = np.zeros((size, size), dtype=bool)
            for _ in range(rng.randint(1, 5)):
                cy, cx = rng.uniform(0.2, 0.8, 2)
                ry, rx = rng.uniform(0.05, 0.2, 2)
                mask |= ((ys - cy) / ry) ** 2 + ((xs - cx) / rx) ** 2 < 1
            background = 90 + 40 * xs + 30 * ys
            image = background[..., None] + mask[..., None] * rng.uniform(20, 60, 3)
            noise = rng.randint(-40, 41, size=(size, size, 3))
            self.images[i] = np.clip(image + noise, 0, 255).astype(np.uint8)
            self.masks[i] = mask

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        img = self.images[idx].transpose((2, 0, 1)) / 255.0
        mask = self.masks[idx]
        if np.random.rand() < 0.5:
            img, mask = img[:, :, ::-1], mask[:, ::-1]
        if np.random.rand() < 0.5:
            img, mask = img[:, ::-1, :], mask[::-1, :]
        return {
            'image': torch.as_tensor(img.copy()).float().contiguous(),
            'mask': torch.as_tensor(mask.copy()).long().contiguous(),
        }


class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        if not mid_channels:
            mid_channels = out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True)
        )

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    """Downscaling with maxpool then double conv"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.maxpool_conv = nn.Sequential(
            nn.MaxPool2d(2),
            DoubleConv(in_channels, out_channels)
        )

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    """Upscaling then double conv"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        # input is CHW
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]

        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2,
                        diffY // 2, diffY - diffY // 2])
        x = torch.cat([x2, x1], dim=1)
        return self.conv(x)


class OutConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=1)

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=64):
        super().__init__()
        self.n_channels = n_channels
        self.n_classes = n_classes

        self.inc = DoubleConv(n_channels, width)
        self.down1 = Down(width, width * 2)
        self.down2 = Down(width * 2, width * 4)
        self.down3 = Down(width * 4, width * 8)
        self.down4 = Down(width * 8, width * 16)
        self.up1 = Up(width * 16, width * 8)
        self.up2 = Up(width * 8, width * 4)
        self.up3 = Up(width * 4, width * 2)
        self.up4 = Up(width * 2, width)
        self.outc = OutConv(width, n_classes)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x5 = self.down4(x4)
        x = self.up1(x5, x4)
        x = self.up2(x, x3)
        x = self.up3(x, x2)
        x = self.up4(x, x1)
        logits = self.outc(x)
        return logits


def dice_coeff(input, target, epsilon=1e-6):
    # Average of Dice coefficient for all pictures of the batch
    assert input.size() == target.size()
    sum_dim = (-1, -2)
    inter = 2 * (input * target).sum(dim=sum_dim)
    sets_sum = input.sum(dim=sum_dim) + target.sum(dim=sum_dim)
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    dice = (inter + epsilon) / (sets_sum + epsilon)
    return dice.mean()


def dice_loss(input, target):
    return 1 - dice_coeff(input, target)


@torch.inference_mode()
def evaluate(accelerator, net, dataloader):
    net.eval()
    num_val_batches = len(dataloader)
    dice_score = 0

    # iterate over the validation set
    for batch in dataloader:
        image, mask_true = batch['image'], batch['mask']

        # predict the mask
        mask_pred = net(image)
        mask_pred = (torch.sigmoid(mask_pred) > 0.5).float()
        mask_pred, mask_true = accelerator.gather_for_metrics((mask_pred, mask_true))
        dice_score += dice_coeff(mask_pred.squeeze(1), mask_true.float())

    net.train()
    return float(dice_score) / max(num_val_batches, 1)


def train_model(accelerator, model, args):
    # 1. Create dataset
    dataset = BlobDataset(args.pictures, args.size)

    # 2. Split into train / validation partitions
    n_val = int(len(dataset) * args.validation / 100)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(dataset, [n_train, n_val], generator=torch.Generator().manual_seed(0))

    # 3. Create data loaders
    loader_args = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)

    logging.info(f'''Starting training:
        Epochs:          {args.epochs}
        Batch size:      {args.batch_size}
        Learning rate:   {args.lr}
        Training size:   {n_train}
        Validation size: {n_val}
        Device:          {accelerator.device}
    ''')

    # 4. Set up the optimizer, the loss and the learning rate scheduler
    optimizer = optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-8)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=5)  # goal: maximize Dice score
    criterion = nn.BCEWithLogitsLoss()
    global_step = 0
    n_channels = model.n_channels
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    # 5. Begin training
    for epoch in range(1, args.epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch['image'], batch['mask']

            assert images.shape[1] == n_channels, \
                f'Network has been defined with {n_channels} input channels, ' \
                f'but loaded images have {images.shape[1]} channels.'

            masks_pred = model(images)
            loss = criterion(masks_pred.squeeze(1), true_masks.float())
            loss += dice_loss(torch.sigmoid(masks_pred.squeeze(1)), true_masks.float())

            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), args.gradient_clipping)
            optimizer.step()

            global_step += 1
            epoch_loss += loss.detach()
            if global_step % args.log_every == 0:
                logging.info(f'step {global_step}: loss {loss.item():.4f}')

        # Evaluation round
        val_score = evaluate(accelerator, model, val_loader)
        scheduler.step(val_score)
        logging.info(f'Epoch {epoch}: train loss {epoch_loss / len(train_loader):.4f}, '
                     f'validation Dice score {val_score:.4f}, lr {optimizer.param_groups[0]["lr"]:.1e}')
        if args.checkpoint:
            accelerator.save(accelerator.unwrap_model(model).state_dict(), args.checkpoint)


def get_args():
    parser = argparse.ArgumentParser(description='Train the UNet on images and target masks')
    parser.add_argument('--epochs', '-e', type=int, default=300, help='Number of epochs')
    parser.add_argument('--batch-size', '-b', dest='batch_size', type=int, default=16, help='Batch size')
    parser.add_argument('--learning-rate', '-l', type=float, default=1e-4, help='Learning rate', dest='lr')
    parser.add_argument('--pictures', type=int, default=1760, help='Number of pictures')
    parser.add_argument('--size', type=int, default=256, help='Height and width of the pictures')
    parser.add_argument('--width', type=int, default=64, help='Channels of the first level')
    parser.add_argument('--validation', '-v', type=float, default=10.0,
                        help='Percent of the data that is used as validation (0-100)')
    parser.add_argument('--gradient-clipping', type=float, default=1.0)
    parser.add_argument('--log-every', type=int, default=20)
    parser.add_argument('--checkpoint', default='', help='File for the weights of the last epoch')
    parser.add_argument('--workers', type=int, default=12)
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


if __name__ == '__main__':
    args = get_args()

    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s')
    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    accelerator = Accelerator(
        mixed_precision='bf16',
        dynamo_plugin=TorchDynamoPlugin(backend='inductor'),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )

    # n_channels=3 for RGB images, n_classes is the number of probabilities you want to get per pixel
    model = UNet(n_channels=3, n_classes=1, width=args.width)
    train_model(accelerator, model, args)
