"""What Python makes number by number, and one call of torch at once: windows, norms, indices."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Tensor, members
from turbofix.library.tables import words
from turbofix.source.answers import every, parents_in
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS, LOOPS, SCOPES
from turbofix.training.model import Listed
from turbofix.training.told.written import last, meaning, named_calls

_DRAWN = {
    "torch": words("torch.randint torch.randperm torch.arange torch.multinomial"),
    "numpy": words("numpy.random.randint numpy.random.choice numpy.random.permutation numpy.arange"),
}
_STACKS = words("torch.stack numpy.stack numpy.array")
_NORMS = words("torch.norm torch.linalg.vector_norm")
_EACH_ITS_OWN = words("astype long float int double to type clone")
"""Methods that do to a batch of windows what they do to each."""


def listed(analysis: Analysis) -> tuple[Listed, ...]:
    """Such lists, in the order of the text."""
    found: list[Listed] = []
    for module in analysis.execution.modules.values():
        for call, name, _ in named_calls(module.tree) if "torch" in module.text else ():
            inner = call.args[0] if call.args else None
            if not isinstance(inner, ast.ListComp) or name not in _STACKS:
                continue
            alone = len(call.args) == 1 and not call.keywords
            made = (_windows(analysis, call, inner, module) if alone else None) or (
                _norms(analysis, inner, module) if name == "torch.stack" else None
            )
            if made is not None:
                found.append(made)
    found += (*_indexed(analysis), *_masked(analysis), *_read_one_by_one(analysis))
    return tuple(sorted(found, key=lambda each: each.site))


_READS = words("item int float bool tolist")
_Reads = dict[ast.AST, set[str]]
_SHOWS = words("print write log add_scalar append_row")


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
        yield Listed(first, message, told, any(bases.values()), "defer-item", rest, above)


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
    """Whether a tensor is the same in all rounds of a loop, as far as its text tells."""
    parents, root = parents_in(module.tree), text.partition(".")[0]
    for each in walk(loop):
        name, above = dotted(each), parents.get(each)
        called = dotted(each.func) or "" if isinstance(each, ast.Call) else ""
        if called.endswith((".step", ".backward")) or (root != text and f"{called}(".startswith(f"{root}(")):
            return False
        if root != text and called.startswith(f"{root}.") and not called.startswith(f"{text}."):
            return False  # a method of the object that holds it
        user = parents.get(above) if isinstance(above, ast.Subscript) and above.value is each else None
        looked_at = isinstance(user, ast.expr) and not getattr(user, "attr", "").endswith("_")
        looked_at = looked_at and not isinstance(getattr(user, "ctx", None), ast.Store)
        looked_at = looked_at and (not isinstance(user, ast.Call) or last(user) in _READS)
        measured = getattr(above, "attr", "") in ("shape", "size", "device") or last(above or each) == "len"
        stores = isinstance(getattr(each, "ctx", None), ast.Store)
        if name in (text, root) and (stores or (name == text and not (looked_at or measured))):
            return False
    return True


def _indexed(analysis: Analysis) -> Iterator[Listed]:
    """``x[range(n), labels]``, ``x[torch.arange(n), labels]``: numbers of the host that a tensor is indexed with."""
    for module in analysis.execution.modules.values():
        subscripts = every(ast.Subscript, module.tree) if "range(" in module.text else ()
        ranged = [each for each in subscripts if _ranges(each, module)]
        for node in ranged:
            places, text = analysis.facts.places, dotted(node.value)
            device = _devices(analysis, node.value, module)
            for call in _ranges(node, module) if text is not None and device else ():
                numbers = ", ".join(_text(analysis, each, module) for each in (*call.args, *call.keywords))
                frames = analysis.execution.frames.values()
                made = [each for frame in frames for each in members(frame.values.get(call))]
                if any(getattr(each, "device", "cpu") != "cpu" for each in made):
                    continue
                message = f"the numbers of a range are made on the host and copied, to index `{text}`"
                told = f"{{torch.arange}}({numbers}, device={text}.device)"
                yield Listed(places.site(call, module), message, told, "unknown" in device, "device-tensors")


def _devices(analysis: Analysis, node: ast.expr, module: ModuleFile) -> set[str]:
    """Where a tensor of a loop lies; empty where it always lies on the host, or may be none."""
    seen = [each for each in analysis.execution.frames.items() if node in each[1].values]
    held = [each for _, frame in seen for each in members(frame.values[node])]
    looped = any(isinstance(each, LOOPS) for each in analysis.facts.places.ancestors(node, module))
    around = [level for opener, _ in seen for level in opener.chain()]
    called = [getattr(level.detail, "function", level.detail) for level in around if level.kind == "call"]
    stepping = any(getattr(each, "name", "") == "training_step" for each in called)  # Lightning loops, and moves
    looped = looped or stepping or any(level.kind == "loop" for level in around)
    device: set[str] = {each.device if isinstance(each, Tensor) else "unknown" for each in held}
    is_one = all(isinstance(each, Tensor) for each in held)
    return device if looped and is_one and (stepping or device != {"cpu"}) else set()


_EACH = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Constant)
_WAITS = "the host waits for the GPU, to learn how many numbers {} selects"


def _masked(analysis: Analysis) -> Iterator[Listed]:
    """``x[mask] = y[mask]``: selections whose size the host has to know."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        for node in every(ast.Assign, module.tree) if "] = " in module.text else ():
            target = node.targets[0] if len(node.targets) == 1 else None
            if not isinstance(target, ast.Subscript) or dotted(target.value) is None:
                continue
            parts = _by(target.slice, node.value)
            test = _compared(analysis, target.slice, module) if parts else None
            if test is None:
                continue
            own = {ast.dump(each.value).replace("Store", "Load") for each in (target, *parts)}
            told = any(ast.dump(each) in own for each in (test.left, *test.comparators))
            plain = all(isinstance(each, _EACH) for each in _around(node.value, parts))
            sums = [each for each in walk(node.value) if isinstance(each, ast.BinOp)]
            # a quotient has no gradient at zero, which `torch.where` sends through what the mask leaves out as well
            plain = plain and all(isinstance(each.right, ast.Constant) for each in sums if isinstance(each.op, ast.Div))
            if told and plain and _devices(analysis, target.value, module):
                mask, name = _text(analysis, target.slice, module), _text(analysis, target.value, module)
                value = _with(analysis, module, node.value, {e: _text(analysis, e.value, module) for e in parts})
                wide = (places.site(target.slice, module), "...")
                text = f"{{torch.where}}({mask}, {value}, {name})"
                yield Listed(places.site(node.value, module), _WAITS.format(f"`{mask}`"), text, more=(wide,))


