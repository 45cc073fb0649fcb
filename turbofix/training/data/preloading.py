"""Loaders over data in memory that make the same items one by one in every epoch, and stack each batch of them anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.dataflow.facts import settled, unwrapped
from turbofix.dataflow.mutation import change_after
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Bound, Function, Instance, Iterated, Made, Sequence, Value, flatten, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import body_of, dotted, loads, parameters, targets, walk_here
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.data.augmenting import augment
from turbofix.training.data.datasets import PUBLISHED, making
from turbofix.training.data.lasting import samples
from turbofix.training.data.loaders import loader_sites
from turbofix.training.data.same_items import datasets_in, names_random
from turbofix.training.model import Augment, Framework, Loader, Preload, Step

TENSORS = "torch.utils.data.TensorDataset"
_PARTS = frozenset(("torch.utils.data.random_split", "torch.utils.data.Subset"))
_LIBRARIES = ("torchvision.datasets.", "medmnist.")
HEAVY = frozenset(("read", "decode", "tokenize"))
"""Work of which more than the stacking is saved where it is done once: ``cache-preprocessing`` speaks of it."""
_SMALLEST, _ROOM = 28 * 28, 10 << 30
_ON_DISK = regex(r"memmap|mmap_mode|h5py|lmdb|\bload_(?:dataset|from_disk)\(")
_LAZILY = regex(r"\.(?:set|with)_transform\(")
_AS_TENSORS = regex(r"(?:set|with)_format\(\s*(?:type\s*=\s*)?[\"'](?:torch|pt)\b")
_COLUMNS = regex(r"\b(?:remove_)?columns\s*=|\b(?:remove|select)_columns\(")
_NAMES = regex(r"(?:.*_)?(?:path|file|filename|name|url)s?", re.IGNORECASE)
"""What is called so is a text, which no tensor holds."""
_TEXTS = regex(r"(?:.*_)?(?:path|file|filename|name|url|text|sentence|caption|title|transcript)s?", re.IGNORECASE)
"""What is called so may be one, or its numbers."""
_OF_TEXT = frozenset(words("str join get strip lower replace"))
_MOVES = frozenset((Framework.LIGHTNING, Framework.ACCELERATE))
"""The frameworks that bring batches to the device themselves."""
_STACKING = regex(r"stack|tensor|default_collate|from_numpy", re.IGNORECASE)
_PADDING = regex(
    r"pad|rand|shuffle|choice|sort|max\(|len\(|\b(?:cat|batch)\(|from_data_list|token|processor|encod", re.IGNORECASE
)
"""What tells that a batch is more than its items side by side."""
_AROUND = frozenset(("enumerate", "iter"))
_SIZES = words("shape size dim ndim numel nelement dtype")
"""What is the same of a tensor wherever it is."""
_ON_THE_WAY = words("float double long int view reshape unsqueeze squeeze flatten")
"""Methods between a batch and its copy, which do the same on the device."""


def preloads(
    analysis: Analysis, loaders: Iterable[Loader], steps: tuple[Step, ...], framework: Framework
) -> tuple[Preload, ...]:
    """The loaders that could take whole batches of items that are made once, in the order of the text."""
    if steps and not any(step.passes is None or step.passes > 1 for step in steps):
        return ()
    known = {loader.site: loader for loader in loaders if _could(loader)}
    reading = _reading(analysis)
    found: dict[Site, Preload] = {}
    for event in analysis.facts.of("make"):
        loader = known.get(analysis.facts.site(event))
        passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
        if loader is None or passed is None or loader.site in found:
            continue
        drawn = augment(analysis, passed.value, event) if loader.dataset.random else None
        if drawn is None and not _is_plain(analysis, loader, passed.value):
            continue
        change, anew = _change(analysis, passed.value), loader.built_in_loop and not loader.again
        rows = anew and loader.collate == "default" and all(map(_gives_rows, members(passed.value)))
        found[loader.site] = Preload(
            loader.site,
            place_of_helper(analysis, drawn.listed if isinstance(drawn, Augment) else event.node, event.module),
            on_device=framework in _MOVES or _on_device(analysis, loader, reading),
            certain=change is None,
            heavy=bool(HEAVY & {*loader.dataset.work}),
            why_not=drawn
            if isinstance(drawn, str)
            else "it is built anew in every round: build it once, before the loop, if its data stay the same"
            if anew and not rows
            else _too_large(analysis, loader, passed.value, drawn) or _why_not(analysis, loader, event, change or ""),
            rows=rows,
            augment=drawn if isinstance(drawn, Augment) else None,
        )
    above: dict[Path, Site] = {}
    for each in found.values():
        above[each.loader.path] = min(each.helper, above.get(each.loader.path, each.helper))
    return tuple(replace(each, helper=above[each.loader.path]) for _, each in sorted(found.items()))


def _could(loader: Loader) -> bool:
    """Whether a loader is torch's own and cuts batches of data that are read by an index, several times."""
    return (
        (loader.role in ("training", "evaluation", "both") or loader.fed == "again")
        and loader.subclass is None
        and loader.dataset.kind in ("tensors", "map")
        and loader.dataset.generator is None
        and loader.dataset.shared is None  # it is read from a file that stays open
        and (loader.again or not loader.built_in_loop or loader.role != "evaluation")
        and not loader.first_only
        and loader.cut.state == "absent"
        and loader.argument("batch_sampler").state == "absent"
        and loader.argument("batch_size").values != (None,)
    )


