"""What a program builds besides loaders: models, optimizers, the parts of mixed precision, global switches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from turbofix.dataflow.exports import called_outside
from turbofix.dataflow.guards import Condition
from turbofix.dataflow.placements import UNKNOWN_PLACE
from turbofix.dataflow.provenance import argument_from, argument_of, bound_arguments
from turbofix.dataflow.questions import Analysis
from turbofix.dataflow.switches import around, is_off, picked, stands, switch_of, told
from turbofix.domain.scopes import ModuleFile
from turbofix.domain.trace import Arguments, Event, Passed
from turbofix.domain.values import (
    Class,
    Const,
    External,
    Function,
    Instance,
    Iterated,
    Made,
    Mapping,
    Method,
    Opaque,
    Sequence,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.library.tables import OPTIMIZER_PARAMETERS
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted, is_main_test, parameters
from turbofix.source.nodes import walk
from turbofix.source.places import FUNCTIONS, LOOPS, SCOPES
from turbofix.source.site import Site
from turbofix.training.data.loaders import merged
from turbofix.training.frameworks.owners import PLACED, is_owner, owner_beside, placed
from turbofix.training.frameworks.owning import takes_loss
from turbofix.training.model import (
    ABSENT,
    ALWAYS,
    Act,
    Argument,
    Guard,
    Model,
    Optimizer,
    Passing,
    Placement,
    Scaler,
    Setting,
    StateSave,
    Step,
)
from turbofix.training.models.complexes import has_complex_weights
from turbofix.training.models.convolutions import convolutions_of
from turbofix.training.models.magnitudes import numbers_of
from turbofix.training.models.products import products_of
from turbofix.training.optimizers.frozen import all_but_a_head
from turbofix.training.optimizers.regrouped import is_regrouped
from turbofix.training.optimizers.unfused import gives_sparse, partly_distributed, sharded, sparse_gradients
from turbofix.training.steps.acts import act_of, concerned, is_model, is_module_class, optimizers_in, stepper

_COMPUTED = {"made", "data", "input", "batch", "output"}
_UNSURE = {"param", "maybe_output", "object"}
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
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
    return sorted({site for each in model_choices(analysis, events, loop) for site in each})


def model_choices(analysis: Analysis, events: list[Event], loop: ast.AST) -> list[tuple[Site, ...]]:
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
    frames = analysis.facts.frames(event)
    inner = len(analysis.facts.frames_within(event, loop)) if loop is not None else len(frames)
    for index in range(len(frames) - inner + 1, len(frames)):
        frame = frames[index]
        if frame.function is None or frame.function.cls is None or not isinstance(frame.call, ast.Call):
            continue
        if isinstance(frame.call.func, ast.Attribute):
            for member in members(analysis.facts.evaluate(frame.call.func.value, frames[:index])):
                if isinstance(member, Instance) and is_module_class(member):
                    yield member, frame.call.func.attr


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
    sparse: bool = False
    lazy: bool = False  # the first input gives some of them their shape
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
                found.sparse = found.sparse or _is_sparse(member)
                found.lazy = found.lazy or _is_lazy(member)
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


def _is_sparse(layer: Made) -> bool:
    """Whether a layer may give sparse gradients: an embedding that is told to."""
    position = 6 if layer.qualname in ("torch.nn.Embedding", "torch.nn.EmbeddingBag") else 99
    return gives_sparse(layer.arguments, "sparse", position)


def _is_lazy(layer: Made) -> bool:
    """Whether a layer has no shape before its first input: torch's by their names, PyTorch Geometric's by a size of -1.

    These take one size, or one for each kind of node: ``SAGEConv((-1, -1), 64)``.
    """
    package, _, name = layer.qualname.rpartition(".")
    if package.startswith("torch.nn"):
        return name.startswith("Lazy")
    size = layer.arguments.get("in_channels", 0) if package.partition(".")[0] == "torch_geometric" else None
    given = (*members(size.value), *flatten(size.value, 2)) if size is not None else ()
    return any(isinstance(each, Const) and type(each.value) is int and each.value == -1 for each in given)


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
        products=products_of(layers.parts, layers.bases, whole=values, unseen=layers.unseen),
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


# --- optimizers ---------------------------------------------------------------------------------------------------


def optimizers(analysis: Analysis, steps: tuple[Step, ...], known: tuple[Model, ...]) -> tuple[Optimizer, ...]:
    """Every optimizer that is built."""
    facts = analysis.facts
    by_node: dict[int, list[Event]] = {}
    for event in facts.of("make"):
        if any(isinstance(member, Made) and member.kind == "optimizer" for member in members(event.result)):
            by_node.setdefault(id(event.node), []).append(event)
    used = {site for step in steps for site in step.optimizers}
    taken = placed(analysis)
    found = [_optimizer(analysis, events, used, known, taken) for events in by_node.values()]
    return tuple(sorted(found, key=lambda each: each.site))


def _made_as_well(analysis: Analysis, node: ast.AST) -> Iterator[str]:
    """What else a call makes that makes an optimizer: ``cls(**params)`` of a helper for all that a file names."""
    for event in analysis.facts.at(node):
        for each in members(event.result) if event.kind in ("make", "construct") else ():
            made = each.base if isinstance(each, Instance) and each.base is not None else each
            if isinstance(made, Made) and made.kind != "optimizer":
                yield made.qualname
            elif isinstance(made, Instance):
                yield made.cls.node.name


def _optimizer(
    analysis: Analysis, events: list[Event], used: set[Site], known: tuple[Model, ...], taken: frozenset[Site]
) -> Optimizer:
    facts = analysis.facts
    event = events[0]
    node, module = event.node, event.module
    made = [
        member
        for each in events
        for member in members(each.result)
        if isinstance(member, Made) and member.kind == "optimizer"
    ]
    names = {each.qualname for each in made}
    qualname = next(iter(names)) if len(names) == 1 else None
    order = OPTIMIZER_PARAMETERS.get(qualname or "", ("params", "lr"))
    all_arguments = [each.arguments for each in events if each.arguments is not None]
    passed = merged(bound_arguments(each, order) for each in all_arguments)
    statement = facts.places.statement(node, module) or node
    site = facts.places.site(node, module)
    passes, complete = _passes(analysis, made)
    params = [each.value for one in all_arguments if (each := one.get("params", 0)) is not None]
    if not any(True for owner in parameter_owners(params) for _ in models_in(owner)):  # create_optimizer(args, model)
        params += [value for one in all_arguments for value in one.values() if any(True for _ in models_in(value))]
    trained = _trained(analysis, params, known)
    device = UNKNOWN_PLACE
    if trained:
        device = trained[0].device
    elif site in taken:
        device = PLACED  # a framework that takes an optimizer over moves its parameters
    layers = Layers()
    owned: list[Value] = []
    owners = list(parameter_owners(params))
    for value in owners:
        layers_of(value, layers)
        owned += models_in(value)
    qualname = qualname if qualname is None or not qualname.endswith("*") else None
    arguments = {name: argument_from(each, module, facts, analysis.reads) for name, each in sorted(passed.items())}
    return Optimizer(
        site=site,
        qualname=qualname,
        qualnames=tuple(sorted(names.union(_made_as_well(analysis, node)))),
        arguments=arguments,
        open_mapping=any(each.open or each.star for each in all_arguments),
        statement=facts.places.site(statement, module),
        target_text=_target_text(analysis, statement, node, module),
        name=_target_text(analysis, statement, node, module),
        passes=passes,
        passes_complete=complete,
        function=facts.places.function_site(node, module),
        in_loop=any(isinstance(each.node, LOOPS) for one in events for each in facts.loops(one)),
        device=device,
        before_move=_before_move(analysis, event, params),
        sparse=layers.sparse or (qualname in _TAKES_SPARSE and sparse_gradients(analysis)),
        distributed=partly_distributed(analysis, owned),
        sharded=sharded(analysis),
        lazy=layers.lazy and not _called_before(analysis, event, params),
        shared=any(_shares(each) for value in params for each in members(value)),
        regrouped=qualname == "torch.optim.SGD" and is_regrouped(analysis, params),
        state_loads=_state_loads(analysis, made),
        state_saves=_state_saves(analysis, made),
        branch=_branch(analysis, node, module),
        trains=_trains(params, trained),  # type: ignore[arg-type]
        used=site in used,
        handed_over=_is_handed_over(analysis, made),
        owner=owner_beside(analysis, event),
        complex=has_complex_weights(analysis),
        frozen=all_but_a_head(analysis, event, owners),
    )


_TAKES_SPARSE = ("torch.optim.SGD", "torch.optim.Adagrad")
"""Optimizers that take sparse gradients, as long as they are not fused; the others raise for them in any case."""


def _is_handed_over(analysis: Analysis, made: list[Made]) -> bool:
    """Whether an engine is given the optimizer, or may be: by a mapping, from an unknown, or where it is not seen."""
    results = [member for event in analysis.facts.of("make") for member in members(event.result)]
    engines = [each for each in results if isinstance(each, Made) and each.kind == "engine"]
    for engine in engines:
        given = engine.arguments.get("optimizer", 2)
        if engine.arguments.open or engine.arguments.star:
            return True
        for value in members(given.value) if given is not None else ():
            if any(value is each for each in made) or not isinstance(value, (Const, Made)):
                return True
    return not engines and any(takes_loss(event) for event in analysis.facts.of("backward"))


def _target_text(analysis: Analysis, statement: ast.AST, node: ast.AST, module: ModuleFile) -> str | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is node:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is node:
        target = statement.target
    else:
        return None
    if isinstance(target, (ast.Tuple, ast.List)):
        return None
    return analysis.facts.places.text(target, module)


def parameter_owners(params: list[Value]) -> Iterator[Value]:
    """The models whose parameters an optimizer is given; one value for each way in which it is built."""
    for each in (member for value in params for member in flatten(value, 4)):
        if isinstance(each, (Iterated, Tensor, Opaque)):
            # a tensor that a model has computed is not a parameter of it
            if each.source is not None and not (isinstance(each, Tensor) and "param" not in each.roles):
                yield from members(each.source)
        elif isinstance(each, (Instance, Made)):
            yield each


def _trained(analysis: Analysis, params: list[Value], known: tuple[Model, ...]) -> list[Model]:
    sites = {
        site
        for value in parameter_owners(params)
        for model in models_in(value)
        if (site := analysis.facts.origin_site(model.origin)) is not None
    }
    return [model for model in known if model.site in sites]


def _trains(params: list[Value], trained: list[Model]) -> str:
    if trained:
        return "model"
    inside = [each for value in params for each in flatten(value, 4)]
    found = [each for each in inside if not isinstance(each, (Sequence, Mapping, Const, Iterated))]
    if any(isinstance(member, (Instance, Made)) for value in parameter_owners(params) for member in members(value)):
        return "model"
    tensors = [each for each in found if isinstance(each, Tensor)]
    if tensors and len(tensors) == len(found):
        if all("param" in each.roles and each.source is not None for each in tensors):
            return "model"
        # torch's optimizers take leaves alone: what a model has computed was detached on its way here
        if all(each.roles & _COMPUTED and not each.roles & _UNSURE for each in tensors):
            return "inputs"
    return "unknown"


def _shares(given: Value) -> bool:
    """Whether one module is surely a part of two models whose parameters are handed over together."""
    models = {id(model): model for model in _together(given)}.values()
    sure = [model for model in models if isinstance(model, (Instance, Made)) and _is_made_once(model)]
    parts = [{id(part) for part in _parts(model, set())} for model in sure]
    return any(one & other for index, one in enumerate(parts) for other in parts[:index])


def _together(given: Value) -> Iterator[Value]:
    """The models of ``chain(a.parameters(), b.parameters())`` and of a list of both, where no test chooses."""
    if isinstance(given, Iterated) and given.wrapper == "chain":
        for each in members(given.source):
            if isinstance(each, Iterated) and each.wrapper == "parameters":
                yield from members(each.source)
    elif isinstance(given, Sequence) and given.origin is not None:
        written = [*walk(given.origin.node)]
        asked = [each for each in written if isinstance(each, ast.Attribute) and each.attr == "parameters"]
        if len(asked) > 1 and not any(isinstance(each, (ast.comprehension, ast.IfExp)) for each in written):
            for item in flatten(given, 1):
                if isinstance(item, Tensor):
                    yield from members(item.source)


def _is_made_once(model: Instance | Made) -> bool:
    return not any(
        level.kind in ("loop", "comprehension", "try") or (level.kind == "if" and not level.decided)
        for level in model.made_at.chain()
    )


_WITH_PARAMETERS = regex(
    r"torch\.nn\.(Lazy)?(Conv|Linear|Bilinear|Embedding|BatchNorm|LayerNorm|GroupNorm|RMSNorm|LSTM|GRU|RNN|Transformer"
    r"|MultiheadAttention|PReLU)"
)


def _parts(model: Value, seen: set[int]) -> Iterator[Made]:
    """The layers with parameters that a model surely registers: those of attributes and containers, not of lists."""
    if not isinstance(model, (Instance, Made)) or id(model) in seen or not _is_made_once(model):
        return
    seen.add(id(model))
    held = [*model.attributes.values()]
    if isinstance(model, Made):
        if _WITH_PARAMETERS.match(model.qualname):
            yield model
        held += flatten(model.inner, 2)
    for each in held:
        yield from _parts(each, seen)


def _before_move(analysis: Analysis, event: Event, params: list[Value]) -> bool:
    """Whether the optimizer's model is moved to a GPU only after the optimizer took its parameters."""
    owners = [model for value in parameter_owners(params) for model in models_in(value)]
    moves = [
        each.order
        for each in analysis.facts.of("transfer")
        if each.name in ("to", "cuda")
        and any(model is owner for model in models_in(each.receiver) for owner in owners)
        and analysis.devices.of_transfer(each).reaches_cuda
    ]
    return bool(moves) and min(moves) > event.order


