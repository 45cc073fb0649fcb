"""How a number that is kept somewhere stays a tensor until it is looked at: in a dict, a list, an attribute, a result.

Where it goes was followed through all of the program that was seen. That nothing else looks at it is assumed.
"""

from __future__ import annotations

import ast
from pathlib import Path

from turbofix.editing.edit import Refuse
from turbofix.regex import regex
from turbofix.source.answers import everything
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.training.model import Look, Sync

from ._deferring import Deferral, kept_on_device
from ._kinds import number_of
from ._pages import Page, Pages
from ._syncs import Action, BatchLoop, adding_before, lacks_float64, one_line, replacing
from ._tensors import changed_below, is_detached, may_be_view, names_itself, stripped

ITERATING = ("dict", "list", "tuple", "set", "sorted", "enumerate", "len", "sum", "zip")
KEEPING = ("stored", "returned", "summed", "passed")
"""Uses in each step that a tensor serves as well."""

PLAIN_KEY = regex(r"(?=.*[^\d.])[\w/ .:@()-]+")
"""A key that is a text, and can be written between quotes."""


def carried(pages: Pages, loop: BatchLoop, sync: Sync, entry: Path) -> Deferral:
    """The edits that keep a tensor where a number was read, and read it where it is looked at. Raises ``Refuse``."""
    page = pages(sync.site)
    read = page.node(sync.site)
    base = stripped(read)
    if base is None or (sync.how in ("cpu", "numpy") and not sync.scalar):
        raise Refuse("more than one number is read, or in an unusual way")
    seen = sorted((look for look in sync.looks if look.kind == "seen"), key=lambda look: look.site)
    used = [look for look in sync.looks if look.kind != "seen"]
    for look in used:
        if look.kind == "control":
            raise Refuse(f"its value decides on line {look.site.line} what the program does next")
        if look.kind != "shown" and (look.kind not in KEEPING or not look.plain):
            raise Refuse(f"line {look.site.line} does more with the number than to keep it")
    renewed: list[Action] = []
    for look in used:
        if look.kind == "summed":
            renewed += summed_anew(pages(look.site), pages(look.site).node(look.site))
    promised: list[Action] = []
    if any(look.kind == "returned" for look in used):
        function = page.scope(read)
        if not isinstance(function, ast.FunctionDef) or (
            sync.shared and sync.site.path != entry and not function.name.startswith("_")
        ):
            raise Refuse("other scripts may call the function that returns it")
        promised = annotated(page, function)
    shown = min((look.statement.line for look in used if look.kind == "shown"), default=None)
    kept_somewhere = sync.dropped or any(look.kind in ("stored", "summed") for look in used)
    if not seen and shown is None and not kept_somewhere:
        raise Refuse("what looks at it is not seen")
    plan = Deferral([*kept(pages, page, loop, sync, base), *promised, *renewed], too_early=shown, likely=True)
    # what is converted once may be a number already, and so may what has no float64
    again = lacks_float64(sync, loop) or any(look.holds in ("list", "dict", "lists") for look in seen)
    before: list[tuple[list[str], ast.stmt]] = []
    in_each_step = {look.statement for look in used}  # where another loop only comes by as well
    for look in seen:
        if look.statement in in_each_step and look.holds != "other":
            continue
        page = pages(look.site)
        node = page.node(look.site)
        if look.holds == "number" and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            plan.actions.append(replacing(look.site, read_there(page, look, node, again=again)))
            continue
        if look.holds != "number" and asks_whether_empty(page, node):
            continue
        statement = page.statement(node)
        lines = read_before(page, look, node, statement)
        if not any(lines == same and each is one for each in earlier(page, statement) for same, one in before):
            plan.actions += [adding_before(look.statement, line) for line in lines]
        before.append((lines, statement))
    return plan


def summed_anew(page: Page, update: ast.AST) -> list[Action]:
    """``total = total + x`` for ``total += x``, where the sum may begin as a tensor that is kept. Raises ``Refuse``."""
    assert isinstance(update, ast.AugAssign)
    text = page.text(update.target)
    given = (each for each in everything(page.module.tree) if isinstance(each, ast.Assign))
    same = [each.value for each in given if any(page.text(target) == text for target in each.targets)]
    if not any(isinstance(each, (ast.Name, ast.Attribute, ast.Subscript, ast.IfExp)) for each in same):
        return []
    if not isinstance(update.op, ast.Add) or "\n" in page.text(update):
        raise Refuse(f"line {update.lineno} changes in place what may be kept elsewhere")
    return [replacing(page.site(update), f"{text} = {text} + {page.operand(update.value)}")]


def kept(pages: Pages, page: Page, loop: BatchLoop, sync: Sync, base: ast.expr) -> list[Action]:
    """The tensor without its graph: in float64 where Python computes with the number, else in memory of its own."""
    if any(look.kind == "summed" or not look.untouched for look in sync.looks):
        read = page.node(sync.site)
        computed = any(look.kind in KEEPING and not (look.untouched or look.grown) for look in sync.looks)
        kind, _ = number_of(page, sync, read)
        return kept_on_device(page, loop, sync, read, "float" if computed else kind)
    text = page.text(base) if sync.no_grad or is_detached(base) else f"{page.operand(base)}.detach()"
    around = pages(loop.loop.site).node(loop.loop.site)
    changed = changed_below(base, around if page.holds(around, base) else page.scope(base)) is not None
    own = not (may_be_view(sync, base) or sync.replayed or changed)
    closed = text if text.endswith(")") else page.operand(base)
    return [replacing(sync.site, text if own else f"{closed}.clone()")]


