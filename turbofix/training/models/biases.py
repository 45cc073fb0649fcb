"""Layers whose bias a batch norm straight behind them takes out again, and what in the program needs that bias.

A batch norm subtracts the mean of its input, and with it whatever the layer before it has added to each channel.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import cast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.values import Made, Value, members
from turbofix.interpreter.execution import ModuleFile
from turbofix.records import dataclass
from turbofix.source.answers import every, parents_in
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.training.model import Biased, Biases, Hazard
from turbofix.training.models.compiling import registers_hook
from turbofix.training.told.written import calls_by_name

_POSITIONS = {"torch.nn.Linear": 2} | {
    f"torch.nn.Conv{kind}{dims}d": 7 for kind in ("", "Transpose") for dims in (1, 2, 3)
}
"""Where ``bias`` stands among the parameters of a layer."""

_NORMS = frozenset(
    (*(f"torch.nn.{kind}Norm{dims}d" for kind in ("Batch", "Instance") for dims in (1, 2, 3)), "torch.nn.SyncBatchNorm")
)

_LOADING = (
    *("load_state_dict", "load_state_dict_from_url", "load_from_checkpoint"),
    *("load_state", "load_raw", "load_checkpoint", "load_checkpoint_in_model", "load_checkpoint_and_dispatch"),
)

_SAVING = ("save", "save_checkpoint", "save_weights", "save_model", "save_pretrained", "save_state", "fit")


def biases(analysis: Analysis) -> Biases:
    """The layers with a bias straight before a batch norm, in code that was executed."""
    modules = [each for each in analysis.execution.modules.values() if re.search("BatchNorm|InstanceNorm", each.text)]
    made = _Made(analysis)
    found: dict[int, tuple[ast.expr, ast.expr, ModuleFile]] = {}
    for event in analysis.facts.of("make") if modules else ():
        chain, module = event.node, event.module
        if event.name == "torch.nn.Sequential" and isinstance(chain, ast.Call) and id(chain) not in made.chains:
            made.chains.add(id(chain))
            behind = [pair for run in _runs(analysis, chain, module) for pair in made.pairs(run, module)]
            if behind and not _is_taken_apart(analysis, chain, module):
                found |= {id(layer): (layer, norm, module) for layer, norm in behind}
    for module in modules:
        for cls in every(ast.ClassDef, module.tree):
            own = list(_called_in_turn(analysis, cls, made, module))
            if any((dotted(base) or "").endswith("Sequential") for base in cls.bases):
                calls = (each for each in walk(cls) if isinstance(each, ast.Call))  # `super().__init__(...)`
                runs = (each.args for each in calls if getattr(each.func, "attr", "") == "__init__")
                own += [pair for run in runs for pair in made.pairs(run, module)]
            found |= {id(layer): (layer, norm, module) for layer, norm in own}
    places = analysis.facts.places
    pairs = []
    for layer, norm, module in found.values():
        name, site = made.names[id(layer)], places.site(layer, module)
        pairs.append(Biased(site, places.site(norm, module), name.rpartition(".")[2], _POSITIONS[name]))
    if not pairs:
        return Biases()
    in_order = tuple(sorted(pairs, key=lambda each: each.layer))
    loads = list(_loads(analysis))
    needed = next((load for load, always in loads if always), None)
    needed = needed or next(_needs(analysis, {each.kind for each in pairs}), None) or _copied(analysis, found.values())
    kept = [load for load, _ in loads] or list(_saves(analysis))
    return Biases(in_order, needed, kept[0] if kept else None)


@dataclass(eq=False)
class _Made:
    """What expressions make: a layer with a bias, a norm, or something else."""

    analysis: Analysis
    chains: set[int] = field(default_factory=set)
    names: dict[int, str] = field(default_factory=dict)

    def values(self, node: ast.expr, module: ModuleFile) -> list[Value]:
        """All that an expression was, wherever it was executed."""
        scope = self.analysis.facts.places.scope(node, module)
        frames = self.analysis.facts.executions(scope)
        return [each for frame in frames for each in members(frame.values.get(node))]

    def pairs(self, run: list[ast.expr], module: ModuleFile) -> Iterator[tuple[ast.Call, ast.expr]]:
        """The layers of a run with a bias that the norm straight behind them takes out again."""
        for first, second in itertools.pairwise(run):
            yield from self.pair(first, second, module)

    def pair(self, first: ast.expr, second: ast.expr, module: ModuleFile) -> Iterator[tuple[ast.Call, ast.expr]]:
        """A layer before a norm; of ``a if down else b`` each that is one."""
        norms = [value for each in _alternatives(second) for value in self.values(each, module)]
        if not norms or not all(isinstance(each, Made) and each.qualname in _NORMS for each in norms):
            return
        for layer in _alternatives(first):
            values = self.values(layer, module)
            made = [each for each in values if isinstance(each, Made) and each.origin.node is layer]
            names = {each.qualname for each in made}
            if not isinstance(layer, ast.Call) or not made or len(made) < len(values) or not names <= _POSITIONS.keys():
                continue
            if len(names) == 1 and all(_has_bias(each, layer) for each in made):
                (self.names[id(layer)],) = names
                if "torch.nn.Linear" not in names or _is_as_wide(layer, second):
                    yield layer, second


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        yield from _alternatives(node.body)
        yield from _alternatives(node.orelse)
    else:
        yield node


def _has_bias(made: Made, layer: ast.Call) -> bool:
    """Whether a layer is certain to have a bias, and the call itself may say otherwise."""
    passed = made.arguments.get("bias", _POSITIONS[made.qualname])
    if passed is None:
        return not (made.arguments.open or made.arguments.star)
    told = [*layer.args, *(each.value for each in layer.keywords)]
    return passed.node in told and getattr(passed.node, "value", None) is True


def _is_as_wide(layer: ast.Call, norm: ast.expr) -> bool:
    """Whether a batch norm counts a linear layer's results as channels, and not the positions before them."""
    told = [next((each.value for each in layer.keywords if each.arg == "out_features"), None), *layer.args[1:2]]
    given = [*norm.args[:1], *(each.value for each in norm.keywords)] if isinstance(norm, ast.Call) else []
    named = dotted(norm.func) if isinstance(norm, ast.Call) else ""
    return ast.unparse(told[-1] or layer) == ast.unparse(given[0] if given else norm) and "Instance" not in str(named)


