"""How many elements an array or tensor has that the program makes on the host itself, where the text tells."""

from __future__ import annotations

import ast

from turbofix.program.analysis import Analysis
from turbofix.program.events import Event, Passed
from turbofix.program.facts import settled
from turbofix.program.libraries import words
from turbofix.program.names import parameters
from turbofix.program.values import Made, Opaque, Sequence, Tensor, Value, members

AT_ONCE = 4096
"""Elements of at most 16 bytes that the driver takes at once, as it does with 64 KB of pageable memory: a copy that is
told not to block returns then, whatever the GPU is doing."""

_HOLDING = words("array asarray as_tensor from_numpy tensor Tensor FloatTensor LongTensor DoubleTensor")
"""Functions whose first argument holds the elements."""
_SHAPED = words("ones zeros full empty rand randn")
"""Functions whose first argument (of torch's: or all of them) is a shape."""
_DEPTH = 6


def is_taken_at_once(analysis: Analysis, event: Event) -> bool:
    """Whether the host tensor that a transfer moves is known to have few elements, whatever path it came by.

    It is made in the same expression, or has a name that only stands for such tensors and for their copies: two tensors
    that a name may be are one to the model, with the place of the first.
    """
    moved = _moved_by(event.node)
    if not isinstance(moved, ast.Name):
        return moved is not None and _makes_few(analysis, moved)
    owner = analysis.facts.bindings.owner(moved.id, moved, event.module)
    if any(each.arg == moved.id for each in parameters(owner)):
        return False
    writes = analysis.facts.bindings.writes(owner, moved.id)
    made = [write.value if isinstance(write, ast.Assign) else None for write in writes]
    made = [each for each in made if not _is_copy_of(each, moved.id)]
    return bool(made) and all(each is not None and _makes_few(analysis, each) for each in made)


def _moved_by(node: ast.AST | None) -> ast.expr | None:
    """What a method is called on."""
    return node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def _is_copy_of(node: ast.expr | None, name: str) -> bool:
    """``name.cuda()``, as in ``name = name.cuda()``."""
    source = _moved_by(node)
    return isinstance(source, ast.Name) and source.id == name and node.func.attr in ("to", "cuda")  # type: ignore[union-attr]


def _makes_few(analysis: Analysis, node: ast.expr) -> bool:
    """Whether an expression is a call that makes few elements, whenever it is run."""
    counts = [_count_of_call(analysis, event, _DEPTH) for event in analysis.facts.at(node) if event.kind == "call"]
    return bool(counts) and all(count is not None and count <= AT_ONCE for count in counts)


def _count(analysis: Analysis, value: Value | None, depth: int) -> int | None:
    """The most elements that a value can have; None where that is not known."""
    found = [_count_of_one(analysis, member, depth) for member in members(value)] if depth else []
    return max((each for each in found if each is not None), default=None) if None not in found else None


def _count_of_one(analysis: Analysis, value: Value, depth: int) -> int | None:
    if isinstance(value, Sequence):
        inner = [_count(analysis, item, depth - 1) for item in value.items] if value.items is not None else [None]
        return sum(each for each in inner if each is not None) if None not in inner else None
    if isinstance(settled(value), (int, float)):
        return 1
    if not isinstance(value, Opaque) or value.origin is None:
        return None
    made = [event for event in analysis.facts.at(value.origin.node) if event.kind == "call"]
    counts = [_count_of_call(analysis, event, depth) for event in made]
    return max((each for each in counts if each is not None), default=None) if None not in counts else None


def _count_of_call(analysis: Analysis, event: Event, depth: int) -> int | None:
    package, _, name = event.name.rpartition(".")
    passed = event.arguments
    if package not in ("torch", "numpy") or passed is None or passed.star or passed.open or not passed.positions:
        return None
    first = passed.positions[0].value
    if name.endswith("Tensor") and settled(first) is not None:  # `torch.Tensor(3)` has three elements
        return _volume(analysis, event, passed.positions)
    if name in _HOLDING:
        return _count(analysis, first, depth - 1)
    if name in _SHAPED:
        alone = package == "numpy" or name == "full"
        return _volume(analysis, event, passed.positions[:1] if alone else passed.positions)
    return None


def _volume(analysis: Analysis, event: Event, shape: list[Passed]) -> int | None:
    """The elements of a shape that is passed as a number, several numbers, or a list of them."""
    sizes: list[tuple[Value, ast.expr | None]] = []
    for passed in shape:
        if not isinstance(passed.value, Sequence):
            sizes.append((passed.value, passed.node))
            continue
        if passed.value.items is None:
            return None
        written: list[ast.expr] = getattr(passed.node, "elts", [])
        same = len(written) == len(passed.value.items)
        sizes += zip(passed.value.items, written if same else [None] * len(passed.value.items), strict=True)
    volume = 1
    for size, node in sizes:
        number = settled(size)
        if number is None and node is not None:
            number = _samples(analysis, event, node)
        if type(number) is not int:
            return None
        volume *= max(number, 0)
    return volume


def _samples(analysis: Analysis, event: Event, node: ast.expr) -> int | None:
    """How many samples a batch has at most, where an expression asks it: ``images.size(0)``, ``images.shape[0]``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        asked, index = node.func.value, node.args[0] if len(node.args) == 1 else None
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        asked, index = node.value.value, node.slice
    else:
        return None
    if not isinstance(index, ast.Constant) or index.value != 0 or isinstance(index.value, bool):
        return None
    found = members(analysis.facts.evaluate(asked, analysis.facts.frames(event)))
    sizes = [_batch_size(each) if _is_as_loaded(analysis, each, _DEPTH) else None for each in found]
    return max((each for each in sizes if each is not None), default=None) if None not in sizes else None


def _is_as_loaded(analysis: Analysis, value: Value, depth: int) -> bool:
    """Whether a tensor is a batch's, at most copied or cast since: not cut, not laid out anew."""
    if not isinstance(value, Tensor) or value.origin is None or not depth:
        return False
    node = value.origin.node
    if isinstance(node, ast.Subscript) and not isinstance(getattr(node.slice, "value", None), str):
        return False
    made = [event for event in analysis.facts.at(node) if event.result is not None]
    if any(event.kind not in ("transfer", "cast", "iterate", "next") for event in made):
        return False
    copies = [event for event in made if event.kind in ("transfer", "cast")]
    return all(_is_as_loaded(analysis, each, depth - 1) for event in copies for each in members(event.receiver))


def _batch_size(value: Value) -> int | None:
    """The samples of a batch as a loader made it, or of a copy of it."""
    if not isinstance(value, Tensor) or value.roles != {"batch"}:
        return None
    sizes = []
    for loader in members(value.source):
        size = loader.arguments.get("batch_size", 1) if isinstance(loader, Made) and loader.kind == "loader" else None
        number = settled(size.value) if size is not None else None
        sizes.append(number if type(number) is int else None)
    return max((each for each in sizes if each is not None), default=None) if None not in sizes else None
