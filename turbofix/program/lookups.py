"""Numbers that a step picks out of a small table of the host by indices that it brings there from the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame, settled
from turbofix.program.libraries import words
from turbofix.program.model import Lookup, Step
from turbofix.program.names import parameters, reads_of
from turbofix.program.placements import names_another
from turbofix.program.sites import FUNCTIONS
from turbofix.program.values import Bound, Computed, Const, Function, Host, Option, Tensor, Unknown, Value, members
from turbofix.records import dataclass

_PICKING = words("gather index_select")
"""Methods and functions that take a dimension and an index, and nothing else that matters here."""
_VIEWS = words("reshape view unsqueeze squeeze expand flatten contiguous detach clone permute transpose")
"""Methods that do the same to a tensor wherever it lies."""
_TABLES = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_DEPTH = 24
AT_ONCE = 4096
"""Elements of a table that a copy from the host brings to the device in next to no time: 64 KB of 16 bytes each."""


@dataclass(frozen=True, eq=False)
class _Picking:
    """``table.gather(-1, index.cpu())``: the whole, the table, and the dimension where there is one."""

    whole: ast.Call | ast.Subscript
    table: ast.expr


@dataclass(frozen=True, eq=False)
class _Way:
    """Where the picked numbers are sent to the device: the call of ``to`` and what it is called on."""

    copy: ast.Call
    moved: ast.expr


def lookups(analysis: Analysis, steps: Iterable[Step]) -> tuple[Lookup, ...]:
    """Such look-ups in training steps, one for each place, in the order of the text."""
    facts = analysis.facts
    training = {step.loop.site: step for step in steps}
    found: dict[Site, Lookup | None] = {}
    for event in facts.of("transfer") if training else ():
        if event.name != "cpu" or not isinstance(event.node, ast.Call) or event.node.args or event.node.keywords:
            continue
        around = [each.node for each in facts.loops(event) if facts.places.site(each.node, each.module) in training]
        picking = _picking(analysis, event)
        if picking is None or not around:
            continue
        step = training[facts.places.site(around[-1], facts.frames_within(event, around[-1])[0].module)]
        site = facts.places.site(picking.whole, event.module)
        if site in found and found[site] is None:
            continue  # on another way it is something else
        seen = found.get(site)
        read = _lookup(analysis, event, picking, step, around[-1])
        found[site] = read if read is None or seen is None or seen.why_not is None else seen
    return tuple(each for _, each in sorted(found.items()) if each is not None)


def _picking(analysis: Analysis, event: Event) -> _Picking | None:
    """What an index that is brought to the host is used for, if it is to pick numbers."""
    places, module = analysis.facts.places, event.module
    parent = places.parent(event.node, module)
    if isinstance(parent, ast.Subscript) and parent.slice is event.node and isinstance(parent.ctx, ast.Load):
        return _Picking(parent, parent.value)
    if not isinstance(parent, ast.Call) or not isinstance(parent.func, ast.Attribute) or parent.keywords:
        return None
    if parent.func.attr not in _PICKING or parent.args[-1] is not event.node:
        return None
    names = {each.name for each in analysis.facts.at(parent) if each.kind == "call"}
    if names == {f"Tensor.{parent.func.attr}"} and len(parent.args) == 2:
        table, dimension = parent.func.value, parent.args[0]
    elif names == {f"torch.{parent.func.attr}"} and len(parent.args) == 3:
        table, dimension = parent.args[0], parent.args[1]
    else:
        return None
    plain = dimension.operand if isinstance(dimension, ast.UnaryOp) else dimension
    return _Picking(parent, table) if isinstance(plain, ast.Constant) else None


def _lookup(analysis: Analysis, event: Event, picking: _Picking, step: Step, loop: ast.AST) -> Lookup | None:
    """What is known of one look-up; None where it is not one, or nothing is gained."""
    facts, module = analysis.facts, event.module
    assert isinstance(event.node, ast.Call) and isinstance(event.node.func, ast.Attribute)
    index = event.node.func.value
    if not isinstance(index, ast.Name) or not isinstance(picking.table, _TABLES):
        return None
    indices = members(event.receiver)
    if not indices or not all(isinstance(each, Tensor) and each.device in ("cuda", "conditional") for each in indices):
        return None
    frames = facts.frames(event)
    tables = members(facts.evaluate(picking.table, frames))
    if not tables or not all(isinstance(each, Tensor) and each.device == "cpu" for each in tables):
        return None
    way = _way(analysis, picking.whole, module)
    if way is None:
        return None
    copies = [each for each in facts.at(way.copy) if each.kind == "transfer"]
    places = [analysis.devices.of_transfer(each) for each in copies]
    if not places or not all(place.reaches_cuda for place in places) or not all(map(_only_moves, copies)):
        return None
    lengths = _Lengths(analysis)
    longest = [lengths.of_value(each) for each in tables]
    table = facts.places.text(picking.table, module)
    why = None
    if None in longest:
        why = (
            f"`{table}` is not known to be a short table of plain numbers, and a long one would be copied in every step"
        )
    elif max(each for each in longest if each is not None) > AT_ONCE:
        why = f"`{table}` is too long to be copied in every step"
    back = way.copy.args[0] if way.copy.args else None
    # Behind the rewrite this copy moves nothing: it goes, where nothing can have happened to the name in between.
    goes = (
        isinstance(way.copy.func, ast.Attribute)
        and way.copy.func.attr == "to"
        and len(way.copy.args) == 1
        and not way.copy.keywords
        and isinstance(back, ast.Attribute)
        and back.attr == "device"
        and isinstance(back.value, ast.Name)
        and back.value.id == index.id
        and _is_settled(analysis, index, module)
    )
    another = any(map(names_another, analysis.execution.modules.values()))
    return Lookup(
        site=facts.places.site(picking.whole, module),
        table=facts.places.site(picking.table, module),
        index=facts.places.site(index, module),
        brought=facts.site(event),
        name=index.id,
        back=facts.places.site(way.copy, module) if goes else None,
        moved=facts.places.site(way.moved, module) if goes else None,
        loop=step.loop,
        to=places[0],
        names_another=another,
        guard=analysis.guards.guard(event, loop),
        why_not=why,
    )


def _only_moves(copy: Event) -> bool:
    """Whether a copy names a device alone: another type of numbers may be the only one that the device has."""
    given = copy.arguments
    if given is None or given.open or given.star or len(given.positions) > 1:
        return False
    if not given.keywords.keys() <= {"device", "non_blocking"}:
        return False
    return not any(isinstance(each, Tensor) for value in given.values() for each in members(value))


def _is_settled(analysis: Analysis, name: ast.Name, module: ModuleFile) -> bool:
    """Whether a name of a function is one thing all through it."""
    owner = analysis.facts.bindings.owner(name.id, name, module)
    writes = len(analysis.facts.bindings.writes(owner, name.id))
    given = any(each.arg == name.id for each in parameters(owner))
    return isinstance(owner, FUNCTIONS) and writes + given == 1


def _way(analysis: Analysis, node: ast.expr, module: ModuleFile) -> _Way | None:
    """How what an expression gives comes to a device, if it goes there and nowhere else, through views alone."""
    places, bindings = analysis.facts.places, analysis.facts.bindings
    while True:
        parent = places.parent(node, module)
        if isinstance(parent, ast.Subscript) and parent.value is node and _is_view(parent.slice):
            node = parent
        elif isinstance(parent, ast.Attribute):
            call = places.parent(parent, module)
            if not isinstance(call, ast.Call) or call.func is not parent:
                return None
            if parent.attr in ("to", "cuda"):
                return _Way(call, node)
            if parent.attr not in _VIEWS:
                return None
            node = call
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            name = parent.targets[0]
            owner = bindings.owner(name.id, name, module)
            if not isinstance(owner, FUNCTIONS) or len(bindings.writes(owner, name.id)) != 1:
                return None
            reads = list(reads_of(name.id, owner))
            if len(reads) != 1 or name.id in bindings.captured(owner):
                return None
            node = reads[0]
        else:
            return None


def _is_view(index: ast.expr) -> bool:
    """Whether an index only cuts and adds dimensions: ``[:, None, None]``, ``[..., None]``."""
    return all(
        isinstance(each, (ast.Slice, ast.Tuple, ast.Constant, ast.UnaryOp, ast.unaryop, ast.expr_context))
        for each in walk(index)
    )


# --- how long a table is -------------------------------------------------------------------------------------------

_EVEN = words("linspace logspace")
_SHAPED = words("zeros ones empty rand randn full")
_HOLDING = words("tensor as_tensor asarray array from_numpy")
_EACH = words(
    """
    sqrt rsqrt exp exp2 expm1 log log2 log10 log1p cos sin tan tanh sigmoid abs square reciprocal neg pow clamp clip
    cumprod cumsum flip minimum maximum add sub subtract mul multiply div divide true_divide clone detach contiguous
    cpu numpy float double half astype type float32 float64 to copy
    """
)
"""Functions and methods that give as many numbers as the longest of what they are given."""
_JOINING = words("cat concat concatenate hstack append")


@dataclass(eq=False)
class _Lengths:
    """The most numbers that flat tables hold: those that are made of ranges and numbers, item by item."""

    analysis: Analysis
    _known: dict[ast.expr, int | None] = field(default_factory=dict)

    def of_value(self, value: Value) -> int | None:
        """The same of a tensor, and of all that is stored where it is; None where it may have two dimensions."""
        if not isinstance(value, Tensor) or value.origin is None:
            return None
        node, module = value.origin.node, value.origin.module
        if not isinstance(node, ast.expr):
            return None
        # two tensors that a name may be are one to the model, with the place of the first
        parent = self.analysis.facts.places.parent(node, module)
        stored = parent.targets if isinstance(parent, ast.Assign) else []
        return _most([self.of(each, module, _DEPTH) for each in (node, *stored)])

    def of(self, node: ast.expr, module: ModuleFile, depth: int) -> int | None:
        """The most numbers that an expression can give, in one dimension or none; None where that is not known."""
        if depth < 0:
            return None
        if node not in self._known:
            self._known[node] = None  # what is made of itself is not known
            self._known[node] = self._of(node, module, depth)
        return self._known[node]

    def _of(self, node: ast.expr, module: ModuleFile, depth: int) -> int | None:
        if isinstance(node, ast.Constant):
            return 1 if type(node.value) in (int, float) else None
        if isinstance(node, (ast.List, ast.Tuple)):
            return len(node.elts) if all(isinstance(each, ast.Constant) for each in node.elts) else None
        if isinstance(node, ast.UnaryOp):
            return self.of(node.operand, module, depth - 1)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return None
            return _most([self.of(each, module, depth - 1) for each in (node.left, node.right)])
        if isinstance(node, ast.Subscript):
            parts = isinstance(node.slice, (ast.Slice, ast.Constant, ast.UnaryOp))
            plain = not isinstance(node.slice, ast.Constant) or type(node.slice.value) is int
            return self.of(node.value, module, depth - 1) if parts and plain else None
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._of_name(node, module, depth)
        return self._of_call(node, module, depth) if isinstance(node, ast.Call) else None

    def _of_name(self, node: ast.Name | ast.Attribute, module: ModuleFile, depth: int) -> int | None:
        facts = self.analysis.facts
        if isinstance(node, ast.Attribute):
            written = facts.attribute_writes(node.attr)
            values = [(_assigned(each, node.attr), where) for each, _, where in written]
        else:
            owner = facts.bindings.owner(node.id, node, module)
            if any(each.arg == node.id for each in parameters(owner)):
                return 1 if self._is_number(node, module) else None
            values = [(_assigned(each, node.id), module) for each in facts.bindings.writes(owner, node.id)]
        if not values or self._is_number(node, module):
            return 1 if self._is_number(node, module) else None
        return _most([self.of(value, where, depth - 1) if value is not None else None for value, where in values])

    def _is_number(self, node: ast.expr, module: ModuleFile) -> bool:
        """Whether an expression is a plain number, whenever it is read."""
        facts = self.analysis.facts
        scope = facts.places.scope(node, module)
        found: list[Value] = []
        for frames in self._frames(scope, module):
            values = members(facts.evaluate(node, frames))
            if not values:
                return False
            found += values
        return bool(found) and all(map(_is_plain, found))

    def _frames(self, scope: ast.AST, module: ModuleFile) -> Iterator[tuple[Frame, ...]]:
        """The ways by which a function is entered, or the module."""
        if isinstance(scope, ast.Module):
            yield (Frame(scope, module, scope, None, ()),)
            return
        told: set[object] = set()
        for event in self.analysis.facts.events_in_functions([scope]):
            frames = self.analysis.facts.frames(event)
            if frames and frames[-1].scope is scope and frames[-1].opener not in told:
                told.add(frames[-1].opener)
                yield frames

    def _of_call(self, node: ast.Call, module: ModuleFile, depth: int) -> int | None:
        facts = self.analysis.facts
        events = [each for each in facts.at(node) if each.kind in ("call", "cast", "transfer", "sync")]
        names = {each.name.rpartition(".")[2] for each in events}
        if not names:
            return self._of_own(node, module, depth)
        packages = {each.name.rpartition(".")[0] for each in events if each.kind == "call"}
        if len(names) > 1 or not packages <= {"torch", "numpy", "Tensor", "torch.nn.functional"}:
            return None
        name = names.pop()
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            return None
        made = [self._made(name, each, packages) for each in events]
        if None not in made:
            return _most(made)
        if name in _HOLDING and node.args:
            return self.of(node.args[0], module, depth - 1)
        if name in _EACH:
            base = (
                [node.func.value] if isinstance(node.func, ast.Attribute) and not packages & {"torch", "numpy"} else []
            )
            given = (
                [*base, *node.args]
                if name not in ("to", "type", "astype", "flip", "cumprod", "cumsum")
                else (base or node.args[:1])
            )
            return _most([self.of(each, module, depth - 1) for each in given])
        if name in _JOINING:
            parts = node.args
            if len(parts) == 1 and isinstance(parts[0], (ast.List, ast.Tuple)):
                parts = parts[0].elts
            found = [self.of(each, module, depth - 1) for each in parts]
            return sum(each for each in found if each is not None) if None not in found else None
        if name == "pad" and len(node.args) == 2 and isinstance(node.args[1], ast.Tuple):
            added = [each.value if isinstance(each, ast.Constant) else None for each in node.args[1].elts]
            base_length = self.of(node.args[0], module, depth - 1)
            if base_length is None or len(added) != 2 or not all(type(each) is int for each in added):
                return None
            return base_length + sum(each for each in added if type(each) is int)
        return None

    def _made(self, name: str, event: Event, packages: set[str]) -> int | None:
        """How many numbers a range holds, or a vector of one size."""
        given = event.arguments
        if event.kind != "call" or given is None or given.open or given.star or "Tensor" in packages:
            return None
        if given.keywords.keys() & {"requires_grad", "out", "pin_memory", "device"}:
            return None  # what takes gradients, or is locked in memory, is no plain table
        if name in _EVEN:
            steps = given.get("steps", 2) or given.get("num", 2)
            number = settled(steps.value) if steps is not None else None
            return number if type(number) is int else None
        if name == "arange":
            ends = [settled(each.value) for each in given.positions]
            if not ends or not all(type(each) is int for each in ends):
                return None
            return len(range(*(each for each in ends if type(each) is int)))
        if name in _SHAPED and (len(given.positions) == 1 or name == "full"):
            number = settled(given.positions[0].value) if given.positions else None
            return number if type(number) is int else None
        return None

    def _of_own(self, node: ast.Call, module: ModuleFile, depth: int) -> int | None:
        """The same of what functions of the project return."""
        frames = next(self._frames(self.analysis.facts.places.scope(node, module), module), ())
        functions = members(self.analysis.facts.evaluate(node.func, frames)) if frames else ()
        found: list[int | None] = []
        for each in functions:
            function = each.function if isinstance(each, Bound) else each
            if not isinstance(function, Function) or not isinstance(function.node, ast.FunctionDef):
                return None
            if function.decorators:
                return None
            inner = [part for part in walk(function.node) if isinstance(part, (ast.Return, ast.Yield, ast.YieldFrom))]
            for part in inner:
                value = part.value if isinstance(part, ast.Return) else None
                found.append(self.of(value, function.module, depth - 1) if value is not None else None)
        return _most(found)


def _most(lengths: list[int | None]) -> int | None:
    return max((each for each in lengths if each is not None), default=None) if None not in lengths else None


def _assigned(write: ast.AST, name: str) -> ast.expr | None:
    """What a plain assignment to one name gives it."""
    if isinstance(write, ast.AnnAssign):
        return write.value
    if not isinstance(write, ast.Assign) or len(write.targets) != 1:
        return None
    target = write.targets[0]
    named = getattr(target, "attr", None) or getattr(target, "id", None)
    return write.value if named == name else None


def _is_plain(value: Value) -> bool:
    if isinstance(value, Option):
        return all(map(_is_plain, members(value.default)))
    if isinstance(value, Const):
        return type(value.value) in (int, float)
    return isinstance(value, (Computed, Host)) or (isinstance(value, Unknown) and value.number)
