"""What a loader reads: where its items live, what is done for each, whether that is random, and how many there are."""

from __future__ import annotations

import ast
import codecs
import re
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

from turbofix.dataflow.facts import attribute, attribute_writes_in, settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Mapping,
    Namespace,
    Opaque,
    Partial,
    Sequence,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.library.tables import WEIGHED, words
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every, once_per_node
from turbofix.source.names import body_of, dotted, parameters, stores
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.training.data.lengths import Lengths
from turbofix.training.data.spawned import CHANGING, Read, names_read, set_later
from turbofix.training.model import Dataset

_DECODERS = tuple(
    words(
        """
    PIL.Image.open cv2.imread cv2.imdecode imageio.imread skimage.io.imread torchvision.io.
    torchvision.datasets.folder.default_loader torchvision.datasets.folder.pil_loader torchaudio.load
    librosa.load soundfile.read scipy.io.wavfile.read decord. av.open tifffile.imread pydicom.dcmread
    nibabel.load
    """
    )
)
_READERS = tuple(
    words(
        """
    builtins.open numpy.load torch.load h5py.File pandas.read_ json.load pickle.load lmdb. scipy.io.loadmat
    pathlib.Path.read gzip.open
    """
    )
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
_SPARSE = regex(r"[\w.]*\b(?:to_sparse|sparse_\w+_tensor|sparse\.\w+Tensor|SparseTensor)\b")
"""What makes a sparse tensor."""
GENERATORS = words(
    """
    random.Random numpy.random.default_rng numpy.random.Generator numpy.random.RandomState torch.Generator
    """
)
"""What gives a random generator with a state of its own, of which every worker has a copy."""

_RANDOM = (
    "random.", "numpy.random.", "torch.rand", "torch.bernoulli", "torch.multinomial", "torch.normal", "albumentations.",
    "imgaug.",
)  # fmt: skip
RANDOM_TRANSFORMS = (
    "Rand", "ColorJitter", "AutoAugment", "TrivialAugment", "AugMix", "GaussianBlur",
    "ElasticTransform", "ScaleJitter", "SamplePoints", "FixedPoints", "AddLaplacianEigenvectorPE",
    "MixUp", "CutMix", "Jitter", "SpecAugment", "TimeMasking", "FrequencyMasking",
)  # fmt: skip
IN_MEMORY = {*words("MNIST FashionMNIST KMNIST EMNIST QMNIST CIFAR10 CIFAR100 SVHN STL10 USPS VisionDataset")}
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
    """What was seen in the code that makes one item; where ``reached``, no more than which code that is."""

    analysis: Analysis
    reached: bool = False
    kinds: set[str] = field(default_factory=set)
    random: bool = False
    draws: str | None = None  # what is known to draw random numbers
    on_device: bool = False
    worker_aware: bool = False
    unpicklable: str | None = None
    shared: str | None = None
    generator: str | None = None
    doubt: str | None = None
    sparse: str | None = None
    seen: dict[int, Function] = field(default_factory=dict)
    globals: set[Read] = field(default_factory=set)
    classes: list[Class] = field(default_factory=list)
    archives: set[str] = field(default_factory=set)  # attributes of which an item is taken by its name
    _called: dict[tuple[str, int, int], tuple[Value, ...]] = field(default_factory=dict)

    def callee(self, name: str, function: Function, instance: Instance | None) -> tuple[Value, ...]:
        """What a call by a name calls (``callee``), looked up once: most names are called more than once."""
        key = name, id(function), id(instance)
        found = self._called.get(key)
        if found is None:
            found = self._called[key] = tuple(callee(name, function, instance))
        return found


_DIGITS = "train", {True: 60_000, False: 10_000}, 28 * 28
_COLOURS = "train", {True: 50_000, False: 10_000}, 32 * 32
_VIEWS = {"train": 5_000, "test": 8_000, "unlabeled": 100_000, "train+unlabeled": 105_000}
_FACES = {"train": 162_770, "valid": 19_867, "test": 19_962, "all": 202_599}

PUBLISHED: dict[str, tuple[str, dict[Any, int], int]] = {
    **{f"torchvision.datasets.{name}": _DIGITS for name in ("MNIST", "FashionMNIST", "KMNIST")},
    **{f"torchvision.datasets.{name}": _COLOURS for name in ("CIFAR10", "CIFAR100")},
    "torchvision.datasets.USPS": ("train", {True: 7_291, False: 2_007}, 16 * 16),
    "torchvision.datasets.SVHN": ("split", {"train": 73_257, "test": 26_032, "extra": 531_131}, 32 * 32),
    "torchvision.datasets.STL10": ("split", _VIEWS, 96 * 96),
    "torchvision.datasets.CelebA": ("split", _FACES, 178 * 218),
    "torchvision.datasets.Food101": ("split", {"train": 75_750, "test": 25_250}, 0),
    "torchvision.datasets.ImageNet": ("split", {"train": 1_281_167, "val": 50_000}, 0),
    "torch_geometric.datasets.PPI": ("split", {"train": 20, "val": 2, "test": 2}, 0),
}
"""How many samples the parts of a published data set have: by the parameter behind the folder, whose default comes
first; and the pixels of its pictures, where they are all alike."""


def dataset_of(analysis: Analysis, *values: Value | None) -> Dataset:
    """The dataset that a loader is given, by any of several values."""
    given = dict.fromkeys(member for value in values for member in members(value))
    found = [_dataset(analysis, member) for member in given]
    if not found:
        return Dataset("unknown", unpicklable=_closure_given(analysis))
    found = [each for each in found if each.kind != "unknown"] or found  # (what is loaded again was saved here before)
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
            first.sparse or other.sparse,
            first.shared or other.shared,
            tuple(dict.fromkeys((*first.later, *other.later))),
            first.table and other.table,
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
        kind = "tensors" if tensors else "map"
        site = analysis.facts.origin_site(value.origin)
        return Dataset(
            kind,  # type: ignore[arg-type]
            site,
            on_device=any(each.device in ("cuda", "conditional") for each in tensors),
        )  # how long it is, the text of the loader's call says: the execution does not follow all that changes a list
    return Dataset("unknown", unpicklable=_closure_given(analysis))


def _made(analysis: Analysis, value: Made, depth: int) -> Dataset:
    site = analysis.facts.origin_site(value.origin)
    passed = [each.value for each in value.arguments.positions]
    if value.qualname == "torch.utils.data.TensorDataset":
        tensors = [each for one in passed for each in flatten(one) if isinstance(each, Tensor)]
        on_device = any(each.device in ("cuda", "conditional") for each in tensors)
        return Dataset("tensors", site, value.qualname, on_device, length=lengths(analysis).of_data(value))
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
                sparse=next((each.sparse for each in found if each.sparse), None),
                shared=next((each.shared for each in found if each.shared), None),
                later=tuple(dict.fromkeys(later for each in found for later in each.later)),
            )
        return Dataset("unknown", site, value.qualname, unpicklable=_closure_given(analysis))
    if value.kind != "dataset":
        return Dataset("unknown", site, value.qualname, unpicklable=_closure_given(analysis))
    work = Work(analysis)
    name = value.qualname.rpartition(".")[2]
    iterable = "Iterable" in name
    streaming = value.arguments.keywords.get("streaming")
    if streaming is not None and settled(streaming.value) is True:
        iterable = True
    if value.qualname.startswith(("torchvision.datasets.", "torchaudio.datasets.", "medmnist.")):
        if name not in IN_MEMORY and not name.endswith(("MNIST", "FakeData")):
            work.kinds |= {"read", "decode"}
        for keyword in ("transform", "transforms", "target_transform"):
            given = value.arguments.keywords.get(keyword)
            if given is not None:
                _transform(work, given.value)
        for one in passed:
            if any(isinstance(each, Made) and each.kind == "transform" for each in members(one)):
                _transform(work, one)
    if value.qualname.startswith("torch_geometric."):
        given = value.arguments.keywords.get("transform")
        for each in (given.value if given is not None else None, value.attributes.get("transform")):
            _transform(work, each)
    return Dataset(
        "iterable" if iterable else "map",
        site,
        value.qualname,
        work.on_device,
        work.random,
        False,
        _ordered(work.kinds),
        _library_length(value),
        work.unpicklable or (_closure_given(analysis) if value.qualname.startswith("datasets.") else None),
        None,
        work.generator,
        work.sparse,
        _shared_file(work),
        set_later(analysis, work.globals, work.classes) if work.seen else (),
    )


