"""What becomes of a value: the expressions that it goes through, and who makes use of it in the end.

The interpreter kept the value of every expression, so that an object which a value is put into is known wherever it is
looked into; which reads of a name see a definition, the text tells (``reaching``). Both are asked for when somebody
asks, and for no other values.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Literal

from turbofix.dataflow.facts import Facts
from turbofix.dataflow.reaching import readers
from turbofix.domain.scopes import Frame
from turbofix.domain.trace import Control
from turbofix.domain.values import (
    Const,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Namespace,
    Opaque,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.interpreter.definitions import parameters_given
from turbofix.interpreter.execution import Execution
from turbofix.records import dataclass
from turbofix.source.names import loaded, parameters, targets
from turbofix.source.places import COMPREHENSIONS

STORING = frozenset({"append", "extend", "add", "insert", "put", "appendleft", "setdefault", "push", "send"})
"""Methods that keep their argument."""

_PASSING = frozenset(
    {
        "float", "int", "round", "abs", "str", "repr", "format", "bool", "sum", "exp", "log", "sqrt", "log2", "log10",
        "pow", "isfinite", "isnan", "isinf", "array", "asarray", "mean", "float32", "float64", "squeeze", "tuple",
        "list", "dict", "average", "detach", "cpu", "numpy", "item", "tolist", "join", "ljust", "rjust", "zip",
        "argmax", "floor", "ceil", "enumerate", "items", "values", "get", "copy", "reversed", "set",
    }
)  # fmt: skip
_TAKING = frozenset({"items", "values", "get", "pop", "copy"})
"""Methods of a dict that give what is in it, as it is."""

_CHOOSING = frozenset({"max", "min", "sorted"})
_ASKING = frozenset({"len", "isinstance", "type", "hasattr", "callable", "id", "is_tensor"})
"""What tells nothing of a number."""
_NUMBERS = frozenset({"float", "int", "numbers", "Number", "Real"})

_EXACT = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub)
_AROUND = (
    ast.BoolOp, ast.Compare, ast.FormattedValue, ast.JoinedStr, ast.Starred, ast.Tuple, ast.List, ast.Dict, ast.Set,
    ast.Await, ast.BinOp, ast.UnaryOp, *COMPREHENSIONS,
)  # fmt: skip
"""Expressions that stand for what they hold."""

_DECIDING = (ast.If, ast.While, ast.Assert, ast.Match, ast.Raise, ast.match_case)
_HOLDERS = (Instance, Namespace, Mapping, Sequence, Opaque, Made)
_NO_HOLDERS = frozenset((Const, Tensor, Host, Unknown))
_MOST = 3000
"""So many expressions are followed; beyond them a value is used for anything."""

Kind = Literal["shown", "control", "summed", "stored", "returned", "passed", "other", "seen"]
Place = tuple[Frame, ast.AST]
"""An expression, in the call of a function (or the file) that evaluates it."""

Until = Callable[[Frame, ast.AST], bool]


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a value: what uses it, and the expression that stands for it there.

    ``plain``: nothing but ``+ - * /`` lies in between, and ``untouched``: not even these. ``chosen``: it went through
    ``max``, ``min`` or ``sorted``, ``grown``: it is a sum that goes on growing.
    """

    kind: Kind
    frame: Frame
    node: ast.AST
    value: ast.AST
    plain: bool
    chosen: bool = False
    untouched: bool = True
    grown: bool = False


