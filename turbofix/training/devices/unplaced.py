"""A training that never reaches a GPU, and what it takes to bring it there: models, batches, and tensors made beside.

What is found moves; that all of it was found is for a run to tell, which ends with an error at the first tensor that
was forgotten. Only what such a run would not show is in the way (``hazard``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Mapping, Opaque, Tensor, Value, flatten, members
from turbofix.library.tables import words
from turbofix.regex import regex
from turbofix.source.answers import everything, once_per_node, parents_in
from turbofix.source.names import dotted, loads, parameters, targets
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Batch, Evaluation, Framework, Hazard, Model, Moved, Step, Unplaced
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
_PLAIN = (ast.Name, ast.Call, ast.Attribute, ast.Subscript)
ELSEWHERE = "it stands in a file of its own, which other scripts may use"


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
    if framework is not Framework.PYTORCH or not steps or _knows_of_devices(analysis):
        return None
    reading: tuple[Step | Evaluation, ...] = (*steps, *evaluations)
    called = {site for loop in reading for site in loop.models}
    moved = tuple(sorted(model.site for model in models if model.site in called))
    if not moved:
        return None
    try:
        return _Search(analysis, reading).found(moved)
    except _InTheWay as found:
        return Unplaced(moved, hazard=Hazard(found.why, analysis.facts.places.site(found.node, found.module)))


def _knows_of_devices(analysis: Analysis) -> bool:
    """Whether a name, an argument or a text of the program speaks of devices, but for what follows its input's."""
    for module in analysis.execution.modules.values():
        for node in _speaking_of_devices(module.tree):
            if isinstance(node, ast.Attribute) and node.attr == "device":
                scope = analysis.facts.places.scope(node, module)
                held = members(analysis.facts.evaluate(node.value, (Frame(scope, module, node, None, ()),)))
                passed = getattr(scope, "name", "") == "forward" and isinstance(node.value, ast.Name)
                if passed or (held and all(isinstance(each, Tensor) for each in held)):
                    continue
            elif "device" in (getattr(node, "id", ""), getattr(node, "arg", "")):
                continue  # set by what is looked at here as well
            return True
    return False


