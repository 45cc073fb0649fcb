"""A tabular MLP for one H200: the table lives on the GPU, and a step is the replay of one captured graph."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def make_table(rows, features, seed):
    np.random.seed(seed)
    x = np.random.randn(rows, features).astype(np.float32)
    w = np.random.randn(features).astype(np.float32) / np.sqrt(features)
    score = 2 * x @ w + x[:, 0] * x[:, 1] - np.abs(x[:, 2]) + 0.5
    y = (np.random.rand(rows) < 1 / (1 + np.exp(-2 * score))).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


def mlp(features, hidden):
    layers, width = [], features
    for out in (hidden, hidden, hidden // 2):
        layers += [nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU(inplace=True), nn.Dropout(0.1)]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, 1), nn.Flatten(0))


class Trainer:
    """Steps by index into the table. On a GPU the first ones warm up, the next is captured, the others replay it."""

    WARM_UP = 3

    def __init__(self, model, optimizer, x, y, batch):
        self.model, self.optimizer, self.x, self.y = model, optimizer, x, y
        self.on_gpu = x.device.type == "cuda"
        self.index = torch.empty(batch, dtype=torch.long, device=x.device)
        self.total = torch.zeros(2, device=x.device)  # loss and right answers, over the samples
        # fewer kernels within the graph; short batches and the evaluation are too rare to compile for
        self.compiled = torch.compile(model) if self.on_gpu else model
        self.calls = 0
        self.graph = None

    def forward(self, model, x, y):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            outputs = model(x)
        outputs = outputs.float()
        loss = F.binary_cross_entropy_with_logits(outputs, y)
        self.total += torch.stack([loss.detach() * len(y), ((outputs > 0) == (y > 0)).sum()])
        return loss

    def update(self, model, index):
        self.optimizer.zero_grad(set_to_none=True)
        self.forward(model, self.x[index], self.y[index]).backward()
        self.optimizer.step()

    def step(self, index):
        if not self.on_gpu or len(index) != len(self.index):  # an epoch's last batch is short
            self.update(self.model, index)
            return
        self.index.copy_(index)
        self.calls += 1
        if self.calls <= self.WARM_UP:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.update(self.compiled, self.index)
            torch.cuda.current_stream().wait_stream(side)
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.update(self.compiled, self.index)
        self.graph.replay()

    def read(self, samples):
        loss, right = (self.total / samples).tolist()
        self.total.zero_()
        return loss, right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    x, y = (each.to(device) for each in make_table(args.rows, args.features, args.seed))
    rows = int(0.9 * args.rows)
    x = (x - x[:rows].mean(0)) / x[:rows].std(0, correction=0)

    model = mlp(args.features, args.hidden).to(device)
    options = {"fused": True, "capturable": True} if on_gpu else {}
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, **options)
    trainer = Trainer(model, optimizer, x[:rows], y[:rows], args.batch_size)

    for epoch in range(args.epochs):
        began = time.perf_counter()
        model.train()
        for index in torch.randperm(rows, device=device).split(args.batch_size):
            trainer.step(index)
        loss, right = trainer.read(rows)

        model.eval()
        with torch.no_grad():
            for inputs, labels in zip(x[rows:].split(8192), y[rows:].split(8192), strict=True):
                trainer.forward(model, inputs, labels)
        test_loss, test_right = trainer.read(args.rows - rows)
        print(
            f"epoch {epoch + 1}: train loss {loss:.4f}, accuracy {right:.4f}, test loss {test_loss:.4f}, "
            f"accuracy {test_right:.4f}, {time.perf_counter() - began:.1f} s"
        )
    torch.save(model.state_dict(), "mlp.pth")


if __name__ == "__main__":
    main()
