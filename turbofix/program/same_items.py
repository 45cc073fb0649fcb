"""Datasets of the project that turn a text into tokens for each item anew, though an index has the same item each time.

Nothing is taken for granted of what ``__getitem__`` calls: what is not known here to be a function of its arguments
alone makes the answer no.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import field

from turbofix.nodes import walk
from turbofix.program.access import has_decorator
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node
from turbofix.program.datasets import callee
from turbofix.program.execution import ModuleFile
from turbofix.program.libraries import words
from turbofix.program.model import Loader, SameItems, Step
from turbofix.program.names import dotted, parameters
from turbofix.program.sites import FUNCTIONS, LOOPS
from turbofix.program.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    ModuleValue,
    Opaque,
    Option,
    Value,
    flatten,
    members,
)
from turbofix.records import dataclass

CACHES = ("functools.lru_cache", "functools.cache")

_DATASETS = ("torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset")
_PLAIN = (*_DATASETS, "builtins.object", "typing.Generic")

_BUILTINS = frozenset(
    words(
        """
        abs all any bool dict enumerate filter float int isinstance len list map max min ord chr range reversed round
        set sorted str sum tuple zip
        """
    )
)
_PURE = frozenset(
    (
        *(f"torch.{name}" for name in words("tensor LongTensor FloatTensor BoolTensor IntTensor zeros ones full cat")),
        *(f"torch.{name}" for name in words("stack arange ones_like zeros_like full_like is_tensor")),
        *("torch.nn.functional.pad", "torch.nn.functional.one_hot"),
        *(f"numpy.{name}" for name in words("array zeros ones full arange pad concatenate stack")),
        *("nltk.word_tokenize", "nltk.tokenize.word_tokenize", "unicodedata.normalize", "html.unescape"),
        *(f"re.{name}" for name in words("findall sub split match search fullmatch")),
    )
)
"""Functions of libraries that always give a new object, and the same for the same arguments."""

_TEXT_CALLS = ("re.", "nltk.")

_TOKENIZING = frozenset(words("encode encode_plus tokenize convert_tokens_to_ids __call__"))
"""Methods of a library's tokenizer that give the same for the same text."""

_METHODS = frozenset(
    words(
        """
        lower upper strip lstrip rstrip split rsplit replace startswith endswith join isalpha isdigit isalnum casefold
        title find index count rjust ljust zfill center translate partition rpartition splitlines get items keys values
        long float int bool
        unsqueeze squeeze flatten view reshape item tolist size numel dim
        """
    )
)
"""Methods of texts, dicts, lists and tensors that change nothing."""

_SPLITTING = frozenset(words("lower split rsplit replace casefold"))

_FILLING = frozenset(words("append extend insert pop reverse sort update setdefault"))
"""What changes a list or dict, which then must be one that the function has made itself."""

_CHANGING = frozenset((*_FILLING, *words("add clear remove discard popitem fill_ copy_ zero_ add_tokens")))

_FRESH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.BinOp, ast.JoinedStr, ast.Constant)

_BAD = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete, ast.With, ast.AsyncWith, ast.Lambda)
_INNER = (*FUNCTIONS, ast.ClassDef)

_OWN_WAYS = {"__eq__", "__getitems__", "__getattr__", "__getattribute__"}
"""What makes a dataset look up its items, its attributes or itself in a way of its own."""

_DEPTH = 4


class _Impure(Exception):  # noqa: N818  (an outcome)
    """An item is not known to be the same each time."""


@dataclass(eq=False)
class _Reading:
    """What was seen in the code that makes an item."""

    analysis: Analysis
    born: ast.AST | None = None  # the call that makes the dataset
    texts: list[tuple[ast.AST, ModuleFile]] = field(default_factory=list)  # where a text is taken apart
    read: set[str] = field(default_factory=set)  # the attributes that are read, of whatever object
    seen: set[int] = field(default_factory=set)
    names: set[tuple[str, ModuleFile]] = field(default_factory=set)  # of files, that are read
    functions: set[int] = field(default_factory=set)  # that make the items


