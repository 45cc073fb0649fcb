"""What Python makes or reads number by number, and one call of torch at once: windows, norms, reads of a tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Tensor, members
from turbofix.library.tables import words
from turbofix.source.answers import parents_in
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import SCOPES
from turbofix.training.model import Listed
from turbofix.training.told.written import last, meaning, named_calls

_DRAWN = words(
    "torch.randint torch.randperm torch.arange torch.multinomial "
    "numpy.random.randint numpy.random.choice numpy.random.permutation numpy.arange"
)
_STACKS = words("torch.stack numpy.stack numpy.array")
_NORMS = words("torch.norm torch.linalg.vector_norm")
_EACH_ITS_OWN = words("astype long float int double to type clone")
"""Methods that do to a batch of windows what they do to each."""

_READS = words("item int float bool tolist")
_Reads = dict[ast.AST, set[str]]
_SHOWS = words("print write log add_scalar append_row")


def listed(analysis: Analysis) -> tuple[Listed, ...]:
    """Such lists, in the order of the text."""
    found = [*_read_one_by_one(analysis)]
    for module in analysis.execution.modules.values():
        for call, name, _ in named_calls(module.tree) if "torch" in module.text else ():
            inner = call.args[0] if call.args else None
            if isinstance(inner, ast.ListComp) and name in _STACKS:
                made = _windows(analysis, call, inner, module)
                made = made or (_norms(analysis, inner, module) if name == "torch.stack" else None)
                found += [made] if made is not None else []
    return tuple(sorted(found, key=lambda each: each.site))


# --- reads ------------------------------------------------------------------------------------------------------------


def _read_one_by_one(analysis: Analysis) -> Iterator[Listed]:
    """``for i in range(n): x[i].item()``, ``for row in x: row[0].item()``: tensors of the GPU, read bit by bit."""
    places, frames = analysis.facts.places, analysis.execution.frames.values()
    reads, where = _Reads(), dict[ast.AST, ModuleFile]()
    for event in analysis.facts.of("sync"):
        held = members(event.receiver)
        surely = event.name in _READS and all(isinstance(each, Tensor) and not each.foreign for each in held)
        reads.setdefault(event.node, set()).update(getattr(each, "device", "cpu") if surely else "cpu" for each in held)
        where[event.node] = event.module
    found: dict[tuple[ast.AST, str, ModuleFile], dict[ast.expr, bool]] = {}
    for node, devices in reads.items():
        loop, base = _bit_by_bit(node, where[node], reads) if "cpu" not in devices else (None, None)
        of = [each for frame in frames if base is not None for each in members(frame.values.get(base))]
        if loop is not None and base is not None and of and all(isinstance(each, Tensor) for each in of):
            found.setdefault((loop, ast.unparse(base), where[node]), {})[base] = "unknown" in devices
    for (loop, text, module), bases in found.items():
        first, *more = sorted(places.site(each, module) for each in bases)
        message = f"the host waits for the GPU in each round of a loop, to read one more number of `{text}`"
        told, above = f"{text}.cpu()", None
        if any(isinstance(parents_in(module.tree).get(each), ast.Subscript) for each in bases):
            told, above = "{above}", (places.site(loop, module), f"{text.rpartition('.')[2]}_on_host", told)
        rest = tuple((each, told) for each in more)
        yield Listed(first, message, told, "defer-item", any(bases.values()), rest, above)


def _bit_by_bit(node: ast.AST, module: ModuleFile, reads: _Reads) -> tuple[ast.AST | None, ast.expr | None]:
    """The loop that reads a tensor bit by bit by this read, and the expression that names the tensor."""
    parents, best = parents_in(module.tree), (None, None)
    base = node
    if isinstance(node, ast.Call):
        base = node.func.value if isinstance(node.func, ast.Attribute) else (*node.args, node)[0]
    if isinstance(base, ast.Compare) and all(isinstance(each, ast.Constant) for each in base.comparators):
        base = base.left
    used: set[str] = set()
    while isinstance(base, ast.Subscript):
        used.update(each.id for each in walk(base.slice) if isinstance(each, ast.Name))
        base = base.value
    loop, text = parents.get(node), dotted(base)
    while text is not None and loop is not None and not isinstance(loop, SCOPES):
        rounds = getattr(loop, "generators", [loop] if isinstance(loop, ast.For) else [])
        for target, over in (pair for each in rounds for pair in _pairs(each.target, each.iter)):
            names = {each.id for each in walk(target) if isinstance(each, ast.Name)}
            few = isinstance(over, ast.Call) and all(isinstance(each, ast.Constant) for each in over.args)
            if text in names:
                rows = isinstance(target, ast.Name) and _is_only_read(text, target, loop, module, reads)
                return (loop, over) if rows else (None, None)
            if isinstance(loop, ast.For) and names & used and not few and _stays(text, loop, module):
                best = loop, base  # type: ignore[assignment]
        loop = parents.get(loop)
    return best


def _pairs(target: ast.expr, over: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a loop goes through, each with its target: all that ``zip`` and ``enumerate`` put together."""
    parts, name = getattr(target, "elts", []), dotted(getattr(over, "func", over))
    if isinstance(over, ast.Call) and name in ("zip", "enumerate") and len(parts) == len(over.args) + (name != "zip"):
        for one, of in zip(parts[-len(over.args) :], over.args, strict=True):
            yield from _pairs(one, of)
    else:
        yield target, over


