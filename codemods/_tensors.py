"""What the text of a read tells of the tensor under it."""

from __future__ import annotations

import ast

from turbofix.training.model import Sync

from ._pages import Page

OWN_STORAGE = frozenset({"mean", "sum", "norm", "std", "var", "prod"})
COMPARISONS = frozenset(
    {
        "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not",
    }
)  # fmt: skip


def stripped(read: ast.AST) -> ast.expr | None:
    """The tensor under a read: ``loss`` of ``loss.detach().cpu().item()``; None for anything else than one number."""
    inner: ast.AST = read
    plain = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id in ("float", "int")
    if isinstance(inner, ast.Call) and plain:
        if len(inner.args) != 1 or inner.keywords:
            return None
        inner = inner.args[0]
        if not (isinstance(inner, ast.Call) and getattr(inner.func, "attr", "") == "item"):
            return without_copies(inner)
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not (inner.args or inner.keywords):
        return without_copies(inner.func.value) if inner.func.attr in ("item", "tolist", "numpy") else None
    return None


def without_copies(node: ast.AST) -> ast.expr | None:
    """A tensor without ``.detach()``, ``.data`` and ``.cpu()`` behind it."""
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords):
            if node.func.attr not in ("detach", "cpu", "numpy"):
                return node
            node = node.func.value
        else:
            return node if isinstance(node, ast.expr) else None


def copied(page: Page, read: ast.AST) -> tuple[ast.expr | None, str, ast.AST]:
    """The tensor that is copied to the host whole, what stands behind it (``.cpu().numpy()``), and all of that."""
    while isinstance(above := page.parent(read), ast.Attribute) and isinstance(page.parent(above), ast.Call):
        read = page.above(above)[0]
    whole = read
    behind: list[str] = []
    while isinstance(read, ast.Call) and isinstance(read.func, ast.Attribute) and not (read.args or read.keywords):
        if read.func.attr not in ("cpu", "numpy", "tolist", "detach"):
            break
        behind.insert(0, f".{read.func.attr}()")
        read = read.func.value
    left = [each for each in behind if each != ".detach()"]
    return (read, "".join(left), whole) if left and isinstance(read, ast.expr) else (None, "", whole)


def is_detached(node: ast.AST) -> bool:
    """Whether a tensor has no graph behind it whatever went before: it came out of a comparison."""
    while True:
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in COMPARISONS or node.func.attr == "argmax":
                return True
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return False


def may_be_view(sync: Sync, base: ast.expr) -> bool:
    """Whether a tensor that is kept may be a part of a larger one, which it would keep alive."""
    owns = isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr in OWN_STORAGE
    return sync.of != "loss" and not sync.scalar and not owns


def names_itself(page: Page, node: ast.AST) -> bool:
    """Whether a text shows an expression beside its value: ``f"{loss=}"``."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(page.parent(node), ast.FormattedValue):
        return False
    line = page.module.text.split("\n")[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :]
    return line.lstrip().startswith(b"=")
