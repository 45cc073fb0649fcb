"""Tab-separated tables as rows of a dataclass: one column per field, named as the field, in its order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")


class TableError(ValueError):
    """A table is not as it must be; the argument is a sentence that names the line."""


def read(path: Path, row: type[Row]) -> list[Row]:
    """The rows of a table. Raises TableError."""
    return parse(path.read_text(encoding="utf-8"), row, path.name)


def parse(text: str, row: type[Row], name: str) -> list[Row]:
    """The rows of a table's text. Raises TableError."""
    columns = names(row)
    header, *lines = text.splitlines() or [""]
    if header.split("\t") != columns:
        raise TableError(f"{name}:1: the columns must be {', '.join(columns)}, separated by tabs")
    rows = []
    for number, line in enumerate(lines, start=2):
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise TableError(f"{name}:{number}: {len(cells)} cells, but {len(columns)} columns")
        try:
            rows.append(row(*cells))
        except ValueError as error:
            raise TableError(f"{name}:{number}: {error}") from None
    return rows


def lines(rows: Iterable[Any]) -> str:
    """Rows as they stand in a table, without the header."""
    return "".join("\t".join(astuple(row)) + "\n" for row in rows)


def names(row: type[Any]) -> list[str]:
    """The names of the columns."""
    return [field.name for field in fields(row)]
