"""Configuration files that a program reads, YAML and JSON: where their values stand, and how they are changed.

Values are put in at their places in the text, so that comments, layout and order stay. A ``Site`` in such a file is the
span of a value; only where it begins counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbofix.records import dataclass
from turbofix.regex import NEWLINE, regex
from turbofix.source.site import Site

if TYPE_CHECKING:
    import yaml

SUFFIXES = (".yaml", ".yml", ".json")
_LARGE, _SMALL = regex(r":\s+(?:True|False)\b"), regex(r":\s+(?:true|false)\b")


class NotPlainError(Exception):
    """A text is no YAML or plain JSON with a mapping at its top; the argument says what it is instead."""


@dataclass(frozen=True)
class Node:
    """A value at the characters ``start`` to ``end``, with its entries: their keys' starts, keys and values.

    ``kind`` is "object", "array" or "value". ``style`` is that of YAML: a quote, ``|`` or ``>`` of a text.
    ``said``: what the text of a plain value is taken for. ``flow``: its entries stand in brackets.
    """

    start: int
    end: int
    kind: str
    entries: tuple[tuple[int, str, Node], ...] = ()
    style: str | None = None
    said: tuple[str, str] = ("", "")
    flow: bool = True


def is_data(path: Path) -> bool:
    """Whether a file is read and edited as YAML or JSON, not as Python."""
    return path.suffix in SUFFIXES


def is_json(path: Path) -> bool:
    """Whether a file is JSON."""
    return path.suffix == ".json"


@lru_cache(maxsize=16)
def values(text: str) -> dict[str, Any]:
    """What a text holds as JSON.

    Raises:
        NotPlainError: it is not JSON (comments are not), its top is no object, or a key comes twice in an object.
    """
    import json

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


@lru_cache(maxsize=64)
def read(path: Path, text: str) -> DataText:
    """One text, read once. Raises ``NotPlainError``."""
    return DataText(path, text)


class DataText:
    """One text, read-only: its values by their place."""

    def __init__(self, path: Path, text: str) -> None:
        """Raises ``NotPlainError``."""
        if is_json(path):
            values(text)  # YAML would let more pass
        import yaml  # here, since most runs edit none

        self.path = path
        self.text = text
        try:
            top = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
            if not isinstance(top, yaml.MappingNode):
                raise NotPlainError("holds no mapping")
            self.top = _node(top)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise NotPlainError(f"is no YAML that could be read ({str(error).splitlines()[0]})") from None
        self._starts = [0, *(match.end() for match in NEWLINE.finditer(text))]

    def site(self, *keys: str) -> Site | None:
        """The value under a path of keys; the whole mapping without one."""
        node = self.top
        for key in keys:
            found = next((each for _, name, each in node.entries if name == key), None)
            if found is None:
                return None
            node = found
        return self.site_of(node)

    def site_of(self, node: Node) -> Site:
        """Where a value stands."""
        (line, column), (end_line, end_column) = self._place(node.start), self._place(node.end)
        return Site(self.path, line, column, end_line, end_column, node.kind)

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1]

    def _offset(self, site: Site) -> int:
        return self._starts[site.line - 1] + site.column if site.line <= len(self._starts) else -1

    def node(self, site: Site) -> Node | None:
        """The value that a site means."""
        start = self._offset(site)
        return next((each for each in _all(self.top) if each.start == start), None)

    def holder(self, site: Site) -> tuple[Node, Node | None] | None:
        """The mapping that a site means, or that has the value which it means, and that value."""
        start = self._offset(site)
        for each in _all(self.top):
            inner = next((value for _, _, value in each.entries if value.start == start), None)
            if each.kind == "object" and inner is not None and inner.kind == "value":
                return each, inner
        node = self.node(site)
        return (node, None) if node is not None and node.kind == "object" else None

    def spelled(self, value: object, old: Node | None = None) -> str:
        """A value as the file writes it, in the quotes of the one that it replaces."""
        import json

        import yaml

        if is_json(self.path) or isinstance(value, dict):
            return json.dumps(value)
        if isinstance(value, str):
            if old is not None and old.style == "'":
                return "'" + value.replace("'", "''") + "'"
            plain = (old is None or old.style is None) and yaml.safe_load(value) == value
            return value if plain and not re.search(r"[#,\[\]{}\n]|: ", value) else json.dumps(value)
        if isinstance(value, bool) and len(_LARGE.findall(self.text)) > len(_SMALL.findall(self.text)):
            return str(value)
        return "null" if value is None else str(value).lower()

    def entry(
        self, node: Node, key: str, value: object, before: str | None = None, beside: Node | None = None
    ) -> tuple[int, str] | None:
        """Where an entry goes into a mapping, and the text that puts it there; None where it has no place.

        Before the entry ``before``, where there is one, else behind the value ``beside``, else behind the last.
        Objects in it are laid out over lines if those of the file are.
        """
        text = self.text
        newline = (NEWLINE.search(text) or ["\n"])[0]
        if not node.flow:
            known = [(start, each) for start, _, each in node.entries if beside is None or each == beside]
            simple = [(start, each) for start, each in known if each.kind == "value" and each.style not in ("|", ">")]
            if not simple:
                return None
            start, last = simple[-1]
            indent = " " * (start - max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) - 1)
            line = re.compile(r"[^\r\n]*").match(text, last.end)
            assert line is not None
            return line.end(), f"{newline}{indent}{key}: {self.spelled(value)}"
        at = next((start for start, name, _ in node.entries if name == before), None)
        first = node.entries[0][0] if node.entries else None
        mark = '"' if is_json(self.path) or (first is not None and text[first] == '"') else ""
        if first is None:
            return node.start + 1, f"{mark}{key}{mark}: {self.spelled(value)}"
        over_lines = bool(NEWLINE.search(text, node.start, first))
        indent = text[text.rfind("\n", 0, first) + 1 : first] if over_lines else ""
        colon = ":" if re.search(r'":\S', text) and not re.search(r'":\s', text) else ": "
        spelled = self.spelled(value).replace('": ', f'"{colon}')
        written = f"{mark}{key}{mark}{colon}{self._laid_out(spelled, indent, newline, over_lines=over_lines)}"
        between = newline + indent if over_lines else " " if ", " in text or colon == ": " else ""
        if at is not None:
            return at, f"{written},{between}"
        return (beside or node.entries[-1][2]).end, f",{between}{written}"

    def _laid_out(self, value: str, indent: str, newline: str, *, over_lines: bool) -> str:
        """An object with one entry as the file lays out its objects."""
        inner = [each for _, _, each in self.top.entries if each.kind == "object" and each.entries]
        spread = [each for each in inner if NEWLINE.search(self.text, each.start, each.end)]
        if not over_lines or not value.startswith("{") or (inner and not spread):
            return value
        line = self.text.rfind("\n", 0, self.top.entries[0][0])
        unit = self.text[line + 1 : self.top.entries[0][0]] if line >= self.top.start else "  "
        return "{" + newline + indent + unit + value[1:-1] + newline + indent + "}"


def _all(node: Node) -> Iterator[Node]:
    yield node
    for _, _, inner in node.entries:
        yield from _all(inner)


_KINDS = {"mapping": "object", "sequence": "array", "scalar": "value"}


def _node(node: yaml.Node) -> Node:
    import yaml

    start, end = node.start_mark.index, node.end_mark.index
    entries: list[tuple[int, str, Node]] = []
    if isinstance(node, yaml.MappingNode):
        entries = [(key.start_mark.index, str(key.value), _node(value)) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(each.start_mark.index, "", _node(each)) for each in node.value]
    is_text = isinstance(node, yaml.ScalarNode)
    return Node(
        start,
        end,
        _KINDS[node.id],
        tuple(entries),
        node.style if is_text else None,
        (node.tag, node.value) if is_text else ("", ""),
        is_text or bool(node.flow_style),
    )


def lost(old: Node, new: Node, replaced: Collection[int] = ()) -> bool:
    """Whether a text has lost something, or says something else but at the starts of what was replaced."""
    if old.kind != new.kind or (old.kind == "value" and old.said != new.said):
        return old.start not in replaced or new.kind != "value"
    names = [name for _, name, _ in old.entries]
    left = [each for each in new.entries if old.kind == "array" or each[1] in names]
    twice = new.kind == "object" and len({name for _, name, _ in new.entries}) < len(new.entries)
    if [name for _, name, _ in left] != names or (twice and len(set(names)) == len(names)):
        return True
    pairs = zip(old.entries, left, strict=True)
    return any(lost(one, other, replaced) for (_, _, one), (_, _, other) in pairs)
