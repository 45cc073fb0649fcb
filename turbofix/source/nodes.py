"""Syntax trees and tokens, read once for each text; the trees are walked faster than ``ast`` does.

The trees are shared by everything that reads the same text, so nobody may change them. The children of a node are
looked up once and kept on it.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from turbofix.regex import NEWLINE, regex

_BYTE_ORDER_MARK = "\ufeff"
_STRING_STARTS = tuple(
    getattr(tokenize, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(tokenize, name)
)
_STRING_ENDS = tuple(getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name))
_WORDS = (tokenize.STRING, tokenize.COMMENT, tokenize.NAME, tokenize.NUMBER, tokenize.OP)


ASYNC = "asynC"
"""How ``async``, the name of an argument before Python 3.7, is read: a word of the same length."""

_OLD_ARGUMENT = regex(r"(?<=[(,\s])async(?=\s*=[^=])")


def readable(text: str) -> str:
    """The text as a Python of today reads it, every character in its place."""
    return _OLD_ARGUMENT.sub(ASYNC, text)


_IN_USE: WeakValueDictionary[str, ast.Module] = WeakValueDictionary()
"""The trees that somebody holds, by their texts."""


@lru_cache(maxsize=128)
def parse(text: str) -> ast.Module:
    """The tree of a file's text, which may begin with a byte-order mark.

    It is the same one as long as anybody holds it, for nodes are told apart by identity.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as ``ast.parse``.
    """
    tree = _IN_USE.get(text)
    if tree is None:
        tree = _IN_USE[text] = _parsed(text)
    return tree


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's text: invalid escapes and the like
        try:
            return ast.parse(text.removeprefix(_BYTE_ORDER_MARK))
        except SyntaxError:
            if (old := readable(text)) == text:
                raise
            return ast.parse(old.removeprefix(_BYTE_ORDER_MARK))


def unreadable(text: str) -> Exception | None:
    """What stops Python from reading a text; None where it reads it."""
    try:
        parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error
    return None


def newer_reads(text: str, error: Exception) -> bool:
    """Whether a newer Python reads what this one does not: LibCST, which knows newer grammars, does."""
    import libcst

    if not isinstance(error, SyntaxError) or "too many nested" in str(error):  # LibCST has no such limit, and dies
        return False
    try:
        libcst.parse_module(text)
    except Exception:
        return False
    return True


@lru_cache(maxsize=16)
def tokens(text: str) -> tuple[tokenize.TokenInfo, ...]:
    """The tokens of a file's text, their lines ended as they are in the text; a byte-order mark is no part of them.

    Raises:
        SyntaxError, tokenize.TokenError: the tokenizer cannot go on.
    """
    return tuple(_tokens(text))


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    lines = io.StringIO(text.removeprefix(_BYTE_ORDER_MARK), newline="")
    return tokenize.generate_tokens(lines.readline)


def stretches(text: str, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The lines of the statements, of blocks as small as can be, that hold the ranges or stand beside one.

    They are in order and apart from one another.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as ``parse``.
    """
    body, starts = parse(text).body, [0, *(match.end() for match in NEWLINE.finditer(text))]
    found: list[tuple[int, int]] = []
    for start, end in sorted(_stretch(body, text, starts, *each) for each in ranges):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _stretch(body: list[ast.stmt], text: str, starts: list[int], start: int, end: int) -> tuple[int, int]:
    block: tuple[list[ast.stmt], int, int] | None = body, 0, len(text)
    while block is not None:
        statements, first, last = block
        ends = [first, *_parted(statements, text, starts), last]
        at = max(bisect_left(ends, start) - 1, 0)
        first, last = ends[at], ends[min(bisect_right(ends, end), len(ends) - 1)]
        here = [each for each in statements if first <= starts[first_line(each) - 1] < last]
        inner = [_lines(each, text, starts) for each in _blocks(here[0])] if len(here) == 1 else []
        block = next((each for each in inner if each is not None and each[1] < start and end < each[2]), None)
    return first, last


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks right in a statement."""
    parts = vars(statement)
    for part in (statement, *parts.get("handlers", ()), *parts.get("cases", ())):
        yield getattr(part, "body", [])
    yield parts.get("orelse", [])
    yield parts.get("finalbody", [])


def _lines(block: list[ast.stmt], text: str, starts: list[int]) -> tuple[list[ast.stmt], int, int] | None:
    """A block and where its lines begin and end; None where it shares them with what is around it."""
    if not block:
        return None
    first, last = first_line(block[0]), block[-1].end_lineno or block[-1].lineno
    line = text[starts[first - 1] : starts[first] if first < len(starts) else len(text)].lstrip(" \t\f")
    indented = text.startswith(line, starts[first - 1] + block[0].col_offset)
    end = starts[last] if last < len(starts) else len(text)
    return (block, starts[first - 1], end) if indented and not text[:end].rstrip("\r\n").endswith("\\") else None


def first_line(statement: ast.stmt) -> int:
    """The line that a statement begins on, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _parted(body: list[ast.stmt], text: str, starts: list[int]) -> list[int]:
    """Where the lines of each statement of a block but the last one end; kept on its first one."""
    found: list[int] | None = vars(body[0]).get("_turbofix_parted") if body else []
    if found is None:
        found = vars(body[0])["_turbofix_parted"] = []
        for statement, following in pairwise(body):
            last = statement.end_lineno or statement.lineno
            # A backslash joins it with the next line.
            if last < first_line(following) and not text[max(starts[last] - 3, 0) : starts[last]].rstrip(
                "\r\n"
            ).endswith("\\"):
                found.append(starts[last])
    return found


