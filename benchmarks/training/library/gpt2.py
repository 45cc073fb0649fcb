"""GPT-2 124M from scratch with Hugging Face Accelerate."""

import argparse
import math

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, block_size):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size, dtype=torch.bool)))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, block_size):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, block_size)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, layers, heads, width):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList([Block(width, heads, block_size) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.init_weights)
        for block in self.blocks:
            for layer in (block.attention.proj, block.mlp[2]):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * layers))

    def init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class TokenDataset(Dataset):
    def __init__(self, tokens, block_size):
        self.tokens = tokens
        self.block_size = block_size

    def __len__(self):
        return (len(self.tokens) - 1) // self.block_size

    def __getitem__(self, i):
        chunk = self.tokens[i * self.block_size : (i + 1) * self.block_size + 1]
        chunk = torch.from_numpy(chunk.astype(np.int64))
        return chunk[:-1], chunk[1:]


def make_tokens(n, vocab_size, seed):
    rng = np.random.default_rng(seed)
    follows = np.random.default_rng(1234).permutation(vocab_size)
    tokens = np.minimum(rng.zipf(1.2, n), vocab_size) - 1
    tokens[1::2] = follows[tokens[:-1:2]]
    return tokens.astype(np.uint16)


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
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = Accelerator(
        mixed_precision="bf16",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor"),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )

    length = args.block_size
    train_tokens = make_tokens(args.train_windows * length + 1, args.vocab_size, args.seed)
    val_tokens = make_tokens(args.val_windows * length + 1, args.vocab_size, args.seed + 1)
    options = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    train_loader = DataLoader(TokenDataset(train_tokens, length), shuffle=True, **options)
    val_loader = DataLoader(TokenDataset(val_tokens, length), **options)
    model = GPT(args.vocab_size, length, args.layers, args.heads, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    @torch.no_grad()
    def validate():
        model.eval()
        losses = [accelerator.gather(model(x, y)) for x, y in val_loader]
        model.train()
        return torch.stack(losses).mean().item()

    accelerator.print(f"step 0: val loss {validate():.4f}")
    step = 0
    for _ in range(args.epochs):
        for x, y in train_loader:
            loss = model(x, y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step}: loss {loss.item():.4f}")
        accelerator.print(f"step {step}: val loss {validate():.4f}")
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "gpt2.pt")


if __name__ == "__main__":
    main()
