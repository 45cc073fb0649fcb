"""Datasets of the project that make the same items in every epoch, and what is built anew for each item.

What is done for an item is read in the text of the functions that make it; that it is the same each time, a run shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Class, External, Function, Instance, Made, Value, flatten, members
from turbofix.library.tables import BARS, words
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import dotted, loaded, parameters, stores
from turbofix.source.nodes import walk
from turbofix.source.places import COMPREHENSIONS
from turbofix.source.site import Site
from turbofix.training.data.datasets import RANDOM_TRANSFORMS, callee, calls_in, changes_later, held_data, keeps, making
from turbofix.training.model import BuiltAgain, KeptRead, Loader, SameItems, Step

_WRAPPERS = BARS | {f"torch.utils.data.{name}" for name in ("Subset", "random_split", "ConcatDataset")}
_HEAVY = {
    "sound": words("librosa. torchaudio. soundfile. wfdb. scipy.io.wavfile. scipy.signal. python_speech_features."),
    "pictures": words("PIL. cv2. skimage. imageio. tifffile. torchvision. albumentations."),
    "files": words(
        "builtins.open numpy.load torch.load json.load pickle. h5py. nibabel. SimpleITK. pydicom. scipy.io."
    ),
    "texts": words("re. nltk. spacy. sentencepiece. transformers. tokenizers. jieba."),
    "tables": words("pandas."),
    "items": words(""),
}
"""The packages whose work for an item is worth keeping, by what it is done with; the first tells what an item is."""
_BY_WORK = {"decode": "pictures", "tokenize": "texts", "read": "files", "transform": "items"}
_TOKENIZING = regex(r"tokeni[sz]er?|numericali[sz]e|encode(?:_plus|_batch)?|convert_tokens_to_ids|lookup_indices")
_SPLITTING = words("lower split rsplit replace casefold")
_LOADING = regex(r"(?:im|rd|dcm)?(?:load|read|open)(?:_\w+|record)?|imdecode")
_ROWS = words("iloc loc iat")
_SEARCHING = words("get_group groupby iterrows itertuples query sort_values xs")
_DRAWING = words("shuffle choice choices randint randrange uniform permutation normal_ uniform_ random_ bernoulli_")
_CHANGING = words("""
    append extend insert pop popitem remove clear update sort reverse setdefault thumbnail paste putpixel putalpha
    """)
_BUILT = regex(
    r"torchaudio\.transforms\.(?:Resample|\w*Spectrogram|\w*FCC|\w*MelScale|GriffinLim)"
    r"|(?:transformers|tokenizers)\..*\.from_(?:pretrained|file)"
    r"|spacy\.load|sentencepiece\.SentencePieceProcessor|nltk\.stem\.\w+|nltk\.corpus\.stopwords\.words"
)
"""What takes long to build, and is the same for the same arguments."""


@dataclass(frozen=True)
class _Work:
    """What one function and those that it calls do for an item."""

    kinds: dict[str, ast.AST]  # with the first place
    draws: str | None
    functions: tuple[Function, ...]  # it, and those that it calls


def same_items(analysis: Analysis, loaders: tuple[Loader, ...], steps: tuple[Step, ...]) -> tuple[SameItems, ...]:
    """The datasets whose items are made anew in each epoch of a training, with work that takes long."""
    if steps and not any(step.passes is None or step.passes > 1 for step in steps):
        return ()
    reading = _loaders_of(analysis, loaders)
    instances: dict[int, list[Instance]] = {}
    for data, _ in reading:
        for cls in (each for each in data.cls.mro() if isinstance(each, Class)):
            instances.setdefault(id(cls.node), []).append(data)
    for scope in (*(each.scope for each in analysis.execution.modules.values()), *analysis.execution.scopes.values()):
        for each in (one for value in scope.names.values() for one in members(value)):
            if isinstance(each, Instance):
                instances.setdefault(id(each.cls.node), [each])
    read = {id(cls.node) for each, _ in reading for cls in each.cls.mro() if isinstance(cls, Class)}
    classes = {id(each.node): each for each in _classes(analysis)} | {
        id(cls.node): cls for own in instances.values() for cls in own[0].cls.mro() if isinstance(cls, Class)
    }
    found: list[SameItems] = []
    for key, cls in classes.items():
        method = cls.names.get("__getitem__")
        if not isinstance(method, Function) or not isinstance(method.node, ast.FunctionDef):
            continue
        if key not in read and not _is_data(cls):
            continue
        if len(parameters(method.node)) != 2 or (key not in instances and not _is_built(analysis, cls)):
            continue
        mine = [
            loader
            for data, loader in reading
            if any(isinstance(base, Class) and base.node is cls.node for base in data.cls.mro())
        ]
        if all(loader.role == "unused" for loader in mine) if mine else _is_read_once(analysis, cls):
            continue
        sites = tuple(dict.fromkeys(loader.site for loader in mine))
        own = instances.get(key, [None])
        random = (each for each in own if len(own) > 1 and _work(analysis, method, each).draws is not None)
        same = _of_class(analysis, cls, method, next(random, own[0]), sites)
        if same is not None:
            found.append(same)
    found += mapped(analysis)
    return tuple(_with_helpers(sorted(found, key=lambda each: each.site)))


def _is_read_once(analysis: Analysis, cls: Class) -> bool:
    """Whether data are read by loops of the program's own, and by none that runs again and again."""
    facts = analysis.facts
    reading = {
        id(each.node): each
        for each in analysis.execution.loops
        if any(data.cls.node is cls.node for data in datasets_in(each.iterated))
    }
    around = [facts.loops(event)[0] for node in reading.values() for event in facts.events_in(node.node)]
    return bool(around) and all(id(each.node) in reading for each in around)


