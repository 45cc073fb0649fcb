"""Where the nodes of one source text stand: ``ast`` knows the statements, LibCST what is inside of one.

``Tree`` is read-only. It knows the statements and their blocks, the span of every node inside of one (with and without
its parentheses), its parent, and which node a ``Site`` of the model means. Offsets are characters of the text, the
byte-order mark included.

An edit touches few of a file's statements, and LibCST takes ten times as long as ``ast`` for each. Hence one is parsed,
by itself, when something in it is asked for, and one pass of code generation counts its characters. Of a compound
statement that is all but its bodies: each is one long name there, so that offsets hold.
"""

from __future__ import annotations

import ast
import functools
import gc
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from turbofix.editing.changes import Refuse
from turbofix.editing.cst import CodegenState, cst
from turbofix.editing.imports import Names
from turbofix.regex import NEWLINE, regex
from turbofix.source.nodes import children, indent, parse, readable, words
from turbofix.source.site import Site

Span = tuple[int, int]

_SEMICOLON = regex(r"(?:[ \t\f]|\\(?:\r\n|\n|\r))*;(?:[ \t\f]|\\(?:\r\n|\n|\r))*")
_BLANK = regex(r"[ \t\f]*")
_BOM = "\ufeff"

# What LibCST makes of the classes of ``ast``. True, False and None are names there; adjacent strings are one node.
_KINDS: dict[str, tuple[type[cst.CSTNode], ...]] = {
    "Constant": (
        cst.SimpleString,
        cst.ConcatenatedString,
        cst.Integer,
        cst.Float,
        cst.Imaginary,
        cst.Name,
        cst.Ellipsis,
    ),
    "JoinedStr": (cst.FormattedString, cst.ConcatenatedString),
    "TemplateStr": (cst.TemplatedString, cst.ConcatenatedString),
    "FormattedValue": (cst.FormattedStringExpression,),
    "BinOp": (cst.BinaryOperation,),
    "BoolOp": (cst.BooleanOperation,),
    "UnaryOp": (cst.UnaryOperation,),
    "Compare": (cst.Comparison,),
    "YieldFrom": (cst.Yield,),
    "Starred": (cst.StarredElement, cst.Arg),
    "keyword": (cst.Arg,),
    "arg": (cst.Param,),
    "alias": (cst.ImportAlias,),
    "ExceptHandler": (cst.ExceptHandler, cst.ExceptStarHandler),
    "AsyncFor": (cst.For,),
    "AsyncWith": (cst.With,),
    "AsyncFunctionDef": (cst.FunctionDef,),
    "Delete": (cst.Del,),
}
_SAME_NAME = """
    Name Attribute Call IfExp Lambda Dict Set List Tuple ListComp SetComp DictComp GeneratorExp Await Yield NamedExpr
    Slice Subscript Expr Assign AugAssign AnnAssign Return Raise Assert Pass Break Continue Global Nonlocal Import
    ImportFrom TypeAlias If For While With Try TryStar FunctionDef ClassDef Match
"""
_KINDS |= {name: (getattr(cst, name),) for name in _SAME_NAME.split()}
_PLACED = (
    cst.BaseExpression,
    cst.BaseSmallStatement,
    cst.BaseCompoundStatement,
    cst.Arg,
    cst.Param,
    cst.ImportAlias,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.FormattedStringExpression,
    cst.Slice,
)


_BLOCKS = "If For AsyncFor While With AsyncWith Try TryStar FunctionDef AsyncFunctionDef ClassDef Match"
COMPOUND: tuple[type[ast.stmt], ...] = tuple(getattr(ast, name) for name in _BLOCKS.split() if hasattr(ast, name))
"""The statements with blocks in them."""
_STRINGS = tuple(getattr(ast, name) for name in ("JoinedStr", "TemplateStr") if hasattr(ast, name))
# Stands above a compound statement that is indented, for LibCST to read it.
_HEAD = "if _:\n"


class Unreadable(Refuse):
    """The file or the statement cannot be read, or LibCST does not give it back unchanged: it cannot be edited."""


