"""Mixed precision that a program has already, and the evaluations that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from turbofix.assumptions import LEARNS_IN_16_BITS
from turbofix.codemod import Codemod
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Site, Worth
from turbofix.regex import regex
from turbofix.training.model import Scaler, TrainingProgram

from ._options import left_off, on_defaults
from ._precision import (
    SIMPLE,
    autocast_of,
    called,
    follows_gpu,
    said,
)
from ._regions import Plan, evaluation_wrap
from ._scaler import holds
from ._sixteen import (
    AMPERE,
    worth_of,
)

OWN = regex(r"self(\.\w+|\[[\"']\w+[\"']\])+")
OWN_PRECISION = frozenset(("torch", "intel_extension_for_pytorch", "transformer_engine", "ray"))


def already_there(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Mixed precision that the program has; a switch that is off is told with its name."""
    told: set[Site] = set()
    for step in program.steps:
        site = autocast_of(program, step)
        if site is None or site in told:
            continue
        told.add(site)
        part = program.part(site)
        with_gpu = part is not None and follows_gpu(part.enabled, (step.device,))  # off where there is none
        yield judged(codemod, None if with_gpu else part, site, "autocast", "the forward pass runs under autocast")
    for part in program.precision:
        if part.kind == "apex" and part.qualname.endswith(".initialize"):
            yield judged(
                codemod, part, part.site, "apex's mixed precision", "the model computes in mixed precision (apex)"
            )
        elif part.kind == "framework" and part.qualname.partition(".")[0] in OWN_PRECISION:
            what = part.qualname.rpartition(".")[2]
            yield judged(codemod, part, part.site, what, f"{what} sets the precision of the model")


def judged(codemod: Codemod, part: Scaler | None, site: Site, what: str, right: str) -> Finding | Refusal | InPlace:
    """What to say of mixed precision that is there: it is in force, or it is switched off and by what."""
    if part is None or not part.enabled.off:
        open_switch = part is not None and part.enabled.state in ("unknown", "computed", "may")
        where = f", where `{part.enabled.text}` says so" if part is not None and open_switch else ""
        return codemod.in_place(site, right + where)
    off, reason = part.enabled, None
    if part.kind != "autocast" or off.values != (False,):
        reason = f"{what} is there and {said(off)} turns it on: pass it"
    return left_off(codemod, site, "the forward pass runs in float32", off, (LEARNS_IN_16_BITS,), why_not=reason)


def left_out(codemod: Codemod, program: TrainingProgram) -> Iterator[Finding]:
    """Calls of models that stand beside the autocast of a training: of frozen ones, or in its evaluations."""
    scaled = any(part.kind == "scaler" and not part.enabled.off for part in program.precision)
    told: set[Site] = set()
    # an evaluation that is written twice, with autocast and without, is as it is meant
    meant = {each.forward.function for each in program.evaluations if each.autocast is not None and each.forward}
    for step in program.steps:
        part = program.part(autocast_of(program, step))
        if part is None or part.kind != "autocast" or part.enabled.off or worth_of(program, step) is None:
            continue
        half = "float16" if scaled or program.target.capability < AMPERE else "bfloat16"
        for loop in program.evaluations:
            region = loop.forward
            if region is None or region.first in told or not set(loop.models) & set(step.models):
                continue
            if region.function in meant - {None}:
                continue
            wrap = evaluation_wrap(program, loop, step, half)
            if wrap is None:
                continue
            switch, here = part.enabled, region.function
            beside = holds(here, part.site) if here is not None else here == step.forwards[0].function
            own = OWN.fullmatch(switch.text or "") is not None and region.first.path == part.site.path
            named = own or (beside and SIMPLE.fullmatch(switch.text or "") is not None)
            chosen = switch.state != "absent" and not follows_gpu(switch, (step.device,))
            if chosen and not named and (not beside or not switch.known or not all(switch.values)):
                continue  # whoever starts it decides, by what is not known here
            if chosen and named:
                wrap = replace(wrap, test=switch.text or "")
            told.add(region.first)
            models = [model for site in loop.models if (model := program.model(site)) is not None]
            message = f"{called(models)} runs in float32 here, although the training computes in 16 bits"
            seen = (Evidence("the training's autocast", part.site),)
            plan = Plan((wrap,), half)
            assumes = (LEARNS_IN_16_BITS, *on_defaults(chosen and not named))
            yield codemod.finding(region.first, message, plan=plan, evidence=seen, assumes=assumes, worth=Worth.SOME)
