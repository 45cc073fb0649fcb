"""A second, weaker wall: an audit hook that refuses writes outside the scratch folder.

It sees what goes through Python's own functions. Beside Landlock it covers what Landlock leaves open (modes, owners
and times of files); alone it also patches torch's writers, which open files from C++. It stops no subprocess and no
foreign library: the report calls it weak.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_METADATA = {"os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "os.setxattr": (0,), "os.removexattr": (0,)}
_CHANGING = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.link": (0, 1),  # a hard link would let a later write through to the original
    "os.symlink": (1,),
}
_FREE = ("/dev/", "/proc/self/")


def install(folders: Sequence[str], *, thorough: bool) -> None:
    """Refuse changes outside ``folders``; all of them when ``thorough``, else only those that Landlock leaves open."""
    roots = tuple(os.path.join(folder, "") for folder in folders)

    def inside(path: object, *, follow: bool) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return True  # an open file's number: it was judged when it was opened
        text = os.path.abspath(os.fsdecode(path))
        parent, name = os.path.split(text)
        # What removes or renames a link touches the link, not what it points to.
        real = os.path.realpath(text) if follow else os.path.join(os.path.realpath(parent), name)
        return (real + os.sep).startswith(roots) or real.startswith(_FREE)

    def refuse(path: object) -> None:
        raise PermissionError(13, "turbofix: a verified script may not write outside its own folder", str(path))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _METADATA:
            if not inside(arguments[0], follow=True):
                refuse(arguments[0])
        elif thorough and event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and not inside(path, follow=True):
                refuse(path)
        elif thorough and event in _CHANGING:
            for position in _CHANGING[event]:
                if not inside(arguments[position], follow=event == "os.truncate"):
                    refuse(arguments[position])

    sys.addaudithook(hook)
    if thorough:
        _guard_torch(lambda path: inside(path, follow=True), refuse)


def _guard_torch(inside: Callable[[object], bool], refuse: Callable[[object], None]) -> None:
    import torch

    def guarded(save: Any, position: int) -> Any:
        def checked(*arguments: Any, **keywords: Any) -> Any:
            target = arguments[position] if len(arguments) > position else keywords.get("f")
            if not inside(target):
                refuse(target)
            return save(*arguments, **keywords)

        return checked

    for owner, name in ((torch, "save"), (torch.jit, "save")):
        setattr(owner, name, guarded(getattr(owner, name), 1))