# --- one behind the other in a Sequential ---------------------------------------------------------------------------


def _runs(analysis: Analysis, chain: ast.Call, module: ModuleFile) -> Iterator[list[ast.expr]]:
    """What stands straight behind one another in ``nn.Sequential(...)``, or in the list that it is made of."""
    yield chain.args
    for each in chain.args:
        if isinstance(each, ast.Call) and (dotted(each.func) or "").endswith("OrderedDict") and each.args:
            pairs = getattr(each.args[0], "elts", [])
            yield [pair.elts[-1] for pair in pairs if isinstance(pair, ast.Tuple) and pair.elts]
        elif isinstance(each, ast.Starred) and isinstance(each.value, ast.Name):
            scope = analysis.facts.places.scope(chain, module)
            blocks = (getattr(node, part, None) for node in walk(scope) for part in ("body", "orelse"))
            for block in blocks:
                yield from _added(block, each.value.id) if isinstance(block, list) else ()


def _added(block: list[ast.stmt], name: str) -> Iterator[list[ast.expr]]:
    """What statements that follow one another add to a list."""
    run: list[ast.expr] = []
    for statement in block:
        if not any(isinstance(each, ast.Name) and each.id == name for each in walk(statement)):
            continue
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Expr) and isinstance(value, ast.Call) and len(value.args) == 1:
            method = (dotted(value.func) or "").removeprefix(f"{name}.")
            added = {"append": value.args, "extend": getattr(value.args[0], "elts", None)}.get(method)
        else:
            added = value.elts if isinstance(value, ast.List) else None
        if added is None or isinstance(statement, ast.Assign):
            yield run
            run = []
        run += added or []
    yield run


