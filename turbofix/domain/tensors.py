"""Where tensors are and what they are used as: what a device argument means, and what comes out of an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turbofix.domain.trace import Arguments
from turbofix.domain.values import (
    NUMBER,
    Computed,
    Const,
    Device,
    External,
    Function,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Option,
    Origin,
    Sequence,
    Tensor,
    Unknown,
    Value,
    held_in,
    is_number,
    join,
    join_devices,
    members,
)
from turbofix.library import tables as libraries
from turbofix.library.rows import cuts_graph, shares_memory
from turbofix.library.tables import NAMES

NO_ROLES: frozenset[str] = frozenset()
DTYPES = frozenset(
    "torch." + name
    for name in libraries.words(
        """
        float16 float32 float64 bfloat16 half float double int8 int16 int32 int64 uint8 short int long bool
        complex64 complex128 cfloat cdouble float8_e4m3fn float8_e5m2 dtype dtype.*
        """
    )
)
ANY_DTYPE = External("torch.dtype.*")
_RANK: dict[Device, int] = {"cpu": 0, "unknown": 1, "conditional": 2, "cuda": 3}


def is_dtype(value: Value | None) -> bool:
    """Whether it is a dtype and nothing else."""
    return value is not None and all(
        type(member) is External
        and (member.qualname in DTYPES or (member.qualname.startswith("torch.") and member.qualname.endswith("Tensor")))
        for member in members(value)
    )


def is_layout(value: Value | None) -> bool:
    """Whether it is a memory format."""
    return value is not None and all(
        type(member) is External
        and member.qualname in ("torch.channels_last", "torch.channels_last_3d", "torch.contiguous_format")
        for member in members(value)
    )


def device_meant(value: Value | None) -> Device:
    """Where a tensor goes that is sent to ``value``: a device, a string, an index, a tensor."""
    place: Device | None = None
    chosen = is_chosen_outside(value)
    for member in members(value):
        if type(member) is Const and member.value is None:
            continue
        here = "conditional" if chosen and type(member) is Opaque else _device_meant(member)
        place = here if place is None else join_devices(place, here)
    return place or "unknown"


def is_chosen_outside(value: Value | None) -> bool:
    """Whether a device is what a caller of the program asks for, and else a GPU or the CPU, as the program finds it.

    As in ``def pick(wanted): return wanted or ("cuda" if torch.cuda.is_available() else "cpu")``.
    """
    asked = [member for member in members(value) if type(member) is Opaque]
    found = {member.value for member in members(value) if type(member) is Const}
    return {"cuda", "cpu"} <= found and all(each.how in ("parameter", "attribute") for each in asked)


def _device_meant(value: Value) -> Device:
    if isinstance(value, (Made, Tensor)):
        return value.device
    if type(value) is Const:
        if isinstance(value.value, str):
            return "cuda" if value.value.startswith("cuda") else "cpu"
        return "cuda" if isinstance(value.value, int) and not isinstance(value.value, bool) else "unknown"
    if type(value) is Option:
        return "conditional"
    if type(value) is Computed:
        return "conditional" if value.name.startswith("torch.accelerator") else "cuda"
    if type(value) is External and value.qualname.startswith("torch.cuda."):
        return "cuda"
    return "cuda" if value is NUMBER else "cpu" if is_dtype(value) else "unknown"


_SINGLE = frozenset({Const, Opaque, Unknown, External, Instance, Made, Option, Function, Computed})
"""What most values are that are passed: nothing that holds tensors, nor numbers read from them."""


def tensors_in(value: Value | None, depth: int = 3, kind: type[Value] = Tensor) -> Iterator[Any]:
    """The tensors, or values of another kind, that a value can be, or holds in its tuples and dicts."""
    for member in members(value):
        if type(member) is kind:
            yield member
        elif depth and isinstance(member, (Sequence, Mapping, Iterated)):
            for each in held_in(member):
                yield from tensors_in(each, depth - 1, kind)


def tensors_passed(arguments: Arguments) -> list[Tensor]:
    """The tensors among the arguments."""
    found: list[Tensor] = []
    for value in arguments.values():
        if type(value) is Tensor:
            found.append(value)
        elif type(value) not in _SINGLE:
            found += tensors_in(value)
    return found


def hosts_passed(arguments: Arguments) -> list[Host]:
    """The values read from tensors among the arguments."""
    return [host for value in arguments.values() if type(value) not in _SINGLE for host in tensors_in(value, 2, Host)]


def elements_passed(arguments: Arguments) -> bool:
    """Whether something that came out of an unknown iterable is passed: it may be a batch."""
    for value in arguments.values():
        for member in members(value):
            if type(member) is Opaque and member.how == "element":
                return True
    return False


def roles_of(tensors: list[Tensor]) -> frozenset[str]:
    """The roles of all of them."""
    return NO_ROLES.union(*[tensor.roles for tensor in tensors])


def device_of(tensors: list[Tensor], default: Device = "unknown") -> Device:
    """Where an operation on these tensors leaves its result: they must be in one place, the surest counts."""
    place: Device | None = None
    for tensor in tensors:
        if place is None or _RANK[tensor.device] > _RANK[place]:
            place = tensor.device
    return place or default


def surest(first: Device, second: Device) -> Device:
    """The place that is known better, of two that must be the same."""
    return first if _RANK[first] >= _RANK[second] else second


def result_of(tensors: list[Tensor], origin: Origin, name: str = "") -> Tensor:
    """What an operation makes of these tensors (one at least); ``name`` is that of a function or method.

    The result of all but views and operations in place is a new tensor in memory that is not pinned.
    """
    first = tensors[0]
    made = changed(first, origin, foreign=False)
    made.pageable = name != "pin_memory" and (first.pageable or not shares_memory(name))
    made.scalar = name in _KEEP_SCALAR and first.scalar
    if len(tensors) == 1:
        made.detached = first.detached or name == "bernoulli" or cuts_graph(name)
        return made
    cut = True
    for tensor in tensors:
        made.source = tensor.source if made.source is None else made.source
        made.scaled_from = tensor.scaled_from if made.scaled_from is None else made.scaled_from
        made.detached = made.detached or tensor.detached
        cut = cut and (tensor.detached or _is_data(tensor))
        made.half = made.half or tensor.half
        made.scalar = made.scalar and tensor.scalar
    made.detached = made.detached and cut
    made.roles, made.device = roles_of(tensors), device_of(tensors)
    return made


def _is_data(tensor: Tensor) -> bool:
    """Whether it comes from a data set alone, so that it has no graph."""
    return bool(tensor.roles) and tensor.roles <= {"batch", "data"}


_KEEP_SCALAR = NAMES["keep_scalar"]


def changed(tensor: Tensor, origin: Origin | None = None, **fields: Any) -> Tensor:
    """The tensor with other fields."""
    made = Tensor(
        tensor.roles,
        tensor.device,
        origin or tensor.origin,
        tensor.source,
        tensor.detached,
        tensor.pageable,
        tensor.scaled_from,
        tensor.half,
        tensor.scalar,
        tensor.foreign,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def moved(tensor: Tensor, device: Device, origin: Origin) -> Tensor:
    """The tensor after it was sent somewhere."""
    return changed(tensor, origin, device=device, pageable=False)


def part_of(tensor: Tensor, roles: frozenset[str], origin: Origin) -> Tensor:
    """An attribute or item of what a model returned: a tensor, where the whole may be an object that holds some."""
    half = tensor.half and "loss" not in roles  # such a model computes its own loss in float32
    return changed(tensor, origin, roles=(tensor.roles | roles) - {"object"}, scalar=False, half=half, foreign=False)


def cast(tensor: Tensor, origin: Origin) -> Tensor:
    """The tensor with another dtype: a new one, in memory that is not pinned."""
    return changed(tensor, origin, pageable=True, half=False, foreign=False)


def with_roles(tensor: Tensor, roles: frozenset[str], origin: Origin | None = None) -> Tensor:
    """The tensor with these roles added."""
    foreign = tensor.foreign and origin is None  # an item or attribute of it has a place of its own
    return changed(tensor, origin, roles=tensor.roles | roles, foreign=foreign)


def unknown_of(tensors: list[Tensor], origin: Origin) -> Tensor:
    """What an unknown call may make of these tensors: as a model or a loss would, in memory of its own."""
    half = any(tensor.half for tensor in tensors)
    roles = roles_of(tensors) | {"maybe_output"}
    return Tensor(roles, device_of(tensors), origin, pageable=True, half=half, foreign=True)


def in_precision(tensor: Tensor, name: str) -> Tensor:
    """What an operation of that name makes of its operands' precision under autocast, given what it made otherwise."""
    half, last = libraries.precision_of(name, half=tensor.half), name.rpartition(".")[2]
    if last in NAMES["makes_complex"]:
        return changed(tensor, roles=tensor.roles | {"complex"}, half=half, foreign=False)
    if last in NAMES["makes_real"] and "complex" in tensor.roles:
        return changed(tensor, roles=tensor.roles - {"complex"}, half=half, foreign=False)
    return tensor if half == tensor.half else with_half(tensor, half)


