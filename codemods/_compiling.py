"""Whether compiling a model may come back: how long it is trained, and what does its work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turbofix.assumptions import COMPILES, FEW_SIZES, LONG_ENOUGH
from turbofix.codemod import Codemod
from turbofix.findings import Finding, InPlace, Refusal, Site, Worth
from turbofix.training.data.sizes import batch_of
from turbofix.training.evidence import of_value
from turbofix.training.model import Model, Step, Training, TrainingProgram

from ._precision import CONVOLUTIONS, GATED_CELLS, GRAPHS, MATMULS, RECURRENT, called, is_detector, version
from ._trainers import Switch, by_deepspeed, evidence, is_off, is_on, judged, limit, rests_on_gpu, stays_on_cpu
from ._trainers import why_not as why_not_setting
from ._work import is_narrow, is_over_tokens, looks_up

VOLTA = (7, 0)
WITH_KERNELS = frozenset(("mamba_ssm", "causal_conv1d", "bitsandbytes", "kaolin", "pytorch3d"))
DETECTING = frozenset(f"torchvision.ops.{name}" for name in ("nms", "batched_nms", "roi_align", "roi_pool"))
SWITCH = "torch_compile"
SINCE = (2, 2)  # torch.nn.Module.compile
FEW, FEW_OF_TOKENS = 6_000, 4_000
"""Steps that earn no minute back, at 10 milliseconds saved on each; a transformer of the script's own saves more."""

LARGE, LARGE_TEXTS = 6_000, 26_000
"""Samples that data of unknown size rarely have: those that a library brings have a known one. Texts are many."""

USUAL, LARGEST = 16, 128
"""Samples of a batch of unknown size, and of the largest that does not itself tell of more data."""

EPOCHS, MANY, LONG = 3, 50, 1_000
"""Passes over data, of a ``Trainer`` by default, up to where they may be over soon, and what one not known may be."""

NETWORKS = (
    *("transformers.", "timm.", "torchvision.models.", "segmentation_models_pytorch.", "monai.networks.nets."),
    "diffusers.",
)
HEAVY = MATMULS | CONVOLUTIONS | RECURRENT


def over_soon(steps: int | None, passes: int, batch: int, models: Iterable[Model]) -> str | None:
    """Why a training is too short where that is known, or most data of unknown size are too small for its passes.

    The texts that a language model of the script's own learns from may be endless.
    """
    own = any(is_over_tokens(each) and not brought(each) and not looks_up(each, batch) for each in models)
    few, large = (FEW_OF_TOKENS, LARGE_TEXTS) if own else (FEW, LARGE)
    if steps and steps < few:
        return f"its {steps:,} steps or so hardly earn back the minute that compiling takes"
    needs = 0 if steps or (own and passes == 1) else few * min(batch, LARGEST) // passes
    if needs <= large or passes > MANY:
        return None
    why = "so few passes over the data earn back the minute that compiling takes"
    return f"{why} from some {needs:,} samples on: where it has more, compile the model"


def counted(program: TrainingProgram, model: Model, steps: list[Step]) -> tuple[int | None, str | None]:
    """How many steps some loops take in all where one knows, and why they are over too soon."""
    known = [step.iterations or None for step in steps]  # none at all is a count that could not be followed
    longest = max((each for each in known if each is not None), default=None)
    # a pass may be of any length where what is read begins anew at its end, or a sampler says
    free = {each.site for each in program.loaders if each.cycled or each.argument("sampler").state != "absent"}
    rounds = [step.passes or LONG for step in steps if step.loaders and free.isdisjoint(step.loaders)]
    passes = LONG if longest else max(rounds, default=LONG)
    batch = min(batch_of(program, step) or USUAL for step in steps)
    return longest, over_soon(longest if None not in known else None, passes, batch, (model,))


def brought(model: Model) -> bool:
    """Whether a part of a model is a library's whole network."""
    return any(layer.startswith(NETWORKS) for layer in model.layers)