def same_items(analysis: Analysis, loaders: tuple[Loader, ...], steps: tuple[Step, ...]) -> tuple[SameItems, ...]:
    """The datasets that tokenise the same texts anew in each epoch of a training."""
    found: dict[int, tuple[Class, list[Instance], list[Loader]]] = {}
    for event in analysis.facts.of("make"):
        for made in members(event.result):
            if not isinstance(made, Made) or made.kind != "loader":
                continue
            passed = made.arguments.get("dataset", 0)
            site = analysis.facts.origin_site(made.origin)
            loader = next((each for each in loaders if each.site == site), None)
            for held in _datasets(passed.value) if passed is not None and loader is not None else ():
                _, instances, readers = found.setdefault(id(held.cls.node), (held.cls, [], []))
                instances += () if any(held is each for each in instances) else (held,)
                assert loader is not None
                readers += () if loader in readers else (loader,)
    answers = (_of_class(analysis, *each, steps) for each in found.values())
    return tuple(sorted((each for each in answers if each is not None), key=lambda each: each.method))


_WRAPPERS = ("torch.utils.data.Subset", "torch.utils.data.random_split", "torch.utils.data.ConcatDataset")


def _datasets(value: Value | None, depth: int = 3) -> Iterator[Instance]:
    """The project's datasets that a loader reads, through torch's wrappers."""
    for each in flatten(value, 2):
        if isinstance(each, Instance):
            yield each
        elif isinstance(each, Made) and each.qualname in _WRAPPERS and depth:
            for given in (each.inner, *each.arguments.values()):
                yield from _datasets(given, depth - 1)


def _of_class(
    analysis: Analysis, cls: Class, instances: list[Instance], loaders: list[Loader], steps: tuple[Step, ...]
) -> SameItems | None:
    if set(cls.externals()) - set(_PLAIN) or not set(cls.externals()) & set(_DATASETS) or cls.is_dataclass:
        return None
    method = cls.names.get("__getitem__")
    if not isinstance(method, Function) or not isinstance(method.node, ast.FunctionDef):
        return None
    again = [step for step in steps if any(loader.site in step.loaders for loader in loaders)]
    if not any(step.epoch_loop is not None and (step.passes is None or step.passes > 1) for step in again):
        return None
    site = analysis.facts.places.site(method.node, method.module)
    sites = tuple(loader.site for loader in loaders)
    if has_decorator(method, *CACHES) or any(
        isinstance(each, ast.Call) and (dotted(each.func) or "").endswith("lru_cache")
        for each in method.node.decorator_list
    ):
        return SameItems(site, site, sites, cls.node.name, site, cached=True)
    own = methods = {each.name for each in cls.node.body if isinstance(each, ast.FunctionDef)}
    for each in cls.node.body:
        own = own | _set_in(each)
    if "__hash__" in own - methods:
        return None
    if not any(each is cls.node for each in cls.module.tree.body):
        return None
    plain = len(parameters(method.node)) == 2 and not method.node.args.defaults and not method.node.decorator_list
    if not plain or own & _OWN_WAYS or "__len__" not in own:
        return None
    reading = _Reading(analysis)
    try:
        for instance in instances:
            reading.seen.clear()
            reading.born = instance.origin.node
            _look_at(reading, method, instance, _DEPTH)
            if _is_changed(analysis, instance, reading.read) or _Uses(reading, instance).may_change():
                return None
    except _Impure:
        return None
    if not reading.texts:
        return None
    where = analysis.facts.places.site(*reading.texts[0])
    above = min(_classes_with_items(method.module.tree), key=lambda each: each.lineno, default=cls.node)
    helper = analysis.facts.places.site(above, method.module)
    return SameItems(site, where, sites, cls.node.name, helper, _used_otherwise(analysis, cls, instances, method))


def _set_in(statement: ast.stmt) -> set[str]:
    """The names that a statement of a class body sets."""
    to = statement.targets if isinstance(statement, ast.Assign) else []
    return {each.id for each in to if isinstance(each, ast.Name)}


