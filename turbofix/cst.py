"""LibCST, loaded in half the time.

It declares two hundred classes of nodes with the standard library's ``dataclass``, which compiles the source of seven
methods for each (CPython 3.11): two thirds of its import, and a tenth of a command on one file. Of these methods a node
keeps ``__init__`` and two that refuse assignments, and few kinds of nodes are ever made. Hence, while LibCST is loaded,
``dataclass`` gives a frozen class what the standard library's would, with an ``__init__`` that is compiled when the
first object is made. Whoever imports LibCST elsewhere, before or after, gets the same classes.
"""

from __future__ import annotations

from turbofix.records import compiled_when_needed

with compiled_when_needed("libcst"):
    import libcst as cst
    from libcst._nodes.internal import CodegenState

__all__ = ["CodegenState", "cst"]
