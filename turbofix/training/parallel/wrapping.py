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
from turbofix.domain.values import Class, Instance, Made, Opaque, members
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, parameters, reads_of, stored
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS
from turbofix.source.site import Site
from turbofix.training.model import Hazard, Model, Step, Wrapped
from turbofix.training.models.idle import has_idle_layers
from turbofix.training.objects import Layers, layers_of, method_calls, models_in, outermost
from turbofix.training.steps.acts import creates_graph
from turbofix.training.steps.discarded import is_updated_by
from turbofix.training.steps.regions import surely_no_grad

COPYING = "torch.nn.DataParallel"
_SAFE = frozenset(
    ("train", "eval", "parameters", "named_parameters", "zero_grad", "requires_grad_", "forward", "module", "modules")
)
"""What a wrapper answers as its module does."""
_NORMED = regex(
    r"BatchNorm|^(wide_)?res(net|next)\d|^(efficientnet|densenet|mobilenet|regnet|mnasnet|shufflenet|inception|googlenet)"
    r"|^vgg\d+_bn|^(deeplab|fcn|lraspp|fasterrcnn|maskrcnn|retinanet|timm|smp|segmentation_models_pytorch)"
)
"""Layers that normalise over a batch, and ready-made networks that have such."""
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


@dataclass(frozen=True)
class _Use:
    """A call of a model in a step: ``func`` is what is called, in these frames."""

    model: Made | Instance | Opaque
    func: ast.expr
    frames: tuple[Frame, ...]


def wrapped(analysis: Analysis, models: tuple[Model, ...], steps: tuple[Step, ...]) -> Iterator[Wrapped]:
    """The models that steps train, where a wrapper sees all their calls. Raises NotWrapped."""
    facts = analysis.facts
    found: dict[Site, list[_Use]] = {}
    for event in outermost(analysis, facts.of("forward")):
        loop = next((each.node for each in facts.loops(event) if trains(analysis, each.node, each.module, steps)), None)
        above = facts.places.parent(event.node, event.module)
        detached = isinstance(above, ast.Attribute) and above.attr in ("detach", "data")
        if loop is None or detached or surely_no_grad(event):
            continue
        if next(method_calls(analysis, event, loop), None) is not None:
            raise NotWrapped("a method of it is called past what wraps it", facts.site(event))
        for value in models_in(event.receiver):
            site = facts.origin_site(value.origin)
            if site is None or not is_updated_by(analysis, event, value):
                continue
            if not isinstance(event.node, ast.Call):
                raise NotWrapped("it is called in a way that was not followed", facts.site(event))
            found.setdefault(site, []).append(_Use(value, event.node.func, facts.frames(event)))
    known = {each.site: each for each in models}
    for site in _parts(found):  # what gets its gradients beside the whole is reduced with it
        del found[site]
    for site, uses in found.items():
        if (model := known.get(site)) is not None and model.wrapped is None:
            yield from _wrapped(analysis, model, uses)


def _parts(found: dict[Site, list[_Use]]) -> list[Site]:
    """The models that are parts of other ones."""
    inside: dict[Site, set[int]] = {}
    own: dict[Site, set[int]] = {}
    for site, uses in found.items():
        layers, values = Layers(), [each.model for each in uses]
        for value in values:
            layers_of(value, layers)
        own[site] = {id(each) for each in values}
        inside[site] = layers.seen - own[site]
    return [site for site in found if any(own[site] & seen for other, seen in inside.items() if other != site)]


def trains(analysis: Analysis, node: ast.AST, module: ModuleFile, steps: tuple[Step, ...]) -> bool:
    site = analysis.facts.places.site(node, module)
    return any(step.loop.site == site for step in steps)


def is_normed(analysis: Analysis, model: Model) -> bool:
    """Whether a model normalises over its batch, in a way that can be done over all processes.

    Synchronised batch normalisation cannot be differentiated twice.
    """
    by_name = not model.layers_complete and is_synchronised(analysis)
    seen = not model.layers.isdisjoint(_NORMS) or any(each.whole for each in model.convolutions)
    return (seen or by_name) and model.site not in _differentiated_again(analysis)


