"""What a stage changed in the text, whether those statements ran, and whether what they switch on was on."""

from __future__ import annotations

import ast
import difflib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turbofix.datafile import is_data


def changed_statements(old: bytes, new: bytes, *, indented: bool = False) -> tuple[Sequence[int], ...]:
    """For each run of changed lines, the lines of the statements that it touches; lines count from 1.

    A compound statement counts with its header alone, and speaks for nothing in it: what is new in a branch is told for
    itself, once. Comments, blank lines and pure deletions have no statement, and what was only indented is not new,
    but where it is asked for with what is.
    """
    before, after = _lines(old), _lines(new)
    try:
        tree = ast.parse(new)
    except SyntaxError:
        return ()
    statements = _statements(tree)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    runs = [codes[1:] for codes in matcher.get_opcodes() if codes[0] != "equal"]
    gone = {line.strip() for start, end, _, _ in runs for line in before[start:end]}
    changed = {line + 1 for _, _, start, end in runs for line in range(start, end) if after[line].strip() not in gone}
    fresh = {statements[line] for line in changed if line in statements}
    found: list[Sequence[int]] = []
    for _, _, start, end in runs:
        # The statements of one run of lines stand or fall together: one that ran speaks for its neighbours.
        here = {statements[line] for line in range(start + 1, end + 1) if line in statements}
        if fresh & here:
            here = here if indented else fresh & here
            found.append(range(min(s.start for s in here), max(s.stop for s in here)))
    found += [each for each in _branches(tree.body, fresh) if each not in found]
    return tuple(found)


def _branches(body: list[ast.stmt], fresh: Collection[range]) -> Iterator[Sequence[int]]:
    """The lines that are new in each branch below these statements.

    Of two branches that came with their ``if`` one is enough, as is any line of a function or a class that is new, and
    nobody waits for the handler of an exception.
    """
    for node in body:
        new = _header(node) in fresh
        branches = _inner(node)
        if isinstance(node, ast.ClassDef) and not new:
            yield from _branches(node.body, fresh)  # it runs with what is around it
            continue
        if isinstance(node, ast.ClassDef):
            branches = [[each for method in _methods(node) for each in method.body]]
        whole = new and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        lines = [_new_lines(branch, fresh, deep=whole) for branch in branches]
        if whole and not any(lines) and branches:
            yield range(branches[0][0].lineno, (node.end_lineno or 0) + 1)  # of a decorator or a default, once called
        if new and len(branches) > 1 and isinstance(node, (ast.If, ast.Match)) and all(lines):
            yield _span(itertools.chain(*lines))
            continue
        for branch, mine in zip(branches, lines, strict=True):
            if mine:
                yield _span(mine)
            if not whole:
                yield from _branches(branch, fresh)


def _inner(node: ast.stmt) -> list[list[ast.stmt]]:
    """The branches of a compound statement that are on lines of their own."""
    if isinstance(node, ast.Match):
        return [case.body for case in node.cases]
    branches = [getattr(node, name, None) or [] for name in ("body", "orelse", "finalbody")]
    return [branch for branch in branches if branch and branch[0].lineno > node.lineno]


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _new_lines(branch: list[ast.stmt], fresh: Collection[range], *, deep: bool) -> list[range]:
    """The new statements of a branch, or ``deep`` those below them, too."""
    nodes = [each for top in branch for each in (_walk(top) if deep else (top,))]
    return [header for node in nodes for header in [_header(node)] if header in fresh and not _is_silent(node)]


def _is_silent(node: ast.stmt) -> bool:
    """Whether Python runs nothing for it."""
    said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return said or isinstance(node, (ast.Global, ast.Nonlocal))


def _span(statements: Iterable[range]) -> Sequence[int]:
    """Their lines, without what stands between them."""
    lines = sorted(set(itertools.chain(*statements)))
    whole = range(lines[0], lines[-1] + 1)
    return whole if len(whole) == len(lines) else tuple(lines)


