"""How a number that is only summed, listed or shown stays on the device until its loop is over, or it is shown."""

from __future__ import annotations

import ast
from dataclasses import field

from turbofix.dataflow.accumulators import given, literal
from turbofix.editing.edit import Refuse
from turbofix.records import dataclass
from turbofix.source.names import dotted
from turbofix.source.places import LOOPS
from turbofix.training.model import Accumulator, Sync

from ._kinds import Number, is_number, number_of
from ._pages import Page, Pages
from ._syncs import Action, BatchLoop, adding_after, lacks_float64, loop_words, replacing
from ._tensors import changed_below, copied, is_detached, may_be_view, stripped
from ._throttling import Throttling, hoisted

APART = "it is read in another file than its loop"

LISTED = {"torch.zeros": "torch.tensor", "torch.empty": "torch.tensor", "np.zeros": "np.array", "np.empty": "np.array"}


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
    """Plan for one read, where the text of its loop tells all. Raises ``Refuse``."""
    if sync.site.path != loop.loop.site.path:
        raise Refuse(APART)
    page = pages(sync.site)
    if sync.use == "summed" and sync.accumulator is not None:
        return deferred_sum(page, loop, sync, sync.accumulator, shown)
    if sync.use == "stored":
        return deferred_list(page, loop, sync)
    if sync.use == "shown":
        return Deferral(hoisted(page, sync, page.node(sync.site), loop, Throttling()))
    raise Refuse("the number is used for more than a sum or a message")


# --- sums ------------------------------------------------------------------------------------------------------------


def deferred_sum(page: Page, loop: BatchLoop, sync: Sync, total: Accumulator, shown: Throttling) -> Deferral:
    """``total += loss.item() * n``: the sum is kept on the device, and becomes a number where it is read."""
    node, read, update = page.node(loop.loop.site), page.node(sync.site), page.node(total.update)
    if not isinstance(update, ast.AugAssign) or page.loop_of(update) is not node or total.loop != loop.loop.site:
        raise Refuse(f"`{total.text}` is summed in another loop or function")
    if not page.holds(update.value, read):
        raise Refuse(f"what line {sync.site.line} reads has a name of its own")
    page.owner(total.text, update)
    plan = Deferral()
    beside = [each for each in loop.syncs if each.accumulator is not None and each.accumulator.text == total.text]
    read_here = [(each, page.node(each.site)) for each in beside if each.site.path == sync.site.path]
    kinds = {number_of(page, *each)[0] for each in read_here}
    plan.likely = not number_of(page, sync, read)[1]
    starts = {type(literal(page.node(each), total.text)) for each in total.inits}
    kind: Number = "int" if kinds == {"int"} and starts == {int} else "float"  # `0.0` and counts make a fraction
    check_operands(page, update, read, node, plan)
    if kind == "int" and update.value is not read:
        raise Refuse(f"line {update.lineno} adds more than a plain count")
    plan.actions += kept_on_device(page, loop, sync, read, kind)
    after = False
    for each in total.reads:
        if each.when in ("every_n", "condition"):
            plan.actions.append(replacing(each.site, f"{kind}({total.text})"))
        elif each.when == "after_loop":
            after = True
        elif shown.holds(page, page.node(each.site)):
            plan.too_early = plan.too_early or each.site.line
        else:
            why = shown.refused.get(each.show or each.statement)
            refused = f"line {each.site.line} reads `{total.text}` {loop_words(loop)}"
            raise Refuse(f"{refused} ({why})" if why is not None else refused)
    if after:
        plan.actions.append(adding_after(page.site(last_of(page, node)), f"{total.text} = {kind}({total.text})"))
    return plan


