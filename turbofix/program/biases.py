"""Layers whose bias a batch norm straight behind them takes out again, and what in the program needs that bias.

A batch norm subtracts the mean of its input, and with it whatever the layer before it has added to each channel.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterable, Iterator

from turbofix.nodes import walk
from turbofix.program.analysis import Analysis
from turbofix.program.answers import every, once_per_node, parents_in
from turbofix.program.compiling import registers_hook
from turbofix.program.execution import ModuleFile
from turbofix.program.facts import settled
from turbofix.program.model import Biased, Biases, Hazard
from turbofix.program.names import dotted
from turbofix.program.sites import LOOPS
from turbofix.program.values import Made, members

_POSITIONS = {f"torch.nn.Conv{kind}{dims}d": 7 for kind in ("", "Transpose") for dims in (2, 3)}
"""Where ``bias`` stands among the parameters of a layer."""

_NORMS = frozenset((*(f"torch.nn.BatchNorm{dims}d" for dims in (1, 2, 3)), "torch.nn.SyncBatchNorm"))

_LOADING = (
    *("load_state_dict", "load_state_dict_from_url", "load_from_checkpoint", "from_pretrained"),
    *("load_state", "load_raw", "load_checkpoint", "load_checkpoint_in_model", "load_checkpoint_and_dispatch"),
)

_LISTING = ("children", "named_children", "modules", "named_modules", "_modules")
_ONE_BY_ONE = ("children", "named_children", "items", "values")


def biases(analysis: Analysis) -> Biases:
    """The layers with a bias straight before a batch norm, in code that was executed."""
    if not any("BatchNorm" in module.text for module in analysis.execution.modules.values()):
        return Biases()
    layers: dict[int, Made] = {}
    norms: set[int] = set()
    with_norms: set[ModuleFile] = set()
    chains: list[tuple[ast.Call, ModuleFile]] = []
    for event in analysis.facts.of("make"):
        made = [each for each in members(event.result) if isinstance(each, Made)]
        names = {each.qualname for each in made}
        if not isinstance(event.node, ast.Call) or len(made) != len(members(event.result)):
            continue
        if names and names <= _NORMS:
            norms.add(id(event.node))
            with_norms.add(event.module)
        elif len(names) == 1 and _POSITIONS.keys() >= names and all(map(_has_bias, made)):
            layers[id(event.node)] = made[0]
        elif names == {"torch.nn.Sequential"} and not any(event.node is chain for chain, _ in chains):
            chains.append((event.node, event.module))
    found: dict[int, tuple[ast.expr, ast.expr, ModuleFile]] = {}
    for chain, module in chains:
        behind = [pair for pair in _neighbours(chain) if id(pair[0]) in layers and id(pair[1]) in norms]
        if behind and not _is_taken_apart(analysis, chain, module):
            found |= {id(layer): (layer, norm, module) for layer, norm in behind}
    for module in analysis.execution.modules.values():
        for cls in every(ast.ClassDef, module.tree) if module in with_norms else ():
            for layer, norm in _called_in_turn(analysis, cls, layers, norms):
                found[id(layer)] = layer, norm, module
    places = analysis.facts.places
    pairs = [
        Biased(
            places.site(layer, module), places.site(norm, module), layers[id(layer)].qualname.rpartition(".")[2],
            _POSITIONS[layers[id(layer)].qualname],
        )
        for layer, norm, module in found.values()
    ]  # fmt: skip
    if not pairs:
        return Biases()
    in_order = tuple(sorted(pairs, key=lambda each: each.layer))
    return Biases(in_order, next(_needs(analysis), None) or _copied(analysis, found.values()))


def _has_bias(made: Made) -> bool:
    """Whether a layer is certain to have a bias."""
    if made.arguments.open or made.arguments.star:
        return False
    passed = made.arguments.get("bias", _POSITIONS[made.qualname])
    return passed is None or (settled(passed.value) is True and isinstance(passed.node, ast.Constant))


# --- one behind the other in a Sequential ---------------------------------------------------------------------------


def _neighbours(chain: ast.Call) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Every two calls that stand straight behind one another in ``nn.Sequential(...)``."""
    yield from itertools.pairwise(chain.args)


