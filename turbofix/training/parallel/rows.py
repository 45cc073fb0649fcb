"""Which calls of models several processes share, that otherwise all do the same.

Every process runs the script as it stands: the same batches, numbers and decisions. Of what a model computes each has
its rows of the batch, and then those of all, as of a ``DataParallel`` over processes.
"""

from __future__ import annotations

import ast
import copy
from itertools import repeat

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Instance, Made, Opaque
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Model, Step
from turbofix.training.models.idle import LEARNING
from turbofix.training.objects import Layers, layers_of, method_calls, models_in, outermost
from turbofix.training.parallel.wrapping import NotWrapped, is_normed, trains
from turbofix.training.script import is_guard
from turbofix.training.steps.discarded import is_updated_by
from turbofix.training.steps.regions import surely_no_grad

_BY_ROWS = regex(r"\.item\(\)|\.any\(|\.all\(|numel\(|nonzero|\.max\(|\.min\(|\.sum\(")
"""What a layer asks of the rows that it has."""
_OF_DATA = frozenset(("__getitem__", "__getitems__", "__call__"))
"""What makes a sample."""
_OF_TENSORS = frozenset(("size", "dim", "numel", "view", "reshape"))
"""What nobody calls a model's method."""
_MOVES = frozenset(("to", "cuda", "float", "half"))
_ONE = regex(r"(\.unsqueeze\((dim=)?0\)|\[None(, \.\.\.)?\]|torch\.unsqueeze\(\w+, (dim=)?0\))(\.\w+\([^()]*\))*$")
"""How a sample becomes a batch."""
_OWN_CALL = regex(r"\bself\.(\w+)\(")
_GRADIENTS = regex(
    r"autograd\.grad\([^\n]*parameters\(\)|torch\.func\.\w+|functional_call|import higher\b|\bjacrev\(|\bvmap\("
)


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
        trained.update({site: each for site, each in sites.items() if site is not None})
        called = _called(analysis, event, loop)
        if called is not None:
            found[called[0]] = called[1]
    for event in facts.of("backward", "step"):
        if any(id(frame.call) in nodes for frame in facts.frames(event)):
            raise NotWrapped("the model goes backward, or takes a step, by itself", facts.site(event))
    if not found:
        raise NotWrapped("no model is seen that its steps train", steps[0].loop.site)
    if any(is_normed(analysis, each) for each in models):  # whose layers wait for those of the other processes
        _refuse(analysis, list(trained.values()), {"forward", *found.values()})
    for module in analysis.execution.modules.values():
        if (asked := _GRADIENTS.search(module.text)) is not None:
            why = f"`{asked[0]}` gives gradients of parameters that are not those of all processes"
            raise NotWrapped(why, facts.places.site(module.tree, module))
        if "fullgraph=True" in module.text and any(is_normed(analysis, each) for each in models):
            why = "`fullgraph=True` compiles no batch normalisation over processes"
            raise NotWrapped(why, facts.places.site(module.tree, module))
    made = {each.site for each in models}
    dead = [each for each in facts.dead if each.kind == "forward"]  # which other settings may run
    for event in outermost(analysis, [*forwards, *dead]):
        known = {facts.origin_site(each.origin): each for each in models_in(event.receiver)}
        beside = surely_no_grad(event) and set(known) <= made and all(map(_learns, known.values()))
        itself = isinstance(event.node, ast.Call) and dotted(event.node.func) == "self"  # it makes one after another
        of_data = any(getattr(each.scope, "name", "") in _OF_DATA for each in facts.frames(event))
        aside = any(map(_is_aside, repeat(analysis), facts.frames(event)))
        idle = event in dead and all(map(_learns, known.values()))
        if (
            not known
            or id(event.node) in inside
            or itself
            or aside
            or (beside and (of_data or _is_one(analysis, event)))
            or not (beside or idle or set(known) <= set(trained))
        ):
            continue
        others, layers = [each for site, each in known.items() if site not in trained], Layers()
        for each in others:
            layers_of(each, layers)
        if any("BatchNorm" in name for name in layers.names):
            continue
        called = _called(analysis, event, None)
        if called is not None:
            found[called[0]] = called[1]
    return tuple(sorted(found))


def _is_aside(analysis: Analysis, frame: Frame) -> bool:
    """Whether code runs only where a file is started that the script imports."""
    above = analysis.facts.places.ancestors(frame.anchor, frame.module)
    return frame.module is not analysis.execution.entry and any(map(is_guard, above))


