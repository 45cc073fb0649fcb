"""Running the command line inside the test's process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from turbofix import cli

SLOW = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dataset = datasets.MNIST("data", transform=transforms.ToTensor())
loader = DataLoader(dataset, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8192), nn.ReLU(), nn.Linear(8192, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
"""
"""A training with at least an exact and an equivalent finding (pinning, 16 bits)."""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str
    raw: bytes


Run = Callable[..., Ran]


def runner(folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """A function that runs ``turbofix`` with arguments in ``folder``."""
    monkeypatch.chdir(folder)

    def run(*arguments: str | os.PathLike[str], stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["turbofix", *map(os.fspath, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        assert b"Traceback" not in err, err.decode()
        code = end.value.code
        assert isinstance(code, int)
        return Ran(code, out.decode(errors="replace"), err.decode(), out)

    return run
