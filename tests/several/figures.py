"""What epochs show, counted in many ways, by a model that stays as it is: any order of the samples gives the same."""

from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter(object):
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0
        self.sum = 0
        self.count = 0
        self.avg = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Monitor:
    def __init__(self, names):
        self.names = names
        self.reset()

    def reset(self):
        self.totals = {name: 0.0 for name in self.names}
        self.counts = {name: 0 for name in self.names}
        self.labels = []
        self.outputs = []

    def update(self, name, value):
        self.totals[name] += value
        self.counts[name] += 1

    def keep(self, outputs, labels):
        self.outputs.extend(outputs.detach())
        self.labels.extend(labels.cpu().numpy())

    def show(self):
        for name in self.names:
            print(name, self.totals[name] / self.counts[name])
        print("kept", len(self.labels), sum(self.labels), torch.stack(self.outputs).std().item())


class Trainer:
    def __init__(self, model, loader, monitor, device):
        self.model, self.loader, self.monitor, self.device = model, loader, monitor, device
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train_one_epoch(self):
        self.model.train()
        self.monitor.reset()
        self.total_loss = 0.0
        losses, top1 = AverageMeter(), AverageMeter()
        logs = {"loss": 0.0, "correct": 0}
        history = {"losses": [], "labels": []}
        parted = {"loss": AverageMeter()}
        parts = defaultdict(float)
        with_graph, as_written = 0, 0.0
        hits, correct, seen = 0, 0, 0
        labels, predictions, scores, figures = [], [], [], []
        counted: list[float] = []
        for step, (x, y) in enumerate(self.loader):
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            output = self.model(x).squeeze(1)
            loss = self.criterion(output, y)
            loss.backward()
            self.optimizer.step()
            predicted = (output > 0).float()
            self.total_loss += loss.item()
            losses.update(loss.item(), x.size(0))
            top1.update((predicted == y).float().mean(), x.size(0))
            logs["loss"] += loss.item()
            logs["correct"] += (predicted == y).sum().item()
            for key, part in (("loss", loss), ("again", loss)):
                parts[key] += part.item() * x.size(0)
            history["losses"].append(loss.item())
            history["labels"].extend(y.tolist())
            parted["loss"].update(loss.item())
            hits += (predicted == y).sum().item()
            correct += (predicted == y).sum()
            seen += len(y)
            with_graph += loss
            as_written = as_written + loss.item()
            labels += y.tolist()
            predictions.extend(predicted.cpu().numpy())
            scores.append(output)
            figures.append(loss.detach())
            counted.append(float(loss.detach()))
            shown = sum(counted) / len(counted)
            rate = hits / seen
            accuracy = correct / seen
            self.monitor.update("loss", loss.item())
            self.monitor.keep(output, y)
        count = len(self.loader)
        print("attribute", self.total_loss / count)
        print("meters", losses.avg, losses.count, top1.avg.item())
        print("dict", logs["loss"] / count, logs["correct"] / len(self.loader.dataset))
        print("parts", parts["loss"] / len(self.loader.dataset), parts["again"])
        print("history", sum(history["losses"]) / count, len(history["labels"]), sum(history["labels"]))
        print("parted", parted["loss"].avg)
        print("graph", (with_graph / count).item(), as_written / count)
        print("lists", len(labels), sum(labels), sum(p == y for p, y in zip(predictions, labels)))
        print("tensors", len(torch.cat(scores)), torch.cat(scores).std().item())
        print("figures", len(figures), torch.stack(figures).mean().item(), sum(counted) / len(counted))
        print("in the loop", shown, accuracy.item(), rate)
        self.monitor.show()
        return loss.item()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(48, 4)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0.5).float()), batch_size=8, shuffle=True)
    trainer = Trainer(nn.Linear(4, 1).to(device), loader, Monitor(["loss"]), device)
    for epoch in range(2):
        trainer.train_one_epoch()


if __name__ == "__main__":
    main()
