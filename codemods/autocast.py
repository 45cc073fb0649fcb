"""Compute forward pass and loss in 16 bits where that is safe.

Why slow
    Matrix products and convolutions in float32 leave most of the GPU's tensor cores idle and move twice the bytes.
    Under ``autocast`` they run in 16 bits, while losses, normalisations and the weights stay in float32.

Example
    ::

        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

Use instead
    From Ampere on (compute capability 8.0) bfloat16, which needs nothing else::

            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
                outputs = model(images)
                loss = criterion(outputs, labels)
            loss.backward()

    ``enabled`` is the script's own device test. Torch's own losses compute in float32 inside the region. A loss that is
    put together by hand does not, nor does ``BCELoss``: the region ends with the forward pass, whose results become
    float32 again, or each call of a model gets a region of its own::

            with torch.autocast("cuda", dtype=torch.bfloat16):
                seen = critic(images).float()
            loss = bce(seen, ones)

    The ``Trainer`` of transformers (``bf16=``), Lightning (``precision="bf16-mixed"``), Accelerate
    (``mixed_precision="bf16"``) and DeepSpeed's configuration have a switch for it. On Volta and Turing (``--gpu
    volta``), and for LSTMs and ``DataParallel``, it is float16, with a ``torch.amp.GradScaler``.

When refused
    Nothing is said of programs that never reach a GPU, of GPUs before Volta, of models without matrix products and
    convolutions, and of steps that optimise an image and no model. It is refused for float64 and half precision, beside
    apex, a scaler or autocast elsewhere, for gradients of gradients and closures (L-BFGS), for functions that raise in
    16 bits inside of a model, and in reinforcement learning, where a step compares with what the model did in float32.
    float16 needs a scaler, which must be able to go along. Frameworks' switches are left alone where the command line,
    an option (pass ``--bf16 True``) or an engine (FSDP, a configuration of DeepSpeed that says so) decides.

Risk
    equivalent: products are rounded to 8 bits of mantissa (bfloat16) or 11 (float16), sums stay in float32. With
    float16 the scaler skips the first few updates, until it has found its scale.

Measured
    bfloat16 over TF32 on an A100: GPT-2 124M 1.11 times (Karpathy, build-nanogpt) and 1.60 times (Raschka,
    LLMs-from-scratch); ResNet-50 938 to 2470 images/s over float32 (NVIDIA DeepLearningExamples).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.assumptions import LEARNS_IN_16_BITS, ON_GPU, OPTION_DEFAULT, RECENT_TORCH, Assumption
from turbofix.codemod import Codemod
from turbofix.edits import Edit, Refuse
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.program.evidence import of_forward, of_value
from turbofix.program.libraries import unfit_for_half
from turbofix.program.model import (
    Called,
    Evaluation,
    Framework,
    Model,
    ModuleSteps,
    Output,
    Owner,
    Placement,
    Region,
    Scaler,
    Step,
    Sync,
    Training,
    TrainingProgram,
)
from turbofix.program.sizes import batch_of, is_bound_by_launches
from turbofix.records import dataclass

from ._deepspeed import InConfiguration
from ._deepspeed import evidence as of_configuration
from ._deepspeed import find as under_deepspeed
from ._deepspeed import under_trainer as beside_trainer
from ._deepspeed import write as write_configuration
from ._loaders import whole
from ._precision import (
    CONVOLUTIONS,
    CONVOLVING,
    GATED_CELLS,
    MATMULS,
    PRODUCTS,
    RECURRENT,
    THERE,
    asks_torch,
    autocast_of,
    called,
    cuda_test,
    may_contain,
    models_of,
    on_a_gpu,
    requote,
    said,
    version,
    written,
)
from ._scaler import Scaling, scale, scaling_for
from ._trainers import (
    CAPABLE,
    FULL,
    MIXED,
    STEPPING,
    Switch,
    by_deepspeed,
    evidence,
    is_off,
    is_sharded,
    on_gpu,
    set_switch,
    stays_on_cpu,
)
from ._trainers import called as called_by
from ._trainers import judged as judged_setting
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="precision",
    risk=Risk.EQUIVALENT,
    gain=Gain(
        1.1,
        2.6,
        source="A100: GPT-2 124M 1.11x (Karpathy) and 1.60x (Raschka), ResNet-50 2.63x (NVIDIA)",
        instead_of=("tf32",),
    ),
    after=("larger-batch", "modern-amp"),
    known_as=("mixed precision", "AMP", "GradScaler", "bfloat16", "fp16"),
    unlocks=("channels-last",),
    assumes=(ON_GPU, LEARNS_IN_16_BITS, OPTION_DEFAULT, RECENT_TORCH),
)

VOLTA, AMPERE = (7, 0), (8, 0)
AUTOCAST_SINCE = (1, 10)  # torch.autocast
SCALER_SINCE = (2, 3)  # torch.amp.GradScaler; torch.cuda.amp.GradScaler before

TINY_BATCH, TINY_CHANNELS, TINY_INPUTS, TINY_AREA = 64, 64, 9216, 1 << 21
"""Up to here a layer takes a GPU no longer than its launch, and casts cost more than 16 bits save."""

LOGIT_LOSSES = {
    "torch.nn.BCELoss": "BCEWithLogitsLoss",
    "torch.nn.functional.binary_cross_entropy": "binary_cross_entropy_with_logits",
}
NETWORKS = ("torchvision.models.", "timm.", "transformers.", "segmentation_models_pytorch.", "torchaudio.models.")
"""Libraries whose networks multiply or convolve."""

FAIRSCALE_CHECKPOINT = "fairscale.nn.checkpoint_wrapper"
FORGETS = "recomputes the forward pass without the autocast that it ran under"
UNSAFE = (
    ("torch.nn.functional.batch_norm", "does not mix statistics in 32 bits with weights in 16"),
    ("torch.autograd.grad", "takes gradients inside the forward pass"),
    ("deepspeed.checkpointing.", FORGETS),
    ("deepspeed.runtime.activation_checkpointing.", FORGETS),
    ("apex.transformer.tensor_parallel.checkpoint", FORGETS),
    ("apex.transformer.tensor_parallel.random.checkpoint", FORGETS),
    ("torchdiffeq.", "picks its steps by the error, which rounding to 16 bits drowns"),
    ("torchsde.", "picks its steps by the error, which rounding to 16 bits drowns"),
)
"""Calls that break or lose their meaning under autocast, by the beginning of their name, and why."""

DOUBTFUL = ("torch.autograd.Function.apply",)
"""What has a backward of its own that may not know autocast."""

PERIODIC = frozenset(f"{owner}.{name}" for owner in ("torch", "Tensor") for name in ("sin", "cos", "sin_", "cos_"))
"""Sines of what a layer gave with a factor of some tens (SIREN), or of positions from a matrix product (rotary
embeddings by ``einsum``): their arguments reach into the hundreds, and 16 bits hold those to 1 or 2."""

FILLS = ("Tensor.masked_fill", "torch.masked_fill")
FLOAT16_MAX = 65504.0
ENVIRONMENTS = frozenset(("gym", "gymnasium", "pettingzoo", "procgen", "dm_control"))
GRAPHS = frozenset(
    ("torch_geometric", "dgl", "torch_sparse", "torch_scatter", "torch_cluster", "spconv", "MinkowskiEngine")
)
QUANTIZERS = frozenset(("pytorch_quantization", "nncf", "brevitas", "torchao", "auto_gptq"))
OWN_PRECISION = frozenset(("torch", "intel_extension_for_pytorch", "transformer_engine", "ray"))
PARTS = {"scaler": "a gradient scaler", "autocast": "autocast"}
LOGIT_CRITERIA = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss", "with_logits", "WithLogitsLoss")


@dataclass(frozen=True)
class Wrap:
    """A region to put under autocast; ``test`` is true where a GPU is used ("True": always).

    ``outputs`` become float32 again inside it, because the loss is computed from them outside. ``apart``: each
    statement that calls a model gets a region of its own; calls in statements that do more are ``lifted`` out of these.
    """

    region: Region
    test: str
    outputs: tuple[Output, ...] = ()
    lifted: tuple[Output, ...] = ()
    apart: bool = False


@dataclass(frozen=True)
class Plan:
    """What to rewrite: the regions, and the scaler for float16."""

    wraps: tuple[Wrap, ...]
    scaling: Scaling | None
    old_torch: bool


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Training steps whose forward pass runs in float32 on a GPU that could do better."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(program)
    if program.framework is Framework.ACCELERATE:
        yield from under_accelerate(program)
    if program.framework is Framework.DEEPSPEED:
        yield from under_deepspeed(codemod, program, lambda step: worth_of(program, step) is not None)
    if program.framework is not Framework.PYTORCH or not program.trains:
        return
    yield from already_there(program)
    if any(part.kind in ("apex", "framework") for part in program.precision):
        return  # another library has taken over the precision: a second mechanism would fight with it
    gpu = on_a_gpu(program)
    if program.target.capability < VOLTA or gpu is None:
        return
    taken: set[Site] = set()
    for step in program.steps:
        worth = worth_of(program, step)
        if autocast_of(program, step) is not None or step.device.where == "cpu" or worth is None:
            continue
        place = step.forwards[0].first if step.forwards else step.loop.site
        if place in taken:
            continue
        half = half_for(program, step)
        message = (
            f"{called(models_of(program, step))} and the loss are computed in float32; the GPU is faster in {half}"
        )
        before = set(taken)
        try:
            plan, assumes = plan_for(program, step, half, taken)
        except Refuse as refuse:
            taken.clear()
            taken.update(before, (place,))
            yield codemod.refuse(place, message, str(refuse), evidence=of_forward(step))
            continue
        taken.add(place)
        trained = len(step.forwards)
        along = [
            Evidence("the forward pass" + (" of the evaluation" if number >= trained else "") + " goes along", place)
            for number, place in enumerate(wrap.region.first for wrap in plan.wraps)
            if number
        ]
        small = (LEARNS_IN_16_BITS,) if worth is Worth.SMALL else ()
        seen = (*of_forward(step), *along)
        yield codemod.finding(place, message, plan=plan, evidence=seen, assumes=(*assumes, *gpu, *small), worth=worth)


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, which have a switch for it: the trainer puts the model under autocast itself."""
    for training in program.trainings:
        if program.target.capability < VOLTA or stays_on_cpu(training):
            continue
        name = f"{called_by(training)} leaves the model"
        message = f"{name} in float32; the GPU is faster in bfloat16"
        there = [
            judged_setting(codemod, training, each, message, f"the trainer computes in mixed precision ({each})")
            for each in ("bf16", "fp16")
        ]
        told = sorted((each for each in there if each is not None), key=lambda each: isinstance(each, Refusal))
        if told and isinstance(told[0], InPlace):  # one of the two that is on decides
            yield told[0]
            continue
        if training.precision == "other":
            continue
        if told:
            yield told[0]
            continue
        reason = why_not_under(program, training)
        seen = evidence(training, "bf16")
        plan: Switch | InConfiguration = Switch("bf16", CAPABLE)
        if reason is None and by_deepspeed(training):
            both, seen = beside_trainer(training), (*seen, *of_configuration(training))
            reason, plan = (both, plan) if isinstance(both, str) else (None, both)
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=seen)
            continue
        plain = training.precision == "float32" and not training.overrides & STEPPING and program.complete
        assumes = () if plain else (LEARNS_IN_16_BITS,)
        yield codemod.finding(training.site, message, plan=plan, evidence=seen, assumes=assumes, worth=Worth.HIGH)


