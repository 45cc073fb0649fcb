"""About how many items a list, an array or a data set has: an estimate, which ranks and decides nothing else.

An expression is followed to the call or display that made its value, through names and attributes that are set once.
What changes its length later is not looked for.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import field

from turbofix.dataflow.facts import Frame, argument_for, attribute, settled, settled_name
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Bound, Function, Instance, Made, Value, join_all, members
from turbofix.records import dataclass
from turbofix.source.names import default_of, dotted, parameters
from turbofix.source.places import FUNCTIONS

_DEPTH = 24
"""How many steps an expression is followed; each costs little, and a script's numbers come a long way."""

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ROUNDING: dict[str, Callable[[float], float]] = {
    "builtins.int": int,
    "builtins.round": round,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
}
_SHAPED = {
    **{f"torch.{name}": 0 for name in ("empty", "zeros", "ones", "rand", "randn", "randperm", "full")},
    **{f"numpy.{name}": 0 for name in ("empty", "zeros", "ones", "full")},
    "torch.randint": 2,
}
"""Where a function is given the shape of the array that it makes."""

_COUNTING = frozenset(("builtins.range", "torch.arange", "numpy.arange", "tqdm.trange", "tqdm.auto.trange"))
_AS_LONG = frozenset(
    (
        *(f"torch.{name}" for name in ("tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor")),
        *("numpy.array", "numpy.asarray", "builtins.list", "builtins.tuple", "builtins.sorted", "builtins.enumerate"),
        *("torch.utils.data.TensorDataset", "tqdm.tqdm", "tqdm.auto.tqdm"),
    )
)
"""What has as many items as its first argument."""

_AS_LONG_METHODS = frozenset(
    (
        *("astype", "copy", "clone", "float", "long", "int", "double", "to", "cpu", "cuda", "numpy", "detach"),
        *("contiguous", "tolist"),
    )
)
_GROWING = (".append(", ".extend(", ".insert(", ".pop(", ".remove(", " += ")


@dataclass(eq=False)
class Place:
    """Where an expression stands.

    ``given`` are the parameters of its function that are known, by values or by expressions elsewhere; ``frames`` are
    those of its call, where that was executed; ``instance`` is the object whose method it is.
    """

    scope: ast.AST
    module: ModuleFile
    given: Mapping[str, Value | tuple[ast.expr, Place]] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    instance: Instance | None = None