def _by(index: ast.expr, node: ast.AST) -> list[ast.Subscript]:
    """The subscripts in an expression with just that index."""
    return [e for e in walk(node) if isinstance(e, ast.Subscript) and ast.dump(e.slice) == ast.dump(index)]


def _around(node: ast.AST, parts: list[ast.Subscript]) -> Iterator[ast.AST]:
    if node not in parts:
        yield node
        for each in ast.iter_child_nodes(node):
            yield from _around(each, parts)


def _given_once(analysis: Analysis, node: ast.expr, module: ModuleFile) -> ast.expr | None:
    """What the one assignment of a name gives it; another expression as it is."""
    if not isinstance(node, ast.Name):
        return node
    writes = analysis.facts.bindings.writes(analysis.facts.places.scope(node, module), node.id)
    return writes[0].value if len(writes) == 1 and isinstance(writes[0], ast.Assign) else None


def _compared(analysis: Analysis, mask: ast.expr, module: ModuleFile) -> ast.Compare | None:
    """The comparison that makes a mask."""
    made = _given_once(analysis, mask, module)
    return made if isinstance(made, ast.Compare) and len(made.ops) == 1 else None


def _ranges(node: ast.Subscript, module: ModuleFile) -> list[ast.Call]:
    """The ranges among several indices that are told no device."""
    indices = [_without_long(each) for each in node.slice.elts] if isinstance(node.slice, ast.Tuple) else []
    calls = [each for each in indices if isinstance(each, ast.Call) and "device" not in [e.arg for e in each.keywords]]
    found = [e for e in calls if dotted(e.func) == "range" or meaning(e.func, module.tree) == "torch.arange"]
    return found if len(found) < len(indices) and not any(isinstance(each, ast.Slice) for each in indices) else []


def _without_long(node: ast.expr) -> ast.expr:
    """``torch.arange(n)`` of ``torch.arange(n).long()``."""
    method = node.func if isinstance(node, ast.Call) and not node.args else None
    return method.value if isinstance(method, ast.Attribute) and method.attr == "long" else node


def _text(analysis: Analysis, node: ast.AST, module: ModuleFile) -> str:
    return " ".join(analysis.facts.places.text(node, module).split())


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in walk(node))


