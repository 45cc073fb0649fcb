"""Fine-tunes a BERT (base, by default) to tell what reviews are about.

The reviews are made up: their lengths vary as those of real ones do, and each topic has words of its own.
"""
import argparse
import math
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, CLS, SEP = 0, 101, 102


@dataclass
class BertConfig:
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    num_labels: int = 4


@dataclass
class TrainConfig:
    num_epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    logging_steps: int = 10
    output: str = ""


class ReviewDataset(Dataset):
    """Reviews as lists of token ids, as a tokenizer leaves them, cut off at max_length."""

    def __init__(self, num_reviews, max_length, vocab_size, num_labels, seed):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(math.log(max_length * 0.4), 0.6, num_reviews), 8, max_length).astype(int)
        self.labels = rng.integers(0, num_labels, num_reviews).tolist()
        words_of = np.random.default_rng(13).integers(1000, vocab_size, (num_labels, 10))
        self.encodings = []
        for length, label in zip(lengths, self.labels):
            ids = rng.integers(1000, vocab_size, length)
            telling = rng.random(length) < 0.5
            ids[telling] = rng.choice(words_of[label], telling.sum())
            ids[0], ids[-1] = CLS, SEP
            self.encodings.append(ids.tolist())

    def __len__(self):
        return len(self.encodings)

    def __getitem__(self, idx):
        return {"input_ids": torch.tensor(self.encodings[idx]), "label": self.labels[idx]}


def collate_fn(batch):
    input_ids = pad_sequence([item["input_ids"] for item in batch], batch_first=True, padding_value=PAD)
    attention_mask = (input_ids != PAD).long()
    labels = torch.tensor([item["label"] for item in batch])
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class BertEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids):
        seq_length = input_ids.size(1)
        position_ids = torch.arange(seq_length, dtype=torch.long, device=input_ids.device)
        position_ids = position_ids.unsqueeze(0).expand_as(input_ids)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings))


class BertSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def transpose_for_scores(self, x):
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        x = x.view(*new_x_shape)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        # Take the dot product between "query" and "key" to get the raw attention scores.
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        attention_scores = attention_scores + attention_mask

        # Normalize the attention scores to probabilities.
        attention_probs = nn.Softmax(dim=-1)(attention_scores)
        attention_probs = self.dropout(attention_probs)

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        new_context_layer_shape = context_layer.size()[:-2] + (self.all_head_size,)
        return context_layer.view(*new_context_layer_shape)


class BertLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = BertSelfAttention(config)
        self.attention_output = nn.Linear(config.hidden_size, config.hidden_size)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states, attention_mask):
        attention = self.attention_output(self.attention(hidden_states, attention_mask))
        hidden_states = self.attention_norm(hidden_states + self.dropout(attention))
        intermediate = gelu(self.intermediate(hidden_states))
        return self.output_norm(hidden_states + self.dropout(self.output(intermediate)))


def gelu(x):
    """The gelu of the original implementation; OpenAI's GPT has a slightly different one."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class BertForSequenceClassification(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList([BertLayer(config) for _ in range(config.num_hidden_layers)])
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()

    def forward(self, input_ids, attention_mask, labels=None):
        # positions to attend to get 0, padding gets -10000 before the softmax
        extended_attention_mask = attention_mask.unsqueeze(1).unsqueeze(2)
        extended_attention_mask = extended_attention_mask.to(dtype=torch.float32)
        extended_attention_mask = (1.0 - extended_attention_mask) * -10000.0

        hidden_states = self.embeddings(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, extended_attention_mask)

        pooled_output = torch.tanh(self.pooler(hidden_states[:, 0]))
        logits = self.classifier(self.dropout(pooled_output))
        loss = None
        if labels is not None:
            loss = nn.CrossEntropyLoss()(logits, labels)
        return loss, logits


class Trainer:
    def __init__(self, model, config, train_dataset, eval_dataset):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.config = config
        self.train_dataloader = DataLoader(
            train_dataset, batch_size=config.batch_size, shuffle=True, collate_fn=collate_fn
        )
        self.eval_dataloader = DataLoader(eval_dataset, batch_size=config.batch_size, collate_fn=collate_fn)
        self.optimizer = self.create_optimizer()
        self.total_steps = len(self.train_dataloader) * config.num_epochs
        self.scheduler = self.create_scheduler()
        self.global_step = 0

    def create_optimizer(self):
        no_decay = ["bias", "LayerNorm.weight", "norm.weight"]
        parameters = [
            {
                "params": [p for n, p in self.model.named_parameters() if not any(nd in n for nd in no_decay)],
                "weight_decay": self.config.weight_decay,
            },
            {
                "params": [p for n, p in self.model.named_parameters() if any(nd in n for nd in no_decay)],
                "weight_decay": 0.0,
            },
        ]
        return torch.optim.AdamW(parameters, lr=self.config.learning_rate)

    def create_scheduler(self):
        warmup_steps = int(self.total_steps * self.config.warmup_ratio)

        def lr_lambda(step):
            if step < warmup_steps:
                return step / max(1, warmup_steps)
            return max(0.0, (self.total_steps - step) / max(1, self.total_steps - warmup_steps))

        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lr_lambda)

    def train(self):
        start = time.time()
        for epoch in range(self.config.num_epochs):
            train_loss = self.train_epoch(epoch)
            eval_loss, accuracy = self.evaluate()
            print(f"epoch {epoch + 1}: train loss {train_loss:.4f}, eval loss {eval_loss:.4f}, accuracy {accuracy:.4f}")
        print(f"finished after {time.time() - start:.1f} s")
        if self.config.output:
            torch.save({"model": self.model.state_dict(), "config": asdict(self.model.config)}, self.config.output)

    def train_epoch(self, epoch):
        self.model.train()
        total_loss = 0
        for step, batch in enumerate(self.train_dataloader):
            batch = {k: v.to(self.device) for k, v in batch.items()}
            loss, logits = self.model(**batch)

            self.model.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            self.scheduler.step()

            total_loss += loss.item()
            self.global_step += 1
            if self.global_step % self.config.logging_steps == 0:
                print(
                    f"epoch {epoch + 1} step {self.global_step}/{self.total_steps} "
                    f"loss {total_loss / (step + 1):.4f} lr {self.scheduler.get_last_lr()[0]:.2e}"
                )
        return total_loss / len(self.train_dataloader)

    def evaluate(self):
        self.model.eval()
        losses = []
        predictions, references = [], []
        for batch in self.eval_dataloader:
            batch = {k: v.to(self.device) for k, v in batch.items()}
            with torch.no_grad():
                loss, logits = self.model(**batch)
            losses.append(loss.item())
            predictions.append(logits.argmax(dim=-1).cpu().numpy())
            references.append(batch["labels"].cpu().numpy())
        accuracy = (np.concatenate(predictions) == np.concatenate(references)).mean()
        return np.mean(losses), accuracy


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

    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    config = BertConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=args.max_length,
    )
    train_config = TrainConfig(
        num_epochs=args.epochs, batch_size=args.batch_size, learning_rate=args.lr, output=args.output
    )
    train_dataset = ReviewDataset(args.train_reviews, args.max_length, args.vocab_size, config.num_labels, seed=1)
    eval_dataset = ReviewDataset(args.eval_reviews, args.max_length, args.vocab_size, config.num_labels, seed=2)

    model = BertForSequenceClassification(config)
    trainer = Trainer(model, train_config, train_dataset, eval_dataset)
    trainer.train()


if __name__ == "__main__":
    main()
