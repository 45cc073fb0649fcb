"""The promise of defer-item: what a script prints is the same, bit for bit, before and after the rewrite.

The cases print their sums in full, so their output is compared as text. On a CPU the operations are those that run
on a GPU: float64 sums and products of single numbers, in which IEEE 754 leaves no choice.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest

torch = pytest.importorskip("torch")

CASES = {case.name: case for case in cases.folder("defer_item").values() if case.kind == "rewrite"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are faster without threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def output(texts: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, *, as_on_a_gpu: bool = False) -> str:
    """What a program prints; ``as_on_a_gpu``: tensors of the CPU take the branch of those of a GPU."""
    here = folder / "run"
    here.mkdir(exist_ok=True)
    for name, text in texts.items():
        sys.modules.pop(Path(name).stem, None)  # of another case
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text.replace(".is_cuda", ".is_cpu") if as_on_a_gpu else text, "utf-8")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr(sys, "argv", [cases.ENTRY])
    printed = io.StringIO()
    torch.manual_seed(3)
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(here / cases.ENTRY), run_name="__main__")
    return printed.getvalue()


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # the script's own `float(loss)`
@pytest.mark.filterwarnings("ignore:`torch.jit")  # of torch's own compiler
@pytest.mark.parametrize("name", CASES)
def test_prints_the_same_before_and_after(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith(("accelerate_", "fabric")) or name == "accelerate":
        pytest.importorskip("lightning" if name == "fabric" else "accelerate")
    try:
        before = output(CASES[name].before, tmp_path, monkeypatch)
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    after = output(CASES[name].after, tmp_path, monkeypatch)
    assert before
    assert after == before
    assert "tensor(" not in after


def test_prints_the_same_where_only_a_gpu_has_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["accelerator"]
    before = output(case.before, tmp_path, monkeypatch)
    assert ".is_cuda" in case.after[cases.ENTRY]
    assert output(case.after, tmp_path, monkeypatch, as_on_a_gpu=True) == before


def values(dtype: object, count: int = 5000) -> list[object]:
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(count, generator=generator) * 10 ** torch.empty(count).uniform_(-3, 2, generator=generator)
    return list(spread.to(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_float64_sum_is_what_python_sums(dtype: str) -> None:
    losses = values(getattr(torch, dtype))
    sizes = [1 + number % 7 for number in range(len(losses))]
    on_host = 0.0
    on_device = 0.0
    for loss, size in zip(losses, sizes, strict=True):
        on_host += loss.item() * size
        on_device += loss.detach().double() * size
    assert float(on_device) == on_host
    assert f"{float(on_device) / 7}" == f"{on_host / 7}"


def test_a_float32_sum_is_not() -> None:
    losses = values(torch.float32)
    on_host, on_device = 0.0, 0.0
    for loss in losses:
        on_host += loss.item()
        on_device += loss.detach()
    assert float(on_device) != on_host


def test_the_product_must_be_float64_too() -> None:
    losses = values(torch.float32)
    on_host, on_device = 0.0, 0.0
    for loss in losses:
        on_host += loss.item() * 3
        on_device += (loss.detach() * 3).double()
    assert float(on_device) != on_host


def test_counts_that_are_added_to_a_fraction_need_float64() -> None:
    count = torch.tensor(2**24 + 1)
    assert float(0.0 + count) != 0.0 + count.item()
    assert float(0.0 + count.double()) == 0.0 + count.item()


def test_a_sum_read_on_the_way_goes_on_as_before() -> None:
    on_host, on_device = 0.0, 0.0
    for step, loss in enumerate(values(torch.float32, 300)):
        on_host += loss.item()
        on_device += loss.detach().double()
        if step % 100 == 99:
            on_device = float(on_device)
            assert f"{on_device}" == f"{on_host}"
    assert float(on_device) == on_host


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_list_read_at_the_end_holds_the_same_numbers(dtype: str) -> None:
    losses = values(getattr(torch, dtype), 200)
    assert [loss.item() for loss in [loss.detach() for loss in losses]] == [loss.item() for loss in losses]


@pytest.mark.parametrize("start", [0, 0.0])
def test_an_empty_loop_leaves_a_number(start: float) -> None:
    total = start
    for loss in values(torch.float32, 0):
        total += loss.detach().double()
    assert float(total) == start
    assert int(total) == start