def _is_plain(analysis: Analysis, loader: Loader, value: Value | None) -> bool:
    """Whether data lie in memory and nothing is drawn for an item, as far as is known."""
    if _tensors_of(value) is not None:
        return True
    own = list(datasets_in(value))
    for each in own:
        get_item = each.cls.find("__getitem__")
        if not isinstance(get_item, Function):
            return False
        made = making(analysis, get_item, each)
        text = analysis.facts.places.text(each.cls.node, each.cls.module)
        on_disk = _ON_DISK.search(text) is not None and not HEAVY & made.kinds
        if made.draws or made.generator or made.worker_aware or on_disk or _LAZILY.search(text):
            return False
    if own:
        return not loader.dataset.random or not names_random(analysis)
    any_of = [loader.dataset] if loader.dataset.qualname else members(value)
    published = all((getattr(each, "qualname", None) or "").startswith(_LIBRARIES) for each in any_of)
    published = published or _is_formatted(analysis, loader) or all(map(_pairs, any_of))
    return not loader.dataset.random and (loader.dataset.kind == "tensors" or published)


def _is_formatted(analysis: Analysis, loader: Loader) -> bool:
    """Whether items are rows of a data set of Hugging Face that gives chosen columns as tensors."""
    texts = [module.text for module in analysis.execution.modules.values()]
    formatted = any(_AS_TENSORS.search(each) and _COLUMNS.search(each) for each in texts)
    lazily = any(map(_LAZILY.search, texts))
    return (loader.dataset.qualname or "").startswith("datasets.") and formatted and not lazily


def _pairs(value: object) -> bool:
    """``list(zip(inputs, targets))``: pairs that lie in a list, of what no name calls a text."""
    call = value.origin.node if isinstance(value, Sequence) and value.origin is not None else None
    zipped = call.args[0] if isinstance(call, ast.Call) and dotted(call.func) == "list" and call.args else None
    if not isinstance(zipped, ast.Call) or dotted(zipped.func) != "zip":
        return False
    return not any(_TEXTS.fullmatch((dotted(each) or "").rpartition(".")[2]) for each in zipped.args)


