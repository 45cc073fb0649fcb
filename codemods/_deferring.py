"""How a number that is only summed, averaged or kept stays on the device until somebody reads it."""

from __future__ import annotations

import ast
import re
from dataclasses import field

from turbofix.dataflow.accumulators import given, literal
from turbofix.editing.edit import Refuse
from turbofix.records import dataclass
from turbofix.source.names import dotted, stores, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import LOOPS
from turbofix.training.model import Accumulator, Sync

from ._numbers import Number, Results, is_counted, kind_of
from ._pages import Page, Pages
from ._syncs import Action, BatchLoop, adding_after, adding_before, lacks_float64, loop_words, replacing
from ._throttling import Throttling, begun, ended, hoisted, is_detached, refuse_changes, stripped

OWN_STORAGE = frozenset({"mean", "sum", "norm", "std", "var", "prod"})
COUNTS = frozenset({"count", "n", "num"})
HOST_METHODS = frozenset({"size", "numel", "dim", "item", "__len__"})
LISTED = {"torch.zeros": "torch.tensor", "torch.empty": "torch.tensor", "np.zeros": "np.array", "np.empty": "np.array"}
HOST_ATTRIBUTES = frozenset({"shape", "batch_size", "ndim"})


@dataclass
class Deferral:
    """The edits that put one read off. ``too_early`` is a line that reads the value in every step before they can.

    ``likely``: that nothing else looks at the value is assumed. ``rounded``: a division can differ in the last digit,
    as a GPU divides by a number by multiplying with its reciprocal.
    """

    actions: list[Action] = field(default_factory=list)
    too_early: int | None = None
    likely: bool = False
    rounded: bool = False


def deferral(pages: Pages, loop: BatchLoop, sync: Sync, shown: Throttling) -> Deferral:
    """Plan for one read that is summed, given to a meter or stored. Raises ``Refuse``."""
    if sync.site.path != loop.loop.site.path:
        raise Refuse("it is read in another file than its loop")
    page = pages(sync.site)
    if sync.use == "summed" and sync.accumulator is not None:
        return deferred_sum(pages, page, loop, sync, sync.accumulator, shown)
    if sync.use == "meter" and sync.meter is not None:
        return deferred_meter(pages, page, loop, sync, shown)
    if sync.use == "stored":
        return deferred_list(page, loop, sync)
    if sync.use == "shown":
        return deferred_message(page, loop, sync)
    if sync.use == "nothing":
        if (line := timed_line(page, loop)) is not None:
            raise Refuse(f"line {line} takes the time of the step, which holds the wait")
        return Deferral([lambda edit: edit.delete(sync.statement)])
    raise Refuse("the number is used for more than a sum or a message")


# --- sums ------------------------------------------------------------------------------------------------------------


def deferred_sum(  # noqa: PLR0913
    pages: Pages, page: Page, loop: BatchLoop, sync: Sync, total: Accumulator, shown: Throttling
) -> Deferral:
    """``total += loss.item() * n``: the sum is kept on the device, and becomes a number where it is read."""
    node, read, update = page.node(loop.loop.site), page.node(sync.site), page.node(total.update)
    if not isinstance(update, ast.AugAssign) or page.loop_of(update) is not node or total.loop != loop.loop.site:
        raise Refuse(f"`{total.text}` is summed in another loop or function")
    if not isinstance(update.op, (ast.Add, ast.Sub)):
        raise Refuse(f"`{total.text}` is not a plain sum")
    scope = page.owner(total.text, update)
    own = number_of(pages, page, sync, read)
    together = [each for each in loop.syncs if each.accumulator and each.accumulator.update == total.update]
    numbers = {number_of(pages, page, each, page.node(each.site)) for each in together} | {own}
    kind = "float" if len(numbers) > 1 else summed_as(page, total, scope, own)
    plan = Deferral(likely=page.text(read).endswith("numpy()"))  # which is printed in fewer digits
    inside = names_in_update(page, sync, read, update, node, scope, shown, plan, kind)
    refuse_operands(page, update, inside, node, kind, plan)
    divided = any(isinstance(getattr(each, "op", None), ast.Div) for each in walk(update.value))
    plan.rounded = plan.rounded or divided or (len(numbers) > 1 and lacks_float64(sync, loop))
    check_writes(page, loop, total, scope, node)
    refuse_mixtures(pages, page, loop, total)
    # a count beside a fraction in float64 stays one
    plan.actions += kept_on_device(page, loop, sync, read, own if len(numbers) > 1 else kind)
    plan.actions += read_at_last(page, loop, total, scope, node, shown, plan, kind)
    return plan