def annotated(page: Page, function: ast.FunctionDef) -> list[Action]:
    """The annotation of a function that returns a tensor from now on. Raises ``Refuse``."""
    numbers = [each for each in walk(function.returns) if dotted(each) == "float"] if function.returns else []
    if numbers and "import torch\n" not in page.module.text:
        raise Refuse(f"`{function.name}` promises to return a number")
    return [replacing(page.site(each), "torch.Tensor") for each in numbers]


def read_there(page: Page, look: Look, node: ast.AST, *, again: bool) -> str:
    """How the number is read where it is looked at. Raises ``Refuse``."""
    text = page.text(node)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) or "\n" in text:
        raise Refuse(f"line {look.site.line} looks at it in an unusual way")
    around = page.parent(node)
    iterated = isinstance(around, ast.Call) and node in around.args and getattr(around.func, "id", "") in ITERATING
    if iterated or (isinstance(around, (ast.Attribute, ast.Subscript)) and around.value is node):
        raise Refuse(f"line {look.site.line} takes what is no number: it is kept in `{text}`")
    if names_itself(page, node):
        raise Refuse(f"line {look.site.line} shows the name `{text}` with its value")
    return f"{text}.item()" if look.sure and not again else f"float({text})"


def read_before(page: Page, look: Look, node: ast.AST, statement: ast.stmt) -> list[str]:
    """The lines that make numbers again of a list, or of items of a dict, before it is looked at. Raises ``Refuse``."""
    text = page.text(node)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or not stands_alone(page, statement):
        raise Refuse(f"line {look.site.line} looks at all of `{one_line(text)}` at once")
    if look.holds == "number":
        return [f"{text} = float({text})"]
    if look.holds == "list":
        return [f"{text}[:] = map(float, {text})"]
    if look.holds in ("tuples", "rows"):
        items = ", ".join(f"float(row[{i}])" if mark else f"row[{i}]" for i, mark in enumerate(look.keys))
        comma = "," if look.holds == "tuples" and len(look.keys) == 1 else ""
        row = f"({items}{comma})" if look.holds == "tuples" else f"[{items}]"
        return [f"{text}[:] = [{row} for row in {text}]"]
    if look.holds == "dicts" and all(PLAIN_KEY.fullmatch(key) for key in look.keys):
        items = ", ".join(f'"{key}": float(row["{key}"])' for key in look.keys)
        return [f"{text}[:] = [{{**row, {items}}} for row in {text}]"]
    if look.holds in ("dict", "lists") and all(PLAIN_KEY.fullmatch(key) for key in look.keys):
        if not look.keys:
            again = "float(each)" if look.holds == "dict" else "[*map(float, each)]"
            return [f"{text}.update({{key: {again} for key, each in {text}.items()}})"]
        if look.holds == "lists":
            return [f'{text}["{key}"][:] = map(float, {text}["{key}"])' for key in look.keys]
        if not look.sure:
            keys = ", ".join(f'"{key}"' for key in look.keys)
            return [f"{text}.update({{key: float({text}[key]) for key in ({keys},) if key in {text}}})"]
        return [f'{text}["{key}"] = float({text}["{key}"])' for key in look.keys]
    raise Refuse(f"what `{one_line(text)}` on line {look.site.line} holds is not known")


def asks_whether_empty(page: Page, node: ast.AST) -> bool:
    """Whether all that is asked of a list or dict is whether something is in it: ``if losses``, ``len(losses)``."""
    around = page.parent(node)
    if isinstance(around, ast.BoolOp) or (isinstance(around, ast.UnaryOp) and isinstance(around.op, ast.Not)):
        return asks_whether_empty(page, around)
    counts = isinstance(around, ast.Call) and node in around.args and getattr(around.func, "id", "") == "len"
    return counts or getattr(around, "test", None) is node


def earlier(page: Page, statement: ast.stmt) -> list[ast.stmt]:
    """A statement, those that have run before it each time, and those around it, in front of which lines have too."""
    found: list[ast.stmt] = [statement]
    for each in (statement, *page.above(statement)):
        if isinstance(each, (*LOOPS, *FUNCTIONS, ast.ClassDef, ast.Module)) and each is not statement:
            break
        if isinstance(each, ast.stmt):
            block = page.block(each)
            found += block[: 1 + next(i for i, one in enumerate(block) if one is each)]
    return found


def stands_alone(page: Page, statement: ast.stmt) -> bool:
    """Whether a line before a statement runs whenever the statement does, and as often."""
    above = page.parent(statement)
    is_elif = isinstance(statement, ast.If) and isinstance(above, ast.If) and above.orelse == [statement]
    return not is_elif and not isinstance(statement, ast.While)
