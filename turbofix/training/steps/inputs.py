"""What a loop reads, and where it computes: its loaders, its device, its autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turbofix.dataflow.facts import Frame, unwrapped
from turbofix.dataflow.placements import UNKNOWN_PLACE
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Iterated, Made, Mapping, Opaque, Sequence, Tensor, Unknown, Value, members
from turbofix.source.answers import once_per_node
from turbofix.source.names import body_of, names_of
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.data.loaders import loader_sites
from turbofix.training.model import Model, Placement, Transfer
from turbofix.training.precision import autocasts_around
from turbofix.training.steps.acts import is_model
from turbofix.training.steps.regions import no_grad


def loaders_read(analysis: Analysis, sources: list[Value | None], events: list[Event]) -> list[Site]:
    """The loaders that a loop reads: by what it runs over, else by where the batches that it moves come from."""
    found = {site for value in sources for site in loader_sites(analysis, value)}
    if not found:
        for event in events:
            if event.kind == "transfer":
                for member in members(event.receiver):
                    if isinstance(member, Tensor) and "batch" in member.roles:
                        found.update(loader_sites(analysis, member.source))
    return sorted(found)


def source_of(values: list[Value | None], events: Iterable[Event] = (), loaders_read: Iterable[Site] = ()) -> str:
    """Where data come from; ``events`` tell of models that are fed tensors which no iteration gave."""
    kinds: set[str] = set()
    for value in values:
        for member in unwrapped(value):
            if isinstance(member, Made) and member.kind == "loader":
                kinds.add("loader")
            elif isinstance(member, Instance):
                base = member.base
                kinds.add("loader" if base is not None and base.kind == "loader" else "custom")
            elif isinstance(member, Made) and member.kind == "dataset":
                kinds.add("custom")
            elif isinstance(member, Iterated) and member.wrapper == "generator":
                kinds.add("generator")
            elif isinstance(member, Sequence) and member.kind == "list":
                kinds.add("list")
            elif isinstance(member, Tensor):
                kinds.add("tensors")
            elif isinstance(member, (Opaque, Mapping)) or (isinstance(member, Unknown) and not member.number):
                kinds.add("unknown")
    for kind in ("loader", "generator", "custom", "tensors", "list", "unknown"):
        if kind in kinds:
            return kind
    if any(True for _ in loaders_read):
        return "loader"
    fed = any(
        tensor_in(event)
        for event in events
        if event.kind == "forward" or (event.kind == "unknown_call" and is_model(event.receiver))
    )
    return "tensors" if fed else "none"


def device_of(
    analysis: Analysis,
    moved: tuple[Transfer, ...],
    called: list[Site],
    known: tuple[Model, ...],
    scope: tuple[ast.AST, ModuleFile],
) -> Placement:
    """Where the forward pass runs: where its batches are moved to, else where its models are.

    ``scope`` is where the answer's texts must be valid: the function (or module) that holds the forward pass.
    """
    placements = [
        each.to
        for kinds in (("batch", "object"), ("input", "made", "unknown"))
        for each in moved
        if each.what in kinds and not each.dtype_only and each.to.where in ("cuda", "conditional")
    ]
    modelled = [model.device for model in known if model.site in called]
    for where in ("conditional", "cuda", "unknown", "cpu"):
        placements += [placement for placement in modelled if placement.where == where]
    if not placements:
        return UNKNOWN_PLACE
    best = placements[0]
    other = any(placement.mps for placement in placements)
    tests = (each.test for each in placements if each.where == best.where and each.test is not None)
    test = next((each for each in tests if _valid(analysis, each, scope)), None)
    kinds = ("device", "string", "index", "tensor", "unknown")
    for placement in sorted(placements, key=lambda each: kinds.index(each.text_kind)):
        if placement.where == best.where and placement.text is not None and _valid(analysis, placement.text, scope):
            return Placement(best.where, placement.text, placement.text_kind, test, best.tests, other)
    name = _device_name(analysis, scope) if best.reaches_cuda else None
    return Placement(best.where, name, "device" if name else "unknown", test, best.tests, other)


def _valid(analysis: Analysis, text: str, scope: tuple[ast.AST, ModuleFile]) -> bool:
    """Whether a source text means something in a function: its names are the function's own, or the module's."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    node, module = scope
    bindings = analysis.facts.bindings
    holders = [node, *(each for each in analysis.facts.places.ancestors(node, module)), module.tree]
    for name in walk(tree):
        if isinstance(name, ast.Name) and not any(
            bindings.is_local(name.id, each) for each in holders if isinstance(each, (*FUNCTIONS, ast.Module))
        ):
            return False
    return True


def _device_name(analysis: Analysis, scope: tuple[ast.AST, ModuleFile]) -> str | None:
    """A name of the function or its module that holds a device, and nothing else ever."""
    node, module = scope
    frame = Frame(node, module, node, None, ())
    for holder in dict.fromkeys((node, module.tree)):
        for name in _set_once(holder):
            value = analysis.facts.named(name, holder, frame)
            found = members(value)
            if found and all(
                isinstance(each, Made) and each.kind == "device" and each.device != "cpu" for each in found
            ):
                return name
    return None


@once_per_node
def _set_once(scope: ast.AST) -> tuple[str, ...]:
    """The names of a function or file that are its parameters or are assigned to, in one place at most."""
    names = names_of(scope)
    stored = {
        target.id
        for statement in body_of(scope)
        for target in walk(statement)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    }
    own = names.parameters | (stored & names.writes.keys())
    return tuple(sorted(name for name in own - names.outer if len(names.writes.get(name, ())) <= 1))


def autocast_of(analysis: Analysis, events: list[Event]) -> Site | None:
    """An autocast region around a forward pass, or inside it, or what may be one; those with a graph first."""
    quiet: set[Site] = set()
    found: set[Site] = set()
    for event in events:
        if event.kind in ("forward", "criterion", "unknown_call"):
            sites = autocasts_around(analysis, event)
            (quiet if no_grad(event) else found).update(sites)
        elif event.kind == "enter" and "autocast" in _kinds(event.receiver):
            quiet.add(analysis.facts.site(event))
    return min(found) if found else min(quiet) if quiet else None


def _kinds(value: Value | None) -> set[str]:
    """The kinds of the objects that a value can be."""
    return {member.kind for member in members(value) if isinstance(member, Made)}


def tensor_in(event: Event) -> bool:
    if event.arguments is None:
        return False
    return any(isinstance(member, Tensor) for value in event.arguments.values() for member in members(value))
