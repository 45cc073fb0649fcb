"""A step that this machine could not take is written down all the same: what lies on the GPU has sizes alone."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

HUGE = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50000, 1024)
        self.out = nn.Linear(1024, 50000, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1024))

    def forward(self, x):
        h = self.embed(x) * self.scale + torch.arange(1024, device=x.device)
        h = h.view(x.shape[0], x.shape[1], 16, 64).transpose(1, 2)
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.1).transpose(1, 2).reshape(*x.shape, 1024)
        return self.out(h)


data = torch.utils.data.TensorDataset(torch.randint(50000, (256, 512)))
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
net.cuda()
kept = torch.zeros(3).cuda()
for (x,) in torch.utils.data.DataLoader(data, batch_size=64):
    x = x.to("cuda")
    loss = F.cross_entropy(net(x).flatten(0, 1), x.flatten())
    loss.backward()
    optimizer.step()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
    assert len({id(each) for each in net.parameters()}) == 1 and net.out.weight.grad is not None
    assert kept.device.type == x.device.type == net.embed.weight.device.type == "cuda"
    assert x.cpu().numpy().shape == (64, 512) and len(kept.tolist()) == 3
    print(f"{loss:.4f} {loss.item():.4f} {kept.sum()}")
"""

CHOSEN = """
import torch
net = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(32, 8).cuda()
    optimizer.zero_grad(set_to_none=False)
    net(x[x[:, 0] > 0]).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def profiled(run: Run, folder: Path, text: str) -> tuple[dict[str, Any], str]:
    (folder / "train.py").write_text(text)
    ran = run("profile", "train.py", "--output-format", "json", "--device", "cpu", "--select", "set-to-none", "-v")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found, ran.err


def test_a_step_with_more_numbers_than_there_is_memory(run: Run, tmp_path: Path) -> None:
    """The output alone has 64 · 512 · 50,000 numbers: 6.6 GB, and as much for each thing that is made of it."""
    found, said = profiled(run, tmp_path, HUGE)
    assert "again with numbers" not in said
    assert "1.0000 1.0000" in said
    # the layer's three products, and attention's: each is counted once, though a CPU would take it apart
    products = 3 * 2 * 64 * 512 * 1024 * 50_000
    attention = 3.5 * 4 * 64 * 16 * 512 * 512 * 64
    seconds = found["estimate"]["step_ms"]["median"] * 1e-3
    # on an A100, in float32 that nothing rounds
    assert found["mfu"] == pytest.approx((products + attention) / seconds / 19.5e12, rel=0.01)
    assert found["step_ms"]["data"] < 5


def test_what_depends_on_numbers_is_run_with_them(run: Run, tmp_path: Path) -> None:
    found, said = profiled(run, tmp_path, CHOSEN)
    assert "then it stopped" in said
    assert said.count("again with numbers") == 1  # what is rewritten is not tried without them
    assert found["bound"] == "host"


WORKERS = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(8)

if __name__ == "__main__":
    net = torch.nn.Linear(8, 1).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2):
        net(x.cuda()).mean().backward()
        optimizer.step()
"""


def test_the_time_for_data_is_that_of_one_process_where_several_make_them(run: Run, tmp_path: Path) -> None:
    found, _ = profiled(run, tmp_path, WORKERS)
    (cause,) = [each for each in found["causes"] if each["name"] == "data"]
    told = re.fullmatch(
        r"making a step's batch takes one process (\S+) ms \(measured\), 2 make them", cause["sentence"]
    )
    assert told
    assert float(told[1]) == pytest.approx(40, rel=0.3)  # eight items of 5 ms
    assert found["step_ms"]["data"] == pytest.approx(20, rel=0.4)


CLOSURE = """
import torch
net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4096, 512).cuda()
def closure():
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    return loss
for step in range(3):
    HOW
"""


