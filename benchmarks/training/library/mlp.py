"""A tabular MLP with Hugging Face Accelerate."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_table(rows, features):
    x = np.random.randn(rows, features).astype(np.float32)
    w = np.random.randn(features).astype(np.float32) / np.sqrt(features)
    score = 2 * x @ w + x[:, 0] * x[:, 1] - np.abs(x[:, 2]) + 0.5
    y = (np.random.rand(rows) < 1 / (1 + np.exp(-2 * score))).astype(np.float32)
    return x, y


class MLP(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        layers, width = [], features
        for out in (hidden, hidden, hidden // 2):
            layers += [nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU(), nn.Dropout(0.1)]
            width = out
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = Accelerator(
        mixed_precision="bf16",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor"),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )

    x, y = make_table(args.rows, args.features)
    n_train = int(0.9 * args.rows)
    x = (x - x[:n_train].mean(axis=0)) / x[:n_train].std(axis=0)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    options = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    options["persistent_workers"] = args.workers > 0
    train_loader = DataLoader(TensorDataset(x[:n_train], y[:n_train]), shuffle=True, **options)
    test_loader = DataLoader(TensorDataset(x[n_train:], y[n_train:]), **options)
    model = MLP(args.features, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.BCEWithLogitsLoss()
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)

    for epoch in range(args.epochs):
        model.train()
        train_loss = torch.zeros((), device=accelerator.device)
        for inputs, labels in train_loader:
            loss = criterion(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            train_loss += loss.detach() * len(labels)

        model.eval()
        test_loss = torch.zeros((), device=accelerator.device)
        right = torch.zeros((), device=accelerator.device)
        with torch.no_grad():
            for inputs, labels in test_loader:
                outputs, labels = accelerator.gather_for_metrics((model(inputs), labels))
                test_loss += criterion(outputs, labels) * len(labels)
                right += ((outputs > 0).float() == labels).sum()
        rows = args.rows - n_train
        accelerator.print(
            f"epoch {epoch + 1}: train loss {train_loss.item() / n_train:.4f}, "
            f"test loss {test_loss.item() / rows:.4f}, test accuracy {right.item() / rows:.4f}"
        )
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "mlp.pth")


if __name__ == "__main__":
    main()
