"""JSON files that a program reads: where their values stand, and how an object of one is given another entry.

Such a file has no comments; what must stay as it is are its layout and its order. A ``Site`` in it is the span of a
value, its ``kind`` "object", "array" or "value".
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from turbofix.findings import Site
from turbofix.records import dataclass

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SCALAR = re.compile(r"[^\s,\]}]+")
_NEWLINE = re.compile(r"\r\n|\n|\r")


class NotPlainError(Exception):
    """A text is not plain JSON with an object at its top; the argument says what it is instead."""


@dataclass(frozen=True)
class Node:
    """A value at the characters ``start`` to ``end``; of an object, with its entries: their keys' starts and values."""

    start: int
    end: int
    kind: str
    entries: tuple[tuple[int, str, Node], ...] = ()


def is_json(path: Path) -> bool:
    """Whether a file is read and edited as JSON, not as Python."""
    return path.suffix == ".json"


@lru_cache(maxsize=16)
def values(text: str) -> dict[str, Any]:
    """What a text holds.

    Raises:
        NotPlainError: it is not JSON (comments are not), its top is no object, or a key comes twice in an object.
    """
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise NotPlainError(f"is not plain JSON ({error})") from None
    if not isinstance(found, dict):
        raise NotPlainError("holds no object")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


class JsonText:
    """One JSON text, read-only: its values by their place."""

    def __init__(self, path: Path, text: str) -> None:
        """Raises ``NotPlainError``."""
        values(text)  # it is what the spans are looked for by rules that would let more pass
        self.path = path
        self.text = text
        self.top, _ = _node(text, _SPACE.match(text, 0).end())  # type: ignore[union-attr]  # matches nothing, too
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]

    def site(self, *keys: str) -> Site | None:
        """The value under a path of keys; the whole object without one."""
        node = self.top
        for key in keys:
            found = next((each for _, name, each in node.entries if name == key), None)
            if found is None:
                return None
            node = found
        (line, column), (end_line, end_column) = self._place(node.start), self._place(node.end)
        return Site(self.path, line, column, end_line, end_column, node.kind)

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1]

    def node(self, site: Site) -> Node | None:
        """The value that a site means."""
        start = self._starts[site.line - 1] + site.column if site.line <= len(self._starts) else -1
        return next((each for each in _all(self.top) if each.start == start), None)

    def entry(self, node: Node, key: str, value: str, before: str | None = None) -> tuple[int, str]:
        """Where an entry goes into an object, and the text that puts it there: the value as it is to be written.

        Before the entry ``before``, where there is one, else behind the last. Objects in it are laid out over lines if
        those of the file are.
        """
        text = self.text
        newline = (_NEWLINE.search(text) or ["\n"])[0]
        at = next((start for start, name, _ in node.entries if name == before), None)
        first = node.entries[0][0] if node.entries else None
        if first is None:
            return node.start + 1, f'{{"{key}": {value}}}'[1:-1]
        over_lines = bool(_NEWLINE.search(text, node.start, first))
        indent = text[text.rfind("\n", 0, first) + 1 : first] if over_lines else ""
        colon = ":" if re.search(r'":\S', text) and not re.search(r'":\s', text) else ": "
        value = value.replace('": ', f'"{colon}')
        written = f'"{key}"{colon}{self._laid_out(value, indent, newline, over_lines=over_lines)}'
        between = newline + indent if over_lines else " " if ", " in text or colon == ": " else ""
        if at is not None:
            return at, f"{written},{between}"
        return node.entries[-1][2].end, f",{between}{written}"

    def _laid_out(self, value: str, indent: str, newline: str, *, over_lines: bool) -> str:
        """An object with one entry as the file lays out its objects."""
        inner = [each for _, _, each in self.top.entries if each.kind == "object" and each.entries]
        spread = [each for each in inner if _NEWLINE.search(self.text, each.start, each.end)]
        if not over_lines or not value.startswith("{") or (inner and not spread):
            return value
        line = self.text.rfind("\n", 0, self.top.entries[0][0])
        unit = self.text[line + 1 : self.top.entries[0][0]] if line >= self.top.start else "  "
        return "{" + newline + indent + unit + value[1:-1] + newline + indent + "}"


def _all(node: Node) -> Iterator[Node]:
    yield node
    for _, _, inner in node.entries:
        yield from _all(inner)


def _node(text: str, at: int) -> tuple[Node, int]:
    """The value that begins here, and where the text goes on behind it and white space."""
    if text[at] in "{[":
        return _container(text, at)
    match = (_STRING if text[at] == '"' else _SCALAR).match(text, at)
    assert match is not None
    return Node(at, match.end(), "value"), _skip(text, match.end())


def _container(text: str, start: int) -> tuple[Node, int]:
    is_object = text[start] == "{"
    entries: list[tuple[int, str, Node]] = []
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        key_at, key = at, ""
        if is_object:
            match = _STRING.match(text, at)
            assert match is not None
            key = json.loads(match[0])
            at = _skip(text, _skip(text, match.end()) + 1)  # over the colon
        value, at = _node(text, at)
        if is_object:
            entries.append((key_at, key, value))
        if text[at] == ",":
            at = _skip(text, at + 1)
    return Node(start, at + 1, "object" if is_object else "array", tuple(entries)), _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def lost(old: object, new: object) -> bool:
    """Whether a value has lost something, or holds something else where there was something."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [key for key in new if key in old] != list(old) or any(lost(old[key], new[key]) for key in old)
    return type(old) is not type(new) or old != new