@pytest.mark.parametrize("how", ["optimizer.step(closure)", "optimizer.step(closure=closure)"])
def test_what_a_closure_computes_is_no_part_of_the_update(run: Run, tmp_path: Path, how: str) -> None:
    """As Lightning hands it over."""
    found, _ = profiled(run, tmp_path, CLOSURE.replace("HOW", how))
    products = {each["name"]: each["sentence"] for each in found["causes"]}["precision"]
    assert products == "2 products are computed in float32"  # the input needs no gradient
    assert found["step_ms"]["forward"] > found["step_ms"]["optimizer"] > 0
    assert found["step_ms"]["backward"] > found["step_ms"]["optimizer"]


LAYERS = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(3))).cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(3):
    x = torch.ones(4096, 1024, device="cuda")
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
"""


def test_the_memory_of_a_step_is_counted(run: Run, tmp_path: Path) -> None:
    found, _ = profiled(run, tmp_path, LAYERS)
    weight, result = 4 * 1024 * 1024, 4 * 4096 * 1024
    # the weights and Adam's two moments; the input, three results and their square; and, as the first layer's gradient
    # goes back, that of the square, of the last result and of its weight
    least = 3 * 3 * weight + 4 * result + 2 * result
    most = 3 * 4 * weight + 5 * result + 3 * result
    assert least < found["memory_bytes"]["peak"] < most


FOREIGN = """
import torch

@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2

scaled.register_fake(lambda x: torch.empty_like(x))
scaled.register_autograd(lambda ctx, grad: grad * 2)
net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    scaled(net(torch.ones(4096, 512, device="cuda"))).mean().backward()
    optimizer.step()
"""


def test_operations_that_are_not_torchs_own_have_no_estimate(run: Run, tmp_path: Path) -> None:
    found, _ = profiled(run, tmp_path, FOREIGN)
    assert found["estimate"]["step_ms"] is None
    assert found["estimate"]["refused"] == "it runs operations of its own (mine::scaled), of which nothing is known"


RECURRENT = """
import sys
import torch
from torch import nn

here = torch.device("cuda" if sys.argv[1] == "gpu" else "cpu")
net = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[sys.argv[2]](64, 128, 2, batch_first=True, bidirectional=True)
net = net.to(here)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = torch.ones(16, 50, 64, device=here)
    if sys.argv[3] == "packed":
        out, state = net(nn.utils.rnn.pack_padded_sequence(x, torch.full((16,), 50), batch_first=True))
        out, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    else:
        out, state = net(x)
    states = state if isinstance(state, tuple) else (state,)
    assert out.shape == (16, 50, 256) and [each.shape for each in states] == [(4, 16, 128)] * len(states)
    out.mean().backward()
    assert all(each.grad is not None and each.grad.shape == each.shape for each in net.parameters())
    optimizer.step()
"""


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers_are_one_operation_there_and_back(run: Run, tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text(RECURRENT)
    options = ("--output-format", "json", "--device", "cpu", "--select", "tf32", "-v")
    ran = run("profile", "train.py", *options, "--", "gpu", kind, "plain")
    assert "again with numbers" not in ran.err
    causes = {each["name"]: each["sentence"] for each in json.loads(ran.out)["causes"]}
    assert causes["precision"] == "2 products are computed in float32"
    # one after another: fifty steps of two layers, and each weight of both directions meets each of them
    found = json.loads(ran.out)
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    weights = 2 * gates * (64 * 128 + 128 * 128 + 256 * 128 + 128 * 128)
    flops = found["mfu"] * found["estimate"]["step_ms"]["median"] * 1e-3 * 19.5e12
    assert flops == pytest.approx(3 * 2 * 16 * 50 * weights, rel=0.01)
    assert found["step_ms"]["forward"] > 100 * 0.005


def test_packed_sequences_are_recurrent_all_the_same(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECURRENT)
    ran = run("profile", "train.py", "--device", "cpu", "--select", "tf32", "-v", "--", "gpu", "lstm", "packed")
    assert ran.code == 0, ran.err
    assert "again with numbers" not in ran.err


CHECKED = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(50))).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.ones(32, 8, device="cuda")).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    if not torch.isfinite(loss) or torch.isnan(loss) or not torch.isfinite(net[0].weight.grad).all():
        raise RuntimeError("not finite")
    assert not (loss != loss) and not (loss == 2)
    optimizer.step()
"""


