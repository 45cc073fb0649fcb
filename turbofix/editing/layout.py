"""How new code is laid out where it goes: functions from a tree and a place to changes of text.

All are pure; what is not safe raises ``Refuse``. What stands between brackets is in ``brackets``.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from turbofix.editing.brackets import has_newline, runs
from turbofix.editing.changes import Change, Refuse, Role, Shift
from turbofix.editing.cst import cst
from turbofix.editing.positions import COMPOUND, Tree
from turbofix.source.magics import FENCE_LINE
from turbofix.source.nodes import walk
from turbofix.source.site import Site

_HOLE = "_turbofix_hole"
_INDENT = "    "  # how codemods indent the lines that they hand over
_JUMPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
# Statements that take a tuple without parentheses.
_BARE = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return, cst.Expr, cst.For)


# --- expressions --------------------------------------------------------------------------------------------------


def replaced(tree: Tree, node: cst.CSTNode, text: str) -> list[Change]:
    """``text`` instead of a node (an expression with its own parentheses)."""
    start, end = tree.outer(node)
    if tree.text[start:end] == text:
        return []
    if isinstance(node, cst.BaseExpression):
        text = _fitting(tree, node, _HOLE, text, (text, f"({text})"))
    return [Change(start, end, text, depth=tree.depth(node))]


def extended(tree: Tree, node: cst.CSTNode, text: str) -> list[Change]:
    """``text`` behind an expression, which keeps its meaning: in parentheses where binding asks."""
    if not isinstance(node, cst.BaseExpression):
        raise Refuse(f"line {tree.site(node).line} has no expression to extend")
    start, end = tree.outer(node)
    source, depth = tree.text[start:end], tree.depth(node) + 1
    forms = (("", text), ("(", f"){text}"), ("(", f"{text})"), ("((", f"){text})"))
    written = _fitting(tree, node, _HOLE + text, source, [left + source + right for left, right in forms])
    left, right = next(form for form in forms if form[0] + source + form[1] == written)
    opening = [Change(start, start, left, Role.OPEN, depth, anchor=start)] if left else []
    return [*opening, Change(end, end, right, Role.SUFFIX, depth, anchor=start)]


def handed(tree: Tree, node: cst.CSTNode, head: str, tail: str) -> list[Change]:
    """A call of which an expression is the first argument."""
    (start, end), depth = tree.outer(node), tree.depth(node)
    return [
        Change(start, start, head, Role.OPEN, depth, anchor=start),
        Change(end, end, tail, Role.SUFFIX, depth, anchor=start),
    ]


def cut(tree: Tree, node: cst.CSTNode, part: cst.CSTNode) -> Change:
    """Nothing instead of what follows on the part of an expression that it begins with."""
    (start, end), (first, last) = tree.span[node], tree.outer(part)
    if first != start or not last < end:
        raise Refuse(f"line {tree.site(node).line} does not begin with what is to stay of it")
    if tree.comments_in(last, end):
        raise Refuse(f"a comment stands in what would go of line {tree.site(node).line}")
    return Change(last, end, "", depth=tree.depth(node))


def _fitting(tree: Tree, node: cst.BaseExpression, pattern: str, part: str, candidates: Iterable[str]) -> str:
    """The first way to write ``pattern``, ``part`` in its hole, that keeps its meaning in the place of ``node``."""
    root = node
    candidates = list(candidates)
    above = tree.parent.get(node)
    while above is not None and not isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
        if isinstance(above, cst.BaseExpression):
            root = above
        if isinstance(above, cst.FormattedStringExpression) and above.equal is not None:
            raise Refuse(f"the f-string on line {tree.site(node).line} shows the source of the expression (`=`)")
        if isinstance(above, (cst.FormattedString, cst.TemplatedString)):
            # What an older Python than ours cannot read there.
            new = candidates[0].replace(tree.source(node), "")
            if any(sign in new for sign in (above.quote[0], "\\", "\n", "#")):
                raise Refuse(f"the new code does not fit into the f-string on line {tree.site(node).line}")
        above = tree.parent.get(above)
    (start, end), (first, last) = tree.outer(node), tree.outer(root)
    head, tail = tree.text[first:start], tree.text[end:last]
    frame = ("(", "\n)") if isinstance(tree.parent.get(root), _BARE) else ("_(", "\n, _)")

    def parsed(text: str) -> ast.expr | None:
        return _parsed(frame[0] + text + frame[1])

    hole, inner = _parsed(f"({pattern})"), _parsed(f"(\n{part}\n)")
    around = parsed(head + _HOLE + tail)
    if around is None or hole is None or inner is None:
        return candidates[0]  # not an expression as Python has it (a target, a starred element)
    wanted = ast.dump(_filled(around, _filled(hole, inner)))
    for candidate in candidates:
        if "\n" in candidate and _parsed(candidate) is None:
            continue  # it would end its line too early
        found = parsed(head + candidate + tail)
        if found is not None and ast.dump(found) == wanted:
            return candidate
    raise Refuse(f"the expression on line {tree.site(node).line} cannot be written anew where it stands")


def _parsed(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _filled(pattern: ast.expr, part: ast.expr) -> ast.expr:
    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return part if node.id == _HOLE else node

    filled = Fill().visit(pattern)
    assert isinstance(filled, ast.expr)
    return filled


# --- statements ---------------------------------------------------------------------------------------------------


def before(tree: Tree, statement: ast.stmt, lines: Sequence[str], above_comments: bool = False) -> Change:
    """New lines before a statement."""
    start, depth = tree.outer(statement)[0], tree.depth(statement)
    if tree.shares_line(statement, from_left=True):
        raise _shared(tree, statement)
    at = tree.line_start(start)
    pad = tree.text[at:start]
    newline = tree.newline(at)
    if above_comments:
        top = _above_comments(tree, at, pad)
        if top < at and tree.text[tree.line_start(max(top - 1, 0)) : top].strip() == "":
            lines = (*lines, "") if lines and lines[-1] else lines  # a heading stays a heading
        at = top
    text = "".join(line + newline for line in _indented(lines, pad, tree.block_unit(statement)))
    return Change(at, at, text, Role.BEFORE, depth, lines=True)


def after(tree: Tree, statement: ast.stmt, lines: Sequence[str]) -> Change:
    """New lines behind a statement and its whole body."""
    if isinstance(statement, _JUMPS):
        raise Refuse(f"nothing runs after the statement on line {tree.site(statement).line}")
    depth = tree.depth(statement)
    start = tree.outer(statement)[0]
    if tree.shares_line(statement, from_left=False):
        raise _shared(tree, statement)
    new = _indented(lines, tree.leading(statement), tree.block_unit(statement))
    return replace(_behind(tree, _block_end(tree, statement), new, Role.AFTER, depth), anchor=start)


def _behind(tree: Tree, at: int, lines: Sequence[str], role: Role, depth: int) -> Change:
    """Whole lines at the end of a line, also where the text ends without a newline."""
    newline = tree.newline(max(at - 1, 0))
    if at == len(tree.text) and at > tree.line_start(at):
        return Change(at, at, "".join(newline + line for line in lines), role, depth, lines=True)
    return Change(at, at, "".join(line + newline for line in lines), role, depth, lines=True)


def _block_end(tree: Tree, statement: ast.stmt) -> int:
    """The end of the last line of a statement, with the comments that stand in its body behind its last statement."""
    pad = tree.leading(statement)
    end = tree.line_end(tree.outer(statement)[1])
    if not isinstance(statement, COMPOUND):
        return end
    at = end
    while at < len(tree.text):
        line = tree.text[at : tree.line_end(at)]
        bare = line.strip(" \t\f\r\n")
        if bare and not (bare.startswith("#") and len(tree.indentation(at)) > len(pad)):
            break
        at = tree.line_end(at)
        if bare:
            end = at
    return end


def _above_comments(tree: Tree, at: int, pad: str) -> int:
    """The start of the block of comments that stands directly over a line, at the same indentation."""
    while at > 0:
        above = tree.line_start(at - 1)
        line = tree.text[above:at]
        is_comment = line.startswith(pad + "#") and not tree.in_string(above)
        is_marker = re.match(r"[ \t]*#(!|\s*%%|.*coding[:=])", line) is not None
        if not is_comment or is_marker or above == at:
            break
        at = above
    return at


def _indented(lines: Sequence[str], pad: str, unit: str) -> list[str]:
    """The lines with the indentation of their place; their own levels (four spaces each) in the block's unit."""
    found = []
    for line in (each for text in lines for each in text.split("\n")):
        bare = line.lstrip(" ")
        levels, rest = divmod(len(line) - len(bare), len(_INDENT))
        found.append(pad + unit * levels + " " * rest + bare if bare.strip() else "")
    return found


