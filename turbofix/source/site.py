"""A place in a source text: the site of a node, and the spot that people are shown (in a notebook, cell and line)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from turbofix.records import dataclass

if TYPE_CHECKING:
    from turbofix.source.notebook import Cells


STUB = ".stub"
"""How the files end that stand for a library's own loops: places in them are shown to nobody."""


class Site(NamedTuple):  # made and compared by the thousand: a tuple's own methods are no Python code
    """A place in a source text, named by the span and the type of its ``ast`` node.

    Lines count from 1, columns from 0 and in characters (not in UTF-8 bytes, as ``ast`` counts them).
    ``kind`` is the name of the ``ast`` class, e.g. ``"Call"``.
    """

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    kind: str

    def __hash__(self) -> int:
        # by the numbers alone, which tell nearly all sites apart: the hash of a path takes longer than all the rest
        return hash(self[1:5])

    def line_from(self, path: Path) -> str:
        """The place in a sentence that is said of a file: ``line 12``, or ``line 12 of model.py`` from another one."""
        if self.path.suffix == STUB:
            return f"in {self.path.stem}"
        name = _ALIKE.get().get(self.path, self.path.name)
        return f"line {self.line}" if self.path == path else f"line {self.line} of {name}"


_ALIKE: ContextVar[Mapping[Path, str]] = ContextVar("_ALIKE", default={})  # noqa: B039  (never written into)


def tell_apart(entry: Path, files: Collection[Path]) -> None:
    """Let sentences name those files of a program that share their name by their folder, too."""
    known = Counter(each.name for each in files)
    _ALIKE.set({each: os.path.relpath(each, entry.parent) for each in files if known[each.name] > 1 and each != entry})


@dataclass(frozen=True)
class Spot:
    """A place as results tell it: lines and columns from 1, the lines of a notebook within their cell (from 1).

    ``file_line`` and ``file_end_line`` count in the file as it is on disk: for a notebook, in its JSON.
    """

    cell: int | None
    line: int
    column: int
    end_line: int
    end_column: int
    file_line: int
    file_end_line: int

    @property
    def start(self) -> str:
        """``5``, in a notebook ``cell 3:5``."""
        return f"{self.line}" if self.cell is None else f"cell {self.cell}:{self.line}"

    def __str__(self) -> str:
        """``5:10``, in a notebook ``cell 3:5:10``."""
        return f"{self.start}:{self.column}"


def spot(site: Site, cells: Cells | None = None) -> Spot:
    """The place that a site means, given the cells of its file where that is a notebook."""
    first, last = site.line, site.end_line
    columns = site.column + 1, site.end_column + 1
    if cells is None:
        return Spot(None, first, columns[0], last, columns[1], first, last)
    (cell, line), (_, end_line) = cells.place(first), cells.place(last)
    return Spot(cell, line, columns[0], end_line, columns[1], cells.file_line(first), cells.file_line(last))
