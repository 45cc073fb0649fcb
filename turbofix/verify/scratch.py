"""The scratch folder: a mirror of what the script can see from where it stands, made anew for every run.

The path /a/b stands at ``<scratch>/mirror/a/b``, so that relative paths mean what they meant. Files are copied, and
big ones linked: a symbolic link, since a hard link would let a write through. What stands beside the mirrored folders
is linked too, where the kernel denies writes through the link.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify import signals

SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".nox",
    ".venv",
    "wandb",
}
MARKERS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")

BIG_FILE = 16 << 20
MOST_COPIED = 512 << 20
MOST_ENTRIES = 20_000


def project_of(script: Path) -> Path:
    """The project's folder: the nearest above ``script`` that has a project's marks, else the script's own."""
    folder = script.parent
    home = Path.home()
    for parent in (folder, *folder.parents):
        if parent == home or parent == parent.parent:
            break
        if any((parent / marker).exists() for marker in MARKERS):
            return parent
    return folder


def trees_for(script: Path, cwd: Path) -> tuple[Path, ...]:
    """The folders to mirror: the project and the working folder, the outer one alone where one holds the other."""
    project = project_of(script)
    if cwd == project or project in cwd.parents:
        return (project,)
    if cwd in project.parents and cwd != Path.home() and cwd != cwd.parent:
        return (cwd,)
    return (project, cwd)


@dataclass(frozen=True)
class Scratch:
    """A scratch folder and the trees that it mirrors; ``strong`` when the kernel denies writes through links."""

    root: Path
    trees: tuple[Path, ...]
    strong: bool = True

    @property
    def mirror_root(self) -> Path:
        return self.root / "mirror"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def mirror(self, path: Path) -> Path:
        return self.mirror_root / path.relative_to(path.anchor)

    def holds(self, path: Path) -> bool:
        return any(tree == path or tree in path.parents for tree in self.trees)

    def argument(self, text: str) -> str:
        """An argument of the script's, with a path into a mirrored folder moved into the mirror."""
        before, equals, path = text.rpartition("=")
        if os.path.isabs(path) and self.holds(Path(os.path.normpath(path))):
            return before + equals + str(self.mirror(Path(os.path.normpath(path))))
        return text

    def told(self, sentence: str) -> str:
        """A sentence with the user's paths in place of those in the mirror, which is gone when it is read."""
        return sentence.replace(f"{self.mirror_root}/", "/")

    def populate(self, files: Mapping[Path, bytes]) -> None:
        """Make the mirror anew, with ``files`` in place of the originals."""
        shutil.rmtree(self.mirror_root, ignore_errors=True)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        budget = _Budget()
        for tree in self.trees:
            self._copy(tree, budget)
        if self.strong:
            for tree in self.trees:
                self._link_beside(tree)
        for path, content in files.items():
            target = self.mirror(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink():
                target.unlink()
            target.write_bytes(content)

    def _copy(self, tree: Path, budget: _Budget) -> None:
        waiting = deque([tree])
        while waiting:
            folder = waiting.popleft()
            target = self.mirror(folder)
            target.mkdir(parents=True, exist_ok=True)
            for entry in _entries(folder):
                place, source = target / entry.name, Path(entry.path)
                if entry.name in SKIPPED or source == self.root or place.is_symlink() or place.is_file():
                    continue
                budget.entries -= 1
                if entry.is_symlink():
                    _copy_link(source, place, self)
                elif entry.is_dir(follow_symlinks=False):
                    if (source / "pyvenv.cfg").exists():
                        continue
                    if budget.entries <= 0 and self.strong:
                        place.symlink_to(source)
                    else:
                        waiting.append(source)
                elif entry.is_file(follow_symlinks=False):
                    _copy_file(entry, place, budget)

    def _link_beside(self, tree: Path) -> None:
        """Link the neighbours of ``tree`` and of its parent, so that ``../data`` is found (and cannot be written)."""
        for folder in list(tree.parents)[:2]:
            if folder == folder.parent:
                continue
            for entry in _entries(folder):
                place = self.mirror(Path(entry.path))
                if not (place.is_symlink() or place.exists() or Path(entry.path) == self.root):
                    place.symlink_to(entry.path)


@dataclass
class _Budget:
    entries: int = MOST_ENTRIES
    size: int = MOST_COPIED


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        yield from sorted(found, key=lambda entry: entry.name)


def _copy_file(entry: os.DirEntry[str], place: Path, budget: _Budget) -> None:
    try:
        size = entry.stat(follow_symlinks=False).st_size
        if size > BIG_FILE or size > budget.size:
            place.symlink_to(entry.path)
            return
        budget.size -= size
        shutil.copy2(entry.path, place, follow_symlinks=False)
        place.chmod(place.stat().st_mode | stat.S_IWUSR)
    except OSError:
        # unreadable: then the script cannot read it either
        return


def _copy_link(source: Path, place: Path, scratch: Scratch) -> None:
    with contextlib.suppress(OSError):
        target = Path(os.path.normpath(source.parent / os.readlink(source)))
        place.symlink_to(scratch.mirror(target) if scratch.holds(target) else target)


@contextlib.contextmanager
def scratch_folder(*, keep: bool) -> Iterator[Path]:
    """A new folder outside the user's, removed at the end however it ends, unless it is to be kept."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="turbofix-")))
    try:
        yield folder
    finally:
        if not keep:
            with signals.undisturbed():
                shutil.rmtree(folder, onerror=_force)


def _force(function: object, path: str, error: object) -> None:
    """Remove what a script made read-only."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), stat.S_IRWXU)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