def _closure_given(analysis: Analysis) -> str | None:
    """What of the program's functions ``set_transform`` is given that no spawned worker can be sent."""
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree) if "_transform" in module.text else ():
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("set_transform", "with_transform"):
                continue
            for given in (*call.args, *(each.value for each in call.keywords)):
                inside = analysis.facts.places.scope(call, module)
                local = isinstance(given, ast.Name) and any(
                    isinstance(each, ast.FunctionDef) and each.name == given.id for each in walk(inside)
                )
                if isinstance(given, ast.Lambda) or (local and isinstance(inside, FUNCTIONS)):
                    return f"`{ast.unparse(call.func)}` is given a function that is defined inside of another one"
    return None


def lengths(analysis: Analysis) -> Lengths:
    """What tells how many samples data have."""
    return Lengths(analysis, _library_length)


def _library_length(value: Made) -> int | None:
    """How many samples a library's data set has by its own arguments, or as it was published."""
    return published_length(value) if value.qualname.startswith("torch_geometric.") else None


def published_length(value: Made) -> int | None:
    """How many samples the part of a published data set has that is asked for."""
    parameter, parts, _ = PUBLISHED.get(value.qualname, ("", {}, 0))
    asked = value.arguments.get(parameter, 1)
    return parts.get(settled(asked.value) if asked is not None else next(iter(parts), None))