@dataclass(eq=False)
class Flow:
    """Where the values of one execution go."""

    facts: Facts
    execution: Execution = field(init=False)
    _around: dict[int, Frame] = field(default_factory=dict)  # a frame's caller
    _openers: dict[int, Control] = field(default_factory=dict)
    _called: dict[tuple[int, ast.AST], list[Frame]] = field(default_factory=lambda: defaultdict(list))
    _bodies: dict[ast.AST, list[Frame]] = field(default_factory=lambda: defaultdict(list))
    _summarized: dict[ast.AST, list[Place]] = field(default_factory=lambda: defaultdict(list))
    _held: dict[int, list[Place]] | None = None
    entered: set[tuple[int, ast.AST]] = field(default_factory=set)  # the calls that a value is followed into right now
    kinds: dict[tuple[int, ast.AST, Until | None], frozenset[Kind]] = field(default_factory=dict)
    _dicts: dict[int, dict[int, Mapping]] = field(default_factory=lambda: defaultdict(dict))  # that hold an object

    def __post_init__(self) -> None:
        self.execution = self.facts.execution
        for opener, frame in self.execution.frames.items():
            self._openers[id(frame)] = opener
            if opener.kind == "call" and frame.function is not None:
                self._bodies[frame.function.node].append(frame)
                outer = self.frame_at(opener.up)
                if outer is not None and opener.node is not None:
                    self._around[id(frame)] = outer
                    self._called[id(outer), opener.node].append(frame)
        for frame, call, body in self.execution.summarized:
            self._summarized[body].append((frame, call))
            if not self._called[id(frame), call]:
                self._called[id(frame), call] += self._bodies[body][-1:]

    def frame_at(self, control: Control | None) -> Frame | None:
        """The call or file that is being executed at a level."""
        while control is not None:
            found = self.execution.frames.get(control)
            if found is not None:
                return found
            control = control.up
        return None

    def callees(self, frame: Frame, call: ast.AST) -> list[Frame]:
        """The executions of the project's functions that a call stands for."""
        return self._called.get((id(frame), call), [])

    def opener(self, frame: Frame) -> Control:
        """The level that a frame was opened by."""
        return self._openers[id(frame)]

    def callers(self, frame: Frame) -> Iterator[Place]:
        """All calls that a frame's function returns to."""
        for each in self._bodies.get(frame.function.node, ()) if frame.function is not None else ():
            outer, node = self._around.get(id(each)), self.opener(each).node
            if outer is not None and node is not None:
                yield outer, node
        if frame.function is not None:
            yield from self._summarized.get(frame.function.node, ())

    def holding(self, holder: Value) -> list[Place]:
        """Every expression that was this very object."""
        if self._held is None:
            self._held = defaultdict(list)
            for frame in self.execution.frames.values():
                for node, value in frame.values.items():
                    for member in members(value) if type(value) not in _NO_HOLDERS else ():
                        if isinstance(member, _HOLDERS):
                            self._held[id(member)].append((frame, node))
                        if isinstance(member, Mapping):
                            kept = (*(entry.value for entry in member.entries.values()), member.element)
                            for inner in (each for one in kept for each in members(one)):
                                self._dicts[id(inner)][id(member)] = member
        return self._held.get(id(holder), [])

    def around(self, holder: Value) -> list[Place]:
        """Every expression that was a dict with this very object in it."""
        return [place for outer in self._dicts.get(id(holder), {}).values() for place in self.holding(outer)]

    def uses(
        self, node: ast.AST, control: Control | None, *, deep: bool = False, until: Until | None = None
    ) -> list[Use]:
        """Who makes use of an expression's value at a level of the execution: in its function.

        ``deep``: also where it is stored, returned or passed on to; there no further than to the places of which
        ``until`` is true, by which it is ``seen``.
        """
        frame = self.frame_at(control)
        return _Following(self, frame, node, deep, until).found if frame is not None else []


