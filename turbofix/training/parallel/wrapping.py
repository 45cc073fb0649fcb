"""Which calls of a model a wrapper has to see, and where it can be wrapped so that they do.

The model keeps its name: what is saved, evaluated and averaged stays as it is. The wrapped one has a name beside it,
which the forward calls of training steps take, and functions that make them are given in its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import field

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.questions import Analysis
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.records import dataclass
from turbofix.source.names import dotted, parameters, reads_of, stored
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.model import Copied, Hazard, Model, Step, Wrapped
from turbofix.training.models.idle import has_idle_layers
from turbofix.training.objects import Layers, called_through, layers_of, models_in, outermost
from turbofix.training.steps.acts import creates_graph
from turbofix.training.steps.discarded import is_updated_by
from turbofix.training.steps.regions import surely_no_grad

COPYING = "torch.nn.DataParallel"
_SAFE = frozenset(
    ("train", "eval", "parameters", "named_parameters", "zero_grad", "requires_grad_", "forward", "module", "modules")
)
"""What a wrapper answers as its module does."""
_NORMS = tuple(f"torch.nn.BatchNorm{dims}d" for dims in (1, 2, 3))


class NotWrapped(Exception):  # noqa: N818  (an outcome, not an error)
    """Why a model cannot be wrapped, and where that is seen."""

    def __init__(self, why: str, site: Site) -> None:
        super().__init__(why)
        self.hazard = Hazard(why, site)


@dataclass(eq=False)
class _Anchor:
    """Where a model has its name: a scope and a text, and a statement in front of (or behind) which it is whole."""

    scope: ast.AST
    text: str
    at: ast.AST
    module: ModuleFile
    behind: bool = False
    name: str = ""
    uses: dict[Site, str] = field(default_factory=dict)
    handed: set[Site] = field(default_factory=set)  # where functions that are given the wrapped one hand it on
    given: list[tuple[ast.AST, str, ModuleFile]] = field(default_factory=list)  # functions, and their parameters


def wrapped(analysis: Analysis, models: tuple[Model, ...], steps: tuple[Step, ...]) -> Iterator[Wrapped]:
    """The models that steps train. Raises NotWrapped."""
    facts = analysis.facts
    found: dict[Site, list[Event]] = {}
    for event in outermost(analysis, facts.of("forward")):
        loop = next(
            (each.node for each in facts.loops(event) if _trains(analysis, each.node, each.module, steps)), None
        )
        if loop is None or surely_no_grad(event):
            continue
        through = called_through(analysis, event, loop)
        for value in (through,) if through is not None else models_in(event.receiver):
            site = facts.origin_site(value.origin)
            if site is None or not is_updated_by(analysis, event, value):
                continue
            if through is not None:
                where = facts.site(event)
                why = f"`{value_name(event)}` is called by a method of its own, of which a wrapper sees nothing"
                raise NotWrapped(why, where)
            found.setdefault(site, []).append(event)
    known = {each.site: each for each in models}
    for site in _parts(found):  # what gets its gradients beside the whole is reduced with it
        del found[site]
    for site, events in found.items():
        model = known.get(site)
        if model is not None and model.wrapped is None:
            yield _wrapped(analysis, model, events)


def _parts(found: dict[Site, list[Event]]) -> list[Site]:
    """The models that are parts of other ones."""
    inside: dict[Site, set[int]] = {}
    own: dict[Site, set[int]] = {}
    for site, events in found.items():
        layers, values = Layers(), [each for event in events for each in models_in(event.receiver)]
        for value in values:
            layers_of(value, layers)
        own[site] = {id(each) for each in values}
        inside[site] = layers.seen - own[site]
    return [site for site in found if any(own[site] & seen for other, seen in inside.items() if other != site)]


def value_name(event: Event) -> str:
    """What is called in a forward pass, in the words of the text."""
    return ast.unparse(event.node.func) if isinstance(event.node, ast.Call) else "the model"


def _trains(analysis: Analysis, node: ast.AST, module: ModuleFile, steps: tuple[Step, ...]) -> bool:
    site = analysis.facts.places.site(node, module)
    return any(step.loop.site == site for step in steps)


def is_normed(analysis: Analysis, model: Model) -> bool:
    """Whether a model normalises over its batch, in a way that can be done over all processes.

    Synchronised batch normalisation cannot be differentiated twice.
    """
    by_name = not model.layers_complete and is_synchronised(analysis)
    seen = not model.layers.isdisjoint(_NORMS) or any(each.whole for each in model.convolutions)
    return (seen or by_name) and not _is_differentiated_again(analysis)


def is_synchronised(analysis: Analysis) -> bool:
    """Whether a model of the program may have layers that normalise over a batch, and can do so over all processes."""
    named = any("BatchNorm" in module.text for module in analysis.execution.modules.values())
    return named and not _is_differentiated_again(analysis)


def _is_differentiated_again(analysis: Analysis) -> bool:
    facts = analysis.facts
    return bool(facts.of("autograd_grad")) or any(map(creates_graph, facts.of("backward")))


def _wrapped(analysis: Analysis, model: Model, events: list[Event]) -> Wrapped:
    places = analysis.facts.places
    anchors = [_anchor(analysis, event) for event in events]
    first = anchors[0]
    for each in anchors[1:]:
        if (each.scope, each.text) != (first.scope, first.text):
            why = f"the steps know it by two names, `{first.text}` and `{each.text}`"
            raise NotWrapped(why, places.site(each.at, each.module))
        if not each.behind and each.at.lineno < first.at.lineno:  # type: ignore[attr-defined]
            first.at = each.at
        first.uses.update(each.uses)
        first.given += each.given
        first.handed |= each.handed
    taken = first.handed.union(first.uses)
    unwraps = {
        places.site(read, module): None
        for function, name, module in first.given
        for read in _needing_itself(analysis, function, name, module, taken)
    }
    return Wrapped(
        model.site,
        first.text,
        places.site(first.at, first.module),
        first.behind,
        first.name,
        tuple(sorted(first.uses.items())),
        tuple(sorted(unwraps)),
        is_normed(analysis, model),
        has_idle_layers(analysis, (model for event in events for model in models_in(event.receiver))),
    )


def beside(text: str) -> str:
    """The name of the wrapped model beside the model's."""
    head, dot, last = text.rpartition(".")
    private = "_" * (len(last) - len(last.lstrip("_")))
    return f"{head}{dot}{private}ddp_{last.lstrip('_')}"