def _loaders_of(analysis: Analysis, loaders: tuple[Loader, ...]) -> list[tuple[Instance, Loader]]:
    """The project's datasets, each with a loader that reads it."""
    found: list[tuple[Instance, Loader]] = []
    for event in analysis.facts.of("make"):
        loader = next((each for each in loaders if each.site == analysis.facts.site(event)), None)
        passed = event.arguments.get("dataset", 0) if event.arguments is not None else None
        if loader is not None and passed is not None:
            found += [(each, loader) for each in datasets_in(passed.value)]
    return found


def datasets_in(value: Value | None, depth: int = 3) -> Iterator[Instance]:
    """The project's datasets that a loader reads, through torch's wrappers."""
    for each in flatten(value, 2):
        if isinstance(each, Instance):
            yield each
        elif isinstance(each, Made) and each.qualname in _WRAPPERS and depth:
            for given in (each.inner, *each.arguments.values()):
                yield from datasets_in(given, depth - 1)


def _classes(analysis: Analysis) -> Iterator[Class]:
    """The classes on the top level of the program's files."""
    for module in analysis.execution.modules.values():
        for each in (one for value in module.scope.names.values() for one in members(value)):
            if isinstance(each, Class) and each.module is module:
                yield each


def _is_data(cls: Class) -> bool:
    """Whether a class is a map-style dataset."""
    bases = [base for each in cls.mro() if isinstance(each, Class) for base in each.node.bases]
    names = [(dotted(each) or "").rpartition(".")[2] for each in bases]
    library = any(".datasets." in each for each in cls.externals())
    return library or (any(each.endswith(("Dataset", "Data")) for each in names) and "IterableDataset" not in names)


def _is_built(analysis: Analysis, cls: Class) -> bool:
    """Whether the text of the program calls a class by its name."""
    called = rf"\b{re.escape(cls.node.name)}\("
    return any(
        re.search(called, line) is not None and not line.lstrip().startswith("class ")
        for module in analysis.execution.modules.values()
        for line in module.text.splitlines()
    )