def _called_before(analysis: Analysis, event: Event, params: list[Value]) -> bool:
    """Whether each of the optimizer's models has seen an input by then."""
    owners = [model for value in parameter_owners(params) for model in models_in(value)]
    called = [
        model for each in analysis.facts.of("forward") if each.order < event.order for model in models_in(each.receiver)
    ]
    return bool(owners) and all(any(model is owner for model in called) for owner in owners)


def _optimizers_of(analysis: Analysis, event: Event) -> list[Made | Instance]:
    """The optimizers in what an event's call is made on: each optimizer of a program asks for them, of whole models."""
    return analysis.once(("optimizers of", id(event.receiver)), lambda: list(optimizers_in(event.receiver)))


def _state_loads(analysis: Analysis, made: list[Made]) -> tuple[Act, ...]:
    found: dict[Site, Act] = {}
    for event in analysis.facts.of("load"):
        if any(one is each for one in _optimizers_of(analysis, event) for each in made):
            found.setdefault(analysis.facts.site(event), act_of(analysis, event, None))
    for event in analysis.once("calls of owners", lambda: _calls_of_owners(analysis)):
        if _restores(event, made):
            found.setdefault(analysis.facts.site(event), act_of(analysis, event, None))
    return tuple(found[site] for site in sorted(found))


