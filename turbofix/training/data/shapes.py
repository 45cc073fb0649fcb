"""Whether all batches of a loop have one size, as far as what makes them tells, and what may change it on the way.

``torch.stack``, and with it the loader's own ``default_collate``, takes tensors of one size only: where batches of two
samples or more are drawn from the whole data and put together by it, all samples have one size, or the program ends.
So have pictures whose last transform but those that keep a size cuts or scales them to it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from turbofix.dataflow.facts import constants
from turbofix.dataflow.placements import is_none
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event, LoopRecord, Passed
from turbofix.domain.values import Bound, Const, External, Function, Instance, Made, Partial, Value, flatten, members
from turbofix.domain.values import Sequence as Items
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import once_per_node
from turbofix.source.names import dotted, loaded, stored, written
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

_SIZES_DRAWN = ("ScaleJitter", "RandomShortestSize", "RandomZoomOut", "RandomIoUCrop")
"""Transforms of torchvision whose results differ in size."""

_DRAWING = frozenset(
    (
        *(f"torch.utils.data.{name}Sampler" for name in ("Random", "WeightedRandom", "SubsetRandom", "Sequential")),
        "torch.utils.data.distributed.DistributedSampler",
        "torch.utils.data.DistributedSampler",
    )
)
"""Samplers that draw from all of the data, whatever the sizes in it."""

CUTTING = ("torch.utils.data.BatchSampler", "torch.utils.data.sampler.BatchSampler")

_STACKING = frozenset(("torch.utils.data.default_collate", "torch.utils.data.dataloader.default_collate"))

_PLAIN = words(
    """
    stack default_collate tensor as_tensor LongTensor FloatTensor from_numpy array asarray zip list tuple dict map range
    len enumerate append items keys values float long int bool to unsqueeze squeeze permute transpose contiguous
    """
)
"""What may be called beside ``torch.stack`` by a function that leaves samples of one size as they are."""

_CROPPING = words("RandomCrop CenterCrop RandomResizedCrop")
_KEEPING = words(
    """
    RandomHorizontalFlip RandomVerticalFlip ToTensor PILToTensor ToPILImage ToImage ToDtype Normalize ColorJitter
    ConvertImageDtype Grayscale RandomGrayscale GaussianBlur RandomErasing RandAugment AutoAugment TrivialAugmentWide
    """
)
"""Transforms of torchvision that make pictures of one size out of pictures of one size."""

_BY_DATA = frozenset(("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "nms", "batched_nms"))
"""Functions and methods whose result is as large as the data make it."""

_MASKS = (*_BY_DATA, "bool", "isnan", "isfinite", "logical_and", "logical_or", "logical_not", "eq", "ne", "gt", "lt")

_RESIZING = frozenset(
    ("interpolate", "upsample", "resize", "resized_crop", "crop", "center_crop", "adaptive_avg_pool2d", "pad")
)

_NUMBER = "a number that is drawn"
_DRAWN = frozenset(("randint", "randrange", "choice", "choices", "uniform", "random", "normal", "sample", "rand"))


def sizes_of(passed: dict[str, Passed], batch: Argument, data: Dataset, value: Value | None) -> Sizes:
    """Whether a loader with these arguments, which reads ``value``, gives batches of one size (but for the last)."""
    own = _own_collate(passed.get("collate_fn"))
    if own is not None and (PADS in own or own.endswith(RAGGED)):
        return Sizes("varies", own, partly=own.endswith(BESIDES))
    if own is not None:
        return Sizes("unknown", f"{own} puts its batches together, and may make them as long as what is in them")
    if data.kind == "iterable":
        return Sizes("unknown", "its data are a stream, which may come sorted by size")
    drawn = sorted({each for member in members(value) for each in _sizes_drawn(member)})
    if drawn:
        return Sizes("varies", f"{drawn[0]} gives samples of another size each time")
    given = members(value)
    if given and all(_is_of_one_size(member) for member in given):
        return Sizes("fixed")
    if data.stateful is not None:
        return Sizes("unknown", f"its data change while the program trains ({data.stateful})")
    if "batch_sampler" in passed and not is_none(passed["batch_sampler"].value):
        if all(_cuts_what_is_drawn(member) for member in members(passed["batch_sampler"].value)):
            return Sizes("fixed")
        return Sizes("unknown", "a batch sampler groups its samples, perhaps by size")
    sampler = passed.get("sampler")
    if sampler is not None and not all(_draws_from_all(member) for member in members(sampler.value)):
        return Sizes("unknown", "a sampler of the program's own orders its samples, perhaps by size")
    if batch.state not in ("value", "option") or not all(isinstance(each, int) for each in batch.values):
        size = "is 1" if batch.state == "absent" else "is not known"
        return Sizes("unknown", f"its batch size {size}, so that its samples may differ in size")
    if any(isinstance(each, int) and each < 2 for each in batch.values):
        return Sizes("unknown", "its batch size is 1, so that its samples may differ in size")
    return Sizes("fixed")


PADS, BESIDES = " pads each batch to its own longest sample", ", and stacks others"
RAGGED = " puts samples of many lengths behind each other"
_NOTED = regex(r"\bcumsum\(|\bappend\((\w+\.(size\(|shape\b|numel\()|len\()")


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
            if called & {"cat", "concatenate", "hstack"} and _NOTED.search(ast.unparse(function.node)):
                return f"`{function.node.name}`{RAGGED}"
            pads = PADS + (BESIDES if called & {"stack", "default_collate"} else "") if "pad_sequence" in called else ""
            return f"`{function.node.name}`{pads}"
        return "a `collate_fn`"
    return None


def _draws_from_all(value: Value) -> bool:
    if isinstance(value, Made):
        return value.qualname in _DRAWING
    return isinstance(value, Const) and value.value is None


def _cuts_what_is_drawn(value: Value) -> bool:
    """Whether it is torch's own ``BatchSampler``, with two samples or more a batch, of which any may come together."""
    if not isinstance(value, Made) or value.qualname not in CUTTING:
        return False
    sampler, size = value.arguments.get("sampler", 0), value.arguments.get("batch_size", 1)
    several = list(constants(size.value)) if size is not None else []
    return (
        sampler is not None
        and all(isinstance(each, Made) and each.qualname in _DRAWING for each in members(sampler.value))
        and bool(several)
        and all(isinstance(each, int) and each > 1 for each in several)
    )