def test_what_is_pretended_is_finite(run: Run, tmp_path: Path) -> None:
    """And the gradients are clipped all at once, as they are on a GPU."""
    found, said = profiled(run, tmp_path, CHECKED)
    assert "again with numbers" not in said
    (many,) = [each for each in found["causes"] if each["name"] == "host"]
    started = int(many["sentence"].split()[0])
    assert 250 < started < 400  # the 100 parameters are not clipped one by one


ONE_BY_ONE = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, index):
        time.sleep(0.0002)
        return torch.ones(8).to("cuda")

net = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(Slow(), batch_size=64):
    net(x).mean().backward()
    optimizer.step()
"""


def slept() -> float:
    """How long 64 items of 0.2 ms take here and now, each a little longer than it is told to wait, in ms."""
    began = time.perf_counter()
    for _ in range(64):
        time.sleep(0.0002)
    return (time.perf_counter() - began) * 1e3


def test_pretending_is_no_part_of_the_time_for_data(run: Run, tmp_path: Path) -> None:
    looks = []
    for _ in range(3):  # of which one is not disturbed
        before = slept()
        found, said = profiled(run, tmp_path, ONE_BY_ONE)
        assert "again with numbers" not in said
        assert found["step_ms"]["transfer"] < 1  # what is read again is not copied again
        assert found["step_ms"]["data"] > 12.8
        looks.append(found["step_ms"]["data"] / max(before, slept()))
    assert min(looks) < 1.5  # pretending takes more than as long again


LENGTHS = """
import torch
net = torch.nn.Sequential(torch.nn.Embedding(100, 256), torch.nn.Linear(256, 20_000)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
lengths = torch.full((32,), 128)
lengths[5] = 200
for step in range(3):
    optimizer.zero_grad(set_to_none=False)
    x, counts = torch.ones(32, 256, dtype=torch.long).cuda(), lengths.cuda()
    counts += 0
    x = x[:, : int(counts.max())]
    real = torch.arange(x.shape[1], device="cuda")[None] < counts[:, None]
    out = net(x)[real]
    torch.nn.functional.cross_entropy(out, x[real]).backward()
    optimizer.step()
    assert len(out) == 31 * 128 + 200 == real.sum() and x.tolist()[0] == [1] * 200
"""


def test_sizes_may_depend_on_whole_numbers_and_masks_of_a_batch(run: Run, tmp_path: Path) -> None:
    found, said = profiled(run, tmp_path, LENGTHS)
    assert "again with numbers" not in said
    seconds = found["estimate"]["step_ms"]["median"] * 1e-3
    assert found["mfu"] == pytest.approx(3 * 2 * 32 * 200 * 256 * 20_000 / seconds / 19.5e12, rel=0.01)


BY_DEFAULT = """
import torch
torch.set_default_device("cuda")
net = torch.nn.Linear(4096, 4096)
optimizer = torch.optim.Adam(net.parameters())
assert torch.get_default_device() == net.weight.device == torch.device("cuda", 0)
data = torch.utils.data.TensorDataset(torch.randn(2048, 4096))
generator = torch.Generator(device="cuda")
for (x,) in torch.utils.data.DataLoader(data, batch_size=1024, shuffle=True, generator=generator):
    assert x.device.type == "cuda" and torch.zeros(3, device="cpu").device.type == "cpu"
    net(x).square().mean().backward()
    optimizer.step()
"""


def test_tensors_are_made_on_the_gpu_by_default(run: Run, tmp_path: Path) -> None:
    found, said = profiled(run, tmp_path, BY_DEFAULT)
    assert "again with numbers" not in said
    assert found["estimate"]["refused"] is None
    seconds = found["estimate"]["step_ms"]["median"] * 1e-3
    assert found["mfu"] == pytest.approx(2 * 2 * 1024 * 4096 * 4096 / seconds / 19.5e12, rel=0.01)