def _windows(analysis: Analysis, call: ast.Call, inner: ast.ListComp, module: ModuleFile) -> Listed | None:
    """``torch.stack([data[i : i + n] for i in starts])``: rows of one length that begin at each of some numbers.

    Of numpy's own, only such as are drawn anew: what is cut once before the training takes no time.
    """
    of = (meaning(call.func, module.tree) or "").partition(".")[0]
    (round_, *more) = inner.generators
    cut = inner.elt
    numpy = False
    while isinstance(cut, ast.Call):
        method = cut.func if isinstance(cut.func, ast.Attribute) else None
        if meaning(cut.func, module.tree) == "torch.from_numpy" and len(cut.args) == 1:
            cut, numpy = cut.args[0], True
        elif method is not None and method.attr in _EACH_ITS_OWN:
            cut = method.value
        else:
            return None
    if more or round_.ifs or not isinstance(round_.target, ast.Name) or not isinstance(cut, ast.Subscript):
        return None
    number = round_.target.id
    whole = cut.slice.lower is not None and cut.slice.step is None if isinstance(cut.slice, ast.Slice) else False
    if not whole or dotted(cut.value) is None or _reads(cut.value, {number}):
        return None
    assert isinstance(cut.slice, ast.Slice) and cut.slice.lower is not None
    begin, end = _terms(cut.slice.lower), _terms(cut.slice.upper) if cut.slice.upper is not None else Counter()
    length = Counter(end)
    length.subtract(begin)
    if begin.get(number) != 1 or end.get(number) != 1:
        return None
    begin.pop(number)
    if any(re.search(rf"\b{number}\b", each) for each in (*begin, *(each for each, n in length.items() if n))):
        return None
    starts = _text(analysis, round_.iter, module)
    if not isinstance(round_.iter, ast.Name) or not _is_drawn(analysis, round_.iter, module, of):
        if of == "numpy":
            return None
        starts = f"{{torch.as_tensor}}({starts})"
    span = f"{_sum(begin)}, {_sum(begin + length)}" if begin else _sum(length)
    rows = f"{starts}[:, None] + {{{of}.arange}}({span})"
    message = f"windows of `{dotted(cut.value)}` are cut one by one in Python, and stacked"
    told = _with(analysis, module, inner.elt, {cut.slice: f"({rows}).numpy()" if numpy else rows})
    return Listed(analysis.facts.places.site(call, module), message, told, codemod="preload-dataset")


def _with(analysis: Analysis, module: ModuleFile, taken: ast.AST, parts: dict[ast.AST, str]) -> str:
    """The text of an expression, with other texts for parts of it."""
    told = analysis.facts.places.text(taken, module)
    for part, new in parts.items():
        told = told.replace(analysis.facts.places.text(part, module), new, 1)
    return told


def _terms(node: ast.expr) -> Counter[str]:
    """A sum by its terms: how often each stands in it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        found, other = _terms(node.left), _terms(node.right)
        (found.update if isinstance(node.op, ast.Add) else found.subtract)(other)
        return found
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Counter({"1": node.value})
    return Counter({ast.unparse(node): 1})


def _sum(terms: Counter[str]) -> str:
    """The source of a sum."""
    text = ""
    for name, count in sorted(terms.items(), key=lambda each: each[0] == "1"):
        part = str(abs(count)) if name == "1" else name if abs(count) == 1 else f"{abs(count)} * ({name})"
        text += (f" {'-' if count < 0 else '+'} {part}" if text else f"{'-' * (count < 0)}{part}") if count else ""
    return text or "0"


def _is_drawn(analysis: Analysis, name: ast.Name, module: ModuleFile, of: str) -> bool:
    """Whether a name is only given what torch, or numpy, makes: whole numbers."""
    scope = analysis.facts.places.scope(name, module)
    writes = analysis.facts.bindings.writes(scope, name.id)
    values = [each.value for each in writes if isinstance(each, ast.Assign)]
    made = [meaning(each.func, module.tree) for each in values if isinstance(each, ast.Call)]
    return bool(made) and len(made) == len(writes) and _DRAWN[of].issuperset(made)


def _norms(analysis: Analysis, inner: ast.ListComp, module: ModuleFile) -> Listed | None:
    """``torch.stack([torch.norm(p.grad, 2) for p in ...])``: norms that one call takes."""
    own = {each.id for one in inner.generators for each in walk(one.target) if isinstance(each, ast.Name)}
    for call in (each for each in walk(inner.elt) if isinstance(each, ast.Call)):
        given = {each.arg: each.value for each in call.keywords}
        arguments = list(call.args)
        if meaning(call.func, module.tree) in _NORMS and arguments:
            of = arguments.pop(0)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "norm" and _reads(call.func.value, own):
            of = call.func.value
        else:
            continue
        order = given.pop("p", None) or given.pop("ord", None) or (arguments.pop(0) if arguments else None)
        inside = {id(each) for each in walk(call)}
        around = [each for each in walk(inner.elt) if id(each) not in inside]
        if arguments or given or any(isinstance(each, COMPREHENSIONS) for each in walk(inner.elt)):
            return None
        if (order is not None and _reads(order, own)) or any(getattr(each, "id", None) in own for each in around):
            return None
        power = _text(analysis, order, module) if order is not None else "2"
        message = "the norms of tensors are taken one by one, by kernels of their own for each"
        tensors = _with(analysis, module, inner, {inner.elt: analysis.facts.places.text(of, module)})
        taken = f"{{torch._foreach_norm}}({tensors}, {power})"
        if call is not inner.elt:
            taken = f"[{_with(analysis, module, inner.elt, {call: 'norm'})} for norm in {taken}]"
        return Listed(analysis.facts.places.site(inner, module), message, taken, codemod="foreach-ema")
    return None
