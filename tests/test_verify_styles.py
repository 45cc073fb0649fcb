"""Trainings of other styles: two optimizers, closures, old mixed precision, odd loaders, CUDA in every form."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import walls

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage
from turbofix.verify.blame import Blame
from turbofix.verify.original import Original
from turbofix.verify.result import KEPT, UNVERIFIED, Inconclusive
from turbofix.verify.runner import Child

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")


@contextmanager
def watched(script: Path, *args: str) -> Iterator[Original]:
    with walls.scratch_for(script) as scratch:
        options = Options(timeout=120)
        request = Request(script, args, (Stage(None, Risk.EQUIVALENT, {}),), options)
        child = Child(scratch, script, args, script.parent, options)
        try:
            child.start()
            original = Original(child, scratch, request, remap=not child.cuda, tell=lambda progress: None)
            original.watch()
            original.demand_repeatable()
            yield original
        finally:
            child.close()


def difference(original: Original, script: Path, *edits: tuple[str, str], exact: bool = False) -> str | None:
    text = script.read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    outcome = original.compare({script: text.encode()}, exact=exact, phase="")
    assert outcome.unverifiable is None
    return outcome.difference


GAN = """
import torch
from torch import nn

torch.manual_seed(0)
real = torch.randn(64, 2) + 3
G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
optD = torch.optim.Adam(D.parameters(), lr=1e-3)
optG = torch.optim.Adam(G.parameters(), lr=1e-3)
loss = nn.BCEWithLogitsLoss()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(real), 16, shuffle=True)
for epoch in range(6):
    for (x,) in loader:
        D.zero_grad()
        loss(D(x), torch.ones(len(x), 1)).backward()
        fake = G(torch.randn(len(x), 4))
        loss(D(fake.detach()), torch.zeros(len(x), 1)).backward()
        optD.step()
        G.zero_grad()
        loss(D(fake), torch.ones(len(x), 1)).backward()
        optG.step()
"""


def test_two_optimizers_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "gan.py"
    script.write_text(GAN)
    with watched(script) as original:
        rows = original.log["rows"]
        assert [(row["optimizer"], len(row["losses"])) for row in rows[:4]] == [(0, 2), (1, 1), (0, 2), (1, 1)]
        assert difference(original, script, exact=True) is None
        assert difference(original, script, ("lr=1e-3", "lr=1e-3, fused=True")) is None
        found = difference(original, script, ("        G.zero_grad()\n", ""))
        assert found is not None and found.startswith("at step 2 of optimizer 2 the gradient is 2")
        found = difference(original, script, ("        optD.step()\n        G", "        optG.step()\n        G"))
        assert found is not None
        found = difference(original, script, ("Adam(G.parameters(), lr=1e-3", "Adam(G.parameters(), lr=2e-3"))
        assert found == "at step 1 of optimizer 2 the learning rate is 0.002 instead of 0.001"


CLOSURE = """
import torch

torch.manual_seed(0)
x = torch.linspace(0, 3, 40, dtype=torch.double)[:, None]
y = torch.sin(x)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
for step in range(8):
    def closure():
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    print("loss:", closure().item())
"""


def test_a_closure_is_watched_from_inside(tmp_path: Path) -> None:
    script = tmp_path / "closure.py"
    script.write_text(CLOSURE)
    with watched(script) as original:
        assert original.log["how"] == "finished"
        assert len(original.log["rows"]) == 8
        assert all(row["closure"] and len(row["losses"]) == 1 for row in original.log["rows"])
        assert difference(original, script, exact=True) is None
        found = difference(original, script, ("        optimizer.zero_grad()\n", ""))
        assert found is not None
        found = difference(original, script, ("lr=0.5", "lr=0.55"))
        assert found == "at step 1 the learning rate is 0.55 instead of 0.5"
        found = difference(original, script, ("range(8)", "range(7)"))
        assert found == "the optimizer steps 7 times where the original's steps 8 times"
        found = difference(original, script, ("range(8)", "range(9)"))
        assert found == "the optimizer steps at least 9 times where the original's steps 8 times"


OLD_AMP = """
import torch
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = GradScaler()


