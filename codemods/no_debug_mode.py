"""Turn off what was left on from looking for an error.

Why slow
    Anomaly detection keeps a traceback of every operation, and looks for NaN in every gradient, for which the host
    waits. With ``CUDA_LAUNCH_BLOCKING=1`` the host waits for every kernel. They are made for a few steps of debugging.

Example
    ::

        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        torch.autograd.set_detect_anomaly(True)

Use instead
    ::

        os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
        torch.autograd.set_detect_anomaly(False)

When refused
    Nothing is said of what the script turns on under a test of the loss or the step. It is refused

    - where a handler may catch the error that a NaN raises, and training goes on;
    - where a comment gives another reason than debugging;
    - where the name or option that decides serves other things too, or is a switch of the script's own that is on;
    - for a profiler around a whole training: give it a schedule, so that it records a few steps.

Risk
    exact: no number changes. A gradient that becomes NaN no longer ends the program with an error.

Measured
    No figure: torch's own documentation says of anomaly detection only that it slows a program down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from turbofix.assumptions import ON_GPU, READ_WHOLE
from turbofix.codemod import Codemod
from turbofix.editing.edit import Edit, Refuse
from turbofix.findings import Evidence, Finding, InPlace, Refusal, Risk, Site
from turbofix.records import dataclass
from turbofix.regex import regex
from turbofix.training.evidence import of_guard, of_loop
from turbofix.training.model import Setting, TrainingProgram

from ._loaders import gives_reason

codemod = Codemod(
    __name__,
    group="sync",
    risk=Risk.EXACT,
    known_as=("anomaly detection", "CUDA_LAUNCH_BLOCKING"),
    assumes=(READ_WHOLE, ON_GPU),
)

DETECTING = "torch.autograd.detect_anomaly"
SETTING = "torch.autograd.set_detect_anomaly"
BLOCKING = 'os.environ["CUDA_LAUNCH_BLOCKING"]'
ANOMALY = "anomaly detection keeps a traceback of every operation, and looks for NaN in every gradient"
MESSAGES = {
    DETECTING: ANOMALY,
    SETTING: ANOMALY,
    BLOCKING: "the host waits for every kernel, one by one, whatever waits other codemods take out",
}

FOR_DEBUGGING = regex(
    r"debug|remove|delete|disabl|\boff\b|slow|temporar|todo|fixme|turbofix|trace ?back|find (the|nan|out)|troubleshoot"
    r"|cuda (kernel )?errors?|\bsync",
    re.IGNORECASE,
)
CATCHING = regex(r"^[ \t]*except\b[ \t]*(?:[^:\n]*\b(?:RuntimeError|Exception|BaseException)\b[^:\n]*)?:", re.MULTILINE)
"""A handler that the error of a NaN would come to."""


@dataclass(frozen=True)
class Plan:
    """What is on, and the place whose text is to change (None: the call as a whole)."""

    setting: Setting
    place: Site | None


@codemod.find
def find(program: TrainingProgram) -> Iterator[Finding | Refusal | InPlace]:
    """Aids for debugging that are on."""
    for setting in program.settings if program.trains else ():
        if setting.name not in MESSAGES or not is_on(setting, program):
            continue
        value, message = setting.value, MESSAGES[setting.name]
        seen = (*map(of_loop, program.steps[:1]), *of_guard(setting.guard))
        reason = why_not(setting, program)
        if reason is not None:
            yield codemod.refuse(setting.site, message, reason, evidence=seen)
            continue
        place = value.edit_at if setting.name != DETECTING else None
        if place is not None and (place != value.site or not seen):
            seen = (*seen, Evidence("it is turned on", place))
        assumes = (ON_GPU,) if setting.name == BLOCKING and not program.device.reaches_cuda else ()
        yield codemod.finding(place or setting.site, message, plan=Plan(setting, place), evidence=seen, assumes=assumes)


def is_on(setting: Setting, program: TrainingProgram) -> bool:
    """Whether an aid is known to be on while the program trains, unless its user says otherwise."""
    switch, value = setting.switch, setting.value
    if setting.guard.kind not in ("always", "config", "rank"):
        return False
    if switch.state == "unknown" or (switch.state != "absent" and not any(switch.values)):
        return False
    if setting.name == BLOCKING:
        may_be = program.device.reaches_cuda or program.device.where == "unknown"
        return may_be and value.state in ("value", "option") and value.values == ("1",)
    return setting.name == DETECTING or (value.state in ("value", "option") and value.values == (True,))


def why_not(setting: Setting, program: TrainingProgram) -> str | None:
    """What is in the way of turning an aid off."""
    value = setting.value
    trained = {step.backwards[0].site.path for step in program.steps if step.backwards}
    files = [program.modules.by_path[path] for path in sorted(trained & program.modules.by_path.keys())]
    if setting.name != BLOCKING and any(CATCHING.search(each.text) for each in files):
        return "a handler in the file that trains may catch the error that a NaN raises only with it, and go on"
    if setting.switch.state != "absent":
        return f"a switch of the script's own is on: {said(setting.switch.option, setting.switch.text)}"
    if any(gives_reason(comment) and not FOR_DEBUGGING.search(comment) for comment in setting.comments):
        return "the comment beside it may say what it is there for"
    if setting.name == DETECTING or value.edit_at == value.site:
        return None
    if value.reads:
        return f"{said(value.option, value.text)} decides it, and other things too"
    return f"the script has a switch for it: {said(value.option, value.text)}" if value.edit_at is None else None


def said(option: str | None, text: str | None) -> str:
    """How the user knows a switch."""
    return option or f"`{text}`"


@codemod.rewrite
def rewrite(finding: Finding, edit: Edit) -> None:
    """Put ``False`` where ``True`` is."""
    plan = finding.plan
    assert isinstance(plan, Plan)
    site, place = plan.setting.site, plan.place
    if place is not None:
        literal = edit.text(place)
        if literal not in ("True", '"1"', "'1'"):
            raise Refuse("what turns it on is not written as a plain value")
        edit.replace(place, "False" if literal == "True" else literal.replace("1", "0"))
    elif plan.setting.name == DETECTING and edit.statement(site).kind in ("With", "AsyncWith"):
        given = edit.text(site).partition("(")[2]
        edit.replace(site, f"{edit.name(SETTING, site)}(False{', ' if given.strip() != ')' else ''}{given}")
    else:
        raise Refuse("what turns it on is not written as a plain value")
