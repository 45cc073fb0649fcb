"""Texts of files, over the disk, as the engine asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self


class Workspace(Protocol):
    """Texts of files, over the disk."""

    def read(self, path: Path, /) -> str | None:
        """The text of a file, or None where there is none."""

    def file(self, place: str, /) -> Path | None:
        """The path of a file, where there is one that can be read."""

    def with_texts(self, texts: Mapping[Path, str], /) -> Self:
        """The same workspace with other texts for some files."""

    def root(self, entry: Path, /) -> Path:
        """The folder of the project that the script belongs to."""

    def beside(self, entry: Path, /, *suffixes: str) -> Iterable[Path]:
        """The Python files of the project that the script belongs to, as far as they are searched; or others."""
