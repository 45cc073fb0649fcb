"""One step of each measured network, written down on fake tensors: nothing is computed, and no weights are made."""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.estimate import measured
from turbofix.estimate.recording import ATTENTION, POINTWISE, PRODUCT, REDUCTION, Recording, Update, operation_of
from turbofix.verify.probe import operations, tally

MOST_SECONDS = 60


class Trace(NamedTuple):
    """A network's step: ``mode`` is train or infer, ``family`` the module of timm that it comes from."""

    name: str
    size: int
    mode: str
    family: str
    batch: int
    rows: list[operations.Row]
    parameters: list[int]

    @property
    def recording(self) -> Recording:
        """As the estimate reads it; the parameters are updated by SGD, one by one, as timm's benchmark does it."""
        made = tuple(map(operation_of, self.rows))
        numbers = self.parameters if self.mode == "train" else []
        updates = (Update("SGD", len(numbers), sum(numbers), 4, False, False),) if numbers else ()
        return Recording(made, updates, samples=self.batch, tf32=True)


def written_out(one: Trace) -> Trace:
    """An inference as a torch without attention in one kernel carries it out, under autocast."""
    rows = [part for row in one.rows for part in (_parts(row) if row[1] == ATTENTION else [row])]
    return one._replace(rows=rows)


def _parts(row: operations.Row) -> list[operations.Row]:
    _, _, phase, _, _, _, bits, (count, length, keys, width, _), *_ = row
    size = bits / 8
    weights, queries, values = count * length * keys, count * length * width * size, count * keys * width * size
    flops = 2.0 * weights * width

    def made(name: str, kind: str, read: float, written: float, shape: tuple[int, ...] = ()) -> operations.Row:
        return [name, kind, phase, flops if shape else 0.0, read, written, bits, shape, 0.0, [], []]

    return [
        made("mul", POINTWISE, queries, queries),
        made("bmm", PRODUCT, queries + values, weights * size, (count, length, keys, width, 1)),
        made("_to_copy", POINTWISE, weights * size, weights * 4),
        made("_softmax", REDUCTION, weights * 4, weights * 4),
        made("_to_copy", POINTWISE, weights * 4, weights * size),
        made("bmm", PRODUCT, weights * size + values, queries, (count, length, width, keys, 1)),
    ]


def trace(
    model: nn.Module, inputs: Callable[[], tuple[Any, ...]], loss: Callable[[Any], Tensor] | None, *, mixed: bool = True
) -> tuple[list[operations.Row], list[int]]:
    """The operations of a step, with a backward pass where there is a ``loss``, and the sizes of the parameters."""
    model.train(loss is not None)
    recorder = operations.Operations()
    as_on_cuda: Any = tally.AsOnCuda()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        _make_fake(model, mode)
        given = inputs()
        lowered = torch.autocast("cpu", dtype=torch.float16, enabled=mixed)
        with recorder, as_on_cuda, lowered, torch.set_grad_enabled(loss is not None):
            found = model(*given)
            result = loss(found) if loss is not None else None
        if result is not None:
            recorder.phase = "backward"
            with recorder:
                backward: Any = result.backward
                backward()
    return recorder.rows, [each.numel() for each in model.parameters() if each.requires_grad]


def timm_of() -> Any:
    """The package, whose torchvision may be of another torch: none of its kernels are used."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("unused"))
    import timm

    return timm


def record(folder: Path, out: Path) -> None:
    """Write the traces of all measured networks, those of the fitted training first."""
    timm = timm_of()
    families = timm.models._registry._model_to_module
    with _without_drawing(), out.open("wb") as handle:
        for mode, files in (("train", [measured.SETTINGS[0].file]), ("infer", [measured.EAGER.file])):
            for file in files:
                for (name, size), step in sorted(measured.steps(folder, file, mode).items()):
                    if name not in families:
                        continue
                    try:
                        rows, parameters = _limited(lambda: _of_timm(timm, name, size, step.batch, mode))  # noqa: B023
                    except Exception as error:
                        print(f"{name} {size} {mode}: {type(error).__name__}: {error}"[:160], file=sys.stderr)
                        continue
                    pickle.dump(tuple(Trace(name, size, mode, families[name], step.batch, rows, parameters)), handle)


def traces(path: Path) -> Iterator[Trace]:
    """Those of a file."""
    with path.open("rb") as handle, contextlib.suppress(EOFError):
        while True:
            yield Trace(*pickle.load(handle))


def _of_timm(timm: Any, name: str, size: int, batch: int, mode: str) -> tuple[list[operations.Row], list[int]]:
    timm.layers.set_fused_attn(mode == "infer")  # torch 1.12 has none
    model = timm.create_model(name)

    def inputs() -> tuple[Tensor, ...]:
        return (torch.empty(batch, 3, size, size),)

    def loss(found: Any) -> Tensor:
        first = found[0] if isinstance(found, (tuple, list)) else found
        return nn.functional.cross_entropy(first.float(), torch.zeros(batch, dtype=torch.long))

    return trace(model, inputs, loss if mode == "train" else None)


@contextlib.contextmanager
def _without_drawing() -> Iterator[None]:
    """Weights stay as memory has them."""
    names = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(nn.init, name, function)


def _limited(make: Callable[[], Any]) -> Any:
    def stop(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        return make()
    finally:
        signal.alarm(0)


def _make_fake(model: nn.Module, mode: FakeTensorMode) -> None:
    memo: dict[int, tuple[Any, Any]] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in list(held.items()):
                if tensor is None:
                    continue
                if id(tensor) not in memo:
                    fake: Any = mode.from_tensor(tensor.detach())
                    if isinstance(tensor, nn.Parameter):
                        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
                    memo[id(tensor)] = fake, tensor
                held[name] = memo[id(tensor)][0]