def _is_of_one_size(value: Value, depth: int = 4) -> bool:
    """Whether all samples have one size whatever the batch is: known data, or parts of them."""
    if isinstance(value, Instance):
        return _gives_cut_ones(value)
    if not isinstance(value, Made) or depth < 0:
        return False
    if value.qualname in _OF_ONE_SIZE:
        return True
    if value.qualname == "torchvision.datasets.ImageFolder":
        given = value.arguments.get("transform", 1)
        return given is not None and "transform" not in value.attributes and _cuts(given.value)
    if value.qualname in ("torch.utils.data.Subset", "torch.utils.data.random_split"):
        inner = value.inner or (value.arguments.positions[0].value if value.arguments.positions else None)
        found = members(inner)
        return bool(found) and all(_is_of_one_size(each, depth - 1) for each in found)
    return False


def _cuts(value: Value | None) -> bool:
    """Whether a transform gives pictures of one size, of whatever size it is given them."""
    found = members(value)
    return bool(found) and all(isinstance(each, Made) and each.kind == "transform" and _is_cut(each) for each in found)


def _is_cut(transform: Made) -> bool:
    name = transform.qualname.rpartition(".")[2]
    passed = transform.arguments.get("transforms" if name == "Compose" else "size", 0)
    given = members(passed.value) if passed is not None else ()
    if name == "Resize":  # one number is the length of the shorter edge
        return bool(given) and all(isinstance(each, Items) and len(each.items or ()) == 2 for each in given)
    if name != "Compose":
        return name in _CROPPING
    return bool(given) and all(isinstance(each, Items) and _ends_in_one_size(each) for each in given)


def _ends_in_one_size(steps: Items) -> bool:
    for step in reversed(steps.items or ()):
        if _cuts(step):
            return True
        if not all(isinstance(each, Made) and each.qualname.rpartition(".")[2] in _KEEPING for each in members(step)):
            return False
    return False


def _gives_cut_ones(data: Instance) -> bool:
    """Whether all that its ``__getitem__`` gives has gone through such a transform of its own last."""
    for method in members(data.cls.find("__getitem__")):
        if not isinstance(method, Function) or not isinstance(method.node, ast.FunctionDef):
            return False
        returned = [each.value for each in walk(method.node) if isinstance(each, ast.Return)]
        parts = [one for each in returned for one in (each.values if isinstance(each, ast.Dict) else [each])]
        if not parts or not all(_went_through(each, method.node, data) for each in parts):
            return False
    return True


def _went_through(part: ast.expr | None, method: ast.FunctionDef, data: Instance) -> bool:
    made = [part]
    if isinstance(part, ast.Name):
        writes = [each for each in walk(method) if isinstance(each, ast.Assign) and part.id in stored([each])]
        if not writes and part.id in [each.arg for each in method.args.args[1:]]:
            return True  # the index
        last = max(writes, key=lambda each: each.lineno, default=None)
        always = last is not None and last in method.body and last.lineno < part.lineno
        made = [each.value for each in ([last] if last is not None and always else writes)]
    return bool(made) and all(_is_cut_by(each, method, data) for each in made)


def _is_cut_by(node: ast.expr | None, method: ast.FunctionDef, data: Instance) -> bool:
    if not isinstance(node, ast.Call) or len(node.args) != 1 or not method.args.args:
        return False
    head, _, attribute = (dotted(node.func) or "").partition(".")
    return head == method.args.args[0].arg and _cuts(data.attributes.get(attribute))