def _classes_with_items(tree: ast.Module) -> list[ast.ClassDef]:
    """The classes on a file's top level that make items."""
    return [
        each
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        and any(isinstance(one, ast.FunctionDef) and one.name == "__getitem__" for one in each.body)
    ]


# --- what makes an item ----------------------------------------------------------------------------------------------


def _look_at(reading: _Reading, function: Function, instance: Instance | None, depth: int) -> None:
    """Raise ``_Impure`` unless what a function gives is made of its arguments and of what the object holds alone."""
    if id(function.node) in reading.seen:
        return
    reading.seen.add(id(function.node))
    if depth < 0 or isinstance(function.node, ast.Lambda):
        raise _Impure
    reading.functions.add(id(function.node))
    nodes = [node for statement in function.node.body for node in walk(statement)]
    if any(isinstance(node, (*_BAD, *_INNER, ast.Import, ast.ImportFrom)) for node in nodes):
        raise _Impure
    fresh = _fresh_names(function, instance, nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            _look_at_call(reading, node, function, instance, fresh, depth)
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                raise _Impure
            reading.read.add(node.attr)
            found = list(callee(dotted(node) or "", function, instance)) if dotted(node) is not None else []
            if any(map(_is_used_up, found)) or _is_property(reading, node, function, found):
                raise _Impure
            if _may_do_anything(found) or _is_handed_on(reading, node, function, found):
                raise _Impure
        elif isinstance(node, ast.Subscript):
            _look_at_entry(reading, node, function, instance, depth)
            if isinstance(node.ctx, ast.Store) and not (isinstance(node.value, ast.Name) and node.value.id in fresh):
                raise _Impure
        elif isinstance(node, ast.AugAssign):
            if not isinstance(node.target, ast.Name) or node.target.id not in fresh:
                raise _Impure
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _is_unsure(reading, node, function):
            raise _Impure


_DATA = frozenset(
    words(
        """
        builtins collections csv dict enumerate filter glob gzip io itertools json list map math numpy open os pandas
        pathlib pickle random range re reversed set sklearn sorted str string torch tuple zip
        """
    )
)
"""Where lists, dicts and frames come from that are not seen through: the packages of the calls that give them."""

_START = re.compile(r"\w*")


def _may_do_anything(values: Iterable[Value]) -> bool:
    """Whether a value may be an object of a class that is not known, whose methods may draw random numbers."""
    for each in values:
        if isinstance(each, Opaque) and (each.how == "parameter" or _START.match(each.name)[0] not in _DATA):  # type: ignore[index]
            return True
        if isinstance(each, Made) and each.kind != "tokenizer" and each.qualname != "datasets.load_dataset":
            return True
    return False


def _look_at_entry(
    reading: _Reading, node: ast.Subscript, function: Function, instance: Instance | None, depth: int
) -> None:
    """Raise ``_Impure`` unless an item of something is the same each time: of a list, or of an object seen through."""
    name = dotted(node.value)
    for each in callee(name, function, instance) if name is not None else ():
        if isinstance(each, Instance):
            method = each.cls.find("__getitem__")
            if not isinstance(method, Function):
                raise _Impure
            _look_at(reading, method, each, depth - 1)


_USED_UP = ("builtins.iter", "builtins.map", "builtins.zip", "builtins.filter", "builtins.enumerate", "builtins.open")


_READERS = ("csv.reader", "csv.DictReader", "gzip.open", "bz2.open", "lzma.open", "io.open", "codecs.open")


def _is_used_up(value: Value) -> bool:
    """Whether a value is an iterator or an open file, which gives something else the next time."""
    if isinstance(value, Iterated):
        return True
    if isinstance(value, Opaque):
        name = value.name.removesuffix("()")
        made = value.name.endswith("()") and name.startswith("itertools.")
        return made or name in _READERS or f"builtins.{name}" in _USED_UP
    return isinstance(value, Made) and value.qualname in _USED_UP


def _is_property(reading: _Reading, node: ast.Attribute, function: Function, found: list[Value]) -> bool:
    """Whether an attribute is a method of the project that is not called here: its code is another one."""
    above = reading.analysis.facts.places.parent(node, function.module)
    is_called = isinstance(above, ast.Call) and above.func is node
    return not is_called and any(isinstance(each, (Function, Bound)) for each in found)


def _is_handed_on(reading: _Reading, node: ast.Attribute, function: Function, found: list[Value]) -> bool:
    """Whether an object of the project is given another name, under which its methods would not be followed."""
    if not any(isinstance(each, Instance) for each in found):
        return False
    above = reading.analysis.facts.places.parent(node, function.module)
    return not isinstance(above, (ast.Attribute, ast.Subscript)) or above.value is not node


def _fresh_names(function: Function, instance: Instance | None, nodes: list[ast.AST]) -> set[str]:
    """The names that only ever stand for something that the function has made itself."""
    given: dict[str, list[bool]] = {each.arg: [False] for each in parameters(function.node)}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    given.setdefault(target.id, []).append(_is_fresh(node.value, function, instance))
                elif isinstance(target, (ast.Tuple, ast.List)):
                    unpacked = [each.id for each in walk(target) if isinstance(each, ast.Name)]
                    for name in unpacked:
                        given.setdefault(name, []).append(False)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and isinstance(node.target, ast.Name):
            given.setdefault(node.target.id, []).append(
                node.value is not None and _is_fresh(node.value, function, instance)
            )
        elif isinstance(node, (ast.For, ast.comprehension)):
            for name in [each.id for each in walk(node.target) if isinstance(each, ast.Name)]:
                given.setdefault(name, []).append(False)
    return {name for name, answers in given.items() if all(answers)}


def _is_fresh(value: ast.expr, function: Function, instance: Instance | None) -> bool:
    """Whether an expression surely makes a new object, or one that nothing can change."""
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Slice) and isinstance(value.value, (ast.List, ast.ListComp))
    if not isinstance(value, ast.Call):
        return isinstance(value, _FRESH)
    name = dotted(value.func)
    called = list(callee(name, function, instance)) if name is not None else []
    if called:
        return all(isinstance(each, External) and each.qualname in _PURE for each in called)
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in ("split", "rsplit", "lower", "strip")
    return name in ("list", "dict", "set", "sorted", "str", "int", "float", "len")


