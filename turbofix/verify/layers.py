"""The folders that a script may think it writes to, each under a layer in the scratch folder that takes the writes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify.probe import warden

# what libraries write to without being asked
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME")


@dataclass(frozen=True)
class Layer:
    """One of the user's folders, and the place of its layer."""

    folder: Path
    place: Path

    @property
    def upper(self) -> Path:
        """What the script wrote, and marks for what it removed."""
        return self.place / "upper"

    @property
    def changed(self) -> Path:
        """What is read in place of the user's files."""
        return self.place / "changed"

    def places(self) -> dict[str, str]:
        """The paths as the probe wants them."""
        names = ("changed", "upper", "work")
        return {"folder": str(self.folder), **{name: str(self.place / name) for name in names}}

    def make(self, files: Mapping[Path, bytes] | None = None) -> None:
        """Make the layer anew, with those of ``files`` that lie in the folder."""
        self.remove()
        for name in ("changed", "upper", "work"):
            (self.place / name).mkdir(parents=True)
        for path, content in (files or {}).items():
            place = real_place(path)
            if self.holds(place):
                _put(self.changed / place.relative_to(self.folder), content, place)
        # the merged folders have the modes of their topmost layer
        for folder, _, _ in os.walk(self.changed, topdown=False):
            theirs = self.folder / Path(folder).relative_to(self.changed)
            if theirs.is_dir():
                shutil.copystat(theirs, folder)
        shutil.copystat(self.folder, self.upper)

    def holds(self, path: Path) -> bool:
        """Whether ``path``, without links before its last part, lies in the folder."""
        return self.folder in path.parents

    def remove(self) -> None:
        """Remove the layer."""
        if self.place.exists():
            warden.remove(str(self.place))

    def touched(self) -> Iterator[Path]:
        """The user's files that the last run changed or removed; those that it added are not among them."""
        for folder, _, names in os.walk(self.upper):
            for name in names:
                path = self.folder / (Path(folder) / name).relative_to(self.upper)
                if os.path.lexists(path):
                    yield path


def _put(target: Path, content: bytes, theirs: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    if theirs.exists():
        target.chmod(stat.S_IMODE(theirs.stat().st_mode))


def real_place(path: Path) -> Path:
    """Where ``path`` is, whatever links lead there; the last part may be a link itself."""
    return Path(os.path.realpath(path.parent)) / path.name


def layers_for(trees: Sequence[Path], root: Path) -> tuple[Layer, ...]:
    """A layer for each of the folders ``trees`` and for the caches of libraries, none within another.

    A folder that holds the scratch folder ``root`` can have none: then there are no layers at all for want of the
    script's own folder, and only its writes are denied for any other.
    """
    if _holds(trees[0], root):
        return ()
    folders: list[Path] = []
    wanted = [*trees, *_caches()]
    for folder in sorted({Path(os.path.realpath(one)) for one in wanted}, key=lambda one: len(one.parts)):
        if not _holds(folder, root) and not any(_holds(outer, folder) for outer in folders):
            folders.append(folder)
    return tuple(Layer(folder, root / "layers" / str(number)) for number, folder in enumerate(folders))


def _caches() -> Iterator[Path]:
    named = [os.environ[name] for name in _CACHES if os.environ.get(name)]
    for path in (*map(Path, named), Path.home() / ".cache"):
        if path.is_dir():
            yield path


def _holds(folder: Path, path: Path) -> bool:
    return folder == path or folder in path.parents
