"""Loaders over data in memory that make the same items one by one in every epoch, and stack each batch of them anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Function, Instance, Made, Sequence, Value, flatten, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.names import dotted, targets
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.data.augmenting import augment
from turbofix.training.data.items import function_of, making
from turbofix.training.data.lengths import PUBLISHED, length
from turbofix.training.data.loaders import is_taken_whole, loader_sites
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
_MOVES = frozenset((Framework.LIGHTNING, Framework.ACCELERATE))
"""The frameworks that bring batches to the device themselves."""
_PADDING = regex(
    r"pad|rand|shuffle|choice|sort|max\(|len\(|\b(?:cat|batch)\(|from_data_list|token|processor|encod", re.IGNORECASE
)
"""What tells that a batch is more than its items side by side."""
_SIZES = words("shape size dim ndim numel nelement dtype")
"""What is the same of a tensor wherever it is."""


def preloads(
    analysis: Analysis, loaders: Iterable[Loader], steps: tuple[Step, ...], framework: Framework
) -> tuple[Preload, ...]:
    """The loaders that could take whole batches of items that are made once, in the order of the text."""
    if steps and not any(step.passes is None or step.passes > 1 for step in steps):
        return ()
    known = {loader.site: loader for loader in loaders if _could(loader)}
    found: dict[Site, Preload] = {}
    for event in analysis.facts.of("make"):
        loader = known.get(analysis.facts.site(event))
        passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
        if loader is None or passed is None or loader.site in found:
            continue
        if is_taken_whole(analysis, event, passed.node):
            continue
        drawn = augment(analysis, passed.value, event) if loader.dataset.random else None
        if drawn is None and not _is_plain(analysis, loader, passed.value):
            continue
        augments = drawn if isinstance(drawn, Augment) else None
        why = drawn if isinstance(drawn, str) else None
        if loader.built_in_loop and not loader.again:
            why = why or "it is built anew in every round: build it once, before the loop, if its data stay the same"
        found[loader.site] = Preload(
            loader.site,
            place_of_helper(analysis, augments.listed if augments is not None else event.node, event.module),
            on_device=framework in _MOVES or _on_device(analysis, loader),
            heavy=bool(HEAVY & {*loader.dataset.work}),
            why_not=why or _too_large(analysis, loader, passed.value, augments) or _why_not(loader, event),
            augment=augments,
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
    """Whether an item has a text among its parts, by what they are called."""
    for returned in (each.value for each in walk(get_item.node) if isinstance(each, ast.Return)):
        keys = [each.value for each in getattr(returned, "keys", ()) if isinstance(each, ast.Constant)]
        parts = [each.value if isinstance(each, ast.Subscript) else each for each in getattr(returned, "elts", ())]
        names = [*map(str, keys), *((dotted(each) or "").rpartition(".")[2] for each in parts)]
        if any(map(_NAMES.fullmatch, names)):
            return True
    return False


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
    taken = (length(analysis, value, published=True) or 0) * (pixels or native or _SMALLEST) * channels * 4
    if not name.startswith("torchvision.") or taken <= room:
        return None
    do = ": resize whole batches on the GPU" if pixels > native else ""
    return f"its pictures take {taken / 1e9:.1f} gigabytes, and {most} are kept at most, on a GPU of 80{do}"


def _on_device(analysis: Analysis, loader: Loader) -> bool:
    """Whether all that reads a loader uses its batches on the GPU only."""
    if loader.dataset.on_device:
        return True
    sites = {each.site for each in loader.copies}
    if not sites or not all(each.to.reaches_cuda for each in loader.copies):
        return False
    events = analysis.facts.of("iterate", "next")
    reading = [each for each in events if loader.site in loader_sites(analysis, each.receiver)]
    loops = [(each.node, each.module) for each in reading if isinstance(each.node, ast.For)]
    whole = bool(loops) and len(loops) == len(reading)
    return whole and not any(_is_read_on_host(analysis, loop, module, sites) for loop, module in loops)


def _is_read_on_host(analysis: Analysis, loop: ast.For, module: ModuleFile, copies: set[Site]) -> bool:
    """Whether a loop uses a part of a batch for more than its size before it is brought to the device."""
    places = analysis.facts.places
    counted = isinstance(loop.iter, ast.Call) and "enumerate(" in ast.unparse(loop.iter)
    both = loop.target.elts if isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2 else []
    waiting = {each.id for each in targets(both[1] if counted and both else loop.target) if isinstance(each, ast.Name)}
    for statement in loop.body:
        calls = [each for each in walk(statement) if isinstance(each, ast.Call)]
        copied = [each for each in calls if places.site(each, module) in copies]
        fine = {id(one) for each in copied for one in walk(each)}
        fine |= {id(one) for each in calls if dotted(each.func) == "len" for one in each.args}
        fine |= {id(each.value) for each in walk(statement) if isinstance(each, ast.Attribute) and each.attr in _SIZES}
        unpacked = statement.value if isinstance(statement, ast.Assign) else None
        for node in walk(statement):
            read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in waiting
            # (where the statement copies it, all parts of it may be: ``[part.to(device) for part in batch]``)
            if read and id(node) not in fine and node is not unpacked and not copied:
                return True
        stored = {each.id for each in walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        is_part = isinstance(unpacked, ast.Name) and unpacked.id in waiting
        waiting = waiting | stored if is_part else waiting - stored
    return False


def _why_not(loader: Loader, event: Event) -> str | None:
    """Why whole batches of items that are made once would not be the same, or nothing would be gained."""
    if loader.dataset.stateful is not None:
        return loader.dataset.stateful
    if loader.collate != "default" and _pads(event):
        return "its `collate_fn` may do more than to stack the items"
    given = event.arguments.get("dataset", 0) if event.arguments is not None else None
    methods = [each.cls.find("__getitem__") for each in datasets_in(given.value if given is not None else None)]
    if loader.collate == "default" and any(isinstance(each, Function) and holds_text(each) for each in methods):
        return "its items hold texts beside what can be stacked: look these up by the item's number, and keep the rest"
    return None


def _pads(event: Event) -> bool:
    """Whether a collate function may do more than to put items side by side, by its text, or is not seen."""
    passed = event.arguments.get("collate_fn", 7) if event.arguments is not None else None
    given = members(passed.value) if passed is not None else ()
    calls = [each.cls.find("__call__") if isinstance(each, Instance) else each for each in given]
    functions = [each for one in calls if (each := function_of(one)) is not None]
    return len(functions) != len(given) or any(_PADDING.search(ast.unparse(each.node)) for each in functions)


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