def check_operands(page: Page, update: ast.AugAssign, read: ast.AST, loop: ast.AST, plan: Deferral) -> None:
    """Raise ``Refuse`` unless the update adds the read, or its product or quotient with what is likely a number."""
    child = read
    for each in page.above(read):
        if each is update:
            break
        if isinstance(each, ast.BinOp) and isinstance(each.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            other = each.right if each.left is child else each.left
            plan.likely = plan.likely or not is_number(page, other, loop)
            plan.rounded = plan.rounded or isinstance(each.op, ast.Div)
        elif not isinstance(each, ast.UnaryOp):
            raise Refuse(f"line {update.lineno} does more with the number than to sum it")
        child = each


def kept_on_device(page: Page, loop: BatchLoop, sync: Sync, read: ast.AST, kind: Number) -> list[Action]:
    """The read, without the wait: the count as it is, a fraction in float64, as Python sums it."""
    base = stripped(read)
    assert base is not None
    if kind == "int":
        return [replacing(sync.site, page.text(base))]
    detached = "" if sync.no_grad or is_detached(base) else ".detach()"
    if not lacks_float64(sync, loop):
        return [replacing(sync.site, f"{page.operand(base)}{detached}.double()")]
    name = asked = page.text(base)
    if not isinstance(base, ast.Name):
        name = page.free_name("value")
        asked = f"({name} := {page.text(base)})"
    text = f"{name}{detached}.double() if {asked}.is_cuda else {name}.item()"
    return [replacing(sync.site, text if isinstance(page.parent(read), ast.stmt) else f"({text})")]


def last_of(page: Page, node: ast.AST) -> ast.AST:
    """The loop, or the outermost ``with`` that ends where the loop ends: what is read after it is read outside."""
    above = page.parent(node)
    while isinstance(above, (ast.With, ast.AsyncWith)) and above.body[-1] is node:
        node, above = above, page.parent(above)
    return node


# --- lists -----------------------------------------------------------------------------------------------------------


def deferred_list(page: Page, loop: BatchLoop, sync: Sync) -> Deferral:
    """``losses.append(loss.item())``: the list takes the tensors, and becomes one of numbers when the loop is over.

    And ``losses[i] = loss.item()``, and ``predictions.extend(output.cpu().numpy())``, which takes room on the device
    until then: that is likely.
    """
    node, read = page.node(loop.loop.site), page.node(sync.site)
    base, behind, whole = (stripped(read), "", read) if sync.how in ("item", "float", "int") else copied(page, read)
    if base is None:
        raise Refuse("more than one number is read, or in an unusual way")
    call = page.parent(handed := handed_over(page, whole) if behind else whole)
    kept_in, method = keeper(page, handed)
    array = isinstance(call, ast.AugAssign) and not behind.endswith(".tolist()")  # numpy would add up what is in both
    if kept_in is None or array or method not in (("append", "extend") if behind else ("append", "")):
        raise Refuse("the number is stored in something else than a plain list")
    if page.loop_of(kept_in) is not node:
        raise Refuse("the number is stored in another loop or function")
    if sync.replayed:
        raise Refuse("what is compiled with CUDA graphs gives its results in memory that the next step uses again")
    if (line := changed_below(base, node)) is not None:
        raise Refuse(f"line {line} changes `{page.text(base)}` in place before it would be read")
    name = kept_in.id
    around, made = made_before(page, node, name, page.owner(name, kept_in))
    slots = made.args[0] if isinstance(made, ast.Call) and len(made.args) == 1 and dotted(made.func) in LISTED else None
    if isinstance(around, ast.While):
        raise Refuse(f"`{name}` grows until the loop ends, which may be never")
    if (slots is None) is not bool(method) or not (slots or (isinstance(made, ast.List) and not made.elts)):
        raise Refuse(f"`{name}` is not a list that is made empty before the loop")
    for each in page.reads(name, page.scope(kept_in)):
        if each is not kept_in and page.holds(around, each):
            raise Refuse(f"line {each.lineno} uses `{name}` before the loop is over")
    detached = "" if sync.no_grad or is_detached(base) else ".detach()"
    detached += ".clone()" if not behind and may_be_view(sync, base) else ""
    item = "loss" if sync.of == "loss" else "value"
    again = f"{name} = [{item}{behind or '.item()'} for {item} in {name}]"
    text = f"{page.operand(base)}{detached}" if detached else page.text(base)
    actions = [replacing(page.site(whole), text)]
    if isinstance(call, ast.AugAssign):
        named = page.text(handed) if handed is not whole else ""
        actions = [*(actions if named else ()), replacing(page.site(call), f"{name}.append({named or text})")]
    elif method == "extend":
        actions.append(replacing(page.site(page.above(kept_in)[0]), f"{name}.append"))
    if method == "extend":
        again = f"{name} = [row for {item} in {name} for row in {item}{behind}]"
    if slots is not None and isinstance(made, ast.Call):
        actions.append(replacing(page.site(made), f"[0.0] * {page.operand(slots)}"))
        again = f"{name} = {LISTED[page.text(made.func)]}([float({item}) for {item} in {name}])"
    actions.append(adding_after(page.site(last_of(page, around)), again))
    return Deferral(actions, likely=bool(behind))


def keeper(page: Page, handed: ast.AST) -> tuple[ast.Name | None, str]:
    """The list that a statement puts something into, and by which method; by none: ``losses[i] = x``. What is added to
    it (``found += x``) extends it, a list of one thing appends that."""
    call = page.parent(handed)
    alone = isinstance(call, ast.List) and len(call.elts) == 1
    added = page.parent(call) if alone and call is not None else call
    if isinstance(added, ast.AugAssign) and isinstance(added.op, ast.Add):
        return (added.target if isinstance(added.target, ast.Name) else None), "append" if alone else "extend"
    if isinstance(call, ast.Assign) and len(call.targets) == 1 and isinstance(call.targets[0], ast.Subscript):
        kept = call.targets[0]
        plain = isinstance(kept.value, ast.Name) and not isinstance(kept.slice, (ast.Tuple, ast.Slice))
        return (kept.value if plain and isinstance(kept.value, ast.Name) else None), ""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args == [handed]:
        return (call.func.value if isinstance(call.func.value, ast.Name) else None), call.func.attr
    return None, ""


def handed_over(page: Page, read: ast.AST) -> ast.AST:
    """What a list takes: the read, or the name that it was given for that alone."""
    given_to = page.parent(read)
    name = dotted(given_to.targets[0]) if isinstance(given_to, ast.Assign) and len(given_to.targets) == 1 else None
    if name is None or "." in name or page.why_shared(name, read) is not None:
        return read
    reads = page.reads(name, page.scope(read))
    return reads[0] if len(reads) == 1 and page.writes(name, page.scope(read)) == [given_to] else read


def made_before(page: Page, loop: ast.AST, name: str, scope: ast.AST) -> tuple[ast.AST, ast.expr | None]:
    """The outermost loop that fills a list which is made above it, and what makes it. Raises ``Refuse``."""
    writes = [each for each in page.writes(name, scope) if given(each, name) is not None]
    for whole in (loop, *page.above(loop)):
        if whole is scope or not isinstance(whole, ast.stmt):
            break
        block = page.block(whole)
        above = block[: next(i for i, each in enumerate(block) if each is whole)]
        made = [each for each in writes if any(each is one for one in above)]
        if made and not any(page.holds(whole, each) for each in writes):
            around = [each for each in (loop, *page.above(loop)) if page.holds(whole, each) and isinstance(each, LOOPS)]
            return around[-1], given(max(made, key=lambda each: getattr(each, "lineno", 0)), name)
        if made:
            break
    raise Refuse(f"`{name}` is not made before the loop and left alone until it is over")
