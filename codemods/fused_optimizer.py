"""Update all parameters in one kernel.

Why slow
    By default Adam, AdamW and SGD update the parameters on a GPU operation by operation: a dozen kernels, each of which
    reads and writes all parameters or their states again. With ``fused=True`` one kernel does the whole update.

Example
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

Use instead
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    From torch 2.4 on that holds on a CPU too; for older versions a script gets its own device test. Under Accelerate
    and Fabric whoever starts the program chooses device and precision, so that the value asks for both (a
    ``GradScaler`` steps a fused optimizer even where it skips it; a TPU raises)::

        fused=(accelerator.device.type == "cuda" and accelerator.scaler is None) or None

    The ``Trainer`` of transformers is told by ``optim=`` (its own default is fused from torch 2.8 on); what it or
    Lightning is handed gets ``torch.cuda.is_available() or None``. A checkpoint brings its own ``fused``: what goes on
    from an old one steps as before, but beside a ``GradScaler`` torch raises, so that the loaded groups are told first.

When refused
    Nothing is said of optimizers without a fused kernel, of SGD without momentum and decay, of classes of the project's
    own, and of programs that never reach a GPU. It is refused beside ``foreach``, ``differentiable`` or an explicit
    ``fused=False``, for sparse gradients, complex parameters and DTensors, for parameters that are given twice or that
    several processes update, for SGD with momentum beside a ``GradScaler``, and under frameworks beside fp16 for SGD,
    and where gradients are looked at.

Risk
    equivalent: the same update, with other rounding. recipe where torch's AdamW takes the place of the one that
    transformers had (until it was taken away): with the same numbers, but epsilon weighs less in the first updates.

Measured
    One AdamW step 647 to 352 microseconds (pytorch issue 120308); about 3 % of a whole GPT-2 training (Karpathy).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import (
    EVERY_GRADIENT,
    NO_OLD_CHECKPOINT,
    OLDER_TORCH,
    ON_GPU,
    OPTION_DEFAULT,
    READ_WHOLE,
    RECENT_TORCH,
    Assumption,
)
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.training.evidence import of_optimizer
from turbofix.training.model import Act, Framework, Optimizer, Scaler, Training, TrainingProgram

from ._frameworks import LEFT, NAMES, give_back, is_open, named, precisions
from ._precision import requote, said, test_beside, version
from ._trainers import (
    FULL,
    OPTIMIZING,
    Switch,
    beside,
    by_deepspeed,
    evidence,
    is_off,
    is_sharded,
    rests_on_defaults,
    rests_on_gpu,
    stays_on_cpu,
)
from ._trainers import on_gpu as trains_on_gpu
from ._trainers import why_not as why_not_setting

codemod = Codemod(
    __name__,
    group="optimizer",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.03, source="GPT-2 124M: about 3 % end to end (Karpathy, build-nanogpt)"),
    known_as=("fused AdamW", "fused Adam"),
    assumes=(READ_WHOLE, ON_GPU, EVERY_GRADIENT, NO_OLD_CHECKPOINT, OPTION_DEFAULT, RECENT_TORCH, OLDER_TORCH),
    otherwise="no optimizer was recognised here that a fused kernel would speed up",
)

SINCE = {
    "torch.optim.Adam": (2, 0),
    "torch.optim.AdamW": (2, 0),
    "torch.optim.SGD": (2, 3),
    "torch.optim.Adagrad": (2, 13),
}
"""From which torch on the optimizer has a fused kernel for CUDA that can be relied on."""

OWN, BORROWED = "torch.optim.AdamW", frozenset(("transformers.AdamW", "transformers.optimization.AdamW"))
"""torch's AdamW, and what was transformers' own until that took it away."""

PLAIN = "adamw_torch"
FUSED = ("adamw_torch_fused", "adamw_apex_fused")
"""What the settings of transformers call AdamW without and with one kernel for all parameters."""

APART = "{} updates the parameters with a kernel per operation; fused, one kernel does it all"
TAKEN = "; torch's AdamW takes the place of transformers' own, with an epsilon that weighs less at first"
PLAIN_SGD = "SGD without momentum updates all parameters by one `_foreach_add_`"

AVAILABLE = "torch.cuda.is_available()"

READS_GRADIENTS = regex(r"on_before_optimizer_step|on_after_backward|grad_norm|\.grad\b")
SKIPPED = "fp16's GradScaler steps a fused optimizer even where it skips it, and the trainer's schedule moves on then"

IN_TRAINER = (2, 1)
"""From which torch on transformers takes its fused AdamW, beside fp16 too."""
BY_DEFAULT = (2, 8)
"""From which torch on transformers chooses it by itself."""
ON_CPU = (2, 4)
ON_LAZY = (2, 5)
"""From which torch on the constructor looks at no parameter: one without a shape yet (LazyLinear) raises there."""
ON_MPS = (2, 5)


SCALED = frozenset(("fp16", "16-mixed", "16"))
"""What the script asks of Accelerate or Fabric that surely makes a GradScaler."""

UNSCALED = frozenset(("no", "bf16", "32-true", "32", "bf16-true", "bf16-mixed", "64-true", "64"))
"""What surely makes none. (Accelerate's fp8 may become fp16, or have a scaler of its own.)"""

ON_DTENSORS = ("torch.optim.Adam", "torch.optim.AdamW")
"""Optimizers for whose fused step torch's DTensors have a rule (``torch/distributed/tensor/_ops``)."""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Optimizers that could update their parameters in one kernel and do not."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(program)
    if program.framework in (Framework.LIGHTNING, Framework.TRANSFORMERS):
        yield from handed_over(program)
    owned = program.framework not in (*LEFT, Framework.DEEPSPEED)
    if owned or not program.trains:
        return
    for optimizer in program.optimizers:
        if not optimizer.used or optimizer.trains == "inputs" or optimizer.handed_over:
            continue
        assumes = on_gpu(program, optimizer)
        if assumes is None:
            continue
        borrowed = is_borrowed(optimizer)
        if borrowed:
            optimizer = replace(optimizer, qualnames=(OWN,))  # noqa: PLW2901
        said = told(program, optimizer)
        if said is not None:
            yield said
            continue
        name, since = names_of(optimizer), max(SINCE[each] for each in optimizer.qualnames)
        # SGD, which asks for more, is the last
        optimizer = replace(optimizer, qualname=optimizer.qualnames[-1])  # noqa: PLW2901
        message = APART.format(name) + TAKEN * borrowed
        seen = of_optimizer(program, optimizer)
        reason = why_not(program, optimizer)
        if program.target.torch < since:
            reason = f"{name} has a fused kernel from torch {version(since)} on"
            reason = f"the project serves torch {version(program.target.torch)}; {reason}"
        if reason is not None:
            yield codemod.refuse(optimizer.site, message, reason, evidence=seen)
            continue
        if any(step.device.mps for step in program.steps if optimizer.site in step.optimizers):
            optimizer = replace(optimizer, device=replace(optimizer.device, mps=True))  # noqa: PLW2901
        value = fused_where(program, optimizer)
        if program.framework in NAMES:
            value = fused_under(program, optimizer)
        unasked = program.framework in NAMES and optimizer.owner is None and may_scale_under(program)
        # who starts it may shard the parameters, too
        unasked |= program.framework is Framework.ACCELERATE and optimizer.qualname not in ON_DTENSORS
        scaled = optimizer.state_loads and any(part.kind == "scaler" for part in program.precision)
        open_ones = (
            *assumes,
            *((ON_GPU,) if program.target.torch < ON_CPU and test_beside(program, optimizer) is None else ()),
            *((EVERY_GRADIENT,) if is_late(program, optimizer) else ()),
            *((READ_WHOLE,) if optimizer.open_mapping else ()),
            *((RECENT_TORCH,) if optimizer.lazy and program.target.torch < ON_LAZY else ()),
            *((NO_OLD_CHECKPOINT,) if scaled and not all(load.concerns for load in optimizer.state_loads) else ()),
            *((OPTION_DEFAULT,) if unasked else ()),
        )
        worth = Worth.SMALL if optimizer.frozen is not None else None  # two tensors are left to update
        plan = Fused(value, borrowed, tuple(load for load in optimizer.state_loads if scaled and load.concerns))
        risk = Risk.RECIPE if borrowed else codemod.risk
        yield codemod.finding(
            optimizer.site, message, plan=plan, risk=risk, evidence=seen, assumes=open_ones, worth=worth
        )


@dataclass(frozen=True)
class Fused:
    """The value of ``fused``, whether torch's AdamW takes the place of transformers' own, and the loads of states that
    may have been saved without it."""

    value: str
    borrowed: bool = False
    loads: tuple[Act, ...] = ()


def is_borrowed(optimizer: Optimizer) -> bool:
    """Whether it is transformers' AdamW that corrects the bias of its averages, as torch's always does."""
    given = optimizer.argument("correct_bias")
    if not set(optimizer.qualnames) <= BORROWED:
        return False
    return not optimizer.open_mapping and (given.state == "absent" or (given.known and all(given.values)))


def names_of(optimizer: Optimizer) -> str:
    """The names of all that an optimizer may be."""
    return " or ".join(each.rpartition(".")[2] for each in optimizer.qualnames)


def told(program: TrainingProgram, optimizer: Optimizer) -> Refusal | InPlace | None:
    """What is said of an optimizer that is fused, or cannot be by its kind."""
    fusing = [each for each in optimizer.qualnames if each in SINCE]
    fused = optimizer.argument("fused")
    unsure = fused.state in ("computed", "unknown") and fused.text is not None
    if fusing and (unsure or any(fused.values)):
        says = f", where `{fused.text}` says so" if unsure else ""
        return codemod.in_place(optimizer.site, f"{names_of(optimizer)} updates all parameters in one kernel{says}")
    if fusing != [*optimizer.qualnames]:
        reason = not_all(optimizer, fusing)
        if reason is None:
            return codemod.in_place(optimizer.site, f"{names_of(optimizer)} has no fused kernel to ask for")
        message = "the optimizer may update the parameters with a kernel per operation, where one could do it all"
        return codemod.refuse(optimizer.site, message, reason, evidence=of_optimizer(program, optimizer))
    if optimizer.is_plain and len(fusing) == 1:
        return codemod.in_place(optimizer.site, PLAIN_SGD)
    return None


def not_all(optimizer: Optimizer, fusing: list[str]) -> str | None:
    """Why a call cannot be told to be fused that may make other optimizers; None where none has such a kernel."""
    others = [each for each in optimizer.qualnames if each not in fusing]
    if any(each.endswith("*") for each in others):
        return "which one it is is chosen at run time: pass fused=True where it is Adam, AdamW or SGD"
    if fusing:
        lack, have = (" or ".join(each.rpartition(".")[2] for each in some) for some in (others, fusing))
        return f"{lack}, which it may be as well, has no such kernel: pass fused=True where {have} is chosen"
    if any(each.rpartition(".")[2] in ("Adam", "AdamW") for each in others):
        return f"{others[0]} has no such kernel: torch.optim.AdamW(..., fused=True) has"
    return None


def under_trainer(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
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
        defaults = rests_on_defaults(plan) or ((OPTION_DEFAULT,) if optim.option is not None else ())
        assumes = (*((OLDER_TORCH,) if unsaid else ()), *rests_on_gpu(training), *defaults)
        yield codemod.offer(place, message, reason, plan=plan, evidence=seen, assumes=assumes)


def handed_over(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
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
            said = told(program, optimizer)
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
            assumes = (*((ON_GPU,) if unsure else ()), *((OPTION_DEFAULT,) if training.parsed else ()))
            plan, risk = Fused(value, borrowed), Risk.RECIPE if borrowed else codemod.risk
            yield codemod.offer(optimizer.site, message, reason, plan=plan, risk=risk, evidence=seen, assumes=assumes)


def why_not_handed_over(program: TrainingProgram, training: Training, optimizer: Optimizer) -> str | None:
    """What makes a fused optimizer unsafe in a trainer's hands, if anything."""
    since = SINCE[optimizer.qualname or ""]
    if program.framework is Framework.TRANSFORMERS or not trains_on_gpu(training):
        since = max(since, ON_CPU)  # the parameters may be on the CPU when it is made
    if program.target.torch < since:
        return f"the project serves torch {version(program.target.torch)}, and this needs torch {version(since)}"
    own = is_sharded(training) or by_deepspeed(training) or not is_off(training.argument("fsdp"))
    if own:
        return "a strategy, a plugin or DeepSpeed may shard the parameters, or step them in a way of its own"
    if not is_off(training.argument("fp16")):
        return SKIPPED
    given, module = training.argument("precision"), training.module
    full = given.state == "absent" or (given.state == "value" and set(given.values) <= {None, *FULL})
    clips = not is_off(training.argument("gradient_clip_val")) or (module is not None and module.hands_clipping)
    if not full and (clips or training.open_mapping):
        return "Lightning cannot clip the gradients of a fused optimizer beside mixed precision, and raises"
    if not full and not (given.known and all("bf16" in str(each) or each in FULL for each in given.values)):
        if optimizer.qualname == "torch.optim.SGD":
            return SKIPPED
        if any(READS_GRADIENTS.search(each.text) for each in program.modules.by_path.values()):
            return "the program looks at gradients, which Lightning leaves scaled for a fused optimizer beside fp16"
    return why_not(program, optimizer)


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


def on_gpu(program: TrainingProgram, optimizer: Optimizer) -> tuple[Assumption, ...] | None:
    """What it takes for its parameters to live on a GPU, where its model went or a step that updates them runs."""
    steps = [step for step in program.steps if optimizer.site in step.optimizers]
    places = [optimizer.device, *(step.device for step in steps)]
    if any(each.reaches_cuda for each in places) and program.device.reaches_cuda:
        return ()
    unknown = any(each.where == "unknown" for each in places)
    return (ON_GPU,) if unknown and (program.names_cuda or program.device.reaches_cuda) else None


def why_not(program: TrainingProgram, optimizer: Optimizer) -> str | None:
    """What makes ``fused=True`` unsafe for an optimizer, if anything."""
    for name in ("foreach", "differentiable", "fused"):
        argument = optimizer.argument(name)
        if argument.state == "unknown" and argument.text is not None:
            return f"the script sets {name} to `{argument.text}`, and what that is could not be seen"
        if argument.state in ("absent", "unknown") or (argument.known and set(argument.values) == {None}):
            continue
        if argument.option is not None:
            return f"{name} is left to {said(argument)}"
        return f"the script chooses another implementation: {name}={argument.text or '...'} ({said(argument)})"
    if optimizer.sparse:
        return "some of its gradients are sparse, which the fused kernel does not take"
    if optimizer.distributed is not None:
        made = optimizer.distributed
        return f"{made} may make DTensors of some of its parameters, and a fused step takes all of them or none"
    if optimizer.sharded and optimizer.qualname not in ON_DTENSORS:
        name = (optimizer.qualname or "").rpartition(".")[2]
        return f"fully_shard makes DTensors of the parameters, for which torch has no fused {name}"
    if optimizer.complex:
        return "some of its parameters may be complex numbers, which the fused kernel does not take"
    if optimizer.shared:
        return "two of its models share a module, and the fused kernel updates parameters given twice in another way"
    scaler = next((part for part in program.precision if part.kind == "scaler"), None)
    stepped = {site for step in program.steps if optimizer.site in step.optimizers for site in step.models}
    if scaler is not None and any(
        each.half and each.dtype != "bfloat16" for each in program.models if each.site in stepped
    ):
        where = said_at(scaler.site, optimizer.site)
        return f"the GradScaler{where} raises for weights in float16, on which a fused optimizer steps in silence"
    if optimizer.qualname == "torch.optim.SGD" and (reason := momentum_unfilled(optimizer, scaler)) is not None:
        return reason
    started = program.processes and not program.script.trains_here
    if started and not program.distributed and program.framework not in NAMES:
        return "several processes update the same parameters without a lock: a fused step would interleave differently"
    if program.framework in NAMES:
        return why_not_under(program, optimizer)
    if optimizer.before_move and program.target.torch < ON_CPU:
        return (
            f"its model is moved to the GPU after it was built, and before torch {version(ON_CPU)} "
            "fused needs the parameters on the GPU: build the optimizer after the move"
        )
    return None


def momentum_unfilled(optimizer: Optimizer, scaler: Scaler | None) -> str | None:
    """Why a fused SGD may step with momentum that nobody has filled.

    torch makes the buffers uninitialised, all of them at the first step (``torch/optim/sgd.py``, ``_fused_sgd``): a
    first step that a ``GradScaler`` skips leaves them as they are.
    """
    momentum = optimizer.argument("momentum")
    if not optimizer.regrouped and (momentum.state == "absent" or (momentum.known and not any(momentum.values))):
        return None
    if scaler is not None:  # (one that an option switches on counts too: the user may pass it tomorrow)
        where = said_at(scaler.site, optimizer.site)
        return (
            f"the GradScaler{where} may skip the first step, and fused SGD then goes on with momentum nobody has filled"
        )
    return None


def is_late(program: TrainingProgram, optimizer: Optimizer) -> bool:
    """Whether a parameter may get its first gradient later than others: fused SGD has no momentum for it and raises."""
    momentum = optimizer.argument("momentum")
    if not optimizer.regrouped and (momentum.state == "absent" or (momentum.known and not any(momentum.values))):
        return False
    late = any(step.late is not None for step in program.steps if optimizer.site in step.optimizers)
    return optimizer.qualname == "torch.optim.SGD" and (late or bool(program.thaws))


def said_at(site: Site, beside: Site) -> str:
    """Where something stands, with the file's name where it is another file."""
    return f" on line {site.line}" if site.path == beside.path else f" in {site.path.name}, line {site.line}"


def fused_where(program: TrainingProgram, optimizer: Optimizer) -> str:
    """The value of ``fused``: True, or a device test where an old torch may run it without a GPU, the script's own."""
    if program.target.torch >= ON_CPU and (program.target.torch >= ON_MPS or not optimizer.device.mps):
        return "True"
    return test_beside(program, optimizer) or AVAILABLE  # (a machine with CUDA has no MPS)


def why_not_under(program: TrainingProgram, optimizer: Optimizer) -> str | None:
    """What makes a fused optimizer unsafe under a framework, in any way in which the program may be started."""
    framework = NAMES[program.framework]
    if program.target.torch < ON_CPU:
        return (
            f"{framework} places the parameters after it was built, and before torch {version(ON_CPU)} "
            "fused needs them on the GPU by then"
        )
    if any(named(each) <= SCALED for each in precisions(program)):
        return f"the script asks {framework} for fp16, whose GradScaler cannot skip a fused step as {framework} expects"
    names = ("parallelism_config", "torch_tp_plugin", *(() if optimizer.qualname in ON_DTENSORS else ("strategy",)))
    for given in (owner.argument(name) for owner in program.owners for name in names):
        if given.state != "absent" and not (given.known and all(isinstance(one, str) for one in given.values)):
            return "some of the parameters may be sharded (DTensors), and a fused step takes all of them or none"
    return None


def may_scale_under(program: TrainingProgram) -> bool:
    """Whether whoever starts a framework's program may choose fp16, which brings a GradScaler."""
    return is_open(program) or any(named(each) - UNSCALED for each in precisions(program))


def fused_under(program: TrainingProgram, optimizer: Optimizer) -> str:
    """The value of ``fused`` under a framework: on a CUDA GPU, and without a GradScaler where there may be one.

    None beside a GradScaler, not False: torch chooses ``foreach`` only where both are None (``torch/optim/adam.py``).
    """
    may_scale = may_scale_under(program)
    if optimizer.owner is None:
        return f"{AVAILABLE} or None"
    if program.framework is Framework.ACCELERATE:
        value = f'{optimizer.owner}.device.type == "cuda"'
        return f"({value} and {optimizer.owner}.scaler is None) or None" if may_scale else value
    may_scale = may_scale or any(owner.argument("plugins").state != "absent" for owner in program.owners)
    unscaled = f'{optimizer.owner}.strategy.precision.precision != "16-mixed"'
    return f"({AVAILABLE} and {unscaled}) or None" if may_scale else AVAILABLE


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Add ``fused`` to the construction, and to the groups of states that a ``GradScaler`` would raise for."""
    plan = finding.plan
    assert isinstance(plan, Fused)
    if plan.borrowed:
        give_back(finding.site, edit)
    asked = edit.name(AVAILABLE[:-2], finding.site) + "()" if AVAILABLE in plan.value else AVAILABLE
    value = requote(plan.value.replace(AVAILABLE, asked), edit, finding.site)
    edit.argument(finding.site, "fused", value, spelled_out=True)
    for load in plan.loads:  # not behind it: the step counters would stay on the CPU
        group = edit.free_name("group", load.site)
        fused = f'    {group}["fused"] = {load.receiver_text}.defaults.get("fused")'
        lines = f'for {group} in {load.concerns}["param_groups"]:', f"{fused}  # it may have been saved without"
        edit.before(load.site, *(requote(line, edit, load.site) for line in lines))
