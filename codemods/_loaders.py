"""What several codemods ask of a loader."""

from __future__ import annotations

from typing import Literal

from turbofix.program.model import Loader, Transfer


def copies_to_cuda(loader: Loader) -> tuple[Transfer, ...]:
    """The copies that bring the loader's batches to a GPU."""
    return tuple(copy for copy in loader.copies if copy.to.reaches_cuda and not copy.dtype_only)


def pinning(loader: Loader) -> Literal["pinned", "can be", "maybe", "no"]:
    """Whether the loader hands out pinned memory, or could.

    ``maybe``: what the call passes is not known, or changes from run to run; ``no``: pinning is not possible or has
    nothing to pin.
    """
    pin = loader.argument("pin_memory")
    if loader.dataset.on_device or loader.collate_on_device:
        return "no"
    if pin.state == "value" and pin.values[0]:
        return "pinned"
    if pin.state in ("may", "option") and any(pin.values):
        return "pinned"
    if pin.state in ("computed", "unknown") or pin.state == "may" or loader.open_mapping:
        return "maybe"
    if loader.subclass is not None or loader.batch == "object":
        return "no"
    return "can be"


def called(loader: Loader) -> str:
    """How a message calls the loader."""
    return f"`{loader.name}`" if loader.name else "this loader"


def at(line: int) -> str:
    """A line, in a message."""
    return f"line {line}"
