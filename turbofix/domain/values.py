"""What a name can be while the program is executed abstractly.

``Absent`` (no value was given), ``Const(None)`` and ``Unknown`` are three different things. Values that live on the
heap (``Instance``, ``Namespace``, ``Mapping``, ``Sequence``, ``Made``, ``Opaque``) are compared by identity and may be
updated; the others are never changed once made (``frozen=True`` would say so, but triples the time that making one
takes, and a program of a thousand lines makes ten thousand). ``join`` is what a name can be after two paths met.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.domain.scopes import ModuleFile, Scope
    from turbofix.domain.trace import Arguments, Control

Device = Literal["cpu", "cuda", "conditional", "unknown"]


@dataclass(eq=False, slots=True)
class Origin:
    """Where a value was written: an ``ast`` node in a module of the program."""

    node: ast.AST
    module: ModuleFile


class Value:
    """Base class of all abstract values."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Unknown(Value):
    """Nothing is known. ``number`` where arithmetic or ``len`` made it (then it is a number, whatever its value)."""

    number: bool = False


UNKNOWN = Unknown()
NUMBER = Unknown(number=True)
CUT = Unknown()
"""Stands for the values of a union that is too wide."""
NEVER = Unknown()
"""What a call that does not return evaluates to."""


@dataclass(eq=False, slots=True)
class Const(Value):
    """A literal, or what constant arithmetic made of literals; ``origin`` is the literal's own place."""

    value: object
    origin: Origin | None = None


NONE = Const(None)


@dataclass(eq=False, slots=True)
class Option(Value):
    """A value that the user of the script may choose; ``default`` is what it is otherwise.

    ``how``: "argparse", "click", "dataclass", "parameter" (a default of a function that nobody calls), ... ``name`` is
    how the user writes it: "--batch-size" on a command line, else the bare name. ``origin`` is the default's place, or
    the declaration's where there is no default. ``flag``: an on/off switch. ``derived``: the program computed with it
    (``args.batch_size * 2``), so that ``default`` is not what stands at ``origin``.
    """

    name: str
    default: Value
    origin: Origin | None
    how: str
    flag: bool = False
    derived: bool = False

    def made(self, default: Value) -> Option:
        """What the program computed with it."""
        return Option(self.name, default, self.origin, self.how, self.flag, derived=True)


FROM_FILE = "config"
"""How an option is given that stands in a file."""


@dataclass(eq=False, slots=True)
class Computed(Value):
    """A number or object that is made at run time (``os.cpu_count()``, a world size): certain to be there, value
    unknown.

    ``name`` is the qualified name of the function that it is read from, where that is one ("torch.cuda.is_available").
    """

    origin: Origin | None = None
    name: str = ""


@dataclass(eq=False, slots=True)
class External(Value):
    """A name of a library, by its canonical qualified name: ``torch.optim.Adam``, ``builtins.len``.

    ``torch.optim.*`` is a member of ``torch.optim`` that is chosen at run time.
    """

    qualname: str


@dataclass(eq=False, slots=True)
class Method(Value):
    """An attribute of a value that is not the project's own, when it is called: ``loss.item``."""

    receiver: Value
    name: str


@dataclass(eq=False, slots=True)
class Function(Value):
    """A function or lambda of the project; ``decorators`` are its decorators' values, outermost first."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: ModuleFile
    scope: Scope
    cls: Class | None = None
    decorators: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(eq=False, slots=True)
class Bound(Value):
    """A function of the project bound to its first argument."""

    receiver: Value
    function: Function


@dataclass(eq=False, slots=True)
class Partial(Value):
    """``functools.partial``."""

    function: Value
    arguments: Arguments


@dataclass(eq=False, slots=True)
class Class(Value):
    """A class of the project; ``names`` is its namespace, ``bases`` are values."""

    node: ast.ClassDef
    module: ModuleFile
    bases: tuple[Value, ...]
    names: dict[str, Value]
    is_dataclass: bool = False
    _mro: tuple[Class | External, ...] | None = None
    _externals: tuple[str, ...] | None = None

    def mro(self) -> tuple[Class | External, ...]:
        """This class and its bases, the project's and the external ones, in a method resolution order."""
        if self._mro is not None:
            return self._mro
        self._mro = (self,)  # stands while a class that (wrongly) derives from itself is looked at
        found: list[Class | External] = [self]
        for base in self.bases:
            for member in members(base):
                if type(member) is Class:
                    if member is not self:
                        found += [each for each in member.mro() if each not in found]
                elif type(member) is External:
                    found.append(member)
        self._mro = tuple(found)
        return self._mro

    def externals(self) -> tuple[str, ...]:
        """The qualified names of the external classes that it derives from."""
        if self._externals is None:
            self._externals = tuple(base.qualname for base in self.mro() if type(base) is External)
        return self._externals

    def find(self, name: str) -> Value | None:
        """The attribute of the class, looked up along its bases."""
        if name in self.names:
            return self.names[name]
        for base in self.mro():
            if type(base) is Class and name in base.names:
                return base.names[name]
        return None


