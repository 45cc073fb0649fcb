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
    ``fused=False``, for sparse gradients, complex parameters and DTensors, for parameters that several processes
    update, for SGD with momentum beside a ``GradScaler``, and under frameworks beside fp16 for SGD, and where gradients
    are looked at.

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
from turbofix.findings import Finding, Gain, InPlace, Refusal, Risk
from turbofix.training.evidence import of_optimizer
from turbofix.training.model import Framework, Optimizer, TrainingProgram

from ._frameworks import LEFT, NAMES, give_back, is_open, named, precisions
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
    has_momentum,
    is_borrowed,
    names_of,
    tell_groups,
    told,
    why_not,
)
from ._fused_trainers import handed_over, under_trainer
from ._options import on_defaults
from ._precision import requote, test_beside, version

codemod = Codemod(
    __name__,
    group="optimizer",
    risk=Risk.EQUIVALENT,
    gain=Gain(1.0, 1.03, source="GPT-2 124M: about 3 % end to end (Karpathy, build-nanogpt)"),
    known_as=("fused AdamW", "fused Adam"),
    assumes=(READ_WHOLE, ON_GPU, EVERY_GRADIENT, NO_OLD_CHECKPOINT, OPTION_DEFAULT, RECENT_TORCH, OLDER_TORCH),
    otherwise="no optimizer was recognised here that a fused kernel would speed up",
)

SCALED = frozenset(("fp16", "16-mixed", "16"))
"""What the script asks of Accelerate or Fabric that surely makes a GradScaler."""

UNSCALED = frozenset(("no", "bf16", "32-true", "32", "bf16-true", "bf16-mixed", "64-true", "64"))
"""What surely makes none. (Accelerate's fp8 may become fp16, or have a scaler of its own.)"""


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Optimizers that could update their parameters in one kernel and do not."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(codemod, program)
    if program.framework in (Framework.LIGHTNING, Framework.TRANSFORMERS):
        yield from handed_over(codemod, program)
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
        said = told(codemod, program, optimizer)
        if said is not None:
            yield said
            continue
        name, since = names_of(optimizer), max(SINCE[each] for each in optimizer.qualnames)
        # SGD, which asks for more, is the last
        optimizer = replace(optimizer, qualname=optimizer.qualnames[-1])  # noqa: PLW2901
        message = APART.format(name) + TAKEN * borrowed
        seen = of_optimizer(program, optimizer)
        reason = why_not(program, optimizer) or why_not_here(program, optimizer)
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
            *((NO_OLD_CHECKPOINT,) if scaled and not all(load.concerns for load in optimizer.state_loads) else ()),
            *on_defaults(unasked),
        )
        plan = Fused(value, borrowed, tuple(load for load in optimizer.state_loads if scaled and load.concerns))
        risk = Risk.RECIPE if borrowed else codemod.risk
        yield codemod.finding(optimizer.site, message, plan=plan, risk=risk, evidence=seen, assumes=open_ones)


def on_gpu(program: TrainingProgram, optimizer: Optimizer) -> tuple[Assumption, ...] | None:
    """What it takes for its parameters to live on a GPU, where its model went or a step that updates them runs."""
    steps = [step for step in program.steps if optimizer.site in step.optimizers]
    places = [optimizer.device, *(step.device for step in steps)]
    if any(each.reaches_cuda for each in places) and program.device.reaches_cuda:
        return ()
    unknown = any(each.where == "unknown" for each in places)
    return (ON_GPU,) if unknown and (program.names_cuda or program.device.reaches_cuda) else None


def is_late(program: TrainingProgram, optimizer: Optimizer) -> bool:
    """Whether a parameter may get its first gradient later than others: fused SGD has no momentum for it and raises."""
    late = any(step.late is not None for step in program.steps if optimizer.site in step.optimizers)
    return has_momentum(optimizer) and (late or bool(program.thaws))


def fused_where(program: TrainingProgram, optimizer: Optimizer) -> str:
    """The value of ``fused``: True, or a device test where an old torch may run it without a GPU, the script's own."""
    if program.target.torch >= ON_CPU and (program.target.torch >= ON_MPS or not optimizer.device.mps):
        return "True"
    return test_beside(program, optimizer) or AVAILABLE  # (a machine with CUDA has no MPS)


def why_not_here(program: TrainingProgram, optimizer: Optimizer) -> str | None:
    """What makes ``fused=True`` unsafe where the script steps the optimizer itself, or a framework for it."""
    if program.framework in NAMES:
        return why_not_under(program, optimizer)
    if program.processes and not program.script.trains_here and not program.distributed:
        return "several processes update the same parameters without a lock: a fused step would interleave differently"
    if optimizer.before_move and program.target.torch < ON_CPU:
        older = f"before torch {version(ON_CPU)} fused needs the parameters on the GPU"
        return f"its model is moved to the GPU after it was built, and {older}: build the optimizer after the move"
    return None


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
    for load in plan.loads:
        tell_groups(load, edit)