def holds_text(get_item: Function) -> bool:
    """Whether an item has a text among its parts, by what they are called and given."""
    given = {
        each.targets[0].id: each.value
        for each in walk(get_item.node)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }
    for returned in (each.value for each in walk(get_item.node) if isinstance(each, ast.Return)):
        whole = given.get(returned.id) if isinstance(returned, ast.Name) else returned
        items = [each.value if isinstance(each, ast.Subscript) else each for each in getattr(whole, "elts", ())]
        parts = [(dotted(each) or "", each) for each in items]
        if isinstance(whole, ast.Dict):
            parts = [(str(getattr(key, "value", "")), e) for key, e in zip(whole.keys, whole.values, strict=True)]
        for name, part in parts:
            made = given.get(part.id, part) if isinstance(part, ast.Name) else part
            called = (dotted(made.func) or "").rpartition(".")[2] if isinstance(made, ast.Call) else None
            by_name = _NAMES if called is None else _TEXTS if called in _OF_TEXT else None
            if by_name is not None and by_name.fullmatch(name.rpartition(".")[2]):
                return True
    return False


def _gives_rows(value: Value) -> bool:
    """Whether data are a ``TensorDataset``, or a class whose items are nothing but rows of several tensors."""
    method = value.cls.find("__getitem__") if isinstance(value, Instance) else None
    if not isinstance(method, Function) or isinstance(method.node, ast.Lambda):
        return isinstance(value, Made) and value.qualname == TENSORS
    *first, last = method.node.body
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
        return False
    index, plain = parameters(method.node)[-1].arg, all(isinstance(each, ast.Expr) for each in first)
    return plain and all(isinstance(each, ast.Subscript) and dotted(each.slice) == index for each in last.value.elts)


def _resizing(value: Value | None, depth: int = 5) -> Iterator[Made]:
    """The transforms of a library's data that resize each picture."""
    for each in flatten(value, 3) if depth else ():
        if isinstance(each, Made):
            if "Resize" in each.qualname:
                yield each
            for given in (each.inner, *each.arguments.values()):
                yield from _resizing(given, depth - 1)


def _too_large(analysis: Analysis, loader: Loader, value: Value, drawn: Augment | None) -> str | None:
    """Why the pictures of a published data set are not kept: what they are resized to takes too much memory."""
    name = loader.dataset.qualname or ""
    _, _, native = PUBLISHED.get(name, ("", {}, 0))
    pixels = 0
    for resize in _resizing(value):
        size = resize.arguments.get("size", 0)
        sides = [settled(one) for one in flatten(size.value, 1)] if size is not None else []
        numbers = [one for one in sides if isinstance(one, int)]
        pixels = max(pixels, numbers[0] * numbers[-1] if numbers else 0)
    channels = 1 if name.endswith(("MNIST", "USPS")) else 3
    room, most = (_ROOM, "ten") if drawn is None else (2 << 30, "two")
    taken = (samples(analysis, value) or 0) * (pixels or native or _SMALLEST) * channels * 4
    if not name.startswith("torchvision.") or taken <= room:
        return None
    do = ": resize whole batches on the GPU" if pixels > native else ""
    return f"its pictures take {taken / 1e9:.1f} gigabytes, and {most} are kept at most, on a GPU of 80{do}"


def _change(analysis: Analysis, value: Value | None) -> str | None:
    """What changes, or may change, the tensors that data are rows of; of other data nobody knows."""
    made = _tensors_of(value)
    call = made.origin.node if made is not None and made.origin is not None else None
    events = [event for event in analysis.facts.at(call) if event.kind == "make"] if call is not None else []
    if not isinstance(call, ast.Call) or len(events) != 1:
        return "what its items are made of may change"
    names = [name for each in (*call.args, *(one.value for one in call.keywords)) for name in loads(each)]
    frames = analysis.facts.frames(events[0])
    return analysis.once(("what items are made of changes", call), lambda: change_after(analysis, call, names, frames))


def _on_device(analysis: Analysis, loader: Loader, reading: dict[Site, list[Event]]) -> bool:
    """Whether all that reads a loader uses its batches on the GPU only."""
    if loader.dataset.on_device:
        return True
    copied = bool(loader.copies) and all(each.to.reaches_cuda for each in loader.copies)
    sites = {each.site for each in loader.copies}
    return copied and not _is_read_on_host(analysis, loader, sites, reading)


