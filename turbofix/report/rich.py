"""What a person reads: findings by worth, what is refused and why, what is right already, and what to run next."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from turbofix.engine.project import Outcome, hint_of, hints, shown
from turbofix.engine.reports import FileReport
from turbofix.findings import Evidence, Examined, InPlace, Risk, Worth
from turbofix.report.text import Style

Key = TypeVar("Key", bound=Hashable)
Said = TypeVar("Said")

WORTH = {Worth.HIGH: "high", Worth.SOME: "some", Worth.SMALL: "small"}

RISK_STYLES = {Risk.EXACT: "green", Risk.EQUIVALENT: "yellow", Risk.RECIPE: "magenta"}


OWNERS = {
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "fabric": "Lightning Fabric",
    "lightning": "Lightning",
    "transformers": "The Transformers Trainer",
}
"""The frameworks that own what plain PyTorch leaves to the script, as people call them."""

EVERYTHING = "precision, placement and stepping"
LEFT_TO = {
    "accelerate": "mixed precision, placement and accumulation",
    "deepspeed": "precision and stepping",
    "fabric": "mixed precision and placement",
}
"""What is left to a framework, where it is less than everything: the rest is the script's own, and is spoken of."""


def render(outcome: Outcome, style: Style = Style(), *, verbose: bool = False) -> str:  # noqa: B008  (frozen)
    """The findings as text; ``verbose`` adds what was resolved on the way."""
    findings, in_place = set(outcome.findings), set(outcome.in_place)
    lines: list[str] = []
    ladders = []
    for report in outcome.reports:
        mine = [each for each in report.findings if each in findings]
        right = [each for each in report.in_place if each in in_place]
        # Shared modules are shown once, under the first script that reaches them.
        findings.difference_update(mine)
        in_place.difference_update(right)
        if mine or right or report.framework in OWNERS:
            lines += _script(style, report, mine, right, outcome, verbose)
        if any(each.fixable for each in report.findings):
            ladders.append(report)
    if ladders:
        lines += _ladders(style, ladders) if verbose else ()
        lines.append(_next(style, ladders))
    elif not outcome.errors:
        lines.append(_nothing(outcome, style))
    return "".join(f"{line}\n" for line in lines)


def _next(style: Style, reports: Sequence[FileReport]) -> str:
    """The command to run next: it tries everything on the script, and keeps what the runs bear out."""
    run = [report for report in reports if not report.defines]
    script = shown(run[0].path) if len(run) == 1 else "SCRIPT"
    return f"next: {style.paint(f'turbofix apply --verify {script} -- ARGS', 'bold')}"


def _nothing(outcome: Outcome, style: Style) -> str:
    if outcome.findings:
        return "Nothing that turbofix can rewrite; the reasons are above."
    if not any(report.trains for report in outcome.reports):
        none = "No training loop found: turbofix looks for a loop with a backward pass and an optimizer's step."
        seen = dict.fromkeys(each for report in outcome.reports for each in report.unfollowed)
        return "\n".join([none, *(style.wrap(each, 0) for each in [*seen][:3])])
    told = "\n".join(style.wrap(hint, 0) for hint in hints(outcome))
    return f"Nothing to fix here.\n{told}" if told else "Nothing to fix."


# --- one script -----------------------------------------------------------------------------------------------------


def _script(  # noqa: PLR0913
    style: Style,
    report: FileReport,
    findings: Sequence[Examined],
    in_place: Sequence[InPlace],
    outcome: Outcome,
    verbose: bool,
) -> Iterator[str]:
    yield f"{style.paint(shown(report.path), 'bold', 'underline')}  {style.paint(report.framework, 'dim')}"
    if report.framework in OWNERS:
        left = LEFT_TO.get(report.framework, EVERYTHING)
        owner = f"{OWNERS[report.framework]} runs this training: {left} are left to it"
        yield style.wrap(owner, 2)
    if (hint := hint_of(report)) is not None:
        yield style.wrap(hint, 2)
    yield ""
    fixable = sorted((each for each in findings if each.fixable), key=_rank)
    refused = [each for each in findings if not each.fixable and (verbose or not each.is_unseen)]
    small = [each for each in fixable if each.worth is Worth.SMALL and not verbose]
    for _, same in _grouped(
        fixable[: len(fixable) - len(small)], lambda each: (each.codemod, each.message, each.assumes)
    ):
        yield from _finding(style, report, same, verbose, asked=any(map(outcome.accepts_risk, same)))
    if small:
        yield f"  {WORTH[Worth.SMALL]:<5} hardly noticed (--verbose tells more)"
        for (codemod, sure), same in _grouped(small, lambda each: (each.codemod, not each.assumes)):
            yield style.wrap(_places(report, same), 8, codemod if sure else f"{codemod} (likely)", "cyan")
    if fixable:
        yield ""
    if refused:
        yield f"  {style.paint('not rewritten', 'bold')}"
        for _, same in _grouped(refused, lambda each: (each.codemod, each.message, each.why_not)):
            text = f"{_places(report, same)}  {same[0].message}; why not: {same[0].why_not}"
            yield style.wrap(text, 4, same[0].codemod, "cyan")
            yield from _seen(style, report, same) if verbose else ()
        yield ""
    if in_place:
        yield f"  {style.paint('right already', 'bold')}"
        for (codemod, message), alike in _grouped(in_place, lambda each: (each.codemod, each.message)):
            places = ", ".join(f"{_where(report, each.site.path)}{report.spot(each.site).start}" for each in alike)
            yield style.wrap(f"{places}  {message}", 4, codemod, "cyan")
        yield ""


