"""Notebooks as one text: their code cells one after another, with a fence between them that no edit crosses.

What is behind this file sees Python (``magics`` masks what is not) and knows nothing of cells, but for the map from
lines to cells that results are told with. A rewritten text goes back into the JSON line by line: what did not change
keeps its bytes, what did is spelled as the file spells its characters.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turbofix.records import dataclass
from turbofix.regex import NEWLINE, regex
from turbofix.source.magics import FENCE_LINE, MARK, comment, mask, unmask
from turbofix.source.nodes import newer_reads, unreadable

FENCE = f"\n{FENCE_LINE}\n\n"
"""What stands between two cells. The blank line parts it from comments at the top of a cell."""
_FENCE = regex(rf"(?:\n|\A|(?<={MARK}\n\n)){FENCE_LINE}\n\n")  # also where the lines before it were deleted

_BLANK = regex(r"[ \t\r\n]*")
_LINE = regex(r"[^\n]*\n|[^\n]+")
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SPELLED = regex(rf"{_HIGH}{_LOW}|\\u[0-9a-fA-F]{{4}}|\\.|[^\\]", re.DOTALL)
"""One character as a JSON string spells it."""

_DECODER = json.JSONDecoder()


class NotReadable(Exception):  # noqa: N818  (an outcome, told to the user as a sentence)
    """The file is no notebook that can be read, or cannot be written; the argument is a sentence."""


@dataclass(frozen=True)
class Cells:
    """The cell (from 1, among all cells), its line and the file's line of every line of the joined text."""

    lines: tuple[tuple[int, int, int], ...]

    def place(self, line: int) -> tuple[int, int]:
        """The cell, and the line in it, of a line of the joined text."""
        return self._at(line)[:2]

    def file_line(self, line: int) -> int:
        """The line of the notebook's own file that holds a line of the joined text."""
        return self._at(line)[2]

    def _at(self, line: int) -> tuple[int, int, int]:
        return self.lines[min(max(line, 1), len(self.lines)) - 1] if self.lines else (1, 1, 1)


@dataclass(frozen=True)
class Literal:
    """A string of the JSON: where it stands, with its quotes, and what it says."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Cell:
    """A code cell: its source is one string, or a list of strings that are mostly its lines."""

    number: int
    start: int
    end: int
    literals: tuple[Literal, ...]
    masked: str

    @property
    def text(self) -> str:
        """The code as it stands in the notebook."""
        return "".join(literal.text for literal in self.literals)


@dataclass(frozen=True)
class Notebook:
    """A notebook's JSON and the code cells in it; the code of those that are left out is masked."""

    json: str
    cells: tuple[Cell, ...]
    left_out: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """All code as one Python text."""
        return FENCE.join(cell.masked for cell in self.cells)

    @property
    def places(self) -> Cells:
        """What the lines of the text are in the notebook."""
        starts = [0, *(match.end() for match in re.finditer("\n", self.json))]
        lines: list[tuple[int, int, int]] = []
        for cell in self.cells:
            here = list(_placed_lines(cell, starts))
            lines += [here[0]] * 2 if lines else []  # the fence
            lines += here
        return Cells(tuple(lines))

    def place(self, text: str, line: int) -> tuple[int, int]:
        """The cell, and the line in it, of a line of a text that ``rewritten`` takes."""
        at = 0 if line < 2 else next(itertools.islice(re.finditer("\n", text), line - 2, None)).end()
        ends = [match.end() for match in _FENCE.finditer(text) if match.end() <= at]
        return self.cells[len(ends)].number, text.count("\n", ends[-1] if ends else 0, at) + 1

    def rewritten(self, text: str) -> str:
        """The JSON with the code of a rewritten text. Raises ``NotReadable`` where a fence or a masked line is gone."""
        parts = split(text)
        if len(parts) != len(self.cells):
            raise NotReadable("the new text no longer shows where a cell ends")
        spelling: Mapping[str, str] | None = None
        pieces: list[str] = []
        at = 0
        for cell, part in zip(self.cells, parts, strict=True):
            if part == cell.masked:
                continue
            code = unmask(part, cell.text)
            if code is None or cell.number in self.left_out:
                raise NotReadable(f"the new text changes a magic or a shell line of cell {cell.number}")
            spelling = spelling if spelling is not None else self._spelling()
            pieces += [self.json[at : cell.start], _source(self.json, cell, code, spelling)]
            at = cell.end
        return "".join([*pieces, self.json[at:]])

    def _spelling(self) -> Mapping[str, str]:
        """How the file spells each character: the way that it does so most often."""
        counts: dict[str, Counter[str]] = {}
        for cell in self.cells:
            for literal in cell.literals:
                for match in _SPELLED.finditer(self.json, literal.start + 1, literal.end - 1):
                    counts.setdefault(_said(match.group()), Counter())[match.group()] += 1
        return {character: spelled.most_common(1)[0][0] for character, spelled in counts.items()}


