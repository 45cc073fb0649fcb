"""Whether all batches of a loop have one size, as far as what makes them tells, and what may change it on the way.

``torch.stack``, and with it the loader's own ``default_collate``, takes tensors of one size only: where batches of two
samples or more are drawn from the whole data and put together by it, all samples have one size, or the program ends.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.placements import is_none
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord, Passed
from turbofix.domain.values import Bound, Const, External, Function, Made, Partial, Value, members
from turbofix.library.rows import is_sized_by_data
from turbofix.library.tables import words
from turbofix.source.answers import once_per_node
from turbofix.source.names import dotted, loaded, written
from turbofix.source.nodes import walk
from turbofix.training.model import Argument, Dataset, Sizes
from turbofix.training.models.layouts import is_of_layer

_OF_ONE_SIZE = frozenset(
    f"torchvision.datasets.{name}"
    for name in (
        *("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "USPS", "FakeData"),
        *("CIFAR10", "CIFAR100", "SVHN", "STL10", "PCAM", "SEMEION"),
    )
) | {"torch.utils.data.TensorDataset"}
"""Data sets whose samples all have one size, unless a transform of them draws another."""

_DRAWING = frozenset(
    (
        *(f"torch.utils.data.{name}Sampler" for name in ("Random", "WeightedRandom", "SubsetRandom", "Sequential")),
        "torch.utils.data.distributed.DistributedSampler",
        "torch.utils.data.DistributedSampler",
    )
)
"""Samplers that draw from all of the data, whatever the sizes in it."""

_STACKING = frozenset(("torch.utils.data.default_collate", "torch.utils.data.dataloader.default_collate"))

_PLAIN = words(
    """
    stack default_collate tensor as_tensor LongTensor FloatTensor from_numpy array asarray zip list tuple dict map range
    len enumerate append items keys values float long int bool to unsqueeze squeeze permute transpose contiguous
    """
)
"""What may be called beside ``torch.stack`` by a function that leaves samples of one size as they are."""

_BY_DATA = frozenset(("nms", "batched_nms"))
"""Functions of torchvision whose result is as large as the data make it, beside torch's own."""

_MASKS = ("bool", "isnan", "isfinite", "logical_and", "logical_or", "logical_not", "eq", "ne", "gt", "lt")


def sizes_of(passed: dict[str, Passed], batch: Argument, data: Dataset, value: Value | None) -> Sizes:
    """Whether a loader with these arguments, which reads ``value``, gives batches of one size (but for the last)."""
    own = _own_collate(passed.get("collate_fn"))
    if own is not None and PADS in own:
        return Sizes("varies", own, partly=own.endswith(BESIDES))
    if own is not None:
        return Sizes("unknown", f"{own} puts its batches together, and may make them as long as what is in them")
    if data.kind == "iterable":
        return Sizes("unknown", "its data are a stream, which may come sorted by size")
    given = members(value)
    if given and all(_is_of_one_size(member) for member in given):
        return Sizes("fixed")
    if data.stateful is not None:
        return Sizes("unknown", f"its data change while the program trains ({data.stateful})")
    choosing = [passed[name].value for name in ("batch_sampler", "sampler") if name in passed]
    if not all(is_none(each) or all(map(_draws, members(each))) for each in choosing):
        return Sizes("unknown", "a sampler orders its samples, perhaps by size")
    sizes = [each for each in batch.values if isinstance(each, int)]
    if batch.state not in ("value", "option") or len(sizes) != len(batch.values) or min(sizes, default=1) < 2:
        return Sizes("unknown", "its batch size is 1, or not known, so that its samples may differ in size")
    return Sizes("fixed")


PADS, BESIDES = " pads each batch to its own longest sample", ", and stacks others"


def _own_collate(passed: Passed | None) -> str | None:
    """What else than torch's own function puts the samples together, in a message; None where nothing does."""
    for member in members(passed.value) if passed is not None else ():
        if isinstance(member, Const) and member.value is None:
            continue
        if isinstance(member, External) and member.qualname in _STACKING:
            continue
        function = member.function if isinstance(member, (Bound, Partial)) else member
        if isinstance(function, Function) and isinstance(function.node, ast.FunctionDef):
            called = {
                (dotted(each.func) or "?").rpartition(".")[2]
                for each in walk(function.node)
                if isinstance(each, ast.Call)
            }
            if called & {"stack", "default_collate"} and called <= _PLAIN:
                continue
            pads = PADS + (BESIDES if called & {"stack", "default_collate"} else "") if "pad_sequence" in called else ""
            return f"`{function.node.name}`{pads}"
        return "a `collate_fn`"
    return None


def _draws(value: Value) -> bool:
    """Whether a sampler draws from all of the data, whatever the sizes in it."""
    return isinstance(value, Made) and value.qualname in _DRAWING


def _is_of_one_size(value: Value, depth: int = 4) -> bool:
    """Whether all samples have one size whatever the batch is: known data, or parts of them."""
    if not isinstance(value, Made) or depth < 0:
        return False
    if value.qualname in ("torch.utils.data.Subset", "torch.utils.data.random_split"):
        inner = value.inner or (value.arguments.positions[0].value if value.arguments.positions else None)
        found = members(inner)
        return bool(found) and all(_is_of_one_size(each, depth - 1) for each in found)
    return value.qualname in _OF_ONE_SIZE


