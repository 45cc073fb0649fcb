"""How a new piece of code is laid out where it goes: functions from a tree and a place to changes of text.

Each call of the vocabulary (``edits``) has its function here. All are pure; what is not safe raises ``Refuse``.
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from turbofix.editing.cst import cst
from turbofix.editing.edit import Change, Refuse, Role, Shift
from turbofix.editing.positions import COMPOUND, Tree
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.magics import FENCE_LINE
from turbofix.source.nodes import walk
from turbofix.source.site import Site

WIDTH, MOST = 100, 140
"""A line that would grow beyond so many characters is broken: as long as the file's longest, between these two."""

WHOLE = 120
"""As long may a line grow where a new line inside of a bracket would tear it apart: more code follows the bracket."""

_HOLE = "_turbofix_hole"
_WORD = regex(r"[^\W\d]\w*")
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


# --- calls, mappings, parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """One element between brackets: its span without its comma, and the offset of the comma if it has one."""

    start: int
    end: int
    comma: int | None

    @property
    def tail(self) -> int:
        """Where what follows the item and its comma begins."""
        return self.end if self.comma is None else self.comma + 1


@dataclass(frozen=True)
class Bracket:
    """The inside of a call, a dict display or a parameter list, from ``open`` to its closing bracket at ``close``.

    ``lone_generator``: a generator without parentheses of its own. ``breakable``: new lines may be put in.
    """

    open: int
    close: int
    items: tuple[Item, ...]
    lone_generator: bool = False
    breakable: bool = True


def call_at(tree: Tree, site: Site) -> cst.Call:
    """The call at a site."""
    node = tree.node(site)
    if not isinstance(node, cst.Call):
        raise Refuse(f"line {site.line} holds no call to change")
    return node


def argument_index(call: cst.Call, name: str, position: int | None) -> int | None:
    """Which argument of the call is the parameter ``name``; None where it is not written there."""
    for index, argument in enumerate(call.args):
        if argument.keyword is not None and argument.keyword.value == name:
            return index
    if position is not None and position < len(call.args):
        before = call.args[: position + 1]
        if all(argument.keyword is None and not argument.star for argument in before):
            return position
    return None


def refuse_unpacking(call: cst.Call, name: str, *, keyword_only: bool = False, spelled_out: bool = False) -> None:
    """Raise Refuse where an unpacked argument may hold ``name`` already (``spelled_out``: no mapping does)."""
    if not spelled_out and any(argument.star == "**" for argument in call.args):
        raise Refuse(f"the call unpacks a mapping that may hold `{name}` already")
    if any(argument.star == "*" for argument in call.args) and not keyword_only:
        raise Refuse(f"the call unpacks positional arguments, and `{name}` may be one of them")


def before_unpacked(call: cst.Call) -> int:
    """Behind which argument a new keyword goes: the last one, or the one before the mappings that end the call."""
    last = len(call.args) - 1
    while last >= 0 and call.args[last].star == "**":
        last -= 1
    return last if 0 <= last < len(call.args) - 1 else -1


def equals_sign(call: cst.Call) -> str:
    """``=`` as the call's own keywords have it, with or without spaces."""
    signs = [argument.equal for argument in call.args if isinstance(argument.equal, cst.AssignEqual)]
    spaced = [sign for sign in signs if not sign.whitespace_before.empty and not sign.whitespace_after.empty]
    return " = " if signs and len(spaced) == len(signs) else "="


def droppable_index(call: cst.Call, name: str, position: int | None) -> int:
    """Which argument to take out. Raises Refuse where it is not there, or others would move up."""
    index = argument_index(call, name, position)
    if index is None:
        raise Refuse(f"the call has no argument `{name}` to take out")
    behind = call.args[index + 1 :]
    if call.args[index].keyword is None and any(each.keyword is None and each.star != "**" for each in behind):
        raise Refuse(f"`{name}` is passed by position, and the arguments behind it would move up")
    return index


