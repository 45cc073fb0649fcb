"""Gradients that certainly nobody reads: what takes the certainty away."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbofix.training.model import Target
from turbofix.training.program import analyse

GAN = """
import itertools
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

G = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 784)).cuda()
D = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
E = nn.Linear(784, 64).cuda()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1).cuda(), torch.zeros(64, 1).cuda()

for step, (real,) in enumerate(DataLoader(TensorDataset(torch.randn(4096, 784)), batch_size=64)):
    real = real.cuda()
    fake = G(torch.randn(64, 64).cuda())
    opt_d.zero_grad()
    d_loss = bce(D(real), ones) + bce(D(fake), zeros)
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    g_loss = bce(D(G(torch.randn(64, 64).cuda())), ones)
    g_loss.backward()
    opt_g.step()
"""


def certain(text: str, *, ended: bool) -> list[bool]:
    """Whether the backward passes that could end, or be told whose gradients are wanted, certainly do so in vain."""
    path = Path("/project/train.py")
    program = analyse(path, path.parent, {path: text}.get, Target())
    return [each.certain for step in program.steps for each in step.thrown_away if bool(each.names) is ended]


def test_a_gan_by_the_book() -> None:
    assert certain(GAN, ended=True) == certain(GAN, ended=False) == [True]
    both = GAN.replace("Adam(G.parameters()", "Adam(itertools.chain(G.parameters(), E.parameters())")
    assert certain(both.replace("bce(D(G(", "E(real).mean() + bce(D(G("), ended=False) == [True]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("opt_d.step()\n", "opt_d.step()\n    print(G[0].weight.grad.norm())\n"),
        ("opt_d.step()\n", "opt_d.step()\n    print([getattr(each, 'grad') for each in G.parameters()])\n"),
        ("bce =", "G[0].register_full_backward_hook(print)\nbce ="),
        ("bce =", "D[0].weight = G[0].weight\nbce ="),
        ("bce =", "opt_d.param_groups[0]['params'] += list(E.parameters())\nbce ="),
        ("    opt_g.zero_grad()\n", "    if step % 2:\n        opt_g.zero_grad()\n"),
        ("opt_g.zero_grad()", "opt_g.zero_grad(set_to_none=False)"),
        ("    opt_g.zero_grad()\n", "    opt_g.step()\n    opt_g.zero_grad()\n"),
        ("Adam(G.parameters()", "Adam(unknown(G)"),
    ],
)
def test_what_a_comparison_has_to_tell(old: str, new: str) -> None:
    assert old in GAN
    assert True not in certain(GAN.replace(old, new), ended=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bce =", "opt_e = torch.optim.Adam(E.parameters())\nbce ="),  # it steps below, and clears too early
        ("bce =", "for each in G[0].parameters():\n    each.detach_()\nbce ="),
    ],
)
def test_a_backward_pass_that_may_not_be_told_whose_gradients_are_wanted(old: str, new: str) -> None:
    text = GAN.replace(old, new).replace("g_loss = ", "g_loss = sum(p.sum() for p in E.parameters()) + ")
    text += "    opt_e.step()\n" if "opt_e" in new else ""
    assert True not in certain(text, ended=False)
