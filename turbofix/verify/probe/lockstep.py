"""Gradients and updates, step by step: the original's are written down, the candidate's compared with them.

The candidate's optimizer then takes its step with the original's gradients, and its parameters and buffers are set to
the original's. So every step is judged alone, the optimizer's state keeps pace, and an update differs only when the
rule does (an Adam turns rounding in a tiny gradient into a step of full length).
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import products, tolerances


class Moment:
    """The tensors of one optimizer around one step, by parameter."""

    def __init__(self, names: list[str], before: list[Tensor]) -> None:
        self.names, self.before = names, before
        self.gradients: list[Tensor | None] = []
        self.after: list[Tensor] = []
        self.buffers: dict[str, Tensor] = {}
        self.skipped = False
        self.lent: set[int] = set()  # positions of those that step with the original's gradient


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [_whole(tensor.detach()).to("cpu", copy=True) for tensor in tensors]


def _whole(tensor: Tensor) -> Tensor:
    """A tensor of which processes may have shares (a ``DTensor``): all of them have to ask."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _share(whole: Tensor, like: Any) -> Tensor:
    """What a process has of a tensor, where it has a share of ``like``."""
    if not hasattr(like, "placements"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    whole = whole.to(like.device, like.dtype)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients_of(optimizer: Any) -> list[Tensor | None]:
    """Copies of the gradients, unscaled where a scaler has left that to a fused optimizer."""
    scale = getattr(optimizer, "grad_scale", None)
    found: list[Tensor | None] = []
    for parameter in parameters_of(optimizer):
        gradient = parameter.grad
        if gradient is not None:
            gradient = _whole(gradient.detach())
            gradient = (gradient.to_dense() if gradient.is_sparse else gradient).to("cpu", copy=True)
            if scale is not None:
                gradient /= float(scale)
        found.append(gradient)
    return found


class Names:
    """What the parameters and buffers are called, found by looking for the modules that hold them."""

    def __init__(self) -> None:
        self._roots: dict[int, nn.Module] = {}

    def of(self, optimizer: Any) -> list[str]:
        parameters = parameters_of(optimizer)
        self._find(parameters)
        names = []
        for position, parameter in enumerate(parameters):
            path, label = self._paths.get(id(parameter), ("", ""))
            full = f"{label}.{path}" if label else path
            names.append(full.replace("_orig_mod.", "") or f"parameter {position}")
        return names

    def _find(self, parameters: Sequence[Tensor]) -> None:
        wanted = {id(parameter) for parameter in parameters}
        modules = modules_alive()
        inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
        self._paths: dict[int, tuple[str, str]] = {}
        holders: dict[int, tuple[nn.Module, str]] = {}
        for root in modules:
            if id(root) in inner:
                continue
            for path, held in root.named_parameters():
                if id(held) in wanted and id(held) not in holders:
                    holders[id(held)] = (root, path)
        # in the order of the optimizer, so that equal classes are numbered alike in both programs
        labels: dict[int, str] = {}
        for parameter in parameters:
            if id(parameter) in holders:
                root, _ = holders[id(parameter)]
                if id(root) not in labels:
                    kind = type(root).__name__.removeprefix("FSDP")  # what `fully_shard` makes of a class
                    count = sum(name.split("#")[0] == kind for name in labels.values())
                    labels[id(root)] = kind if not count else f"{kind}#{count + 1}"
                self._roots[id(root)] = root
        alone = len(labels) == 1
        for key, (root, path) in holders.items():
            self._paths[key] = (path, "" if alone else labels[id(root)])
        self._holders = list({id(root): root for root, _ in holders.values()}.values())
        self._holder_labels = {id(root): "" if alone else labels[id(root)] for root in self._holders}

    def buffers(self) -> dict[str, Tensor]:
        """The live buffers of the modules found last."""
        found = {}
        for root in self._holders:
            label = self._holder_labels[id(root)]
            for path, buffer in root.named_buffers():
                if isinstance(buffer, Tensor):
                    found[(f"{label}.{path}" if label else path).replace("_orig_mod.", "")] = buffer
        return found


def modules_alive() -> list[nn.Module]:
    """All modules in memory, by type alone: asking an object for its class may run a stranger's code.

    What only wraps another one to share its work out among processes is none of the model's.
    """
    gc.collect()
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module) and hasattr(thing, "_modules")]
    return [one for one in modules if type(one) is not nn.parallel.DistributedDataParallel]


def match(reference: Sequence[str], candidate: Sequence[str]) -> tuple[list[tuple[int, int]], str | None]:
    """Pairs of positions, by name where names are known, else by order; and what does not match, in words."""
    if set(reference) == set(candidate) and len(set(reference)) == len(reference) == len(candidate):
        places = {name: position for position, name in enumerate(candidate)}
        return [(position, places[name]) for position, name in enumerate(reference)], None
    if len(reference) == len(candidate):
        return [(position, position) for position in range(len(reference))], None
    places = {name: position for position, name in enumerate(candidate)}
    pairs = [(position, places[name]) for position, name in enumerate(reference) if name in places]
    lost = [name for name in reference if name not in places]
    example = f" (`{lost[0]}` is missing)" if lost else ""
    return pairs, f"the optimizer has {len(candidate)} parameters instead of {len(reference)}{example}"


