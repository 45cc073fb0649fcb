"""Whether a number is a count or a fraction, by the operations that make it, in this file and in those it calls."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Literal

from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.source.names import dotted

from ._pages import Page, Pages
from ._throttling import COMPARISONS

Number = Literal["int", "float"]

COUNTING_METHODS = frozenset({"sum", "count_nonzero", "long"})
INTEGER_METHODS = frozenset({"argmax", "argmin", "count_nonzero", "long", "int", "numel"})
FLOAT_METHODS = frozenset(
    {
        "mean", "float", "double", "half", "std", "var", "norm", "sqrt", "exp", "log", "softmax", "sigmoid",
    }
)  # fmt: skip
SAME_METHODS = frozenset(
    {
        "sum", "detach", "cpu", "view", "reshape", "squeeze", "flatten", "max", "min", "abs", "prod", "clone",
        "contiguous", "cuda", "to", "unsqueeze", "t",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """What functions of the project return, by the call of them, perhaps in other files."""

    pages: Pages
    returned: Mapping[Site, tuple[Site, ...]]

    def of(self, page: Page, call: ast.Call) -> list[tuple[Page, ast.expr]]:
        """The expressions that the functions behind a call return, each in its file; none where that is not known."""
        sites = self.returned.get(page.site(call), ())
        found = [(there, there.node(site)) for site in sites for there in (self.pages(site),)]
        return [(there, node) for there, node in found if isinstance(node, ast.expr)]


def is_counted(page: Page, base: ast.expr, results: Results, depth: int = 5) -> bool:
    """Whether whole numbers come with 64 bits: out of a sum."""
    if isinstance(base, ast.Name):
        writes = [write.value for write in page.writes(base.id, page.scope(base)) if isinstance(write, ast.Assign)]
        return bool(writes) and all(
            not isinstance(value, ast.Name) and is_counted(page, value, results, depth - 1) for value in writes
        )
    if isinstance(base, ast.Call) and depth > 0 and (given := results.of(page, base)):
        return all(is_counted(there, value, results, depth - 1) for there, value in given)
    return isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr in COUNTING_METHODS


def kind_of(page: Page, node: ast.AST, results: Results, depth: int = 5) -> Number | None:
    """What kind of number a tensor expression holds; None where that is not seen."""
    if depth == 0:
        return None
    if isinstance(node, ast.Compare):
        return "int"
    if isinstance(node, ast.Constant):
        return "float" if isinstance(node.value, float) else "int" if isinstance(node.value, int) else None
    if isinstance(node, ast.Call) and (given := results.of(page, node)):
        kinds = {kind_of(there, value, results, depth - 1) for there, value in given}
        return kinds.pop() if len(kinds) == 1 else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return kind_of_method(page, node, node.func, results, depth)
    if isinstance(node, ast.BinOp):
        left, right = (kind_of(page, side, results, depth - 1) for side in (node.left, node.right))
        if isinstance(node.op, ast.Div) or "float" in (left, right):
            return "float"
        return left if left == right else None
    if isinstance(node, ast.UnaryOp):
        return kind_of(page, node.operand, results, depth - 1)
    if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        return kind_of(page, node.value, results, depth - 1)
    if isinstance(node, ast.Name):
        writes = page.writes(node.id, page.scope(node))
        kinds = {kind_written(page, write, node.id, results, depth - 1) for write in writes}
        return kinds.pop() if len(kinds) == 1 else None
    return None


def kind_written(page: Page, write: ast.AST, name: str, results: Results, depth: int) -> Number | None:
    """What kind of number a statement puts into a name: its value, or a part of it (``acc1, acc5 = accuracy(...)``)."""
    if not isinstance(write, ast.Assign):
        return None
    if any(dotted(each) == name for each in write.targets):
        return kind_of(page, write.value, results, depth)
    target = write.targets[0]
    if len(write.targets) > 1 or not isinstance(target, (ast.Tuple, ast.List)):
        return None
    names = [dotted(each) for each in target.elts]  # None for a starred one, too
    if None in names or names.count(name) != 1:
        return None
    return kind_of_part(page, write.value, names.index(name), len(names), results, depth)


def kind_of_part(page: Page, node: ast.AST, at: int, many: int, results: Results, depth: int) -> Number | None:  # noqa: PLR0913
    """What kind of number stands at a place of a tuple or list of so many; None where that is not seen."""
    if depth == 0:
        return None
    if isinstance(node, ast.Call) and (given := results.of(page, node)):
        kinds = {kind_of_part(there, value, at, many, results, depth - 1) for there, value in given}
        return kinds.pop() if len(kinds) == 1 else None
    if isinstance(node, (ast.Tuple, ast.List)) and not any(isinstance(each, ast.Starred) for each in node.elts):
        return kind_of(page, node.elts[at], results, depth - 1) if len(node.elts) == many else None
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return kind_of(page, node.elt, results, depth - 1)
    return None


def kind_of_method(page: Page, call: ast.Call, func: ast.Attribute, results: Results, depth: int) -> Number | None:
    """``x.sum()``, ``torch.sum(x)``: by the name of the method, and by what it is taken of."""
    keywords = {keyword.arg for keyword in call.keywords}
    if func.attr in COMPARISONS or func.attr in INTEGER_METHODS:
        return "int"
    if func.attr in FLOAT_METHODS or func.attr.endswith(("_loss", "cross_entropy", "kl_div")):
        return "float"
    if func.attr not in SAME_METHODS or "dtype" in keywords or (func.attr == "to" and call.args):
        return None
    of_module = isinstance(func.value, ast.Name) and func.value.id in ("torch", "th")
    inner: ast.AST | None = (call.args[0] if call.args else None) if of_module else func.value
    return kind_of(page, inner, results, depth - 1) if inner is not None else None
