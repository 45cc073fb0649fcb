"""LibCST, loaded in a third of the time.

It declares two hundred classes of nodes with the standard library's ``dataclass``, which compiles the source of seven
methods for each (CPython 3.11): two thirds of its import, and a tenth of a command on one file. Of these methods a node
keeps ``__init__`` and two that refuse assignments, and few kinds of nodes are ever made. Hence, while LibCST is loaded,
``dataclass`` gives a frozen class what the standard library's would, with an ``__init__`` that is compiled when the
first object is made.

Half of what is left are the signatures of what a visitor may define, which only type checkers read, a tokenizer that
nobody calls, and the metadata: that is loaded when somebody asks for it. Slots, for which each class is made twice,
are left out. Whoever imports LibCST elsewhere, before or after, gets classes that behave alike.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from turbofix.records import compiled_when_needed


class _Empty(ModuleType):
    """A module of empty classes."""

    def __getattr__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else type(name, (), {})


_UNREAD = (
    "libcst._parser.wrapped_tokenize",
    "libcst._typed_visitor",
    "libcst.metadata.base_provider",
    "libcst.metadata.wrapper",
)
_EMPTY = {} if "libcst" in sys.modules else {name: _Empty(name) for name in _UNREAD}
if _EMPTY:
    _EMPTY["libcst._add_slots"] = _Empty("libcst._add_slots")
    _EMPTY["libcst._add_slots"].add_slots = lambda cls: cls  # type: ignore[attr-defined]

sys.modules |= _EMPTY
with compiled_when_needed("libcst"):
    import libcst as cst
    from libcst._nodes.internal import CodegenState

if _EMPTY:
    for module in _EMPTY:
        del sys.modules[module]
    _LATER = {name for name, each in vars(cst).items() if getattr(each, "__module__", "") == __name__}
    for name in _LATER:
        delattr(cst, name)

    def _later(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'libcst' has no attribute {name!r}")
        return getattr(import_module("libcst.metadata"), name)

    cst.__getattr__ = _later  # type: ignore[method-assign]

__all__ = ["CodegenState", "cst"]
