"""Fine-tunes a BERT (base, by default) on reviews of different lengths, as fast as one GPU allows.

Nothing is computed for padding: the tokens of a batch lie behind one another, and attention is told where each review
begins (the kernel of FlashAttention for sequences of different lengths). The data are on the GPU, where an epoch is put
in order once. The model is compiled and computes in bfloat16, one kernel updates the weights.
"""

import argparse
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CLS, SEP = 101, 102


def make_reviews(num_reviews, max_length, vocab_size, num_labels, seed):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(math.log(max_length * 0.4), 0.6, num_reviews), 8, max_length).astype(int)
    labels = rng.integers(0, num_labels, num_reviews)
    words_of = np.random.default_rng(13).integers(1000, vocab_size, (num_labels, 10))
    reviews = []
    for length, label in zip(lengths, labels, strict=True):
        ids = rng.integers(1000, vocab_size, length)
        telling = rng.random(length) < 0.5
        ids[telling] = rng.choice(words_of[label], telling.sum())
        ids[0], ids[-1] = CLS, SEP
        reviews.append(ids)
    return reviews, labels


class Batches:
    """Batches of reviews one behind another: their tokens, their positions, where each begins, and their labels."""

    def __init__(self, reviews, labels, batch_size, device):
        self.reviews, self.labels, self.batch_size, self.device = reviews, labels, batch_size, device
        self.lengths = np.array([len(review) for review in reviews])

    def __len__(self):
        return math.ceil(len(self.reviews) / self.batch_size)

    def epoch(self, order):
        """An epoch's tokens take a few megabytes: they go to the GPU at once, and a batch is a slice of them."""
        lengths = self.lengths[order]
        starts = np.concatenate([[0], lengths.cumsum()])
        tokens = np.concatenate([self.reviews[i] for i in order])
        positions = np.arange(len(tokens)) - np.repeat(starts[:-1], lengths)
        tokens, positions, labels = (
            torch.from_numpy(each).to(self.device) for each in (tokens, positions, self.labels[order])
        )
        bounds = torch.from_numpy(starts.astype(np.int32)).to(self.device)
        for first in range(0, len(order), self.batch_size):
            last = min(first + self.batch_size, len(order))
            here = slice(int(starts[first]), int(starts[last]))
            yield tokens[here], positions[here], bounds[first : last + 1] - bounds[first], labels[first:last]


def padded_attention(q, k, v, bounds, dropout):
    """The same where there is no such kernel: on a CPU."""
    lengths = (bounds[1:] - bounds[:-1]).tolist()
    q, k, v = (nn.utils.rnn.pad_sequence(each.split(lengths), batch_first=True).transpose(1, 2) for each in (q, k, v))
    inside = torch.arange(q.shape[2], device=q.device) < torch.tensor(lengths, device=q.device)[:, None]
    x = F.scaled_dot_product_attention(q, k, v, attn_mask=inside[:, None, None, :], dropout_p=dropout)
    return x.transpose(1, 2)[inside]


class Layer(nn.Module):
    def __init__(self, hidden_size, heads, max_length, dropout, eps=1e-12):
        super().__init__()
        self.heads, self.max_length, self.p = heads, max_length, dropout
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.attention_output = nn.Linear(hidden_size, hidden_size)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.intermediate = nn.Linear(hidden_size, 4 * hidden_size)
        self.output = nn.Linear(4 * hidden_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x, bounds):
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).unbind(1)
        dropout = self.p if self.training else 0.0
        if x.is_cuda:
            # the longest length there can be: that of the batch would be another graph each time
            longest = self.max_length
            out = torch.ops.aten._flash_attention_forward(
                q, k, v, bounds, bounds, longest, longest, dropout, False, False
            )[0]
        else:
            out = padded_attention(q, k, v, bounds, dropout)
        return out.reshape(len(x), -1)

    def forward(self, x, bounds):
        x = self.attention_norm(x + self.dropout(self.attention_output(self.attention(x, bounds))))
        return self.output_norm(x + self.dropout(self.output(F.gelu(self.intermediate(x)))))


class Bert(nn.Module):
    def __init__(self, vocab_size, hidden_size, layers, heads, max_length, num_labels, dropout=0.1):
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.positions = nn.Embedding(max_length, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.layers = nn.ModuleList([Layer(hidden_size, heads, max_length, dropout) for _ in range(layers)])
        self.pooler = nn.Linear(hidden_size, hidden_size)
        self.classifier = nn.Linear(hidden_size, num_labels)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens, positions, bounds):
        x = self.dropout(self.norm(self.words(tokens) + self.positions(positions)))
        for layer in self.layers:
            x = layer(x, bounds)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[bounds[:-1]]))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_reviews", type=int, default=25000)
    parser.add_argument("--eval_reviews", type=int, default=5000)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--hidden_size", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", type=str, default="")
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    num_labels, about = 4, (args.max_length, args.vocab_size)
    train = Batches(*make_reviews(args.train_reviews, *about, num_labels, seed=1), args.batch_size, device)
    held_out = Batches(*make_reviews(args.eval_reviews, *about, num_labels, seed=2), args.batch_size, device)

    model = Bert(args.vocab_size, args.hidden_size, args.layers, args.heads, args.max_length, num_labels).to(device)
    if on_gpu:
        model.compile(dynamic=True)  # each batch has another number of tokens

    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=args.lr,
        fused=True if on_gpu else None,
    )
    total_steps = args.epochs * len(train)
    warmup_steps = int(0.1 * total_steps)

    def lr_lambda(step):
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)

    def outcome(tokens, positions, bounds, labels):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(tokens, positions, bounds)
        return F.cross_entropy(logits.float(), labels), logits

    @torch.no_grad()
    def evaluate():
        model.eval()
        losses, right = [], torch.zeros((), device=device)
        for batch in held_out.epoch(np.arange(args.eval_reviews)):
            loss, logits = outcome(*batch)
            losses.append(loss)
            right += (logits.argmax(-1) == batch[-1]).sum()
        model.train()
        return torch.stack(losses).mean().item(), right.item() / args.eval_reviews

    start = time.time()
    for epoch in range(args.epochs):
        losses = []
        for batch in train.epoch(rng.permutation(args.train_reviews)):
            loss, _ = outcome(*batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
        train_loss = torch.stack(losses).mean().item()
        eval_loss, accuracy = evaluate()
        print(f"epoch {epoch + 1}: train loss {train_loss:.4f}, eval loss {eval_loss:.4f}, accuracy {accuracy:.4f}")
    print(f"finished after {time.time() - start:.1f} s")
    if args.output:
        torch.save(model.state_dict(), args.output)


if __name__ == "__main__":
    main()
