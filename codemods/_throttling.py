"""How the messages of a loop are shown every so many steps, and what they read is read when they are shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise

from turbofix.dataflow.accumulators import literal
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Site
from turbofix.records import dataclass
from turbofix.source.answers import every
from turbofix.source.names import dotted, loaded, stores, walk_here
from turbofix.source.nodes import children, walk
from turbofix.training.model import Show, Step, Sync

from ._pages import Page, Pages
from ._syncs import ROWS, Action, BatchLoop, replacing, shows_in, why_shown

TERMINAL = ("sys.stdout.write", "sys.stderr.write", "tqdm.write")
ELSEWHERE = "it is shown in another function or loop, which does not count the steps"
COUNTERS = ("step", "i", "batch_idx", "iteration")

COMPARISONS = frozenset(
    {
        "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not",
    }
)  # fmt: skip
PURE_FUNCTIONS = frozenset(
    {
        "len", "int", "float", "round", "str", "abs", "max", "min", "sum", "format", "print", "dict", "list", "tuple",
        "zip", "sorted", "type", "repr", "isinstance",
    }
)  # fmt: skip
PURE_MODULES = frozenset({"time", "math", "datetime", "np", "numpy"})
PURE_METHODS = frozenset(
    {
        "item", "tolist", "detach", "cpu", "numpy", "float", "double", "half", "long", "int", "mean", "sum", "max",
        "min", "argmax", "eq", "ne", "gt", "lt", "ge", "le", "norm", "abs", "sqrt", "exp", "log", "size", "numel",
        "dim", "view", "reshape", "squeeze", "flatten", "round", "format", "join", "ljust", "rjust", "center",
        "strip", "upper", "lower", "title", "strftime", "total_seconds", "get_last_lr", "get_lr", "keys",
        "values", "items", "set_postfix", "set_postfix_str", "set_description", "set_description_str", "write",
        "memory_allocated", "max_memory_allocated", "memory_reserved",
    }
)  # fmt: skip


SYNCS = "sync_gradients"
"""What Accelerate calls a batch that completes an accumulation by."""


@dataclass
class Throttling:
    """What becomes of the messages of one loop.

    ``groups`` are runs of neighbours that get one ``if`` together, ``header``; ``common`` makes its counter.
    ``hoisted`` are the reads apart from their message, with the edits that put them off; ``refused`` has the rest.
    ``lossy``: which step is the last cannot be told, so that its values may not be shown.
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
        for group in self.groups:
            lines = range(begun(group[0]), ended(group[-1]) + 1)
            if message.line in lines:
                return lines
        return range(message.line, message.line + 1)


def throttling(pages: Pages, loop: BatchLoop, waiting: tuple[Sync, ...], every: int | None) -> Throttling:
    """Plan for all messages of a loop at once; nothing is edited yet."""
    plan = Throttling()
    statements: list[ast.stmt] = []
    for show in shows_in(loop, waiting):
        reason = why_shown(show, show.guard)
        if reason is None and every is None:
            reason = "the loop is over after a few steps"
        try:
            if reason is not None:
                raise Refuse(reason)
            page = pages(show.statement)
            statements.append(shown_statement(page, show, loop, pages(loop.loop.site).node(loop.loop.site)))
        except Refuse as refuse:
            plan.refused[show.statement] = str(refuse)
    if not statements or every is None:
        return plan
    page = pages(loop.loop.site)
    try:
        plan.header, plan.lossy = condition(page, loop, every, plan.common)
    except Refuse as refuse:
        for statement in statements:
            plan.refused[page.site(statement)] = str(refuse)
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


