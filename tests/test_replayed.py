"""The memory of an agent, out of which batches were put together item by item: the same batches come out of arrays."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.assumptions import ALIKE_ITEMS
from turbofix.engine import pipeline
from turbofix.findings import Risk
from turbofix.training.model import Target
from turbofix.verify import Options, Request, Stage, verify

TRAINING = """\
import random
from collections import deque

import numpy as np
import torch
from torch import nn

{memory}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Agent:
    def __init__(self):
        self.net = nn.Linear(3, 2).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.memory = Memory(40)

    def learn(self):
        states, actions, rewards, after, ends = self.memory.sample(8)
        states = torch.FloatTensor(states).to(device)
        actions = torch.LongTensor(actions).to(device)
        rewards = torch.FloatTensor(rewards).to(device)
        after = torch.FloatTensor(after).to(device)
        ends = torch.FloatTensor(np.float32(ends)).to(device)
        told = rewards + 0.9 * (1 - ends) * self.net(after).max(1)[0].detach()
        loss = nn.functional.mse_loss(self.net(states).gather(1, actions[:, None])[:, 0], told)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


random.seed(1)
np.random.seed(2)
torch.manual_seed(3)
agent = Agent()
state = np.random.randn(3)
for step in range(100):
    after = np.random.randn(3)
    # an integer first, then fractions
    agent.memory.push(state, step % 2, 1 if step < 20 else step / 7, after, step % 9 == 0)
    state = after
    if len(agent.memory) >= 8:
        print(agent.learn(), random.random())
"""

TURNING = """\
class Memory:
    def __init__(self, size):
        self.kept = deque(maxlen=size)

    def push(self, state, action, reward, after, end):
        self.kept.append((state, action, reward, after, end))

    def sample(self, count):
        {sample}

    def __len__(self):
        return len(self.kept)
"""
RING = """\
class Memory:
    def __init__(self, capacity):
        self.kept = []
        self.capacity = capacity
        self.place = 0

    def push(self, *parts):
        if len(self.kept) < self.capacity:
            self.kept.append(None)
        self.kept[self.place] = parts
        self.place = (self.place + 1) % self.capacity

    def sample(self, count):
        {sample}

    def __len__(self):
        return len(self.kept)
"""
JOINED = """batch = random.sample(self.kept, count)
        state, action, reward, after, end = map(np.stack, zip(*batch))
        return state, action, reward, after, end"""
LISTED = """batch = random.sample(self.kept, count)
        states = np.array([each[0] for each in batch], dtype=np.float32)
        actions = np.array([each[1] for each in batch])
        others = [np.array([each[2] for each in batch]), np.stack([each[3] for each in batch])]
        return states, actions, *others, np.asarray([each[4] for each in batch])"""
NAMED = """state, action, reward, after, end = zip(*random.sample(self.kept, count))
        return np.stack(state), action, reward, np.array(after, dtype=np.float32), end"""


def rewritten(text: str) -> tuple[str, pipeline.FileReport]:
    (codemod,) = (each for each in registry.load() if each.name == "preload-dataset")
    trust = pipeline.Trust(likely=True)
    made = pipeline.apply(ENTRY, MemoryWorkspace({ENTRY: text}), [codemod], Target(), Risk.EXACT, trust=trust)
    return made.texts.get(ENTRY, text), made.report


def printed(text: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize("memory", [TURNING, RING], ids=["deque", "ring"])
@pytest.mark.parametrize("sample", [JOINED, LISTED, NAMED], ids=["joined", "listed", "named"])
def test_the_batches_are_the_same(memory: str, sample: str) -> None:
    text = TRAINING.format(memory=memory.format(sample=sample))
    after, report = rewritten(text)
    (found,) = report.findings
    assert [each.name for each in found.assumes] == ["alike-items"]
    assert "self.kept = Columns(" in after
    assert "zip(*" not in after
    assert printed(after) == printed(text)


@pytest.mark.parametrize(
    ("here", "instead"),
    [
        ("return len(self.kept)", "return len(self.kept) + sum(1 for _ in self.kept)"),  # each item is looked at
        ("return np.stack(state), action,", "return torch.stack(state), action,"),  # tensors lie in it
        ("return np.stack(state), action,", "return np.stack(state), torch.tensor(action),"),  # of what type?
        ("zip(*random.sample(self.kept, count))", "zip(*random.sample(self.kept, count), range(9))"),
        ("np.array(after, ", "np.array([each for each in after if each is not None], "),
        ("deque(maxlen=size)", "deque()"),
        ("agent = Agent()", "agent = Agent()\nprint(agent.memory.kept[:0] if 0 else 1)"),
    ],
)
def test_a_memory_that_does_more_is_left_alone(here: str, instead: str) -> None:
    text = TRAINING.format(memory=TURNING.format(sample=NAMED))
    assert here in text
    after, report = rewritten(text.replace(here, instead))
    assert "class Columns" not in after
    assert any(each.why_not is not None and "as one tensor" in each.why_not for each in report.findings)


def test_what_is_large_is_kept_as_it_is() -> None:
    text = TRAINING.format(memory=TURNING.format(sample=JOINED))
    text = text.replace("np.random.randn(3)", "np.random.randn(9000)").replace("nn.Linear(3, 2)", "nn.Linear(9000, 2)")
    after, _ = rewritten(text)
    assert printed(after) == printed(text)


def test_a_run_compares_the_rewritten_memory(tmp_path: Path) -> None:
    text = TRAINING.format(memory=RING.format(sample=NAMED))
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    stages = (Stage("preload-dataset", Risk.EXACT, {script: rewritten(text)[0].encode()}, assumes=(ALIKE_ITEMS,)),)
    found = verify(Request(script, (), stages, Options(timeout=120), lambda without: stages))
    (judgement,) = found.codemods
    assert (found.verdict, judgement.verdict) == ("pass", "kept"), found.reason
    assert [(one.assumption.name, one.how) for one in judgement.assumes] == [("alike-items", "compared")]