def why_not_under(program: TrainingProgram, training: Training) -> str | None:
    """What makes a trainer's mixed precision unsafe, or what decides over it."""
    reason = why_not_setting(program, training, "bf16")
    if reason is not None:
        return reason
    if program.target.capability < AMPERE:
        return "before Ampere there is only fp16, in which models that were trained in bfloat16 (T5) overflow"
    inside = sorted({layer for model in training.models for layer in model.layers} & LOGIT_LOSSES.keys())
    if inside:
        return f"{inside[0].rpartition('.')[2]} in the model raises under autocast: use {LOGIT_LOSSES[inside[0]]}"
    for name in ("fsdp", "half_precision_backend", "fp16_backend", "fp16_opt_level"):
        if not is_off(training.argument(name)):
            return f"the settings choose a way of their own by `{name}`"
    return None


def under_lightning(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of Lightning, whose trainer puts the module's steps under autocast, with their losses."""
    for training in program.trainings:
        given = training.argument("precision")
        message = "Lightning's trainer computes in float32; the GPU is faster in bfloat16"
        seen = evidence(training, "precision")
        if program.target.capability < VOLTA or on_gpu(training) is False:
            continue
        if given.known and set(given.values) <= set(MIXED):
            unless = f", unless {given.option} says otherwise" if given.option is not None else ""
            said_so = f"the trainer computes in {given.values[0]}{unless}"
            yield codemod.in_place(given.edit_at or training.site, said_so)
            continue
        if given.state in ("computed", "unknown", "may"):
            where = f"as `{given.text or '...'}` says"
            yield codemod.in_place(given.site or training.site, f"the trainer's precision is chosen, {where}")
            continue
        if given.known and not set(given.values) <= {None, *FULL}:
            continue  # in double precision, on purpose
        worth = worth_under_lightning(program, training)
        if training.precision == "other" or worth is None:
            continue
        reason = why_not_under_lightning(program, training)
        if reason is not None:
            yield codemod.refuse(training.site, message, reason, evidence=seen)
            continue
        is_cuda = training.argument("accelerator").values == ("cuda",)
        value = '"bf16-mixed"' if is_cuda else '"bf16-mixed" if {torch.cuda.is_available}() else "32-true"'
        sure = program.complete and worth is not Worth.SMALL and is_plain(training.module)
        assumes = (*(() if sure else (LEARNS_IN_16_BITS,)), *((ON_GPU,) if on_gpu(training) is None else ()))
        plan = Switch("precision", value)
        yield codemod.finding(training.site, message, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def worth_under_lightning(program: TrainingProgram, training: Training) -> Worth | None:
    """What 16 bits are worth for a module: None where it is known to multiply nothing, little for small layers."""
    layers = {layer for model in training.models for layer in model.layers}
    whole = [replace(model, products=replace(model.products, complete=True)) for model in training.models]
    if training.parsed or not whole or any(each.startswith(NETWORKS) for each in layers):
        return Worth.HIGH
    if not layers & (MATMULS | RECURRENT | CONVOLUTIONS):
        return None if all(model.layers_complete for model in whole) else Worth.SOME
    sizes = [size for loader in program.loaders for size in loader.samples.values]
    batch = max((size for size in sizes if isinstance(size, int)), default=TINY_BATCH)
    tiny = all(
        is_tiny(model)
        if model.products.beside_convolutions
        else bool(model.products.layers) and is_bound_by_launches(model.products, batch)
        for model in whole
    )
    return Worth.SMALL if tiny else Worth.HIGH


def why_not_under_lightning(program: TrainingProgram, training: Training) -> str | None:
    """What makes mixed precision unsafe for a module, or what decides over it."""
    given, module = training.argument("precision"), training.module
    if given.option is not None:
        return f"the script leaves it to {said(given)}: pass bf16-mixed"
    if given.state == "value" and given.values != (None,):
        return f"the script asks for precision={given.text} itself, on purpose as it seems"
    if module is not None and module.manual:
        return "the module steps its optimizers itself, and its backward passes would run under autocast too"
    reason = why_not_in_steps(module, training.site.path) if module is not None else None
    if reason is not None:
        return reason
    if program.target.capability < AMPERE:
        return 'before Ampere there is only "16-mixed", which not every module bears'
    if module is not None and module.old is not None:
        return f'the script is written for Lightning 1 (`{module.old}`), which calls it precision="bf16"'
    if is_sharded(training):
        return "a strategy or plugin of the trainer may have a precision of its own"
    fused = [each for each in program.optimizers if not is_off(each.argument("fused"))]
    clips = not is_off(training.argument("gradient_clip_val")) or (module is not None and module.hands_clipping)
    if fused and clips:
        return "Lightning cannot clip the gradients of a fused optimizer beside mixed precision"
    try:
        refuse_program(program, training.site.path)
        for model in training.models:
            refuse_model(model)
            if (layer := needs_float16(model)) is not None:
                raise Refuse(f"the model has {layer}, which autocast computes in float16, and bf16-mixed has no scaler")
    except Refuse as refuse:
        return str(refuse)
    return why_not_setting(program, training, "precision", "bf16-mixed")


def why_not_in_steps(module: ModuleSteps, here: Path) -> str | None:
    """What a module's steps do that raises in 16 bits."""
    for name in (*module.losses, *(call.qualname for call in module.calls)):
        if name in LOGIT_LOSSES:
            return f"{name.rpartition('.')[2]} raises under autocast: return logits and use {LOGIT_LOSSES[name]}"
    if module.leaves is not None:
        return f"{module.leaves.line_from(here)} makes a numpy array of a tensor; numpy has no bfloat16"
    return unsafe_call(module.calls, "bfloat16", here)


def is_plain(module: ModuleSteps | None) -> bool:
    """Whether the steps of a module compute nothing beside the model and criteria of torch."""
    return module is not None and bool(module.losses) and module.by_hand is None and module.kept is None


def under_accelerate(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings with Accelerate, which puts the forward pass under autocast itself and returns float32."""
    steps = [step for step in program.steps if step.device.where != "cpu" and worth_of(program, step) is not None]
    if program.target.capability < VOLTA or program.hands_over or not steps:
        return
    told: set[Site] = set()
    for owner in program.owners:
        given = owner.argument("mixed_precision")
        site = given.edit_at or owner.site
        if given.known and given.values and set(given.values) <= {"bf16", "fp16", "fp8"}:
            yield codemod.in_place(site, f"Accelerate computes in mixed precision ({given.values[0]})")
            continue
        if given.state in ("computed", "unknown", "may"):
            where = f"as `{given.text or '...'}` says"
            yield codemod.in_place(given.site or owner.site, f"the precision of Accelerate is chosen, {where}")
            continue
        if site in told:
            continue
        told.add(site)
        message = (
            f"Accelerate computes {called(models_of(program, steps[0]))} in float32; the GPU is faster in bfloat16"
        )
        seen = (of_value("mixed_precision", given, owner.site), *of_forward(steps[0]))
        reason = why_not_under_accelerate(program, owner, steps)
        if reason is not None:
            yield codemod.refuse(site, message, reason, evidence=seen)
            continue
        launched = given.state == "absent" or given.values == (None,)
        at = None if given.state == "absent" else site
        plan = Switch("mixed_precision", '"bf16" if {torch.cuda.is_available}() else "no"', at)
        plain = program.complete and all(models_of(program, step) for step in steps)
        assumes = (*((OPTION_DEFAULT,) if launched else ()), *(() if plain else (LEARNS_IN_16_BITS,)))
        worth = min(each for each in (worth_of(program, step) for step in steps) if each is not None)
        yield codemod.finding(site, message, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def why_not_under_accelerate(program: TrainingProgram, owner: Owner, steps: list[Step]) -> str | None:
    """What makes Accelerate's mixed precision unsafe for the steps, or who decides over it."""
    given = owner.argument("mixed_precision")
    try:
        refuse_program(program, owner.site.path)
        for step in steps:
            refuse_under_accelerate(program, step)
    except Refuse as refuse:
        return str(refuse)
    if program.target.capability < AMPERE:
        return "before Ampere there is only fp16, which not every model bears"
    if owner.open_mapping:
        return "the call unpacks a mapping that may already hold mixed_precision"
    if given.state != "absent" and given.values != (None,) and given.option is None:
        return f"the script sets mixed_precision={given.text or 'no'} itself, on purpose as it seems"
    if not is_off(owner.argument("cpu")):
        return f"whether it trains on a GPU is left to `cpu={owner.argument('cpu').text or '...'}`"
    if given.reads:
        return f"the option is read for something else too ({given.reads[0].line_from(program.entry)})"
    known = given.state == "absent" or given.edit_at is not None
    return None if known else f"the script leaves it to {said(given)}: pass bf16"


def refuse_under_accelerate(program: TrainingProgram, step: Step) -> None:
    """Raise Refuse for what happens in a step whose models alone run under autocast, and return float32."""
    if any(update.closure for update in step.updates) or "torch.optim.LBFGS" in optimizer_names(program, step):
        raise Refuse("the optimizer calls the forward pass again through a closure")
    if any(backward.create_graph for backward in step.backwards):
        raise Refuse("gradients of gradients are taken (create_graph), which 16 bits need other care for")
    for model in models_of(program, step):
        refuse_model(model)
        if (layer := needs_float16(model)) is not None:
            raise Refuse(f"the model has {layer}, which autocast computes in float16, and bf16 has no scaler")
    loop = step.loop.site
    inside_models = tuple(
        call for call in step.calls if call.site.path != loop.path or not loop.line <= call.site.line <= loop.end_line
    )
    for call in inside_models:
        if call.qualname in LOGIT_LOSSES:
            raise Refuse(f"{call.qualname.rpartition('.')[2]} in the model raises under autocast")
    reason = unsafe_call(inside_models, "bfloat16", loop.path)
    if reason is not None:
        raise Refuse(reason)


def already_there(program: TrainingProgram) -> Iterator[Refusal | InPlace]:
    """Mixed precision that the program has; a switch that is off is told with its name."""
    told: set[Site] = set()
    for step in program.steps:
        site = autocast_of(program, step)
        if site is None or site in told:
            continue
        told.add(site)
        yield judged(program.part(site), site, "autocast", "the forward pass runs under autocast")
    for part in program.precision:
        if part.kind == "apex" and part.qualname.endswith(".initialize"):
            yield judged(part, part.site, "apex's mixed precision", "the model computes in mixed precision (apex)")
        elif part.kind == "framework" and part.qualname.partition(".")[0] in OWN_PRECISION:
            what = part.qualname.rpartition(".")[2]
            yield judged(part, part.site, what, f"{what} sets the precision of the model")


def judged(part: Scaler | None, site: Site, what: str, right: str) -> Refusal | InPlace:
    """What to say of mixed precision that is there: it is in force, or it is switched off and by what."""
    if part is None or not part.off:
        open_switch = part is not None and part.enabled.state in ("unknown", "computed", "may")
        where = f", where `{part.enabled.text}` says so" if part is not None and open_switch else ""
        return codemod.in_place(site, right + where)
    if part.enabled.option is not None:
        decides = Evidence(f"`{part.enabled.text}` decides", part.enabled.site)
        return codemod.refuse(
            site,
            "the forward pass runs in float32 unless an option is passed",
            f"{what} is there and {said(part.enabled)} turns it on: pass it",
            evidence=(decides, Evidence(f"`{part.enabled.option}` is off by default", part.enabled.edit_at)),
        )
    return codemod.refuse(
        site,
        f"the forward pass runs in float32: {what} is there, and switched off",
        f"`{part.enabled.text}` turns it on: set that instead",
    )


def worth_of(program: TrainingProgram, step: Step) -> Worth | None:
    """What 16 bits are worth in a step: None where it holds no product and no convolution, or trains no model."""
    optimizers = [optimizer for optimizer in program.optimizers if optimizer.site in step.optimizers]
    if optimizers and all(optimizer.trains == "inputs" for optimizer in optimizers):
        return None  # an image or a latent code is searched for: its small changes are the result
    models = models_of(program, step)
    if not may_contain(models, (step,), MATMULS | RECURRENT | CONVOLUTIONS, PRODUCTS | CONVOLVING):
        return None
    batch = batch_of(program, step)
    if not models or any(model.layers & RECURRENT for model in models):
        return Worth.SOME
    if batch is None:
        return Worth.HIGH
    by_hand = [call for call in step.calls if call.qualname in PRODUCTS | CONVOLVING]
    if by_hand and (any(call.of_weights for call in by_hand) or not any(each.products.by_position for each in models)):
        return Worth.HIGH  # the scores of a narrow attention are as small as its layers; of others nothing is known
    tiny = all(
        is_bound_by_launches(model.products, batch)
        if not model.products.beside_convolutions
        else not by_hand and batch <= TINY_BATCH and is_tiny(model)
        for model in models
    )
    return Worth.SMALL if tiny else Worth.HIGH


def is_tiny(model: Model) -> bool:
    """Whether a convolutional network has such small layers that each is over before the next one is launched.

    How large the pictures are is not known; they are small where a classifier takes the last maps whole.
    """
    products = model.products
    inputs = [layer.inputs or 0 for layer in products.layers]
    if not products.beside_convolutions or products.of_sequences or products.embeds:
        return False
    if not products.complete or products.channels is None or products.channels > TINY_CHANNELS:
        return False
    if any(each.elements is None or each.elements > TINY_AREA for each in products.layers):
        return False
    return bool(inputs) and products.channels < max(inputs) <= TINY_INPUTS


def half_for(program: TrainingProgram, step: Step) -> str:
    """What a step computes in: bfloat16, but where only float16 is there, or a part of it computes in that anyway."""
    narrow = any(needs_float16(model) is not None for model in models_of(program, step))
    return "float16" if narrow or program.target.capability < AMPERE else "bfloat16"


def plan_for(program: TrainingProgram, step: Step, half: str, taken: set[Site]) -> tuple[Plan, tuple[Assumption, ...]]:
    """What to rewrite for one training step, and what that rests on.

    Raises Refuse with the reason where it is not safe.
    """
    refuse_program(program, step.loop.site.path)
    refuse_step(program, step, half)
    wraps: list[Wrap] = []
    sure = is_sure(program, step) and (half == "bfloat16" or program.target.capability < AMPERE)
    blocked = why_apart(step)
    for region in step.forwards:
        test = test_in(program, step, region)
        outside = why_outside(step, region)
        wrap, plain = (apart(region, test, blocked), False) if blocked else wrap_of(step, region, test, outside)
        wraps.append(wrap)
        sure = sure and plain
    for evaluation in program.evaluations:
        found = evaluation_wrap(program, evaluation, step, half)
        if found is None or found.region.first in taken or any(overlap(found.region, other.region) for other in wraps):
            continue
        taken.add(found.region.first)
        wraps.append(found)
    if half == "float16" and wraps[0].test == THERE and program.target.torch < SCALER_SINCE:
        raise Refuse("no test was found that tells, at the forward pass, whether it runs on a GPU")
    scaling = scaling_for(program, step, wraps[0].test) if half == "float16" else None
    plan = Plan(tuple(wraps), scaling, program.target.torch < SCALER_SINCE)
    return plan, () if sure else (LEARNS_IN_16_BITS,)


def is_sure(program: TrainingProgram, step: Step) -> bool:
    """Whether all that a step computes was seen."""
    if not program.complete or step.loss.certainty != "seen" or program.libraries & GRAPHS:
        return False
    if len(step.forwards) != len(step.backwards) or len({region.function for region in step.forwards}) > 1:
        return False
    own = any(call.qualname.startswith(DOUBTFUL) and call.constants != ("custom_fwd",) for call in step.calls)
    return bool(step.models) and not own


def why_outside(loop: Step | Evaluation, region: Region) -> str | None:
    """Why the region has to end with the forward pass, whose results become float32 again."""
    names = loop.loss.qualnames if isinstance(loop, Step) else tuple(call.qualname for call in loop.calls)
    for name in (*names, *region.criteria_inside):
        if name in LOGIT_LOSSES:
            why = "raises under autocast, and the loss cannot be told from the forward pass"
            return f"{name.rpartition('.')[2]} {why}: let the model return logits and use {LOGIT_LOSSES[name]}"
    for call in region.unfit:
        line, broken = call.site.line_from(region.first.path), unfit_for_half(call.qualname)
        return f"{call.qualname} on {line} is given a result of the forward pass, and {broken}: give it `.float()`"
    return None


def wrap_of(loop: Step | Evaluation, region: Region, test: str, outside: str | None) -> tuple[Wrap, bool]:
    """A region without its loss, where that is put together by hand, or where other lines stand before it; and whether
    16 bits are known to be enough for what becomes of its results. ``outside``: why the loss must not stand in it.

    Criteria of torch compute in float32 under autocast. What a script computes itself from results in 16 bits is
    left with three digits, and a mean or a sum of it too. Products of matrices beside the models are such work (Gram
    matrices, similarities), unless they are the logits of a classification.
    """
    end, outputs = region.calls_end, region.outputs
    leaves = leaves_torch(region, loop.syncs)
    if outside is None and not leaves and not region.half and not region.products and not region.idle:
        return Wrap(region, test), True
    inside = outside is not None and any(name in LOGIT_LOSSES for name in region.criteria_inside)
    if end is not None and outputs is not None and not region.tangled and not inside:
        return Wrap(replace(region, last=end), test, outputs), outside is None and not leaves
    if outside is not None:
        return apart(region, test, outside), False
    logits = isinstance(loop, Evaluation) or (
        bool(loop.loss.qualnames) and all(name.endswith(LOGIT_CRITERIA) for name in loop.loss.qualnames)
    )
    return Wrap(region, test), not leaves and not region.half and (logits or not region.products)


def apart(region: Region, test: str, why: str) -> Wrap:
    """A region for each statement that calls a model, where one around all of them is not possible (``why``)."""
    hidden = set(region.criteria_hidden) & LOGIT_LOSSES.keys()
    if region.outputs is None or region.lifted is None or not region.calling or hidden:
        raise Refuse(why)
    return Wrap(region, test, region.outputs, region.lifted, apart=True)


def test_in(program: TrainingProgram, loop: Step | Evaluation, region: Region) -> str:
    """The source of a test, valid at a region of a loop, of whether it runs on a GPU.

    The device of the forward pass says so, or the test under which the model was moved, where that asks torch itself
    or stands at the top level of the script as the region does. Else it is whether there is one: on tensors of a CPU
    the region has no effect.
    """
    test: str | None = cuda_test(loop.device)
    moves = [model.device for site in loop.models if (model := program.model(site)) is not None]
    for move in moves if test is None else ():
        if move.test is not None and (asks_torch(move, region.first.path) or at_top_level(move, region)):
            return move.test
    return test if test is not None else THERE


def at_top_level(place: Placement, region: Region) -> bool:
    """Whether a placement's test heads an ``if`` at the top level of the file, where the region stands too."""
    return region.function is None and any(
        test.path == region.first.path and test.column == len("if ") for test in place.tests
    )


def refuse_program(program: TrainingProgram, here: Path) -> None:
    """Raise Refuse for what the whole program does."""
    if program.target.torch < AUTOCAST_SINCE:
        older = version(program.target.torch)
        raise Refuse(f"the project serves torch {older}; torch.autocast came with torch {version(AUTOCAST_SINCE)}")
    if program.libraries & ENVIRONMENTS:
        raise Refuse("the model also acts in an environment, and the step compares with what it did there in float32")
    if program.libraries & QUANTIZERS:
        raise Refuse("the model is quantized, and what it is calibrated on would be rounded to 16 bits first")
    for part in program.precision:
        if part.kind in PARTS and not part.disabled:
            what = f"{PARTS[part.kind]}, {part.site.line_from(here)}"
            raise Refuse(f"the script has mixed precision of its own already ({what}), but not here")


def refuse_step(program: TrainingProgram, step: Step, half: str) -> None:
    """Raise Refuse for what happens in the step."""
    refuse_regions(step)
    if any(update.closure for update in step.updates) or "torch.optim.LBFGS" in optimizer_names(program, step):
        raise Refuse("the optimizer calls the forward pass again through a closure")
    if any(backward.create_graph for backward in step.backwards):
        raise Refuse("gradients of gradients are taken (create_graph), which 16 bits need other care for")
    for model in models_of(program, step):
        refuse_model(model)
    calls = tuple(call for call in step.calls if is_forward(call, step))
    reason = unsafe_call(calls, half, step.forwards[0].first.path)
    if reason is not None:
        raise Refuse(reason)


def refuse_regions(step: Step) -> None:
    """Raise Refuse where the statements of the forward passes cannot stand under a ``with``."""
    if not step.forwards or not step.backwards:
        raise Refuse("forward pass and loss could not be told apart from the rest of the step")
    for region in step.forwards:
        for blocker in region.blockers:
            if blocker not in region.between:
                raise Refuse(blocker)


def why_apart(step: Step) -> str | None:
    """Why the calls of models cannot stand under one ``with`` with all that lies between them, if anything."""
    for region in step.forwards:
        if region.between:
            return region.between[0]
    for one, other in zip(step.forwards, step.forwards[1:], strict=False):
        if overlap(one, other):
            return "the forward passes of several losses overlap"
    for backward in step.backwards:
        if any(inside(backward.statement, region) for region in step.forwards):
            return "a loss is sent back before the forward pass of another one is over"
    return None


def refuse_model(model: Model) -> None:
    """Raise Refuse for what a model is made of."""
    if model.dtype == "float64":
        raise Refuse("the program computes in float64: it wants more precision, not less")
    if model.half:
        raise Refuse("the model, or a part of it, is converted to another precision already")
    if (model.wrapped or "").endswith("FullyShardedDataParallel"):
        raise Refuse("FullyShardedDataParallel has mixed precision of its own: pass it mixed_precision=")


def needs_float16(model: Model) -> str | None:
    """What a model has that computes in float16 whatever the region says, where small gradients need a scaler.

    cuDNN does so with recurrent layers, fairscale when it recomputes; the threads of ``DataParallel`` take over that
    autocast is on, but not its dtype. Cells have no kernel for bfloat16 in older versions of torch.
    """
    if model.wrapped == "torch.nn.DataParallel":
        return "DataParallel"
    if FAIRSCALE_CHECKPOINT in model.layers:
        return "checkpoint_wrapper of fairscale"
    layer = next(iter(sorted(model.layers & (RECURRENT | GATED_CELLS))), None)
    return f"{layer.rpartition('.')[2]} layers" if layer is not None else None


def optimizer_names(program: TrainingProgram, step: Step) -> set[str | None]:
    """The qualified names of the optimizers that the step updates."""
    return {optimizer.qualname for site in step.optimizers if (optimizer := program.optimizer(site)) is not None}


def inside(statement: Site, region: Region) -> bool:
    """Whether a statement stands in a region."""
    same = statement.path == region.first.path
    return same and region.first.line <= statement.line <= region.last.end_line


def is_forward(call: Called, step: Step) -> bool:
    """Whether a call of the step may be part of its forward pass: it does not stand beside the regions in the loop."""
    beside = call.site.path == step.loop.site.path and step.loop.site.line <= call.site.line <= step.loop.site.end_line
    return not beside or any(inside(call.site, region) for region in step.forwards)


def overlap(one: Region, other: Region) -> bool:
    """Whether two regions share lines."""
    same = one.first.path == other.first.path
    return same and one.first.line <= other.last.end_line and other.first.line <= one.last.end_line


def unsafe_call(calls: tuple[Called, ...], half: str, here: Path) -> str | None:
    """Why the forward pass would break or lose its meaning in 16 bits, if one of its calls says so."""
    for call in calls:
        why = unfit_for_half(call.qualname)
        why = why or next((why for prefix, why in UNSAFE if call.qualname.startswith(prefix)), None)
        if why is not None and call.constants != ("custom_fwd",):
            return f"{call.qualname} on {call.site.line_from(here)} {why}"
        if call.of_halves and call.qualname in PERIODIC:
            why = "takes what a product gave: its phase is lost in 16 bits"
            return f"{call.qualname} on {call.site.line_from(here)} {why}"
        if half == "float16" and call.qualname.startswith(FILLS):
            numbers = [value for value in call.constants if isinstance(value, (int, float))]
            if any(FLOAT16_MAX < abs(value) < float("inf") for value in numbers):
                where = call.site.line_from(here)
                return f"{where} fills with a number that float16 cannot hold: use torch.finfo(x.dtype).min"
    return None


def leaves_torch(region: Region, syncs: tuple[Sync, ...]) -> bool:
    """Whether a result of the forward pass is handed to numpy or another library, which may not know bfloat16."""
    kept = ("loss", "batch", "param", "grad")
    read = [each for each in syncs if each.how == "numpy" and each.of not in kept and not casts(each.of_text)]
    return bool(read or region.escapes)


def casts(text: str) -> bool:
    """Whether an expression ends in something that is float32 or integer whatever it was before."""
    tail = text.replace(".detach()", "").replace(".cpu()", "").replace(".data", "")
    return tail.endswith((".float()", ".double()", ".long()", ".int()", ".bool()")) or ".argmax(" in tail


def evaluation_wrap(program: TrainingProgram, evaluation: Evaluation, step: Step, half: str) -> Wrap | None:
    """The evaluation's forward region, where it runs the step's model and nothing speaks against it.

    An evaluation that stays in float32 is right too, so there is nothing to refuse.
    """
    region = evaluation.forward
    if region is None or region.blockers or evaluation.autocast is not None:
        return None
    if not evaluation.loaders or not set(evaluation.models) & set(step.models):
        return None  # a loop over no loader shows or translates a few samples
    if unsafe_call(evaluation.calls, half, region.first.path):
        return None
    try:
        test = test_in(program, evaluation, region)
        wrap, _ = wrap_of(evaluation, region, test, why_outside(evaluation, region))
    except Refuse:
        return None
    return None if wrap.region == region and leaves_torch(region, evaluation.syncs) and not wrap.apart else wrap


def is_set_in(region: Region, test: str, edit: Edit) -> bool:
    """Whether the region itself sets what the test in its header asks: it may not be there yet."""
    name = re.match(r"[A-Za-z_]\w*", test)
    lines = whole(edit, region.first).splitlines()[region.first.line - 1 : region.last.end_line]
    return name is not None and any(re.match(rf"[^=(]*\b{name[0]}\b(?!\.)[^=(]*=(?!=)", line) for line in lines)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put the regions under autocast, and the scaler around backward and step."""
    plan = finding.plan
    if isinstance(plan, Switch):
        set_switch(plan, finding.site, edit)
        return
    if isinstance(plan, InConfiguration):
        write_configuration(plan, edit)
        return
    assert isinstance(plan, Plan)
    dtype = "torch.bfloat16" if plan.scaling is None else "torch.float16"
    done: set[Output] = set()
    wrapped: set[Site] = set()
    for wrap in plan.wraps:
        place = wrap.region.first
        test = written(THERE if is_set_in(wrap.region, wrap.test, edit) else wrap.test, edit, place)
        enabled = "" if test == "True" else f", enabled={test}"
        autocast = edit.name("torch.autocast", place)
        header = f'with {autocast}("cuda", dtype={edit.name(dtype, place)}{enabled}):'
        header = requote(header, edit, place)
        lifted = {each.statement for each in wrap.lifted}
        for output in wrap.outputs:
            if output in done:
                continue
            done.add(output)
            if output.names:
                values = ", ".join(f"{name}.float()" for name in output.names)
                edit.after(output.statement, f"{', '.join(output.names)} = {values}")
            elif output.statement not in lifted:
                edit.insert_after(output.call, ".float()")
        if not wrap.apart:
            edit.wrap(place, wrap.region.last, header)
        for statement in wrap.region.calling if wrap.apart else ():
            if statement in wrapped:
                continue
            wrapped.add(statement)
            if statement not in lifted:
                edit.wrap(statement, statement, header)
                continue
            calls = [each.call for each in wrap.lifted if each.statement == statement]
            names: list[str] = []
            for call in calls:
                names.append(edit.free_name("output", call, names))
            lines = [f"    {name} = {edit.text(call)}.float()" for name, call in zip(names, calls, strict=True)]
            edit.before(statement, header, *lines)
            for name, call in zip(names, calls, strict=True):
                edit.replace(call, name)
    if plan.scaling is not None:
        scale(plan.scaling, edit, old_torch=plan.old_torch)