def _is_only_read(name: str, target: ast.Name, loop: ast.AST, module: ModuleFile, reads: _Reads) -> bool:
    """Whether all that a loop does with each row of a tensor is to read it, and not only to show it."""
    parents = parents_in(module.tree)
    for each in walk(loop):
        if isinstance(each, ast.Call) and last(each) in _SHOWS:
            return False
        above: ast.AST | None = each if isinstance(each, ast.Name) and each.id == name and each is not target else None
        while above is not None and (above not in reads or "cpu" in reads[above]):
            above = parents.get(above)
            inside = (each for each in walk(above) if isinstance(each, ast.Name)) if above is not None else ()
            if not isinstance(above, _READING) or any(each.id != name for each in inside):
                return False
    return True


_READING = (ast.Subscript, ast.Attribute, ast.Call, ast.Compare, ast.UnaryOp)


def _stays(text: str, loop: ast.For, module: ModuleFile) -> bool:
    """Whether a tensor is the same in all rounds of a loop, as far as its text tells: it is indexed, and no more."""
    parents, root = parents_in(module.tree), text.partition(".")[0]
    for each in walk(loop):
        called = dotted(each.func) or "" if isinstance(each, ast.Call) else ""
        of_holder = root != text and f"{called}.".startswith(f"{root}.") and not called.startswith(f"{text}.")
        if called.endswith((".step", ".backward")) or (called and of_holder):
            return False
        name, above = dotted(each), parents.get(each)
        if name in (text, root) and isinstance(getattr(each, "ctx", None), ast.Store):
            return False
        user = parents.get(above) if isinstance(above, ast.Subscript) and above.value is each else None
        looked_at = isinstance(user, ast.expr) and not getattr(user, "attr", "").endswith("_")
        looked_at = looked_at and (not isinstance(user, ast.Call) or last(user) in _READS)
        looked_at = looked_at and not {type(getattr(one, "ctx", None)) for one in (above, user)} & {ast.Store}
        measured = getattr(above, "attr", "") in ("shape", "size", "device") or last(above or each) == "len"
        if name == text and not (looked_at or measured):
            return False
    return True


# --- windows and norms ------------------------------------------------------------------------------------------------


