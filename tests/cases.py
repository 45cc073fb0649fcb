"""The cases of the codemods: tables of scripts that start from one another, beside whole files.

``fixtures/<codemod>/cases.txt`` is such a table; CONTRIBUTING.md shows how one is written. A case that starts from
another one lists only what differs, and a rewrite only the lines that it changes. Here both become whole texts.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"
ENTRY = "train.py"
TABLE = "cases.txt"
FIELD = re.compile(r"(refuse|options|assumes|worth|says): .*")
HEADER = re.compile(r"=== (?P<name>\w+): (?P<kind>rewrite|noop|refuse)(?:, from (?P<base>\w+(?:/\w+)?))?")
SECTION = re.compile(r"--- (?P<what>file|change|without|becomes as|becomes)(?: (?P<of>\S+))?")
WHOLE = re.compile(r"(\w+)\.(in|noop|refuse)\.py")
KINDS = {"in": "rewrite", "noop": "noop", "refuse": "refuse"}
GAP = "-..."


class TableError(Exception):
    """A table that cannot be read, with the case and the line at fault."""


@dataclass(frozen=True)
class Case:
    """A program by file names, and what it must become; both are the same but for a rewrite.

    ``edit`` is the rewrite as lines of a table, by file name.
    """

    folder: str
    name: str
    kind: str
    before: dict[str, str]
    after: dict[str, str]
    edit: dict[str, list[str]] = field(default_factory=dict)

    @property
    def codemod(self) -> str:
        return self.folder.replace("_", "-")

    @property
    def text(self) -> str:
        """The script that is run."""
        return self.before[ENTRY]

    def header(self, key: str) -> list[str]:
        """The values of the ``# key: value`` comments at the top of the script."""
        lines = [line.removeprefix("# ") for line in self.text[: body_at(self.text)].splitlines()]
        return [value.strip() for found, _, value in (line.partition(": ") for line in lines) if found == key]


def body_at(text: str) -> int:
    """Where the script begins behind its ``# key: value`` comments."""
    at = 0
    for line in text.splitlines(keepends=True):
        if not line.startswith("# ") or FIELD.match(line, 2) is None:
            break
        at += len(line)
    return at


@functools.cache
def folder(name: str) -> dict[str, Case]:
    """The cases of a folder by name: those that are whole files first, then those of its table."""
    found: dict[str, Case] = {}
    for path in sorted((FIXTURES / name).glob("*.py")):
        match = WHOLE.fullmatch(path.name)
        if match is not None:
            add(found, of_files(name, match[1], match[2], path))
    table = FIXTURES / name / TABLE
    if table.exists():
        read(name, table.read_text("utf-8"), found)
    return found


def case(name: str) -> Case:
    """A case by folder and name: ``pin_memory/flat``."""
    where, _, which = name.partition("/")
    return folder(where)[which]


def of_files(folder: str, name: str, kind: str, path: Path) -> Case:
    text = path.read_text("utf-8")
    if kind != "in":
        return Case(folder, name, kind, {ENTRY: text}, {ENTRY: text})
    rewritten = path.with_name(f"{name}.out.py").read_text("utf-8")
    difference = difflib.unified_diff(text.split("\n"), rewritten.split("\n"), n=1, lineterm="")
    edit = [line for line in difference if not line.startswith(("---", "+++", "@@"))]
    return Case(folder, name, "rewrite", {ENTRY: text}, {ENTRY: rewritten}, {ENTRY: edit})


def add(found: dict[str, Case], case: Case) -> None:
    if case.name in found:
        raise TableError(f"{case.folder}/{case.name} is there twice")
    found[case.name] = case


def read(name: str, text: str, found: dict[str, Case]) -> None:
    """Add the cases of a table to those of its folder. A base stands above the cases that start from it."""
    for lines in groups(text.split("\n"), "=== "):
        header = HEADER.fullmatch(lines[0])
        if header is None:
            raise TableError(f"{name}: {lines[0]!r} is no header of a case")
        try:
            add(found, built(name, header, lines[1:], found))
        except TableError as mistake:
            raise TableError(f"{name}/{header['name']}: {mistake}") from None


def groups(lines: Iterable[str], start: str) -> Iterator[list[str]]:
    """Groups of lines that each begin with such a start; what stands before the first is left out."""
    group: list[str] = []
    for line in lines:
        if line.startswith(start):
            if group:
                yield group
            group = [line]
        elif group:
            group.append(line)
    if group:
        yield group


def built(folder: str, header: re.Match[str], lines: list[str], found: dict[str, Case]) -> Case:
    """A case from the lines below its header."""
    if lines and not lines[-1]:
        lines.pop()  # the empty line before the next case
    comments = []
    while lines and FIELD.fullmatch(lines[0]):
        comments.append(f"# {lines.pop(0)}\n")
    base = header["base"]
    before = dict(based(base, found).before) if base else {}
    before[ENTRY] = before[ENTRY][body_at(before[ENTRY]) :] if base else ""
    edit: dict[str, list[str]] = {}
    for section in groups(["--- change" if base else "--- file", *lines], "--- "):
        match = SECTION.fullmatch(section[0])
        if match is None:
            raise TableError(f"{section[0]!r} is no section")
        file = match["of"] or ENTRY
        if match["what"] in ("change", "without", "becomes") and file not in before:
            raise TableError(f"there is no file {file}")
        if match["what"] == "file":
            before[file] = "".join(f"{line}\n" for line in section[1:])
        elif match["what"] == "change":
            before[file] = changed(before[file], section[1:])
        elif match["what"] == "without":
            del before[file]
        elif match["what"] == "becomes":
            edit[file] = section[1:]
        else:
            edit = based(file, found).edit
    before[ENTRY] = "".join(comments) + before[ENTRY]
    if (header["kind"] == "rewrite") != bool(edit):
        raise TableError("a rewrite says what the program becomes, and no other kind does")
    after = before | {file: changed(before[file], lines) for file, lines in edit.items()}
    return Case(folder, header["name"], header["kind"], before, after, edit)


def based(name: str, found: dict[str, Case]) -> Case:
    if "/" in name:
        return case(name)
    if name not in found:
        raise TableError(f"there is no {name} above")
    return found[name]


def changed(text: str, lines: list[str]) -> str:
    """A text with the changes of a table: ``-`` drops a line, ``+`` brings one, and a space before one only finds it.

    Each line that is found or dropped is the next such line of the text. ``-...`` drops all up to the next one.
    """
    old, new, at, dropping = text.split("\n"), [], 0, False
    for line in lines:
        if line == GAP:
            dropping = True
        elif line.startswith("+"):
            new.append(line[1:])
        elif line[:1] not in ("-", " ", ""):
            raise TableError(f"{line!r} is no line of a change")
        elif line[1:] not in old[at:]:
            raise TableError(f"no line {line[1:]!r} is there, or none below the line before")
        else:
            here = old.index(line[1:], at)
            if not dropping:
                new += old[at:here]
            if not line.startswith("-"):
                new.append(old[here])
            at, dropping = here + 1, False
    if dropping:
        raise TableError(f"{GAP} stands before the line that it ends at")
    return "\n".join(new + old[at:])


if __name__ == "__main__":
    shown = case(sys.argv[1])
    for path, text in shown.before.items():
        print(f"{path}:\n{text}")
        print("".join(difflib.unified_diff(text.splitlines(True), shown.after[path].splitlines(True), n=2)))