def number_of(pages: Pages, page: Page, sync: Sync, read: ast.AST, *, likely: bool = False) -> Number:
    """Whether the number is a count or a fraction: a sum of counts is printed without a point. Raises ``Refuse``.

    ``likely``: what is not known is taken for a fraction.
    """
    outer = read.func.id if isinstance(read, ast.Call) and isinstance(read.func, ast.Name) else None
    base = stripped(read)
    if base is None:
        raise Refuse("more than one number is read, or in an unusual way")
    if outer == "float" or (sync.of == "loss" and outer != "int"):
        return "float"
    results = Results(pages, dict(sync.results))
    kind = kind_of(page, base, results)
    if kind == "int" and not is_counted(page, base, results):
        raise Refuse(f"`{page.text(base)}` may be a whole number of few digits, whose sum would overflow")
    if outer == "int" and kind != "int":
        raise Refuse("`int(...)` cuts a fraction off")
    if kind is None and likely:
        return "float"
    if kind is None:
        raise Refuse(f"whether `{page.text(base)}` is a count or a fraction is not known")
    return kind


def summed_as(page: Page, total: Accumulator, scope: ast.AST, kind: Number) -> Number:
    """Counts that are added to ``0.0`` are fractions for Python. Raises ``Refuse`` where it changes on the way."""
    numbers = [literal(write, total.text) for write in page.writes(total.text, scope)]
    starts = {type(number) for number in numbers if number is not None}
    if kind == "int" and starts == {float}:
        return "float"
    if kind == "int" and starts != {int}:
        raise Refuse(f"`{total.text}` starts as a fraction here and as a whole number there")
    return kind