def with_half(tensor: Tensor, half: bool) -> Tensor:
    """The tensor, in 16 bits under autocast or in the 32 that it has otherwise."""
    return changed(tensor, half=half, foreign=False)


def detached(tensor: Tensor, origin: Origin) -> Tensor:
    """The tensor cut from its graph."""
    return changed(tensor, origin, detached=True, foreign=False)


def scaled(loss: Value, origin: Origin) -> Tensor:
    """A loss multiplied by a gradient scaler."""
    found = [member for member in members(loss) if type(member) is Tensor]
    return Tensor(roles_of(found) | {"loss"}, found[-1].device if found else "unknown", origin, scaled_from=loss)


def is_scalar(value: Value | None) -> bool:
    """Whether a value certainly has no dimension: one of torch's tensors without any, or a number."""
    for each in members(value):
        if not (each.scalar if type(each) is Tensor else is_number(each)):
            return False
    return value is not None


def reduces_all(arguments: Arguments | None) -> bool:
    """Whether a loss of torch's, made or called with these arguments, sums up all its items to one number.

    It does unless ``reduction`` or one of its forerunners says otherwise; a position may hold any of them.
    """
    if arguments is None or arguments.open or arguments.star or len(arguments.positions) > _PLAIN_POSITIONS:
        return False
    reduction, reduce = arguments.keywords.get("reduction"), arguments.keywords.get("reduce")
    if reduction is not None and not _is_one_of(reduction.value, "mean", "sum", "batchmean"):
        return False
    return reduce is None or _is_one_of(reduce.value, True, None)


_PLAIN_POSITIONS = 3
"""Input, target and a weight (or a third input) of a function; a module is made with one position at most."""


def _is_one_of(value: Value, *constants: object) -> bool:
    return all(type(each) is Const and each.value in constants for each in members(value))


def read_on_host(value: Value | None, origin: Origin) -> Host:
    """What reading the tensors of a value gives."""
    tensor: Value | None = None
    for each in tensors_in(value):
        tensor = join(tensor, each)
    return Host(tensor if type(tensor) is Tensor else None, (origin,))


def joined_hosts(hosts: list[Host]) -> Host:
    """What arithmetic on read values gives."""
    joined: Value | None = None
    for host in hosts:
        joined = join(joined, host)
    assert type(joined) is Host
    return joined
