"""A second, weaker wall: an audit hook that refuses writes outside the scratch folder.

It sees what goes through Python's own functions. Beside Landlock it covers what Landlock leaves open (modes, owners
and times of files, and signals before Linux 6.12); alone it also patches torch's writers, which open files from C++. It
stops no subprocess and no foreign library: the report calls it weak, and names the programs that were started.

Where the mirror holds a link to a big file, writing to it makes it a file of its own first.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import processes, warden

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# For each event the paths among its arguments, each with the folder that it starts from, where there may be one.
_METADATA: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
}
_CHANGING: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.truncate": ((0, None),),
    "os.link": ((0, 2), (1, 3)),  # a hard link would let a later write through to the original
    "os.symlink": ((1, 2),),
    "sqlite3.connect": ((0, None),),
}
# those that change what a link points to, and not the link
_FOLLOWING = ("os.truncate", "sqlite3.connect", *_METADATA)
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile")
_FREE = ("/dev/", "/proc/self/")


def install(folders: Sequence[str], mirror: str, audit: str, *, thorough: bool) -> None:
    """Refuse changes outside ``folders``; all of them when ``thorough``, else only those that Landlock leaves open.

    A file's link beneath ``mirror`` becomes a copy when it is opened for writing. With ``thorough``, programs that
    are started are noted in the file ``audit``, one line each.
    """
    roots = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)
    links = os.path.join(mirror, "")
    busy = [False]
    first = os.getpid()

    def inside(path: object, *, follow: bool, folder: object = None) -> bool:
        text = _whole(path, folder)
        if text is None:
            return True  # nothing that has a place
        parent, name = os.path.split(text)
        # What removes or renames a link touches the link, not what it points to.
        real = os.path.realpath(text) if follow else os.path.join(os.path.realpath(parent), name)
        return (real + os.sep).startswith(roots) or real.startswith(_FREE)

    def refuse(path: object) -> None:
        raise PermissionError(13, "turbofix: a verified script may not write outside its own folder", str(path))

    def demand(path: object, folder: object) -> None:
        if not inside(path, follow=True, folder=folder):
            refuse(path)

    def own(path: object, *, emptied: bool) -> None:
        """Make the mirror's link ``path`` a file of its own, which is to be written."""
        if isinstance(path, (str, bytes, os.PathLike)) and not busy[0]:
            text = os.path.abspath(os.fsdecode(path))
            if (
                text.startswith(links)
                and os.path.islink(text)
                and os.path.isfile(text)
                and not inside(text, follow=True)
            ):
                busy[0] = True
                try:
                    _replace_link(text, emptied=emptied)
                finally:
                    busy[0] = False

    def opened(path: object, flags: object) -> None:
        if isinstance(flags, int) and flags & _WRITING:
            own(path, emptied=bool(flags & os.O_TRUNC))
            if thorough and not inside(path, follow=True):
                refuse(path)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            opened(arguments[0], arguments[2])
        elif event == "os.truncate":
            own(arguments[0], emptied=False)
        if event in _METADATA or (thorough and event in _CHANGING):
            for position, folder in _METADATA.get(event) or _CHANGING[event]:
                start = None if folder is None else arguments[folder]
                if not inside(arguments[position], follow=event in _FOLLOWING, folder=start):
                    refuse(arguments[position])
        elif event in ("os.kill", "os.killpg") and arguments[1] and not _own_process(event, arguments[0], first):
            raise PermissionError(1, f"turbofix: a verified script may not signal the process {arguments[0]}")
        elif thorough and event in _PROGRAMS and not busy[0]:
            busy[0] = True
            try:
                _note(audit, arguments[0])
            finally:
                busy[0] = False

    sys.addaudithook(hook)
    _note_shared_memory(os.path.join(roots[0], warden.SHARED))
    if thorough:
        _guard_open(demand)
    _guard_torch(own, lambda path: inside(path, follow=True), refuse, thorough=thorough)