class Trainer:
    def fit(self):
        for epoch in range(6):
            for a, b in DataLoader(data, batch_size=8, shuffle=True):
                optimizer.zero_grad()
                with autocast():
                    loss = torch.nn.functional.mse_loss(model(a.cuda()), b.cuda())
                self.update(loss)

    def update(self, loss):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        scaler.step(optimizer)
        scaler.update()


Trainer().fit()
torch.save(model.state_dict(), "end.pt")
"""


def test_old_mixed_precision_really_scales(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    script.write_text(OLD_AMP)
    modern = (
        ("from torch.cuda.amp import GradScaler, autocast", "from torch.amp import GradScaler, autocast"),
        ("GradScaler()", 'GradScaler("cuda")'),
        ("autocast()", 'autocast("cuda")'),
    )
    with watched(script) as original:
        assert original.log["events"]["autocast"] == ["float16"]
        assert original.log["events"]["scaler"]
        assert original.log["end"]["how"] == "finished"
        assert original.log["rows"][0]["losses"][0] < 100  # as it was before it was scaled
        assert difference(original, script, *modern, exact=True) is None
        assert difference(original, script, ("lr=1e-3", "lr=1e-3, fused=True")) is None
        # the scale is too large for the first two steps, which are left out in both programs
        assert [row["skipped"] for row in original.log["rows"][:3]] == [True, True, False]
        found = difference(original, script, ("        scaler.unscale_(optimizer)\n", ""))
        assert found is not None and found.startswith("at step 3 clip_grad_norm_ sees a gradient norm 1.64e+04")
        found = difference(
            original, script, ('torch.save(model.state_dict(), "end.pt")', "torch.save(model.state_dict, 1)")
        )
        assert found is not None and "at the end of the training it stops with" in found


ODD_LOADERS = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, Subset, WeightedRandomSampler


class Noisy(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.randn(4) + random.random() + torch.from_numpy(np.random.default_rng().normal(size=4)).float()


class Shuffled(Sampler):
    def __iter__(self):
        order = list(range(60))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 60


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(24):
            yield torch.randn(4)


WORKERS = {}
unseeded = random.Random(), np.random.default_rng(), np.random.RandomState()
generator = torch.Generator().manual_seed(5)
loaders = [
    DataLoader(Subset(Noisy(), range(3, 43)), 8, shuffle=True, generator=generator, **WORKERS),
    DataLoader(Noisy(), 8, sampler=Shuffled(), **WORKERS),
    DataLoader(Noisy(), 8, sampler=WeightedRandomSampler(torch.rand(60), 30), **WORKERS),
    DataLoader(Noisy(), batch_sampler=torch.utils.data.BatchSampler(RandomSampler(range(60)), 12, True), **WORKERS),
    DataLoader(Stream(), 8),
]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for loader in loaders:
        for x in loader:
            optimizer.zero_grad()
            noise = torch.randn(1) + sum(one.random() for one in unseeded)
            (model(x) + noise).square().mean().backward()
            optimizer.step()
    assert np.random.rand() != random.random()
"""


