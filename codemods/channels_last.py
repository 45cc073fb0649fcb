"""Keep the weights of 2-D convolutions in the order that the tensor cores read.

Why slow
    The tensor cores want the channels of each pixel side by side. PyTorch's own order is one channel after the other,
    so cuDNN rearranges the input and the output of every convolution, or does without the tensor cores.

Example
    ::

        model = resnet50().to(device)
        for images, labels in loader:
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                loss = criterion(model(images), labels)

Use instead
    ::

        model = resnet50().to(device, memory_format=torch.channels_last)

    The input need not be converted: the first convolution does it. Shapes and the model's checkpoints stay as they are.
    A tensor in this order cannot be viewed as rows, so ``x.view(n, -1)`` becomes ``x.reshape(n, -1)``.

When refused
    Nothing is said where the model is compiled, for GPUs before Volta (in full precision: before Ampere), and where the
    script uses ``torch.channels_last`` already. It is refused

    - where the weights are read as rows (``parameters_to_vector``, ``LBFGS``), and for convolutions over volumes;
    - under FSDP, and where a strategy of Lightning's may lay out the weights;
    - where nothing is gained: ``InstanceNorm2d``, thin layers over one or two channels, pictures cut into tokens;
    - where the model has no name of its own in front of its training: give it one.

Risk
    equivalent: other kernels round differently. Some models get slower: keep it if ``turbofix verify`` measures a gain.

Measured
    ResNet-50 under mixed precision 775 to 1011 images/s (PyTorch's tutorial on the channels-last memory format).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turbofix.assumptions import LAYOUT_FREE, NO_OLD_CHECKPOINT, ON_GPU, PICTURES, Assumption
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.training.data.sizes import batch_of
from turbofix.training.evidence import of_loop
from turbofix.training.model import Framework, Model, Step, TrainingProgram

from ._precision import autocast_of, called, is_unknown, on_a_gpu
from ._trainers import MIXED, is_sharded, on_gpu
from ._work import is_over_at_once, worth_of_work

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.3, source="ResNet-50 with AMP, 775 to 1011 images/s (PyTorch tutorial on channels last)"),
    after=("autocast", "compile-model"),
    known_as=("memory format", "NHWC"),
    assumes=(ON_GPU, PICTURES, LAYOUT_FREE, NO_OLD_CHECKPOINT),
)

VOLTA, AMPERE = (7, 0), (8, 0)
WIDE = 64
TOO_THIN = "its layers are too thin to gain by another order"

CUTTING = ("swin", "vit", "maxvit")
"""Networks of torchvision that cut pictures into tokens."""


@dataclass(frozen=True)
class Plan:
    """The call that moves the model and its method, or the statement in front of which (``method``: behind which) its
    name is ``text``; and the views of what its layers compute."""

    moved: Site
    method: str
    text: str
    views: tuple[tuple[Site, Site], ...]


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Models of convolutions over images in torch's own order."""
    chosen = program.layouts.chosen
    if chosen and program.trains:
        yield codemod.in_place(chosen[0], "the program chooses a memory format for its convolutions")
        return
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    by_itself = program.framework in (Framework.PYTORCH, Framework.ACCELERATE)
    if not by_itself or not program.trains or (gpu := on_a_gpu(program)) is None:
        return
    of_plan: dict[Plan, list[Model]] = {}
    refused: set[tuple[Site | None, str]] = set()
    for model in program.models:
        steps = steps_of(program, model)
        if not steps or not over_pictures(model):
            continue
        if model.compiled is not None:
            yield codemod.in_place(model.compiled, "the compiler chooses the memory format of the convolutions")
            continue
        if program.target.capability < (VOLTA if all(in_16_bits(program, step) for step in steps) else AMPERE):
            continue
        moving = model.compiling
        by_call = moving is not None and moving.method in ("to", "cuda")
        moved = moving.moved if moving is not None and by_call else moving.before if moving is not None else None
        thin = all(is_over_at_once(program, model, batch_of(program, each)) for each in steps)
        reason = why_not(program, model) or (TOO_THIN if thin else None)
        if reason is None and moving is not None and moved is not None:
            plan = Plan(moved, moving.method if by_call else "", moving.text or "", program.layouts.views)
            of_plan.setdefault(plan, []).append(model)
            continue
        reason = reason or "it has no name of its own in front of its training, where its order could be changed"
        if moved is None or (moved, reason) not in refused:
            refused.add((moved, reason))
            yield codemod.refuse(model.site, saying([model]), reason, evidence=tuple(map(of_loop, steps[:1])))
    for plan, models in of_plan.items():
        yield offered(program, plan, models, gpu)


def offered(program: TrainingProgram, plan: Plan, models: list[Model], gpu: tuple[Assumption, ...]) -> Finding:
    """The finding for the one of ``models`` that is moved at a place, whichever is chosen."""
    steps = [step for model in models for step in steps_of(program, model)]
    in_16 = all(in_16_bits(program, step) for step in steps)
    assumes = (
        *gpu,
        *((PICTURES,) if any(map(is_unknown, models)) else ()),
        *((NO_OLD_CHECKPOINT,) if any(each.state_loads for each in program.optimizers) else ()),
        LAYOUT_FREE,
    )
    seen = (Evidence("it is moved to its device" if plan.method else "it is trained", plan.moved), of_loop(steps[0]))
    site = models[0].site if len(models) == 1 else plan.moved
    worth = min(
        worth_of(program, model, batch_of(program, step), step.loaders, in_16)
        for model in models
        for step in steps_of(program, model)
    )
    return codemod.finding(site, saying(models), plan=plan, evidence=seen, assumes=assumes, worth=worth)