# --- datasets of the project --------------------------------------------------------------------------------------


def _taken_from(value: Instance, get_item: Function | None) -> Iterator[Value]:
    """The data sets of other classes that an object holds and takes its samples from: ``self.images[index]``."""
    for node in walk(get_item.node) if get_item is not None else ():
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            for each in members(value.attributes.get(node.value.attr)):
                if not (isinstance(each, Instance) and each.cls is value.cls):
                    yield each


def _instance(analysis: Analysis, value: Instance) -> Dataset:
    site = analysis.facts.origin_site(value.origin)
    cls = value.cls
    bases = cls.externals()
    get_item = _function(cls.find("__getitem__")) or _function(cls.find("__getitems__"))
    iterate = _function(cls.find("__iter__"))
    iterable = any(base.endswith("IterableDataset") for base in bases) or (get_item is None and iterate is not None)
    work = Work(analysis)
    for external in (value.base, *_taken_from(value, get_item)):
        if isinstance(external, (Made, Instance)) and (isinstance(external, Instance) or external.kind == "dataset"):
            inner = _dataset(analysis, external, 2)
            work.kinds |= set(inner.work)
            work.random |= inner.random
            work.generator = inner.generator
            work.unpicklable = inner.unpicklable
    for base in bases:
        if base.startswith("torchvision.datasets.") and base.rpartition(".")[2] not in IN_MEMORY:
            work.kinds |= {"read", "decode"}
    for function in (get_item, iterate if iterable else None):
        if function is not None:
            _scan(work, function, value, 5)
    tensors = [each for held in value.attributes.values() for each in flatten(held, 2) if isinstance(each, Tensor)]
    if any(each.device in ("cuda", "conditional") for each in tensors):
        work.on_device = True
    if any(_has_weights(each) for held in value.attributes.values() for each in flatten(held, 2)):
        work.doubt = work.doubt or "it holds a network, whose results no worker can send with their graph"
    work.classes += [each for each in cls.mro() if isinstance(each, Class)]
    work.on_device = work.on_device or any(_keeps_on_gpu(each) for each in work.classes)
    work.unpicklable = _held_back(work, value) or work.unpicklable
    if isinstance(analysis.facts.places.scope(cls.node, cls.module), FUNCTIONS):
        work.unpicklable = work.unpicklable or f"its class {cls.node.name} is defined inside a function"
    if get_item is not None and (keeps(get_item.node) or _may_have_made_them(get_item.node, cls)):
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
        lengths(analysis).of_data(value),
        work.unpicklable,
        _stateful(analysis, value) or work.doubt,
        None if work.worker_aware else work.generator,  # who asks which worker it is may need the same draws in all
        work.sparse,
        _shared_file(work),
        set_later(analysis, work.globals, work.classes),
        kind == "map" and get_item is not None and _cuts_from_table(analysis, get_item, value),
    )


def making(analysis: Analysis, function: Function, instance: Instance | None) -> Work:
    """What a function of the project does to make an item."""
    work = Work(analysis)
    _scan(work, function, instance, 5)
    return work


def changes_later(analysis: Analysis, instance: Instance) -> str | None:
    """What changes a dataset between its items."""
    cls = instance.cls
    _, writing = analysis.once(("writes to itself", id(cls)), lambda: _writing(cls))
    return _changed_elsewhere(analysis, instance, writing)


def held_data(analysis: Analysis, instance: Instance) -> Dataset | None:
    """A library's dataset that an object of the project is, or that it takes its items from."""
    held = (each for value in instance.attributes.values() for each in flatten(value, 1))
    for each in (instance.base, *held):
        if isinstance(each, Made) and each.kind == "dataset":
            return _made(analysis, each, 2)
    return None


def _cuts_from_table(analysis: Analysis, get_item: Function, instance: Instance) -> bool:
    """Whether an object reads tables or arrays as a whole when it is made, and its items are cut out of them."""
    if any(isinstance(each, (ast.For, ast.While)) for each in _telling(get_item.node)):
        return False
    if not all(_only_computes(node, get_item, instance) for node, _ in calls_in(get_item.node)):
        return False
    init = _function(instance.cls.find("__init__"))
    work = Work(analysis, reached=True)
    if init is not None:
        _scan(work, init, instance, 4)
    reads = False
    for function in work.seen.values():
        for node, name in calls_in(function.node):
            if name is not None:
                called = {each.qualname for each in work.callee(name, function, instance) if isinstance(each, External)}
                if "numpy.memmap" in called or any(each.arg == "mmap_mode" for each in node.keywords):
                    return False
                reads = reads or any(each.startswith(_TABLES) for each in called)
    return reads


