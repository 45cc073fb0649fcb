"""How many items a list, an array or a data set has, as far as literals, defaults of options and the code that makes it
tell.

An expression is followed to where its value is made: a list that is filled in a loop of a known count, an array of a
known first dimension, a part of either, what a function of the program returns. Nothing is concluded where something
else may make it longer or shorter.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node, parents_in
from turbofix.program.events import Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame, argument_for, attribute, settled, settled_name
from turbofix.program.names import default_of, dotted, parameters
from turbofix.program.values import (
    Bound,
    Class,
    Function,
    Instance,
    Made,
    Namespace,
    Option,
    Sequence,
    Unknown,
    Value,
    flatten,
    join_all,
    members,
)
from turbofix.program.wording import Wording
from turbofix.records import dataclass

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

_RANDOM = {
    **dict.fromkeys(("integers", "randint", "normal", "uniform", "lognormal"), 2),
    **dict.fromkeys(("zipf", "poisson", "exponential", "choice"), 1),
    **dict.fromkeys(("random", "random_sample", "standard_normal", "rand", "randn", "permutation"), 0),
}
"""Where numpy's generators are given the size of what they draw (``rand`` and ``randn``: its first dimension)."""
_GENERATORS = frozenset(("numpy.random.default_rng", "numpy.random.RandomState"))
_ROWS = {
    **{f"torch.{name}": 0 for name in ("empty", "zeros", "ones", "rand", "randn", "randperm", "full")},
    **{f"numpy.{name}": 0 for name in ("empty", "zeros", "ones", "full")},
    **{f"numpy.random.{name}": position for name, position in _RANDOM.items()},
}
"""Where a function is given the shape of the array that it makes."""
_KEYWORDS = ("size", "shape", "n")
_SAME_ROWS = frozenset(
    (
        *(f"torch.{name}_like" for name in ("zeros", "ones", "empty", "rand", "randn", "full", "randint")),
        *(f"numpy.{name}_like" for name in ("zeros", "ones", "empty", "full")),
        *("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.FloatTensor", "torch.LongTensor"),
        *("numpy.array", "numpy.asarray", "numpy.ascontiguousarray"),
        *(
            f"{library}.{name}"
            for library in ("torch", "numpy")
            for name in ("abs", "exp", "log", "sqrt", "sin", "cos")
        ),
    )
)
"""What gives as many rows as its first argument has."""
_ELEMENTWISE = frozenset(("numpy.minimum", "numpy.maximum", "numpy.clip", "torch.minimum", "torch.maximum"))
_LISTS = frozenset(("builtins.list", "builtins.tuple", "builtins.sorted"))
_SAME_METHODS = frozenset(
    (
        *("astype", "copy", "clone", "float", "long", "int", "double", "half", "bool", "to", "cpu", "cuda", "numpy"),
        *("detach", "contiguous", "type", "clip", "clamp", "round", "abs", "exp", "log", "sqrt", "tolist"),
    )
)
"""Methods of an array that give one with as many rows."""

_RESIZING = frozenset(
    (
        *("append", "clear", "extend", "insert", "pop", "remove", "resize", "resize_", "resize_as_", "set_"),
        *("unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_"),
    )
)
_RESHAPED = frozenset(("shape", "data"))
"""Attributes of an array that may be assigned to, which gives it other rows."""
_READING = frozenset(("index", "count", "copy", "sort", "reverse"))
_READERS = ("builtins.", "numpy.", "torch.tensor", "torch.stack", "torch.cat", "torch.as_tensor", "random.")
"""What reads a list without keeping it."""
_BARS = ("tqdm.", "rich.progress.track")


_GRAPHS = {
    "torch_geometric.datasets.TUDataset": {
        "MUTAG": 188,
        "ENZYMES": 600,
        "PROTEINS": 1113,
        "COLLAB": 5000,
        "IMDB-BINARY": 1000,
        "REDDIT-BINARY": 2000,
    }
}
"""Published collections of graphs, and how many each has that is asked for by its name."""
_AS_PUBLISHED = frozenset(("root", "name", "transform", "pre_transform", "use_node_attr", "use_edge_attr"))
"""What such a data set may be told without leaving graphs out."""


@dataclass(frozen=True)
class Size:
    """How many items something has. ``filled``: it is a list, which grows by a method and adds up by ``+``. ``data``: a
    data set, of which ``len`` alone is known: what a loop over it, a part or a method gives is its class's affair.
    ``graphs``: PyTorch Geometric's, of which a slice may be told in fractions, and whose ``shuffle`` gives another."""

    count: int
    filled: bool
    data: bool = False
    graphs: bool = False


@dataclass(eq=False)
class Place:
    """Where an expression stands.

    ``given`` are the parameters of its function, as far as they are known, by values or by expressions elsewhere;
    ``frames`` are those of its call, where that was executed; ``instance`` is the object whose method it is.
    """

    scope: ast.AST
    module: ModuleFile
    given: Mapping[str, Value | tuple[ast.expr, Place]] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    instance: Instance | None = None


