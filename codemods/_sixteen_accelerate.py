"""Mixed precision under Accelerate, which puts the forward pass under autocast itself and returns float32."""

from __future__ import annotations

from collections.abc import Iterator

from turbofix.assumptions import LEARNS_IN_16_BITS
from turbofix.codemod import Codemod
from turbofix.editing.edit import Refuse
from turbofix.findings import Finding, InPlace, Refusal, Site
from turbofix.training.evidence import of_forward, of_value
from turbofix.training.model import Called, Owner, Step, TrainingProgram

from ._loaders import reason_beside
from ._options import on_defaults
from ._precision import called, models_of, said
from ._scaler import holds
from ._sixteen import (
    AMPERE,
    EVALUATED,
    LOGIT_LOSSES,
    VOLTA,
    islands,
    needs_float16,
    refuse_model,
    refuse_program,
    refuse_second_passes,
    unsafe_call,
    worth_of,
)
from ._sixteen_switches import BEFORE_AMPERE
from ._trainers import (
    Switch,
    is_off,
)


def under_accelerate(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
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
        if owner.started is not None and (given.state == "absent" or given.values == (None,)):
            where = "mixed precision ({}), where it is started as {} says".format(*owner.started)
            yield codemod.in_place(site, f"Accelerate computes in {where}")
            continue
        if site in told:
            continue
        told.add(site)
        message = (
            f"Accelerate computes {called(models_of(program, steps[0]))} in float32; the GPU is faster in bfloat16"
        )
        message += f" (the option is read on {given.reads[0].line_from(site.path)}, too)" if given.reads else ""
        seen = (of_value("mixed_precision", given, owner.site), *of_forward(steps[0]))
        reason = why_not_under_accelerate(program, owner, steps)
        launched = given.state == "absent" or given.values == (None,)
        at = None if given.state == "absent" else site
        kept = tuple(dict.fromkeys(each for step in steps for each in islands(program, calls_in_models(step))))
        plan = Switch("mixed_precision", '"bf16" if {torch.cuda.is_available}() else "no"', at, (), kept)
        plain = program.complete and not given.reads and all(models_of(program, step) for step in steps)
        assumes = (
            *on_defaults(launched, not is_off(owner.argument("cpu"))),
            *(() if plain and not kept else (LEARNS_IN_16_BITS,)),
        )
        worth = min(each for each in (worth_of(program, step) for step in steps) if each is not None)
        trained = {site for step in steps for site in step.models}
        message += EVALUATED if not reason and any(trained & {*each.models} for each in program.evaluations) else ""
        yield codemod.offer(site, message, reason, plan=plan, evidence=seen, assumes=assumes, worth=worth)


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
        return BEFORE_AMPERE
    if owner.open_mapping:
        return "the call unpacks a mapping that may already hold mixed_precision"
    if (reason := reason_beside(given)) is not None:
        return reason
    cpu = owner.argument("cpu")
    if not is_off(cpu) and (cpu.state != "option" or cpu.values != (False,)):
        return f"whether it trains on a GPU is left to `cpu={cpu.text or '...'}`"
    known = given.state == "absent" or given.edit_at is not None
    return None if known else f"the script leaves it to {said(given)}: pass bf16"


def refuse_under_accelerate(program: TrainingProgram, step: Step) -> None:
    """Raise Refuse for what happens in a step whose models alone run under autocast, and return float32."""
    refuse_second_passes(program, step)
    for model in models_of(program, step):
        refuse_model(model)
        if (layer := needs_float16(model)) is not None:
            raise Refuse(f"the model has {layer}, which autocast computes in float16, and bf16 has no scaler")
    inside = calls_in_models(step)
    if raising := [call.qualname for call in inside if call.qualname in LOGIT_LOSSES]:
        raise Refuse(f"{raising[0].rpartition('.')[2]} in the model raises under autocast")
    reason = unsafe_call(inside, "bfloat16", step.loop.site.path, {each.site for each in islands(program, inside)})
    if reason is not None:
        raise Refuse(reason)


def calls_in_models(step: Step) -> tuple[Called, ...]:
    """The calls of a step that its models make, which alone run under Accelerate's autocast."""
    beside = (step.loop.site, *(act.function for act in step.backwards if act.function is not None))
    return tuple(call for call in step.calls if not any(holds(each, call.site) for each in beside))
