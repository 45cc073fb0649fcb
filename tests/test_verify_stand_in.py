"""What stands in for a GPU: TF32 is rounded while the program allows it, and libraries with kernels hear the truth."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from turbofix.verify.probe.tf32_on_cpu import Rounding, rounded  # noqa: E402

UNIT = 2.0**-10


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1.0, 1.0),
        (1 + UNIT, 1 + UNIT),  # the smallest step that is kept
        (1 + UNIT / 4, 1.0),
        (1 + UNIT / 2, 1 + UNIT),  # a tie goes away from zero
        (-1 - UNIT / 2, -1 - UNIT),
        (1 + 3 * UNIT / 4, 1 + UNIT),
        (2 - 2.0**-23, 2.0),  # carries into the exponent
        (3.0e-5 * (1 + UNIT / 8), None),  # rounds to a neighbour at most half a step away
        (0.0, 0.0),
        (float("inf"), float("inf")),
        (-float("inf"), -float("inf")),
    ],
)
def test_ten_bits_of_mantissa_stay(number: float, expected: float | None) -> None:
    given = torch.tensor([number])
    found = rounded(given)
    if expected is None:
        assert abs(found.item() / given.item() - 1) <= UNIT / 2
    else:
        assert found.item() == expected
    assert rounded(found).equal(found)


def test_what_is_no_number_stays_none() -> None:
    assert rounded(torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_reads_rounded_operands_and_so_does_its_backward_pass(*, transposed: bool) -> None:
    torch.manual_seed(0)
    x, given = torch.randn(8, 16), torch.randn(16, 4)
    weight = (given.t().contiguous().t() if transposed else given).requires_grad_()
    output_gradient = torch.randn(8, 4)
    rounding = Rounding()
    rounding.allowed = True
    with rounding:
        product = x @ weight
        product.backward(output_gradient)
    assert product.equal(rounded(x) @ rounded(weight.detach()))
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, rounded(x).t() @ rounded(output_gradient), rtol=1e-6, atol=1e-6)
    assert not torch.equal(weight.grad, x.t() @ output_gradient)
    assert rounding.products == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_left_alone(dtype: torch.dtype) -> None:
    x = torch.randn(8, 8, dtype=dtype)
    rounding = Rounding()
    rounding.allowed = True
    with rounding:
        product = x @ x
    assert product.equal(x @ x)
    assert rounding.products == 0


SWITCHES = {
    "set_float32_matmul_precision": (
        "torch.set_float32_matmul_precision('high')",
        "torch.set_float32_matmul_precision('highest')",
    ),
    "allow_tf32": ("torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cuda.matmul.allow_tf32 = False"),
    "fp32_precision": (
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    ),
}

PROGRAM = """
import torch
from turbofix.verify.probe import cuda_on_cpu
used = cuda_on_cpu.install()
x = torch.full((4, 4), 1 + 2.0**-12, device="cuda")
def product():
    return (x @ x)[0, 0].item()
exact = product()
{on}
assert product() == 4.0, product()
{off}
assert product() == exact != 4.0, product()
assert used() == {{"remapped": True, "rounded": 1}}, used()
"""


@pytest.mark.parametrize(
    "switch",
    [name for name in SWITCHES if name != "fp32_precision" or hasattr(torch.backends.cuda.matmul, "fp32_precision")],
)
def test_the_programs_own_switch_decides(switch: str) -> None:
    on, off = SWITCHES[switch]
    subprocess.run([sys.executable, "-c", PROGRAM.format(on=on, off=off)], check=True)


COMPILING = """
import torch
from turbofix.verify.probe import cuda_on_cpu
used = cuda_on_cpu.install()
torch.set_float32_matmul_precision("high")
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x)
model = Model().to("cuda")
model(torch.ones(2, 4, device="cuda"))
assert used()["rounded"] == 1, used()
seen = []
def backend(graph, inputs):
    seen.append(graph)
    return graph.forward
model.compile(backend=backend)
model(torch.ones(2, 4, device="cuda")).sum().backward()
assert seen, "nothing was compiled"
assert used()["rounded"] == 1, used()
"""


def test_a_program_that_compiles_still_does() -> None:
    subprocess.run([sys.executable, "-c", COMPILING], check=True)


ASKING = """
import types
import torch
from turbofix.verify.probe import cuda_on_cpu
cuda_on_cpu.install()
question = "def is_there(): return torch.cuda.is_available()"
for name, answer in {"bitsandbytes.cextension": False, "bitsandbytes_notes": True, "torch.backends": False}.items():
    module = types.ModuleType(name)
    module.torch = torch
    exec(question, module.__dict__)
    assert module.is_there() is answer, name
"""


def test_a_library_that_chooses_its_kernels_by_it_is_told_that_there_is_no_gpu() -> None:
    subprocess.run([sys.executable, "-c", ASKING], check=True)
