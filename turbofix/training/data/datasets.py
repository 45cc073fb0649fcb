"""What a loader reads: where its items live, what is done for each, whether that is random, and how many there are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.facts import settled
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import (
    Bound,
    Class,
    External,
    Function,
    Instance,
    Made,
    Mapping,
    Opaque,
    Partial,
    Sequence,
    Tensor,
    Value,
    flatten,
    members,
)
from turbofix.library.tables import WEIGHED, words
from turbofix.regex import regex
from turbofix.source.names import body_of, dotted, parameters, stores
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.training.data.items import (
    OPENED,
    Work,
    callee,
    calls_in,
    function_of,
    making,
    note_transform,
    partial,
    scan,
)
from turbofix.training.data.lengths import length
from turbofix.training.model import Dataset

IN_MEMORY = {*words("MNIST FashionMNIST KMNIST EMNIST QMNIST CIFAR10 CIFAR100 SVHN STL10 USPS VisionDataset")}
_WRAPPERS = {
    "torch.utils.data.Subset",
    "torch.utils.data.ConcatDataset",
    "torch.utils.data.ChainDataset",
    "torch.utils.data.random_split",
}
_ORDER = ("read", "decode", "tokenize", "transform", "numpy", "compute")
_ON_GPU = ("cuda", "conditional")
_TO_GPU = regex(r"\.cuda\(|\.to\((?:self\.)?device\)|map_location=(?![^,)]*cpu)")
"""What a class has in its text that keeps or loads what its items are made of on a GPU."""


def dataset_of(analysis: Analysis, *values: Value | None) -> Dataset:
    """The dataset that a loader is given, by any of several values."""
    given = dict.fromkeys(member for value in values for member in members(value))
    return _joined([_dataset(analysis, member) for member in given])


def _joined(all_of_them: list[Dataset]) -> Dataset:
    """One dataset that may be any of several: what holds of one may hold of it."""
    found = [each for each in all_of_them if each.kind != "unknown"] or all_of_them
    if not found:
        return Dataset("unknown")
    first = found[0]
    said = {
        name: next((told for each in found if (told := getattr(each, name)) is not None), None)
        for name in ("unpicklable", "stateful", "generator", "sparse", "shared")
    }
    return replace(
        first,
        kind=first.kind if all(each.kind == first.kind for each in found) else "unknown",
        qualname=first.qualname if all(each.qualname == first.qualname for each in found) else None,
        on_device=any(each.on_device for each in found),
        random=any(each.random for each in found),
        worker_aware=all(each.worker_aware for each in found),
        work=_ordered({kind for each in found for kind in each.work}),
        length=first.length if all(each.length == first.length for each in found) else None,
        table=all(each.table for each in found),
        **said,
    )


def _ordered(kinds: set[str]) -> tuple[str, ...]:
    return tuple(kind for kind in _ORDER if kind in kinds)


def _dataset(analysis: Analysis, value: Value, depth: int = 4) -> Dataset:
    if isinstance(value, Made) and depth:
        return _made(analysis, value, depth)
    if isinstance(value, Instance):
        return _instance(analysis, value)
    if isinstance(value, Tensor):
        return Dataset("tensors", on_device=value.device in _ON_GPU)
    if isinstance(value, Sequence):
        inside = [each for each in flatten(value) if not isinstance(each, (Sequence, Mapping))]
        tensors = [each for each in inside if isinstance(each, Tensor)]
        on_device, site = any(each.device in _ON_GPU for each in tensors), analysis.facts.origin_site(value.origin)
        return Dataset("tensors" if tensors else "map", site, on_device=on_device, length=length(analysis, value))
    return Dataset("unknown")


def _made(analysis: Analysis, value: Made, depth: int) -> Dataset:
    site = analysis.facts.origin_site(value.origin)
    passed = [each.value for each in value.arguments.positions]
    if value.qualname == "torch.utils.data.TensorDataset":
        tensors = [each for one in passed for each in flatten(one) if isinstance(each, Tensor)]
        on_device = any(each.device in _ON_GPU for each in tensors)
        return Dataset("tensors", site, value.qualname, on_device, length=length(analysis, value))
    if value.qualname in _WRAPPERS:
        inner = value.inner or (passed[0] if passed else None)
        several = value.qualname == "torch.utils.data.ConcatDataset"
        given = [each for each in flatten(inner, 1) if not (several and isinstance(each, Sequence))]
        return replace(_joined([_dataset(analysis, each, depth - 1) for each in given]), site=site, length=None)
    if value.kind != "dataset":
        return Dataset("unknown", site, value.qualname)
    work = Work(analysis)
    name = value.qualname.rpartition(".")[2]
    streaming = value.arguments.keywords.get("streaming")
    streams = streaming is not None and settled(streaming.value) is True
    transforms = [value.arguments.keywords.get(each) for each in ("transform", "transforms", "target_transform")]
    if value.qualname.startswith(("torchvision.datasets.", "torchaudio.datasets.", "medmnist.")):
        if name not in IN_MEMORY and not name.endswith(("MNIST", "FakeData")):
            work.kinds |= {"read", "decode"}
        for one in passed:
            if any(isinstance(each, Made) and each.kind == "transform" for each in members(one)):
                note_transform(work, one)
        for each in transforms:
            note_transform(work, each.value if each is not None else None)
    elif value.qualname.startswith("torch_geometric."):
        note_transform(work, transforms[0].value if transforms[0] is not None else None)
        note_transform(work, value.attributes.get("transform"))
    return Dataset(
        "iterable" if "Iterable" in name or streams else "map",
        site,
        value.qualname,
        on_device=work.on_device,
        random=work.random,
        work=_ordered(work.kinds),
        length=length(analysis, value),
        unpicklable=work.unpicklable,
        generator=work.generator,
        sparse=work.sparse,
        shared=work.shared,
    )


# --- datasets of the project --------------------------------------------------------------------------------------


def _taken_from(value: Instance, get_item: Function | None) -> Iterator[Value]:
    """The data sets of other classes that an object holds and takes its samples from: ``self.images[index]``."""
    for node in walk(get_item.node) if get_item is not None else ():
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            for each in members(value.attributes.get(node.value.attr)):
                if not (isinstance(each, Instance) and each.cls is value.cls):
                    yield each


def _instance(analysis: Analysis, value: Instance) -> Dataset:
    cls = value.cls
    bases = cls.externals()
    get_item = function_of(cls.find("__getitem__")) or function_of(cls.find("__getitems__"))
    iterate = function_of(cls.find("__iter__"))
    iterable = any(base.endswith("IterableDataset") for base in bases) or (get_item is None and iterate is not None)
    work = Work(analysis)
    for external in (value.base, *_taken_from(value, get_item)):
        if isinstance(external, Instance) or (isinstance(external, Made) and external.kind == "dataset"):
            inner = _dataset(analysis, external, 2)
            work.kinds |= set(inner.work)
            work.random |= inner.random
            work.generator, work.unpicklable = inner.generator, inner.unpicklable
    for base in bases:
        if base.startswith("torchvision.datasets.") and base.rpartition(".")[2] not in IN_MEMORY:
            work.kinds |= {"read", "decode"}
    for function in (get_item, iterate if iterable else None):
        if function is not None:
            scan(work, function, value, 5)
    held = [each for one in value.attributes.values() for each in flatten(one, 2)]
    work.on_device |= any(isinstance(each, Tensor) and each.device in _ON_GPU for each in held)
    work.on_device |= any(
        _TO_GPU.search(analysis.facts.places.text(each.node, each.module)) is not None
        for each in cls.mro()
        if isinstance(each, Class)
    )
    if any(map(_has_weights, held)):
        work.doubt = "it holds a network, whose results no worker can send with their graph"
    _note_held(work, value)
    if isinstance(analysis.facts.places.scope(cls.node, cls.module), FUNCTIONS):
        work.unpicklable = work.unpicklable or f"its class {cls.node.name} is defined inside a function"
    kind = "iterable" if iterable else "map" if get_item is not None or bases else "unknown"
    if kind == "map" and not work.kinds and not work.random and get_item is not None and _only_indexes(get_item, value):
        kind = "tensors"
    return Dataset(
        kind,  # type: ignore[arg-type]
        analysis.facts.origin_site(value.origin),
        cls.node.name,
        on_device=work.on_device,
        random=work.random,
        worker_aware=work.worker_aware,
        work=_ordered(work.kinds),
        length=length(analysis, value) if not iterable else None,
        unpicklable=work.unpicklable,
        stateful=changes(analysis, value) or work.doubt,
        # who asks which worker it is may need the same draws in all
        generator=None if work.worker_aware else work.generator,
        sparse=work.sparse,
        shared=work.shared,
        table=kind == "map" and work.kinds <= {"compute", "numpy"} and _reads_table(analysis, value),
    )


def held_data(analysis: Analysis, instance: Instance) -> Dataset | None:
    """A library's dataset that an object of the project is, or that it takes its items from."""
    held = (each for value in instance.attributes.values() for each in flatten(value, 1))
    for each in (instance.base, *held):
        if isinstance(each, Made) and each.kind == "dataset":
            return _made(analysis, each, 2)
    return None


