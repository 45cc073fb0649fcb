"""What one file imports and binds, scope by scope: how to spell a library's name there, and where a new import goes."""

from __future__ import annotations

import ast
import builtins
import keyword
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from turbofix.records import dataclass
from turbofix.source.nodes import children, parse, walk

Place = tuple[int, int]  # line from 1, column from 0 in UTF-8 bytes, as ``ast`` has them

_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Match)
_TELLING = frozenset(
    (
        *(*_SCOPES, *_BRANCHES, ast.Try, ast.ExceptHandler, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal),
        *(ast.Name, ast.arg, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    )
)
"""Nodes that bind or use a name, or whose parts differ; below the others is only to be looked for these."""


@dataclass(frozen=True)
class Binding:
    """One place that binds a name. ``scope`` is the function, class or comprehension, None for the module.

    ``target`` is the dotted name that an import brings, None for anything else. ``sure``: the import runs whenever its
    scope does, so what follows may rely on it (not under ``if TYPE_CHECKING``, nor under any other condition).
    ``fallback``: it stands in the handler of a ``try``, as ``torch = None`` does after a failed import.
    """

    name: str
    scope: ast.AST | None
    place: Place
    target: str | None = None
    module: str | None = None  # the module that the import loads
    sure: bool = False
    fallback: bool = False


@dataclass(frozen=True)
class Insertion:
    """Where a new import goes: before the line ``line`` (from 1; one past the last means the end of the text).

    ``gap`` and ``gap_above``: a blank line parts it from what follows or precedes. ``standard``: it is the standard
    library's, which stands before others at the same place.
    """

    line: int
    gap: bool = False
    gap_above: bool = False
    above_comments: bool = False
    standard: bool = False


class Names:
    """The bindings and the uses of names in one text (without byte-order mark)."""

    def __init__(self, text: str) -> None:
        self._module = parse(text)
        self.bindings: list[Binding] = []
        self.used: set[str] = set()
        self._scopes: list[ast.AST] = []
        self._globals: set[tuple[ast.AST | None, str]] = set()
        for statement in self._module.body:
            self._read(statement, None, sure=True, fallback=False)
        self.bindings = [
            binding
            if (binding.scope, binding.name) not in self._globals
            else Binding(binding.name, None, binding.place, binding.target, binding.module)
            for binding in self.bindings
        ]

    # --- reading
    def _read(self, node: ast.AST, scope: ast.AST | None, *, sure: bool, fallback: bool) -> None:
        if node.__class__ not in _TELLING:
            for part in children(node):
                self._read(part, scope, sure=sure, fallback=fallback)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.used.add(node.id)
            return
        place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))

        def bind(name: str | None, target: str | None = None, module: str | None = None) -> None:
            if name is not None:
                self.used.add(name)
                self.bindings.append(Binding(name, scope, place, target, module, sure, fallback))

        match node:
            case ast.Name():
                self.used.add(node.id)
                if not isinstance(node.ctx, ast.Load):
                    bind(node.id)
            case ast.arg():
                bind(node.arg)
            case ast.Import():
                for alias in node.names:
                    bind(alias.asname or alias.name.partition(".")[0], *_brought(alias))
            case ast.ImportFrom():
                for alias in node.names:
                    module = node.module if node.level == 0 else None
                    if alias.name == "torch":  # which a file of the project passes on
                        bind(alias.asname or "torch", "torch", "torch")
                        continue
                    bind(alias.asname or alias.name, f"{module}.{alias.name}" if module else None, module)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bind(node.name)
            case ast.ExceptHandler():
                bind(node.name)
            case ast.MatchAs() | ast.MatchStar():
                bind(node.name)
            case ast.MatchMapping():
                bind(node.rest)
            case ast.Global() | ast.Nonlocal():
                self.used.update(node.names)
                self._globals.update((scope, name) for name in node.names)
            case _:
                pass
        self._read_parts(node, scope, sure=sure, fallback=fallback)

    def _read_parts(self, node: ast.AST, scope: ast.AST | None, *, sure: bool, fallback: bool) -> None:
        if isinstance(node, _SCOPES):
            self._scopes.append(node)
        outside = set(map(id, _evaluated_outside(node)))
        for field, part in _parts(node):
            inner = node if isinstance(node, _SCOPES) and id(part) not in outside else scope
            unsure = isinstance(node, _BRANCHES) and field != "test"
            handler = isinstance(node, ast.Try) and field == "handlers"
            self._read(
                part,
                inner,
                sure=isinstance(node, _SCOPES) or (sure and not unsure and not handler),
                fallback=handler or (fallback and not isinstance(node, _SCOPES)),
            )

    # --- questions
    def is_bound(self, name: str) -> bool:
        """Whether anything in the file binds the name."""
        return any(binding.name == name for binding in self.bindings)

    def is_used(self, name: str) -> bool:
        """Whether the name stands anywhere in the file, or means something to Python."""
        return name in self.used or keyword.iskeyword(name) or hasattr(builtins, name)

    def spelling(self, dotted: str, place: Place, module: str | None = None) -> str | None:
        """How the code at ``place`` can write ``dotted`` with what is imported; None where nothing brings it.

        ``module`` names the module that must have been loaded for it. The longest imported prefix wins.
        """
        best: tuple[int, str] | None = None
        for binding in self.bindings:
            target = binding.target
            if target is None or not (dotted == target or dotted.startswith(target + ".")):
                continue
            if module is not None and not _loads(binding, module):
                continue
            if not self._reaches(binding, place):
                continue
            if best is None or len(target) > best[0]:
                best = len(target), binding.name + dotted[len(target) :]
        return best[1] if best else None

    def taken(self, name: str, target: str, place: Place) -> bool:
        """Whether ``name``, seen from ``place``, may be something else than ``target``, or not be set yet."""
        chain = self._chain(place)
        for binding in self.bindings:
            if binding.name != name or binding.scope not in (None, *chain):
                continue
            if binding.target == target:
                if binding.scope is not None:
                    return True  # local to a function, and not (surely) imported before this place
            elif not (binding.fallback and binding.target is None):
                return True
        return False

    def _reaches(self, binding: Binding, place: Place) -> bool:
        """Whether the import is in force at ``place``: it has run, and nothing that is seen there rebinds its name."""
        chain = self._chain(place)
        if not binding.sure or binding.scope not in (None, *chain):
            return False
        if (binding.scope is not None or not self.runs_later(place)) and binding.place >= place:
            return False
        for other in self.bindings:
            if other.name != binding.name or other.scope not in (None, *chain):
                continue
            if other.target != binding.target and not (other.fallback and other.target is None):
                return False
            if other.scope is not None and binding.scope is None:
                return False  # the function has a local of that name
        return True

    def runs_later(self, place: Place) -> bool:
        """Whether the code at a place runs only when something calls it."""
        return any(isinstance(scope, _DEFERRED) for scope in self._chain(place))

    def _chain(self, place: Place) -> list[ast.AST]:
        """The scopes around a place; a class is seen only from its own body."""
        around = [scope for scope in self._scopes if _holds(scope, place)]
        inner = around[-1:]
        return [scope for scope in around if not isinstance(scope, ast.ClassDef) or scope in inner]

    # --- a new import
    def insertion(self, module: str, above: int | None = None) -> Insertion:
        """Where ``import module`` goes; among the statements that begin ``above`` a line, where one is given."""
        if above is not None:
            body, begun = self._module.body, copy(self)
            begun._module = ast.Module([each for each in body if each.lineno <= above], [])
            loads = any(_imports_of(each) and not _is_standard(each) for each in begun._module.body)
            if loads or not any(map(_sets_environment, body)):  # which a library may read as it is imported
                return begun.insertion(module)
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names:
            return replace(self._beside_standard_library(module), standard=True)
        return self._behind_its_package(module) or self._above(top)

    def _behind_its_package(self, module: str) -> Insertion | None:
        """Below the ``from package import x`` lines that sort before a submodule, where its imports begin so."""
        behind: ast.stmt | None = None
        for statement in self._body():
            own = statement.module if isinstance(statement, ast.ImportFrom) and not statement.level else None
            if own is not None and module.startswith(f"{own}."):
                behind = statement
            elif behind is not None or module.partition(".")[0] in _imports_of(statement):
                break
        return Insertion(_line_below(behind)) if behind is not None else None

    def _above(self, top: str) -> Insertion:
        """Directly above the first import of the package, else where other packages' imports start."""
        body = self._body()
        first = next((statement for statement in body if top in _imports_of(statement)), None)
        if first is not None:
            return Insertion(first.lineno)
        settings = [index for index, statement in enumerate(body) if _sets_environment(statement)]
        rest = body[settings[-1] + 1 :] if settings else body  # a library may read the environment as it is imported
        imports = [statement for statement in rest if _imports_of(statement)]
        for statement in imports:
            if not _is_standard(statement):
                return Insertion(statement.lineno)
        if imports:
            return Insertion(_line_below(imports[-1]), gap_above=True)
        return self._new_block(rest)

    def _beside_standard_library(self, module: str) -> Insertion:
        """Among the first ``import x`` lines of the standard library, in their order."""
        body = self._body()
        imports = [statement for statement in body if _imports_of(statement)]
        standard = [statement for statement in imports if _is_standard(statement)]
        plain = [statement for statement in standard if isinstance(statement, ast.Import)]
        for statement in plain:
            if statement.names[0].name > module:
                return Insertion(statement.lineno)
        if plain:
            return Insertion(_line_below(plain[-1]))
        if standard:
            return Insertion(standard[0].lineno)
        return Insertion(imports[0].lineno, gap=True) if imports else self._new_block(body)

    def _new_block(self, rest: list[ast.stmt]) -> Insertion:
        """A block of imports of its own, before the first of the statements that are left."""
        if not rest:
            body = self._module.body
            return Insertion(_line_below(body[-1]) if body else 1, gap_above=bool(body))
        decorators = getattr(rest[0], "decorator_list", [])
        line = min([rest[0].lineno, *(each.lineno for each in decorators)])
        return Insertion(line, gap=True, above_comments=True)

    def _body(self) -> list[ast.stmt]:
        """The module's statements after its docstring and its ``__future__`` imports."""
        body = list(self._module.body)
        if ast.get_docstring(self._module, clean=False) is not None:
            body = body[1:]
        while body and isinstance(body[0], ast.ImportFrom) and body[0].module == "__future__":
            body = body[1:]
        return body


