"""The estimate: what the probe writes down of a step, and what is made of it for a card that is not here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.estimate import networks
from benchmarks.estimate.fit import Columns, Measured
from turbofix.estimate import clock, step, updates
from turbofix.estimate.cards import Card, card_for, cards, constants
from turbofix.estimate.compiled import compiled, joined
from turbofix.estimate.recording import Operation, Recording, Update, operation_of
from turbofix.verify.probe.operations import Operations

A100, V100 = cards()["a100"], cards()["v100"]


def recorded(run: Callable[[], torch.Tensor]) -> list[Operation]:
    """The operations of a forward and a backward pass."""
    recorder = Operations()
    with recorder:
        loss = run()
    recorder.phase = "backward"
    with recorder:
        loss.backward()
    return [operation_of(row) for row in recorder.rows]


def flops(operations: list[Operation], kind: str) -> float:
    return sum(each.flops for each in operations if each.kind == kind)


def test_products_are_counted_forward_and_backward() -> None:
    given, layer = torch.randn(8, 16), nn.Linear(16, 32)
    operations = recorded(lambda: layer(given).sum())
    # forward, and the gradient of the weight: nothing asks for that of what is given
    assert flops(operations, "product") == 2 * (2 * 8 * 16 * 32)
    ahead = next(each for each in operations if each.kind == "product")
    assert (ahead.phase, ahead.shape, ahead.bits) == ("forward", (1, 8, 32, 16, 1), 32)


@pytest.mark.parametrize(("groups", "kind"), [(1, "convolution"), (4, "grouped"), (8, "depthwise")])
def test_convolutions_are_counted_with_their_groups(groups: int, kind: str) -> None:
    image, layer = torch.randn(2, 8, 10, 10, requires_grad=True), nn.Conv2d(8, 16, 3, padding=1, groups=groups)
    operations = recorded(lambda: layer(image).sum())
    once = 2 * (2 * 10 * 10) * 16 * (8 // groups) * 9
    assert flops(operations, kind) == 3 * once  # forward, and both gradients
    assert all(each.turned > 0 for each in operations if each.kind == kind)
    last = recorded(lambda: layer(image.contiguous(memory_format=torch.channels_last)).sum())
    assert next(each.turned for each in last if each.kind == kind) == 0


def test_attention_in_one_kernel_is_one_operation() -> None:
    query = torch.randn(2, 4, 64, 32, requires_grad=True)
    operations = recorded(lambda: nn.functional.scaled_dot_product_attention(query, query, query).sum())
    once = 2 * 2 * 4 * 64 * 64 * (32 + 32)
    assert flops(operations, "attention") == once * 3.5
    attend = nn.functional.scaled_dot_product_attention
    causal = recorded(lambda: attend(query, query, query, is_causal=True).sum())
    assert flops(causal, "attention") == once * 3.5 / 2  # what lies ahead is left out


def test_what_is_expanded_lies_in_memory_once() -> None:
    row, table = torch.randn(1, 1000, requires_grad=True), torch.randn(50, 1000)
    (added, *_) = recorded(lambda: torch.sum(row.expand(50, 1000) + table))
    assert added.read == 4 * (1000 + 50_000)


def test_reads_of_the_gpu_are_told_with_their_line() -> None:
    recorder = Operations(lambda: ("train.py", 7))
    with recorder:
        (torch.randn(4).sum() * 2).item()
    assert recorder.reads == [("_local_scalar_dense", ("train.py", 7))]


def operation(**given: Any) -> Operation:
    usual = {"name": "add", "kind": "pointwise", "phase": "forward", "flops": 0.0, "read": 0.0, "written": 0.0}
    return Operation(**{**usual, "bits": 16, "shape": (), "turned": 0.0, **given})


def product(size: int, bits: int = 16) -> Operation:
    moved = size * size * bits / 8
    shape = (1, size, size, size, 1)
    work = 2.0 * size**3
    return operation(name="mm", kind="product", flops=work, read=2 * moved, written=moved, bits=bits, shape=shape)


def took(one: Operation, card: Card = A100, **switches: bool) -> float:
    return clock.seconds(one, card, Recording((one,), **switches), constants())  # type: ignore[arg-type]


def test_a_large_product_is_bound_by_arithmetic_in_its_precision() -> None:
    ideal = 2 * 8192**3 / 312e12
    assert ideal / 1.3 < took(product(8192)) < ideal * 1.5
    full, rounded = took(product(8192, 32)), took(product(8192, 32), tf32=True)
    assert full / rounded == pytest.approx(156 / 19.5, rel=0.3)
    # a card before Ampere has no TF32
    assert took(product(8192, 32), V100, tf32=True) == took(product(8192, 32), V100)


def test_the_faster_a_multiprocessor_is_the_less_of_its_peak_is_reached() -> None:
    def reached(card: Card) -> float:
        return 2 * 8192**3 / (card.half * 1e12) / took(product(8192), card)

    assert reached(cards()["h100"]) < reached(A100) < reached(cards()["rtx3090"])


def convolution(kernel: int, columns: int = 512, dimensions: int = 2) -> Operation:
    flops = 2.0 * 10**6 * columns * 512 * kernel
    shape = (1, 10**6, columns, 512, kernel, dimensions)
    return operation(name="convolution", kind="convolution", flops=flops, bits=32, shape=shape)


def test_convolutions_in_float32_have_their_own_ways() -> None:
    square, line = took(convolution(9), V100) / 9, took(convolution(7), V100) / 7
    assert line / square == pytest.approx(constants()["winograd"], rel=0.01)
    # few channels to make, and convolutions over time, fill less of the card
    assert took(convolution(7, 16), V100) > 1.5 * took(convolution(7), V100) * 16 / 512
    assert took(convolution(7, dimensions=1), V100) > 1.1 * took(convolution(7), V100)
    # with tensor cores nothing is gained by fewer products
    assert took(convolution(9)) / 9 == pytest.approx(took(convolution(7)) / 7, rel=0.01)


def test_what_only_moves_memory_is_bound_by_it() -> None:
    moved = 1e9
    assert took(operation(read=moved / 2, written=moved / 2)) == pytest.approx(
        moved / (2039e9 * constants()["memory"]), rel=0.02
    )


def test_odd_channels_fill_no_tensor_core() -> None:
    odd = product(4096)._replace(shape=(1, 4096, 4095, 4096, 1))
    assert took(odd) > 1.5 * took(product(4096))


def test_a_fused_update_reads_its_memory_less_often() -> None:
    def seconds(**how: bool) -> float:
        update = Update("Adam", 100, 100_000_000, 4, **{"fused": False, "foreach": False, **how})
        return updates.seconds(update, A100, constants())[0]

    assert seconds(fused=True) < 0.5 * seconds(foreach=True)
    assert seconds(foreach=True) < seconds()


def test_a_compiled_chain_reads_and_writes_once() -> None:
    first = operation(read=100.0, written=100.0, inputs=((0, 100),), outputs=((1, 100),))
    second = operation(read=200.0, written=100.0, inputs=((1, 100), (0, 100)), outputs=((2, 100),))
    used = product(64)._replace(inputs=((2, 100), (3, 100)))
    chain, after = joined([first, second, used])
    reached = constants()["compiled_memory"]
    assert (chain.read, chain.written) == (100 / reached, 100 / reached)
    assert after == used
    whole = Recording((first, second, used))
    assert len(compiled(whole).operations) == 2


def test_a_compiled_kernel_reads_again_what_a_long_reduction_goes_over() -> None:
    padded = operation(name="constant_pad_nd", kind="other", read=90.0, written=100.0, inputs=((0, 90),))
    padded = padded._replace(outputs=((1, 100),))
    mean = operation(name="mean", kind="reduction", read=100.0, written=1.0, inputs=((1, 100),), outputs=((2, 1),))
    known = {**constants(), "compiled_memory": 1.0, "compiled_again": 2.0}
    (whole,) = joined([padded, mean], known)
    assert (whole.read, whole.written) == (90 + 2 * 100, 1)


@pytest.mark.parametrize("mixed", [True, False])
def test_the_columns_of_the_fit_say_what_the_clock_says(mixed: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 30, 3), nn.BatchNorm2d(30), nn.ReLU(), nn.Conv2d(30, 30, 3, groups=30))
    model.append(nn.Sequential(nn.Conv2d(30, 60, 3, groups=3), nn.Flatten(2), nn.Conv1d(60, 40, 5)))
    model.append(nn.Sequential(nn.Flatten(), nn.Linear(40 * 96, 10)))
    given = torch.empty(4, 3, 16, 16)
    rows, numbers = networks.trace(model, lambda: (given,), lambda found: found.float().sum(), mixed=mixed)
    trace = networks.Trace("net", 16, "train", "family", 4, rows, numbers)
    for last in (False, True):
        columns = Columns([Measured(trace, A100, last, 1.0), Measured(trace, V100, last, 1.0)])
        recording = trace.recording
        if last:
            unturned = [each._replace(turned=0.0) for each in recording.operations]
            recording = replace(recording, operations=tuple(unturned))
        expected = [
            sum(clock.seconds(each, card, recording, constants()) for each in recording.operations)
            + updates.seconds(recording.updates[0], card, constants())[0]
            for card in (A100, V100)
        ]
        assert np.allclose(columns.seconds(constants()), expected, rtol=1e-6)


def test_an_estimate_is_a_range_and_its_parts_are_the_whole() -> None:
    whole = Recording(tuple([product(8192)] * 50), samples=32, loading=0.004, workers=0)
    found = step.estimate(whole, A100)
    assert found.refused is None and found.bound == "compute" and found.step_ms is not None
    assert found.step_ms.low < found.step_ms.median < found.step_ms.high
    assert sum(found.parts.values()) == pytest.approx(found.step_ms.median)
    assert found.parts["data"] == pytest.approx(4.0)
    # on the card that the constants were fitted on it is surer
    here = step.estimate(whole, cards()["rtx3090"]).step_ms
    assert here is not None and here.high / here.median < found.step_ms.high / found.step_ms.median


def test_workers_make_data_beside_the_step() -> None:
    one = Recording(tuple([product(8192)] * 30), loading=0.4)
    alone, two = (step.estimate(replace(one, workers=count), A100) for count in (0, 2))
    assert alone.bound == "data" and alone.parts["data"] == pytest.approx(400)
    busy = sum(ms for name, ms in two.parts.items() if name != "data")
    assert two.parts["data"] == pytest.approx(200 - busy, rel=0.05)
    assert step.estimate(replace(one, workers=64), A100, processors=64).parts["data"] == 0


def test_small_kernels_have_no_figure() -> None:
    found = step.estimate(Recording(tuple([operation(read=1e4, written=1e4)] * 500)), A100)
    assert found.bound == "host" and found.step_ms is None
    assert found.refused is not None and "many small kernels" in found.refused
    assert found.to_json()["step_ms"] is None


def test_convolutions_in_groups_have_no_figure() -> None:
    grouped = operation(kind="grouped", flops=1e12, read=1e8, written=1e8, shape=(32, 10**6, 4, 4, 9))
    assert step.estimate(Recording((grouped,)), A100).step_ms is None


def test_two_programs_are_compared_by_their_samples() -> None:
    small = Recording(tuple([product(8192)] * 20), samples=16)
    large = Recording(tuple([product(8192)] * 20), samples=32)
    found = step.compared(step.estimate(small, A100), step.estimate(large, A100)).speedup
    assert found is not None and found.median == pytest.approx(2) and found.low < 2 < found.high
    same = step.compared(step.estimate(small, A100), step.estimate(small, A100)).speedup
    assert same is not None and same.as_factor == "no measurable difference"
    assert math.isclose(same.low, same.high)


@pytest.mark.parametrize(
    ("name", "card"), [("auto", "a100"), ("hopper", "h100"), ("RTX 4090", "rtx4090"), ("a100-40gb", "a100-40gb")]
)
def test_a_card_is_found_by_its_names(name: str, card: str) -> None:
    found = card_for(name)
    assert found is not None and found.name == card
    assert card_for("k80") is None
