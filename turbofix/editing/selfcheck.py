"""What must hold of every edit before anyone sees it: checks of texts against texts, without the editing engine's tree.

Each check gives a sentence that says what went wrong, or None. A sentence means a bug of ours: the edit is thrown away.
That the finding is gone and that a second run changes nothing is the pipeline's to check.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from turbofix.editing.changes import Change, Role, undone
from turbofix.editing.edit import Edit
from turbofix.regex import NEWLINE
from turbofix.source.datafile import NotPlainError, is_data, lost, read
from turbofix.source.magics import MARK, MASKED
from turbofix.source.nodes import Word, children, parse, stretches, unreadable, walk, words

_BOM = "\ufeff"
_UNDER_AUTOCAST = ("backward", "step")


def check(edit: Edit) -> str | None:
    """What is wrong with the outcome of an edit, in any of its files. Raises Conflict as ``Edit.apply`` does."""
    texts = edit.apply()
    changes = edit.changes()
    for path, new in texts.items():
        old = edit.before_text(path)
        assert old is not None
        problem = check_text(path, old, new, changes[path])
        if problem is not None:
            return problem
    return None


def unbound(edit: Edit) -> str | None:
    """A name that was written where nothing binds it, as ``self`` outside of a method."""
    for path, new in edit.apply().items():
        added = sorted(_unbound(new) - _unbound(edit.before_text(path) or "")) if not is_data(path) else ()
        if added:
            return f"`{added[0]}` is not known where it would stand in {path.name}"
    return None


def check_text(path: Path, old: str, new: str, changes: Sequence[Change]) -> str | None:
    """What is wrong with one rewritten text, given the changes that made it."""
    problem = _not_undone(path, old, new, changes) or _newlines_changed(path, old, new)
    if is_data(path):
        return problem or _data_lost(path, old, new, changes)
    return (
        problem
        or _cells_changed(path, old, new)
        or _does_not_compile(path, old, new)
        or _lost_text(path, old, new, changes)
        or _backward_under_autocast(path, old, new, changes)
    )


def _not_undone(path: Path, old: str, new: str, changes: Sequence[Change]) -> str | None:
    at = 0
    for change in changes:
        if change.start < at or change.end < change.start:
            return f"two changes of {path.name} overlap at character {change.start}"
        at = change.end
    if undone(old, new, changes) != old:
        return f"taking the changes of {path.name} back does not give the original"
    return None


def _newlines_changed(path: Path, old: str, new: str) -> str | None:
    if old.startswith(_BOM) != new.startswith(_BOM) or _BOM in new[1:]:
        return f"the byte-order mark of {path.name} moved"
    before, after = set(NEWLINE.findall(old)), set(NEWLINE.findall(new))
    if before and not after <= before:
        return f"the line endings of {path.name} are not what they were"
    if old and new and old.endswith(("\n", "\r")) != new.endswith(("\n", "\r")):
        return f"the end of {path.name} is not what it was"
    return None


def _data_lost(path: Path, old: str, new: str, changes: Sequence[Change]) -> str | None:
    """Everything that a configuration file says must be there, in its order, but for what is replaced."""
    replaced = {change.start for change in changes if change.role is Role.REPLACED}
    try:
        if lost(read(path, old).top, read(path, new).top, replaced):
            return f"{path.name} has lost something that it said"
    except NotPlainError as error:
        return f"the rewritten {path.name} {error}"
    return None


def _cells_changed(path: Path, old: str, new: str) -> str | None:
    if MARK not in old and MARK not in new:  # no notebook
        return None
    from turbofix.source.notebook import split

    if len(split(old)) != len(split(new)) or MASKED.findall(old) != MASKED.findall(new):
        return f"the cells of {path.name}, or lines in them that are not Python, are not what they were"
    return None


def _does_not_compile(path: Path, old: str, new: str) -> str | None:
    problem = _syntax_problem(new)
    if problem is None or _syntax_problem(old) == problem:
        return None  # a notebook's stray `return` is not ours to have broken
    return f"the rewritten {path.name} does not compile: {problem}"


def _syntax_problem(text: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text.removeprefix(_BOM), "<rewritten>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return str(error.msg if isinstance(error, SyntaxError) else error)
    return None


@lru_cache(8)
def _unbound(text: str) -> frozenset[str]:
    """The names that are read in some scope and bound in none that it sees."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tables = [symtable.symtable(text.removeprefix(_BOM), "<rewritten>", "exec")]
    except (SyntaxError, ValueError):
        return frozenset()
    top = {each.get_name() for each in tables[0].get_symbols() if each.is_assigned() or each.is_imported()}
    for table in tables:
        tables += table.get_children()
    symbols = [(table, each) for table in tables for each in table.get_symbols()]
    read = {each.get_name() for table, each in symbols if each.is_global() or table is tables[0]}
    return frozenset(read - top - vars(builtins).keys()) if "import *" not in text else frozenset()