def saying(models: list[Model]) -> str:
    """What is slow."""
    return f"the convolutions of {called(models)} have their weights in the order for other kernels"


def steps_of(program: TrainingProgram, model: Model) -> list[Step]:
    """The steps that train a model."""
    return [step for step in program.steps if model.site in step.models]


def over_pictures(model: Model) -> bool:
    """Whether a model convolves over pictures, otherwise than to cut them into tokens."""
    return any(each.dims == 2 and not each.cuts for each in model.convolutions)


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """The models in a module of Lightning's, which are put into the other order in front of its training."""
    told: set[tuple[Site | None, str]] = set()
    for training in program.trainings:
        gpu = on_gpu(training)
        in_16 = training.argument("precision").known and set(training.argument("precision").values) <= set(MIXED)
        if gpu is False or program.target.capability < (VOLTA if in_16 else AMPERE):
            continue
        for text, model, starts in training.parts:
            key = (starts if training.inside else None, text)
            if key in told or not over_pictures(model) or model.compiled is not None or is_little(model):
                continue
            told.add(key)
            message = f"the convolutions of `{text}` have their weights in the order for other kernels"
            seen = (Evidence("Lightning trains it", training.site),)
            sharded = "a strategy or plugin of the trainer may lay the weights out itself"
            reason = sharded if is_sharded(training) else why_not(program, model)
            assumes = (
                *((ON_GPU,) if gpu is None else ()),
                *((PICTURES,) if is_unknown(model) else ()),
                *((NO_OLD_CHECKPOINT,) if training.resumes else ()),
                LAYOUT_FREE,
            )
            plan = Plan(starts, "after" if training.inside else "", text, program.layouts.views)
            worth = worth_of(program, model, None, [each.site for each in program.loaders], in_16)
            yield codemod.offer(model.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def worth_of(program: TrainingProgram, model: Model, batch: int | None, read: Iterable[Site], in_16: bool) -> Worth:
    """How much the order may bring: less in full precision than in 16 bits."""
    return max(worth_of_work(program, (model,), batch, read), Worth.HIGH if in_16 else Worth.SOME)


def is_little(model: Model, by_hand: bool = False) -> str | None:
    """Why nothing is gained: thin layers over pictures of a channel or two or over ``by_hand`` replayed frames, tokens,
    or norms that turn it back."""
    if "torch.nn.InstanceNorm2d" in model.layers:
        return "its InstanceNorm2d layers turn the order back"
    cutting = [each.layer.rpartition(".")[2].lower().startswith(CUTTING) for each in model.convolutions if each.whole]
    if cutting and all(cutting):
        return "its convolution only cuts pictures into tokens"
    sides = [min(each.inputs, each.outputs) for each in model.convolutions if each.inputs and each.outputs]
    known = len(sides) == len(model.convolutions) and not cutting
    if known and max(sides) <= WIDE and (by_hand or any((each.inputs or 0) <= 2 for each in model.convolutions)):
        return TOO_THIN
    return None


def in_16_bits(program: TrainingProgram, step: Step) -> bool:
    """Whether a step computes under an autocast that is not switched off, whoever starts the script."""
    site = autocast_of(program, step)
    part = program.part(site)
    return site is not None and part is not None and part.kind == "autocast" and not part.enabled.off


def why_not(program: TrainingProgram, model: Model) -> str | None:
    """What makes the other order unsafe, or of no use, if anything."""
    by_hand = bool(program.steps) and all(step.source == "tensors" for step in program.steps)
    if (little := is_little(model, by_hand)) is not None:
        return little
    if any("Pipeline" in each.layer for each in model.convolutions):
        return "a pipeline takes no memory format: give it to its parts, as by `pipeline.unet.to(memory_format=...)`"
    if "fsdp" in (model.wrapped or ""):
        return "FSDP keeps the weights as one row, whose parts have torch's own order"
    if any(each.dims == 3 for each in model.convolutions):
        return "it has convolutions over volumes, whose weights have five dimensions"
    for site in program.layouts.flattened[:1]:
        line = site.line_from(model.site.path)
        return f"the weights, or their gradients, are seen as rows of numbers ({line}), which raises in another order"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Move the model into the other order where it is moved to its device, and reshape what cannot be viewed."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    order = edit.name("torch.channels_last", plan.moved)
    if plan.method == "to":
        edit.argument(plan.moved, "memory_format", order)
    elif plan.method in ("", "after"):
        put = edit.after if plan.method else edit.before
        put(plan.moved, f"{plan.text}.to(memory_format={order})")
    else:
        edit.insert_after(plan.moved, f".to(memory_format={order})")
    for site, viewed in plan.views:
        edit.insert_after(viewed, ".reshape")
        edit.cut(site, viewed)