def names_in_update(  # noqa: PLR0913
    page: Page,
    sync: Sync,
    read: ast.AST,
    update: ast.AugAssign,
    loop: ast.AST,
    scope: ast.AST,
    shown: Throttling,
    plan: Deferral,
    kind: Number,
) -> list[ast.AST]:
    """The nodes of the update that stand for the read: itself, or the name that it was given a line before."""
    if page.holds(update, read):
        return [read]
    statement = page.statement(read)
    if not (
        isinstance(statement, ast.Assign)
        and statement.value is read
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        raise Refuse(f"what line {sync.site.line} reads is not simply kept in a name")
    name = statement.targets[0].id
    if page.owner(name, statement) is not scope or page.writes(name, scope) != [statement]:
        raise Refuse(f"`{name}` is set elsewhere too")
    found: list[ast.AST] = []
    for each in page.reads(name, scope):
        if page.holds(update.value, each):
            found.append(each)
        elif page.is_seldom(each, loop, read):
            plan.actions.append(replacing(page.site(each), f"{kind}({name})"))
        elif shown.holds(page, each):
            plan.too_early = plan.too_early or each.lineno
        else:
            raise Refuse(f"`{name}` is read on line {each.lineno} too")
    return found


def refuse_operands(  # noqa: PLR0913
    page: Page, update: ast.AugAssign | ast.Call, inside: list[ast.AST], loop: ast.AST, kind: Number, plan: Deferral
) -> None:
    """Raise ``Refuse`` unless the update takes the read, or its product with what is likely to be a plain number."""
    for node in inside:
        child = node
        for each in page.above(node):
            if each is update:
                break
            power = isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow) and each.left is child
            squared = power and kind == "float" and is_number(page, getattr(each, "right", None), loop)
            if squared or (isinstance(each, ast.UnaryOp) and isinstance(each.op, (ast.USub, ast.UAdd))):
                plan.rounded = plan.rounded or squared
                child = each
                continue
            if not isinstance(each, ast.BinOp) or not isinstance(each.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                raise Refuse(f"line {update.lineno} does more with the number than to sum it")
            other = each.right if each.left is child else each.left
            if not any(page.holds(other, one) for one in inside):
                plan.likely = plan.likely or not is_number(page, other, loop)
                if kind == "int":
                    raise Refuse(f"line {update.lineno} adds more than a plain count")
            child = each


def is_number(page: Page, node: ast.AST | None, loop: ast.AST, depth: int = 4) -> bool:
    """Whether an operand is surely no tensor, which would change the type of the sum."""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
        return all(is_number(page, each, loop, depth) for each in parts)
    if isinstance(node, ast.Call):
        called = dotted(node.func) or ""
        return called in ("len", "int", "float") or getattr(node.func, "attr", "") in HOST_METHODS
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Attribute):
        top = (dotted(node) or "").partition(".")[0]
        return node.attr in HOST_ATTRIBUTES or bool(top and top not in {name for name, _ in stores(loop)})
    if isinstance(node, ast.Name) and depth > 0:  # without writes it is a parameter, or a constant of the module
        writes = page.writes(node.id, page.scope(node))
        return all(is_number(page, given(each, node.id), loop, depth - 1) for each in writes)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def check_writes(page: Page, loop: BatchLoop, total: Accumulator, scope: ast.AST, node: ast.AST) -> None:
    """Raise ``Refuse`` where the sum does not begin as a number, or is changed in the loop in other ways."""
    sums = {sync.accumulator.update for sync in loop.syncs if sync.accumulator is not None}
    for write in page.writes(total.text, scope):
        if page.site(write) in sums:
            continue
        in_loop = page.holds(node, write)
        if isinstance(write, ast.AugAssign):
            if in_loop:
                raise Refuse(f"line {write.lineno} changes `{total.text}` too")
            continue
        before = in_loop or getattr(write, "lineno", 0) < getattr(node, "lineno", 0)
        if before and literal(write, total.text) is None:
            raise Refuse(f"`{total.text}` is not a plain number before the loop")
        if in_loop and not page.is_seldom(write, node, page.node(total.update)):
            raise Refuse(f"line {getattr(write, 'lineno', 0)} sets `{total.text}` anew in the loop")
    if "." not in total.text and not is_surely_set(page, total.text, scope, node):
        raise Refuse(f"`{total.text}` starts under a condition, so that it may not be there after the loop")


def refuse_mixtures(pages: Pages, page: Page, loop: BatchLoop, total: Accumulator, *, likely: bool = False) -> None:
    """Raise ``Refuse`` where several lines add to a sum and may differ: a tensor that is added to keeps what it is.

    That is its being a whole number or not, and whether it was made where nothing is recorded.
    """
    added = [
        sync
        for sync in loop.syncs
        if sync.accumulator is not None and (sync.accumulator.text, sync.accumulator.loop) == (total.text, total.loop)
    ]
    reads = [page.node(sync.site) for sync in added if sync.site.path == page.module.path]
    if len({sync.accumulator.update for sync in added if sync.accumulator is not None}) > 1 and not (
        len({sync.no_grad for sync in added}) == 1
        and len({number_of(pages, page, *each, likely=likely) for each in zip(added, reads, strict=False)}) == 1
    ):
        lines = ", ".join(str(sync.site.line) for sync in added)
        raise Refuse(f"lines {lines} add to `{total.text}`, and may add tensors of different types")


def is_surely_set(page: Page, name: str, scope: ast.AST, loop: ast.AST) -> bool:
    """Whether a name is written above a loop in one of the blocks that hold it, not under a condition of its own."""
    for write in page.writes(name, scope):
        child: ast.AST | None = page.parent(write)
        while isinstance(child, (ast.With, ast.AsyncWith)) and not page.holds(child, loop):
            child = page.parent(child)
        if child is not None and page.holds(child, loop):
            return True
    return False


