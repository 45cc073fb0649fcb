"""What the text of a read tells of the tensor under it, and what changes that in place."""

from __future__ import annotations

import ast
from typing import TypeGuard

from turbofix.source.names import dotted, walk_here
from turbofix.source.nodes import walk
from turbofix.training.model import Sync

from ._pages import Page

OWN_STORAGE = frozenset({"mean", "sum", "norm", "std", "var", "prod"})
COMPARISONS = frozenset(
    {
        "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not",
    }
)  # fmt: skip

COLLECTIVES = frozenset(("all_reduce", "broadcast", "reduce"))
"""Functions of ``torch.distributed``, and methods of Fabric, that write into the tensor that they are given."""


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


BRINGING = ("cpu", "numpy", "tolist", "detach")
SHAPING = ("flatten", "ravel", "squeeze")


def copied(page: Page, read: ast.AST) -> tuple[ast.expr | None, str, ast.AST]:
    """The tensor that is copied to the host whole, what stands behind it (``.cpu().numpy()``), and all of that."""
    while isinstance(above := page.parent(read), ast.Attribute) and isinstance(page.parent(above), ast.Call):
        read = page.above(above)[0]
    whole = read
    behind: list[str] = []
    base: ast.AST | None = None
    left: list[str] = []
    while isinstance(read, ast.Call) and isinstance(read.func, ast.Attribute) and not (read.args or read.keywords):
        if read.func.attr not in (*BRINGING, *SHAPING):
            break
        behind.insert(0, read.func.attr)
        read = read.func.value
        if behind[0] in BRINGING:  # (what shapes a tensor before is its own)
            base, left = read, [f".{each}()" for each in behind if each != "detach"]
    brings = not {".cpu()", ".numpy()", ".tolist()"}.isdisjoint(left)
    return (base, "".join(left), whole) if brings and isinstance(base, ast.expr) else (None, "", whole)


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


def changed_below(tensor: ast.AST, code: ast.AST) -> int | None:
    """The line of a loop or function that changes a tensor in place before it would be read: if the code gives it its
    name, a line below; else any."""
    name = dotted(tensor) if is_name(tensor) else None
    made = any(dotted(each) == name and not isinstance(each.ctx, ast.Load) for each in walk(code) if is_name(each))
    return changed_line(name, code, getattr(tensor, "lineno", 0) if made else 0) if name is not None else None


def changed_line(name: str, code: ast.AST, after: int) -> int | None:
    """The line of a loop or function, below another one, that changes the tensor of a name, or gives it to a
    collective."""
    body = code.body if isinstance(code, ast.FunctionDef) else (code,)
    for each in (one for statement in body for one in walk_here(statement)):
        changed: list[ast.AST] = []
        if isinstance(each, ast.AugAssign):
            changed = [each.target]
        elif isinstance(each, ast.Assign):
            changed = [target for target in each.targets if whose(target) != dotted(target)]
        elif isinstance(each, ast.Call):
            method = getattr(each.func, "attr", "")
            changed = [keyword.value for keyword in each.keywords if keyword.arg == "out"]
            changed += each.args[:1] if method in COLLECTIVES else []
            in_place = method.endswith("_") and not method.startswith("_") and method != "requires_grad_"
            changed += [each.func.value] if in_place and isinstance(each.func, ast.Attribute) else []
        if getattr(each, "lineno", 0) > after and any(whose(one) == name for one in changed):
            return int(getattr(each, "lineno", 0))
    return None


def is_name(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    """Whether an expression is a name or an attribute."""
    return isinstance(node, (ast.Name, ast.Attribute))


def whose(node: ast.AST) -> str | None:
    """The name of the tensor whose memory an expression stands for: ``loss`` of ``loss.data[0]``."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
            node = node.func.value
        elif isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
            node = node.value
        else:
            return dotted(node) if is_name(node) else None
