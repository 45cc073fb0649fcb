"""How the messages of a loop are shown every so many steps, and what they read is read when they are shown."""

from __future__ import annotations

import ast
from dataclasses import field
from itertools import pairwise

from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.source.names import dotted, walk_here
from turbofix.source.nodes import walk
from turbofix.training.model import Show, Step, Sync

from ._counting import condition
from ._pages import Page, Pages
from ._syncs import ROWS, Action, BatchLoop, replacing, shows_in, why_shown
from ._tensors import changed_below, is_detached, names_itself, stripped

TERMINAL = ("sys.stdout.write", "sys.stderr.write", "tqdm.write")
ELSEWHERE = "it is shown in another function or loop, which does not count the steps"

PURE_MODULES = frozenset({"time", "math", "datetime", "np", "numpy"})
PURE = frozenset(
    {
        "len", "int", "float", "round", "str", "abs", "max", "min", "sum", "format", "print", "dict", "list", "tuple",
        "zip", "sorted", "type", "repr", "isinstance", "item", "tolist", "detach", "cpu", "numpy", "double", "half",
        "long", "mean", "argmax", "eq", "ne", "gt", "lt", "ge", "le", "norm", "sqrt", "exp", "log", "size", "numel",
        "dim", "view", "reshape", "squeeze", "flatten", "join", "ljust", "rjust", "center", "strip", "upper", "lower",
        "title", "strftime", "total_seconds", "get_last_lr", "get_lr", "keys", "values", "items", "set_postfix",
        "set_postfix_str", "set_description", "set_description_str", "write", "memory_allocated",
        "max_memory_allocated", "memory_reserved",
    }
)  # fmt: skip
"""Functions and methods that compute or show, and do nothing else."""


@dataclass
class Throttling:
    """What becomes of the messages of one loop.

    ``groups`` are runs of neighbours that get one ``if`` together, ``header``; ``common`` makes its counter.
    ``hoisted`` are the reads apart from their message, with the edits that put them off; ``refused`` has the rest.
    ``lossy``: the last step may not be shown, or what is shown calls what may do more.
    """

    groups: list[list[ast.stmt]] = field(default_factory=list)
    header: str = ""
    lossy: bool = False
    common: list[Action] = field(default_factory=list)
    hoisted: dict[Site, list[Action]] = field(default_factory=dict)
    refused: dict[Site, str] = field(default_factory=dict)

    def holds(self, page: Page, node: ast.AST) -> bool:
        """Whether a node is part of a message that is shown less often, or is read for nothing else."""
        return any(page.holds(statement, node) for group in self.groups for statement in group)

    def lines_with(self, message: Site) -> range:
        """The lines of a message, and of what moves under its condition with it."""
        runs = (range(group[0].lineno, (group[-1].end_lineno or 0) + 1) for group in self.groups)
        return next((lines for lines in runs if message.line in lines), range(message.line, message.line + 1))


def throttling(pages: Pages, loop: BatchLoop, waiting: tuple[Sync, ...], every: int | None) -> Throttling:
    """Plan for all messages of a loop at once; nothing is edited yet."""
    plan = Throttling()
    statements: list[ast.stmt] = []
    for show in shows_in(loop, waiting):
        try:
            if (reason := why_shown(show, show.guard)) is not None or every is None:
                raise Refuse(reason or "the loop is over after a few steps")
            page = pages(show.statement)
            statements.append(shown_statement(page, show, loop, pages(loop.loop.site).node(loop.loop.site), plan))
        except Refuse as refuse:
            plan.refused[show.statement] = str(refuse)
    if not statements or every is None:
        return plan
    page = pages(loop.loop.site)
    try:
        plan.header, missed = condition(page, loop, every, plan.common)
    except Refuse as refuse:
        plan.refused.update((page.site(statement), str(refuse)) for statement in statements)
        return plan
    plan.lossy = plan.lossy or missed or any(each.guard.kind == "step" for each in shows_in(loop, waiting))
    plan.groups = grouped(page, statements)
    node = page.node(loop.loop.site)
    for sync in waiting:
        if sync.use != "shown":
            continue
        try:
            read = page.node(sync.site) if sync.site.path == page.module.path else None
            if read is None or page.scope(read) is not page.scope(node):
                if sync.show is None or sync.show.statement in plan.refused:
                    raise Refuse(ELSEWHERE)  # (else the function that reads it does so for the message alone)
            elif not plan.holds(page, read):
                plan.hoisted[sync.site] = hoisted(page, sync, read, loop, plan)
        except Refuse as refuse:
            plan.refused[sync.site] = str(refuse)
    return plan