def _is_taken_apart(analysis: Analysis, chain: ast.Call, module: ModuleFile) -> bool:
    """Whether some of the layers may be called without those behind them: ``self.features[:4]``."""
    parents = parents_in(module.tree)
    parent = parents.get(chain)
    while parent is not None and not isinstance(parent, ast.stmt):
        parent = parents.get(parent)
    names = {dotted(each) for each in parent.targets} if isinstance(parent, ast.Assign) else set()
    modules = list(analysis.execution.modules.values())
    if isinstance(parent, ast.Return):
        return True  # whoever is given it may do so
    if analysis.once(
        "modules are taken apart",
        lambda: any(_takes_modules_apart(each.tree) for each in modules if any(name in each.text for name in _LISTING)),
    ):
        return True
    last = {name.rpartition(".")[2] for name in names if name is not None}
    return any(_is_named_apart(analysis, name) for name in last)


def _is_named_apart(analysis: Analysis, name: str) -> bool:
    """Whether some file indexes what has a name, or goes through it."""
    modules = analysis.execution.modules.values()
    return analysis.once(
        ("is taken apart", name), lambda: any(name in _taken_apart(each.tree) for each in modules if name in each.text)
    )


@once_per_node
def _taken_apart(tree: ast.Module) -> frozenset[str]:
    """The (last) names of what a file indexes, or goes through."""
    gone_through = [getattr(loop, "iter", None) for kind in (*LOOPS, ast.comprehension) for loop in every(kind, tree)]
    names = [name for each in gone_through if each is not None for name in _items_of(each)]
    names += [dotted(node.value) or "" for node in every(ast.Subscript, tree)]
    return frozenset(name.rpartition(".")[2] for name in names)


@once_per_node
def _takes_modules_apart(tree: ast.Module) -> bool:
    """Whether a file indexes the list of a module's parts, whatever the module."""
    return any(
        isinstance(each, ast.Attribute) and each.attr in _LISTING
        for node in every(ast.Subscript, tree)
        for each in walk(node.value)
    )


def _items_of(iterated: ast.expr) -> Iterator[str]:
    """What a loop takes its items from: ``layers``, ``enumerate(self.layers)``; not ``model.parameters()``."""
    name = dotted(iterated)
    if name is not None:
        yield name
    elif isinstance(iterated, ast.Call):
        if isinstance(iterated.func, ast.Attribute) and iterated.func.attr in _ONE_BY_ONE:
            yield (dotted(iterated.func.value) or "").removesuffix("._modules")
        for each in iterated.args:
            yield from _items_of(each)


# --- one behind the other in a forward pass -------------------------------------------------------------------------