def _anchor(analysis: Analysis, event: Event) -> _Anchor:
    """Where the model that a forward pass calls has its name."""
    node = event.node
    if not isinstance(node, ast.Call):
        raise NotWrapped("it is called in a way that was not followed", analysis.facts.site(event))
    func: ast.expr = node.func
    if isinstance(func, ast.Attribute) and func.attr == "forward":
        func = func.value
    return _named(analysis, func, analysis.facts.frames(event), node.func)


def _named(analysis: Analysis, node: ast.expr, frames: tuple[Frame, ...], whole: ast.expr) -> _Anchor:
    """Follow an expression of a model up to where it has a name; ``whole`` is what the wrapped one replaces."""
    facts, places = analysis.facts, analysis.facts.places
    frame, text = frames[-1], dotted(node)
    site = places.site(whole, frame.module)
    if text is None:
        raise NotWrapped(f"`{ast.unparse(node)}` is no name by which it could be told from what wraps it", site)
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    assert isinstance(root, ast.Name)
    owner = facts.bindings.owner(root.id, root, frame.module)
    at_frame = next((each for each in reversed(frames) if each.scope is owner), None)
    if at_frame is None:
        raise NotWrapped(f"where `{text}` is set was not followed", site)
    names = [each.arg for each in parameters(owner)] if isinstance(owner, FUNCTIONS) else []
    is_self = isinstance(owner, FUNCTIONS) and names[:1] == [root.id] and _in_class(analysis, owner, frame.module)
    if is_self and text.count(".") == 1:
        return _of_object(analysis, node, owner, frames, site)
    outermost_loops = next((index for index, each in enumerate(frames) if each.loops), len(frames) - 1)
    if root.id in names and owner is frame.scope and len(frames) - 1 > outermost_loops:  # called once for each epoch
        passed = argument(frame, names.index(root.id), root.id) if node is root else None
        if passed is None or root.id in stored(owner.body):  # type: ignore[attr-defined]
            raise NotWrapped(f"how `{text}` is handed to its function was not followed", site)
        found = _named(analysis, passed, frames[:-1], passed)
        found.handed |= {site, places.site(passed, frames[-2].module)}
        found.given.append((owner, root.id, frame.module))
        return found
    loop = next((each for each in at_frame.loops if not {root.id, text} & stored([each])), None)
    at = loop or places.statement(at_frame.anchor, at_frame.module) or at_frame.anchor
    new = beside(text).rpartition(".")[2]
    return _Anchor(owner, text, at, at_frame.module, uses={site: new}, name=new)


