"""Names in the text: what a statement writes and reads, and which scope a name belongs to.

A name is its dotted text here (``total``, ``self.total``). Functions nested in a statement count as part of it for
reads (a closure reads when it runs), not for writes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from turbofix.records import dataclass
from turbofix.source.answers import once_per_node
from turbofix.source.nodes import LEAVES, children
from turbofix.source.places import COMPREHENSIONS, FUNCTIONS, SCOPES, Places, SourceFile, outside

_CLOSED = frozenset((*FUNCTIONS, ast.ClassDef, *LEAVES))


def dotted(node: ast.AST | None) -> str | None:
    """``self.model`` for a name or a chain of attributes on a name; None for anything else."""
    if node.__class__ is ast.Name:  # asked hundreds of thousands of times, of names mostly
        return node.id
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def walk_here(node: ast.AST) -> list[ast.AST]:
    """The node and what lies in it, in source order, not entering functions, lambdas and classes; kept for a loop."""
    kept: list[ast.AST] | None = node.__dict__.get("_turbofix_here")
    if kept is not None:
        return kept
    found: list[ast.AST] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        found.append(each)
        if each.__class__ not in _CLOSED:
            waiting += children(each)[::-1]
    if node.__class__ in (ast.For, ast.While):
        node.__dict__["_turbofix_here"] = found
    return found


def targets(node: ast.expr) -> Iterator[ast.expr]:
    """The single targets inside a target: names, attributes, subscripts."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from targets(each)
    elif isinstance(node, ast.Starred):
        yield from targets(node.value)
    else:
        yield node


class Told(NamedTuple):
    """What a statement tells of names: those that it writes, with the writing node, and what it declares of others."""

    stores: tuple[tuple[str, ast.AST], ...]
    declared: tuple[str, ...]


@once_per_node
def _told(node: ast.AST) -> Told:
    found: list[tuple[str, ast.AST]] = []
    declared: list[str] = []
    waiting = [node]
    while waiting:  # as `walk_here`, but for the leaves, which most nodes are
        each = waiting.pop()
        kind = each.__class__
        if kind in _WRITING:
            found += [(name, each) for name in _plain_names(each)]
            found += [(name, each) for name in written(each)]
        elif isinstance(each, (ast.Global, ast.Nonlocal)):
            declared += each.names
        if kind not in _CLOSED:
            waiting += [child for child in children(each)[::-1] if child.__class__ not in LEAVES]
    return Told(tuple(found), tuple(declared))


def stores(node: ast.AST) -> tuple[tuple[str, ast.AST], ...]:
    """The dotted names that a statement writes, with the writing node. A subscript writes its container."""
    return _told(node).stores


def written(node: ast.AST) -> Iterator[str]:
    """The dotted names among the targets of one node of ``ASSIGNING``. A subscript writes its container."""
    for target in targets_of(node):
        for single in targets(target):
            base: ast.expr = single
            while isinstance(base, ast.Subscript):
                base = base.value
            name = dotted(base)
            if name is not None:
                yield name


ASSIGNING: tuple[type[ast.AST], ...] = (
    ast.Assign,
    ast.Delete,
    ast.AugAssign,
    ast.NamedExpr,
    ast.For,
    ast.AsyncFor,
    ast.AnnAssign,
    ast.withitem,
)
"""The nodes with targets."""

_WRITING = frozenset(
    (
        *ASSIGNING,
        *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
        *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
    )
)


def targets_of(node: ast.AST) -> list[ast.expr]:
    """The targets that a node assigns to (or deletes)."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        return node.targets
    if isinstance(node, (ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor)):
        return [node.target]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [node.target]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [node.optional_vars]
    return []


def _plain_names(node: ast.AST) -> list[str]:
    """The names that a node binds without a target: imports, definitions, handlers, patterns."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name is not None:
        return [node.name]
    return []


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """The dotted names that any of the statements writes."""
    return {name for node in nodes for name, _ in stores(node)}


def loads(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """The longest dotted names that are read in a node (nested functions included), in source order."""
    if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) is not None:
        if isinstance(node.ctx, ast.Load):
            yield node
        elif isinstance(node, ast.Attribute):
            yield from loads(node.value)
        return
    for child in children(node):
        yield from loads(child)


@once_per_node
def loaded(node: ast.AST) -> frozenset[str]:
    """The dotted names that a node reads, and the names that these begin with (``a.b`` reads ``a``)."""
    found: set[str] = set()
    for each in loads(node):
        parts = (dotted(each) or "").split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return frozenset(found)


@once_per_node
def said(node: ast.AST) -> list[tuple[ast.Name | ast.Attribute, str]]:
    """What ``loads`` gives, with the names."""
    return [(each, dotted(each) or "") for each in loads(node)]


