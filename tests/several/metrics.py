"""An evaluation with a confusion matrix, a log of rows and of messages, and a picture of the result at the end."""

import csv
import json
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger(__name__)
CLASSES = 3


class Blobs(Dataset):
    def __init__(self, count, seed):
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (count,), generator=draw)
        self.points = torch.randn(count, 6, generator=draw) + 2 * nn.functional.one_hot(self.labels, 6)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


def evaluate(model, loader, device):
    model.eval()
    predictions, truths = [], []
    with torch.no_grad():
        for points, labels in loader:
            predictions.extend(model(points.to(device)).argmax(1).cpu().tolist())
            truths.extend(labels.tolist())
    matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.long)
    for truth, prediction in zip(truths, predictions):
        matrix[truth, prediction] += 1
    return matrix, sum(p == t for p, t in zip(predictions, truths)) / len(truths)


def train_one_epoch(model, loader, optimizer, criterion, device):
    model.train()
    total_loss = 0.0
    correct = 0
    for points, labels in loader:
        points, labels = points.to(device), labels.to(device)
        optimizer.zero_grad()
        scores = model(points)
        loss = criterion(scores, labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * points.size(0)
        correct += (scores.argmax(1) == labels).sum().item()
    return total_loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Blobs(330, 0), batch_size=20, shuffle=True)
    test_loader = DataLoader(Blobs(90, 1), batch_size=32)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, CLASSES)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    history = []
    rows = open("log.csv", "w", newline="")
    writer = csv.writer(rows)
    for epoch in range(5):
        loss, accuracy = train_one_epoch(model, train_loader, optimizer, criterion, device)
        matrix, test_accuracy = evaluate(model, test_loader, device)
        log.info("epoch %d", epoch)
        print(f"loss {loss:.4f} train {accuracy:.4f} test {test_accuracy:.4f}")
        writer.writerow([epoch, loss, accuracy, test_accuracy])
        history.append({"loss": loss, "accuracy": test_accuracy})
        if test_accuracy >= max(each["accuracy"] for each in history):
            torch.save(model.state_dict(), "best_model.pt")
    rows.close()
    print(matrix.tolist())
    with open("history.json", "w") as f:
        json.dump(history, f)


if __name__ == "__main__":
    main()