def shown_statement(page: Page, show: Show, loop: BatchLoop, node: ast.AST) -> ast.stmt:
    """The statement of a message, if it can be put under a condition. Raises ``Refuse``."""
    statement = page.node(show.statement)
    inside = isinstance(loop, Step) and page.holds(node, statement) and page.scope(node) is page.scope(statement)
    if page.loop_of(statement) is not node and not inside:
        raise Refuse(ELSEWHERE)
    setting = setting_of(node) if loop.loop.counter is None else None
    if setting is not None and any(isinstance(each, ast.Name) and each.id == setting for each in walk_here(statement)):
        raise Refuse(f"each of its lines is the result for another `{setting}`")
    if is_description(statement):
        assert isinstance(statement, ast.Assign)
    elif not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        raise Refuse("the statement does more than to show values")
    else:
        call = statement.value
        if show.kind == "other" and page.text(call.func) not in TERMINAL:
            raise Refuse(f"`{page.text(call.func)}`, which shows it, may do more than that")
        for keyword in call.keywords:
            if keyword.arg == "file" and page.text(keyword.value) not in ("sys.stdout", "sys.stderr"):
                raise Refuse("the line goes to a file, whose lines are kept complete")
    reading = {page.node(call) for call in show.reading} | ({statement.value} if show.kind in ROWS else set())
    other = next((each for each in walk_here(statement) if each not in reading and not is_harmless(each)), None)
    if other is not None:
        raise Refuse(f"what is shown calls `{page.text(getattr(other, 'func', other))}`, which may do more")
    return statement


def setting_of(loop: ast.AST) -> str | None:
    """The name that takes one value after another in a loop over what is written down: ``for length in LENGTHS``."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return None
    return loop.target.id if isinstance(loop.iter, (ast.Name, ast.Attribute, ast.List, ast.Tuple)) else None


def refuse_more_than_messages(page: Page, body: list[ast.stmt], shown: list[ast.stmt]) -> None:
    """Raise ``Refuse`` where a block does something beside messages, or sets what a test elsewhere asks."""
    names = {name for name, _ in stores(ast.Module(body, []))}
    own = {id(each) for top in body for each in walk(top)}
    for test in (getattr(each, "test", None) for each in walk(page.scope(body[0]))):
        if test is not None and id(test) not in own and names & loaded(test):
            raise Refuse(f"line {test.lineno} asks what is set beside the messages")
    for statement in (each for top in body for each in walk(top)):
        if isinstance(statement, (ast.Expr, ast.AugAssign, ast.Return, ast.Break)) and statement not in shown:
            raise Refuse(f"line {statement.lineno} stands beside the messages and does more than to show values")
    for statement in shown:
        outer = statement.value if isinstance(statement, ast.Expr) else None
        inner = (each for each in walk_here(statement) if each is not outer)
        other = next((each for each in inner if not is_harmless(each)), None)
        if other is not None:
            raise Refuse(f"what is shown calls `{page.text(getattr(other, 'func', other))}`, which may do more")
        to_file = (each for each in getattr(outer, "keywords", []) if each.arg == "file")
        if any(page.text(each.value) not in ("sys.stdout", "sys.stderr") for each in to_file):
            raise Refuse("the line goes to a file, whose lines are kept complete")


def is_description(statement: ast.AST) -> bool:
    """Whether a statement sets the text beside a progress bar: ``bar.desc = ...``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Attribute) and target.attr == "desc" and isinstance(target.value, ast.Name)


def is_harmless(node: ast.AST) -> bool:
    """Whether leaving an expression out, in most steps, changes nothing else."""
    if isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
        return False
    if not isinstance(node, ast.Call):
        return True
    if isinstance(node.func, ast.Name):
        return node.func.id in PURE_FUNCTIONS
    if isinstance(node.func, ast.Attribute):
        root: ast.AST = node.func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        drawn = "random" in (dotted(node.func) or "").split(".")  # its numbers would be drawn by others
        return not drawn and (
            node.func.attr in PURE_METHODS or (isinstance(root, ast.Name) and root.id in PURE_MODULES)
        )
    return False


def condition(page: Page, loop: BatchLoop, every: int, common: list[Action]) -> tuple[str, bool]:
    """The line above the messages, and whether they may miss the last step; ``common`` gets what makes the counter, if
    the loop has none. Raises ``Refuse``."""
    node = page.node(loop.loop.site)
    if not isinstance(node, ast.For):
        if (own := counted_by_hand(page, node)) is None:
            raise Refuse("the loop is no `for`, whose steps can be counted")
        return f"if {own} % {every} == 0:", True
    counter, start = loop.loop.counter, loop.loop.counter_start
    itself = counter is not None and counts_itself(node, counter)
    sized = length(page, loop)
    ends = [each for each in exits(node) if not is_settled(page, each, node)]
    early = foreseen(page, ends[0], node, counter) if len(ends) == 1 and itself else None
    lossy = sized is None or (bool(ends) and early is None)
    if counter is None or not itself:
        counter, start = new_counter(page, node, common), 0
    if start not in (0, 1):
        raise Refuse(f"the loop counts from {start}")
    if sized is None or lossy:
        return f"if {counter} % {every} == 0:", lossy
    if start == 0 and isinstance(ast.parse(sized, mode="eval").body, (ast.BinOp, ast.IfExp, ast.BoolOp)):
        sized = f"({sized})"
    last = f"{sized} - 1" if start == 0 else sized
    return f"if {' or '.join(filter(None, (f'{counter} % {every} == 0', early, f'{counter} == {last}')))}:", False