def _shared(tree: Tree, statement: ast.stmt) -> Refuse:
    return Refuse(f"line {tree.site(statement).line} holds other statements too")


def run_of(tree: Tree, first: ast.stmt, last: ast.stmt) -> list[ast.stmt]:
    """The statements of one block from ``first`` to ``last``. Raises Refuse where they are not of one block."""
    siblings = tree.block(first).statements
    if first not in siblings or last not in siblings or siblings.index(first) > siblings.index(last):
        lines = f"lines {tree.site(first).line} and {tree.site(last).line}"
        raise Refuse(f"{lines} are not in one block of statements, in this order")
    return list(siblings[siblings.index(first) : siblings.index(last) + 1])


def _owns_lines(tree: Tree, statements: Sequence[ast.stmt]) -> bool:
    """Whether the statements share no line with another one."""
    first, last = statements[0], statements[-1]
    return not tree.shares_line(first, from_left=True) and not tree.shares_line(last, from_left=False)


def replaced_lines(tree: Tree, statements: Sequence[ast.stmt], lines: Sequence[str]) -> list[Change]:
    """Other lines instead of statements; the comments between and inside them stand above the new lines."""
    start, end = tree.outer(statements[0])[0], tree.outer(statements[-1])[1]
    depth = tree.depth(statements[0])
    comments = [tree.text[first:last] for first, last in tree.comments_in(start, end)]
    if not _owns_lines(tree, statements):
        raise _shared(tree, statements[0])
    pad = tree.leading(statements[0])
    written = [*(pad + comment for comment in comments), *_indented(lines, pad, tree.block_unit(statements[0]))]
    text = tree.newline(start).join(written)
    return [Change(start, end, text[len(pad) :], depth=depth, rewrites=True)]


