"""Layers whose bias a batch norm straight behind them takes out again, and what in the program needs that bias.

A batch norm subtracts the mean of its input, and with it whatever the layer before it has added to each channel.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import cast

from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.values import Made
from turbofix.source.answers import every, parents_in
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.places import blocks
from turbofix.training.model import Biased, Biases, Hazard
from turbofix.training.models.held import seen
from turbofix.training.told.written import calls_by_name, last

_POSITIONS = {"torch.nn.Linear": 2} | {
    f"torch.nn.Conv{kind}{dims}d": 7 for kind in ("", "Transpose") for dims in (1, 2, 3)
}
"""Where ``bias`` stands among the parameters of a layer."""

_NORMS = frozenset(
    (*(f"torch.nn.{kind}Norm{dims}d" for kind in ("Batch", "Instance") for dims in (1, 2, 3)), "torch.nn.SyncBatchNorm")
)

_KEEPING = (
    *("load_state_dict", "load_from_checkpoint", "load_state", "load_checkpoint", "load_checkpoint_and_dispatch"),
    *("save", "save_checkpoint", "save_weights", "save_model", "save_pretrained", "save_state", "fit"),
)
"""What loads weights, or saves what may be loaded again: by a call of that name, or by a trainer on its own."""


def biases(analysis: Analysis) -> Biases:
    """The layers with a bias straight before a batch norm, in code that was executed."""
    modules = [each for each in analysis.execution.modules.values() if re.search("BatchNorm|InstanceNorm", each.text)]
    found, places = dict[int, tuple[Biased, ast.Call, ModuleFile]](), analysis.facts.places
    for module in modules:
        pairs = list[tuple[ast.expr, ast.expr]]()
        for call in every(ast.Call, module.tree):
            made_here = last(call) == "Sequential" and analysis.facts.at(call)
            if made_here and not _is_taken_apart(analysis, call, module):
                for run in (call.args, *_added(analysis, call, module)):
                    pairs += itertools.pairwise(run)
        for cls in every(ast.ClassDef, module.tree):
            pairs += _called_in_turn(analysis, cls, module)
        for first, norm in pairs:
            for layer, name in _biased(analysis, first, norm, module):
                sites = places.site(layer, module), places.site(norm, module)
                found[id(layer)] = Biased(*sites, name.rpartition(".")[2], _POSITIONS[name]), layer, module
    if not found:
        return Biases()
    layers = tuple(sorted((each for each, _, _ in found.values()), key=lambda each: each.layer))
    needed = next(_reads(analysis, {each.kind for each in layers}), None) or _copied(analysis, found.values())
    return Biases(layers, needed, next(_keeps(analysis), None))


def _biased(analysis: Analysis, first: ast.expr, norm: ast.expr, module: ModuleFile) -> Iterator[tuple[ast.Call, str]]:
    """A layer with a bias before a norm, and its class; of ``a if down else b`` each that is one."""
    norms = seen(analysis, norm, module)
    if not norms or not all(isinstance(each, Made) and each.qualname in _NORMS for each in norms):
        return
    for layer in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
        values = seen(analysis, layer, module)
        made = [each for each in values if isinstance(each, Made) and each.origin.node is layer]
        names = {each.qualname for each in made}
        if (
            not isinstance(layer, ast.Call)
            or len(names) != 1
            or len(made) < len(values)
            or not names <= _POSITIONS.keys()
        ):
            continue
        if all(_has_bias(each, layer) for each in made) and (
            "torch.nn.Linear" not in names or _is_as_wide(layer, norm)
        ):
            yield layer, names.pop()


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


def _added(analysis: Analysis, chain: ast.Call, module: ModuleFile) -> Iterator[list[ast.expr]]:
    """What statements that follow one another add to the list that a chain is made of: ``layers.append(...)``."""
    lists = [each.value.id for each in chain.args if isinstance(each, ast.Starred) and isinstance(each.value, ast.Name)]
    run: list[ast.expr] = []
    nodes = walk(analysis.facts.places.scope(chain, module)) if lists else ()
    for block in (each for node in nodes for each in blocks(node)):
        for statement in block:
            value = getattr(statement, "value", None)
            called = dotted(value.func) if isinstance(value, ast.Call) else None
            if called in (f"{lists[0]}.append", f"{lists[0]}.extend") or isinstance(value, ast.List):
                plain = called == f"{lists[0]}.append"
                run += value.args if plain else getattr(getattr(value, "args", [value])[0], "elts", [])  # type: ignore[union-attr]
            elif any(isinstance(each, ast.Name) and each.id == lists[0] for each in walk(statement)):
                yield run
                run = []
        yield run
        run = []


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


def _called_in_turn(analysis: Analysis, cls: ast.ClassDef, module: ModuleFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The layers of a class whose result goes to a batch norm of the class alone."""
    init = next((each.body for each in cls.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), [])
    writes = [(dotted(target), each) for each in walk(cls) if isinstance(each, ast.Assign) for target in each.targets]
    names = [name for name, _ in writes]
    single = {name: each.value for name, each in writes if each in init and names.count(name) == 1}
    reads = [dotted(node) for node in walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
    texts = [each.text for each in analysis.execution.modules.values()]
    for name, norm in _turns(cls) if len(single) > 1 else ():
        if name in single and norm in single and reads.count(name) == 1:
            own = (name or "").rpartition(".")[2]
            elsewhere = re.compile(rf"(?<!\bself)(?<!from )\.{own}\b|^ *class \w+\(.*\b{cls.name}\b", re.MULTILINE)
            if any(_biased(analysis, single[name], single[norm], module)) and not any(map(elsewhere.search, texts)):
                yield single[name], single[norm]


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


def _copied(analysis: Analysis, layers: Iterable[tuple[Biased, ast.Call, ModuleFile]]) -> Hazard | None:
    """A class of the layers that stands once more in a file of the project that this program does not import."""
    places, execution = analysis.facts.places, analysis.execution
    first, _, _ = next(iter(layers))
    above = [each for _, node, module in layers for each in places.ancestors(node, module)]
    found = [each.name for each in above if isinstance(each, ast.ClassDef)]
    again = re.compile(rf"^class (?:{'|'.join(found)})\b.*?(?:Batch|Instance)Norm", re.MULTILINE | re.DOTALL)
    for path in execution.elsewhere if found else ():
        text = execution.read(path) or ""
        if "backward(" not in text and again.search(text):  # else a training of its own
            copy = f"a copy of the class in {path.parent.name}/{path.name}"
            return Hazard(f"{copy} keeps it: what is trained without does not load there", first.layer)
    return None


# --- what needs the bias ----------------------------------------------------------------------------------------------


def _keeps(analysis: Analysis) -> Iterator[Hazard]:
    """Where weights are loaded or saved."""
    for module in analysis.execution.modules.values():
        calls = calls_by_name(module.tree)
        for call in (each for name in _KEEPING for each in calls.get(name, ())):
            yield Hazard("keeps what may be loaded again", analysis.facts.places.site(call, module))


def _reads(analysis: Analysis, kinds: set[str]) -> Iterator[Hazard]:
    """Where a bias is read that would be None: not of a class's own, nor under a test for it or for other layers."""
    words = {"Conv" if "Conv" in each else each for each in kinds} | {"Module"}
    for module in analysis.execution.modules.values():
        for node in every(ast.Attribute, module.tree) if ".bias" in module.text else ():
            if node.attr != "bias" or not isinstance(node.ctx, ast.Load) or dotted(node.value) == "self":
                continue
            above = [*analysis.facts.places.ancestors(node, module)]
            tests = [ast.unparse(each.test) for each in above if isinstance(each, ast.If)]
            asked = any(isinstance(each, ast.Compare) for each in above) or any("bias" in each for each in tests[:1])
            others = [each for each in tests[:1] if re.search("isinstance|__name__|class_?name", each)]
            if not asked and not (others and not any(word in others[0] for word in words)):
                site = analysis.facts.places.site(node, module)
                yield Hazard("the bias of layers is read, which would be None", site)
        for test in every(ast.If, module.tree):
            if "Norm" in ast.unparse(test.test) and any(".eval()" in ast.unparse(each) for each in test.body):
                why = "batch norms are set to evaluation, where they do not subtract the batch's mean"
                yield Hazard(why, analysis.facts.places.site(test, module))
