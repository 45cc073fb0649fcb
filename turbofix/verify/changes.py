"""What a stage changed in the text, whether those statements ran, and whether what they switch on was on."""

from __future__ import annotations

import ast
import difflib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from turbofix.records import dataclass
from turbofix.source.datafile import is_data


def changed_statements(old: bytes, new: bytes, *, indented: bool = False) -> tuple[Sequence[int], ...]:
    """For each run of changed lines, the lines of the statements that it touches; lines count from 1.

    A compound statement counts with its header alone, and speaks for nothing in it: what is new in a branch is told for
    itself, once. Comments, blank lines and pure deletions have no statement, and what was only indented is not new,
    but where it is asked for with what is.
    """
    try:
        tree = ast.parse(new)
    except SyntaxError:
        return ()
    statements = _statements(tree)
    fresh, runs = _fresh(old, new, statements)
    found: list[Sequence[int]] = []
    for start, end in runs:
        # The statements of one run of lines stand or fall together: one that ran speaks for its neighbours.
        here = {statements[line] for line in range(start + 1, end + 1) if line in statements}
        if fresh & here:
            here = here if indented else fresh & here
            found.append(range(min(s.start for s in here), max(s.stop for s in here)))
    found += [each for each in _branches(tree.body, fresh) if each not in found]
    return tuple(found)


def _fresh(old: bytes, new: bytes, statements: Mapping[int, range]) -> tuple[set[range], list[tuple[int, int]]]:
    """The statements that are new, and the runs of changed lines (from 0)."""
    before, after = _lines(old), _lines(new)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    runs = [codes[1:] for codes in matcher.get_opcodes() if codes[0] != "equal"]
    gone = {line.strip() for start, end, _, _ in runs for line in before[start:end]}
    changed = {line + 1 for _, _, start, end in runs for line in range(start, end) if after[line].strip() not in gone}
    return {statements[line] for line in changed if line in statements}, [(start, end) for _, _, start, end in runs]


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
            body = [each for method in _methods(node) for each in method.body]
            branches = [body] if body else []  # a class may have no methods
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


@dataclass(frozen=True)
class Statements:
    """The statements that a stage changed in one place, by their lines. ``waived``: no run is asked to reach them."""

    path: Path
    lines: Sequence[int]
    ran: bool
    waived: bool = False


def reached(
    before: Mapping[Path, bytes], after: Mapping[Path, bytes], ran: Mapping[Path, Collection[int]]
) -> Iterator[Statements]:
    """Which of the changed statements ran; ``ran`` counts lines in the text of ``after``.

    Configuration files have none. Nobody waits for an exception, nor for a new option to be given: the original has
    nothing that could be compared with what is done then.
    """
    for path, new in after.items():
        if not is_data(path) and before.get(path):  # of a new file, what is called is looked at where it is called
            old, here = before[path], set(ran.get(path, ()))
            waived = _waived(old, new)
            for lines in changed_statements(old, new):
                if not any(set(block).issuperset(lines) for block in waived):
                    yield Statements(path, lines, not here.isdisjoint(lines))
            yield from (Statements(path, block, not here.isdisjoint(block), True) for block in waived)


def _waived(old: bytes, new: bytes) -> list[range]:
    """The lines of each new handler or raise of an exception, and of what is done only where a new option is given."""
    try:
        tree = ast.parse(new)
    except SyntaxError:
        return []
    fresh, _ = _fresh(old, new, _statements(tree))
    options = {name for node in _walk(tree) if _header(node) in fresh for name in _options(node)}
    found: list[range] = []
    for node in ast.walk(tree):
        blocks: list[list[ast.stmt]] = []
        if isinstance(node, ast.Try):
            blocks = [handler.body for handler in node.handlers]
        elif isinstance(node, ast.If) and isinstance(node.test, (ast.Name, ast.Attribute)) and not node.orelse:
            blocks = [node.body] if last_name(node.test) in options else []
        elif isinstance(node, ast.If) and all(isinstance(each, ast.Raise) for each in node.body):
            blocks = [node.body]
        found += [
            range(block[0].lineno, (block[-1].end_lineno or 0) + 1)
            for block in blocks
            if all(_header(each) in fresh for top in block for each in _walk(top) if not _is_silent(each))
        ]
    return found


def _options(node: ast.stmt) -> Iterator[str]:
    """The names of the options that a statement declares for the command line, or asks the environment for."""
    if not isinstance(node, (ast.Expr, ast.Assign)) or not isinstance(node.value, ast.Call):
        return
    call, words = node.value, [each.value for each in node.value.args if isinstance(each, ast.Constant)]
    if last_name(call.func) == "add_argument" and isinstance(node, ast.Expr):
        yield from (str(word).lstrip("-").replace("-", "_") for word in words)
    elif ast.unparse(call.func) in ("os.environ.get", "os.getenv") and len(words) == 1 and isinstance(node, ast.Assign):
        yield from (last_name(target) for target in node.targets)


def last_name(node: ast.AST) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def lines_before(old: bytes, new: bytes, lines: Collection[int]) -> set[int]:
    """The lines of ``old`` that stand where these lines of ``new`` came from, or beside them."""
    found: set[int] = set()
    for tag, start, end, first, last in difflib.SequenceMatcher(None, _lines(old), _lines(new), False).get_opcodes():
        if tag != "equal" and any(first < line <= last for line in lines):
            found.update(range(start + (end > start), end + 1 + (end == start)))
    return found


