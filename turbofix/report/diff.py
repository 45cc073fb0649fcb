"""Unified diffs that ``git apply`` and ``patch -p1`` take as they are.

A diff is bytes: its lines are in the encoding of the file that they come from, with that file's line endings.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from turbofix.engine.project import shown
from turbofix.source.files import Source, Workspace

Opcode = tuple[str, int, int, int, int]

_CONTEXT = 3
_NO_NEWLINE = b"\n\\ No newline at end of file\n"


def render(contents: Mapping[Path, bytes], workspace: Workspace) -> bytes:
    """The diff from the files as they were read to their new contents, by path; names are relative to ``base_of``."""
    base = base_of(contents, workspace)
    parts = []
    for path, new in sorted(contents.items(), key=lambda item: shown(item[0])):
        source = workspace.place(path)
        if isinstance(source, Source):
            name = Path(os.path.relpath(path, base)).as_posix()
            parts.append(unified(source.data, new, name, created=source.new))
    return b"".join(parts)


def base_of(paths: Iterable[Path], workspace: Workspace) -> Path:
    """The folder that a diff of these files applies in: the current one where all lie below it, for a name that climbs
    (``../train.py``) is refused by git and patch; else the one that holds their projects."""
    current, files = Path.cwd(), [Path(os.path.abspath(path)) for path in paths]
    if all(current in file.parents for file in files):
        return current
    return Path(os.path.commonpath([workspace.root(file) for file in files]))


def unified(old: bytes, new: bytes, name: str, *, created: bool = False) -> bytes:
    """The diff from ``old`` to ``new``; empty when they are equal. ``name`` is relative, with ``/`` between folders."""
    before, after = _lines(old), _lines(new)
    # Without a `diff --git` line git, too, reads the names from the current folder, as patch does.
    header = b"--- %s\n+++ %s\n" % (b"/dev/null" if created else _quote(f"a/{name}"), _quote(f"b/{name}"))
    body = b"".join(_hunks(before, after))
    return header + body if body else b""


def _lines(data: bytes) -> list[bytes]:
    """Only a line feed ends a line of a diff: a carriage return before it belongs to the line."""
    *complete, last = data.split(b"\n")
    return [*(line + b"\n" for line in complete), *([last] if last else [])]


def _hunks(before: list[bytes], after: list[bytes]) -> Iterator[bytes]:
    for group in _grouped(_opcodes(before, after)):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from _marked(b" ", before[old_from:old_to])
            else:
                yield from _marked(b"-", before[old_from:old_to])
                yield from _marked(b"+", after[new_from:new_to])


def _opcodes(before: list[bytes], after: list[bytes]) -> list[Opcode]:
    """What turns ``before`` into ``after``. The matcher sees only the lines between the first and the last change: on a
    whole file of many equal lines it pairs the wrong ones."""
    limit = min(len(before), len(after))
    head = next((at for at in range(limit) if before[at] != after[at]), limit)
    tail = next((at for at in range(limit - head) if before[-1 - at] != after[-1 - at]), limit - head)
    # Without the heuristic for popular lines, too: it spoils the diffs of more than 200 lines.
    matcher = difflib.SequenceMatcher(
        None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False
    )
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    codes += [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in matcher.get_opcodes()]
    if tail:
        codes.append(("equal", len(before) - tail, len(before), len(after) - tail, len(after)))
    return codes


def _grouped(codes: list[Opcode]) -> Iterator[list[Opcode]]:
    """Changes with the lines around them, one group per hunk."""
    group: list[Opcode] = []
    for index, (tag, old_from, old_to, new_from, new_to) in enumerate(codes):
        if tag != "equal":
            group.append((tag, old_from, old_to, new_from, new_to))
            continue
        first, last = index == 0, index == len(codes) - 1
        if not first and (last or old_to - old_from > 2 * _CONTEXT):
            end = min(old_to, old_from + _CONTEXT)
            yield [*group, ("equal", old_from, end, new_from, new_from + end - old_from)]
            group = []
        if not last:
            start = max(old_from, old_to - _CONTEXT) if first or not group else old_from
            group.append(("equal", start, old_to, new_to - (old_to - start), new_to))
    if any(tag != "equal" for tag, *_ in group):
        yield group


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _marked(mark: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + _NO_NEWLINE


def _quote(name: str) -> bytes:
    """A file's name as git writes it: quotes and control characters are quoted, a tab ends a name with spaces."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    escaped = "".join(escapes.get(each) or (f"\\{ord(each):03o}" if each < " " else each) for each in name)
    if escaped != name:
        return f'"{escaped}"'.encode(errors="surrogateescape")
    return (name + ("\t" if " " in name else "")).encode(errors="surrogateescape")


def colored(diff: bytes) -> bytes:
    """The diff with the colors of a terminal."""
    colors = {b"-": b"\x1b[31m", b"+": b"\x1b[32m", b"@": b"\x1b[36m"}
    lines = []
    for line in diff.split(b"\n"):
        color = b"\x1b[1m" if line.startswith((b"--- ", b"+++ ")) else colors.get(line[:1], b"")
        lines.append(color + line + b"\x1b[0m" if color else line)
    return b"\n".join(lines)