def _header(node: ast.stmt) -> range:
    """The lines of a statement; of a compound one, those of its header."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    last = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        # `if x: y` on one line is one statement as far as lines can tell
        last = max(first, body[0].lineno - 1)
    return range(first, last + 1)


def _lines(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").splitlines()


def _statements(tree: ast.Module) -> dict[int, range]:
    """The innermost statement that covers each line, as the lines of its header."""
    covered: dict[int, range] = {}
    for node in _walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring runs nothing
        header = _header(node)
        covered.update(dict.fromkeys(header, header))
    return covered


def _walk(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements, outer ones first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield node


def first_not_run(
    before: Mapping[Path, bytes], after: Mapping[Path, bytes], ran: Mapping[Path, Collection[int]]
) -> tuple[Path, int] | None:
    """The first changed statement that did not run: its file and line; None when all ran.

    ``ran`` counts lines in the text of ``after``. Configuration files have none.
    """
    for path, new in after.items():
        if is_data(path):
            continue
        lines = set(ran.get(path, ()))
        for statement in changed_statements(before.get(path, b""), new):
            if not lines.intersection(statement):
                return path, statement[0]
    return None


def first_idle(
    before: Mapping[Path, bytes], after: Mapping[Path, bytes], last: Mapping[Path, bytes], idle: Mapping[Path, set[int]]
) -> tuple[Path, int] | None:
    """The first changed line of ``after`` that is, in the text of ``last``, one of those ``idle``."""
    for path, new in after.items():
        final, own = _lines(last.get(path, new)), _lines(new)
        found = idle.get(path, set())
        words = {final[line - 1].strip() for line in found if line <= len(final)}
        for line in sorted(carried_lines(new, last.get(path, new), found)):
            changed = any(line in statement for statement in changed_statements(before.get(path, b""), new))
            # a later stage may have indented it
            if changed and own[line - 1].strip() in words:
                return path, line
    return None


def carried_lines(middle: bytes, last: bytes, ran_in_last: Collection[int]) -> set[int]:
    """The lines of ``middle`` whose counterparts in ``last`` ran.

    A line that a later stage indented counts as run when it did; one that was replaced, when one of the others did.
    """
    ran = set(ran_in_last)
    found: set[int] = set()
    own, new = _lines(middle), _lines(last)
    matcher = difflib.SequenceMatcher(None, own, new, autojunk=False)
    for tag, start, end, start_last, end_last in matcher.get_opcodes():
        if tag == "equal":
            found |= {start + i + 1 for i in range(end - start) if start_last + i + 1 in ran}
        elif tag == "replace":
            replaced = range(start_last + 1, end_last + 1)
            for line in range(start + 1, end + 1):
                same = [each for each in replaced if new[each - 1].strip() == own[line - 1].strip()]
                if ran.intersection(same or replaced):
                    found.add(line)
    return found


def added_switches(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> str:
    """The calls, keywords and settings that a stage added or gave another value, one per line."""
    added: Counter[str] = Counter()
    for path, new in after.items():
        added += Counter(_switches(new)) - Counter(_switches(before.get(path, b"")))
    return "\n".join(added)


def _switches(text: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield f"{ast.unparse(node.func)}("
            # the flag that a parser's default belongs to
            words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            flags = " ".join(word for word in words if isinstance(word, str))
            yield from (f"{flags} {keyword.arg}={_plain(keyword.value)}" for keyword in node.keywords)
        elif isinstance(node, ast.Dict):
            yield from (
                f"{key.value}={_plain(value)}"
                for key, value in zip(node.keys, node.values, strict=False)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{ast.unparse(target)} = {_plain(node.value)}" for target in targets)


def _plain(value: ast.expr) -> str:
    """The value's text, empty where it calls something: its calls are told for themselves."""
    return "" if any(isinstance(node, ast.Call) for node in ast.walk(value)) else ast.unparse(value)


def asleep(
    added: str, events: Mapping[str, Any], *, cuda: bool, rounded: bool = False, remapped: bool = True
) -> str | None:
    """What ``added`` switches on and the run shows to have been off, in a sentence; None when nothing was.

    ``rounded``: there was no GPU, and matrix products were rounded as TF32 rounds them; ``remapped``: the script asked
    for one, and computed in its place.
    """
    tf32, no_tf32 = cuda or rounded, "no float32 matrix product ran in TF32, and there was no GPU"
    # (what was added, whether the run shows it, what to tell)
    signs: tuple[tuple[str, bool, str], ...] = (
        ("autocast(", bool(events.get("autocast")), "autocast was never enabled in the run"),
        ("GradScaler(", bool(events.get("scaler")), "the gradient scaler was never enabled in the run"),
        ("fused=", bool(events.get("fused")), "no optimizer stepped fused in the run"),
        ("_workers", bool(events.get("workers")), "no loader had workers in the run"),
        ("non_blocking=", cuda or remapped, "nothing was moved to a GPU in the run"),
        *((sign, tf32, no_tf32) for sign in ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")),
        ("cudnn.benchmark", cuda, "cuDNN works on a GPU alone, and this run had none"),
    )
    off = [words for sign, shown, words in signs if sign in added and not shown]
    # Beside bfloat16 a scaler is off on purpose.
    if "autocast(" in added and events.get("autocast") and "float16" not in events["autocast"]:
        off = [words for words in off if "scaler" not in words]
    return off[0] if off else None
