"""Whether a rewritten file is what it was outside of its edits, judged from its bytes and not by the engine."""

from __future__ import annotations

import ast
import codecs
import difflib
import io
import json
import re
import subprocess
import tempfile
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turbofix.report.diff import unified

_NEWLINE = re.compile(rb"\r\n|\r|\n")
Pair = tuple[bytes, bytes]
"""The bytes of a file before and after."""


def damages(name: str, old: bytes, new: bytes) -> Iterator[str]:
    """What happened to the file beside its edits, in sentences."""
    if old.startswith(codecs.BOM_UTF8) != new.startswith(codecs.BOM_UTF8):
        yield f"{name}: the byte-order mark came or went"
    if old.endswith((b"\n", b"\r")) != new.endswith((b"\n", b"\r")):
        yield f"{name}: the newline at the end came or went"
    if foreign := set(_NEWLINE.findall(new)) - set(_NEWLINE.findall(old)):
        yield f"{name}: newlines that the file did not have: {sorted(foreign)}"
    if name.endswith(".ipynb"):
        yield from notebook_damages(name, old, new)
    elif encoding(old) != encoding(new):
        yield f"{name}: its encoding was {encoding(old)} and is {encoding(new)}"
    for line, before, after in blank_changes(old, new):
        yield f"{name}:{line}: changed in nothing but what stands at its end: {before!r}, {after!r}"


def encoding(data: bytes) -> str:
    """The encoding by which Python reads the bytes; a sentence where it cannot."""
    try:
        found, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode(found)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return f"unreadable ({error})"
    return found


def blank_changes(old: bytes, new: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Changed lines that differ in nothing but blanks and newline at their ends, by their numbers in the old file."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    for tag, first, last, start, stop in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "replace":
            continue
        added = {line.rstrip(): line for line in after[start:stop] if line.strip()}
        for number, line in enumerate(before[first:last], start=first + 1):
            twin = added.get(line.rstrip())
            if twin is not None and twin != line and line not in after[start:stop]:
                yield number, line, twin


def notebook_damages(name: str, old: bytes, new: bytes) -> Iterator[str]:
    """Whether anything of a notebook changed beside the sources of code cells."""
    before, after = json.loads(old), json.loads(new)
    if skeleton(before) != skeleton(after):
        yield f"{name}: something beside the sources of its code cells changed"


def skeleton(notebook: Any) -> Any:
    """A notebook without the sources of its code cells."""
    cells = [
        {key: value for key, value in cell.items() if key != "source" or cell.get("cell_type") != "code"}
        for cell in notebook.get("cells", [])
    ]
    return {**notebook, "cells": cells}


def compile_problem(name: str, old: bytes, new: bytes) -> str | None:
    """Why a rewritten file does not compile, where the original did."""
    sources = [(old, new)] if not name.endswith(".ipynb") else cell_pairs(old, new)
    for before, after in sources:
        problem = syntax_problem(after)
        if problem is not None and syntax_problem(before) is None:
            return f"{name}: {problem}"
    return None


def cell_pairs(old: bytes, new: bytes) -> list[Pair]:
    """The sources of a notebook's code cells, before and after."""
    before, after = cells(old), cells(new)
    return list(zip(before, after, strict=True)) if len(before) == len(after) else []


def cells(notebook: bytes) -> list[bytes]:
    """The sources of a notebook's code cells."""
    return ["".join(cell["source"]).encode() for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]


def syntax_problem(source: bytes) -> str | None:
    """What Python says of the bytes; None where it compiles them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "<rewritten>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return str(error)
    return None


def diff_problem(files: Mapping[str, Pair]) -> str | None:
    """Whether ``git`` makes of the printed diff the new bytes, and backwards the old ones; None where it does."""
    patch = b"".join(unified(old, new, name) for name, (old, new) in sorted(files.items()))
    with tempfile.TemporaryDirectory() as folder:
        for name, (old, _) in files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(old)
        for direction, which in ((), 1), (("-R",), 0):
            command = ["git", "apply", "--whitespace=nowarn", *direction, "-"]
            done = subprocess.run(command, input=patch, cwd=folder, capture_output=True, check=False)
            if done.returncode:
                return f"git apply {' '.join(direction)}: {done.stderr.decode(errors='replace').strip()}"
            for name, pair in files.items():
                if Path(folder, name).read_bytes() != pair[which]:
                    return f"{name}: git apply {' '.join(direction)} of the diff does not give the right bytes"
    return None
