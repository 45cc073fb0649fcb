"""The text of one file as a tree, for what a rewrite must know beyond the model: who else reads a name, and where."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from turbofix.domain.scopes import ModuleFile
from turbofix.editing.edit import Edit, Refuse
from turbofix.editing.imports import Names
from turbofix.findings import Site
from turbofix.regex import regex
from turbofix.source.answers import everything, kept
from turbofix.source.names import Bindings, reads_of
from turbofix.source.nodes import parse, walk
from turbofix.source.places import LOOPS, Places
from turbofix.training.model import TrainingProgram

BOM = "\ufeff"
ALL_NAMES = regex(r"\b(locals|vars)\(\)")


class Page:
    """One file: its tree, and the places of its nodes."""

    def __init__(self, module: ModuleFile) -> None:
        self.module = module
        self.places = Places()
        self.bindings = Bindings(self.places)
        self._lines: dict[int, list[ast.AST]] = {}
        self._reads: dict[tuple[str, ast.AST], list[ast.Name | ast.Attribute]] = {}
        self._inner: dict[tuple[str, ast.AST], bool] = {}

    def node(self, site: Site) -> ast.AST:
        """The node that a site names. Raises ``Refuse`` where there is none."""
        if not self._lines:
            for node in everything(self.module.tree):
                self._lines.setdefault(getattr(node, "lineno", 0), []).append(node)
        for node in self._lines.get(site.line, ()):
            if type(node).__name__ == site.kind and self.site(node) == site:
                return node
        raise Refuse(f"the place on line {site.line} was not found again")

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        found = self.places.statement(node, self.module)
        assert found is not None
        return found

    def site(self, node: ast.AST) -> Site:
        """The site of a node."""
        return self.places.site(node, self.module)

    def text(self, node: ast.AST) -> str:
        """The source of a node."""
        return self.places.text(node, self.module)

    def operand(self, node: ast.AST) -> str:
        """The source of an expression, in parentheses where a method could not be written straight behind it."""
        closed = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        return self.text(node) if closed else f"({self.text(node)})"

    def above(self, node: ast.AST) -> list[ast.AST]:
        """The nodes that hold this one, innermost first."""
        return list(self.places.ancestors(node, self.module))

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that holds this one directly."""
        return self.places.parent(node, self.module)

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, class or module whose names the node sees first."""
        return self.places.scope(node, self.module)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements of the block that a statement stands in."""
        return self.places.block(statement, self.module)

    def holds(self, outer: ast.AST, inner: ast.AST) -> bool:
        """Whether ``inner`` is ``outer``, or lies in it."""
        return inner is outer or any(each is outer for each in self.above(inner))

    def loop_of(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop, of the same function, that runs a node."""
        scope = self.scope(node)
        child = node
        for each in self.above(node):
            if each is scope:
                return None
            if isinstance(each, LOOPS) and any(child is statement for statement in each.body):
                return each
            child = each
        return None

    @property
    def names(self) -> Names:
        """What names the file binds and uses."""
        return kept(self.module.tree, "names", lambda: Names(self.module.text))

    def free_name(self, wanted: str) -> str:
        """``wanted``, or ``wanted_2``, ... : a name that nothing in the file uses."""
        name, number = wanted, 1
        while self.names.is_used(name):
            number += 1
            name = f"{wanted}_{number}"
        return name

    def is_seldom(self, node: ast.AST, loop: ast.AST, than: ast.AST) -> bool:
        """Whether a node stands under an ``if`` that counts the steps (``step % n``) and does not hold ``than`` too."""
        child = node
        for each in self.above(node):
            if each is loop:
                return False
            if isinstance(each, ast.If) and child is not each.test and counts_steps(each.test):
                return not self.holds(each, than)
            child = each
        return False

    def reads(self, name: str, scope: ast.AST) -> list[ast.Name | ast.Attribute]:
        """Every place of a scope that reads a name (nested functions included), in the order of the source."""
        key = (name, scope)
        if key not in self._reads:
            found = [read for statement in _body(scope) for read in reads_of(name, statement)]
            self._reads[key] = sorted(found, key=lambda read: (read.lineno, read.col_offset))
        return self._reads[key]

    def writes(self, name: str, scope: ast.AST) -> list[ast.AST]:
        """Every statement of a scope that writes a name."""
        return self.bindings.writes(scope, name)

    def owner(self, name: str, node: ast.AST) -> ast.AST:
        """The scope that owns a plain name as it is used at ``node``. Raises ``Refuse`` where others use it, too."""
        if (reason := self.why_shared(name, node)) is not None:
            raise Refuse(reason)
        return self.scope(node)

    def why_shared(self, name: str, node: ast.AST) -> str | None:
        """Why other code than the scope of a node may read or write a plain name."""
        scope = self.scope(node)
        if scope is not self.module.tree and ALL_NAMES.search(self.text(scope)):
            return f"`{name}` may be read among all names that there are"
        if isinstance(scope, ast.ClassDef) or (
            scope is not self.module.tree and not self.bindings.is_local(name, scope)
        ):
            return f"`{name}` is a global, which other code may read"
        if name in self.bindings.captured(scope) or self._is_read_by_functions(name, scope):
            return f"a function defined beside it uses `{name}` too"
        return None

    def _is_read_by_functions(self, name: str, scope: ast.AST) -> bool:
        """Whether a function nested anywhere below the scope sees this very name."""
        key = (name, scope)
        if key not in self._inner:
            names = (node for node in walk(scope) if isinstance(node, ast.Name) and node.id == name)
            inner = (found for node in names if (found := self.scope(node)) is not scope)
            self._inner[key] = any(not self.bindings.is_local(name, each) for each in inner)
        return self._inner[key]


Pages = Callable[[Site], Page]
"""The page of the file that a site stands in."""


def counts_steps(test: ast.expr) -> bool:
    """Whether a test takes the remainder of something: ``step % n == 0``."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in walk(test))


def page_of(edit: Edit, site: Site) -> Page:
    """The page of the file that a site stands in. Raises ``Refuse`` where the file cannot be edited."""
    edit.text(site)
    text = edit.before_text(site.path)
    assert text is not None
    return _page(site.path, text)


@lru_cache(maxsize=16)
def _page(path: Path, text: str) -> Page:
    text = text.removeprefix(BOM)
    return Page(ModuleFile(path, path.stem, text, parse(text)))


def pages_of(program: TrainingProgram) -> Pages:
    """The pages of a program's files, as they were read. Raises ``Refuse`` for a file that is none of them."""

    def page(site: Site) -> Page:
        module = program.modules.by_path.get(site.path)
        if module is None:
            raise Refuse(f"{site.path.name} is no file of the program")
        return kept(module.tree, f"page of {module.path}", lambda: Page(module))  # equal files share a tree

    return page


def _body(scope: ast.AST) -> Iterator[ast.AST]:
    yield from getattr(scope, "body", [])