def may_run(old: bytes, new: bytes, ran: Collection[int]) -> set[int]:
    """The lines of ``new``, but for those in the place of which, or around which, ``old`` has what did not run.

    What is put into a statement runs with it.
    """
    found, executable = set[int](), sorted(_executable(compile(old, "", "exec", dont_inherit=True)))
    statements, stayed = _statements(ast.parse(new)), {line: old_line for old_line, line in moved(old, new).items()}
    for tag, start, end, first, last in difflib.SequenceMatcher(None, _lines(old), _lines(new), False).get_opcodes():
        if tag == "equal":
            found.update(first + line - start for line in range(start + 1, end + 1) if line in ran)
            continue
        before, after = ([line for line in executable if (line <= start) == early] for early in (True, False))
        stood = [line for line in after if line <= end] or [*before[-1:], *after[:1]]
        for line in range(first + 1, last + 1):
            kin = [stayed[each] for each in statements.get(line, ()) if stayed.get(each) in executable]
            if not stood or not set(ran).isdisjoint(kin or stood):
                found.add(line)
    return found


def runs_otherwise(old: bytes, new: bytes, ran: Collection[int]) -> bool:
    """Whether lines in which two texts differ may have run, as far as the lines of ``old`` that ran tell."""
    statements = _statements(ast.parse(old))
    gone = [range(line, line + 1) for line in new_lines(new, old)]
    reached = {line for each in gone for line in statements.get(each.start, each)}
    return not (reached.isdisjoint(ran) and may_run(old, new, ran).isdisjoint(new_lines(old, new)))


def moved(old: bytes, new: bytes) -> dict[int, int]:
    """Where the lines of ``old`` stand that ``new`` has, too."""
    blocks = difflib.SequenceMatcher(None, _lines(old), _lines(new), autojunk=False).get_matching_blocks()
    return {start + i + 1: first + i + 1 for start, first, size in blocks for i in range(size)}


def _executable(code: CodeType) -> set[int]:
    """The lines of which Python runs something."""
    inner = (_executable(each) for each in code.co_consts if isinstance(each, CodeType))
    return {line for *_, line in code.co_lines() if line}.union(*inner)


def new_lines(old: bytes, new: bytes) -> list[int]:
    """The lines of ``new`` that ``old`` does not have there."""
    codes = difflib.SequenceMatcher(None, _lines(old), _lines(new), autojunk=False).get_opcodes()
    return [line + 1 for tag, _, _, start, end in codes if tag != "equal" for line in range(start, end)]


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
    """The calls, keywords and settings that a stage added or gave another value, one per line; none handed on."""
    added: Counter[str] = Counter()
    for path, new in after.items():
        if before.get(path):  # a new file switches nothing on that its callers do not ask for
            added += Counter(_switches(new)) - Counter(_switches(before[path]))
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
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and last_name(value) != key.value
            )
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{ast.unparse(target)} = {_plain(node.value)}" for target in targets)


def _plain(value: ast.expr) -> str:
    """The value's text, empty where it calls something, or is a mapping: these are told for themselves."""
    return "" if any(isinstance(node, (ast.Call, ast.Dict)) for node in ast.walk(value)) else ast.unparse(value)


def asleep(
    added: str, events: Mapping[str, Any] | None, *, cuda: bool, rounded: bool = False, remapped: bool = True
) -> str | None:
    """What ``added`` switches on and the run shows to have been off, in a sentence; None when nothing was.

    Without the ``events`` of a run it tells what no run on this device can show.

    ``rounded``: there was no GPU, and matrix products were rounded as TF32 rounds them; ``remapped``: the script asked
    for one, and computed in its place.
    """
    seen: Mapping[str, Any] = {"autocast": ["float16"], "scaler": True, "fused": True, "workers": 1}
    seen = seen if events is None else events
    tf32, no_tf32 = cuda or rounded, "no float32 matrix product ran in TF32, and there was no GPU"
    # (what was added, whether the run shows it, what to tell)
    signs: tuple[tuple[str, bool, str], ...] = (
        ("autocast(", bool(seen.get("autocast")), "autocast was never enabled in the run"),
        ("GradScaler(", bool(seen.get("scaler")), "the gradient scaler was never enabled in the run"),
        ("fused=", bool(seen.get("fused")), "no optimizer stepped fused in the run"),
        *(
            (f"_workers{sign}", bool(seen.get("workers")), "no loader had workers in the run")
            for sign in ("=", '":', "':")
        ),
        ("non_blocking=", cuda or remapped, "nothing was moved to a GPU in the run"),
        *((sign, tf32, no_tf32) for sign in ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")),
        ("cudnn.benchmark", cuda, "cuDNN works on a GPU alone, and this run had none"),
    )
    off = [words for sign, shown, words in signs if sign in added and not shown]
    # Beside bfloat16 a scaler is off on purpose.
    if "autocast(" in added and seen.get("autocast") and "float16" not in seen["autocast"]:
        off = [words for words in off if "scaler" not in words]
    return off[0] if off else None
