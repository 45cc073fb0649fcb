"""Keep the weights of 2-D convolutions in the order that the tensor cores read.

Why slow
    In 16 bits the tensor cores work on tensors whose channels lie side by side for each pixel. PyTorch's own order is
    one channel behind the other, so cuDNN rearranges the input and the output of every convolution, or does without.

Example
    ::

        model = resnet50().to(device)
        for images, labels in loader:
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                loss = criterion(model(images), labels)

Use instead
    ::

        model = resnet50().to(device, memory_format=torch.channels_last)

    That is enough: a convolution gives its output in this order where its weights have it, and the layers behind it
    keep to that (``ATen/native/ConvUtils.h``), so that the input need not be converted by hand. The first convolution
    does it. Shapes stay as they are, and so do checkpoints: loading copies into the weights, whatever their order.

When refused
    It is done where convolutions over images do noticeable work in 16 bits: every training step runs under an
    ``autocast`` of the script's, and the model is a ResNet, VGG or the like from torchvision, or has a convolution with
    64 channels or more on both sides. ``apply`` lets the codemod ``autocast`` go first.

    It is refused where the program executes a ``view`` (or asks for strides): on a tensor in this order
    ``x.view(n, -1)`` raises, where ``x.flatten(1)`` and ``x.reshape(n, -1)`` copy; where torch does that to the weights
    (``parameters_to_vector``, ``LBFGS``); and where an optimizer's state is loaded.

    Nothing is said where a part of the model is not known, or known to make tensors of its own order again: other
    layers than torch's convolutions over images, batch and group norms, activations, poolings, upsampling, dropout and
    linear layers; convolutions with groups, which may be slower so; weights of the program's own, whose shapes no
    layer tells (with five dimensions they raise); where the model is compiled, since the compiler chooses the order
    itself, wrapped in ``DataParallel``, not moved to its device in one place, or exported; for GPUs before Volta; and
    under frameworks, which move the model. A script that uses ``torch.channels_last`` anywhere is left alone.

Risk
    equivalent: other kernels round differently. Some models get slower: keep it if ``turbofix verify`` on your GPU
    measures a gain.

Measured
    ResNet-50 under mixed precision 775 to 1011 images/s (PyTorch's tutorial on the channels-last memory format).
"""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.codemod import Codemod
from turbofix.edits import Edit
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Site
from turbofix.program.evidence import of_loop
from turbofix.program.model import Framework, Model, Step, TrainingProgram
from turbofix.records import dataclass

from ._precision import autocast_of, called

codemod = Codemod(
    __name__,
    group="compute",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.3, source="ResNet-50 with AMP, 775 to 1011 images/s (PyTorch tutorial on channels last)"),
    after=("autocast", "compile-model"),
    known_as=("memory format", "NHWC"),
)

VOLTA = (7, 0)
WIDE = 64
PARALLEL = "torch.nn.parallel.DistributedDataParallel"

KEEPING = frozenset(
    f"torch.nn.{name}"
    for name in (
        *("Conv2d", "ConvTranspose2d", "BatchNorm2d", "SyncBatchNorm", "GroupNorm", "Linear", "Flatten", "Identity"),
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SiLU", "GELU", "Mish", "Hardswish", "Sigmoid", "Hardsigmoid", "Tanh"),
        *("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "Upsample", "UpsamplingBilinear2d"),
        *("Dropout", "Dropout2d", "Softmax", "LogSoftmax", "CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss"),
        *("BCEWithLogitsLoss", "Sequential", "ModuleList", "ModuleDict", "Module"),
        "parallel.DistributedDataParallel",
    )
)
"""Layers that keep to the order of their input, or whose inputs have no pixels any more."""

PLAIN = ("resnet", "wide_resnet", "vgg", "segmentation.fcn_resnet", "segmentation.deeplabv3_resnet")
"""Networks of torchvision without convolutions in groups."""


@dataclass(frozen=True)
class Plan:
    """The call that moves the model, and its method."""

    moved: Site
    method: str


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Models of convolutions over images that compute in 16 bits, in torch's own order."""
    if program.framework is not Framework.PYTORCH or not program.trains or not program.device.reaches_cuda:
        return
    chosen = program.layouts.chosen
    if chosen:
        yield codemod.in_place(chosen[0], "the program chooses a memory format for its convolutions")
        return
    if program.target.capability < VOLTA or not program.complete or program.layouts.weights:
        return
    for model in program.models:
        steps = [step for step in program.steps if model.site in step.models]
        if not steps or not all(in_16_bits(program, step) for step in steps) or not works(model):
            continue
        moving = model.compiling
        if model.compiled is not None or moving is None or moving.foreign is not None or moving.moved is None:
            continue
        if model.wrapped not in (None, PARALLEL) or not keeps(model) or moving.method not in ("to", "cuda"):
            continue
        message = (
            f"the convolutions of {called([model])} compute in 16 bits, with weights in the order for other kernels"
        )
        seen = (Evidence("it is moved to its device", moving.moved), *map(of_loop, steps[:1]))
        reason = why_not(program)
        if reason is not None:
            yield codemod.refuse(model.site, message, reason, evidence=seen)
        else:
            plan = Plan(moving.moved, moving.method)
            yield codemod.finding(model.site, message, plan=plan, evidence=seen)


def in_16_bits(program: TrainingProgram, step: Step) -> bool:
    """Whether a step computes under an autocast that is not switched off, whoever starts the script."""
    site = autocast_of(program, step)
    part = program.part(site)
    return site is not None and part is not None and part.kind == "autocast" and not part.off


def works(model: Model) -> bool:
    """Whether a model is known to do noticeable work in convolutions over images."""
    return any(
        each.dims == 2 and not each.cuts and (is_plain(each.layer) or min(each.inputs or 0, each.outputs or 0) >= WIDE)
        for each in model.convolutions
    )


def is_plain(layer: str) -> bool:
    """Whether it is a network of torchvision that gains by the other order."""
    package, _, name = layer.partition("torchvision.models.")
    return not package and name.lower().startswith(PLAIN)


def keeps(model: Model) -> bool:
    """Whether all layers of a model are known to keep to the order of the first convolution."""
    if any(each.dims != 2 or (not is_plain(each.layer) and each.groups != 1) for each in model.convolutions):
        return False
    plain = {each.layer for each in model.convolutions if is_plain(each.layer)}
    return (model.layers_complete or bool(plain)) and model.layers <= KEEPING | plain


def why_not(program: TrainingProgram) -> str | None:
    """What makes the other order unsafe, if anything."""
    if program.layouts.lying:
        line = program.layouts.lying[0].line_from(program.entry)
        return (
            f"the program takes torch's own order for granted ({line}); `flatten` and `reshape` do not, as `view` does"
        )
    for optimizer in program.optimizers:
        if optimizer.state_loads:
            line = optimizer.state_loads[0].site.line_from(program.entry)
            return f"an optimizer's state is loaded ({line}), which may lie in the other order than the weights then"
    return None


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Move the model into the other order where it is moved to its device."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    order = edit.name("torch.channels_last", plan.moved)
    if plan.method == "to":
        edit.argument(plan.moved, "memory_format", order)
    else:
        edit.insert_after(plan.moved, f".to(memory_format={order})")