_TABLES = ("pandas.read_", "numpy.load", "numpy.genfromtxt")
_COMPUTING = ("numpy.", "torch.")
_OF_NUMBERS = words("len max min range abs int float round sum tuple list")


def _only_computes(call: ast.Call, function: Function, instance: Instance) -> bool:
    """Whether a call is one of numpy's or torch's, none of which reads a file, or one of Python's own of numbers."""
    name = dotted(call.func)
    if isinstance(call.func, ast.Name) and name in _OF_NUMBERS:
        return True
    called = list(callee(name, function, instance)) if name is not None else []
    if called:
        return all(
            isinstance(each, External) and each.qualname.startswith(_COMPUTING) and "load" not in each.qualname
            for each in called
        )
    return isinstance(call.func, ast.Attribute) and call.func.attr in _CONVERSIONS


def _held_back(work: Work, instance: Instance) -> str | None:
    """What an object holds that cannot be sent to a spawned worker; what forked ones must not share is noted."""
    found = None
    for name, held in sorted(instance.attributes.items()):
        for each in flatten(held, 1):
            if isinstance(each, Function) and isinstance(each.node, ast.Lambda):
                found = found or f"its attribute {name} is a lambda"
            named = name in work.archives
            opened = (isinstance(each, Opaque) and _opened(instance, each, named)) or _open(each)
            if opened:
                work.shared = work.shared or f"its attribute {name} holds what {opened} opened"
    return found


def _shared_file(work: Work) -> str | None:
    """An open file that samples are read from, of an object or a module: forked workers share its offset."""
    if work.shared is not None:
        return work.shared
    for module, name, part in sorted(work.globals, key=lambda each: (str(each[0].path), each[1], str(each[2]))):
        for each in members(module.scope.names.get(name)):
            if not isinstance(each, Opaque) or each.how != "call" or each.source is not None or each.origin is None:
                continue
            called = each.name.removesuffix("()")
            call = each.origin.node
            if called in _OPENED or (called == "numpy.load" and (_is_archive(call) or _is_member(part))):
                return f"its samples are read from the global {name}, which {called} opened"
    return None


def _is_archive(call: ast.AST) -> bool:
    """Whether the path that a call is given ends in ``.npz``: what ``numpy.load`` gives then is an open file."""
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(given, ast.JoinedStr) and given.values:
        given = given.values[-1]
    texts = [each.value for each in walk(given) if isinstance(each, ast.Constant)] if given is not None else []
    return any(isinstance(each, str) and each.endswith(".npz") for each in texts)


def _is_member(part: object) -> bool:
    """Whether what is taken of something by this key or attribute is told by its name, as in an archive."""
    return isinstance(part, str) and not part.startswith(("shape", "dtype", "size", "T", "ndim"))


def _has_weights(value: Value) -> bool:
    """Whether it is a layer with weights, or a module of the project."""
    if isinstance(value, Instance):
        return "torch.nn.Module" in value.cls.externals()
    return isinstance(value, Made) and value.kind != "tokenizer" and WEIGHED.match(value.qualname) is not None


@once_per_node
def keeps(function: ast.AST) -> bool:
    """Whether a function remembers what it has given: by ``@lru_cache`` or the like, or in a dict of others."""
    decorators = getattr(function, "decorator_list", ())
    named = (dotted(each.func if isinstance(each, ast.Call) else each) or "" for each in decorators)
    if any(re.search("cache|memo|remember", name) is not None for name in named):
        return True
    given = {each.arg for each in parameters(function)}  # (what is given is changed in place, unless it is so called)
    own = _set_in(function) | {each for each in given if re.search("cache|memo", each) is None}
    return any(
        isinstance(each, ast.Subscript)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id not in own
        for each in walk(function)
    )


def _may_have_made_them(function: ast.AST, cls: Class) -> bool:
    """Whether a flag that another method sets says that items are ready: ``if self.is_cut: return self.items[i]``."""
    flags = {
        dotted(each.test)
        for each in walk(function)
        if isinstance(each, ast.If) and isinstance(each.body[0], ast.Return) and not calls_in(each.body[0])
    }
    methods = [each for each in cls.node.body if isinstance(each, FUNCTIONS) and each.name != "__init__"]
    written = (each for method in methods for each in walk(method) if isinstance(each, ast.Attribute))
    return any(isinstance(each.ctx, ast.Store) and dotted(each) in flags for each in written)


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


def _opened(instance: Instance, held: Opaque, named: bool = False) -> str | None:
    """What opened a file or database that the object has from its ``__init__`` on; None for anything else.

    ``named``: its items are taken by their names. What ``numpy.load`` gives is an archive then, and reads them anew.
    """
    init = _function(instance.cls.find("__init__"))
    call = held.origin.node if held.origin is not None else None
    if init is None or not isinstance(call, ast.Call) or call not in _below(init.node):
        return None
    for each in callee(dotted(call.func) or "", init, instance):
        if isinstance(each, External) and each.qualname in _OPENED:
            return each.qualname
        if isinstance(each, External) and each.qualname == "numpy.load" and (named or _is_archive(call)):
            return each.qualname if held.how == "call" else None
    return None


