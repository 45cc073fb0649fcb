"""How strongly a run can be kept from the user's files on this machine: each level is tried out, not guessed at."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import kernel, landlock, namespaces, processes

OVERLAY = "overlay"
LANDLOCK = "landlock"
GUARD = "guard"

# what the kernel and the guard say to one who may not write
DENIALS = ("Permission denied", "Read-only file system", "verified script may not write")

# shared memory for a rehearsal, in bytes
_LITTLE = 1 << 20


def hold(configuration: Mapping[str, Any]) -> None:
    """Before torch is imported: take up the level that holds for the whole life of the process that serves runs."""
    from . import guard

    level, root = configuration["level"], configuration["root"]
    if level == OVERLAY:
        namespaces.wall_in(root)
    elif level == LANDLOCK:
        landlock.restrict([root])
        guard.install([root], configuration["mirror"], configuration["audit"], thorough=False)


def hold_run(configuration: Mapping[str, Any], order: Mapping[str, Any]) -> None:
    """Before the user's script: what holds for one run of it."""
    from . import guard

    level, root = configuration["level"], configuration["root"]
    if level == OVERLAY:
        lay_over(order["layers"], root, own_user=configuration["own_user"], shared_memory=order["memory"])
    elif level == GUARD:
        guard.install([root], configuration["mirror"], configuration["audit"], thorough=True)


def lay_over(layers: Sequence[Mapping[str, str]], root: str, *, own_user: bool, shared_memory: int) -> None:
    """The user's folders under overlays, everything else read-only, and no way back.

    What is read-only by its mounts is so by Landlock too, where the kernel's can do it. Without it the mounts hold: a
    process that makes itself namespaces in which it has rights cannot undo mounts that come from outside of them.
    """
    namespaces.lay_over(layers, own_user=own_user, shared_memory=shared_memory)
    if landlock.version() >= landlock.LEAST_BESIDE_ANOTHER:
        folders = [root, *(layer["folder"] for layer in layers)]
        landlock.restrict(folders, least=landlock.LEAST_BESIDE_ANOTHER)
    landlock.give_up_new_privileges()
    namespaces.drop_privileges()


def obstacles(configuration: Mapping[str, Any]) -> dict[str, str | None]:
    """What stands in the way of the overlay (``root``, ``layers``, ``own_user``) and of Landlock here, or None."""
    root, layers, own_user = configuration["root"], configuration["layers"], configuration["own_user"]

    def overlay() -> None:
        namespaces.enter(own_user=own_user)
        _demand(lambda: _rehearse_overlay(root, layers, own_user=own_user))

    def locked() -> None:
        landlock.restrict([root])
        _demand_denial(root)

    return {OVERLAY: _trouble(overlay) if layers else "there is nothing to lay over", LANDLOCK: _trouble(locked)}


def _rehearse_overlay(root: str, layers: Sequence[Mapping[str, str]], *, own_user: bool) -> None:
    namespaces.wall_in(root)
    lay_over(layers, root, own_user=own_user, shared_memory=_LITTLE)
    _demand_denial(root)
    for layer in layers:
        folder = layer["folder"]
        if os.access(folder, os.W_OK):
            handle, path = tempfile.mkstemp(prefix=".turbofix-", dir=folder)
            os.close(handle)
            if os.path.basename(path) not in os.listdir(layer["upper"]):
                os.unlink(path)
                raise OSError(f"what is written to {folder} does not stay in the layer above it")


def _demand_denial(root: str) -> None:
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix=".turbofix-", dir=os.path.dirname(root))
        os.close(handle)
        os.unlink(path)
        raise AssertionError("the kernel was asked to deny writes and does not")


def _trouble(attempt: Callable[[], None]) -> str | None:
    """What went wrong in ``attempt``, made in a process of its own, or None."""
    if not kernel.LINUX:
        return "it needs Linux"
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = "it ended without a word"
        try:
            processes.die_with_parent()
            attempt()
            words = ""
        except BaseException as error:
            words = str(error) or type(error).__name__
        finally:
            os.write(write, (words or ".").encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return None if said == "." else said or "it ended without a word"


def _demand(attempt: Callable[[], None]) -> None:
    """Make ``attempt`` in a child, and fail as it does."""
    trouble = _trouble(attempt)
    if trouble:
        raise OSError(trouble)
