"""Tensors that torch makes on the host in a step and that the same expression copies to the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.events import Arguments, Event, Passed
from turbofix.program.facts import qualnames
from turbofix.program.libraries import words
from turbofix.program.model import Creation, Placement
from turbofix.program.names import dotted, reads_of, stores
from turbofix.program.placements import device_of
from turbofix.program.tensors import DTYPES, is_dtype
from turbofix.program.values import Const, External, Option, Tensor, Value, members
from turbofix.records import dataclass

_FILLED = words("zeros ones full empty eye arange zeros_like ones_like full_like empty_like")
"""Functions of torch that compute what they make without reading memory, and the same on every device."""
_DRAWN = words("rand randn randint randperm normal rand_like randn_like randint_like")
_ROUNDED = words("linspace logspace")
_FACTORIES = _FILLED | _DRAWN | _ROUNDED
_OF_ANY_TYPE = words("zeros ones empty zeros_like ones_like empty_like")
"""Those that make the same numbers in every type as a cast of what they made would."""

_KEEPING = words(
    """
    unsqueeze squeeze view reshape expand repeat t transpose permute flatten contiguous clone detach tril triu
    float double half bfloat16 long int short byte bool zero_ fill_
    """
)
"""Methods that give the same numbers on every device, of a tensor there."""
_PACKING = words("contiguous clone repeat tril triu")
"""Those whose result has a place of its own for each number, whatever they are called on."""
_DRAWING = words("normal_ uniform_ random_ bernoulli_ exponential_")
_AROUND = ("torch.autograd.Variable", "torch.triu", "torch.tril", "torch.unsqueeze", "torch.squeeze", "torch.transpose")
"""Functions that do the same to their first argument."""
_JOINING = frozenset(
    f"torch.{name}" for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
)
"""Functions that copy the tensors of a list into one."""

_PASSED = frozenset(("device", "dtype", "non_blocking", "copy"))


@dataclass(eq=False)
class _Making:
    """What lies between a copy and the call that makes what is copied."""

    calls: tuple[ast.Call, ...] = ()  # several, where it is put together of them
    draws: bool = False
    bare: bool = True  # nothing lies between
    leaf: bool = False  # it is told to take gradients on the way
    packed: bool = False  # what lies outside of this gives its numbers places of their own
    spread: bool = False  # the copy does: of what was expanded, or cut out of a larger tensor


def creations(analysis: Analysis, events: list[Event], loop: ast.AST) -> tuple[Creation, ...]:
    """Such expressions in a loop, one for each place, in the order of the text."""
    found: dict[ast.AST, Creation | None] = {}
    for event in events:
        if event.kind == "call" and event.name == _ON_GPU:
            made = _drawn_by_numpy(analysis, event, loop)
        elif event.kind == "transfer" and event.name in ("to", "cuda"):
            made = _creation(analysis, event, loop)
        else:
            continue
        known = found.get(event.node, made)
        found[event.node] = made if known is None or made is None else _merged(known, made)
    kept = [each for each in found.values() if each is not None]
    return tuple(sorted(kept, key=lambda each: each.site))


def _merged(first: Creation, second: Creation) -> Creation:
    """What is known of one place that was passed twice: what may be so on one way is so."""
    return replace(
        first,
        draws=first.draws or second.draws,
        rounds=first.rounds or second.rounds,
        to=first.to if first.to.reaches_cuda else second.to,
        guard=first.guard if first.guard.kind == "always" else second.guard,
        unsure=first.unsure or second.unsure,
        why_not=first.why_not or second.why_not,
    )


def _creation(analysis: Analysis, event: Event, loop: ast.AST) -> Creation | None:
    node, facts = event.node, analysis.facts
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or event.arguments is None:
        return None
    named = _named(analysis, node, event)
    making = _making(analysis, named[0] if named is not None else node.func.value)
    arguments = event.arguments
    if making is None or not making.calls or arguments.open or arguments.star:
        return None
    on_host = [isinstance(each, Tensor) and each.device == "cpu" for each in members(event.receiver)]
    if not on_host or not all(on_host) or not arguments.keywords.keys() <= _PASSED:
        return None
    made = [next(each for each in facts.at(call) if each.kind == "call") for call in making.calls]
    names = [each.name.rpartition(".")[2] for each in made]
    given = [each.arguments for each in made if each.arguments is not None]
    if len(given) < len(made) or not all(map(_takes_device, names, given)):
        return None
    place = analysis.devices.of_transfer(event)
    passed = _device_passed(arguments)
    if passed is not None and (passed.node is None or not _is_plain(analysis, passed.node)):
        return None
    if passed is None and event.name == "to":
        return None
    if passed is not None and any(isinstance(each, Tensor) for each in members(passed.value)):
        return None  # `.to(x)` gives it the type of x, too
    dtype = _dtype_passed(event, arguments)
    reasons = [_why_not(making, *each, event, passed, dtype) for each in zip(names, given, strict=True)]
    return Creation(
        site=facts.site(event),
        moved=facts.places.site(node.func.value, event.module),
        calls=tuple(facts.places.site(call, event.module) for call in making.calls),
        qualname=made[0].name,
        to=place,
        device=facts.places.text(passed.node, event.module) if passed is not None and passed.node is not None else None,
        dtype=facts.places.text(dtype.node, event.module) if dtype is not None and dtype.node is not None else None,
        draws=making.draws or not _DRAWN.isdisjoint(names),
        rounds=any(map(_rounds, names, given)),
        guard=analysis.guards.guard(event, loop),
        kept=_is_kept(facts.places.statement(node, event.module)),
        unused=facts.places.site(named[1], event.module) if named is not None else None,
        unsure=passed is not None and "unknown" in {device_of(each)[1] for each in members(passed.value)},
        why_not=next(filter(None, reasons), None),
    )


def _named(analysis: Analysis, node: ast.Call, event: Event) -> tuple[ast.expr, ast.stmt] | None:
    """What ``noise`` was made by, above ``noise = noise.to(device)`` in its block, and this statement.

    Nothing between them reads it, or writes what the device is read from.
    """
    places = analysis.facts.places
    moved = places.statement(node, event.module)
    owner = places.parent(moved, event.module) if moved is not None else None
    block = next((each for each in (getattr(owner, "body", ()), getattr(owner, "orelse", ())) if moved in each), ())
    if not isinstance(moved, ast.Assign) or moved.value is not node or not isinstance(node.func, ast.Attribute):
        return None
    name = node.func.value
    if not isinstance(name, ast.Name) or [dotted(each) for each in moved.targets] != [name.id]:
        return None
    told = {each.id for each in walk(node) if isinstance(each, ast.Name)}
    for statement in reversed(block[: block.index(moved)]):
        if isinstance(statement, ast.Assign) and [dotted(each) for each in statement.targets] == [name.id]:
            return statement.value, moved
        read = any(isinstance(each, ast.Name) and each.id == name.id for each in walk(statement))
        if read or any(written.partition(".")[0] in told for written, _ in stores(statement)):
            return None
    return None


_ON_GPU, _ON_HOST = "torch.cuda.FloatTensor", "torch.FloatTensor"
_RETYPING = ("torch.set_default_dtype", "torch.set_default_tensor_type", "torch.set_default_device")


def _drawn_by_numpy(analysis: Analysis, event: Event, loop: ast.AST) -> Creation | None:
    """``Tensor(np.random.normal(0, 1, shape))``, where ``Tensor`` is a type on the GPU if another tensor lies there."""
    node, facts, module = event.node, analysis.facts, event.module
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    shape = _standard_normal(analysis, node.args[0])
    found = _chosen_by(analysis, node.func, event)
    if shape is None or found is None or any(each.name in _RETYPING for each in facts.of("call", "set")):
        return None
    owner, statement = found
    text = f"{owner.id}.device"
    drawing = facts.places.site(node.args[0], module)
    return Creation(
        site=facts.site(event),
        moved=drawing,
        calls=(drawing,),
        qualname="numpy.random.normal",
        to=Placement("conditional", text, "device"),
        device=text,
        draws=True,
        guard=analysis.guards.guard(event, loop),
        kept=_is_kept(facts.places.statement(node, module)),
        shape=" ".join(facts.places.text(shape, module).split()),
        unused=facts.places.site(statement, module) if statement is not None else None,
    )


def _standard_normal(analysis: Analysis, node: ast.expr) -> ast.expr | None:
    """How many numbers numpy draws from the standard normal distribution; None where it does something else."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 3:
        return None
    if {event.name for event in analysis.facts.at(node) if event.kind == "call"} != {"numpy.random.normal"}:
        return None
    mean, deviation, shape = node.args
    standard = isinstance(mean, ast.Constant) and isinstance(deviation, ast.Constant)
    standard = standard and (mean.value, deviation.value) == (0, 1)  # type: ignore[attr-defined]
    asked = shape.func if isinstance(shape, ast.Call) and not (shape.args or shape.keywords) else None
    told = isinstance(shape, ast.Tuple) or (isinstance(shape, ast.Attribute) and shape.attr == "shape")
    return shape if standard and (told or (isinstance(asked, ast.Attribute) and asked.attr == "size")) else None


