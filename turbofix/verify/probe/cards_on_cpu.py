"""Several GPUs that are not there, one for each process: what they tell each other goes over gloo.

NCCL is asked for, cards are named by number, and what it refuses (tensors on the host) is refused here, too. BatchNorm
over all processes is computed of what they tell each other, since torch's own is for GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from . import remap
from .patching import wrap
from .remap import from_user, place_of

_COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor")


def install(rank: int, count: int) -> None:
    """This process is one of ``count``, and has the card of its own number."""
    remap.card, remap.cards = rank, count
    asked_for_nccl = [False]

    def over_gloo(original: Any) -> Callable[..., Any]:
        def join(*arguments: Any, **keywords: Any) -> Any:
            names = [one for one in (*arguments, keywords.get("backend")) if isinstance(one, str) and "nccl" in one]
            asked_for_nccl[0] = asked_for_nccl[0] or "nccl" in names  # with no other beside it
            arguments = tuple("gloo" if isinstance(one, str) and one in names else one for one in arguments)
            if keywords.get("backend") in names or (original.__name__ == "init_process_group" and not arguments):
                keywords["backend"] = "gloo"
            keywords.pop("device_id", None)
            return original(*arguments, **keywords)

        return join

    def without_cards(original: Any) -> Callable[..., Any]:
        def barrier(*arguments: Any, device_ids: Any = None, **keywords: Any) -> Any:
            return original(*arguments, **keywords)

        return barrier

    def on_the_card(original: Any) -> Callable[..., Any]:
        def tell(*arguments: Any, **keywords: Any) -> Any:
            given = [one for one in (*arguments, *keywords.values()) if isinstance(one, torch.Tensor)]
            if asked_for_nccl[0] and from_user() and any(place_of(one) is False for one in given):
                raise RuntimeError("No backend type associated with device type cpu")
            return original(*arguments, **keywords)

        return tell

    def of_a_card(original: Any) -> Callable[..., None]:
        def __init__(
            self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *rest: Any, **keywords: Any
        ) -> None:
            if device_ids and any(place_of(one) is False for one in module.parameters()):
                raise ValueError(
                    "DistributedDataParallel device_ids and output_device arguments only work with GPU modules, "
                    "but got module parameters {device(type='cpu')}"
                )
            original(self, module, None, None, *rest, **keywords)

        return __init__

    wrap(dist, "init_process_group", over_gloo)
    wrap(dist, "new_group", over_gloo)
    wrap(dist, "barrier", without_cards)
    for name in _COLLECTIVES:
        wrap(dist, name, on_the_card)
    wrap(torch.nn.parallel.DistributedDataParallel, "__init__", of_a_card)
    for refuses in ("_passing_sync_batchnorm_handle", "_check_comm_hook"):
        wrap(torch.nn.parallel.DistributedDataParallel, refuses, lambda original: lambda *arguments: None)
    wrap(torch.nn.SyncBatchNorm, "forward", lambda original: _normalised_together)


def _normalised_together(self: Any, input: Tensor) -> Tensor:  # noqa: A002 (its name in torch)
    """The forward pass of BatchNorm, with the mean and the variance of what all processes have."""
    if not self.training:
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )
    across = [dim for dim in range(input.dim()) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(input.dim())]
    wide = input.float()
    count = _sum_of_all(wide.new_tensor(float(input.numel() // input.shape[1])), self.process_group)
    mean = _sum_of_all(wide.sum(across), self.process_group) / count
    centred = wide - mean.view(shape)
    variance = _sum_of_all(centred.square().sum(across), self.process_group) / count
    if self.track_running_stats:
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            by = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), by)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), by)
    normal = centred * (variance + self.eps).rsqrt().view(shape)
    if self.affine:
        normal = normal * self.weight.view(shape) + self.bias.view(shape)
    result: Tensor = normal.to(input.dtype)
    return result


def _sum_of_all(tensor: Tensor, group: Any) -> Tensor:
    """The sum over all processes; its gradient is the sum of theirs."""
    function: Any = _Sum
    result: Tensor = function.apply(tensor, group)
    return result


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        result = tensor.clone()
        dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        result = gradient.clone()
        dist.all_reduce(result, group=ctx.group)
        return result, None