def is_dict_call(node: cst.CSTNode) -> bool:
    """Whether the node is ``dict(...)``."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "dict"


def entry(tree: Tree, node: cst.CSTNode, key: str, value: str) -> tuple[cst.BaseExpression | None, str]:
    """The value that stands at ``key`` in a dict display, if any, and the text of a new entry."""
    if not isinstance(node, cst.Dict):
        raise Refuse(f"line {tree.site(node).line} holds no dict display to change")
    words = [each.key if isinstance(each, cst.DictElement) else None for each in node.elements]
    keys = [word.evaluated_value if isinstance(word, cst.SimpleString) else None for word in words]
    if key in keys:
        index = len(keys) - 1 - keys[::-1].index(key)
        if any(isinstance(each, cst.StarredDictElement) for each in node.elements[index + 1 :]):
            raise Refuse(f"a mapping unpacked behind `{key}` may overrule it")
        return node.elements[index].value, ""
    written = [tree.source(word) for word in words if word is not None]
    quoted = [text for text in written if text[-1:] in ("'", '"')]
    single = quoted[-1].endswith("'") if quoted else tree.text.count("'") > tree.text.count('"')
    mark = "'" if single else '"'
    return None, f"{mark}{key}{mark}: {value}"


def new_parameter(tree: Tree, node: cst.CSTNode, name: str, beside: str) -> tuple[int, str]:
    """Where in its parameter list a function gets the parameter ``name``, and its text."""
    if not isinstance(node, cst.FunctionDef):
        raise Refuse(f"line {tree.site(node).line} holds no function to give a parameter")
    word = name_of(name)
    listed = _parameters(node)
    names = [each.name.value if isinstance(each, cst.Param) else None for each in listed]
    if word in names:
        raise Refuse(f"{node.name.value} has a parameter `{word}` already")
    if beside not in names:
        raise Refuse(f"{node.name.value} has no parameter `{beside}`")
    index = names.index(beside)
    neighbour = listed[index]
    if not isinstance(neighbour, cst.Param) or neighbour.star in ("*", "**"):
        raise Refuse(f"`{beside}` takes any number of arguments, so that nothing can be put straight after it")
    positional = neighbour not in node.params.kwonly_params
    needs_default = positional and neighbour.default is not None and name == word
    return index, f"{name}=None" if needs_default else name


def passed_on(tree: Tree, call: cst.Call, text: str, name: str, beside: cst.CSTNode) -> tuple[int, str]:
    """Where in the call a new argument goes, and its text."""
    index = next((i for i, each in enumerate(call.args) if beside in (each, each.value)), None)
    if index is None:
        raise Refuse(f"line {tree.site(call).line} does not pass what was seen to be passed")
    neighbour = call.args[index]
    if any(each.star for each in call.args[: index + 1]):
        raise Refuse("the call unpacks arguments, so that nothing can be put in at a known place")
    if any(each.keyword is not None and each.keyword.value == name for each in call.args):
        raise Refuse(f"the call passes `{name}` already")
    if neighbour.keyword is None:
        return index, text
    refuse_unpacking(call, name)
    return index, f"{name}{equals_sign(call)}{text}"


def name_of(parameter: str) -> str:
    """The bare name of a parameter's text (``scaler: GradScaler = None``)."""
    match = _WORD.match(parameter)
    return match.group() if match else parameter


def _parameters(function: cst.FunctionDef) -> list[cst.Param | cst.ParamStar | cst.ParamSlash]:
    params = function.params
    slash = [params.posonly_ind] if isinstance(params.posonly_ind, cst.ParamSlash) else []
    star = [params.star_arg] if isinstance(params.star_arg, (cst.Param, cst.ParamStar)) else []
    kwarg = [params.star_kwarg] if params.star_kwarg is not None else []
    return [*params.posonly_params, *slash, *params.params, *star, *params.kwonly_params, *kwarg]


