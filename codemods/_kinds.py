"""Whether a number that is read of a tensor is a count or a fraction, by the operations that make it."""

from __future__ import annotations

import ast
from typing import Literal

from turbofix.dataflow.accumulators import given
from turbofix.editing.edit import Refuse
from turbofix.source.names import dotted, stores
from turbofix.training.model import Sync

from ._pages import Page
from ._tensors import COMPARISONS, stripped

Number = Literal["int", "float"]

FLOATS = ("mean", "float", "double", "half", "std", "var", "norm", "sqrt", "exp", "log", "softmax", "sigmoid")
SAME = ("detach", "cpu", "view", "reshape", "squeeze", "flatten", "clone", "contiguous", "cuda", "unsqueeze", "t")
SIZES = ("size", "numel", "dim", "__len__", "item")


def number_of(page: Page, sync: Sync, read: ast.AST) -> tuple[Number, bool]:
    """Whether the number is a count or a fraction, and whether that is seen. Raises ``Refuse``.

    A sum of counts is printed without a point. What is not seen is likely a fraction.
    """
    outer = read.func.id if isinstance(read, ast.Call) and isinstance(read.func, ast.Name) else None
    base = stripped(read)
    if base is None:
        raise Refuse("more than one number is read, or in an unusual way")
    if outer == "float" or (sync.of == "loss" and outer != "int"):
        return "float", True
    kind = kind_of(page, base)
    if outer == "int" and kind != "int":
        raise Refuse("`int(...)` cuts a fraction off")
    return kind or "float", kind is not None


def kind_of(page: Page, node: ast.AST) -> Number | None:
    """What kind of number a tensor expression holds: a count is a sum of comparisons; None where neither is seen."""
    seen: set[ast.AST] = set()
    while node not in seen:
        seen.add(node)
        method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if isinstance(node, ast.Compare) or method in COMPARISONS:
            return "int"
        if method in FLOATS or method.endswith(("_loss", "cross_entropy", "kl_div")):
            return "float"
        if isinstance(node, ast.BinOp):
            sides = (kind_of(page, node.left), kind_of(page, node.right))
            return "float" if isinstance(node.op, ast.Div) or "float" in sides else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and method in ("sum", *SAME):
            of_torch = dotted(node.func.value) == "torch" and node.args
            node = node.args[0] if of_torch else node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Name):
            writes = page.writes(node.id, page.scope(node))
            value = given(writes[0], node.id) if len(writes) == 1 else None
            node = value if value is not None else node
    return None


def is_number(page: Page, node: ast.AST, loop: ast.AST, *, named: bool = True) -> bool:
    """Whether an operand is surely no tensor, which would change the type of the sum."""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
        return all(is_number(page, each, loop, named=named) for each in parts)
    if isinstance(node, ast.Call):
        return dotted(node.func) in ("len", "int", "float") or getattr(node.func, "attr", "") in SIZES
    if isinstance(node, ast.Subscript):
        return getattr(node.value, "attr", "") == "shape"
    top = (dotted(node) or "").partition(".")[0] if isinstance(node, (ast.Name, ast.Attribute)) else ""
    if top and top not in {name for name, _ in stores(loop)}:
        return True
    writes = page.writes(top, page.scope(node)) if named and isinstance(node, ast.Name) else []
    values = [given(each, top) for each in writes]
    return isinstance(node, ast.Constant) or (
        bool(values) and all(each is not None and is_number(page, each, loop, named=False) for each in values)
    )
