"""What a stage changed in the text, whether those statements ran, and whether what they switch on was on."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any


def changed_statements(old: bytes, new: bytes) -> tuple[range, ...]:
    """For each run of changed lines, the lines of the statements that it touches; lines count from 1.

    A compound statement counts with its header alone. Comments, blank lines and pure deletions have no statement.
    Where a new ``if`` keeps the old statements in one of its branches, the other branch is told for itself.
    """
    before, after = _lines(old), _lines(new)
    try:
        tree = ast.parse(new)
    except SyntaxError:
        return ()
    statements = _statements(tree)
    found: list[range] = []
    for tag, old_start, old_end, start, end in difflib.SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if tag in ("equal", "delete"):
            continue
        touched = {s for line in range(start + 1, end + 1) for s in [statements.get(line)] if s is not None}
        # The statements of one run of lines stand or fall together: one that ran speaks for its neighbours.
        if touched:
            found.append(range(min(s.start for s in touched), max(s.stop for s in touched)))
        # But where what was there stays, for when the test says so, it is no sign of the change that it ran.
        found += _instead(tree, after, range(start + 1, end + 1), {line.strip() for line in before[old_start:old_end]})
    return tuple(found)


def _instead(tree: ast.Module, after: list[str], added: range, old: set[str]) -> Iterator[range]:
    """The branches, of two in an added ``if``, beside those that hold nothing but lines that were there before."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or not node.orelse or node.lineno not in added:
            continue
        branches = [range(each[0].lineno, (each[-1].end_lineno or 0) + 1) for each in (node.body, node.orelse)]
        stays = [all(after[line - 1].strip() in {*old, ""} for line in each) for each in branches]
        if any(stays) and not all(stays):
            yield branches[stays.index(False)]


def _lines(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").splitlines()


def _statements(tree: ast.Module) -> dict[int, range]:
    """The innermost statement that covers each line, as the lines of its header."""
    covered: dict[int, range] = {}
    for node in _walk(tree):
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            # `if x: y` on one line is one statement as far as lines can tell
            last = max(first, body[0].lineno - 1)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring runs nothing
        for line in range(first, last + 1):
            covered[line] = range(first, last + 1)
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

    ``ran`` counts lines in the text of ``after``.
    """
    for path, new in after.items():
        lines = set(ran.get(path, ()))
        for statement in changed_statements(before.get(path, b""), new):
            if not lines.intersection(statement):
                return path, statement.start
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

    A line that a later stage replaced counts as run when one of the lines that replaced it did.
    """
    ran = set(ran_in_last)
    found: set[int] = set()
    matcher = difflib.SequenceMatcher(None, _lines(middle), _lines(last), autojunk=False)
    for tag, start, end, start_last, end_last in matcher.get_opcodes():
        if tag == "equal":
            found |= {start + i + 1 for i in range(end - start) if start_last + i + 1 in ran}
        elif tag == "replace" and ran.intersection(range(start_last + 1, end_last + 1)):
            found |= set(range(start + 1, end + 1))
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


def asleep(added: str, events: Mapping[str, Any], *, cuda: bool, rounded: bool = False) -> str | None:
    """What ``added`` switches on and the run shows to have been off, in a sentence; None when nothing was.

    ``rounded``: there was no GPU, and matrix products were rounded as TF32 rounds them.
    """
    tf32 = cuda or rounded
    # (what was added, whether the run shows it, what to tell)
    signs: tuple[tuple[str, bool, str], ...] = (
        ("autocast(", bool(events.get("autocast")), "autocast was never enabled in the run"),
        ("GradScaler(", bool(events.get("scaler")), "the gradient scaler was never enabled in the run"),
        ("fused=", bool(events.get("fused")), "no optimizer stepped fused in the run"),
        ("num_workers", bool(events.get("workers")), "no loader had workers in the run"),
        ("set_float32_matmul_precision", tf32, "no float32 matrix product ran in TF32, and there was no GPU"),
        ("allow_tf32", tf32, "no float32 matrix product ran in TF32, and there was no GPU"),
        ("fp32_precision", tf32, "no float32 matrix product ran in TF32, and there was no GPU"),
        ("cudnn.benchmark", cuda, "cuDNN works on a GPU alone, and this run had none"),
    )
    off = [words for sign, shown, words in signs if sign in added and not shown]
    # Beside bfloat16 a scaler is off on purpose.
    if "autocast(" in added and events.get("autocast") and "float16" not in events["autocast"]:
        off = [words for words in off if "scaler" not in words]
    return off[0] if off else None
