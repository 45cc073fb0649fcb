"""The scratch folder's lifetime: made where it is out of the way, locked while it is used, removed at the end.

The lock is the kernel's (``flock``), so it ends with the processes that hold it, however they end. A scratch folder
that nobody has locked was left by a run that was killed: the next run removes it, and the processes that go with it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify import signals
from turbofix.verify.probe import processes, warden

PREFIX = "turbofix-"
_LOCK = "lock"
# what stands in the lock: without it a folder of that name is not one of these
_SIGN = b"scratch folder of turbofix verify\n"
_KEEP = b"to be kept\n"

# A folder without a lock is one that is being made, unless it has been so for that many seconds.
_MAKING = 3600.0


@dataclass(frozen=True)
class Lease:
    """A scratch folder of this process's; ``lock`` is the open file by which it is known to be in use."""

    root: Path
    lock: int
    swept: tuple[Path, ...] = ()


@contextlib.contextmanager
def scratch_folder(*, keep: bool, outside: Sequence[Path] = ()) -> Iterator[Lease]:
    """A new folder outside the folders given, removed at the end however it ends, unless it is to be kept.

    First, what runs that were killed have left is removed.
    """
    places = _places(outside)
    swept = tuple(path for place in places for path in sweep(place))
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=PREFIX, dir=places[0])))
    lock: int | None = None
    try:
        lock = _lock_new(folder, keep=keep)
        yield Lease(folder, lock, swept)
    finally:
        with signals.undisturbed():
            if lock is not None and sys.platform == "win32":
                os.close(lock)  # nothing that is open can be removed there
            if keep:
                # from here on it is the user's
                (folder / _LOCK).unlink(missing_ok=True)
            else:
                warden.remove(str(folder))
            if lock is not None and sys.platform != "win32":
                os.close(lock)


def _places(outside: Sequence[Path]) -> list[Path]:
    """The folders for temporary files, those first that lie outside the given ones."""
    chosen = Path(os.path.realpath(tempfile.gettempdir()))
    places = (
        [chosen, *(Path(one) for one in ("/var/tmp", "/tmp") if _is_usable(one))] if os.name == "posix" else [chosen]
    )
    unique = list(dict.fromkeys(Path(os.path.realpath(place)) for place in places))
    return sorted(unique, key=lambda place: any(tree == place or tree in place.parents for tree in outside))


def _is_usable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK)


def _lock_new(folder: Path, *, keep: bool) -> int:
    # It gets its name when it is locked already: no other run ever sees it free. Windows renames no open file.
    name = _LOCK if sys.platform == "win32" else f"{_LOCK}.new"
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(handle, _SIGN + (_KEEP if keep else b""))
    _take(handle)
    if sys.platform != "win32":
        os.rename(folder / name, folder / _LOCK)
    return handle


def _take(handle: int) -> bool:
    """Take the lock; False when somebody has it. It is given up when the last copy of ``handle`` is closed."""
    try:
        if sys.platform == "win32":
            import msvcrt

            # a byte that is never written: the rest can still be read
            os.lseek(handle, 1 << 20, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(place: Path) -> Iterator[Path]:
    """Remove the scratch folders in ``place`` that no living run holds, end what still runs in them, and name them."""
    try:
        found = sorted(place.glob(PREFIX + "*"))
    except OSError:
        return
    for folder in found:
        with contextlib.suppress(OSError):
            if _is_own(folder) and _is_left(folder):
                yield folder


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


def _is_left(folder: Path) -> bool:
    """Whether nobody held ``folder``; then it and its processes are gone now."""
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        _remove_unfinished(folder)
        return False
    try:
        said = os.read(handle, 256)
        if not said.startswith(_SIGN) or not _take(handle):
            return False
        with signals.undisturbed():
            processes.kill_marked(str(folder))
            warden.forget_shared_memory(str(folder))
            if said.endswith(_KEEP):
                os.unlink(folder / _LOCK)
                return False
            warden.remove(str(folder))
        return True
    finally:
        os.close(handle)


def _remove_unfinished(folder: Path) -> None:
    """Remove a folder whose run was killed while it made it."""
    if time.time() - folder.lstat().st_mtime > _MAKING and os.listdir(folder) == [f"{_LOCK}.new"]:
        warden.remove(str(folder))
