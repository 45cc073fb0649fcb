"""Tell four patterns apart in noisy pictures: a convolutional network with BatchNorm, everything at the top level."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, n, train):
        generator = torch.Generator().manual_seed(n)
        patterns = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        self.labels = torch.randint(0, 4, (n,), generator=generator)
        self.images = patterns[self.labels] + 0.7 * torch.randn(n, 1, 8, 8, generator=generator)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            shift = random.randint(-1, 1)
            image = torch.roll(image, shift, dims=-1) + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

train_loader = DataLoader(Pictures(410, True), batch_size=32, shuffle=True)
test_loader = DataLoader(Pictures(96, False), batch_size=32)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(64, 4),
).to(device)

optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)

for epoch in range(1, 5):
    model.train()
    running_loss = 0.0
    correct = 0
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        correct += (outputs.argmax(1) == labels).sum().item()
    scheduler.step()

    model.eval()
    test_loss = 0.0
    hits = 0
    with torch.no_grad():
        for images, labels in test_loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            test_loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            hits += (outputs.argmax(1) == labels).sum().item()
    print(f"Epoch {epoch}: train loss {running_loss / len(train_loader):.4f}")
    print(f"         test loss {test_loss / len(test_loader.dataset):.4f}, accuracy {100.0 * hits / 96:.1f}%")

torch.save(model.state_dict(), "cnn.pt")
