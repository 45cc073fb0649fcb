"""Fused optimizers under a trainer that owns the loop: transformers' and Lightning's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import OLDER_TORCH, ON_GPU
from turbofix.codemod import Codemod
from turbofix.findings import Finding, InPlace, Refusal, Risk
from turbofix.regex import regex
from turbofix.training.model import Framework, Optimizer, Training, TrainingProgram

from ._fused import (
    APART,
    AVAILABLE,
    ON_CPU,
    ON_DTENSORS,
    ON_MPS,
    OWN,
    SINCE,
    TAKEN,
    Fused,
    is_borrowed,
    names_of,
    told,
    why_not,
)
from ._options import on_defaults
from ._precision import version
from ._trainers import (
    FULL,
    OPTIMIZING,
    Switch,
    beside,
    by_deepspeed,
    evidence,
    is_off,
    rests_on_gpu,
    shards,
    stays_on_cpu,
)
from ._trainers import PLAIN as WHOLE
from ._trainers import on_gpu as trains_on_gpu
from ._trainers import why_not as why_not_setting

PLAIN = "adamw_torch"
FUSED = ("adamw_torch_fused", "adamw_apex_fused")
"""What the settings of transformers call AdamW without and with one kernel for all parameters."""

READS_GRADIENTS = regex(r"on_before_optimizer_step|on_after_backward|grad_norm|(?<!autograd)\.grad\b")
SKIPPED = "fp16's GradScaler steps a fused optimizer even where it skips it, and the trainer's schedule moves on then"

IN_TRAINER = (2, 1)
"""From which torch on transformers takes its fused AdamW, beside fp16 too."""
BY_DEFAULT = (2, 8)
"""From which torch on transformers chooses it by itself."""


def under_trainer(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Trainings of transformers whose settings ask for AdamW without its fused kernel, or had it before torch 2.8."""
    for training in program.trainings:
        optim = training.argument("optim")
        if by_deepspeed(training) or stays_on_cpu(training) or training.own_optimizer:
            continue
        if training.overrides & OPTIMIZING or not is_off(training.argument("adafactor"), True):
            continue
        if optim.known and set(optim.values) <= set(FUSED):
            yield codemod.in_place(optim.edit_at or training.site, "AdamW updates all parameters in one kernel")
        unsaid = optim.state == "absent"
        if program.target.torch >= BY_DEFAULT if unsaid else not optim.known or set(optim.values) != {PLAIN}:
            continue
        message = APART.format(f"before torch {version(BY_DEFAULT)} AdamW" if unsaid else "AdamW")
        seen = evidence(training, "optim")
        place = optim.edit_at or training.site
        reason = why_not_under_trainer(program, training)
        value = f'"{FUSED[0]}" if {{{AVAILABLE[:-2]}}}() else "{PLAIN}"'
        plan = Switch("optim", value, place if place != training.site else None, beside(training))
        defaults = on_defaults(plan.beside, optim)
        assumes = (*((OLDER_TORCH,) if unsaid else ()), *rests_on_gpu(training), *defaults)
        yield codemod.offer(place, message, reason, plan=plan, evidence=seen, assumes=assumes)


