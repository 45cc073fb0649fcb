"""A training that never reaches a GPU, and what it takes to bring it there: all of its models, batches and reads.

Nothing here is guessed. A program is known to run on a GPU as it runs on the CPU only if every tensor that its steps
meet comes out of a loader that one loop reads, out of a model, or out of these by what torch computes where its input
is. One tensor that is made on the host beside them, and the first step ends with an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from turbofix.findings import Site
from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, kept
from turbofix.program.events import Arguments, Event
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import Frame, argument_for
from turbofix.program.libraries import words
from turbofix.program.loaders import loader_sites
from turbofix.program.model import Batch, Evaluation, Framework, Hazard, Loader, Model, Step, Unplaced
from turbofix.program.names import body_of, dotted, loads, parameters, targets, walk_here
from turbofix.program.objects import models_in
from turbofix.program.sites import COMPREHENSIONS, FUNCTIONS
from turbofix.program.tensors import tensors_in
from turbofix.program.values import (
    Computed,
    Const,
    External,
    Host,
    Instance,
    Iterated,
    Made,
    Mapping,
    Opaque,
    Option,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.records import dataclass

_PLACES = re.compile(r"\b(cuda|gpu|gpus|mps|xpu|xla|npu|device|devices|set_default_\w+|bfloat16)\b", re.IGNORECASE)
"""Words of a program that knows of devices: whoever wrote it has thought of where it runs."""

_ON_PURPOSE = re.compile(
    r"(?<!\.)\bcpu\b|\b(set_num_threads|set_num_interop_threads|OMP_NUM_THREADS|quantiz\w*|ipex)\b", re.IGNORECASE
)
"""Words of a program that is meant for the CPU."""

_HERE = frozenset(("made", "data", "input"))
"""Roles of tensors that the program makes on the host itself."""

_THERE = frozenset(("batch", "output", "loss", "prediction", "param", "grad", "maybe_output"))

_OF_TENSORS = words(
    """
    size shape dim ndim numel view reshape flatten unsqueeze squeeze permute transpose t contiguous expand repeat float
    double long int bool type_as detach requires_grad_ requires_grad argmax argmin eq ne gt lt ge le sum mean std clone
    masked_fill chunk item dtype numpy tolist softmax log_softmax sigmoid clamp exp log matmul mm bmm
    """
)
"""Attributes that tensors have, and neither lists nor strings."""

_OF_TENSORS_ALONE = frozenset(
    (
        "torch.utils.data.TensorDataset",
        *(
            f"torchvision.datasets.{name}"
            for name in words("MNIST FashionMNIST KMNIST EMNIST QMNIST CIFAR10 CIFAR100 SVHN STL10 USPS ImageFolder")
        ),
    )
)
"""Data sets of pictures and numbers, of which a loader makes tensors."""

_PAIR = 2
"""A picture, or what is like one, and its number."""

_NUMBERS = words("size dim numel nelement item tolist __len__ element_size get_device stride")
_SAME_ATTRIBUTES = words("data grad T mT H real imag")
_NUMBER_ATTRIBUTES = words("shape ndim dtype requires_grad is_leaf")

_MAKING = words("tensor as_tensor from_numpy asarray frombuffer Tensor FloatTensor LongTensor IntTensor DoubleTensor")
_HARMLESS_TORCH = words(
    "manual_seed seed initial_seed is_tensor is_grad_enabled set_grad_enabled set_printoptions get_rng_state"
)
_FOR_THE_HOST = words(
    """
    to cuda numpy type pin_memory share_memory_ apply_ map_ new new_tensor is_cuda get_device data_ptr storage
    untyped_storage set_ resize_ random_ normal_ uniform_ bernoulli_ exponential_ record_stream to_sparse __array__
    """
)
"""Methods of tensors that do not do the same there, or draw from another generator."""
_TAKING_ANYTHING = words(
    """
    builtins.len builtins.print builtins.isinstance builtins.enumerate builtins.zip builtins.list builtins.tuple
    builtins.dict builtins.float builtins.int builtins.bool builtins.str builtins.sum builtins.max builtins.min
    builtins.abs builtins.type builtins.round builtins.range builtins.id builtins.iter builtins.next builtins.reversed
    list.append list.extend dict.update dict.get dict.items dict.values dict.keys list.clear copy.deepcopy copy.copy
    """
)
_READS = frozenset(("item", "float", "int", "bool", "tolist", "print", "format", "data", "iterate", "cpu"))
_QUIET = frozenset(
    (
        *("forward", "criterion", "backward", "step", "zero_grad", "clip", "mode", "iterate", "index", "test", "show"),
        *("sum", "enter", "return", "import", "grad_read", "update", "set"),
    )
)
_IN_A_STEP = frozenset(("gradmode", "progress", "transform", "criterion"))
_ELSEWHERE = (
    *("torch.nn.utils.rnn.", "torch.jit.", "torch.onnx.", "torch.ao.", "torch.quantization."),
    *("torch.multiprocessing.", "torch.fx.", "torch.export.", "torch.profiler.", "torch.autograd.profiler."),
)
"""What of torch wants lengths or models on the host, or keeps them."""


class _Unsure(Exception):  # noqa: N818  (an outcome, not an error)
    """What is in the way, in a clause, and where."""

    def __init__(self, node: ast.AST, module: ModuleFile, why: str) -> None:
        super().__init__(why)
        self.node, self.module, self.why = node, module, why


def unplaced(  # noqa: PLR0913
    analysis: Analysis,
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
    loaders: Iterable[Loader],
    models: tuple[Model, ...],
    framework: Framework,
) -> Unplaced | None:
    """What brings a training on the CPU to a GPU; None for one that knows of devices, or that no loop trains."""
    modules = list(analysis.execution.modules.values())
    if framework is not Framework.PYTORCH or not steps or any(map(_knows_of_devices, modules)):
        return None
    reading: tuple[Step | Evaluation, ...] = (*steps, *evaluations)
    called = {site for loop in reading for site in loop.models}
    moved = tuple(sorted(model.site for model in models if model.site in called))
    if not moved or not all(step.models and step.reached and step.device.where == "cpu" for step in steps):
        return None
    search = _Search(analysis, steps, evaluations, {each.site: each for each in loaders}, models, moved)
    try:
        return search.found()
    except _Unsure as unsure:
        return Unplaced(moved, hazard=Hazard(unsure.why, analysis.facts.places.site(unsure.node, unsure.module)))


def _knows_of_devices(module: ModuleFile) -> bool:
    return kept(module.tree, "devices_named", lambda: _PLACES.search(module.text) is not None)


@dataclass(eq=False)
class _Reading:
    """A loop over batches: its node, its file, and the events in it."""

    node: ast.For
    module: ModuleFile
    events: list[Event]
    site: Site
    of_tensors: bool  # all that its loaders give are tensors


class _Search:
    """The search through one program. Raises where something is not certain."""

    def __init__(  # noqa: PLR0913
        self,
        analysis: Analysis,
        steps: tuple[Step, ...],
        evaluations: tuple[Evaluation, ...],
        loaders: dict[Site, Loader],
        models: tuple[Model, ...],
        moved: tuple[Site, ...],
    ) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.steps, self.evaluations, self.loaders, self.moved = steps, evaluations, loaders, moved
        self.models = [model for model in models if model.site in moved]
        self.events = [event for event in self.facts.events if not _is_of_workers(event)]
        self.frames: dict[int, tuple[Frame, ...]] = {}  # by the function
        self.loops: set[int] = set()
        self.asked: set[tuple[int, str]] = set()
        self.inner: set[int] = set()  # the functions that loops call
        self.entered: dict[int, dict[int, tuple[Frame, ...]]] = {}  # by the call, then by the function
        for event in self.events:
            frames = self.facts.frames(event)
            for index, frame in enumerate(frames):
                self.frames.setdefault(id(frame.scope), frames[: index + 1])
                if frame.call is not None:
                    self.entered.setdefault(id(frame.call), {})[id(frame.scope)] = frames[: index + 1]

    def found(self) -> Unplaced:
        """All that moves, and where."""
        self._is_meant_for_the_cpu()
        made = self._constructions()
        loops = [*map(self._reading, self.steps), *map(self._reading, self.evaluations)]
        self._all_is_read_in(loops)
        batches = [self._batch(loop) for loop in loops]
        inside = {id(event) for loop in loops for event in loop.events}
        self.loops = {id(loop.node) for loop in loops}
        for loop in loops:
            for event in loop.events:
                self.inner.update(id(frame.scope) for frame in self.facts.frames_within(event, loop.node)[1:])
        for event in self.events:
            if id(event) in inside:
                self._in_a_loop(event)
            else:
                self._elsewhere(event)
        for loop in loops:
            self._free_names(loop)
        for frames in self.frames.values():
            self._arithmetic(frames)
        for event in self.facts.of("make", "construct"):
            self._parts(event)
        reads = sorted({site for event in self.events for site in self._array(event)})
        return self._placed(made, loops, tuple(batch for batch in batches if batch.names), tuple(reads))

    # --- the program as a whole

    def _is_meant_for_the_cpu(self) -> None:
        for module in self.analysis.execution.modules.values():
            said = _ON_PURPOSE.search(module.text)
            if said is not None:
                line = module.text.count("\n", 0, said.start()) + 1
                place = ast.Pass(lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)
                raise _Unsure(place, module, f"the program speaks of `{said[0]}` itself")
            for write in every(ast.Assign, module.tree):
                self._replaced_part(write, module)
            for attribute in every(ast.Attribute, module.tree) if "hook" in module.text else ():
                if attribute.attr.startswith("register_") and attribute.attr.endswith("hook"):
                    raise _Unsure(attribute, module, f"`{attribute.attr}` hangs code on a tensor or a layer")
            for function in every(ast.Lambda, module.tree):
                self._captured(function, module)
            for cls in every(ast.ClassDef, module.tree):
                if any(_last(dotted(base) or "") == "Function" for base in cls.bases):
                    raise _Unsure(cls, module, f"`{cls.name}` computes in a way of its own")

    def _captured(self, function: ast.Lambda, module: ModuleFile) -> None:
        """Whether a lambda computes with a tensor of the host that stands around it."""
        for name in walk(function.body):
            if not isinstance(name, ast.Name) or not isinstance(name.ctx, ast.Load):
                continue
            owner = self.facts.bindings.owner(name.id, name, module)
            for write in self.facts.bindings.writes(owner, name.id) if owner is not function else ():
                if self._makes_here(getattr(write, "value", None)):
                    raise _Unsure(name, module, f"`{name.id}` is a tensor that is made outside of the loop")

    def _makes_here(self, value: ast.AST | None) -> bool:
        """Whether an expression, a list or a dict perhaps, has a tensor in it that torch makes on the host."""
        return any(
            event.kind == "call"
            and event.name.startswith("torch.")
            and not _last(event.name).endswith("_like")
            and (_last(event.name) in _MAKING or not _passed(event))
            and any(isinstance(each, Tensor) and _is_here(each) for each in members(event.result))
            for node in (walk(value) if value is not None else ())
            if isinstance(node, ast.Call)
            for event in self.facts.at(node)
        )

    def _replaced_part(self, write: ast.Assign, module: ModuleFile) -> None:
        """A part of a model that is set from outside of its class, after it has been moved."""
        for target in (each for given in write.targets for each in targets(given)):
            base = target
            while isinstance(base, ast.Subscript):
                base = base.value
            if not isinstance(base, ast.Attribute):
                continue
            frames = self._frames_at(write, module)
            scope = self.places.scope(write, module)
            own = isinstance(scope, FUNCTIONS) and dotted(base) == f"self.{base.attr}"
            if own or not frames:
                continue
            if base.attr == "data" and getattr(scope, "name", "") != "__init__":
                text = self.places.text(target, module)
                raise _Unsure(write, module, f"`{text}` is given memory of its own")
            value: ast.expr = base.value
            owners = [value]
            while isinstance(value, (ast.Attribute, ast.Subscript)):
                value = value.value
                owners.append(value)
            for owner in owners:
                held = members(self.facts.evaluate(owner, frames))
                if any(_is_module(each) or (isinstance(each, Made) and each.kind == "criterion") for each in held):
                    text = self.places.text(target, module)
                    raise _Unsure(write, module, f"`{text}` is set after the model has been built")

    def _constructions(self) -> list[tuple[ast.Assign, Event]]:
        """The statements that build the models, each one name or attribute by one call, outside of loops."""
        found = []
        for site in self.moved:
            events = [e for e in self.facts.of("make", "construct") if self.facts.site(e) == site]
            if not events:
                raise _Unsure(
                    self.analysis.execution.entry.tree,
                    self.analysis.execution.entry,
                    "where a model is built is not known",
                )
            event = events[0]
            statement = self.places.statement(event.node, event.module)
            if any(self.facts.loops(each) for each in events) or len(events) > 1:
                raise _Unsure(event.node, event.module, "the model is built more than once")
            if (
                not isinstance(statement, ast.Assign)
                or statement.value is not event.node
                or len(statement.targets) != 1
                or dotted(statement.targets[0]) is None
            ):
                raise _Unsure(event.node, event.module, "the model is built in an expression, and named elsewhere")
            found.append((statement, event))
        for model in self.models:
            known = model.layers_complete or all(
                each.startswith(("torch.nn.", "torchvision.models.")) for each in model.layers
            )
            if not known or model.half or model.dtype or model.wrapped or model.compiled:
                statement, event = found[self.moved.index(model.site)]
                raise _Unsure(event.node, event.module, "not every layer of the model is known")
        return found

    def _reading(self, loop: Step | Evaluation) -> _Reading:
        record = next(each for each in self.analysis.execution.loops if self._site_of(each) == loop.loop.site)
        if isinstance(loop, Step) and loop.source != "loader":
            raise _Unsure(record.node, record.module, "its batches do not come out of a `DataLoader`")
        read = [self.loaders.get(site) for site in loop.loaders]
        if not read or not isinstance(record.node, ast.For):
            raise _Unsure(record.node, record.module, "its batches do not come out of a `DataLoader`")
        for loader in read:
            if loader is None or loader.built_in_loop or loader.together:
                raise _Unsure(record.node, record.module, "its batches come out of several loaders at once")
            if loader.subclass is not None or loader.batch != "tensors" or loader.collate != "default":
                raise _Unsure(record.node, record.module, "its batches are made by a function of their own")
        modules = self.analysis.execution.modules.values()
        plain = all(loader is not None and loader.dataset.qualname in _OF_TENSORS_ALONE for loader in read)
        plain = plain and not any("target_transform" in module.text for module in modules)
        return _Reading(record.node, record.module, self.facts.events_in(record.node), loop.loop.site, plain)

    def _site_of(self, record: object) -> Site:
        return self.places.site(record.node, record.module)  # type: ignore[attr-defined]

    def _all_is_read_in(self, loops: list[_Reading]) -> None:
        """Whether batches are read, and models called, in these loops alone."""
        known = {id(loop.node) for loop in loops}
        for event in self.events:
            if event.kind == "next" and loader_sites(self.analysis, event.receiver):
                raise _Unsure(event.node, event.module, "a batch is read outside of the loops over them")
            if event.kind == "iterate" and loader_sites(self.analysis, event.receiver):
                over = self.places.parent(event.node, event.module)
                if not any(id(each) in known for each in (event.node, over)) and not self._is_header(event, loops):
                    raise _Unsure(event.node, event.module, "batches are read in another loop, too")
        inside = {id(event) for loop in loops for event in loop.events}
        for event in self.events:
            if event.kind == "forward" and id(event) not in inside:
                raise _Unsure(event.node, event.module, "a model is called outside of the loops over batches")
        for event in self.facts.of("forward"):
            if _is_of_workers(event):
                raise _Unsure(event.node, event.module, "a model is called where samples are made")

    def _is_header(self, event: Event, loops: list[_Reading]) -> bool:
        return any(any(each is event.node for each in walk(loop.node.iter)) for loop in loops)

    # --- batches

    def _batch(self, loop: _Reading) -> Batch:
        """The names of a batch's tensors, and the statement in front of which (or behind which) they can move."""
        frames = self._frames_of(loop)
        target: ast.expr = loop.node.target
        if self._counts(loop, frames):
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                raise _Unsure(loop.node, loop.module, "its batches are numbered in a way that is not known")
            target = target.elts[1]
        first, behind = loop.node.body[0], False
        if isinstance(target, ast.Name) and (unpacked := self._unpacking(loop, target.id)) is not None:
            first, target, behind = unpacked, unpacked.targets[0], True
        if isinstance(target, ast.Name):
            names = [target.id]
        elif isinstance(target, (ast.Tuple, ast.List)) and all(isinstance(each, ast.Name) for each in target.elts):
            names = [each.id for each in target.elts if isinstance(each, ast.Name)]
        else:
            raise _Unsure(loop.node, loop.module, "its batches are taken apart in a way that is not known")
        used = [name for name in dict.fromkeys(names) if self._is_read(loop, name)]
        for name in used if not (loop.of_tensors and len(names) == _PAIR) else ():
            if not self._is_tensor(name, loop.node.body, frames, set()):
                raise _Unsure(loop.node, loop.module, f"nothing tells that `{name}` is a tensor")
        return Batch(loop.site, self.places.site(first, loop.module), tuple(used), behind)

    def _frames_of(self, loop: _Reading) -> tuple[Frame, ...]:
        scope = self.places.scope(loop.node, loop.module)
        return self.frames[id(scope)]

    def _counts(self, loop: _Reading, frames: tuple[Frame, ...]) -> bool:
        """Whether a loop is given each batch with its number: ``enumerate`` of a loader, in a progress bar or not."""
        iterated, counted = loop.node.iter, False
        while isinstance(iterated, ast.Call) and iterated.args and not isinstance(iterated.args[0], ast.Starred):
            value = members(self.facts.evaluate(iterated, frames))
            if isinstance(iterated.func, ast.Name) and iterated.func.id == "enumerate" and not counted:
                counted = True
            elif not value or not all(_is_progress(each) for each in value):
                break
            iterated = iterated.args[0]
        if dotted(iterated) is None:
            raise _Unsure(loop.node, loop.module, "its batches come by a way that is not known")
        return counted

    def _unpacking(self, loop: _Reading, name: str) -> ast.Assign | None:
        """``images, labels = batch`` in the body of a loop, where nothing else reads the batch."""
        found = [
            each
            for each in loop.node.body
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Name) and each.value.id == name
        ]
        if len(found) != 1 or len(found[0].targets) != 1 or not isinstance(found[0].targets[0], (ast.Tuple, ast.List)):
            return None
        reads = [node for part in loop.node.body for node in loads(part) if (dotted(node) or "").split(".")[0] == name]
        return found[0] if len(reads) == 1 else None

    def _is_read(self, loop: _Reading, name: str) -> bool:
        scope = self.places.scope(loop.node, loop.module)
        owner = self.facts.bindings.owner(name, loop.node.target, loop.module)
        if owner is not scope:
            raise _Unsure(loop.node, loop.module, f"`{name}` is a name of another function")
        return any((dotted(node) or "").split(".")[0] == name for part in loop.node.body for node in loads(part))

    def _is_tensor(
        self, name: str, body: Iterable[ast.AST], frames: tuple[Frame, ...], seen: set[tuple[int, str]]
    ) -> bool:
        """Whether some use of a name needs a tensor: a method that only these have, torch's functions and layers."""
        if not frames or (id(frames[-1].scope), name) in seen:
            return False
        seen.add((id(frames[-1].scope), name))
        module = frames[-1].module
        for node in (each for part in body for each in walk(part)):
            if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
                continue
            parent = self.places.parent(node, module)
            if isinstance(parent, ast.Attribute) and parent.attr in _OF_TENSORS:
                return True
            if isinstance(parent, ast.keyword):
                parent = self.places.parent(parent, module)
            if isinstance(parent, ast.Call) and parent.func is not node and self._takes_tensor(parent, node, seen):
                return True
            if isinstance(parent, (ast.Compare, ast.BinOp)):
                others = [parent.left, *parent.comparators] if isinstance(parent, ast.Compare) else []
                others += [parent.left, parent.right] if isinstance(parent, ast.BinOp) else []
                if any(each is not node and self._kinds(each, frames) == {"there"} for each in others):
                    return True
        return False

    def _takes_tensor(self, call: ast.Call, given: ast.Name, seen: set[tuple[int, str]]) -> bool:
        """Whether a call needs a tensor where it is given a name."""
        events = self.facts.at(call)
        if any(event.kind == "criterion" for event in events):
            return True
        for event in events:
            layer = event.kind == "forward" and all(isinstance(each, Made) for each in members(event.receiver))
            of_torch = event.kind == "call" and event.name.startswith("torch.") and _last(event.name) not in _MAKING
            if (layer and event.name.startswith(("torch.nn.", "torchvision.models."))) or of_torch:
                return True
        for frames in self.entered.get(id(call), {}).values():
            function = frames[-1].scope
            for parameter in parameters(function):
                if argument_for(parameter.arg, frames[-1], call) is given:
                    return self._is_tensor(parameter.arg, body_of(function), frames, seen)
        return False

    # --- what happens

    def _in_a_loop(self, event: Event) -> None:
        """Whether an act of a step does the same on the device."""
        if event.kind == "make":
            if any(isinstance(each, Made) and each.kind not in _IN_A_STEP for each in members(event.result)):
                raise _Unsure(event.node, event.module, f"`{event.name}` is built in the loop")
        elif event.kind == "construct":
            if any(not isinstance(each, Instance) or _is_module(each) for each in members(event.result)):
                raise _Unsure(event.node, event.module, "a layer is built in the loop")
        elif event.kind == "call":
            self._call(event, inside=True)
        else:
            self._show(event)
            if event.kind not in _QUIET:
                self._other(event)

    def _elsewhere(self, event: Event) -> None:
        """Whether an act beside the steps goes with tensors that come from the device."""
        if event.kind == "call":
            self._call(event, inside=False)
        else:
            self._show(event)
            if event.kind not in (*_QUIET, "make", "construct"):
                self._other(event)

    def _show(self, event: Event) -> None:
        if event.kind == "show" and event.name != "print" and _gives_model(event):
            raise _Unsure(event.node, event.module, f"`{event.name}` is given the model, and may call it")

    def _call(self, event: Event, *, inside: bool) -> None:
        last, given = _last(event.name), _passed(event)
        there = [each for each in given if not _is_here(each)]
        here = [each for each in given if _is_here(each)]
        if there and here:
            raise _Unsure(event.node, event.module, f"`{last}` is given a tensor that is made on the host")
        if event.name.startswith("Module."):
            if last in ("share_memory", "to_empty", "half_") or last.endswith("_hook"):
                raise _Unsure(event.node, event.module, f"the model's `{last}` is called")
        elif event.name.startswith("Tensor."):
            if there and last in _FOR_THE_HOST:
                raise _Unsure(event.node, event.module, f"`{last}` may not do the same on a GPU")
        elif _gives_model(event) and event.name not in _TAKING_ANYTHING and not event.name.startswith("torch.nn."):
            raise _Unsure(event.node, event.module, f"`{event.name}` is given the model, and may call it")
        elif event.name.startswith("torch."):
            self._call_of_torch(event, there, inside=inside)
        elif there and event.name not in _TAKING_ANYTHING and not event.name.startswith("math."):
            raise _Unsure(event.node, event.module, f"`{event.name}` is given a tensor, and may need it on the host")

    def _call_of_torch(self, event: Event, there: list[Tensor], *, inside: bool) -> None:
        last = _last(event.name)
        if event.name.startswith(("torch.nn.init.", "torch.nn.utils.clip")) or last in _HARMLESS_TORCH:
            return
        if event.name == "torch.nn.Parameter" and not self._is_of_a_model(event):
            raise _Unsure(event.node, event.module, "a parameter is made outside of the model's class")
        if event.name.startswith(_ELSEWHERE):
            raise _Unsure(event.node, event.module, f"`{event.name}` may need its input on the host")
        makes = last in _MAKING or not there
        if makes and inside and not event.name.startswith(("torch.utils.", "torch.autograd.set", "torch.optim.")):
            raise _Unsure(event.node, event.module, f"`{event.name}` makes a tensor on the host")
        if there and (last in _MAKING or event.name.startswith("torch.utils.")):
            raise _Unsure(event.node, event.module, f"`{event.name}` may need its input on the host")
        unknown = [each for each in _values(event.arguments) if isinstance(each, Opaque)]
        if there and unknown and inside:
            raise _Unsure(event.node, event.module, f"`{event.name}` is given what is not known")

    def _is_of_a_model(self, event: Event) -> bool:
        """Whether something happens in a method of a model's class that ``__init__`` calls, or in that."""
        frames = self.facts.frames(event)
        return any(getattr(frame.scope, "name", "") == "__init__" for frame in frames)

    def _other(self, event: Event) -> None:
        there = [each for each in (*_passed(event), *tensors_in(event.receiver)) if not _is_here(each)]
        if event.kind == "sync":
            if event.name in _READS or self._array(event) or not there:
                return
            raise _Unsure(event.node, event.module, "a tensor is read on the host in a way that a GPU's cannot be")
        if event.kind == "transfer":
            if event.name == "cpu" and not any(map(_is_module, members(event.receiver))):
                return
            raise _Unsure(event.node, event.module, "something is moved already")
        if event.kind == "cast":
            for each in _values(event.arguments):
                named = each.qualname if isinstance(each, External) else each.value if isinstance(each, Const) else ""
                if isinstance(named, str) and named.endswith("Tensor"):
                    raise _Unsure(event.node, event.module, f"`{named}` is a tensor of the host")
            if not any(map(_is_module, members(event.receiver))):
                return
            raise _Unsure(event.node, event.module, "the model is cast to another type")
        if event.kind == "save":
            if not any(_is_module(each) for value in _values(event.arguments) for each in flatten(value)):
                return
            raise _Unsure(event.node, event.module, "the model is saved as a whole, and loaded where it was")
        if event.kind == "load":
            if event.name != "torch.load" or (event.arguments and "map_location" in event.arguments.keywords):
                return
            raise _Unsure(event.node, event.module, "a checkpoint is loaded without a `map_location`")
        if event.kind == "next":
            return
        raise _Unsure(event.node, event.module, "it calls what is not known, or what may need the host")

    def _array(self, event: Event) -> Iterator[Site]:
        """``x`` in ``x.numpy()``, where it would come from the device."""
        node = event.node
        if event.kind != "sync" or event.name != "numpy" or not isinstance(node, ast.Call):
            return
        read = list(tensors_in(event.receiver))
        if not read or any(map(_is_here, read)) or node.args or node.keywords:
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == "numpy":
            base = node.func.value
            if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr == "cpu":
                return
            yield self.places.site(base, event.module)

    # --- what is read

    def _free_names(self, loop: _Reading) -> None:
        """Whether the names that the loop, and all that it calls, read from elsewhere are no tensors of the host."""
        scope = self.places.scope(loop.node, loop.module)
        within = {id(loop.node)}
        self._names_in(loop.node.body, self._frames_of(loop), loop.node)
        for event in loop.events:
            for frame, inner in pairwise(self.facts.frames_within(event, loop.node)):
                del frame
                if id(inner.scope) not in within and inner.scope is not scope:
                    within.add(id(inner.scope))
                    self._names_in(body_of(inner.scope), self.frames[id(inner.scope)], inner.scope)

    def _names_in(self, body: Iterable[ast.AST], frames: tuple[Frame, ...], own: ast.AST) -> None:
        module = frames[-1].module
        for node in (each for part in body for each in walk(part)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._attribute(node, frames)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self._attribute(node.target, frames)
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            owner = self.facts.bindings.owner(node.id, node, module)
            if isinstance(owner, COMPREHENSIONS) or owner is own or self._is_inside(owner, own, module):
                continue
            writes = self.facts.bindings.writes(owner, node.id)
            outside = [each for each in writes if not self._is_inside(each, own, module)]
            if len(outside) < len(writes) and not outside:
                continue
            at = self.frames.get(id(owner))
            if at is None:
                continue  # a name of torch, of Python, or of a class body
            for write in outside:
                value = getattr(write, "value", None)
                contained = isinstance(value, (*COMPREHENSIONS, ast.Dict, ast.List, ast.Tuple, ast.Set))
                if (contained and self._makes_here(value)) or (
                    isinstance(value, ast.expr) and self._kinds(value, at) & {"here", "there"}
                ):
                    raise _Unsure(node, module, f"`{node.id}` is a tensor that is made outside of the loop")
            if not writes:
                self._refuse_tensor(node, self.facts.evaluate(node, frames), module)

    def _refuse_tensor(self, node: ast.AST, value: Value | None, module: ModuleFile) -> None:
        for each in flatten(value):
            if isinstance(each, Tensor) and (not each.roles or (each.roles & _HERE and "param" not in each.roles)):
                text = self.places.text(node, module)
                raise _Unsure(node, module, f"`{text}` is a tensor that is made outside of the loop")
            if isinstance(each, Opaque) and each.how == "parameter":
                text = self.places.text(node, module)
                raise _Unsure(node, module, f"it is not known what `{text}` is")

    def _attribute(self, node: ast.Attribute, frames: tuple[Frame, ...]) -> None:
        base = self.facts.evaluate(node.value, frames)
        for owner in members(base):
            if isinstance(owner, Instance) and not _is_module(owner):
                found = owner.attributes.get(node.attr)
                if found is not None:
                    self._refuse_tensor(node, found, frames[-1].module)

    def _is_inside(self, inner: ast.AST, outer: ast.AST, module: ModuleFile) -> bool:
        return inner is outer or any(each is outer for each in self.places.ancestors(inner, module))

    def _arithmetic(self, frames: tuple[Frame, ...]) -> None:
        """Whether no operator brings a tensor of the device and one of the host together."""
        for node in (each for part in body_of(frames[-1].scope) for each in walk_here(part)):
            if isinstance(node, ast.Subscript):
                self._indexed(node, frames)
            if isinstance(node, ast.Assign):
                self._filled(node, frames)
            if not isinstance(node, (ast.BinOp, ast.Compare, ast.AugAssign)):
                continue
            if isinstance(node, ast.Compare) and any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
                continue
            kinds = self._kinds(node, frames)
            if "there" in kinds and kinds & {"here", "unknown"}:
                text = self.places.text(node, frames[-1].module)
                raise _Unsure(
                    node, frames[-1].module, f"`{text}` may bring a tensor of the host together with one of the GPU"
                )

    def _indexed(self, node: ast.Subscript, frames: tuple[Frame, ...]) -> None:
        """Whether what is indexed by a tensor of the device is a tensor there, or a list, which reads the number."""
        index = set().union(
            *(self._kinds(each, frames) for each in walk(node.slice) if isinstance(each, (ast.Name, ast.Call)))
        )
        if "there" in index and not self._is_list(node.value, frames) and self._kinds(node.value, frames) != {"there"}:
            text = self.places.text(node, frames[-1].module)
            raise _Unsure(node, frames[-1].module, f"`{text}` may index what is on the host by a tensor of the GPU")

    def _filled(self, node: ast.Assign, frames: tuple[Frame, ...]) -> None:
        """Whether a tensor of the device that is stored under an index goes to a tensor there, a list or a dict."""
        stored = [each for given in node.targets for each in targets(given) if isinstance(each, ast.Subscript)]
        if not stored or "there" not in self._kinds(node.value, frames):
            return
        for each in stored:
            if not self._is_list(each.value, frames) and self._kinds(each.value, frames) != {"there"}:
                text = self.places.text(each, frames[-1].module)
                raise _Unsure(node, frames[-1].module, f"a tensor of the GPU is put into `{text}`")

    def _is_list(self, node: ast.expr, frames: tuple[Frame, ...]) -> bool:
        value = members(self.facts.evaluate(node, frames))
        return bool(value) and all(isinstance(each, (Sequence, Mapping)) for each in value)

    def _kinds(self, node: ast.expr | ast.AugAssign, frames: tuple[Frame, ...]) -> set[str]:
        """What the parts of an expression are: tensors made "here", or that come from "there"; "number", "unknown"."""
        if isinstance(node, ast.AugAssign):
            return self._kinds(node.target, frames) | self._kinds(node.value, frames)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mod) and isinstance(node.left, (ast.Constant, ast.JoinedStr)):
                return {"number"}
            return self._kinds(node.left, frames) | self._kinds(node.right, frames)
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            return set().union(*(self._kinds(each, frames) for each in parts))
        if isinstance(node, ast.UnaryOp):
            return self._kinds(node.operand, frames)
        if isinstance(node, ast.BoolOp):
            return set().union(*(self._kinds(each, frames) for each in node.values))
        if isinstance(node, ast.IfExp):
            return self._kinds(node.body, frames) | self._kinds(node.orelse, frames)
        if isinstance(node, ast.Subscript):
            return self._kinds(node.value, frames)
        if isinstance(node, (ast.Tuple, ast.List)):
            return set().union(*(self._kinds(each, frames) for each in node.elts)) if node.elts else {"number"}
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Dict)):
            return {"number"}
        if isinstance(node, ast.Attribute):
            base = members(self.facts.evaluate(node.value, frames))
            if any(isinstance(each, Tensor) for each in base):
                if node.attr in _NUMBER_ATTRIBUTES:
                    return {"number"}
                return self._kinds(node.value, frames) if node.attr in _SAME_ATTRIBUTES else {"unknown"}
            if base and all(isinstance(each, Instance) and _is_module(each) for each in base):
                held = self.facts.evaluate(node, frames)
                if any(isinstance(each, Tensor) for each in members(held)):
                    return {"there"}  # a parameter or a buffer: whatever else a model holds is refused
        if isinstance(node, ast.Call):
            return self._kinds_of_call(node, frames)
        found = _kinds_of(self.facts.evaluate(node, frames))
        if isinstance(node, ast.Name):
            if self._is_made_inside(node, frames[-1].module):
                return found - {"here"} | {"there"} if "here" in found else found
            found |= self._kinds_written(node, frames)
        return found

    def _kinds_written(self, node: ast.Name, frames: tuple[Frame, ...]) -> set[str]:
        """What a name is set to in its function, where that is more than one thing: a sum, and what it begins with."""
        owner = self.facts.bindings.owner(node.id, node, frames[-1].module)
        writes = self.facts.bindings.writes(owner, node.id)
        at = self.frames.get(id(owner))
        if len(writes) < 2 or at is None or (id(owner), node.id) in self.asked:
            return set()
        self.asked.add((id(owner), node.id))
        found: set[str] = set()
        for write in writes:
            if isinstance(write, ast.Assign) and any(isinstance(each, ast.Name) for each in write.targets):
                found |= self._kinds(write.value, at) & {"here"}
        self.asked.discard((id(owner), node.id))
        return found

    def _is_made_inside(self, node: ast.Name, module: ModuleFile) -> bool:
        """Whether a name is bound in the loops alone, where nothing makes a tensor but of others (``randn_like``)."""
        owner = self.facts.bindings.owner(node.id, node, module)
        if any(each.arg == node.id for each in parameters(owner)):
            return False
        writes = self.facts.bindings.writes(owner, node.id)
        return bool(writes) and (
            id(owner) in self.inner
            or all(any(id(each) in self.loops for each in self.places.ancestors(write, module)) for write in writes)
        )

    def _kinds_of_call(self, node: ast.Call, frames: tuple[Frame, ...]) -> set[str]:
        name = dotted(node.func) or ""
        if isinstance(node.func, ast.Attribute) and node.func.attr in _NUMBERS:
            return {"number"}
        if name in ("len", "int", "float", "bool", "str", "round", "range", "isinstance"):
            return {"number"}
        if name in ("sum", "max", "min", "abs") and node.args:
            return set().union(*(self._kinds(each, frames) for each in node.args))
        if any(event.kind == "sync" for event in self.facts.at(node)):
            return {"number"}
        returned = [
            event
            for event in self.facts.of("return")
            if (inner := self.facts.frames(event)) and inner[-1].call is node and event.result is not None
        ]
        results = [event.result for event in (*self.facts.at(node), *returned) if event.result is not None]
        names = [event.name for event in self.facts.at(node) if event.kind == "call"]
        if not results:
            if names and all(name.startswith("Tensor.") for name in names):
                return set().union(*(_kinds_of(event.receiver) for event in self.facts.at(node)))
            return {"unknown"}
        if names and all(_last(name).endswith("_like") for name in names) and node.args:
            return self._kinds(node.args[0], frames)
        if names and all(name.startswith("Tensor.new_") for name in names) and isinstance(node.func, ast.Attribute):
            return self._kinds(node.func.value, frames)
        return set().union(*(_kinds_of(each) for each in results))

    # --- what models are made of

    def _parts(self, event: Event) -> None:
        """Whether all that a model, a criterion or a schedule holds moves with it."""
        for made in members(event.result):
            if isinstance(made, Made) and made.kind in ("criterion", "module"):
                given = [each for value in _values(event.arguments) for each in flatten(value)]
                if any(
                    isinstance(each, Tensor) or (isinstance(each, Opaque) and made.kind == "criterion")
                    for each in given
                ):
                    raise _Unsure(event.node, event.module, f"`{_last(made.qualname)}` is given a tensor of the host")
            if isinstance(made, Instance) and _is_module(made):
                self._attributes(made)

    def _attributes(self, made: Instance) -> None:
        node, module = made.cls.node, made.cls.module
        buffers = {
            call.args[0].value
            for call in walk(node)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "register_buffer"
            and call.args
            and isinstance(call.args[0], ast.Constant)
        }
        for name, value in made.attributes.items():
            for member in members(value):
                if isinstance(member, Tensor) and "param" not in member.roles and name not in buffers:
                    raise _Unsure(node, module, f"`self.{name}` is a tensor that does not move with the model")
                if isinstance(member, (Sequence, Mapping)):
                    for each in flatten(member):
                        if isinstance(each, Tensor) or _is_module(each):
                            raise _Unsure(node, module, f"`self.{name}` does not move with the model")

    # --- where it goes

    def _placed(
        self,
        made: list[tuple[ast.Assign, Event]],
        loops: list[_Reading],
        batches: tuple[Batch, ...],
        reads: tuple[Site, ...],
    ) -> Unplaced:
        entry = self.analysis.execution.entry
        for node, module in (*((s, e.module) for s, e in made), *((loop.node, loop.module) for loop in loops)):
            if module is not entry:
                raise _Unsure(node, module, "it stands in a file of its own, which other scripts may use")
        scopes = {
            id(self.places.scope(node, entry)) for node in (*(s for s, _ in made), *(each.node for each in loops))
        }
        first = min((statement for statement, _ in made), key=lambda each: each.lineno)
        after, before = None, None
        if len(scopes) == 1 and self._stands_free(first):
            before = self.places.site(first, entry)
        else:
            after = self._last_import(entry)
        models = tuple(self.places.site(event.node, entry) for _, event in made)
        return Unplaced(models, batches, reads, before, after)

    def _stands_free(self, statement: ast.stmt) -> bool:
        """Whether a statement stands under no test or handler, so that what it sets is set for all that follows."""
        entry = self.analysis.execution.entry
        for above in self.places.ancestors(statement, entry):
            if isinstance(above, (*FUNCTIONS, ast.Module)):
                return True
            if isinstance(above, ast.If) and "__main__" in ast.dump(above.test):
                continue
            return False
        return True

    def _last_import(self, entry: ModuleFile) -> Site:
        """The last of the imports with which a file begins."""
        found: ast.stmt | None = None
        for number, statement in enumerate(entry.tree.body):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                found = statement
            elif not (number == 0 and isinstance(statement, ast.Expr)) and found is not None:
                break
        if found is None or not any(_imports_torch(each) for each in entry.tree.body if each.lineno <= found.lineno):
            raise _Unsure(entry.tree, entry, "the file does not begin with its imports")
        return self.places.site(found, entry)

    def _frames_at(self, node: ast.AST, module: ModuleFile) -> tuple[Frame, ...]:
        return self.frames.get(id(self.places.scope(node, module)), ())


