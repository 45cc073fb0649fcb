"""``turbofix calibrate``: what is measured on a card is what the clock says of it, and is kept for later estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner

from turbofix.estimate import calibrated, clock
from turbofix.estimate.cards import cards, constants
from turbofix.estimate.recording import POINTWISE, PRODUCT, Operation, Recording, Update
from turbofix.estimate.step import estimate
from turbofix.report import calibration as report
from turbofix.verify.calibrate import calibrate

MEASURED: dict[str, Any] = {
    "torch": "2.13.0",
    "name": "NVIDIA H100 80GB HBM3",
    "capability": [9, 0],
    "multiprocessors": 132,
    "memory": 85.0,
    "half": 700.0,
    "tf32": 350.0,
    "float32": 50.0,
    "bandwidth": 2900.0,
    "link": 52.0,
    "start": 5.0,
    "read": 12.0,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return runner(tmp_path, monkeypatch, capfdbinary)


@pytest.mark.parametrize(
    ("figure", "bits", "rounds"), [("half", 16, False), ("tf32", 32, True), ("float32", 32, False)]
)
def test_the_clock_says_of_a_product_what_was_measured(figure: str, bits: int, rounds: bool) -> None:
    side = 8192
    size = side * side * bits / 8
    product = Operation("mm", PRODUCT, "forward", 2.0 * side**3, 2 * size, size, bits, (1, side, side, side, 1), 0.0)
    card = calibrated.card_of(MEASURED)
    took = clock.seconds(product, card, Recording((), tf32=rounds), constants())
    assert 2.0 * side**3 / took * 1e-12 == pytest.approx(MEASURED[figure], rel=1e-3)


def test_the_clock_says_of_an_addition_what_was_measured() -> None:
    added = Operation("add", POINTWISE, "forward", 0.0, 8.0 * 2**27, 4.0 * 2**27, 32, (), 0.0)
    took = clock.seconds(added, calibrated.card_of(MEASURED), Recording(()), constants())
    assert 12 * 2**27 / took * 1e-9 == pytest.approx(2900, rel=1e-3)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA L40S", "l40s"),  # another card than an l4, and one without a data sheet here
        ("NVIDIA GeForce RTX 3090 Ti", "rtx3090ti"),
    ],
)
def test_a_device_is_called_as_the_table_calls_it(device: str, name: str) -> None:
    assert calibrated.card_of({**MEASURED, "name": device}).name == name


def test_what_the_host_bounds_has_a_figure_where_the_host_was_measured() -> None:
    """A hundred kernels that have nothing to do, started in 5 microseconds each."""
    tiny = Operation("add", POINTWISE, "forward", 0.0, 64.0, 64.0, 32, (), 0.0)
    recording = Recording((tiny,) * 90, (Update("SGD", 10, 100, 4, False, True),))
    assert estimate(recording, cards()["h100"]).step_ms is None
    found = estimate(recording, calibrated.card_of({**MEASURED, "start": 50.0}))
    assert found.bound == "host"
    assert found.step_ms is not None
    assert found.step_ms.median == pytest.approx(93 * 0.05, rel=0.01)


def test_what_was_measured_is_kept_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrated.card_for("h100") == cards()["h100"]
    file = calibrated.save(MEASURED)
    assert file == tmp_path / "turbofix" / "cards" / "h100.json"
    assert calibrated.card_for("H100") == calibrated.card_of(MEASURED)
    assert calibrated.card_for("a100") == cards()["a100"]
    for broken in ("", "{}", '{"name": "NVIDIA H100"}', json.dumps({**MEASURED, "half": "fast"})):
        file.write_text(broken)
        assert calibrated.card_for("h100") == cards()["h100"]


def test_the_measurements_run_where_there_is_torch() -> None:
    """On a CPU they say nothing of a GPU; that they run, and give all that is asked for, is seen there too."""
    found = calibrate(device="cpu")
    assert found.keys() == MEASURED.keys()
    assert all(found[name] > 0 for name in ("half", "tf32", "float32", "bandwidth", "link", "start"))
    assert calibrated.card_of(found).name == "cpu"


def test_without_a_gpu_it_says_so(run: Run) -> None:
    ran = run("calibrate")
    assert (ran.code, ran.out) == (2, "")
    assert "error: this machine cannot be calibrated: torch sees no CUDA device here" in ran.err
    ran = run("calibrate", "--python", "no-such-python")
    assert ran.code == 2
    assert "the interpreter no-such-python could not be started: No such file or directory" in ran.err


def test_the_figures_are_shown_beside_the_data_sheet(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("turbofix.verify.calibrate.calibrate", lambda python: MEASURED)
    ran = run("calibrate")
    assert ran.code == 0
    assert "products in 16 bits 700 TFLOP/s 71% of the data sheet" in " ".join(ran.out.split())
    assert f"kept in {tmp_path}/cache/turbofix/cards/h100.json" in ran.err
    assert "of the data sheet" not in report.render(MEASURED, None)
