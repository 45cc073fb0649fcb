"""The models that a program builds, and the layers in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from turbofix.dataflow.facts import Frame
from turbofix.dataflow.placements import UNKNOWN_PLACE
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import is_off, switch_of
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Event
from turbofix.domain.values import (
    Class,
    Const,
    External,
    Function,
    Instance,
    Made,
    Mapping,
    Method,
    Opaque,
    Sequence,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.names import dotted
from turbofix.source.site import Site
from turbofix.training.frameworks.owners import PLACED, placed
from turbofix.training.model import Model, Placement
from turbofix.training.models.convolutions import convolutions_of
from turbofix.training.models.magnitudes import numbers_of
from turbofix.training.models.products import products_of
from turbofix.training.steps.acts import is_model, is_module_class

_ON_PRECISION = regex(r"fp16|bf16|half|precision|amp\b")


# --- models -------------------------------------------------------------------------------------------------------
def models_in(value: Value | None, depth: int = 6) -> Iterator[Made | Instance | Opaque]:
    """The models that a value is or wraps."""
    for member in members(value):
        if isinstance(member, Made):
            if member.kind == "wrapper" or (member.inner is not None and member.kind in ("engine", "accelerator")):
                yield from models_in(member.inner, depth - 1) if depth else ()
            elif member.kind in ("module", "model"):
                yield member
        elif (isinstance(member, Instance) and is_module_class(member)) or (
            isinstance(member, Opaque) and is_model(member)
        ):
            yield member
        elif isinstance(member, Method) and depth:
            yield from models_in(member.receiver, depth - 1)


def is_made_here(model: Made | Instance | Opaque) -> bool:
    """Whether the place is known that makes a model: an unknown one has it where a call gave it."""
    return not isinstance(model, Opaque) or model.how == "call"


def model_sites(analysis: Analysis, events: list[Event], loop: ast.AST) -> list[Site]:
    """The models that are called in a loop. Layers called inside of a model, by any method, count as that model."""
    return sorted({site for each in _model_choices(analysis, events, loop) for site in each})


def _model_choices(analysis: Analysis, events: list[Event], loop: ast.AST) -> list[tuple[Site, ...]]:
    """For every call of a model in a loop, the models one of which it calls, as far as they are known."""
    found: dict[tuple[object, ...], set[Site]] = {}
    for event in outermost(analysis, [each for each in events if each.kind == "forward"]):
        owner = called_through(analysis, event, loop)
        for model in (owner,) if owner is not None else models_in(event.receiver):
            site = analysis.facts.origin_site(model.origin)
            if site is not None and is_made_here(model):
                # each of several that a name can be is called by itself, at the same place
                place = (event.node, *(frame.call for frame in analysis.facts.frames(event)))
                found.setdefault(place, set()).add(site)
    return list(dict.fromkeys(tuple(sorted(sites)) for sites in found.values()))


def called_through(analysis: Analysis, event: Event, loop: ast.AST | None) -> Instance | None:
    """The model whose own method (``model.decode(z)``) makes a forward call; None where it is called as such."""
    return next((model for model, _ in methods_around(analysis, event, loop)), None)


def methods_around(analysis: Analysis, event: Event, loop: ast.AST | None) -> Iterator[tuple[Instance, str]]:
    """The models whose own methods make a forward call, from the outermost, with the methods' names."""
    return ((model, call.attr) for model, call, _ in method_calls(analysis, event, loop))


def method_calls(
    analysis: Analysis, event: Event, loop: ast.AST | None
) -> Iterator[tuple[Instance, ast.Attribute, tuple[Frame, ...]]]:
    """The calls of models' own methods around a forward call: the model, ``model.method``, and the frames around it."""
    frames = analysis.facts.frames(event)
    inner = len(analysis.facts.frames_within(event, loop)) if loop is not None else len(frames)
    for index in range(len(frames) - inner + 1, len(frames)):
        frame = frames[index]
        if frame.function is None or frame.function.cls is None or not isinstance(frame.call, ast.Call):
            continue
        if isinstance(frame.call.func, ast.Attribute):
            for member in members(analysis.facts.evaluate(frame.call.func.value, frames[:index])):
                if isinstance(member, Instance) and is_module_class(member):
                    yield member, frame.call.func, frames[:index]


