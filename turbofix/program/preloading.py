"""Tensors in memory that loaders hand out sample by sample, and whether their batches could come from the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.findings import Site
from turbofix.nodes import children, walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node
from turbofix.program.contents import change_after
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import unwrapped
from turbofix.program.libraries import words
from turbofix.program.loaders import loader_sites
from turbofix.program.model import Loader, Preload
from turbofix.program.names import dotted, loads, parameters, targets
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS
from turbofix.program.values import (
    Bound,
    Class,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Opaque,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.records import dataclass

TENSORS = "torch.utils.data.TensorDataset"
_PARTS = frozenset(("torch.utils.data.random_split", "torch.utils.data.Subset"))
_READERS = frozenset((*_PARTS, "torch.utils.data.DataLoader", "builtins.len"))
"""What may be given the data."""
_SAMPLERS = ("torch.utils.data", "torch.utils.data.sampler", "torch.utils.data.distributed")
_PLAIN_USES = frozenset(("dataset", "iter", "len", "__len__", "passed"))
_AROUND = frozenset(("enumerate", "iter"))
_HARMLESS = ("len", "enumerate", "iter", "zip", "print")
_SIZES = words("shape size dim ndim numel nelement dtype")
"""What is the same of a tensor wherever it is."""
_ON_THE_WAY = words("float double long int view reshape unsqueeze squeeze flatten")
"""Methods between a batch and its copy, which do the same on the device."""


@dataclass(eq=False)
class _Use:
    """One loader over the tensors: its event, what the model knows of it, and the data in its call."""

    event: Event
    loader: Loader
    data: ast.expr


def preloads(analysis: Analysis, loaders: Iterable[Loader]) -> tuple[Preload, ...]:
    """The tensors that are copied to a GPU batch by batch, in the order of the text."""
    loaders = tuple(loaders)
    taken = _taken_by_own(analysis, loaders)
    known = {loader.site: loader for loader in loaders if loader.dataset.kind == "tensors"}
    if not known:
        return taken
    uses: dict[int, list[_Use]] = {}
    data: dict[int, Made] = {}
    for event in analysis.facts.of("make"):
        loader = known.get(analysis.facts.site(event))
        passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
        if loader is None or passed is None or passed.node is None:
            continue
        sources = [_tensors_of(each) for each in members(passed.value)]
        source = sources[0] if len(sources) == 1 else None
        if source is not None:
            data[id(source)] = source
            uses.setdefault(id(source), []).append(_Use(event, loader, passed.node))
    reading = _reading(analysis)
    found = [_preload(analysis, made, uses[key], reading) for key, made in data.items()]
    kept = sorted((each for each in found if each is not None), key=lambda each: each.data)
    above: dict[Path, Site] = {}
    for each in kept:
        above[each.data.path] = min(each.helper, above.get(each.data.path, each.helper))
    return (*(replace(each, helper=above[each.data.path]) for each in kept), *taken)


# --- data sets of the program's own -------------------------------------------------------------------------------

_SAME_FOR_MANY = words(
    """
    float double half long int short bool to type astype copy clone contiguous unsqueeze squeeze view reshape
    """
)
"""Methods that do to a batch what they do to each of its samples, when told so."""
_TENSORS_OF = frozenset(("torch.from_numpy", "torch.tensor", "torch.as_tensor"))
_NOT_IN_MEMORY = ("memmap", "load", "open")


_PICTURES = frozenset(
    f"torchvision.datasets.{name}" for name in words("MNIST FashionMNIST KMNIST CIFAR10 CIFAR100 USPS")
)
_BY_HAND = (
    "its transforms make each picture anew: where they draw nothing by chance, go through the loader once before the "
    "training (`torch.stack`), and make a `TensorDataset` of what it gives"
)


def _taken_by_own(analysis: Analysis, loaders: Iterable[Loader]) -> tuple[Preload, ...]:
    """Data in memory that are taken by ``__getitem__``, the program's own or torchvision's: none is rewritten."""
    known = {loader.site: loader for loader in loaders if any(copy.to.reaches_cuda for copy in loader.copies)}
    found: dict[Site, Preload] = {}
    for site, each in known.items():
        if each.dataset.qualname in _PICTURES and not each.dataset.random and each.collate == "default":
            found[site] = Preload(site, "", None, ((site, None),), site, why_not=_BY_HAND)
    for event in analysis.facts.of("make"):
        loader = known.get(analysis.facts.site(event))
        passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
        if loader is None or passed is None or loader.argument("collate_fn").state != "absent" or loader.subclass:
            continue
        data = members(passed.value)
        if not data or not all(isinstance(each, Instance) and _only_takes(analysis, each) for each in data):
            continue
        name = next(each.cls.node.name for each in data if isinstance(each, Instance))
        why = (
            f"the script's own `{name}.__getitem__` takes them one by one: only the batches of a `TensorDataset` are "
            "taken as a whole"
        )
        site = loader.site
        found[site] = Preload(site, "", None, ((site, None),), site, why_not=why)
    return tuple(found[site] for site in sorted(found))


def _only_takes(analysis: Analysis, data: Instance) -> bool:
    """Whether ``__getitem__`` does nothing but to take a sample out of arrays in memory, at its index."""
    function = data.cls.find("__getitem__")
    if not isinstance(function, Function) or not isinstance(function.node, ast.FunctionDef) or function.decorators:
        return False
    node, given = function.node, [each.arg for each in parameters(function.node)]
    if len(given) != 2:
        return False
    *statements, last = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not isinstance(last, ast.Return) or last.value is None:
        return False
    if not all(isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) for each in statements):
        return False
    taken: set[str] = set()
    for part in (part for each in (*statements, last) for part in walk(each)):
        if isinstance(part, ast.Call):
            if _names_of_call(analysis, part) & _TENSORS_OF:
                continue
            if not isinstance(part.func, ast.Attribute) or part.func.attr not in _SAME_FOR_MANY:
                return False
        elif isinstance(part, ast.Subscript) and dotted(part.value) is not None:
            name = dotted(part.value) or ""
            if name.startswith(f"{given[0]}.") and name.count(".") == 1:
                taken.add(name.partition(".")[2])
        elif isinstance(part, (ast.IfExp, ast.Lambda, *COMPREHENSIONS, ast.Await, ast.Yield, ast.NamedExpr)):
            return False
    return bool(taken) and all(
        _is_in_memory(each) for name in taken for each in members(data.attributes.get(name)) or (None,)
    )


def _names_of_call(analysis: Analysis, call: ast.Call) -> set[str]:
    return {event.name for event in analysis.facts.at(call) if event.kind == "call"}


def _is_in_memory(value: Value | None) -> bool:
    """Whether a value is a tensor of the host, or an array that numpy makes there."""
    if isinstance(value, Tensor):
        return value.device == "cpu"
    if not isinstance(value, Opaque) or not value.name.startswith("numpy."):
        return False
    return not any(word in value.name for word in _NOT_IN_MEMORY)


def _tensors_of(value: Value, depth: int = 3) -> Made | None:
    """The ``TensorDataset`` that a data set is, or is a part of."""
    if not isinstance(value, Made) or not depth:
        return None
    if value.qualname == TENSORS:
        return value
    if value.qualname in _PARTS:
        passed = value.arguments.get("dataset", 0)
        inner = [_tensors_of(each, depth - 1) for each in members(passed.value)] if passed is not None else []
        return inner[0] if len(inner) == 1 else None
    return None


def _reading(analysis: Analysis) -> dict[Site, list[Event]]:
    """The loops that run through each loader, and the calls that ask it for a batch."""
    found: dict[Site, list[Event]] = {}
    for event in analysis.facts.of("iterate", "next"):
        for site in loader_sites(analysis, event.receiver):
            found.setdefault(site, []).append(event)
    return found


def _preload(analysis: Analysis, made: Made, uses: list[_Use], reading: dict[Site, list[Event]]) -> Preload | None:
    facts, call, module = analysis.facts, made.origin.node, made.origin.module
    events = [event for event in facts.at(call) if event.kind == "make"]
    moved = [copy for use in uses for copy in use.loader.copies if copy.to.reaches_cuda]
    if not moved or not isinstance(call, ast.Call) or len(events) != 1 or any(use.loader.built_in_loop for use in uses):
        return None
    if call.keywords or not call.args or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    given = [each for value in made.arguments.values() for each in flatten(value)]
    if any(isinstance(each, Tensor) and each.device != "cpu" for each in given):
        return None
    names = [name for each in call.args for name in loads(each)]
    sites = {copy.site for copy in moved}
    copies = [event for event in facts.of("transfer") if facts.site(event) in sites]
    moves = [(event, analysis.devices.of_transfer(event)) for event in copies]
    first, last = facts.places.site(call.args[0], module), facts.places.site(call.args[-1], module)
    device = analysis.devices.device_for(events[0], moves)
    return Preload(
        data=facts.places.site(call, module),
        tensors=_source(analysis, first, last, module),
        device=device,
        loaders=tuple((use.loader.site, _name_of_data(analysis, use, call)) for use in uses),
        helper=_place_of_helper(analysis, call, module),
        imports=tuple(_imports(analysis, {use.event.module.path: use.event.module for use in uses}.values())),
        why_not=(
            change_after(analysis, call, names, facts.frames(events[0]))
            or _is_used_otherwise(analysis, made, uses)
            or next(filter(None, (_is_read_on_host(analysis, use, sites, reading) for use in uses)), None)
            or ("the place where the data are made does not tell the device" if device is None else None)
        ),
    )


def _name_of_data(analysis: Analysis, use: _Use, made: ast.Call) -> str | None:
    """The source of the data in a loader's call; None where they are made in it."""
    inside = any(each is made for each in walk(use.data))
    return None if inside else analysis.facts.places.text(use.data, use.event.module)