def _stateful(analysis: Analysis, instance: Instance) -> str | None:
    """Why a copy of the dataset in a worker would go stale; None where nothing was seen."""
    cls = instance.cls
    itself, writing = analysis.once(("writes to itself", id(cls)), lambda: _writing(cls))
    return itself or _changed_elsewhere(analysis, instance, writing)


def _changed_elsewhere(analysis: Analysis, instance: Instance, writing: dict[str, str | None]) -> str | None:
    cls = instance.cls
    for node, module in analysis.once(("changes in loops", id(cls)), lambda: _changing(analysis, writing)):
        if isinstance(node, ast.Attribute):
            if _names(analysis, node.value, instance, module):
                line = _line(node, module, instance)
                return f"its attribute {node.attr} is set on {line} while the program trains"
        elif isinstance(node.func, ast.Attribute) and _names(analysis, node.func.value, instance, module):
            line = _line(node, module, instance)
            return f"{node.func.attr}() changes it on {line} while the program trains"
    return analysis.once(("set by name", id(cls)), lambda: _set_by_name(analysis, frozenset(instance.attributes)))


def _set_by_name(analysis: Analysis, names: frozenset[str]) -> str | None:
    """Where something sets attributes of such names that are not its own, or loops change what they hold."""
    found = [
        (each, module)
        for module in analysis.execution.modules.values()
        for name in sorted(names & attribute_writes_in(module.tree).keys())
        for write, _ in attribute_writes_in(module.tree)[name]
        for each in walk(write)
        if isinstance(each, ast.Attribute) and each.attr == name and not isinstance(each.ctx, ast.Load)
    ]
    for node, module in analysis.facts.changes_in_loops():
        held = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if isinstance(held, ast.Attribute) and held.attr in names and node.func.attr in CHANGING:  # type: ignore[union-attr]
            found.append((held, module))
    for target, module in found:
        if not _is_another(analysis, target.value, module):
            return f"`{ast.unparse(target)}` is changed on line {target.lineno} of {module.path.name}"
    return None


def _is_another(analysis: Analysis, node: ast.expr, module: ModuleFile) -> bool:
    """Whether what an attribute is set of is no data set: a method's own object, a weight, options."""
    loops = (each for each in analysis.facts.places.ancestors(node, module) if isinstance(each, ast.For))
    if any("parameters(" in ast.unparse(each.iter) for each in loops):
        return True
    if not isinstance(node, ast.Name):
        return False
    scopes = (module.scope, *analysis.execution.scopes.values())
    held = [each for scope in scopes for each in members(scope.names.get(node.id))]
    data = [isinstance(each, Instance) and each.cls.find("__getitem__") is not None for each in held]
    known = all(isinstance(each, (Namespace, Instance)) for each in held)
    return node.id == "self" or (bool(held) and known and not any(data))


def _changing(analysis: Analysis, writing: dict[str, str | None]) -> list[tuple[ast.Call | ast.Attribute, ModuleFile]]:
    """What may change an object in some loop: attributes that are set, and calls of methods that write to it."""
    return [
        (node, module)
        for node, module in analysis.facts.changes_in_loops()
        if isinstance(node, ast.Attribute)
        or (isinstance(node.func, ast.Attribute) and writing.get(node.func.attr) is not None)
    ]


def _writing(cls: Class) -> tuple[str | None, dict[str, str | None]]:
    """How an object of a class changes itself as it gives items, and the attribute that each of its methods writes."""
    methods = {
        member.name: member
        for base in cls.mro()
        if isinstance(base, Class)
        for member in base.names.values()
        if isinstance(member, Function) and not isinstance(member.node, ast.Lambda)
    }
    writing = {name: _written_to_self(method) for name, method in methods.items() if name != "__init__"}
    for name in ("__getitem__", "__getitems__", "__iter__"):
        for called in [name, *_own_calls(methods.get(name))]:
            if writing.get(called):
                return f"its {called} writes to self.{writing[called]}", writing
    return None, writing


def _line(node: ast.expr, module: ModuleFile, instance: Instance) -> str:
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
    return [name[5:] for _, name in calls_in(method.node) if name is not None and name.startswith("self.")]


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
    name = node.id
    return any(
        instance is each for each in analysis.once(("named", name, id(module)), lambda: _named(analysis, name, module))
    )


def _named(analysis: Analysis, name: str, module: ModuleFile) -> list[Instance]:
    """The objects of the project's classes that a name stands for in a file's top level, or in any call."""
    scopes = [module.scope, *analysis.execution.scopes.values()]
    held = (each for scope in scopes for each in members(scope.names.get(name)))
    return list(dict.fromkeys(each for each in held if isinstance(each, Instance)))