def _windows(analysis: Analysis, call: ast.Call, inner: ast.ListComp, module: ModuleFile) -> Listed | None:
    """``torch.stack([data[i : i + n] for i in starts])``: rows of one length that begin at each of drawn numbers."""
    of, cut, (round_, *more) = meaning(call.func, module.tree).partition(".")[0], inner.elt, inner.generators
    numpy = False
    while isinstance(cut, ast.Call):
        from_numpy = meaning(cut.func, module.tree) == "torch.from_numpy" and len(cut.args) == 1
        if not from_numpy and (not isinstance(cut.func, ast.Attribute) or cut.func.attr not in _EACH_ITS_OWN):
            return None
        cut, numpy = (cut.args[0], True) if from_numpy else (cut.func.value, numpy)  # type: ignore[attr-defined]
    plain = not (more or round_.ifs or call.keywords or call.args[1:]) and isinstance(round_.target, ast.Name)
    span = cut.slice if isinstance(cut, ast.Subscript) and dotted(cut.value) is not None else None
    by = _drawn_by(analysis, round_.iter, module)
    if not plain or not isinstance(span, ast.Slice) or span.step is not None or by not in (of, "numpy"):
        return None
    assert isinstance(cut, ast.Subscript)
    number = ast.unparse(round_.target)
    ends = [ast.unparse(each) if each is not None else "" for each in (span.lower, span.upper)]
    begin, end = ("0" if each == number else each.removeprefix(f"{number} + ") for each in ends)
    if [begin, end] == ends or end == ends[1] or any(re.search(rf"\b{number}\b", each) for each in (begin, end)):
        return None
    starts = ast.unparse(round_.iter) if by == of else f"{{torch.as_tensor}}({ast.unparse(round_.iter)})"
    rows = f"{starts}[:, None] + {{{of}.arange}}({end if begin == '0' else f'{begin}, {end}'})"
    message = f"windows of `{dotted(cut.value)}` are cut one by one in Python, and stacked"
    told = _with(analysis, module, inner.elt, cut.slice, f"({rows}).numpy()" if numpy else rows)
    return Listed(analysis.facts.places.site(call, module), message, told, "preload-dataset")


def _drawn_by(analysis: Analysis, iterated: ast.expr, module: ModuleFile) -> str | None:
    """Which library alone makes the whole numbers that a name is given: torch, or numpy."""
    if not isinstance(iterated, ast.Name):
        return None
    writes = analysis.facts.bindings.writes(analysis.facts.places.scope(iterated, module), iterated.id)
    calls = [each.value for each in writes if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)]
    made = {meaning(each.func, module.tree) for each in calls}
    by = {each.partition(".")[0] for each in made}
    return by.pop() if made <= _DRAWN and len(calls) == len(writes) and len(by) == 1 else None


def _with(analysis: Analysis, module: ModuleFile, taken: ast.AST, part: ast.AST, new: str) -> str:
    """The text of an expression, with another text for a part of it."""
    places = analysis.facts.places
    return places.text(taken, module).replace(places.text(part, module), new, 1)


def _norms(analysis: Analysis, inner: ast.ListComp, module: ModuleFile) -> Listed | None:
    """``torch.stack([torch.norm(p.grad, 2).to(device) for p in ...])``: norms that one call takes."""
    own = {each.id for one in inner.generators for each in walk(one.target) if isinstance(each, ast.Name)}
    calls = [each for each in walk(inner.elt) if isinstance(each, ast.Call)]
    call = next((each for each in calls if meaning(each.func, module.tree) in _NORMS and each.args), None)
    if call is None:
        return None
    named = [each.value for each in call.keywords if each.arg in ("p", "ord")]
    orders, inside = [*call.args[1:], *named], {*walk(call)}
    around = [each for each in walk(inner.elt) if each not in inside] + [each for one in orders for each in walk(one)]
    if len(named) < len(call.keywords) or len(orders) > 1 or any(getattr(each, "id", None) in own for each in around):
        return None
    text = analysis.facts.places.text
    tensors = _with(analysis, module, inner, inner.elt, text(call.args[0], module))
    taken = f"{{torch._foreach_norm}}({tensors}, {text(orders[0], module) if orders else '2'})"
    if call is not inner.elt:
        taken = f"[{_with(analysis, module, inner.elt, call, 'norm')} for norm in {taken}]"
    message = "the norms of tensors are taken one by one, by kernels of their own for each"
    return Listed(analysis.facts.places.site(inner, module), message, taken, "foreach-ema")
