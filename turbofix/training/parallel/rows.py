"""Which calls of models several processes share, that otherwise all do the same.

Every process runs the script as it stands: the same batches, numbers and decisions. Of what a model computes each has
its rows of the batch, and then those of all, as of a ``DataParallel`` over processes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Made, Opaque
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Model, Step
from turbofix.training.models.idle import LEARNING
from turbofix.training.objects import Layers, layers_of, method_calls, models_in, outermost
from turbofix.training.parallel.wrapping import NotWrapped, trains
from turbofix.training.steps.discarded import is_updated_by
from turbofix.training.steps.regions import surely_no_grad

_SEQUENCES = regex(r"torch\.nn\.(LSTM|GRU|RNN|MultiheadAttention|Transformer(En|De)coderLayer|Transformer)")
_TURNED = regex(r"transpose\(0, 1|transpose\(1, 0|permute\(1, 0|\.t\(\)|\.T\b|\.view\(|reshape\(|rearrange\(")
COMPARED = regex(
    r"\b(\w+) @ \1\.(T\b|t\(\))|(mm|matmul)\((\w+), \4\.(T\b|t\(\)|transpose\(0, 1|transpose\(1, 0)|cdist\((\w+), \6\b"
    r"|(\w+)\.unsqueeze\([01]\), \7\.unsqueeze\([01]\)"
)
"""What compares the samples of a batch with each other looks like."""
_ACROSS = regex(
    r"\.(std|var|mean)\((dim=|axis=)?0\b|torch\.(std|var|mean)\([^\n]*?, (dim=|axis=)?0\b"
    r"|randperm\((\w+)\.(size\(0\)|shape\[0\])"
)
"""What takes figures over a batch, or mixes it."""
_PAIRED = regex(r"\b(?!self\b)\w+ @ (?!self\b)\w+\.(T\b|t\(\))")
_COUNTED = regex(r"ignore_index=(?!-1\b)|reduction=['\"]sum")
"""Losses that are no means over samples: of a model that computes its own, one that leaves out nothing has a -1."""
_CHOOSES = regex(
    r"(?m)\b(if|while) [^\n]*(torch\.rand|\.item\(\)|\.any\(|\.all\(|numel\(|nonzero|bernoulli|lengths?\.max\()"
    r"|torch\.rand\((1|\(\)|\[\]|size=\(1,?\))\)|torch\.empty\(1\)\.uniform_|range\([^\n]*(\.max\(\)|max\(len)"
)
"""What decides by the rows or numbers of a process which layers are called, or how long their answers are."""
_BY_NUMPY = regex(r"\b(np|numpy)\.random\.")
_DECIDES = regex(r"(?m)\b(if|while) [^\n]*\brandom\.")
_SETS = regex(r"(?m)^ *(?:self\.\w+ = |[\w, ]+, )*self\.(\w+)(?:, [\w.]+)* = ")
_STATE = regex(r"hidden|state|cell|memory|^h_?\d?$|^c_?\d?$")
_OWN_CALL = regex(r"\bself\.(\w+)\(")
_GRADIENTS = regex(
    r"autograd\.grad\([^\n]*parameters\(\)|torch\.func\.\w+|functional_call|import higher\b|\bjacrev\(|\bvmap\("
)
_UNPADDED = regex(r"pad_packed_sequence\((?![^()]*total_length)")
_IN_PLACE = r"\.(copy|add|mul|lerp|sub|div|fill)_\("
_KEEPS = r"self\.{name}\b(\.data)?(\[[^\n]*\])?(\.data)? ([-+*/]?=) |self\.{name}\b[^=\n]*" + _IN_PLACE
"""What a layer sets anew, later than when it is made."""
_THE_SAME = regex(r"mask|pos|freq|rope|cos|sin|tri|causal")
"""What is kept so that it need not be made again, whatever the batch."""


def shared_calls(analysis: Analysis, models: tuple[Model, ...], steps: tuple[Step, ...]) -> tuple[Site, ...]:
    """What is called of the models that steps train, there and elsewhere. Raises NotWrapped."""
    facts = analysis.facts
    forwards = facts.of("forward")
    outer = outermost(analysis, forwards)
    nodes = {id(each.node) for each in forwards}
    inside = {id(each.node) for each in forwards if any(id(frame.call) in nodes for frame in facts.frames(each))}
    trained: dict[Site, Made | Instance | Opaque] = {}
    found: dict[Site, str] = {}  # what is called, and by which method
    for event in outer:
        loop = next((each.node for each in facts.loops(event) if trains(analysis, each.node, each.module, steps)), None)
        if loop is None or surely_no_grad(event):
            continue
        held = [each for each in models_in(event.receiver) if is_updated_by(analysis, event, each) and _learns(each)]
        sites = {facts.origin_site(each.origin): each for each in held}
        if not held or id(event.node) in inside:
            continue
        if _is_one_sample(analysis, event):
            raise NotWrapped(
                "it is called with one sample after another, whose first dimension counts none", facts.site(event)
            )
        trained.update({site: each for site, each in sites.items() if site is not None})
        called = _called(analysis, event, loop)
        if called is None:
            raise NotWrapped("it is called in a way that was not followed", facts.site(event))
        found[called[0]] = called[1]
    if not found:
        raise NotWrapped("no model is seen that its steps train", steps[0].loop.site)
    _refuse(analysis, list(trained.values()), {"forward", *found.values()})
    for module in analysis.execution.modules.values():
        if "register_forward_hook(" in module.text:
            why = "what a hook sees of a model is the rows of one process"
            raise NotWrapped(why, facts.places.site(module.tree, module))
        if (asked := _GRADIENTS.search(module.text)) is not None:
            why = f"`{asked[0]}` gives gradients of parameters that are not those of all processes"
            raise NotWrapped(why, facts.places.site(module.tree, module))
    made = {each.site for each in models}
    for event in outer:
        known = {facts.origin_site(each.origin): each for each in models_in(event.receiver)}
        beside = (
            surely_no_grad(event)
            and not _is_one_sample(analysis, event)
            and set(known) <= made
            and all(map(_learns, known.values()))
        )
        itself = isinstance(event.node, ast.Call) and dotted(event.node.func) == "self"  # it makes one after another
        if not known or id(event.node) in inside or itself or not (beside or set(known) <= set(trained)):
            continue
        others, layers = [each for site, each in known.items() if site not in trained], Layers()
        for each in others:
            layers_of(each, layers)
        try:  # what is not trained is computed whole where it has to be
            _refuse(analysis, others, {"forward"})
        except NotWrapped:
            continue
        if any("BatchNorm" in name for name in layers.names):
            continue
        called = _called(analysis, event, None)
        if called is not None:
            found[called[0]] = called[1]
    return tuple(sorted(found))


def _called(analysis: Analysis, event: Event, loop: ast.AST | None) -> tuple[Site, str] | None:
    """What is called, and what computes then: the model, or a method of it that calls its layers one by one."""
    facts = analysis.facts
    through = next(method_calls(analysis, event, loop), None)
    if through is not None and all(isinstance(each, Made) and _is_layer(each) for each in models_in(event.receiver)):
        _, func, frames = through
        for each in facts.of("backward", "step"):
            if any(isinstance(one.call, ast.Call) and one.call.func is func for one in facts.frames(each)):
                raise NotWrapped("a method of the model goes backward, or takes a step, by itself", facts.site(each))
        return facts.places.site(func, frames[-1].module), func.attr
    if not isinstance(event.node, ast.Call):
        return None
    return facts.places.site(event.node.func, event.module), "forward"


def _read_outside(analysis: Analysis) -> frozenset[str]:
    """The attributes that the program reads of other objects than ``self``."""

    def found() -> frozenset[str]:
        trees = [module.tree for module in analysis.execution.modules.values()]
        reads = (each for tree in trees for each in every(ast.Attribute, tree) if isinstance(each.ctx, ast.Load))
        return frozenset(each.attr for each in reads if dotted(each.value) != "self")

    return analysis.once(("read outside",), found)


def draws_by_numpy(analysis: Analysis, models: tuple[Model, ...]) -> bool:
    """Whether a class of layers draws from NumPy where it computes, and decides nothing by that."""
    named = {each.cls for each in models if each.cls is not None}
    for module in analysis.execution.modules.values():
        for cls in every(ast.ClassDef, module.tree):
            text = ast.unparse(cls)
            if (
                "Module" in text.partition(":")[0] or analysis.facts.places.site(cls, module) in named
            ) and "forward" in text:
                computed = _computing(cls, {"forward"})
                if _BY_NUMPY.search(computed) and not _DECIDES.search(computed):
                    return True
    return False


def _is_one_sample(analysis: Analysis, event: Event) -> bool:
    """Whether a call takes ``batch[i]``, where a loop counts ``i``."""
    given = event.node.args[:1] if isinstance(event.node, ast.Call) else []
    for each in given:
        if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Name):
            for above in analysis.facts.places.ancestors(event.node, event.module):
                if isinstance(above, ast.For) and each.slice.id in {dotted(one) for one in walk(above.target)}:
                    return True
    return False


def _learns(model: Made | Instance | Opaque) -> bool:
    """Whether it is a model, and no loss without parameters: what that makes of some rows says nothing of all."""
    layers = Layers()
    layers_of(model, layers)
    known = isinstance(model, Instance) and layers.complete
    own = any("Parameter(" in ast.unparse(each.node) for each in layers.own)
    names = (*(each.qualname for each in layers.parts), *layers.bases)
    return not known or own or any(map(LEARNING.fullmatch, names))


def _is_layer(made: Made) -> bool:
    return made.qualname.startswith("torch.nn.") and not made.qualname.endswith(("Sequential", "Transformer"))


def _refuse(analysis: Analysis, models: list[Made | Instance | Opaque], called: set[str]) -> None:
    """Raise NotWrapped where the rows of a batch are no samples, or are not computed each by itself."""
    layers = Layers()
    for each in models:
        layers_of(each, layers)
    places = analysis.facts.places
    modules = {id(cls.node): cls for cls in layers.own}
    texts = {key: ast.unparse(cls.node) for key, cls in modules.items()}
    for key, cls in modules.items():
        computed = _computing(cls.node, called)
        across = COMPARED.search(computed) or _PAIRED.search(computed) or _ACROSS.search(computed)
        if across is not None:
            what = f"`{across[0].strip('.')}` in `{cls.node.name}`"
            why = f"{what} goes over a batch, of which a process computes some rows"
            raise NotWrapped(why, places.site(cls.node, cls.module))
        if (loss := _COUNTED.search(computed)) is not None:
            why = f"`{loss[0]}` in `{cls.node.name}` makes a loss of its rows that is no mean over samples"
            raise NotWrapped(why, places.site(cls.node, cls.module))
        if (choice := _CHOOSES.search(computed)) is not None:
            why = f"`{choice[0].strip()}` in `{cls.node.name}` may be answered otherwise by each process, for its rows"
            raise NotWrapped(why, places.site(cls.node, cls.module))
        if _UNPADDED.search(texts[key]):
            why = "`pad_packed_sequence` without `total_length` pads to the longest of the rows that a process has"
            raise NotWrapped(why, places.site(cls.node, cls.module))
        methods = [each for each in cls.node.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
        later = "\n".join(map(ast.unparse, methods))
        for name in _buffers(cls.node):
            if not _THE_SAME.search(name) and regex(_KEEPS.format(name=name)).search(later):
                why = f"`{cls.node.name}` keeps figures of its batches in `{name}`: a process has some rows of each"
                raise NotWrapped(why, places.site(cls.node, cls.module))
        for name in set(_SETS.findall(computed)):
            if name in _read_outside(analysis):
                why = f"`{name}` of `{cls.node.name}` is read outside of it, and has the rows of one process alone"
                raise NotWrapped(why, places.site(cls.node, cls.module))
        for name in set(_SETS.findall(later)) - set(_SETS.findall(computed)):
            if _STATE.search(name) and f"self.{name}" in computed:
                why = f"`{cls.node.name}` keeps `{name}` for a whole batch, and is called with some rows of it"
                raise NotWrapped(why, places.site(cls.node, cls.module))
    for each in layers.parts:
        site = analysis.facts.origin_site(each.origin)
        if (
            each.qualname.startswith("torch.nn.Embedding")
            and each.arguments.get("max_norm") is not None
            and site is not None
        ):
            raise NotWrapped(
                "`max_norm` changes the weights that the rows of a process ask for, in that one alone", site
            )
        in_time = _SEQUENCES.fullmatch(each.qualname) and each.arguments.get("batch_first") is None
        if in_time and site is not None and not any(_TURNED.search(text) for text in texts.values()):
            raise NotWrapped("without `batch_first` its first dimension counts time, and no samples", site)


def _computing(cls: ast.ClassDef, called: set[str]) -> str:
    """The text of the methods through which a layer computes: those that are called, and what they call of it."""
    methods = {each.name: ast.unparse(each) for each in cls.body if isinstance(each, ast.FunctionDef)}
    waiting, found = [name for name in methods if name in called], dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in methods and name not in found:
            found[name] = methods[name]
            waiting += _OWN_CALL.findall(methods[name])
    return "\n".join(found.values())


def _buffers(cls: ast.ClassDef) -> Iterator[str]:
    """The names of what a layer keeps beside its parameters."""
    for call in walk(cls):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".register_buffer") and call.args:
            name = call.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value
