"""What stands between brackets: arguments, entries and parameters put in and taken out, in the layout of their list."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from turbofix.editing.changes import Change, Refuse, Role
from turbofix.editing.cst import cst
from turbofix.editing.positions import Tree
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.site import Site

WIDTH, MOST = 100, 140
"""A line that would grow beyond so many characters is broken: as long as the file's longest, between these two."""

WHOLE = 120
"""As long may a line grow where a new line inside of a bracket would tear it apart: more code follows the bracket."""

_WORD = regex(r"[^\W\d]\w*")


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
    ends_line = has_newline(tree.text[item.tail : following])
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
    return None if has_newline(tree.text[start:end]) else inner


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
            return None if has_newline(tree.text[start:end]) else above
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
    for run in runs(indexes):
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
    at = items[run[-1] + 1].start if not is_end else last.tail
    if tree.comments_in(first.start, at) or (is_end and previous is not None and tree.comments_in(previous.end, at)):
        raise Refuse(f"the arguments on line {tree.line_column(first.start)[0]} have comments between them")
    if is_end and previous is not None:
        return [Change(previous.end, last.end, "")]
    if not is_end and previous is not None and has_newline(tree.text[last.tail : at]):
        return [Change(previous.tail, last.tail, "")]
    return [Change(first.start, at, "")]


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


def runs(indexes: Sequence[int]) -> Iterator[list[int]]:
    """The numbers, those that follow one another together."""
    run: list[int] = []
    for index in indexes:
        if run and index != run[-1] + 1:
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def has_newline(text: str) -> bool:
    """Whether a text has more than one line."""
    return "\n" in text or "\r" in text