def _rank(each: Examined) -> tuple[Worth, float, float]:
    """The highest worth first, then the largest gain that was measured."""
    gain = each.gain
    return each.worth, -(gain.high if gain is not None else 1.0), -(gain.low if gain is not None else 1.0)


def _finding(
    style: Style, report: FileReport, same: Sequence[Examined], verbose: bool, *, asked: bool
) -> Iterator[str]:
    """One finding of a codemod, or several that say the same: a line for it, and one for what it assumes.

    ``asked``: the user accepts its risk; else it says what to ask for.
    """
    first = same[0]
    worst = max(each.risk for each in same)
    gain = _factor(first.gain.low, first.gain.high) if first.gain is not None else "gain unknown"
    needs = "" if asked else f", needs --risk {worst.value}"
    head = f"{style.paint(first.codemod, 'cyan')}  {gain}, {style.paint(worst.value, RISK_STYLES[worst])}{needs}"
    yield f"  {WORTH[first.worth]:<5} {head}"
    yield style.wrap(first.message, 8, _places(report, same), "dim")
    if first.assumes:
        yield style.wrap("; ".join(each.sentence for each in first.assumes), 8, "assumes:", "yellow")
    yield from _seen(style, report, same) if verbose else ()


def _places(report: FileReport, same: Sequence[Examined]) -> str:
    return ", ".join(f"{_where(report, each.site.path)}{report.spot(each.site)}" for each in same)


def _seen(style: Style, report: FileReport, same: Sequence[Examined]) -> Iterator[str]:
    """What was concluded from."""
    for text, evidence in {told(step, report): step for each in same for step in each.evidence}.items():
        yield style.wrap(f"seen: {text}", 10)
        yield from (style.wrap(told(step, report), 12) for step in evidence.steps)


def told(evidence: Evidence, report: FileReport) -> str:
    """A piece of evidence with its place: "`train_loader` is built on line 12 of data.py"."""
    if evidence.site is None:
        return evidence.text
    file = "" if evidence.site.path == report.path else f" of {shown(evidence.site.path)}"
    spot = report.spot(evidence.site)
    cell = "" if spot.cell is None else f" of cell {spot.cell}"
    return f"{evidence.text} on line {spot.line}{cell}{file}"


def _where(report: FileReport, path: Path) -> str:
    """The file of a place, where it is not the script itself."""
    return "" if path == report.path else f"{shown(path)}:"


# --- the ladder -----------------------------------------------------------------------------------------------------


def _ladders(style: Style, reports: Sequence[FileReport]) -> Iterator[str]:
    yield style.paint("What each level would bring", "bold")
    sources: dict[str, str] = {}
    for report in reports:
        yield f"  {style.paint(shown(report.path), 'underline')}"
        for risk in Risk:
            level = [each for each in report.findings if each.fixable and each.risk is risk]
            yield style.wrap(_rung(report, risk, level), 4, f"{risk.value:<10}", RISK_STYLES[risk])
        for each in report.findings:
            if each.fixable and each.gain is not None:
                sources.setdefault(each.codemod, f"{_factor(each.gain.low, each.gain.high)}, {each.gain.source}")
    if sources:
        yield ""
        own = any(each.gain.estimated for report in reports for each in report.findings if each.gain is not None)
        what = "estimates for your own step" if own else "published gains of single changes"
        yield style.wrap(
            f"An estimate, not a promise: {what}, multiplied as if they were independent. "
            "Your program, data and GPU decide; `turbofix verify` measures. Where from:",
            2,
        )
        for codemod, source in sources.items():
            yield style.wrap(source, 4, codemod, "cyan")


def _rung(report: FileReport, risk: Risk, level: Sequence[Examined]) -> str:
    """What one level adds, and what the program would gain with everything up to it."""
    if not level:
        return "nothing more" if risk is not Risk.EXACT else "nothing"
    names = ", ".join(dict.fromkeys(each.codemod for each in level))
    changes = f"{len(level)} change{'s' if len(level) > 1 else ''} ({names})"
    estimate = combined(each for each in report.findings if each.fixable and each.risk <= risk)
    reach = f"up to here {_factor(*estimate)}" if estimate else "no measured gain to name"
    yes = "" if risk <= report.risk else f"; needs --risk {risk.value}"
    return f"{changes}: {reach}{yes}"


def combined(findings: Iterable[Examined]) -> tuple[float, float] | None:
    """The product of the codemods' gains, each counted once; None where none has one.

    The errors of estimates are taken to be independent, so that they do not add up as the ends of published ranges do.
    """
    gains = {each.codemod: each.gain for each in findings if each.gain is not None}
    if not gains:
        return None
    if all(gain.estimated for gain in gains.values()):
        middle = math.prod(math.sqrt(gain.low * gain.high) for gain in gains.values())
        apart = math.exp(math.hypot(*(math.log(gain.high / gain.low) / 2 for gain in gains.values())))
        return middle / apart, middle * apart
    covered = {name for gain in gains.values() for name in gain.instead_of}
    low = high = 1.0
    for name, gain in gains.items():
        if name not in covered:
            low, high = low * gain.low, high * gain.high
    return low, high


def _factor(low: float, high: float) -> str:
    ends = f"{low:.3g}", f"{high:.3g}"
    return f"{'–'.join(dict.fromkeys(ends))}×"


def _grouped(findings: Iterable[Said], key: Callable[[Said], Key]) -> Iterable[tuple[Key, list[Said]]]:
    """What is said by key, in the order in which the keys first appear."""
    groups: dict[Key, list[Said]] = {}
    for each in findings:
        groups.setdefault(key(each), []).append(each)
    return groups.items()
