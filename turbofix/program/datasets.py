"""What a loader reads: where its items live, what is done for each, whether that is random, and how many there are."""

from __future__ import annotations

import ast
import codecs
from collections.abc import Iterator
from dataclasses import field, replace

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import by_type, once_per_node
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import attribute, settled
from turbofix.program.lengths import length_of
from turbofix.program.libraries import words
from turbofix.program.model import Dataset
from turbofix.program.names import body_of, dotted, parameters, stores
from turbofix.program.sites import FUNCTIONS
from turbofix.program.stale import changed_globals, changed_while_training
from turbofix.program.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Mapping,
    Opaque,
    Option,
    Partial,
    Sequence,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.records import dataclass

_DECODERS = (
    "PIL.Image.open",
    "cv2.imread",
    "cv2.imdecode",
    "imageio.imread",
    "skimage.io.imread",
    "torchvision.io.",
    "torchvision.datasets.folder.default_loader",
    "torchvision.datasets.folder.pil_loader",
    "torchaudio.load",
    "librosa.load",
    "soundfile.read",
    "scipy.io.wavfile.read",
    "decord.",
    "av.open",
    "tifffile.imread",
    "pydicom.dcmread",
    "nibabel.load",
)
_READERS = (
    "builtins.open",
    "numpy.load",
    "torch.load",
    "h5py.File",
    "pandas.read_",
    "json.load",
    "pickle.load",
    "lmdb.",
    "scipy.io.loadmat",
    "pathlib.Path.read",
    "gzip.open",
)
_OPENED = frozenset(
    words(
        """
        builtins.open io.open lmdb.open lmdb.Environment h5py.File sqlite3.connect zipfile.ZipFile tarfile.open
        tables.open_file netCDF4.Dataset cv2.VideoCapture decord.VideoReader av.open mmap.mmap gzip.open gzip.GzipFile
        bz2.open bz2.BZ2File lzma.open lzma.LZMAFile
        """
    )
)
"""What gives an open file or database, which another process can neither be sent nor safely share."""

_GENERATORS = words(
    """
    random.Random numpy.random.default_rng numpy.random.Generator numpy.random.RandomState torch.Generator
    """
)
"""What gives a random generator with a state of its own, of which every worker has a copy."""

