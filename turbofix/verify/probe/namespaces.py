"""The strongest wall: everything is read-only, and over the user's folders lies a layer that takes every write.

A process in mount, process and IPC namespaces of its own (and a user namespace, unless it is root) sees the user's
folders at their own paths, as overlays: it reads the user's files, and what it writes, removes or renames goes to a
layer in the scratch folder. All processes in the namespace die with its first one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import kernel

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_NO_SETUID, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_MOUNT_SETATTR, _READ_ONLY, _AT_RECURSIVE, _AT_HERE = 442, 1, 0x8000, -100
_DROP_FROM_BOUNDS, _CAPABILITIES_3 = 24, 0x20080522
# what root keeps: to own, read and write files, and to change its own identity
_KEPT_BY_ROOT = frozenset(range(8))

SHARED_MEMORY = "/dev/shm"
_LITTLE = 1 << 24


def enter(*, own_user: bool) -> None:
    """Put this process into new namespaces; those for processes hold for its children. It may have one thread only.

    With ``own_user`` it needs no privilege, where the system lets users do that at all.
    """
    user, group = os.geteuid(), os.getegid()
    kernel.call("unshare", _NEW_PROCESSES | _NEW_IPC | (_NEW_USER if own_user else 0))
    if own_user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def wall_in(root: str) -> None:
    """In the first process of the namespaces: make everything read-only but the scratch folder ``root``."""
    _own_mounts()
    _mount("proc", "/proc", "proc", _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS)
    _mount(root, root, None, _BIND)
    _set_mount("/", _AT_RECURSIVE, set_bits=_READ_ONLY)
    for place in (root, "/proc"):
        _set_mount(place, 0, clear_bits=_READ_ONLY)
    _mount_shared_memory(_LITTLE)  # what libraries that are imported ahead try out


def lay_over(layers: Sequence[Mapping[str, str]], *, own_user: bool, shared_memory: int) -> None:
    """Mount the overlays, and shared memory of ``shared_memory`` bytes that is nobody else's.

    Each layer has the user's ``folder`` and three of the scratch folder: ``changed`` (what is to be read in place of
    the user's), ``upper`` (takes the writes) and ``work`` (the kernel's own).
    """
    _own_mounts()
    mounted = sorted(_mount_points(), key=len)
    for layer in layers:
        folder = layer["folder"]
        inner = [point for point in mounted if point.startswith(folder + "/")]
        with contextlib.ExitStack() as stack:
            # the overlay hides what is mounted below the folder, so it is taken hold of before
            held = [(point, stack.enter_context(_place(point))) for point in inner]
            _overlay(layer, stack, own_user=own_user)
            for point, place in held:
                # not a part of any layer: readable, as everything else
                _mount(_path_of(place), point, None, _BIND)
    _mount_shared_memory(shared_memory)


def _mount_shared_memory(size: int) -> None:
    if os.path.isdir(SHARED_MEMORY):
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", _NO_SETUID | _NO_DEVICES, f"mode=1777,size={size}")


def _overlay(layer: Mapping[str, str], stack: contextlib.ExitStack, *, own_user: bool) -> None:
    places = {name: _path_of(stack.enter_context(_place(layer[name]))) for name in layer}
    # Paths are given as open files: a comma or a colon in a path would end it here.
    options = (
        f"lowerdir={places['changed']}:{places['folder']},upperdir={places['upper']},workdir={places['work']},"
        # root's overlays can rename the user's folders too; other users' copy them
        + ("userxattr" if own_user else "redirect_dir=on")
    )
    _mount("overlay", layer["folder"], "overlay", _NO_DEVICES, options)


def drop_privileges() -> None:
    """Give up what a process needs to undo any of this; root keeps what makes it the owner of files."""
    kept = _KEPT_BY_ROOT if os.geteuid() == 0 else frozenset()
    for capability in range(64):
        if capability not in kept:
            with contextlib.suppress(OSError):  # the kernel does not know so many
                kernel.call("prctl", _DROP_FROM_BOUNDS, capability, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_3, 0))
    old = ctypes.create_string_buffer(24)
    kernel.call("capget", header, old)
    effective, permitted, _, _, _, _ = struct.unpack("=6I", old.raw)
    mask = sum(1 << capability for capability in kept)
    new = struct.pack("=6I", effective & mask, permitted & mask, 0, 0, 0, 0)
    kernel.call("capset", header, ctypes.create_string_buffer(new))


def _own_mounts() -> None:
    kernel.call("unshare", _NEW_MOUNTS)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts: list[Any] = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    try:
        kernel.call("mount", *texts, ctypes.c_ulong(flags), data)
    except OSError as error:
        what = f"mount {kind or 'again'} on {target}" if source else "have mounts of its own"
        raise OSError(error.errno, f"cannot {what}: {os.strerror(error.errno or 0)}") from error


def _set_mount(place: str, flags: int, *, set_bits: int = 0, clear_bits: int = 0) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", set_bits, clear_bits, 0, 0))
    result = kernel.system_call(_MOUNT_SETATTR, _AT_HERE, os.fsencode(place), flags, attributes, ctypes.c_size_t(32))
    kernel.checked(f"mount_setattr of {place}", result)


@contextlib.contextmanager
def _place(path: str) -> Iterator[int]:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield place
    finally:
        os.close(place)


def _path_of(place: int) -> str:
    return f"/proc/self/fd/{place}"


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as handle:
        return [_unescaped(line.split()[4]) for line in handle]


def _unescaped(path: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, sign)
    return path


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as handle:
        handle.write(text)