def _is_taken_apart(analysis: Analysis, chain: ast.Call, module: ModuleFile) -> bool:
    """Whether some of the layers may be called without those behind them: ``self.features[:4]``."""
    parents, child = parents_in(module.tree), cast("ast.AST", chain)
    parent = parents.get(chain)
    while isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is child):
        child, parent = parent, parents.get(parent)  # `nn.Sequential(...).to(device)`
    names = {dotted(each) for each in parent.targets} if isinstance(parent, ast.Assign) else set()
    texts = [each.text for each in analysis.execution.modules.values()]
    if isinstance(parent, ast.Return):  # what it is called, it may be taken apart by
        made = getattr(analysis.facts.places.function(chain, module), "name", "")
        names = {name for text in texts for name in re.findall(rf"([\w.]+) *= *(?:[\w.]+\.)?{made}\(", text)}
    last = "|".join(re.escape(name.rpartition(".")[2]) for name in names if name)
    part = rf"\b(?:{last})(?:\._modules)?(?:\.(?:named_)?children\(\)|\.items\(\)|\.values\(\))?"
    apart = r"\b(?:named_)?(?:children|modules)\(\)\)*\[|\b_modules\["
    apart += rf"|{part}\[|\bin\b[^\n]*{part}(?:[\s:,)\]]|$)" if last else ""
    return any(re.search(apart, text) for text in texts)


# --- one behind the other in a forward pass -------------------------------------------------------------------------