def _of_class(
    analysis: Analysis, cls: Class, method: Function, instance: Instance | None, loaders: tuple[Site, ...]
) -> SameItems | None:
    places = analysis.facts.places
    site = places.site(method.node, method.module)
    kept = keeps(method.node) or _kept_in_attribute(method)
    work = _work(analysis, method, instance)
    if not work.kinds:
        return None
    same = SameItems(site, site, loaders, cls.node.name, _top(analysis, method), tuple(work.kinds), cached=bool(kept))
    if kept:
        return replace(same, site=places.site(kept, method.module)) if isinstance(kept, ast.AST) else same
    why = None
    if work.draws is None:
        why = _counts(work.functions) or (changes_later(analysis, instance) if instance is not None else None)
        why = why or _is_decorated(method)
        if why is None:
            return same
    elif any(keeps(each.node) for each in work.functions[1:]):
        return replace(same, cached=True)
    if reads := tuple(_reads(analysis, work, method, instance)):
        return replace(same, reads=reads)
    if work.draws is not None and {*work.kinds} == {"items"}:
        return None  # a random transform of what lies in memory
    drawn = f"`{work.draws}` draws random numbers for each item: "
    table = "make arrays of its rows once, in `__init__`, and draw out of those"
    drawn += table if {*work.kinds} == {"tables"} else "put what comes before it into a function of its own"
    return replace(same, why_not=why or drawn)


_ONE_BY_ONE = "write it for lists of texts, and pass `batched=True`: a tokenizer is faster at many"


def mapped(analysis: Analysis) -> Iterator[SameItems]:
    """The texts that ``map`` of a dataset of Hugging Face tokenises one by one."""
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree) if ".map(" in module.text else ():
            name = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else None
            function = next(
                (each for each in members(module.scope.names.get(name or "")) if isinstance(each, Function)), None
            )
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "map" or function is None:
                continue
            if not re.search("tokeniz|encode|processor|extractor", ast.unparse(function.node)):
                continue
            batched = next((each.value for each in call.keywords if each.arg == "batched"), None)
            site = analysis.facts.places.site(call, module)
            if batched is None:
                told = f"`{name}` tokenises all texts once, but one after the other"
                yield SameItems(site, site, (), name or "", site, done=told, why_not=_ONE_BY_ONE)


_BY_PATH = {
    "PIL.Image.open": "copy",
    **dict.fromkeys(words("cv2.imread skimage.io.imread imageio.imread imageio.v2.imread tifffile.imread"), "copy"),
    **dict.fromkeys(words("numpy.load numpy.loadtxt numpy.genfromtxt nibabel.load pandas.read_csv"), "copy"),
    **dict.fromkeys(words("torchvision.io.read_image torchvision.io.image.read_image torch.load"), "clone"),
    **dict.fromkeys(words("torchaudio.load librosa.load soundfile.read scipy.io.wavfile.read scipy.io.loadmat"), None),
}
"""What reads a file that it is given the path of, with the method that copies what it gives."""
_PART_OF_IT = words("offset frame_offset num_frames start stop frames duration mmap_mode")


def _reads(analysis: Analysis, work: _Work, method: Function, instance: Instance | None) -> Iterator[KeptRead]:
    """The expressions of a dataset's file that read another file by its path, whatever is random behind them."""
    places = analysis.facts.places
    for function in (each for each in work.functions if each.module is method.module):
        scope = function.module.scope.names
        for call, name in calls_in(function.node):
            root = (name or "").partition(".")[0]
            found = list(callee(name, function, instance)) if name is not None and root in scope else []
            known = [each.qualname for each in found if isinstance(each, External) and each.qualname in _BY_PATH]
            given = [*call.args, *(each.value for each in call.keywords)]
            simple = not any(isinstance(each, (ast.Starred, ast.Lambda)) or _opens(each) for each in given)
            if len(known) != 1 or not simple or any(each.arg in (None, *_PART_OF_IT) for each in call.keywords):
                continue
            whole = _with_what_follows(analysis, call, function)
            if isinstance(places.parent(whole, function.module), ast.withitem) and known[0] != "PIL.Image.open":
                continue  # (a picture of PIL's that is closed keeps what was read of it)
            copied = _BY_PATH[known[0]] if _changes_result(function, whole) is not None else None
            if copied is None and _changes_result(function, whole) is not None:
                continue
            changing = [each for each in given if not isinstance(each, ast.Constant)]
            parameters = ["path", *(f"given_{number}" for number in range(1, len(changing)))][: len(changing)]
            yield KeptRead(
                places.site(whole, function.module),
                places.site(call.func, function.module),
                known[0].rpartition(".")[2],
                tuple(places.site(each, function.module) for each in changing),
                tuple(parameters),
                "" if whole is call else _with_parameters(whole, changing, parameters),
                _top(analysis, function),
                copied,
            )


