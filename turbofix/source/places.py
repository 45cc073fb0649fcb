"""Places in the text: from ``ast`` nodes to sites, source texts, statements, blocks and comments.

``ast`` counts columns in UTF-8 bytes, sites count them in characters. Everything is worked out when it is first asked
for, one file at a time: most files of a program are never asked about.
"""

from __future__ import annotations

import ast
import contextlib
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from turbofix.records import dataclass
from turbofix.regex import NEWLINE
from turbofix.source.answers import parents_above
from turbofix.source.nodes import first_line, tokens
from turbofix.source.site import Site

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Module)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class SourceFile:
    """One parsed file of the project."""

    path: Path
    name: str
    text: str
    tree: ast.Module


@dataclass(eq=False)
class Page:
    """One file's text, line by line, with its comments."""

    module: SourceFile
    lines: list[str] = field(init=False)
    _comments: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)  # by the lines they were read in

    def __post_init__(self) -> None:
        text = self.module.text
        self.lines = NEWLINE.split(text) if "\r" in text else text.split("\n")

    def comment(self, line: int) -> str | None:
        """The comment on a line, without its ``#``."""
        if not 0 < line <= len(self.lines) or "#" not in self.lines[line - 1]:
            return None
        first, last = lines = self._statement_lines(line)
        if lines not in self._comments:
            found = self._comments[lines] = {}
            with contextlib.suppress(tokenize.TokenError, SyntaxError):  # Python's parser took it all the same
                for token in tokens("\n".join(self.lines[first - 1 : last])):
                    if token.type == tokenize.COMMENT:
                        found[first - 1 + token.start[0]] = token.string.lstrip("#").strip()
        return self._comments[lines].get(line)

    def _statement_lines(self, line: int) -> tuple[int, int]:
        """The lines of the module's statement that a line is in: to cut a whole file into tokens takes long."""
        body = self.module.tree.body
        at = bisect_right(body, line, key=first_line) - 1
        last = (body[at].end_lineno or line) if at >= 0 else 0
        if last < line:
            return line, line
        while at and (body[at - 1].end_lineno or 0) >= first_line(body[at]):  # they share a line
            at -= 1
        return first_line(body[at]), last

    def column(self, line: int, offset: int) -> int:
        """The column in characters of a byte offset in a line (counted from 1)."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


class Places:
    """All files of the program, by what stands where."""

    def __init__(self) -> None:
        self._pages: dict[int, Page] = {}
        self._sites: dict[ast.AST, Site] = {}

    def page(self, module: SourceFile) -> Page:
        """The file's page, made on first use."""
        page = self._pages.get(id(module))
        if page is None:
            page = self._pages[id(module)] = Page(module)
        return page

    def site(self, node: ast.AST, module: SourceFile) -> Site:
        """The site of a node; a ``with`` item stands where its expression stands, a keyword where its value does."""
        if isinstance(node, ast.withitem):
            node = node.context_expr
        found = self._sites.get(node)
        if found is None:
            page = self.page(module)
            line: int = getattr(node, "lineno", 1)
            end_line: int = getattr(node, "end_lineno", None) or line
            start: int = getattr(node, "col_offset", 0)
            end: int = getattr(node, "end_col_offset", None) or start
            found = self._sites[node] = Site(
                module.path, line, page.column(line, start), end_line, page.column(end_line, end), type(node).__name__
            )
        return found

    def text(self, node: ast.AST, module: SourceFile) -> str:
        """The source of a node, as it is written."""
        site = self.site(node, module)
        lines = self.page(module).lines[site.line - 1 : site.end_line]
        if not lines:
            return ""
        lines[-1] = lines[-1][: site.end_column]
        lines[0] = lines[0][site.column :]
        return "\n".join(lines)

    def comment(self, node: ast.AST, module: SourceFile) -> str | None:
        """The comment on the node's first or last line."""
        site, page = self.site(node, module), self.page(module)
        return page.comment(site.line) or page.comment(site.end_line)

    def comments_at(self, node: ast.AST, module: SourceFile) -> tuple[str, ...]:
        """The comments on the lines of the node's statement, and on the lines straight above it."""
        statement = self.statement(node, module) or node
        site = self.site(statement, module)
        page = self.page(module)
        above: list[str] = []
        line = site.line - 1
        while (comment := page.comment(line)) is not None and page.lines[line - 1].lstrip().startswith("#"):
            above.append(comment)
            line -= 1
        here = map(page.comment, range(site.line, site.end_line + 1))
        return (*above[::-1], *(each for each in here if each is not None))

    def parent(self, node: ast.AST, module: SourceFile) -> ast.AST | None:
        """The node that holds this one; None for the module."""
        return parents_above(node, module.tree).get(node)

    def ancestors(self, node: ast.AST, module: SourceFile) -> Iterator[ast.AST]:
        """The nodes that hold this one, innermost first."""
        parents = parents_above(node, module.tree)
        current = parents.get(node)
        while current is not None:
            yield current
            current = parents.get(current)

    def statement(self, node: ast.AST, module: SourceFile) -> ast.stmt | None:
        """The innermost statement that holds the node, or the node itself."""
        if isinstance(node, ast.stmt):
            return node
        return next((each for each in self.ancestors(node, module) if isinstance(each, ast.stmt)), None)

    def scope(self, node: ast.AST, module: SourceFile) -> ast.AST:
        """The function (or class, or module) whose names the node sees first. Comprehensions are not told apart."""
        child = node
        for each in self.ancestors(node, module):
            if isinstance(each, SCOPES) and not outside(child, each):
                return each
            child = each
        return module.tree

    def function(self, node: ast.AST, module: SourceFile) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The innermost ``def`` that holds the node; None at module level."""
        child = node
        for each in self.ancestors(node, module):
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and not outside(child, each):
                return each
            child = each
        return None

    def function_site(self, node: ast.AST, module: SourceFile) -> Site | None:
        """The site of the ``def`` that holds the node."""
        function = self.function(node, module)
        return self.site(function, module) if function is not None else None

    def block(self, statement: ast.stmt, module: SourceFile) -> list[ast.stmt]:
        """The list of statements that this one is a member of."""
        parent = self.parent(statement, module)
        if parent is not None:
            for block in blocks(parent):
                if any(each is statement for each in block):
                    return block
        return [statement]


def outside(child: ast.AST, scope: ast.AST) -> bool:
    """Whether a child of a function or class is evaluated outside its body: decorators, defaults, bases."""
    if isinstance(scope, ast.Lambda):
        return child is scope.args
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return not isinstance(child, ast.stmt)  # the statements right inside are the body
    return False


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements directly inside a node."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
    for handler in getattr(node, "handlers", None) or ():
        yield handler.body
    for case in getattr(node, "cases", None) or ():
        yield case.body


def contains(outer: ast.AST, inner: ast.AST, module: SourceFile) -> bool:
    """Whether ``inner`` is ``outer`` or lies in it."""
    return number_in((outer,), inner, module) is not None


def number_in(nodes: Sequence[ast.AST], inner: ast.AST, module: SourceFile) -> int | None:
    """Which of some nodes, as the statements of a block, ``inner`` is or lies in."""
    parents = parents_above(inner, module.tree)
    numbers = {each: number for number, each in enumerate(nodes)}
    current: ast.AST | None = inner
    while current is not None and current not in numbers:
        current = parents.get(current)
    return numbers[current] if current is not None else None