# --- on the way from the loader through the layers ------------------------------------------------------------------


def resized(analysis: Analysis, record: LoopRecord, events: list[Event]) -> Sizes | None:
    """What may give the tensors of one iteration another size than those of the next, in what feeds a model or in it.

    A part is taken by a mask, or by what the data are. None where nothing of that was seen.
    """
    facts = analysis.facts
    inside = [frame for event in events for frame in facts.frames_within(event, record.node)[1:] if is_of_layer(frame)]
    if (found := _in_scopes(analysis, inside)) is not None:
        return found
    seen: set[tuple[ast.AST, ast.AST]] = set()
    for event in (each for each in events if each.kind == "forward"):
        for frame in facts.frames_within(event, record.node):
            if is_of_layer(frame):
                break
            body = record.node if any(record.node is each for each in frame.loops) else frame.scope
            if (frame.anchor, body) not in seen:
                seen.add((frame.anchor, body))
                for node, what in _hazards_before(frame.anchor, body):
                    return _sized(analysis, node, what, frame.module)
    return None


def resized_in(analysis: Analysis, events: list[Event], functions: Sequence[ast.AST]) -> Sizes | None:
    """The same of everything that some functions do, and what they call: the steps of a module, and its layers."""
    below: list[Frame] = []
    for frames in map(analysis.facts.frames, events):
        inside = (i for i, frame in enumerate(frames) if any(frame.scope is each for each in functions))
        below += frames[next(inside, len(frames)) :]
    return _in_scopes(analysis, below)


def _in_scopes(analysis: Analysis, frames: list[Frame]) -> Sizes | None:
    for frame in {id(each.scope): each for each in frames}.values():
        for node, what in hazards_in(frame.scope):
            return _sized(analysis, node, what, frame.module)
    return None


def _sized(analysis: Analysis, node: ast.AST, what: str, module: ModuleFile) -> Sizes:
    return Sizes("unknown", what, analysis.facts.places.site(node, module))


@once_per_node
def hazards_in(scope: ast.AST) -> tuple[tuple[ast.AST, str], ...]:
    """The expressions of a function whose size is up to the data."""
    return tuple(_hazards(walk(scope), walk(scope)))


def _hazards_before(anchor: ast.AST, body: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The same of the expressions that a call is given, back to the start of the loop (or function) around it."""
    statements = _statements(body)
    given = [*anchor.args, *(each.value for each in anchor.keywords)] if isinstance(anchor, ast.Call) else [anchor]
    needed = {name for each in given for name in loaded(each)}
    feeding: list[ast.AST] = list(given)
    for statement in (each for each in reversed(statements) if each.lineno <= getattr(anchor, "lineno", 0)):
        if set(written(statement)) & needed:
            feeding.append(statement)
            needed |= loaded(statement)
    yield from _hazards((node for each in feeding for node in walk(each)), walk(body))


@once_per_node
def _statements(body: ast.AST) -> tuple[ast.stmt, ...]:
    """The simple statements of a loop or function that set names, in the order of the source."""
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    return tuple(sorted((each for each in walk(body) if isinstance(each, kinds)), key=lambda each: each.lineno))


def _hazards(nodes: Iterable[ast.AST], around: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Those among ``nodes``; ``around`` is where the names in them are set."""
    sets: dict[str, list[ast.expr]] | None = None
    for node in nodes:
        if not isinstance(node, (ast.Subscript, ast.Call)):
            continue
        if isinstance(node, ast.Call):
            if _is_by_data(_last(node)):
                yield node, f"`{_last(node)}` gives as much as the data make it"
            continue
        if sets is None:
            sets = {}
            for each in around:
                if isinstance(each, ast.Assign):
                    for name in written(each):
                        sets.setdefault(name, []).append(each.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(node.ctx, ast.Load) and any(_is_mask(part, sets) for part in parts):
            yield node, "a mask takes a part of a tensor, as large as the data make it"


def _is_by_data(name: str) -> bool:
    return name in _BY_DATA or is_sized_by_data(name)


def _last(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func) or ""


def _is_mask(part: ast.expr, sets: dict[str, list[ast.expr]], depth: int = 2) -> bool:
    """Whether an index is a tensor of truth values, by what made it."""
    if isinstance(part, ast.Compare):
        return not any(isinstance(each, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for each in part.ops)
    if isinstance(part, ast.UnaryOp):
        return isinstance(part.op, ast.Invert)
    if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.BitAnd, ast.BitOr)):
        return _is_mask(part.left, sets, depth) or _is_mask(part.right, sets, depth)
    if isinstance(part, ast.Call):
        return _last(part) in _MASKS or _is_by_data(_last(part)) or (_last(part) == "where" and len(part.args) == 1)
    name = dotted(part)
    return depth > 0 and name is not None and any(_is_mask(each, sets, depth - 1) for each in sets.get(name, ()))
