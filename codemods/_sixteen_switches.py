"""Mixed precision under a framework, which has a switch for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from turbofix.assumptions import LEARNS_IN_16_BITS, ON_GPU
from turbofix.codemod import Codemod
from turbofix.editing.edit import Refuse
from turbofix.findings import Finding, InPlace, Refusal, Worth
from turbofix.training.data.sizes import SMALL_BATCH
from turbofix.training.model import ModuleSteps, Training, TrainingProgram

from ._loaders import reason_beside
from ._options import on_defaults
from ._precision import CONVOLUTIONS, MATMULS, RECURRENT, said
from ._sixteen import (
    AMPERE,
    EVALUATED,
    LOGIT_LOSSES,
    VOLTA,
    islands,
    needs_float16,
    refuse_model,
    refuse_program,
    unsafe_call,
)
from ._trainers import (
    CAPABLE,
    FULL,
    MIXED,
    STEPPING,
    Switch,
    beside,
    by_deepspeed,
    evidence,
    is_off,
    is_sharded,
    on_gpu,
    rests_on_gpu,
    stays_on_cpu,
)
from ._trainers import called as called_by
from ._trainers import judged as judged_setting
from ._trainers import why_not as why_not_setting
from ._work import worth_of_work

BEFORE_AMPERE = "before Ampere there is only float16, which not every model bears"

NETWORKS = ("torchvision.models.", "timm.", "transformers.", "segmentation_models_pytorch.", "torchaudio.models.")
"""Libraries whose networks multiply or convolve."""


def under_trainer(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers, which have a switch for it: the trainer puts the model under autocast itself."""
    for training in program.trainings:
        if program.target.capability < VOLTA or stays_on_cpu(training):
            continue
        older = f"before {training.sixteen_since} " if training.sixteen_since else ""
        name = f"{older}{called_by(training)} leaves the model"
        message = f"{name} in float32; the GPU is faster in bfloat16"
        right = "the trainer computes in mixed precision ({})"
        there = [
            judged_setting(codemod, training, each, message, right.format(each), value, (LEARNS_IN_16_BITS,))
            for each, value in (("bf16", CAPABLE), ("fp16", "{torch.cuda.is_available}()"))
            if not is_off(training.argument(each)) or reason_beside(training.argument(each)) is not None
        ]
        told = sorted((each for each in there if each is not None), key=lambda each: not isinstance(each, InPlace))
        if training.precision == "other" and not (told and isinstance(told[0], InPlace)):
            continue
        if told:  # one of the two that is on decides
            yield told[0]
            continue
        reason = why_not_under(program, training)
        seen = evidence(training, "bf16")
        given = training.argument("bf16")
        if reason is None and by_deepspeed(training):
            reason = "DeepSpeed's configuration must say the same as the settings: give it `bf16` there and here"
        plain = training.precision == "float32" and not training.overrides & STEPPING and program.complete
        plain = plain and given.state == "absent" and not older
        # a file cannot ask whether there is a GPU, without which transformers raises
        in_a_file = training.site in program.told_by
        plan = Switch("bf16", CAPABLE, given.edit_at, () if in_a_file else beside(training))
        gpu = (ON_GPU,) if in_a_file else rests_on_gpu(training)
        assumes = (*(() if plain else (LEARNS_IN_16_BITS,)), *gpu, *on_defaults(plan.beside))
        message += EVALUATED if training.evaluated is not None and reason is None else ""
        yield codemod.offer(training.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=Worth.HIGH)


def why_not_under(program: TrainingProgram, training: Training) -> str | None:
    """What makes a trainer's mixed precision unsafe, or what decides over it."""
    reason = why_not_setting(program, training, "bf16", as_a_field=True)
    if reason is not None:
        return reason
    if program.target.capability < AMPERE:
        return BEFORE_AMPERE
    inside = sorted({layer for model in training.models for layer in model.layers} & LOGIT_LOSSES.keys())
    if inside:
        return f"{inside[0].rpartition('.')[2]} in the model raises under autocast: use {LOGIT_LOSSES[inside[0]]}"
    for name in ("fsdp", "half_precision_backend", "fp16_backend", "fp16_opt_level"):
        if not is_off(training.argument(name)):
            return f"the settings choose a way of their own by `{name}`"
    return None