@dataclass(eq=False, slots=True)
class Super(Value):
    """``super()`` in a method of ``cls``."""

    receiver: Value
    cls: Class


@dataclass(eq=False, slots=True)
class ModuleValue(Value):
    """A module of the project."""

    module: ModuleFile


@dataclass(eq=False, slots=True)
class Instance(Value):
    """An object of a class of the project. ``made_at`` is the control stack of its birth (for strong updates).

    ``base`` is what the external class in its bases makes of it (the ``torch.utils.data.DataLoader`` in a subclass of
    it). ``device`` is where it was moved, if it is a module.
    """

    cls: Class
    origin: Origin
    made_at: Control
    attributes: dict[str, Value] = field(default_factory=dict)
    arguments: Arguments | None = None
    uses: set[str] = field(default_factory=set)
    children: dict[str, Value] = field(default_factory=dict)
    base: Made | None = None
    device: Device = "cpu"


@dataclass(eq=False, slots=True)
class Namespace(Value):
    """Parsed arguments, SimpleNamespace, EasyDict. ``open``: it may hold names that were not seen."""

    made_at: Control | None
    attributes: dict[str, Value] = field(default_factory=dict)
    open: bool = False


@dataclass(eq=False, slots=True)
class Entry:
    """A value under a key; ``must``: it is there on every path. ``origin`` is the entry's value expression."""

    value: Value
    must: bool
    origin: Origin | None = None


@dataclass(eq=False, slots=True)
class Mapping(Value):
    """A dict. ``open``: it may hold keys that were not seen; ``element``: the join of values under unknown keys;
    ``factory``: what a ``defaultdict`` calls for a key that is not there."""

    made_at: Control | None
    origin: Origin | None = None
    entries: dict[object, Entry] = field(default_factory=dict)
    open: bool = False
    element: Value | None = None
    factory: Value | None = None


@dataclass(eq=False, slots=True)
class Sequence(Value):
    """A list, tuple or set: ``items`` where its length is known, else the join of its elements."""

    items: list[Value] | None
    made_at: Control | None = None
    origin: Origin | None = None
    kind: Literal["list", "tuple", "set"] = "tuple"
    element: Value | None = None


@dataclass(eq=False, slots=True)
class Iterated(Value):
    """An iterator or generator: what it yields, and what it runs over (a loader, a dataset, a generator function).

    ``wrapper``: how it wraps its source: "enumerate", "zip", "tqdm", "iter", "islice", "cycle", "range", "generator",
    ... ``origin`` is the wrapping call.
    """

    element: Value
    source: Value | None = None
    wrapper: str = "iter"
    origin: Origin | None = None
    start: int = 0


@dataclass(eq=False, slots=True)
class Made(Value):
    """What an external call of a known kind returned.

    ``kind`` (see ``libraries.kind_of``): loader, sampler, dataset, module, wrapper, criterion, optimizer, scheduler,
    scaler, autocast, gradmode, device, accelerator, fabric, trainer, engine, lossscaler, transform, tokenizer, writer,
    progress, argparse, generator, stream, event, config. ``inner`` is what it wraps (DataParallel's module,
    Sequential's layers, a progress bar's iterable).
    """

    qualname: str
    kind: str
    arguments: Arguments
    origin: Origin
    made_at: Control
    inner: Value | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    uses: set[str] = field(default_factory=set)
    device: Device = "unknown"  # for kind "device", and for modules that were moved
    children: dict[str, Value] = field(default_factory=dict)


Role = Literal[
    "batch",
    "input",
    "data",
    "made",
    "output",
    "loss",
    "param",
    "grad",
    "prediction",
    "maybe_output",
    "object",
]  # "batch": came out of a loader; "made": made by torch in the program; "input": made and given to a model;
# "object": it may be an object that holds tensors


@dataclass(eq=False, slots=True)
class Tensor(Value):
    """A tensor, by what it is used as and where it came from. ``source`` is the loader, dataset or model it came from.

    ``scaled_from`` is the loss that a gradient scaler multiplied to make this one.
    """

    roles: frozenset[str] = frozenset()
    device: Device = "unknown"
    origin: Origin | None = None
    source: Value | None = None
    detached: bool = False
    pageable: bool = False  # made from numpy or on the host in the program itself
    scaled_from: Value | None = None
    half: bool = False  # under autocast it may come out in 16 bits: nothing since a product made it float32 again
    scalar: bool = False  # it has no dimension, on every path: a loss that sums up its items, a sum of all elements
    foreign: bool = False  # what a call gave that is not seen through: perhaps an object that holds tensors


