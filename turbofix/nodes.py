"""Walking syntax trees, faster than ``ast`` does: the children of a node are looked up once and kept on it."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The direct children of a node, in source order."""
    kept: tuple[ast.AST, ...] | None = node.__dict__.get("_turbofix_children")
    if kept is None:
        found: list[ast.AST] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
        kept = tuple(found)
        node.__dict__["_turbofix_children"] = kept
    return kept


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything below it, level by level, as ``ast.walk``."""
    waiting = deque([node])
    while waiting:
        each = waiting.popleft()
        waiting.extend(children(each))
        yield each