class Word(NamedTuple):
    """A token of a text that means something, with its place; an f-string is one."""

    start: int
    end: int
    text: str
    is_string: bool
    is_comment: bool


@lru_cache(maxsize=32)
def words(text: str) -> tuple[Word, ...]:
    """The words of a text in order.

    Raises:
        SyntaxError, tokenize.TokenError: as ``tokens``.
    """
    shift = 1 if text.startswith(_BYTE_ORDER_MARK) else 0
    starts = [shift, *(match.end() for match in NEWLINE.finditer(text, shift))]
    found: list[Word] = []
    depth, first = 0, 0
    for kind, string, (line, column), (end_line, end_column), _ in tokens(text):
        if kind in _STRING_STARTS:
            first = first if depth else starts[line - 1] + column
            depth += 1
        elif kind in _STRING_ENDS:
            depth -= 1
            if not depth:
                end = starts[end_line - 1] + end_column
                found.append(Word(first, end, text[first:end], is_string=True, is_comment=False))
        elif not depth and kind in _WORDS:
            start, end = starts[line - 1] + column, starts[end_line - 1] + end_column
            found.append(Word(start, end, string, kind == tokenize.STRING, kind == tokenize.COMMENT))
    return tuple(found)


def indent(text: str) -> str:
    """The first indentation of a text, four spaces where it has none.

    Raises:
        SyntaxError, tokenize.TokenError: as ``tokens``.
    """
    return next((each.string for each in _tokens(text) if each.type == tokenize.INDENT), "    ")


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The direct children of a node, in source order, without the marks that nodes share (``Load``, ``Add``)."""
    kind = node.__class__
    if kind in LEAVES:
        return ()
    values = node.__dict__
    kept: tuple[ast.AST, ...] | None = values.get("_turbofix_children")
    if kept is None and kind in _FREQUENT:
        kept = values["_turbofix_children"] = _FREQUENT[kind](node)
    elif kept is None:
        parts = _PARTS.get(kind)
        if parts is None:
            parts = _PARTS[kind] = tuple(name for name in node._fields if name not in _NO_PARTS)
        found: list[ast.AST] = []
        for name in parts:
            value = values.get(name)
            if value.__class__ is list:
                if value:
                    found += [each for each in value if isinstance(each, ast.AST)]
            elif value is not None and isinstance(value, ast.AST):
                found.append(value)
        kept = values["_turbofix_children"] = tuple(found)
    return kept


_NO_PARTS = frozenset(
    (
        *("ctx", "op", "ops"),
        *("id", "attr", "arg", "kind", "level", "module", "simple", "is_async", "conversion", "type_comment"),
    )
)
"""Fields that never hold a node, and those with the contexts and operators: one object each for all that have it."""

LEAVES = frozenset((ast.Name, ast.Constant))
"""What most nodes are, and what has no children: one need not ask."""

_PARTS: dict[type[ast.AST], tuple[str, ...]] = {}
"""The other fields of each class of nodes, as they come up."""

_FREQUENT: dict[type[ast.AST], Callable[[Any], tuple[ast.AST, ...]]] = {
    ast.Attribute: lambda node: (node.value,),
    ast.Call: lambda node: (node.func, *node.args, *node.keywords),
    ast.keyword: lambda node: (node.value,),
    ast.Expr: lambda node: (node.value,),
    ast.Assign: lambda node: (*node.targets, node.value),
    ast.Subscript: lambda node: (node.value, node.slice),
    ast.BinOp: lambda node: (node.left, node.right),
    ast.Tuple: lambda node: tuple(node.elts),
}
"""The same for the classes of most nodes that have children, in half the time."""


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """The node and all below it but operators, level by level; of a block it is kept, as its children are."""
    kept: list[ast.AST] | None = node.__dict__.get("_turbofix_walk")
    if kept is not None:
        return kept
    found = [node]
    for each in found:  # grows meanwhile
        if each.__class__ not in LEAVES:
            below: tuple[ast.AST, ...] | None = each.__dict__.get("_turbofix_children")
            found += children(each) if below is None else below
    if len(found) > _FEW:
        node.__dict__["_turbofix_walk"] = found
    return found


_FEW = 24  # so many nodes are sooner walked again than kept