def _opens(node: ast.AST) -> bool:
    """Whether an argument is no path, but an open file or its bytes."""
    return any(
        isinstance(each, ast.Call) and re.search("open|BytesIO|read", dotted(each.func) or "") for each in walk(node)
    )


def _with_what_follows(analysis: Analysis, call: ast.Call, function: Function) -> ast.expr:
    """A call with the methods of its result that are called at once, with constants: ``open(path).convert("RGB")``."""
    whole: ast.expr = call
    while True:
        member = analysis.facts.places.parent(whole, function.module)
        above = analysis.facts.places.parent(member, function.module) if member is not None else None
        if isinstance(member, ast.Attribute) and isinstance(above, ast.Call) and above.func is member:
            given = [*above.args, *(each.value for each in above.keywords)]
            if not all(isinstance(each, ast.Constant) for each in given):
                return whole
            whole = above
        elif isinstance(member, ast.Subscript) and member.value is whole and isinstance(member.slice, ast.Constant):
            whole = member
        else:
            return whole


def _with_parameters(whole: ast.expr, given: list[ast.expr], parameters: list[str]) -> str:
    """The text of an expression with parameters in place of what it is given."""
    text = ast.unparse(whole)
    for each, name in zip(given, parameters, strict=True):
        before = re.escape(ast.unparse(each))
        text = re.sub(rf"(?<=[(=\s]){before}(?=[,)])", name, text, count=1)
    return text


def _top(analysis: Analysis, function: Function) -> Site:
    """The statement on the top level of its file that holds a function."""
    line: int = getattr(function.node, "lineno", 1)
    holding = next(each for each in reversed(function.module.tree.body) if each.lineno <= line)
    return analysis.facts.places.site(holding, function.module)


def _work(analysis: Analysis, function: Function, instance: Instance | None) -> _Work:
    """What a function does for an item, with the functions that it calls."""
    made = making(analysis, function, instance)
    kinds: dict[str, ast.AST] = {}
    draws = made.draws or made.generator
    for each in made.seen.values():
        for call, name in calls_in(each.node):
            attr = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            found = (
                [one.qualname for one in made.callee(name, each, instance) if isinstance(one, External)] if name else []
            )
            for kind, packages in _HEAVY.items():
                if any(one.startswith(tuple(packages)) for one in found):
                    kinds.setdefault(kind, call)
            splits = attr in _SPLITTING and _loops(each.node)
            if not found and (splits or (_TOKENIZING.fullmatch(attr) and call.args)):
                kinds.setdefault("texts", call)
            if not found and attr in _SEARCHING:
                kinds.setdefault("tables", call)
            if not found and attr == "transform" and call.args:  # a scaler's
                kinds.setdefault("items", call)
            last = found[0].rpartition(".")[2] if found else attr
            if _LOADING.fullmatch(last) and not found:
                kinds.setdefault("files", call)
            if last.startswith(RANDOM_TRANSFORMS) if found else attr in _DRAWING:
                draws = draws or last
        for row in walk(each.node):
            if isinstance(row, ast.Subscript) and (getattr(row.value, "attr", "") in _ROWS or _is_searched(row)):
                kinds.setdefault("tables", row)
    if not kinds:
        kinds = {_BY_WORK[each]: function.node for each in sorted(made.kinds) if each in _BY_WORK}
    held = held_data(analysis, instance) if instance is not None and function.name == "__getitem__" else None
    if held is not None:
        kinds = kinds or {_BY_WORK[each]: function.node for each in held.work if each in ("decode", "transform")}
        draws = draws or (held.qualname if held.random else None)
    if draws is None and made.random and names_random(analysis):
        draws = "transform"
    kinds = {kind: kinds[kind] for kind in _HEAVY if kind in kinds}
    return _Work(kinds, draws, tuple(made.seen.values()))