@dataclass(eq=False, slots=True)
class Host(Value):
    """A Python value that was read from a tensor, or arithmetic on such; ``syncs`` are the reading nodes."""

    of: Tensor | None
    syncs: tuple[Origin, ...] = ()


@dataclass(eq=False, slots=True)
class Opaque(Value):
    """Anything else: a parameter that nobody passed, the result of an unknown call. ``uses`` are the methods called on
    it.

    ``how``: "parameter", "call", "attribute", "element", "import", "free". ``source`` is what it was taken from.
    """

    name: str
    how: str
    origin: Origin | None = None
    depth: int = 0
    source: Value | None = None
    uses: set[str] = field(default_factory=set)
    children: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Union(Value):
    """One of at most ten values."""

    values: tuple[Value, ...]


WIDEST = 10
_TRUE = frozenset({Made, Function, Class, ModuleValue, Bound})
_OBJECTS = (Instance, Made, Tensor, Function, Class, Sequence, Mapping, ModuleValue, Bound, Host, Iterated)


def members(value: Value | None) -> tuple[Value, ...]:
    """The values that ``value`` can be: its members for a union, else itself; nothing for None."""
    if value is None:
        return ()
    return value.values if type(value) is Union else (value,)


def held_in(value: Sequence | Mapping | Iterated) -> Iterator[Value | None]:
    """What a tuple, a dict or an iterator holds, as far as it is known."""
    if type(value) is Sequence:
        yield from value.items or ()
    elif type(value) is Mapping:
        yield from [entry.value for entry in value.entries.values()]
    yield value.element


def flatten(value: Value | None, depth: int = 3) -> Iterator[Value]:
    """The values that ``value`` can be, and, ``depth`` levels down, those inside its tuples and dicts."""
    for member in members(value):
        yield member
        if depth and isinstance(member, (Sequence, Mapping, Iterated)):
            for each in held_in(member):
                yield from flatten(each, depth - 1)


def identity(value: Value) -> object:
    """A key under which two values count as the same in a union; values of different classes never do."""
    key = _KEYS.get(type(value))
    found = None if key is None else key(value)
    return id(value) if found is None else found


def _constant_key(value: Const) -> object:
    try:
        hash(value.value)
    except TypeError:
        return None
    return ("const", type(value.value), value.value)


def _made_key(value: Made) -> object:
    """Devices have no state: what one place makes of the same arguments is one device, whoever asked for it."""
    if value.kind != "device" or value.arguments.star or value.arguments.open:
        return None
    given = value.arguments
    told = (*(("", each) for each in given.positions), *sorted(given.keywords.items()))
    return ("device", id(value.origin.node), value.device, tuple((name, identity(each.value)) for name, each in told))


_KEYS: dict[type[Value], Callable[[Any], object]] = {
    Const: _constant_key,
    Made: _made_key,
    External: lambda value: ("external", value.qualname),
    Unknown: lambda value: ("unknown", value.number, value is CUT),
    Function: lambda value: ("function", id(value.node)),
    Tensor: lambda _: "tensor",
    Host: lambda _: "host",
    Option: lambda value: (
        *("option", value.name, id(value.origin.node) if value.origin else None),
        identity(value.default) if value.derived else None,  # `n` and `2 * n` are two numbers
    ),
    Computed: lambda value: ("computed", id(value.origin.node) if value.origin else None),
    Bound: lambda value: ("bound", id(value.receiver), id(value.function.node)),
    Method: lambda value: ("method", id(value.receiver), value.name),
}
"""What makes two values of a class the same; None, and all other classes, where a value is the same as itself alone."""


def join(first: Value | None, second: Value | None) -> Value | None:
    """What a name can be after two paths met; None stands for "no value yet"."""
    if first is second or second is None:
        return first
    if first is None:
        return second
    # No class of values has a subclass, and values are equal only to themselves: this runs a hundred
    # thousand times.
    kind, other = type(first), type(second)
    if kind is not other:
        if kind is Union:
            if other is not Tensor and other is not Host:
                return _with_one(first, second)  # type: ignore[arg-type]
        elif other is not Union:
            return Union((first, second))
    elif kind is Tensor:
        return join_tensors(first, second)  # type: ignore[arg-type]
    elif kind is Host:
        return _join_hosts(first, second)  # type: ignore[arg-type]
    elif kind is not Union:
        if kind is Sequence and (items := _joined_items(first, second)) is not None:  # type: ignore[arg-type]
            return items
        return first if identity(first) == identity(second) else Union((first, second))
    added = members(second)
    if kind is Union and set(first.values).issuperset(added):  # type: ignore[attr-defined]
        return first
    values = [*members(first)]
    for member in added:
        _add(values, member)
    return _one_of(tuple(values))


