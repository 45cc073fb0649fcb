"""Timestamps to ISO form for one H200: batches of 32 at once, texts tokenised once, a compiled model in CUDA graphs."""

import argparse
import datetime
import math
import random
import re
import string
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

PAD, BOS, EOS = 0, 1, 2
CHARS = string.ascii_lowercase + string.digits + " ,.:/-"
IDS = {char: number + 3 for number, char in enumerate(CHARS)}
VOCABULARY = len(CHARS) + 3

DATE_FORMATS = ["%A, %d %B %Y", "%d %B %Y", "%B %d, %Y", "%d/%m/%Y", "%a %d %b %Y", "%d. %b. %Y", "%Y %B %d"]
TIME_FORMATS = ["%H:%M", "%I:%M %p", "%H.%M h", "at %I %M %p"]


def tokenize(text):
    text = re.sub(r"\s+", " ", text.lower().strip())
    return [IDS[char] for char in re.sub(r"[^a-z0-9 ,.:/-]", "", text)]


def make_pairs(size, length, seed):
    """Sources (size, length), padded, and targets (size, 18)."""
    rng = random.Random(seed)
    first = datetime.datetime(1970, 1, 1)
    sources, targets = torch.full((size, length), PAD), []
    for row in sources:
        moment = first + datetime.timedelta(minutes=rng.randrange(100 * 365 * 24 * 60))
        text = moment.strftime(rng.choice(DATE_FORMATS)) + ", " + moment.strftime(rng.choice(TIME_FORMATS))
        ids = tokenize(text)[:length]
        row[: len(ids)] = torch.tensor(ids)
        targets.append([BOS, *tokenize(moment.strftime("%Y-%m-%d %H:%M")), EOS])
    return sources, torch.tensor(targets)


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory, mask=None, causal=False):
        q, k, v = (
            layer(each).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, each in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Of the encoder, or of the decoder where it attends to the encoder's output."""

    def __init__(self, width, heads, hidden, dropout, crosses):
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.cross = Attention(width, heads, dropout) if crosses else None
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3 if crosses else 2)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None):
        if self.cross is None:
            x = self.norms[0](x + self.dropout(self.attention(x, x, mask)))
        else:
            x = self.norms[0](x + self.dropout(self.attention(x, x, causal=True)))
            x = self.norms[1](x + self.dropout(self.cross(x, memory, mask)))
        return self.norms[-1](x + self.dropout(self.down(self.dropout(F.relu(self.up(x))))))


class Transformer(nn.Module):
    def __init__(self, width, heads, layers, hidden, dropout):
        super().__init__()
        self.width = width
        self.source, self.target = (nn.Embedding(VOCABULARY, width, padding_idx=PAD) for _ in range(2))
        position = torch.arange(512.0)[:, None] * torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
        table = torch.stack([position.sin(), position.cos()], dim=2).flatten(1)
        self.register_buffer("positions", table, persistent=False)
        self.encoder = nn.ModuleList([Layer(width, heads, hidden, dropout, False) for _ in range(layers)])
        self.decoder = nn.ModuleList([Layer(width, heads, hidden, dropout, True) for _ in range(layers)])
        self.head = nn.Linear(width, VOCABULARY)
        self.dropout = nn.Dropout(dropout)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def embed(self, table, ids):
        return self.dropout(table(ids) * math.sqrt(self.width) + self.positions[: ids.shape[1]])

    def forward(self, source, target):
        mask = (source != PAD)[:, None, None, :]
        memory = self.embed(self.source, source)
        for layer in self.encoder:
            memory = layer(memory, mask)
        x = self.embed(self.target, target[:, :-1])
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), target[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_size", type=int, default=100000)
    parser.add_argument("--val_size", type=int, default=1024)
    parser.add_argument("--max_src_len", type=int, default=64)
    parser.add_argument("--d_model", type=int, default=512)
    parser.add_argument("--num_heads", type=int, default=8)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--d_ff", type=int, default=2048)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output_dir", type=str, default="checkpoints")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    train = [each.to(device) for each in make_pairs(args.train_size, args.max_src_len, args.seed)]
    val = [each.to(device) for each in make_pairs(args.val_size, args.max_src_len, args.seed + 1)]
    model = Transformer(args.d_model, args.num_heads, args.num_layers, args.d_ff, args.dropout).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-9, fused=True if on_gpu else None
    )
    if on_gpu:
        model.compile(mode="reduce-overhead")  # a step is launches, more than arithmetic

    def loss_of(source, target):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return model(source, target)

    best = float("inf")
    for epoch in range(1, args.epochs + 1):
        began = time.perf_counter()
        model.train()
        total = torch.zeros((), device=device)
        # whole batches: eight of four samples each make a step
        order = torch.randperm(args.train_size, device=device)[: args.train_size // args.batch_size * args.batch_size]
        for index in order.split(args.batch_size):
            loss = loss_of(train[0][index], train[1][index])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.detach() * len(index)
        model.eval()
        val_total = torch.zeros((), device=device)
        with torch.no_grad():
            for source, target in zip(*(each.split(args.batch_size) for each in val), strict=True):
                val_total += loss_of(source, target) * len(source)
        val_loss = val_total.item() / args.val_size
        print(
            f"epoch {epoch}: train loss {total.item() / len(order):.4f}, val loss {val_loss:.4f}, "
            f"{len(order) / (time.perf_counter() - began):,.0f} pairs/s"
        )
        if val_loss < best:
            best = val_loss
            folder = Path(args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "best.pt")


if __name__ == "__main__":
    main()
