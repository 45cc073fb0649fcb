"""An LSTM language model with Hugging Face Accelerate."""

import argparse
import math

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, vocabulary, width, hidden, layers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, layers, dropout=dropout)
        self.decoder = nn.Linear(hidden, vocabulary)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words, hidden=None):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden


def make_text(n, vocabulary, seed):
    rng = np.random.default_rng(seed)
    successor = np.random.default_rng(7).permutation(vocabulary)
    words = np.minimum(rng.zipf(1.3, n), vocabulary) - 1
    words[1::2] = successor[words[:-1:2]]
    return torch.from_numpy(words)


def batchify(data, count, device):
    return data[: len(data) // count * count].view(count, -1).t().contiguous().to(device)


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

    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    # an LSTM is a kernel of cuDNN, which dynamo does not look into: the backend stays off
    accelerator = Accelerator(mixed_precision="bf16")

    train_data = batchify(make_text(args.tokens, args.vocab, args.seed), args.batch_size, accelerator.device)
    val_data = batchify(make_text(args.tokens // 20 * 2, args.vocab, args.seed + 1), 10, accelerator.device)
    model = RNNModel(args.vocab, args.emsize, args.nhid, args.nlayers, args.dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    model, optimizer = accelerator.prepare(model, optimizer)

    def chunks(data):
        for i in range(0, len(data) - 1, args.bptt):
            length = min(args.bptt, len(data) - 1 - i)
            yield data[i : i + length], data[i + 1 : i + 1 + length].flatten()

    @torch.no_grad()
    def evaluate():
        model.eval()
        hidden, total = None, torch.zeros((), device=accelerator.device)
        for words, targets in chunks(val_data):
            output, hidden = model(words, hidden)
            total += len(words) * criterion(output, targets)
        return total.item() / (len(val_data) - 1)

    accelerator.print(f"before training: valid loss {evaluate():.4f}")
    for epoch in range(1, args.epochs + 1):
        model.train()
        hidden = None
        for step, (words, targets) in enumerate(chunks(train_data)):
            if hidden is not None:
                hidden = tuple(each.detach() for each in hidden)
            output, hidden = model(words, hidden)
            loss = criterion(output, targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad()
            if step % 200 == 0:
                accelerator.print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}")
        val_loss = evaluate()
        accelerator.print(f"epoch {epoch}: valid loss {val_loss:.4f}, perplexity {math.exp(val_loss):.1f}")
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.save)


if __name__ == "__main__":
    main()