def bracket(tree: Tree, node: cst.CSTNode) -> Bracket:
    """The inside of a call, a display of a dict or list, or a function's parameter list."""
    breakable = tree.up(node, cst.FormattedString, cst.TemplatedString) is None
    if isinstance(node, cst.Call):
        start, end = tree.span[node]
        lone = len(node.args) == 1 and isinstance(node.args[0].value, cst.GeneratorExp) and not node.args[0].value.lpar
        opening = tree.text.index("(", tree.outer(node.func)[1])
        items = [_item(tree, each, tree.span[each][0], tree.outer(each.value)[1]) for each in node.args]
        return Bracket(opening + 1, end - 1, tuple(items), lone, breakable)
    if isinstance(node, (cst.Dict, cst.List)):
        opens, closes = (node.lbrace, node.rbrace) if isinstance(node, cst.Dict) else (node.lbracket, node.rbracket)
        start, end = tree.full[opens][0], tree.full[closes][1]
        items = [_item(tree, each, *tree.span[each]) for each in node.elements]
        return Bracket(start + 1, end - 1, tuple(items), False, breakable)
    assert isinstance(node, cst.FunctionDef)
    start, end = tree.full[node.params]
    items = []
    for each in _parameters(node):
        last = tree.span[each][1]
        if isinstance(each, cst.ParamStar):
            last = tree.span[each][0] + 1
        elif isinstance(each, cst.Param):
            if each.annotation is not None:
                last = tree.full[each.annotation][1]
            if each.default is not None:
                last = tree.outer(each.default)[1]
        items.append(_item(tree, each, tree.span[each][0], last))
    opening = tree.text.rindex("(", tree.span[node.name][1], start + 1) if start else start
    return Bracket(opening + 1, end, tuple(items))


def _item(tree: Tree, node: cst.CSTNode, start: int, end: int) -> Item:
    comma = getattr(node, "comma", None)
    return Item(start, end, tree.span[comma][0] if isinstance(comma, cst.Comma) else None)


def changed_items(
    tree: Tree, inside: Bracket, added: Mapping[int, Sequence[str]], dropped: Collection[int]
) -> list[Change]:
    """New items behind the items at some indexes, and others taken out."""
    changes: list[Change] = []
    gone = set(dropped)
    for index, texts in sorted(added.items()):
        if index in gone:  # one goes, others come in its place
            gone.remove(index)
            item = inside.items[index]
            changes.append(Change(item.start, item.end, ", ".join(texts)))
        else:
            changes += _added_items(tree, inside, index, texts)
    return [*changes, *_dropped_items(tree, inside, sorted(gone))]


def _added_items(tree: Tree, inside: Bracket, index: int, texts: Sequence[str]) -> list[Change]:
    def added(at: int, text: str, lines: bool = False) -> Change:
        return Change(at, at, text, Role.ADDED, lines=lines)

    newline = tree.newline(inside.open)
    if not inside.items:
        if "\n" not in tree.text[inside.open : inside.close] or not tree.starts_line(inside.close):
            return [added(inside.open, ", ".join(texts))]
        pad = tree.indentation(inside.close) + tree.default_indent
        return [added(tree.line_start(inside.close), "".join(f"{pad}{text},{newline}" for text in texts), lines=True)]

    item, is_last = inside.items[index], index == len(inside.items) - 1
    following = inside.close if is_last else inside.items[index + 1].start
    ends_line = _has_newline(tree.text[item.tail : following])
    own_line = tree.starts_line(item.start) and tree.line_start(item.start) >= inside.open
    changes: list[Change] = []
    if inside.lone_generator:
        changes = [Change(item.start, item.start, "(", Role.OPEN), Change(item.end, item.end, ")", Role.SUFFIX)]

    pad = tree.indentation(item.start)
    if own_line and ends_line:
        at = tree.line_end(item.tail)  # behind the item's comment
        if item.comma is not None:
            return [*changes, added(at, "".join(f"{pad}{text},{newline}" for text in texts), lines=True)]
        lines = f",{newline}".join(f"{pad}{text}" for text in texts)
        return [*changes, added(item.end, ","), added(at, lines + newline, lines=True)]
    # Behind the last bracket a comment speaks of the item on its line: that stays there, with what is added.
    commented = tree.line_end(item.tail) > tree.code_end(item.tail) + len(tree.newline(item.tail))
    if own_line and is_last and not commented:
        if item.comma is None:
            return [*changes, added(item.end, "".join(f",{newline}{pad}{text}" for text in texts))]
        return [*changes, added(item.tail, "".join(f"{newline}{pad}{text}," for text in texts))]
    return [*changes, added(*_in_line(tree, inside, item, texts))]


