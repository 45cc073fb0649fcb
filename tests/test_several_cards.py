"""The estimate of a step on several cards: figures derived by hand, and what ``profile`` and ``verify`` say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

from turbofix.estimate.cards import cards
from turbofix.estimate.recording import Operation, Recording, Update
from turbofix.estimate.several import Several, communication, exposed, several
from turbofix.estimate.step import COMPUTE, DATA, HOST, Estimate, Interval

A100, RTX4090 = cards()["a100"], cards()["rtx4090"]
HUNDRED = (Update("SGD", 50, 25_000_000, 4, fused=False, foreach=True),)  # 100 MB of gradients


def step(
    samples: int | None, bound: str = COMPUTE, kernels: int = 100, refused: str | None = None, **ms: float
) -> Estimate:
    """A step with these parts, of which a quarter is not sure."""
    total = sum(ms.values())
    interval = Interval(total, total * 0.75, total * 1.25) if refused is None else None
    parts = {"backward": 0.0, **ms}
    return Estimate("a100", interval, bound, refused, parts, samples, kernels=kernels)


def of_hundred(one: Estimate, share: Estimate, card: Any = A100, operations: tuple[Operation, ...] = ()) -> Several:
    return several(one, share, Recording(operations, HUNDRED), card, 8)


def test_adding_up_a_hundred_megabytes_on_eight_cards() -> None:
    # each sends and gets 2 · 7/8 · 100 MB = 175 MB: 0.76087 ms at 230 GB/s. In buckets of 25 MiB they are four, each of
    # which takes 42 µs to begin with: 0.168 ms.
    took = communication(HUNDRED, 230, 8)
    assert took == pytest.approx(0.92887, abs=1e-5)
    # one of two cards sends and gets 100 MB
    assert communication(HUNDRED, 230, 2) == pytest.approx(0.43478 + 0.168, abs=1e-5)
    # a long backward pass hides three buckets of four; one of 0.2 ms hides so much of them
    assert exposed(took, 60.0, HUNDRED) == pytest.approx(0.23222, abs=1e-5)
    assert exposed(took, 0.2, HUNDRED) == pytest.approx(0.92887 - 0.2, abs=1e-5)


def test_one_bucket_is_not_hidden() -> None:
    few = (Update("SGD", 5, 2_500_000, 4, fused=False, foreach=True),)
    # 2 · 7/8 · 10 MB at 230 GB/s, and 42 µs
    assert exposed(communication(few, 230, 8), 60.0, few) == pytest.approx(0.07609 + 0.042, abs=1e-5)


def test_eight_cards_with_a_fast_link() -> None:
    one = step(512, forward=30, backward=60, optimizer=2)
    found = of_hundred(one, step(64, forward=4, backward=8, optimizer=2))
    # (14 ms + 0.232 ms that are not hidden) · 1.087, by which eight cards are slower than that where it was published
    assert found.estimate.step_ms is not None
    assert found.estimate.step_ms.median == pytest.approx(15.470, abs=1e-3)
    assert found.estimate.step_ms.low == pytest.approx(14 * 0.75 + 0.23222, abs=1e-4)
    assert found.estimate.step_ms.high == pytest.approx((14 * 1.25 + 0.46443) * 1.254, abs=1e-4)
    speedup = found.estimate.speedup
    assert speedup is not None
    assert speedup.median == pytest.approx(92 / 15.470, abs=1e-3)
    assert speedup.low < 92 / ((14 + 0.46443) * 1.254) < speedup.median < speedup.high == 8  # no more than there are
    assert (found.samples, found.estimate.samples, found.enough) == (64, 512, None)
    assert found.in_words == "11–23 ms a step, 3.5–8× one; 0.23 of 0.93 ms of communication are not hidden"


def test_a_slow_link_is_not_hidden() -> None:
    one = step(512, forward=30, backward=60, optimizer=2)
    found = of_hundred(one, step(64, forward=4, backward=8, optimizer=2), RTX4090)
    # 175 MB at 14 GB/s are 12.5 ms, and four times 42 µs. The last bucket is 3.167 ms; of the other 9.501 ms the
    # backward pass hides 8.
    assert found.communication_ms == pytest.approx(12.668, abs=1e-3)
    assert found.exposed_ms == pytest.approx(3.167 + 1.501, abs=1e-3)


def test_batch_norms_wait_for_each_other() -> None:
    norms = tuple(
        Operation(name, "reduction", "forward", 0.0, 1.0, 1.0, 32, (), 0.0)
        for name in ("native_batch_norm", "native_batch_norm_backward", "native_layer_norm")
    )
    one, share = step(512, forward=30, backward=60), step(64, forward=4, backward=8)
    more = of_hundred(one, share, operations=norms).exposed_ms
    assert more == pytest.approx(0.23222 + 2 * 0.042, abs=1e-5)


@pytest.mark.parametrize(
    ("one", "share", "enough"),
    [
        # 60 of 69 ms are the update, which each card does: (61.2 + 0.232) · 1.087 = 66.8 ms
        (
            step(512, forward=3, backward=6, optimizer=60),
            step(64, forward=0.4, backward=0.8, optimizer=60),
            "8 are estimated to be 0.84–1.2 times as fast",
        ),
        (
            step(512, DATA, data=90, backward=6),
            step(64, DATA, data=11, backward=1),
            "its step waits for data, and mending that takes no second card",
        ),
        (
            step(512, HOST, forward=3, backward=6, other=40, refused="the host bounds it"),
            step(64, HOST, forward=1, other=45, refused="the host bounds it"),
            "the host takes its time, and has as many operations to start for each of several",
        ),
        # to start 2,500 operations takes the fastest host 10 ms
        (
            step(512, forward=4, backward=8),
            step(64, HOST, kernels=2500, forward=1, other=19, refused="the host bounds it"),
            "8 are estimated to be at most 1.2 times as fast",
        ),
        (step(512, forward=30, backward=60), step(64, forward=4, backward=8), None),
    ],
)
def test_where_one_card_is_enough(one: Estimate, share: Estimate, enough: str | None) -> None:
    assert of_hundred(one, share).enough == enough


@pytest.mark.parametrize(
    ("one", "share", "refused"),
    [
        (
            step(100, backward=60),
            step(13, backward=8),
            "its batch of 100 samples was not shared out evenly among 8 cards",
        ),
        (
            step(None, backward=60),
            step(None, backward=60),
            "its batches come from no DataLoader, so that no share of one could be recorded",
        ),
        # to start 1,000 operations takes the fastest host 4 ms
        (
            step(512, backward=10),
            step(64, HOST, kernels=1000, backward=1, refused="the host bounds it"),
            "with 64 samples on each, the host bounds it; 8 cards are at most 2.5 times as fast",
        ),
    ],
)
def test_where_there_is_no_figure(one: Estimate, share: Estimate, refused: str) -> None:
    found = of_hundred(one, share)
    assert (found.estimate.refused, found.estimate.step_ms, found.estimate.speedup) == (refused, None, None)
    assert found.in_words == f"no figure: {refused}"


def test_a_card_that_was_calibrated_and_has_no_row() -> None:
    one, share = step(512, backward=60), step(64, backward=8)
    found = of_hundred(one, share, A100._replace(bus=None))
    assert found.estimate.refused == "how fast such cards reach each other is not known"


@pytest.mark.parametrize(
    ("card", "images", "factor"),
    # NVIDIA's ResNet-50 v1.5, 256 images on each of eight cards: those of one card a second, and how many times as many
    [("a100", 938, 7.72), ("a100", 2470, 6.72), ("v100", 367, 7.76), ("v100", 1200, 6.93)],
)
def test_published_trainings_on_eight_cards(card: str, images: float, factor: float) -> None:
    share = 256 / images * 1e3
    found = of_hundred(
        step(2048, forward=share * 8 / 3, backward=share * 16 / 3),
        step(256, forward=share / 3, backward=share * 2 / 3),
        cards()[card],
    )
    speedup = found.estimate.speedup
    assert speedup is not None
    assert speedup.low < factor < speedup.high
    assert speedup.median == pytest.approx(factor, rel=0.1)


# --- runs -----------------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(8192, 512), torch.randint(0, 10, (8192,)))
loader = DataLoader(data, batch_size=4096, shuffle=True)
model = nn.Sequential(nn.Linear(512, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.Linear(8192, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


FEW = SCRIPT.replace("8192, 512), torch.randint(0, 10, (8192,", "64, 512), torch.randint(0, 10, (64,").replace(
    "4096", "16"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(tmp_path, monkeypatch, capfdbinary)


def test_a_profile_on_several_cards(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--quiet", "--device", "cpu", "--select", "ddp", "--gpu", "a100", "--gpus", "8")
    ran = run("profile", "train.py", *options, "--output-format", "json", "--output-file", "seen.json")
    assert ran.code == 0, ran.err
    found = json.loads((tmp_path / "seen.json").read_text())
    assert list(found)[-1] == "cards"
    several = found["cards"]
    assert (several["gpus"], several["samples_per_gpu"]) == (8, 512)
    # 71,395,338 numbers of 4 bytes: 2 · 7/8 of them at 230 GB/s, and eleven times 42 µs
    assert several["communication_ms"] == pytest.approx(2.173 + 0.462, abs=1e-3)
    assert several["exposed_ms"] == pytest.approx(2.635 / 11, abs=1e-3)
    assert 1.3 < several["estimate"]["speedup"]["low"] < several["estimate"]["speedup"]["median"] <= 8
    (advice,) = found["advice"]
    assert list(advice) == ["codemod", "estimate", "enough"]
    assert advice["codemod"] == "ddp"
    assert advice["estimate"]["speedup"]["median"] > 1.3
    assert advice["enough"] is None


def test_a_run_ranks_several_cards_low_where_one_is_enough(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("8192, 512), torch.randint(0, 10, (8192,))", "64, 512), torch.randint(0, 10, (64,))").replace(
            "4096", "16"
        )
    )
    options = ("--quiet", "--device", "cpu", "--select", "ddp", "--gpu", "a100", "--gpus", "8")
    ran = run("profile", "train.py", *options)
    # 71 million numbers are updated by each card, whatever its share is
    assert "one card is enough: 8 are estimated to be" in " ".join(ran.out.split())
    ran = run("profile", "train.py", *options, "--output-format", "json", "--output-file", "seen.json")
    assert ran.code == 0, ran.err
    looking = ("analyze", "train.py", "--quiet", "--select", "ddp", "--gpus", "8", "--output-format", "json")
    worth = [json.loads(run(*looking, *more).out)["findings"][0]["worth"] for more in ((), ("--observed", "seen.json"))]
    assert worth == ["high", "small"]


def test_a_verification_on_several_cards(run: Run, tmp_path: Path) -> None:
    # so many small operations that the host takes longer to start them than any machine takes for a batch of 16
    deep = "*[nn.Linear(64, 64) for _ in range(300)]"
    script = FEW.replace("nn.Linear(8192, 8192)", deep).replace("8192", "64").replace("SGD", "Adam")
    assert deep in script
    (tmp_path / "train.py").write_text(script)
    options = (
        "--quiet",
        "--device",
        "cpu",
        "--select",
        "fused-optimizer",
        "--gpu",
        "a100",
        "--gpus",
        "2",
        "--steps",
        "3",
    )
    ran = run("verify", "train.py", *options, "--output-format", "json")
    found = json.loads(ran.out)
    assert list(found)[-1] == "cards"
    several = found["cards"]
    assert (several["gpus"], several["samples_per_gpu"], several["estimate"]["step_ms"]) == (2, 8, None)
    assert several["enough"] == "the host takes its time, and has as many operations to start for each of several"