def kept_on_device(page: Page, loop: BatchLoop, sync: Sync, read: ast.AST, kind: Number) -> list[Action]:
    """The read, without the wait: the count as it is, a fraction in float64, as Python sums it."""
    base = stripped(read)
    assert base is not None
    if kind == "int":
        return [replacing(sync.site, page.text(base))]
    detached = "" if sync.no_grad or is_detached(base) else ".detach()"
    if not lacks_float64(sync, loop):
        return [replacing(sync.site, f"{page.operand(base)}{detached}.double()")]
    actions: list[Action] = []
    name = base.id if isinstance(base, ast.Name) else name_for(page, read, base)
    if not isinstance(base, ast.Name):
        actions.append(adding_before(sync.statement, f"{name} = {page.text(base)}"))
    whole = f"{name}{detached}.double() if {name}.is_cuda else {name}.item()"
    return [*actions, replacing(sync.site, whole)]


def name_for(page: Page, read: ast.AST, base: ast.expr) -> str:
    """A name for the tensor, which the line would otherwise compute twice. Raises ``Refuse``."""
    refuse_hoisting(page, read)
    if "\n" in page.text(base):
        raise Refuse("the device may be one without float64, and the line is too long to be told apart")
    scope = page.scope(read)
    used = {each.id for each in walk(scope) if isinstance(each, ast.Name)}
    free = [each for each in ("loss", "batch_loss", "value") if each not in used]
    return free[0] if free and scope is not page.module.tree else page.free_name("batch_loss")


def refuse_hoisting(page: Page, read: ast.AST) -> None:
    """Raise ``Refuse`` unless computing the tensor one line earlier changes no order that matters."""
    child = read
    for each in page.above(read):
        if isinstance(each, ast.stmt):
            return
        if isinstance(each, ast.BinOp) and each.right is child:
            calls = [call for call in walk(each.left) if isinstance(call, ast.Call)]
            if any(not (isinstance(call.func, ast.Name) and call.func.id == "len") for call in calls):
                raise Refuse("the line calls something else before it")
        child = each


def read_at_last(  # noqa: PLR0913
    page: Page,
    loop: BatchLoop,
    total: Accumulator,
    scope: ast.AST,
    node: ast.AST,
    shown: Throttling,
    plan: Deferral,
    kind: Number,
) -> list[Action]:
    """Turn the sum into a number where somebody reads it: under the guard of the reads in the loop, and after it."""
    conversion = f"{total.text} = {kind}({total.text})"
    actions: list[Action] = []
    guarded: list[ast.AST] = []
    after = False
    known = {read.site: read for read in total.reads}
    orelse = getattr(node, "orelse", [])
    refuse_exceptions(page, node, total.text, scope)
    leaving = next((each for each in walk_here(node) if isinstance(each, (ast.Return, ast.Yield, ast.YieldFrom))), None)
    if "." in total.text and leaving is not None:
        raise Refuse(f"line {leaving.lineno} leaves `{total.text}` to others before the loop is over")
    for each in page.reads(total.text, scope):
        parent = page.parent(each)
        if isinstance(parent, ast.Attribute):
            raise Refuse(f"line {each.lineno} uses `{total.text}` as more than a number")
        if not page.holds(node, each):
            after = True
            continue
        if any(page.holds(one, each) for one in orelse):
            raise Refuse(f"the loop's own `else` reads `{total.text}`")
        read = known.get(page.site(each))
        if read is None:
            raise Refuse(f"line {each.lineno} reads `{total.text}` too")
        if read.when in ("every_n", "condition"):
            guarded.append(each)
        elif shown.holds(page, each):
            plan.too_early = plan.too_early or each.lineno
        else:
            why = shown.refused.get(read.show or read.statement)
            refused = f"line {each.lineno} reads `{total.text}` {loop_words(loop)}"
            raise Refuse(f"{refused} ({why})" if why is not None else refused)
    # A sum that is changed after the loop (`total /= n`) is read there; an attribute may be, by whoever has the object.
    after = (
        after
        or "." in total.text
        or any(
            isinstance(write, ast.AugAssign) and not page.holds(node, write) for write in page.writes(total.text, scope)
        )
    )
    actions += [replacing(page.site(each), f"{kind}({total.text})") for each in guarded]
    if after:
        actions.append(adding_after(page.site(last_of(page, node)), conversion))
    return actions