def _is_searched(node: ast.Subscript) -> bool:
    """Whether the rows of a table are compared to find some of them: ``table[table["id"] == id]``."""
    compared = [each.left for each in walk(node.slice) if isinstance(each, ast.Compare)]
    return any(isinstance(one, ast.Subscript) and dotted(one.value) == dotted(node.value) for one in compared)


@once_per_node
def _loops(function: ast.AST) -> bool:
    """Whether a function has a loop: one text that is cut in two takes no time."""
    nodes = [*walk(function)]
    mapping = any(isinstance(each, ast.Call) and dotted(each.func) == "map" for each in nodes)
    return mapping or any(isinstance(each, (ast.For, ast.While, *COMPREHENSIONS)) for each in nodes)


def names_random(analysis: Analysis) -> bool:
    """Whether the program builds random transforms anywhere, which an unknown one may be."""
    named = rf"\b(?:{'|'.join(RANDOM_TRANSFORMS)})\w*\("
    return any(re.search(named, module.text) is not None for module in analysis.execution.modules.values())


def _is_decorated(function: Function) -> str | None:
    decorators = [ast.unparse(each) for each in getattr(function.node, "decorator_list", [])]
    plain = decorators in ([], ["staticmethod"])
    return None if plain else f"`{function.name}` has a decorator already, `@{decorators[0]}`"


def _kept_in_attribute(method: Function) -> ast.AST | None:
    """Where a method puts items into a container of its object in which it looks for them first."""
    asked = {dotted(each.comparators[0]) for each in walk(method.node) if isinstance(each, ast.Compare)}
    for each in walk(method.node):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
            name = dotted(each.value)
            if name is not None and "." in name and (name in asked or re.search("cache|memo", name)):
                return each
    return None


def _counts(functions: Iterable[Function]) -> str | None:
    """What the making of an item changes for the next ones."""
    for function in functions:
        own = parameters(function.node)[:1] if function.cls is not None else []
        for each in walk(function.node):
            if isinstance(each, ast.AugAssign):
                target = each.target.value if isinstance(each.target, ast.Subscript) else each.target
                name = dotted(target) or ""
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _CHANGING:
                name = dotted(each.func.value) or ""
            elif isinstance(each, ast.Global):
                name = f"{own[0].arg}.{each.names[0]}" if own else ""
            else:
                continue
            if own and name.startswith(f"{own[0].arg}."):
                return f"`{function.name}` changes `{name}` with each item"
    return None


def _changes_result(caller: Function, call: ast.expr) -> str | None:
    """Why what a call gives does not stay as it is in its caller."""
    names = {
        target
        for each in walk(caller.node)
        if isinstance(each, ast.Assign) and each.value is call
        for target, _ in stores(each)
    } | {
        dotted(each.optional_vars)
        for each in walk(caller.node)
        if isinstance(each, ast.withitem) and each.context_expr is call and each.optional_vars is not None
    }
    for each in walk(caller.node):
        changed: ast.AST | None = None
        if isinstance(each, ast.AugAssign):
            changed = each.target
        elif isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load):
            changed = each.value
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            attr = each.func.attr
            changed = each.func.value if attr in _CHANGING or re.fullmatch(r"[a-z]\w*[a-z]_", attr) else None
        name = dotted(changed) if changed is not None else None
        if name in names:
            return f"line {each.lineno} changes `{name}` in place"  # type: ignore[attr-defined]
    return None


def _with_helpers(found: list[SameItems]) -> Iterator[SameItems]:
    """Each with the first function that is decorated in its file, in front of which the helper goes."""
    above: dict[Path, Site] = {}
    for each in found:
        if not each.cached and each.why_not is None and each.done is None:
            tops = [each.helper, *(read.top for read in each.reads)]
            above[each.method.path] = min([*tops, above.get(each.method.path, each.helper)])
    pictures = {each.method.path for each in found if {"pictures", "items"} & {*each.work}}
    for each in found:
        yield replace(each, helper=above.get(each.method.path, each.helper), pictures=each.method.path in pictures)