def under_lightning(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of Lightning, whose trainer puts the module's steps under autocast, with their losses."""
    for training in program.trainings:
        given = training.argument("precision")
        number = given.state == "option" and isinstance(given.values[0], int)  # by `type=int`, which takes no "bf16"
        narrow = number or needs_a_scaler(training)
        message = f"Lightning's trainer computes in float32; the GPU is faster in {'float16' if narrow else 'bfloat16'}"
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
        reason = why_not_under_lightning(program, training, narrow)
        is_cuda = training.argument("accelerator").values == ("cuda",)
        first = training.module is not None and training.module.old is not None
        plain = first or number  # Lightning 1 knows no other names
        half, full = ('"bf16"', "32") if plain else ('"bf16-mixed"', '"32-true"')
        half = half if not narrow else "16" if plain else '"16-mixed"'
        value = half if is_cuda else f"{half} if {{torch.cuda.is_available}}() else {full}"
        sure = program.complete and is_plain(training.module) and not narrow
        kept = islands(program, training.module.calls) if training.module is not None else ()
        sure = sure and not is_sharded(training) and not kept
        assumes = (
            *(() if sure and not first and given.state == "absent" else (LEARNS_IN_16_BITS,)),
            *((ON_GPU,) if on_gpu(training) is None else ()),
            *on_defaults(training.parsed, given.state == "option"),
        )
        plan = Switch("precision", value, given.edit_at, (), kept)
        yield codemod.offer(training.site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


def worth_under_lightning(program: TrainingProgram, training: Training) -> Worth | None:
    """What 16 bits are worth for a module: None where it is known to multiply nothing, little for small layers."""
    layers = {layer for model in training.models for layer in model.layers}
    if training.parsed or not training.models or any(each.startswith(NETWORKS) for each in layers):
        return Worth.HIGH
    if not layers & (MATMULS | RECURRENT | CONVOLUTIONS):
        return None if all(model.layers_complete for model in training.models) else Worth.SOME
    sizes = [size for loader in program.loaders for size in loader.samples.values if isinstance(size, int)]
    whole = [replace(model, products=replace(model.products, complete=True)) for model in training.models]
    return worth_of_work(program, whole, max(sizes, default=SMALL_BATCH), [each.site for each in program.loaders])


def why_not_under_lightning(program: TrainingProgram, training: Training, narrow: bool) -> str | None:
    """What makes mixed precision unsafe for a module, or what decides over it."""
    given, module = training.argument("precision"), training.module
    if given.state == "option" and given.edit_at is None:
        return f"the script leaves it to {said(given)}: pass bf16-mixed"
    if (reason := reason_beside(given)) is not None:
        return reason
    if module is not None and module.manual and narrow:
        return "the module steps its optimizers itself, and can take no bfloat16, which needs no scaler"
    reason = why_not_in_steps(program, module, training.site.path) if module is not None else None
    if reason is not None:
        return reason
    if program.target.capability < AMPERE:
        return BEFORE_AMPERE
    if "recision" in (training.argument("plugins").text or ""):
        return "a plugin of the trainer has a precision of its own"
    fused = [each for each in program.optimizers if not is_off(each.argument("fused"))]
    clips = not is_off(training.argument("gradient_clip_val")) or (module is not None and module.hands_clipping)
    if fused and clips:
        return "Lightning cannot clip the gradients of a fused optimizer beside mixed precision"
    try:
        refuse_program(program, training.site.path)
        for model in training.models:
            refuse_model(model)
    except Refuse as refuse:
        return str(refuse)
    given_first = replace(training, parsed=None) if training.parsed == "--" else training  # over what is parsed
    return why_not_setting(program, given_first, "precision", "bf16-mixed")


def why_not_in_steps(program: TrainingProgram, module: ModuleSteps, here: Path) -> str | None:
    """What a module's steps do that raises in 16 bits."""
    for name in (*module.losses, *(call.qualname for call in module.calls)):
        if name in LOGIT_LOSSES:
            return f"{name.rpartition('.')[2]} raises under autocast: return logits and use {LOGIT_LOSSES[name]}"
    return unsafe_call(module.calls, "bfloat16", here, {each.site for each in islands(program, module.calls)})


def is_plain(module: ModuleSteps | None) -> bool:
    """Whether the steps of a module compute nothing beside the model and criteria of torch."""
    return module is not None and bool(module.losses) and not (module.by_hand or module.manual)


def needs_a_scaler(training: Training) -> bool:
    """Whether it can only go on in float16: numpy has no bfloat16, and some layers are computed in float16."""
    leaves = training.module is not None and training.module.leaves is not None
    return leaves or any(needs_float16(model) is not None for model in training.models)
