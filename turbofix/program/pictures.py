"""Data sets whose pictures all have one size, because what is done to each of them ends in a size that is fixed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type, every, once_per_node
from turbofix.program.libraries import words
from turbofix.program.names import dotted, names_of, parameters
from turbofix.program.values import Const, Function, Instance, Made, Sequence, Value, members

_TRANSFORMS = ("torchvision.transforms.", "torchvision.transforms.v2.")

_CROPPING = words("RandomCrop CenterCrop RandomResizedCrop")
"""Transforms whose results have one size, whatever they are given: that of the argument, one number or two."""

_KEEPING = words(
    """
    RandomHorizontalFlip RandomVerticalFlip ToTensor PILToTensor ToPILImage ToImage ToDtype ToPureTensor Normalize
    ConvertImageDtype ColorJitter Grayscale RandomGrayscale GaussianBlur RandomErasing RandomInvert RandomPosterize
    RandomSolarize RandomAdjustSharpness RandomAutocontrast RandomEqualize RandAugment AutoAugment TrivialAugmentWide
    AugMix RandomAffine RandomPerspective Pad Identity
    """
)
"""Transforms that make pictures of one size out of pictures of one size."""

_OF_PICTURES = {
    f"torchvision.datasets.{name}"
    for name in (
        *(
            "ImageFolder",
            "ImageNet",
            "CelebA",
            "Caltech101",
            "Caltech256",
            "Country211",
            "DTD",
            "EuroSAT",
            "Flowers102",
        ),
        *(
            "FGVCAircraft",
            "Food101",
            "GTSRB",
            "INaturalist",
            "Imagenette",
            "LFWPeople",
            "LSUN",
            "Omniglot",
            "Places365",
        ),
        *("RenderedSST2", "StanfordCars", "SUN397"),
    )
}
"""Data sets of torchvision that give a picture, behind their transform, and what it shows."""

_OF_NOISE = "torchvision.datasets.FakeData"
"""Random pictures, all of the size that it is told."""

_PARTS = ("torch.utils.data.Subset", "torch.utils.data.random_split")

_CHANGED = ("transform", "transforms")
"""Attributes by which the transform of a data set, or a part of it, can be replaced from without."""


def have_one_size(analysis: Analysis, value: Value | None) -> bool:
    """Whether each sample of a data set is known to be cut or scaled to one size, however many a batch has."""
    found = members(value)
    if not found or not all(_has_one_size(each) for each in found):
        return False
    return not any(_replaces(module.tree) for module in analysis.execution.modules.values())


def _has_one_size(value: Value, depth: int = 4) -> bool:
    if depth < 0:
        return False
    if isinstance(value, Instance):
        return _gives_one_size(value, depth)
    if not isinstance(value, Made) or value.arguments.star or value.arguments.open:
        return False
    if value.qualname in _PARTS:
        inner = value.inner or (value.arguments.positions[0].value if value.arguments.positions else None)
        found = members(inner)
        return bool(found) and all(_has_one_size(each, depth - 1) for each in found)
    if value.qualname == _OF_NOISE:
        given = value.arguments.get("transform", 3)
        return given is None or all(_fixes_size(each) or _is_kept_by(each) for each in members(given.value))
    if value.qualname not in _OF_PICTURES:
        return False
    given = value.arguments.get("transform", 1 if value.qualname.endswith(".ImageFolder") else None)
    return given is not None and "transforms" not in value.arguments.keywords and fixes_size(given.value)


def fixes_size(value: Value | None) -> bool:
    """Whether a transform gives pictures of one size, of whatever size it is given them."""
    found = members(value)
    return bool(found) and all(_fixes_size(each) for each in found)


def _fixes_size(value: Value) -> bool:
    name = _transform(value)
    if name is None or not isinstance(value, Made):
        return False
    if name in _CROPPING:
        return True
    if name == "Resize":  # one number is the length of the shorter edge
        size = value.arguments.get("size", 0)
        return size is not None and all(_is_pair(each) for each in members(size.value))
    if name != "Compose":
        return False
    steps = value.arguments.get("transforms", 0)
    found = members(steps.value) if steps is not None else ()
    return bool(found) and all(_end_in_one_size(each) for each in found)


def _end_in_one_size(steps: Value) -> bool:
    """Whether transforms one behind another give one size: the last of them that changes it fixes it."""
    if not isinstance(steps, Sequence) or steps.items is None:
        return False
    for step in reversed(steps.items):
        if fixes_size(step):
            return True
        if not all(_keeps_size(each) for each in members(step)):
            return False
    return False


def is_literal(value: Value | None, depth: int = 6) -> bool:
    """Whether the sizes that the transforms of a data set are told are numbers in the text."""
    for member in members(value):
        if not isinstance(member, (Made, Sequence)) or depth < 0:
            return False
        if isinstance(member, Sequence):
            if not all(is_literal(each, depth - 1) for each in member.items or ()):
                return False
            continue
        name = _transform(member)
        sized = member.arguments.get("size", 0) if name in (*_CROPPING, "Resize") else None
        if member.qualname == _OF_NOISE:
            sized = member.arguments.get("image_size", 1)
        if sized is not None and not all(_is_told(each) for each in members(sized.value)):
            return False
        inside = [each for each in (*member.arguments.values(), member.inner) if each is not None]
        inside = [one for each in inside for one in members(each) if isinstance(one, (Made, Sequence))]
        if not all(is_literal(each, depth - 1) for each in inside if _holds_transforms(each)):
            return False
    return True


def _holds_transforms(value: Value) -> bool:
    return isinstance(value, Made) or any(
        isinstance(one, Made) for each in getattr(value, "items", None) or () for one in members(each)
    )


def _is_told(value: Value) -> bool:
    if isinstance(value, Sequence):
        return value.items is not None and all(_is_told(one) for each in value.items for one in members(each))
    if not isinstance(value, Const):
        return False
    return all(isinstance(each, int) for each in (value.value if isinstance(value.value, tuple) else (value.value,)))


def _is_kept_by(transform: Value) -> bool:
    """Whether a transform, or those one behind another, give pictures of one size where they are given such."""
    if _transform(transform) != "Compose" or not isinstance(transform, Made):
        return _keeps_size(transform)
    steps = transform.arguments.get("transforms", 0)
    found = members(steps.value) if steps is not None else ()
    return bool(found) and all(
        isinstance(each, Sequence)
        and each.items is not None
        and all(_is_kept_by(step) for item in each.items for step in members(item))
        for each in found
    )


def _keeps_size(value: Value) -> bool:
    name = _transform(value)
    if name == "RandomRotation" and isinstance(value, Made):
        return not value.arguments.open and value.arguments.get("expand", 2) is None
    return name in _KEEPING


def _transform(value: Value) -> str | None:
    """The name of one of torchvision's transforms."""
    if not isinstance(value, Made) or value.kind != "transform" or value.arguments.star:
        return None
    package, _, name = value.qualname.rpartition(".")
    return name if f"{package}." in _TRANSFORMS else None


