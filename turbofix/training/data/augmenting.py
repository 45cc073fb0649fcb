"""Pictures in memory that are cropped and mirrored by chance one by one, which can be done to whole batches of them."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Made, Sequence, Value, members
from turbofix.library.tables import words
from turbofix.source.site import Site
from turbofix.training.data.datasets import IN_MEMORY
from turbofix.training.data.items import RANDOM_TRANSFORMS
from turbofix.training.model import Augment

_EACH = {"RandomCrop": "CropEach", "RandomHorizontalFlip": "MirrorEach", "RandomVerticalFlip": "FlipEach"}
"""The random transforms of torchvision with a form for batches, which draws for each picture: a class of the script."""
_EVERYWHERE = frozenset(words("ToTensor PILToTensor ToImage ConvertImageDtype ToDtype Normalize"))
"""What does the same to each pixel, wherever it is cropped and mirrored to."""
_ONCE = _EVERYWHERE | frozenset(words("Resize CenterCrop Grayscale Pad"))
_UNKNOWN = "its pictures are changed by chance one by one: change whole batches, by a draw for each picture"


def augment(analysis: Analysis, value: Value, loader: Event) -> Augment | str | None:
    """How published pictures are changed by chance, or why batches of them are not; None of other data."""
    known = [f"torchvision.datasets.{name}" for name in IN_MEMORY]
    data = [each for each in members(value) if isinstance(each, Made) and each.qualname in known]
    if not data or len(data) != len(members(value)):
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
        does = _done(node, item, any(one != "once" for _, one in parts))
        if does is None:
            name = _named(item) or ast.unparse(node)
            does = "draws for each picture" if name.startswith(RANDOM_TRANSFORMS) else "is done to each picture"
            return f"`{name}` {does}, and no form of it for batches is known here"
        parts.append((places.site(node, module), does))
    here = places.scope(origin.node, module) in (module.tree, places.scope(loader.node, module))
    if origin.module is not module or not here:
        return _UNKNOWN
    return Augment(places.site(origin.node, module), tuple(parts))


def _named(value: Value) -> str:
    """The name of a transform of torchvision."""
    ours = isinstance(value, Made) and value.qualname.startswith("torchvision.transforms.")
    return value.qualname.rpartition(".")[2] if ours else ""  # type: ignore[attr-defined]


def _done(node: ast.expr, item: Value, drawn: bool) -> str | None:
    """What becomes of a transform: it is done ``once``, or the class that takes its place."""
    last = _named(item)
    given = [*node.args, *node.keywords] if isinstance(node, ast.Call) else []
    if last in _EACH:
        odd = any(getattr(each, "arg", "") in (None, "pad_if_needed") or _is_odd(each) for each in given)
        return _EACH[last] if isinstance(node, ast.Call) and len(node.args) < 3 and not odd else None
    return "once" if last in (_EVERYWHERE if drawn else _ONCE) else None


def _is_odd(given: ast.AST) -> bool:
    """Whether there is no border, or another one at each side, which mirroring would swap."""
    value = given.value if isinstance(given, ast.keyword) else given
    uneven = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) > 2
    return uneven or (isinstance(value, ast.Constant) and value.value is None)