def unimported(tree: Tree, alias: cst.CSTNode) -> tuple[bool, Change | None]:
    """Whether its statement goes with the name, the only one, or the change that takes one name out of several."""
    statement = tree.parent.get(alias)
    if not isinstance(statement, cst.ImportFrom) or isinstance(statement.names, cst.ImportStar):
        raise Refuse(f"line {tree.line_column(tree.span[alias][0])[0]} imports no name to take out")
    spans = [tree.span[each] for each in statement.names]
    if len(spans) == 1:
        return True, None
    index = next(number for number, each in enumerate(statement.names) if each is alias)
    if index + 1 < len(spans):
        start, end = spans[index][0], spans[index + 1][0]
    else:
        start, end = spans[index - 1][1], spans[index][1]
    if tree.comments_in(start, end):
        return False, None
    return False, Change(start, end, "", depth=tree.depth(alias))


def deleted(tree: Tree, gone: Sequence[ast.stmt]) -> list[Change]:
    """Statements taken out, with their lines; comments stay, and a block that would be empty gets ``pass``."""
    changes: list[Change] = []
    done: set[ast.stmt] = set()
    for node in gone:
        if node in done:
            continue
        siblings = tree.block(node).statements
        indexes = [index for index, sibling in enumerate(siblings) if sibling in gone]
        done.update(siblings[index] for index in indexes)
        needs_pass = len(indexes) == len(siblings) and tree.block(node).owner is not None
        for run in runs(indexes):
            for part in _within_cells(tree, [siblings[index] for index in run]):
                changes += _deleted_run(tree, part, needs_pass)
    return changes