def _calls_of_owners(analysis: Analysis) -> list[Event]:
    return [event for event in analysis.facts.of("call") if any(is_owner(each) for each in members(event.receiver))]


def _restores(event: Event, made: list[Made]) -> bool:
    """Whether a call loads optimizers: `accelerator.load_state(...)`, `fabric.load(path, {"optimizer": optimizer})`."""
    name = event.name.rpartition(".")[2]
    if name == "load_state":
        return True
    if name not in ("load", "load_raw") or event.arguments is None:
        return False
    passed = event.arguments.get("state" if name == "load" else "obj", 1)
    given = [] if passed is None else [passed.value, *flatten(passed.value, 3)]
    unknown = any(isinstance(each, (Unknown, Opaque)) for value in given for each in members(value))
    return unknown or any(one is each for value in given for one in optimizers_in(value) for each in made)


def _state_saves(analysis: Analysis, made: list[Made]) -> tuple[StateSave, ...]:
    """The places that take the optimizer's state, with the entry of a checkpoint's dict that each is."""
    places = analysis.facts.places
    found: dict[Site, StateSave] = {}
    for event in analysis.facts.of("call"):
        if not event.name.endswith("state_dict") or event.name.endswith("load_state_dict"):
            continue
        if not any(one is each for one in _optimizers_of(analysis, event) for each in made):
            continue
        node, module = event.node, event.module
        parent = places.parent(node, module)
        mapping: ast.AST | None = None
        key: str | None = None
        if isinstance(parent, ast.Dict):
            mapping = parent
            entry = next((name for name, value in zip(parent.keys, parent.values, strict=False) if value is node), None)
            key = entry.value if isinstance(entry, ast.Constant) and isinstance(entry.value, str) else None
        elif isinstance(parent, ast.keyword) and parent.arg is not None:
            call = places.parent(parent, module)
            if isinstance(call, ast.Call) and dotted(call.func) == "dict":
                mapping, key = call, parent.arg
        site = places.site(node, module)
        taken = places.site(mapping, module) if mapping is not None and key is not None else None
        found.setdefault(site, StateSave(site, taken, key, places.function_site(node, module)))
    return tuple(found[site] for site in sorted(found))


