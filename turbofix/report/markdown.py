"""A table for pull requests and issues."""

from __future__ import annotations

from turbofix.engine.project import Outcome, shown


def render(outcome: Outcome) -> str:
    """Findings as one table, what is in place and what could not be read as lists."""
    parts = []
    if outcome.shown:
        rows = ["| where | codemod | risk | finding | rewritten by `apply` |", "| --- | --- | --- | --- | --- |"]
        for each in outcome.shown:
            where = f"`{shown(each.site.path)}:{outcome.spot(each.site)}`"
            fix = "yes" if outcome.applies(each) else f"no: {outcome.why_not(each)}"
            cells = (where, f"`{each.codemod}`", each.risk.value, each.message, fix)
            rows.append(f"| {' | '.join(map(_cell, cells))} |")
        parts.append("\n".join(rows))
    else:
        parts.append("turbofix found nothing to fix.")
    if outcome.in_place:
        done = (
            f"- `{shown(e.site.path)}:{outcome.spot(e.site).start}` `{e.codemod}`: {e.message}"
            for e in outcome.in_place
        )
        parts.append("Already right:\n\n" + "\n".join(done))
    if outcome.errors:
        parts.append("Not read:\n\n" + "\n".join(f"- {report.error}" for report in outcome.errors))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