def compare(reference: Moment, candidate: Moment, *, every: bool = False, part: bool = False) -> dict[str, Any]:
    """What differs at this step, in numbers that JSON can hold: of the worst parameters, or of ``every`` one.

    The candidate may have a ``part`` of the parameters alone, where other processes have the others.
    """
    pairs, mismatch = match(reference.names, candidate.names)
    held, buffers = reference.buffers, _named_as(reference.buffers, candidate.buffers)
    if part and candidate.names and set(candidate.names) < set(reference.names):
        mismatch, held = None, {name: held[name] for name in held.keys() & buffers.keys()}
    for ours, theirs in pairs:
        before, after = reference.before[ours], candidate.before[theirs]
        if before.shape != after.shape:
            mismatch = f"`{reference.names[ours]}` has the shape {tuple(after.shape)} instead of {tuple(before.shape)}"
    if mismatch:
        return {"mismatch": mismatch}
    names = [reference.names[ours] for ours, _ in pairs]
    gradient_pairs = [(reference.gradients[ours], candidate.gradients[theirs]) for ours, theirs in pairs]
    before_pairs = [(reference.before[ours], candidate.before[theirs]) for ours, theirs in pairs]
    after_pairs = [(reference.after[ours], candidate.after[theirs]) for ours, theirs in pairs]
    same_gradient, same_before, same_after = (
        [products.same(a, b) for a, b in found] for found in (gradient_pairs, before_pairs, after_pairs)
    )
    each = [products.of(a, b, equal=equal) for (a, b), equal in zip(gradient_pairs, same_gradient, strict=True)]
    gradient = products.total(each)
    details = _details(names, each, gradient.norm)
    updates = [
        products.changes(before_pairs[i], after_pairs[i], equal=same_before[i] and same_after[i])
        for i in range(len(pairs))
    ]
    # with the original's gradient an update differs by the rule alone; else one is noise where its gradient is
    alone = [place for place, (_, theirs) in enumerate(pairs) if theirs in candidate.lent or same_gradient[place]]
    beside = [place for place, row in enumerate(details) if row[4] >= tolerances.NOISE_SHARE]
    update = products.total(updates[place] for place in {*alone, *beside})
    off = [(names[i], updates[i].angle, updates[i].ratio) for i in alone if _is_felt(updates[i], after_pairs[i][0])]
    worst = sorted(details, key=lambda row: tolerances.severity(row[1], row[2], row[3], tolerances.CLOSE), reverse=True)
    without = [
        (name, pair)
        for (name, _, _, _, weight), found, pair in zip(details, each, gradient_pairs, strict=True)
        if pair[0] is not None and weight > 1e-7 and found.new == 0
    ]
    not_finite = [
        name for name, one in zip(names, each, strict=True) if math.isfinite(one.old) and not math.isfinite(one.new)
    ]
    # the gradient of a single number is a sum that rounding can cancel to nothing
    zeroed = [name for name, (old, new) in without if new is not None and old is not None and old.numel() == 1]
    lost = [(name, new is None) for name, (_, new) in without if name not in zeroed]
    return {
        "mismatch": None,
        "gradient": gradient.report(),
        "update": update.report(),
        "off": (gradient.off, update.off),
        "updates": sorted(off, key=lambda row: max(row[1], tolerances.distance(row[2])), reverse=True)[:3],
        "parameters": worst if every else worst[:3],
        "lost": lost[:3],
        "lost_count": len(lost),
        "zeroed": zeroed,
        "not_finite": not_finite[:3],
        "drift": _drift(before_pairs, same_before),
        "buffers": _compare_buffers(held, buffers),
        "unequal": {
            "gradient": _first_false(names, same_gradient),
            "value before the step": _first_false(names, same_before),
            "value after the step": _first_false(names, same_after),
            "buffer": _first_unequal(held, buffers),
        },
    }


def _is_felt(update: products.Products, after: Tensor) -> bool:
    """Whether two updates lie further apart than by what writing them into numbers of this size rounds."""
    if not update.apart:
        return False
    stored = after.is_floating_point() or after.is_complex()
    size = math.sqrt(products.of(after, after, equal=True).old) * torch.finfo(after.dtype).eps if stored else 0.0
    return not update.difference <= tolerances.STORED * size


def _first_false(names: Sequence[str], equal: Sequence[bool]) -> str | None:
    return next((name for name, one in zip(names, equal, strict=True) if not one), None)


def _first_unequal(old: dict[str, Tensor], new: dict[str, Tensor]) -> str | None:
    return next((name for name, one in old.items() if name not in new or not products.same(one, new[name])), None)