def _is_pair(value: Value) -> bool:
    return isinstance(value, Sequence) and value.items is not None and len(value.items) == 2


# --- data sets of the project ---------------------------------------------------------------------------------------


def _gives_one_size(instance: Instance, depth: int) -> bool:
    """Whether all that an object's ``__getitem__`` gives comes out of such transforms of its own, or is a number."""
    method = next((each for each in members(instance.cls.find("__getitem__")) if isinstance(each, Function)), None)
    if method is None:
        return instance.base is not None and _has_one_size(instance.base, depth - 1)
    if not isinstance(method.node, ast.FunctionDef) or not parameters(method.node):
        return False
    given = list(_given(method.node))
    return bool(given) and all(_is_known(part, at, method.node, instance) for part, at in given)


@once_per_node
def _given(method: ast.FunctionDef) -> tuple[tuple[ast.expr | None, int], ...]:
    """The parts of what a method returns, each with the line of its ``return``."""
    found: list[tuple[ast.expr | None, int]] = []
    for node in walk(method):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return ()
        if isinstance(node, ast.Return):
            found += ((part, node.lineno) for part in _parts(node.value))
    return tuple(found)


def _parts(node: ast.expr | None) -> Iterator[ast.expr | None]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from _parts(each)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _parts(value)
    else:
        yield node


