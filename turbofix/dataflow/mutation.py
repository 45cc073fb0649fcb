"""Whether what some names hold may be changed in place, through them or through other names for the same memory."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator

from turbofix.dataflow.facts import Frame, argument_for
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Made,
    ModuleValue,
    Namespace,
    Option,
    Tensor,
    Unknown,
    Value,
    members,
)
from turbofix.library.tables import words
from turbofix.source.answers import every
from turbofix.source.names import ASSIGNING, dotted, loads, parameters
from turbofix.source.nodes import walk

_LOOKS = words("shape dtype device ndim size dim numel nelement stride element_size is_cuda nbytes itemsize layout")
"""Attributes and methods that tell of a tensor, and share none of its memory."""
_VIEWS = words(
    """
    view view_as reshape flatten ravel squeeze unsqueeze t transpose permute swapaxes movedim expand expand_as narrow
    select unfold diagonal unbind split chunk numpy to_numpy detach contiguous float double half long int short byte
    bool to cpu type type_as
    """
)
"""Methods whose result may lie in the same memory, and functions of torch and NumPy that do the same."""
_AROUND = frozenset(("from_numpy", "as_tensor", "asarray", "asanyarray", "frombuffer", *_VIEWS))
_GATHERING = frozenset(
    f"builtins.{name}" for name in words("list tuple dict set zip enumerate iter next reversed sorted map filter vars")
)
"""What hands on the very objects that it is given."""
_TELLING = words(
    """
    mean std var sum prod min max abs any all argmax argmin argsort cumsum round clip astype tolist item copy clone dot
    matmul eq ne lt le gt ge unique nonzero index count get keys values items format join
    """
)
"""Methods whose result is a new one."""
_CHANGING = words(
    """
    append extend insert pop remove clear update setdefault add discard appendleft popleft sort reverse fill put
    partition resize itemset push popitem
    """
)
_WRITING = words("shuffle put copyto place putmask fill_diagonal heappush heappop heapreplace heapify all_reduce")
"""Functions of libraries that change what they are given."""

Key = tuple[ast.AST | None, str]
"""A name and the scope that it belongs to; an attribute belongs to any object."""


def change_of(
    analysis: Analysis,
    held: Iterable[ast.Name | ast.Attribute],
    module: ModuleFile,
    frames: tuple[Frame, ...],
    counts: Callable[[ast.AST], bool],
) -> str | None:
    """What may change what some names hold, in a sentence. ``counts``: whether what happens at a node matters."""
    asked = _Contents(analysis, module, frames)
    asked.hold(held)
    return next(asked.changes(counts), None)


def change_after(
    analysis: Analysis, call: ast.Call, held: Iterable[ast.Name | ast.Attribute], frames: tuple[Frame, ...]
) -> str | None:
    """The same of what happens behind a call, in other functions, or behind the calls of the function that it is in."""
    places = analysis.facts.places
    while frames:
        frame, after = frames[-1], call
        module, scope = frame.module, places.scope(after, frame.module)
        inside = {id(each) for each in walk(after)}

        def counts(
            node: ast.AST, after: ast.Call = after, module: ModuleFile = module, scope: ast.AST = scope,
            inside: set[int] = inside,
        ) -> bool:  # fmt: skip
            later = getattr(node, "lineno", 0) > (after.end_lineno or after.lineno)
            return id(node) not in inside and (later or places.scope(node, module) is not scope)

        asked = _Contents(analysis, module, frames)
        asked.hold(held)
        found = next(asked.changes(counts), None)
        if found is not None or not isinstance(frame.call, ast.Call):
            return found
        given = [
            argument_for(each.arg, frame, frame.call) for each in parameters(scope) if asked.holds(each.arg, scope)
        ]
        held = [name for each in given if each is not None for name in loads(each)]
        call, frames = frame.call, frames[:-1]
    return None


class _Contents:
    """The names for one piece of memory, in one file."""

    def __init__(self, analysis: Analysis, module: ModuleFile, frames: tuple[Frame, ...]) -> None:
        self.analysis = analysis
        self.module = module
        self.frames = frames
        self.held: set[Key] = set()

    def hold(self, names: Iterable[ast.Name | ast.Attribute]) -> None:
        """Take up some names, and all that may stand for the same memory."""
        self.held.update(self._key(each) for each in names if self._has_memory(each))
        before = -1
        while self.held and before != len(self.held):
            before = len(self.held)
            for target, value in _all_bindings(self.module.tree):
                if self.is_held(target):
                    roots = (each for each in self._roots(value) if self._has_memory(each))
                    self.held.update(map(self._key, roots))
                elif any(map(self.is_held, self._roots(value))):
                    self.held.add(self._key(target))

    def holds(self, name: str, scope: ast.AST) -> bool:
        """Whether a plain name of a scope is among the names."""
        return (scope, name) in self.held

    def changes(self, counts: Callable[[ast.AST], bool]) -> Iterator[str]:
        """What may change it, in the order of the kinds."""
        tree = self.module.tree
        for node in (each for kind in ASSIGNING for each in every(kind, tree)):
            for base in _written_in(node):
                if self.is_held(base) and counts(node):
                    yield f"`{dotted(base)}` is changed in place on line {base.lineno}"
        for call in every(ast.Call, tree):
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            own = self._first_held(receiver) if receiver is not None else None
            given = [*call.args, *(each.value for each in call.keywords if each.arg != "out")]
            out = next((held for each in call.keywords if each.arg == "out" and (held := self._first_held(each.value))),
                       None)  # fmt: skip
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            changed = out or (own if (name.endswith("_") and not name.endswith("__")) or name in _CHANGING else None)
            if changed is not None and counts(call):
                yield f"`{changed}` is changed in place on line {call.lineno}"
            passed = next((held for each in given if (held := self._first_held(each))), None) or own
            if passed is not None and counts(call) and not self._leaves_alone(call):
                taker = dotted(call.func) or name
                yield f"`{passed}` is handed to `{taker}` on line {call.lineno}, which may change it"
        kinds: tuple[type[ast.Return] | type[ast.Yield], ...] = (ast.Return, ast.Yield)
        for kind in kinds:
            for leaving in every(kind, tree):
                passed = self._first_held(leaving.value) if leaving.value is not None else None
                if passed is not None and counts(leaving):
                    yield f"`{passed}` is handed on on line {leaving.lineno}, and may be changed elsewhere"

    def _first_held(self, node: ast.expr) -> str | None:
        return next((dotted(each) for each in self._roots(node) if self.is_held(each)), None)

    def _key(self, node: ast.Name | ast.Attribute) -> Key:
        if isinstance(node, ast.Attribute):
            return None, node.attr
        return self.analysis.facts.bindings.owner(node.id, node, self.module), node.id

    def is_held(self, node: ast.expr) -> bool:
        """Whether a dotted name is held, or is a part of what is (``x.data``)."""
        while isinstance(node, (ast.Name, ast.Attribute)):
            if self._key(node) in self.held:
                return True
            if isinstance(node, ast.Name) or node.attr in _LOOKS:
                return False
            node = node.value
        return False

    def _has_memory(self, node: ast.expr) -> bool:
        """Whether a name may stand for something that can be changed in place."""
        found = members(self.analysis.facts.evaluate(node, self.frames))
        return not found or not all(map(_is_fixed, found))

    def _roots(self, node: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
        """The names whose memory the value of an expression may lie in, or that it holds."""
        if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) is not None:
            yield node
        elif isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)) or (
            isinstance(node, ast.Attribute) and node.attr not in _LOOKS
        ):
            yield from self._roots(node.value)
        elif isinstance(node, ast.Call):
            for each in self._given_on(node):
                yield from self._roots(each)
        else:
            for each in _parts(node):
                yield from self._roots(each)

    def _given_on(self, call: ast.Call) -> list[ast.expr]:
        """What of that which a call is given may be a part of its result."""
        given = [*call.args, *(each.value for each in call.keywords)]
        found = members(self.analysis.facts.evaluate(call.func, self.frames))
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if is_builtin(self.analysis, call.func, self.module):
            return given if f"builtins.{dotted(call.func)}" in _GATHERING else []
        if found and all(isinstance(each, External) for each in found):
            names = {each.qualname for each in found if isinstance(each, External)}
            own = all(name.startswith(("torch.", "numpy.")) for name in names)
            return given if not own or any(name.rpartition(".")[2] in _AROUND for name in names) else []
        if receiver is None:
            return given
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in _VIEWS or name.endswith("_"):
            return [receiver]
        return [*given, receiver] if any(isinstance(each, (Bound, Function)) for each in found) else []

    def _leaves_alone(self, call: ast.Call) -> bool:
        """Whether a call is known not to change what it is given, nor to keep it."""
        facts = self.analysis.facts
        events = facts.at(call)
        if is_builtin(self.analysis, call.func, self.module) or (events and all(e.kind == "make" for e in events)):
            return True
        if events and all(event.kind in ("transfer", "cast", "sync") for event in events):
            return True
        found = members(facts.evaluate(call.func, self.frames))
        if found and all(isinstance(each, (External, Made)) for each in found):
            names = [each.qualname for each in found if isinstance(each, (External, Made))]
            return not any(name.endswith("_") or name.rpartition(".")[2] in _WRITING for name in names)
        if not isinstance(call.func, ast.Attribute) or any(isinstance(each, (Bound, Function)) for each in found):
            return False
        # a method of a tensor: those that change it are told by their names; of an array, perhaps
        receiver = members(facts.evaluate(call.func.value, self.frames))
        if receiver and all(isinstance(each, Tensor) for each in receiver):
            return True
        own = self._first_held(call.func.value) is not None
        return own and call.func.attr in (*_TELLING, *_VIEWS, *_LOOKS)


def _is_fixed(value: Value) -> bool:
    fixed = (Const, Option, External, Class, Function, Bound, Namespace, ModuleValue)
    made = isinstance(value, Made) and value.kind != "dataset"
    return isinstance(value, fixed) or made or (isinstance(value, Unknown) and value.number)


def is_builtin(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether a name is one of Python's own functions."""
    if not isinstance(node, ast.Name) or not hasattr(builtins, node.id):
        return False
    owner = analysis.facts.bindings.owner(node.id, node, module)
    return owner is module.tree and not analysis.facts.bindings.writes(owner, node.id)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The expressions that a display, a choice or a comprehension takes its value or its items from."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return [node.elt, *(each.iter for each in node.generators)]
    return []