_TABLES = regex(r"\b(?:pd|pandas)\.read_|\b(?:np|numpy)\.(?:load|genfromtxt)\(")


def _reads_table(analysis: Analysis, instance: Instance) -> bool:
    """Whether an object reads tables or arrays as a whole when it is made."""
    init = function_of(instance.cls.find("__init__"))
    reads = making(analysis, init, instance).seen.values() if init is not None else ()
    text = "".join(analysis.facts.places.text(each.node, each.module) for each in reads)
    return _TABLES.search(text) is not None and "mmap" not in text


def _note_held(work: Work, instance: Instance, depth: int = 2) -> None:
    """Note what an object holds that no spawned worker can be sent, or that forked ones must not share."""
    init = function_of(instance.cls.find("__init__"))
    for name, held in sorted(instance.attributes.items()):
        for each in flatten(held, 1):
            if isinstance(each, Function) and isinstance(each.node, ast.Lambda):
                work.unpicklable = work.unpicklable or f"its attribute {name} is a lambda"
            if isinstance(each, Instance) and depth:
                _note_held(work, each, depth - 1)
            call = each.origin.node if isinstance(each, Opaque) and each.origin is not None else None
            if init is None or not isinstance(call, ast.Call) or call not in walk(init.node):
                continue
            archive = ("numpy.load",) * bool(call.args and ast.unparse(call.args[0]).strip("'\"").endswith(".npz"))
            called = callee(dotted(call.func) or "", init, instance)
            opened = next((one for one in map(_qualname, called) if one in (*OPENED, *archive)), None)
            if opened is not None:
                work.shared = work.shared or f"its attribute {name} holds what {opened} opened"