def test_every_sampler_and_generator_is_neutral(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text(ODD_LOADERS)
    with watched(script) as original:
        assert original.log["epochs_ended"] >= 2
        for workers in ('"persistent_workers": True', '"multiprocessing_context": "spawn"'):
            edit = ("WORKERS = {}", f'WORKERS = {{"num_workers": 2, {workers}}}')
            assert difference(original, script, edit, exact=True) is None
        found = difference(original, script, ("random.shuffle(order)", "order.reverse()"))
        assert found is not None


PARTS_OF_ONE = """
import copy
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

torch.manual_seed(0)
known = TensorDataset(torch.randn(64, 4))
parts = [known, known]
train = DataLoader(parts[0], 8, sampler=SubsetRandomSampler(range(48)))
check = DataLoader(parts[1], 8, sampler=SubsetRandomSampler(range(48, 64)))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for x, in train:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    for x, in check:
        print(float(model(x).mean()))
"""


def test_parts_of_one_data_set_are_drawn_alike_from_data_sets_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "parts.py"
    script.write_text(PARTS_OF_ONE)
    with watched(script) as original:
        assert difference(original, script, ("[known, known]", "[known, copy.copy(known)]"), exact=True) is None


LEFT_BEHIND = """
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4, device="cpu")).sum().backward()
    optimizer.step()
"""


def test_a_script_that_a_gpu_would_stop_is_told_that_one_was_pretended(tmp_path: Path) -> None:
    script = tmp_path / "behind.py"
    script.write_text(LEFT_BEHIND)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    said = "same device.*This machine has no GPU, and the verification pretended one.* a real one stops it there, too"
    with pytest.raises(Inconclusive, match=said), watched(script):
        pass


CUDA = """
import torch
from torch import nn

assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.is_bf16_supported()
torch.cuda.random.set_rng_state_all(torch.cuda.random.get_rng_state_all())
if hasattr(torch, "accelerator"):
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert str(torch.accelerator.current_accelerator()) == "cuda" and torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    assert torch.zeros(1).to(torch.accelerator.current_accelerator()).is_cuda
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
assert device.type == "cuda" and torch.device("cuda", 0) == device
torch.cuda.set_device(0)
torch.cuda.manual_seed_all(1)
torch.backends.cudnn.benchmark = True
model = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1)).cuda())
model.to(device)
assert next(model.parameters()).is_cuda and next(model.parameters()).device.type == "cuda"
x = torch.randn(16, 4, pin_memory=True).pin_memory().to("cuda", non_blocking=True)
y = torch.zeros(16, 1, device="cuda").cuda(0).to(0).type(torch.cuda.FloatTensor)
noise = torch.randn(16, 4, generator=torch.Generator(device="cuda").manual_seed(3), device=device)
assert x.is_cuda and not torch.zeros(1).is_cuda
with torch.no_grad():
    assert (x * 2).sum().is_cuda and torch.cat([x, x]).is_cuda and model(x).is_cuda
    assert not (torch.zeros(1) + 1).is_cuda
stream = torch.cuda.Stream()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.stream(stream), torch.cuda.device(0), torch.device("cuda"):
    torch.zeros(3).record_stream(stream)
torch.cuda.current_stream().wait_stream(stream)
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0
torch.save({"x": x}, "x.pt")
assert torch.load("x.pt", map_location="cuda:0")["x"].shape == x.shape
assert torch.cuda.memory_allocated() >= 0 and torch.cuda.get_device_properties(0).total_memory > 0
torch.cuda.empty_cache()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with torch.autocast("cuda"):
    assert (x @ x.T).dtype == torch.float16 and torch.is_autocast_enabled()
with torch.autocast(device.type, dtype=torch.bfloat16, enabled=x.is_cuda):
    assert (x @ x.T).dtype == torch.bfloat16
    try:
        nn.BCELoss()(torch.sigmoid(x), torch.ones_like(x))
    except RuntimeError as error:
        assert "unsafe to autocast" in str(error)
    else:
        raise AssertionError("a GPU refuses this")
with torch.autocast("cuda", enabled=False):
    assert (x @ x.T).dtype == torch.float32
for step in range(25):
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x + noise), y)
    loss.backward()
    optimizer.step()
"""


def test_cuda_in_every_form_runs_without_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "cuda.py"
    script.write_text(CUDA)
    with watched(script) as original:
        assert "CUDA remapped onto the CPU: the verdict speaks of learning alone" in original.notes()
        assert len(original.log["rows"]) == 25
        assert original.log["parameters"]["0"][0] == "module.0.weight"
        assert difference(original, script, exact=True) is None


def test_a_worker_that_touches_cuda_fails_as_on_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from torch.utils.data import DataLoader, Dataset


            class OnDevice(Dataset):
                def __len__(self):
                    return 16

                def __getitem__(self, i):
                    return torch.full((4,), float(i)).cuda()


            model = torch.nn.Linear(4, 1).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for epoch in range(4):
                for x in DataLoader(OnDevice(), 4):
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
            """
        )
    )
    with watched(script) as original:
        found = difference(original, script, ("OnDevice(), 4)", "OnDevice(), 4, num_workers=1)"))
        assert found is not None and "Cannot re-initialize CUDA in forked subprocess" in found


RECURRENT = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(40, 5, 6), torch.randint(0, 3, (40,))
layers = nn.ModuleList([nn.LSTM(6, 8, 2, batch_first=True, dropout=0.1), nn.GRU(8, 8, batch_first=True), nn.RNN(8, 8)])
head = nn.Linear(8, 3)
model = nn.ModuleList([layers, head]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(25):
    optimizer.zero_grad()
    h = x[step : step + 8].cuda()
    for layer in layers:
        h, _ = layer(h)
    loss = nn.functional.cross_entropy(head(h[:, -1]), y[step : step + 8].cuda())
    loss.backward()
    optimizer.step()
"""


def test_recurrent_layers_run_in_16_bits(tmp_path: Path) -> None:
    """A CPU may have no LSTM of 16 bits of its own, and the rewrite is no worse for it."""
    script = tmp_path / "recurrent.py"
    script.write_text(RECURRENT)
    old = "    for layer in layers:\n        h, _ = layer(h)\n    loss = "
    cast = "    with torch.autocast('cuda', torch.KIND):\n    " + old.replace("\n", "\n    ")
    with watched(script) as original:
        for kind in ("float16", "bfloat16"):
            assert difference(original, script, (old, cast.replace("KIND", kind))) is None
        wrong = (old, cast.replace("KIND", "float16").replace("layer(h)", "layer(h.flip(1))"))
        assert difference(original, script, wrong) is not None


COMPILED = """
import torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
x, y = torch.randn(40, 6).cuda(), torch.randint(0, 3, (40,)).cuda()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.1)

    def forward(self, x):
        scale = torch.ones(8, device=x.device)
        return self.outer(self.drop(torch.relu(self.inner(x)) * scale))


model = Network().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(25):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[step : step + 8]), y[step : step + 8])
    loss.backward()
    optimizer.step()
    assert counters["frames"]["ok"] == 0
"""


SCORED = (
    "for step in",
    """
def scored(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(x)


for step in""",
)


def test_compiled_code_runs_on_the_stand_in(tmp_path: Path) -> None:
    """The compiler must not see what stands in for CUDA; that it compiled, the script itself makes sure of."""
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    checked = ('assert counters["frames"]["ok"] == 0', 'assert counters["frames"]["ok"] >= 1 and loss.is_cuda')
    whole = ("optimizer = ", 'model = torch.compile(model, backend="aot_eager")\noptimizer = ')
    method = ("optimizer = ", 'model.compile(backend="aot_eager")\noptimizer = ')
    with watched(script) as original:
        assert difference(original, script, whole, checked) is None
        autocast = ("model(x[step : step + 8])", "scored(x[step : step + 8])")
        assert difference(original, script, method, checked, SCORED, autocast) is None
        found = difference(original, script, whole, checked, ("* scale", "* scale.div(2)"))
        assert found is not None and found.startswith("at step 1 ")


def test_what_the_compiler_put_into_its_graph_is_looked_at_by_itself(tmp_path: Path) -> None:
    """Python executes no line of a graph; and a line that nobody runs is still told of."""
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    compiled = ("optimizer = ", 'model = torch.compile(model, backend="aot_eager")\noptimizer = ')
    checked = ('assert counters["frames"]["ok"] == 0', 'assert counters["frames"]["ok"] >= 1')
    same = ("torch.ones(8, device", "torch.ones((8,), device")
    branches = "    if step < 1000:\n        optimizer.step()\n    else:\n        optimizer.step(None)\n"
    never = ("    optimizer.step()\n", branches)

    def stages(*names: str) -> tuple[Stage, ...]:
        text, found = script.read_text(), []
        for name, edits in {"compiling": [compiled, checked], "inside": [same], "never": [never]}.items():
            for old, new in edits if name in names else ():
                text = text.replace(old, new)
            if name in names:
                found.append(Stage(name, Risk.EQUIVALENT, {script: text.encode()}))
        return tuple(found)

    def rebuild(without: frozenset[str]) -> tuple[Stage, ...]:
        return stages(*({"inside", "never", "compiling"} - without))

    with walls.scratch_for(script) as scratch:
        request = Request(script, (), rebuild(frozenset()), Options(timeout=120), rebuild)
        child = Child(scratch, script, (), script.parent, request.options)
        try:
            child.start()
            original = Original(child, scratch, request, remap=not child.cuda, tell=lambda progress: None)
            original.watch()
            learned = Blame(original, scratch, request, cuda=child.cuda).sort_out()
        finally:
            child.close()
    assert {each.codemod: each.verdict for each in learned.judgements} == {
        "inside": KEPT,
        "never": UNVERIFIED,
        "compiling": KEPT,
    }
