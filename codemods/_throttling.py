"""How the messages of a loop are shown every so many steps, and what they read is read when they are shown."""

from __future__ import annotations

import ast
import re
from dataclasses import field
from itertools import pairwise

from turbofix.dataflow.accumulators import literal
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.source.names import dotted, walk_here
from turbofix.source.nodes import walk
from turbofix.training.model import Show, Step, Sync

from ._pages import Page, Pages
from ._syncs import ROWS, Action, BatchLoop, changed_below, replacing, shows_in, why_shown
from ._tensors import is_detached, names_itself, stripped

TERMINAL = ("sys.stdout.write", "sys.stderr.write", "tqdm.write")
ELSEWHERE = "it is shown in another function or loop, which does not count the steps"
COUNTERS = ("step", "i", "batch_idx", "iteration")
SYNCS = "sync_gradients"
"""What Accelerate calls a batch that completes an accumulation by."""

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
        plan.header = condition(page, loop, every, plan)
    except Refuse as refuse:
        plan.refused.update((page.site(statement), str(refuse)) for statement in statements)
        return plan
    plan.lossy = plan.lossy or any(each.guard.kind == "step" for each in shows_in(loop, waiting))
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


# --- how often -------------------------------------------------------------------------------------------------------


def condition(page: Page, loop: BatchLoop, every: int, plan: Throttling) -> str:
    """The line above the messages; the plan gets what makes the counter, and whether the last step may be missed.

    Raises ``Refuse``.
    """
    node = page.node(loop.loop.site)
    if not isinstance(node, ast.For):
        plan.lossy = True
        return f"if {counted_by_hand(page, node)} % {every} == 0:"
    counter, start, sized = loop.loop.counter, loop.loop.counter_start, length(page, loop)
    target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
    if counter is None or dotted(target) != counter:
        counter, start = new_counter(page, node, plan.common), 0
    if start not in (0, 1):
        raise Refuse(f"the loop counts from {start}")
    plan.lossy = plan.lossy or sized is None or any(isinstance(each, (ast.Break, ast.Return)) for each in walk(node))
    if sized is None:
        return f"if {counter} % {every} == 0:"
    last = sized if start == 1 else f"{sized} - 1" if re.fullmatch(r"[\w.]+(\(.*\))?", sized) else f"({sized}) - 1"
    return f"if {counter} % {every} == 0 or {counter} == {last}:"


def counted_by_hand(page: Page, loop: ast.AST) -> str:
    """The number that each round of a ``while`` makes larger by one. Raises ``Refuse``."""
    for each in getattr(loop, "body", ()):
        added = isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add) and getattr(each.value, "value", False)
        name = (dotted(each.target) or ".") if added == 1 else "."
        others = [one for one in page.writes(name, page.scope(loop)) if one is not each]
        if "." not in name and others and all(type(literal(one, name)) is int for one in others):
            return name
    raise Refuse("the loop is no `for`, whose steps can be counted")


def length(page: Page, loop: BatchLoop) -> str | None:
    """How to write the number of steps: of what a progress bar runs over, not of the bar."""
    sized, bar, node = loop.loop.sized, loop.loop.progress, page.node(loop.loop.site)
    if sized is None and isinstance(node, ast.For):
        text = f"len({page.text(counted(node.iter))})"
        inside = (each for each in walk_here(node) if isinstance(each, ast.Call))
        return text if any(page.text(each) == text for each in inside) else None  # the loop itself asks for it
    if sized is None or bar is None or sized != f"len({loop.loop.progress_name})":
        return sized
    call = page.node(bar)
    inner = counted(call.args[0]) if isinstance(call, ast.Call) and call.args else None
    name = dotted(inner) if isinstance(inner, (ast.Name, ast.Attribute)) else None
    return f"len({name})" if name is not None else None


def counted(iterated: ast.expr) -> ast.expr:
    """What ``enumerate`` runs over; the expression itself where it is something else."""
    if isinstance(iterated, ast.Call) and dotted(iterated.func) == "enumerate" and iterated.args:
        return iterated.args[0]
    return iterated


def new_counter(page: Page, node: ast.For, common: list[Action]) -> str:
    """Let the loop count its steps: ``for x in loader`` becomes ``for step, x in enumerate(loader)``."""
    counter = next((name for name in COUNTERS if not page.names.is_used(name)), page.free_name(COUNTERS[0]))
    text = page.text(node.target)
    if isinstance(node.target, (ast.Tuple, ast.List)) and not text.startswith(("(", "[")):
        text = f"({text})"
    common.append(replacing(page.site(node.target), f"{counter}, {text}"))
    common.append(replacing(page.site(node.iter), f"enumerate({page.text(node.iter)})"))
    return counter


def paced(page: Page, group: list[ast.stmt], header: str) -> str:
    """The line above messages that an accumulation lets by: by the updates that are counted beside, if they are.

    No number of batches may fit both (every second one, of those from 15 on every 16th). Raises ``Refuse``.
    """
    tests = (each for each in page.above(group[0]) if isinstance(each, ast.If))
    test = next((each for each in tests if SYNCS in page.text(each.test)), None)
    if test is None:
        return header
    counts = [each for each in test.body if isinstance(each, ast.AugAssign) and page.text(each.value) == "1"]
    every = re.search(r"% (\d+)", header)
    if not counts or every is None:
        raise Refuse(f"line {test.lineno} lets by what completes an accumulation, and counts no updates")
    return f"if {page.text(counts[0].target)} % {every[1]} == 0:"


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