def _why_not(analysis: Analysis, loader: Loader, event: Event, change: str) -> str | None:
    """Why whole batches of items that are made once would not be the same, or nothing would be gained."""
    if loader.dataset.stateful is not None:
        return loader.dataset.stateful
    if re.search("is changed in place|shuffle", change):
        return change
    sampler = event.arguments.get("sampler", 3) if event.arguments is not None else None
    drawn = [getattr(each, "qualname", "") for each in members(sampler.value)] if sampler is not None else []
    if any(each.endswith(".SubsetRandomSampler") for each in drawn):
        return "its sampler takes some of the items, and all would be kept: pass a `Subset` of them, and `shuffle=True`"
    if loader.collate != "default" and not _stacks(event):
        return "its `collate_fn` may do more than to stack the items"
    given = event.arguments.get("dataset", 0) if event.arguments is not None else None
    methods = [each.cls.find("__getitem__") for each in datasets_in(given.value if given is not None else None)]
    if loader.collate == "default" and any(isinstance(each, Function) and holds_text(each) for each in methods):
        return "its items hold texts beside what can be stacked: look these up by the item's number, and keep the rest"
    if any("dataset" in each.uses for each in members(event.result) if isinstance(each, Made)):
        for module in analysis.execution.modules.values():
            for node in every(ast.Attribute, module.tree) if ".dataset" in module.text else ():
                parent = analysis.facts.places.parent(node, module)
                counted = isinstance(parent, ast.Call) and dotted(parent.func) == "len"
                if node.attr == "dataset" and not counted and dotted(node.value) != "self":
                    return f"line {node.lineno} of {module.path.name} reads the data of a loader"
    return None


def _stacks(event: Event) -> bool:
    """Whether a collate function of the project only stacks what it is given, by its text."""
    passed = event.arguments.get("collate_fn", 7) if event.arguments is not None else None
    given = members(passed.value) if passed is not None else ()
    calls = [each.cls.find("__call__") if isinstance(each, Instance) else each for each in given]
    nodes = [each.node for one in calls for each in (one.function if isinstance(one, Bound) else one,)
             if isinstance(each, Function)]  # fmt: skip
    texts = [ast.unparse(each) for each in nodes]
    return len(texts) == len(given) and all(_STACKING.search(each) and not _PADDING.search(each) for each in texts)


def _tensors_of(value: Value | None, depth: int = 3) -> Made | None:
    """The ``TensorDataset`` that a data set is, or is a part of."""
    if isinstance(value, Made) and value.qualname == TENSORS:
        return value
    if not isinstance(value, Made) or not depth:
        found = [_tensors_of(each, depth - 1) for each in members(value)] if depth else []
        return found[0] if len(found) == 1 else None
    if value.qualname in _PARTS:
        passed = value.arguments.get("dataset", 0)
        inner = [_tensors_of(each, depth - 1) for each in members(passed.value)] if passed is not None else []
        return inner[0] if len(inner) == 1 else None
    return None


def _reading(analysis: Analysis) -> dict[Site, list[Event]]:
    """The loops that run through each loader, and the calls that ask it for a batch."""
    found: dict[Site, list[Event]] = {}
    for event in analysis.facts.of("iterate", "next"):
        for site in loader_sites(analysis, event.receiver):
            found.setdefault(site, []).append(event)
    return found


def place_of_helper(analysis: Analysis, call: ast.AST | Site, module: ModuleFile) -> Site:
    """The first function or class of the file above the call, below imports, else the statement that holds it."""
    body = module.tree.body
    line: int = call.line if isinstance(call, Site) else getattr(call, "lineno", 1)
    holding = next(each for each in reversed(body) if each.lineno <= line)
    first = next((each for each in body if isinstance(each, (*FUNCTIONS, ast.ClassDef))), holding)
    later = any(
        isinstance(each, (ast.Import, ast.ImportFrom)) for each in body[body.index(first) : body.index(holding)]
    )
    return analysis.facts.places.site(holding if later or first.lineno > holding.lineno else first, module)


