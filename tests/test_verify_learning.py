"""Broken rewrites fail with a reason that names the difference; good ones pass.

The script is run as it is once per module, and each rewrite is held against that.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import walls

from turbofix.findings import Risk
from turbofix.verify import Options, Request, Stage, verdict
from turbofix.verify.original import Original
from turbofix.verify.runner import Child

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm_interpreters")

PAIRS = Path(__file__).parent / "verify_scripts" / "pairs.py"
NETWORK = Path(__file__).parent / "verify_scripts" / "network.py"

Edits = list[tuple[str, str]]

LOSS = "        loss = nn.functional.cross_entropy(model(x, y).flatten(0, 1), y.flatten())\n"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
ZERO = "            optimizer.zero_grad()\n"
STEP = "            optimizer.step()\n"


def autocast(dtype: str) -> tuple[str, str]:
    return LOSS, f'        with torch.autocast("cuda", dtype=torch.{dtype}):\n    {LOSS}'


SCALED: Edits = [
    ("accumulate = 4", 'accumulate = 4\nscaler = torch.amp.GradScaler("cuda")'),
    autocast("float16"),
    ("(loss / accumulate).backward()", "scaler.scale(loss / accumulate).backward()"),
    (CLIP, "            scaler.unscale_(optimizer)\n" + CLIP),
    (STEP, "            scaler.step(optimizer)\n            scaler.update()\n"),
]

# what is broken, how, and the words that its reason must hold
BROKEN: dict[str, tuple[Edits, str]] = {
    "missing zero_grad": ([(ZERO, "")], "gradient norm"),
    "no division": ([("loss / accumulate", "loss")], "4 times the original's"),
    "wrong divisor": ([("loss / accumulate", "loss / (2 * accumulate)")], "0.5 times the original's"),
    "learning rate": ([("5e-5", "5.5e-5")], "the learning rate is 5.5e-05 instead of 5e-05"),
    "missing unscale_": (
        [*SCALED, ("            scaler.unscale_(optimizer)\n", "")],
        "clip_grad_norm_ sees a gradient",
    ),
    "evaluation mode": (
        [("    model.train()\n", "    if epoch == 0: model.train()\n")],
        "step 4 Dropout modules run in eval",
    ),
    "zero before step": ([(STEP, ZERO + STEP)], "no gradient"),
    "zero each micro-batch": ([("        (loss", "        optimizer.zero_grad()\n        (loss")], "gradient norm"),
    "double step": ([(STEP, STEP + STEP)], "step 2 the optimizer steps after"),
    "lost shuffling": ([(", shuffle=True", "")], "gradient"),
    "removed clip": ([(CLIP, "")], "clip_grad_norm_ is called 0 times in the step instead of 1"),
    "other bound": ([("model.parameters(), 1.0", "model.parameters(), 2.0")], "clips at 2 instead of 1"),
    "Adam to AdamW": ([("torch.optim.Adam(", "torch.optim.AdamW(")], "AdamW instead of Adam"),
    "weight decay": ([("lr=5e-5", "lr=5e-5, weight_decay=0.01")], "the weight decay is 0.01 instead of 0"),
    "frozen": ([("optimizer = ", "model.out.bias.requires_grad_(False)\noptimizer = ")], "`out.bias` has no gradient"),
    "left out": ([("model.parameters(), lr", "list(model.parameters())[1:], lr")], "10 parameters instead of 11"),
    "shifted labels": ([("source.flip(1)", "source.flip(1).roll(1, 1)")], "the loss is"),
    "stale batch": (
        [
            (
                "x, y = x.to(device), y.to(device)",
                "new = x.to(device), y.to(device); x, y, kept = *(kept if step else new), new",
            )
        ],
        "step 1",
    ),
    "other dropout": ([("nn.Dropout(0.1)", "nn.Dropout(0.2)")], "dropout is p=0.2 instead of p=0.1"),
    "lost steps": ([("accumulate = 4", "accumulate = 6")], "after 24 samples instead of 16 samples"),
    "wrong sum": ([("total += loss.item()", "total = loss.item()")], "it prints"),
    "other weights": ([("accumulate = 4", "accumulate = 4\nmodel.out.bias.data += 0.001")], "the weights differ"),
    "crash": ([("loss.item()", "loss.itme()")], "'Tensor' object has no attribute 'itme'"),
}

GOOD: dict[str, Edits] = {
    "itself": [],
    "bfloat16": [autocast("bfloat16")],
    "float16 with scaler": SCALED,
    "float16 with scaler, fused": [*SCALED, ("lr=5e-5", "lr=5e-5, fused=True")],
    "fused": [("lr=5e-5", "lr=5e-5, fused=True")],
    "larger batch": [("batch_size=4", "batch_size=16"), ("accumulate = 4", "accumulate = 1")],
    "throttled print": [('    print(f"epoch', '    if epoch % 2 == 0: print(f"epoch')],
}

EXACT: dict[str, Edits] = {
    "itself": [],
    "workers": [("shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True, pin_memory=True")],
    "deferred read": [
        ("total = 0.0", "total = torch.zeros((), dtype=torch.float64, device=device)"),
        ("total += loss.item()", "total += loss.detach()"),
        ("total / len", "total.item() / len"),
    ],
    "set_to_none": [("zero_grad()", "zero_grad(set_to_none=True)")],
    "non_blocking": [(".to(device), y.to(device)", ".to(device, non_blocking=True), y.to(device, non_blocking=True)")],
}


def rewritten(script: Path, edits: Edits) -> bytes:
    text = script.read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text.encode()


@contextmanager
def watched(script: Path, steps: int | None = None) -> Iterator[Original]:
    """The original, run twice and found equal to itself."""
    with walls.scratch_for(script) as scratch:
        options = Options(timeout=120, steps=steps)
        request = Request(script, stages=(Stage(None, Risk.EQUIVALENT, {}),), options=options)
        child = Child(scratch, script, (), script.parent, options)
        try:
            child.start()
            original = Original(child, scratch, request, remap=not child.cuda, tell=lambda progress: None)
            original.watch()
            original.demand_repeatable()
            yield original
        finally:
            child.close()


@pytest.fixture(scope="module")
def short_pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    """Past two ends of epochs only: what is broken is to be seen in less than what a verification takes."""
    with watched(Path(shutil.copy(PAIRS, tmp_path_factory.mktemp("pairs"))), steps=7) as original:
        yield original


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    with watched(Path(shutil.copy(PAIRS, tmp_path_factory.mktemp("pairs")))) as original:
        yield original


def test_the_original_is_watched_past_two_epoch_ends(pairs: Original) -> None:
    assert pairs.log["how"] == "stopped"
    assert pairs.log["epochs_ended"] >= 2
    assert len(pairs.log["rows"]) >= 20
    assert pairs.log["parameters"]["0"][0] == "embed.weight"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rewrite_fails_with_its_reason(short_pairs: Original, name: str) -> None:
    edits, words = BROKEN[name]
    outcome = short_pairs.compare({short_pairs.script: rewritten(PAIRS, edits)}, exact=False, phase=name)
    assert outcome.difference is not None
    assert words in outcome.difference


@pytest.mark.parametrize("name", GOOD)
def test_a_good_rewrite_passes(pairs: Original, name: str) -> None:
    outcome = pairs.compare({pairs.script: rewritten(PAIRS, GOOD[name])}, exact=False, phase=name)
    assert (outcome.difference, outcome.unverifiable) == (None, None)
    events = outcome.log["events"]
    assert events["autocast"] == (["bfloat16"] if name == "bfloat16" else ["float16"] if "float16" in name else [])
    assert events["scaler"] == ("scaler" in name)
    assert events["fused"] == ("fused" in name)


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_rewrite_is_equal_bit_for_bit(pairs: Original, name: str) -> None:
    outcome = pairs.compare({pairs.script: rewritten(PAIRS, EXACT[name])}, exact=True, phase=name)
    assert (outcome.difference, outcome.unverifiable) == (None, None)


def test_exact_is_held_to_every_bit(short_pairs: Original) -> None:
    rounded = rewritten(PAIRS, [autocast("bfloat16")])
    outcome = short_pairs.compare({short_pairs.script: rounded}, exact=True, phase="rounded")
    assert outcome.difference is not None
    assert "bit for bit" in outcome.difference or "step 1" in outcome.difference


def test_each_broken_rewrite_is_caught_without_its_structure(short_pairs: Original) -> None:
    """The learning rate × 1.1 is seen in the updates alone, should its hyper-parameter be hidden."""
    outcome = short_pairs.compare({short_pairs.script: rewritten(PAIRS, [("5e-5", "5.5e-5")])}, exact=False, phase="")
    first = outcome.log["rows"][0]["compare"]
    assert first["update"]["ratio"] == pytest.approx(1.1, rel=1e-4)
    assert verdict.distance(first["update"]["ratio"]) > verdict.ROUNDED.update_ratio


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    with watched(Path(shutil.copy(NETWORK, tmp_path_factory.mktemp("network")))) as original:
        yield original


BROKEN_NETWORK: dict[str, tuple[Edits, str]] = {
    "momentum": ([("nn.BatchNorm1d(16)", "nn.BatchNorm1d(16, momentum=0.01)")], "`body.1.running"),
    "normalisation in evaluation": (
        [("            x, y = x", "            model.body[1].eval()\n            x, y = x")],
        "BatchNorm modules run",
    ),
    "dropped last batch": ([("shuffle=True", "shuffle=True, drop_last=True")], "samples instead of"),
    "no schedule": ([("        schedule.step()\n", "")], "the learning rate"),
    "other checkpoint": ([('"model": model.state_dict(), ', "")], "other keys"),
    "no checkpoint": ([("        torch.save", "        0 and torch.save")], "no longer saves state.pt"),
    "augmentation lost": ([("+ 0.1 * torch.randn(8)", "")], "step 1"),
    "larger batch": ([("batch_size=16", "batch_size=32")], "samples instead of"),
}


def test_long_data_is_shortened_and_keeps_its_tail(network: Original) -> None:
    # 1000 samples in batches of 16 leave 8 over: 10 whole batches and the 8 are kept
    assert "1000 to 168 samples" in network.notes()[0]
    assert {row["samples"] for row in network.log["rows"]} == {16, 8}


@pytest.mark.parametrize("name", BROKEN_NETWORK)
def test_a_broken_network_fails_with_its_reason(network: Original, name: str) -> None:
    edits, words = BROKEN_NETWORK[name]
    outcome = network.compare({network.script: rewritten(NETWORK, edits)}, exact=False, phase=name)
    assert outcome.difference is not None
    assert words in outcome.difference


@pytest.mark.parametrize(
    "workers", ["num_workers=2", "num_workers=3, persistent_workers=True, prefetch_factor=4", "pin_memory=True"]
)
def test_workers_draw_the_same_augmentation(network: Original, workers: str) -> None:
    """Augmentation drawn with torch, numpy and random does not depend on the process that draws it."""
    edits = [("shuffle=True", f"shuffle=True, {workers}")]
    outcome = network.compare({network.script: rewritten(NETWORK, edits)}, exact=True, phase=workers)
    assert (outcome.difference, outcome.unverifiable) == (None, None)


def test_a_good_network_passes(network: Original) -> None:
    edits = [
        (
            "            loss = ",
            '            with torch.autocast("cuda", dtype=torch.bfloat16):\n                loss = ',
        ),
        ("lr=0.1", "lr=0.1, fused=True"),
    ]
    outcome = network.compare({network.script: rewritten(NETWORK, edits)}, exact=False, phase="bfloat16")
    assert (outcome.difference, outcome.unverifiable) == (None, None)


def test_random_draws_in_the_step_leave_other_batches_without_a_verdict(network: Original) -> None:
    """The network adds noise in its step: cut otherwise, the same samples meet other noise."""
    halved = [
        ("batch_size=16", "batch_size=8"),
        ("            optimizer.zero_grad()\n", ""),
        ("            loss.backward()\n", "            (loss / 2).backward()\n"),
        ("            optimizer.step()\n", "            if i % 2 or i + 1 == len(loader):\n                step()\n"),
        ("in loader", "in enumerate(loader)"),
        ("        for x, y", "        step = lambda: (optimizer.step(), optimizer.zero_grad())\n        for i, (x, y)"),
    ]
    outcome = network.compare({network.script: rewritten(NETWORK, halved)}, exact=False, phase="halved")
    assert outcome.difference is None
    assert outcome.unverifiable is not None


HEADS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(40, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
body, first, second = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1), nn.Linear(8, 1)
parameters = [*body.parameters(), *first.parameters(), *second.parameters()]
optimizer = torch.optim.{optimizer}
for epoch in range(5):
    for number, (a, b) in enumerate(loader):
        head = second if number % 4 == 3 else first
        loss = nn.functional.mse_loss(head(body(a)), b)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("optimizer", "manner"),
    [
        ("SGD(parameters, lr=0.01, momentum=0.9)", "foreach"),
        ("AdamW(parameters, lr=0.01, weight_decay=0.1)", "fused"),
    ],
)
def test_a_head_that_sits_idle_keeps_its_momentum(tmp_path: Path, optimizer: str, manner: str) -> None:
    script = tmp_path / "heads.py"
    script.write_text(HEADS.format(optimizer=optimizer))
    # without a gradient nothing is done to it, with one of zero its momentum and its decay go on
    idle = rewritten(script, [("set_to_none=False", "set_to_none=True")])
    another = rewritten(script, [("lr=0.01", f"lr=0.01, {manner}=True")])
    with watched(script) as original:
        found = original.compare({script: idle}, exact=False, phase="idle")
        assert found.difference is not None
        # the first head has no gradient in the fourth step
        assert found.difference.startswith("at step 4 the update of ")
        assert "`Linear.weight` is 0 times" in found.difference or "of `Linear.weight` 0 times" in found.difference
        # the gradient of the bias before the normalisation is noise, and Adam makes steps of full length of it
        assert original.compare({script: another}, exact=False, phase=manner).clean


MOVING = """\
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(8, 4), torch.randn(8, 1)
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = x.cuda()
best = {name: value.cpu() for name, value in model.state_dict().items()}
for step in range(24):
    targets = y.cuda()
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    y.mul_(0.9)
    if step == 9:
        model.load_state_dict(best)
    print(f"{best['weight'].norm():.4f}")
