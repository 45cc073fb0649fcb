"""Where what is said of a text stands in the text after an edit, and in the one before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.engine.sentences import examined_retold, in_place_retold, with_lines
from turbofix.findings import Examined, InPlace
from turbofix.source.site import Site

if TYPE_CHECKING:
    from turbofix.editing.changes import Change
    from turbofix.editing.edit import Edit


def move(examined: Examined, edit: Edit) -> Examined | None:
    """The finding at the place where an edit has left it; the finding as it was where the edit replaced that place."""
    changes = edit.changes().get(examined.site.path, ())
    text = edit.before_text(examined.site.path)
    if not changes or text is None:
        return examined
    line, column = shift(text, changes, examined.site.line, examined.site.column)
    return replace(examined, site=examined.site._replace(line=line, column=column))


def shift(text: str, changes: Iterable[Change], line: int, column: int) -> tuple[int, int]:
    """Where a line (from 1) and column (from 0) of ``text`` stand after the changes, which are in order, were made."""
    from turbofix.editing.changes import changed

    offset = line_starts(text)[line - 1] + column
    head = changed(text[:offset], [change for change in changes if change.end <= offset])
    starts = line_starts(head)
    return len(starts), len(head) - starts[-1]


class WayBack:
    """From the text after an edit to the text before."""

    def __init__(self, edit: Edit, texts: Mapping[Path, str], by: str) -> None:
        self.by = by
        self.changes = {path: changes for path, changes in edit.changes().items() if path in texts}
        self.old = {path: edit.before_text(path) or "" for path in self.changes}
        self.new = {path: texts[path] for path in self.changes}
        self.named = {path.name: path for path in self.changes}

    def examined(self, each: Examined) -> Examined | None:
        """A finding where it stood before; None where the edit has written what it speaks of."""
        site = self.site(each.site)
        if site is None or self.quotes_new(each.message, each.site.path):
            return None
        evidence = tuple(replace(seen, site=seen.site and self.site(seen.site)) for seen in each.evidence)
        return replace(examined_retold(replace(each, evidence=evidence), self.sentence), site=site)

    def in_place(self, each: InPlace) -> InPlace | None:
        """What is right already, where it stood before."""
        site = self.site(each.site)
        return None if site is None else replace(in_place_retold(each, self.sentence), site=site)

    def site(self, site: Site) -> Site | None:
        """A place in the text before; None in what the edit has written."""
        line, column, is_new = self.before(site.path, site.line, site.column)
        end_line, end_column, _ = self.before(site.path, site.end_line, site.end_column)
        return None if is_new else site._replace(line=line, column=column, end_line=end_line, end_column=end_column)

    def quotes_new(self, sentence: str, path: Path) -> bool:
        """Whether a sentence quotes what only the edit has written."""
        quoted = re.findall(r"`([^`]+)`", sentence) if path in self.changes else ()
        return any(each in self.new[path] and each not in self.old[path] for each in quoted)

    def sentence(self, sentence: str, site: Site) -> str:
        """A sentence with the lines before."""

        def named(lines: Sequence[int], file: str | None) -> str | None:
            path = self.named.get(file) if file else site.path
            texts = self.new.get(path, "").splitlines() if path else []
            if path is None or max(lines) > len(texts):
                return None
            numbers = [self.before(path, line, len(texts[line - 1]) - len(texts[line - 1].lstrip())) for line in lines]
            if any(is_new for *_, is_new in numbers):
                return f"a line that {self.by} writes"
            return f"line{'s' * (len(numbers) > 1)} " + " and ".join(str(line) for line, *_ in numbers)

        return with_lines(sentence, named)

    def before(self, path: Path, line: int, column: int) -> tuple[int, int, bool]:
        """A line and column before; and whether what stands there now is new."""
        if path not in self.changes:
            return line, column, False
        left, at, is_new = line_starts(self.new[path])[line - 1] + column, 0, False
        for change in self.changes[path]:
            kept = change.start - at
            if left < kept:
                break
            left, at, is_new = left - kept - len(change.text), change.end, left - kept < len(change.text)
            if is_new:
                left, at = 0, change.start
                break
        head = self.old[path][: at + left]
        starts = line_starts(head)
        return len(starts), len(head) - starts[-1], is_new


def line_starts(text: str) -> list[int]:
    """Where the lines begin, as Python counts them: a form feed begins none."""
    return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
