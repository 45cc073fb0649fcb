"""Pictures in memory that are cropped and mirrored by chance one by one, which can be done to whole batches of them."""

from __future__ import annotations

import ast

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.datasets import IN_MEMORY, RANDOM_TRANSFORMS
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.libraries import words
from turbofix.program.model import Augment
from turbofix.program.names import dotted
from turbofix.program.values import Made, Sequence, Value, members

_EACH = {"RandomCrop": "CropEach", "RandomHorizontalFlip": "MirrorEach", "RandomVerticalFlip": "FlipEach"}
"""The random transforms of torchvision with a form for batches, which draws for each picture: a class of the script."""
_ONCE = frozenset(
    words("Resize CenterCrop Grayscale Pad PILToTensor ToImage ToTensor Normalize ConvertImageDtype ToDtype")
)
_BATCHED = frozenset(words("Normalize ConvertImageDtype ToDtype Resize"))
"""What does the same to a batch as to each of its pictures."""
_ONCE = _BATCHED | frozenset(words("CenterCrop Grayscale Pad PILToTensor ToImage ToTensor"))
_UNKNOWN = "its pictures are changed by chance one by one: change whole batches, by a draw for each picture"


def augment(analysis: Analysis, value: Value, loader: Event) -> Augment | str | None:
    """How published pictures are changed by chance, or why batches of them are not; None of other data."""
    data = [each for each in members(value) if isinstance(each, Made)]
    own = all(each.qualname.startswith("torchvision.datasets.") for each in data) and len(data) == len(members(value))
    if not own or not all(each.qualname.rpartition(".")[2] in IN_MEMORY for each in data):
        return None
    places, module = analysis.facts.places, loader.module
    passed = [one for each in data for one in (*each.arguments.positions, *each.arguments.keywords.values())]
    given = {one.node: each for one in passed if one.node for each in members(one.value) if _named(each) == "Compose"}
    held = [
        one
        for each in {*given.values()}
        if isinstance(each, Made) and (one := each.arguments.get("transforms", 0)) is not None
    ]
    lists = {each.origin: each for one in held for each in members(one.value) if isinstance(each, Sequence)}
    origin, listed = lists.popitem() if len(lists) == 1 else (None, None)
    items = (listed.items if listed is not None else None) or []
    if origin is None or not isinstance(origin.node, ast.List) or len(origin.node.elts) != len(items):
        return _UNKNOWN
    parts: list[tuple[Site, str]] = []
    for node, item in zip(origin.node.elts, items, strict=True):
        does = _done(node, item, any(one in _EACH.values() for _, one in parts))
        if does is None:
            name = _named(item) or ast.unparse(node)
            does = "draws for each picture" if name.startswith(RANDOM_TRANSFORMS) else "is done to each picture"
            return f"`{name}` {does}, and no form of it for batches is known here"
        parts.append((places.site(node, module), does))
    names = {_name(analysis, each, list(given), loader) for each in data}
    if len(names) > 1 or None in names or origin.module is not module:
        return _UNKNOWN
    sites = tuple(places.site(each, module) for each in given)
    return Augment(sites, places.site(origin.node, module), tuple(parts), names.pop() or "")


def _named(value: Value) -> str:
    """The name of a transform of torchvision."""
    ours = isinstance(value, Made) and value.qualname.startswith("torchvision.transforms.")
    return value.qualname.rpartition(".")[2] if ours else ""  # type: ignore[attr-defined]


def _done(node: ast.expr, item: Value, drawn: bool) -> str | None:
    """What becomes of a transform: it is done ``once``, or ``stays``, or the class that takes its place."""
    last = _named(item)
    given = [*node.args, *node.keywords] if isinstance(node, ast.Call) else []
    if last in _EACH:
        odd = any(getattr(each, "arg", "") in (None, "pad_if_needed") for each in given)
        return _EACH[last] if isinstance(node, ast.Call) and len(node.args) < 3 and not odd else None
    if not drawn or last in ("PILToTensor", "ToImage"):
        return "once" if last in _ONCE else None
    if last == "Lambda" and given and isinstance(given[0], ast.Lambda):
        arithmetic = (ast.BinOp, ast.operator, ast.Constant, ast.expr_context, ast.Name)
        return "stays" if all(isinstance(each, arithmetic) for each in walk(given[0].body)) else None
    if last == "Resize" and len(given) != 1:
        return None  # (pictures of PIL's know ways to do so that tensors do not)
    return "convert" if last == "ToTensor" else "stays" if last in _BATCHED else None


def _name(analysis: Analysis, data: Made, given: list[ast.expr], loader: Event) -> str | None:
    """The name by which a loader's statement knows the transforms, empty where they have none yet; None where neither.

    Nothing else may read the data or their transforms.
    """
    places, bindings, module = analysis.facts.places, analysis.facts.bindings, loader.module
    call = data.origin.node
    statement = places.statement(call, module) if data.origin.module is module else None
    if statement is None or places.scope(call, module) is not places.scope(loader.node, module):
        return None
    if all(each is not call for each in walk(loader.node)):
        target = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and statement.value is call else None
        if target is None or not all(
            _is_fine(analysis, each, loader) for each in _reads(analysis, call, target, module)
        ):
            return None
    if len(names := {each.id for each in given if isinstance(each, ast.Name)}) == 1:
        name = names.pop()
        owner = bindings.owner(name, call, module)
        seen = owner is bindings.owner(name, loader.node, module) and len(bindings.writes(owner, name)) == 1
        return name if seen and len(_reads(analysis, call, name, module)) == len(given) else None
    around = {id(each) for each in (*places.ancestors(loader.node, module), loader.node)}
    after = any(id(each) in around for each in places.block(statement, module))
    return "" if len(given) == 1 and isinstance(given[0], ast.Call) and after else None


def _reads(analysis: Analysis, near: ast.AST, name: str, module: ModuleFile) -> list[ast.expr]:
    """The reads of a name, or of an attribute, in the function or file that it is of."""
    owner = analysis.facts.bindings.owner(name, near, module) if "." not in name else module.tree
    found = (each for each in walk(owner) if isinstance(each, (ast.Name, ast.Attribute)))
    return [each for each in found if isinstance(each.ctx, ast.Load) and dotted(each) == name]


def _is_fine(analysis: Analysis, node: ast.expr, loader: Event) -> bool:
    """Whether a read of data is the loader's, or asks for their size or an attribute."""
    above = analysis.facts.places.parent(node, loader.module)
    if isinstance(above, ast.keyword):
        above = analysis.facts.places.parent(above, loader.module)
    sized = isinstance(above, ast.Call) and dotted(above.func) == "len"
    return above is loader.node or sized or isinstance(above, ast.Attribute)
