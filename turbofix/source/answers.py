"""Questions about the syntax alone, answered once for each node.

The answers are kept on the nodes, as their children are (``nodes``): they live as long as the tree does, so that the
analyses of a file's unchanged text, one after each rewrite, share them. Nobody may change an answer.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import NamedTuple, TypeVar

from turbofix.source.nodes import LEAVES, children

Node = TypeVar("Node", bound=ast.AST)
Answer = TypeVar("Answer")


def once_per_node(question: Callable[[Node], Answer]) -> Callable[[Node], Answer]:
    """The question, a pure function of a node and what lies below it, with its answers remembered."""
    key = f"_turbofix_{question.__module__}_{question.__qualname__}"

    def ask(node: Node) -> Answer:
        kept: dict[str, Answer] = node.__dict__
        if key in kept:
            return kept[key]
        answer = kept[key] = question(node)
        return answer

    ask.__doc__ = question.__doc__
    return ask


def kept(node: ast.AST, what: str, answer: Callable[[], Answer]) -> Answer:
    """The same for a question that needs the file's text as well: the answer under the name ``what`` of a node."""
    key = f"_turbofix_{what}"
    known: dict[str, Answer] = node.__dict__
    if key not in known:
        known[key] = answer()
    return known[key]


@once_per_node
def index(tree: ast.Module) -> Index:
    """A file's nodes, each looked at once."""
    parents: dict[ast.AST, ast.AST] = {}
    by_type: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows meanwhile
        kind = node.__class__
        by_type[kind].append(node)
        if kind in LEAVES:
            continue
        below = children(node)
        nodes += below
        for each in below:
            parents[each] = node
    return Index(nodes, dict(by_type), parents)


class Index(NamedTuple):
    """The nodes of a file in the order of ``walk``, the same by their exact type, and the parent of each."""

    nodes: list[ast.AST]
    by_type: dict[type[ast.AST], list[ast.AST]]
    parents: dict[ast.AST, ast.AST]


_BLOCKS = frozenset(("body", "handlers", "orelse", "finalbody", "cases"))


@cache
def _parts(kind: Callable[..., ast.AST]) -> tuple[str, ...]:
    """The fields of a class of nodes that hold statements."""
    return tuple(name for name in kind._fields if name in _BLOCKS)  # type: ignore[attr-defined]


@once_per_node
def statements(tree: ast.Module) -> Index:
    """A file's statements alone, with the handlers and cases that hold some: a tenth of its nodes."""
    parents: dict[ast.AST, ast.AST] = {}
    by_type: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows meanwhile
        kind = node.__class__
        by_type[kind].append(node)
        for name in _parts(kind):  # type: ignore[arg-type]
            below = getattr(node, name)
            nodes += below
            for each in below:
                parents[each] = node
    return Index(nodes, dict(by_type), parents)


def everything(tree: ast.Module) -> Sequence[ast.AST]:
    """All nodes of a file, in the order of ``walk``."""
    return index(tree).nodes


def parents_in(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    """The parent of every node of a file."""
    return index(tree).parents


def parents_above(node: ast.AST, tree: ast.Module) -> dict[ast.AST, ast.AST]:
    """The parents of a node and of all that hold it; of other nodes, as far as they are known by then.

    Few nodes of a file are asked about: it is the expressions of their statements alone that are looked at.
    """
    known = _parents_by_then(tree)
    if node not in known and node is not tree:
        statement = _statement_at(node, tree)
        waiting: list[ast.AST] = [] if statement is None else [statement]
        for each in waiting:  # grows meanwhile
            for child in children(each):
                if child not in known:  # as the statements in it are
                    known[child] = each
                    waiting.append(child)
        if node not in known:
            return index(tree).parents
    return known


@once_per_node
def _parents_by_then(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return dict(statements(tree).parents)


def _statement_at(node: ast.AST, tree: ast.Module) -> ast.AST | None:
    """The innermost statement or handler at the place of a node, by where they begin; None where it has none."""
    found: ast.AST | None = None
    if hasattr(node, "lineno"):
        place = _PLACE(node)
        below: list[ast.AST] = [*tree.body]
        while (at := bisect_right(below, place, key=_PLACE)) > 0:
            found = below[at - 1]
            if isinstance(found, ast.Match):  # its cases have no place of their own
                break
            below = [each for name in _parts(found.__class__) for each in getattr(found, name)]  # type: ignore[arg-type]
    return found


_PLACE = attrgetter("lineno", "col_offset")


def every(kind: type[Node], tree: ast.Module) -> Sequence[Node]:
    """The nodes of a file of exactly this type, in the order of ``walk``."""
    known = statements(tree) if issubclass(kind, ast.stmt) else index(tree)
    return known.by_type.get(kind, ())  # type: ignore[return-value]