def _add(values: list[Value], value: Value) -> None:
    """Add one more value to several, or join it with the one among them that counts as the same."""
    index = _same_in(values, value)
    if index is None:
        values.append(value)
    elif type(value) is Tensor or type(value) is Host:
        values[index] = join(values[index], value) or value


def _same_in(values: list[Value] | tuple[Value, ...], value: Value) -> int | None:
    """The one of several values that counts as the same as this one."""
    if value in values:
        return values.index(value)
    kind = type(value)
    key = _KEYS.get(kind)
    own = None if key is None else key(value)
    if key is not None and own is not None:
        for index, each in enumerate(values):
            if type(each) is kind and key(each) == own:
                return index
    return None


_KEPT = frozenset({Made, Instance, Opaque, Tensor, Host, Function, Class})
"""What is kept of more values than a union holds."""


def _with_one(union: Union, value: Value) -> Value:
    """One of several values, or one more, of which there is nothing to join."""
    return union if _same_in(union.values, value) is not None else _one_of((*union.values, value))


def _one_of(values: tuple[Value, ...]) -> Value:
    """One of some values, of which few are kept where they are many."""
    if len(values) == 1:
        return values[0]
    if len(values) > WIDEST:
        objects = [each for each in values if type(each) in _KEPT]
        values = (*objects[: WIDEST - 1], CUT if len(objects) >= WIDEST or CUT in values else UNKNOWN)
    return Union(values)


def _join_hosts(first: Host, second: Host) -> Host:
    """One number that was read here or there."""
    return Host(first.of or second.of, first.syncs + tuple(s for s in second.syncs if s not in first.syncs))


def _joined_items(first: Sequence, second: Sequence) -> Sequence | None:
    """Two tuples of one length, item by item; None for others."""
    one, two = first.items, second.items
    if one is None or two is None or len(one) != len(two) or not first.kind == second.kind == "tuple":
        return None
    return Sequence([join(a, b) or UNKNOWN for a, b in zip(one, two, strict=True)], first.made_at, first.origin)


def join_tensors(first: Tensor, second: Tensor) -> Tensor:
    """Roles unite, devices agree or are unknown."""
    if (
        first.source is second.source
        and first.roles == second.roles
        and first.device == second.device
        and first.scaled_from is second.scaled_from
        and first.half == second.half
        and first.pageable == second.pageable
        and first.scalar == second.scalar
        and first.foreign == second.foreign
    ):
        return first
    return Tensor(
        first.roles | second.roles,
        join_devices(first.device, second.device),
        first.origin,
        first.source if first.source is second.source else join(first.source, second.source),
        first.detached and second.detached,
        first.pageable and second.pageable,
        first.scaled_from or second.scaled_from,
        first.half or second.half,
        first.scalar and second.scalar,
        first.foreign and second.foreign,
    )


def join_devices(first: Device, second: Device) -> Device:
    """Where something is after two paths met: on the GPU on one and not on the other is ``conditional``."""
    if first == second:
        return first
    if first == "unknown" or second == "unknown":
        return "unknown"
    return "conditional"


def join_all(values: Iterable[Value | None]) -> Value | None:
    """The join of all of them; None when there is none."""
    joined: Value | None = None
    for value in values:
        joined = join(joined, value)
    return joined


def widened(value: Value) -> Value:
    """A constant that is assigned again: a number stays a number, anything else may be anything.

    An option's number is no longer its default then (``width = width * 2`` in a loop); any other option is left alone.
    """
    if type(value) is Option:
        return NUMBER if is_number(value.default) and not value.flag else value
    if type(value) is Const and isinstance(value.value, (int, float)) and not isinstance(value.value, bool):
        return NUMBER
    return join(value, UNKNOWN) or UNKNOWN


def is_hashable(value: object) -> bool:
    """Whether a literal can be a key."""
    return isinstance(value, (str, int, float, bool, bytes, complex, type(None))) or value is Ellipsis


def default_of(value: Value) -> Value:
    """What an option is by default; any other value is itself."""
    return value.default if type(value) is Option else value


def is_number(value: Value) -> bool:
    """Whether a value is a number, known or not."""
    return (type(value) is Unknown and value.number) or (type(value) is Const and isinstance(value.value, (int, float)))


def is_object(value: Value) -> bool:
    """Whether a value is certainly not None."""
    return isinstance(value, _OBJECTS) or (type(value) is Unknown and value.number)


def truth_of(value: Value) -> bool | None:
    """Whether a test on the value is decided, and how."""
    if type(value) is Const:
        return bool(value.value)
    if type(value) in _TRUE:
        return True
    if type(value) is Instance:
        return True if value.cls.find("__bool__") is None and value.cls.find("__len__") is None else None
    if type(value) is Union:
        truths = {truth_of(member) for member in value.values}
        return truths.pop() if len(truths) == 1 else None
    return None