def is_synchronised(analysis: Analysis) -> bool:
    """Whether a model of the program may have layers that normalise over a batch, and can do so over all processes."""

    def named() -> bool:
        trees = [module.tree for module in analysis.execution.modules.values()]
        words = [each.attr for tree in trees for each in every(ast.Attribute, tree)]
        words += [each.id for tree in trees for each in every(ast.Name, tree)]
        return any(map(_NORMED.search, words))

    return analysis.once(("batch normalisation",), named)


def _differentiated_again(analysis: Analysis) -> set[Site]:
    """The models that are called where gradients are asked for, to go backward through them."""
    facts, places = analysis.facts, analysis.facts.places
    asking = [*facts.of("autograd_grad"), *(each for each in facts.of("backward") if creates_graph(each))]
    scopes = {places.scope(each.node, each.module) for each in asking}
    called = (each for each in facts.of("forward") if places.scope(each.node, each.module) in scopes)
    sites = (facts.origin_site(model.origin) for each in called for model in models_in(each.receiver))
    return {each for each in sites if each is not None}


def _wrapped(analysis: Analysis, model: Model, calls: list[_Use]) -> Iterator[Wrapped]:
    """A model, wrapped in front of each loop that no other one's wrapping comes before."""
    places = analysis.facts.places
    anchors = [_anchor(analysis, each) for each in calls]
    first = anchors[0]
    for each in anchors[1:]:
        if (each.scope, each.text) != (first.scope, first.text):
            why = f"the steps know it by two names, `{first.text}` and `{each.text}`"
            raise NotWrapped(why, places.site(each.at, each.module))
    chosen: list[_Anchor] = []
    thaws = bool(analysis.facts.attribute_writes("requires_grad"))  # a wrapper asks once what is trained
    for each in sorted(anchors, key=lambda one: (not one.behind, one.at.lineno)):  # type: ignore[attr-defined]
        before = next((one for one in chosen if one.behind or _comes_before(analysis, one, each)), None)
        before = None if thaws and before is not None and not each.behind and before.at is not each.at else before
        if before is None:
            chosen.append(each)
            continue
        before.uses.update(each.uses)
        before.given += each.given
        before.handed |= each.handed
    handed = {site for each in chosen for site in each.handed.union(each.uses)}
    for each in chosen:
        unwraps = {
            places.site(read, given[-1]): None
            for given in each.given
            for read in _needing_itself(analysis, given, handed)
        }
        yield Wrapped(
            model.site,
            each.text,
            places.site(each.at, each.module),
            each.behind,
            each.name,
            tuple(sorted(each.uses.items())),
            tuple(sorted(unwraps)),
            is_normed(analysis, model),
            has_idle_layers(analysis, (one.model for one in calls)),
        )


def _comes_before(analysis: Analysis, first: _Anchor, other: _Anchor) -> bool:
    """Whether whatever reaches a statement has come past another one: in its block, or one around it."""
    if first.module is not other.module:
        return True  # in another file, which is not looked into
    block = _block_of(analysis, first.at, first.module)
    around = (other.at, *analysis.facts.places.ancestors(other.at, other.module))
    return any(any(each is one for one in block) for each in around)


def _block_of(analysis: Analysis, node: ast.AST, module: ModuleFile) -> list[ast.stmt]:
    """The statements among which one stands."""
    above = analysis.facts.places.parent(node, module)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, None)
        if isinstance(block, list) and any(node is each for each in block):
            return block
    return []


def beside(text: str) -> str:
    """The name of the wrapped model beside the model's."""
    head, dot, last = text.rpartition(".")
    private = "_" * (len(last) - len(last.lstrip("_")))
    return f"{head}{dot}{private}ddp_{last.lstrip('_')}"


def _anchor(analysis: Analysis, use: _Use) -> _Anchor:
    """Where the model that a call takes has its name."""
    func = use.func
    if isinstance(func, ast.Attribute) and func.attr == "forward":
        return _named(analysis, func.value, use.frames, func)
    return _named(analysis, func, use.frames, func)


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
        found.handed |= {places.site(node, frame.module), places.site(passed, frames[-2].module)}
        if whole is not node:
            found.uses[site] = text
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
    is_method = frame.function is not None and frame.function.cls is not None
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    position -= is_method
    positional = call.args[: position + 1]
    if position < 0 or len(positional) <= position or any(isinstance(each, ast.Starred) for each in positional):
        return None
    return positional[position]