def _branch(analysis: Analysis, node: ast.AST, module: ModuleFile) -> Site | None:
    """The outermost compound statement around a construction, in its function; the ``__main__`` guard is none."""
    places = analysis.facts.places
    outermost: ast.AST | None = None
    for each in places.ancestors(node, module):
        if isinstance(each, SCOPES):
            break
        if isinstance(each, _BRANCHES) and not (isinstance(each, ast.If) and is_main_test(each.test)):
            outermost = each
    return places.site(outermost, module) if outermost is not None else None


def _passes(analysis: Analysis, made: list[Made]) -> tuple[tuple[Passing, ...], bool]:
    """The hops that an optimizer makes as an argument of project functions, on its way to the calls that step it."""
    facts = analysis.facts
    hops: dict[Site, Passing] = {}
    complete = True
    for event in facts.of("step", "zero_grad", "unscale", "update"):
        if not any(one is each for one in optimizers_in(concerned(event)) for each in made):
            continue
        frames = facts.frames(event)
        expression: ast.AST | None = None
        if isinstance(event.node, ast.Call):
            through = event.node.args[0] if stepper(event.receiver) == "scaler" and event.node.args else None
            expression = through or getattr(event.node.func, "value", None)
        for index in range(len(frames) - 1, -1, -1):
            frame = frames[index]
            if not isinstance(expression, ast.Name):
                # an attribute travels with its object; anything else is not followed
                complete = complete and (expression is None or dotted(expression) is not None)
                break
            owner = facts.bindings.owner(expression.id, expression, frame.module)
            if owner is not frame.scope or not any(each.arg == expression.id for each in parameters(frame.scope)):
                break
            if not isinstance(frame.call, ast.Call) or index == 0:
                complete = False
                break
            from turbofix.dataflow.facts import argument_for

            argument = argument_for(expression.id, frame, frame.call)
            if argument is None or not isinstance(frame.scope, FUNCTIONS):
                complete = False
                break
            caller = frames[index - 1]
            hop = Passing(
                facts.places.site(frame.call, caller.module),
                facts.places.site(argument, caller.module),
                facts.places.site(frame.scope, frame.module),
                expression.id,
                called_outside(analysis, frame.module, frame.scope),
            )
            hops.setdefault(hop.argument, hop)
            expression = argument
    for event in facts.events:
        if event.kind == "unknown_call" and event.arguments is not None:
            for value in event.arguments.values():
                if any(one is each for one in optimizers_in(value, 0) for each in made):
                    complete = False
    return tuple(hops[site] for site in sorted(hops)), complete


