"""GPT-2 124M from scratch, for one H200: bfloat16, flash attention, one graph, tokens on the GPU, nothing waits."""

import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, layers, heads, width):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for layer in (block.attention.proj, block.down):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions.weight[: idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def make_tokens(n, vocab_size, seed):
    rng = np.random.default_rng(seed)
    follows = np.random.default_rng(1234).permutation(vocab_size)
    tokens = np.minimum(rng.zipf(1.2, n), vocab_size) - 1
    tokens[1::2] = follows[tokens[:-1:2]]
    return torch.from_numpy(tokens.astype(np.int64))


def windows(tokens, block_size, device):
    """Inputs and targets, (windows, block_size) each, as views of one tensor on the device."""
    tokens = tokens.to(device)
    count = (len(tokens) - 1) // block_size
    return tokens[:-1].view(count, block_size), tokens[1:].view(count, block_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--train-windows", type=int, default=64000)
    parser.add_argument("--val-windows", type=int, default=640)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    # a few megabytes: they live on the GPU, and a batch is a gather
    length = args.block_size
    train = windows(make_tokens(args.train_windows * length + 1, args.vocab_size, args.seed), length, device)
    val = windows(make_tokens(args.val_windows * length + 1, args.vocab_size, args.seed + 1), length, device)

    model = GPT(args.vocab_size, length, args.layers, args.heads, args.width).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True if on_gpu else None
    )
    if on_gpu:
        model.compile()

    def loss_of(inputs, targets):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return model(inputs, targets)

    @torch.no_grad()
    def validate():
        model.eval()
        losses = [loss_of(x, y) for x, y in zip(*(each.split(args.batch_size) for each in val), strict=True)]
        model.train()
        return torch.stack(losses).mean().item()

    print(f"step 0: val loss {validate():.4f}")
    step, began = 0, time.perf_counter()
    for _ in range(args.epochs):
        order = torch.randperm(len(train[0]), device=device)
        for chosen in order.split(args.batch_size):
            loss = loss_of(train[0][chosen], train[1][chosen])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 50 == 0:
                done = step * args.batch_size * length
                print(f"step {step}: loss {loss.item():.4f}, {done / (time.perf_counter() - began):,.0f} tokens/s")
        print(f"step {step}: val loss {validate():.4f}")
    torch.save(model.state_dict(), "gpt2.pt")


if __name__ == "__main__":
    main()
