"""About how many items a list, a tensor or a data set has: an estimate, which ranks and decides nothing else.

What a value was made of tells; what changes its length later is not looked for.
"""

from __future__ import annotations

import ast
from typing import Any

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Function, Instance, Iterated, Made, Opaque, Sequence, Tensor, Value, members
from turbofix.source.names import dotted

_DIGITS = "train", {True: 60_000, False: 10_000}, 28 * 28
_COLOURS = "train", {True: 50_000, False: 10_000}, 32 * 32
_VIEWS = {"train": 5_000, "test": 8_000, "unlabeled": 100_000, "train+unlabeled": 105_000}
_FACES = {"train": 162_770, "valid": 19_867, "test": 19_962, "all": 202_599}

PUBLISHED: dict[str, tuple[str, dict[Any, int], int]] = {
    **{f"torchvision.datasets.{name}": _DIGITS for name in ("MNIST", "FashionMNIST", "KMNIST")},
    **{f"torchvision.datasets.{name}": _COLOURS for name in ("CIFAR10", "CIFAR100")},
    "torchvision.datasets.USPS": ("train", {True: 7_291, False: 2_007}, 16 * 16),
    "torchvision.datasets.SVHN": ("split", {"train": 73_257, "test": 26_032, "extra": 531_131}, 32 * 32),
    "torchvision.datasets.STL10": ("split", _VIEWS, 96 * 96),
    "torchvision.datasets.CelebA": ("split", _FACES, 178 * 218),
    "torchvision.datasets.Food101": ("split", {"train": 75_750, "test": 25_250}, 0),
    "torchvision.datasets.ImageNet": ("split", {"train": 1_281_167, "val": 50_000}, 0),
    "torch_geometric.datasets.PPI": ("split", {"train": 20, "val": 2, "test": 2}, 0),
}
"""How many samples the parts of a published data set have: by the parameter behind the folder, whose default comes
first; and the pixels of its pictures, where they are all alike."""

_SHAPED = frozenset(
    (
        *(f"torch.{name}" for name in ("empty", "zeros", "ones", "rand", "randn", "randperm", "full", "arange")),
        *(f"numpy.{name}" for name in ("empty", "zeros", "ones", "full", "arange")),
    )
)
"""What is given the shape of the array that it makes first."""


def published_length(value: Made) -> int | None:
    """How many samples the part of a published data set has that is asked for."""
    parameter, parts, _ = PUBLISHED.get(value.qualname, ("", {}, 0))
    asked = value.arguments.get(parameter, 1)
    return parts.get(settled(asked.value) if asked is not None else next(iter(parts), None))


def length(analysis: Analysis, value: Value | None, *, published: bool = False) -> int | None:
    """How many items a value has; of a published data set only where that is asked for."""
    found = {_length(analysis, each, published) for each in members(value)}
    return found.pop() if len(found) == 1 else None


def _length(analysis: Analysis, value: Value, published: bool) -> int | None:
    if isinstance(value, Sequence):
        return len(value.items) if value.items else None
    if isinstance(value, Instance):
        return _of_instance(analysis, value)
    if isinstance(value, (Tensor, Opaque, Iterated)):
        return _of_call(analysis, value)
    if not isinstance(value, Made) or value.kind != "dataset":
        return None
    if value.qualname.endswith(("TensorDataset", ".Subset")):
        given = value.arguments.get("indices", 1) if value.qualname.endswith("Subset") else value.arguments.get("", 0)
        return length(analysis, given.value) if given is not None else None
    return published_length(value) if published or value.qualname.startswith("torch_geometric.") else None


def _of_instance(analysis: Analysis, value: Instance) -> int | None:
    """What an object's ``__len__`` returns: a number, or how many items one of its attributes has."""
    method = value.cls.find("__len__")
    body = getattr(method.node, "body", [None]) if isinstance(method, Function) else [None]
    given = body[-1].value if isinstance(body[-1], ast.Return) else None
    counted = given.args[0] if isinstance(given, ast.Call) and dotted(given.func) == "len" and given.args else None
    name = dotted(given if counted is None else counted) or ""
    held = value.attributes.get(name.partition(".")[2]) if name.startswith("self.") else None
    if counted is not None:
        return length(analysis, held) if held is not value else None
    known = given.value if isinstance(given, ast.Constant) else settled(held)
    return known if type(known) is int else None


def _of_call(analysis: Analysis, value: Tensor | Opaque | Iterated) -> int | None:
    """How many items a call made, by what it was given: ``torch.randn(512, 8)``, ``range(100)``."""
    call = value.origin.node if value.origin is not None else None
    if not isinstance(call, ast.Call) or not call.args or value.origin is None:
        return None
    name, first = analysis.facts.offered(call.func, value.origin.module) or "", call.args[0]
    if name in ("torch.tensor", "numpy.array") and isinstance(first, (ast.List, ast.Tuple)):
        return len(first.elts) or None
    if name == "torch.randint":
        first = next((each for each in call.args if isinstance(each, (ast.Tuple, ast.List))), first)
    elif name not in _SHAPED and name != "builtins.range":
        return None
    first = first.elts[0] if isinstance(first, (ast.Tuple, ast.List)) and first.elts else first
    frames = analysis.facts.there(value.origin)
    bounds = [settled(analysis.facts.evaluate(each, frames)) for each in (call.args if "range" in name else [first])]
    numbers = [each for each in bounds if type(each) is int]
    return len(range(*numbers)) if len(numbers) == len(bounds) and 0 not in numbers[2:] else None