def _brought(alias: ast.alias) -> tuple[str, str]:
    """The dotted name that ``import a.b`` or ``import a.b as c`` binds, and the module that it loads."""
    return (alias.name if alias.asname else alias.name.partition(".")[0]), alias.name


def _loads(binding: Binding, module: str) -> bool:
    loaded = binding.module or ""
    return loaded == module or loaded.startswith(module + ".") or binding.target == module


def _parts(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield field, part


def _evaluated_outside(node: ast.AST) -> list[ast.AST]:
    """The parts of a scope that are evaluated in the scope around it."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.decorator_list, *([node.returns] if node.returns else [])]
        case ast.ClassDef():
            return [*node.decorator_list, *node.bases, *node.keywords]
        case _:
            return []


def _holds(scope: ast.AST, place: Place) -> bool:
    start = (getattr(scope, "lineno", 0), getattr(scope, "col_offset", 0))
    end = (getattr(scope, "end_lineno", 0), getattr(scope, "end_col_offset", 0))
    body = getattr(scope, "body", None)
    if isinstance(body, list) and body:  # the header of a function or class is evaluated around it
        start = max(start, (body[0].lineno, 0))
    return start <= place < end


def _imports_of(statement: ast.stmt) -> tuple[str, ...]:
    """The top-level packages that a statement imports (a ``try`` counts; a condition or a function does not)."""
    match statement:
        case ast.Import():
            return tuple(alias.name.partition(".")[0] for alias in statement.names)
        case ast.ImportFrom(level=0, module=str(module)):
            return (module.partition(".")[0],)
        case ast.ImportFrom():
            return ("",)  # a relative import
        case ast.Try():
            return tuple(top for part in statement.body for top in _imports_of(part))
        case ast.With():
            return tuple(top for part in statement.body for top in _imports_of(part))
        case _:
            return ()


def _is_standard(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom)) and all(
        top in sys.stdlib_module_names for top in _imports_of(statement)
    )


def _line_below(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) + 1


def _sets_environment(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr in ("environ", "putenv") for node in walk(statement))
