"""How many steps a training takes at most, where a count leaves its loops; and that nothing is said where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbofix.program.model import Target
from turbofix.program.steps import analyse

ROOT = Path("/project")

HEAD = """
import argparse
import torch
from rows import rows, unknown, Resumed

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=60)
args = parser.parse_args()
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())

def learn(x):
    loss = model(x.cuda()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""


def most(text: str) -> int | None:
    found = analyse(ROOT / "train.py", ROOT, {ROOT / "train.py": HEAD + text}.get, Target())
    assert found is not None
    assert found.steps
    return found.steps[0].most


CASES = [
    (
        """
for i in range(50):
    learn(rows[i])
""",
        50,
    ),
    (
        """
for i, x in enumerate(rows):
    if i >= 10:
        break
    learn(x)
""",
        10,
    ),
    (
        """
for i, x in enumerate(rows):
    learn(x)
    if 10 < i:
        break
""",
        11,
    ),
    (
        """
for i, x in enumerate(rows, 1):
    if i == args.count or unknown():
        break
    learn(x)
""",
        59,
    ),
    (
        """
for i, x in enumerate(rows):
    if i == -1:
        break
    learn(x)
""",
        None,
    ),
    (
        """
for i, x in enumerate(rows):
    if i >= 10 and unknown():
        break
    learn(x)
""",
        None,
    ),
    (
        """
for i, x in enumerate(rows):
    if i >= unknown():
        break
    learn(x)
""",
        None,
    ),
    (
        """
for i, x in enumerate(rows):
    i = unknown()
    if i >= 10:
        break
    learn(x)
""",
        None,
    ),
    (
        """
for i, x in enumerate(rows):
    for k in rows:
        if i >= 10:
            break
    learn(x)
""",
        None,
    ),
    (
        """
for e in range(3):
    for i, x in enumerate(rows):
        if i >= 10:
            break
        learn(x)
""",
        30,
    ),
    (
        """
n = 0
for e in range(unknown()):
    for x in rows:
        if n > args.count:
            break
        learn(x)
        n += 1
""",
        61,
    ),
    (
        """
for e in range(unknown()):
    n = 0
    for x in rows:
        if n > 10:
            break
        learn(x)
        n += 1
""",
        None,
    ),
    (
        """
for e in range(4):
    n = 0
    for x in rows:
        if n >= 10:
            break
        learn(x)
        n += 1
""",
        40,
    ),
    (
        """
n = 0
for x in rows:
    if n > 10:
        break
    learn(x)
    if unknown():
        n += 1
""",
        None,
    ),
    (
        """
n = 0
for x in rows:
    if n > 10:
        break
    learn(x)
    n -= 1
""",
        None,
    ),
    (
        """
n = 0
for x in rows:
    if n > 10:
        break
    learn(x)
    if unknown():
        continue
    n += 1
""",
        None,
    ),
    (
        """
n = 0
for e in range(unknown()):
    for x in rows:
        if n > 10:
            break
        learn(x)
        if unknown():
            break
        n += 1
""",
        None,
    ),
    (
        """
n = 0
for x in rows:
    if n > 10:
        n = 0
    learn(x)
    n += 1
""",
        None,
    ),
    (
        """
n = 0
while n < 10:
    learn(rows[n])
    n += 1
""",
        10,
    ),
    (
        """
n = 0
while unknown() and args.count >= n:
    learn(rows[n])
    n += 1
""",
        61,
    ),
    (
        """
n = 0
while unknown() or n < 10:
    learn(rows[n])
    n += 1
""",
        None,
    ),
    (
        """
n = 0
while n < 10:
    learn(rows[n])
    n = unknown()
""",
        None,
    ),
    (
        """
n, done = 0, False
while not done:
    learn(rows[n])
    n += 1
    if n >= 10:
        done = True
""",
        10,
    ),
    (
        """
n, done = 0, False
while not done:
    learn(rows[n])
    n += 1
    if n >= 10:
        done = True
    if unknown():
        done = False
""",
        None,
    ),
    (
        """
n, done = 0, False
while not done:
    learn(rows[n])
    n += 1
    if n >= 10 and unknown():
        done = True
""",
        None,
    ),
]


@pytest.mark.parametrize(("text", "count"), CASES)
def test_at_most(text: str, count: int | None) -> None:
    assert most(text) == count


OBJECT = """
class Course:
    def __init__(self, rounds):
        self.rounds = rounds
        self.round = 0
        self.over = False
    def resume(self):
        self.round = unknown()
    def reset(self):
        self.round = 0
    def follow(self):
        self.resume()
        while not self.over:
            for x in range(5):
                learn(rows[x])
            AGAIN
            self.round += 1
            if self.rounds is not None and self.round >= self.rounds:
                self.over = True

Course(ROUNDS).follow()
"""


@pytest.mark.parametrize(
    ("again", "rounds", "count"),
    [
        ("pass", "3", 15),
        ("pass", "args.count", 300),
        ("pass", "None", None),
        ("pass", "unknown()", None),
        ("self.reset()", "3", None),
        ("self.over = unknown()", "3", None),
    ],
)
def test_attributes_count_too(again: str, rounds: str, count: int | None) -> None:
    assert most(OBJECT.replace("AGAIN", again).replace("ROUNDS", rounds)) == count