def _within_cells(tree: Tree, run: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The parts of a run of statements that stand in one cell of a notebook each."""
    part: list[ast.stmt] = []
    for each in run:
        if part and FENCE_LINE in tree.text[tree.outer(part[-1])[1] : tree.outer(each)[0]]:
            yield part
            part = []
        part.append(each)
    yield part


def _deleted_run(tree: Tree, statements: Sequence[ast.stmt], needs_pass: bool) -> list[Change]:
    start, end = tree.outer(statements[0])[0], tree.outer(statements[-1])[1]
    depth = tree.depth(statements[0])
    comments = [tree.text[first:last] for first, last in tree.comments_in(start, end)]
    pad, newline = tree.leading(statements[0]), tree.newline(start)
    if needs_pass:  # the comment on the last line stays behind it
        kept = newline.join([*(pad + comment for comment in comments), pad + "pass"])
        return [Change(start, end, kept[len(pad) :], depth=depth)]
    if not _owns_lines(tree, statements):
        raise _shared(tree, statements[0])
    last = tree.line_end(end)
    comments += [tree.text[first:stop] for first, stop in tree.comments_in(end, last)]
    text = "".join(pad + comment + newline for comment in comments)
    first_line = tree.line_start(start)
    if last == len(tree.text) and not has_newline(tree.text[-1:]) and first_line > 0:  # the text ends without a newline
        first_line = len(tree.text[:first_line].rstrip("\r\n"))
        text = "".join(newline + pad + comment for comment in comments)
    elif not comments and pad:  # at module level, a notebook's cell may end in the gap
        last = _without_double_gap(tree, first_line, last)
    return [Change(first_line, last, text, depth=depth, lines=True)]


def _without_double_gap(tree: Tree, start: int, end: int) -> int:
    """Where lines go that stood between blank lines, one of the gaps goes too."""

    def is_blank(at: int) -> bool:
        return not tree.text[at : tree.line_end(at)].strip()

    above, below = tree.line_start(max(start - 1, 0)), end
    while start > 0 and below < len(tree.text) and is_blank(above) and is_blank(below) and above < start:
        below = tree.line_end(below)
        above = tree.line_start(max(above - 1, 0))
    return below if below < len(tree.text) else end


def wrapped(tree: Tree, statements: Sequence[ast.stmt], header: str, above_comments: bool = False) -> Shift:
    """The header over some statements (and the comments directly above them), and their lines one unit deeper."""
    line = tree.site(statements[0]).line
    if not _owns_lines(tree, statements):
        raise _shared(tree, statements[0])
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            raise Refuse("an import from __future__ must stay at the top of its file")
    start = tree.line_start(tree.outer(statements[0])[0])
    end = _block_end(tree, statements[-1])
    if "autocast" in header:
        for name, line in _methods_called(statements):
            if name in ("backward", "step"):
                raise Refuse(f"`{name}` on line {line} must not run under autocast")
    pad, newline = tree.leading(statements[0]), tree.newline(start)
    start = _above_comments(tree, start, pad) if above_comments else start
    depth = tree.depth(statements[0])
    text = "".join(pad + each + newline for each in header.split("\n"))
    tidy = not pad and above_comments
    if tidy and start > 0 and tree.text[tree.line_start(start - 1) : start].strip():
        text = newline + text
    above = Change(start, start, text, Role.HEADER, depth, lines=True)
    return Shift(start, end, pad, tree.block_unit(statements[0]), above, depth, kept=tuple(tree.strings), tidy=tidy)


def _methods_called(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, int]]:
    """The methods that are called in the statements, each with the line on which its call begins."""
    calls = [node for each in statements for node in walk(each) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0)):
        if isinstance(call.func, ast.Attribute):
            yield call.func.attr, call.lineno


def _beginning(tree: Tree, line: int) -> int:
    """Where a line begins, or the text's end."""
    return max(tree.starts[line - 1] if line <= len(tree.starts) else len(tree.text), tree.line_start(0))


# --- names --------------------------------------------------------------------------------------------------------


def named(tree: Tree, dotted: str, site: Site, module: str | None) -> tuple[str, Change | None]:
    """How to write ``dotted`` at a site, and the import that it needs, if any."""
    names = tree.names
    start = tree.range(site)[0]
    column = len(tree.text[tree.line_start(start) : start].encode())
    place = (site.line, column)
    spelled = names.spelling(dotted, place, module)
    if spelled is not None:
        return spelled, None
    top = dotted.partition(".")[0]
    bound, target, text, spelled = top, top, f"import {top}", dotted
    if module is not None:
        bound = dotted[len(module) + 1 :].partition(".")[0]
        target, text, spelled = f"{module}.{bound}", f"from {module} import {bound}", dotted[len(module) + 1 :]
    parent, _, last = dotted.rpartition(".")
    own = {(each.target or "").rpartition(".")[2] for each in names.bindings if each.name == top}
    apart = own <= {top} and names.taken(top, top, place)  # `from datetime import datetime`, `from absl import logging`
    if module is None and parent == top and apart:
        bound, target, text, spelled = last, dotted, f"from {parent} import {last}", last
    if names.taken(bound, target, place):
        raise Refuse(f"`{bound}` means something else in {tree.path.name}, or is not imported yet on line {site.line}")
    there = names.insertion(module or top)
    at = _beginning(tree, there.line)
    if at > start and not names.runs_later(place):  # beside imports further down: a script, or cells, put together
        there = names.insertion(module or top, above=site.line)
        at = _beginning(tree, there.line)
    above = _above_comments(tree, at, "") if there.above_comments else at
    if any(line.strip() and not line.startswith("#") for line in tree.text[:above].splitlines()):
        at = above  # comments at the top of a file are about the file, not about what follows
    if at > start and not names.runs_later(place):
        raise Refuse(f"`{text}` would have to stand above line {site.line}, where {tree.path.name} has no place for it")
    lines = [*([""] if there.gap_above else []), text, *([""] if there.gap else [])]
    return spelled, _behind(tree, at, lines, Role.IMPORT, 0 if there.standard else 1)
