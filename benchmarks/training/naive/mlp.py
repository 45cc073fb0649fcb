# Predict who clicks: a plain MLP on a million rows of tabular data
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument('--rows', type=int, default=1_000_000)
parser.add_argument('--features', type=int, default=64)
parser.add_argument('--hidden', type=int, default=512)
parser.add_argument('--batch_size', type=int, default=1024)
parser.add_argument('--epochs', type=int, default=100)
parser.add_argument('--lr', type=float, default=1e-3)
parser.add_argument('--seed', type=int, default=0)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

# ---------------- data ----------------
X = np.random.randn(args.rows, args.features).astype(np.float32)
w = np.random.randn(args.features).astype(np.float32) / np.sqrt(args.features)
score = 2 * X @ w + X[:, 0] * X[:, 1] - np.abs(X[:, 2]) + 0.5
y = (np.random.rand(args.rows) < 1 / (1 + np.exp(-2 * score))).astype(np.float32)

# standardize, then 90 / 10 split
n_train = int(0.9 * args.rows)
mean, std = X[:n_train].mean(axis=0), X[:n_train].std(axis=0)
X = (X - mean) / std
X_train, y_train = torch.tensor(X[:n_train]), torch.tensor(y[:n_train])
X_test, y_test = torch.tensor(X[n_train:]), torch.tensor(y[n_train:])

train_loader = DataLoader(TensorDataset(X_train, y_train), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(TensorDataset(X_test, y_test), batch_size=args.batch_size, shuffle=False)


# ---------------- model ----------------
class MLP(nn.Module):
    def __init__(self, in_features, hidden):
        super(MLP, self).__init__()
        self.fc1 = nn.Linear(in_features, hidden)
        self.bn1 = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.bn2 = nn.BatchNorm1d(hidden)
        self.fc3 = nn.Linear(hidden, hidden // 2)
        self.bn3 = nn.BatchNorm1d(hidden // 2)
        self.out = nn.Linear(hidden // 2, 1)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = self.dropout(self.relu(self.bn1(self.fc1(x))))
        x = self.dropout(self.relu(self.bn2(self.fc2(x))))
        x = self.dropout(self.relu(self.bn3(self.fc3(x))))
        return self.out(x).squeeze(1)


model = MLP(args.features, args.hidden).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizer = optim.Adam(model.parameters(), lr=args.lr)

# ---------------- training ----------------
for epoch in range(args.epochs):
    start = time.time()
    model.train()
    running_loss = 0.0
    correct = 0
    for i, (inputs, labels) in enumerate(train_loader):
        inputs, labels = inputs.to(device), labels.to(device)

        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()

        running_loss += loss.item() * inputs.size(0)
        correct += ((outputs > 0).float() == labels).sum().item()
        if (i + 1) % 100 == 0:
            print(f'Epoch [{epoch + 1}/{args.epochs}], Step [{i + 1}/{len(train_loader)}], Loss: {loss.item():.4f}')

    model.eval()
    test_loss = 0.0
    test_correct = 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            inputs, labels = inputs.to(device), labels.to(device)
            outputs = model(inputs)
            test_loss += criterion(outputs, labels).item() * inputs.size(0)
            test_correct += ((outputs > 0).float() == labels).sum().item()

    print(f'Epoch {epoch + 1}: train loss {running_loss / len(X_train):.4f}, train acc {correct / len(X_train):.4f}, '
          f'test loss {test_loss / len(X_test):.4f}, test acc {test_correct / len(X_test):.4f}, '
          f'time {time.time() - start:.1f}s')

torch.save(model.state_dict(), 'mlp.pth')
