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


PLACES = """
import copy, io
import torch
from torch import nn
from turbofix.verify.probe import cuda_on_cpu
cuda_on_cpu.install()
x = torch.zeros(4, 3)

def is_copy(made, of):
    before = of.clone()
    made += 1
    apart = torch.equal(of, before)
    made -= 1
    return apart

# there and back a copy is made, and none where it is already
for there in (x.to("cuda"), x.cuda(), x.to(0), x.to(device="cuda"), x.type("torch.cuda.FloatTensor"), x.to(x.cuda()),
              x.pin_memory(), torch.as_tensor(x, device="cuda"), torch.as_tensor(x.numpy(), device="cuda")):
    assert is_copy(there, x)
there = x.to("cuda")
assert there.device == torch.device("cuda", 0) and there.is_cuda and not x.is_cuda and x.device.type == "cpu"
for same in (there.to("cuda"), there.cuda(), there.to(0), there.to(there.device), there.to(there),
             there.to(torch.float32), torch.as_tensor(there, device="cuda"), there.detach().cuda(), there[1:].cuda(),
             x.cpu(), x.to("cpu")):
    assert not is_copy(same, there if same.is_cuda else x)
assert there.to("cuda", copy=True) is not there
for back in (there.cpu(), there.to("cpu"), there.to(x), there.to(x.device), there.type("torch.FloatTensor")):
    assert is_copy(back, there) and not back.is_cuda and back.device.type == "cpu"
# what is computed of it lies there too, and a number is read from wherever it is
for made in ((there + 1), torch.cat([there, there]), there.max(0)[1], torch.zeros_like(there), there.new_zeros(1)):
    assert made.is_cuda
assert not torch.zeros_like(there, device="cpu").is_cuda and not torch.tensor([float(there.sum())]).is_cuda
assert x.expand_as(there).device.type == "cpu" and there[torch.tensor([0])].is_cuda

# a parameter stays the same object when its module moves, and what lay on the CPU is left behind
model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
weight, buffer, kept = model[0].weight, model[1].running_mean, model[0].weight.data
assert not weight.is_cuda
assert model.to("cuda")[0].weight is weight and weight.is_cuda and is_copy(weight.data, kept) and weight.is_leaf
assert model[1].running_mean.is_cuda and is_copy(model[1].running_mean, buffer)
assert model.cuda()[0].weight.data_ptr() == weight.data_ptr() == model.to(torch.device("cuda"))[0].weight.data_ptr()
model(there).sum().backward()
assert weight.grad.is_cuda and copy.deepcopy(model)[0].weight.is_cuda
snapshot = {name: value.cpu() for name, value in model.state_dict().items()}
with torch.no_grad():
    weight += 1
assert not torch.equal(snapshot["0.weight"], weight) and not snapshot["0.weight"].is_cuda
model.load_state_dict(snapshot)
assert torch.equal(snapshot["0.weight"], weight) and weight.is_cuda
file = io.BytesIO()
torch.save(model.state_dict(), file)
for where in (None, "cpu", "cuda"):
    file.seek(0)
    assert torch.load(file, map_location=where)["0.weight"].is_cuda == (where != "cpu")
assert not model.cpu()[0].weight.is_cuda and model[0].weight is weight
packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(2, 3, 1).cuda(), torch.tensor([3, 2]), batch_first=True)
assert packed.data.is_cuda and not packed.batch_sizes.is_cuda
"""


def test_what_goes_to_the_other_device_is_copied_and_knows_where_it_is() -> None:
    subprocess.run([sys.executable, "-c", PLACES], check=True)
