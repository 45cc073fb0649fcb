"""Turn off what was left on from looking for an error.

Why slow
    Anomaly detection keeps a traceback of every operation, and looks for NaN in every gradient, for which the host
    waits. With ``CUDA_LAUNCH_BLOCKING=1`` the host waits for every kernel. A profiler writes down every operation. They
    are made for a few steps of debugging.

Example
    ::

        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        torch.autograd.set_detect_anomaly(True)

Use instead
    ::

        os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
        torch.autograd.set_detect_anomaly(False)

    Profilers of ``torch.autograd`` get ``enabled=False``, Lightning's trainer gets ``detect_anomaly=False``.

When refused
    Nothing is said of profilers with a schedule, and of what the script turns on under a test of the loss or the step.
    It is refused

    - where a handler catches the error that a NaN raises, and training goes on;
    - where a comment gives another reason than debugging;
    - where the name or option that decides serves other things too, or is a switch of the script's own that is on;
    - where a profiler's records are read or may be kept: give it a schedule, so that it records a few steps.

Risk
    exact: no number changes. A gradient that becomes NaN no longer ends the program with an error.

Measured
    No figure: torch's own documentation says of anomaly detection only that it slows a program down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from turbofix.assumptions import ON_GPU, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.training.evidence import of_guard, of_loop
from turbofix.training.model import DebugAid, TrainingProgram
from turbofix.training.told.debugging import DETECTING, SETTING

from ._loaders import gives_reason
from ._pages import page_of

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EXACT,
    known_as=("anomaly detection", "CUDA_LAUNCH_BLOCKING"),
    assumes=(READ_WHOLE, ON_GPU),
)

MESSAGES = {
    "anomaly": "anomaly detection keeps a traceback of every operation, and looks for NaN in every gradient",
    "blocking": "the host waits for every kernel, one by one, whatever waits other codemods take out",
    "profiler": "a profiler writes down every operation of every step",
}

FOR_DEBUGGING = regex(
    r"debug|remove|delete|disabl|\boff\b|slow|temporar|todo|fixme|turbofix|trace ?back|find (the|nan|out)|troubleshoot"
    r"|cuda (kernel )?errors?|\bsync",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Plan:
    """The aid, and the place whose text is to change (None: the call as a whole)."""

    aid: DebugAid
    place: Site | None


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Aids for debugging that are on."""
    for aid in program.debugging:
        if not is_on(aid, program):
            continue
        message = MESSAGES[aid.kind]
        seen = (*map(of_loop, program.steps[:1]), *of_guard(aid.guard))
        reason = why_not(aid)
        if reason is not None:
            yield codemod.refuse(aid.site, message, reason, evidence=seen)
            continue
        place = aid.value.edit_at if aid.value.state != "absent" else None
        if place is not None and (place != aid.value.site or not seen):
            seen = (*seen, Evidence("it is turned on", place))
        assumes = (ON_GPU,) if aid.kind == "blocking" and not program.device.reaches_cuda else ()
        yield codemod.finding(place or aid.site, message, plan=Plan(aid, place), evidence=seen, assumes=assumes)


def is_on(aid: DebugAid, program: TrainingProgram) -> bool:
    """Whether an aid is known to be on while the program trains, unless its user says otherwise."""
    if aid.guard.kind not in ("always", "config", "rank"):
        return False
    if aid.switch.state == "unknown" or (aid.switch.state != "absent" and not any(aid.switch.values)):
        return False
    if aid.kind == "blocking":
        may_be = program.device.reaches_cuda or program.device.where == "unknown"
        return may_be and aid.value.state in ("value", "option") and aid.value.values == ("1",)
    if aid.kind == "profiler" and aid.scheduled:
        return False
    return aid.value.state == "absent" or (aid.value.state in ("value", "option") and aid.value.values == (True,))


def why_not(aid: DebugAid) -> str | None:
    """What is in the way of turning an aid off."""
    if aid.caught is not None:
        line = aid.caught.line_from(aid.site.path)
        return f"{line} catches the error that a NaN raises only with it, and training goes on"
    if aid.kind == "profiler":
        if aid.read is not None:
            line = aid.read.line_from(aid.site.path)
            return f"what it records is used on {line}; let it record a few steps, by a schedule"
        if aid.name == "torch.profiler.profile":
            return "what it records may be kept; give it a schedule, so that it records a few steps"
    if aid.switch.state != "absent":
        return f"a switch of the script's own is on: {said(aid.switch.option, aid.switch.text)}"
    if any(gives_reason(comment) and not FOR_DEBUGGING.search(comment) for comment in aid.comments):
        return "the comment beside it may say what it is there for"
    value = aid.value
    if value.state == "absent" or value.edit_at == value.site:
        return None
    if value.edit_at is None or value.reads:
        return (
            f"{said(value.option, value.text)} decides it, and other things too"
            if value.reads
            else (f"the script has a switch for it: {said(value.option, value.text)}")
        )
    return None


def said(option: str | None, text: str | None) -> str:
    """How the user knows a switch."""
    return option or f"`{text}`"


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put ``False`` where ``True`` is."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    aid, place = plan.aid, plan.place
    if place is not None:
        literal = edit.text(place)
        if literal not in ("True", '"1"', "'1'"):
            raise Refuse("what turns it on is not written as a plain value")
        edit.replace(place, "False" if aid.kind != "blocking" else literal.replace("1", "0"))
    elif aid.kind == "profiler":
        edit.argument(aid.site, "enabled", "False", position=0)
    elif aid.name == DETECTING:
        page = page_of(edit, aid.site)
        call = page.node(aid.site)
        if not isinstance(page.parent(call), ast.withitem) or not isinstance(call, ast.Call):
            raise Refuse("it is no context of a `with` statement")
        rest = "".join(f", {page.text(each)}" for each in call.args)
        rest += "".join(f", {each.arg}={page.text(each.value)}" for each in call.keywords)
        edit.replace(aid.site, f"{edit.name(SETTING, aid.site)}(False{rest})")
    else:
        raise Refuse("what turns it on is not written as a plain value")
