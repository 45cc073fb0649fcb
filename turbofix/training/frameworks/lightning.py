"""The trainings of Lightning: how its trainer is made, and what the steps of the module do that it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from turbofix.dataflow.provenance import argument_from
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Arguments, Event
from turbofix.domain.values import (
    Bound,
    Class,
    Const,
    Function,
    Instance,
    Made,
    Opaque,
    Tensor,
    Unknown,
    Value,
    flatten,
    members,
)
from turbofix.library.tables import is_loss, is_scalar_loss, words
from turbofix.source.answers import every, parents_in
from turbofix.source.names import ASSIGNING, dotted, written
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.data.loaders import loader_sites
from turbofix.training.data.shapes import resized_in
from turbofix.training.frameworks.unread import wish_at
from turbofix.training.model import Argument, Compiling, Framework, Handed, Hazard, Loader, Model, ModuleSteps, Training
from turbofix.training.models.compiling import differentiated
from turbofix.training.objects import models_given
from turbofix.training.steps.losses import called_in
from turbofix.training.told.overlooked import shown_by_the_bar
from turbofix.training.told.removed import rows
from turbofix.training.told.written import meaning, written_of

_TRAINERS = ("lightning.pytorch.Trainer", "pytorch_lightning.Trainer")
FITS = tuple(f"{name}.fit" for name in _TRAINERS)
_TESTS = tuple(f"{name}.test" for name in _TRAINERS)
_PREDICTS = tuple(f"{name}.predict" for name in _TRAINERS)
_CLI = (
    "lightning.pytorch.cli.LightningCLI",
    "pytorch_lightning.cli.LightningCLI",
    "pytorch_lightning.utilities.cli.LightningCLI",
)
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")

_STRATEGIES = {
    "DDPStrategy": "ddp",
    "DDPPlugin": "ddp",
    "SingleDeviceStrategy": "auto",
    "FSDPStrategy": "fsdp",
    "DeepSpeedStrategy": "deepspeed",
}
_HIDING = {None, "precision_plugin"}
"""What may give a strategy a precision of its own."""

_OLD = {name for name, found in rows().items() if name and found[0].call == "*lightning*.Trainer"}
_OLD |= words("training_epoch_end validation_epoch_end test_epoch_end optimizer_idx")
"""Arguments of the trainer and methods of modules that Lightning 2 does not have."""

_SHAPING = words(
    """
    view reshape flatten squeeze unsqueeze transpose permute contiguous size dim argmax long float detach item to cuda
    cpu append items keys values get format log log_dict
    """
)
"""Methods whose result is as precise as what they are called on, or that are of no tensor."""

_FREEZING = ("requires_grad", "requires_grad_", "freeze", "toggle_optimizer", "peft_config")
"""What keeps parameters from being trained, or asks which are."""

_PLAIN = frozenset(("len", "range", "enumerate", "zip", "print", "isinstance", "int", "dict", "list", "tuple"))


_ONE_BY_ONE = "the steps call its layers one by one, and compiling a layer of torch.nn's own does nothing"


def lightning_trainings(analysis: Analysis) -> tuple[Training, ...]:
    """Every training that is started by ``trainer.fit(module)``, or by Lightning's command line."""
    found: dict[Site, list[tuple[Training, Event, list[Value]]]] = {}
    parsed = {id(event.node) for event in analysis.facts.of("make") if event.name in _CLI}
    for event in analysis.facts.of("call", "make"):
        if event.arguments is None or event.name not in FITS:
            continue
        given = event.arguments.get("model", 0)
        modules = list(members(given.value)) if given is not None else []
        resumes = event.arguments.get("ckpt_path", 4) is not None
        for trainer in members(event.receiver):
            made = trainer.base if isinstance(trainer, Instance) else trainer
            training = _training(analysis, made, modules, resumes=resumes) if isinstance(made, Made) else None
            if training is not None and isinstance(made, Made):
                if id(made.origin.node) in parsed:
                    training = replace(training, parsed="--trainer.")
                elif _is_from_options(made.origin.node):
                    training = replace(training, parsed="--")
                found.setdefault(training.site, []).append((training, event, modules))
    return tuple(_of_all(analysis, found[site]) for site in sorted(found))