def counted_by_hand(page: Page, loop: ast.AST) -> str | None:
    """The number that each round of a ``while`` makes larger by one, if nothing but its start is written beside it."""
    for each in getattr(loop, "body", ()):
        added = isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add) and getattr(each.value, "value", False)
        name = (dotted(each.target) or ".") if added == 1 else "."
        others = [one for one in page.writes(name, page.scope(loop)) if one is not each]
        if "." not in name and others and all(type(literal(one, name)) is int for one in others):
            return name
    return None


def foreseen(page: Page, leave: ast.stmt, loop: ast.For, counter: str | None) -> str | None:
    """The test of the last step, where a loop begins with ``if step >= steps: break``; None for other ends."""
    above, stored = page.parent(leave), {each for each, _ in stores(loop)} - {counter}
    if not isinstance(above, ast.If) or above is not loop.body[0] or above.body != [leave] or above.orelse:
        return None
    test = re.fullmatch(rf"{counter}( (?:>=|==) ([\w.]+))", page.text(above.test))
    return f"{counter} + 1{test[1]}" if test is not None and test[2].partition(".")[0] not in stored else None


ENDS = frozenset({"sys.exit", "exit", "quit", "os._exit", "SystemExit", "KeyboardInterrupt"})


def ends_program(statement: ast.AST) -> bool:
    """Whether a statement ends the program in an orderly way: ``sys.exit()``, ``raise SystemExit``."""
    ended = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(statement, ast.Raise):
        ended = statement.exc
    called = isinstance(ended, ast.Call)
    name = dotted(ended.func if isinstance(ended, ast.Call) else ended) if ended is not None else None
    return name in ENDS and (called or isinstance(statement, ast.Raise))


def exits(loop: ast.AST, *, nested: bool = False) -> Iterator[ast.stmt]:
    """The statements that leave a loop early: its own ``break``, and ``return``, also from the loops inside it.

    And what ends the program.
    """
    for child in children(loop):
        if (
            isinstance(child, ast.Return)
            or (isinstance(child, ast.stmt) and ends_program(child))
            or (isinstance(child, ast.Break) and not nested)
        ):
            yield child
        elif isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
            for statement in child.body:
                yield from exits(ast.Module([statement], []), nested=True)
            for statement in child.orelse:  # its `break` leaves the loop around
                yield from exits(ast.Module([statement], []), nested=nested)
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from exits(child, nested=nested)


def is_settled(page: Page, leave: ast.stmt, loop: ast.AST) -> bool:
    """Whether a flag alone decides, so that the loop ends with its first step, which is shown (a dry run)."""
    above = page.parent(leave)
    if not isinstance(above, ast.If) or above.orelse:
        return False
    name = dotted(above.test)
    return name is not None and name.partition(".")[0] not in {each for each, _ in stores(loop)}


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
    if name is None:
        return None
    between = [each for each in page.writes(name, page.scope(call)) if begun(call) < begun(each) <= ended(node)]
    return f"len({name})" if not between else None


def begun(node: ast.AST) -> int:
    """The first line of a statement."""
    return int(getattr(node, "lineno", 0))


def ended(node: ast.AST) -> int:
    """The last line of a statement."""
    return int(getattr(node, "end_lineno", 0))


def counted(iterated: ast.expr) -> ast.expr:
    """What ``enumerate`` runs over; the expression itself where it is something else."""
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name) and iterated.func.id == "enumerate":
        return iterated.args[0] if iterated.args else iterated
    return iterated


def counts_itself(node: ast.For, counter: str) -> bool:
    """Whether the loop sets the counter (``enumerate``, ``range``), not a statement in it that may start anywhere."""
    target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
    return isinstance(target, ast.Name) and target.id == counter