class Lost(Refuse):
    """No node of the tree stands where a ``Site`` says."""


class _Counter(CodegenState):
    """Counts characters while LibCST writes the source, and notes where each node starts and ends."""

    def __init__(self, indent: str, newline: str, start: int) -> None:
        super().__init__(default_indent=indent, default_newline=newline)
        self.at = start
        self.full: dict[cst.CSTNode, Span] = {}
        self.span: dict[cst.CSTNode, Span] = {}
        self.parent: dict[cst.CSTNode, cst.CSTNode] = {}
        self._open: list[tuple[int, cst.CSTNode]] = []

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.tokens.append(token)
            self.at += len(token)

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.at += len(value)

    def pop_trailing_newline(self) -> None:
        if self.tokens:
            self.at -= len(self.tokens.pop())

    def before_codegen(self, node: cst.CSTNode) -> None:
        if self._open:
            self.parent[node] = self._open[-1][1]
        self._open.append((self.at, node))

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self._open.pop()[0]
        self.full[node] = (start, self.at)
        self.span.setdefault(node, (start, self.at))

    def record_syntactic_position(  # type: ignore[override]  # a context manager too
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Recording:
        return _Recording(self, node, start_node, end_node)


class _Recording:
    """Notes the place of a node without its surroundings, once for each: a generator would take three times as long."""

    __slots__ = ("counter", "end_node", "node", "start", "start_node")

    def __init__(
        self, counter: _Counter, node: cst.CSTNode, start_node: cst.CSTNode | None, end_node: cst.CSTNode | None
    ) -> None:
        self.counter, self.node, self.start_node, self.end_node = counter, node, start_node, end_node

    def __enter__(self) -> None:
        self.start = self.counter.at

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        span = self.counter.span
        span[self.node] = (
            self.start if self.start_node is None else span[self.start_node][0],
            self.counter.at if self.end_node is None else span[self.end_node][1],
        )


class Block(NamedTuple):
    """Statements that stand under one another, or behind one header on its line (``one_line``).

    ``owner`` is the statement whose block it is, None for the file's own. ``depth`` is how many nodes stand above what
    holds the statements, as LibCST counts them.
    """

    owner: ast.stmt | None
    statements: Sequence[ast.stmt]
    depth: int
    one_line: bool


class Tree:
    """One text, parsed where it is asked about. Raises ``Unreadable``, as everything does that looks for a node."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.span: dict[cst.CSTNode, Span] = {}
        self.full: dict[cst.CSTNode, Span] = {}
        self.parent: dict[cst.CSTNode, cst.CSTNode] = {}
        self.starts = [0, *(match.end() for match in NEWLINE.finditer(text))]
        self._first_column = 1 if text.startswith(_BOM) else 0
        self._ascii = text.isascii()
        self._module = self._parsed()
        self._blocks: dict[ast.stmt, Block] = {}
        self._there: set[ast.stmt] = set()
        self._roots: dict[cst.CSTNode, ast.stmt] = {}
        self._index: dict[Span, list[cst.CSTNode]] = {}
        self._strings: list[Span] | None = None
        self._comments: list[Span] | None = None
        self._names: Names | None = None

    def _parsed(self) -> ast.Module:
        try:
            return parse(self.text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            raise Unreadable(f"{self.path} cannot be edited: its syntax stops the parser at line {line}.") from error
        except (RecursionError, MemoryError) as error:
            raise Unreadable(f"{self.path} cannot be edited: it is nested too deeply.") from error

    # --- statements
    def statement(self, site: Site) -> ast.stmt:
        """The innermost statement that holds ``site``; an ``elif`` belongs to its ``if``. Raises ``Lost``."""
        found = self._around(*self.range(site))
        if found is None:
            raise Lost(f"no statement stands at line {site.line} of {site.path}")
        return found

    def block(self, statement: ast.stmt) -> Block:
        """The block that a statement stands in. Raises ``Unreadable``."""
        if statement not in self._blocks:
            top = self._within(self._module.body, *self.outer(statement))
            assert top is not None
            self._enter(Block(None, self._module.body, 0, one_line=False), top)
        return self._blocks[statement]

    def _enter(self, block: Block, statement: ast.stmt) -> None:
        """Note the block of a statement and of all those in it."""
        self._blocks[statement] = block
        for levels, statements in self._bodies(statement):
            start = self.outer(statements[0])[0]
            one_line = not self.starts_line(start) or self._is_joined(start)
            if not one_line and not self._pad(start).startswith(self._pad(self.outer(statement)[0])):
                raise Unreadable(f"{self.path} mixes tabs and spaces in a way that cannot be edited safely.")
            inner = Block(statement, statements, self.depth(statement) + levels, one_line)
            for each in statements:
                self._enter(inner, each)

    def _bodies(self, statement: ast.stmt) -> Iterator[tuple[int, list[ast.stmt]]]:
        """The blocks right in a statement, in order, and how many levels LibCST counts down to each."""
        levels = 1
        following: ast.stmt | None = statement if isinstance(statement, COMPOUND) else None
        while following is not None:
            parts = vars(following)
            if "body" in parts:
                yield levels, parts["body"]
            for part in (*parts.get("handlers", ()), *parts.get("cases", ())):
                yield levels + 1, part.body
            other = parts.get("orelse")
            following = other[0] if other and self.text.startswith("elif", self.outer(other[0])[0]) else None
            if other and following is None:
                yield levels + 1, other
            if parts.get("finalbody"):
                yield levels + 1, parts["finalbody"]
            levels += 1

    def _around(self, start: int, end: int) -> ast.stmt | None:
        """The innermost statement that holds a range."""
        found = inner = self._within(self._module.body, start, end)
        while inner is not None:
            found = inner
            blocks = (self._within(statements, start, end) for _, statements in self._bodies(found))
            inner = next((each for each in blocks if each is not None), None)
        return found

    def _within(self, statements: Sequence[ast.stmt], start: int, end: int) -> ast.stmt | None:
        """The statement of a block that holds a range."""
        number = bisect_right(statements, start, key=lambda each: self.outer(each)[0])
        return statements[number - 1] if number and end <= self.outer(statements[number - 1])[1] else None

    def _is_joined(self, start: int) -> bool:
        """Whether the line that holds an offset goes on from the one above it."""
        first, last = self.line_start(max(self.line_start(start) - 1, 0)), self.line_start(start)
        return self.text[first:last].rstrip("\r\n").endswith("\\") and not self.comments_in(first, last)

    def shares_line(self, statement: ast.stmt, *, from_left: bool) -> bool:
        """Whether a simple statement has a neighbour on its line, on one side; in a block on one line, it has."""
        block = self.block(statement)
        if block.one_line:
            return True
        other = block.statements.index(statement) + (-1 if from_left else 1)
        if not 0 <= other < len(block.statements):
            return False
        first, second = sorted((self.outer(statement), self.outer(block.statements[other])))
        return _SEMICOLON.fullmatch(self.text, first[1], second[0]) is not None

    # --- nodes and their places
    def node(self, site: Site) -> cst.CSTNode:
        """The node that ``site`` means. Raises ``Lost``."""
        start, end = self.range(site)
        statement = self._around(start, end)
        if statement is not None:
            self.block(statement)
            self._read(statement)
        kinds = _KINDS.get(site.kind)
        for node in self._index.get((start, end), ()):
            if kinds is None or isinstance(node, kinds):
                return node
        raise Lost(f"no {site.kind} stands at line {site.line}, column {site.column} of {site.path}")

    def _read(self, statement: ast.stmt) -> None:
        """Have LibCST parse a statement, all but its bodies. Raises ``Unreadable``."""
        if statement in self._there:
            return
        start, end = self.outer(statement)
        pad = self._pad(start) if isinstance(statement, COMPOUND) else ""
        bodies = [(self.outer(each[0])[0], self.outer(each[-1])[1]) for _, each in self._bodies(statement)]
        code, at = (_HEAD + pad if pad else ""), start
        before = len(code)
        for first, last in bodies:
            code += self.text[at:first] + "_" * (last - first)
            at = last
        code += self.text[at:end]
        collecting = gc.isenabled()
        gc.disable()  # parsing makes many live objects: with the collector on, it is superlinear
        try:
            module = _parsed(self.path, code, bisect_right(self.starts, start) - bool(pad))
            counter = _Counter(module.default_indent, module.default_newline, start - before)
            module._codegen(counter)
        finally:
            if collecting:
                gc.enable()
        if "".join(counter.tokens) not in (code, readable(code)):
            raise Unreadable(f"{self.path} mixes tabs, spaces or line endings in a way that cannot be edited safely.")
        self._there.add(statement)
        self._roots[_root(module, nested=bool(pad))] = statement
        self.span |= counter.span
        self.full |= counter.full
        self.parent |= counter.parent
        for node, span in counter.span.items():
            if _is_placed(type(node)) and span[0] >= start and span not in bodies:
                self._index.setdefault(self._as_ast(node), []).append(node)

    def range(self, site: Site) -> Span:
        """The offsets of a site."""
        return self.offset(site.line, site.column), self.offset(site.end_line, site.end_column)

    def offset(self, line: int, column: int) -> int:
        """The offset of a line (from 1) and column (from 0). Raises ``Lost`` beyond the text."""
        if not 1 <= line <= len(self.starts):
            raise Lost(f"{self.path} has no line {line}")
        return self.starts[line - 1] + column + (self._first_column if line == 1 else 0)

    def _offset(self, line: int, column: int) -> int:
        """The offset of a line and a column as ``ast`` has them, in bytes."""
        start = self.offset(line, 0)
        if self._ascii:
            return start + column
        return start + len(self.text[start : self.line_end(start)].encode()[:column].decode())

    def site(self, node: cst.CSTNode | ast.stmt) -> Site:
        """The site of a statement or an expression."""
        start, end = self._own(node) if isinstance(node, ast.stmt) else self._as_ast(node)
        (line, column), (end_line, end_column) = self.line_column(start), self.line_column(end)
        name = type(node).__name__
        asynchronous = getattr(node, "asynchronous", None) is not None
        kind = {"Del": "Delete"}.get(name, f"Async{name}" if asynchronous else name)
        return Site(self.path, line, column, end_line, end_column, kind)

    def line_column(self, at: int) -> tuple[int, int]:
        """The line (from 1) and column (from 0) of an offset."""
        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] - (self._first_column if line == 1 else 0)

    def outer(self, node: cst.CSTNode | ast.stmt) -> Span:
        """The span with the node's own parentheses, or from its first decorator on."""
        if isinstance(node, ast.stmt):
            start, end = self._own(node)
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            return self._sign_of(decorators[0]) if decorators else start, end
        if isinstance(node, cst.BaseExpression):
            return self.full[node]
        start, end = self.span[node]
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            start = self.span[node.decorators[0]][0]
        return start, end

    def _own(self, node: ast.stmt | ast.expr) -> Span:
        """The span that ``ast`` gives a node."""
        start = self._offset(node.lineno, node.col_offset)
        return start, self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _sign_of(self, decorator: ast.expr) -> int:
        """Where the ``@`` of a decorator stands: it begins its line, or one above where there are parentheses."""
        line = self.line_start(self._own(decorator)[0])
        while not self.text.startswith("@", line + len(self.indentation(line))):
            line = self.line_start(line - 1)
        return line + len(self.indentation(line))

    def _as_ast(self, node: cst.CSTNode) -> Span:
        """The span as ``ast`` has it: a tuple or generator has its parentheses, a parameter ends before its default."""
        start, end = self.span[node]
        if isinstance(node, (cst.Tuple, cst.GeneratorExp)):
            if node.lpar:
                return self.full[node.lpar[-1]][0], self.full[node.rpar[0]][1]
            call = self._call_of(node) if isinstance(node, cst.GeneratorExp) else None
            if call is not None:
                return self.full[call.func][1] + len(call.whitespace_after_func.value), self.span[call][1]  # type: ignore[attr-defined]
        if isinstance(node, cst.Param):
            name = self.span[node.name]
            return name[0], name[1] if node.annotation is None else self.full[node.annotation][1]
        return start, end

    def _call_of(self, node: cst.CSTNode) -> cst.Call | None:
        argument = self.parent.get(node)
        call = self.parent.get(argument) if isinstance(argument, cst.Arg) else None
        return call if isinstance(call, cst.Call) else None

    def up(self, node: cst.CSTNode, *types: type[cst.CSTNode]) -> cst.CSTNode | None:
        """The nearest ancestor of one of these types, within the statement."""
        above = self.parent.get(node)
        while above is not None and not isinstance(above, types):
            above = self.parent.get(above)
        return above

    def depth(self, node: cst.CSTNode | ast.stmt) -> int:
        """How many nodes stand above this one, as LibCST counts them."""
        if isinstance(node, ast.stmt):
            block = self.block(node)
            return block.depth + (1 if block.one_line or isinstance(node, COMPOUND) else 2)
        depth = 0
        while node not in self._roots:
            node = self.parent[node]
            depth += 1
        return depth + self.depth(self._roots[node])

    def leading(self, node: cst.CSTNode | ast.stmt) -> str:
        """The indentation of the line on which ``node`` starts."""
        return self.indentation(self.outer(node)[0])

    def block_unit(self, statement: ast.stmt) -> str:
        """One unit of indentation as the block of the statement has it (the file's at module level)."""
        block = self.block(statement)
        while block.owner is not None and block.one_line:
            block = self.block(block.owner)
        if block.owner is None:
            return self.default_indent
        return self._pad(self.outer(block.statements[0])[0])[len(self._pad(self.outer(block.owner)[0])) :]

    def _pad(self, at: int) -> str:
        """The indentation of a line as Python counts it: from the last form feed on."""
        return self.indentation(at).rpartition("\f")[2]

    # --- text
    def source(self, node: cst.CSTNode) -> str:
        """The text of a node, with its own parentheses."""
        start, end = self.outer(node)
        return self.text[start:end]

    def line_start(self, at: int) -> int:
        """The start of the line that holds the offset (after a byte-order mark)."""
        line = bisect_right(self.starts, at) - 1
        return self.starts[line] + (self._first_column if line == 0 else 0)

    def line_end(self, at: int) -> int:
        """The end of the line that holds the offset, its newline included."""
        line = bisect_right(self.starts, at)
        return self.starts[line] if line < len(self.starts) else len(self.text)

    def code_end(self, at: int) -> int:
        """The end of the code on the line that holds the offset: before its comment and its newline."""
        start, end = self.line_start(at), self.line_end(at)
        end = min((first for first, _last in self.comments_in(start, end)), default=end)
        return start + len(self.text[start:end].rstrip())

    def indentation(self, at: int) -> str:
        """The white space that starts the line of the offset."""
        start = self.line_start(at)
        blank = _BLANK.match(self.text, start)
        return self.text[start : blank.end()] if blank else ""

    def starts_line(self, at: int) -> bool:
        """Whether nothing but white space stands before the offset on its line."""
        return not self.text[self.line_start(at) : at].strip(" \t\f")

    def newline(self, at: int) -> str:
        """The newline of the line that holds the offset, or of the line before, or the file's."""
        for place in (at, max(self.line_start(at) - 1, 0)):
            end = self.line_end(place)
            for ending in ("\r\n", "\n", "\r"):
                if self.text.endswith(ending, 0, end):
                    return ending
        first = NEWLINE.search(self.text)
        return first.group() if first else "\n"

    @property
    def default_indent(self) -> str:
        """The file's unit of indentation: its first one."""
        return indent(self.text)

    @property
    def strings(self) -> list[Span]:
        """The strings that span several lines, in order."""
        if self._strings is None:
            pieces = (word for span in self._quoted for word in self._words(span) if word[0])
            self._strings = [span for _, span in pieces if NEWLINE.search(self.text, *span)]
        return self._strings

    def comments_in(self, start: int, end: int) -> list[Span]:
        """The comments that start in a range, in order."""
        if "#" not in self.text[start:end]:
            return []
        if self._comments is None:
            self._comments = list(self._find_comments())
        return self._comments[bisect_left(self._comments, (start,)) : bisect_left(self._comments, (end,))]

    def _find_comments(self) -> Iterator[Span]:
        """All comments: what begins with a ``#`` that is in no string, and those between strings."""
        quoted = self._quoted
        at = self.text.find("#")
        while at >= 0:
            number = bisect_left(quoted, (at,))
            if number and at < quoted[number - 1][1]:
                yield from (span for is_string, span in self._words(quoted[number - 1]) if not is_string)
                end = quoted[number - 1][1]
            else:
                newline = NEWLINE.search(self.text, at)
                end = newline.start() if newline else len(self.text)
                yield at, end
            at = self.text.find("#", end)

    @functools.cached_property
    def _quoted(self) -> list[Span]:
        """Where there are strings with a ``#`` or a newline in them, or several behind one another, in order."""
        found: list[Span] = []
        nodes: list[ast.AST] = [self._module]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.Constant):
                value = node.value
                marked = (isinstance(value, str) and "#" in value) or (isinstance(value, bytes) and b"#" in value)
                if marked or node.end_lineno != node.lineno:
                    found.append(self._own(node))
            elif isinstance(node, _STRINGS):
                found.append(self._own(node))
            else:
                nodes += children(node)
        return sorted(found)

    def _words(self, span: Span) -> Iterator[tuple[bool, Span]]:
        """The strings (True) and the comments of strings that stand behind one another."""
        start, end = span
        for word in words(f"({self.text[start:end]}\n)"):  # in parentheses, lines may be indented as they like
            if word.is_string or word.is_comment:
                yield word.is_string, (start + word.start - 1, start + word.end - 1)

    def in_string(self, at: int) -> bool:
        """Whether the offset lies inside a string of several lines."""
        return any(start < at < end for start, end in self.strings)

    @property
    def width(self) -> int:
        """The length of the longest line."""
        return max(len(line) for line in NEWLINE.split(self.text))

    @property
    def names(self) -> Names:
        """What the file imports and binds."""
        if self._names is None:
            self._names = Names(self.text[self._first_column :])
        return self._names


