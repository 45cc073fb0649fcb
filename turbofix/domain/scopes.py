"""The files of the project as they are executed: modules, frames, and names that are looked up when used."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.domain.values import Function, Value
from turbofix.records import dataclass
from turbofix.source.places import SourceFile

if TYPE_CHECKING:
    from turbofix.domain.trace import Arguments

Reader = Callable[[Path], "str | None"]
"""The text of a file of the project, or None where there is none (or it cannot be read)."""

Beside = Callable[..., Iterable[Path]]
"""Lists the project's files: Python's, or those of the suffixes that it is given."""


def nothing_beside(*suffixes: str) -> tuple[Path, ...]:
    """A project of which no more than the script's own modules is known."""
    return ()


@dataclass(eq=False, slots=True)
class Scope:
    """Names of a module, class body or function call."""

    parent: Scope | None
    module: ModuleFile
    names: dict[str, Value] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)


@dataclass(eq=False)
class ModuleFile(SourceFile):
    """A file as it is executed. ``star_imports`` are libraries whose names it imported with ``*``."""

    scope: Scope = field(init=False)
    folder: Path = field(init=False)
    executed: bool = False
    star_imports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scope = Scope(None, self)
        self.folder = self.path.parent


@dataclass(eq=False, slots=True)
class Lazy(Value):
    """A name imported from a module of the project that is executed only when the name is used."""

    module: ModuleFile
    name: str
    node: ast.AST
    running: bool = False


@dataclass(eq=False, slots=True)
class Frame:
    """The function, class body or module that is being executed."""

    function: Function | None
    scope: Scope
    module: ModuleFile
    returned: Value | None = None
    yielded: Value | None = None
    in_class: bool = False
    arguments: Arguments | None = None  # of a function's call
    values: dict[ast.AST, Value] = field(default_factory=dict)  # of every expression in it, joined over all times
