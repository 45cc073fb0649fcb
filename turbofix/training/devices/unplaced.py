"""A training that never reaches a GPU, and what it takes to bring it there: models, batches, and tensors made beside.

What is found moves; that all of it was found is for a run to tell, which ends with an error at the first tensor that
was forgotten. Only what such a run would not show is in the way (``hazard``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.placements import is_none
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.tensors import tensors_in
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Made, Opaque, Tensor, Value, flatten, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import every, everything, once_per_node, parents_in
from turbofix.source.names import dotted, loads, parameters, targets
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS
from turbofix.source.site import Site
from turbofix.training.model import Batch, Evaluation, Framework, Hazard, Model, Moved, Step, Unplaced
from turbofix.training.models.complexes import PARAMETERS
from turbofix.training.objects import models_in
from turbofix.training.script import imported_by

_PLACES = regex(r"(^|[\W_])(cuda|gpu|gpus|mps|xpu|xla|npu|device|devices|set_default_\w+)($|[\W_\d])", re.IGNORECASE)
"""Words of a program that knows of devices: whoever wrote it has thought of where it runs."""

_ON_PURPOSE = regex(
    r"(?<![.\w])(?<!map_location=['\"])cpu\b|\b(set_num_threads|set_num_interop_threads|OMP_NUM_THREADS|quantiz\w*|ipex)\b",
    re.IGNORECASE,
)
"""Words of a program that is meant for the CPU."""

_FACTORIES = words(
    """
    tensor as_tensor from_numpy asarray frombuffer Tensor FloatTensor LongTensor IntTensor DoubleTensor BoolTensor zeros
    ones full empty rand randn randint arange linspace logspace eye
    """
)
_OF_THE_HOST = (
    *("torch.nn.utils.rnn.pack", "torch.jit.", "torch.onnx.", "torch.ao.", "torch.quantization.", "torch.fx."),
    *("torch.multiprocessing.", "torch.export."),
)
"""What of torch wants lengths or models on the host, which a run without a GPU does not tell."""
_LIBRARIES = ("numpy.", "sklearn.", "scipy.", "matplotlib.", "seaborn.", "pandas.", "cv2.", "PIL.", "skimage.")
_THERE = frozenset(("output", "loss", "prediction", "param", "grad", "maybe_output"))
_DEPTH = 4
_OF_TENSORS = words("shape size dtype dim ndim")
_PLAIN = (ast.Name, ast.Call, ast.Attribute, ast.Subscript)


class _InTheWay(Exception):  # noqa: N818  (an outcome, not an error)
    def __init__(self, node: ast.AST, module: ModuleFile, why: str) -> None:
        super().__init__(why)
        self.node, self.module, self.why = node, module, why


def unplaced(
    analysis: Analysis,
    steps: tuple[Step, ...],
    evaluations: tuple[Evaluation, ...],
    models: tuple[Model, ...],
    framework: Framework,
) -> Unplaced | None:
    """What brings a training on the CPU to a GPU; None for one that knows of devices, or whose models are not seen."""
    modules = analysis.execution.modules.values()
    if framework is not Framework.PYTORCH or not steps or any(_knows_of_devices(each.tree) for each in modules):
        return None
    reading: tuple[Step | Evaluation, ...] = (*steps, *evaluations)
    called = {site for loop in reading for site in loop.models}
    moved = tuple(sorted(model.site for model in models if model.site in called))
    if not moved:
        return None
    search = _Search(analysis, reading)
    try:
        return search.found(moved)
    except _InTheWay as found:
        return Unplaced(moved, hazard=Hazard(found.why, analysis.facts.places.site(found.node, found.module)))


@once_per_node
def _knows_of_devices(tree: ast.Module) -> bool:
    """Whether a name, an argument or a text of the program (not one that documents it) speaks of devices.

    What goes where its input lies (``device = x.device`` in a ``forward``) chooses none.
    """
    parents = parents_in(tree)
    for node in everything(tree):
        if not any(isinstance(each, str) and _speaks_of_devices(each) for each in _said(node)):
            continue
        above = parents.get(node)
        is_document = isinstance(above, ast.Expr)
        while above is not None and not is_document:
            is_document = isinstance(above, ast.FunctionDef) and id(node) in _following(above)
            above = parents.get(above)
        if not is_document:
            return True
    return False


def _said(node: ast.AST) -> list[object]:
    if isinstance(node, ast.Constant):
        return [node.value] if len(str(node.value)) < 40 else []
    return [getattr(node, name, None) for name in ("id", "attr", "arg")]


@lru_cache(maxsize=4096)
def _speaks_of_devices(word: str) -> bool:
    return _PLACES.search(word) is not None


@once_per_node
def _following(function: ast.FunctionDef) -> set[int]:
    """The nodes, by ids, by which a function makes tensors where those are that it is given.

    What it is given is a tensor in a ``forward``, and where its shape is asked for as well. A ``device=None`` of its
    own hands such a place on, or none.
    """
    nodes, own = list(walk(function)), function.args
    given = {each.arg for each in parameters(function)[function.name == "forward" :]}
    read = [each for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)]
    tensors = {dotted(each.value) for each in read if function.name == "forward" or each.attr in _OF_TENSORS}
    found = {id(each) for each in read if each.attr == "device" and dotted(each.value) in given & tensors}
    last = zip(reversed([*own.posonlyargs, *own.args]), reversed(own.defaults), strict=False)
    defaults = [*last, *zip(own.kwonlyargs, own.kw_defaults, strict=True)]
    unset = {each.arg: id(each) for each, value in defaults if isinstance(value, ast.Constant) and value.value is None}
    written = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    following = {*unset} - {each.id for each in written}
    for each in nodes:
        if isinstance(each, ast.Assign) and id(each.value) in found and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
            if [one.id for one in written].count(name) == 1 and name not in given:
                following.add(name)
    found |= {unset[name] for name in following & {*unset}}
    found |= {id(each) for each in nodes if isinstance(each, ast.Name) and each.id in following}
    passed = [each for each in nodes if isinstance(each, ast.keyword)]
    return found | {id(each) for each in passed if any(id(part) in found for part in walk(each.value))}


class _Search:
    """The search through one program."""

    def __init__(self, analysis: Analysis, reading: Iterable[Step | Evaluation]) -> None:
        self.facts, self.places = analysis.facts, analysis.facts.places
        self.entry, self.modules = analysis.execution.entry, list(analysis.execution.modules.values())
        self.events = [each for each in self.facts.events if each.control.chain()[0].detail != "worker"]
        self.frames: dict[int, tuple[Frame, ...]] = {}  # by the function
        for event in self.events:
            for index, frame in enumerate(self.facts.frames(event)):
                self.frames.setdefault(id(frame.scope), self.facts.frames(event)[: index + 1])
        loops = {each.loop.site: each for each in reading}
        records = {self.places.site(each.node, each.module): each for each in analysis.execution.loops}
        self.loops = [(loops[site], records[site]) for site in loops if site in records]
        self.moves: dict[Site, Moved] = {}
        self.batches: list[Batch] = []
        self.followed: set[int] = set()

    def found(self, models: tuple[Site, ...]) -> Unplaced:
        """All that moves, and where the device is chosen."""
        self._refuse()
        for site in models:
            if site.path != self.entry.path:
                raise _InTheWay(self.entry.tree, self.entry, "the model is built in a file that others may use")
        for step, record in self.loops:
            if isinstance(record.node, ast.For):
                self._batch(step, record.node, record.module)
            self._names_in(record.node, record.module)
        inside = {id(event) for _, record in self.loops for event in self.facts.events_in(record.node)}
        entered: dict[int, Frame] = {}
        for event in self.events:
            frames = self.facts.frames(event)
            in_forward = any(_name(frame.scope) == "forward" for frame in frames)
            if id(event) in inside:
                entered.update((id(frame.scope), frame) for frame in frames[1:])
            beside = event.kind in ("forward", "criterion") and not in_forward and id(event) not in inside
            if beside or (event.kind == "make" and getattr(event.result, "kind", "") == "criterion"):
                self._given(event)
            elif event.kind in ("forward", "criterion") and not in_forward:
                self._given(event, unknown=True)
            elif event.kind == "construct":
                self._attributes(event)
            elif event.kind == "call" and (in_forward or id(event) in inside):
                self._made(event.node, event.module)
        for frame in entered.values():
            self._names_in(frame.scope, frame.module)
        self._replaced()
        for event in self.events:
            self._read_back(event, id(event) in inside)
        return self._placed(models)

    def _refuse(self) -> None:
        for module in self.modules:
            said = _ON_PURPOSE.search(module.text)
            if said is not None:
                line = module.text.count("\n", 0, said.start()) + 1
                place = ast.Pass(lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)
                raise _InTheWay(place, module, f"the program speaks of `{said[0]}` itself")
        for event in self.events:
            if event.kind == "call" and event.name.startswith(_OF_THE_HOST):
                raise _InTheWay(event.node, event.module, f"`{event.name}` may need what it is given on the host")

    # --- batches

    def _batch(self, step: Step | Evaluation, node: ast.For, module: ModuleFile) -> None:
        """Where the tensors of a batch move: at the top of the loop, or behind the statement that takes them apart."""
        over = self.facts.without_bar(node.iter, module)
        if isinstance(over, ast.Call) and dotted(over.func) == "range":
            return
        single = [each for each in targets(node.target) if isinstance(each, ast.Name) and each.id != step.loop.counter]
        first, behind = node.body[0], False
        if len(single) == 1:
            for statement in node.body:
                value = statement.value if isinstance(statement, ast.Assign) else None
                if isinstance(value, ast.Name) and value.id == single[0].id and isinstance(statement, ast.Assign):
                    if isinstance(statement.targets[0], (ast.Tuple, ast.List)):
                        first, behind = statement, True
                        single = [each for each in targets(statement.targets[0]) if isinstance(each, ast.Name)]
                    break
        names = list(dict.fromkeys(each.id for each in single if self._uses(each.id, node)))
        if not names:
            return
        kind = self._kind(names[0], node, module) if len(names) == 1 and not behind else "tensor"
        text = None if module is self.entry else self._beside_model(node, module)
        site = self.places.site(node, module)
        self.batches.append(Batch(site, self.places.site(first, module), tuple(names), behind, kind, text))

    def _uses(self, name: str, node: ast.For) -> bool:
        return any((dotted(each) or "").split(".")[0] == name for part in node.body for each in loads(part))

    def _kind(self, name: str, node: ast.For, module: ModuleFile) -> str:
        """What a batch is by its use: ``batch["x"]`` and ``**batch`` are of a mapping, ``batch[0]`` of a list."""
        for each in (each for part in node.body for each in walk(part)):
            if isinstance(each, ast.Name) and each.id == name:
                parent = self.places.parent(each, module)
                if isinstance(parent, ast.keyword) and parent.arg is None:
                    return "mapping"
                if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
                    return "mapping" if isinstance(parent.slice.value, str) else "list"
                if isinstance(parent, ast.Starred):
                    return "list"
        return "tensor"

    def _beside_model(self, node: ast.AST, module: ModuleFile) -> str:
        """The device of the model that a loop or function of another file calls."""
        for event in (
            self.facts.events_in_functions([node]) if isinstance(node, FUNCTIONS) else self.facts.events_in(node)
        ):
            called = event.node.func if isinstance(event.node, ast.Call) and event.module is module else None
            name = dotted(called) if event.kind == "forward" and called is not None else None
            if name is not None and name.count(".") < 2:
                return f"next({name}.parameters()).device"
        raise _InTheWay(node, module, "it stands in a file of its own, which other scripts may use")

    # --- tensors that the program makes

    def _made(self, node: ast.AST, module: ModuleFile) -> bool:
        """Note the call that makes a tensor on the host, which it does for all torch knows."""
        if not isinstance(node, ast.Call) or isinstance(self.places.parent(node, module), ast.Subscript):
            return False
        makes = self._makes(node)
        if makes:
            self._move(node, module)
        return makes

    def _makes(self, node: ast.AST) -> bool:
        called = (event for event in self.facts.at(node) if event.kind == "call")
        return _brings_back(node) or any(
            each.name.startswith("torch.") and each.name.rpartition(".")[2] in _FACTORIES and not self._is_placed(each)
            for each in called
        )

    def _is_placed(self, event: Event) -> bool:
        """Whether a tensor is made on a device that is named: the program's only names follow an input's."""
        passed = event.arguments.keywords.get("device") if event.arguments is not None else None
        if passed is not None:
            return not is_none(passed.value)
        node = self.places.parent(event.node, event.module)
        call = self.places.parent(node, event.module) if isinstance(node, ast.Attribute) and node.attr == "to" else None
        given = [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else []
        return any("device" in (dotted(each) or "").split(".") for each in given)

    def _move(self, node: ast.AST, module: ModuleFile) -> None:
        text = None
        if module is not self.entry:
            scope = self.places.scope(node, module)
            own = self._of_method(node, module) if _name(scope) != "__init__" else None
            text = f"next({own}.parameters()).device" if own else self._beside_model(scope, module)
        above: ast.AST | None = node
        while isinstance(above, (ast.Attribute, ast.Call)):  # behind a cast that follows: `from_numpy(x).type(...)`
            node = above if _brings_back(above) else node
            behind = self.places.parent(above, module)
            above = behind if above in (getattr(behind, "value", None), getattr(behind, "func", None)) else None
        if isinstance(node, ast.Call) and node.args and any(each.name in PARAMETERS for each in self.facts.at(node)):
            node = node.args[0]  # what a copy of a parameter gives is none
        site = self.places.site(node, module)
        self.moves[site] = Moved(site, text)

    def _of_method(self, node: ast.AST, module: ModuleFile | None = None) -> str | None:
        """What the method around a node calls its object."""
        scope = self.places.scope(node, module or self.entry)
        own = parameters(scope) if isinstance(scope, FUNCTIONS) else []
        of_class = own and isinstance(self.places.parent(scope, module or self.entry), ast.ClassDef)
        return own[0].arg if of_class else None

    def _names_in(self, node: ast.AST, module: ModuleFile) -> None:
        """Note where the tensors are made that a loop or function reads by names from outside."""
        nodes = walk(node)
        if isinstance(node, ast.For):  # what it runs over moves batch by batch
            nodes = [each for part in node.body for each in walk(part)]
        for cast in filter(_brings_back, nodes):
            self._move(cast, module)
        summed = {id(each.target) for each in nodes if isinstance(each, ast.AugAssign)}
        for name in nodes:
            if isinstance(name, ast.Name) and (isinstance(name.ctx, ast.Load) or id(name) in summed):
                self._follow(name, module, node)

    def _follow(self, name: ast.Name, module: ModuleFile, inner: ast.AST | None = None, depth: int = _DEPTH) -> None:
        owner = self.facts.bindings.owner(name.id, name, module)
        frames = self.frames.get(id(owner))
        for write in self.facts.bindings.writes(owner, name.id) if frames is not None and depth else ():
            value = getattr(write, "value", None)
            if not isinstance(write, ast.Assign) or value is None or id(write) in self.followed or frames is None:
                continue
            if inner is not None and any(each is write for each in walk(inner)):
                continue  # what a step makes is noted as it happens
            held = [each for each in flatten(self.facts.evaluate(value, frames)) if isinstance(each, Tensor)]
            here = any(not each.roles & _THERE for each in held)
            called = [part for each in walk(value) for frame in self._returning(each) for part in walk(frame.scope)]
            if not here and not any(self._makes(each) for each in (*walk(value), *called)):
                continue
            self.followed.add(id(write))
            self._follow_value(value, module, depth)

    def _follow_value(self, value: ast.AST, module: ModuleFile, depth: int) -> None:
        noted = [each for each in walk(value) if self._made(each, module)]
        for each in walk(value) if not noted else ():
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                self._follow(each, module, None, depth - 1)
            for frame in self._returning(each):
                for made in walk(frame.scope):
                    self._made(made, frame.module)

    def _returning(self, call: ast.AST) -> list[Frame]:
        """The functions of the program that a call enters, but for what computes of a model."""
        frames = (self.facts.frames(event) for event in self.facts.of("return") if isinstance(call, ast.Call))
        return [each[-1] for each in frames if each and each[-1].call is call and _name(each[-1].scope) != "forward"]

    def _given(self, event: Event, unknown: bool = False) -> None:
        """Bring what a model or criterion is given to the device: beside the loops all, in them what is unknown."""
        given = event.arguments
        for passed in (*given.positions, *given.keywords.values()) if given is not None else ():
            held = [each for each in flatten(passed.value) if isinstance(each, (Tensor, Opaque))]
            here = [each for each in held if isinstance(each, Tensor) and not each.roles & _THERE]
            if passed.node is None or not held or (not here and any(isinstance(each, Tensor) for each in held)):
                continue
            if event.kind == "make" and not here:
                continue
            if unknown and (any("data" not in each.roles for each in here) or self._is_moved(passed.node, event)):
                continue
            if isinstance(passed.node, ast.Name):
                self._follow(passed.node, event.module)
            if isinstance(passed.node, _PLAIN) and not self._is_followed(passed.node, event.module):
                self._move(passed.node, event.module)

    def _is_moved(self, node: ast.AST, event: Event) -> bool:
        """Whether an expression is of a batch that moves in one of the loops around it, or of what moves otherwise."""
        names = [each for each in walk(node) if isinstance(each, ast.Name)]
        around = {self.places.site(each.node, each.module) for each in self.facts.loops(event)}
        if any(each.id in batch.names for batch in self.batches if batch.loop in around for each in names):
            return True
        return any(self._is_followed(each, event.module) for each in names)

    def _is_followed(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether it is a name whose tensor moves where it is made."""
        if not isinstance(node, ast.Name):
            return False
        owner = self.facts.bindings.owner(node.id, node, module)
        writes = self.facts.bindings.writes(owner, node.id)
        made = [each.value for each in writes if isinstance(each, ast.Assign)]
        there = any(self.places.site(part, module) in self.moves for value in made for part in _calls_of(value))
        return there or any(id(write) in self.followed for write in writes)

    def _attributes(self, event: Event) -> None:
        """Note the tensors that an object of the program holds, and that are neither parameters nor buffers."""
        for made in members(event.result):
            if not isinstance(made, Instance) or made.cls.find("__getitem__") is not None:
                continue
            texts = ast.unparse(made.cls.node)
            for name, value in made.attributes.items():
                held = [each for each in flatten(value) if isinstance(each, Tensor) and not each.roles & _THERE]
                if held and f"register_buffer('{name}'" not in texts:
                    for node in walk(made.cls.node):
                        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == f"self.{name}":
                            for each in walk(node.value):
                                self._made(each, made.cls.module)

    def _replaced(self) -> None:
        """Note what takes the place of a part of a model, or of a criterion, after it was built."""
        for write in every(ast.Assign, self.entry.tree):
            target = write.targets[0]
            frames = self.frames.get(id(self.places.scope(write, self.entry)), ())
            while isinstance(target, (ast.Attribute, ast.Subscript)) and frames:
                target = target.value
                own = dotted(target) == self._of_method(write)  # what an object holds from the start moves with it
                if not own and any(map(_is_layer, members(self.facts.evaluate(target, frames)))):
                    value = self.facts.evaluate(write.value, frames)
                    if any(isinstance(each, Tensor) or _is_layer(each) for each in members(value)):
                        self._move(write.value, self.entry)
                    break

    # --- what goes back to the host

    def _read_back(self, event: Event, inside: bool) -> None:
        """Note what numpy and the like are given of the tensors on the device."""
        node = event.node
        read: list[tuple[ast.AST, Value | None]] = []
        if event.kind == "sync" and event.name == "numpy" and isinstance(node, ast.Call) and not node.args:
            base = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "numpy" else None
            if base is not None and not ast.unparse(base).endswith(".cpu()"):
                read.append((base, event.receiver))
        elif event.kind == "call" and event.name.startswith(_LIBRARIES) and event.arguments is not None:
            given = ((each.node, each.value) for each in event.arguments.positions if each.node is not None)
            read += [each for each in given if isinstance(each[0], _PLAIN) and _is_tensor(each[1])]
        for each, value in read:
            roles = frozenset().union(*(one.roles for one in tensors_in(value)))
            *_, first = _calls_of(each)
            if roles & _THERE or (inside and "batch" in roles) or self._is_followed(first, event.module):
                site = self.places.site(each, event.module)
                self.moves[site] = Moved(site, "cpu")

    # --- where the device is chosen

    def _placed(self, models: tuple[Site, ...]) -> Unplaced:
        nodes = {self.places.site(each, self.entry): each for each in walk(self.entry.tree) if hasattr(each, "lineno")}
        used = [*models, *(each.site for each in self.moves.values() if each.text is None)]
        used += [each.at for each in self.batches if each.text is None]
        first = self.places.statement(nodes[min(used)], self.entry)
        before, after = None, None
        if first is not None and len({id(self.places.scope(nodes[site], self.entry)) for site in used}) == 1:
            before = self.places.site(first, self.entry) if self._stands_free(first) else None
        if before is None:
            after = self._last_import()
        moves = tuple(self.moves[site] for site in sorted(self.moves))
        return Unplaced(models, tuple(self.batches), moves, before, after)

    def _stands_free(self, statement: ast.AST) -> bool:
        """Whether a statement stands under no test or loop, so that what it sets is set for all that follows."""
        for above in self.places.ancestors(statement, self.entry):
            if isinstance(above, (*FUNCTIONS, ast.Module)):
                return True
            if isinstance(above, LOOPS) or not (isinstance(above, ast.If) and "__main__" in ast.dump(above.test)):
                return False
        return True

    def _last_import(self) -> Site:
        """The last of the imports that stand together with torch's, or with which the script begins."""
        found: ast.stmt | None = None
        torch = [each for each in self.entry.tree.body if "torch" in imported_by(each)]
        for statement in self.entry.tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                found = statement
            elif found is not None and (not torch or found.lineno >= torch[0].lineno):
                break
        if found is None:
            raise _InTheWay(self.entry.tree, self.entry, "the file does not begin with its imports")
        return self.places.site(found, self.entry)


def _name(scope: ast.AST) -> str:
    return getattr(scope, "name", "")


def _brings_back(node: ast.AST) -> bool:
    """Whether a call casts to a type that is one of the host as well: ``x.type(torch.LongTensor)``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or getattr(node.func, "attr", "") != "type":
        return False
    return (dotted(node.args[0]) or "").endswith("Tensor")


def _calls_of(value: ast.AST) -> Iterator[ast.AST]:
    """A value and what its chain of methods begins with, in turn: ``x.to(y).view(2)``, ``x.to(y)``, ``x``."""
    while isinstance(value, (ast.Call, ast.Attribute)):
        yield value
        value = value.func if isinstance(value, ast.Call) else value.value
    yield value


def _is_tensor(value: Value) -> bool:
    return bool(members(value)) and all(isinstance(each, Tensor) for each in members(value))


def _is_layer(value: Value) -> bool:
    is_model = any(True for _ in models_in(value, 2)) and not isinstance(value, Opaque)
    return is_model or (isinstance(value, Made) and value.kind == "criterion")