def _function(value: Value | None) -> Function | None:
    for member in members(value):
        if isinstance(member, Function):
            return member
        if isinstance(member, Bound):
            return member.function
    return None


def _only_indexes(function: Function, instance: Instance) -> bool:
    """Whether ``__getitem__`` only picks from tensors that the object holds."""
    if calls_in(function.node):
        return False
    picked = False
    for node in walk(function.node):
        if isinstance(node, ast.Subscript):
            name = dotted(node.value)
            if name is None or not name.startswith("self."):
                return False
            held = instance.attributes.get(name.partition(".")[2])
            if not members(held) or not all(isinstance(each, Tensor) for each in members(held)):
                return False
            picked = True
    return picked


def _scan(work: Work, function: Function, instance: Instance | None, depth: int) -> None:
    """Note what a function of the project does for an item, through the functions and methods that it calls."""
    if depth < 0 or id(function.node) in work.seen:
        return
    work.seen[id(function.node)] = function
    if work.reached:
        for call, called in calls_in(function.node):
            _scan_call(work, call, called, function, instance, depth)
        return
    work.generator = work.generator or _drawn_from(work, function, instance)
    work.globals |= names_read(function)
    if not work.doubt and _asks_for_gradients(function.node):
        work.doubt = f"its {getattr(function.node, 'name', 'samples')} asks for gradients, which no worker can send"
    work.sparse = work.sparse or _makes_sparse(work, function, instance)
    receiver = _own_object(function, instance)
    for node in _telling(function.node):
        if isinstance(node, ast.Subscript):
            head, _, rest = (dotted(node.value) or "").partition(".")
            if head == receiver:
                work.archives.add(rest.partition(".")[0])
        elif isinstance(node, ast.Call):
            _scan_call(work, node, dotted(node.func), function, instance, depth)
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in _CONVERSIONS:
                work.kinds.add("compute")
        else:
            work.kinds.add("compute")


# What of a function's text matters here is looked for once: there may be hundreds of objects of one class.


@once_per_node
def _telling(function: ast.AST) -> tuple[ast.AST, ...]:
    """What of a function tells how an item is made, in the order of ``walk``: calls, loops, items taken by a name, rows
    of tables."""
    return tuple(
        each
        for each in walk(function)
        if isinstance(each, (ast.Call, *_LOOPING))
        or (isinstance(each, ast.Attribute) and each.attr in _ROWS)
        or (isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant) and _is_member(each.slice.value))
    )


@once_per_node
def _asks_for_gradients(function: ast.AST) -> bool:
    """Whether a function says anything of ``requires_grad``."""
    said = (getattr(each, "attr", None) or getattr(each, "arg", None) or "" for each in walk(function))
    return any(each.startswith("requires_grad") for each in said)


_ROWS = ("iloc", "loc", "iat", "at")
"""Attributes of tables whose rows are looked up one by one, which takes longer than many a call."""
_LOOPING = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@once_per_node
def calls_in(function: ast.AST) -> tuple[tuple[ast.Call, str | None], ...]:
    """The calls in a function, in the order of ``walk``, with the dotted name of what each calls."""
    return tuple((each, dotted(each.func)) for each in walk(function) if isinstance(each, ast.Call))


@once_per_node
def _attributes_in(function: ast.AST) -> tuple[ast.Attribute, ...]:
    """The attributes of its first parameter that a function reads or sets, in the order of ``walk``."""
    first = next((each.arg for each in parameters(function)), None)
    return tuple(
        each
        for each in walk(function)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == first
    )


@once_per_node
def _set_in(function: ast.AST) -> frozenset[str]:
    """The names that a function sets."""
    names = (each for each in walk(function) if isinstance(each, ast.Name))
    return frozenset(each.id for each in names if isinstance(each.ctx, ast.Store))


@once_per_node
def _below(function: ast.AST) -> frozenset[ast.AST]:
    """All nodes of a function."""
    return frozenset(walk(function))


def _own_object(function: Function, instance: Instance | None) -> str | None:
    """What a method calls its own object."""
    own = parameters(function.node)
    return own[0].arg if own and instance is not None and function.cls is not None else None


def _makes_sparse(work: Work, function: Function, instance: Instance | None) -> str | None:
    """What makes a sparse tensor in a function, or in the class of its object; not where one is made dense there."""
    own = instance.cls if instance is not None and _own_object(function, instance) is not None else function
    text = work.analysis.facts.places.text(own.node, own.module) if "parse" in own.module.text else ""
    found = _SPARSE.search(text)
    return f"`{found[0]}`" if found is not None and ".to_dense(" not in text else None