def _of_all(analysis: Analysis, fits: list[tuple[Training, Event, list[Value]]]) -> Training:
    """The training of a trainer that is told to fit so many times, perhaps from a checkpoint in one branch."""
    training, event, modules = fits[0]
    steps = [each.module and replace(each.module, resumes=False) for each, _, _ in fits]
    if any(each != steps[0] for each in steps):  # several modules: what holds for one need not for the other
        return Training(training.site, training.qualname, training.arguments, training.open_mapping)
    if training.module is not None:
        resumes = any(each.module.resumes for each, _, _ in fits if each.module is not None)
        training = replace(training, module=replace(training.module, resumes=resumes))
    return _started(analysis, training, event if len(fits) == 1 else None, modules)


def _is_from_options(call: ast.AST) -> bool:
    """Whether a call makes a trainer of parsed options: ``Trainer.from_argparse_args(options)``."""
    return isinstance(call, ast.Call) and (dotted(call.func) or "").endswith(".from_argparse_args")


def _started(analysis: Analysis, training: Training, event: Event | None, modules: list[Value]) -> Training:
    """A training with the models in its module: where each can be changed before it starts, and what it is called.

    That is the statement of the one call that starts it, where that names the one module, else the end of the module's
    ``__init__``.
    """
    places = analysis.facts.places
    given = event.arguments.get("model", 0) if event is not None and event.arguments is not None else None
    statement = places.statement(event.node, event.module) if event is not None else None
    called = dotted(given.node) if given is not None and given.node is not None else None
    one_class = len({each.cls.node for each in modules if isinstance(each, Instance)}) == 1
    inside = called is None or not one_class or not isinstance(statement, (ast.Expr, ast.Assign))
    parts: dict[tuple[str, Site], tuple[Model, Site]] = {}
    taken = differentiated(analysis)
    for module in modules:
        own = _inits(module)[:1] if isinstance(module, Instance) and inside else []
        ends = [places.site(each.node.body[-1], each.module) for each in own if isinstance(each.node, ast.FunctionDef)]
        if not inside and event is not None and statement is not None:
            ends = [places.site(statement, event.module)]
        if not isinstance(module, Instance) or not ends:
            continue
        name, run = "self" if inside else called or "", _called_in_training(analysis, module)
        if _has_own_layers(module):
            for model in models_given(analysis, [module]):
                alone = Hazard(_ONE_BY_ONE, model.site) if id(module) not in run else None
                by_name = () if run.get(id(module), True) else ("forward",)
                compiling = Compiling(barred=alone or taken.get(model.site), methods=by_name)
                parts[name, model.site] = replace(model, compiling=compiling), ends[0]
            continue
        set_up = [node for init in _inits(module) for node in walk(init.node) if isinstance(node, ASSIGNING)]
        filled = [node for node in set_up if not isinstance(getattr(node, "value", None), ast.Constant)]
        there = {name for node in filled for name in written(node)}
        for attribute, value in module.attributes.items():
            if f"self.{attribute}" in there:  # before `setup` and `configure_model`
                for each in members(value):
                    if isinstance(each, Opaque) and "(tensor)" in each.uses and "(tensors)" not in each.uses:
                        each.uses.add("parameters")  # its optimizer takes those of the whole module
                by_name = ("forward",) if any(run.get(id(each)) is False for each in members(value)) else ()
                for model in models_given(analysis, [value]):
                    compiling = Compiling(barred=taken.get(model.site), methods=by_name)
                    parts[f"{name}.{attribute}", model.site] = replace(model, compiling=compiling), ends[0]
    return replace(training, inside=inside, parts=tuple((name, *part) for (name, _), part in parts.items()))


def _called_in_training(analysis: Analysis, module: Value) -> dict[int, bool]:
    """What the training steps of a module run, by identity: whether it is called itself, or its ``forward`` by name."""
    facts = analysis.facts
    own = module.cls.find("training_step") if isinstance(module, Instance) else None
    found: dict[int, bool] = {}
    for event in facts.events_in_functions(each.node for each in members(own) if isinstance(each, Function)):
        called = event.node.func if isinstance(event.node, ast.Call) and event.kind == "forward" else None
        by_name = isinstance(called, ast.Attribute) and called.attr == "forward"
        if called is None or (isinstance(called, ast.Attribute) and called.attr == event.name and not by_name):
            continue  # another method of its: `self.log(...)`
        for each in members(event.receiver):
            found[id(each)] = found.get(id(each), False) or not by_name
    return found