# --- what is built for each item -------------------------------------------------------------------------------------


def built_again(analysis: Analysis) -> tuple[BuiltAgain, ...]:
    """The transforms, tokenizers and models that are built anew for each item or batch of data."""
    found: dict[Site, BuiltAgain] = {}
    for function, instance in _per_item(analysis):
        made = making(analysis, function, instance)
        for each in made.seen.values():
            for call, name in calls_in(each.node) if not keeps(each.node) else ():
                if _is_kept_once(analysis, call, each.module):
                    continue
                built = (
                    [one.qualname for one in made.callee(name, each, instance) if isinstance(one, External)]
                    if name
                    else []
                )
                by_its_name = len(built) == 1 and name is not None and name.endswith(built[0].rpartition(".")[2])
                if by_its_name and _BUILT.fullmatch(built[0]):
                    place = analysis.facts.places.site(call, each.module)
                    if (again := _built(analysis, call, built[0], each)) is not None:
                        found.setdefault(place, again)
    outer = [each for each in found.values() if not any(_holds(one.call, each.call) for one in found.values())]
    return tuple(sorted(outer, key=lambda each: each.call))


def _is_kept_once(analysis: Analysis, call: ast.Call, module: ModuleFile) -> bool:
    """Whether it is built where an object has none yet, which then keeps it: ``if self.crop is None: self.crop =``."""
    statement = analysis.facts.places.statement(call, module)
    kept = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else None
    tests = (each.test for each in analysis.facts.places.ancestors(call, module) if isinstance(each, ast.If))
    return kept is not None and "." in kept and any(kept in loaded(test) for test in tests)


def _holds(outer: Site, inner: Site) -> bool:
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    ends = (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    return outer != inner and outer.path == inner.path and starts and ends


def _per_item(analysis: Analysis) -> Iterator[tuple[Function, Instance | None]]:
    """The functions of the project that make items or batches."""
    for cls in _classes(analysis):
        method = cls.names.get("__getitem__")
        if isinstance(method, Function) and _is_data(cls):
            scopes = (each.scope for each in analysis.execution.modules.values())
            named = (scope.names for scope in (*scopes, *analysis.execution.scopes.values()))
            yield method, next((one for names in named for one in _instances(names, cls)), None)
    for module in analysis.execution.modules.values():
        for call, name in calls_in(module.tree):
            last = (name or "").rpartition(".")[2] or getattr(call.func, "attr", "")
            if last not in ("map", "set_transform", "with_transform", "DataLoader"):
                continue
            given = [*call.args, *(each.value for each in call.keywords)]
            for each in (one.id for one in given if isinstance(one, ast.Name)):
                for value in members(module.scope.names.get(each)):
                    if isinstance(value, Function):
                        yield value, None


def _instances(names: dict[str, Value], cls: Class) -> Iterator[Instance]:
    for each in (one for value in names.values() for one in members(value)):
        if isinstance(each, Instance) and each.cls.node is cls.node:
            yield each


def _built(analysis: Analysis, call: ast.Call, qualname: str, function: Function) -> BuiltAgain | None:
    """What is built, where its arguments are numbers, texts and names, by which it can be looked up."""
    places, module = analysis.facts.places, function.module
    local = {each.arg for each in parameters(function.node)} | {
        each.id for each in walk(function.node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    changing = (ast.List, ast.Dict, ast.Set, ast.Lambda, ast.Starred, *COMPREHENSIONS)
    if any(isinstance(each, changing) or (isinstance(each, ast.keyword) and each.arg is None) for each in walk(call)):
        return None
    if (dotted(call.func) or "").partition(".")[0] in local:
        return None
    own = qualname.removesuffix(".from_pretrained").removesuffix(".from_file").rpartition(".")[2]
    return BuiltAgain(places.site(call, module), places.site(call.func, module), own, _top(analysis, function))