# --- mixed precision and switches ---------------------------------------------------------------------------------


_OF_PRECISION = frozenset(("make", "call", "cast", "backward", "step", "wrap"))
"""The kinds of events that may be a part of mixed precision."""


def precision(analysis: Analysis) -> tuple[Scaler, ...]:
    """The parts of a mixed-precision set-up that the program has already, dead branches included."""
    facts = analysis.facts
    found: dict[Site, Scaler] = {}
    entered: dict[Site, set[Site]] = {}
    for event in facts.of("enter"):
        for member in members(event.receiver):
            if isinstance(member, Made) and member.kind == "autocast":
                made = facts.origin_site(member.origin)
                if made is not None:
                    entered.setdefault(made, set()).add(facts.site(event))
    for event in (*facts.events, *facts.dead):
        scaler = _scaler(analysis, event, entered) if event.kind in _OF_PRECISION else None
        if scaler is not None:
            found.setdefault(scaler.site, scaler)
    for module in facts.execution.modules.values():
        plain, asynchronous = every(ast.FunctionDef, module.tree), every(ast.AsyncFunctionDef, module.tree)
        lists = [*(each.decorator_list for each in plain), *(each.decorator_list for each in asynchronous)]
        for decorator in (decorator for decorators in lists for decorator in decorators):
            if is_autocast_decorator(decorator, module):
                site = facts.places.site(decorator, module)
                found.setdefault(site, Scaler(site, "torch.autocast", "autocast"))
    return tuple(found[site] for site in sorted(found))