def _sizes_drawn(value: Value, depth: int = 5) -> Iterator[str]:
    """The transforms of a data set that give samples of differing sizes."""
    if not isinstance(value, Made) or depth < 0:
        return
    name = value.qualname.rpartition(".")[2]
    if value.kind == "transform" and name in _SIZES_DRAWN:
        yield name
    inside = [*value.arguments.values(), *([value.inner] if value.inner is not None else [])]
    for each in inside:
        for member in flatten(each, 3):
            if isinstance(member, Made) and member.kind in ("transform", "dataset"):
                yield from _sizes_drawn(member, depth - 1)


# --- on the way from the loader through the layers ------------------------------------------------------------------


def resized(analysis: Analysis, record: LoopRecord, events: list[Event]) -> Sizes | None:
    """What may give the tensors of one iteration another size than those of the next, in what feeds a model or in it.

    A part is taken by a mask, or a size is drawn. None where nothing of that was seen.
    """
    facts = analysis.facts
    inside: dict[int, tuple[ast.AST, ModuleFile]] = {}
    for event in events:
        for frame in facts.frames_within(event, record.node)[1:]:
            if is_of_layer(frame):
                inside.setdefault(id(frame.scope), (frame.scope, frame.module))
    for scope, module in inside.values():
        for node, what in hazards_in(scope):
            return Sizes(_state(what), what, facts.places.site(node, module))
    seen: set[tuple[ast.AST, ast.AST]] = set()
    for event in events:
        if event.kind != "forward":
            continue
        for frame in facts.frames_within(event, record.node):
            if is_of_layer(frame):
                break
            body = record.node if any(record.node is each for each in frame.loops) else frame.scope
            if (frame.anchor, body) in seen:
                continue
            seen.add((frame.anchor, body))
            for node, what in _hazards_before(frame.anchor, body):
                return Sizes(_state(what), what, facts.places.site(node, frame.module))
    return None


def resized_in(analysis: Analysis, events: list[Event], functions: Sequence[ast.AST]) -> Sizes | None:
    """The same of everything that some functions do, and what they call: the steps of a module, and its layers."""
    facts = analysis.facts
    scopes: dict[int, tuple[ast.AST, ModuleFile]] = {}
    for event in events:
        frames = facts.frames(event)
        inside = (i for i, frame in enumerate(frames) if any(frame.scope is each for each in functions))
        for frame in frames[next(inside, len(frames)) :]:
            scopes.setdefault(id(frame.scope), (frame.scope, frame.module))
    for scope, module in scopes.values():
        for node, what in hazards_in(scope):
            return Sizes(_state(what), what, facts.places.site(node, module))
    return None


def _state(what: str) -> Literal["varies", "unknown"]:
    """Whether sizes certainly change: a mask may take as much each time."""
    return "varies" if what.startswith(_NUMBER) else "unknown"


@once_per_node
def hazards_in(scope: ast.AST) -> tuple[tuple[ast.AST, str], ...]:
    """The expressions of a function whose size is up to the data, or to a number that is drawn."""
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
        if isinstance(node, ast.Call) and not (_last(node) in _BY_DATA or _last(node) in _RESIZING):
            continue
        if sets is None:
            sets = {}
            for each in around:
                if isinstance(each, ast.Assign):
                    for name in written(each):
                        sets.setdefault(name, []).append(each.value)
        if isinstance(node, ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                continue
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(_is_mask(part, sets) for part in parts):
                yield node, "a mask takes a part of a tensor, as large as the data make it"
            elif any(isinstance(part, ast.Slice) and _is_drawn([part.lower, part.upper], sets) for part in parts):
                yield node, f"{_NUMBER} says how large a part of a tensor is taken"
        elif _last(node) in _BY_DATA:
            yield node, f"`{_last(node)}` gives as much as the data make it"
        elif _is_drawn([*node.args[1:], *(keyword.value for keyword in node.keywords)], sets):
            yield node, f"{_NUMBER} says how large a tensor becomes"


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
        return _last(part) in _MASKS or (_last(part) == "where" and len(part.args) == 1)
    name = dotted(part)
    return depth > 0 and name is not None and any(_is_mask(each, sets, depth - 1) for each in sets.get(name, ()))


def _is_drawn(sizes: Iterable[ast.expr | None], sets: dict[str, list[ast.expr]], depth: int = 3) -> bool:
    """Whether a number in some expressions comes from ``random``, by name or through names that are set here."""
    for size in sizes:
        for node in walk(size) if size is not None else ():
            if isinstance(node, ast.Call) and _last(node) in _DRAWN:
                return True
            name = node.id if isinstance(node, ast.Name) else None
            if depth and name is not None and _is_drawn(sets.get(name, ()), sets, depth - 1):
                return True
    return False
