"""What is done to make one item of a data set, or a batch: read in the text of the functions that do it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import field

from turbofix.dataflow.facts import attribute
from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Opaque,
    Partial,
    Value,
    flatten,
    members,
)
from turbofix.library.tables import words
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import once_per_node
from turbofix.source.names import dotted, loads, parameters
from turbofix.source.nodes import walk

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
OPENED = frozenset(
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
RANDOM_TRANSFORMS = (
    "Rand", "ColorJitter", "AutoAugment", "TrivialAugment", "AugMix", "GaussianBlur",
    "ElasticTransform", "ScaleJitter", "SamplePoints", "FixedPoints", "AddLaplacianEigenvectorPE",
    "MixUp", "CutMix", "Jitter", "SpecAugment", "TimeMasking", "FrequencyMasking",
)  # fmt: skip
_CONVERSIONS = words(
    """
    tensor from_numpy as_tensor asarray stack float long int double half bool clone to type astype
    copy item str len list tuple dict range FloatTensor LongTensor Tensor unsqueeze squeeze permute
    transpose view reshape clone detach size dim numel min max randint rand randn random uniform choice randrange
    """
)


_ROWS = ("iloc", "loc", "iat", "at")
"""Attributes of tables whose rows are looked up one by one, which takes longer than many a call."""
_LOOPING = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class Work:
    """What was seen in the code that makes one item."""

    analysis: Analysis
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
    _called: dict[tuple[str, int, int], tuple[Value, ...]] = field(default_factory=dict)

    def callee(self, name: str, function: Function, instance: Instance | None) -> tuple[Value, ...]:
        """What a call by a name calls (``callee``), looked up once: most names are called more than once."""
        key = name, id(function), id(instance)
        found = self._called.get(key)
        if found is None:
            found = self._called[key] = tuple(callee(name, function, instance))
        return found


def making(analysis: Analysis, function: Function, instance: Instance | None) -> Work:
    """What a function of the project does to make an item."""
    work = Work(analysis)
    scan(work, function, instance, 5)
    return work


def function_of(value: Value | None) -> Function | None:
    """The function of the project that a value is, or calls for an object."""
    found = (each.function if isinstance(each, Bound) else each for each in members(value))
    return next((each for each in found if isinstance(each, Function)), None)


def scan(work: Work, function: Function, instance: Instance | None, depth: int) -> None:
    """Note what a function of the project does for an item, through the functions and methods that it calls."""
    if depth < 0 or id(function.node) in work.seen:
        return
    work.seen[id(function.node)] = function
    _note_kept(work, function, instance)
    whole = instance.cls if instance is not None and function.cls is not None else function
    text = work.analysis.facts.places.text(whole.node, whole.module)
    if (sparse := _SPARSE.search(text)) is not None and ".to_dense(" not in text:
        work.sparse = work.sparse or f"`{sparse[0]}`"
    for node in _telling(function.node):
        if isinstance(node, ast.Call):
            _scan_call(work, node, dotted(node.func), function, instance, depth)
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in _CONVERSIONS:
                work.kinds.add("compute")
        else:
            work.kinds.add("compute")


@once_per_node
def _telling(function: ast.AST) -> tuple[ast.AST, ...]:
    """What of a function tells how an item is made, in the order of ``walk``: calls, loops, rows of tables."""
    return tuple(
        each
        for each in walk(function)
        if isinstance(each, (ast.Call, *_LOOPING)) or (isinstance(each, ast.Attribute) and each.attr in _ROWS)
    )


@once_per_node
def calls_in(function: ast.AST) -> tuple[tuple[ast.Call, str | None], ...]:
    """The calls in a function, in the order of ``walk``, with the dotted name of what each calls."""
    return tuple((each, dotted(each.func)) for each in walk(function) if isinstance(each, ast.Call))


@once_per_node
def _read(function: ast.AST) -> frozenset[str]:
    """The names, and attributes of its own object, that a function reads and does not set."""
    set_here = {each.id for each in walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    set_here |= {each.arg for each in parameters(function)[0:]}
    first = next((each.arg for each in parameters(function)), "")
    read = {dotted(each) or "" for each in loads(function)}
    return frozenset(
        name if not name.startswith(f"{first}.") else ".".join(name.split(".")[:2])
        for name in read
        if name.startswith(f"{first}.") or name.partition(".")[0] not in set_here
    )


def _note_kept(work: Work, function: Function, instance: Instance | None) -> None:
    """Note what a function reads that is kept from item to item: a generator that it does not seed, an open file."""
    own = next((each.arg for each in parameters(function.node)), "")
    for name in sorted(_read(function.node)):
        mine = name.startswith(f"{own}.")
        head = name.partition(".")[0]
        held = instance.attributes.get(name[len(own) + 1 :]) if mine and instance is not None else None
        for each in members(held if mine else function.module.scope.names.get(head)):
            if _is_generator(each):
                seeded = rf"\b{re.escape(name if mine else head)}\.(?:manual_)?seed\("
                if re.search(seeded, work.analysis.facts.places.text(function.node, function.module)) is None:
                    work.generator = work.generator or (name if mine else head)
            elif not mine and isinstance(each, Opaque) and each.how == "call" and each.source is None:
                called = each.name.removesuffix("()")
                if called in OPENED and each.origin is not None:
                    work.shared = work.shared or f"its samples are read from the global {head}, which {called} opened"


def _is_generator(value: Value) -> bool:
    if isinstance(value, Opaque):
        return value.how == "call" and value.name.removesuffix(".manual_seed()").removesuffix("()") in _GENERATORS
    return isinstance(value, Made) and value.qualname in _GENERATORS


def _scan_call(  # noqa: PLR0913
    work: Work, node: ast.Call, name: str | None, function: Function, instance: Instance | None, depth: int
) -> None:
    if isinstance(node.func, ast.Attribute):
        method = node.func.attr
        work.on_device = work.on_device or _goes_to_gpu(node, function)
        encodes = method == "encode" and bool(node.args) and not isinstance(node.args[0], ast.Constant)
        if encodes or method in ("tokenize", "encode_plus", "batch_encode_plus", "batch_encode"):
            work.kinds.add("tokenize")
    of_many = node.func if isinstance(node.func, ast.Subscript) else None  # ``self.steps[i](picture)``
    name = dotted(of_many.value) if of_many is not None else name
    if name is None:
        return
    for member in work.callee(name, function, instance):
        if of_many is not None:
            note_transform(work, member)
        elif isinstance(member, External):
            seeded = any(keyword.arg == "generator" for keyword in node.keywords)
            if not (seeded and member.qualname.startswith("torch.")):
                _note(member.qualname, work)
        elif isinstance(member, Function):
            scan(work, member, instance, depth - 1)
        elif isinstance(member, Bound):
            receiver = member.receiver if isinstance(member.receiver, Instance) else instance
            scan(work, member.function, receiver, depth - 1)
        elif isinstance(member, (Made, Instance)):
            note_transform(work, member)
        elif isinstance(member, Class):  # made for each item, to be called: ``for change in [Cut(), Turn()]: ...``
            called = member.find("__call__")
            if isinstance(called, Function):
                scan(work, called, None, depth - 1)
        elif isinstance(member, (Opaque, Partial)):
            last = name.rpartition(".")[2]
            if "transform" in last or "augment" in last:
                work.kinds.add("transform")
                work.random = True  # nobody can say that it is not
            elif "tokenizer" in last:
                work.kinds.add("tokenize")


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


def _goes_to_gpu(call: ast.Call, function: Function) -> bool:
    """Whether a call brings something to the GPU, as far as its text says: not where only a type is changed, nor to
    where another tensor is (``x.to(wave.device)``)."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else None
    if method != "to" or not call.args:
        return method == "cuda"
    name = dotted(call.args[0]) or getattr(call.args[0], "value", "")
    sets = [each for each in walk(function.node) if isinstance(each, ast.Assign) and name in map(dotted, each.targets)]
    name = (dotted(sets[-1].value) or "") if sets else name
    beside = str(name).endswith(".device") and not str(name).startswith("self.")
    return not (str(name).startswith(("torch.", "cpu")) or str(name).endswith("dtype") or beside)