def _scaler(analysis: Analysis, event: Event, entered: dict[Site, set[Site]]) -> Scaler | None:
    """The part of mixed precision that an event is."""
    site = analysis.facts.site
    if event.kind == "make":
        for member in reversed(members(event.result)):
            if isinstance(member, Made) and member.kind in ("scaler", "lossscaler", "autocast"):
                return Scaler(
                    site(event),
                    member.qualname,
                    "autocast" if member.kind == "autocast" else "scaler",
                    _enabled(analysis, event, member),
                    _dtype_text(member.arguments),
                    tuple(sorted(entered.get(site(event), ()))),
                )
    elif event.kind == "call" and event.name.startswith("apex.amp."):
        return Scaler(site(event), event.name, "apex", _apex_switch(analysis, event))
    elif event.kind == "cast" and event.name in ("half", "bfloat16") and is_model(event.receiver):
        named = "float16" if event.name == "half" else event.name
        return Scaler(site(event), f"torch.nn.Module.{event.name}", "half", switch_of(analysis, event), named)
    elif event.kind == "backward" and (takes_loss(event) or _is_owned(event)):
        return Scaler(site(event), receiver_name(event), "framework")
    elif event.kind == "step" and stepper(event.receiver) == "scaler" and not _made(event.receiver):
        return Scaler(site(event), receiver_name(event), "scaler")
    if event.kind in ("make", "call", "wrap") and _sets_precision(event):
        return Scaler(site(event), event.name, "framework", _policy(analysis, event))
    return None


_OWN_PRECISION = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "mixed_precision",
    "torch.distributed.fsdp.fully_shard": "mp_policy",
    "torch.distributed._composable.fsdp.fully_shard": "mp_policy",
    "intel_extension_for_pytorch.optimize": "dtype",
    "transformer_engine.pytorch.autocast": None,
    "transformer_engine.pytorch.fp8_autocast": None,
    "ray.train.torch.accelerate": "amp",
}
"""Calls by which a library (or torch's sharding) takes over the precision, and the argument that says so."""


