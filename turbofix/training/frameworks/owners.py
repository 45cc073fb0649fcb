"""The objects through which Accelerate and Fabric train: how they are made, and what they move to their device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from turbofix.dataflow.provenance import argument_from, bound_arguments
from turbofix.dataflow.questions import Analysis
from turbofix.domain.trace import Event
from turbofix.domain.values import Const, Instance, Made, Value, flatten, members
from turbofix.library.tables import PREPARES
from turbofix.regex import regex
from turbofix.source.answers import every, everything, once_per_node
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Argument, Owner, Placement

PLACED = Placement("conditional", mps=True)
"""Where such an object moves things: whoever starts the program chooses the device, which may be any."""

_POSITIONS = ("device_placement", "split_batches", "mixed_precision", "gradient_accumulation_steps", "cpu")
"""The first parameters of ``Accelerator``; those of ``Fabric`` are passed by name."""

_FRAMEWORKS = ("accelerate", "lightning", "lightning_fabric")

_ENGINES = (
    (
        ("DeepSpeedPlugin", "DeepSpeedSequenceParallelConfig", "HfDeepSpeedConfig", "DummyOptim", "DummyScheduler"),
        ("deepspeed_plugin", "deepspeed_plugins"),
    ),
    (("MegatronLMPlugin", "MegatronLMDummyScheduler", "MegatronLMDummyDataLoader"), ("megatron_lm_plugin",)),
    (("ParallelismConfig", "TorchTensorParallelPlugin"), ("parallelism_config",)),
    (("DeepSpeedPrecision", "BitsandbytesPrecision", "TransformerEnginePrecision"), ("plugins",)),
    (
        ("AORecipeKwargs", "FP8RecipeKwargs", "MSAMPRecipeKwargs", "TERecipeKwargs"),
        (),
    ),  # `kwargs_handlers` takes others
    (("DeepSpeedStrategy",), ()),  # and so does `strategy`
)
"""What replaces the model's layers or has a precision of its own: the names that a program imports of Accelerate or
Fabric for it, and the arguments by which these are given it."""

_IMPORTED = frozenset(name for names, _ in _ENGINES for name in names)

_CASTING = ("mixed_precision", "mixed_precision_policy", "set_mixed_precision")
"""What tells a plugin or strategy of FSDP the precision, as an argument or a method."""

_SHARDING = ("FullyShardedDataParallelPlugin", "FSDPStrategy", "ModelParallelStrategy", "XLAFSDPStrategy")


_PRECISION = regex(r"""^(?!\s*#).*\bmixed_precision[:=\s]\s*["']?(bf16|fp16)\b""", re.MULTILINE)


def is_owner(value: Value) -> bool:
    """Whether a value is an ``Accelerator`` or a ``Fabric``."""
    return isinstance(value, Made) and value.kind in ("accelerator", "fabric")


def owners(analysis: Analysis) -> tuple[Owner, ...]:
    """Every such object that the program makes."""
    facts = analysis.facts
    found: dict[Site, Owner] = {}
    for event in facts.of("make"):
        for made in members(event.result):
            if not isinstance(made, Made) or not is_owner(made) or event.arguments is None:
                continue
            passed = bound_arguments(event.arguments, _POSITIONS if made.kind == "accelerator" else ())
            arguments = {
                name: argument_from(each, event.module, facts, analysis.reads) for name, each in sorted(passed.items())
            }
            is_open = event.arguments.open or bool(event.arguments.star)
            found.setdefault(facts.site(event), Owner(facts.site(event), made.qualname, arguments, is_open))
    started = _started(analysis) if found else None
    return tuple(replace(found[site], started=started) for site in sorted(found))


def _started(analysis: Analysis) -> tuple[str, str] | None:
    """A 16-bit precision by which Accelerate's launcher is told to start the script, and the file that says so."""
    execution = analysis.execution
    for path in sorted(execution.beside(".yaml", ".yml", ".sh")):
        text = execution.read(path) or ""
        by_script = path.suffix == ".sh" and "accelerate launch" in text and execution.entry.path.name in text
        said = _PRECISION.search(text) if by_script or "distributed_type:" in text else None
        if said is not None:
            return said[1], path.name
    return None


def hands_over(analysis: Analysis, made: tuple[Owner, ...]) -> bool:
    """Whether such an object may leave model and precision to an engine: DeepSpeed, Megatron-LM, FSDP.

    By what it is passed, and by what the files import of the framework: the engine may be chosen when the program is
    started.
    """
    strategies = (owner.argument("strategy") for owner in made)
    return (
        any(
            _imports_engine(module.tree)
            for module in analysis.execution.modules.values()
            if any(name in module.text for name in _FRAMEWORKS)
        )
        or any(_is_passed(owner.argument(name)) for owner in made for _, names in _ENGINES for name in names)
        or any(str(value).startswith("deepspeed") for each in strategies for value in each.values)
    )


def _is_passed(argument: Argument) -> bool:
    return argument.state != "absent" and not (argument.known and set(argument.values) == {None})


@once_per_node
def _imports_engine(tree: ast.Module) -> bool:
    names = {
        alias.name
        for node in every(ast.ImportFrom, tree)
        if (node.module or "").partition(".")[0] in _FRAMEWORKS
        for alias in node.names
    }
    names |= {node.attr for node in every(ast.Attribute, tree) if (dotted(node) or "").partition(".")[0] in _FRAMEWORKS}
    if not names.isdisjoint(_IMPORTED):
        return True
    return not names.isdisjoint(_SHARDING) and any(_casts(node) for node in everything(tree))


def _casts(node: ast.AST) -> bool:
    """Whether a plugin of FSDP is told the precision here."""
    if isinstance(node, ast.Call):
        called = (dotted(node.func) or "").rpartition(".")[2]
        return called in _SHARDING and any(each.arg is None or each.arg in _CASTING for each in node.keywords)
    return isinstance(node, ast.Attribute) and node.attr in _CASTING[1:]


def placed(analysis: Analysis) -> frozenset[Site]:
    """Where the models, optimizers and loaders are made that such an object moves to its device."""
    found: set[Site] = set()
    if not any(is_owner(each) for event in analysis.facts.of("make") for each in members(event.result)):
        return frozenset()
    for event in analysis.facts.of("call"):
        if event.name.rpartition(".")[2] not in PREPARES or event.arguments is None:
            continue
        if not any(is_owner(each) and moves(each) for each in members(event.receiver)):
            continue
        if any(_is(event.arguments.keywords.get(name), False) for name in ("device_placement", "move_to_device")):
            continue
        for value in event.arguments.values():
            for each in flatten(value, 3):
                found |= {site for one in _unwrapped(each) if (site := analysis.facts.origin_site(one.origin))}
    return frozenset(found)


def moves(owner: Value) -> bool:
    """Whether an object moves things to a device that may be a GPU."""
    assert isinstance(owner, Made)
    named = owner.arguments.get
    if owner.kind == "fabric":
        return not _is(named("accelerator"), "cpu")
    return not _is(named("device_placement", 0), False) and not _is(named("cpu", 4), True)


def _is(passed: object, wanted: object) -> bool:
    """Whether what is passed is surely one constant."""
    found = members(getattr(passed, "value", None))
    return bool(found) and all(isinstance(each, Const) and each.value == wanted for each in found)


def _unwrapped(value: Value) -> Iterator[Made | Instance]:
    """An object and what it wraps: ``torch.compile(model)``."""
    while isinstance(value, (Made, Instance)):
        yield value
        inner = members(value.inner) if isinstance(value, Made) else []
        if len(inner) != 1:
            return
        value = inner[0]


def owner_beside(analysis: Analysis, event: Event) -> str | None:
    """What such an object is called at an event, where a name for it is surely set by then."""
    made = {id(each): one.order for one in analysis.facts.of("make") for each in members(one.result) if is_owner(each)}
    frames = analysis.facts.frames(event)
    if not made or not frames:
        return None
    names = {
        text: None
        for scope in (frames[-1].scope, frames[-1].module.tree)
        for node in walk(scope)
        if isinstance(node, (ast.Name, ast.Attribute, ast.arg))
        if (text := node.arg if isinstance(node, ast.arg) else dotted(node)) is not None and text.count(".") < 2
    }
    for text in names:
        found = members(analysis.devices.named(text, event))
        owns = bool(found) and all(made.get(id(each), event.order) < event.order for each in found)
        if owns and analysis.devices.is_set_before(text, event):
            return text
    return None