def argument(frame: Frame, position: int, name: str) -> ast.expr | None:
    """What a call hands to a parameter."""
    call = frame.call
    if not isinstance(call, ast.Call):
        return None
    bound = frame.function is not None and frame.function.cls is not None and isinstance(call.func, ast.Attribute)
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    position -= bool(bound)
    positional = call.args[: position + 1]
    if position < 0 or len(positional) <= position or any(isinstance(each, ast.Starred) for each in positional):
        return None
    return positional[position]


def _in_class(analysis: Analysis, function: ast.AST, module: ModuleFile) -> bool:
    return isinstance(analysis.facts.places.parent(function, module), ast.ClassDef)


def _of_object(analysis: Analysis, node: ast.expr, owner: ast.AST, frames: tuple[Frame, ...], site: Site) -> _Anchor:
    """Of an attribute: behind the last statement of the method of its class that sets it.

    Where another method moves it to its device, in front of the loop that trains it.
    """
    places, module, text = analysis.facts.places, frames[-1].module, dotted(node) or ""
    cls = places.parent(owner, module)
    assert isinstance(cls, ast.ClassDef)
    own = [each for each in cls.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    setting = [each for each in own if _sets(each, text)]
    if len(setting) != 1:
        raise NotWrapped(f"`{text}` is not set in one method of its class", site)
    becomes = beside(text)
    held = {id(each) for each in models_in(analysis.facts.evaluate(node, frames))}
    moves = [
        event
        for event in analysis.facts.of("transfer")
        if held & _ids(event) and places.scope(event.node, event.module) in own and event.module is module
    ]
    outer = next((each for each in frames if each.loops and each.scope in own), None)
    if outer is not None and any(places.scope(each.node, module) is not setting[0] for each in moves):
        return _Anchor(cls, text, outer.loops[0], module, name=becomes, uses={site: becomes})
    body = [each for each in setting[0].body if not isinstance(each, ast.Return)]
    return _Anchor(cls, text, body[-1], module, behind=True, name=becomes, uses={site: becomes})


def _sets(method: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> bool:
    first = method.args.args[0].arg if method.args.args else ""
    own = f"{first}.{text.partition('.')[2]}"
    return own == text and any(
        isinstance(each, (ast.Assign, ast.AnnAssign)) and own in stored([each]) for each in walk(method)
    )


def _needing_itself(
    analysis: Analysis, function: ast.AST, name: str, module: ModuleFile, taken: set[Site]
) -> Iterator[ast.AST]:
    """The reads of a parameter which a wrapper cannot serve: its own methods, and where it is handed on."""
    places = analysis.facts.places
    for read in reads_of(name, function):
        whole = read
        while isinstance(whole, ast.Attribute):
            whole = whole.value  # type: ignore[assignment]
        above = places.parent(whole, module)
        if places.site(whole, module) in taken:
            continue
        if isinstance(above, ast.Attribute) and above.attr in _SAFE:
            continue
        if isinstance(above, ast.Call) and above.func is whole:
            continue
        yield whole


def copied(analysis: Analysis, models: tuple[Model, ...]) -> Iterator[Copied]:
    """The models that ``DataParallel`` copies to several GPUs of one process. Raises NotWrapped."""
    places = analysis.facts.places
    wraps = [*analysis.facts.of("wrap"), *(each for each in analysis.facts.dead if each.kind == "wrap")]
    done: set[Site] = set()
    for event in wraps:
        site = analysis.facts.site(event)
        if event.name != COPYING or not isinstance(event.node, ast.Call) or site in done:
            continue
        done.add(site)
        given = event.arguments.get("module", 0) if event.arguments is not None else None
        if given is None or given.node is None:
            raise NotWrapped("what `DataParallel` wraps is not written in its call", site)
        tests = []
        for above in places.ancestors(event.node, event.module):
            if isinstance(above, (*FUNCTIONS, ast.Module, ast.ClassDef)):
                break
            if isinstance(above, (ast.If, ast.IfExp)):
                inside = above.body if isinstance(above.body, list) else [above.body]
                if not any(event.node is each for block in inside for each in walk(block)):
                    raise NotWrapped("`DataParallel` stands in the other branch of a test", site)
                tests.append(places.site(above.test, event.module))
        sites = {analysis.facts.origin_site(each.origin) for each in models_in(event.receiver)}
        own = [each for each in models if each.site in sites]
        before = [
            each
            for each in analysis.facts.of("transfer")
            if each.order < event.order and {id(one) for one in models_in(each.receiver)} & _ids(event)
        ]
        yield Copied(
            site,
            places.site(given.node, event.module),
            tuple(tests),
            not before,
            any(is_normed(analysis, each) for each in own),
            has_idle_layers(analysis, models_in(event.receiver)),
        )


def _ids(event: Event) -> set[int]:
    return {id(each) for each in models_in(event.receiver)}