def _chosen_by(analysis: Analysis, func: ast.expr, event: Event) -> tuple[ast.Name, ast.stmt | None] | None:
    """The tensor that decides where a type has its tensors: ``torch.cuda.FloatTensor if x.is_cuda else ...``.

    With the statement that chooses the type, where nothing else reads the name that it gives it.
    """
    facts, module = analysis.facts, event.module
    scope = facts.places.scope(func, module)
    statement: ast.stmt | None = None
    chosen = func
    if isinstance(func, ast.Name):
        writes = facts.bindings.writes(scope, func.id)
        (write,) = writes if len(writes) == 1 else (None,)
        if not isinstance(write, ast.Assign) or len(write.targets) > 1 or not isinstance(write.targets[0], ast.Name):
            return None
        chosen = write.value
        statement = write if len(list(reads_of(func.id, scope))) == 1 else None
    if not isinstance(chosen, ast.IfExp) or not isinstance(chosen.test, ast.Attribute) or chosen.test.attr != "is_cuda":
        return None
    tensor = chosen.test.value
    if not isinstance(tensor, ast.Name) or facts.bindings.writes(scope, tensor.id):
        return None
    frames = facts.frames(event)
    types = [qualnames(facts.evaluate(each, frames)) for each in (chosen.body, chosen.orelse)]
    return (tensor, statement) if types == [{_ON_GPU}, {_ON_HOST}] else None