def _inits(module: Instance) -> list[Function]:
    """The constructors of a module's class and of those that it derives from, its own first."""
    found = [
        value for cls in module.cls.mro() if isinstance(cls, Class) for value in members(cls.names.get("__init__"))
    ]
    return [each for each in found if isinstance(each, Function) and isinstance(each.node, ast.FunctionDef)]


def _has_own_layers(module: Instance) -> bool:
    """Whether a module computes with layers of torch that it holds itself: it is the model then."""
    held = [each for value in module.attributes.values() for each in members(value) if isinstance(each, Made)]
    named = {each.qualname for each in held if each.kind == "module"} - {"torch.nn.*"}  # (that may be a criterion)
    return any(each.startswith("torch.nn.") for each in named)


# --- the loaders that a trainer reads -----------------------------------------------------------------------------

_FED = (("train_dataloaders", 1, "training"), ("val_dataloaders", 2, "evaluation"))
_GIVING = (("train_dataloader", "training"), ("val_dataloader", "evaluation"))
_BETWEEN = ("on_train_epoch_start", "on_train_epoch_end", "on_epoch_start", "on_epoch_end", "on_validation_epoch_end")
"""Hooks that run between epochs, and may change what workers that are kept hold copies of."""


def with_feeding(analysis: Analysis, found: tuple[Loader, ...], framework: Framework) -> tuple[Loader, ...]:
    """The loaders with their role for Lightning's trainer, which is given them or asks a module for them."""
    if framework is not Framework.LIGHTNING:
        return found
    fed: dict[Site, Loader] = {}
    known = {loader.site: loader for loader in found if loader.role in ("unused", "unknown")}
    for event in analysis.facts.of("call"):
        tested = event.arguments.get("dataloaders", 1) if event.arguments is not None and event.name in _TESTS else None
        for site in loader_sites(analysis, tested.value) if tested is not None else ():
            if site in known:
                fed.setdefault(site, replace(known[site], fed="once"))
        if event.name not in FITS or event.arguments is None:
            continue
        again = _is_fed_again(event)
        for site, role in _feeding(analysis, event.arguments):
            if site in known:
                often, old = "again" if again else "once", fed.get(site, known[site]).role
                use = role if old in (role, known[site].role) else "both"
                fed[site] = replace(known[site], role=use, fed=often, first_only=False)  # type: ignore[arg-type]
    fits = [event for event in analysis.facts.of("call") if event.name in FITS and event.arguments is not None]
    often = "again" if all(map(_is_fed_again, fits)) else "once"
    functions = [each.function.node for each in analysis.execution.frames.values() if each.function is not None]
    for name, role in () if fed else _GIVING:  # of a module that was not followed to `fit`
        methods = [each for each in functions if getattr(each, "name", "") == name]
        for site in known.keys() & _made_in(analysis, methods):
            fed[site] = replace(known[site], role=role, fed=often)  # type: ignore[arg-type]
    return tuple(fed.get(loader.site, loader) for loader in found)


def _feeding(analysis: Analysis, given: Arguments) -> Iterator[tuple[Site, str]]:
    """The loaders of a call of ``fit``: in its arguments, and built by the methods of what is in these."""
    for name, position, role in _FED:
        passed = given.get(name, position)
        if passed is not None:
            yield from ((site, role) for site in loader_sites(analysis, passed.value))
    for cls in _classes(given):
        for name, role in _GIVING:
            methods = [each.node for each in members(cls.find(name)) if isinstance(each, Function)]
            yield from ((site, role) for site in _made_in(analysis, methods))


def _made_in(analysis: Analysis, methods: Sequence[ast.AST]) -> Iterator[Site]:
    """The loaders that methods of a module make, or give."""
    made = [each.result for each in analysis.facts.events_in_functions(methods) if each.kind == "make"]
    frames = analysis.execution.frames.values()
    made += [each.returned for each in frames if each.function is not None and each.function.node in methods]
    yield from (site for value in made for site in loader_sites(analysis, value))


def _classes(given: Arguments) -> list[Class]:
    """The project's classes of modules, of the network and of the data, that ``fit`` is given."""
    return [each.cls for value in given.values() for each in members(value) if isinstance(each, Instance)]