class Trees:
    """The last parses, so that codemods that leave a text as it is share one."""

    def __init__(self, keep: int = 16) -> None:
        self._keep = keep
        self._trees: OrderedDict[tuple[Path, str], Tree] = OrderedDict()

    def get(self, path: Path, text: str) -> Tree:
        """The tree of a text. Raises ``Unreadable``."""
        key = (path, text)
        if key in self._trees:
            self._trees.move_to_end(key)
            return self._trees[key]
        tree = self._trees[key] = Tree(path, text)
        while len(self._trees) > self._keep:
            self._trees.popitem(last=False)
        return tree


@functools.cache
def _is_placed(kind: type[cst.CSTNode]) -> bool:
    """Whether nodes of this class have a place in ``ast`` (asked per class: LibCST's classes are slow to test)."""
    return issubclass(kind, _PLACED)


SHARED = Trees()
"""The parses that all edits of this process share unless they are given others."""


def _parsed(path: Path, text: str, first: int) -> cst.Module:
    """A part of a file that begins at line ``first``."""
    try:
        try:
            return cst.parse_module(text)
        except cst.ParserSyntaxError:
            if (old := readable(text)) == text:
                raise
            return cst.parse_module(old)
    except cst.ParserSyntaxError as error:
        line = first + error.raw_line - 1
        raise Unreadable(f"{path} cannot be edited: its syntax stops the parser at line {line}.") from error
    except RecursionError as error:
        raise Unreadable(f"{path} cannot be edited: it is nested too deeply.") from error


def _root(module: cst.Module, *, nested: bool) -> cst.CSTNode:
    """The statement that a module was made of, which is ``nested`` in another one."""
    line: cst.BaseStatement | cst.BaseSmallStatement = module.body[0]
    if nested:
        assert isinstance(line, cst.If)
        line = line.body.body[0]
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
