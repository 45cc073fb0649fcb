"""Where the corpus lies, which files it has, and one repository of it as the pipeline reads it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.precision import tables
from turbofix.source.files import Workspace

SCRIPTS = Path(__file__).with_name("scripts.tsv")
ENTRIES = Path(__file__).with_name("entries.tsv")
SUFFIXES = (".py", ".ipynb")
_ROOT_MARKERS = (".git", "pyproject.toml", "setup.py")


@dataclass(frozen=True)
class Script:
    """A training script of the corpus; ``style`` is how it is written, in one word."""

    repository: str
    commit: str
    path: str
    style: str


@dataclass(frozen=True)
class Entry:
    """A file of which some code is run by no listed script, and the script that runs it."""

    repository: str
    commit: str
    path: str
    entry: str


@dataclass(frozen=True)
class Program:
    """One file of a repository that is laid out in ``folder``, as the entry of an analysis."""

    repository: str
    commit: str
    folder: Path
    path: str

    @property
    def file(self) -> Path:
        """The file on disk."""
        return self.folder / self.path


def scripts() -> list[Script]:
    """All training scripts of the corpus."""
    return tables.read(SCRIPTS, Script)


def entries() -> list[Entry]:
    """The scripts that are not listed, and through which files with rows are reached."""
    return tables.read(ENTRIES, Entry)


def commits(rows: Iterable[Script]) -> dict[str, str]:
    """The commit at which each repository is read."""
    return {row.repository: row.commit for row in rows}


def folder_of(corpus: Path, repository: str) -> Path:
    """Where a repository is laid out: ``owner/name`` in ``owner+name``."""
    return Path(os.path.abspath(corpus)) / repository.replace("/", "+")


def missing(corpus: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """The repositories that are not laid out as they must be, each with the reason."""
    reasons: dict[str, str] = {}
    for repository, commit in wanted.items():
        folder = folder_of(corpus, repository)
        if not folder.is_dir():
            reasons[repository] = "is not laid out"
        elif (found := head(folder)) not in (None, commit):
            reasons[repository] = f"is laid out at {found} and not at {commit}"
    return reasons


def head(folder: Path) -> str | None:
    """The commit that a clone is at; None where only the files lie there."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", os.fspath(folder), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def files(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> Iterator[str]:
    """The Python files and notebooks of a repository, hidden folders left out, by their paths in it, sorted."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if name.endswith(suffixes)]
    yield from sorted(path.relative_to(folder).as_posix() for path in found if path.is_file())


class Checkout:
    """A repository's files as a workspace for the pipeline, which remembers what was read.

    The project's folder is the repository where no project file stands below it, also where only the files of a clone
    lie in it.
    """

    def __init__(self, folder: Path, files: Workspace | None = None, seen: set[Path] | None = None) -> None:
        self.folder = folder
        self.files = files or Workspace()
        self.seen: set[Path] = set() if seen is None else seen

    def read(self, path: Path) -> str | None:
        """The text of a file, or None where there is none."""
        text = self.files.read(path)
        if text is not None:
            self.seen.add(path)
        return text

    def file(self, place: str) -> Path | None:
        """The path of a file, where there is one that can be read."""
        return Path(place) if self.read(Path(place)) is not None else None

    def with_texts(self, texts: Mapping[Path, str]) -> Checkout:
        """The same files with other texts for some."""
        return Checkout(self.folder, self.files.with_texts(texts), self.seen)

    def root(self, entry: Path) -> Path:
        """The folder of the project that a script belongs to."""
        for candidate in entry.parents:
            if candidate == self.folder or any((candidate / marker).exists() for marker in _ROOT_MARKERS):
                return candidate
        return self.folder

    def beside(self, entry: Path, *suffixes: str) -> list[Path]:
        """The Python files of the project that a script belongs to, or those of some suffixes."""
        root = self.root(entry)
        return [root / each for each in files(root, suffixes or (".py",))]
