"""A loop of one's own under Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def main():
    set_seed(4)
    accelerator = Accelerator()
    x = torch.randn(320, 12)
    y = (x[:, :3].sum(1) > 0).long()
    train_loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=32)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    for epoch in range(6):
        model.train()
        total = 0.0
        for inputs, labels in tqdm(train_loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item()
        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, labels in test_loader:
                correct += (model(inputs).argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {total / len(train_loader):.4f} accuracy {correct / 64:.4f}")
    torch.save(model.state_dict(), "accelerated.pt")


if __name__ == "__main__":
    main()
