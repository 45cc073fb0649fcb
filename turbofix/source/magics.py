"""What IPython takes and Python does not, masked: magics, shell lines and questions, each character by one mark.

Offsets hold, and what is left is Python wherever it stands. The marks are a letter that looks like ``_`` and that no
code holds, so that they are found again in a rewritten text, and what they hide is put back.
"""

from __future__ import annotations

import re

from turbofix.regex import regex
from turbofix.source.nodes import unreadable

MARK = "\u02cd"  # MODIFIER LETTER LOW MACRON: an identifier may be made of it
FENCE_LINE = f"# %% {MARK}"  # stands between two cells
MASKED = regex(rf"exec\({MARK}+\)|(?:#(?:%%)?)?{MARK}+")
"""One masked stretch. ``#%%`` stands before the line of a cell magic, above which nothing may be put; ``exec`` for the
magic that runs another file in the notebook's names."""

# Those that run their cell as Python, in the names of the notebook. The body of every other one is hidden.
_PYTHON = frozenset({"capture", "debug", "memit", "prun", "pyinstrument", "snakeviz", "time", "wandb"})
_CELL_MAGIC = regex(r"\s*%%(\w*)")

_LINE = regex(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_INDENT = regex(r"[ \t\f]*")
_RUN = regex(r"%run[ \t]+\S")
_ESCAPE = regex(r"[!%?]|[/,;](?=[^\W\d])")
_TOKEN = regex(
    r"""
    [bBfFrRtTuU]{0,2} (?P<triple>\"{3}|'{3}) (?: \\. | (?!(?P=triple)). )* (?: (?P=triple) | \Z )
  | [bBfFrRtTuU]{0,2} (?P<quote>["']) (?: \\ (?: \r\n | . ) | (?!(?P=quote))[^\\\r\n] )* (?P=quote)?
  | \#[^\r\n]*
  | \\(?:\r\n|\r|\n)
  | (?P<newline>\r\n|\r|\n)
  | (?P<assigned>=[ \t]*)(?=[!%])
  | \w+
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
# IPython takes these without their percent sign, in a cell of one line.
_BARE = regex(
    r"\s*(?:autoreload|cat|cd|conda|cp|env|less|load_ext|ls|mamba|man|matplotlib|mkdir|mv|pip|rm|rmdir|run|time|timeit|uv)"
    r"[ \t]+\S[^\r\n]*\s*"
)


def mask(cell: str) -> str:
    """The text of a cell as Python, of the same length; a cell in another language is a comment."""
    magic = _CELL_MAGIC.match(cell)
    if magic is not None:
        first = _LINE.match(cell, magic.start(1) - 2)
        assert first is not None
        line = _body(first.group())
        if magic[1] not in _PYTHON:
            return comment(cell)
        head = cell[: first.start()] + "#%%" + MARK * (len(line) - 3) + first.group()[len(line) :]
        return head + _masked_lines(cell[first.end() :])
    if _BARE.fullmatch(cell) and unreadable(cell):
        return "".join(_marked(each, "") for each in _LINE.findall(cell))
    return _masked_lines(cell)


def comment(cell: str) -> str:
    """A cell that is no Python, of the same length."""
    return "".join(map(_commented, _LINE.findall(cell)))


def unmask(new: str, cell: str) -> str | None:
    """What ``cell`` becomes where its masked text became ``new``; None where that touches a mark."""
    hidden = [cell[each.start() : each.end()] for each in MASKED.finditer(mask(cell))]
    if len(hidden) != len(MASKED.findall(new)):
        return None
    waiting = iter(hidden)
    code = MASKED.sub(lambda _: next(waiting), new)
    return code if mask(code) == new else None


def _masked_lines(text: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(text):
        end, found = _logical_line(text, at)
        if found is None:
            parts.append(text[at:end])
        else:
            indent = _INDENT.match(text, at)
            pad = indent.group() if indent is not None else ""
            parts.append(text[at:found])
            lines = _LINE.findall(text[found:end])
            parts.append(_run(lines[0]) if _RUN.match(lines[0]) else _marked(lines[0], ""))
            parts += [_marked(line, pad) for line in lines[1:] if line]
        at = end
    return "".join(parts)


def _logical_line(text: str, start: int) -> tuple[int, int | None]:
    """Where the logical line that starts at ``start`` ends, and where in it begins what is not Python, if anything."""
    indent = _INDENT.match(text, start)
    at = first = indent.end() if indent is not None else start
    if _ESCAPE.match(text, at):
        return _escaped_end(text, at), at
    depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None
        at = token.end()
        if token["newline"] and not depth:
            break
        if token["assigned"] and not depth:
            return _escaped_end(text, at), at
        if token.group() == "?" and not depth:
            return _escaped_end(text, at), first
        depth += (token.group() in "([{") - (token.group() in ")]}" and depth > 0)
    return at, None


def _escaped_end(text: str, at: int) -> int:
    """The end of a line of IPython's: a backslash at its end lets it go on."""
    while at < len(text):
        line = _LINE.match(text, at)
        assert line is not None
        at = line.end()
        if not _body(line.group()).endswith("\\"):
            break
    return at


def _body(line: str) -> str:
    return line.rstrip("\r\n")


def _marked(line: str, pad: str) -> str:
    """A line of marks behind an indentation; one that is not longer than that is a comment."""
    length = len(_body(line))
    return pad + MARK * (length - len(pad)) + line[length:] if length > len(pad) else _commented(line)


def _run(line: str) -> str:
    length = len(_body(line))
    return f"exec({MARK * (length - 6)})" + line[length:] if length > 6 else _marked(line, "")


def _commented(line: str) -> str:
    length = len(_body(line))
    return ("#" + MARK * (length - 1) if length else "") + line[length:]