def note_transform(work: Work, value: Value | None, depth: int = 5) -> None:
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
                note_transform(work, given, depth - 1)
        elif isinstance(member, Instance):
            work.kinds.add("transform")
            for name in ("__call__", "forward"):
                function = function_of(member.cls.find(name))
                if function is not None:
                    scan(work, function, member, depth - 1)
            for held in member.attributes.values():
                if any(isinstance(each, (Made, Instance)) for each in flatten(held, 1)):
                    note_transform(work, held, depth - 1)
        elif isinstance(member, Function):
            work.kinds.add("transform")
            if isinstance(member.node, ast.Lambda):
                work.unpicklable = work.unpicklable or "its transform is a lambda"
            scan(work, member, None, depth - 1)
        elif isinstance(member, Partial):
            partial(work, member, depth - 1)
        elif isinstance(member, Opaque):
            work.kinds.add("transform")
            work.random = True


def partial(work: Work, value: Partial, depth: int) -> Function | None:
    """Note what a function does of which some arguments are given already; a generator among them is kept, too."""
    for given in (*value.arguments.positions, *value.arguments.keywords.values()):
        if any(_is_generator(each) for each in members(given.value)):
            work.generator = work.generator or (ast.unparse(given.node) if given.node is not None else "given to it")
    function = function_of(value.function)
    if function is not None:
        scan(work, function, None, depth)
    return function