def _imports_torch(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return any(alias.name.partition(".")[0] == "torch" for alias in statement.names)
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] == "torch"


def _is_of_workers(event: Event) -> bool:
    return event.control.chain()[0].detail == "worker"


def _is_progress(value: Value) -> bool:
    """Whether a value is a progress bar around what it is given."""
    return (isinstance(value, Made) and value.kind == "progress") or (
        isinstance(value, Iterated) and value.wrapper == "tqdm"
    )


def _is_module(value: Value) -> bool:
    return any(True for _ in models_in(value, 2)) and not isinstance(value, Opaque)


def _gives_model(event: Event) -> bool:
    return any(_is_module(each) for value in _values(event.arguments) for each in flatten(value))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_here(tensor: Tensor) -> bool:
    """Whether a tensor is made on the host; what was made of one and of others was judged where they met."""
    return not tensor.roles & _THERE


def _values(arguments: Arguments | None) -> list[Value]:
    return [member for value in (arguments.values() if arguments is not None else ()) for member in members(value)]


def _passed(event: Event) -> list[Tensor]:
    given = [each for value in _values(event.arguments) for each in tensors_in(value)]
    return [*given, *tensors_in(event.receiver)]


def _kinds_of(value: Value | None) -> set[str]:
    found: set[str] = set()
    for each in flatten(value):
        if isinstance(each, Tensor):
            found.add("here" if _is_here(each) else "there")
        elif isinstance(each, (Const, Option, Computed, Host)) or (isinstance(each, Unknown) and each.number):
            found.add("number")
        elif isinstance(each, (Opaque, Unknown)):
            found.add("unknown")
    return found or {"number" if value is not None else "unknown"}
