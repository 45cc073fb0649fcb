"""What the script sees as its files, made anew for every run.

Under overlays it sees the user's folders where they are. Else it gets a mirror of them: the path /a/b stands at
``<scratch>/mirror/a/b``, so that relative paths mean what they meant. Files are copied, and big ones cloned where the
file system can, or linked: a symbolic link, since a hard link would let a write through. What stands beside the
mirrored folders is linked too, where the kernel denies writes through the link.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turbofix.records import dataclass
from turbofix.verify.isolation import Held
from turbofix.verify.layers import real_place
from turbofix.verify.probe import warden
from turbofix.verify.probe.levels import GUARD, OVERLAY

SKIPPED = {
    *(".git", ".hg", ".svn", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
    *(".tox", ".nox", ".venv", "wandb"),
}
MARKERS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")

BIG_FILE = 16 << 20
MOST_COPIED = 512 << 20
MOST_ENTRIES = 20_000
# folders beside the script that it may write to
MOST_FOLDERS = 6


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
    if cwd == cwd.parent:
        return (project,)
    if cwd in project.parents and cwd != Path.home():
        return (cwd,)
    return (project, cwd)


@dataclass(frozen=True)
class Scratch:
    """A scratch folder, the user's folders that the script runs in, and how they are held.

    ``lock`` is the open file that shows that the folder is in use, for the warden to hold too.
    """

    root: Path
    trees: tuple[Path, ...]
    held: Held
    lock: int | None = None

    @property
    def mirror_root(self) -> Path:
        return self.root / "mirror"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def written(self) -> tuple[Path, ...]:
        """The folders that hold what the script writes."""
        return (self.mirror_root, self.temporary, self.root / "layers")

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The folders that the user's code runs from."""
        return self.trees if self._overlaid else (self.mirror_root,)

    @property
    def _overlaid(self) -> bool:
        return self.held.level == OVERLAY

    def mirror(self, path: Path) -> Path:
        """Where the script finds what is at ``path``."""
        return path if self._overlaid else self.mirror_root / path.relative_to(path.anchor)

    def holds(self, path: Path) -> bool:
        """Whether ``path`` lies in the folders that can be written and replaced."""
        if self._overlaid:
            return any(layer.holds(real_place(path)) for layer in self.held.layers)
        return any(tree == path or tree in path.parents for tree in self.trees)

    def beyond(self, log: Mapping[str, Any]) -> Path | None:
        """The folder that a run would have needed too, by its log; None where it had all that can be given."""
        path = Path(log.get("denied") or log.get("missing") or self.root)
        if not self._overlaid:
            if self.mirror_root not in path.parents:
                return None  # by its own name it is not to be had in a mirror
            path = Path("/") / path.relative_to(self.mirror_root)
        # what is there is found in the user's folders, but not in a mirror of some of them
        gone = "missing" in log and (self._overlaid or not path.parent.exists())
        if gone or len(self.trees) > MOST_FOLDERS or self.holds(path):
            return None
        folder = next(folder for folder in (path, *path.parents) if folder.is_dir())
        copied = not self._overlaid and (folder == Path.home() or folder in Path.home().parents)
        holds_this = folder == self.root or folder in self.root.parents or self.root in folder.parents
        return None if copied or holds_this or folder in self.trees else folder

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
        """Make what the script sees anew, with ``files`` in place of the originals."""
        for folder in (self.mirror_root, self.temporary):
            if folder.exists():
                warden.remove(str(folder))
            folder.mkdir(parents=True)
        for layer in self.held.layers:
            layer.make(files)
        if self._overlaid:
            return
        budget = _Budget()
        for tree in self.trees:
            self._copy(tree, budget)
        if self._linked_is_safe:
            for tree in self.trees:
                self._link_beside(tree)
        for path, content in files.items():
            target = self.mirror(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink():
                target.unlink()
            target.write_bytes(content)

    def touched(self) -> tuple[Path, ...]:
        """The user's files that the last run would have changed or removed, as far as the level tells."""
        trees = {Path(os.path.realpath(tree)) for tree in self.trees}
        layers = [layer for layer in self.held.layers if layer.folder in trees]
        return tuple(sorted({path for layer in layers for path in layer.touched()}))

    def state(self) -> dict[Path, tuple[int, ...]]:
        """What the user's files look like from outside, to be compared later: a wall that is weak is looked after."""
        found: dict[Path, tuple[int, ...]] = {}
        waiting = deque(self.trees)
        while waiting and len(found) < MOST_ENTRIES:
            for entry in _entries(waiting.popleft()):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    # a file that appears or vanishes changes its folder's time: that is told by its own name
                    times = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
                    found[Path(entry.path)] = (status.st_mode, *times)
                    if (
                        entry.is_dir(follow_symlinks=False)
                        and entry.name not in SKIPPED
                        and self.root != Path(entry.path)
                    ):
                        waiting.append(Path(entry.path))
        return found

    @property
    def _linked_is_safe(self) -> bool:
        return self.held.level != GUARD

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
                    if budget.entries <= 0 and self._linked_is_safe:
                        place.symlink_to(source)
                    else:
                        waiting.append(source)
                elif entry.is_file(follow_symlinks=False):
                    _copy_file(entry, place, budget, biggest=BIG_FILE if self._linked_is_safe else MOST_COPIED)

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


def _copy_file(entry: os.DirEntry[str], place: Path, budget: _Budget, *, biggest: int) -> None:
    try:
        size = entry.stat(follow_symlinks=False).st_size
        if size > biggest or size > budget.size:
            if not _clone(entry.path, place):
                place.symlink_to(entry.path)
                return
        else:
            budget.size -= size
            shutil.copyfile(entry.path, place, follow_symlinks=False)
        shutil.copystat(entry.path, place, follow_symlinks=False)
        place.chmod(place.stat().st_mode | stat.S_IWUSR)
    except OSError:
        # unreadable: then the script cannot read it either
        return


def _clone(source: str, place: Path) -> bool:
    """Make ``place`` a copy that takes no time and no space, where the file system can do that."""
    try:
        if sys.platform == "darwin":
            return ctypes.CDLL(None).clonefile(os.fsencode(source), os.fsencode(place), 0) == 0
        if sys.platform == "linux":
            import fcntl

            clone_whole_file = 0x40049409
            with open(source, "rb") as old, open(place, "wb") as new:
                fcntl.ioctl(new, clone_whole_file, old.fileno())
            return True
    except OSError:
        place.unlink(missing_ok=True)
    return False


def _copy_link(source: Path, place: Path, scratch: Scratch) -> None:
    with contextlib.suppress(OSError):
        target = Path(os.path.normpath(source.parent / os.readlink(source)))
        place.symlink_to(scratch.mirror(target) if scratch.holds(target) else target)
