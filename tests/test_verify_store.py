"""What the probe writes down comes back bit for bit, whatever kind of tensor it is, and its distances are right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from turbofix.verify.probe import lockstep, products, store, tensors  # noqa: E402
from turbofix.verify.probe.lockstep import Moment  # noqa: E402

KINDS = {
    "single": lambda: torch.randn(3, 5),
    "half": lambda: torch.randn(7).to(torch.bfloat16),
    "flags": lambda: torch.rand(9) > 0.5,
    "counter": lambda: torch.tensor(3),
    "nothing": lambda: torch.empty(0, 4),
    "complex": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "a transposed view": lambda: torch.randn(4, 6).t(),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "not a number": lambda: torch.tensor([math.nan, math.inf, 1.0]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_comes_back_as_it_was(tmp_path: Path, kind: str) -> None:
    old = KINDS[kind]()
    writer = tensors.Writer(str(tmp_path / "file"))
    writer.append([torch.ones(3), old], "first")
    writer.append([old], {"second": 2})
    found = list(tensors.records(str(tmp_path / "file")))
    assert [note for _, note in found] == ["first", {"second": 2}]
    for record, _ in found:
        new = record[-1]
        assert (new.dtype, new.shape, new.layout) == (old.dtype, old.shape, old.layout)
        assert products.same(old.detach().to_dense(), new.to_dense()) if old.is_sparse else products.same(old, new)


def moment(before: torch.Tensor, after: torch.Tensor, *, skipped: bool = False) -> Moment:
    made = Moment(["weight", "unused"], [before, torch.zeros(2)])
    made.gradients, made.after = [before * 2, None], [after, torch.zeros(2)]
    made.buffers, made.skipped = {"mean": before.mean()}, skipped
    return made


def test_moments_come_back_in_order_and_unchanged_values_are_written_once(tmp_path: Path) -> None:
    values = [torch.randn(1000) for _ in range(4)]
    written = store.Store(str(tmp_path), 1 << 20)
    assert written.write(0, moment(values[0], values[1]))
    first = (tmp_path / "0").stat().st_size
    assert written.write(0, moment(values[1], values[2], skipped=True))
    assert (tmp_path / "0").stat().st_size < 1.75 * first
    # changed by the script between two steps: the values before are not those after the last one
    assert written.write(0, moment(values[0], values[3]))
    read = store.Store(str(tmp_path), 0)
    for step, (before, after) in enumerate(((0, 1), (1, 2), (0, 3))):
        found = read.read(0, step)
        assert found is not None and read.read(0, step) is found
        assert torch.equal(found.before[0], values[before]) and torch.equal(found.after[0], values[after])
        assert found.gradients[0] is not None and torch.equal(found.gradients[0], values[before] * 2)
        assert found.gradients[1] is None and found.skipped == (step == 1)
        assert torch.equal(found.buffers["mean"], values[before].mean())
    assert read.read(0, 3) is None
    assert read.read(1, 0) is None


def test_a_store_that_is_full_says_so(tmp_path: Path) -> None:
    value = torch.randn(1000)
    small = store.Store(str(tmp_path), 20_000)
    assert small.write(0, moment(value, value))
    assert not small.write(0, moment(value + 1, value + 2))
    read = store.Store(str(tmp_path), 0)
    assert read.read(0, 0) is not None and read.read(0, 1) is None


def test_products_are_those_of_the_long_vectors() -> None:
    torch.manual_seed(0)
    old, new = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    found = products.total([products.of(old[:20], new[:20], equal=False), products.of(old[20:], new[20:], equal=False)])
    cosine = float(old @ new / (old.norm() * new.norm()))
    assert found.angle == pytest.approx(1 - cosine)
    assert found.ratio == pytest.approx(float(new.norm() / old.norm()))
    assert found.difference == pytest.approx(float((old - new).norm()))
    turned = products.of(old.float(), old.float() * (1 + 1e-3), equal=False)
    assert turned.angle == pytest.approx(0.0, abs=1e-9) and turned.ratio == pytest.approx(1.001)


def test_products_with_nothing_and_with_what_is_no_number() -> None:
    one = torch.ones(4)
    assert products.of(None, None, equal=True).report() == {"angle": 0.0, "ratio": 1.0, "norm": 0.0}
    assert products.of(one, None, equal=False).report() == {"angle": 1.0, "ratio": 0.0, "norm": 2.0}
    assert products.of(None, one, equal=False).ratio == math.inf
    assert math.isnan(products.of(one, one * math.nan, equal=False).angle)
    assert products.same(None, torch.zeros(2)) and not products.same(None, one)
    assert products.same(one * math.nan, one * math.nan) and not products.same(one, one * math.nan)


def test_updates_of_half_precision_are_not_rounded_away() -> None:
    before = torch.full((8,), 1.0).to(torch.bfloat16)
    after = before + 2**-7
    found = products.changes((before, before), (after, before), equal=False)
    assert found.norm == pytest.approx(2**-7 * 8**0.5) and found.new == 0


def test_buffers_are_the_same_ones_where_a_module_around_them_changes_their_names() -> None:
    def moment(prefix: str, kept: float) -> Moment:
        found = Moment([f"{prefix}weight"], [torch.ones(2)])
        found.after, found.gradients = [torch.ones(2)], [torch.ones(2)]
        found.buffers = {f"{prefix}count": torch.tensor(3.0), f"{prefix}kept": torch.full((2,), kept)}
        return found

    same = lockstep.compare(moment("", 1.0), moment("model.", 1.0))
    assert (same["unequal"]["buffer"], [off for _, off in same["buffers"]]) == (None, [0.0, 0.0])
    other = lockstep.compare(moment("", 1.0), moment("model.", 2.0))
    assert (other["unequal"]["buffer"], other["buffers"][0][0]) == ("kept", "kept")
    fewer = moment("model.", 1.0)
    del fewer.buffers["model.kept"]
    assert lockstep.compare(moment("", 1.0), fewer)["buffers"][0] == ("count", math.inf)
