"""What stands in for a GPU: TF32 is rounded while the program allows it, and libraries with kernels hear the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
import warm

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


def test_products_in_float16_are_added_up_in_single_precision_as_a_tensor_core_does() -> None:
    torch.manual_seed(0)
    image, kernels = torch.randn(2, 3, 8, 8).half(), torch.randn(4, 3, 3, 3).half()
    bias = torch.randn(4).half().requires_grad_()
    convolved = torch.nn.functional.conv2d
    with Rounding():
        found = convolved(image, kernels.requires_grad_(), bias)
        found.sum().backward()
        row = torch.full((1, 4096), 1.0).half() @ torch.full((4096, 1), 1.0 + 2.0**-10).half()
    assert found.equal(convolved(image.float(), kernels.float(), bias.float()).half())
    assert kernels.grad is not None and kernels.grad.dtype is torch.float16
    assert bias.grad is not None and bias.grad.tolist() == [72.0] * 4
    assert row.item() == 4100.0


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
def test_the_programs_own_switch_decides(switch: str, tmp_path: Path, kept_interpreters: warm.Kept) -> None:
    on, off = SWITCHES[switch]
    kept_interpreters.told(PROGRAM.format(on=on, off=off), tmp_path)


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


def test_a_program_that_compiles_still_does(tmp_path: Path, kept_interpreters: warm.Kept) -> None:
    kept_interpreters.told(COMPILING, tmp_path)


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


def test_a_library_that_chooses_its_kernels_by_it_is_told_that_there_is_no_gpu(
    tmp_path: Path, kept_interpreters: warm.Kept
) -> None:
    kept_interpreters.told(ASKING, tmp_path)


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
assert not torch.equal(snapshot["0.weight"], weight.cpu()) and not snapshot["0.weight"].is_cuda
model.load_state_dict(snapshot)
assert torch.equal(snapshot["0.weight"], weight.cpu()) and weight.is_cuda
file = io.BytesIO()
torch.save(model.state_dict(), file)
for where in (None, "cpu", "cuda"):
    file.seek(0)
    assert torch.load(file, map_location=where)["0.weight"].is_cuda == (where != "cpu")
assert not model.cpu()[0].weight.is_cuda and model[0].weight is weight
packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(2, 3, 1).cuda(), torch.tensor([3, 2]), batch_first=True)
assert packed.data.is_cuda and not packed.batch_sizes.is_cuda
"""


def test_what_goes_to_the_other_device_is_copied_and_knows_where_it_is(
    tmp_path: Path, kept_interpreters: warm.Kept
) -> None:
    kept_interpreters.told(PLACES, tmp_path)


