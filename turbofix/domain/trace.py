"""The event log: every interesting act of the abstract execution, with the control stack that it happened under."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import field
from itertools import starmap, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from turbofix.domain.values import UNKNOWN, Value, join
from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.domain.scopes import ModuleFile

EventKind = Literal[
    "make",  # an external constructor of a known kind; result: Made (name = qualname)
    "construct",  # a project class; result: Instance
    "forward",  # a model (project or external module) is called; receiver: the model
    "criterion",  # a loss module or function is called; result: the loss tensor (name = qualname where external)
    "call",  # any other external call or method of a tensor / made object; name = qualname or "Tensor.masked_fill"
    "unknown_call",  # an opaque value is called, inside a loop
    "backward",  # x.backward(...), torch.autograd.backward; receiver: the loss; name "scaled" behind a scaler
    "autograd_grad",  # torch.autograd.grad
    "step",  # x.step(...), whatever x is
    "zero_grad",  # x.zero_grad(...)
    "clip",  # clip_grad_norm_ / clip_grad_value_ (name = qualname)
    "unscale",  # scaler.unscale_(optimizer)
    "scale",  # scaler.scale(loss)
    "update",  # x.update(...), whatever x is (a scaler, a dict, a meter)
    "mode",  # x.train() / x.eval(); name
    "transfer",  # x.to(...), x.cuda(...), x.cpu(); name is the method
    "cast",  # x.half(), x.float(), x.double(), x.bfloat16() on a model, or .to(dtype)
    "sync",  # a tensor is read on the host: name = item, float, int, bool, cpu, numpy, tolist, print, format, data
    "iterate",  # a for loop or comprehension over receiver
    "next",  # next(iterator)
    "index",  # a tensor, or what was read from one, is indexed by an integer; receiver: it
    "import",  # a module of the project (result: ModuleValue) or a name that libraries have dropped is imported; name
    "test",  # the value decides an if, while, assert, comparison chain, raise
    "wrap",  # DataParallel, DDP
    "compile",  # torch.compile(model), model.compile()
    "set",  # assignment to an external attribute, or a call that sets a global switch; name = qualname
    "show",  # print, progress postfix/description, writer.add_*, logger.*, wandb.log; name says which
    "sum",  # augmented assignment; receiver: old value, result: what was added
    "enter",  # a with item is entered; receiver: its value
    "save",  # torch.save
    "load",  # x.load_state_dict(...), torch.load
    "grad_read",  # .grad of a tensor or parameter is read
    "destroy",  # exec, eval of unknown text, globals().update: facts about this module's names end here
    "return",  # a function returns; result: the value
]


@dataclass(eq=False, slots=True)
class Control:
    """One level of the control stack, linked upwards.

    ``kind``: "root", "module", "call" (node: the call, or None for functions that nobody calls; ``detail`` the
    Function), "loop" (detail: the LoopRecord), "if" (detail: 0 body, 1 else, "dead" for a branch that a decided test
    excludes, "except"), "choice" (detail: which of several callees), "with" (detail: (withitem, value)), "try",
    "no_grad" (a decorator), "comprehension" (detail: what it runs over). What a loader's workers run (``__getitem__``,
    ``collate_fn``) hangs on a root of its own with ``detail`` "worker". ``decided``: a constant decided the `if`.
    """

    up: Control | None
    kind: str
    node: ast.AST | None
    module: ModuleFile | None
    detail: object = None
    depth: int = 0
    decided: bool = False
    path: int = 0  # the same number for all levels under the same loops and calls
    returned: bool = False  # of a call: some path has returned already, what follows is not certain to be executed

    @property
    def is_dead(self) -> bool:
        """Whether this is a branch that a decided test excludes."""
        return self.detail == "dead" and self.kind == "if"

    @property
    def is_unsure(self) -> bool:
        """Whether what stands here may not be executed, or not once."""
        return self.kind in ("loop", "try") or (self.kind == "if" and not self.decided)

    def chain(self) -> list[Control]:
        """From the root down to this level."""
        levels: list[Control] = []
        level: Control | None = self
        while level is not None:
            levels.append(level)
            level = level.up
        return levels[::-1]

    def upwards(self) -> Iterator[Control]:
        """From this level up to the root."""
        level: Control | None = self
        while level is not None:
            yield level
            level = level.up


@dataclass(eq=False, slots=True)
class LoopRecord:
    """One loop statement (or comprehension), with the join of what it iterates over; None for ``while``."""

    node: ast.For | ast.AsyncFor | ast.While
    module: ModuleFile
    iterated: Value | None


@dataclass(eq=False, slots=True)
class Event:
    """One act. The same act at the same node, under the same loops and calls, is one event with joined values."""

    kind: EventKind
    node: ast.AST
    module: ModuleFile
    control: Control
    name: str = ""
    receiver: Value | None = None
    arguments: Arguments | None = None
    result: Value | None = None
    order: int = 0
    returned: Value | None = None  # of a model's call: what its own code returned, piece by piece


@dataclass(eq=False, slots=True)
class Passed:
    """One argument of a call: its value, whether it is passed on every path, and its expression."""

    value: Value
    must: bool = True
    node: ast.expr | None = None  # the expression in the call; None when it came out of an unpacked mapping
    entry: ast.expr | None = None  # the entry's value expression in the dict it came from
    entry_module: ModuleFile | None = None


_VALUE = attrgetter("value")


@dataclass(eq=False, slots=True)
class Arguments:
    """The arguments of a call, unpacked as far as possible.

    ``open``: a ``**mapping`` may hold more, and ``rest`` is the join of the values that it holds under unknown keys;
    ``star``: a ``*sequence`` of unknown length stands among the positions.
    """

    positions: list[Passed] = field(default_factory=list)
    keywords: dict[str, Passed] = field(default_factory=dict)
    open: bool = False
    star: bool = False
    rest: Value | None = None

    def get(self, name: str, position: int | None = None) -> Passed | None:
        """The argument by keyword, else by position (unknown when a star comes before it)."""
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.positions) and not self.star:
            return self.positions[position]
        return None

    def at(self, position: int) -> Value | None:
        """The value at a position."""
        return self.positions[position].value if position < len(self.positions) else None

    def first(self, *names: str) -> Value | None:
        """The first argument, by position or by one of these names."""
        if self.positions:
            return self.positions[0].value
        return next((self.keywords[name].value for name in names if name in self.keywords), None)

    def value(self, name: str, position: int | None = None) -> Value | None:
        """The value of what ``get`` gives."""
        passed = self.get(name, position)
        return passed.value if passed is not None else None

    def rest_of(self) -> Arguments:
        """All but the first."""
        return Arguments(self.positions[1:], self.keywords, self.open, self.star, self.rest)

    def values(self) -> list[Value]:
        """All values that are passed."""
        found = [*map(_VALUE, self.positions)]
        if self.keywords:
            found += map(_VALUE, self.keywords.values())
        if self.rest is not None:
            found.append(self.rest)
        return found


def positional(*values: Value) -> Arguments:
    """Arguments by position."""
    return Arguments([Passed(value) for value in values])


def prepended(receiver: Value, arguments: Arguments) -> Arguments:
    """The arguments with one more in front."""
    return completed(positional(receiver), arguments)


def completed(first: Arguments, second: Arguments) -> Arguments:
    """The arguments of a partial with those of its call."""
    return Arguments(
        [*first.positions, *second.positions],
        {**first.keywords, **second.keywords},
        first.open or second.open,
        first.star or second.star,
        join(first.rest, second.rest),
    )


def join_arguments(first: Arguments, second: Arguments) -> Arguments:
    """The arguments of a call that was executed twice."""
    if first is second:
        return first
    rest = join(first.rest, second.rest)
    positions = [*starmap(_join_passed, zip_longest(first.positions, second.positions))]
    keywords: dict[str, Passed] = {}
    if first.keywords or second.keywords:
        names = {**first.keywords, **second.keywords}
        keywords = {name: _join_passed(first.keywords.get(name), second.keywords.get(name)) for name in names}
    return Arguments(positions, keywords, first.open or second.open, first.star or second.star, rest)


def _join_passed(first: Passed | None, second: Passed | None) -> Passed:
    if first is None or second is None:
        only = first or second
        assert only is not None
        return Passed(only.value, False, only.node, only.entry, only.entry_module)
    value = join(first.value, second.value)
    return Passed(
        value or UNKNOWN,
        first.must and second.must,
        first.node or second.node,
        first.entry or second.entry,
        first.entry_module if first.entry is not None else second.entry_module,
    )
