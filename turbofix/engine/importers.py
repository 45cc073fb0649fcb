"""Who imports whom in a project, judged by the names in the texts alone: nothing is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from turbofix.engine.workspace import Workspace
from turbofix.regex import regex
from turbofix.source.datafile import is_data
from turbofix.source.files import is_root, python_files
from turbofix.source.searched import added_folders

_FILES_SEARCHED = 1000
_IMPORT = regex(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+\(?([\w \t,*]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)


def imported_files(entry: Path, workspace: Workspace) -> set[Path]:
    """``entry`` and the project's files that it imports, directly or not."""
    return set(followed(entry, workspace))


def followed(entry: Path, workspace: Workspace) -> Iterator[Path]:
    """``entry``, then the project's files that it imports, each once, and what these import."""
    seen = {str(entry)}
    waiting = [entry]
    root = workspace.root(entry)
    added: list[Path] = []
    while waiting:
        path = waiting.pop()
        yield path
        text = workspace.read(path) or ""
        added += added_folders(text, path, root)
        new = [place for place in dict.fromkeys(_places(text, path, entry, root, added)) if place not in seen]
        seen.update(new)
        waiting += [file for place in new if (file := workspace.file(place)) is not None]


def searched(path: Path, workspace: Workspace) -> Sequence[Path]:
    """The folders below which the scripts that import a file are looked for: its project, where that can be told.

    Else its own folder, and the one above as far as that lies in the current one, which may be anybody's home.
    """
    root = workspace.root(path)
    if is_root(root):
        return (root,)
    return (path.parent,) if path.parent == root else (path.parent, path.parent.parent)


class Importers:
    """The files below a folder, each read once, with what may be imported in each of them."""

    def __init__(self, root: Path, workspace: Workspace) -> None:
        files = [path for path in python_files(root)[:_FILES_SEARCHED] if path.suffix == ".py"]
        self._root = root
        self._texts = {path: workspace.read(path) or "" for path in files}
        self._places: dict[Path, frozenset[str]] = {}
        self._found: dict[Path, set[Path]] = {}

    def of(self, file: Path) -> set[Path]:
        """The files that import a file, or that name a configuration file."""
        if file not in self._found:
            is_package = file.name == "__init__.py"
            name, place = file.parent.name if is_package else file.stem, str(file)
            if is_data(file):
                named = re.compile(rf"{re.escape(name)}(?:{re.escape(file.suffix)})?[\"']")
                self._found[file] = {path for path, text in self._texts.items() if named.search(text)}
                return self._found[file]
            self._found[file] = {
                path
                for path, text in self._texts.items()
                # an import ends in the module's name, but for ``from . import``: most files need not be looked into
                if (name in text or (is_package and path.is_relative_to(file.parent)))
                and place in self._places_in(path, text)
            }
        return self._found[file]

    def scripts(self, file: Path) -> Iterator[Path]:
        """The scripts that import a file, directly or not: what no other file imports, or what can be run as well."""
        reached: dict[Path, None] = {file: None}
        waiting = [file]
        while waiting:
            new = sorted(self.of(waiting.pop(0)) - reached.keys())
            reached |= dict.fromkeys(new)
            waiting += new
        for each in list(reached)[1:]:
            is_script = not self.of(each) or "__main__" in self._texts[each]
            if is_script and each.name != "__init__.py":
                yield each

    def _places_in(self, path: Path, text: str) -> frozenset[str]:
        if path not in self._places:
            added = added_folders(text, path, self._root)
            self._places[path] = frozenset(_places(text, path, path, self._root, added))
        return self._places[path]


def _places(text: str, importer: Path, entry: Path, root: Path, added: Sequence[Path]) -> Iterator[str]:
    """Where the modules that a text imports may be: as texts, for there are many, and most of them are no file."""

    def beginning(folder: Path) -> str:
        return str(folder / "_")[:-1]

    around = list(dict.fromkeys(map(beginning, (entry.parent, importer.parent, root, root / "src", *added))))
    for name in _imported_names(text):
        inner = name.lstrip(".")
        level = len(name) - len(inner)
        folders = around
        if level:
            folders = [beginning(importer.parents[level - 1])] if level <= len(importer.parents) else []
        module = inner.replace(".", os.sep)
        for folder in folders:
            if module:
                yield f"{folder}{module}{os.sep}__init__.py"
                yield f"{folder}{module}.py"
            else:
                yield f"{folder}__init__.py"


@lru_cache(_FILES_SEARCHED)
def _imported_names(text: str) -> Sequence[str]:
    names: list[str] = []
    for module, members, modules in _IMPORT.findall(text):
        if module:
            names.append(module)
            dot = "" if module.endswith(".") else "."
            names += (module + dot + words[0] for part in members.split(",") if (words := part.split()))
        names += (words[0] for part in modules.split(",") if (words := part.split()))
    return names