def _own_process(event: str, number: int, first: int) -> bool:
    """Whether a signal to ``number`` reaches only processes that come from ``first``; -1 would reach everybody's."""
    if event == "os.killpg" or number in (0, -os.getpgrp()):
        return abs(number) in (0, os.getpgrp()) or abs(number) in processes.descendants(first)
    return abs(number) == first or abs(number) in processes.descendants(first)


def _whole(path: object, folder: object) -> str | None:
    """The absolute path of ``path``, which may be an open file's number or start from the open ``folder``."""
    if isinstance(path, int):
        return _path_of(path)
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    text = os.fsdecode(path)
    if text == ":memory:":
        return None
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(text):
        text = os.path.join(_path_of(folder) or "", text)
    return os.path.abspath(text)


def _path_of(number: int) -> str | None:
    """Where the open file is; None for what has no place in a folder."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            fcntl: Any = importlib.import_module("fcntl")
            path = os.fsdecode(fcntl.fcntl(number, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))
        else:
            path = os.readlink(f"/proc/self/fd/{number}")
        return path if os.path.isabs(path) else None
    return None


def _guard_open(demand: Callable[[object, object], None]) -> None:
    """The audit event of ``os.open`` does not tell which folder the path starts from."""
    original = os.open

    @functools.wraps(original)
    def checked(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and flags & _WRITING:
            demand(path, dir_fd)
        return original(path, flags, mode, dir_fd=dir_fd)

    os.open = checked


def _note_shared_memory(note: str) -> None:
    """Write down the names of the shared memory that is made, since nobody else removes it after a kill."""
    with contextlib.suppress(ImportError):
        memory: Any = importlib.import_module("_posixshmem")
        original = memory.shm_open

        def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
            made: int = original(path, flags, mode=mode)
            if flags & os.O_EXCL:  # else it may be another's
                with contextlib.suppress(OSError), open(note, "a", encoding="utf-8") as handle:
                    handle.write(f"{path}\n")
            return made

        memory.shm_open = shm_open


def _replace_link(path: str, *, emptied: bool) -> None:
    source = os.path.realpath(path)
    os.unlink(path)
    with contextlib.suppress(OSError):
        if emptied:
            with open(path, "wb"):
                return
        shutil.copyfile(source, path)


def _note(audit: str, program: object) -> None:
    if isinstance(program, (str, bytes, os.PathLike)):
        words = os.fsdecode(program).split()
        with contextlib.suppress(OSError), open(audit, "a", encoding="utf-8") as handle:
            handle.write(f"{os.path.basename(words[0]) if words else '?'}\n")


def _guard_torch(
    own: Callable[..., None], inside: Callable[[object], bool], refuse: Callable[[object], None], *, thorough: bool
) -> None:
    """Torch opens files from C++, where no audit hook sees it."""
    import torch

    def guarded(write: Any, position: int, name: str, *, emptied: bool) -> Any:
        @functools.wraps(write)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            target = arguments[position] if len(arguments) > position else keywords.get(name)
            shared = emptied or keywords.get("shared", len(arguments) > position + 1 and arguments[position + 1])
            if shared:
                own(target, emptied=emptied)
                if thorough and not inside(target):
                    refuse(target)
            return write(*arguments, **keywords)

        return checked

    torch.save = guarded(torch.save, 1, "f", emptied=True)
    torch.jit.save = guarded(torch.jit.save, 1, "f", emptied=True)
    torch.from_file = guarded(torch.from_file, 0, "filename", emptied=False)
    scripting: Any = torch.jit
    for module in (scripting.ScriptModule, scripting.RecursiveScriptModule):
        module.save = guarded(module.save, 1, "f", emptied=True)
    storage: Any = torch.UntypedStorage
    storage.from_file = staticmethod(guarded(storage.from_file, 0, "filename", emptied=False))
