"""Syntax trees and tokens, read once for each text; the trees are walked faster than ``ast`` does.

The trees are shared by everything that reads the same text, so nobody may change them. The children of a node are
looked up once and kept on it.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

_BYTE_ORDER_MARK = "\ufeff"


@lru_cache(maxsize=128)
def parse(text: str) -> ast.Module:
    """The tree of a file's text, which may begin with a byte-order mark.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as ``ast.parse``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's text: invalid escapes and the like
        return ast.parse(text.removeprefix(_BYTE_ORDER_MARK))


@lru_cache(maxsize=16)
def tokens(text: str) -> tuple[tokenize.TokenInfo, ...]:
    """The tokens of a file's text, their lines ended as they are in the text; a byte-order mark is no part of them.

    Raises:
        SyntaxError, tokenize.TokenError: the tokenizer cannot go on.
    """
    lines = io.StringIO(text.removeprefix(_BYTE_ORDER_MARK), newline="")
    return tuple(tokenize.generate_tokens(lines.readline))


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The direct children of a node, in source order, without the contexts (``Load``, ``Store``): marks, no parts."""
    values = node.__dict__
    kept: tuple[ast.AST, ...] | None = values.get("_turbofix_children")
    if kept is None:
        kind = node.__class__
        parts = _PARTS.get(kind)
        if parts is None:
            parts = _PARTS[kind] = tuple(name for name in node._fields if name not in _NO_PARTS)
        found: list[ast.AST] = []
        for name in parts:
            value = values.get(name)
            if value.__class__ is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
        kept = values["_turbofix_children"] = tuple(found)
    return kept


_NO_PARTS = frozenset(
    ("ctx", "id", "attr", "arg", "kind", "level", "module", "simple", "is_async", "conversion", "type_comment")
)
"""Fields that never hold a node, and the contexts, which are a third of all nodes."""

_PARTS: dict[type[ast.AST], tuple[str, ...]] = {}
"""The other fields of each class of nodes, as they come up."""


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything below it, level by level, as ``ast.walk``."""
    waiting = deque([node])
    while waiting:
        each = waiting.popleft()
        waiting.extend(children(each))
        yield each
