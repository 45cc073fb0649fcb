"""The vocabulary in which codemods change code: LibCST locates, ranges of text are edited.

Every call takes ``Site`` objects of the program's model. The tree is read-only; an ``Edit`` gathers ``Change``s per
file, and ``apply`` gives the new texts. All or nothing: with ``attempt`` (or ``mark`` and ``rollback``) a ``Refuse`` or
``Conflict`` raised on the way leaves no change behind.

The same change asked for by two findings is made once; different changes of the same text are a ``Conflict``.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from turbofix.editing.changes import Change, Conflict, Role, Shift, changed, composed, conflict
from turbofix.editing.changes import Refuse as Refuse  # noqa: PLC0414  (what codemods raise is handed on)
from turbofix.records import dataclass
from turbofix.source.datafile import is_data
from turbofix.source.site import STUB, Site

if TYPE_CHECKING:
    import libcst as cst

    from turbofix.editing.brackets import Bracket
    from turbofix.editing.positions import Tree, Trees
    from turbofix.source.datafile import DataText, Node

_LAST = -1


# One step of an edit, as the calls below log it. Steps on one bracket or block are laid out together at the end.
@dataclass(frozen=True)
class _Spliced:
    path: Path
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class _Moved:
    path: Path
    shift: Shift
    statements: tuple[ast.stmt, ...] = ()  # what stands under the new header


@dataclass(frozen=True)
class _Added:
    path: Path
    owner: cst.CSTNode
    index: int
    name: str
    text: str

    @property
    def positional(self) -> bool:
        """Whether the item must stand before those with a name."""
        return not self.text.startswith(self.name) or self.text == self.name


@dataclass(frozen=True)
class _Dropped:
    path: Path
    owner: cst.CSTNode
    index: int


@dataclass(frozen=True)
class _Deleted:
    path: Path
    statement: ast.stmt


@dataclass(frozen=True)
class _Created:
    path: Path
    text: str


_Step = _Spliced | _Moved | _Added | _Dropped | _Deleted | _Created


@dataclass(frozen=True)
class WrittenCall:
    """A call as it stands in the text: its function, and what it is given, each with its name, its stars or ""."""

    function: Site
    name: str
    given: tuple[tuple[str, str], ...]

    def value(self, name: str, position: int | None = None) -> str | None:
        """The text of an argument, by its name or its position; None where it is not passed by either."""
        found = next((text for key, text in self.given if key == name), None)
        at_place = position is not None and position < len(self.given) and not self.given[position][0]
        return self.given[position][1] if found is None and at_place and position is not None else found


class Edit:
    """The changes of one or more findings of one codemod, over one or more files.

    ``read`` gives the text of a file, None where there is none. ``trees`` keeps parses for edits of the same texts; by
    default all edits of a process share them. Every method that takes a ``Site`` raises ``Refuse`` where its file
    cannot be edited (``positions.Unreadable``) or the site is not in it (``positions.Lost``).

    ``told`` are the calls whose arguments come out of mappings in configuration files, with a value in each of these:
    such a call is given another argument there.
    """

    def __init__(
        self,
        read: Callable[[Path], str | None],
        codemod: str = "",
        trees: Trees | None = None,
        told: Mapping[Site, tuple[Site, ...]] | None = None,
    ) -> None:
        self.codemod = codemod
        self._told = told or {}
        self._read = read
        self._trees = trees
        self._open: dict[Path, Tree] = {}
        self._data: dict[Path, DataText] = {}
        self._steps: list[_Step] = []
        self._changes: Mapping[Path, tuple[Change, ...]] | None = None  # what the steps come to, until the next one

    # --- questions
    def text(self, site: Site) -> str:
        """The source text at ``site``, parentheses included for an expression that has its own."""
        if is_data(site.path):
            file, _, value = self._value(site)
            return file.text[value.start : value.end] if value is not None else ""
        tree = self._tree(site)
        return tree.source(tree.node(site))

    def statement(self, site: Site) -> Site:
        """The innermost statement (a line, or a compound one) around ``site``; an ``elif`` belongs to its ``if``.

        In a configuration file the site itself.
        """
        if is_data(site.path):
            self._value(site)
            return site
        tree = self._tree(site)
        return tree.site(tree.statement(site))

    def call(self, site: Site) -> WrittenCall:
        """The call at a site, as it is written. Raises Refuse where none stands there."""
        from turbofix.editing import brackets

        tree = self._tree(site)
        node = brackets.call_at(tree, site)
        given = (
            (each.keyword.value if each.keyword is not None else each.star, tree.source(each.value))
            for each in node.args
        )
        return WrittenCall(tree.site(node.func), tree.source(node.func), tuple(given))

    def in_data(self, site: Site) -> bool:
        """Whether what is written for ``site`` goes into a configuration file, which takes literals alone."""
        return is_data(site.path) or site in self._told

    def is_bound(self, name: str, site: Site) -> bool:
        """Whether ``name`` is bound anywhere in the file of ``site`` (import, assignment, parameter, def, global)."""
        return self._tree(site).names.is_bound(name)

    # --- expressions
    def replace(self, site: Site, text: str) -> None:
        """Replace an expression (or argparse default, dict value, dataclass default); nothing outside its span changes.

        Its own parentheses go with it; ``text`` gets parentheses where its surroundings bind tighter. A value of a
        configuration file is written as that writes it. Raises Refuse where ``text`` is no literal then.
        """
        from turbofix.editing import layout

        if is_data(site.path):
            file, _, value = self._value(site)
            if value is None or file.text[value.start : value.start + 1] in ("&", "!", "|", ">"):
                raise Refuse(f"other values may follow the one on line {site.line} of {site.path.name}")
            written = " " * (value.start == value.end) + file.spelled(self._literal(site, text), value)
            if file.text[value.start : value.end] != written:
                self._put(site.path, Change(value.start, value.end, written))
            return
        tree = self._tree(site)
        self._splice(tree, layout.replaced(tree, tree.node(site), text))

    def insert_after(self, site: Site, text: str) -> None:
        """Put ``text`` straight after the expression: ``loss`` -> ``loss.detach()``; in parentheses where binding asks.

        ``text`` may also be an operator and an operand: ``loss`` -> ``loss * n``.
        """
        from turbofix.editing import layout

        tree = self._tree(site)
        self._splice(tree, layout.extended(tree, tree.node(site), text))

    def hand_to(self, function: str, site: Site, more: str = "") -> None:
        """Call a function with the expression, and ``more`` behind it; what lies in it may change as well."""
        from turbofix.editing import layout

        tree = self._tree(site)
        self._splice(tree, layout.handed(tree, tree.node(site), f"{function}(", f"{more})"))

    def cut(self, site: Site, part: Site) -> None:
        """Leave of an expression the part that it begins with: ``x`` of ``x.to(device)``.

        Raises Refuse where it begins with something else, or a comment stands in what would go.
        """
        from turbofix.editing import layout

        tree = self._tree(site)
        self._splice(tree, [layout.cut(tree, tree.node(site), tree.node(part))])

    def argument(  # noqa: PLR0913
        self,
        call: Site,
        name: str,
        value: str,
        position: int | None = None,
        *,
        keyword_only: bool = False,
        spelled_out: bool = False,
    ) -> None:
        """Give the call the keyword ``name``; replaces it, or its positional form (index ``position``), where present.

        Raises Refuse on ``*``/``**`` that may hold it (``keyword_only``: on ``**``; ``spelled_out``: what ``**``
        unpacks is known to hold no such key), and Conflict where this edit gave it another value.
        """
        from turbofix.editing import brackets, layout

        tree = self._tree(call)
        node = brackets.call_at(tree, call)
        present = brackets.argument_index(node, name, position)
        if present is not None:
            self._splice(tree, layout.replaced(tree, node.args[present].value, value))
            return
        if (places := self._told.get(call)) is not None and is_literal(value):
            for place in places:
                self.setting(place, name, value, instead=True)
            return
        brackets.refuse_unpacking(node, name, keyword_only=keyword_only, spelled_out=spelled_out)
        self._add(tree, node, brackets.before_unpacked(node), name, f"{name}{brackets.equals_sign(node)}{value}")

    def drop_argument(self, call: Site, name: str, position: int | None = None) -> None:
        """Take the argument out, with its comma and, if alone on it, its line; comments stay.

        Raises Refuse where the call has no such argument, or where positional arguments behind it would move up.
        """
        from turbofix.editing import brackets

        tree = self._tree(call)
        node = brackets.call_at(tree, call)
        self._log(_Dropped(tree.path, node, brackets.droppable_index(node, name, position)))

    def drop_element(self, listed: Site, index: int) -> None:
        """Take an element out of a list display, as ``drop_argument`` does an argument."""
        tree = self._tree(listed)
        self._log(_Dropped(tree.path, tree.node(listed), index))

    def entry(self, mapping: Site, key: str, value: str) -> None:
        """Give a dict display ``{...}`` or a ``dict(...)`` call the entry ``key: value``, in its own layout.

        ``key`` is the bare word (``"num_workers"``). Raises Refuse where an unpacked mapping may overrule or hold it.
        """
        from turbofix.editing import brackets, layout

        tree = self._tree(mapping)
        node = tree.node(mapping)
        if brackets.is_dict_call(node):
            self.argument(mapping, key, value)
            return
        present, text = brackets.entry(tree, node, key, value)
        if present is not None:
            self._splice(tree, layout.replaced(tree, present, value))
        else:
            self._add(tree, node, _LAST, key, text)

    def setting(self, place: Site, key: str, value: str, before: str | None = None, *, instead: bool = False) -> None:
        """Give a mapping of a configuration file the entry ``key``, with a value in Python's words, in its own layout.

        ``place`` is the mapping, or a value in it, behind which the entry goes; ``before`` the entry which it precedes.
        Raises Refuse where the mapping has the key already (``instead``: with other entries under it), or the file
        cannot be edited.
        """
        file, node, beside = self._value(place)
        known = next((each for _, name, each in node.entries if name == key), None)
        if known is not None and instead and known.kind == "value":
            self.replace(file.site_of(known), value)
            return
        if known is not None:
            raise Refuse(f"{place.path.name} has {key} already on line {place.line}")
        added = file.entry(node, key, self._literal(place, value), before, beside)
        if added is None:
            raise Refuse(f"{place.path.name} has no place for {key} by line {place.line}")
        self._put(place.path, Change(added[0], added[0], added[1], Role.ADDED))

    # --- statements; any site inside a statement stands for it
    def before(self, site: Site, *lines: str, above_comments: bool = False) -> None:
        """New lines before the statement, indented as it is. Raises Refuse where it shares its line.

        ``above_comments`` puts them above the comments that stand directly over the statement.
        """
        from turbofix.editing import layout

        tree = self._tree(site)
        self._splice(tree, [layout.before(tree, tree.statement(site), lines, above_comments)])

    def after(self, site: Site, *lines: str) -> None:
        """New lines after the statement (a compound statement: after its whole body).

        Raises Refuse after ``return``, ``raise``, ``break`` and ``continue``, where nothing runs.
        """
        from turbofix.editing import layout

        tree = self._tree(site)
        self._splice(tree, [layout.after(tree, tree.statement(site), lines)])

    def replace_lines(self, first: Site, last: Site, *lines: str) -> None:
        """Replace the statements ``first`` to ``last``; comment lines in between are kept."""
        from turbofix.editing import layout

        tree = self._tree(first)
        statements = layout.run_of(tree, tree.statement(first), tree.statement(last))
        if lines:
            self._splice(tree, layout.replaced_lines(tree, statements, lines))
        else:
            for statement in statements:
                self._log(_Deleted(tree.path, statement))

    def delete(self, site: Site) -> None:
        """Take the statement out; an emptied block gets ``pass``; its comment survives."""
        tree = self._tree(site)
        self._log(_Deleted(tree.path, tree.statement(site)))

    def unimport(self, alias: Site) -> None:
        """Take a name out of the ``from ... import`` that brings it, and the whole statement with its last name.

        Where a comment stands between the names it stays as it is.
        """
        from turbofix.editing import layout

        tree = self._tree(alias)
        is_last, change = layout.unimported(tree, tree.node(alias))
        if is_last:
            self._log(_Deleted(tree.path, tree.statement(alias)))
        elif change is not None:
            self._splice(tree, [change])

    def wrap(self, first: Site, last: Site, header: str, above_comments: bool = False) -> None:
        """Put ``first`` to ``last`` (statements of one block) under ``header``, one unit deeper; strings stay.

        The comments directly above ``first`` stay above the header, or (``above_comments``) go under it.

        Whether a ``return`` or ``yield`` in it stands in the way is the codemod's to know (``Region.blockers``). Raises
        Refuse for a range that shares a line, and under ``autocast`` for one that holds a ``backward`` or ``step``.
        """
        from turbofix.editing import layout

        tree = self._tree(first)
        statements = layout.run_of(tree, tree.statement(first), tree.statement(last))
        self._log(_Moved(tree.path, layout.wrapped(tree, statements, header, above_comments), tuple(statements)))

    # --- names and functions
    def name(self, dotted: str, site: Site, module: str | None = None) -> str:
        """The spelling of ``torch.x.y`` (or ``os.cpu_count``) valid at ``site``; its import is added at most once.

        ``module`` names a submodule that the package does not load by itself (``torch.distributed.fsdp``).
        Raises Refuse where the needed name is bound to something else.
        """
        from turbofix.editing import layout

        tree = self._tree(site)
        spelled, change = layout.named(tree, dotted, site, module)
        if change is not None:
            self._splice(tree, [change])
        return spelled

    def quoted(self, word: str, site: Site) -> str:
        """``word`` as a string literal, in the kind of quotes that the file of ``site`` uses more."""
        text = self._tree(site).text if not is_data(site.path) else ""
        mark = "'" if text.count("'") > text.count('"') else '"'
        return f"{mark}{word}{mark}"

    def free_name(self, wanted: str, site: Site, taken: Collection[str] = ()) -> str:
        """``wanted``, or ``wanted_2``, ... : a name that nothing in the file uses and that is not ``taken``."""
        names = self._tree(site).names
        name, number = wanted, 1
        while names.is_used(name) or name in taken:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def parameter(self, function: Site, name: str, beside: str) -> None:
        """A new parameter straight after the parameter ``beside``; with ``=None`` where that one has a default.

        Raises Refuse where ``beside`` is missing or variadic, or the function has the parameter already.
        """
        from turbofix.editing import brackets

        tree = self._tree(function)
        node = tree.node(function)
        index, text = brackets.new_parameter(tree, node, name, beside)
        self._add(tree, node, index, name, text)

    def pass_on(self, call: Site, text: str, beside: Site, name: str | None = None) -> None:
        """A new positional argument (``name=text`` beside a keyword) straight after the argument ``beside``.

        ``name`` is the parameter's, by default the last word of ``text`` (``scaler`` for ``self.scaler``).
        """
        from turbofix.editing import brackets

        tree = self._tree(call)
        node = brackets.call_at(tree, call)
        keyword = name or text.rpartition(".")[2]
        index, argument = brackets.passed_on(tree, node, text, keyword, tree.node(beside))
        self._add(tree, node, index, keyword, argument)

    def create(self, path: Path, text: str) -> None:
        """A new file; where the file holds this text already, nothing. Raises Refuse where it holds another one."""
        there = self._read(path)
        if there is not None and there != text:
            raise Refuse(f"there is another {path.name} already")
        step = _Created(path, text)
        if there is None and step not in self._steps:
            self._steps.append(step)
            self._changes = None

    # --- all or nothing
    def mark(self) -> int:
        """The state of the edit now, for ``rollback``."""
        return len(self._steps)

    def lines(self, mark: int, end: int | None = None) -> frozenset[tuple[Path, int]]:
        """The lines of the text as it was at which what was asked for from one mark to another changes something."""
        found: set[tuple[Path, int]] = set()
        for step in self._steps[mark:end]:
            if isinstance(step, _Created):
                continue
            if isinstance(step, (_Added, _Dropped)):
                site = self._open[step.path].site(step.owner)
                found.update((step.path, line) for line in range(site.line, site.end_line + 1))
                continue
            text = self.before_text(step.path) or ""
            for start, stop in _ranges(step, self._open.get(step.path)):
                first = text.count("\n", 0, start) + 1
                last = first if isinstance(step, _Moved) else text.count("\n", 0, max(start, stop - 1)) + 1
                found.update((step.path, line) for line in range(first, last + 1))
        return frozenset(found)

    def rollback(self, mark: int) -> None:
        """Forget everything asked for since ``mark``."""
        del self._steps[mark:]
        self._changes = None

    def keep_apart(self, marks: Sequence[int]) -> list[int]:
        """Forget those of several parts of the edit, told by where they begin, that meet one before them: which."""
        steps, self._steps = self._steps, []
        dropped = []
        for number, (start, end) in enumerate(itertools.pairwise((*marks, len(steps)))):
            try:
                with self.attempt():
                    self._steps += steps[start:end]
                    self._changes = None
            except Conflict:
                dropped.append(number)
        return dropped

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Keep what is asked for inside only if it raises nothing and overlaps with nothing; the exception goes on."""
        mark = self.mark()
        try:
            yield
            self.changes()
        except BaseException:
            self.rollback(mark)
            raise

    # --- results
    def changes(self) -> Mapping[Path, tuple[Change, ...]]:
        """The changes of every file, in order; their ranges count in the text as it was. Raises Conflict."""
        if self._changes is None:
            paths = dict.fromkeys(step.path for step in self._steps)
            found = {path: self._changes_of(path) for path in paths}
            self._changes = {path: changes for path, changes in found.items() if changes}
        return self._changes

    def apply(self) -> Mapping[Path, str]:
        """The new text of every changed file. Raises Conflict."""
        found = {path: (self.before_text(path) or "", changes) for path, changes in self.changes().items()}
        texts = {path: (old, changed(old, changes)) for path, (old, changes) in found.items()}
        return {path: new for path, (old, new) in texts.items() if new != old}

    def before_text(self, path: Path) -> str | None:
        """The text that the changes of a file count in, ``""`` of a new one; None where the edit never looked at it."""
        file = self._open.get(path) or self._data.get(path)
        if file is None and any(isinstance(step, _Created) and step.path == path for step in self._steps):
            return ""
        return file.text if file is not None else None

    # --- inside
    def _tree(self, site: Site) -> Tree:
        if is_data(site.path):
            raise Refuse(f"it is decided on line {site.line} of {site.path.name}: change it there")
        if site.path.suffix == STUB:
            raise Refuse(f"it is done {site.line_from(site.path)}")
        if site.path not in self._open:
            from turbofix.editing.positions import SHARED

            text = self._read(site.path)
            if text is None:
                raise Refuse(f"{site.path} cannot be read")
            self._open[site.path] = (self._trees or SHARED).get(site.path, text)
        return self._open[site.path]

    def _value(self, site: Site) -> tuple[DataText, Node, Node | None]:
        """A configuration file, the mapping that a site in it means or that holds its value, and that value."""
        from turbofix.source.datafile import NotPlainError, read

        path = site.path
        if path not in self._data:
            text = self._read(path)
            if text is None:
                raise Refuse(f"{path} cannot be read")
            try:
                self._data[path] = read(path, text)
            except NotPlainError as error:
                raise Refuse(f"{path.name} {error}") from error
        found = self._data[path].holder(site)
        if found is None:
            raise Refuse(f"{path.name} has no setting by itself on line {site.line}")
        return self._data[path], *found

    def _literal(self, site: Site, text: str) -> object:
        if not is_literal(text):
            raise Refuse(f"it is decided on line {site.line} of {site.path.name}, which cannot say `{text}`")
        return ast.literal_eval(text)

    def _put(self, path: Path, change: Change) -> None:
        step = _Spliced(path, (change,))
        if step not in self._steps:
            self._steps.append(step)
            self._changes = None

    def _log(self, step: _Step) -> None:
        tree = self._open[step.path]
        for start, end in _ranges(step, tree):
            _refuse_marks(tree.text[start:end], moved=isinstance(step, _Moved))
        if step not in self._steps:
            self._steps.append(step)
            self._changes = None

    def _splice(self, tree: Tree, changes: Iterable[Change]) -> None:
        """Log changes; one that leaves the text as it is counts for nothing."""
        real = tuple(change for change in changes if tree.text[change.start : change.end] != change.text)
        if real:
            self._log(_Spliced(tree.path, real))

    def _add(self, tree: Tree, owner: cst.CSTNode, index: int, name: str, text: str) -> None:
        for step in self._steps:
            if isinstance(step, _Added) and (step.path, step.owner, step.name) == (tree.path, owner, name):
                if step.text == text:
                    return
                raise Conflict(f"{name} is given two values on line {tree.site(owner).line}")
        self._log(_Added(tree.path, owner, index, name, text))

    def _changes_of(self, path: Path) -> tuple[Change, ...]:
        from turbofix.editing import brackets, layout

        steps = [step for step in self._steps if step.path == path]
        if isinstance(steps[0], _Created):
            return (Change(0, 0, steps[0].text, lines=True),)
        changes = [change for step in steps if isinstance(step, _Spliced) for change in step.changes]
        if path in self._data:
            return composed(self._data[path].text, changes, ())
        tree = self._open[path]
        shifts = [step.shift for step in steps if isinstance(step, _Moved)]
        owners = dict.fromkeys(step.owner for step in steps if isinstance(step, (_Added, _Dropped)))
        tuples: dict[cst.Tuple, list[str]] = {}
        calls: dict[cst.Call, list[str]] = {}
        for owner in owners:
            bracket: Bracket = brackets.bracket(tree, owner)
            around = brackets.bare_tuple(tree, owner)
            call = brackets.call_around(tree, owner) if around is None else None
            texts = [step.text for step in steps if isinstance(step, _Added) and step.owner is owner]
            if around is not None:
                bracket = replace(bracket, breakable=False)
                tuples.setdefault(around, []).extend(texts)
            elif call is not None:
                bracket = replace(bracket, breakable=False)
                calls.setdefault(call, []).extend(texts)
            added: dict[int, list[str]] = {}
            items = [step for step in steps if isinstance(step, _Added) and step.owner is owner]
            for step in sorted(items, key=lambda item: not item.positional):
                added.setdefault(step.index % max(len(bracket.items), 1), []).append(step.text)
            dropped = {step.index for step in steps if isinstance(step, _Dropped) and step.owner is owner}
            changes += brackets.changed_items(tree, bracket, added, dropped)
        for around, texts in tuples.items():
            changes += brackets.one_per_line(tree, around, texts)
        for call, texts in calls.items():
            if call not in owners:  # one that is given an argument itself is laid out with it
                changes += brackets.argument_per_line(tree, call, texts)
        gone = [step.statement for step in steps if isinstance(step, _Deleted)]
        for moved in steps:
            if isinstance(moved, _Moved) and moved.statements and all(each in gone for each in moved.statements):
                raise conflict(tree.text, moved.shift.start)  # nothing would be left under the new header
        changes += layout.deleted(tree, gone)
        return composed(tree.text, _one_group(changes), shifts)


