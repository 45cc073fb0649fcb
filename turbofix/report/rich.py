"""What a person reads: findings by script and codemod, what is refused and why, what is right already, the ladder."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from turbofix.findings import Examined, InPlace, Risk
from turbofix.pipeline import FileReport
from turbofix.project import Outcome, shown

Key = TypeVar("Key", bound=Hashable)

RISK_STYLES = {Risk.EXACT: "green", Risk.EQUIVALENT: "yellow", Risk.RECIPE: "magenta"}


def render(outcome: Outcome, *, width: int = 100, color: bool = False, verbose: bool = False) -> str:
    """The findings as text for a terminal of ``width`` columns; ``verbose`` adds what was resolved on the way."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
    )
    findings, in_place = set(outcome.findings), set(outcome.in_place)
    ladders = []
    for report in outcome.reports:
        mine = [each for each in report.findings if each in findings]
        right = [each for each in report.in_place if each in in_place]
        # Shared modules are shown once, under the first script that reaches them.
        findings.difference_update(mine)
        in_place.difference_update(right)
        if mine or right:
            _print_script(console, report, mine, right, verbose)
        if any(each.fixable for each in report.findings):
            ladders.append(report)
    if ladders:
        _print_ladders(console, ladders)
    elif not outcome.errors:
        console.print(_nothing(outcome))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def _nothing(outcome: Outcome) -> str:
    if outcome.findings:
        return "Nothing that turbofix can rewrite; the reasons are above."
    if not any(report.trains for report in outcome.reports):
        return "No training program found, so there is nothing to speed up."
    return "Nothing to fix."


# --- one script -----------------------------------------------------------------------------------------------------


def _print_script(
    console: Console, report: FileReport, findings: Sequence[Examined], in_place: Sequence[InPlace], verbose: bool
) -> None:
    console.print(Text.assemble((shown(report.path), "bold underline"), (f"  {report.framework}", "dim")))
    console.print()
    fixable = [each for each in findings if each.fixable]
    refused = [each for each in findings if not each.fixable]
    for group, members in _grouped(fixable, lambda each: each.group):
        console.print(Text(f"  {group}", "bold"))
        for _, same in _grouped(members, lambda each: each.codemod):
            _print_codemod(console, report, same, verbose)
        console.print()
    if refused:
        console.print(Text("  not rewritten", "bold"))
        for _, same in _grouped(refused, lambda each: each.codemod):
            _print_codemod(console, report, same, verbose)
        console.print()
    if in_place:
        console.print(Text("  right already", "bold"))
        for right in in_place:
            place = f"{_where(report, right.site.path)}{right.site.line}"
            _print_indented(console, 4, Text.assemble((right.codemod, "cyan"), f"  {place}  {right.message}"))
        console.print()


def _print_codemod(console: Console, report: FileReport, findings: Sequence[Examined], verbose: bool) -> None:
    """One codemod's findings: its name, risk and gain once, then each place (the same message is said once)."""
    first = findings[0]
    worst = max(each.risk for each in findings)
    title = Text.assemble((first.codemod, "cyan"), "  ", (worst.value, RISK_STYLES[worst]))
    if first.gain is not None and first.fixable:
        title.append(f"  {_factor(first.gain.low, first.gain.high)}", "bold")
    _print_indented(console, 4, title)
    for (message, why_not), same in _grouped(findings, lambda each: (each.message, each.why_not)):
        places = [f"{_where(report, each.site.path)}{each.site.line}:{each.site.column + 1}" for each in same]
        _print_indented(console, 6, Text.assemble((", ".join(places), "dim"), f"  {message}"))
        if why_not:
            _print_indented(console, 8, Text(f"why not: {why_not}"))
        if verbose:
            for step in dict.fromkeys(step for each in same for step in each.chain):
                _print_indented(console, 8, Text(f"since {step}", "dim"))


def _print_indented(console: Console, indent: int, text: Text) -> None:
    console.print(Padding(text, (0, 0, 0, indent)))


def _where(report: FileReport, path: Path) -> str:
    """The file of a place, where it is not the script itself."""
    return "" if path == report.path else f"{shown(path)}:"


# --- the ladder -----------------------------------------------------------------------------------------------------


def _print_ladders(console: Console, reports: Iterable[FileReport]) -> None:
    console.print(Text("What each level would bring", "bold"))
    sources: dict[str, str] = {}
    for report in reports:
        console.print(Text(f"  {shown(report.path)}", "underline"))
        for risk in Risk:
            level = [each for each in report.findings if each.fixable and each.risk is risk]
            line = Text.assemble("    ", (f"{risk.value:<12}", RISK_STYLES[risk]), _rung(report.findings, risk, level))
            console.print(line)
        for each in report.findings:
            if each.fixable and each.gain is not None:
                sources.setdefault(each.codemod, f"{_factor(each.gain.low, each.gain.high)}, {each.gain.source}")
    if sources:
        console.print()
        _print_indented(
            console,
            2,
            Text(
                "An estimate, not a promise: published gains of single changes, multiplied as if they were "
                "independent. Your program, data and GPU decide; `turbofix verify` measures. Where from:"
            ),
        )
        for codemod, source in sources.items():
            _print_indented(console, 4, Text.assemble((codemod, "cyan"), f"  {source}"))


def _rung(findings: Sequence[Examined], risk: Risk, level: Sequence[Examined]) -> str:
    """What one level adds, and what the program would gain with everything up to it."""
    if not level:
        return "nothing more" if risk is not Risk.EXACT else "nothing"
    names = ", ".join(dict.fromkeys(each.codemod for each in level))
    changes = f"{len(level)} change{'s' if len(level) > 1 else ''} ({names})"
    estimate = combined(each for each in findings if each.fixable and each.risk <= risk)
    reach = f"up to here {_factor(*estimate)}" if estimate else "no measured gain to name"
    yes = "; needs --risk recipe" if risk is Risk.RECIPE else ""
    return f"{changes}: {reach}{yes}"


def combined(findings: Iterable[Examined]) -> tuple[float, float] | None:
    """The product of the codemods' gains, each counted once; None where none has a measured gain."""
    gains = {each.codemod: each.gain for each in findings if each.gain is not None}
    if not gains:
        return None
    low = high = 1.0
    for gain in gains.values():
        low, high = low * gain.low, high * gain.high
    return low, high


def _factor(low: float, high: float) -> str:
    return f"{low:.3g}–{high:.3g}×" if low != high else f"{low:.3g}×"


def _grouped(findings: Iterable[Examined], key: Callable[[Examined], Key]) -> Iterable[tuple[Key, list[Examined]]]:
    """Findings by key, in the order in which the keys first appear."""
    groups: dict[Key, list[Examined]] = {}
    for each in findings:
        groups.setdefault(key(each), []).append(each)
    return groups.items()
