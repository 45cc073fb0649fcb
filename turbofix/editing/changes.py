"""Changes of one text: what each is, how those of several codemods' steps come together, and the text they make."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum

from turbofix.records import dataclass
from turbofix.regex import NEWLINE


class Refuse(Exception):  # noqa: N818  (an outcome, not an error)
    """The edit cannot be made safely; the argument is one sentence for the user."""


class Conflict(Exception):  # noqa: N818
    """Two changes of one parse overlap."""


_TOP = 2
"""The depth of a statement of a file's top level, in its line."""


class Role(IntEnum):
    """What a change is, in the order in which changes at one offset come."""

    SUFFIX = 0  # behind an expression; the deepest first
    AFTER = 1  # behind a statement; the deepest first
    ADDED = 2  # an item of a call, a mapping or a parameter list
    IMPORT = 3
    BEFORE = 4  # before a statement
    HEADER = 5  # the line that a wrap adds
    INDENT = 6
    OPEN = 7  # an opening parenthesis; the outermost first
    REPLACED = 8


@dataclass(frozen=True)
class Change:
    """``text`` replaces the characters ``start`` to ``end`` of one file.

    ``depth`` is how deep in the tree the thing stands that it belongs to, ``anchor`` where that starts, for what is put
    behind a thing or around it. ``lines``: it is made of whole lines.
    ``rewrites``: the statements there are replaced by others (``replace_lines``), so their strings may go.
    """

    start: int
    end: int
    text: str
    role: Role = Role.REPLACED
    depth: int = 0
    lines: bool = False
    rewrites: bool = False
    anchor: int = -1


@dataclass(frozen=True)
class Shift:
    """Lines ``start`` to ``end`` move one ``unit`` deeper behind ``pad``.

    ``header`` is the change that causes it, ``depth`` that of the statements which move. Lines that start inside one of
    the strings ``kept`` stay where they are. ``tidy``: two blank lines above a statement of the file become one.
    """

    start: int
    end: int
    pad: str
    unit: str
    header: Change
    depth: int
    kept: tuple[tuple[int, int], ...] = ()
    tidy: bool = False


def changed(text: str, changes: Sequence[Change]) -> str:
    """The text after changes that are in order and disjoint."""
    parts: list[str] = []
    at = 0
    for change in changes:
        parts += [text[at : change.start], change.text]
        at = change.end
    return "".join([*parts, text[at:]])


def undone(old: str, new: str, changes: Sequence[Change]) -> str:
    """The text before changes: what stands in ``new`` outside them, what stood in ``old`` inside."""
    parts: list[str] = []
    at = moved = 0
    for change in changes:
        start = change.start + moved
        parts += [new[at:start], old[change.start : change.end]]
        at = start + len(change.text)
        moved += len(change.text) - (change.end - change.start)
    return "".join([*parts, new[at:]])


def composed(text: str, changes: Iterable[Change], shifts: Iterable[Shift]) -> tuple[Change, ...]:
    """All changes in order, with the re-indentation that the shifts ask for. Raises Conflict where two overlap."""
    shifts = _disjoint(text, shifts)
    own = list(dict.fromkeys(changes))
    for shift in shifts:
        for change in own:
            if change.start < shift.start < change.end or change.start < shift.end < change.end:
                raise conflict(text, change.start)
        moved = [_shifted(shift, change) if _is_inside(shift, change) else change for change in own]
        own = moved
    for shift in shifts:
        replaced = [change for change in own if change.end > change.start]
        own += [shift.header, *_moved_lines(text, shift, replaced)]
    ordered = sorted(enumerate(own), key=lambda pair: (*_rank(pair[1]), pair[0]))
    at = 0
    for _number, change in ordered:
        if change.start < at:
            raise conflict(text, change.start)
        at = max(at, change.end)
    _refuse_meetings(text, own)
    return tuple(change for _number, change in ordered)


def _refuse_meetings(text: str, changes: Sequence[Change]) -> None:
    """Raise Conflict where two changes do not overlap and yet cannot both be made."""
    replaced = [change for change in changes if change.end > change.start and change.role is Role.REPLACED]
    suffixes: dict[tuple[int, int], Change] = {}
    for change in changes:
        for other in replaced:
            if other.start <= change.anchor < other.end and change.depth > other.depth:
                raise conflict(text, change.anchor)  # it belongs to something that goes
        if change.role is Role.SUFFIX and suffixes.setdefault((change.start, change.depth), change) != change:
            raise conflict(text, change.start)  # one expression is extended in two ways


def _rank(change: Change) -> tuple[int, float, int]:
    late = change.role is Role.AFTER and change.depth <= _TOP  # what stands behind an import may read the next one
    role = Role.IMPORT + 0.5 if late else change.role
    return change.start, role, -change.depth if change.role <= Role.AFTER else change.depth


def _disjoint(text: str, shifts: Iterable[Shift]) -> list[Shift]:
    ordered = sorted(dict.fromkeys(shifts), key=lambda shift: (shift.start, shift.end))
    for one, other in itertools.pairwise(ordered):
        if other.start < one.end:
            raise conflict(text, other.start)
    return ordered


def conflict(text: str, at: int) -> Conflict:
    return Conflict(f"two changes meet on line {len(NEWLINE.findall(text, 0, at)) + 1}")


def _is_inside(shift: Shift, change: Change) -> bool:
    """Whether a change belongs to the lines that move."""
    if change.start == shift.start:
        return not change.lines or change.end > change.start
    if change.start == shift.end:  # behind the last statement of the range, or of a block in it
        return change.lines and change.role is Role.AFTER and change.depth > shift.depth
    return shift.start < change.start < shift.end


def _shifted(shift: Shift, change: Change) -> Change:
    """A change inside the lines that move: its own lines move along (the first only if it is a whole line)."""
    parts = re.split(r"(\r\n|\n|\r)", change.text)
    for number in range(0 if change.lines else 2, len(parts), 2):
        line = parts[number]
        if line.strip():
            at = _moved_at(shift, line)
            parts[number] = line[:at] + shift.unit + line[at:]
    return replace(change, text="".join(parts))


def _moved_at(shift: Shift, line: str) -> int:
    """Where in a line the space comes that moves it."""
    return len(shift.pad) if line.startswith(shift.pad) else 0


def _moved_lines(text: str, shift: Shift, replaced: Sequence[Change]) -> Iterator[Change]:
    """The re-indentation of each line that does not start in a string or in text that is replaced anyway."""
    at = shift.start
    while at < shift.end:
        newline = NEWLINE.search(text, at, shift.end)
        start, at = at, newline.end() if newline else shift.end
        line = text[start:at]
        if any(first < start < last for first, last in shift.kept):
            continue
        if not line.strip():
            if (
                shift.tidy
                and _is_second_blank(text, start, at)
                and not any(_swallows(each, start) for each in replaced)
            ):
                yield Change(start, at, "", Role.INDENT)
            continue
        if any(_swallows(change, start) for change in replaced):
            continue
        place = start + _moved_at(shift, line)
        yield Change(place, place, shift.unit, Role.INDENT)


def _is_second_blank(text: str, start: int, end: int) -> bool:
    """Whether the blank line follows on another one, above a line that is not indented."""
    above = text[:start].splitlines()[-1:]
    below = next((line for line in text[end:].splitlines() if line.strip()), "")
    return bool(above) and not above[0].strip() and below[:1].strip() != ""


def _swallows(change: Change, line: int) -> bool:
    return change.start < line < change.end or (change.lines and change.start == line < change.end)
