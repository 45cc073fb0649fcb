"""What a verification found: for people in ten seconds, and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from turbofix.report.profile import cards_in_words
from turbofix.report.text import Style

if TYPE_CHECKING:
    from turbofix.estimate.step import Estimate
    from turbofix.verify import Verification

_MARKS = {"kept": ("+", "green"), "dropped": ("-", "red"), "unverified": ("?", "yellow")}
_VERDICTS = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
_LONG = 80  # characters


def render_json(verification: Verification) -> str:
    """The JSON document of the contract."""
    return json.dumps(verification.to_json(), indent=2, ensure_ascii=False) + "\n"


def render(verification: Verification, style: Style = Style()) -> str:  # noqa: B008  (frozen)
    """Verdict and reason first, then speed, then what became of each codemod, then how the runs were held."""
    from turbofix.verify.result import STEP_PARTS

    lines = [
        style.wrap(headline(verification), 0, verification.verdict.upper(), "bold", _VERDICTS[verification.verdict]),
        "",
    ]
    if verification.steps:
        lines.append(_row("learning", f"{verification.steps} optimizer steps compared on {verification.device}", style))
    lines.append(_row("speed", speed_in_words(verification), style))
    if verification.estimate is not None and (brings := verification.estimate.speedup) is not None:
        words = f"{brings.in_words}× ({verification.estimate.bound}-bound, {verification.estimate.step_ms_in_words})"
        lines.append(_row("estimated", f"on {verification.estimate.gpu}: {words}", style))
    if verification.cards is not None:
        on = f"on {verification.cards.gpus} of {verification.cards.estimate.gpu}, with what was kept"
        lines.append(_row("estimated", f"{on}: {cards_in_words(verification.cards)}", style))
    if verification.candidate.peak_memory_bytes and verification.baseline.peak_memory_bytes:
        before, after = verification.baseline.peak_memory_bytes, verification.candidate.peak_memory_bytes
        lines.append(_row("memory", f"peak {before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} MiB after", style))
    warm, warmer = verification.baseline.warm_up_seconds, verification.candidate.warm_up_seconds
    if warm is not None and warmer is not None:
        words = f"{warm:.3g} s before, {warmer:.3g} s after, for the start and the first steps with all compilation"
        lines.append(_row("start", words, style))
    parts = [part for part in STEP_PARTS if verification.baseline.step_ms.get(part) is not None]
    if parts:
        times = ", ".join(f"{part} {_before_and_after(verification, part)}" for part in parts)
        lines.append(_row("step", f"{times} (ms per step)", style))
    if verification.codemods:
        lines.append("")
    told: dict[str, str] = {}
    for judgement in verification.codemods:
        mark, color = _MARKS[judgement.verdict]
        gain = f"  {judgement.speedup:.3g}×" if judgement.speedup is not None else _estimated(judgement.estimate)
        lines.append(f"  {style.paint(f'{mark} {judgement.verdict:<10}', color)} {judgement.codemod}{gain}")
        if judgement.reason:
            # a long sentence that holds for several is said once
            first = told.setdefault(judgement.reason, judgement.codemod)
            again = first != judgement.codemod and len(judgement.reason) > _LONG
            lines.append(style.wrap(f"as with {first}" if again else judgement.reason, 15))
        for one in (each for each in judgement.assumes if each.assumption.sentence not in judgement.reason):
            said = one.how == "compared" or one.figure in judgement.reason
            left = "left out, " if judgement.verdict == "kept" and one.how in ("refuted", "not exercised") else ""
            words = f"{left}{one.how}: {one.assumption.sentence}{'' if said else f' ({one.figure})'}"
            lines.append(style.wrap(words, 15))
    lines.append("")
    if verification.isolation:
        lines.append(_row("isolation", isolation_in_words(verification.isolation), style))
    lines += [_row("note", note, style) for note in verification.notes]
    if verification.scratch is not None:
        lines.append(f"  scratch    {verification.scratch}")
    return "\n".join(lines).rstrip() + "\n"


def _estimated(estimate: Estimate | None) -> str:
    """What a codemod brings by the estimate."""
    if estimate is None or estimate.speedup is None:
        return ""
    return f"  estimated {estimate.speedup.as_factor}"


def _row(label: str, text: str, style: Style) -> str:
    """A label and its text in two columns."""
    return f"  {label:<9}  {style.wrap(text, 13).lstrip()}"


def headline(verification: Verification) -> str:
    """The reason as a sentence that can stand alone: that of a candidate tells only what differs."""
    reason = verification.reason
    if verification.verdict == "fail" and not verification.codemods and not reason.startswith("the rewritten script"):
        return f"the candidate does not learn the same: {reason}"
    return reason


def speed_in_words(verification: Verification) -> str:
    """What was measured of the speed, in a sentence."""
    speedup = verification.speedup
    if speedup is not None:
        slower = ", slower" if speedup.median < 1 else ""
        return f"{speedup.median:.3g}×{slower} (95 % interval {speedup.low:.3g}–{speedup.high:.3g}×)"
    if verification.baseline.step_ms:
        return "measured, and no change that can be told from noise"
    if verification.device in ("cpu", "none"):
        return "not measured: a run without a GPU says nothing about speed on one"
    return "not measured"


def isolation_in_words(level: str) -> str:
    """A level of isolation, and what it holds."""
    from turbofix.verify.isolation import LEVELS

    return f"{level}: {LEVELS[level]}" if level in LEVELS else level


def _before_and_after(verification: Verification, part: str) -> str:
    before, after = verification.baseline.step_ms.get(part), verification.candidate.step_ms.get(part)
    return f"{before:.3g}" + (f" → {after:.3g}" if after is not None else "")