def _in_class(analysis: Analysis, function: ast.AST, module: ModuleFile) -> bool:
    return isinstance(analysis.facts.places.parent(function, module), ast.ClassDef)


def _of_object(analysis: Analysis, node: ast.expr, owner: ast.AST, frames: tuple[Frame, ...], site: Site) -> _Anchor:
    """Of an attribute: behind the last statement of the method of its class, or one it derives from, that sets it.

    Where other methods set it anew, or move it to its device, in front of the loop that trains it.
    """
    places, text, becomes = analysis.facts.places, dotted(node) or "", beside(dotted(node) or "")
    cls = places.parent(owner, frames[-1].module)
    assert isinstance(cls, ast.ClassDef)
    for event in analysis.facts.of("save"):
        given = event.arguments.get("obj", 0) if event.arguments is not None else None
        kept = members(given.value) if given is not None else ()
        if any(isinstance(each, Instance) and each.cls.node is cls for each in kept):
            raise NotWrapped(
                f"`{cls.name}` is saved as a whole, with what would wrap `{text}`", analysis.facts.site(event)
            )
    own = list(_methods(analysis, owner, cls, frames))
    setting = [(each, module) for each, module in own if _sets(each, text)]
    held = {id(each) for each in models_in(analysis.facts.evaluate(node, frames))}
    moving = {places.scope(each.node, each.module) for each in analysis.facts.of("transfer") if held & _ids(each)}
    elsewhere = moving & {each for each, _ in own} - {each for each, _ in setting}
    outer = next((each for each in frames if each.loops and any(each.scope is method for method, _ in own)), None)
    if outer is not None and (len(setting) != 1 or elsewhere):
        return _Anchor(cls, text, outer.loops[0], outer.module, name=becomes, uses={site: becomes})
    if len(setting) != 1:
        raise NotWrapped(f"`{text}` is not set in one method of its class", site)
    ((method, module),) = setting
    body = [each for each in method.body if not isinstance(each, ast.Return)]
    return _Anchor(cls, text, body[-1], module, behind=True, name=becomes, uses={site: becomes})


def _methods(
    analysis: Analysis, owner: ast.AST, cls: ast.ClassDef, frames: tuple[Frame, ...]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, ModuleFile]]:
    """The methods of an object, with those that its class inherits, each with its file."""
    classes = {cls: frames[-1].module}
    for each in members(analysis.facts.named(parameters(owner)[0].arg, owner, frames[-1])):
        if isinstance(each, Instance):
            classes.update((one.node, one.module) for one in each.cls.mro() if isinstance(one, Class))
    for known, module in classes.items():
        for method in known.body:
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield method, module


def _sets(method: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> bool:
    first = method.args.args[0].arg if method.args.args else ""
    own = f"{first}.{text.partition('.')[2]}"
    return own == text and any(
        isinstance(each, (ast.Assign, ast.AnnAssign)) and own in stored([each]) for each in walk(method)
    )


def _needing_itself(analysis: Analysis, given: tuple[ast.AST, str, ModuleFile], taken: set[Site]) -> Iterator[ast.AST]:
    """The reads of a parameter which a wrapper cannot serve: its own methods, and where it is handed on."""
    places, (function, name, module) = analysis.facts.places, given
    for read in reads_of(name, function):
        whole = read
        while isinstance(whole, ast.Attribute):
            whole = whole.value  # type: ignore[assignment]
        above = places.parent(whole, module)
        served = isinstance(above, ast.Attribute) and above.attr in _SAFE
        called = isinstance(above, ast.Call) and above.func is whole
        if places.site(whole, module) not in taken and not served and not called:
            yield whole


def copied(analysis: Analysis) -> Iterator[Site]:
    """The calls of ``DataParallel``, which copies a model to several GPUs of one process."""
    for event in [*analysis.facts.of("wrap"), *(each for each in analysis.facts.dead if each.kind == "wrap")]:
        if event.name == COPYING and isinstance(event.node, ast.Call):
            yield analysis.facts.site(event)


def _ids(event: Event) -> set[int]:
    return {id(each) for each in models_in(event.receiver)}
