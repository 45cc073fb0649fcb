"""Where a program looks for its own modules: the folders that it puts on ``sys.path``, read off its text."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from turbofix.source.nodes import parse, unreadable, walk

_ADDING = frozenset(("append", "insert", "extend", "addsitedir"))
_SAME = frozenset(("abspath", "realpath", "normpath", "expanduser", "fspath", "str", "Path"))
_KEPT = frozenset(("resolve", "absolute", "as_posix", "expanduser"))
_DEEPEST = 8


@lru_cache(maxsize=256)
def added_folders(text: str, file: Path, root: Path) -> Sequence[Path]:
    """The folders below ``root`` that a file puts on ``sys.path``; relative ones are tried from there and from here."""
    if ("sys.path" not in text and "addsitedir" not in text) or unreadable(text):
        return []
    names: dict[str, ast.expr] = {}
    given: list[ast.expr] = []
    for node in walk(parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
        elif isinstance(node, ast.AugAssign) and _is_path(node.target):
            given.append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING:
            given += node.args[-1:] if _is_path(node.func.value) else []
    parts = [each for one in given for each in (one.elts if isinstance(one, (ast.List, ast.Tuple)) else (one,))]
    paths = _Paths(names, file, root)
    folders = [Path(os.path.normpath(path)) for part in parts for path in paths.of(part)]
    return [folder for folder in dict.fromkeys(folders) if folder == root or root in folder.parents]


def _is_path(node: ast.AST) -> bool:
    """``sys.path``, or ``site``."""
    if isinstance(node, ast.Attribute) and node.attr == "path":
        return isinstance(node.value, ast.Name) and node.value.id == "sys"
    return isinstance(node, ast.Name) and node.id == "site"


class _Paths:
    """What paths an expression may be, where literals, the file's own place and the current folder tell."""

    def __init__(self, names: dict[str, ast.expr], file: Path, root: Path) -> None:
        self._names, self._file, self._starts = names, file, (file.parent, root)

    def of(self, node: ast.AST, depth: int = _DEEPEST) -> list[Path]:
        """The paths that ``node`` may be; none where that is not told."""
        return list(self._of(node, depth - 1)) if depth else []

    def _of(self, node: ast.AST, depth: int) -> Iterator[Path]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (start / node.value for start in self._starts)
        elif isinstance(node, ast.Name):
            yield from [self._file] if node.id == "__file__" else self.of(self._names.get(node.id, node), depth)
        elif isinstance(node, ast.Attribute) and node.attr == "parent":
            yield from (path.parent for path in self.of(node.value, depth))
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            count = node.slice.value if isinstance(node.slice, ast.Constant) else None
            for path in self.of(node.value.value, depth):
                yield from [path.parents[count]] if isinstance(count, int) and -1 < count < len(path.parents) else []
        elif isinstance(node, ast.BinOp):
            yield from self._joined([node.left, node.right], depth)
        elif isinstance(node, ast.JoinedStr):
            inner = [each.value if isinstance(each, ast.FormattedValue) else each for each in node.values]
            yield from self._joined(inner, depth)
        elif isinstance(node, ast.Call):
            yield from self._called(node, depth)

    def _called(self, node: ast.Call, depth: int) -> Iterator[Path]:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("getcwd", "cwd"):
            yield from self._starts
        elif name in ("getfile", "getsourcefile"):  # inspect's, of the frame that asks
            yield self._file
        elif name in _KEPT and owner is not None and not node.args:
            yield from self.of(owner, depth)
        elif name == "dirname" and node.args:
            yield from (path.parent for path in self.of(node.args[0], depth))
        elif name == "joinpath" and owner is not None:
            yield from self._joined([owner, *node.args], depth)
        elif name == "join" or name in _SAME:
            yield from self._joined(node.args, depth)

    def _joined(self, parts: Sequence[ast.expr], depth: int) -> Iterator[Path]:
        names = [part.value for part in parts[1:] if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        for path in self.of(parts[0], depth) if len(names) == len(parts) - 1 else ():
            yield path.joinpath(*(name.strip("/\\") for name in names))
