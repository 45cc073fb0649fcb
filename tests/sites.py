"""Sites by what stands there, for tests of edits: ``at(text, "f(a)")`` is the first node with that source."""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path

from turbofix.editing.edit import Edit
from turbofix.source.site import Site

PATH = Path("/project/train.py")
BOM = "\ufeff"


def site_of(node: ast.AST, text: str, path: Path = PATH) -> Site:
    """The site of an ``ast`` node of a text (columns in characters)."""
    lines = lines_of(text)
    line, end = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    first, last = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    columns = len(lines[line - 1][:first].decode()), len(lines[end - 1][:last].decode())
    return Site(path, line, columns[0], end, columns[1], type(node).__name__)


def source_of(node: ast.AST, text: str) -> str:
    """The source of an ``ast`` node, as ``ast.get_source_segment`` gives it, without splitting the text each time."""
    lines = lines_of(text)
    line, end = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    first, last = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    inside = b"".join(lines[line : end + 1])
    return inside[first : len(inside) - len(lines[end]) + last].decode()


@functools.lru_cache(maxsize=8)
def lines_of(text: str) -> list[bytes]:
    """The lines of a text as ``ast`` counts them: with their newlines, encoded."""
    return [line.encode() for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", text.removeprefix(BOM))]


def at(text: str, source: str, kind: str | None = None, nth: int = 0, path: Path = PATH) -> Site:
    """The ``nth`` node (outermost first) whose source starts with ``source``, exact matches before others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = ast.parse(text.removeprefix(BOM))
    exact, starting = [], []
    for node in ast.walk(module):
        segment = ast.get_source_segment(text.removeprefix(BOM), node) if hasattr(node, "lineno") else None
        if segment is None or (kind is not None and type(node).__name__ != kind):
            continue
        if segment == source:
            exact.append(node)
        elif isinstance(node, ast.stmt) and segment.startswith(source):
            starting.append(node)
    return site_of([*exact, *starting][nth], text, path)


def edit_of(*texts: str) -> Edit:
    """An edit over one text (at ``PATH``), or over several (``PATH``, then ``module_1.py``, ...)."""
    paths = [PATH, *(PATH.with_name(f"module_{number}.py") for number in range(1, len(texts)))]
    read: Callable[[Path], str | None] = dict(zip(paths, texts, strict=True)).get
    return Edit(read, "test")
