"""Timestamps to ISO form, an encoder-decoder transformer with Hugging Face Accelerate."""

import argparse
import datetime
import math
import random
import re
import string
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS = 0, 1, 2
CHARS = string.ascii_lowercase + string.digits + " ,.:/-"
CHAR_TO_ID = {c: i + 3 for i, c in enumerate(CHARS)}
VOCAB_SIZE = len(CHARS) + 3

DATE_FORMATS = ["%A, %d %B %Y", "%d %B %Y", "%B %d, %Y", "%d/%m/%Y", "%a %d %b %Y", "%d. %b. %Y", "%Y %B %d"]
TIME_FORMATS = ["%H:%M", "%I:%M %p", "%H.%M h", "at %I %M %p"]


class TimestampDataset(Dataset):
    def __init__(self, size, max_src_len, seed):
        rng = random.Random(seed)
        first = datetime.datetime(1970, 1, 1)
        self.max_src_len = max_src_len
        self.samples = []
        for _ in range(size):
            moment = first + datetime.timedelta(minutes=rng.randrange(100 * 365 * 24 * 60))
            text = moment.strftime(rng.choice(DATE_FORMATS)) + ", " + moment.strftime(rng.choice(TIME_FORMATS))
            self.samples.append((text, moment.strftime("%Y-%m-%d %H:%M")))

    def __len__(self):
        return len(self.samples)

    def tokenize(self, text):
        text = re.sub(r"\s+", " ", text.lower().strip())
        text = re.sub(r"[^a-z0-9 ,.:/-]", "", text)
        return [CHAR_TO_ID[c] for c in text]

    def __getitem__(self, idx):
        src_text, tgt_text = self.samples[idx]
        src = self.tokenize(src_text)[: self.max_src_len]
        src = src + [PAD] * (self.max_src_len - len(src))
        # the target always has 16 characters
        tgt = [BOS, *self.tokenize(tgt_text), EOS]
        return torch.tensor(src, dtype=torch.long), torch.tensor(tgt, dtype=torch.long)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        batch_size = query.size(0)
        q = self.w_q(query).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        k = self.w_k(key).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        v = self.w_v(value).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        attn = torch.softmax(scores, dim=-1)
        attn = self.dropout(attn)

        out = torch.matmul(attn, v)
        out = out.transpose(1, 2).contiguous().view(batch_size, -1, self.num_heads * self.d_k)
        return self.w_o(out)


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.linear2(self.dropout(self.relu(self.linear1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, src_mask):
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, src_mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.cross_attn = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, tgt_mask)))
        x = self.norm2(x + self.dropout(self.cross_attn(x, memory, memory, src_mask)))
        return self.norm3(x + self.dropout(self.feed_forward(x)))


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=512):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Transformer(nn.Module):
    def __init__(self, vocab_size, d_model=512, num_heads=8, num_layers=6, d_ff=2048, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.src_embedding = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.tgt_embedding = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.positional_encoding = PositionalEncoding(d_model)
        self.encoder_layers = nn.ModuleList(
            [EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]
        )
        self.decoder_layers = nn.ModuleList(
            [DecoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]
        )
        self.fc = nn.Linear(d_model, vocab_size)
        self.dropout = nn.Dropout(dropout)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def generate_mask(self, src, tgt):
        src_mask = (src != PAD).unsqueeze(1).unsqueeze(2)
        seq_length = tgt.size(1)
        nopeak_mask = (1 - torch.triu(torch.ones(1, seq_length, seq_length), diagonal=1)).bool()
        tgt_mask = nopeak_mask.unsqueeze(1).to(tgt.device)
        return src_mask, tgt_mask

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.generate_mask(src, tgt)
        enc_output = self.dropout(self.positional_encoding(self.src_embedding(src) * math.sqrt(self.d_model)))
        dec_output = self.dropout(self.positional_encoding(self.tgt_embedding(tgt) * math.sqrt(self.d_model)))
        for layer in self.encoder_layers:
            enc_output = layer(enc_output, src_mask)
        for layer in self.decoder_layers:
            dec_output = layer(dec_output, enc_output, src_mask, tgt_mask)
        return self.fc(dec_output)


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
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--accumulation_steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output_dir", type=str, default="checkpoints")
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    set_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=args.accumulation_steps,
        dynamo_plugin=TorchDynamoPlugin(backend="inductor"),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )

    train_set = TimestampDataset(args.train_size, args.max_src_len, args.seed)
    val_set = TimestampDataset(args.val_size, args.max_src_len, args.seed + 1)
    options = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    options["persistent_workers"] = args.workers > 0
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val_set, **options)
    model = Transformer(VOCAB_SIZE, args.d_model, args.num_heads, args.num_layers, args.d_ff, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss = torch.zeros((), device=accelerator.device)
        for src, tgt in train_loader:
            with accelerator.accumulate(model):
                logits = model(src, tgt[:, :-1])
                loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            train_loss += loss.detach()

        model.eval()
        losses = []
        with torch.no_grad():
            for src, tgt in val_loader:
                logits = model(src, tgt[:, :-1])
                losses.append(accelerator.gather(criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())))
        val_loss = torch.stack(losses).mean().item()
        accelerator.print(
            f"epoch {epoch}: train loss {train_loss.item() / len(train_loader):.4f}, val loss {val_loss:.4f}"
        )
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        accelerator.save(accelerator.unwrap_model(model).state_dict(), Path(args.output_dir) / "model.pt")


if __name__ == "__main__":
    main()