def _drift(pairs: Sequence[tuple[Tensor, Tensor]], equal: Sequence[bool]) -> float:
    """How far the values lay apart before the step, as a share of their length."""
    if all(equal):
        return 0.0
    whole = products.total(products.of(a, b, equal=one) for (a, b), one in zip(pairs, equal, strict=True))
    return whole.difference / max(whole.norm, 1e-30)


def _details(
    names: Sequence[str], each: Sequence[products.Products], whole: float
) -> list[tuple[str, float, float, float, float]]:
    """(name, angle, ratio, difference as a share of the whole, weight as a share of the whole), by parameter."""
    scale = max(whole, 1e-30)
    return [
        (name, one.angle, one.ratio, one.difference / scale, one.norm / scale)
        for name, one in zip(names, each, strict=True)
    ]


def _named_as(reference: dict[str, Tensor], candidate: dict[str, Tensor]) -> dict[str, Tensor]:
    """Buffers by the reference's names: in their order where a module around them changes what they are called."""
    if len(reference) != len(candidate) or reference.keys() == candidate.keys():
        return candidate
    return dict(zip(reference, candidate.values(), strict=True))


def _compare_buffers(old: dict[str, Tensor], new: dict[str, Tensor]) -> list[tuple[str, float]]:
    """(name, relative error) of the buffers, the worst first.

    The running mean and variance of one module are judged together: a mean near zero has no scale of its own.
    """
    groups: dict[str, list[str]] = {}
    for name in old:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    rows = []
    for names in groups.values():
        scale = sum(float(old[name].double().norm()) ** 2 for name in names if old[name].is_floating_point()) ** 0.5
        for name in names:
            if name not in new or new[name].shape != old[name].shape:
                rows.append((name, float("inf")))
            elif old[name].is_floating_point():
                difference = float((old[name].double() - new[name].double()).norm())
                rows.append((name, difference / max(scale, 1e-12) if difference else 0.0))
            else:
                rows.append((name, 0.0 if torch.equal(old[name], new[name]) else float("inf")))
    return sorted(rows, key=lambda row: row[1], reverse=True)[:3]


def lend(optimizer: Any, moment: Moment, reference: Moment) -> list[tuple[Tensor, Tensor]]:
    """Put the original's gradients in place of the optimizer's own; return what ``give_back`` needs."""
    pairs, _ = match(reference.names, moment.names)
    parameters = parameters_of(optimizer)
    scale = getattr(optimizer, "grad_scale", None)
    lent = []
    for ours, theirs in pairs:
        own, other = parameters[theirs].grad, reference.gradients[ours]
        if own is None or other is None or own.is_sparse or own.shape != other.shape:
            continue
        lent.append((own, own.detach().clone()))
        moment.lent.add(theirs)
        own.detach().copy_(_share(other if scale is None else other * float(scale), own))
    return lent


def give_back(lent: Sequence[tuple[Tensor, Tensor]]) -> None:
    for own, kept in lent:
        own.detach().copy_(kept)


def reset(optimizer: Any, names: Sequence[str], buffers: dict[str, Tensor], reference: Moment) -> None:
    """Set parameters and buffers to what the original has after this step."""
    pairs, _ = match(reference.names, names)
    parameters = parameters_of(optimizer)
    with torch.no_grad():
        for ours, theirs in pairs:
            if parameters[theirs].shape == reference.after[ours].shape:
                parameters[theirs].copy_(_share(reference.after[ours], parameters[theirs]))
        for name, buffer in _named_as(reference.buffers, buffers).items():
            value = reference.buffers.get(name)
            if value is not None and value.shape == buffer.shape:
                buffer.copy_(value)


def disturb(optimizer: Any, step: int) -> None:
    """Move every weight by as much as rounding it to bfloat16 may: at most 2⁻⁹ of itself, at random."""
    with torch.no_grad():
        for place, parameter in enumerate(parameters_of(optimizer)):
            if parameter.is_floating_point():
                chance = torch.Generator().manual_seed(step * 100_003 + place)  # the script's own stays where it is
                noise = torch.rand(parameter.shape, generator=chance).mul_(2).sub_(1).mul_(tolerances.ROUNDING)
                parameter.add_(parameter * _share(noise.to(parameter.device, parameter.dtype), parameter))


def advance(optimizer: Any, names: Sequence[str], reference: Moment) -> None:
    """Take the original's step where the candidate's scaler skipped its own: the optimizer's state keeps pace."""
    pairs, _ = match(reference.names, names)
    parameters = parameters_of(optimizer)
    kept = [parameter.grad for parameter in parameters]
    for ours, theirs in pairs:
        gradient = reference.gradients[ours]
        parameter = parameters[theirs]
        parameter.grad = None if gradient is None else _share(gradient.to(parameter.device, parameter.dtype), parameter)
    type(optimizer).step(optimizer)
    for parameter, gradient in zip(parameters, kept, strict=False):
        parameter.grad = gradient