def _is_one(analysis: Analysis, event: Event) -> bool:
    """Whether what a model is called with is a batch of one, made of a sample."""
    given = event.node.args[0] if isinstance(event.node, ast.Call) and event.node.args else None
    while isinstance(given, ast.Call) and getattr(given.func, "attr", "") in _MOVES:
        given = given.func.value  # type: ignore[attr-defined]
    if isinstance(given, ast.Name):
        owner = analysis.facts.bindings.owner(given.id, given, event.module)
        writes = [each for each in analysis.facts.bindings.writes(owner, given.id) if isinstance(each, ast.Assign)]
        return len(writes) == 1 and _ONE.search(ast.unparse(writes[0].value)) is not None
    return given is not None and _ONE.search(ast.unparse(given)) is not None


def _called(analysis: Analysis, event: Event, loop: ast.AST | None) -> tuple[Site, str] | None:
    """What is called, and what computes then: the model, or a method of it that calls its layers one by one."""
    facts = analysis.facts
    through = next(method_calls(analysis, event, loop), None)
    layers = all(isinstance(each, Made) and _is_layer(each) for each in models_in(event.receiver))
    if through is not None and (layers or through[1].attr == "forward"):
        _, func, frames = through
        for each in facts.of("backward", "step"):
            if any(isinstance(one.call, ast.Call) and one.call.func is func for one in facts.frames(each)):
                raise NotWrapped("a method of the model goes backward, or takes a step, by itself", facts.site(each))
        return facts.places.site(func, frames[-1].module), func.attr
    if not isinstance(event.node, ast.Call) or getattr(event.node.func, "attr", "") in _OF_TENSORS:
        return None
    return facts.places.site(event.node.func, event.module), "forward"


def _learns(model: Made | Instance | Opaque) -> bool:
    """Whether it is a model, and no loss without parameters: what that makes of some rows says nothing of all."""
    layers = Layers()
    layers_of(model, layers)
    torch_s = isinstance(model, Made) and model.qualname.startswith("torch.nn.")
    known = (torch_s or isinstance(model, Instance)) and layers.complete
    own = any("Parameter(" in ast.unparse(each.node) for each in layers.own)
    names = (*(each.qualname for each in layers.parts), *layers.bases)
    return not known or own or any(map(LEARNING.fullmatch, names))


def _is_layer(made: Made) -> bool:
    return made.qualname.startswith("torch.nn.") and not made.qualname.endswith(("Sequential", "Transformer"))


def _refuse(analysis: Analysis, models: list[Made | Instance | Opaque], called: set[str]) -> None:
    """Raise NotWrapped where the rows of a process say which layers it calls: others may wait for their figures.

    All else that hangs on them is seen as the script runs.
    """
    layers, graded, seen = Layers(), set[int](), set[int]()
    for each in models:
        layers_of(each, layers)
    for event in analysis.facts.of("forward"):
        scopes = {id(each.scope) for each in analysis.facts.frames(event)}
        seen |= scopes
        graded |= scopes if not surely_no_grad(event) else set()
    for cls in {id(cls.node): cls for cls in layers.own}.values():
        for choice in walk(ast.parse(_computing(cls.node, called, seen - graded))):
            if not isinstance(choice, (ast.If, ast.While)) or not _BY_ROWS.search(ast.unparse(choice.test)):
                continue
            if _OWN_CALL.search("\n".join(map(ast.unparse, (*choice.body, *choice.orelse)))):
                asked = f"`{ast.unparse(choice.test)}` in `{cls.node.name}`"
                why = f"{asked} chooses by the rows of a process which layers it calls"
                raise NotWrapped(why, analysis.facts.places.site(cls.node, cls.module))


def _computing(cls: ast.ClassDef, called: set[str], ungraded: set[int]) -> str:
    """The text of the methods through which a layer computes: those that are called, and what they call of it. None
    that is only run where nobody asks for gradients."""
    own = [each for each in cls.body if isinstance(each, ast.FunctionDef) and id(each) not in ungraded]
    methods = {each.name: ast.unparse(_InTraining().visit(copy.deepcopy(each))) for each in own}
    waiting, found = [name for name in methods if name in called], dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in methods and name not in found:
            found[name] = methods[name]
            waiting += _OWN_CALL.findall(methods[name])
    return "\n".join(found.values())


class _InTraining(ast.NodeTransformer):
    """What is left of a method while the model trains."""

    def visit_If(self, node: ast.If) -> list[ast.stmt] | ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.test) == "self.training":
            return node.body
        return node.orelse or ast.Pass() if ast.unparse(node.test) == "not self.training" else node