def _in_line(tree: Tree, inside: Bracket, item: Item, texts: Sequence[str]) -> tuple[int, str]:
    """Items behind another one on its line, in new lines where that one would grow too long."""
    at = item.tail
    width = tree.code_end(at) - tree.line_start(at)
    first = inside.items[0]
    if tree.line_start(item.start) > inside.open:
        pad = tree.indentation(item.start)
    elif tree.line_start(first.start) > inside.open:
        pad = tree.indentation(first.start)
    else:
        pad = tree.indentation(first.start)
        pad += " " * (first.start - tree.line_start(first.start) - len(pad))
    goes_on = tree.text[inside.close + 1 : tree.code_end(inside.close)].lstrip(" )]}")[:1] not in ("", *",:")
    limit = min(max(WHOLE if goes_on else WIDTH, tree.width), MOST)
    pieces = []
    for text in texts:
        width += len(text) + 2
        gap = " "
        if inside.breakable and width > limit:
            gap, width = tree.newline(at) + pad, len(pad) + len(text) + 1
        pieces.append(f",{gap}{text}" if item.comma is None else f"{gap}{text},")
    return at, "".join(pieces)


def bare_tuple(tree: Tree, node: cst.CSTNode) -> cst.Tuple | None:
    """The tuple without parentheses, all on one line, that is assigned or returned and has the node in an element.

    A new line inside of the node would tear the tuple apart: it is broken between its elements (``one_per_line``).
    """
    inner, above = node, tree.parent.get(node)
    while above is not None and not isinstance(above, (cst.Assign, cst.AnnAssign, cst.Return, cst.BaseStatement)):
        inner, above = above, tree.parent.get(above)
    if not isinstance(inner, cst.Tuple) or inner.lpar or isinstance(above, (cst.BaseStatement, type(None))):
        return None
    start, end = tree.span[inner]
    return None if _has_newline(tree.text[start:end]) else inner


def call_around(tree: Tree, node: cst.CSTNode) -> cst.Call | None:
    """The innermost call of several arguments, all on one line, that has the node, a call too, in one of them.

    A new line inside of the node would tear that argument apart: the call is broken between its arguments.
    """
    inner, above = node, tree.parent.get(node) if isinstance(node, cst.Call) else None
    while above is not None and not isinstance(above, (cst.BaseStatement, cst.BaseCompoundStatement, cst.Lambda)):
        if isinstance(above, cst.Call) and inner in above.args and len(above.args) > 1:
            start, end = tree.span[above]
            if tree.up(above, cst.FormattedString, cst.TemplatedString) is not None:
                return None
            return None if _has_newline(tree.text[start:end]) else above
        inner, above = above, tree.parent.get(above)
    return None


def argument_per_line(tree: Tree, call: cst.Call, texts: Iterable[str]) -> list[Change]:
    """A call with an argument per line, where its line would grow too long by what the calls in them are given."""
    start, end = tree.span[call]
    grown = sum(len(text) + 2 for text in texts)
    if tree.code_end(end) - tree.line_start(start) + grown <= min(max(WIDTH, tree.width), MOST):
        return []
    items = bracket(tree, call).items
    pad = tree.indentation(start)
    pad += " " * (items[0].start - tree.line_start(start) - len(pad))
    return [
        Change(one.tail, other.start, tree.newline(start) + pad, Role.ADDED, tree.depth(call))
        for one, other in itertools.pairwise(items)
    ]