def outermost(analysis: Analysis, forwards: list[Event]) -> list[Event]:
    """The forward calls that are not made inside another model's forward, nor by a container for its layers."""
    nodes = {id(event.node) for event in forwards}
    parts: dict[int, set[int]] = {}
    for event in forwards:
        for model in models_in(event.receiver):
            if isinstance(model, Made) and model.inner is not None:
                inside = parts.setdefault(id(event.node), set())
                inside.update(id(each) for each in flatten(model.inner, 4))
    return [
        event
        for event in forwards
        if not any(frame.call is not None and id(frame.call) in nodes for frame in analysis.facts.frames(event))
        and not any(id(model) in parts.get(id(event.node), ()) for model in models_in(event.receiver))
    ]


@dataclass(eq=False)
class Layers:
    """The external layers in a model."""

    names: set[str] = field(default_factory=set)
    parts: list[Made] = field(default_factory=list)
    own: list[Class] = field(default_factory=list)  # the program's own classes of layers
    functions: list[Function] = field(default_factory=list)  # functions of the program that its layers hold
    bases: set[str] = field(default_factory=set)  # what the program's own layers derive from
    foreign: bool = False  # another library's layers are among them
    unseen: bool = False  # a part of the model was not seen
    seen: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether every layer was seen, and is torch's own."""
        return not self.unseen and not self.foreign


def layers_of(value: Value | None, found: Layers, depth: int = 12) -> None:
    """Collect the external layers that a model is made of, through attributes, containers and wrappers."""
    for member in members(value):
        if id(member) in found.seen or isinstance(member, (Const, External, Function)):
            continue
        found.seen.add(id(member))
        if depth < 0:
            found.unseen = True
        elif isinstance(member, Made):
            if member.kind == "wrapper":
                found.names.add(member.qualname)
            if member.kind in ("module", "criterion", "model"):
                found.names.add(member.qualname)
                found.parts.append(member)
                if member.qualname.endswith("*") or not member.qualname.startswith("torch.nn."):
                    found.foreign = True
                for given in member.arguments.values():
                    _layers_in(given, found, depth)
            for held in member.attributes.values():
                _layers_in(held, found, depth)
            if member.inner is not None:
                layers_of(member.inner, found, depth - 1)
        elif isinstance(member, Instance):
            found.own.append(member.cls)
            for name in member.cls.externals():
                plain = name.startswith("typing.") or name.endswith(".LightningModule")  # a torch.nn.Module for this
                if name not in ("torch.nn.Module", "builtins.object", "abc.ABC") and not plain:
                    found.names.add(name)
                    found.bases.add(name)
                    if not name.startswith("torch.nn."):
                        found.foreign = True
            for held in member.attributes.values():
                _layers_in(held, found, depth)
                found.functions += [each for each in members(held) if isinstance(each, Function)]
                if any(isinstance(each, Opaque) and each.uses & {"()", "(tensor)"} for each in members(held)):
                    found.unseen = True  # something unknown is called in it
        elif isinstance(member, (Sequence, Mapping)):
            _layers_in(member, found, depth)
            if any(isinstance(each, (Opaque, Unknown)) for each in flatten(member, 4)):
                found.unseen = True
        elif isinstance(member, Opaque):
            found.unseen = True


def _layers_in(value: Value | None, found: Layers, depth: int) -> None:
    for each in flatten(value, 4):
        if (isinstance(each, Made) and each.kind in ("module", "criterion", "model", "wrapper")) or isinstance(
            each, Instance
        ):
            layers_of(each, found, depth - 1)


def _leave_out(analysis: Analysis, layers: Layers, values: list[Made | Instance | Opaque]) -> None:
    """Take away the layers that are made under tests which do not hold as the program stands, if the model is made."""
    made = ((each, each.origin) for each in (*layers.parts, *values))
    off = {id(each) for each, origin in made if origin is not None and is_off(analysis, origin.node)}
    if not any(id(each) in off for each in values):
        kept = [part for part in layers.parts if id(part) not in off]
        layers.names -= {part.qualname for part in layers.parts} - {part.qualname for part in kept}
        layers.parts = kept