def _all_bindings(tree: ast.Module) -> Iterator[tuple[ast.Name | ast.Attribute, ast.expr]]:
    """The names that a file sets, each with the expression that its value comes from."""
    kinds: tuple[type[ast.AST], ...] = (*ASSIGNING, ast.comprehension)
    for kind in kinds:
        for node in every(kind, tree):
            yield from _bindings(node)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.Name | ast.Attribute, ast.expr]]:
    """The names that a node sets, each with the expression that its value comes from."""
    value = getattr(node, "value", None) or getattr(node, "iter", None) or getattr(node, "context_expr", None)
    if isinstance(node, (ast.Delete, ast.AugAssign)) or value is None:
        return
    single = getattr(node, "target", None) or getattr(node, "optional_vars", None)
    for target in getattr(node, "targets", [single] if single is not None else []):
        yield from _paired(target, value)


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Name | ast.Attribute, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        plain = len(parts) == len(target.elts) and not any(isinstance(each, ast.Starred) for each in target.elts)
        for index, each in enumerate(target.elts):
            yield from _paired(each, parts[index] if plain else value)
        return
    while isinstance(target, (ast.Subscript, ast.Starred)):  # a container holds what is put into it
        target = target.value
    if isinstance(target, (ast.Name, ast.Attribute)) and dotted(target) is not None:
        yield target, value


def _written_in(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """The names whose contents a statement writes: ``x[i] = 0``, ``x += 1``, ``x.data = y``."""
    for target in getattr(node, "targets", [getattr(node, "target", None) or getattr(node, "optional_vars", None)]):
        waiting = [target] if target is not None else []
        while waiting:
            each = waiting.pop()
            if isinstance(each, (ast.Tuple, ast.List)):
                waiting += each.elts
                continue
            inside = isinstance(node, ast.AugAssign)
            while isinstance(each, (ast.Subscript, ast.Starred)) or (
                isinstance(each, ast.Attribute) and each.attr == "data"
            ):
                inside = inside or not isinstance(each, ast.Starred)
                each = each.value
            if inside and isinstance(each, (ast.Name, ast.Attribute)) and dotted(each) is not None:
                yield each