def _touches_data(hook: ast.AST) -> bool:
    """Whether a method speaks of data, otherwise than of the numbers of a tensor (`x.data`)."""
    for each in walk(hook):
        name = getattr(each, "attr", getattr(each, "id", ""))
        if "data" in name and (name != "data" or dotted(each) == "self.data"):
            return True
    return False


def _is_fed_again(event: Event) -> bool:
    """Whether the trainer reads its loaders in more than one epoch, and no hook of the project's touches data."""
    assert event.arguments is not None
    hooks = [each for cls in _classes(event.arguments) for name in _BETWEEN for each in members(cls.find(name))]
    if any(_touches_data(each.node) for each in hooks if isinstance(each, Function)):
        return False
    for trainer in members(event.receiver):
        made = trainer.base if isinstance(trainer, Instance) else trainer
        if not isinstance(made, Made):
            return False
        given = made.arguments.keywords
        if any(name in given for name in ("reload_dataloaders_every_n_epochs", "fast_dev_run")):
            return False
        epochs = given.get("max_epochs")
        if epochs is not None and any(
            isinstance(each, Const) and each.value in (0, 1) for each in members(epochs.value)
        ):
            return False
    return True


# --- trainings ----------------------------------------------------------------------------------------------------


def _training(analysis: Analysis, made: Made, modules: list[Value], *, resumes: bool) -> Training | None:
    facts = analysis.facts
    site = facts.origin_site(made.origin)
    if site is None or made.qualname not in _TRAINERS:
        return None
    passed = made.arguments
    arguments = {
        name: argument_from(each, made.origin.module, facts, analysis.reads)
        for name, each in sorted(passed.keywords.items())
    }
    if "strategy" in passed.keywords:
        arguments["strategy"] = _by_name(arguments["strategy"], passed.keywords["strategy"].value)
    models = models_given(analysis, modules)
    steps = _steps(analysis, modules, arguments, resumes=resumes)
    return Training(
        site=site,
        qualname=made.qualname,
        arguments=arguments,
        open_mapping=passed.open or passed.star or bool(passed.positions),
        wish=wish_at(analysis, made.origin.node),
        models=models,
        precision="other" if any(each.half for each in models) else "own" if steps is not None else "unknown",
        module=steps,
        in_bar=tuple(facts.places.site(*each) for each in shown_by_the_bar(written_of(analysis))),
    )


def _by_name(given: Argument, value: Value | None) -> Argument:
    """A strategy with the names of objects in their place: ``DDPStrategy(...)`` is "ddp"."""
    names: dict[object, None] = {}
    for each in members(value):
        made = each.origin if isinstance(each, Opaque) else None
        call = made.node if made is not None else None
        if isinstance(each, Const):
            names[each.value] = None
        elif made is not None and isinstance(call, ast.Call) and _HIDING.isdisjoint(x.arg for x in call.keywords):
            called = meaning(call.func, made.module.tree)
            names[_STRATEGIES.get(called.rpartition(".")[2]) if "lightning" in called else None] = None
        else:
            return given
    if None in names or given.state != "unknown" or not names:
        return given
    return replace(given, state="value" if len(names) == 1 else "may", values=(*names,))