def _look_at_call(  # noqa: PLR0913
    reading: _Reading, node: ast.Call, function: Function, instance: Instance | None, fresh: set[str], depth: int
) -> None:
    """Raise ``_Impure`` unless a call is known to change nothing and to give the same each time."""
    if any(keyword.arg is None for keyword in node.keywords) or any(isinstance(e, ast.Starred) for e in node.args):
        raise _Impure
    name = dotted(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else None
    held = list(callee(name.rpartition(".")[0], function, instance)) if name is not None and "." in name else []
    called = list(callee(name, function, instance)) if name is not None else []
    if _is_tokenizer(called) or (method in _TOKENIZING and _is_tokenizer(held)):
        if any(keyword.arg in ("dropout", "enable_sampling", "alpha", "nbest_size") for keyword in node.keywords):
            raise _Impure
        reading.texts.append((node, function.module))
        return
    if called and all(isinstance(each, External) for each in called):
        names = [each.qualname for each in called if isinstance(each, External)]
        if not all(each in _PURE or each.removeprefix("builtins.") in _BUILTINS for each in names):
            raise _Impure
        if all(each.startswith(_TEXT_CALLS) for each in names):
            reading.texts.append((node, function.module))
        return
    own = [each for each in called if isinstance(each, (Function, Bound))]
    if own and len(own) == len(called):
        for each in own:
            if isinstance(each, Bound):
                receiver = each.receiver if isinstance(each.receiver, Instance) else None
                _look_at(reading, each.function, receiver, depth - 1)
            else:
                bound = instance if method is not None and name is not None and name.count(".") == 1 else None
                _look_at(reading, each, _receiver(name, function, instance) or bound, depth - 1)
        return
    if method is None:
        if name not in _BUILTINS or called:
            raise _Impure
        return
    first = parameters(function.node)[:1]
    of_class = function.cls is not None and bool(first)
    is_own = of_class and name is not None and name.count(".") == 1 and name.startswith(f"{first[0].arg}.")
    if is_own or any(isinstance(each, (Instance, Class, External)) for each in held):
        raise _Impure
    if method in _FILLING:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if not isinstance(owner, ast.Name) or owner.id not in fresh:
            raise _Impure
    elif method not in _METHODS:
        raise _Impure
    if method in _SPLITTING:
        reading.texts.append((node, function.module))


def _receiver(name: str | None, function: Function, instance: Instance | None) -> Instance | None:
    """The object of the project that a method is called on."""
    held = list(callee((name or "").rpartition(".")[0], function, instance)) if name and "." in name else []
    own = [each for each in held if isinstance(each, Instance)]
    return own[0] if len(own) == len(held) == 1 else None


def _is_tokenizer(values: list[Value]) -> bool:
    """Whether a value is a library's tokenizer: not what makes numbers of pictures or sounds, nor one that drops."""
    return bool(values) and all(
        isinstance(each, Made)
        and each.kind == "tokenizer"
        and "Tokenizer" in each.qualname
        and "dropout" not in each.arguments.keywords
        for each in values
    )


def _is_unsure(reading: _Reading, node: ast.Name, function: Function) -> bool:
    """Whether a name may stand for something else the next time, or for an object that may do anything."""
    reading.names.add((node.id, function.module))
    if any(map(_is_used_up, callee(node.id, function, None))):
        return True
    return _varies(reading, node, function) or _may_do_anything(callee(node.id, function, None))


def _varies(reading: _Reading, node: ast.Name, function: Function) -> bool:
    """Whether a name of the file may stand for something else the next time."""
    module, facts = function.module, reading.analysis.facts
    owner = facts.bindings.owner(node.id, node, module)
    if owner is not module.tree:
        return False
    writes = facts.bindings.writes(module.tree, node.id)
    looped = any(
        isinstance(each, LOOPS) for write in writes for each in (write, *facts.places.ancestors(write, module))
    )
    if len(writes) > 1 or looped or node.id in _declared_global(module.tree):
        return True
    born = reading.born
    here = born is not None and any(born is each for each in every(ast.Call, module.tree))
    until = getattr(born, "lineno", 0) if here else None
    return any(
        dotted(each) == node.id
        for each, line, at_import in _changed_in(module.tree)
        if not at_import or (until is not None and line >= until)
    )


@once_per_node
def _declared_global(tree: ast.Module) -> frozenset[str]:
    return frozenset(name for each in every(ast.Global, tree) for name in each.names)


@once_per_node
def _changed_in(tree: ast.Module) -> tuple[tuple[ast.expr, int, bool], ...]:
    """What a file changes in place, on which line, and whether that is on its top level."""
    top = {id(each) for statement in tree.body if not isinstance(statement, _INNER) for each in walk(statement)}
    found: list[tuple[ast.expr, int, bool]] = []
    for call in every(ast.Call, tree):
        name = (dotted(call.func) or "").rpartition(".")[2]
        if isinstance(call.func, ast.Attribute) and (call.func.attr in _CHANGING or _in_place(call.func.attr)):
            found.append((call.func.value, call.lineno, id(call) in top))
        elif name == "shuffle" and call.args:
            found.append((call.args[0], call.lineno, id(call) in top))
    entries = (each for each in every(ast.Subscript, tree) if not isinstance(each.ctx, ast.Load))
    found += [(each.value, each.lineno, id(each) in top) for each in entries]
    found += [(each.target, each.lineno, id(each) in top) for each in every(ast.AugAssign, tree)]
    return tuple(found)


def _in_place(method: str) -> bool:
    """``add_``, ``fill_``: a method that changes its tensor, as torch names them."""
    return method.endswith("_") and not method.startswith("_") and not method.endswith("__")


# --- what it is made of -----------------------------------------------------------------------------------------------


_CHOSEN = frozenset(words("padding_side truncation_side src_lang tgt_lang model_max_length"))
"""Attributes of a tokenizer that change what it gives."""


_TRANSFORMS = re.compile(
    r"\b(set_transform|with_transform|set_format|enable_sampling|enable_truncation|enable_padding|no_truncation"
    r"|no_padding|bpe_dropout|BPE|setattr|__setattr__|__dict__)\b|\b(globals|locals)\(\)|\bvars\([\w.]*\)\["
)
"""What lets items of a library's dataset, or its tokens, differ from time to time, or changes an unnamed attribute."""


def _is_changed(analysis: Analysis, instance: Instance, read: set[str]) -> bool:
    """Whether what the items are made of may be changed once the object is made."""
    held = read | set(instance.attributes)
    chosen = 0
    if any(_TRANSFORMS.search(module.text) for module in analysis.execution.modules.values()):
        return True
    for module in analysis.execution.modules.values():
        inits = [each for each in every(ast.FunctionDef, module.tree) if each.name == "__init__"]
        inside = {id(each) for init in inits for each in walk(init)}  # of objects that are not there yet
        for each in every(ast.Attribute, module.tree):
            if isinstance(each.ctx, ast.Load):
                continue
            chosen += each.attr in _CHOSEN
            if each.attr in held and id(each) not in inside:
                return True
        for changed, _, _ in _changed_in(module.tree):
            if isinstance(changed, ast.Attribute) and changed.attr in held and id(changed) not in inside:
                return True
    if any(isinstance(node, ast.Attribute) and node.attr in _CHOSEN for node, _ in analysis.facts.changes_in_loops()):
        return True
    return chosen > 1 or _grows(analysis, instance)


def _grows(analysis: Analysis, instance: Instance) -> bool:
    """Whether something that the object was given is changed further down in the text, or in another function."""
    call = instance.origin.node
    if not isinstance(call, ast.Call):
        return True
    module = instance.origin.module
    given = [*call.args, *(each.value for each in call.keywords)]
    names = {each.id for one in given for each in walk(one) if isinstance(each, ast.Name)}
    scope = analysis.facts.places.scope(call, module)
    return any(
        isinstance(changed, ast.Name)
        and changed.id in names
        and (line >= call.lineno or analysis.facts.places.scope(changed, module) is not scope)
        and analysis.facts.bindings.owner(changed.id, changed, module)
        is analysis.facts.bindings.owner(changed.id, call, module)
        for changed, line, _ in _changed_in(module.tree)
    )


_TAKING = frozenset(
    words(
        """
        len list tuple set dict sorted sum min max any all enumerate zip map filter range reversed print str repr
        isinstance type id iter
        """
    )
)
_TAKING_OF_LIBRARIES = re.compile(
    r"torch\.(tensor|as_tensor|stack|cat|LongTensor|FloatTensor|utils\.data\.\w+)|collections\.(Counter|OrderedDict)"
    r"|numpy\.(array|unique|mean)|sklearn\.model_selection\.\w+|json\.dumps?|pickle\.dumps?|torch\.save|copy\.\w+"
)


@dataclass(eq=False)
class _Uses:
    """Whether what items are made of is only ever looked at by the rest of the program."""

    reading: _Reading
    instance: Instance

    def may_change(self) -> bool:
        """Whether a name or attribute that items are made of goes to where it may be changed."""
        analysis = self.reading.analysis
        modules = analysis.execution.modules.values()
        held = {
            name
            for name in self.reading.read
            if not _is_fixed(self.instance.attributes.get(name)) and name in self.instance.attributes
        }
        for module in modules:
            for node in every(ast.Attribute, module.tree):
                if node.attr not in held or not isinstance(node.ctx, ast.Load) or self._is_own(node, module):
                    continue
                if not self._is_looked_at(node, module, 3):
                    return True
        names = set(self.reading.names) | self._given()
        for name, home in names:
            for module in modules:
                if module is not home and not _imports(module.tree, name):
                    continue
                if not _is_fixed(module.scope.names.get(name)) and not self._is_kept(name, module):
                    return True
        return False

    def _given(self) -> set[tuple[str, ModuleFile]]:
        """The names on top of a file that the dataset was made with."""
        call, module = self.instance.origin.node, self.instance.origin.module
        given = [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else []
        return {(each.id, module) for one in given for each in walk(one) if isinstance(each, ast.Name)}

    def _is_kept(self, name: str, module: ModuleFile) -> bool:
        """Whether all reads of a name on top of a file, but those before the dataset is made, only look at it."""
        analysis = self.reading.analysis
        born = self.instance.origin.node
        here = self.instance.origin.module is module
        for node in every(ast.Name, module.tree):
            if node.id != name or not isinstance(node.ctx, ast.Load) or self._is_own(node, module):
                continue
            if analysis.facts.bindings.owner(name, node, module) is not module.tree:
                continue
            at_top = analysis.facts.places.scope(node, module) is module.tree
            if at_top and here and node.lineno < getattr(born, "lineno", 0) and not self._is_alias(node, module):
                continue
            if not self._is_looked_at(node, module, 3):
                return False
        return True

    def _is_alias(self, node: ast.expr, module: ModuleFile) -> bool:
        parent = self.reading.analysis.facts.places.parent(node, module)
        return isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and parent.value is node

    def _is_own(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether something stands in what makes the items, which was looked at, or in what makes the dataset."""
        for above in self.reading.analysis.facts.places.ancestors(node, module):
            if isinstance(above, FUNCTIONS):
                name = getattr(above, "name", "")
                return id(above) in self.reading.functions or name in ("__init__", "__len__")
        return False

    def _is_looked_at(self, node: ast.expr, module: ModuleFile, depth: int) -> bool:
        """Whether an expression is read in a way that changes nothing of it."""
        places = self.reading.analysis.facts.places
        parent = places.parent(node, module)
        if isinstance(parent, ast.keyword):
            if parent.arg == "out":
                return False
            parent = places.parent(parent, module)
        if isinstance(parent, ast.Attribute):
            return True  # methods that change are looked for elsewhere
        if isinstance(parent, ast.Subscript):
            return parent.value is not node or self._is_part_kept(parent, module, depth)
        if isinstance(parent, (ast.Compare, ast.FormattedValue, ast.BinOp, ast.UnaryOp, ast.If, ast.While, ast.Assert)):
            return True
        if isinstance(parent, (ast.Starred, ast.AugAssign, ast.Expr)):
            return True
        if isinstance(parent, (ast.For, ast.comprehension)):
            return parent.iter is not node or not self._changes(parent.target, module)
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            to = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            return all(self._is_named(each, module, depth) for each in to)
        if isinstance(parent, ast.Call):
            return parent.func is node or self._takes(parent, node, module, depth)
        return False

    def _is_part_kept(self, part: ast.Subscript, module: ModuleFile, depth: int) -> bool:
        above = self.reading.analysis.facts.places.parent(part, module)
        if not isinstance(part.ctx, ast.Load) or not isinstance(above, (ast.Assign, ast.AnnAssign)):
            return True  # stores are looked for elsewhere
        to = above.targets if isinstance(above, ast.Assign) else [above.target]
        return depth > 0 and not any(self._changes(each, module) for each in to)

    def _changes(self, target: ast.expr, module: ModuleFile) -> bool:
        """Whether names that an item of it is given are changed in place."""
        names = {each.id for each in walk(target) if isinstance(each, ast.Name)}
        return any(isinstance(changed, ast.Name) and changed.id in names for changed, _, _ in _changed_in(module.tree))

    def _is_named(self, target: ast.expr, module: ModuleFile, depth: int) -> bool:
        """Whether another name of the same thing is not used to change it either."""
        if not isinstance(target, ast.Name) or not depth:
            return False
        if self._changes(target, module):
            return False
        facts = self.reading.analysis.facts
        owner = facts.bindings.owner(target.id, target, module)
        return all(
            self._is_looked_at(node, module, depth - 1)
            for node in every(ast.Name, module.tree)
            if node.id == target.id
            and isinstance(node.ctx, ast.Load)
            and facts.bindings.owner(node.id, node, module) is owner
        )

    def _takes(self, call: ast.Call, node: ast.expr, module: ModuleFile, depth: int) -> bool:
        """Whether a call is known to leave what it is given as it is."""
        facts = self.reading.analysis.facts
        if call is self.instance.origin.node or dotted(call.func) in _TAKING:
            return True
        events = facts.at(call)
        if events and all(_TAKING_OF_LIBRARIES.fullmatch(event.name) for event in events if event.name):
            return any(event.name for event in events)
        name = dotted(call.func)
        called = (
            [each for each in members(module.scope.names.get(name)) if isinstance(each, (Function, Class))]
            if name
            else []
        )
        if len(called) != 1 or not depth:
            return False
        (one,) = called
        function = one.names.get("__init__") if isinstance(one, Class) else one
        if not isinstance(function, Function) or isinstance(function.node, ast.Lambda):
            return False
        given = [each.arg for each in parameters(function.node)][1 if isinstance(one, Class) else 0 :]
        taken = dict(zip(given, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
        taking = [name for name, value in taken.items() if value is node]
        return bool(taking) and all(self._leaves(each, function, depth - 1) for each in taking)

    def _leaves(self, name: str, function: Function, depth: int) -> bool:
        """Whether a function leaves a parameter as it is, or keeps it under an attribute that nothing changes."""
        tree = function.module.tree
        places = self.reading.analysis.facts.places
        if any(isinstance(changed, ast.Name) and changed.id == name for changed, _, _ in _changed_in(tree)):
            return False
        changed = {each.attr for each, _, _ in _changed_in(tree) if isinstance(each, ast.Attribute)}
        for node in walk(function.node):
            if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
                continue
            parent = places.parent(node, function.module)
            if isinstance(parent, ast.Assign) and all(isinstance(each, ast.Attribute) for each in parent.targets):
                if any(getattr(each, "attr", "") in changed for each in parent.targets):
                    return False
            elif not self._is_looked_at(node, function.module, depth):
                return False
        return True


def _is_fixed(value: Value | None) -> bool:
    """Whether nothing can change a value in place: a number, a text, a function, a class, a module, a tokenizer."""
    found = list(members(value))
    return bool(found) and all(
        isinstance(each, (Const, Option, Function, Class, External, ModuleValue))
        or (isinstance(each, Made) and each.kind == "tokenizer")
        for each in found
    )


def _imports(tree: ast.Module, name: str) -> bool:
    return any((alias.asname or alias.name) == name for each in every(ast.ImportFrom, tree) for alias in each.names)


_LOOKING = ("len", "print", "isinstance", "type", "id", "str", "repr")


def _used_otherwise(analysis: Analysis, cls: Class, instances: Iterable[Instance], method: Function) -> str | None:
    """Why somebody else than a loader may be given the items themselves, and may change them."""
    known, file = list(instances), method.module.path
    for event in analysis.facts.events_in_functions([method.node]):
        frames = analysis.facts.frames(event)
        for caller, frame in itertools.pairwise(frames):
            if frame.scope is method.node and frame.call is not None:  # a loader's own call is none in the text
                line = analysis.facts.places.site(frame.call, caller.module).line_from(file)
                return f"{line} takes an item itself, and may change it"
    for event in analysis.facts.of("call", "unknown_call"):
        given = event.arguments.values() if event.arguments is not None else ()
        harmless = event.name.startswith("torch.utils.data.") or event.name.removeprefix("builtins.") in _LOOKING
        if not harmless and any(each is one for value in given for each in flatten(value, 2) for one in known):
            return f"{analysis.facts.site(event).line_from(file)} hands it to code that is not seen here"
    for module in analysis.execution.modules.values():
        for other in every(ast.ClassDef, module.tree):
            if any((dotted(base) or "").rpartition(".")[2] == cls.node.name for base in other.bases):
                return f"`{other.name}` derives from it"
        for each in every(ast.Subscript, module.tree):
            name = dotted(each.value)
            if name is None or not isinstance(each.ctx, ast.Load):
                continue
            if name.endswith(".dataset") or _is_one_of(module, name, known):
                line = analysis.facts.places.site(each, module).line_from(file)
                return f"{line} takes an item itself, and may change it"
    return None


def _is_one_of(module: ModuleFile, name: str, known: list[Instance]) -> bool:
    return any(each is one for each in members(module.scope.names.get(name)) for one in known)