def split(text: str) -> list[str]:
    """The code of the cells, masked; a text that is no notebook's is one cell."""
    return _FENCE.split(text)


# --- reading ------------------------------------------------------------------------------------------------------


def read(text: str) -> Notebook:
    """The notebook that a JSON text (without byte-order mark) holds. Raises ``NotReadable``."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotReadable(f"it is not valid JSON ({error.msg} at {where}), so it is no notebook") from None
    except (RecursionError, ValueError) as error:
        raise NotReadable(f"its JSON cannot be read ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        if isinstance(document, dict) and "worksheets" in document:
            raise NotReadable(
                "it is in an old notebook format (nbformat 3); open and save it in Jupyter, or run "
                "`jupyter nbconvert --to notebook` on it"
            )
        raise NotReadable("it has no list of cells, so it is no notebook")
    if not _is_python(document):
        return Notebook(text, ())
    return _runnable(text, tuple(_code_cells(text)))


def _is_python(document: dict[str, object]) -> bool:
    """Whether its code is Python, as far as the notebook says."""
    metadata = document.get("metadata")
    said = metadata if isinstance(metadata, dict) else {}
    for key, field in (("language_info", "name"), ("kernelspec", "language")):
        about = said.get(key)
        language = about.get(field) if isinstance(about, dict) else None
        if isinstance(language, str):
            return language.lower() in ("python", "ipython", "python3")
    return True


def _in_python(metadata: object) -> bool:
    """Whether a cell's code is Python, as far as its metadata says (an editor knows cells of other languages)."""
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    return not isinstance(editor, dict) or editor.get("languageId", "python") == "python"


def _code_cells(text: str) -> Iterator[Cell]:
    top = dict(_members(text, _skip(text, 0)))
    for number, (start, _) in enumerate(_elements(text, top["cells"][0]), 1):
        if text[start] != "{":
            raise NotReadable(f"its cell {number} is not what a notebook's cell is")
        fields = dict(_members(text, start))
        kind, metadata = fields.get("cell_type"), fields.get("metadata")
        if kind is None or _value(text, kind) != "code" or (metadata and not _in_python(_value(text, metadata))):
            continue
        span = fields.get("source")
        literals = tuple(_literals(text, span[0])) if span is not None else None
        if span is None or literals is None or any(not isinstance(each.text, str) for each in literals):
            raise NotReadable(f"its cell {number} has no source that is text or a list of lines")
        code = "".join(literal.text for literal in literals)
        if MARK in code:
            raise NotReadable(f"its cell {number} holds the character {MARK!r}, with which turbofix marks magics")
        yield Cell(number, *span, literals, mask(code))


def _literals(text: str, start: int) -> Iterator[Literal]:
    spans = _elements(text, start) if text[start] == "[" else [(start, _end(text, start))]
    return (Literal(*span, _value(text, span)) for span in spans)


def _runnable(text: str, cells: tuple[Cell, ...]) -> Notebook:
    """Leave out the cells that no Python reads, which cannot run; of nothing else the first stays, for its error."""
    errors = ((cell, unreadable(cell.masked)) for cell in cells)
    broken = [cell for cell, error in errors if error and not newer_reads(cell.masked, error)]
    if len(broken) == len(cells):
        broken = broken[1:]
    left_out = tuple(cell.number for cell in broken)
    runnable = [replace(cell, masked=comment(cell.text)) if cell.number in left_out else cell for cell in cells]
    return Notebook(text, tuple(runnable), left_out)


# A scanner for where things stand in JSON that is known to be valid.
def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _end(text: str, at: int) -> int:
    """The end of the value that starts there."""
    return _DECODER.raw_decode(text, at)[1]


def _value(text: str, span: tuple[int, int]) -> Any:
    return _DECODER.raw_decode(text, span[0])[0]


