"""DataParallel over the GPUs that there are, named by their numbers."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
use_cuda = torch.cuda.is_available()
images = torch.randn(320, 3, 8, 8)
labels = (images.mean((1, 2, 3)) > 0).long()
trainloader = DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True, num_workers=0)


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4))
        self.classifier = nn.Linear(32, 2)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


net = SmallNet()
if use_cuda:
    net = net.cuda(0)
net = nn.DataParallel(net, device_ids=[0, 1] if use_cuda else None)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

for epoch in range(4):
    net.train()
    train_loss, correct, total = 0, 0, 0
    for batch_idx, (inputs, targets) in enumerate(trainloader):
        if use_cuda:
            inputs, targets = inputs.cuda(0), targets.cuda(0)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
        total += targets.size(0)
        correct += outputs.max(1)[1].eq(targets).sum().item()
    print(
        f"epoch {epoch} loss {train_loss / (batch_idx + 1):.4f} accuracy {100.0 * correct / total:.2f} ({correct}/{total})"
    )
    torch.save({"net": net.state_dict(), "bare": net.module.state_dict()}, "copies.pth")
