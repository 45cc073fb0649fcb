"""How a loop counts its steps, and the test by which every so many of them are shown."""

from __future__ import annotations

import ast
import re

from turbofix.dataflow.accumulators import literal
from turbofix.editing.edit import Refuse
from turbofix.source.names import dotted, walk_here
from turbofix.source.nodes import walk

from ._pages import Page
from ._syncs import Action, BatchLoop, replacing

COUNTERS = ("step", "i", "batch_idx", "iteration")
SYNCS = "sync_gradients"
"""What Accelerate calls a batch that completes an accumulation by."""


def condition(page: Page, loop: BatchLoop, every: int, common: list[Action]) -> tuple[str, bool]:
    """The line above the messages, and whether the last step may be missed; ``common`` gets what makes the counter.

    Raises ``Refuse``.
    """
    node = page.node(loop.loop.site)
    if not isinstance(node, ast.For):
        return f"if {counted_by_hand(page, node)} % {every} == 0:", True
    counter, start, sized = loop.loop.counter, loop.loop.counter_start, length(page, loop)
    target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
    if counter is None or dotted(target) != counter:
        counter, start = new_counter(page, node, common), 0
    if start not in (0, 1):
        raise Refuse(f"the loop counts from {start}")
    if sized is None:
        return f"if {counter} % {every} == 0:", True
    last = sized if start == 1 else f"{sized} - 1" if re.fullmatch(r"[\w.]+(\(.*\))?", sized) else f"({sized}) - 1"
    early = any(isinstance(each, (ast.Break, ast.Return)) for each in walk(node))
    return f"if {counter} % {every} == 0 or {counter} == {last}:", early


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