def _elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """The spans of a list's elements."""
    at = _skip(text, start + 1)
    while text[at] != "]":
        end = _end(text, at)
        yield at, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _members(text: str, start: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The keys of an object, and the spans of their values."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, end) + 1)
        end = _end(text, at)
        yield key, (at, end)
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _placed_lines(cell: Cell, starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The lines of a cell, as ``Cells`` has them."""
    borders = list(itertools.accumulate((len(literal.text) for literal in cell.literals), initial=0))
    offsets = [0, *(match.end() for match in NEWLINE.finditer(cell.masked))]
    for number, offset in enumerate(offsets, 1):
        index = min(bisect_right(borders, offset) - 1, len(cell.literals) - 1)
        at = cell.literals[index].start if cell.literals else cell.start
        yield cell.number, number, bisect_right(starts, at)


# --- writing ------------------------------------------------------------------------------------------------------


def _source(text: str, cell: Cell, code: str, spelling: Mapping[str, str]) -> str:
    """The JSON of a cell's source with other code in it."""
    if text[cell.start] != "[":
        whole = cell.literals[0]
        raws = _raw_lines(text[whole.start + 1 : whole.end - 1])
        return '"' + "".join(raw for raw, _ in _respelled(_LINE.findall(whole.text), raws, code, spelling)) + '"'
    literals = cell.literals
    raws = [text[each.start : each.end] for each in literals]
    items = _respelled([each.text for each in literals], raws, code, spelling, '"')
    if not items:
        return "[]"
    edges = [(one.end, other.start) for one, other in itertools.pairwise(literals)]
    head = text[cell.start + 1 : literals[0].start] if literals else ""
    tail = text[literals[-1].end : cell.end - 1] if literals else ""
    between = text[slice(*edges[0])] if edges else f",{head or ' '}"
    pieces: list[str] = []
    for index, (raw, origin) in enumerate(items):
        if index:
            before = items[index - 1][1]
            neighbours = origin is not None and before is not None and origin == before + 1
            pieces.append(text[slice(*edges[before])] if neighbours and before is not None else between)
        pieces.append(raw)
    return f"[{head}{''.join(pieces)}{tail}]"


def _respelled(
    old: Sequence[str], raws: Sequence[str], new: str, spelling: Mapping[str, str], quote: str = ""
) -> list[tuple[str, int | None]]:
    """The pieces of a source after a change, as JSON: the old one's spelling and index where it is kept as it is."""
    borders = list(itertools.accumulate(map(len, old), initial=0))
    done: list[tuple[str, int | None]] = []
    index = shift = 0
    for start, end, new_end in _hunks(borders, "".join(old), new):
        first, last = bisect_right(borders, start) - 1, next(i for i, at in enumerate(borders) if at >= end)
        first = min(first, last)
        done += [(raws[kept], kept) for kept in range(index, first)]
        stop = new_end + borders[last] - end
        for line in _LINE.findall(new[borders[first] + shift : stop]):
            spelled = "".join(spelling.get(each) or json.dumps(each, ensure_ascii=False)[1:-1] for each in line)
            done.append((quote + spelled + quote, None))
        index, shift = last, stop - borders[last]
    return [*done, *((raws[kept], kept) for kept in range(index, len(old)))]


def _hunks(borders: Sequence[int], old: str, new: str) -> list[tuple[int, int, int]]:
    """The ranges of the old text whose lines changed, each with where its new lines end; no piece is in two of them."""
    before, after = _LINE.findall(old), _LINE.findall(new)
    limit = min(len(before), len(after))
    head = next((at for at in range(limit) if before[at] != after[at]), limit)
    tail = next((at for at in range(limit - head) if before[-1 - at] != after[-1 - at]), limit - head)
    matcher = difflib.SequenceMatcher(
        None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False
    )
    at = list(itertools.accumulate(map(len, before), initial=0))
    new_at = list(itertools.accumulate(map(len, after), initial=0))
    found: list[tuple[int, int, int]] = []
    for tag, i, j, _, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        start, end, new_end = at[i + head], at[j + head], new_at[m + head]
        if found and _same_piece(borders, found[-1][1], start):
            found[-1] = (found[-1][0], end, new_end)
        else:
            found.append((start, end, new_end))
    return found


def _same_piece(borders: Sequence[int], end: int, start: int) -> bool:
    """Whether a piece reaches from the end of one change to the start of the next."""
    return next(at for at in borders if at >= end) > borders[bisect_right(borders, start) - 1]


def _raw_lines(raw: str) -> list[str]:
    """The lines of a JSON string, as they are spelled."""
    lines: list[str] = []
    current: list[str] = []
    for match in _SPELLED.finditer(raw):
        current.append(match.group())
        if _said(match.group()) == "\n":
            lines.append("".join(current))
            current = []
    return [*lines, "".join(current)] if current else lines


def _said(spelled: str) -> str:
    """The character that a JSON string spells so."""
    if not spelled.startswith("\\"):
        return spelled
    character: str = json.loads(f'"{spelled}"')
    return character