def new_counter(page: Page, node: ast.For, common: list[Action]) -> str:
    """Let the loop count its steps: ``for x in loader`` becomes ``for step, x in enumerate(loader)``."""
    counter = next((name for name in COUNTERS if not page.names.is_used(name)), page.free_name(COUNTERS[0]))
    target, iterated = page.site(node.target), page.site(node.iter)
    text = page.text(node.target)
    if isinstance(node.target, (ast.Tuple, ast.List)) and not text.startswith(("(", "[")):
        text = f"({text})"
    if page.names.is_bound("enumerate"):
        raise Refuse("`enumerate` means something else in this file")
    common += [replacing(target, f"{counter}, {text}"), replacing(iterated, f"enumerate({page.text(node.iter)})")]
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
    found: list[list[ast.stmt]] = []
    for run in groups:
        block = page.block(run[0])
        index = block.index(run[0])
        while index > 0 and serves_only(page, block[index - 1], run):
            index -= 1
            run.insert(0, block[index])
        if found and index > 0 and found[-1][-1] is block[index - 1]:
            found[-1] += run
        else:
            found.append(run)
    return found


def serves_only(page: Page, statement: ast.stmt, run: list[ast.stmt]) -> bool:
    """Whether a statement only computes a name that nothing but ``run`` reads."""
    if not isinstance(statement, ast.Assign) or not all(is_harmless(each) for each in walk(statement.value)):
        return False
    target = statement.targets[0]
    if len(statement.targets) > 1 or not isinstance(target, ast.Name):
        return False
    name = target.id
    try:
        scope = page.owner(name, statement)
    except Refuse:
        return False
    if page.writes(name, scope) != [statement]:
        return False
    return all(any(page.holds(each, read) for each in run) for read in page.reads(name, scope))


def hoisted(page: Page, sync: Sync, read: ast.AST, loop: BatchLoop, plan: Throttling) -> list[Action]:
    """The edits that keep a tensor where a number was read, and read it where it is shown. Raises ``Refuse``."""
    statement = page.statement(read)
    node = page.node(loop.loop.site)
    if page.loop_of(statement) is not node or not (
        isinstance(statement, ast.Assign) and statement.value is read and isinstance(statement.targets[0], ast.Name)
    ):
        raise Refuse(f"what line {sync.site.line} reads is not simply kept in a name")
    if len(statement.targets) > 1:
        raise Refuse(f"what line {sync.site.line} reads is kept in several names")
    if sync.plain:
        raise Refuse(f"what line {sync.site.line} reads may be a plain number, which has no tensor's methods")
    name = statement.targets[0].id
    scope = page.owner(name, statement)
    if page.writes(name, scope) != [statement]:
        raise Refuse(f"`{name}` is set elsewhere too")
    base = stripped(read)
    if base is None:
        raise Refuse(f"line {sync.site.line} reads more than one number")
    refuse_changes(page, base, node)
    kept = page.text(base) if sync.no_grad or is_detached(base) else f"{page.operand(base)}.detach()"
    actions = [replacing(sync.site, kept)]
    for each in page.reads(name, scope):
        if not plan.holds(page, each) and not page.is_seldom(each, node, read):
            raise Refuse(f"`{name}` is read on line {each.lineno} too")
        if page.text(each) != name:
            raise Refuse(f"the place on line {each.lineno} was not found again")  # in a text of several lines
        if names_itself(page, each):
            raise Refuse(f"line {each.lineno} shows the name `{name}` with its value")
        text = f"{sync.how}({name})" if sync.how in ("float", "int") else f"{name}.item()"
        actions.append(replacing(page.site(each), text))
    return actions


def names_itself(page: Page, node: ast.Name | ast.Attribute) -> bool:
    """Whether a text shows an expression beside its value: ``f"{loss=}"``."""
    if not isinstance(page.parent(node), ast.FormattedValue):
        return False
    line = page.module.text.split("\n")[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :]
    return line.lstrip().startswith(b"=")


def stripped(read: ast.AST) -> ast.expr | None:
    """The tensor under a read: ``loss`` of ``loss.detach().cpu().item()``; None for anything else than one number."""
    inner: ast.AST = read
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id in ("float", "int"):
        if len(inner.args) != 1 or inner.keywords:
            return None
        inner = inner.args[0]
        if not (isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "item"):
            return without_copies(inner)
    if (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in ("item", "tolist", "numpy")
        and not inner.args
        and not inner.keywords
    ):
        return without_copies(inner.func.value)
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