def _steps(
    analysis: Analysis, modules: list[Value], arguments: Mapping[str, object], *, resumes: bool
) -> ModuleSteps | None:
    """What the steps of the project's own modules do; None where a module comes from elsewhere."""
    classes = [each.cls if isinstance(each, Instance) else each for each in modules]
    if not classes or not all(isinstance(each, Class) for each in classes):
        return None
    owners = [base for cls in classes if isinstance(cls, Class) for base in cls.mro() if isinstance(base, Class)]
    names = {name: value for owner in reversed(owners) for name, value in owner.names.items()}
    for name, value in _attributes(modules):
        if any(isinstance(each, Function) for each in members(value)):
            names.setdefault(name, value)
    steps = [each for name in _STEPS for each in members(names.get(name)) if isinstance(each, Function)]
    training = [each for each in members(names.get("training_step")) if isinstance(each, Function)]
    if not training:
        return None
    facts = analysis.facts
    steps = [each for each in steps if facts.events_in_functions([each.node])]  # the others were not followed
    events = facts.events_in_functions(each.node for each in steps)
    criteria = {name for event in events if event.kind == "criterion" for name in _names(event)}
    old = sorted(_OLD & (set(arguments) | set(names)))
    old += sorted(_OLD & {each.arg for step in training for each in step.node.args.args})
    criteria_called = [e for e in events if e.kind == "criterion"]
    plain = {e.node for e in criteria_called if all(is_loss(name) or is_scalar_loss(name) for name in _names(e))}
    return ModuleSteps(
        calls=called_in(analysis, events),
        losses=tuple(sorted(criteria)),
        by_hand=_computes_by_hand(analysis, steps, modules, plain),
        leaves=_leaving(analysis, owners),
        manual=any(_is_manual(owner) for owner in owners),
        clips=_clipping(analysis, owners, "clip_grad", "configure_gradient_c"),
        hands_clipping=_clipping(analysis, owners, "clip_gradients", "configure_gradient_c") is not None,
        old=old[0] if old else None,
        resumes=resumes,
        resized=resized_in(analysis, events, [each.node for each in steps]),
        freezes=_freezing(analysis, owners),
        logged=tuple(dict.fromkeys(_logged(analysis, events))),
        handed=_handed(analysis, names.get("configure_optimizers")),
    )


def _handed(analysis: Analysis, method: Value | None) -> Handed | str:
    """What ``configure_optimizers`` returns, in one of its usual forms; else a sentence."""
    found = [each for each in members(method) if isinstance(each, Function) and isinstance(each.node, ast.FunctionDef)]
    if len(found) != 1 or not isinstance(found[0].node, ast.FunctionDef):
        return "`configure_optimizers` was not found"
    function, module = found[0].node, found[0].module
    last, value = function.body[-1], getattr(function.body[-1], "value", None)
    returns = [each for each in walk(function) if isinstance(each, ast.Return)]
    if returns != [last] or value is None:
        return "what `configure_optimizers` returns is chosen at run time"
    text, site = partial(analysis.facts.places.text, module=module), partial(analysis.facts.places.site, module=module)
    fields: dict[object, ast.expr] = {}
    schedules: list[ast.expr] = []
    rest: list[ast.expr] = [value]
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == 2:
        rest, schedules = ([*each.elts] if isinstance(each, ast.List) else [] for each in value.elts)
    elif isinstance(value, ast.List):
        rest = value.elts
    elif isinstance(value, ast.Dict):
        fields = {getattr(key, "value", None): each for key, each in zip(value.keys, value.values, strict=True)}
        rest, schedules = [fields.get("optimizer", value)], [fields[key] for key in fields if key == "lr_scheduler"]
    if len(rest) != 1 or not isinstance(rest[0], (ast.Name, ast.Call)):
        return "`configure_optimizers` returns more than the optimizer and its schedules"
    texts = [text(each) for each in schedules]
    if "monitor" in fields and texts:
        texts = [f'{{"scheduler": {texts[0]}, "monitor": {text(fields["monitor"])}}}']
    made = site(rest[0]) if isinstance(rest[0], ast.Call) else None
    return Handed(site(last), site(value), text(rest[0]), made, tuple(texts))


def _logged(analysis: Analysis, events: list[Event]) -> Iterator[tuple[Site, str]]:
    """The reads of tensors for ``self.log``, which takes them where the model is, and their sources."""
    facts, places = analysis.facts, analysis.facts.places
    values = {"Module.log": ("value", 1), "Module.log_dict": ("dictionary", 0)}
    for call in (each for each in events if each.name in values and each.arguments is not None):
        told = call.arguments.get(*values[call.name])  # type: ignore[union-attr]
        for node in getattr(told and told.node, "values", [told and told.node]):
            read = [each for one in facts.at(node) if one.name == "item" for each in members(one.receiver)]
            tensor = getattr(getattr(node, "func", None), "value", None)
            copied = [one for one in facts.at(tensor) if one.name == "cpu" and read] if tensor is not None else []
            if copied:  # `loss.detach().cpu().item()`
                read = [each for one in copied for each in members(one.receiver)]
                if call.arguments is not None and "sync_dist" in call.arguments.keywords and any(map(_is_made, read)):
                    continue  # processes that share GPUs do not add up what may have been made on the host
                tensor = getattr(getattr(tensor, "func", None), "value", None)
            text = places.text(tensor, call.module) if tensor is not None else ""
            if text and read and all(map(_may_be_there, read)) and ".cpu()" not in text:
                yield places.site(node, call.module), text