def _drawn_from(work: Work, function: Function, instance: Instance | None) -> str | None:
    """The generator, kept from item to item, that a function uses; None where it has none, or seeds it for each item.

    What a function makes itself is not kept.
    """
    for default in _called_defaults(function.node):
        made = work.callee(dotted(default.func) or "", function, instance)
        if any(isinstance(each, External) and each.qualname in GENERATORS for each in made):
            return ast.unparse(default)  # made once, where the function is defined
    receiver = _own_object(function, instance)
    for name, attribute_of_first in _taken_by(function.node):
        held: Value | None = None
        if not attribute_of_first:
            held = function.module.scope.names.get(name)
        elif receiver is not None and instance is not None:
            held = instance.attributes.get(name.partition(".")[2])
        if (
            held is not None
            and any(_is_generator(each) for each in members(held))
            and name not in _seeded(function.node)
        ):
            return name
    return None


@once_per_node
def _called_defaults(function: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[ast.Call, ...]:
    """The defaults of a function that are calls."""
    defaults = (*function.args.defaults, *function.args.kw_defaults)
    return tuple(each for each in defaults if isinstance(each, ast.Call))


@once_per_node
def _seeded(function: ast.AST) -> frozenset[str]:
    """The names of the generators that a function seeds, whatever else it does."""
    found: set[str] = set()
    for statement in body_of(function):
        call = statement.value if isinstance(statement, ast.Expr) else None
        func = call.func if isinstance(call, ast.Call) and call.args else None
        if isinstance(func, ast.Attribute) and func.attr in ("seed", "manual_seed"):
            found.add(dotted(func.value) or "")
    return frozenset(found)


@once_per_node
def _taken_by(function: ast.AST) -> tuple[tuple[str, bool], ...]:
    """The names that a function takes from outside, and (``True``) the attributes of its first parameter, once each in
    the order of ``walk``."""
    own = frozenset(_attributes_in(function))
    local = {each.arg for each in parameters(function)} | _set_in(function)
    found: dict[tuple[str, bool], None] = {}
    for each in walk(function):
        if each in own:
            found[dotted(each) or "", True] = None
        elif isinstance(each, ast.Name) and each.id not in local:
            found[each.id, False] = None
    return tuple(found)


def _is_generator(value: Value) -> bool:
    if isinstance(value, Opaque):
        if value.name.endswith(".manual_seed()") and value.source is not None:
            return any(_is_generator(each) for each in members(value.source))
        return value.how == "call" and value.source is None and value.name.removesuffix("()") in GENERATORS
    return isinstance(value, Made) and value.qualname in GENERATORS


def _scan_call(  # noqa: PLR0913
    work: Work, node: ast.Call, name: str | None, function: Function, instance: Instance | None, depth: int
) -> None:
    if isinstance(node.func, ast.Attribute):
        method = node.func.attr
        work.on_device = work.on_device or _goes_to_gpu(node, function)
        encodes = method == "encode" and not _names_codec(node.args)
        if encodes or method in ("tokenize", "encode_plus", "batch_encode_plus", "batch_encode"):
            work.kinds.add("tokenize")
    of_many = node.func if isinstance(node.func, ast.Subscript) else None  # ``self.steps[i](picture)``
    name = dotted(of_many.value) if of_many is not None else name
    if name is None:
        return
    for member in work.callee(name, function, instance):
        if of_many is not None:
            _transform(work, member)
        elif isinstance(member, External):
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
        elif isinstance(member, Class):  # made for each item, to be called: ``for change in [Cut(), Turn()]: ...``
            called = member.find("__call__")
            if isinstance(called, Function):
                _scan(work, called, None, depth - 1)
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
        scope = function.scope
        value = scope.names.get(head)
        while value is None and scope.parent is not None:  # around a class that a function defines
            scope = scope.parent
            value = scope.names.get(head)
        if value is None and head == "open":
            value = External("builtins.open")
        if value is None and head in (imported := _imported_in(function.node)):
            value = External(imported[head])
    for part in rest:
        found = [
            member.find(part) if isinstance(member, Class) else attribute(member, part) for member in members(value)
        ]
        value = next((each for each in found if each is not None), None)
        if isinstance(value, (Opaque,)):
            break
    yield from members(value)


@once_per_node
def _imported_in(function: ast.AST) -> dict[str, str]:
    """The names that a function itself imports, with what they stand for."""
    found: dict[str, str] = {}
    for each in walk(function):
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            prefix = f"{each.module}." if isinstance(each, ast.ImportFrom) and each.module else ""
            for alias in each.names:
                found[alias.asname or alias.name.partition(".")[0]] = prefix + alias.name
    return found


def _note(qualname: str, work: Work) -> None:
    if qualname.startswith(_DECODERS):
        work.kinds |= {"read", "decode"}
    elif qualname.startswith(_READERS):
        work.kinds.add("read")
    elif qualname.startswith(_RANDOM):
        work.random, work.draws = True, work.draws or qualname
    elif qualname.startswith(("torchvision.transforms", "cv2.", "skimage.", "scipy.")):
        work.kinds.add("transform")
    elif qualname.startswith("numpy."):
        work.kinds.add("numpy")
    elif qualname.endswith("get_worker_info"):
        work.worker_aware = True
    elif qualname.startswith(("transformers.", "tokenizers.", "nltk.", "spacy.")):
        work.kinds.add("tokenize")


def _goes_to_gpu(call: ast.expr, function: Function) -> bool:
    """Whether a call brings something to the GPU, as far as its text says."""
    method = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    given = call.args if isinstance(call, ast.Call) else []
    return method == "cuda" or (method == "to" and bool(given) and not _stays(given[0], function))


def _keeps_on_gpu(cls: Class) -> bool:
    """Whether an object keeps what its class brings or loads to the GPU: ``self.x = [each.cuda() for each in xs]``."""
    loading = [word for each in walk(cls.node) if isinstance(each, ast.Call) for word in each.keywords]
    if any(each.arg == "map_location" and "cpu" not in ast.unparse(each.value) for each in loading):
        return True
    for function in (each for each in cls.names.values() if isinstance(each, Function)):
        for each in walk(function.node):
            if isinstance(each, ast.Assign) and any((dotted(one) or "").startswith("self.") for one in each.targets):
                kept: ast.expr = each.value.elt if isinstance(each.value, ast.ListComp) else each.value
                while isinstance(kept, ast.Call) and isinstance(kept.func, ast.Attribute):
                    if _goes_to_gpu(kept, function):
                        return True
                    kept = kept.func.value if kept.func.attr not in ("cpu", "numpy", "tolist") else kept.func
    return False


def _stays(node: ast.expr, function: Function) -> bool:
    """Whether ``x.to(...)`` only changes a type, or goes where another tensor is: ``x.to(wave.device)``."""
    if isinstance(node, ast.Constant):
        return node.value == "cpu"
    name = dotted(node) or ""
    for each in walk(function.node):
        if isinstance(each, ast.Assign) and name in map(dotted, each.targets):
            name = dotted(each.value) or ""
    beside = name.endswith(".device") and not name.startswith("self.")
    return name.startswith("torch.") or name.endswith("dtype") or beside


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
            if last.startswith(RANDOM_TRANSFORMS) or member.qualname.startswith(
                ("albumentations.", "imgaug.", "timm.")
            ):
                work.random, work.draws = True, work.draws or member.qualname
            work.on_device = work.on_device or last == "ToDevice"  # PyTorch Geometric's
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
        elif isinstance(member, Partial):
            _partial(work, member, depth - 1)
        elif isinstance(member, Opaque):
            work.kinds.add("transform")
            work.random = True


def _partial(work: Work, value: Partial, depth: int) -> Function | None:
    """Note what a function does of which some arguments are given already; a generator among them is kept, too."""
    for name, given in (*enumerate(value.arguments.positions), *value.arguments.keywords.items()):
        if any(_is_generator(each) for each in members(given.value)):
            work.generator = work.generator or (ast.unparse(given.node) if given.node is not None else str(name))
    function = _function(value.function)
    if function is not None:
        _scan(work, function, None, depth)
    return function


def collating(analysis: Analysis, value: Value | None) -> Dataset | None:
    """What a collate function of the project does, as far as a worker is concerned; None where there is none."""
    work = Work(analysis)
    pins = False
    for member in members(value):
        held = member if isinstance(member, Instance) else None
        function = _function(member.cls.find("__call__") if isinstance(member, Instance) else member)
        if isinstance(member, Bound) and isinstance(member.receiver, Instance):
            held = member.receiver
        if isinstance(member, Partial):
            function = _partial(work, member, 3)
        elif function is not None:
            _scan(work, function, held, 3)
        if held is not None and function is not None:
            work.classes += [each for each in held.cls.mro() if isinstance(each, Class)]
            work.unpicklable = _held_back(work, held) or work.unpicklable
            inside = (each for value in held.attributes.values() for each in members(value))
            if any(isinstance(each, Made) and each.kind == "accelerator" for each in inside):
                work.unpicklable = (
                    "its collate_fn belongs to what holds an Accelerator, with the models that it wrapped"
                )
        pins = pins or (function is not None and _pins(function))
    if not work.seen:
        return None
    return Dataset(
        "map",
        on_device=work.on_device or pins,
        unpicklable=work.unpicklable,
        sparse=work.sparse,
        shared=_shared_file(work),
        stateful=work.doubt,
        generator=None if work.worker_aware else work.generator,
        later=set_later(analysis, work.globals, work.classes),
    )


def _pins(function: Function) -> bool:
    """Whether a function pins memory itself."""
    calls = (each.func for each in walk(function.node) if isinstance(each, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr == "pin_memory" for each in calls)
