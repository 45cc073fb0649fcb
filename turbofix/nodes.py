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
    kept: tuple[ast.AST, ...] | None = node.__dict__.get("_turbofix_children")
    if kept is None:
        found: list[ast.AST] = []
        for name in node._fields:
            if name == "ctx":  # a third of all nodes
                continue
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