@dataclass(eq=False)
class Lengths:
    """Follows expressions. ``of_library`` says how long a data set is that a library made by itself."""

    analysis: Analysis
    of_library: Callable[[Made], int | None]
    _asked: set[int] = field(default_factory=set)

    def where_made(self, value: Made | Instance) -> Place | None:
        """The place of the call that made something; None where that is not one call."""
        node = value.origin.node
        events = self.analysis.once(("made at", node), lambda: _made_at(self.analysis, node)).get(id(value), [])
        frames = self.analysis.facts.frames(events[0]) if len(events) == 1 else ()
        return Place(frames[-1].scope, frames[-1].module, frames=frames) if frames else None

    def of_data(self, value: Value) -> int | None:
        """How many samples a data set has."""
        if id(value) in self._asked:
            return None
        self._asked.add(id(value))
        try:
            if isinstance(value, Instance):
                return self._of_instance(value)
            if not isinstance(value, Made) or value.kind != "dataset":
                return None
            known = self.of_library(value)
            place = self.where_made(value) if known is None else None
            return known if place is None else self._made(value.origin.node, place, _DEPTH)
        finally:
            self._asked.discard(id(value))

    def _of_instance(self, instance: Instance) -> int | None:
        """What an object's ``__len__`` returns, where that is all that it does."""
        place = self._in_method(instance, "__len__")
        body = place.scope.body if place is not None and isinstance(place.scope, ast.FunctionDef) else []
        if place is None or not body or not isinstance(body[-1], ast.Return) or instance.cls.find("__iter__"):
            return None
        if any(each.endswith("IterableDataset") for each in instance.cls.externals()):
            return None
        return whole(self.number(body[-1].value, place))

    def _in_method(self, instance: Instance, name: str) -> Place | None:
        """The body of an object's method; that of ``__init__`` with what the object was made of."""
        found = instance.cls.find(name)
        function = found.function if isinstance(found, Bound) else found
        if not isinstance(function, Function) or not isinstance(function.node, ast.FunctionDef):
            return None
        given: dict[str, Value | tuple[ast.expr, Place]] = {}
        passed, own = instance.arguments, instance.origin.node
        outside = self.where_made(instance) if name == "__init__" else None
        for index, each in enumerate(parameters(function.node)[1:] if name == "__init__" else ()):
            one = passed.get(each.arg, index) if passed is not None else None
            expression = _argument(own, each.arg, index)
            if one is not None and (settled(one.value) is not None or outside is None or expression is None):
                given[each.arg] = one.value
            elif outside is not None and expression is not None:
                given[each.arg] = expression, outside
            elif one is None and (default := default_of(function.node, each.arg)) is not None:
                given[each.arg] = default, Place(function.module.tree, function.module)
        return Place(function.node, function.module, given, instance=instance)

    def number(self, node: ast.AST | None, place: Place, depth: int = _DEPTH) -> float | None:
        """The number that an expression is, options counting with their defaults."""
        if depth < 0 or node is None:
            return None
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = self.number(node.left, place, depth - 1), self.number(node.right, place, depth - 1)
            if left is None or right is None or (right == 0 and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod))):
                return None
            return _OPERATIONS[type(node.op)](left, right)
        if isinstance(node, ast.Subscript):  # x.shape[0]
            held = node.value if isinstance(node.value, ast.Attribute) and node.value.attr == "shape" else None
            return self.of(held.value, place, depth - 1) if held is not None and _is_zero(node.slice) else None
        if isinstance(node, ast.Call) and len(node.args) == 1:
            name = self._offered(node.func, place)
            if name == "builtins.len":
                return self.of(node.args[0], place, depth - 1)
            if name in _ROUNDING:
                number = self.number(node.args[0], place, depth - 1)
                return _ROUNDING[name](number) if number is not None and math.isfinite(number) else None
            if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and _is_zero(node.args[0]):
                return self.of(node.func.value, place, depth - 1)
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) else None
        value = self._value(node, place)
        known = settled(value)
        if isinstance(known, (int, float)) and not isinstance(known, bool):
            return known
        followed = self._followed(node, place)
        return self.number(*followed, depth - 1) if followed is not None else None

    def of(self, node: ast.AST, place: Place, depth: int = _DEPTH) -> int | None:
        """How many items what an expression gives has, a loop over it runs through."""
        if depth < 0:
            return None
        if isinstance(node, (ast.List, ast.Tuple)):
            return len(node.elts) or None
        if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
            return self.of(node.generators[0].iter, place, depth - 1)
        if isinstance(node, ast.Subscript):
            return self._part(node, place, depth)
        if isinstance(node, ast.Call):
            return self._made(node, place, depth)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        found = members(self._value(node, place))
        only = found[0] if len(found) == 1 else None
        known = self.of_data(only) if isinstance(only, (Made, Instance)) else None
        followed = self._followed(node, place) if known is None else None
        if followed is None:
            return known
        value, there = followed
        if isinstance(value, ast.List) and any(f"{dotted(node)}{end}" in there.module.text for end in _GROWING):
            return None
        return self.of(value, there, depth - 1)

    def _part(self, node: ast.Subscript, place: Place, depth: int) -> int | None:
        """A slice; of an array perhaps one of several dimensions."""
        cut = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        count = self.of(node.value, place, depth - 1) if isinstance(cut, ast.Slice) else None
        if count is None or not isinstance(cut, ast.Slice):
            return None
        given = [bound for bound in (cut.lower, cut.upper, cut.step) if bound is not None]
        bounds = {id(bound): whole(self.number(bound, place, depth - 1)) for bound in given}
        if None in bounds.values() or bounds.get(id(cut.step)) == 0:
            return None
        return len(range(count)[slice(*(bounds.get(id(bound)) for bound in (cut.lower, cut.upper, cut.step)))])

    def _made(self, node: ast.AST, place: Place, depth: int) -> int | None:
        """What a call gives: an array of a known shape, a copy, a data set."""
        if not isinstance(node, ast.Call):
            return None
        name = self._offered(node.func, place) or ""
        first = node.args[0] if node.args else None
        if name in _SHAPED:
            shape = _argument(node, "size", _SHAPED[name]) or _argument(node, "shape", _SHAPED[name])
            if name == "torch.randint" and not isinstance(shape, (ast.Tuple, ast.List)):
                shape = _argument(node, "size", 1)
            if isinstance(shape, (ast.Tuple, ast.List)):
                shape = shape.elts[0] if shape.elts else None
            return whole(self.number(shape, place, depth - 1))
        if name in _COUNTING:
            bounds = [whole(self.number(each, place, depth - 1)) for each in node.args]
            known = [each for each in bounds if each is not None]
            return len(range(*known)) if known and len(known) == len(bounds) and 0 not in known[2:] else None
        if name == "torch.utils.data.Subset":
            first = _argument(node, "indices", 1)
            return self.of(first, place, depth - 1) if first is not None else None
        if name in _AS_LONG and first is not None:
            return self.of(first, place, depth - 1)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _AS_LONG_METHODS:
            return self.of(node.func.value, place, depth - 1)
        found = members(self._value(node, place))
        return self.of_data(found[0]) if len(found) == 1 and isinstance(found[0], (Made, Instance)) else None

    def _value(self, node: ast.AST, place: Place) -> Value | None:
        """What an expression can be, as far as the execution tells."""
        if place.frames:
            return self.analysis.facts.evaluate(node, place.frames)
        if isinstance(node, ast.Attribute) and place.instance is not None and self._is_own(node, place):
            return place.instance.attributes.get(node.attr)
        if isinstance(node, ast.Attribute):
            base = self._value(node.value, place)
            return join_all(attribute(each, node.attr) for each in members(base))
        if not isinstance(node, ast.Name):
            return None
        owner = self.analysis.facts.bindings.owner(node.id, node, place.module)
        written = self.analysis.facts.bindings.writes(owner, node.id)
        if isinstance(owner, ast.Module):
            return settled_name(place.module.scope.names.get(node.id)) if len(written) <= 1 else None
        given = place.given.get(node.id) if owner is place.scope and not written else None
        return given if isinstance(given, Value) else None

    def _followed(self, node: ast.AST, place: Place) -> tuple[ast.expr, Place] | None:
        """The expression that a name or an attribute is set to, once, and where that stands."""
        if isinstance(node, ast.Attribute) and place.instance is not None and self._is_own(node, place):
            init = self._in_method(place.instance, "__init__")
            if init is None:
                return None
            written = [
                write for write, scope, _ in self.analysis.facts.attribute_writes(node.attr) if scope is init.scope
            ]
            return self._set_once(written, init, f"{parameters(init.scope)[0].arg}.{node.attr}")
        if not isinstance(node, ast.Name):
            return None
        owner = self.analysis.facts.bindings.owner(node.id, node, place.module)
        written = self.analysis.facts.bindings.writes(owner, node.id)
        if owner is place.scope and not written:
            given = place.given.get(node.id)
            if isinstance(given, tuple):
                return given
            call = place.frames[-1].call if len(place.frames) > 1 else None
            expression = argument_for(node.id, place.frames[-1], call) if isinstance(call, ast.Call) else None
            outer = place.frames[:-1]
            return (expression, Place(outer[-1].scope, outer[-1].module, frames=outer)) if expression else None
        there = place if owner is place.scope else Place(owner, place.module)
        return (
            self._set_once(written, there, node.id) if owner is place.scope or isinstance(owner, ast.Module) else None
        )

    def _set_once(self, written: list[ast.AST], place: Place, name: str) -> tuple[ast.expr, Place] | None:
        """What the only statement sets it to."""
        setting = [each for each in written if isinstance(each, (ast.Assign, ast.AnnAssign)) and _sets(each, name)]
        others = [each for each in written if each not in setting and not _fills(each)]
        only = setting[0] if len(setting) == 1 and not others else None
        if only is None or only.value is None:
            return None
        target = only.targets[0] if isinstance(only, ast.Assign) else only.target
        return (only.value, place) if dotted(target) == name else None

    def _is_own(self, node: ast.Attribute, place: Place) -> bool:
        """Whether it is an attribute of the object whose method it stands in."""
        first = parameters(place.scope)[:1] if isinstance(place.scope, FUNCTIONS) else []
        return bool(first) and isinstance(node.value, ast.Name) and node.value.id == first[0].arg

    def _offered(self, node: ast.expr, place: Place) -> str | None:
        return self.analysis.facts.offered(node, place.module)


def _sets(statement: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(dotted(each) == name for target in targets for each in (target, *getattr(target, "elts", ())))


def _fills(statement: ast.AST) -> bool:
    """Whether a statement sets items only, each in its place."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return all(isinstance(each, ast.Subscript) for each in targets)


def _made_at(analysis: Analysis, node: ast.AST) -> dict[int, list[Event]]:
    """The events at a node, by the identity of what each may have made."""
    found: dict[int, list[Event]] = {}
    for event in analysis.facts.at(node):
        for each in members(event.result):
            found.setdefault(id(each), []).append(event)
    return found


def _argument(call: ast.AST, name: str, position: int) -> ast.expr | None:
    """The expression that a call passes for a parameter, unless something is unpacked in it."""
    if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return named if named is not None or position >= len(call.args) else call.args[position]


def whole(number: float | None) -> int | None:
    """A number of items."""
    return number if type(number) is int and number >= 0 else None


def _is_zero(node: ast.expr) -> bool:
    """The first dimension's index."""
    return isinstance(node, ast.Constant) and node.value == 0