def refuse_exceptions(page: Page, node: ast.AST, name: str, scope: ast.AST) -> None:
    """Raise ``Refuse`` where an exception may end the loop, and what it left is read all the same."""
    for each in page.above(node):
        if each is scope:
            return
        caught = isinstance(each, ast.Try) or suppresses(each)
        if caught and any(page.holds(statement, node) for statement in getattr(each, "body", ())):
            for read in page.reads(name, scope):
                if not any(page.holds(statement, read) for statement in getattr(each, "body", ())):
                    raise Refuse(f"line {read.lineno} reads `{name}` where an exception may have ended the loop")


def suppresses(node: ast.AST) -> bool:
    """Whether a ``with`` catches exceptions: ``contextlib.suppress(KeyboardInterrupt)``."""
    if not isinstance(node, (ast.With, ast.AsyncWith)):
        return False
    calls = (each.context_expr for each in node.items if isinstance(each.context_expr, ast.Call))
    return any((dotted(call.func) or "").rpartition(".")[2] == "suppress" for call in calls)


def last_of(page: Page, node: ast.AST) -> ast.AST:
    """The loop, or the outermost ``with`` that ends where the loop ends: what is read after it is read outside."""
    above = page.parent(node)
    while isinstance(above, (ast.With, ast.AsyncWith)) and above.body[-1] is node:
        node, above = above, page.parent(above)
    return node


# --- meters ----------------------------------------------------------------------------------------------------------


def deferred_meter(pages: Pages, page: Page, loop: BatchLoop, sync: Sync, shown: Throttling) -> Deferral:
    """``losses.update(loss.item(), n)``: the meter computes with the tensor, and is read as a number."""
    assert sync.meter is not None
    node, call, read = page.node(loop.loop.site), page.node(sync.meter.call), page.node(sync.site)
    assert isinstance(call, ast.Call)
    if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and page.holds(call, read)):
        raise Refuse("the number is not handed over directly")
    if page.loop_of(call) is not node or sync.meter.call.path != loop.loop.site.path:
        raise Refuse("the meter is fed in another loop or function")
    if number_of(pages, page, sync, read, likely=True) != "float":
        raise Refuse("the meter counts in whole numbers")
    meter = call.func.value.id
    scope = page.maker(meter, call)
    base = stripped(read)
    known = sync.of == "loss" or (base is not None and kind_of(page, base, Results(pages, dict(sync.results))))
    plan = Deferral(kept_on_device(page, loop, sync, read, "float"), likely=not (known and sync.meter.computes_only))
    refuse_operands(page, call, [read], node, "float", plan)
    for each in page.reads(meter, scope):
        attribute = page.parent(each)
        if attribute is call.func or page.holds(call, each):
            continue
        if not isinstance(attribute, ast.Attribute):
            if page.holds(node, each) and not page.is_seldom(each, node, call):
                raise Refuse(f"line {each.lineno} hands `{meter}` on {loop_words(loop)}")
            plan.likely = plan.likely or not is_filled_in(page, each)
            continue
        above = page.parent(attribute)
        if isinstance(above, ast.Call) and above.func is attribute:
            if attribute.attr not in ("reset", "update"):  # what it returns would be a tensor
                raise Refuse(f"line {each.lineno} calls `{meter}.{attribute.attr}`")
            continue
        if attribute.attr in COUNTS:
            continue
        if page.holds(node, each) and not page.is_seldom(each, node, call):
            if not shown.holds(page, each):
                raise Refuse(f"line {each.lineno} reads `{meter}.{attribute.attr}` {loop_words(loop)}")
            plan.too_early = plan.too_early or each.lineno
        if not isinstance(attribute.ctx, ast.Load):
            raise Refuse(f"line {each.lineno} sets `{meter}.{attribute.attr}`")
        plan.actions.append(replacing(page.site(attribute), f"float({meter}.{attribute.attr})"))
    return plan