def _sets_precision(event: Event) -> bool:
    """Whether a call takes over the precision: the argument for it is passed, and may be more than None or float32."""
    if event.name not in _OWN_PRECISION or event.arguments is None:
        return False
    name = _OWN_PRECISION[event.name]
    passed = event.arguments.get(name) if name is not None else None
    given = members(passed.value) if passed is not None else ()
    return name is None or any(
        each.value if isinstance(each, Const) else getattr(each, "qualname", None) != "torch.float32" for each in given
    )


def _policy(analysis: Analysis, event: Event) -> Argument:
    """Whether a call that takes over the precision does so: by the tests around it, and by what it is passed."""
    name = _OWN_PRECISION[event.name]
    passed = event.arguments.get(name) if event.arguments is not None and name is not None else None
    switch = switch_of(analysis, event)
    may_be_none = passed is not None and any(
        isinstance(each, Const) and not each.value for each in members(passed.value)
    )
    if passed is None or passed.node is None or not may_be_none or switch.state != "absent":
        return switch
    return Argument("unknown", text=analysis.facts.places.text(passed.node, event.module))


def _is_owned(event: Event) -> bool:
    """``optimizer.backward(loss)`` of an optimizer that scales the loss itself, as apex's FP16_Optimizer."""
    return event.name == "optimizer" and event.arguments is not None and bool(event.arguments.positions)


def _made(value: Value | None) -> bool:
    """Whether a value was seen being made."""
    return any(isinstance(member, (Made, Instance)) for member in members(value))


def receiver_name(event: Event) -> str:
    """What the call of an event is made on, as it is written: ``engine`` of ``engine.backward(loss)``."""
    function = event.node.func if isinstance(event.node, ast.Call) else None
    return dotted(function) or event.name if function is not None else event.name


def _apex_switch(analysis: Analysis, event: Event) -> Argument:
    """Whether apex's mixed precision is on: by ``enabled``, by ``opt_level="O0"``, or by the tests around the call."""
    for name in ("enabled", "opt_level"):
        passed = event.arguments.get(name) if event.arguments is not None else None
        given = argument_from(passed, event.module, analysis.facts, analysis.reads)
        if given.state in ("value", "option") and set(given.values) <= {False, "O0"}:
            return replace(given, values=(False,))
    return switch_of(analysis, event)


def is_autocast_decorator(node: ast.expr, module: ModuleFile) -> bool:
    """Whether a decorator is torch's autocast."""
    call = node.func if isinstance(node, ast.Call) else node
    name = dotted(call)
    if name is None:
        return False
    head, _, rest = name.partition(".")
    value = module.scope.names.get(head)
    return any(
        isinstance(member, External) and (f"{member.qualname}.{rest}" if rest else member.qualname).endswith("autocast")
        for member in members(value)
    )


def autocasts_around(analysis: Analysis, event: Event) -> Iterator[Site]:
    """The autocast regions that an event happens under: where each is entered, or decorates a function."""
    places = analysis.facts.places
    for level in event.control.upwards():
        if level.kind == "with" and isinstance(level.detail, tuple) and level.module is not None:
            item, value = level.detail
            place = item if item is not None else level.node
            if place is not None and any(isinstance(each, Made) and each.kind == "autocast" for each in members(value)):
                yield places.site(place, level.module)
    for frame in analysis.facts.frames(event):
        for decorator in getattr(frame.scope, "decorator_list", ()):
            if is_autocast_decorator(decorator, frame.module):
                yield places.site(decorator, frame.module)