"""
TARGETS = "    targets = y.cuda()\n"


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    script = tmp_path_factory.mktemp("moving") / "moving.py"
    script.write_text(MOVING)
    with watched(script) as original:
        yield original


def test_what_moves_behind_a_copy_to_the_gpu_is_seen(moving: Original) -> None:
    loop = "for step in range(24):\n"
    hoisted = rewritten(moving.script, [(TARGETS, ""), (loop, TARGETS.lstrip() + loop)])
    found = moving.compare({moving.script: hoisted}, exact=False, phase="hoisted")
    assert found.difference is not None
    assert found.difference.startswith("at step 2 ")
    # the snapshot is a copy on a GPU, whether it is cloned or not
    cloned = rewritten(moving.script, [("value.cpu()", "value.cpu().clone()")])
    assert moving.compare({moving.script: cloned}, exact=True, phase="cloned").clean
    alias = rewritten(moving.script, [("value.cpu()", "value")])
    assert not moving.compare({moving.script: alias}, exact=False, phase="alias").clean


def test_a_tensor_that_stays_on_the_cpu_is_refused_beside_the_models(moving: Original) -> None:
    for wrong in ("torch.zeros(8, 1) + y.cuda()", "y"):
        left = rewritten(moving.script, [("targets = y.cuda()", f"targets = {wrong}")])
        found = moving.compare({moving.script: left}, exact=False, phase="left")
        assert found.difference is not None
        assert "Expected all tensors to be on the same device" in found.difference