def handed_over(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """The optimizers that a script makes for Lightning, or the ``Trainer`` of transformers, to step."""
    for training in program.trainings:
        if program.framework is Framework.LIGHTNING:
            gpu, theirs = trains_on_gpu(training), training.module is None
        else:
            gpu, theirs = not stays_on_cpu(training), not (training.own_optimizer or training.overrides & OPTIMIZING)
        if gpu is False or theirs:
            continue
        for optimizer in program.optimizers:
            if optimizer.trains == "inputs":
                continue
            borrowed = is_borrowed(optimizer)
            if borrowed:
                optimizer = replace(optimizer, qualnames=(OWN,))  # noqa: PLW2901
            said = told(codemod, program, optimizer)
            if said is not None:
                yield said
                continue
            optimizer = replace(optimizer, qualname=optimizer.qualnames[-1])  # noqa: PLW2901
            message = APART.format(names_of(optimizer)) + TAKEN * borrowed
            seen = evidence(training, "precision" if program.framework is Framework.LIGHTNING else "fp16")
            reason = why_not_handed_over(program, training, optimizer)
            accelerator = training.argument("accelerator").values
            anywhere = ("cuda",) if program.target.torch < ON_MPS else ("cuda", "gpu")
            is_gpu = accelerator != () and set(accelerator) <= set(anywhere)
            value = "True" if is_gpu else f"{AVAILABLE} or None"
            unsure = gpu is None or (program.target.torch < ON_CPU and not is_gpu)
            chosen = (training.argument(name) for name in ("strategy", "precision"))
            defaults = on_defaults(training.parsed, shards(training) is None, *chosen)
            assumes = (*((ON_GPU,) if unsure else ()), *defaults)
            plan, risk = Fused(value, borrowed), Risk.RECIPE if borrowed else codemod.risk
            yield codemod.offer(optimizer.site, message, reason, plan=plan, risk=risk, evidence=seen, assumes=assumes)


def why_not_handed_over(program: TrainingProgram, training: Training, optimizer: Optimizer) -> str | None:
    """What makes a fused optimizer unsafe in a trainer's hands, if anything."""
    since = SINCE[optimizer.qualname or ""]
    if program.framework is Framework.TRANSFORMERS or not trains_on_gpu(training):
        since = max(since, ON_CPU)  # the parameters may be on the CPU when it is made
    if program.target.torch < since:
        return f"the project serves torch {version(program.target.torch)}, and this needs torch {version(since)}"
    if by_deepspeed(training) or not is_off(training.argument("fsdp")) or is_stepped_apart(training, optimizer):
        return "a strategy, a plugin or DeepSpeed may shard the parameters, or step them in a way of its own"
    if not is_off(training.argument("fp16")):
        return SKIPPED
    given, module = training.argument("precision"), training.module
    full = given.state == "absent" or (given.state in ("value", "option") and set(given.values) <= {None, *FULL})
    clips = not is_off(training.argument("gradient_clip_val")) or (module is not None and module.hands_clipping)
    if not full and (clips or training.open_mapping):
        return "Lightning cannot clip the gradients of a fused optimizer beside mixed precision, and raises"
    if not full and not (given.known and all("bf16" in str(each) or each in FULL for each in given.values)):
        if optimizer.qualname == "torch.optim.SGD":
            return SKIPPED
        if any(READS_GRADIENTS.search(each.text) for each in program.modules.by_path.values()):
            return "the program looks at gradients, which Lightning leaves scaled for a fused optimizer beside fp16"
    return why_not(program, optimizer)


def is_stepped_apart(training: Training, optimizer: Optimizer) -> bool:
    """Whether a strategy or plugin of Lightning's surely steps an optimizer in a way of its own. FSDP does not: it
    hands the optimizer a piece of each parameter, which Adam's fused kernel takes as well."""
    by_fsdp = all(str(each).startswith(("fsdp", *WHOLE)) for each in training.argument("strategy").values)
    if by_fsdp and is_off(training.argument("plugins")) and optimizer.qualname in ON_DTENSORS:
        return training.argument("strategy").state in ("computed", "unknown")
    return shards(training) is True


def why_not_under_trainer(program: TrainingProgram, training: Training) -> str | None:
    """What makes the trainer's fused AdamW unsafe, or what decides over it."""
    optim, half = training.argument("optim"), training.argument("fp16")
    if program.target.torch < IN_TRAINER:
        return f"the project serves torch {version(program.target.torch)}, where the trainer may not take a fused AdamW"
    reason = why_not_setting(program, training, "optim", FUSED[0], as_a_field=True)
    if reason is not None:
        return reason
    if not is_off(half) and optim.state != "absent":
        return SKIPPED
    if optim.reads:
        return f"the name is read for something else too (line {optim.reads[0].line})"
    return None
