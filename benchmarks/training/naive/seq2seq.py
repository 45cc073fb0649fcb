"""Normalize points in time as people type them ("Tue 7 March 2034, quarter past 4 pm") to "2034-03-07 16:15".

Encoder-decoder transformer on characters, trained from scratch.
"""
import argparse
import datetime
import math
import os
import random
import re
import string
import sys
import time

import torch
import torch.nn as nn
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
        src = self.tokenize(src_text)[:self.max_src_len]
        src = src + [PAD] * (self.max_src_len - len(src))
        # the target always has 16 characters
        tgt = [BOS] + self.tokenize(tgt_text) + [EOS]
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
        x = self.norm2(x + self.dropout(self.feed_forward(x)))
        return x


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
        x = self.norm3(x + self.dropout(self.feed_forward(x)))
        return x


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
        return x + self.pe[:, :x.size(1)]


class Transformer(nn.Module):
    def __init__(self, vocab_size, d_model=512, num_heads=8, num_layers=6, d_ff=2048, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.src_embedding = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.tgt_embedding = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.positional_encoding = PositionalEncoding(d_model)
        self.encoder_layers = nn.ModuleList(
            [EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])
        self.decoder_layers = nn.ModuleList(
            [DecoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])
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


class Trainer:
    def __init__(self, model, train_set, val_set, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
        self.val_loader = DataLoader(val_set, batch_size=args.batch_size)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-9)
        self.best_loss = float("inf")

    def compute_loss(self, src, tgt):
        output = self.model(src, tgt[:, :-1])
        return self.criterion(output.reshape(-1, VOCAB_SIZE), tgt[:, 1:].reshape(-1))

    def train_epoch(self, epoch):
        self.model.train()
        total_loss = 0
        start_time = time.time()
        self.optimizer.zero_grad()
        for i, (src, tgt) in enumerate(self.train_loader):
            src, tgt = src.to(self.device), tgt.to(self.device)
            loss = self.compute_loss(src, tgt)
            loss = loss / self.args.accumulation_steps
            loss.backward()
            if (i + 1) % self.args.accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total_loss += loss.item() * self.args.accumulation_steps
            sys.stdout.write(f"\rEpoch {epoch} | {i + 1}/{len(self.train_loader)} | loss {loss.item() * self.args.accumulation_steps:.4f} "
                             f"| {(i + 1) / (time.time() - start_time):.1f} it/s")
            sys.stdout.flush()
        print()
        return total_loss / len(self.train_loader)

    def evaluate(self):
        self.model.eval()
        total_loss = 0
        with torch.no_grad():
            for src, tgt in self.val_loader:
                src, tgt = src.to(self.device), tgt.to(self.device)
                total_loss += self.compute_loss(src, tgt).item()
        return total_loss / len(self.val_loader)

    def save_checkpoint(self, epoch, val_loss):
        os.makedirs(self.args.output_dir, exist_ok=True)
        torch.save({
            "epoch": epoch,
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "val_loss": val_loss,
        }, os.path.join(self.args.output_dir, "best_model.pt"))

    def train(self):
        for epoch in range(1, self.args.epochs + 1):
            train_loss = self.train_epoch(epoch)
            val_loss = self.evaluate()
            print(f"Epoch {epoch}: train loss {train_loss:.4f}, val loss {val_loss:.4f}")
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self.save_checkpoint(epoch, val_loss)


def parse_args():
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
    return parser.parse_args()


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_set = TimestampDataset(args.train_size, args.max_src_len, args.seed)
    val_set = TimestampDataset(args.val_size, args.max_src_len, args.seed + 1)
    model = Transformer(VOCAB_SIZE, args.d_model, args.num_heads, args.num_layers, args.d_ff, args.dropout)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    trainer = Trainer(model, train_set, val_set, args)
    trainer.train()


if __name__ == "__main__":
    main()