def _imports(analysis: Analysis, modules: Iterable[ModuleFile]) -> Iterator[Site]:
    """The first statement of each file that imports single names of ``torch.utils.data``, at its top level."""
    for module in modules:
        for each in module.tree.body:
            ours = isinstance(each, ast.ImportFrom) and (each.module, each.level) == ("torch.utils.data", 0)
            if ours and all(alias.name != "*" for alias in each.names):  # type: ignore[attr-defined]
                yield analysis.facts.places.site(each, module)
                break


def _source(analysis: Analysis, first: Site, last: Site, module: ModuleFile) -> str:
    """The text from one expression to another one."""
    lines = analysis.facts.places.page(module).lines[first.line - 1 : last.end_line]
    lines[-1] = lines[-1][: last.end_column]
    lines[0] = lines[0][first.column :]
    return "\n".join(lines)


def _place_of_helper(analysis: Analysis, call: ast.AST, module: ModuleFile) -> Site:
    """The first function or class of the file above the call, else the statement of the file that holds it."""
    body = module.tree.body
    line: int = getattr(call, "lineno", 1)
    holding = next(each for each in reversed(body) if each.lineno <= line)
    first = next((each for each in body if isinstance(each, (*FUNCTIONS, ast.ClassDef))), holding)
    return analysis.facts.places.site(first if first.lineno < holding.lineno else holding, module)