TOGETHER = """
import io
import numpy as np
import torch
from torch import nn
from turbofix.verify.probe import cuda_on_cpu
cuda_on_cpu.install()
F = nn.functional
here, index = torch.ones(3), torch.tensor([0, 2])
there, model = here.cuda(), nn.Linear(3, 3).cuda()
scalar = torch.tensor(2.0)

def refuses(run, kind=RuntimeError):
    try:
        run()
    except kind as error:
        return "same device" in str(error) or "to numpy" in str(error)
    return False

for run in (
    lambda: there + here, lambda: here * there, lambda: there.add_(here), lambda: model(here), lambda: 1 / here @ there,
    lambda: torch.cat([there, here]), lambda: F.mse_loss(there, here), lambda: here[index.cuda()],
    lambda: scalar.add_(there.sum()),
    lambda: F.cross_entropy(model(there)[None], torch.tensor([1])), lambda: torch.where(there > 0, there, here),
    lambda: F.cross_entropy(model(there)[None], torch.tensor([1]).cuda(), weight=here), lambda: there == here,
    lambda: F.embedding(index, model.weight), lambda: there.cpu() + there, lambda: there + torch.zeros(3, device="cpu"),
    lambda: there + torch.zeros(3), lambda: model.cpu() and model.cuda() and model.bias + here,
):
    assert refuses(run), run.__code__.co_firstlineno
assert refuses(there.numpy, TypeError) and refuses(lambda: np.asarray(there), TypeError)

# what a GPU takes
there + scalar, scalar * there, there[index], there[index.cuda()], there + 1, there.copy_(here), here.copy_(there)
there[index] = scalar
there[torch.tensor([True, False, True])] = 0.0
there.masked_fill(there > 0, scalar), torch.where(there > 0, there, scalar), torch.where(there > 0, 1.0, there)
here.type_as(there) + there, here.to(there) + there, there.new_tensor([1.0, 2, 3]) + torch.zeros_like(there)
there.cpu().numpy() + here.numpy(), here[there.argmax()], np.asarray(there.cpu()), there.tolist(), float(there.sum())
torch.zeros(3, device=there.device) + there, torch.arange(3, device=model.weight.device) + there
weights = list(model.parameters())
for optimizer in (torch.optim.Adam(weights, fused=True), torch.optim.SGD(weights, 0.1, momentum=0.9),
                  torch.optim.LBFGS(weights), torch.optim.AdamW(weights, foreach=True)):
    scaler = torch.amp.GradScaler("cuda", enabled=not isinstance(optimizer, torch.optim.LBFGS))
    for resumed in (False, True):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(there)[None], torch.tensor([1], device="cuda"))
            scaler.scale(loss).backward()
            return loss
        if scaler.is_enabled():
            closure()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step(closure)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, map_location="cpu"))
mean = sum(parameter.grad.norm() for parameter in model.parameters()) / there.numel()
lengths = torch.tensor([3, 2])
packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(2, 3, 4).cuda(), lengths, batch_first=True)
out, _ = nn.LSTM(4, 4, bidirectional=True).cuda()(packed)
padded, lengths_again = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
assert torch.equal(lengths, lengths_again) and padded.is_cuda
probabilities = torch.randn(5, 2, 4).cuda().log_softmax(2)
F.ctc_loss(probabilities, torch.ones(2, 3, dtype=torch.long), torch.tensor([5, 5]), lengths)
attention = nn.MultiheadAttention(8, 2).cuda()
attention(padded, padded, padded)
nn.TransformerEncoderLayer(8, 2).cuda()(torch.zeros(2, 3, 8, device="cuda"))
averaged = torch.optim.swa_utils.AveragedModel(model)
averaged.update_parameters(model)
data = torch.utils.data.TensorDataset(torch.zeros(4, 3))
loader = torch.utils.data.DataLoader(data, 2, num_workers=1, pin_memory=True)
for (batch,) in loader:
    model(batch.to("cuda")), model(batch.cuda(non_blocking=True))
checkpointed = torch.utils.checkpoint.checkpoint(model, there, use_reentrant=False)
torch.autograd.grad(checkpointed.sum() + (model.weight**2).sum(), list(model.parameters()))[0] * model.weight
with torch.autocast("cuda", dtype=torch.bfloat16):
    model(there) + there
torch.func.vmap(lambda row: row @ model.weight)(torch.ones(2, 3, device="cuda")) + there
"""


def test_tensors_on_two_devices_are_refused_where_a_gpu_refuses_them_and_only_there(
    tmp_path: Path, kept_interpreters: warm.Kept
) -> None:
    kept_interpreters.told(TOGETHER, tmp_path)


NAMES = """
import inspect
from unittest import mock
import torch
from turbofix.verify.probe import patching
wrapped = []
def spy(owner, name, make):
    original = getattr(owner, name, None)
    if original is not None:
        made = make(original)
        wrapped.append((name, original, made))
        return wrap(owner, name, lambda original: made)
wrap, patching.wrap = patching.wrap, spy
from turbofix.verify.probe import cuda_on_cpu, record, watch
cuda_on_cpu.install()
recorder = mock.MagicMock()
watch.install(recorder, dropout=False)
named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
def names(of):
    return [one.name for one in inspect.signature(of).parameters.values() if one.kind in named]
seen = 0
for name, original, made in wrapped:
    try:
        theirs = names(original)
    except ValueError:  # written in C
        continue
    for ours, real in zip(names(made), theirs):
        seen += 1
        assert ours == real, (name, ours, real)
assert seen > 20, seen

x = torch.ones(2, requires_grad=True)
torch.autograd.backward(tensors=(x.cuda() * 2).sum())
torch.save(obj={"x": x}, f="x.pt")
assert torch.load(f="x.pt", map_location="cuda:0")["x"].is_cuda
assert x.detach().cuda().type_as(other=torch.ones(1)).device.type == "cpu"
assert x.cuda().detach().numpy(force=True).sum() == 2
with torch.cuda.stream(stream=torch.cuda.Stream()) as _, torch.cuda.device(device=0):
    torch.cuda.current_stream().wait_event(event=torch.cuda.Event())
torch.set_default_tensor_type(t="torch.cuda.FloatTensor")
"""


def test_what_is_wrapped_takes_its_arguments_by_torchs_names(tmp_path: Path, kept_interpreters: warm.Kept) -> None:
    kept_interpreters.told(NAMES, tmp_path)