def one_per_line(tree: Tree, node: cst.Tuple, texts: Iterable[str]) -> list[Change]:
    """The tuple in parentheses, an element per line, where its line would grow too long by what its calls are given."""
    start, end = tree.span[node]
    grown = sum(len(text) + 2 for text in texts)
    if tree.code_end(end) - tree.line_start(start) + grown <= min(max(WHOLE, tree.width), MOST):
        return []
    newline, outer, depth = tree.newline(start), tree.indentation(start), tree.depth(node)
    pad = newline + outer + tree.default_indent
    changes = [Change(start, start, f"({pad}", Role.OPEN, depth, anchor=start)]
    for element, following in itertools.pairwise(node.elements):
        assert isinstance(element.comma, cst.Comma)
        comma = tree.span[element.comma][0] + 1
        changes.append(Change(comma, tree.span[following][0], pad, Role.ADDED, depth))
    comma_there = "" if isinstance(node.elements[-1].comma, cst.Comma) else ","
    return [*changes, Change(end, end, f"{comma_there}{newline}{outer})", Role.SUFFIX, depth, anchor=start)]


def _dropped_items(tree: Tree, inside: Bracket, indexes: Sequence[int]) -> list[Change]:
    changes: list[Change] = []
    for run in _runs(indexes):
        changes += _dropped_run(tree, inside, run)
    return changes


def _dropped_run(tree: Tree, inside: Bracket, run: Sequence[int]) -> list[Change]:
    """Items that follow one another are taken out."""
    items = inside.items
    first, last = items[run[0]], items[run[-1]]
    previous = items[run[0] - 1] if run[0] else None
    is_end = run[-1] == len(items) - 1
    if any(tree.comments_in(items[index].start, items[index].end) for index in run):
        raise Refuse(f"the argument on line {tree.line_column(first.start)[0]} has comments inside that would be lost")
    # A list that ended without a comma ends without one.
    hanging = is_end and last.comma is None and previous is not None and previous.comma is not None
    bare_comma = [Change(previous.tail - 1, previous.tail, "")] if hanging and previous is not None else []

    if all(_is_alone(tree, inside, items[index]) for index in run):
        return [*bare_comma, *(_without_line(tree, items[index]) for index in run)]
    if tree.comments_in(first.start, last.tail):
        raise Refuse(f"the arguments on line {tree.line_column(first.start)[0]} have comments between them")
    if not is_end:
        following = items[run[-1] + 1].start
        if not _has_newline(tree.text[last.tail : following]):
            return [Change(first.start, following, "")]
        if previous is not None and not tree.starts_line(first.start):
            return [Change(previous.tail, last.tail, "")]
        if tree.starts_line(first.start) and not tree.comments_in(last.tail, tree.line_end(last.tail)):
            return [Change(tree.line_start(first.start), tree.line_end(last.tail), "", lines=True)]
        end = last.tail if tree.comments_in(last.tail, following) else following
        return [Change(first.start, end, "")]
    if previous is None:
        return [Change(first.start, last.tail, "")]
    if tree.comments_in(previous.end, first.start):
        return [*bare_comma, Change(first.start, last.tail, "")]
    return [Change(previous.end, last.end, "")]


def _is_alone(tree: Tree, inside: Bracket, item: Item) -> bool:
    """Whether the item has its lines for itself."""
    starts = tree.starts_line(item.start) and tree.line_start(item.start) >= inside.open
    return starts and tree.line_end(item.tail) <= inside.close and tree.code_end(item.tail) <= item.tail


def _without_line(tree: Tree, item: Item) -> Change:
    """The item's lines go; a comment behind it stays, on a line of its own."""
    comments = tree.comments_in(item.tail, tree.line_end(item.tail))
    if comments:
        return Change(item.start, comments[0][0], "")
    return Change(tree.line_start(item.start), tree.line_end(item.tail), "", lines=True)


