# Patches, attention over them and a class token; flat, with accumulation and a scaler. Like a course exercise.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, ACCUM, LR = 5, 6, 3, 2e-3
AMP = True
device = "cuda" if torch.cuda.is_available() else "cpu"

protos = torch.randn(5, 1, 12, 12)
labels = torch.randint(0, 5, (100,))
images = protos[labels] + torch.randn(100, 1, 12, 12)
train_loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, 2)
        self.mlp = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, dim))

    def forward(self, x):
        x = x + nn.functional.dropout(self.attn(self.norm1(x)), 0.1, self.training)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, 10, dim) * 0.02)
        self.layers = nn.Sequential(Layer(dim), Layer(dim))
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        return self.head(self.layers(x)[:, 0])


model = ViT().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
scaler = torch.cuda.amp.GradScaler(init_scale=4096.0, enabled=AMP)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)

for epoch in range(EPOCHS):
    model.train()
    train_loss, train_acc = 0, 0
    for step, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)
        with torch.cuda.amp.autocast(enabled=AMP):
            pred = model(x)
            loss = criterion(pred, y)
        scaler.scale(loss / ACCUM).backward()
        if (step + 1) % ACCUM == 0 or (step + 1) == len(train_loader):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        train_loss += loss.item()
        train_acc += (pred.argmax(1) == y).float().mean().item()
    scheduler.step()
    print(f"Epoch {epoch + 1} | loss {train_loss / len(train_loader):.4f} | acc {train_acc / len(train_loader):.4f}")

    model.eval()
    with torch.inference_mode():
        held = criterion(model(images[:20].to(device)), labels[:20].to(device))
    print(f"   held out: {held.item():.4f}")

torch.save(model.state_dict(), "vit.pth")
