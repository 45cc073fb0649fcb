"""Where the nodes of one source text stand: LibCST parses, one pass of code generation counts characters.

``Tree`` is read-only. It knows the span of every node (with and without its parentheses), its parent, and which node a
``Site`` of the model means. Offsets are characters of the text, the byte-order mark included.

An edit touches few of a file's top-level statements, and LibCST takes ten times as long as ``ast`` for each: hence one
is parsed, by itself, when something in it is asked for.
"""

from __future__ import annotations

import functools
import gc
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from pathlib import Path

import libcst as cst
from libcst._nodes.internal import CodegenState

from turbofix.edits import Refuse
from turbofix.findings import Site
from turbofix.names import Names
from turbofix.nodes import indent, parts, words

Span = tuple[int, int]
Statement = cst.BaseSmallStatement | cst.BaseCompoundStatement
Block = cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite | cst.SimpleStatementLine

_NEWLINE = re.compile(r"\r\n|\n|\r")
_BLANK = re.compile(r"[ \t\f]*")
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


class Unreadable(Refuse):
    """LibCST cannot read the file, or does not give it back unchanged; nothing can be edited in it."""


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


class Tree:
    """One text, parsed where it is asked about. Raises ``Unreadable``, as everything does that looks for a node."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.span: dict[cst.CSTNode, Span] = {}
        self.full: dict[cst.CSTNode, Span] = {}
        self.parent: dict[cst.CSTNode, cst.CSTNode] = {}
        self.starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        self._first_column = 1 if text.startswith(_BOM) else 0
        self._parts = self._parted()
        self._modules: dict[int, cst.Module] = {}
        self._index: dict[Span, list[cst.CSTNode]] = {}
        self._strings: list[Span] | None = None
        self._comments: dict[int, list[Span]] = {}
        self._names: Names | None = None

    # --- parts
    def _parted(self) -> tuple[int, ...]:
        try:
            return parts(self.text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            raise Unreadable(f"{self.path} cannot be edited: its syntax stops the parser at line {line}.") from error
        except (RecursionError, MemoryError) as error:
            raise Unreadable(f"{self.path} cannot be edited: it is nested too deeply.") from error

    def _part(self, number: int) -> Span:
        """Where a part starts, after a byte-order mark, and where it ends."""
        start = self._parts[number] + (self._first_column if number == 0 else 0)
        return start, self._parts[number + 1] if number + 1 < len(self._parts) else len(self.text)

    def _module(self, at: int) -> cst.Module:
        """The part that holds an offset, parsed. Raises ``Unreadable``."""
        number = bisect_right(self._parts, at) - 1
        module = self._modules.get(number)
        if module is None:
            module = self._modules[number] = self._read(number)
        return module

    def _read(self, number: int) -> cst.Module:
        start, end = self._part(number)
        collecting = gc.isenabled()
        gc.disable()  # parsing makes many live objects: with the collector on, it is superlinear
        try:
            module = _parsed(self.path, self.text[start:end], bisect_right(self.starts, start))
            counter = _Counter(module.default_indent, module.default_newline, start)
            module._codegen(counter)
        finally:
            if collecting:
                gc.enable()
        if "".join(counter.tokens) != self.text[start:end]:
            raise Unreadable(f"{self.path} mixes tabs, spaces or line endings in a way that cannot be edited safely.")
        self.span |= counter.span
        self.full |= counter.full
        self.parent |= counter.parent
        for node in counter.span:
            if _is_placed(type(node)):
                self._index.setdefault(self._as_ast(node), []).append(node)
        return module

    def body(self) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
        """All top-level lines of code and compound statements."""
        return [each for at in self._parts for each in self._module(at).body]

    # --- nodes and their places
    def node(self, site: Site) -> cst.CSTNode:
        """The node that ``site`` means. Raises ``Lost``."""
        start, end = self.range(site)
        self._module(start)
        kinds = _KINDS.get(site.kind)
        for node in self._index.get((start, end), ()):
            if kinds is None or isinstance(node, kinds):
                return node
        raise Lost(f"no {site.kind} stands at line {site.line}, column {site.column} of {site.path}")

    def range(self, site: Site) -> Span:
        """The offsets of a site."""
        return self.offset(site.line, site.column), self.offset(site.end_line, site.end_column)

    def offset(self, line: int, column: int) -> int:
        """The offset of a line (from 1) and column (from 0). Raises ``Lost`` beyond the text."""
        if not 1 <= line <= len(self.starts):
            raise Lost(f"{self.path} has no line {line}")
        return self.starts[line - 1] + column + (self._first_column if line == 1 else 0)

    def site(self, node: cst.CSTNode) -> Site:
        """The site of a statement or an expression."""
        start, end = self._as_ast(node)
        (line, column), (end_line, end_column) = self.line_column(start), self.line_column(end)
        name = type(node).__name__
        asynchronous = getattr(node, "asynchronous", None) is not None
        kind = {"Del": "Delete"}.get(name, f"Async{name}" if asynchronous else name)
        return Site(self.path, line, column, end_line, end_column, kind)

    def line_column(self, at: int) -> tuple[int, int]:
        """The line (from 1) and column (from 0) of an offset."""
        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] - (self._first_column if line == 1 else 0)

    def outer(self, node: cst.CSTNode) -> Span:
        """The span with the node's own parentheses, or from its first decorator on."""
        if isinstance(node, cst.BaseExpression):
            return self.full[node]
        start, end = self.span[node]
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            start = self.span[node.decorators[0]][0]
        return start, end

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
        """The nearest ancestor of one of these types."""
        above = self.parent.get(node)
        while above is not None and not isinstance(above, types):
            above = self.parent.get(above)
        return above

    def depth(self, node: cst.CSTNode) -> int:
        """How many nodes stand above this one."""
        depth = 0
        while node in self.parent:
            node = self.parent[node]
            depth += 1
        return depth

    def statement(self, site: Site) -> Statement:
        """The innermost statement that holds ``site``; an ``elif`` belongs to its ``if``. Raises ``Lost``."""
        node: cst.CSTNode | None
        try:
            node = self.node(site)
        except Lost:
            node = self._statement_around(*self.range(site))
        while node is not None and not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            node = self.parent.get(node)
        while isinstance(node, cst.If) and isinstance(self.parent[node], cst.If):
            node = self.parent[node]
        if not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            raise Lost(f"no statement stands at line {site.line} of {site.path}")
        return node

    def _statement_around(self, start: int, end: int) -> cst.CSTNode | None:
        around = []
        for node in self.span:
            if isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                first, last = self.outer(node)
                if first <= start and end <= last:
                    around.append((last - first, first, node))
        return min(around, key=lambda each: each[:2])[2] if around else None

    def holder(self, statement: Statement) -> Block | cst.BaseCompoundStatement:
        """The line (or one-line suite) of a simple statement; a compound statement itself."""
        if isinstance(statement, cst.BaseCompoundStatement):
            return statement
        above = self.parent[statement]
        assert isinstance(above, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        return above

    def leading(self, node: cst.CSTNode) -> str:
        """The indentation of the line on which ``node`` starts."""
        return self.indentation(self.outer(node)[0])

    def block_unit(self, statement: cst.CSTNode) -> str:
        """One unit of indentation as the block of the statement has it (the file's at module level)."""
        block = self.up(statement, cst.IndentedBlock)
        if not isinstance(block, cst.IndentedBlock):
            return self.default_indent
        return block.indent or self._module(self.span[statement][0]).default_indent

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
        first = _NEWLINE.search(self.text)
        return first.group() if first else "\n"

    @property
    def default_indent(self) -> str:
        """The file's unit of indentation: its first one."""
        return indent(self.text)

    @property
    def strings(self) -> list[Span]:
        """The strings that span several lines, in order."""
        if self._strings is None:
            strings = ((word.start, word.end) for word in words(self.text) if word.is_string)
            self._strings = [span for span in strings if _NEWLINE.search(self.text, *span)]
        return self._strings

    def comments_in(self, start: int, end: int) -> list[Span]:
        """The comments that start in a range, in order."""
        if "#" not in self.text[start:end]:  # it need not be cut into words to see that there are none
            return []
        first, last = bisect_right(self._parts, start) - 1, bisect_left(self._parts, end)
        within = (span for number in range(max(first, 0), last) for span in self._comments_of(number))
        return [span for span in within if start <= span[0] < end]

    def _comments_of(self, number: int) -> list[Span]:
        """The comments of a part."""
        found = self._comments.get(number)
        if found is None:
            start, end = self._part(number)
            here = words(self.text[start:end])
            found = [(start + word.start, start + word.end) for word in here if word.is_comment]
            self._comments[number] = found
        return found

    def in_string(self, at: int) -> bool:
        """Whether the offset lies inside a string of several lines."""
        return any(start < at < end for start, end in self.strings)

    @property
    def width(self) -> int:
        """The length of the longest line."""
        return max(len(line) for line in _NEWLINE.split(self.text))

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
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        line = first + error.raw_line - 1
        raise Unreadable(f"{path} cannot be edited: its syntax stops the parser at line {line}.") from error
    except RecursionError as error:
        raise Unreadable(f"{path} cannot be edited: it is nested too deeply.") from error