def models(analysis: Analysis) -> tuple[Model, ...]:
    """Every model that is called, trained, moved or wrapped."""
    facts = analysis.facts
    forwards = outermost(analysis, facts.of("forward"))
    kept: dict[Site, list[Made | Instance | Opaque]] = {}
    for event in (*forwards, *facts.of("mode", "wrap", "compile")):
        value = (event.result or event.receiver) if event.kind == "wrap" else event.receiver
        if event.kind == "forward":
            value = called_through(analysis, event, None) or value
        for model in models_in(value):
            site = facts.origin_site(model.origin)
            if site is None or not is_made_here(model):
                continue
            kept.setdefault(site, [])
            if not any(model is each for each in kept[site]):
                kept[site].append(model)
    default = _default_dtype(analysis)
    taken = placed(analysis)
    found = [_model(analysis, site, kept[site], default) for site in sorted(kept)]
    return tuple(
        replace(model, device=PLACED) if model.site in taken and model.device.where in ("cpu", "unknown") else model
        for model in found
    )


def models_given(analysis: Analysis, values: Iterable[Value]) -> tuple[Model, ...]:
    """The models that values are, or wrap, wherever these go."""
    kept: dict[Site, list[Made | Instance | Opaque]] = {}
    for model in (each for value in values for each in models_in(value)):
        site = analysis.facts.origin_site(model.origin)
        if site is not None and is_made_here(model):
            kept.setdefault(site, []).append(model)
    default = _default_dtype(analysis) if kept else None
    return tuple(_model(analysis, site, kept[site], default) for site in sorted(kept))


def _model(analysis: Analysis, site: Site, values: list[Made | Instance | Opaque], default_dtype: str | None) -> Model:
    # however often each is among them, but for whether there is one alone (`numbers_of`)
    question = ("model", site, tuple(dict.fromkeys(map(id, values))), len(values) == 1, default_dtype)
    return analysis.once(question, lambda: _described(analysis, site, values, default_dtype))


def _described(
    analysis: Analysis, site: Site, values: list[Made | Instance | Opaque], default_dtype: str | None
) -> Model:
    facts = analysis.facts
    first = values[0]
    layers = Layers()
    for value in values:
        layers_of(value, layers)
    _leave_out(analysis, layers, values)
    device = UNKNOWN_PLACE
    made_in = {_made_in(value) for value in values}
    made = made_in.pop() if len(made_in) == 1 else None
    half, dtype = made is not None, made or default_dtype
    compiled: Site | None = None
    wrapped: str | None = None
    places: list[Placement] = []
    for event in facts.of("transfer", "cast", "wrap", "compile"):
        receiver = event.result or event.receiver if event.kind == "wrap" else event.receiver
        if not any(model is value for model in models_in(receiver) for value in values):
            # `self.embed = nn.Embedding(...).bfloat16()`: what goes on from a part in 16 bits stays in 16 bits
            is_part = event.kind in ("transfer", "cast") and any(id(each) in layers.seen for each in members(receiver))
            half = half or (is_part and _cast_to(event) in ("float16", "bfloat16"))
            continue
        if event.kind == "wrap":
            wrapped = next((each.qualname for each in members(receiver) if isinstance(each, Made)), event.name)
        elif event.kind == "compile":
            compiled = compiled or facts.site(event)
        elif event.kind == "cast" or event.name in ("half", "bfloat16", "double"):
            named = _cast_to(event)
            if named is not None and named != "float32":
                half, dtype = True, None if _may_stay(analysis, event) else named
            elif named is not None and made is not None and dtype == made:  # cast back; a part of it may stay as it is
                half, dtype = False, default_dtype
        elif event.name in ("to", "cuda") and (event.name == "cuda" or _names_device(event)):
            places.append(analysis.devices.of_transfer(event))
            if event.name == "to" and (named := _cast_to(event)) in ("float16", "bfloat16"):
                half, dtype = True, None if _may_stay(analysis, event) else named  # `model.to(device, torch.bfloat16)`
    known = [place for place in places if place.where != "unknown"]
    if known:
        device = known[0]
        if any(place.where == "conditional" for place in known) and device.where == "cpu":
            device = next(place for place in known if place.where == "conditional")
    elif places:
        device = places[0]
    elif _default_device(analysis) is not None:
        device = _default_device(analysis) or device
    else:
        device = Placement("cpu")
    cls = first.cls if isinstance(first, Instance) else None
    assert first.origin is not None
    return Model(
        site=site,
        name=assigned_name(analysis, first.origin.node, first.origin.module),
        cls=facts.places.site(cls.node, cls.module) if cls is not None else None,
        layers=frozenset(layers.names),
        layers_complete=layers.complete,
        device=device,
        half=half,
        dtype=dtype,
        compiled=compiled,
        wrapped=wrapped,
        products=products_of(layers.parts, layers.bases, unseen=layers.unseen),
        convolutions=convolutions_of(layers.parts, layers.bases),
        numbers=numbers_of(analysis, layers.parts, values),
        pretrained=any(id(each) in layers.seen for each in loaded_from_files(analysis)),
    )