def _called_in_turn(
    analysis: Analysis, cls: ast.ClassDef, made: _Made, module: ModuleFile
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The layers of a class whose result goes to a batch norm of the class alone."""
    init = next((each.body for each in cls.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), [])
    writes = [(dotted(target), each) for each in walk(cls) if isinstance(each, ast.Assign) for target in each.targets]
    names = [name for name, _ in writes]
    single = {name: each.value for name, each in writes if each in init and names.count(name) == 1}
    reads = [dotted(node) for node in walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
    texts = [each.text for each in analysis.execution.modules.values()]
    for name, norm in _turns(cls) if len(single) > 1 else ():
        if name in single and norm in single and reads.count(name) == 1:
            found = list(made.pair(single[name], single[norm], module))
            own = (name or "").rpartition(".")[2]
            elsewhere = re.compile(rf"(?<!\bself)(?<!from )\.{own}\b|^ *class \w+\(.*\b{cls.name}\b", re.MULTILINE)
            yield from found if found and not any(map(elsewhere.search, texts)) else ()


def _turns(cls: ast.ClassDef) -> Iterator[tuple[str | None, str | None]]:
    """``self.norm(self.conv(x))``, and ``x = self.conv(x)`` with ``x = self.norm(x)`` as the next statement."""
    for node in walk(cls):
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Call):
            yield dotted(node.args[0].func), dotted(node.func)
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for first, second in itertools.pairwise(block) if isinstance(block, list) else ():
                name = dotted(first.targets[0]) if isinstance(first, ast.Assign) else None
                again = isinstance(second, ast.Assign) and [*map(dotted, second.targets)] == [name]
                called = first.value if name is not None and (again or isinstance(second, ast.Return)) else None
                if not isinstance(called, ast.Call):
                    continue
                nodes = list(walk(second))
                calls = [each for each in nodes if isinstance(each, ast.Call) and [*map(dotted, each.args)] == [name]]
                if len(calls) == [getattr(each, "id", "") for each in nodes].count(name) - again == 1:
                    yield dotted(called.func), dotted(calls[0].func)


def _copied(analysis: Analysis, layers: Iterable[tuple[ast.expr, ast.expr, ModuleFile]]) -> Hazard | None:
    """A class of the layers that stands once more in a file of the project that this program does not import."""
    places, execution = analysis.facts.places, analysis.execution
    layer, _, home = next(iter(layers))
    above = [each for node, _, module in layers for each in places.ancestors(node, module)]
    found = [each.name for each in above if isinstance(each, ast.ClassDef)]
    again = re.compile(rf"^class (?:{'|'.join(found)})\b.*?(?:Batch|Instance)Norm", re.MULTILINE | re.DOTALL)
    for path in execution.elsewhere if found else ():
        text = execution.read(path) or ""
        if "backward(" not in text and again.search(text):  # else a training of its own
            copy = f"a copy of the class in {path.parent.name}/{path.name}"
            return Hazard(f"{copy} keeps it: what is trained without does not load there", places.site(layer, home))
    return None


# --- what needs the bias ----------------------------------------------------------------------------------------------


def _loads(analysis: Analysis) -> Iterator[tuple[Hazard, bool]]:
    """Checkpoints that are loaded, and whether each start of the training loads it."""
    facts, trained = analysis.facts, next((each.order for each in analysis.facts.of("backward")), 0)
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in _LOADING:
                seen = [each for each in facts.at(call) if each.order < trained]
                levels = [level for each in seen for level in each.control.upwards()]
                always = seen and all(each.kind not in ("if", "try", "loop") or each.decided for each in levels)
                why = "a checkpoint is loaded, which may have been saved with it"
                yield Hazard(why, facts.places.site(call, module)), bool(always)


def _saves(analysis: Analysis) -> Iterator[Hazard]:
    """Where weights are saved, as they may have been before: by a call of that name, or by a trainer on its own."""
    for module in analysis.execution.modules.values():
        for name in _SAVING:
            for call in calls_by_name(module.tree).get(name, ()):
                yield Hazard("saves what may be loaded again", analysis.facts.places.site(call, module))


def _needs(analysis: Analysis, kinds: set[str]) -> Iterator[Hazard]:
    """What raises without the bias, or is changed by its going."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree):
            if registers_hook(call):
                yield Hazard("a hook may look at the result of a layer", places.site(call, module))
        for entry in every(ast.Subscript, module.tree):
            key = entry.slice.value if isinstance(entry.slice, ast.Constant) else None
            if isinstance(key, str) and key.endswith(".bias"):
                yield Hazard("a bias is asked for by its name", places.site(entry, module))
        for test in every(ast.If, module.tree):
            sets = (each for node in test.body for each in walk(node) if isinstance(each, ast.Attribute))
            if "Norm" in ast.unparse(test.test) and any(each.attr == "eval" for each in sets):
                why = "batch norms are set to evaluation, where they do not subtract the batch's mean"
                yield Hazard(why, places.site(test, module))
        for node in every(ast.Attribute, module.tree):
            reads = node.attr == "bias" and isinstance(node.ctx, ast.Load)
            if reads and not _is_of_others(analysis, node, module, kinds):
                yield Hazard("the bias of layers is read, which would be None", places.site(node, module))


def _is_of_others(analysis: Analysis, read: ast.Attribute, module: ModuleFile, kinds: set[str]) -> bool:
    """Whether a bias is read only where there is one, or of modules of other kinds: a class's own, a norm's."""
    if isinstance(read.value, ast.Name) and read.value.id == "self":
        return True
    below, words = ast.unparse(read), {"Conv" if "Conv" in each else each for each in kinds}
    child: ast.AST = read
    for each in analysis.facts.places.ancestors(read, module):
        if isinstance(each, ast.Compare) and isinstance(each.ops[0], (ast.Is, ast.IsNot)):
            return True
        if isinstance(each, ast.If) and child in each.body:
            test = ast.unparse(each.test)
            told = re.search("isinstance|__name__|class_?name", test) is not None
            if f"{below} is not None" in test or (told and not any(word in test for word in (*words, "Module"))):
                return True
        child = each
    return False
