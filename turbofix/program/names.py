"""Names in the text: what a statement writes and reads, and which scope a name belongs to.

A name is its dotted text here (``total``, ``self.total``). Functions nested in a statement count as part of it for
reads (a closure reads when it runs), not for writes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from turbofix.nodes import children
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS, SCOPES, Places, outside

if TYPE_CHECKING:
    from turbofix.program.execution import ModuleFile


def dotted(node: ast.AST | None) -> str | None:
    """``self.model`` for a name or a chain of attributes on a name; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what lies in it, in source order, not entering functions, lambdas and classes."""
    yield node
    if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        for child in children(node):
            yield from walk_here(child)


def targets(node: ast.expr) -> Iterator[ast.expr]:
    """The single targets inside a target: names, attributes, subscripts."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from targets(each)
    elif isinstance(node, ast.Starred):
        yield from targets(node.value)
    else:
        yield node


def stores(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The dotted names that a statement writes, with the writing node. A subscript writes its container."""
    for each in walk_here(node):
        for name in _plain_names(each):
            yield name, each
        for target in _targets_of(each):
            for single in targets(target):
                base: ast.expr = single
                while isinstance(base, ast.Subscript):
                    base = base.value
                written = dotted(base)
                if written is not None:
                    yield written, each


def _targets_of(node: ast.AST) -> list[ast.expr]:
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


def loaded(node: ast.AST) -> set[str]:
    """The dotted names that a node reads, and the names that these begin with (``a.b`` reads ``a``)."""
    found: set[str] = set()
    for each in loads(node):
        parts = (dotted(each) or "").split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found


def reads_of(name: str, node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """The nodes in ``node`` that read exactly this dotted name (also as the beginning of a longer one)."""
    size = name.count(".") + 1
    for each in loads(node):
        text = dotted(each) or ""
        if text == name:
            yield each
        elif text.startswith(name + "."):
            inner: ast.AST = each
            for _ in range(text.count(".") + 1 - size):
                assert isinstance(inner, ast.Attribute)
                inner = inner.value
            assert isinstance(inner, (ast.Name, ast.Attribute))
            yield inner


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


class Bindings:
    """Which names belong to which scope, worked out once per scope."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._locals: dict[ast.AST, tuple[dict[str, list[ast.AST]], set[str], set[str]]] = {}

    def _read(self, scope: ast.AST) -> tuple[dict[str, list[ast.AST]], set[str], set[str]]:
        found = self._locals.get(scope)
        if found is None:
            writes: dict[str, list[ast.AST]] = {}
            outer: set[str] = set()
            captured: set[str] = set()
            for statement in body_of(scope):
                for name, node in stores(statement):
                    writes.setdefault(name, []).append(node)
                for each in walk_here(statement):
                    if isinstance(each, (ast.Global, ast.Nonlocal)):
                        outer.update(each.names)
                    if isinstance(each, FUNCTIONS):
                        own = {parameter.arg for parameter in parameters(each)}
                        captured |= loaded(each) - own
                        captured |= {name for inner in body_of(each) for name, _ in stores(inner)} & _declared(each)
            found = self._locals[scope] = (writes, outer, captured)
        return found

    def writes(self, scope: ast.AST, name: str) -> list[ast.AST]:
        """The nodes that write a dotted name in a scope itself, in source order."""
        return self._read(scope)[0].get(name, [])

    def outer_names(self, scope: ast.AST) -> set[str]:
        """The names that a function declares ``global`` or ``nonlocal``."""
        return self._read(scope)[1]

    def captured(self, scope: ast.AST) -> set[str]:
        """The names that functions nested in the scope read, or write by declaration."""
        return self._read(scope)[2]

    def is_local(self, name: str, scope: ast.AST) -> bool:
        """Whether a plain name is the scope's own: a parameter, or written in it."""
        if name in self.outer_names(scope):
            return False
        return any(each.arg == name for each in parameters(scope)) or bool(self.writes(scope, name))

    def owner(self, name: str, node: ast.AST, module: ModuleFile) -> ast.AST:
        """The scope that a plain name, read or written at ``node``, belongs to; the module where nobody writes it."""
        child: ast.AST = node
        innermost = True
        for each in self._places.ancestors(node, module):
            if isinstance(each, COMPREHENSIONS) and name in _own_names(each):
                return each
            if isinstance(each, SCOPES) and not outside(child, each):
                # a class body's names are seen in the body itself only, not in its methods
                if (innermost or not isinstance(each, ast.ClassDef)) and self.is_local(name, each):
                    return each
                innermost = False
            child = each
        return module.tree


def _own_names(comprehension: ast.AST) -> set[str]:
    """The names that a comprehension makes for itself."""
    return {
        dotted(single) or ""
        for generator in getattr(comprehension, "generators", ())
        for single in targets(generator.target)
    }


def _declared(function: ast.AST) -> set[str]:
    return {
        name
        for statement in body_of(function)
        for each in walk_here(statement)
        if isinstance(each, (ast.Global, ast.Nonlocal))
        for name in each.names
    }