def is_detached(node: ast.AST) -> bool:
    """Whether a tensor has no graph behind it whatever went before: it came out of a comparison."""
    while True:
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            return is_detached(node.left) and is_detached(node.right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in COMPARISONS or node.func.attr == "argmax":
                return True
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return False


COLLECTIVES = frozenset(("all_reduce", "broadcast", "reduce"))
"""Functions of ``torch.distributed``, and methods of Fabric, that write into the tensor that they are given."""


def refuse_changes(page: Page, base: ast.expr, loop: ast.AST) -> None:
    """Raise ``Refuse`` where the loop changes the tensor in place, so that it may differ when it is read at last."""
    name = dotted(base) if isinstance(base, (ast.Name, ast.Attribute)) else None
    given = [
        each.value
        for each in inside(loop)
        if name is not None and isinstance(each, ast.Assign) and name in map(dotted, each.targets)
    ]
    for value in (base, *given):
        if any(is_written_into(each) for each in walk(value)):
            raise Refuse(
                f"line {value.lineno} writes `{page.text(base)}` into a tensor that the next step may use again"
            )
    if name is None:
        return
    made_here = any(dotted(each) == name and not isinstance(each.ctx, ast.Load) for each in names_in(loop))
    line = changed_line(page, name, loop, base.lineno if made_here else 0)
    if line is not None:
        raise Refuse(f"line {line} changes `{name}` in place before it would be read")


def names_in(code: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """The names and attributes of a loop or a function, without those of functions inside."""
    for each in inside(code):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield each


def inside(code: ast.AST) -> Iterator[ast.AST]:
    """What is executed in a loop or by a function."""
    for statement in code.body if isinstance(code, ast.FunctionDef) else (code,):
        yield from walk_here(statement)


def is_written_into(node: ast.AST) -> bool:
    """Whether a call returns a tensor that it was given: ``buffer.copy_(x)``, ``torch.add(x, y, out=z)``."""
    if not isinstance(node, ast.Call):
        return False
    return is_in_place(node) or any(keyword.arg == "out" for keyword in node.keywords)


def is_in_place(call: ast.Call) -> bool:
    """Whether a method changes its tensor, by torch's rule for their names."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return method.endswith("_") and not method.startswith("_") and method != "requires_grad_"


def changed_line(  # noqa: PLR0913
    page: Page, name: str, code: ast.AST, after: int, depth: int = 2, since: int = 0
) -> int | None:
    """The line that changes the tensor of a name in place, or gives it to a function that does, in a loop or function.

    Only lines below ``since`` count; collectives and functions only below the line ``after``: before it, they change
    what is read as it is.
    """
    for each in inside(code):
        if getattr(each, "lineno", 0) <= since:
            continue
        changed: list[ast.AST | None] = []
        if isinstance(each, ast.AugAssign):
            changed.append(each.target)
        elif isinstance(each, ast.Assign):
            changed += [target for target in each.targets if whose(target) != dotted(target)]
        elif isinstance(each, ast.Call):
            changed += [keyword.value for keyword in each.keywords if keyword.arg == "out"]
            if is_in_place(each) and isinstance(each.func, ast.Attribute):
                changed.append(each.func.value)
            if each.lineno > after:
                changed += changed_arguments(page, each, depth)
        if any(whose(one) == name for one in changed if one is not None):
            return int(getattr(each, "lineno", 0))
    return None


def changed_arguments(page: Page, call: ast.Call, depth: int) -> list[ast.AST | None]:
    """The arguments of a call that it changes: of a collective, or of a function of the same file."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if method in COLLECTIVES:
        return [*call.args[:1]]
    functions = [each for each in every(ast.FunctionDef, page.module.tree) if each.name == method]
    found: list[ast.AST | None] = []
    for function in functions if depth else ():
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        bound = isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"])
        pairs = [*zip(names[1:] if bound else names, call.args, strict=False)]
        pairs += [(each.arg, each.value) for each in call.keywords if each.arg is not None]
        found += [value for name, value in pairs if changed_line(page, name, function, 0, depth - 1) is not None]
    return found


def whose(node: ast.AST) -> str | None:
    """The name of the tensor whose memory an expression stands for: ``loss`` of ``loss.data[0]``."""
    while True:
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
            node = node.func.value
        else:
            return dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
