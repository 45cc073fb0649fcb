"""Which reads of a name a definition of it reaches, in one function or module: the text alone tells.

A definition is the node that is written (a name, the ``arg`` of a parameter). What functions nested in the scope read
may be any of its definitions: they run at some other time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turbofix.source.answers import once_per_node
from turbofix.source.names import body_of, names_of, parameters, targets
from turbofix.source.nodes import children
from turbofix.source.places import COMPREHENSIONS, FUNCTIONS

Definitions = dict[str, frozenset[ast.AST]]


@once_per_node
def readers(scope: ast.AST) -> dict[ast.AST, list[ast.Name]]:
    """The reads that each definition of a scope's own names reaches, in the order of the text."""
    walk = _Walk(scope)
    found: dict[ast.AST, list[ast.Name]] = {}
    for read, definitions in walk.reads.items():
        for each in definitions:
            found.setdefault(each, []).append(read)
    for name, reads in walk.inner.items():
        for each in walk.made.get(name, ()):
            found.setdefault(each, []).extend(reads)
    for reads in found.values():
        reads.sort(key=lambda read: (read.lineno, read.col_offset))
    return found


class _Walk:
    """The statements of a scope in the order in which they run; a loop's body twice."""

    def __init__(self, scope: ast.AST) -> None:
        self.outer = names_of(scope).outer
        self.reads: dict[ast.Name, set[ast.AST]] = {}
        self.made: dict[str, set[ast.AST]] = {}
        self.inner: dict[str, list[ast.Name]] = {}  # what nested functions read
        self.names: Definitions | None = {}  # those that reach here; None where control does not come
        self.breaks: list[list[Definitions]] = []  # what reaches those of the loops around
        self.continues: list[list[Definitions]] = []
        for each in parameters(scope):
            self._define(each.arg, each)
        for statement in body_of(scope):
            self._visit(statement)

    def _define(self, name: str, node: ast.AST) -> None:
        self.made.setdefault(name, set()).add(node)
        if self.names is not None:
            self.names[name] = frozenset((node,))

    def _visit(self, node: ast.AST | None) -> None:
        if node is None:
            return
        known = getattr(self, f"_{type(node).__name__.lower()}", None)
        if known is not None:
            known(node)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self._nested(node)
        elif isinstance(node, COMPREHENSIONS):
            self._comprehension(node)
        else:
            self._all(children(node))

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for each in nodes:
            self._visit(each)

    def _branches(self, *blocks: Iterable[ast.AST]) -> None:
        """Blocks of which one is executed."""
        before, after = self.names, []
        for block in blocks:
            self.names = dict(before) if before is not None else None
            self._all(block)
            after.append(self.names)
        self.names = _joined(after)

    # --- expressions ------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node)
        elif isinstance(node.ctx, ast.Store):
            self._define(node.id, node)

    def _read(self, node: ast.Name) -> None:
        if node.id not in self.outer and self.names is not None:
            self.reads.setdefault(node, set()).update(self.names.get(node.id, ()))

    def _namedexpr(self, node: ast.NamedExpr) -> None:
        self._all((node.value, node.target))

    def _comprehension(self, node: ast.AST) -> None:
        """Its own names hide those of the scope while it runs."""
        before = dict(self.names) if self.names is not None else None
        own: set[str] = set()
        for each in getattr(node, "generators", ()):
            self._all((each.iter, each.target, *each.ifs))
            own |= {name.id for name in targets(each.target) if isinstance(name, ast.Name)}
        self._all(child for child in children(node) if not isinstance(child, ast.comprehension))
        if before is not None and self.names is not None:
            for name in own:
                self.names.pop(name, None)
                if name in before:
                    self.names[name] = before[name]

    def _nested(self, node: ast.AST) -> None:
        """A function or class runs at another time."""
        for name, read in _free(node):
            self.inner.setdefault(name, []).append(read)
        if not isinstance(node, ast.Lambda):
            self._define(getattr(node, "name", ""), node)

    # --- statements -------------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        self._all((node.value, *node.targets))

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._all((node.value, node.target))

    def _augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target)
        self._all((node.value, node.target))

    def _if(self, node: ast.If) -> None:
        self._visit(node.test)
        self._branches(node.body, node.orelse)

    def _match(self, node: ast.Match) -> None:
        self._visit(node.subject)
        self._branches((), *([each] for each in node.cases))

    def _matchas(self, node: ast.MatchAs) -> None:
        self._visit(node.pattern)
        if node.name is not None:
            self._define(node.name, node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self._visit(getattr(node, "iter", None))
        before = self.names
        self.breaks.append([])
        self.continues.append([])
        for _ in range(2):
            at_head = _joined([before, self.names, *self.continues[-1]])
            self.names = dict(at_head) if at_head is not None else None
            self._all([*([node.test] if isinstance(node, ast.While) else [node.target]), *node.body])
        self.names = _joined([at_head, self.names, *self.continues.pop(), *self.breaks.pop()])
        self._all(node.orelse)

    _for = _asyncfor = _while = _loop

    def _break(self, node: ast.Break | ast.Continue) -> None:
        kept = self.breaks if isinstance(node, ast.Break) else self.continues
        if kept and self.names is not None:
            kept[-1].append(self.names)
        self.names = None

    _continue = _break

    def _end(self, node: ast.AST) -> None:
        self._all(children(node))
        self.names = None

    _return = _raise = _end

    def _try(self, node: ast.Try) -> None:
        met = [dict(self.names) if self.names is not None else None]
        for statement in node.body:
            self._visit(statement)
            met.append(dict(self.names) if self.names is not None else None)
        self._all(node.orelse)
        after = [self.names]
        for handler in node.handlers:
            self.names = _joined(met)
            self._visit(handler.type)
            if handler.name is not None:
                self._define(handler.name, handler)
            self._all(handler.body)
            after.append(self.names)
        self.names = _joined(after if not node.finalbody else [*after, *met])
        self._all(node.finalbody)

    _trystar = _try


def _joined(paths: Iterable[Definitions | None]) -> Definitions | None:
    """The definitions where paths meet."""
    found: Definitions | None = None
    for path in paths:
        if path is not None:
            found = {} if found is None else found
            for name, definitions in path.items():
                found[name] = found[name] | definitions if name in found else definitions
    return found


@once_per_node
def _free(scope: ast.AST) -> list[tuple[str, ast.Name]]:
    """The reads in a function or class, and in what is nested in it, of names that are not its own."""
    own, found = names_of(scope), []
    waiting = [*children(scope)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            found += _free(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.append((node.id, node))
        else:
            waiting += children(node)
    hides = not isinstance(scope, ast.ClassDef)
    return [(name, node) for name, node in found if not (hides and own.holds(name))]