def _lost_text(path: Path, old: str, new: str, changes: Sequence[Change]) -> str | None:
    """Strings and code outside what was replaced must be there, in their order; comments must all be there."""
    if not changes:
        return None
    try:
        return _lost_between(path, old, new, changes, stretches(old, ((each.start, each.end) for each in changes)))
    except (SyntaxError, ValueError, tokenize.TokenError):  # a string that was opened in one ends in another one
        return _lost_between(path, old, new, changes, [(0, len(old))])


def _lost_between(
    path: Path, old: str, new: str, changes: Sequence[Change], places: Sequence[tuple[int, int]]
) -> str | None:
    """What is lost in some stretches of the old text that the changes are in: in all others, nothing can be."""
    rewritten = [(change.start, change.end) for change in changes if change.rewrites]
    # An expression inside an f-string may change; nothing may be put into it to indent it.
    replaced = [(change.start, change.end) for change in changes if change.role is not Role.INDENT]
    comments: Counter[str] = Counter()
    moved = 0
    for first, last in places:
        grown = sum(len(each.text) - (each.end - each.start) for each in changes if first <= each.start <= last)
        before, after = words(old[first:last]), words(new[first + moved : last + moved + grown])
        here = [each for each in rewritten if first <= each[1] and each[0] <= last]
        put_here = [each for each in replaced if first <= each[1] and each[0] <= last]
        moved += grown
        remaining = iter([each.text for each in after if not each.is_comment])
        for word in before:
            if word.is_comment:
                comments[word.text] += not _meet(word, first, here)
            elif not _meet(word, first, put_here) and word.text not in remaining:  # consumes what stands before it
                what = "a string" if word.is_string else "code"
                return f"{what} of {path.name} is not what it was: {word.text[:40]}"
        comments.subtract(each.text for each in after if each.is_comment)
    for comment in +comments:
        return f"a comment of {path.name} would be lost: {comment[:60]}"
    return None


def _meet(word: Word, shift: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether one of the ranges overlaps with the word; a string may also have something put into it."""
    first, last = word.start + shift, word.end + shift
    return any(start < last and first < end and (word.is_string or start < end) for start, end in ranges)


def _backward_under_autocast(path: Path, old: str, new: str, changes: Sequence[Change]) -> str | None:
    # what neither indents nor says a word of it leaves them where they are: then nothing need be read
    moved = any(
        each.role is Role.INDENT or any(word in each.text for word in ("autocast", *_UNDER_AUTOCAST))
        for each in changes
    )
    if moved and _count_under_autocast(new) > _count_under_autocast(old):
        return f"a backward or a step of {path.name} would run under autocast"
    return None


@lru_cache(8)
def _count_under_autocast(text: str) -> int:
    """How many calls of ``backward`` and ``step`` stand in the body of a ``with`` that opens autocast."""
    if "autocast" not in text or unreadable(text):
        return 0
    nodes = list(walk(parse(text)))
    contexts = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _mentions_autocast(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    contexts |= {
        alias.asname
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "autocast" and alias.asname
    }
    known = frozenset(contexts)
    return sum(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _UNDER_AUTOCAST
        for node in nodes
        if isinstance(node, (ast.With, ast.AsyncWith))
        and any(_mentions_autocast(item.context_expr, known) for item in node.items)
        for statement in node.body
        for inner in _run_now(statement)
    )


def _mentions_autocast(node: ast.AST, contexts: frozenset[str]) -> bool:
    return any(
        (isinstance(each, ast.Attribute) and each.attr == "autocast")
        or (isinstance(each, ast.Name) and (each.id == "autocast" or each.id in contexts))
        for each in walk(node)
    )


def _run_now(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that run with it: not the bodies of functions that it defines."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        for child in children(node):
            yield from _run_now(child)