def asked_for_determinism(program: TrainingProgram) -> Iterator[Site]:
    """Where the script asks for deterministic algorithms; cuDNN's alone are no matter to the compiler."""
    for setting in program.setting("torch.use_deterministic_algorithms"):
        if setting.value.state in ("unknown", "computed") or any(setting.value.values):
            yield setting.site


def is_heavy(model: Model) -> bool:
    """Whether a model may hold a layer that takes work."""
    return not model.layers_complete or bool(model.layers & HEAVY or model.convolutions)


def why_not_as_it_is(program: TrainingProgram, model: Model) -> str | None:
    """What makes compiling a model wrong, or brings nothing, whatever calls it."""
    for site in asked_for_determinism(program):
        return f"the script asks for deterministic algorithms ({site.line_from(model.site.path)})"
    cells = sorted(each.rpartition(".")[2] for each in model.layers & (RECURRENT | GATED_CELLS))
    if cells and not (any(each.whole for each in model.convolutions) or brought(model)):
        return f"most of its work is in {cells[0]}, whose kernels stay as they are: compile other parts by themselves"
    if graphs := sorted(program.libraries & GRAPHS):
        return f"the kernels of {graphs[0]} do the work, and graphs differ in size: each would be compiled anew"
    if own := sorted(program.libraries & WITH_KERNELS):
        return f"the kernels of {own[0]} do the work, at each of which the graph would break"
    if is_narrow(program, model):
        return "its layers are so narrow that launching them takes most of the time, and compiling hardly changes that"
    calls = {call.qualname for step in program.steps for call in step.calls}
    if is_detector(model) or calls & DETECTING:
        return "a detector goes on with as many boxes as it finds, which differ from step to step"
    if program.target.torch < SINCE:
        return f"the project serves torch {version(program.target.torch)}; `compile()` came with torch {version(SINCE)}"
    return None


def under_trainer(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, whose settings have a switch for it."""
    for training in program.trainings:
        compiled = [training.argument(name) for name in (SWITCH, "torch_compile_backend", "torch_compile_mode")]
        on = next((each for each in compiled if is_on(each) and each.option is None), None)
        if on is not None:
            yield codemod.in_place(on.edit_at or training.site, "the trainer compiles the model")
            continue
        if not all(is_off(each) for each in compiled[1:]) or stays_on_cpu(training):
            continue
        if program.target.capability < VOLTA or by_deepspeed(training) or not is_off(training.argument("fsdp")):
            continue
        steps, longest = training.argument("max_steps"), limit(training, "max_steps")
        message = f"{called(training.models)} runs uncompiled, one kernel for each of its operations"
        there = judged(codemod, training, SWITCH, message, "the trainer compiles the model")
        if there is not None:
            yield there
            continue
        seen = (of_value("max_steps", steps, training.site), *evidence(training, SWITCH))
        passes = training.argument("num_train_epochs")
        epochs = (limit(training, "num_train_epochs") or LONG) if passes.known else EPOCHS
        batch = limit(training, "per_device_train_batch_size") or 8
        reason = why_not_under_trainer(program, training) or over_soon(longest, epochs, batch, training.models)
        assumes = (*rests_on_gpu(training), COMPILES, *(() if training.stacks else (FEW_SIZES,)), LONG_ENOUGH)
        plan = Switch(SWITCH, "{torch.cuda.is_available}()")
        yield codemod.offer(training.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=Worth.SOME)


def why_not_under_trainer(program: TrainingProgram, training: Training) -> str | None:
    """What makes the trainer's switch unsafe, or may make it a loss."""
    if any(asked_for_determinism(program)) or not is_off(training.argument("full_determinism")):
        return "the script asks for reproducible results"
    if training.precision == "other":
        return "the model is made in 16 bits or quantized, whose kernels a compiler may not see through"
    if not is_off(training.argument("gradient_checkpointing")):
        return "activations are computed a second time (gradient_checkpointing), in calls that break the graph"
    return why_not_setting(program, training, SWITCH)
