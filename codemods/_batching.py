"""What the text of a training loop tells about the size of its batches."""

from __future__ import annotations

import ast
import re

from turbofix.nodes import children, walk

PACED = re.compile(r"param_groups|(adjust|set|update)_(lr|learning_rate)|lr_?sched\w*|warm_?up\w*|(\w+_)?ema(_\w+)?")
"""Names that set the learning rate by hand, or keep an average of the weights."""


def is_aligned(test: ast.expr, counter: str | None, start: int) -> bool:
    """Whether ``(counter + 1) % n == 0`` (from 0), or ``counter % n == 0`` (from 1), is in the test."""
    for node in walk(test):
        if not (isinstance(node, ast.Compare) and isinstance(node.left, ast.BinOp)):
            continue
        if not isinstance(node.left.op, ast.Mod) or not isinstance(node.ops[0], ast.Eq):
            continue
        right = node.comparators[0]
        if not (isinstance(right, ast.Constant) and right.value == 0):
            continue
        counted = node.left.left
        offset = start
        if isinstance(counted, ast.BinOp) and isinstance(counted.op, ast.Add):
            amount = counted.right
            if isinstance(amount, ast.Constant) and type(amount.value) is int:
                offset, counted = offset + amount.value, counted.left
        if isinstance(counted, ast.Name) and counted.id == counter and offset == 1:
            return True
    return False


def is_paced(node: ast.Name | ast.Attribute) -> bool:
    """Whether a name speaks of something that a loop does at its own pace, once per batch."""
    return PACED.fullmatch((node.id if isinstance(node, ast.Name) else node.attr).lower()) is not None


def leads_with(call: str, size: str) -> bool:
    """Whether one of the first two sizes of a shape is the batch size, as a number (hidden states have it second)."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    sizes: list[ast.expr] = []
    for argument in node.args:
        sizes += argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]
    return any(isinstance(each, ast.Constant) and str(each.value) == size for each in sizes[:2])


def line_of_length(
    tree: ast.Module, loader: ast.AST | None, epochs: ast.AST | None, name: str, loop: ast.AST | None = None
) -> int | None:
    """The line that reads the loader's ``len`` where it is made, outside of the loop over epochs, not just to show it.

    ``loader`` is its construction, ``name`` what it is called; ``self.loader`` is looked for everywhere, but in the
    function around ``loop``, the one over its batches: what is done there with it is known to the accumulation.
    """
    around: set[int] = set()
    for function in walk(tree) if "." in name else ():
        if isinstance(function, ast.FunctionDef) and loop and any(is_same(each, loop) for each in walk(function)):
            around |= {id(each) for each in walk(function)}
    scope: ast.AST = tree
    for node in walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and "." not in name and loader is not None:
            scope = node if any(is_same(each, loader) for each in walk(node)) else scope
    waiting: list[ast.AST] = [scope]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and id(node) not in around and ast.unparse(node) == f"len({name})":
            return node.lineno
        is_other = node is not scope and isinstance(node, ast.FunctionDef) and "." not in name
        if is_other or is_shown(node) or (epochs is not None and is_same(node, epochs)):
            continue
        waiting += children(node)
    return None


def is_same(node: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes of two trees of the same text are the same."""
    place = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    return type(node) is type(other) and all(getattr(node, name, None) == getattr(other, name, None) for name in place)


def is_shown(node: ast.AST) -> bool:
    """Whether a statement only prints or logs."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    return ast.unparse(node.value.func).rpartition(".")[2] in ("print", "info", "debug", "write", "log")