def _is_made(value: Value) -> bool:
    return not isinstance(value, Tensor) or "made" in value.roles


def _may_be_there(value: Value) -> bool:
    """Whether it may lie where Lightning brings the model: what that computes does."""
    if isinstance(value, Tensor):
        return value.device != "cpu" or not value.roles.isdisjoint(("loss", "output"))
    return isinstance(value, (Opaque, Unknown))


def _names(event: Event) -> Iterator[str]:
    found = [each.qualname for each in members(event.receiver) if isinstance(each, Made)]
    yield from found or [event.name]


def _attributes(modules: list[Value]) -> Iterator[tuple[str, Value]]:
    """The attributes of the modules' objects."""
    for module in modules:
        if isinstance(module, Instance):
            yield from module.attributes.items()


def _computes_by_hand(analysis: Analysis, steps: list[Function], modules: list[Value], losses: set[ast.AST]) -> bool:
    """Whether the steps compute, beside layers and losses of torch, with what autocast may leave in 16 bits.

    Or keep that, or hand it out, for code that runs beside autocast.
    """
    execution = analysis.execution
    owners = {base for module in modules if isinstance(module, Instance) for base in module.cls.mro()}
    followed = {id(step.node) for step in steps}
    frames = [each for each in execution.frames.values() if each.function is not None]
    for frame in frames:  # in the order of the calls, so that what a step calls comes after it
        assert frame.function is not None
        values = frame.values
        if id(frame.function.node) not in followed:
            continue
        for node in walk(frame.function.node):
            given: list[ast.expr] = []
            if isinstance(node, ast.BinOp):
                given = [node.left, node.right]
            elif isinstance(node, ast.Call) and node not in losses:
                own = [each.function for each in members(values.get(node.func)) if isinstance(each, Bound)]
                if own and all(each.cls in owners for each in own):
                    followed |= {id(each.node) for each in own if each.name != "forward"}
                elif isinstance(node.func, ast.Attribute) and not (dotted(node.func) or "").startswith("self."):
                    given = [node.func.value] if node.func.attr not in _SHAPING else []
                elif isinstance(node.func, ast.Name):
                    given = node.args if node.func.id not in _PLAIN else []
            if any(_in_16_bits(values.get(each)) for each in given):
                return True
    predicts = any(event.name in _PREDICTS for event in analysis.facts.of("call"))
    return predicts or any(_in_16_bits(value) for _, value in _attributes(modules))


def _in_16_bits(value: Value | None) -> bool:
    return any(isinstance(each, Tensor) and each.half for each in flatten(value))


def _leaving(analysis: Analysis, owners: list[Class]) -> Site | None:
    """Where a file with a module makes numpy arrays of what a product gave, which there is no way to do in bfloat16."""
    for owner in owners:
        for call in every(ast.Call, owner.module.tree):
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "numpy":
                continue
            read = [each for event in analysis.facts.at(call) for each in members(event.receiver)]
            if any(isinstance(each, Tensor) and each.half for each in read):
                return analysis.facts.places.site(call, owner.module)
    return None


def _clipping(analysis: Analysis, owners: list[Class], *names: str) -> Site | None:
    for owner in owners:
        for call in every(ast.Call, owner.module.tree):
            if isinstance(call.func, ast.Attribute) and call.func.attr.startswith(names):
                return analysis.facts.places.site(call, owner.module)
    return None


def _freezing(analysis: Analysis, owners: list[Class]) -> Site | None:
    for owner in owners:
        for node in every(ast.Attribute, owner.module.tree):
            given = getattr(parents_in(owner.module.tree).get(node), "value", None)
            trains = isinstance(node.ctx, ast.Load) or getattr(given, "value", None) is True
            if node.attr in _FREEZING and not (node.attr == "requires_grad" and trains):
                return analysis.facts.places.site(node, owner.module)
    return None


def _is_manual(owner: Class) -> bool:
    """Whether a module takes the optimizer's steps into its own hands."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("automatic_optimization", "manual_backward"))
        or (isinstance(node, ast.FunctionDef) and node.name in ("automatic_optimization", "optimizer_step", "backward"))
        for node in walk(owner.node)
    )
