"""What an edited statement may do later than the steps that are compared: a count in what it calls, a buffer's length.

A call that looks like display and lowers the rate after 30 calls is the same in 20 steps with and without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from turbofix.records import dataclass
from turbofix.verify.changes import changed_statements, last_name

_SHOWS = {"print", "write", "log", "info", "debug", "warning", "set_postfix", "set_description", "add_scalar"}

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Late:
    """Something happens at the ``count``-th time, or from then on."""

    path: Path
    line: int
    count: int


def late(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> tuple[Late, ...]:
    """What is counted in the functions that changed statements call, and in the buffers that they name."""
    found: dict[tuple[Path, int], Late] = {}
    for path, new in after.items():
        old = before.get(path, b"")
        # a call that is gone stands in the old text
        for text, other in ((old, new), (new, old)):
            try:
                tree = ast.parse(text)
            except SyntaxError:
                continue
            lines = {line for statement in changed_statements(other, text, indented=True) for line in statement}
            changed = [node for node in ast.walk(tree) if getattr(node, "lineno", None) in lines]
            for line, count in _Program(tree).counts(changed):
                found.setdefault((path, count), Late(path, line, count))
    return tuple(found.values())


class _Program:
    """A module's functions by name, the numbers and buffers that its names stand for, and what it counts."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._values: dict[str, list[ast.expr]] = {}
        self._counters: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                self._functions.setdefault(node.name, []).append(node)
                self._counters |= {argument.arg for argument in node.args.args}
            elif isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._values.setdefault(last_name(target), []).append(node.value)
            elif isinstance(node, ast.AugAssign):
                self._counters.add(last_name(node.target))
            elif (
                isinstance(node, ast.Call) and last_name(node.func) == "append" and isinstance(node.func, ast.Attribute)
            ):
                self._counters.add(last_name(node.func.value))

    def counts(self, changed: list[ast.AST]) -> Iterator[tuple[int, int]]:
        """(line, count) of what is counted there."""
        reached: set[int] = set()
        left = list(changed)
        while left:
            node = left.pop()
            name = last_name(node)
            for value in self._values.get(name, ()):
                if isinstance(value, ast.Call):
                    yield from self._lengths(value)
                    name = last_name(value.func) if last_name(value.func) in self._classes else name
            called = [*self._functions.get(name, ())]
            if name in self._classes:
                called += [one for one in self._classes[name].body if isinstance(one, _Function)]
            for function in called:
                if id(function) not in reached:
                    reached.add(id(function))
                    inside = [each for statement in function.body for each in ast.walk(statement)]
                    left += inside
                    for each in inside:
                        if isinstance(each, ast.If) and not _only_shows(each):
                            yield from ((each.lineno, count) for count in self._compared(each.test))

    def _lengths(self, call: ast.Call) -> Iterator[tuple[int, int]]:
        for keyword in call.keywords:
            if keyword.arg == "maxlen":
                yield from ((call.lineno, count) for count in self._numbers(keyword.value))

    def _compared(self, test: ast.expr) -> Iterator[int]:
        """The numbers that a condition holds a counter against."""
        for node in ast.walk(test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and self._counts(node.left):
                yield from self._numbers(node.right)
            elif isinstance(node, ast.Compare) and any(map(self._counts, (node.left, *node.comparators))):
                for side in (node.left, *node.comparators):
                    yield from self._numbers(side)

    def _counts(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and last_name(node.func) == "len" and node.args:
            node = node.args[0]
        return last_name(node) in self._counters

    def _numbers(self, node: ast.expr) -> Iterator[int]:
        if isinstance(node, ast.Constant):
            if type(node.value) is int:
                yield node.value
        else:
            values = self._values.get(last_name(node), ())
            yield from (each.value for each in values if isinstance(each, ast.Constant) and type(each.value) is int)


def _only_shows(node: ast.If) -> bool:
    return not node.orelse and all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and last_name(each.value.func) in _SHOWS
        for each in node.body
    )