def is_literal(text: str) -> bool:
    """Whether a text of Python is a value by itself."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _one_group(changes: Iterable[Change]) -> list[Change]:
    """The changes, where several imports that come to one place share the blank lines around them."""
    found = list(dict.fromkeys(changes))
    places: dict[tuple[int, int], list[int]] = {}
    for number, change in enumerate(found):
        if change.role is Role.IMPORT:
            places.setdefault((change.start, change.depth), []).append(number)
    for numbers in places.values():
        for number in numbers[1:]:
            found[number] = replace(found[number], text=re.sub(r"\A(\r\n|\n|\r)", "", found[number].text))
        for number in numbers[:-1]:
            found[number] = replace(found[number], text=re.sub(r"(\r\n|\n|\r)\1\Z", r"\1", found[number].text))
    return found


def _ranges(step: _Step, tree: Tree | None) -> Iterator[tuple[int, int]]:
    """The ranges of the text that a step rewrites or moves."""
    match step:
        case _Spliced():
            yield from ((change.start, change.end) for change in step.changes)
        case _Deleted() if tree is not None:
            yield tree.outer(step.statement)
        case _Moved():
            yield step.shift.start, step.shift.end
        case _:
            pass


def _refuse_marks(text: str, moved: bool) -> None:
    """Raise Refuse for a range over several cells of a notebook, or over what is not Python in one and would change."""
    from turbofix.source.magics import FENCE_LINE, MARK  # here, since most runs edit nothing

    if FENCE_LINE in text:
        raise Refuse("the code to be changed is spread over several cells of the notebook")
    if MARK in text and not moved:
        raise Refuse("a magic or a shell line of the notebook stands in the code to be changed")