def _is_known(part: ast.expr | None, at: int, method: ast.FunctionDef, instance: Instance) -> bool:
    """Whether a part of a sample, returned on line ``at``, has one size in all samples."""
    if isinstance(part, ast.Name):
        writes = names_of(method).writes.get(part.id, [])
        if not writes:
            return part.id in [each.arg for each in method.args.args[1:2]]  # the index
        if all(_is_number(each.value) if isinstance(each, ast.Assign) else False for each in writes):
            return True
        made = [each for each in writes if isinstance(each, ast.Assign) and _is_plain(each)]
        if len(made) == len(writes) and all(_is_fixed(each.value, method, instance) for each in made):
            return True
        last = max(writes, key=lambda each: getattr(each, "lineno", 0))
        return (
            isinstance(last, ast.Assign)
            and _is_plain(last)
            and last.lineno < at
            and _is_fixed(last.value, method, instance)
            and _always_runs(last, method)
        )
    return part is not None and (_is_number(part) or _is_fixed(part, method, instance))


def _is_plain(statement: ast.Assign) -> bool:
    return len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is a literal, or turned into a number or text."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "str", "len")
    return isinstance(node, ast.Constant)


def _is_fixed(node: ast.expr, method: ast.FunctionDef, instance: Instance) -> bool:
    """Whether an expression calls a transform of the object that gives pictures of one size: ``self.transform(x)``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return False
    held = _own(node.func, method)
    return held is not None and fixes_size(instance.attributes.get(held))


def _own(node: ast.expr, method: ast.FunctionDef) -> str | None:
    """The attribute of the method's own object that an expression reads."""
    head, _, name = (dotted(node) or "").partition(".")
    return name if name and "." not in name and head == parameters(method)[0].arg else None


def _always_runs(statement: ast.Assign, method: ast.FunctionDef) -> bool:
    """Whether it runs whenever the method gets to its end; a test of the very transform that it calls is passed."""
    if statement in method.body:
        return True
    assert isinstance(statement.value, ast.Call)
    called = dotted(statement.value.func)
    return any(
        isinstance(each, ast.If)
        and not each.orelse
        and statement in each.body
        and (dotted(each.test) == called or _is_not_none(each.test, called))
        for each in method.body
    )


def _is_not_none(test: ast.expr, name: str | None) -> bool:
    return (
        isinstance(test, ast.Compare)
        and dotted(test.left) == name
        and [type(each) for each in test.ops] in ([ast.IsNot], [ast.NotEq])
        and all(isinstance(each, ast.Constant) and each.value is None for each in test.comparators)
    )


@once_per_node
def _replaces(tree: ast.Module) -> bool:
    """Whether a file gives an object another transform from without, or adds to those that it has.

    What a method gives its own object is known by the value of the attribute.
    """
    stored = [each for each in every(ast.Attribute, tree) if each.attr in _CHANGED and isinstance(each.ctx, ast.Store)]
    if stored:
        methods = [each for cls in every(ast.ClassDef, tree) for each in cls.body if parameters(each)]
        own = {
            each
            for method in methods
            for each in walk(method)
            if isinstance(each, ast.Attribute) and dotted(each.value) == parameters(method)[0].arg
        }
        if not own.issuperset(stored):
            return True
    calls = (each.func for each in by_type(tree).get(ast.Call, ()) if isinstance(each, ast.Call))
    return any(
        isinstance(func, ast.Attribute)
        and func.attr in ("append", "insert", "extend", "pop", "remove")
        and isinstance(func.value, ast.Attribute)
        and func.value.attr in _CHANGED
        for func in calls
    )