def _is_read_on_host(analysis: Analysis, loader: Loader, copies: set[Site], reading: dict[Site, list[Event]]) -> bool:
    """Whether a batch may be used as the loader hands it out, on the host."""
    loops: dict[ast.For, ModuleFile] = {}
    for event in reading.get(loader.site, ()):
        around = {each.wrapper for each in unwrapped(event.receiver) if isinstance(each, Iterated)}
        if event.kind == "next" or not isinstance(event.node, ast.For) or not around <= _AROUND:
            return True
        loops[event.node] = event.module
    return not loops or any(_on_host(analysis, loop, module, copies) for loop, module in loops.items())


def _on_host(analysis: Analysis, loop: ast.For, module: ModuleFile, copies: set[Site]) -> bool:
    """Whether a part of a batch is used in a loop, or behind it, before it was brought to the device."""
    target = loop.target
    if _counts(loop.iter) and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    waiting = {each.id for each in targets(target) if isinstance(each, ast.Name)}
    if len(waiting) != len(list(targets(target))):
        return True
    moved: set[str] = set()
    for statement in loop.body:
        for node in walk(statement):
            changed = node.target if isinstance(node, ast.AugAssign) else None
            if isinstance(changed, ast.Name) and changed.id in waiting - moved:
                return True
            used = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in waiting - moved
            if used and not _is_fine(analysis, node, module, copies):  # type: ignore[arg-type]
                return True
        if isinstance(statement, ast.Assign):
            unpacked = isinstance(statement.value, ast.Name) and statement.value.id in waiting - moved
            names = {each.id for one in statement.targets for each in targets(one) if isinstance(each, ast.Name)}
            if unpacked:
                waiting |= names
            elif names & waiting:
                moved |= names
    scope, end = analysis.facts.places.scope(loop, module), loop.end_lineno or 0
    said = (each for part in body_of(scope) for each in walk_here(part))
    later = [each for each in said if isinstance(each, ast.Name) and each.id in waiting - moved and each.lineno > end]
    for node in later:
        lines = [getattr(other, "lineno", 0) for other in analysis.facts.bindings.writes(scope, node.id)]
        if isinstance(node.ctx, ast.Load) and not any(node.lineno >= line > end for line in lines):
            return True
    return any(isinstance(node, ast.Name) and node.id in waiting for each in loop.orelse for node in walk(each))


def _counts(node: ast.expr) -> bool:
    """Whether a loop counts: ``enumerate(...)``, also in a progress bar."""
    while isinstance(node, ast.Call) and node.args:
        if dotted(node.func) == "enumerate":
            return True
        node = node.args[0]
    return False


def _is_fine(analysis: Analysis, node: ast.Name, module: ModuleFile, copies: set[Site]) -> bool:
    """Whether a use of a batch on the host is its copy to the device, or asks only for its size."""
    places = analysis.facts.places
    parent = places.parent(node, module)
    if isinstance(parent, ast.Assign) and parent.value is node:
        return True  # x, y = batch
    if isinstance(parent, ast.Call) and dotted(parent.func) == "len":
        return True
    inner: ast.AST = node
    if isinstance(parent, ast.Attribute) and parent.attr in ("items", "values"):
        inner = places.parent(parent, module) or node
        parent = places.parent(inner, module)
    if isinstance(parent, ast.comprehension) and parent.iter is inner:
        whole = places.parent(parent, module)
        element = getattr(whole, "value", None) or getattr(whole, "elt", None)
        return element is not None and places.site(element, module) in copies
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
        inner, parent = parent, places.parent(parent, module)
    while isinstance(parent, ast.Attribute) and parent.value is inner:
        if parent.attr in _SIZES:
            return True
        call = places.parent(parent, module)
        if not isinstance(call, ast.Call) or call.func is not parent:
            return False
        if places.site(call, module) in copies:
            return True
        if parent.attr not in _ON_THE_WAY:
            return False
        inner, parent = call, places.parent(call, module)
    return False