def _is_used_otherwise(analysis: Analysis, made: Made, uses: list[_Use]) -> str | None:
    """What else the program does with the data or the loaders than to read batches."""
    facts = analysis.facts
    if any(each.uses - _PLAIN_USES for each in (made, *_all_of_it(uses))):
        return "the program reads an attribute of the data"
    own = {id(each) for each in _all_of_it(uses)} | {id(made)}
    readers = {id(member) for use in uses for member in members(use.event.result)}
    for use in uses:
        for member in members(use.event.result):
            if isinstance(member, Made) and (read := member.uses - _PLAIN_USES):
                return f"the program reads `{min(read)}` of a loader"
    for event in facts.of("call", "unknown_call", "make", "construct", "save", "index"):
        package, _, name = event.name.rpartition(".")
        if event.arguments is None or event.name in _READERS or (package in _SAMPLERS and name.endswith("Sampler")):
            continue
        given = {id(each) for value in event.arguments.values() for each in flatten(value)}
        if given & own or (given & readers and name not in ("len", "tqdm", "enumerate", "iter")):
            return f"{facts.site(event).line_from(made.origin.module.path)} hands the data or a loader on"
    if (call := _given_to_unknown(analysis, uses)) is not None:
        return f"line {call.lineno} hands the data or a loader on"
    for event in facts.of("iterate", "next"):
        if any(id(each) in own for each in unwrapped(event.receiver)):
            return "the program runs through the data itself"
    names = {dotted(use.data) for use in uses} | {use.loader.name for use in uses}
    for node in every(ast.Subscript, made.origin.module.tree):
        if dotted(node.value) in names - {None} and isinstance(node.ctx, ast.Load):
            return f"line {node.lineno} asks the data for an item"
    return None


