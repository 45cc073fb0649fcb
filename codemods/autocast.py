"""Compute forward pass and loss in 16 bits where that is safe.

Why slow
    Matrix products and convolutions in float32 leave most of the GPU's tensor cores idle and move twice the bytes.
    Under ``autocast`` they run in 16 bits, while losses, normalisations and the weights stay in float32.

Example
    ::

            loss = criterion(model(images), labels)
            loss.backward()

Use instead
    From Ampere on (compute capability 8.0) bfloat16, which needs nothing else::

            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = criterion(model(images), labels)
            loss.backward()

    ``enabled`` is the script's own device test. Around a loss that is put together by hand, or ``BCELoss``, there is no
    region: its results become float32 again behind the forward pass (``critic(images).float()``). Within a model, what
    has no kernel for 16 bits, or is a sigmoid before ``BCELoss``, is given ``x.float()``, what does not mix types
    ``x.to(y.dtype)``. The ``Trainer`` of
    transformers, Lightning and Accelerate have a switch for it. On Volta and Turing (``--gpu volta``), and
    for LSTMs, ``DataParallel`` and what Lightning's steps hand to numpy, it is float16, with a ``GradScaler``. An
    option that is off is turned on where there is a GPU; calls of models beside the training's autocast get theirs.

When refused
    Nothing is said of programs that never reach a GPU, of GPUs before Volta, and of models with tiny products and
    convolutions or none. It is refused for float64 and half precision, beside apex or other autocast, where a
    library's own kernels pass messages in graphs, for gradients of gradients and closures (L-BFGS), for functions
    in the forward pass that cannot be given another type, and in reinforcement learning, where a step compares with
    what the model did in float32. A gradient penalty in a function of its own stays in float32. The scaler is a name of
    the step's file, and finds its scale anew in each run. Frameworks' switches are left alone where an engine decides.

Risk
    equivalent: products are rounded to 8 bits of mantissa (bfloat16) or 11 (float16), sums stay in float32. With
    float16 the scaler skips the first few updates, until it has found its scale.

Measured
    bfloat16 over TF32 on an A100: GPT-2 124M 1.11 times (Karpathy) and 1.60 times (Raschka); ResNet-50 938 to 2470
    images/s over TF32 (published by NVIDIA).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from turbofix.assumptions import LEARNS_IN_16_BITS, ON_GPU, OPTION_DEFAULT, RECENT_TORCH
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, Gain, InPlace, Refusal, Risk, Site, Worth
from turbofix.training.data.sizes import batch_of
from turbofix.training.evidence import of_forward
from turbofix.training.model import (
    Framework,
    Output,
    Region,
    TrainingProgram,
)

from ._loaders import whole
from ._precision import PRODUCTS, THERE, autocast_of, called, models_of, on_a_gpu, requote, written
from ._regions import Plan, plan_for
from ._scaler import scale
from ._sixteen import EVALUATED, VOLTA, half_for, keep_wide, worth_of
from ._sixteen_accelerate import under_accelerate
from ._sixteen_switches import under_lightning, under_trainer
from ._sixteen_there import already_there, left_out
from ._work import is_over_at_once, looks_up

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
    assumes=(ON_GPU, LEARNS_IN_16_BITS, OPTION_DEFAULT, RECENT_TORCH),
)

SCALER_SINCE = (2, 3)  # torch.amp.GradScaler; torch.cuda.amp.GradScaler before


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Training steps whose forward pass runs in float32 on a GPU that could do better."""
    if program.framework is Framework.TRANSFORMERS:
        yield from under_trainer(codemod, program)
    if program.framework is Framework.LIGHTNING:
        yield from under_lightning(codemod, program)
    if program.framework is Framework.ACCELERATE:
        yield from under_accelerate(codemod, program)
    if program.framework is Framework.DEEPSPEED and program.steps:
        step = program.steps[0]
        place = step.forwards[0].first if step.forwards else step.loop.site
        why = 'no script is rewritten for it: set `"bf16": {"enabled": true}` there, where it does not say so'
        yield codemod.refuse(place, "DeepSpeed computes in the precision that its configuration names", why)
    if program.framework is not Framework.PYTORCH or not program.trains:
        return
    yield from already_there(codemod, program)
    if any(part.kind in ("apex", "framework") for part in program.precision):
        return  # another library has taken over the precision: a second mechanism would fight with it
    gpu = on_a_gpu(program)
    if program.target.capability < VOLTA or gpu is None:
        return
    taken: set[Site] = set()
    yield from left_out(codemod, program)
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
        models, batch, calls = models_of(program, step), batch_of(program, step), {each.qualname for each in step.calls}
        if models and not calls & PRODUCTS and all(looks_up(model, batch) for model in models):
            yield codemod.refuse(place, message, "most of its work is to look rows up, which 16 bits make no faster")
            continue
        if worth is Worth.SMALL and all(is_over_at_once(program, model, batch) for model in models):
            yield codemod.in_place(place, "its layers are over before the next one is launched: 16 bits bring nothing")
            continue
        trained = len(step.forwards)
        message += EVALUATED if len(plan.wraps) > trained else ""
        along = [
            Evidence("the forward pass" + (" of the evaluation" if number >= trained else "") + " goes along", place)
            for number, place in enumerate(wrap.region.first for wrap in plan.wraps)
            if number
        ]
        seen = (*of_forward(step), *along)
        yield codemod.finding(place, message, plan=plan, evidence=seen, assumes=(*assumes, *gpu), worth=worth)


def is_set_in(region: Region, test: str, edit: Edit) -> bool:
    """Whether the region itself sets what the test in its header asks: it may not be there yet."""
    name = re.match(r"[A-Za-z_]\w*", test)
    lines = whole(edit, region.first).splitlines()[region.first.line - 1 : region.last.end_line]
    return name is not None and any(re.match(rf"[^=(]*\b{name[0]}\b(?!\.)[^=(]*=(?!=)", line) for line in lines)


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put the regions under autocast, and the scaler around backward and step."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    for kept in plan.islands:
        keep_wide(kept, edit)
    dtype = f"torch.{plan.half}"
    done: set[Output] = set()
    wrapped: set[Site] = set()
    for wrap in plan.wraps:
        place = wrap.region.first
        test = written(THERE if is_set_in(wrap.region, wrap.test, edit) else wrap.test, edit, place)
        enabled = "" if test == "True" else f", enabled={test}"
        autocast = edit.name("torch.autocast", place)
        header = f'with {autocast}("cuda", dtype={edit.name(dtype, place)}{enabled}):'
        header = requote(header, edit, place)
        for output in wrap.outputs:
            if output in done:
                continue
            done.add(output)
            if output.names:
                values = ", ".join(f"{name}.float()" for name in output.names)
                edit.after(output.statement, f"{', '.join(output.names)} = {values}")
            else:
                edit.insert_after(output.call, ".float()")
        if not wrap.apart:
            edit.wrap(place, wrap.region.last, header)
        for statement in wrap.region.calling if wrap.apart else ():
            if statement in wrapped:
                continue
            wrapped.add(statement)
            edit.wrap(statement, statement, header)
    if plan.scaling is not None:
        scale(plan.scaling, edit, old_torch=plan.old_torch)