def is_filled_in(page: Page, node: ast.AST) -> bool:
    """Whether a meter goes into ``"{loss.avg:.3f}".format(loss=losses)``, each fraction with a format of its own."""
    keyword = page.parent(node)
    call = page.parent(keyword) if isinstance(keyword, ast.keyword) else None
    text = page.text(call.func) if isinstance(call, ast.Call) else ""
    if not isinstance(keyword, ast.keyword) or not re.fullmatch(r"\(?\s*([\"']).*\1\s*\)?\.format", text, re.DOTALL):
        return False
    fields = re.findall(r"\{" + f"{keyword.arg}" + r"\b([^{}]*)\}", text)
    return all(re.fullmatch(r"\.\w+:[^d]+|\.(count|n|num)(:.*)?", each) for each in fields)


# --- lists -----------------------------------------------------------------------------------------------------------


def deferred_list(page: Page, loop: BatchLoop, sync: Sync) -> Deferral:
    """``losses.append(loss.item())``: the list takes the tensors, and becomes one of numbers when the loop is over.

    And ``predictions.extend(output.cpu().numpy())``, which takes room on the device until then: that is likely.
    """
    node, read = page.node(loop.loop.site), page.node(sync.site)
    base, behind = (stripped(read), "") if sync.how in ("item", "float", "int") else copied(page, read)
    if base is None:
        raise Refuse("more than one number is read, or in an unusual way")
    while behind and isinstance(page.parent(read), ast.Attribute):
        read = page.above(read)[1]
    call = page.parent(handed := handed_over(page, read) if behind else read)
    fed = longer(page, call, handed, ("append", "extend") if behind else ("append",))
    filled = isinstance(call, ast.Assign) and not behind
    if fed is None or call is None:
        raise Refuse("the number is stored in something else than a plain list")
    if page.loop_of(call) is not node:
        raise Refuse("the number is stored in another loop or function")
    if sync.replayed:
        raise Refuse("what is compiled with CUDA graphs gives its results in memory that the next step uses again")
    refuse_changes(page, base, node)
    name = fed.id
    scope = page.owner(name, fed)
    detached = "" if sync.no_grad or is_detached(base) else ".detach()"
    detached += ".clone()" if not behind and may_be_view(sync, base) else ""
    kept = f"{page.operand(base)}{detached}" if detached else page.text(base)
    added = isinstance(call, ast.AugAssign)
    plan = Deferral(
        [replacing(page.site(read), f"[{kept}]" if added and handed is read else kept)], likely=bool(behind)
    )
    method = page.parent(fed) if not added else None
    extends = added or (isinstance(method, ast.Attribute) and method.attr == "extend")
    if added and handed is not read:
        plan.actions.append(replacing(page.site(handed), f"[{page.text(handed)}]"))
    elif extends and method is not None:
        plan.actions.append(replacing(page.site(method), f"{name}.append"))
    if sync.forgotten and not behind:  # nobody can tell what it holds, which is gone with its function
        if any(isinstance(each, ast.While) for each in page.above(call)):
            raise Refuse(f"`{name}` grows without an end, and nothing reads it")
        return plan
    made, whole = made_anew(page, node, name, scope, call)
    value = given(made, name)
    slots = slots_in(value) if filled else None
    if slots is None and (filled or not isinstance(value, ast.List) or value.elts):
        raise Refuse(f"`{name}` is not a list that is made empty before the loop")
    for each in page.reads(name, scope):
        if each is fed or not begun(made) < each.lineno <= ended(whole):
            continue
        taken = page.parent(each)  # one number, shown now and then
        single = isinstance(taken, ast.Subscript) and taken.value is each and not isinstance(taken.slice, ast.Slice)
        if behind or taken is None or not single or not page.is_seldom(each, node, call):
            raise Refuse(f"line {each.lineno} uses `{name}` before the loop is over")
        plan.actions.append(replacing(page.site(taken), f"float({page.text(taken)})"))
    refuse_exceptions(page, whole, name, scope)
    item = "loss" if sync.of == "loss" else "value"
    again = f"{name} = [{item}{behind or '.item()'} for {item} in {name}]"
    if extends:
        again = f"{name} = [row for {item} in {name} for row in {item}{behind}]"
    if slots is not None and isinstance(value, ast.Call):
        again = f"{name} = {LISTED[page.text(value.func)]}([float({item}) for {item} in {name}])"
        plan.actions.append(replacing(page.site(value), f"[0.0] * {page.operand(slots)}"))
    plan.actions.append(adding_after(page.site(last_of(page, whole)), again))
    return plan