def shown_statement(page: Page, show: Show, loop: BatchLoop, node: ast.AST, plan: Throttling) -> ast.stmt:
    """The statement of a message, if it can be put under a condition. Raises ``Refuse``."""
    statement = page.node(show.statement)
    inside = isinstance(loop, Step) and page.holds(node, statement) and page.scope(node) is page.scope(statement)
    if page.loop_of(statement) is not node and not inside:
        raise Refuse(ELSEWHERE)
    if loop.loop.counter is None and isinstance(node, ast.For) and isinstance(node.target, ast.Name):
        listed = isinstance(node.iter, (ast.Name, ast.Attribute, ast.List, ast.Tuple))
        if listed and any(isinstance(each, ast.Name) and each.id == node.target.id for each in walk_here(statement)):
            raise Refuse(f"each of its lines is the result for another `{node.target.id}`")
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call):
        if any(each.arg == "file" and not page.text(each.value).startswith("sys.std") for each in call.keywords):
            raise Refuse("the line goes to a file, whose lines are kept complete")
        plan.lossy = plan.lossy or (show.kind == "other" and page.text(call.func) not in TERMINAL)
    elif not isinstance(statement, ast.Assign):  # `bar.desc = ...`
        raise Refuse("the statement does more than to show values")
    own = call if show.kind in ROWS else None
    plan.lossy = plan.lossy or not all(each is own or is_harmless(each) for each in walk_here(statement))
    assert isinstance(statement, ast.stmt)
    return statement


def is_harmless(node: ast.AST) -> bool:
    """Whether leaving an expression out, in most steps, changes nothing else."""
    if isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
        return False
    if not isinstance(node, ast.Call):
        return True
    parts = (dotted(node.func) or str(getattr(node.func, "attr", ""))).split(".")
    return "random" not in parts and (parts[-1] in PURE or parts[0] in PURE_MODULES)


# --- the edits -------------------------------------------------------------------------------------------------------


def guarding(edit: Edit, page: Page, group: list[ast.stmt], header: str) -> None:
    """Put neighbouring statements under the condition; it joins an ``if`` that holds nothing else."""
    above = page.parent(group[0])
    if isinstance(above, ast.If) and above.body == group and not above.orelse:
        test = page.site(above.test)
        edit.replace(test, f"{edit.text(test)} and ({header[len('if ') : -1]})")
    else:
        edit.wrap(page.site(group[0]), page.site(group[-1]), header)


def grouped(page: Page, statements: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Neighbours together, each run with the assignments directly above it that serve nothing else."""
    groups: list[list[ast.stmt]] = []
    for statement in sorted(statements, key=lambda each: each.lineno):
        block = page.block(statement)
        if groups and any(each is groups[-1][-1] and after is statement for each, after in pairwise(block)):
            groups[-1].append(statement)
        else:
            groups.append([statement])
    for run in groups:
        block = page.block(run[0])
        index = block.index(run[0])
        while index > 0 and serves_only(page, block[index - 1], run):
            index -= 1
            run.insert(0, block[index])
    return groups


def serves_only(page: Page, statement: ast.stmt, run: list[ast.stmt]) -> bool:
    """Whether a statement only computes a name that nothing but ``run`` reads."""
    if not isinstance(statement, ast.Assign) or not all(is_harmless(each) for each in walk(statement.value)):
        return False
    name = dotted(statement.targets[0]) or "."
    if len(statement.targets) > 1 or "." in name or page.why_shared(name, statement) is not None:
        return False
    scope = page.scope(statement)
    only = page.writes(name, scope) == [statement]
    return only and all(any(page.holds(each, read) for each in run) for read in page.reads(name, scope))


def hoisted(page: Page, sync: Sync, read: ast.AST, loop: BatchLoop, plan: Throttling) -> list[Action]:
    """The edits that keep a tensor where a number was read, and read it where it is shown. Raises ``Refuse``."""
    statement = page.statement(read)
    node = page.node(loop.loop.site)
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    whole = isinstance(statement, ast.Assign) and statement.value is read and page.loop_of(statement) is node
    if name is None or "." in name or not whole:
        raise Refuse(f"what line {sync.site.line} reads is not simply kept in a name")
    base = stripped(read)
    if base is None or sync.plain:
        raise Refuse(f"line {sync.site.line} reads more than one number, or what may be one already")
    scope = page.owner(name, statement)
    if page.writes(name, scope) != [statement]:
        raise Refuse(f"`{name}` is set elsewhere too")
    if (line := changed_below(base, node)) is not None:
        raise Refuse(f"line {line} changes `{page.text(base)}` in place before it would be read")
    kept = page.text(base) if sync.no_grad or is_detached(base) else f"{page.operand(base)}.detach()"
    actions = [replacing(sync.site, kept)]
    for each in page.reads(name, scope):
        if not plan.holds(page, each) and not page.is_seldom(each, node, read):
            raise Refuse(f"`{name}` is read on line {each.lineno} too")
        if page.text(each) != name or names_itself(page, each):  # in a text of several lines
            raise Refuse(f"line {each.lineno} shows `{name}` in an unusual way")
        text = f"{sync.how}({name})" if sync.how in ("float", "int") else f"{name}.item()"
        actions.append(replacing(page.site(each), text))
    return actions