def loaded_from_files(analysis: Analysis) -> list[Value]:
    """What is given weights of a file before the training begins, as the program stands."""

    def found() -> list[Value]:
        begins = min((each.order for each in analysis.facts.of("backward")), default=0)
        takers: list[Value] = []
        for event in analysis.facts.of("load"):
            given = event.arguments.get("state_dict", 0) if event.arguments is not None else None
            read = given is not None and any(
                isinstance(each, Opaque) and "load" in each.name.partition("(")[0] for each in members(given.value)
            )
            if read and event.order < begins and not switch_of(analysis, event).off:
                takers += members(event.receiver)
        return takers

    return analysis.once(("loaded from files",), found)


def _made_in(model: Made | Instance | Opaque) -> str | None:
    """The 16 bits that a model is made in, on some way at least: ``from_pretrained(name, dtype=torch.bfloat16)``."""
    if not isinstance(model, Made):
        return None
    for name in ("torch_dtype", "dtype"):
        passed = model.arguments.get(name)
        found = {_sixteen_bits(each) for each in members(passed.value)} - {None} if passed is not None else set()
        if found:
            return min(found, key=str)
    return None


def _sixteen_bits(dtype: Value) -> str | None:
    named = dtype.qualname if isinstance(dtype, External) else getattr(dtype, "value", None)
    last = str(named).rpartition(".")[2]
    return {"half": "float16", "float16": "float16", "bfloat16": "bfloat16"}.get(last)


def _names_device(event: Event) -> bool:
    from turbofix.dataflow.placements import is_dtype

    arguments = event.arguments
    passed = arguments.get("device", 0) if arguments is not None else None
    return passed is not None and not is_dtype(passed.value)


def _cast_to(event: Event) -> str | None:
    named = {"half": "float16", "bfloat16": "bfloat16", "double": "float64", "float": "float32"}.get(event.name)
    if named is not None:
        return named
    if event.arguments is not None:
        for value in event.arguments.values():
            for member in members(value):
                if isinstance(member, External) and member.qualname.startswith("torch."):
                    last = member.qualname.rpartition(".")[2]
                    return {"half": "float16", "float": "float32", "double": "float64"}.get(last, last)
    return None


def _may_stay(analysis: Analysis, event: Event) -> bool:
    """Whether a cast may be to float32 as well, or be left out, as a test of the precision decides."""
    given = event.arguments.values() if event.arguments is not None else ()
    named = {each.qualname for value in given for each in members(value) if isinstance(each, External)}
    around = analysis.facts.places.ancestors(event.node, event.module)
    tests = (ast.unparse(each.test) for each in around if isinstance(each, ast.If))
    return bool(named & {"torch.float32", "torch.float"}) or any(map(_ON_PRECISION.search, tests))


def _default_dtype(analysis: Analysis) -> str | None:
    """``float64`` where the program makes it the default."""
    for event in analysis.facts.of("set"):
        if event.name in ("torch.set_default_dtype", "torch.set_default_tensor_type") and event.arguments is not None:
            for value in event.arguments.values():
                for member in members(value):
                    text = member.qualname if isinstance(member, External) else str(getattr(member, "value", ""))
                    if "double" in text.lower() or "float64" in text:
                        return "float64"
    return None


def _default_device(analysis: Analysis) -> Placement | None:
    """Where new tensors go when the program says so once for all."""
    from turbofix.dataflow.placements import device_of

    for event in analysis.facts.of("set"):
        if event.arguments is None:
            continue
        for value in event.arguments.values():
            if event.name == "torch.set_default_device":
                where, kind = device_of(value)
                return Placement(where, None, kind)
            if event.name == "torch.set_default_tensor_type":
                text = " ".join(
                    each.qualname if isinstance(each, External) else str(getattr(each, "value", ""))
                    for each in members(value)
                )
                if "cuda" in text:
                    return Placement("cuda")
    return None


def assigned_name(analysis: Analysis, node: ast.AST, module: ModuleFile) -> str | None:
    """What the value of an expression is assigned to, in its own statement."""
    statement = analysis.facts.places.statement(node, module)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return dotted(statement.targets[0])
    if isinstance(statement, ast.AnnAssign):
        return dotted(statement.target)
    return None