def _called_in_turn(
    analysis: Analysis, cls: ast.ClassDef, layers: dict[int, Made], norms: set[int]
) -> Iterator[tuple[ast.Call, ast.Call]]:
    """The layers of a class whose result goes to a batch norm of the class alone."""
    init = next((each for each in cls.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    held: dict[str, list[ast.expr]] = {}
    for node in walk(cls):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = dotted(target) or ""
                if name.startswith("self.") and name.count(".") == 1:
                    plain = init is not None and any(node is each for each in init.body)
                    held.setdefault(name, []).append(node.value if plain else ast.Constant(None))
    single = {name: values[0] for name, values in held.items() if len(values) == 1}
    own = {name: each for name, each in single.items() if isinstance(each, ast.Call) and id(each) in layers}
    behind = {name: each for name, each in single.items() if isinstance(each, ast.Call) and id(each) in norms}
    if not own or not behind:
        return
    reads: dict[str, int] = {}
    for node in walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and dotted(node) in own:
            reads[dotted(node) or ""] = reads.get(dotted(node) or "", 0) + 1
    for name, norm in _turns(cls, own.keys(), behind.keys()):
        if reads.get(name) == 1 and not _is_used_elsewhere(analysis, cls, name[5:]):
            layer, second = own[name], behind[norm]
            assert isinstance(layer, ast.Call)
            assert isinstance(second, ast.Call)
            yield layer, second


def _turns(cls: ast.ClassDef, own: Collection[str], behind: Collection[str]) -> Iterator[tuple[str, str]]:
    """``self.norm(self.conv(x))``, and ``x = self.conv(x)`` with ``x = self.norm(x)`` as the next statement."""
    for node in walk(cls):
        if isinstance(node, ast.Call) and len(node.args) == 1 and dotted(node.func) in behind:
            inner = node.args[0]
            if isinstance(inner, ast.Call) and dotted(inner.func) in own:
                yield dotted(inner.func) or "", dotted(node.func) or ""
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            statements = block if isinstance(block, list) else []
            for first, second in itertools.pairwise(statements):
                if isinstance(first, ast.Assign) and isinstance(first.value, ast.Call):
                    name, norm = dotted(first.value.func) or "", _norm_of(first, second, behind)
                    if name in own and norm is not None:
                        yield name, norm


def _norm_of(first: ast.Assign, second: ast.stmt, behind: Collection[str]) -> str | None:
    """The norm that takes what a statement sets, where nothing else ever does."""
    target = first.targets[0]
    if len(first.targets) != 1 or not isinstance(target, ast.Name):
        return None
    if isinstance(second, ast.Assign):
        again = [dotted(each) for each in second.targets]
        value: ast.expr | None = second.value if again == [target.id] else None
    else:
        value = second.value if isinstance(second, ast.Return) else None
    if value is None:
        return None
    nodes = list(walk(value))
    if sum(isinstance(each, ast.Name) and each.id == target.id for each in nodes) != 1:
        return None
    for each in nodes:
        given = each.args[0] if isinstance(each, ast.Call) and len(each.args) == 1 else None
        if isinstance(given, ast.Name) and given.id == target.id and isinstance(each, ast.Call):
            return dotted(each.func) if dotted(each.func) in behind else None
    return None


def _is_used_elsewhere(analysis: Analysis, cls: ast.ClassDef, name: str) -> bool:
    """Whether other code reaches a layer of a class by its name, or derives from the class."""
    for module in analysis.execution.modules.values():
        for node in every(ast.Attribute, module.tree):
            if node.attr == name and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                return True
        for other in every(ast.ClassDef, module.tree):
            if any((dotted(base) or "").rpartition(".")[2] == cls.name for base in other.bases):
                return True
    return False


def _copied(analysis: Analysis, layers: Iterable[tuple[ast.expr, ast.expr, ModuleFile]]) -> Hazard | None:
    """A class of the layers that stands once more in a file of the project that this program does not import."""
    places, execution = analysis.facts.places, analysis.execution
    above = [each for layer, _, module in layers for each in places.ancestors(layer, module)]
    found = [each.name for each in above if isinstance(each, ast.ClassDef)]
    again = re.compile(rf"^class (?:{'|'.join(found)})\b.*?BatchNorm", re.MULTILINE | re.DOTALL)
    known = {path.absolute() for path in execution.modules}
    for path in execution.beside() if found else ():
        text = execution.read(path) or "" if path.absolute() not in known else ""
        if "backward(" not in text and again.search(text):  # else a training of its own
            layer, _, module = next(iter(layers))
            copy = f"a copy of the class in {path.parent.name}/{path.name}"
            return Hazard(f"{copy} keeps it: what is trained without does not load there", places.site(layer, module))
    return None


# --- what needs the bias ----------------------------------------------------------------------------------------------


def _needs(analysis: Analysis) -> Iterator[Hazard]:
    """What raises without the bias, or is changed by its going."""
    places = analysis.facts.places
    for module in analysis.execution.modules.values():
        for call in every(ast.Call, module.tree):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in _LOADING:
                yield Hazard("a checkpoint is loaded, which may have been saved with it", places.site(call, module))
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
            if node.attr == "bias" and isinstance(node.ctx, ast.Load):
                yield Hazard("the bias of layers is read, which would be None", places.site(node, module))