def _making(analysis: Analysis, node: ast.expr) -> _Making | None:
    """The call that makes what an expression gives, and what happens to it on the way; None where that is not known."""
    found = _Making()
    while True:
        if isinstance(node, ast.Subscript) and _is_cut(node.slice):
            found.spread = found.spread or not (found.packed or _is_dense(node.slice))
            node = node.value
        elif isinstance(node, ast.Call):
            names = {event.name for event in analysis.facts.at(node) if event.kind in ("call", "cast", "transfer")}
            name = names.pop() if len(names) == 1 else ""
            package, _, last = name.rpartition(".")
            if package == "torch" and last in _FACTORIES:
                found.calls = (node,)
                return found
            if name in _JOINING:
                return _joined(analysis, node, found)
            if name in _AROUND and node.args and not isinstance(node.args[0], ast.Starred):
                found.leaf = found.leaf or (name == _AROUND[0] and len(node.args) + len(node.keywords) > 1)
                node = node.args[0]
            elif isinstance(node.func, ast.Attribute) and last == node.func.attr and _is_kept_by(analysis, node):
                found.draws = found.draws or last in _DRAWING
                found.leaf = found.leaf or last == "requires_grad_"
                found.packed = found.packed or last in _PACKING
                found.spread = found.spread or (last == "expand" and not found.packed)
                node = node.func.value
            else:
                return None
        else:
            return None
        found.bare = False


def _joined(analysis: Analysis, node: ast.Call, found: _Making) -> _Making | None:
    """The same where several tensors are put together, each of which is made in its place in the list."""
    listed = node.args[0] if node.args else None
    told = [*node.args[1:], *(each.value for each in node.keywords)]
    if not isinstance(listed, (ast.List, ast.Tuple)) or any(each.arg not in ("dim", "axis") for each in node.keywords):
        return None
    if not all(isinstance(each, (ast.Constant, ast.UnaryOp)) for each in told):
        return None
    parts = [_making(analysis, each) for each in listed.elts]
    for part in parts:
        if part is None or not part.calls:
            return None
        found.calls += part.calls
        found.draws = found.draws or part.draws
        found.leaf = found.leaf or part.leaf
    found.bare = False
    return found


def _is_kept_by(analysis: Analysis, node: ast.Call) -> bool:
    """Whether a method gives the same numbers on every device."""
    assert isinstance(node.func, ast.Attribute)
    name = node.func.attr
    if name in ("to", "type"):
        events = [event for event in analysis.facts.at(node) if event.kind == "cast" and event.arguments is not None]
        values = [value for event in events for value in event.arguments.values()]  # type: ignore[union-attr]
        return bool(values) and len(node.args) + len(node.keywords) == 1 and all(map(_is_type, values))
    if name in _DRAWING:
        return not any(each.arg in (None, "generator") for each in node.keywords)
    return name in _KEEPING or name == "requires_grad_"


def _is_type(value: Value) -> bool:
    """Whether it is a type of numbers, and not one of tensors, which names a device too (``torch.ByteTensor``)."""
    return all(isinstance(each, External) and each.qualname in DTYPES for each in members(value))


def _is_cut(index: ast.expr) -> bool:
    """Whether an index is written with numbers and slices alone."""
    return all(
        isinstance(each, (ast.Slice, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.expr_context))
        or (isinstance(each, ast.Constant) and (each.value is None or each.value is ... or type(each.value) is int))
        or isinstance(each, ast.Name)
        for each in walk(index)
    ) and not isinstance(index, ast.Name)


