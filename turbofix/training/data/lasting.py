"""How many steps a training takes, as far as literals, defaults of options and the sizes of published data tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.facts import Frame, settled
from turbofix.dataflow.provenance import argument_of
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event, LoopRecord, Passed
from turbofix.domain.values import Iterated, Made, Option, Value, members
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.source.nodes import children, walk
from turbofix.source.places import LOOPS
from turbofix.training.data.lengths import length
from turbofix.training.model import ABSENT, Argument


def iterations(analysis: Analysis, backward: Event, loop: ast.AST) -> int | None:
    """How many steps a training takes, as far as literals and defaults of options tell; None where they do not."""
    total = 1
    for record, frames in _around(analysis, backward):
        count = rounds(analysis, record, frames) if not _leaves_early(record.node) else None
        if count is None:
            return None
        total *= count
        if record.node is loop:
            return total
    return None


def passes(analysis: Analysis, backward: Event, loop: ast.AST) -> int | None:
    """How many passes a training makes over its data at most, as far as literals and defaults of options tell.

    That is how often the loops around its loop run. None where one of them does not say, or the loop itself counts.
    """
    total = 1
    for record, frames in _around(analysis, backward):
        count = rounds(analysis, record, frames, most=True)
        if not isinstance(record.node, ast.For) or not frames:
            return None
        if record.node is loop:
            over = _whole(record.iterated)
            call = over.origin.node if isinstance(over, Iterated) and over.wrapper == "range" and over.origin else None
            counts = isinstance(call, ast.Call) and not _SIZE.search(ast.unparse(call))
            return total if count is None and not counts else None
        if count is None or (count == 1 and _is_chosen(analysis, record, frames)):
            return None
        total *= count
    return None


def _around(analysis: Analysis, event: Event) -> Iterator[tuple[LoopRecord, tuple[Frame, ...]]]:
    """The loops around an event, the outermost first, each with the frames that it runs in."""
    frames = analysis.facts.frames(event)
    for record in analysis.facts.loops(event):
        index = next((i for i, frame in enumerate(frames) if any(record.node is each for each in frame.loops)), None)
        yield record, frames[: index + 1] if index is not None else ()


_SIZE = regex(r"len\(|size|shape|,.*,")
"""What tells of a ``range`` that it runs over data, and is no number of steps."""
_BATCH = regex(r"(?i)batch|(?<![a-z])bsz?(?![a-z])")


Cut = tuple[Argument, int | None]


def cut_size(analysis: Analysis, backward: Event, loop: ast.AST, events: list[Event]) -> Cut:
    """How many samples a loop cuts out of its data for a step: ``for i in range(0, n, size)``, ``x[i : i + size]``.

    With it, how long they are where they are windows that it draws.
    """
    frames = analysis.facts.frames(backward)
    frame = next((each for each in frames if any(own is loop for own in each.loops)), None)
    if frame is None or not isinstance(loop, ast.For):
        return _drawn(analysis, events)
    calls = [each for each in walk(loop.iter) if isinstance(each, ast.Call) and dotted(each.func) == "range"]
    sizes = [call.args[2] for call in calls if len(call.args) == 3]
    for cut in (each for statement in loop.body for each in walk(statement) if isinstance(each, ast.Slice)):
        lower, upper = cut.lower, cut.upper
        if isinstance(upper, ast.BinOp) and isinstance(upper.op, ast.Add):
            sizes += [upper.right] if lower is not None and ast.dump(upper.left) == ast.dump(lower) else []
        elif isinstance(upper, ast.BinOp) and isinstance(upper.op, ast.Mult) and isinstance(lower, ast.BinOp):
            ends = {ast.dump(upper.left), ast.dump(upper.right)}  # of `k * size` and `(k + 1) * size`
            sizes += [each for each in (lower.left, lower.right) if ast.dump(each) in ends]
    index = frames.index(frame)
    for size in sizes:
        value = analysis.facts.evaluate(size, frames[: index + 1])
        if value is not None:
            found = argument_of(Passed(value, True, size), analysis.facts, analysis.reads, frame.module)
            if _BATCH.search(f"{found.text} {found.option}"):
                return found, None
    return _drawn(analysis, events)


_INDICES = ("torch.randint", "numpy.random.randint", "numpy.random.choice")


def _drawn(analysis: Analysis, events: list[Event]) -> Cut:
    """How many windows a step draws of its data, and how long they are: ``data[i : i + length]`` for random ``i``."""
    facts = analysis.facts
    for event in (each for each in events if each.kind == "call" and each.name in _INDICES and each.arguments):
        given = event.arguments
        size = (given.get("size") or next(reversed(given.positions), None)) if given is not None else None
        node = size.node if size is not None else None
        if isinstance(node, (ast.Tuple, ast.List)):
            node = node.elts[0] if len(node.elts) == 1 else None
        frames = facts.frames(event)
        value = facts.evaluate(node, frames)
        cuts = [(each.lower, each.upper) for each in walk(frames[-1].scope) if isinstance(each, ast.Slice)]
        sums = [(begin, end) for begin, end in cuts if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add)]
        ends = [end.right for begin, end in sums if begin is not None and ast.dump(begin) == ast.dump(end.left)]
        lengths = [each for end in ends if type(each := settled(facts.evaluate(end, frames))) is int]
        if value is not None and node is not None and lengths:
            found = argument_of(Passed(value, True, node), facts, analysis.reads, event.module)
            if _BATCH.search(f"{found.text} {found.option}"):
                return found, max(lengths)
    return ABSENT, None


def _is_chosen(analysis: Analysis, record: LoopRecord, frames: tuple[Frame, ...]) -> bool:
    """Whether the user of the script may choose how often a loop runs."""
    over = _whole(record.iterated)
    call = over.origin.node if isinstance(over, Iterated) and over.origin is not None else None
    ends = [analysis.facts.evaluate(each, frames) for each in call.args[:2]] if isinstance(call, ast.Call) else []
    return any(isinstance(each, Option) for end in ends for each in members(end))


def _leaves_early(loop: ast.AST) -> bool:
    """Whether a loop may end before its time: a ``break`` of its own, or a ``return``."""
    waiting: list[ast.AST] = [*getattr(loop, "body", [])]
    for node in waiting:  # grows meanwhile
        if isinstance(node, (ast.Break, ast.Return)):
            return True
        if not isinstance(node, (*LOOPS, ast.FunctionDef, ast.Lambda)):
            waiting += children(node)
        elif isinstance(node, LOOPS):
            waiting += [each for each in walk(node) if isinstance(each, ast.Return)]
    return False


_WHOLE = ("enumerate", "iter", "track")
"""What runs through all of what it is given."""


def rounds(analysis: Analysis, record: LoopRecord, frames: tuple[Frame, ...], *, most: bool = False) -> int | None:
    """How often a loop runs: over a ``range`` of known numbers, or over a loader of known data.

    ``most``: how often at most, where it is not known at what number it starts (a training that is resumed); loaders
    are not counted then.
    """
    value = _whole(record.iterated) if isinstance(record.node, ast.For) and frames else None
    if isinstance(value, Iterated) and value.wrapper == "range" and value.origin is not None:
        call = value.origin.node
        if not isinstance(call, ast.Call) or not any(call is each for each in walk(record.node)):
            return None
        bounds = [_number(analysis, each, frames) for each in call.args[:2]]
        if most and len(bounds) > 1 and type(bounds[0]) is not int:
            bounds[0] = 0
        whole = [each for each in bounds if type(each) is int]
        if len(whole) != len(call.args):
            return None
        return max(whole[-1] - (whole[0] if len(whole) > 1 else 0), 0)
    if most or not isinstance(value, Made) or value.kind != "loader":
        return None
    return batches_of(analysis, value)


def _whole(value: Value | None, depth: int = 6) -> Value | None:
    """The range or the loader that a loop runs through to its end, perhaps counted or in a progress bar."""
    found = members(value)
    if len(found) != 1 or not depth:
        return None
    only = found[0]
    if isinstance(only, Iterated) and only.wrapper in _WHOLE:
        return _whole(only.source, depth - 1)
    if isinstance(only, Made) and only.kind != "loader" and only.inner is not None:
        return _whole(only.inner, depth - 1)
    return only


def _number(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...]) -> object:
    """What an end of a ``range`` is; of ``args.epochs + 1`` its sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms = [_number(analysis, each, frames) for each in (node.left, node.right)]
        whole = [each for each in terms if type(each) is int]
        return sum(whole) if len(whole) == len(terms) else None
    return settled(analysis.facts.evaluate(node, frames))


def batches_of(analysis: Analysis, loader: Made) -> int | None:
    """How many batches one pass over a loader gives."""
    data, size = loader.arguments.get("dataset", 0), loader.arguments.get("batch_size", 1)
    known = length(analysis, data.value, published=True) if data is not None else None
    batch = settled(size.value) if size is not None else 1
    if known is None or type(batch) is not int or batch < 1 or loader.qualname.endswith(".splits"):
        return None  # (what is split is several data sets, not one of so many items)
    return known // batch