class _Following:
    """One value on its way."""

    def __init__(self, flow: Flow, frame: Frame, node: ast.AST, deep: bool, until: Until | None = None) -> None:
        self.flow, self.deep, self.until = flow, deep, until
        self.found: list[Use] = []
        read = [each for each in flatten(frame.values.get(node)) if type(each) is Host]
        self.origins = {origin.node for host in read for origin in host.syncs} & {node}
        seen: set[tuple[int, ast.AST]] = set()
        waiting: list[tuple[Frame, ast.AST, bool, bool, bool, bool]] = [(frame, node, True, False, True, False)]
        while waiting:
            self.frame, self.node, self.plain, self.chosen, self.untouched, self.grown = waiting.pop()
            if (id(self.frame), self.node) in seen:
                continue
            seen.add((id(self.frame), self.node))
            if len(seen) > _MOST:
                self._use("other", self.node)
                return
            if (
                self.node is not node
                and until is not None
                and not self._reached_into()
                and until(self.frame, self.node)
            ):
                self._use("seen", self.node)
                continue
            waiting += [(*place, self.plain, self.chosen, self.untouched, self.grown) for place in self._next()]

    def _reached_into(self) -> bool:
        """Whether the expression that holds the value is only asked for an item or attribute, or whether it is None, or
        is the result of a call in which it is handed on under a name."""
        above = self.flow.facts.places.parent(self.node, self.frame.module)
        if self._is_asked(above):
            return True
        if isinstance(above, ast.Assign) and isinstance(self.node, ast.Call) and self._is(self.node, Mapping, Sequence):
            return True
        if not isinstance(above, (ast.Subscript, ast.Attribute)) or above.value is not self.node or is_part(above):
            return False
        call = self.flow.facts.places.parent(above, self.frame.module)
        return isinstance(above.ctx, ast.Load) and not (isinstance(call, ast.Call) and call.func is above)

    def _is_asked(self, above: ast.AST | None) -> bool:
        """Whether a comparison only asks what the value is, or for a key."""
        return isinstance(above, ast.Compare) and (
            all(isinstance(each, (ast.Is, ast.IsNot)) for each in above.ops)
            or (isinstance(above.ops[-1], (ast.In, ast.NotIn)) and self._is(self.node, Mapping))
        )

    def _use(self, kind: Kind, node: ast.AST) -> list[Place]:
        went = (self.plain, self.chosen, self.untouched, self.grown)
        self.found.append(Use(kind, self.frame, node, self.node, *went))
        return []

    def _may_be(self, place: Place) -> bool:
        """Whether an expression can hold the value, by what was read of tensors to become it."""
        hosts = [each for each in flatten(place[0].values.get(place[1])) if type(each) is Host]
        return not self.origins or not hosts or self._is_read(hosts)

    def _is_read(self, hosts: Iterable[Value]) -> bool:
        return any(o.node in self.origins for host in hosts if type(host) is Host for o in host.syncs)

    def _is(self, node: ast.AST, *kinds: type[Value]) -> bool:
        """Whether an expression is nothing but one of these."""
        found = members(self.frame.values.get(node))
        return bool(found) and all(isinstance(each, kinds) for each in found)

    def _holds(self, item: ast.Subscript) -> bool:
        """Whether an item of a container may be the value: not where the container has it under another key."""
        for holder in members(self.frame.values.get(item.value)):
            entry = holder.entries.get(self._key(item)) if isinstance(holder, Mapping) else None
            if entry is not None and self._is_read(flatten(holder)) and not self._is_read(flatten(entry.value)):
                return False
        return self._may_be((self.frame, item))

    def _next(self) -> list[Place]:
        """The expressions that stand for the value behind the one that it has reached; notes its uses."""
        frame, node = self.frame, self.node
        parent = self.flow.facts.places.parent(node, frame.module)
        if isinstance(parent, ast.keyword):
            parent = self.flow.facts.places.parent(parent, frame.module)
        if isinstance(parent, ast.Expr):
            return []
        if isinstance(parent, ast.Call):
            return [(frame, parent)] if node is parent.func else self._argument(parent)
        if isinstance(parent, (ast.Tuple, ast.List)) and (unpacked := self._unpacked(parent)) is not None:
            return unpacked
        if self._is_asked(parent):
            return []
        if isinstance(parent, _AROUND):
            kept = isinstance(getattr(parent, "op", ast.Add()), _EXACT)
            union = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.BitOr)
            if union and any(self._is(each, Mapping) for each in ast.iter_child_nodes(parent)):
                return [(frame, parent)]  # two dicts become one
            display = isinstance(parent, (ast.Tuple, ast.List, ast.Dict, ast.Set, *COMPREHENSIONS))
            computed = isinstance(parent, (ast.BinOp, ast.UnaryOp))
            self.plain = self.plain and kept and (display or computed or isinstance(parent, ast.Starred))
            self.untouched = self.untouched and display
            self.grown = self.grown and not computed
            return [(frame, parent)]
        if isinstance(parent, ast.Attribute):
            return self._looked_into(parent)
        if isinstance(parent, ast.Subscript):
            if node is not parent.value:
                return self._use("other", parent)
            self.plain = self.plain and not is_part(parent) and self._is(node, Mapping, Sequence)
            return [(frame, parent)] if isinstance(parent.ctx, ast.Load) and self._holds(parent) else []
        if isinstance(parent, ast.IfExp) and node is not parent.test:
            return [(frame, parent)]
        if isinstance(parent, (*_DECIDING, ast.IfExp)):
            return self._use("control", parent)
        if isinstance(parent, ast.comprehension) and node is not parent.iter:
            return self._use("control", parent)
        if isinstance(parent, (ast.comprehension, ast.For, ast.AsyncFor)):
            if self._is(node, Mapping):
                return []  # its keys
            self.plain = self.plain and self._is(node, Mapping, Sequence, Iterated)
            pair = isinstance(parent.target, ast.Tuple) and called(node) in ("items", "enumerate")
            target = parent.target.elts[-1] if pair else parent.target  # type: ignore[attr-defined]
            return [place for each in targets(target) for place in self._read_by(each)]
        if isinstance(parent, (ast.Return, ast.Yield, ast.YieldFrom, ast.Lambda)):
            return self._returned(parent)
        if isinstance(parent, ast.AugAssign):
            return self._added(parent)
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            return self._assigned(parent)
        return self._use("other", parent if parent is not None else node)

    # --- names, attributes, items -----------------------------------------------------------------------------------

    def _read_by(self, target: ast.AST) -> list[Place]:
        """The reads that may see what is given to a target."""
        frame = self.frame
        if isinstance(target, (ast.Name, ast.arg)):
            scope = self.flow.facts.places.scope(target, frame.module)
            name = target.id if isinstance(target, ast.Name) else target.arg
            owner = self.flow.facts.bindings.owner(name, target, frame.module)
            if owner is not scope and not isinstance(owner, COMPREHENSIONS):
                return self._use("other", target)  # a global
            if name in self.flow.facts.bindings.captured(scope):
                self._use("other", target)
            return [place for read in readers(scope).get(target, ()) if self._may_be(place := (frame, read))]
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            holders = members(frame.values.get(target.value))
            if self.deep and not any(isinstance(each, _HOLDERS) for each in holders):
                return self._use("other", target)  # who else has it is not known
            kind: Kind = "stored" if isinstance(target, ast.Subscript) or self.until is not None else "other"
            self._use(kind, target)
            return self._slot_reads(target) if self.deep else []
        return self._use("other", target)

    def _slot_reads(self, target: ast.Attribute | ast.Subscript) -> list[Place]:
        """The reads of the attribute or item that a target names, and of the whole container."""
        key = self._key(target)
        places: list[Place] = []
        for holder in members(self.frame.values.get(target.value)):
            for frame, node in self.flow.holding(holder):
                above = self.flow.facts.places.parent(node, frame.module)
                asked = isinstance(above, ast.Attribute) and isinstance(holder, (Mapping, Sequence))  # losses.items()
                if isinstance(above, (ast.Attribute, ast.Subscript)) and above.value is node and not asked:
                    if self._key(above, frame) in (key, None) and self._may_be((frame, above)):
                        places.append((frame, above))
                elif isinstance(node, (ast.Name, ast.Attribute)) and (
                    isinstance(holder, (Mapping, Sequence)) or isinstance(target, ast.Subscript)
                ):
                    places.append((frame, node))
        return [place for place in places if isinstance(getattr(place[1], "ctx", None), ast.Load)]

    def _key(self, node: ast.Attribute | ast.Subscript, frame: Frame | None = None) -> object:
        """The attribute or key of a slot; None for one that is not known."""
        if isinstance(node, ast.Attribute):
            return node.attr
        value = (frame or self.frame).values.get(node.slice)
        return value.value if type(value) is Const else None

    def _whole(self, holder: ast.AST) -> list[Place]:
        """The reads of a container that the value was put into."""
        found: list[Place] = []
        for each in members(self.frame.values.get(holder)):
            own = self.flow.holding(each)
            around = self.flow.around(each)
            found += [*around, *(place for place in own if not around or not self._is_local(place))]
        return [
            place
            for place in found
            if isinstance(place[1], (ast.Name, ast.Attribute, ast.Subscript)) and not is_part(place[1])
        ]

    def _is_local(self, place: Place) -> bool:
        """Whether a name belongs to a comprehension, which takes its values out of something that holds them."""
        frame, node = place
        bindings = self.flow.facts.bindings
        return isinstance(node, ast.Name) and isinstance(bindings.owner(node.id, node, frame.module), COMPREHENSIONS)

    def _looked_into(self, attribute: ast.Attribute) -> list[Place]:
        """``value.attribute`` and ``value.method()``."""
        call = self.flow.facts.places.parent(attribute, self.frame.module)
        if attribute.attr == "item" and isinstance(call, ast.Call) and self._is(attribute.value, Host):
            return [(self.frame, call)]  # of an array of one number
        self.plain = self.plain and attribute.attr in _TAKING and self._is(attribute.value, Mapping)
        if not isinstance(call, ast.Call) or call.func is not attribute:
            reads = isinstance(attribute.ctx, ast.Load) and self._may_be((self.frame, attribute))
            return [(self.frame, attribute)] if reads else []
        value = self.frame.values.get(call)
        nothing = attribute.attr in STORING or (type(value) is Const and value.value is None)
        return [] if nothing or not self._may_be((self.frame, call)) else [(self.frame, call)]

    # --- statements -------------------------------------------------------------------------------------------------

    def _unpacked(self, display: ast.Tuple | ast.List) -> list[Place] | None:
        """``a, b = x.item(), y.item()``: the reads of this item's target; None where it is no such display."""
        statement = self.flow.facts.places.parent(display, self.frame.module)
        if not isinstance(statement, ast.Assign) or statement.value is not display:
            return None
        pairs = [
            target.elts[display.elts.index(self.node)]  # type: ignore[arg-type]
            for target in statement.targets
            if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == len(display.elts)
        ]
        if len(pairs) != len(statement.targets):
            return None
        return [place for each in pairs for place in self._read_by(each)]

    def _assigned(self, statement: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[Place]:
        if self.flow.facts.at(statement) and any(each.kind == "show" for each in self.flow.facts.at(statement)):
            return self._use("shown", statement)  # bar.desc = ...
        found = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        places = [place for each in found for one in self._parts(each, statement) for place in self._read_by(one)]
        return [*places, (self.frame, statement)] if isinstance(statement, ast.NamedExpr) else places

    def _parts(self, target: ast.expr, statement: ast.AST) -> list[ast.expr]:
        """The single targets that may be given the value: of a tuple whose items are known, those that hold it."""
        parts = list(targets(target))
        given = members(self.frame.values.get(getattr(statement, "value", target)))
        if isinstance(target, (ast.Tuple, ast.List)) and len(given) == 1 and isinstance(given[0], Sequence):
            items = given[0].items or []
            read = [self._is_read(flatten(item)) for item in items]
            if any(read) and len(items) == len(target.elts) == len(parts):
                return [part for part, holds in zip(parts, read, strict=True) if holds]
        return parts

    def _added(self, statement: ast.AugAssign) -> list[Place]:
        target = statement.target
        if self.node is target:  # what was added to before
            return self._read_by(target) if isinstance(target, ast.Name) else []
        lists = [each for each in members(self.frame.values.get(target)) if isinstance(each, Sequence)]
        if isinstance(statement.op, ast.Add) and (lists or isinstance(statement.value, (ast.List, ast.ListComp))):
            self._use("stored", statement)
            return [*self._whole(target), *self._read_by(target)] if self.deep else []
        if isinstance(statement.op, ast.Add) and isinstance(statement.value, ast.JoinedStr):
            return self._read_by(target)
        self._use("summed" if isinstance(statement.op, ast.Add) and self.plain else "other", statement)
        self.untouched, self.grown = False, True
        if not self.deep:
            return []
        return self._read_by(target) if isinstance(target, ast.Name) else self._slot_reads(target)

    def _returned(self, statement: ast.AST) -> list[Place]:
        self._use("returned", statement)
        return [place for place in self.flow.callers(self.frame) if self._may_be(place)] if self.deep else []

    # --- calls ------------------------------------------------------------------------------------------------------

    def _argument(self, call: ast.Call) -> list[Place]:
        """What a call does with an argument; the places that its result, or its parameter, stands for."""
        events = self.flow.facts.at(call)
        if any(event.kind == "show" for event in events):
            return self._use("shown", call)
        if any(event.kind == "step" for event in events):
            return self._use("control", call)
        callees = self.flow.callees(self.frame, call)
        if callees:
            return self._entered(call, callees)
        name = called(call)
        if name in _ASKING and isinstance(call.func, ast.Name):
            numbers = name == "isinstance" and call.args[-1] is not self.node and _NUMBERS & loaded(call.args[-1])
            return self._use("control", call) if numbers and not self._is(self.node, Mapping, Sequence) else []
        if isinstance(call.func, ast.Name) and (
            (name == "float" and len(call.args) == 1) or (name == "dict" and self._is(call, Mapping))
        ):
            return [(self.frame, call)]  # a number already; an item as it is
        if isinstance(call.func, ast.Attribute):
            holders = members(self.frame.values.get(call.func.value))
            if name in STORING or (name == "update" and holders and all(type(each) is Mapping for each in holders)):
                self._use("stored", call)
                return self._whole(call.func.value) if self.deep else []
        self.plain = self.untouched = False
        self.chosen = self.chosen or name in _CHOOSING
        if name in _CHOOSING or name in _PASSING:
            return [(self.frame, call)] if self._may_be((self.frame, call)) else []
        return self._use("other", call)

    def _entered(self, call: ast.Call, callees: list[Frame]) -> list[Place]:
        """A function of the project is given the value: what it does with it, where it only shows it, it shows here."""
        inner: list[Place] = []
        for callee in callees:
            for parameter in self._parameters(callee):
                inner += [(callee, read) for read in readers(callee.function.node).get(parameter, ())]  # type: ignore[union-attr]
        here = (id(self.frame), call)
        if here in self.flow.entered:  # its result is given to it again, in the next round
            return []
        self.flow.entered.add(here)
        kinds = {kind for place in inner for kind in self._kinds_from(place)}
        self.flow.entered.discard(here)
        if kinds in ({"shown"}, {"shown", "returned"}):
            return self._use("shown", call)
        if not self.deep:
            return self._use("passed", call)
        return inner

    def _kinds_from(self, place: Place) -> frozenset[Kind]:
        """The kinds of use that a value comes to from a place on; asked once for each, as calls nest in calls."""
        key = (id(place[0]), place[1], self.until)
        if key not in self.flow.kinds:
            found = _Following(self.flow, *place, True, self.until).found
            self.flow.kinds[key] = frozenset(use.kind for use in found)
        return self.flow.kinds[key]

    def _parameters(self, callee: Frame) -> Iterable[ast.arg]:
        """The parameters that the expression is passed for."""
        if callee.function is None or callee.arguments is None:
            return ()
        given = parameters_given(callee.function, callee.arguments)
        above = self.flow.facts.places.parent(self.node, self.frame.module)
        starred = isinstance(self.node, ast.Starred) or (isinstance(above, ast.keyword) and above.arg is None)
        known = [name for name, nodes in given.items() if self.node in nodes or (starred and not nodes)]
        return [each for each in parameters(callee.function.node) if each.arg in known]


def called(node: ast.AST) -> str:
    """The last name of what an expression calls."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def is_part(node: ast.AST) -> bool:
    """Whether an expression takes some items out of another one: ``losses[-50:]``."""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