def _is_dense(index: ast.expr) -> bool:
    """Whether an index takes what lies in one piece: rows, all of the columns."""
    first, *others = index.elts if isinstance(index, ast.Tuple) else [index]
    whole = isinstance(first, ast.Slice) and first.step is None
    return (whole or isinstance(first, (ast.Constant, ast.UnaryOp))) and all(
        (isinstance(each, ast.Slice) and each.lower is each.upper is each.step is None)
        or (isinstance(each, ast.Constant) and each.value in (None, ...))
        for each in others
    )


def _takes_device(name: str, given: Arguments) -> bool:
    """Whether the call can be told a device, and has not been."""
    if given.keywords.keys() & {"device", "out", "layout", "pin_memory", "names"}:
        return False
    return name != "normal" or given.get("size", 2) is not None  # of tensors for mean and deviation it takes none


def _device_passed(arguments: Arguments) -> Passed | None:
    """The device that a copy is told."""
    first = arguments.get("device", 0)
    return arguments.get("device", 1) if first is not None and is_dtype(first.value) else first


def _dtype_passed(event: Event, arguments: Arguments) -> Passed | None:
    """The type that a copy is told, too."""
    if event.name != "to":
        return None
    if "dtype" in arguments.keywords:
        return arguments.keywords["dtype"]
    return next((each for each in arguments.positions[:2] if is_dtype(each.value)), None)


_ASKING = frozenset(("torch.device", "torch.cuda.is_available", "torch.cuda.current_device"))


def _is_plain(analysis: Analysis, node: ast.expr) -> bool:
    """Whether an expression may as well be read where the tensor is made: names, attributes, literals, a choice."""
    return all(
        isinstance(each, (ast.Name, ast.Attribute, ast.Constant, ast.IfExp, ast.expr_context))
        or (isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant))
        or (isinstance(each, ast.Call) and _asks(analysis, each))
        for each in walk(node)
    )


def _asks(analysis: Analysis, call: ast.Call) -> bool:
    """Whether a call only makes or looks up a device."""
    events = analysis.facts.at(call)
    return bool(events) and {event.name for event in events} <= _ASKING


def _rounds(name: str, given: Arguments) -> bool:
    return name in _ROUNDED or (name == "arange" and not _counts(given))


def _counts(given: Arguments) -> bool:
    """Whether a range has whole numbers, or their sums, whatever it ends at: it starts at one and steps by one."""
    if given.star or given.open:
        return False
    dtype = given.keywords.get("dtype")
    if dtype is not None and _is_type(dtype.value) and not _is_floating(dtype.value):
        return True
    start = given.get("start", 0) if len(given.positions) > 1 or "start" in given.keywords else None
    step = given.get("step", 2)
    return all(each is None or _is_whole(each.value) for each in (start, step))


def _is_floating(value: Value) -> bool:
    names = [each.qualname.rpartition(".")[2] for each in members(value) if isinstance(each, External)]
    return any("float" in name or name in ("half", "double", "dtype") or name[0] == "c" for name in names)


def _is_whole(value: Value) -> bool:
    return all(
        (isinstance(each, Const) and type(each.value) is int)
        or (isinstance(each, Option) and not each.derived and _is_whole(each.default))
        for each in members(value)
    )


def _is_kept(statement: ast.AST | None) -> bool:
    """Whether a statement keeps what it makes beyond the step: in an attribute or a container."""
    if isinstance(statement, ast.Assign):
        return any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in statement.targets)
    return isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Attribute)


def _why_not(  # noqa: PLR0913
    making: _Making, name: str, given: Arguments, event: Event, passed: Passed | None, dtype: Passed | None
) -> str | None:
    """What makes it another program where the tensor is made on the device."""
    takes = given.keywords.get("requires_grad")
    off = takes is None or all(isinstance(each, Const) and each.value is False for each in members(takes.value))
    if making.leaf or not off:
        return "it takes gradients where it is made, on the host, and what is copied from it has none of its own"
    if "generator" in given.keywords:
        return "it is drawn from a generator of the host's, which cannot draw on the GPU"
    if given.open:
        return "the call unpacks a mapping that may hold `device` already"
    if making.spread:
        return "the copy gives each of its numbers a place of its own, where they share one or lie apart"
    if dtype is not None and (name not in _OF_ANY_TYPE or not making.bare or "dtype" in given.keywords):
        return "the copy changes the type of its numbers, too"
    told = _all(passed.value) if passed is not None and event.name == "cuda" else ()
    if any(isinstance(each, Const) and each.value is None for each in told):
        return "the device may be None, which is the current GPU here and the host where a tensor is made"
    return None


def _all(value: Value) -> Iterator[Value]:
    for each in members(value):
        yield each
        if isinstance(each, Option):
            yield from members(each.default)