@dataclass(eq=False)
class Lengths:
    """Follows expressions. ``of_library`` says how long a data set is that a library made by itself.

    ``options`` are those whose defaults an answer rests on.
    """

    analysis: Analysis
    of_library: Callable[[Made], int | None]
    options: dict[str, None] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    _sizes: dict[tuple[int, int], tuple[Place, Size | None]] = field(default_factory=dict)
    _numbers: dict[tuple[int, int], tuple[Place, float | None]] = field(default_factory=dict)

    def _may_be_anything(self) -> bool:
        """Whether the program may set its names by their text: ``exec(open("settings.py").read())``."""
        return self.analysis.once(
            "sets names by text",
            lambda: any(
                sets_names_by_text(each.tree) for each in _modules(self.analysis) if _SETTING_NAMES.is_in(each.text)
            ),
        )

    # --- where an expression stands

    def at(self, event: Event) -> Place | None:
        """The place of an event's expression."""
        frames = self.analysis.facts.frames(event)
        return Place(frames[-1].scope, frames[-1].module, frames=frames) if frames else None

    def where_made(self, value: Made | Instance) -> Place | None:
        """The place of the call that made something; None where it was made in more than one call."""
        node = value.origin.node
        events = self.analysis.once(("made at", node), lambda: _made_at(self.analysis, node)).get(id(value), [])
        return self.at(events[0]) if len(events) == 1 else None

    def in_method(self, instance: Instance, name: str) -> Place | None:
        """The body of an object's method; that of ``__init__`` with what the object was made of."""
        found = instance.cls.find(name)
        function = found.function if isinstance(found, Bound) else found
        if not isinstance(function, Function) or not isinstance(function.node, ast.FunctionDef):
            return None
        given: dict[str, Value | tuple[ast.expr, Place]] = {}
        passed = instance.arguments
        if name == "__init__" and passed is not None:
            own = instance.origin.node
            outside = self.where_made(instance)
            for index, each in enumerate(parameters(function.node)[1:]):
                one = passed.get(each.arg, index)
                expression = argument_of(own, each.arg, index) if isinstance(own, ast.Call) else None
                if one is not None and (settled(one.value) is not None or outside is None or expression is None):
                    given[each.arg] = one.value
                elif outside is not None and expression is not None:
                    given[each.arg] = (expression, outside)
                elif not (passed.open or passed.star) and (default := default_of(function.node, each.arg)) is not None:
                    given[each.arg] = (default, Place(function.module.tree, function.module))
        return Place(function.node, function.module, given, instance=instance)

    # --- data sets

    def of_data(self, value: Value) -> int | None:
        """How many samples a data set has, but for parts of one (see ``of``)."""
        if id(value) in self._asked or self._may_be_anything():
            return None
        self._asked.add(id(value))
        try:
            if isinstance(value, Instance):
                return self.of_instance(value)
            if not isinstance(value, Made) or value.kind != "dataset":
                return None
            known = self.of_library(value)
            place = self.where_made(value) if known is None and isinstance(value.origin.node, ast.Call) else None
            if place is None or not isinstance(value.origin.node, ast.Call):
                return known
            size = self._made(value.origin.node, place, _DEPTH, by_value=False)
            return size.count if size is not None else None
        finally:
            self._asked.discard(id(value))

    def of_instance(self, instance: Instance) -> int | None:
        """What an object's ``__len__`` returns, if that says how much a loader reads."""
        cls = instance.cls
        if cls.find("__getitem__") is None or any(each.endswith("IterableDataset") for each in cls.externals()):
            return None
        if any(cls.find(name) is not None for name in ("__new__", "__getattribute__")) or any(
            each.node.decorator_list for each in cls.mro() if isinstance(each, Class)
        ):
            return None
        place = self.in_method(instance, "__len__")
        body = place.scope.body if place is not None and isinstance(place.scope, ast.FunctionDef) else []
        statements = body[1:] if body and is_docstring(body[0]) else body
        if place is None or len(statements) != 1 or not isinstance(statements[0], ast.Return):
            return None
        return whole(self.number(statements[0].value, place))

    # --- numbers

    def number(self, node: ast.expr | None, place: Place, depth: int = _DEPTH) -> float | None:
        """The number that an expression is, options counting with their defaults."""
        if depth < 0 or node is None:
            return None
        key = (id(node), id(place))
        if key not in self._numbers:
            self._numbers[key] = place, None
            self._numbers[key] = place, self._number(node, place, depth)
        return self._numbers[key][1]

    def _number(self, node: ast.expr, place: Place, depth: int) -> float | None:
        if isinstance(node, ast.Constant):
            number = node.value
            return number if isinstance(number, (int, float)) and not isinstance(number, bool) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.number(node.operand, place, depth - 1)
            return -inner if inner is not None else None
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = self.number(node.left, place, depth - 1), self.number(node.right, place, depth - 1)
            if left is None or right is None or (right == 0 and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod))):
                return None
            return _OPERATIONS[type(node.op)](left, right)
        if isinstance(node, ast.Call):
            return self._called_number(node, place, depth)
        if isinstance(node, ast.Subscript):  # x.shape[0]
            if isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and is_zero(node.slice):
                return self._rows_of(node.value.value, place, depth)
            return None
        value = self.value(node, place, depth - 1)
        known = settled(value)
        if isinstance(known, (int, float)) and not isinstance(known, bool):
            self.options.update((each.name, None) for each in flatten(value, 0) if isinstance(each, Option))
            return known
        followed = self._followed(node, place, depth)
        return self.number(*followed, depth - 1) if followed is not None else None

    def _called_number(self, node: ast.Call, place: Place, depth: int) -> float | None:
        name = self._offered(node.func, place)
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            return None
        if name == "builtins.len":
            return self._count(node.args[0], place, depth)
        if name in _ROUNDING:
            number = self.number(node.args[0], place, depth - 1)
            return _ROUNDING[name](number) if number is not None and math.isfinite(number) else None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and is_zero(node.args[0]):
            return self._rows_of(node.func.value, place, depth)
        return None

    def _rows_of(self, node: ast.expr, place: Place, depth: int) -> int | None:
        """How many items a list or an array has, as a loop over it goes through them."""
        size = self.of(node, place, depth - 1)
        return size.count if size is not None and not size.data else None

    def _count(self, node: ast.expr, place: Place, depth: int) -> int | None:
        size = self.of(node, place, depth - 1)
        return size.count if size is not None else None

    def value(self, node: ast.AST, place: Place, depth: int) -> Value | None:
        """What a name or an attribute can be, as far as the execution tells."""
        if depth < 0:
            return None
        if isinstance(node, ast.Name):
            owner = self._owner(node, place)
            if isinstance(owner, ast.Module):  # what it is at the end, which is what it was if it is set once
                once = len(self.analysis.facts.bindings.writes(owner, node.id)) <= 1
                return settled_name(place.module.scope.names.get(node.id)) if once else None
            if owner is not place.scope:
                return None
            known = self.analysis.facts.evaluate(node, place.frames) if place.frames else None
            if known is not None and not isinstance(known, Unknown):
                return known
            given = self._given(node.id, place)
            return self.value(*given, depth - 1) if isinstance(given, tuple) else given
        if isinstance(node, ast.Attribute):
            if is_set_otherwise(self.analysis, node.attr):
                return None
            held = self._own(node, place)
            if held is not None:
                uses = self._uses(node, place)
                once = uses is not None and uses.set_to() is not None
                return place.instance.attributes.get(held) if once and place.instance is not None else None
            if any(not is_own_write(each, node.attr) for each, _, _ in self.analysis.facts.attribute_writes(node.attr)):
                return None  # it may have been something else when it was read
            base = self.value(node.value, place, depth - 1)
            return join_all(attribute(each, node.attr) for each in members(base))
        if isinstance(node, ast.Call) and place.frames:
            return self.analysis.facts.evaluate(node, place.frames)
        return None

    # --- how many items

    def of(self, node: ast.expr, place: Place, depth: int = _DEPTH) -> Size | None:
        """How many items what an expression gives has."""
        if depth < 0 or self._may_be_anything():
            return None
        key = (id(node), id(place))
        if key not in self._sizes:  # what an operation is made of is asked for more than once
            self._sizes[key] = place, None  # meanwhile: a name that is set from itself
            self._sizes[key] = place, self._of(node, place, depth)
        return self._sizes[key][1]

    def _of(self, node: ast.expr, place: Place, depth: int) -> Size | None:
        if isinstance(node, (ast.List, ast.Tuple)):
            return None if any(isinstance(each, ast.Starred) for each in node.elts) else Size(len(node.elts), True)
        if isinstance(node, ast.ListComp):
            only = node.generators[0]
            if len(node.generators) > 1 or only.ifs or only.is_async:
                return None
            count = self.rounds(only.iter, place, depth - 1)
            return Size(count, True) if count is not None else None
        if isinstance(node, ast.Subscript):
            return self._part(node, place, depth)
        if isinstance(node, (ast.BinOp, ast.Compare)):
            return self._operated(node, place, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
            return self.of(node.operand, place, depth - 1)
        if isinstance(node, ast.IfExp):
            sizes = {self.of(node.body, place, depth - 1), self.of(node.orelse, place, depth - 1)}
            return sizes.pop() if len(sizes) == 1 else None
        if isinstance(node, ast.Call):
            return self._made(node, place, depth)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        return self._named(node, place, depth)

    def rounds(self, node: ast.expr, place: Place, depth: int = _DEPTH) -> int | None:
        """How often a loop over an expression runs."""
        if depth < 0:
            return None
        if not isinstance(node, ast.Call):
            return self._rows_of(node, place, depth)
        name = self._offered(node.func, place) or ""
        if any(isinstance(each, ast.Starred) for each in node.args):
            return None
        if name == "builtins.range":
            return self._range(node, place, depth)
        if name in ("tqdm.trange", "tqdm.auto.trange") and len(node.args) == 1:
            count = whole(self.number(node.args[0], place, depth - 1))
            return max(count, 0) if count is not None else None
        if name == "builtins.zip" and node.args:
            counts = [self.rounds(each, place, depth - 1) for each in node.args]
            found = [each for each in counts if each is not None]
            return min(found) if len(found) == len(counts) else None
        if name.startswith("tqdm.contrib"):
            return None  # it zips, or goes through products
        if (name in ("builtins.enumerate", "builtins.reversed") or name.startswith(_BARS)) and node.args:
            return self.rounds(node.args[0], place, depth - 1)
        return self._rows_of(node, place, depth)

    def _range(self, node: ast.Call, place: Place, depth: int) -> int | None:
        """How many numbers a call of ``range`` gives, or of an ``arange`` of whole numbers."""
        bounds = [whole(self.number(each, place, depth - 1)) for each in node.args]
        known = [each for each in bounds if each is not None]
        if not known or len(known) != len(bounds) or 0 in known[2:]:
            return None
        return (
            None if any(each.arg in ("start", "stop", "end", "step") for each in node.keywords) else len(range(*known))
        )

    def _part(self, node: ast.Subscript, place: Place, depth: int) -> Size | None:
        """A slice; of an array perhaps one of several dimensions."""
        cut = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if not isinstance(cut, ast.Slice):
            return None
        size = self.of(node.value, place, depth - 1)
        if size is None or (size.data and not size.graphs) or ((size.filled or size.graphs) and cut is not node.slice):
            return None
        others = [each for each in getattr(node.slice, "elts", ()) if not isinstance(each, ast.Slice)]
        if len(others) > 1 and not all(isinstance(each, ast.Constant) for each in others):
            return None  # with several arrays of indices, their dimensions may come first
        bounds: list[int | None] = []
        for bound in (cut.lower, cut.upper, cut.step):
            told = self.number(bound, place, depth - 1) if bound is not None else None
            if size.graphs and isinstance(told, float) and bound is not cut.step:
                told = round(told * size.count)
            number = whole(told)
            if bound is not None and (number is None or (bound is cut.step and number == 0)):
                return None
            bounds.append(number)
        return replace(size, count=len(range(size.count)[slice(*bounds)]))

    def _operated(self, node: ast.BinOp | ast.Compare, place: Place, depth: int) -> Size | None:
        """What arithmetic gives: lists are put together and repeated, arrays computed item by item."""
        if isinstance(node, ast.Compare):
            sizes = [self.of(each, place, depth - 1) for each in (node.left, *node.comparators)]
            if len(node.ops) > 1 or any(each is not None and each.filled for each in sizes):
                return None
            return self._itemwise([node.left, *node.comparators], place, depth)
        if isinstance(node.op, ast.MatMult):
            return None
        left, right = self.of(node.left, place, depth - 1), self.of(node.right, place, depth - 1)
        if not (left is not None and left.filled) and not (right is not None and right.filled):
            return self._itemwise([node.left, node.right], place, depth)
        if isinstance(node.op, ast.Add) and left is not None and right is not None and left.filled and right.filled:
            return Size(left.count + right.count, True)
        if isinstance(node.op, ast.Mult) and (left is None) != (right is None):
            times = whole(self.number(node.right if left is not None else node.left, place, depth - 1))
            size = left or right
            return Size(size.count * max(times, 0), True) if times is not None and size is not None else None
        return None

    def _itemwise(self, nodes: list[ast.expr], place: Place, depth: int) -> Size | None:
        """Arrays of one length, and numbers: nothing else, since it might be broadcast."""
        counts: set[int] = set()
        for node in nodes:
            size = self.of(node, place, depth - 1)
            if size is not None and size.data:
                return None  # two data sets are put together
            if size is not None:
                counts.add(size.count)
            elif self.number(node, place, depth - 1) is None:
                return None
        return Size(counts.pop(), False) if len(counts) == 1 else None

    def _made(self, node: ast.Call, place: Place, depth: int, *, by_value: bool = True) -> Size | None:
        """What a call gives: an array of a known shape, a copy, a data set, what a function of the program returns."""
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            return None
        name = self._offered(node.func, place) or ""
        first = node.args[0] if node.args else None
        if name in _ROWS:
            return self._rows(node, name, place, depth)
        if name == "torch.randint":
            named = next((each.value for each in node.keywords if each.arg == "size"), None)
            shape = named if named is not None or not node.args else node.args[-1]
            return self._shaped(shape, place, depth) if isinstance(shape, (ast.Tuple, ast.List)) else None
        if name in ("torch.arange", "numpy.arange", "builtins.range"):
            counted = self._range(node, place, depth)
            return Size(counted, False) if counted is not None else None
        if name in _LISTS and len(node.args) == 1:
            counted = self.rounds(node.args[0], place, depth - 1)
            return Size(counted, True) if counted is not None else None
        if name in _SAME_ROWS and first is not None:
            if any(each.arg in ("ndmin", "out") for each in node.keywords):
                return None
            counted = self._rows_of(first, place, depth)
            return Size(counted, False) if counted is not None else None
        if name in _ELEMENTWISE:
            return self._itemwise(node.args, place, depth)
        if name == "torch.utils.data.Subset" and len(node.args) == 2:
            counted = self._rows_of(node.args[1], place, depth) if not self._is_replaced("indices") else None
            return Size(counted, False, data=True) if counted is not None else None
        if name == "torch.utils.data.TensorDataset" and first is not None:
            counted = self._rows_of(first, place, depth) if not self._is_replaced("tensors") else None
            return Size(counted, False, data=True) if counted is not None else None
        if name in _GRAPHS:
            return self._published(node, name, place, depth)
        if isinstance(node.func, ast.Attribute) and not name:
            return self._by_method(node, node.func, place, depth)
        return self._returned(node, place, depth) or (self._of_value(node, place, depth) if by_value else None)

    def _published(self, node: ast.Call, name: str, place: Place, depth: int) -> Size | None:
        """A published collection of graphs, of which nothing is left out."""
        asked = argument_of(node, "name", 1)
        if asked is None or len(node.args) > 2 or any(each.arg not in _AS_PUBLISHED for each in node.keywords):
            return None
        value = self.value(asked, place, depth - 1)
        known = asked.value if isinstance(asked, ast.Constant) else settled(value)
        count = _GRAPHS[name].get(known) if isinstance(known, str) else None
        if count is None:
            return None
        self.options.update((each.name, None) for each in flatten(value, 0) if isinstance(each, Option))
        return Size(count, False, data=True, graphs=True)

    def _rows(self, node: ast.Call, name: str, place: Place, depth: int) -> Size | None:
        """An array whose shape its call says."""
        position = _ROWS[name]
        shape = next((each.value for each in node.keywords if each.arg in _KEYWORDS), None)
        if shape is None and position < len(node.args):
            shape = node.args[position]
        if name.endswith(".permutation") and shape is not None and self.of(shape, place, depth - 1) is not None:
            return self.of(shape, place, depth - 1)
        return self._shaped(shape, place, depth)

    def _shaped(self, shape: ast.expr | None, place: Place, depth: int) -> Size | None:
        """An array of a shape, by its first dimension."""
        if isinstance(shape, (ast.Tuple, ast.List)):
            shape = shape.elts[0] if shape.elts else None
        count = whole(self.number(shape, place, depth - 1)) if shape is not None else None
        return Size(count, False) if count is not None and count >= 0 else None

    def _by_method(self, node: ast.Call, func: ast.Attribute, place: Place, depth: int) -> Size | None:
        """What a method gives of an array, or draws as a generator of numpy."""
        if func.attr in _RANDOM and self._is_generator(func.value, place, depth):
            return self._rows(node, f"numpy.random.{func.attr}", place, depth)
        if func.attr == "shuffle" and not (node.args or node.keywords):
            size = self.of(func.value, place, depth - 1)
            return size if size is not None and size.graphs else None
        if func.attr not in _SAME_METHODS:
            return None
        size = self.of(func.value, place, depth - 1)
        if size is None or size.data or (size.filled and func.attr != "copy"):
            return None
        if func.attr in ("clip", "clamp"):
            return self._itemwise([func.value, *node.args], place, depth) if not node.keywords else None
        return Size(size.count, size.filled or func.attr == "tolist")

    def _is_generator(self, node: ast.expr, place: Place, depth: int) -> bool:
        if isinstance(node, ast.Call):
            return self._offered(node.func, place) in _GENERATORS
        followed = self._followed(node, place, depth) if depth > 0 else None
        return followed is not None and self._is_generator(*followed, depth - 1)

    def _returned(self, call: ast.Call, place: Place, depth: int) -> Size | None:
        """What a function of the program returns, where it does so once, at its end."""
        found = members(self.value(call.func, place, depth - 1))
        function = found[0] if len(found) == 1 else None
        if not isinstance(function, Function) or not isinstance(function.node, ast.FunctionDef) or function.decorators:
            return None
        last = function.node.body[-1]
        inside = [each for each in walk(function.node) if isinstance(each, (ast.Return, ast.Yield, ast.YieldFrom))]
        if inside != [last] or not isinstance(last, ast.Return) or last.value is None or function.cls is not None:
            return None
        given: dict[str, Value | tuple[ast.expr, Place]] = {}
        for index, each in enumerate(parameters(function.node)):
            expression = argument_of(call, each.arg, index)
            if expression is not None:
                given[each.arg] = (expression, place)
            elif (default := default_of(function.node, each.arg)) is not None:
                given[each.arg] = (default, Place(function.module.tree, function.module))
        return self.of(last.value, Place(function.node, function.module, given), depth - 1)

    def _of_value(self, node: ast.expr, place: Place, depth: int) -> Size | None:
        """What the execution knows of a value: a tuple that is written out, a data set.

        A list may have been made longer or shorter by what the execution does not follow, and a set counts no item
        twice.
        """
        found = members(self.value(node, place, depth - 1))
        only = found[0] if len(found) == 1 else None
        if isinstance(only, Sequence) and only.items and only.origin is not None:
            return self.of(only.origin.node, place, 0) if isinstance(only.origin.node, ast.Tuple) else None
        if isinstance(only, Made) and only.qualname in _GRAPHS:
            return None  # a part of it is the same object to the execution
        if isinstance(only, (Made, Instance)):
            count = self.of_data(only)
            return Size(count, False, data=True) if count is not None else None
        return None

    # --- names

    def _named(self, node: ast.Name | ast.Attribute, place: Place, depth: int) -> Size | None:
        """What stands under a name: what it was set to, or the list that was filled under it."""
        by_value = self._of_value(node, place, depth)
        if by_value is not None:
            return by_value
        uses = self._uses(node, place)
        given = self._given(node.id, place) if isinstance(node, ast.Name) else None
        if uses is None:
            return None
        followed = given if isinstance(given, tuple) else uses.set_to()
        if followed is None:
            return self._part_of_split(uses, depth)
        value, there = followed
        if is_empty_list(value):
            return self._filled(uses, followed, (node, place), depth)
        size = self.of(value, there, depth - 1)
        if size is None or (uses.appends(node) != [] if size.filled else uses.is_resized()):
            return None
        return size

    def _part_of_split(self, uses: Uses, depth: int) -> Size | None:
        """One of the names that parts of data are given by ``random_split``."""
        write = uses.writes[0] if len(uses.writes) == 1 else None
        if not isinstance(write, ast.Assign) or len(write.targets) != 1 or not isinstance(write.value, ast.Call):
            return None
        names, call = write.targets[0], write.value
        if not isinstance(names, ast.Tuple) or self._offered(call.func, uses.place) != "torch.utils.data.random_split":
            return None
        index = next((i for i, each in enumerate(names.elts) if dotted(each) == uses.text), None)
        lengths = argument_of(call, "lengths", 1)
        if index is None or not isinstance(lengths, (ast.List, ast.Tuple)) or len(lengths.elts) != len(names.elts):
            return None
        numbers = [self.number(each, uses.place, depth - 1) for each in lengths.elts]
        if (
            all(type(each) is int for each in numbers)
            and sum(each or 0 for each in numbers) > 1
            and not self._is_replaced("indices")
        ):
            return Size(int(numbers[index] or 0), False, data=True)
        return None

    def _is_replaced(self, name: str) -> bool:
        """Whether what a part of data is made of may be replaced or changed: ``part.indices = ...``."""
        places = self.analysis.facts.places
        for module in self.analysis.execution.modules.values():
            if name not in module.text:
                continue
            for each in every(ast.Attribute, module.tree):
                if each.attr != name or dotted(each) == f"self.{name}":
                    continue
                above = next(places.ancestors(each, module), None)
                if not isinstance(each.ctx, ast.Load) or (isinstance(above, ast.Attribute) and above.attr in _RESIZING):
                    return True
        return is_set_otherwise(self.analysis, name)

    def _filled(
        self, uses: Uses, value: tuple[ast.expr, Place], asked: tuple[ast.expr, Place], depth: int
    ) -> Size | None:
        """A list that begins empty and is appended to in loops of known counts, where it is asked for behind them."""
        place, (node, asking) = value[1], asked
        appends = uses.appends(node)
        if appends is None or not self._is_reached_once(*value):
            return None
        last = max((each.end_lineno or each.lineno for each in appends), default=0)
        if asking.scope is place.scope and asking.module is place.module and node.lineno <= last:
            return None
        if any(each.lineno <= last for each in walk(place.scope) if isinstance(each, ast.Return)):
            return None  # (its own loops end by one, or it is left before they begin)
        total = 0
        for call in appends:
            times = self._times(call, place, depth)
            if times is None:
                return None
            total += times
        return Size(total, True)

    def _is_reached_once(self, value: ast.expr, place: Place) -> bool:
        """Whether a statement of a function is executed exactly once in one call of it."""
        for above in self.analysis.facts.places.ancestors(value, place.module):
            if above is place.scope:
                return True
            if isinstance(above, ast.With):
                if not all(self._lets_out(each.context_expr, place) for each in above.items):
                    return False
            elif not isinstance(above, (ast.Assign, ast.AnnAssign)):
                return False
        return False

    def _times(self, call: ast.Call, place: Place, depth: int) -> int | None:
        """How often a statement of a function is executed in one call of it."""
        times = 1
        child: ast.AST = call
        for above in self.analysis.facts.places.ancestors(call, place.module):
            if above is place.scope:
                return times
            if isinstance(above, ast.For):
                if any(isinstance(each, (ast.Break, ast.Continue, ast.Return)) for each in walk(above)):
                    return None
                rounds = (
                    self.rounds(above.iter, place, depth - 1) if any(child is each for each in above.body) else None
                )
                if rounds is None:
                    return None
                times *= rounds
            elif isinstance(above, ast.With):
                if not all(self._lets_out(each.context_expr, place) for each in above.items):
                    return None
            elif not isinstance(above, ast.Expr):
                return None
            child = above
        return None

    def _lets_out(self, entered: ast.expr, place: Place) -> bool:
        """Whether a context is known to let exceptions out, not to go on behind its block."""
        name = self._offered(entered.func, place) if isinstance(entered, ast.Call) else None
        return name is not None and name.startswith(("builtins.open", "torch.", "warnings."))

    def _followed(self, node: ast.expr, place: Place, depth: int) -> tuple[ast.expr, Place] | None:
        """The expression that a name or attribute was set to, once, and where that stands."""
        if depth < 0 or not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        if isinstance(node, ast.Name) and self._owner(node, place) is place.scope:
            given = self._given(node.id, place)
            if isinstance(given, tuple):
                return given
        uses = self._uses(node, place)
        return uses.set_to() if uses is not None else None

    def _given(self, name: str, place: Place) -> Value | tuple[ast.expr, Place] | None:
        """What a parameter is given, where its function does not set it itself."""
        if all(each.arg != name for each in parameters(place.scope)):
            return None
        if self.analysis.facts.bindings.writes(place.scope, name):
            return None
        if name in place.given:
            return place.given[name]
        if len(place.frames) > 1 and isinstance(place.frames[-1].call, ast.Call):
            expression = argument_for(name, place.frames[-1], place.frames[-1].call)
            outer = place.frames[:-1]
            if expression is not None:
                return expression, Place(outer[-1].scope, outer[-1].module, frames=outer)
        return None

    def _own(self, node: ast.Attribute, place: Place) -> str | None:
        """The name of an attribute of the object whose method an expression stands in."""
        first = parameters(place.scope)[:1]
        if place.instance is None or not first or not isinstance(node.value, ast.Name):
            return None
        return node.attr if node.value.id == first[0].arg else None

    def _uses(self, node: ast.Name | ast.Attribute, place: Place) -> Uses | None:
        """Everything that the program does with a name of a function or module, or with an attribute of an object."""
        if isinstance(node, ast.Attribute):
            init = self.in_method(place.instance, "__init__") if place.instance is not None else None
            if self._own(node, place) is None or place.instance is None or init is None:
                return None
            return _of_attribute(self.analysis, place.instance, node.attr, init)
        owner = self._owner(node, place)
        if owner is place.scope:
            there = place
        elif isinstance(owner, ast.Module):
            there = Place(owner, place.module)
        else:
            return None
        if any(node.id in each.names for each in every(ast.Global, place.module.tree)):
            return None
        if any(node.id in each.names for each in every(ast.Nonlocal, place.module.tree)):
            return None
        occurrences = [
            each
            for each in every(ast.Name, place.module.tree)
            if each.id == node.id and self.analysis.facts.bindings.owner(each.id, each, place.module) is owner
        ]
        writes = self.analysis.facts.bindings.writes(owner, node.id)
        return Uses(self.analysis, node.id, there, writes, [(each, place.module) for each in occurrences])

    def _owner(self, node: ast.Name, place: Place) -> ast.AST:
        return self.analysis.facts.bindings.owner(node.id, node, place.module)

    def _offered(self, node: ast.expr, place: Place) -> str | None:
        return self.analysis.facts.offered(node, place.module)


@dataclass(eq=False)
class Uses:
    """Where a name or an attribute is written and read."""

    analysis: Analysis
    text: str
    place: Place
    writes: list[ast.AST]
    occurrences: list[tuple[ast.expr, ModuleFile]]

    def set_to(self) -> tuple[ast.expr, Place] | None:
        """The expression that it is set to by the only statement that sets it, and where that stands."""
        setting = [each for each in self.writes if not self._into(each)]
        if any(self.text == each.arg for each in parameters(self.place.scope)):
            return None
        only = setting[0] if len(setting) == 1 else None
        if isinstance(only, (ast.Assign, ast.AnnAssign)) and only.value is not None:
            targets = only.targets if isinstance(only, ast.Assign) else [only.target]
            if [dotted(each) for each in targets] == [self.text]:
                return only.value, self.place
        return None

    def _into(self, write: ast.AST) -> bool:
        """Whether a statement sets items only, each in its place."""
        if not isinstance(write, (ast.Assign, ast.AugAssign)):
            return False
        targets = write.targets if isinstance(write, ast.Assign) else [write.target]
        return all(isinstance(each, ast.Subscript) for each in targets)

    def is_resized(self) -> bool:
        """Whether an array is made longer or shorter in place, perhaps by another name."""
        if any(resizes_in_place(each.tree) for each in _modules(self.analysis)):
            return True
        return any(
            isinstance(above, ast.Attribute)
            and (above.attr in _RESIZING or (above.attr in _RESHAPED and isinstance(above.ctx, ast.Store)))
            and above.value is node
            for node, module in self.occurrences
            for above in [self._above(node, module)]
        )

    def appends(self, asked: ast.expr) -> list[ast.Call] | None:
        """The calls that append to a list, where nothing else may change its length.

        It may be read. It is handed on (kept by an object, returned, passed) nowhere but where it is asked for: whoever
        asks came that way, and has looked there.
        """
        found: list[ast.Call] = []
        for node, module in self.occurrences:
            above = self._above(node, module)
            if isinstance(above, ast.Attribute):
                called = self._above(above, module)
                if not isinstance(called, ast.Call) or called.func is not above:
                    return None
                if above.attr == "append":
                    found.append(called)
                elif above.attr not in _READING:
                    return None
            elif isinstance(above, ast.Subscript) and above.value is node:
                if isinstance(above.ctx, ast.Del) or (
                    isinstance(above.ctx, ast.Store) and isinstance(above.slice, ast.Slice)
                ):
                    return None
            elif isinstance(above, (ast.Return, ast.Assign)) and above.value is node:
                if node is not asked:
                    return None
            elif isinstance(above, (ast.Call, ast.keyword)):
                call = above if isinstance(above, ast.Call) else self._above(above, module)
                if not isinstance(call, ast.Call):
                    return None
                name = self.analysis.facts.offered(call.func, module) or ""
                if name.startswith(_READERS) and name != "builtins.setattr":
                    continue
                if not name.startswith("torch.utils.data.") and not self._makes_object(call):
                    return None  # a function may fill it
                if node is not asked:
                    return None
            elif not self._is_set(node, above) and not self._is_read(node, above):
                return None
        return found

    def _is_set(self, node: ast.expr, above: ast.AST | None) -> bool:
        return (isinstance(above, ast.Assign) and node in above.targets) or (
            isinstance(above, ast.AnnAssign) and above.target is node
        )

    def _is_read(self, node: ast.expr, above: ast.AST | None) -> bool:
        reading = (ast.For, ast.While, ast.comprehension, ast.Compare, ast.If, ast.UnaryOp)
        return isinstance(above, reading) and getattr(above, "target", None) is not node

    def _makes_object(self, call: ast.Call) -> bool:
        """Whether a call makes an object of a class of the program, which keeps what it is given."""
        return any(
            isinstance(member, Instance) and member.origin.node is call
            for event in self.analysis.facts.at(call)
            for member in members(event.result)
        )

    def _above(self, node: ast.AST, module: ModuleFile) -> ast.AST | None:
        return next(self.analysis.facts.places.ancestors(node, module), None)


def _of_attribute(analysis: Analysis, instance: Instance, name: str, init: Place) -> Uses | None:
    """The uses of an object's attribute: those by its own class, and those of other objects, whoever they are."""
    cls = instance.cls
    question = "uses of an attribute", id(cls), name, init.scope
    found = analysis.once(question, lambda: _of_attribute_in(analysis, cls, name, init.scope))
    if found is None:
        return None
    writes, occurrences = found
    return Uses(analysis, f"{parameters(init.scope)[0].arg}.{name}", init, writes, occurrences)


def _of_attribute_in(
    analysis: Analysis, owner: Class, name: str, init: ast.AST
) -> tuple[list[ast.AST], list[tuple[ast.expr, ModuleFile]]] | None:
    """What writes an attribute of the objects of a class, and where it occurs; the same for all of them."""
    first = parameters(init)[0].arg
    if owner.find(name) is not None or is_set_otherwise(analysis, name):
        return None  # what the class has where the object has none
    own = {id(each.node) for each in owner.mro() if isinstance(each, Class)}

    def may_be_own(node: ast.AST, module: ModuleFile) -> bool:
        base = node.value if isinstance(node, ast.Attribute) else None
        cls = _class_of(analysis, node, module)
        if isinstance(base, ast.Name) and base.id != "self":
            scopes = (module.scope, *(each for each in analysis.execution.scopes.values() if each.module is module))
            held = [each for scope in scopes for each in members(scope.names.get(base.id))]
            if held and all(isinstance(each, Namespace) for each in held):
                return False  # options
        return not (isinstance(base, ast.Name) and base.id in ("self", first)) or cls is None or id(cls) in own

    occurrences: list[tuple[ast.expr, ModuleFile]] = []
    for module in analysis.execution.modules.values():
        if name in module.text:
            occurrences += [
                (each, module)
                for each in every(ast.Attribute, module.tree)
                if each.attr == name and may_be_own(each, module)
            ]
    writes: list[ast.AST] = []
    for write, scope, module in analysis.facts.attribute_writes(name):
        cls = _class_of(analysis, write, module)
        text = f"{first}.{name}"
        stored = [each for each in walk(write) if isinstance(each, ast.Attribute) and each.attr == name]
        if all(not may_be_own(each, module) for each in stored):
            continue
        inside = scope is init and (cls is None or id(cls) in own)
        if not inside and not all(
            isinstance(each, (ast.Subscript,)) for each in getattr(write, "targets", [getattr(write, "target", None)])
        ):
            return None
        if text in [dotted(each) for each in stored] or not inside:
            writes.append(write)
    return writes, occurrences


def _class_of(analysis: Analysis, node: ast.AST, module: ModuleFile) -> ast.ClassDef | None:
    return next(
        (each for each in analysis.facts.places.ancestors(node, module) if isinstance(each, ast.ClassDef)), None
    )


def _made_at(analysis: Analysis, node: ast.AST) -> dict[int, list[Event]]:
    """The events at a node, by the identity of what each may have made."""
    found: dict[int, list[Event]] = {}
    for event in analysis.facts.at(node):
        for each in members(event.result):
            found.setdefault(id(each), []).append(event)
    return found


def is_set_otherwise(analysis: Analysis, name: str) -> bool:
    """Whether an attribute of this name is set, or may be, by anything but an assignment to it."""
    names, beginnings = analysis.once("attributes set by text", lambda: _all_set_by_text(analysis))
    return name in names or None in names or name.startswith(beginnings)


def _all_set_by_text(analysis: Analysis) -> tuple[frozenset[str | None], tuple[str, ...]]:
    """What the files set by text: names, None for one that may be any, and beginnings of names."""
    trees = [each.tree for each in _modules(analysis) if any(word in each.text for word in _SETTING_ATTRIBUTES)]
    return (
        frozenset[str | None]().union(*map(_set_by_text, trees)),
        tuple(frozenset[str]().union(*map(_set_by_beginning, trees))),
    )


def _modules(analysis: Analysis) -> Iterable[ModuleFile]:
    return analysis.execution.modules.values()


_SETTING_NAMES = Wording(("exec", "globals", "locals", "vars"), re.compile(r"\b(exec|globals|locals|vars)\b"))
_SETTING_ATTRIBUTES = ("setattr", "delattr", "getattr", "vars", "__dict__")
"""Words of files that may set names, or attributes, by their text."""


@once_per_node
def _set_by_text(tree: ast.Module) -> frozenset[str | None]:
    """The names of the attributes that a file sets by ``setattr`` and the like; None for one that may be any."""
    found: set[str | None] = set()
    parents = parents_in(tree)
    for call in every(ast.Call, tree):
        name = (dotted(call.func) or "").rpartition(".")[2] or getattr(call.func, "attr", "")
        if name in ("setattr", "__setattr__", "delattr") and len(call.args) >= 2:
            given = call.args[-2] if name != "delattr" else call.args[1]
            if not isinstance(given, ast.JoinedStr):
                found.add(given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None)
        elif name == "getattr" and len(call.args) >= 2 and not isinstance(call.args[1], ast.Constant):
            above = parents.get(call)
            if isinstance(above, ast.Attribute) and above.attr in _RESIZING:
                found.add(None)
        elif name == "vars" and call.args and _is_filled_in(call, parents):
            found.add(None)
    if any(each.attr == "__dict__" and _is_filled_in(each, parents) for each in every(ast.Attribute, tree)):
        found.add(None)
    return frozenset(found)


@once_per_node
def _set_by_beginning(tree: ast.Module) -> frozenset[str]:
    """How the names begin that a file sets by ``setattr(x, f"layer{i}", ...)``."""
    found: set[str] = set()
    for call in every(ast.Call, tree):
        name = (dotted(call.func) or "").rpartition(".")[2]
        if name in ("setattr", "__setattr__") and len(call.args) >= 2 and isinstance(call.args[-2], ast.JoinedStr):
            first = call.args[-2].values[0] if call.args[-2].values else None
            found.add(first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else "")
    return frozenset(found)


def _is_filled_in(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a mapping of names is changed where it stands: ``vars(x)[name] = ...``, ``x.__dict__.update(...)``."""
    above = parents.get(node)
    if isinstance(above, ast.Subscript):
        return not isinstance(above.ctx, ast.Load)
    if isinstance(above, ast.Attribute):
        return above.attr in ("update", "setdefault", "pop", "clear", "__setitem__")
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return True
    return isinstance(above, (ast.Assign, ast.AugAssign))


@once_per_node
def resizes_in_place(tree: ast.Module) -> bool:
    """Whether a file has a method of a tensor that gives it other rows, whatever the tensor is called there."""
    return any(each.attr.endswith("_") and each.attr in _RESIZING for each in every(ast.Attribute, tree))


def is_own_write(write: ast.AST, name: str) -> bool:
    """Whether a statement sets an attribute of the object alone whose method it stands in."""
    stored = [each for each in walk(write) if isinstance(each, ast.Attribute) and each.attr == name]
    return all(dotted(each) == f"self.{name}" for each in stored if not isinstance(each.ctx, ast.Load))


@once_per_node
def sets_names_by_text(tree: ast.Module) -> bool:
    """Whether a file may set its own names by their text."""
    parents = parents_in(tree)
    for call in every(ast.Call, tree):
        name = dotted(call.func)
        if name == "exec" or (name in ("globals", "locals", "vars") and not call.args and _is_filled_in(call, parents)):
            return True
    return False


def argument_of(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """The expression that a call passes for a parameter, unless something is unpacked in it."""
    named = None
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        if keyword.arg == name:
            named = keyword.value
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    return named if named is not None or position >= len(call.args) else call.args[position]


def whole(number: float | None) -> int | None:
    """A number of items."""
    return number if type(number) is int else None


def is_zero(node: ast.expr) -> bool:
    """The first dimension's index."""
    return isinstance(node, ast.Constant) and node.value == 0 and type(node.value) is int


def is_empty_list(node: ast.expr) -> bool:
    """``[]`` and ``list()``."""
    if isinstance(node, ast.List):
        return not node.elts
    return isinstance(node, ast.Call) and dotted(node.func) == "list" and not node.args and not node.keywords


def is_docstring(statement: ast.stmt) -> bool:
    """A text that stands by itself."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
