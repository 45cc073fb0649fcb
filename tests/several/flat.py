import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(320, 16)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(x, y), batch_size=64)

model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for epoch in range(6):
    model.train()
    running_loss, correct, total = 0.0, 0, 0
    for inputs, labels in train_loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        correct += (outputs.argmax(1) == labels).sum().item()
        total += labels.size(0)
    print(f"epoch {epoch}: loss {running_loss / len(train_loader):.4f} accuracy {correct / total:.4f}")
    model.eval()
    hits = 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            hits += (model(inputs.to(device)).argmax(1) == labels.to(device)).sum().item()
    print(f"test accuracy {hits / len(test_loader.dataset):.4f}")
    torch.save(model.state_dict(), "model.pt")
print("done")