_RANDOM = (
    "random.", "numpy.random.", "torch.rand", "torch.bernoulli", "torch.multinomial", "torch.normal", "albumentations.",
    "imgaug.",
)  # fmt: skip
_RANDOM_TRANSFORMS = (
    "Random", "ColorJitter", "AutoAugment", "TrivialAugment", "RandAugment", "AugMix", "GaussianBlur",
    "ElasticTransform", "ScaleJitter", "MixUp", "CutMix", "Jitter", "SpecAugment", "TimeMasking", "FrequencyMasking",
)  # fmt: skip
_BY_ROWS = {f"torch.{name}" for name in ("randn", "rand", "zeros", "ones", "empty", "randint_like")}
_IN_MEMORY = {"MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "CIFAR10", "CIFAR100", "SVHN", "STL10", "USPS"}
_WRAPPERS = {
    "torch.utils.data.Subset",
    "torch.utils.data.ConcatDataset",
    "torch.utils.data.ChainDataset",
    "torch.utils.data.random_split",
}
_ORDER = ("read", "decode", "tokenize", "transform", "numpy", "compute")
_CONVERSIONS = words(
    """
    tensor from_numpy as_tensor asarray stack float long int double half bool clone to type astype
    copy item str len list tuple dict range FloatTensor LongTensor Tensor unsqueeze squeeze permute
    transpose view reshape clone detach size dim numel min max randint rand randn random uniform choice randrange
    """
)


@dataclass(eq=False)
class Work:
    """What was seen in the code that makes one item."""

    analysis: Analysis
    kinds: set[str] = field(default_factory=set)
    random: bool = False
    on_device: bool = False
    worker_aware: bool = False
    unpicklable: str | None = None
    generator: str | None = None
    seen: set[int] = field(default_factory=set)
    globals: set[tuple[ModuleFile, str]] = field(default_factory=set)


_LENGTHS: dict[str, dict[object, int]] = {"torch_geometric.datasets.PPI": {"train": 20, "val": 2, "test": 2}}
"""How many graphs the splits of a published dataset hold, where they are a handful."""


def dataset_of(analysis: Analysis, value: Value | None) -> Dataset:
    """The dataset that a loader is given."""
    found = [_dataset(analysis, member) for member in members(value)]
    if not found:
        return Dataset("unknown")
    first = found[0]
    for other in found[1:]:
        first = Dataset(
            first.kind if first.kind == other.kind else "unknown",
            first.site,
            first.qualname if first.qualname == other.qualname else None,
            first.on_device or other.on_device,
            first.random or other.random,
            first.worker_aware and other.worker_aware,
            _ordered({*first.work, *other.work}),
            first.length if first.length == other.length else None,
            first.unpicklable or other.unpicklable,
            first.stateful or other.stateful,
            first.generator or other.generator,
        )
    return first


def _ordered(kinds: set[str]) -> tuple[str, ...]:
    return tuple(kind for kind in _ORDER if kind in kinds)


def _dataset(analysis: Analysis, value: Value, depth: int = 4) -> Dataset:
    if isinstance(value, Made) and depth:
        return _made(analysis, value, depth)
    if isinstance(value, Instance):
        return _instance(analysis, value)
    if isinstance(value, Tensor):
        return Dataset("tensors", on_device=value.device in ("cuda", "conditional"))
    if isinstance(value, Sequence):
        inside = [each for each in flatten(value) if not isinstance(each, (Sequence, Mapping))]
        tensors = [each for each in inside if isinstance(each, Tensor)]
        length = len(value.items) if value.items is not None else None
        kind = "tensors" if tensors else "map"
        site = analysis.facts.origin_site(value.origin)
        return Dataset(
            kind,  # type: ignore[arg-type]
            site,
            on_device=any(each.device in ("cuda", "conditional") for each in tensors),
            length=length,
        )
    return Dataset("unknown")


def _made(analysis: Analysis, value: Made, depth: int) -> Dataset:
    site = analysis.facts.origin_site(value.origin)
    passed = [each.value for each in value.arguments.positions]
    if value.qualname == "torch.utils.data.TensorDataset":
        tensors = [each for one in passed for each in flatten(one) if isinstance(each, Tensor)]
        return Dataset("tensors", site, value.qualname, any(each.device in ("cuda", "conditional") for each in tensors))
    if value.qualname in _WRAPPERS:
        inner = value.inner or (passed[0] if passed else None)
        found = [
            _dataset(analysis, each, depth - 1)
            for each in flatten(inner, 1)
            if not isinstance(each, Sequence) or value.qualname != "torch.utils.data.ConcatDataset"
        ]
        if found:
            kinds = {each.kind for each in found}
            return replace(
                found[0],
                site=site,
                kind=found[0].kind if len(kinds) == 1 else "unknown",
                on_device=any(each.on_device for each in found),
                random=any(each.random for each in found),
                worker_aware=all(each.worker_aware for each in found),
                work=_ordered({kind for each in found for kind in each.work}),
                length=None,
                unpicklable=next((each.unpicklable for each in found if each.unpicklable), None),
                stateful=next((each.stateful for each in found if each.stateful), None),
                generator=next((each.generator for each in found if each.generator), None),
            )
        return Dataset("unknown", site, value.qualname)
    if value.kind != "dataset":
        return Dataset("unknown", site, value.qualname)
    work = Work(analysis)
    name = value.qualname.rpartition(".")[2]
    iterable = "Iterable" in name
    streaming = value.arguments.keywords.get("streaming")
    if streaming is not None and settled(streaming.value) is True:
        iterable = True
    if value.qualname.startswith(("torchvision.datasets.", "torchaudio.datasets.")):
        if name not in _IN_MEMORY and name != "FakeData":
            work.kinds |= {"read", "decode"}
        for keyword in ("transform", "transforms", "target_transform"):
            given = value.arguments.keywords.get(keyword)
            if given is not None:
                _transform(work, given.value)
        for one in passed:
            if any(isinstance(each, Made) and each.kind == "transform" for each in members(one)):
                _transform(work, one)
    if value.qualname.startswith("torch_geometric."):
        for keyword in ("transform", "pre_transform"):
            given = value.arguments.keywords.get(keyword)
            _transform(work, given.value if given is not None else None)
    length = None
    if name == "FakeData":
        size = value.arguments.get("size", 0)
        count = settled(size.value) if size is not None else 1000
        length = count if isinstance(count, int) else None
    if value.qualname in _LENGTHS:
        split = value.arguments.get("split", 1)
        length = _LENGTHS[value.qualname].get(settled(split.value) if split is not None else "train")
    return Dataset(
        "iterable" if iterable else "map",
        site,
        value.qualname,
        work.on_device,
        work.random,
        False,
        _ordered(work.kinds),
        length,
        work.unpicklable,
        generator=work.generator,
    )


# --- datasets of the project --------------------------------------------------------------------------------------


def _instance(analysis: Analysis, value: Instance) -> Dataset:
    site = analysis.facts.origin_site(value.origin)
    cls = value.cls
    bases = cls.externals()
    get_item = _function(cls.find("__getitem__")) or _function(cls.find("__getitems__"))
    iterate = _function(cls.find("__iter__"))
    iterable = any(base.endswith("IterableDataset") for base in bases) or (get_item is None and iterate is not None)
    work = Work(analysis)
    for external in (value.base,):
        if external is not None and external.kind == "dataset":
            inner = _made(analysis, external, 2)
            work.kinds |= set(inner.work)
            work.random |= inner.random
            work.generator = inner.generator
    for base in bases:
        if base.startswith("torchvision.datasets.") and base.rpartition(".")[2] not in _IN_MEMORY:
            work.kinds |= {"read", "decode"}
    for function in (get_item, iterate if iterable else None):
        if function is not None:
            _scan(work, function, value, 5)
    tensors = [each for held in value.attributes.values() for each in flatten(held, 2) if isinstance(each, Tensor)]
    if any(each.device in ("cuda", "conditional") for each in tensors):
        work.on_device = True
    for name, held in sorted(value.attributes.items()):
        for each in flatten(held, 1):
            if isinstance(each, Function) and isinstance(each.node, ast.Lambda):
                work.unpicklable = work.unpicklable or f"its attribute {name} is a lambda"
            elif (opened := (isinstance(each, Opaque) and _opened(value, each)) or _open(each)) is not None:
                work.unpicklable = work.unpicklable or f"its attribute {name} holds what {opened} opened"
    if isinstance(analysis.facts.places.scope(cls.node, cls.module), FUNCTIONS):
        work.unpicklable = work.unpicklable or f"its class {cls.node.name} is defined inside a function"
    if get_item is not None and _keeps(get_item):
        work.kinds.clear()  # workers would keep items of their own, and forget them
    kind = "iterable" if iterable else "map" if get_item is not None or bases else "unknown"
    if kind == "map" and not work.kinds and not work.random and get_item is not None and _only_indexes(get_item, value):
        kind = "tensors"
    return Dataset(
        kind,  # type: ignore[arg-type]
        site,
        cls.node.name,
        work.on_device,
        work.random,
        work.worker_aware,
        _ordered(work.kinds),
        _length(analysis, value),
        work.unpicklable,
        _stateful(analysis, value) or changed_globals(analysis, work.globals),
        None if work.worker_aware else work.generator,  # who asks which worker it is may need the same draws in all
    )


def _keeps(function: Function) -> bool:
    """Whether a function remembers what it has given: by ``@lru_cache``, or in a dict of somebody else's."""
    decorators = getattr(function.node, "decorator_list", ())
    named = (dotted(each.func if isinstance(each, ast.Call) else each) or "" for each in decorators)
    if any(name.rpartition(".")[2] in ("cache", "lru_cache") for name in named):
        return True
    own = {each.id for each in walk(function.node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return any(
        isinstance(each, ast.Subscript)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id not in own
        for each in walk(function.node)
    )


def _open(held: Value, depth: int = 3) -> str | None:
    """What opened a file or database that is held, itself or by an object of the project that is held."""
    if isinstance(held, Opaque) and held.name.startswith("pathlib.Path().open()"):
        return "pathlib.Path.open"
    if not isinstance(held, Instance) or not depth:
        return None
    for each in (inner for one in held.attributes.values() for inner in flatten(one, 1)):
        found = _opened(held, each) if isinstance(each, Opaque) else None
        if (found := found or _open(each, depth - 1)) is not None:
            return found
    return None


def _opened(instance: Instance, held: Opaque) -> str | None:
    """What opened a file or database that the object has from its ``__init__`` on; None for anything else."""
    init = _function(instance.cls.find("__init__"))
    call = held.origin.node if held.origin is not None else None
    if init is None or not isinstance(call, ast.Call) or not any(node is call for node in walk(init.node)):
        return None
    called = callee(dotted(call.func) or "", init, instance)
    return next((each.qualname for each in called if isinstance(each, External) and each.qualname in _OPENED), None)


def _stateful(analysis: Analysis, instance: Instance) -> str | None:
    """Why a copy of the dataset in a worker would go stale; None where nothing was seen."""
    methods = {
        member.name: member
        for base in instance.cls.mro()
        if isinstance(base, Class)
        for member in base.names.values()
        if isinstance(member, Function) and not isinstance(member.node, ast.Lambda)
    }
    writing = {name: _written_to_self(method) for name, method in methods.items() if name != "__init__"}
    for name in ("__getitem__", "__getitems__", "__iter__"):
        for called in [name, *_own_calls(methods.get(name))]:
            if writing.get(called):
                return f"its {called} writes to self.{writing[called]}"
    for node, module in analysis.facts.changes_in_loops():
        if isinstance(node, ast.Attribute):
            if _names(analysis, node.value, instance, module):
                line = _line(analysis, node, module, instance)
                return f"its attribute {node.attr} is set on {line} while the program trains"
        elif isinstance(node.func, ast.Attribute):
            changing = writing.get(node.func.attr) is not None
            if changing and _names(analysis, node.func.value, instance, module):
                line = _line(analysis, node, module, instance)
                return f"{node.func.attr}() changes it on {line} while the program trains"
    return changed_while_training(analysis, instance, {name for name, written in writing.items() if written})


def _line(analysis: Analysis, node: ast.expr, module: ModuleFile, instance: Instance) -> str:
    """A line, with the name of its file where that is not the one that builds the dataset."""
    built = instance.origin.module if instance.origin is not None else None
    return f"line {node.lineno}" + ("" if module is built else f" of {module.path.name}")


def _written_to_self(method: Function) -> str | None:
    """The first attribute of its own object that a method writes, or whose content it writes."""
    own = parameters(method.node)
    for statement in body_of(method.node):
        for name, _ in stores(statement):
            head, _, attribute = name.partition(".")
            if own and head == own[0].arg and attribute:
                return attribute
    return None


def _own_calls(method: Function | None) -> list[str]:
    """The methods of its own object that a method calls."""
    if method is None:
        return []
    names = [dotted(node.func) or "" for node in walk(method.node) if isinstance(node, ast.Call)]
    return [name[5:] for name in names if name.startswith("self.")]


def _names(analysis: Analysis, node: ast.expr, instance: Instance, module: ModuleFile) -> bool:
    """Whether a name (or ``loader.dataset``) somewhere in the program stands for this very object."""
    if isinstance(node, ast.Attribute) and node.attr == "dataset":
        return True
    if not isinstance(node, ast.Name):
        return False
    function = analysis.facts.places.scope(node, module)
    is_method = isinstance(analysis.facts.places.parent(function, module), ast.ClassDef)
    if is_method and any(each.arg == node.id for each in parameters(function)[:1]):
        return False  # a method's own object: what a method writes counts where it is called
    scopes = [module.scope, *analysis.execution.scopes.values()]
    return any(instance is member for scope in scopes for member in members(scope.names.get(node.id)))


def _function(value: Value | None) -> Function | None:
    for member in members(value):
        if isinstance(member, Function):
            return member
        if isinstance(member, Bound):
            return member.function
    return None


def _only_indexes(function: Function, instance: Instance) -> bool:
    """Whether ``__getitem__`` only picks from tensors that the object holds."""
    picked = False
    for node in walk(function.node):
        if isinstance(node, ast.Call):
            return False
        if isinstance(node, ast.Subscript):
            name = dotted(node.value)
            if name is None or not name.startswith("self."):
                return False
            held = instance.attributes.get(name.partition(".")[2])
            if not members(held) or not all(isinstance(each, Tensor) for each in members(held)):
                return False
            picked = True
    return picked


def _length(analysis: Analysis, instance: Instance) -> int | None:
    """What ``__len__`` returns, where it is a literal, an attribute that is one, or the length of a known list."""
    function = _function(instance.cls.find("__len__"))
    if function is None or not isinstance(function.node, ast.FunctionDef):
        return None
    last = function.node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None or len(function.node.body) > 2:
        return None
    node = last.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        held = _attribute_value(instance, node.args[0])
        if isinstance(held, Sequence) and held.items is not None:
            return len(held.items)
        built = _built_length(analysis, instance, dotted(node.args[0]))
        return built if built is not None else _given_length(analysis, instance, dotted(node.args[0]) or "")
    found = settled(_attribute_value(instance, node))
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _built_length(analysis: Analysis, instance: Instance, text: str | None) -> int | None:
    """The length of an attribute that ``__init__`` builds: a comprehension over ``range(n)``, a tensor of n rows."""
    init = _function(instance.cls.find("__init__"))
    if init is None or text is None:
        return None
    writes = analysis.facts.bindings.writes(init.node, text)
    if len(writes) != 1 or not isinstance(writes[0], ast.Assign):
        return None
    name = text.rpartition(".")[2]
    if any(name in _resized(module.tree) for module in analysis.execution.modules.values()):
        return None
    return _length_of(writes[0].value, init, instance)


_RESIZING = frozenset(("append", "clear", "extend", "insert", "pop", "remove"))


@once_per_node
def _resized(tree: ast.Module) -> frozenset[str]:
    """The attributes of a file, by their last name, that a method makes longer or shorter."""
    calls = (each.func for each in by_type(tree).get(ast.Call, ()) if isinstance(each, ast.Call))
    return frozenset(
        func.value.attr
        for func in calls
        if isinstance(func, ast.Attribute) and func.attr in _RESIZING and isinstance(func.value, ast.Attribute)
    )


def _length_of(value: ast.expr, init: Function, instance: Instance) -> int | None:
    size: ast.expr | None = None
    if isinstance(value, ast.ListComp) and len(value.generators) == 1 and not value.generators[0].ifs:
        iterated = value.generators[0].iter
        if isinstance(iterated, ast.Call) and dotted(iterated.func) == "range" and len(iterated.args) == 1:
            size = iterated.args[0]
    elif isinstance(value, ast.Call) and (dotted(value.func) or "") in _BY_ROWS and value.args:
        size = value.args[0]
    elif isinstance(value, (ast.List, ast.Tuple)):
        return len(value.elts) if not any(isinstance(each, ast.Starred) for each in value.elts) else None
    if isinstance(size, ast.Tuple) and size.elts:
        size = size.elts[0]
    if isinstance(size, ast.Constant):
        return size.value if isinstance(size.value, int) else None
    if isinstance(size, ast.Name) and instance.arguments is not None:
        names = [each.arg for each in parameters(init.node)][1:]
        if size.id in names:
            passed = instance.arguments.get(size.id, names.index(size.id))
            found = settled(passed.value) if passed is not None and not isinstance(passed.value, Option) else None
            return found if isinstance(found, int) else None
    return None


def _given_length(analysis: Analysis, instance: Instance, attribute: str) -> int | None:
    """The length of a list that a dataset is given and keeps: ``self.pairs = pairs`` in its ``__init__``."""
    init = _function(instance.cls.find("__init__"))
    call = instance.origin.node if instance.origin is not None else None
    if init is None or not isinstance(call, ast.Call) or instance.origin is None:
        return None
    kept = [
        node.value
        for node in walk(init.node)
        if isinstance(node, ast.Assign) and [dotted(target) for target in node.targets] == [attribute]
    ]
    names = [each.arg for each in parameters(init.node)][1:]
    if len(kept) != 1 or not isinstance(kept[0], ast.Name) or kept[0].id not in names:
        return None
    position = names.index(kept[0].id)
    given = [each.value for each in call.keywords if each.arg == kept[0].id]
    if position < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args):
        given = [call.args[position]]
    return length_of(analysis, given[0], instance.origin.module) if given else None


def _attribute_value(instance: Instance, node: ast.expr) -> Value | None:
    if isinstance(node, ast.Constant):
        return Const(node.value)
    name = dotted(node)
    if name is None or not name.startswith("self.") or name.count(".") != 1:
        return None
    return instance.attributes.get(name[5:])


def _scan(work: Work, function: Function, instance: Instance | None, depth: int) -> None:
    """Note what a function of the project does for an item, through the functions and methods that it calls."""
    if depth < 0 or id(function.node) in work.seen:
        return
    work.seen.add(id(function.node))
    work.generator = work.generator or _drawn_from(function, instance)
    work.globals |= _globals(function)
    for node in walk(function.node):
        if isinstance(node, ast.Call):
            _scan_call(work, node, function, instance, depth)
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in _CONVERSIONS:
                work.kinds.add("compute")
        elif isinstance(node, (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            work.kinds.add("compute")


def _globals(function: Function) -> set[tuple[ModuleFile, str]]:
    """The values of its file that a function reads."""
    names = [each for each in walk(function.node) if isinstance(each, ast.Name)]
    local = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    local |= {each.arg for each in walk(function.node) if isinstance(each, ast.arg)}
    known = function.module.scope.names
    return {
        (function.module, each.id)
        for each in names
        if each.id not in local
        and each.id in known
        and not all(isinstance(value, (Class, Function, External)) for value in members(known[each.id]))
    }


def _drawn_from(function: Function, instance: Instance | None) -> str | None:
    """The generator, kept from item to item, that a function uses; None where it has none, or seeds it for each item.

    What a function makes itself is not kept.
    """
    own = parameters(function.node)
    receiver = own[0].arg if own and instance is not None and function.cls is not None else None
    local = {each.arg for each in own}
    local |= {each.id for each in walk(function.node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    seeded: set[str] = set()
    for statement in body_of(function.node):
        call = statement.value if isinstance(statement, ast.Expr) else None
        func = call.func if isinstance(call, ast.Call) and call.args else None
        if isinstance(func, ast.Attribute) and func.attr in ("seed", "manual_seed"):
            seeded.add(dotted(func.value) or "")
    for node in walk(function.node):
        held: Value | None = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == receiver:
            held = instance.attributes.get(node.attr) if instance is not None else None
        elif isinstance(node, ast.Name) and node.id not in local:
            held = function.module.scope.names.get(node.id)
        if held is not None and any(_is_generator(each) for each in members(held)):
            name = dotted(node)
            if name not in seeded:
                return name
    return None


def _is_generator(value: Value) -> bool:
    if isinstance(value, Opaque):
        if value.name.endswith(".manual_seed()") and value.source is not None:
            return any(_is_generator(each) for each in members(value.source))
        return value.how == "call" and value.source is None and value.name.removesuffix("()") in _GENERATORS
    return isinstance(value, Made) and value.qualname in _GENERATORS


def _scan_call(work: Work, node: ast.Call, function: Function, instance: Instance | None, depth: int) -> None:
    name = dotted(node.func)
    if isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method == "cuda" or (method == "to" and node.args and not _names_dtype(node.args[0])):
            work.on_device = True
        encodes = method == "encode" and not _names_codec(node.args)
        if encodes or method in ("tokenize", "encode_plus", "batch_encode_plus", "batch_encode"):
            work.kinds.add("tokenize")
    if name is None:
        return
    for member in callee(name, function, instance):
        if isinstance(member, External):
            seeded = any(keyword.arg == "generator" for keyword in node.keywords)
            if not (seeded and member.qualname.startswith("torch.")):
                _note(member.qualname, work)
        elif isinstance(member, Function):
            _scan(work, member, instance, depth - 1)
        elif isinstance(member, Bound):
            receiver = member.receiver if isinstance(member.receiver, Instance) else instance
            _scan(work, member.function, receiver, depth - 1)
        elif isinstance(member, (Made, Instance)):
            _transform(work, member)
        elif isinstance(member, (Opaque, Partial)):
            last = name.rpartition(".")[2]
            if "transform" in last or "augment" in last:
                work.kinds.add("transform")
                work.random = True  # nobody can say that it is not
            elif "tokenizer" in last:
                work.kinds.add("tokenize")


def _names_codec(arguments: list[ast.expr]) -> bool:
    """Whether ``encode`` with these arguments makes bytes of a string: ``key.encode()``, ``key.encode("utf-8")``."""
    if not arguments or not isinstance(arguments[0], ast.Constant) or not isinstance(arguments[0].value, str):
        return not arguments
    try:
        codecs.lookup(arguments[0].value)
    except (LookupError, ValueError):
        return False
    return True


def callee(name: str, function: Function, instance: Instance | None) -> Iterator[Value]:
    """What a call in a dataset's code calls."""
    head, *rest = name.split(".")
    own = parameters(function.node)
    value: Value | None
    if instance is not None and function.cls is not None and own and own[0].arg == head:
        if not rest:
            return
        value = instance.attributes.get(rest[0])
        if value is None:
            value = instance.cls.find(rest[0])
        rest = rest[1:]
    else:
        value = function.module.scope.names.get(head)
        if value is None and head == "open":
            value = External("builtins.open")
        if value is None:
            for each in walk(function.node):
                if isinstance(each, (ast.Import, ast.ImportFrom)):
                    for alias in each.names:
                        if (alias.asname or alias.name.partition(".")[0]) == head:
                            prefix = f"{each.module}." if isinstance(each, ast.ImportFrom) and each.module else ""
                            value = External(prefix + alias.name)
    for part in rest:
        found = [attribute(member, part) for member in members(value)]
        value = next((each for each in found if each is not None), None)
        if isinstance(value, (Opaque,)):
            break
    yield from members(value)


def _note(qualname: str, work: Work) -> None:
    if qualname.startswith(_DECODERS):
        work.kinds |= {"read", "decode"}
    elif qualname.startswith(_READERS):
        work.kinds.add("read")
    elif qualname.startswith(_RANDOM):
        work.random = True
    elif qualname.startswith(("torchvision.transforms", "cv2.", "skimage.", "scipy.")):
        work.kinds.add("transform")
    elif qualname.startswith("numpy."):
        work.kinds.add("numpy")
    elif qualname.endswith("get_worker_info"):
        work.worker_aware = True
    elif qualname.startswith(("transformers.", "tokenizers.", "nltk.", "spacy.")):
        work.kinds.add("tokenize")


def _names_dtype(node: ast.expr) -> bool:
    name = dotted(node) or ""
    return name.startswith("torch.") or name.endswith("dtype")


def _transform(work: Work, value: Value | None, depth: int = 5) -> None:
    """Note what a transform does: torchvision's by name, the project's by its ``__call__`` or ``forward``."""
    for member in flatten(value, 2):
        if isinstance(member, Const) or depth < 0:
            continue
        if isinstance(member, Made):
            if member.kind == "tokenizer":
                work.kinds.add("tokenize")
                continue
            if member.kind in ("transform", "module"):
                work.kinds.add("transform")
            last = member.qualname.rpartition(".")[2]
            if last.startswith(_RANDOM_TRANSFORMS) or member.qualname.startswith(("albumentations.", "imgaug.")):
                work.random = True
            for given in member.arguments.values():
                _transform(work, given, depth - 1)
        elif isinstance(member, Instance):
            work.kinds.add("transform")
            for name in ("__call__", "forward"):
                function = _function(member.cls.find(name))
                if function is not None:
                    _scan(work, function, member, depth - 1)
            for held in member.attributes.values():
                if any(isinstance(each, (Made, Instance)) for each in flatten(held, 1)):
                    _transform(work, held, depth - 1)
        elif isinstance(member, Function):
            work.kinds.add("transform")
            if isinstance(member.node, ast.Lambda):
                work.unpicklable = work.unpicklable or "its transform is a lambda"
            _scan(work, member, None, depth - 1)
        elif isinstance(member, Opaque):
            work.kinds.add("transform")
            work.random = True
            made = walk(member.origin.node) if member.origin is not None else ()
            if any((dotted(each) or "").endswith("ToDevice") for each in made if isinstance(each, ast.expr)):
                work.on_device = True  # PyTorch Geometric's


def collate_on_device(analysis: Analysis, value: Value | None) -> bool:
    """Whether a collate function moves its batch to the GPU, or pins it."""
    for member in members(value):
        function = _function(member)
        if isinstance(member, Instance):
            function = _function(member.cls.find("__call__"))
        if function is None:
            continue
        work = Work(analysis)
        _scan(work, function, member if isinstance(member, Instance) else None, 3)
        pins = any(
            isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "pin_memory"
            for each in walk(function.node)
        )
        if work.on_device or pins:
            return True
    return False
