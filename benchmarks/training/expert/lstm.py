"""An LSTM language model for one H200: float16 with a scaler, a compiled output layer and loss, nothing waits.

cuDNN's LSTM computes in float16 under autocast, whatever type is asked for, so that its gradients need a scaler.
"""

import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, vocabulary, width, hidden, layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, dropout=dropout)
        self.head = nn.Linear(hidden, vocabulary)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, words, state):
        return self.lstm(self.dropout(self.embedding(words)), state)

    def loss(self, output, targets):
        return F.cross_entropy(self.head(self.dropout(output)).flatten(0, 1).float(), targets.flatten())


def make_text(n, vocabulary, seed):
    rng = np.random.default_rng(seed)
    successor = np.random.default_rng(7).permutation(vocabulary)
    words = np.minimum(rng.zipf(1.3, n), vocabulary) - 1
    words[1::2] = successor[words[:-1:2]]
    return torch.from_numpy(words)


def columns(words, count, device):
    """(length, count), each column a part of the text."""
    return words[: len(words) // count * count].view(count, -1).t().contiguous().to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--emsize", type=int, default=650)
    parser.add_argument("--nhid", type=int, default=650)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=20)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--vocab", type=int, default=33278)
    parser.add_argument("--tokens", type=int, default=2088000)
    parser.add_argument("--seed", type=int, default=1111)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    train = columns(make_text(args.tokens, args.vocab, args.seed), args.batch_size, device)
    val = columns(make_text(args.tokens // 20 * 2, args.vocab, args.seed + 1), 10, device)
    model = Model(args.vocab, args.emsize, args.nhid, args.nlayers, args.dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, fused=True if on_gpu else None)
    scaler = torch.amp.GradScaler(enabled=on_gpu)
    half = torch.float16 if on_gpu else torch.bfloat16
    loss_of = torch.compile(model.loss) if on_gpu else model.loss

    def run(text, length, learn, loss_of):
        """Once through the text; the mean loss, read at the end."""
        model.train(learn)
        state, total = None, torch.zeros((), device=device)
        with torch.set_grad_enabled(learn):
            for start in range(0, len(text) - 1, length):
                words, targets = text[start : start + length], text[start + 1 : start + 1 + length]
                words = words[: len(targets)]
                with torch.autocast(device.type, dtype=half):
                    output, state = model(words, state)
                    # the last, shorter piece is not worth a graph
                    whole = len(words) == args.bptt
                    loss = (loss_of if whole else model.loss)(output, targets)
                state = tuple(each.detach() for each in state)
                if learn:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                    scaler.step(optimizer)  # a fused optimizer skips a step by itself: nothing is read
                    scaler.update()
                    optimizer.zero_grad(set_to_none=True)
                total += loss.detach() * len(words)
        return (total / (len(text) - 1)).item()

    best = run(val, args.bptt, False, model.loss)
    print(f"before training: valid loss {best:.4f}")
    for epoch in range(1, args.epochs + 1):
        began = time.perf_counter()
        loss = run(train, args.bptt, True, loss_of)
        speed = train.numel() / (time.perf_counter() - began)
        val_loss = run(val, args.bptt, False, model.loss)
        print(
            f"epoch {epoch}: loss {loss:.4f}, {speed:,.0f} words/s, valid loss {val_loss:.4f}, "
            f"perplexity {math.exp(val_loss):.1f}"
        )
        if val_loss < best:
            best = val_loss
            torch.save(model.state_dict(), args.save)
        else:
            for group in optimizer.param_groups:
                group["lr"] /= 4


if __name__ == "__main__":
    main()
