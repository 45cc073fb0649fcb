"""The loop of torchvision's tutorial: each epoch has a phase of training, and one of validation."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(count):
    pictures = torch.randn(count, 3, 8, 8)
    return TensorDataset(pictures, pictures.mean((2, 3)).argmax(1))


def train_model(model, dataloaders, dataset_sizes, device, num_epochs):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    best, best_acc = copy.deepcopy(model.state_dict()), 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            if phase == "train":
                scheduler.step()
            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects.double() / dataset_sizes[phase]
            print(f"{phase} {epoch} loss {epoch_loss:.4f} acc {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return model


torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
sets = {x: make_data(count) for x, count in (("train", 96), ("val", 30))}
loaders = {x: DataLoader(sets[x], batch_size=8, shuffle=True) for x in ["train", "val"]}
sizes = {x: len(sets[x]) for x in ["train", "val"]}
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)).to(device)
net = train_model(net, loaders, sizes, device, num_epochs=5)
torch.save(net.state_dict(), "best.pt")
