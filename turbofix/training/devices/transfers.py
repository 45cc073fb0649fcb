"""What moves between host and device: ``.to(...)``, ``.cuda()``, ``.cpu()``, by what the moved thing is used as."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from turbofix.dataflow.facts import unwrapped
from turbofix.dataflow.placements import is_dtype
from turbofix.dataflow.provenance import argument_from, reads_in
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Const,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Sequence,
    Tensor,
    Unknown,
    Value,
    members,
)
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.training.data.loaders import loader_sites
from turbofix.training.model import ABSENT, ALWAYS, Transfer
from turbofix.training.steps.acts import is_model, wider

_ROLES = ("param", "output", "batch", "input", "made")


def moved(analysis: Analysis, value: Value | None, loaders: Iterable[Site]) -> tuple[str, Site | None, bool]:
    """What a transfer moves, the loader that it comes from, and whether it lies in pageable memory."""
    found: list[str] = []
    sources: set[Site] = set()
    pageable: list[bool] = []
    for member in members(value):
        if isinstance(member, Const):
            continue
        if isinstance(member, Tensor):
            found.append(_role(member))
            pageable.append(member.pageable)
            sources.update(loader_sites(analysis, member.source))
        elif is_model(member) or (isinstance(member, Made) and member.kind == "criterion"):
            found.append("model")
        elif isinstance(member, (Instance, Mapping, Sequence, Made)):
            found.append("object")
            sources.update(loader_sites(analysis, member.source if isinstance(member, Opaque) else None))
        elif isinstance(member, Opaque):
            what, site = _opaque(analysis, member)
            found.append(what)
            sources.update([site] if site is not None else [])
        elif isinstance(member, (Host, Iterated)):
            found.append("unknown")
        else:
            found.append("unknown")
    kinds = set(found)
    if "unknown" in kinds and len(kinds) > 1:
        kinds.discard("unknown")  # the same expression was seen as something: an unknown beside it is a blank path
    what = kinds.pop() if len(kinds) == 1 else "unknown"
    known = set(loaders)
    source = sources & known or sources
    return what, (next(iter(source)) if len(source) == 1 else None), bool(pageable) and all(pageable)


def _role(tensor: Tensor) -> str:
    roles = tensor.roles
    if roles & {"param", "grad"}:
        # what was computed from parameters and data (`F.linear(x, weight)`) is an output
        return "output" if roles & {"output", "loss", "prediction", "batch", "input"} else "param"
    if roles & {"output", "loss", "prediction"}:
        return "output"
    if "batch" in roles and "maybe_output" in roles:
        return "unknown"  # an unknown call was given the batch: what it gives is its own (a sampler's subgraph)
    if "batch" in roles:
        return "unknown" if "object" in roles else "batch"  # a collate function's call made it that is not seen through
    if "input" in roles:
        return "input"
    if "made" in roles or "data" in roles:
        return "made"
    return "unknown"


def _opaque(analysis: Analysis, value: Opaque, depth: int = 6) -> tuple[str, Site | None]:
    """An unknown object that comes out of a loader is an object of the batch, with a ``to`` of its own."""
    sites = loader_sites(analysis, value.source)
    if sites:
        return ("batch" if value.how == "element" and value.depth > 1 else "object"), sites[0]
    source = value.source
    if depth and isinstance(source, Opaque):
        return _opaque(analysis, source, depth - 1)
    return "unknown", None


_BUILDERS = frozenset(("stack", "cat", "concat", "tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor"))
_CASTS = frozenset(("float", "double", "half", "long", "int", "type"))


def _is_built_here(node: ast.AST) -> bool:
    """Whether what is moved is put together in the same expression, from the parts of a batch: pageable memory."""
    moved = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if not isinstance(moved, ast.Call):
        return False
    if isinstance(moved.func, ast.Attribute) and moved.func.attr in _CASTS:
        return True  # `x.float().to(device)`: the cast is a new tensor
    return (dotted(moved.func) or "").rpartition(".")[2] in _BUILDERS


def _cast(analysis: Analysis, node: ast.AST) -> ast.Call | None:
    """The cast before a copy, ``x.float()``, where ``x`` is a part of a batch as its loaders made it."""
    cast = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if not isinstance(cast, ast.Call) or not isinstance(cast.func, ast.Attribute) or cast.args or cast.keywords:
        return None
    asked = (event for event in analysis.facts.at(cast) if event.kind in ("call", "cast"))
    given = [each for event in asked for each in members(event.receiver) if not isinstance(each, Unknown)]
    made = [isinstance(each, Tensor) and not each.pageable and loader_sites(analysis, each.source) for each in given]
    return cast if cast.func.attr in _CASTS and made and all(made) else None


def _likely(analysis: Analysis, value: Value | None, loop: ast.AST) -> Literal["batch", "output"] | None:
    """What an unknown is by its use: an element of what the loop runs over, or what an unknown call made of tensors."""
    iterated = {
        id(member)
        for record in analysis.execution.loops
        if record.node is loop
        for member in unwrapped(record.iterated)
    }
    found = set()
    for member in members(value):
        if isinstance(member, Tensor) and {"batch", "object"} <= member.roles:
            found.add("batch")
        elif isinstance(member, Tensor) and member.roles == {"maybe_output"}:
            found.add("output")
        elif isinstance(member, Opaque):
            source: Value | None = member
            while isinstance(source, Opaque) and source.how != "call":
                source = source.source
                if id(source) in iterated:
                    found.add("batch")
                    break
    return found.pop() if len(found) == 1 else None  # type: ignore[return-value]


def transfer_of(
    analysis: Analysis, event: Event, loop: ast.AST, loaders: Iterable[Site], *, in_step: bool
) -> Transfer | None:
    """The transfer at an event; None for what moves nothing (memory formats, casts of no tensor)."""
    name = event.name.rpartition(".")[2]
    method = name if name in ("to", "cuda", "cpu", "type") else "other"
    arguments = event.arguments
    dtype_only = event.kind == "cast"
    if arguments is not None and method == "to":
        first = arguments.get("device", 0)
        if first is None:
            if "dtype" not in arguments.keywords:
                return None
            dtype_only = True
        elif is_dtype(first.value):
            dtype_only = arguments.get("device", 1) is None
    what, loader, pageable = moved(analysis, event.receiver, loaders)
    cast = _cast(analysis, event.node)
    if what in ("batch", "input") and _is_used_as_mapping(analysis, event):
        what = "object"
    position = {"to": 2, "cuda": 1, "type": 1}.get(method)
    passed = arguments.get("non_blocking", None) if arguments is not None else None
    if passed is None and arguments is not None and position is not None and not dtype_only:
        # .to(device, dtype, non_blocking), .to(device, non_blocking) is not a form; .cuda(device, non_blocking);
        # .type(torch.cuda.FloatTensor, non_blocking)
        passed = arguments.get("non_blocking", position)
    non_blocking = argument_from(passed, event.module, analysis.facts, analysis.reads) if passed is not None else ABSENT
    placement = analysis.devices.of_transfer(event)
    pageable = (pageable or _is_built_here(event.node)) and not _pinned(event.node)
    return Transfer(
        site=analysis.facts.site(event),
        method=method,  # type: ignore[arg-type]
        what=what,  # type: ignore[arg-type]
        to=placement,
        non_blocking=non_blocking,
        guard=analysis.guards.guard(event, loop) if loop is not None else ALWAYS,
        dtype_only=dtype_only,
        again=_is_there(event.receiver) and placement.where != "cpu",
        pageable=pageable,
        cast=_cast_apart(analysis, event, cast) if pageable and cast is not None and not placement.mps else None,
        loader=loader,
        likely=_likely(analysis, event.receiver, loop) if what == "unknown" else None,
        in_step=in_step,
    )


def _cast_apart(analysis: Analysis, event: Event, cast: ast.Call) -> tuple[Site, Site, str]:
    """A cast, what it is called on, and its text behind that."""
    assert isinstance(cast.func, ast.Attribute)
    site = analysis.facts.places.site
    return site(cast, event.module), site(cast.func.value, event.module), f".{cast.func.attr}()"


def _is_used_as_mapping(analysis: Analysis, event: Event) -> bool:
    """Whether what is moved by its name is read by keys or unpacked in the same function, as no tensor can be.

    Encodings of a tokenizer are; their ``to`` takes ``non_blocking`` only in newer versions.
    """
    node, places = event.node, analysis.facts.places
    base = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if not isinstance(base, ast.Name):
        return False
    scope = places.scope(base, event.module)
    for name in reads_in(event.module.tree).names.get(base.id, ()):
        parent = places.parent(name, event.module)
        if isinstance(parent, ast.Subscript):
            by_key = isinstance(parent.slice, ast.Constant) and isinstance(parent.slice.value, str)
        else:
            by_key = isinstance(parent, ast.keyword) and parent.arg is None
        if by_key and places.scope(name, event.module) is scope:
            return True
    return False


def _is_there(value: Value | None) -> bool:
    """Whether what is moved is on the device already, by an earlier transfer."""
    found = members(value)
    return bool(found) and all(isinstance(each, Tensor) and each.device in ("cuda", "conditional") for each in found)


def _pinned(node: ast.AST) -> bool:
    """``x.pin_memory().to(device)``."""
    base = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr == "pin_memory"


def transfers(
    analysis: Analysis, events: list[Event], loop: ast.AST, loaders: Iterable[Site], *, in_step: bool
) -> tuple[Transfer, ...]:
    """The transfers in a loop, one for each place, in the order of the text."""
    found: dict[Site, Transfer] = {}
    for event in events:
        if event.kind not in ("transfer", "cast"):
            continue
        transfer = transfer_of(analysis, event, loop, loaders, in_step=in_step)
        if transfer is None:
            continue
        known = found.get(transfer.site)
        found[transfer.site] = transfer if known is None else _merged(known, transfer)
    return tuple(found[site] for site in sorted(found))


def _merged(first: Transfer, second: Transfer) -> Transfer:
    """What a place moves at several times: batches, where a helper moves them, and what the step makes, too."""
    what, likely, pageable = first.what, first.likely, first.pageable and second.pageable
    loader = first.loader if first.loader == second.loader else None
    batches = [each for each in (first, second) if "batch" in (each.what, each.likely)]
    if second.what != first.what:
        if first.what == "unknown":
            what, pageable = second.what, second.pageable
        elif second.what != "unknown":
            what = "unknown"
        else:
            pageable = first.pageable  # what is not known is a blank path: it says nothing of the memory either
    if len(batches) == 1 and what == "unknown":
        likely, loader, pageable = "batch", batches[0].loader, batches[0].pageable
    elif what != "unknown" or first.likely != second.likely:
        likely = None
    return replace(
        first,
        what=what,
        likely=likely,
        guard=wider(first.guard, second.guard),
        dtype_only=first.dtype_only and second.dtype_only,
        pageable=pageable,
        again=first.again and second.again,
        cast=first.cast if first.cast == second.cast else None,
        loader=loader,
        to=first.to
        if first.to == second.to
        else replace(first.to, where="unknown" if "unknown" in (first.to.where, second.to.where) else "conditional"),
    )