@once_per_node
def _calls_by_argument(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """The calls of a file by the names that they are given."""
    found: dict[str, list[ast.Call]] = {}
    for call in every(ast.Call, tree):
        for each in (*call.args, *(keyword.value for keyword in call.keywords)):
            name = dotted(each)
            if name is not None:
                found.setdefault(name, []).append(call)
    return found


def _given_to_unknown(analysis: Analysis, uses: list[_Use]) -> ast.Call | None:
    """A call of what is not known that is given the data or a loader by its name, in the scope of the loader."""
    facts = analysis.facts
    by_scope: dict[tuple[str, ast.AST], list[ast.Call]] = {}
    names = {(dotted(use.data), use.event.module) for use in uses} | {
        (use.loader.name, use.event.module) for use in uses
    }
    for name, module in names:
        for call in _calls_by_argument(module.tree).get(name or "", ()):
            by_scope.setdefault((name or "", facts.places.scope(call, module)), []).append(call)
    for use in uses:
        frames = facts.frames(use.event)
        for name in {dotted(use.data), use.loader.name} - {None}:
            for call in by_scope.get((name or "", frames[-1].scope), ()):
                found = members(facts.evaluate(call.func, frames))
                known = bool(found) and all(isinstance(each, (External, Function, Bound, Class)) for each in found)
                if not known and not facts.at(call) and dotted(call.func) not in _HARMLESS:
                    return call
    return None


def _all_of_it(uses: list[_Use]) -> Iterator[Made]:
    """The data sets that loaders are given, and those inside them."""
    waiting: list[Value] = []
    for use in uses:
        passed = use.event.arguments.get("dataset", 0) if use.event.arguments is not None else None
        waiting += members(passed.value) if passed is not None else ()
    while waiting:
        each = waiting.pop()
        if isinstance(each, Made) and each.kind == "dataset":
            yield each
            passed = each.arguments.get("dataset", 0)
            if each.qualname in _PARTS and passed is not None:
                waiting += members(passed.value)


def _is_read_on_host(analysis: Analysis, use: _Use, copies: set[Site], reading: dict[Site, list[Event]]) -> str | None:
    """Where a batch is used as the loader hands it out, on the host."""
    facts = analysis.facts
    loops: dict[ast.For, ModuleFile] = {}
    for event in reading.get(use.loader.site, ()):
        if event.kind == "next" or not isinstance(event.node, ast.For):
            return f"{facts.site(event).line_from(use.loader.site.path)} asks the loader for a batch by itself"
        around = {each.wrapper for each in unwrapped(event.receiver) if isinstance(each, Iterated)}
        if not around <= _AROUND:
            return f"{facts.site(event).line_from(use.loader.site.path)} reads it together with something else"
        loops[event.node] = event.module
    if not loops:
        return "where its batches are read was not seen"
    for loop, module in loops.items():
        problem = _on_host(analysis, loop, module, copies)
        if problem is not None:
            name, node = problem
            where = facts.places.site(node, module).line_from(use.loader.site.path)
            return f"{where} uses `{name}` on the host, as the loader hands it out"
    return None


def _on_host(analysis: Analysis, loop: ast.For, module: ModuleFile, copies: set[Site]) -> tuple[str, ast.AST] | None:
    """A name of a batch, and where it is used before it was brought to the device."""
    target = loop.target
    if _counts(loop.iter) and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    waiting = {each.id for each in targets(target) if isinstance(each, ast.Name)}
    if len(waiting) != len(list(targets(target))):
        return "a part of the batch", loop
    moved: set[str] = set()
    for statement in loop.body:
        for node in walk(statement):
            changed = node.target if isinstance(node, ast.AugAssign) else None
            if isinstance(changed, ast.Name) and changed.id in waiting - moved:
                return changed.id, node
            used = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in waiting - moved
            if used and not _is_fine(analysis, node, module, copies):  # type: ignore[arg-type]
                return node.id, node  # type: ignore[attr-defined]
        if isinstance(statement, ast.Assign):
            unpacked = isinstance(statement.value, ast.Name) and statement.value.id in waiting - moved
            names = {each.id for one in statement.targets for each in targets(one) if isinstance(each, ast.Name)}
            if unpacked:
                waiting |= names
            elif names & waiting:
                moved |= names
    outside = [each for each in loop.orelse for node in walk(each) if isinstance(node, ast.Name) and node.id in waiting]
    scope = analysis.facts.places.scope(loop, module)
    read = _reads_right_in(scope)
    end = loop.end_lineno or 0
    behind = [node for name in sorted(waiting - moved) for node in read.get(name, ()) if node.lineno > end]
    for node in behind:
        lines = [getattr(other, "lineno", 0) for other in analysis.facts.bindings.writes(scope, node.id)]
        if not any(node.lineno >= line > end for line in lines):
            return node.id, node
    return ("a part of the batch", loop) if outside else None


@once_per_node
def _reads_right_in(scope: ast.AST) -> dict[str, list[ast.Name]]:
    """The reads of names in a function or file, not those in what it defines."""
    found: dict[str, list[ast.Name]] = {}
    waiting = list(children(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, []).append(node)
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting += children(node)
    return found


def _counts(node: ast.expr) -> bool:
    """Whether a loop counts: ``enumerate(...)``, also in a progress bar."""
    while isinstance(node, ast.Call) and node.args:
        if dotted(node.func) == "enumerate":
            return True
        node = node.args[0]
    return False


def _is_fine(analysis: Analysis, node: ast.Name, module: ModuleFile, copies: set[Site]) -> bool:
    """Whether a use of a batch on the host is its copy to the device, or asks only for its size."""
    places = analysis.facts.places
    parent = places.parent(node, module)
    if isinstance(parent, ast.Assign) and parent.value is node:
        return True  # x, y = batch
    if isinstance(parent, ast.Call) and dotted(parent.func) == "len":
        return True
    if isinstance(parent, ast.comprehension) and parent.iter is node:
        whole = places.parent(parent, module)
        element = whole.elt if isinstance(whole, (ast.ListComp, ast.GeneratorExp)) else None
        return element is not None and places.site(element, module) in copies
    inner: ast.AST = node
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
        inner, parent = parent, places.parent(parent, module)
    while isinstance(parent, ast.Attribute) and parent.value is inner:
        if parent.attr in _SIZES:
            return True
        call = places.parent(parent, module)
        if not isinstance(call, ast.Call) or call.func is not parent:
            return False
        if places.site(call, module) in copies:
            return True
        if parent.attr not in _ON_THE_WAY:
            return False
        inner, parent = call, places.parent(call, module)
    return False
