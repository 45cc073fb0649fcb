"""Workflow commands that GitHub Actions shows as annotations on the changed lines."""

from __future__ import annotations

from turbofix.project import Outcome, shown


def render(outcome: Outcome) -> str:
    """One ``::warning`` per fixable finding, one ``::notice`` per refusal, one ``::error`` per unreadable file."""
    lines = [
        f"::error title=turbofix,file={_property(shown(report.path))}::{_data(report.error or '')}\n"
        for report in outcome.errors
    ]
    for each in outcome.findings:
        site = each.site
        place = ",".join(
            (
                f"title={_property(f'turbofix ({each.codemod})')}",
                f"file={_property(shown(site.path))}",
                f"line={site.line}",
                f"endLine={site.end_line}",
                f"col={site.column + 1}",
                f"endColumn={site.end_column + 1}",
            )
        )
        level = "warning" if each.fixable else "notice"
        reason = f" (not rewritten: {each.why_not})" if each.why_not else ""
        lines.append(f"::{level} {place}::{_data(each.message + reason)}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