def slots_in(node: ast.AST | None) -> ast.expr | None:
    """The ``n`` of ``torch.zeros(n)``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords or dotted(node.func) not in LISTED:
        return None
    return None if isinstance(node.args[0], (ast.Tuple, ast.List)) else node.args[0]


def handed_over(page: Page, read: ast.AST) -> ast.AST:
    """What a list takes: the read, or the name that it was given for that alone."""
    given_to = page.parent(read)
    target = given_to.targets[0] if isinstance(given_to, ast.Assign) and len(given_to.targets) == 1 else None
    if isinstance(target, ast.Name):
        scope = page.owner(target.id, target)
        reads = page.reads(target.id, scope)
        if page.writes(target.id, scope) == [given_to] and len(reads) == 1 and scope is page.scope(read):
            return reads[0]
    return read


def longer(page: Page, call: ast.AST | None, handed: ast.AST, methods: tuple[str, ...]) -> ast.Name | None:
    """The list that a statement makes longer or fills: ``names.append(x)``, ``names.extend(xs)``, ``names += xs``,
    ``names[i] = x``."""
    if isinstance(call, ast.Assign) and call.value is handed and isinstance(call.targets[0], ast.Subscript):
        kept = call.targets[0]
        single = len(call.targets) == 1 and not isinstance(kept.slice, (ast.Tuple, ast.Slice))
        return kept.value if single and isinstance(kept.value, ast.Name) and "extend" not in methods else None
    if isinstance(call, ast.AugAssign) and isinstance(call.op, ast.Add) and call.value is handed:
        return call.target if isinstance(call.target, ast.Name) and "extend" in methods else None
    if not (isinstance(call, ast.Call) and call.args == [handed] and isinstance(call.func, ast.Attribute)):
        return None
    owner = call.func.value
    plain = call.func.attr in methods and isinstance(owner, ast.Name) and isinstance(page.parent(call), ast.Expr)
    return owner if plain and isinstance(owner, ast.Name) else None


def copied(page: Page, read: ast.AST) -> tuple[ast.expr | None, str]:
    """The tensor that is copied to the host whole, and what stands behind it: ``.cpu().numpy()``."""
    while isinstance(above := page.parent(read), ast.Attribute) and isinstance(page.parent(above), ast.Call):
        read = page.above(above)[0]
    behind: list[str] = []
    while isinstance(read, ast.Call) and isinstance(read.func, ast.Attribute) and not (read.args or read.keywords):
        if read.func.attr not in ("cpu", "numpy", "tolist", "detach"):
            break
        behind.insert(0, f".{read.func.attr}()")
        read = read.func.value
    left = [each for each in behind if each != ".detach()"]
    return (read, "".join(left)) if left and isinstance(read, ast.expr) else (None, "")


def may_be_view(sync: Sync, base: ast.expr) -> bool:
    """Whether a tensor that is kept may be a part of a larger one, which it would keep alive."""
    owns = isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr in OWN_STORAGE
    return sync.of != "loss" and not sync.scalar and not owns


def made_anew(page: Page, loop: ast.AST, name: str, scope: ast.AST, fed: ast.AST) -> tuple[ast.AST, ast.AST]:
    """The statement that makes a list before its loop, and the outermost loop of the same block that fills it.

    Nothing sets the name in between, so that the loop always begins with a new one. What it is set to before or
    afterwards (the mean of the list, say) is another value. Raises ``Refuse`` where there is no such pair.
    """
    writes = [each for each in page.writes(name, scope) if each is not fed]
    for whole in (loop, *page.above(loop)):
        if whole is scope:
            break
        block = page.block(whole) if isinstance(whole, ast.stmt) else []
        before = [each for each in writes if any(each is one for one in block) and begun(each) < begun(whole)]
        if not before:
            continue
        made = max(before, key=begun)
        if any(begun(made) < begun(each) <= ended(whole) for each in writes):
            break
        loops = [each for each in (loop, *page.above(loop)) if page.holds(whole, each) and isinstance(each, LOOPS)]
        if getattr(loops[-1], "orelse", None):
            raise Refuse("the loop has an `else` of its own")
        return made, loops[-1]
    raise Refuse(f"`{name}` is not made before the loop and left alone until it is over")


# --- messages --------------------------------------------------------------------------------------------------------


def deferred_message(page: Page, loop: BatchLoop, sync: Sync) -> Deferral:
    """``d_x = output.mean().item()``, which a message shows now and then: the name keeps the tensor until it does."""
    read = page.node(sync.site)
    base = stripped(read)
    if base is None:
        raise Refuse("more than one number is read, or in an unusual way")
    if may_be_view(sync, base):
        raise Refuse(f"`{page.text(base)}` may be a view that would keep a larger tensor alive")
    return Deferral(hoisted(page, sync, read, loop, Throttling()))


def timed_line(page: Page, around: BatchLoop) -> int | None:
    """The line where each step takes its own time, which would no longer hold the wait for the GPU."""
    loop = page.node(around.loop.site)
    inside = list(walk_here(loop))
    clocks = {  # whatever the clock is called: the same call without arguments, subtracted from a later one
        (dotted(target), asked)
        for each in inside
        if isinstance(each, ast.Assign) and (asked := clock_of(each.value)) and not page.is_seldom(each, loop, loop)
        for target in each.targets
    }
    for each in inside:
        if not (isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub)):
            continue
        later = {clock_of(each.left), *(clock for name, clock in clocks if name == dotted(each.left))} - {None}
        if any(name is not None and name == dotted(each.right) and clock in later for name, clock in clocks):
            return each.lineno
    return None


def clock_of(node: ast.AST) -> str | None:
    """What is called without arguments, as clocks are."""
    return dotted(node.func) if isinstance(node, ast.Call) and not node.args and not node.keywords else None


# --- what a function returns -----------------------------------------------------------------------------------------


def annotated(page: Page, function: ast.FunctionDef) -> list[Action]:
    """The annotation of a function that returns a tensor from now on. Raises ``Refuse``."""
    numbers = [each for each in walk(function.returns) if dotted(each) == "float"] if function.returns else []
    imports = [each for each in page.module.tree.body if isinstance(each, ast.Import)]
    if numbers and not any(alias.name == "torch" and alias.asname is None for each in imports for alias in each.names):
        raise Refuse(f"`{function.name}` promises to return a number")
    return [replacing(page.site(each), "torch.Tensor") for each in numbers]


# --- leaks -----------------------------------------------------------------------------------------------------------


def detached_sum(page: Page, total: Accumulator) -> list[Action]:
    """``total += loss`` keeps the graph of every step alive: the sum gets the value alone. Raises ``Refuse``."""
    update = page.node(total.update)
    if not isinstance(update, ast.AugAssign):
        raise Refuse(f"`{total.text}` is not a plain sum")
    scope = page.owner(total.text, update)
    for each in page.reads(total.text, scope):
        parent = page.parent(each)
        if isinstance(parent, ast.Attribute) and parent.attr in ("backward", "requires_grad", "grad_fn", "grad"):
            raise Refuse(f"line {each.lineno} uses the graph of `{total.text}`")
        called = parent.func.id if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) else None
        if called in ("print", "str", "repr"):
            raise Refuse(f"line {each.lineno} prints `{total.text}` with its graph, a text that would change")
    return [lambda edit: edit.insert_after(page.site(update.value), ".detach()")]