def _enabled(analysis: Analysis, event: Event, made: Made) -> Argument:
    position = None
    if made.kind == "autocast":
        position = 2 if made.qualname == "torch.autocast" else 0
    passed = made.arguments.get("enabled", position)
    given = argument_from(passed, event.module, analysis.facts, analysis.reads)
    if made.kind == "autocast" and given.state == "absent":
        given = _full_precision(analysis, event, made)
    if given.state not in ("absent", "value", "option") and passed is not None and isinstance(passed.node, ast.expr):
        stand = stands(analysis.facts, passed.node, analysis.facts.frames(event))
        given = told(analysis, stand, passed.node, event.module) if stand is not None else given
    if given.state not in ("absent", "value") or given.off:
        return given  # the script says itself what turns it on; tests around it may decide on more
    switch = switch_of(analysis, event)
    return switch if switch.state != "absent" and (given.state == "absent" or not any(switch.values)) else given


def _full_precision(analysis: Analysis, event: Event, made: Made) -> Argument:
    """Autocast to float32 casts nothing: it is off where the dtype that an option picks is that one."""
    passed = made.arguments.get("dtype")
    if passed is None or not isinstance(passed.node, ast.expr):
        return ABSENT
    found = picked(analysis.facts, passed.node, analysis.facts.frames(event))
    if found is None or (dotted(found[0]) or "").rpartition(".")[2] not in ("float32", "float"):
        return ABSENT
    _, stand, choices = found
    halves = (key for key, value in choices.items() if (dotted(value) or "").endswith(".bfloat16"))
    wanted = stand.wanted if True in choices else next(halves, None)
    return replace(told(analysis, replace(stand, wanted=wanted), passed.node, event.module), values=(False,))


def _dtype_text(arguments: Arguments) -> str | None:
    """The one data type that is asked for; None where there are several, or none."""
    passed = arguments.get("dtype", None)
    found: set[str] = set()
    for candidate in [passed] if passed is not None else arguments.positions[:2]:
        for member in members(candidate.value):
            if isinstance(member, External) and member.qualname.startswith("torch."):
                last = member.qualname.rpartition(".")[2]
                found.add({"half": "float16", "float": "float32"}.get(last, last))
    return found.pop() if len(found) == 1 else None


def settings(analysis: Analysis) -> tuple[Setting, ...]:
    """The global switches that the program sets."""
    found: dict[tuple[Site, str], Setting] = {}
    for event in analysis.facts.of("set"):
        setting = setting_of(analysis, event)
        found.setdefault((setting.site, setting.name), setting)
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0], key[1])))


def setting_of(analysis: Analysis, event: Event) -> Setting:
    """What one event sets, and when."""
    facts = analysis.facts
    value: Argument = Argument("unknown")
    if event.arguments is not None and (event.arguments.positions or event.arguments.keywords):
        first = (*event.arguments.positions, *event.arguments.keywords.values())[0]
        value = argument_from(first, event.module, facts, analysis.reads)
    elif event.result is not None:
        node = event.node.value if isinstance(event.node, ast.Assign) else None
        value = argument_of(Passed(event.result, True, node), facts, analysis.reads, event.module)
    elif event.arguments is not None:
        value = ABSENT
    guard, switch = circumstances(analysis, event)
    return Setting(event.name, value, facts.site(event), guard, switch)


def _around(analysis: Analysis, event: Event) -> list[Condition]:
    """The tests that an event stands under in the program as a whole, outermost first."""
    return [condition for condition, _ in around(analysis, event.node, analysis.facts.frames(event))]


def circumstances(analysis: Analysis, event: Event) -> tuple[Guard, Argument]:
    """Under which tests an event happens in the program as a whole, and what they say as the program stands.

    Those that a training stands under in the same block are none: whenever that runs, the event has happened.
    """
    facts = analysis.facts
    trained = {id(each.test) for one in facts.of("backward") for each in _around(analysis, one) if each.holds}
    conditions = [
        each
        for each in _around(analysis, event)
        if not (each.test is not None and (is_main_test(each.test) or (each.holds and id(each.test) in trained)))
    ]
    loop = next((record.node for record in facts.loops(event)), facts.execution.entry.tree)
    guard = analysis.guards.judge_all(conditions, loop) if conditions else ALWAYS
    return guard, switch_of(analysis, event) if conditions else ABSENT