def reads_of(name: str, node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """The nodes in ``node`` that read exactly this dotted name (also as the beginning of a longer one)."""
    size = name.count(".") + 1
    for each, text in said(node):
        if text == name:
            yield each
        elif text.startswith(name + "."):
            inner: ast.AST = each
            for _ in range(text.count(".") + 1 - size):
                assert isinstance(inner, ast.Attribute)
                inner = inner.value
            assert isinstance(inner, (ast.Name, ast.Attribute))
            yield inner


@once_per_node
def parameters(function: ast.AST) -> list[ast.arg]:
    """The parameters of a function, in order, with the starred ones at the end."""
    if not isinstance(function, FUNCTIONS):
        return []
    arguments = function.args
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [each for each in (arguments.vararg, arguments.kwarg) if each is not None]


def default_of(function: ast.AST, name: str) -> ast.expr | None:
    """The default of a parameter."""
    if not isinstance(function, FUNCTIONS):
        return None
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = function.args.defaults
    for parameter, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=False):
        if parameter.arg == name:
            return default
    for parameter, keyword_default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=False):
        if parameter.arg == name:
            return keyword_default
    return None


def body_of(scope: ast.AST) -> list[ast.stmt] | list[ast.expr]:
    """The statements of a function, class or module; the expression of a lambda."""
    if isinstance(scope, ast.Lambda):
        return [scope.body]
    return list(getattr(scope, "body", []))


@dataclass(frozen=True, eq=False)
class Names:
    """The names of one scope: what writes each, and which of them it declares to belong further out."""

    parameters: frozenset[str]
    writes: dict[str, list[ast.AST]]
    outer: frozenset[str]

    def holds(self, name: str) -> bool:
        """Whether a plain name is the scope's own: a parameter, or written in it."""
        return name not in self.outer and (name in self.parameters or name in self.writes)


@once_per_node
def names_of(scope: ast.AST) -> Names:
    """The names of a function, class or module."""
    writes: dict[str, list[ast.AST]] = {}
    for statement in body_of(scope):
        for name, node in stores(statement):
            writes.setdefault(name, []).append(node)
    return Names(frozenset(each.arg for each in parameters(scope)), writes, _declared(scope))


@once_per_node
def _captured(scope: ast.AST) -> frozenset[str]:
    """The names that functions nested in a scope read, or write by declaration."""
    found: set[str] = set()
    for statement in body_of(scope):
        for each in walk_here(statement):
            if isinstance(each, FUNCTIONS):
                found |= {name for name in loaded(each) if not names_of(each).holds(name)}
                found |= {name for inner in body_of(each) for name, _ in stores(inner)} & _declared(each)
    return frozenset(found)


class Bindings:
    """Which names belong to which scope."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._owners: dict[tuple[str, ast.AST], ast.AST] = {}

    def writes(self, scope: ast.AST, name: str) -> list[ast.AST]:
        """The nodes that write a dotted name in a scope itself, in source order."""
        return names_of(scope).writes.get(name, [])

    def captured(self, scope: ast.AST) -> frozenset[str]:
        """The names that functions nested in the scope read, or write by declaration."""
        return _captured(scope)

    def is_local(self, name: str, scope: ast.AST) -> bool:
        """Whether a plain name is the scope's own: a parameter, or written in it."""
        return names_of(scope).holds(name)

    def owner(self, name: str, node: ast.AST, module: SourceFile) -> ast.AST:
        """The scope that a plain name, read or written at ``node``, belongs to; the module where nobody writes it."""
        found = self._owners.get((name, node))
        if found is None:
            found = self._owners[name, node] = self._owner(name, node, module)
        return found

    def _owner(self, name: str, node: ast.AST, module: SourceFile) -> ast.AST:
        child: ast.AST = node
        innermost = True
        for each in self._places.ancestors(node, module):
            if isinstance(each, COMPREHENSIONS) and name in _own_names(each):
                return each
            if each is module.tree:  # whether or not the name is its own
                break
            if isinstance(each, SCOPES) and not outside(child, each):
                # a class body's names are seen in the body itself only, not in its methods
                if (innermost or not isinstance(each, ast.ClassDef)) and self.is_local(name, each):
                    return each
                innermost = False
            child = each
        return module.tree


@once_per_node
def _own_names(comprehension: ast.AST) -> frozenset[str]:
    """The names that a comprehension makes for itself."""
    return frozenset(
        dotted(single) or ""
        for generator in getattr(comprehension, "generators", ())
        for single in targets(generator.target)
    )


def _declared(scope: ast.AST) -> frozenset[str]:
    return frozenset(name for statement in body_of(scope) for name in _told(statement).declared)


def is_nothing(node: ast.AST | None) -> bool:
    """The constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_main_test(test: ast.expr) -> bool:
    """``__name__ == "__main__"``."""
    return isinstance(test, ast.Compare) and any(
        isinstance(side, ast.Name) and side.id == "__name__" for side in (test.left, *test.comparators)
    )
