"""A model of sequences, padded to the longest of a batch: the loss leaves the padding out."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD = 0


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=PAD)
        self.mix = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


def collate(pairs):
    tokens, tags = zip(*pairs)
    return pad_sequence(tokens, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=PAD)


def main():
    torch.manual_seed(4)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pairs = []
    for index in range(96):
        tokens = torch.randint(1, 20, (2 + index % 11,))
        pairs.append((tokens, tokens % 4 + 1))
    loader = DataLoader(pairs, batch_size=8, shuffle=True, collate_fn=collate)
    model = Tagger().to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(5):
        total = 0.0
        for tokens, tags in loader:
            tokens, tags = tokens.to(device), tags.to(device)
            scores = model(tokens)
            loss = criterion(scores.view(-1, 5), tags.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    torch.save(model.state_dict(), "tagger.pt")


if __name__ == "__main__":
    main()