def _runs(indexes: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for index in indexes:
        if run and index != run[-1] + 1:
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _has_newline(text: str) -> bool:
    return "\n" in text or "\r" in text


# --- statements ---------------------------------------------------------------------------------------------------


def before(tree: Tree, statement: ast.stmt, lines: Sequence[str], above_comments: bool = False) -> Change:
    """New lines before a statement."""
    start, depth = tree.outer(statement)[0], tree.depth(statement)
    if tree.shares_line(statement, from_left=True):
        return Change(start, start, "".join(f"{line}; " for line in _in_one_line(lines)), Role.BEFORE, depth)
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
    start, end = tree.outer(statement)
    if tree.shares_line(statement, from_left=False):
        text = "".join(f"; {line}" for line in _in_one_line(lines))
        return Change(end, end, text, Role.AFTER, depth, anchor=start)
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


def _in_one_line(lines: Sequence[str]) -> list[str]:
    """The lines as statements that can share a line. Raises Refuse where one cannot."""
    kept = [line.strip() for line in lines if line.strip()]
    for line in kept:
        statements = _statements(line)
        if "#" in line or "\n" in line or statements is None or any(hasattr(each, "body") for each in statements):
            raise Refuse("the statement shares its line with others, where the new lines do not fit")
    return kept


def _statements(text: str) -> list[ast.stmt] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except (SyntaxError, ValueError):
        return None


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
        if comments:
            raise Refuse(f"line {tree.line_column(start)[0]} holds other statements too, and comments would be lost")
        return [Change(start, end, "; ".join(_in_one_line(lines)), depth=depth, rewrites=True)]
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
        for run in _runs(indexes):
            for part in _within_cells(tree, siblings, run):
                changes += _deleted_run(tree, siblings, part, needs_pass)
    return changes


def _within_cells(tree: Tree, siblings: Sequence[ast.stmt], run: Sequence[int]) -> Iterator[list[int]]:
    """The parts of a run of statements that stand in one cell of a notebook each."""
    part: list[int] = []
    for index in run:
        if part and FENCE_LINE in tree.text[tree.outer(siblings[part[-1]])[1] : tree.outer(siblings[index])[0]]:
            yield part
            part = []
        part.append(index)
    yield part


def _deleted_run(tree: Tree, siblings: Sequence[ast.stmt], run: Sequence[int], needs_pass: bool) -> list[Change]:
    statements = [siblings[index] for index in run]
    start, end = tree.outer(statements[0])[0], tree.outer(statements[-1])[1]
    depth = tree.depth(statements[0])
    comments = [tree.text[first:last] for first, last in tree.comments_in(start, end)]
    pad, newline = tree.leading(statements[0]), tree.newline(start)
    if needs_pass:  # the comment on the last line stays behind it
        kept = newline.join([*(pad + comment for comment in comments), pad + "pass"])
        return [Change(start, end, kept[len(pad) :], depth=depth)]
    if not _owns_lines(tree, statements):
        if comments:
            raise Refuse(f"line {tree.line_column(start)[0]} holds other statements too, and comments would be lost")
        if tree.shares_line(statements[-1], from_left=False) and run[-1] + 1 < len(siblings):
            following = tree.outer(siblings[run[-1] + 1])[0]
            if not _has_newline(tree.text[end:following]):
                return [Change(start, following, "", depth=depth)]
        return [Change(tree.outer(siblings[run[0] - 1])[1], end, "", depth=depth)]
    last = tree.line_end(end)
    comments += [tree.text[first:stop] for first, stop in tree.comments_in(end, last)]
    text = "".join(pad + comment + newline for comment in comments)
    first_line = tree.line_start(start)
    if (
        last == len(tree.text) and not _has_newline(tree.text[-1:]) and first_line > 0
    ):  # the text ends without a newline
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
        raise Refuse(f"the statements from line {line} on share a line with others")
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
    if names.taken(bound, target, place):
        raise Refuse(f"`{bound}` means something else in {tree.path.name}, or is not imported yet on line {site.line}")
    there = names.insertion(module or top)
    at = tree.starts[there.line - 1] if there.line <= len(tree.starts) else len(tree.text)
    at = max(at, tree.line_start(0))
    above = _above_comments(tree, at, "") if there.above_comments else at
    if any(line.strip() and not line.startswith("#") for line in tree.text[:above].splitlines()):
        at = above  # comments at the top of a file are about the file, not about what follows
    if at > start and not names.runs_later(place):
        raise Refuse(f"`{text}` would have to stand above line {site.line}, where {tree.path.name} has no place for it")
    lines = [*([""] if there.gap_above else []), text, *([""] if there.gap else [])]
    return spelled, _behind(tree, at, lines, Role.IMPORT, 0 if there.standard else 1)
