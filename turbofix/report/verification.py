"""What a verification found: for people in ten seconds, and as JSON."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofix.verify import Verification

_MARKS = {"kept": ("+", "32"), "dropped": ("-", "31"), "unverified": ("?", "33")}
_VERDICTS = {"pass": "32", "fail": "31", "inconclusive": "33"}
_PARTS = ("data", "transfer", "forward", "backward", "optimizer", "other")


def render_json(verification: Verification) -> str:
    """The JSON document of the contract."""
    return json.dumps(verification.to_json(), indent=2, ensure_ascii=False) + "\n"


def render(verification: Verification, *, width: int = 100, color: bool = False) -> str:
    """Verdict and reason first, then speed, then what became of each codemod, then how the runs were held."""

    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color else text

    def wrap(text: str, indent: str, first: str | None = None) -> str:
        return textwrap.fill(
            " ".join(text.split()),
            width,
            initial_indent=first or indent,
            subsequent_indent=indent,
            break_long_words=False,
        )

    verdict = paint(f"1;{_VERDICTS[verification.verdict]}", verification.verdict.upper())
    lines = [f"{verdict}  {wrap(verification.reason, '      ').strip()}"]
    ran = f"{verification.steps} optimizer steps compared on {verification.device}" if verification.steps else ""
    lines += ["", f"  learning   {ran}"] if ran else [""]
    lines.append(wrap(_speed(verification), " " * 13, "  speed      "))
    if verification.candidate.peak_memory_bytes and verification.baseline.peak_memory_bytes:
        before, after = verification.baseline.peak_memory_bytes, verification.candidate.peak_memory_bytes
        lines.append(f"  memory     peak {before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} MiB after")
    parts = [part for part in _PARTS if verification.baseline.step_ms.get(part) is not None]
    if parts:
        times = (f"{part} {_before_and_after(verification, part)}" for part in parts)
        lines.append(wrap(", ".join(times) + " (ms per step)", " " * 13, "  step       "))
    if verification.codemods:
        lines.append("")
    for judgement in verification.codemods:
        mark, code = _MARKS[judgement.verdict]
        gain = f"  {judgement.speedup:.3g}×" if judgement.speedup is not None else ""
        lines.append(f"  {paint(code, f'{mark} {judgement.verdict:<10}')} {judgement.codemod}{gain}")
        if judgement.reason:
            lines.append(wrap(judgement.reason, " " * 15))
    lines.append("")
    if verification.isolation:
        lines.append(wrap(verification.isolation, " " * 13, "  your files "))
    lines += [wrap(note, " " * 13, "  note       ") for note in verification.notes]
    if verification.scratch is not None:
        lines.append(f"  scratch    {verification.scratch}")
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _speed(verification: Verification) -> str:
    speedup = verification.speedup
    if speedup is None:
        if verification.device.startswith("cuda"):
            return "not measured"
        return "not measured: a run without a GPU says nothing about speed on one"
    return f"{speedup.median:.3g}× (95 % interval {speedup.low:.3g}–{speedup.high:.3g}×)"


def _before_and_after(verification: Verification, part: str) -> str:
    before, after = verification.baseline.step_ms.get(part), verification.candidate.step_ms.get(part)
    return f"{before:.3g}" + (f" → {after:.3g}" if after is not None else "")