@once_per_node
def _speaking_of_devices(tree: ast.Module) -> list[ast.AST]:
    """The names, attributes, arguments and short texts of a file with such a word, but for its documentation."""
    parents, found = parents_in(tree), []
    for node in everything(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        said: list[object] = [text] if isinstance(text, str) and len(text) < 40 else []
        said += [getattr(node, name, None) for name in ("id", "attr", "arg")]
        if any(isinstance(each, str) and _PLACES.search(each) for each in said):
            found += [node] if not isinstance(parents.get(node), ast.Expr) else []
    return found


class _Search:
    """The search through one program."""

    def __init__(self, analysis: Analysis, reading: Iterable[Step | Evaluation]) -> None:
        self.analysis, self.facts, self.places = analysis, analysis.facts, analysis.facts.places
        self.entry = analysis.execution.entry
        self.events = [each for each in self.facts.events if each.control.chain()[0].detail != "worker"]
        loops = {each.loop.site: each for each in reading}
        records = {self.places.site(each.node, each.module): each for each in analysis.execution.loops}
        self.loops = [(loops[site], records[site]) for site in loops if site in records]
        self.moves: dict[Site, Moved] = {}
        self.batches: list[Batch] = []
        self.followed: dict[ast.AST, bool] = {}  # whether anything was found to move
        self.called: dict[ast.AST | None, list[Frame]] = {}
        for frame in self.facts.opened():
            self.called.setdefault(frame.call, []).append(frame)

    def found(self, models: tuple[Site, ...]) -> Unplaced:
        """All that moves, and where the device is chosen."""
        self._refuse(models)
        for step, record in self.loops:
            if isinstance(record.node, ast.For):
                self._batch(step, record.node, record.module)
            for statement in record.node.body:
                self._follow(statement, record.module)
        inside = {id(event) for _, record in self.loops for event in self.facts.events_in(record.node)}
        for event in self.events:
            in_forward = any(getattr(frame.scope, "name", "") == "forward" for frame in self.facts.frames(event))
            criterion = event.kind == "make" and getattr(event.result, "kind", "") == "criterion"
            if criterion or (event.kind in ("forward", "criterion") and not in_forward):
                self._given(event)
            elif event.kind == "construct":
                self._attributes(event)
        for event in self.events:
            self._read_back(event, id(event) in inside)
        moves = tuple(self.moves[site] for site in sorted(self.moves))
        return Unplaced(models, tuple(self.batches), moves, self._last_import())

    def _refuse(self, models: tuple[Site, ...]) -> None:
        for module in self.analysis.execution.modules.values():
            said = _ON_PURPOSE.search(module.text)
            if said is not None:
                line = module.text.count("\n", 0, said.start()) + 1
                place = ast.Pass(lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)
                raise _InTheWay(place, module, f"the program speaks of `{said[0]}` itself")
        for event in self.facts.of("call"):
            if event.name.startswith(_OF_THE_HOST):
                raise _InTheWay(event.node, event.module, f"`{event.name}` may need what it is given on the host")
        if any(site.path != self.entry.path for site in models):
            raise _InTheWay(self.entry.tree, self.entry, "the model is built in a file that others may use")

    # --- batches

    def _batch(self, step: Step | Evaluation, node: ast.For, module: ModuleFile) -> None:
        """Where the tensors of a batch move: at the top of the loop, or behind the statement that takes them apart."""
        over = self.facts.without_bar(node.iter, module)
        if isinstance(over, ast.Call) and dotted(over.func) == "range":
            return
        single = [each for each in targets(node.target) if isinstance(each, ast.Name) and each.id != step.loop.counter]
        first, behind = node.body[0], False
        for statement in node.body if len(single) == 1 else ():
            value = statement.value if isinstance(statement, ast.Assign) else None
            if isinstance(statement, ast.Assign) and dotted(value) == single[0].id:
                if isinstance(statement.targets[0], (ast.Tuple, ast.List)):
                    first, behind = statement, True
                    single = [each for each in targets(statement.targets[0]) if isinstance(each, ast.Name)]
                break
        read = {(dotted(each) or "").partition(".")[0] for part in node.body for each in loads(part)}
        names = tuple(dict.fromkeys(each.id for each in single if each.id in read))
        if not names:
            return
        text = None if module is self.entry else self._beside_model(node, module)
        held = [each for one in single for each in members(self._value(one, module))]
        kind = "mapping" if any(isinstance(each, Mapping) for each in held) and len(names) == 1 else "tensor"
        self.batches.append(Batch(self.places.site(first, module), names, behind, kind, text))

    def _beside_model(self, node: ast.AST, module: ModuleFile) -> str:
        """The device of the model that a loop of another file calls."""
        for event in self.facts.events_in(node):
            called = event.node.func if isinstance(event.node, ast.Call) and event.module is module else None
            name = dotted(called) if event.kind == "forward" and called is not None else None
            if name is not None and name.count(".") < 2:
                return f"next({name}.parameters()).device"
        raise _InTheWay(node, module, ELSEWHERE)

    # --- tensors that the program makes

    def _value(self, node: ast.AST, module: ModuleFile) -> Value | None:
        """What an expression was, whoever called its function."""
        return self.facts.evaluate(node, (Frame(self.places.scope(node, module), module, node, None, ()),))

    def _follow(self, node: ast.AST, module: ModuleFile) -> bool:
        """Move what is made in some text, in the functions that it calls, and where the names that it uses were set;
        whether there is any, or they are a batch's."""
        if node in self.followed:
            return self.followed[node]
        self.followed[node] = False
        found = False
        for each in walk(node):
            if isinstance(each, ast.Call):
                if self._makes(each) and not isinstance(self.places.parent(each, module), ast.Subscript):
                    self._move(each, module)
                    found = True
                for frame in self.called.get(each, ()):
                    found = self._follow(frame.scope, frame.module) or found
            elif isinstance(each, ast.Name):
                found = found or any(each.id in batch.names for batch in self.batches)
                for write in self._writes(each, module):
                    found = (self._is_here(write.value, module) and self._follow(write.value, module)) or found
        self.followed[node] = found
        return found

    def _writes(self, name: ast.Name, module: ModuleFile) -> list[ast.Assign]:
        owner = self.facts.bindings.owner(name.id, name, module)
        return [each for each in self.facts.bindings.writes(owner, name.id) if isinstance(each, ast.Assign)]

    def _is_here(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether an expression may be a tensor that does not come out of a model."""
        held = [each for each in flatten(self._value(node, module)) if isinstance(each, Tensor)]
        return any(not each.roles & _THERE for each in held)

    def _makes(self, node: ast.AST) -> bool:
        """Whether a call makes a tensor on the host, for all that torch knows."""
        return any(
            each.kind == "call"
            and each.name.startswith("torch.")
            and each.name.rpartition(".")[2] in _FACTORIES
            and not (each.arguments is not None and "device" in each.arguments.keywords)
            for each in self.facts.at(node)
        )

    def _move(self, node: ast.AST, module: ModuleFile, to: str | None = None) -> None:
        if module is not self.entry and to is None:
            scope = self.places.scope(node, module)
            own = parameters(scope)[:1] if isinstance(self.places.parent(scope, module), ast.ClassDef) else []
            if not own or getattr(scope, "name", "") == "__init__":
                raise _InTheWay(node, module, ELSEWHERE)
            to = f"next({own[0].arg}.parameters()).device"
        site = self.places.site(node, module)
        self.moves[site] = Moved(site, to)

    def _given(self, event: Event) -> None:
        """Bring what a model or criterion is given to the device, if it was not brought there where it comes from."""
        given = event.arguments
        for passed in (*given.positions, *given.keywords.values()) if given is not None else ():
            held = [each for each in flatten(passed.value) if isinstance(each, (Tensor, Opaque))]
            roles = {role for each in held if isinstance(each, Tensor) for role in each.roles}
            if passed.node is None or not held or roles & _THERE or (event.kind == "make" and not roles):
                continue
            if not self._follow(passed.node, event.module) and isinstance(passed.node, _PLAIN):
                self._move(passed.node, event.module)

    def _is_moved(self, node: ast.AST, module: ModuleFile) -> bool:
        """Whether an expression is of a batch, or of names whose tensors are moved."""
        names = [each for each in walk(node) if isinstance(each, ast.Name)]
        of_batch = any(each.id in batch.names for batch in self.batches for each in names)
        return of_batch or any(self.followed.get(write.value) for each in names for write in self._writes(each, module))

    def _attributes(self, event: Event) -> None:
        """Move the tensors that an object of the program holds, and that are neither parameters nor buffers."""
        for made in members(event.result):
            if not isinstance(made, Instance) or made.cls.find("__getitem__") is not None:
                continue
            for name, value in made.attributes.items():
                held = [each for each in flatten(value) if isinstance(each, Tensor) and not each.roles & _THERE]
                for write, _, module in self.facts.attribute_writes(name) if held else ():
                    if isinstance(write, ast.Assign) and write in set(walk(made.cls.node)):
                        self._follow(write.value, module)

    # --- what goes back to the host

    def _read_back(self, event: Event, inside: bool) -> None:
        """Bring back what numpy and the like are given of the tensors on the device."""
        node, read = event.node, []
        if event.kind == "sync" and event.name == "numpy" and isinstance(node, ast.Call) and not node.args:
            base = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "numpy" else None
            read = [(base, event.receiver)] if base is not None and not ast.unparse(base).endswith(".cpu()") else []
        elif event.kind == "call" and event.name.startswith(_LIBRARIES) and event.arguments is not None:
            read = [(each.node, each.value) for each in event.arguments.positions if isinstance(each.node, _PLAIN)]
        for each, value in read:
            held = members(value)
            if each is None or not held or not all(isinstance(one, Tensor) for one in held):
                continue
            roles = {role for one in held if isinstance(one, Tensor) for role in one.roles}
            if roles & _THERE or (inside and "batch" in roles) or self._is_moved(each, event.module):
                self._move(each, event.module, "cpu")

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