def _qualname(value: Value) -> str:
    return value.qualname if isinstance(value, External) else ""


def _has_weights(value: Value) -> bool:
    """Whether it is a layer with weights, or a module of the project."""
    if isinstance(value, Instance):
        return "torch.nn.Module" in value.cls.externals()
    return isinstance(value, Made) and value.kind != "tokenizer" and WEIGHED.match(value.qualname) is not None


def changes(analysis: Analysis, instance: Instance) -> str | None:
    """Why a copy of the dataset in a worker, or kept items of it, would go stale; None where nothing was seen."""
    cls = instance.cls
    itself, writing = analysis.once(("writes to itself", id(cls)), lambda: _writing(cls))
    if itself is not None:
        return itself
    for node, module in analysis.facts.changes_in_loops():
        changed = node.value if isinstance(node, ast.Attribute) else getattr(node.func, "value", None)
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node.func, "attr", "")
        writes = name in instance.attributes if isinstance(node, ast.Attribute) else writing.get(name) is not None
        if not writes or changed is None or not _is(analysis, changed, instance, module):
            continue
        line = f"line {node.lineno}" + ("" if module is instance.origin.module else f" of {module.path.name}")
        if isinstance(node, ast.Attribute):
            return f"its attribute {name} is set on {line} while the program trains"
        return f"{name}() changes it on {line} while the program trains"
    return None


def _is(analysis: Analysis, node: ast.expr, instance: Instance, module: ModuleFile) -> bool:
    """Whether a name (or ``loader.dataset``) somewhere in the program stands for this very object."""
    if isinstance(node, ast.Attribute) and node.attr == "dataset":
        return True
    name = node.id if isinstance(node, ast.Name) and node.id != "self" else None
    scopes = [module.scope, *analysis.execution.scopes.values()] if name is not None else []
    return any(each is instance for scope in scopes for each in members(scope.names.get(name or "")))


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
        own = calls_in(methods[name].node) if name in methods else ()
        for called in [name, *(each[5:] for _, each in own if each is not None and each.startswith("self."))]:
            if writing.get(called):
                return f"its {called} writes to self.{writing[called]}", writing
    return None, writing


def _written_to_self(method: Function) -> str | None:
    """The first attribute of its own object that a method writes, or whose content it writes."""
    own = parameters(method.node)
    for statement in body_of(method.node):
        for name, _ in stores(statement):
            head, _, attribute = name.partition(".")
            if own and head == own[0].arg and attribute:
                return attribute
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


def collating(analysis: Analysis, value: Value | None) -> Dataset | None:
    """What a collate function of the project does, as far as a worker is concerned; None where there is none."""
    work = Work(analysis)
    for member in members(value):
        held = member.receiver if isinstance(member, Bound) else member
        function = function_of(member.cls.find("__call__") if isinstance(member, Instance) else member)
        if isinstance(member, Partial):
            function = partial(work, member, 3)
        elif function is not None:
            scan(work, function, held if isinstance(held, Instance) else None, 3)
        if isinstance(held, Instance) and function is not None:
            _note_held(work, held)
            inside = (each for one in held.attributes.values() for each in members(one))
            if any(isinstance(each, Made) and each.kind == "accelerator" for each in inside):
                work.unpicklable = (
                    "its collate_fn belongs to what holds an Accelerator, with the models that it wrapped"
                )
        calls = calls_in(function.node) if function is not None else ()
        pins = any(getattr(call.func, "attr", "") == "pin_memory" for call, _ in calls)
        work.on_device |= pins
    if not work.seen:
        return None
    return Dataset(
        "map",
        on_device=work.on_device,
        unpicklable=work.unpicklable,
        sparse=work.sparse,
        shared=work.shared,
        generator=None if work.worker_aware else work.generator,
    )
